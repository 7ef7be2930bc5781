//! Wishes for other members of a meta partition, and their settlement.
use super::*;
use cairn_types::PartitionId;

const P: PartitionId = PartitionId(1);

/// Five meta nodes (n16 to n20), a volume whose partition has n16 to n18.
fn metas() -> State {
    let mut state = empty_cluster();
    for number in 0..3 {
        ok(&mut state, Command::Register(register(number, Roles::META, 0)));
    }
    ok(&mut state, Command::CreateVolume(CreateVolume { name: "default".into(), ..CreateVolume::default() }));
    for number in 3..5 {
        ok(&mut state, Command::Register(register(number, Roles::META, 0)));
    }
    state
}

fn nodes(ids: &[u32]) -> Vec<NodeId> {
    ids.iter().copied().map(NodeId).collect()
}

fn wish(members: &[u32]) -> Command {
    Command::SetPartitionMembers(SetPartitionMembers { partition: 1, members: members.to_vec(), renew: 0 })
}

fn settle(state: &mut State) {
    let wish = state.partition(P).expect("there").wish;
    ok(state, Command::PartitionSettled(PartitionSettled { partition: 1, wish }));
}

fn begun(state: &mut State, node: u32) {
    let members = vec![PartitionAt { partition: 1, node }];
    ok(state, Command::PartitionsBegun(PartitionsBegun { members }));
}

/// A member that left too early would take its vote along; one that came too early would begin a second group.
#[test]
fn a_member_is_replaced() {
    let mut state = metas();
    let mut first = state.partition(P).expect("there").members.clone();
    first.sort_unstable();
    assert_eq!(first, nodes(&[16, 17, 18]));
    for node in 16..=18 {
        begun(&mut state, node);
    }
    ok(&mut state, wish(&[16, 17, 19]));
    let p = state.partition(P).expect("there").clone();
    assert!(p.changed && p.members.len() == 4 && p.left.is_empty());
    assert_eq!((p.target.clone(), p.begun.clone()), (nodes(&[16, 17, 19]), nodes(&[16, 17, 18])));
    let version = state.version();
    ok(&mut state, wish(&[16, 17, 19]));
    assert_eq!(state.version(), version, "the same wish again is no news");
    begun(&mut state, 19);
    settle(&mut state);
    let p = state.partition(P).expect("there").clone();
    assert_eq!((p.members, p.left, p.begun), (nodes(&[16, 17, 19]), nodes(&[18]), nodes(&[16, 17, 19])));
    assert!(p.target.is_empty() && p.changed);
    // It may come back, with nothing.
    ok(&mut state, wish(&[16, 18, 19]));
    let p = state.partition(P).expect("there");
    assert!(p.left.is_empty() && !p.begun.contains(&NodeId(18)));
    let map = state.map(0, Scope::All, &Soft::default());
    assert!(map.partitions[0].changed && map.partitions[0].target == [16, 18, 19]);
}

/// A member whose directory is of before it had the partition would be told for ever that its log is missing.
#[test]
fn a_member_that_is_added_anew_may_begin_with_nothing() {
    let mut state = metas();
    (16..=18).for_each(|node| begun(&mut state, node));
    let members = vec![16, 17, 18];
    ok(&mut state, Command::SetPartitionMembers(SetPartitionMembers { partition: 1, members, renew: 17 }));
    let mut p = state.partition(P).expect("there").clone();
    p.members.sort_unstable();
    assert_eq!((p.members, p.target, p.begun), (nodes(&[16, 17, 18]), nodes(&[16, 17, 18]), nodes(&[16, 18])));
    assert!(p.changed, "it joins and begins no second group");
    begun(&mut state, 17);
    settle(&mut state);
    assert_eq!(state.partition(P).expect("there").begun, nodes(&[16, 17, 18]));
}

/// The same of one that has no vote yet: a change of members that waits for it would wait for ever.
#[test]
fn a_member_on_its_way_may_begin_with_nothing() {
    let mut state = metas();
    (16..=18).for_each(|node| begun(&mut state, node));
    ok(&mut state, wish(&[17, 18, 19]));
    begun(&mut state, 19);
    let before = state.partition(P).expect("there").wish;
    let renewed = SetPartitionMembers { partition: 1, members: vec![18, 19, 17], renew: 19 };
    ok(&mut state, Command::SetPartitionMembers(renewed));
    let p = state.partition(P).expect("there").clone();
    assert!(p.wish > before, "what was seen for the wish before is void");
    assert_eq!((p.target, p.begun), (nodes(&[18, 19, 17]), nodes(&[16, 17, 18])));
    begun(&mut state, 19);
    settle(&mut state);
    assert_eq!(state.partition(P).expect("there").members, nodes(&[18, 19, 17]));
}

