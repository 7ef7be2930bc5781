//! Which handles are open, in memory that outlives the process: a shared memory file that the supervisor holds.
//!
//! A worker notes each open and release, and whether data was written since the last sync. The next worker opens the
//! same inodes under the same numbers. Invariants owned here: a slot counts only when its state says so, which is
//! stored last; what a dying process left half written is not taken; data that may be lost is told at the next sync of
//! every handle that was open for writing then, however many workers die before, and of one opened later if nobody was
//! told yet. Byte order and layout are those of one machine and one boot; the header's version tells workers of other
//! releases.
use crate::suspects::Suspects;
use cairn_vfs::OpenState;
use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// Size of the table. The last slots are memory of [`Suspects`]. An older build uses them for handles, when so many are
/// open.
const SLOTS: u32 = 1 << 20;
const SUSPECTS: u32 = 64;
/// Handles that can be noted, and the header. More can be open; those are lost with their worker.
pub const SLOTS_MAX: u32 = SLOTS - SUSPECTS;
const _: () = assert!(size_of::<Suspects>() <= SUSPECTS as usize * size_of::<Slot>());
const _: () = assert!((SLOTS_MAX as usize * size_of::<Slot>()).is_multiple_of(align_of::<Suspects>()));
/// Supplementary groups that are kept.
const GROUPS: usize = 16;
const MAGIC: u32 = 0x4341_4f54;
const VERSION: u32 = 1;

const FREE: u32 = 0;
const LIVE: u32 = 1;

/// In `written`: data of the file may be lost, and this handle was not told.
const LOST: u32 = 1 << 31;
/// In `written`: locks were taken through it and not all given back.
const LOCKED: u32 = 1 << 30;
/// In `written`: the number of a write.
const NUMBER: u32 = LOCKED - 1;

/// In `kernel_version`: there is no version yet, but the number of the request that opened the handle.
const OPENED_BY: u64 = 1 << 63;

/// One handle in memory; the first slot is the header.
#[repr(C)]
struct Slot {
    state: AtomicU32,
    /// Number of the last write, [`LOST`] and [`LOCKED`]. It never begins anew: a sync that ends late would take later
    /// writes for those that it has seen.
    written: AtomicU32,
    body: Body,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Body {
    handle: u64,
    ino: u64,
    kernel_version: u64,
    flags: i32,
    directory: u32,
    uid: u32,
    gid: u32,
    group_count: u32,
    groups: [u32; GROUPS],
    /// Number of the last write that is synced; in the header: number of slots that any worker used.
    mark: u32,
}
const _: () = assert!(size_of::<Slot>() == 120 && align_of::<Slot>() == 8);

/// A handle to note.
pub struct Record<'a> {
    pub handle: u64,
    pub ino: u64,
    pub flags: i32,
    pub directory: bool,
    pub uid: u32,
    pub gid: u32,
    pub groups: &'a [u32],
    /// Number of the kernel's request; 0: none.
    pub request: u64,
}

#[derive(Default)]
struct Index {
    slots: HashMap<u64, u32>,
    /// Slots of an inode's handles.
    inodes: HashMap<u64, Vec<u32>>,
    /// Inodes with a loss of which nobody was told.
    untold: HashSet<u64>,
    free: Vec<u32>,
    /// Slots below this were used at some time.
    used: u32,
    full: bool,
}

/// A handle that another worker left.
pub struct Left {
    pub state: OpenState,
    /// It has to be told that data may be lost.
    pub lost: bool,
    /// The other worker's session had locks for it.
    pub locked: bool,
}

/// Writes that a sync may make durable: handles of an inode and the last write of each before it began.
pub struct Unsynced(Vec<(u64, u32)>);

/// The table, mapped.
pub struct OpenTable {
    start: *mut Slot,
    index: Mutex<Index>,
}

// SAFETY: the mapping is valid until drop; the fields of a slot that change while others look are atomics, and bodies
// are written only by whoever took the slot out of `index`, under its lock.
unsafe impl Send for OpenTable {}
// SAFETY: as above.
unsafe impl Sync for OpenTable {}

