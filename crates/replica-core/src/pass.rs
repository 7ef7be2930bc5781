//! A pass over all that those who serve have: one who catches up copies or rebuilds what it lacks, until a whole pass
//! finds nothing; one who serves looks for what it lacks, when it begins to and now and then.
//!
//! | who | looks at the lists of | does |
//! |---|---|---|
//! | catches up, copies | the leader, then all others that serve, for what the leader lacks | follows each chunk |
//! | catches up, shards | all that serve, at least k | brings each shard |
//! | serves, copies | all others that serve | has restored what is sealed there and missing or shorter here |
//! | serves, shards | all others that serve, at least k | brings each shard |
//!
//! Invariant: *caught up* is said only after a pass in which every list was of this epoch and every chunk was the same,
//! durably.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use cairn_types::{DiskId, Time};

use crate::care::Care;
use crate::chunk_job::Outcome;
use crate::disk::DiskOp;
use crate::input::{Note, Output};
use crate::message::{Answer, ChunkSum, Refused, Request, Which};
use crate::reconcile::{Purpose, is_less};
use crate::replica::{Owner, Replica, Use};
use crate::roster::Roster;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The leader's list.
    Leader,
    /// Those of the others.
    Others,
    /// Between two passes.
    Rest,
}

/// A chunk that is to be brought, and what its holders have of it.
type Brought = (u32, Purpose, Vec<(DiskId, Option<ChunkSum>)>);

/// One pass.
#[derive(Debug)]
pub struct Pass {
    /// As one who serves.
    looks: bool,
    /// Of the lists that are asked for now.
    round: u64,
    stage: Stage,
    left: BTreeSet<DiskId>,
    lists: BTreeMap<DiskId, Vec<ChunkSum>>,
    refused: usize,
    /// What the leader listed.
    listed: BTreeSet<u32>,
    queue: VecDeque<Brought>,
    running: usize,
    same: bool,
    mark: u32,
    pub(crate) again_at: Option<Time>,
}

impl<P: Clone> Replica<P> {
    pub(crate) fn begin_pass(&mut self, looks: bool, out: &mut Vec<Output<P>>) {
        let Some(roster) = self.roster.clone() else { return };
        let leader = roster.serving.first().copied().filter(|_| roster.k.is_none() && !looks);
        let stage = if leader.is_some() { Stage::Leader } else { Stage::Others };
        let asked: BTreeSet<DiskId> =
            leader.map_or_else(|| roster.others().collect(), |leader| BTreeSet::from([leader]));
        let own = looks && roster.k.is_none();
        let left = asked.iter().copied().chain(own.then_some(self.me)).collect();
        let round = self.id();
        self.pass = Some(Pass {
            looks,
            round,
            stage,
            left,
            lists: BTreeMap::new(),
            refused: 0,
            listed: BTreeSet::new(),
            queue: VecDeque::new(),
            running: 0,
            same: true,
            mark: 0,
            again_at: None,
        });
        self.pass_lists(asked, out);
        if own {
            let used = Use::Pass { round, from: self.me };
            self.disk(DiskOp::List(Which::All), used, out);
        }
        self.pass_goes_on(out);
    }

    fn pass_lists(&mut self, asked: BTreeSet<DiskId>, out: &mut Vec<Output<P>>) {
        let round = self.pass.as_ref().map_or(0, |pass| pass.round);
        for disk in asked {
            self.ask(disk, Request::List(Which::All), Use::Pass { round, from: disk }, out);
        }
    }

    pub(crate) fn pass_came(
        &mut self,
        round: u64,
        from: DiskId,
        outcome: Result<Answer<P>, Refused>,
        out: &mut Vec<Output<P>>,
    ) {
        let epoch = self.epochs.epoch();
        let Some(pass) = self.pass.as_mut() else { return };
        if pass.round != round || !pass.left.remove(&from) {
            return;
        }
        match outcome {
            Ok(Answer::List { epoch: theirs, mark, chunks }) if theirs == epoch => {
                pass.mark = pass.mark.max(mark);
                pass.lists.insert(from, chunks);
            }
            _ => pass.refused += 1,
        }
        self.pass_goes_on(out);
    }

