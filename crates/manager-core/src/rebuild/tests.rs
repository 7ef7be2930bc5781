//! Losing the manager's state and making it anew from what the disks of a small cluster have.
use super::*;
use crate::apply::tests::{SECOND, cluster, ok, register, uuid};
use crate::command::{Command, CreatePgs, Disks, NodeAt, NodesDown, Register, Remove, ReplaceIn, ReplaceMembers, Swap};
use crate::items::{Disk, DiskState};
use crate::maintenance::Target;
use crate::{Outcome, Roles};

const NOW: WallTime = WallTime(1_795_000_000 * SECOND);

fn wanted() -> Wanted {
    Wanted { manager: NodeId(1), address: "10.0.0.1:7400".into(), names: BTreeMap::new(), now: NOW }
}

/// Four data nodes with a disk each, a meta node, a volume, two groups; one disk has left the second group's service.
fn before() -> State {
    let mut state = cluster(4);
    for disks in [[1, 2, 3], [2, 3, 4]] {
        let groups = vec![Disks { disks: disks.to_vec(), ..Disks::default() }];
        ok(&mut state, Command::CreatePgs(CreatePgs { volume: 1, scheme: 3, groups }));
    }
    let incarnation = state.node(NodeId(19)).expect("the fourth").incarnation.get();
    ok(&mut state, Command::NodesDown(NodesDown { nodes: vec![NodeAt { node: 19, incarnation }] }));
    state
}

fn record(pg: &Pg, state: &State) -> FoundPg {
    let node = |disk| state.disk(disk).expect("known").node;
    FoundPg {
        id: pg.id,
        volume: pg.volume,
        scheme: pg.scheme,
        epoch: pg.epoch,
        creation_epoch: pg.creation_epoch,
        high_water: 7,
        retired: pg.retired,
        // As disks are told of a group of copies: who joins is behind the members.
        members: (pg.members.iter().map(|m| (m.disk, m.state)))
            .chain(pg.joining.map(|j| (j.disk, j.state)))
            .map(|(disk, state)| (disk, node(disk), state))
            .collect(),
    }
}

fn found_partition(state: &State, partition: &Partition) -> FoundPartition {
    let volume = state.volume(partition.volume).expect("made");
    FoundPartition {
        id: partition.id,
        volume: volume.id,
        inodes: (partition.inode_first, partition.inode_last),
        layout: volume.layout,
        created: volume.created,
        era: 0,
    }
}

/// What all directories have when everybody heard of everything.
fn found(state: &State) -> Found {
    let cluster = state.cluster().expect("begun").id;
    let partitions = vec![found_partition(state, state.partitions().next().expect("made"))];
    let node = |node: &Node| FoundNode {
        path: format!("/node{}", node.id.get()),
        cluster,
        id: node.id,
        uuid: node.uuid,
        partitions: if node.roles.has(Roles::META) { partitions.clone() } else { Vec::new() },
    };
    let disk = |disk: &Disk| FoundDisk {
        path: format!("/disk{}", disk.id.get()),
        cluster,
        id: disk.id,
        uuid: disk.uuid,
        node: disk.node,
        pgs: state.pgs_of(disk.id).map(|pg| record(pg, state)).collect(),
    };
    Found { nodes: state.nodes().map(node).collect(), disks: state.disks().map(disk).collect() }
}

fn weights(remarks: &[Remark]) -> Vec<Weight> {
    let mut weights: Vec<_> = remarks.iter().map(|remark| remark.weight).collect();
    weights.dedup();
    weights
}

