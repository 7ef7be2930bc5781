//! What writers found full a moment ago: the leader's memory only.
//!
//! A writer that meets a full group has it closed and another one made. How full disks are is known from heartbeats, up
//! to a second later: until then the others are made on the same disks, and are found full as well. Invariant: while
//! groups of a volume and class are found full, others are made at most every [`MADE_APART`]; else some hundreds would
//! be made in that second, and stay.
use cairn_types::{PgClass, Time, VolumeId};
use std::collections::BTreeMap;
use std::time::Duration;

/// More than heartbeats are apart; less than a writer waits who is told that nobody has room.
const MADE_APART: Duration = Duration::from_millis(1200);
/// So long after one was found full they still are.
const FULL_FOR: Duration = Duration::from_secs(10);

/// By volume and class, so bounded by these.
#[derive(Default, Debug)]
pub(crate) struct FoundFull(BTreeMap<(VolumeId, PgClass), Found>);

#[derive(Default, Debug)]
struct Found {
    full: Option<Time>,
    made: Option<Time>,
}

impl FoundFull {
    /// A group was found full.
    pub(crate) fn full(&mut self, volume: VolumeId, class: PgClass, now: Time) {
        self.0.entry((volume, class)).or_default().full = Some(now);
    }
    /// Others were made; it matters only behind one that was found full.
    pub(crate) fn made(&mut self, volume: VolumeId, class: PgClass, now: Time) {
        if let Some(found) = self.0.get_mut(&(volume, class)) {
            found.made = Some(now);
        }
    }
    /// Whether others may be made now.
    pub(crate) fn may_make(&self, volume: VolumeId, class: PgClass, now: Time) -> bool {
        let Some(Found { full: Some(full), made: Some(made) }) = self.0.get(&(volume, class)) else { return true };
        now.since(*full) >= FULL_FOR || now.since(*made) >= MADE_APART
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cluster that gets full would have hundreds of empty groups; or one that has room none for a while.
    #[test]
    fn others_are_made_when_loads_may_be_known() {
        let class = |copies| PgClass::from(cairn_types::Scheme::Replicated(copies));
        let (volume, r3, r2) = (VolumeId(1), class(3), class(2));
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
