//! A lost disk with the only copy of a group: given up by word, in so many words, and then removed. And what a meta
//! node is told that is to be drained.
use super::cluster::{Managers, eventually};
use super::node::{Node, told};
use cairn_types::Epoch;
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::manager::{DrainRequest, ForcePgRequest, ForcePgResponse, RemoveRequest, Target};

/// The cluster would be CRITICAL for ever, and its lost disk be kept in the list for ever; or an empty disk serve
/// without a word.
#[test]
fn a_lost_disk_with_single_copies_is_got_rid_of() {
    let managers = Managers::start(1, 1, 2);
    managers.cluster();
    managers.set(&[("default_layout", "r1"), ("pgs_per_volume_max", "1"), ("node_timeout", "1s")]);
    let mut nodes: Vec<Node> = (1..=2).map(|n| Node::start(&managers, n, "data", 1)).collect();
    let meta = Node::start(&managers, 3, "meta", 0);
    let group = |managers: &Managers| {
        managers.map().pgs.into_iter().filter_map(|pg| pg.state).find(|pg| !pg.retired && pg.members.len() == 1)
    };
    let pg = eventually("a group", || group(&managers));
    let of_meta = Target { kind: 2, id: meta.id(), rack: String::new() };
    let drain = DrainRequest { target: Some(of_meta), cancel: false };
    let drained = managers.try_call::<Empty>(Opcode::Drain, &drain).expect_err("it has no disk").to_string();
    assert!(drained.contains(&format!("cairn admin partition move all n{}`", meta.id())), "{drained}");
    let lost = nodes.iter().position(|node| node.disk() == pg.members[0].disk).expect("a node");
    let disk = nodes[lost].disk();
    nodes[lost].kill();
    eventually("it to be down", || {
        nodes[1 - lost].heartbeat();
        managers.map().nodes.iter().any(|node| node.id == nodes[lost].id() && !node.up).then_some(())
    });
    let remove = RemoveRequest { target: Some(Target { kind: 1, id: disk, rack: String::new() }) };
    let refused = managers.try_call::<Empty>(Opcode::Remove, &remove).expect_err("it is a member").to_string();
    assert!(refused.contains(&format!("cairn admin pg force GROUP --lost d{disk}")), "{refused}");
    let request = |confirmed| ForcePgRequest { pg: pg.pg, lost_disks: vec![disk], confirmed };
    let told_only: ForcePgResponse = managers.call(Opcode::ForcePg, &request(false));
    assert!(told_only.meaning.contains("goes on empty") && told_only.meaning.contains("fsck"), "{}", told_only.meaning);
    assert_eq!(group(&managers).expect("there").members[0].disk, disk, "nothing was done");
    // The level may have to be activated first.
    let done = eventually("it to be done", || {
        nodes[1 - lost].heartbeat();
        managers.try_call::<ForcePgResponse>(Opcode::ForcePg, &request(true)).ok()
    });
    let new = nodes[1 - lost].disk();
    assert_eq!(done.serving, [new]);
    let now = group(&managers).expect("there");
    assert!(now.members[0].disk == new && now.epoch > pg.epoch && now.index_floor >= u32::MAX / 2, "{now:?}");
    told(&nodes[1 - lost], now.pg, Epoch(now.epoch));
    assert!(!managers.status().problems.iter().any(|problem| problem.contains("cannot be read or written")));
    managers.call::<Empty>(Opcode::Remove, &remove);
}
