//! Where the members of a stripe group are, and what follows from that: whether it encodes in its core rack, and which
//! disk may take a member's place so that it still does.
//!
//! Nothing of this is stored. A member whose place another disk is about to get counts as being there already.
use super::StripeGroup;
use crate::pg::Pg;
use crate::state::State;
use cairn_placement::Seat;
use cairn_placement::ear::{EarShape, StripeSeats};
use cairn_types::{DiskId, NodeId, Scheme};
use std::collections::BTreeSet;

/// A disk of each node that could keep a parity.
pub(crate) fn able_nodes(state: &State) -> Vec<DiskId> {
    let mut known: BTreeSet<NodeId> = BTreeSet::new();
    let able = state.disks().filter(|disk| state.takes_more(disk.id) && known.insert(disk.node));
    able.map(|disk| disk.id).collect()
}

/// Members of columns, and nodes that parities could go to.
pub(crate) struct Seats {
    shape: EarShape,
    core: u32,
    /// Of each column, the primary first.
    columns: Vec<Vec<Seat>>,
    nodes: Vec<Seat>,
}

impl Seats {
    /// The number of the core rack, and nodes that parities could go to. `disk_at` says who is, or will be, at a
    /// position of a column, `seat` where a disk is. `None`: a column is gone, or there is no such shape.
    pub(crate) fn new(
        state: &State,
        group: &StripeGroup,
        (core, nodes): (u32, &[Seat]),
        disk_at: impl Fn(&Pg, usize) -> DiskId,
        mut seat: impl FnMut(DiskId) -> Seat,
    ) -> Option<Seats> {
        let columns: Vec<&Pg> = group.columns.iter().map(|pg| state.pg(*pg)).collect::<Option<_>>()?;
        let Scheme::Erasure { k, m } = group.later else { return None };
        let copies = columns.first()?.scheme.members();
        let shape = EarShape::new(copies, usize::from(k), usize::from(m), usize::from(group.rack_capacity)).ok()?;
        let mut members = |pg: &Pg| (0..pg.members.len()).map(|at| seat(disk_at(pg, at))).collect::<Vec<Seat>>();
        let columns = columns.into_iter().map(&mut members).collect();
        Some(Seats { shape, core, columns, nodes: nodes.to_vec() })
    }

    /// Who would keep what if it were encoded now. `None`: it does not encode in its core rack without moving anything
    /// afterwards.
    pub(crate) fn arrange(&self) -> Option<StripeSeats> {
        StripeSeats::arrange(self.shape, self.core, &self.columns, &self.nodes)
    }
}
