//! What a leader does when its epoch begins: brings every receiver into it, takes writes from then on, and ends what
//! earlier epochs left: overwrites that not all have, open chunks. In a group of shards each member ends its own.
//!
//! Invariants: nothing is taken before every receiver is durably in the epoch; no overwrite is taken before all that
//! were ordered earlier were compared. What fails is begun again, from what is there.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use cairn_chunk_core::overwrite::{OverwriteSum, needs_settling};
use cairn_types::{DiskId, Time};

use crate::care::Care;
use crate::chunk_job::Outcome;
use crate::disk::DiskOp;
use crate::input::Output;
use crate::message::{Answer, ChunkSum, Refused, Request, Which};
use crate::reconcile::Purpose;
use crate::replica::{Owner, Replica, Use};

#[derive(Debug)]
enum Phase {
    BringIn,
    Overwritten(BTreeMap<u32, Vec<OverwriteSum>>),
    Equalise(VecDeque<u32>),
    Open(BTreeSet<u32>),
    End(VecDeque<u32>),
    Highest(u32),
    Done,
}

/// The beginning of an epoch, as its leader.
#[derive(Debug)]
pub struct Lead {
    phase: Phase,
    /// Of the questions that are asked now: what answers earlier ones and comes later says nothing.
    round: u64,
    /// Who has not answered.
    left: BTreeSet<DiskId>,
    began: Time,
    failed: bool,
    pub(crate) retry_at: Option<Time>,
}

impl Lead {
    /// Nothing is left to do.
    pub fn is_done(&self) -> bool {
        matches!(self.phase, Phase::Done)
    }
}

impl<P: Clone> Replica<P> {
    pub(crate) fn begin_to_lead(&mut self, out: &mut Vec<Output<P>>) {
        let began = self.now;
        let left = BTreeSet::new();
        self.lead = Some(Lead { phase: Phase::BringIn, round: 0, left, began, failed: false, retry_at: None });
        self.lead_again(out);
    }

    /// From where it is to be done again.
    pub(crate) fn lead_again(&mut self, out: &mut Vec<Output<P>>) {
        let (Some(roster), Some(record)) = (self.roster.clone(), self.epochs.durable().cloned()) else { return };
        let round = self.id();
        let Some(lead) = self.lead.as_mut() else { return };
        (lead.retry_at, lead.failed, lead.round) = (None, false, round);
        if !self.entered {
            lead.phase = Phase::BringIn;
            lead.left = roster.receivers.iter().copied().collect();
            for disk in roster.receivers.iter().copied() {
                self.lead_asks(disk, Request::Apply(Arc::clone(&record)), out);
            }
            return self.lead_on(out);
        }
        if roster.k.is_some() {
            return self.lead_done(out);
        }
        if self.overwrites.open {
            return self.lead_open(out);
        }
        lead.phase = Phase::Overwritten(BTreeMap::new());
        lead.left = std::iter::once(self.me).chain(roster.receivers.iter().copied()).collect();
        for disk in roster.receivers.iter().copied() {
            self.lead_asks(disk, Request::List(Which::Overwritten), out);
        }
        self.lead_lists(Which::Overwritten, out);
    }

    fn lead_asks(&mut self, disk: DiskId, request: Request<P>, out: &mut Vec<Output<P>>) {
        let used = Use::Lead { round: self.lead.as_ref().map_or(0, |lead| lead.round), from: disk };
        self.ask(disk, request, used, out);
    }

    fn lead_lists(&mut self, which: Which, out: &mut Vec<Output<P>>) {
        let used = Use::Lead { round: self.lead.as_ref().map_or(0, |lead| lead.round), from: self.me };
        self.disk(DiskOp::List(which), used, out);
    }

    /// Chunks of earlier epochs that are open somewhere.
    fn lead_open(&mut self, out: &mut Vec<Output<P>>) {
        let round = self.id();
        let (Some(roster), Some(lead)) = (self.roster.clone(), self.lead.as_mut()) else { return };
        (lead.phase, lead.round) = (Phase::Open(BTreeSet::new()), round);
        lead.left = roster.serving.iter().copied().collect();
        for disk in roster.others() {
            self.lead_asks(disk, Request::List(Which::Open), out);
        }
        self.lead_lists(Which::Open, out);
    }

    pub(crate) fn lead_came(
        &mut self,
        round: u64,
        from: DiskId,
        outcome: Result<Answer<P>, Refused>,
        out: &mut Vec<Output<P>>,
    ) {
        let (Some(roster), Some(lead)) = (self.roster.clone(), self.lead.as_mut()) else { return };
        if lead.retry_at.is_some() || lead.round != round || !lead.left.remove(&from) {
            return;
        }
        let mut fails = false;
        match (&mut lead.phase, outcome) {
            (Phase::BringIn, Ok(_)) => {}
            (Phase::Overwritten(sums), Ok(Answer::List { epoch, chunks, .. })) if epoch == roster.epoch => {
                let serving = roster.serves(from);
                for sum in chunks {
                    let of = OverwriteSum {
                        disk: from,
                        serving,
                        number: sum.number,
                        length: sum.length,
                        table_crc: sum.table_crc,
                    };
                    sums.entry(sum.index).or_default().push(of);
                }
            }
            (Phase::Open(open), Ok(Answer::List { chunks, .. })) => {
                let old = |sum: &ChunkSum| !sum.sealed && sum.made < roster.epoch;
                open.extend(chunks.iter().filter(|sum| old(sum)).map(|sum| sum.index));
            }
            (Phase::Highest(highest), Ok(Answer::Mark(mark))) => *highest = (*highest).max(mark),
            _ => fails = true,
        }
        if fails {
            self.lead_fails(Some(from).filter(|from| *from != self.me), out);
        } else {
            self.lead_on(out);
        }
    }

