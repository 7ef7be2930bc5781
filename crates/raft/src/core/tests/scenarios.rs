//! Lives of clusters.

use cairn_types::NodeId;

use super::cluster::Cluster;
use super::counts::{Counts, Faults};
use crate::{Input, MemberChange};

pub(super) fn add(total: &mut Counts, counts: Counts) {
    total.lost += counts.lost;
    total.repeated += counts.repeated;
    total.cut += counts.cut;
    total.crashes += counts.crashes;
    total.writes_lost += counts.writes_lost;
    total.snapshots += counts.snapshots;
    total.elections += counts.elections;
    total.acknowledged += counts.acknowledged;
    total.reads += counts.reads;
    total.young += counts.young;
    total.changes += counts.changes;
    total.transfers += counts.transfers;
    total.slept += counts.slept;
    total.given_up += counts.given_up;
}

/// A group without faults must elect quickly, acknowledge everything and serve reads.
#[test]
fn quiet_groups_work() {
    for voters in [1, 2, 3, 5] {
        let mut cluster = Cluster::new(u64::from(voters), voters, 0);
        cluster.run(3000);
        let leader = cluster.leader().expect("a leader after 3 s");
        for _ in 0..100 {
            cluster.propose();
            cluster.run(10);
        }
        cluster.run(100);
        assert_eq!(cluster.counts.acknowledged, 100);
        assert_eq!(cluster.leader(), Some(leader), "the leader stays");
        assert!(cluster.counts.reads > 0);
        assert!(voters == 1 || cluster.counts.young > 100, "followers do not know how old they are");
        cluster.settle();
    }
}

fn random_life(seed: u64, voters: u32, others: u32, meddling: bool) -> Counts {
    live(Cluster::new(seed, voters, others), seed, meddling, 0)
}

/// With so many milliseconds of rest between two rounds.
pub(super) fn live(mut cluster: Cluster, seed: u64, meddling: bool, rest_ms: u64) -> Counts {
    cluster.run(2500);
    for _ in 0..60 {
        let rng = &cluster.rng;
        cluster.faults = Faults {
            loss: if rng.chance(0.5) { 0.1 } else { 0.0 },
            repeat: if rng.chance(0.5) { 0.1 } else { 0.0 },
            delay_ms: if rng.chance(0.2) { 300 } else { 5 },
            disk_ms: if rng.chance(0.2) { 100 } else { 3 },
        };
        match cluster.rng.range(0..7) {
            0 => {
                // In the middle of something.
                (0..5).for_each(|_| cluster.propose());
                let ms = cluster.rng.range(0..8);
                cluster.run(ms);
                let leader = cluster.leader().filter(|_| cluster.rng.chance(0.5));
                let at = leader.unwrap_or_else(|| cluster.rng.index(cluster.members.len()));
                cluster.crash(at);
            }
            1 => {
                let count = cluster.members.len() as u64;
                let pair =
                    (NodeId(1 + cluster.rng.range(0..count) as u32), NodeId(1 + cluster.rng.range(0..count) as u32));
                cluster.cuts.push(pair);
            }
            2 => {
                // One member is cut off on both sides.
                let count = cluster.members.len() as u32;
                let alone = NodeId(1 + cluster.rng.index(count as usize) as u32);
                for other in (1..=count).map(NodeId) {
                    cluster.cuts.extend([(alone, other), (other, alone)]);
                }
            }
            3 => cluster.cuts.clear(),
            5 => {
                // The power goes everywhere.
                (0..5).for_each(|_| cluster.propose());
                let ms = cluster.rng.range(0..12);
                cluster.run(ms);
                (0..cluster.members.len()).for_each(|at| cluster.crash(at));
                (0..cluster.members.len()).for_each(|at| cluster.start(at));
            }
            4 => {
                let at = cluster.rng.index(cluster.members.len());
                cluster.checkpoint(at);
            }
            _ => {}
        }
        for at in 0..cluster.members.len() {
            if cluster.members[at].running.is_none() && cluster.rng.chance(0.4) {
                cluster.start(at);
            }
        }
        if meddling {
            cluster.meddle();
        }
        for _ in 0..10 {
            cluster.propose();
            cluster.run(20 + (seed % 3) * 20);
        }
        cluster.run(rest_ms);
    }
    cluster.settle();
    cluster.counts
}

/// No committed entry is lost, logs agree, one leader a term, no stale lease read, no member older than it says: three
/// and five members.
#[test]
fn random_faults() {
    let mut total = Counts::default();
    for seed in 0..200 {
        add(&mut total, random_life(seed, if seed % 3 == 0 { 5 } else { 3 }, 0, false));
    }
    println!("{total:?}");
    let fired = [total.lost, total.repeated, total.cut, total.crashes, total.writes_lost, total.snapshots];
    assert!(fired.iter().all(|&count| count > 20), "{total:?}");
    assert!(total.acknowledged > 5_000 && total.reads > 10_000 && total.elections > 100, "{total:?}");
    assert!(total.young > 10_000, "{total:?}");
}

