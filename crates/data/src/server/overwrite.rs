//! Overwrites in place: the primary gives each the next number of its chunk, journals it, and sends it along the chain
//! at the same time; the client is answered when every member has it in its journal.
//!
//! Invariants: overwrites of a chunk are accepted and passed on in the order of their numbers; a request that is
//! repeated is not done again; when a member did not take one, nothing more is taken for that chunk before the members
//! are equal ([`super::settle`]). Not here: the journal ([`crate::disk`]), what may be overwritten
//! ([`cairn_chunk_core::overwrite`]).

use std::sync::Arc;
use std::time::Duration;

use cairn_chunk_core::fence::{self, Place};
use cairn_chunk_core::overwrite::{OVERWRITE_BLOCKS_MAX, OVERWRITE_VECTORS_MAX};
use cairn_env::{AlignedBuf, SharedBuf};
use cairn_format::crc_table::decode_crcs;
use cairn_format::overwrite_number::OverwriteNumber;
use cairn_rpc::{CallError, CallOptions, Payload, PeerInfo, Reply, Request};
use cairn_types::{BLOCK_SIZE, ChunkId, DiskId, Epoch, ErrorCode, MemberState, SessionId, crc32c_blocks};
use cairn_wire::Opcode;
use cairn_wire::data::{ChunkHeader, MemberStamp, OverwriteRequest, OverwriteResponse};
use cairn_wire::error::WireError;
use cairn_wire::hello::PeerKind;
use parking_lot::Mutex;

use super::chain::disks;
use super::member::{Member, bad_request};
use super::overwrite_memory::{Asked, Begin, RequestId};
use super::peer::{hop_error, stream_of};
use super::{Inner, Refused, senders};
use crate::disk::metrics::add;
use crate::disk::{DataError, Done, OverwriteOp, OverwriteOrder, OverwriteRun};

/// So long nothing is taken after a member had too much to write home.
const SATURATED_FOR: Duration = Duration::from_millis(300);

type Stamps = Result<Vec<MemberStamp>, WireError>;
type Then = Box<dyn FnOnce(Stamps, Stamps) + Send>;

/// An overwrite that passed all checks but those of the disk.
struct Checked {
    member: Member,
    id: ChunkId,
    place: Place,
    runs: Vec<OverwriteRun>,
    payload: SharedBuf,
}

/// Waits for this member and for the rest of the chain; then says what came of it, once.
struct Join {
    state: Mutex<(Option<Stamps>, Option<Stamps>)>,
    then: Mutex<Option<Then>>,
}

impl Join {
    fn new(alone: bool, then: impl FnOnce(Stamps, Stamps) + Send + 'static) -> Arc<Self> {
        let rest = alone.then(|| Ok(Vec::new()));
        Arc::new(Self { state: Mutex::new((None, rest)), then: Mutex::new(Some(Box::new(then))) })
    }

    fn here(&self, outcome: Stamps) {
        self.settle(|state| state.0 = Some(outcome));
    }

    fn rest(&self, outcome: Stamps) {
        self.settle(|state| state.1 = Some(outcome));
    }

    fn settle(&self, put: impl FnOnce(&mut (Option<Stamps>, Option<Stamps>))) {
        let outcomes = {
            let mut state = self.state.lock();
            put(&mut state);
            if state.0.is_none() || state.1.is_none() {
                return;
            }
            state.0.take().zip(state.1.take())
        };
        let then = self.then.lock().take();
        if let (Some((here, rest)), Some(then)) = (outcomes, then) {
            then(here, rest);
        }
    }
}

impl Inner {
    pub(super) fn overwrite(self: &Arc<Self>, mut request: Request<'_>, reply: Reply) -> Result<(), Refused> {
        let payload = request.payload.take();
        let peer = request.peer;
        let checked = request.decode().and_then(|asked: OverwriteRequest| {
            let checked = self.check_overwrite(&asked, payload, peer)?;
            Ok((asked, checked))
        });
        let (asked, checked) = match checked {
            Ok(checked) => checked,
            Err(error) => return Err((reply, error)),
        };
        match (asked.settle, checked.place) {
            (true, _) => self.take_settled(&asked, checked, reply),
            (false, Place::Primary) => self.lead_overwrite(asked, checked, reply, request.call.trace_id),
            (false, Place::Follower) => self.follow_overwrite(asked, checked, reply, request.call.trace_id),
        }
    }