    /// Goes on when all lists are there, or nothing is under way.
    fn pass_goes_on(&mut self, out: &mut Vec<Output<P>>) {
        let Some(roster) = self.roster.clone() else { return };
        let Some(pass) = self.pass.as_mut() else { return };
        if !pass.left.is_empty() || pass.stage == Stage::Rest {
            return;
        }
        if !pass.lists.is_empty() || pass.refused > 0 {
            let lists = std::mem::take(&mut pass.lists);
            let needed = match (pass.stage, roster.k) {
                // All of them have to list under this epoch.
                (_, None) if !pass.looks => lists.len() + pass.refused,
                (_, Some(k)) => k,
                (_, None) => 2,
            };
            let refused = std::mem::take(&mut pass.refused);
            if lists.len() < needed {
                return self.pass_ends(false, out);
            }
            let mark = pass.mark;
            self.raise_own_mark(mark, out);
            self.pass_listed(&roster, lists, refused);
        }
        self.pass_begins_jobs(out);
    }

    fn raise_own_mark(&mut self, mark: u32, out: &mut Vec<Output<P>>) {
        if mark > self.mark() {
            self.mark_wanted = self.mark_wanted.max(mark);
            self.save_next(out);
        }
    }

    /// What is to be done by the lists.
    fn pass_listed(&mut self, roster: &Roster, lists: BTreeMap<DiskId, Vec<ChunkSum>>, refused: usize) {
        let Some(pass) = self.pass.as_mut() else { return };
        match (pass.stage, roster.k) {
            (Stage::Leader, _) => {
                for (holder, chunks) in lists {
                    pass.listed.extend(chunks.iter().map(|sum| sum.index));
                    let follow = |sum: ChunkSum| (sum.index, Purpose::Follow { holder }, vec![(holder, Some(sum))]);
                    pass.queue.extend(chunks.into_iter().map(follow));
                }
            }
            (Stage::Others, Some(_)) => {
                let indices: BTreeSet<u32> = lists.values().flatten().map(|sum| sum.index).collect();
                for index in indices {
                    let of = |(disk, chunks): (&DiskId, &Vec<ChunkSum>)| {
                        (*disk, chunks.iter().find(|sum| sum.index == index).copied())
                    };
                    // Who was not heard says nothing.
                    pass.queue.push_back((index, Purpose::Shard, lists.iter().map(of).collect()));
                }
            }
            (Stage::Others, None) if pass.looks => {
                pass.same &= refused == 0;
                let own = lists.get(&self.me).cloned().unwrap_or_default();
                let less = missing_or_shorter(roster, self.entered, &own, &lists);
                for index in less {
                    if !self.lacks(index) {
                        continue;
                    }
                    let due = self.now + self.config.restore_delay;
                    let noted = self.cares.note(Care::Restore(index), due);
                    if let Some(pass) = self.pass.as_mut() {
                        pass.same &= noted;
                    }
                }
            }
            (Stage::Others | Stage::Rest, _) => {
                let mut lacking: BTreeMap<u32, (DiskId, ChunkSum)> = BTreeMap::new();
                for (disk, chunks) in lists {
                    for sum in chunks.into_iter().filter(|sum| !pass.listed.contains(&sum.index)) {
                        let longest = lacking.get(&sum.index).is_none_or(|(_, known)| known.length < sum.length);
                        if longest {
                            lacking.insert(sum.index, (disk, sum));
                        }
                    }
                }
                let follow = |(index, (holder, sum))| (index, Purpose::Follow { holder }, vec![(holder, Some(sum))]);
                pass.queue.extend(lacking.into_iter().map(follow));
            }
        }
    }

