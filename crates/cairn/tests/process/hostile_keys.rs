//! What a peer with a key can do to others of the cluster: ask for much and take nothing of it, and come by the
//! hundred.
//!
//! Not here: who is answered what (`tenants`), peers without a key (`hostile`, `secure`).
use crate::hostile::{PATIENCE, SMALL, addresses, frame, memory, store_and_read};
use crate::secure::{file, give_keys, key};
use crate::support::{Cluster, lines, text};
use crate::trees::noise;
use crate::wait::LIMIT;
use cairn_security::{KeyFile, Tls};
use cairn_types::{ClusterId, NodeId};
use cairn_wire::Opcode;
use cairn_wire::data::{ChunkHeader, ReadRequest};
use cairn_wire::frame::{CallHeader, HEADER_LEN, OPCODE_HELLO};
use cairn_wire::hello::{Hello, PeerKind};
use cairn_wire::protection::Protection;
use rustls::{ClientConnection, StreamOwned};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

type Stream = StreamOwned<ClientConnection, TcpStream>;

/// Bytes of a read, the most that one asks for.
const READ: u32 = 4 << 20;

/// A connection that showed this key and said hello.
fn greeted(tls: &Tls, address: &str) -> Stream {
    let tcp = TcpStream::connect(address).expect("it listens");
    tcp.set_read_timeout(Some(LIMIT)).expect("a limit");
    let tls = ClientConnection::new(tls.client(Protection::Private), Tls::server_name()).expect("a client");
    let mut stream = StreamOwned::new(tls, tcp);
    let hello = Hello::new(ClusterId::NONE, PeerKind::Client, NodeId(0));
    stream.write_all(&frame(OPCODE_HELLO, 0, |out| hello.encode(out))).expect("sent");
    let mut answer = [0; HEADER_LEN];
    stream.read_exact(&mut answer).expect("a hello");
    stream
}

fn ask(stream: &mut Stream, opcode: Opcode, message: &impl prost::Message) -> std::io::Result<()> {
    let header = CallHeader { deadline_ms: 60_000, trace_id: 0 };
    stream.write_all(&frame(opcode.code(), 0, |out| {
        header.encode(out);
        out.extend_from_slice(&message.encode_to_vec());
    }))
}

/// One tenant would stop the reads of all others, or take the memory of a server: he asks for gigabytes over many
/// connections and reads no answer, and then takes every place for connections.
#[test]
fn a_key_that_takes_no_answers_holds_up_no_other() {
    const READERS: usize = 48;
    const READS: usize = 8;
    const MANY: usize = 150;
    /// Far less than the answers have that he asked for.
    const SLACK: u64 = 400 << 20;
    let mut cluster = Cluster::prepare(SMALL);
    give_keys(&mut cluster);
    key(&cluster, &["client", "greedy", "--ca", "authority", "--volume", "default:ro"]);
    cluster.key = Some(file(&cluster, "ops"));
    cluster.start_all();
    cluster.wait_volume();
    let disk = lines(&cluster, &["admin", "disk", "ls"])[0]["id"].as_u64().expect("an id") as u32;
    cluster.key = Some(file(&cluster, "alice"));
    let bytes = noise(2 * READ as usize, 43);
    store_and_read(&cluster, "/shared", &bytes);
    let stat = lines(&cluster, &["fs", "stat", "--extents", "/shared"]).remove(0);
    let extent = &stat["extents"][0];
    let of = |key: &str| extent[key].as_u64().expect("a number");
    let chunk = ChunkHeader { disk, pg: of("pg") as u32, index: of("index") as u32, ..Default::default() };
    let read = ReadRequest { chunk: Some(chunk), offset: of("chunk_offset"), length: READ, ..Default::default() };
    let tls = Tls::of_client(&KeyFile::read(&file(&cluster, "greedy")).expect("a key")).expect("usable");
    let data = addresses(&cluster, "data1").0;
    let before = memory(&cluster, "data1");
    // He is answered: one that is read.
    let mut reader = greeted(&tls, &data);
    ask(&mut reader, Opcode::Read, &read).expect("sent");
    let mut part = vec![0; READ as usize];
    reader.read_exact(&mut part).expect("an answer of this length");
    let mut held = vec![reader];
    let begun = Instant::now();
    let mut steps = Vec::new();
    let mut step = |what: &'static str| steps.push((what, begun.elapsed().as_millis()));
    for _ in 0..READERS {
        let mut stream = greeted(&tls, &data);
        for _ in 0..READS {
            // It may be closed for it.
            let _closed = ask(&mut stream, Opcode::Read, &read);
        }
        held.push(stream);
    }
    step("asked");
    store_and_read(&cluster, "/beside", &bytes);
    step("stored and read beside");
    let most = memory(&cluster, "data1");
    let [manager, meta] = ["manager1", "meta1"].map(|name| addresses(&cluster, name).0);
    for address in [&manager, &meta, &data] {
        held.extend((0..MANY / 3).map(|_| greeted(&tls, address)));
    }
    step("connected");
    store_and_read(&cluster, "/beside-many", &bytes);
    let again = cluster.cairn(&["--timeout", PATIENCE, "fs", "cat", "/shared"]);
    assert!(again.stdout == bytes, "{}", text(&again.stderr));
    step("stored and read beside");
    println!("hostile_keys: ms: {steps:?}; {} MiB more", most.saturating_sub(before) >> 20);
    assert!(most.saturating_sub(before) < SLACK, "{} MiB more", (most - before) >> 20);
    drop(held);
    store_and_read(&cluster, "/after", &bytes);
    cluster.check_logs();
}
