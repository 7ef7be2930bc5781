//! Values of the key space, as they stand in memory and in checkpoints: compact, versioned, golden-tested.
//!
//! Every value starts with a byte whose upper half is the version of its encoding. Decoding checks everything and gives
//! `None` for bytes that no version wrote. All numbers of varying length are base-128 (as in protobuf).
mod append_record;
mod delegation;
mod dentry;
mod extent;
mod free_record;
mod hold;
mod inode;
mod kept;
mod lend;
mod lock;
mod quota;
mod schedule;
mod share;
mod snapshot_record;
mod tx_lock;
pub(crate) mod varint;

pub use append_record::AppendRecord;
pub use delegation::{DelegatedIds, DelegationRecord};
pub use dentry::Dentry;
pub use extent::Extent;
pub use free_record::FreeRecord;
pub use hold::Hold;
pub use inode::{Inode, NodeType, OverwriteLease, Volatile};
pub use kept::KeptRecord;
pub use lend::{BoundRecord, LentRecord, SettingRecord};
pub use lock::{LOCK_END, LockRange};
pub use quota::QuotaRecord;
pub(crate) use schedule::{decode_rules, encode_rules};
pub use share::ShareRecord;
pub use snapshot_record::{SnapshotRecord, SnapshotState};
pub use tx_lock::TxLock;
pub(crate) use varint::Cursor;

#[cfg(test)]
mod tests;
