//! A few data servers, a client, and a map that the test decides.

use std::sync::Arc;
use std::time::Duration;

use cairn_env::{AlignedBuf, BufPool, Disk, OsRng, RealClock, RealDisk};
use cairn_format::crc_table::{decode_crcs, encode_crcs};
use cairn_node_agent::{Contributor, Registration};
use cairn_rpc::{CallError, CallOptions, Client, ClientConfig, Identity, Payload, Server, ServerConfig};
use cairn_types::{BLOCK_SIZE, ClusterId, DiskId, Incarnation, MemberState, NodeId, Scheme, crc32c};
use cairn_wire::Opcode;
use cairn_wire::data::{
    AllocateRequest, AllocateResponse, AppendRequest, AppendResponse, ChunkHeader, OverwriteRequest, OverwriteResponse,
    OverwriteVector, PgFormer, PgJoining, PgMember, PgState, ReadRequest, ReadResponse, SealRequest, SealResponse,
    SyncRequest, SyncResponse,
};
use cairn_wire::hello::PeerKind;
use cairn_wire::manager::{ClusterMap, HeartbeatRequest, Node, Pg, PgReport};
use prost::Message;

use crate::{DataConfig, DataEnv, DataServer, DiskConfig};

pub(super) const CLUSTER: ClusterId = ClusterId([3; 16]);
pub(super) const PG: u32 = 5;
pub(super) const SESSION: u64 = 77;
/// Longer than anything takes on any machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// What a test changes in the configuration of all nodes.
pub(super) type Tune = fn(&mut DataConfig);

/// One node with one disk: disk 101 is on node 16, and so on.
pub(super) struct TestNode {
    pub(super) dir: tempfile::TempDir,
    pub(super) data: DataServer,
    pub(super) server: Option<Server>,
    pub(super) disk: u32,
    pub(super) node: u32,
    pub(super) address: String,
}

pub(super) struct Cluster {
    pub(super) nodes: Vec<TestNode>,
    /// Nodes whose disks were replaced, and whether these are told to delete what they have.
    pub(super) formers: Vec<(TestNode, bool)>,
    pub(super) client: Client,
    pub(super) epoch: u64,
    pub(super) runtime: tokio::runtime::Runtime,
    incarnation: u64,
    term: u64,
    pub(super) scheme: Scheme,
    tune: Tune,
}

pub(super) fn config(dirs: &[&std::path::Path]) -> DataConfig {
    let disk = |dir: &&std::path::Path| Arc::new(RealDisk::create(dir).expect("a directory")) as Arc<dyn Disk>;
    let disk_config = DiskConfig {
        journal_bytes: 4 << 20,
        batch_bytes_max: 256 << 10,
        write_threads: 1,
        read_threads: 1,
        allocate_step: 1 << 20,
        reserve_bytes: 0,
        ..DiskConfig::default()
    };
    DataConfig {
        disk: disk_config,
        // A busy machine is no member that stalls.
        hop_deadline: Duration::from_secs(20),
        hop_margin: Duration::from_millis(300),
        overwrite_deadline: Duration::from_secs(20),
        sync_deadline: Duration::from_secs(20),
        peer_deadline: Duration::from_secs(20),
        retry_pause: Duration::from_millis(20),
        heal_pause: Duration::from_millis(100),
        reserve_deadline: Duration::from_secs(20),
        reserve_step: 8,
        quiet: Duration::ZERO,
        ..DataConfig::new(dirs.iter().map(disk).collect())
    }
}

/// Gives no connection up because the machine is busy.
fn patient() -> ClientConfig {
    ClientConfig { connect_timeout: PATIENCE, ..ClientConfig::default() }
}

pub(super) fn env(cluster: ClusterId) -> (DataEnv, Identity) {
    let identity = Identity::new(cluster, PeerKind::Server, NodeId(0));
    let client = Client::with_threads(1, patient(), identity.clone()).expect("threads");
    let env =
        DataEnv { clock: Arc::new(RealClock), rng: Arc::new(OsRng), pool: BufPool::new(64 << 20), client, cluster };
    (env, identity)
}

