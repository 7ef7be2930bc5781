//! An append stream: one task that moves segments into chunks, keeps them until they are durable, and goes on elsewhere
//! when a member fails.
//!
//! Bounds: [`WINDOW_BYTES`] of segments wait, are sent or are not yet durable; [`IN_FLIGHT_MAX`] appends a chunk are
//! unanswered. A chunk that answers nothing for a moment has its members looked at: deadlines of seconds are for slow
//! disks, not for members that stand still. Not here: what a file is (`file_writer`), choice of placement groups
//! (`open`, `pick`).
use super::chunk::OpenChunk;
use super::open::{Avoided, open_chunk};
use super::segment::Segment;
use super::target::Target;
use crate::cluster::Cluster;
use crate::error::{ClientError, Result};
use crate::net::{NetError, stream_of};
use crate::stripe::suspects::{Look, Seen};
use cairn_rpc::{CallOptions, Payload};
use cairn_types::{Epoch, ErrorCode, ExtentKind, SessionId};
use cairn_wire::Opcode;
use cairn_wire::data::{
    AppendRequest, AppendResponse, ChunkHeader, SealRequest, SealResponse, SyncRequest, SyncResponse,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, Semaphore, mpsc};

/// Memory of a stream: segments that wait, are on their way or are not yet durable.
pub(crate) const WINDOW_BYTES: usize = 32 << 20;
/// Unanswered appends of a chunk.
const IN_FLIGHT_MAX: usize = 8;
/// A background sync is started for so many bytes.
const SYNC_EVERY: u64 = 8 << 20;
/// Unanswered requests for segments in the queue to the task.
const QUEUE_MAX: usize = 256;
/// Deadline of an append, longer than what members give the disks further down the chain. A member that stands still is
/// found long before.
const APPEND_DEADLINE: Duration = Duration::from_secs(6);
/// Deadline of a sync.
const SYNC_DEADLINE: Duration = Duration::from_secs(10);
/// Deadline of a seal; the primary seals idle chunks anyway.
const SEAL_DEADLINE: Duration = Duration::from_secs(2);
/// Before what was shown is tried again after no group could be written for the whole patience.
const SHOWN_PAUSE: Duration = Duration::from_secs(1);
/// An open chunk without traffic is sealed.
const IDLE_SEAL: Duration = Duration::from_secs(20);
/// Chunks are looked at for silence so often.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// Where writers put their segments. Dropping all handles drains and ends the stream.
#[derive(Clone)]
pub(crate) struct StreamHandle {
    segments: mpsc::Sender<Segment>,
    /// A permit is a KiB.
    pub(crate) window: Arc<Semaphore>,
    /// Whose chunks it writes.
    pub(crate) session: SessionId,
    hurry: Arc<Notify>,
}

impl StreamHandle {
    /// What is not durable becomes so now.
    pub(crate) fn sync_now(&self) {
        self.hurry.notify_one();
    }
    /// Memory for a segment of so many bytes; waits while the window is full.
    pub(crate) async fn reserve(&self, bytes: usize) -> Result<tokio::sync::OwnedSemaphorePermit> {
        let kib = u32::try_from(bytes.div_ceil(1024).max(1)).unwrap_or(u32::MAX);
        self.window.clone().acquire_many_owned(kib).await.map_err(|_| ended())
    }
    pub(crate) async fn push(&self, segment: Segment) -> Result<()> {
        self.segments.send(segment).await.map_err(|_| ended())
    }
    pub(crate) fn is_ended(&self) -> bool {
        self.segments.is_closed()
    }
}

fn ended() -> ClientError {
    ClientError::protocol("append stream", "it ended while it was used")
}

enum Event {
    Opened(Box<Result<OpenChunk>>),
    Appended {
        key: u64,
        offset: u64,
        synced: bool,
        result: std::result::Result<AppendResponse, NetError>,
    },
    Synced {
        key: u64,
        result: std::result::Result<SyncResponse, NetError>,
    },
    /// The members of a chunk were looked at.
    Looked {
        key: u64,
        look: Look,
    },
}

struct Stream {
    cluster: Arc<Cluster>,
    target: Target,
    avoided: Arc<Avoided>,
    segments: mpsc::Receiver<Segment>,
    /// Somebody waits for what was shown to become durable.
    hurry: Arc<Notify>,
    events: mpsc::UnboundedReceiver<Event>,
    // Bounded by the calls in flight: at most IN_FLIGHT_MAX + 2 a chunk and one opening.
    sender: mpsc::UnboundedSender<Event>,
    pending: VecDeque<Segment>,
    chunks: BTreeMap<u64, OpenChunk>,
    current: Option<u64>,
    next_key: u64,
    opening: bool,
    /// Before the next chunk is opened.
    pause: Duration,
}

