//! Starting a data server: disks are opened, the runtime for long tasks is made. It serves once it is registered.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use cairn_env::{BufPool, Clock, Rng};
use cairn_rpc::Client;
use cairn_types::{ClusterId, DiskId, PgId};
use parking_lot::{Mutex, RwLock};
use tokio::sync::oneshot;

use super::fetch::TELL_AGAIN;
use super::heal_log::{AGAIN_AFTER, HealLog};
use super::later::Later;
use super::missing::Missing;
use super::refusals::Refusals;
use super::slot::{Slot, StoreParts};
use super::unhealed::Unhealed;
use super::{DataServer, Inner};
use crate::config::DataConfig;
use crate::disk::ReadShares;

/// Blocks that are healed at the same time; further ones wait.
const HEALS_AT_ONCE: usize = 8;

/// What a data server gets from its process.
#[derive(Clone)]
pub struct DataEnv {
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Identities.
    pub rng: Arc<dyn Rng>,
    /// Memory of reads.
    pub pool: BufPool,
    /// Calls to other members.
    pub client: Client,
    /// The cluster of this process, if it is known.
    pub cluster: ClusterId,
}

/// Why a data server cannot start. Bad disks are no reason: they are reported and left out.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The runtime of its tasks.
    #[error("cannot start the data service's tasks: {0}")]
    Thread(#[source] std::io::Error),
    /// Nothing to serve.
    #[error("the data service has no disks; name at least one directory")]
    NoDisks,
    /// Labels that do not belong together.
    #[error("{0}")]
    Labels(String),
}

/// The thread that long tasks run on.
pub(crate) struct TaskThread {
    stop: oneshot::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

impl TaskThread {
    fn start() -> Result<(Self, tokio::runtime::Handle), std::io::Error> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new().name("data-tasks".into()).spawn(move || {
            // An error means that the sender is gone, which is the signal as well.
            let _signalled = runtime.block_on(stopped);
            runtime.shutdown_background();
        })?;
        Ok((Self { stop, thread }, handle))
    }

    /// Ends all tasks where they wait.
    pub(crate) fn stop(self) {
        // An error means that the thread ended already.
        let _ended = self.stop.send(());
        if self.thread.thread().id() != std::thread::current().id() && self.thread.join().is_err() {
            tracing::error!("a task of the data service panicked");
        }
    }
}

impl DataServer {
    /// Opens the disks. Give it to the node's agent as a contributor, and to the RPC server for the data operations.
    pub fn start(config: DataConfig, env: DataEnv) -> Result<Self, StartError> {
        if config.disks.is_empty() && config.left_out.is_empty() {
            return Err(StartError::NoDisks);
        }
        let parts = store_parts(&config, &env);
        // Journals are replayed side by side.
        let slots: Vec<Arc<Slot>> = std::thread::scope(|scope| {
            let open = |disk: &Arc<dyn cairn_env::Disk>| {
                let (disk, parts) = (disk.clone(), &parts);
                scope.spawn(move || Arc::new(Slot::open(disk, env.cluster, parts)))
            };
            let threads: Vec<_> = config.disks.iter().map(open).collect();
            threads.into_iter().map(|thread| thread.join().expect("opening a disk returns errors")).collect()
        });
        check_labels(&slots)?;
        let (thread, tasks) = TaskThread::start().map_err(StartError::Thread)?;
        let inner = Arc::new(Inner {
            clock: env.clock.clone(),
            client: env.client.clone(),
            slots,
            by_id: RwLock::default(),
            incarnation: AtomicU64::new(0),
            addresses: RwLock::default(),
            volume_names: Default::default(),
            privacy: Default::default(),
            runtimes: Mutex::new(BTreeMap::new()),
            suspects: Mutex::default(),
            unsealed: Mutex::default(),
            poke: Mutex::default(),
            report_at: Mutex::new((DiskId(0), PgId(0))),
            told_page: std::sync::atomic::AtomicUsize::new(0),
            copies: tokio::sync::Semaphore::new(config.catch_up_chunks.max(1)),
            heals: tokio::sync::Semaphore::new(HEALS_AT_ONCE),
            logged: Mutex::new(HealLog::new(AGAIN_AFTER)),
            told: Mutex::new(HealLog::new(TELL_AGAIN)),
            unhealed: Mutex::new(Unhealed::new(config.heal_pause)),
            unmended: Mutex::new(Later::new(config.heal_pause)),
            bringing: Mutex::default(),
            refusals: Refusals::default(),
            missing: Mutex::new(Missing::new(config.retry_pause, config.restore_again)),
            records: super::record_append::RecordChunks::default(),
            scrubs: super::scrub::Scrubs::default(),
            pace: super::pace::Pace::default(),
            word: super::word::Word::default(),
            tasks,
            task_thread: Mutex::new(Some(thread)),
            stopping: AtomicBool::new(false),
            dropping: AtomicBool::new(false),
            parts,
            config,
        });
        inner.start_idle_seals();
        inner.start_record_ticks();
        inner.start_healing_again();
        inner.start_comparing();
        Ok(Self { inner })
    }
}

fn store_parts(config: &DataConfig, env: &DataEnv) -> StoreParts {
    StoreParts {
        config: config.disk.clone(),
        known: config.known.clone(),
        clock: env.clock.clone(),
        rng: env.rng.clone(),
        pool: env.pool.clone(),
        shares: ReadShares::new(env.pool.limit()),
    }
}

/// Disks of two clusters, or of two nodes, in one process are a mistake of the configuration that nothing else notices.
fn check_labels(slots: &[Arc<Slot>]) -> Result<(), StartError> {
    let known: Vec<_> = slots.iter().filter(|slot| !slot.cluster().is_none()).collect();
    let Some(first) = known.first() else { return Ok(()) };
    for slot in &known {
        let same = slot.cluster() == first.cluster()
            && (slot.node().get() == 0 || first.node().get() == 0 || slot.node() == first.node());
        if !same {
            let (a, b) = (first.report().path, slot.report().path);
            return Err(StartError::Labels(format!(
                "{a} (cluster {}, {}) and {b} (cluster {}, {}) do not belong to one node; check the list of disks",
                first.cluster(),
                first.node(),
                slot.cluster(),
                slot.node()
            )));
        }
    }
    Ok(())
}
