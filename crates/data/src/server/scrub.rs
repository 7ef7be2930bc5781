//! Scrub: every sealed chunk of a disk is read at rest once in a period and held against its checksums; what is bad is
//! healed from other members as if a reader had reported it.
//!
//! One task a disk. It reads a piece, then rests so long that a pass takes nine tenths of the period, and never reads
//! more than the highest rate, also when an operator asked for a pass. Pieces go through the disk's control thread, so
//! they wait behind whatever waits there, and reads of clients do not wait behind them. How far it came is kept on the
//! disk (`disk/scrub_file.rs`) and goes on after a restart. At its end it is looked for chunks that are not here at all
//! (`vanished.rs`). Not here: how a block is verified (`disk/verify.rs`) and healed (`heal.rs`).

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use cairn_format::scrub_state::ScrubState;
use cairn_node_agent::Settings;
use cairn_rpc::{Reply, Request};
use cairn_types::{BLOCK_SIZE, ChunkId, DiskId, PgId, Time};
use cairn_wire::data::{ScrubReport, ScrubRequest, ScrubResponse};
use cairn_wire::error::WireError;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use super::disk_calls::on_control;
use super::{Inner, Refused};
use crate::disk::metrics::add;
use crate::disk::{Chunk, DataError, DiskStore, TablesAtRest};

/// Blocks read at a time.
const PIECE_BLOCKS: u32 = 256;
/// Slower than this it never is: a nearly empty disk is read in pieces a few seconds apart.
const RATE_MIN: u64 = 256 << 10;
/// How far it came is kept at least so often.
const KEEP_EVERY: Duration = Duration::from_secs(30);
/// What is used on the disk is added up again after this time.
const MEASURE_EVERY: Duration = Duration::from_secs(600);
/// With so many changes waiting for the disk, the scrub waits, but not for ever.
const BUSY_QUEUE: usize = 16;
const BUSY_PAUSE: Duration = Duration::from_millis(50);
const BUSY_WAITS: u32 = 20;
/// The first pass of a disk begins at the latest after this time.
const FIRST_AFTER: Duration = Duration::from_secs(3600);
/// Longest pause: settings may change.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// What the cluster's settings say.
#[derive(Debug, Clone, Copy)]
struct ScrubSettings {
    period: Duration,
    rate_max: u64,
}

/// Scrubs of a node.
pub(crate) struct Scrubs {
    settings: Mutex<ScrubSettings>,
    disks: Mutex<BTreeMap<DiskId, Arc<Scrubbing>>>,
}

/// The scrub of one disk.
struct Scrubbing {
    state: Mutex<Progress>,
    wake: Notify,
}

struct Progress {
    kept: ScrubState,
    /// Bytes that the disk's chunks occupy, when that was added up, and the rate that follows.
    total: u64,
    measured: Option<Time>,
    rate: u64,
    kept_at: Time,
}

impl Default for Scrubs {
    fn default() -> Self {
        let settings = ScrubSettings { period: Duration::from_secs(14 * 24 * 3600), rate_max: 100 << 20 };
        Self { settings: Mutex::new(settings), disks: Mutex::default() }
    }
}

impl Scrubs {
    pub(super) fn set(&self, settings: &Settings) {
        let mut now = self.settings.lock();
        now.period = settings.duration("scrub_period").unwrap_or(now.period);
        now.rate_max = settings.number("scrub_rate_max").unwrap_or(now.rate_max);
        drop(now);
        self.disks.lock().values().for_each(|scrub| scrub.wake.notify_one());
    }

    /// In which everything is read once.
    pub(super) fn period(&self) -> Duration {
        self.settings.lock().period
    }
}

