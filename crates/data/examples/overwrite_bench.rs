//! Overwrites in place beside synced small appends (what new space costs on the data path, without the publish in the
//! namespace), over loopback TCP in one process; and what one slow or silent member does to them. CPU is that of the
//! whole process: writers and all members together.
//!
//!     cargo run --release -p cairn-data --example overwrite_bench -- [DIR] [seconds]

mod one_node;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use cairn_env::{AlignedBuf, SharedBuf};
use cairn_format::crc_table::encode_crcs;
use cairn_node_agent::Contributor;
use cairn_rpc::{CallOptions, Client, ClientConfig, Identity, Peer};
use cairn_types::{BLOCK_SIZE, ClusterId, NodeId, crc32c, crc32c_blocks};
use cairn_wire::Opcode;
use cairn_wire::data::{
    AllocateRequest, AllocateResponse, AppendRequest, ChunkHeader, OverwriteRequest, OverwriteVector, PgMember,
    PgState, SyncRequest,
};
use cairn_wire::hello::PeerKind;
use cairn_wire::manager::{ClusterMap, Node, Pg};
use one_node::{BenchNode, Failure, start_node};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const CLUSTER: ClusterId = ClusterId([1; 16]);
const BLOCKS: u32 = 16_384;
const DEADLINE: Duration = Duration::from_secs(20);

/// What the way to the last member does: a delay of each direction in microseconds, or nothing passes at all.
#[derive(Default)]
struct Way {
    delay_us: AtomicU64,
    stopped: AtomicBool,
}

/// Passes bytes on after a delay, without slowing down what follows.
async fn pass(mut from: tokio::net::tcp::OwnedReadHalf, mut to: tokio::net::tcp::OwnedWriteHalf, way: Arc<Way>) {
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    tokio::spawn(async move {
        while let Some((due, bytes)) = receiver.recv().await {
            // Timers are coarse: without a delay none is asked.
            if due > Instant::now() {
                tokio::time::sleep_until(due.into()).await;
            }
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    });
    let mut buffer = vec![0; 256 << 10];
    while let Ok(got @ 1..) = from.read(&mut buffer).await {
        while way.stopped.load(Relaxed) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let due = Instant::now() + Duration::from_micros(way.delay_us.load(Relaxed));
        if sender.send((due, buffer[..got].to_vec())).is_err() {
            return;
        }
    }
}

/// A way to `target` that can be made slow.
async fn proxy(target: String, way: Arc<Way>) -> Result<String, Failure> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let Ok(far) = tokio::net::TcpStream::connect(&target).await else { continue };
            if near.set_nodelay(true).and_then(|()| far.set_nodelay(true)).is_err() {
                continue;
            }
            let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
            tokio::spawn(pass(near_in, far_out, way.clone()));
            tokio::spawn(pass(far_in, near_out, way.clone()));
        }
    });
    Ok(address)
}

/// A group of the first `serving` members.
#[derive(Clone)]
struct Group {
    peer: Peer,
    pg: u32,
    epoch: u64,
    serving: usize,
    made: u64,
    index: u32,
}

impl Group {
    fn header(&self) -> ChunkHeader {
        ChunkHeader { disk: 101, pg: self.pg, index: self.index, epoch: self.epoch, session: 9 }
    }
    fn chain(&self) -> Vec<u32> {
        (1..self.serving).map(|i| 101 + i as u32).collect()
    }

    /// Tells all members of the group's epoch; `serving` of `members` serve.
    fn tell(&self, all: &[BenchNode], addresses: &[String]) {
        let state = |i: usize| if i < self.serving { 1 } else { 4 };
        let member = |i: usize| PgMember { disk: 101 + i as u32, state: state(i), node: 16 + i as u32 };
        let pg = PgState {
            pg: self.pg,
            volume: 1,
            scheme: 3,
            epoch: self.epoch,
            creation_epoch: 1,
            members: (0..3).map(member).collect(),
            retired: false,
            ..PgState::default()
        };
        let node =
            |(i, address): (usize, &String)| Node { id: 16 + i as u32, address: address.clone(), ..Node::default() };
        let map = ClusterMap {
            version: u64::from(self.pg) * 10 + self.epoch,
            nodes: addresses.iter().enumerate().map(node).collect(),
            pgs: vec![Pg { state: Some(pg), ..Pg::default() }],
            ..ClusterMap::default()
        };
        all.iter().for_each(|member| member.data.map_changed(&map, 1));
    }

