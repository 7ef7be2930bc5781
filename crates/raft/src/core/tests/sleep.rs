//! Groups that sleep when nothing is to do.

use cairn_types::NodeId;

use super::cluster::Cluster;
use super::counts::Counts;
use super::scenarios::{add, live};
use crate::{Input, MemberChange, Slumber};

/// Members that understand how to sleep.
fn cluster(seed: u64, voters: u32, others: u32) -> Cluster {
    let mut cluster = Cluster::new(seed, voters, others);
    cluster.members.iter_mut().for_each(|member| member.feature_level = 6);
    (0..cluster.members.len()).for_each(|at| cluster.crash(at));
    (0..cluster.members.len()).for_each(|at| cluster.start(at));
    cluster
}

fn asleep(cluster: &Cluster) -> usize {
    cluster.members.iter().filter(|member| member.running.as_ref().is_some_and(|r| r.core.is_asleep())).count()
}

fn leads_at(cluster: &Cluster) -> usize {
    cluster.leader().expect("a leader")
}

fn may_read(cluster: &Cluster, at: usize) -> bool {
    let member = &cluster.members[at];
    let running = member.running.as_ref().expect("it runs");
    running.core.lease_until().is_some_and(|until| member.clock(cluster.now) < until)
}

/// An idle group would cost its nodes messages and ticks for ever, or one that sleeps lose what is proposed, or its
/// leader.
#[test]
fn an_idle_group_sleeps_and_goes_on_where_it_was() {
    for (seed, voters) in [(1, 1), (2, 2), (3, 3), (4, 5)] {
        let mut cluster = cluster(seed, voters, 0);
        cluster.run(3000);
        let leader = leads_at(&cluster);
        cluster.propose();
        cluster.run(1500);
        assert_eq!(asleep(&cluster), voters as usize, "seed {seed}");
        let sent = cluster.counts.sent;
        cluster.run(60_000);
        assert_eq!((cluster.counts.sent, asleep(&cluster)), (sent, voters as usize), "seed {seed}: not a word");
        assert_eq!((leads_at(&cluster), cluster.counts.given_up), (leader, 0));
        assert!(voters == 1 || !may_read(&cluster, leader), "its lease has ended");
        cluster.propose();
        cluster.run(20);
        assert_eq!(cluster.counts.acknowledged, 2, "seed {seed}: at once");
        cluster.run(3000);
        assert_eq!(asleep(&cluster), voters as usize, "seed {seed}: it sleeps again");
        assert_eq!(leads_at(&cluster), leader, "seed {seed}: without an election");
        cluster.settle();
    }
}

/// A read at a leader that sleeps would wait for ever, or be answered without a lease.
#[test]
fn a_wish_wakes_a_leader_and_its_lease_comes_with_one_round() {
    let mut cluster = cluster(7, 3, 0);
    cluster.run(6000);
    let leader = leads_at(&cluster);
    assert!(asleep(&cluster) == 3 && !may_read(&cluster, leader));
    cluster.step(leader, Input::Wake);
    assert!(!may_read(&cluster, leader), "not before somebody answered");
    cluster.run(5);
    assert!(may_read(&cluster, leader));
    // What a follower has is asked for: its leader tells it how new that is.
    cluster.run(6000);
    let follower = (leader + 1) % 3;
    assert_eq!(asleep(&cluster), 3);
    cluster.step(follower, Input::Wake);
    cluster.run(300);
    let now = cluster.members[follower].clock(cluster.now);
    let running = cluster.members[follower].running.as_mut().expect("it runs");
    let as_of = running.core.fresh_as_of(now).expect("it heard its leader");
    assert!(now.0 - as_of.0 < 300_000_000, "{} ns old", now.0 - as_of.0);
    cluster.settle();
}

/// The group would have no leader for ever after its leader's node died, or every group with a member there would wake.
#[test]
fn a_node_that_dies_wakes_what_it_led() {
    for seed in 0..20 {
        let mut cluster = cluster(seed, 3, 0);
        cluster.run(6000);
        assert_eq!(asleep(&cluster), 3, "seed {seed}");
        let leader = leads_at(&cluster);
        let follower = (leader + 1) % 3;
        cluster.crash(follower);
        let slept = cluster.counts.slept;
        cluster.run(5000);
        assert_eq!((leads_at(&cluster), asleep(&cluster)), (leader, 2), "seed {seed}: a dead follower wakes nobody");
        assert!(cluster.counts.slept - slept > 150, "seed {seed}: at no time");
        // It comes again, and wants to know what it is.
        cluster.start(follower);
        cluster.run(4000);
        assert_eq!((leads_at(&cluster), asleep(&cluster)), (leader, 3), "seed {seed}");
        cluster.crash(leader);
        cluster.run(4000);
        let next = leads_at(&cluster);
        assert_ne!(next, leader, "seed {seed}");
        cluster.propose();
        cluster.run(500);
        assert!(cluster.counts.acknowledged > 0, "seed {seed}: led again, and it commits");
        cluster.settle();
    }
}

