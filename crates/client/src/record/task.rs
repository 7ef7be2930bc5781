//! The task of a writer of records: sends them in order, publishes when it is its turn, goes on in the next chunk, and
//! after a failure finds out what of its records is there.
//!
//! Bounds: [`IN_FLIGHT_MAX`] requests are unanswered, [`QUEUE_MAX`] records wait. Records of one writer stand in the
//! file in the order in which they were given, unless some had to be sent again.
use super::appender::{RecordLevel, RecordOptions, ended, window_kib};
use super::chunk::{AppendChunk, Asks, DURABLE, NotTaken, PUBLISHABLE, send_long, tell};
use super::kept::{Kept, Unsynced};
use super::lanes::Lanes;
use super::left::Known;
use super::opening::{find_or_open, forget_open, is_still_open};
use super::publish::{Publisher, Publishers, publish_all, publish_answered};
use super::settle;
use crate::append::open::Avoided;
use crate::cluster::Cluster;
use crate::error::{ClientError, Result};
use crate::meta::volume::Volume;
use cairn_env::buf::SharedBuf;
use cairn_format::record_frame::RecordFrame;
use cairn_rpc::Payload;
use cairn_types::{ErrorCode, Layout, Time};
use cairn_wire::data::{RecordAppendResponse, RecordsTold};
use std::collections::VecDeque;
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
/// What is in the members' memory is made durable, and what is not in the file published, after so long without another
/// record.
const SYNC_AFTER: Duration = Duration::from_secs(1);
/// Before a request that was refused for the moment is repeated.
const LATER: Duration = Duration::from_millis(50);
/// A chunk that was not used for so long may be closed.
pub(super) const PAUSE: Duration = Duration::from_secs(30);
/// Appends that are tried one after the other for the same records without one of them getting any further.
pub(super) const ATTEMPTS_MAX: u32 = 64;

pub(super) enum Command {
    Record(Vec<u8>, OwnedSemaphorePermit, oneshot::Sender<Result<()>>),
    Flush(oneshot::Sender<Result<()>>),
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
    unsynced: Unsynced,
    /// They are being made durable.
    syncing: bool,
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
    publisher: Arc<Publisher>,
    _known: Known,
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
    if level == PUBLISHABLE {
        publish_answered(&volume, (inode, &path), chunk, &mut answer).await.map_err(Failed::Meta)?;
    }
    Ok(answer)
}

