//! How a member without a log starts: it begins a new cluster together with the others, or joins the one that exists.
//!
//! | the others say | start |
//! |---|---|
//! | all of them answer, and none knows of a cluster | begins, with a vote, as all of them do |
//! | there is a cluster; this member votes in it, with exactly those configured, but has never registered | begins: it is one of the first, and late |
//! | there is a cluster, which this member was never part of | joins: empty, without a vote until it was filled |
//! | there is a cluster, and this member was part of it | refused: it has forgotten what it voted for |
//! | there is a cluster, whose leader does not answer | refused: what it was cannot be found out |
//! | some do not answer, the rest knows of no cluster | waits: whoever is silent may know better |
//!
//! **Invariant:** a cluster begins only when every one of its first managers has said that there is none. So two that
//! lost their directories cannot begin a second one while the third, which remembers the first, is down.
//! Not here: a directory whose label names a cluster (its log must be there, the host sees to it).
use crate::config::ManagerConfig;
use crate::error::ManagerError;
use cairn_rpc::{CallError, CallOptions, Client, LeaderClient, Repeat};
use cairn_types::NodeId;
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::manager::{StatusRequest, StatusResponse};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;

/// For one of the others to answer.
const ASK: Duration = Duration::from_secs(1);
/// Between two rounds of asking.
const PAUSE: Duration = Duration::from_millis(100);
/// It is said so often for whom it waits.
const SAY_EVERY: Duration = Duration::from_secs(5);
/// For the leader of a cluster that exists: longer than any election or stall of it takes.
const LEADER_PATIENCE: Duration = Duration::from_secs(30);

/// How to start without a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Start {
    Begin,
    Join,
}

/// Asks the other members, for as long as it takes.
pub(crate) async fn how_to_start(config: &ManagerConfig, client: &Client) -> Result<Start, ManagerError> {
    let others: Vec<&(NodeId, String)> = config.members.iter().filter(|(id, _)| *id != config.member).collect();
    let mut said = Instant::now();
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
        if said.elapsed() >= SAY_EVERY {
            said = Instant::now();
            let silent = others.iter().filter(|(id, _)| !blank.contains(id));
            let silent: Vec<String> = silent.map(|(id, address)| format!("{}@{address}", id.get())).collect();
            tracing::warn!(
                ?silent,
                "this manager has an empty directory and waits for the others: a new cluster begins only when each of \
                 its managers has said that it knows of none; start them"
            );
        }
        if blank.len() < others.len() {
            tokio::time::sleep(PAUSE).await;
        }
    }
    Ok(Start::Begin)
}

async fn ask_cluster(config: &ManagerConfig, leader: LeaderClient) -> Result<Start, ManagerError> {
    let (cluster, member) = (leader.client().identity().cluster(), config.member.get());
    let status: StatusResponse =
        match leader.call(Opcode::Status, &StatusRequest {}, LEADER_PATIENCE, Repeat::Harmless).await {
            Ok(status) => status,
            Err(error) => return Err(ManagerError::Unknowable { cluster, member, cause: error.to_string() }),
        };
    // Only a registration gives an incarnation; whoever was removed is no manager any more and may come back.
    let nodes = status.map.iter().flat_map(|map| &map.nodes);
    let mut managers = nodes.filter(|node| node.roles.iter().any(|role| role == "manager"));
    if managers.any(|node| node.id == member && node.incarnation != 0) {
        return Err(ManagerError::Forgotten { cluster, member });
    }
    // Who was added gets its vote only after it has registered.
    let voters: BTreeSet<u32> = status.managers.iter().copied().collect();
    let configured: BTreeSet<u32> = config.members.iter().map(|(id, _)| id.get()).collect();
    if voters.contains(&member) && voters == configured {
        return Ok(Start::Begin);
    }
    tracing::info!(%cluster, member, "there is a cluster: this manager joins it as soon as it is a member; \
        `cairn admin manager add` makes it one");
    Ok(Start::Join)
}
