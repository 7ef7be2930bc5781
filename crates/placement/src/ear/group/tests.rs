//! Plans of stripe groups: their promises, and that all racks and disks carry their shares.
use super::super::stripe::check_shards;
use super::*;
use proptest::prelude::*;

/// `counts[rack]` nodes with `disks` disks each.
pub(crate) fn cluster(counts: &[usize], disks: usize) -> Vec<DiskCandidate> {
    let mut all = Vec::new();
    for (rack, nodes) in counts.iter().enumerate() {
        for node in 0..*nodes {
            let node = rack as u32 * 64 + node as u32;
            all.extend((0..disks).map(|disk| DiskCandidate {
                disk: DiskId(node * 16 + disk as u32 + 1),
                node: NodeId(node + 1),
                rack: rack as u32,
                host: node,
                free_bytes: 1 << 40,
                open_pgs: 0,
                primaries: 0,
                parities: 0,
                room: 1_000,
            }));
        }
    }
    all
}

pub(crate) fn seat_of(disks: &[DiskCandidate], id: DiskId) -> Slot {
    let disk = disks.iter().find(|disk| disk.disk == id).expect("offered");
    Slot { node: disk.node, rack: disk.rack }
}

fn check(disks: &[DiskCandidate], plan: &GroupPlan, shape: &EarShape) {
    assert_eq!((plan.columns.len(), plan.parities.len()), (shape.k(), shape.m()));
    assert_eq!(plan.rack_failures, shape.m() / shape.rack_capacity());
    for column in &plan.columns {
        let seats: Vec<Slot> = column.members.iter().map(|id| seat_of(disks, *id)).collect();
        assert_eq!(seats.len(), shape.copies());
        assert_eq!(seats[0].rack, plan.core_rack, "a download across racks");
        assert!(seats[1..].iter().all(|seat| seat.rack == seats[1].rack && seat.rack != plan.core_rack));
        let nodes: BTreeSet<NodeId> = seats.iter().map(|seat| seat.node).collect();
        assert_eq!(nodes.len(), seats.len(), "two copies on one node");
    }
    check_shards(&plan.shards().into_iter().map(|id| seat_of(disks, id)).collect::<Vec<_>>(), shape);
}

proptest! {
    /// A rack's failure would lose a stripe group, or an encoder download across racks.
    #[test]
    fn every_plan_keeps_its_promises(
        counts in prop::collection::vec(1usize..6, 2..9), disks in 1usize..3, copies in 2usize..5, k in 1usize..9,
        m in 1usize..5, c in 1usize..5, targets in prop::option::of(1usize..9), seed: u64,
    ) {
        let mut shape = EarShape::new(copies, k, m, c).expect("a shape");
        if let Some(targets) = targets {
            let Ok(within) = shape.within(targets) else { return Ok(()) };
            shape = within;
        }
        let disks = cluster(&counts, disks);
        let nodes: BTreeMap<u32, usize> = counts.iter().enumerate().map(|(rack, n)| (rack as u32, *n)).collect();
        let mut chooser = Chooser::new(disks.clone(), seed);
        for _ in 0..3 {
            match chooser.choose_stripe_group(&shape) {
                Ok(plan) => check(&disks, &plan, &shape),
                Err(_) if targets.is_none() => {
                    prop_assert!(nodes.keys().all(|core| shape.check(&nodes, *core).is_err()), "it fits");
                }
                Err(refusal) => prop_assert!(!refusal.to_string().is_empty()),
            }
        }
        let (mut a, mut b) = (Chooser::new(disks.clone(), seed), Chooser::new(disks.into_iter().rev(), seed));
        prop_assert_eq!(a.choose_stripe_group(&shape), b.choose_stripe_group(&shape), "equal input, equal plan");
    }
}

/// Parities would cross racks that could stay: of four, as many stay as the core rack may hold.
#[test]
fn chosen_racks_leave_the_core_rack_to_parities() {
    let disks = cluster(&[20; 20], 1);
    for (c, leave) in [(1, 3), (2, 2), (4, 0)] {
        let shape = EarShape::new(3, 10, 4, c).expect("a shape");
        let mut chooser = Chooser::new(disks.clone(), 9);
        for _ in 0..50 {
            let plan = chooser.choose_stripe_group(&shape).expect("it fits");
            let left = plan.parities.iter().filter(|id| seat_of(&disks, **id).rack != plan.core_rack).count();
            assert_eq!(left, leave, "c = {c}");
            let remotes: BTreeSet<u32> =
                plan.columns.iter().map(|column| seat_of(&disks, column.members[1]).rack).collect();
            assert_eq!(remotes.len(), 10, "distinct remote racks");
        }
    }
}

