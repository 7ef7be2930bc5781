//! What is entered when, that it is bounded, and that a checkpoint keeps it.
use super::*;
use crate::apply::tests::{cluster, ok, register};
use crate::command::*;
use crate::items::Roles;
use crate::maintenance::Target;

/// Names of kinds and texts of what was entered since.
fn since(state: &State, number: u64) -> Vec<(String, String)> {
    let new = state.events().filter(|event| event.number > number);
    new.map(|e| (Kind::from_code(e.kind).expect("known").name().to_owned(), e.text.clone())).collect()
}

fn make_pg(state: &mut State, disks: &[u32]) {
    let groups = vec![Disks { disks: disks.to_vec(), ..Disks::default() }];
    ok(state, Command::CreatePgs(CreatePgs { volume: 1, scheme: disks.len() as u32, groups }));
}

fn kinds(events: &[(String, String)]) -> Vec<&str> {
    events.iter().map(|(kind, _)| kind.as_str()).collect()
}

/// Nobody could say afterwards what had happened, or in which order.
#[test]
fn a_node_is_lost_and_comes_back() {
    let mut state = cluster(5);
    make_pg(&mut state, &[1, 2, 3]);
    make_pg(&mut state, &[1, 4, 5]);
    let last = state.next.event;
    let node = state.disk(DiskId(1)).expect("known").node;
    let incarnation = state.node(node).expect("known").incarnation.get();
    let down = vec![NodeAt { node: node.get(), incarnation }];
    ok(&mut state, Command::NodesDown(NodesDown { nodes: down.clone() }));
    let events = since(&state, last);
    assert_eq!(kinds(&events), ["node-down", "epochs"], "{events:?}");
    assert_eq!(events[1].1, "2 placement groups (pg1, pg2): a node is down");
    ok(&mut state, Command::NodesDown(NodesDown { nodes: down }));
    assert_eq!(since(&state, last).len(), 2, "what changes nothing is no event");
    let swaps = vec![Swap { old: 1, new: 4 }];
    let groups = vec![ReplaceIn { pg: 1, epoch: 2, swaps }];
    ok(&mut state, Command::ReplaceMembers(ReplaceMembers { groups }));
    let last = state.next.event;
    ok(&mut state, Command::CaughtUp(CaughtUp { members: vec![MemberAt { pg: 1, disk: 4, epoch: 3 }] }));
    let events = since(&state, last);
    assert_eq!(kinds(&events), ["epochs", "groups-whole"], "{events:?}");
    let last = state.next.event;
    ok(&mut state, Command::Register(register(0, Roles::DATA, 1)));
    let events = since(&state, last);
    assert_eq!(kinds(&events), ["node-up", "epochs"], "{events:?}");
    assert!(events[0].1.ends_with("is back"), "{events:?}");
    let of_node = state.events().filter(|event| event.node == node.get()).count();
    assert!(of_node >= 2, "an event names its node");
}

/// A drain that is over, a disk that is lost or gray, or a setting that somebody changed would leave no trace.
#[test]
fn wishes_and_disks_are_entered() {
    let mut state = cluster(5);
    make_pg(&mut state, &[1, 2, 3]);
    let last = state.next.event;
    let target = || Some((&Target::Disk(DiskId(1))).into());
    ok(&mut state, Command::SetDrain(SetDrain { target: target(), cancel: false }));
    let groups = vec![ReplaceIn { pg: 1, epoch: 1, swaps: vec![Swap { old: 1, new: 4 }] }];
    ok(&mut state, Command::BeginMoves(ReplaceMembers { groups }));
    ok(&mut state, Command::CaughtUp(CaughtUp { members: vec![MemberAt { pg: 1, disk: 4, epoch: 2 }] }));
    ok(&mut state, Command::SetGray(SetGray { disk: 5, gray: true, why: "slow".into() }));
    ok(&mut state, Command::SetGray(SetGray { disk: 5, ..SetGray::default() }));
    let item = ConfigValue { key: "repair_delay".into(), value: "1m".into() };
    ok(&mut state, Command::SetConfig(SetConfig { items: vec![item.clone()] }));
    let wrong = ConfigValue { key: "nothing".into(), ..item };
    ok(&mut state, Command::SetConfig(SetConfig { items: vec![wrong] }));
    let node = state.disk(DiskId(5)).expect("known").node;
    let incarnation = state.node(node).expect("known").incarnation.get();
    let lost = DiskAt { disk: 5, incarnation, state: 1, problem: "a sync failed".into() };
    ok(&mut state, Command::DiskStates(DiskStates { disks: vec![lost] }));
    let note =
        |kind: Kind| Command::Note(Note { kind: kind as u32, disk: 2, pg: 1, text: "n".into(), ..Note::default() });
    assert!(!last_bad_blocks(&state, PgId(1), DiskId(2)));
    ok(&mut state, note(Kind::BadBlocks));
    assert!(last_bad_blocks(&state, PgId(1), DiskId(2)));
    ok(&mut state, note(Kind::BlocksHealed));
    assert!(!last_bad_blocks(&state, PgId(1), DiskId(2)));
    ok(&mut state, Command::Note(Note { kind: 9_999, ..Note::default() }));
    let events = since(&state, last);
    let wanted = [
        "drain-begun",
        "move-begun",
        "epochs",
        "drain-done",
        "disk-gray",
        "disk-good",
        "settings",
        "disk-lost",
        "bad-blocks",
        "blocks-healed",
    ];
    assert_eq!(kinds(&events), wanted, "{events:?}");
    assert!(events[7].1.contains("a sync failed"), "{events:?}");
}