/// The same while members are added, promoted and removed and leadership is handed over.
#[test]
fn random_faults_and_changes_of_members() {
    let mut total = Counts::default();
    for seed in 1000..1200 {
        add(&mut total, random_life(seed, 3, 2, true));
    }
    println!("{total:?}");
    assert!(total.changes > 100 && total.transfers > 50 && total.snapshots > 20, "{total:?}");
    assert!(total.acknowledged > 5_000, "{total:?}");
}

/// A follower that restarts has forgotten that it promised its leader a lease; if it voted at once, a second leader
/// would acknowledge what the first one does not see while it still answers reads.
#[test]
fn a_restarted_member_keeps_its_promise() {
    let (mut elected, mut restarts) = (0, 0);
    for seed in 0..30 {
        let mut cluster = Cluster::new(seed, 3, 0);
        cluster.run(2500);
        let leader = cluster.leader().expect("a leader");
        let (l, f, c) = (leader as u32 + 1, (leader as u32 + 1) % 3 + 1, (leader as u32 + 2) % 3 + 1);
        cluster.propose();
        // The third member hears nothing from the leader and asks for votes, in vain.
        cluster.cuts.push((NodeId(l), NodeId(c)));
        cluster.run(1500 + seed * 13);
        assert_eq!(cluster.leader(), Some(leader), "seed {seed}: the follower keeps its leader");
        let before = cluster.counts.elections;
        cluster.crash(f as usize - 1);
        cluster.cuts.extend([(NodeId(f), NodeId(l)), (NodeId(c), NodeId(l)), (NodeId(l), NodeId(f))]);
        cluster.start(f as usize - 1);
        restarts += 1;
        for _ in 0..1000 {
            cluster.propose();
            cluster.run(3);
        }
        elected += cluster.counts.elections - before;
        cluster.settle();
    }
    println!("{restarts} restarts, {elected} elections after them");
    assert!(elected >= 20, "{elected}");
}

/// A member added to a group whose log no longer reaches back must get a checkpoint, then follow.
#[test]
fn a_new_member_is_filled_by_a_checkpoint() {
    let mut cluster = Cluster::new(5, 1, 1);
    cluster.run(2000);
    for _ in 0..50 {
        cluster.propose();
        cluster.run(5);
    }
    cluster.step(0, Input::ChangeMembers(vec![MemberChange::Learner(NodeId(2))]));
    cluster.run(5000);
    assert!(cluster.counts.snapshots > 0, "it was filled by a checkpoint");
    cluster.step(0, Input::ChangeMembers(vec![MemberChange::Voter(NodeId(2))]));
    cluster.run(1000);
    let members = cluster.members[0].running.as_ref().map(|r| r.core.members());
    assert_eq!(members.map(|m| m.voters), Some(vec![NodeId(1), NodeId(2)]));
    cluster.settle();
}

/// A leader would log what a member cannot apply, or for ever nothing new.
#[test]
fn a_leader_knows_what_its_members_understand() {
    let mut cluster = Cluster::new(11, 3, 1);
    cluster.members[1].feature_level = 0;
    cluster.members[3].feature_level = 5;
    (0..4).for_each(|at| cluster.crash(at));
    (0..4).for_each(|at| cluster.start(at));
    cluster.run(4000);
    let understood = |cluster: &Cluster| {
        let leader = cluster.leader().expect("a leader");
        let status = cluster.members[leader].running.as_ref().expect("it runs").core.status();
        (status.understanding.common, status.understanding.behind)
    };
    assert_eq!(understood(&cluster), (Some(0), vec![NodeId(2)]));
    // It is replaced by a newer build: what it said before does not count.
    cluster.crash(1);
    cluster.members[1].feature_level = 1;
    cluster.start(1);
    cluster.run(4000);
    assert_eq!(understood(&cluster).0, Some(1));
    // Nothing is known of a member that was not heard since the leader leads.
    let leader = cluster.leader().expect("a leader");
    let away = (leader + 1) % 3;
    cluster.crash(away);
    cluster.crash(leader);
    cluster.start(leader);
    cluster.run(6000);
    assert_eq!(understood(&cluster), (None, vec![NodeId(away as u32 + 1)]));
    cluster.start(away);
    cluster.run(4000);
    assert_eq!(understood(&cluster).0, Some(1));
    // A new member counts before it votes.
    let leader = cluster.leader().expect("a leader");
    cluster.members[3].feature_level = 0;
    cluster.crash(3);
    cluster.start(3);
    cluster.step(leader, Input::ChangeMembers(vec![MemberChange::Learner(NodeId(4))]));
    cluster.run(4000);
    assert_eq!(understood(&cluster), (Some(0), vec![NodeId(4)]));
}