/// Starts a stream on the current runtime.
pub(crate) fn start(cluster: Arc<Cluster>, target: Target) -> StreamHandle {
    let (segments, receiver) = mpsc::channel(QUEUE_MAX);
    let (sender, events) = mpsc::unbounded_channel();
    let hurry = Arc::new(Notify::new());
    let stream = Stream {
        cluster,
        target,
        avoided: Arc::default(),
        segments: receiver,
        hurry: hurry.clone(),
        events,
        sender,
        pending: VecDeque::new(),
        chunks: BTreeMap::new(),
        current: None,
        next_key: 1,
        opening: false,
        pause: Duration::ZERO,
    };
    tokio::spawn(stream.run());
    StreamHandle { segments, window: Arc::new(Semaphore::new(WINDOW_BYTES / 1024)), session: target.session, hurry }
}

impl Stream {
    async fn run(mut self) {
        let mut open = true;
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while open || !self.is_drained() {
            if !open && self.pending.is_empty() {
                // Nobody is there any more to ask for the sync of the last ones.
                self.close_current();
            }
            self.pump();
            tokio::select! {
                biased;
                event = self.events.recv() => {
                    if let Some(event) = event {
                        self.handle(event);
                    }
                }
                segment = self.segments.recv(), if open => match segment {
                    Some(segment) => self.pending.push_back(segment),
                    None => {
                        open = false;
                        self.close_current();
                    }
                },
                () = self.hurry.notified() => {
                    self.pending.iter_mut().for_each(|segment| segment.sync = true);
                    self.chunks.values_mut().for_each(OpenChunk::want_sync);
                }
                _ = tick.tick(), if self.chunks.values().any(|c| c.silence.waits()) => self.look_for_stalls(),
                () = tokio::time::sleep(IDLE_SEAL), if self.is_quiet() => self.close_current(),
            }
        }
    }
    fn is_drained(&self) -> bool {
        self.pending.is_empty() && self.chunks.is_empty() && !self.opening
    }
    fn is_quiet(&self) -> bool {
        self.pending.is_empty() && self.current.and_then(|k| self.chunks.get(&k)).is_some_and(OpenChunk::is_idle)
    }
    fn close_current(&mut self) {
        if let Some(chunk) = self.current.take().and_then(|key| self.chunks.get_mut(&key)) {
            chunk.closing = true;
        }
    }

    /// Sends what can be sent, syncs what should be synced, seals what is done.
    fn pump(&mut self) {
        while let Some(segment) = self.pending.front() {
            let bytes = segment.data.len();
            match self.current.and_then(|key| self.chunks.get(&key)) {
                Some(chunk) if chunk.has_room(bytes) => {
                    if chunk.in_flight() >= IN_FLIGHT_MAX {
                        break;
                    }
                    self.send_next();
                }
                Some(_) => self.close_current(),
                None => {
                    self.open();
                    break;
                }
            }
        }
        let keys: Vec<u64> = self.chunks.keys().copied().collect();
        for key in keys {
            self.settle(key);
        }
    }

    fn open(&mut self) {
        if self.opening {
            return;
        }
        self.opening = true;
        let (cluster, target, avoided) = (self.cluster.clone(), self.target, self.avoided.clone());
        let sender = self.sender.clone();
        let pause = std::mem::take(&mut self.pause);
        tokio::spawn(async move {
            if !pause.is_zero() {
                tokio::time::sleep(cluster.jitter(pause)).await;
            }
            let opened = open_chunk(cluster, target, avoided).await;
            // Fails only when the stream has ended.
            let _ended = sender.send(Event::Opened(Box::new(opened)));
        });
    }

    fn send_next(&mut self) {
        let last = self.pending.len() == 1;
        let (Some(key), Some(segment)) = (self.current, self.pending.pop_front()) else { return };
        let Some(chunk) = self.chunks.get_mut(&key) else { return };
        // With more on the way, one sync after them serves all.
        let sync = segment.sync && last && !chunk.sync_in_flight && chunk.in_flight() == 0;
        let (data, crcs) = (segment.data.clone(), segment.crcs.clone());
        chunk.silence.asked(self.cluster.clock.now());
        let offset = chunk.place(segment);
        chunk.sync_in_flight |= sync;
        let request = AppendRequest {
            chunk: Some(header(chunk, self.target)),
            creation_epoch: chunk.creation_epoch,
            offset,
            crcs,
            chain: chunk.chain.clone(),
            sync,
            scheme: u32::from(chunk.scheme),
            repair: false,
            row_crcs: Vec::new(),
            follows: None,
            local: None,
        };
        let address = self.cluster.disk_address(chunk.primary);
        let (net, sender) = (self.cluster.net.clone(), self.sender.clone());
        let deadline = if sync { SYNC_DEADLINE } else { APPEND_DEADLINE };
        let options = CallOptions::new(deadline).bulk().stream(stream_of(chunk.id));
        // Queued here and now: appends have to arrive in their order.
        let call = address.map(|address| {
            net.call_with::<AppendResponse, _>(&address, Opcode::Append, &request, Payload::One(data), options)
        });
        tokio::spawn(async move {
            let result = match call {
                Ok(call) => call.await.map(|(answer, _)| answer),
                Err(error) => Err(error),
            };
            let _ended = sender.send(Event::Appended { key, offset, synced: sync, result });
        });
    }

