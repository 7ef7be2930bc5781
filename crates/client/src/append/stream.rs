//! A write stream: one task that moves parts of files into open chunks, keeps them until they are durable, and goes on
//! elsewhere when a member fails.
//!
//! What it writes is a [`Shape`]. An open chunk has lanes, each a member with those to which it passes bytes on: a
//! replicated chunk one, an erasure chunk one for each shard, a stripe set one for each column. Bounds: [`Bounds`]. Not
//! here: what is in a chunk (`chunk`), what a file is (`file_writer`), the choice of placement groups (`open`, `pick`),
//! what follows from a failure (`failure`).
mod failure;

use super::chunk::OpenChunk;
use super::columns::Seat;
use super::lane::Answer;
use super::open::{Avoided, open_chunk};
use super::part::{Cut, Part};
use super::queue::Queue;
use super::shape::{Bounds, Shape};
use super::target::Target;
use crate::cluster::Cluster;
use crate::error::{ClientError, Result};
use crate::net::{NetError, stream_of};
use crate::stripe::encode::Encoder;
use crate::stripe::suspects::Look;
use cairn_env::buf::{AlignedBuf, BufPool};
use cairn_erasure::Codec;
use cairn_rpc::{CallOptions, Payload};
use cairn_types::SessionId;
use cairn_wire::Opcode;
use cairn_wire::data::{AppendResponse, SyncResponse};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};

/// Unanswered requests for parts in the queue to the task.
const QUEUE_MAX: usize = 256;
/// Deadline of an append, longer than what members give the disks further down the chain. A member that stands still is
/// found long before.
const APPEND_DEADLINE: Duration = Duration::from_secs(6);
/// Parity that a stream keeps pages for; what is beyond is allocated as it is needed.
const PARITY_POOL_BYTES: usize = 32 << 20;
/// Deadline of a sync.
const SYNC_DEADLINE: Duration = Duration::from_secs(10);
/// An open chunk without traffic is sealed.
const IDLE_SEAL: Duration = Duration::from_secs(20);
/// Chunks are looked at for silence so often.
const TICK: Duration = Duration::from_millis(100);

/// Where writers put their parts. Dropping all handles drains and ends the stream.
#[derive(Clone)]
pub(crate) struct WriteStream {
    parts: mpsc::Sender<Part>,
    /// A permit is a KiB.
    window: Arc<Semaphore>,
    window_bytes: usize,
    /// Whose chunks it writes.
    pub(crate) session: SessionId,
    hurry: Arc<Notify>,
}

impl WriteStream {
    /// What is not durable becomes so now.
    pub(crate) fn sync_now(&self) {
        self.hurry.notify_one();
    }
    /// Memory for a part of so many bytes; waits while the window is full.
    pub(crate) async fn reserve(&self, bytes: usize) -> Result<OwnedSemaphorePermit> {
        let kib = bytes.min(self.window_bytes).div_ceil(1024).max(1) as u32;
        self.window.clone().acquire_many_owned(kib).await.map_err(|_| ended())
    }
    pub(crate) async fn push(&self, part: Part) -> Result<()> {
        self.parts.send(part).await.map_err(|_| ended())
    }
    pub(crate) fn is_same(&self, other: &WriteStream) -> bool {
        self.parts.same_channel(&other.parts)
    }
    pub(crate) fn is_ended(&self) -> bool {
        self.parts.is_closed()
    }
    /// Parts that the task has not taken yet.
    #[cfg(test)]
    pub(crate) fn has_waiting(&self) -> bool {
        self.parts.capacity() < QUEUE_MAX
    }
    /// What its window still takes.
    pub(crate) fn room(&self) -> usize {
        self.window.available_permits() * 1024
    }
    /// It has nothing under way.
    pub(crate) fn is_empty(&self) -> bool {
        self.room() >= self.window_bytes
    }
}

fn ended() -> ClientError {
    ClientError::protocol("write stream", "it ended while it was used")
}

enum Event {
    Opened(Box<Result<OpenChunk>>),
    /// A lane answered to the append at that offset, or to a sync.
    Answered {
        key: u64,
        lane: usize,
        append: Option<u64>,
        synced: bool,
        result: std::result::Result<Answer, NetError>,
    },
    /// The members of a lane were looked at.
    Looked {
        key: u64,
        lane: usize,
        look: Look,
    },
}

