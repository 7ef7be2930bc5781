//! [`ChunkJob`]: makes one chunk as [`reconcile`](crate::reconcile) says: asks who has what, compares tables, moves
//! what differs, sets number and seal. The same for every purpose.
//!
//! Invariants: it can be interrupted anywhere and done again: what it did is on the disks; what it writes matches the
//! checksum of the table that it took, or was proven. One step at a time; a failure ends it, and whoever began it
//! begins another one.

mod moving;

use std::collections::VecDeque;
use std::ops::Range;

use cairn_format::crc_table::{PunchedBits, blocks_of};
use cairn_format::overwrite_number::OverwriteNumber;
use cairn_types::{BLOCK_SIZE, DiskId, Epoch, ErrorCode, SessionId};

use crate::member_op::{About, Call, Came, MemberDone, MemberOp, OwnOp};
use crate::message::{ChunkSum, Refused, Table};
use crate::reconcile::{
    Difference, Here, How, Now, Plan, Purpose, Said, Step, Verdict, Witness, decide, differ, runs_of,
};
use crate::roster::Roster;
use crate::source::{Hunt, Source, SourceKind};

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Everybody is as it should be; `same`: and was so before.
    Done {
        /// Nothing had to be changed, and nothing that was not said could matter.
        same: bool,
    },
    /// It comes by itself.
    Arrives,
    /// It is to be looked at again.
    Wait,
    /// Of all others nobody has anything.
    Nowhere,
    /// There is nothing to bring.
    Settled,
    /// Members contradict each other.
    Conflict,
    /// A step failed.
    Failed(Refused),
}

/// What a job does next.
#[derive(Debug)]
pub enum Progress<P> {
    /// These, and then it goes on.
    Calls(Vec<Call<P>>),
    /// It waits for what it asked for.
    Pending,
    /// It has ended.
    Ended(Outcome),
}

/// Some blocks on their way.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    /// In the place of what is there.
    Replace(Range<u32>),
    /// At the end.
    Append(Range<u32>),
    /// At the end, for blocks that are freed right after.
    Fill(Range<u32>),
    /// The beginning of a block.
    Begin(u32, u64),
    Free(Vec<Range<u32>>),
    Sync,
    Seal,
    InStep(OverwriteNumber),
}

/// What a step moves.
#[derive(Debug)]
struct Moving<P> {
    source: Source,
    target: DiskId,
    how: Moves,
    /// Checksums of the source's table; none for what is proven otherwise.
    crcs: Option<Vec<u32>>,
    /// Where the chunk ends.
    end: u64,
    pieces: VecDeque<Piece>,
    hunt: Option<(Piece, Hunt<P>)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moves {
    Level(How, OverwriteNumber),
    Extend,
    Rebuild,
    /// A bad block here that others were to get: of anybody who has it good, and then all begins anew.
    Mend(OverwriteNumber),
}

#[derive(Debug)]
enum Phase<P> {
    Look { left: usize },
    SourceTable { source: Source, turn: usize, target: DiskId, how: How },
    TargetTable { source: Source, table: Box<Table>, target: DiskId, how: How },
    FreedTables { left: usize, source: Source, range: Range<u64>, freed: Box<PunchedBits> },
    ExtendTable(Moving<P>, Piece),
    Moving(Moving<P>),
    Single,
}

/// One chunk, made as it should be.
#[derive(Debug)]
pub struct ChunkJob<P> {
    /// The chunk.
    pub index: u32,
    /// Why.
    pub purpose: Purpose,
    witnesses: Vec<Witness>,
    phase: Phase<P>,
    steps: VecDeque<Step>,
    made: (Epoch, SessionId),
    same: bool,
    used: Vec<SourceKind>,
    piece_blocks: u32,
}

impl<P: Clone> ChunkJob<P> {
    /// Begins, with what to ask first. `known`: what members have listed a moment ago.
    pub fn begin(
        index: u32,
        purpose: Purpose,
        roster: &Roster,
        known: &[(DiskId, Option<ChunkSum>)],
        piece_blocks: u32,
    ) -> (Self, Vec<Call<P>>) {
        let asked: Vec<DiskId> = match purpose {
            Purpose::End => roster.serving.clone(),
            Purpose::Equalise => std::iter::once(roster.me).chain(roster.receivers.iter().copied()).collect(),
            Purpose::Follow { holder } => vec![roster.me, holder],
            Purpose::Restore | Purpose::Shard => std::iter::once(roster.me).chain(roster.others()).collect(),
        };
        let said = |disk: &DiskId| match known.iter().find(|(of, _)| of == disk) {
            Some((_, Some(sum))) => Said::Has(*sum),
            Some((_, None)) => Said::Lacks,
            None => Said::Silent,
        };
        let witness = |disk: &DiskId| Witness { disk: *disk, serves: roster.serves(*disk), said: said(disk) };
        let witnesses = asked.iter().map(witness).collect();
        // Its own it looks at in any case, at this moment.
        let left = asked.into_iter().filter(|disk| *disk == roster.me || !known.iter().any(|(of, _)| of == disk));
        let asked: Vec<DiskId> = left.collect();
        let job = Self {
            index,
            purpose,
            witnesses,
            phase: Phase::Look { left: asked.len() },
            steps: VecDeque::new(),
            made: (Epoch(0), SessionId(0)),
            same: true,
            used: Vec::new(),
            piece_blocks: piece_blocks.max(1),
        };
        (job, asked.into_iter().map(|disk| (disk, MemberOp::Sum)).collect())
    }

