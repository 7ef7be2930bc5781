//! Nodes with the meta role in one process, a map made by hand, data nodes that record what they are asked to free.

mod data_node;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cairn_env::{Clock, FastRng, RealClock, RealDisk};
use cairn_meta_core::Namespace;
use cairn_raft_host::{FetchError, HostConfig, RaftHost, RaftTransport};
use cairn_rpc::{
    CallError, CallOptions, Client, ClientConfig, Identity, LeaderClient, Repeat, Server, ServerConfig, Service,
};
use cairn_store::{CheckpointStore, StoreError};
use cairn_types::{ClusterId, DiskUuid, ErrorCode, GroupId, Layout, NodeId, PartitionId, Time, WallTime};
use cairn_wire::Opcode;
use cairn_wire::common::{Credentials, Extent};
use cairn_wire::data::{PgMember, PgState};
use cairn_wire::error::WireError;
use cairn_wire::hello::PeerKind;
use cairn_wire::manager::{ClusterMap, Disk, Node, Partition, Pg, Volume};
use cairn_wire::meta::{
    AttributesResponse, CreateRequest, CutCheckpoint, LookupRequest, MetaHeader, StatfsRequest, StatfsResponse,
};
use cairn_wire::raft::{FetchCheckpointRequest, FetchCheckpointResponse, RaftBatch};
use parking_lot::Mutex;
use prost::Message;

use crate::{MetaConfig, MetaError, MetaServer, MetaTimings};

pub(super) use data_node::DataNode;

pub(super) const CLUSTER: ClusterId = ClusterId([7; 16]);
pub(super) const VOLUME: u32 = 1;
pub(super) const PARTITION: u32 = 5;
pub(super) const PG: u32 = 3;
pub(super) const PATIENCE: Duration = Duration::from_secs(120);
const CALL: Duration = Duration::from_secs(60);

/// Connects the hosts of one process.
#[derive(Default)]
pub(super) struct Switch {
    hosts: Mutex<BTreeMap<NodeId, Weak<RaftHost>>>,
}

struct Port(Arc<Switch>);

impl Port {
    fn host(&self, to: NodeId) -> Option<Arc<RaftHost>> {
        self.0.hosts.lock().get(&to).and_then(Weak::upgrade)
    }
}

impl RaftTransport for Port {
    fn send(&self, to: NodeId, batch: RaftBatch) {
        if let Some(host) = self.host(to) {
            host.deliver(batch);
        }
    }
    fn fetch(
        &self,
        from: NodeId,
        request: FetchCheckpointRequest,
    ) -> Result<(FetchCheckpointResponse, Bytes), FetchError> {
        let failed = |cause: String| FetchError::Failed { from, cause };
        let host = self.host(from).ok_or_else(|| failed("down".into()))?;
        host.fetch_checkpoint(&request).map_err(|error| match error {
            StoreError::NoCheckpoint { .. } => FetchError::Gone { from },
            other => failed(other.to_string()),
        })
    }
}

/// A running node.
pub(super) struct Running {
    pub(super) meta: Arc<MetaServer>,
    pub(super) server: Server,
    pub(super) host: Arc<RaftHost>,
}

/// Nodes, by number from 0; node ids from 16.
pub(super) struct Cluster {
    switch: Arc<Switch>,
    dirs: Vec<tempfile::TempDir>,
    pub(super) nodes: Vec<Option<Running>>,
    addresses: Vec<String>,
    pub(super) timings: MetaTimings,
    /// Bytes for metadata of each node.
    pub(super) memory: Vec<u64>,
    pub(super) host_config: fn(HostConfig) -> HostConfig,
    pub(super) map: ClusterMap,
    pub(super) client: Client,
    /// Of the nodes among each other.
    pub(super) server_client: Client,
    /// By how many nanoseconds the calendars of the nodes are ahead.
    pub(super) skews: Vec<Arc<AtomicI64>>,
}

/// The real clocks, with a calendar that may be wrong.
struct Skewed(Arc<AtomicI64>);

impl Clock for Skewed {
    fn now(&self) -> Time {
        RealClock.now()
    }
    fn wall(&self) -> WallTime {
        WallTime(RealClock.wall().0.saturating_add_signed(self.0.load(Ordering::SeqCst)))
    }
}

