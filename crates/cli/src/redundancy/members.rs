//! [`Members`]: data nodes asked whether they answer and which blocks of their disks are bad, so that what is said of a file
//! holds at this moment and not as of the last change of the cluster map.
//!
//! Each node is asked once. One that does not answer counts as missing; one that is known to be down is not asked.
use cairn_client::Client;
use cairn_client::view::ClusterView;
use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::data::{BadBlocksRequest, BadBlocksResponse};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::task::JoinSet;

/// A node that lives answers at once; one that stands still is as good as away.
const DEADLINE: Duration = Duration::from_secs(2);
/// Nodes that are asked at the same time.
const ASKED_AT_ONCE: usize = 64;

/// What nodes said.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Known {
    /// Disks of nodes that did not answer, by node.
    pub silent: BTreeMap<u32, u32>,
    /// Disks of nodes that have more bad blocks than they remember.
    pub unsure: BTreeSet<u32>,
    /// Bad blocks of a chunk, by group and index, by disk.
    pub bad: BTreeMap<(u32, u32), BTreeMap<u32, Vec<u32>>>,
}

impl Known {
    /// Nothing that is there is to be counted on.
    pub fn is_out(&self, disk: u32) -> bool {
        self.silent.contains_key(&disk) || self.unsure.contains(&disk)
    }
}

/// Asks nodes as they are needed.
pub struct Members {
    client: Client,
    asked: BTreeSet<u32>,
    known: Known,
}

impl Members {
    pub fn new(client: Client) -> Self {
        Self { client, asked: BTreeSet::new(), known: Known::default() }
    }

    /// Asks the nodes of these groups that were not asked yet; what all said so far.
    pub async fn ask(&mut self, view: &ClusterView, groups: &BTreeSet<u32>) -> &Known {
        let disks = groups.iter().filter_map(|pg| view.pgs.get(pg)).flat_map(|pg| pg.serving());
        let nodes: BTreeSet<u32> = disks.filter_map(|disk| view.disks.get(&disk)).map(|disk| disk.node).collect();
        let mut tasks = JoinSet::new();
        for id in nodes {
            let Some(node) = view.nodes.get(&id).filter(|node| node.up && self.asked.insert(id)) else { continue };
            if tasks.len() >= ASKED_AT_ONCE
                && let Some(Ok((node, answer))) = tasks.join_next().await
            {
                self.take(view, node, answer);
            }
            let (client, address) = (self.client.clone(), node.address.clone());
            tasks.spawn(async move {
                let what = format!("bad blocks of node {id}");
                let request = BadBlocksRequest {};
                let answer: cairn_client::Result<BadBlocksResponse> =
                    client.call(&what, &address, Opcode::BadBlocks, &request, DEADLINE).await;
                (id, answer)
            });
        }
        while let Some(answer) = tasks.join_next().await {
            if let Ok((node, answer)) = answer {
                self.take(view, node, answer);
            }
        }
        &self.known
    }

    fn take(&mut self, view: &ClusterView, node: u32, answer: cairn_client::Result<BadBlocksResponse>) {
        let disks = || view.disks.values().filter(move |disk| disk.node == node).map(|disk| disk.id);
        match answer {
            Ok(answer) => {
                if answer.more {
                    self.known.unsure.extend(disks());
                }
                for chunk in answer.chunks {
                    self.known.bad.entry((chunk.pg, chunk.index)).or_default().insert(chunk.disk, chunk.blocks);
                }
            }
            // A server of an earlier version, which keeps no list.
            Err(error) if error.code() == Some(ErrorCode::UnknownOperation) => {}
            Err(error) => {
                tracing::debug!(node, %error, "a data node does not answer");
                self.known.silent.extend(disks().map(|disk| (disk, node)));
            }
        }
    }
}
