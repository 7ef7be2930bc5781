//! Decisions of a member of a placement group about its chunks: pure functions and small state machines, no I/O.
//!
//! The data service asks here and carries out. Each file owns one rule of the data path: what an append may do
//! ([`append`]), who may ask whom under which epoch ([`fence`]), which index comes next ([`indices`]), how much of a
//! chunk is durable ([`durability`]), what a restart makes of journal and files ([`replay`]), what a syncing member
//! lacks ([`catch_up`]), what a free frees ([`punch`]), what members compare of their lists ([`list_digest`]), what is
//! different in erasure groups ([`striped`], [`shard_catch_up`], [`row_decode`], [`row_search`]), overwrites in place
//! ([`overwrite`], [`overwrite_requests`], [`lease_fence`]).
pub mod append;
pub mod catch_up;
pub mod durability;
pub mod fence;
pub mod indices;
pub mod lease_fence;
pub mod list_digest;
pub mod overwrite;
pub mod overwrite_requests;
pub mod punch;
pub mod replay;
pub mod row_decode;
pub mod row_search;
pub mod shard_catch_up;
pub mod striped;