/// A settlement that was seen for an older wish would drop the state of a member that votes.
#[test]
fn what_was_seen_for_an_older_wish_is_void() {
    let mut state = metas();
    ok(&mut state, wish(&[16, 17, 19]));
    let older = state.partition(P).expect("there").wish;
    ok(&mut state, wish(&[16, 17, 18]));
    ok(&mut state, Command::PartitionSettled(PartitionSettled { partition: 1, wish: older }));
    let p = state.partition(P).expect("there");
    assert_eq!((p.target.clone(), p.members.len()), (nodes(&[16, 17, 18]), 4), "n19 has to go first");
    settle(&mut state);
    let p = state.partition(P).expect("there");
    assert_eq!((p.left.clone(), p.members.len()), (nodes(&[19]), 3));
    let version = state.version();
    settle(&mut state);
    assert_eq!(state.version(), version, "settled once");
    ok(&mut state, wish(&[18, 17, 16]));
    assert_eq!(state.version(), version, "as it is already");
    // More and fewer are wishes as well.
    for wanted in [&[16, 17, 18, 19, 20][..], &[16]] {
        ok(&mut state, wish(wanted));
        assert_eq!(state.partition(P).expect("there").target, nodes(wanted));
        settle(&mut state);
        assert_eq!(state.partition(P).expect("there").members, nodes(wanted));
    }
}

/// A partition could get members that cannot carry it, or too few to go on.
#[test]
fn members_that_make_no_sense_are_refused() {
    let mut state = metas();
    for members in [&[][..], &[16, 17], &[16, 16, 17], &[16, 17, 99], &[16, 17, 18, 19], &[1]] {
        let error = refused(&mut state, wish(members));
        assert!(error.message.contains("1, 3 or 5 distinct meta nodes"), "{}", error.message);
    }
    let none = Command::SetPartitionMembers(SetPartitionMembers { partition: 7, members: vec![16], renew: 0 });
    assert_eq!(refused(&mut state, none).code, ErrorCode::UnknownPartition);
    ok(&mut state, wish(&[16, 19, 20]));
    ok(&mut state, Command::DeleteVolume(DeleteVolume { name: "default".into(), trashed_ns: 0 }));
    assert!(state.partition(P).expect("told").target.is_empty(), "nobody works for a deleted volume");
}

/// An older copy of a member would pass for the newest one, or a member that comes anew for an old copy.
#[test]
fn marks_of_members_only_grow_and_go_with_them() {
    use crate::command::PartitionMarks;
    use crate::marks::MarkOf;
    let mut state = metas();
    let (nodes, stranger) = ([16, 17, 18], 19);
    let version = state.version();
    let mark = |node, term, index| MarkOf { partition: 1, node, term, index };
    let tell = |state: &mut State, marks: Vec<MarkOf>| ok(state, Command::PartitionMarks(PartitionMarks { marks }));
    tell(&mut state, vec![mark(nodes[0], 3, 9), mark(nodes[1], 3, 8), mark(stranger, 3, 9)]);
    tell(&mut state, vec![mark(nodes[0], 3, 7), mark(nodes[1], 4, 1), MarkOf { partition: 9, ..mark(nodes[0], 3, 9) }]);
    assert_eq!(state.marks().collect::<Vec<_>>(), vec![mark(nodes[0], 3, 9), mark(nodes[1], 4, 1)]);
    assert_eq!(state.version(), version, "no part of the map");
    let mut bytes = Vec::new();
    crate::checkpoint::write(&state, |piece| {
        bytes.extend_from_slice(piece);
        Ok::<(), std::convert::Infallible>(())
    })
    .expect("memory");
    let mut reader = crate::checkpoint::Reader::new();
    reader.feed(&bytes).expect("sound");
    assert_eq!(reader.finish().expect("whole").marks().collect::<Vec<_>>(), state.marks().collect::<Vec<_>>());
    ok(&mut state, wish(&[stranger, nodes[1], nodes[2]]));
    assert_eq!(state.marks().count(), 2, "it may still vote");
    settle(&mut state);
    assert_eq!(state.marks().collect::<Vec<_>>(), vec![mark(nodes[1], 4, 1)]);
}
