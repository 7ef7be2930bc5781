//! What is said about a damaged cluster.
use super::{problems as found, *};
use crate::apply::tests::{SECOND, cluster, ok, register};
use crate::command::{
    Command, CreatePgs, CreateVolume, DiskAt, DiskStates, Disks, Hibernate, NodeAt, NodesDown, Remove, SetDrain,
    SetPartitionMembers,
};
use crate::items::Roles;
use crate::maintenance::Target;
use crate::soft::{PartitionLoad, Refused};
use cairn_types::{Epoch, NodeId, PartitionId, PgId};

fn problems(state: &State, soft: &Soft, now: WallTime) -> Vec<String> {
    found(state, soft, now).texts()
}

fn healthy() -> (State, Soft) {
    let mut state = cluster(3);
    for disks in [vec![1, 2, 3], vec![1], vec![1, 2]] {
        let scheme = disks.len() as u32;
        ok(
            &mut state,
            Command::CreatePgs(CreatePgs { volume: 1, scheme, groups: vec![Disks { disks, ..Disks::default() }] }),
        );
    }
    let mut soft = Soft::default();
    let load = PartitionLoad { leader: NodeId(19), report: Default::default() };
    soft.partitions.insert(PartitionId(1), load);
    (state, soft)
}

fn down(state: &mut State, nodes: &[u32]) {
    let at = |n: &u32| NodeAt { node: *n, incarnation: state.node(NodeId(*n)).expect("known").incarnation.get() };
    let nodes = nodes.iter().map(at).collect();
    ok(state, Command::NodesDown(NodesDown { nodes }));
}

/// A healthy cluster must be silent, or nobody reads the list.
#[test]
fn healthy_is_silent() {
    let (state, soft) = healthy();
    assert_eq!(problems(&state, &soft, WallTime(0)), Vec::<String>::new());
}

/// The operator has to learn what is lost, what it means and what to do, the worst first.
#[test]
fn a_dead_node_and_what_it_means() {
    let (mut state, soft) = healthy();
    down(&mut state, &[16]);
    let said = problems(&state, &soft, WallTime(26 * SECOND));
    assert_eq!(said.len(), 3, "{said:#?}");
    assert!(said[0].contains("1 placement group (pg2) cannot be read or written"), "{}", said[0]);
    assert!(said[0].contains("d1 (/data0/0 on n16, host host0)"), "{}", said[0]);
    assert!(
        said[1].contains("n16") && said[1].contains("has been down for 25 s: 3 placement groups lack it"),
        "{}",
        said[1]
    );
    assert!(said[2].contains("2 placement groups (pg1, pg3) have fewer copies"), "{}", said[2]);
    // The next loss would stop writes to both, so the shorter time counts.
    assert!(said[2].contains("replaced by other disks after 30s (repair_delay_urgent)"), "{}", said[2]);
    let target = Some((&Target::Node(NodeId(16))).into());
    let mut asleep = state.clone();
    ok(&mut asleep, Command::Hibernate(Hibernate { target, until_ns: 99 * SECOND, end: false }));
    let said = problems(&asleep, &soft, WallTime(26 * SECOND)).join("\n");
    assert!(
        said.contains("return: they hibernate, and nothing is repaired") && !said.contains("replaced by"),
        "{said}"
    );
    down(&mut state, &[17]);
    let said = problems(&state, &soft, WallTime(26 * SECOND));
    assert!(said.iter().any(|p| p.contains("can be read but not written")), "{said:#?}");
    ok(&mut state, Command::Register(register(0, Roles::DATA, 1)));
    let said = problems(&state, &soft, WallTime(26 * SECOND));
    assert!(said.iter().any(|p| p.contains("pg3")), "{said:#?}");
}