    fn check_overwrite(
        &self,
        asked: &OverwriteRequest,
        payload: Option<AlignedBuf>,
        peer: &PeerInfo,
    ) -> Result<Checked, WireError> {
        let (member, id) = self.chunk_member(asked.chunk.as_ref(), false)?;
        if member.is_striped() {
            let text = format!("{} holds shards, which are not overwritten in place; write to new space", member.pg.pg);
            return Err(WireError::new(ErrorCode::NotInPlace, text));
        }
        let place = match asked.settle {
            true if peer.hello.kind == PeerKind::Server && asked.chain.is_empty() => Place::Follower,
            true => return Err(bad_request("only the primary makes members equal, one at a time")),
            false => fence::check_chain(&member.pg, member.disk, &disks(&asked.chain)).map_err(|f| self.refuse(f))?,
        };
        let state = fence::state_of(&member.pg, member.disk).map_err(|fence| self.refuse(fence))?;
        if !state.receives_writes() {
            let (pg, disk) = (member.pg.pg, member.disk);
            return Err(self.refuse(fence::Fence::NotServing { pg, disk, state }));
        }
        match place {
            Place::Primary => senders::check_overwrites(peer)?,
            Place::Follower if asked.settle => senders::check_primarys(peer, &member.pg, Opcode::Overwrite)?,
            // One without a number was meant for the primary, by who does not know the present one.
            Place::Follower if asked.number.is_some() => {
                senders::check_passed_on(peer, (&member.pg, member.disk), &asked.chain, Opcode::Overwrite)?;
            }
            Place::Follower => {}
        }
        if let Some(chunk) = member.store.chunk(id)
            && asked.creation_epoch != 0
            && chunk.creation_epoch() != Epoch(asked.creation_epoch)
        {
            let text = format!("{id} was made in {}, not in e{}", chunk.creation_epoch(), asked.creation_epoch);
            return Err(WireError::new(ErrorCode::ChunkDeleted, text));
        }
        let payload = payload.unwrap_or_else(|| AlignedBuf::unpooled(0));
        let (runs, payload) = self.check_vectors(&member, id, asked, payload)?;
        Ok(Checked { member, id, place, runs, payload })
    }

    /// Cuts the payload into runs and holds each block against its checksum.
    fn check_vectors(
        &self,
        member: &Member,
        id: ChunkId,
        asked: &OverwriteRequest,
        payload: AlignedBuf,
    ) -> Result<(Vec<OverwriteRun>, SharedBuf), WireError> {
        let crcs = decode_crcs(&asked.crcs).ok_or_else(|| bad_request("the checksums are cut off"))?;
        let blocks = asked.vectors.iter().map(|vector| u64::from(vector.blocks)).sum::<u64>();
        let fits = blocks == crcs.len() as u64
            && blocks <= u64::from(OVERWRITE_BLOCKS_MAX)
            && payload.len() == crcs.len() * BLOCK_SIZE
            && asked.vectors.len() <= OVERWRITE_VECTORS_MAX;
        if !fits || blocks == 0 && !asked.settle {
            return Err(bad_request("an overwrite has 1 to 256 whole blocks, and a checksum a block"));
        }
        let mut found = Vec::new();
        crc32c_blocks(&payload, &mut found);
        if found != crcs {
            add(&member.store.metrics().receive_crc_errors, 1);
            let text = format!("{id}: a block of the overwrite arrived damaged at {}; send it again", member.disk);
            return Err(WireError::new(ErrorCode::ChecksumMismatch, text));
        }
        let payload = payload.freeze();
        let (mut runs, mut at) = (Vec::with_capacity(asked.vectors.len()), 0);
        for vector in &asked.vectors {
            let end = at + vector.blocks as usize;
            let data = payload.slice(at * BLOCK_SIZE..end * BLOCK_SIZE);
            runs.push(OverwriteRun { block: vector.block, data, crcs: crcs[at..end].to_vec() });
            at = end;
        }
        Ok((runs, payload))
    }

