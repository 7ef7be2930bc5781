//! [`RecordAppender`]: a writer of records. One task sends them in order, many in a request, and keeps them until they are durable.
//!
//! Bounds: [`RecordOptions::window`] bytes of records wait, are sent or are not durable; [`IN_FLIGHT_MAX`] requests are unanswered. Records
//! of one writer stand in the file in the order in which they were given, unless some had to be sent again.
use super::chunk::{AppendChunk, DURABLE, NotTaken, PUBLISHABLE, explain};
use super::settle;
use crate::append::open::{Avoided, Target, open_index};
use crate::cluster::Cluster;
use crate::error::{ClientError, Result};
use crate::meta::volume::Volume;
use cairn_env::buf::SharedBuf;
use cairn_format::record_frame::{RECORD_FRAME_LEN, RECORD_MAX, RecordFrame};
use cairn_types::{ErrorCode, Layout, Time};
use cairn_wire::Opcode;
use cairn_wire::data::RecordAppendResponse;
use cairn_wire::meta::OpenAppendRequest;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;

/// Unanswered requests.
const IN_FLIGHT_MAX: usize = 4;
/// Records in the queue to the task.
const QUEUE_MAX: usize = 4096;
/// Bytes of one request: what the longest record takes.
const REQUEST_MAX: usize = RECORD_MAX + RECORD_FRAME_LEN;
/// What is in the members' memory is made durable after so long.
const SYNC_AFTER: Duration = Duration::from_secs(1);
/// Before a request that was refused for the moment is repeated.
const LATER: Duration = Duration::from_millis(50);
/// Appends that are tried one after the other for the same records without one of them getting any further.
const ATTEMPTS_MAX: u32 = 64;

/// When a record counts as appended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RecordLevel {
    /// All members have it in memory. It survives the death of servers, not of all machines at once; while the writer lives it is sent
    /// again if it was lost.
    Memory,
    /// All members have it on stable storage. It is in the file in about a second.
    #[default]
    Durable,
    /// The same, and whoever opens the file sees it.
    Visible,
}

#[derive(Clone, Copy, Debug)]
pub struct RecordOptions {
    pub level: RecordLevel,
    /// Memory of records that wait, are on their way or are not durable.
    pub window: usize,
}

impl Default for RecordOptions {
    fn default() -> Self {
        Self { level: RecordLevel::default(), window: 32 << 20 }
    }
}

/// A record that was given, and its outcome.
pub struct RecordTicket(oneshot::Receiver<Result<()>>);

impl RecordTicket {
    /// Waits until the record is appended. Dropping the ticket only means that nobody asks.
    pub async fn done(self) -> Result<()> {
        self.0.await.unwrap_or_else(|_| Err(ended()))
    }
}

/// Appends records to a file to which others append at the same time. Dropping it lets go of what is not sent yet.
pub struct RecordAppender {
    queue: mpsc::Sender<Command>,
    window: Arc<Semaphore>,
    window_kib: u32,
}

enum Command {
    Record(Vec<u8>, OwnedSemaphorePermit, oneshot::Sender<Result<()>>),
    Flush(oneshot::Sender<Result<()>>),
}

fn ended() -> ClientError {
    ClientError::protocol("record appender", "it ended while it was used")
}

impl Volume {
    /// A writer of records for an existing regular file.
    pub async fn record_appender(&self, path: &[u8], options: RecordOptions) -> Result<RecordAppender> {
        let found = self.stat(path, true).await?;
        let what = String::from_utf8_lossy(path).into_owned();
        let layout =
            Layout::from_bits(found.layout).ok_or_else(|| ClientError::protocol(&what, "its layout is unknown"))?;
        // Whether it can be done at all is said here, and not with the first record.
        self.get_append(found.inode, path, 0).await.map_err(|error| explain(error, &what))?;
        let (queue, commands) = mpsc::channel(QUEUE_MAX);
        let window_kib = u32::try_from(options.window.max(2 * REQUEST_MAX) / 1024).unwrap_or(u32::MAX >> 4);
        let window = Arc::new(Semaphore::new(window_kib as usize));
        let cluster = self.cluster().clone();
        let task = Task {
            writer: cluster.rng.u64(),
            last_durable: cluster.clock.now(),
            volume: self.clone(),
            cluster,
            inode: found.inode,
            path: path.to_vec(),
            layout,
            level: options.level,
            avoided: Arc::default(),
            sequence: 0,
            chunk: None,
            known_end: 0,
            durable: 0,
            pending: VecDeque::new(),
            unsynced: VecDeque::new(),
            unresolved: Vec::new(),
            unpublished: false,
            over: None,
            attempts: 0,
            later_since: None,
            blocked: false,
            running: JoinSet::new(),
            flushes: Vec::new(),
        };
        tokio::spawn(task.run(commands));
        Ok(RecordAppender { queue, window, window_kib })
    }
}

