//! Queues that are full, peers that do not read, deadlines, cancellation, too many connections.

use std::io::{Read, Write};
use std::sync::atomic::Ordering;

use super::*;
use crate::{CallError, NotSent, SendError, Unknown};
use cairn_env::buf::BufPool;
use cairn_wire::frame::{CallHeader, Flags, OPCODE_HELLO, begin_frame, finish_frame};
use cairn_wire::hello::Hello;
use prost::Message;

fn is_unknown_deadline(error: &CallError) -> bool {
    matches!(error, CallError::Unknown { cause: Unknown::Deadline, .. })
}

/// Makes a call that the service holds beyond its deadline, and tells that. A machine that does not get to send it in
/// time gets a longer one: what was not sent was not done.
fn expired_at_the_service(peer: &crate::Peer, told: &Told, number: u64) -> Duration {
    let mut deadline = Duration::from_millis(40);
    loop {
        let start = Instant::now();
        let error = wait(peer.call(HOLD, &note(number), (), CallOptions::new(deadline))).unwrap_err();
        assert!(start.elapsed() >= deadline);
        if is_unknown_deadline(&error) {
            until(|| told.held() == 1);
            return deadline;
        }
        assert!(matches!(error, CallError::NotSent { cause: NotSent::Deadline, .. }), "{error}");
        deadline *= 2;
        assert!(deadline < LONG, "it is never sent");
    }
}

/// A call without answer must end by its deadline, with "unknown", and its late answer must not reach another call.
#[test]
fn deadlines() {
    let (server, told) = serve();
    let client = client();
    let peer = client.peer(&addr(&server));
    wait(peer.call(ECHO, &note(0), (), long())).unwrap();
    expired_at_the_service(&peer, &told, 1);
    let late = told.held.lock().pop().unwrap().1;
    let next = peer.call(HOLD, &note(2), (), long());
    until(|| told.held() == 1);
    late.ok(&note(1), shared(vec![1; 100_000]));
    told.held.lock().pop().unwrap().1.ok(&note(2), shared(vec![2; 100_000]));
    let response = wait(next).unwrap();
    assert_eq!(number_of(&response), 2);
    assert_eq!(response.payload.unwrap()[..], [2; 100_000]);
}

/// Deadlines of many calls must each hold, whatever the order in which they were made.
#[test]
fn an_earlier_deadline_is_not_held_up_by_a_later_one() {
    let (server, _) = serve();
    let client = client();
    let peer = client.peer(&addr(&server));
    let far = peer.call(HOLD, &note(1), (), long());
    let near = peer.call(HOLD, &note(2), (), CallOptions::new(Duration::from_millis(50)));
    let start = Instant::now();
    let error = wait(near).unwrap_err();
    // Not sent in time, on a busy machine.
    let unsent = matches!(error, CallError::NotSent { cause: NotSent::Deadline, .. });
    assert!(unsent || is_unknown_deadline(&error), "{error}");
    assert!(start.elapsed() < LONG / 2);
    drop(far);
}

/// A dropped future must free its place, and an answer to it must be thrown away, payload and all.
#[test]
fn cancellation() {
    let (server, told) = serve();
    let client = client_with(ClientConfig { in_flight_max: 4, ..patient() });
    let peer = client.peer(&addr(&server));
    for round in 0..50u64 {
        let calls: Vec<_> = (0..4).map(|n| peer.call(HOLD, &note(n), (), long())).collect();
        until(|| told.held() == 4);
        drop(calls);
        for (n, reply) in told.held.lock().drain(..) {
            reply.ok(&note(n), shared(pattern_bytes(n as usize * 10_000)));
        }
        assert_eq!(number_of(&wait(peer.call(ECHO, &note(round), (), long())).unwrap()), round);
    }
    assert_eq!(client_pool_in_use(&client), 0);
}

fn client_pool_in_use(client: &Client) -> usize {
    client.config().pool.in_use()
}

/// Calls beyond the bound must queue and be sent in order; beyond the queue they must be refused, not kept.
#[test]
fn calls_in_flight_are_bounded_at_the_client() {
    let (server, told) = serve();
    let client = client_with(ClientConfig { in_flight_max: 8, queue_max: 10, ..patient() });
    let peer = client.peer(&addr(&server));
    wait(peer.call(ECHO, &note(0), (), long())).unwrap();
    let mut calls: Vec<_> = (0..30).map(|n| Box::pin(peer.call(HOLD, &note(n), (), long()))).collect();
    until(|| told.held() == 8);
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(told.held(), 8, "no more than the bound are in flight");
    for call in calls.drain(18..) {
        let error = wait(call).unwrap_err();
        assert!(matches!(error, CallError::NotSent { cause: NotSent::Busy, .. }), "{error}");
    }
    let mut answered = Vec::new();
    while answered.len() < 18 {
        until(|| told.held() > 0);
        let held: Vec<_> = told.held.lock().drain(..).collect();
        for (n, reply) in held {
            answered.push(n);
            reply.ok(&note(n), ());
        }
    }
    assert!(answered.iter().copied().eq(0..18), "queued calls are sent in order: {answered:?}");
    for (n, call) in calls.into_iter().enumerate() {
        assert_eq!(number_of(&wait(call).unwrap()), n as u64);
    }
}