    /// From a client, to the primary.
    fn lead_overwrite(
        self: &Arc<Self>,
        asked: OverwriteRequest,
        checked: Checked,
        reply: Reply,
        trace_id: u64,
    ) -> Result<(), Refused> {
        let Checked { member, id, runs, payload, .. } = checked;
        let session = SessionId(asked.chunk.as_ref().map_or(0, |header| header.session));
        let request: RequestId = (session, asked.request);
        let writable = fence::check_writable(&member.pg).map_err(|fence| self.refuse(fence));
        let named = if session.get() == 0 || asked.request == 0 {
            Err(bad_request("an overwrite names its session and a number of its own"))
        } else {
            Ok(())
        };
        if let Err(error) = writable.and_then(|()| member.check_entered()).and(named) {
            return Err((reply, error));
        }
        // Numbers are given and passed on in one order.
        let order = member.runtime.overwrite_order.lock();
        let reply = {
            let mut memory = member.runtime.overwrites.lock();
            let Some(memory) = memory.at(member.pg.epoch) else {
                return Err((reply, WireError::new(ErrorCode::Overloaded, "the epoch changes; repeat in a moment")));
            };
            let lease = (asked.inode, asked.lease);
            let about = Asked { id: request, floor: asked.floor, index: id.index, lease };
            match memory.begin(about, self.clock.now(), reply) {
                Begin::Go(reply) => reply,
                Begin::Taken => return Ok(()),
                Begin::No(reply, error) => return Err((reply, error)),
            }
        };
        let slot = Arc::new(Mutex::new(Some(reply)));
        let (inner, of, taken) = (self.clone(), member.clone(), slot.clone());
        let join = Join::new(asked.chain.is_empty(), move |here, rest| {
            inner.end_overwrite(&of, id, request, here, rest, taken.lock().take());
        });
        let (here, stamp) = (join.clone(), self.stamp(member.disk));
        let done: Done<OverwriteNumber> =
            Box::new(move |outcome| here.here(outcome.map(|_| vec![stamp]).map_err(|error| not_done(&error))));
        let op = OverwriteOp { chunk: id, epoch: member.pg.epoch, order: OverwriteOrder::Next, runs };
        match member.store.overwrite(op, done) {
            Ok((previous, number)) => {
                let (previous, number) = (Some(wire(previous)), Some(wire(number)));
                self.pass_on(&member, id, OverwriteRequest { previous, number, ..asked }, payload, &join, trace_id);
                drop(order);
                Ok(())
            }
            Err(error) => {
                drop(order);
                let error = error.to_wire();
                let mut memory = member.runtime.overwrites.lock();
                let waiting = memory.at(member.pg.epoch).map(|memory| memory.end(request, id.index, None));
                drop(memory);
                waiting.into_iter().flatten().for_each(|reply| reply.err(error.clone()));
                let reply = slot.lock().take();
                reply.map_or(Ok(()), |reply| Err((reply, error)))
            }
        }
    }

    /// This member and the rest of the chain are done.
    fn end_overwrite(
        self: &Arc<Self>,
        member: &Member,
        id: ChunkId,
        request: RequestId,
        here: Stamps,
        rest: Stamps,
        reply: Option<Reply>,
    ) {
        let outcome = here.and_then(|mut members| {
            members.extend(rest?);
            Ok(OverwriteResponse { members, number: None })
        });
        if outcome.is_err() {
            // Before it has ended, so that none begins in between.
            self.unsettle(member, id.index);
        }
        let waiting = {
            let mut memory = member.runtime.overwrites.lock();
            // In a later epoch the members are made equal anyway.
            memory.at(member.pg.epoch).map_or_else(Vec::new, |memory| {
                if outcome.as_ref().is_err_and(|error| error.code == ErrorCode::NotInPlace) {
                    memory.saturated_until = self.clock.now() + SATURATED_FOR;
                }
                memory.end(request, id.index, outcome.as_ref().ok().cloned())
            })
        };
        for reply in waiting.into_iter().chain(reply) {
            match &outcome {
                Ok(answer) => reply.ok(answer, ()),
                Err(error) => reply.err(error.clone()),
            }
        }
    }

    /// From the member before this one in the chain.
    fn follow_overwrite(
        self: &Arc<Self>,
        asked: OverwriteRequest,
        checked: Checked,
        reply: Reply,
        trace_id: u64,
    ) -> Result<(), Refused> {
        let Checked { member, id, runs, payload, .. } = checked;
        let (Some(previous), Some(number)) = (asked.previous.map(number_of), asked.number.map(number_of)) else {
            let text = "an overwrite without a number goes to the primary; refresh the cluster map";
            return Err((reply, WireError::new(ErrorCode::NotPrimary, text).in_epoch(member.pg.epoch)));
        };
        let serving = fence::state_of(&member.pg, member.disk) == Ok(MemberState::Serving);
        let join = Join::new(asked.chain.is_empty(), move |here, rest| {
            let outcome = here.and_then(|mut members| {
                members.extend(rest?);
                Ok(OverwriteResponse { members, number: None })
            });
            reply.result(outcome);
        });
        let (here, stamp) = (join.clone(), self.stamp(member.disk));
        let done: Done<OverwriteNumber> =
            Box::new(move |outcome| here.here(outcome.map(|_| vec![stamp]).map_err(|error| error.to_wire())));
        let order = if serving {
            OverwriteOrder::After { previous, number }
        } else {
            OverwriteOrder::Follow { previous, number }
        };
        let op = OverwriteOp { chunk: id, epoch: member.pg.epoch, order, runs };
        match member.store.overwrite(op, done) {
            Ok(_) => {}
            Err(DataError::NoChunk { .. } | DataError::Deleted { .. }) if !serving => {
                // It comes with the copy, which has to be at least so new.
                self.note_skipped(&member, id, number);
                join.here(Ok(vec![self.stamp(member.disk)]));
            }
            Err(error) => {
                // Not passed on: members behind this one would only be further ahead of it.
                join.here(Err(error.to_wire()));
                join.rest(Ok(Vec::new()));
                return Ok(());
            }
        }
        self.pass_on(&member, id, asked, payload, &join, trace_id);
        Ok(())
    }

