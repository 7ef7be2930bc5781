//! [`JobWorker`]: asks the manager for jobs, and takes requests to move files out of packs, on a thread of its own.
//!
//! It connects as a client only when there may be work: the first question comes a while after the start.
use crate::compact::{Compactor, REQUESTS_MAX};
use crate::run::{End, Running};
use cairn_client::file_work::FileWorkRequest;
use cairn_client::job::{Job, JobServer};
use cairn_client::key::Key;
use cairn_client::{Client, ClientError, ConnectOptions};
use cairn_env::{FastRng, Rng};
use cairn_node_agent::{Contributor, Registration};
use cairn_telemetry::Samples;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// Longest time to the first answer of a manager.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// Of a job's calls: members fail and come back, leaders change.
const CALL_PATIENCE: Duration = Duration::from_secs(60);

/// What a worker needs.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    /// `host:port` of the managers.
    pub managers: Vec<String>,
    pub host: String,
    pub rack: String,
    /// Between two questions for work; grows with the number of nodes.
    pub pause: Duration,
    /// What the node shows where it works as a client.
    pub key: Key,
}

impl WorkerConfig {
    pub fn new(managers: Vec<String>) -> Self {
        Self { managers, host: String::new(), rack: String::new(), pause: Duration::from_secs(2), key: Key::None }
    }

    /// How the node connects as a client.
    fn client_options(&self) -> ConnectOptions {
        let mut options = ConnectOptions::new(self.managers.clone());
        options.host.clone_from(&self.host);
        options.rack.clone_from(&self.rack);
        options.connect_patience = CONNECT_PATIENCE;
        options.key.clone_from(&self.key);
        options
    }
}

#[derive(Default)]
struct Counters {
    done: AtomicU64,
    failed: AtomicU64,
}

/// A node's worker. Joins the node's agent, which tells it who it is.
pub struct JobWorker {
    /// Node and incarnation.
    identity: watch::Sender<Option<JobServer>>,
    stop: watch::Sender<bool>,
    thread: Mutex<Option<JoinHandle<()>>>,
    counters: Arc<Counters>,
    /// Requests to move files out of packs.
    pub(crate) asked: mpsc::Sender<FileWorkRequest>,
}

impl JobWorker {
    /// Starts the thread; it idles until the node is registered.
    pub fn start(config: WorkerConfig) -> std::io::Result<Arc<JobWorker>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (identity, who) = watch::channel(None);
        let (stop, stopped) = watch::channel(false);
        let counters = Arc::new(Counters::default());
        let (asked, requests) = mpsc::channel(REQUESTS_MAX);
        let compactor = Compactor::new(config.client_options());
        let worker = Loop { config, who, counters: counters.clone(), client: None };
        let work = async move {
            tokio::join!(worker.run(), compactor.run(requests));
        };
        let thread = std::thread::Builder::new()
            .name("cairn-jobs".into())
            .spawn(move || runtime.block_on(until_stopped(stopped, work)))?;
        Ok(Arc::new(JobWorker { identity, stop, thread: Mutex::new(Some(thread)), counters, asked }))
    }
    /// Ends the thread. A job in the works is left to another node.
    pub fn stop(&self) {
        self.stop.send_replace(true);
        let thread = self.thread.lock().take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the worker for jobs had panicked");
        }
    }
    pub fn sample(&self, out: &mut Samples) {
        let done = self.counters.done.load(Ordering::Relaxed);
        let failed = self.counters.failed.load(Ordering::Relaxed);
        out.counter("cairn_jobs_done", "Jobs that this node finished", &[], done);
        out.counter("cairn_jobs_failed", "Jobs that failed on this node", &[], failed);
    }
}

impl Contributor for JobWorker {
    fn registered(&self, registration: &Registration) -> Result<(), String> {
        let (node, incarnation) = (registration.node.0, registration.incarnation.0);
        self.identity.send_replace(Some(JobServer { node, incarnation }));
        Ok(())
    }
}

async fn until_stopped(mut stopped: watch::Receiver<bool>, work: impl Future<Output = ()>) {
    tokio::select! {
        () = work => {}
        _ = stopped.wait_for(|stop| *stop) => {}
    }
}

struct Loop {
    config: WorkerConfig,
    who: watch::Receiver<Option<JobServer>>,
    counters: Arc<Counters>,
    /// Connected when it was needed first.
    client: Option<Client>,
}

impl Loop {
    async fn run(mut self) {
        let rng = FastRng::from_os();
        loop {
            let nodes = self.client.as_ref().map_or(1, |client| client.view().nodes.len() as u32);
            let pause = self.config.pause.max(Duration::from_millis(10) * nodes);
            // Not all nodes at the same moment.
            tokio::time::sleep(pause / 2 + pause.mul_f64((rng.u64() % 1000) as f64 / 1000.0)).await;
            let Some(server) = *self.who.borrow() else { continue };
            match self.take(server).await {
                Ok(Some(job)) => self.work(job, server).await,
                Ok(None) => {}
                Err(error) => tracing::debug!(%error, "the manager could not be asked for work"),
            }
        }
    }

    async fn take(&mut self, server: JobServer) -> Result<Option<Job>, ClientError> {
        let client = match &self.client {
            Some(client) => client.clone(),
            None => {
                let mut options = self.config.client_options();
                options.patience = CONNECT_PATIENCE;
                self.client.insert(Client::connect(options).await?).clone()
            }
        };
        client.take_job(server).await
    }

    async fn work(&self, job: Job, server: JobServer) {
        let (id, path) = (job.id, String::from_utf8_lossy(&job.path).into_owned());
        tracing::info!(job = id, ?path, "a job begins");
        let mut options = self.config.client_options();
        options.who = job.who.clone();
        options.patience = CALL_PATIENCE;
        let end = match Client::connect(options).await {
            Ok(client) => Running { client, job, server }.run().await,
            Err(error) => {
                tracing::warn!(job = id, %error, "a job cannot begin here; another server gets it");
                return;
            }
        };
        match end {
            End::Done => self.counters.done.fetch_add(1, Ordering::Relaxed),
            End::Failed => self.counters.failed.fetch_add(1, Ordering::Relaxed),
            End::Stopped => 0,
        };
        tracing::info!(job = id, ?path, ?end, "a job ended");
    }
}
