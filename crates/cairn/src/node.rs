//! One node: its directory, its RPC port and the roles behind it, started in the order that they need each other.
//!
//! Order: directory and lock, port (roles not yet served answer "starting"), data role (its disks are part of the
//! registration), Raft host and manager for members of the manager's group, registration, then what needs the node's
//! id.
use crate::private;
use crate::router::Router;
use crate::security::{Security, SecuritySpec};
use anyhow::Context;
use cairn_client::key::Key;
use cairn_data::{DataConfig, DataEnv, DataServer};
use cairn_env::{BufPool, Disk, OsRng, PatientDisk};
use cairn_jobs::{JobWorker, WorkerConfig};
use cairn_manager::{Bootstrap, ManagerConfig, ManagerParts, ManagerServer};
use cairn_meta::{ListTeller, MetaConfig, MetaServer};
use cairn_node_agent::{AgentConfig, Contributor, NodeAgent, Registration};
use cairn_raft_host::{RaftHost, RaftService};
use cairn_rpc::admin_socket::AdminSocket;
use cairn_rpc::{Server, ServerConfig};
use cairn_store::{KnownDisks, LabelledDir};
use cairn_telemetry::{Door, HealthCheck, HttpLimits, HttpServer, Registry, RequestRing, Samples};
use cairn_types::{DiskUuid, NodeId};
use marks::MarkKeeper;
use parking_lot::Mutex;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A node that is new to the cluster waits so long for the managers before it logs that it still waits.
const REGISTER_PATIENCE: Duration = Duration::from_secs(30);
/// Requests in the works get so long when the node stops.
const STOP_GRACE: Duration = Duration::from_millis(500);
/// Journal of a disk of a compact node.
const COMPACT_JOURNAL_BYTES: u64 = 16 << 20;
/// Memory of reads of a data node.
const READ_POOL_BYTES: usize = 128 << 20;

mod contributors;
pub(crate) mod disk_dir;
mod ground;
pub(crate) mod http_door;
pub(crate) mod http_port;
mod marks;
mod request_log;
mod revoked;
#[cfg(test)]
mod tests;
mod watch;

use contributors::{ClockTeller, LabelKeeper, LogWatch};
use ground::Ground;
pub use ground::OtherMember;
use http_door::{HttpDoor, HttpSpec};
use http_port::HttpPort;
use revoked::RevokedKeeper;
use watch::NodeWatch;

/// What a node is.
#[derive(Clone, Debug)]
pub struct NodeSpec {
    pub dir: PathBuf,
    pub listen: String,
    pub advertise: Option<String>,
    /// None: no HTTP port of its own.
    pub http: Option<HttpPort>,
    /// Who sees what there.
    pub http_access: HttpSpec,
    pub rack: String,
    pub host: String,
    /// Checkpoints kept of each Raft group.
    pub checkpoint_generations: usize,
    /// Highest feature level that it announces to the members of its Raft groups, and works with.
    pub feature_level: u32,
    /// Of the request log; 0: there is none.
    pub request_log_bytes: u64,
    pub managers: Vec<(u32, String)>,
    /// Its number in the manager's group.
    pub manager: Option<u32>,
    /// It joins the group of managers, instead of beginning with a vote.
    pub manager_joins: bool,
    pub cluster_name: String,
    pub meta: bool,
    /// Bytes of memory for metadata.
    pub meta_memory_max: u64,
    pub disks: Vec<PathBuf>,
    /// Disks that are lost for good, whose directories may become new ones.
    pub replaced_disks: Vec<DiskUuid>,
    pub direct_reads: bool,
    /// One of many nodes in a process: fewer threads, a smaller journal.
    pub compact: bool,
    /// File descriptors that it may use.
    pub open_files: u64,
    /// None: as many as the machine suggests.
    pub rpc_threads: Option<usize>,
    pub bootstrap: Option<Bootstrap>,
    /// Changes of the cluster are taken over TCP from anybody.
    pub admin_over_tcp: bool,
    /// `None`: everything is plain, and whoever reaches the port is served.
    pub security: Option<SecuritySpec>,
}

