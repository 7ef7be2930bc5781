//! [`CloneTree`]: a file or tree copied within a volume with all its attributes, so that files share their bytes with
//! their source.
//!
//! Of everything: kind, mode, owner (as root), times, extended attributes with access control lists, layout; names of
//! one file stay names of one file. Made in a hidden place (`hidden`); the first failure ends it, and nothing of it is
//! seen then.
//!
//! Bounds: [`IN_FLIGHT`] things at a time, and a page of each directory between the start and the walk. Files with
//! several names are found again by a directory in the hidden place, not in memory.
use crate::error::{CliError, Result};
use crate::mode::{TYPE_MASK, is_regular, is_symlink};
use crate::remote::NamedFor;
use crate::report::{Done, Report};
use crate::transfer::hidden::Hidden;
use crate::transfer::rechunk::Rechunk;
use cairn_client::attributes::Attributes;
use cairn_client::changes::{CloneRange, NewFile, SetAttributes, SetTime};
use cairn_client::{FileReader, RemotePath, TreeNode, TreeStep, TreeWalk, WriteOptions};
use cairn_types::{ErrorCode, Layout};
use parking_lot::Mutex;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::{Semaphore, mpsc};

const IN_FLIGHT: usize = 64;
/// Files whose bytes are copied at a time: each reads ahead and writes several streams.
const COPIES: usize = 4;
/// How often a file is tried that is changed meanwhile.
const TRIES: usize = 4;

/// See the module.
pub struct CloneTree {
    hidden: Arc<Hidden>,
    source: RemotePath,
    report: Arc<Report>,
    is_root: bool,
    /// The volume has several partitions: files share bytes only within one.
    is_spread: bool,
    /// One file with several names at a time: they are found by those before.
    linking: tokio::sync::Mutex<()>,
    failed: Mutex<Option<CliError>>,
    is_failed: AtomicBool,
    /// Files that were copied after all, and their bytes.
    pub copied: (AtomicU64, AtomicU64),
    copies: Semaphore,
}

/// A directory being made.
struct Open {
    node: TreeNode,
    inode: u64,
    path: RemotePath,
    /// Whatever is to be done before its attributes are set holds one; the walk does until it leaves.
    hold: mpsc::Sender<Infallible>,
    done: mpsc::Receiver<Infallible>,
    above: mpsc::Sender<Infallible>,
}

impl CloneTree {
    pub async fn new(hidden: Arc<Hidden>, source: RemotePath, report: &Arc<Report>) -> Result<CloneTree> {
        let is_spread = hidden.volume.partitions().await?.len() > 1;
        let is_root = hidden.volume.who().uid == 0;
        Ok(CloneTree {
            hidden,
            source,
            report: report.clone(),
            is_root,
            is_spread,
            linking: tokio::sync::Mutex::default(),
            failed: Mutex::default(),
            is_failed: AtomicBool::new(false),
            copied: Default::default(),
            copies: Semaphore::new(COPIES),
        })
    }

    /// Builds it. On failure the hidden place is to be removed all the same.
    pub async fn build(self: Arc<Self>, attributes: Attributes) -> Result<()> {
        let (running, mut all_done) = mpsc::channel(1);
        let built = self.clone().walk(attributes, running).await;
        let _none = all_done.recv().await;
        if let Some(error) = self.failed.lock().take() {
            return Err(error);
        }
        built
    }

    async fn walk(self: Arc<Self>, attributes: Attributes, running: mpsc::Sender<Infallible>) -> Result<()> {
        let room = Arc::new(Semaphore::new(IN_FLIGHT));
        let mut walk = TreeWalk::new(&self.hidden.volume, self.source.path.clone(), attributes);
        let mut open: Vec<Open> = Vec::new();
        while let Some(step) = walk.next().await {
            if self.is_failed.load(Ordering::Relaxed) {
                return Ok(());
            }
            let Ok(permit) = room.clone().acquire_owned().await else { return Ok(()) };
            match step? {
                TreeStep::Leave(_) => {
                    let Some(directory) = open.pop() else { continue };
                    let all = self.clone();
                    self.report.tasks().spawn(async move {
                        let _permit = permit;
                        let Open { node, inode, path, hold, mut done, above } = directory;
                        drop(hold);
                        let _none = done.recv().await;
                        let finished = all.finish(&node, inode, &path).await;
                        all.note(finished.map(|()| Done::Directory));
                        drop(above);
                    });
                }
                TreeStep::Enter(node) => {
                    let (parent, path, above) = match open.last() {
                        Some(above) => (above.inode, above.path.join(name_of(&node.path)), above.hold.clone()),
                        None => (self.hidden.inode, self.hidden.tree(), running.clone()),
                    };
                    if node.is_directory() {
                        let inode = self.make_directory(&node, parent, &path).await?;
                        let (hold, done) = mpsc::channel(1);
                        open.push(Open { node, inode, path, hold, done, above });
                        continue;
                    }
                    let all = self.clone();
                    self.report.tasks().spawn(async move {
                        let _permit = permit;
                        let made = all.entry(&node, parent, &path).await;
                        all.note(made);
                        drop(above);
                    });
                }
            }
        }
        Ok(())
    }

