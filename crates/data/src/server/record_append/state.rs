//! What waits for one chunk of records, and what of it is handed on next.
//!
//! Bounds: [`WAITING_MAX`] bytes and [`REQUESTS_MAX`] requests that wait, [`IN_FLIGHT_MAX`] appends under way.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use cairn_chunk_core::append::APPEND_MAX;
use cairn_chunk_core::fence;
use cairn_env::{AlignedBuf, BufPool};
use cairn_format::record_frame::RecordFrame;
use cairn_rpc::Reply;
use cairn_types::{BLOCK_SIZE, CHUNK_SIZE_MAX, ChunkId, ErrorCode, Time};
use cairn_wire::data::{RecordAppendResponse, RecordsNext};
use cairn_wire::error::WireError;

use super::super::chain::Part;
use super::writers::Writers;
use super::{Answers, DURABLE, PUBLISHABLE, RecordChunk, bad_request, over};

/// Bytes of records that wait for one chunk; a long one may wait alone.
const WAITING_MAX: usize = 16 << 20;
/// Requests that wait for one chunk, for whatever.
const REQUESTS_MAX: usize = 64 << 10;
/// Unanswered appends of one chunk.
const IN_FLIGHT_MAX: usize = 4;
/// Somebody is asked to publish after so long …
const PUBLISH_AFTER: Duration = Duration::from_secs(1);
/// … or so many bytes.
const PUBLISH_BYTES: u64 = 8 << 20;

pub(super) const NO_RECORDS: &str = "there are no records that could be made durable";

const BLOCK: u64 = BLOCK_SIZE as u64;

#[derive(Default)]
pub(super) struct State {
    pub(super) waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    /// Of the first one that waits, a long one, so much was handed on.
    begun: usize,
    /// Where long frames are, of which something may not be durable: they are not published in parts.
    long: VecDeque<(u64, u64)>,
    /// End of what was handed on.
    end: u64,
    /// What the last block has of it.
    tail: Vec<u8>,
    pub(super) durable: u64,
    pub(super) in_flight: usize,
    /// Somebody hands on what waits.
    pub(super) pumping: bool,
    /// It takes no more; what waits still goes.
    pub(super) full: bool,
    /// Why it takes nothing any more, not even what waits.
    pub(super) over: Option<WireError>,
    /// That is because it is sealed: whoever did it goes on elsewhere, and tells where.
    pub(super) sealed: bool,
    incarnations: BTreeMap<u32, u64>,
    /// When, and at which end, somebody was asked to publish.
    asked: Option<(Time, u64)>,
    /// Durable, and waiting to be published.
    pub(super) parked: Vec<Parked>,
    /// Not taken, and waiting for the next chunk.
    pub(super) held: VecDeque<Held>,
    /// The file has so much, as was told.
    pub(super) published: u64,
    /// Since when somebody publishes, and who opens the next chunk.
    pub(super) publisher: Option<Time>,
    pub(super) roller: Option<Roller>,
    pub(super) next: Option<RecordsNext>,
    writers: Writers,
}

pub(super) enum Frames {
    /// Only to make durable, or to publish, what is there.
    None,
    Small(Box<[u8]>),
    Whole(AlignedBuf),
    /// One that does not fit into an append.
    Long(Vec<u8>),
}

impl Frames {
    fn bytes(&self) -> &[u8] {
        match self {
            Frames::None => &[],
            Frames::Small(bytes) => bytes,
            Frames::Whole(bytes) => bytes,
            Frames::Long(bytes) => bytes,
        }
    }
}

pub(super) struct Waiting {
    pub(super) reply: Reply,
    pub(super) frames: Frames,
    pub(super) level: u32,
    pub(super) knows_next: bool,
    /// Over how many lanes its writer takes all to be spread.
    pub(super) lanes: u32,
    /// 0: it does not say.
    pub(super) writer: u64,
}

pub(super) struct Parked {
    pub(super) reply: Reply,
    pub(super) end: u64,
}

pub(super) struct Held {
    pub(super) reply: Reply,
    pub(super) writer: u64,
    pub(super) since: Time,
}

/// Who opens the next chunk.
#[derive(Clone, Copy)]
pub(super) struct Roller {
    pub(super) since: Time,
    pub(super) writer: u64,
}

/// What is handed on together.
pub(super) struct Batch {
    pub(super) asked: Vec<Waiting>,
    /// From the beginning of the last block on; empty: only a sync.
    pub(super) data: AlignedBuf,
    pub(super) offset: u64,
    /// The end of what was handed on before it.
    pub(super) follows: u64,
    pub(super) end: u64,
    pub(super) sync: bool,
}

impl State {
    pub(super) fn is_over(&self) -> bool {
        self.over.is_some()
    }

    /// Nothing was written, nothing is about to be, and nobody waits.
    pub(super) fn is_unused(&self) -> bool {
        let waits = self.waiting.len() + self.parked.len() + self.held.len() + self.in_flight;
        self.end == 0 && waits == 0 && !self.pumping
    }

