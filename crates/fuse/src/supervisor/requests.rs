//! What commands and signals want of a supervisor.
use super::messages::{Answer, Ask, Request};
use super::worker_process::{Ended, HandOver, WorkerProcess};
use super::{Serving, Supervisor, blocking};
use crate::failure::{Failure, Kind, Result};
use crate::mount;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// The worker answers about itself within this.
const STATUS: Duration = Duration::from_secs(5);
/// A new program reaches the cluster within this, or the old one goes on.
const READY: Duration = Duration::from_secs(60);
/// An ended worker closes its session within this.
const ENDING: Duration = Duration::from_secs(30);
/// A mount that is in use is tried again for so long.
const STILL_IN_USE: Duration = Duration::from_secs(1);
/// More than the worker's own limits for writing everything out.
const SYNC_SLACK: Duration = Duration::from_secs(15);

/// A worker ends so long after its mount, unless it has something to write or somebody has the file system elsewhere.
const LEFT_BEHIND: Duration = Duration::from_secs(5);
/// One that was left behind writes everything out within this.
const LEFT_BEHIND_SYNC: Duration = Duration::from_secs(60);

/// How unmounting went.
struct Unmounted {
    /// False: detached, and still used by somebody.
    gone: bool,
    /// Why the worker goes on, or that it had to be ended.
    said: Option<String>,
}

/// What became of the worker of a mount that was taken away.
enum Left {
    Ended,
    /// It ended in another way than by itself, as is said here.
    Died(String),
    /// The file system is mounted elsewhere, as is said here: it serves there.
    Serves(String),
    /// Not everything is written.
    Unwritten(Failure),
}