pub(super) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let mut left = PATIENCE;
    while !holds() {
        assert!(!left.is_zero(), "{what} did not come about");
        std::thread::sleep(Duration::from_millis(5));
        left = left.saturating_sub(Duration::from_millis(5));
    }
}

/// Bytes that depend on the seed and on their place.
pub(super) fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (seed.wrapping_mul(31).wrapping_add(i as u64 / 3 * 7) % 251) as u8).collect()
}

impl TestNode {
    fn start(dir: tempfile::TempDir, node: u32, disk: u32, tune: Tune) -> Self {
        let mut config = config(&[dir.path()]);
        (config.compared_within, config.look_after) = (Duration::ZERO, Duration::from_secs(3600));
        tune(&mut config);
        let data = DataServer::start(config, env(CLUSTER).0).expect("a data server");
        let server = Self::listen("127.0.0.1:0", &data).expect("a free port");
        let address = server.local_addr().to_string();
        Self { dir, data, server: Some(server), disk, node, address }
    }

    fn listen(address: &str, data: &DataServer) -> Option<Server> {
        let config = ServerConfig {
            threads: 1,
            hello_timeout: PATIENCE,
            payload_stall: PATIENCE,
            payload_stall_contended: PATIENCE,
            ..ServerConfig::default()
        };
        let listen = address.parse().expect("an address");
        Server::bind(listen, config, env(CLUSTER).1, Arc::new(data.clone())).ok()
    }

    pub(super) fn file(&self, index: u32) -> std::path::PathBuf {
        self.dir.path().join(format!("pg/{PG}/{index:010}.chunk"))
    }

    pub(super) fn store(&self) -> Arc<crate::disk::DiskStore> {
        self.data.inner.slot(DiskId(self.disk)).expect("registered").store().expect("open")
    }

    pub(super) fn report(&self) -> Option<PgReport> {
        let mut heartbeat = HeartbeatRequest::default();
        self.data.heartbeat(&mut heartbeat);
        heartbeat.pgs.into_iter().find(|report| report.pg == PG && report.disk == self.disk)
    }
}

impl Cluster {
    /// Nodes that all serve, in epoch 1.
    pub(super) fn start(count: usize) -> Self {
        Self::start_tuned(count, |_| {})
    }

    pub(super) fn start_tuned(count: usize, tune: Tune) -> Self {
        Self::start_scheme(Scheme::Replicated(count as u8), tune)
    }

    pub(super) fn start_scheme(scheme: Scheme, tune: Tune) -> Self {
        let count = scheme.members();
        let node = |i: u32| TestNode::start(tempfile::tempdir().expect("a directory"), 16 + i, 101 + i, tune);
        let nodes = (0..count as u32).map(node).collect();
        let identity = Identity::new(CLUSTER, PeerKind::Client, NodeId(0));
        let client = Client::with_threads(1, patient(), identity).expect("threads");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let formers = Vec::new();
        let mut cluster = Self { nodes, formers, client, epoch: 0, runtime, incarnation: 0, term: 1, scheme, tune };
        (0..count).for_each(|i| cluster.register(i));
        cluster.raise(&vec![MemberState::Serving; count]);
        cluster
    }

    /// Puts a fresh node with an empty disk in the place of one, which runs on.
    pub(super) fn replace(&mut self, i: usize) {
        let number = (self.nodes.len() + self.formers.len()) as u32;
        let fresh = TestNode::start(tempfile::tempdir().expect("a directory"), 16 + number, 101 + number, self.tune);
        let old = std::mem::replace(&mut self.nodes[i], fresh);
        self.formers.push((old, false));
        self.register(i);
    }

