//! Reads, lists of chunks, tables.

use std::sync::Arc;

use cairn_chunk_core::fence;
use cairn_env::buf::{AlignedBuf, SharedBuf};
use cairn_format::crc_table::encode_crcs;
use cairn_rpc::{Payload, Reply, Request};
use cairn_types::{ChunkId, Epoch, ErrorCode, PgId, Time, crc32c_blocks};
use cairn_wire::data::{
    ChunkSummary, ChunkTableRequest, ChunkTableResponse, ListChunksRequest, ListChunksResponse, ReadRequest,
    ReadResponse,
};
use cairn_wire::error::WireError;
use cairn_wire::hello::PeerKind;

use super::member::{Member, bad_request};
use super::missing::Found;
use super::{Inner, Refused};
use crate::disk::{BlockData, Chunk, ChunkInfo, DataError, Done, Held, ReadBlocks, ReadPurpose};

/// Longest range of one read.
const READ_MAX: u32 = 4 << 20;
/// Chunks in one page of a list.
const LIST_MAX: usize = 1000;
/// Numbers of runs of blocks in use in one page of a list; a page ends with the chunk that reaches it.
const LIST_RUNS_MAX: usize = 32 << 10;

/// Who names what is asked for. A tenant may name what never was: it is looked for, and is lost only when the check of
/// the volume names it too.
fn named_by(asked: &ReadRequest, kind: PeerKind, is_tenant: bool) -> Found {
    match kind {
        _ if is_tenant => Found::Tenant,
        PeerKind::Server if asked.of_check => Found::Check,
        PeerKind::Server => Found::Job,
        _ => Found::Reader,
    }
}

impl Inner {
    pub(super) fn read(self: &Arc<Self>, request: &Request<'_>, reply: Reply) -> Result<(), Refused> {
        let checked = request.decode().and_then(|asked: ReadRequest| Ok((self.check_read(&asked, request)?, asked)));
        let ((member, id), asked) = match checked {
            Ok(checked) => checked,
            Err(error) => return Err((reply, error)),
        };
        let purpose = match request.peer.hello.kind {
            _ if asked.at_rest => ReadPurpose::AtRest,
            PeerKind::Server => ReadPurpose::Once,
            _ => ReadPurpose::Again,
        };
        let found = named_by(&asked, request.peer.hello.kind, request.peer.limits().is_some());
        if purpose == ReadPurpose::Again {
            self.pace.clients_moved(u64::from(asked.length));
        }
        // The reply is given by whoever ends the read; a refusal at once gives it back.
        let slot = Arc::new(parking_lot::Mutex::new(Some(reply)));
        let (answer, inner, store) = (slot.clone(), self.clone(), member.store.clone());
        let (pg, disk) = (member.pg.pg, member.disk);
        let striped = member.is_striped().then(|| member.clone());
        let creation_epoch = member.store.chunk(id).map_or(0, |chunk| chunk.creation_epoch().get());
        let done: Done<ReadBlocks<BlockData>> = Box::new(move |outcome| {
            let Some(reply) = answer.lock().take() else { return };
            match outcome {
                Ok(blocks) => {
                    let (mut crcs, mut row_crcs) = (Vec::new(), Vec::new());
                    encode_crcs(&blocks.crcs, &mut crcs);
                    if asked.row_crcs {
                        encode_crcs(&blocks.row_crcs, &mut row_crcs);
                    }
                    let first_block_offset = blocks.first_block_offset;
                    let answer = ReadResponse { crcs, first_block_offset, row_crcs, creation_epoch };
                    match asked.sums {
                        true => answer_sums(id, &answer, (&blocks.crcs, &blocks.data), reply),
                        false => reply.ok(&answer, payload(blocks.data, blocks.held)),
                    }
                }
                Err(error) => {
                    match &error {
                        DataError::Unreadable { chunk, .. } => {
                            inner.heal_range(disk, pg, store.clone(), *chunk, asked.offset, asked.length);
                        }
                        DataError::Missing { chunk, .. } => match &striped {
                            Some(asker) => inner.note_missing(asker, *chunk, found),
                            None => inner.note_part(disk, *chunk, found),
                        },
                        _ => {}
                    }
                    reply.err(error.to_wire());
                }
            }
        });
        let key = request.peer.holder.as_ref().map(|holder| holder.name.as_str());
        let reader = Some(self.parts.shares.reader(key, request.peer.site()));
        let range = (asked.offset, u64::from(asked.length));
        if let Err(error) = member.store.read_to_send(id, range, purpose, reader, done)
            && let Some(reply) = slot.lock().take()
        {
            return Err((reply, self.absent(&member, id, error, found)));
        }
        Ok(())
    }

