//! Links between hosts: whether bytes of one reach another at this moment, and connections that break.
//!
//! Held bytes arrive late, when the link is let go, as after lost packets.

use crate::files::{Id, Kind};
use crate::world::{World, managed, with};
use std::collections::BTreeSet;

/// Links on which nothing arrives: from, to.
#[derive(Debug, Default)]
pub struct Links {
    pub held: BTreeSet<(usize, usize)>,
}

impl World {
    /// Whether nothing arrives at this end.
    pub fn is_held(&mut self, id: Id) -> bool {
        if self.links.held.is_empty() {
            return false;
        }
        let Some(object) = self.files.get(id) else { return false };
        let to = object.host;
        let Kind::Stream(stream) = &object.kind else { return false };
        let from = stream.peer_host;
        self.links.held.contains(&(from, to))
    }
}

/// Nothing from one host reaches another (which may be the same) from now on.
pub fn hold(from: usize, to: usize) {
    if managed() {
        with(|world| world.links.held.insert((from, to)));
    }
}

/// It does again, and what was held arrives.
pub fn let_go(from: usize, to: usize) {
    if !managed() {
        return;
    }
    with(|world| {
        if !world.links.held.remove(&(from, to)) {
            return;
        }
        let waiting = |(id, object): (&Id, &crate::files::Object)| match &object.kind {
            Kind::Stream(stream) if stream.held => Some(*id),
            _ => None,
        };
        let waiting: Vec<Id> = world.files.objects.iter().filter_map(waiting).collect();
        for id in waiting {
            if let Some(stream) = world.files.stream(id) {
                stream.held = false;
            }
            world.arrive(id);
        }
    });
}
