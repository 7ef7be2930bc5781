//! Appends: checked, accepted here, forwarded while they are written, answered when both this member and everything
//! after it have written.
//!
//! Invariants: nothing is taken whose bytes do not match their checksums; the frame goes on as it came, its chain one
//! shorter; appends of a chunk are accepted and forwarded in the order in which they came.

use std::sync::Arc;

use cairn_chunk_core::append::APPEND_MAX;
use cairn_chunk_core::fence::{self, Place};
use cairn_chunk_core::striped;
use cairn_env::{AlignedBuf, SharedBuf};
use cairn_format::crc_table::decode_crcs;
use cairn_format::journal_record::CreateRecord;
use cairn_rpc::{CallOptions, Payload, PeerInfo, Reply, Request};
use cairn_types::{BLOCK_SIZE, ChunkId, DiskId, Epoch, ErrorCode, Scheme, SessionId, crc32c_blocks};
use cairn_wire::Opcode;
use cairn_wire::data::{AppendRequest, AppendResponse, ChunkHeader};
use cairn_wire::error::WireError;
use cairn_wire::hello::PeerKind;

use super::chain::{ChainJoin, Part, disks};
use super::member::{Member, bad_request};
use super::peer::{hop_error, stream_of};
use super::seal_old::freed_crc;
use super::{Inner, Refused, senders};
use crate::disk::metrics::add;
use crate::disk::{AppendOp, Appended, DataError, Done};

/// An append that passed all checks.
struct Checked {
    member: Member,
    id: ChunkId,
    op: AppendOp,
    payload: SharedBuf,
}

impl Inner {
    pub(super) fn append(self: &Arc<Self>, mut request: Request<'_>, reply: Reply) -> Result<(), Refused> {
        let payload = request.payload.take();
        let peer = request.peer;
        let asked: AppendRequest = match request.decode() {
            Ok(asked) => asked,
            Err(error) => return Err((reply, error)),
        };
        let trace = request.call.trace_id;
        match asked.local {
            Some(local) => self.append_local(asked, local, (peer, payload.is_some()), trace, reply),
            None => self.append_payload(asked, payload, peer, trace, reply),
        }
    }

    pub(super) fn append_payload(
        self: &Arc<Self>,
        asked: AppendRequest,
        payload: Option<AlignedBuf>,
        peer: &PeerInfo,
        trace: u64,
        reply: Reply,
    ) -> Result<(), Refused> {
        let Checked { member, id, op, payload } = match self.check_append(&asked, payload, peer) {
            Ok(checked) => checked,
            Err(error) => return Err((reply, error)),
        };
        if !asked.repair {
            self.pace.clients_moved(payload.len() as u64);
        }
        let join = ChainJoin::new(
            reply,
            asked.chain.is_empty(),
            Box::new(|reply, part| {
                let answer =
                    AppendResponse { length: part.length, durable_length: part.durable, members: part.members };
                reply.ok(&answer, ());
            }),
        );
        let (here, stamp) = (join.clone(), self.stamp(member.disk));
        let striped = member.is_striped().then(|| (member.store.clone(), member.pg.clone()));
        let done: Done<Appended> = Box::new(move |outcome| {
            let outcome = outcome.map_err(|error| error.to_wire()).and_then(|appended| {
                striped.map_or(Ok(()), |(store, pg)| Member::check_still_in(&store, &pg))?;
                Ok(Part { length: appended.length, durable: appended.durable, members: vec![stamp] })
            });
            here.here(outcome);
        });
        if let Err(error) = member.store.append(op, done) {
            let error = absent_is_a_gap(error);
            return match join.cancel() {
                Some(reply) => Err((reply, error)),
                None => Ok(()),
            };
        }
        self.forward((&member, id), asked, payload, &join, trace);
        Ok(())
    }

