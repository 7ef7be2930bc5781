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

impl Supervisor {
    /// Handles a request; true when the mount is gone.
    pub(super) async fn handle(&mut self, request: Request) -> (bool, Answer) {
        match request {
            Request::Status => (false, Ok(self.status().await)),
            Request::Unmount { lazy } => match self.unmount(lazy).await {
                Ok(gone) => (gone, Ok(json!({ "unmounted": self.spec.dir, "detached": !gone }))),
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
    /// Writes everything out and unmounts. False: detached, and still used by somebody.
    async fn unmount(&mut self, lazy: bool) -> Result<bool> {
        let limit = self.sync_limit();
        if let Serving::Worker(worker) = &mut self.serving {
            worker.ask(Ask::Sync, limit).await.map_err(|failure| {
                let text = format!("{}; data is not written yet, so the mount stays", failure.text);
                Failure::new(failure.kind, text)
            })?;
        }
        let dir = self.spec.dir.clone();
        if !self.detached {
            self.take_away(dir, lazy).await?;
        }
        self.detached = lazy;
        match &mut self.serving {
            Serving::Worker(worker) => {
                let patience = if lazy { Duration::from_secs(1) } else { limit };
                let ended = tokio::time::timeout(patience, worker.ended()).await;
                match (ended, lazy) {
                    (Ok(_), _) => Ok(true),
                    (Err(_), true) => Ok(false),
                    (Err(_), false) => Err(Failure::other("unmounted, but the worker does not end; see its log")),
                }
            }
            Serving::Nobody(_) => Ok(!lazy),
        }
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
            Ok(_) => return Ok(()),
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
