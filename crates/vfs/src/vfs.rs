//! A volume presented as a file system: the entry point. Operations are in `ops`, by topic.
use crate::asked_ahead::AskedAhead;
use crate::atimes::Atimes;
use crate::attr::{Attr, Entry};
use crate::background::Background;
use crate::cache::{AskedPage, Cache, Known};
use crate::caller::Caller;
use crate::error::{Result, VfsError};
use crate::file::{File, Files};
use crate::invalidation::{Invalidation, Invalidations, QUEUE_MAX};
use crate::nameless::Nameless;
use crate::ops::handles::Handles;
use crate::options::VfsOptions;
use crate::walks::Walks;
use cairn_client::attributes::Attributes;
use cairn_client::listing::DirEntry;
use cairn_client::{Budget, Client, Volume};
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::Poll;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{mpsc, oneshot};

/// The root directory's inode number.
pub const ROOT: u64 = cairn_types::InodeId::ROOT.0;
/// Opens and closes of inodes with the same remainder happen one after the other.
const OPENING: usize = 256;

/// An open file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(pub u64);

/// What opening gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    pub handle: Handle,
    /// The kernel's pages of the file are still right.
    pub keep_cache: bool,
    /// The kernel is to hand all reads and writes on as they come.
    pub direct: bool,
    /// The kernel may believe attributes that are older than what this open found.
    pub attributes_changed: bool,
}

/// A mounted volume. Clones share everything.
#[derive(Clone)]
pub struct Vfs {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) client: Client,
    /// On behalf of whoever mounted.
    pub(crate) volume: Volume,
    pub(crate) options: VfsOptions,
    pub(crate) handles: Handles,
    pub(crate) files: Files,
    pub(crate) cache: Cache,
    pub(crate) ahead: AskedAhead,
    pub(crate) walks: Walks,
    pub(crate) nameless: Nameless,
    pub(crate) atimes: Atimes,
    /// Memory for written and read-ahead data.
    pub(crate) budget: Arc<Budget>,
    pub(crate) background: Background,
    pub(crate) opening: Vec<tokio::sync::Mutex<()>>,
    /// Directories that were made by turns.
    pub(crate) turns: AtomicUsize,
    invalidations: mpsc::Sender<Invalidation>,
    receiver: Mutex<Option<Invalidations>>,
}

impl Vfs {
    /// Presents a volume. Needs a tokio runtime; background work ends with [`shutdown`](Self::shutdown), or when all
    /// clones are gone.
    pub fn new(client: Client, volume: Volume, options: VfsOptions) -> Vfs {
        let (invalidations, receiver) = mpsc::channel(QUEUE_MAX);
        let options = options.within_the_lease();
        let volume = if options.lease_new { volume.leading() } else { volume };
        let inner = Arc::new(Inner {
            client,
            volume,
            handles: Handles::default(),
            files: Files::default(),
            cache: Cache::new(options.cached_max),
            ahead: AskedAhead::default(),
            walks: Walks::default(),
            nameless: Nameless::default(),
            atimes: Atimes::default(),
            budget: Arc::new(Budget::new(options.memory_max)),
            background: Background::default(),
            turns: AtomicUsize::new(0),
            opening: (0..OPENING).map(|_| tokio::sync::Mutex::new(())).collect(),
            options,
            invalidations,
            receiver: Mutex::new(Some(receiver)),
        });
        tokio::spawn(crate::background::run(Arc::downgrade(&inner)));
        Vfs { inner }
    }
    pub fn options(&self) -> &VfsOptions {
        &self.inner.options
    }
    pub fn client(&self) -> &Client {
        &self.inner.client
    }
    pub fn volume(&self) -> &Volume {
        &self.inner.volume
    }
    /// How long the kernel may remember that a name does not exist, which was just answered.
    pub fn absent_for(&self, caller: &Caller, parent: u64, name: &[u8]) -> Duration {
        let known = self.inner.cache.name(caller, parent, name).filter(|(known, _)| *known == Known::Nothing);
        known.map(|(_, left)| left).unwrap_or_default()
    }
    /// What the kernel should forget. There is one receiver: `None` if it was taken before.
    pub fn invalidations(&self) -> Option<Invalidations> {
        self.inner.receiver.lock().take()
    }
}

