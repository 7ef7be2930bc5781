//! Records that many clients append to the chunk of a file's open append: the primary puts them one behind the other, many of them in one
//! append that goes along the chain like any writer's.
//!
//! What is kept of such a chunk is in memory, and only as long as nothing went wrong: its end, the bytes of its last block, what waits. A
//! primary that was started since, one of a later epoch, and one of which an append failed refuse (`ChunkSealed`); writers then seal the
//! chunk and look into its bytes for what of theirs is there. So nothing about records is on disk but the records.
//!
//! Invariants: a request's frames stand in the chunk whole, next to each other and once, or are refused; a request is answered only when
//! all serving members have its bytes (durably, if that is asked), all under the incarnations of the chunk's first answers, and before a
//! seal of the chunk began here; what is to be published ends with a block. Bounds: [`CHUNKS_MAX`] chunks, [`WAITING_MAX`] bytes that wait for each, [`IN_FLIGHT_MAX`] appends.
//! Not here: what the file gets (meta-core), frames (format), what writers do after a failure (client).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use cairn_chunk_core::append::APPEND_MAX;
use cairn_chunk_core::fence::{self, Fence};
use cairn_env::{AlignedBuf, SharedBuf};
use cairn_format::crc_table::encode_crcs;
use cairn_format::journal_record::CreateRecord;
use cairn_format::record_frame::{Found, record_at};
use cairn_rpc::{Reply, Request};
use cairn_types::{BLOCK_SIZE, CHUNK_SIZE_MAX, ChunkId, DiskId, Epoch, ErrorCode, SessionId, Time, crc32c_blocks};
use cairn_wire::Opcode;
use cairn_wire::data::{AppendRequest, ChunkHeader, RecordAppendRequest, RecordAppendResponse};
use cairn_wire::error::WireError;
use parking_lot::Mutex;

use super::allocate::others;
use super::chain::{Along, ChainJoin, Part};
use super::member::{Member, bad_request};
use super::{Inner, Refused};
use crate::disk::{AppendOp, Appended, Done};

/// Chunks at a time.
const CHUNKS_MAX: usize = 4096;
/// Bytes of records that wait for one chunk.
const WAITING_MAX: usize = 16 << 20;
/// Unanswered appends of one chunk.
const IN_FLIGHT_MAX: usize = 4;
/// Somebody is asked to publish after so long …
const PUBLISH_AFTER: Duration = Duration::from_secs(1);
/// … or so many bytes.
const PUBLISH_BYTES: u64 = 8 << 20;

const BLOCK: u64 = BLOCK_SIZE as u64;
const DURABLE: u32 = 1;
const PUBLISHABLE: u32 = 2;

/// Chunks of open appends of which disks of this node are the primary.
#[derive(Default)]
pub(super) struct RecordChunks(Mutex<BTreeMap<(DiskId, ChunkId), Arc<RecordChunk>>>);

struct RecordChunk {
    member: Member,
    id: ChunkId,
    session: SessionId,
    chain: Vec<u32>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    /// End of what was handed on.
    end: u64,
    /// What the last block has of it.
    tail: Vec<u8>,
    durable: u64,
    in_flight: usize,
    /// Somebody hands on what waits.
    pumping: bool,
    /// It takes no more; what waits still goes.
    full: bool,
    /// Why it takes nothing any more, not even what waits.
    over: Option<WireError>,
    incarnations: BTreeMap<u32, u64>,
    /// When, and at which end, somebody was asked to publish.
    asked: Option<(Time, u64)>,
}

struct Waiting {
    reply: Reply,
    frames: Option<AlignedBuf>,
    level: u32,
}

/// What is handed on together.
struct Batch {
    asked: Vec<Waiting>,
    /// From the beginning of the last block on; empty: only a sync.
    data: AlignedBuf,
    offset: u64,
    end: u64,
    sync: bool,
}

impl Inner {
    pub(super) fn record_append(self: &Arc<Self>, mut request: Request<'_>, reply: Reply) -> Result<(), Refused> {
        let frames = request.payload.take();
        let asked: RecordAppendRequest = match request.decode() {
            Ok(asked) => asked,
            Err(error) => return Err((reply, error)),
        };
        let chunk = match self.check_records(&asked, frames.as_ref()) {
            Ok(chunk) => chunk,
            Err(error) => return Err((reply, error)),
        };
        chunk.put(Waiting { reply, frames, level: asked.level })?;
        self.pump_records(&chunk);
        Ok(())
    }

