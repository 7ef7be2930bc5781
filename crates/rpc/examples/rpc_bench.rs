//! Measures the RPC layer over loopback beside a raw TCP loop in the same run: small calls pipelined and alone, answers
//! from another thread, and payloads of 1 MiB both ways, with the CPU that servers and clients use.
//!
//! `cargo run --release -p cairn-rpc --example rpc_bench -- [seconds a case] [server threads] [part of a case's name]`
//! With `CAIRN_BENCH_TLS=1` everything but the raw loops goes through TLS.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

use cairn_env::buf::{BufPool, SharedBuf};
use cairn_rpc::{
    CallOptions, Client, ClientConfig, Connection, Identity, Peer, Reply, ReplyBatch, Request, Server, ServerConfig,
    Service,
};
use cairn_security::{Authority, DAY, KeyFile, Mode, Tls, Wanted, write_secret};
use cairn_types::{ClusterId, NodeId};
use cairn_wire::audience::{Caller, Roles};
use cairn_wire::frame::CallHeader;
use cairn_wire::hello::PeerKind;
use cairn_wire::meta::{Attributes, AttributesResponse, LookupRequest, MetaHeader};
use cairn_wire::rights::Rights;

const LOOKUP: u16 = 1;
const HOP: u16 = 2;
const SINK: u16 = 3;
const SOURCE: u16 = 4;
const PING: u16 = 5;
const MIB: usize = 1 << 20;

struct BenchService {
    hop: mpsc::Sender<Reply>,
    data: SharedBuf,
}

fn answer() -> AttributesResponse {
    let attributes = Attributes {
        inode: 123_456,
        mode: 0o100_644,
        nlink: 1,
        size: 200_000,
        mtime_ns: 1 << 60,
        ..Default::default()
    };
    AttributesResponse { attributes: Some(attributes), ..AttributesResponse::default() }
}

impl Service for BenchService {
    fn call(&self, request: Request<'_>, reply: Reply) {
        match request.opcode {
            LOOKUP => {
                let lookup: LookupRequest = request.decode().expect("a lookup");
                assert!(lookup.name.len() == 16);
                reply.ok(&answer(), ());
            }
            PING => reply.ok_with(|out| out.extend_from_slice(request.message), ()),
            HOP => self.hop.send(reply).expect("the other thread lives"),
            SINK => reply.ok(&answer(), ()),
            SOURCE => reply.ok(&answer(), self.data.clone()),
            _ => {}
        }
    }
}

/// Answers everything that waits as one batch, as the owner of a partition does.
fn hop_thread(replies: &mpsc::Receiver<Reply>) {
    while let Ok(first) = replies.recv() {
        let mut batch = ReplyBatch::new();
        batch.ok(first, &answer(), ());
        while let Ok(reply) = replies.try_recv() {
            batch.ok(reply, &answer(), ());
        }
    }
}

fn lookup() -> LookupRequest {
    let header = MetaHeader { volume: 1, partition: 1, session: 77, slot: 3, sequence: 0, who: None };
    LookupRequest { header: Some(header), parent: 4711, name: b"a-16-byte-name-x".to_vec() }
}

