//! Connections whose frames leave TLS: file data goes through unharmed, and whoever stands in between reads it, but
//! changes nothing.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::secure::{Keys, client_as, echo, serve_as};
use super::*;
use crate::CallError;
use cairn_security::{CODE_LEN, Mode};
use cairn_wire::audience::Caller;
use cairn_wire::frame::{FrameHeader, HEADER_LEN};
use cairn_wire::protection::Protection;

/// What somebody in between does to frames of one direction. The hello is frame 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Meddling {
    Nothing,
    /// Changes a byte of the message of this frame, and its checksum with it.
    Message(usize),
    /// Changes its code.
    Code(usize),
    Repeats(usize),
    LeavesOut(usize),
    Swaps(usize),
}

/// Somebody in between, who has seen all bytes of both directions.
struct Between {
    addr: String,
    seen: Arc<Mutex<Vec<u8>>>,
    /// Whether frames came by that were not inside records of TLS.
    left_tls: Arc<AtomicBool>,
}

impl Between {
    fn new(server: &Server, asked: Meddling, answered: Meddling) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let between = Self {
            addr: listener.local_addr().expect("bound").to_string(),
            seen: Arc::default(),
            left_tls: Arc::default(),
        };
        let (to, seen, left) = (server.local_addr(), between.seen.clone(), between.left_tls.clone());
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(to) else { return };
                for (from, into, meddling) in [(&client, &server, asked), (&server, &client, answered)] {
                    let (from, into) = (from.try_clone().expect("a handle"), into.try_clone().expect("a handle"));
                    let (seen, left) = (seen.clone(), left.clone());
                    std::thread::spawn(move || {
                        // Whatever ends one direction ends it for both sides.
                        let _ = pass_on(&from, &into, meddling, &seen, &left);
                        let _ = (from.shutdown(Shutdown::Both), into.shutdown(Shutdown::Both));
                    });
                }
            }
        });
        between
    }

    fn has_seen(&self, bytes: &[u8]) -> bool {
        self.seen.lock().windows(bytes.len()).any(|part| part == bytes)
    }
}

fn take(mut from: &TcpStream, len: usize, into: &mut Vec<u8>) -> std::io::Result<()> {
    let start = into.len();
    into.resize(start + len, 0);
    from.read_exact(&mut into[start..])
}

/// Records of TLS as they are, then frames, until an end.
fn pass_on(
    from: &TcpStream,
    mut into: &TcpStream,
    meddling: Meddling,
    seen: &Mutex<Vec<u8>>,
    left: &AtomicBool,
) -> std::io::Result<()> {
    let (mut number, mut kept) = (0, Vec::new());
    loop {
        let mut bytes = Vec::new();
        take(from, 5, &mut bytes)?;
        let in_record = bytes[0] != b'C';
        if in_record {
            take(from, usize::from(u16::from_be_bytes([bytes[3], bytes[4]])), &mut bytes)?;
        } else {
            left.store(true, Relaxed);
            take(from, HEADER_LEN - 5, &mut bytes)?;
            let header = FrameHeader::decode(bytes.first_chunk().expect("a header")).expect("a frame");
            take(from, header.frame_len() + CODE_LEN - HEADER_LEN, &mut bytes)?;
        }
        seen.lock().extend_from_slice(&bytes);
        if in_record {
            into.write_all(&bytes)?;
            continue;
        }
        let frame = number;
        number += 1;
        let head_len = FrameHeader::decode(bytes.first_chunk().expect("a header")).expect("a frame").head_len();
        match meddling {
            Meddling::Message(at) if at == frame => {
                bytes[head_len - 1] ^= 1;
                bytes[24..28].fill(0);
                let crc = cairn_types::crc32c(&bytes[..head_len]);
                bytes[24..28].copy_from_slice(&crc.to_le_bytes());
            }
            Meddling::Code(at) if at == frame => bytes[head_len + 3] ^= 0x10,
            Meddling::Repeats(at) if at == frame => into.write_all(&bytes)?,
            Meddling::LeavesOut(at) if at == frame => continue,
            Meddling::Swaps(at) if at == frame => {
                kept = bytes;
                continue;
            }
            _ => {}
        }
        into.write_all(&bytes)?;
        into.write_all(&std::mem::take(&mut kept))?;
    }
}

