//! [`Memory`]: memory of the threads of a run, for a program that makes it its allocator. They never allocate at the
//! same time, so there is nothing to lock, and addresses repeat with the run; what was given back is used again at
//! once.
//!
//! Invariant: a piece that lies in the region belongs to it, whoever gives it back. Only the thread that runs, or one
//! that is seen off by it, touches the lists. Everybody else, and what is too large, gets the system's memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::ptr::{null_mut, without_provenance_mut};

use crate::world::managed;

/// Addresses that a run uses, far from all others; memory comes with the first use of a page.
const REGION: usize = 1 << 45;
const REGION_BYTES: usize = 64 << 30;
/// Sizes up to this have a list for each multiple of [`STEP`].
const SMALL_MAX: usize = 1024;
const STEP: usize = 16;
/// Larger ones have four for each doubling, up to this one.
const LARGE_MAX: usize = 256 << 20;
const LISTS: usize = SMALL_MAX / STEP + 4 * (LARGE_MAX / SMALL_MAX).ilog2() as usize;
/// No piece is aligned to more.
const ALIGN_MAX: usize = 4096;

/// See the module.
#[derive(Debug)]
pub struct Memory;

struct Heap {
    base: usize,
    /// From here on nothing was given out yet.
    fresh: usize,
    end: usize,
    /// Pieces that were given back, each of which begins with the address of the next one.
    free: [*mut u8; LISTS],
}

struct Holder(UnsafeCell<Heap>);
// SAFETY: only one thread enters at a time, by the invariant of the module.
unsafe impl Sync for Holder {}

static HEAP: Holder = Holder(UnsafeCell::new(Heap { base: 0, fresh: 0, end: 0, free: [null_mut(); LISTS] }));

/// Reserves the region. Where that fails everybody gets the system's memory.
pub(crate) fn reserve() {
    let (access, kind) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
    // SAFETY: new addresses, which nothing else uses: the kernel takes others where these are not free.
    let base = unsafe { libc::mmap(without_provenance_mut(REGION), REGION_BYTES, access, kind, -1, 0) };
    if base == libc::MAP_FAILED {
        return;
    }
    // SAFETY: the region of above. A refusal leaves small pages.
    unsafe { libc::madvise(base, REGION_BYTES, libc::MADV_HUGEPAGE) };
    // SAFETY: the run has not begun, so nobody else is there.
    let heap = unsafe { &mut *HEAP.0.get() };
    (heap.base, heap.fresh, heap.end) = (base as usize, base as usize, base as usize + REGION_BYTES);
}

/// The list of a layout, and the size of its pieces.
fn list(layout: Layout) -> Option<(usize, usize)> {
    let (align, size) = (layout.align().max(STEP), layout.size().max(1));
    if align > ALIGN_MAX || size > LARGE_MAX {
        return None;
    }
    let size = size.next_multiple_of(align);
    if size <= SMALL_MAX {
        return Some((size / STEP - 1, size));
    }
    let below = (size - 1).ilog2();
    let step = 1 << (below - 2);
    let mut steps = (size - (1 << below)).div_ceil(step);
    let bytes = |steps: usize| (1 << below) + steps * step;
    while bytes(steps) % align != 0 {
        steps += 1;
    }
    let list = SMALL_MAX / STEP + 4 * (below - SMALL_MAX.ilog2()) as usize + steps - 1;
    (list < LISTS).then(|| (list, bytes(steps)))
}

impl Heap {
    /// A piece, and whether it was never used before, so that it has zeros.
    fn take(&mut self, list: usize, bytes: usize) -> Option<(*mut u8, bool)> {
        let piece = self.free[list];
        if !piece.is_null() {
            // SAFETY: a piece of the list begins with the address of the next one.
            self.free[list] = unsafe { piece.cast::<*mut u8>().read() };
            return Some((piece, false));
        }
        // Whatever divides the size: an alignment that was asked for does.
        let at = self.fresh.next_multiple_of(1 << bytes.trailing_zeros().min(ALIGN_MAX.ilog2()));
        if at + bytes > self.end {
            return None;
        }
        self.fresh = at + bytes;
        Some((at as *mut u8, true))
    }

    fn give_back(&mut self, piece: *mut u8, list: usize) {
        // SAFETY: the piece is at least so large and aligned, and nobody's any more.
        unsafe { piece.cast::<*mut u8>().write(self.free[list]) };
        self.free[list] = piece;
    }
}

fn is_of_region(piece: *mut u8) -> bool {
    // SAFETY: bounds change only before the run.
    let heap = unsafe { &*HEAP.0.get() };
    (heap.base..heap.end).contains(&(piece as usize))
}

fn take(layout: Layout) -> Option<(*mut u8, bool)> {
    let (list, bytes) = list(layout).filter(|_| managed())?;
    // SAFETY: the calling thread is the one that runs.
    unsafe { &mut *HEAP.0.get() }.take(list, bytes)
}

// SAFETY: a piece is as large and aligned as its layout wants and is in nobody else's hands: the lists of the region
// have what was given back with the same layout's list, and what is not of the region is the system's.
unsafe impl GlobalAlloc for Memory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match take(layout) {
            Some((piece, _)) => piece,
            // SAFETY: the caller's contract.
            None => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match take(layout) {
            Some((piece, true)) => piece,
            Some((piece, false)) => {
                // SAFETY: it is at least so large.
                unsafe { piece.write_bytes(0, layout.size()) };
                piece
            }
            // SAFETY: the caller's contract.
            None => unsafe { System.alloc_zeroed(layout) },
        }
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        match list(layout) {
            // SAFETY: the calling thread is the one that runs, or is seen off by it.
            Some((list, _)) if is_of_region(piece) => unsafe { &mut *HEAP.0.get() }.give_back(piece, list),
            // SAFETY: the caller's contract.
            _ => unsafe { System.dealloc(piece, layout) },
        }
    }

    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !is_of_region(piece) {
            // SAFETY: the caller's contract.
            return unsafe { System.realloc(piece, layout, size) };
        }
        // SAFETY: the caller's contract: a size that fits a layout with this alignment.
        let other = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        if list(other) == list(layout) {
            return piece;
        }
        // SAFETY: the caller's contract; both pieces are as large as what is copied.
        unsafe {
            let new = self.alloc(other);
            if !new.is_null() {
                new.copy_from_nonoverlapping(piece, size.min(layout.size()));
                self.dealloc(piece, layout);
            }
            new
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A piece would be smaller than what was asked for, or not aligned, or a list's pieces would differ in size.
    #[test]
    fn pieces_fit_what_was_asked_for() {
        let mut sizes = std::collections::BTreeMap::new();
        for align in [1, 8, 16, 64, 512, 4096] {
            for size in (1..3000).chain((3000..70_000).step_by(97)).chain([1 << 20, (5 << 20) + 1, LARGE_MAX]) {
                let layout = Layout::from_size_align(size, align).expect("small");
                let (list, bytes) = list(layout).expect("not too large");
                assert!(bytes >= size && bytes % align == 0 && list < LISTS, "{size} {align}: {bytes}");
                assert_eq!(*sizes.entry(list).or_insert(bytes), bytes, "{size} {align}");
            }
        }
        assert!(list(Layout::from_size_align(LARGE_MAX + 1, 1).expect("small")).is_none());
        assert!(list(Layout::from_size_align(1, 2 * ALIGN_MAX).expect("small")).is_none());
    }
}