    /// Syncs a chunk if somebody waits or enough has gathered; seals and forgets it when it is done.
    fn settle(&mut self, key: u64) {
        let Some(chunk) = self.chunks.get_mut(&key) else { return };
        if chunk.closing && chunk.is_idle() {
            let request = SealRequest { chunk: Some(header(chunk, self.target)), chain: chunk.chain.clone() };
            let address = self.cluster.disk_address(chunk.primary);
            let net = self.cluster.net.clone();
            tokio::spawn(async move {
                let Ok(address) = address else { return };
                if let Err(error) = net.call::<SealResponse>(&address, Opcode::Seal, &request, SEAL_DEADLINE).await {
                    tracing::debug!(error = error.text(), "a chunk was left to be sealed by its primary");
                }
            });
            self.chunks.remove(&key);
            return;
        }
        let unsynced = chunk.unsynced();
        let wanted =
            chunk.has_waiters() || unsynced >= SYNC_EVERY || chunk.closing && unsynced > 0 && chunk.in_flight() == 0;
        if chunk.sync_in_flight || !wanted {
            return;
        }
        chunk.silence.asked(self.cluster.clock.now());
        chunk.sync_in_flight = true;
        let request = SyncRequest { chunk: Some(header(chunk, self.target)), chain: chunk.chain.clone() };
        let address = self.cluster.disk_address(chunk.primary);
        let (net, sender) = (self.cluster.net.clone(), self.sender.clone());
        tokio::spawn(async move {
            let result = match address {
                Ok(address) => net.call::<SyncResponse>(&address, Opcode::Sync, &request, SYNC_DEADLINE).await,
                Err(error) => Err(error),
            };
            let _ended = sender.send(Event::Synced { key, result });
        });
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Opened(opened) => {
                self.opening = false;
                match *opened {
                    Ok(chunk) => {
                        self.current = Some(self.next_key);
                        self.chunks.insert(self.next_key, chunk);
                        self.next_key += 1;
                    }
                    Err(error) => self.fail_pending(&error),
                }
            }
            Event::Appended { key, offset, synced, result } => {
                let Some(chunk) = self.chunks.get_mut(&key) else { return };
                let result = result
                    .and_then(|answer| chunk.check_stamps(&answer.members).map_err(NetError::Unknown).map(|()| answer));
                match result {
                    Ok(answer) => {
                        chunk.silence.answered(self.cluster.clock.now());
                        chunk.acknowledge(offset);
                        if synced {
                            chunk.sync_in_flight = false;
                            chunk.make_durable(answer.durable_length);
                        }
                        if chunk.is_nearly_full() && self.current == Some(key) {
                            self.close_current();
                        }
                    }
                    Err(error) => self.fail_chunk(key, &error),
                }
            }
            Event::Looked { key, look } => self.looked(key, look),
            Event::Synced { key, result } => {
                let Some(chunk) = self.chunks.get_mut(&key) else { return };
                let result = result
                    .and_then(|answer| chunk.check_stamps(&answer.members).map_err(NetError::Unknown).map(|()| answer));
                match result {
                    Ok(answer) => {
                        chunk.silence.answered(self.cluster.clock.now());
                        chunk.sync_in_flight = false;
                        chunk.make_durable(answer.durable_length);
                    }
                    Err(error) => self.fail_chunk(key, &error),
                }
            }
        }
    }

    /// Looks at the members of chunks that answer nothing.
    fn look_for_stalls(&mut self) {
        let now = self.cluster.clock.now();
        for (key, chunk) in self.chunks.iter_mut() {
            if !chunk.silence.takes_look(now) {
                continue;
            }
            let seen = Seen { session: self.target.session, pg: chunk.id.pg.0, epoch: chunk.epoch.0 };
            let (cluster, sender, key, members) = (self.cluster.clone(), self.sender.clone(), *key, chunk.members());
            tokio::spawn(async move {
                let look = cluster.look_at(seen, members).await;
                let _ended = sender.send(Event::Looked { key, look });
            });
        }
    }

    /// Under a new epoch a chunk takes no more: what waits for a member that left is sent elsewhere.
    fn looked(&mut self, key: u64, look: Look) {
        let now = self.cluster.clock.now();
        let Some(chunk) = self.chunks.get_mut(&key) else { return };
        if let Some(after) = look.again {
            chunk.silence.look_again(now, after);
        }
        let known = self.cluster.view().pgs.get(&chunk.id.pg.0).map_or(Epoch(0), |pg| pg.epoch);
        if known <= chunk.epoch || !chunk.silence.waits() {
            return;
        }
        let text = format!("{} is at {known} now, without a member that did not answer", chunk.id.pg);
        tracing::warn!(chunk = %chunk.id, text, "going on in another chunk");
        self.send_again(key, &NetError::Unknown(text));
    }

    /// Gives a chunk up: who failed is reported, what was not durable goes to the next chunk.
    fn fail_chunk(&mut self, key: u64, error: &NetError) {
        let Some(chunk) = self.chunks.get(&key) else { return };
        tracing::warn!(chunk = %chunk.id, error = error.text(), "going on in another chunk");
        self.report(chunk, error);
        self.send_again(key, error);
    }

    fn send_again(&mut self, key: u64, error: &NetError) {
        let Some(mut chunk) = self.chunks.remove(&key) else { return };
        if self.current == Some(key) {
            self.current = None;
        }
        let (now, patience) = (self.cluster.clock.now(), self.cluster.patience);
        for (offset, length) in chunk.unsynced_places() {
            self.cluster.abandoned.add(self.target.session, chunk.id, ExtentKind::Plain, offset, length);
        }
        let mut back: Vec<Segment> = chunk.take_unsynced();
        for segment in back.iter_mut() {
            segment.retry.failed(now, error);
            // They may go to a chunk that was opened behind this one and has what followed, the segment that asks for
            // the sync of all among it: it may be durable and gone, and nobody else would ask for theirs.
            segment.sync = true;
        }
        let (dead, back): (Vec<_>, Vec<_>) = back.into_iter().partition(|s| match s.is_shown() {
            // It has a name: there is no writer any more who would write it anew.
            true => s.retry.is_hopeless(),
            false => s.retry.is_over(now, patience),
        });
        for segment in dead {
            let what = format!("writing to {}", chunk.id);
            let detail = format!("{} chunks failed, the last with: {}", segment.retry.times(), error.text());
            segment.fail(&ClientError::NoWritableGroup { what, detail, full: error.is_full() });
        }
        for segment in back.into_iter().rev() {
            self.pause = self.pause.max(segment.retry.pause());
            self.pending.push_front(segment);
        }
    }

    fn report(&self, chunk: &OpenChunk, error: &NetError) {
        let now = self.cluster.clock.now();
        let (culprit, full) = match error {
            NetError::NotSent(_) | NetError::Unknown(_) => (Some(chunk.primary), false),
            NetError::Remote(error) => match error.code {
                ErrorCode::ChainFailed => (error.failed_disk, false),
                ErrorCode::DiskFailed | ErrorCode::DeadlineExceeded => (Some(chunk.primary), false),
                ErrorCode::NoSpace | ErrorCode::PgFull => (None, true),
                _ => (None, false),
            },
        };
        if culprit.is_some() || full {
            self.avoided.add(chunk.id.pg, now, full);
        }
        let seal = SealRequest { chunk: Some(header(chunk, self.target)), chain: chunk.chain.clone() };
        let address = self.cluster.disk_address(chunk.primary);
        let seen = Seen { session: self.target.session, pg: chunk.id.pg.0, epoch: chunk.epoch.0 };
        let report = culprit.map(|disk| self.cluster.report_suspect(seen, disk, error.text()));
        let (cluster, sealable) = (self.cluster.clone(), culprit != Some(chunk.primary));
        tokio::spawn(async move {
            match report {
                Some(report) => drop(report.await),
                None => cluster.refresh_quietly().await,
            }
            // Best effort: under a new epoch the primary seals it by itself.
            if let (true, Ok(address)) = (sealable, address) {
                let _left_to_primary =
                    cluster.net.call::<SealResponse>(&address, Opcode::Seal, &seal, SEAL_DEADLINE).await;
            }
        });
    }

    fn fail_pending(&mut self, error: &ClientError) {
        let (shown, waiting): (VecDeque<_>, VecDeque<_>) = self.pending.drain(..).partition(Segment::is_shown);
        waiting.into_iter().for_each(|segment| segment.fail(error));
        if !shown.is_empty() {
            tracing::warn!(segments = shown.len(), %error, "closed files cannot be made durable yet; it is tried again");
            (self.pending, self.pause) = (shown, SHOWN_PAUSE);
        }
    }
}

fn header(chunk: &OpenChunk, target: Target) -> ChunkHeader {
    ChunkHeader {
        disk: chunk.primary,
        pg: chunk.id.pg.0,
        index: chunk.id.index,
        epoch: chunk.epoch.0,
        session: target.session.0,
    }
}