impl Supervisor {
    /// Handles a request; true when the mount is gone.
    pub(super) async fn handle(&mut self, request: Request) -> (bool, Answer) {
        match request {
            Request::Status => (false, Ok(self.status().await)),
            Request::Unmount { lazy } => match self.unmount(lazy).await {
                Ok(Unmounted { gone, said }) => {
                    (gone, Ok(json!({ "unmounted": self.spec.dir, "detached": !gone, "worker": said })))
                }
                Err(failure) => (false, Err(failure)),
            },
            Request::Upgrade { program } => (false, self.upgrade(program).await),
        }
    }
    fn sync_limit(&self) -> Duration {
        Duration::from_secs_f64(self.spec.options.timeout) + SYNC_SLACK
    }
    async fn status(&mut self) -> Value {
        let worker = match &mut self.serving {
            Serving::Worker(worker) => match worker.ask(Ask::Status, STATUS).await {
                Ok(value) => value,
                Err(failure) => json!({ "pid": worker.pid(), "error": failure.text }),
            },
            Serving::Nobody(_) => json!({ "error": "no worker serves; another one is started" }),
        };
        let since = self.since.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        json!({
            "dir": self.spec.dir,
            "source": self.spec.source(),
            "supervisor": std::process::id(),
            "mounted_at": since.as_secs(),
            "restarts": self.restarts,
            "last_end": self.last_end,
            "detached": self.detached,
            "options": self.spec.options,
            "worker": worker,
        })
    }
    /// Writes everything out and unmounts.
    async fn unmount(&mut self, lazy: bool) -> Result<Unmounted> {
        let limit = self.sync_limit();
        let mut unwritten = None;
        if let Serving::Worker(worker) = &mut self.serving {
            let (pid, synced) = (worker.pid(), worker.ask(Ask::Sync, limit).await);
            let was_taken_away = self.detached || self.connection.device.is_ended();
            if let Err(failure) = synced {
                let (dir, supervisor) = (self.spec.dir.display(), std::process::id());
                if was_taken_away {
                    // One that ended does not answer.
                    let ended = if self.connection.device.is_ended() { end_now(worker).await } else { None };
                    let left = ended.unwrap_or(Left::Unwritten(failure));
                    return self.told(pid, left);
                }
                if !lazy && has_only_lost(worker).await {
                    let text = format!(
                        "{}; nothing else is left to write, and the mount stays this once. Repeat cairn umount {dir}: it unmounts",
                        failure.text
                    );
                    return Err(Failure::new(failure.kind, text));
                }
                if !lazy {
                    let text = format!(
                        "{}; data is not written yet, so the mount stays. Repeat this when the servers answer; cairn umount --lazy {dir} \
                         detaches it, and process {pid} goes on trying; kill {supervisor} gives up what is not written",
                        failure.text
                    );
                    return Err(Failure::new(failure.kind, text));
                }
                unwritten = Some(format!(
                    "not everything that was written is stored: {}; process {pid} keeps it and tries again; kill {supervisor} gives it up",
                    failure.text
                ));
            }
        }
        if !self.detached {
            let dir = self.spec.dir.clone();
            let there = mount::mountinfo::find(&dir).ok().flatten().filter(|there| there.kind == mount::TYPE);
            if !self.connection.device.is_ended() {
                self.take_away(dir, lazy).await?;
            }
            self.number = there.map(|there| there.device);
            self.detached = true;
        }
        let Serving::Worker(worker) = &mut self.serving else { return Ok(Unmounted { gone: !lazy, said: None }) };
        if lazy {
            let gone = tokio::time::timeout(Duration::from_secs(1), worker.ended()).await.is_ok();
            return Ok(Unmounted { gone, said: unwritten });
        }
        let pid = worker.pid();
        let left = self.left_behind(limit).await;
        self.told(pid, left)
    }
    fn told(&self, pid: u32, left: Left) -> Result<Unmounted> {
        match left {
            Left::Ended => Ok(Unmounted { gone: true, said: None }),
            Left::Died(said) => Ok(Unmounted { gone: true, said: Some(said) }),
            Left::Serves(said) => Ok(Unmounted { gone: false, said: Some(said) }),
            Left::Unwritten(failure) => Err(self.unwritten(pid, &failure)),
        }
    }
    fn unwritten(&self, pid: u32, failure: &Failure) -> Failure {
        let (dir, supervisor) = (self.spec.dir.display(), std::process::id());
        let text = format!(
            "{dir} is unmounted, but not everything that was written there is stored: {}; process {pid} keeps it and tries again. When the \
             servers answer, cairn umount {dir} once more tells whether it is done; kill {supervisor} gives up what is not",
            failure.text
        );
        Failure::new(failure.kind, text)
    }
    /// The worker of a mount that was taken away ends by itself, unless the file system is at another place, too, where
    /// it goes on serving, or it cannot write everything out, or hangs. One that hangs is ended, but not before
    /// everything is written.
    async fn left_behind(&mut self, limit: Duration) -> Left {
        let Serving::Worker(worker) = &mut self.serving else { return Left::Ended };
        match end_of(worker, LEFT_BEHIND, limit).await {
            // Another one takes its place.
            Some(Left::Died(_)) if !self.connection.device.is_ended() => {}
            Some(left) => return left,
            None => {}
        }
        if !self.connection.device.is_ended() {
            let number = self.number.clone();
            let places = blocking(move || Ok(number.and_then(|number| mount::holders::other_places(&number)))).await;
            let said = match places.ok().flatten() {
                Some(places) => format!(
                    "the file system is mounted elsewhere, too, and goes on there: {places}; it ends when it is unmounted there"
                ),
                None => {
                    "somebody who cannot be seen from here has the file system, too: it goes on until that ends".into()
                }
            };
            tracing::info!(said, "unmounted");
            return Left::Serves(said);
        }
        // The kernel is done with it: it is writing out.
        if let Some(left) = end_of(worker, limit, limit).await {
            return left;
        }
        if let Err(failure) = worker.ask(Ask::HandOver, limit.min(LEFT_BEHIND_SYNC)).await {
            return end_now(worker).await.unwrap_or(Left::Unwritten(failure));
        }
        if let Err(failure) = worker.ask(Ask::End, ENDING).await {
            tracing::error!(%failure, "ending the worker");
        }
        if tokio::time::timeout(LEFT_BEHIND, worker.ended()).await.is_err() {
            worker.kill().await;
        }
        let said = format!(
            "its worker (process {}) hung and was ended when everything was written; see its log",
            worker.pid()
        );
        tracing::warn!(said, "unmounted");
        Left::Died(said)
    }
    /// Files of programs that have just ended, and what these still had under way, are in use for a moment longer.
    async fn take_away(&self, dir: PathBuf, lazy: bool) -> Result<()> {
        let began = Instant::now();
        loop {
            let own = dir.clone();
            match blocking(move || mount::unmount(&own, lazy)).await {
                Err(failure) if failure.kind == Kind::InUse && began.elapsed() < STILL_IN_USE => {
                    tokio::time::sleep(STILL_IN_USE / 10).await;
                }
                outcome => return outcome,
            }
        }
    }
    /// By a signal: as clean as possible, and gone in the end.
    pub(super) async fn end_by_signal(&mut self) -> Result<()> {
        match self.unmount(false).await {
            Ok(Unmounted { gone: true, .. }) => return Ok(()),
            Ok(Unmounted { said, .. }) => tracing::warn!(said, "it is ended all the same"),
            Err(failure) if failure.kind == Kind::InUse => tracing::warn!(%failure, "detaching it"),
            Err(failure) => tracing::error!(%failure, "detaching it"),
        }
        let mut detached = Ok(());
        if !self.detached && !self.connection.device.is_ended() {
            let dir = self.spec.dir.clone();
            detached = blocking(move || mount::unmount(&dir, true)).await;
        }
        if let Serving::Worker(worker) = &mut self.serving {
            let (limit, ask) = (self.spec.options.timeout, Ask::HandOver);
            if tokio::time::timeout(Duration::from_secs(1), worker.ended()).await.is_err() {
                let synced = worker.ask(ask, Duration::from_secs_f64(limit) + SYNC_SLACK).await;
                let ended = worker.ask(Ask::End, ENDING).await;
                for failure in [synced.err(), ended.err()].into_iter().flatten() {
                    tracing::error!(%failure, "ending the worker");
                }
            }
        }
        detached
    }

