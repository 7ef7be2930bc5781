//! Whether a member without a log may begin with a vote: not if it had one before and has forgotten what it voted for.
//!
//! A cluster that exists remembers every member that has registered; of a cluster that does not exist yet nobody
//! answers with an id. Not here: a directory whose label names a cluster (its log must be there, the host sees to it).
use crate::config::ManagerConfig;
use crate::error::ManagerError;
use cairn_rpc::{CallError, CallOptions, Client, LeaderClient, Repeat};
use cairn_types::NodeId;
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::manager::{ClusterMap, GetMapRequest};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;

/// Others that do not answer within this time are taken as not started yet.
const PATIENCE: Duration = Duration::from_secs(3);
/// For one of them to answer.
const ASK: Duration = Duration::from_secs(1);
/// Between two rounds of asking.
const PAUSE: Duration = Duration::from_millis(100);
/// For the leader of a cluster that exists.
const LEADER_PATIENCE: Duration = Duration::from_secs(8);

/// Asks the other members; returns at once when all of them know of no cluster.
pub(crate) async fn may_begin(config: &ManagerConfig, client: &Client) -> Result<(), ManagerError> {
    let others: Vec<&(NodeId, String)> = config.members.iter().filter(|(id, _)| *id != config.member).collect();
    let begin = Instant::now();
    let mut blank = BTreeSet::new();
    while blank.len() < others.len() {
        for (id, address) in others.iter().filter(|(id, _)| !blank.contains(id)).copied().collect::<Vec<_>>() {
            let answer = client.call(address, Opcode::Ping.code(), &Empty {}, (), CallOptions::new(ASK)).await;
            // The hello that comes before any answer names the cluster.
            if !client.identity().cluster().is_none() {
                let others = others.iter().map(|(_, address)| address.clone());
                return ask_cluster(config, LeaderClient::new(client.clone(), "the manager", others)).await;
            }
            if matches!(answer, Ok(_) | Err(CallError::Remote(_))) {
                blank.insert(*id);
            }
        }
        if begin.elapsed() >= PATIENCE {
            tracing::info!(
                answered = blank.len(),
                of = others.len(),
                "no other manager knows of a cluster; beginning one"
            );
            break;
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

async fn ask_cluster(config: &ManagerConfig, leader: LeaderClient) -> Result<(), ManagerError> {
    let (cluster, member) = (leader.client().identity().cluster(), config.member.get());
    let request = GetMapRequest::default();
    match leader.call::<ClusterMap>(Opcode::GetMap, &request, LEADER_PATIENCE, Repeat::Harmless).await {
        // Only a registration gives an incarnation.
        Ok(map) if map.nodes.iter().any(|node| node.id == member && node.incarnation != 0) => {
            Err(ManagerError::Forgotten { cluster, member })
        }
        Ok(_) => Ok(()),
        Err(error) => Err(ManagerError::Unknowable { cluster, member, cause: error.to_string() }),
    }
}