impl NodeSpec {
    fn roles(&self) -> Vec<String> {
        let mut roles = Vec::new();
        if self.manager.is_some() {
            roles.push("manager".to_owned());
        }
        if self.meta {
            roles.push("meta".to_owned());
        }
        if !self.disks.is_empty() {
            roles.push("data".to_owned());
        }
        roles
    }
}

/// A running node.
pub struct NodeProcess {
    server: Server,
    agent: Arc<NodeAgent>,
    manager: Option<Arc<ManagerServer>>,
    meta: Option<Arc<MetaServer>>,
    data: Option<DataServer>,
    raft: Option<Arc<RaftHost>>,
    jobs: Option<Arc<JobWorker>>,
    http: Option<HttpServer>,
    requests: Option<Arc<RequestRing>>,
    address: String,
    /// Operations that wait for descriptors end.
    ending: Arc<AtomicBool>,
    admin: Option<AdminSocket>,
    /// Looks at the list of revoked keys and at the node's own.
    revoking: Option<tokio::task::AbortHandle>,
    /// Its audit log is written as long as the node runs.
    _security: Option<Security>,
    // Dropped last: the lock of the directory.
    _dir: Arc<Mutex<LabelledDir>>,
}

impl NodeProcess {
    /// Starts a node; blocks until its roles serve. The HTTP port runs on `http`.
    pub fn start(spec: NodeSpec, http: &tokio::runtime::Handle) -> anyhow::Result<NodeProcess> {
        let ground = Ground::lay(&spec)?;
        let admin_over_tcp = spec.admin_over_tcp;
        let revoking = ground.security.as_ref().map(|security| security.watch(http));
        let router = Arc::new(Router { roles: spec.roles(), admin_over_tcp, ..Router::default() });
        let requests = request_log::start(&spec)?;
        let server = bind(&spec, &ground, router.clone(), requests.clone())?;
        let admin = admin_socket(&spec, &ground, &router);
        let local = server.local_addr().to_string();
        let address = spec.advertise.clone().unwrap_or_else(|| advertised(&spec.listen, server.local_addr()));
        let registry = Registry::new();
        let web = match &spec.http {
            Some(port) => {
                let how = (http_limits(&ground), http_door(&spec, &ground)?);
                Some(http.block_on(http_port::open(port, &spec.listen, &registry, starting(), how))?)
            }
            None => None,
        };
        let http_address = web.as_ref().map(|w| w.address().to_string()).unwrap_or_default();
        tracing::info!(dir = %spec.dir.display(), listen = local, address, "starting a node");
        let mut roles = Roles::default();
        roles.start_early(&spec, &ground, &router, &address)?;
        let agent = start_agent(&spec, &ground, &roles, (&address, &http_address))?;
        roles.let_poke(&agent);
        let show = |roles: &Roles| {
            if let Some(web) = &web {
                web.set_checks(roles.health_checks(&agent));
            }
        };
        // Before it is registered a node does not serve, and says so.
        show(&roles);
        let registration = wait_registered(&agent);
        roles.start_late(&spec, &ground, &router, &agent, &registration)?;
        register_metrics(&registry, &server, &roles);
        if let Some(requests) = &requests {
            request_log::register(&registry, requests);
        }
        show(&roles);
        if let Some(raft) = &roles.raft {
            agent.join(Arc::new(LogWatch { raft: raft.clone(), clock: ground.clock.clone() }));
        }
        let (connections, descriptors) = (server.stats(), ground.descriptors);
        // Those of many nodes in a process are nobody's concern.
        let few = descriptors.problem().filter(|_| !spec.compact);
        let told = AtomicBool::new(false);
        let key = ground.security.as_ref().map(|security| Box::new(security.teller()) as watch::KeyTeller);
        let plain = Box::new(server.teller_of_plain());
        agent.join(Arc::new(NodeWatch { descriptors, few, connections, told, key, plain }));
        registry.register(&[], Arc::new(move |samples| watch::sample(descriptors, samples)));
        let Roles { manager, meta, data, raft, jobs } = roles;
        Ok(NodeProcess {
            server,
            agent,
            manager,
            meta,
            data,
            raft,
            jobs,
            http: web,
            requests,
            address,
            ending: ground.ending,
            admin,
            revoking,
            _security: ground.security,
            _dir: ground.dir,
        })
    }
    /// Where others reach it.
    pub fn address(&self) -> String {
        self.address.clone()
    }
    /// `-` without an HTTP port.
    pub fn http_address(&self) -> String {
        self.http.as_ref().map_or_else(|| "-".into(), |h| h.address().to_string())
    }
    /// Ends everything in order; what was acknowledged is durable anyway.
    pub fn stop(self) {
        if let Some(jobs) = &self.jobs {
            jobs.stop();
        }
        self.agent.stop();
        drop(self.admin);
        if let Some(revoking) = &self.revoking {
            revoking.abort();
        }
        if let Some(meta) = &self.meta {
            meta.answer_waiting();
        }
        self.server.shutdown(STOP_GRACE);
        // Its connections are closed: what is still lacking does not come from here.
        self.ending.store(true, Ordering::Relaxed);
        if let Some(requests) = &self.requests {
            requests.stop();
        }
        if let Some(meta) = &self.meta {
            meta.stop();
        }
        if let Some(manager) = &self.manager {
            manager.stop();
        }
        if let Some(data) = &self.data {
            data.stop();
        }
        if let Some(raft) = &self.raft {
            raft.shutdown();
        }
    }
}

