//! Drains: durable, carried out by whoever leads, with the member serving until another disk has everything.
use super::cluster::{Managers, eventually};
use super::node::{Node, beat, member, told};
use cairn_types::{Epoch, MemberState};
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::data::PgState;
use cairn_wire::manager::{DrainRequest, Target};

fn now(managers: &Managers) -> PgState {
    managers.map().pgs[0].state.clone().expect("a state")
}

/// A drain would be forgotten with its leader, or a member leave before another one has what it has.
#[test]
fn a_new_leader_goes_on_with_a_drain() {
    let mut managers = Managers::start(3, 1, 6);
    managers.cluster();
    managers.set(&[("pgs_per_volume_max", "1"), ("repair_in_flight", "0")]);
    // Nobody counts as dead because the machine is busy.
    managers.set(&[("node_timeout", "10m"), ("probe_deadline", "60s")]);
    let mut nodes: Vec<Node> = (1..=6).map(|n| Node::start(&managers, n, "data", 1)).collect();
    let _meta = Node::start(&managers, 7, "meta", 0);
    let pg = eventually("a group", || managers.map().pgs.first().and_then(|pg| pg.state.clone()));
    beat(&mut nodes);
    let old = pg.members[1].disk;
    let target = Target { kind: 1, id: old, rack: String::new() };
    let drain = |cancel| DrainRequest { target: Some(target.clone()), cancel };
    let missing = managers.try_call::<Empty>(Opcode::Drain, &drain(true)).expect_err("nothing is drained");
    assert!(missing.to_string().contains("is not being drained"), "{missing}");
    let _begun: Empty = managers.call(Opcode::Drain, &drain(false));
    managers.kill(managers.leader());
    let status = managers.status();
    assert_eq!((status.drains.len(), status.drains[0].groups, status.drains[0].moving), (1, 1, 0));
    managers.set(&[("repair_in_flight", "1")]);
    let joined = eventually("another disk to join", || {
        beat(&mut nodes);
        Some(now(&managers)).filter(|pg| pg.members.len() == 4)
    });
    let new = joined.members[3].disk;
    assert_eq!((member(&joined, old), member(&joined, new)), (MemberState::Serving, MemberState::Syncing));
    assert_eq!(joined.filling, [new]);
    let status = managers.status();
    assert_eq!((status.drains[0].moving, status.pgs.expect("counts").complete), (1, 1), "it is whole meanwhile");
    assert!(status.repairs.iter().any(|repair| repair.disk == new && repair.replaces == old));
    let place = nodes.iter().position(|node| node.disk() == new).expect("a node");
    told(&nodes[place], pg.pg, Epoch(joined.epoch));
    nodes[place].catch_up();
    let moved = eventually("the place to be taken", || {
        beat(&mut nodes);
        Some(now(&managers)).filter(|pg| pg.members.len() == 3)
    });
    assert_eq!((moved.members[1].disk, member(&moved, new)), (new, MemberState::Serving));
    assert!(moved.formers[0].disk == old && moved.formers[0].drop, "what it has is on the others");
    assert_eq!(managers.status().drains[0].groups, 0);
}
