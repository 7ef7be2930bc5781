//! Old copies: of managers, of meta nodes, of a node's directory.
use super::cluster::{Managers, PATIENCE, eventually, new_client, wait};
use super::node::Node;
use super::triple::register_manager;
use cairn_rpc::{CallOptions, Identity};
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::manager::*;
use std::time::Duration;

/// Two processes with copies of one directory would take the node from each other with each heartbeat, and nobody would
/// know why.
#[test]
fn the_second_process_with_a_nodes_identity_is_refused_and_named() {
    let managers = Managers::start(1, 1, 1);
    managers.cluster();
    // The first one is there, however late it answers.
    managers.set(&[("node_timeout", "10m"), ("probe_deadline", "60s"), ("report_probe_deadline", "60s")]);
    let mut first = Node::start(&managers, 1, "meta", 0);
    first.heartbeat();
    let mut clone = Node::new(&managers, 1, "meta", 0);
    let (here, there) = (first.request().address, clone.request().address);
    let refused = clone.register().expect_err("the first one is there").to_string();
    assert!(refused.contains(&here) && refused.contains(&there) && refused.contains("copy of the other"), "{refused}");
    assert!(!first.heartbeat().register_again, "the first one stays what it is");
    let problems = managers.status().problems.join("\n");
    assert!(problems.contains(&here) && problems.contains(&there), "{problems}");
    // The first one ends: the second may be the node at its new address.
    first.kill();
    clone.register().expect("registered");
    assert_eq!(clone.id(), first.id());
    assert!(!clone.heartbeat().register_again);
}

/// A meta node that is put back from a copy would not be told what it had acknowledged, at the latest after the
/// managers changed their leader.
#[test]
fn how_far_members_got_is_remembered_and_logged() {
    let mut managers = Managers::start(1, 1, 1);
    let cluster = managers.cluster();
    let _data = Node::start(&managers, 2, "data", 1);
    let mut meta = Node::start(&managers, 1, "meta", 0);
    eventually("a partition", || {
        meta.register().expect("registered");
        let map = meta.given.map.as_ref()?;
        (!map.partitions.is_empty()).then_some(())
    });
    let tell = |meta: &mut Node, term: u64, index: u64| {
        let mut heartbeat = meta.heartbeat_of();
        heartbeat.partitions.iter_mut().for_each(|report| (report.mark_term, report.mark_index) = (term, index));
        meta.send(&heartbeat);
    };
    tell(&mut meta, 7, 900);
    tell(&mut meta, 7, 800);
    meta.register().expect("registered");
    let partition = meta.given.map.as_ref().expect("a map").partitions[0].id;
    let expected = vec![PartitionMark { partition, term: 7, index: 900 }];
    assert_eq!(meta.given.marks, expected);
    eventually("it to be logged", || {
        let manager = managers.running[0].as_ref()?.manager.inner();
        wait(manager.log_marks());
        (manager.replica.read().marks().count() == 1).then_some(())
    });
    managers.kill(0);
    managers.restart(0, cluster);
    managers.leader();
    meta.register().expect("registered");
    assert_eq!(meta.given.marks, expected);
}

fn ask(managers: &Managers, i: usize, heartbeat: &HeartbeatRequest) {
    let client = new_client(Identity::client());
    let options = CallOptions::new(PATIENCE);
    // It is refused by one that does not lead, but heard.
    let _ = wait(client.call(&managers.addresses[i], Opcode::Heartbeat.code(), heartbeat, (), options));
}

/// One key would make as many nodes as its holder likes: each is awaited, and counts as one.
#[test]
fn a_key_that_is_a_nodes_makes_no_second_one() {
    let managers = Managers::start(1, 1, 1);
    managers.cluster();
    managers.set(&[("node_timeout", "10m")]);
    eventually("the feature level", || (managers.status().feature_level >= 22).then_some(()));
    managers.show("d1");
    let mut first = Node::start(&managers, 1, "data", 1);
    eventually("it to be bound", || {
        first.heartbeat();
        managers.map().nodes.iter().any(|node| node.id == first.id() && node.holder == "d1").then_some(())
    });
    let mut second = Node::new(&managers, 2, "data", 1);
    let refused = second.register().expect_err("the first one runs").to_string();
    assert!(refused.contains("give it a key of its own"), "{refused}");
    first.restart();
    managers.show("d2");
    second.register().expect("with a key of its own");
}

