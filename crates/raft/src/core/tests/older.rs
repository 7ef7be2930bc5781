//! Members that are older copies of themselves.

use cairn_types::NodeId;

use super::cluster::Cluster;
use super::counts::{Counts, Faults};
use crate::{Input, Shut, Teller};

/// Long enough that none gives up waiting for the witness.
const PATIENT: u32 = 10_000;

/// A group of three in which the third member hears nothing from the leader, and a command is acknowledged by leader
/// and second member after a copy of their disks was kept. Leader, second and third.
fn one_lags(seed: u64, witness_ticks: u32) -> (Cluster, [usize; 3]) {
    let mut cluster = Cluster::new(seed, 3, 0);
    cluster.members.iter_mut().for_each(|member| member.witness_ticks = witness_ticks);
    cluster.run(2500);
    cluster.propose();
    cluster.run(500);
    let leader = cluster.leader().expect("a leader");
    let (second, third) = ((leader + 1) % 3, (leader + 2) % 3);
    let node = |at: usize| NodeId(at as u32 + 1);
    for other in [leader, second] {
        cluster.cuts.extend([(node(other), node(third)), (node(third), node(other))]);
    }
    cluster.remember();
    let before = cluster.counts.acknowledged;
    cluster.propose();
    cluster.run(300);
    assert!(cluster.counts.acknowledged > before, "seed {seed}: leader and second member are a majority");
    (cluster, [leader, second, third])
}

/// The second member is rolled back, the leader dies: second and third are a majority that lacks an acknowledged
/// command. If the second voted, the third would lead, and the command would be gone.
#[test]
fn an_older_copy_does_not_elect_one_that_lacks_what_was_acknowledged() {
    for seed in 0..40 {
        let (mut cluster, [leader, second, _]) = one_lags(seed, PATIENT);
        cluster.crash(leader);
        cluster.roll_back(second, 0);
        cluster.cuts.clear();
        cluster.run(8000);
        assert_eq!(cluster.leader(), None, "seed {seed}: nobody who is there has everything");
        let shut = cluster.shut(second);
        assert!(matches!(shut, Some(Shut::Older { by: Teller::Witness, .. })), "seed {seed}: {shut:?}");
        cluster.settle();
    }
}

/// The same where nobody outside the group can be asked, but the leader lives as long as it takes to ask it.
#[test]
fn a_member_is_told_by_another_one_that_it_is_older() {
    for seed in 0..40 {
        let (mut cluster, [leader, second, _]) = one_lags(seed, 0);
        cluster.roll_back(second, 0);
        cluster.run(400);
        let shut = cluster.shut(second);
        assert!(matches!(shut, Some(Shut::Older { by: Teller::Member(_), .. })), "seed {seed}: {shut:?}");
        cluster.crash(leader);
        cluster.cuts.clear();
        cluster.run(8000);
        assert_eq!(cluster.leader(), None, "seed {seed}: nobody who is there has everything");
        cluster.settle();
    }
}

/// A group that lost its power everywhere would wait for ever.
#[test]
fn members_that_start_together_agree() {
    for (voters, away) in [(1, 0), (2, 0), (3, 0), (5, 0), (3, 1), (5, 2)] {
        let mut cluster = Cluster::new(77 + u64::from(voters), voters, 0);
        cluster.run(2500);
        cluster.propose();
        cluster.run(500);
        (0..voters as usize).for_each(|at| cluster.crash(at));
        cluster.members.iter_mut().for_each(|member| member.witness_ticks = 40);
        // The witness knows nothing: it has lost its memory too.
        (away..voters as usize).for_each(|at| cluster.start(at));
        cluster.run(4500);
        assert!(cluster.leader().is_some(), "{voters} voters, {away} of them away");
        cluster.settle();
    }
}

/// The only member was rolled back: it has lost what was acknowledged, and only a person can say that this is accepted.
#[test]
fn the_only_member_waits_for_a_person() {
    let mut cluster = Cluster::new(3, 1, 0);
    cluster.members[0].witness_ticks = PATIENT;
    cluster.run(2500);
    cluster.remember();
    cluster.propose();
    cluster.run(500);
    cluster.roll_back(0, 0);
    cluster.run(5000);
    assert!(matches!(cluster.shut(0), Some(Shut::Older { .. })), "{:?}", cluster.shut(0));
    assert_eq!(cluster.leader(), None);
    cluster.forget_log();
    cluster.step(0, Input::AcceptLoss);
    cluster.run(3000);
    assert_eq!((cluster.leader(), cluster.shut(0)), (Some(0), None));
}