impl Inner {
    /// Begins to scrub a disk that was registered; once is enough.
    pub(super) fn start_scrub(self: &Arc<Self>, disk: DiskId, store: &Arc<DiskStore>) {
        if self.scrubs.disks.lock().contains_key(&disk) {
            return;
        }
        let kept = store.read_scrub_state();
        let kept_at = self.clock.now();
        let progress = Progress { kept, total: 0, measured: None, rate: RATE_MIN, kept_at };
        let scrub = Arc::new(Scrubbing { state: Mutex::new(progress), wake: Notify::new() });
        self.scrubs.disks.lock().insert(disk, scrub.clone());
        let weak = Arc::downgrade(self);
        self.tasks.spawn(async move {
            loop {
                let Some(inner) = weak.upgrade().filter(|inner| !inner.is_stopping()) else { return };
                let pause = inner.scrub_step(disk, &scrub).await;
                drop(inner);
                // Elapsed or woken: both mean that it is time to look.
                let _ = tokio::time::timeout(pause.min(PAUSE_MAX), scrub.wake.notified()).await;
            }
        });
    }

    /// One piece, or the beginning or end of a pass. Answers how long to wait before the next step.
    async fn scrub_step(self: &Arc<Self>, disk: DiskId, scrub: &Scrubbing) -> Duration {
        let Some(store) = self.slot(disk).and_then(|slot| slot.store()).filter(|store| store.failure().is_none())
        else {
            return PAUSE_MAX;
        };
        let settings = *self.scrubs.settings.lock();
        if let Some(pause) = self.begin_if_due(&store, scrub, settings) {
            return pause;
        }
        let next = scrub.state.lock().kept.next;
        let Some(chunk) = store.next_chunk(next) else {
            self.end_pass(disk, &store, scrub).await;
            return Duration::ZERO;
        };
        let start = self.clock.now();
        let bytes = self.scrub_chunk(disk, &store, scrub, &chunk).await;
        let id = chunk.info().id;
        let keep = {
            let mut progress = scrub.state.lock();
            progress.kept.next = after(id);
            let old = start.since(progress.kept_at) >= KEEP_EVERY;
            old.then(|| {
                progress.kept_at = start;
                progress.kept
            })
        };
        if let Some(state) = keep {
            keep_state(&store, state).await;
        }
        // A chunk that is open or gone costs nothing.
        if bytes == 0 { Duration::ZERO } else { Duration::from_millis(1) }
    }

    /// `None`: a pass is under way. Else how long to wait for the next one, or nothing when it begins now.
    fn begin_if_due(&self, store: &Arc<DiskStore>, scrub: &Scrubbing, settings: ScrubSettings) -> Option<Duration> {
        let now = self.clock.now();
        let mut progress = scrub.state.lock();
        let running = progress.kept.pass > 0 && progress.kept.ended == 0;
        if !running {
            let wall = self.clock.wall().0;
            if progress.kept.began == 0 {
                progress.kept.began = wall;
                // Nobody waits for it: what was not kept begins a little later after a restart.
                drop(keep_state(store, progress.kept));
            }
            let since = Duration::from_nanos(wall.saturating_sub(progress.kept.began));
            // A disk that was never read through has its first pass soon, but not while everything starts.
            let first = (settings.period / 20).min(FIRST_AFTER);
            let pause = if progress.kept.pass == 0 { first } else { settings.period };
            if !progress.kept.asked && since < pause {
                return Some(pause - since);
            }
            let ScrubState { pass, ended, bad, asked, disk, .. } = progress.kept;
            let fresh = ScrubState::new(disk);
            progress.kept =
                ScrubState { pass: pass + 1, began: wall, last_ended: ended, last_bad: bad, asked, ..fresh };
            progress.measured = None;
        }
        if progress.measured.is_none_or(|at| now.since(at) >= MEASURE_EVERY) {
            progress.total = store.used_bytes();
            progress.measured = Some(now);
        }
        let steady = u128::from(progress.total) * 10_000 / (settings.period.as_millis().max(1) * 9);
        let steady = u64::try_from(steady).unwrap_or(u64::MAX).max(RATE_MIN);
        let rate = if progress.kept.asked { u64::MAX } else { steady };
        progress.rate = rate.min(settings.rate_max.max(RATE_MIN));
        None
    }

