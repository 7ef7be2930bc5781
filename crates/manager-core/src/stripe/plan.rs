//! Which stripe groups to make: pure planning by the leader, from state and soft loads.
//!
//! A volume has as many columns of a class as it would have groups of that scheme ([`crate::plan::target`]), in whole
//! stripe groups, and one for each rack that can be a core rack: so writers in every rack find one of their own. A rack
//! holds as few shards of a stripe as the racks of the cluster allow, with those that are down counted in: groups that
//! are made in an outage survive what others do, or are not made.
//!
//! Not here: what is done where none can be made (the manager makes groups of no class then).
use super::STRIPE_LEVEL;
use crate::apply::GROUPS_MAX;
use crate::command::{Disks, StripeGroupOf};
use crate::config::Key;
use crate::items::DiskState;
use crate::plan::{candidates_for, need, target};
use crate::soft::Soft;
use crate::state::State;
use cairn_placement::ear::{EarRefusal, EarShape};
use cairn_placement::{Chooser, Domains};
use cairn_types::{DiskId, NodeId, PgClass, Scheme, VolumeId};
use std::collections::{BTreeMap, BTreeSet};

/// Whether files of this class are to be written to stripe groups.
pub fn is_wanted(state: &State, class: PgClass) -> bool {
    class.later.is_some() && state.level() >= STRIPE_LEVEL && state.config().number(Key::StripeGroups) == 1
}

/// Disks that are part of the cluster, by rack: whether their nodes are up or not.
fn racks(state: &State, domains: &mut Domains) -> BTreeMap<u32, BTreeSet<NodeId>> {
    let mut racks: BTreeMap<u32, BTreeSet<NodeId>> = BTreeMap::new();
    for disk in state.disks().filter(|disk| disk.state == DiskState::InService && !state.is_drained(disk.id)) {
        if let Some(node) = state.node(disk.node) {
            racks.entry(domains.rack(&node.rack)).or_default().insert(node.id);
        }
    }
    racks
}

/// The shape of new stripe groups: the safest that the racks of this cluster can hold.
fn shape_in(state: &State, class: PgClass, domains: &mut Domains) -> Result<EarShape, EarRefusal> {
    let (Scheme::Replicated(copies), Some(Scheme::Erasure { k, m })) = (class.scheme, class.later) else {
        return Err(EarRefusal::EmptyShape);
    };
    let racks = racks(state, domains);
    let nodes = racks.into_iter().map(|(rack, nodes)| (rack, nodes.len())).collect();
    EarShape::safest(usize::from(copies), usize::from(k), usize::from(m), &nodes)
}

/// Columns of a class that a volume should have: as many as it would have groups, in whole stripe groups, and one
/// stripe group for each rack.
pub(crate) fn columns_wanted(state: &State, class: PgClass) -> usize {
    let Some(Scheme::Erasure { k, .. }) = class.later else { return 0 };
    let k = usize::from(k);
    let racks = racks(state, &mut Domains::new()).len();
    let most = (state.config().number(Key::PgsPerVolumeMax) as usize / k).max(1);
    target(state, class.scheme).div_ceil(k).max(racks).clamp(1, most) * k
}

/// Stripe groups that a volume lacks, as far as their number goes.
fn missing(state: &State, volume: VolumeId, class: PgClass) -> usize {
    let Some(Scheme::Erasure { k, .. }) = class.later else { return 0 };
    let need = need(state, volume, class);
    // A part of a stripe group is of no use; but with no complete column there are to be some.
    if need.complete == 0 { need.missing.div_ceil(usize::from(k)) } else { need.missing / usize::from(k) }
}

/// Stripe groups to make now, as many as go into one command; none if there are enough, or there is no room. The error
/// says why this cluster has none.
pub fn plan(
    state: &State,
    soft: &Soft,
    volume: VolumeId,
    class: PgClass,
    seed: u64,
) -> Result<Vec<StripeGroupOf>, EarRefusal> {
    let mut domains = Domains::new();
    let missing = missing(state, volume, class);
    if missing == 0 || state.volume(volume).is_none_or(|v| v.deleted) {
        return Ok(Vec::new());
    }
    let shape = shape_in(state, class, &mut domains)?;
    let candidates = candidates_for(state, soft, volume, &mut domains);
    let mut chooser = Chooser::new(candidates, seed);
    let mut groups = Vec::new();
    while groups.len() < missing.min((GROUPS_MAX / shape.k()).max(1)) {
        let plan = match chooser.choose_stripe_group(&shape) {
            Ok(plan) => plan,
            Err(_) if !groups.is_empty() => break,
            Err(refusal) => return Err(refusal),
        };
        let rack_of =
            |disk: DiskId| state.disk(disk).and_then(|disk| state.node(disk.node)).map(|node| node.rack.clone());
        let primary = plan.columns.first().and_then(|column| column.members.first());
        let Some(core_rack) = primary.and_then(|disk| rack_of(*disk)) else { break };
        let disks = |members: Vec<DiskId>| members.into_iter().map(DiskId::get).collect();
        let columns = plan.columns.into_iter().map(|column| Disks { disks: disks(column.members), full: Vec::new() });
        let rack_capacity = shape.rack_capacity() as u32;
        groups.push(StripeGroupOf { core_rack, rack_capacity, columns: columns.collect() });
    }
    Ok(groups)
}

/// Whether [`plan`] might make any.
pub fn is_needed(state: &State, volume: VolumeId, class: PgClass) -> bool {
    missing(state, volume, class) > 0
}
