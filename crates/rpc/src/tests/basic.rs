//! Calls that go well, and errors that the service gives.

use super::*;
use crate::{CallError, Connection, ReplyBatch};
use cairn_env::buf::BufPool;
use cairn_wire::frame::{CallHeader, MESSAGE_MAX, PAYLOAD_MAX};
use std::sync::atomic::Ordering;

/// Nothing works if a call does not come back with its message and its payload, of any size.
#[test]
fn echo_of_messages_and_payloads_of_all_sizes() {
    let (server, _) = serve();
    let client = client();
    let peer = client.peer(&addr(&server));
    for len in [0, 1, 100, 2_047, 2_048, 2_049, 5_000, 16_384, 65_000, 65_536, 100_000, 1 << 20, PAYLOAD_MAX] {
        let sent = Note { number: len as u64, body: pattern_bytes(len.min(MESSAGE_MAX - 64)) };
        let response = wait(peer.call(ECHO, &sent, pattern(len), long())).unwrap();
        assert_eq!(response.decode::<Note>().unwrap(), sent);
        let payload = response.payload.as_deref().unwrap_or_default();
        assert_eq!(payload, pattern_bytes(len), "payload of {len} bytes");
    }
    let stats = server.stats();
    assert_eq!(stats.requests.load(Ordering::Relaxed), 13);
    assert_eq!(stats.connections_open.load(Ordering::Relaxed), 2, "bulk and small calls use different connections");
    assert!(stats.bytes_in.load(Ordering::Relaxed) > PAYLOAD_MAX as u64);
    assert_eq!(peer.hello().unwrap().cluster, CLUSTER);
    assert_eq!(client.identity().cluster(), CLUSTER, "a client without cluster learns it");
}

/// Answers paired with the wrong calls would mix up data.
#[test]
fn many_pipelined_calls_answered_out_of_order() {
    let (server, told) = serve();
    let client = client();
    let peer = client.peer(&addr(&server));
    let calls: Vec<_> = (0..500).map(|n| peer.call(HOLD, &note(n), (), long())).collect();
    until(|| told.held() == 500);
    let mut batch = ReplyBatch::new();
    for (n, reply) in told.held.lock().drain(..).rev() {
        batch.ok(reply, &note(n), shared(pattern_bytes((n * 50) as usize)));
    }
    batch.flush();
    wait(async {
        for (n, call) in calls.into_iter().enumerate() {
            let response = call.await.unwrap();
            assert_eq!(number_of(&response), n as u64);
            assert_eq!(response.payload.as_deref().unwrap_or_default(), pattern_bytes(n * 50));
        }
    });
    assert_eq!(server.stats().connections_open.load(Ordering::Relaxed), 1);
}

/// A slow answer must not hold up the fast ones behind it.
#[test]
fn a_slow_call_does_not_delay_others() {
    let (server, told) = serve();
    let client = client();
    let peer = client.peer(&addr(&server));
    let slow = peer.call(HOLD, &note(500), (), long());
    let fast = wait(peer.call(ECHO, &note(1), (), long())).unwrap();
    assert_eq!(number_of(&fast), 1);
    assert_eq!(told.held(), 1, "the slow call was made first and is still under way");
    told.held.lock().pop().unwrap().1.ok(&note(500), ());
    assert_eq!(number_of(&wait(slow).unwrap()), 500);
}

/// A request that makes the service panic must cost its own connection, not the thread and its other connections.
#[test]
fn a_panic_of_the_service() {
    let (server, told) = serve_with(ServerConfig { threads: 1, ..config() });
    let (client, bystander) = (client(), client());
    let held = bystander.call(&addr(&server), HOLD, &note(1), (), long());
    until(|| told.held() == 1);
    let error = wait(client.call(&addr(&server), PANIC, &note(1), (), long())).unwrap_err();
    assert!(matches!(error, CallError::Unknown { .. }), "{error}");
    told.held.lock().pop().unwrap().1.ok(&note(2), ());
    assert_eq!(number_of(&wait(held).unwrap()), 2);
    assert_eq!(number_of(&wait(client.call(&addr(&server), ECHO, &note(3), (), long())).unwrap()), 3);
    let stats = server.stats();
    until(|| stats.connections_open.load(Ordering::Relaxed) == 2);
}

