//! Starting a supervisor in the background: its errors come to the caller's terminal.
use super::messages::Started;
use super::{run, rundir};
use crate::failure::{Failure, Kind, Result};
use crate::link;
use crate::spec::MountSpec;
use cairn_telemetry::{LogConfig, init_logging};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream as StdStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use tokio::net::UnixStream;

/// Hidden subcommand.
pub const COMMAND: &str = "mount-supervisor";

/// Starts one and waits until it has mounted or failed.
pub fn in_background(spec: &MountSpec) -> Result<Started> {
    let io = |error: std::io::Error| Failure::io("starting the mount's supervisor", &error);
    let (ours, theirs) = StdStream::pair().map_err(io)?;
    let mut child = Command::new(&spec.program)
        .arg(COMMAND)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(io)?;
    ours.set_nonblocking(true).map_err(io)?;
    let talk = async {
        let mut stream = UnixStream::from_std(ours).map_err(io)?;
        link::send(&mut stream, spec).await.map_err(io)?;
        link::receive::<Result<Started>>(&mut stream).await.map_err(io)
    };
    match small_runtime()?.block_on(talk)? {
        Some(Ok(started)) => Ok(started),
        Some(Err(failure)) => {
            let _it_ends_by_itself = child.wait();
            Err(failure)
        }
        None => {
            let status = child.wait().map(|status| status.to_string()).unwrap_or_default();
            Err(Failure::other(format!("the mount's supervisor ended without a word: {status}")))
        }
    }
}

/// The process of the hidden subcommand.
pub fn main() -> Result<()> {
    let io = |error: std::io::Error| Failure::io("the socket to the command", &error);
    let socket = std::io::stdin().as_fd().try_clone_to_owned().map_err(io)?;
    // A session of its own: closing the terminal does not end the mount.
    let _leads_one_already = rustix::process::setsid();
    let socket = StdStream::from(socket);
    socket.set_nonblocking(true).map_err(io)?;
    small_runtime()?.block_on(async move {
        let mut stream = UnixStream::from_std(socket).map_err(io)?;
        let spec = link::receive::<MountSpec>(&mut stream).await.map_err(io)?;
        let spec = spec.ok_or_else(|| Failure::other("this command is started by cairn mount"))?;
        let prepared = detach(&spec);
        let (sender, hears) = tokio::sync::oneshot::channel::<Result<Started>>();
        let told = tokio::spawn(async move {
            if let Ok(outcome) = hears.await {
                let _command_may_be_gone = link::send(&mut stream, &outcome).await;
            }
        });
        let tell = |outcome| {
            let _listens = sender.send(outcome);
        };
        let outcome = match prepared {
            Ok(()) => run(spec, tell).await,
            Err(failure) => {
                tell(Err(failure.clone()));
                Err(failure)
            }
        };
        let _sent = told.await;
        outcome
    })
}

/// In the foreground, in this process.
pub fn in_foreground(spec: MountSpec, started: impl FnOnce(&Started)) -> Result<()> {
    start_log(&spec)?;
    small_runtime()?.block_on(run(spec, |outcome| {
        if let Ok(outcome) = &outcome {
            started(outcome);
        }
    }))
}

/// Points standard streams away from the terminal and starts the log.
fn detach(spec: &MountSpec) -> Result<()> {
    let path = match &spec.options.log {
        Some(path) => path.clone(),
        None => rundir::log_file(std::process::id())?,
    };
    let log = File::options().create(true).append(true).mode(0o600).open(&path);
    let log = log.map_err(|error| Failure::io(&format!("log file {}", path.display()), &error))?;
    let null = File::open("/dev/null").map_err(|error| Failure::io("/dev/null", &error))?;
    let redirected = rustix::stdio::dup2_stderr(&log).and_then(|()| rustix::stdio::dup2_stdin(&null));
    redirected.map_err(|error| Failure::io("standard streams", &error.into()))?;
    // The directory that the command was called in can be unmounted.
    std::env::set_current_dir("/").map_err(|error| Failure::io("/", &error))?;
    start_log(spec)
}

pub(crate) fn start_log(spec: &MountSpec) -> Result<()> {
    let filter = spec.options.log_level.clone().or_else(|| std::env::var("CAIRN_LOG").ok());
    let config = filter.map_or_else(LogConfig::default, |filter| LogConfig { filter, ..LogConfig::default() });
    init_logging(&config).map_err(|why| Failure::new(Kind::Usage, format!("log_level: {why}")))
}

/// One thread is enough for what a supervisor does.
pub(crate) fn small_runtime() -> Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::io("starting a runtime", &error))
}

/// Log file of a supervisor that was not told where to log.
pub fn log_of(pid: u32) -> Option<PathBuf> {
    rundir::log_file(pid).ok().filter(|path| path.exists())
}
