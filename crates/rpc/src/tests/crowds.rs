//! Many peers that take and give nothing: idle connections up to the limit, none with a hello, payloads that stop
//! half-way. Others are served meanwhile, and the memory goes back.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};

use super::hostile::{dial, greeted, hello_frame, is_cut_off, read_frame, request};
use super::*;
use crate::CallError;
use cairn_env::buf::BufPool;
use socket2::{Domain, Socket, Type};
use std::sync::atomic::Ordering::Relaxed;

/// Longer than any of these tests may take: what ends sooner was not ended by this time-out.
const NEVER: Duration = Duration::from_secs(600);

fn payload_call(server: &Server, client: &Client, bytes: usize) -> Result<(), CallError> {
    let sent = pattern_bytes(bytes);
    let response = wait(client.call(&addr(server), ECHO, &note(9), shared(sent.clone()), long()))?;
    assert!(response.payload.as_deref() == Some(&sent[..]), "other bytes came back");
    Ok(())
}

/// A greeted connection that announced 4 MiB, sent a little of it, and stops.
fn half_payload(mut stream: TcpStream) -> TcpStream {
    stream.write_all(&request(ECHO, 1, 4 << 20)).expect("sent");
    stream.write_all(&[1; 1000]).expect("sent");
    stream
}

/// Senders that stop in the middle of a payload must not keep the memory that others need, nor leave it behind.
#[test]
fn payloads_that_stop_lose_their_buffers() {
    let pool = BufPool::new(16 << 20);
    let config = ServerConfig {
        pool: pool.clone(),
        frame_timeout: NEVER,
        payload_stall: NEVER,
        payload_stall_contended: Duration::from_millis(300),
        ..config()
    };
    let (server, _) = serve_with(config);
    let stopped: Vec<_> = (0..20).map(|_| half_payload(greeted(&server))).collect();
    until(|| pool.in_use() == 8 << 20);
    // A busy machine may be too slow even for one that does not stop: it comes again.
    let client = client();
    until(|| payload_call(&server, &client, 4 << 20).is_ok());
    assert!(closed(&server, CloseReason::PayloadStalled) > 0);
    // With nobody waiting any more the last ones may stay; their time is `payload_stall`.
    drop(stopped);
    until(|| pool.held() == 0);
}

/// A payload that nobody waits behind has its time, too; one that flows is not cut off.
#[test]
fn a_payload_has_to_go_on() {
    let config = ServerConfig {
        frame_timeout: NEVER,
        payload_stall: Duration::from_millis(400),
        payload_stall_contended: Duration::from_millis(200),
        ..config()
    };
    let (server, told) = serve_with(config);
    assert!(is_cut_off(half_payload(greeted(&server))));
    assert_eq!(closed(&server, CloseReason::PayloadStalled), 1);
    assert!(told.echoed.lock().is_empty());
    // A busy machine may be too slow for it: then it comes again.
    let client = client();
    until(|| payload_call(&server, &client, 4 << 20).is_ok());
}

/// A greeted connection from another address than that of [`client`].
fn from_elsewhere(server: &Server) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let here: SocketAddr = "127.0.0.2:0".parse().expect("an address");
    socket.bind(&here.into()).expect("all of 127/8 is this machine");
    socket.connect(&server.local_addr().into()).expect("it listens");
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(LONG)).expect("set");
    stream.write_all(&hello_frame(CLUSTER, |_| ())).expect("sent");
    read_frame(&mut stream).expect("the hello is answered");
    stream
}

/// One address must not get all of the memory for payloads, however many connections it opens.
#[test]
fn an_address_has_a_share_of_the_memory() {
    let pool = BufPool::new(16 << 20);
    let config = ServerConfig {
        pool: pool.clone(),
        frame_timeout: NEVER,
        payload_stall: NEVER,
        payload_stall_contended: NEVER,
        ..config()
    };
    let (server, _) = serve_with(config);
    let stopped: Vec<_> = (0..20).map(|_| half_payload(from_elsewhere(&server))).collect();
    until(|| pool.in_use() == 8 << 20);
    payload_call(&server, &client(), 4 << 20).expect("served");
    assert_eq!(closed(&server, CloseReason::PayloadStalled), 0, "nobody had to be cut off for it");
    drop(stopped);
}

