//! What `cairn admin pg` shows of columns of stripe groups: what was planned, and what follows from where the members
//! are now (`cairn_placement::ear`), which nobody stores.
use cairn_client::view::{ClusterView, ColumnView, PgView};
use cairn_placement::ear::{EarShape, StripeSeats};
use cairn_placement::{Domains, Seat};
use cairn_types::{NodeId, Scheme, StripeGroupId};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// A column and its stripe group.
pub(super) struct Standing {
    column: ColumnView,
    /// Columns that the stripe group has.
    columns: usize,
    rack_failures: usize,
    /// `None`: encoding it would read across racks, or move something afterwards.
    kept: Option<Kept>,
}

/// Who would keep what if it were encoded now.
struct Kept {
    /// The disk of this column whose copy stays.
    survivor: u32,
    parity_nodes: Vec<u32>,
}

/// The stripe groups of a map, each arranged once however many of its columns are shown.
pub(super) struct Standings<'a> {
    view: &'a ClusterView,
    columns: BTreeMap<StripeGroupId, Vec<&'a PgView>>,
    arranged: RefCell<BTreeMap<StripeGroupId, Option<Rc<StripeSeats>>>>,
}

impl<'a> Standings<'a> {
    pub(super) fn new(view: &'a ClusterView) -> Self {
        let mut columns: BTreeMap<StripeGroupId, Vec<&PgView>> = BTreeMap::new();
        for pg in view.pgs.values() {
            if let Some(column) = &pg.column {
                columns.entry(column.group).or_default().push(pg);
            }
        }
        columns.values_mut().for_each(|pgs| pgs.sort_by_key(|pg| pg.column.as_ref().map(|column| column.position)));
        Self { view, columns, arranged: RefCell::default() }
    }

    /// `None`: the group is no column.
    pub(super) fn of(&self, pg: &PgView) -> Option<Standing> {
        let column = pg.column.clone()?;
        let Scheme::Erasure { k, m } = column.later else { return None };
        let capacity = column.rack_capacity as usize;
        let shape = EarShape::new(pg.scheme.members(), usize::from(k), usize::from(m), capacity).ok();
        let known = self.arranged.borrow().get(&column.group).cloned();
        let arranged = known.unwrap_or_else(|| {
            let made = shape.and_then(|shape| self.arrange(&column, shape)).map(Rc::new);
            self.arranged.borrow_mut().insert(column.group, made.clone());
            made
        });
        let kept = arranged.and_then(|arranged| {
            let own = arranged.columns.get(column.position as usize)?.survivor;
            let survivor = pg.members.get(own)?.0;
            Some(Kept { survivor, parity_nodes: arranged.parities.iter().map(|seat| seat.node.get()).collect() })
        });
        let rack_failures = shape.map_or(0, |shape| shape.rack_failures());
        Some(Standing { column, columns: usize::from(k), rack_failures, kept })
    }

    fn arrange(&self, column: &ColumnView, shape: EarShape) -> Option<StripeSeats> {
        let view = self.view;
        let mut domains = Domains::new();
        let core = domains.rack(&column.core_rack);
        let mut seat = |disk: u32| {
            let node = view.disks.get(&disk).and_then(|disk| view.nodes.get(&disk.node))?;
            let (rack, host) = domains.host(&node.rack, &node.host);
            Some(Seat { node: NodeId(node.id), rack, host })
        };
        // One more is about to take the place of another.
        let members =
            |pg: &PgView| pg.members.iter().take(pg.scheme.members()).map(|(disk, _)| *disk).collect::<Vec<u32>>();
        let columns = self.columns.get(&column.group)?;
        let seats = columns.iter().map(|pg| members(pg).into_iter().map(&mut seat).collect::<Option<Vec<Seat>>>());
        let seats: Vec<Vec<Seat>> = seats.collect::<Option<_>>()?;
        let is_up =
            |disk: &&cairn_client::map::Disk| disk.is_in_service() && view.nodes.get(&disk.node).is_some_and(|n| n.up);
        let mut known = BTreeSet::new();
        let up = view.disks.values().filter(is_up).filter(|disk| known.insert(disk.node));
        let nodes: Vec<Seat> = up.filter_map(|disk| seat(disk.id)).collect();
        StripeSeats::arrange(shape, core, &seats, &nodes)
    }
}

