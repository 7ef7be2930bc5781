//! Who may hibernate, what is said to the others, and that nothing is repaired meanwhile.
use super::*;
use crate::apply::tests::{SECOND, cluster, ok, refused};
use crate::command::*;
use crate::repair;
use crate::soft::Soft;
use cairn_types::{NodeId, Time};

fn hibernate(target: Target, end: bool) -> Command {
    Command::Hibernate(Hibernate { target: Some((&target).into()), until_ns: 1_800 * SECOND, end })
}

fn node(id: u32) -> Target {
    Target::Node(NodeId(id))
}

fn rack(name: &str) -> Target {
    Target::Rack(name.into())
}

fn make_pg(state: &mut State, disks: &[u32]) {
    let groups = vec![Disks { disks: disks.to_vec(), ..Disks::default() }];
    ok(state, Command::CreatePgs(CreatePgs { volume: 1, scheme: disks.len() as u32, groups }));
}

fn due(state: &State) -> usize {
    let mut soft = Soft::default();
    repair::note_lost(state, &mut soft, Time(0));
    repair::plan(state, &soft, Time(100_000 * SECOND), |_| true, 7).groups.len()
}

/// A short absence that was announced would copy everything anew; or one that lasts too long nothing at all.
#[test]
fn nothing_is_repaired_while_it_hibernates() {
    let mut state = cluster(6);
    make_pg(&mut state, &[1, 2, 3]);
    ok(&mut state, hibernate(node(16), false));
    let incarnation = state.node(NodeId(16)).expect("known").incarnation.get();
    ok(&mut state, Command::NodesDown(NodesDown { nodes: vec![NodeAt { node: 16, incarnation }] }));
    assert!(state.hibernates(cairn_types::DiskId(1)) && !state.hibernates(cairn_types::DiskId(2)));
    assert_eq!(due(&state), 0);
    ok(&mut state, hibernate(node(16), true));
    assert_eq!(due(&state), 1);
    assert!(refused(&mut state, hibernate(node(16), true)).message.contains("does not hibernate"));
}

/// Two failure domains at once would take groups below what they need, although each alone does not.
#[test]
fn one_failure_domain_at_a_time() {
    let mut state = cluster(6);
    // Racks: 16 19, 17 20, 18 21; the meta node is in the first.
    ok(&mut state, hibernate(node(17), false));
    let text = refused(&mut state, hibernate(node(18), false)).message;
    assert!(text.contains("node n17 hibernates already") && text.contains("hibernate end node n17"), "{text}");
    ok(&mut state, hibernate(node(20), false));
    ok(&mut state, hibernate(rack("rack1"), false));
    ok(&mut state, hibernate(node(17), false));
    assert_eq!(state.hibernations().count(), 3, "all in one rack");
    for target in [node(17), node(20), rack("rack1")] {
        ok(&mut state, hibernate(target, true));
    }
    ok(&mut state, hibernate(rack("rack2"), false));
    assert!(refused(&mut state, hibernate(node(99), false)).message.contains("there is no node n99"));
    assert!(
        refused(&mut state, hibernate(Target::Disk(cairn_types::DiskId(1)), false))
            .message
            .contains("a node or a rack")
    );
}

/// Writers would wait until it is back, or nobody could use names.
#[test]
fn what_others_need_may_not_go() {
    let mut state = cluster(6);
    make_pg(&mut state, &[1, 4, 2]);
    let text = refused(&mut state, hibernate(rack("rack0"), false)).message;
    assert!(text.contains("pg1 would have 1 serving members, and writes need 2"), "{text}");
    ok(&mut state, hibernate(rack("rack1"), false));
    ok(&mut state, hibernate(rack("rack1"), true));
    let text = refused(&mut state, hibernate(node(22), false)).message;
    assert!(text.contains("p1 would have 0 of 1 members, no majority"), "{text}");
}