    /// A fresh node joins in the place of a member of an erasure group, all of which serve; it is the last one.
    pub(super) fn join(&mut self, position: usize) {
        let number = (self.nodes.len() + self.formers.len()) as u32;
        let fresh = TestNode::start(tempfile::tempdir().expect("a directory"), 16 + number, 101 + number, self.tune);
        let syncing = u32::from(MemberState::Syncing.code());
        let joining = PgJoining { disk: fresh.disk, node: fresh.node, state: syncing, position: position as u32 };
        self.nodes.push(fresh);
        self.register(self.nodes.len() - 1);
        self.epoch += 1;
        let members = vec![MemberState::Serving; self.scheme.members()];
        self.tell_state(PgState { joining: Some(joining), ..self.state(&members) });
    }

    /// Gives a node its ids.
    pub(super) fn register(&mut self, i: usize) {
        self.incarnation += 1;
        let node = &self.nodes[i];
        let uuid = node.data.inner.slots[0].uuid();
        let registration = Registration {
            node: NodeId(node.node),
            cluster: CLUSTER,
            incarnation: Incarnation(self.incarnation),
            term: self.term,
            disks: vec![(uuid, DiskId(node.disk))],
            problems: Vec::new(),
        };
        node.data.registered(&registration).expect("registered");
    }

    /// Ends a node as a crash of its process would, except for what the kernel has.
    pub(super) fn kill(&mut self, i: usize) {
        let node = &mut self.nodes[i];
        if let Some(server) = node.server.take() {
            server.shutdown(Duration::ZERO);
        }
    }

    /// A node that was killed answers again as if nothing had been.
    pub(super) fn answer_again(&mut self, i: usize) {
        let node = &mut self.nodes[i];
        eventually("its address to be free", || {
            node.server = TestNode::listen(&node.address, &node.data);
            node.server.is_some()
        });
    }

    /// Ends a node and starts it anew on its directory.
    pub(super) fn restart(&mut self, i: usize) {
        self.restart_with(i, |_| {});
    }

    /// The same; in between something happens to its directory.
    pub(super) fn restart_with(&mut self, i: usize, meanwhile: impl FnOnce(&std::path::Path)) {
        self.kill(i);
        let old = self.nodes.remove(i);
        let TestNode { dir, data, disk, node, .. } = old;
        data.stop();
        drop(data);
        meanwhile(dir.path());
        // Tasks and threads of the old one let the lock go when they have ended.
        self.nodes.insert(i, TestNode::start(dir, node, disk, self.tune));
        self.register(i);
    }

    pub(super) fn state(&self, states: &[MemberState]) -> PgState {
        let member = |(node, state): (&TestNode, &MemberState)| PgMember {
            disk: node.disk,
            state: u32::from(state.code()),
            node: node.node,
        };
        let former = |(node, drop): &(TestNode, bool)| PgFormer { disk: node.disk, node: node.node, drop: *drop };
        PgState {
            pg: PG,
            volume: 1,
            scheme: u32::from(self.scheme.code()),
            epoch: self.epoch,
            creation_epoch: 1,
            members: self.nodes.iter().zip(states).map(member).collect(),
            retired: false,
            formers: self.formers.iter().map(former).collect(),
            ..PgState::default()
        }
    }

    /// A new epoch with these states, told to all nodes that run; waits until the primary takes writes.
    pub(super) fn raise(&mut self, states: &[MemberState]) {
        self.tell(states);
        let primary = states.iter().position(|state| *state == MemberState::Serving);
        if let Some(primary) = primary {
            eventually("the primary enters the epoch", || {
                let inner = &self.nodes[primary].data.inner;
                inner.member(self.nodes[primary].disk, PG, self.epoch).is_ok_and(|m| m.check_entered().is_ok())
            });
        }
    }

    pub(super) fn tell(&mut self, states: &[MemberState]) {
        self.epoch += 1;
        self.tell_state(self.state(states));
    }

    /// The volume was deleted.
    pub(super) fn retire(&mut self) {
        self.epoch += 1;
        let states = vec![MemberState::Serving; self.nodes.len()];
        self.tell_state(PgState { retired: true, ..self.state(&states) });
    }

