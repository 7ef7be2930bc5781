//! The erasure group into which a stripe group is encoded: its data shard i is on a disk that has a copy of column i,
//! its parities are where [`seats`](super::seats) puts them. It is an ordinary group of the later scheme, made when
//! somebody encodes; nothing ties it to the columns but where its members are. If those of the columns have moved on,
//! another one is made, and the old one keeps what it has.
//!
//! Not here: who encodes, and what (`client`).
use super::seats::{Seats, able_nodes};
use super::{SHARDS_LEVEL, StripeGroup};
use crate::command::Disks;
use crate::config::Key;
use crate::pg::Pg;
use crate::soft::Soft;
use crate::state::State;
use cairn_placement::{Domains, Seat};
use cairn_types::{DiskId, NodeId, PgId, Scheme, StripeGroupId, VolumeId};

/// What there is of it.
#[derive(Clone, PartialEq, Debug)]
pub enum ShardsPlan {
    There(PgId),
    Make(Scheme, Disks),
}

/// The erasure group of a stripe group, or who would be in it; the error says why it cannot be encoded in its core rack
/// now.
pub fn plan(state: &State, soft: &Soft, volume: VolumeId, id: StripeGroupId) -> Result<ShardsPlan, String> {
    if state.level() < SHARDS_LEVEL || state.config().number(Key::StripeGroups) != 1 {
        return Err(format!(
            "stripe groups are encoded from feature level {SHARDS_LEVEL} on, and while stripe_groups is on"
        ));
    }
    let group = state.stripe_group(id).filter(|group| group.volume == volume);
    let group = group.ok_or_else(|| format!("{volume} has no {id}"))?;
    let columns: Option<Vec<&Pg>> = group.columns.iter().map(|pg| state.pg(*pg).filter(|pg| !pg.retired)).collect();
    let columns = columns.ok_or_else(|| format!("{id} has lost a column"))?;
    let fits = |pg: &&Pg| {
        let beside = |(pg, column): (&crate::pg::Member, &&Pg)| column.members.iter().any(|copy| copy.disk == pg.disk);
        pg.volume == volume
            && pg.scheme == group.later
            && pg.is_writable()
            && pg.is_complete()
            && pg.members.iter().zip(&columns).all(beside)
    };
    // What was made for another stripe group may fit, but send more parity out of the core rack than has to leave it.
    let outside = |disks: &mut dyn Iterator<Item = DiskId>| {
        let rack =
            |disk: DiskId| state.disk(disk).and_then(|disk| state.node(disk.node)).map(|node| node.rack.as_str());
        disks.filter(|disk| rack(*disk) != Some(group.core_rack.as_str())).count()
    };
    let k = columns.len();
    let there = state.pgs().filter(fits);
    let there = there.map(|pg| (outside(&mut pg.members.iter().skip(k).map(|member| member.disk)), pg.id)).min();
    let wanted = members(state, soft, group, &columns);
    match (there, wanted) {
        (Some((sent, pg)), wanted)
            if wanted.as_ref().is_none_or(|disks| sent <= outside(&mut disks.iter().skip(k).copied())) =>
        {
            Ok(ShardsPlan::There(pg))
        }
        (_, Some(disks)) => {
            let disks = disks.into_iter().map(DiskId::get).collect();
            Ok(ShardsPlan::Make(group.later, Disks { disks, full: Vec::new() }))
        }
        (_, None) => Err(format!(
            "{id} does not encode in its core rack {:?} now: its members lie otherwise, or too few nodes have room",
            group.core_rack
        )),
    }
}