    fn check_append(
        &self,
        asked: &AppendRequest,
        payload: Option<AlignedBuf>,
        peer: &PeerInfo,
    ) -> Result<Checked, WireError> {
        let (member, id) = self.chunk_member(asked.chunk.as_ref(), false)?;
        member.check_moving()?;
        let session = SessionId(asked.chunk.as_ref().map_or(0, |header| header.session));
        if session.get() == 0 && !asked.repair {
            // Nobody could tell that its writer is gone: it would stay for ever, and count for nobody.
            return Err(bad_request("an append names its session"));
        }
        let creation_epoch = Epoch(asked.creation_epoch);
        if member.is_striped() {
            self.check_striped_writer(&member, asked, creation_epoch)?;
        } else if asked.repair {
            self.check_repair(&member, asked, peer)?;
        } else {
            self.check_writer(&member, asked, creation_epoch, peer)?;
        }
        if let Some(chunk) = member.store.chunk(id) {
            fence::check_session(chunk.session(), session).map_err(|fence| self.refuse(fence))?;
            if chunk.creation_epoch() != creation_epoch {
                return Err(bad_request(format!(
                    "{id} was made in {}, not in {creation_epoch}",
                    chunk.creation_epoch()
                )));
            }
        }
        let payload = payload.ok_or_else(|| bad_request("an append has a payload"))?;
        let crcs = decode_crcs(&asked.crcs).ok_or_else(|| bad_request("the checksums are cut off"))?;
        let row_crcs = decode_crcs(&asked.row_crcs).ok_or_else(|| bad_request("the checksums of rows are cut off"))?;
        let (shard, existing) = (member.shard(), member.store.chunk(id).map(|chunk| chunk.shard()));
        striped::check_shard(&member.pg, id, shard, existing, payload.len(), row_crcs.len())
            .map_err(|refusal| bad_request(refusal.to_string()))?;
        let (payload, bytes) = self.check_payload(&member, id, payload, &crcs, asked.repair)?;
        let scheme = u8::try_from(asked.scheme).ok().and_then(Scheme::from_code).unwrap_or(member.pg.scheme);
        if scheme != member.pg.scheme {
            return Err(bad_request(format!("{} has scheme {}, not {scheme}", member.pg.pg, member.pg.scheme)));
        }
        let may_create = id.index < member.pg.high_water && !member.runtime.state.lock().deleted().contains(id.index);
        let create = CreateRecord { chunk: id, scheme, shard, volume: member.pg.volume, creation_epoch, session };
        let op = AppendOp {
            create,
            may_create,
            offset: asked.offset,
            follows: asked.follows,
            bytes,
            data: payload.clone(),
            crcs,
            row_crcs,
            sync: asked.sync,
            repair: asked.repair,
            as_of: None,
        };
        Ok(Checked { member, id, op, payload: payload.slice(..bytes) })
    }

    /// From a writer, or from the member before this one in the chain.
    fn check_writer(
        &self,
        member: &Member,
        asked: &AppendRequest,
        creation_epoch: Epoch,
        peer: &PeerInfo,
    ) -> Result<(), WireError> {
        let place = fence::check_chain(&member.pg, member.disk, &disks(&asked.chain));
        if place.map_err(|fence| self.refuse(fence))? == Place::Primary {
            fence::check_writable(&member.pg).map_err(|fence| self.refuse(fence))?;
            member.check_entered()?;
        } else {
            senders::check_passed_on(peer, (&member.pg, member.disk), &asked.chain, Opcode::Append)?;
        }
        if creation_epoch != member.pg.epoch {
            let text = format!(
                "chunks made in {creation_epoch} take no more appends, {} is at {}; go on in a new chunk",
                member.pg.pg, member.pg.epoch
            );
            return Err(WireError::new(ErrorCode::ChunkSealed, text));
        }
        Ok(())
    }

    /// From the writer, to a member of an erasure group.
    fn check_striped_writer(
        &self,
        member: &Member,
        asked: &AppendRequest,
        creation_epoch: Epoch,
    ) -> Result<(), WireError> {
        if asked.repair {
            return Err(bad_request("shards are not repaired by others: each member rebuilds its own"));
        }
        striped::check_alone(&member.pg, member.disk, &asked.chain)
            .and_then(|()| fence::check_writable(&member.pg))
            .and_then(|()| striped::check_made_now(&member.pg, creation_epoch))
            .map_err(|fence| self.refuse(fence))?;
        member.check_entered()
    }

