//! What may be removed, what is said when it may not, and what becomes of who comes back.
use super::*;
use crate::apply::tests::{SECOND, cluster, ok, refused, register};
use crate::apply::{Applied, Registered};
use crate::command::*;
use crate::pg::FORMERS_MAX;

fn remove(target: Target) -> Command {
    Command::Remove(Remove { target: Some((&target).into()) })
}

fn disk(id: u32) -> Command {
    remove(Target::Disk(DiskId(id)))
}

fn make_pg(state: &mut State, disks: &[u32]) -> PgId {
    let groups = vec![Disks { disks: disks.to_vec(), ..Disks::default() }];
    match ok(state, Command::CreatePgs(CreatePgs { volume: 1, scheme: disks.len() as u32, groups })) {
        Outcome::Pgs(pgs) => pgs[0],
        other => panic!("{other:?}"),
    }
}

fn down(state: &mut State, node: u32) -> Applied {
    let incarnation = state.node(NodeId(node)).expect("known").incarnation.get();
    let command = Command::NodesDown(NodesDown { nodes: vec![NodeAt { node, incarnation }] });
    let applied = state.apply(WallTime(SECOND), &command);
    state.check_invariants();
    applied
}

fn again(state: &mut State, number: u32) -> Registered {
    match ok(state, Command::Register(register(number, Roles::DATA, 1))) {
        Outcome::Registered(registered) => registered,
        other => panic!("{other:?}"),
    }
}

fn swap(state: &mut State, pg: PgId, old: u32, new: u32) {
    let epoch = state.pg(pg).expect("known").epoch.get();
    let groups = vec![ReplaceIn { pg: pg.get(), epoch, swaps: vec![Swap { old, new }] }];
    ok(state, Command::ReplaceMembers(ReplaceMembers { groups }));
    assert!(state.pg(pg).expect("known").disks().any(|disk| disk == DiskId(new)));
}

fn caught_up(state: &mut State, pg: PgId, disk: u32) {
    let epoch = state.pg(pg).expect("known").epoch.get();
    ok(state, Command::CaughtUp(CaughtUp { members: vec![MemberAt { pg: pg.get(), disk, epoch }] }));
}

/// The last copy would be forgotten with its disk, or a group wait for ever for one that never comes.
#[test]
fn a_disk_goes_when_nothing_needs_it() {
    let mut state = cluster(6);
    let pg = make_pg(&mut state, &[1, 2, 3]);
    let text = refused(&mut state, disk(1)).message;
    assert!(text.contains("d1 is a member of 1 placement groups (pg1): drain it first"), "{text}");
    let drain = |cancel| Command::SetDrain(SetDrain { target: Some((&Target::Node(NodeId(16))).into()), cancel });
    ok(&mut state, drain(false));
    let text = refused(&mut state, disk(1)).message;
    assert!(text.contains("it is being drained"), "it would be drained twice: {text}");
    ok(&mut state, drain(true));
    down(&mut state, 16);
    assert!(refused(&mut state, disk(1)).message.contains("replaced by repair after repair_delay"));
    swap(&mut state, pg, 1, 4);
    let text = refused(&mut state, disk(1)).message;
    assert!(
        text.contains("d1 may have what others lack of 1 placement groups that are not complete yet (pg1)"),
        "{text}"
    );
    assert!(refused(&mut state, disk(4)).message.contains("is a member"), "it is being filled");
    caught_up(&mut state, pg, 4);
    assert_eq!(state.pg(pg).expect("known").formers.len(), 1, "it would be waited for until it is back");
    ok(&mut state, disk(1));
    assert!(state.pg(pg).expect("known").formers.is_empty());
    assert!(refused(&mut state, disk(1)).message.contains("there is no disk d1"));
    assert!(refused(&mut state, disk(77)).message.contains("there is no disk d77"));
    // It comes back.
    let registered = again(&mut state, 0);
    assert_eq!((registered.node, registered.disks), (NodeId(16), vec![DiskId(0)]));
    assert!(registered.problems[0].contains("was removed from this cluster"), "{:?}", registered.problems);
    assert!(registered.problems[0].contains("delete everything in its directory"), "{:?}", registered.problems);
    assert!(!state.is_able(DiskId(1)));
    let mut other = register(0, Roles::DATA, 2);
    other.disks.remove(0);
    let Outcome::Registered(fresh) = ok(&mut state, Command::Register(other)) else { panic!("registered") };
    assert_eq!((fresh.disks, fresh.problems.len()), (vec![DiskId(7)], 0), "another disk of that node is welcome");
}

