//! A cluster of managers in this process: own directories, own ports, real logs.
use crate::{Bootstrap, ManagerConfig, ManagerError, ManagerParts, ManagerServer};
use bytes::Bytes;
use cairn_env::{BufPool, FastRng, RealClock, RealDisk};
use cairn_raft_host::{FetchError, HostConfig, RaftHost, RaftTransport};
use cairn_rpc::{
    CallOptions, Client, ClientConfig, Identity, LeaderClient, LeaderError, Repeat, Reply, Request, Server,
    ServerConfig, Service,
};
use cairn_types::{ClusterId, DiskUuid, NodeId};
use cairn_wire::Opcode;
use cairn_wire::audience::{Caller, Roles};
use cairn_wire::common::Empty;
use cairn_wire::hello::PeerKind;
use cairn_wire::holder::Holder;
use cairn_wire::manager::{
    ClusterMap, ConfigItem, GetMapRequest, SetConfigRequest, SetConfigResponse, StatusRequest, StatusResponse,
};
use cairn_wire::raft::{FetchCheckpointRequest, FetchCheckpointResponse, RaftBatch};
use cairn_wire::rights::Rights;
use parking_lot::Mutex;
use prost::Message;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Longer than anything here takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

pub fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

pub fn server_config() -> ServerConfig {
    let pool = BufPool::new(cairn_rpc_pool());
    ServerConfig { threads: 1, pool, hello_timeout: PATIENCE, ..ServerConfig::default() }
}

fn cairn_rpc_pool() -> usize {
    64 << 20
}

pub fn new_client(identity: Identity) -> Client {
    let pool = BufPool::new(cairn_rpc_pool());
    let config = ClientConfig { pool, connect_timeout: PATIENCE, ..ClientConfig::default() };
    Client::with_threads(1, config, identity).expect("a thread")
}

/// Runs a future here and now.
pub fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(future)
}

/// Waits until something holds.
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "{what} did not come about");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Sends Raft messages through RPC.
struct Wire {
    client: Client,
    addresses: Addresses,
}

type Addresses = Arc<Mutex<BTreeMap<NodeId, String>>>;

impl RaftTransport for Wire {
    fn send(&self, to: NodeId, batch: RaftBatch) {
        let address = self.addresses.lock().get(&to).cloned();
        if let Some(address) = address {
            // Lost messages are Raft's daily bread.
            let _ = self.client.send(&address, Opcode::RaftMessages.code(), &batch, ());
        }
    }
    fn fetch(
        &self,
        from: NodeId,
        request: FetchCheckpointRequest,
    ) -> Result<(FetchCheckpointResponse, Bytes), FetchError> {
        let failed = |cause: String| FetchError::Failed { from, cause };
        let address = self.addresses.lock().get(&from).cloned().ok_or_else(|| failed("no address".into()))?;
        let options = CallOptions::new(Duration::from_secs(3));
        let call = self.client.call(&address, Opcode::FetchCheckpoint.code(), &request, (), options);
        let answer = wait(call).map_err(|e| failed(e.to_string()))?;
        let message = answer.decode::<FetchCheckpointResponse>().map_err(|e| failed(e.to_string()))?;
        let bytes = answer.payload.map(|payload| Bytes::copy_from_slice(&payload)).unwrap_or_default();
        Ok((message, bytes))
    }
}

/// The port of a process, before and while its roles run.
#[derive(Default)]
struct Router {
    raft: OnceLock<Arc<RaftHost>>,
    manager: OnceLock<Arc<dyn Service>>,
    key: ShownKey,
}

/// The key with which nodes register and are heard, as if they had shown it; `None`: a cluster without keys.
type ShownKey = Arc<Mutex<Option<Holder>>>;

/// A node's key that may have every role.
pub fn key_of(name: &str) -> Holder {
    let caller = Caller::Node(Roles::ALL);
    Holder { name: name.into(), caller, node: NodeId(0), until: 0, rights: Rights::everything() }
}

impl Service for Router {
    fn call(&self, request: Request<'_>, reply: Reply) {
        let starting = || cairn_wire::error::WireError::new(cairn_types::ErrorCode::Unavailable, "starting");
        match (Opcode::from_code(request.opcode), self.raft.get(), self.manager.get()) {
            (Some(Opcode::Ping), ..) => reply.ok(&Empty {}, ()),
            (Some(Opcode::RaftMessages), Some(raft), _) => {
                raft.deliver(RaftBatch::decode(request.message).expect("a batch"));
                reply.ok(&Empty {}, ());
            }
            (Some(Opcode::FetchCheckpoint), Some(raft), _) => {
                let request = FetchCheckpointRequest::decode(request.message).expect("a request");
                let (answer, bytes) = raft.fetch_checkpoint(&request).expect("a part of a checkpoint");
                let mut payload = cairn_env::AlignedBuf::unpooled(bytes.len());
                payload.extend_from_slice(&bytes);
                reply.ok(&answer, payload);
            }
            (Some(Opcode::Register | Opcode::Heartbeat), Some(_), Some(manager)) => {
                let mut peer = request.peer.as_ref().clone();
                peer.holder.clone_from(&self.key.lock());
                manager.call(Request { peer: &Arc::new(peer), ..request }, reply);
            }
            (_, Some(_), Some(manager)) => manager.call(request, reply),
            _ => reply.err(starting()),
        }
    }
}