    fn note(&self, made: Result<Done>) {
        match made {
            Ok(done) => {
                if let Done::File(bytes) = done {
                    self.report.progress().add_bytes(bytes);
                }
                self.report.done(done);
            }
            // It went while the tree was walked.
            Err(error) if is_gone(&error) && !self.is_then() => {}
            Err(error) => {
                self.failed.lock().get_or_insert(error);
                self.is_failed.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Whether the source is in a snapshot, so that nobody changes it.
    fn is_then(&self) -> bool {
        self.source.path.split(|byte| *byte == b'/').any(|part| part == b".snapshots")
    }

    /// For its maker alone until it is finished. In the partition of what it is a copy of: there its files can share
    /// bytes.
    async fn make_directory(&self, node: &TreeNode, parent: u64, path: &RemotePath) -> Result<u64> {
        let volume = &self.hidden.volume;
        let partition = if self.is_spread { volume.partition_of(node.attributes.inode).await? } else { 0 };
        let made = volume
            .mkdir_like(parent, path.name(), &path.path, (0o700, node.attributes.layout, partition))
            .await
            .map_err(|error| error.named_for(path))?;
        Ok(made.inode)
    }

    async fn finish(&self, node: &TreeNode, inode: u64, path: &RemotePath) -> Result<()> {
        let attributes = match self.is_then() {
            true => node.attributes,
            false => self.hidden.volume.getattr(node.attributes.inode).await.unwrap_or(node.attributes),
        };
        self.dress(&attributes, inode, path).await
    }

    /// Mode, owner, times and extended attributes, when nothing else is to be changed any more.
    async fn dress(&self, source: &Attributes, inode: u64, path: &RemotePath) -> Result<()> {
        let volume = &self.hidden.volume;
        let mut mode = source.mode & !TYPE_MASK;
        if !self.is_root && source.uid != volume.who().uid {
            mode &= !0o6000;
        }
        let set = SetAttributes {
            mode: (!is_symlink(source.mode)).then_some(mode),
            uid: self.is_root.then_some(source.uid),
            gid: self.is_root.then_some(source.gid),
            atime: Some(SetTime::At(source.atime_ns)),
            mtime: Some(SetTime::At(source.mtime_ns)),
            ..SetAttributes::default()
        };
        volume.setattr(inode, &path.path, set).await.map_err(|error| error.named_for(path))?;
        for name in volume.list_xattr(source.inode).await.map_err(|error| error.named_for(path))? {
            // What only root may set.
            if !self.is_root && (name.starts_with(b"security.") || name.starts_with(b"trusted.")) {
                continue;
            }
            let value = match volume.get_xattr(source.inode, &name).await {
                Err(error) if error.code() == Some(ErrorCode::NoAttribute) => continue,
                value => value.map_err(|error| error.named_for(path))?,
            };
            volume.set_xattr(inode, &name, &value, 0).await.map_err(|error| error.named_for(path))?;
        }
        Ok(())
    }

    /// A thing that is no directory.
    async fn entry(&self, node: &TreeNode, parent: u64, path: &RemotePath) -> Result<Done> {
        if node.attributes.nlink < 2 {
            return self.make(node, parent, path).await.map(|(_, done)| done);
        }
        let volume = &self.hidden.volume;
        let _linking = self.linking.lock().await;
        let known = format!("{:016x}", node.attributes.inode).into_bytes();
        match volume.lookup(self.hidden.links, &known, &path.path).await {
            Ok(found) => {
                let linked = volume.link_at(found.inode, parent, path.name(), &path.path).await;
                linked.map_err(|error| error.named_for(path))?;
                Ok(Done::File(0))
            }
            Err(error) if error.is_not_found() => {
                let (inode, done) = self.make(node, parent, path).await?;
                let noted = volume.link_at(inode, self.hidden.links, &known, &path.path).await;
                noted.map_err(|error| error.named_for(path))?;
                Ok(done)
            }
            Err(error) => Err(error.named_for(path).into()),
        }
    }

    async fn make(&self, node: &TreeNode, parent: u64, path: &RemotePath) -> Result<(u64, Done)> {
        let (volume, source) = (&self.hidden.volume, &node.attributes);
        let named = |error: cairn_client::ClientError| CliError::from(error.named_for(path));
        if is_symlink(source.mode) {
            let target = volume.readlink_inode(source.inode, &node.path).await.map_err(named)?;
            let made = volume.symlink_at(parent, path.name(), &path.path, &target).await.map_err(named)?;
            self.dress(source, made.attributes.inode, path).await?;
            return Ok((made.attributes.inode, Done::Symlink));
        }
        let is_file = is_regular(source.mode);
        let new = NewFile {
            mode: source.mode & TYPE_MASK | 0o600,
            rdev: source.rdev,
            layout: if is_file { source.layout } else { 0 },
            exclusive: true,
            ..NewFile::default()
        };
        let made = volume.create_at(parent, path.name(), &path.path, new).await.map_err(named)?;
        if !is_file {
            self.dress(source, made.inode, path).await?;
            return Ok((made.inode, Done::File(0)));
        }
        match self.fill(node, made.inode, parent, path).await {
            Ok((inode, source)) => {
                self.dress(&source, inode, path).await?;
                Ok((inode, Done::File(source.size)))
            }
            Err(error) => {
                if is_gone(&error) {
                    volume.unlink_at(parent, path.name(), &path.path).await.map_err(named)?;
                }
                Err(error)
            }
        }
    }

    /// Gives a new file the contents of its source; which inode it is then, and what the source was.
    async fn fill(&self, node: &TreeNode, inode: u64, parent: u64, path: &RemotePath) -> Result<(u64, Attributes)> {
        let volume = &self.hidden.volume;
        let mut source = node.attributes;
        for _ in 0..TRIES {
            if source.size == 0 {
                return Ok((inode, source));
            }
            if source.stored_bytes == 0 && source.volatile_of == 0 {
                let set = SetAttributes::to_size(source.size);
                volume.setattr(inode, &path.path, set).await.map_err(|error| error.named_for(path))?;
                return Ok((inode, source));
            }
            if self.share(&source, inode, path).await? {
                return Ok((inode, source));
            }
            let now = volume.getattr(source.inode).await.map_err(|error| error.named_for(path))?;
            if now.data_version == source.data_version {
                break;
            }
            source = now;
        }
        self.copied.0.fetch_add(1, Ordering::Relaxed);
        self.copied.1.fetch_add(source.size, Ordering::Relaxed);
        let from = RemotePath { path: node.path.clone(), ..self.source.clone() };
        self.copy(source, parent, (&from, path)).await
    }

    /// False: it cannot be shared as it is.
    async fn share(&self, source: &Attributes, inode: u64, path: &RemotePath) -> Result<bool> {
        if Layout::from_bits(source.layout).is_none_or(|layout| layout.stripe_width().is_some()) {
            return Ok(false);
        }
        let (mut at, mut version) = (0, source.data_version);
        while at < source.size {
            let range = CloneRange {
                source: source.inode,
                source_offset: at,
                inode,
                offset: at,
                length: source.size - at,
                if_source_version: Some(version),
                ..CloneRange::default()
            };
            let cloned = self.hidden.volume.clone_range(&path.path, range).await;
            let Some(cloned) = cloned.map_err(|error| error.named_for(path))? else { return Ok(false) };
            (at, version) = (at + cloned.length, cloned.source.data_version);
        }
        Ok(true)
    }

    /// Reads and writes it, in the place of the file that was begun.
    async fn copy(
        &self,
        source: Attributes,
        parent: u64,
        (from, path): (&RemotePath, &RemotePath),
    ) -> Result<(u64, Attributes)> {
        let volume = &self.hidden.volume;
        // A new file is in the first stage, whatever the source has come to.
        let layout = Layout::from_bits(source.layout).unwrap_or(Layout::replicated(3)).fresh();
        let _turn = self.copies.acquire().await;
        let (mode, mtime_ns) = (0o600, source.mtime_ns);
        let options = WriteOptions { mode, mtime_ns, layout, exclusive: false, owner: None };
        let named = |error: cairn_client::ClientError| CliError::from(error.named_for(path));
        let mut writer = volume.write_at(parent, &path.path, options).await.map_err(named)?;
        let mut reader = FileReader::new(volume, source, &from.to_string(), 0, u64::MAX);
        let mut rechunk = Rechunk::default();
        while let Some(piece) = reader.next().await? {
            let is_last = piece.offset + piece.data.len() as u64 == source.size;
            let pushed = match piece.hole {
                true => rechunk.hole(&mut writer, piece.data, is_last).await,
                false => rechunk.push(&mut writer, piece.data, is_last).await,
            };
            pushed.map_err(named)?;
        }
        rechunk.finish(&mut writer).await.map_err(named)?;
        let made = writer.finish().await.map_err(named)?;
        Ok((made.inode, source))
    }
}

fn name_of(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

/// What was to be cloned was removed.
fn is_gone(error: &CliError) -> bool {
    let is_stale = matches!(error, CliError::Client(error) if error.code() == Some(ErrorCode::Stale));
    is_stale || error.is_not_found()
}
