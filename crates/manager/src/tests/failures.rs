//! Nodes and members that fail: marked down, reported, probed, taken back.
use super::cluster::{Managers, eventually};
use super::node::{Mood, Node, beat, member, told};
use crate::leading::Leading;
use cairn_types::{Epoch, MemberState, PartitionId};
use cairn_wire::Opcode;
use cairn_wire::data::PgState;
use cairn_wire::manager::*;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Three data nodes and a meta node, one r3 group per test's need; heartbeats are sent by hand. Nobody counts as dead,
/// or as one that stalls, because the machine is busy.
fn cluster() -> (Managers, Vec<Node>, Node, PgState) {
    let managers = Managers::start(1, 1, 3);
    managers.cluster();
    managers.set(&[("pgs_per_disk", "1"), ("node_timeout", "10m")]);
    managers.set(&[("probe_deadline", "60s"), ("report_probe_deadline", "60s")]);
    let mut nodes: Vec<Node> = (1..=3).map(|n| Node::start(&managers, n, "data", 1)).collect();
    let meta = Node::start(&managers, 4, "meta", 0);
    let pg = eventually("a group", || managers.map().pgs.first().and_then(|pg| pg.state.clone()));
    nodes.iter().for_each(|node| drop(told(node, pg.pg, Epoch(1))));
    beat(&mut nodes);
    (managers, nodes, meta, pg)
}

fn report(managers: &Managers, pg: &PgState, disk: u32, session: u64) -> ReportMemberResponse {
    let request = ReportMemberRequest { pg: pg.pg, epoch: pg.epoch, disk, why: "stalled".into(), session };
    managers.call(Opcode::ReportMember, &request)
}

fn pg_now(managers: &Managers) -> PgState {
    managers.map().pgs[0].state.clone().expect("a state")
}

fn node_up(managers: &Managers, id: u32) -> bool {
    managers.map().nodes.iter().any(|n| n.id == id && n.up)
}

/// A dead node would block writers for ever, or come back with stale data.
#[test]
fn a_silent_dead_node_is_marked_down_and_catches_up_when_it_returns() {
    let (managers, mut nodes, mut meta, pg) = cluster();
    managers.set(&[("node_timeout", "1s")]);
    nodes[0].kill();
    let (dead, disk) = (nodes[0].id(), nodes[0].disk());
    eventually("the node to be marked down", || {
        nodes[1..].iter_mut().chain([&mut meta]).for_each(|n| drop(n.heartbeat()));
        (!node_up(&managers, dead)).then_some(())
    });
    managers.set(&[("node_timeout", "10m")]);
    for node in &nodes[1..] {
        let state = told(node, pg.pg, Epoch(2));
        assert_eq!(member(&state, disk), MemberState::Offline);
        // A heartbeat may have told it first.
        eventually("its push", || (node.desk.lock().pushes >= 2).then_some(()));
    }
    let problems = managers.status().problems.join("\n");
    assert!(problems.contains("has been down for") && problems.contains("fewer copies"), "{problems}");
    let old = nodes[0].given.incarnation;
    let mut late = nodes[0].heartbeat_of();
    late.incarnation = old;
    assert!(nodes[0].send(&late).register_again, "a node that was marked down has to register");
    nodes[0].restart();
    assert!(nodes[0].given.incarnation > old);
    assert_eq!(member(&pg_now(&managers), disk), MemberState::Syncing);
    nodes[0].catch_up();
    let healed = eventually("the member to serve again", || {
        Some(pg_now(&managers)).filter(|pg| member(pg, disk) == MemberState::Serving)
    });
    assert_eq!(healed.epoch, 4);
    told(&nodes[1], pg.pg, Epoch(4));
}

/// A node whose heartbeats get lost would be taken out although it serves.
#[test]
fn a_silent_node_that_answers_probes_stays() {
    let (managers, mut nodes, _meta, _) = cluster();
    managers.set(&[("node_timeout", "1s")]);
    let before = nodes[0].desk.lock().probes;
    eventually("it to be probed", || {
        beat(&mut nodes[1..]);
        (nodes[0].desk.lock().probes >= before + 2).then_some(())
    });
    assert!(node_up(&managers, nodes[0].id()));
    eventually("it to be told", || {
        managers.status().problems.iter().any(|p| p.contains("sends no heartbeats")).then_some(())
    });
    assert!(!nodes[0].heartbeat().register_again);
}

