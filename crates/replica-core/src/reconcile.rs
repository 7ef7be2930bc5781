//! What members have of a chunk, what is true of it, and what is to be done: the only place that decides it.
//!
//! | purpose | who is asked | what counts | who is brought up to it |
//! |---|---|---|---|
//! | end: a chunk of an earlier epoch that is open | who serves | the longest | who serves, has it and has it open |
//! | equalise: overwrites of a replicated chunk | all receivers | the leader's table; before its first number of the epoch, that of the latest number | who serves and has it |
//! | follow: copies of one who catches up | one that serves | its table | the asker |
//! | restore: a copy that one who serves lacks | who serves | the longest sealed one | the asker |
//! | shard: of one who catches up, or lacks it | who serves | what k of them have | the asker |
//!
//! Invariants: who does not serve is no witness (of its overwrite numbers alone it is heard, lest one be given twice);
//! nothing is ever cut, and no list of a member decides that bytes go. Not here: how it is carried out
//! ([`crate::chunk_job`]).

use std::ops::Range;

use cairn_chunk_core::catch_up::{self, missing_blocks};
use cairn_chunk_core::overwrite::{differing_blocks, number_above};
use cairn_chunk_core::shard_catch_up::{ShardSum, ShardVerdict, judge_shard};
use cairn_format::crc_table::{PunchedBits, blocks_of};
use cairn_format::overwrite_number::OverwriteNumber;
use cairn_types::{BLOCK_SIZE, DiskId, Epoch, SessionId};

use crate::message::{ChunkSum, Table};
use crate::roster::Roster;
use crate::source::Source;

/// Why members are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// As leader: a chunk of an earlier epoch takes no more.
    End,
    /// As leader: all that serve have the same overwrites.
    Equalise,
    /// As one who catches up: it becomes as the holder's.
    Follow {
        /// Who has it.
        holder: DiskId,
    },
    /// As one who serves: what is not here comes back.
    Restore,
    /// The same two of shards.
    Shard,
}

/// What a member said of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    /// This.
    Has(ChunkSum),
    /// It is not there.
    Lacks,
    /// Nothing that could be understood.
    Silent,
}

impl Said {
    /// What it has.
    pub fn has(&self) -> Option<&ChunkSum> {
        if let Self::Has(sum) = self { Some(sum) } else { None }
    }
}

/// A member that was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Witness {
    /// Who.
    pub disk: DiskId,
    /// Whether it serves.
    pub serves: bool,
    /// What it said.
    pub said: Said,
}

/// What the member knows of the chunk at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Of an overwrite that came while it was not here.
    pub skipped: OverwriteNumber,
    /// It was here, and all of it up to there was freed.
    pub freed_up_to: u64,
    /// It is being freed.
    pub freeing: bool,
}

/// Who compares.
#[derive(Debug, Clone, Copy)]
pub struct Here<'a> {
    /// This member.
    pub me: DiskId,
    /// The group's epoch.
    pub epoch: Epoch,
    /// All members, each in the place of its shard.
    pub members: &'a [DiskId],
    /// Who serves, the leader first.
    pub serving: &'a [DiskId],
    /// Shards of which any k make the others; `None`: copies.
    pub k: Option<usize>,
    /// An overwrite came of a chunk that was not here: a copy has to be at least so new.
    pub skipped: OverwriteNumber,
    /// It was here, and all of it up to there was freed: whoever still has that will hear of it too.
    pub freed_up_to: u64,
    /// It is being freed here.
    pub freeing: bool,
}

impl<'a> Here<'a> {
    /// In the epoch of `roster`.
    pub fn of(roster: &'a Roster, now: Now) -> Self {
        Self {
            me: roster.me,
            epoch: roster.epoch,
            members: &roster.members,
            serving: &roster.serving,
            k: roster.k,
            skipped: now.skipped,
            freed_up_to: now.freed_up_to,
            freeing: now.freeing,
        }
    }
}