struct Stream {
    cluster: Arc<Cluster>,
    target: Target,
    shape: Shape,
    bounds: Bounds,
    avoided: Arc<Avoided>,
    /// The column that it fills, if it fills one.
    seat: Option<Seat>,
    parts: mpsc::Receiver<Part>,
    /// Somebody waits for what was shown to become durable.
    hurry: Arc<Notify>,
    events: mpsc::UnboundedReceiver<Event>,
    // Bounded by the calls in flight: an append of each unanswered part, the syncs and a look a lane, and one opening.
    sender: mpsc::UnboundedSender<Event>,
    queue: Queue,
    chunks: BTreeMap<u64, OpenChunk>,
    current: Option<u64>,
    next_key: u64,
    opening: bool,
    /// Before the next chunk is opened.
    pause: Duration,
}

/// Starts a stream on the current runtime.
pub(crate) fn start(cluster: Arc<Cluster>, target: Target, shape: Shape) -> Result<WriteStream> {
    start_at(cluster, target, shape, None)
}

/// The same; its chunks are in the column of a seat.
pub(super) fn start_at(cluster: Arc<Cluster>, target: Target, shape: Shape, seat: Option<Seat>) -> Result<WriteStream> {
    let (parts, receiver) = mpsc::channel(QUEUE_MAX);
    let (sender, events) = mpsc::unbounded_channel();
    let (hurry, bounds) = (Arc::new(Notify::new()), shape.bounds());
    let encoder = match shape {
        Shape::Segments | Shape::Column(_) | Shape::Units(_) => None,
        Shape::Rows(stripe) => {
            let codec = Codec::for_scheme(target.class.scheme);
            let codec = codec.map_err(|error| ClientError::protocol("write stream", error.to_string()))?;
            Some(Encoder { codec, stripe, pool: BufPool::new(PARITY_POOL_BYTES) })
        }
    };
    let stream = Stream {
        cluster,
        target,
        shape,
        bounds,
        avoided: Arc::default(),
        seat,
        parts: receiver,
        hurry: hurry.clone(),
        events,
        sender,
        queue: Queue::new(encoder),
        chunks: BTreeMap::new(),
        current: None,
        next_key: 1,
        opening: false,
        pause: Duration::ZERO,
    };
    tokio::spawn(stream.run());
    let window = Arc::new(Semaphore::new(bounds.window / 1024));
    Ok(WriteStream { parts, window, window_bytes: bounds.window, session: target.session, hurry })
}

impl Stream {
    async fn run(mut self) {
        let mut open = true;
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while open || !self.is_drained() {
            if !open && self.queue.is_empty() {
                // Nobody is there any more to ask for the sync of the last ones. What waits belongs to the same chunk.
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
                () = self.queue.encoded() => {}
                part = self.parts.recv(), if open => match part {
                    Some(part) => self.queue.push(part),
                    None => open = false,
                },
                () = self.hurry.notified() => {
                    self.queue.want_sync();
                    self.chunks.values_mut().for_each(OpenChunk::want_sync);
                }
                _ = tick.tick(), if self.chunks.values().any(OpenChunk::waits) => self.look_for_stalls(),
                () = tokio::time::sleep(IDLE_SEAL), if self.is_quiet() => self.close_current(),
            }
        }
    }
    fn is_drained(&self) -> bool {
        self.queue.is_empty() && self.chunks.is_empty() && !self.opening
    }
    fn is_quiet(&self) -> bool {
        self.queue.is_empty() && self.current.and_then(|key| self.chunks.get(&key)).is_some_and(OpenChunk::is_idle)
    }
    fn close_current(&mut self) {
        if let Some(chunk) = self.current.take().and_then(|key| self.chunks.get_mut(&key)) {
            chunk.closing = true;
        }
    }