/// A lease that ran out for a moment: nothing is answered meanwhile, leadership goes on.
fn without_lease(managers: &Managers, act: impl FnOnce()) {
    let manager = managers.running[0].as_ref().expect("it runs").manager.inner();
    manager.foreign.store(true, Ordering::Relaxed);
    assert!(manager.permit().is_err());
    act();
    manager.foreign.store(false, Ordering::Relaxed);
}

/// A probe that ends while the lease has run out for a moment would be under way for ever, and a dead node never marked
/// down.
#[test]
fn a_probe_may_end_without_the_lease() {
    let (managers, mut nodes, mut meta, _) = cluster();
    managers.set(&[("node_timeout", "1s"), ("probe_deadline", "1s")]);
    nodes[0].desk.lock().mood = Mood::Hangs;
    let desk = nodes[0].desk.clone();
    eventually("a probe", || {
        nodes[1..].iter_mut().chain([&mut meta]).for_each(|n| drop(n.heartbeat()));
        (!desk.lock().kept.is_empty()).then_some(())
    });
    without_lease(&managers, || std::thread::sleep(Duration::from_millis(1500)));
    let dead = nodes[0].id();
    eventually("the node to be marked down", || {
        nodes[1..].iter_mut().chain([&mut meta]).for_each(|n| drop(n.heartbeat()));
        (!node_up(&managers, dead)).then_some(())
    });
    nodes[0].desk.lock().mood = Mood::Well;
}

/// A change of a partition's members that was looked at while the lease had run out for a moment would never be looked
/// at again.
#[test]
fn a_change_of_members_goes_on_after_a_look_without_the_lease() {
    let (managers, ..) = cluster();
    let (id, manager) = (PartitionId(1), managers.running[0].as_ref().expect("it runs").manager.inner());
    let look = |f: &dyn Fn(&mut Leading)| manager.look(|_, leading| (f(leading), leading.term).1).expect("it leads");
    let term = look(&|leading| assert!(leading.changing.insert(id)));
    let is_under_way = || manager.look(|_, leading| leading.changing.contains(&id)).expect("it leads");
    manager.change_looked_at(term + 1, id, "of another term".into());
    assert!(is_under_way());
    without_lease(&managers, || manager.change_looked_at(term, id, "nobody answered".into()));
    assert!(!is_under_way());
}

/// A node that was lost with all it had would count as serving for ever: whoever has its address now answers its
/// probes.
#[test]
fn a_lost_node_is_marked_down_though_a_new_one_has_its_address() {
    let (managers, mut nodes, mut meta, _) = cluster();
    managers.set(&[("node_timeout", "1s")]);
    let mut new = Node::in_place_of(&managers, 9, &nodes[0]);
    let (lost, found) = (nodes[0].id(), new.id());
    assert_ne!(lost, found);
    eventually("the node to be marked down", || {
        nodes[1..].iter_mut().chain([&mut meta, &mut new]).for_each(|n| drop(n.heartbeat()));
        (!node_up(&managers, lost)).then_some(())
    });
    assert!(node_up(&managers, found));
}

/// A writer would wait for the full timeout of a node that is gone.
#[test]
fn a_report_about_a_dead_process_is_settled_at_once() {
    let (managers, mut nodes, _meta, pg) = cluster();
    nodes[0].kill();
    // The time-out is far longer than a call waits here.
    let answer = report(&managers, &pg, nodes[0].disk(), 1);
    let state = answer.state.expect("the new state");
    assert!(answer.removed);
    assert_eq!((state.epoch, member(&state, nodes[0].disk())), (2, MemberState::Offline));
    for node in &nodes[1..] {
        assert_eq!(node.desk.lock().pgs[&pg.pg].epoch, 2, "the others know it before the reporter goes on");
    }
    assert!(!node_up(&managers, nodes[0].id()), "nobody listens: all its members go at once");
    let again = report(&managers, &pg, nodes[0].disk(), 2);
    assert!(again.removed && again.state.is_some_and(|pg| pg.epoch == 2), "an old report changes nothing");
}

