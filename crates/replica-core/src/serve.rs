//! Requests: who may ask what, and what is answered. What goes along a chain is in [`crate::write`], indices in
//! [`crate::indices`].
//!
//! Invariant: a member answers reads only as the newest state that it was told says; a free of what is being brought,
//! or may yet be brought, is not answered as done.

use cairn_format::crc_table::blocks_of;
use cairn_types::{CHUNK_SIZE_MAX, Epoch, ErrorCode};

use crate::care::Care;
use crate::disk::{DiskDone, DiskOp};
use crate::epoch::Fencing;
use crate::input::{Input, Output, RequestId, Seen};
use crate::message::{Answer, Freed, Read, Refused, Request, Which};
use crate::replica::{Replica, Use};
use crate::role::{Asker, Right};

/// What the disk does for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Served {
    /// Bytes of a chunk.
    Read { index: u32, made: Epoch },
    /// A list.
    List,
    /// A table.
    Table,
    /// A free; `whole`: of all of it, whatever others have; `ends`: of a chunk that was here, or of all of it; `short`:
    /// it may yet be copied here again.
    Free { index: u32, whole: bool, ends: bool, short: bool },
}

impl<P: Clone> Replica<P> {
    pub(crate) fn request(
        &mut self,
        id: RequestId,
        from: Asker,
        request: Request<P>,
        here: Option<Seen>,
        out: &mut Vec<Output<P>>,
    ) {
        let outcome = match request {
            Request::Apply(record) => self.apply(id, &record, out),
            Request::Allocate { epoch, count } => self.allocate(id, epoch, count, out),
            Request::Reserve { epoch, mark } => self.take_reserve(id, epoch, mark, out),
            Request::Append(asked) => self.append(id, asked, from, here, out),
            Request::Sync(asked) => self.along(id, &asked, false, here, out),
            Request::Seal(asked) => self.along(id, &asked, true, here, out),
            Request::Overwrite(asked) => self.overwrite(id, asked, from, here, out),
            Request::Read(asked) => self.read(id, asked, from, here, out),
            Request::List(which) => self.list(id, which, out),
            Request::Table { index, fencing } => self.table(id, index, fencing, out),
            Request::Free { index, what } => self.free(id, index, what, here, out),
            Request::BadBlock { index, block } => {
                self.found(Care::Heal(index, block));
                out.push(Output::Reply(id, Ok(Answer::Done)));
                Ok(())
            }
        };
        if let Err(refused) = outcome {
            if refused.code == ErrorCode::NotServing {
                // It may be this member that is behind.
                out.push(Output::Poke);
            }
            out.push(Output::Reply(id, Err(refused)));
        }
    }

    /// A state of the group: answered when it is durable.
    fn apply(
        &mut self,
        id: RequestId,
        record: &cairn_format::pg_state::PgStateRecord,
        out: &mut Vec<Output<P>>,
    ) -> Result<(), Refused> {
        self.tell(record, out)?;
        if self.epochs.epoch() >= record.epoch {
            out.push(Output::Reply(id, Ok(Answer::Done)));
        } else {
            self.applies.push((id, record.epoch));
        }
        Ok(())
    }

    fn read(
        &mut self,
        id: RequestId,
        asked: Read,
        from: Asker,
        here: Option<Seen>,
        out: &mut Vec<Output<P>>,
    ) -> Result<(), Refused> {
        self.epochs.check(asked.fencing)?;
        let right = match (asked.last_resort, asked.sure) {
            (Some(_), _) => Right::ReadAtLast,
            (None, true) => Right::ReadSurely,
            (None, false) => Right::Read,
        };
        self.standing().check(right, from)?;
        let Read { index, offset, bytes, .. } = asked;
        let Some(seen) = here else {
            let gone = self.deleted.contains(index);
            self.found(Care::Restore(index));
            return Err(Refused::because(if gone { ErrorCode::ChunkDeleted } else { ErrorCode::Missing }));
        };
        if asked.last_resort.is_some_and(|made| made != seen.sum.made) {
            return Err(Refused::because(ErrorCode::ChunkDeleted));
        }
        let op = DiskOp::Read { index, offset, bytes };
        self.disk(op, Use::Serve { id, what: Served::Read { index, made: seen.sum.made } }, out);
        Ok(())
    }

    fn list(&mut self, id: RequestId, which: Which, out: &mut Vec<Output<P>>) -> Result<(), Refused> {
        // No epoch of its own: the answer names the member's.
        self.epochs.check(Fencing::Any)?;
        self.disk(DiskOp::List(which), Use::Serve { id, what: Served::List }, out);
        Ok(())
    }

    fn table(&mut self, id: RequestId, index: u32, fencing: Fencing, out: &mut Vec<Output<P>>) -> Result<(), Refused> {
        self.epochs.check(fencing)?;
        self.disk(DiskOp::Table { index }, Use::Serve { id, what: Served::Table }, out);
        Ok(())
    }

