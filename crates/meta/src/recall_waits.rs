//! [`RecallWaits`]: KeepAlive requests that are parked until there is something to tell their sessions, or their time
//! is over. So whoever waits for a recall waits for what its holder has to store, and for no round of keep-alives.
//!
//! Memory of one leader. No recall is missed: whoever takes in what is wanted looks here behind that, and a request is
//! parked while this is locked, with what was taken in until then in sight. The lease was renewed when a request came.
//! Bounded: one request of a live session (an earlier one is answered when another comes), [`WAITS_MAX`] in all, each
//! for [`WAIT_MAX`] at most. Not here: what is wanted (`wanted_delegations`, `wanted_leases`).

use std::collections::BTreeMap;
use std::time::Duration;

use cairn_meta_core::limits::DELEGATIONS_SESSION_MAX;
use cairn_rpc::Reply;
use cairn_types::Time;
use cairn_wire::meta::{KeepAliveRequest, KeepAliveResponse};
use parking_lot::Mutex;

use crate::opens::UNLINKED_MAX;
use crate::partition::PartitionState;

/// Requests parked at one partition. Beyond it they are answered at once.
const WAITS_MAX: usize = 64 << 10;
/// The longest that one request is parked.
const WAIT_MAX: Duration = Duration::from_secs(5);

struct Waiting {
    reply: Reply,
    request: KeepAliveRequest,
    lease_ms: u32,
    until: Time,
}

#[derive(Default)]
struct Table {
    by_session: BTreeMap<u64, Waiting>,
    /// The process ends: nobody waits for its connections to be idle.
    is_closed: bool,
}

/// See the module.
#[derive(Default)]
pub(crate) struct RecallWaits(Mutex<Table>);

impl PartitionState {
    /// What a session whose lease is renewed is told now.
    pub(crate) fn tell_now(&self, session: u64, request: &KeepAliveRequest, lease_ms: u32) -> KeepAliveResponse {
        self.tell_wanted();
        self.told(session, request, lease_ms)
    }

    /// Answers a KeepAlive of a session whose lease is renewed, now or when there is something to tell it.
    pub(crate) fn tell_or_wait(&self, session: u64, mut request: KeepAliveRequest, lease_ms: u32, reply: Reply) {
        self.tell_wanted();
        request.header = None;
        let now = self.common.coarse_now();
        let wait = Duration::from_millis(request.wait_ms.into()).min(WAIT_MAX);
        let mut table = self.recall_waits.0.lock();
        let answer = self.told(session, &request, lease_ms);
        let has_room = table.by_session.len() < WAITS_MAX && request.heard.len() <= DELEGATIONS_SESSION_MAX;
        if wait.is_zero() || table.is_closed || !has_room || has_news(&request, &answer) {
            drop(table);
            return reply.ok(&answer, ());
        }
        // No more is kept than there is to be told.
        request.heard = answer.delegations;
        let before = table.by_session.insert(session, Waiting { reply, request, lease_ms, until: now + wait });
        drop(table);
        if let Some(before) = before {
            self.answer(session, before);
        }
    }

    /// Takes in which delegations are wanted, and tells the sessions that wait for that.
    pub(crate) fn tell_wanted(&self) {
        let sessions = {
            let namespace = self.namespace.read();
            if !namespace.wants_delegations() {
                return;
            }
            self.wanted_delegations.take_in(&namespace, self.common.coarse_now())
        };
        self.tell(sessions);
    }

    /// There may be something to tell these sessions.
    pub(crate) fn tell(&self, sessions: impl IntoIterator<Item = u64>) {
        for session in sessions {
            let waiting = {
                let mut table = self.recall_waits.0.lock();
                let has_news = |one: &Waiting| has_news(&one.request, &self.told(session, &one.request, one.lease_ms));
                let is_told = table.by_session.get(&session).is_some_and(has_news);
                if is_told { table.by_session.remove(&session) } else { None }
            };
            if let Some(waiting) = waiting {
                self.answer(session, waiting);
            }
        }
    }

    /// Answers those whose time is over.
    pub(crate) fn expire_recall_waits(&self, now: Time) {
        let mut table = self.recall_waits.0.lock();
        let over: Vec<(u64, Waiting)> = table.by_session.extract_if(.., |_, one| one.until <= now).collect();
        drop(table);
        over.into_iter().for_each(|(session, waiting)| self.answer(session, waiting));
    }

    /// Another member leads: it is to be asked.
    pub(crate) fn end_recall_waits(&self) {
        let waiting = std::mem::take(&mut self.recall_waits.0.lock().by_session);
        waiting.into_values().for_each(|waiting| waiting.reply.err(self.common.not_leader(None)));
    }

    /// The process is about to end: who waits is answered, and nobody waits from now on.
    pub(crate) fn close_recall_waits(&self) {
        let waiting = {
            let mut table = self.recall_waits.0.lock();
            table.is_closed = true;
            std::mem::take(&mut table.by_session)
        };
        waiting.into_iter().for_each(|(session, waiting)| self.answer(session, waiting));
    }

    fn answer(&self, session: u64, waiting: Waiting) {
        let answer = self.told(session, &waiting.request, waiting.lease_ms);
        waiting.reply.ok(&answer, ());
    }

    /// What a session is told at this moment.
    fn told(&self, session: u64, request: &KeepAliveRequest, lease_ms: u32) -> KeepAliveResponse {
        let namespace = self.namespace.read();
        let wanted = self.wanted_leases.of(session, &namespace);
        let delegations = self.wanted_delegations.of(session, &namespace);
        let mut answer = KeepAliveResponse { lease_ms, wanted, delegations, waits: true, ..Default::default() };
        if request.soft_holds {
            let deaths = namespace.deaths_after(request.acknowledged, UNLINKED_MAX);
            (answer.index, answer.unlinked, answer.more) = (deaths.position, deaths.inodes, deaths.more);
        }
        answer
    }
}

/// Whether an answer says anything that its session has not heard.
fn has_news(request: &KeepAliveRequest, answer: &KeepAliveResponse) -> bool {
    let is_new = |number: &u64| !request.heard.contains(number);
    !answer.wanted.is_empty() || !answer.unlinked.is_empty() || answer.more || answer.delegations.iter().any(is_new)
}
