//! What a stream does about members that fail or stall.
//!
//! A failed call ends the chunk: who failed is reported, what is not durable goes to the next chunk. A lane that owes
//! answers and gives none has its members pinged: deadlines of seconds are for slow disks, not for members that stand
//! still. So is, once, who stays far behind the other lanes. The chunk ends when the manager raised the epoch of the
//! lane's group, or at the deadline of the call.
use super::super::chunk::OpenChunk;
use super::super::lane::Lane;
use super::super::part::Part;
use super::{Event, Stream};
use crate::error::ClientError;
use crate::net::NetError;
use crate::stripe::suspects::Look;
use cairn_types::{Epoch, ErrorCode};
use cairn_wire::Opcode;
use cairn_wire::data::SealResponse;
use std::time::Duration;

/// Deadline of a seal; members seal idle chunks anyway.
const SEAL_DEADLINE: Duration = Duration::from_secs(2);
/// Before what was shown is tried again after no group could be written for the whole patience.
const SHOWN_PAUSE: Duration = Duration::from_secs(1);
/// Lanes of a chunk whose members are looked at in one go.
const LOOKS_MAX: usize = 4;

/// Which member is at fault when the head of a lane answers with an error.
fn culprit(lane: &Lane, error: &NetError) -> Option<u32> {
    match error {
        NetError::NotSent(_) | NetError::Unknown(_) => Some(lane.head),
        NetError::Refused(_) => None,
        NetError::Remote(error) => match error.code {
            ErrorCode::ChainFailed => error.failed_disk,
            ErrorCode::DiskFailed | ErrorCode::DeadlineExceeded => Some(lane.head),
            _ => None,
        },
    }
}

impl Stream {
    /// Looks at the members of lanes that answer nothing, and reports those that are too slow.
    pub(super) fn look_for_stalls(&mut self) {
        let (now, session) = (self.cluster.clock.now(), self.target.session);
        for (key, chunk) in self.chunks.iter_mut() {
            for number in chunk.lagging(now) {
                let lane = &mut chunk.lanes[number];
                if std::mem::replace(&mut lane.is_reported, true) {
                    // A manager that found it good enough finds so again.
                    continue;
                }
                let why = format!("disk d{} did not answer while the other members did", lane.head);
                let report = self.cluster.report_suspect(lane.seen(session), lane.head, why);
                let (sender, key) = (self.sender.clone(), *key);
                tokio::spawn(async move {
                    let look = Look { moved: report.await, again: None };
                    let _ended = sender.send(Event::Looked { key, lane: number, look });
                });
            }
            for lane in chunk.silent(now, LOOKS_MAX) {
                let (seen, members) = (chunk.lanes[lane].seen(session), chunk.lanes[lane].members());
                let (cluster, sender, key) = (self.cluster.clone(), self.sender.clone(), *key);
                tokio::spawn(async move {
                    let look = cluster.look_at(seen, members).await;
                    let _ended = sender.send(Event::Looked { key, lane, look });
                });
            }
        }
    }

    /// Under a new epoch a chunk takes no more: what waits for a member that left is sent elsewhere.
    pub(super) fn looked(&mut self, key: u64, number: usize, look: Look) {
        let now = self.cluster.clock.now();
        let Some(lane) = self.chunks.get_mut(&key).and_then(|chunk| chunk.lanes.get_mut(number)) else { return };
        if let Some(after) = look.again {
            lane.silence.look_again(now, after);
        }
        let (chunk, head, waits) = (lane.made.chunk, lane.head, lane.silence.waits());
        let known = self.known_epoch(&self.chunks[&key].lanes[number]);
        if known <= self.chunks[&key].lanes[number].made.epoch || !waits {
            return;
        }
        let text = format!("{} is at {known} now, and disk d{head}, or one behind it, did not answer", chunk.pg);
        tracing::warn!(%chunk, text, "going on in another chunk");
        self.seal(&self.chunks[&key], None, std::future::ready(()));
        self.send_again(key, &NetError::Unknown(text));
    }
    fn known_epoch(&self, lane: &Lane) -> Epoch {
        self.cluster.view().pgs.get(&lane.made.chunk.pg.0).map_or(Epoch(0), |pg| pg.epoch)
    }

