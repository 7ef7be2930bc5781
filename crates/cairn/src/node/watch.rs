//! [`NodeWatch`]: tells the manager what the node lacks: descriptors, memory of the kernel, places for connections.
use crate::descriptors::{self, Descriptors};
use cairn_env::disk::{short_of, waits_for_resources};
use cairn_node_agent::Contributor;
use cairn_rpc::{ServerStats, WithoutKey};
use cairn_telemetry::Samples;
use cairn_wire::manager::HeartbeatRequest;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Tells of the end of a key.
pub type KeyTeller = Box<dyn Fn() -> Option<String> + Send + Sync>;

/// Tells who comes without a key.
pub type PlainTeller = Box<dyn Fn() -> WithoutKey + Send + Sync>;

/// A contributor of every heartbeat.
pub struct NodeWatch {
    pub descriptors: Descriptors,
    /// What is wrong with how many there are.
    pub few: Option<String>,
    pub connections: Arc<ServerStats>,
    /// The present shortage is in the log.
    pub told: AtomicBool,
    /// What is to be said of the node's key, if it has one.
    pub key: Option<KeyTeller>,
    /// Who comes without a key.
    pub plain: PlainTeller,
}

impl Contributor for NodeWatch {
    fn heartbeat(&self, heartbeat: &mut HeartbeatRequest) {
        let said = std::mem::take(&mut heartbeat.problem);
        let all =
            [self.shortage(), self.crowded(), self.few.clone(), self.key.as_ref().and_then(|tell| tell()), Some(said)];
        let all: Vec<String> = all.into_iter().flatten().filter(|problem| !problem.is_empty()).collect();
        heartbeat.problem = all.join("; ");
        let WithoutKey { served, refused } = (self.plain)();
        (heartbeat.plain, heartbeat.plain_refused) = (served, refused);
    }
}

impl NodeWatch {
    fn shortage(&self) -> Option<String> {
        let problem = shortage();
        match &problem {
            Some(problem) if !self.told.swap(true, Relaxed) => tracing::warn!(problem, "disks and logs wait"),
            None if self.told.swap(false, Relaxed) => {
                tracing::info!("disks and logs go on: nothing is lacking any more")
            }
            _ => {}
        }
        problem
    }

    fn crowded(&self) -> Option<String> {
        let max = self.descriptors.rpc;
        let for_clients = cairn_rpc::connections_for_clients(max) as u64;
        let open = self.connections.connections_open.load(Relaxed);
        (open >= for_clients).then(|| {
            format!(
                "all of its {for_clients} connections for clients are taken; idle ones are closed for new ones; look who connects, or raise LimitNOFILE (now {})",
                self.descriptors.limit
            )
        })
    }
}

/// What operations of disks and logs wait for now.
pub fn shortage() -> Option<String> {
    let (error, since) = short_of()?;
    Some(format!("for {} s: {error}; disks and logs wait, and go on by themselves", since.as_secs()))
}

/// Metrics of what the process has and may have.
pub fn sample(descriptors: Descriptors, samples: &mut Samples) {
    let gauges = [
        ("cairn_process_open_files", "File descriptors in use.", descriptors::open_now()),
        ("cairn_process_open_files_max", "File descriptors that the node may use.", descriptors.limit),
        ("cairn_rpc_connections_max", "Connections that the RPC port takes.", descriptors.rpc as u64),
        ("cairn_http_connections_max", "Connections that the HTTP port takes.", descriptors.http as u64),
    ];
    for (name, help, value) in gauges {
        samples.gauge(name, help, &[], value as f64);
    }
    let help = "Operations of disks and logs that waited because descriptors or memory were lacking.";
    samples.counter("cairn_process_resource_waits", help, &[], waits_for_resources());
}
