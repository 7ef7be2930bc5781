//! Records of requests and answers.

use super::*;
use crate::RequestSink;
use cairn_format::request_log::{RequestEvent, RequestRecord, split_record};
use std::collections::BTreeMap;

#[derive(Default)]
struct Records(Mutex<Vec<u8>>);

impl RequestSink for Records {
    fn put(&self, records: &mut Vec<u8>) {
        self.0.lock().append(records);
    }
}

fn all(bytes: &[u8]) -> Vec<RequestRecord<'_>> {
    let (mut found, mut rest) = (Vec::new(), bytes);
    while !rest.is_empty() {
        let (record, after) = split_record(rest).expect("a whole record");
        found.push(record);
        rest = after;
    }
    found
}

/// What a node was asked could not be told, or the answers not be joined with the requests.
#[test]
fn every_request_and_answer_is_recorded() {
    let records = Arc::new(Records::default());
    let (server, told) = serve_with(ServerConfig { request_log: Some(records.clone()), ..config() });
    let client = client();
    let peer = client.peer(&addr(&server));
    let body = pattern_bytes(5_000);
    wait(async {
        peer.call(ECHO, &Note { number: 1, body: body.clone() }, pattern(70_000), long()).await.expect("echo");
        peer.call(FAIL, &note(2), (), long()).await.expect_err("it fails");
        peer.call(DROP, &note(3), (), long()).await.expect_err("it is dropped");
        peer.call(PAYLOAD, &note(9_000), (), long()).await.expect("a payload");
        peer.call(LATER, &note(20), (), long()).await.expect("from another thread");
    });
    peer.send(ECHO, &note(77), ()).expect("sent");
    until(|| told.oneways.lock().len() == 1);
    drop(client);
    // With the connections their last records are handed on.
    server.shutdown(LONG);
    let bytes = records.0.lock().clone();
    let mut asked = BTreeMap::new();
    let (mut connections, mut answered) = (Vec::new(), BTreeMap::new());
    for RequestRecord { connection, time, event } in all(&bytes) {
        assert!(time > 1_600_000_000_000_000_000, "{time}");
        match event {
            RequestEvent::Connection { peer_kind, address, .. } => {
                assert!(peer_kind == PeerKind::Client as u32 && address.starts_with("127.0.0.1:"), "{address}");
                connections.push(connection);
            }
            RequestEvent::Request { id, opcode, oneway, of_server, payload, length, message, .. } => {
                assert!(!of_server, "a client asks");
                assert!(connections.contains(&connection), "a request before its connection");
                assert_eq!(message.len(), (length as usize).min(256));
                asked.insert((connection, id, oneway), (opcode, payload, length));
            }
            RequestEvent::Answer { id, opcode, error, payload, length } => {
                let oneway = asked.contains_key(&(connection, id, true));
                assert_eq!(asked[&(connection, id, oneway)].0, opcode, "an answer before its request");
                answered.insert((opcode, oneway), (error, payload, length > 0));
            }
        }
    }
    let kinds: Vec<(u16, u32)> = asked.values().map(|(opcode, payload, _)| (*opcode, *payload)).collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == (ECHO, 70_000)).count(), 1, "{kinds:?}");
    assert_eq!(kinds.len(), 6, "{kinds:?}");
    assert!(asked.values().any(|(opcode, _, length)| *opcode == ECHO && *length > 5_000));
    let expected = [
        ((ECHO, false), (0, 70_000, true)),
        ((ECHO, true), (0, 0, false)),
        ((LATER, false), (0, 0, true)),
        ((DROP, false), (ErrorCode::Internal.code(), 0, true)),
        ((PAYLOAD, false), (0, 9_000, true)),
        ((FAIL, false), (ErrorCode::NotLeader.code(), 0, true)),
    ];
    assert_eq!(answered, expected.into_iter().collect());
}
