//! A volume of three partitions on three nodes: operations across them, while nodes end and come back.
mod backup;
mod fsck;
mod limits;
mod sessions;
mod sharded;
mod snapshots;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use cairn_rpc::{LeaderClient, LeaderError, Repeat};
use cairn_types::{ErrorCode, PartitionId};
use cairn_wire::Opcode;
use cairn_wire::common::{Credentials, Empty, Extent};
use cairn_wire::manager::Partition;
use cairn_wire::meta::*;
use prost::Message;

use super::fixture::{Cluster, DataNode, PARTITION, PG, VOLUME, block_on, eventually, quick};
use crate::MetaTimings;

const RANGE: u64 = 1 << 40;
const COUNT: u32 = 3;
const CALL: Duration = Duration::from_secs(60);

/// The partitions are [`PARTITION`] and the two behind it.
fn start(nodes: usize) -> Cluster {
    start_with(nodes, quick())
}

fn start_with(nodes: usize, timings: MetaTimings) -> Cluster {
    let all: Vec<u32> = (0..nodes).map(|number| super::fixture::node_id(number).get()).collect();
    start_with_places(nodes, timings, |_| all.clone())
}

/// With the nodes of each partition, by their numbers from 0.
fn start_with_places(nodes: usize, timings: MetaTimings, places: impl Fn(u32) -> Vec<u32>) -> Cluster {
    let mut cluster = Cluster::prepare(nodes, timings, |config| config);
    let first = cluster.map.partitions.remove(0);
    cluster.map.partitions = partitions(&first, places);
    (0..nodes).for_each(|number| cluster.run(number));
    cluster.share_map();
    cluster
}

fn partitions(first: &Partition, places: impl Fn(u32) -> Vec<u32>) -> Vec<Partition> {
    let partition = |number| Partition {
        id: PARTITION + number,
        inode_first: (u64::from(number) * RANGE).max(1),
        inode_last: u64::from(number + 1) * RANGE - 1,
        nodes: places(number),
        ..first.clone()
    };
    (0..COUNT).map(partition).collect()
}

fn owner(inode: u64) -> u32 {
    PARTITION + ((cairn_types::InodeId(inode).now().0 / RANGE) as u32).min(COUNT - 1)
}

/// A client with one slot at each partition.
pub(super) struct User {
    leaders: BTreeMap<u32, LeaderClient>,
    session: u64,
    sequences: BTreeMap<u32, u64>,
}

impl User {
    pub(super) fn new(cluster: &Cluster, session: u64) -> Self {
        let leaders = (PARTITION..PARTITION + COUNT).map(|id| (id, cluster.leader_client())).collect();
        Self { leaders, session, sequences: BTreeMap::new() }
    }

    /// Another one, who learns of new addresses together with this one.
    fn beside(&self, session: u64) -> Self {
        Self { leaders: self.leaders.clone(), session, sequences: BTreeMap::new() }
    }

    pub(super) fn header(&self, partition: u32, sequence: u64) -> Option<MetaHeader> {
        let who = Some(Credentials::default());
        Some(MetaHeader { volume: VOLUME, partition, session: self.session, slot: 0, sequence, who })
    }

    pub(super) fn call<A: Message + Default>(
        &self,
        at: u32,
        opcode: Opcode,
        request: &impl Message,
    ) -> Result<A, ErrorCode> {
        match block_on(self.leaders[&at].call(opcode, request, CALL, Repeat::Harmless)) {
            Ok(answer) => Ok(answer),
            Err(LeaderError::Remote(error)) => Err(error.code),
            Err(error) => panic!("{error}"),
        }
    }

    /// A mutation, repeated under its number until it is answered.
    fn mutate<A: Message + Default, R: Message>(
        &mut self,
        inode: u64,
        opcode: Opcode,
        make: impl Fn(Option<MetaHeader>) -> R,
    ) -> Result<A, ErrorCode> {
        let at = owner(inode);
        let sequence = self.sequences.get(&at).copied().unwrap_or_default() + 1;
        let answer = self.call(at, opcode, &make(self.header(at, sequence)));
        if !matches!(answer, Err(ErrorCode::CrossVolume | ErrorCode::BadRequest)) {
            self.sequences.insert(at, sequence);
        }
        answer
    }