/// For file data that may be seen on its way.
fn open() -> CallOptions {
    long().bulk().protected(Protection::Authenticated)
}

fn tell(client: &Client, addr: &str, number: u64, payload: impl Into<Payload>) -> Result<Response, CallError> {
    wait(client.call(addr, DATA_ECHO, &note(number), payload, open()))
}

/// Bytes would be lost, mixed up, or be encrypted at the cost of everybody; or what is no file data would be open to
/// who listens.
#[test]
fn file_data_goes_outside_of_tls_and_nothing_else_does() {
    let keys = Keys::new();
    let (server, _) = serve_as(keys.server(Mode::Required, 0), config());
    let client = client_as(keys.client("alice", Caller::Client));
    for size in [0, 1, 2048, 2049, 70_000, 1 << 20, 4 << 20] {
        let bytes = pattern_bytes(size);
        let sent = tell(&client, &addr(&server), 1, shared(bytes.clone())).expect("echoed");
        assert_eq!(sent.payload.map_or(Vec::new(), |payload| payload.to_vec()), bytes, "{size} there and back");
        let got = wait(client.call(&addr(&server), DATA_PAYLOAD, &note(size as u64), (), open()));
        assert_eq!(got.expect("got").payload.map_or(Vec::new(), |payload| payload.to_vec()), bytes, "{size} in pieces");
    }
    let calls: Vec<_> =
        (0..500).map(|i| client.call(&addr(&server), DATA_ECHO, &note(i), (), open().stream(3))).collect();
    for (i, call) in calls.into_iter().enumerate() {
        assert_eq!(number_of(&wait(call).expect("answered")), i as u64);
    }
    let (shown, kept) = (b"what a file has, as it is".to_vec(), b"what is nobody's business".to_vec());
    let between = Between::new(&server, Meddling::Nothing, Meddling::Nothing);
    tell(&client, &between.addr, 1, shared(shown.clone())).expect("echoed");
    wait(client.call(&between.addr, ECHO, &note(1), shared(kept.clone()), long())).expect("echoed");
    assert!(between.left_tls.load(Relaxed) && between.has_seen(&shown) && !between.has_seen(&kept));
}

/// Who wants everything encrypted would not have it because the other side does not insist.
#[test]
fn either_side_keeps_its_data_private() {
    let keys = Keys::new();
    let private = |identity: Identity| {
        let tls = identity.tls().expect("a key").clone();
        drop(identity);
        Arc::into_inner(tls).expect("its only user").with_private_data()
    };
    for server_insists in [true, false] {
        let name = if server_insists { "a" } else { "b" };
        let mut asking = keys.client(name, Caller::Client);
        let mut serving = keys.server(Mode::Required, 1 + u32::from(server_insists));
        let (side, kind, node) = if server_insists {
            (&mut serving, PeerKind::Server, NodeId(2))
        } else {
            (&mut asking, PeerKind::Client, NodeId(0))
        };
        let given = std::mem::replace(side, Identity::client());
        *side = Identity::with_key(ClusterId::NONE, kind, node, Some(Arc::new(private(given))));
        let (server, _) = serve_as(serving, config());
        let between = Between::new(&server, Meddling::Nothing, Meddling::Nothing);
        let bytes = b"what a file has, but not for all".to_vec();
        let sent = tell(&client_as(asking), &between.addr, 1, shared(bytes.clone())).expect("echoed");
        assert_eq!(sent.payload.expect("a payload")[..], bytes[..]);
        assert!(!between.left_tls.load(Relaxed) && !between.has_seen(&bytes), "{name}");
    }
}

/// File data of a volume that wants it hidden would be open to who listens, because it is allowed for others.
#[test]
fn a_call_that_wants_more_goes_through_tls() {
    let keys = Keys::new();
    let (server, told) = serve_as(keys.server(Mode::Required, 0), config());
    let between = Between::new(&server, Meddling::Nothing, Meddling::Nothing);
    let client = client_as(keys.client("alice", Caller::Client));
    let bytes = b"what a file of such a volume has".to_vec();
    for number in 1..=2 {
        let call = client.call(&between.addr, DATA_ECHO, &note(number), shared(bytes.clone()), long().bulk());
        assert_eq!(wait(call).expect("echoed").payload.expect("a payload")[..], bytes[..]);
        assert!(!between.left_tls.load(Relaxed) && !between.has_seen(&bytes));
    }
    tell(&client, &between.addr, 3, shared(bytes.clone())).expect("echoed");
    assert!(between.left_tls.load(Relaxed) && between.has_seen(&bytes));
    assert_eq!(*told.echoed.lock(), [1, 2, 3]);
    assert_eq!(*told.private.lock(), [true, true, false], "the service knows which is which");
}

