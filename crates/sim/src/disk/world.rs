//! [`World`]: the whole state of a simulated disk, and every operation on it.
//!
//! Invariants: each operation passes the gate, which counts it, applies the rules and stops everything once the
//! disk is down; space in use is the sum of the pages of all files that have a name or a handle.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use cairn_env::disk::{DiskError, DiskOp};

use super::SimDiskOptions;
use super::content::{Content, PAGE, SECTOR};
use super::crash::{CrashPolicy, Decider};
use super::fault::{ActiveRule, FaultCounts, FaultEffect};
use super::hang::Hang;
use super::names::{Entry, FileId, Names};
use crate::rng::SimRng;

/// What a disk holds; the part that a snapshot copies (pages are shared, not copied).
#[derive(Debug, Clone, Default)]
pub(super) struct Store {
    pub(super) names: Names,
    pub(super) files: BTreeMap<FileId, Content>,
    next_file: u64,
    used_pages: u64,
}

/// The state behind the disk's lock.
#[derive(Debug)]
pub(super) struct World {
    pub(super) options: SimDiskOptions,
    pub(super) rng: SimRng,
    pub(super) store: Store,
    /// Open handles of each file.
    handles: BTreeMap<FileId, u32>,
    pub(super) locks: BTreeSet<FileId>,
    /// Raised by every crash, kill and restore; older handles are dead.
    pub(super) generation: u64,
    pub(super) down: bool,
    pub(super) ops: u64,
    pub(super) reads: u64,
    pub(super) crash_at: Option<u64>,
    pub(super) rules: Vec<ActiveRule>,
    pub(super) counts: FaultCounts,
    pub(super) hang: Arc<Hang>,
}

/// What the gate decided about an operation.
pub(super) enum Verdict {
    Go,
    /// Power goes during it: its volatile effects are done, it does not return.
    Crash,
    Fail(FaultEffect),
}

/// Whether an operation can change anything (and so is a point to crash at).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Look,
    Change,
}

/// EIO.
const EIO: i32 = 5;
/// EMFILE.
const EMFILE: i32 = 24;

impl World {
    pub(super) fn new(options: SimDiskOptions) -> Self {
        Self {
            rng: SimRng::derived(options.seed, "disk"),
            options,
            store: Store::default(),
            handles: BTreeMap::new(),
            locks: BTreeSet::new(),
            generation: 0,
            down: false,
            ops: 0,
            reads: 0,
            crash_at: None,
            rules: Vec::new(),
            counts: FaultCounts::default(),
            hang: Arc::default(),
        }
    }

    pub(super) fn gone(op: DiskOp, path: &str) -> DiskError {
        DiskError::Gone { path: path.into(), op }
    }

    /// Counts an operation and says what becomes of it.
    pub(super) fn gate(
        &mut self,
        kind: Kind,
        op: DiskOp,
        path: &str,
        range: Option<Range<u64>>,
    ) -> Result<Verdict, DiskError> {
        if self.down {
            return Err(Self::gone(op, path));
        }
        match kind {
            Kind::Look => self.reads += 1,
            Kind::Change => self.ops += 1,
        }
        if kind == Kind::Change && self.crash_at.is_some_and(|at| self.ops >= at) {
            self.down = true;
            return Ok(Verdict::Crash);
        }
        let rng = &self.rng;
        let effect = self.rules.iter_mut().find_map(|rule| rule.hit(op, path, range.as_ref(), rng));
        let Some(effect) = effect else { return Ok(Verdict::Go) };
        match effect {
            FaultEffect::Io => self.counts.io_errors += 1,
            FaultEffect::NoSpace => self.counts.no_space += 1,
            FaultEffect::NoDescriptors => self.counts.no_descriptors += 1,
            FaultEffect::Forgets => self.counts.syncs_forgotten += 1,
            FaultEffect::Flips => self.counts.reads_flipped += 1,
        }
        Ok(Verdict::Fail(effect))
    }

    pub(super) fn fault(effect: FaultEffect, op: DiskOp, path: &str) -> DiskError {
        match effect {
            FaultEffect::Io => DiskError::from_io(op, path, &std::io::Error::from_raw_os_error(EIO)),
            FaultEffect::NoSpace => DiskError::NoSpace { path: path.into(), op },
            FaultEffect::NoDescriptors => DiskError::from_io(op, path, &std::io::Error::from_raw_os_error(EMFILE)),
            FaultEffect::Forgets | FaultEffect::Flips => unreachable!("these faults are no errors"),
        }
    }

