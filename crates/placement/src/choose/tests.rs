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
        parities: 0,
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
    /// A repair would put two members where one failure takes both, although they were apart before; or a disk twice.
    #[test]
    fn a_successor_keeps_domains_apart(shape in shape(), members in 2usize..8, lost in any::<usize>(), seed: u64) {
        let disks = cluster(&shape);
        let mut chooser = Chooser::new(disks.clone(), seed);
        let Ok(group) = chooser.choose(members) else { return Ok(()) };
        let seat = |id: &DiskId| {
            let disk = disks.iter().find(|d| d.disk == *id).expect("offered");
            Seat { node: disk.node, rack: disk.rack, host: disk.host }
        };
        let lost = lost % members;
        let others: Vec<Seat> = group.iter().enumerate().filter(|(i, _)| *i != lost).map(|(_, id)| seat(id)).collect();
        let vacancy = Vacancy { lost: seat(&group[lost]), others: &others, taken: &group, bytes: 1 << 20, beside: [0, 0] };
        let worst = |seats: &[Seat], domain: fn(&Seat) -> u32| {
            seats.iter().map(|a| seats.iter().filter(|b| domain(a) == domain(b)).count()).max().unwrap_or(0)
        };
        let with = |seat: Seat| others.iter().copied().chain([seat]).collect::<Vec<Seat>>();
        let domains: [fn(&Seat) -> u32; 2] = [|seat| seat.rack, |seat| seat.host];
        let fits = |id: &DiskId| {
            !group.contains(id)
                && domains.iter().all(|domain| {
                    let beside = |at: Seat| others.iter().filter(|other| domain(other) == domain(&at)).count();
                    beside(seat(id)) <= beside(vacancy.lost)
                })
        };
        match chooser.successor(&vacancy) {
            Ok(new) => {
                prop_assert!(fits(&new), "{new}");
                for domain in domains {
                    prop_assert!(worst(&with(seat(&new)), domain) <= worst(&with(vacancy.lost), domain));
                }
            }
            Err(_) => prop_assert!(!disks.iter().any(|d| fits(&d.disk)), "there was one"),
        }
    }

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

/// Members in each domain, most first.
fn counts(disks: &[DiskCandidate], members: &[DiskId], domain: fn(&DiskCandidate) -> u32) -> Vec<usize> {
    let mut counts: Vec<usize> = used(disks, members, domain).into_values().collect();
    counts.sort_unstable_by_key(|count| std::cmp::Reverse(*count));
    counts
}

/// A failure would take more shards than it must, in clusters of the usual shapes.
#[test]
fn shards_spread_over_usual_clusters() {
    // Hosts and disks of each rack; k and m; members by rack; most on a host.
    type Case = (Vec<Vec<u8>>, (usize, usize), Vec<usize>, usize);
    let cases: Vec<Case> = vec![
        (vec![vec![1; 3]; 3], (6, 3), vec![3, 3, 3], 1),
        (vec![vec![1; 1]; 9], (6, 3), vec![1; 9], 1),
        (vec![vec![4; 2]; 12], (6, 3), vec![1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0], 1),
        (vec![vec![1; 5]; 2], (6, 3), vec![5, 4], 1),
        (vec![vec![1; 9]], (6, 3), vec![9], 1),
        (vec![vec![9]], (6, 3), vec![9], 9),
        (vec![vec![2; 5]], (6, 3), vec![9], 2),
        (vec![vec![3]; 3], (6, 3), vec![3, 3, 3], 3),
        (vec![vec![2; 2]; 4], (10, 4), vec![4, 4, 3, 3], 2),
        (vec![vec![1; 5]; 3], (3, 2), vec![2, 2, 1], 1),
        (vec![vec![1; 6], vec![1; 3], vec![1; 2]], (6, 3), vec![4, 3, 2], 1),
        // One large host in a rack of its own gets no more than can be lost.
        (vec![vec![1; 8], vec![8]], (6, 3), vec![6, 3], 3),
        (vec![vec![1; 4], vec![1; 4], vec![1; 4], vec![1; 4]], (12, 4), vec![4, 4, 4, 4], 1),
    ];
    for (shape, (k, m), racks, on_a_host) in cases {
        let disks = cluster(&shape);
        for seed in 0..20 {
            let members = Chooser::new(disks.clone(), seed).choose_shards(k, m).expect("enough disks");
            assert_eq!(members.iter().collect::<BTreeSet<_>>().len(), k + m, "two shards on one disk: {shape:?}");
            assert_eq!(counts(&disks, &members, |d| d.rack), racks, "{shape:?}");
            assert_eq!(counts(&disks, &members, |d| d.host)[0], on_a_host, "{shape:?}");
        }
    }
}

