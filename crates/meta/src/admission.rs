//! Who gets room in a partition: bounds of what clients have it keep beside names.
//!
//! Invariants: what gives something back is never refused for want of room; nothing is kept of what is refused.

use std::sync::atomic::Ordering;

use cairn_rpc::Request;
use cairn_wire::Opcode;
use cairn_wire::meta::SetLockRequest;
use prost::Message;

use crate::header::Head;
use crate::leases::{CLIENT_SESSIONS_MAX, Full, LEASES_MAX, SESSION_BYTES_MAX};
use crate::partition::Partition;
use crate::server::MetaServer;

/// Sessions beyond those of which the manager has said that they were given that are let in: it says so once a second.
const SESSIONS_AHEAD: u64 = 64 << 10;
/// Holds of a partition, each some 200 bytes of every member's memory, and in its checkpoints.
const HOLDS_MAX: u64 = 4 << 20;
/// Ranges that are locked in a partition, each some 100 bytes, likewise.
const LOCKS_MAX: u64 = 4 << 20;
/// Of `SetLockRequest`: the range is given back.
const UNLOCK: u32 = 0;

impl MetaServer {
    /// Notes that a session was heard; why it, or another slot of it, gets no room. Nothing is kept of what is refused.
    pub(crate) fn admit(
        &self,
        partition: &Partition,
        opcode: Opcode,
        head: &Head,
        request: &Request<'_>,
    ) -> Result<(), String> {
        let (state, session) = (&partition.state, head.session);
        let below = self.common().sessions_below.load(Ordering::Relaxed);
        if below != 0 && session >= below.saturating_add(SESSIONS_AHEAD) {
            return Err(format!(
                "session {session} was not given by the manager yet, as far as {} has heard (below {below}); open one there, \
                 or repeat in a second",
                state.id
            ));
        }
        if opcode == Opcode::EndSession {
            // It needs none, and makes room.
            return Ok(());
        }
        if matches!(opcode, Opcode::Hold | Opcode::SetLock) {
            let (holds, locks) = {
                let namespace = state.namespace.read();
                (namespace.counters().holds, namespace.locks())
            };
            if let Some(full) = full(opcode, request.message, holds, locks) {
                let next = "which takes no more; give some back, or end sessions, then repeat";
                return Err(format!("{full} at {}, {next}", state.id));
            }
        }
        let memory = &self.common().memory;
        let has_place = || {
            let namespace = state.namespace.read();
            // Others wait for what it has answered, or leads; there are few of those.
            let gives_back = matches!(opcode, Opcode::Batch | Opcode::EndDelegations);
            namespace.has_slot(session, head.slot) || (gives_back && namespace.leads(session))
        };
        if memory.sessions_are_full() && !has_place() {
            return Err(format!(
                "the sessions of all partitions of {} take an eighth of its {} MiB for metadata, which is all they get; use fewer \
                 slots, or end sessions (those of clients that are silent end after {:?}), then repeat",
                self.node(),
                memory.max >> 20,
                self.timings().lease
            ));
        }
        let needs_room = state.session_bytes.load(Ordering::Relaxed) >= SESSION_BYTES_MAX;
        if needs_room && !has_place() {
            return Err(format!(
                "the sessions of {} take {} MiB of memory, which is all they get; use fewer slots, or end sessions (those of \
                 clients that are silent end after {:?}), then repeat",
                state.id,
                SESSION_BYTES_MAX >> 20,
                self.timings().lease
            ));
        }
        state.leases.hear(session, Some(request.peer.addr.ip()), self.common().coarse_now()).map_err(|full| match full {
            Full::Client(client) => format!(
                "{client} has {CLIENT_SESSIONS_MAX} sessions at {}, and one address gets no more; end some (those that are \
                 silent end after {:?}), or spread clients over more machines, then repeat",
                state.id,
                self.timings().lease
            ),
            Full::Partition => format!(
                "{} has {LEASES_MAX} sessions and takes no more; end some (those that are silent end after {:?}), then repeat",
                state.id,
                self.timings().lease
            ),
        })
    }
}

/// What the partition has as many of as it may have, and the request asks for more of.
fn full(opcode: Opcode, message: &[u8], holds: u64, locks: u64) -> Option<String> {
    match opcode {
        Opcode::Hold if holds >= HOLDS_MAX => {
            Some(format!("{HOLDS_MAX} files are held open for their writers, or without a name"))
        }
        Opcode::SetLock if locks >= LOCKS_MAX && !is_unlock(message) => {
            Some(format!("{LOCKS_MAX} ranges of files are locked"))
        }
        _ => None,
    }
}

fn is_unlock(message: &[u8]) -> bool {
    SetLockRequest::decode(message).is_ok_and(|request| request.r#type == UNLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One client with many sessions would fill the memory of all members with locks; or nobody could give one back.
    #[test]
    fn what_gives_back_is_let_in_when_all_is_taken() {
        let asked = |kind| SetLockRequest { r#type: kind, ..Default::default() }.encode_to_vec();
        assert!(full(Opcode::SetLock, &asked(1), 0, LOCKS_MAX - 1).is_none());
        assert!(full(Opcode::SetLock, &asked(1), 0, LOCKS_MAX).is_some());
        assert!(full(Opcode::SetLock, &asked(UNLOCK), 0, LOCKS_MAX).is_none());
        assert!(full(Opcode::Hold, &[], HOLDS_MAX, 0).is_some());
        assert!(full(Opcode::Release, &[], HOLDS_MAX, LOCKS_MAX).is_none());
    }
}
