//! The namespace of a meta partition: inodes, names, extents, sessions. A pure state machine of logged operations.
//!
//! [`Namespace::apply`] executes one logged operation, [`Namespace::read`] answers a read. Requests are the protobuf
//! bytes as they came over the wire, answers are written as protobuf bytes. All state lives in one ordered key space
//! (a [`cairn_tree::Tree`], see [`key`]) and in a small table of sessions, so a snapshot is O(1).
//!
//! Invariants owned by this crate ([`Namespace::check_invariants`]): an operation is executed whole or not at all;
//! the same log gives the same bytes on every replica (no clock, no randomness: times are in the log, inode ids come
//! from a counter); a request of (session, slot, sequence) is executed once; nlink is the number of names (of a
//! directory: 2 + subdirectories); an inode without a name is held open or on its way to being reclaimed; extents of a
//! file never overlap; every chunk block that no extent of its file names any more has a free record;
//! extents are named by the session that wrote them, and not after its end.
//!
//! What it does not do: no leases' clock ([`lease`] is told the time), no network, no files, no threads. Who leads and
//! what is durable is decided by `raft-host`; `meta` serves this crate over RPC.

mod acl;
mod append_turns;
mod appending;
mod at_snapshot;
mod births;
mod block_set;
mod builder;
mod check;
mod check_delegations;
mod check_found;
mod check_snapshots;
mod compaction;
mod counters;
mod cut;
mod cut_across;
mod dead;
mod defer;
mod delegation;
pub mod encoding;
mod error;
mod extent_map;
mod find_paths;
mod fragments;
mod fsck;
mod fullness;
#[doc(hidden)]
pub mod fuzz;
mod garbage;
mod gate;
mod inode_table;
mod kept;
pub mod key;
mod layers;
pub mod lease;
mod lend;
mod lend_plan;
pub mod limits;
mod list_changed;
mod lives;
mod locks;
mod mend;
mod message;
mod mount_part;
mod named;
mod names_of;
mod namespace;
mod ops;
mod parts_elsewhere;
mod permission;
mod presence;
mod quota;
mod range;
mod review;
mod run_item;
mod schedule;
mod session;
mod shard_packs;
mod shards;
mod share_check;
mod shares;
mod snapshot;
mod snapshots;
mod staged;
mod stripe_set;
mod trash;
mod tx;
mod tx_guests;
mod view;
mod volatile;
mod waiting;
mod whole_shards;
mod writer_session;

pub use append_turns::{AppendTurns, NO_TURN, TurnState};
pub use appending::{APPENDING_LEVEL, Appending};
pub use builder::{NamespaceBuilder, RestoreError};
pub use check::Violation;
pub use compaction::{PackNames, PackUse, Packs, PlannedPack, is_mostly_dead};
pub use counters::Counters;
pub use cut_across::SEVERAL_LEVEL;
pub use dead::Reclaimable;
pub use defer::Deaths;
pub use delegation::DELEGATION_LEVEL;
pub use encoding::{BoundRecord, DelegatedIds, DelegationRecord, FreeRecord, KeptRecord, LentRecord, TxLock};
pub use extent_map::WHOLE_SHARDS_LEVEL;
pub use find_paths::{PathFinder, WayUp};
pub use fragments::{FileFragments, FragmentScan};
pub use fsck::{FINDINGS_MAX, Finding, Fsck, FsckReport, Mend};
pub use fullness::{FULLNESS_LEVEL, Fullness};
pub use garbage::{GARBAGE_RANGES_MAX, GarbageRange, Suspects};
pub use gate::{Gate, WAITING_BYTES_MAX, WAITING_MAX};
pub use lend::{Amounts, AtLimit, LEND_LEVEL};
pub use lend_plan::{Asker, Lender, recall};
pub use mend::{
    LOST_AND_FOUND, MEND_ALL_LEVEL, MEND_ELSEWHERE_LEVEL, MEND_ITEMS_MAX, found_name, mend_elsewhere, mend_found,
    mend_item, mend_name, mend_place,
};
pub use named::{Named, NamedScan};
pub use names_of::{NameScan, Names};
pub use namespace::{AppliedAt, Namespace, NamespaceConfig};
pub use presence::{Copy, Presence, Shortage};
pub use review::{Look, Review, SUSPECTS_MAX, Suspicion};
pub use run_item::{Item, may_be_item};
pub use schedule::{DueSnapshot, Period, Rule, SCHEDULE_LEVEL};
pub use session::SessionState;
pub use shard_packs::{PlannedShards, ShardChunk, ShardPacks};
pub use shards::HUGE;
pub use snapshot::{NamespaceSnapshot, SnapshotPages};
pub use snapshots::{DIRECTORY_LEVEL, LAPSED_NS, SNAPSHOT_LEVEL, SNAPSHOTS_MAX, SnapshotInfo};
pub use staged::StagedFile;
pub use trash::TRASH;
pub use tx::{MOVES, Outcome, TxId};
pub use tx_guests::TxWants;
pub use view::SNAPSHOTS_NAME;
pub use volatile::{VolatileFile, VolatilePart};