/// Files could not be read after the loss of all managers, or old managers could still decide.
#[test]
fn the_state_is_what_the_disks_have_and_fences_what_was() {
    let old = before();
    let (new, remarks) = rebuild(None, &found(&old), &wanted());
    let new = new.expect("a state");
    new.check_invariants();
    assert_eq!(weights(&remarks), [Weight::Note], "{remarks:?}");
    assert!(
        remarks.iter().any(|remark| remark.text.contains("drains, hibernations, marks of gray disks")),
        "{remarks:?}"
    );
    assert_eq!(new.cluster().map(|c| c.id), old.cluster().map(|c| c.id));
    for pg in old.pgs() {
        let again = new.pg(pg.id).expect("found");
        assert_eq!((&again.members, again.scheme, again.volume), (&pg.members, pg.scheme, pg.volume));
        assert!(again.epoch.0 >= pg.epoch.0 + EPOCH_STEP && again.index_floor == 7);
    }
    assert_eq!(new.volume_by_name("default").map(|v| v.id), Some(VolumeId(1)));
    assert_eq!(new.partitions().next().map(|p| p.members.clone()), old.partitions().next().map(|p| p.members.clone()));
    let (a, b) = (&new.next, &old.next);
    assert!(a.node > b.node && a.disk > b.disk && a.volume > b.volume && a.partition > b.partition && a.pg > b.pg);
    assert!(a.incarnation > b.incarnation && a.session > b.session && new.version() > old.version());
    assert!(new.node(NodeId(1)).is_some_and(|n| n.roles.has(Roles::MANAGER) && n.address == "10.0.0.1:7400"));
    // A second loss, later: higher again.
    let later = Wanted { now: WallTime(NOW.0 + 60 * SECOND), ..wanted() };
    let again = rebuild(None, &found(&new), &later).0.expect("a state");
    assert!(again.next.session > new.next.session && again.version() > new.version());
    assert!(again.pg(PgId(1)).expect("found").epoch > new.pg(PgId(1)).expect("found").epoch);
}

/// Nodes that run on would be strangers to the new manager.
#[test]
fn nodes_register_with_the_new_state() {
    let old = before();
    let mut new = rebuild(None, &found(&old), &wanted()).0.expect("a state");
    for number in 0..4 {
        let mut again = register(number, Roles::DATA, 1);
        (again.node, again.disks[0].disk) = (16 + number, 1 + number);
        let Outcome::Registered(registered) = ok(&mut new, Command::Register(again)) else { panic!() };
        assert_eq!((registered.node.get(), registered.disks[0].get()), (16 + number, 1 + number));
        assert!(registered.incarnation > old.node(registered.node).expect("known").incarnation);
    }
    // The manager's own process has a new directory.
    let manager = Register { node: 1, uuid: uuid(5, 1), ..Register::default() };
    ok(&mut new, Command::Register(manager));
    let other = Register { node: 2, uuid: uuid(5, 2), ..Register::default() };
    assert!(new.apply(NOW, &Command::Register(other)).outcome.is_err(), "an old manager is a stranger");
}

/// Somebody would take away a node that is not emptied any more.
#[test]
fn what_was_drained_is_told() {
    let mut old = before();
    let target = || Some((&crate::maintenance::Target::Node(NodeId(17))).into());
    ok(&mut old, Command::SetDrain(crate::command::SetDrain { target: target(), cancel: false }));
    ok(&mut old, Command::RevokeKeys(crate::command::RevokeKeys { names: vec!["alice".into()] }));
    let (new, remarks) = rebuild(Some(old.clone()), &found(&old), &wanted());
    let new = new.expect("a state");
    assert_eq!(new.drains().count(), 0);
    assert_eq!(new.revoked().map(|(name, _)| name).collect::<Vec<_>>(), ["alice"], "keys stay taken away");
    assert!(new.level() >= 27 && again(&new) == new);
    assert!(remarks.iter().any(|remark| remark.text.contains("cairn admin key revoke")), "{remarks:?}");
    assert!(remarks.iter().any(|remark| remark.text.contains("(the backup has: drain of node n17)")), "{remarks:?}");
}

/// A disk that was away when the map was rebuilt could never come back.
#[test]
fn what_was_not_found_is_said_and_may_come_back() {
    let old = before();
    let mut found = found(&old);
    found.disks.retain(|disk| disk.id != DiskId(2));
    found.nodes.retain(|node| node.id != NodeId(17));
    let (new, remarks) = rebuild(None, &found, &wanted());
    assert_eq!(remarks[0].weight, Weight::Missing, "{remarks:?}");
    let mut new = new.expect("a state");
    assert!(
        is_unseen(new.disk(DiskId(2)).expect("named").uuid) && is_unseen(new.node(NodeId(17)).expect("named").uuid)
    );
    let mut again = register(1, Roles::DATA, 1);
    (again.node, again.disks[0].disk) = (17, 2);
    let Outcome::Registered(registered) = ok(&mut new, Command::Register(again.clone())) else { panic!() };
    assert_eq!(registered.disks, [DiskId(2)]);
    ok(&mut new, Command::Register(again));
    // Its identity is known now: another one is a stranger.
    let mut thief = register(9, Roles::DATA, 1);
    (thief.node, thief.disks[0].disk) = (17, 2);
    assert!(new.apply(NOW, &Command::Register(thief)).outcome.is_err());
}

