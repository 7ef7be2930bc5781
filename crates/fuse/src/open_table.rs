//! Which handles are open, in memory that outlives the process: a shared memory file that the supervisor holds.
//!
//! A worker notes each open and release, and whether data was written since the last sync. The next worker opens the same
//! inodes under the same numbers. Invariants owned here: a slot counts only when its state says so, which is stored last;
//! what a dying process left half written is not taken. Byte order and layout are those of one machine and one boot; the
//! header's version tells workers of other releases.
use cairn_vfs::OpenState;
use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// Handles that can be noted. More can be open; those are lost with their worker.
pub const SLOTS: u32 = 1 << 20;
/// Supplementary groups that are kept.
const GROUPS: usize = 16;
const MAGIC: u32 = 0x4341_4f54;
const VERSION: u32 = 1;

const FREE: u32 = 0;
const LIVE: u32 = 1;

/// One handle in memory; the first slot is the header.
#[repr(C)]
struct Slot {
    state: AtomicU32,
    dirty: AtomicU32,
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
    reserved: u32,
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
}

#[derive(Default)]
struct Index {
    slots: HashMap<u64, u32>,
    free: Vec<u32>,
    /// Slots below this were used at some time.
    used: u32,
    full: bool,
}

/// The table, mapped.
pub struct OpenTable {
    start: *mut Slot,
    index: Mutex<Index>,
    lost: Mutex<HashSet<u64>>,
}

