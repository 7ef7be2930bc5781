//! The namespace as a client sees it: sessions and slots, calls to partitions, the operations of a volume.
pub(crate) mod call;
pub(crate) mod delegations;
pub(crate) mod holds;
pub(crate) mod keep_alive;
pub(crate) mod lease;
pub(crate) mod path;
pub(crate) mod route;
pub(crate) mod session;
mod shards;
pub(crate) mod soft;
mod stale;
pub mod volume;
