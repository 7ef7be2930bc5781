//! Records that many clients append to the chunk of a file's open append: the primary puts them one behind the other,
//! many of them in one append that goes along the chain like any writer's.
//!
//! What is kept of such a chunk is in memory, and only as long as nothing went wrong: its end, the bytes of its last
//! block, what waits. A primary that was started since, one of a later epoch, and one of which an append failed refuse
//! (`ChunkSealed`); writers then seal the chunk and look into its bytes for what of theirs is there. So nothing about
//! records is on disk but the records.
//!
//! Invariants: a request's frames stand in the chunk whole, next to each other and once, or are refused; a request is
//! answered only when all serving members have its bytes (durably, if that is asked), all under the incarnations of the
//! chunk's first answers, and before a seal of the chunk began here; what is to be published ends with a block. Bounds:
//! [`CHUNKS_MAX`] chunks, and of one volume no more than are left for others; those of one chunk are in `state`, those
//! of long records in `parts`. Here: requests and their checks, and which chunks there are. How many write: `writers`.
//! What waits for a chunk: `state`; handing it on:
//! `send`; who publishes and who opens the next chunk: `turns`; records of several payloads: `parts`. Not here: what
//! the file gets (meta-core), frames (format), what writers do after a failure (client).

mod parts;
mod send;
mod state;
mod turns;
mod writers;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cairn_chunk_core::append::APPEND_MAX;
use cairn_chunk_core::fence::{self, Fence};
use cairn_env::AlignedBuf;
use cairn_format::record_frame::{Found, record_at};
use cairn_rpc::{Reply, Request};
use cairn_types::{BLOCK_SIZE, ChunkId, DiskId, Epoch, ErrorCode, SessionId, Time, VolumeId};
use cairn_wire::data::{RecordAppendRequest, RecordAppendResponse};
use cairn_wire::error::WireError;
use parking_lot::Mutex;

use super::allocate::others;
use super::member::{Member, bad_request};
use super::{Inner, Refused};
use state::{Frames, State, Waiting};

/// Chunks at a time; of one volume half at most.
const CHUNKS_MAX: usize = 8192;
/// A chunk of which nothing was written for so long gives way.
const UNUSED_MAX: Duration = Duration::from_secs(5);
/// Whose turn it is, and who waits for too long, is looked at so often.
const TICK: Duration = Duration::from_millis(500);

const DURABLE: u32 = 1;
const PUBLISHABLE: u32 = 2;

/// What is answered, outside of locks.
type Answers = Vec<(Reply, Result<RecordAppendResponse, WireError>)>;

/// Chunks of open appends of which disks of this node are the primary, and long records that are on their way.
#[derive(Default)]
pub(super) struct RecordChunks {
    chunks: Mutex<BTreeMap<(DiskId, ChunkId), Arc<RecordChunk>>>,
    parts: parts::Parts,
}

struct RecordChunk {
    member: Member,
    id: ChunkId,
    session: SessionId,
    chain: Vec<u32>,
    since: Time,
    state: Mutex<State>,
}

fn answer(answers: Answers) {
    for (reply, outcome) in answers {
        reply.result(outcome);
    }
}

impl Inner {
    pub(super) fn record_append(self: &Arc<Self>, mut request: Request<'_>, reply: Reply) -> Result<(), Refused> {
        let payload = request.payload.take();
        let asked: RecordAppendRequest = match request.decode() {
            Ok(asked) => asked,
            Err(error) => return Err((reply, error)),
        };
        let (member, id, session) = match self.check_records(&asked) {
            Ok(checked) => checked,
            Err(error) => return Err((reply, error)),
        };
        let frames = match self.frames_of(&asked, &member, id, payload) {
            Ok(Some(frames)) => frames,
            Ok(None) => {
                reply.ok(&RecordAppendResponse::default(), ());
                return Ok(());
            }
            Err(error) => return Err((reply, error)),
        };
        let chunk = match self.record_chunk(member, id, session, matches!(frames, Frames::None)) {
            Ok(Some(chunk)) => chunk,
            // What is told of it is of no use.
            Ok(None) if asked.told.is_some() => {
                reply.ok(&RecordAppendResponse::default(), ());
                return Ok(());
            }
            Ok(None) => return Err((reply, bad_request(state::NO_RECORDS))),
            Err(error) => return Err((reply, error)),
        };
        let now = self.clock.now();
        let answers = {
            let mut state = chunk.state.lock();
            match asked.told {
                Some(told) => {
                    state.told(id, &told, now);
                    let mut answers = state.turns(now);
                    answers.push((reply, Ok(RecordAppendResponse::default())));
                    answers
                }
                None => {
                    let RecordAppendRequest { level, knows_next, lanes, writer, .. } = asked;
                    state.put(id, Waiting { reply, frames, level, knows_next, lanes, writer }, now)
                }
            }
        };
        answer(answers);
        self.pump_records(&chunk);
        Ok(())
    }

    fn check_records(&self, asked: &RecordAppendRequest) -> Result<(Member, ChunkId, SessionId), WireError> {
        let (member, id) = self.chunk_member(asked.chunk.as_ref(), false)?;
        member.check_moving()?;
        let session = SessionId(asked.chunk.as_ref().map_or(0, |header| header.session));
        if member.is_striped() || !session.is_append() || asked.level > PUBLISHABLE {
            return Err(bad_request("records are appended to chunks of open appends, which are replicated"));
        }
        let first = fence::primary(&member.pg);
        if first != Some(member.disk) {
            return Err(self.refuse(Fence::NotPrimary {
                pg: member.pg.pg,
                disk: member.disk,
                primary: first,
                epoch: member.pg.epoch,
            }));
        }
        fence::check_writable(&member.pg).map_err(|fence| self.refuse(fence))?;
        member.check_entered()?;
        if Epoch(asked.creation_epoch) != member.pg.epoch {
            return Err(over(id, "it was made in another epoch"));
        }
        Ok((member, id, session))
    }

