//! [`Movers`]: data nodes that a partition's leader asks to move bytes of files, one request at a time, with rests as
//! long as it took, unless an operator wants it done as fast as it goes. Not here: what is moved (`compact.rs`,
//! `defragment.rs`), and how (`jobs` and the client library).

use std::sync::Arc;
use std::time::Duration;

use cairn_rpc::{CallOptions, Client};
use cairn_types::{DiskId, ErrorCode, NodeId, PgId};
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use prost::Message;
use tokio::time::sleep;

use crate::partition::Partition;

/// Nodes that are tried before the rest is left for later.
const NODES: usize = 3;

/// Nodes to ask, the next one after a failure.
pub(crate) struct Movers {
    partition: Arc<Partition>,
    client: Client,
    nodes: Vec<NodeId>,
    rests: bool,
}

impl Movers {
    /// Nodes with members of a placement group.
    pub(crate) fn near(partition: Arc<Partition>, client: Client, pg: u32) -> Self {
        Self::among(partition, client, pg, None)
    }

    /// Those of them that are in a rack.
    pub(crate) fn in_rack(partition: Arc<Partition>, client: Client, pg: u32, rack: &str) -> Self {
        Self::among(partition, client, pg, Some(rack))
    }

    fn among(partition: Arc<Partition>, client: Client, pg: u32, rack: Option<&str>) -> Self {
        let mut nodes: Vec<NodeId> = Vec::new();
        {
            let map = partition.state.common.map.read();
            let up = |node: &NodeId| {
                let there = |rack: &str, node: &cairn_wire::manager::Node| node.rack == rack;
                map.node(*node).is_some_and(|node| {
                    node.up && !node.address.is_empty() && rack.is_none_or(|rack| there(rack, node))
                })
            };
            let in_service = |disk: u32| map.disk(DiskId(disk)).is_none_or(|disk| disk.state == 0);
            let members = map.pg(PgId(pg)).map_or(&[][..], |group| &group.members);
            let members = members.iter().filter(|member| in_service(member.disk));
            for node in members.map(|member| NodeId(member.node)).filter(up) {
                if !nodes.contains(&node) && nodes.len() < NODES {
                    nodes.push(node);
                }
            }
        }
        Self { partition, client, nodes, rests: true }
    }

    /// With the rate that is set for this work: there are no rests where it is 0.
    pub(crate) fn rest_as(&mut self, rate: Option<u64>) {
        self.rests = rate != Some(0);
    }

    /// Asks one of them, as long as this member leads in that term.
    pub(crate) async fn ask<A: Message + Default>(
        &mut self,
        opcode: Opcode,
        request: &impl Message,
        deadline: Duration,
        term: u64,
    ) -> Result<A, WireError> {
        let state = &self.partition.state;
        loop {
            if state.leading_term() != Some(term) {
                return Err(WireError::new(ErrorCode::NotLeader, "another member leads"));
            }
            let address = self.nodes.first().and_then(|node| state.common.map.read().address(*node).map(str::to_owned));
            let Some(address) = address else {
                return Err(WireError::new(ErrorCode::Unavailable, "no data node moves files' bytes; left for later"));
            };
            let start = state.common.clock.now();
            let call = self.client.call(&address, opcode.code(), request, (), CallOptions::new(deadline));
            match call.await.and_then(|response| response.decode::<A>()) {
                Ok(answer) => {
                    if self.rests {
                        sleep(state.common.clock.now().since(start)).await;
                    }
                    return Ok(answer);
                }
                Err(error) => {
                    tracing::debug!(partition = %state.id, address, %error, "a node could not move files' bytes");
                    self.nodes.remove(0);
                }
            }
        }
    }
}
