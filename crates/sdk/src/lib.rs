//! Cairn for programs: a volume by paths, with blocking calls and types of its own. Under C, Python and whatever comes
//! next.
//!
//! What files and directories do is what they do on a mount ([`cairn_vfs`]): write-back, close-to-open, permissions of
//! the process. Two things are stricter, since no kernel is in between: a path is always looked up at the servers, so
//! what another program was told to be done is seen, and nothing is kept of files that are closed.
//!
//! Invariant: after fork(2) a child never uses, and never drops, what its parent's threads work with ([`of_process`]).
//! Not here: the C interface (`libcairn`), rules of the namespace (`meta-core`), how bytes are stored (`client`).
// Futures of a walk along a path are nested deeper than the default allows.
#![recursion_limit = "256"]

mod directory;
mod error;
mod fence;
mod file;
mod key;
mod live;
mod metadata;
mod of_process;
mod options;
mod path;
mod places;
mod rename;
#[cfg(test)]
mod tests;
mod trees;
mod volume;

pub use directory::{DirEntry, DirPage, Directory};
pub use error::{Error, Result};
pub use file::File;
pub use key::{Key, OwnKey};
pub use metadata::{FileKind, Metadata, SetMetadata, SetTime, Space};
pub use options::{ConnectOptions, OpenOptions};
pub use places::{Host, Place};
pub use trees::Quota;
pub use volume::{Rename, Volume};
