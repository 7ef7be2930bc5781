//! [`Openers`]: sessions that open files without a log entry, and which deaths each of them has acknowledged.
//!
//! Memory of one leader. A new one reclaims nothing that is deferred for a whole lease, in which every living session
//! says with a keep-alive (or an Open) what it has acknowledged.
//!
//! Invariants: a session is in the table before its Open is read; nothing is reclaimed beyond the least acknowledged
//! number of the table, nor beyond the position that was read before the table was looked at; the table takes nobody
//! between the decision to stop deferring and its outcome.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use cairn_types::Time;
use parking_lot::RwLock;

/// Sessions that use Open at one partition. Beyond it an Open is told to come again.
pub(crate) const OPENERS_MAX: usize = 1 << 20;

#[derive(Default)]
struct Table {
    sessions: HashMap<u64, Opener>,
    /// The leader is about to stop deferring.
    closing: bool,
    /// Nothing is reclaimed before.
    since: Time,
}

struct Opener {
    acknowledged: AtomicU64,
    heard: AtomicU64,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Openers {
    table: RwLock<Table>,
}

impl Openers {
    /// Notes that a session uses Open and what it has acknowledged; `initial` if it is new and has acknowledged nothing
    /// (0). False: not now, it is to come again.
    pub(crate) fn note(&self, session: u64, acknowledged: u64, initial: u64, now: Time) -> bool {
        {
            let table = self.table.read();
            if table.closing {
                return false;
            }
            if let Some(opener) = table.sessions.get(&session) {
                opener.acknowledged.fetch_max(acknowledged, Relaxed);
                if opener.heard.load(Relaxed) != now.0 {
                    opener.heard.store(now.0, Relaxed);
                }
                return true;
            }
        }
        let mut table = self.table.write();
        if table.closing || table.sessions.len() >= OPENERS_MAX {
            return false;
        }
        let first = if acknowledged == 0 { initial } else { acknowledged };
        let opener = Opener { acknowledged: AtomicU64::new(first), heard: AtomicU64::new(now.0) };
        table.sessions.entry(session).or_insert(opener).acknowledged.fetch_max(acknowledged, Relaxed);
        true
    }

    /// The session ended.
    pub(crate) fn forget(&self, session: u64) {
        let known = self.table.read().sessions.contains_key(&session);
        if known {
            self.table.write().sessions.remove(&session);
        }
    }

    /// A new leader, or none: nobody is known.
    pub(crate) fn reset(&self, now: Time) {
        *self.table.write() = Table { since: now, ..Table::default() };
    }

    /// This process stood still and may not have heard them: everybody gets a new lease.
    pub(crate) fn renew_all(&self, now: Time) {
        let mut table = self.table.write();
        table.since = now;
        table.sessions.values().for_each(|opener| opener.heard.store(now.0, Relaxed));
    }

    /// Forgets who fell silent; up to which death may be reclaimed. `position` was read before.
    pub(crate) fn limit(&self, position: u64, now: Time, lease: Duration) -> u64 {
        let silent = |opener: &Opener| now.since(Time(opener.heard.load(Relaxed))) > lease;
        let any_silent = self.table.read().sessions.values().any(silent);
        if any_silent {
            self.table.write().sessions.retain(|_, opener| !silent(opener));
        }
        let table = self.table.read();
        if now.since(table.since) <= lease {
            return 0;
        }
        table.sessions.values().map(|opener| opener.acknowledged.load(Relaxed)).fold(position, u64::min)
    }

    /// Nobody uses Open (since a lease, after a change of leaders): takes nobody until [`reopen`](Self::reopen).
    pub(crate) fn close_if_unused(&self, now: Time, lease: Duration) -> bool {
        let mut table = self.table.write();
        if !table.sessions.is_empty() || now.since(table.since) <= lease || table.closing {
            return false;
        }
        table.closing = true;
        true
    }

    /// It is decided whether deaths are deferred any more.
    pub(crate) fn reopen(&self) {
        self.table.write().closing = false;
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.table.read().sessions.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(20);
    const fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    /// A file would be reclaimed under a reader who has not heard of its death, or never.
    #[test]
    fn the_slowest_living_session_decides() {
        let openers = Openers::default();
        openers.reset(at(100));
        assert!(openers.note(1, 0, 50, at(110)) && openers.note(2, 70, 90, at(112)));
        assert_eq!(openers.limit(90, at(120), LEASE), 0, "others may live, a new leader waits");
        assert!(openers.note(1, 0, 85, at(121)), "a second first Open acknowledges nothing");
        assert_eq!(openers.limit(90, at(121), LEASE), 50);
        assert!(openers.note(1, 80, 90, at(121)) && openers.note(1, 60, 90, at(122)), "never backwards");
        assert_eq!(openers.limit(90, at(122), LEASE), 70);
        assert_eq!(openers.limit(90, at(133), LEASE), 80, "2 fell silent");
        assert_eq!(openers.len(), 1);
        assert_eq!(openers.limit(75, at(133), LEASE), 75, "what dies after the look is not meant");
        openers.forget(1);
        assert_eq!(openers.limit(90, at(133), LEASE), 90);
    }

    /// An Open between the decision to stop deferring and its outcome would not be protected.
    #[test]
    fn nobody_comes_in_while_deferring_ends() {
        let openers = Openers::default();
        openers.reset(at(100));
        assert!(!openers.close_if_unused(at(110), LEASE), "a new leader waits");
        assert!(openers.close_if_unused(at(121), LEASE));
        assert!(!openers.note(1, 5, 5, at(122)));
        openers.reopen();
        assert!(openers.note(1, 5, 5, at(122)));
        assert!(!openers.close_if_unused(at(130), LEASE));
    }
}