/// A cluster with lost blocks would be called healthy, or one whose group is gone damaged for ever.
#[test]
fn blocks_that_cannot_be_healed_are_named() {
    let (state, mut soft) = healthy();
    soft.unhealed.insert((PgId(1), DiskId(2)), (57, false));
    soft.unhealed.insert((PgId(2), DiskId(3)), (5, false));
    let said = problems(&state, &soft, WallTime(0));
    assert_eq!(said.len(), 1, "d3 is no member of pg2: {said:#?}");
    assert!(
        said[0].starts_with("57 blocks are bad and cannot be healed now: 57 of pg1 on d2 (/data1/0 on n17)"),
        "{}",
        said[0]
    );
    soft.unhealed.insert((PgId(3), DiskId(1)), (1, true));
    assert!(problems(&state, &soft, WallTime(0))[0].starts_with("at least 58 blocks are bad"));
}

/// A cluster would be called healthy while members that serve lack chunks, or while nobody has them any more.
#[test]
fn chunks_that_are_missing_or_lost_are_named() {
    let (state, mut soft) = healthy();
    soft.missing.insert((PgId(1), DiskId(2)), (3, 1));
    soft.missing.insert((PgId(2), DiskId(3)), (5, 0));
    let said = problems(&state, &soft, WallTime(0));
    assert_eq!(said.len(), 2, "d3 is no member of pg2: {said:#?}");
    assert!(said[0].starts_with("1 chunk is lost: damaged or gone"), "{}", said[0]);
    assert!(
        said[0].contains("1 of pg1 on d2 (/data1/0 on n17)") && said[0].contains("cairn admin fsck"),
        "{}",
        said[0]
    );
    assert!(said[1].starts_with("2 chunks are missing on members that serve: 2 of pg1 on d2"), "{}", said[1]);
    soft.missing.insert((PgId(3), DiskId(1)), (1, 0));
    assert!(problems(&state, &soft, WallTime(0))[1].starts_with("3 chunks are missing"));
}

/// A group would refuse what clients write while the status says that nothing is wrong.
#[test]
fn what_clients_are_refused_for_is_named_with_a_next_step() {
    let (mut state, mut soft) = healthy();
    let refused = |count| Refused { count, seconds: 4, text: "pg1 is at e9".into(), epoch: Epoch(9) };
    soft.refused.insert((PgId(1), DiskId(2), true, 63), refused(40));
    soft.refused.insert((PgId(3), DiskId(2), true, 63), refused(7));
    soft.refused.insert((PgId(1), DiskId(1), false, 65), refused(3));
    soft.refused.insert((PgId(2), DiskId(3), false, 63), refused(3));
    let said = problems(&state, &soft, WallTime(0));
    assert_eq!(said.len(), 2, "d3 is no member of pg2: {said:#?}");
    assert!(
        said[0].starts_with("writes of clients are refused in 2 placement groups (pg1, pg3): d2 (/data1/0 on n17)")
    );
    assert!(said[0].contains("answered 40 times in 4 s of pg1: pg1 is at e9 (NotServing); the member"), "{}", said[0]);
    assert!(said[1].starts_with("reads of clients") && said[1].contains("check the device"), "{}", said[1]);
    // Whoever makes up an epoch, or goes by one of before, is refused by members that are where they should be.
    soft.refused.clear();
    let known = state.pg(PgId(1)).expect("made").epoch;
    let stale = |epoch| Refused { epoch, ..refused(40) };
    soft.refused.insert((PgId(1), DiskId(1), true, 2), stale(known));
    assert!(problems(&state, &soft, WallTime(0)).is_empty(), "the group is in order");
    soft.refused.insert((PgId(1), DiskId(1), true, 2), stale(Epoch(known.get() - 1)));
    let said = problems(&state, &soft, WallTime(0));
    assert!(said.len() == 1 && said[0].contains("does not have the epoch that the manager gave"), "{said:#?}");
    // An epoch of which the manager knows nothing.
    soft.refused.clear();
    soft.ahead.insert((PgId(1), DiskId(2)), known);
    assert!(problems(&state, &soft, WallTime(0)).is_empty(), "it is known");
    soft.ahead.insert((PgId(1), DiskId(2)), Epoch(known.get() + 3));
    let said = problems(&state, &soft, WallTime(0));
    assert!(said.len() == 1 && said[0].contains("d2 has e4 of pg1, the manager knows e1"), "{said:#?}");
    assert!(said[0].starts_with("1 placement group (pg1) cannot be written") && said[0].contains("recover.md"));
    // What the state tells is told once.
    soft.ahead.clear();
    soft.refused.insert((PgId(2), DiskId(1), true, 63), refused(40));
    soft.refused.insert((PgId(1), DiskId(1), true, 63), refused(40));
    assert!(problems(&state, &soft, WallTime(0)).join("\n").contains("2 placement groups (pg1, pg2)"));
    down(&mut state, &[16]);
    assert!(!problems(&state, &soft, WallTime(0)).join("\n").contains("writes of clients"), "nor by who is down");
}