/// Answers that nobody reads must not take all memory, over however many connections, and others must be answered.
#[test]
fn unread_answers_of_one_address_have_a_bound() {
    const MAX: usize = 32 << 20;
    let (server, _) = serve_with(ServerConfig { messages_max: MAX, ..config() });
    let unread: Vec<_> = (0..100)
        .map(|_| {
            let mut stream = from_elsewhere(&server);
            (0..16).for_each(|_| stream.write_all(&request(LARGE, 900_000, 0)).expect("sent"));
            stream
        })
        .collect();
    until(|| server.message_bytes() > MAX / 4);
    let client = client();
    for _ in 0..50 {
        let response = wait(client.call(&addr(&server), LARGE, &note(900_000), (), long())).expect("answered");
        assert_eq!(number_of(&response), 900_000);
        let held = server.message_bytes();
        assert!(held <= MAX / 2 + (4 << 20), "{held} bytes");
    }
    drop(unread);
    until(|| server.message_bytes() == 0);
}

/// Connections of one address that are all busy must not keep others out: those on which nothing happened for longest
/// go.
#[test]
fn busy_connections_of_one_address_give_way_to_others() {
    let (server, told) = serve_with(ServerConfig { connections_max: 32, idle_min: NEVER, ..config() });
    let busy: Vec<_> = (0..30)
        .map(|id| {
            let mut stream = from_elsewhere(&server);
            stream.write_all(&request(HOLD, id, 0)).expect("sent");
            stream
        })
        .collect();
    until(|| told.held() == 30);
    let client = client();
    wait(client.call(&addr(&server), ECHO, &note(1), (), long())).expect("it holds few");
    assert_eq!(closed(&server, CloseReason::MadeRoom), 1);
    assert!(closed(&server, CloseReason::TooManyConnections) == 0);
    drop(busy);
}

/// Who connects and says nothing must not keep those out who say hello.
#[test]
fn silent_connections_give_way() {
    let config = ServerConfig { connections_max: 40, hello_timeout: NEVER, ..config() };
    let (server, _) = serve_with(config);
    let mut silent = Vec::new();
    for round in 0..10 {
        silent.extend((0..20).map(|_| dial(&server)));
        let made_room = || closed(&server, CloseReason::MadeRoom) + closed(&server, CloseReason::TooManyConnections);
        until(|| made_room() >= (round + 1) * 20 - 16);
        let client = client();
        wait(client.call(&addr(&server), ECHO, &note(round), (), long())).expect("it said hello");
        drop(client);
    }
    assert!(closed(&server, CloseReason::MadeRoom) > 0);
    assert_eq!(closed(&server, CloseReason::HelloTimeout), 0);
}

/// Connections up to the limit that ask nothing must not keep others out; one with a request in the works stays.
#[test]
fn idle_connections_give_way_and_busy_ones_stay() {
    let config = ServerConfig { connections_max: 30, idle_min: Duration::ZERO, ..config() };
    let (server, told) = serve_with(config);
    let busy = client();
    let held = busy.call(&addr(&server), HOLD, &note(1), (), CallOptions::new(NEVER));
    until(|| told.held() == 1);
    let idle: Vec<_> = (0..28).map(|_| greeted(&server)).collect();
    let others: Vec<_> = (0..20).map(|_| client()).collect();
    for other in &others {
        // A search for room a moment ago may have found none: whoever is refused comes again.
        until(|| wait(other.call(&addr(&server), ECHO, &note(2), (), long())).is_ok());
    }
    assert!(closed(&server, CloseReason::MadeRoom) > 0);
    told.held.lock().pop().expect("the first call").1.ok(&note(77), ());
    assert_eq!(number_of(&wait(held).expect("it was in the works all the time")), 77);
    drop(idle);
}

/// When clients have all places that they can have, the nodes of the cluster must still get in.
#[test]
fn nodes_get_in_where_clients_do_not() {
    let config = ServerConfig { connections_max: 32, idle_min: NEVER, ..config() };
    let (server, _) = serve_with(config);
    let strangers: Vec<_> = (0..30).map(|_| greeted(&server)).collect();
    let refused = wait(client().call(&addr(&server), ECHO, &note(1), (), long()));
    assert!(refused.is_err(), "clients have their part of the connections");
    let identity = Identity::new(CLUSTER, PeerKind::Server, NodeId(2));
    let node = Client::with_threads(1, patient(), identity).expect("threads");
    wait(node.call(&addr(&server), ECHO, &note(1), (), long())).expect("room is kept for nodes");
    drop(strangers);
}

/// After a crowd left, nothing of it stays: neither places nor memory.
#[test]
fn a_crowd_leaves_nothing_behind() {
    let (server, _) = serve();
    let stats = server.stats();
    let crowd: Vec<_> = (0..200).map(|n| if n % 2 == 0 { dial(&server) } else { greeted(&server) }).collect();
    until(|| stats.connections_open.load(Relaxed) == 200);
    drop(crowd);
    until(|| stats.connections_open.load(Relaxed) == 0);
}
