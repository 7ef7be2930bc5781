//! [`WantedDelegations`]: delegations that are in somebody's way, until their holders ended them. Keep-alives tell
//! them ([`recall_waits`](crate::recall_waits)). One that is wanted for too long is ended by the leader
//! ([`WantedDelegations::overdue`]): a holder that goes on to renew its session, and does not end it, would keep
//! everybody else out for ever.
//!
//! Memory of one leader: whoever was refused comes again, and a new leader notes it then, and counts from then. There
//! are no more of them than a partition has delegations. Not here: who leads what, and what is refused (meta-core).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cairn_meta_core::Namespace;
use cairn_types::Time;
use parking_lot::Mutex;

/// See the module.
#[derive(Default)]
pub(crate) struct WantedDelegations {
    /// By session: numbers, and since when each is wanted.
    sessions: Mutex<Sessions>,
}

type Sessions = BTreeMap<u64, BTreeMap<u64, Time>>;

impl WantedDelegations {
    /// Takes in what came to be in the way of requests and entries since the last time: the sessions that lead it.
    pub(crate) fn take_in(&self, namespace: &Namespace, now: Time) -> BTreeSet<u64> {
        let mut sessions = self.sessions.lock();
        let wanted = namespace.take_wanted_delegations();
        for (holder, number) in &wanted {
            sessions.entry(*holder).or_default().entry(*number).or_insert(now);
        }
        wanted.into_iter().map(|(holder, _)| holder).collect()
    }

    /// Those that a session is to end. What has ended is forgotten.
    pub(crate) fn of(&self, session: u64, namespace: &Namespace) -> Vec<u64> {
        if !namespace.has_delegations() {
            return Vec::new();
        }
        let mut sessions = self.sessions.lock();
        let Some(numbers) = sessions.get_mut(&session) else { return Vec::new() };
        numbers.retain(|number, _| namespace.is_led_by(session, *number));
        let wanted: Vec<u64> = numbers.keys().copied().collect();
        if wanted.is_empty() {
            sessions.remove(&session);
        }
        wanted
    }

    /// Sessions with those of their delegations that are wanted for longer than this, and have not ended.
    pub(crate) fn overdue(&self, namespace: &Namespace, now: Time, bound: Duration) -> Vec<(u64, u64)> {
        if !namespace.has_delegations() {
            return Vec::new();
        }
        let mut sessions = self.sessions.lock();
        let mut overdue = Vec::new();
        sessions.retain(|session, numbers| {
            numbers.retain(|number, _| namespace.is_led_by(*session, *number));
            let late = numbers.iter().filter(|(_, since)| now.since(**since) > bound);
            overdue.extend(late.map(|(number, _)| (*session, *number)));
            !numbers.is_empty()
        });
        overdue
    }

    /// This process stood still, and heard nothing: all are wanted from now on.
    pub(crate) fn renew_all(&self, now: Time) {
        self.sessions.lock().values_mut().flat_map(BTreeMap::values_mut).for_each(|since| *since = now);
    }

    /// The session ended, and its delegations with it.
    pub(crate) fn forget(&self, session: u64) {
        self.sessions.lock().remove(&session);
    }

    /// Another member leads, or this one from now on.
    pub(crate) fn clear(&self) {
        self.sessions.lock().clear();
    }
}
