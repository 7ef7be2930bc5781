//! A disk that hangs: operations that reach it do not come back until it goes on. And one that is slow: syncs take a
//! time.
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Where operations wait while the disk hangs.
#[derive(Debug, Default)]
pub(super) struct Hang {
    state: Mutex<State>,
    goes_on: Condvar,
}

#[derive(Debug, Default)]
struct State {
    hangs: bool,
    held: u64,
    sync_max: Duration,
}

impl Hang {
    pub(super) fn set(&self, hangs: bool) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).hangs = hangs;
        self.goes_on.notify_all();
    }

    pub(super) fn set_sync_max(&self, sync_max: Duration) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).sync_max = sync_max;
    }

    pub(super) fn sync_max(&self) -> Duration {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).sync_max
    }

    /// How many operations had to wait so far.
    pub(super) fn held(&self) -> u64 {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).held
    }

    /// Comes back when the disk does not hang.
    pub(super) fn pass(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.held += u64::from(state.hangs);
        while state.hangs {
            state = self.goes_on.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
