//! Messages of nodes that are no members.

use std::sync::Arc;
use std::time::Duration;

use cairn_types::NodeId;
use cairn_wire::raft::{RaftBatch, RaftMessage};

use super::fixture::{Fate, GROUP, Node, Switch, config, start, wait_for};
use crate::outbox::HEARTBEAT;
use crate::{HostConfig, MemberChange};

/// Members that give each other time.
fn calm(node: u32) -> HostConfig {
    HostConfig { tick: Duration::from_millis(50), ..config(node) }
}

fn term(node: &Node) -> u64 {
    node.handle.status().core.term
}

/// Says to a member that `from` leads, in a later term than its own.
fn claim(to: (&Node, u32), from: u64) {
    let message = RaftMessage {
        group: GROUP.0,
        kind: HEARTBEAT,
        to: u64::from(to.1),
        from,
        term: term(to.0) + 100,
        ..RaftMessage::default()
    };
    to.0._host.deliver(RaftBatch { messages: vec![message], ..RaftBatch::default() });
}

fn add(nodes: &[&Node]) {
    wait_for("an entry", || nodes.iter().any(|node| matches!(node.add(1), Some(Fate::Done(_)))));
}

/// Any metadata server's key would lead every partition, or end it.
#[test]
fn a_node_that_is_no_member_leads_nobody() {
    let switch = Arc::new(Switch::default());
    *switch.named.lock() = Some(Vec::new());
    let dirs: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let nodes: Vec<Node> =
        dirs.iter().zip(1..).map(|(dir, id)| start(dir.path(), &switch, calm(id), &[1, 2, 3], 0)).collect();
    let all: Vec<&Node> = nodes.iter().collect();
    add(&all);
    let before: Vec<u64> = nodes.iter().map(term).collect();
    for round in 0..20 {
        nodes.iter().zip(1..).for_each(|(node, id)| claim((node, id), 9));
        if round % 5 == 0 {
            add(&all);
        }
    }
    std::thread::sleep(Duration::from_millis(300));
    let after = nodes.iter().map(term).zip(&before).all(|(after, before)| after < before + 100);
    assert!(after && nodes.iter().all(|node| node.handle.leader() != Some(NodeId(9))));
    // The map names it: it is a member that this one does not know yet.
    *switch.named.lock() = Some(vec![NodeId(9)]);
    claim((&nodes[0], 1), 9);
    wait_for("the later term", || term(&nodes[0]) >= before[0] + 100);
    add(&all);
}

/// A member that was away while others came would be shut out by the new rule, or one that comes with nothing.
#[test]
fn who_was_away_hears_new_members_when_the_map_names_them() {
    let switch = Arc::new(Switch::default());
    *switch.named.lock() = Some(vec![NodeId(1), NodeId(2), NodeId(3)]);
    let dirs: Vec<_> = (0..4).map(|_| tempfile::tempdir().unwrap()).collect();
    let open = |id: u32, members: &[u32]| start(dirs[id as usize - 1].path(), &switch, calm(id), members, 0);
    let (one, two, three) = (open(1, &[1, 2, 3]), open(2, &[1, 2, 3]), open(3, &[1, 2, 3]));
    add(&[&one, &two, &three]);
    drop(three);
    // The fourth begins with nothing: it hears those that the map names.
    let four = open(4, &[]);
    let change =
        |wanted: MemberChange| [&one, &two].iter().any(|node| node.handle.change_members(vec![wanted]).is_ok());
    wait_for("the learner", || change(MemberChange::Learner(NodeId(4))));
    wait_for("its vote", || {
        change(MemberChange::Voter(NodeId(4)));
        one.handle.status().core.members.voters.contains(&NodeId(4))
    });
    wait_for("its state", || four.handle.status().core.members.voters.len() == 4);
    wait_for("its leadership", || {
        [&one, &two].iter().for_each(|node| drop(node.handle.transfer_leader(NodeId(4))));
        four.handle.leads()
    });
    *switch.named.lock() = Some(Vec::new());
    let three = open(3, &[1, 2, 3]);
    std::thread::sleep(Duration::from_millis(500));
    assert_ne!(three.handle.leader(), Some(NodeId(4)), "nobody has said that it is one");
    *switch.named.lock() = Some(vec![NodeId(4)]);
    wait_for("what it missed", || three.handle.status().core.members.voters.len() == 4);
    add(&[&one, &two, &three, &four]);
}
