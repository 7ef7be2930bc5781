//! [`SimDisk`]: a disk in memory that forgets, tears, fails and fills up as real ones do.
//!
//! ## The fault model, a contract between this file and the software tested on it
//!
//! The disk MAY:
//! - at a crash, for **each 512-byte sector written since the last successful sync of its file, direct or not**: keep
//!   the old content, have the new one, have any content in between (of several unsynced writes), have a prefix of
//!   the new before the old, or have noise in those bytes that were being changed (with
//!   [`CrashPolicy::harsh`]: in the whole sector);
//! - at a crash, have the old size of a file, the new one, or one between, independently of the data (missing data
//!   within the size reads as zeros);
//! - at a crash, undo creates, renames and removes whose directories were not synced since, each on its own, except
//!   that one survives only with the earlier unsynced ones on the same names or file. So a synced file whose
//!   directory was not synced may vanish, and a removed one may come back;
//! - fail any operation with EIO by rule; a failed write has written any prefix of sectors, a failed change of names
//!   may have happened;
//! - when a sync fails, forget any of what it should have made durable: reads still show it, later syncs succeed
//!   without it, and it is gone after a crash, a kill or [`SimDisk::drop_caches`];
//! - run out of space, having written the pages that fitted;
//! - flip bits at rest;
//! - hang ([`SimDisk::hang`]): operations on files, and syncs of directories, come back when it goes on;
//! - lose power during any operation; then every call fails as [`DiskError::Gone`] until the restart.
//!
//! The disk MUST NOT: change what was synced and is not being written (except by asked-for bit flips); undo half a
//! rename; return fewer bytes than the file has; return success and not do the operation. Beyond that it can be asked
//! to be a disk that lies ([`FaultRule::forgets`], [`FaultRule::flips`]), of which a cluster bears as many as lost
//! ones.
//!
//! Everything is a function of the seed and the calls. Every fault is counted ([`SimDisk::counts`]), so a test can
//! fail when none fired. Locks end with the process (crash, kill), open handles of before it fail for ever.
//!
//! To sweep all crash points: run the work once, take [`SimDisk::ops`], then for each n up to it, on a new disk,
//! [`SimDisk::crash_at_op`]`(n)`, run the work until it fails with `Gone`, [`SimDisk::crash`] with a policy, recover
//! and check.
//!
//! Not here: latency (nothing takes time), and misdirected writes.

mod content;
mod crash;
mod fault;
mod file;
mod hang;
mod names;
mod page_set;
#[cfg(test)]
mod tests;
mod world;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cairn_env::disk::{DirEntry, Disk, DiskError, DiskOp, File, LockGuard, OpenOptions, Space, check_path, parent};

pub use crash::{CrashMix, CrashPolicy};
pub use fault::{FaultCounts, FaultEffect, FaultRule, FaultWhen, RuleId};

use content::PAGE;
use fault::ActiveRule;
use file::{SimFile, SimLock};
use hang::Hang;
use names::Entry;
use world::{Kind, Store, Verdict, World};

/// How a simulated disk is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SimDiskOptions {
    /// Decides every chance.
    pub seed: u64,
    /// Bytes that fit, in pages of 4 KiB; names and sizes take none.
    pub capacity: u64,
    /// Whether files opened as direct are (and so refuse misaligned I/O).
    pub direct: bool,
    /// Whether space can be reserved and holes punched.
    pub holes: bool,
    /// The name in messages.
    pub name: String,
}

impl SimDiskOptions {
    /// 1 GiB with direct I/O and holes.
    pub fn seeded(seed: u64) -> Self {
        Self { seed, capacity: 1 << 30, direct: true, holes: true, name: "sim".into() }
    }
}

/// A copy of what a disk holds, synced or not, for going back to. Cheap: pages are shared.
#[derive(Debug, Clone)]
pub struct DiskImage(Store);

/// A simulated disk. Clones are handles to the same disk.
#[derive(Debug, Clone)]
pub struct SimDisk {
    world: Arc<Mutex<World>>,
    name: Arc<str>,
    hang: Arc<Hang>,
}