    /// It is begun again after a pause; who was in the way for long is reported.
    fn lead_fails(&mut self, by: Option<DiskId>, out: &mut Vec<Output<P>>) {
        let Some(lead) = self.lead.as_mut() else { return };
        lead.left.clear();
        lead.retry_at = Some(self.now + self.config.retry_pause);
        if let Some(by) = by
            && self.now.since(lead.began) >= self.config.start_patience
        {
            out.push(Output::Suspect(by));
        }
    }

    /// Goes on when all have answered.
    fn lead_on(&mut self, out: &mut Vec<Output<P>>) {
        let (Some(roster), Some(lead)) = (self.roster.clone(), self.lead.as_mut()) else { return };
        if !lead.left.is_empty() {
            return;
        }
        match std::mem::replace(&mut lead.phase, Phase::Done) {
            Phase::BringIn => {
                self.entered = true;
                self.lead_again(out);
            }
            Phase::Overwritten(sums) => {
                let count = roster.serving.len();
                let differ = |sums: &mut Vec<OverwriteSum>| {
                    // The leader first; who does not list it lacks it, or has no overwrite of it.
                    sums.sort_by_key(|sum| sum.disk != roster.me);
                    sums.iter().filter(|sum| sum.serving).count() != count || needs_settling(sums)
                };
                let queue = sums.into_iter().filter_map(|(index, mut sums)| differ(&mut sums).then_some(index));
                lead.phase = Phase::Equalise(queue.collect());
                self.lead_next(out);
            }
            Phase::Open(open) => {
                lead.phase = Phase::End(open.into_iter().collect());
                self.lead_next(out);
            }
            Phase::Highest(mark) => {
                self.mark_wanted = self.mark_wanted.max(mark);
                self.save_next(out);
                self.lead_done(out);
            }
            other @ (Phase::Equalise(_) | Phase::End(_) | Phase::Done) => lead.phase = other,
        }
    }

    /// The next chunk.
    fn lead_next(&mut self, out: &mut Vec<Output<P>>) {
        let round = self.id();
        let (Some(roster), Some(lead)) = (self.roster.clone(), self.lead.as_mut()) else { return };
        match &mut lead.phase {
            Phase::Equalise(queue) => match queue.pop_front() {
                Some(index) => self.begin_job(Owner::Lead, index, Purpose::Equalise, &[], out),
                None => {
                    self.overwrites.open = true;
                    self.lead_open(out);
                }
            },
            Phase::End(queue) => match queue.pop_front() {
                Some(index) => self.begin_job(Owner::Lead, index, Purpose::End, &[], out),
                // One chunk that resists does not keep the others open.
                None if lead.failed => self.lead_fails(None, out),
                None if roster.comparing => {
                    (lead.phase, lead.round) = (Phase::Highest(0), round);
                    lead.left = roster.receivers.iter().copied().collect();
                    for disk in roster.receivers.iter().copied() {
                        self.lead_asks(disk, Request::Reserve { epoch: roster.epoch, mark: 0 }, out);
                    }
                    self.lead_on(out);
                }
                None => self.lead_done(out),
            },
            _ => {}
        }
    }

    fn lead_done(&mut self, out: &mut Vec<Output<P>>) {
        let (Some(roster), Some(lead)) = (self.roster.clone(), self.lead.as_mut()) else { return };
        lead.phase = Phase::Done;
        if roster.comparing {
            // What is open is as long as on any of them, and what was overwritten is as the latest has it: the manager
            // lets them serve.
            self.caught_up = true;
            out.push(Output::Poke);
        }
    }

    pub(crate) fn lead_job_ended(&mut self, index: u32, outcome: Outcome, out: &mut Vec<Output<P>>) {
        let Some(lead) = self.lead.as_mut() else { return };
        let equalises = matches!(lead.phase, Phase::Equalise(_));
        match outcome {
            Outcome::Done { .. } | Outcome::Arrives | Outcome::Settled | Outcome::Nowhere => {}
            // A block is bad here, or there: it may be healed, and keeps no other chunk waiting.
            Outcome::Failed(refused) if equalises && refused.is_about_bytes() => {
                self.overwrites.differ(index);
                self.cares.note(Care::Equalise(index), self.now + self.config.retry_pause);
            }
            Outcome::Failed(refused) if equalises => return self.lead_fails(refused.disk, out),
            Outcome::Wait | Outcome::Conflict if equalises => return self.lead_fails(None, out),
            Outcome::Failed(_) | Outcome::Wait | Outcome::Conflict => lead.failed = true,
        }
        self.lead_next(out);
    }
}