/// Quick duties for tests.
pub(super) fn quick() -> MetaTimings {
    MetaTimings {
        lease: Duration::from_secs(60),
        lease_tick: Duration::from_millis(20),
        // Nobody sends any.
        map_rounds: 0,
        reclaim_idle: Duration::from_millis(5),
        free_grace: Duration::from_millis(30),
        free_page: 16,
        // As long as anything may take: what is asked a second time for want of an answer is counted by some tests.
        free_deadline: PATIENCE,
        list_deadline: PATIENCE,
        free_retry_min: Duration::from_millis(20),
        free_retry_max: Duration::from_millis(100),
        open_retry: Duration::from_millis(50),
        look_pause: Duration::from_millis(20),
        memory_tick: Duration::from_millis(20),
        // As many as there are.
        shard_others: 1,
        // On a machine that is busy operations take long.
        old_lock: PATIENCE,
        ..MetaTimings::default()
    }
}

/// A server that has patience with clients that get no processor.
fn serve(identity: Identity, service: Arc<dyn Service>) -> Server {
    let config = ServerConfig { threads: 1, hello_timeout: CALL, ..ServerConfig::default() };
    Server::bind("127.0.0.1:0".parse().expect("an address"), config, identity, service).expect("a free port")
}

pub(super) fn node_id(number: usize) -> NodeId {
    NodeId(16 + number as u32)
}

impl Cluster {
    /// Nodes that are all members of one partition.
    pub(super) fn start(count: usize) -> Self {
        Self::with(count, quick(), |config| config)
    }

    pub(super) fn with(count: usize, timings: MetaTimings, host_config: fn(HostConfig) -> HostConfig) -> Self {
        let mut cluster = Self::prepare(count, timings, host_config);
        (0..count).for_each(|number| cluster.run(number));
        cluster.share_map();
        cluster
    }

    /// Nothing runs yet.
    pub(super) fn prepare(count: usize, timings: MetaTimings, host_config: fn(HostConfig) -> HostConfig) -> Self {
        let patient = || ClientConfig { connect_timeout: CALL, ..ClientConfig::default() };
        let client = Client::with_threads(1, patient(), Identity::client()).expect("threads");
        let identity = Identity::new(CLUSTER, PeerKind::Server, node_id(0));
        let server_client = Client::with_threads(1, patient(), identity).expect("threads");
        let volume =
            Volume { id: VOLUME, name: "v".into(), layout: Layout::replicated(3).to_bits(), ..Volume::default() };
        let partition = Partition {
            id: PARTITION,
            volume: VOLUME,
            inode_first: 1,
            inode_last: u64::MAX,
            nodes: (0..count).map(|number| node_id(number).get()).collect(),
            ..Partition::default()
        };
        let map = ClusterMap {
            cluster: CLUSTER.0.to_vec(),
            version: 1,
            volumes: vec![volume],
            partitions: vec![partition],
            ..ClusterMap::default()
        };
        Self {
            switch: Arc::default(),
            dirs: (0..count).map(|_| tempfile::tempdir().expect("a directory")).collect(),
            nodes: (0..count).map(|_| None).collect(),
            addresses: vec![String::new(); count],
            timings,
            memory: vec![u64::MAX; count],
            host_config,
            map,
            client,
            server_client,
            skews: (0..count).map(|_| Arc::default()).collect(),
        }
    }

    /// Starts a node, on what it had before.
    pub(super) fn run(&mut self, number: usize) {
        self.try_run(number).expect("a role");
    }

    fn try_run(&mut self, number: usize) -> Result<(), MetaError> {
        let node = node_id(number);
        let uuid = DiskUuid([node.get() as u8; 16]);
        // Where others might take over they get a moment more to be heard.
        let tick = Duration::from_millis(if self.dirs.len() > 1 { 30 } else { 10 });
        let config = HostConfig {
            tick,
            lease_margin: Duration::from_millis(10),
            segment_bytes: 1 << 20,
            ..HostConfig::new(node, uuid)
        };
        let config = (self.host_config)(config);
        let clock: Arc<dyn Clock> = Arc::new(Skewed(self.skews[number].clone()));
        let disk = Arc::new(RealDisk::open(self.dirs[number].path()).expect("a disk"));
        let rng = Arc::new(FastRng::from_os());
        let port = Arc::new(Port(self.switch.clone()));
        let host = Arc::new(RaftHost::start(config, clock.clone(), rng, disk.clone(), port).expect("a host"));
        self.switch.hosts.lock().insert(node, Arc::downgrade(&host));
        let (timings, memory_max) = (self.timings.clone(), self.memory[number]);
        let config = MetaConfig { timings, memory_max, ..MetaConfig::new(uuid) };
        let meta = MetaServer::start(config, node, disk, host.clone(), self.server_client.clone(), clock)?;
        let identity = Identity::new(CLUSTER, PeerKind::Server, node);
        let server = serve(identity, meta.clone());
        self.addresses[number] = server.local_addr().to_string();
        self.nodes[number] = Some(Running { meta, server, host });
        Ok(())
    }

