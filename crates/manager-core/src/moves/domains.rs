//! Groups whose members are worse spread over racks and hosts than this cluster allows: after a node came back in
//! another rack, or when a rack was added in which they would be safer.
//!
//! A rack (or host) has too many members of a group if its loss takes so many that the group could not be read; or, of
//! copies, if it has two of them although there are as many racks (hosts) as copies. Only groups that can get better
//! are named: where another rack has at least two members fewer. So growth alone moves nothing that is safe where it
//! is. Columns of stripe groups that lie as planned have their other copies in one rack on purpose: of those only what
//! the loss of the rack would take whole is named, and copies on one host.
use crate::items::Node;
use crate::pg::Pg;
use crate::state::State;
use cairn_types::{DiskId, MemberState, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// A failure domain: racks have no host.
type Domain<'a> = (&'a str, &'a str);

fn rack(node: &Node) -> Domain<'_> {
    (node.rack.as_str(), "")
}

fn host(node: &Node) -> Domain<'_> {
    (node.rack.as_str(), node.host.as_str())
}

fn node_of(state: &State, disk: DiskId) -> Option<&Node> {
    state.disk(disk).and_then(|disk| state.node(disk.node))
}

/// Racks and hosts with disks that may get more.
struct Open<'a> {
    racks: BTreeSet<Domain<'a>>,
    hosts: BTreeSet<Domain<'a>>,
}

impl<'a> Open<'a> {
    fn new(state: &'a State) -> Self {
        let nodes: BTreeSet<NodeId> =
            state.disks().filter(|disk| state.takes_more(disk.id)).map(|disk| disk.node).collect();
        let of =
            |domain: fn(&'a Node) -> Domain<'a>| nodes.iter().filter_map(|id| state.node(*id)).map(domain).collect();
        Self { racks: of(rack), hosts: of(host) }
    }

    /// A member that should be elsewhere.
    fn misplaced(&self, state: &'a State, pg: &Pg) -> Option<usize> {
        let on_purpose = lies_as_planned(state, pg);
        crowded(state, pg, &self.racks, rack, on_purpose).or_else(|| crowded(state, pg, &self.hosts, host, false))
    }
}

/// Of each group in use that is complete, and that nobody joins, a member that should be elsewhere.
pub fn misplaced(state: &State) -> Vec<(&Pg, usize)> {
    let open = Open::new(state);
    let pgs = state.pgs().filter(|pg| !pg.retired && pg.joining.is_none() && pg.is_complete());
    pgs.filter_map(|pg| Some((pg, open.misplaced(state, pg)?))).collect()
}

/// A member of the group should be elsewhere, whoever joins it.
pub(super) fn is_misplaced(state: &State, pg: &Pg) -> bool {
    Open::new(state).misplaced(state, pg).is_some()
}

/// A column whose primary is in the core rack, and the other copies in one other rack.
fn lies_as_planned(state: &State, pg: &Pg) -> bool {
    let Some(group) = pg.column.and_then(|column| state.stripe_group(column.group)) else { return false };
    let racks: Vec<&str> =
        pg.members.iter().filter_map(|m| node_of(state, m.disk)).map(|node| node.rack.as_str()).collect();
    let Some((core, others)) = racks.split_first() else { return false };
    racks.len() == pg.members.len()
        && *core == group.core_rack
        && others.iter().all(|rack| *rack == others[0] && *rack != group.core_rack)
}

/// `on_purpose`: two copies in a domain are right. A member in the fullest domain, if that has too many and another one
/// at least two fewer.
fn crowded<'a>(
    state: &'a State,
    pg: &Pg,
    open: &BTreeSet<Domain<'a>>,
    domain: fn(&'a Node) -> Domain<'a>,
    on_purpose: bool,
) -> Option<usize> {
    let mut members: BTreeMap<Domain<'a>, Vec<usize>> = BTreeMap::new();
    for (position, member) in pg.members.iter().enumerate() {
        members.entry(domain(node_of(state, member.disk)?)).or_default().push(position);
    }
    let fullest = members.values().max_by_key(|positions| positions.len())?;
    let count = fullest.len();
    let unreadable = pg.members.len() - count < pg.scheme.read_minimum();
    let twice = pg.scheme.is_replicated() && !on_purpose && count > 1 && open.len() >= pg.members.len();
    let better = open.iter().any(|domain| members.get(domain).map_or(0, Vec::len) + 2 <= count);
    let serves = |position: &&usize| pg.members[**position].state == MemberState::Serving;
    ((unreadable || twice) && better).then(|| fullest.iter().rev().find(serves).copied()).flatten()
}
