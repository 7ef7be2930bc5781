//! Three managers: hints, a leader that dies, nothing forgotten, nothing given twice.
use super::cluster::{Managers, PATIENCE, eventually, new_client, wait};
use super::node::{Node, beat, told};
use cairn_rpc::{CallError, CallOptions, Identity, LeaderError};
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
    managers.cluster();
    let client = new_client(Identity::client());
    for running in managers.running.iter().flatten() {
        eventually("every member to know the leader", || running.manager.health().ok());
    }
    let points_to = |i: usize, leader: usize| {
        let options = CallOptions::new(PATIENCE);
        let call = client.call(&managers.addresses[i], Opcode::GetMap.code(), &GetMapRequest::default(), (), options);
        match wait(call) {
            Err(CallError::Remote(error)) => {
                assert_eq!(error.code, ErrorCode::NotLeader, "{error}");
                error.leader_hint.as_ref() == Some(&managers.addresses[leader])
            }
            // It leads by now.
            Ok(_) if managers.leader() != leader => false,
            other => panic!("member {i} answered {other:?}"),
        }
    };
    // On a busy machine another one may begin to lead.
    eventually("hints", || {
        let leader = managers.leader();
        (0..3).all(|i| i == leader || points_to(i, leader)).then_some(())
    });
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
    managers.set(&[("node_timeout", "9m")]);
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
        assert!(value.items.iter().any(|i| i.key == "node_timeout" && i.value == "9m"));
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
    // A probe may be answered late on a busy machine.
    managers.set(&[("node_timeout", "1s"), ("probe_deadline", "60s")]);
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
    managers.set(&[("node_timeout", "8m")]);
    let change = |managers: &Managers, add: Vec<u32>| {
        let address = |n: &u32| NodeAddress { node: *n, address: managers.addresses[*n as usize - 1].clone() };
        let addresses = add.iter().map(address).collect();
        let request = ChangeMembersRequest { group: 0, add, addresses, ..ChangeMembersRequest::default() };
        managers.try_call::<Empty>(Opcode::ChangeMembers, &request)
    };
    let nameless = ChangeMembersRequest { group: 0, add: vec![2], ..ChangeMembersRequest::default() };
    let nobody = NodeAddress { node: 2, address: "127.0.0.1:1".into() };
    let absent = ChangeMembersRequest { addresses: vec![nobody], ..nameless.clone() };
    let two = ChangeMembersRequest { add: vec![2, 3], ..ChangeMembersRequest::default() };
    let only = ChangeMembersRequest { remove: vec![1], ..ChangeMembersRequest::default() };
    let stranger = ChangeMembersRequest { remove: vec![7], ..ChangeMembersRequest::default() };
    for (request, wanted) in [
        (nameless, "needs its address"),
        (absent, "nobody answers at 127.0.0.1:1: start the new manager first"),
        (two, "one at a time"),
        (only, "too few to go on"),
        (stranger, "n7 is no manager; they are n1"),
    ] {
        let error = managers.try_call::<Empty>(Opcode::ChangeMembers, &request).expect_err(wanted);
        assert_eq!(error.code(), Some(ErrorCode::InvalidArgument));
        assert!(error.to_string().contains(wanted), "{error}");
    }
    for number in [2, 3] {
        let added = managers.add();
        // Whoever looks at the new process would look for a majority that is not missing.
        eventually("it to say what it waits for", || {
            let why = managers.running[added].as_ref().expect("it runs").manager.health().err();
            why.filter(|why| why.contains(&format!("cairn admin manager add {number}@")))
        });
        change(&managers, vec![number]).expect("added");
        register_manager(&managers, number, 70 + number as u8).expect("registered");
        eventually("the new member's vote", || managers.status().managers.contains(&number).then_some(()));
    }
    assert_eq!(managers.status().managers, [1, 2, 3]);
    let first = managers.running.iter().flatten().next().expect("it runs");
    assert_eq!(first.identity.cluster(), cluster);
    managers.kill(0);
    let value: GetConfigResponse = managers.call(Opcode::GetConfig, &GetConfigRequest {});
    assert!(value.items.iter().any(|i| i.key == "node_timeout" && i.value == "8m"), "the new ones have everything");
    assert_ne!(managers.leader(), 0);
    let problem = eventually("the dead manager to be named", || {
        managers.status().problems.into_iter().find(|p| p.contains("manager n1 does not answer"))
    });
    assert!(problem.contains("2 of 3 managers") && problem.contains("cairn admin manager remove 1"), "{problem}");
    let dead = change(&managers, vec![1]).expect_err("it is a member that does not run").to_string();
    assert!(dead.contains("manager 1 is a member already") && dead.contains("manager remove 1` first"), "{dead}");
    // With the dead one gone two are left, which both answer; a leader that is to go hands over first.
    let remove = |managers: &Managers, number: usize| {
        let request = ChangeMembersRequest { remove: vec![number as u32 + 1], ..ChangeMembersRequest::default() };
        managers.call::<Empty>(Opcode::ChangeMembers, &request);
        eventually("its removal", || (!managers.status().managers.contains(&(number as u32 + 1))).then_some(()));
    };
    remove(&managers, 0);
    let leader = managers.leader();
    eventually("the other to be heard", || managers.status().manager_members.iter().all(|m| m.answers).then_some(()));
    remove(&managers, leader);
    let last = managers.status();
    assert_eq!((last.managers.len(), last.manager_members.len()), (1, 1));
    assert_ne!(last.leader_node as usize, leader + 1);
}

