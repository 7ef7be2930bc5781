//! [`MetaServer`]: the meta role of a process. Several can live in one process; nothing here is global.
//!
//! Threads: one worker for the leader's duties (and short-lived ones that open partitions); the Raft host has its own
//! for each group. Requests run on the RPC server's threads (`service.rs`).
//! Not here: registration and heartbeats (cairn-node-agent; `contributor.rs` is this role's part), Raft traffic
//! (opcodes 0x01xx, raft-host).

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_env::{Clock, Disk};
use cairn_node_agent::MapView;
use cairn_raft_host::RaftHost;
use cairn_rpc::Client;
use cairn_types::{NodeId, PartitionId};
use cairn_wire::manager::{ClusterMap, PartitionReport};
use parking_lot::Mutex;
use tokio::runtime::Runtime;
use tokio::sync::Notify;

use crate::config::{MetaConfig, MetaTimings};
use crate::error::MetaError;
use crate::list_file::ListFile;
use crate::memory::{self, Memory};
use crate::partition::Common;
use crate::roster::{Open, Roster, RosterParts};
use crate::stats::MetaStats;

/// The meta role of a process.
pub struct MetaServer {
    pub(crate) roster: Arc<Roster>,
    timings: MetaTimings,
    /// The map changed, or it is time to try again what failed.
    map_news: Arc<Notify>,
    runtime: Mutex<Option<Runtime>>,
    /// Asks the agent for a heartbeat now.
    poke: Mutex<Option<Poke>>,
}

type Poke = Arc<dyn Fn() + Send + Sync>;

impl MetaServer {
    /// Opens the partitions that this node had before, and waits for the map ([`apply_map`](Self::apply_map)) for
    /// others. `disk` is the node's directory, which the caller has locked; `host` is the node's, shared with other
    /// roles; `client` makes the calls to data nodes. Blocks while states are restored.
    pub fn start(
        config: MetaConfig,
        node: NodeId,
        disk: Arc<dyn Disk>,
        host: Arc<RaftHost>,
        client: Client,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<Self>, MetaError> {
        assert!(node.get() != 0, "a meta role needs the node's id: register first");
        let list = ListFile::open(disk, &config.dir, config.node_uuid)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(2)
            .thread_name("cairn-meta")
            .enable_all()
            .build()
            .map_err(MetaError::Thread)?;
        let memory = Memory::new(config.memory_max, host.full_nodes().clone());
        let common = Arc::new(Common::new(clock, host.clocks().clone(), memory, host.feature_level()));
        let timings = config.timings;
        let parts = RosterParts {
            node,
            common,
            host,
            client,
            timings: timings.clone(),
            runtime: runtime.handle().clone(),
            list,
        };
        let roster = Arc::new(Roster::new(parts));
        roster.open_listed()?;
        let map_news = Arc::new(Notify::new());
        runtime.spawn(memory::watch(roster.clone(), timings.clone()));
        runtime.spawn(follow_map(roster.clone(), map_news.clone(), timings.clone()));
        Ok(Arc::new(Self { roster, timings, map_news, runtime: Mutex::new(Some(runtime)), poke: Mutex::default() }))
    }

    /// Sets what asks the manager for news at once (the agent's poke).
    pub fn set_poke(&self, poke: Poke) {
        *self.poke.lock() = Some(poke);
    }

    pub(crate) fn poke(&self) {
        let poke = self.poke.lock().clone();
        if let Some(poke) = poke {
            poke();
        }
    }

    /// Takes a full map or a delta over; partitions are opened and closed in the background. `false`: the delta does
    /// not connect to what is known here, a full map is needed.
    pub fn apply_map(&self, change: &ClusterMap) -> bool {
        let connected = self.common().map.write().apply(change);
        self.map_news.notify_one();
        connected
    }

    /// What a heartbeat tells the manager: every open partition.
    pub fn partition_reports(&self) -> Vec<PartitionReport> {
        let open: Vec<_> = self.partitions().read().values().cloned().collect();
        open.iter().map(|partition| partition.report()).collect()
    }

    /// Counters.
    pub fn stats(&self) -> &MetaStats {
        &self.common().stats
    }

    /// Partitions that this member leads, with the term.
    pub fn leads(&self) -> BTreeMap<PartitionId, u64> {
        let open = self.partitions().read();
        open.iter().filter_map(|(id, partition)| Some((*id, partition.state.leading_term()?))).collect()
    }

    /// Looks something up in the map.
    pub fn with_map<T>(&self, look: impl FnOnce(&MapView) -> T) -> T {
        look(&self.common().map.read())
    }

    /// Before connections are closed: nothing is kept waiting for news any more.
    pub fn answer_waiting(&self) {
        for partition in self.partitions().read().values() {
            partition.state.close_recall_waits();
        }
    }

    /// Ends duties and groups; what was acknowledged is durable. Blocks. The files stay.
    pub fn stop(&self) {
        let Some(runtime) = self.runtime.lock().take() else { return };
        self.roster.close_all();
        runtime.shutdown_timeout(self.timings.stop_grace);
    }

    pub(crate) fn node(&self) -> NodeId {
        self.roster.node
    }

    pub(crate) fn common(&self) -> &Common {
        &self.roster.common
    }

    pub(crate) fn partitions(&self) -> &Open {
        &self.roster.open
    }

    pub(crate) fn timings(&self) -> &MetaTimings {
        &self.timings
    }

    pub(crate) fn is_expected(&self, partition: PartitionId) -> bool {
        self.roster.is_expected(partition)
    }

    pub(crate) fn failures(&self) -> BTreeMap<PartitionId, String> {
        self.roster.failures()
    }
}

impl Drop for MetaServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Keeps what is open in agreement with the map, and tries again what failed.
async fn follow_map(roster: Arc<Roster>, news: Arc<Notify>, timings: MetaTimings) {
    loop {
        if roster.failures().is_empty() {
            news.notified().await;
        } else {
            // Elapsed or notified: both mean that it is time.
            let _ = tokio::time::timeout(timings.open_retry, news.notified()).await;
        }
        let roster = roster.clone();
        // It ends early only if it panicked, which the runtime has logged with its place.
        let _ = tokio::task::spawn_blocking(move || roster.reconcile()).await;
    }
}