/// A leader that sleeps by itself, with a follower that does not, would be replaced without need; or they would wait
/// for each other.
#[test]
fn a_follower_that_hears_nothing_wakes_its_leader() {
    let mut cluster = cluster(5, 3, 0);
    cluster.run(6000);
    let leader = leads_at(&cluster);
    let elections = cluster.counts.elections;
    for at in (0..3).filter(|at| *at != leader) {
        // As a message of before would.
        let running = cluster.members[at].running.as_mut().expect("it runs");
        running.core.stay_awake();
        assert_eq!(running.core.slumber(), None);
        cluster.run(5000);
        assert_eq!((asleep(&cluster), leads_at(&cluster)), (3, leader));
    }
    assert_eq!(cluster.counts.elections, elections);
}

/// Members of a build from before would be left without heartbeats, and elect somebody again and again.
#[test]
fn nobody_sleeps_before_all_know_how() {
    let mut cluster = cluster(8, 3, 1);
    cluster.crash(1);
    cluster.members[1].feature_level = 5;
    cluster.start(1);
    cluster.run(10_000);
    assert_eq!(cluster.counts.slept, 0);
    cluster.crash(1);
    cluster.members[1].feature_level = 6;
    cluster.start(1);
    cluster.run(10_000);
    assert_eq!(asleep(&cluster), 3);
    // A new member is heard before it counts.
    let leader = leads_at(&cluster);
    cluster.step(leader, Input::ChangeMembers(vec![MemberChange::Learner(NodeId(4))]));
    cluster.run(10_000);
    assert_eq!(asleep(&cluster), 4);
    let running = cluster.members[leader].running.as_ref().expect("it runs");
    assert!(matches!(running.core.slumber(), Some(Slumber::Leads { .. })));
    cluster.settle();
}

/// The same promises hold for groups that sleep now and then, and however quickly ticks come: no acknowledged command
/// is lost, no lease read stale, no two leaders in a term.
#[test]
fn random_faults_and_rests() {
    let mut total = Counts::default();
    for seed in 3000..3120 {
        let mut cluster = cluster(seed, if seed % 3 == 0 { 5 } else { 3 }, (seed % 2) as u32);
        cluster.hasty = seed % 4 == 0;
        add(&mut total, live(cluster, seed, seed % 2 == 1, 1500));
    }
    println!("{total:?}");
    assert!(total.slept > 20_000 && total.given_up > 100, "{total:?}");
    assert!(total.acknowledged > 3_000 && total.reads > 10_000 && total.elections > 100, "{total:?}");
}

/// A group with a member that is down would never sleep, or go on without that member when it is back.
#[test]
fn a_member_that_is_away_is_not_waited_for_and_comes_back() {
    for seed in 0..20 {
        let mut cluster = cluster(seed, 3, 0);
        cluster.run(6000);
        let leader = leads_at(&cluster);
        let away = (leader + 1) % 3;
        let node = |at: usize| NodeId(at as u32 + 1);
        let crashed = seed % 2 == 0;
        // It is down, or sleeps and hears nothing; the others go on, and sleep without it.
        match crashed {
            true => cluster.crash(away),
            false => (0..3).filter(|at| *at != away).for_each(|at| cluster.cuts.push((node(at), node(away)))),
        }
        cluster.propose();
        cluster.run(200);
        assert_eq!(cluster.counts.acknowledged, 1);
        let before = cluster.counts.sent;
        cluster.run(8000);
        if crashed {
            assert_eq!(asleep(&cluster), 2, "seed {seed}");
            cluster.start(away);
        }
        assert!(cluster.counts.sent > before);
        cluster.cuts.clear();
        cluster.run(8000);
        assert_eq!(asleep(&cluster), 3, "seed {seed}");
        let counts: Vec<u64> =
            cluster.members.iter().map(|member| member.running.as_ref().unwrap().state.count).collect();
        assert_eq!(counts, [1; 3], "seed {seed}: it has what it missed");
        cluster.settle();
    }
}

/// One whose process stood still sleeps on and lacks what was done meanwhile: its node is not told that all is well.
#[test]
fn a_member_that_stood_still_in_its_sleep_is_not_named() {
    let mut cluster = cluster(3, 3, 0);
    cluster.run(6000);
    let leader = leads_at(&cluster);
    let listeners = |cluster: &Cluster| cluster.members[leader].running.as_ref().unwrap().core.listeners();
    assert_eq!(listeners(&cluster).len(), 2);
    cluster.crash((leader + 1) % 3);
    cluster.propose();
    cluster.run(6000);
    assert_eq!((asleep(&cluster), listeners(&cluster)), (2, vec![NodeId(((leader + 2) % 3) as u32 + 1)]));
}
