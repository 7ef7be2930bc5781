//! Members that are lost for long: replaced by the leader, whoever leads, and taken back when they return in time.
use super::cluster::{Managers, eventually};
use super::node::{Node, beat, told};
use cairn_types::{Epoch, MemberState};
use cairn_wire::data::PgState;
use cairn_wire::manager::PgReport;

/// Six data nodes, two in each rack, one r3 group; lost members are replaced at once.
fn cluster(count: usize) -> (Managers, Vec<Node>, Node, PgState) {
    let managers = Managers::start(count, 1, 6);
    managers.cluster();
    managers.set(&[("pgs_per_volume_max", "1"), ("repair_delay", "0s"), ("repair_delay_urgent", "0s")]);
    // Nobody counts as dead because the machine is busy.
    managers.set(&[("node_timeout", "10m"), ("probe_deadline", "60s")]);
    let mut nodes: Vec<Node> = (1..=6).map(|n| Node::start(&managers, n, "data", 1)).collect();
    let meta = Node::start(&managers, 7, "meta", 0);
    let pg = eventually("a group", || managers.map().pgs.first().and_then(|pg| pg.state.clone()));
    beat(&mut nodes);
    (managers, nodes, meta, pg)
}

fn now(managers: &Managers) -> PgState {
    managers.map().pgs[0].state.clone().expect("a state")
}

fn node_of(nodes: &[Node], disk: u32) -> usize {
    nodes.iter().position(|node| node.disk() == disk).expect("a node")
}

fn beat_all(nodes: &mut [Node], dead: &[usize]) {
    for (i, node) in nodes.iter_mut().enumerate().filter(|(i, _)| !dead.contains(i)) {
        assert!(!node.heartbeat().register_again, "node {i}");
    }
}

/// A dead node is marked down by somebody's report.
fn lose(managers: &Managers, pg: &PgState, nodes: &mut [Node], lost: usize) {
    nodes[lost].kill();
    let request = cairn_wire::manager::ReportMemberRequest {
        pg: pg.pg,
        epoch: pg.epoch,
        disk: nodes[lost].disk(),
        why: "gone".into(),
        session: 1,
    };
    let answer: cairn_wire::manager::ReportMemberResponse = managers.call(cairn_wire::Opcode::ReportMember, &request);
    assert!(answer.removed);
}

/// A lost disk would leave its groups short for ever; or the data of a disk that is back would be copied for nothing;
/// or a disk would delete what the group still needs.
#[test]
fn a_lost_member_is_replaced_taken_back_and_released() {
    let (managers, mut nodes, _meta, pg) = cluster(1);
    let lost = node_of(&nodes, pg.members[1].disk);
    let old = nodes[lost].disk();
    lose(&managers, &pg, &mut nodes, lost);
    let replaced = eventually("the replacement", || {
        beat_all(&mut nodes, &[lost]);
        Some(now(&managers)).filter(|pg| pg.members[1].disk != old)
    });
    let new = node_of(&nodes, replaced.members[1].disk);
    assert_eq!(replaced.members[1].state, u32::from(MemberState::Syncing.code()));
    assert_eq!((replaced.filling.clone(), replaced.formers[0].disk), (vec![nodes[new].disk()], old));
    told(&nodes[new], pg.pg, Epoch(replaced.epoch));
    // It comes back before the other one is complete.
    nodes[lost].restart();
    let back = eventually("the old disk to have its place again", || {
        beat_all(&mut nodes, &[]);
        Some(now(&managers)).filter(|pg| pg.members[1].disk == old)
    });
    assert!(back.filling.is_empty() && back.formers[0].disk == nodes[new].disk() && !back.formers[0].drop);
    told(&nodes[lost], pg.pg, Epoch(back.epoch));
    nodes[lost].catch_up();
    let whole = eventually("all to serve", || {
        beat_all(&mut nodes, &[]);
        Some(now(&managers)).filter(|pg| pg.formers.first().is_some_and(|f| f.drop))
    });
    // The one that was being filled deletes what it has, and says so.
    eventually("it to be told", || {
        beat_all(&mut nodes, &[]);
        let told = nodes[new].desk.lock().pgs[&pg.pg].clone();
        (told.epoch == whole.epoch && told.formers[0].drop).then_some(())
    });
    let mut heartbeat = nodes[new].heartbeat_of();
    let report =
        PgReport { disk: nodes[new].disk(), pg: pg.pg, epoch: whole.epoch, dropped: true, ..PgReport::default() };
    heartbeat.pgs.push(report);
    nodes[new].send(&heartbeat);
    eventually("it to be forgotten", || now(&managers).formers.is_empty().then_some(()));
    assert_eq!(now(&managers).epoch, whole.epoch);
}

/// A change of leaders in the middle would forget what is lost, or replace it twice.
#[test]
fn a_new_leader_goes_on_with_repair() {
    let (mut managers, mut nodes, _meta, pg) = cluster(3);
    managers.set(&[("repair_in_flight", "0")]);
    let lost = node_of(&nodes, pg.members[2].disk);
    let old = nodes[lost].disk();
    lose(&managers, &pg, &mut nodes, lost);
    assert_eq!(now(&managers).members[2].disk, old, "repair is switched off");
    managers.set(&[("repair_in_flight", "1")]);
    managers.kill(managers.leader());
    let replaced = eventually("the replacement", || {
        beat_all(&mut nodes, &[lost]);
        Some(now(&managers)).filter(|pg| pg.members[2].disk != old)
    });
    let new = node_of(&nodes, replaced.members[2].disk);
    told(&nodes[new], pg.pg, Epoch(replaced.epoch));
    nodes[new].catch_up();
    let whole = eventually("all to serve", || {
        beat_all(&mut nodes, &[lost]);
        let now = now(&managers);
        now.members.iter().all(|m| m.state == u32::from(MemberState::Serving.code())).then_some(now)
    });
    assert_eq!((whole.members[2].disk, whole.formers.len()), (nodes[new].disk(), 1), "replaced once");
}