/// A failed disk, a partition without leader, a mute node must be named.
#[test]
fn disks_partitions_and_mute_nodes() {
    let (mut state, mut soft) = healthy();
    soft.partitions.clear();
    soft.mute.insert(NodeId(17), true);
    soft.node_problems.insert(NodeId(18), "no space in /x for its log".into());
    let incarnation = state.node(NodeId(18)).expect("known").incarnation.get();
    let failed = DiskAt { disk: 3, incarnation, state: 1, problem: "sync failed: EIO".into() };
    ok(&mut state, Command::DiskStates(DiskStates { disks: vec![failed] }));
    let said = problems(&state, &soft, WallTime(60 * SECOND)).join("\n");
    assert!(said.contains("p1 (volume default) reports no leader"), "{said}");
    assert!(said.contains("d3 (/data2/0 on n18) is failed: sync failed: EIO"), "{said}");
    assert!(said.contains("n17") && said.contains("sends no heartbeats"), "{said}");
    assert!(said.contains("n18 (") && said.contains("): no space in /x for its log"), "{said}");
}

/// A cluster whose dead nodes were replaced would be called healthy, and nobody would ever look at them.
#[test]
fn a_lost_node_is_named_until_it_is_removed_or_hibernates() {
    let (mut state, soft) = healthy();
    for (number, roles) in [(8, Roles::DATA), (9, Roles::META)] {
        let disks = u32::from(roles == Roles::DATA);
        ok(&mut state, Command::Register(register(number, roles, disks)));
    }
    down(&mut state, &[20, 21]);
    let said = problems(&state, &soft, WallTime(0));
    assert_eq!(said.len(), 2, "{said:#?}");
    assert!(said[0].contains("nothing needs it any more") && said[0].ends_with("`cairn admin node remove n20`"));
    assert!(said[1].ends_with("`cairn admin node remove n21`"), "{said:#?}");
    let target = Some((&Target::Node(NodeId(20))).into());
    let mut asleep = state.clone();
    ok(&mut asleep, Command::Hibernate(Hibernate { target, until_ns: 99 * SECOND, end: false }));
    assert_eq!(problems(&asleep, &soft, WallTime(0)), said[1..], "who hibernates is down as announced");
    for node in [20, 21] {
        let target = Some((&Target::Node(NodeId(node))).into());
        ok(&mut state, Command::Remove(Remove { target }));
    }
    assert_eq!(problems(&state, &soft, WallTime(0)), Vec::<String>::new());
    // The only member of a partition is one.
    down(&mut state, &[19]);
    let said = problems(&state, &soft, WallTime(26 * SECOND));
    assert!(said.len() == 1 && said[0].contains("p1 cannot be used without it"), "{said:#?}");
}

/// An alarm would ring for what was announced, or be silent when files cannot be read.
#[test]
fn severities() {
    let (mut state, soft) = healthy();
    let severities = |state: &State| -> Vec<Severity> {
        found(state, &soft, WallTime(26 * SECOND)).in_order().into_iter().map(|problem| problem.severity).collect()
    };
    ok(&mut state, Command::Register(register(8, Roles::DATA, 1)));
    down(&mut state, &[20]);
    assert_eq!(severities(&state), [Severity::Warning], "it holds nothing");
    down(&mut state, &[18]);
    // The node, and the group that lacks it.
    assert_eq!(severities(&state), [Severity::Warning; 3]);
    let target = Some((&Target::Node(NodeId(18))).into());
    ok(&mut state, Command::Hibernate(Hibernate { target, until_ns: 99 * SECOND, end: false }));
    assert_eq!(severities(&state), [Severity::Warning, Severity::Notice, Severity::Notice]);
    // The only copy of a group.
    down(&mut state, &[16]);
    assert_eq!(severities(&state)[0], Severity::Critical);
    down(&mut state, &[19]);
    assert_eq!(severities(&state)[..2], [Severity::Critical; 2], "the only member of a partition");
}