    /// The end of a pass is told when it is kept: else a pass that ended would begin anew after a restart.
    async fn end_pass(self: &Arc<Self>, disk: DiskId, store: &Arc<DiskStore>, scrub: &Scrubbing) {
        let missing = self.look_for_vanished(disk, store).await;
        if missing > 0 {
            // Mostly freed here and not yet there; what is really missing is told when it is back.
            tracing::info!(
                disk = store.name(),
                missing,
                "other members list chunks that are not here; they are looked for"
            );
        }
        let before = scrub.state.lock().kept;
        let state = ScrubState { ended: self.clock.wall().0.max(1), asked: false, next: first(), ..before };
        let ScrubState { pass, bytes, bad, healed, .. } = state;
        tracing::info!(disk = store.name(), pass, bytes, bad, healed, "the disk was read through");
        keep_state(store, state).await;
        let mut progress = scrub.state.lock();
        // Asked for again meanwhile, if it was not before.
        let asked = progress.kept.asked && !before.asked;
        progress.kept = ScrubState { asked, ..state };
        progress.kept_at = self.clock.now();
    }

    /// Reads a chunk piece by piece, with rests. Answers how much was read.
    async fn scrub_chunk(
        self: &Arc<Self>,
        disk: DiskId,
        store: &Arc<DiskStore>,
        scrub: &Scrubbing,
        chunk: &Arc<Chunk>,
    ) -> u64 {
        let (info, mut read) = (chunk.info(), 0);
        if !info.sealed {
            // It is sealed soon; the next pass meets it.
            return 0;
        }
        let sum_off = tables_at_rest(disk, store, chunk).await == Some(TablesAtRest::SumOff);
        let mut all_good = true;
        let blocks = u32::try_from(info.length.div_ceil(BLOCK_SIZE as u64)).unwrap_or(u32::MAX);
        let mut at = 0;
        while at < blocks && !chunk.is_deleted() && !self.is_stopping() {
            let piece = at..(at + PIECE_BLOCKS).min(blocks);
            at = piece.end;
            let bytes = piece.len() as u64 * BLOCK_SIZE as u64;
            let bad = match verify(store, chunk, piece.clone()).await {
                Ok(bad) => bad,
                // The next start goes on with it.
                Err(DataError::Stopping { .. }) => break,
                Err(DataError::Busy { .. }) => {
                    at = piece.start;
                    tokio::time::sleep(BUSY_PAUSE).await;
                    continue;
                }
                Err(error) => {
                    tracing::warn!(%disk, chunk = %info.id, %error, "a chunk cannot be scrubbed");
                    all_good = false;
                    break;
                }
            };
            read += bytes;
            all_good &= bad.is_empty();
            let healed = self.heal_scrubbed(disk, store, info.id, &bad).await;
            let rate = {
                let mut progress = scrub.state.lock();
                progress.kept.bytes += bytes;
                progress.kept.bad += bad.len() as u64;
                progress.kept.healed += healed;
                progress.rate
            };
            add(&store.metrics().scrub_bytes, bytes);
            add(&store.metrics().scrub_bad, bad.len() as u64);
            tokio::time::sleep(Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64)).await;
            self.let_others_first(store).await;
        }
        if sum_off && all_good && at >= blocks {
            mend_sum(disk, store, chunk).await;
        }
        read
    }

    /// Waits a while as long as much waits for the disk.
    async fn let_others_first(&self, store: &DiskStore) {
        for _ in 0..BUSY_WAITS {
            if store.queue_depth() < BUSY_QUEUE || self.is_stopping() {
                return;
            }
            tokio::time::sleep(BUSY_PAUSE).await;
        }
    }

    /// Has bad blocks healed; answers how many were at once. The others are tried again by themselves.
    async fn heal_scrubbed(self: &Arc<Self>, disk: DiskId, store: &Arc<DiskStore>, id: ChunkId, bad: &[u32]) -> u64 {
        let mut healed = 0;
        for block in bad {
            tracing::warn!(%disk, chunk = %id, block, "the scrub found a bad block");
            let Some(record) = store.pg_files().get(id.pg) else { break };
            match self.check_and_heal(disk, record, store.clone(), id, *block).await {
                Ok(_) => healed += 1,
                Err(error) => tracing::warn!(%disk, chunk = %id, block, %error, "a bad block is tried again later"),
            }
        }
        healed
    }

    /// Tells how the scrubs of this node's disks go on, and starts passes.
    pub(super) fn scrub(self: &Arc<Self>, request: &Request<'_>, reply: Reply) -> Result<(), Refused> {
        let asked: ScrubRequest = match request.decode() {
            Ok(asked) => asked,
            Err(error) => return Err((reply, error)),
        };
        if asked.disk != 0 && !self.scrubs.disks.lock().contains_key(&DiskId(asked.disk)) {
            let text = format!("disk {} is not in service on this node; see cairn admin disk ls", asked.disk);
            return Err((reply, WireError::new(cairn_types::ErrorCode::NotFound, text)));
        }
        let mut disks = Vec::new();
        for (disk, scrub) in self.scrubs.disks.lock().iter() {
            if asked.disk != 0 && asked.disk != disk.get() {
                continue;
            }
            let mut progress = scrub.state.lock();
            if asked.start {
                progress.kept.asked = true;
                scrub.wake.notify_one();
            }
            disks.push(report(*disk, &progress));
        }
        reply.ok(&ScrubResponse { disks }, ());
        Ok(())
    }
}