    fn note_skipped(&self, member: &Member, id: ChunkId, number: OverwriteNumber) {
        let mut memory = member.runtime.overwrites.lock();
        if let Some(memory) = memory.at(member.pg.epoch) {
            memory.skipped.insert(id.index, number);
        }
    }

    /// From the primary, which makes this member's chunk as its own.
    fn take_settled(self: &Arc<Self>, asked: &OverwriteRequest, checked: Checked, reply: Reply) -> Result<(), Refused> {
        let Checked { member, id, runs, .. } = checked;
        let Some(number) = asked.number.map(number_of) else {
            return Err((reply, bad_request("members are made equal under a number")));
        };
        let serving = fence::state_of(&member.pg, member.disk) == Ok(MemberState::Serving);
        let order = OverwriteOrder::Settle { number, serving };
        let op = OverwriteOp { chunk: id, epoch: member.pg.epoch, order, runs };
        let slot = Arc::new(Mutex::new(Some(reply)));
        let (taken, stamp) = (slot.clone(), self.stamp(member.disk));
        let done: Done<OverwriteNumber> = Box::new(move |outcome| {
            if let Some(reply) = taken.lock().take() {
                let answer = |_| OverwriteResponse { members: vec![stamp], number: Some(wire(number)) };
                reply.result(outcome.map(answer).map_err(|error| error.to_wire()));
            }
        });
        match member.store.overwrite(op, done) {
            Ok(_) => Ok(()),
            Err(error) => slot.lock().take().map_or(Ok(()), |reply| Err((reply, error.to_wire()))),
        }
    }

    fn pass_on(
        self: &Arc<Self>,
        member: &Member,
        id: ChunkId,
        asked: OverwriteRequest,
        payload: SharedBuf,
        join: &Arc<Join>,
        trace_id: u64,
    ) {
        let Some((&next, rest)) = asked.chain.split_first() else { return };
        let next = DiskId(next);
        let address = match self.address(&member.pg, next) {
            Ok(address) => address,
            Err(error) => return join.rest(Err(error)),
        };
        let deadline = self.hop_deadline(asked.chain.len(), self.config.overwrite_deadline);
        let header = asked.chunk.map(|header| ChunkHeader { disk: next.get(), ..header });
        let request = OverwriteRequest { chunk: header, chain: rest.to_vec(), ..asked };
        let kept = self.privacy.protection(member.pg.volume);
        let options = CallOptions::new(deadline).bulk().stream(stream_of(id)).trace(trace_id).protected(kept);
        let (inner, pg, join) = (self.clone(), member.pg.clone(), join.clone());
        let peer = self.client.peer(&address);
        peer.call_then(Opcode::Overwrite.code(), &request, Payload::One(payload), options, move |outcome| {
            let outcome = outcome.and_then(|answer| answer.decode::<OverwriteResponse>());
            let outcome = outcome.map(|answer| answer.members).map_err(|error| not_taken(next, error));
            if let Err(error) = &outcome
                && error.code == ErrorCode::ChainFailed
            {
                inner.note_hop(&pg, error);
            }
            join.rest(outcome);
        });
    }
}

/// What it means to the client that the primary did not do it. Where an earlier one failed, the members are made equal
/// first.
fn not_done(error: &DataError) -> WireError {
    match error.code() {
        ErrorCode::OffsetMismatch => {
            let text = format!("{error}; the members are being made equal, repeat in a moment");
            WireError::new(ErrorCode::Overloaded, text)
        }
        _ => error.to_wire(),
    }
}

/// What it means to the one before that a member did not take an overwrite. What only shows that members differ, or
/// lack the chunk, is no fault of that member now.
fn not_taken(disk: DiskId, error: CallError) -> WireError {
    match &error {
        CallError::Remote(remote) if remote.code == ErrorCode::OffsetMismatch => {
            let text = format!("{disk} has not got the overwrite before this one; it is brought up to the others");
            WireError::new(ErrorCode::Overloaded, text)
        }
        CallError::Remote(remote) if remote.code == ErrorCode::NotInPlace => {
            WireError::new(ErrorCode::NotInPlace, format!("{disk}: {}", remote.message))
        }
        _ => hop_error(disk, error),
    }
}

/// A number as it crosses the wire.
pub(super) fn wire(number: OverwriteNumber) -> cairn_wire::data::OverwriteNumber {
    cairn_wire::data::OverwriteNumber { epoch: number.epoch.get(), count: number.count }
}

fn number_of(wire: cairn_wire::data::OverwriteNumber) -> OverwriteNumber {
    OverwriteNumber { epoch: Epoch(wire.epoch), count: wire.count }
}