/// A queued call whose deadline passes was certainly not done, and must not be sent afterwards.
#[test]
fn a_call_that_expires_in_the_queue_is_not_sent() {
    let (server, told) = serve();
    let client = client_with(ClientConfig { in_flight_max: 1, ..patient() });
    let peer = client.peer(&addr(&server));
    let first = peer.call(HOLD, &note(1), (), long());
    until(|| told.held() == 1);
    let error = wait(peer.call(HOLD, &note(2), (), CallOptions::new(Duration::from_millis(30)))).unwrap_err();
    assert!(matches!(error, CallError::NotSent { cause: NotSent::Deadline, .. }), "{error}");
    let third = peer.call(HOLD, &note(3), (), long());
    told.held.lock().pop().unwrap().1.ok(&note(1), ());
    wait(first).unwrap();
    until(|| told.held() == 1);
    assert_eq!(told.held.lock()[0].0, 3, "the expired call never came");
    drop(third);
}

/// A place that a cancelled or expired call leaves must go to one that waits, though no answer comes.
#[test]
fn places_of_calls_that_were_given_up_are_used() {
    let (server, told) = serve();
    let client = client_with(ClientConfig { in_flight_max: 1, ..patient() });
    let peer = client.peer(&addr(&server));
    let dropped = peer.call(HOLD, &note(1), (), long());
    let next = peer.call(ECHO, &note(2), (), long());
    until(|| told.held() == 1);
    drop(dropped);
    assert_eq!(number_of(&wait(next).unwrap()), 2);
    told.held.lock().clear();
    let mut deadline = Duration::from_millis(40);
    loop {
        let expires = peer.call(HOLD, &note(3), (), CallOptions::new(deadline));
        let next = peer.call(ECHO, &note(4), (), long());
        assert_eq!(number_of(&wait(next).unwrap()), 4);
        let error = wait(expires).unwrap_err();
        if is_unknown_deadline(&error) {
            break;
        }
        // A busy machine did not get to send it in time: it had the place all the same.
        assert!(matches!(error, CallError::NotSent { cause: NotSent::Deadline, .. }), "{error}");
        deadline *= 2;
    }
}

/// A server must stop reading from a peer with too many requests unanswered, and go on when they are answered.
#[test]
fn requests_in_flight_are_bounded_at_the_server() {
    let (server, told) = serve_with(ServerConfig { in_flight_max: 5, ..config() });
    let client = client();
    let peer = client.peer(&addr(&server));
    let calls: Vec<_> = (0..100).map(|n| peer.call(HOLD, &note(n), (), long())).collect();
    let mut answered = 0;
    while answered < 100 {
        until(|| told.held() == 5);
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(told.held(), 5, "no more are taken before these are answered");
        for (n, reply) in told.held.lock().drain(..) {
            answered += 1;
            reply.ok(&note(n), ());
        }
    }
    for (n, call) in calls.into_iter().enumerate() {
        assert_eq!(number_of(&wait(call).unwrap()), n as u64);
    }
}

/// A peer that asks much and reads nothing.
struct NoReader {
    stream: std::net::TcpStream,
}

impl NoReader {
    fn new(server: &Server, requests: usize, opcode: u16, number: u64) -> Self {
        let mut stream = std::net::TcpStream::connect(server.local_addr()).unwrap();
        let mut bytes = Vec::new();
        let start = begin_frame(&mut bytes);
        Hello::new(CLUSTER, PeerKind::Client, NodeId(0)).encode(&mut bytes);
        finish_frame(&mut bytes, start, Flags::REQUEST, OPCODE_HELLO, 0, 0).unwrap();
        for id in 0..requests {
            let start = begin_frame(&mut bytes);
            CallHeader { deadline_ms: 1000, trace_id: 0 }.encode(&mut bytes);
            note(number).encode(&mut bytes).unwrap();
            finish_frame(&mut bytes, start, Flags::REQUEST, opcode, id as u64, 0).unwrap();
        }
        stream.write_all(&bytes).unwrap();
        Self { stream }
    }
}