    fn check_records(
        &self,
        asked: &RecordAppendRequest,
        frames: Option<&AlignedBuf>,
    ) -> Result<Arc<RecordChunk>, WireError> {
        let (member, id) = self.chunk_member(asked.chunk.as_ref(), false)?;
        member.check_moving()?;
        let session = SessionId(asked.chunk.as_ref().map_or(0, |header| header.session));
        if member.is_striped() || !session.is_append() || asked.level > PUBLISHABLE {
            return Err(bad_request("records are appended to chunks of open appends, which are replicated"));
        }
        let first = fence::primary(&member.pg);
        if first != Some(member.disk) {
            return Err(self.refuse(Fence::NotPrimary { pg: member.pg.pg, disk: member.disk, primary: first }));
        }
        fence::check_writable(&member.pg).map_err(|fence| self.refuse(fence))?;
        member.check_entered()?;
        if Epoch(asked.creation_epoch) != member.pg.epoch {
            return Err(over(id, "it was made in another epoch"));
        }
        check_frames(frames.map_or(&[], |frames| frames))?;
        self.record_chunk(member, id, session)
    }

    fn record_chunk(&self, member: Member, id: ChunkId, session: SessionId) -> Result<Arc<RecordChunk>, WireError> {
        let mut chunks = self.records.0.lock();
        if let Some(chunk) = chunks.get(&(member.disk, id)).filter(|chunk| chunk.member.pg.epoch == member.pg.epoch) {
            fence::check_session(chunk.session, session).map_err(|fence| self.refuse(fence))?;
            return Ok(chunk.clone());
        }
        let was_deleted = member.runtime.state.lock().was_deleted(id.index);
        if member.store.chunk(id).is_some() || was_deleted || id.index >= member.pg.high_water {
            return Err(over(id, "its primary does not know its end"));
        }
        if chunks.len() >= CHUNKS_MAX {
            chunks.retain(|_, chunk| !self.is_over(chunk));
        }
        if chunks.len() >= CHUNKS_MAX {
            let text = format!("{} has {CHUNKS_MAX} open appends and takes no more; repeat later", member.disk);
            return Err(WireError::new(ErrorCode::Overloaded, text));
        }
        let chain = others(&member.pg, member.disk).into_iter().map(DiskId::get).collect();
        let chunk = Arc::new(RecordChunk { member, id, session, chain, state: Mutex::default() });
        chunks.insert((chunk.member.disk, id), chunk.clone());
        Ok(chunk)
    }

    /// The chunk is about to be sealed here: nothing that all members do not have by now is acknowledged any more, so the seal's length
    /// has all that was. One that is not there is not made any more.
    pub(super) fn end_records(&self, member: &Member, id: ChunkId) {
        if member.store.chunk(id).is_none() {
            member.runtime.state.lock().note_deleted(id.index);
        }
        let chunk = self.records.0.lock().get(&(member.disk, id)).cloned();
        if let Some(chunk) = chunk {
            let waiting = {
                let mut state = chunk.state.lock();
                state.over.get_or_insert_with(|| over(id, "it is sealed"));
                state.take_waiting()
            };
            waiting.into_iter().for_each(|waiting| waiting.reply.err(over(id, "it is sealed")));
        }
    }

    fn is_over(&self, chunk: &RecordChunk) -> bool {
        let known = chunk.member.store.chunk(chunk.id);
        let sealed = known.is_some_and(|known| known.is_sealed());
        sealed || chunk.state.lock().over.is_some() || !self.is_current(&chunk.member)
    }

    /// Hands on what waits, one caller at a time.
    fn pump_records(self: &Arc<Self>, chunk: &Arc<RecordChunk>) {
        if std::mem::replace(&mut chunk.state.lock().pumping, true) {
            return;
        }
        loop {
            let mut state = chunk.state.lock();
            let Some(batch) = state.next_batch() else {
                state.pumping = false;
                return;
            };
            drop(state);
            self.send_batch(chunk, batch);
        }
    }