    pub(super) fn mkdir(&mut self, parent: u64, name: &str, partition: u32) -> Result<u64, ErrorCode> {
        let name = name.as_bytes().to_vec();
        let make =
            |header| MkdirRequest { header, parent, name: name.clone(), mode: 0o755, partition, ..Default::default() };
        let answer: AttributesResponse = self.mutate(parent, Opcode::Mkdir, make)?;
        Ok(answer.attributes.expect("attributes").inode)
    }

    pub(super) fn create(&mut self, parent: u64, name: &str) -> Result<u64, ErrorCode> {
        self.create_with(parent, name, Vec::new())
    }

    /// Of the first block of a chunk.
    fn create_with_blocks(&mut self, parent: u64, name: &str, index: u32) -> Result<u64, ErrorCode> {
        let extent = Extent { file_offset: 0, length: 4096, pg: PG, index, chunk_offset: 0, flags: 0 };
        self.create_with(parent, name, vec![extent])
    }

    fn create_with(&mut self, parent: u64, name: &str, extents: Vec<Extent>) -> Result<u64, ErrorCode> {
        let (name, written_by) = (name.as_bytes().to_vec(), self.session);
        let make = |header| CreateRequest {
            header,
            parent,
            name: name.clone(),
            mode: 0o100_644,
            exclusive: true,
            size: extents.len() as u64 * 4096,
            extents: extents.clone(),
            written_by,
            ..CreateRequest::default()
        };
        let answer: AttributesResponse = self.mutate(parent, Opcode::Create, make)?;
        Ok(answer.attributes.expect("attributes").inode)
    }

    fn link(&mut self, inode: u64, parent: u64, name: &str) -> Result<(), ErrorCode> {
        let name = name.as_bytes().to_vec();
        let make = |header| LinkRequest { header, inode, parent, name: name.clone(), replace: false };
        self.mutate::<AttributesResponse, _>(parent, Opcode::Link, make).map(|_| ())
    }

    fn unlink(&mut self, parent: u64, name: &str) -> Result<(), ErrorCode> {
        let name = name.as_bytes().to_vec();
        let make = |header| UnlinkRequest { header, parent, name: name.clone() };
        self.mutate::<RemovedResponse, _>(parent, Opcode::Unlink, make).map(|_| ())
    }

    fn rmdir(&mut self, parent: u64, name: &str) -> Result<(), ErrorCode> {
        let name = name.as_bytes().to_vec();
        let make = |header| RmdirRequest { header, parent, name: name.clone() };
        self.mutate::<RemovedResponse, _>(parent, Opcode::Rmdir, make).map(|_| ())
    }

    fn remove_tree(&mut self, parent: u64, name: &str) -> Result<(), ErrorCode> {
        let name = name.as_bytes().to_vec();
        let make = |header| RemoveTreeRequest { header, parent, name: name.clone() };
        self.mutate::<Empty, _>(parent, Opcode::RemoveTree, make).map(|_| ())
    }

    fn rename(&mut self, from: (u64, &str), to: (u64, &str), flags: u32) -> Result<(), ErrorCode> {
        let (name, new_name) = (from.1.as_bytes().to_vec(), to.1.as_bytes().to_vec());
        let make = |header| RenameRequest {
            header,
            parent: from.0,
            name: name.clone(),
            new_parent: to.0,
            new_name: new_name.clone(),
            flags,
        };
        self.mutate::<Empty, _>(from.0, Opcode::Rename, make).map(|_| ())
    }

    pub(super) fn getattr(&self, inode: u64) -> Result<Attributes, ErrorCode> {
        let at = owner(inode);
        let request = GetattrRequest { header: self.header(at, 0), inode };
        let answer: AttributesResponse = self.call(at, Opcode::Getattr, &request)?;
        Ok(answer.attributes.expect("attributes"))
    }

