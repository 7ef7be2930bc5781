//! Connections through TLS: who gets in, who does not and what he is told, and what strangers cost.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;

use super::hostile::{dial, greeted, hello_frame, is_cut_off, read_frame};
use super::*;
use crate::{CallError, NotSent};
use cairn_security::{Authority, DAY, KeyFile, Mode, Revoked, Tls, Wanted, write_secret};
use cairn_wire::audience::{Caller, Roles};
use cairn_wire::common::ErrorInfo;
use cairn_wire::rights::Rights;
use prost::Message;

/// A cluster's authority and the keys that it made.
pub(super) struct Keys {
    dir: tempfile::TempDir,
    authority: Authority,
}

impl Keys {
    pub(super) fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let authority = Authority::create(&dir.path().join("ca")).expect("an authority");
        Self { dir, authority }
    }

    fn file(&self, name: &str, caller: Caller, node: u32, days: u64) -> PathBuf {
        self.file_made(name, caller, (node, days), cairn_security::now())
    }
    /// As if it had been made at that time.
    fn file_made(&self, name: &str, caller: Caller, (node, days): (u32, u64), made: u64) -> PathBuf {
        let wanted = Wanted {
            name: name.to_owned(),
            caller,
            node: NodeId(node),
            life: days * DAY,
            rights: Rights::everything(),
            again: false,
        };
        let path = self.dir.path().join(format!("{name}.key"));
        write_secret(&path, &self.authority.issue_at(&wanted, made).expect("a key"), false).expect("written");
        path
    }

    pub(super) fn server(&self, mode: Mode, node: u32) -> Identity {
        self.server_with(mode, node, None)
    }

    fn server_with(&self, mode: Mode, node: u32, revoked: Option<Arc<Revoked>>) -> Identity {
        let name = format!("server-{node}-{mode:?}");
        let file = KeyFile::read(&self.file(&name, Caller::Node(Roles::ALL), node, 9)).expect("a key");
        let tls = Tls::of_server(&file, mode, revoked).expect("usable");
        // Who is no manager has an id beyond theirs.
        let node = if node == 0 { 16 } else { node };
        Identity::with_key(CLUSTER, PeerKind::Server, NodeId(node), Some(Arc::new(tls)))
    }

    pub(super) fn client(&self, name: &str, caller: Caller) -> Identity {
        let file = KeyFile::read(&self.file(name, caller, 0, 9)).expect("a key");
        Identity::client_with_key(Some(Arc::new(Tls::of_client(&file).expect("usable"))))
    }
}

pub(super) fn serve_as(identity: Identity, config: ServerConfig) -> (Server, Arc<Told>) {
    let told = Arc::new(Told::default());
    let address = "127.0.0.1:0".parse().expect("an address");
    let server = Server::bind(address, config, identity, told.clone()).expect("a free port");
    (server, told)
}

pub(super) fn client_as(identity: Identity) -> Client {
    Client::with_threads(1, patient(), identity).expect("threads")
}

pub(super) fn echo(client: &Client, server: &Server) -> Result<Response, CallError> {
    wait(client.call(&addr(server), ECHO, &note(7), (), long()))
}

/// The text of a refusal that waiting does not mend.
fn refused(outcome: Result<Response, CallError>) -> String {
    match outcome {
        Err(CallError::NotSent { cause: NotSent::Refused(error), .. }) if error.code == ErrorCode::NotPermitted => {
            error.to_string()
        }
        other => panic!("it is not refused: {other:?}"),
    }
}

/// The same of a key that the server refuses: the end of the connection may come before the reason.
fn refused_in_the_end(client: &Client, server: &Server) -> String {
    let mut outcome = echo(client, server);
    for _ in 0..20 {
        if !matches!(&outcome, Err(CallError::NotSent { cause, .. }) if !matches!(cause, NotSent::Refused(_))) {
            break;
        }
        outcome = echo(client, server);
    }
    refused(outcome)
}