fn lock(world: &Mutex<World>) -> MutexGuard<'_, World> {
    world.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SimDisk {
    /// An empty disk of 1 GiB.
    pub fn new(seed: u64) -> Self {
        Self::with_options(SimDiskOptions::seeded(seed))
    }

    /// An empty disk.
    pub fn with_options(options: SimDiskOptions) -> Self {
        let name = options.name.as_str().into();
        let world = World::new(options);
        let hang = world.hang.clone();
        Self { world: Arc::new(Mutex::new(world)), name, hang }
    }

    fn world(&self) -> MutexGuard<'_, World> {
        lock(&self.world)
    }

    /// Syncs of files take up to this time from now on, by the clock of whoever waits for them.
    pub fn set_sync_max(&self, sync_max: Duration) {
        self.hang.set_sync_max(sync_max);
    }

    /// Operations so far that can change something: writes, syncs, changes of size, space and names.
    pub fn ops(&self) -> u64 {
        self.world().ops
    }

    /// Operations so far that only look: reads, lists, opens of what exists.
    pub fn reads(&self) -> u64 {
        self.world().reads
    }

    /// The power goes during the operation that makes [`ops`](Self::ops) reach `n` (at once if it has). Everything
    /// fails from then on as [`DiskError::Gone`], until [`crash`](Self::crash) brings the disk back.
    pub fn crash_at_op(&self, n: u64) {
        self.world().crash_at = Some(n);
    }

    /// Whether the power went at the operation set by [`crash_at_op`](Self::crash_at_op).
    pub fn is_down(&self) -> bool {
        self.world().down
    }

    /// Cuts the power now, without bringing the disk back yet.
    pub fn power_off(&self) {
        self.world().down = true;
    }

    /// Cuts the power (if it did not go already) and starts again with what the policy leaves. Handles and locks of
    /// before are dead.
    pub fn crash(&self, policy: CrashPolicy) {
        self.world().crash(policy);
    }

    /// The process ends and the machine lives: everything written stays (as volatile as it was), handles and locks
    /// are gone. What a failed sync forgot is gone too, as if the cache had been needed for something else.
    pub fn kill(&self) {
        let mut world = self.world();
        world.counts.kills += 1;
        world.store.files.values_mut().for_each(content::Content::drop_clean);
        world.end_process();
    }

    /// Sectors, sizes and names that a crash now would decide about: the number of bits that
    /// [`CrashPolicy::Subset`] looks at.
    pub fn unsynced(&self) -> usize {
        self.world().unsynced()
    }

    /// Reads show what the device has, except for what is still to be synced.
    pub fn drop_caches(&self) {
        self.world().store.files.values_mut().for_each(content::Content::drop_clean);
    }

    /// Puts a rule in force, behind the earlier ones; the first that hits an operation decides.
    pub fn inject(&self, rule: FaultRule) -> RuleId {
        let mut world = self.world();
        world.rules.push(ActiveRule::new(rule));
        RuleId(world.rules.len() - 1)
    }

    /// Ends a rule.
    pub fn heal(&self, rule: RuleId) {
        self.world().rules[rule.0].enabled = false;
    }

    /// Ends all rules.
    pub fn heal_all(&self) {
        self.world().rules.iter_mut().for_each(|rule| rule.enabled = false);
    }

    /// How often a rule has hit.
    pub fn hits(&self, rule: RuleId) -> u64 {
        self.world().rules[rule.0].hits
    }

    /// From now on operations do not come back, until [`go_on`](Self::go_on). Those under way do.
    pub fn hang(&self) {
        self.hang.set(true);
    }

    /// Ends a [`hang`](Self::hang): what waited is done now.
    pub fn go_on(&self) {
        self.hang.set(false);
    }

    /// Operations that had to wait while the disk hung.
    pub fn held(&self) -> u64 {
        self.hang.held()
    }

    /// Changes the capacity, also below what is used.
    pub fn set_capacity(&self, bytes: u64) {
        self.world().options.capacity = bytes;
    }

    /// Flips a bit of a file at rest.
    ///
    /// # Panics
    /// When there is no such byte: the test would test nothing.
    pub fn flip_bit(&self, path: &str, offset: u64, bit: u8) {
        let mut world = self.world();
        let Some(Entry::File(id)) = world.store.names.get(path) else {
            panic!("no file {path} to flip a bit in");
        };
        assert!(world.content(id).flip(offset, bit), "{path} has no byte {offset} to flip a bit of");
        world.counts.bits_flipped += 1;
    }

    /// As [`flip_bit`](Self::flip_bit), for files that may go at any moment: false if there is no such byte.
    pub fn try_flip_bit(&self, path: &str, offset: u64, bit: u8) -> bool {
        let mut world = self.world();
        let Some(Entry::File(id)) = world.store.names.get(path) else { return false };
        let flipped = world.content(id).flip(offset, bit);
        world.counts.bits_flipped += u64::from(flipped);
        flipped
    }

    /// Flips one bit, anywhere in a non-empty file below `dir` (`""`: anywhere). Returns where.
    pub fn flip_random_bit(&self, dir: &str) -> Option<(String, u64)> {
        let picked = {
            let mut world = self.world();
            let found = files_below(&mut world, dir);
            let total: u64 = found.iter().map(|(_, len)| len).sum();
            if total == 0 {
                return None;
            }
            let mut at = world.rng.range(0..total);
            let bit = world.rng.index(8) as u8;
            found.into_iter().find_map(|(path, len)| {
                if at < len {
                    return Some((path, at, bit));
                }
                at -= len;
                None
            })
        };
        let (path, at, bit) = picked?;
        self.flip_bit(&path, at, bit);
        Some((path, at))
    }

    /// What went wrong so far.
    pub fn counts(&self) -> FaultCounts {
        self.world().counts
    }

    /// A copy of everything, synced and not.
    pub fn snapshot(&self) -> DiskImage {
        DiskImage(self.world().store.clone())
    }

    /// Goes back to a copy (of this or another disk). Handles and locks are dead; counters and rules go on.
    pub fn restore(&self, image: &DiskImage) {
        let mut world = self.world();
        world.store = image.0.clone();
        world.end_process();
    }

    fn open_existing(&self, world: &mut World, path: &str, options: OpenOptions) -> Result<Arc<dyn File>, DiskError> {
        match world.store.names.get(path) {
            Some(Entry::Dir) => Err(DiskError::IsDirectory { path: path.into() }),
            Some(Entry::File(_)) if options.create_new => Err(DiskError::Exists { path: path.into() }),
            Some(Entry::File(id)) => Ok(SimFile::open(&self.world, world, id, path, options)),
            None => Err(world.missing(path)),
        }
    }

    fn remove_entry(&self, path: &str, want_dir: bool) -> Result<(), DiskError> {
        check_below_root(path)?;
        self.world().change(DiskOp::Remove, path, |world| {
            let owned = || path.to_owned();
            let entry = world.store.names.get(path).ok_or_else(|| world.missing(path))?;
            match entry {
                Entry::Dir if !want_dir => return Err(DiskError::IsDirectory { path: owned() }),
                Entry::File(_) if want_dir => return Err(DiskError::NotDirectory { path: owned() }),
                Entry::Dir if world.store.names.children(path).next().is_some() => {
                    return Err(DiskError::NotEmpty { path: owned() });
                }
                _ => world.store.names.change(vec![(owned(), None)]),
            }
            if let Entry::File(id) = entry {
                world.name_removed(id);
            }
            Ok(())
        })
    }
}