/// How a table is taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Blocks of others that are later than this member's; those that nobody has good stay as they are. The number here
    /// stays.
    Later(OverwriteNumber),
    /// This member's blocks, under a number above all.
    Equal(OverwriteNumber),
    /// All that the source has.
    Copy,
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The disk keeps what is here of it.
    Durable,
    /// A member's number of the chunk.
    Number {
        /// Whose.
        disk: DiskId,
        /// Above all.
        number: OverwriteNumber,
    },
    /// Blocks in which tables differ.
    Level {
        /// Whose table counts, and who may have its blocks.
        source: Source,
        /// Who gets them.
        target: DiskId,
        /// As what.
        how: How,
    },
    /// What a shorter one lacks, up to where it can be verified.
    Extend {
        /// Who has as much, the longest first.
        sources: Vec<(DiskId, u64)>,
        /// Who gets it.
        target: DiskId,
        /// What.
        range: Range<u64>,
    },
    /// A part of this member's shard.
    Rebuild {
        /// Of whom.
        source: Source,
        /// What; may be empty.
        range: Range<u64>,
        /// Who has freed a part.
        freed_at: Vec<DiskId>,
    },
    /// It takes no more.
    Seal {
        /// On whom.
        disk: DiskId,
    },
    /// What is here equals a table of that number.
    InStep {
        /// The number.
        number: OverwriteNumber,
    },
}

/// What is to be done, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The chunk's epoch.
    pub made: Epoch,
    /// Its writer.
    pub session: SessionId,
    /// In order.
    pub steps: Vec<Step>,
    /// Members that said nothing could not change it.
    pub certain: bool,
}

/// What comes of a comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// All is as it should be.
    Same,
    /// It comes by itself: along the chain, or from its writer.
    Arrives,
    /// Somebody else has to do or say something first.
    Wait,
    /// Of all others nobody has anything.
    Nowhere,
    /// Freed, or only part of what is here.
    Settled,
    /// Headers contradict each other: a person has to look.
    Conflict,
    /// This.
    Act(Plan),
}

impl Verdict {
    /// Nothing is to be done, and nothing that was not said could change that.
    pub fn is_complete(&self) -> bool {
        matches!(self, Self::Same | Self::Arrives | Self::Nowhere | Self::Settled)
    }
}

/// Decides.
pub fn decide(purpose: Purpose, here: &Here<'_>, witnesses: &[Witness]) -> Verdict {
    // What counts is what those say who serve; what is here is not a witness of itself.
    let own = witnesses.iter().find(|w| w.disk == here.me).and_then(|w| w.said.has());
    let serving: Vec<&Witness> = witnesses.iter().filter(|w| w.serves).collect();
    match purpose {
        // Of what is brought nothing may be lost to a free that has not ended, nor come back behind it.
        Purpose::Follow { .. } | Purpose::Restore | Purpose::Shard if here.freeing => Verdict::Wait,
        Purpose::End => end(&serving),
        Purpose::Equalise => equalise(here, own, witnesses),
        Purpose::Follow { holder } => follow(here, own, holder, &serving),
        Purpose::Restore => restore(here, own, &others(here, &serving)),
        Purpose::Shard => shard(here, own, &others(here, &serving)),
    }
}

