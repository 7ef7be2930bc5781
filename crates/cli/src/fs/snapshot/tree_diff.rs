//! [`TreeDiff`]: two states of a tree side by side, directory by directory in the order of names.
//!
//! An inode has the same number in both (its lower 48 bits), so a name that came and one that went are one move if
//! their inode is one; the directories of a moved tree are compared with what they were. What was put in the place of
//! something (written anew, restored, cloned) has another inode: it is compared by its name, and what it replaced
//! counts as new where it is now. A directory that was not changed has the same names in both: it is read once, and of
//! its entries the former attributes are asked for only where the time of the last change is later than the older
//! state. What is the same is decided in `same`.
//!
//! Where the server says what changed (`Scope`), directories in which and below which nothing did are passed over, as
//! soon as all files that were changed in place have been met: files do not know their names, so these are looked for.
//!
//! Bounds: [`CHANGED_MAX`] inodes that changed, else all is walked; a page of both directories between the start and
//! where it is, and [`MOVES_MAX`] names of which the other half was not seen yet; beyond that they are told as gone and
//! come.
use super::same::{Compare, INNER, is_one_type, is_untouched};
use crate::error::{CliError, Result};
use crate::mode::is_directory;
use cairn_client::attributes::Attributes;
use cairn_client::listing::DirEntry;
use cairn_client::{ChangedBetween, ClientError, Volume};
use cairn_types::ErrorCode;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Names whose other half is looked for.
const MOVES_MAX: usize = 100_000;

/// Inodes that changed.
const CHANGED_MAX: usize = 1_000_000;

/// What has to be looked at.
struct Scope {
    directories: BTreeSet<u64>,
    /// Files that changed, and how many of their names were met.
    others: BTreeMap<u64, u32>,
}

impl Scope {
    fn new(changed: ChangedBetween) -> Scope {
        Scope { directories: changed.directories, others: changed.others.into_iter().map(|inode| (inode, 0)).collect() }
    }
    /// A name of a file was met, in the later state.
    fn meet(&mut self, of: &Attributes) {
        let inode = of.inode & INNER;
        let Some(met) = self.others.get_mut(&inode) else { return };
        *met += 1;
        if *met >= of.nlink {
            self.others.remove(&inode);
        }
    }
}

/// A state of the tree.
#[derive(Clone, Copy)]
pub struct Side {
    pub root: Attributes,
    /// When it was taken, by the clock of the partition.
    pub time_ns: u64,
    /// States are in the order of these.
    pub taken: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChangeKind {
    Created,
    Removed,
    Renamed,
    Contents,
    Attributes,
}

impl ChangeKind {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Removed => "removed",
            Self::Renamed => "renamed",
            Self::Contents => "contents",
            Self::Attributes => "attributes",
        }
    }
    pub const fn letter(self) -> char {
        match self {
            Self::Created => '+',
            Self::Removed => '-',
            Self::Renamed => 'R',
            Self::Contents => 'C',
            Self::Attributes => 'A',
        }
    }
}

/// A difference. Paths begin below the directory that is compared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    pub kind: ChangeKind,
    pub path: Vec<u8>,
    /// Of a move.
    pub from: Option<Vec<u8>>,
    pub is_directory: bool,
}

/// A directory of one state, page by page.
struct Listing {
    inode: u64,
    page: VecDeque<DirEntry>,
    after: Vec<u8>,
    end: bool,
}

impl Listing {
    fn new(inode: u64) -> Self {
        Listing { inode, page: VecDeque::new(), after: Vec::new(), end: inode == 0 }
    }
}

/// A directory being compared. One side may have nothing.
struct Frame {
    old_path: Vec<u8>,
    path: Vec<u8>,
    old: Listing,
    new: Listing,
    /// It is as it was: the old side is not read.
    is_same: bool,
    /// Its time of the last change was set, unless it goes with an entry that came, went or was replaced.
    mtime_set: bool,
}

/// Half of a move.
struct Half {
    path: Vec<u8>,
    attributes: Attributes,
}

