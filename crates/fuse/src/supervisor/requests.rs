//! What commands and signals want of a supervisor.
use super::messages::{Answer, Ask, Request};
use super::worker_process::WorkerProcess;
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
    /// Why the worker had to be ended, if it had to.
    ended: Option<String>,
}

impl Supervisor {
    /// Handles a request; true when the mount is gone.
    pub(super) async fn handle(&mut self, request: Request) -> (bool, Answer) {
        match request {
            Request::Status => (false, Ok(self.status().await)),
            Request::Unmount { lazy } => match self.unmount(lazy).await {
                Ok(Unmounted { gone, ended }) => {
                    (gone, Ok(json!({ "unmounted": self.spec.dir, "detached": !gone, "ended": ended })))
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
        if let Serving::Worker(worker) = &mut self.serving {
            worker.ask(Ask::Sync, limit).await.map_err(|failure| {
                let text = format!("{}; data is not written yet, so the mount stays", failure.text);
                Failure::new(failure.kind, text)
            })?;
        }
        let dir = self.spec.dir.clone();
        let there = mount::mountinfo::find(&dir).ok().flatten().filter(|there| there.kind == mount::TYPE);
        if !self.detached {
            self.take_away(dir, lazy).await?;
        }
        self.detached = lazy;
        let Serving::Worker(worker) = &mut self.serving else { return Ok(Unmounted { gone: !lazy, ended: None }) };
        if lazy {
            let gone = tokio::time::timeout(Duration::from_secs(1), worker.ended()).await.is_ok();
            return Ok(Unmounted { gone, ended: None });
        }
        let ended = self.end_left_behind(there.map(|there| there.device), limit).await;
        Ok(Unmounted { gone: true, ended })
    }
    /// The worker of a mount that was taken away ends by itself, unless the file system is at another place, too, or it hangs.
    /// Then it is ended, after everything was written out if that can be done; why, in words.
    async fn end_left_behind(&mut self, device: Option<String>, limit: Duration) -> Option<String> {
        let Serving::Worker(worker) = &mut self.serving else { return None };
        if tokio::time::timeout(LEFT_BEHIND, worker.ended()).await.is_ok() {
            return None;
        }
        // The kernel is done with it: it is writing out.
        if self.connection.device.is_ended() && tokio::time::timeout(limit, worker.ended()).await.is_ok() {
            return None;
        }
        let places = blocking(move || Ok(device.and_then(|device| mount::holders::other_places(&device)))).await;
        let pid = worker.pid();
        let why = match places.ok().flatten() {
            Some(places) => format!("the file system is mounted elsewhere, too: {places}; it fails there from now on"),
            None if self.connection.device.is_ended() => "it hung; see its log".into(),
            None => "somebody who cannot be seen from here has the file system, too".into(),
        };
        let mut text = format!("its worker (process {pid}) did not end by itself and was ended: {why}");
        if let Err(failure) = worker.ask(Ask::HandOver, limit.min(LEFT_BEHIND_SYNC)).await {
            text.push_str(&format!("; what was written since may be lost: {}", failure.text));
        } else if let Err(failure) = worker.ask(Ask::End, ENDING).await {
            tracing::error!(%failure, "ending the worker");
        }
        if tokio::time::timeout(LEFT_BEHIND, worker.ended()).await.is_err() {
            worker.kill().await;
        }
        tracing::warn!(text, "unmounted");
        Some(text)
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
            Ok(_unmounted) => return Ok(()),
            Err(failure) if failure.kind == Kind::InUse => tracing::warn!(%failure, "detaching it"),
            Err(failure) => tracing::error!(%failure, "detaching it"),
        }
        let dir = self.spec.dir.clone();
        let detached = blocking(move || mount::unmount(&dir, true)).await;
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
        let mut new = WorkerProcess::start(&self.spec, &program, false).await?;
        if let Err(failure) = new.ready(READY).await {
            new.kill().await;
            return Err(Failure::new(failure.kind, format!("{}; the old worker goes on", failure.text)));
        }
        let limit = self.sync_limit();
        let Serving::Worker(old) = &mut self.serving else { return Err(Failure::other("the worker ended")) };
        let started = Instant::now();
        let mut synced = old.ask(Ask::HandOver, limit).await;
        if let Err(failure) = &synced {
            tracing::error!(%failure, "the old worker did not hand over; it is killed");
            old.kill().await;
        }
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
        let warning = synced.as_mut().err().map(|failure| std::mem::take(&mut failure.text));
        Ok(json!({ "worker": pid, "pause_ms": pause.as_millis() as u64, "warning": warning }))
    }
}

async fn end(mut old: WorkerProcess) {
    if let Err(failure) = old.ask(Ask::End, ENDING).await {
        tracing::debug!(%failure, "ending the replaced worker");
    }
    old.finish(ENDING).await;
}
