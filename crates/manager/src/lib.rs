//! The manager as a server: the replicated state machine of `cairn-manager-core` in Raft group 0, behind RPC.
//!
//! The leader answers requests, watches the nodes, and tells members of placement groups new epochs; other members
//! answer `NotLeader` with a hint. Heartbeat data is in the leader's memory only ([`leading`]); what has to survive
//! goes through the log ([`machine`]).
//!
//! Not here: rules of states and epochs (manager-core), Raft (raft-host), the node's own registration (node-agent).
pub mod config;
mod doubts;
mod duties;
pub mod error;
mod found_full;
mod group;
mod leading;
mod machine;
mod manager;
mod memory;
mod metrics;
mod ops;
mod probe;
mod progress;
mod push;
mod rights;
mod rooms;
pub mod server;
mod told_keys;

pub use config::{Bootstrap, ManagerConfig};
pub use error::ManagerError;
pub use server::{ManagerParts, ManagerServer};

#[cfg(test)]
mod tests;