/// A stopped process or a failed disk would stall the group until its heartbeats run out.
#[test]
fn reports_about_hanging_nodes_and_failed_disks() {
    let (managers, mut nodes, mut meta, pg) = cluster();
    managers.set(&[("rejoin_delay", "200ms"), ("report_probe_deadline", "2s")]);
    nodes[0].desk.lock().mood = Mood::DiskFailed;
    let answer = report(&managers, &pg, nodes[0].disk(), 1);
    assert!(answer.removed);
    let state = answer.state.expect("a state");
    assert_eq!((state.epoch, member(&state, nodes[0].disk())), (2, MemberState::Offline));
    assert!(node_up(&managers, nodes[0].id()), "the node lives");
    nodes[0].desk.lock().mood = Mood::Well;
    let back = eventually("the member to be taken back", || {
        nodes.iter_mut().chain([&mut meta]).for_each(|n| drop(n.heartbeat()));
        Some(pg_now(&managers)).filter(|pg| member(pg, nodes[0].disk()) == MemberState::Syncing)
    });
    nodes[1].desk.lock().mood = Mood::Hangs;
    let answer = report(&managers, &back, nodes[1].disk(), 1);
    assert!(answer.removed);
    let last = answer.state.expect("a state");
    assert_eq!(member(&last, nodes[2].disk()), MemberState::Serving);
    nodes[2].desk.lock().mood = Mood::DiskFailed;
    let answer = report(&managers, &last, nodes[2].disk(), 1);
    assert!(!answer.removed, "the last serving member is never removed");
    assert_eq!(answer.state.map(|pg| pg.epoch), Some(last.epoch));
    nodes[1].desk.lock().mood = Mood::Well;
}

/// One confused client could take members out; a disk that stalls everybody would stay.
#[test]
fn false_alarms_and_slow_members() {
    let (managers, mut nodes, _meta, pg) = cluster();
    let disk = nodes[0].disk();
    for session in [7, 7, 7, 8, 9] {
        let answer = report(&managers, &pg, disk, session);
        assert!(!answer.removed && answer.state.is_some_and(|pg| pg.epoch == 1), "one host is not enough");
    }
    let suspect = SuspectReport { disk, pg: pg.pg, epoch: pg.epoch, why: "stalled".into() };
    let heartbeat = HeartbeatRequest { suspects: vec![suspect], ..nodes[1].heartbeat_of() };
    nodes[1].send(&heartbeat);
    eventually("the member to leave", || Some(pg_now(&managers)).filter(|pg| member(pg, disk) == MemberState::Offline));
    assert!(node_up(&managers, nodes[0].id()));
}

/// A disk whose sync failed would go on acknowledging writes.
#[test]
fn a_disk_that_reports_a_failure_leaves_service() {
    let (managers, mut nodes, _meta, pg) = cluster();
    let disk = nodes[1].disk();
    nodes[1].disks[0].health = 1;
    nodes[1].disks[0].problem = "sync failed: EIO".into();
    nodes[1].heartbeat();
    let state = told(&nodes[0], pg.pg, Epoch(2));
    assert_eq!(member(&state, disk), MemberState::Offline);
    let map = managers.map();
    let entry = map.disks.iter().find(|d| d.id == disk).expect("the disk");
    assert_eq!((entry.state, entry.problem.as_str()), (1, "sync failed: EIO"));
    assert!(managers.status().problems.iter().any(|p| p.contains("sync failed: EIO")));
    nodes[1].disks[0].health = 0;
    nodes[1].disks[0].problem.clear();
    nodes[1].restart();
    assert_eq!(member(&pg_now(&managers), disk), MemberState::Syncing);
}

