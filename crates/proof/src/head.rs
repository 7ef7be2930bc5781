//! [`Head`]: the process with manager and namespace, each a Raft group of one member on a simulated disk. It can lose
//! power and start again.

use std::sync::Arc;
use std::time::Duration;

use cairn_env::{FastRng, OsRng};
use cairn_manager::{Bootstrap, ManagerConfig, ManagerParts, ManagerServer};
use cairn_meta::{MetaConfig, MetaServer};
use cairn_node_agent::NodeAgent;
use cairn_raft_host::{HostConfig, RaftHost, RaftService};
use cairn_rpc::Server;
use cairn_sim::{CrashPolicy, SimDisk};
use cairn_types::NodeId;

use crate::ground::{Ground, Router, serve};
use crate::proxy::Proxy;

/// Its number in the manager's group.
const MEMBER: u32 = 1;
const REGISTER_PATIENCE: Duration = Duration::from_secs(20);

struct Running {
    server: Server,
    agent: Arc<NodeAgent>,
    manager: ManagerServer,
    meta: Arc<MetaServer>,
    raft: Arc<RaftHost>,
    _ground: Ground,
}

/// Manager and namespace.
pub struct Head {
    pub disk: SimDisk,
    proxy: Arc<Proxy>,
    data_nodes: usize,
    running: Option<Running>,
}

impl Head {
    /// Not yet running.
    pub fn new(disk: SimDisk, proxy: Arc<Proxy>, data_nodes: usize) -> Self {
        Self { disk, proxy, data_nodes, running: None }
    }

    /// Starts; blocks until the roles serve. Its own link must have no faults.
    pub fn start(&mut self) -> Result<(), String> {
        assert!(self.running.is_none(), "it runs already");
        let ground = Ground::lay(&self.disk, Some(MEMBER))?;
        let router = Arc::new(Router::default());
        let server = ground.bind(router.clone())?;
        self.proxy.lead_to(Some(server.local_addr()));
        let address = self.proxy.address();
        let uuid = ground.dir.lock().label().uuid;
        let disk = Arc::new(self.disk.clone());
        let host = HostConfig {
            cluster: ground.identity.cluster(),
            segment_bytes: 2 << 20,
            checkpoint_log_bytes: 256 << 10,
            ..HostConfig::new(NodeId(MEMBER), uuid)
        };
        let rng = Arc::new(FastRng::from_os());
        let raft = RaftHost::start(host, ground.clock.clone(), rng, disk.clone(), ground.transport.clone());
        let raft = Arc::new(raft.map_err(|error| error.to_string())?);
        serve(&router.raft, Arc::new(RaftService::start(raft.clone()).map_err(|error| error.to_string())?));
        let bootstrap = Bootstrap { meta_nodes: 1, data_nodes: self.data_nodes, quiet: Duration::from_secs(60) };
        let members = vec![(NodeId(MEMBER), address.clone())];
        let tick = Duration::from_millis(50);
        let config = ManagerConfig { bootstrap, tick, ..ManagerConfig::new(NodeId(MEMBER), members) };
        let parts = ManagerParts {
            raft: raft.clone(),
            client: ground.client.clone(),
            identity: ground.identity.clone(),
            clock: ground.clock.clone(),
            rng: Arc::new(OsRng),
        };
        let manager = ManagerServer::start(config, parts).map_err(|error| error.to_string())?;
        serve(&router.manager, manager.service());
        let agent = ground.agent(address.clone(), address, &["manager", "meta"], Vec::new())?;
        let registration = agent.wait_registered(REGISTER_PATIENCE).map_err(|error| error.to_string())?;
        let mut config = MetaConfig::new(uuid);
        // What is freed goes soon, so that who holds an old map of a file meets it.
        config.timings.free_grace = Duration::from_millis(300);
        config.timings.reclaim_idle = Duration::from_millis(100);
        config.timings.free_retry_min = Duration::from_millis(200);
        config.timings.free_retry_max = Duration::from_secs(1);
        let (client, clock) = (ground.client.clone(), ground.clock.clone());
        let meta = MetaServer::start(config, registration.node, disk, raft.clone(), client, clock);
        let meta = meta.map_err(|error| error.to_string())?;
        serve(&router.meta, meta.clone());
        agent.join(meta.clone());
        self.running = Some(Running { server, agent, manager, meta, raft, _ground: ground });
        Ok(())
    }

    /// Power goes: nothing is said or written any more, and the policy decides about what was not synced.
    pub fn crash(&mut self, policy: CrashPolicy) {
        self.disk.power_off();
        self.stop();
        self.disk.crash(policy);
    }

    /// Ends it where it stands.
    pub fn stop(&mut self) {
        self.proxy.lead_to(None);
        let Some(running) = self.running.take() else { return };
        running.agent.stop();
        running.server.shutdown(Duration::ZERO);
        running.meta.stop();
        running.manager.stop();
        running.raft.shutdown();
    }
}

impl Drop for Head {
    fn drop(&mut self) {
        self.stop();
    }
}
