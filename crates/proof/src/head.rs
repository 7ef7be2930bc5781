//! [`Head`]: a process with manager and namespace on a simulated disk: one of one or three members of each Raft group;
//! or a spare one with the namespace alone, that partitions move to, or with a manager alone, that the managers' group
//! takes in. It can lose power and start again.

use std::sync::Arc;
use std::time::Duration;

use cairn_env::{FastRng, OsRng};
use cairn_manager::{Bootstrap, ManagerConfig, ManagerParts, ManagerServer};
use cairn_meta::{MetaConfig, MetaServer, StateDigest};
use cairn_node_agent::NodeAgent;
use cairn_raft_host::{HostConfig, RaftHost, RaftService};
use cairn_rpc::Server;
use cairn_sim::{CrashPolicy, DiskImage, SimDisk, SimRng};
use cairn_types::{DiskUuid, NodeId, PartitionId};

use crate::copies::Copies;
use crate::encoded;
use crate::ground::{Ground, Router, serve};
use crate::links::host_of;
use crate::plug::Plug;
use crate::roster::{Roster, manager_number};

const REGISTER_PATIENCE: Duration = Duration::from_secs(60);
/// Time that one of three waits at its start for somebody outside its group to say how far it got.
const WITNESS_WAIT: Duration = Duration::from_secs(5);

struct Running {
    server: Server,
    agent: Arc<NodeAgent>,
    /// Not of a spare one.
    manager: Option<ManagerServer>,
    meta: Option<Arc<MetaServer>>,
    /// Of a spare one once it is registered.
    raft: Option<Arc<RaftHost>>,
    router: Arc<Router>,
    uuid: DiskUuid,
    ground: Ground,
}

/// Which roles a head has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Roles {
    /// Manager and namespace.
    Both,
    /// The namespace.
    Namespace,
    /// A manager.
    Manager,
    /// None now: it does not run, and its directory is empty.
    None,
}

/// Manager and namespace.
pub struct Head {
    pub place: usize,
    pub disk: SimDisk,
    pub roles: Roles,
    plug: Arc<Plug>,
    roster: Arc<Roster>,
    /// Meta and data nodes that there are at the beginning.
    nodes: (usize, usize),
    /// Files are encoded in this seed: what its former runs had encoded, and it looks often.
    staged: bool,
    encoded_before: u64,
    /// What its directory had, and for which roles.
    copies: Copies<(DiskImage, Roles)>,
    running: Option<Running>,
}

impl Head {
    /// Not yet running.
    pub fn new(
        place: usize,
        disk: SimDisk,
        roles: Roles,
        plug: Arc<Plug>,
        roster: Arc<Roster>,
        nodes: (usize, usize),
        staged: bool,
    ) -> Self {
        let (encoded_before, copies) = (0, Copies::default());
        Self { place, disk, roles, plug, roster, nodes, staged, encoded_before, copies, running: None }
    }

    /// Bytes that data nodes encoded for it file by file so far.
    pub fn encoded_by_file(&self) -> u64 {
        let now = self.running.as_ref().and_then(|running| running.meta.as_ref()).map(encoded::by_file);
        self.encoded_before + now.unwrap_or_default()
    }

    /// Its number in the manager's group and as a node, if the configuration says it.
    fn configured(&self) -> Option<u32> {
        matches!(self.roles, Roles::Both | Roles::Manager).then(|| manager_number(self.place))
    }

    /// How others reach it.
    pub fn address(&self) -> String {
        self.plug.address()
    }

    /// Its number as a node, once it has one.
    pub fn number(&self) -> Option<u32> {
        let given = || Some(self.running.as_ref()?.ground.dir.lock().label().node.get()).filter(|number| *number != 0);
        self.configured().or_else(given)
    }