impl Task {
    pub(super) fn new(volume: Volume, (inode, path): (u64, &[u8]), layout: Layout, options: RecordOptions) -> Self {
        let cluster = volume.cluster().clone();
        let (writer, first) = options.writer.unwrap_or_else(|| (cluster.rng.u64(), 1));
        let publisher = cluster.shared.of::<Publishers>().of(volume.id(), inode);
        Task {
            _known: Known::new(&cluster, writer),
            writer,
            lanes: Lanes::new(writer, publisher.lanes_known.clone()),
            publisher,
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
            unsynced: Unsynced::new(window_kib(&options) as usize / 2),
            syncing: false,
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
                self.pending.push_back(Kept { sequence, framed, after: 0, end: 0, done, permit });
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
        if !self.syncing && self.unsynced.is_much() {
            self.look();
        }
        let idle = self.pending.is_empty() && self.running.is_empty();
        let wanted = !self.flushes.is_empty();
        let now = self.cluster.clock.now();
        let due = |since: Time| now.since(since) >= SYNC_AFTER;
        if idle && wanted && self.unpublished.is_some() {
            self.publish();
        } else if idle && self.unpublished.is_some_and(due) {
            self.look();
        } else if idle && wanted {
            self.flushes.drain(..).for_each(|done| drop(done.send(Ok(()))));
        }
        Ok(())
    }

    /// One that was not used for long may be closed by now: its primary would have us wait for somebody who tells where
    /// the file goes on.
    async fn look_after_a_pause(&mut self) -> Result<()> {
        let now = self.cluster.clock.now();
        let Some(chunk) = self.chunk.filter(|_| self.running.is_empty() && self.over.is_none()) else { return Ok(()) };
        if self.pending.is_empty() || now.since(self.used) < PAUSE {
            return Ok(());
        }
        self.used = now;
        let is_open = is_still_open(&self.volume, (self.inode, &self.path), self.lanes.lane, chunk).await?;
        if !is_open {
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
            let after = self.known_end.max(chunk.published);
            kept.extend(self.pending.pop_front().map(|next| Kept { after, ..next }));
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
        Asks { level, lanes: self.lanes.count(), writer: self.writer }
    }

    /// Makes what is in the chunk durable, and asks whether the file has it. The primary has somebody publish it if
    /// nobody did since it came.
    fn look(&mut self) {
        let Some(chunk) = self.chunk else { return };
        self.syncing = true;
        let call = chunk.send(&self.cluster, Payload::None, self.asks(DURABLE), None);
        self.running.spawn(async move {
            Event::Sent { kept: Vec::new(), outcome: call.await.map_err(Failed::Chunk), level: DURABLE }
        });
    }

    /// Makes what is in the chunk durable, and sees to it that it is published.
    fn publish(&mut self) {
        let Some(chunk) = self.chunk else { return };
        let call = chunk.send(&self.cluster, Payload::None, self.asks(PUBLISHABLE), None);
        let (volume, file) = (self.volume.clone(), (self.inode, self.path.clone()));
        self.running.spawn(async move { Event::Published(deliver(call, PUBLISHABLE, volume, file, chunk).await) });
    }

    /// The same for all lanes in which this client's writers left something, because the primary asks for it.
    fn publish_all(&mut self) {
        let Some(chunk) = self.chunk else { return };
        let mut asked = self.publisher.begin(chunk).into_iter();
        let Some(first) = asked.next() else { return };
        let call = chunk.send(&self.cluster, Payload::None, self.asks(PUBLISHABLE), None);
        let mut others = JoinSet::new();
        for other in asked {
            let call = other.chunk.send(&self.cluster, Payload::None, self.asks(PUBLISHABLE), None);
            others.spawn(async move { (other, call.await) });
        }
        let (volume, file) = (self.volume.clone(), (self.inode, self.path.clone()));
        self.running.spawn(async move {
            let outcome = publish_all(volume, file, (first, call), others).await;
            Event::Published(outcome.map_err(Failed::Meta).and_then(|answer| answer.map_err(Failed::Chunk)))
        });
    }

    async fn handle(&mut self, event: Event) -> Result<()> {
        self.syncing &= !matches!(&event, Event::Sent { kept, .. } if kept.is_empty());
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
                if let Some(chunk) = self.chunk {
                    self.publisher.heard(self.lanes.lane, chunk, &answer);
                }
                self.lanes.hear(&answer);
                self.used = self.cluster.clock.now();
                self.known_end = self.known_end.max(answer.end);
                self.note_durable(if level >= DURABLE { answer.end } else { answer.durable });
                let now = self.cluster.clock.now();
                let since = self.unpublished.filter(|_| !kept.is_empty()).unwrap_or(now);
                self.acknowledged(kept, answer.end);
                let lacks = self.known_end > answer.published || !self.unsynced.is_empty();
                self.unpublished = lacks.then_some(since);
                if answer.publish {
                    self.publish_all();
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
            Some(next) if next.number > chunk.number => self.moved = Some((answer.published, chunk.going_on(&next))),
            // Where it goes on is in the metadata, if this is nonsense.
            Some(_) => {
                self.over.get_or_insert_with(|| "its primary named no later one".to_owned());
            }
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
                self.unsynced.push(kept);
            }
        }
    }

    fn note_durable(&mut self, durable: u64) {
        self.durable = self.durable.max(durable);
        self.unsynced.forget_up_to(self.durable);
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
            && self.unsynced.end() <= closed_at
        {
            // All of this writer's is in the file: whoever closed it published it up to its end.
            drop(self.unsynced.take());
            (self.unpublished, self.left) = (None, self.left.max(next.number - 1));
            self.goes_to(next).await;
            return Ok(());
        }
        self.over.get_or_insert_with(|| "its file goes on elsewhere".to_owned());
        self.settle().await
    }

    /// The present append is closed, by whomever. What of this writer is in it is done, the rest is sent to the next
    /// one.
    async fn settle(&mut self) -> Result<()> {
        let why = self.over.take().unwrap_or_default();
        let Some(chunk) = self.chunk.take() else { return Ok(()) };
        tracing::debug!(chunk = %chunk.id, why, unresolved = self.unresolved.len(), "an open append is closed");
        if !self.rolls {
            // Many find out at the same moment; one is enough.
            tokio::time::sleep(self.cluster.jitter(LATER)).await;
        }
        let file = (self.inode, &*self.path);
        let left = settle::settle(&self.volume, file, chunk, self.durable).await?;
        self.left = self.left.max(chunk.number);
        forget_open(&self.volume, self.inode, self.lanes.lane, chunk).await;
        let mut doubtful: Vec<Kept> = std::mem::take(&mut self.unresolved);
        doubtful.extend(self.unsynced.take());
        if let Some(after) = doubtful.iter().map(|kept| kept.after).min() {
            let asked = (self.writer, doubtful.iter().map(|kept| kept.sequence));
            let there = match left.which(&self.volume, chunk, after.min(left.published), asked).await {
                Ok(there) => there,
                Err(error) => {
                    // Whoever waits for them hears why.
                    self.unresolved = doubtful;
                    return Err(error);
                }
            };
            let (present, absent): (Vec<_>, Vec<_>) = doubtful.into_iter().zip(there).partition(|(_, there)| *there);
            present.into_iter().for_each(|(mut kept, _)| kept.tell(Ok(())));
            self.put_back(absent.into_iter().map(|(kept, _)| kept).collect());
        }
        self.tells = Some((chunk, left.published));
        (self.known_end, self.durable, self.unpublished) = (0, 0, None);
        self.attempts += 1;
        if self.attempts > ATTEMPTS_MAX {
            let what = String::from_utf8_lossy(&self.path).into_owned();
            let text = format!("{ATTEMPTS_MAX} chunks one after the other took none of its records: {why}");
            return Err(ClientError::remote(&what, ErrorCode::Unavailable, &text));
        }
        if std::mem::take(&mut self.rolls) {
            // The others wait for it.
            self.open(true).await?;
            return Ok(());
        }
        Ok(())
    }

    /// The file's open append; makes one if there is none. `tells`: others wait to hear of it, whoever made it.
    async fn open(&mut self, tells: bool) -> Result<AppendChunk> {
        let (file, lane) = ((self.inode, &*self.path), self.lanes.lane);
        let (chunk, is_new) = find_or_open(&self.volume, file, (lane, self.left), (self.layout, &self.avoided)).await?;
        if !is_new {
            // Whoever made it tells, or nobody waits for it.
            self.tells = self.tells.take().filter(|_| tells);
        }
        Ok(self.goes_to(chunk).await)
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
            self.cluster.refresh_quietly().await;
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
        let records = self.pending.drain(..).chain(self.unsynced.take()).chain(self.unresolved.drain(..));
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