/// The roles of the node, as far as they run.
#[derive(Default)]
struct Roles {
    manager: Option<Arc<ManagerServer>>,
    meta: Option<Arc<MetaServer>>,
    data: Option<DataServer>,
    raft: Option<Arc<RaftHost>>,
    /// On data nodes: near the bytes that jobs move.
    jobs: Option<Arc<JobWorker>>,
}

impl Roles {
    /// What does not need a registration: the manager's group and the disks.
    fn start_early(&mut self, spec: &NodeSpec, ground: &Ground, router: &Router, address: &str) -> anyhow::Result<()> {
        if let Some(member) = spec.manager {
            let host = ground.raft_host(NodeId(member), spec)?;
            serve(&router.raft, Arc::new(RaftService::start(host.clone())?));
            let mut members: Vec<_> =
                spec.managers.iter().map(|(id, address)| (NodeId(*id), address.clone())).collect();
            if let [(_, only)] = members.as_mut_slice() {
                // A port that the system picked is known only now.
                *only = address.to_owned();
            }
            let mut config = ManagerConfig::new(NodeId(member), members);
            config.join = spec.manager_joins;
            config.cluster_name = spec.cluster_name.clone();
            config.bootstrap = spec.bootstrap.clone().unwrap_or_default();
            let parts = ManagerParts {
                raft: host.clone(),
                client: ground.client.clone(),
                identity: ground.identity.clone(),
                clock: ground.clock.clone(),
                rng: Arc::new(OsRng),
            };
            let manager = ManagerServer::start(config, parts).with_context(|| format!("{}", spec.dir.display()))?;
            serve(&router.manager, manager.service());
            self.manager = Some(Arc::new(manager));
            self.raft = Some(host);
        }
        if !spec.disks.is_empty() {
            let data = start_data(spec, ground)?;
            private::mend(spec.disks.iter().map(PathBuf::as_path));
            serve(&router.data, Arc::new(data.clone()));
            self.data = Some(data);
            serve(&router.jobs, self.jobs.insert(start_jobs(spec, ground, address)?).clone());
        }
        Ok(())
    }