/// A stale state would be taken for the present one, and bytes that were acknowledged later be lost.
#[test]
fn the_highest_epoch_counts() {
    let old = before();
    let mut found = found(&old);
    // The first disk heard of nothing after the group was made.
    let stale = &mut found.disks[0].pgs[0];
    stale.epoch = Epoch(stale.epoch.0 - 1 + 1);
    let newer = |pg: &mut FoundPg| {
        pg.epoch = Epoch(pg.epoch.0 + 3);
        pg.members[0].2 = MemberState::Offline;
    };
    newer(&mut found.disks[1].pgs[0]);
    newer(&mut found.disks[2].pgs[0]);
    let new = rebuild(None, &found, &wanted()).0.expect("a state");
    let states: Vec<_> = new.pg(PgId(1)).expect("found").members.iter().map(|m| m.state).collect();
    assert_eq!(states, [MemberState::Offline, MemberState::Serving, MemberState::Serving]);
}

/// Somebody would have to guess which of two is right, and half of the files be lost by a wrong guess.
#[test]
fn contradictions_make_nothing() {
    let old = before();
    type Spoil = fn(&mut Found);
    let spoilt: [(&str, Spoil); 4] = [
        ("different clusters", |f| f.disks[0].cluster = ClusterId([1; 16])),
        ("both disk", |f| f.disks.push(FoundDisk { uuid: DiskUuid([8; 16]), ..f.disks[0].clone() })),
        ("copies of disk", |f| f.disks.push(f.disks[0].clone())),
        ("disagree about its members", |f| f.disks[0].pgs[0].members[2].0 = DiskId(4)),
    ];
    for (text, spoil) in spoilt {
        let mut found = found(&old);
        spoil(&mut found);
        let (new, remarks) = rebuild(None, &found, &wanted());
        assert!(new.is_none() && remarks[0].weight == Weight::Conflict, "{text}: {remarks:?}");
        assert!(remarks.iter().any(|remark| remark.text.contains(text)), "{text}: {remarks:?}");
    }
    assert!(rebuild(None, &Found::default(), &wanted()).0.is_none());
}

/// A deleted volume would come back, or its number be given to another one whose groups the disks drop.
#[test]
fn deleted_volumes_stay_deleted() {
    let old = before();
    let mut found = found(&old);
    for disk in &mut found.disks {
        let mut gone = disk.pgs.first().cloned().expect("each disk has a group");
        (gone.id, gone.volume, gone.retired) = (PgId(9), VolumeId(5), true);
        disk.pgs.retain(|pg| pg.id != PgId(9));
        if gone.members.iter().any(|member| member.0 == disk.id) && disk.id != DiskId(1) {
            gone.members = vec![
                (DiskId(2), NodeId(17), MemberState::Serving),
                (DiskId(3), NodeId(18), MemberState::Serving),
                (DiskId(4), NodeId(19), MemberState::Serving),
            ];
            gone.epoch = Epoch(3);
            disk.pgs.push(gone);
        }
    }
    let (new, remarks) = rebuild(None, &found, &wanted());
    let new = new.unwrap_or_else(|| panic!("{remarks:?}"));
    new.check_invariants();
    assert!(new.pg(PgId(9)).is_some_and(|pg| pg.retired && !pg.open));
    assert!(new.volume(VolumeId(5)).is_some_and(|volume| volume.deleted) && new.next.volume > 5);
}

/// What replaced disks have would be taken for the group's, or never go.
#[test]
fn disks_that_are_no_members_any_more_are_former_ones() {
    let old = before();
    let mut found = found(&old);
    let mut of_before = found.disks[0].pgs[0].clone();
    of_before.id = PgId(2);
    of_before.members = vec![(DiskId(1), NodeId(16), MemberState::Serving), of_before.members[1], of_before.members[2]];
    of_before.epoch = Epoch(1);
    found.disks[0].pgs.push(of_before);
    let new = rebuild(None, &found, &wanted()).0.expect("a state");
    let pg = new.pg(PgId(2)).expect("found");
    let former = Former { disk: DiskId(1), position: 0, served: true, complete: false, drop: false };
    assert_eq!(pg.formers, [former]);
}