/// Bytes would be lost, mixed up or stuck in a buffer on their way through TLS, in messages or in payloads of any size.
#[test]
fn calls_and_payloads_go_through_tls_unharmed() {
    let keys = Keys::new();
    let (server, _) = serve_as(keys.server(Mode::Required, 0), config());
    let client = client_as(keys.client("alice", Caller::Client));
    assert_eq!(number_of(&echo(&client, &server).expect("answered")), 7);
    for size in [1, 2048, 4096, 70_000, 1 << 20, 4 << 20] {
        let sent = wait(client.call(&addr(&server), ECHO, &note(1), shared(pattern_bytes(size)), long().bulk()));
        assert_eq!(
            sent.expect("echoed").payload.expect("a payload")[..],
            pattern_bytes(size)[..],
            "{size} there and back"
        );
        let got = wait(client.call(&addr(&server), PAYLOAD, &note(size as u64), (), long().bulk())).expect("answered");
        assert_eq!(got.payload.expect("a payload")[..], pattern_bytes(size)[..], "{size} in pieces");
    }
    let calls: Vec<_> = (0..500).map(|i| client.call(&addr(&server), ECHO, &note(i), (), long())).collect();
    for (i, call) in calls.into_iter().enumerate() {
        assert_eq!(number_of(&wait(call).expect("answered")), i as u64);
    }
}

/// Somebody without a key, with the key of another cluster, or with a client's key as a server's would be served; or be
/// left to wait instead of being told what to do.
#[test]
fn strangers_are_refused_with_the_reason() {
    let keys = Keys::new();
    let (server, told) = serve_as(keys.server(Mode::Required, 0), config());
    let plain = refused(echo(&client(), &server));
    assert!(plain.contains("--key") && plain.contains("cairn key client"), "{plain}");
    let others = Keys::new();
    let other = echo(&client_as(others.client("eve", Caller::Client)), &server);
    let Err(CallError::NotSent { cause: NotSent::Connect { why, .. }, .. }) = other else { panic!("{other:?}") };
    assert!(why.contains("another cluster's authority"), "{why}");
    // A client's key passes for no server, neither where it asks nor where it listens.
    let alice = keys.file("alice", Caller::Client, 0, 9);
    let alice = KeyFile::read(&alice).expect("a key");
    assert!(Tls::of_server(&alice, Mode::Required, None).is_err());
    let as_client = Arc::new(Tls::of_client(&alice).expect("usable"));
    let posing = Identity::with_key(CLUSTER, PeerKind::Server, NodeId(16), Some(as_client));
    let text = refused(echo(&client_as(posing), &server));
    assert!(text.contains("alice") && text.contains("no server"), "{text}");
    assert_eq!(told.echoed.lock().len(), 0, "nothing of all that reached the service");
    until(|| closed(&server, CloseReason::NotAllowed) >= 3);
}

/// A server of another cluster, or a process that says it is another node, would be believed.
#[test]
fn whoever_connects_checks_the_server() {
    let (keys, others) = (Keys::new(), Keys::new());
    let alice = client_as(keys.client("alice", Caller::Client));
    let (elsewhere, _) = serve_as(others.server(Mode::Required, 0), config());
    let Err(error) = echo(&alice, &elsewhere) else { panic!("another cluster's server is believed") };
    assert!(error.to_string().contains("another cluster's authority"), "{error}");
    // It has the key of manager 2 and says that it is node 1.
    let posing = keys.server(Mode::Required, 2);
    posing.set_node(NodeId(1));
    let (other_node, _) = serve_as(posing, config());
    let Err(error) = echo(&alice, &other_node) else { panic!("another node is believed") };
    assert!(error.to_string().contains("its key is not its own"), "{error}");
    // It speaks no TLS at all: whoever has a key does not go on without.
    let (plain, told) = serve();
    let Err(error) = echo(&alice, &plain) else { panic!("a plain server is taken") };
    assert!(error.to_string().contains("instead of speaking TLS"), "{error}");
    assert_eq!(told.echoed.lock().len(), 0);
}

/// A cluster could not be taken from off to required without a stop.
#[test]
fn permissive_servers_serve_both_and_reach_those_that_are_off() {
    let keys = Keys::new();
    let permissive = keys.server(Mode::Permissive, 0);
    let (server, _) = serve_as(permissive.clone(), config());
    assert_eq!(number_of(&echo(&client(), &server).expect("plain")), 7);
    assert_eq!(number_of(&echo(&client_as(keys.client("alice", Caller::Client)), &server).expect("TLS")), 7);
    let (off, _) = serve();
    assert_eq!(number_of(&echo(&client_as(permissive.clone()), &off).expect("it goes on without")), 7);
    let (required, _) = serve_as(keys.server(Mode::Required, 1), config());
    assert_eq!(number_of(&echo(&client_as(permissive), &required).expect("TLS")), 7);
    // A required one does not speak plain even to whom it asks.
    let strict = client_as(keys.server(Mode::Required, 3));
    assert!(echo(&strict, &off).is_err());
}