/// "It runs on its other members" of a partition without a majority would let people wait for nothing.
#[test]
fn a_partition_without_a_majority_is_said_to_stand() {
    let (mut state, mut soft) = healthy();
    for number in [8, 9, 10] {
        ok(&mut state, Command::Register(register(number, Roles::META, 0)));
    }
    ok(&mut state, Command::CreateVolume(CreateVolume { name: "v".into(), ..CreateVolume::default() }));
    let made = state.partitions().last().expect("made").clone();
    let members: Vec<u32> = made.members.iter().map(|node| node.get()).collect();
    assert_eq!((made.id, members.len()), (PartitionId(2), 3));
    soft.partitions.insert(made.id, PartitionLoad { leader: made.members[0], report: Default::default() });
    down(&mut state, &members[1..2]);
    let said = problems(&state, &soft, WallTime(26 * SECOND)).join("\n");
    assert!(said.contains("p2 runs on its other members"), "{said}");
    let (start, never) = (said.find("start `cairn server` on n").expect("named"), said.find("If it never comes back"));
    assert!(never.is_some_and(|never| never > start), "what is done last stands before what is done first: {said}");
    down(&mut state, &members[2..]);
    let said = problems(&state, &soft, WallTime(26 * SECOND)).join("\n");
    assert!(
        said.contains("p2 cannot be used: most members are down") && !said.contains("If it never comes back"),
        "{said}"
    );
    assert!(!said.contains("  "), "a line is broken in the middle: {said}");
}

/// A cluster of many partitions would have a screen of thousands of lines, or hide which ones stand.
#[test]
fn many_partitions_are_few_lines() {
    let (mut state, mut soft) = healthy();
    for number in [8, 9, 10] {
        ok(&mut state, Command::Register(register(number, Roles::META, 0)));
    }
    ok(
        &mut state,
        Command::CreateVolume(CreateVolume { name: "v".into(), layout: 0, partitions: 30, members: Vec::new() }),
    );
    let said = problems(&state, &soft, WallTime(60 * SECOND));
    let line = said.iter().find(|said| said.contains("report no leader")).expect("30 of them");
    assert!(line.starts_with("30 partitions report no leader, p2 (volume v), p3 (volume v)"), "{line}");
    assert!(line.contains("p11 (volume v) and 20 more: their names cannot be read") && !line.contains("p12"), "{line}");
    assert_eq!(said.iter().filter(|said| said.contains("leader")).count(), 1, "{said:#?}");
    let made: Vec<_> = state.partitions().skip(1).cloned().collect();
    for partition in &made {
        soft.partitions
            .insert(partition.id, PartitionLoad { leader: partition.members[0], report: Default::default() });
        let members: Vec<u32> = partition.members.iter().map(|node| node.get()).collect();
        let renew = members[2];
        let wish = SetPartitionMembers { partition: partition.id.get(), members, renew };
        ok(&mut state, Command::SetPartitionMembers(wish));
    }
    let said = problems(&state, &soft, WallTime(60 * SECOND));
    assert_eq!(said.iter().filter(|said| said.contains("is getting the members")).count(), 10, "{said:#?}");
    assert!(said.iter().any(|said| said.starts_with("20 more partitions are getting other members")), "{said:#?}");
}

