//! Leases of sessions: when each one was last heard of. Lives on the leader only and is never logged; what follows from
//! it, the end of a session, is ([`crate::Namespace::apply`] of `ExpireSessions`).
//!
//! Invariant: a session expires no earlier than its lease after it was last heard of, on any leader: a new leader
//! grants a full lease to all.
use cairn_types::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// Sessions and when they were last heard of, on the leader's monotonic clock.
#[derive(Debug)]
pub struct LeaseTable {
    lease: Duration,
    last_seen: BTreeMap<u64, Time>,
}

impl LeaseTable {
    pub fn new(lease: Duration) -> Self {
        Self { lease, last_seen: BTreeMap::new() }
    }

    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// A new leader: everybody who is known gets a full lease.
    pub fn grant_all(&mut self, sessions: impl Iterator<Item = u64>, now: Time) {
        self.last_seen = sessions.map(|session| (session, now)).collect();
    }

    /// A request or a keep-alive of the session came in.
    pub fn touch(&mut self, session: u64, now: Time) {
        let seen = self.last_seen.entry(session).or_insert(now);
        *seen = (*seen).max(now);
    }

    pub fn forget(&mut self, session: u64) {
        self.last_seen.remove(&session);
    }

    /// Sessions whose lease is over, ascending, at most `max`. They stay until they are forgotten.
    pub fn expired(&self, now: Time, max: usize) -> Vec<u64> {
        let over = |seen: Time| now.since(seen) > self.lease;
        self.last_seen.iter().filter(|(_, seen)| over(**seen)).map(|(session, _)| *session).take(max).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_expires_only_a_full_lease_after_it_was_heard_of() {
        let second = |s: u64| Time(s * 1_000_000_000);
        let mut leases = LeaseTable::new(Duration::from_secs(30));
        leases.grant_all([1, 2].into_iter(), second(100));
        leases.touch(2, second(120));
        leases.touch(2, second(110));
        assert_eq!(leases.expired(second(130), 10), Vec::<u64>::new());
        assert_eq!(leases.expired(second(131), 10), [1]);
        assert_eq!(leases.expired(second(151), 10), [1, 2]);
        leases.forget(1);
        assert_eq!(leases.expired(second(151), 10), [2]);
    }
}