    /// Gives a chunk up because of what a lane answered: who failed is reported, what was not durable goes to the next
    /// chunk.
    pub(super) fn fail_chunk(&mut self, key: u64, number: usize, error: &NetError) {
        let Some(chunk) = self.chunks.get(&key) else { return };
        let lane = &chunk.lanes[number];
        tracing::warn!(chunk = %lane.made.chunk, disk = lane.head, error = error.text(), "going on in another chunk");
        let culprit = culprit(lane, error);
        if culprit.is_some() || error.is_full() {
            self.avoided.add(lane.made.chunk.pg, self.cluster.clock.now(), error.is_full());
        }
        let seen = lane.seen(self.target.session);
        let report = culprit.map(|disk| self.cluster.report_suspect(seen, disk, error.text()));
        let cluster = self.cluster.clone();
        self.seal(chunk, culprit, async move {
            match report {
                Some(report) => drop(report.await),
                None => cluster.refresh_quietly().await,
            }
        });
        self.send_again(key, error);
    }

    /// Best effort, when `first` is done: members seal an idle chunk, or one of an earlier epoch, by themselves.
    pub(super) fn seal(
        &self,
        chunk: &OpenChunk,
        without: Option<u32>,
        first: impl Future<Output = ()> + Send + 'static,
    ) {
        let sealable = chunk.lanes.iter().filter(|lane| Some(lane.head) != without);
        let sealable = sealable.filter(|lane| self.known_epoch(lane) <= lane.made.epoch);
        let seals: Vec<_> = sealable.map(|lane| (lane.head, lane.seal(self.target.session))).collect();
        let cluster = self.cluster.clone();
        tokio::spawn(async move {
            first.await;
            for (head, request) in seals {
                let Ok(address) = cluster.disk_address(head) else { continue };
                let net = cluster.net.clone();
                tokio::spawn(async move {
                    if let Err(error) = net.call::<SealResponse>(&address, Opcode::Seal, &request, SEAL_DEADLINE).await
                    {
                        tracing::debug!(
                            disk = head,
                            error = error.text(),
                            "a chunk was left to be sealed by its members"
                        );
                    }
                });
            }
        });
    }

    /// What is not durable goes before anything else.
    fn send_again(&mut self, key: u64, error: &NetError) {
        let Some(mut chunk) = self.chunks.remove(&key) else { return };
        if self.current == Some(key) {
            self.current = None;
        }
        let (now, patience) = (self.cluster.clock.now(), self.cluster.patience);
        for (id, kind, offset, length) in chunk.unsynced_places() {
            self.cluster.abandoned.add(self.target.session, id, kind, offset, length);
        }
        let mut back: Vec<Part> = chunk.take_unsynced();
        for part in back.iter_mut() {
            part.retry.failed(now, error);
            // They may go to a chunk that was opened behind this one and has what followed, or behind what is encoded
            // already, the part that asks for the sync of all among it: it may be durable and gone, and nobody else
            // would ask for theirs.
            part.sync = true;
        }
        let (dead, back): (Vec<_>, Vec<_>) = back.into_iter().partition(|part| match part.is_shown() {
            // It has a name: there is no writer any more who would write it anew.
            true => part.retry.is_hopeless(),
            false => part.retry.is_over(now, patience),
        });
        for part in dead {
            let what = format!("writing to {}", chunk.id());
            let detail = format!("{} chunks failed, the last with: {}", part.retry.times(), error.text());
            part.fail(&ClientError::NoWritableGroup { what, detail, full: error.is_full() });
        }
        for part in back.into_iter().rev() {
            self.pause = self.pause.max(part.retry.pause());
            self.queue.push_front(part);
        }
    }

    /// Nothing takes new data: everybody who waits is told.
    pub(super) fn fail_pending(&mut self, error: &ClientError) {
        let shown = self.queue.fail(error);
        if shown > 0 {
            tracing::warn!(parts = shown, %error, "closed files cannot be made durable yet; it is tried again");
            self.pause = SHOWN_PAUSE;
        }
    }
}
