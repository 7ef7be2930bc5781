//! A cluster in memory for tests: members that keep chunks under the rules of the wire, a manager that marks down what
//! is reported and does not answer, and a real namespace. Faults are set by the test: a member that answers nothing,
//! one that is slow, one that answers wrong bytes. Over real sockets, or (`local`) in the same process under a clock
//! that stands still while nothing happens.
mod across;
mod data;
mod front;
mod local;
pub mod records;
#[cfg(feature = "test-support")]
mod support;
mod turns;

use crate::connect::{Client, ConnectOptions};
use cairn_meta_core::{Namespace, NamespaceConfig};
use cairn_rpc::{Identity, Payload, Reply, Request, Server, ServerConfig, Service};
use cairn_types::{ClusterId, Epoch, ErrorCode, Layout, MemberState, NodeId, PartitionId, Scheme, VolumeId};
use cairn_wire::Opcode;
use cairn_wire::common::{Extent, PingResponse};
use cairn_wire::data::{PgMember, PgState};
use cairn_wire::error::WireError;
use cairn_wire::hello::PeerKind;
use cairn_wire::manager::{ClusterMap, Disk, Node, Pg, PgColumn, Volume};
use data::DiskChunks;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

const FRONT: u32 = 1000;
/// A disk that hangs for so long is said to stand still.
const STALL_AFTER: Duration = Duration::from_millis(1500);

/// All state of the cluster.
pub struct Fake {
    pub(crate) state: Mutex<State>,
}