/// While its node is down a key would be any number of nodes; or a machine that was set up anew with its key, or the
/// one of before after it, never be let in.
#[test]
fn a_key_is_one_new_node_at_a_time_while_its_node_is_down() {
    let managers = Managers::start(1, 1, 1);
    managers.cluster();
    managers.set(&[("node_timeout", "1s")]);
    eventually("the feature level", || (managers.status().feature_level >= 22).then_some(()));
    managers.show("d1");
    let holder = |id: u32| managers.map().nodes.iter().find(|node| node.id == id).map(|node| node.holder.clone());
    let down = |id: u32| {
        eventually("a node to be down", || managers.map().nodes.iter().any(|n| n.id == id && !n.up).then_some(()));
    };
    let mut first = Node::start(&managers, 1, "data", 1);
    assert_eq!(holder(first.id()).as_deref(), Some("d1"), "a new one is bound at once");
    first.kill();
    down(first.id());
    let mut second = Node::start(&managers, 2, "data", 1);
    assert_eq!(holder(second.id()).as_deref(), Some("d1"));
    assert_eq!(holder(first.id()), Some(format!("d1/replaced-n{}", first.id())));
    let mut third = Node::new(&managers, 3, "data", 1);
    let refused = third.register().expect_err("one at a time").to_string();
    assert!(refused.contains("give it a key of its own"), "{refused}");
    first.listen();
    let refused = first.register().expect_err("another one came in its place").to_string();
    assert!(refused.contains("give it a key of its own"), "{refused}");
    second.kill();
    down(second.id());
    first.register().expect("that one is down");
    eventually("it to be bound again", || {
        first.heartbeat();
        (holder(first.id()).as_deref() == Some("d1")).then_some(())
    });
    assert_eq!(holder(second.id()), Some(format!("d1/replaced-n{}", second.id())));
    let refused = third.register().expect_err("the first one runs").to_string();
    assert!(refused.contains("give it a key of its own"), "{refused}");
}

/// A machine that was set up anew before anybody noticed that it was away answers the probes of its node of before:
/// that one would never count as down, and the machine never be let in.
#[test]
fn a_machine_that_is_set_up_anew_at_once_is_let_in() {
    let managers = Managers::start(1, 1, 1);
    managers.cluster();
    managers.set(&[("node_timeout", "10m")]);
    eventually("the feature level", || (managers.status().feature_level >= 22).then_some(()));
    managers.show("d1");
    // It is heard no more; what answers at its address is the new one from now on.
    let first = Node::start(&managers, 1, "data", 1);
    let mut second = Node::at_the_place_of(&managers, 2, &first);
    let refused = second.register().expect_err("the first one was heard").to_string();
    assert!(refused.contains("give it a key of its own"), "{refused}");
    let mut elsewhere = Node::new(&managers, 3, "data", 1);
    managers.set(&[("node_timeout", "1s")]);
    eventually("it to be let in", || second.register().ok());
    let map = managers.map();
    let of = |id: u32| map.nodes.iter().find(|node| node.id == id).expect("it is known");
    assert!(!of(first.id()).up && of(second.id()).up);
    assert_eq!(of(second.id()).holder, "d1");
    assert_eq!(of(first.id()).holder, format!("d1/replaced-n{}", first.id()));
    let refused = elsewhere.register().expect_err("one at a time").to_string();
    assert!(refused.contains("give it a key of its own"), "{refused}");
}

/// The only manager is put back from a copy: it would lead, and give numbers again.
#[test]
fn the_only_manager_hears_from_nodes_that_it_is_older() {
    the_only_manager_hears_that_it_is_older(Managers::start(1, 1, 1));
}

/// The same with keys, where a manager that does not lead cannot say yet whose key a node has.
#[test]
fn the_only_manager_hears_it_with_keys_as_well() {
    let managers = Managers::start(1, 1, 1);
    managers.show("d1");
    the_only_manager_hears_that_it_is_older(managers);
}

