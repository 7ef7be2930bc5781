//! CPU time of this process and of all server processes of a cluster.
use cairn_client::Client;
use cairn_telemetry::ProcessUse;
use std::collections::BTreeMap;

/// CPU time between two readings, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuUsed {
    pub client_us: u64,
    pub servers_us: u64,
}

/// A reading. Servers are told apart by their process, since one process may carry many.
#[derive(Clone, Debug, Default)]
pub struct CpuReading {
    client_us: u64,
    servers: BTreeMap<u32, u64>,
}

impl CpuReading {
    /// Asks every server of the map; one that does not answer counts nothing.
    pub async fn take(client: &Client) -> CpuReading {
        let own = ProcessUse::now();
        let mut reading = CpuReading { client_us: own.cpu_user_us + own.cpu_system_us, servers: BTreeMap::new() };
        for node in client.view().nodes.values().filter(|n| n.up) {
            if let Ok(stats) = client.server_use(&node.address).await {
                let used = stats.cpu_user_us + stats.cpu_system_us;
                // Servers inside this very process are counted once, as servers.
                let entry = reading.servers.entry(stats.pid).or_default();
                *entry = (*entry).max(used);
            }
        }
        reading
    }
    /// What was used since `earlier`; servers seen in both readings count.
    pub fn since(&self, earlier: &CpuReading) -> CpuUsed {
        let servers = self.servers.iter().filter_map(|(pid, now)| Some(now.saturating_sub(*earlier.servers.get(pid)?)));
        CpuUsed { client_us: self.client_us - earlier.client_us, servers_us: servers.sum() }
    }
}