    /// From the primary, which brings a chunk of an earlier epoch up.
    fn check_repair(&self, member: &Member, asked: &AppendRequest, peer: &PeerInfo) -> Result<(), WireError> {
        let state = fence::state_of(&member.pg, member.disk).map_err(|fence| self.refuse(fence))?;
        if peer.hello.kind != PeerKind::Server || !asked.chain.is_empty() || !state.receives_writes() {
            return Err(bad_request("only the primary repairs, one member at a time"));
        }
        senders::check_primarys(peer, &member.pg, Opcode::Append)
    }

    /// Fills the payload up to whole blocks and holds each against its checksum. `repairs`: blocks that were freed may
    /// stand in it, as zeros under a checksum that does not match, so that nobody reads them as zeros.
    fn check_payload(
        &self,
        member: &Member,
        id: ChunkId,
        mut payload: AlignedBuf,
        crcs: &[u32],
        repairs: bool,
    ) -> Result<(SharedBuf, usize), WireError> {
        let bytes = payload.len();
        if bytes == 0 || bytes > APPEND_MAX || crcs.len() != bytes.div_ceil(BLOCK_SIZE) {
            return Err(bad_request("an append has 1 byte to 1 MiB, and a checksum a block"));
        }
        payload.pad_to_align();
        let mut found = Vec::new();
        crc32c_blocks(&payload, &mut found);
        let freed = freed_crc();
        let differs = |(found, crc): (&u32, &u32)| found != crc && !(repairs && *crc == freed && *found == !freed);
        if let Some(block) = found.iter().zip(crcs).position(differs) {
            add(&member.store.metrics().receive_crc_errors, 1);
            let text = format!("{id}: block {block} of the append arrived damaged at {}; send it again", member.disk);
            return Err(WireError::new(ErrorCode::ChecksumMismatch, text));
        }
        Ok((payload.freeze(), bytes))
    }

    pub(super) fn forward(
        self: &Arc<Self>,
        (member, id): (&Member, ChunkId),
        asked: AppendRequest,
        payload: SharedBuf,
        join: &Arc<ChainJoin>,
        trace_id: u64,
    ) {
        let Some((&next, rest)) = asked.chain.split_first() else { return };
        let next = DiskId(next);
        let address = match self.address(&member.pg, next) {
            Ok(address) => address,
            Err(error) => return join.rest(Err(error)),
        };
        let base = if asked.sync { self.config.sync_deadline } else { self.config.hop_deadline };
        let deadline = self.hop_deadline(asked.chain.len(), base);
        let header = asked.chunk.map(|header| ChunkHeader { disk: next.get(), ..header });
        let request = AppendRequest { chunk: header, chain: rest.to_vec(), ..asked };
        let kept = self.privacy.protection(member.pg.volume);
        let options = CallOptions::new(deadline).bulk().stream(stream_of(id)).trace(trace_id).protected(kept);
        let (inner, pg, join) = (self.clone(), member.pg.clone(), join.clone());
        let peer = self.client.peer(&address);
        peer.call_then(Opcode::Append.code(), &request, Payload::One(payload), options, move |outcome| {
            let outcome = outcome.and_then(|answer| answer.decode::<AppendResponse>());
            let outcome = outcome.map_err(|error| hop_error(next, error));
            let part =
                |answer: AppendResponse| Part { length: 0, durable: answer.durable_length, members: answer.members };
            join.rest(inner.judge_hop(&pg, outcome.map(part)));
        });
    }
}

/// An append to a chunk that is not here does not continue anything.
fn absent_is_a_gap(error: DataError) -> WireError {
    match error {
        DataError::NoChunk { chunk } => {
            WireError::new(ErrorCode::OffsetMismatch, format!("{chunk} is not here; only an append at 0 begins it"))
        }
        other => other.to_wire(),
    }
}