pub struct State {
    version: u64,
    pub(crate) pgs: BTreeMap<u32, PgState>,
    addresses: BTreeMap<u32, String>,
    next_index: u32,
    next_session: u64,
    disks: BTreeMap<u32, DiskChunks>,
    /// Of the volume's first partition, and of the others.
    namespace: Namespace,
    others: Vec<Namespace>,
    /// Partitions that the map names; the last one of them has all inodes from its first on.
    shown: u32,
    /// Those that answer nothing, and what was asked of each.
    pub(crate) silent: BTreeSet<u32>,
    pub(crate) calls_at: BTreeMap<(u32, &'static str), u64>,
    /// Operations across partitions so far.
    txs: u64,
    /// Session and inode of overwrite leases that were in somebody's way.
    wanted: BTreeSet<(u64, u64)>,
    /// The same of delegations, by session and number.
    wanted_delegations: BTreeSet<(u64, u64)>,
    log_index: u64,
    /// Members that answer nothing, as if stopped.
    stopped: BTreeSet<u32>,
    /// Members whose disks take so much longer; only without sockets.
    pub(crate) slow: BTreeMap<u32, Duration>,
    /// Members whose disks hang, and since when: they answer pings, and nothing for which the disk is needed.
    hung: BTreeMap<u32, tokio::time::Instant>,
    /// Requests that met one of them.
    pub(crate) hung_met: u64,
    /// Calls to members that were stopped, and reads that were held.
    pub(crate) unanswered: u64,
    /// Replies that a stopped member owes.
    held: Vec<Reply>,
    /// Members that answer reads with one flipped bit, and how often they did.
    corrupting: BTreeSet<u32>,
    pub(crate) corrupted: u64,
    /// So many appends fail at once at the second member, which answers everything else.
    pub(crate) flaky: u32,
    pub(crate) flaked: u32,
    /// Overwrites in place: done, and all refused.
    pub(crate) overwrites: u64,
    pub(crate) saturated: bool,
    /// Groups of copies are columns of one stripe group, by number: their positions. None: they are ordinary ones.
    pub(crate) columns: BTreeMap<u32, u32>,
    /// The erasure group of that stripe group.
    pub(crate) shards: u32,
    /// What this disk reads past its memory does not match its checksums.
    pub(crate) rotten: Option<u32>,
    /// Answers of checksums alone.
    pub(crate) sums: u64,
    /// The partition knows nothing of bytes that are not durable yet.
    pub(crate) of_older_build: bool,
    /// Members that do not know that their groups went on: the epoch in which they answer reads; how many they
    /// answered.
    pub(crate) behind: BTreeMap<u32, u64>,
    pub(crate) old_reads: u64,
    /// Members that have not heard of the manager for long.
    pub(crate) unsure: BTreeSet<u32>,
    /// Nobody answers reads.
    pub(crate) reads_held: bool,
    /// Nodes that are down, and whether groups cannot be made for want of disks.
    pub(crate) down: BTreeSet<u32>,
    pub(crate) lack_disks: bool,
    /// No member has room for another chunk.
    pub(crate) full: bool,
    /// What writers gave back.
    pub(crate) discarded: Vec<Extent>,
    /// Appends that asked for a sync, and syncs by themselves.
    pub(crate) synced_appends: u64,
    pub(crate) syncs: u64,
    /// The manager says so often that it is still starting.
    pub(crate) starting: u32,
    /// So many times the map has no volume yet.
    pub(crate) without_volume: u32,
    /// Nobody leads the partition; its member has a state that is so many milliseconds old.
    pub(crate) leaderless_for: Option<u64>,
    /// Blocks of every chunk of a disk that are bad, and those that its device cannot read.
    bad_at: BTreeSet<(u32, u64)>,
    unreadable_at: BTreeSet<(u32, u64)>,
    pub(crate) reports: u64,
    pub(crate) bad_blocks: u64,
    /// Reads answered, by disk.
    pub(crate) reads: BTreeMap<u32, u64>,
    /// Records that many append, and what happens to them.
    pub(crate) records: records::Records,
    pub(crate) turns: turns::Turns,
    /// Calls by operation.
    pub(crate) calls: BTreeMap<&'static str, u64>,
}

/// One RPC port: of a member, or of manager and namespace.
struct Port {
    fake: Arc<Fake>,
    disk: u32,
}

/// Message and payload of an answer.
type Raw = std::result::Result<(Vec<u8>, Vec<u8>), WireError>;

fn decode<M: prost::Message + Default>(message: &[u8]) -> std::result::Result<M, WireError> {
    M::decode(message).map_err(|e| WireError::new(ErrorCode::BadRequest, e.to_string()))
}

impl Fake {
    fn answer(&self, disk: u32, opcode: u16, message: &[u8], payload: &[u8]) -> Option<Raw> {
        let Some(opcode) = Opcode::from_code(opcode) else {
            return Some(Err(WireError::new(ErrorCode::UnknownOperation, "unknown")));
        };
        *self.state.lock().calls.entry(opcode.name()).or_default() += 1;
        match disk {
            FRONT if !self.state.lock().notes(opcode, message) => None,
            FRONT => Some(self.front(opcode, message)),
            disk => self.data(disk, opcode, message, payload),
        }
    }
}

impl Service for Port {
    fn call(&self, request: Request<'_>, reply: Reply) {
        let payload = request.payload.as_deref().unwrap_or_default();
        match self.fake.answer(self.disk, request.opcode, request.message, payload) {
            None => self.fake.state.lock().held.push(reply),
            Some(Ok((message, bytes))) if bytes.is_empty() => reply.ok_with(|to| to.extend_from_slice(&message), ()),
            Some(Ok((message, bytes))) => {
                reply.ok_with(|to| to.extend_from_slice(&message), Payload::One(bytes.into()))
            }
            Some(Err(error)) => reply.err(error),
        }
    }
}

/// A running cluster; stops when it is dropped.
pub struct FakeCluster {
    pub(crate) fake: Arc<Fake>,
    servers: BTreeMap<u32, Server>,
    front: String,
}

impl FakeCluster {
    /// `disks` members numbered from 1, one placement group for each entry of `groups`.
    pub fn start(disks: u32, groups: &[Scheme]) -> FakeCluster {
        let mut cluster = Self::without_servers(disks, groups);
        for disk in (1..=disks).chain([FRONT]) {
            let server = cluster.serve(disk);
            let address = server.local_addr().to_string();
            if disk == FRONT {
                cluster.front = address.clone();
            }
            cluster.fake.state.lock().addresses.insert(disk, address);
            cluster.servers.insert(disk, server);
        }
        cluster
    }
    // check: long function because it is one table of how a cluster begins
    fn without_servers(disks: u32, groups: &[Scheme]) -> FakeCluster {
        let config = config();
        let mut state = State {
            version: 1,
            pgs: BTreeMap::new(),
            addresses: BTreeMap::new(),
            next_index: 1,
            next_session: 1,
            disks: (1..=disks).map(|disk| (disk, DiskChunks::default())).collect(),
            namespace: Namespace::new(&config),
            others: Vec::new(),
            shown: 1,
            silent: BTreeSet::new(),
            calls_at: BTreeMap::new(),
            txs: 0,
            wanted_delegations: BTreeSet::new(),
            wanted: BTreeSet::new(),
            log_index: 0,
            stopped: BTreeSet::new(),
            slow: BTreeMap::new(),
            hung: BTreeMap::new(),
            hung_met: 0,
            unanswered: 0,
            held: Vec::new(),
            corrupting: BTreeSet::new(),
            corrupted: 0,
            flaky: 0,
            overwrites: 0,
            saturated: false,
            columns: BTreeMap::new(),
            shards: 0,
            rotten: None,
            sums: 0,
            of_older_build: false,
            flaked: 0,
            behind: BTreeMap::new(),
            old_reads: 0,
            unsure: BTreeSet::new(),
            reads_held: false,
            down: BTreeSet::new(),
            lack_disks: false,
            full: false,
            discarded: Vec::new(),
            synced_appends: 0,
            syncs: 0,
            starting: 0,
            without_volume: 0,
            leaderless_for: None,
            bad_at: BTreeSet::new(),
            unreadable_at: BTreeSet::new(),
            reports: 0,
            bad_blocks: 0,
            reads: BTreeMap::new(),
            records: records::Records::default(),
            turns: turns::Turns::default(),
            calls: BTreeMap::new(),
        };
        for (i, scheme) in (1..).zip(groups) {
            assert!(scheme.members() <= disks as usize);
            let member = |n: usize| (n as u32 + i) % disks + 1;
            let members = (0..scheme.members())
                .map(|n| PgMember { disk: member(n), state: MemberState::Serving as u32, node: member(n) })
                .collect();
            let scheme = u32::from(scheme.code());
            let pg = PgState {
                pg: i,
                volume: 1,
                scheme,
                epoch: 1,
                creation_epoch: 1,
                members,
                retired: false,
                ..PgState::default()
            };
            state.pgs.insert(i, pg);
        }
        let fake = Arc::new(Fake { state: Mutex::new(state) });
        FakeCluster { fake, servers: BTreeMap::new(), front: String::new() }
    }
    fn serve(&self, disk: u32) -> Server {
        let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
        let config = ServerConfig { threads: 1, ..ServerConfig::default() };
        let identity = Identity::new(ClusterId([7; 16]), PeerKind::Server, NodeId(disk));
        let port = Arc::new(Port { fake: self.fake.clone(), disk });
        Server::bind(any, config, identity, port).expect("a port")
    }
    /// Where its manager is.
    pub fn manager(&self) -> String {
        self.front.clone()
    }
    pub async fn connect(&self) -> Client {
        self.connect_for(Duration::from_secs(8)).await
    }
    /// A client that tries everything for so long.
    pub async fn connect_for(&self, patience: Duration) -> Client {
        let options = ConnectOptions { patience, ..ConnectOptions::new(vec![self.front.clone()]) };
        Client::connect(options).await.expect("connected")
    }
    /// Waits for what a client does behind the end of a call, such as a report.
    #[cfg(test)]
    pub(crate) async fn until(&self, what: &str, holds: impl Fn(&State) -> bool) {
        let begun = tokio::time::Instant::now();
        while !holds(&self.fake.state.lock()) {
            assert!(begun.elapsed() < Duration::from_secs(120), "{what} did not come about");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    /// The member answers nothing from now on.
    pub fn stop(&self, disk: u32) {
        self.fake.state.lock().stopped.insert(disk);
    }
    /// They crash, all at the same moment, and are started again; how many bytes that took.
    pub fn crash(&self, disks: &[u32]) -> u64 {
        self.fake.state.lock().crash(&disks.iter().copied().collect())
    }
    /// Its disk hangs from now on.
    pub fn hang(&self, disk: u32) {
        self.fake.state.lock().hung.insert(disk, tokio::time::Instant::now());
    }
    /// Nobody listens at its port any more.
    pub fn kill(&mut self, disk: u32) {
        self.stop(disk);
        drop(self.servers.remove(&disk));
    }
    /// Its reads have one wrong bit from now on.
    pub fn corrupt(&self, disk: u32) {
        self.fake.state.lock().corrupting.insert(disk);
    }
    /// This block of every chunk on it is bad, or cannot be read at all.
    pub fn damage(&self, disk: u32, block: u64, readable: bool) {
        let mut state = self.fake.state.lock();
        if readable {
            state.bad_at.insert((disk, block));
        } else {
            state.unreadable_at.insert((disk, block));
        }
    }
    /// No block is bad any more.
    pub fn mend(&self) {
        let mut state = self.fake.state.lock();
        state.bad_at.clear();
        state.unreadable_at.clear();
    }
    /// All members of the namespace understand what this build does.
    pub fn raise_level(&self) {
        let level = cairn_types::FEATURE_LEVEL;
        let request = cairn_wire::meta::SetFeatureLevel { level };
        self.fake.state.lock().propose(cairn_wire::Opcode::SetFeatureLevel, &request);
    }
    /// All chunks on it are others now than those of the same numbers on other members.
    pub fn replace_chunks(&self, disk: u32) {
        self.fake.state.lock().replace_chunks(disk);
    }
    /// No member has a chunk any more, or knows that it was freed.
    pub fn forget_chunk(&self, pg: u32, index: u32) {
        self.fake.state.lock().forget_chunk(pg, index);
    }
    /// Disks of a group in their order.
    pub fn members(&self, pg: u32) -> Vec<u32> {
        self.fake.state.lock().pgs[&pg].members.iter().map(|m| m.disk).collect()
    }
    /// Holds the namespace against its invariants.
    pub fn check_namespace(&self) {
        let state = self.fake.state.lock();
        for namespace in [&state.namespace].into_iter().chain(&state.others) {
            if let Err(violation) = namespace.check_invariants() {
                panic!("{violation}");
            }
        }
    }
}

fn config() -> NamespaceConfig {
    let mut config = NamespaceConfig::new(VolumeId(1), PartitionId(1), Layout::replicated(3));
    config.root_mode = 0o777;
    config
}

impl State {
    fn map(&self) -> ClusterMap {
        let node = |(disk, address): (&u32, &String)| Node {
            id: *disk,
            address: address.clone(),
            roles: vec![if *disk == FRONT { "manager" } else { "data" }.to_owned()],
            up: !self.down.contains(disk),
            ..Default::default()
        };
        let disk = |disk: &u32| Disk { id: *disk, node: *disk, ..Default::default() };
        let later = self.pgs.get(&self.shards).map_or(0, |pg| pg.scheme);
        let column = |position: &u32| PgColumn {
            group: 1,
            position: *position,
            later,
            rack_capacity: 5,
            writable: true,
            ..PgColumn::default()
        };
        let pg = |state: &PgState| {
            let column = self.columns.get(&state.pg).map(column);
            let (state, writable) = (Some(state.clone()), column.is_none());
            Pg { state, writable, free_bytes: 1 << 40, column, ..Pg::default() }
        };
        ClusterMap {
            cluster: vec![7; 16],
            version: self.version,
            nodes: self.addresses.iter().map(node).collect(),
            disks: self.disks.keys().map(disk).collect(),
            volumes: vec![Volume { id: 1, name: "default".into(), layout: 3, ..Default::default() }],
            partitions: (1..=self.shown).map(|id| across::partition(id, self.shown)).collect(),
            pgs: self.pgs.values().map(pg).collect(),
            ..Default::default()
        }
    }
    /// Raises the epoch of a group, in which the disk is now in that state.
    pub(crate) fn set_member(&mut self, pg: u32, disk: u32, to: MemberState) {
        self.version += 1;
        let pg = self.pgs.get_mut(&pg).expect("a known group");
        pg.epoch += 1;
        for member in pg.members.iter_mut().filter(|m| m.disk == disk) {
            member.state = to as u32;
        }
    }
    /// Whether it gives no answer to what needs its disk.
    fn is_silent(&self, disk: u32) -> bool {
        self.stopped.contains(&disk) || self.hung.contains_key(&disk)
    }
    /// How its disk is.
    fn ping(&self, disk: u32) -> PingResponse {
        let Some(since) = self.hung.get(&disk) else { return PingResponse::default() };
        let left = STALL_AFTER.saturating_sub(since.elapsed());
        PingResponse { stalled: left.is_zero(), stalls_in_ms: left.as_millis() as u32 }
    }
    fn epoch_of(&self, pg: u32) -> Option<Epoch> {
        self.pgs.get(&pg).map(|pg| Epoch(pg.epoch))
    }
}
