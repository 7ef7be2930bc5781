//! [`Peers`]: the leaders of other partitions, and which of them has an inode.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cairn_node_agent::MapView;
use cairn_rpc::{Client, LeaderClient, Repeat};
use cairn_types::{ErrorCode, InodeId, NodeId, PartitionId, VolumeId};
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use parking_lot::Mutex;
use prost::Message;

use crate::partition::Common;

/// What all partitions of a role share to call others.
pub(crate) struct Peers {
    client: Client,
    common: Arc<Common>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// Of the map from which the rest was taken.
    version: u64,
    /// First inode of a range, with the last one and the partition.
    ranges: BTreeMap<(VolumeId, u64), (u64, PartitionId)>,
    leaders: BTreeMap<PartitionId, LeaderClient>,
}

impl Known {
    fn follow(&mut self, map: &MapView, client: &Client) {
        if self.version == map.version() {
            return;
        }
        self.version = map.version();
        self.ranges.clear();
        let mut leaders = std::mem::take(&mut self.leaders);
        for partition in map.partitions().filter(|partition| !partition.removed) {
            let (id, volume) = (PartitionId(partition.id), VolumeId(partition.volume));
            self.ranges.insert((volume, partition.inode_first), (partition.inode_last, id));
            let addresses = partition.nodes.iter().filter_map(|node| map.address(NodeId(*node)).map(str::to_owned));
            let leader = match leaders.remove(&id) {
                Some(known) => {
                    known.set_addresses(addresses.collect());
                    known
                }
                None => LeaderClient::new(client.clone(), id.to_string(), addresses),
            };
            if leader.leader().is_none()
                && let Some(address) = map.address(NodeId(partition.leader))
            {
                leader.set_leader(address);
            }
            self.leaders.insert(id, leader);
        }
    }
}

impl Peers {
    pub(crate) fn new(client: Client, common: Arc<Common>) -> Self {
        Self { client, common, known: Mutex::default() }
    }

    /// The partition that has an inode, as far as the map is known.
    pub(crate) fn owner(&self, volume: VolumeId, inode: u64) -> Result<PartitionId, WireError> {
        // At a snapshot an inode is where it is now.
        let inode = InodeId(inode).now().0;
        let mut known = self.known.lock();
        known.follow(&self.common.map.read(), &self.client);
        let range = known.ranges.range(..=(volume, inode)).next_back();
        let owner = range.filter(|((of, _), (last, _))| *of == volume && inode <= *last).map(|(_, (_, id))| *id);
        owner.ok_or_else(|| {
            let text = format!("no partition of {volume} in this node's map has inode {inode}; repeat in a moment");
            WireError::new(ErrorCode::Unavailable, text)
        })
    }

    /// All partitions of a volume.
    pub(crate) fn partitions(&self, volume: VolumeId) -> Vec<PartitionId> {
        let mut known = self.known.lock();
        known.follow(&self.common.map.read(), &self.client);
        let of_volume = known.ranges.range((volume, 0)..=(volume, u64::MAX));
        of_volume.map(|(_, (_, id))| *id).collect()
    }

    /// Asks the leader of a partition something that may be repeated.
    pub(crate) async fn call<A: Message + Default>(
        &self,
        to: PartitionId,
        opcode: Opcode,
        request: &impl Message,
        deadline: Duration,
    ) -> Result<A, WireError> {
        let leader = self.leader(to)?;
        leader.call(opcode, request, deadline, Repeat::Harmless).await.map_err(|error| error.to_wire())
    }

    /// Asks for something that takes long: of one at a time.
    pub(crate) async fn call_long<A: Message + Default>(
        &self,
        to: PartitionId,
        opcode: Opcode,
        request: &impl Message,
        deadline: Duration,
    ) -> Result<A, WireError> {
        let leader = self.leader(to)?;
        leader.call(opcode, request, deadline, Repeat::Forbidden).await.map_err(|error| error.to_wire())
    }

    fn leader(&self, of: PartitionId) -> Result<LeaderClient, WireError> {
        let mut known = self.known.lock();
        known.follow(&self.common.map.read(), &self.client);
        known.leaders.get(&of).cloned().ok_or_else(|| {
            let text = format!("{of} is not in this node's map; repeat in a moment");
            WireError::new(ErrorCode::Unavailable, text)
        })
    }
}
