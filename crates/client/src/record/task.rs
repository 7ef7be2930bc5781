//! The task of a writer of records: sends them in order, publishes when it is its turn, goes on in the next chunk, and after a failure finds out
//! what of its records is there.
//!
//! Bounds: [`IN_FLIGHT_MAX`] requests are unanswered, [`QUEUE_MAX`] records wait. Records of one writer stand in the file in the order in which they were
//! given, unless some had to be sent again.
use super::appender::{RecordLevel, RecordOptions, ended};
use super::chunk::{AppendChunk, Asks, DURABLE, NotTaken, PUBLISHABLE, explain, send_long, tell};
use super::lanes::Lanes;
use super::settle;
use crate::append::open::{Avoided, Target, open_index};
use crate::cluster::Cluster;
use crate::error::{ClientError, Result};
use crate::meta::volume::Volume;
use cairn_env::buf::SharedBuf;
use cairn_format::record_frame::RecordFrame;
use cairn_rpc::Payload;
use cairn_types::{ErrorCode, Layout, PgId, Time};
use cairn_wire::Opcode;
use cairn_wire::data::{RecordAppendResponse, RecordsTold};
use cairn_wire::meta::OpenAppendRequest;
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::task::JoinSet;

/// Unanswered requests.
const IN_FLIGHT_MAX: usize = 4;
/// Records in the queue to the task.
pub(super) const QUEUE_MAX: usize = 4096;
/// Bytes of one request: with the block before them they fit into one append of a chunk.
const REQUEST_MAX: usize = (1 << 20) - 8192;
/// Frames of so many bytes are not joined to be sent.
const APART_BYTES: usize = 2048;
/// What is in the members' memory is made durable, and what is not in the file published, after so long without another record.
const SYNC_AFTER: Duration = Duration::from_secs(1);
/// Before a request that was refused for the moment is repeated.
const LATER: Duration = Duration::from_millis(50);
/// A chunk that was not used for so long may be closed.
const PAUSE: Duration = Duration::from_secs(30);
/// Appends that are tried one after the other for the same records without one of them getting any further.
const ATTEMPTS_MAX: u32 = 64;

pub(super) enum Command {
    Record(Vec<u8>, OwnedSemaphorePermit, oneshot::Sender<Result<()>>),
    Flush(oneshot::Sender<Result<()>>),
}

/// A record until it is durable.
struct Kept {
    sequence: u64,
    framed: SharedBuf,
    /// The end of the chunk as it was known when this was sent: it stands behind it.
    after: u64,
    /// The chunk's end behind it, when all members had it.
    end: u64,
    done: Option<oneshot::Sender<Result<()>>>,
    _permit: OwnedSemaphorePermit,
}

impl Kept {
    fn tell(&mut self, outcome: Result<()>) {
        if let Some(done) = self.done.take() {
            // Whoever dropped the ticket does not ask.
            let _gone = done.send(outcome);
        }
    }
}

type Outcome = std::result::Result<RecordAppendResponse, Failed>;

enum Event {
    Sent { kept: Vec<Kept>, outcome: Outcome, level: u32 },
    Published(Outcome),
}

enum Failed {
    Chunk(NotTaken),
    Meta(ClientError),
}