    /// Where bytes came from.
    pub fn used(&self) -> &[SourceKind] {
        &self.used
    }

    /// What it writes here may be half there.
    pub fn brings(&self) -> bool {
        !matches!(self.phase, Phase::Look { .. }) && !matches!(self.purpose, Purpose::End | Purpose::Equalise)
    }

    /// The chunk's header, for what is written.
    pub fn about(&self, epoch: Epoch) -> About {
        About { index: self.index, epoch, made: self.made.0, session: self.made.1 }
    }

    fn own(&self, roster: &Roster) -> Option<&ChunkSum> {
        let own = self.witnesses.iter().find(|witness| witness.disk == roster.me)?;
        if let Said::Has(sum) = &own.said { Some(sum) } else { None }
    }

    /// Something that was asked for came.
    pub fn came(&mut self, roster: &Roster, now: Now, from: DiskId, came: Came<P>) -> Progress<P> {
        let phase = std::mem::replace(&mut self.phase, Phase::Single);
        match phase {
            Phase::Look { left } => self.looked(roster, now, from, came, left - 1),
            Phase::SourceTable { source, turn, target, how } => self.source_table((source, turn, target, how), came),
            Phase::TargetTable { source, table, target, how } => {
                let theirs = match came {
                    Ok(MemberDone::Table(table)) => Some(table),
                    Err(refused) if refused.is_about_bytes() && how == How::Copy => None,
                    // It was freed or lost there since; what is brought back is copied anew.
                    Err(refused) if refused.is_about_bytes() => return self.next_step(roster),
                    Err(refused) => return failed(refused),
                    Ok(_) => return failed(Refused::because(ErrorCode::Internal)),
                };
                self.level(roster, source, &table, (target, how), theirs.as_ref())
            }
            Phase::FreedTables { left, source, range, freed } => {
                self.freed_table(roster, came, (left - 1, source, range, freed))
            }
            Phase::ExtendTable(mut moving, piece) => match came {
                Ok(MemberDone::Table(table)) => {
                    let Piece::Append(blocks) = piece else { return failed(Refused::because(ErrorCode::Internal)) };
                    // From here on anew.
                    moving.pieces.clear();
                    split_at_freed(&table.freed, blocks.start..blocks_of(moving.end), &mut moving.pieces);
                    self.move_on(roster, moving)
                }
                // All of it was freed.
                Err(Refused { code: ErrorCode::ChunkDeleted, .. }) => self.next_step(roster),
                Err(refused) => failed(refused),
                Ok(_) => failed(Refused::because(ErrorCode::Internal)),
            },
            Phase::Moving(moving) => self.moved(roster, moving, from, came),
            Phase::Single => match came {
                Ok(MemberDone::Is(is)) => {
                    self.same &= is;
                    self.next_step(roster)
                }
                Ok(_) => self.next_step(roster),
                Err(refused) if self.may_be_gone(&refused) => self.next_step(roster),
                Err(refused) => failed(refused),
            },
        }
    }

    /// Of what members are told about overwrites: it was freed there since.
    fn may_be_gone(&self, refused: &Refused) -> bool {
        self.purpose == Purpose::Equalise && matches!(refused.code, ErrorCode::Missing | ErrorCode::ChunkDeleted)
    }

