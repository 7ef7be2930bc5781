//! [`HealJob`]: one block of this member that may be bad: looked at, and taken from somebody who has it good.
//!
//! | the block | others | then |
//! |---|---|---|
//! | matches its checksum | | good |
//! | does not | one has it as the checksum here says | taken |
//! | does not, and the chunk was never overwritten | one has it as its own checksum says | taken |
//! | does not | the first that is asked has freed it | freed |
//! | does not, and nothing was ever written there | all serve, and nobody has anything of the chunk: it was deleted | freed |
//! | does not | else | tried again |
//!
//! Invariant: in a chunk that was overwritten only bytes that match the checksum here are taken: others may be from
//! before.

use cairn_types::{BLOCK_SIZE, DiskId, Epoch, ErrorCode};

use crate::chunk_job::{Outcome, Progress};
use crate::member_op::{About, Came, MemberDone, MemberOp, OwnOp};
use crate::message::{Refused, Table};
use crate::roster::Roster;
use crate::source::{Hunt, Next, Source};

#[derive(Debug)]
enum Phase<P> {
    Verify,
    Table,
    Hunt(Box<Table>, Hunt<P>, bool),
    FreedTable,
    Others(usize, Refused),
    Last,
}

/// One block.
#[derive(Debug)]
pub struct HealJob<P> {
    /// The chunk.
    pub index: u32,
    /// The block.
    pub block: u32,
    made: (Epoch, cairn_types::SessionId),
    phase: Phase<P>,
}

impl<P: Clone> HealJob<P> {
    /// Begins, with what to ask first.
    pub fn begin(index: u32, block: u32, me: DiskId) -> (Self, (DiskId, MemberOp<P>)) {
        let made = (Epoch(0), cairn_types::SessionId(0));
        (Self { index, block, made, phase: Phase::Verify }, (me, MemberOp::Own(OwnOp::Verify(block))))
    }

    /// The chunk's header.
    pub fn about(&self, epoch: Epoch) -> About {
        About { index: self.index, epoch, made: self.made.0, session: self.made.1 }
    }

    fn source(roster: &Roster) -> Source {
        let Some(k) = roster.k else { return Source::Copy(roster.others().collect()) };
        let place = |disk: DiskId| roster.members.iter().position(|member| *member == disk);
        let rest = roster.members.iter().copied().filter(|disk| !roster.serves(*disk));
        let all = roster.serving.iter().copied().chain(rest).filter(|disk| *disk != roster.me);
        Source::Rebuild { k, shards: all.filter_map(|disk| Some((disk, u8::try_from(place(disk)?).ok()?))).collect() }
    }

