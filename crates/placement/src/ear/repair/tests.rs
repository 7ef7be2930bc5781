//! A successor is found exactly if there is one, and it keeps the property: held against trying everything.
use super::super::group::tests::cluster;
use super::*;
use cairn_types::NodeId;
use proptest::prelude::*;

fn seat(disks: &[DiskCandidate], id: DiskId) -> Seat {
    let disk = disks.iter().find(|disk| disk.disk == id).expect("offered");
    Seat { node: disk.node, rack: disk.rack, host: disk.host }
}

/// A plan of the chooser as seats, and the disks of its members.
fn group(chooser: &mut Chooser, disks: &[DiskCandidate], shape: EarShape) -> Option<(StripeSeats, Vec<Vec<DiskId>>)> {
    let plan = chooser.choose_stripe_group(&shape).ok()?;
    let seats = |ids: &[DiskId]| ids.iter().map(|id| seat(disks, *id)).collect::<Vec<Seat>>();
    let columns =
        plan.columns.iter().map(|column| ColumnSeats { members: seats(&column.members), survivor: column.survivor });
    let seats = StripeSeats {
        shape,
        core_rack: plan.core_rack,
        columns: columns.collect(),
        parities: seats(&plan.parities),
        nodes: Vec::new(),
    };
    let mut ids: Vec<Vec<DiskId>> = plan.columns.iter().map(|column| column.members.clone()).collect();
    ids.push(plan.parities.clone());
    Some((seats, ids))
}

fn place(seats: &mut StripeSeats, member: EarMember, at: Seat) {
    match member {
        EarMember::Copy { column, member } => seats.columns[column].members[member] = at,
        EarMember::Parity(parity) => seats.parities[parity] = at,
    }
}

fn apart(shards: &[Seat], capacity: usize) -> bool {
    let beside = |same: &dyn Fn(&Seat) -> bool| shards.iter().filter(|other| same(other)).count();
    shards.iter().all(|at| beside(&|o| o.node == at.node) == 1 && beside(&|o| o.rack == at.rack) <= capacity)
}

/// Tries every choice of survivors.
fn any_survivors(seats: &StripeSeats, shards: &mut Vec<Seat>, column: usize) -> bool {
    if !apart(shards, seats.shape.rack_capacity()) {
        return false;
    }
    let Some(next) = seats.columns.get(column) else { return true };
    next.members.iter().any(|seat| {
        shards.push(*seat);
        let fits = any_survivors(seats, shards, column + 1);
        shards.pop();
        fits
    })
}