/// A client's key could do what only servers may, on a connection that is otherwise in order.
#[test]
fn what_is_not_for_the_holder_never_reaches_the_service() {
    let keys = Keys::new();
    let (server, _) = serve_as(keys.server(Mode::Required, 0), config());
    let ask = |client: &Client, opcode: Opcode| wait(client.call(&addr(&server), opcode.code(), &note(1), (), long()));
    let alice = client_as(keys.client("alice", Caller::Client));
    for opcode in [Opcode::Free, Opcode::RaftMessages, Opcode::ForcePg, Opcode::Heartbeat] {
        let Err(CallError::Remote(error)) = ask(&alice, opcode) else { panic!("{}", opcode.name()) };
        assert_eq!(error.code, ErrorCode::NotPermitted, "{}", opcode.name());
    }
    // The service of these tests knows no operation of the table, and says so of what reaches it.
    for (client, opcode) in [
        (&alice, Opcode::Read),
        (&client_as(keys.client("root", Caller::Admin)), Opcode::ForcePg),
        (&client_as(keys.server(Mode::Required, 4)), Opcode::RaftMessages),
    ] {
        let Err(CallError::Remote(error)) = ask(client, opcode) else { panic!("{}", opcode.name()) };
        assert_eq!(error.code, ErrorCode::UnknownOperation, "{}", opcode.name());
    }
    assert_eq!(number_of(&echo(&alice, &server).expect("the connection goes on")), 7);
}

/// A key that ended, or was revoked, would be good for ever.
#[test]
fn keys_that_ended_or_were_revoked_are_refused() {
    let keys = Keys::new();
    let list = keys.dir.path().join("revoked");
    std::fs::write(&list, "").expect("a list");
    let revoked = Arc::new(Revoked::read(&list).expect("read"));
    let (server, _) = serve_as(keys.server_with(Mode::Required, 0, Some(revoked.clone())), config());
    // Made for no time at all.
    let over = keys.file("over", Caller::Client, 0, 0);
    assert!(KeyFile::read(&over).is_err(), "its holder is told before he asks");
    let over = KeyFile::read_any(&over).expect("read all the same");
    until(|| over.holder().until < cairn_security::now());
    let over = Identity::client_with_key(Some(Arc::new(Tls::of_client(&over).expect("usable"))));
    let text = refused_in_the_end(&client_as(over), &server);
    assert!(text.contains("it is over"), "{text}");
    let bob = client_as(keys.client("bob", Caller::Client));
    assert!(echo(&bob, &server).is_ok());
    std::fs::write(&list, "bob\n").expect("a list");
    revoked.look().expect("read");
    // A connection may be closed before somebody asks, or before he hears why: then he hears it when he comes again.
    let says_why = |client: &Client| {
        let mut texts = (0..20).map(|_| echo(client, &server).expect_err("a revoked key is let in").to_string());
        texts.any(|text| text.contains("revoked"))
    };
    assert!(says_why(&bob), "nobody says why");
    // Connections are closed, of who asks and of who asks nothing.
    let carol = client_as(keys.client("carol", Caller::Client));
    assert!(echo(&carol, &server).is_ok());
    let stats = server.stats();
    std::fs::write(&list, "bob\ncarol\n").expect("a list");
    revoked.look().expect("read");
    until(|| stats.connections_open.load(Relaxed) == 0);
    assert!(says_why(&carol), "nobody says why");
}

/// A key that is over would keep its connections, of which a server has so many, for as long as it asks nothing.
#[test]
fn a_key_that_ends_loses_the_connections_on_which_nothing_is_asked() {
    let keys = Keys::new();
    let (server, _) = serve_as(keys.server(Mode::Required, 0), config());
    let made = cairn_security::now() + 3 - 9 * cairn_security::DAY;
    let file = KeyFile::read(&keys.file_made("dave", Caller::Client, (0, 9), made)).expect("it is good still");
    let dave = client_as(Identity::client_with_key(Some(Arc::new(Tls::of_client(&file).expect("usable")))));
    assert!(echo(&dave, &server).is_ok());
    let stats = server.stats();
    assert_eq!(stats.connections_open.load(Relaxed), 1);
    until(|| stats.connections_open.load(Relaxed) == 0);
    assert!(cairn_security::now() > file.holder().until, "it was closed before its time");
}