fn others<'a>(here: &Here<'_>, serving: &[&'a Witness]) -> Vec<&'a Witness> {
    serving.iter().copied().filter(|w| w.disk != here.me).collect()
}

/// It takes no more, and power can take some of it.
fn shaky(own: &ChunkSum) -> bool {
    own.sealed && own.durable < own.length
}

fn plan(of: &ChunkSum, steps: Vec<Step>) -> Verdict {
    Verdict::Act(Plan { made: of.made, session: of.session, steps, certain: true })
}

fn end(serving: &[&Witness]) -> Verdict {
    if serving.iter().any(|w| w.said == Said::Silent) {
        return Verdict::Wait;
    }
    let holders = || serving.iter().filter_map(|w| Some((w.disk, w.said.has()?)));
    let Some((_, of)) = holders().next_back() else { return Verdict::Same };
    // Who has most first: the leader if several have as much.
    let mut sources: Vec<(DiskId, u64)> = holders().map(|(disk, sum)| (disk, sum.length)).collect();
    sources.sort_by_key(|(_, length)| std::cmp::Reverse(*length));
    let longest = sources[0].1;
    // Nothing is cut off: who has sealed it keeps its length. Who lacks it does not get it: it never acknowledged any
    // of it, or it was freed there.
    let open = || holders().filter(|(_, sum)| !sum.sealed);
    let extend = |(target, has): (DiskId, &ChunkSum)| Step::Extend {
        sources: sources.clone(),
        target,
        range: has.length..longest,
    };
    let mut steps: Vec<Step> = open().filter(|(_, sum)| sum.length < longest).map(extend).collect();
    steps.extend(open().map(|(disk, _)| Step::Seal { disk }));
    if steps.is_empty() { Verdict::Same } else { plan(of, steps) }
}

fn equalise(here: &Here<'_>, own: Option<&ChunkSum>, witnesses: &[Witness]) -> Verdict {
    if witnesses.iter().any(|w| w.said == Said::Silent) {
        return Verdict::Wait;
    }
    // Not here: it was freed everywhere, or is brought back from the others; then it is compared again.
    let Some(own) = own else { return Verdict::Same };
    let holders = || witnesses.iter().filter(|w| w.disk != here.me).filter_map(|w| Some((w, w.said.has()?)));
    let mut steps = Vec::new();
    // What this one gave a number in this epoch is behind whatever it had forgotten.
    if own.number.epoch < here.epoch {
        let mut later: Vec<(OverwriteNumber, DiskId)> = holders()
            .filter(|(w, sum)| w.serves && sum.number > own.number)
            .map(|(w, sum)| (sum.number, w.disk))
            .collect();
        later.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
        if !later.is_empty() {
            let source = Source::Copy(later.into_iter().map(|(_, disk)| disk).collect());
            steps.push(Step::Level { source, target: here.me, how: How::Later(own.number) });
        }
    }
    let number = number_above(holders().map(|(_, sum)| sum.number).chain([own.number]), here.epoch);
    // First of all the number, behind everything that was accepted: what is still on its way follows another one.
    steps.push(Step::Number { disk: here.me, number });
    steps.extend(holders().map(|(w, _)| Step::Number { disk: w.disk, number }));
    let equal = |(w, _): (&Witness, &ChunkSum)| Step::Level {
        source: Source::Copy(vec![here.me]),
        target: w.disk,
        how: How::Equal(number),
    };
    steps.extend(holders().filter(|(w, _)| w.serves).map(equal));
    plan(own, steps)
}

fn follow(here: &Here<'_>, own: Option<&ChunkSum>, holder: DiskId, serving: &[&Witness]) -> Verdict {
    let theirs = match serving.iter().find(|w| w.disk == holder).map(|w| &w.said) {
        Some(Said::Has(sum)) => sum,
        // Freed there just now: the next pass sees what is left.
        Some(Said::Lacks) => return Verdict::Wait,
        Some(Said::Silent) | None => return Verdict::Wait,
    };
    let compared = |sum: &ChunkSum| catch_up::ChunkSum {
        length: sum.length,
        sealed: sum.sealed,
        creation_epoch: sum.made,
        table_crc: sum.table_crc,
    };
    let mut steps: Vec<Step> = own.is_some_and(shaky).then_some(Step::Durable).into_iter().collect();
    let freed = own.is_some_and(|own| own.freed < theirs.freed);
    // Overwritten all the time: its table is never the one of the list, but all that comes is taken.
    let in_step = theirs.number.is_some() && own.is_some_and(|own| own.follow.has(theirs.number, here.epoch));
    let leveled = |mut steps: Vec<Step>| {
        let more = here.serving.iter().filter(|disk| ![here.me, holder].contains(disk));
        let source = Source::Copy(std::iter::once(holder).chain(more.copied()).collect());
        steps.push(Step::Level { source, target: here.me, how: How::Copy });
        plan(theirs, steps)
    };
    // Also if it was here when it was looked at: it may have been freed since.
    if here.freed_up_to > 0 && theirs.length <= here.freed_up_to {
        return Verdict::Settled;
    }
    match catch_up::judge(&compared(theirs), own.map(compared).as_ref(), here.epoch) {
        catch_up::Verdict::InChain => Verdict::Arrives,
        catch_up::Verdict::Wait => Verdict::Wait,
        // Of the same number, or nobody has overwritten it; else its whole table is looked at.
        catch_up::Verdict::Same if !freed && own.is_some_and(|own| own.number == theirs.number) => {
            if theirs.number.is_some() {
                steps.push(Step::InStep { number: theirs.number });
            } else if theirs.number < here.skipped {
                return Verdict::Wait;
            }
            if steps.is_empty() { Verdict::Same } else { plan(theirs, steps) }
        }
        catch_up::Verdict::Copy if in_step && !freed => {
            if steps.is_empty() {
                Verdict::Same
            } else {
                plan(theirs, steps)
            }
        }
        catch_up::Verdict::Same | catch_up::Verdict::Copy => leveled(steps),
    }
}

fn restore(here: &Here<'_>, own: Option<&ChunkSum>, others: &[&Witness]) -> Verdict {
    let written = own.is_some_and(|own| own.made >= here.epoch);
    let freed_here = Some(here.freed_up_to).filter(|length| *length > 0);
    let enough = own.filter(|own| own.sealed).map(|own| own.length).max(freed_here);
    let all_freed = |sum: &ChunkSum| sum.freed >= blocks_of(sum.length);
    let has = |wanted: fn(&ChunkSum) -> bool| others.iter().filter_map(|w| w.said.has()).any(wanted);
    let mut sources: Vec<(u64, DiskId, ChunkSum)> = others
        .iter()
        .filter_map(|w| w.said.has().map(|sum| (sum.length, w.disk, *sum)))
        .filter(|(length, _, sum)| sum.sealed && !all_freed(sum) && enough.is_none_or(|enough| *length > enough))
        .collect();
    sources.sort_by_key(|(length, disk, _)| std::cmp::Reverse((*length, *disk)));
    if let Some((_, _, of)) = sources.first().copied() {
        let source = Source::Copy(sources.into_iter().map(|(_, disk, _)| disk).collect());
        return plan(&of, vec![Step::Level { source, target: here.me, how: How::Copy }]);
    }
    if others.iter().any(|w| w.said == Said::Silent) {
        return Verdict::Wait;
    }
    let freed = has(|sum| sum.sealed && sum.freed >= blocks_of(sum.length));
    if enough.is_some() || written || freed {
        return Verdict::Settled;
    }
    // An open one comes through the chain, or its leader is about to seal it.
    let all = others.len() + 1 == here.members.len();
    if has(|sum| !sum.sealed) || !all || own.is_some() { Verdict::Wait } else { Verdict::Nowhere }
}

fn shard(here: &Here<'_>, own: Option<&ChunkSum>, others: &[&Witness]) -> Verdict {
    let Some(k) = here.k else { return Verdict::Conflict };
    let summed = |sum: &ChunkSum| ShardSum {
        length: sum.length,
        sealed: sum.sealed,
        creation_epoch: sum.made,
        session: sum.session,
        punched_blocks: u64::from(sum.freed),
    };
    let answered: Vec<&&Witness> = others.iter().filter(|w| w.said != Said::Silent).collect();
    if answered.len() < k {
        return Verdict::Wait;
    }
    let mut sums: Vec<Option<ShardSum>> = answered.iter().map(|w| w.said.has().map(summed)).collect();
    let mine = own.map(summed);
    let verdict = judge_shard(&sums, mine.as_ref(), k, here.epoch);
    // As if every one that said nothing had as much as the longest that did.
    let longest = sums.iter().flatten().max_by_key(|sum| sum.length).copied();
    sums.resize(others.len(), longest);
    let certain = verdict == judge_shard(&sums, mine.as_ref(), k, here.epoch);
    let target = match verdict {
        ShardVerdict::Same if !certain => return Verdict::Wait,
        ShardVerdict::Same => {
            return match own {
                // By its length it is complete, and power could take what an attempt that ended early left.
                Some(own) if shaky(own) => plan(own, vec![Step::Durable]),
                None if here.freed_up_to > 0 => Verdict::Settled,
                None if answered.len() + 1 == here.members.len() => Verdict::Nowhere,
                _ => Verdict::Same,
            };
        }
        ShardVerdict::WrittenNow => return Verdict::Arrives,
        ShardVerdict::Wait => return Verdict::Wait,
        ShardVerdict::Bring { target } => target,
    };
    if here.freed_up_to > 0 && target <= here.freed_up_to {
        return Verdict::Settled;
    }
    let known = || answered.iter().filter_map(|w| w.said.has()).chain(own);
    let Some(first) = known().next() else { return Verdict::Same };
    if known().any(|sum| (sum.made, sum.session) != (first.made, first.session)) {
        return Verdict::Conflict;
    }
    let mut steps: Vec<Step> = own.is_some_and(shaky).then_some(Step::Durable).into_iter().collect();
    let place = |disk: DiskId| here.members.iter().position(|member| *member == disk);
    // Who serves first; those that catch up are the last sources.
    let rest = here.members.iter().filter(|disk| !here.serving.contains(disk));
    let all = here.serving.iter().chain(rest).filter(|disk| **disk != here.me);
    let shards = all.filter_map(|disk| Some((*disk, u8::try_from(place(*disk)?).ok()?))).collect();
    let from = own.map_or(0, |own| own.length);
    let freed_at = answered.iter().filter(|w| w.said.has().is_some_and(|sum| sum.freed > 0)).map(|w| w.disk).collect();
    steps.push(Step::Rebuild { source: Source::Rebuild { k, shards }, range: from..target.max(from), freed_at });
    Verdict::Act(Plan { made: first.made, session: first.session, steps, certain })
}

/// Whether a chunk, one of `k` shards or a copy, can be brought back, or made longer, from what others list of it.
/// `entered`: what was open of earlier epochs is about to be closed.
pub fn is_less<'a>(
    k: Option<usize>,
    (epoch, entered): (Epoch, bool),
    own: Option<&ChunkSum>,
    theirs: impl Iterator<Item = &'a ChunkSum>,
) -> bool {
    let whole = theirs.filter(|sum| sum.sealed && sum.freed < blocks_of(sum.length));
    let mut lengths: Vec<u64> = whole.map(|sum| sum.length).collect();
    lengths.sort_unstable_by(|a, b| b.cmp(a));
    // What can be read without this member: all of the longest copy, and of shards as much as k of them have.
    let target = k.unwrap_or(1).checked_sub(1).and_then(|last| lengths.get(last));
    let Some(target) = target else { return false };
    match own {
        None => true,
        Some(own) if own.sealed => own.length < *target,
        // Its writer is at it, or its leader is about to seal it.
        Some(own) => own.made < epoch && entered,
    }
}