    fn send_batch(self: &Arc<Self>, chunk: &Arc<RecordChunk>, batch: Batch) {
        let Batch { asked, mut data, offset, end, sync } = batch;
        let (inner, here) = (self.clone(), chunk.clone());
        let join = ChainJoin::own(chunk.chain.is_empty(), move |outcome| inner.batch_done(&here, asked, end, outcome));
        let (member, id) = (&chunk.member, chunk.id);
        let (own, stamp) = (join.clone(), self.stamp(member.disk));
        let part = move |length, durable| Part { length, durable, members: vec![stamp] };
        let header = ChunkHeader {
            disk: member.disk.get(),
            pg: id.pg.get(),
            index: id.index,
            epoch: member.pg.epoch.get(),
            session: chunk.session.0,
        };
        if data.is_empty() {
            let done: Done<u64> = Box::new(move |outcome| {
                own.here(outcome.map(|length| part(length, length)).map_err(|error| error.to_wire()));
            });
            if let Err(error) = member.store.sync(id, done) {
                return join.here(Err(error.to_wire()));
            }
            let along = Along { opcode: Opcode::Sync, header, chain: chunk.chain.clone(), trace_id: 0 };
            return self.pass_along(member, id, &along, &join);
        }
        let bytes = data.len();
        data.pad_to_align();
        let (mut crcs, mut encoded) = (Vec::new(), Vec::new());
        crc32c_blocks(&data, &mut crcs);
        encode_crcs(&crcs, &mut encoded);
        let (payload, creation_epoch): (SharedBuf, Epoch) = (data.freeze(), member.pg.epoch);
        let create = CreateRecord {
            chunk: id,
            scheme: member.pg.scheme,
            shard: member.shard(),
            volume: member.pg.volume,
            creation_epoch,
            session: chunk.session,
        };
        let op = AppendOp {
            create,
            may_create: true,
            offset,
            bytes,
            data: payload.clone(),
            crcs,
            row_crcs: Vec::new(),
            sync,
            repair: false,
        };
        self.pace.clients_moved(bytes as u64);
        let done: Done<Appended> = Box::new(move |outcome| {
            own.here(outcome.map(|done| part(done.length, done.durable)).map_err(|error| error.to_wire()));
        });
        if let Err(error) = member.store.append(op, done) {
            return join.here(Err(error.to_wire()));
        }
        let asked = AppendRequest {
            chunk: Some(header),
            creation_epoch: creation_epoch.get(),
            offset,
            crcs: encoded,
            chain: chunk.chain.clone(),
            sync,
            scheme: u32::from(member.pg.scheme.code()),
            repair: false,
            row_crcs: Vec::new(),
        };
        self.forward((member, id), asked, payload.slice(..bytes), &join, 0);
    }

    /// All members have a batch, or one failed: then the chunk takes no more.
    fn batch_done(
        self: &Arc<Self>,
        chunk: &Arc<RecordChunk>,
        asked: Vec<Waiting>,
        end: u64,
        outcome: Result<Part, WireError>,
    ) {
        let now = self.clock.now();
        let mut state = chunk.state.lock();
        state.in_flight -= 1;
        let outcome = match (&state.over, outcome) {
            // It may have been sealed with less than this meanwhile.
            (Some(error), Ok(_)) => Err(error.clone()),
            (_, Ok(part)) => state.judge(chunk, &part).map(|()| part),
            // Whoever hears this of something that was begun must not take it for undone.
            (_, Err(error)) if error.code != ErrorCode::ChainFailed => {
                Err(over(chunk.id, &format!("an append to it failed ({error})")))
            }
            (_, Err(error)) => Err(error),
        };
        let (durable, refused) = match &outcome {
            Ok(part) => {
                state.durable = state.durable.max(part.durable);
                (state.durable, Vec::new())
            }
            Err(error) => {
                state.over.get_or_insert_with(|| over(chunk.id, &format!("an append to it failed ({error})")));
                (0, state.take_waiting())
            }
        };
        let mut publish = outcome.is_ok() && state.is_publishing_due(&asked, end, now);
        drop(state);
        for waiting in asked {
            match &outcome {
                Ok(_) => {
                    let publish = std::mem::take(&mut publish);
                    waiting.reply.ok(&RecordAppendResponse { end, durable, publish }, ());
                }
                Err(error) => waiting.reply.err(error.clone()),
            }
        }
        refused.into_iter().for_each(|waiting| waiting.reply.err(over(chunk.id, "an append before this one failed")));
        self.pump_records(chunk);
    }
}