/// Clocks that differ by less than a day would keep everybody out; or one that is further off would not be told of.
#[test]
fn a_clock_may_be_a_day_behind_that_of_the_authority() {
    let keys = Keys::new();
    let server = keys.server(Mode::Required, 0);
    let (server, _) = serve_as(server, config());
    for (hours, is_served) in [(23, true), (25, false)] {
        // It has the time of the authority, of which this process's is that much behind.
        let made = cairn_security::now() + hours * 3600;
        let name = |of: &str| format!("{of}-{hours}");
        let ahead = KeyFile::read_any(&keys.file_made(&name("alice"), Caller::Client, (0, 9), made)).expect("read");
        let ahead = Identity::client_with_key(Some(Arc::new(Tls::of_client(&ahead).expect("usable"))));
        let ahead = client_as(ahead);
        let node = Caller::Node(Roles::ALL);
        let other = KeyFile::read_any(&keys.file_made(&name("server"), node, (0, 9), made)).expect("read");
        let tls = Arc::new(Tls::of_server(&other, Mode::Required, None).expect("usable"));
        let (other, _) = serve_as(Identity::with_key(CLUSTER, PeerKind::Server, NodeId(16), Some(tls)), config());
        let bob = client_as(keys.client(&name("bob"), Caller::Client));
        if is_served {
            assert!(echo(&ahead, &server).is_ok() && echo(&bob, &other).is_ok(), "{hours} hours");
            continue;
        }
        let text = refused_in_the_end(&ahead, &server);
        assert!(text.contains("not valid yet") && text.contains("clock"), "{text}");
        let Err(error) = echo(&bob, &other) else { panic!("a server is believed whose key is none yet") };
        let text = error.to_string();
        assert!(text.contains("not valid yet") && text.contains("clock"), "{text}");
    }
}

/// A server whose key was revoked would go on to be asked over the connections that others have to it, and answer.
#[test]
fn a_server_whose_key_was_revoked_is_asked_nothing_more() {
    let keys = Keys::new();
    let list = keys.dir.path().join("revoked");
    std::fs::write(&list, "somebody\n").expect("a list");
    let revoked = Arc::new(Revoked::read(&list).expect("read"));
    let (server, _) = serve_as(keys.server(Mode::Required, 1), config());
    let other = client_as(keys.server_with(Mode::Required, 2, Some(revoked.clone())));
    assert!(echo(&other, &server).is_ok() && echo(&other, &server).is_ok());
    std::fs::write(&list, "server-1-Required\n").expect("a list");
    revoked.look().expect("read");
    let Err(CallError::NotSent { cause, .. }) = echo(&other, &server) else { panic!("it was asked") };
    assert!(cause.to_string().contains("revoked"), "{cause}");
    let again = echo(&other, &server).expect_err("nor over a new connection");
    assert!(matches!(again, CallError::NotSent { .. }), "{again}");
    // Those that have no list, or another one, go on.
    let third = client_as(keys.server(Mode::Required, 3));
    assert!(echo(&third, &server).is_ok());
    std::fs::write(&list, "").expect("a list");
    revoked.look().expect("read");
    until(|| echo(&other, &server).is_ok());
}

/// Strangers who begin a handshake and do not end it would keep memory and places, or the time of those who belong
/// here.
#[test]
fn handshakes_that_stand_still_are_bounded_and_end() {
    let keys = Keys::new();
    let (server, _) = serve_as(keys.server(Mode::Required, 0), ServerConfig { connections_max: 64, ..config() });
    // The head of a handshake's record that never comes whole.
    let begun: Vec<TcpStream> = (0..60)
        .map(|_| {
            let mut stream = dial(&server);
            // It may be cut off before all is written.
            let _ = stream.write_all(&[0x16, 3, 1, 2, 0, 1]);
            stream
        })
        .collect();
    // A quarter of the places is for those without a hello; the oldest went.
    until(|| closed(&server, CloseReason::MadeRoom) >= 60 - 16);
    let alice = client_as(keys.client("alice", Caller::Client));
    assert_eq!(number_of(&echo(&alice, &server).expect("served meanwhile")), 7);
    drop(begun);
    let short = ServerConfig { hello_timeout: Duration::from_millis(50), ..config() };
    let (server, _) = serve_as(keys.server(Mode::Required, 1), short);
    for begin in [&[0x16, 3, 1, 2, 0, 1][..], &[]] {
        let before = closed(&server, CloseReason::HelloTimeout);
        let mut stream = dial(&server);
        let _ = stream.write_all(begin);
        assert!(is_cut_off(stream), "after its time");
        until(|| closed(&server, CloseReason::HelloTimeout) > before);
    }
}

