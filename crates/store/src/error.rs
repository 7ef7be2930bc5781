//! [`StoreError`]: what can go wrong with labels, the list of disks, the write-ahead log and checkpoints, cut by what
//! the caller does.
//!
//! Invariant: every error names the file or directory and, where a person has to act, the next step.

use cairn_env::DiskError;
use cairn_types::{ClusterId, DiskUuid};

/// Why a durable building block failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The disk failed or refused.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// Another process works in the directory.
    #[error(
        "{dir} is in use by {}; stop that process, or give this one another directory",
        .holder.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
    )]
    InUse {
        /// The directory.
        dir: String,
        /// The process that has it.
        holder: Option<u32>,
    },
    /// The directory belongs to another cluster.
    #[error(
        "{dir} belongs to cluster {found}, but this process serves cluster {expected}; give it the directory of its \
         own cluster, or an empty one"
    )]
    OtherCluster {
        /// The directory.
        dir: String,
        /// The cluster in its label.
        found: ClusterId,
        /// The cluster of this process.
        expected: ClusterId,
    },
    /// The label is of another kind (a disk's where a node's is expected, or the other way round).
    #[error("{dir} is labelled as a {found}, but a {expected} is needed; check the configured directories")]
    OtherKind {
        /// The directory.
        dir: String,
        /// What its label says.
        found: &'static str,
        /// What was expected.
        expected: &'static str,
    },
    /// The directory has files but no label.
    #[error(
        "{dir} has no label but is not empty (it holds {example:?}); give an empty directory, or restore its label file"
    )]
    Unlabelled {
        /// The directory.
        dir: String,
        /// A name found in it.
        example: String,
    },
    /// A disk was here, and now the directory is empty.
    #[error(
        "{dir} is empty, but disk {uuid} was here: mount its device and start the node again; only if the disk is lost \
         for good, put replaced_disks = [\"{uuid}\"] under [data] of the configuration, and a new disk is made here"
    )]
    DiskAbsent {
        /// The directory, most likely a mount point.
        dir: String,
        /// The disk that was there last.
        uuid: DiskUuid,
    },
    /// The list of a node's disks is full, or a path is too long for it.
    #[error("{dir} has no room to note the disk {path:?}; a node has up to 1024 disks with paths of up to 4096 bytes")]
    TooManyDisks {
        /// The node's directory.
        dir: String,
        /// The path that is one too many.
        path: String,
    },
    /// Bytes on the disk are not what was written. Data fault: a person or a replica has to help.
    #[error("{file} is corrupt at offset {offset}: {what}")]
    Corrupt {
        /// Directory and file.
        file: String,
        /// Byte offset in the file.
        offset: u64,
        /// What is wrong there.
        what: String,
    },
    /// Written by a newer version of this program.
    #[error("{file} has format version {found}, and this program knows versions up to {known}; use a newer program")]
    Version {
        /// Directory and file.
        file: String,
        /// Version found.
        found: u32,
        /// Newest version known here.
        known: u32,
    },
    /// The log stopped for good after an earlier failure; what was not acknowledged may be lost.
    #[error("the log in {dir} stopped after a failure ({cause}); restart the process once the disk is sound")]
    LogStopped {
        /// The log's directory.
        dir: String,
        /// The first failure.
        cause: String,
    },
    /// A record is longer than the log takes; nothing was queued.
    #[error(
        "the log in {dir} takes records of up to {max} bytes, not of {bytes}; give all nodes of the cluster the same \
         segment size"
    )]
    TooLong {
        /// The log's directory.
        dir: String,
        /// Bytes of the record.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// The log has no records between the checkpoint and its first entry, so state would be lost silently.
    #[error(
        "{dir}: group {group} has a checkpoint of entry {checkpoint}, but its log starts after entry {log}; restore \
         the missing files, or empty the directory and let the node join again"
    )]
    Gap {
        /// The node's directory.
        dir: String,
        /// The Raft group.
        group: u32,
        /// Last entry that the usable checkpoint covers (0: none).
        checkpoint: u64,
        /// Entry before the first one in the log.
        log: u64,
    },
    /// The state machine could not read a checkpoint, or could not write one.
    #[error("checkpoint of group {group} at entry {index}: {what}")]
    State {
        /// The Raft group.
        group: u32,
        /// The checkpoint's last entry.
        index: u64,
        /// What the state machine said.
        what: String,
    },
    /// A checkpoint that was asked for is not kept any more.
    #[error("group {group} keeps no checkpoint of entry {index}")]
    NoCheckpoint {
        /// The Raft group.
        group: u32,
        /// The entry asked for.
        index: u64,
    },
}
