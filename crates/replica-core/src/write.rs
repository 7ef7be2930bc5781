//! Appends, overwrites, syncs, seals: checked, done here and by the rest of the chain at the same time, answered when
//! both are.
//!
//! Invariants: nothing is taken in a role that takes no writes, nor under another epoch; a chunk of copies takes
//! appends only in the epoch and of the session that made it; an overwrite is acknowledged when all receivers have it
//! durably, and when one has not, nothing more is taken for its chunk before members are equal.

use cairn_chunk_core::append::{AppendRefusal, judge_append};
use cairn_chunk_core::fence;
use cairn_chunk_core::overwrite::{OverwriteRefusal, check_blocks, check_order, check_runs};
use cairn_types::{BLOCK_SIZE, DiskId, Epoch, ErrorCode, SessionId};

use crate::care::Care;
use crate::disk::{DiskDone, DiskOp, Place};
use crate::epoch::Fencing;
use crate::input::{Output, RequestId, Seen};
use crate::message::{Along, Answer, Append, Ordered, Overwrite, Refused, Request, Wrote};
use crate::overwrites::Begin;
use crate::replica::{Replica, Use};
use crate::role::{Asker, Right};

/// What a join is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// An append.
    Append,
    /// A sync.
    Sync,
    /// A seal; of a chunk.
    Seal(u32),
    /// An overwrite that this member leads: of a chunk, for a session's request.
    Lead(u32, SessionId, u64),
    /// One that it follows.
    Follow,
}

/// One request that is done here and by the rest of the chain.
#[derive(Debug)]
pub struct Join {
    id: RequestId,
    what: What,
    epoch: Epoch,
    /// The answer must not be given after the epoch.
    still_in: bool,
    here: Option<Result<Wrote, Refused>>,
    rest: Option<Result<Wrote, Refused>>,
}

fn code<T>(code: ErrorCode) -> Result<T, Refused> {
    Err(Refused::because(code))
}

impl<P: Clone> Replica<P> {
    /// The place of this member in what goes along `chain`.
    fn place(&self, chain: &[DiskId]) -> Result<fence::Place, Refused> {
        let Some(pg) = self.epochs.durable() else { return code(ErrorCode::NotServing) };
        fence::check_chain(pg, self.me, chain).map_err(|fence| match fence {
            fence::Fence::NotPrimary { .. } => Refused::because(ErrorCode::NotPrimary),
            _ => Refused::because(ErrorCode::NotServing),
        })
    }

    fn begin_join(&mut self, id: RequestId, what: What, alone: bool) -> u64 {
        let still_in = self.standing().shards && matches!(what, What::Append | What::Sync);
        let rest = alone.then(|| Ok(Wrote { durable: u64::MAX, ..Wrote::default() }));
        let join = Join { id, what, epoch: self.epochs.epoch(), still_in, here: None, rest };
        let key = self.id();
        self.joins.insert(key, join);
        key
    }

    pub(crate) fn append(
        &mut self,
        id: RequestId,
        asked: Append<P>,
        from: Asker,
        here: Option<Seen>,
        out: &mut Vec<Output<P>>,
    ) -> Result<(), Refused> {
        self.check_append(&asked, from, here)?;
        let Append { index, epoch, session, made, offset, bytes, data, chain, sync, repair } = asked;
        let may_create = index < self.mark() && !self.deleted.contains(index);
        let join = self.begin_join(id, What::Append, chain.is_empty());
        let op = DiskOp::Append { index, made, session, offset, bytes, data: data.clone(), may_create, sync, repair };
        self.disk(op, Use::Join { join, rest: None }, out);
        if let Some((next, rest)) = chain.split_first() {
            let chain = rest.to_vec();
            let on = Append { index, epoch, session, made, offset, bytes, data, chain, sync, repair };
            self.ask(*next, Request::Append(on), Use::Join { join, rest: Some(*next) }, out);
        }
        Ok(())
    }