/// See the module.
pub struct TreeDiff {
    volume: Volume,
    sides: [u64; 2],
    since_ns: i64,
    stack: Vec<Frame>,
    found: VecDeque<Change>,
    /// Names that went, of inodes that are still there, and names that came, of inodes that were there before.
    gone: BTreeMap<u64, Half>,
    came: BTreeMap<u64, Half>,
    compare: Compare,
    /// `None`: everything is walked.
    scope: Option<Scope>,
    /// The two directories that are compared were not shown yet.
    roots: Option<(Attributes, Attributes)>,
    directories: u64,
    entries: u64,
    /// What whoever compares may not read: it is left out, and said.
    refused: VecDeque<(Vec<u8>, ClientError)>,
}

impl TreeDiff {
    pub async fn new(volume: &Volume, old: Side, new: Side) -> Result<TreeDiff> {
        let newer = if new.taken == u64::MAX { 0 } else { new.taken };
        let changed = volume.changed_between(old.taken, newer, CHANGED_MAX).await?;
        // Times are of each partition's own clock: which of two of different partitions is later nobody knows.
        let since_ns = if volume.has_several_partitions().await? { 0 } else { old.time_ns as i64 };
        Ok(TreeDiff {
            volume: volume.clone(),
            scope: changed.map(Scope::new),
            since_ns,
            sides: [old.root.inode & !INNER, new.root.inode & !INNER],
            stack: Vec::new(),
            found: VecDeque::new(),
            compare: Compare::new(volume, since_ns),
            roots: Some((old.root, new.root)),
            gone: BTreeMap::new(),
            came: BTreeMap::new(),
            directories: 0,
            entries: 0,
            refused: VecDeque::new(),
        })
    }

    /// What was left out since the last call, with the reason.
    pub fn take_refused(&mut self) -> VecDeque<(Vec<u8>, ClientError)> {
        std::mem::take(&mut self.refused)
    }

    /// Directories and entries that were read, of both states, and bytes that were compared.
    pub fn looked_at(&self) -> (u64, u64, u64) {
        (self.directories, self.entries, self.compare.bytes)
    }

    pub async fn next(&mut self) -> Result<Option<Change>> {
        loop {
            if let Some(change) = self.found.pop_front() {
                return Ok(Some(change));
            }
            if let Some((old, new)) = self.roots.take() {
                let half = |attributes| Half { path: Vec::new(), attributes };
                self.both(half(old), half(new)).await?;
                continue;
            }
            if self.stack.is_empty() {
                // Halves whose other half is a name that an inode has besides, or lies outside.
                let left = self.gone.pop_first().map(|(_, half)| (half, false));
                let Some((half, is_new)) = left.or_else(|| self.came.pop_first().map(|(_, half)| (half, true))) else {
                    return Ok(None);
                };
                self.tell(half, is_new);
                continue;
            }
            self.step().await?;
        }
    }

    /// A name came or went, and all that is below it.
    fn tell(&mut self, half: Half, is_new: bool) {
        let is_directory = is_directory(half.attributes.mode);
        let kind = if is_new { ChangeKind::Created } else { ChangeKind::Removed };
        self.found.push_back(Change { kind, path: half.path.clone(), from: None, is_directory });
        if is_directory {
            let listing = Listing::new(half.attributes.inode);
            let (old, new) = if is_new { (Listing::new(0), listing) } else { (listing, Listing::new(0)) };
            let old_path = half.path.clone();
            self.stack.push(Frame { old_path, path: half.path, old, new, is_same: false, mtime_set: false });
        }
    }