    fn check_read(&self, asked: &ReadRequest, request: &Request<'_>) -> Result<(Member, ChunkId), WireError> {
        // Before everything else: what came with it has been told by now.
        let word = self.check_word();
        let (member, id) = self.chunk_member(asked.chunk.as_ref(), true)?;
        member.check_moving()?;
        // By the newest state that was told, also where the disk has no room for it.
        let pg = member.told.as_ref().unwrap_or(&member.pg);
        let fence = match asked.catching_up && asked.creation_epoch != 0 {
            true => fence::check_last_resort(pg, member.disk),
            false => fence::check_read(pg, member.disk),
        };
        fence.map_err(|fence| self.refuse(fence))?;
        if request.peer.hello.kind != PeerKind::Server {
            // Those that compare read from each other.
            fence::check_compared(pg).map_err(|fence| WireError::new(ErrorCode::Unavailable, fence.to_string()))?;
        }
        if asked.sure && !member.is_striped() {
            word?;
            self.check_compared(&member)?;
        }
        if asked.sums && !asked.at_rest {
            return Err(bad_request("checksums alone are answered of what is at rest"));
        }
        if asked.length == 0 || asked.length > READ_MAX {
            return Err(bad_request(format!("a read has 1 byte to {READ_MAX}")));
        }
        member.check_place(asked.shard)?;
        member.check_shard(id)?;
        if asked.creation_epoch != 0
            && let Some(chunk) = member.store.chunk(id)
            && chunk.creation_epoch() != Epoch(asked.creation_epoch)
        {
            let text = format!("{id} was made in {}, not in e{}", chunk.creation_epoch(), asked.creation_epoch);
            return Err(WireError::new(ErrorCode::ChunkDeleted, text));
        }
        Ok((member, id))
    }

    /// A chunk that is not here: deleted, if that is known, else only not here.
    fn absent(self: &Arc<Self>, member: &Member, id: ChunkId, error: DataError, found: Found) -> WireError {
        if matches!(error, DataError::NoChunk { .. }) {
            self.note_missing(member, id, found);
        }
        let known =
            matches!(error, DataError::NoChunk { .. }) && member.runtime.state.lock().deleted().contains(id.index);
        if known { DataError::Deleted { chunk: id }.to_wire() } else { error.to_wire() }
    }

    pub(super) fn list_chunks(self: &Arc<Self>, request: &Request<'_>, reply: Reply) -> Result<(), Refused> {
        // No epoch of its own: the answer names the member's.
        let checked =
            request.decode().and_then(|asked: ListChunksRequest| Ok((self.member(asked.disk, asked.pg, 0)?, asked)));
        let (member, asked) = match checked {
            Ok(checked) => checked,
            Err(error) => return Err((reply, error)),
        };
        // So that a disk that hangs is seen to hang.
        if let Err(error) = member.check_moving() {
            return Err((reply, error));
        }
        let now = self.clock.now();
        self.on_control(member, reply, move |member, reply| reply.ok(&list_at(member, &asked, now), ()))
    }

    pub(super) fn chunk_table(self: &Arc<Self>, request: &Request<'_>, reply: Reply) -> Result<(), Refused> {
        let checked =
            request.decode().and_then(|asked: ChunkTableRequest| self.chunk_member(asked.chunk.as_ref(), true));
        let (member, id) = match checked {
            Ok(checked) => checked,
            Err(error) => return Err((reply, error)),
        };
        self.on_control(member, reply, move |member, reply| match member.store.tables(id) {
            Ok(tables) => {
                let mut payload = Vec::new();
                encode_crcs(&tables.crcs, &mut payload);
                payload.extend_from_slice(&tables.punched.bytes()[..tables.crcs.len().div_ceil(8)]);
                let summary = Some(summary(&tables.info));
                reply.ok(&ChunkTableResponse { summary }, Payload::One(payload.into()));
            }
            Err(error) => reply.err(error.to_wire()),
        })
    }

    /// Runs the rest of a request on the control thread of its disk.
    pub(super) fn on_control(
        &self,
        member: Member,
        reply: Reply,
        job: impl FnOnce(&Member, Reply) + Send + 'static,
    ) -> Result<(), Refused> {
        let slot = Arc::new(parking_lot::Mutex::new(Some(reply)));
        let (taken, store) = (slot.clone(), member.store.clone());
        let begun = store.control(move |_| {
            if let Some(reply) = taken.lock().take() {
                job(&member, reply);
            }
        });
        match begun {
            Ok(()) => Ok(()),
            Err(error) => match slot.lock().take() {
                Some(reply) => Err((reply, error.to_wire())),
                None => Ok(()),
            },
        }
    }
}

/// The checksums of blocks that match theirs: who asks has no use for the bytes.
fn answer_sums(id: ChunkId, answer: &ReadResponse, (crcs, data): (&[u32], &BlockData), reply: Reply) {
    let BlockData::Memory(data) = data else {
        return reply.err(WireError::new(ErrorCode::Unavailable, format!("{id} was not read from its disk; repeat")));
    };
    let mut found = Vec::with_capacity(crcs.len());
    crc32c_blocks(data, &mut found);
    match found == crcs {
        true => reply.ok(answer, ()),
        false => {
            let text =
                format!("{id}: what the disk has from {} on does not match its checksums", answer.first_block_offset);
            reply.err(WireError::new(ErrorCode::ChecksumMismatch, text));
        }
    }
}