impl Standing {
    pub(super) fn json(&self) -> Value {
        let ColumnView { group, position, later, core_rack, rack_capacity } = &self.column;
        json!({
            "group": group.get(), "column": position, "columns": self.columns, "later": later.to_string(),
            "core_rack": core_rack, "rack_capacity": rack_capacity, "rack_failures": self.rack_failures,
            "stage": "filling", "in_rack": self.kept.is_some(), "survivor": self.kept.as_ref().map(|kept| kept.survivor),
            "parity_nodes": self.kept.as_ref().map(|kept| &kept.parity_nodes),
        })
    }

    pub(super) fn lines(&self) -> [String; 2] {
        let ColumnView { group, position, later, core_rack, rack_capacity } = &self.column;
        let survives = match self.rack_failures {
            0 => "no whole rack may".into(),
            1 => "one rack may".into(),
            n => format!("{n} racks may"),
        };
        let stripe = format!(
            "stripe      {group}, filling: column {position} of {} for {later}, core rack {core_rack}; at most {rack_capacity} in a \
             rack, so {survives} fail when it is encoded",
            self.columns
        );
        let encodes = match &self.kept {
            Some(Kept { survivor, parity_nodes }) => {
                let nodes: Vec<String> = parity_nodes.iter().map(|node| format!("n{node}")).collect();
                format!(
                    "encodes     in its core rack: the copy of d{survivor} stays, parity goes to {}",
                    nodes.join(", ")
                )
            }
            None => "encodes     across racks: its members lie otherwise than planned".into(),
        };
        [stripe, encodes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_client::map::{Disk, Node};
    use cairn_types::{Epoch, MemberState, PgId};

    /// Three racks of two nodes with a disk each; disk and node i are in rack r(i ÷ 2).
    fn view(columns: &[[u32; 3]]) -> ClusterView {
        let mut view = ClusterView::default();
        for id in 0..6 {
            let (rack, host) = (format!("r{}", id / 2), format!("h{id}"));
            view.nodes.insert(id, Node { id, rack, host, up: true, ..Node::default() });
            view.disks.insert(id, Disk { id, node: id, ..Disk::default() });
        }
        let later = Scheme::Erasure { k: 3, m: 2 };
        for (position, disks) in (0..).zip(columns) {
            let column =
                ColumnView { group: StripeGroupId(4), position, later, core_rack: "r0".into(), rack_capacity: 2 };
            let pg = PgView {
                id: PgId(position + 1),
                volume: 1,
                scheme: Scheme::Replicated(3),
                epoch: Epoch(1),
                members: disks.iter().map(|disk| (*disk, MemberState::Serving)).collect(),
                writable: true,
                free_bytes: 0,
                column: Some(column),
            };
            view.pgs.insert(pg.id.0, pg);
        }
        view
    }

    /// An operator would believe that nothing crosses racks where it does, or the other way round.
    #[test]
    fn what_follows_from_the_members_is_said() {
        let good = view(&[[0, 2, 3], [1, 2, 3], [0, 4, 5]]);
        let standing = Standings::new(&good).of(&good.pgs[&2]).expect("a column");
        let [stripe, encodes] = standing.lines();
        assert!(stripe.contains("sg4, filling: column 1 of 3 for rs-3-2, core rack r0"), "{stripe}");
        assert!(stripe.contains("at most 2 in a rack, so one rack may fail"), "{stripe}");
        assert!(encodes.contains("in its core rack: the copy of d"), "{encodes}");
        let json = standing.json();
        assert_eq!((&json["group"], &json["in_rack"], &json["rack_failures"]), (&json!(4), &json!(true), &json!(1)));
        assert!([2, 3].contains(&json["survivor"].as_u64().expect("a disk")), "{json}");
        let moved = view(&[[0, 2, 3], [4, 2, 3], [0, 4, 5]]);
        let standing = Standings::new(&moved).of(&moved.pgs[&2]).expect("a column");
        assert!(standing.lines()[1].contains("across racks"), "its primary is in another rack");
        let lacking = view(&[[0, 2, 3], [1, 2, 3]]);
        assert_eq!(Standings::new(&lacking).of(&lacking.pgs[&1]).expect("a column").json()["in_rack"], json!(false));
        let mut plain = good.pgs[&1].clone();
        plain.column = None;
        assert!(Standings::new(&good).of(&plain).is_none());
    }
}
