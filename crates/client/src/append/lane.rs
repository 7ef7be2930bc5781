//! One lane of an open chunk: a member that takes the writer's appends, and those to which it passes them on.
//!
//! Pure bookkeeping. Invariants: a lane grows only at its end; an answer counts only if every serving member of the
//! lane gave it, each in the incarnation of its first answer.
use super::part::Cut;
use super::silence::Silence;
use crate::stripe::suspects::Seen;
use cairn_types::{BLOCK_SIZE, ChunkId, Epoch, SessionId, Time};
use cairn_wire::data::{AppendRequest, ChunkHeader, MemberStamp, SealRequest, SyncRequest};
use std::collections::BTreeMap;

/// What a member says to an append or a sync.
#[derive(Debug)]
pub(crate) struct Answer {
    /// What all have durably. It counts in answers to what asked for a sync alone.
    pub durable: u64,
    pub members: Vec<MemberStamp>,
}

/// A chunk, and the epochs in which it was opened and made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Made {
    pub chunk: ChunkId,
    pub epoch: Epoch,
    pub creation_epoch: u64,
    /// Code of its scheme.
    pub scheme: u8,
}

#[derive(Debug)]
pub(crate) struct Lane {
    pub made: Made,
    /// Which cut of a part it gets.
    pub number: usize,
    /// The member that is written to.
    pub head: u32,
    /// Disks behind it, nearest first.
    chain: Vec<u32>,
    /// Disks whose answer is needed.
    serving: Vec<u32>,
    /// Bytes that were sent, that a sync was asked for, and that all have durably.
    pub end: u64,
    pub asked: u64,
    pub durable: u64,
    /// Syncs that are not answered.
    syncs: usize,
    stamps: BTreeMap<u32, u64>,
    /// Whether its calls are answered.
    pub silence: Silence,
    /// As too slow.
    pub is_reported: bool,
}

impl Lane {
    /// `members`: who is written to, the disks behind it, and those whose answer is needed.
    pub fn new(made: Made, number: usize, members: (u32, Vec<u32>, Vec<u32>)) -> Self {
        let (head, chain, serving) = members;
        Self {
            made,
            number,
            head,
            chain,
            serving,
            end: 0,
            asked: 0,
            durable: 0,
            syncs: 0,
            stamps: BTreeMap::new(),
            silence: Silence::default(),
            is_reported: false,
        }
    }
    /// All to which its bytes go.
    pub fn members(&self) -> Vec<u32> {
        std::iter::once(self.head).chain(self.chain.iter().copied()).collect()
    }
    pub fn seen(&self, session: SessionId) -> Seen {
        Seen { session, pg: self.made.chunk.pg.0, epoch: self.made.epoch.0 }
    }
    /// Gives the next bytes their place, at a whole block.
    pub fn place(&mut self, bytes: u64) -> u64 {
        let offset = self.end.next_multiple_of(BLOCK_SIZE as u64);
        self.end = offset + bytes;
        offset
    }
    /// A sync is asked for, if there is anything that none was asked for.
    pub fn ask_sync(&mut self) -> bool {
        let wanted = self.asked < self.end;
        self.asked = self.end;
        self.syncs += usize::from(wanted);
        wanted
    }
    pub fn is_syncing(&self) -> bool {
        self.syncs > 0
    }
    /// An answer to an append or, with `synced`, to what asked for a sync.
    pub fn take(&mut self, answer: &Answer, synced: bool, now: Time) -> std::result::Result<(), String> {
        self.check(&answer.members)?;
        self.silence.answered(now);
        if synced {
            self.durable = self.durable.max(answer.durable);
            self.syncs = self.syncs.saturating_sub(1);
            if self.syncs == 0 {
                // One that covered less than it was asked for is asked for again.
                self.asked = self.asked.min(self.durable);
            }
        }
        Ok(())
    }
    /// Checks who answered: a member that was restarted may have lost what was not durable.
    fn check(&mut self, stamps: &[MemberStamp]) -> std::result::Result<(), String> {
        for stamp in stamps {
            let known = *self.stamps.entry(stamp.disk).or_insert(stamp.incarnation);
            if known != stamp.incarnation {
                let (disk, now) = (stamp.disk, stamp.incarnation);
                return Err(format!("disk d{disk} was restarted (incarnation {known} to {now})"));
            }
        }
        match self.serving.iter().find(|disk| !stamps.iter().any(|stamp| stamp.disk == **disk)) {
            Some(disk) => Err(format!("disk d{disk} serves but did not answer")),
            None => Ok(()),
        }
    }

