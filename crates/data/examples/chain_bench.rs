//! How fast a chain of data servers is: append streams with sync and reads over loopback TCP in one process, beside the
//! bandwidth of the disk in the same run. CPU is that of the whole process: writers, servers and readers together.
//!
//!     cargo run --release -p cairn-data --example chain_bench -- [DIR] [MiB a stream]

mod one_node;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cairn_env::{AlignedBuf, Disk, OpenOptions, RealDisk, SharedBuf};
use cairn_format::crc_table::{decode_crcs, encode_crcs};
use cairn_node_agent::Contributor;
use cairn_rpc::{CallOptions, Client, ClientConfig, Identity, Payload, Peer};
use cairn_types::{BLOCK_SIZE, ClusterId, NodeId, crc32c_blocks};
use cairn_wire::Opcode;
use cairn_wire::data::{
    AllocateRequest, AllocateResponse, AppendRequest, ChunkHeader, PgMember, PgState, ReadRequest, ReadResponse,
    SealRequest, SyncRequest, SyncResponse,
};
use cairn_wire::hello::PeerKind;
use cairn_wire::manager::{ClusterMap, Node, Pg};
use one_node::{BenchNode, Failure, start_node};

const CLUSTER: ClusterId = ClusterId([1; 16]);
const FRAME: usize = 1 << 20;
const CHUNK: u64 = 64 << 20;
const DEADLINE: Duration = Duration::from_secs(20);
const IN_FLIGHT: usize = 8;
const SYNC_EVERY: u64 = 16 << 20;

/// A placement group per stream; the first member leads.
fn map(nodes: &[BenchNode], pg: u32, copies: usize) -> ClusterMap {
    let member = |i: usize| PgMember { disk: 101 + i as u32, state: 1, node: 16 + i as u32 };
    let state = PgState {
        pg,
        volume: 1,
        scheme: copies as u32,
        epoch: 1,
        creation_epoch: 1,
        members: (0..copies).map(member).collect(),
        retired: false,
        ..PgState::default()
    };
    let node =
        |(i, node): (usize, &BenchNode)| Node { id: 16 + i as u32, address: node.address.clone(), ..Node::default() };
    ClusterMap {
        version: u64::from(pg),
        nodes: nodes.iter().enumerate().map(node).collect(),
        pgs: vec![Pg { state: Some(state), ..Pg::default() }],
        ..ClusterMap::default()
    }
}

struct Writer {
    peer: Peer,
    pg: u32,
    copies: usize,
    stream: u32,
}

impl Writer {
    fn header(&self, disk: usize, index: u32) -> ChunkHeader {
        ChunkHeader { disk: 101 + disk as u32, pg: self.pg, index, epoch: 1, session: 9 }
    }

    fn chain(&self) -> Vec<u32> {
        (1..self.copies).map(|i| 101 + i as u32).collect()
    }