// SAFETY: the mapping is valid until drop; the fields of a slot that change while others look are atomics, and bodies are
// written only by whoever took the slot out of `index`, under its lock.
unsafe impl Send for OpenTable {}
// SAFETY: as above.
unsafe impl Sync for OpenTable {}

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
        let (index, lost) = (Mutex::new(Index::default()), Mutex::new(HashSet::new()));
        let table = OpenTable { start: start.cast(), index, lost };
        let header = table.slot(0);
        match (header.state.load(Ordering::Acquire), header.dirty.load(Ordering::Acquire)) {
            (MAGIC, VERSION) => {}
            (FREE, 0) => {
                header.dirty.store(VERSION, Ordering::Release);
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
    /// Number of slots that any worker used, kept in the header's body so that loading touches no others.
    fn set_used(&self, used: u32) {
        // SAFETY: the header's body is written only here, under the lock of `index`.
        unsafe { (&raw mut (*self.start).body.reserved).write_volatile(used) };
    }
    fn used(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (&raw const (*self.start).body.reserved).read_volatile() }.clamp(1, SLOTS)
    }

    /// Notes an open handle.
    pub fn record(&self, record: &Record<'_>) {
        let mut groups = [0; GROUPS];
        let group_count = record.groups.len().min(GROUPS);
        groups[..group_count].copy_from_slice(&record.groups[..group_count]);
        let body = Body {
            handle: record.handle,
            ino: record.ino,
            kernel_version: 0,
            flags: record.flags,
            directory: u32::from(record.directory),
            uid: record.uid,
            gid: record.gid,
            group_count: group_count as u32,
            groups,
            reserved: 0,
        };
        let mut index = self.index.lock();
        let number = match index.free.pop() {
            Some(number) => number,
            None if index.used < SLOTS => {
                index.used += 1;
                self.set_used(index.used);
                index.used - 1
            }
            None => {
                if !std::mem::replace(&mut index.full, true) {
                    tracing::warn!(SLOTS, "more files are open than can be handed to the mount's next process");
                }
                return;
            }
        };
        index.slots.insert(record.handle, number);
        self.write(number, body, false);
    }
    fn write(&self, number: u32, body: Body, dirty: bool) {
        let slot = self.slot(number);
        slot.state.store(FREE, Ordering::Release);
        fence(Ordering::SeqCst);
        // SAFETY: the slot was just taken under the lock of `index`; nobody else writes its body.
        unsafe { (&raw const slot.body).cast_mut().write_volatile(body) };
        slot.dirty.store(u32::from(dirty), Ordering::Release);
        slot.state.store(LIVE, Ordering::Release);
    }
    /// Notes that a handle is closed.
    pub fn forget(&self, handle: u64) {
        let mut index = self.index.lock();
        if let Some(number) = index.slots.remove(&handle) {
            self.slot(number).state.store(FREE, Ordering::Release);
            index.free.push(number);
        }
        drop(index);
        self.lost.lock().remove(&handle);
    }
    /// Data was written through it.
    pub fn mark_dirty(&self, handle: u64) {
        self.set_dirty(handle, 1);
    }
    /// All that was written is synced.
    pub fn mark_clean(&self, handle: u64) {
        self.set_dirty(handle, 0);
    }
    fn set_dirty(&self, handle: u64, dirty: u32) {
        let index = self.index.lock();
        if let Some(number) = index.slots.get(&handle) {
            let slot = self.slot(*number);
            if slot.dirty.load(Ordering::Relaxed) != dirty {
                slot.dirty.store(dirty, Ordering::Release);
            }
        }
    }
    /// Handles that a worker left, with whether their data may be lost. They stay noted.
    pub fn load(&self) -> Vec<(OpenState, bool)> {
        let mut index = self.index.lock();
        *index = Index { used: self.used(), ..Index::default() };
        let mut found = Vec::new();
        for number in 1..index.used {
            let slot = self.slot(number);
            if slot.state.load(Ordering::Acquire) != LIVE {
                index.free.push(number);
                continue;
            }
            // SAFETY: any bytes are a valid body.
            let body = unsafe { (&raw const slot.body).read_volatile() };
            let groups = body.groups[..(body.group_count as usize).min(GROUPS)].to_vec();
            let state = OpenState {
                handle: body.handle,
                ino: body.ino,
                flags: body.flags,
                directory: body.directory != 0,
                uid: body.uid,
                gid: body.gid,
                groups,
                kernel_version: body.kernel_version,
            };
            index.slots.insert(body.handle, number);
            found.push((state, slot.dirty.load(Ordering::Acquire) != 0));
        }
        found
    }
    /// Before handing over: what `vfs` knows of each handle, all of it synced or not.
    pub fn refine(&self, states: &[OpenState], synced: bool) {
        let index = self.index.lock();
        for state in states {
            let Some(number) = index.slots.get(&state.handle) else { continue };
            let slot = self.slot(*number);
            // SAFETY: the slot is taken, and bodies change under the lock of `index` alone.
            let mut body = unsafe { (&raw const slot.body).read_volatile() };
            body.kernel_version = state.kernel_version;
            body.flags = state.flags;
            let dirty = !synced && slot.dirty.load(Ordering::Acquire) != 0;
            self.write(*number, body, dirty);
        }
    }
    /// The handle's data of before may be lost; its next sync says so.
    pub fn set_lost(&self, handle: u64) {
        self.lost.lock().insert(handle);
    }
    /// Whether a loss has to be told; only once.
    pub fn take_lost(&self, handle: u64) -> bool {
        self.lost.lock().remove(&handle)
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
        Record { handle, ino: handle * 10, flags: libc::O_RDWR, directory: false, uid: 7, gid: 8, groups }
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
        first.mark_clean(3);
        first.record(&record(4, &[]));
        drop(first);
        let second = OpenTable::map(memory).expect("map again");
        let mut found = second.load();
        found.sort_by_key(|(state, _)| state.handle);
        let handles: Vec<(u64, bool)> = found.iter().map(|(state, dirty)| (state.handle, *dirty)).collect();
        assert_eq!(handles, [(2, true), (3, false), (4, false)]);
        assert_eq!(found[0].0.groups, (0..16).collect::<Vec<u32>>());
        assert_eq!((found[1].0.ino, found[1].0.uid, found[1].0.flags), (30, 7, libc::O_RDWR));
        second.forget(2);
        assert_eq!(second.count(), 2);
    }

    /// A program would be told of a loss with every sync, or never.
    #[test]
    fn a_loss_is_told_once() {
        let table = OpenTable::map(OpenTable::create_memory().expect("memory")).expect("map");
        table.set_lost(9);
        assert!(table.take_lost(9));
        assert!(!table.take_lost(9));
    }

    /// Memory of some other kind would be taken for a table.
    #[test]
    fn a_memory_file_of_another_size_is_refused() {
        let memory = memfd_create("x", MemfdFlags::CLOEXEC).expect("memory");
        assert!(OpenTable::map(memory).is_err());
    }
}
