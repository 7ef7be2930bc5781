//! Three managers: hints, a leader that dies, nothing forgotten, nothing given twice.
use super::cluster::{Managers, eventually, new_client, wait};
use super::node::{Node, beat, told};
use cairn_rpc::{CallError, CallOptions, Identity};
use cairn_types::{Epoch, ErrorCode};
use cairn_wire::Opcode;
use cairn_wire::manager::*;
use std::collections::BTreeSet;
use std::time::Duration;

fn sessions(managers: &Managers, count: usize) -> Vec<u64> {
    let open = |_| -> u64 {
        let answer: OpenSessionResponse = managers.call(Opcode::OpenSession, &OpenSessionRequest::default());
        answer.session
    };
    (0..count).map(open).collect()
}

/// Followers would answer from an old state, or clients not find the leader.
#[test]
fn followers_point_to_the_leader() {
    let managers = Managers::start(3, 1, 3);
    let leader = managers.leader();
    managers.cluster();
    let client = new_client(Identity::client());
    for running in managers.running.iter().flatten() {
        eventually("every member to know the leader", || running.manager.health().ok());
    }
    for (i, address) in managers.addresses.iter().enumerate().filter(|(i, _)| *i != leader) {
        let options = CallOptions::new(Duration::from_secs(5));
        let call = client.call(address, Opcode::GetMap.code(), &GetMapRequest::default(), (), options);
        match wait(call) {
            Err(CallError::Remote(error)) => {
                assert_eq!(error.code, ErrorCode::NotLeader, "{error}");
                assert_eq!(error.leader_hint.as_ref(), Some(&managers.addresses[leader]));
            }
            other => panic!("member {i} answered {other:?}"),
        }
    }
    let map = eventually("all managers to be in the map", || Some(managers.map()).filter(|map| map.nodes.len() == 3));
    assert_eq!(map.nodes.iter().map(|n| n.id).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(map.nodes.iter().all(|n| n.roles == ["manager"] && !n.address.is_empty()));
    for running in managers.running.iter().flatten() {
        eventually("every member to learn the cluster", || {
            (running.identity.cluster() == managers.cluster()).then_some(())
        });
    }
}

/// What one leader acknowledged would be lost, or given again, by the next.
#[test]
fn a_dead_leader_is_replaced_and_nothing_is_forgotten() {
    let mut managers = Managers::start(3, 1, 3);
    let mut nodes: Vec<Node> = (1..=3).map(|n| Node::start(&managers, n, "data", 1)).collect();
    let mut meta = Node::start(&managers, 4, "meta", 0);
    eventually("groups", || (!managers.map().pgs.is_empty()).then_some(()));
    managers.set(&[("node_timeout", "9s")]);
    let mut all = sessions(&managers, 20);
    let (cluster, mut before) = (managers.cluster(), managers.map());
    let mut killed = Vec::new();
    for _ in 0..2 {
        let leader = managers.leader();
        managers.kill(leader);
        killed.push(leader);
        let next = managers.leader();
        assert_ne!(next, leader);
        all.extend(sessions(&managers, 20));
        let after = managers.map();
        assert!(after.version >= before.version);
        assert_eq!((&after.volumes, after.pgs.len()), (&before.volumes, before.pgs.len()));
        let value: GetConfigResponse = managers.call(Opcode::GetConfig, &GetConfigRequest {});
        assert!(value.items.iter().any(|i| i.key == "node_timeout" && i.value == "9s"));
        beat(&mut nodes);
        beat(std::slice::from_mut(&mut meta));
        before = after;
        managers.restart(leader, cluster);
    }
    assert_eq!(killed.len(), 2, "faults fired");
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 60, "a session was given twice");
    assert_eq!(managers.cluster(), cluster);
    // Epochs go on rising under the new leader, and members are told.
    let pg = before.pgs[0].state.clone().expect("a state");
    nodes[0].kill();
    let request =
        ReportMemberRequest { pg: pg.pg, epoch: pg.epoch, disk: nodes[0].disk(), why: "gone".into(), session: 1 };
    let answer: ReportMemberResponse = managers.call(Opcode::ReportMember, &request);
    assert!(answer.removed);
    told(&nodes[1], pg.pg, Epoch(pg.epoch + 1));
}

