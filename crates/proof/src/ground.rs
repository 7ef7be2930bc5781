//! What every process of the cluster stands on: its directory on a simulated disk, its identity, its calls to others,
//! its one port. The same parts in the same order as in the binary; only disks and addresses differ.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cairn_env::{BufPool, Clock, OsRng, RealClock};
use cairn_format::label::LabelKind;
use cairn_node_agent::{AgentConfig, Contributor, NodeAgent, Registration};
use cairn_raft_host::{MarkBook, RaftHost, RpcTransport};
use cairn_rpc::{
    Client, ClientConfig, Identity, LeaderClient, NodeKeys, Reply, Request, Server, ServerConfig, Service,
};
use cairn_security::Tls;
use cairn_sim::{SimDisk, SimDiskOptions, SimRng};
use cairn_store::LabelledDir;
use cairn_types::{ClusterId, ErrorCode, NodeId};
use cairn_wire::Opcode;
use cairn_wire::common::PingResponse;
use cairn_wire::error::WireError;
use cairn_wire::hello::PeerKind;
use cairn_wire::manager::ClusterMap;
use parking_lot::Mutex;

use crate::marks::MarkKeeper;
use crate::plug::Plug;

/// Received payloads of one process.
const POOL_BYTES: usize = 32 << 20;

/// A simulated disk with a name of its own. Half of them take a time for syncs.
pub fn new_disk(seed: u64, name: String, capacity: u64) -> SimDisk {
    let disk = SimDisk::with_options(SimDiskOptions { name, capacity, ..SimDiskOptions::seeded(seed) });
    disk.set_sync_max(Duration::from_millis(*SimRng::derived(seed, "syncs").pick(&[0, 0, 2, 12])));
    disk
}

/// The parts below the roles.
pub struct Ground {
    pub dir: Arc<Mutex<LabelledDir>>,
    pub identity: Identity,
    pub client: Client,
    pub clock: Arc<dyn Clock>,
    pub transport: Arc<RpcTransport>,
    /// How far members of Raft groups got.
    pub marks: Arc<MarkBook>,
    /// Of a head, once it has one.
    pub raft: Arc<OnceLock<Arc<RaftHost>>>,
}

impl Ground {
    /// Opens the directory; `number`: the node's, where the configuration says it. `key`: who it is to others.
    pub fn lay(home: &SimDisk, number: Option<u32>, key: Option<Arc<Tls>>) -> Result<Self, String> {
        let clock: Arc<dyn Clock> = Arc::new(RealClock);
        let disk = Arc::new(home.clone());
        let mut dir = LabelledDir::open(disk, LabelKind::Node, ClusterId::NONE, &OsRng, clock.wall())
            .map_err(|error| error.to_string())?;
        if let Some(number) = number {
            dir.set_node(NodeId(number)).map_err(|error| error.to_string())?;
        }
        let identity = Identity::with_key(dir.label().cluster, PeerKind::Server, dir.label().node, key);
        let config = ClientConfig {
            pool: BufPool::new(POOL_BYTES),
            backoff_max: Duration::from_millis(300),
            ..ClientConfig::default()
        };
        let client = Client::with_threads(1, config, identity.clone()).map_err(|error| error.to_string())?;
        let transport = Arc::new(RpcTransport::new(client.clone()));
        let marks = MarkBook::open(dir.disk().clone(), clock.clone(), dir.label().uuid);
        let marks = Arc::new(marks.map_err(|error| error.to_string())?);
        let dir = Arc::new(Mutex::new(dir));
        Ok(Self { dir, identity, client, clock, transport, marks, raft: Arc::default() })
    }

    /// The one port. From now on the process is on the network.
    pub fn bind(&self, plug: &Plug, router: Arc<Router>) -> Result<Server, String> {
        let config = ServerConfig { threads: 1, pool: BufPool::new(POOL_BYTES), ..ServerConfig::default() };
        plug.connect();
        Server::bind(plug.socket(), config, self.identity.clone(), router).map_err(|error| error.to_string())
    }