impl RecordAppender {
    /// Gives a record; waits while the window is full. It is appended when its ticket says so.
    pub async fn append(&self, record: &[u8]) -> Result<RecordTicket> {
        if record.len() > RECORD_MAX {
            let text = format!("a record has at most {RECORD_MAX} bytes, and this one {}; split it", record.len());
            return Err(ClientError::remote("appending a record", ErrorCode::InvalidArgument, &text));
        }
        let kib = (record.len() + RECORD_FRAME_LEN).div_ceil(1024) as u32;
        let permit = self.window.clone().acquire_many_owned(kib.min(self.window_kib)).await.map_err(|_| ended())?;
        let (done, ticket) = oneshot::channel();
        self.queue.send(Command::Record(record.to_vec(), permit, done)).await.map_err(|_| ended())?;
        Ok(RecordTicket(ticket))
    }

    /// Waits until all records that were given are durable, and whoever opens the file sees them.
    pub async fn flush(&self) -> Result<()> {
        let (done, flushed) = oneshot::channel();
        self.queue.send(Command::Flush(done)).await.map_err(|_| ended())?;
        flushed.await.map_err(|_| ended())?
    }

    /// Flushes, and ends the writer. The file's append stays open for others.
    pub async fn close(self) -> Result<()> {
        self.flush().await
    }
}