    fn looked(&mut self, roster: &Roster, now: Now, from: DiskId, came: Came<P>, left: usize) -> Progress<P> {
        let said = match came {
            Ok(MemberDone::Sum(Some(sum))) if sum.index == self.index => Said::Has(sum),
            Ok(MemberDone::Sum(_)) => Said::Lacks,
            _ => Said::Silent,
        };
        if let Some(witness) = self.witnesses.iter_mut().find(|witness| witness.disk == from) {
            witness.said = said;
        }
        if left > 0 {
            self.phase = Phase::Look { left };
            return Progress::Pending;
        }
        let verdict = decide(self.purpose, &Here::of(roster, now), &self.witnesses);
        let Plan { made, session, steps, certain } = match verdict {
            Verdict::Same => return Progress::Ended(Outcome::Done { same: true }),
            Verdict::Arrives => return Progress::Ended(Outcome::Arrives),
            Verdict::Wait => return Progress::Ended(Outcome::Wait),
            Verdict::Nowhere => return Progress::Ended(Outcome::Nowhere),
            Verdict::Settled => return Progress::Ended(Outcome::Settled),
            Verdict::Conflict => return Progress::Ended(Outcome::Conflict),
            Verdict::Act(plan) => plan,
        };
        let clashes = self.own(roster).is_some_and(|own| (own.made, own.session) != (made, session));
        if clashes {
            // An index is never given twice, so one of the headers is wrong.
            return Progress::Ended(Outcome::Conflict);
        }
        (self.made, self.same, self.steps) = ((made, session), certain, steps.into());
        self.next_step(roster)
    }

    fn next_step(&mut self, roster: &Roster) -> Progress<P> {
        self.phase = Phase::Single;
        let Some(step) = self.steps.pop_front() else {
            return Progress::Ended(Outcome::Done { same: self.same });
        };
        let one = |disk, op| Progress::Calls(vec![(disk, op)]);
        match step {
            Step::Durable => one(roster.me, MemberOp::Own(OwnOp::Sync)),
            Step::Number { disk, number } => one(disk, MemberOp::Number { number, runs: Vec::new() }),
            Step::Seal { disk } => {
                self.same = false;
                one(disk, MemberOp::Seal)
            }
            Step::InStep { number } => one(roster.me, MemberOp::Own(OwnOp::InStep { number })),
            Step::Level { source, target, how } => {
                let Some(first) = source.first() else { return failed(Refused::because(ErrorCode::Missing)) };
                self.used.push(source.kind(roster.me));
                self.phase = Phase::SourceTable { source, turn: 0, target, how };
                one(first, MemberOp::Table)
            }
            Step::Extend { sources, target, range } => self.extend(roster, &sources, target, range),
            Step::Rebuild { source, range, freed_at } => {
                self.used.push(source.kind(roster.me));
                let freed = Box::new(PunchedBits::default());
                if freed_at.is_empty() {
                    return self.rebuild(roster, source, range, &freed);
                }
                self.phase = Phase::FreedTables { left: freed_at.len(), source, range, freed };
                Progress::Calls(freed_at.into_iter().map(|disk| (disk, MemberOp::Table)).collect())
            }
        }
    }

    fn source_table(
        &mut self,
        (source, turn, target, how): (Source, usize, DiskId, How),
        came: Came<P>,
    ) -> Progress<P> {
        let Source::Copy(disks) = &source else { return failed(Refused::because(ErrorCode::Internal)) };
        match came {
            // What is copied is closed; what is still open somewhere is about to be.
            Ok(MemberDone::Table(table)) if table.sum.sealed || how != How::Copy => {
                let mut disks = disks.clone();
                disks.rotate_left(turn);
                if (table.sum.made, table.sum.session) != self.made {
                    return Progress::Ended(Outcome::Conflict);
                }
                let source = Source::Copy(disks);
                self.phase = Phase::TargetTable { source, table: Box::new(table), target, how };
                Progress::Calls(vec![(target, MemberOp::Table)])
            }
            Err(refused) if !refused.is_about_bytes() => failed(refused),
            other => match disks.get(turn + 1).copied().filter(|_| how == How::Copy) {
                Some(next) => {
                    self.phase = Phase::SourceTable { source, turn: turn + 1, target, how };
                    Progress::Calls(vec![(next, MemberOp::Table)])
                }
                None => failed(other.err().unwrap_or(Refused::because(ErrorCode::Unavailable))),
            },
        }
    }

    fn level(
        &mut self,
        roster: &Roster,
        source: Source,
        table: &Table,
        (target, how): (DiskId, How),
        theirs: Option<&Table>,
    ) -> Progress<P> {
        let difference = differ(how, roster.epoch, table, theirs);
        if how == How::Copy {
            self.same &= difference.is_none_but_beginning();
        }
        let Difference { replace, append, begin, freed, open } = difference;
        let mut pieces: VecDeque<Piece> = VecDeque::new();
        // First what lies within what is there, then the rest at the end.
        let singles = replace.into_iter().flat_map(|run| pieces_of(&run, if how == How::Copy { 1 } else { u32::MAX }));
        pieces.extend(singles.map(Piece::Replace));
        if !append.is_empty() {
            split_at_freed(&table.freed, append, &mut pieces);
            pieces.push_back(Piece::Sync);
        }
        pieces.extend(begin.map(|(block, known)| Piece::Begin(block, known)));
        if !freed.is_empty() {
            pieces.push_back(Piece::Free(freed));
        }
        if how == How::Copy {
            pieces.extend(open.then_some(Piece::Seal));
            pieces.push_back(Piece::InStep(table.sum.number));
        }
        let how = Moves::Level(how, table.sum.number);
        let crcs = Some(table.crcs.clone());
        self.move_on(roster, Moving { source, target, how, crcs, end: table.sum.length, pieces, hunt: None })
    }