    fn check_append(&self, asked: &Append<P>, from: Asker, here: Option<Seen>) -> Result<(), Refused> {
        let epoch = self.epochs.check(Fencing::At(asked.epoch))?.epoch;
        let standing = self.standing();
        standing.check(Right::Take, from)?;
        if standing.shards {
            if asked.repair || !asked.chain.is_empty() || !asked.bytes.is_multiple_of(BLOCK_SIZE as u64) {
                return code(ErrorCode::BadRequest);
            }
            self.check_writable(&standing)?;
        } else if asked.repair {
            if from != Asker::Server || !asked.chain.is_empty() {
                return code(ErrorCode::BadRequest);
            }
        } else if self.place(&asked.chain)? == fence::Place::Primary {
            standing.check(Right::Lead, from)?;
        }
        if !asked.repair && asked.made != epoch {
            return code(ErrorCode::ChunkSealed);
        }
        let sum = here.map(|here| here.sum);
        if sum.is_some_and(|sum| sum.session != asked.session || sum.made != asked.made) {
            return code(ErrorCode::BadRequest);
        }
        let (length, sealed) = sum.map_or((0, false), |sum| (sum.length, sum.sealed && !asked.repair));
        let bytes = usize::try_from(asked.bytes).unwrap_or(usize::MAX);
        match judge_append(length, sealed, (asked.offset, None), bytes, asked.data.crcs.len()) {
            Ok(_) => Ok(()),
            Err(AppendRefusal::Malformed) => code(ErrorCode::BadRequest),
            Err(AppendRefusal::Sealed { .. }) => code(ErrorCode::ChunkSealed),
            Err(AppendRefusal::NotAtEnd { .. }) => code(ErrorCode::OffsetMismatch),
        }
    }

    /// A shard comes from its writer: no leader stands before it, so each member sees for itself whether the group
    /// takes writes.
    fn check_writable(&self, standing: &crate::role::Standing) -> Result<(), Refused> {
        if standing.retired {
            code(ErrorCode::PgFull)
        } else if standing.comparing || !standing.entered {
            code(ErrorCode::Overloaded)
        } else if !standing.enough {
            code(ErrorCode::BelowMinimum)
        } else {
            Ok(())
        }
    }

    pub(crate) fn along(
        &mut self,
        id: RequestId,
        asked: &Along,
        seals: bool,
        here: Option<Seen>,
        out: &mut Vec<Output<P>>,
    ) -> Result<(), Refused> {
        let Along { index, epoch, session, ref chain } = *asked;
        let current = self.epochs.check(Fencing::At(epoch))?.epoch;
        let standing = self.standing();
        standing.check(Right::Take, Asker::Server)?;
        let sum = here.map(|here| here.sum);
        let others = sum.is_some_and(|sum| sum.session != session);
        if standing.shards {
            if !chain.is_empty() || others && (!seals || session.get() != 0) {
                return code(ErrorCode::BadRequest);
            }
            if !seals && sum.is_some_and(|sum| sum.made != current) {
                return code(ErrorCode::ChunkSealed);
            }
        } else {
            match self.place(chain) {
                // The leader seals members one by one, and a writer syncs nothing that way.
                Err(refused) if !(seals && chain.is_empty() && refused.code == ErrorCode::NotServing) => {
                    return Err(refused);
                }
                _ => {}
            }
            if !seals && others {
                return code(ErrorCode::BadRequest);
            }
        }
        if sum.is_none() && !seals {
            return code(ErrorCode::Missing);
        }
        let what = if seals { What::Seal(index) } else { What::Sync };
        let join = self.begin_join(id, what, chain.is_empty());
        if sum.is_none() {
            // A seal of a chunk that never came here has nothing to forbid.
            self.join_done(join, Some(Ok(Wrote::default())), None, out);
        } else {
            let op = if seals { DiskOp::Seal { index } } else { DiskOp::Sync { index } };
            self.disk(op, Use::Join { join, rest: None }, out);
        }
        if let Some((next, rest)) = chain.split_first() {
            let on = Along { index, epoch, session, chain: rest.to_vec() };
            let request = if seals { Request::Seal(on) } else { Request::Sync(on) };
            self.ask(*next, request, Use::Join { join, rest: Some(*next) }, out);
        }
        Ok(())
    }

    pub(crate) fn overwrite(
        &mut self,
        id: RequestId,
        asked: Overwrite<P>,
        from: Asker,
        here: Option<Seen>,
        out: &mut Vec<Output<P>>,
    ) -> Result<(), Refused> {
        self.epochs.check(Fencing::At(asked.epoch))?;
        let standing = self.standing();
        if standing.shards {
            return code(ErrorCode::NotInPlace);
        }
        standing.check(Right::Take, from)?;
        let runs: Vec<_> = asked.runs.iter().map(crate::message::Run::blocks).collect();
        let levels = matches!(asked.order, Ordered::Level { .. });
        if !(runs.is_empty() && levels) && check_runs(&runs).is_err() {
            return code(ErrorCode::BadRequest);
        }
        match asked.order {
            Ordered::Level { number } => {
                if from != Asker::Server || !asked.chain.is_empty() {
                    return code(ErrorCode::BadRequest);
                }
                let place = Place::Level { number, serving: standing.role.serves() };
                let join = self.begin_join(id, What::Follow, true);
                let op = DiskOp::Overwrite { index: asked.index, place, runs: asked.runs };
                self.disk(op, Use::Join { join, rest: None }, out);
                Ok(())
            }
            Ordered::Next => {
                if self.place(&asked.chain)? != fence::Place::Primary {
                    return code(ErrorCode::NotPrimary);
                }
                standing.check(Right::Lead, from)?;
                self.lead_overwrite(id, asked, here, out)
            }
            Ordered::After { .. } => {
                if self.place(&asked.chain)? == fence::Place::Primary {
                    return code(ErrorCode::NotPrimary);
                }
                self.follow_overwrite(id, asked, here, out)
            }
        }
    }

