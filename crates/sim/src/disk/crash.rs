//! What a crash does to everything that was not synced.
//!
//! Invariants: decisions come in a fixed order (files by number, sectors by offset, then the size, then names in
//! the order they were changed), so a seed or a mask always gives the same image.

use crate::rng::SimRng;

/// What happens to an unsynced sector at a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Lost,
    Kept,
    /// A prefix of the new content, then the old.
    Mixed,
    /// Noise where old and new differ.
    Garbage,
    /// Noise in the whole sector.
    WholeGarbage,
}

/// Relative weights of what a random crash does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CrashMix {
    /// Weight of a sector keeping its old content.
    pub lost: u32,
    /// Weight of a sector having its new content (or one it had between two syncs).
    pub kept: u32,
    /// Weight of a sector with a prefix of the new content before the old one.
    pub mixed: u32,
    /// Weight of noise in those bytes of a sector that were being changed.
    pub garbage: u32,
    /// Weight of noise in the whole sector, synced bytes included: a device without power-safe overwrite. Software
    /// that appends into a sector that holds synced bytes does not survive it.
    pub whole_garbage: u32,
    /// Of 100 files, how many lose or keep everything instead of sector by sector.
    pub whole_files: u32,
    /// Of 100 unsynced changes of names, how many are lost.
    pub names_lost: u32,
}

/// What a crash does to what was not synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CrashPolicy {
    /// The worst that a careful program expects: nothing unsynced survives.
    LoseAll,
    /// Everything unsynced survives.
    KeepAll,
    /// Bit i tells whether the i-th unsynced unit (see `SimDisk::unsynced`) survives; units beyond 64 are lost.
    /// For exhaustive tests of small cases.
    Subset(u64),
    /// By chance, with these weights.
    Random(CrashMix),
}

impl CrashPolicy {
    /// Sectors lost, kept or torn, in all combinations; sectors torn only where they were being changed.
    pub const fn random() -> Self {
        Self::Random(CrashMix {
            lost: 3,
            kept: 3,
            mixed: 1,
            garbage: 1,
            whole_garbage: 0,
            whole_files: 40,
            names_lost: 50,
        })
    }

    /// As [`random`](Self::random), on a device that may ruin a whole sector that was being written.
    pub const fn harsh() -> Self {
        Self::Random(CrashMix {
            lost: 3,
            kept: 3,
            mixed: 1,
            garbage: 1,
            whole_garbage: 1,
            whole_files: 30,
            names_lost: 50,
        })
    }
}

/// Takes the decisions of one crash.
pub(super) struct Decider<'a> {
    policy: CrashPolicy,
    pub(super) rng: &'a SimRng,
    unit: u32,
    whole_file: Option<Fate>,
}

impl<'a> Decider<'a> {
    pub(super) fn new(policy: CrashPolicy, rng: &'a SimRng) -> Self {
        Self { policy, rng, unit: 0, whole_file: None }
    }

    /// Starts with another file.
    pub(super) fn next_file(&mut self) {
        self.whole_file = match self.policy {
            CrashPolicy::Random(mix) if self.rng.range(0..100) < u64::from(mix.whole_files) => {
                Some(if self.rng.chance(0.5) { Fate::Lost } else { Fate::Kept })
            }
            _ => None,
        };
    }

    fn subset(&mut self, mask: u64) -> bool {
        let kept = self.unit < u64::BITS && (mask >> self.unit) & 1 == 1;
        self.unit += 1;
        kept
    }

    /// The fate of one unsynced sector.
    pub(super) fn sector(&mut self) -> Fate {
        match self.policy {
            CrashPolicy::LoseAll => Fate::Lost,
            CrashPolicy::KeepAll => Fate::Kept,
            CrashPolicy::Subset(mask) => {
                if self.subset(mask) {
                    Fate::Kept
                } else {
                    Fate::Lost
                }
            }
            CrashPolicy::Random(mix) => match self.whole_file {
                Some(fate) => fate,
                None => self.weighted(mix),
            },
        }
    }

    fn weighted(&self, mix: CrashMix) -> Fate {
        let weights = [
            (mix.lost, Fate::Lost),
            (mix.kept, Fate::Kept),
            (mix.mixed, Fate::Mixed),
            (mix.garbage, Fate::Garbage),
            (mix.whole_garbage, Fate::WholeGarbage),
        ];
        let total: u64 = weights.iter().map(|&(weight, _)| u64::from(weight)).sum();
        assert!(total > 0, "a crash mix needs a weight above zero");
        let mut draw = self.rng.range(0..total);
        for (weight, fate) in weights {
            if draw < u64::from(weight) {
                return fate;
            }
            draw -= u64::from(weight);
        }
        Fate::Lost
    }

    /// Which of several versions that one place had since the last sync reached the device, the last being the
    /// newest.
    pub(super) fn version(&self, versions: usize) -> usize {
        match self.policy {
            CrashPolicy::Random(_) if versions > 1 && self.rng.chance(0.5) => self.rng.index(versions),
            _ => versions - 1,
        }
    }

    /// The size after the crash. `seen` are the sizes since the last sync, the present one last.
    pub(super) fn size(&mut self, durable: u64, seen: &[u64]) -> u64 {
        let Some(&newest) = seen.last() else { return durable };
        match self.policy {
            CrashPolicy::LoseAll => durable,
            CrashPolicy::KeepAll => newest,
            CrashPolicy::Subset(mask) => {
                if self.subset(mask) {
                    newest
                } else {
                    durable
                }
            }
            CrashPolicy::Random(_) => match self.whole_file {
                Some(Fate::Lost) => durable,
                Some(_) => newest,
                None => match self.rng.range(0..4) {
                    0 => durable,
                    1 => newest,
                    2 => *self.rng.pick(seen),
                    // Growing files reach the device in pieces.
                    _ => self.rng.range(durable.min(newest)..newest.max(durable) + 1),
                },
            },
        }
    }

    /// Whether an unsynced change of names survives.
    pub(super) fn name_survives(&mut self) -> bool {
        match self.policy {
            CrashPolicy::LoseAll => false,
            CrashPolicy::KeepAll => true,
            CrashPolicy::Subset(mask) => self.subset(mask),
            CrashPolicy::Random(mix) => self.rng.range(0..100) >= u64::from(mix.names_lost),
        }
    }
}
