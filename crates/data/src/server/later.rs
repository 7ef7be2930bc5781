//! [`Later`]: what failed and is tried again without anybody asking, less and less often.
//!
//! Invariants: a thing is due at most once in its pause, which doubles with each failure up to [`PAUSE_MAX`]; no more
//! than [`THINGS_MAX`], or another bound, are remembered, further ones are left to whoever comes upon them again.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use cairn_types::Time;

/// Longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(300);
const THINGS_MAX: usize = 4096;

/// Things that failed, with when they are due and how often they failed.
pub(super) struct Later<K> {
    things: BTreeMap<K, (Time, u32)>,
    pause_min: Duration,
    max: usize,
}

impl<K: Ord + Copy> Later<K> {
    /// With this pause after the first failure.
    pub(super) fn new(pause_min: Duration) -> Self {
        Self::bounded(pause_min, THINGS_MAX)
    }

    /// The same, which remembers so many.
    pub(super) fn bounded(pause_min: Duration, max: usize) -> Self {
        Self { things: BTreeMap::new(), pause_min, max }
    }

    /// It failed; `true`: for the first time.
    pub(super) fn failed(&mut self, key: K, now: Time) -> bool {
        let first = !self.things.contains_key(&key);
        if first && self.things.len() >= self.max {
            return true;
        }
        let (at, tries) = self.things.entry(key).or_insert((now, 0));
        *tries = tries.saturating_add(1);
        *at = now + pause(self.pause_min, *tries);
        first
    }

    /// It is due now; `true`: it was not known.
    pub(super) fn put(&mut self, key: K, now: Time) -> bool {
        let new = !self.things.contains_key(&key);
        if new && self.things.len() < self.max {
            self.things.insert(key, (now, 0));
        }
        new
    }

    /// If it is known, it is due now, and its pauses begin anew.
    pub(super) fn hurry(&mut self, key: K, now: Time) {
        if let Some(thing) = self.things.get_mut(&key) {
            *thing = (now, 0);
        }
    }

    /// Whether it is remembered.
    pub(super) fn contains(&self, key: K) -> bool {
        self.things.contains_key(&key)
    }

    /// All, ascending.
    pub(super) fn keys(&self) -> impl Iterator<Item = &K> {
        self.things.keys()
    }

    /// Those in a range, ascending.
    pub(super) fn range(&self, range: RangeInclusive<K>) -> impl Iterator<Item = &K> {
        self.things.range(range).map(|(key, _)| key)
    }

    /// It is done, or nothing is to be done any more.
    pub(super) fn done(&mut self, key: K) {
        self.things.remove(&key);
    }

    /// Whether nothing is left to do.
    pub(super) fn is_empty(&self) -> bool {
        self.things.is_empty()
    }

    /// What is due, at most `max`. It is due again after another pause, unless its outcome is told before.
    pub(super) fn take_due(&mut self, now: Time, max: usize) -> Vec<K> {
        let mut due: Vec<(Time, K)> =
            self.things.iter().filter(|(_, (at, _))| *at <= now).map(|(key, (at, _))| (*at, *key)).collect();
        due.sort_unstable();
        due.truncate(max);
        for (_, key) in &due {
            if let Some((at, tries)) = self.things.get_mut(key) {
                *at = now + pause(self.pause_min, *tries);
            }
        }
        due.into_iter().map(|(_, key)| key).collect()
    }
}

fn pause(first: Duration, tries: u32) -> Duration {
    (first * (1 << (tries.max(1) - 1).min(16))).min(PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE_MIN: Duration = Duration::from_secs(1);

    /// Something that failed would never be tried again, or all the time, or fill the memory.
    #[test]
    fn failures_come_back_less_and_less_often() {
        let mut later = Later::new(PAUSE_MIN);
        let mut now = Time::default();
        later.failed(7, now);
        let mut pauses = Vec::new();
        let mut last = now;
        while pauses.len() < 12 {
            now = now + Duration::from_millis(500);
            if later.take_due(now, 10) == [7] {
                assert!(later.take_due(now, 10).is_empty(), "once a pause");
                pauses.push(now.since(last).as_secs());
                last = now;
                later.failed(7, now);
            }
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
        later.done(7);
        assert!(later.take_due(now + PAUSE_MAX * 2, 10).is_empty());
        assert!((0..10_000).all(|key| later.failed(key, now)) && !later.failed(5, now));
        assert_eq!(later.take_due(now + PAUSE_MIN, 10).len(), 10);
        assert_eq!(later.things.len(), THINGS_MAX);
    }
}