/// A removed member that starts with its old directory would vote and lead in a majority of such members.
#[test]
fn removed_members_do_not_lead() {
    for seed in 0..20 {
        let mut cluster = Cluster::new(seed, 3, 2);
        cluster.run(2500);
        cluster.propose();
        cluster.run(300);
        cluster.remember();
        let leader = cluster.leader().expect("a leader");
        let old: Vec<usize> = (0..3).filter(|&at| at != leader).collect();
        let node = |at: usize| NodeId(at as u32 + 1);
        for (out, new) in [(old[0], 3), (old[1], 4)] {
            cluster.crash(out);
            use crate::MemberChange::{Learner, Remove, Voter};
            for change in [Learner(node(new)), Voter(node(new)), Remove(node(out))] {
                cluster.step(leader, Input::ChangeMembers(vec![change]));
                cluster.run(3000);
            }
        }
        // With it the leader writes down that the changes are committed.
        cluster.propose();
        cluster.run(500);
        let members = cluster.members[leader].running.as_ref().expect("it runs").core.members();
        assert!(old.iter().all(|&at| !members.contains(node(at))), "seed {seed}: {members:?}");
        cluster.crash(leader);
        cluster.crash(3);
        cluster.crash(4);
        // The old majority comes back while one present member can be reached.
        cluster.start(leader);
        old.iter().for_each(|&at| cluster.roll_back(at, 0));
        cluster.run(8000);
        assert_eq!(cluster.leader(), None, "seed {seed}");
        for &at in &old {
            assert!(matches!(cluster.shut(at), Some(Shut::Left { .. })), "seed {seed}: {:?}", cluster.shut(at));
        }
        cluster.start(3);
        cluster.start(4);
        cluster.run(4000);
        assert!(cluster.leader().is_some_and(|at| !old.contains(&at)), "seed {seed}");
    }
}

/// Any one member at a time is rolled back, to any moment, among losses, crashes and cuts: nothing acknowledged is
/// lost.
#[test]
fn random_faults_and_rollbacks() {
    let mut total = Counts::default();
    for seed in 3000..3150 {
        let mut cluster = Cluster::new(seed, if seed % 3 == 0 { 5 } else { 3 }, 0);
        cluster.members.iter_mut().for_each(|member| member.witness_ticks = PATIENT);
        cluster.run(2500);
        for _ in 0..50 {
            let rng = &cluster.rng;
            cluster.faults = Faults {
                loss: if rng.chance(0.5) { 0.1 } else { 0.0 },
                repeat: if rng.chance(0.5) { 0.1 } else { 0.0 },
                delay_ms: if rng.chance(0.2) { 100 } else { 5 },
                disk_ms: if rng.chance(0.2) { 100 } else { 3 },
            };
            let count = cluster.members.len();
            let at = cluster.rng.index(count);
            let other = NodeId(1 + cluster.rng.index(count) as u32);
            match cluster.rng.range(0..6) {
                0 => cluster.crash(at),
                1 => cluster.cuts.push((NodeId(at as u32 + 1), other)),
                2 => cluster.cuts.clear(),
                3 if !cluster.somebody_is_older() && !cluster.members[at].history.is_empty() => {
                    let to = cluster.rng.index(cluster.members[at].history.len());
                    // In the middle of something, and sometimes the leader is gone as well.
                    (0..3).for_each(|_| cluster.propose());
                    let ms = cluster.rng.range(0..20);
                    cluster.run(ms);
                    if let Some(leader) = cluster.leader().filter(|leader| *leader != at && cluster.rng.chance(0.5)) {
                        cluster.crash(leader);
                    }
                    cluster.roll_back(at, to);
                }
                4 => cluster.checkpoint(at),
                _ => {}
            }
            for at in 0..cluster.members.len() {
                if cluster.members[at].running.is_none() && cluster.rng.chance(0.3) {
                    cluster.start(at);
                }
            }
            if cluster.rng.chance(0.3) {
                cluster.renew();
            }
            cluster.remember();
            for _ in 0..10 {
                cluster.propose();
                cluster.run(40);
            }
        }
        cluster.settle();
        let counts = cluster.counts;
        total.rollbacks += counts.rollbacks;
        total.older += counts.older;
        total.crashes += counts.crashes;
        total.acknowledged += counts.acknowledged;
        total.elections += counts.elections;
    }
    println!("{total:?}");
    assert!(total.rollbacks > 300 && total.older > 1_000 && total.crashes > 300, "{total:?}");
    assert!(total.acknowledged > 5_000 && total.elections > 300, "{total:?}");
}

