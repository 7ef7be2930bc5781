//! Servers that go and come back, wrong clusters, and stopping with work under way.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::*;
use crate::{CallError, NotSent, SendError, Unknown};
use cairn_wire::hello::HelloError;

fn serve_at(addr: std::net::SocketAddr) -> (Server, Arc<Told>) {
    let told = Arc::new(Told::default());
    // The address was free a moment ago, but its old connections may still be on their way out.
    let start = Instant::now();
    loop {
        match Server::bind(addr, config(), server_identity(), told.clone()) {
            Ok(server) => return (server, told),
            Err(e) => assert!(start.elapsed() < LONG, "{e}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Calls that were under way when a server died must end as "unknown", and the next ones reach its successor.
#[test]
fn reconnects_after_a_restart() {
    // An address of its own: others must not get the port while the server is away.
    let (server, told) = serve_at("127.77.0.1:0".parse().unwrap());
    let client = client();
    let listen = server.local_addr();
    let peer = client.peer(&listen.to_string());
    let mut unknown = 0;
    let mut server = Some((server, told));
    for round in 0..3 {
        let (now, told) = server.take().unwrap();
        assert_eq!(number_of(&wait(peer.call(ECHO, &note(round), (), long())).unwrap()), round);
        let held = peer.call(HOLD, &note(1), (), long());
        until(|| told.held() == 1);
        now.shutdown(Duration::ZERO);
        let error = wait(held).unwrap_err();
        assert!(matches!(error, CallError::Unknown { cause: Unknown::Disconnected { .. }, .. }), "{error}");
        unknown += 1;
        server = Some(serve_at(listen));
        // Attempts made meanwhile failed; then the client waits before the next, longer each time.
        until(|| wait(peer.call(ECHO, &note(7), (), long())).is_ok());
    }
    println!("faults: {unknown} restarts with a call under way");
    assert_eq!(unknown, 3);
}

/// What cannot be sent must say so at once, so that the caller can go elsewhere.
#[test]
fn an_address_where_nobody_listens() {
    // An address of its own: nobody else gets the port meanwhile.
    let free = TcpListener::bind("127.77.0.2:0").unwrap().local_addr().unwrap();
    let config = ClientConfig { backoff_min: LONG, backoff_max: LONG, ..patient() };
    let client = client_with(config);
    let peer = client.peer(&free.to_string());
    for _ in 0..3 {
        let error = wait(peer.call(ECHO, &note(1), (), long())).unwrap_err();
        let CallError::NotSent { cause: NotSent::Connect { retry_in, .. }, .. } = &error else { panic!("{error}") };
        assert!(*retry_in >= LONG / 4, "{error}");
        assert!(error.to_string().contains(&free.to_string()), "the address is named: {error}");
    }
    assert_eq!(peer.send(ECHO, &note(1), ()), Err(SendError::Unreachable));
    let error = wait(client.call("no-port", ECHO, &note(1), (), long())).unwrap_err();
    assert!(matches!(error, CallError::NotSent { cause: NotSent::Connect { .. }, .. }), "{error}");
}

/// A server that accepts and says nothing must cost no more than the deadline or the time for connecting.
#[test]
fn a_server_that_does_not_say_hello() {
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let deaf = deaf.local_addr().unwrap().to_string();
    let client = client();
    let peer = client.peer(&deaf);
    let first = peer.call(ECHO, &note(1), (), long());
    let second = peer.call(ECHO, &note(2), (), CallOptions::new(Duration::from_millis(50)));
    let error = wait(second).unwrap_err();
    assert!(matches!(error, CallError::NotSent { cause: NotSent::Deadline, .. }), "{error}");
    drop(first);
    let hasty = client_with(ClientConfig { connect_timeout: Duration::from_millis(300), ..ClientConfig::default() });
    let error = wait(hasty.call(&deaf, ECHO, &note(1), (), long())).unwrap_err();
    assert!(matches!(error, CallError::NotSent { cause: NotSent::Connect { .. }, .. }), "{error}");
}

/// A client of another cluster must be refused, with both names in the text.
#[test]
fn wrong_cluster() {
    let (server, told) = serve();
    let other = ClusterId([0xd2; 16]);
    let identity = Identity::new(other, PeerKind::Client, NodeId(0));
    let client = Client::with_threads(1, patient(), identity).unwrap();
    let error = wait(client.call(&addr(&server), ECHO, &note(1), (), long())).unwrap_err();
    assert!(matches!(error, CallError::NotSent { cause: NotSent::Refused(_), .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains(&other.to_string()) && text.contains(&CLUSTER.to_string()), "{text}");
    assert!(told.echoed.lock().is_empty());

    // A client that has learned its cluster refuses a server of another.
    let elsewhere = Identity::new(other, PeerKind::Server, NodeId(2));
    let stranger = Server::bind("127.0.0.1:0".parse().unwrap(), config(), elsewhere, told.clone()).unwrap();
    let client = super::client();
    wait(client.call(&addr(&server), ECHO, &note(1), (), long())).unwrap();
    let error = wait(client.call(&addr(&stranger), ECHO, &note(1), (), long())).unwrap_err();
    let refused = matches!(
        &error,
        CallError::NotSent { cause: NotSent::Refused(_) | NotSent::Hello(HelloError::WrongCluster { .. }), .. }
    );
    assert!(refused, "{error}");
}

/// Stopping must let requests under way be answered within the grace, and not wait longer for those that are not.
#[test]
fn shutdown_with_requests_under_way() {
    let (server, told) = serve();
    let client = client();
    let peer = client.peer(&addr(&server));
    let answered: Vec<_> = (0..20).map(|n| peer.call(LATER, &note(100 + n), (), long())).collect();
    wait(peer.call(ECHO, &note(0), (), long())).unwrap();
    server.shutdown(LONG);
    for (n, call) in answered.into_iter().enumerate() {
        assert_eq!(number_of(&wait(call).unwrap()), 100 + n as u64);
    }
    assert_eq!(closed(&server, CloseReason::Shutdown), 1);
    drop(told);

    let (server, told) = serve();
    let stuck = client.call(&addr(&server), HOLD, &note(1), (), long());
    until(|| told.held() == 1);
    let start = Instant::now();
    server.shutdown(Duration::from_millis(50));
    assert!(start.elapsed() < LONG / 2);
    assert!(matches!(wait(stuck).unwrap_err(), CallError::Unknown { .. }));
    told.held.lock().pop().unwrap().1.ok(&note(1), ()); // goes nowhere, and must not panic
}

/// Callers must not hang when the client, or the runtime under it, goes away.
#[test]
fn the_client_goes_away() {
    let (server, told) = serve();
    let addr = addr(&server);
    let client = client();
    let call = client.call(&addr, HOLD, &note(1), (), long());
    until(|| told.held() == 1);
    drop(client);
    assert!(matches!(wait(call).unwrap_err(), CallError::Unknown { .. }));

    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let client = runtime.block_on(async { Client::new(patient(), Identity::client()) });
    let call = client.call(&addr, HOLD, &note(1), (), long());
    until(|| told.held() == 2);
    drop(runtime);
    assert!(matches!(wait(call).unwrap_err(), CallError::Unknown { .. }));
    let error = wait(client.call(&addr, ECHO, &note(1), (), long())).unwrap_err();
    assert!(matches!(error, CallError::NotSent { .. }), "{error}");
}

/// A connection that nobody uses must not stay for ever, and the next call must make a new one.
#[test]
fn idle_connections_are_closed() {
    let (server, _) = serve();
    let client = client_with(ClientConfig { idle_timeout: Duration::from_millis(60), ..patient() });
    let peer = client.peer(&addr(&server));
    for round in 1..=3 {
        wait(peer.call(ECHO, &note(1), (), long())).unwrap();
        until(|| closed(&server, CloseReason::PeerClosed) == round);
    }
}

/// Passes bytes on to `to`, and cuts each connection somewhere in the first bytes that the client sends.
fn cutting_proxy(to: std::net::SocketAddr, cuts: Arc<AtomicU64>, stop: Arc<AtomicBool>) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for (turn, from) in listener.incoming().flatten().enumerate() {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            let upstream = TcpStream::connect(to).unwrap();
            let (mut answers, mut back) = (upstream.try_clone().unwrap(), from.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut answers, &mut back));
            let mut left = 60 + (turn as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize % 3000;
            let cuts = cuts.clone();
            std::thread::spawn(move || {
                let (mut from, mut upstream, mut buf) = (from, upstream, [0; 512]);
                while left > 0 {
                    let most = left.min(buf.len());
                    let Ok(count @ 1..) = from.read(&mut buf[..most]) else { break };
                    if upstream.write_all(&buf[..count]).is_err() {
                        break;
                    }
                    left -= count;
                }
                cuts.fetch_add(u64::from(left == 0), Ordering::Relaxed);
                let _ = from.shutdown(Shutdown::Both);
                let _ = upstream.shutdown(Shutdown::Both);
            });
        }
    });
    at
}

/// "Not sent" must mean that it was never done, wherever the connection broke; an answer must mean that it was.
#[test]
fn outcomes_are_true_when_connections_are_cut_anywhere() {
    let (server, told) = serve();
    let (cuts, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let proxy = cutting_proxy(server.local_addr(), cuts.clone(), stop.clone());
    let config = ClientConfig { in_flight_max: 16, backoff_min: Duration::from_millis(1), ..patient() };
    let client = client_with(config);
    let peer = client.peer(&proxy.to_string());
    let (mut done, mut not_sent, mut unknown) = (Vec::new(), Vec::new(), 0);
    for round in 0..60u64 {
        let calls: Vec<_> = (0..40)
            .map(|n| round * 1000 + n)
            .map(|n| (n, peer.call(ECHO, &note(n), shared(pattern_bytes(n as usize % 200)), long().stream(0))))
            .collect();
        for (n, call) in calls {
            match wait(call) {
                Ok(response) => {
                    assert_eq!(number_of(&response), n);
                    done.push(n);
                }
                Err(CallError::NotSent { .. }) => not_sent.push(n),
                Err(CallError::Unknown { .. }) => unknown += 1,
                Err(e) => panic!("{e}"),
            }
        }
        std::thread::sleep(Duration::from_millis(3));
    }
    stop.store(true, Ordering::Relaxed);
    let _ = TcpStream::connect(proxy);
    drop(client);
    server.shutdown(Duration::ZERO);
    let echoed: std::collections::BTreeSet<u64> = told.echoed.lock().iter().copied().collect();
    assert_eq!(echoed.len(), told.echoed.lock().len(), "nothing was done twice");
    assert!(done.iter().all(|n| echoed.contains(n)));
    assert!(not_sent.iter().all(|n| !echoed.contains(n)));
    let cuts = cuts.load(Ordering::Relaxed);
    println!("faults: {cuts} cuts; {} done, {} not sent, {unknown} unknown", done.len(), not_sent.len());
    assert!(cuts > 10 && unknown > 0 && !not_sent.is_empty() && !done.is_empty());
}
