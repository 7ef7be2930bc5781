//! Open and the part of KeepAlive that belongs to it: who uses Open is noted before anything is read, and nobody is
//! answered before the log says that deaths are deferred.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::meta::{KeepAliveRequest, OpenRequest, SetDeferral};
use prost::Message;

use crate::header::Head;
use crate::partition::{Context, Partition};
use crate::server::MetaServer;

/// Inodes that one keep-alive names.
pub(crate) const UNLINKED_MAX: usize = 4096;

impl MetaServer {
    /// Notes an Open's session before it is read. An error is the answer.
    pub(crate) fn admit_open(&self, partition: &Partition, head: &Head, message: &[u8]) -> Result<(), WireError> {
        if head.session == 0 {
            return Err(WireError::new(ErrorCode::BadRequest, "an Open needs a session; open one at the manager"));
        }
        let acknowledged = acknowledged_of(message)?;
        self.note_opener(partition, head.session, acknowledged)
    }

    /// An opener that is not deferred for yet comes again, after the log has it.
    fn note_opener(&self, partition: &Partition, session: u64, acknowledged: u64) -> Result<(), WireError> {
        let state = &partition.state;
        let again = |text: &str| Err(WireError::new(ErrorCode::Overloaded, text));
        let (deferring, position) = {
            let namespace = state.namespace.read();
            (namespace.is_deferring(), namespace.death_position())
        };
        // Deaths after `position` are told to whoever is noted with it.
        if !state.openers.note(session, acknowledged, position, self.common().coarse_now()) {
            return again("the partition takes no openers at this moment; repeat");
        }
        // Looked at after the note: who is noted keeps it on.
        if deferring && state.namespace.read().is_deferring() {
            return Ok(());
        }
        self.ask_to_defer(partition);
        again("the partition is about to keep unlinked files for their readers; repeat")
    }

    fn ask_to_defer(&self, partition: &Partition) {
        let state = &partition.state;
        if state.leading_term().is_none() || state.asked_to_defer.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut data = Opcode::SetDeferral.code().to_le_bytes().to_vec();
        SetDeferral { on: true }.encode(&mut data).expect("a Vec grows as needed");
        if partition.propose(Bytes::from(data), Context::Deferral).is_err() {
            state.asked_to_defer.store(false, Ordering::Release);
        }
    }

    /// Notes a session that uses Open and is heard. An error is the answer to its keep-alive.
    pub(crate) fn keep_opens_alive(
        &self,
        partition: &Partition,
        head: &Head,
        request: &KeepAliveRequest,
    ) -> Result<(), WireError> {
        let state = &partition.state;
        let now = self.common().coarse_now();
        let namespace = state.namespace.read();
        let position = namespace.death_position();
        if !state.openers.note(head.session, request.acknowledged, position, now) {
            return Err(WireError::new(ErrorCode::Overloaded, "the partition takes no openers now; repeat"));
        }
        if !namespace.is_deferring() {
            self.ask_to_defer(partition);
        }
        Ok(())
    }
}

fn acknowledged_of(message: &[u8]) -> Result<u64, WireError> {
    match OpenRequest::decode(message) {
        Ok(request) => Ok(request.acknowledged),
        Err(_) => Err(WireError::new(ErrorCode::BadRequest, "the message cannot be decoded")),
    }
}