/// An error must come with its code and hints; a forgotten reply must not leave the caller waiting.
#[test]
fn errors_of_the_service() {
    let (server, _) = serve();
    let client = client();
    let peer = client.peer(&addr(&server));
    let error = wait(peer.call(FAIL, &note(1), (), long())).unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::NotLeader));
    let CallError::Remote(error) = error else { panic!("{error}") };
    assert_eq!(error.leader_hint.as_deref(), Some("elsewhere:1"));
    let error = wait(peer.call(DROP, &note(1), (), long())).unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::Internal));
    let error = wait(peer.call(0x7fff, &note(1), (), long())).unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::UnknownOperation));
    let response = wait(peer.call(LARGE, &note((MESSAGE_MAX - 16) as u64), (), long())).unwrap();
    assert_eq!(response.decode::<Note>().unwrap().body.len(), MESSAGE_MAX - 16);
    let error = wait(peer.call(LARGE, &note(MESSAGE_MAX as u64), (), long())).unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::Internal), "an answer that does not fit becomes an error");
    let error = wait(peer.call(PAYLOAD, &note(PAYLOAD_MAX as u64 + 1), (), long())).unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::Internal));
    let large = Note { number: 1, body: vec![0; MESSAGE_MAX] };
    let error = wait(peer.call(ECHO, &large, (), long())).unwrap_err();
    assert!(matches!(error, CallError::NotSent { .. }), "a request that does not fit is not sent: {error}");
    assert_eq!(number_of(&wait(peer.call(ECHO, &note(9), (), long())).unwrap()), 9, "the connection lives on");
    assert_eq!(server.stats().error_answers.load(Ordering::Relaxed), 5);
}

/// A reader that brings its own buffer must get the bytes there, and a small buffer must not be overrun.
#[test]
fn payload_into_the_callers_buffer() {
    let (server, _) = serve();
    let client = client();
    let peer = client.peer(&addr(&server));
    let own = AlignedBuf::unpooled(100_000);
    let place = own.as_ptr();
    let response = wait(peer.call(PAYLOAD, &note(90_000), (), long().bulk().into_buf(own))).unwrap();
    let payload = response.payload.unwrap();
    assert_eq!(payload[..], pattern_bytes(90_000));
    assert_eq!(payload.as_ptr(), place);
    let small = AlignedBuf::unpooled(4096);
    let response = wait(peer.call(PAYLOAD, &note(90_000), (), long().bulk().into_buf(small))).unwrap();
    assert_eq!(response.payload.unwrap()[..], pattern_bytes(90_000));
}

/// Raft depends on one-way messages arriving in order, and callbacks on being run.
#[test]
fn oneway_messages_and_callbacks() {
    let (server, told) = serve();
    let client = client();
    let peer = client.peer(&addr(&server));
    for n in 0..200 {
        peer.send(ECHO, &note(n), ()).unwrap();
    }
    until(|| told.oneways.lock().len() == 200);
    assert!(told.oneways.lock().iter().copied().eq(0..200));
    let (tell, told) = std::sync::mpsc::channel();
    peer.call_then(ECHO, &note(7), (), long(), move |outcome| tell.send(outcome).unwrap());
    assert_eq!(number_of(&told.recv_timeout(LONG).unwrap().unwrap()), 7);
}

/// The bench and tools use the bare connection.
#[test]
fn bare_connection() {
    let (server, _) = serve();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let pool = BufPool::new(64 << 20);
        let mut connection = Connection::connect(&addr(&server), &Identity::client(), pool).await.unwrap();
        assert_eq!(connection.hello().node, NodeId(1));
        let call = CallHeader { deadline_ms: 1000, trace_id: 1 };
        let ids: Vec<_> =
            (0..100).map(|n| connection.send(ECHO, call, &note(n), pattern(n as usize * 300)).unwrap()).collect();
        let mut seen = Vec::new();
        while seen.len() < ids.len() {
            while let Some(incoming) = connection.try_recv().unwrap() {
                assert!(!incoming.error);
                let n = seen.len();
                assert_eq!(incoming.payload.as_deref().unwrap_or_default(), pattern_bytes(n * 300));
                seen.push(incoming.request_id);
            }
            if seen.len() < ids.len() {
                connection.fill().await.unwrap();
            }
        }
        assert_eq!(seen, ids, "a service that answers at once answers in order");
    });
}

/// A client made inside a runtime runs its connections there.
#[test]
fn client_on_the_callers_runtime() {
    let (server, _) = serve();
    let addr = addr(&server);
    for multi in [false, true] {
        let mut builder = if multi {
            tokio::runtime::Builder::new_multi_thread()
        } else {
            tokio::runtime::Builder::new_current_thread()
        };
        builder.enable_all().build().unwrap().block_on(async {
            let client = Client::new(patient(), Identity::client());
            let calls: Vec<_> = (0..50).map(|n| client.call(&addr, ECHO, &note(n), (), long())).collect();
            for (n, call) in calls.into_iter().enumerate() {
                assert_eq!(number_of(&call.await.unwrap()), n as u64);
            }
        });
    }
}
