//! The role's part in the node's registration and heartbeats.

use std::sync::atomic::Ordering;

use cairn_node_agent::{Contributor, Registration, Settings};
use cairn_wire::manager::{ClusterMap, HeartbeatRequest, RegisterRequest};

use crate::begin;
use crate::partition::GarbageSettings;
use crate::server::MetaServer;
use crate::stage::StageSettings;

impl Contributor for MetaServer {
    fn registered(&self, registration: &Registration) -> Result<(), String> {
        if registration.node == self.node() {
            return Ok(());
        }
        Err(format!(
            "the manager registered this node as {}, but its partitions are those of {}",
            registration.node,
            self.node()
        ))
    }

    fn map_changed(&self, change: &ClusterMap, _term: u64) {
        if !self.apply_map(change) {
            tracing::error!(
                base = change.base_version,
                "a change of the map does not connect; waiting for a whole one"
            );
        }
    }

    fn settings(&self, settings: &Settings) {
        let (period, grace) = (settings.duration("garbage_period"), settings.duration("garbage_grace"));
        *self.common().garbage.write() = GarbageSettings { period, grace };
        let extent_bytes = settings.number("defragment_extent").unwrap_or(u64::MAX);
        self.common().extent_bytes.store(extent_bytes, Ordering::Relaxed);
        let hours = settings.text("stage_hours").and_then(|hours| hours.parse().ok()).unwrap_or_default();
        *self.common().stage.write() = StageSettings { rate: settings.number("stage_rate"), hours };
        // Only up: what a manager of before says is known to be too little.
        self.common().sessions_below.fetch_max(settings.number("sessions_below").unwrap_or(0), Ordering::Relaxed);
    }

    fn up_to_date(&self) {
        self.common().map_rounds.send_modify(|count| *count += 1);
    }

    fn register(&self, request: &mut RegisterRequest) {
        self.tell_partitions(request);
    }

    fn heartbeat(&self, heartbeat: &mut HeartbeatRequest) {
        heartbeat.partitions.extend(self.partition_reports());
        heartbeat.feature_level = self.common().feature_level;
        // Only its log would say that a partition has a member less.
        heartbeat.problem = join(std::mem::take(&mut heartbeat.problem), self.stopped());
        let open: Vec<_> = self.partitions().read().values().cloned().collect();
        let held: Vec<String> = open.iter().filter_map(|partition| begin::held(partition)).collect();
        heartbeat.problem = join(std::mem::take(&mut heartbeat.problem), held);
        let memory = &self.common().memory;
        (heartbeat.metadata_bytes, heartbeat.metadata_bytes_max) = (memory.used(), memory.max);
        let full = self.common().memory.problem().into_iter().collect();
        heartbeat.problem = join(std::mem::take(&mut heartbeat.problem), full);
    }
}

/// What others said, and what this role says.
fn join(said: String, mine: Vec<String>) -> String {
    Some(said).filter(|said| !said.is_empty()).into_iter().chain(mine).collect::<Vec<_>>().join("; ")
}
