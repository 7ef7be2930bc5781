//! Measures the meta role over loopback, one member with a durable log: creates and lookups, 64 connections with one
//! call outstanding each and 32 with 16, beside a bare ping through the same server in the same run, with the CPU that
//! the server's threads use a call.
//!
//! `cargo run --release -p cairn-meta --example meta_rpc_bench -- [seconds a case] [server threads] [directory] [only]`
//! where `only` is a part of a case's name, such as "lookup 32".

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cairn_env::buf::BufPool;
use cairn_env::{Clock, FastRng, RealClock, RealDisk};
use cairn_meta::{MetaConfig, MetaServer};
use cairn_raft_host::{FetchError, HostConfig, RaftHost, RaftTransport};
use cairn_rpc::{Client, ClientConfig, Connection, Identity, Reply, Request, Server, ServerConfig, Service};
use cairn_types::{ClusterId, DiskUuid, GroupId, Layout, NodeId, PartitionId};
use cairn_wire::Opcode;
use cairn_wire::common::{Credentials, Empty};
use cairn_wire::frame::CallHeader;
use cairn_wire::hello::PeerKind;
use cairn_wire::manager::{ClusterMap, Node, Partition, Volume};
use cairn_wire::meta::{CreateRequest, LookupRequest, MetaHeader};
use cairn_wire::raft::{FetchCheckpointRequest, FetchCheckpointResponse, RaftBatch};

const NODE: NodeId = NodeId(16);
const PARTITION: u32 = 1;
const CLUSTER: ClusterId = ClusterId([1; 16]);
const LOAD_THREADS: usize = 2;
const WARM: Duration = Duration::from_millis(500);

/// Nobody else is there.
struct Alone;

impl RaftTransport for Alone {
    fn send(&self, _to: NodeId, _batch: RaftBatch) {}
    fn fetch(
        &self,
        from: NodeId,
        _request: FetchCheckpointRequest,
    ) -> Result<(FetchCheckpointResponse, Bytes), FetchError> {
        Err(FetchError::Gone { from })
    }
}

struct BenchService(Arc<MetaServer>);

impl Service for BenchService {
    fn call(&self, request: Request<'_>, reply: Reply) {
        if request.opcode == Opcode::Ping.code() {
            return reply.ok(&Empty {}, ());
        }
        self.0.call(request, reply);
    }
    fn batch_end(&self) {
        self.0.batch_end();
    }
}

/// CPU nanoseconds by thread name (without its number), from the scheduler's own count.
fn cpu() -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for task in std::fs::read_dir("/proc/self/task").expect("proc is mounted").flatten() {
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        let name = name.trim().trim_end_matches(|c: char| c.is_ascii_digit() || c == '-').to_owned();
        let stat = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        *sums.entry(name).or_insert(0) += stat.split(' ').next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
    }
    sums
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Ping,
    Lookup,
    Create,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Ping => "ping",
            Kind::Lookup => "lookup",
            Kind::Create => "create",
        }
    }
}

/// What one connection asks.
struct Source {
    kind: Kind,
    number: u64,
    session: u64,
    made: u64,
    sequences: Vec<u64>,
}

static RUN: AtomicU64 = AtomicU64::new(0);

fn name(number: u64, count: u64) -> Vec<u8> {
    format!("{number:05}-{count:010}").into_bytes()
}

impl Source {
    fn header(&self, slot: usize, sequence: u64) -> Option<MetaHeader> {
        let who = Some(Credentials { uid: 1000, gid: 1000, groups: Vec::new() });
        Some(MetaHeader { volume: 1, partition: PARTITION, session: self.session, slot: slot as u32, sequence, who })
    }

    fn send(&mut self, connection: &mut Connection, slot: usize) -> u64 {
        let call = CallHeader { deadline_ms: 10_000, trace_id: 7 };
        self.made += 1;
        let sent = match self.kind {
            Kind::Ping => connection.send(Opcode::Ping.code(), call, &Empty {}, ()),
            Kind::Lookup => {
                let name = name(self.made * 7 % 64, 1 + self.made % 500);
                let request = LookupRequest { header: self.header(slot, 0), parent: 1, name };
                connection.send(Opcode::Lookup.code(), call, &request, ())
            }
            Kind::Create => {
                self.sequences[slot] += 1;
                let request = CreateRequest {
                    header: self.header(slot, self.sequences[slot]),
                    parent: 1,
                    name: name(self.number, self.made),
                    mode: 0o100_644,
                    exclusive: true,
                    ..CreateRequest::default()
                };
                connection.send(Opcode::Create.code(), call, &request, ())
            }
        };
        sent.expect("it fits")
    }
}