    /// A full chunk, durable.
    async fn fill(&mut self) -> Result<(), Failure> {
        self.index = self.allocate().await?;
        let mut data = AlignedBuf::unpooled(1 << 20);
        data.resize(1 << 20);
        let data = data.freeze();
        for at in (0..u64::from(BLOCKS) * BLOCK_SIZE as u64).step_by(1 << 20) {
            self.append(at, &data, false).await?;
        }
        let request = SyncRequest { chunk: Some(self.header()), chain: self.chain() };
        self.peer.call(Opcode::Sync.code(), &request, (), CallOptions::new(DEADLINE).bulk()).await?;
        Ok(())
    }

    async fn allocate(&self) -> Result<u32, Failure> {
        let request = AllocateRequest { disk: 101, pg: self.pg, epoch: self.epoch, session: 9, count: 1 };
        for _ in 0..500 {
            let call = self.peer.call(Opcode::Allocate.code(), &request, (), CallOptions::new(DEADLINE));
            if let Ok(answer) = call.await {
                return answer.decode::<AllocateResponse>()?.indices.first().copied().ok_or_else(|| "no index".into());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Err("no index was given".into())
    }

    async fn append(&self, at: u64, data: &SharedBuf, sync: bool) -> Result<(), Failure> {
        let (mut sums, mut crcs) = (Vec::new(), Vec::new());
        crc32c_blocks(data, &mut sums);
        encode_crcs(&sums, &mut crcs);
        let request = AppendRequest {
            chunk: Some(self.header()),
            creation_epoch: self.made,
            offset: at,
            crcs,
            chain: self.chain(),
            sync,
            scheme: 3,
            repair: false,
            row_crcs: Vec::new(),
            follows: None,
            local: None,
        };
        let options = CallOptions::new(DEADLINE).bulk().stream(self.index);
        self.peer.call(Opcode::Append.code(), &request, data.clone(), options).await?;
        Ok(())
    }

    async fn overwrite(&self, number: u64, block: u32, data: &SharedBuf) -> Result<(), cairn_rpc::CallError> {
        let mut crcs = Vec::new();
        encode_crcs(&[crc32c(data)], &mut crcs);
        // Each writer is a session of its own.
        let header = ChunkHeader { session: 10 + (number >> 20), ..self.header() };
        let request = OverwriteRequest {
            chunk: Some(header),
            vectors: vec![OverwriteVector { block, blocks: 1 }],
            crcs,
            chain: self.chain(),
            request: number,
            floor: number,
            ..OverwriteRequest::default()
        };
        let options = CallOptions::new(DEADLINE).bulk().stream(self.index);
        self.peer.call(Opcode::Overwrite.code(), &request, data.clone(), options).await.map(drop)
    }
}

fn cpu_us() -> f64 {
    let used = cairn_telemetry::ProcessUse::now();
    (used.cpu_user_us + used.cpu_system_us) as f64
}

fn report(what: &str, depth: usize, mut times: Vec<Duration>, refused: u64, took: Duration, cpu: f64) {
    times.sort_unstable();
    let at = |part: f64| times.get(((times.len() as f64 * part) as usize).min(times.len().saturating_sub(1)));
    let ms = |part: f64| at(part).map_or(0.0, |time| time.as_secs_f64() * 1e3);
    let count = times.len().max(1) as f64;
    println!(
        "{what:<44} depth {depth:>2} {:>8.0}/s  p50 {:>7.2} ms  p99 {:>7.2} ms  max {:>7.1} ms  {:>6.0} CPU us each, {refused} refused",
        count / took.as_secs_f64(),
        ms(0.5),
        ms(0.99),
        ms(1.0),
        cpu / count
    );
}

/// Random blocks, `depth` at a time.
async fn overwrites(what: &str, group: &Group, depth: usize, seconds: f64, data: &SharedBuf, first: &AtomicU64) {
    let (began, cpu, limit) = (Instant::now(), cpu_us(), Duration::from_secs_f64(seconds));
    let tasks: Vec<_> = (0..depth as u32)
        .map(|turn| {
            let (group, data, from) = (group.clone(), data.clone(), first.fetch_add(1 << 20, Relaxed));
            tokio::spawn(async move {
                let (mut times, mut refused, mut at) = (Vec::new(), 0, turn);
                while began.elapsed() < limit {
                    let number = from + times.len() as u64 + refused + 1;
                    at = at.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let started = Instant::now();
                    match group.overwrite(number, (at >> 4) % BLOCKS, &data).await {
                        Ok(()) => times.push(started.elapsed()),
                        Err(_) => {
                            refused += 1;
                            tokio::time::sleep(Duration::from_millis(1)).await;
                        }
                    }
                }
                (times, refused)
            })
        })
        .collect();
    let (mut times, mut refused) = (Vec::new(), 0);
    for task in tasks {
        if let Ok((more, of_it)) = task.await {
            times.extend(more);
            refused += of_it;
        }
    }
    report(what, depth, times, refused, began.elapsed(), cpu_us() - cpu);
}

/// Blocks one behind the other into chunks of their own, each synced.
async fn appends(what: &str, group: &Group, depth: usize, seconds: f64, data: &SharedBuf) -> Result<(), Failure> {
    let (began, cpu, limit) = (Instant::now(), cpu_us(), Duration::from_secs_f64(seconds));
    let mut tasks = Vec::new();
    for _ in 0..depth {
        let mut group = group.clone();
        group.index = group.allocate().await?;
        let data = data.clone();
        tasks.push(tokio::spawn(async move {
            let mut times = Vec::new();
            while began.elapsed() < limit && times.len() < BLOCKS as usize {
                let started = Instant::now();
                group.append((times.len() * BLOCK_SIZE) as u64, &data, true).await?;
                times.push(started.elapsed());
            }
            Ok::<_, Failure>(times)
        }));
    }
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await??);
    }
    report(what, depth, times, 0, began.elapsed(), cpu_us() - cpu);
    Ok(())
}

