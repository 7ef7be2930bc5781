//! An open regular file: its contents, and what its handles share. The table of all of a mount.
use crate::cache::Cache;
use crate::error::{Result, VfsError};
use cairn_client::FileData;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Owners of locks and the handles through which they took them, of one file of a mount.
const LOCKS_NOTED_MAX: usize = 1 << 16;

/// What the handles of a file share.
pub(crate) struct File {
    pub ino: u64,
    pub data: Arc<FileData>,
    state: Mutex<FileState>,
    /// Publishing in the background is under way.
    pub publishing: AtomicBool,
    /// A kernel read parts of it into its pages since it was opened.
    pub has_pages: AtomicBool,
    /// Attributes are being asked for in the background.
    pub refreshing: AtomicBool,
    /// Held while the locks of a closed handle are given back; no lock is asked for meanwhile.
    pub unlocking: tokio::sync::Mutex<()>,
    /// Held by each question for a lock until it is answered, and by who gives an owner's locks back.
    pub asking_for_locks: Arc<tokio::sync::RwLock<()>>,
    /// Handles that have it open. Changed under the table's lock only.
    handles: AtomicU64,
}

#[derive(Default)]
struct FileState {
    /// Held in the log under that session.
    held: u64,
    /// Open without a log entry under that session.
    soft: u64,
    /// Why the last write in the background failed, until one succeeds.
    stuck: Option<VfsError>,
    /// Background writes wait until then after a failure.
    not_before: Option<tokio::time::Instant>,
    failures: u32,
    /// Changes of others that the kernel was told of: it drops its pages some time later, if it gets to hear of it.
    told: u64,
    /// Those after which its pages were dropped for certain: by an open, or there were none.
    dropped: u64,
    /// When a handle last read it: nanoseconds since 1970, to be sent some time; 0: nothing to send.
    atime_ns: i64,
    /// Locks of this mount may be there, taken through the handle of that number.
    locks: BTreeSet<(Held, u64)>,
    locks_lost: bool,
}

/// A lock that this mount was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Held {
    pub owner: u64,
    pub flock: bool,
}

impl File {
    pub(crate) fn new(ino: u64, data: Arc<FileData>) -> Arc<File> {
        let state = Mutex::default();
        Arc::new(File {
            ino,
            data,
            state,
            publishing: AtomicBool::new(false),
            has_pages: AtomicBool::new(false),
            refreshing: AtomicBool::new(false),
            unlocking: tokio::sync::Mutex::default(),
            asking_for_locks: Arc::default(),
            handles: AtomicU64::new(0),
        })
    }
    /// More than one handle has it open.
    pub(crate) fn is_shared(&self) -> bool {
        self.handles.load(Ordering::Relaxed) > 1
    }
    pub(crate) fn held(&self) -> u64 {
        self.state.lock().held
    }
    pub(crate) fn set_held(&self, session: u64) {
        self.state.lock().held = session;
    }
    pub(crate) fn soft(&self) -> u64 {
        self.state.lock().soft
    }
    pub(crate) fn set_soft(&self, session: u64) {
        self.state.lock().soft = session;
    }

    /// Makes everything durable and visible, and remembers whether that works.
    pub(crate) async fn flush(&self) -> Result<()> {
        let outcome = self.data.flush().await;
        self.note(outcome.map_err(VfsError::from))
    }
    /// The same, and what others closed before it was durable is.
    pub(crate) async fn sync(&self) -> Result<()> {
        let outcome = self.data.sync().await;
        self.note(outcome.map_err(VfsError::from))
    }
    /// As `flush`, and tells the metadata when that was. `show`: visible is enough, if it becomes durable behind.
    pub(crate) async fn finish(&self, show: bool) -> Result<()> {
        let outcome = if show { self.data.show().await } else { self.data.finish().await };
        self.note(outcome.map_err(VfsError::from))
    }
    /// Takes the outcome of a write in the background into account.
    pub(crate) fn note(&self, outcome: Result<()>) -> Result<()> {
        let mut state = self.state.lock();
        match &outcome {
            Ok(()) => {
                state.stuck = None;
                state.not_before = None;
                state.failures = 0;
            }
            Err(error) => {
                state.failures = state.failures.saturating_add(1);
                let pause = std::time::Duration::from_millis(100 << state.failures.min(7));
                state.not_before = Some(tokio::time::Instant::now() + pause);
                state.stuck = Some(error.clone());
            }
        }
        outcome
    }
    /// Why writes in the background fail at present.
    pub(crate) fn stuck(&self) -> Option<VfsError> {
        self.state.lock().stuck.clone()
    }
    pub(crate) fn may_write_behind(&self) -> bool {
        self.state.lock().not_before.is_none_or(|at| at <= tokio::time::Instant::now())
    }
    /// Whether somebody else changed the contents and the kernel is to be told.
    pub(crate) fn is_to_be_told(&self) -> bool {
        let foreign = self.data.foreign_changes();
        let mut state = self.state.lock();
        std::mem::replace(&mut state.told, foreign) != foreign
    }
    /// Whether somebody else changed the contents since the kernel dropped its pages for certain: whoever asks has it
    /// done.
    pub(crate) fn was_changed(&self) -> bool {
        let foreign = self.data.foreign_changes();
        let mut state = self.state.lock();
        state.told = foreign;
        std::mem::replace(&mut state.dropped, foreign) != foreign
    }