/// In what a target differs from a source.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Difference {
    /// Blocks within what the target has.
    pub replace: Vec<Range<u32>>,
    /// Blocks at its end.
    pub append: Range<u32>,
    /// A block in which the source ends and of which the target has more: so many bytes of it count.
    pub begin: Option<(u32, u64)>,
    /// Blocks that the source has freed.
    pub freed: Vec<Range<u32>>,
    /// The target is open.
    pub open: bool,
}

impl Difference {
    /// Nothing is to be done, but perhaps to look at the beginning of a block.
    pub fn is_none_but_beginning(&self) -> bool {
        self.replace.is_empty() && self.append.is_empty() && self.freed.is_empty() && !self.open
    }
}

/// Compares tables. `epoch`: in an earlier one's chunks nobody adds to the end.
pub fn differ(how: How, epoch: Epoch, source: &Table, target: Option<&Table>) -> Difference {
    let none = (ChunkSum { length: 0, ..source.sum }, Vec::new(), PunchedBits::default());
    let (to, to_crcs, to_freed) = target.map_or((&none.0, &none.1, &none.2), |t| (&t.sum, &t.crcs, &t.freed));
    let here = (&to_crcs[..], to.length, to_freed);
    if how != How::Copy {
        let old = to.made < epoch;
        let tails = old || source.sum.sealed && to.sealed;
        let theirs = (&source.crcs[..], source.sum.length, &source.freed);
        let replace = differing_blocks(here, theirs, tails);
        return Difference { replace, ..Difference::default() };
    }
    let block = BLOCK_SIZE as u64;
    let (length, end) = (source.sum.length, blocks_of(source.sum.length));
    let runs = missing_blocks(&source.crcs, length, &source.freed, here);
    let tail = (to.length.min(length) / block) as u32;
    // A partial last block in which both end at the same byte is replaced like any other one.
    let replaced = if to.length == length { end } else { tail };
    let replace = runs.iter().map(|run| run.start..run.end.min(replaced)).filter(|run| !run.is_empty()).collect();
    let append = if to.length < length { tail..end } else { 0..0 };
    let overwritten = to.number.is_some() || source.sum.number.is_some();
    let known = length % block;
    let both = known > 0 && !source.freed.get(tail) && !to_freed.get(tail);
    let begin = (overwritten && to.length > length && both).then_some((tail, known));
    let freed: Vec<u32> = (0..end).filter(|b| source.freed.get(*b) && !to_freed.get(*b)).collect();
    Difference { replace, append, begin, freed: runs_of(freed), open: target.is_none_or(|t| !t.sum.sealed) }
}

/// Runs of ascending numbers.
pub fn runs_of(blocks: impl IntoIterator<Item = u32>) -> Vec<Range<u32>> {
    let mut runs: Vec<Range<u32>> = Vec::new();
    for block in blocks {
        match runs.last_mut() {
            Some(run) if run.end == block => run.end += 1,
            _ => runs.push(block..block + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests;
