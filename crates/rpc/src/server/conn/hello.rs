//! The hello of a connection: who it is, and whether there is room for it.
//!
//! Invariant: nobody is a server, a node or the holder of a key but as its certificate says (`admission.rs`).

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use cairn_types::ErrorCode;
use cairn_wire::error::WireError;
use cairn_wire::frame::{Flags, FrameHeader, OPCODE_HELLO};
use cairn_wire::hello::{Hello, HelloError, PeerKind};

use super::{Conn, Phase};
use crate::audit::Refusal;
use crate::payload::Payload;
use crate::server::PeerInfo;
use crate::server::accounts::Who;
use crate::server::admission::{self, Admission};
use crate::server::plain;
use crate::server::reply::encode;
use crate::server::stats::{CloseReason, add};

impl Conn {
    /// Takes the first frame and answers it; on an error the connection closes when the answer is written.
    pub(super) fn hello(&mut self, header: &FrameHeader, message: &[u8]) {
        let full = matches!(self.phase, Phase::Hello { full: true });
        match self.judge_hello(header, message, full) {
            Ok((peer, who)) => {
                self.reader.hello_done();
                self.seat.greeted(who);
                if let Some(holder) = &peer.holder {
                    self.tab.belongs_to(&holder.name);
                }
                if let Some(recorder) = &self.sink.recorder {
                    recorder.connected(&peer, &mut self.records);
                }
                if peer.holder.is_none() {
                    add(&self.shared.stats.connections_plain, 1);
                    if self.shared.identity.tls().is_some() {
                        self.shared.plain.enter(&plain::name_of(self.addr.ip(), &peer.hello));
                    }
                }
                let admission = Admission::of(&peer, self.shared.identity.tls());
                self.phase = Phase::Serving(Arc::new(peer), admission);
                let ours = self.shared.identity.hello();
                let pushed =
                    self.sink
                        .lock()
                        .out
                        .push(Flags::RESPONSE, OPCODE_HELLO, header.request_id, Payload::None, |out| ours.encode(out));
                pushed.expect("a hello fits a frame");
            }
            Err((reason, error)) => {
                self.text = error.to_string();
                self.phase = Phase::Closing(reason);
                let info = error.to_info();
                let pushed =
                    self.sink
                        .lock()
                        .out
                        .push(Flags::ERROR, OPCODE_HELLO, header.request_id, Payload::None, |out| encode(&info, out));
                pushed.expect("a short error text fits a frame");
            }
        }
    }

    fn judge_hello(
        &self,
        header: &FrameHeader,
        message: &[u8],
        full: bool,
    ) -> Result<(PeerInfo, Who), (CloseReason, WireError)> {
        let bad = |text: String| (CloseReason::BadHello, WireError::new(ErrorCode::BadRequest, text));
        if header.opcode != OPCODE_HELLO || header.flags != Flags::REQUEST {
            return Err(bad(format!("operation {:#06x} came before the hello", header.opcode)));
        }
        let theirs = Hello::decode(message).map_err(|e| bad(e.to_string()))?;
        let ours = self.shared.identity.hello();
        let version = ours.common_version(&theirs).map_err(|e| {
            (CloseReason::NoCommonVersion, WireError::new(ErrorCode::VersionUnsupported, e.to_string()))
        })?;
        if let Err(HelloError::WrongCluster { ours, theirs }) = ours.check_cluster(&theirs) {
            let text = format!(
                "this server belongs to cluster {ours}, the caller to cluster {theirs}; check the address and the configuration"
            );
            return Err((CloseReason::WrongCluster, WireError::new(ErrorCode::WrongCluster, text)));
        }
        let node_keys = self.shared.identity.node_keys().clone();
        let holder = admission::holder(&self.stream, &theirs, self.shared.identity.tls());
        let audit = self.shared.config.audit.clone();
        let holder = holder.map_err(|error| {
            if self.stream.is_plain() {
                self.shared.plain.refused(plain::name_of(self.addr.ip(), &theirs), Instant::now());
            }
            let name = self.stream.holder().map(|holder| holder.name);
            let (from, name) = (self.addr.ip(), name.as_deref());
            audit.refused(&Refusal { from, name, operation: "hello", why: &error.message });
            (CloseReason::NotAllowed, error)
        })?;
        // Nodes of the cluster get in as long as there is any room at all.
        let room =
            theirs.kind == PeerKind::Server && self.shared.open.load(Relaxed) <= self.shared.config.connections_max;
        let who = match &holder {
            Some(holder) => self.shared.accounts.named(&holder.name),
            None => self.shared.accounts.at(self.addr.ip()),
        };
        if full && !room && !self.shared.seats.push_out(who) {
            let text = format!(
                "this server has its {} connections; close some or raise its limit",
                self.shared.config.connections_max
            );
            return Err((CloseReason::TooManyConnections, WireError::new(ErrorCode::Overloaded, text)));
        }
        let (addr, protection) = (self.addr, self.stream.protection());
        let peer = PeerInfo { addr, hello: theirs, version, holder, protection, audit, node_keys };
        if let Some(sink) = peer.audit.sink().filter(|_| peer.holder.is_some()) {
            sink.entered(&peer);
        }
        Ok((peer, who))
    }
}