    fn header(&self, session: SessionId) -> ChunkHeader {
        let (ChunkId { pg, index }, epoch) = (self.made.chunk, self.made.epoch.0);
        ChunkHeader { disk: self.head, pg: pg.0, index, epoch, session: session.0 }
    }
    /// For the message of an append; its payload are the cut's parts.
    pub fn append(&self, session: SessionId, offset: u64, cut: &mut Cut, sync: bool) -> AppendRequest {
        AppendRequest {
            chunk: Some(self.header(session)),
            creation_epoch: self.made.creation_epoch,
            offset,
            crcs: std::mem::take(&mut cut.crcs),
            chain: self.chain.clone(),
            sync,
            scheme: u32::from(self.made.scheme),
            repair: false,
            row_crcs: std::mem::take(&mut cut.row_crcs),
            follows: None,
            local: None,
        }
    }
    pub fn sync(&self, session: SessionId) -> SyncRequest {
        SyncRequest { chunk: Some(self.header(session)), chain: self.chain.clone() }
    }
    pub fn seal(&self, session: SessionId) -> SealRequest {
        SealRequest { chunk: Some(self.header(session)), chain: self.chain.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_types::PgId;

    fn lane() -> Lane {
        let chunk = ChunkId { pg: PgId(1), index: 4 };
        let made = Made { chunk, epoch: Epoch(3), creation_epoch: 1, scheme: 2 };
        Lane::new(made, 0, (10, vec![11], vec![10, 11]))
    }
    fn answer(durable: u64, incarnations: &[(u32, u64)]) -> Answer {
        let members =
            incarnations.iter().map(|(disk, incarnation)| MemberStamp { disk: *disk, incarnation: *incarnation });
        Answer { durable, members: members.collect() }
    }

    /// Bytes that a restarted member forgot, or that one never had, would count as written.
    #[test]
    fn a_restarted_or_silent_member_is_noticed() {
        let (mut lane, now) = (lane(), Time(1));
        assert_eq!(lane.take(&answer(0, &[(10, 1), (11, 2)]), false, now), Ok(()));
        assert!(lane.take(&answer(0, &[(10, 1), (11, 3)]), false, now).is_err_and(|e| e.contains("d11")));
        assert!(lane.take(&answer(0, &[(10, 1)]), false, now).is_err_and(|e| e.contains("d11")));
        assert!(lane.take(&answer(0, &[(11, 2), (12, 1)]), false, now).is_err_and(|e| e.contains("d10")));
    }

    /// A writer would wait for ever for the rest of what a sync came before.
    #[test]
    fn a_sync_that_covered_less_is_asked_for_again() {
        let (mut lane, now) = (lane(), Time(1));
        assert!(!lane.ask_sync());
        assert_eq!((lane.place(100), lane.place(5000)), (0, 4096));
        assert!(lane.ask_sync() && !lane.ask_sync() && lane.is_syncing());
        lane.take(&answer(100, &[(10, 1), (11, 2)]), true, now).expect("taken");
        assert!(!lane.is_syncing() && lane.durable == 100 && lane.ask_sync());
        lane.take(&answer(9096, &[(10, 1), (11, 2)]), true, now).expect("taken");
        assert!(lane.durable == lane.end && !lane.ask_sync());
    }
}
