//! [`AlignedBuf`]: one growable-to-capacity, page-aligned buffer.
//!
//! Invariants: the start is aligned to [`BUF_ALIGN`], the capacity never changes, `len <= capacity`, and the whole
//! capacity is initialised. The memory of a large buffer goes back to the system when it is freed, whatever the
//! allocator keeps. Not here: who bounds the number of buffers (`pool.rs`).

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use super::pool::PoolShared;
use super::shared::SharedBuf;

/// Alignment, in bytes, of every buffer's start and capacity: the page size, and enough for direct I/O on any disk
/// with logical blocks of up to 4 KiB.
pub const BUF_ALIGN: usize = 4096;

/// From this size on memory comes from the system and goes back there: an allocator keeps what it was given, at least
/// what lies below something in use.
const FROM_SYSTEM: usize = 128 << 10;

/// Owned aligned memory without a length; freed on drop. Whole of it is initialised.
pub(super) struct RawBuf {
    start: NonNull<u8>,
    capacity: usize,
}

// SAFETY: a RawBuf is the sole owner of its allocation; nothing in it is tied to a thread.
unsafe impl Send for RawBuf {}
// SAFETY: shared access only reads plain bytes.
unsafe impl Sync for RawBuf {}

impl RawBuf {
    /// Allocates zeroed memory. `capacity` must be a positive multiple of [`BUF_ALIGN`].
    pub(super) fn new(capacity: usize) -> Self {
        let layout = Self::layout(capacity);
        if capacity >= FROM_SYSTEM {
            let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            // SAFETY: a new private mapping at a place of the kernel's choice touches no memory that is in use.
            let raw = unsafe { libc::mmap(std::ptr::null_mut(), capacity, rights, flags, -1, 0) };
            let start = if raw == libc::MAP_FAILED { None } else { NonNull::new(raw.cast()) };
            let Some(start) = start else { handle_alloc_error(layout) };
            return Self { start, capacity };
        }
        // SAFETY: `layout` has a non-zero size (checked in `layout`).
        let raw = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(raw) else { handle_alloc_error(layout) };
        Self { start, capacity }
    }

    fn layout(capacity: usize) -> Layout {
        assert!(
            capacity > 0 && capacity.is_multiple_of(BUF_ALIGN),
            "a buffer's capacity must be a positive multiple of {BUF_ALIGN}, not {capacity}"
        );
        Layout::from_size_align(capacity, BUF_ALIGN).expect("rounded capacities of buffers stay far below isize::MAX")
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }
}

impl Drop for RawBuf {
    fn drop(&mut self) {
        if self.capacity >= FROM_SYSTEM {
            // SAFETY: `start` was mapped by `new` with this very length and is unmapped once.
            let failed = unsafe { libc::munmap(self.start.as_ptr().cast(), self.capacity) };
            debug_assert_eq!(failed, 0, "a mapping of our own can be unmapped");
            return;
        }
        // SAFETY: `start` was allocated by `new` with this very layout and is freed once.
        unsafe { dealloc(self.start.as_ptr(), Self::layout(self.capacity)) }
    }
}

/// A page-aligned buffer with a fixed capacity and a length, like a `Vec<u8>` that never reallocates.
///
/// Comes from a [`BufPool`](super::BufPool) (and goes back to it when dropped) or from [`AlignedBuf::unpooled`].
/// Dereferences to the first `len()` bytes.
pub struct AlignedBuf {
    /// `None` only while being dropped.
    raw: Option<RawBuf>,
    len: usize,
    pool: Option<Arc<PoolShared>>,
}

impl AlignedBuf {
    pub(super) fn from_pool(raw: RawBuf, pool: Arc<PoolShared>) -> Self {
        Self { raw: Some(raw), len: 0, pool: Some(pool) }
    }

    /// An empty buffer outside any pool, for tools, tests and start-up code. `capacity` is rounded up to
    /// [`BUF_ALIGN`].
    pub fn unpooled(capacity: usize) -> Self {
        let rounded = capacity.max(1).next_multiple_of(BUF_ALIGN);
        Self { raw: Some(RawBuf::new(rounded)), len: 0, pool: None }
    }

    fn raw(&self) -> &RawBuf {
        self.raw.as_ref().expect("the memory leaves only in drop")
    }

    /// Bytes that fit, used or not.
    pub fn capacity(&self) -> usize {
        self.raw().capacity
    }

    /// Bytes in use.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no byte is in use.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that can still be added.
    pub fn remaining(&self) -> usize {
        self.capacity() - self.len
    }

    fn whole(&self) -> &[u8] {
        let raw = self.raw();
        // SAFETY: `start` is valid for `capacity` initialised bytes for the life of `self`.
        unsafe { std::slice::from_raw_parts(raw.start.as_ptr(), raw.capacity) }
    }

    fn whole_mut(&mut self) -> &mut [u8] {
        let raw = self.raw();
        let (start, capacity) = (raw.start.as_ptr(), raw.capacity);
        // SAFETY: as in `whole`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(start, capacity) }
    }

    /// The part behind `len()`, to read into; follow with [`advance`](Self::advance). Holds zeros or stale bytes.
    pub fn spare_mut(&mut self) -> &mut [u8] {
        let len = self.len;
        &mut self.whole_mut()[len..]
    }

    /// Declares the next `count` spare bytes as filled.
    ///
    /// # Panics
    /// When `count` exceeds [`remaining`](Self::remaining).
    pub fn advance(&mut self, count: usize) {
        assert!(count <= self.remaining(), "advance by {count} in a buffer with {} spare bytes", self.remaining());
        self.len += count;
    }

    /// Appends a copy of `bytes`.
    ///
    /// # Panics
    /// When they do not fit; check [`remaining`](Self::remaining) first where the length is not one's own.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.remaining(), "{} bytes do not fit into {} spare", bytes.len(), self.remaining());
        self.spare_mut()[..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Sets the length; bytes that come into use are zeroed.
    ///
    /// # Panics
    /// When `len` exceeds the capacity.
    pub fn resize(&mut self, len: usize) {
        assert!(len <= self.capacity(), "length {len} in a buffer of {}", self.capacity());
        let old = self.len;
        if len > old {
            self.whole_mut()[old..len].fill(0);
        }
        self.len = len;
    }

    /// Shortens to at most `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Empties the buffer and keeps its memory.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Appends zeros until the length is a multiple of [`BUF_ALIGN`] (the capacity always allows it), for direct
    /// writes of a last partial block. Returns the number of zeros added.
    pub fn pad_to_align(&mut self) -> usize {
        let old = self.len;
        self.resize(old.next_multiple_of(BUF_ALIGN));
        self.len - old
    }

    /// Makes it read-only and cheap to clone, without a copy.
    pub fn freeze(self) -> SharedBuf {
        SharedBuf::from_owner(self)
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if let (Some(pool), Some(raw)) = (self.pool.take(), self.raw.take()) {
            pool.give_back(raw);
        }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.whole()[..self.len]
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        let len = self.len;
        &mut self.whole_mut()[..len]
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for AlignedBuf {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlignedBuf").field("len", &self.len).field("capacity", &self.capacity()).finish()
    }
}
