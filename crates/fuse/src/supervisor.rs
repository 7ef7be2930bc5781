//! The process that outlives workers: it holds the connection to the kernel and the memory with the open files, starts
//! a worker, and another one when that dies or is replaced. It has no connection to a cluster and sees no data.
//!
//! Invariants owned here: at most one process reads requests at any time; a worker's requests that it did not answer
//! are handed to the next one (or, on kernels that cannot, fail); when no worker comes up, operations fail with EIO
//! after a while instead of waiting for ever. Not here: what workers do (`worker`), making the mount (`mount`).
mod backoff;
pub mod control;
mod errors;
pub mod messages;
mod replace;
mod requests;
pub mod rundir;
pub mod start;
mod worker_process;

use crate::device::Device;
use crate::failure::{Failure, Result};
use crate::mount;
use crate::open_table::OpenTable;
use crate::queue_file::QueueFile;
use crate::session::handshake::{Agreed, shake_hands};
use crate::spec::MountSpec;
use control::Incoming;
use messages::Started;
use replace::{Connection, Replaced};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use worker_process::{Ended, WorkerProcess};

/// The first worker has to reach the cluster in this time, or nothing is mounted.
const FIRST_READY: Duration = Duration::from_secs(60);

/// What serves requests now.
enum Serving {
    Worker(Box<WorkerProcess>),
    /// Nobody; another worker is on its way.
    Nobody(JoinHandle<Replaced>),
}

/// A mount as its supervisor sees it.
struct Supervisor {
    spec: Arc<MountSpec>,
    connection: Connection,
    serving: Serving,
    since: SystemTime,
    /// When the present worker began.
    worker_since: Instant,
    restarts: u64,
    last_end: Option<String>,
    backoff: backoff::Backoff,
    /// It is at its mount point no more.
    detached: bool,
    /// `major:minor` of the file system, when it is.
    number: Option<String>,
}

/// Mounts, tells `started` how that went, and goes on until the mount is gone.
pub async fn run(spec: MountSpec, started: impl FnOnce(Result<Started>)) -> Result<()> {
    let spec = Arc::new(spec);
    let (listener, place) = match rundir::listen() {
        Ok(found) => found,
        Err(error) => {
            started(Err(error.clone()));
            return Err(error);
        }
    };
    let mut told = false;
    let tell = |outcome: Result<Started>| {
        told = outcome.is_err();
        started(outcome);
    };
    let outcome = serve(spec.clone(), listener, tell).await;
    // A log is kept where it says something that nobody was told.
    place.remove(spec.options.log.is_none() && (told || outcome.is_ok()));
    outcome
}

async fn serve(
    spec: Arc<MountSpec>,
    listener: tokio::net::UnixListener,
    started: impl FnOnce(Result<Started>),
) -> Result<()> {
    let mut supervisor = match Supervisor::begin(spec).await {
        Ok(supervisor) => supervisor,
        Err(error) => {
            started(Err(error.clone()));
            return Err(error);
        }
    };
    let requests = control::accept(listener);
    let signals = Signals::new().map_err(|error| Failure::io("signals", &error))?;
    started(Ok(Started { pid: std::process::id(), worker: supervisor.worker_pid() }));
    supervisor.go_on(requests, signals).await
}

/// Signals that end a mount.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }
    /// The next one that ends the mount. Hanging up does not: the terminal of a background mount may go.
    async fn next(&mut self) -> &'static str {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return "SIGTERM",
                _ = self.interrupt.recv() => return "SIGINT",
                _ = self.hang_up.recv() => {}
            }
        }
    }
}