/// CPU nanoseconds of the threads whose name starts with `prefix`, from the scheduler's own count.
fn cpu_ns(prefix: &str) -> u64 {
    let mut sum = 0;
    for task in std::fs::read_dir("/proc/self/task").expect("proc is mounted").flatten() {
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        if name.starts_with(prefix) {
            let stat = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            sum += stat.split(' ').next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    sum
}

struct Measured {
    count: u64,
    wall: Duration,
    server_ns: u64,
    client_ns: u64,
}

/// Runs one client task per connection on `threads` threads named "load", until the time is over.
fn load<F>(threads: usize, per_thread: usize, time: Duration, server_name: &str, work: F) -> Measured
where
    F: AsyncFn(Arc<AtomicU64>, Instant) + Send + Sync + Clone + 'static,
{
    let count = Arc::new(AtomicU64::new(0));
    let warm = Duration::from_millis(300);
    let end = Instant::now() + time + 2 * warm;
    let handles: Vec<_> = (0..threads)
        .map(|number| {
            let (count, work) = (count.clone(), work.clone());
            let run = move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
                let local = tokio::task::LocalSet::new();
                local.block_on(&runtime, async {
                    let tasks: Vec<_> = (0..per_thread)
                        .map(|_| {
                            let (count, work) = (count.clone(), work.clone());
                            tokio::task::spawn_local(async move { work(count, end).await })
                        })
                        .collect();
                    for task in tasks {
                        task.await.expect("no panic");
                    }
                });
            };
            std::thread::Builder::new().name(format!("load-{number}")).spawn(run).expect("a thread")
        })
        .collect();
    std::thread::sleep(warm);
    let (start, before) = (Instant::now(), count.load(Relaxed));
    let (server, client) = (cpu_ns(server_name), cpu_ns("load") + cpu_ns("rpc-client"));
    std::thread::sleep(time);
    let measured = Measured {
        count: count.load(Relaxed) - before,
        wall: start.elapsed(),
        server_ns: cpu_ns(server_name) - server,
        client_ns: cpu_ns("load") + cpu_ns("rpc-client") - client,
    };
    for handle in handles {
        handle.join().expect("no panic");
    }
    measured
}

/// Whether a case was asked for.
fn wanted(name: &str) -> bool {
    std::env::args().nth(3).is_none_or(|part| name.contains(&part))
}

fn print_calls(name: &str, m: &Measured) {
    let rate = m.count as f64 / m.wall.as_secs_f64();
    println!(
        "{name:<54} {:>9.0} calls/s   server {:>6.3} us   client {:>6.3} us CPU a call",
        rate,
        m.server_ns as f64 / 1e3 / m.count as f64,
        m.client_ns as f64 / 1e3 / m.count as f64,
    );
}

fn print_bytes(name: &str, m: &Measured) {
    let gb = (m.count as usize * MIB) as f64 / 1e9;
    println!(
        "{name:<54} {:>9.2} GB/s      server {:>6.3} s    client {:>6.3} s CPU a GB",
        gb / m.wall.as_secs_f64(),
        m.server_ns as f64 / 1e9 / gb,
        m.client_ns as f64 / 1e9 / gb,
    );
}

/// Keys of a server and of a client, if the bytes are to go through TLS.
fn keys() -> Option<&'static (Arc<Tls>, Arc<Tls>)> {
    static KEYS: OnceLock<Option<(Arc<Tls>, Arc<Tls>)>> = OnceLock::new();
    let make = || {
        std::env::var_os("CAIRN_BENCH_TLS")?;
        let dir = tempfile::tempdir().expect("a directory");
        let authority = Authority::create(&dir.path().join("ca")).expect("an authority");
        let key = |name: &str, caller| {
            let wanted = Wanted {
                name: name.to_owned(),
                caller,
                node: NodeId(0),
                life: DAY,
                rights: Rights::everything(),
                again: false,
            };
            let path = dir.path().join(name);
            write_secret(&path, &authority.issue(&wanted).expect("a key"), false).expect("written");
            KeyFile::read(&path).expect("a key")
        };
        let server = Tls::of_server(&key("server", Caller::Node(Roles::ALL)), Mode::Required, None).expect("usable");
        let client = Tls::of_client(&key("client", Caller::Node(Roles::ALL))).expect("usable");
        Some((Arc::new(server), Arc::new(client)))
    };
    KEYS.get_or_init(make).as_ref()
}

fn who() -> Identity {
    Identity::client_with_key(keys().map(|(_, client)| client.clone()))
}