/// Bytes that are no handshake, or one that is cut anywhere, would bring a server down, or be taken for a frame.
#[test]
fn broken_handshakes_cost_their_own_connection() {
    let keys = Keys::new();
    let (server, told) = serve_as(keys.server(Mode::Required, 0), config());
    let recorded = first_flight(&keys);
    assert!(recorded.len() > 100 && recorded[0] == 0x16, "a client's first message");
    for cut in [1, 5, 6, 50, recorded.len() / 2, recorded.len() - 1, recorded.len()] {
        let mut stream = dial(&server);
        stream.write_all(&recorded[..cut]).expect("sent");
        drop(stream);
    }
    for place in (0..recorded.len()).step_by(11) {
        let mut bent = recorded.clone();
        bent[place] ^= 0x41;
        let mut stream = dial(&server);
        let _ = stream.write_all(&bent);
        stream.shutdown(std::net::Shutdown::Write).expect("its end");
        // An alert, or nothing: never an answer of ours.
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"CRNF") || place < 4, "byte {place}");
    }
    // A frame in the open is answered in the open, and only to say why not.
    let mut stream = dial(&server);
    stream.write_all(&hello_frame(CLUSTER, |_| ())).expect("sent");
    let (header, message) = read_frame(&mut stream).expect("an answer");
    assert!(header.flags.is_error());
    assert_eq!(ErrorInfo::decode(&message[..]).expect("an error").code, ErrorCode::NotPermitted as u32);
    assert!(is_cut_off(stream));
    assert_eq!(told.echoed.lock().len(), 0);
    let alice = client_as(keys.client("alice", Caller::Client));
    assert_eq!(number_of(&echo(&alice, &server).expect("others are served")), 7);
}

/// What a client with a key sends first.
fn first_flight(keys: &Keys) -> Vec<u8> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let client = client_as(keys.client("recorded", Caller::Client));
    let call = client.call(&listener.local_addr().expect("bound").to_string(), ECHO, &note(1), (), long());
    let (mut stream, _) = listener.accept().expect("it connects");
    let mut head = [0; 5];
    stream.read_exact(&mut head).expect("the head of a record");
    let mut rest = vec![0; usize::from(u16::from_be_bytes([head[3], head[4]]))];
    stream.read_exact(&mut rest).expect("the record");
    drop(call);
    [&head[..], &rest].concat()
}

/// A server with a key that lets others in, too, would not take their frames as they are.
#[test]
fn plain_frames_are_served_by_permissive_servers_as_ever() {
    let keys = Keys::new();
    let (server, _) = serve_as(keys.server(Mode::Permissive, 0), config());
    drop(greeted(&server));
    let mut stream = dial(&server);
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n and so on").expect("sent");
    assert!(is_cut_off(stream));
    until(|| closed(&server, CloseReason::BadFrame) == 1);
}

/// Strangers with more connections than are looked at would keep out those who come from elsewhere, or from the same
/// place.
#[test]
fn a_crowd_of_strangers_waits_and_others_do_not() {
    let keys = Keys::new();
    // 64 are looked at, and as many wait.
    let bounds = ServerConfig { connections_max: 256, hello_timeout: Duration::from_secs(600), ..config() };
    let (server, _) = serve_as(keys.server(Mode::Required, 0), bounds);
    let silent: Vec<TcpStream> = (0..150).map(|_| dial(&server)).collect();
    let client = client_as(keys.client("alice", Caller::Client));
    assert!(echo(&client, &server).is_ok());
    // The ones that are too many, and then, at a pace, one for each that waits.
    until(|| closed(&server, CloseReason::MadeRoom) >= 85);
    assert_eq!(closed(&server, CloseReason::HelloTimeout), 0);
    drop(silent);
    until(|| server.stats().connections_open.load(Relaxed) <= 1);
}