/// The list would grow for ever, or be gone with a checkpoint.
#[test]
fn bounded_and_kept() {
    let mut state = cluster(1);
    for n in 0..EVENTS_MAX + 10 {
        let text = format!("{n} {}", "x".repeat(1000));
        ok(&mut state, Command::Note(Note { kind: Kind::Leader as u32, node: 1, text, ..Note::default() }));
    }
    assert_eq!(state.events().count(), EVENTS_MAX);
    let numbers: Vec<u64> = state.events().map(|event| event.number).collect();
    assert!(numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]) && numbers.last() == Some(&state.next.event));
    assert!(state.events().all(|event| event.text.len() <= TEXT_MAX));
    let mut bytes = Vec::new();
    let written: Result<(), ()> = crate::checkpoint::write(&state, |piece| {
        bytes.extend_from_slice(piece);
        Ok(())
    });
    written.expect("nothing fails");
    let mut reader = crate::checkpoint::Reader::new();
    reader.feed(&bytes).expect("whole");
    assert!(reader.finish().expect("whole") == state);
}

/// Two kinds of one code would be told as each other after an upgrade.
#[test]
fn codes_and_names_are_unique() {
    for (i, kind) in Kind::ALL.iter().enumerate() {
        assert_eq!(Kind::from_code(*kind as u32), Some(*kind));
        assert!(Kind::ALL[i + 1..].iter().all(|other| *other as u32 != *kind as u32 && other.name() != kind.name()));
        assert!(!kind.meaning().is_empty());
    }
}

/// Two nodes would have one key, so that revoking it takes both down; or nobody could say whose key a node has, and
/// since when.
#[test]
fn a_node_is_bound_once_to_a_name_of_its_own_and_that_is_told() {
    let mut state = cluster(3);
    let ids: Vec<u32> = state.nodes().map(|node| node.id.get()).filter(|id| *id > 15).collect();
    let (first, second) = (ids[0], ids[1]);
    let bind = |state: &mut State, node: u32, holder: &str, former: &str| {
        ok(state, Command::BindNode(BindNode { node, holder: holder.into(), former: former.into() }));
    };
    let holder = |state: &State, node: u32| state.node(NodeId(node)).expect("known").holder.clone();
    let last = state.next.event;
    bind(&mut state, first, "a", "");
    bind(&mut state, first, "a", "");
    bind(&mut state, second, "a", "");
    bind(&mut state, second, "b", "");
    bind(&mut state, second, "c", "nobody's");
    assert_eq!((holder(&state, first), holder(&state, second)), ("a".to_owned(), "b".to_owned()));
    assert_eq!(state.other_holder(NodeId(second), "a"), Some(NodeId(first)));
    bind(&mut state, second, "c", "b");
    let events = since(&state, last);
    assert_eq!(kinds(&events), ["node-bound"; 3], "{events:?}");
    assert!(events[2].1.contains("key of c, and not that of b any more"), "{events:?}");
    // Whose place it is.
    let at = state.node(NodeId(first)).expect("known").address.clone();
    assert_eq!(state.other_at(None, &at, "a"), None);
    assert_eq!(state.other_at(Some(NodeId(first)), &at, "z"), None);
    assert_eq!(state.other_at(None, &at, "z"), Some(NodeId(first)));
}
