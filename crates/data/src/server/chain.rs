//! [`ChainJoin`]: one request that is done here and by the rest of the chain at the same time; answered when both are.
//! Also sync and seal, which go along the chain like appends.

use std::sync::Arc;

use cairn_chunk_core::{fence, striped};
use cairn_rpc::{CallOptions, Payload, Reply, Request};
use cairn_types::{ChunkId, DiskId, ErrorCode, SessionId};
use cairn_wire::Opcode;
use cairn_wire::data::{ChunkHeader, MemberStamp, SealRequest, SealResponse, SyncRequest, SyncResponse};
use cairn_wire::error::WireError;
use parking_lot::Mutex;

use super::member::Member;
use super::peer::{hop_error, stream_of};
use super::{Inner, Refused};

/// What one side of a join came to.
#[derive(Debug, Clone, Default)]
pub(crate) struct Part {
    pub(crate) length: u64,
    pub(crate) durable: u64,
    pub(crate) members: Vec<MemberStamp>,
}

type Outcome = Result<Part, WireError>;
type Answer = Box<dyn FnOnce(Reply, Part) + Send>;

/// Waits for this member and for the rest of the chain.
pub(crate) struct ChainJoin {
    state: Mutex<State>,
}

/// Who is told.
enum Finish {
    Asker(Reply, Answer),
    Own(Box<dyn FnOnce(Outcome) + Send>),
}

struct State {
    finish: Option<Finish>,
    here: Option<Outcome>,
    rest: Option<Outcome>,
}

impl ChainJoin {
    /// `answer` sends the response; the length is this member's, `durable` the least, members those of both.
    pub(crate) fn new(reply: Reply, alone: bool, answer: Answer) -> Arc<Self> {
        Self::with(alone, Finish::Asker(reply, answer))
    }

    /// Of something that this member does by itself.
    pub(crate) fn own(alone: bool, then: impl FnOnce(Result<Part, WireError>) + Send + 'static) -> Arc<Self> {
        Self::with(alone, Finish::Own(Box::new(then)))
    }

    fn with(alone: bool, finish: Finish) -> Arc<Self> {
        let rest = alone.then(|| Ok(Part { durable: u64::MAX, ..Part::default() }));
        let state = State { finish: Some(finish), here: None, rest };
        Arc::new(Self { state: Mutex::new(state) })
    }

    /// This member is done.
    pub(crate) fn here(&self, outcome: Outcome) {
        self.settle(|state| state.here = Some(outcome));
    }

    /// The rest of the chain is done.
    pub(crate) fn rest(&self, outcome: Outcome) {
        self.settle(|state| state.rest = Some(outcome));
    }

    /// Takes the reply back when nothing was begun.
    pub(crate) fn cancel(&self) -> Option<Reply> {
        match self.state.lock().finish.take() {
            Some(Finish::Asker(reply, _)) => Some(reply),
            _ => None,
        }
    }

    fn settle(&self, put: impl FnOnce(&mut State)) {
        let (finish, outcome) = {
            let mut state = self.state.lock();
            put(&mut state);
            // A failure here is answered at once: nobody waits for a chain whose outcome does not count any more.
            let failed = matches!(state.here, Some(Err(_)));
            if !failed && (state.here.is_none() || state.rest.is_none()) {
                return;
            }
            let Some(finish) = state.finish.take() else { return };
            let here = state.here.take().unwrap_or_else(|| Ok(Part::default()));
            let rest = state.rest.take().unwrap_or_else(|| Ok(Part::default()));
            (finish, here.and_then(|here| rest.map(|rest| merge(here, rest))))
        };
        match (finish, outcome) {
            (Finish::Asker(reply, answer), Ok(part)) => answer(reply, part),
            (Finish::Asker(reply, _), Err(error)) => reply.err(error),
            (Finish::Own(then), outcome) => then(outcome),
        }
    }
}

fn merge(mut here: Part, rest: Part) -> Part {
    here.durable = here.durable.min(rest.durable);
    here.members.extend(rest.members);
    here
}