    async fn allocate(&self) -> Result<u32, Failure> {
        let request = AllocateRequest { disk: 101, pg: self.pg, epoch: 1, session: 9, count: 1 };
        for _ in 0..200 {
            let call = self.peer.call(Opcode::Allocate.code(), &request, (), CallOptions::new(DEADLINE));
            match call.await {
                Ok(answer) => {
                    let answer: AllocateResponse = answer.decode()?;
                    return answer.indices.first().copied().ok_or_else(|| "no index".into());
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
        Err("no index was given".into())
    }

    /// Writes so many bytes, synced; returns the chunks.
    async fn write(&self, bytes: u64, data: &SharedBuf) -> Result<Vec<u32>, Failure> {
        let mut chunks = Vec::new();
        let (mut left, mut syncs) = (bytes, VecDeque::new());
        let mut flying = VecDeque::new();
        while left > 0 {
            let index = self.allocate().await?;
            chunks.push(index);
            let mut at = 0;
            while at < CHUNK && left > 0 {
                // As a client does: checksums are computed for each frame, once.
                let (mut crcs, mut encoded) = (Vec::with_capacity(256), Vec::new());
                crc32c_blocks(data, &mut crcs);
                encode_crcs(&crcs, &mut encoded);
                let request = AppendRequest {
                    row_crcs: Vec::new(),
                    follows: None,
                    chunk: Some(self.header(0, index)),
                    creation_epoch: 1,
                    offset: at,
                    crcs: encoded,
                    chain: self.chain(),
                    sync: false,
                    scheme: self.copies as u32,
                    repair: false,
                    local: None,
                };
                let options = CallOptions::new(DEADLINE).bulk().stream(self.stream);
                flying.push_back(self.peer.call(Opcode::Append.code(), &request, data.clone(), options));
                if flying.len() >= IN_FLIGHT
                    && let Some(call) = flying.pop_front()
                {
                    call.await?;
                }
                at += FRAME as u64;
                left -= FRAME as u64;
                if at % SYNC_EVERY == 0 || left == 0 {
                    let request = SyncRequest { chunk: Some(self.header(0, index)), chain: self.chain() };
                    let options = CallOptions::new(DEADLINE).bulk().stream(self.stream);
                    syncs.push_back(self.peer.call(Opcode::Sync.code(), &request, (), options));
                    if syncs.len() > 1
                        && let Some(call) = syncs.pop_front()
                    {
                        let _durable: SyncResponse = call.await?.decode()?;
                    }
                }
            }
        }
        for call in flying {
            call.await?;
        }
        for call in syncs {
            let _durable: SyncResponse = call.await?.decode()?;
        }
        for index in &chunks {
            let request = SealRequest { chunk: Some(self.header(0, *index)), chain: self.chain() };
            self.peer.call(Opcode::Seal.code(), &request, (), CallOptions::new(DEADLINE)).await?;
        }
        Ok(chunks)
    }

    /// Reads the chunks, checking every block.
    async fn read(&self, bytes: u64, chunks: &[u32]) -> Result<(), Failure> {
        let mut left = bytes;
        let mut flying = VecDeque::new();
        let check = |answer: cairn_rpc::Response| -> Result<(), Failure> {
            let head: ReadResponse = answer.decode()?;
            let crcs = decode_crcs(&head.crcs).ok_or("bad checksums")?;
            let data = answer.payload.ok_or("no payload")?;
            let mut found = Vec::with_capacity(crcs.len());
            crc32c_blocks(&data, &mut found);
            if found == crcs { Ok(()) } else { Err("a block is bad".into()) }
        };
        for index in chunks {
            let mut at = 0;
            while at < CHUNK && left > 0 {
                let request = ReadRequest {
                    chunk: Some(self.header(0, *index)),
                    offset: at,
                    length: FRAME as u32,
                    ..ReadRequest::default()
                };
                let options = CallOptions::new(DEADLINE).bulk().stream(self.stream);
                flying.push_back(self.peer.call(Opcode::Read.code(), &request, Payload::None, options));
                if flying.len() >= 4
                    && let Some(call) = flying.pop_front()
                {
                    check(call.await?)?;
                }
                at += FRAME as u64;
                left -= FRAME as u64;
            }
        }
        for call in flying {
            check(call.await?)?;
        }
        Ok(())
    }
}

fn cpu_seconds() -> f64 {
    let used = cairn_telemetry::ProcessUse::now();
    (used.cpu_user_us + used.cpu_system_us) as f64 / 1e6
}

fn report(what: &str, bytes: u64, started: Instant, cpu: f64) {
    let seconds = started.elapsed().as_secs_f64();
    let gigabytes = bytes as f64 / 1e9;
    let cpu = (cpu_seconds() - cpu) / gigabytes;
    println!("{what:<32} {:>8.0} MB/s {cpu:>8.2} CPU s/GB", gigabytes * 1000.0 / seconds);
}

fn raw_disk(dir: &Path, bytes: u64) -> Result<f64, Failure> {
    let disk = RealDisk::create(dir)?;
    let file = disk.open("raw", OpenOptions::CREATE.direct())?;
    let mut buffer = AlignedBuf::unpooled(FRAME);
    buffer.resize(FRAME);
    buffer.fill(7);
    let (started, cpu) = (Instant::now(), cpu_seconds());
    for at in (0..bytes).step_by(FRAME) {
        if at % (8 << 20) == 0 {
            file.allocate(at, 8 << 20)?;
        }
        file.write_at(&buffer, at)?;
        if at % SYNC_EVERY == 0 {
            file.sync_data()?;
        }
    }
    file.sync_data()?;
    report("raw disk write", bytes, started, cpu);
    disk.remove("raw")?;
    Ok(bytes as f64 / 1e6 / started.elapsed().as_secs_f64())
}

/// Each stream on its own thread: reads the chunks given, or writes new ones.
fn on_threads(
    writers: &[Writer],
    bytes: u64,
    data: &SharedBuf,
    read: Option<&[Vec<u32>]>,
) -> Result<Vec<Vec<u32>>, Failure> {
    let run = |number: usize, writer: &Writer| -> Result<Vec<u32>, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        match read {
            Some(chunks) => {
                let chunks = chunks[number].clone();
                runtime.block_on(writer.read(bytes, &chunks)).map(|()| chunks)
            }
            None => runtime.block_on(writer.write(bytes, data)),
        }
    };
    std::thread::scope(|scope| {
        let start = |(number, writer)| scope.spawn(move || run(number, writer));
        let threads: Vec<_> = writers.iter().enumerate().map(start).collect();
        threads.into_iter().map(|thread| thread.join().map_err(|_| Failure::from("a stream panicked"))?).collect()
    })
}

fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let base = args.next().map_or_else(|| std::env::temp_dir().join("cairn-chain-bench"), PathBuf::from);
    let bytes = args.next().map_or(Ok(1024), |text| text.parse::<u64>())? << 20;
    let dirs: Vec<PathBuf> = (0..3).map(|i| base.join(format!("d{i}"))).collect();
    raw_disk(&base, bytes * 2)?;
    let nodes = dirs.iter().enumerate().map(|(i, dir)| start_node(dir, i as u32, CLUSTER));
    let nodes = nodes.collect::<Result<Vec<_>, _>>()?;
    let identity = Identity::new(CLUSTER, PeerKind::Client, NodeId(0));
    let config = ClientConfig { bulk_connections: 4, ..ClientConfig::default() };
    let client = Client::with_threads(2, config, identity)?;
    let mut data = AlignedBuf::unpooled(FRAME);
    (0..FRAME).for_each(|i| data.extend_from_slice(&[(i * 7 / 3) as u8]));
    assert!(data.len().is_multiple_of(BLOCK_SIZE));
    let data = data.freeze();
    let mut pg = 0;
    for (copies, streams) in [(1, 1), (3, 1), (3, 4)] {
        let peer = client.peer(&nodes[0].address);
        let writers: Vec<Writer> = (0..streams)
            .map(|stream| {
                pg += 1;
                nodes.iter().for_each(|node| node.data.map_changed(&map(&nodes, pg, copies), 1));
                Writer { peer: peer.clone(), pg, copies, stream }
            })
            .collect();
        let total = bytes * u64::from(streams);
        let (started, cpu) = (Instant::now(), cpu_seconds());
        let chunks = on_threads(&writers, bytes, &data, None)?;
        report(&format!("r{copies} write, {streams} stream(s), synced"), total, started, cpu);
        for pass in ["first", "warm"] {
            let (started, cpu) = (Instant::now(), cpu_seconds());
            on_threads(&writers, bytes, &data, Some(&chunks))?;
            report(&format!("r{copies} read, {streams} stream(s), {pass}"), total, started, cpu);
        }
    }
    for node in nodes {
        node.server.shutdown(Duration::from_millis(100));
        node.data.stop();
    }
    for dir in dirs {
        std::fs::remove_dir_all(dir)?;
    }
    Ok(())
}
