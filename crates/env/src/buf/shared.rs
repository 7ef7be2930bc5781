//! [`SharedBuf`]: read-only bytes with a reference-counted owner; clones and sub-ranges cost no copy.
//!
//! Invariant: the viewed bytes lie in memory that `owner` keeps alive and unchanged. Not here: writing (freeze an
//! [`AlignedBuf`](super::AlignedBuf) when it is complete).

use std::fmt;
use std::ops::{Bound, Deref, RangeBounds};
use std::sync::Arc;

/// A cheaply cloneable view of immutable bytes. Several sends, and a retry, can hold the same payload.
#[derive(Clone)]
pub struct SharedBuf {
    start: *const u8,
    len: usize,
    /// Keeps the bytes alive; `None` for static ones.
    owner: Option<Arc<dyn Send + Sync>>,
}

// SAFETY: the bytes are immutable while any view exists and the owner is Send + Sync.
unsafe impl Send for SharedBuf {}
// SAFETY: as above; views only read.
unsafe impl Sync for SharedBuf {}

impl SharedBuf {
    /// No bytes.
    pub const fn empty() -> Self {
        Self::from_static(&[])
    }

    /// A view of bytes that live for ever.
    pub const fn from_static(bytes: &'static [u8]) -> Self {
        Self { start: bytes.as_ptr(), len: bytes.len(), owner: None }
    }

    /// Takes over any owner of bytes (`AlignedBuf`, `Vec<u8>`, a reference-counted byte type, a mapping) without
    /// copying them. The owner must return the same bytes from `as_ref` for as long as it lives.
    pub fn from_owner<T: AsRef<[u8]> + Send + Sync + 'static>(owner: T) -> Self {
        let owner = Arc::new(owner);
        let bytes: &[u8] = (*owner).as_ref();
        let (start, len) = (bytes.as_ptr(), bytes.len());
        Self { start, len, owner: Some(owner) }
    }

    /// Number of bytes viewed.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no bytes are viewed.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A view of a part, sharing the owner.
    ///
    /// # Panics
    /// When the range is not within this view.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Self {
        let from = match range.start_bound() {
            Bound::Included(&n) => n,
            Bound::Excluded(&n) => n + 1,
            Bound::Unbounded => 0,
        };
        let to = match range.end_bound() {
            Bound::Included(&n) => n + 1,
            Bound::Excluded(&n) => n,
            Bound::Unbounded => self.len,
        };
        let part = &self[from..to];
        Self { start: part.as_ptr(), len: part.len(), owner: self.owner.clone() }
    }

    /// Cuts the first `count` bytes off and returns them; this view keeps the rest.
    ///
    /// # Panics
    /// When fewer bytes are viewed.
    pub fn split_to(&mut self, count: usize) -> Self {
        let head = self.slice(..count);
        let rest = &self[count..];
        (self.start, self.len) = (rest.as_ptr(), rest.len());
        head
    }
}

impl Deref for SharedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `start` and `len` came from a slice inside memory that `owner` (or 'static) keeps alive.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

impl AsRef<[u8]> for SharedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Default for SharedBuf {
    fn default() -> Self {
        Self::empty()
    }
}

impl From<super::AlignedBuf> for SharedBuf {
    fn from(buf: super::AlignedBuf) -> Self {
        buf.freeze()
    }
}

impl From<Vec<u8>> for SharedBuf {
    fn from(bytes: Vec<u8>) -> Self {
        Self::from_owner(bytes)
    }
}

impl PartialEq for SharedBuf {
    fn eq(&self, other: &Self) -> bool {
        self[..] == other[..]
    }
}

impl Eq for SharedBuf {}

impl fmt::Debug for SharedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedBuf").field("len", &self.len).finish()
    }
}