    /// Stops a node without any farewell to the group.
    pub(super) fn kill(&mut self, number: usize) {
        let running = self.nodes[number].take().expect("it runs");
        running.server.shutdown(Duration::ZERO);
        running.meta.stop();
        running.host.shutdown();
    }

    /// Stops a node, removes its log, and tells why it does not start again.
    pub(super) fn lose_log(mut self, number: usize) -> String {
        self.kill(number);
        std::fs::remove_dir_all(self.dirs[number].path().join("log")).expect("removed");
        self.try_run(number).expect_err("it must not start").to_string()
    }

    /// Removes directories of a node that does not run.
    pub(super) fn lose(&self, number: usize, dirs: &[&str]) {
        assert!(self.nodes[number].is_none(), "it must not run");
        for dir in dirs.iter().map(|dir| self.dirs[number].path().join(dir)).filter(|dir| dir.exists()) {
            std::fs::remove_dir_all(dir).expect("removed");
        }
    }

    /// Puts a directory where a node wants to write a file, or takes it away.
    pub(super) fn block(&self, number: usize, path: &str, blocked: bool) {
        let path = self.dirs[number].path().join(path);
        if blocked { std::fs::create_dir(path) } else { std::fs::remove_dir(path) }
            .expect("the directory can be written")
    }

    /// Gives every running node the map, with the present addresses.
    pub(super) fn share_map(&mut self) {
        self.map.version += 1;
        self.map.nodes.retain(|node| node.roles.contains(&"data".to_owned()));
        for (number, address) in self.addresses.iter().enumerate() {
            let id = node_id(number).get();
            self.map.nodes.push(Node { id, address: address.clone(), up: true, ..Node::default() });
        }
        for running in self.nodes.iter().flatten() {
            assert!(running.meta.apply_map(&self.map));
        }
    }

    /// A placement group on these data nodes, a disk each.
    pub(super) fn add_pg(&mut self, data: &[&DataNode]) {
        let mut members = Vec::new();
        for (number, data) in data.iter().enumerate() {
            let (node, disk) = (100 + number as u32, 200 + number as u32);
            members.push(PgMember { disk, state: 0, node });
            self.map.disks.push(Disk { id: disk, node, ..Disk::default() });
            let roles = vec!["data".to_owned()];
            self.map.nodes.push(Node { id: node, address: data.address.clone(), up: true, roles, ..Node::default() });
        }
        let state = PgState { pg: PG, volume: VOLUME, epoch: 1, members, ..PgState::default() };
        self.map.pgs.push(Pg { state: Some(state), ..Pg::default() });
        self.share_map();
    }

    /// Another group of the same members.
    pub(super) fn add_pg_beside(&mut self, pg: u32) {
        let mut beside = self.map.pgs[0].clone();
        beside.state.as_mut().expect("a state").pg = pg;
        self.map.pgs.push(beside);
        self.share_map();
    }

    pub(super) fn meta(&self, number: usize) -> &Arc<MetaServer> {
        &self.nodes[number].as_ref().expect("it runs").meta
    }

    pub(super) fn address(&self, number: usize) -> &str {
        &self.addresses[number]
    }

    /// Waits for a leader among the running nodes, who takes mutations.
    pub(super) fn leader(&self) -> usize {
        let partition = PartitionId(PARTITION);
        let is_born = |meta: &MetaServer| {
            meta.partitions().read().get(&partition).is_some_and(|partition| !partition.state.is_unborn())
        };
        let found = |running: &Option<Running>| {
            running
                .as_ref()
                .is_some_and(|running| running.meta.leads().contains_key(&partition) && is_born(&running.meta))
        };
        eventually("a leader", || self.nodes.iter().any(found));
        self.nodes.iter().position(found).expect("it was there a moment ago")
    }

    /// What a checkpoint has that is being written, or was.
    pub(super) fn checkpoint(&self, at: &CutCheckpoint) -> Namespace {
        let (group, number) = (GroupId(at.partition), (at.node - node_id(0).get()) as usize);
        let disk = Arc::new(RealDisk::open(self.dirs[number].path()).expect("a disk"));
        let store = CheckpointStore::new(disk, "checkpoints", ClusterId::NONE);
        eventually("the file", || store.open(group, at.index).is_ok());
        let mut file = store.open(group, at.index).expect("it was there a moment ago");
        assert_eq!(file.header().term, at.term);
        crate::checkpoint::read(&mut file, PartitionId(at.partition)).expect("a namespace")
    }