/// Somebody in between would have a server do what nobody asked for, do it twice, or in another order; or a client
/// believe what no server said.
#[test]
fn whoever_changes_repeats_or_leaves_out_a_frame_ends_the_connection() {
    let keys = Keys::new();
    let client = client_as(keys.client("alice", Caller::Client));
    let identity = keys.server(Mode::Required, 0);
    for meddling in
        [Meddling::Message(1), Meddling::Code(1), Meddling::Repeats(1), Meddling::LeavesOut(1), Meddling::Swaps(1)]
    {
        let (server, told) = serve_as(identity.clone(), config());
        let between = Between::new(&server, meddling, Meddling::Nothing);
        // The first of them is meddled with; what comes behind it is not taken either, for then it is not the next one.
        let calls: Vec<_> =
            (1..=2).map(|i| client.call(&between.addr, DATA_ECHO, &note(i), (), open().stream(1))).collect();
        let outcomes: Vec<_> = calls.into_iter().map(wait).collect();
        assert!(outcomes[1].is_err(), "{meddling:?}: {outcomes:?}");
        until(|| closed(&server, CloseReason::BadFrame) == 1);
        let reached = told.echoed.lock().clone();
        let expected: &[u64] = if matches!(meddling, Meddling::Repeats(_)) { &[1] } else { &[] };
        assert_eq!(reached, expected, "{meddling:?}");

        let (server, _) = serve_as(identity.clone(), config());
        let between = Between::new(&server, Meddling::Nothing, meddling);
        let calls: Vec<_> =
            (1..=2).map(|i| client.call(&between.addr, DATA_ECHO, &note(i), (), open().stream(1))).collect();
        let believed: Vec<_> = calls.into_iter().map(|call| wait(call).map(|answer| number_of(&answer)).ok()).collect();
        let first = if matches!(meddling, Meddling::Repeats(_)) { Some(1) } else { None };
        assert_eq!(believed, [first, None], "{meddling:?} of answers");
    }
}

/// A number would be given to a frame that never leaves, and all frames behind it be refused.
#[test]
fn calls_that_are_given_up_before_they_are_sent_leave_no_gap() {
    let keys = Keys::new();
    let (server, told) = serve_as(keys.server(Mode::Required, 0), config());
    let identity = keys.client("alice", Caller::Client);
    let one_at_a_time = ClientConfig { in_flight_max: 1, ..patient() };
    let client = Client::with_threads(1, one_at_a_time, identity).expect("threads");
    let call = |opcode, number| client.call(&addr(&server), opcode, &note(number), (), open().stream(1));
    let held = call(DATA_HOLD, 1);
    until(|| told.held() == 1);
    let (given_up, waits) = (call(DATA_ECHO, 2), call(DATA_ECHO, 3));
    drop(given_up);
    let (_, reply) = told.held.lock().pop().expect("held");
    reply.ok(&note(1), ());
    assert_eq!(number_of(&wait(held).expect("answered")), 1);
    assert_eq!(number_of(&wait(waits).expect("answered")), 3);
    assert_eq!(*told.echoed.lock(), [3]);
}

/// Requests of one kind would go to the connection of the other, where a server does not answer them.
#[test]
fn each_kind_of_request_takes_its_own_connection() {
    let keys = Keys::new();
    let (server, told) = serve_as(keys.server(Mode::Required, 0), config());
    let client = client_as(keys.client("alice", Caller::Client));
    for number in 0..3 {
        assert!(echo(&client, &server).is_ok());
        assert!(tell(&client, &addr(&server), 8 + number, ()).is_ok());
    }
    assert_eq!(*told.echoed.lock(), [7, 8, 7, 9, 7, 10]);
    assert_eq!(server.stats().connections_open.load(Relaxed), 2);
}