    /// What of a request goes into the chunk; `None`: it is a part of a record that is not whole yet.
    fn frames_of(
        &self,
        asked: &RecordAppendRequest,
        member: &Member,
        id: ChunkId,
        payload: Option<AlignedBuf>,
    ) -> Result<Option<Frames>, WireError> {
        let Some(payload) = payload.filter(|payload| !payload.is_empty()) else { return Ok(Some(Frames::None)) };
        if let Some(part) = &asked.part {
            let (place, now) = ((member.disk, id, member.pg.volume), self.clock.now());
            let Some(whole) = self.records.parts.add(place, part, &payload, now)? else { return Ok(None) };
            check_frames(&whole)?;
            return Ok(Some(Frames::Long(whole)));
        }
        if payload.len() > APPEND_MAX - BLOCK_SIZE {
            return Err(bad_request("records of one request have less than 1 MiB; a longer one comes in parts"));
        }
        check_frames(&payload)?;
        // A buffer has whole blocks: thousands that wait with a few bytes each are kept as what they are.
        let small = payload.len() < BLOCK_SIZE / 2;
        Ok(Some(if small { Frames::Small(payload[..].into()) } else { Frames::Whole(payload) }))
    }

    /// What is kept of a chunk; with nothing to write (`is_idle`) only what is there.
    fn record_chunk(
        &self,
        member: Member,
        id: ChunkId,
        session: SessionId,
        is_idle: bool,
    ) -> Result<Option<Arc<RecordChunk>>, WireError> {
        let mut chunks = self.records.chunks.lock();
        if let Some(chunk) = chunks.get(&(member.disk, id)).filter(|chunk| chunk.member.pg.epoch == member.pg.epoch) {
            fence::check_session(chunk.session, session).map_err(|fence| self.refuse(fence))?;
            return Ok(Some(chunk.clone()));
        }
        let was_deleted = member.runtime.state.lock().deleted().contains(id.index);
        if member.store.chunk(id).is_some() || was_deleted || id.index >= member.pg.high_water {
            return Err(over(id, "its primary does not know its end"));
        }
        if is_idle {
            return Ok(None);
        }
        let volume = member.pg.volume;
        if !has_room(&chunks, volume) {
            // Of one that a request holds the end would not be told: requests take theirs under this lock.
            chunks.retain(|_, chunk| Arc::strong_count(chunk) > 1 || !self.is_over(chunk));
        }
        if !has_room(&chunks, volume) {
            let text = format!(
                "the node of {} has {} open appends, and takes no more of {volume}; repeat later",
                member.disk,
                chunks.len()
            );
            return Err(WireError::new(ErrorCode::Overloaded, text));
        }
        let chain = others(&member.pg, member.disk).into_iter().map(DiskId::get).collect();
        let since = self.clock.now();
        let chunk = Arc::new(RecordChunk { member, id, session, chain, since, state: Mutex::default() });
        chunks.insert((chunk.member.disk, id), chunk.clone());
        Ok(Some(chunk))
    }

    /// The chunk is about to be sealed here: nothing that all members do not have by now is acknowledged any more, so
    /// the seal's length has all that was. One that is not there is not made any more.
    pub(super) fn end_records(&self, member: &Member, id: ChunkId) {
        if member.store.chunk(id).is_none() {
            member.runtime.state.lock().note_deleted(id.index, 0);
        }
        let chunk = self.records.chunks.lock().get(&(member.disk, id)).cloned();
        if let Some(chunk) = chunk {
            let now = self.clock.now();
            let answers = chunk.state.lock().seal(over(id, "it is sealed"), now);
            answer(answers);
        }
    }

    fn is_over(&self, chunk: &RecordChunk) -> bool {
        let known = chunk.member.store.chunk(chunk.id);
        let sealed = known.as_ref().is_some_and(|known| known.is_sealed());
        let is_old = known.is_none() && self.clock.now().since(chunk.since) > UNUSED_MAX;
        let state = chunk.state.lock();
        let is_over = state.is_over() || is_old && state.is_unused();
        drop(state);
        sealed || is_over || !self.is_current(&chunk.member)
    }

    /// Looks now and then at who waits.
    pub(super) fn start_record_ticks(self: &Arc<Self>) {
        let inner = Arc::downgrade(self);
        self.tasks.spawn(async move {
            loop {
                tokio::time::sleep(TICK).await;
                let Some(inner) = inner.upgrade().filter(|inner| !inner.is_stopping()) else { return };
                let now = inner.clock.now();
                inner.records.parts.forget_old(now);
                let chunks: Vec<_> = inner.records.chunks.lock().values().cloned().collect();
                for chunk in chunks {
                    let answers = chunk.state.lock().tick(chunk.id, now);
                    chunk.state.lock().forget_old_writers(now);
                    answer(answers);
                }
            }
        });
    }
}

/// Whether a volume may have another one: as many as are left for others, and no more.
fn has_room(chunks: &BTreeMap<(DiskId, ChunkId), Arc<RecordChunk>>, volume: VolumeId) -> bool {
    let of_volume = chunks.values().filter(|chunk| chunk.member.pg.volume == volume).count();
    of_volume < CHUNKS_MAX - chunks.len().min(CHUNKS_MAX)
}

/// Nothing but whole frames: what follows them in the chunk is found by their lengths.
fn check_frames(mut frames: &[u8]) -> Result<(), WireError> {
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
