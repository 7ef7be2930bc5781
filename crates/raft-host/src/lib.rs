//! Hosts Raft groups: the threads around the sans-I/O cores, the shared log, checkpoints, timers, transport.
//!
//! A role implements [`StateMachine`], opens its groups with [`RaftHost::open_group`] and talks to them through
//! [`GroupHandle`]s. Not here: Raft itself (cairn-raft), file formats (cairn-format), what the items mean (the roles).
pub mod book;
mod clocks;
pub mod config;
mod era;
pub mod error;
mod full_nodes;
mod group;
pub mod handle;
pub mod host;
mod jobs;
mod log_memory;
mod mailbox;
pub mod members;
mod named;
mod outbox;
mod owner;
mod pool;
mod recovery;
pub mod rpc_transport;
mod scribe;
pub mod state_machine;
pub mod status;
mod take;
pub mod transport;
mod watch;

pub use book::{GroupMarks, MarkBook};
pub use cairn_raft::{Mark, MemberChange, Members, NotLeader, Shut};
pub use clocks::{Agreed, Clocks};
pub use config::HostConfig;
pub use error::HostError;
pub use full_nodes::FullNodes;
pub use handle::{Frozen, GroupHandle};
pub use host::RaftHost;
pub use owner::told;
pub use rpc_transport::{RaftService, RpcTransport};
pub use state_machine::{AppliedAt, CheckpointWriter, DropReason, Item, Role, StateMachine};
pub use status::GroupStatus;
pub use transport::{FetchError, RaftTransport};

#[cfg(test)]
pub(crate) mod tests;
