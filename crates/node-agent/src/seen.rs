//! [`Seen`]: the highest numbers that this node was told, or keeps on its disks.
//!
//! It tells them with each registration and heartbeat: a manager whose state was restored from a copy learns by them
//! that it is older than what it once gave. Invariant: they only rise while the process runs. Not here: what the
//! manager makes of them.

use cairn_wire::manager::{ClusterMap, SeenNumbers};

use crate::settings::Settings;

/// What was seen so far.
#[derive(Debug, Default)]
pub(crate) struct Seen(SeenNumbers);

/// Raises a number to the highest of some.
fn raise<T: Ord>(known: &mut T, seen: impl IntoIterator<Item = T>) {
    for one in seen {
        if one > *known {
            *known = one;
        }
    }
}

impl Seen {
    pub(crate) fn numbers(&self) -> SeenNumbers {
        self.0
    }

    pub(crate) fn term(&mut self, term: u64) {
        raise(&mut self.0.term, [term]);
    }

    pub(crate) fn registered(&mut self, incarnation: u64) {
        raise(&mut self.0.incarnation, [incarnation]);
    }

    /// Every session that was given has a smaller id.
    pub(crate) fn settings(&mut self, settings: &Settings) {
        raise(&mut self.0.session, settings.number("sessions_below").map(|below| below.saturating_sub(1)));
    }

    /// A map, whole or not.
    pub(crate) fn map(&mut self, map: &ClusterMap) {
        let seen = &mut self.0;
        raise(&mut seen.map_version, [map.version]);
        raise(&mut seen.incarnation, map.nodes.iter().map(|node| node.incarnation));
        raise(&mut seen.node, map.nodes.iter().map(|node| node.id));
        raise(&mut seen.disk, map.disks.iter().map(|disk| disk.id));
        raise(&mut seen.volume, map.volumes.iter().map(|volume| volume.id));
        raise(&mut seen.partition, map.partitions.iter().map(|partition| partition.id));
        raise(&mut seen.pg, map.pgs.iter().filter_map(|pg| pg.state.as_ref()).map(|state| state.pg));
    }

    /// What roles added to a registration.
    pub(crate) fn kept(&mut self, told: Option<&SeenNumbers>) {
        let Some(told) = told else { return };
        let seen = &mut self.0;
        raise(&mut seen.term, [told.term]);
        raise(&mut seen.map_version, [told.map_version]);
        raise(&mut seen.incarnation, [told.incarnation]);
        raise(&mut seen.session, [told.session]);
        raise(&mut seen.node, [told.node]);
        raise(&mut seen.disk, [told.disk]);
        raise(&mut seen.volume, [told.volume]);
        raise(&mut seen.partition, [told.partition]);
        raise(&mut seen.pg, [told.pg]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_wire::manager::{Node, Volume};

    /// A restored manager would not hear of what it once gave.
    #[test]
    fn numbers_only_rise() {
        let mut seen = Seen::default();
        let volume = |id| Volume { id, ..Volume::default() };
        let node = Node { id: 17, incarnation: 900, ..Node::default() };
        seen.map(&ClusterMap { version: 9, volumes: vec![volume(4)], nodes: vec![node], ..ClusterMap::default() });
        seen.map(&ClusterMap { version: 12, volumes: vec![volume(3)], ..ClusterMap::default() });
        seen.kept(Some(&SeenNumbers { pg: 7, volume: 2, term: 3, ..SeenNumbers::default() }));
        seen.term(2);
        seen.registered(800);
        let expected = SeenNumbers {
            term: 3,
            map_version: 12,
            incarnation: 900,
            node: 17,
            volume: 4,
            pg: 7,
            ..SeenNumbers::default()
        };
        assert_eq!(seen.numbers(), expected);
    }
}