/// A running member.
pub struct Running {
    pub manager: ManagerServer,
    pub identity: Identity,
    pub raft: Arc<RaftHost>,
    server: Server,
}

/// Members that can be killed and started again under their addresses.
pub struct Managers {
    dirs: Vec<TempDir>,
    pub addresses: Vec<String>,
    pub running: Vec<Option<Running>>,
    pub bootstrap: Bootstrap,
    pub client: LeaderClient,
    /// Members from this one on are started to join.
    pub joining: usize,
    /// How long members that start wait for what nodes know of them.
    pub witness_wait: Duration,
    book: Addresses,
    key: ShownKey,
    clients: Mutex<Vec<Client>>,
}

impl Managers {
    /// `count` members; the default volume is made when `meta` and `data` nodes are there.
    pub fn start(count: usize, meta: usize, data: usize) -> Self {
        let bootstrap = Bootstrap { meta_nodes: meta, data_nodes: data, quiet: Duration::from_secs(60), smaller: true };
        // Ports are held until all are known.
        let key = ShownKey::default();
        let router = || Arc::new(Router { key: key.clone(), ..Router::default() });
        let routers: Vec<Arc<Router>> = (0..count).map(|_| router()).collect();
        let identities: Vec<Identity> = (0..count).map(|i| identity(ClusterId::NONE, i)).collect();
        let servers: Vec<Server> = (0..count)
            .map(|i| {
                Server::bind(any_port(), server_config(), identities[i].clone(), routers[i].clone()).expect("a port")
            })
            .collect();
        let addresses: Vec<String> = servers.iter().map(|server| server.local_addr().to_string()).collect();
        let client = new_client(Identity::client());
        let client = LeaderClient::new(client, "the manager", addresses.clone());
        let mut managers = Self {
            dirs: (0..count).map(|_| TempDir::new().expect("a directory")).collect(),
            addresses,
            running: (0..count).map(|_| None).collect(),
            bootstrap,
            client,
            joining: usize::MAX,
            witness_wait: Duration::ZERO,
            book: Addresses::default(),
            key,
            clients: Mutex::default(),
        };
        for (i, ((server, router), identity)) in servers.into_iter().zip(routers).zip(identities).enumerate() {
            managers.running[i] = Some(managers.run(i, server, &router, identity));
        }
        managers
    }

    fn run(&self, i: usize, server: Server, router: &Router, identity: Identity) -> Running {
        self.try_run(i, server, router, identity).expect("a manager")
    }

    fn try_run(&self, i: usize, server: Server, router: &Router, identity: Identity) -> Result<Running, ManagerError> {
        let member = NodeId(i as u32 + 1);
        let members: Vec<(NodeId, String)> =
            self.addresses.iter().enumerate().map(|(i, a)| (NodeId(i as u32 + 1), a.clone())).collect();
        let client = new_client(identity.clone());
        self.book.lock().extend(members.iter().cloned());
        let transport = Wire { client: client.clone(), addresses: self.book.clone() };
        let disk = Arc::new(RealDisk::open(self.dirs[i].path()).expect("a disk"));
        let host = HostConfig {
            segment_bytes: 1 << 20,
            cluster: identity.cluster(),
            witness_wait: self.witness_wait,
            ..HostConfig::new(member, DiskUuid([i as u8 + 1; 16]))
        };
        let (clock, rng) = (Arc::new(RealClock), Arc::new(FastRng::from_os()));
        let raft = RaftHost::start(host, clock.clone(), rng.clone(), disk, Arc::new(transport)).expect("a log");
        let raft = Arc::new(raft);
        let config = ManagerConfig {
            bootstrap: self.bootstrap.clone(),
            tick: Duration::from_millis(50),
            join: i >= self.joining,
            ..ManagerConfig::new(member, members)
        };
        let parts = ManagerParts { raft: raft.clone(), client: client.clone(), identity: identity.clone(), clock, rng };
        assert!(router.raft.set(raft.clone()).is_ok());
        let manager = ManagerServer::start(config, parts)?;
        assert!(router.manager.set(manager.service()).is_ok());
        self.clients.lock().push(client);
        Ok(Running { manager, identity, raft, server })
    }

