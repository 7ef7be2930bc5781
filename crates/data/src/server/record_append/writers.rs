//! How many write records to a file, estimated by the primary of one of its open appends: each writer seen in the last
//! [`SEEN_FOR`] stands for as many as there are lanes over which it takes all to be spread. From that follows over how
//! many they should be.
//!
//! Bounds: [`WRITERS_MAX`] are noted; with so many the answer is the most in any case.

use std::collections::BTreeMap;
use std::time::Duration;

use cairn_types::Time;

const SEEN_FOR: Duration = Duration::from_secs(10);
/// Writers of one lane.
const LANE_WRITERS: u64 = 64;
const LANES_MAX: u32 = 16;
const WRITERS_MAX: usize = (LANE_WRITERS * LANES_MAX as u64) as usize;

#[derive(Default)]
pub(super) struct Writers {
    /// When each was seen last, and for how many it stands.
    seen: BTreeMap<u64, (Time, u32)>,
    total: u64,
}

impl Writers {
    pub(super) fn note(&mut self, writer: u64, lanes: u32, now: Time) {
        let lanes = lanes.clamp(1, LANES_MAX);
        if self.seen.len() >= WRITERS_MAX && !self.seen.contains_key(&writer) {
            return;
        }
        let before = self.seen.insert(writer, (now, lanes)).map_or(0, |(_, lanes)| lanes);
        self.total = self.total + u64::from(lanes) - u64::from(before);
    }

    pub(super) fn forget_old(&mut self, now: Time) {
        self.seen.retain(|_, (at, _)| now.since(*at) < SEEN_FOR);
        self.total = self.seen.values().map(|(_, lanes)| u64::from(*lanes)).sum();
    }

    /// Over so many lanes the file's writers should be spread.
    pub(super) fn lanes(&self) -> u32 {
        let lanes = self.total.div_ceil(LANE_WRITERS).clamp(1, LANES_MAX.into());
        (lanes as u32).next_power_of_two()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Thousands would share a chunk, a few be spread over sixteen, or dead ones be counted for ever.
    #[test]
    fn lanes_follow_from_the_writers_that_are_seen() {
        let mut writers = Writers::default();
        assert_eq!(writers.lanes(), 1);
        (0..64).for_each(|writer| (0..3).for_each(|_| writers.note(writer, 0, Time(0))));
        assert_eq!(writers.lanes(), 1);
        writers.note(64, 1, Time(5 * SECOND));
        assert_eq!(writers.lanes(), 2);
        // Those that are spread over four stand for four each.
        (0..33).for_each(|writer| writers.note(writer, 4, Time(6 * SECOND)));
        assert_eq!(writers.lanes(), 4, "33 for 4 each and 32 for one each");
        writers.forget_old(Time(12 * SECOND));
        assert_eq!((writers.seen.len(), writers.lanes()), (34, 4));
        writers.forget_old(Time(17 * SECOND));
        assert_eq!((writers.total, writers.lanes()), (0, 1));
        (0..5000).for_each(|writer| writers.note(writer, u32::MAX, Time(18 * SECOND)));
        assert_eq!((writers.seen.len(), writers.lanes()), (WRITERS_MAX, 16));
    }
}