    fn lookup(&self, parent: u64, name: &str) -> Result<u64, ErrorCode> {
        let at = owner(parent);
        let request = LookupRequest { header: self.header(at, 0), parent, name: name.as_bytes().to_vec() };
        let answer: AttributesResponse = self.call(at, Opcode::Lookup, &request)?;
        Ok(answer.attributes.expect("attributes").inode)
    }

    fn list(&self, inode: u64) -> Vec<(String, u64)> {
        let at = owner(inode);
        let request = ReaddirRequest { header: self.header(at, 0), inode, count_max: 10_000, ..Default::default() };
        let answer: ReaddirResponse = self.call(at, Opcode::Readdir, &request).expect("a listing");
        answer.entries.into_iter().map(|entry| (String::from_utf8(entry.name).expect("text"), entry.inode)).collect()
    }
}

/// Locks and records of all partitions.
fn left_over(cluster: &Cluster) -> usize {
    let mut count = 0;
    for running in cluster.nodes.iter().flatten() {
        for partition in running.meta.partitions().read().values() {
            let namespace = partition.state.namespace.read();
            count += namespace.tx_locks(1000).len() + namespace.tx_decisions(1000).len();
        }
    }
    count
}

/// Walks the whole volume: every name names what is there, every directory knows its parent, links are counted right,
/// and nothing is there without a name.
fn check(cluster: &Cluster, user: &User) -> BTreeMap<u64, u32> {
    eventually("the end of all locks and records", || left_over(cluster) == 0);
    let mut links: BTreeMap<u64, u32> = BTreeMap::from([(1, 0)]);
    let mut open = vec![1];
    while let Some(directory) = open.pop() {
        for (name, inode) in user.list(directory) {
            let attributes =
                user.getattr(inode).unwrap_or_else(|error| panic!("{name}, {inode} of {directory}: {error:?}"));
            *links.entry(inode).or_default() += 1;
            if attributes.mode & 0o170_000 == 0o040_000 {
                assert_eq!(user.lookup(inode, ".."), Ok(directory), "{name}");
                assert_eq!(links[&inode], 1, "{name} has two places");
                open.push(inode);
            }
        }
    }
    for (inode, count) in &links {
        let attributes = user.getattr(*inode).expect("it was there");
        if attributes.mode & 0o170_000 != 0o040_000 {
            assert_eq!(attributes.nlink, *count, "links of {inode}");
        }
    }
    let counted = |id: u32| {
        let request = StatfsRequest { header: user.header(id, 0), ..Default::default() };
        user.call::<StatfsResponse>(id, Opcode::Statfs, &request).expect("statfs").inodes
    };
    let expected = links.len() as u64;
    eventually("no inode without a name", || (PARTITION..PARTITION + COUNT).map(counted).sum::<u64>() == expected);
    links
}

#[test]
fn directories_are_made_elsewhere_and_used_like_any_other() {
    let cluster = start(1);
    let mut user = User::new(&cluster, 9);
    let (two, three) = (user.mkdir(1, "two", 6).expect("made"), user.mkdir(1, "three", 7).expect("made"));
    assert_eq!((owner(two), owner(three)), (6, 7));
    assert_eq!(user.mkdir(1, "two", 7), Err(ErrorCode::Exists));
    assert_eq!(user.mkdir(1, "four", 8), Err(ErrorCode::BadRequest));
    assert_eq!(user.lookup(two, ".."), Ok(1));
    let inside = user.mkdir(two, "inside", 0).expect("made");
    assert_eq!(owner(inside), 6, "beside its parent");
    let file = user.create(two, "f").expect("created");
    user.link(file, three, "g").expect("linked");
    user.rename((two, "f"), (1, "h"), 0).expect("renamed");
    assert_eq!(user.getattr(file).expect("attributes").nlink, 2);
    user.unlink(three, "g").expect("removed");
    assert_eq!(user.rmdir(1, "two"), Err(ErrorCode::NotEmpty));
    user.rename((two, "inside"), (three, "moved"), 0).expect("moved");
    user.rmdir(1, "two").expect("removed");
    assert_eq!(user.getattr(two), Err(ErrorCode::Stale));
    user.unlink(1, "h").expect("removed");
    assert_eq!(user.getattr(file), Err(ErrorCode::Stale));
    // A directory with others in it is moved, but not below itself.
    let deep = user.mkdir(inside, "deep", 5).expect("made");
    user.mkdir(deep, "deeper", 6).expect("made");
    assert_eq!(user.rename((1, "three"), (deep, "circle"), 0), Err(ErrorCode::InvalidArgument));
    user.rename((inside, "deep"), (1, "up"), 0).expect("moved");
    user.create(1, "file").expect("created");
    user.rename((1, "up"), (1, "file"), 2).expect("swapped");
    let all = check(&cluster, &user);
    assert_eq!(all.len(), 6);
    assert_eq!(all.keys().filter(|inode| owner(**inode) != PARTITION).count(), 3);
}

