//! KeepAlive: the lease of a session is renewed at the partition that is asked, and at those that are named beside it.
//!
//! A client that works in many partitions asks each node once for all that the node leads, and not each partition.
//! Invariants: a partition that is named beside is renewed only if its leader is here and it would have been renewed
//! for this caller if it had been asked by itself; any other is left out, and asked by itself it says why. Not here:
//! who waits for what is wanted (`recall_waits`), what a silent session loses (`leases`).

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_meta_core::SessionState;
use cairn_rpc::Request;
use cairn_types::{ErrorCode, PartitionId};
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::meta::{AlsoRenew, AlsoRenewed, KeepAliveRequest, KeepAliveResponse};
use prost::Message;

use crate::header::Head;
use crate::opens::UNLINKED_MAX;
use crate::partition::Partition;
use crate::rights;
use crate::server::MetaServer;
use crate::service::flaw;

/// Partitions that are renewed beside the one that is asked. Those behind them are left out.
const ALSO_MAX: usize = 1024;

/// A session whose lease is renewed.
pub(crate) enum Renewed {
    /// What it is told.
    Now(KeepAliveResponse),
    /// It is told when there is something to tell, or when its time is over.
    Waits { request: KeepAliveRequest, lease_ms: u32 },
}

impl MetaServer {
    /// Renews a session's lease. One that made no mutation here has none, which is no fault.
    pub(crate) fn keep_alive(
        &self,
        (partition, open): (&Partition, &BTreeMap<PartitionId, Arc<Partition>>),
        head: &Head,
        request: &Request<'_>,
    ) -> Result<Renewed, WireError> {
        let Ok(mut asked) = KeepAliveRequest::decode(request.message) else {
            return Err(WireError::new(ErrorCode::BadRequest, "the message cannot be decoded"));
        };
        let also = std::mem::take(&mut asked.also);
        let state = self.renew(partition, head, request, &asked)?;
        let lease_ms = u32::try_from(self.timings().lease.as_millis()).unwrap_or(u32::MAX);
        // A session that is not known has nothing here that could be wanted.
        if also.is_empty() && asked.wait_ms > 0 && state == SessionState::Live {
            return Ok(Renewed::Waits { request: asked, lease_ms });
        }
        let mut answer = partition.state.tell_now(head.session, &asked, lease_ms);
        let mut room = UNLINKED_MAX.saturating_sub(answer.unlinked.len());
        for one in also.into_iter().take(ALSO_MAX) {
            let id = PartitionId(one.partition);
            let Some(other) = open.get(&id).filter(|_| one.partition != head.partition) else { continue };
            let Some(told) = self.renew_beside(other, head, request, one, lease_ms) else { continue };
            // What is left out is asked by itself, and told then.
            let Some(left) = room.checked_sub(told.unlinked.len()) else { continue };
            room = left;
            answer.also.push(AlsoRenewed { partition: id.0, answer: Some(told) });
        }
        Ok(Renewed::Now(answer))
    }

    fn renew_beside(
        &self,
        partition: &Partition,
        head: &Head,
        request: &Request<'_>,
        one: AlsoRenew,
        lease_ms: u32,
    ) -> Option<KeepAliveResponse> {
        let head = Head { partition: one.partition, ..*head };
        if let Some(limits) = request.peer.limits() {
            let id = partition.state.id;
            rights::judge(self.common(), limits, Opcode::KeepAlive, &[], (id, Some(partition))).ok()?;
        }
        let AlsoRenew { soft_holds, acknowledged, .. } = one;
        let asked = KeepAliveRequest { soft_holds, acknowledged, ..Default::default() };
        self.renew(partition, &head, request, &asked).ok()?;
        Some(partition.state.tell_now(head.session, &asked, lease_ms))
    }

    fn renew(
        &self,
        partition: &Partition,
        head: &Head,
        request: &Request<'_>,
        asked: &KeepAliveRequest,
    ) -> Result<SessionState, WireError> {
        if let Some(flaw) = flaw(Opcode::KeepAlive, head, partition) {
            return Err(flaw);
        }
        if let Err(not_leader) = partition.handle.read_permit() {
            return Err(self.common().not_leader(not_leader.hint));
        }
        let now = self.common().coarse_now();
        let known = partition.state.namespace.read().session_state(head.session);
        match known {
            SessionState::Ended => {
                let text = "the session has ended; what it held is released; open a new session";
                return Err(WireError::new(ErrorCode::SessionEnded, text));
            }
            SessionState::Live => {
                // One that is live and gets no lease here is not ended for it.
                let _ = partition.state.leases.hear(head.session, Some(request.peer.addr.ip()), now);
            }
            SessionState::Unknown => {
                let _ = partition.state.leases.touch(head.session, now);
            }
        }
        if asked.soft_holds {
            self.keep_opens_alive(partition, head, asked)?;
        }
        Ok(known)
    }
}