/// A disk that was about to take a member's place would keep its copy for ever, and go on catching up with a group that
/// does not know it.
#[test]
fn who_was_joining_is_told_to_delete_what_it_has() {
    let mut old = cluster(4);
    let groups = vec![Disks { disks: vec![1, 2, 3], ..Disks::default() }];
    ok(&mut old, Command::CreatePgs(CreatePgs { volume: 1, scheme: 3, groups }));
    let swaps = vec![Swap { old: 1, new: 4 }];
    let begin = ReplaceMembers { groups: vec![ReplaceIn { pg: 1, epoch: 1, swaps }] };
    ok(&mut old, Command::BeginMoves(begin));
    assert_eq!(old.pg(PgId(1)).and_then(Pg::leaving), Some(DiskId(1)));
    let (new, remarks) = rebuild(None, &found(&old), &wanted());
    let new = new.expect("a state");
    new.check_invariants();
    let mut pg = new.pg(PgId(1)).expect("found").clone();
    let former = Former { disk: DiskId(4), position: 0, served: false, complete: false, drop: false };
    assert_eq!((&pg.formers[..], pg.is_complete()), (&[former][..], true), "{remarks:?}");
    assert!(pg.take_down(&[DiskId(1)]) && pg.rejoin(DiskId(1), |_| true) && pg.caught_up(&[DiskId(1)]));
    assert!(pg.formers[0].drop, "all members serve");
}

/// Names, settings and nodes that were away would be lost although a backup has them.
#[test]
fn a_backup_gives_names_settings_and_who_was_away() {
    let mut old = before();
    ok(
        &mut old,
        Command::CreateVolume(crate::command::CreateVolume {
            name: "home".into(),
            layout: Layout::replicated(2).to_bits(),
            ..Default::default()
        }),
    );
    let mut found = found(&old);
    let second = old.partitions().nth(1).expect("made").clone();
    found.nodes.iter_mut().filter(|n| !n.partitions.is_empty()).for_each(|node| {
        let home = FoundPartition { id: second.id, volume: second.volume, era: 3, ..node.partitions[0].clone() };
        node.partitions.push(home);
    });
    found.disks.retain(|disk| disk.id != DiskId(2));
    found.nodes.retain(|node| node.id != NodeId(17));
    let (new, remarks) = rebuild(Some(old.clone()), &found, &wanted());
    let new = new.expect("a state");
    new.check_invariants();
    assert_eq!(new.volume_by_name("home").map(|v| v.id), old.volume_by_name("home").map(|v| v.id));
    assert_eq!(new.disk(DiskId(2)).map(|d| d.uuid), old.disk(DiskId(2)).map(|d| d.uuid));
    assert_eq!(new.node(NodeId(17)).map(|n| n.uuid), old.node(NodeId(17)).map(|n| n.uuid));
    assert!(remarks.iter().all(|remark| remark.weight != Weight::Conflict), "{remarks:?}");
    // Without its partition's directory, the volume's names are missing, and that is said.
    found.nodes.iter_mut().for_each(|node| node.partitions.truncate(1));
    let (_, remarks) = rebuild(Some(old), &found, &wanted());
    assert!(remarks.iter().any(|r| r.weight == Weight::Missing && r.text.contains("restore it first")), "{remarks:?}");
}