/// Requests between servers would be a way around permissions for everybody.
#[test]
fn only_servers_take_part() {
    let cluster = start(1);
    let user = User::new(&cluster, 9);
    eventually("a leader", || user.getattr(1).is_ok());
    let request = AskTxRequest { header: user.header(PARTITION, 0), ..Default::default() };
    let refused = user.call::<AskTxResponse>(PARTITION, Opcode::AskTx, &request);
    assert_eq!(refused.err(), Some(ErrorCode::NotPermitted));
}

/// Who has locked something for an operation that may still be decided would hear that it was not done, and open it: it
/// would be done in part. Or what never will be would stay open, and its locks with it.
#[test]
fn what_may_still_be_decided_is_not_said_to_be_void() {
    let cluster = start(1);
    let partition = || cluster.meta(0).partitions().read().get(&PartitionId(PARTITION)).cloned();
    let term = || partition().and_then(|partition| partition.state.leading_term());
    eventually("a leader", || term().is_some());
    let (partition, term) = (partition().expect("it leads"), term().expect("it leads"));
    let servers = cluster.server_leader_client();
    let told = |tx: cairn_meta_core::TxId| {
        let header = Some(MetaHeader { volume: VOLUME, partition: PARTITION, ..MetaHeader::default() });
        let request = AskTxRequest { header, txs: vec![tx.wire()], participant: 6 };
        let answer = block_on(servers.call::<AskTxResponse>(Opcode::AskTx, &request, CALL, Repeat::Harmless));
        answer.expect("an answer").answers[0].state()
    };
    let tx = partition.state.across.begin(term);
    assert_eq!(told(tx), TxState::TxOpen, "this leader may still decide it");
    partition.state.across.end(tx);
    assert_eq!(told(tx), TxState::TxVoid, "it gave it up");
    let of_term = |term| cairn_meta_core::TxId { term, ..tx };
    assert_eq!(told(of_term(term - 1)), TxState::TxVoid, "nothing of a term before is decided any more");
    assert_eq!(told(of_term(term + 1)), TxState::TxOpen, "a leader that is not known here may decide it");
}

/// A directory that is to be in a partition which was made a moment ago would be refused for good by a node that has
/// not heard of it.
#[test]
fn a_partition_that_is_newer_than_the_map_is_waited_for() {
    let mut cluster = Cluster::prepare(1, MetaTimings { map_rounds: 1, ..quick() }, |config| config);
    let first = cluster.map.partitions.remove(0);
    cluster.map.partitions = partitions(&first, |_| vec![super::fixture::node_id(0).get()]);
    let newest = cluster.map.partitions.pop().expect("three");
    cluster.run(0);
    cluster.share_map();
    let mut user = User::new(&cluster, 9);
    user.mkdir(1, "before", 6).expect("made");
    std::thread::scope(|scope| {
        let user = &mut user;
        let made = scope.spawn(move || user.mkdir(1, "new", newest_id()));
        let rounds = || cluster.meta(0).common().map_rounds.receiver_count();
        eventually("somebody waits for a map", || rounds() > 0);
        cluster.map.partitions.push(newest);
        cluster.share_map();
        cluster.meta(0).common().map_rounds.send_modify(|count| *count += 1);
        let made = made.join().expect("no panic").expect("made");
        assert_eq!(owner(made), newest_id());
    });
}

const fn newest_id() -> u32 {
    PARTITION + COUNT - 1
}

