//! [`StateDigest`]: a checksum of a member's whole state, to hold members of a partition against each other.
//!
//! Members that have applied the same entries have the same bytes, so after the same last entry digests are the same.
//! It walks through the state: for tests, not for each heartbeat. Not here: what to do when they differ.
use cairn_store::{CheckpointSink, StoreError};
use cairn_types::{PartitionId, crc32c};

use crate::checkpoint;
use crate::server::MetaServer;

/// The state of one member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateDigest {
    /// Index of the last applied entry.
    pub applied: u64,
    /// Length of the state as a checkpoint has it.
    pub bytes: u64,
    /// CRC-32C of the CRCs of its pieces.
    pub crc: u32,
}

impl CheckpointSink for StateDigest {
    fn write(&mut self, piece: &[u8]) -> Result<(), StoreError> {
        self.bytes += piece.len() as u64;
        let both = [self.crc.to_le_bytes(), crc32c(piece).to_le_bytes()];
        self.crc = crc32c(both.as_flattened());
        Ok(())
    }
}

impl MetaServer {
    /// The state that this node has of a partition; `None` if it has none.
    pub fn state_digest(&self, partition: PartitionId) -> Option<StateDigest> {
        let open = self.partitions().read().get(&partition)?.clone();
        let snapshot = open.state.namespace.read().snapshot();
        let mut digest = StateDigest { applied: snapshot.applied_index(), bytes: 0, crc: 0 };
        // It writes nowhere, so nothing can fail.
        checkpoint::write(&snapshot, &mut digest).ok()?;
        Some(digest)
    }
}
