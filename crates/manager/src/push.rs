//! Telling members of placement groups their new epochs, until they acknowledge or a newer epoch supersedes it.
//!
//! A node that refuses a state has not taken it: as long as one of its disks is to receive writes under it, it is told
//! again. One task a node at a time; what is not acknowledged goes along with later attempts. A node that is marked
//! down is not told: it learns everything when it registers. A new leader need not repeat what an older one pushed:
//! members compare map versions with every heartbeat.
use crate::manager::Manager;
use cairn_manager_core::{Pg, State};
use cairn_rpc::CallOptions;
use cairn_types::{DiskId, NodeId, PgId};
use cairn_wire::Opcode;
use cairn_wire::data::{ApplyPgsRequest, ApplyPgsResponse, NodeAddress};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Time a node gets to store new epochs durably and answer.
const PUSH_DEADLINE: Duration = Duration::from_secs(2);
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Groups told in one message.
const GROUPS_MAX: usize = 4096;

/// What nodes have not acknowledged yet.
#[derive(Default)]
pub(crate) struct Push {
    unacknowledged: BTreeMap<NodeId, BTreeSet<PgId>>,
    /// Nodes whose task runs.
    active: BTreeSet<NodeId>,
}

impl Push {
    fn owes(&self, pgs: &[PgId]) -> bool {
        self.unacknowledged.values().any(|owed| pgs.iter().any(|pg| owed.contains(pg)))
    }
}

impl Manager {
    /// Tells the members of these groups their states.
    pub(crate) fn push(&self, pgs: &[PgId]) {
        let started = self.leading.lock().as_mut().map(|leading| {
            let state = self.replica.read();
            for pg in pgs.iter().filter_map(|id| state.pg(*id)) {
                for node in state.nodes_of(pg).into_iter().filter(|n| state.node(*n).is_some_and(|n| n.up)) {
                    leading.push.unacknowledged.entry(node).or_default().insert(pg.id);
                }
            }
            let idle = leading.push.unacknowledged.keys().filter(|n| !leading.push.active.contains(n));
            let idle: Vec<NodeId> = idle.copied().collect();
            leading.push.active.extend(&idle);
            (leading.term, idle)
        });
        let (Some((term, nodes)), Some(me)) = (started, self.arc()) else { return };
        for node in nodes {
            self.spawn(me.clone().push_to(node, term));
        }
    }

    /// Waits until every node that is up has acknowledged these groups, or for `patience`.
    pub(crate) async fn pushed(&self, pgs: &[PgId], patience: Duration) {
        let all = async {
            loop {
                let acknowledged = self.pushed.notified();
                tokio::pin!(acknowledged);
                acknowledged.as_mut().enable();
                match self.look(|_, leading| leading.push.owes(pgs)) {
                    Ok(true) => acknowledged.await,
                    _ => return,
                }
            }
        };
        // Late ones are told on and on; the answer need not wait for them.
        let _ = tokio::time::timeout(patience, all).await;
    }

    async fn push_to(self: Arc<Self>, node: NodeId, term: u64) {
        let mut pause = PAUSE_MIN;
        while let Some((address, request)) = self.next_push(node, term) {
            let options = CallOptions::new(PUSH_DEADLINE);
            let answer = self.client.call(&address, Opcode::ApplyPgs.code(), &request, (), options).await;
            self.metrics.pushes.add(1);
            match answer.and_then(|answer| answer.decode::<ApplyPgsResponse>()) {
                Ok(answer) if answer.refused.is_empty() => {
                    pause = PAUSE_MIN;
                    self.acknowledged(node, term, &request, &[]);
                }
                Ok(answer) => {
                    if pause == PAUSE_MIN {
                        tracing::warn!(%node, refused = ?answer.refused,
                            "a node refused states of placement groups; they are told again as long as its disks serve");
                    }
                    self.metrics.pushes_failed.add(1);
                    self.acknowledged(node, term, &request, &answer.refused);
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
                Err(error) => {
                    self.metrics.pushes_failed.add(1);
                    tracing::debug!(%node, %error, "a node did not take new epochs; they are told again");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
    }

    /// The next message to a node; `None` ends its task.
    fn next_push(&self, node: NodeId, term: u64) -> Option<(String, ApplyPgsRequest)> {
        let mut leading = self.leading.lock();
        let leading = leading.as_mut().filter(|leading| leading.term == term)?;
        let state = self.replica.read();
        let up = state.node(node).filter(|n| n.up).map(|n| n.address.clone());
        let owed = leading.push.unacknowledged.get(&node).filter(|owed| !owed.is_empty());
        let (Some(address), Some(owed)) = (up, owed) else {
            leading.push.unacknowledged.remove(&node);
            leading.push.active.remove(&node);
            self.pushed.notify_waiters();
            return None;
        };
        let mut request = ApplyPgsRequest { term, ..ApplyPgsRequest::default() };
        let mut nodes = BTreeSet::new();
        for pg in owed.iter().take(GROUPS_MAX).filter_map(|id| state.pg(*id)) {
            nodes.extend(state.nodes_of(pg));
            request.pgs.push(state.pg_state(pg));
        }
        let address_of = |node: NodeId| state.node(node).map(|n| n.address.clone()).unwrap_or_default();
        request.nodes =
            nodes.into_iter().map(|node| NodeAddress { node: node.get(), address: address_of(node) }).collect();
        Some((address, request))
    }

    /// Strikes out what was told and is still so. What was refused is owed on, if a disk there is to take writes under
    /// it: nobody may believe that such a member is in the epoch.
    fn acknowledged(&self, node: NodeId, term: u64, request: &ApplyPgsRequest, refused: &[u32]) {
        let mut leading = self.leading.lock();
        let Some(leading) = leading.as_mut().filter(|leading| leading.term == term) else { return };
        let state = self.replica.read();
        if let Some(owed) = leading.push.unacknowledged.get_mut(&node) {
            for told in &request.pgs {
                let id = PgId(told.pg);
                if refused.contains(&told.pg) && state.pg(id).is_some_and(|pg| matters(&state, pg, node)) {
                    continue;
                }
                if state.pg(id).is_none_or(|pg| pg.epoch.get() == told.epoch) {
                    owed.remove(&id);
                }
            }
            // A group that was forgotten meanwhile is owed by nobody.
            owed.retain(|id| state.pg(*id).is_some());
        }
        self.pushed.notify_waiters();
    }
}

/// Whether a disk of the node that is in service receives writes of the group.
fn matters(state: &State, pg: &Pg, node: NodeId) -> bool {
    let mine = |disk: DiskId| state.is_able(disk) && state.disk(disk).is_some_and(|d| d.node == node);
    let joins = pg.joining.is_some_and(|j| j.state.receives_writes() && mine(j.disk));
    !pg.retired && (joins || pg.members.iter().any(|m| m.state.receives_writes() && mine(m.disk)))
}