    /// Starts one more process that waits to be made a member.
    pub fn add(&mut self) -> usize {
        let i = self.running.len();
        self.joining = self.joining.min(i);
        let (router, identity) = (self.router(), identity(ClusterId::NONE, i));
        let server = Server::bind(any_port(), server_config(), identity.clone(), router.clone()).expect("a port");
        self.addresses.push(server.local_addr().to_string());
        self.client.set_addresses(self.addresses.clone());
        self.dirs.push(TempDir::new().expect("a directory"));
        self.running.push(Some(self.run(i, server, &router, identity)));
        i
    }

    fn router(&self) -> Arc<Router> {
        Arc::new(Router { key: self.key.clone(), ..Router::default() })
    }

    /// Nodes show this key from now on.
    pub fn show(&self, name: &str) {
        *self.key.lock() = Some(key_of(name));
    }

    /// As kill -9 would, except that the process is this one: the port closes, threads end, nothing is said.
    pub fn kill(&mut self, i: usize) {
        let running = self.running[i].take().expect("it runs");
        running.server.shutdown(Duration::ZERO);
        running.raft.shutdown();
        running.manager.stop();
    }

    /// Starts a killed member again, under its address, with its label's cluster.
    pub fn restart(&mut self, i: usize, cluster: ClusterId) {
        self.running[i] = Some(self.try_restart(i, cluster).expect("a manager"));
    }

    /// A killed member forgets everything.
    pub fn empty(&mut self, i: usize) {
        assert!(self.running[i].is_none(), "it must not run");
        self.dirs[i] = TempDir::new().expect("a directory");
    }

    /// A copy of what a killed member has.
    pub fn copy_of(&self, i: usize) -> TempDir {
        assert!(self.running[i].is_none(), "it must not run");
        let copy = TempDir::new().expect("a directory");
        copy_all(self.dirs[i].path(), copy.path());
        copy
    }

    /// A killed member gets the directory of an earlier moment.
    pub fn put_back(&mut self, i: usize, copy: TempDir) {
        self.empty(i);
        self.dirs[i] = copy;
    }

    pub fn try_restart(&self, i: usize, cluster: ClusterId) -> Result<Running, ManagerError> {
        let router = self.router();
        let identity = identity(cluster, i);
        let address = self.addresses[i].parse().expect("an address");
        let server = eventually("the old port to be free", || {
            Server::bind(address, server_config(), identity.clone(), router.clone()).ok()
        });
        self.try_run(i, server, &router, identity)
    }

    pub fn leader(&self) -> usize {
        eventually("a leader", || self.running.iter().position(|m| m.as_ref().is_some_and(|m| m.manager.leads())))
    }

    pub fn cluster(&self) -> ClusterId {
        eventually("a cluster", || {
            let cluster = self.running[self.leader()].as_ref()?.identity.cluster();
            (!cluster.is_none()).then_some(cluster)
        })
    }

    pub fn try_call<A: Message + Default>(&self, opcode: Opcode, request: &impl Message) -> Result<A, LeaderError> {
        wait(self.client.call(opcode, request, PATIENCE, Repeat::Harmless))
    }

    pub fn call<A: Message + Default>(&self, opcode: Opcode, request: &impl Message) -> A {
        self.try_call(opcode, request).expect("an answer")
    }

    pub fn map(&self) -> ClusterMap {
        self.call(Opcode::GetMap, &GetMapRequest::default())
    }

    pub fn status(&self) -> StatusResponse {
        self.call(Opcode::Status, &StatusRequest {})
    }

    pub fn set(&self, settings: &[(&str, &str)]) {
        let item = |(key, value): &(&str, &str)| ConfigItem {
            key: (*key).into(),
            value: (*value).into(),
            ..Default::default()
        };
        let request = SetConfigRequest { items: settings.iter().map(item).collect() };
        let answer: SetConfigResponse = self.call(Opcode::SetConfig, &request);
        assert_eq!(answer.mistakes, Vec::<String>::new());
    }
}

impl Drop for Managers {
    fn drop(&mut self) {
        for i in 0..self.running.len() {
            if self.running[i].is_some() {
                self.kill(i);
            }
        }
    }
}

fn copy_all(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).expect("made");
    for entry in std::fs::read_dir(from).expect("listed") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy_all(&entry.path(), &target),
            false => drop(std::fs::copy(entry.path(), target).expect("copied")),
        }
    }
}

fn identity(cluster: ClusterId, i: usize) -> Identity {
    Identity::new(cluster, PeerKind::Server, NodeId(i as u32 + 1))
}