    /// What the data role has to tell goes out at once.
    fn let_poke(&self, agent: &Arc<NodeAgent>) {
        if let Some(data) = &self.data {
            data.set_poke(poke_of(agent));
        }
    }

    /// What needs the node's id.
    fn start_late(
        &mut self,
        spec: &NodeSpec,
        ground: &Ground,
        router: &Router,
        agent: &Arc<NodeAgent>,
        registration: &Registration,
    ) -> anyhow::Result<()> {
        if !spec.meta {
            return Ok(());
        }
        let host = match &self.raft {
            Some(host) => host.clone(),
            None => {
                let host = ground.raft_host(registration.node, spec)?;
                serve(&router.raft, Arc::new(RaftService::start(host.clone())?));
                self.raft.insert(host).clone()
            }
        };
        let (uuid, disk) = {
            let dir = ground.dir.lock();
            (dir.label().uuid, dir.disk().clone())
        };
        let config = MetaConfig { memory_max: spec.meta_memory_max, ..MetaConfig::new(uuid) };
        let (client, clock) = (ground.client.clone(), ground.clock.clone());
        let meta = MetaServer::start(config, registration.node, disk, host, client, clock)
            .with_context(|| format!("the meta role cannot start in {}", spec.dir.display()))?;
        meta.set_poke(poke_of(agent));
        serve(&router.meta, meta.clone());
        agent.join(meta.clone());
        self.meta = Some(meta);
        Ok(())
    }

    /// Of the node itself and the roles that run by now.
    fn health_checks(&self, agent: &Arc<NodeAgent>) -> Vec<HealthCheck> {
        let (agent, raft) = (agent.clone(), self.raft.clone());
        let log = move || raft.as_ref().and_then(|raft| raft.problem());
        let problem = move || log().or_else(watch::shortage).map_or(Ok(()), Err);
        let node = move || ("node".to_owned(), problem().and_then(|()| agent.health()));
        let mut checks = vec![Arc::new(node) as HealthCheck];
        if let Some(manager) = self.manager.clone() {
            checks.push(Arc::new(move || ("manager".to_owned(), manager.health())) as HealthCheck);
        }
        if let Some(meta) = &self.meta {
            checks.push(meta.health());
        }
        if let Some(data) = self.data.clone() {
            checks.push(Arc::new(move || ("data".to_owned(), data.health())) as HealthCheck);
        }
        checks
    }
}

/// Of a node whose roles do not run yet: states are restored, other managers asked.
fn starting() -> HealthCheck {
    Arc::new(|| ("node".to_owned(), Err("starting: directories are opened and states restored".to_owned())))
}

fn start_data(spec: &NodeSpec, ground: &Ground) -> anyhow::Result<DataServer> {
    let (mut disks, mut left_out): (Vec<Arc<dyn Disk>>, Vec<String>) = Default::default();
    for dir in &spec.disks {
        // The disk is known by its path, which must not depend on where the process was started.
        let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.clone());
        match disk_dir::open(&dir) {
            Ok(disk) => disks.push(Arc::new(PatientDisk::new(Arc::new(disk), ground.ending.clone()))),
            // The node starts without it, as without any other disk that cannot be used.
            Err(why) => {
                tracing::error!(disk = %dir.display(), why, "a disk cannot be opened and is left out");
                left_out.push(why);
            }
        }
    }
    // Its other roles are not to be lost with a disk. A node that has none would run for nothing, and nobody might
    // notice.
    let has_others = spec.manager.is_some() || spec.meta;
    anyhow::ensure!(
        has_others || !disks.is_empty(),
        "none of the disks of data.disks can be opened: {}",
        left_out.join("; ")
    );
    let mut config = DataConfig::new(disks);
    config.left_out = left_out;
    config.known = Some(Arc::new(known_disks(spec, ground)?));
    config.disk.direct_reads = spec.direct_reads;
    config.disk.open_files_max = ground.descriptors.disk_chunks;
    if spec.compact {
        config.disk.journal_bytes = COMPACT_JOURNAL_BYTES;
        config.disk.write_threads = 1;
        config.disk.read_threads = 1;
    }
    let env = DataEnv {
        clock: ground.clock.clone(),
        rng: Arc::new(OsRng),
        pool: BufPool::new(READ_POOL_BYTES),
        client: ground.client.clone(),
        cluster: ground.identity.cluster(),
    };
    DataServer::start(config, env).context("the data role cannot start")
}

