//! [`Leases`]: when the leader of a partition heard of each session last.
//!
//! Memory of one leader: a new one grants every live session a full lease from its start. Times are coarse, and a
//! thread remembers whom it has noted at which time, so a session costs a request next to nothing.
//!
//! Invariant: a session is named as expired only if nothing was heard of it for the whole lease while this leader led.
//! Sessions are bounded: in all, in the memory that their slots take, and for each address that they come from, so that
//! no client takes what others need. What a new leader grants belongs to no address until the session ends. Not here:
//! that a session has ended (a log entry, meta-core).

use std::cell::Cell;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

use cairn_types::Time;
use parking_lot::{Mutex, RwLock};

/// Sessions with a lease; mutations of others are refused. Twice as many as a partition has live sessions at most, for
/// sessions are spread over shards by chance and some never become live.
pub(crate) const LEASES_MAX: usize = 2 << 20;
/// Sessions that one address has at a partition. Few in unit tests.
pub(crate) const CLIENT_SESSIONS_MAX: u32 = if cfg!(test) { 24 } else { 16 << 10 };
/// Memory of the live sessions of a partition with their slots and kept answers. Beyond it nothing is let into the log
/// that needs another slot. Little in unit tests.
pub(crate) const SESSION_BYTES_MAX: u64 = if cfg!(test) { 16 << 10 } else { 256 << 20 };
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

/// A session that is watched.
struct Lease {
    heard: AtomicU64,
    /// Who pays for it.
    client: Option<IpAddr>,
}

/// Why a session gets no lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Full {
    /// There are too many in all.
    Partition,
    /// This address has too many.
    Client(IpAddr),
}

/// Last heard times by session.
pub(crate) struct Leases {
    shards: [RwLock<HashMap<u64, Lease>>; SHARDS],
    /// Sessions of each address.
    clients: Mutex<HashMap<IpAddr, u32>>,
    /// Changes whenever a session loses its lease.
    generation: AtomicU64,
}

impl Default for Leases {
    fn default() -> Self {
        let shards = Default::default();
        Self { shards, clients: Mutex::default(), generation: AtomicU64::new(NEXT_GENERATION.fetch_add(1, Relaxed)) }
    }
}

impl Leases {
    fn next_generation(&self) {
        self.generation.store(NEXT_GENERATION.fetch_add(1, Relaxed), Release);
    }

    fn shard(&self, session: u64) -> &RwLock<HashMap<u64, Lease>> {
        // Ids ascend, so their low bits spread them.
        &self.shards[session as usize % SHARDS]
    }

