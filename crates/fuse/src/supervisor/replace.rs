//! Another worker for a dead one.
use super::backoff::Backoff;
use super::errors::Errors;
use super::worker_process::WorkerProcess;
use crate::device::Device;
use crate::failure::Result;
use crate::session::handshake::Agreed;
use crate::spec::MountSpec;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A worker that has not reached the cluster by then is replaced too.
const READY: Duration = Duration::from_secs(120);

/// What all workers of a mount get.
#[derive(Clone)]
pub struct Connection {
    pub device: Device,
    pub agreed: Agreed,
    /// Memory of [`OpenTable`](crate::open_table::OpenTable).
    pub table: Arc<OwnedFd>,
    /// Memory of [`QueueFile`](crate::queue_file::QueueFile), if there is any.
    pub queues: Option<Arc<OwnedFd>>,
}

pub enum Replaced {
    By(Box<WorkerProcess>, Backoff),
    Unmounted,
}

/// Tries until a worker serves or the mount is gone. Meanwhile requests wait; after the mount's limit for operations,
/// or when workers keep dying, they fail.
pub async fn replace(spec: Arc<MountSpec>, connection: Connection, mut backoff: Backoff) -> Replaced {
    let down = Instant::now();
    let patience = Duration::from_secs_f64(spec.options.timeout);
    let mut errors = None;
    loop {
        let left = if backoff.is_hopeless() { Duration::ZERO } else { patience.saturating_sub(down.elapsed()) };
        let mut attempt = Box::pin(attempt(&spec, &connection, backoff.pause()));
        let outcome = tokio::select! {
            outcome = &mut attempt => outcome,
            () = tokio::time::sleep(left), if errors.is_none() => {
                tracing::error!(dying = backoff.is_hopeless(), "no worker holds; operations fail with EIO until one does");
                errors = Errors::start(connection.device.clone()).ok();
                attempt.await
            }
        };
        if connection.device.is_ended() {
            return Replaced::Unmounted;
        }
        match outcome {
            Ok(mut worker) => {
                // Its thread is joined here, for at most the time between two of its looks.
                drop(errors.take());
                match worker.serve(&connection).await {
                    Ok(()) => return Replaced::By(Box::new(worker), backoff),
                    Err(error) => tracing::error!(%error, "a new worker does not serve"),
                }
                worker.kill().await;
            }
            Err(error) => tracing::error!(%error, "a new worker does not start"),
        }
        backoff.failed();
    }
}

async fn attempt(spec: &MountSpec, connection: &Connection, pause: Duration) -> Result<WorkerProcess> {
    tokio::time::sleep(pause).await;
    let mut worker = WorkerProcess::start(spec, &spec.program, false, connection.queues.as_deref()).await?;
    worker.ready(READY).await?;
    Ok(worker)
}