impl RecordChunk {
    fn put(&self, waiting: Waiting) -> Result<(), Refused> {
        let bytes = waiting.frames.as_ref().map_or(0, |frames| frames.len());
        let mut state = self.state.lock();
        if let Some(error) = &state.over {
            return Err((waiting.reply, error.clone()));
        }
        if state.end + (state.waiting_bytes + bytes) as u64 + 2 * BLOCK > CHUNK_SIZE_MAX {
            state.full = true;
        }
        if state.full {
            return Err((waiting.reply, over(self.id, "it is full")));
        }
        if bytes == 0 && state.end == 0 && state.waiting.is_empty() {
            return Err((waiting.reply, bad_request("there are no records that could be made durable")));
        }
        if state.waiting_bytes + bytes > WAITING_MAX {
            let text = format!("{WAITING_MAX} bytes of records wait for {} already; repeat in a moment", self.id);
            return Err((waiting.reply, WireError::new(ErrorCode::Overloaded, text)));
        }
        state.waiting_bytes += bytes;
        state.waiting.push_back(waiting);
        Ok(())
    }
}

impl State {
    /// What waits and fits into one append.
    fn next_batch(&mut self) -> Option<Batch> {
        if self.over.is_some() || self.in_flight >= IN_FLIGHT_MAX || self.waiting.is_empty() {
            return None;
        }
        let (mut asked, mut bytes) = (Vec::new(), self.tail.len());
        let (mut sync, mut pad) = (false, false);
        while let Some(next) = self.waiting.front() {
            let more = next.frames.as_ref().map_or(0, |frames| frames.len());
            if bytes + more > APPEND_MAX {
                break;
            }
            bytes += more;
            sync |= next.level >= DURABLE;
            pad |= next.level == PUBLISHABLE;
            asked.extend(self.waiting.pop_front());
        }
        self.waiting_bytes -= bytes - self.tail.len();
        self.in_flight += 1;
        let offset = self.end - self.tail.len() as u64;
        if bytes == self.tail.len() && (!pad || self.tail.is_empty()) {
            return Some(Batch { asked, data: AlignedBuf::unpooled(0), offset, end: self.end, sync: true });
        }
        let mut data = AlignedBuf::unpooled(bytes.next_multiple_of(BLOCK_SIZE));
        data.extend_from_slice(&self.tail);
        asked.iter().filter_map(|waiting| waiting.frames.as_deref()).for_each(|frames| data.extend_from_slice(frames));
        for waiting in &mut asked {
            waiting.frames = None;
        }
        if pad {
            data.pad_to_align();
            data.resize(bytes.next_multiple_of(BLOCK_SIZE));
        }
        self.end = offset + data.len() as u64;
        self.tail = data[data.len() - data.len() % BLOCK_SIZE..].to_vec();
        Some(Batch { asked, data, offset, end: self.end, sync })
    }

    /// Whether all serving members answered, as the processes that they were.
    fn judge(&mut self, chunk: &RecordChunk, part: &Part) -> Result<(), WireError> {
        for stamp in &part.members {
            if *self.incarnations.entry(stamp.disk).or_insert(stamp.incarnation) != stamp.incarnation {
                return Err(over(chunk.id, &format!("disk d{} was restarted", stamp.disk)));
            }
        }
        match fence::serving(&chunk.member.pg).find(|disk| !part.members.iter().any(|s| s.disk == disk.get())) {
            Some(disk) => Err(over(chunk.id, &format!("{disk} serves but did not answer"))),
            None => Ok(()),
        }
    }

    fn is_publishing_due(&mut self, asked: &[Waiting], end: u64, now: Time) -> bool {
        let by_itself = asked.iter().any(|waiting| waiting.level == PUBLISHABLE);
        let (at, from) = *self.asked.get_or_insert((now, 0));
        let due = now.since(at) >= PUBLISH_AFTER || end.saturating_sub(from) >= PUBLISH_BYTES;
        if by_itself || due {
            self.asked = Some((now, end));
        }
        due && !by_itself
    }

    fn take_waiting(&mut self) -> Vec<Waiting> {
        self.waiting_bytes = 0;
        self.waiting.drain(..).collect()
    }
}

/// Nothing but whole frames: what follows them in the chunk is found by their lengths.
fn check_frames(mut frames: &[u8]) -> Result<(), WireError> {
    if frames.len() > APPEND_MAX - BLOCK_SIZE {
        return Err(bad_request("records of one request have less than 1 MiB"));
    }
    while !frames.is_empty() {
        let Found::Record(frame, _) = record_at(frames) else {
            return Err(WireError::new(ErrorCode::ChecksumMismatch, "a record arrived damaged; send it again"));
        };
        frames = &frames[frame.framed_len()..];
    }
    Ok(())
}

fn over(id: ChunkId, why: &str) -> WireError {
    WireError::new(
        ErrorCode::ChunkSealed,
        format!("{id} takes no more records: {why}; seal it and go on in another one"),
    )
}