fn members(state: &State, soft: &Soft, group: &StripeGroup, columns: &[&Pg]) -> Option<Vec<DiskId>> {
    let mut domains = Domains::new();
    let core = domains.rack(&group.core_rack);
    let mut seat = |disk: DiskId| {
        let node = state.disk(disk).and_then(|disk| state.node(disk.node));
        let Some(node) = node else { return Seat { node: NodeId(0), rack: u32::MAX, host: u32::MAX } };
        let (rack, host) = domains.host(&node.rack, &node.host);
        Seat { node: node.id, rack, host }
    };
    // Those with most room first: parities go there.
    let free = |disk: DiskId| state.free_above_reserve(disk, soft);
    let mut able = able_nodes(state);
    able.sort_by_key(|disk| (std::cmp::Reverse(free(*disk)), *disk));
    let nodes: Vec<Seat> = able.into_iter().map(&mut seat).collect();
    let arranged = Seats::new(state, group, (core, &nodes), |pg, at| pg.members[at].disk, &mut seat)?.arrange()?;
    let survivors = arranged.columns.iter().zip(columns).map(|(column, pg)| pg.members[column.survivor].disk);
    let mut disks: Vec<DiskId> = survivors.collect();
    if !disks.iter().all(|disk| state.takes_more(*disk)) {
        return None;
    }
    for parity in &arranged.parities {
        let here =
            state.disks().filter(|disk| disk.node == parity.node && state.takes_more(disk.id)).map(|disk| disk.id);
        disks.push(here.max_by_key(|disk| (free(*disk), std::cmp::Reverse(*disk)))?);
    }
    Some(disks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::tests::ok;
    use crate::command::{ActivateLevel, Command, CreatePgs};
    use crate::stripe::tests::{make, rack_of, racks, set};
    use std::collections::BTreeSet;

    /// Shards would be where no copy is, so that data crosses racks to be encoded; or two of them be lost with a node.
    #[test]
    fn data_shards_are_where_copies_are() {
        let mut state = racks(&[2, 2, 2]);
        make(&mut state, "r3>rs-4-2");
        let group = state.stripe_groups().next().expect("made").clone();
        let soft = Soft::default();
        let planned = |state: &State| plan(state, &soft, VolumeId(1), group.id);
        assert!(planned(&state).expect_err("too early").contains("feature level 20"));
        ok(&mut state, Command::ActivateLevel(ActivateLevel { level: SHARDS_LEVEL }));
        let Ok(ShardsPlan::Make(scheme, disks)) = planned(&state) else { panic!("{:?}", planned(&state)) };
        assert_eq!((scheme, disks.disks.len()), (group.later, 6));
        for (pg, disk) in group.columns.iter().zip(&disks.disks) {
            let pg = state.pg(*pg).expect("made");
            assert!(pg.disks().any(|copy| copy.get() == *disk), "{} has no copy on d{disk}", pg.id);
        }
        let nodes: BTreeSet<NodeId> = disks.disks.iter().map(|d| state.disk(DiskId(*d)).expect("known").node).collect();
        assert_eq!(nodes.len(), 6);
        for rack in ["r0", "r1", "r2"] {
            let held = disks.disks.iter().filter(|disk| rack_of(&state, DiskId(**disk)) == rack).count();
            assert!(held <= usize::from(group.rack_capacity), "{held} in {rack}");
        }
        let command = CreatePgs { volume: 1, scheme: u32::from(scheme.code()), groups: vec![disks] };
        ok(&mut state, Command::CreatePgs(command));
        let there = planned(&state).expect("made");
        assert!(matches!(there, ShardsPlan::There(_)), "{there:?}");
        set(&mut state, "stripe_groups", "off");
        assert!(planned(&state).is_err());
    }

    /// Parity of every chunk would cross racks that need not, because what another stripe group encodes into happens to
    /// have a copy of each column, too.
    #[test]
    fn what_sends_more_out_of_the_core_rack_is_not_taken() {
        let mut state = racks(&[3, 3, 3, 3]);
        make(&mut state, "r3>rs-4-2");
        ok(&mut state, Command::ActivateLevel(ActivateLevel { level: SHARDS_LEVEL }));
        let group = state.stripe_groups().next().expect("made").clone();
        let soft = Soft::default();
        let Ok(ShardsPlan::Make(scheme, best)) = plan(&state, &soft, VolumeId(1), group.id) else { panic!("none yet") };
        let node = |disk: DiskId| state.disk(disk).expect("known").node;
        let is_outside = |disk: &DiskId| rack_of(&state, *disk) != group.core_rack;
        // Parities elsewhere, and so many data shards in the core rack.
        let elsewhere = |inside: usize| {
            let mut nodes = BTreeSet::new();
            let mut disks: Vec<u32> = Vec::new();
            for (position, pg) in group.columns.iter().enumerate() {
                let fits = |disk: &DiskId| is_outside(disk) == (position >= inside);
                let mut copies = state.pg(*pg).expect("made").disks().filter(fits);
                disks.push(copies.find(|disk| nodes.insert(node(*disk))).expect("a copy there").get());
            }
            let others = state.disks().map(|disk| disk.id).filter(is_outside).filter(|disk| nodes.insert(node(*disk)));
            disks.extend(others.take(2).map(DiskId::get));
            Disks { disks, full: Vec::new() }
        };
        let groups = vec![elsewhere(0), elsewhere(usize::from(group.rack_capacity))];
        let code = u32::from(scheme.code());
        ok(&mut state, Command::CreatePgs(CreatePgs { volume: 1, scheme: code, groups }));
        assert_eq!(plan(&state, &soft, VolumeId(1), group.id), Ok(ShardsPlan::Make(scheme, best.clone())));
        ok(&mut state, Command::CreatePgs(CreatePgs { volume: 1, scheme: code, groups: vec![best.clone()] }));
        let Ok(ShardsPlan::There(pg)) = plan(&state, &soft, VolumeId(1), group.id) else { panic!("it is there") };
        let taken: Vec<u32> = state.pg(pg).expect("made").disks().map(DiskId::get).collect();
        assert_eq!(taken, best.disks);
    }
}