    pub(super) fn tell_state(&self, state: PgState) {
        let node = |node: &TestNode| Node { id: node.node, address: node.address.clone(), ..Node::default() };
        let map = ClusterMap {
            version: self.epoch,
            nodes: self.nodes.iter().map(node).collect(),
            pgs: vec![Pg { state: Some(state), ..Pg::default() }],
            ..ClusterMap::default()
        };
        let formers = self.formers.iter().map(|(node, _)| node);
        for node in self.nodes.iter().chain(formers).filter(|node| node.server.is_some()) {
            node.data.map_changed(&map, self.term);
        }
    }

    pub(super) fn call<M: Message + Default>(
        &self,
        i: usize,
        opcode: Opcode,
        request: &impl Message,
        payload: Payload,
    ) -> Result<(M, Option<AlignedBuf>), CallError> {
        let options = CallOptions::new(PATIENCE).bulk();
        let call = self.client.call(&self.nodes[i].address, opcode.code(), request, payload, options);
        let answer = self.runtime.block_on(call)?;
        let message = answer.decode()?;
        Ok((message, answer.payload))
    }

    /// The same as another server asks.
    pub(super) fn call_as_server<M: Message + Default>(
        &self,
        i: usize,
        opcode: Opcode,
        request: &impl Message,
        payload: Payload,
    ) -> Result<(M, Option<AlignedBuf>), CallError> {
        let identity = Identity::new(CLUSTER, PeerKind::Server, NodeId(0));
        let client = Client::with_threads(1, patient(), identity).expect("threads");
        let options = CallOptions::new(PATIENCE).bulk();
        let call = client.call(&self.nodes[i].address, opcode.code(), request, payload, options);
        let answer = self.runtime.block_on(call)?;
        let message = answer.decode()?;
        Ok((message, answer.payload))
    }

    pub(super) fn header(&self, i: usize, index: u32) -> ChunkHeader {
        ChunkHeader { disk: self.nodes[i].disk, pg: PG, index, epoch: self.epoch, session: SESSION }
    }

    pub(super) fn allocate(&self, i: usize) -> Result<u32, CallError> {
        let request =
            AllocateRequest { disk: self.nodes[i].disk, pg: PG, epoch: self.epoch, session: SESSION, count: 1 };
        let answer: AllocateResponse = self.call(i, Opcode::Allocate, &request, Payload::None)?.0;
        Ok(answer.indices[0])
    }

    pub(super) fn append_request(&self, i: usize, chain: &[usize], index: u32, at: u64, bytes: &[u8]) -> AppendRequest {
        let mut crcs = Vec::new();
        let crc = |block: &[u8]| {
            let mut whole = block.to_vec();
            whole.resize(BLOCK_SIZE, 0);
            crc32c(&whole)
        };
        encode_crcs(&bytes.chunks(BLOCK_SIZE).map(crc).collect::<Vec<_>>(), &mut crcs);
        AppendRequest {
            chunk: Some(self.header(i, index)),
            creation_epoch: self.epoch,
            offset: at,
            crcs,
            chain: chain.iter().map(|i| self.nodes[*i].disk).collect(),
            sync: false,
            scheme: u32::from(self.scheme.code()),
            repair: false,
            row_crcs: Vec::new(),
            follows: None,
            local: None,
        }
    }

    pub(super) fn send(&self, i: usize, request: &AppendRequest, bytes: &[u8]) -> Result<AppendResponse, CallError> {
        let payload = Payload::One(bytes.to_vec().into());
        Ok(self.call(i, Opcode::Append, request, payload)?.0)
    }

    pub(super) fn append(
        &self,
        i: usize,
        chain: &[usize],
        index: u32,
        at: u64,
        bytes: &[u8],
    ) -> Result<AppendResponse, CallError> {
        self.send(i, &self.append_request(i, chain, index, at, bytes), bytes)
    }

    pub(super) fn sync(&self, i: usize, chain: &[usize], index: u32) -> Result<SyncResponse, CallError> {
        let chain = chain.iter().map(|i| self.nodes[*i].disk).collect();
        let request = SyncRequest { chunk: Some(self.header(i, index)), chain };
        Ok(self.call(i, Opcode::Sync, &request, Payload::None)?.0)
    }

