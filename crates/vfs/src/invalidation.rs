//! What the kernel's caches have to forget, told to whoever mounts.
//!
//! Best effort: what other mounts change is seen when times to live end, at opens, and when this mount happens to
//! notice. Bound: [`QUEUE_MAX`]; what does not fit is left to the times to live.
use tokio::sync::mpsc;

/// Invalidations that wait for the mount.
pub const QUEUE_MAX: usize = 4096;

/// Something that the kernel may have cached and that is old.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Invalidation {
    /// Attributes, and pages of the range (`length` 0: to the end).
    Inode {
        ino: u64,
        offset: u64,
        length: u64,
    },
    Entry {
        parent: u64,
        name: Vec<u8>,
    },
}

/// The receiving end.
pub type Invalidations = mpsc::Receiver<Invalidation>;