/// Keeps `depth` calls in flight until the time is over, and ends with none.
async fn drive(address: &str, kind: Kind, depth: usize, count: &AtomicU64, end: Instant, most: u64) -> Vec<u32> {
    let mut connection =
        Connection::connect(address, &Identity::client(), BufPool::new(64 << 20)).await.expect("it listens");
    let number = RUN.fetch_add(1, Relaxed);
    let mut source = Source { kind, number, session: 1000 + number, made: 0, sequences: vec![0; depth] };
    let mut under_way = BTreeMap::new();
    let mut latencies = Vec::new();
    for slot in 0..depth {
        under_way.insert(source.send(&mut connection, slot), (slot, Instant::now()));
    }
    while !under_way.is_empty() {
        connection.fill().await.expect("the server lives");
        let mut free = Vec::new();
        while let Some(answer) = connection.try_recv().expect("a good answer") {
            assert!(!answer.error, "{}: {}", kind.name(), String::from_utf8_lossy(answer.message));
            free.push(under_way.remove(&answer.request_id).expect("it was asked"));
        }
        count.fetch_add(free.len() as u64, Relaxed);
        let now = Instant::now();
        for (slot, since) in free {
            latencies.push(u32::try_from((now - since).as_micros()).unwrap_or(u32::MAX));
            if now < end && source.made < most {
                under_way.insert(source.send(&mut connection, slot), (slot, now));
            }
        }
    }
    latencies
}

fn run_load(address: &'static str, kind: Kind, conns: usize, depth: usize, time: Duration, most: u64) -> f64 {
    let count = Arc::new(AtomicU64::new(0));
    let end = Instant::now() + time + 2 * WARM;
    let handles: Vec<_> = (0..LOAD_THREADS)
        .map(|thread| {
            let count = count.clone();
            let run = move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
                let local = tokio::task::LocalSet::new();
                local.block_on(&runtime, async {
                    let tasks: Vec<_> = (0..conns / LOAD_THREADS)
                        .map(|_| {
                            let count = count.clone();
                            tokio::task::spawn_local(
                                async move { drive(address, kind, depth, &count, end, most).await },
                            )
                        })
                        .collect();
                    let mut latencies = Vec::new();
                    for task in tasks {
                        latencies.extend(task.await.expect("no panic"));
                    }
                    latencies
                })
            };
            std::thread::Builder::new().name(format!("load-{thread}")).spawn(run).expect("a thread")
        })
        .collect();
    std::thread::sleep(WARM);
    let (start, before, cpu_before) = (Instant::now(), count.load(Relaxed), cpu());
    std::thread::sleep(time);
    let (wall, calls, cpu_after) = (start.elapsed(), count.load(Relaxed) - before, cpu());
    let mut latencies: Vec<u32> = handles.into_iter().flat_map(|handle| handle.join().expect("no panic")).collect();
    if most < u64::MAX {
        return 0.0;
    }
    latencies.sort_unstable();
    let at = |part: f64| latencies[(latencies.len() as f64 * part) as usize];
    let used = |name: &str| {
        cpu_after.get(name).copied().unwrap_or(0).saturating_sub(cpu_before.get(name).copied().unwrap_or(0))
    };
    let us = |ns: u64| ns as f64 / 1e3 / calls.max(1) as f64;
    let server: Vec<(&String, u64)> =
        cpu_after.keys().filter(|name| !name.starts_with("load")).map(|name| (name, used(name))).collect();
    let rate = calls as f64 / wall.as_secs_f64();
    let what = kind.name();
    print!("{what:<7} {conns:>3} x {depth:<3} {rate:>9.0} /s  server {:>6.3} us", us(server.iter().map(|s| s.1).sum()));
    print!("  client {:>6.3} us  p50 {:>5} p99 {:>6} us  (", us(used("load")), at(0.5), at(0.99));
    let parts = server.iter().filter(|(_, ns)| us(*ns) >= 0.01);
    println!("{})", parts.map(|(name, ns)| format!("{name} {:.2}", us(*ns))).collect::<Vec<_>>().join(", "));
    rate
}