/// Whoever is removed gives up its state once the leader says that the change is finished. If the others lost power
/// then, and one of them for good, they would wait for ever for the vote of one that is gone: what is committed is
/// written down with later entries only.
#[test]
fn who_is_left_elects_without_the_one_that_was_removed() {
    for (seed, stay) in (0..60).map(|seed| (seed, 1 + seed as u32 % 3)) {
        let mut cluster = Cluster::new(seed, stay, 1);
        cluster.run(2500);
        cluster.propose();
        let out = NodeId(stay + 1);
        let changing = |cluster: &Cluster, at: usize| {
            cluster.members[at].running.as_ref().is_none_or(|running| running.core.status().changing)
        };
        let steps = [MemberChange::Learner(out), MemberChange::Voter(out), MemberChange::Remove(out)];
        for step in steps {
            let leader = cluster.leader().expect("a leader");
            assert_ne!(leader, stay as usize, "seed {seed}: nobody hands over to it");
            cluster.faults = Faults { delay_ms: 4, disk_ms: 8, ..Faults::default() };
            cluster.step(leader, Input::ChangeMembers(vec![step]));
            let begun = cluster.now;
            while changing(&cluster, leader) {
                cluster.run(1);
                assert!(cluster.now < begun + 10_000_000_000, "seed {seed}: {step:?} does not end");
            }
            if !matches!(step, MemberChange::Remove(_)) {
                // It has to catch up first.
                cluster.run(3000);
            }
        }
        // Its state is dropped now, power goes, and of three members the leader is lost.
        let lost = cluster.leader().filter(|_| stay == 3);
        (0..=stay as usize).for_each(|at| cluster.crash(at));
        (0..stay as usize).filter(|at| Some(*at) != lost).for_each(|at| cluster.start(at));
        cluster.run(15_000);
        let leader = cluster.leader().unwrap_or_else(|| panic!("seed {seed}: nobody leads {stay} members"));
        let members = cluster.members[leader].running.as_ref().map(|running| running.core.members());
        assert!(members.is_some_and(|members| !members.contains(out)), "seed {seed}");
    }
}

/// Several members can be replaced at once; the joint configuration must be left even when the leader changes.
#[test]
fn joint_changes_end() {
    for seed in 0..10 {
        let mut cluster = Cluster::new(seed, 3, 2);
        cluster.run(2500);
        for _ in 0..20 {
            cluster.propose();
            cluster.run(5);
        }
        let leader = cluster.leader().expect("a leader");
        let learners = vec![MemberChange::Learner(NodeId(4)), MemberChange::Learner(NodeId(5))];
        cluster.step(leader, Input::ChangeMembers(learners));
        cluster.run(6000);
        assert_eq!(cluster.leader(), Some(leader), "seed {seed}");
        let out: Vec<u32> = (1..=3).filter(|&id| id as usize != leader + 1).collect();
        let changes = vec![
            MemberChange::Voter(NodeId(4)),
            MemberChange::Voter(NodeId(5)),
            MemberChange::Remove(NodeId(out[0])),
            MemberChange::Remove(NodeId(out[1])),
        ];
        cluster.step(leader, Input::ChangeMembers(changes));
        if seed % 2 == 0 {
            cluster.run(3 + seed);
            cluster.crash(leader);
            cluster.run(500);
            cluster.start(leader);
        }
        cluster.settle();
        let at = cluster.leader().expect("a leader");
        let members = cluster.members[at].running.as_ref().expect("it runs").core.members();
        assert!(!members.joint, "seed {seed}: {members:?}");
        let changed = members.voters.contains(&NodeId(4)) && members.voters.contains(&NodeId(5));
        assert!(changed || seed % 2 == 0, "seed {seed}: {members:?}");
    }
}

/// A follower whose ticks come in a burst would lead within the lease that it promised to the leader of before.
#[test]
fn nobody_stands_for_election_within_its_own_promise() {
    let mut elections = 0;
    for seed in 0..30 {
        let mut cluster = Cluster::new(seed, 3, 0);
        cluster.run(2500);
        let leader = cluster.leader().expect("a leader");
        let node = |at: usize| NodeId((at % 3) as u32 + 1);
        let (l, f, c) = (node(leader), node(leader + 1), node(leader + 2));
        cluster.propose();
        // The third member promises nothing any more; leader and second member are the majority.
        cluster.cuts.extend([(l, c), (c, l), (c, f)]);
        cluster.run(2000 + seed * 17);
        let before = cluster.counts.elections;
        cluster.cuts = vec![(l, c), (c, l), (l, f), (f, l)];
        cluster.hasty = true;
        for _ in 0..400 {
            cluster.propose();
            cluster.run(3);
        }
        elections += cluster.counts.elections - before;
        cluster.hasty = false;
        cluster.settle();
    }
    println!("{elections} elections");
    assert!(elections >= 20, "{elections}");
}
