//! The manager's state machine. Layer 2: no I/O, no clock, no randomness; `apply` is deterministic.
//!
//! [`State`] is what the manager's Raft group replicates: cluster id, nodes, disks, volumes, meta partitions, placement
//! groups with their epochs and member states, stripe groups, session ids, configuration. [`Command`]s change it;
//! [`State::map`] answers the cluster map or what changed since a version. [`checkpoint`] writes and reads it whole.
//! Beside it are pure helpers of the leader: [`Liveness`] (whom to probe, whom to mark down), [`Slowness`],
//! [`Grayness`], [`leaders`] (whose leadership goes elsewhere), [`plan`] (which groups to make), [`partition_members`]
//! (who gets partitions), [`repair`] and [`moves`] (whose places others get), [`problems`] (what is wrong, in words).
//! Their memory is the leader's alone and is lost with it.
//!
//! Not here: RPC, timers, probes and pushes (the `manager` crate); who may ask what.
pub mod apply;
pub mod change;
pub mod checkpoint;
pub mod command;
pub mod config;
pub mod events;
pub mod first_volume;
pub mod fresh;
pub mod generation;
pub mod gray;
pub mod invariants;
pub mod items;
pub mod job;
pub mod leaders;
pub mod liveness;
pub mod maintenance;
pub mod map;
pub mod marks;
pub mod member_change;
pub mod member_table;
pub mod more_partitions;
pub mod moves;
pub mod partition_members;
pub mod pg;
pub mod plan;
pub mod problems;
pub mod rebuild;
mod record;
pub mod repair;
pub mod restored;
pub mod slowness;
pub mod soft;
pub mod state;
pub mod stripe;
pub mod take_up;
pub mod volume_settings;
pub mod wording;

pub use apply::{Applied, Outcome, Registered};
pub use command::Command;
pub use config::{Config, Key};
pub use gray::{Gray, Grayness};
pub use items::{DISKS_MAX, Disk, DiskState, Node, Partition, Roles, Volume};
pub use liveness::Liveness;
pub use maintenance::{Drain, Hibernation, Target};
pub use map::Scope;
pub use pg::{Former, Joining, Member, Older, Pg};
pub use slowness::Slowness;
pub use soft::Soft;
pub use state::State;