    /// The state that it has of a partition, and of the manager's group.
    pub fn digests(&self, partition: PartitionId) -> (Option<StateDigest>, Option<(u64, u64, u32)>) {
        let running = self.running.as_ref();
        let meta = running.and_then(|running| running.meta.as_ref()?.state_digest(partition));
        (meta, running.and_then(|running| Some(running.manager.as_ref()?.state_digest())))
    }

    /// Whether it runs.
    pub fn is_up(&self) -> bool {
        self.running.is_some()
    }

    /// Managers as its configuration names them, itself included.
    fn members(&self) -> Vec<(NodeId, String)> {
        let mut members = self.roster.numbers();
        if let Some(number) = self.configured().filter(|_| !self.roster.has(self.place)) {
            members.push((NodeId(number), self.address()));
        }
        members
    }

    fn raft(&self, ground: &Ground, uuid: DiskUuid, node: NodeId) -> Result<Arc<RaftHost>, String> {
        let host = HostConfig {
            cluster: ground.identity.cluster(),
            segment_bytes: 2 << 20,
            checkpoint_log_bytes: 256 << 10,
            // Half as often as usual: most of what a seed costs is what goes on anyway.
            tick: Duration::from_millis(100),
            // Not as many as the machine has: a seed means the same on each.
            workers: 2,
            witness_wait: if self.nodes.0 == 1 { Duration::ZERO } else { WITNESS_WAIT },
            marks: Some(ground.marks.clone()),
            ..HostConfig::new(node, uuid)
        };
        let (rng, disk) = (Arc::new(FastRng::from_os()), Arc::new(self.disk.clone()));
        let raft = RaftHost::start(host, ground.clock.clone(), rng, disk, ground.transport.clone());
        let raft = raft.map(Arc::new).map_err(|error| error.to_string())?;
        Ok(ground.raft.get_or_init(|| raft).clone())
    }

    /// Starts the manager, if it is to have one, which asks the others first.
    fn begin(&mut self) -> Result<(), String> {
        let _there = cairn_dst::host::enter(host_of(self.place));
        let number = self.configured();
        let is_manager = number.is_some() || self.roster.began_with(self.place);
        let key = self.roster.keys.server(self.place, is_manager);
        let ground = Ground::lay(&self.disk, number, key)?;
        for (member, address) in self.members() {
            ground.transport.set_address(member, address);
        }
        let router = Arc::new(Router::default());
        let server = ground.bind(&self.plug, router.clone())?;
        let uuid = ground.dir.lock().label().uuid;
        let (manager, raft) = match number {
            None => (None, None),
            Some(number) => {
                let raft = self.raft(&ground, uuid, NodeId(number))?;
                serve(&router.raft, Arc::new(RaftService::start(raft.clone()).map_err(|error| error.to_string())?));
                let manager = self.manager(&ground, raft.clone(), NodeId(number))?;
                serve(&router.manager, manager.service());
                (Some(manager), Some(raft))
            }
        };
        let roles: &[&str] = match self.roles {
            Roles::Both => &["manager", "meta"],
            Roles::Manager => &["manager"],
            Roles::Namespace | Roles::None => &["meta"],
        };
        let (address, rack) = (self.address(), format!("rack-{}", self.address()));
        let agent = ground.agent(address, rack, self.roster.addresses(), roles, Vec::new())?;
        self.running = Some(Running { server, agent, manager, meta: None, raft, router, uuid, ground });
        Ok(())
    }

    fn manager(&self, ground: &Ground, raft: Arc<RaftHost>, number: NodeId) -> Result<ManagerServer, String> {
        let (meta_nodes, data_nodes) = self.nodes;
        let bootstrap = Bootstrap { meta_nodes, data_nodes, quiet: Duration::from_secs(60), smaller: false };
        let tick = Duration::from_millis(50);
        let config = ManagerConfig { bootstrap, tick, ..ManagerConfig::new(number, self.members()) };
        let parts = ManagerParts {
            raft,
            client: ground.client.clone(),
            identity: ground.identity.clone(),
            clock: ground.clock.clone(),
            rng: Arc::new(OsRng),
        };
        ManagerServer::start(config, parts).map_err(|error| error.to_string())
    }

