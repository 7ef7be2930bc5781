//! Files that were closed when all members had them in memory: which files name which bytes where, until they are
//! durable. Not here: making them durable (`settle`), what may be shown (`handle::file_data::show`), files whose client
//! died (the partition's leader).
pub(crate) mod settle;

use crate::append::part::Placed;
use crate::error::{ClientError, Result};
use cairn_types::{SessionId, Time};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::oneshot;

/// A segment that was shown.
pub(crate) struct Shown {
    /// File offset, length, distance from the segment's first file byte.
    pub runs: Vec<(u64, u64, u64)>,
    /// Where it was in memory, and got its name.
    pub at: Arc<OnceLock<Placed>>,
    /// Where it became durable.
    pub durable: oneshot::Receiver<Result<Placed>>,
}

/// A part that became durable elsewhere.
struct Moved {
    runs: Vec<(u64, u64, u64)>,
    from: Placed,
    to: Placed,
}

struct FileState {
    session: SessionId,
    /// End of what was shown.
    to: u64,
    since: Time,
    shown: VecDeque<Shown>,
    moved: Vec<Moved>,
    /// Why some of it will never be durable.
    lost: Option<ClientError>,
}

struct VolatileFile {
    state: Mutex<FileState>,
    /// One at a time looks after it.
    settling: tokio::sync::Mutex<()>,
}

/// All of a volume, by inode.
#[derive(Default)]
pub(crate) struct VolatileFiles {
    files: Mutex<BTreeMap<u64, Arc<VolatileFile>>>,
}

impl VolatileFiles {
    /// A file names these now, up to this offset.
    pub(crate) fn add(&self, inode: u64, session: SessionId, to: u64, shown: Vec<Shown>, now: Time) {
        let mut files = self.files.lock();
        if let Some(file) = files.get(&inode) {
            let mut state = file.state.lock();
            if state.session == session {
                state.to = state.to.max(to);
                state.shown.extend(shown);
                return;
            }
        }
        // What another session of this client wrote is looked after by the partition: that session has ended.
        let state = FileState { session, to, since: now, shown: shown.into(), moved: Vec::new(), lost: None };
        files.insert(
            inode,
            Arc::new(VolatileFile { state: Mutex::new(state), settling: tokio::sync::Mutex::default() }),
        );
    }
    fn older_than(&self, age: Duration, now: Time) -> Vec<u64> {
        let files = self.files.lock();
        files.iter().filter(|(_, file)| now.since(file.state.lock().since) >= age).map(|(inode, _)| *inode).collect()
    }
    /// Nothing more is to be done for a file, unless something was added.
    fn forget(&self, inode: u64, file: &Arc<VolatileFile>, up_to: u64) {
        let mut files = self.files.lock();
        let same = files.get(&inode).is_some_and(|present| Arc::ptr_eq(present, file));
        let state = file.state.lock();
        if same && state.to <= up_to && state.shown.is_empty() && state.moved.is_empty() {
            files.remove(&inode);
        }
    }
}
