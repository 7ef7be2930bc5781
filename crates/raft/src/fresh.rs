//! [`Freshness`]: as of when a member that does not lead has everything that was acknowledged.
//!
//! A follower puts its own monotonic time into its answers. The leader sends the newest of these stamps back with its
//! appends and heartbeats, together with its commit index, but only while it holds its lease: then nothing beyond that
//! index was acknowledged by anybody when it sent this, which was after it had heard the stamp. So once the follower
//! has applied up to that index, its state has all that was acknowledged before the stamp.
//!
//! Invariants: both times are read from one clock, and a message that was long on its way, or lay in a stopped process,
//! makes nothing look newer than it is. Not here: who may be answered from such a state (the roles).

use std::collections::BTreeMap;

use cairn_types::Time;

/// What both sides remember.
#[derive(Debug, Clone, Default)]
pub(crate) struct Freshness {
    /// Leader: its term, and the newest stamp of each member's answers in it.
    term: u64,
    stamps: BTreeMap<u64, u64>,
    /// Follower: the state is as new as the stamp once it has this index.
    waiting: Option<(u64, Time)>,
    /// Newest stamp that counts.
    fresh: Option<Time>,
}

impl Freshness {
    /// Leads a new term.
    pub fn begin(&mut self, term: u64) {
        self.term = term;
        self.stamps.clear();
    }

    /// A member's answer of a term had a stamp.
    pub fn note(&mut self, from: u64, term: u64, stamp: u64) {
        if term == self.term && stamp != 0 {
            let newest = self.stamps.entry(from).or_default();
            *newest = (*newest).max(stamp);
        }
    }

    /// The stamp that goes back to a member; 0: none.
    pub fn stamp_of(&self, to: u64, term: u64) -> u64 {
        if term == self.term { self.stamps.get(&to).copied().unwrap_or(0) } else { 0 }
    }

    /// The leader sent a stamp of this member back, with its commit index.
    pub fn told(&mut self, index: u64, stamp: u64, now: Time, applied: u64) {
        // From the future: of an earlier life of this machine, or a lie.
        if stamp == 0 || stamp > now.0 {
            return;
        }
        self.caught_up(applied);
        // One at a time: under steady load a later one would always be ahead of what is applied.
        if self.waiting.is_none_or(|(waited, _)| index < waited) {
            self.waiting = Some((index, Time(stamp)));
            self.caught_up(applied);
        }
    }

    /// The member leads at this moment and has everything.
    pub fn leads(&mut self, now: Time) {
        self.waiting = None;
        self.fresh = self.fresh.max(Some(now));
    }

    /// The newest stamp as of which nothing is missing, with this much applied.
    pub fn as_of(&mut self, applied: u64) -> Option<Time> {
        self.caught_up(applied);
        self.fresh
    }

    fn caught_up(&mut self, applied: u64) {
        if let Some((_, stamp)) = self.waiting.take_if(|(index, _)| *index <= applied) {
            self.fresh = self.fresh.max(Some(stamp));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A member that lacks entries would call its state new, or one under load would never.
    #[test]
    fn counts_from_the_stamp_once_everything_of_then_is_applied() {
        let mut fresh = Freshness::default();
        assert_eq!(fresh.as_of(9), None);
        fresh.told(10, 100, Time(150), 9);
        assert_eq!(fresh.as_of(9), None, "entry 10 was acknowledged before");
        fresh.told(20, 160, Time(170), 9);
        assert_eq!(fresh.as_of(10), Some(Time(100)), "not the stamp of what is not applied yet");
        fresh.told(20, 160, Time(170), 10);
        assert_eq!(fresh.as_of(20), Some(Time(160)));
        fresh.told(20, 120, Time(180), 20);
        assert_eq!(fresh.as_of(20), Some(Time(160)), "an older message makes nothing older");
        fresh.told(20, 999, Time(190), 20);
        fresh.told(20, 0, Time(190), 20);
        assert_eq!(fresh.as_of(20), Some(Time(160)), "neither the future nor nothing counts");
        fresh.told(u64::MAX, 181, Time(190), 20);
        fresh.told(20, 182, Time(190), 20);
        assert_eq!(fresh.as_of(20), Some(Time(182)), "an absurd index is not waited for");
        fresh.leads(Time(200));
        assert_eq!(fresh.as_of(20), Some(Time(200)));
    }

    /// A stamp of another term may have been heard by a leader that was deposed since.
    #[test]
    fn a_leader_gives_back_stamps_of_its_term() {
        let mut fresh = Freshness::default();
        fresh.begin(3);
        fresh.note(2, 3, 50);
        fresh.note(2, 3, 40);
        fresh.note(5, 2, 70);
        assert_eq!((fresh.stamp_of(2, 3), fresh.stamp_of(5, 3), fresh.stamp_of(2, 4)), (50, 0, 0));
        fresh.begin(4);
        assert_eq!(fresh.stamp_of(2, 4), 0);
    }
}