/// A record until it is durable.
struct Kept {
    sequence: u64,
    framed: Vec<u8>,
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

enum Event {
    Sent { kept: Vec<Kept>, outcome: std::result::Result<RecordAppendResponse, NotTaken>, level: u32 },
    Published(std::result::Result<u64, Failed>),
}

enum Failed {
    Chunk(NotTaken),
    Meta(ClientError),
}

struct Task {
    volume: Volume,
    cluster: Arc<Cluster>,
    inode: u64,
    path: Vec<u8>,
    layout: Layout,
    level: RecordLevel,
    avoided: Arc<Avoided>,
    writer: u64,
    sequence: u64,
    chunk: Option<AppendChunk>,
    /// End of the chunk, as the last answer had it.
    known_end: u64,
    /// So much of the chunk was acknowledged as durable.
    durable: u64,
    last_durable: Time,
    pending: VecDeque<Kept>,
    /// In the members' memory.
    unsynced: VecDeque<Kept>,
    /// Sent to the present chunk, with an outcome that is not known.
    unresolved: Vec<Kept>,
    /// Something of the chunk that is durable may not be in the file.
    unpublished: bool,
    /// Why the present chunk takes no more.
    over: Option<String>,
    attempts: u32,
    /// Since when records are refused for the moment.
    later_since: Option<Time>,
    /// Nothing is sent before all that is on its way was answered.
    blocked: bool,
    running: JoinSet<Event>,
    flushes: Vec<oneshot::Sender<Result<()>>>,
}

/// The file gets what is durable up to there.
async fn publish_to(volume: &Volume, inode: u64, path: &[u8], to: (u64, u64)) -> Result<()> {
    let answer = volume.publish_append(Opcode::PublishAppend, inode, path, to).await?;
    let published = answer.append.unwrap_or_default().published;
    if published < to.1 {
        let text = format!("append {} was closed at {published}, and {} were durable", to.0, to.1);
        return Err(ClientError::protocol(&String::from_utf8_lossy(path), text));
    }
    Ok(())
}

impl Task {
    async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        loop {
            if let Err(error) = self.step().await {
                return self.fail(error, commands);
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
                        return self.fail(error, commands);
                    },
                    Err(_) => return self.fail(ended(), commands),
                },
                () = tick => {}
            }
        }
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Record(record, permit, done) => {
                self.sequence += 1;
                let frame = RecordFrame::of(self.writer, self.sequence, &record);
                let framed = [&frame.encode()[..], &record].concat();
                let (sequence, done) = (self.sequence, Some(done));
                self.pending.push_back(Kept { sequence, framed, after: 0, end: 0, done, _permit: permit });
            }
            Command::Flush(done) => self.flushes.push(done),
        }
    }

    /// Sends what can be sent.
    async fn step(&mut self) -> Result<()> {
        if self.over.is_some() {
            if !self.running.is_empty() {
                return Ok(());
            }
            self.settle().await?;
        }
        self.blocked &= !self.running.is_empty();
        while !self.pending.is_empty() && self.running.len() < IN_FLIGHT_MAX && !self.blocked {
            self.send().await?;
        }
        let idle = self.pending.is_empty() && self.running.is_empty();
        let wanted = !self.flushes.is_empty();
        let due = self.cluster.clock.now().since(self.last_durable) >= SYNC_AFTER;
        if idle && (wanted && (self.unpublished || !self.unsynced.is_empty()) || due && !self.unsynced.is_empty()) {
            self.publish();
        } else if idle && wanted {
            self.flushes.drain(..).for_each(|done| drop(done.send(Ok(()))));
        }
        Ok(())
    }

    async fn send(&mut self) -> Result<()> {
        let chunk = match self.chunk {
            Some(chunk) => chunk,
            None => self.open().await?,
        };
        let (mut kept, mut frames) = (Vec::new(), Vec::new());
        while let Some(next) = self.pending.front() {
            if frames.len() + next.framed.len() > REQUEST_MAX {
                break;
            }
            frames.extend_from_slice(&next.framed);
            kept.extend(self.pending.pop_front().map(|next| Kept { after: self.known_end, ..next }));
        }
        let level = match self.level {
            RecordLevel::Memory => 0,
            RecordLevel::Durable => DURABLE,
            RecordLevel::Visible => PUBLISHABLE,
        };
        let call = chunk.send(&self.cluster, Some(SharedBuf::from_owner(frames)), level);
        self.running.spawn(async move { Event::Sent { kept, outcome: call.await, level } });
        Ok(())
    }

    /// Makes what is in the chunk durable, and publishes it.
    fn publish(&mut self) {
        let Some(chunk) = self.chunk else { return };
        let call = chunk.send(&self.cluster, None, PUBLISHABLE);
        let (volume, inode, path) = (self.volume.clone(), self.inode, self.path.clone());
        self.running.spawn(async move {
            let end = match call.await {
                Ok(answer) => answer.end,
                Err(why) => return Event::Published(Err(Failed::Chunk(why))),
            };
            let published = publish_to(&volume, inode, &path, (chunk.number, end)).await;
            Event::Published(published.map(|()| end).map_err(Failed::Meta))
        });
    }

    async fn handle(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Sent { kept, outcome: Ok(answer), level } => {
                (self.later_since, self.attempts) = (None, 0);
                self.known_end = self.known_end.max(answer.end);
                if level >= DURABLE {
                    self.note_durable(answer.end);
                } else {
                    self.note_durable(answer.durable);
                }
                self.unpublished = true;
                self.acknowledged(kept, &answer, level).await?;
                if answer.publish {
                    self.publish();
                }
                Ok(())
            }
            Event::Sent { mut kept, outcome: Err(NotTaken::Later(why)), .. } => {
                self.wait_a_moment(&why).await?;
                // In front of what came later, in the order in which they were.
                kept.extend(self.pending.drain(..));
                kept.sort_by_key(|kept| kept.sequence);
                self.pending = kept.into();
                Ok(())
            }
            Event::Sent { kept, outcome: Err(NotTaken::Over(why)), .. } => {
                self.unresolved.extend(kept);
                self.over.get_or_insert(why);
                Ok(())
            }
            Event::Published(Ok(end)) => {
                (self.later_since, self.attempts) = (None, 0);
                self.known_end = self.known_end.max(end);
                self.note_durable(end);
                self.unpublished = self.known_end > end;
                Ok(())
            }
            Event::Published(Err(Failed::Chunk(NotTaken::Later(why)))) => self.wait_a_moment(&why).await,
            Event::Published(Err(Failed::Chunk(NotTaken::Over(why)))) => {
                self.over.get_or_insert(why);
                Ok(())
            }
            Event::Published(Err(Failed::Meta(error))) => Err(error),
        }
    }

    async fn acknowledged(&mut self, kept: Vec<Kept>, answer: &RecordAppendResponse, level: u32) -> Result<()> {
        if level == PUBLISHABLE
            && let Some(chunk) = self.chunk
        {
            let to = (chunk.number, answer.end);
            publish_to(&self.volume, self.inode, &self.path, to).await?;
            self.unpublished = self.known_end > answer.end;
        }
        for mut kept in kept {
            kept.end = answer.end;
            kept.tell(Ok(()));
            if kept.end > self.durable {
                self.unsynced.push_back(kept);
            }
        }
        Ok(())
    }

    fn note_durable(&mut self, durable: u64) {
        if durable > self.durable {
            (self.durable, self.last_durable) = (durable, self.cluster.clock.now());
        }
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

    /// The present append is closed, by whomever. What of this writer is in it is done, the rest is sent to the next one.
    async fn settle(&mut self) -> Result<()> {
        let why = self.over.take().unwrap_or_default();
        let Some(chunk) = self.chunk.take() else { return Ok(()) };
        tracing::debug!(chunk = %chunk.id, why, unresolved = self.unresolved.len(), "an open append is closed");
        // Many find out at the same moment; one is enough.
        tokio::time::sleep(self.cluster.jitter(LATER)).await;
        let published = settle::close(&self.volume, (self.inode, &self.path), chunk, self.durable).await?;
        let mut doubtful: Vec<Kept> = std::mem::take(&mut self.unresolved);
        doubtful.extend(self.unsynced.drain(..));
        if let Some(from) = doubtful.iter().map(|kept| kept.after).min() {
            let (mut there, writer) = (BTreeSet::new(), self.writer);
            let note = |frame: &RecordFrame| {
                if frame.writer == writer {
                    there.insert(frame.sequence);
                }
            };
            settle::walk(&self.volume, chunk, from.min(published), published, note).await?;
            let (present, mut absent): (Vec<Kept>, Vec<Kept>) =
                doubtful.into_iter().partition(|kept| there.contains(&kept.sequence));
            present.into_iter().for_each(|mut kept| kept.tell(Ok(())));
            absent.extend(self.pending.drain(..));
            absent.sort_by_key(|kept| kept.sequence);
            self.pending = absent.into();
        }
        (self.known_end, self.durable, self.unpublished) = (0, 0, false);
        self.attempts += 1;
        if self.attempts > ATTEMPTS_MAX {
            let what = String::from_utf8_lossy(&self.path).into_owned();
            let text = format!("{ATTEMPTS_MAX} chunks one after the other took none of its records: {why}");
            return Err(ClientError::remote(&what, ErrorCode::Unavailable, &text));
        }
        Ok(())
    }

    /// The file's open append; makes one if there is none.
    async fn open(&mut self) -> Result<AppendChunk> {
        let (inode, path) = (self.inode, self.path.clone());
        let what = String::from_utf8_lossy(&path).into_owned();
        let mut tries = 0;
        loop {
            let last = self.volume.get_append(inode, &path, 0).await.map_err(|error| explain(error, &what))?.append;
            let last = last.unwrap_or_default();
            if last.open {
                return Ok(self.goes_to(AppendChunk::of(inode, &last)).await);
            }
            let session = self.volume.caller().writer_session().await?.id;
            let (volume, scheme) = (self.volume.id(), self.layout.scheme().short_scheme());
            let opened = open_index(&self.cluster, Target { volume, scheme, session }, &self.avoided).await?;
            let request = OpenAppendRequest {
                after: last.number,
                pg: opened.pg.id.0,
                index: opened.index,
                creation_epoch: opened.creation_epoch,
                ..OpenAppendRequest::default()
            };
            match self.volume.open_append(inode, &path, request).await {
                Ok(answer) => {
                    let append =
                        answer.append.ok_or_else(|| ClientError::protocol(&what, "the answer has no append"))?;
                    return Ok(self.goes_to(AppendChunk::of(inode, &append)).await);
                }
                Err(error) if error.code() == Some(ErrorCode::Conflict) && tries < ATTEMPTS_MAX => tries += 1,
                Err(error) => return Err(explain(error, &what)),
            }
        }
    }

    async fn goes_to(&mut self, chunk: AppendChunk) -> AppendChunk {
        if self.cluster.view().pgs.get(&chunk.id.pg.0).is_none_or(|pg| pg.epoch.0 < chunk.creation_epoch) {
            crate::append::open::refresh_quietly(&self.cluster).await;
        }
        self.chunk = Some(chunk);
        (self.known_end, self.durable) = (0, 0);
        chunk
    }

    /// Nothing goes on: all that wait are told.
    fn fail(mut self, error: ClientError, mut commands: mpsc::Receiver<Command>) {
        tracing::debug!(%error, "a record appender gave up");
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