/// What is done at random, by several users, in directories of all partitions.
fn wander(user: &mut User, seed: u64, directories: &[u64], done: &AtomicU64, end: &AtomicBool) {
    let mut state = seed;
    let mut draw = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let name = |number: u64| format!("n{number}");
    while !end.load(Ordering::Relaxed) {
        let from = directories[draw(directories.len() as u64) as usize];
        let to = directories[draw(directories.len() as u64) as usize];
        let (one, other) = (name(draw(6)), name(draw(6)));
        let outcome = match draw(10) {
            0 => user.create(from, &one).map(|_| ()),
            1 => user.mkdir(from, &one, PARTITION + draw(COUNT.into()) as u32).map(|_| ()),
            2 => user.unlink(from, &one),
            3 => user.rmdir(from, &one),
            4 => user.rename((from, &one), (to, &other), 2),
            9 => user.remove_tree(from, &one),
            5 => user.list(from).first().map_or(Ok(()), |(_, inode)| user.link(*inode, to, &other)),
            _ => user.rename((from, &one), (to, &other), 0),
        };
        use ErrorCode::*;
        match outcome {
            Ok(()) => drop(done.fetch_add(1, Ordering::Relaxed)),
            Err(NotFound | Exists | NotEmpty | IsDirectory | NotDirectory | InvalidArgument | NotPermitted | Stale) => {
            }
            Err(error) => panic!("{error:?}"),
        }
    }
}

/// An operation would be half done, done twice, or leave something that nobody names, when a leader ends in the middle
/// of it.
#[test]
fn nothing_is_half_done_when_nodes_end() {
    let mut cluster = start(3);
    let mut first = User::new(&cluster, 1);
    let mut directories = vec![1];
    for number in 0..5 {
        directories.push(first.mkdir(1, &format!("base{number}"), PARTITION + number % COUNT).expect("made"));
    }
    let users: Vec<User> = (2..6).map(|session| first.beside(session)).collect();
    let (done, end) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for (mut user, seed) in users.into_iter().zip(1..) {
            let (directories, done, end) = (&directories, &done, &end);
            scope.spawn(move || wander(&mut user, seed, directories, done, end));
        }
        for round in 0..4 {
            let wanted = done.load(Ordering::Relaxed) + 60;
            eventually("some operations", || done.load(Ordering::Relaxed) >= wanted);
            cluster.kill(round % 3);
            cluster.run(round % 3);
            cluster.share_map();
            let addresses = cluster.leader_client().addresses();
            first.leaders.values().for_each(|leader| leader.set_addresses(addresses.clone()));
        }
        end.store(true, Ordering::Relaxed);
    });
    check(&cluster, &first);
    assert!(left_over(&cluster) == 0);
    let led = |id: u32| cluster.nodes.iter().flatten().any(|node| node.meta.leads().contains_key(&PartitionId(id)));
    eventually("leaders of all", || (PARTITION..PARTITION + COUNT).all(led));
}

/// What is below a removed directory in other partitions would stay for ever, with all its space.
#[test]
fn a_removed_tree_goes_everywhere() {
    let cluster = start(1);
    let mut user = User::new(&cluster, 9);
    for round in 0..3 {
        let mut parent = user.mkdir(1, "top", PARTITION + round).expect("made");
        for depth in 0..12 {
            for name in ["a", "b", "c"] {
                user.create(parent, name).expect("created");
            }
            let beside = user.mkdir(parent, "beside", PARTITION + (depth + round + 1) % COUNT).expect("made");
            user.create(beside, "f").expect("created");
            parent = user.mkdir(parent, "deeper", PARTITION + (depth + round) % COUNT).expect("made");
        }
        user.remove_tree(1, "top").expect("removed");
        assert_eq!(user.lookup(1, "top"), Err(ErrorCode::NotFound));
    }
    assert_eq!(check(&cluster, &user).len(), 1);
}

/// A sealed chunk of so many blocks that nobody appended to for long.
fn chunk(index: u32, session: u64, blocks: u64) -> cairn_wire::data::ChunkSummary {
    let length = blocks * 4096;
    cairn_wire::data::ChunkSummary {
        index,
        length,
        durable_length: length,
        sealed: true,
        session,
        idle_ms: 3_600_000,
        ..Default::default()
    }
}

