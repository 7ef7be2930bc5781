//! What is to be looked after, and when: one queue for chunks that are missing, blocks that are bad, members that
//! differ, seals that not all heard of. What fails comes again, less and less often, until it is done.
//!
//! Invariants: a thing is in it once; it leaves it only when it is done or of no use any more; at most [`CARE_MAX`] of
//! a kind are remembered, and comparisons find the others again.

use std::collections::BTreeMap;
use std::time::Duration;

use cairn_types::Time;

/// Most things of a kind.
pub const CARE_MAX: usize = 1024;

/// A thing to look after.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Care {
    /// As leader: members may differ in overwrites of a chunk.
    Equalise(u32),
    /// As leader: not every member heard that a chunk takes no more.
    Seal(u32),
    /// A chunk, or a part of it, is not here.
    Restore(u32),
    /// A block does not match its checksum.
    Heal(u32, u32),
}

impl Care {
    /// The chunk.
    pub fn index(self) -> u32 {
        match self {
            Self::Equalise(index) | Self::Seal(index) | Self::Restore(index) | Self::Heal(index, _) => index,
        }
    }

    fn kind(self) -> usize {
        match self {
            Self::Equalise(_) => 0,
            Self::Seal(_) => 1,
            Self::Restore(_) => 2,
            Self::Heal(..) => 3,
        }
    }

    /// Hangs on the epoch in which it was found: the next one compares everything anyway.
    fn of_epoch(self) -> bool {
        matches!(self, Self::Equalise(_) | Self::Seal(_))
    }
}

#[derive(Debug, Clone, Copy)]
struct Thing {
    due: Time,
    tries: u32,
    /// Somebody is at it.
    taken: bool,
}

/// The queue.
#[derive(Debug)]
pub struct Cares {
    things: BTreeMap<Care, Thing>,
    counts: [usize; 4],
    pause: Duration,
    pause_max: Duration,
}

impl Cares {
    /// An empty one, with the pause after a first failure and the longest.
    pub fn new(pause: Duration, pause_max: Duration) -> Self {
        Self { things: BTreeMap::new(), counts: [0; 4], pause, pause_max }
    }

    /// Something is to be looked after from then on; `false`: there is no room for it now.
    pub fn note(&mut self, care: Care, due: Time) -> bool {
        if let Some(thing) = self.things.get_mut(&care) {
            if !thing.taken && thing.tries == 0 {
                thing.due = thing.due.min(due);
            }
            return true;
        }
        // What this member leads is bounded by the chunks of the epoch.
        if self.counts[care.kind()] >= CARE_MAX && !care.of_epoch() {
            return false;
        }
        self.counts[care.kind()] += 1;
        self.things.insert(care, Thing { due, tries: 0, taken: false });
        true
    }

    /// The next one that is due.
    pub fn take(&mut self, now: Time, may: impl Fn(Care) -> bool) -> Option<Care> {
        let free = self.things.iter().filter(|(care, thing)| !thing.taken && thing.due <= now && may(**care));
        let care = free.min_by_key(|(care, thing)| (thing.due, **care)).map(|(care, _)| *care)?;
        if let Some(thing) = self.things.get_mut(&care) {
            thing.taken = true;
        }
        Some(care)
    }

    /// It is done, or of no use any more.
    pub fn done(&mut self, care: Care) -> bool {
        let known = self.things.remove(&care).is_some();
        self.counts[care.kind()] -= usize::from(known);
        known
    }

    /// It is to be tried again.
    pub fn again(&mut self, care: Care, now: Time) {
        if let Some(thing) = self.things.get_mut(&care) {
            let pause = self.pause * (1 << thing.tries.min(16));
            (thing.due, thing.tries, thing.taken) = (now + pause.min(self.pause_max), thing.tries + 1, false);
        }
    }

    /// A new epoch: what hangs on the old one is forgotten, whoever was at something is not any more.
    pub fn next_epoch(&mut self) {
        let old: Vec<Care> = self.things.keys().copied().filter(|care| care.of_epoch()).collect();
        old.into_iter().for_each(|care| {
            self.done(care);
        });
        self.things.values_mut().for_each(|thing| thing.taken = false);
    }

    /// Whether it is known.
    pub fn contains(&self, care: Care) -> bool {
        self.things.contains_key(&care)
    }

    /// Forgets blocks of a chunk that is gone, and that it was missing.
    pub fn gone(&mut self, index: u32) {
        let of: Vec<Care> = self.things.keys().copied().filter(|care| care.index() == index).collect();
        of.into_iter().filter(|care| !care.of_epoch()).for_each(|care| {
            self.done(care);
        });
    }

    /// When the next one is due.
    pub fn due(&self) -> Option<Time> {
        self.things.values().filter(|thing| !thing.taken).map(|thing| thing.due).min()
    }

    /// All, in order.
    pub fn all(&self) -> impl Iterator<Item = Care> + '_ {
        self.things.keys().copied()
    }

    /// Panics if what it owns does not hold.
    pub fn check_invariants(&self) {
        for kind in 0..4 {
            let count = self.things.keys().filter(|care| care.kind() == kind).count();
            assert_eq!(count, self.counts[kind], "things of kind {kind}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Something that failed would never be tried again, or all the time, or by two at once.
    #[test]
    fn what_fails_comes_less_and_less_often() {
        let mut cares = Cares::new(Duration::from_millis(400), Duration::from_secs(3));
        let (mut now, care) = (Time(0), Care::Restore(7));
        assert!(cares.note(care, now) && cares.note(care, now));
        let mut pauses = Vec::new();
        for _ in 0..5 {
            assert_eq!(cares.take(now, |_| true), Some(care));
            assert_eq!(cares.take(now, |_| true), None, "somebody is at it");
            cares.again(care, now);
            let due = cares.due().expect("it comes again");
            pauses.push(due.since(now).as_millis());
            now = due;
        }
        assert_eq!(pauses, [400, 800, 1600, 3000, 3000]);
        cares.check_invariants();
        cares.gone(7);
        assert!(cares.due().is_none() && !cares.done(care));
        cares.check_invariants();
    }

    /// What a new epoch compares anyway would be done twice; what it does not would be forgotten.
    #[test]
    fn a_new_epoch_forgets_what_hung_on_the_old_one() {
        let mut cares = Cares::new(Duration::from_millis(1), Duration::from_secs(1));
        for care in [Care::Equalise(1), Care::Seal(1), Care::Restore(2), Care::Heal(3, 4)] {
            assert!(cares.note(care, Time(0)));
        }
        cares.next_epoch();
        assert_eq!(cares.all().collect::<Vec<_>>(), [Care::Restore(2), Care::Heal(3, 4)]);
        cares.check_invariants();
    }
}