/// A manager that leads since a moment would call others dead that it has not asked yet, and refuse what an operator
/// wants.
#[test]
fn a_new_leader_asks_before_it_calls_others_dead() {
    use cairn_wire::common::Empty;
    use cairn_wire::data::NodeAddress;
    let managers = Managers::start(3, 1, 3);
    managers.cluster();
    // On a busy machine managers register, and are heard, later than the cluster serves.
    eventually("all managers to be known", || {
        let status = managers.status();
        let addresses = status.map.unwrap_or_default().nodes.into_iter().filter(|node| (1..=3).contains(&node.id));
        let known = addresses.filter(|node| !node.address.is_empty()).count();
        (known == 3 && status.manager_members.iter().filter(|member| member.answers).count() == 3).then_some(())
    });
    let leader = managers.leader();
    let elsewhere = NodeAddress { node: leader as u32 + 1, address: "127.0.0.1:1".into() };
    let again = ChangeMembersRequest {
        add: vec![leader as u32 + 1],
        addresses: vec![elsewhere],
        ..ChangeMembersRequest::default()
    };
    let error = managers.try_call::<Empty>(Opcode::ChangeMembers, &again).expect_err("it is at another address");
    assert!(error.to_string().contains("is a manager already, at 127.0.0.1:"), "{error}");
    // It hands over, and whoever leads then is asked the same at once.
    let remove = ChangeMembersRequest { remove: vec![leader as u32 + 1], ..ChangeMembersRequest::default() };
    managers.try_call::<Empty>(Opcode::ChangeMembers, &remove).expect("the two others answer");
    eventually("its removal", || (managers.status().managers.len() == 2).then_some(()));
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
    register_manager(&managers, 3, 77).expect("registered");
    managers.kill(2);
    managers.empty(2);
    let error = managers.try_restart(2, ClusterId::NONE).err().expect("it must not start").to_string();
    assert!(error.contains("has no log") && error.contains("member 3 has been part of"), "{error}");
    assert!(error.contains("restore the directory") && error.contains("cairn admin manager remove 3"), "{error}");
    // The way back that the message tells.
    let address = NodeAddress { node: 3, address: managers.addresses[2].clone() };
    let remove = ChangeMembersRequest { group: 0, remove: vec![3], ..ChangeMembersRequest::default() };
    managers.call::<Empty>(Opcode::ChangeMembers, &remove);
    eventually("its removal", || (managers.status().managers == [1, 2]).then_some(()));
    // With an empty directory it joins by itself, without a vote.
    managers.restart(2, ClusterId::NONE);
    let add =
        ChangeMembersRequest { group: 0, add: vec![3], addresses: vec![address], ..ChangeMembersRequest::default() };
    managers.call::<Empty>(Opcode::ChangeMembers, &add);
    register_manager(&managers, 3, 78).expect("with the uuid of its new directory");
    eventually("its vote", || (managers.status().managers == [1, 2, 3]).then_some(()));
}

/// What a manager's node says when it starts.
pub(super) fn register_manager(managers: &Managers, number: u32, uuid: u8) -> Result<RegisterResponse, LeaderError> {
    let address = managers.addresses[number as usize - 1].clone();
    let roles = vec!["manager".to_owned()];
    let request =
        RegisterRequest { node_uuid: vec![uuid; 16], node: number, roles, address, ..RegisterRequest::default() };
    managers.try_call::<RegisterResponse>(Opcode::Register, &request)
}