    /// Takes a request, or says what becomes of it.
    pub(super) fn put(&mut self, id: ChunkId, waiting: Waiting, now: Time) -> Answers {
        let bytes = waiting.frames.bytes().len();
        // A request has records of one writer.
        if let Some(frame) = RecordFrame::decode(waiting.frames.bytes()) {
            self.writers.note(frame.writer, waiting.lanes, now);
        }
        let left = CHUNK_SIZE_MAX.saturating_sub(self.end + self.waiting_bytes as u64);
        // Each append of what waits may be filled up to the end of its block; two of them have more than 1 MiB.
        let filled = (self.waiting.len().min(2 * WAITING_MAX / APPEND_MAX) as u64 + 2) * BLOCK;
        self.full |= bytes as u64 + filled > left;
        let refused = if let Some(error) = self.over.as_ref().filter(|_| !self.sealed) {
            error.clone()
        } else if self.waiting.len() + self.parked.len() + self.held.len() >= REQUESTS_MAX {
            overloaded(format!("{REQUESTS_MAX} requests wait for {id} already; repeat in a moment"))
        } else if (self.full || self.sealed) && waiting.knows_next {
            self.hold(waiting.reply, waiting.writer, now);
            return self.turns(now);
        } else if self.full || self.sealed {
            self.over.clone().unwrap_or_else(|| over(id, "it is full"))
        } else if bytes == 0 && self.end == 0 && self.waiting.is_empty() {
            bad_request(NO_RECORDS)
        } else if !self.waiting.is_empty() && self.waiting_bytes + bytes > WAITING_MAX {
            overloaded(format!("{WAITING_MAX} bytes of records wait for {id} already; repeat in a moment"))
        } else {
            self.waiting_bytes += bytes;
            self.waiting.push_back(waiting);
            return Vec::new();
        };
        vec![(waiting.reply, Err(refused))]
    }

    pub(super) fn hold(&mut self, reply: Reply, writer: u64, now: Time) {
        self.held.push_back(Held { reply, writer, since: now });
    }

    /// What waits and fits into one append.
    pub(super) fn next_batch(&mut self, pool: &BufPool) -> Option<Batch> {
        let first = self.waiting.front().filter(|_| self.over.is_none() && self.in_flight < IN_FLIGHT_MAX)?;
        if self.tail.len() + first.frames.bytes().len() - self.begun > APPEND_MAX {
            return Some(self.piece(pool));
        }
        let (mut asked, mut frames, mut bytes) = (Vec::new(), Vec::new(), self.tail.len());
        let (mut sync, mut pad) = (false, false);
        let begun = std::mem::take(&mut self.begun);
        while let Some(next) = self.waiting.front() {
            let more = next.frames.bytes().len() - if asked.is_empty() { begun } else { 0 };
            if bytes + more > APPEND_MAX {
                break;
            }
            bytes += more;
            sync |= next.level >= DURABLE;
            pad |= next.level == PUBLISHABLE;
            let Some(mut next) = self.waiting.pop_front() else { break };
            frames.push(std::mem::replace(&mut next.frames, Frames::None));
            asked.push(next);
        }
        self.waiting_bytes -= bytes - self.tail.len();
        self.in_flight += 1;
        let (offset, follows) = (self.end - self.tail.len() as u64, self.end);
        if bytes == self.tail.len() && (!pad || self.tail.is_empty()) {
            return Some(Batch { asked, data: AlignedBuf::unpooled(0), offset, follows, end: self.end, sync: true });
        }
        let mut data = buffer(pool, bytes.next_multiple_of(BLOCK_SIZE));
        data.extend_from_slice(&self.tail);
        for (i, frames) in frames.iter().enumerate() {
            data.extend_from_slice(&frames.bytes()[if i == 0 { begun } else { 0 }..]);
        }
        if begun > 0 {
            self.long.back_mut().expect("it was noted with its first piece").1 = offset + bytes as u64;
        }
        if pad {
            data.pad_to_align();
            data.resize(bytes.next_multiple_of(BLOCK_SIZE));
        }
        self.end = offset + data.len() as u64;
        self.tail = data[data.len() - data.len() % BLOCK_SIZE..].to_vec();
        Some(Batch { asked, data, offset, follows, end: self.end, sync })
    }

    /// The next piece of a long record, up to the end of a block. Nobody is answered for it.
    fn piece(&mut self, pool: &BufPool) -> Batch {
        if self.begun == 0 {
            self.long.push_back((self.end, u64::MAX));
        }
        let first = self.waiting.front().expect("it is long").frames.bytes();
        let more = APPEND_MAX - self.tail.len();
        let (offset, follows) = (self.end - self.tail.len() as u64, self.end);
        let mut data = buffer(pool, APPEND_MAX);
        data.extend_from_slice(&self.tail);
        data.extend_from_slice(&first[self.begun..self.begun + more]);
        self.begun += more;
        self.waiting_bytes -= more;
        self.in_flight += 1;
        self.end = offset + APPEND_MAX as u64;
        self.tail.clear();
        Batch { asked: Vec::new(), data, offset, follows, end: self.end, sync: false }
    }

