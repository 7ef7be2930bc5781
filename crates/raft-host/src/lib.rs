//! Hosts Raft groups: owner threads around the sans-I/O cores, the shared log, checkpoints, timers, transport.
//!
//! A role implements [`StateMachine`] and talks to its group through a [`GroupHandle`].
pub mod state_machine;
pub mod transport;

pub use state_machine::{AppliedAt, CheckpointWriter, DropReason, Item, Role, StateMachine};
pub use transport::{FetchError, RaftTransport};
