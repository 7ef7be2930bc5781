//! A fault of a head, for steps that are about names alone.

use std::time::Duration;

use super::{Chaos, Planned};

impl Chaos {
    /// Perhaps a fault of one head. Data nodes have no part in what the step does.
    pub fn plan_for_names(&mut self, step: usize) -> Option<Planned> {
        if self.head_is_faulty() || !self.rng.chance(0.8) {
            return None;
        }
        let until = step + 1 + self.rng.index(3);
        let after = Duration::from_millis(self.rng.range(0..150));
        let (kind, until) = match self.cluster.only_head {
            true => self.pick_for_only_head(step, until),
            false => (self.pick_for_head(), until),
        };
        let heads = self.cluster.head_places();
        Some(Planned { place: *self.rng.pick(&heads), kind, after, until, spots: Vec::new() })
    }
}