    /// The next name of the directory at hand.
    async fn step(&mut self) -> Result<()> {
        let Some(frame) = self.stack.last_mut() else { return Ok(()) };
        if frame.is_same {
            return self.step_in_same().await;
        }
        let mut refused = None;
        for listing in [&mut frame.old, &mut frame.new] {
            if listing.page.is_empty() && !listing.end {
                self.directories += u64::from(listing.after.is_empty());
                match fetch(&self.volume, listing).await {
                    Ok(count) => self.entries += count,
                    Err(error) => refused = Some(error),
                }
            }
        }
        if let Some(error) = refused {
            return self.leave(error);
        }
        let order = match (frame.old.page.front(), frame.new.page.front()) {
            (None, None) if frame.old.end && frame.new.end => {
                if let Some(Frame { mtime_set: true, path, .. }) = self.stack.pop() {
                    self.found.push_back(of_directory(path));
                }
                return Ok(());
            }
            // A page without entries that is not the last one.
            (None, _) if !frame.old.end => return Ok(()),
            (_, None) if !frame.new.end => return Ok(()),
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some(old), Some(new)) => old.name.cmp(&new.name),
            (None, None) => return Ok(()),
        };
        let old = if order.is_le() { frame.old.page.pop_front() } else { None };
        let new = if order.is_ge() { frame.new.page.pop_front() } else { None };
        let (old_path, path) = (frame.old_path.clone(), frame.path.clone());
        let old = self.half(old, old_path).await?;
        let new = self.half(new, path).await?;
        self.meet(new.as_ref());
        match (old, new) {
            (Some(old), Some(new)) if inner(&old) == inner(&new) => self.both(old, new).await?,
            (Some(old), Some(new)) if self.is_replaced(&old, &new).await? => {
                self.entries_differ();
                self.both(old, new).await?;
            }
            (old, new) => {
                self.entries_differ();
                if let Some(old) = old {
                    self.one(old, false).await?;
                }
                if let Some(new) = new {
                    self.one(new, true).await?;
                }
            }
        }
        Ok(())
    }

    /// The next name of a directory that is as it was.
    async fn step_in_same(&mut self) -> Result<()> {
        let Some(frame) = self.stack.last_mut() else { return Ok(()) };
        if frame.new.page.is_empty() && !frame.new.end {
            self.directories += u64::from(frame.new.after.is_empty());
            match fetch(&self.volume, &mut frame.new).await {
                Ok(count) => self.entries += count,
                Err(error) => return self.leave(error),
            }
        }
        let Some(entry) = frame.new.page.pop_front() else {
            if frame.new.end {
                self.stack.pop();
            }
            return Ok(());
        };
        let (mut old_path, path) = (frame.old_path.clone(), frame.path.clone());
        old_path.push(b'/');
        old_path.extend_from_slice(&entry.name);
        let Some(new) = self.half(Some(entry), path).await? else { return Ok(()) };
        self.meet(Some(&new));
        let is_older = new.attributes.ctime_ns < self.since_ns;
        if is_older && !is_directory(new.attributes.mode) {
            return Ok(());
        }
        let then = inner(&new) | self.sides[0];
        let attributes = match is_older {
            true => Attributes { inode: then, ..new.attributes },
            false => {
                self.entries += 1;
                self.volume.getattr(then).await?
            }
        };
        self.both(Half { path: old_path, attributes }, new).await
    }

    /// The directory at hand cannot be read.
    fn leave(&mut self, error: ClientError) -> Result<()> {
        if error.code() != Some(ErrorCode::PermissionDenied) {
            return Err(error.into());
        }
        self.refused.extend(self.stack.pop().map(|frame| (frame.path, error)));
        Ok(())
    }

    fn meet(&mut self, new: Option<&Half>) {
        if let (Some(scope), Some(new)) = (&mut self.scope, new) {
            scope.meet(&new.attributes);
        }
    }

    /// Nothing in a directory that is there in both states changed, nor below it.
    fn is_passed_over(&self, inode: u64) -> bool {
        self.scope.as_ref().is_some_and(|scope| scope.others.is_empty() && !scope.directories.contains(&inode))
    }

    /// The directory at hand has other entries than before.
    fn entries_differ(&mut self) {
        if let Some(frame) = self.stack.last_mut() {
            frame.mtime_set = false;
        }
    }

    /// Something new is in the place of something of the same type.
    async fn is_replaced(&mut self, old: &Half, new: &Half) -> Result<bool> {
        if !is_one_type(&old.attributes, &new.attributes) {
            return Ok(false);
        }
        self.entries += 1;
        match self.volume.getattr(inner(new) | self.sides[0]).await {
            Ok(_) => Ok(false),
            Err(error) if error.code() == Some(ErrorCode::Stale) || error.is_not_found() => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    async fn half(&self, entry: Option<DirEntry>, mut path: Vec<u8>) -> Result<Option<Half>> {
        let Some(entry) = entry else { return Ok(None) };
        path.push(b'/');
        path.extend_from_slice(&entry.name);
        let attributes = match entry.attributes {
            Some(attributes) => attributes,
            None => match self.volume.getattr(entry.inode).await {
                Err(error) if error.code() == Some(ErrorCode::Stale) => return Ok(None),
                attributes => attributes?,
            },
        };
        Ok(Some(Half { path, attributes }))
    }

    /// One thing, in both states.
    async fn both(&mut self, old: Half, new: Half) -> Result<()> {
        let is_directory = is_directory(new.attributes.mode);
        let differs = match self.compare.difference(&new.path, &old.attributes, &new.attributes).await {
            Err(CliError::Client(error)) if error.code() == Some(ErrorCode::PermissionDenied) => {
                self.refused.push_back((new.path, error));
                return Ok(());
            }
            differs => differs?,
        };
        let path = if new.path.is_empty() { b"/".to_vec() } else { new.path.clone() };
        let change = |kind| Change { kind, path: path.clone(), from: None, is_directory };
        if differs.contents {
            self.found.push_back(change(ChangeKind::Contents));
        }
        if differs.attributes {
            self.found.push_back(change(ChangeKind::Attributes));
        }
        if is_directory {
            let is_one = inner(&old) == inner(&new);
            if is_one && self.is_passed_over(inner(&new)) {
                return Ok(());
            }
            let is_same = is_one && is_untouched(&old.attributes, &new.attributes, self.since_ns);
            let (old_side, new_side) = (Listing::new(old.attributes.inode), Listing::new(new.attributes.inode));
            let mtime_set = differs.mtime && !differs.attributes;
            let (old, new) = ((old.path, old_side), (new.path, new_side));
            self.stack.push(Frame { old_path: old.0, path: new.0, old: old.1, new: new.1, is_same, mtime_set });
        }
        Ok(())
    }

    /// A name that one state has alone: it came, went, or is half of a move.
    async fn one(&mut self, half: Half, is_new: bool) -> Result<()> {
        let inode = inner(&half);
        let others = if is_new { &mut self.gone } else { &mut self.came };
        if let Some(other) = others.remove(&inode) {
            let (old, new) = if is_new { (other, half) } else { (half, other) };
            let is_directory = is_directory(new.attributes.mode);
            let (path, from) = (new.path.clone(), Some(old.path.clone()));
            self.found.push_back(Change { kind: ChangeKind::Renamed, path, from, is_directory });
            self.both(old, new).await?;
            return Ok(());
        }
        let elsewhere = inode | self.sides[usize::from(!is_new)];
        let is_there = match self.volume.getattr(elsewhere).await {
            Ok(other) => other.nlink > 0,
            Err(error) if error.code() == Some(ErrorCode::Stale) || error.is_not_found() => false,
            Err(error) => return Err(error.into()),
        };
        let own = if is_new { &mut self.came } else { &mut self.gone };
        if is_there && own.len() < MOVES_MAX && !own.contains_key(&inode) {
            own.insert(inode, half);
        } else {
            self.tell(half, is_new);
        }
        Ok(())
    }
}

async fn fetch(volume: &Volume, listing: &mut Listing) -> std::result::Result<u64, ClientError> {
    let page = match volume.readdir(listing.inode, &listing.after, true).await {
        // It went while it was read.
        Err(error) if error.code() == Some(ErrorCode::Stale) || error.is_not_found() => {
            listing.end = true;
            return Ok(0);
        }
        page => page?,
    };
    listing.end = page.end || page.entries.is_empty();
    if let Some(last) = page.entries.last() {
        listing.after.clone_from(&last.cookie);
    }
    let count = page.entries.len() as u64;
    listing.page.extend(page.entries);
    Ok(count)
}

fn inner(half: &Half) -> u64 {
    half.attributes.inode & INNER
}

/// That the time of the last change of a directory was set.
fn of_directory(path: Vec<u8>) -> Change {
    let path = if path.is_empty() { b"/".to_vec() } else { path };
    Change { kind: ChangeKind::Attributes, path, from: None, is_directory: true }
}