impl Supervisor {
    /// Starts the first worker, and mounts when it has reached the cluster: what cannot work is never mounted.
    async fn begin(spec: Arc<MountSpec>) -> Result<Supervisor> {
        let queues = QueueFile::create().unwrap_or_else(|error| {
            tracing::warn!(%error, "no memory for what is done in directories that the mount leads; it leads none");
            None
        });
        let queues = queues.map(Arc::new);
        let mut worker = WorkerProcess::start(&spec, &spec.program, true, queues.as_deref()).await?;
        worker.ready(FIRST_READY).await?;
        let mounting = spec.clone();
        let (device, agreed) = blocking(move || make_mount(&mounting)).await?;
        let table = OpenTable::create_memory().map_err(|error| Failure::io("shared memory", &error.into()))?;
        let connection = Connection { device, agreed, table: Arc::new(table), queues };
        if let Err(error) = worker.serve(&connection).await {
            let dir = spec.dir.clone();
            worker.kill().await;
            let _first_error_counts = blocking(move || mount::unmount(&dir, true)).await;
            return Err(error);
        }
        tracing::info!(source = spec.source(), dir = %spec.dir.display(), worker = worker.pid(), "mounted");
        Ok(Supervisor {
            spec,
            connection,
            serving: Serving::Worker(Box::new(worker)),
            since: SystemTime::now(),
            worker_since: Instant::now(),
            restarts: 0,
            last_end: None,
            backoff: backoff::Backoff::default(),
            detached: false,
            number: None,
        })
    }
    fn worker_pid(&self) -> Option<u32> {
        match &self.serving {
            Serving::Worker(worker) => Some(worker.pid()),
            Serving::Nobody(_) => None,
        }
    }
    async fn go_on(&mut self, mut requests: mpsc::Receiver<Incoming>, mut signals: Signals) -> Result<()> {
        loop {
            tokio::select! {
                change = self.serving.changed() => {
                    if !self.take(change) {
                        tracing::info!(dir = %self.spec.dir.display(), "unmounted");
                        return Ok(());
                    }
                }
                Some(incoming) = requests.recv() => {
                    let (done, answer) = self.handle(incoming.request).await;
                    let _asker_may_be_gone = incoming.answer.send(answer);
                    if done {
                        // Time for the answer to be sent.
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        return Ok(());
                    }
                }
                name = signals.next() => {
                    tracing::info!(name, "a signal ends the mount");
                    return self.end_by_signal().await;
                }
            }
        }
    }
    /// False when the mount is gone.
    fn take(&mut self, change: Change) -> bool {
        match change {
            Change::Ended(Ended::Unmounted) => return false,
            Change::Ended(Ended::Died(why)) => {
                if self.connection.device.is_ended() {
                    return false;
                }
                tracing::error!(why, "the mount's worker died; another one is started");
                self.last_end = Some(why);
                self.replace();
            }
            Change::Replaced(Replaced::Unmounted) => return false,
            Change::Replaced(Replaced::By(worker, backoff)) => {
                tracing::info!(worker = worker.pid(), "another worker serves");
                self.backoff = backoff;
                self.restarts += 1;
                self.worker_since = Instant::now();
                self.serving = Serving::Worker(worker);
            }
        }
        true
    }
    /// Starts looking for another worker.
    fn replace(&mut self) {
        let mut backoff = self.backoff.clone();
        backoff.died_after(self.worker_since.elapsed());
        let job = replace::replace(self.spec.clone(), self.connection.clone(), backoff);
        self.serving = Serving::Nobody(tokio::spawn(job));
    }
}

/// What happened to whoever serves.
enum Change {
    Ended(Ended),
    Replaced(Replaced),
}

impl Serving {
    async fn changed(&mut self) -> Change {
        match self {
            Serving::Worker(worker) => Change::Ended(worker.ended().await),
            Serving::Nobody(job) => Change::Replaced(match job.await {
                Ok(replaced) => replaced,
                Err(error) => {
                    tracing::error!(%error, "looking for another worker ended; the mount cannot go on");
                    Replaced::Unmounted
                }
            }),
        }
    }
}

fn make_mount(spec: &MountSpec) -> Result<(Device, Agreed)> {
    let device = mount::mount(spec)?;
    match shake_hands(&device) {
        Ok(agreed) => Ok((device, agreed)),
        Err(text) => {
            let _first_error_counts = mount::unmount(&spec.dir, true);
            Err(Failure::other(text))
        }
    }
}

/// Runs what blocks on a thread of its own.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(Failure::other(error.to_string())))
}