/// A new leader has heard nobody: it would mark everybody down.
#[test]
fn a_new_leader_marks_nobody_down() {
    let mut managers = Managers::start(3, 1, 3);
    let mut nodes: Vec<Node> = (1..=3).map(|n| Node::start(&managers, n, "data", 1)).collect();
    managers.set(&[("node_timeout", "1s")]);
    beat(&mut nodes);
    let leader = managers.leader();
    managers.kill(leader);
    managers.leader();
    std::thread::sleep(Duration::from_millis(2500));
    let map = managers.map();
    assert!(map.nodes.iter().filter(|n| n.id >= 16).all(|n| n.up), "they answer probes");
    beat(&mut nodes);
}

/// A cluster that began with one manager could never get a second one.
#[test]
fn one_manager_becomes_three() {
    use cairn_wire::common::Empty;
    use cairn_wire::data::NodeAddress;
    let mut managers = Managers::start(1, 1, 3);
    let cluster = managers.cluster();
    managers.set(&[("node_timeout", "8s")]);
    let change = |managers: &Managers, add: Vec<u32>| {
        let address = |n: &u32| NodeAddress { node: *n, address: managers.addresses[*n as usize - 1].clone() };
        let addresses = add.iter().map(address).collect();
        let request = ChangeMembersRequest { group: 0, add, remove: Vec::new(), addresses };
        managers.try_call::<Empty>(Opcode::ChangeMembers, &request)
    };
    let nameless = ChangeMembersRequest { group: 0, add: vec![2], ..ChangeMembersRequest::default() };
    let error = managers.try_call::<Empty>(Opcode::ChangeMembers, &nameless).expect_err("no address");
    assert_eq!(error.code(), Some(ErrorCode::InvalidArgument));
    for number in [2, 3] {
        managers.add();
        change(&managers, vec![number]).expect("added");
        eventually("the new member's vote", || managers.status().managers.contains(&number).then_some(()));
    }
    assert_eq!(managers.status().managers, [1, 2, 3]);
    let first = managers.running.iter().flatten().next().expect("it runs");
    assert_eq!(first.identity.cluster(), cluster);
    managers.kill(0);
    let value: GetConfigResponse = managers.call(Opcode::GetConfig, &GetConfigRequest {});
    assert!(value.items.iter().any(|i| i.key == "node_timeout" && i.value == "8s"), "the new ones have everything");
    assert_ne!(managers.leader(), 0);
    let problem = eventually("the dead manager to be named", || {
        managers.status().problems.into_iter().find(|p| p.contains("manager n1 does not answer"))
    });
    assert!(problem.contains("2 of 3 managers"), "{problem}");
}

/// A member that lost its directory would vote a second time in a term: two leaders, two truths.
#[test]
fn a_member_that_lost_its_log_gets_no_vote_by_itself() {
    use cairn_types::ClusterId;
    use cairn_wire::common::Empty;
    use cairn_wire::data::NodeAddress;
    let mut managers = Managers::start(3, 1, 3);
    managers.cluster();
    // As if it was started for the first time long after the others: it never registered, so it never voted.
    managers.kill(2);
    managers.empty(2);
    managers.restart(2, ClusterId::NONE);
    eventually("it to follow", || managers.running[2].as_ref()?.manager.health().ok());
    let register = |managers: &Managers, uuid: u8| {
        let address = managers.addresses[2].clone();
        let roles = vec!["manager".to_owned()];
        let request =
            RegisterRequest { node_uuid: vec![uuid; 16], node: 3, roles, address, ..RegisterRequest::default() };
        managers.try_call::<RegisterResponse>(Opcode::Register, &request)
    };
    register(&managers, 77).expect("registered");
    managers.kill(2);
    managers.empty(2);
    let error = managers.try_restart(2, ClusterId::NONE).err().expect("it must not start").to_string();
    assert!(error.contains("has no log") && error.contains("member 3 has been part of"), "{error}");
    assert!(error.contains("restore the directory") && error.contains("manager.join = true"), "{error}");
    // The way back that the message tells.
    let address = NodeAddress { node: 3, address: managers.addresses[2].clone() };
    let remove = ChangeMembersRequest { group: 0, remove: vec![3], ..ChangeMembersRequest::default() };
    managers.call::<Empty>(Opcode::ChangeMembers, &remove);
    eventually("its removal", || (managers.status().managers == [1, 2]).then_some(()));
    managers.joining = 2;
    managers.restart(2, ClusterId::NONE);
    let add =
        ChangeMembersRequest { group: 0, add: vec![3], addresses: vec![address], ..ChangeMembersRequest::default() };
    managers.call::<Empty>(Opcode::ChangeMembers, &add);
    eventually("its vote", || (managers.status().managers == [1, 2, 3]).then_some(()));
    register(&managers, 78).expect("with the uuid of its new directory");
}
