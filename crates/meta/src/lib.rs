//! The meta role: meta partitions as Raft groups, served over RPC.
//!
//! [`MetaServer`] implements `cairn_rpc::Service` for the operations 0x04xx (reads, answered inline under the leader's
//! lease) and 0x05xx (mutations, answered once they are in the log and applied), and
//! `cairn_node_agent::Contributor` for registration, heartbeats and the cluster map.
//!
//! Not here: what operations do (meta-core), the log and elections (raft-host), which node has which partition
//! (manager).

mod across;
mod admission;
mod append_turns;
mod appending;
mod begin;
mod change_waits;
mod checkpoint;
mod chunk_lists;
mod compact;
mod compact_shards;
mod config;
mod contributor;
mod defragment;
mod digest;
mod duties;
mod ends;
mod error;
mod file_work;
mod free;
mod fsck;
mod fuzz;
mod garbage;
mod grown;
mod header;
mod keep_alive;
mod leases;
mod list_file;
mod load;
mod lock_waits;
mod machine;
mod memory;
mod metrics;
mod movers;
mod name_lost;
mod old_sessions;
mod openers;
mod opens;
mod partition;
mod places;
mod recall_waits;
mod rights;
mod roster;
mod schedule;
mod seen;
mod server;
mod service;
mod stage;
mod stale;
mod stats;
mod striped;
mod unreferenced;
mod volatile;
mod wanted_delegations;
mod wanted_leases;

pub use config::{MetaConfig, MetaTimings};
pub use digest::StateDigest;
pub use error::MetaError;
#[doc(hidden)]
pub use fuzz::fuzz_requests;
pub use seen::ListTeller;
pub use server::MetaServer;
pub use stats::MetaStats;

#[cfg(test)]
mod tests;