/// Whether a group keeps the property, by definition.
fn holds(seats: &StripeSeats) -> bool {
    let near = seats.columns.iter().all(|column| {
        let nodes: BTreeSet<NodeId> = column.members.iter().map(|seat| seat.node).collect();
        nodes.len() == column.members.len()
            && column.members.iter().enumerate().all(|(i, seat)| (seat.rack == seats.core_rack) == (i == 0))
    });
    near && any_survivors(seats, &mut seats.parities.clone(), 0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// Repair would make a group encode across racks although a disk keeps the property, or say that it is kept when it
    /// is not.
    #[test]
    fn a_successor_is_found_exactly_if_there_is_one(
        counts in prop::collection::vec(1usize..5, 2..6), copies in 2usize..4, k in 1usize..6, m in 1usize..4,
        c in 1usize..4, losses in prop::collection::vec((any::<usize>(), any::<usize>()), 1..4), seed: u64,
    ) {
        let shape = EarShape::new(copies, k, m, c).expect("a shape");
        let disks = cluster(&counts, 1);
        let mut chooser = Chooser::new(disks.clone(), seed);
        let Some((mut seats, mut ids)) = group(&mut chooser, &disks, shape) else { return Ok(()) };
        let mut gone: Vec<DiskId> = Vec::new();
        for (row, at) in losses {
            let row = row % ids.len();
            let at = at % ids[row].len();
            let member = if row < k { EarMember::Copy { column: row, member: at } } else { EarMember::Parity(at) };
            gone.push(ids[row][at]);
            let taken: Vec<DiskId> = if row < k { ids[row].iter().chain(&gone).copied().collect() } else { gone.clone() };
            let fits = |disk: &DiskCandidate| {
                let mut moved = seats.clone();
                place(&mut moved, member, Seat { node: disk.node, rack: disk.rack, host: disk.host });
                !taken.contains(&disk.disk) && holds(&moved)
            };
            match chooser.ear_successor(&seats, member, &taken, 1 << 20) {
                Ok(found) => {
                    let new = disks.iter().find(|disk| disk.disk == found.disk).expect("offered");
                    prop_assert!(fits(new), "{} does not keep the property", found.disk);
                    ids[row][at] = found.disk;
                    place(&mut seats, member, seat(&disks, found.disk));
                    for (column, survivor) in seats.columns.iter_mut().zip(&found.survivors) {
                        column.survivor = *survivor;
                    }
                    let kept = seats.columns.iter().map(|column| column.members[column.survivor]);
                    let shards: Vec<Seat> = kept.chain(seats.parities.iter().copied()).collect();
                    prop_assert!(apart(&shards, c), "{:?}", shards);
                }
                Err(_) => {
                    prop_assert!(!disks.iter().any(fits), "there was one");
                    return Ok(());
                }
            }
        }
    }
}

/// The core member would move away, a survivor into a full rack, or one loss change the shards of all columns.
#[test]
fn successors_stay_where_they_belong() {
    let shape = EarShape::new(3, 6, 3, 1).expect("a shape");
    let disks = cluster(&[4; 10], 1);
    let mut chooser = Chooser::new(disks.clone(), 5);
    let (seats, ids) = group(&mut chooser, &disks, shape).expect("it fits");
    let before: Vec<usize> = seats.columns.iter().map(|column| column.survivor).collect();
    for (column, taken) in ids.iter().enumerate().take(6) {
        for member in 0..3 {
            let lost = seats.columns[column].members[member];
            let member = EarMember::Copy { column, member };
            let found = chooser.ear_successor(&seats, member, taken, 1).expect("three other nodes in each rack");
            assert_eq!(seat(&disks, found.disk).rack, lost.rack);
            assert_eq!(found.survivors, before, "nothing else changes");
        }
    }
    let parity = chooser.ear_successor(&seats, EarMember::Parity(0), &ids[6], 1).expect("a node in its rack");
    assert_eq!(seat(&disks, parity.disk).rack, seats.parities[0].rack);

    // What is missing is said.
    let core: Vec<DiskId> = disks.iter().filter(|disk| disk.rack == seats.core_rack).map(|disk| disk.disk).collect();
    let first = EarMember::Copy { column: 0, member: 0 };
    let refused = chooser.ear_successor(&seats, first, &core, 1);
    assert_eq!(refused, Err(NoEarSuccessor::CoreRack { rack: seats.core_rack }));
    let all: Vec<DiskId> = disks.iter().map(|disk| disk.disk).collect();
    assert_eq!(chooser.ear_successor(&seats, first, &all, 1), Err(NoEarSuccessor::NoDisk));
    assert_eq!(chooser.ear_successor(&seats, first, &ids[0], u64::MAX), Err(NoEarSuccessor::NoSpace));
    // With both copies outside of the core rack off, only racks that hold a shard of their own are left for the third.
    let lone = ids[0][1..].iter().map(|id| seat(&disks, *id).rack).collect::<BTreeSet<u32>>();
    let held: BTreeSet<u32> =
        seats.parities.iter().chain(seats.columns[1..].iter().map(|c| &c.members[1])).map(|s| s.rack).collect();
    let taken: Vec<DiskId> = disks
        .iter()
        .filter(|disk| lone.contains(&disk.rack) || !held.contains(&disk.rack))
        .map(|disk| disk.disk)
        .collect();
    let moved = EarMember::Copy { column: 0, member: 1 };
    let kept = chooser.ear_successor(&seats, moved, &taken, 1).map(|found| found.survivors[0]);
    assert_eq!(kept, Ok(2), "the other copy of its old rack becomes the survivor");
    let mut one = seats.clone();
    one.columns.iter_mut().for_each(|column| column.members.truncate(2));
    let refused = chooser.ear_successor(&one, moved, &taken, 1);
    assert_eq!(refused, Err(NoEarSuccessor::NoMatching { capacity: 1 }));
}