/// A volume would be made without its root, or with names that nobody has, and nothing be said.
#[test]
fn a_volume_of_several_partitions_is_found_whole() {
    let mut old = before();
    ok(
        &mut old,
        Command::CreateVolume(crate::command::CreateVolume {
            name: "home".into(),
            partitions: 4,
            ..Default::default()
        }),
    );
    let all = {
        let mut all = found(&old);
        let more: Vec<FoundPartition> = old.partitions().skip(1).map(|p| found_partition(&old, p)).collect();
        all.nodes.iter_mut().filter(|n| !n.partitions.is_empty()).for_each(|node| node.partitions.extend(more.clone()));
        all
    };
    let without = |ids: &[u32]| {
        let mut found = all.clone();
        found.nodes.iter_mut().for_each(|node| node.partitions.retain(|p| !ids.contains(&p.id.get())));
        found
    };
    let said = |found: &Found, base: Option<&State>| {
        let (new, remarks) = rebuild(base.cloned(), found, &wanted());
        let of = |weight: Weight| {
            let texts = remarks.iter().filter(|remark| remark.weight == weight).map(|remark| remark.text.clone());
            texts.collect::<Vec<_>>().join("\n")
        };
        (new, of(Weight::Conflict), of(Weight::Missing), of(Weight::Note))
    };
    let (new, _, missing, note) = said(&all, None);
    let new = new.expect("a state");
    new.check_invariants();
    assert_eq!(new.partitions().filter(|p| p.volume == VolumeId(2)).count(), 4);
    assert!(new.next.partition > old.next.partition + 4096, "ids of a volume that was not found are not given again");
    assert!(!missing.contains("inodes") && note.contains("v2 is made of 4 partitions"), "{missing}\n{note}");
    assert!(!note.contains("v1 is made of"), "one that has all inodes has nothing behind it: {note}");
    let (_, _, missing, _) = said(&without(&[2]), None);
    assert!(missing.contains("inodes 1 to 1099511627775 of v2, its root among them,"), "{missing}");
    let (_, _, missing, _) = said(&without(&[3, 4]), None);
    assert!(missing.contains("inodes 1099511627776 to 3298534883327 of v2 belong"), "{missing}");
    // Of the last one only the backup knows.
    let (_, _, missing, note) = said(&without(&[5]), None);
    assert!(!missing.contains("v2") && note.contains("v2 is made of 3 partitions"), "{missing}\n{note}");
    let (_, _, missing, note) = said(&without(&[5]), Some(&old));
    assert!(
        missing.contains("p5 of the backup was found on no meta node") && !note.contains("is made of"),
        "{missing}"
    );
    let mut twice = all.clone();
    let partitions = twice.nodes.iter_mut().flat_map(|node| &mut node.partitions);
    partitions.filter(|p| p.id.get() == 4).for_each(|p| p.inodes.0 -= 1);
    let (new, conflict, ..) = said(&twice, None);
    assert!(new.is_none() && conflict.contains("p3 and p4 have the same inodes"), "{conflict}");
}

/// A list of before a split says that the range has no end: the partitions behind it would be in conflict with it.
#[test]
fn a_range_with_another_behind_it_has_an_end() {
    let mut old = before();
    let volume = old.partitions().next().expect("one").volume;
    let nodes: Vec<u32> = old.nodes().filter(|node| node.roles.has(Roles::META)).map(|node| node.id.get()).collect();
    let add = crate::more_partitions::AddPartitions {
        volume: volume.get(),
        add: 1,
        nodes: nodes.clone(),
        ..Default::default()
    };
    ok(&mut old, Command::AddPartitions(add));
    let first = old.partitions().next().expect("one").id.get();
    let ended =
        crate::more_partitions::RangeEnded { partition: first, inode_last: (1 << 40) - 1, nodes, members: Vec::new() };
    ok(&mut old, Command::RangeEnded(ended));
    let mut all = found(&old);
    let more = found_partition(&old, old.partitions().last().expect("two"));
    for node in all.nodes.iter_mut().filter(|node| !node.partitions.is_empty()) {
        node.partitions.truncate(1);
        node.partitions[0].inodes.1 = u64::MAX;
        node.partitions.push(more.clone());
    }
    let (new, remarks) = rebuild(None, &all, &wanted());
    let ranges: Vec<u64> = new.expect("a state").partitions().map(|p| p.inode_last).collect();
    assert_eq!(ranges, [(1 << 40) - 1, (2 << 40) - 1], "{remarks:?}");
}