/// All files below a directory with their sizes, in the order of their paths.
fn files_below(world: &mut World, dir: &str) -> Vec<(String, u64)> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        let children: Vec<(String, Entry)> =
            world.store.names.children(&dir).map(|(name, entry)| (name.to_owned(), entry)).collect();
        for (name, entry) in children {
            let path = if dir.is_empty() { name } else { format!("{dir}/{name}") };
            match entry {
                Entry::Dir => dirs.push(path),
                Entry::File(id) => found.push((path, world.content(id).len())),
            }
        }
    }
    found.sort();
    found
}

/// A path that must name something below the root.
fn check_below_root(path: &str) -> Result<(), DiskError> {
    if path.is_empty() {
        return Err(DiskError::BadPath { path: path.into(), reason: "it names the root of the disk" });
    }
    check_path(path)
}

impl Disk for SimDisk {
    fn open(&self, path: &str, options: OpenOptions) -> Result<Arc<dyn File>, DiskError> {
        check_below_root(path)?;
        if let Some(reason) = options.flaw() {
            return Err(DiskError::BadUse { path: path.into(), reason });
        }
        let mut world = self.world();
        let creates = (options.create || options.create_new) && world.store.names.get(path).is_none();
        if !creates {
            world.look(DiskOp::Open, path, None)?;
            return self.open_existing(&mut world, path, options);
        }
        // The handle is made outside of `change`: one that is dropped inside would wait for the lock held here.
        let id = world.change(DiskOp::Open, path, |world| {
            if world.store.names.get(parent(path)) != Some(Entry::Dir) {
                return Err(world.missing(path));
            }
            let id = world.new_file();
            world.store.names.change(vec![(path.to_owned(), Some(Entry::File(id)))]);
            Ok(id)
        })?;
        Ok(SimFile::open(&self.world, &mut world, id, path, options))
    }

