//! Indices of new chunks: given out by the leader below a mark that every receiver has durably, never twice.

use std::collections::BTreeSet;
use std::ops::Range;

use cairn_chunk_core::indices::IndexAllocator;
use cairn_types::{DiskId, Epoch, ErrorCode};

use crate::input::{Output, RequestId};
use crate::message::{Answer, Refused, Request};
use crate::replica::{Replica, Use};
use crate::role::{Asker, Right};

/// Requests that wait for a reservation; further ones are refused.
const WAITING_MAX: usize = 1024;

/// As leader.
#[derive(Debug, Default)]
pub struct Indices {
    allocator: Option<IndexAllocator>,
    waiting: Vec<(RequestId, u32)>,
    /// Leaders that wait for a mark of this member.
    marks: Vec<(RequestId, u32)>,
    reserving: Option<Reserving>,
}

#[derive(Debug)]
struct Reserving {
    mark: u32,
    left: BTreeSet<DiskId>,
    here: bool,
    seen: u32,
}

impl Indices {
    /// A new epoch; who waited for indices of the old one.
    pub fn next_epoch(&mut self) -> Vec<RequestId> {
        let old = std::mem::take(self);
        old.waiting.into_iter().chain(old.marks).map(|(id, _)| id).collect()
    }

    fn take(&mut self, count: u32) -> Option<Range<u32>> {
        let allocator = self.allocator.as_mut().filter(|allocator| allocator.left() >= count)?;
        Some(allocator.take(count))
    }
}

impl<P: Clone> Replica<P> {
    pub(crate) fn allocate(
        &mut self,
        id: RequestId,
        epoch: Epoch,
        count: u32,
        out: &mut Vec<Output<P>>,
    ) -> Result<(), Refused> {
        self.epochs.check(crate::epoch::Fencing::At(epoch))?;
        self.standing().check(Right::Lead, Asker::Client)?;
        let mark = self.mark();
        let allocator = self.indices.allocator.get_or_insert_with(|| IndexAllocator::new(mark));
        let left = allocator.left();
        let given = if self.indices.waiting.is_empty() { self.indices.take(count) } else { None };
        match given {
            Some(range) => out.push(Output::Reply(id, Ok(Answer::Indices(range)))),
            None if self.indices.waiting.len() >= WAITING_MAX => return Err(Refused::because(ErrorCode::Overloaded)),
            None => self.indices.waiting.push((id, count)),
        }
        if left < self.config.reserve_step / 2 || !self.indices.waiting.is_empty() {
            self.reserve(out);
        }
        Ok(())
    }

    /// Makes a higher mark durable everywhere.
    fn reserve(&mut self, out: &mut Vec<Output<P>>) {
        if self.indices.reserving.is_some() {
            return;
        }
        let Some(roster) = self.roster.clone() else { return };
        let step = self.config.reserve_step;
        let Some(mark) = self.indices.allocator.as_ref().and_then(|allocator| allocator.next_mark(step)) else {
            return self.not_reserved(Refused::because(ErrorCode::PgFull), out);
        };
        let left = roster.receivers.iter().copied().collect();
        let here = self.mark() >= mark;
        let seen = if self.mark() > mark { self.mark() } else { 0 };
        self.indices.reserving = Some(Reserving { mark, left, here, seen });
        for disk in &roster.receivers {
            let used = Use::Reserve { epoch: roster.epoch, from: *disk };
            self.ask(*disk, Request::Reserve { epoch: roster.epoch, mark }, used, out);
        }
        self.mark_wanted = self.mark_wanted.max(mark);
        self.save_next(out);
        self.reserved(out);
    }

    pub(crate) fn reserve_came(&mut self, from: DiskId, outcome: Result<Answer<P>, Refused>, out: &mut Vec<Output<P>>) {
        let Some(reserving) = self.indices.reserving.as_mut() else { return };
        match outcome {
            Ok(Answer::Mark(reached)) => {
                reserving.left.remove(&from);
                if reached > reserving.mark {
                    // Another leader went further: nothing below its mark is given out here.
                    reserving.seen = reserving.seen.max(reached);
                }
                self.reserved(out);
            }
            Ok(_) => self.not_reserved(Refused::because(ErrorCode::Internal), out),
            Err(refused) => {
                if refused.code == ErrorCode::Unavailable {
                    out.push(Output::Suspect(from));
                }
                self.not_reserved(refused, out);
            }
        }
    }

    fn not_reserved(&mut self, refused: Refused, out: &mut Vec<Output<P>>) {
        self.indices.reserving = None;
        let waiting = std::mem::take(&mut self.indices.waiting);
        waiting.into_iter().for_each(|(id, _)| out.push(Output::Reply(id, Err(refused))));
    }

    /// The own disk has a mark.
    pub(crate) fn mark_saved(&mut self, out: &mut Vec<Output<P>>) {
        let mark = self.mark();
        let (reached, left) =
            std::mem::take(&mut self.indices.marks).into_iter().partition(|(_, asked)| *asked <= mark);
        self.indices.marks = left;
        let reached: Vec<(RequestId, u32)> = reached;
        reached.into_iter().for_each(|(id, _)| out.push(Output::Reply(id, Ok(Answer::Mark(mark)))));
        if let Some(reserving) = self.indices.reserving.as_mut() {
            reserving.here |= mark >= reserving.mark;
            self.reserved(out);
        }
    }

    pub(crate) fn mark_not_saved(&mut self, out: &mut Vec<Output<P>>) {
        self.mark_wanted = self.mark();
        let refused = Refused::because(ErrorCode::NoSpace);
        let marks = std::mem::take(&mut self.indices.marks);
        marks.into_iter().for_each(|(id, _)| out.push(Output::Reply(id, Err(refused))));
        self.not_reserved(Refused::because(ErrorCode::NoSpace), out);
    }

    fn reserved(&mut self, out: &mut Vec<Output<P>>) {
        let Some(Reserving { mark, seen, .. }) =
            self.indices.reserving.take_if(|reserving| reserving.left.is_empty() && reserving.here)
        else {
            return;
        };
        if let Some(allocator) = &mut self.indices.allocator {
            allocator.raise(mark, seen);
        }
        for (id, count) in std::mem::take(&mut self.indices.waiting) {
            match self.indices.take(count) {
                Some(range) => out.push(Output::Reply(id, Ok(Answer::Indices(range)))),
                None => self.indices.waiting.push((id, count)),
            }
        }
        if !self.indices.waiting.is_empty() {
            self.reserve(out);
        }
    }

    /// A leader raises the mark of this member.
    pub(crate) fn take_reserve(
        &mut self,
        id: RequestId,
        epoch: Epoch,
        mark: u32,
        out: &mut Vec<Output<P>>,
    ) -> Result<(), Refused> {
        self.epochs.check(crate::epoch::Fencing::At(epoch))?;
        if self.mark() >= mark {
            out.push(Output::Reply(id, Ok(Answer::Mark(self.mark()))));
            return Ok(());
        }
        self.indices.marks.push((id, mark));
        self.mark_wanted = self.mark_wanted.max(mark);
        self.save_next(out);
        Ok(())
    }
}
