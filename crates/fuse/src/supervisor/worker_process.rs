//! A worker as the supervisor sees it: a child process and a socket, which is the child's standard input.
use super::messages::{Ask, FromWorker, ToWorker};
use super::replace::Connection;
use crate::failure::{Failure, Result};
use crate::link;
use crate::spec::MountSpec;
use parking_lot::Mutex;
use serde_json::Value;
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot};

/// Hidden subcommand.
pub const COMMAND: &str = "mount-worker";
/// A worker that has the connection serves within this.
const SERVING: Duration = Duration::from_secs(60);
/// Messages that the supervisor has not looked at.
const EVENTS_MAX: usize = 16;

/// How a worker ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    Unmounted,
    Died(String),
}

/// What came of asking one to let another one serve.
pub enum HandOver {
    Done,
    /// It goes on, and nothing has changed.
    Refused(Failure),
    /// It reads nothing more, or nobody knows.
    Failed(Failure),
}

/// What a worker said.
struct Answered {
    result: Result<Value>,
    serves: bool,
}

type Waiting = Arc<Mutex<HashMap<u64, oneshot::Sender<Answered>>>>;

pub struct WorkerProcess {
    child: Child,
    pid: u32,
    writer: OwnedWriteHalf,
    events: mpsc::Receiver<FromWorker>,
    waiting: Waiting,
    next: u64,
}