/// Work on trees that the manager hands out.
fn start_jobs(spec: &NodeSpec, ground: &Ground, address: &str) -> anyhow::Result<Arc<JobWorker>> {
    let mut managers: Vec<String> = spec.managers.iter().map(|(_, at)| at.clone()).collect();
    if let ([only], Some(_)) = (managers.as_mut_slice(), spec.manager) {
        // A port that the system picked is known only now.
        *only = address.to_owned();
    }
    let mut config = WorkerConfig::new(managers);
    config.host.clone_from(&spec.host);
    config.rack.clone_from(&spec.rack);
    config.key = ground.identity.tls().map_or(Key::None, |tls| Key::Given(tls.clone()));
    JobWorker::start(config).context("the thread for jobs cannot start")
}

/// The disks that the node had; one that is gone from its directory is not replaced by an empty one.
fn known_disks(spec: &NodeSpec, ground: &Ground) -> anyhow::Result<KnownDisks> {
    let dir = ground.dir.lock();
    Ok(KnownDisks::open(dir.disk().clone(), dir.label().uuid, spec.replaced_disks.iter().copied())?)
}

/// Asks for a heartbeat now, as long as there is an agent.
fn poke_of(agent: &Arc<NodeAgent>) -> Arc<dyn Fn() + Send + Sync> {
    let agent = Arc::downgrade(agent);
    Arc::new(move || {
        if let Some(agent) = agent.upgrade() {
            agent.poke();
        }
    })
}

fn serve(slot: &std::sync::OnceLock<Arc<dyn cairn_rpc::Service>>, service: Arc<dyn cairn_rpc::Service>) {
    assert!(slot.set(service).is_ok(), "a role is started once");
}

fn bind(
    spec: &NodeSpec,
    ground: &Ground,
    router: Arc<Router>,
    requests: Option<Arc<RequestRing>>,
) -> anyhow::Result<Server> {
    let address = spec
        .listen
        .to_socket_addrs()
        .ok()
        .and_then(|mut found| found.next())
        .with_context(|| format!("{:?} cannot be resolved; write an address of this machine", spec.listen))?;
    let mut config = ServerConfig::default();
    config.threads = spec.rpc_threads.unwrap_or(config.threads);
    config.connections_max = ground.descriptors.rpc;
    config.request_log = requests.map(request_log::sink);
    config.audit = ground.security.as_ref().map(Security::audit).unwrap_or_default();
    Ok(Server::bind(address, config, ground.identity.clone(), router)?)
}

/// Where changes of the cluster come in. A node without it serves all the same; of many nodes in a process the first
/// one is enough.
fn admin_socket(spec: &NodeSpec, ground: &Ground, router: &Router) -> Option<AdminSocket> {
    if spec.compact && spec.manager.is_none() {
        return None;
    }
    let uid = rustix::process::geteuid().as_raw();
    match AdminSocket::start(&spec.dir, uid, ground.client.clone()) {
        Ok(socket) => {
            let path = router.admin_socket.get_or_init(|| socket.path().to_path_buf());
            tracing::debug!(path = %path.display(), "changes of the cluster come in here");
            Some(socket)
        }
        Err(error) => {
            tracing::warn!(
                dir = %spec.dir.display(), %error,
                "no admin socket can be made in the node's directory: this node takes no changes of the cluster from this machine"
            );
            None
        }
    }
}