    /// From a client: it gets the next number, and goes on with it.
    fn lead_overwrite(
        &mut self,
        id: RequestId,
        asked: Overwrite<P>,
        here: Option<Seen>,
        out: &mut Vec<Output<P>>,
    ) -> Result<(), Refused> {
        let (index, of) = (asked.index, (asked.session, asked.request, asked.floor));
        match self.overwrites.begin(self.now, index, of, id)? {
            Begin::Done(wrote) => {
                out.push(Output::Reply(id, Ok(Answer::Wrote(wrote))));
                return Ok(());
            }
            Begin::Waits => return Ok(()),
            Begin::Go => {}
        }
        let seen = match check_here(&asked, here) {
            Ok(seen) => seen,
            Err(refused) => {
                let waiting = self.overwrites.end(index, (asked.session, asked.request), None);
                waiting.into_iter().for_each(|id| out.push(Output::Reply(id, Err(refused))));
                return Err(refused);
            }
        };
        let previous = seen.sum.number;
        let number = previous.next(asked.epoch);
        let what = What::Lead(index, asked.session, asked.request);
        let join = self.begin_join(id, what, asked.chain.is_empty());
        let op = DiskOp::Overwrite { index, place: Place::After { previous, number }, runs: asked.runs.clone() };
        self.disk(op, Use::Join { join, rest: None }, out);
        self.pass_on(join, Overwrite { order: Ordered::After { previous, number }, ..asked }, out);
        Ok(())
    }

    /// From the member before this one in the chain.
    fn follow_overwrite(
        &mut self,
        id: RequestId,
        asked: Overwrite<P>,
        here: Option<Seen>,
        out: &mut Vec<Output<P>>,
    ) -> Result<(), Refused> {
        let Ordered::After { previous, number } = asked.order else { return code(ErrorCode::BadRequest) };
        let index = asked.index;
        if self.standing().role.serves() {
            // One that does not follow is not passed on: members behind this one would only be further ahead of it.
            let seen = check_here(&asked, here)?;
            check_order(seen.sum.number, previous, number).map_err(|_| Refused::because(ErrorCode::OffsetMismatch))?;
            let join = self.begin_join(id, What::Follow, asked.chain.is_empty());
            let op = DiskOp::Overwrite { index, place: Place::After { previous, number }, runs: asked.runs.clone() };
            self.disk(op, Use::Join { join, rest: None }, out);
            self.pass_on(join, asked, out);
            return Ok(());
        }
        let join = self.begin_join(id, What::Follow, asked.chain.is_empty());
        if here.is_some() {
            let op = DiskOp::Overwrite { index, place: Place::Follow { previous, number }, runs: asked.runs.clone() };
            self.disk(op, Use::Join { join, rest: None }, out);
        } else {
            // It comes with the copy, which has to be at least so new.
            self.overwrites.skipped.insert(index, number);
            let members = vec![self.stamp()];
            self.join_done(join, Some(Ok(Wrote { members, ..Wrote::default() })), None, out);
        }
        self.pass_on(join, asked, out);
        Ok(())
    }

    fn pass_on(&mut self, join: u64, asked: Overwrite<P>, out: &mut Vec<Output<P>>) {
        let Some((next, rest)) = asked.chain.split_first().map(|(next, rest)| (*next, rest.to_vec())) else { return };
        let on = Overwrite { chain: rest, ..asked };
        self.ask(next, Request::Overwrite(on), Use::Join { join, rest: Some(next) }, out);
    }

    /// This member's disk is done.
    pub(crate) fn join_here(&mut self, key: u64, outcome: Result<DiskDone<P>, Refused>, out: &mut Vec<Output<P>>) {
        let Some(join) = self.joins.get(&key) else { return };
        if let What::Seal(index) = join.what {
            self.note_gone(index, &outcome);
        }
        let stamp = self.stamp();
        let here = outcome.map(|done| {
            let (length, durable) =
                if let DiskDone::Wrote { length, durable } = done { (length, durable) } else { (0, 0) };
            Wrote { length, durable, members: vec![stamp] }
        });
        self.join_done(key, Some(here), None, out);
    }