/// A rack would fill long before others: 4.6 to 5.5 % of all copies before encoding, 4.8 to 5.3 % of all shards after
/// it.
#[test]
fn a_hundred_groups_are_spread_evenly() {
    let disks = cluster(&[20; 20], 1);
    let shape = EarShape::new(3, 10, 4, 1).expect("a shape");
    let mut chooser = Chooser::new(disks.clone(), 3);
    let (mut copies, mut shards) = (vec![0.0; 20], vec![0.0; 20]);
    let mut cores = vec![0; 20];
    for _ in 0..100 {
        let plan = chooser.choose_stripe_group(&shape).expect("it fits");
        cores[plan.core_rack as usize] += 1;
        for id in plan.columns.iter().flat_map(|column| &column.members) {
            copies[seat_of(&disks, *id).rack as usize] += 100.0 / 3_000.0;
        }
        for id in plan.shards() {
            shards[seat_of(&disks, id).rack as usize] += 100.0 / 1_400.0;
        }
    }
    assert!(cores.iter().all(|cores| *cores == 5), "{cores:?}");
    assert!(copies.iter().all(|share| (4.6..5.5).contains(share)), "{copies:?}");
    assert!(shards.iter().all(|share| (4.8..5.3).contains(share)), "{shards:?}");
}

/// A disk would carry more groups than it may, or a small one as many as a large one.
#[test]
fn room_and_weight_count() {
    let shape = EarShape::new(3, 6, 3, 3).expect("a shape");
    let mut disks = cluster(&[4; 4], 1);
    disks.iter_mut().for_each(|disk| disk.room = 3);
    let mut chooser = Chooser::new(disks.clone(), 1);
    let planned = std::iter::from_fn(|| chooser.choose_stripe_group(&shape).ok()).count();
    assert!(planned >= 1, "48 places, a group takes 21");
    let refusal = chooser.choose_stripe_group(&shape).expect_err("full");
    assert!(
        matches!(
            refusal,
            EarRefusal::NoRoom { .. }
                | EarRefusal::TooFewNodes { .. }
                | EarRefusal::TooFewRacks { .. }
                | EarRefusal::TooFewSurvivors { .. }
                | EarRefusal::NoRemoteRack { .. }
        ),
        "{refusal}"
    );
    assert!(chooser.disks.iter().all(|disk| disk.open_pgs <= 3 && disk.open_pgs + disk.room == 3));

    let mut disks = cluster(&[6; 6], 1);
    disks.iter_mut().filter(|disk| disk.rack < 3).for_each(|disk| disk.free_bytes *= 2);
    let mut chooser = Chooser::new(disks, 1);
    for _ in 0..60 {
        chooser.choose_stripe_group(&shape).expect("it fits");
    }
    let of = |large: bool| {
        chooser.disks.iter().filter(|disk| (disk.rack < 3) == large).map(|disk| disk.open_pgs).sum::<u32>()
    };
    let share = f64::from(of(true)) / f64::from(of(false));
    assert!((1.4..2.6).contains(&share), "racks with twice the space carry {share} times as many");
}

/// Operators of small clusters would get layouts that survive less than was said, or none.
#[test]
fn small_clusters_say_what_they_survive() {
    for (racks, nodes, k, m, c, survives) in
        [(5, 4, 6, 3, 2, 1), (3, 5, 10, 4, 5, 0), (6, 3, 6, 3, 2, 1), (9, 2, 6, 3, 1, 3)]
    {
        let shape = EarShape::fitting(3, k, m, racks).expect("a shape");
        assert_eq!((shape.rack_capacity(), shape.rack_failures()), (c, survives));
        let disks = cluster(&vec![nodes; racks], 1);
        let plan = Chooser::new(disks.clone(), 1).choose_stripe_group(&shape).expect("it fits");
        check(&disks, &plan, &shape);
    }
    let mut two = Chooser::new(cluster(&[4, 4], 1), 1);
    let shape = EarShape::fitting(3, 6, 3, 2).expect("a shape");
    assert_eq!(two.choose_stripe_group(&shape), Err(EarRefusal::TooFewNodes { wanted: 9, have: 8, capacity: 5 }));
}

/// Two shards would meet on one node where the others are full.
#[test]
fn shards_do_not_meet_where_nodes_are_full() {
    let shape = EarShape::new(2, 1, 2, 2).expect("a shape");
    let mut disks = cluster(&[2, 2], 1);
    assert!(Chooser::new(disks.clone(), 1).choose_stripe_group(&shape).is_ok());
    for disk in &mut disks {
        if disk.host % 2 == 0 { disk.room = 1 } else { disk.open_pgs = 50 }
    }
    // The column's copy takes the last place of the core rack's emptier node; the second parity has none.
    let planned = Chooser::new(disks, 1).choose_stripe_group(&shape);
    assert!(matches!(planned, Err(EarRefusal::NoRoom { .. })), "{planned:?}");
}
