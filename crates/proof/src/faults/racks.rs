//! Power of a whole rack, for seeds whose data nodes are in racks: two of three copies of a column may be there.

use std::time::Duration;

use super::{Chaos, Kind, Planned};

impl Chaos {
    /// Power goes in a rack, or the processes there end; nothing while anything else is wrong with a data node. More
    /// places may be away then than the layout bears, so reads may be refused; what they have is whole.
    pub fn plan_for_rack(&mut self, step: usize, racks: usize) -> Vec<Planned> {
        let starting = |place: usize| !self.cluster.node(place).lock().is_registered();
        if !self.exposed().is_some_and(|exposed| exposed.is_empty()) || self.cluster.data_places().any(starting) {
            return Vec::new();
        }
        let rack = self.rng.index(racks);
        let kind = if self.rng.chance(0.5) { Kind::Power } else { Kind::Kill };
        let until = step + 1 + self.rng.index(3);
        let places = self.cluster.data_places().filter(|place| place % racks == rack);
        let plan = |place| Planned { place, kind, after: Duration::ZERO, until, spots: Vec::new() };
        let plans: Vec<Planned> = places.map(plan).collect();
        *self.begun.entry("racks").or_default() += 1;
        plans
    }
}
