//! [`WantedDelegations`]: delegations that are in somebody's way, until their holders ended them. Keep-alives tell
//! them.
//!
//! Memory of one leader: whoever was refused comes again, and a new leader notes it then. There are no more of them
//! than a partition has delegations. Not here: who leads what, and what is refused (meta-core).

use std::collections::{BTreeMap, BTreeSet};

use cairn_meta_core::Namespace;
use parking_lot::Mutex;

/// See the module.
#[derive(Default)]
pub(crate) struct WantedDelegations {
    /// Numbers by session.
    sessions: Mutex<BTreeMap<u64, BTreeSet<u64>>>,
}

impl WantedDelegations {
    /// Those that a session is to end, with what came to be in the way of requests and entries since this was asked
    /// last. What has ended is forgotten.
    pub(crate) fn of(&self, session: u64, namespace: &Namespace) -> Vec<u64> {
        if !namespace.has_delegations() {
            return Vec::new();
        }
        let mut sessions = self.sessions.lock();
        for (holder, number) in namespace.take_wanted_delegations() {
            sessions.entry(holder).or_default().insert(number);
        }
        let Some(numbers) = sessions.get_mut(&session) else { return Vec::new() };
        numbers.retain(|number| namespace.is_led_by(session, *number));
        let wanted: Vec<u64> = numbers.iter().copied().collect();
        if wanted.is_empty() {
            sessions.remove(&session);
        }
        wanted
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
