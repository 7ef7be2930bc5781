//! POSIX semantics on inode numbers over the client: caches, open files, write-back, read-ahead, locks.
//!
//! Under every mount, and later under the C bindings, S3 and CSI. Inode numbers are Cairn's own. Everything is
//! asynchronous, every call ends by [`VfsOptions::timeout`], and errors are Linux errnos with a text for the log.
//! Dropping a call's future cancels its waiting: reads and lock waits end, while a change that was sent goes on in the
//! background. Not here: the kernel's protocol and mounting (`fuse`), rules of the namespace (`meta-core`), how bytes
//! are stored (`client`).
pub mod asked_ahead;
mod atimes;
mod attr;
mod background;
mod cache;
pub mod caller;
pub mod error;
mod file;
pub mod flags;
pub mod invalidation;
pub mod lock;
mod nameless;
mod ops;
pub mod options;
pub mod state;
pub mod status;
pub mod vfs;
mod walks;

pub use attr::{Attr, Entry, SetAttr, SetTime};
pub use caller::Caller;
pub use error::{Result, VfsError};
pub use flags::OpenFlags;
pub use invalidation::{Invalidation, Invalidations};
pub use lock::{Interrupted, Lock, LockKind, LockRange};
pub use ops::dir::DirItem;
pub use ops::guard::CutOff;
pub use ops::io::Place;
pub use ops::paths::{Listed, ListedPage};
pub use ops::space::Seek;
pub use options::{Atime, LED_TTL_MAX, VfsOptions};
pub use state::OpenState;
pub use status::{Space, VfsStatus};
pub use vfs::{Handle, Opened, ROOT, Vfs};
