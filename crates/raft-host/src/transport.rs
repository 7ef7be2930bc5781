//! [`RaftTransport`]: how messages of groups reach other nodes.
//!
//! Not here: the RPC-backed one (`rpc_transport.rs`).

use bytes::Bytes;
use cairn_types::{GroupId, NodeId};
use cairn_wire::raft::{FetchCheckpointRequest, FetchCheckpointResponse, RaftBatch};

/// Why a part of a checkpoint could not be fetched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// The other node does not keep that checkpoint (any more): wait for the leader to name another.
    #[error("{from} does not keep that checkpoint any more")]
    Gone {
        /// The node asked.
        from: NodeId,
    },
    /// It could not be reached or failed: try again later.
    #[error("fetching a checkpoint from {from} failed: {cause}")]
    Failed {
        /// The node asked.
        from: NodeId,
        /// What happened.
        cause: String,
    },
}

/// Carries Raft traffic. Delivery is best effort: messages may be lost, repeated and overtaken.
pub trait RaftTransport: Send + Sync {
    /// Hands a batch over for delivery. Never blocks; drops when its bounded queue is full.
    fn send(&self, to: NodeId, batch: RaftBatch);
    /// Where a node is reached, as a group's own state has it. Transports that know by other means ignore it.
    fn learn_address(&self, _node: NodeId, _address: &str) {}
    /// Whether a node that is no member of a partition's group by the state here may be one all the same, by what was
    /// heard otherwise. Where nobody has a key, everybody may.
    fn may_be_member(&self, _group: GroupId, _node: NodeId) -> bool {
        true
    }
    /// The nodes of which that was heard.
    fn named_members(&self, _group: GroupId) -> Vec<NodeId> {
        Vec::new()
    }
    /// Fetches a part of a checkpoint, blocking, with a deadline. The bytes come with their checksum in the answer.
    fn fetch(
        &self,
        from: NodeId,
        request: FetchCheckpointRequest,
    ) -> Result<(FetchCheckpointResponse, Bytes), FetchError>;
}