    /// Whoever asked whether it was changed could not have it done.
    pub(crate) fn pages_are_old(&self) {
        self.state.lock().dropped = u64::MAX;
    }

    pub(crate) fn set_atime(&self, ns: i64) {
        self.state.lock().atime_ns = ns;
    }
    pub(crate) fn atime(&self) -> i64 {
        self.state.lock().atime_ns
    }
    pub(crate) fn take_atime(&self) -> i64 {
        std::mem::take(&mut self.state.lock().atime_ns)
    }

    /// A lock is asked for through a handle. Fails if that are too many to remember.
    pub(crate) fn note_lock(&self, held: Held, handle: u64) -> Result<()> {
        let mut state = self.state.lock();
        if state.locks.len() >= LOCKS_NOTED_MAX && !state.locks.contains(&(held, handle)) {
            let text = format!("inode {}: more than {LOCKS_NOTED_MAX} owners of locks on this mount", self.ino);
            return Err(VfsError::new(libc::ENOLCK, text));
        }
        state.locks.insert((held, handle));
        Ok(())
    }
    /// Whether that owner may have locks; from now on it has none.
    pub(crate) fn take_locks(&self, held: Held) -> bool {
        let mut state = self.state.lock();
        let before = state.locks.len();
        state.locks.retain(|(lock, _)| *lock != held);
        before != state.locks.len()
    }
    /// Owners who took locks through a handle that is closed, and through no other one that is open.
    pub(crate) fn take_locks_of_handle(&self, handle: u64) -> Vec<Held> {
        let mut state = self.state.lock();
        let through: Vec<Held> = state.locks.iter().filter(|(_, by)| *by == handle).map(|(held, _)| *held).collect();
        state.locks.retain(|(_, by)| *by != handle);
        let goes_on = |held: &Held| state.locks.range((*held, 0)..=(*held, u64::MAX)).next().is_some();
        through.into_iter().filter(|held| !goes_on(held)).collect()
    }
    pub(crate) fn has_locks_of_handle(&self, handle: u64) -> bool {
        self.state.lock().locks.iter().any(|(_, by)| *by == handle)
    }
    pub(crate) fn lose_locks(&self) {
        let mut state = self.state.lock();
        if !state.locks.is_empty() {
            state.locks_lost = true;
            state.locks.clear();
        }
    }
    /// Fails for good when locks were lost with the session: programs relied on them.
    pub(crate) fn check_locks(&self) -> Result<()> {
        match self.state.lock().locks_lost {
            true => {
                let text = "locks of it were lost with the session; close it and open it again";
                Err(VfsError::new(libc::EIO, format!("inode {}: {text}", self.ino)))
            }
            false => Ok(()),
        }
    }
}

/// Open files by inode.
#[derive(Default)]
pub(crate) struct Files {
    open: Mutex<BTreeMap<u64, Arc<File>>>,
}

impl Files {
    pub(crate) fn get(&self, ino: u64) -> Option<Arc<File>> {
        self.open.lock().get(&ino).cloned()
    }
    pub(crate) fn all(&self) -> Vec<Arc<File>> {
        self.open.lock().values().cloned().collect()
    }
    pub(crate) fn count(&self) -> usize {
        self.open.lock().len()
    }
    /// One more handle of a file that is open already.
    pub(crate) fn join(&self, ino: u64) -> Option<Arc<File>> {
        let open = self.open.lock();
        let file = open.get(&ino)?;
        file.handles.fetch_add(1, Ordering::Relaxed);
        Some(file.clone())
    }
    /// One more handle; the file that is there already, or this one.
    pub(crate) fn join_or(&self, new: Arc<File>) -> Arc<File> {
        let mut open = self.open.lock();
        let file = open.entry(new.ino).or_insert(new);
        file.handles.fetch_add(1, Ordering::Relaxed);
        file.clone()
    }
    /// One handle less. True when it was the last one: the file is not in the table any more.
    pub(crate) fn leave(&self, file: &Arc<File>, cache: &Cache) -> bool {
        let mut open = self.open.lock();
        if file.handles.fetch_sub(1, Ordering::Relaxed) > 1 {
            return false;
        }
        open.remove(&file.ino);
        // Own writes went through the kernel's pages; what others changed it was told of.
        if cache.pages(file.ino).is_some() {
            if file.was_changed() {
                cache.forget_pages(file.ino);
            } else {
                cache.pages_are_of(file.ino, file.data.data_version());
            }
        }
        true
    }
}
