//! A connection that works: threads, a session, the volume behind it.
use crate::error::{Error, Result};
use crate::key::Key;
use crate::options::ConnectOptions;
use cairn_client::{Client, own_process};
use cairn_vfs::{Caller, Vfs, VfsError, VfsOptions};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::runtime::{Handle, Runtime};

/// Threads of a connection: they carry frames and checksums for callers that wait.
const THREADS_MIN: usize = 2;
const THREADS_MAX: usize = 4;
/// How old what is known of an open file may be when its end is reached.
const OPEN_FILE_AGE: Duration = Duration::from_millis(100);
/// A connection that is dropped without being closed gets this time to write out.
const DROP_WITHIN: Duration = Duration::from_secs(10);
/// umask(2) cannot be asked without setting it, which other threads would see.
const UMASK_FALLBACK: u32 = 0o022;

pub(crate) struct Live {
    /// `None` only while it is dropped.
    runtime: Option<Runtime>,
    pub(crate) vfs: Vfs,
    /// The process, as it was when it connected.
    pub(crate) caller: Caller,
    pub(crate) volume: String,
    closed: AtomicBool,
}

impl Live {
    pub(crate) fn connect(options: &ConnectOptions, volume: &str) -> Result<Live> {
        let addresses = options.addresses()?;
        let cluster = format!("cluster {}", addresses.join(","));
        check_no_runtime(&cluster)?;
        let runtime = start_runtime(&cluster)?;
        let vfs = runtime.block_on(reach(options, addresses, &cluster, volume))?;
        let who = own_process::credentials();
        let groups = who.groups.into();
        let umask = options.umask.unwrap_or_else(umask);
        let caller = Caller { uid: who.uid, gid: who.gid, groups, pid: std::process::id(), umask };
        let volume = format!("volume {volume} of {cluster}");
        Ok(Live { runtime: Some(runtime), vfs, caller, volume, closed: AtomicBool::new(false) })
    }
    /// Waits for a call of the volume. `what` names it in errors.
    pub(crate) fn run<T>(
        &self,
        what: &Path,
        call: impl Future<Output = std::result::Result<T, VfsError>>,
    ) -> Result<T> {
        self.block(what, call)?.map_err(|error| Error::from_vfs(what, &error))
    }
    /// The same where whoever asks wants to know that what he means has lost its name (ESTALE).
    pub(crate) fn run_as_it_is<T>(
        &self,
        what: &Path,
        call: impl Future<Output = std::result::Result<T, VfsError>>,
    ) -> Result<T> {
        self.block(what, call)?.map_err(|error| Error::told(&what.to_string_lossy(), error.errno, &error.text))
    }
    /// Waits for something. `what` names it in errors.
    pub(crate) fn block<T>(&self, what: &Path, call: impl Future<Output = T>) -> Result<T> {
        self.check_open()?;
        check_no_runtime(&what.to_string_lossy())?;
        Ok(self.runtime().block_on(call))
    }
    /// The volume on behalf of the process.
    pub(crate) fn own_volume(&self) -> cairn_client::Volume {
        self.vfs.volume().as_user(self.caller.credentials())
    }
    /// Lets something go on while nobody waits.
    pub(crate) fn run_behind(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.runtime().spawn(work);
    }
    pub(crate) fn check_open(&self) -> Result<()> {
        match self.closed.load(Ordering::Acquire) {
            false => Ok(()),
            true => Err(Error::new(libc::EBADF, &self.volume, "the connection was closed", "connect again")),
        }
    }
    /// Writes everything out and ends the session. What comes later is refused.
    pub(crate) fn close(&self) -> Result<()> {
        check_no_runtime(&self.volume)?;
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let limit = self.vfs.options().timeout;
        let ended = self.runtime().block_on(async { tokio::time::timeout(limit, self.vfs.shutdown()).await });
        let late = || {
            let cause = format!("not everything could be written out within {} s", limit.as_secs());
            Error::new(libc::EIO, &self.volume, &cause, "cairn admin status shows whether the cluster serves")
        };
        ended.map_err(|_| late())?.map_err(|error| Error::told(&self.volume, error.errno, &error.text))
    }
    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("it is there until the value is dropped")
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        if !self.closed.load(Ordering::Acquire) && Handle::try_current().is_err() {
            // Nobody is there to be told; the lease ends what is left.
            let _in_time = runtime.block_on(async { tokio::time::timeout(DROP_WITHIN, self.vfs.shutdown()).await });
        }
        runtime.shutdown_background();
    }
}

/// These calls block their thread, which one of a runtime must not do.
fn check_no_runtime(what: &str) -> Result<()> {
    match Handle::try_current() {
        Err(_) => Ok(()),
        Ok(_) => {
            let next = "call it in tokio::task::spawn_blocking";
            Err(Error::new(libc::EDEADLK, what, "a call that blocks was made in an asynchronous task", next))
        }
    }
}

fn start_runtime(what: &str) -> Result<Runtime> {
    let cores = std::thread::available_parallelism().map_or(THREADS_MIN, usize::from);
    let built = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cores.clamp(THREADS_MIN, THREADS_MAX))
        .thread_name("cairn-sdk")
        .on_thread_start(block_signals)
        .enable_all()
        .build();
    built.map_err(|error| {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        Error::new(
            errno,
            what,
            &format!("threads could not be started ({error})"),
            "raise the limit of threads (ulimit -u)",
        )
    })
}

/// Signals are for the program's own threads: its handlers expect to run there.
fn block_signals() {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset fills the set before it is read, and both functions keep nothing of it.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), std::ptr::null_mut());
    }
}

async fn reach(options: &ConnectOptions, addresses: Vec<String>, cluster: &str, volume: &str) -> Result<Vfs> {
    if let Err(cause) = own_process::check_names(&addresses).await {
        let next = "check the spelling of the address or of $CAIRN_CLUSTER (cairn dev listens at 127.0.0.1:7400)";
        return Err(Error::new(libc::ENXIO, cluster, &cause, next));
    }
    // As a mount: work behind closed files is the volume's own, calls are made on behalf of the process.
    let connect = cairn_client::ConnectOptions {
        host: own_process::host_name(),
        rack: options.rack.clone(),
        patience: options.timeout,
        connect_patience: options.connect_timeout.min(options.timeout),
        key: options.key.as_ref().map(Key::choice).unwrap_or_default(),
        ..cairn_client::ConnectOptions::new(addresses)
    };
    let client = Client::connect(connect).await.map_err(|error| Error::from_client(cluster, &error.named(cluster)))?;
    let named = format!("volume {volume} of {cluster}");
    let volume = client.volume(volume).await.map_err(|error| Error::from_client(&named, &error))?;
    Ok(Vfs::new(client, volume, vfs_options(options)))
}

fn vfs_options(options: &ConnectOptions) -> VfsOptions {
    VfsOptions {
        read_only: options.read_only,
        close_visible: options.close_visible,
        timeout: options.timeout,
        memory_max: options.memory_max,
        attr_ttl: OPEN_FILE_AGE,
        entry_ttl: Duration::ZERO,
        negative_ttl: Duration::ZERO,
        ..VfsOptions::default()
    }
}

/// File mode mask of the process.
fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|text| u32::from_str_radix(text.trim(), 8).ok()).unwrap_or(UMASK_FALLBACK)
}