    fn remove(&self, path: &str) -> Result<(), DiskError> {
        self.remove_entry(path, false)
    }

    fn remove_dir(&self, path: &str) -> Result<(), DiskError> {
        self.remove_entry(path, true)
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        check_below_root(from)?;
        check_below_root(to)?;
        self.world().change(DiskOp::Rename, from, |world| {
            let source = world.store.names.get(from).ok_or_else(|| world.missing(from))?;
            if source == Entry::Dir {
                return Err(DiskError::IsDirectory { path: from.into() });
            }
            if world.store.names.get(parent(to)) != Some(Entry::Dir) {
                return Err(world.missing(to));
            }
            let target = world.store.names.get(to);
            if target == Some(Entry::Dir) {
                return Err(DiskError::IsDirectory { path: to.into() });
            }
            if from == to {
                return Ok(());
            }
            world.store.names.change(vec![(from.to_owned(), None), (to.to_owned(), Some(source))]);
            if let Some(Entry::File(replaced)) = target {
                world.name_removed(replaced);
            }
            Ok(())
        })
    }

    fn sync_dir(&self, dir: &str) -> Result<(), DiskError> {
        check_path(dir)?;
        self.hang.pass();
        self.world().sync_dir(dir)
    }

    fn create_dir_all(&self, dir: &str) -> Result<(), DiskError> {
        check_path(dir)?;
        let ends = dir.match_indices('/').map(|(at, _)| at).chain([dir.len()]);
        for end in ends.filter(|_| !dir.is_empty()) {
            let part = &dir[..end];
            let mut world = self.world();
            match world.store.names.get(part) {
                Some(Entry::Dir) => world.look(DiskOp::CreateDir, part, None)?,
                Some(Entry::File(_)) => return Err(DiskError::NotDirectory { path: part.into() }),
                None => {
                    world.change(DiskOp::CreateDir, part, |world| {
                        world.store.names.change(vec![(part.to_owned(), Some(Entry::Dir))]);
                        Ok(())
                    })?;
                    world.sync_dir(parent(part))?;
                }
            }
        }
        Ok(())
    }

    fn list(&self, dir: &str) -> Result<Vec<DirEntry>, DiskError> {
        check_path(dir)?;
        let mut world = self.world();
        world.look(DiskOp::List, dir, None)?;
        if world.store.names.get(dir) != Some(Entry::Dir) {
            return Err(world.no_dir(dir));
        }
        let store = &world.store;
        let to_entry = |(name, entry): (&str, Entry)| {
            let (is_dir, len) = match entry {
                Entry::Dir => (true, 0),
                Entry::File(id) => (false, store.files.get(&id).map_or(0, content::Content::len)),
            };
            DirEntry { name: name.to_owned(), is_dir, len }
        };
        let mut entries: Vec<DirEntry> = store.names.children(dir).map(to_entry).collect();
        entries.sort();
        Ok(entries)
    }

    fn exists(&self, path: &str) -> Result<bool, DiskError> {
        check_path(path)?;
        let mut world = self.world();
        world.look(DiskOp::Stat, path, None)?;
        Ok(world.store.names.get(path).is_some())
    }

    fn space(&self) -> Result<Space, DiskError> {
        let mut world = self.world();
        world.look(DiskOp::Space, &self.name, None)?;
        Ok(Space { total: world.options.capacity, free: world.free_pages() * PAGE as u64, filesystem: 0 })
    }

    fn lock(&self, path: &str) -> Result<Box<dyn LockGuard>, DiskError> {
        let holder = Some(std::process::id());
        let file = self.open(path, OpenOptions::CREATE)?;
        let mut world = self.world();
        if let Verdict::Fail(effect) = world.gate(Kind::Look, DiskOp::Lock, path, None)? {
            return Err(World::fault(effect, DiskOp::Lock, path));
        }
        let Some(Entry::File(id)) = world.store.names.get(path) else {
            return Err(world.missing(path));
        };
        if !world.locks.insert(id) {
            return Err(DiskError::Locked { path: path.into(), holder });
        }
        let generation = world.generation;
        drop(world);
        Ok(Box::new(SimLock::new(&self.world, file, id, generation)))
    }

    fn name(&self) -> &str {
        &self.name
    }
}