    /// Something that was asked for came.
    pub fn came(&mut self, roster: &Roster, from: DiskId, came: Came<P>) -> Progress<P> {
        let block = self.block;
        match (std::mem::replace(&mut self.phase, Phase::Last), came) {
            (Phase::Verify, Ok(MemberDone::Is(true))) => Progress::Ended(Outcome::Done { same: true }),
            (Phase::Verify, Ok(_)) => {
                self.phase = Phase::Table;
                Progress::Calls(vec![(roster.me, MemberOp::Table)])
            }
            (Phase::Table, Ok(MemberDone::Table(table))) => {
                if block as usize >= table.crcs.len() || table.freed.get(block) {
                    return Progress::Ended(Outcome::Settled);
                }
                self.made = (table.sum.made, table.sum.session);
                let wanted = roster.k.is_none().then(|| vec![table.crcs[block as usize]]);
                let end = table.sum.length;
                let hunt = Hunt::new(Self::source(roster), block..block + 1, end, wanted);
                self.hunt_on(roster, Box::new(table), hunt, true)
            }
            // It was freed, or is missing altogether: that is not for this one to mend.
            (Phase::Verify | Phase::Table, Err(refused)) if refused.is_about_bytes() => {
                Progress::Ended(Outcome::Settled)
            }
            (Phase::Hunt(table, mut hunt, as_here), came) => {
                match came {
                    Ok(MemberDone::Data(data)) if from == roster.me => hunt.decoded(Ok(data)),
                    Err(refused) if from == roster.me => hunt.decoded(Err(refused)),
                    Ok(MemberDone::Data(data)) => hunt.came(from, Ok((data, self.made.0))),
                    Ok(_) => hunt.came(from, Err(Refused::because(ErrorCode::Internal))),
                    Err(refused) => hunt.came(from, Err(refused)),
                }
                self.hunt_on(roster, table, hunt, as_here)
            }
            (Phase::FreedTable, Ok(MemberDone::Table(table))) if table.freed.get(block) => {
                let run = block..block + 1;
                Progress::Calls(vec![(roster.me, MemberOp::Free(vec![run]))])
            }
            (Phase::Others(left, refused), Ok(MemberDone::Sum(None))) => {
                if left > 1 {
                    self.phase = Phase::Others(left - 1, refused);
                    return Progress::Pending;
                }
                Progress::Calls(vec![(roster.me, MemberOp::Own(OwnOp::FreeHole(block)))])
            }
            (Phase::Others(_, refused), _) => Progress::Ended(Outcome::Failed(refused)),
            (Phase::Last, Ok(_)) => Progress::Ended(Outcome::Done { same: false }),
            (_, Ok(_)) => Progress::Ended(Outcome::Failed(Refused::because(ErrorCode::ChecksumMismatch))),
            (_, Err(refused)) => Progress::Ended(Outcome::Failed(refused)),
        }
    }

    /// Nobody has it good. Where all serve, and have nothing of the chunk, it was deleted.
    fn nobody(&mut self, roster: &Roster, refused: Refused) -> Progress<P> {
        let others: Vec<DiskId> = roster.others().collect();
        if roster.serving.len() < roster.members.len() || others.is_empty() || !refused.is_about_bytes() {
            return Progress::Ended(Outcome::Failed(refused));
        }
        self.phase = Phase::Others(others.len(), refused);
        Progress::Calls(others.into_iter().map(|disk| (disk, MemberOp::Sum)).collect())
    }

    fn hunt_on(&mut self, roster: &Roster, table: Box<Table>, mut hunt: Hunt<P>, as_here: bool) -> Progress<P> {
        let mut calls = Vec::new();
        let (block, made) = (self.block, self.made.0);
        loop {
            match hunt.go_on() {
                Next::Ask { disk, offset, bytes } => {
                    let last_resort = !roster.serves(disk);
                    calls.push((disk, MemberOp::Read { offset, bytes, made, last_resort }));
                }
                Next::Decode(shards) => {
                    let op = OwnOp::Decode { shards, shard: roster.shard(), blocks: hunt.blocks.clone() };
                    calls.push((roster.me, MemberOp::Own(op)));
                }
                Next::Pending => {
                    self.phase = Phase::Hunt(table, hunt, as_here);
                    return if calls.is_empty() { Progress::Pending } else { Progress::Calls(calls) };
                }
                Next::Found(data) => {
                    // What is proven of a shard is what its checksum says, or the checksum is the bad one.
                    return Progress::Calls(vec![(roster.me, MemberOp::Own(OwnOp::Heal { block, data }))]);
                }
                Next::Lacking(refused) if refused.code == ErrorCode::ChunkDeleted => {
                    let Some(first) = roster.others().next() else {
                        return Progress::Ended(Outcome::Failed(refused));
                    };
                    self.phase = Phase::FreedTable;
                    return Progress::Calls(vec![(first, MemberOp::Table)]);
                }
                Next::Lacking(refused) => {
                    let overwritten = table.sum.number.is_some();
                    let whole = (u64::from(block) + 1) * BLOCK_SIZE as u64 <= table.sum.length;
                    if !as_here || overwritten || roster.k.is_some() || !whole {
                        return self.nobody(roster, refused);
                    }
                    hunt = Hunt::new(Self::source(roster), block..block + 1, table.sum.length, None);
                    return self.hunt_on(roster, table, hunt, false);
                }
            }
        }
    }
}