    /// The rest of the chain is done.
    pub(crate) fn join_rest(
        &mut self,
        key: u64,
        next: DiskId,
        outcome: Result<Answer<P>, Refused>,
        out: &mut Vec<Output<P>>,
    ) {
        let rest = match outcome {
            Ok(Answer::Wrote(wrote)) => Ok(wrote),
            Ok(_) => Err(Refused::because(ErrorCode::Internal)),
            Err(refused) => Err(hop_refused(next, refused)),
        };
        if let Err(Refused { code: ErrorCode::ChainFailed, disk: Some(disk), .. }) = rest {
            out.push(Output::Suspect(disk));
        }
        if let Some(What::Seal(index)) = self.joins.get(&key).map(|join| join.what)
            && rest.is_err()
        {
            self.cares.note(Care::Seal(index), self.now);
        }
        self.join_done(key, None, Some(rest), out);
    }

    fn join_done(
        &mut self,
        key: u64,
        here: Option<Result<Wrote, Refused>>,
        rest: Option<Result<Wrote, Refused>>,
        out: &mut Vec<Output<P>>,
    ) {
        let Some(join) = self.joins.get_mut(&key) else { return };
        join.here = here.or(join.here.take());
        join.rest = rest.or(join.rest.take());
        // A failure here is answered at once, except of what all members have to be asked about.
        let overwrites = matches!(join.what, What::Lead(..) | What::Follow);
        let early = matches!(join.here, Some(Err(_))) && !overwrites;
        if !early && (join.here.is_none() || join.rest.is_none()) {
            return;
        }
        let Some(join) = self.joins.remove(&key) else { return };
        let moved_on = join.still_in && join.epoch != self.epochs.epoch();
        let here = join.here.unwrap_or_else(|| Ok(Wrote::default()));
        let rest = join.rest.unwrap_or_else(|| Ok(Wrote::default()));
        let mut outcome = here.and_then(|here| rest.map(|rest| merge(here, rest)));
        if moved_on {
            outcome = Err(Refused::stale(self.epochs.epoch()));
        }
        let mut waiting = Vec::new();
        if let What::Lead(index, session, request) = join.what
            && join.epoch == self.epochs.epoch()
        {
            if outcome.is_err() {
                // Before it has ended, so that none begins in between.
                self.overwrites.differ(index);
                self.cares.note(Care::Equalise(index), self.now);
            }
            waiting = self.overwrites.end(index, (session, request), outcome.as_ref().ok().cloned());
        }
        for id in waiting.into_iter().chain([join.id]) {
            out.push(Output::Reply(id, outcome.clone().map(Answer::Wrote)));
        }
    }
}

fn merge(mut here: Wrote, rest: Wrote) -> Wrote {
    here.durable = here.durable.min(rest.durable);
    here.members.extend(rest.members);
    here
}

/// Errors of a member further down that say something of the asker's view or of space are passed back as they are; all
/// others name it.
fn hop_refused(next: DiskId, refused: Refused) -> Refused {
    match refused.code {
        ErrorCode::StaleEpoch
        | ErrorCode::ChainFailed
        | ErrorCode::ChunkSealed
        | ErrorCode::ChunkDeleted
        | ErrorCode::NoSpace
        | ErrorCode::PgFull
        | ErrorCode::Overloaded
        | ErrorCode::NotServing
        | ErrorCode::NotPrimary
        | ErrorCode::Missing
        | ErrorCode::NotInPlace
        | ErrorCode::BadRequest => refused,
        _ => Refused::chain(next),
    }
}

/// What may be overwritten of what is here.
fn check_here<P>(asked: &Overwrite<P>, here: Option<Seen>) -> Result<Seen, Refused> {
    let Some(seen) = here else { return code(ErrorCode::Missing) };
    if seen.full {
        return code(ErrorCode::NotInPlace);
    }
    if seen.freed {
        return code(ErrorCode::ChunkDeleted);
    }
    let runs: Vec<_> = asked.runs.iter().map(crate::message::Run::blocks).collect();
    match check_blocks(&runs, seen.sum.durable, seen.sum.sealed, None) {
        Ok(()) => Ok(seen),
        Err(OverwriteRefusal::OpenTail { .. }) => code(ErrorCode::NotInPlace),
        Err(OverwriteRefusal::BeyondDurable { .. }) => code(ErrorCode::Missing),
        Err(OverwriteRefusal::Freed { .. }) => code(ErrorCode::ChunkDeleted),
        Err(_) => code(ErrorCode::BadRequest),
    }
}
