//! [`MetaError`]: why the role could not start, cut by what a person does.

use cairn_raft_host::HostError;
use cairn_store::StoreError;
use cairn_types::PartitionId;

/// Why the role could not start.
#[derive(Debug, thiserror::Error)]
pub enum MetaError {
    /// The list of partitions cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A partition could not be opened.
    #[error("{partition} cannot be opened: {source}")]
    Open {
        /// Which.
        partition: PartitionId,
        /// Why.
        source: HostError,
    },
    /// A thread could not be made.
    #[error("cannot start a thread of the meta role: {0}")]
    Thread(#[source] std::io::Error),
}
