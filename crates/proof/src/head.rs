//! [`Head`]: a process with manager and namespace on a simulated disk: one of one or three members of each Raft group. It
//! can lose power and start again.

use std::sync::Arc;
use std::time::Duration;

use cairn_env::{FastRng, OsRng};
use cairn_manager::{Bootstrap, ManagerConfig, ManagerParts, ManagerServer};
use cairn_meta::{MetaConfig, MetaServer};
use cairn_node_agent::NodeAgent;
use cairn_raft_host::{HostConfig, RaftHost, RaftService};
use cairn_rpc::Server;
use cairn_sim::{CrashPolicy, SimDisk};
use cairn_types::{DiskUuid, NodeId};

use crate::ground::{Ground, Router, host_of, serve};
use crate::proxy::Proxy;

const REGISTER_PATIENCE: Duration = Duration::from_secs(60);

struct Running {
    server: Server,
    agent: Arc<NodeAgent>,
    manager: ManagerServer,
    meta: Option<Arc<MetaServer>>,
    raft: Arc<RaftHost>,
    router: Arc<Router>,
    uuid: DiskUuid,
    ground: Ground,
}

/// Manager and namespace.
pub struct Head {
    pub place: usize,
    pub disk: SimDisk,
    proxy: Arc<Proxy>,
    /// Addresses of all heads, in the order of their places.
    managers: Vec<String>,
    data_nodes: usize,
    running: Option<Running>,
}

impl Head {
    /// Not yet running.
    pub fn new(place: usize, disk: SimDisk, proxy: Arc<Proxy>, managers: Vec<String>, data_nodes: usize) -> Self {
        Self { place, disk, proxy, managers, data_nodes, running: None }
    }

    /// The number of the head in a place, in the manager's group and as a node.
    pub fn number(place: usize) -> u32 {
        place as u32 + 1
    }

    /// Whether it runs.
    pub fn is_up(&self) -> bool {
        self.running.is_some()
    }

    fn members(&self) -> Vec<(NodeId, String)> {
        let member = |(place, address): (usize, &String)| (NodeId(Self::number(place)), address.clone());
        self.managers.iter().enumerate().map(member).collect()
    }

    fn raft(&self, ground: &Ground, uuid: DiskUuid) -> Result<Arc<RaftHost>, String> {
        let host = HostConfig {
            cluster: ground.identity.cluster(),
            segment_bytes: 2 << 20,
            checkpoint_log_bytes: 256 << 10,
            ..HostConfig::new(NodeId(Self::number(self.place)), uuid)
        };
        let (rng, disk) = (Arc::new(FastRng::from_os()), Arc::new(self.disk.clone()));
        let raft = RaftHost::start(host, ground.clock.clone(), rng, disk, ground.transport.clone());
        raft.map(Arc::new).map_err(|error| error.to_string())
    }

    /// Starts the manager, which asks the others first.
    fn begin(&mut self) -> Result<(), String> {
        let _there = cairn_dst::host::enter(host_of(self.place));
        let number = Self::number(self.place);
        let ground = Ground::lay(&self.disk, Some(number))?;
        for (member, address) in self.members() {
            ground.transport.set_address(member, address);
        }
        let router = Arc::new(Router::default());
        let server = ground.bind(router.clone())?;
        self.proxy.lead_to(Some(server.local_addr()));
        let uuid = ground.dir.lock().label().uuid;
        let raft = self.raft(&ground, uuid)?;
        serve(&router.raft, Arc::new(RaftService::start(raft.clone()).map_err(|error| error.to_string())?));
        let bootstrap =
            Bootstrap { meta_nodes: self.managers.len(), data_nodes: self.data_nodes, quiet: Duration::from_secs(60) };
        let tick = Duration::from_millis(50);
        let config = ManagerConfig { bootstrap, tick, ..ManagerConfig::new(NodeId(number), self.members()) };
        let parts = ManagerParts {
            raft: raft.clone(),
            client: ground.client.clone(),
            identity: ground.identity.clone(),
            clock: ground.clock.clone(),
            rng: Arc::new(OsRng),
        };
        let manager = ManagerServer::start(config, parts).map_err(|error| error.to_string())?;
        serve(&router.manager, manager.service());
        let agent = ground.agent(self.proxy.address(), self.managers.clone(), &["manager", "meta"], Vec::new())?;
        self.running = Some(Running { server, agent, manager, meta: None, raft, router, uuid, ground });
        Ok(())
    }

    /// Waits until the managers know it, then serves the namespace. Its own link must have no faults.
    fn join(&mut self) -> Result<(), String> {
        let disk = Arc::new(self.disk.clone());
        let Some(running) = self.running.as_mut().filter(|running| running.meta.is_none()) else { return Ok(()) };
        let _there = cairn_dst::host::enter(host_of(self.place));
        let registered = running.agent.wait_registered(REGISTER_PATIENCE);
        let registration = registered.map_err(|error| error.to_string())?;
        let mut config = MetaConfig::new(running.uuid);
        // What is freed goes soon, so that who holds an old map of a file meets it.
        config.timings.free_grace = Duration::from_millis(300);
        config.timings.reclaim_idle = Duration::from_millis(100);
        config.timings.free_retry_min = Duration::from_millis(200);
        config.timings.free_retry_max = Duration::from_secs(1);
        let (client, clock) = (running.ground.client.clone(), running.ground.clock.clone());
        let meta = MetaServer::start(config, registration.node, disk, running.raft.clone(), client, clock);
        let meta = meta.map_err(|error| error.to_string())?;
        serve(&running.router.meta, meta.clone());
        running.agent.join(meta.clone());
        running.meta = Some(meta);
        Ok(())
    }

    /// Starts; blocks until the roles serve.
    pub fn start(&mut self) -> Result<(), String> {
        assert!(self.running.is_none(), "it runs already");
        self.begin()?;
        self.join()
    }

    /// Power goes: nothing is said or written any more, and the policy decides about what was not synced.
    pub fn crash(&mut self, policy: CrashPolicy) {
        self.disk.power_off();
        self.stop();
        self.disk.crash(policy);
    }

    /// The process ends, the machine lives.
    pub fn kill(&mut self) {
        self.disk.power_off();
        self.stop();
        self.disk.kill();
    }

    /// Ends it where it stands.
    pub fn stop(&mut self) {
        self.proxy.lead_to(None);
        let Some(running) = self.running.take() else { return };
        running.agent.stop();
        running.server.shutdown(Duration::ZERO);
        if let Some(meta) = running.meta {
            meta.stop();
        }
        running.manager.stop();
        running.raft.shutdown();
    }
}

impl Drop for Head {
    fn drop(&mut self) {
        self.stop();
    }
}