    /// An overwrite of blocks, each with its bytes.
    pub(super) fn overwrite_request(
        &self,
        i: usize,
        chain: &[usize],
        index: u32,
        request: u64,
        blocks: &[(u32, Vec<u8>)],
    ) -> (OverwriteRequest, Vec<u8>) {
        let (mut crcs, mut payload) = (Vec::new(), Vec::new());
        encode_crcs(&blocks.iter().map(|(_, bytes)| crc32c(bytes)).collect::<Vec<_>>(), &mut crcs);
        blocks.iter().for_each(|(_, bytes)| payload.extend_from_slice(bytes));
        let vector = |(block, _): &(u32, Vec<u8>)| OverwriteVector { block: *block, blocks: 1 };
        let asked = OverwriteRequest {
            chunk: Some(self.header(i, index)),
            vectors: blocks.iter().map(vector).collect(),
            crcs,
            chain: chain.iter().map(|i| self.nodes[*i].disk).collect(),
            request,
            floor: request,
            ..OverwriteRequest::default()
        };
        (asked, payload)
    }

    pub(super) fn overwrite(
        &self,
        i: usize,
        chain: &[usize],
        index: u32,
        request: u64,
        blocks: &[(u32, Vec<u8>)],
    ) -> Result<OverwriteResponse, CallError> {
        let (asked, payload) = self.overwrite_request(i, chain, index, request, blocks);
        Ok(self.call(i, Opcode::Overwrite, &asked, Payload::One(payload.into()))?.0)
    }

    /// Several at once: they are under way at the same time.
    pub(super) fn overwrite_all(
        &self,
        i: usize,
        requests: Vec<(OverwriteRequest, Vec<u8>)>,
    ) -> Vec<Result<OverwriteResponse, CallError>> {
        let calls: Vec<_> = requests
            .into_iter()
            .map(|(asked, payload)| {
                let (client, address) = (self.client.clone(), self.nodes[i].address.clone());
                self.runtime.spawn(async move {
                    let options = CallOptions::new(Duration::from_secs(30)).bulk();
                    let payload = Payload::One(payload.into());
                    let answer = client.call(&address, Opcode::Overwrite.code(), &asked, payload, options).await?;
                    answer.decode()
                })
            })
            .collect();
        calls.into_iter().map(|call| self.runtime.block_on(call).expect("no panic")).collect()
    }

    pub(super) fn seal(&self, i: usize, chain: &[usize], index: u32) -> Result<SealResponse, CallError> {
        let chain = chain.iter().map(|i| self.nodes[*i].disk).collect();
        let request = SealRequest { chunk: Some(self.header(i, index)), chain };
        Ok(self.call(i, Opcode::Seal, &request, Payload::None)?.0)
    }

    /// Reads and checks the checksums as a client does; a mismatch is `None`.
    pub(super) fn read(&self, i: usize, index: u32, at: u64, bytes: usize) -> Result<Option<Vec<u8>>, CallError> {
        let request = ReadRequest {
            chunk: Some(ChunkHeader { epoch: 0, ..self.header(i, index) }),
            offset: at,
            length: bytes as u32,
            ..ReadRequest::default()
        };
        let (answer, payload): (ReadResponse, _) = self.call(i, Opcode::Read, &request, Payload::None)?;
        let payload = payload.expect("whole blocks");
        let crcs = decode_crcs(&answer.crcs).expect("whole checksums");
        assert_eq!(payload.len(), crcs.len() * BLOCK_SIZE);
        if !payload.chunks(BLOCK_SIZE).zip(&crcs).all(|(block, crc)| crc32c(block) == *crc) {
            return Ok(None);
        }
        let from = (at - answer.first_block_offset) as usize;
        Ok(Some(payload[from..from + bytes].to_vec()))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in self.nodes.iter_mut().chain(self.formers.iter_mut().map(|(node, _)| node)) {
            if let Some(server) = node.server.take() {
                server.shutdown(Duration::ZERO);
            }
            node.data.stop();
        }
    }
}