pub(super) struct Task {
    volume: Volume,
    cluster: Arc<Cluster>,
    inode: u64,
    path: Arc<[u8]>,
    layout: Layout,
    level: RecordLevel,
    avoided: Arc<Avoided>,
    writer: u64,
    sequence: u64,
    lanes: Lanes,
    chunk: Option<AppendChunk>,
    /// Number of the last append that is known to be closed.
    left: u64,
    /// When its primary answered last.
    used: Time,
    /// End of the chunk, as the last answer had it.
    known_end: u64,
    /// So much of the chunk was acknowledged as durable.
    durable: u64,
    pending: VecDeque<Kept>,
    /// In the members' memory.
    unsynced: VecDeque<Kept>,
    /// Sent to the present chunk, with an outcome that is not known.
    unresolved: Vec<Kept>,
    /// Since when something of the chunk may not be in the file.
    unpublished: Option<Time>,
    /// Why the present chunk takes no more.
    over: Option<String>,
    /// The primary said that the chunk was closed at this end, and where the file goes on.
    moved: Option<(u64, AppendChunk)>,
    /// It is on this writer to open the next chunk.
    rolls: bool,
    /// Whose primary is told of the next chunk if this writer makes it, and where that one was closed.
    tells: Option<(AppendChunk, u64)>,
    attempts: u32,
    /// Since when records are refused for the moment.
    later_since: Option<Time>,
    /// Nothing is sent before all that is on its way was answered.
    blocked: bool,
    running: JoinSet<Event>,
    flushes: Vec<oneshot::Sender<Result<()>>>,
}

/// Large frames go to the socket as they are, small ones are joined.
fn payload_of(frames: Vec<SharedBuf>, bytes: usize) -> Payload {
    if bytes / frames.len().max(1) >= APART_BYTES {
        return Payload::Many(frames);
    }
    let mut joined = Vec::with_capacity(bytes);
    frames.iter().for_each(|frame| joined.extend_from_slice(frame));
    Payload::One(SharedBuf::from_owner(joined))
}

/// Waits for the answer; publishes if that is what the primary leaves to this writer.
async fn deliver(
    call: impl Future<Output = std::result::Result<RecordAppendResponse, NotTaken>>,
    level: u32,
    volume: Volume,
    (inode, path): (u64, Arc<[u8]>),
    chunk: AppendChunk,
) -> Outcome {
    let mut answer = call.await.map_err(Failed::Chunk)?;
    if level == PUBLISHABLE && answer.next.is_none() && !answer.roll && answer.published < answer.end {
        let published = publish_to(&volume, inode, &path, chunk, answer.end).await.map_err(Failed::Meta)?;
        tell(chunk, volume.cluster(), RecordsTold { published, ..RecordsTold::default() });
        answer.published = answer.end;
    }
    Ok(answer)
}

/// The file gets what is durable up to there.
async fn publish_to(volume: &Volume, inode: u64, path: &[u8], chunk: AppendChunk, to: u64) -> Result<u64> {
    let answer = volume.publish_append(Opcode::PublishAppend, inode, path, (chunk.number, to)).await?;
    let published = answer.append.unwrap_or_default().published;
    settle::check(published, to, chunk, path)?;
    // One that was closed meanwhile may end with the last record instead of its block.
    Ok(published.max(to))
}

impl Task {
    pub(super) fn new(volume: Volume, (inode, path): (u64, &[u8]), layout: Layout, options: RecordOptions) -> Self {
        let cluster = volume.cluster().clone();
        let (writer, first) = options.writer.unwrap_or_else(|| (cluster.rng.u64(), 1));
        Task {
            writer,
            lanes: Lanes::new(writer),
            volume,
            cluster,
            inode,
            path: path.into(),
            layout,
            level: options.level,
            avoided: Arc::default(),
            sequence: first.saturating_sub(1),
            chunk: None,
            left: 0,
            used: Time(0),
            known_end: 0,
            durable: 0,
            pending: VecDeque::new(),
            unsynced: VecDeque::new(),
            unresolved: Vec::new(),
            unpublished: None,
            over: None,
            moved: None,
            rolls: false,
            tells: None,
            attempts: 0,
            later_since: None,
            blocked: false,
            running: JoinSet::new(),
            flushes: Vec::new(),
        }
    }