    /// A client that finds the leader.
    pub(super) fn caller(&self, session: u64) -> Caller {
        let all: Vec<usize> = (0..self.addresses.len()).collect();
        self.caller_of(session, &all)
    }

    /// All of them.
    pub(super) fn leader_client(&self) -> LeaderClient {
        LeaderClient::new(self.client.clone(), "the partition", self.addresses.clone())
    }

    /// The same for what servers ask each other.
    pub(super) fn server_leader_client(&self) -> LeaderClient {
        LeaderClient::new(self.server_client.clone(), "the partition", self.addresses.clone())
    }

    /// A client that knows some nodes only.
    pub(super) fn caller_of(&self, session: u64, nodes: &[usize]) -> Caller {
        let addresses: Vec<String> = nodes.iter().map(|number| self.addresses[*number].clone()).collect();
        let leader = LeaderClient::new(self.client.clone(), "the partition", addresses);
        Caller { leader, client: self.client.clone(), session, sequence: 0 }
    }
}

/// Waits until something holds.
pub(super) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "{what} did not come about");
        std::thread::sleep(Duration::from_millis(3));
    }
}

/// A session with one slot.
pub(super) struct Caller {
    leader: LeaderClient,
    client: Client,
    pub(super) session: u64,
    pub(super) sequence: u64,
}

pub(super) fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(future)
}

impl Caller {
    pub(super) fn read_header(&self) -> MetaHeader {
        let who = Some(Credentials::default());
        MetaHeader { volume: VOLUME, partition: PARTITION, session: self.session, slot: 0, sequence: 0, who }
    }

    /// The header of the next mutation.
    pub(super) fn header(&mut self) -> MetaHeader {
        self.sequence += 1;
        MetaHeader { sequence: self.sequence, ..self.read_header() }
    }

    /// Calls whoever leads.
    pub(super) fn call<A: Message + Default>(&self, opcode: Opcode, request: &impl Message) -> Result<A, ErrorCode> {
        let answer = block_on(self.leader.call(opcode, request, CALL, Repeat::Harmless));
        answer.map_err(|error| error.code().unwrap_or_else(|| panic!("{error}")))
    }

    /// Calls one node, whatever it answers.
    pub(super) fn call_at<A: Message + Default>(
        &self,
        address: &str,
        opcode: u16,
        request: &impl Message,
    ) -> Result<A, WireError> {
        let call = self.client.call(address, opcode, request, (), CallOptions::new(CALL));
        match block_on(call).and_then(|response| response.decode()) {
            Ok(answer) => Ok(answer),
            Err(CallError::Remote(error)) => Err(error),
            Err(other) => panic!("{other}"),
        }
    }

    pub(super) fn create_request(&mut self, name: &str) -> CreateRequest {
        CreateRequest {
            header: Some(self.header()),
            parent: 1,
            name: name.as_bytes().to_vec(),
            mode: 0o100_644,
            exclusive: true,
            ..CreateRequest::default()
        }
    }

    /// Creates a file in the root and answers its inode.
    pub(super) fn create(&mut self, name: &str) -> Result<u64, ErrorCode> {
        let request = self.create_request(name);
        self.call::<AttributesResponse>(Opcode::Create, &request).map(|answer| answer.attributes.expect("some").inode)
    }

    /// Creates a file with this many blocks of one chunk each.
    pub(super) fn create_with_chunks(&mut self, name: &str, chunks: u32) -> u64 {
        self.create_in(PG, name, chunks)
    }

    pub(super) fn create_in(&mut self, pg: u32, name: &str, chunks: u32) -> u64 {
        let extent = |index: u32| Extent {
            file_offset: u64::from(index) * 4096,
            length: 4096,
            pg,
            index,
            chunk_offset: 0,
            flags: 0,
        };
        let request = CreateRequest {
            size: u64::from(chunks) * 4096,
            extents: (0..chunks).map(extent).collect(),
            written_by: self.session,
            ..self.create_request(name)
        };
        let answer: AttributesResponse = self.call(Opcode::Create, &request).expect("created");
        answer.attributes.expect("some").inode
    }

    pub(super) fn lookup(&self, name: &str) -> Result<u64, ErrorCode> {
        let request = LookupRequest { header: Some(self.read_header()), parent: 1, name: name.as_bytes().to_vec() };
        self.call::<AttributesResponse>(Opcode::Lookup, &request).map(|answer| answer.attributes.expect("some").inode)
    }

    pub(super) fn statfs(&self) -> StatfsResponse {
        let request = StatfsRequest { header: Some(self.read_header()), ..Default::default() };
        self.call(Opcode::Statfs, &request).expect("statfs")
    }
}