/// A founder that comes back with an empty directory would be given a checkpoint of the time when it was the only
/// voter, elect itself by it, and lead a second group beside the one that added it.
#[test]
fn a_founder_that_comes_back_empty_goes_by_the_members_of_today() {
    use crate::MemberChange::{Learner, Remove, Voter};
    for seed in 0..20 {
        let mut cluster = Cluster::new(seed, 1, 2);
        let node = |at: usize| NodeId(at as u32 + 1);
        cluster.run(2500);
        cluster.propose();
        cluster.run(300);
        let changes = [(0, Learner(node(1))), (0, Voter(node(1))), (0, Learner(node(2))), (0, Voter(node(2)))];
        for (leader, change) in changes {
            cluster.step(leader, Input::ChangeMembers(vec![change]));
            cluster.run(1000);
        }
        cluster.crash(0);
        cluster.members[0].durable = super::member::Durable { fresh: true, ..Default::default() };
        cluster.run(6000);
        let leader = cluster.leader().expect("two of three elect one");
        cluster.step(leader, Input::ChangeMembers(vec![Remove(node(0))]));
        cluster.run(1000);
        cluster.start(0);
        cluster.step(leader, Input::ChangeMembers(vec![Learner(node(0))]));
        for _ in 0..300 {
            cluster.run(10);
            let running = cluster.members[0].running.as_ref().expect("it runs");
            assert!(!running.leads, "seed {seed}: it leads by itself");
            let members = running.core.members();
            assert!(members.voters.len() != 1, "seed {seed}: members of long ago: {members:?}");
        }
        cluster.settle();
    }
}

/// A member that lost its directory before it was ever registered begins once more as one of the first. Its leader went
/// by what it had acknowledged before, never sent it that again, and it followed nobody for ever.
#[test]
fn a_member_that_begins_once_more_is_filled() {
    for seed in 0..20 {
        let mut cluster = Cluster::new(seed, 3, 0);
        cluster.run(2500);
        (0..3).for_each(|_| cluster.propose());
        cluster.run(500);
        let leader = cluster.leader().expect("a leader");
        let lost = (leader + 1) % 3;
        cluster.crash(lost);
        cluster.run(200);
        cluster.empty(lost, 3);
        cluster.run(3000);
        assert_eq!(cluster.shut(lost), None, "seed {seed}");
        assert_eq!(cluster.leader(), Some(leader), "seed {seed}: nobody had to lead anew");
        cluster.settle();
    }
}

/// Terms of leaders that were forgotten would be given again, and whoever was told something in them take it for the
/// word of those.
#[test]
fn who_forgot_leads_in_later_terms() {
    let mut cluster = Cluster::new(3, 1, 0);
    cluster.members[0].witness_ticks = PATIENT;
    cluster.run(2500);
    cluster.remember();
    for _ in 0..5 {
        cluster.crash(0);
        cluster.start(0);
        cluster.run(3000);
    }
    cluster.propose();
    cluster.run(500);
    let term = |cluster: &Cluster| cluster.members[0].running.as_ref().expect("it runs").core.status().term;
    let before = term(&cluster);
    cluster.roll_back(0, 0);
    cluster.run(3000);
    assert!(matches!(cluster.shut(0), Some(Shut::Older { .. })), "{:?}", cluster.shut(0));
    cluster.forget_log();
    cluster.step(0, Input::AcceptLoss);
    cluster.run(3000);
    let status = |cluster: &Cluster| cluster.members[0].running.as_ref().expect("it runs").core.status();
    assert!(status(&cluster).forgot && cluster.leader() == Some(0) && term(&cluster) > before);
    cluster.step(0, Input::RaiseTerm(before + 100));
    cluster.run(3000);
    assert!(cluster.leader() == Some(0) && term(&cluster) > before + 100);
    cluster.step(0, Input::RaiseTerm(before));
    cluster.run(500);
    assert!(cluster.leader() == Some(0) && term(&cluster) > before + 100, "never back");
}

fn forgot(cluster: &Cluster, at: usize) -> bool {
    cluster.members[at].running.as_ref().expect("it runs").core.status().forgot
}

