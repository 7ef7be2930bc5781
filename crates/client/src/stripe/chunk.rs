//! One open striped chunk: what was sent to which shard, what is acknowledged, what is durable.
//!
//! Pure bookkeeping, driven by `stream`. Invariants: all shards are written to the same length, in whole rows, each
//! only at its end; a row group leaves only when it is durable on every member that takes writes, under the epoch and
//! the incarnations of the chunk's first answers, or to be sent again elsewhere.
use super::group::RowGroup;
use super::waiting::Waiting;
use crate::append::part::Placed;
use cairn_erasure::ShardSet;
use cairn_types::{CHUNK_SIZE_MAX, ChunkId, Epoch, Scheme, Stripe, Time};
use cairn_wire::data::MemberStamp;
use std::collections::VecDeque;
use std::time::Duration;

/// A member that takes writes.
#[derive(Clone, Copy, Debug)]
struct Receiver {
    disk: u32,
    incarnation: Option<u64>,
    durable: u64,
}

/// A striped chunk that this session writes.
#[derive(Debug)]
pub(crate) struct StripedChunk {
    pub id: ChunkId,
    pub epoch: Epoch,
    pub creation_epoch: u64,
    pub scheme: Scheme,
    stripe: Stripe,
    /// By shard number; `None`: nobody takes it now, it is made later.
    receivers: Vec<Option<Receiver>>,
    /// Length of every shard with all that was sent.
    end: u64,
    /// What a sync covers that is under way or done.
    sync_asked: u64,
    sync: Option<Waiting>,
    /// No more groups; seal when all is durable.
    pub closing: bool,
    sent: VecDeque<Sent>,
}

#[derive(Debug)]
struct Sent {
    offset: u64,
    bytes: u64,
    waiting: Waiting,
    group: RowGroup,
}

impl StripedChunk {
    /// `receivers`: by shard number the disk that takes it, if there is one.
    pub fn new(id: ChunkId, epochs: (Epoch, u64), scheme: Scheme, stripe: Stripe, receivers: Vec<Option<u32>>) -> Self {
        assert_eq!(receivers.len(), scheme.members(), "a shard a member");
        let receiver = |disk: Option<u32>| disk.map(|disk| Receiver { disk, incarnation: None, durable: 0 });
        Self {
            id,
            epoch: epochs.0,
            creation_epoch: epochs.1,
            scheme,
            stripe,
            receivers: receivers.into_iter().map(receiver).collect(),
            end: 0,
            sync_asked: 0,
            sync: None,
            closing: false,
            sent: VecDeque::new(),
        }
    }
    /// Shard and disk of all that take writes.
    pub fn receivers(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        self.receivers.iter().enumerate().filter_map(|(shard, r)| Some((shard, r.as_ref()?.disk)))
    }
    pub fn disk_of(&self, shard: usize) -> Option<u32> {
        self.receivers.get(shard)?.as_ref().map(|r| r.disk)
    }
    fn everybody(&self) -> Waiting {
        let shards: ShardSet = self.receivers().map(|(shard, _)| shard).collect();
        Waiting::new(shards, self.scheme.tolerated_losses())
    }

    /// A group with so many bytes a shard fits.
    pub fn has_room(&self, bytes: u64) -> bool {
        !self.closing && self.end + bytes <= CHUNK_SIZE_MAX
    }
    /// Gives the group its place, the same in every shard, and keeps it. Returns the offset in the shards.
    pub fn place(&mut self, group: RowGroup) -> u64 {
        let (offset, bytes) = (self.end, group.shard_bytes(self.stripe));
        assert!(self.has_room(bytes) && bytes > 0, "a row group must fit its chunk");
        self.end += bytes;
        self.sent.push_back(Sent { offset, bytes, waiting: self.everybody(), group });
        offset
    }
    /// Groups that some member has not acknowledged.
    pub fn in_flight(&self) -> usize {
        self.sent.iter().filter(|s| !s.waiting.is_done()).count()
    }
    pub fn is_idle(&self) -> bool {
        self.sent.is_empty() && self.sync.is_none()
    }
    /// File bytes up to `end` that no sync covers.
    pub fn unsynced(&self) -> u64 {
        (self.end - self.sync_asked) * u64::from(self.stripe.columns())
    }
    /// The append that ends the chunk now also makes it durable.
    pub fn sync_with_append(&mut self) {
        self.sync_asked = self.end;
    }
    /// All was acknowledged, not all is durable, and somebody waits for it: a sync is begun, to be sent to everybody.
    pub fn begin_sync(&mut self) -> bool {
        let wanted = self.closing || self.sent.iter().any(|s| s.group.sync);
        if !wanted || self.sync.is_some() || self.sent.is_empty() || self.in_flight() > 0 {
            return false;
        }
        self.sync_asked = self.end;
        self.sync = Some(self.everybody());
        true
    }