fn main() {
    let mut args = std::env::args().skip(1);
    let seconds: f64 = args.next().and_then(|a| a.parse().ok()).unwrap_or(2.0);
    let threads: usize = args.next().and_then(|a| a.parse().ok()).unwrap_or(2);
    let time = Duration::from_secs_f64(seconds);

    let (hop, replies) = mpsc::channel();
    std::thread::Builder::new().name("srv-hop".into()).spawn(move || hop_thread(&replies)).expect("a thread");
    let data = SharedBuf::from(vec![0x5a; MIB]);
    let service = Arc::new(BenchService { hop, data: data.clone() });
    let config = ServerConfig { threads, thread_name: "srv".into(), ..ServerConfig::default() };
    let identity = match keys() {
        None => Identity::new(ClusterId([1; 16]), PeerKind::Server, NodeId(1)),
        Some((server, _)) => Identity::with_key(ClusterId([1; 16]), PeerKind::Server, NodeId(16), Some(server.clone())),
    };
    let listen = "127.0.0.1:0".parse().expect("an address");
    let server = Server::bind(listen, config, identity, service).expect("a free port");
    let addr: &'static str = server.local_addr().to_string().leak();

    for (opcode, what) in [(PING, "bytes echoed"), (LOOKUP, "decoded, encoded"), (HOP, "another thread")] {
        for (conns, depth) in [(16, 32), (64, 1), (1, 1)] {
            let load_threads = if conns == 1 { 1 } else { 2 };
            let name = format!("bare connection {conns} x {depth}, {what}");
            if !wanted(&name) {
                continue;
            }
            let m = load(load_threads, conns / load_threads, time, "srv", async move |count, end| {
                pipelined(addr, opcode, depth, &count, end).await;
            });
            print_calls(&name, &m);
        }
    }
    client_cases(addr, time);
    payload_cases(addr, time, &data);
    raw_tcp(time);
    raw_small(time);
}

async fn connect(addr: &str) -> Connection {
    Connection::connect(addr, &who(), BufPool::new(64 * MIB)).await.expect("the server listens")
}

/// Keeps `depth` calls in flight on one bare connection.
async fn pipelined(addr: &str, opcode: u16, depth: usize, count: &AtomicU64, end: Instant) {
    let mut connection = connect(addr).await;
    let (request, call) = (lookup(), CallHeader { deadline_ms: 1000, trace_id: 7 });
    for _ in 0..depth {
        connection.send(opcode, call, &request, ()).expect("it fits");
    }
    while Instant::now() < end {
        connection.fill().await.expect("the server lives");
        let mut done = 0;
        while connection.try_recv().expect("a good answer").is_some() {
            done += 1;
        }
        for _ in 0..done {
            connection.send(opcode, call, &request, ()).expect("it fits");
        }
        count.fetch_add(done, Relaxed);
    }
}

/// The pooled client: with threads of its own, and on the runtimes of its callers.
fn client_cases(addr: &'static str, time: Duration) {
    for (tasks, small_connections) in [(512, 16), (64, 1), (1, 1)] {
        let config = ClientConfig { small_connections, ..ClientConfig::default() };
        let client = Client::with_threads(2, config, who()).expect("threads");
        let peer = client.peer(addr);
        let load_threads = if tasks == 1 { 1 } else { 2 };
        let next = Arc::new(AtomicU64::new(0));
        let name = format!("Client, own threads, {tasks} tasks, {small_connections} connections");
        if !wanted(&name) {
            continue;
        }
        let m = load(load_threads, tasks / load_threads, time, "srv", async move |count, end| {
            let stream = next.fetch_add(1, Relaxed) as u32;
            calls(&peer, stream, &count, end).await;
        });
        print_calls(&name, &m);
    }
    for (tasks, small_connections) in [(512, 8), (64, 1), (1, 1)] {
        let load_threads = if tasks == 1 { 1 } else { 2 };
        let name = format!("Client, callers' threads, {tasks} tasks, {small_connections} connections each");
        if !wanted(&name) {
            continue;
        }
        let m = load(load_threads, 1, time, "srv", async move |count, end| {
            let config = ClientConfig { small_connections, ..ClientConfig::default() };
            let peer = Client::new(config, who()).peer(addr);
            let tasks: Vec<_> = (0..tasks / load_threads)
                .map(|stream| {
                    let (peer, count) = (peer.clone(), count.clone());
                    tokio::task::spawn_local(async move { calls(&peer, stream as u32, &count, end).await })
                })
                .collect();
            for task in tasks {
                task.await.expect("no panic");
            }
        });
        print_calls(&name, &m);
    }
}

