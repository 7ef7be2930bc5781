//! Checkpoints of groups, for backups: a member writes one, and its bytes are fetched part by part.
use crate::connect::Client;
use crate::error::Result;
use cairn_types::{GroupId, NodeId, crc32c};
use cairn_wire::Opcode;
use cairn_wire::meta::{CutCheckpoint, CutCheckpointsRequest, CutCheckpointsResponse, MetaHeader};
use cairn_wire::raft::{
    FetchCheckpointRequest, FetchCheckpointResponse, TakeCheckpointRequest, TakeCheckpointResponse,
};
use std::time::Duration;

/// A checkpoint of a large partition takes its time.
const TAKE_DEADLINE: Duration = Duration::from_secs(600);
/// Longer than the partition of the root tries by itself.
const CUT_DEADLINE: Duration = Duration::from_secs(20);
const FETCH_DEADLINE: Duration = Duration::from_secs(30);
const PART_BYTES: u32 = 1 << 20;

/// A checkpoint that a member wrote.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Checkpoint {
    /// Last entry of the state.
    pub index: u64,
    pub term: u64,
    /// Given by a leader that held its lease: everything acknowledged before is in it.
    pub led: bool,
}

/// A checkpoint that a node has begun, of a partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BegunCheckpoint {
    pub group: GroupId,
    pub node: NodeId,
    /// Last entry of the state.
    pub index: u64,
    pub term: u64,
}

/// Bytes of a checkpoint that arrived as they were sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckpointPart {
    pub bytes: Vec<u8>,
    /// Length of the whole.
    pub total: u64,
}

impl Client {
    /// Has the member of a group at an address write a checkpoint. `None`: it does not lead; with `any_member` that
    /// does not matter.
    pub async fn take_checkpoint(
        &self,
        what: &str,
        group: GroupId,
        address: &str,
        any_member: bool,
    ) -> Result<Option<Checkpoint>> {
        self.checkpoint(what, address, TakeCheckpointRequest { group: group.0, any_member, index: 0 }).await
    }
    /// Waits for one that was begun with [`cut_checkpoints`](Self::cut_checkpoints), of this entry; a later one if that
    /// is gone.
    pub async fn begun_checkpoint(
        &self,
        what: &str,
        (group, index): (GroupId, u64),
        address: &str,
    ) -> Result<Option<Checkpoint>> {
        let request = TakeCheckpointRequest { group: group.0, any_member: false, index };
        self.checkpoint(what, address, request).await
    }
    async fn checkpoint(
        &self,
        what: &str,
        address: &str,
        request: TakeCheckpointRequest,
    ) -> Result<Option<Checkpoint>> {
        let found: TakeCheckpointResponse =
            self.call(what, address, Opcode::TakeCheckpoint, &request, TAKE_DEADLINE).await?;
        let TakeCheckpointResponse { taken, leader: _, index, term, led } = found;
        Ok(taken.then_some(Checkpoint { index, term, led }))
    }
    /// Has all partitions of a volume begin checkpoints as of one moment; asked of the leader of its root's partition.
    pub async fn cut_checkpoints(
        &self,
        what: &str,
        (volume, root): (u32, GroupId),
        address: &str,
    ) -> Result<Vec<BegunCheckpoint>> {
        let header = MetaHeader { volume, partition: root.0, ..MetaHeader::default() };
        let request = CutCheckpointsRequest { header: Some(header) };
        let found: CutCheckpointsResponse =
            self.call(what, address, Opcode::CutCheckpoints, &request, CUT_DEADLINE).await?;
        let begun = |cut: CutCheckpoint| BegunCheckpoint {
            group: GroupId(cut.partition),
            node: NodeId(cut.node),
            index: cut.index,
            term: cut.term,
        };
        Ok(found.checkpoints.into_iter().map(begun).collect())
    }
    /// The part of it that begins at an offset. `None`: what came does not match its checksum, or is nothing.
    pub async fn fetch_checkpoint(
        &self,
        what: &str,
        (group, index): (GroupId, u64),
        address: &str,
        offset: u64,
    ) -> Result<Option<CheckpointPart>> {
        let request = FetchCheckpointRequest { group: group.0, index, offset, length_max: PART_BYTES };
        let (found, bytes): (FetchCheckpointResponse, Vec<u8>) =
            self.fetch(what, address, Opcode::FetchCheckpoint, &request, FETCH_DEADLINE).await?;
        let is_good = crc32c(&bytes) == found.crc && !bytes.is_empty();
        Ok(is_good.then_some(CheckpointPart { bytes, total: found.total }))
    }
}