/// A member that holds one of two whole copies of a partition in the middle of a change would be removed as told.
#[test]
fn a_member_of_a_partition_that_changes_is_needed() {
    let (mut state, mut soft) = healthy();
    for number in [8, 9, 10] {
        ok(&mut state, Command::Register(register(number, Roles::META, 0)));
    }
    ok(&mut state, Command::CreateVolume(CreateVolume { name: "v".into(), ..CreateVolume::default() }));
    let made = state.partitions().last().expect("made").clone();
    let [first, second, third] = made.members[..] else { panic!("three members: {made:?}") };
    soft.partitions.insert(made.id, PartitionLoad { leader: first, report: Default::default() });
    let stranger =
        [19, 20, 21, 22].map(NodeId).into_iter().find(|node| !made.members.contains(node)).expect("four metas");
    let wish = |members: &[NodeId], renew| {
        let members = members.iter().map(|node| node.get()).collect();
        Command::SetPartitionMembers(SetPartitionMembers { partition: made.id.get(), members, renew })
    };
    // The third one is renewed, one that stays is down.
    ok(&mut state, wish(&made.members, third.get()));
    down(&mut state, &[second.get()]);
    let said = problems(&state, &soft, WallTime(26 * SECOND)).join("\n");
    assert!(!said.contains("nothing needs it any more"), "{said}");
    assert!(said.contains("p2 are changing their members, and shall have it as one"), "{said}");
    assert!(said.contains(&format!("`cairn admin partition move all {second} NODE`")), "{said}");
    assert!(said.contains("is getting the members") && !said.contains("leave when that is done"), "{said}");
    assert!(!said.contains("; :") && !said.contains(";  "), "{said}");
    // One that shall leave has what the newcomer lacks.
    ok(&mut state, wish(&[first, third, stranger], 0));
    let said = problems(&state, &soft, WallTime(26 * SECOND)).join("\n");
    assert!(said.contains("p2 are changing their members and need it until that is done"), "{said}");
    assert!(said.contains(&format!("; {second} leave when that is done")) && !said.contains("node remove"), "{said}");
}

/// A disk that failed and was replaced everywhere would be told as one that groups lack.
#[test]
fn a_failed_disk_that_nothing_needs_can_be_removed() {
    let (mut state, soft) = healthy();
    ok(&mut state, Command::Register(register(8, Roles::DATA, 1)));
    let disk = state.disks().map(|d| d.id.get()).max().expect("new");
    let incarnation = state.node(NodeId(20)).expect("known").incarnation.get();
    let failed = DiskAt { disk, incarnation, state: 1, problem: "EIO".into() };
    ok(&mut state, Command::DiskStates(DiskStates { disks: vec![failed] }));
    let said = problems(&state, &soft, WallTime(0)).join("\n");
    assert!(said.contains("no placement group needs it any more; `cairn admin disk remove"), "{said}");
}

/// A new leader would say of a cluster that is well that it has no leaders, no names and the space of each directory.
#[test]
fn a_new_leader_knows_when_all_have_reported() {
    let (mut state, mut soft) = healthy();
    assert!(!soft.is_complete(&state), "no disk was heard of");
    soft.disks.extend((1..=3).map(|disk| (DiskId(disk), Default::default())));
    assert!(soft.is_complete(&state));
    soft.disks.remove(&DiskId(1));
    assert!(!soft.is_complete(&state));
    down(&mut state, &[16]);
    assert!(soft.is_complete(&state), "who is down reports nothing");
    soft.partitions.clear();
    assert!(!soft.is_complete(&state));
}

/// Damage that keeps a member from catching up would be in the log of one node only.
#[test]
fn a_member_that_cannot_catch_up_is_named() {
    let (mut state, mut soft) = healthy();
    let at = (PgId(1), DiskId(1));
    soft.pg_waits.insert(at, "pg1/7: no member has block 3".into());
    assert_eq!(problems(&state, &soft, WallTime(0)), Vec::<String>::new(), "it serves");
    down(&mut state, &[16]);
    ok(&mut state, Command::Register(register(0, Roles::DATA, 1)));
    let said = problems(&state, &soft, WallTime(26 * SECOND)).join("\n");
    assert!(said.contains("1 member cannot catch up") && said.contains("d1 in pg1: pg1/7: no member has"), "{said}");
    assert!(said.contains("their members are catching up now: d1 in pg1"), "{said}");
}