proptest! {
    /// One rack would hold more shards than its share although others have room, or one host more than can be lost.
    #[test]
    fn shards_spread_as_evenly_as_any_cluster_allows(
        shape in prop::collection::vec(prop::collection::vec(1u8..6, 1..6), 1..8),
        (k, m) in prop::sample::select(vec![(3, 2), (4, 2), (6, 3), (8, 3), (10, 4), (12, 4)]), seed: u64,
    ) {
        let disks = cluster(&shape);
        let Ok(members) = Chooser::new(disks.clone(), seed).choose_shards(k, m) else {
            prop_assert!(disks.len() < k + m);
            return Ok(());
        };
        prop_assert_eq!(members.iter().collect::<BTreeSet<_>>().len(), k + m);
        // What racks can hold with at most m on a host; if that is not enough, all hosts are filled that far.
        let capped: Vec<usize> =
            shape.iter().map(|hosts| hosts.iter().map(|disks| usize::from(*disks).min(m)).sum()).collect();
        let mut racks: Vec<usize> = used(&disks, &members, |d| d.rack).into_values().collect();
        racks.sort_unstable();
        let hosts = used(&disks, &members, |d| d.host);
        if capped.iter().sum::<usize>() >= k + m {
            prop_assert_eq!(racks, water_fill(&capped, k + m), "racks");
            prop_assert!(hosts.values().all(|count| *count <= m), "{:?}", hosts);
            let share = (k + m).div_ceil(shape.len());
            if capped.iter().all(|room| *room >= share) {
                let most = counts(&disks, &members, |d| d.rack)[0];
                prop_assert!(most <= share, "{most} of {} in one of {} racks", k + m, shape.len());
            }
        } else {
            for (host, disks) in shape.iter().flatten().enumerate() {
                prop_assert!(hosts[&(host as u32)] >= usize::from(*disks).min(m));
            }
        }
        // Within a rack, hosts are filled evenly.
        for (rack, capacities) in shape.iter().enumerate() {
            let first = shape[..rack].iter().map(Vec::len).sum::<usize>() as u32;
            let mut mine: Vec<usize> = (first..first + capacities.len() as u32).map(|host| hosts[&host]).collect();
            mine.sort_unstable();
            let capacities: Vec<usize> = capacities.iter().map(|n| usize::from(*n)).collect();
            prop_assert_eq!(&mine, &water_fill(&capacities, mine.iter().sum()), "hosts of rack {}", rack);
        }
    }
}

/// Some disks would hold only parity and never help to read, or one would be asked for every new chunk.
#[test]
fn roles_spread_over_all_disks() {
    let mut chooser = Chooser::new(cluster(&vec![vec![1u8; 3]; 3]), 3);
    let mut positions: BTreeMap<DiskId, BTreeSet<usize>> = BTreeMap::new();
    for round in 1..=90u32 {
        let members = chooser.choose_shards(6, 3).expect("nine disks");
        for (position, disk) in members.iter().enumerate() {
            positions.entry(*disk).or_default().insert(position);
        }
        for disk in &chooser.disks {
            assert_eq!(disk.open_pgs, round);
            assert!(disk.parities.abs_diff(round / 3) <= 1, "after {round}: {disk:?}");
            assert!(disk.primaries.abs_diff(round / 9) <= 1, "after {round}: {disk:?}");
        }
    }
    assert!(positions.values().all(|held| held.len() >= 7), "{positions:?}");
}