fn of_garbage() -> MetaTimings {
    MetaTimings {
        garbage_period: Duration::from_millis(20),
        garbage_grace: Duration::from_millis(500),
        unknown_grace: Duration::from_secs(3000),
        ..quick()
    }
}

fn passes(cluster: &Cluster, count: u64) {
    let passes = || cluster.meta(0).stats().garbage_passes.load(Ordering::SeqCst);
    let before = passes();
    eventually("passes", || passes() >= before + count);
}

/// What killed writers left would stay for ever in a volume of several partitions; or bytes of files be freed that
/// another partition than the one that collects has.
#[test]
fn garbage_is_what_no_partition_names() {
    let data = DataNode::start();
    let mut cluster = start_with(1, of_garbage());
    cluster.add_pg(&[&data]);
    let mut user = User::new(&cluster, 9);
    let elsewhere = user.mkdir(1, "elsewhere", 7).expect("made");
    user.create_with_blocks(1, "here", 0).expect("created");
    user.create_with_blocks(elsewhere, "there", 1).expect("created");
    data.set_chunks((0..4).map(|index| chunk(index, 9, 2)).collect());
    passes(&cluster, 3);
    assert_eq!(data.freed_ranges(), [], "its writer lives");
    let request = EndSessionRequest { header: user.header(PARTITION, 0) };
    user.call::<Empty>(PARTITION, Opcode::EndSession, &request).expect("ended where it was announced");
    let all_but_named = [(0, 4096, 4096), (1, 4096, 4096), (2, 0, 8192), (3, 0, 8192)];
    eventually("the rest to be freed", || data.freed_ranges() == all_but_named);
    assert_eq!(user.create_with_blocks(elsewhere, "late", 2), Err(ErrorCode::SessionEnded), "ended everywhere");
}

/// Space of packs that are mostly dead would never come back in a volume of several partitions; or what one partition
/// alone knows to live in them would be taken for nothing, and they be moved in part again and again.
#[test]
fn packs_are_compacted_by_what_all_partitions_name() {
    let data = DataNode::start();
    let mut cluster = start_with(1, of_garbage());
    cluster.add_pg(&[&data]);
    cluster.map.pgs[0].state.as_mut().expect("a group").scheme = u32::from(cairn_types::Scheme::Replicated(1).code());
    cluster.share_map();
    let mut user = User::new(&cluster, 9);
    let (two, three) = (user.mkdir(1, "two", 6).expect("made"), user.mkdir(1, "three", 7).expect("made"));
    let files = [
        user.create_with_blocks(1, "a", 0).expect("created"),
        user.create_with_blocks(two, "b", 1).expect("created"),
        user.create_with_blocks(three, "c", 2).expect("created"),
    ];
    // The second block of 1 is named in another partition than the first one; of 3 it is named by nobody.
    let second = |index| Extent { file_offset: 0, length: 4096, pg: PG, index, chunk_offset: 4096, flags: 0 };
    let beside = user.create_with(three, "d", vec![second(1)]).expect("created");
    user.create_with_blocks(two, "e", 3).expect("created");
    let pack = |index: u32, used: u32| cairn_wire::data::ChunkSummary {
        punched_blocks: u64::from(4 - used),
        used: vec![0, used],
        held_bytes: 69_632 + u64::from(used) * 4096,
        ..chunk(index, 9, 4)
    };
    data.set_chunks(vec![pack(0, 1), pack(1, 2), pack(2, 1), pack(3, 2)]);
    let mut asked = Vec::new();
    eventually("a request", || {
        asked = data.take_compacted();
        !asked.is_empty()
    });
    let chunks: Vec<u32> = asked[0].chunks.iter().map(|chunk| chunk.index).collect();
    assert_eq!(chunks, [0, 1, 2]);
    let places: Vec<u64> = asked[0].places.as_chunks::<2>().0.iter().map(|[inode, _]| *inode).collect();
    assert_eq!(places, [files[0], files[1], files[2], beside]);
    assert_eq!(data.freed_ranges(), [], "its writer lives");
}