async fn calls(peer: &Peer, stream: u32, count: &AtomicU64, end: Instant) {
    let request = lookup();
    while Instant::now() < end {
        let options = CallOptions::new(Duration::from_secs(5)).stream(stream);
        let response = peer.call(LOOKUP, &request, (), options).await.expect("an answer");
        let _: AttributesResponse = response.decode().expect("attributes");
        count.fetch_add(1, Relaxed);
    }
}

fn payload_cases(addr: &'static str, time: Duration, data: &SharedBuf) {
    for (opcode, what) in [(SINK, "write"), (SOURCE, "read")] {
        for (conns, depth) in [(1, 1), (1, 4), (2, 4)] {
            let data = data.clone();
            let name = format!("payload 1 MiB {what}, {conns} connections x {depth}");
            if !wanted(&name) {
                continue;
            }
            let m = load(conns, 1, time, "srv", async move |count, end| {
                let mut connection = connect(addr).await;
                let (request, call) = (lookup(), CallHeader { deadline_ms: 1000, trace_id: 7 });
                let send = |connection: &mut Connection| {
                    let payload = (opcode == SINK).then(|| data.clone());
                    connection.send(opcode, call, &request, payload).expect("it fits");
                };
                (0..depth).for_each(|_| send(&mut connection));
                while Instant::now() < end {
                    connection.fill().await.expect("the server lives");
                    while let Some(incoming) = connection.try_recv().expect("a good answer") {
                        assert!(opcode == SINK || incoming.payload.is_some_and(|p| p.len() == MIB));
                        count.fetch_add(1, Relaxed);
                        send(&mut connection);
                    }
                }
            });
            print_bytes(&name, &m);
        }
    }
}

/// The same bytes over blocking sockets: what the machine can do.
fn raw_tcp(time: Duration) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let addr = listener.local_addr().expect("an address");
    let receiver = std::thread::Builder::new().name("raw-recv".into());
    receiver
        .spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut buf = vec![0; MIB];
            while stream.read_exact(&mut buf).is_ok() && stream.write_all(&[0; 64]).is_ok() {}
        })
        .expect("a thread");
    let name = "raw TCP, blocking threads, 1 MiB x 4".to_owned();
    if !wanted(&name) {
        return;
    }
    let m = load(1, 1, time, "raw-recv", async move |count, end| {
        let mut stream = std::net::TcpStream::connect(addr).expect("it listens");
        stream.set_nodelay(true).expect("an option");
        let (buf, mut ack) = (vec![0x5a; MIB], [0; 64]);
        for _ in 0..3 {
            stream.write_all(&buf).expect("the peer lives");
        }
        while Instant::now() < end {
            stream.write_all(&buf).expect("the peer lives");
            stream.read_exact(&mut ack).expect("the peer lives");
            count.fetch_add(1, Relaxed);
        }
    });
    print_bytes(&name, &m);
}

/// Ping-pong of 64 bytes over blocking sockets, a thread a connection on both sides.
fn raw_small(time: Duration) {
    for conns in [64, 1] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let addr = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            for stream in listener.incoming().take(conns).flatten() {
                let mut stream = stream;
                let echo = move || {
                    let mut buf = [0; 128];
                    stream.set_nodelay(true).expect("an option");
                    while stream.read_exact(&mut buf).is_ok() {
                        stream.write_all(&buf).expect("the peer lives");
                    }
                };
                std::thread::Builder::new().name("raw-echo".into()).spawn(echo).expect("a thread");
            }
        });
        let name = format!("raw TCP, blocking threads, {conns} x 1");
        if !wanted(&name) {
            continue;
        }
        let m = load(conns, 1, time, "raw-echo", async move |count, end| {
            let mut stream = std::net::TcpStream::connect(addr).expect("it listens");
            stream.set_nodelay(true).expect("an option");
            let mut buf = [7; 128];
            while Instant::now() < end {
                stream.write_all(&buf).expect("the peer lives");
                stream.read_exact(&mut buf).expect("the peer lives");
                count.fetch_add(1, Relaxed);
            }
        });
        print_calls(&name, &m);
    }
}
