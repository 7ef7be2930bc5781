//! Tasks that wait for threads of a disk.

use std::sync::Arc;

use cairn_types::ErrorCode;
use cairn_wire::error::WireError;
use tokio::sync::oneshot;

use crate::disk::{DataError, DiskStore, Done};

/// Waits for a callback of a disk.
pub(super) async fn wait<T>(begin: impl FnOnce(Done<T>) -> Result<(), DataError>) -> Result<T, WireError>
where
    T: Send + 'static,
{
    let (sender, answer) = oneshot::channel();
    let done: Done<T> = Box::new(move |outcome| {
        // Nobody waits any more if this fails.
        let _gone = sender.send(outcome);
    });
    begin(done).map_err(|error| error.to_wire())?;
    let closed = || WireError::new(ErrorCode::Unavailable, "the disk is being closed");
    answer.await.map_err(|_| closed())?.map_err(|error| error.to_wire())
}

/// Runs something on the disk's control thread and waits for it.
pub(super) async fn on_control<T: Send + 'static>(
    store: &Arc<DiskStore>,
    job: impl FnOnce(&DiskStore) -> Result<T, DataError> + Send + 'static,
) -> Result<T, WireError> {
    wait(|done| store.control(move |store| done(job(store)))).await
}
