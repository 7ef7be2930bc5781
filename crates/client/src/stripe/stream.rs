//! A striped stream: one task that encodes row groups, sends each shard to its member, keeps the groups until they are
//! durable on all, and goes on in another chunk when a member fails or stalls.
//!
//! Bounds: [`WINDOW_BYTES`] of groups wait, are encoded, sent or not yet durable; [`ENCODING_MAX`] are encoded at a
//! time; [`IN_FLIGHT_MAX`] groups a chunk are unanswered. Several files of a session share a stream; rows of one file
//! follow each other. Not here: what a file is (`file_writer`), the choice of placement groups (`open`), what follows
//! from a failure (`failure`).
mod failure;

use super::chunk::StripedChunk;
use super::encode::{EncodedGroup, Encoder, ShardData};
use super::group::RowGroup;
use super::open::open_striped;
use crate::append::open::Avoided;
use crate::append::target::Target;
use crate::cluster::Cluster;
use crate::error::{ClientError, Result};
use crate::net::{NetError, stream_of};
use cairn_env::buf::BufPool;
use cairn_erasure::Codec;
use cairn_rpc::{CallOptions, Payload};
use cairn_types::{SessionId, Stripe};
use cairn_wire::Opcode;
use cairn_wire::data::{
    AppendRequest, AppendResponse, ChunkHeader, SealRequest, SealResponse, SyncRequest, SyncResponse,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinHandle;

/// File bytes of a stream that wait, are on their way or are not yet durable.
pub(crate) const WINDOW_BYTES: usize = 64 << 20;
/// Parity that a stream keeps pages for; what is beyond is allocated as it is needed.
const PARITY_POOL_BYTES: usize = 32 << 20;
/// Groups that are encoded at the same time.
const ENCODING_MAX: usize = 2;
/// Groups that are encoded and wait to be sent.
const READY_MAX: usize = 2;
/// Unanswered groups of a chunk: more keep no disk busier, and the bytes leave the caches before they are sent.
const IN_FLIGHT_MAX: usize = 4;
/// File bytes after which an append also makes durable what is there.
const SYNC_EVERY: u64 = 24 << 20;
/// Unanswered requests for groups in the queue to the task.
const QUEUE_MAX: usize = 64;
const APPEND_DEADLINE: Duration = Duration::from_secs(6);
const SYNC_DEADLINE: Duration = Duration::from_secs(10);
/// Members seal idle chunks by themselves.
const SEAL_DEADLINE: Duration = Duration::from_secs(2);
/// An open chunk without traffic is sealed.
const IDLE_SEAL: Duration = Duration::from_secs(20);
/// Members are looked at for stalls so often.
const TICK: Duration = Duration::from_millis(100);

/// Where writers put their row groups. Dropping all handles drains and ends the stream.
#[derive(Clone)]
pub(crate) struct StripedHandle {
    groups: mpsc::Sender<RowGroup>,
    /// A permit is a KiB.
    pub(crate) window: Arc<Semaphore>,
    /// Whose chunks it writes.
    pub(crate) session: SessionId,
}

impl StripedHandle {
    /// Memory for a group of so many bytes; waits while the window is full.
    pub(crate) async fn reserve(&self, bytes: usize) -> Result<OwnedSemaphorePermit> {
        let kib = u32::try_from(bytes.div_ceil(1024).clamp(1, WINDOW_BYTES / 1024)).unwrap_or(u32::MAX);
        self.window.clone().acquire_many_owned(kib).await.map_err(|_| ended())
    }
    pub(crate) async fn push(&self, group: RowGroup) -> Result<()> {
        self.groups.send(group).await.map_err(|_| ended())
    }
    pub(crate) fn is_ended(&self) -> bool {
        self.groups.is_closed()
    }
    /// Groups that the task has not taken yet.
    #[cfg(test)]
    pub(crate) fn has_waiting(&self) -> bool {
        self.groups.capacity() < QUEUE_MAX
    }
}

fn ended() -> ClientError {
    ClientError::protocol("striped stream", "it ended while it was used")
}

type Answer<A> = std::result::Result<A, NetError>;

enum Event {
    Opened(Box<Result<StripedChunk>>),
    Appended {
        key: u64,
        shard: usize,
        offset: u64,
        synced: bool,
        result: Answer<AppendResponse>,
    },
    Synced {
        key: u64,
        shard: usize,
        result: Answer<SyncResponse>,
    },
    /// The manager decided about a member of the chunk.
    Settled {
        key: u64,
        disk: u32,
    },
}

type Encoding = JoinHandle<std::result::Result<EncodedGroup, (RowGroup, cairn_erasure::ErasureError)>>;

struct Stream {
    cluster: Arc<Cluster>,
    target: Target,
    encoder: Encoder,
    avoided: Arc<Avoided>,
    groups: mpsc::Receiver<RowGroup>,
    events: mpsc::UnboundedReceiver<Event>,
    // Bounded by the calls in flight: a shard each of IN_FLIGHT_MAX groups and one sync a chunk, one opening, and a
    // report a member.
    sender: mpsc::UnboundedSender<Event>,
    pending: VecDeque<RowGroup>,
    encoding: VecDeque<Encoding>,
    ready: VecDeque<EncodedGroup>,
    chunks: BTreeMap<u64, StripedChunk>,
    current: Option<u64>,
    next_key: u64,
    opening: bool,
    /// Members that are being looked into for a stall, and those that were reported as slow: (chunk, disk).
    reported: Vec<(u64, u32)>,
    found_slow: Vec<(u64, u32)>,
    /// Before the next chunk is opened.
    pause: Duration,
}

/// Starts a stream on the current runtime.
pub(crate) fn start(cluster: Arc<Cluster>, target: Target, stripe: Stripe) -> Result<StripedHandle> {
    let codec =
        Codec::for_scheme(target.class.scheme).map_err(|e| ClientError::protocol("striped stream", e.to_string()))?;
    let (groups, receiver) = mpsc::channel(QUEUE_MAX);
    let (sender, events) = mpsc::unbounded_channel();
    let stream = Stream {
        cluster,
        target,
        encoder: Encoder { codec, stripe, pool: BufPool::new(PARITY_POOL_BYTES) },
        avoided: Arc::default(),
        groups: receiver,
        events,
        sender,
        pending: VecDeque::new(),
        encoding: VecDeque::new(),
        ready: VecDeque::new(),
        chunks: BTreeMap::new(),
        current: None,
        next_key: 1,
        opening: false,
        reported: Vec::new(),
        found_slow: Vec::new(),
        pause: Duration::ZERO,
    };
    tokio::spawn(stream.run());
    Ok(StripedHandle { groups, window: Arc::new(Semaphore::new(WINDOW_BYTES / 1024)), session: target.session })
}

impl Stream {
    async fn run(mut self) {
        let mut open = true;
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while open || !self.is_drained() {
            if !open && self.nothing_to_send() {
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
                encoded = first_of(&mut self.encoding), if !self.encoding.is_empty() => self.take_encoded(encoded),
                group = self.groups.recv(), if open => match group {
                    Some(group) => self.pending.push_back(group),
                    None => {
                        open = false;
                        self.close_current();
                    }
                },
                _ = tick.tick(), if self.is_busy() => self.look_for_stalls(),
                () = tokio::time::sleep(IDLE_SEAL), if self.is_quiet() => self.close_current(),
            }
        }
    }
    fn is_drained(&self) -> bool {
        self.nothing_to_send() && self.chunks.is_empty() && !self.opening
    }
    fn nothing_to_send(&self) -> bool {
        self.pending.is_empty() && self.encoding.is_empty() && self.ready.is_empty()
    }
    fn is_busy(&self) -> bool {
        self.chunks.values().any(|c| !c.is_idle())
    }
    fn is_quiet(&self) -> bool {
        self.nothing_to_send() && self.current.and_then(|k| self.chunks.get(&k)).is_some_and(StripedChunk::is_idle)
    }
    fn close_current(&mut self) {
        if let Some(chunk) = self.current.take().and_then(|key| self.chunks.get_mut(&key)) {
            chunk.closing = true;
        }
    }

    /// Encodes and sends what can be, syncs what should be, seals what is done.
    fn pump(&mut self) {
        while self.encoding.len() < ENCODING_MAX && self.encoding.len() + self.ready.len() < ENCODING_MAX + READY_MAX {
            let Some(group) = self.pending.pop_front() else { break };
            let encoder = self.encoder.clone();
            self.encoding.push_back(tokio::task::spawn_blocking(move || encoder.encode(group)));
        }
        if self.current.is_none() && !self.nothing_to_send() {
            // While the first rows are encoded, their chunk is opened.
            self.open();
        }
        while let Some(encoded) = self.ready.front() {
            let bytes = encoded.group.shard_bytes(self.encoder.stripe);
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
        let (cluster, target, stripe) = (self.cluster.clone(), self.target, self.encoder.stripe);
        let (avoided, sender) = (self.avoided.clone(), self.sender.clone());
        let pause = std::mem::take(&mut self.pause);
        tokio::spawn(async move {
            if !pause.is_zero() {
                tokio::time::sleep(cluster.jitter(pause)).await;
            }
            let opened = open_striped(cluster, target, stripe, avoided).await;
            // Fails only when the stream has ended.
            let _ended = sender.send(Event::Opened(Box::new(opened)));
        });
    }

    fn take_encoded(&mut self, encoded: <Encoding as Future>::Output) {
        self.encoding.pop_front();
        match encoded {
            Ok(Ok(encoded)) => self.ready.push_back(encoded),
            Ok(Err((group, error))) => {
                let _gone = group.done.send(Err(ClientError::protocol("encoding", error.to_string())));
            }
            // The group's writer sees that its answer never comes.
            Err(join) => tracing::error!(%join, "the encoding of a row group ended"),
        }
    }

    fn send_next(&mut self) {
        let last = self.ready.len() == 1 && self.encoding.is_empty() && self.pending.is_empty();
        let (Some(key), Some(EncodedGroup { group, shards })) = (self.current, self.ready.pop_front()) else { return };
        let Some(chunk) = self.chunks.get_mut(&key) else { return };
        let waited_for = group.sync && last;
        let offset = chunk.place(group);
        // With more on the way, one sync after them serves all.
        let sync = waited_for || chunk.unsynced() >= SYNC_EVERY;
        if sync {
            chunk.sync_with_append();
        }
        let receivers: Vec<(usize, u32)> = chunk.receivers().collect();
        let mut shards: Vec<Option<ShardData>> = shards.into_iter().map(Some).collect();
        for (shard, disk) in receivers {
            let Some(data) = shards.get_mut(shard).and_then(Option::take) else { continue };
            self.send_shard(key, (shard, disk), (offset, sync), data);
        }
    }

    fn send_shard(&self, key: u64, (shard, disk): (usize, u32), (offset, sync): (u64, bool), data: ShardData) {
        let Some(chunk) = self.chunks.get(&key) else { return };
        let request = AppendRequest {
            chunk: Some(header(chunk, disk, self.target)),
            creation_epoch: chunk.creation_epoch,
            offset,
            crcs: data.crcs,
            chain: Vec::new(),
            sync,
            scheme: u32::from(chunk.scheme.code()),
            repair: false,
            row_crcs: data.row_crcs,
            follows: None,
            local: None,
        };
        let deadline = if sync { SYNC_DEADLINE } else { APPEND_DEADLINE };
        let options = CallOptions::new(deadline).bulk().stream(stream_of(chunk.id));
        let (net, sender) = (self.cluster.net.clone(), self.sender.clone());
        // Queued here and now: appends have to arrive in their order.
        let call = self.cluster.disk_address(disk).map(|address| {
            net.call_with::<AppendResponse, _>(&address, Opcode::Append, &request, Payload::Many(data.parts), options)
        });
        tokio::spawn(async move {
            let result = match call {
                Ok(call) => call.await.map(|(answer, _)| answer),
                Err(error) => Err(error),
            };
            let _ended = sender.send(Event::Appended { key, shard, offset, synced: sync, result });
        });
    }

    /// Syncs a chunk if somebody waits; seals and forgets it when it is done.
    fn settle(&mut self, key: u64) {
        let Some(chunk) = self.chunks.get_mut(&key) else { return };
        if chunk.closing && chunk.is_idle() {
            if let Some(chunk) = self.chunks.remove(&key) {
                self.seal(&chunk, None);
            }
            return;
        }
        if !chunk.begin_sync() {
            return;
        }
        let chunk = &self.chunks[&key];
        for (shard, disk) in chunk.receivers() {
            let request = SyncRequest { chunk: Some(header(chunk, disk, self.target)), chain: Vec::new() };
            let address = self.cluster.disk_address(disk);
            let (net, sender) = (self.cluster.net.clone(), self.sender.clone());
            tokio::spawn(async move {
                let result = match address {
                    Ok(address) => net.call::<SyncResponse>(&address, Opcode::Sync, &request, SYNC_DEADLINE).await,
                    Err(error) => Err(error),
                };
                let _ended = sender.send(Event::Synced { key, shard, result });
            });
        }
    }

    /// Best effort: members seal an idle chunk, or one of an earlier epoch, by themselves.
    fn seal(&self, chunk: &StripedChunk, without: Option<u32>) {
        for (_, disk) in chunk.receivers().filter(|(_, disk)| Some(*disk) != without) {
            let request = SealRequest { chunk: Some(header(chunk, disk, self.target)), chain: Vec::new() };
            let Ok(address) = self.cluster.disk_address(disk) else { continue };
            let net = self.cluster.net.clone();
            tokio::spawn(async move {
                if let Err(error) = net.call::<SealResponse>(&address, Opcode::Seal, &request, SEAL_DEADLINE).await {
                    tracing::debug!(disk, error = error.text(), "a shard was left to be sealed by its member");
                }
            });
        }
    }

    fn handle(&mut self, event: Event) {
        let now = self.cluster.clock.now();
        match event {
            Event::Opened(opened) => {
                self.opening = false;
                match *opened {
                    Ok(chunk) => {
                        self.current = Some(self.next_key);
                        self.chunks.insert(self.next_key, chunk);
                        self.next_key += 1;
                    }
                    Err(error) => self.fail_all(&error),
                }
            }
            Event::Appended { key, shard, offset, synced, result } => {
                let Some(chunk) = self.chunks.get_mut(&key) else { return };
                let result =
                    result.and_then(|a| chunk.check_stamp(shard, &a.members).map_err(NetError::Unknown).map(|()| a));
                match result {
                    Ok(answer) => {
                        chunk.acknowledge(shard, offset, now);
                        chunk.make_durable(shard, if synced { answer.durable_length } else { 0 });
                    }
                    Err(error) => self.fail_chunk(key, shard, &error),
                }
            }
            Event::Synced { key, shard, result } => {
                let Some(chunk) = self.chunks.get_mut(&key) else { return };
                let result =
                    result.and_then(|a| chunk.check_stamp(shard, &a.members).map_err(NetError::Unknown).map(|()| a));
                match result {
                    Ok(answer) => {
                        chunk.sync_answered(shard, now);
                        chunk.make_durable(shard, answer.durable_length);
                    }
                    Err(error) => self.fail_chunk(key, shard, &error),
                }
            }
            Event::Settled { key, disk } => self.settled(key, disk),
        }
    }
}

/// Waits for the first of them; the others go on.
async fn first_of(encoding: &mut VecDeque<Encoding>) -> <Encoding as Future>::Output {
    match encoding.front_mut() {
        Some(first) => first.await,
        None => std::future::pending().await,
    }
}

fn header(chunk: &StripedChunk, disk: u32, target: Target) -> ChunkHeader {
    ChunkHeader { disk, pg: chunk.id.pg.0, index: chunk.id.index, epoch: chunk.epoch.0, session: target.session.0 }
}
