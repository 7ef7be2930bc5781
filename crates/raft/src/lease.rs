//! Leases: when a leader may answer reads without asking anybody.
//!
//! Each append and heartbeat carries the leader's monotonic send time (a stamp), followers echo the newest stamp they
//! have seen from that leader in that term. A follower that echoes a stamp has promised, when it received it (so not
//! before the stamp), to vote for nobody else for [`CoreConfig::promise`](crate::CoreConfig::promise). So until the
//! quorum-th newest echoed stamp plus that time (less a margin for clocks of different speed) no other leader can have
//! been elected.
//!
//! What could break it, and why it does not:
//!
//! | danger | answer |
//! |---|---|
//! | a follower restarts and forgets its promise | it gives no votes for the length of a promise after its start |
//! | a late message of a higher term makes it forget its leader | the promise is kept here, apart from the term |
//! | leadership is handed over | the leader gives its lease up before, and for the rest of its term |
//! | ticks come in a burst after a pause | a member does not stand for election itself before its promise ends either |
//! | the leader's process was stopped | stamps are monotonic times, read anew at each check |

use std::collections::BTreeMap;
use std::time::Duration;

use cairn_types::Time;

/// What a follower promised.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Promise {
    /// To which leader.
    pub leader: u64,
    /// In which term.
    pub term: u64,
    /// Newest stamp seen from it in that term.
    pub stamp: u64,
    /// No votes for others before this.
    pub until: Time,
}

impl Promise {
    /// A leader of a term was heard.
    pub fn renew(&mut self, leader: u64, term: u64, stamp: u64, until: Time) {
        if (self.leader, self.term) != (leader, term) {
            *self = Self { leader, term, stamp: 0, until: self.until };
        }
        self.stamp = self.stamp.max(stamp);
        self.until = self.until.max(until);
    }

    /// The stamp to echo to a leader.
    pub fn echo(&self, leader: u64, term: u64) -> u64 {
        if (self.leader, self.term) == (leader, term) { self.stamp } else { 0 }
    }

    /// Whether a vote for a candidate is forbidden now.
    pub fn forbids(&self, candidate: u64, now: Time) -> bool {
        now < self.until && candidate != self.leader
    }
}

/// What a leader was promised.
#[derive(Debug, Clone, Default)]
pub(crate) struct Echoes {
    term: u64,
    stamps: BTreeMap<u64, u64>,
}

impl Echoes {
    /// Starts anew in a term.
    pub fn begin(&mut self, term: u64) {
        self.term = term;
        self.stamps.clear();
    }

    /// An answer of a term echoed a stamp. Stamps from the future are lies.
    pub fn note(&mut self, from: u64, term: u64, stamp: u64, now: Time) {
        if term == self.term && stamp != 0 && stamp <= now.0 {
            let newest = self.stamps.entry(from).or_default();
            *newest = (*newest).max(stamp);
        }
    }

    /// Until when a majority of the voters has promised; `None` when it has not.
    pub fn until(&self, own: u64, voters: &[u64], lease: Duration) -> Option<Time> {
        if voters == [own] {
            return Some(Time(u64::MAX));
        }
        let mut stamps: Vec<u64> = voters
            .iter()
            .map(|voter| if *voter == own { u64::MAX } else { self.stamps.get(voter).copied().unwrap_or(0) })
            .collect();
        stamps.sort_unstable_by(|a, b| b.cmp(a));
        match stamps.get(voters.len() / 2) {
            None | Some(0) => None,
            Some(&stamp) => Some(Time(stamp) + lease),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_nanos(100);

    /// A lease counted from too new a stamp would let two leaders answer at the same time.
    #[test]
    fn lease_counts_from_the_quorums_stamp() {
        let mut echoes = Echoes::default();
        echoes.begin(3);
        assert_eq!(echoes.until(1, &[1], LEASE), Some(Time(u64::MAX)));
        assert_eq!(echoes.until(1, &[1, 2, 3], LEASE), None);
        echoes.note(2, 3, 50, Time(60));
        assert_eq!(echoes.until(1, &[1, 2, 3], LEASE), Some(Time(150)));
        assert_eq!(echoes.until(1, &[1, 2, 3, 4, 5], LEASE), None);
        echoes.note(3, 3, 55, Time(60));
        assert_eq!(echoes.until(1, &[1, 2, 3], LEASE), Some(Time(155)));
        assert_eq!(echoes.until(1, &[1, 2, 3, 4, 5], LEASE), Some(Time(150)));
        echoes.note(3, 2, 59, Time(60));
        echoes.note(3, 3, 61, Time(60));
        assert_eq!(echoes.until(1, &[1, 2, 3], LEASE), Some(Time(155)), "other terms and the future do not count");
        assert_eq!(echoes.until(9, &[1, 2, 3], LEASE), Some(Time(150)), "a leader that has no vote needs two others");
    }

    /// A promise forgotten with a new term would elect a second leader within the first one's lease.
    #[test]
    fn promise_outlives_the_term() {
        let mut promise = Promise::default();
        promise.renew(1, 3, 7, Time(100));
        assert!(promise.forbids(2, Time(99)) && !promise.forbids(1, Time(99)) && !promise.forbids(2, Time(100)));
        promise.renew(2, 4, 9, Time(90));
        assert_eq!((promise.echo(2, 4), promise.echo(1, 3)), (9, 0));
        assert!(promise.forbids(3, Time(99)));
    }
}