fn main() {
    let mut args = std::env::args().skip(1);
    let seconds: f64 = args.next().and_then(|a| a.parse().ok()).unwrap_or(2.0);
    let threads: usize = args.next().and_then(|a| a.parse().ok()).unwrap_or(2);
    let dir = match args.next() {
        Some(dir) => tempfile::tempdir_in(dir),
        None => tempfile::tempdir(),
    };
    let dir = dir.expect("a directory");
    let uuid = DiskUuid([1; 16]);
    let clock: Arc<dyn Clock> = Arc::new(RealClock);
    let disk = Arc::new(RealDisk::open(dir.path()).expect("a disk"));
    let rng = Arc::new(FastRng::from_os());
    let host = RaftHost::start(HostConfig::new(NODE, uuid), clock.clone(), rng, disk.clone(), Arc::new(Alone));
    let host = Arc::new(host.expect("a host"));
    let client = Client::with_threads(1, ClientConfig::default(), Identity::client()).expect("threads");
    let meta = MetaServer::start(MetaConfig::new(uuid), NODE, disk, host.clone(), client, clock).expect("a role");
    let config = ServerConfig { threads, thread_name: "rpc".into(), ..ServerConfig::default() };
    let identity = Identity::new(CLUSTER, PeerKind::Server, NODE);
    let listen = "127.0.0.1:0".parse().expect("an address");
    let server = Server::bind(listen, config, identity, Arc::new(BenchService(meta.clone()))).expect("a free port");
    let address: &'static str = server.local_addr().to_string().leak();
    meta.apply_map(&ClusterMap {
        cluster: CLUSTER.0.to_vec(),
        version: 1,
        nodes: vec![Node { id: NODE.get(), address: address.to_owned(), up: true, ..Node::default() }],
        volumes: vec![Volume { id: 1, layout: Layout::replicated(1).to_bits(), ..Volume::default() }],
        partitions: vec![Partition {
            id: PARTITION,
            volume: 1,
            inode_first: 1,
            inode_last: u64::MAX,
            nodes: vec![NODE.get()],
            ..Partition::default()
        }],
        ..ClusterMap::default()
    });
    while !meta.leads().contains_key(&PartitionId(PARTITION)) {
        std::thread::sleep(Duration::from_millis(10));
    }
    let time = Duration::from_secs_f64(seconds);
    let only = args.next().unwrap_or_default();
    // The names that lookups ask for: 64 connections make 500 each.
    run_load(address, Kind::Create, 64, 8, Duration::ZERO, 501);
    for (conns, depth) in [(64, 1), (32, 16)] {
        let run = |kind: Kind| {
            let wanted = format!("{} {conns}", kind.name()).contains(&only);
            if wanted { run_load(address, kind, conns, depth, time, u64::MAX) } else { f64::NAN }
        };
        let (ping, lookup) = (run(Kind::Ping), run(Kind::Lookup));
        let syncs = host.wal_stats().batches();
        let create = run(Kind::Create);
        let syncs = (host.wal_stats().batches() - syncs) as f64 / (time + 2 * WARM).as_secs_f64();
        println!("  lookup / ping {:.2}, create / ping {:.2}, {syncs:.0} syncs/s", lookup / ping, create / ping);
    }
    let status = host.status(GroupId(PARTITION)).expect("it is open");
    println!("entries by size (up to 2^i operations): {:?}", status.batch_sizes);
    let report = &meta.partition_reports()[0];
    println!("{} inodes, {:.1} bytes each", report.inodes, report.memory_bytes as f64 / report.inodes as f64);
    server.shutdown(Duration::from_millis(100));
    meta.stop();
    host.shutdown();
    drop((server, meta, host));
    restart(dir.path(), uuid);
}

/// How long it takes until the same state serves again.
fn restart(dir: &std::path::Path, uuid: DiskUuid) {
    let clock: Arc<dyn Clock> = Arc::new(RealClock);
    let disk = Arc::new(RealDisk::open(dir).expect("a disk"));
    let rng = Arc::new(FastRng::from_os());
    let start = Instant::now();
    let host = RaftHost::start(HostConfig::new(NODE, uuid), clock.clone(), rng, disk.clone(), Arc::new(Alone));
    let host = Arc::new(host.expect("a host"));
    let log = start.elapsed();
    let client = Client::with_threads(1, ClientConfig::default(), Identity::client()).expect("threads");
    let meta = MetaServer::start(MetaConfig::new(uuid), NODE, disk, host.clone(), client, clock).expect("a role");
    let state = start.elapsed() - log;
    while !meta.leads().contains_key(&PartitionId(PARTITION)) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let inodes = meta.partition_reports()[0].inodes;
    println!("restart: {inodes} inodes serve after {:?} (log {log:?}, checkpoint {state:?})", start.elapsed());
    meta.stop();
}