    /// Waits until the managers know it, then serves the namespace. Its own link must have no faults.
    fn join(&mut self) -> Result<(), String> {
        let disk = Arc::new(self.disk.clone());
        // A manager alone may have to be taken in first.
        let waiting = self.running.as_ref().filter(|running| running.meta.is_none() && self.roles != Roles::Manager);
        let Some(running) = waiting else { return Ok(()) };
        let _there = cairn_dst::host::enter(host_of(self.place));
        let registered = running.agent.wait_registered(REGISTER_PATIENCE);
        let registration = registered.map_err(|error| error.to_string())?;
        let raft = match &running.raft {
            Some(raft) => raft.clone(),
            None => {
                let raft = self.raft(&running.ground, running.uuid, registration.node)?;
                let service = RaftService::start(raft.clone()).map_err(|error| error.to_string())?;
                serve(&running.router.raft, Arc::new(service));
                raft
            }
        };
        let mut config = MetaConfig::new(running.uuid);
        // What is freed goes soon, so that who holds an old map of a file meets it.
        config.timings.free_grace = Duration::from_millis(300);
        config.timings.reclaim_idle = Duration::from_millis(100);
        config.timings.free_retry_min = Duration::from_millis(200);
        config.timings.free_retry_max = Duration::from_secs(1);
        if self.staged {
            config.timings.stage_tick = Duration::from_millis(300);
            config.timings.stage_retry = Duration::from_millis(300);
        }
        let (client, clock) = (running.ground.client.clone(), running.ground.clock.clone());
        let meta = MetaServer::start(config, registration.node, disk, raft.clone(), client, clock);
        let meta = meta.map_err(|error| error.to_string())?;
        serve(&running.router.meta, meta.clone());
        running.agent.join(meta.clone());
        let running = self.running.as_mut().expect("it was there");
        (running.meta, running.raft) = (Some(meta), Some(raft));
        Ok(())
    }

    /// Starts; blocks until the roles serve.
    pub fn start(&mut self) -> Result<(), String> {
        assert!(self.running.is_none() && self.roles != Roles::None, "it runs already, or is not to run");
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

    /// Keeps what its directory has now.
    pub fn keep_copy(&mut self, rng: &SimRng) {
        if self.running.is_some() && !self.disk.is_down() {
            self.copies.keep((self.disk.snapshot(), self.roles), rng);
        }
    }

    /// Whether an earlier state of its directory is known.
    pub fn can_go_back(&self) -> bool {
        self.copies.has(|(_, roles)| *roles == self.roles)
    }

    /// Its directory has again what it had at an earlier moment, as if power had gone then. It must not run. False:
    /// none is known.
    pub fn go_back(&mut self, rng: &SimRng, policy: CrashPolicy) -> bool {
        assert!(self.running.is_none(), "it runs");
        let Some((image, _)) = self.copies.pick(rng, |(_, roles)| *roles == self.roles) else { return false };
        self.disk.restore(image);
        self.disk.crash(policy);
        true
    }

    /// An empty disk is in the place of the one that there was. It must not run.
    pub fn wipe(&mut self, disk: SimDisk) {
        assert!(self.running.is_none(), "it runs");
        (self.disk, self.roles) = (disk, Roles::None);
        self.copies.clear();
    }

    /// Ends it where it stands.
    pub fn stop(&mut self) {
        self.plug.pull();
        if self.staged {
            self.encoded_before = self.encoded_by_file();
        }
        let Some(running) = self.running.take() else { return };
        running.agent.stop();
        running.server.shutdown(Duration::ZERO);
        if let Some(meta) = running.meta {
            meta.stop();
        }
        if let Some(manager) = running.manager {
            manager.stop();
        }
        if let Some(raft) = running.raft {
            raft.shutdown();
        }
    }
}

impl Drop for Head {
    fn drop(&mut self) {
        self.stop();
    }
}