    /// An operation without effects.
    pub(super) fn look(&mut self, op: DiskOp, path: &str, range: Option<Range<u64>>) -> Result<(), DiskError> {
        match self.gate(Kind::Look, op, path, range)? {
            Verdict::Fail(effect) => Err(Self::fault(effect, op, path)),
            Verdict::Go | Verdict::Crash => Ok(()),
        }
    }

    /// Reads what is there, or with a bit of it flipped.
    pub(super) fn read(&mut self, id: FileId, path: &str, buf: &mut [u8], offset: u64) -> Result<usize, DiskError> {
        let range = offset..offset.saturating_add(buf.len() as u64);
        match self.gate(Kind::Look, DiskOp::Read, path, Some(range))? {
            Verdict::Fail(FaultEffect::Flips) => {
                let read = self.content(id).read(buf, offset);
                if read > 0 {
                    let bit = self.rng.index(read * 8);
                    buf[bit / 8] ^= 1 << (bit % 8);
                }
                Ok(read)
            }
            Verdict::Fail(effect) => Err(Self::fault(effect, DiskOp::Read, path)),
            Verdict::Go | Verdict::Crash => Ok(self.content(id).read(buf, offset)),
        }
    }

    /// A change that either happens or not, with a known or (at EIO and crashes) an unknown outcome.
    pub(super) fn change<T>(
        &mut self,
        op: DiskOp,
        path: &str,
        apply: impl FnOnce(&mut Self) -> Result<T, DiskError>,
    ) -> Result<T, DiskError> {
        match self.gate(Kind::Change, op, path, None)? {
            Verdict::Go => apply(self),
            Verdict::Crash => {
                // Done or not, the caller never hears of it, and it is unsynced.
                apply(self).ok();
                Err(Self::gone(op, path))
            }
            Verdict::Fail(effect) => {
                if effect == FaultEffect::Io && self.rng.chance(0.5) {
                    apply(self).ok();
                }
                Err(Self::fault(effect, op, path))
            }
        }
    }

    pub(super) fn content(&mut self, id: FileId) -> &mut Content {
        self.store.files.get_mut(&id).expect("a file lives as long as it has a handle or a name")
    }

    /// Changes a file's content and keeps the account of space.
    pub(super) fn update<T>(&mut self, id: FileId, update: impl FnOnce(&mut Content) -> T) -> T {
        let content = self.content(id);
        let before = content.pages_allocated();
        let result = update(content);
        let after = content.pages_allocated();
        self.store.used_pages = self.store.used_pages - before + after;
        result
    }

    pub(super) fn free_pages(&self) -> u64 {
        (self.options.capacity / PAGE as u64).saturating_sub(self.store.used_pages)
    }

    /// Whether `pages` more fit; counts the failure if not.
    pub(super) fn fits(&mut self, pages: u64) -> bool {
        let fits = pages <= self.free_pages();
        self.counts.no_space += u64::from(!fits);
        fits
    }

    pub(super) fn new_file(&mut self) -> FileId {
        self.store.next_file += 1;
        let id = FileId(self.store.next_file);
        self.store.files.insert(id, Content::default());
        id
    }

    pub(super) fn add_handle(&mut self, id: FileId) {
        *self.handles.entry(id).or_default() += 1;
    }

    pub(super) fn drop_handle(&mut self, id: FileId) {
        let count = self.handles.get_mut(&id).expect("a handle is counted while it is open");
        *count -= 1;
        if *count == 0 {
            self.handles.remove(&id);
            if !self.store.names.is_named(id) {
                self.unaccount(id);
            }
        }
        self.collect(id);
    }

    /// A name was taken from the file: its space is free once no handle is left, its content once no crash can
    /// bring the name back.
    pub(super) fn name_removed(&mut self, id: FileId) {
        if !self.handles.contains_key(&id) && !self.store.names.is_named(id) {
            self.unaccount(id);
        }
        self.collect(id);
    }

    fn unaccount(&mut self, id: FileId) {
        if let Some(content) = self.store.files.get(&id) {
            self.store.used_pages -= content.pages_allocated();
        }
    }

    fn collect(&mut self, id: FileId) {
        if !self.handles.contains_key(&id) && !self.store.names.is_linked(id) {
            self.store.files.remove(&id);
        }
    }

    /// Drops the contents that no name and no handle reaches.
    pub(super) fn collect_all(&mut self) {
        let (names, handles) = (&self.store.names, &self.handles);
        self.store.files.retain(|id, _| handles.contains_key(id) || names.is_linked(*id));
    }

    fn recount(&mut self) {
        let named = self.store.files.iter().filter(|(id, _)| self.store.names.is_named(**id));
        self.store.used_pages = named.map(|(_, content)| content.pages_allocated()).sum();
    }