/// A peer that does not read must not make answers pile up, and must be cut off after a time.
#[test]
fn a_peer_that_does_not_read() {
    let config = ServerConfig { out_queue_max: 1 << 20, write_timeout: Duration::from_millis(200), ..config() };
    let (server, _) = serve_with(config);
    let stats = server.stats();
    // Four megabytes an answer, of memory that all share: far more than socket buffers take.
    let asks = NoReader::new(&server, 500, PAYLOAD, 4 << 20);
    until(|| closed(&server, CloseReason::WriteTimeout) == 1);
    let carried_out = stats.requests.load(Ordering::Relaxed);
    assert!(carried_out < 50, "it stopped reading requests: {carried_out} were carried out");
    drop(asks.stream);
    assert_eq!(number_of(&wait(client().call(&addr(&server), ECHO, &note(4), (), long())).unwrap()), 4);
}

/// A peer that takes a few bytes now and then must be cut off as well, and what was sent must not be kept for what was
/// not.
#[test]
fn a_peer_that_drips() {
    let config = ServerConfig { write_timeout: Duration::from_millis(300), ..config() };
    let (server, _) = serve_with(config);
    let asks = NoReader::new(&server, 100, PAYLOAD, 4 << 20);
    until(|| {
        let mut few = [0; 256];
        // Once it is cut off there is nothing to read.
        let _ = (&asks.stream).read(&mut few);
        closed(&server, CloseReason::WriteTimeout) == 1
    });
}

/// Answers that come all at once to a peer that does not read must hit a hard bound.
#[test]
fn held_answers_to_a_peer_that_does_not_read() {
    let config = ServerConfig { out_queue_hard: 8 << 20, write_timeout: LONG * 10, ..config() };
    let (server, told) = serve_with(config);
    let asks = NoReader::new(&server, 200, HOLD, 1);
    until(|| told.held() == 200);
    for (_, reply) in told.held.lock().drain(..) {
        reply.ok(&Note { number: 1, body: vec![1; 1_000_000] }, ());
    }
    until(|| closed(&server, CloseReason::OutQueueFull) == 1);
    drop(asks.stream);
}

/// Connections beyond the limit must be refused with the reason, and places must become free again.
#[test]
fn too_many_connections() {
    let (server, told) = serve_with(ServerConfig { connections_max: 3, ..config() });
    let addr = addr(&server);
    let clients: Vec<_> = (0..3).map(|_| client()).collect();
    let calls: Vec<_> = clients.iter().map(|client| client.call(&addr, HOLD, &note(1), (), long())).collect();
    until(|| told.held() == 3);
    let error = wait(client().call(&addr, ECHO, &note(1), (), long())).unwrap_err();
    let CallError::NotSent { cause: NotSent::Refused(refusal), .. } = &error else { panic!("{error}") };
    assert_eq!(refusal.code, ErrorCode::Overloaded);
    until(|| closed(&server, CloseReason::TooManyConnections) >= 1);
    drop((calls, clients));
    let stats = server.stats();
    until(|| stats.connections_open.load(Ordering::Relaxed) == 0);
    wait(client().call(&addr, ECHO, &note(1), (), long())).unwrap();
}

/// A client whose pool is empty must wait for its own buffers to come back, not allocate.
#[test]
fn the_clients_pool_is_a_bound() {
    let (server, _) = serve();
    let pool = BufPool::new(10 << 20);
    let client = client_with(ClientConfig { pool: pool.clone(), ..patient() });
    let peer = client.peer(&addr(&server));
    let calls: Vec<_> = (0..20).map(|_| peer.call(PAYLOAD, &note(4 << 20), (), long().bulk())).collect();
    until(|| pool.in_use() == 8 << 20);
    let mut good = 0;
    for call in calls {
        good += usize::from(wait(call).unwrap().payload.is_some_and(|p| p.len() == 4 << 20));
        assert!(pool.in_use() <= 8 << 20);
    }
    assert_eq!(good, 20);
}

/// One-way messages to a peer that does not take them must be dropped, not kept.
#[test]
fn oneway_messages_are_dropped_when_too_many_wait() {
    // Accepts in the kernel, but nobody says hello.
    let deaf = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let client = client_with(ClientConfig { oneway_max: 1 << 20, ..patient() });
    let peer = client.peer(&deaf.local_addr().unwrap().to_string());
    let large = Note { number: 1, body: vec![0; 100_000] };
    let sent = (0..100).map(|_| peer.send(ECHO, &large, ())).filter(Result::is_ok).count();
    assert!((10..=11).contains(&sent), "{sent} messages of 100 kB are kept within 1 MiB");
    assert_eq!(peer.send(ECHO, &large, ()), Err(SendError::Full));
}