    /// Sends what can be sent, syncs what should be synced, seals what is done.
    fn pump(&mut self) {
        self.queue.begin();
        if self.current.is_none() && !self.queue.is_empty() {
            // While the first rows are encoded, their chunk is opened.
            self.open();
        }
        while let Some(part) = self.queue.next() {
            match self.current.and_then(|key| self.chunks.get(&key)) {
                Some(chunk) if chunk.has_room(part.bytes.len()) => {
                    if chunk.in_flight() >= self.bounds.in_flight {
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
        // What a chunk that is not durable yet may send again was cut for all columns.
        let ends = self.queue.first().filter(|_| self.chunks.is_empty());
        let shape = (self.shape, self.shape.columns(ends));
        let (cluster, target, avoided) = (self.cluster.clone(), self.target, self.avoided.clone());
        let seat = self.seat.clone();
        let sender = self.sender.clone();
        let pause = std::mem::take(&mut self.pause);
        tokio::spawn(async move {
            if !pause.is_zero() {
                tokio::time::sleep(cluster.jitter(pause)).await;
            }
            let opened = open_chunk(cluster, target, shape, avoided, seat).await;
            // Fails only when the stream has ended.
            let _ended = sender.send(Event::Opened(Box::new(opened)));
        });
    }

    fn send_next(&mut self) {
        let Some((key, chunk)) = self.current.and_then(|key| Some((key, self.chunks.get_mut(&key)?))) else { return };
        let Some((part, cuts)) = self.queue.take() else { return };
        // The answer that shows a part is not held up by a sync.
        let may_sync = part.show.is_none();
        let cuts = cuts.unwrap_or_else(|| chunk.cut(&part));
        let placed = chunk.place(part, cuts);
        let sync = may_sync && chunk.wants_sync(self.bounds.sync_every, self.queue.is_empty());
        let mut syncs = if sync { chunk.ask_sync() } else { Vec::new() };
        for (lane, offset, cut) in placed {
            syncs.retain(|other| *other != lane);
            self.append(key, lane, (offset, sync), cut);
        }
        syncs.into_iter().for_each(|lane| self.sync(key, lane));
    }

    /// Syncs a chunk if it should be; seals and forgets it when it is done.
    fn settle(&mut self, key: u64) {
        let Some(chunk) = self.chunks.get_mut(&key) else { return };
        if chunk.closing && chunk.is_idle() {
            if let Some(chunk) = self.chunks.remove(&key) {
                self.seal(&chunk, None, std::future::ready(()));
            }
        } else if chunk.wants_sync(self.bounds.sync_every, self.queue.is_empty()) {
            chunk.ask_sync().into_iter().for_each(|lane| self.sync(key, lane));
        }
    }

    fn append(&mut self, key: u64, lane: usize, (offset, sync): (u64, bool), mut cut: Cut) {
        let Some(to) = self.chunks.get_mut(&key).and_then(|chunk| chunk.lanes.get_mut(lane)) else { return };
        let request = to.append(self.target.session, offset, &mut cut, sync);
        let answer = |a: AppendResponse| Answer { durable: a.durable_length, members: a.members };
        self.ask(key, lane, (Some(offset), sync), (Opcode::Append, &request), Payload::Many(cut.parts), answer);
    }
    fn sync(&mut self, key: u64, lane: usize) {
        let Some(to) = self.chunks.get_mut(&key).and_then(|chunk| chunk.lanes.get_mut(lane)) else { return };
        let request = to.sync(self.target.session);
        let answer = |a: SyncResponse| Answer { durable: a.durable_length, members: a.members };
        self.ask(key, lane, (None, true), (Opcode::Sync, &request), Payload::None, answer);
    }
    /// Calls the head of a lane; the answer comes as an event. All calls of a chunk take one connection and are queued
    /// here and now: appends have to arrive in their order, and a sync behind them.
    fn ask<A: prost::Message + Default + 'static, R: prost::Message + 'static>(
        &mut self,
        key: u64,
        lane: usize,
        (append, synced): (Option<u64>, bool),
        (opcode, request): (Opcode, &R),
        payload: Payload,
        answer: fn(A) -> Answer,
    ) {
        let Some(to) = self.chunks.get_mut(&key).and_then(|chunk| chunk.lanes.get_mut(lane)) else { return };
        to.silence.asked(self.cluster.clock.now());
        let deadline = if synced { SYNC_DEADLINE } else { APPEND_DEADLINE };
        let kept = self.cluster.protection(to.made.chunk);
        let options = CallOptions::new(deadline).bulk().stream(stream_of(to.made.chunk)).protected(kept);
        let (net, sender) = (&self.cluster.net, self.sender.clone());
        let address = self.cluster.disk_address(to.head);
        let call = address.map(|address| net.call_with::<A, _>(&address, opcode, request, payload, options));
        tokio::spawn(async move {
            let result: std::result::Result<(A, Option<AlignedBuf>), NetError> = match call {
                Ok(call) => call.await,
                Err(error) => Err(error),
            };
            let result = result.map(|(a, _)| answer(a));
            let _ended = sender.send(Event::Answered { key, lane, append, synced, result });
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
            Event::Answered { key, lane, append, synced, result } => {
                let now = self.cluster.clock.now();
                let Some(chunk) = self.chunks.get_mut(&key) else { return };
                let taken = result
                    .and_then(|answer| chunk.answered(lane, (append, synced), &answer, now).map_err(NetError::Unknown));
                match taken {
                    Ok(()) if chunk.is_nearly_full() && self.current == Some(key) => self.close_current(),
                    Ok(()) => {}
                    Err(error) => self.fail_chunk(key, lane, &error),
                }
            }
            Event::Looked { key, lane, look } => self.looked(key, lane, look),
        }
    }
}
