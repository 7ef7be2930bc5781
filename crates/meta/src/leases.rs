//! [`Leases`]: when the leader of a partition heard of each session last.
//!
//! Memory of one leader: a new one grants every live session a full lease from its start. Times are coarse, and a thread
//! remembers whom it has noted at which time, so a session costs a request next to nothing.
//!
//! Invariant: a session is named as expired only if nothing was heard of it for the whole lease while this leader led.
//! Not here: that a session has ended (a log entry, meta-core).

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

use cairn_types::Time;
use parking_lot::RwLock;

/// Sessions with a lease; mutations of others are refused. Twice as many as a partition has live sessions at most, for
/// sessions are spread over shards by chance and some never become live.
pub(crate) const LEASES_MAX: usize = 2 << 20;
const SHARDS: usize = 16;

/// Sessions that a thread remembers to have noted.
const NOTED: usize = 128;

/// Gives each state of each table a number of its own, so that what threads remember never outlives it.
static NEXT_GENERATION: AtomicU64 = AtomicU64::new(1);

/// A session that has a lease in this generation of its table, noted at this time.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Note {
    generation: u64,
    session: u64,
    heard: u64,
}

thread_local! {
    static NOTES: [Cell<Note>; NOTED] =
        const { [const { Cell::new(Note { generation: 0, session: 0, heard: 0 }) }; NOTED] };
}

/// Last heard times by session.
pub(crate) struct Leases {
    shards: [RwLock<HashMap<u64, AtomicU64>>; SHARDS],
    /// Changes whenever a session loses its lease.
    generation: AtomicU64,
}

impl Default for Leases {
    fn default() -> Self {
        Self { shards: Default::default(), generation: AtomicU64::new(NEXT_GENERATION.fetch_add(1, Relaxed)) }
    }
}

impl Leases {
    fn next_generation(&self) {
        self.generation.store(NEXT_GENERATION.fetch_add(1, Relaxed), Release);
    }

    fn shard(&self, session: u64) -> &RwLock<HashMap<u64, AtomicU64>> {
        // Ids ascend, so their low bits spread them.
        &self.shards[session as usize % SHARDS]
    }

    /// A session was heard; one that has no lease stays without.
    #[inline]
    pub(crate) fn touch(&self, session: u64, now: Time) -> bool {
        // Read before the table: a note made after the session lost its lease has the old number and counts for nothing.
        let note = Note { generation: self.generation.load(Acquire), session, heard: now.0 };
        NOTES.with(|notes| {
            let place = &notes[session as usize % NOTED];
            place.get() == note || {
                let has_lease = self.touch_shared(session, now);
                if has_lease {
                    place.set(note);
                }
                has_lease
            }
        })
    }

    fn touch_shared(&self, session: u64, now: Time) -> bool {
        match self.shard(session).read().get(&session) {
            Some(heard) => {
                // Stored only when it differs: readers of one session on several threads share the cache line.
                if heard.load(Relaxed) != now.0 {
                    heard.store(now.0, Relaxed);
                }
                true
            }
            None => false,
        }
    }

    /// A session was heard that makes a mutation or renews its lease: it gets a lease if it has none. `false` when
    /// there is no room for another one; then it must not become live.
    #[inline]
    pub(crate) fn hear(&self, session: u64, now: Time) -> bool {
        self.touch(session, now) || self.add(session, now)
    }

    fn add(&self, session: u64, now: Time) -> bool {
        let mut shard = self.shard(session).write();
        let room = shard.len() < LEASES_MAX / SHARDS;
        if room {
            shard.entry(session).or_insert_with(|| AtomicU64::new(now.0));
        }
        room
    }

    /// A new leader: all leases begin now.
    pub(crate) fn grant_all(&self, sessions: impl Iterator<Item = u64>, now: Time) {
        for shard in &self.shards {
            shard.write().clear();
        }
        self.next_generation();
        for session in sessions {
            self.add(session, now);
        }
    }

    /// This process stood still and may not have heard them: all leases begin anew.
    pub(crate) fn renew_all(&self, now: Time) {
        for shard in &self.shards {
            shard.read().values().for_each(|heard| heard.store(now.0, Relaxed));
        }
    }

    /// Forgets a session that nothing was heard of for a whole lease, unless it was heard just now.
    pub(crate) fn forget_silent(&self, session: u64, now: Time, lease: Duration) {
        let limit = (now - lease).0;
        let mut shard = self.shard(session).write();
        if shard.get(&session).is_some_and(|heard| heard.load(Relaxed) < limit) {
            shard.remove(&session);
            self.next_generation();
        }
    }

    /// A session ended: nothing is left to watch.
    pub(crate) fn forget(&self, session: u64) {
        self.shard(session).write().remove(&session);
        self.next_generation();
    }

    /// Sessions that nothing was heard of for a whole lease, at most `max`.
    pub(crate) fn expired(&self, now: Time, lease: Duration, max: usize) -> Vec<u64> {
        let limit = (now - lease).0;
        let mut expired = Vec::new();
        for shard in &self.shards {
            let shard = shard.read();
            let silent = shard.iter().filter(|(_, heard)| heard.load(Relaxed) < limit).map(|(session, _)| *session);
            expired.extend(silent.take(max - expired.len()));
            if expired.len() == max {
                break;
            }
        }
        expired.sort_unstable();
        expired
    }

    /// Sessions with a lease.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(20);
    const fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    /// A session that is in use would lose its files, or a dead one would hold them for ever.
    #[test]
    fn what_is_heard_lives_and_what_is_silent_expires() {
        let leases = Leases::default();
        leases.grant_all([1, 2, 17].into_iter(), at(100));
        assert!(leases.touch(1, at(115)));
        assert!(leases.hear(3, at(115)));
        assert_eq!(leases.expired(at(120), LEASE, 10), [0u64; 0], "the lease is not over yet");
        assert_eq!(leases.expired(at(121), LEASE, 10), [2, 17]);
        assert_eq!(leases.expired(at(121), LEASE, 1).len(), 1);
        leases.forget_silent(1, at(121), LEASE);
        assert!(leases.touch(1, at(115)), "it was heard in time");
        leases.forget(2);
        assert!(!leases.touch(2, at(115)), "what a thread remembers must not outlive the lease");
        assert_eq!(leases.expired(at(200), LEASE, 10), [1, 3, 17]);
        leases.renew_all(at(200));
        assert!(leases.expired(at(220), LEASE, 10).is_empty());
        leases.forget_silent(1, at(221), LEASE);
        assert_eq!(leases.expired(at(221), LEASE, 10), [3, 17]);
    }

    /// A reader with a made-up session could fill the memory.
    #[test]
    fn reading_gives_no_lease() {
        let leases = Leases::default();
        assert!(!leases.touch(5, at(1)));
        assert_eq!(leases.len(), 0);
    }

    /// A session that renewed with the old leader only would be ended by the new one at once.
    #[test]
    fn a_new_leader_grants_everybody_a_full_lease() {
        let leases = Leases::default();
        assert!(leases.hear(1, at(1)));
        leases.grant_all([1, 2].into_iter(), at(1000));
        assert!(leases.expired(at(1020), LEASE, 10).is_empty());
        assert_eq!(leases.len(), 2);
    }
}
