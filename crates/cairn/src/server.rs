//! `cairn server --config FILE`: one process with the roles that the file names, until SIGTERM or SIGINT.
use crate::config::{self, Config, ConfigErrors};
use crate::descriptors;
use crate::joining::Refused;
use crate::memory;
use crate::node::http_port::HttpPort;
use crate::node::{NodeProcess, NodeSpec, OtherMember};
use crate::notify::Notify;
use crate::private;
use crate::security::NotItsKey;
use cairn_cli::Exit;
use cairn_security::SecurityError;
use cairn_store::StoreError;
use cairn_telemetry::init_logging;
use clap::Args;
use std::io::Write;
use std::path::PathBuf;

/// Arguments of `cairn server`.
#[derive(Args, Debug)]
pub struct ServerArgs {
    /// The configuration; docs/reference/config.md lists its keys
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

/// Why a server ended other than by a signal.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("{0}")]
    Config(#[from] ConfigErrors),
    #[error("{path}: {source}; write a configuration as in docs/reference/config.md")]
    NoConfig { path: String, source: std::io::Error },
    #[error("{0}")]
    Usage(String),
    #[error("{}", told(.0))]
    Start(#[from] anyhow::Error),
}

/// Prints an error as its last line; the exit code.
pub fn report(result: Result<(), ServeError>) -> Exit {
    match result {
        Ok(()) => Exit::Done,
        Err(error) => {
            eprintln!("cairn: {error}");
            match error {
                ServeError::Config(_) | ServeError::NoConfig { .. } => Exit::BadConfig,
                ServeError::Usage(_) => Exit::Usage,
                ServeError::Start(error) => exit_of(&error),
            }
        }
    }
}

/// An error and its causes, without those that are in the text of the one above already.
fn told(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

/// The class of a failed start, for scripts.
fn exit_of(error: &anyhow::Error) -> Exit {
    let of_store = |error: &StoreError| match error {
        StoreError::InUse { .. } => Some(Exit::InUse),
        StoreError::OtherCluster { .. } => Some(Exit::WrongCluster),
        StoreError::Corrupt { .. } | StoreError::Gap { .. } => Some(Exit::Damaged),
        _ => None,
    };
    // The key that a configuration names is a part of it.
    let of_key = |error: &SecurityError| match error {
        SecurityError::Sign(_) => None,
        _ => Some(Exit::BadConfig),
    };
    let of_io = |error: &std::io::Error| (error.kind() == std::io::ErrorKind::AddrInUse).then_some(Exit::InUse);
    let class = |cause: &(dyn std::error::Error + 'static)| {
        let found = cause.downcast_ref().and_then(of_store).or_else(|| cause.downcast_ref().and_then(of_io));
        found
            .or_else(|| cause.downcast_ref().and_then(of_key))
            .or_else(|| cause.is::<Refused>().then_some(Exit::Permission))
            .or_else(|| (cause.is::<NotItsKey>() || cause.is::<OtherMember>()).then_some(Exit::BadConfig))
    };
    error.chain().find_map(class).unwrap_or(Exit::Other)
}

/// Runs until a signal ends it.
pub fn run(args: &ServerArgs) -> Result<(), ServeError> {
    let path = args.config.display().to_string();
    let text =
        std::fs::read_to_string(&args.config).map_err(|source| ServeError::NoConfig { path: path.clone(), source })?;
    let config = config::parse(&path, &text)?;
    if let Err(why) = init_logging(&config.log) {
        return Err(ConfigErrors { file: path, mistakes: vec![(1, format!("log.filter: {why}"))] }.into());
    }
    private::for_owner_alone();
    descriptors::raise_limit();
    let runtime = http_runtime()?;
    let signals = Signals::new(&runtime)?;
    let starting = Signals::new(&runtime)?.end_the_start(&runtime);
    let node = NodeProcess::start(spec(&config), runtime.handle())?;
    starting.abort();
    announce(&node.address(), &node.http_address())?;
    let notify = Notify::of_environment();
    notify.ready(&node.address());
    let watchdog = notify.watchdog(runtime.handle());
    signals.wait(&runtime);
    tracing::info!("stopping");
    notify.stopping();
    node.stop();
    drop(watchdog);
    Ok(())
}

fn spec(config: &Config) -> NodeSpec {
    let node = &config.node;
    NodeSpec {
        dir: node.dir.clone(),
        listen: node.listen.clone(),
        advertise: node.advertise.clone(),
        http: Some(HttpPort::of(node.http.as_deref())),
        http_access: config.http.clone(),
        rack: node.rack.clone(),
        host: if node.host.is_empty() { host_name() } else { node.host.clone() },
        checkpoint_generations: node.checkpoint_generations,
        feature_level: node.feature_level_max,
        request_log_bytes: node.request_log_mib << 20,
        managers: config.manager.members.clone(),
        manager: config.manager.member,
        manager_joins: config.manager.join,
        cluster_name: config.manager.cluster_name.clone(),
        meta: config.meta,
        meta_memory_max: config.meta_memory_max.unwrap_or_else(memory::for_metadata),
        disks: config.data.as_ref().map(|d| d.disks.clone()).unwrap_or_default(),
        replaced_disks: config.data.as_ref().map(|d| d.replaced_disks.clone()).unwrap_or_default(),
        direct_reads: config.data.as_ref().is_some_and(|d| d.direct_reads),
        compact: false,
        open_files: descriptors::limit(),
        rpc_threads: None,
        bootstrap: None,
        admin_over_tcp: node.admin_over_tcp,
        security: config.security.clone(),
    }
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// Runtime of the HTTP port and of signals; the roles have their own threads.
pub fn http_runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(1).thread_name("http").enable_all().build()?)
}

/// The one line on standard output that says that the process serves.
pub fn announce(address: &str, http: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "ready cluster={address} http={http}")?;
    out.flush()?;
    Ok(())
}

/// SIGTERM and SIGINT, caught from the start on.
pub struct Signals {
    term: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    pub fn new(runtime: &tokio::runtime::Runtime) -> anyhow::Result<Signals> {
        use tokio::signal::unix::{SignalKind, signal};
        let _inside = runtime.enter();
        Ok(Signals { term: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }
    /// A process that still waits for others to start ends at once: whatever it wrote is in order at any moment.
    fn end_the_start(mut self, runtime: &tokio::runtime::Runtime) -> tokio::task::AbortHandle {
        let ended = async move {
            self.next().await;
            tracing::info!("ended before it served");
            std::process::exit(0);
        };
        runtime.spawn(ended).abort_handle()
    }
    async fn next(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
    pub fn wait(mut self, runtime: &tokio::runtime::Runtime) {
        runtime.block_on(self.next());
    }
}