/// Somebody would wait for a drain that cannot end, beside a screen that says that nothing is wrong.
#[test]
fn a_drain_that_does_not_go_on_is_a_problem() {
    let (mut state, mut soft) = healthy();
    let drain = |cancel| Command::SetDrain(SetDrain { target: Some((&Target::Node(NodeId(17))).into()), cancel });
    ok(&mut state, drain(false));
    assert_eq!(problems(&state, &soft, WallTime(0)), Vec::<String>::new(), "it begins");
    soft.unmoved.insert((PgId(1), DiskId(2)), "no disk that may take it is outside pg1: add a disk".into());
    // Of another node, and of nobody any more.
    soft.unmoved.insert((PgId(2), DiskId(1)), "x".into());
    soft.unmoved.insert((PgId(2), DiskId(2)), "x".into());
    let said = problems(&state, &soft, WallTime(0));
    let wanted = "the drain of node n17 does not go on: 1 member cannot leave (d2 in pg1): d2 in pg1: no disk that may take it is \
                  outside pg1: add a disk";
    assert_eq!(said, [wanted]);
    // Then that is what is told.
    down(&mut state, &[18]);
    let said = problems(&state, &soft, WallTime(0)).join("\n");
    assert!(said.contains("has fewer copies") && !said.contains("the drain of"), "{said}");
    ok(&mut state, Command::Register(register(2, Roles::DATA, 1)));
    soft.unmoved.insert((PgId(3), DiskId(2)), "y".into());
    ok(&mut state, drain(true));
    assert!(!problems(&state, &soft, WallTime(0)).join("\n").contains("the drain of"), "it was cancelled");
}

/// Whoever makes a volume would be told that it cannot be used; or a partition that stays without a leader be passed
/// over.
#[test]
fn a_partition_that_was_just_made_is_not_critical() {
    let (mut state, soft) = healthy();
    for number in [8, 9, 10] {
        ok(&mut state, Command::Register(register(number, Roles::META, 0)));
    }
    ok(&mut state, Command::CreateVolume(CreateVolume { name: "v".into(), ..CreateVolume::default() }));
    let at = |seconds: u64| found(&state, &soft, WallTime(seconds * SECOND)).in_order();
    let young = at(3);
    assert!(young.iter().all(|problem| problem.severity != Severity::Critical), "{young:#?}");
    let told = young
        .iter()
        .find(|problem| problem.text.contains("p2 (volume v) was made a moment ago and reports no leader yet"));
    assert!(told.is_some_and(|problem| problem.severity == Severity::Notice), "{young:#?}");
    let old = at(60);
    assert!(
        old[0].severity == Severity::Critical && old[0].text.contains("p2 (volume v) reports no leader"),
        "{old:#?}"
    );
}

/// A partition that was restored and runs would be called unusable, and nobody be told how it gets its members again.
#[test]
fn a_restored_partition_runs_alone() {
    let (mut state, mut soft) = healthy();
    for number in [8, 9, 10] {
        ok(&mut state, Command::Register(register(number, Roles::META, 0)));
    }
    ok(&mut state, Command::CreateVolume(CreateVolume { name: "v".into(), ..CreateVolume::default() }));
    let made = state.partitions().last().expect("made").clone();
    let (leader, others) = (made.members[0], &made.members[1..]);
    let mut told = |voters: u32| {
        let report = cairn_wire::manager::PartitionReport { voters, ..Default::default() };
        soft.partitions.insert(made.id, PartitionLoad { leader, report });
        soft.clone()
    };
    let (alone, three) = (told(1), told(3));
    down(&mut state, &others.iter().map(|node| node.get()).collect::<Vec<_>>());
    let said = problems(&state, &alone, WallTime(60 * SECOND)).join("\n");
    let members = format!("{} {}", others[0], others[1]);
    assert!(said.contains(&format!("p2 (volume v) was restored on {leader} and runs there alone")), "{said}");
    assert!(
        said.contains(&format!("partition remove 2 {members}`"))
            && said.contains(&format!("partition add 2 {members}`"))
    );
    assert!(!said.contains("cannot be used") && said.contains("p2 runs without it since a restore"), "{said}");
    let said = problems(&state, &three, WallTime(60 * SECOND)).join("\n");
    assert!(said.contains("p2 cannot be used: most members are down") && !said.contains("restore"), "{said}");
}