    fn free(
        &mut self,
        id: RequestId,
        index: u32,
        what: Freed,
        here: Option<Seen>,
        out: &mut Vec<Output<P>>,
    ) -> Result<(), Refused> {
        let epoch = self.epochs.check(Fencing::Any)?.epoch;
        // What is copied at this moment may not be here whole; or it may yet be copied from somebody who has not freed
        // it.
        if self.is_being_brought(index) || here.is_none() && !self.may(Right::FreeAbsent) {
            return Err(Refused::because(ErrorCode::Unavailable));
        }
        // To one that catches up, or to a chunk of an earlier epoch that is to be closed, the rest may yet come from
        // somebody who has not freed it: it is told again.
        let is_part = here.is_some_and(|seen| !seen.sum.sealed && seen.sum.made < epoch);
        let length = here.map_or(0, |seen| seen.sum.length);
        let beyond = match &what {
            Freed::Whole => true,
            Freed::Blocks(runs) => runs.iter().any(|run| run.end > blocks_of(length)),
        };
        let short = beyond && (is_part || !self.may(Right::FreeAbsent));
        let whole = what == Freed::Whole;
        let ends = whole || here.is_some();
        self.cares.done(Care::Restore(index));
        *self.freeing.entry(index).or_default() += 1;
        let used = Use::Serve { id, what: Served::Free { index, whole, ends, short } };
        self.disk(DiskOp::Free { index, what }, used, out);
        Ok(())
    }

    /// The disk did its part.
    pub(crate) fn served(
        &mut self,
        id: RequestId,
        what: Served,
        outcome: Result<DiskDone<P>, Refused>,
        out: &mut Vec<Output<P>>,
    ) {
        if let Served::Free { index, .. } = what
            && let Some(count) = self.freeing.get_mut(&index)
        {
            *count -= 1;
            if *count == 0 {
                self.freeing.remove(&index);
            }
        }
        let answer = match (what, outcome) {
            (Served::Read { made, .. }, Ok(DiskDone::Data(data))) => Ok(Answer::Data(data, made)),
            (Served::Read { index, .. }, Err(refused)) => {
                if refused.code == ErrorCode::Missing {
                    self.missed_a_part(index);
                }
                Err(refused)
            }
            (Served::List, Ok(DiskDone::List(chunks))) => {
                Ok(Answer::List { epoch: self.epochs.epoch(), mark: self.mark(), chunks })
            }
            (Served::Table, Ok(DiskDone::Table(table))) => Ok(Answer::Table(table)),
            (Served::Free { index, whole, ends, short }, Ok(done)) => {
                let done = match done {
                    DiskDone::Gone(Some(_)) if whole => DiskDone::Gone(Some(CHUNK_SIZE_MAX)),
                    done => done,
                };
                if ends {
                    self.note_gone(index, &Ok(done.clone()));
                }
                // All of it, here and wherever it may come from: that is remembered.
                let done = whole && matches!(done, DiskDone::Gone(Some(_)));
                if short && !done { Err(Refused::because(ErrorCode::Unavailable)) } else { Ok(Answer::Done) }
            }
            (Served::Free { .. }, Err(Refused { code: ErrorCode::ChunkDeleted, .. })) => Ok(Answer::Done),
            (_, Ok(_)) => Err(Refused::because(ErrorCode::Internal)),
            (_, Err(refused)) => Err(refused),
        };
        out.push(Output::Reply(id, answer));
    }

    /// Something that needs care was found, here or by a reader.
    pub(crate) fn found(&mut self, care: Care) {
        let due = match care {
            Care::Restore(index) => {
                if !self.lacks(index) {
                    return;
                }
                self.now + self.config.restore_delay
            }
            _ => self.now,
        };
        self.cares.note(care, due);
    }

    /// A reader missed a part of a chunk. Of a copy, mostly its writer has not come so far.
    fn missed_a_part(&mut self, index: u32) {
        if self.entered {
            self.found(Care::Restore(index));
        }
    }

    /// Whether the member serves, and the index was given out and not freed here.
    pub(crate) fn lacks(&self, index: u32) -> bool {
        self.may(Right::Restore) && index < self.mark()
    }
}

/// The chunk that a request names, and the blocks, for [`Seen`].
pub fn names<P>(request: &Request<P>) -> Option<(u32, Vec<std::ops::Range<u32>>)> {
    match request {
        Request::Append(asked) => Some((asked.index, Vec::new())),
        Request::Sync(asked) | Request::Seal(asked) => Some((asked.index, Vec::new())),
        Request::Overwrite(asked) => Some((asked.index, asked.runs.iter().map(crate::message::Run::blocks).collect())),
        Request::Read(asked) => Some((asked.index, Vec::new())),
        Request::Free { index, .. } => Some((*index, Vec::new())),
        _ => None,
    }
}

impl<P> Input<P> {
    /// A request with what is here of its chunk, as `look` tells.
    pub fn request(
        id: RequestId,
        from: Asker,
        request: Request<P>,
        look: impl FnOnce(u32, &[std::ops::Range<u32>]) -> Option<Seen>,
    ) -> Self {
        let here = names(&request).and_then(|(index, blocks)| look(index, &blocks));
        Self::Request { id, from, request, here }
    }
}