/// Blocks that count as their reader's until they are sent.
struct Counted {
    data: AlignedBuf,
    _held: Held,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

fn payload(data: BlockData, held: Option<Held>) -> Payload {
    match (data, held) {
        (BlockData::Memory(data), Some(held)) => SharedBuf::from_owner(Counted { data, _held: held }).into(),
        (BlockData::Memory(data), None) => data.into(),
        (BlockData::Pipe(pipe), _) => pipe.into(),
    }
}

/// A page of a member's chunks, without what is answered only if it is asked for.
pub(super) fn list(member: &Member, asked: &ListChunksRequest) -> ListChunksResponse {
    list_at(member, &ListChunksRequest { used: false, ..*asked }, Time(0))
}

/// A page of a member's chunks.
fn list_at(member: &Member, asked: &ListChunksRequest, now: Time) -> ListChunksResponse {
    let count = (asked.count_max as usize).clamp(1, LIST_MAX);
    let from = if asked.from_start { Some(0) } else { asked.after_index.checked_add(1) };
    let (mut chunks, mut end, mut at) = (Vec::new(), from.is_none(), from.unwrap_or(u32::MAX));
    let (mut runs, high_water, epoch) = (0, member.pg.high_water, member.pg.epoch.get());
    while !end && chunks.len() < count {
        let page = member.store.list(PgId(asked.pg), at, LIST_MAX);
        end = page.len() < LIST_MAX;
        at = page.last().map_or(at, |last| last.info().id.index.saturating_add(1));
        for chunk in &page {
            if let Err(error) = member.store.know_table(chunk) {
                tracing::debug!(disk = %member.disk, chunk = %chunk.info().id, %error, "a table cannot be read now");
            }
        }
        let wanted = page.into_iter().filter(|chunk| {
            let asked_for = !asked.open_only || !chunk.is_sealed();
            asked_for && !chunk.is_deleted() && (!asked.overwritten_only || chunk.is_overwritten())
        });
        for chunk in wanted {
            if chunks.len() == count {
                end = false;
                break;
            }
            let mut found = summary(&chunk.info());
            if asked.used {
                found.idle_ms = u64::try_from(now.since(chunk.last_append()).as_millis()).unwrap_or(u64::MAX);
                found.used = used(member, &chunk, &found);
                found.held_bytes = member.store.held_bytes(&chunk).unwrap_or(0);
                runs += found.used.len();
            }
            chunks.push(found);
            if runs >= LIST_RUNS_MAX {
                return ListChunksResponse { chunks, end: false, high_water, epoch };
            }
        }
    }
    ListChunksResponse { chunks, end, high_water, epoch }
}

/// Runs of blocks in use of a chunk of which some were freed; none for any other, and where they cannot be read.
fn used(member: &Member, chunk: &Arc<Chunk>, found: &ChunkSummary) -> Vec<u32> {
    if found.punched_blocks == 0 {
        return Vec::new();
    }
    match member.store.used_blocks(chunk) {
        Ok(runs) => runs.into_iter().flat_map(|(first, blocks)| [first, blocks]).collect(),
        Err(error) => {
            tracing::debug!(index = found.index, %error, "the freed blocks of a chunk cannot be listed");
            Vec::new()
        }
    }
}

/// A chunk as others hear of it.
fn summary(info: &ChunkInfo) -> ChunkSummary {
    ChunkSummary {
        index: info.id.index,
        length: info.length,
        durable_length: info.durable,
        sealed: info.sealed,
        creation_epoch: info.creation_epoch.get(),
        session: info.session.get(),
        table_crc: info.table_crc,
        allocated_bytes: info.length.next_multiple_of(4096),
        punched_blocks: u64::from(info.punched_blocks),
        overwrite_epoch: info.overwrite.epoch.get(),
        overwrite_count: info.overwrite.count,
        used: Vec::new(),
        idle_ms: 0,
        held_bytes: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key that may only read would make the cluster say that data is lost; or a real loss not be told.
    #[test]
    fn what_a_tenant_names_is_not_lost_for_that() {
        let asked = |of_check| ReadRequest { of_check, ..ReadRequest::default() };
        assert_eq!(named_by(&asked(false), PeerKind::Client, true), Found::Tenant);
        assert_eq!(named_by(&asked(true), PeerKind::Client, true), Found::Tenant);
        assert_eq!(named_by(&asked(true), PeerKind::Client, false), Found::Reader);
        assert_eq!(named_by(&asked(false), PeerKind::Server, false), Found::Job);
        assert_eq!(named_by(&asked(true), PeerKind::Server, false), Found::Check);
    }
}
