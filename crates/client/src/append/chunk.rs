//! One open chunk of an append stream: what was sent, what is acknowledged, what is durable.
//!
//! Pure bookkeeping, driven by `stream`. Invariants: a segment leaves only when it is durable on every serving member
//! under the epoch and incarnations of the chunk's first answer, or to be sent again elsewhere.
use super::segment::{Placed, SEGMENT_MAX, Segment};
use super::silence::Silence;
use cairn_types::{BLOCK_SIZE, CHUNK_SIZE_MAX, ChunkId, Epoch};
use cairn_wire::data::MemberStamp;
use std::collections::{BTreeMap, VecDeque};

/// A chunk that this session writes.
#[derive(Debug)]
pub struct OpenChunk {
    pub id: ChunkId,
    pub epoch: Epoch,
    pub creation_epoch: u64,
    pub scheme: u8,
    pub primary: u32,
    /// Disks after the primary, nearest first.
    pub chain: Vec<u32>,
    /// Disks whose durable answer is needed: all serving ones.
    pub serving: Vec<u32>,
    /// Next append starts here or later.
    end: u64,
    durable: u64,
    in_flight: usize,
    pub sync_in_flight: bool,
    /// Whether its calls are answered.
    pub silence: Silence,
    /// No more segments; seal when all is durable.
    pub closing: bool,
    stamps: BTreeMap<u32, u64>,
    sent: VecDeque<Sent>,
}

#[derive(Debug)]
struct Sent {
    offset: u64,
    acknowledged: bool,
    segment: Segment,
}