    /// Replaces the worker by one that runs `program`. Until that has reached the cluster the old one serves.
    async fn upgrade(&mut self, program: PathBuf) -> Answer {
        let Serving::Worker(_) = &self.serving else {
            return Err(Failure::other("no worker serves at the moment; try again"));
        };
        let mut new = WorkerProcess::start(&self.spec, &program, false, self.connection.queues.as_deref()).await?;
        if let Err(failure) = new.ready(READY).await {
            new.kill().await;
            return Err(Failure::new(failure.kind, format!("{}; the old worker goes on", failure.text)));
        }
        let limit = self.sync_limit();
        let Serving::Worker(old) = &mut self.serving else { return Err(Failure::other("the worker ended")) };
        let started = Instant::now();
        let warning = match old.hand_over(limit).await {
            HandOver::Done => None,
            HandOver::Refused(failure) => {
                new.kill().await;
                let next = "the old worker goes on, and nothing is lost. Repeat this when the servers answer";
                return Err(Failure::new(failure.kind, format!("{}; {next}", failure.text)));
            }
            HandOver::Failed(failure) => {
                tracing::error!(%failure, "the old worker did not hand over; it is killed");
                old.kill().await;
                Some(failure.text)
            }
        };
        if let Err(failure) = new.serve(&self.connection).await {
            new.kill().await;
            old.kill().await;
            self.last_end = Some(failure.text.clone());
            self.replace();
            return Err(failure);
        }
        let pause = started.elapsed();
        let mut spec = (*self.spec).clone();
        spec.program = program;
        self.spec = Arc::new(spec);
        self.restarts += 1;
        self.worker_since = Instant::now();
        let pid = new.pid();
        let old = std::mem::replace(&mut self.serving, Serving::Worker(Box::new(new)));
        if let Serving::Worker(old) = old {
            tokio::spawn(end(*old));
        }
        tracing::info!(worker = pid, pause_ms = pause.as_millis() as u64, "the worker was replaced");
        Ok(json!({ "worker": pid, "pause_ms": pause.as_millis() as u64, "warning": warning }))
    }
}

/// Waits so long for the end of a worker; none: it is still there and said nothing. What it could not write it is asked
/// for again.
async fn end_of(worker: &mut WorkerProcess, at_most: Duration, sync_limit: Duration) -> Option<Left> {
    match tokio::time::timeout(at_most, worker.ended_or_failed()).await {
        Ok(Ok(ended)) => Some(left(ended)),
        Ok(Err(_)) => match worker.ask(Ask::Sync, sync_limit).await {
            Ok(_) => tokio::time::timeout(at_most, worker.ended()).await.ok().map(left),
            Err(failure) => Some(end_now(worker).await.unwrap_or(Left::Unwritten(failure))),
        },
        Err(_) => None,
    }
}

/// Whether changes in led directories were lost, which is told once, and everything else is stored.
async fn has_only_lost(worker: &mut WorkerProcess) -> bool {
    let Ok(status) = worker.ask(Ask::Status, STATUS).await else { return false };
    let number = |name: &str| status["vfs"][name].as_u64();
    let waits = ["dirty_bytes", "writing_bytes", "volatile_files", "unstored_changes"];
    number("lost_directories") > Some(0) && waits.into_iter().all(|name| number(name) == Some(0))
}

/// How a worker that does not answer ended, if it did.
async fn end_now(worker: &mut WorkerProcess) -> Option<Left> {
    tokio::time::timeout(Duration::from_secs(1), worker.ended()).await.ok().map(left)
}

fn left(ended: Ended) -> Left {
    match ended {
        Ended::Unmounted => Left::Ended,
        Ended::Died(why) => {
            Left::Died(format!("its worker died ({why}); what was written just before may be lost; see its log"))
        }
    }
}

async fn end(mut old: WorkerProcess) {
    if let Err(failure) = old.ask(Ask::End, ENDING).await {
        tracing::debug!(%failure, "ending the replaced worker");
    }
    old.finish(ENDING).await;
}