    /// Whether a batch counts: all serving members answered, as the processes that they were, and before a seal began.
    pub(super) fn judge(&mut self, chunk: &RecordChunk, outcome: Result<Part, WireError>) -> Result<(), WireError> {
        let id = chunk.id;
        let part = match outcome {
            Ok(part) => part,
            Err(error) if error.code == ErrorCode::ChainFailed => return Err(error),
            // Whoever hears this of something that was begun must not take it for undone.
            Err(error) => return Err(over(id, &format!("an append to it failed ({error})"))),
        };
        // It may have been sealed with less than this meanwhile.
        if let Some(error) = &self.over {
            return Err(error.clone());
        }
        for stamp in &part.members {
            if *self.incarnations.entry(stamp.disk).or_insert(stamp.incarnation) != stamp.incarnation {
                return Err(over(id, &format!("disk d{} was restarted", stamp.disk)));
            }
        }
        if let Some(disk) =
            fence::serving(&chunk.member.pg).find(|disk| !part.members.iter().any(|s| s.disk == disk.get()))
        {
            return Err(over(id, &format!("{disk} serves but did not answer")));
        }
        let inside = self.long.iter().find(|(begin, end)| (begin + 1..*end).contains(&part.durable));
        self.durable = self.durable.max(inside.map_or(part.durable, |(begin, _)| *begin));
        while self.long.front().is_some_and(|(_, end)| *end <= self.durable) {
            self.long.pop_front();
        }
        Ok(())
    }

    /// Ends it for a failure: nothing that waits is taken any more.
    pub(super) fn fail(&mut self, id: ChunkId, error: &WireError) -> Answers {
        self.over.get_or_insert_with(|| over(id, &format!("an append to it failed ({error})")));
        self.sealed = false;
        let before = over(id, "an append before this one failed");
        let mut answers: Answers = self.take_waiting().map(|waiting| (waiting.reply, Err(before.clone()))).collect();
        answers.extend(self.parked.drain(..).map(|parked| (parked.reply, Err(before.clone()))));
        answers.extend(self.held.drain(..).map(|held| (held.reply, Err(before.clone()))));
        answers
    }

    /// Ends it because it is about to be sealed. What waits was certainly not taken.
    pub(super) fn seal(&mut self, error: WireError, now: Time) -> Answers {
        if self.over.is_some() {
            return Vec::new();
        }
        // Of a long record something may be there.
        let begun = self.begun > 0;
        (self.over, self.sealed) = (Some(error.clone()), true);
        let mut answers: Answers = self.parked.drain(..).map(|parked| (parked.reply, Err(error.clone()))).collect();
        let waiting: Vec<Waiting> = self.take_waiting().collect();
        for (i, waiting) in waiting.into_iter().enumerate() {
            if waiting.knows_next && !(begun && i == 0) {
                self.hold(waiting.reply, waiting.writer, now);
            } else {
                answers.push((waiting.reply, Err(error.clone())));
            }
        }
        answers
    }

    /// Whether somebody of these should publish who would not do so by himself.
    pub(super) fn is_publishing_due(&mut self, asked: &[Waiting], end: u64, now: Time) -> bool {
        let by_itself = asked.iter().any(|waiting| waiting.level == PUBLISHABLE);
        let (at, from) = *self.asked.get_or_insert((now, 0));
        let due = now.since(at) >= PUBLISH_AFTER || end.saturating_sub(from) >= PUBLISH_BYTES;
        if by_itself || due && !asked.is_empty() {
            self.asked = Some((now, end));
        }
        due && !by_itself
    }

    pub(super) fn forget_old_writers(&mut self, now: Time) {
        self.writers.forget_old(now);
    }

    fn take_waiting(&mut self) -> impl Iterator<Item = Waiting> + use<> {
        (self.waiting_bytes, self.begun, self.tail) = (0, 0, Vec::new());
        std::mem::take(&mut self.waiting).into_iter()
    }

    pub(super) fn response(&self, end: u64) -> RecordAppendResponse {
        RecordAppendResponse {
            end,
            durable: self.durable,
            published: self.published,
            lanes: self.writers.lanes(),
            ..RecordAppendResponse::default()
        }
    }
}

/// Memory that is in use already, where there is some: new pages cost more than the bytes that are put into them.
fn buffer(pool: &BufPool, bytes: usize) -> AlignedBuf {
    pool.try_take(bytes).unwrap_or_else(|_| AlignedBuf::unpooled(bytes))
}

fn overloaded(text: String) -> WireError {
    WireError::new(ErrorCode::Overloaded, text)
}
