//! Properties of the choice: no disk twice, best possible spread over domains, shares by free space.
use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn disk(id: u32, rack: u32, host: u32) -> DiskCandidate {
    DiskCandidate {
        disk: DiskId(id),
        node: NodeId(host + 16),
        rack,
        host,
        free_bytes: 1 << 40,
        open_pgs: 0,
        primaries: 0,
        room: u32::MAX,
    }
}

/// `shape[rack][host]` disks.
fn cluster(shape: &[Vec<u8>]) -> Vec<DiskCandidate> {
    let (mut disks, mut host) = (Vec::new(), 0);
    for (rack, hosts) in shape.iter().enumerate() {
        for count in hosts {
            for _ in 0..*count {
                disks.push(disk(disks.len() as u32 + 1, rack as u32, host));
            }
            host += 1;
        }
    }
    disks
}

/// Counts of balls in bins with capacities when each ball goes to the emptiest bin with room: the most even spread.
fn water_fill(capacities: &[usize], balls: usize) -> Vec<usize> {
    let mut bins = vec![0; capacities.len()];
    for _ in 0..balls {
        let best = (0..bins.len()).filter(|i| bins[*i] < capacities[*i]).min_by_key(|i| bins[*i]);
        bins[best.expect("there is room")] += 1;
    }
    bins.sort_unstable();
    bins
}

fn shape() -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop::collection::vec(prop::collection::vec(1u8..4, 1..5), 1..6)
}

fn used(disks: &[DiskCandidate], members: &[DiskId], domain: fn(&DiskCandidate) -> u32) -> BTreeMap<u32, usize> {
    let mut counts: BTreeMap<u32, usize> = disks.iter().map(|d| (domain(d), 0)).collect();
    for member in members {
        let disk = disks.iter().find(|d| d.disk == *member).expect("a member is one of the disks offered");
        *counts.entry(domain(disk)).or_default() += 1;
    }
    counts
}

proptest! {
    /// One failure would take more copies than it must if the spread were not the best that the cluster allows.
    #[test]
    fn spread_is_the_best_possible(shape in shape(), members in 1usize..6, seed: u64, groups in 1usize..8) {
        let disks = cluster(&shape);
        let mut chooser = Chooser::new(disks.clone(), seed);
        for _ in 0..groups {
            let chosen = match chooser.choose(members) {
                Ok(chosen) => chosen,
                Err(error) => {
                    prop_assert_eq!(error, TooFewDisks { wanted: members, have: disks.len() });
                    prop_assert!(disks.len() < members);
                    return Ok(());
                }
            };
            prop_assert_eq!(chosen.iter().collect::<BTreeSet<_>>().len(), members, "two members on one disk");
            let capacities: Vec<usize> = shape.iter().flatten().map(|n| usize::from(*n)).collect();
            let mut hosts: Vec<usize> = used(&disks, &chosen, |d| d.host).into_values().collect();
            hosts.sort_unstable();
            prop_assert_eq!(hosts, water_fill(&capacities, members), "hosts");
            if members <= capacities.len() {
                let capacities: Vec<usize> = shape.iter().map(Vec::len).collect();
                let mut racks: Vec<usize> = used(&disks, &chosen, |d| d.rack).into_values().collect();
                racks.sort_unstable();
                prop_assert_eq!(racks, water_fill(&capacities, members), "racks");
            }
        }
    }

    /// Growth would fill some disks long before others if shares did not follow free space.
    #[test]
    fn groups_and_primaries_follow_free_space(
        sizes in prop::collection::vec(1u64..5, 9), members in 1usize..4, seed: u64,
    ) {
        let disks: Vec<_> = sizes.iter().enumerate()
            .map(|(i, size)| DiskCandidate { free_bytes: size << 40, ..disk(i as u32 + 1, 0, i as u32) })
            .collect();
        let mut chooser = Chooser::new(disks, seed);
        let groups = 200 * members;
        for _ in 0..groups {
            prop_assert!(chooser.choose(members).is_ok());
        }
        let total: u64 = sizes.iter().sum();
        for (i, size) in sizes.iter().enumerate() {
            let got = chooser.disks[i].open_pgs as f64;
            let share = (groups * members) as f64 * *size as f64 / total as f64;
            // A disk carries a group at most once, so nobody can get more than `groups`.
            prop_assert!((got - share.min(groups as f64)).abs() <= 0.15 * share + 3.0, "disk {i}: {got} of {share}");
            let primaries = chooser.disks[i].primaries as f64;
            let share = groups as f64 * *size as f64 / total as f64;
            prop_assert!((primaries - share).abs() <= 0.25 * share + 3.0, "disk {i}: {primaries} primaries of {share}");
        }
    }

    /// Members of the manager's group would place differently if the choice hung on anything but its input.
    #[test]
    fn equal_input_equal_choice(shape in shape(), seed: u64) {
        let disks = cluster(&shape);
        let mut reversed = disks.clone();
        reversed.reverse();
        let (mut a, mut b) = (Chooser::new(disks, seed), Chooser::new(reversed, seed));
        for _ in 0..5 {
            prop_assert_eq!(a.choose(1), b.choose(1));
            prop_assert_eq!(a.choose(3), b.choose(3));
        }
    }
}

/// Equal disks in equal racks would wear unevenly: no disk may be more than one group ahead of another of its rack.
#[test]
fn equal_disks_get_equal_shares() {
    let shape = vec![vec![1u8; 3]; 3];
    let mut chooser = Chooser::new(cluster(&shape), 42);
    for round in 1..=300u32 {
        let members = chooser.choose(3).expect("nine disks");
        assert_eq!(used(&chooser.disks.clone(), &members, |d| d.rack).into_values().collect::<Vec<_>>(), [1, 1, 1]);
        for disk in &chooser.disks {
            assert!(disk.open_pgs.abs_diff(round / 3) <= 1, "after {round}: {disk:?}");
            assert!(disk.primaries.abs_diff(round / 9) <= 2, "after {round}: {disk:?}");
        }
    }
}

/// The same three disks would always fail together, and repair would read from few, if partners did not vary.
#[test]
fn partners_vary() {
    let mut chooser = Chooser::new(cluster(&vec![vec![1u8; 3]; 3]), 1);
    let mut groups = BTreeSet::new();
    for _ in 0..60 {
        let mut members = chooser.choose(3).expect("nine disks");
        members.sort_unstable();
        groups.insert(members);
    }
    assert!(groups.len() >= 15, "only {} different groups of 27 possible", groups.len());
}

/// A full disk or one offered twice would be used.
#[test]
fn full_and_doubled_disks_do_not_count() {
    let full = DiskCandidate { free_bytes: 0, ..disk(3, 2, 2) };
    let mut chooser = Chooser::new([disk(1, 0, 0), disk(2, 1, 1), disk(1, 0, 0), full], 5);
    assert_eq!(chooser.choose(3), Err(TooFewDisks { wanted: 3, have: 2 }));
    assert!(chooser.choose(2).is_ok());
}

/// A disk would get more groups than it may carry.
#[test]
fn room_is_kept() {
    let mut chooser = Chooser::new([1, 2, 3].map(|id| DiskCandidate { room: id, ..disk(id, id, id) }), 5);
    assert!(chooser.choose(3).is_ok());
    assert_eq!(chooser.choose(3), Err(TooFewDisks { wanted: 3, have: 2 }));
    assert!(chooser.choose(2).is_ok());
    assert_eq!(chooser.choose(1), Ok(vec![DiskId(3)]));
    assert_eq!(chooser.choose(1), Err(TooFewDisks { wanted: 1, have: 0 }));
}