    /// All handles and locks of the process are gone.
    pub(super) fn end_process(&mut self) {
        self.hang.set(false);
        self.generation += 1;
        self.handles.clear();
        self.locks.clear();
        self.collect_all();
        self.recount();
        self.down = false;
        self.crash_at = None;
    }

    /// Units that a crash now decides about.
    pub(super) fn unsynced(&self) -> usize {
        self.store.files.values().map(Content::unsynced).sum::<usize>() + self.store.names.unsynced()
    }

    /// Power goes and comes back.
    pub(super) fn crash(&mut self, policy: CrashPolicy) {
        self.counts.crashes += 1;
        let mut decider = Decider::new(policy, &self.rng);
        for content in self.store.files.values_mut() {
            content.crash(&mut decider, &mut self.counts);
        }
        self.store.names.crash(&mut decider, &mut self.counts);
        self.end_process();
    }

    /// Writes as much as the faults and the space allow.
    pub(super) fn write(&mut self, id: FileId, path: &str, data: &[u8], offset: u64) -> Result<(), DiskError> {
        let op = DiskOp::Write;
        let range = offset..offset.saturating_add(data.len() as u64);
        match self.gate(Kind::Change, op, path, Some(range))? {
            Verdict::Go => self.write_within_space(id, path, data, offset),
            Verdict::Crash => {
                self.write_within_space(id, path, data, offset).ok();
                Err(Self::gone(op, path))
            }
            Verdict::Fail(effect) => {
                let sectors = self.rng.index(data.len() / SECTOR + 1);
                self.write_within_space(id, path, &data[..sectors * SECTOR], offset).ok();
                Err(Self::fault(effect, op, path))
            }
        }
    }

    fn write_within_space(&mut self, id: FileId, path: &str, data: &[u8], offset: u64) -> Result<(), DiskError> {
        let missing = self.content(id).pages_missing(offset, data.len() as u64);
        if self.fits(missing) {
            self.update(id, |content| content.write(data, offset));
            return Ok(());
        }
        // As a real file system: the pages that fit are written, then it fails.
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let part = (PAGE - (at % PAGE as u64) as usize).min(data.len() - done);
            if self.content(id).pages_missing(at, part as u64) > self.free_pages() {
                break;
            }
            self.update(id, |content| content.write(&data[done..done + part], at));
            done += part;
        }
        Err(DiskError::NoSpace { path: path.into(), op: DiskOp::Write })
    }

    pub(super) fn sync(&mut self, id: FileId, path: &str) -> Result<(), DiskError> {
        let op = DiskOp::Sync;
        match self.gate(Kind::Change, op, path, None)? {
            Verdict::Go => self.content(id).sync(),
            // What it was about to write is still unsynced: the crash decides.
            Verdict::Crash => return Err(Self::gone(op, path)),
            Verdict::Fail(FaultEffect::Forgets) => {}
            Verdict::Fail(effect) => {
                let content = self.store.files.get_mut(&id).expect("a file lives as long as its handle");
                content.fail_sync(&self.rng, &mut self.counts);
                return Err(Self::fault(effect, op, path));
            }
        }
        Ok(())
    }

    pub(super) fn sync_dir(&mut self, dir: &str) -> Result<(), DiskError> {
        let op = DiskOp::SyncDir;
        match self.gate(Kind::Change, op, dir, None)? {
            Verdict::Go => {}
            Verdict::Crash => return Err(Self::gone(op, dir)),
            Verdict::Fail(FaultEffect::Forgets) => return Ok(()),
            Verdict::Fail(effect) => return Err(Self::fault(effect, op, dir)),
        }
        if self.store.names.get(dir) != Some(Entry::Dir) {
            return Err(self.no_dir(dir));
        }
        self.store.names.sync_dir(dir);
        self.collect_all();
        Ok(())
    }

    /// Why `path` is not a directory.
    pub(super) fn no_dir(&self, path: &str) -> DiskError {
        let is_file = matches!(self.store.names.get(path), Some(Entry::File(_)));
        if is_file || self.store.names.blocked_by_file(path) {
            DiskError::NotDirectory { path: path.into() }
        } else {
            DiskError::NotFound { path: path.into() }
        }
    }

    /// Why there is nothing of this name.
    pub(super) fn missing(&self, path: &str) -> DiskError {
        if self.store.names.blocked_by_file(path) {
            DiskError::NotDirectory { path: path.into() }
        } else {
            DiskError::NotFound { path: path.into() }
        }
    }
}