impl OpenChunk {
    pub fn new(id: ChunkId, epoch: Epoch, creation_epoch: u64, scheme: u8, members: (u32, Vec<u32>, Vec<u32>)) -> Self {
        let (primary, chain, serving) = members;
        Self {
            id,
            epoch,
            creation_epoch,
            scheme,
            primary,
            chain,
            serving,
            end: 0,
            durable: 0,
            in_flight: 0,
            sync_in_flight: false,
            silence: Silence::default(),
            closing: false,
            stamps: BTreeMap::new(),
            sent: VecDeque::new(),
        }
    }
    /// A segment of that size fits.
    pub fn has_room(&self, bytes: usize) -> bool {
        !self.closing && self.next_offset() + bytes as u64 <= CHUNK_SIZE_MAX
    }
    /// So little is left that the chunk is better closed.
    pub fn is_nearly_full(&self) -> bool {
        CHUNK_SIZE_MAX - self.next_offset().min(CHUNK_SIZE_MAX) < SEGMENT_MAX as u64 / 16
    }
    fn next_offset(&self) -> u64 {
        self.end.next_multiple_of(BLOCK_SIZE as u64)
    }
    /// Primary and chain.
    pub fn members(&self) -> Vec<u32> {
        std::iter::once(self.primary).chain(self.chain.iter().copied()).collect()
    }
    /// Gives the segment its place and keeps it; returns the chunk offset of its first byte.
    pub fn place(&mut self, segment: Segment) -> u64 {
        let offset = self.next_offset();
        assert!(offset + segment.data.len() as u64 <= CHUNK_SIZE_MAX, "a segment must fit its chunk");
        self.end = offset + segment.data.len() as u64;
        self.in_flight += 1;
        self.sent.push_back(Sent { offset, acknowledged: false, segment });
        offset
    }
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }
    pub fn is_idle(&self) -> bool {
        self.sent.is_empty() && self.in_flight == 0 && !self.sync_in_flight
    }
    /// Bytes that were acknowledged and are not yet durable.
    pub fn unsynced(&self) -> u64 {
        self.sent.iter().filter(|s| s.acknowledged).map(|s| s.segment.data.len() as u64).sum()
    }
    /// Somebody waits for an acknowledged segment that is not yet durable.
    pub fn has_waiters(&self) -> bool {
        self.sent.iter().any(|s| s.acknowledged && s.segment.sync)
    }
    /// An append was answered.
    pub fn acknowledge(&mut self, offset: u64) {
        self.in_flight = self.in_flight.saturating_sub(1);
        if let Some(sent) = self.sent.iter_mut().find(|s| s.offset == offset) {
            sent.acknowledged = true;
            let placed = Placed { chunk: self.id, offset: sent.offset + sent.segment.lead as u64 };
            sent.segment.show(placed);
        }
    }
    /// Checks who answered: the incarnations have to stay those of the first answer, or unsynced bytes may be lost.
    pub fn check_stamps(&mut self, stamps: &[MemberStamp]) -> std::result::Result<(), String> {
        for stamp in stamps {
            let known = *self.stamps.entry(stamp.disk).or_insert(stamp.incarnation);
            if known != stamp.incarnation {
                return Err(format!(
                    "disk d{} was restarted (incarnation {known} to {})",
                    stamp.disk, stamp.incarnation
                ));
            }
        }
        match self.serving.iter().find(|disk| !stamps.iter().any(|s| s.disk == **disk)) {
            Some(disk) => Err(format!("disk d{disk} serves but did not answer")),
            None => Ok(()),
        }
    }
    /// Everything up to `durable` is on stable storage of all members: its waiters are told.
    pub fn make_durable(&mut self, durable: u64) {
        self.durable = self.durable.max(durable);
        while let Some(sent) = self.sent.front() {
            if !sent.acknowledged || sent.offset + sent.segment.data.len() as u64 > self.durable {
                break;
            }
            if let Some(Sent { offset, segment, .. }) = self.sent.pop_front() {
                let placed = Placed { chunk: self.id, offset: offset + segment.lead as u64 };
                // A writer that was dropped no longer asks.
                let _gone = segment.done.send(Ok(placed));
            }
        }
    }
    /// Somebody waits for all of it.
    pub fn want_sync(&mut self) {
        self.sent.iter_mut().for_each(|sent| sent.segment.sync = true);
    }
    /// Where what is not durable and has no name lies: offset and bytes.
    pub fn unsynced_places(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let unnamed = self.sent.iter().filter(|sent| !sent.segment.is_shown_in(self.id));
        unnamed.map(|sent| (sent.offset, sent.segment.data.len() as u64))
    }
    /// Everything that is not durable, in order, to be sent elsewhere.
    pub fn take_unsynced(&mut self) -> Vec<Segment> {
        self.in_flight = 0;
        self.closing = true;
        self.sent.drain(..).map(|s| s.segment).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::append::retry::Retry;
    use cairn_env::buf::SharedBuf;
    use cairn_types::PgId;
    use std::sync::Arc;
    use tokio::sync::{Semaphore, oneshot};

    fn chunk() -> OpenChunk {
        let id = ChunkId { pg: PgId(1), index: 4 };
        OpenChunk::new(id, Epoch(3), 1, 2, (10, vec![11], vec![10, 11]))
    }

    fn segment(bytes: usize, lead: usize) -> (Segment, oneshot::Receiver<crate::error::Result<Placed>>) {
        let (done, answer) = oneshot::channel();
        let permit = Arc::new(Semaphore::new(10)).try_acquire_owned().expect("permit");
        let data = SharedBuf::from_owner(vec![1u8; bytes]);
        (
            Segment {
                data,
                lead,
                crcs: Vec::new(),
                sync: true,
                done,
                show: None,
                retry: Retry::default(),
                _permit: permit,
            },
            answer,
        )
    }

    fn stamps(incarnations: [u64; 2]) -> Vec<MemberStamp> {
        vec![
            MemberStamp { disk: 10, incarnation: incarnations[0] },
            MemberStamp { disk: 11, incarnation: incarnations[1] },
        ]
    }

    #[test]
    fn files_start_on_block_boundaries_and_are_told_when_durable() {
        let mut chunk = chunk();
        let (first, mut first_answer) = segment(100, 0);
        let (second, mut second_answer) = segment(5000, 10);
        assert_eq!((chunk.place(first), chunk.place(second)), (0, 4096));
        chunk.acknowledge(4096);
        chunk.make_durable(9096);
        assert!(second_answer.try_recv().is_err(), "in order: the first is not acknowledged yet");
        chunk.acknowledge(0);
        chunk.make_durable(9096);
        let id = chunk.id;
        let placed = first_answer.try_recv().expect("answered").expect("placed");
        assert_eq!(placed, Placed { chunk: id, offset: 0 });
        let placed = second_answer.try_recv().expect("answered").expect("placed");
        assert_eq!(placed, Placed { chunk: id, offset: 4106 });
        assert!(chunk.is_idle());
    }

    #[test]
    fn a_restarted_or_silent_member_is_noticed() {
        let mut chunk = chunk();
        assert_eq!(chunk.check_stamps(&stamps([1, 2])), Ok(()));
        assert!(chunk.check_stamps(&stamps([1, 3])).is_err_and(|e| e.contains("d11")));
        assert!(chunk.check_stamps(&stamps([1, 2])[..1]).is_err_and(|e| e.contains("d11")));
    }

    #[test]
    fn what_is_not_durable_comes_back_in_order() {
        let mut chunk = chunk();
        let (first, _a) = segment(4096, 0);
        let (second, _b) = segment(10, 0);
        chunk.place(first);
        chunk.place(second);
        chunk.acknowledge(0);
        let back = chunk.take_unsynced();
        assert_eq!(back.iter().map(|s| s.data.len()).collect::<Vec<_>>(), [4096, 10]);
        assert!(!chunk.has_room(1));
    }
}
