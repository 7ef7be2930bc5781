//! Raft groups without I/O: [`GroupCore`] around TiKV's `raft` crate. Layer 2: no clock, no randomness, no threads.
//!
//! Inputs (messages of peers, ticks, proposals, completions of syncs) go in with the present time, outputs (what to
//! persist, send, apply) come out in the order in which they must be carried out. The same inputs give the same
//! outputs, election timeouts included.
//!
//! **Invariant: bytes of peers or of the disk never reach the `raft` crate's own codec**, and messages that would make
//! it panic are refused before it sees them ([`validate`]). Not here: files, sockets, state machines (raft-host).
pub mod batch;
pub mod config;
pub mod core;
pub mod entry;
pub mod fresh;
pub mod io;
pub mod lease;
pub mod log_clock;
pub mod log_store;
pub mod marks;
pub mod members;
pub mod translate;
pub mod validate;

pub use batch::{BatchBuilder, BatchError, BatchFrame};
pub use config::CoreConfig;
pub use core::sleeping::Slumber;
pub use core::{CoreStatus, GroupCore};
pub use entry::{ENTRY_CONFIG, ENTRY_NORMAL, HardState, LogEntry, Position};
pub use io::{Input, NotLeader, Output, Refused, Restored, RoleChange, SnapshotMeta};
pub use log_clock::LogClock;
pub use marks::{Mark, Shut, Teller, Testimony};
pub use members::{MemberChange, Members};