    fn pass_begins_jobs(&mut self, out: &mut Vec<Output<P>>) {
        loop {
            let Some(pass) = self.pass.as_mut() else { return };
            if pass.running >= self.config.jobs_max {
                return;
            }
            let Some((index, purpose, known)) = pass.queue.pop_front() else { break };
            // Somebody is at it: the next pass looks at what came of it.
            let taken = self.is_being_brought(index);
            let Some(pass) = self.pass.as_mut() else { return };
            if taken {
                pass.same = false;
                continue;
            }
            pass.running += 1;
            self.begin_job(Owner::Pass, index, purpose, &known, out);
        }
        let Some(pass) = self.pass.as_mut() else { return };
        if pass.running > 0 || !pass.queue.is_empty() || !pass.left.is_empty() {
            return;
        }
        let Some(roster) = self.roster.clone() else { return };
        if pass.stage == Stage::Leader {
            pass.stage = Stage::Others;
            let leader = roster.serving.first().copied();
            let asked: BTreeSet<DiskId> = roster.others().filter(|disk| Some(*disk) != leader).collect();
            pass.left.clone_from(&asked);
            if !asked.is_empty() {
                return self.pass_lists(asked, out);
            }
        }
        let same = pass.same;
        self.pass_ends(same, out);
    }

    pub(crate) fn pass_job_ended(&mut self, _index: u32, outcome: Outcome, out: &mut Vec<Output<P>>) {
        let Some(pass) = self.pass.as_mut() else { return };
        pass.running -= 1;
        pass.same &= match outcome {
            Outcome::Done { same } => same,
            Outcome::Arrives | Outcome::Nowhere | Outcome::Settled => true,
            Outcome::Wait | Outcome::Conflict | Outcome::Failed(_) => false,
        };
        self.pass_begins_jobs(out);
    }

    fn pass_ends(&mut self, same: bool, out: &mut Vec<Output<P>>) {
        let Some(pass) = self.pass.as_mut() else { return };
        let (looks, mark) = (pass.looks, pass.mark);
        // Its mark is durable before it may lead.
        if !same || mark > self.epochs.durable().map_or(0, |record| record.high_water) {
            pass.stage = Stage::Rest;
            pass.again_at = Some(self.now + self.config.retry_pause);
            return;
        }
        self.pass = None;
        if looks {
            self.looked = true;
            self.look_at = Some(self.now + self.config.compare_every);
            return;
        }
        self.caught_up = true;
        out.push(Output::Note(Note::CaughtUp(self.epochs.epoch())));
        out.push(Output::Poke);
    }

    pub(crate) fn pass_again(&mut self, out: &mut Vec<Output<P>>) {
        let Some(looks) = self.pass.as_ref().map(|pass| pass.looks) else { return };
        self.begin_pass(looks, out);
    }

    pub(crate) fn care_ended(&mut self, care: Care, outcome: Outcome) {
        let done = match (care, outcome) {
            (Care::Equalise(index), Outcome::Done { .. }) => {
                self.overwrites.are_equal(index);
                true
            }
            (Care::Restore(_), Outcome::Done { .. } | Outcome::Settled | Outcome::Arrives) => true,
            (Care::Heal(..), Outcome::Done { .. } | Outcome::Settled) => true,
            _ => false,
        };
        if done {
            self.cares.done(care);
        } else {
            self.cares.again(care, self.now);
        }
    }
}

/// Chunks that can be brought back, or made longer, from what others list of them.
fn missing_or_shorter(
    roster: &Roster,
    entered: bool,
    own: &[ChunkSum],
    lists: &BTreeMap<DiskId, Vec<ChunkSum>>,
) -> Vec<u32> {
    let mut theirs: BTreeMap<u32, Vec<&ChunkSum>> = BTreeMap::new();
    let others = lists.iter().filter(|(disk, _)| **disk != roster.me).flat_map(|(_, chunks)| chunks);
    others.for_each(|sum| theirs.entry(sum.index).or_default().push(sum));
    let less = |(index, theirs): &(u32, Vec<&ChunkSum>)| {
        let of = own.iter().find(|sum| sum.index == *index);
        is_less(None, (roster.epoch, entered), of, theirs.iter().copied())
    };
    theirs.into_iter().filter(less).map(|(index, _)| index).collect()
}
