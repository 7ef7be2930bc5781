//! [`DataServer`]: the data service of a node: its disks, its part in placement groups, its talk with other members.
//!
//! Requests come on connection threads, which never block: they are judged there, handed to a disk's threads or to
//! other members, and answered when the last of those is done. Tasks that take long (entering an epoch, sealing,
//! catching up, healing) run on one runtime of the server's own.
//!
//! Invariants owned here: every request is held against the epoch that the disk has durably; a chunk takes appends only
//! in the epoch and from the session that made it; an index is given out once.

mod allocate;
mod append;
mod append_local;
mod catch_up;
mod catch_up_shards;
mod chain;
mod compare;
mod copy;
mod disk_calls;
mod epochs;
mod fetch;
mod free;
mod heal;
mod heal_behind;
mod heal_freed;
mod heal_log;
mod idle;
mod later;
mod leaver;
mod listed;
mod member;
mod mend_rows;
mod missing;
mod other_shard;
mod overwrite;
mod overwrite_memory;
mod pace;
mod peer;
mod ping;
mod privacy;
mod read;
mod rebuild;
mod rebuild_rows;
mod record_append;
mod refusals;
mod report;
mod restore;
mod retired;
mod rights;
mod scrub;
mod seal_old;
mod seen;
mod senders;
mod settle;
mod several;
mod slot;
mod start;
#[cfg(test)]
mod tests;
mod told;
mod unhealed;
mod vanished;
mod witness;
mod word;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use cairn_env::Clock;
use cairn_rpc::{Client, Reply, Request, Service};
use cairn_telemetry::Samples;
use cairn_types::{ChunkId, DiskId, ErrorCode, Incarnation, NodeId, PgId};
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::manager::SuspectReport;
use parking_lot::{Mutex, RwLock};

pub use start::{DataEnv, StartError};

use crate::config::DataConfig;
use member::PgRuntime;
use slot::Slot;

/// Suspicions kept for the next heartbeat; the oldest go first.
const SUSPECTS_MAX: usize = 256;

/// The data service of a node. Clones are the same server.
#[derive(Clone)]
pub struct DataServer {
    pub(crate) inner: Arc<Inner>,
}

/// Suspicions for the manager, oldest first.
#[derive(Default)]
struct Suspects {
    waiting: VecDeque<SuspectReport>,
    /// How many of the oldest are in the heartbeat that was filled last.
    sent: usize,
}

pub(crate) struct Inner {
    config: DataConfig,
    clock: Arc<dyn Clock>,
    client: Client,
    slots: Vec<Arc<Slot>>,
    /// Disks that were registered.
    by_id: RwLock<BTreeMap<DiskId, Arc<Slot>>>,
    incarnation: AtomicU64,
    addresses: RwLock<BTreeMap<NodeId, String>>,
    volume_names: rights::VolumeNames,
    privacy: privacy::Privacy,
    runtimes: Mutex<BTreeMap<(DiskId, PgId), Arc<PgRuntime>>>,
    suspects: Mutex<Suspects>,
    /// Chunks whose sealing is to be repeated.
    unsealed: Mutex<Vec<(DiskId, ChunkId)>>,
    /// Asks the agent for a heartbeat now.
    poke: Mutex<Option<Arc<dyn Fn() + Send + Sync>>>,
    report_at: Mutex<(DiskId, PgId)>,
    /// Registrations so far: each tells the next page of groups.
    told_page: AtomicUsize,
    copies: tokio::sync::Semaphore,
    /// Blocks that are healed at the same time.
    heals: tokio::sync::Semaphore,
    /// Bad blocks that the log names already.
    logged: Mutex<heal_log::HealLog>,
    /// Bad blocks of other members that these were told of.
    told: Mutex<heal_log::HealLog>,
    /// Bad blocks that could not be healed.
    unhealed: Mutex<unhealed::Unhealed>,
    /// Parity shards whose checksums of rows could not be mended.
    unmended: Mutex<later::Later<(DiskId, ChunkId)>>,
    /// Chunks that are copied or rebuilt at this moment.
    bringing: Mutex<BTreeSet<(DiskId, ChunkId)>>,
    /// Chunks that are looked for.
    missing: Mutex<missing::Missing>,
    refusals: refusals::Refusals,
    /// Chunks of open appends of which this node is the primary.
    records: record_append::RecordChunks,
    scrubs: scrub::Scrubs,
    word: word::Word,
    pace: pace::Pace,
    tasks: tokio::runtime::Handle,
    task_thread: Mutex<Option<start::TaskThread>>,
    parts: slot::StoreParts,
    stopping: AtomicBool,
    /// Chunks of retired groups are being deleted.
    dropping: AtomicBool,
}

impl DataServer {
    /// Sets what asks the manager for news at once (the agent's poke).
    pub fn set_poke(&self, poke: Arc<dyn Fn() + Send + Sync>) {
        *self.inner.poke.lock() = Some(poke);
    }

