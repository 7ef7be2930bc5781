//! The floor below which sessions count as ended: who lives in other partitions is spared.
//!
//! A partition remembers ended sessions one by one. When they are many its leader asks all partitions of the volume
//! which of the older half have not ended there, and logs a floor that spares those (`TakeSessions`): a mount lives for
//! weeks, and may come to a partition only after many thousand younger sessions have ended there.
//!
//! Invariants: a floor is logged only when all have answered; what has ended here is not spared, so it is never
//! unknown again. A session that no partition has heard of yet is older by thousands than those of today, and has
//! nothing that it could lose. Not here: what a floor does (meta-core), how a new partition learns of it (`begin`).

use std::collections::BTreeSet;
use std::time::Duration;

use cairn_meta_core::SessionState;
use cairn_meta_core::limits::SPARED_SESSIONS_MAX;
use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::meta::{EndedSessionsRequest, EndedSessionsResponse, TakeSessions};
use tokio::time::sleep;

use crate::across::{Peers, header};
use crate::config::MetaTimings;
use crate::partition::{Partition, PartitionState};

/// For an answer of some hundred KiB.
const DEADLINE: Duration = Duration::from_secs(5);

/// Raises the floor when it is due, until the task is ended.
pub(crate) async fn run(partition: &Partition, peers: &Peers, timings: &MetaTimings) {
    let state = &partition.state;
    loop {
        state.pause(timings.reclaim_idle).await;
        let wanted = state.namespace.read().floor_wanted();
        let Some(floor) = wanted.filter(|_| state.leading_term().is_some()) else { continue };
        if let Err(error) = raise(partition, peers, floor, timings.map_rounds).await {
            tracing::debug!(partition = %state.id, %error, "ended sessions are remembered one by one; asking others will be repeated");
        }
        sleep(timings.lease).await;
    }
}

async fn raise(partition: &Partition, peers: &Peers, floor: u64, map_rounds: u64) -> Result<(), WireError> {
    let state = &partition.state;
    let mut told = not_ended(state, floor);
    if state.across.is_one_of_several() {
        state.common.fresh_map(map_rounds).await?;
        for other in peers.partitions(state.volume).into_iter().filter(|other| *other != state.id) {
            let header = Some(header(partition, other));
            let request = EndedSessionsRequest { header, partition: state.id.get(), live_up_to: floor };
            let answer: EndedSessionsResponse = peers.call(other, Opcode::EndedSessions, &request, DEADLINE).await?;
            let Some(sessions) = answer.sessions.filter(|_| answer.live_only) else {
                let text = format!("the leader of {other} is of a build that does not tell who lives there");
                return Err(WireError::new(ErrorCode::Unavailable, text));
            };
            told.floor = told.floor.min(sessions.floor);
            told.live.extend(sessions.live);
        }
    }
    let live: BTreeSet<u64> = told.live.into_iter().filter(|session| *session <= told.floor).collect();
    if told.floor <= state.namespace.read().sessions_floor() {
        let text = "too many sessions live up to the floor; it is not raised";
        return Err(WireError::new(ErrorCode::Overloaded, text));
    }
    let (floor, spared) = (told.floor, live.len());
    let request = TakeSessions { floor, ended: Vec::new(), live: live.into_iter().collect() };
    partition.propose_own(Opcode::TakeSessions, &request).await?;
    tracing::info!(partition = %state.id, floor, spared, "sessions up to the floor have ended, but those that are spared");
    Ok(())
}

/// Who lives here up to a session, or up to the floor of the answer, and who renews a lease without having changed
/// anything. Who is spared here lives elsewhere, and is told there: else all would spare him for ever.
pub(crate) fn not_ended(state: &PartitionState, last: u64) -> TakeSessions {
    let mut live = {
        let namespace = state.namespace.read();
        let mut live = namespace.sessions_live_up_to(last);
        let is_ended = |session: &u64| namespace.session_state(*session) == SessionState::Ended;
        live.extend(state.leases.up_to(last).into_iter().filter(|session| !is_ended(session)));
        live
    };
    let mut floor = last;
    if let Some(beyond) = live.iter().nth(SPARED_SESSIONS_MAX).copied() {
        live.retain(|session| *session < beyond);
        floor = beyond - 1;
    }
    TakeSessions { floor, ended: Vec::new(), live: live.into_iter().collect() }
}