/// The disks of a chain.
pub(crate) fn disks(chain: &[u32]) -> Vec<DiskId> {
    chain.iter().map(|disk| DiskId(*disk)).collect()
}

/// What sync and seal have in common.
pub(super) struct Along {
    pub(super) opcode: Opcode,
    pub(super) header: ChunkHeader,
    pub(super) chain: Vec<u32>,
    pub(super) trace_id: u64,
}

impl Inner {
    pub(super) fn sync(self: &Arc<Self>, request: &Request<'_>, reply: Reply) -> Result<(), Refused> {
        let asked: SyncRequest = match request.decode() {
            Ok(asked) => asked,
            Err(error) => return Err((reply, error)),
        };
        let (header, trace_id) = (asked.chunk.unwrap_or_default(), request.call.trace_id);
        let along = Along { opcode: Opcode::Sync, header, chain: asked.chain, trace_id };
        self.go_along(along, reply)
    }

    pub(super) fn seal(self: &Arc<Self>, request: &Request<'_>, reply: Reply) -> Result<(), Refused> {
        let asked: SealRequest = match request.decode() {
            Ok(asked) => asked,
            Err(error) => return Err((reply, error)),
        };
        let (header, trace_id) = (asked.chunk.unwrap_or_default(), request.call.trace_id);
        let along = Along { opcode: Opcode::Seal, header, chain: asked.chain, trace_id };
        self.go_along(along, reply)
    }

    fn go_along(self: &Arc<Self>, along: Along, reply: Reply) -> Result<(), Refused> {
        let (member, id) = match self.check_along(&along) {
            Ok(checked) => checked,
            Err(error) => return Err((reply, error)),
        };
        let seal = along.opcode == Opcode::Seal;
        if seal && SessionId(along.header.session).is_append() {
            self.end_records(&member, id);
        }
        let answer: Answer = if seal {
            Box::new(|reply, part| reply.ok(&SealResponse { length: part.length }, ()))
        } else {
            Box::new(|reply, part| {
                reply.ok(&SyncResponse { durable_length: part.durable, members: part.members }, ());
            })
        };
        let join = ChainJoin::new(reply, along.chain.is_empty(), answer);
        let (here, stamp) = (join.clone(), self.stamp(member.disk));
        let (store, runtime) = (member.store.clone(), member.runtime.clone());
        let striped = Some(member.pg.clone()).filter(|_| member.is_striped() && !seal);
        let done: crate::disk::Done<u64> = Box::new(move |outcome| {
            if seal && store.info(id).is_none() {
                runtime.state.lock().note_deleted(id.index, outcome.as_ref().copied().unwrap_or(0));
            }
            let outcome = outcome.map_err(|error| error.to_wire()).and_then(|length| {
                striped.map_or(Ok(()), |pg| Member::check_still_in(&store, &pg))?;
                Ok(Part { length, durable: length, members: vec![stamp] })
            });
            here.here(outcome);
        });
        let begun = if seal { member.store.seal(id, done) } else { member.store.sync(id, done) };
        if let Err(error) = begun {
            // A seal of a chunk that never came here has nothing to forbid.
            let absent = seal
                && matches!(error, crate::disk::DataError::NoChunk { .. } | crate::disk::DataError::Deleted { .. });
            if !absent {
                return match join.cancel() {
                    Some(reply) => Err((reply, error.to_wire())),
                    None => Ok(()),
                };
            }
            join.here(Ok(Part::default()));
        }
        self.pass_along(&member, id, &along, &join);
        Ok(())
    }