impl Inner {
    /// The volume on behalf of a caller.
    pub(crate) fn as_user(&self, caller: &Caller) -> Volume {
        self.volume.as_user(caller.credentials())
    }
    pub(crate) fn invalidate(&self, what: Invalidation) {
        // Nobody listens, or the queue is full: times to live end by themselves.
        let _best_effort = self.invalidations.try_send(what);
    }
    /// Attributes of an answer, with what this mount knows better: it wrote to the file, or read it.
    pub(crate) fn seen(&self, found: &Attributes) -> Attributes {
        let Some(file) = self.files.get(found.inode) else { return self.atimes.put_over(found) };
        file.data.learn(*found);
        of_file(&file)
    }
    /// Takes an answer into the cache, unless the file is open: then it changes without an answer, and whoever asks
    /// just after it was closed would be told an old size, at which the kernel cuts its pages. What is told of it.
    pub(crate) fn attr(&self, found: &Attributes) -> (Attr, Duration) {
        let seen = self.seen(found);
        if self.files.get(found.inode).is_none() {
            self.cache.put_attributes(&seen, self.options.attr_ttl);
        }
        (Attr::of(&seen), self.options.attr_ttl)
    }
    /// Attributes that may be told without asking, and how long.
    pub(crate) fn known_attributes(&self, ino: u64) -> Option<(Attributes, Duration)> {
        let Some(file) = self.files.get(ino) else { return self.cache.attributes(ino) };
        let left = self.options.attr_ttl.saturating_sub(file.data.age());
        (!left.is_zero()).then(|| (of_file(&file), left))
    }
    pub(crate) fn cached_attributes(&self, ino: u64) -> Option<(Attr, Duration)> {
        self.cache.attributes(ino).map(|(cached, left)| (Attr::of(&cached), left))
    }
    /// The same for an entry of a directory.
    pub(crate) fn entry(&self, caller: &Caller, parent: u64, name: &[u8], found: &Attributes) -> Entry {
        let entry_ttl = self.options.entry_ttl;
        self.cache.put_name(caller, parent, name, Known::Inode(found.inode), entry_ttl);
        let (attr, attr_ttl) = self.attr(found);
        Entry { attr, entry_ttl, attr_ttl }
    }
    /// What a page of a directory says of a name. What this mount changed since the page was asked for it knows better.
    pub(crate) fn learn_entry(&self, caller: &Caller, parent: u64, entry: &DirEntry, asked: &AskedPage) {
        let Some(found) = &entry.attributes else { return };
        let (asked, name, known) =
            (asked.of(parent, &entry.name), (parent, &entry.name[..]), Known::Inode(found.inode));
        if self.cache.learn_name(asked, caller, name, known, self.options.entry_ttl) {
            self.attr(found);
            if entry.no_xattrs {
                self.cache.put_without_xattrs(found.inode, self.options.attr_ttl);
            }
        }
    }
    /// What was done in a directory that this mount leads becomes durable, of the one that has an inode.
    pub(crate) async fn commit(&self, what: &str, ino: u64) -> Result<()> {
        match self.options.lease_new {
            true => self.limited(what, async { Ok(self.volume.commit(ino).await?) }).await,
            false => Ok(()),
        }
    }
    /// Refuses changes of a read-only mount.
    pub(crate) fn check_writable(&self, what: &str) -> Result<()> {
        match self.options.read_only {
            true => Err(VfsError::new(libc::EROFS, format!("{what}: the file system is mounted read-only"))),
            false => Ok(()),
        }
    }
    /// Ends what takes longer than the mount's limit.
    pub(crate) async fn limited<T>(&self, what: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
        match tokio::time::timeout(self.options.timeout, work).await {
            Ok(outcome) => outcome,
            Err(_) => {
                let seconds = self.options.timeout.as_secs();
                Err(VfsError::new(
                    libc::EIO,
                    format!(
                        "{what}: no answer within {seconds} s, so it may be done, or be done later; see cairn admin status"
                    ),
                ))
            }
        }
    }
    /// The same for changes: they go on when the caller stops waiting, so that a slot of the session is never lost.
    pub(crate) async fn change<T: Send + 'static>(
        &self,
        what: &str,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        cairn_client::handed_on().await;
        self.change_here(what, work).await
    }
    /// The same for what is mostly done at once: then it needs no task, which somebody would have to be woken for.
    pub(crate) async fn change_here<T: Send + 'static>(
        &self,
        what: &str,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let mut work = Box::pin(work);
        if let Poll::Ready(outcome) = first_poll(what, &mut work).await {
            return outcome;
        }
        let task = tokio::spawn(work);
        let joined = async { task.await.unwrap_or_else(|end| Err(VfsError::new(libc::EIO, end.to_string()))) };
        self.limited(what, joined).await
    }
    /// The same for what has to be undone if nobody waits for it any more: an open whose handle nobody would close.
    pub(crate) async fn change_or_undo<T: Send + 'static, U: Future<Output = ()> + Send + 'static>(
        &self,
        what: &str,
        work: impl Future<Output = Result<T>> + Send + 'static,
        undo: impl FnOnce(T) -> U + Send + 'static,
    ) -> Result<T> {
        cairn_client::handed_on().await;
        let mut work = Box::pin(work);
        if let Poll::Ready(outcome) = first_poll(what, &mut work).await {
            return outcome;
        }
        let (done, outcome) = oneshot::channel();
        tokio::spawn(async move {
            let unless_taken = work.await.map(|value| Delivery { content: Some((value, undo)) });
            // Not taken, here or there, it is undone when it is dropped.
            let _gone = done.send(unless_taken);
        });
        let ended = |_| Err(VfsError::new(libc::EIO, "the operation ended without an outcome"));
        let delivered = self.limited(what, async { outcome.await.unwrap_or_else(ended) }).await?;
        Ok(delivered.take())
    }
    /// The lock under which an inode is opened and closed.
    pub(crate) fn opening(&self, ino: u64) -> &tokio::sync::Mutex<()> {
        &self.opening[(ino % OPENING as u64) as usize]
    }
}