/// A disk that was drained and taken out years ago would serve again, with what it had then.
#[test]
fn what_was_removed_stays_removed() {
    let mut old = cluster(5);
    let groups = vec![Disks { disks: vec![1, 2, 3], ..Disks::default() }];
    ok(&mut old, Command::CreatePgs(CreatePgs { volume: 1, scheme: 3, groups }));
    let remove = |target: Target| Command::Remove(Remove { target: Some((&target).into()) });
    ok(&mut old, remove(Target::Disk(DiskId(4))));
    let incarnation = old.node(NodeId(20)).expect("the fifth").incarnation.get();
    ok(&mut old, Command::NodesDown(NodesDown { nodes: vec![NodeAt { node: 20, incarnation }] }));
    ok(&mut old, remove(Target::Node(NodeId(20))));
    let all = {
        let mut all = found(&old);
        // It still has what it had as a member.
        let mut of_then = all.disks[0].pgs[0].clone();
        of_then.members[0] = (DiskId(4), NodeId(19), MemberState::Serving);
        let disk = all.disks.iter_mut().find(|disk| disk.id == DiskId(4)).expect("its directory");
        disk.pgs.push(of_then);
        all
    };
    let without = Found { disks: all.disks[..3].to_vec(), ..all.clone() };
    for (found, told) in [(&all, true), (&without, false)] {
        let (new, remarks) = rebuild(Some(old.clone()), found, &wanted());
        let new = new.expect("a state");
        new.check_invariants();
        for disk in [4, 5] {
            assert_eq!(new.disk(DiskId(disk)).map(|disk| disk.state), Some(DiskState::Removed), "d{disk}");
        }
        assert!(new.gone.contains(&NodeId(20)) && !new.gone.contains(&NodeId(19)));
        let up = |node| new.node(NodeId(node)).is_some_and(|node| node.up);
        assert!(up(19) && !up(20), "new partitions are seated on nodes that are up");
        let pg = new.pg(PgId(1)).expect("found");
        let members: Vec<DiskId> = pg.members.iter().map(|member| member.disk).collect();
        assert_eq!((members, pg.formers.len()), (vec![DiskId(1), DiskId(2), DiskId(3)], 0));
        assert_eq!(remarks.iter().any(|remark| remark.text.contains("d4 (/disk4) was removed")), told, "{remarks:?}");
    }
    // Without the backup nobody knows.
    let (new, _) = rebuild(None, &without, &wanted());
    assert_eq!(new.expect("a state").disk(DiskId(1)).map(|disk| disk.state), Some(DiskState::InService));
}

/// As it comes back from its checkpoint.
fn again(state: &State) -> State {
    let mut reader = crate::checkpoint::Reader::new();
    crate::checkpoint::write(state, |part| reader.feed(part)).expect("a sound state");
    reader.finish().expect("all of it")
}

/// Names of files in partitions that were not found would lead to files that are made later.
#[test]
fn ranges_that_others_may_have_are_not_given_again() {
    let mut old = before();
    ok(
        &mut old,
        Command::CreateVolume(crate::command::CreateVolume {
            name: "home".into(),
            partitions: 4,
            ..Default::default()
        }),
    );
    let nodes: Vec<u32> = old.nodes().filter(|node| node.roles.has(Roles::META)).map(|node| node.id.get()).collect();
    let add = || {
        Command::AddPartitions(crate::more_partitions::AddPartitions {
            volume: 2,
            add: 2,
            nodes: nodes.clone(),
            ..Default::default()
        })
    };
    let mut all = found(&old);
    // The last two are lost.
    let more: Vec<FoundPartition> = old.partitions().skip(1).take(2).map(|p| found_partition(&old, p)).collect();
    all.nodes.iter_mut().filter(|n| !n.partitions.is_empty()).for_each(|node| node.partitions.extend(more.clone()));
    let last = |state: &State| state.partitions().filter(|p| p.volume == VolumeId(2)).map(|p| p.inode_last).max();
    let behind = |made: &State, known: u64| {
        let firsts: Vec<u64> = made.partitions().map(|p| p.inode_first).filter(|first| *first > known).collect();
        firsts.iter().map(|first| (first - known - 1) >> 40).collect::<Vec<_>>()
    };
    for (base, known) in [(None, (2 << 40) - 1), (Some(old.clone()), last(&old).expect("four"))] {
        let with_base = base.is_some();
        let (new, remarks) = rebuild(base, &all, &wanted());
        let new = new.unwrap_or_else(|| panic!("{remarks:?}"));
        // It lasts as long as the state does.
        let mut new = again(&new);
        assert_eq!(new.level(), 25, "a build that would give them makes nothing of it");
        ok(&mut new, add());
        assert_eq!(behind(&new, known), [64, 65], "with a backup: {with_base}");
        new.check_invariants();
        ok(&mut new, add());
        assert_eq!(behind(&new, known), [64, 65, 66, 67]);
    }
}
