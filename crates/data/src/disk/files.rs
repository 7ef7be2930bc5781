//! [`FileCache`]: open handles of chunk files, the least recently used closed first.
//!
//! Each chunk has a buffered handle (reads, what comes from the journal, tables) and one for direct writes; both see
//! the errors of the device by themselves.
//!
//! Invariants: at most `max` chunks have handles here; a handle in use stays open. Handles of a file that was removed
//! are not kept, also if it was opened while it went: a later chunk of the same name would be written into it, and be
//! gone when it is closed.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use cairn_env::{Disk, DiskError, File, OpenOptions};
use cairn_types::ChunkId;
use parking_lot::Mutex;

use super::paths;

/// The handles of one chunk file.
pub(crate) struct ChunkFiles {
    /// Through the page cache.
    pub(crate) cached: Arc<dyn File>,
    direct: OnceLock<Arc<dyn File>>,
    disk: Arc<dyn Disk>,
    path: String,
}

impl ChunkFiles {
    /// Past the page cache, where the file system can; opened on first use.
    pub(crate) fn direct(&self) -> Result<&Arc<dyn File>, DiskError> {
        if let Some(file) = self.direct.get() {
            return Ok(file);
        }
        let file = self.disk.open(&self.path, OpenOptions::READ_WRITE.direct())?;
        Ok(self.direct.get_or_init(|| file))
    }
}

pub(crate) struct FileCache {
    disk: Arc<dyn Disk>,
    max: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    files: BTreeMap<ChunkId, (Arc<ChunkFiles>, u64)>,
    clock: u64,
    /// Files that were forgotten so far.
    forgotten: u64,
}

impl FileCache {
    pub(crate) fn new(disk: Arc<dyn Disk>, max: usize) -> Self {
        Self { disk, max: max.max(1), state: Mutex::default() }
    }

    /// The handles of a chunk file that exists.
    pub(crate) fn get(&self, id: ChunkId) -> Result<Arc<ChunkFiles>, DiskError> {
        {
            let mut state = self.state.lock();
            state.clock += 1;
            let now = state.clock;
            if let Some((files, used)) = state.files.get_mut(&id) {
                *used = now;
                return Ok(files.clone());
            }
        }
        self.open(id, OpenOptions::READ_WRITE)
    }

    /// The handles if they are open, without waiting.
    pub(crate) fn peek(&self, id: ChunkId) -> Option<Arc<ChunkFiles>> {
        let mut state = self.state.try_lock()?;
        state.clock += 1;
        let now = state.clock;
        let (files, used) = state.files.get_mut(&id)?;
        *used = now;
        Some(files.clone())
    }

    /// Makes the file (or opens what a start before left).
    pub(crate) fn create(&self, id: ChunkId) -> Result<Arc<ChunkFiles>, DiskError> {
        self.open(id, OpenOptions::CREATE)
    }

    fn open(&self, id: ChunkId, options: OpenOptions) -> Result<Arc<ChunkFiles>, DiskError> {
        let path = paths::chunk(id);
        let forgotten = self.state.lock().forgotten;
        let cached = self.disk.open(&path, options)?;
        let files = Arc::new(ChunkFiles { cached, direct: OnceLock::new(), disk: self.disk.clone(), path });
        let mut state = self.state.lock();
        if state.forgotten != forgotten {
            // It may have been this one. Whoever comes next opens what is there then.
            return Ok(files);
        }
        state.clock += 1;
        let now = state.clock;
        let files = state.files.entry(id).or_insert((files, now)).0.clone();
        while state.files.len() > self.max {
            let oldest = state.files.iter().filter(|(other, _)| **other != id).min_by_key(|(_, (_, used))| *used);
            let Some(oldest) = oldest.map(|(id, _)| *id) else { break };
            state.files.remove(&oldest);
        }
        Ok(files)
    }

    /// Lets the handles of a file go whose name was removed before.
    pub(crate) fn forget(&self, id: ChunkId) {
        let mut state = self.state.lock();
        state.forgotten += 1;
        state.files.remove(&id);
    }
}
