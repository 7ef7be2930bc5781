//! Tests of both sides over loopback: a service that can be told how to answer, and what all tests share.

mod authenticated;
mod basic;
mod bounds;
mod crowds;
mod hostile;
mod long_answers;
mod near;
mod outage;
mod piped;
mod records;
mod secure;

use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_env::buf::{AlignedBuf, SharedBuf};
use cairn_types::{ClusterId, ErrorCode, NodeId};
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::hello::PeerKind;
use parking_lot::Mutex;

use crate::{
    CallOptions, Client, ClientConfig, CloseReason, Identity, Payload, Reply, Request, Response, Server, ServerConfig,
    Service,
};

/// Answers with what came.
const ECHO: u16 = 0x7001;
/// Keeps the reply until the test releases it.
const HOLD: u16 = 0x7002;
/// Answers from another thread after `number` milliseconds.
const LATER: u16 = 0x7003;
/// Drops the reply.
const DROP: u16 = 0x7004;
/// Answers with a payload of `number` bytes.
const PAYLOAD: u16 = 0x7005;
/// Answers with an error.
const FAIL: u16 = 0x7006;
/// Answers with a message of `number` bytes.
const LARGE: u16 = 0x7007;

/// Panics.
const PANIC: u16 = 0x7008;
/// As `ECHO`, `PAYLOAD` and `HOLD`, in operations on file data.
const DATA_ECHO: u16 = Opcode::Append.code();
const DATA_PAYLOAD: u16 = Opcode::Overwrite.code();
const DATA_HOLD: u16 = Opcode::Seal.code();

const CLUSTER: ClusterId = ClusterId([0xc1; 16]);
const LONG: Duration = Duration::from_secs(120);

#[derive(Clone, PartialEq, prost::Message)]
struct Note {
    #[prost(uint64, tag = "1")]
    number: u64,
    #[prost(bytes = "vec", tag = "2")]
    body: Vec<u8>,
}

fn note(number: u64) -> Note {
    Note { number, body: Vec::new() }
}

/// What the service has seen, and the replies that it holds.
#[derive(Default)]
struct Told {
    held: Mutex<Vec<(u64, Reply)>>,
    oneways: Mutex<Vec<u64>>,
    echoed: Mutex<Vec<u64>>,
    /// Whether nobody could listen to those.
    private: Mutex<Vec<bool>>,
}

impl Told {
    fn held(&self) -> usize {
        self.held.lock().len()
    }
}

impl Service for Told {
    fn call(&self, request: Request<'_>, reply: Reply) {
        let note: Note = match request.decode() {
            Ok(note) => note,
            Err(error) => return reply.err(error),
        };
        match request.opcode {
            ECHO if request.oneway => self.oneways.lock().push(note.number),
            ECHO | DATA_ECHO => {
                self.echoed.lock().push(note.number);
                self.private.lock().push(request.peer.is_private());
                reply.ok(&note, request.payload.map(AlignedBuf::freeze));
            }
            HOLD | DATA_HOLD => self.held.lock().push((note.number, reply)),
            LATER => {
                std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(note.number));
                    reply.ok(&note, ());
                });
            }
            DROP => drop(reply),
            PAYLOAD | DATA_PAYLOAD => reply.ok(&note, pattern(note.number as usize)),
            FAIL => reply.err(WireError::not_leader(Some("elsewhere:1".to_owned()))),
            LARGE => reply.ok(&Note { number: note.number, body: vec![7; note.number as usize] }, ()),
            PANIC => panic!("as the test asked"),
            other => reply.err(WireError::new(ErrorCode::UnknownOperation, format!("{other}"))),
        }
    }
}

/// Bytes whose place shows, in pieces of several sizes.
fn pattern(len: usize) -> Vec<SharedBuf> {
    let whole = SharedBuf::from(pattern_bytes(len));
    let (a, b) = (len / 3, len / 2);
    vec![whole.slice(..a), whole.slice(a..b), whole.slice(b..)]
}

fn pattern_bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[7]).collect()
}

fn server_identity() -> Identity {
    Identity::new(CLUSTER, PeerKind::Server, NodeId(1))
}

fn serve_with(config: ServerConfig) -> (Server, Arc<Told>) {
    let told = Arc::new(Told::default());
    let addr = "127.0.0.1:0".parse().expect("an address");
    let server = Server::bind(addr, config, server_identity(), told.clone()).expect("a free port");
    (server, told)
}

/// Cuts nobody off because the machine is busy.
fn config() -> ServerConfig {
    ServerConfig {
        threads: 2,
        hello_timeout: LONG,
        frame_timeout: LONG,
        payload_stall: LONG,
        payload_stall_contended: LONG,
        write_timeout: LONG,
        ..ServerConfig::default()
    }
}

fn serve() -> (Server, Arc<Told>) {
    serve_with(config())
}

fn client_with(config: ClientConfig) -> Client {
    Client::with_threads(1, config, Identity::client()).expect("threads")
}

/// Gives no connection up because the machine is busy.
fn patient() -> ClientConfig {
    ClientConfig { connect_timeout: LONG, frame_timeout: LONG, write_timeout: LONG, ..ClientConfig::default() }
}

fn client() -> Client {
    client_with(patient())
}

/// Runs a future on a runtime without drivers: calls must not need more.
fn wait<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
}

fn long() -> CallOptions {
    CallOptions::new(LONG)
}

fn number_of(response: &Response) -> u64 {
    response.decode::<Note>().expect("a note").number
}

/// Waits until `what` holds; the limit is far beyond what any machine needs.
fn until(what: impl Fn() -> bool) {
    let start = Instant::now();
    while !what() {
        assert!(start.elapsed() < LONG, "what was waited for did not come");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn closed(server: &Server, reason: CloseReason) -> u64 {
    server.stats().closed(reason)
}

fn addr(server: &Server) -> String {
    server.local_addr().to_string()
}

fn shared(bytes: Vec<u8>) -> Payload {
    Payload::One(SharedBuf::from(bytes))
}
