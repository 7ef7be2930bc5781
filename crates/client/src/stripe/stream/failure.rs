//! What a striped stream does about members that fail or stall.
//!
//! A failed call ends the chunk: who failed is reported, what is not durable goes to the next chunk. A member that lags
//! is pinged; if it does not answer that either, or lags for seconds, it is reported. The chunk ends when the manager
//! raised the group's epoch, or at the deadline of the call. Groups with a member that is being looked into get no new
//! chunk meanwhile.
use super::super::chunk::StripedChunk;
use super::super::group::RowGroup;
use super::super::suspects::Seen;
use super::super::waiting::{SLOW, STALL};
use super::{Event, Stream};
use crate::error::ClientError;
use crate::net::NetError;
use cairn_types::{Epoch, ErrorCode, ExtentKind};

/// What an error of a member says.
struct Verdict {
    /// The member itself is at fault.
    culprit: bool,
    full: bool,
}

fn judge(error: &NetError) -> Verdict {
    let (culprit, full) = match error {
        NetError::NotSent(_) | NetError::Unknown(_) => (true, false),
        NetError::Remote(error) => match error.code {
            ErrorCode::DiskFailed | ErrorCode::DeadlineExceeded => (true, false),
            ErrorCode::NoSpace | ErrorCode::PgFull => (false, true),
            _ => (false, false),
        },
    };
    Verdict { culprit, full }
}

impl Stream {
    /// Gives a chunk up because of what the member with the shard answered.
    pub(super) fn fail_chunk(&mut self, key: u64, shard: usize, error: &NetError) {
        let Some(mut chunk) = self.chunks.remove(&key) else { return };
        let disk = chunk.disk_of(shard);
        tracing::warn!(chunk = %chunk.id, shard, disk, error = error.text(), "going on in another striped chunk");
        let verdict = judge(error);
        if verdict.culprit || verdict.full {
            self.avoided.add(chunk.id.pg, self.cluster.clock.now(), verdict.full);
        }
        self.seal(&chunk, disk.filter(|_| verdict.culprit));
        match disk.filter(|_| verdict.culprit) {
            Some(disk) => self.report(key, &chunk, disk, error.text()),
            None => {
                let cluster = self.cluster.clone();
                tokio::spawn(async move { cluster.refresh_quietly().await });
            }
        }
        self.send_again(key, &mut chunk, error);
    }

    /// What is not durable goes back to be encoded and sent before anything else.
    fn send_again(&mut self, key: u64, chunk: &mut StripedChunk, error: &NetError) {
        if self.current == Some(key) {
            self.current = None;
        }
        let (now, patience) = (self.cluster.clock.now(), self.cluster.patience);
        let kind = ExtentKind::Erasure(self.encoder.stripe);
        for (offset, length) in chunk.unsynced_places() {
            self.cluster.abandoned.add(self.target.session, chunk.id, kind, offset, length);
        }
        let mut back: Vec<RowGroup> = chunk.take_unsynced();
        for group in back.iter_mut() {
            group.retry.failed(now, error);
            // Groups that were encoded meanwhile are ahead of these, the one that asks for the sync of all among them:
            // it may be durable and gone before these are sent, and nobody else would ask for theirs.
            group.sync = true;
        }
        let (dead, back): (Vec<_>, Vec<_>) = back.into_iter().partition(|g| g.retry.is_over(now, patience));
        for group in dead {
            let what = format!("writing to {}", chunk.id);
            let detail = format!("{} chunks failed, the last with: {}", group.retry.times(), error.text());
            let _gone = group.done.send(Err(ClientError::NoWritableGroup { what, detail, full: error.is_full() }));
        }
        for group in back.into_iter().rev() {
            self.pause = self.pause.max(group.retry.pause());
            self.pending.push_front(group);
        }
    }

    /// Tells the manager, and the stream when the manager has decided.
    fn report(&self, key: u64, chunk: &StripedChunk, disk: u32, why: String) {
        let seen = Seen { session: self.target.session, pg: chunk.id.pg.0, epoch: chunk.epoch.0 };
        let (report, sender) = (self.cluster.report_suspect(seen, disk, why), self.sender.clone());
        tokio::spawn(async move {
            report.await;
            let _ended = sender.send(Event::Settled { key, disk });
        });
    }

    /// Pings members that lag behind the others: those that stand still are reported, and after a while slow ones too.
    pub(super) fn look_for_stalls(&mut self) {
        let now = self.cluster.clock.now();
        let mut late = Vec::new();
        for (key, chunk) in &self.chunks {
            let slow = chunk.late(now, SLOW);
            let stalled = chunk.late(now, STALL);
            late.extend(stalled.into_iter().map(|who| (*key, who.1, slow.contains(&who))));
        }
        for (key, disk, slow) in late {
            if self.reported.contains(&(key, disk)) {
                continue;
            }
            self.reported.push((key, disk));
            let Some(chunk) = self.chunks.get(&key) else { continue };
            if slow && !self.found_slow.contains(&(key, disk)) {
                // Once: a manager that found it good enough finds so again.
                self.found_slow.retain(|(key, _)| self.chunks.contains_key(key));
                self.found_slow.push((key, disk));
                let why = format!("disk d{disk} did not answer while the other members did");
                self.report(key, chunk, disk, why);
                continue;
            }
            let seen = Seen { session: self.target.session, pg: chunk.id.pg.0, epoch: chunk.epoch.0 };
            let (cluster, sender) = (self.cluster.clone(), self.sender.clone());
            tokio::spawn(async move {
                cluster.look_at(seen, vec![disk]).await;
                let _ended = sender.send(Event::Settled { key, disk });
            });
        }
    }

    /// The manager decided about a member: under a new epoch the chunk takes no more.
    pub(super) fn settled(&mut self, key: u64, disk: u32) {
        self.reported.retain(|known| *known != (key, disk));
        let Some(chunk) = self.chunks.get(&key) else { return };
        let known = self.cluster.view().pgs.get(&chunk.id.pg.0).map_or(Epoch(0), |pg| pg.epoch);
        if known <= chunk.epoch {
            return;
        }
        let Some(mut chunk) = self.chunks.remove(&key) else { return };
        let text = format!("{} is at {known} now, without disk d{disk}", chunk.id.pg);
        tracing::warn!(chunk = %chunk.id, disk, text, "going on in another striped chunk");
        self.send_again(key, &mut chunk, &NetError::Unknown(text));
    }

    /// Nothing takes new data: everybody who waits is told.
    pub(super) fn fail_all(&mut self, error: &ClientError) {
        for encoding in self.encoding.drain(..) {
            let error = error.clone();
            tokio::spawn(async move {
                if let Ok(Ok(encoded)) = encoding.await {
                    let _gone = encoded.group.done.send(Err(error));
                }
            });
        }
        let ready = self.ready.drain(..).map(|e| e.group);
        for group in self.pending.drain(..).chain(ready) {
            let _gone = group.done.send(Err(error.clone()));
        }
    }
}
