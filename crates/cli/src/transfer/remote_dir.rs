//! [`RemoteDir`]: a remote directory that entries are put into, perhaps before it exists; finished with its last user.
//!
//! Everybody who still puts something into it, or below it, holds an `Arc`. When the last one goes, attributes that
//! must come last (times, a mode that forbids writing) are set.
use crate::report::Report;
use crate::transfer::replace::Replacing;
use cairn_client::changes::SetAttributes;
use cairn_client::{RemotePath, Volume};
use cairn_types::Layout;
use std::sync::Arc;
use tokio::sync::{Semaphore, mpsc, watch};

/// What is known of a directory that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    pub inode: u64,
    /// Layout of new files in it.
    pub layout: Layout,
    /// It was made just now: nothing can be in it that we did not put there.
    pub is_new: bool,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Pending,
    Ready(Ready),
    Failed,
}

/// What directories of one copy share.
pub struct DirShared {
    pub volume: Volume,
    pub report: Arc<Report>,
    /// What becomes of files that are in the way.
    pub replacing: Replacing,
    /// Calls in flight for directories. Fair, so that those to be finished do not pile up behind new ones.
    pub room: Arc<Semaphore>,
    /// Held by everything that runs; the copy is over when all clones are gone.
    pub running: mpsc::Sender<()>,
}

/// A directory that is a target.
pub struct RemoteDir {
    pub at: RemotePath,
    shared: Arc<DirShared>,
    state: watch::Sender<State>,
    /// Attributes to set at the end.
    last: parking_lot::Mutex<Option<SetAttributes>>,
    /// Keeps the directory above unfinished.
    above: Option<Arc<RemoteDir>>,
}

impl RemoteDir {
    /// One that exists.
    pub fn existing(shared: Arc<DirShared>, at: RemotePath, ready: Ready) -> Arc<Self> {
        let (state, _) = watch::channel(State::Ready(ready));
        Arc::new(Self { at, shared, state, last: parking_lot::Mutex::new(None), above: None })
    }
    /// One that will be made in `above`.
    pub fn pending(above: &Arc<RemoteDir>, name: &[u8]) -> Arc<Self> {
        let (state, _) = watch::channel(State::Pending);
        let at = above.at.join(name);
        let last = parking_lot::Mutex::new(None);
        Arc::new(Self { at, shared: above.shared.clone(), state, last, above: Some(above.clone()) })
    }
    /// Waits until it exists; `None` if it could not be made, which was reported then.
    pub async fn ready(&self) -> Option<Ready> {
        let mut state = self.state.subscribe();
        let settled = state.wait_for(|state| !matches!(state, State::Pending)).await;
        match settled.map(|state| *state) {
            Ok(State::Ready(ready)) => Some(ready),
            _ => None,
        }
    }
    /// It could not be made: what is below it need not be looked at.
    pub fn has_failed(&self) -> bool {
        matches!(*self.state.borrow(), State::Failed)
    }
    pub fn set_ready(&self, ready: Ready) {
        self.state.send_replace(State::Ready(ready));
    }
    pub fn set_failed(&self) {
        self.state.send_replace(State::Failed);
    }
    /// Attributes that are set when everything in it is done.
    pub fn set_last(&self, request: SetAttributes) {
        *self.last.lock() = Some(request);
    }
    pub fn above(&self) -> Option<&Arc<RemoteDir>> {
        self.above.as_ref()
    }
}

impl Drop for RemoteDir {
    fn drop(&mut self) {
        let (Some(request), State::Ready(ready)) = (self.last.lock().take(), *self.state.borrow()) else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (shared, at, above) = (self.shared.clone(), self.at.clone(), self.above.take());
        let running = shared.running.clone();
        runtime.spawn(async move {
            let _running = running;
            let Ok(_permit) = shared.room.clone().acquire_owned().await else { return };
            if let Err(error) = shared.volume.setattr(ready.inode, &at.path, request).await {
                shared.report.fail(&error.named(&at.to_string()).into());
            }
            drop(above);
        });
    }
}
