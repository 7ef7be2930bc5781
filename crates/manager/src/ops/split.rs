//! SplitPartition: more partitions for the volume of one.
//!
//! What the partition has stays. Where its range of ids has no end, its leader ends it first; then `duties/grow.rs` has
//! the others made.
use crate::leading::Leading;
use crate::manager::Manager;
use cairn_manager_core::apply::{VOLUME_PARTITIONS_MAX, unknown_partition};
use cairn_manager_core::command::Command;
use cairn_manager_core::more_partitions::{AddPartitions, LATE_LEVEL};
use cairn_manager_core::{Outcome, Roles, State, partition_members};
use cairn_types::{ErrorCode, NodeId, PartitionId, VolumeId};
use cairn_wire::error::WireError;
use cairn_wire::manager::{SplitPartitionRequest, SplitPartitionResponse};

impl Manager {
    pub(crate) async fn split_partition(
        &self,
        request: SplitPartitionRequest,
    ) -> Result<SplitPartitionResponse, WireError> {
        let id = PartitionId(request.partition);
        if request.into < 2 {
            let text =
                "a partition is split into at least two: itself and new ones for directories that are made later";
            return Err(WireError::new(ErrorCode::InvalidArgument, text));
        }
        let add = request.into - 1;
        let (volume, nodes, members) = self.look_in_cluster(|state, leading| {
            let partition = state.partition(id).filter(|partition| !partition.removed);
            let volume = partition.ok_or_else(|| unknown_partition(id))?.volume;
            understood(state, leading, volume)?;
            let nodes = late_nodes(state, leading);
            // Also where they are made later: whoever asks is to hear now that nobody has room.
            let members = partition_members::plan(state, &leading.soft, &nodes, add.min(VOLUME_PARTITIONS_MAX))?;
            Ok((volume, nodes, members))
        })?;
        let nodes = nodes.iter().map(|node| node.get()).collect();
        let command = AddPartitions { volume: volume.get(), add, nodes, having: 0, members };
        let Outcome::Partitions(made) = self.execute(Command::AddPartitions(command)).await? else {
            return Err(WireError::new(ErrorCode::Internal, "a split came to something else"));
        };
        let into = request.into;
        tracing::warn!(partition = %id, %volume, into, ?made, "somebody wants more partitions for a volume");
        self.wake.notify_one();
        Ok(SplitPartitionResponse {
            pending: made.is_empty(),
            partitions: made.into_iter().map(PartitionId::get).collect(),
        })
    }
}

/// Whether the partitions that are there know how to end their ranges, and to work with others.
fn understood(state: &State, leading: &Leading, volume: VolumeId) -> Result<(), WireError> {
    for partition in state.partitions().filter(|partition| partition.volume == volume && !partition.removed) {
        let id = partition.id;
        let Some(load) = leading.soft.partitions.get(&id) else {
            let text =
                format!("nobody leads {id}, as far as is known: `cairn admin status` says what is wrong with it");
            return Err(WireError::new(ErrorCode::Unavailable, text));
        };
        if load.report.feature_level < LATE_LEVEL {
            let text = format!(
                "the members of {id} do not all run a build that can have partitions made later (feature level {LATE_LEVEL}; activated is \
                 {}): upgrade the meta nodes first, `cairn admin node ls` shows their builds",
                load.report.feature_level
            );
            return Err(WireError::new(ErrorCode::Conflict, text));
        }
    }
    Ok(())
}

/// Meta nodes that may be members of partitions that are made later.
pub(crate) fn late_nodes(state: &State, leading: &Leading) -> Vec<NodeId> {
    let levels = &leading.soft.levels;
    let understands = |node: &NodeId| levels.get(node).is_some_and(|level| *level >= LATE_LEVEL);
    let metas = state.nodes().filter(|node| node.up && node.roles.has(Roles::META)).map(|node| node.id);
    metas.filter(understands).collect()
}