/// Whether a handle was opened for writing.
fn writes(flags: i32) -> bool {
    flags & libc::O_ACCMODE != libc::O_RDONLY
}

const LENGTH: usize = SLOTS as usize * size_of::<Slot>();

impl OpenTable {
    /// The memory file alone, for the supervisor. Pages that were never written cost nothing.
    pub fn create_memory() -> rustix::io::Result<OwnedFd> {
        let fd = memfd_create("cairn-open-files", MemfdFlags::CLOEXEC)?;
        ftruncate(&fd, LENGTH as u64)?;
        Ok(fd)
    }
    /// Maps a memory file, new or left by another worker.
    pub fn map(fd: OwnedFd) -> std::io::Result<OpenTable> {
        if rustix::fs::fstat(&fd)?.st_size != LENGTH as i64 {
            return Err(std::io::Error::other("the table of open files has another size; remount"));
        }
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice, as long as the file.
        let start = unsafe { mmap(std::ptr::null_mut(), LENGTH, protection, flags, fd.as_fd(), 0)? };
        let table = OpenTable { start: start.cast(), index: Mutex::new(Index::default()) };
        let header = table.slot(0);
        match (header.state.load(Ordering::Acquire), header.written.load(Ordering::Acquire)) {
            (MAGIC, VERSION) => {}
            (FREE, 0) => {
                header.written.store(VERSION, Ordering::Release);
                header.state.store(MAGIC, Ordering::Release);
            }
            _ => return Err(std::io::Error::other("the table of open files is of another version; remount")),
        }
        table.index.lock().used = 1;
        Ok(table)
    }
    fn slot(&self, number: u32) -> &Slot {
        assert!(number < SLOTS, "slot {number} of {SLOTS}");
        // SAFETY: inside the mapping, aligned (a page plus a multiple of the size), and any bytes are a valid slot.
        unsafe { &*self.start.add(number as usize) }
    }
    /// What workers were working on when they died. `None` if a worker of an older build had so many files open that it
    /// is their place.
    pub fn suspects(&self) -> Option<&Suspects> {
        // SAFETY: inside the mapping and aligned (see the checks at the top); any bytes are valid atomic integers.
        (self.used() <= SLOTS_MAX).then(|| unsafe { &*self.start.add(SLOTS_MAX as usize).cast::<Suspects>() })
    }
    /// Number of slots that any worker used, kept in the header's body so that loading touches no others.
    fn set_used(&self, used: u32) {
        // SAFETY: the header's body is written only here, under the lock of `index`.
        unsafe { (&raw mut (*self.start).body.mark).write_volatile(used) };
    }
    fn used(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (&raw const (*self.start).body.mark).read_volatile() }.clamp(1, SLOTS)
    }
    /// Everything up to that write is synced. Under the lock of `index`.
    fn set_synced(&self, number: u32, synced: u32) {
        assert!(number != 0 && number < SLOTS, "slot {number} of {SLOTS}");
        // SAFETY: inside the mapping and aligned; bodies are changed only by whoever holds the lock of `index`.
        unsafe { (&raw mut (*self.start.add(number as usize)).body.mark).write_volatile(synced) };
    }
    /// The last write and the last one that is synced, by number. Under the lock of `index`.
    fn writes_of(&self, number: u32) -> (u32, u32) {
        (self.slot(number).written.load(Ordering::Acquire) & NUMBER, self.body(number).mark & NUMBER)
    }

    /// Notes an open handle.
    pub fn record(&self, record: &Record<'_>) {
        let mut groups = [0; GROUPS];
        let group_count = record.groups.len().min(GROUPS);
        groups[..group_count].copy_from_slice(&record.groups[..group_count]);
        let body = Body {
            handle: record.handle,
            ino: record.ino,
            kernel_version: if record.request == 0 { 0 } else { record.request | OPENED_BY },
            flags: record.flags,
            directory: u32::from(record.directory),
            uid: record.uid,
            gid: record.gid,
            group_count: group_count as u32,
            groups,
            mark: 0,
        };
        let mut index = self.index.lock();
        let number = match index.free.pop() {
            Some(number) => number,
            None if index.used < SLOTS_MAX => {
                index.used += 1;
                self.set_used(index.used);
                index.used - 1
            }
            None => {
                if !std::mem::replace(&mut index.full, true) {
                    tracing::warn!(SLOTS_MAX, "more files are open than can be handed to the mount's next process");
                }
                return;
            }
        };
        index.slots.insert(record.handle, number);
        index.inodes.entry(record.ino).or_default().push(number);
        let lost = if index.untold.contains(&record.ino) && writes(record.flags) { LOST } else { 0 };
        self.write(number, body, lost);
    }
    fn write(&self, number: u32, body: Body, written: u32) {
        let slot = self.slot(number);
        slot.state.store(FREE, Ordering::Release);
        fence(Ordering::SeqCst);
        // SAFETY: the slot was just taken under the lock of `index`; nobody else writes its body.
        unsafe { (&raw const slot.body).cast_mut().write_volatile(body) };
        slot.written.store(written, Ordering::Release);
        slot.state.store(LIVE, Ordering::Release);
    }
    fn body(&self, number: u32) -> Body {
        // SAFETY: any bytes are a valid body; whoever changes one holds the lock of `index`, as callers do.
        unsafe { (&raw const self.slot(number).body).read_volatile() }
    }
    /// Notes that a handle is closed.
    pub fn forget(&self, handle: u64) {
        let mut index = self.index.lock();
        let Some(number) = index.slots.remove(&handle) else { return };
        let ino = self.body(number).ino;
        self.slot(number).state.store(FREE, Ordering::Release);
        index.free.push(number);
        let of_inode = index.inodes.entry(ino).or_default();
        of_inode.retain(|slot| *slot != number);
        if of_inode.is_empty() {
            index.inodes.remove(&ino);
            index.untold.remove(&ino);
        }
    }
    /// The handle that a request opened, as far as it is noted. If the kernel hands that request out again, it never
    /// heard of the handle, so nobody will ever close it.
    pub fn opened_by(&self, request: u64) -> Option<u64> {
        let index = self.index.lock();
        let made = |number: &&u32| self.body(**number).kernel_version == request | OPENED_BY;
        index.slots.values().find(made).map(|number| self.body(*number).handle)
    }
    /// Data is written through it.
    pub fn mark_dirty(&self, handle: u64) {
        let index = self.index.lock();
        let Some(number) = index.slots.get(&handle) else { return };
        let next = |written: u32| Some(written & !NUMBER | written.wrapping_add(1) & NUMBER);
        let _always = self.slot(*number).written.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
    }
    /// Something of the inode is to be stored that nothing was written for: attributes.
    pub fn mark_inode_dirty(&self, ino: u64) {
        let handle = {
            let index = self.index.lock();
            index.inodes.get(&ino).and_then(|slots| slots.first()).map(|number| self.body(*number).handle)
        };
        handle.into_iter().for_each(|handle| self.mark_dirty(handle));
    }
    /// Whether a program has it open for writing.
    pub fn has_writer(&self, ino: u64) -> bool {
        let index = self.index.lock();
        index.inodes.get(&ino).is_some_and(|slots| slots.iter().any(|number| writes(self.body(*number).flags)))
    }
    /// What a sync of the handle's file covers, if it is asked before the sync begins.
    pub fn unsynced(&self, handle: u64) -> Unsynced {
        let index = self.index.lock();
        let Some(number) = index.slots.get(&handle) else { return Unsynced(Vec::new()) };
        let of_inode = index.inodes.get(&self.body(*number).ino).map_or(&[][..], |slots| slots);
        let dirty = |number: &u32| {
            let (last, synced) = self.writes_of(*number);
            (last != synced).then(|| (self.body(*number).handle, last))
        };
        Unsynced(of_inode.iter().filter_map(dirty).collect())
    }
    /// That much is synced. What was written meanwhile is not.
    pub fn mark_clean(&self, synced: &Unsynced) {
        let index = self.index.lock();
        for (handle, seen) in &synced.0 {
            let Some(number) = index.slots.get(handle) else { continue };
            let (last, synced) = self.writes_of(*number);
            let from_synced = |write: u32| write.wrapping_sub(synced) & NUMBER;
            // Another sync may have got further.
            if from_synced(*seen) <= from_synced(last) {
                self.set_synced(*number, *seen);
            }
        }
    }
    /// Locks are taken through it, or were all given back. What was noted before.
    pub fn mark_locked(&self, handle: u64, locked: bool) -> bool {
        let index = self.index.lock();
        let Some(number) = index.slots.get(&handle) else { return false };
        let written = &self.slot(*number).written;
        let before = match locked {
            true => written.fetch_or(LOCKED, Ordering::AcqRel),
            false => written.fetch_and(!LOCKED, Ordering::AcqRel),
        };
        before & LOCKED != 0
    }
    /// The session of whoever serves; 0: it ends that itself.
    pub fn note_session(&self, session: u64) {
        let _index = self.index.lock();
        // SAFETY: the header's body is written only by methods that hold the lock of `index`.
        unsafe { (&raw mut (*self.start).body.handle).write_volatile(session) };
    }
    /// The session of the worker that served last.
    pub fn session(&self) -> u64 {
        let _index = self.index.lock();
        self.body(0).handle
    }
    /// Handles that a worker left. They stay noted.
    pub fn load(&self) -> Vec<Left> {
        let mut index = self.index.lock();
        *index = Index { used: self.used(), ..Index::default() };
        for number in 1..index.used {
            if self.slot(number).state.load(Ordering::Acquire) != LIVE {
                index.free.push(number);
                continue;
            }
            let body = self.body(number);
            index.slots.insert(body.handle, number);
            index.inodes.entry(body.ino).or_default().push(number);
        }
        let mut found = Vec::new();
        let inodes = std::mem::take(&mut index.inodes);
        for (ino, slots) in &inodes {
            if self.judge_loss(slots) {
                index.untold.insert(*ino);
            }
            found.extend(slots.iter().map(|number| self.state_of(*number)));
        }
        index.inodes = inodes;
        found.sort_unstable_by_key(|left: &Left| left.state.handle);
        found
    }
    /// What is not synced is lost: whoever has the file open for writing is to be told, not only who wrote it.
    fn judge_loss(&self, slots: &[u32]) -> bool {
        let unsynced = |number: &u32| {
            let (last, synced) = self.writes_of(*number);
            last != synced
        };
        if slots.iter().any(unsynced) {
            for number in slots {
                if writes(self.body(*number).flags) {
                    self.slot(*number).written.fetch_or(LOST, Ordering::AcqRel);
                }
            }
            // Afterwards: a worker that dies in between leaves it to the next one to judge.
            slots.iter().for_each(|number| self.set_synced(*number, self.writes_of(*number).0));
        }
        slots.iter().any(|number| self.slot(*number).written.load(Ordering::Acquire) & LOST != 0)
    }
    fn state_of(&self, number: u32) -> Left {
        let body = self.body(number);
        let groups = body.groups[..(body.group_count as usize).min(GROUPS)].to_vec();
        let state = OpenState {
            handle: body.handle,
            ino: body.ino,
            flags: body.flags,
            directory: body.directory != 0,
            uid: body.uid,
            gid: body.gid,
            groups,
            kernel_version: if body.kernel_version & OPENED_BY == 0 { body.kernel_version } else { 0 },
        };
        let written = self.slot(number).written.load(Ordering::Acquire);
        Left { state, lost: written & LOST != 0, locked: written & LOCKED != 0 }
    }
    /// Before handing over: what `vfs` knows of each handle, all of it synced or not.
    pub fn refine(&self, states: &[OpenState], synced: bool) {
        let index = self.index.lock();
        for state in states {
            let Some(number) = index.slots.get(&state.handle) else { continue };
            let slot = self.slot(*number);
            let mut body = self.body(*number);
            body.kernel_version = state.kernel_version;
            body.flags = state.flags;
            let written = slot.written.load(Ordering::Acquire);
            if synced {
                body.mark = written & NUMBER;
            }
            self.write(*number, body, written);
        }
    }
    /// Whether a loss has to be told.
    pub fn is_lost(&self, handle: u64) -> bool {
        let index = self.index.lock();
        let lost = |number: &u32| self.slot(*number).written.load(Ordering::Acquire) & LOST != 0;
        index.slots.get(&handle).is_some_and(lost)
    }
    /// It was: not again.
    pub fn lost_was_told(&self, handle: u64) {
        let mut index = self.index.lock();
        let Some(number) = index.slots.get(&handle).copied() else { return };
        self.slot(number).written.fetch_and(!LOST, Ordering::AcqRel);
        index.untold.remove(&self.body(number).ino);
    }
    pub fn count(&self) -> usize {
        self.index.lock().slots.len()
    }
}