    /// A session was heard; one that has no lease stays without.
    #[inline]
    pub(crate) fn touch(&self, session: u64, now: Time) -> bool {
        // Read before the table: a note made after the session lost its lease has the old number and counts for
        // nothing.
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
            Some(Lease { heard, .. }) => {
                // Stored only when it differs: readers of one session on several threads share the cache line.
                if heard.load(Relaxed) != now.0 {
                    heard.store(now.0, Relaxed);
                }
                true
            }
            None => false,
        }
    }

    /// A session was heard that makes a mutation or renews its lease: it gets a lease if it has none. An error when
    /// there is no room for another one; then it must not become live.
    #[inline]
    pub(crate) fn hear(&self, session: u64, client: Option<IpAddr>, now: Time) -> Result<(), Full> {
        if self.touch(session, now) { Ok(()) } else { self.add(session, client, now) }
    }

    fn add(&self, session: u64, client: Option<IpAddr>, now: Time) -> Result<(), Full> {
        let mut shard = self.shard(session).write();
        if shard.contains_key(&session) {
            return Ok(());
        }
        if shard.len() >= LEASES_MAX / SHARDS {
            return Err(Full::Partition);
        }
        if let Some(client) = client {
            let mut clients = self.clients.lock();
            let sessions = clients.entry(client).or_default();
            if *sessions >= CLIENT_SESSIONS_MAX {
                return Err(Full::Client(client));
            }
            *sessions += 1;
        }
        shard.insert(session, Lease { heard: AtomicU64::new(now.0), client });
        Ok(())
    }

    /// A lease was taken out of the table.
    fn removed(&self, lease: &Lease) {
        if let Some(client) = lease.client {
            let mut clients = self.clients.lock();
            if let Some(sessions) = clients.get_mut(&client) {
                *sessions -= 1;
                if *sessions == 0 {
                    clients.remove(&client);
                }
            }
        }
    }

    /// The address that a session came from, if it is known.
    pub(crate) fn client_of(&self, session: u64) -> Option<IpAddr> {
        self.shard(session).read().get(&session).and_then(|lease| lease.client)
    }

    /// Sessions up to this one that have a lease.
    pub(crate) fn up_to(&self, last: u64) -> Vec<u64> {
        let shards = self.shards.iter();
        shards
            .flat_map(|shard| shard.read().keys().copied().filter(|session| *session <= last).collect::<Vec<_>>())
            .collect()
    }

    /// A new leader: all leases begin now.
    pub(crate) fn grant_all(&self, sessions: impl Iterator<Item = u64>, now: Time) {
        for shard in &self.shards {
            shard.write().clear();
        }
        self.clients.lock().clear();
        self.next_generation();
        for session in sessions {
            // More than there is room for are live only where a build of before had no such bound; they end when they
            // say so.
            let _ = self.add(session, None, now);
        }
    }

    /// This process stood still and may not have heard them: all leases begin anew.
    pub(crate) fn renew_all(&self, now: Time) {
        for shard in &self.shards {
            shard.read().values().for_each(|lease| lease.heard.store(now.0, Relaxed));
        }
    }

    /// Forgets a session that nothing was heard of for a whole lease, unless it was heard just now.
    pub(crate) fn forget_silent(&self, session: u64, now: Time, lease: Duration) {
        let limit = (now - lease).0;
        let mut shard = self.shard(session).write();
        if shard.get(&session).is_some_and(|lease| lease.heard.load(Relaxed) < limit)
            && let Some(lease) = shard.remove(&session)
        {
            self.removed(&lease);
            self.next_generation();
        }
    }

    /// A session ended: nothing is left to watch.
    pub(crate) fn forget(&self, session: u64) {
        let lease = self.shard(session).write().remove(&session);
        if let Some(lease) = lease {
            self.removed(&lease);
        }
        self.next_generation();
    }

    /// Sessions that nothing was heard of for a whole lease, at most `max`.
    pub(crate) fn expired(&self, now: Time, lease: Duration, max: usize) -> Vec<u64> {
        let limit = (now - lease).0;
        let mut expired = Vec::new();
        for shard in &self.shards {
            let shard = shard.read();
            let silent =
                shard.iter().filter(|(_, lease)| lease.heard.load(Relaxed) < limit).map(|(session, _)| *session);
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
        assert_eq!(leases.hear(3, None, at(115)), Ok(()));
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

    /// One client could take the sessions of all, or be refused although those that it had are gone.
    #[test]
    fn an_address_has_a_bounded_number_of_sessions() {
        let (one, other) = (Some(IpAddr::from([10, 0, 0, 1])), Some(IpAddr::from([10, 0, 0, 2])));
        let leases = Leases::default();
        let first = 1000;
        let many = u64::from(CLIENT_SESSIONS_MAX);
        (first..first + many).for_each(|session| assert_eq!(leases.hear(session, one, at(1)), Ok(())));
        assert_eq!(leases.hear(5, one, at(1)), Err(Full::Client(IpAddr::from([10, 0, 0, 1]))));
        assert_eq!(leases.hear(first, one, at(1)), Ok(()), "those that are there go on");
        assert_eq!(leases.hear(5, other, at(1)), Ok(()));
        leases.forget(first);
        assert_eq!(leases.hear(6, one, at(30)), Ok(()));
        assert!(leases.hear(7, one, at(30)).is_err());
        leases.forget_silent(first + 1, at(30), LEASE);
        assert_eq!(leases.hear(7, one, at(30)), Ok(()));
        (1..first + many).for_each(|session| leases.forget(session));
        assert_eq!((leases.len(), leases.clients.lock().len()), (0, 0));
        leases.grant_all(1..100, at(40));
        assert_eq!(leases.len(), 99, "what a new leader grants is of nobody");
    }

    /// A session that renewed with the old leader only would be ended by the new one at once.
    #[test]
    fn a_new_leader_grants_everybody_a_full_lease() {
        let leases = Leases::default();
        assert_eq!(leases.hear(1, None, at(1)), Ok(()));
        leases.grant_all([1, 2].into_iter(), at(1000));
        assert!(leases.expired(at(1020), LEASE, 10).is_empty());
        assert_eq!(leases.len(), 2);
    }
}