/// A member that a person let go on would make a healthy group ask everybody for what it alone has forgotten, once it
/// leads.
#[test]
fn what_was_forgotten_comes_from_a_leader_that_has_it() {
    for seed in 0..40 {
        let (mut cluster, [leader, second, third]) = one_lags(seed, PATIENT);
        cluster.cuts.clear();
        cluster.run(1000);
        let node = |at: usize| NodeId(at as u32 + 1);
        for other in [leader, third] {
            cluster.cuts.extend([(node(other), node(second)), (node(second), node(other))]);
        }
        cluster.roll_back(second, 0);
        cluster.step(second, Input::AcceptLoss);
        cluster.run(500);
        assert!(forgot(&cluster, second), "seed {seed}: nobody gave it what it lacks");
        cluster.cuts.clear();
        cluster.run(5000);
        let forgets: Vec<bool> = (0..3).map(|at| forgot(&cluster, at)).collect();
        assert_eq!(forgets, [false; 3], "seed {seed}");
        cluster.settle();
    }
}

/// A leader that has forgotten nothing itself, but was elected by one that has, may lack what was acknowledged; also if
/// that one's process ended in between.
#[test]
fn votes_of_members_that_forgot_elect_nobody_who_is_sure() {
    for seed in 0..40 {
        let (mut cluster, [leader, second, third]) = one_lags(seed, PATIENT);
        cluster.crash(leader);
        cluster.roll_back(second, 0);
        cluster.forget_log();
        // It has heard that it is older.
        cluster.run(500);
        cluster.step(second, Input::AcceptLoss);
        if seed % 2 == 0 {
            // The later term is durable.
            cluster.run(200);
            cluster.crash(second);
            cluster.start(second);
        }
        cluster.cuts.clear();
        cluster.run(5000);
        let leads = cluster.leader().expect("they are a majority");
        assert!(
            forgot(&cluster, leads) && forgot(&cluster, second),
            "seed {seed}: {leads} leads, {third} has forgotten nothing"
        );
        let term = cluster.members[leads].running.as_ref().expect("it runs").core.term();
        cluster.step(leads, Input::Recalled(term - 1));
        cluster.run(1000);
        assert!(forgot(&cluster, leads) && forgot(&cluster, second), "seed {seed}: that was for an earlier leader");
        cluster.step(leads, Input::Recalled(term));
        cluster.run(1000);
        assert!(!forgot(&cluster, second) && !forgot(&cluster, third), "seed {seed}");
        cluster.start(leader);
        cluster.run(3000);
        assert!((0..3).all(|at| !forgot(&cluster, at)), "seed {seed}");
    }
}

/// A leader that has everything would forget it with its next start, and make a healthy group ask everybody.
#[test]
fn a_leader_that_all_others_elected_has_forgotten_nothing() {
    let mut led = 0;
    for seed in 0..40 {
        let mut cluster = Cluster::new(seed, 3, 0);
        cluster.run(2500);
        cluster.propose();
        cluster.run(500);
        (0..3).for_each(|at| cluster.crash(at));
        cluster.start(0);
        cluster.step(0, Input::AcceptLoss);
        assert!(forgot(&cluster, 0), "seed {seed}: nobody was asked");
        cluster.run(300);
        (1..3).for_each(|at| cluster.start(at));
        cluster.run(5000);
        let core = &cluster.members[0].running.as_ref().expect("it runs").core;
        let is_sure = core.is_leader() && !core.status().forgot;
        led += u32::from(is_sure);
        assert!(!is_sure || !core.has_forgotten(), "seed {seed}: {:?}", core.status());
        cluster.settle();
    }
    assert!(led > 0, "others led each time");
}

/// The only member that has everything would be kept from leading by two that wait for it.
#[test]
fn two_older_copies_elect_the_whole_member() {
    for seed in 0..40 {
        let (mut cluster, [leader, second, third]) = one_lags(seed, PATIENT);
        cluster.cuts.clear();
        cluster.run(1000);
        // All are stopped, one after the other; whoever led before has to be elected anew.
        let whole = if seed % 2 == 0 { leader } else { third };
        let older: Vec<usize> = [leader, second, third].into_iter().filter(|at| *at != whole).collect();
        (0..3).for_each(|at| cluster.crash(at));
        older.iter().for_each(|&at| cluster.roll_back(at, 0));
        cluster.start(whole);
        cluster.run(10_000);
        assert_eq!(cluster.leader(), Some(whole), "seed {seed}");
        assert!((0..3).all(|at| cluster.shut(at).is_none()), "seed {seed}: they are filled");
        cluster.settle();
    }
}
