//! What writers found full a moment ago: the leader's memory only.
//!
//! A writer that meets a full group has it closed and another one made. How full disks are is known from heartbeats, up
//! to a second later: until then the others are made on the same disks, and are found full as well. Invariant: while
//! groups of a volume and scheme are found full, others are made at most every [`MADE_APART`]; else some hundreds would
//! be made in that second, and stay.
use cairn_types::{Scheme, Time, VolumeId};
use std::collections::BTreeMap;
use std::time::Duration;

/// More than heartbeats are apart; less than a writer waits who is told that nobody has room.
const MADE_APART: Duration = Duration::from_millis(1200);
/// So long after one was found full they still are.
const FULL_FOR: Duration = Duration::from_secs(10);

/// By volume and scheme, so bounded by these.
#[derive(Default, Debug)]
pub(crate) struct FoundFull(BTreeMap<(VolumeId, Scheme), Found>);

#[derive(Default, Debug)]
struct Found {
    full: Option<Time>,
    made: Option<Time>,
}

impl FoundFull {
    /// A group was found full.
    pub(crate) fn full(&mut self, volume: VolumeId, scheme: Scheme, now: Time) {
        self.0.entry((volume, scheme)).or_default().full = Some(now);
    }
    /// Others were made; it matters only behind one that was found full.
    pub(crate) fn made(&mut self, volume: VolumeId, scheme: Scheme, now: Time) {
        if let Some(found) = self.0.get_mut(&(volume, scheme)) {
            found.made = Some(now);
        }
    }
    /// Whether others may be made now.
    pub(crate) fn may_make(&self, volume: VolumeId, scheme: Scheme, now: Time) -> bool {
        let Some(Found { full: Some(full), made: Some(made) }) = self.0.get(&(volume, scheme)) else { return true };
        now.since(*full) >= FULL_FOR || now.since(*made) >= MADE_APART
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cluster that gets full would have hundreds of empty groups; or one that has room none for a while.
    #[test]
    fn others_are_made_when_loads_may_be_known() {
        let (volume, r3, r2) = (VolumeId(1), Scheme::Replicated(3), Scheme::Replicated(2));
        let at = |millis: u64| Time(millis * 1_000_000);
        let mut found = FoundFull::default();
        found.made(volume, r3, at(1000));
        assert!(found.may_make(volume, r3, at(1001)), "nobody found one full");
        found.full(volume, r3, at(1010));
        assert!(found.may_make(volume, r3, at(1010)), "in its place");
        found.made(volume, r3, at(1010));
        found.full(volume, r3, at(1011));
        assert!(!found.may_make(volume, r3, at(1020)));
        assert!(found.may_make(volume, r2, at(1020)) && found.may_make(VolumeId(2), r3, at(1020)), "others");
        assert!(found.may_make(volume, r3, at(2210)));
        found.made(volume, r3, at(2210));
        found.full(volume, r3, at(2300));
        assert!(!found.may_make(volume, r3, at(3300)));
        // Much later: that was something else.
        found.made(volume, r3, at(20_000));
        assert!(found.may_make(volume, r3, at(20_001)));
    }
}