    /// The agent, with heartbeats that come more often than usual.
    pub fn agent(
        &self,
        address: String,
        rack: String,
        managers: Vec<String>,
        roles: &[&str],
        more: Vec<Arc<dyn Contributor>>,
    ) -> Result<Arc<NodeAgent>, String> {
        let label = *self.dir.lock().label();
        let mut config = AgentConfig::new(label.uuid, address.clone());
        config.node = label.node;
        config.roles = roles.iter().map(|role| (*role).to_owned()).collect();
        config.host = format!("host-{address}");
        config.rack = rack;
        config.heartbeat_interval = Duration::from_millis(400);
        config.call_deadline = Duration::from_secs(2);
        config.register_pause = Duration::from_millis(100);
        let manager = LeaderClient::new(self.client.clone(), "the manager", managers);
        let (dir, transport, node_keys) = (self.dir.clone(), self.transport.clone(), self.identity.node_keys().clone());
        let keeper = Keeper { dir, transport, node_keys };
        let marks = MarkKeeper { book: self.marks.clone(), raft: self.raft.clone() };
        let mut contributors: Vec<Arc<dyn Contributor>> = vec![Arc::new(keeper), Arc::new(marks)];
        contributors.extend(more);
        let agent = NodeAgent::start(config, manager, self.identity.clone(), contributors);
        agent.map(Arc::new).map_err(|error| error.to_string())
    }
}

/// Writes what the manager gave into the label, and keeps addresses for Raft.
struct Keeper {
    dir: Arc<Mutex<LabelledDir>>,
    transport: Arc<RpcTransport>,
    node_keys: Arc<NodeKeys>,
}

impl Contributor for Keeper {
    fn registered(&self, registration: &Registration) -> Result<(), String> {
        let mut dir = self.dir.lock();
        let known = dir.label().node;
        if known != NodeId(0) && known != registration.node {
            return Err(format!("the label says {known}, the manager {}", registration.node));
        }
        dir.set_cluster(registration.cluster).map_err(|error| error.to_string())?;
        dir.set_node(registration.node).map_err(|error| error.to_string())
    }

    fn map_changed(&self, change: &ClusterMap, _term: u64) {
        for node in change.nodes.iter().filter(|node| !node.address.is_empty()) {
            self.transport.set_address(NodeId(node.id), node.address.clone());
        }
        self.node_keys.learn_map(change);
        self.transport.learn_members(change);
    }
}

/// One port for all roles: the high byte of the operation says whose it is.
#[derive(Default)]
pub struct Router {
    pub raft: OnceLock<Arc<dyn Service>>,
    pub manager: OnceLock<Arc<dyn Service>>,
    pub data: OnceLock<Arc<dyn Service>>,
    pub meta: OnceLock<Arc<dyn Service>>,
    pub jobs: OnceLock<Arc<dyn Service>>,
}

impl Service for Router {
    fn call(&self, request: Request<'_>, reply: Reply) {
        let slot = match request.opcode >> 8 {
            1 => &self.raft,
            2 => &self.manager,
            3 => &self.data,
            4 | 5 => &self.meta,
            6 => &self.jobs,
            _ if request.opcode == Opcode::Ping.code() => match self.data.get() {
                Some(_) if !request.message.is_empty() => &self.data,
                _ => return reply.ok(&PingResponse::default(), ()),
            },
            _ => return reply.err(WireError::new(ErrorCode::UnknownOperation, "not served here")),
        };
        match slot.get() {
            Some(service) => service.call(request, reply),
            None => reply.err(WireError::new(ErrorCode::Unavailable, "the role is still starting")),
        }
    }

    fn batch_end(&self) {
        for slot in [&self.raft, &self.manager, &self.data, &self.meta, &self.jobs] {
            if let Some(service) = slot.get() {
                service.batch_end();
            }
        }
    }
}

/// Puts a role behind the port.
pub fn serve(slot: &OnceLock<Arc<dyn Service>>, service: Arc<dyn Service>) {
    assert!(slot.set(service).is_ok(), "a role is started once");
}