/// A node would be taken away with what it serves, or come back as if nothing had been.
#[test]
fn a_node_goes_when_it_is_empty_and_stopped() {
    let mut state = cluster(6);
    let node = |id: u32| remove(Target::Node(NodeId(id)));
    let pg = make_pg(&mut state, &[1, 2, 3]);
    assert!(refused(&mut state, node(17)).message.contains("d2 is a member of 1 placement groups"));
    assert!(refused(&mut state, node(20)).message.contains("n20 runs"), "{:?}", state.node(NodeId(20)));
    let meta = refused(&mut state, node(22)).message;
    assert!(meta.contains("partition move all n22"), "{meta}");
    assert!(
        refused(&mut state, remove(Target::Rack("rack1".into()))).message.contains("a rack is gone when its nodes are")
    );
    down(&mut state, 20);
    ok(&mut state, node(20));
    assert!(state.is_removed(NodeId(20)) && state.servers().all(|n| n.id != NodeId(20)));
    assert_eq!(state.disk(DiskId(5)).map(|disk| disk.state), Some(DiskState::Removed));
    let text = refused(&mut state, Command::Register(register(4, Roles::DATA, 1))).message;
    assert!(text.contains("n20 was removed from this cluster") && text.contains("delete everything"), "{text}");
    assert!(!text.contains("another cluster"), "{text}");
    assert!(refused(&mut state, node(20)).message.contains("there is no node n20"));
    assert!(state.pg(pg).expect("known").is_complete());
}

/// A group that has lost as many disks as are remembered could never be repaired again.
#[test]
fn removed_disks_make_room_among_the_former_ones() {
    let mut state = cluster(40);
    let pg = make_pg(&mut state, &[1, 2, 3]);
    let mut last = 1;
    for new in 4..4 + FORMERS_MAX as u32 {
        down(&mut state, last + 15);
        swap(&mut state, pg, last, new);
        caught_up(&mut state, pg, new);
        last = new;
    }
    let full = state.pg(pg).expect("known").clone();
    assert_eq!((full.formers_left(), full.is_complete()), (0, true));
    for gone in 1..last {
        if state.former_pgs_of(DiskId(gone)).next().is_some() {
            ok(&mut state, disk(gone));
        }
    }
    assert_eq!(state.pg(pg).expect("known").formers_left(), FORMERS_MAX);
}

/// A lost disk with the only copy of a group would be waited for without end: its removal is refused with what ends
/// that, and then done.
#[test]
fn a_lost_disk_with_single_copies_goes_when_its_groups_are_given_up() {
    let mut state = cluster(3);
    let pg = make_pg(&mut state, &[1]);
    down(&mut state, 16);
    let text = refused(&mut state, disk(1)).message;
    assert!(
        text.contains("`cairn admin pg force GROUP --lost d1`") && !text.contains("replaced by repair after"),
        "{text}"
    );
    let known = state.pg(pg).expect("known").clone();
    let soft = crate::soft::Soft::default();
    let planned =
        |heard: fn(NodeId) -> bool| crate::fresh::fresh(&state, &soft, &known, (&[DiskId(1)], &[], 1), heard, 7);
    assert!(planned(|_| false).unwrap_err().contains("add a disk"));
    let fresh = planned(|_| true).expect("two disks are there");
    assert!(fresh.len() == 1 && fresh[0].0 == DiskId(1) && fresh[0].1 != DiskId(1), "{fresh:?}");
    let force = |fresh: Vec<Swap>| {
        let (epoch, index_floor) = (known.epoch.get(), known.index_floor_of_none());
        Command::ForcePg(ForcePg { pg: pg.get(), epoch, lost: vec![1], promoted: Vec::new(), index_floor, fresh })
    };
    refused(&mut state, force(Vec::new()));
    ok(&mut state, force(vec![Swap { old: 1, new: fresh[0].1.get() }]));
    state.check_invariants();
    let group = state.pg(pg).expect("known");
    assert!(group.is_complete() && group.is_writable());
    ok(&mut state, disk(1));
    state.check_invariants();
}