fn http_limits(ground: &Ground) -> HttpLimits {
    HttpLimits { connections_max: ground.descriptors.http, ..HttpLimits::default() }
}

fn http_door(spec: &NodeSpec, ground: &Ground) -> anyhow::Result<Arc<dyn Door>> {
    let tls = ground.security.as_ref().map(|security| security.tls.clone());
    let audit = ground.security.as_ref().map(Security::audit).unwrap_or_default();
    Ok(Arc::new(HttpDoor::new(&spec.http_access, tls, audit)?))
}

/// The listening address, with the port that the system picked.
fn advertised(listen: &str, local: SocketAddr) -> String {
    match listen.rsplit_once(':') {
        Some((host, "0")) => format!("{host}:{}", local.port()),
        _ => listen.to_owned(),
    }
}

fn start_agent(
    spec: &NodeSpec,
    ground: &Ground,
    roles: &Roles,
    (address, http_address): (&str, &str),
) -> anyhow::Result<Arc<NodeAgent>> {
    let label = *ground.dir.lock().label();
    let mut config = AgentConfig::new(label.uuid, address);
    config.node = label.node;
    config.roles = spec.roles();
    config.http_address = http_address.to_owned();
    config.rack = spec.rack.clone();
    config.host = spec.host.clone();
    let manager = ground.managers(spec);
    if let [_] = spec.managers.as_slice()
        && spec.manager.is_some()
    {
        manager.set_addresses(vec![address.to_owned()]);
    }
    let keeper = Arc::new(LabelKeeper { dir: ground.dir.clone() });
    let marks = Arc::new(MarkKeeper { book: ground.marks.clone() });
    let teller = Arc::new(ClockTeller(ground.clock.clone()));
    let mut contributors: Vec<Arc<dyn Contributor>> = vec![keeper, ground.addresses.clone(), marks, teller];
    if spec.meta {
        let (disk, uuid) = (ground.dir.lock().disk().clone(), label.uuid);
        contributors.push(Arc::new(ListTeller::new(disk, uuid)));
    }
    if let Some(security) = &ground.security {
        contributors.push(Arc::new(RevokedKeeper(security.revoked())));
    }
    if let Some(data) = &roles.data {
        contributors.push(Arc::new(data.clone()));
    }
    if let Some(jobs) = &roles.jobs {
        contributors.push(jobs.clone());
    }
    Ok(Arc::new(NodeAgent::start(config, manager, ground.identity.clone(), contributors)?))
}

/// Waits as long as it takes: managers may be started later.
fn wait_registered(agent: &NodeAgent) -> Arc<Registration> {
    loop {
        match agent.wait_registered(REGISTER_PATIENCE) {
            Ok(registration) => return registration,
            Err(error) => tracing::warn!(%error, "still waiting to be registered"),
        }
    }
}

fn register_metrics(registry: &Registry, server: &Server, roles: &Roles) {
    let stats = server.stats();
    registry.register(&[], Arc::new(move |samples| crate::rpc_metrics::sample(&stats, samples)));
    registry.register(&[], Arc::new(crate::rpc_metrics::sample_build));
    if let Some(manager) = roles.manager.clone() {
        registry.register(&[("role", "manager")], Arc::new(move |samples: &mut Samples| manager.sample(samples)));
    }
    if let Some(meta) = &roles.meta {
        registry.register(&[("role", "meta")], meta.metrics());
    }
    if let Some(jobs) = roles.jobs.clone() {
        registry.register(&[("role", "data")], Arc::new(move |samples: &mut Samples| jobs.sample(samples)));
    }
    if let Some(data) = roles.data.clone() {
        registry.register(&[("role", "data")], Arc::new(move |samples: &mut Samples| data.metrics(samples)));
    }
}