    /// What the disks count.
    pub fn metrics(&self, out: &mut Samples) {
        for slot in &self.inner.slots {
            let Some(store) = slot.store() else { continue };
            store.metrics().sample(store.name(), out);
            let space = store.space();
            let labels = [("disk", store.name())];
            out.gauge("cairn_data_free_bytes", "Bytes that new data may take.", &labels, space.free as f64);
            out.gauge("cairn_data_total_bytes", "Size of the file system.", &labels, space.total as f64);
            out.gauge("cairn_data_chunks", "Chunks on the disk.", &labels, store.chunk_count() as f64);
            let still = store.still_for().as_secs_f64();
            out.gauge(
                "cairn_data_disk_still_seconds",
                "Time without a completed operation while some are under way.",
                &labels,
                still,
            );
            let failed = f64::from(u8::from(store.failure().is_some()));
            out.gauge("cairn_data_disk_failed", "1 when the disk left service.", &labels, failed);
        }
        self.inner.sample_unhealed(out);
        self.inner.sample_missing(out);
    }

    /// What is wrong with the disks, for `/healthz`.
    pub fn health(&self) -> Result<(), String> {
        let mut problems: Vec<String> = self.inner.slots.iter().filter_map(|slot| slot.problem()).collect();
        if self.inner.slots.is_empty() {
            problems.extend(self.inner.config.left_out.iter().cloned());
        }
        if problems.is_empty() { Ok(()) } else { Err(problems.join("; ")) }
    }

    /// Ends tasks and disks: what waits is carried out or refused, everything is written home.
    pub fn stop(&self) {
        self.inner.stopping.store(true, Ordering::Relaxed);
        if let Some(thread) = self.inner.task_thread.lock().take() {
            thread.stop();
        }
        for slot in &self.inner.slots {
            if let Some(store) = slot.store() {
                store.close();
            }
        }
    }
}

impl Inner {
    pub(crate) fn incarnation(&self) -> Incarnation {
        Incarnation(self.incarnation.load(Ordering::Relaxed))
    }

    pub(crate) fn slot(&self, disk: DiskId) -> Option<Arc<Slot>> {
        self.by_id.read().get(&disk).cloned()
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Asks the manager for news.
    pub(crate) fn poke(&self) {
        let poke = self.poke.lock().clone();
        if let Some(poke) = poke {
            poke();
        }
    }

    /// Tells the manager of a member that failed or stalled, with the next heartbeat, which comes at once.
    pub(crate) fn suspect(&self, report: SuspectReport) {
        // The manager warns if it finds it so.
        tracing::info!(disk = report.disk, pg = report.pg, epoch = report.epoch, why = report.why, "a member failed");
        {
            let mut suspects = self.suspects.lock();
            if suspects.waiting.len() >= SUSPECTS_MAX {
                suspects.waiting.pop_front();
                suspects.sent = suspects.sent.saturating_sub(1);
            }
            suspects.waiting.push_back(report);
        }
        self.poke();
    }

    fn dispatch(self: &Arc<Self>, request: Request<'_>, reply: Reply) {
        let outcome = match Opcode::from_code(request.opcode) {
            Some(Opcode::Ping) => self.ping(&request, reply),
            Some(Opcode::Append) => self.append(request, reply),
            Some(Opcode::RecordAppend) => self.record_append(request, reply),
            Some(Opcode::Sync) => self.sync(&request, reply),
            Some(Opcode::Seal) => self.seal(&request, reply),
            Some(Opcode::Read) => self.read(&request, reply),
            Some(Opcode::Allocate) => self.allocate(&request, reply),
            Some(Opcode::ReserveIndices) => self.reserve_indices(&request, reply),
            Some(Opcode::ReportBadBlock) => self.report_bad_block(&request, reply),
            Some(Opcode::Free) => self.free(&request, reply),
            Some(Opcode::ListChunks) => self.list_chunks(&request, reply),
            Some(Opcode::ChunkTable) => self.chunk_table(&request, reply),
            Some(Opcode::Overwrite) => self.overwrite(request, reply),
            Some(Opcode::Scrub) => self.scrub(&request, reply),
            Some(Opcode::BadBlocks) => self.bad_blocks(&request, reply),
            Some(Opcode::ListDigests) => self.list_digests(&request, reply),
            Some(Opcode::ApplyPgs) => self.apply_pgs(&request, reply),
            _ => {
                let text = format!("the data service does not know operation {:#06x}", request.opcode);
                Err((reply, WireError::new(ErrorCode::UnknownOperation, text)))
            }
        };
        if let Err((reply, error)) = outcome {
            reply.err(error);
        }
    }
}

/// A request that was refused at once, with what to answer.
pub(crate) type Refused = (Reply, WireError);

impl Service for DataServer {
    fn call(&self, request: Request<'_>, mut reply: Reply) {
        if self.inner.is_stopping() || self.inner.incarnation().get() == 0 {
            let text = "this data server is starting or stopping; ask another member";
            reply.err(WireError::new(ErrorCode::Unavailable, text));
            return;
        }
        if let Some((holder, rights)) = request.peer.limits()
            && let Err(error) = self.inner.judge_rights(holder, rights, &request)
        {
            if let Some(opcode) = Opcode::from_code(request.opcode) {
                request.peer.note_refusal(opcode, &error);
            }
            return reply.err(error);
        }
        if let Err(error) = self.inner.judge_privacy(&request) {
            return reply.err(error);
        }
        self.inner.watch_outcome(&request, &mut reply);
        self.inner.dispatch(request, reply);
    }
}