fn report(disk: DiskId, progress: &Progress) -> ScrubReport {
    let kept = &progress.kept;
    ScrubReport {
        disk: disk.get(),
        pass: kept.pass,
        running: kept.asked || kept.pass > 0 && kept.ended == 0,
        asked: kept.asked,
        began_ns: kept.began,
        ended_ns: kept.ended,
        bytes: kept.bytes,
        total_bytes: progress.total,
        bad_blocks: kept.bad,
        healed_blocks: kept.healed,
        last_ended_ns: kept.last_ended,
        last_bad_blocks: kept.last_bad,
        rate: progress.rate,
    }
}

fn first() -> ChunkId {
    ChunkId { pg: PgId(0), index: 0 }
}

/// The id behind this one.
fn after(id: ChunkId) -> ChunkId {
    match id.index.checked_add(1) {
        Some(index) => ChunkId { pg: id.pg, index },
        None => ChunkId { pg: PgId(id.pg.get().saturating_add(1)), index: 0 },
    }
}

/// Verifies a piece on the disk's control thread.
async fn verify(store: &Arc<DiskStore>, chunk: &Arc<Chunk>, piece: Range<u32>) -> Result<Vec<u32>, DataError> {
    let (sender, receiver) = oneshot::channel();
    let chunk = chunk.clone();
    store.control(move |store| {
        // Nobody waits any more: the server stops.
        let _gone = sender.send(store.verify_blocks(&chunk, piece));
    })?;
    receiver.await.unwrap_or_else(|_| Err(DataError::Stopping { disk: store.name().into() }))
}

/// How the chunk's tables are at rest; `None`: that could not be seen now.
async fn tables_at_rest(disk: DiskId, store: &Arc<DiskStore>, chunk: &Arc<Chunk>) -> Option<TablesAtRest> {
    let (of, id) = (chunk.clone(), chunk.info().id);
    let found = on_control(store, move |store| store.verify_tables(&of)).await;
    found
        .inspect_err(|error| tracing::debug!(%disk, chunk = %id, %error, "the tables of a chunk cannot be looked at"))
        .ok()
}

async fn mend_sum(disk: DiskId, store: &Arc<DiskStore>, chunk: &Arc<Chunk>) {
    let (of, id) = (chunk.clone(), chunk.info().id);
    if let Err(error) = on_control(store, move |store| store.mend_sum(&of)).await {
        tracing::debug!(%disk, chunk = %id, %error, "the sum of a chunk's tables stays as it is");
    }
}

/// On the control thread as well: a sync may take its time. Returns when it is kept, or cannot be.
fn keep_state(store: &Arc<DiskStore>, state: ScrubState) -> impl Future<Output = ()> + use<> {
    let (sender, kept) = oneshot::channel();
    let asked = store.control(move |store| {
        if let Err(error) = store.write_scrub_state(&state) {
            tracing::warn!(disk = store.name(), %error, "how far the disk was scrubbed could not be kept");
        }
        // Nobody waits any more: the server stops, or the pass has only begun.
        let _gone = sender.send(());
    });
    if let Err(error) = asked {
        tracing::debug!(disk = store.name(), %error, "how far the disk was scrubbed is kept later");
    }
    async move {
        // The control thread ended, and the store with it.
        let _stopped = kept.await;
    }
}
