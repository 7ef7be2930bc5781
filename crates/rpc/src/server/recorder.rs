//! [`Recorder`]: records of a connection's requests and answers, for the request log.
//!
//! Records are gathered without a lock of their own (requests by the connection's task, answers under the lock of its
//! queue) and handed on together, once a round. What a message carries is kept up to some bytes, payloads never, and
//! nothing of messages whose contents are data of others.

use std::sync::Arc;
use std::time::SystemTime;

use cairn_format::request_log::{RequestEvent, RequestRecord};
use cairn_wire::Opcode;
use cairn_wire::frame::{CallHeader, FrameHeader};

use super::PeerInfo;

/// Takes records for the request log.
pub trait RequestSink: Send + Sync {
    /// Takes what is in the buffer and leaves it empty. Never waits; drops what it has no room for.
    fn put(&self, records: &mut Vec<u8>);
}

/// Of one connection.
#[derive(Clone)]
pub(crate) struct Recorder {
    pub sink: Arc<dyn RequestSink>,
    pub connection: u64,
}

/// Nanoseconds since 1970.
pub(crate) fn wall() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

impl Recorder {
    fn record(&self, time: u64, event: RequestEvent<'_>, out: &mut Vec<u8>) {
        RequestRecord { connection: self.connection, time, event }.encode(out);
    }

    pub(crate) fn connected(&self, peer: &PeerInfo, out: &mut Vec<u8>) {
        let (peer_kind, node) = (peer.hello.kind as u32, peer.hello.node.get());
        self.record(wall(), RequestEvent::Connection { peer_kind, node, address: &peer.addr.to_string() }, out);
    }

    pub(crate) fn asked(
        &self,
        (time, of_server): (u64, bool),
        header: &FrameHeader,
        call: &CallHeader,
        message: &[u8],
        out: &mut Vec<u8>,
    ) {
        let length = message.len() as u32;
        // Entries of logs: names and attributes of everything that happens.
        let message = if header.opcode == Opcode::RaftMessages.code() { &[] } else { message };
        let event = RequestEvent::Request {
            id: header.request_id,
            trace_id: call.trace_id,
            opcode: header.opcode,
            oneway: header.flags.is_oneway(),
            of_server,
            payload: header.payload_len,
            length,
            message,
        };
        self.record(time, event, out);
    }

    pub(crate) fn answered(
        &self,
        id: u64,
        opcode: u16,
        error: u16,
        (length, payload): (usize, usize),
        out: &mut Vec<u8>,
    ) {
        let (length, payload) = (length as u32, payload as u32);
        self.record(wall(), RequestEvent::Answer { id, opcode, error, payload, length }, out);
    }
}