impl Drop for OpenTable {
    fn drop(&mut self) {
        // SAFETY: the mapping of `map`, which nothing refers to any more.
        let _cannot_fail = unsafe { munmap(self.start.cast(), LENGTH) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(handle: u64, groups: &[u32]) -> Record<'_> {
        Record {
            handle,
            ino: handle * 10,
            flags: libc::O_RDWR,
            directory: false,
            uid: 7,
            gid: 8,
            groups,
            request: 2 * handle,
        }
    }

    /// Files that were open when a worker died would be gone for the programs that have them open.
    #[test]
    fn another_mapping_finds_what_is_open() {
        let memory = OpenTable::create_memory().expect("memory");
        let first = OpenTable::map(memory.try_clone().expect("clone")).expect("map");
        let many: Vec<u32> = (0..40).collect();
        first.record(&record(1, &[]));
        first.record(&record(2, &many));
        first.record(&record(3, &[5]));
        first.forget(1);
        first.mark_dirty(2);
        first.mark_dirty(3);
        first.mark_clean(&first.unsynced(3));
        first.record(&record(4, &[]));
        first.record(&record(5, &[]));
        first.mark_inode_dirty(50);
        first.mark_inode_dirty(60);
        for handle in [2, 3, 4] {
            first.mark_locked(handle, true);
        }
        first.mark_locked(3, false);
        first.note_session(77);
        drop(first);
        let second = OpenTable::map(memory).expect("map again");
        let found = second.load();
        let handles: Vec<(u64, bool, bool)> =
            found.iter().map(|left| (left.state.handle, left.lost, left.locked)).collect();
        assert_eq!(handles, [(2, true, true), (3, false, false), (4, false, true), (5, true, false)]);
        assert_eq!(found[0].state.groups, (0..16).collect::<Vec<u32>>());
        let third = &found[1].state;
        assert_eq!((third.ino, third.uid, third.flags, second.session()), (30, 7, libc::O_RDWR, 77));
        second.forget(2);
        assert_eq!(second.count(), 3);
    }

    /// A handle whose opening was never answered would be open until the end of the mount.
    #[test]
    fn the_request_that_opened_a_handle_is_known() {
        let memory = OpenTable::create_memory().expect("memory");
        let first = OpenTable::map(memory.try_clone().expect("clone")).expect("map");
        (1..4).for_each(|handle| first.record(&record(handle, &[])));
        let second = next(first, &memory);
        let left = second.load();
        assert!(left.iter().all(|left| left.state.kernel_version == 0), "it is no version of the kernel's pages");
        assert_eq!((second.opened_by(4), second.opened_by(8), second.opened_by(0)), (Some(2), None, None));
        second.forget(2);
        assert_eq!(second.opened_by(4), None);
        // What is handed over carries its version.
        let known = OpenState { kernel_version: 9, ..left[2].state.clone() };
        second.refine(&[known], true);
        assert_eq!((second.opened_by(6), next(second, &memory).load()[1].state.kernel_version), (None, 9));
    }

    /// The table as the next worker finds it.
    fn next(table: OpenTable, memory: &OwnedFd) -> OpenTable {
        drop(table);
        let next = OpenTable::map(memory.try_clone().expect("clone")).expect("map");
        next.load();
        next
    }

    /// A program would be told of a loss with every sync, or never: because another worker died before it was told, or
    /// because it syncs through another handle than it wrote through.
    #[test]
    fn a_loss_is_told_once_to_everybody() {
        let memory = OpenTable::create_memory().expect("memory");
        let table = OpenTable::map(memory.try_clone().expect("clone")).expect("map");
        let other = Record { ino: 10, ..record(2, &[]) };
        table.record(&record(1, &[]));
        table.record(&other);
        table.record(&record(3, &[]));
        table.mark_dirty(1);
        table.record(&Record { handle: 6, flags: libc::O_RDONLY, ..other });
        let table = next(next(next(table, &memory), &memory), &memory);
        assert!(table.has_writer(10) && !table.has_writer(20));
        table.record(&Record { handle: 4, ..other });
        assert!(table.is_lost(2), "a handle of the same file");
        table.lost_was_told(2);
        table.record(&Record { handle: 5, ..other });
        let tell = |handle: u64| {
            let lost = table.is_lost(handle);
            if lost {
                table.lost_was_told(handle);
            }
            lost
        };
        let told: Vec<bool> = (1..=6).chain(1..=2).map(tell).collect();
        assert_eq!(told, [true, false, false, true, false, false, false, false]);
    }

    /// A loss would not be told if a write came while a sync was under way.
    #[test]
    fn what_is_written_during_a_sync_is_not_synced() {
        let memory = OpenTable::create_memory().expect("memory");
        let table = OpenTable::map(memory.try_clone().expect("clone")).expect("map");
        table.record(&record(1, &[]));
        table.record(&Record { ino: 10, ..record(2, &[]) });
        table.mark_dirty(1);
        table.mark_dirty(2);
        let before = table.unsynced(2);
        table.mark_dirty(1);
        table.mark_clean(&before);
        assert!(table.unsynced(1).0.iter().map(|(_, written)| *written).eq([2]), "the other one is synced");
        let table = next(table, &memory);
        assert!(table.is_lost(1) && table.is_lost(2));
        assert!(table.unsynced(1).0.is_empty() && table.unsynced(2).0.is_empty(), "it is judged once");
    }

    /// A loss would not be told if two syncs overlap, as a program's own and that of a child that closes its copy of
    /// the descriptor: the one that began first ends last, when as much was written again as it had seen.
    #[test]
    fn a_sync_that_ends_late_covers_nothing_newer() {
        let memory = OpenTable::create_memory().expect("memory");
        let table = OpenTable::map(memory.try_clone().expect("clone")).expect("map");
        table.record(&record(1, &[]));
        table.mark_dirty(1);
        let late = table.unsynced(1);
        table.mark_clean(&table.unsynced(1));
        assert!(table.unsynced(1).0.is_empty());
        table.mark_dirty(1);
        table.mark_clean(&late);
        assert!(!table.unsynced(1).0.is_empty());
        // Numbers begin anew at some time.
        let slot = table.slot(1);
        slot.written.store(NUMBER, Ordering::Release);
        table.set_synced(1, NUMBER - 1);
        let before = table.unsynced(1);
        table.mark_dirty(1);
        table.mark_clean(&before);
        assert_eq!((table.writes_of(1), table.unsynced(1).0.len()), ((0, NUMBER), 1));
        let table = next(table, &memory);
        assert!(table.is_lost(1));
    }

    /// Memory of some other kind would be taken for a table.
    #[test]
    fn a_memory_file_of_another_size_is_refused() {
        let memory = memfd_create("x", MemfdFlags::CLOEXEC).expect("memory");
        assert!(OpenTable::map(memory).is_err());
    }
}