fn the_only_manager_hears_that_it_is_older(mut managers: Managers) {
    let cluster = managers.cluster();
    let mut node = Node::start(&managers, 1, "data", 1);
    managers.kill(0);
    let copy = managers.copy_of(0);
    managers.restart(0, cluster);
    managers.leader();
    node.register().expect("registered");
    managers.set(&[("node_timeout", "30s")]);
    let told = eventually("the managers' marks", || node.heartbeat().managers.filter(|told| !told.marks.is_empty()));
    managers.kill(0);
    managers.witness_wait = Duration::from_secs(3600);
    // Nothing was lost: it leads as soon as the node was heard.
    managers.restart(0, cluster);
    let heartbeat = HeartbeatRequest { managers: Some(told), ..node.heartbeat_of() };
    assert!(!managers.running[0].as_ref().expect("it runs").manager.leads(), "nobody was heard");
    ask(&managers, 0, &heartbeat);
    managers.leader();
    managers.kill(0);
    managers.put_back(0, copy);
    managers.restart(0, cluster);
    ask(&managers, 0, &heartbeat);
    let manager = &managers.running[0].as_ref().expect("it runs").manager;
    let why = eventually("it to be told", || manager.health().err().filter(|why| why.contains("older copy of itself")));
    assert!(why.contains("nodes of the cluster know"), "{why}");
    assert!(!manager.leads());
}

/// The old directory of a removed manager would vote and lead.
#[test]
fn a_removed_manager_that_comes_back_takes_no_part() {
    let mut managers = Managers::start(3, 1, 1);
    let cluster = managers.cluster();
    let out = (managers.leader() + 1) % 3;
    managers.kill(out);
    let request = ChangeMembersRequest { remove: vec![out as u32 + 1], ..ChangeMembersRequest::default() };
    // On a busy machine the third one is heard later.
    eventually("the removal", || managers.try_call::<Empty>(Opcode::ChangeMembers, &request).ok());
    managers.set(&[("node_timeout", "30s")]);
    managers.restart(out, cluster);
    let manager = &managers.running[out].as_ref().expect("it runs").manager;
    let why = eventually("it to be told", || manager.health().err().filter(|why| why.contains("former member")));
    assert!(why.contains(&format!("cairn admin manager add {}@", out + 1)), "what makes a member of it again: {why}");
    assert!(!manager.leads());
}

/// A manager that was put back from a copy could only be had back by hand.
#[test]
fn an_older_manager_is_added_anew_by_one_command() {
    let mut managers = Managers::start(3, 1, 1);
    let cluster = managers.cluster();
    let old = (managers.leader() + 1) % 3;
    managers.kill(old);
    let copies: Vec<_> = (0..4).map(|_| managers.copy_of(old)).collect();
    managers.restart(old, cluster);
    managers.set(&[("node_timeout", "30s")]);
    let number = old as u32 + 1;
    // Nobody votes whose node has not registered.
    register_manager(&managers, number, 70).expect("registered");
    eventually("it to have everything", || {
        let status = managers.status();
        status.manager_members.iter().any(|m| m.node == number && m.lacks == 0).then_some(())
    });
    let older = |managers: &Managers| {
        let health = managers.running[old].as_ref().expect("it runs").manager.health();
        health.err().filter(|why| why.contains("older copy of itself"))
    };
    let term = |managers: &Managers| managers.status().term;
    let told = copies.into_iter().find_map(|copy| {
        let before = term(&managers);
        managers.kill(old);
        managers.put_back(old, copy);
        managers.restart(old, cluster);
        // A leader that is elected just then fills it before anybody can see it.
        eventually("it to be told", || older(&managers).map(Some).or((term(&managers) != before).then_some(None)))
    });
    let why = told.expect("once in four times nobody is elected");
    assert!(why.contains(&format!("cairn admin manager renew {number}")), "{why}");
    let request = ChangeMembersRequest { add: vec![number], remove: vec![number], ..ChangeMembersRequest::default() };
    eventually("it to be taken out and in", || managers.try_call::<Empty>(Opcode::ChangeMembers, &request).ok());
    eventually("it to vote", || {
        let votes = managers.status().managers.contains(&number);
        (votes && older(&managers).is_none()).then_some(())
    });
}