    pub(super) async fn run(mut self, mut commands: mpsc::Receiver<Command>, failure: Arc<OnceLock<ClientError>>) {
        loop {
            if let Err(error) = self.step().await {
                return self.fail(error, commands, &failure);
            }
            let tick = tokio::time::sleep(SYNC_AFTER / 4);
            tokio::select! {
                command = commands.recv(), if self.pending.len() < QUEUE_MAX => match command {
                    Some(command) => {
                        self.take(command);
                        while self.pending.len() < QUEUE_MAX && let Ok(command) = commands.try_recv() {
                            self.take(command);
                        }
                    }
                    // Dropped without a flush.
                    None => return,
                },
                Some(event) = self.running.join_next(), if !self.running.is_empty() => match event {
                    Ok(event) => if let Err(error) = self.handle(event).await {
                        return self.fail(error, commands, &failure);
                    },
                    Err(_) => return self.fail(ended(), commands, &failure),
                },
                () = tick, if self.unpublished.is_some() => {}
            }
        }
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Record(record, permit, done) => {
                self.sequence += 1;
                let frame = RecordFrame::of(self.writer, self.sequence, &record);
                let framed = SharedBuf::from_owner([&frame.encode()[..], &record].concat());
                let (sequence, done) = (self.sequence, Some(done));
                self.pending.push_back(Kept { sequence, framed, after: 0, end: 0, done, _permit: permit });
            }
            Command::Flush(done) => self.flushes.push(done),
        }
    }

    /// Sends what can be sent.
    async fn step(&mut self) -> Result<()> {
        self.look_after_a_pause().await?;
        if self.over.is_some() || self.moved.is_some() {
            if !self.running.is_empty() {
                return Ok(());
            }
            self.leave_chunk().await?;
        }
        if self.chunk.is_some() && self.lanes.is_elsewhere() {
            if !self.running.is_empty() {
                return Ok(());
            }
            if self.unpublished.is_some() {
                self.publish();
                return Ok(());
            }
            self.change_lane();
        }
        self.blocked &= !self.running.is_empty();
        while !self.pending.is_empty() && self.running.len() < IN_FLIGHT_MAX && !self.blocked {
            self.send().await?;
        }
        let idle = self.pending.is_empty() && self.running.is_empty();
        let wanted = !self.flushes.is_empty();
        let now = self.cluster.clock.now();
        let due = |since: Time| now.since(since) >= SYNC_AFTER;
        if idle && self.unpublished.is_some_and(|since| wanted || due(since)) {
            self.publish();
        } else if idle && wanted {
            self.flushes.drain(..).for_each(|done| drop(done.send(Ok(()))));
        }
        Ok(())
    }

    /// One that was not used for long may be closed by now: its primary would have us wait for somebody who tells where the file goes on.
    async fn look_after_a_pause(&mut self) -> Result<()> {
        let now = self.cluster.clock.now();
        let Some(chunk) = self.chunk.filter(|_| self.running.is_empty() && self.over.is_none()) else { return Ok(()) };
        if self.pending.is_empty() || now.since(self.used) < PAUSE {
            return Ok(());
        }
        let known = self.volume.get_append(self.inode, &self.path, chunk.number).await?.append.unwrap_or_default();
        self.used = now;
        if !known.open {
            self.over = Some("it was closed when nobody wrote to it".to_owned());
        }
        Ok(())
    }

    async fn send(&mut self) -> Result<()> {
        let chunk = match self.chunk {
            Some(chunk) => chunk,
            None => {
                // Whoever waits to hear of the next one does so in the lane in which this one was.
                if self.tells.is_none() {
                    self.change_lane();
                }
                self.open(false).await?
            }
        };
        let (mut kept, mut frames, mut bytes) = (Vec::new(), Vec::new(), 0);
        while let Some(next) = self.pending.front() {
            if !kept.is_empty() && bytes + next.framed.len() > REQUEST_MAX {
                break;
            }
            bytes += next.framed.len();
            frames.push(next.framed.clone());
            kept.extend(self.pending.pop_front().map(|next| Kept { after: self.known_end, ..next }));
        }
        let level = match self.level {
            RecordLevel::Memory => 0,
            RecordLevel::Durable => DURABLE,
            RecordLevel::Visible => PUBLISHABLE,
        };
        let (volume, file) = (self.volume.clone(), (self.inode, self.path.clone()));
        if bytes > REQUEST_MAX {
            let [frame] = &frames[..] else { return Err(ended()) };
            // What comes behind it would otherwise overtake it while it is put together.
            self.blocked = true;
            let record = (self.writer, kept[0].sequence);
            let call = send_long(chunk, self.cluster.clone(), frame.clone(), self.asks(level), record);
            self.running.spawn(async move {
                Event::Sent { kept, outcome: deliver(call, level, volume, file, chunk).await, level }
            });
        } else {
            let call = chunk.send(&self.cluster, payload_of(frames, bytes), self.asks(level), None);
            self.running.spawn(async move {
                Event::Sent { kept, outcome: deliver(call, level, volume, file, chunk).await, level }
            });
        }
        Ok(())
    }

    fn asks(&self, level: u32) -> Asks {
        Asks { level, lanes: self.lanes.count, writer: self.writer }
    }

    /// Makes what is in the chunk durable, and sees to it that it is published.
    fn publish(&mut self) {
        let Some(chunk) = self.chunk else { return };
        let call = chunk.send(&self.cluster, Payload::None, self.asks(PUBLISHABLE), None);
        let (volume, file) = (self.volume.clone(), (self.inode, self.path.clone()));
        self.running.spawn(async move { Event::Published(deliver(call, PUBLISHABLE, volume, file, chunk).await) });
    }

    async fn handle(&mut self, event: Event) -> Result<()> {
        let (kept, outcome, level) = match event {
            Event::Sent { kept, outcome, level } => (kept, outcome, level),
            Event::Published(outcome) => (Vec::new(), outcome, PUBLISHABLE),
        };
        match outcome {
            Ok(answer) if answer.next.is_some() || answer.roll => {
                self.go_on(&answer);
                self.put_back(kept);
            }
            Ok(answer) => {
                (self.later_since, self.attempts) = (None, 0);
                self.lanes.hear(&answer);
                self.used = self.cluster.clock.now();
                self.known_end = self.known_end.max(answer.end);
                self.note_durable(if level >= DURABLE { answer.end } else { answer.durable });
                self.acknowledged(kept, answer.end);
                let now = self.cluster.clock.now();
                let lacks = self.known_end > answer.published || !self.unsynced.is_empty();
                self.unpublished = lacks.then(|| self.unpublished.unwrap_or(now));
                if answer.publish {
                    self.publish();
                }
            }
            Err(Failed::Chunk(NotTaken::Later(why))) => {
                self.wait_a_moment(&why).await?;
                self.put_back(kept);
            }
            Err(Failed::Chunk(NotTaken::Over(why))) => {
                self.unresolved.extend(kept);
                self.over.get_or_insert(why);
            }
            // It is durable, and whoever asked for it to be visible is not told that it is.
            Err(Failed::Meta(error)) => {
                self.unresolved.extend(kept);
                return Err(error);
            }
        }
        Ok(())
    }

    /// What was not taken goes in front of what came later, in the order in which they were.
    fn put_back(&mut self, mut kept: Vec<Kept>) {
        kept.extend(self.pending.drain(..));
        kept.sort_by_key(|kept| kept.sequence);
        self.pending = kept.into();
    }

    /// The chunk is full: the primary says who opens the next one, or which one it is.
    fn go_on(&mut self, answer: &RecordAppendResponse) {
        self.blocked = true;
        let Some(chunk) = self.chunk else { return };
        match answer.next {
            Some(next) => self.moved = Some((answer.published, chunk.going_on(&next))),
            None => {
                self.rolls = true;
                self.over.get_or_insert_with(|| "it is full".to_owned());
            }
        }
    }

    fn acknowledged(&mut self, kept: Vec<Kept>, end: u64) {
        for mut kept in kept {
            kept.end = end;
            kept.tell(Ok(()));
            if kept.end > self.durable {
                self.unsynced.push_back(kept);
            }
        }
    }

    fn note_durable(&mut self, durable: u64) {
        self.durable = self.durable.max(durable);
        let end = self.durable;
        self.unsynced.retain(|kept| kept.end > end);
    }

    async fn wait_a_moment(&mut self, why: &str) -> Result<()> {
        let now = self.cluster.clock.now();
        let since = *self.later_since.get_or_insert(now);
        if now.since(since) > self.cluster.patience {
            let what = String::from_utf8_lossy(&self.path).into_owned();
            return Err(ClientError::remote(&what, ErrorCode::Unavailable, &format!("records are not taken: {why}")));
        }
        tokio::time::sleep(self.cluster.jitter(LATER)).await;
        self.blocked = true;
        Ok(())
    }

    /// Nothing is on its way to the present chunk, and nothing goes there any more.
    async fn leave_chunk(&mut self) -> Result<()> {
        let moved = self.moved.take();
        if self.over.is_none()
            && let Some((closed_at, next)) = moved
            && self.unsynced.iter().all(|kept| kept.end <= closed_at)
        {
            // All of this writer's is in the file: whoever closed it published it up to its end.
            self.unsynced.clear();
            (self.unpublished, self.left) = (None, self.left.max(next.number - 1));
            self.goes_to(next).await;
            return Ok(());
        }
        self.over.get_or_insert_with(|| "its file goes on elsewhere".to_owned());
        self.settle().await
    }

    /// The present append is closed, by whomever. What of this writer is in it is done, the rest is sent to the next one.
    async fn settle(&mut self) -> Result<()> {
        let why = self.over.take().unwrap_or_default();
        let Some(chunk) = self.chunk.take() else { return Ok(()) };
        tracing::debug!(chunk = %chunk.id, why, unresolved = self.unresolved.len(), "an open append is closed");
        if !self.rolls {
            // Many find out at the same moment; one is enough.
            tokio::time::sleep(self.cluster.jitter(LATER)).await;
        }
        let file = (self.inode, &*self.path);
        let settled = settle::settle(&self.volume, file, chunk, self.durable).await?;
        self.left = self.left.max(chunk.number);
        let mut doubtful: Vec<Kept> = std::mem::take(&mut self.unresolved);
        doubtful.extend(self.unsynced.drain(..));
        if let Some(from) = doubtful.iter().map(|kept| kept.after).min() {
            let (mut there, writer) = (BTreeSet::new(), self.writer);
            let note = |frame: &RecordFrame| {
                if frame.writer == writer {
                    there.insert(frame.sequence);
                }
            };
            let to = settled.published.min(settled.from);
            settle::walk(&self.volume, chunk, from.min(to), to, note).await?;
            let is_there = |kept: &Kept| there.contains(&kept.sequence) || settled.has(writer, kept.sequence);
            let (present, absent): (Vec<Kept>, Vec<Kept>) = doubtful.into_iter().partition(is_there);
            present.into_iter().for_each(|mut kept| kept.tell(Ok(())));
            self.put_back(absent);
        }
        self.tells = Some((chunk, settled.published));
        (self.known_end, self.durable, self.unpublished) = (0, 0, None);
        if std::mem::take(&mut self.rolls) {
            // The others wait for it.
            self.open(true).await?;
            return Ok(());
        }
        self.attempts += 1;
        if self.attempts > ATTEMPTS_MAX {
            let what = String::from_utf8_lossy(&self.path).into_owned();
            let text = format!("{ATTEMPTS_MAX} chunks one after the other took none of its records: {why}");
            return Err(ClientError::remote(&what, ErrorCode::Unavailable, &text));
        }
        Ok(())
    }

    /// The file's open append; makes one if there is none. `tells`: others wait to hear of it, whoever made it.
    async fn open(&mut self, tells: bool) -> Result<AppendChunk> {
        let (inode, path) = (self.inode, self.path.clone());
        let what = String::from_utf8_lossy(&path).into_owned();
        let lane = self.lanes.lane;
        let known = self.cluster.settles.open(self.volume.id(), inode, lane);
        let mut known = known.lock().await;
        if let Some((chunk, at)) = *known
            && chunk.number > self.left
            && self.cluster.clock.now().since(at) < PAUSE
        {
            self.tells = self.tells.take().filter(|_| tells);
            return Ok(self.goes_to(chunk).await);
        }
        let mut tries = 0;
        loop {
            let found = self.volume.last_append(inode, &path, lane).await.map_err(|error| explain(error, &what))?;
            let last = found.append.unwrap_or_default();
            if last.open {
                // Whoever made it tells, or nobody waits for it.
                self.tells = self.tells.take().filter(|_| tells);
                let (chunk, _) = *known.insert((AppendChunk::of(inode, &last), self.cluster.clock.now()));
                return Ok(self.goes_to(chunk).await);
            }
            let session = self.volume.caller().writer_session().await?.id;
            // On other disks than the other lanes, as far as there are.
            let now = self.cluster.clock.now();
            let others = found.open_pgs.iter().filter(|_| lane > 0);
            others.for_each(|pg| self.avoided.add(PgId(*pg), now, false));
            let (volume, scheme) = (self.volume.id(), self.layout.scheme().short_scheme());
            let opened = open_index(&self.cluster, Target { volume, scheme, session }, &self.avoided).await?;
            let request = OpenAppendRequest {
                after: last.number,
                pg: opened.pg.id.0,
                index: opened.index,
                creation_epoch: opened.creation_epoch,
                lane,
                ..OpenAppendRequest::default()
            };
            match self.volume.open_append(inode, &path, request).await {
                Ok(answer) => {
                    let append =
                        answer.append.ok_or_else(|| ClientError::protocol(&what, "the answer has no append"))?;
                    let (chunk, _) = *known.insert((AppendChunk::of(inode, &append), self.cluster.clock.now()));
                    return Ok(self.goes_to(chunk).await);
                }
                Err(error) if error.code() == Some(ErrorCode::Conflict) && tries < ATTEMPTS_MAX => tries += 1,
                Err(error) => return Err(explain(error, &what)),
            }
        }
    }

    /// Goes to the lane where it belongs: all that it sent to the present chunk is in the file, or it has none.
    fn change_lane(&mut self) {
        if self.lanes.is_elsewhere() {
            self.lanes.change();
            (self.chunk, self.left, self.tells) = (None, 0, None);
            (self.known_end, self.durable) = (0, 0);
        }
    }

    async fn goes_to(&mut self, chunk: AppendChunk) -> AppendChunk {
        if let Some((before, published)) = self.tells.take() {
            tell(before, &self.cluster, RecordsTold { published, next: Some(chunk.next()), closed: false });
        }
        if self.cluster.view().pgs.get(&chunk.id.pg.0).is_none_or(|pg| pg.epoch.0 < chunk.creation_epoch) {
            crate::append::open::refresh_quietly(&self.cluster).await;
        }
        (self.chunk, self.used) = (Some(chunk), self.cluster.clock.now());
        (self.known_end, self.durable) = (0, 0);
        chunk
    }

    /// Nothing goes on: all that wait are told.
    /// Whoever gives another record hears why it is not taken, also where all before were answered already.
    fn fail(mut self, error: ClientError, mut commands: mpsc::Receiver<Command>, failure: &OnceLock<ClientError>) {
        tracing::debug!(%error, "a record appender gave up");
        let _first = failure.set(error.clone());
        commands.close();
        let records = self.pending.drain(..).chain(self.unsynced.drain(..)).chain(self.unresolved.drain(..));
        records.for_each(|mut kept| kept.tell(Err(error.clone())));
        self.flushes.drain(..).for_each(|done| drop(done.send(Err(error.clone()))));
        while let Ok(command) = commands.try_recv() {
            let done = match command {
                Command::Record(_, _, done) | Command::Flush(done) => done,
            };
            let _gone = done.send(Err(error.clone()));
        }
    }
}