/// The last member falls silent under load; the epoch rises when the first one says so. How long nothing was answered.
async fn silence(
    group: &mut Group,
    all: &[BenchNode],
    addresses: &[String],
    way: &Way,
    data: &SharedBuf,
    first: &AtomicU64,
) -> Result<(), Failure> {
    let mut number = first.fetch_add(1 << 20, Relaxed);
    for _ in 0..50 {
        number += 1;
        group.overwrite(number, 7, data).await?;
    }
    way.stopped.store(true, Relaxed);
    let began = Instant::now();
    number += 1;
    let error = group.overwrite(number, 7, data).await.err().ok_or("it answered")?;
    let noticed = began.elapsed();
    (group.epoch, group.serving) = (group.epoch + 1, group.serving - 1);
    group.tell(all, addresses);
    while group.overwrite(number, 7, data).await.is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    println!(
        "one member falls silent: noticed after {:.0} ms ({error}), the next overwrite was done after {:.0} ms",
        noticed.as_secs_f64() * 1e3,
        began.elapsed().as_secs_f64() * 1e3
    );
    way.stopped.store(false, Relaxed);
    Ok(())
}

async fn run(base: &Path, seconds: f64) -> Result<(), Failure> {
    let dirs: Vec<PathBuf> = (0..3).map(|i| base.join(format!("d{i}"))).collect();
    let all =
        dirs.iter().enumerate().map(|(i, dir)| start_node(dir, i as u32, CLUSTER)).collect::<Result<Vec<_>, _>>()?;
    let way = Arc::new(Way::default());
    let mut addresses: Vec<String> = all.iter().map(|member| member.address.clone()).collect();
    addresses[2] = proxy(addresses[2].clone(), way.clone()).await?;
    let identity = Identity::new(CLUSTER, PeerKind::Client, NodeId(0));
    let client = Client::with_threads(1, ClientConfig::default(), identity)?;
    let peer = client.peer(&all[0].address);
    let mut block = AlignedBuf::unpooled(BLOCK_SIZE);
    block.resize(BLOCK_SIZE);
    block.fill(7);
    let (data, first) = (block.freeze(), AtomicU64::new(1));
    let mut group = Group { peer: peer.clone(), pg: 1, epoch: 1, serving: 3, made: 1, index: 0 };
    group.tell(&all, &addresses);
    group.fill().await?;
    for depth in [1, 16] {
        overwrites("r3 in place", &group, depth, seconds, &data, &first).await;
        appends("r3 new space, data path only", &group, depth, seconds, &data).await?;
    }
    let delay = |ms: u64| way.delay_us.store(ms * 1000, Relaxed);
    for ms in [5, 50] {
        delay(ms);
        for depth in [1, 16] {
            let what = format!("r3 in place, one member {ms} ms away");
            overwrites(&what, &group, depth, seconds, &data, &first).await;
        }
    }
    delay(0);
    // What a majority of three waits for: two members.
    let mut majority = Group { pg: 2, serving: 2, ..group.clone() };
    majority.tell(&all, &addresses);
    majority.fill().await?;
    for depth in [1, 16] {
        overwrites("two members (what a majority waits for)", &majority, depth, seconds, &data, &first).await;
    }
    silence(&mut group, &all, &addresses, &way, &data, &first).await?;
    for member in all {
        member.server.shutdown(Duration::from_millis(100));
        member.data.stop();
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let base = args.next().map_or_else(|| std::env::temp_dir().join("cairn-overwrite-bench"), PathBuf::from);
    let seconds = args.next().map_or(Ok(3.0), |text| text.parse::<f64>())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let outcome = runtime.block_on(run(&base, seconds));
    std::fs::remove_dir_all(&base)?;
    outcome
}