/// Begins what goes on in a task unless it is done at once. Nothing is waited for between this and the task: what was
/// begun is not lost with the caller. It gets an errno as well if this panics, as from the task.
async fn first_poll<T>(what: &str, work: &mut Pin<Box<impl Future<Output = Result<T>>>>) -> Poll<Result<T>> {
    let first =
        std::future::poll_fn(|context| Poll::Ready(catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)))));
    let panicked = |_| Poll::Ready(Err(VfsError::new(libc::EIO, format!("{what}: the operation panicked"))));
    first.await.unwrap_or_else(panicked)
}

/// What was done, on its way to who asked for it.
struct Delivery<T, F, U>
where
    F: FnOnce(T) -> U,
    U: Future<Output = ()> + Send + 'static,
{
    content: Option<(T, F)>,
}

impl<T, F, U> Delivery<T, F, U>
where
    F: FnOnce(T) -> U,
    U: Future<Output = ()> + Send + 'static,
{
    fn take(mut self) -> T {
        self.content.take().expect("it is taken once, by value").0
    }
}

impl<T, F, U> Drop for Delivery<T, F, U>
where
    F: FnOnce(T) -> U,
    U: Future<Output = ()> + Send + 'static,
{
    fn drop(&mut self) {
        if let (Some((value, undo)), Ok(runtime)) = (self.content.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(undo(value));
        }
    }
}

/// The wall clock, as times of files are.
pub(crate) fn now_ns() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_nanos()).unwrap_or(i64::MAX)
}
/// How an entry is named in errors.
pub(crate) fn named(parent: u64, name: &[u8]) -> Vec<u8> {
    let mut text = format!("inode {parent}/").into_bytes();
    text.extend_from_slice(name);
    text
}
pub(crate) fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// Attributes of an open file: what this mount wrote and read is in them.
pub(crate) fn of_file(file: &File) -> Attributes {
    let mut seen = file.data.attributes();
    if file.atime() != 0 {
        seen.atime_ns = seen.atime_ns.max(file.atime());
    }
    seen
}