/// After a power failure each group would hang on one particular disk.
#[test]
fn everybody_restarts() {
    let (mut managers, mut nodes, mut meta, pg) = cluster();
    let cluster = managers.cluster();
    nodes.iter_mut().for_each(Node::kill);
    meta.kill();
    managers.kill(0);
    managers.restart(0, cluster);
    nodes[0].restart();
    nodes[1].restart();
    let state = pg_now(&managers);
    assert_eq!(state.epoch, 3);
    let states: Vec<MemberState> = nodes.iter().map(|n| member(&state, n.disk())).collect();
    assert_eq!(states, [MemberState::Serving; 3], "each holds all that was acknowledged; the third is not missed yet");
    let answer = report(&managers, &state, nodes[2].disk(), 1);
    assert!(answer.removed);
    let state = answer.state.expect("a state");
    assert_eq!(state.members.iter().filter(|m| m.state == 1).count(), 2, "two serve on: it can be written");
    let old: Vec<u64> = nodes.iter().map(|n| n.given.incarnation).collect();
    nodes[2].restart();
    assert!(nodes[2].given.incarnation > old[0].max(old[1]));
    assert_eq!(member(&pg_now(&managers), nodes[2].disk()), MemberState::Syncing);
    assert_eq!(pg.pg, state.pg);
}

/// The first one to come back after all were killed would make way for members that are not there.
#[test]
fn fellows_that_were_heard_a_moment_ago_are_asked() {
    let (managers, mut nodes, _meta, _pg) = cluster();
    nodes.iter_mut().for_each(|node| drop(node.heartbeat()));
    nodes[1].restart();
    assert_eq!(member(&pg_now(&managers), nodes[1].disk()), MemberState::Syncing, "the others answer");
    let (managers, mut nodes, _meta, _pg) = cluster();
    nodes.iter_mut().for_each(|node| drop(node.heartbeat()));
    nodes.iter_mut().for_each(Node::kill);
    nodes[0].restart();
    assert_eq!(member(&pg_now(&managers), nodes[0].disk()), MemberState::Serving);
}

/// A member that refused an epoch would count as being in it: writers would wait for a chain that never forms.
#[test]
fn a_refused_epoch_is_told_again() {
    let (managers, mut nodes, _meta, pg) = cluster();
    nodes[1].desk.lock().mood = Mood::Refuses;
    let before = nodes[1].desk.lock().pushes;
    let disk = nodes[0].disk();
    nodes[0].kill();
    assert!(report(&managers, &pg, disk, 1).removed);
    told(&nodes[2], pg.pg, Epoch(2));
    eventually("it to be told again and again", || (nodes[1].desk.lock().pushes >= before + 3).then_some(()));
    assert_eq!(nodes[1].desk.lock().pgs[&pg.pg].epoch, 1);
    nodes[1].desk.lock().mood = Mood::Well;
    let state = told(&nodes[1], pg.pg, Epoch(2));
    assert_eq!(member(&state, disk), MemberState::Offline);
    // A disk that is out of service is not told for ever.
    nodes[1].desk.lock().mood = Mood::Refuses;
    let mut heartbeat = nodes[1].heartbeat_of();
    heartbeat.disks[0].health = 1;
    nodes[1].send(&heartbeat);
    told(&nodes[2], pg.pg, Epoch(3));
    let quiet = |node: &Node| {
        let pushes = node.desk.lock().pushes;
        std::thread::sleep(Duration::from_millis(1200));
        node.desk.lock().pushes == pushes
    };
    eventually("the pushes to end", || quiet(&nodes[1]).then_some(()));
}

/// A heartbeat that says nothing of a disk says nothing against it; a start without it does.
#[test]
fn a_disk_that_is_left_out_of_a_report() {
    let (managers, mut nodes, _meta, pg) = cluster();
    let disk = nodes[0].disk();
    let mut heartbeat = nodes[0].heartbeat_of();
    let brought = std::mem::take(&mut heartbeat.disks);
    for _ in 0..3 {
        assert!(!nodes[0].send(&heartbeat).register_again);
    }
    assert_eq!(pg_now(&managers).epoch, pg.epoch, "nothing happened to its groups");
    assert!(managers.map().disks.iter().all(|d| d.state == 0));
    nodes[0].disks.clear();
    nodes[0].restart();
    let state = |managers: &Managers| managers.map().disks.iter().find(|d| d.id == disk).map(|d| d.state);
    assert_eq!(state(&managers), Some(3), "absent");
    assert_eq!(member(&pg_now(&managers), disk), MemberState::Offline);
    nodes[0].disks = brought;
    nodes[0].restart();
    assert_eq!(state(&managers), Some(0));
    assert_eq!(member(&pg_now(&managers), disk), MemberState::Syncing);
}
