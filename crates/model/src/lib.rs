//! A small POSIX tree in memory that the namespace core is tested against. Slow and plain on purpose.
//!
//! Written from the rules (POSIX, Linux manual pages and fs/namei.c, fs/attr.c), not from the core's code. Nothing is
//! counted along: link counts, sizes of directories and totals are found by looking. Contents are kept byte by byte:
//! where each byte of a file lies. What a removed tree leaves behind goes at once, where the core takes its time.

mod acl;
mod caller;
mod contents;
mod locks;
mod names;
mod node;
mod operation;
mod setattr;
mod state;
mod unnamed;
mod xattr;

pub use acl::{ACCESS, AclEntry, DEFAULT, acl_bytes};
pub use caller::Caller;
pub use contents::Piece;
pub use locks::{LOCK_BYTES, LockOwner, SetLock};
pub use node::{Attributes, Body, Node, Place};
pub use operation::{Create, Operation, Publish, Punch, Reply, Setattr};
pub use state::{Model, Request};

#[cfg(test)]
mod tests;