impl WorkerProcess {
    /// `queues`: memory of [`QueueFile`](crate::queue_file::QueueFile). A worker of an older build gets it all the
    /// same: it writes nothing to its output.
    pub async fn start(
        spec: &MountSpec,
        program: &Path,
        first: bool,
        queues: Option<&OwnedFd>,
    ) -> Result<WorkerProcess> {
        let io = |what: &str| {
            let what = format!("{what} of the mount's worker");
            move |error: std::io::Error| Failure::io(&what, &error)
        };
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(io("the socket"))?;
        let queues = queues.map(OwnedFd::try_clone).transpose().map_err(io("the memory"))?;
        let child = Command::new(program)
            .arg(COMMAND)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(queues.map_or_else(Stdio::null, Stdio::from))
            .stderr(Stdio::inherit())
            // Ctrl-C in a terminal is for the supervisor.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| Failure::io(&format!("starting {}", program.display()), &error))?;
        let pid = child.id().unwrap_or_default();
        ours.set_nonblocking(true).map_err(io("the socket"))?;
        let (reader, mut writer) = UnixStream::from_std(ours).map_err(io("the socket"))?.into_split();
        let hello = ToWorker::Hello { spec: Box::new(spec.clone()), first };
        link::send(&mut writer, &hello).await.map_err(io("the socket"))?;
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        let waiting = Waiting::default();
        tokio::spawn(listen(reader, sender, waiting.clone()));
        Ok(WorkerProcess { child, pid, writer, events, waiting, next: 0 })
    }
    pub fn pid(&self) -> u32 {
        self.pid
    }
    /// Waits until the cluster is reached.
    pub async fn ready(&mut self, at_most: Duration) -> Result<()> {
        match self.event(at_most, "reach the cluster").await? {
            FromWorker::Ready => Ok(()),
            other => Err(unexpected(&other)),
        }
    }
    /// Gives it the connection; requests are read when this returns.
    pub async fn serve(&mut self, connection: &Connection) -> Result<()> {
        let io = |error: std::io::Error| Failure::io("handing the mount to its worker", &error);
        link::send(&mut self.writer, &ToWorker::Serve { agreed: connection.agreed }).await.map_err(io)?;
        let descriptors = [connection.device.as_fd(), connection.table.as_fd()];
        link::send_descriptors(self.writer.as_ref(), &descriptors).await.map_err(io)?;
        match self.event(SERVING, "serve").await? {
            FromWorker::Serving { restored, lost, unsynced } => {
                if restored + lost + unsynced > 0 {
                    tracing::info!(restored, lost, unsynced, "open files were taken over");
                }
                Ok(())
            }
            other => Err(unexpected(&other)),
        }
    }
    async fn event(&mut self, at_most: Duration, what: &str) -> Result<FromWorker> {
        match tokio::time::timeout(at_most, self.events.recv()).await {
            Ok(Some(FromWorker::Failed(failure))) => Err(failure),
            Ok(Some(event)) => Ok(event),
            Ok(None) => Err(Failure::other(format!("the mount's worker ended: {}", self.status().await))),
            Err(_) => {
                let seconds = at_most.as_secs();
                Err(Failure::other(format!("the mount's worker did not {what} within {seconds} s; see its log")))
            }
        }
    }
    /// Asks it something.
    pub async fn ask(&mut self, what: Ask, at_most: Duration) -> Result<Value> {
        self.answer(what, at_most).await?.result
    }
    /// Asks it to let another one serve.
    pub async fn hand_over(&mut self, at_most: Duration) -> HandOver {
        match self.answer(Ask::HandOver, at_most).await {
            Ok(Answered { result: Ok(_), .. }) => HandOver::Done,
            Ok(Answered { result: Err(failure), serves: true }) => HandOver::Refused(failure),
            Ok(Answered { result: Err(failure), .. }) | Err(failure) => HandOver::Failed(failure),
        }
    }
    async fn answer(&mut self, what: Ask, at_most: Duration) -> Result<Answered> {
        self.next += 1;
        let (sender, receiver) = oneshot::channel();
        self.waiting.lock().insert(self.next, sender);
        let asked = link::send(&mut self.writer, &ToWorker::Ask { id: self.next, what }).await;
        asked.map_err(|error| Failure::io("asking the mount's worker", &error))?;
        match tokio::time::timeout(at_most, receiver).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err(Failure::other("the mount's worker ended before it answered")),
            Err(_) => {
                self.waiting.lock().remove(&self.next);
                Err(Failure::other(format!("the mount's worker did not answer within {} s", at_most.as_secs())))
            }
        }
    }
    /// Waits until it ends. May be dropped and called again.
    pub async fn ended(&mut self) -> Ended {
        loop {
            if let Ok(ended) = self.ended_or_failed().await {
                return ended;
            }
        }
    }
    /// Waits until it ends or says that something failed. May be dropped and called again.
    pub async fn ended_or_failed(&mut self) -> Result<Ended> {
        loop {
            match self.events.recv().await {
                Some(FromWorker::Unmounted) => {
                    let _left_by_itself = tokio::time::timeout(Duration::from_secs(5), self.child.wait()).await;
                    return Ok(Ended::Unmounted);
                }
                Some(FromWorker::Failed(failure)) => {
                    tracing::error!(%failure, "the mount's worker failed");
                    return Err(failure);
                }
                Some(_) => {}
                None => return Ok(Ended::Died(self.status().await)),
            }
        }
    }
    async fn status(&mut self) -> String {
        match tokio::time::timeout(Duration::from_secs(1), self.child.wait()).await {
            Ok(Ok(status)) => status.to_string(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => {
                // It closed its socket and lives: it must not answer requests beside the next one.
                self.kill().await;
                "it lost its socket and was killed".into()
            }
        }
    }
    /// Ends it at once; what it had not answered is handed to the next one.
    pub async fn kill(&mut self) {
        if let Err(error) = self.child.kill().await {
            tracing::debug!(%error, "killing the worker");
        }
    }
    /// Waits for its end, and ends it if that takes longer.
    pub async fn finish(mut self, at_most: Duration) {
        if tokio::time::timeout(at_most, self.child.wait()).await.is_err() {
            self.kill().await;
        }
    }
}

async fn listen(mut reader: OwnedReadHalf, events: mpsc::Sender<FromWorker>, waiting: Waiting) {
    loop {
        match link::receive::<FromWorker>(&mut reader).await {
            Ok(Some(FromWorker::Answer { id, result, serves })) => {
                if let Some(sender) = waiting.lock().remove(&id) {
                    let _asker_may_be_gone = sender.send(Answered { result, serves });
                }
            }
            Ok(Some(event)) => {
                if events.send(event).await.is_err() {
                    break;
                }
            }
            Ok(None) => break,
            Err(error) => {
                tracing::warn!(%error, "reading from the mount's worker");
                break;
            }
        }
    }
    waiting.lock().clear();
}

fn unexpected(event: &FromWorker) -> Failure {
    Failure::other(format!("the mount's worker said {event:?}, which does not belong here; are versions mixed?"))
}