    /// An append was answered by the member with the shard.
    pub fn acknowledge(&mut self, shard: usize, offset: u64, now: Time) {
        if let Some(sent) = self.sent.iter_mut().find(|s| s.offset == offset) {
            sent.waiting.answered(shard, now);
        }
    }
    /// A sync was answered by the member with the shard.
    pub fn sync_answered(&mut self, shard: usize, now: Time) {
        if let Some(sync) = &mut self.sync {
            sync.answered(shard, now);
            if sync.is_done() {
                self.sync = None;
            }
        }
    }
    /// Checks who answered: it has to be the shard's member in the incarnation of its first answer, or what it had not
    /// made durable may be lost.
    pub fn check_stamp(&mut self, shard: usize, stamps: &[MemberStamp]) -> std::result::Result<(), String> {
        let Some(receiver) = self.receivers.get_mut(shard).and_then(Option::as_mut) else {
            return Err(format!("shard {shard} has no member"));
        };
        let Some(stamp) = stamps.iter().find(|s| s.disk == receiver.disk) else {
            return Err(format!("the answer for disk d{} does not name it", receiver.disk));
        };
        let known = *receiver.incarnation.get_or_insert(stamp.incarnation);
        match known == stamp.incarnation {
            true => Ok(()),
            false => {
                let (disk, now) = (stamp.disk, stamp.incarnation);
                Err(format!("disk d{disk} was restarted (incarnation {known} to {now})"))
            }
        }
    }
    /// The member with the shard has it durably up to `durable`: whoever waited for what all have is told.
    pub fn make_durable(&mut self, shard: usize, durable: u64) {
        if let Some(receiver) = self.receivers.get_mut(shard).and_then(Option::as_mut) {
            receiver.durable = receiver.durable.max(durable);
        }
        let by_all = self.receivers.iter().flatten().map(|r| r.durable).min().unwrap_or(0);
        while let Some(sent) = self.sent.front() {
            if !sent.waiting.is_done() || sent.offset + sent.bytes > by_all {
                break;
            }
            if let Some(Sent { offset, group, .. }) = self.sent.pop_front() {
                let placed = Placed { chunk: self.id, offset: self.stripe.logical(0, offset) };
                // A writer that was dropped no longer asks.
                let _gone = group.done.send(Ok(placed));
            }
        }
    }
    /// Shard and disk of members that lag behind the others by so much.
    pub fn late(&self, now: Time, by: Duration) -> Vec<(usize, u32)> {
        let waiting = self.sent.iter().map(|s| &s.waiting).chain(&self.sync);
        let late = waiting.fold(ShardSet::EMPTY, |late, w| late | w.late(now, by));
        late.iter().filter_map(|shard| Some((shard, self.disk_of(shard)?))).collect()
    }
    /// Where what is not durable lies in the logical space: offset and bytes.
    pub fn unsynced_places(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let columns = u64::from(self.stripe.columns());
        self.sent.iter().map(move |sent| (sent.offset * columns, sent.bytes * columns))
    }
    /// Everything that is not durable, in order, to be sent elsewhere.
    pub fn take_unsynced(&mut self) -> Vec<RowGroup> {
        self.closing = true;
        self.sent.drain(..).map(|s| s.group).collect()
    }
}

#[cfg(test)]
mod tests;