    fn extend(&mut self, roster: &Roster, sources: &[(DiskId, u64)], target: DiskId, range: Range<u64>) -> Progress<P> {
        let as_long = sources.iter().filter(|(_, length)| *length >= range.end).map(|(disk, _)| *disk).collect();
        let source = Source::Copy(as_long);
        self.used.push(source.kind(roster.me));
        let blocks = (range.start / BLOCK_SIZE as u64) as u32..blocks_of(range.end);
        let pieces = VecDeque::from([Piece::Append(blocks)]);
        let how = Moves::Extend;
        self.move_on(roster, Moving { source, target, how, crcs: None, end: range.end, pieces, hunt: None })
    }

    fn freed_table(
        &mut self,
        roster: &Roster,
        came: Came<P>,
        (left, source, range, mut freed): (usize, Source, Range<u64>, Box<PunchedBits>),
    ) -> Progress<P> {
        match came {
            Ok(MemberDone::Table(table)) => {
                (0..blocks_of(table.sum.length)).filter(|block| table.freed.get(*block)).for_each(|block| {
                    freed.set(block..block + 1);
                });
            }
            Err(refused) => return failed(refused),
            Ok(_) => return failed(Refused::because(ErrorCode::Internal)),
        }
        if left > 0 {
            self.phase = Phase::FreedTables { left, source, range, freed };
            return Progress::Pending;
        }
        self.rebuild(roster, source, range, &freed)
    }

    fn rebuild(&mut self, roster: &Roster, source: Source, range: Range<u64>, freed: &PunchedBits) -> Progress<P> {
        let own = self.own(roster).copied();
        let (sealed, known) = (own.is_some_and(|own| own.sealed), own.map_or(0, |own| own.freed));
        let block = BLOCK_SIZE as u64;
        let mut pieces = VecDeque::new();
        if !range.is_empty() {
            split_at_freed(freed, (range.start / block) as u32..blocks_of(range.end), &mut pieces);
            pieces.push_back(Piece::Sync);
            self.same = false;
        }
        let all = runs_of((0..blocks_of(range.end)).filter(|block| freed.get(*block)));
        let count: u32 = all.iter().map(|run| run.end - run.start).sum();
        if count > 0 {
            self.same &= count <= known;
            pieces.push_back(Piece::Free(all));
        }
        // A chunk of which nothing can be made is not begun.
        if !sealed && (own.is_some() || !range.is_empty()) {
            self.same = false;
            pieces.push_back(Piece::Seal);
        }
        let target = roster.me;
        let how = Moves::Rebuild;
        self.move_on(roster, Moving { source, target, how, crcs: None, end: range.end, pieces, hunt: None })
    }
}

fn failed<P>(refused: Refused) -> Progress<P> {
    Progress::Ended(Outcome::Failed(refused))
}

fn same_kind(piece: &Piece, blocks: Range<u32>) -> Piece {
    if let Piece::Replace(_) = piece { Piece::Replace(blocks) } else { Piece::Append(blocks) }
}

fn pieces_of(blocks: &Range<u32>, most: u32) -> impl Iterator<Item = Range<u32>> + use<> {
    let end = blocks.end;
    let step = usize::try_from(most.min(end - blocks.start).max(1)).unwrap_or(1);
    blocks.clone().step_by(step).map(move |start| start..start.saturating_add(most).min(end))
}

fn span(blocks: &Range<u32>, end: u64) -> (u64, u64) {
    let offset = u64::from(blocks.start) * BLOCK_SIZE as u64;
    (offset, (u64::from(blocks.end) * BLOCK_SIZE as u64).min(end) - offset)
}

/// Blocks at an end: those that are freed are filled up, the others moved.
fn split_at_freed(freed: &PunchedBits, blocks: Range<u32>, into: &mut VecDeque<Piece>) {
    let mut at = blocks.start;
    while at < blocks.end {
        let is_freed = freed.get(at);
        let end = (at..blocks.end).find(|block| freed.get(*block) != is_freed).unwrap_or(blocks.end);
        into.push_back(if is_freed { Piece::Fill(at..end) } else { Piece::Append(at..end) });
        at = end;
    }
}
