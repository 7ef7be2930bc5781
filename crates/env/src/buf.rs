//! Memory for file data: page-aligned buffers, a pool that bounds them, and shared read-only views.
//!
//! [`AlignedBuf`] is what payloads are received into, checksummed in, written to disk from (direct I/O needs the
//! alignment) and forwarded from, so bulk data is copied into memory once. [`BufPool`] hands buffers out and takes
//! them back when they are dropped. [`SharedBuf`] is a frozen buffer (or any other owner of bytes) that several
//! sends hold at the same time.
//!
//! Invariants owned here:
//! - an `AlignedBuf` starts on a [`BUF_ALIGN`] boundary and its capacity is a multiple of it;
//! - all of a buffer's capacity is initialised memory, always (recycled buffers hold stale bytes, never unset ones);
//! - the bytes handed out by a pool plus the ones it keeps idle never exceed its limit;
//! - waiters of a pool are served in the order of their arrival, so a large request is not starved by small ones.
//!
//! Not here: what the bytes mean, checksums, and any I/O.

mod aligned;
mod pool;
mod shared;
#[cfg(test)]
mod tests;

pub use aligned::{AlignedBuf, BUF_ALIGN};
pub use pool::{Acquire, BufError, BufPool, POOL_TRIM_EVERY, POOL_WAITERS_MAX};
pub use shared::SharedBuf;
