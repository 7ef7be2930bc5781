//! Every stripe keeps its promises, whatever the cluster, and drawing costs what the paper says.
use super::*;
use proptest::prelude::*;

fn cluster(counts: &[usize]) -> EarCluster {
    EarCluster::new(counts.iter().enumerate().flat_map(|(rack, nodes)| {
        (0..*nodes).map(move |node| Slot { node: NodeId(rack as u32 * 64 + node as u32), rack: rack as u32 })
    }))
}

fn shape(copies: usize, k: usize, m: usize, c: usize) -> EarShape {
    EarShape::new(copies, k, m, c).expect("a shape")
}

proptest! {
    /// A rack's failure would lose a stripe, or an encoder download across racks.
    #[test]
    fn every_stripe_keeps_its_promises(
        counts in prop::collection::vec(1usize..6, 2..9), copies in 2usize..5, k in 1usize..9, m in 1usize..5,
        c in 1usize..5, targets in prop::option::of(1usize..9), seed: u64,
    ) {
        let mut shape = shape(copies, k, m, c);
        if let Some(targets) = targets {
            let Ok(within) = shape.within(targets) else { return Ok(()) };
            shape = within;
        }
        let cluster = cluster(&counts);
        let nodes = cluster.counts();
        match place_stripe(&cluster, shape, seed) {
            Ok(plan) => {
                plan.check_invariants(&shape);
                prop_assert_eq!(Some(plan), place_stripe(&cluster, shape, seed).ok(), "equal input, equal plan");
            }
            // Without target racks, a refusal is what the counts say of every core rack.
            Err(_) if targets.is_none() => {
                prop_assert!(nodes.keys().all(|core| shape.check(&nodes, *core).is_err()), "it fits");
            }
            Err(refusal) => prop_assert!(!refusal.to_string().is_empty()),
        }
    }

    /// Clusters with exactly as many places as shards would be refused, or drawn for ever.
    #[test]
    fn the_tightest_clusters_are_filled(copies in 2usize..4, k in 2usize..9, m in 1usize..5, c in 2usize..5, seed: u64) {
        let shape = shape(copies, k, m, c);
        let cluster = cluster(&vec![c.max(copies - 1); shape.racks_wanted().max(2)]);
        let plan = place_stripe(&cluster, shape, seed);
        prop_assert!(plan.is_ok(), "{plan:?}");
        plan.expect("it fits").check_invariants(&shape);
        let within = shape.within(shape.racks_wanted()).expect("as many as are wanted");
        if shape.racks_wanted() > 1 {
            place_stripe(&self::cluster(&[c.max(copies - 1); 12]), within, seed).expect("it fits").check_invariants(&within);
        }
    }
}

/// Mean of `count` stripes of (k, m) = (10, 4) on 20 racks of 20 nodes.
fn mean(c: usize, count: u64, of: impl Fn(&StripePlan) -> f64) -> f64 {
    let cluster = cluster(&[20; 20]);
    let shape = shape(3, 10, 4, c);
    let stripes = (0..count).map(|seed| place_stripe(&cluster, shape, seed).expect("it fits"));
    stripes.map(|plan| of(&plan)).sum::<f64>() / count as f64
}

/// A writer would wait for its place: the paper bounds the draws of the last block by 1.9, and 1.19 a block were
/// counted.
#[test]
fn draws_are_as_few_as_the_paper_says() {
    let all = mean(1, 2_000, |plan| f64::from(plan.draws.iter().sum::<u32>()) / 10.0);
    assert!((1.16..1.22).contains(&all), "{all}");
    let last = mean(1, 2_000, |plan| f64::from(plan.draws[9]));
    assert!((1.5..1.9).contains(&last), "{last}");
    assert!(mean(2, 500, |plan| f64::from(plan.draws[9])) < 1.05);
}

/// Parities would cross racks that could stay. With any maximum matching 3.96, 2.42 and 0 of four leave the core rack
/// at c = 1, 2 and 4; with as few survivors there as possible, a little less.
#[test]
fn parities_leave_the_core_rack_only_as_capacity_demands() {
    let leave = |plan: &StripePlan| plan.parities.iter().filter(|slot| slot.rack != plan.core_rack).count() as f64;
    let leaving = [1, 2, 4].map(|c| mean(c, 2_000, leave));
    assert!((3.92..3.96).contains(&leaving[0]), "{leaving:?}");
    assert!((2.2..2.42).contains(&leaving[1]), "{leaving:?}");
    assert!(leaving[2] < 0.01, "{leaving:?}");
}

/// Copies near the core rack without the flow: with probability 0.97 a stripe of k = 12 on 16 racks does not survive.
#[test]
fn without_the_flow_stripes_break() {
    let mut chance = Chance(7);
    let broken = (0..2_000).filter(|_| {
        let mut flow = SurvivorFlow::new((0..16).map(|rack| (rack, 1)));
        !(0..12u32).all(|_| {
            let core = Slot { node: NodeId(chance.below(20) as u32), rack: 0 };
            let rack = 1 + chance.below(15) as u32;
            let other = |node: usize| Slot { node: NodeId(rack * 64 + node as u32), rack };
            flow.try_add(&[core, other(chance.below(10)), other(10 + chance.below(10))])
        })
    });
    let share = broken.count() as f64 / 2_000.0;
    assert!((share - 0.97).abs() < 0.02, "{share}");
}

/// Someone with too few racks would hear "no" and not what is missing.
#[test]
fn a_cluster_without_racks_is_told_what_it_lacks() {
    let refusal = place_stripe(&cluster(&[9, 9, 9]), shape(3, 10, 4, 1), 1).expect_err("three racks");
    assert_eq!(refusal, EarRefusal::TooFewRacks { wanted: 14, have: 3, capacity: 1, fits: 5, survives: 0 });
    assert!(matches!(place_stripe(&cluster(&[]), shape(3, 6, 3, 3), 1), Err(EarRefusal::TooFewRacks { have: 0, .. })));
    let plan =
        place_stripe(&cluster(&[5, 5, 5]), EarShape::fitting(3, 10, 4, 3).expect("a shape"), 1).expect("it fits");
    assert_eq!(plan.rack_failures, 0);
}