    fn check_along(&self, along: &Along) -> Result<(Member, ChunkId), WireError> {
        let (member, id) = self.chunk_member(Some(&along.header), false)?;
        member.check_moving()?;
        if member.is_striped() {
            self.check_striped_along(&member, id, along)?;
            return Ok((member, id));
        }
        fence::check_chain(&member.pg, member.disk, &disks(&along.chain))
            .or_else(|fence| match fence {
                // The primary seals members one by one, and a writer syncs nothing that way.
                fence::Fence::WrongChain { .. } if along.opcode == Opcode::Seal && along.chain.is_empty() => {
                    Ok(fence::Place::Follower)
                }
                other => Err(other),
            })
            .map_err(|fence| self.refuse(fence))?;
        if along.opcode == Opcode::Sync
            && let Some(chunk) = member.store.chunk(id)
        {
            let asked = cairn_types::SessionId(along.header.session);
            fence::check_session(chunk.session(), asked).map_err(|fence| self.refuse(fence))?;
        }
        Ok((member, id))
    }

    /// A sync or seal of a shard, from the writer.
    fn check_striped_along(&self, member: &Member, id: ChunkId, along: &Along) -> Result<(), WireError> {
        striped::check_alone(&member.pg, member.disk, &along.chain).map_err(|fence| self.refuse(fence))?;
        let Some(chunk) = member.store.chunk(id) else { return Ok(()) };
        let asked = cairn_types::SessionId(along.header.session);
        let checked = fence::check_session(chunk.session(), asked);
        let checked = match along.opcode {
            Opcode::Sync => checked.and_then(|()| striped::check_made_now(&member.pg, chunk.creation_epoch())),
            _ => checked,
        };
        checked.map_err(|fence| self.refuse(fence))
    }

    pub(super) fn pass_along(self: &Arc<Self>, member: &Member, id: ChunkId, along: &Along, join: &Arc<ChainJoin>) {
        let Some((&next, rest)) = along.chain.split_first() else { return };
        let next = DiskId(next);
        let address = match self.address(&member.pg, next) {
            Ok(address) => address,
            Err(error) => {
                if along.opcode == Opcode::Seal {
                    self.seal_later(member.disk, id);
                }
                return join.rest(Err(error));
            }
        };
        let header = ChunkHeader { disk: next.get(), ..along.header };
        let deadline = self.hop_deadline(along.chain.len(), self.config.sync_deadline);
        // Behind the appends of the same chunk, on the same connection.
        let kept = self.privacy.protection(member.pg.volume);
        let options = CallOptions::new(deadline).bulk().stream(stream_of(id)).trace(along.trace_id).protected(kept);
        let (inner, pg, join) = (self.clone(), member.pg.clone(), join.clone());
        let peer = self.client.peer(&address);
        if along.opcode == Opcode::Seal {
            let (request, disk) = (SealRequest { chunk: Some(header), chain: rest.to_vec() }, member.disk);
            peer.call_then(along.opcode.code(), &request, Payload::None, options, move |outcome| {
                let outcome = outcome.and_then(|answer| answer.decode::<SealResponse>());
                let outcome = outcome.map_err(|error| hop_error(next, error));
                if outcome.is_err() {
                    inner.seal_later(disk, id);
                }
                join.rest(inner.judge_hop(&pg, outcome.map(|_| Part { durable: u64::MAX, ..Part::default() })));
            });
        } else {
            let request = SyncRequest { chunk: Some(header), chain: rest.to_vec() };
            peer.call_then(along.opcode.code(), &request, Payload::None, options, move |outcome| {
                let outcome = outcome.and_then(|answer| answer.decode::<SyncResponse>());
                let outcome = outcome.map_err(|error| hop_error(next, error));
                let part =
                    |answer: SyncResponse| Part { length: 0, durable: answer.durable_length, members: answer.members };
                join.rest(inner.judge_hop(&pg, outcome.map(part)));
            });
        }
    }

    /// Reports who failed. That a follower lacks the chunk, or its end, is a failure of that follower to the asker.
    pub(super) fn judge_hop(
        &self,
        pg: &cairn_format::pg_state::PgStateRecord,
        outcome: Result<Part, WireError>,
    ) -> Result<Part, WireError> {
        if let Err(error) = &outcome
            && error.code == ErrorCode::ChainFailed
        {
            self.note_hop(pg, error);
        }
        outcome
    }
}
