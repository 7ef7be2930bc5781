//! A member whose disk has no room for its log.

use std::sync::Arc;

use cairn_sim::SimDisk;

use super::fixture::{Fate, Node, Switch, config, start_on, wait_for};
use crate::{DropReason, HostConfig};

/// Segments that are soon full.
fn settings(node: u32) -> HostConfig {
    HostConfig { segment_bytes: 64 << 10, item_bytes_max: 8 << 10, batch_bytes_max: 8 << 10, ..config(node) }
}

/// The group would stand still although two members have room: its leader goes on to send heartbeats, and commits
/// nothing.
#[test]
fn a_leader_without_room_for_its_log_lets_another_one_lead() {
    let switch = Arc::new(Switch::default());
    let disks: Vec<SimDisk> = (1..=3).map(SimDisk::new).collect();
    let start = |at: usize| start_on(Arc::new(disks[at].clone()), &switch, settings(at as u32 + 1), &[1, 2, 3], 1000);
    let nodes: Vec<Node> = (0..3).map(start).collect();
    let leader = || {
        let mut found = None;
        wait_for("a leader", || {
            found = nodes.iter().position(|node| node.handle.leads());
            found.is_some()
        });
        found.expect("found")
    };
    let add = || loop {
        match nodes[leader()].add(1) {
            Some(Fate::Done(sum)) => return sum,
            Some(Fate::Dropped(DropReason::Unknown | DropReason::NotLeader { .. })) | None => {}
        }
    };
    add();
    let full = leader();
    assert_eq!(nodes[full]._host.problem(), None);
    disks[full].set_capacity(0);
    // Until the segments that there are already are full.
    wait_for("another leader, and why", || {
        add();
        leader() != full && nodes[full]._host.problem().is_some_and(|problem| problem.contains("no space"))
    });
    let sum = add();
    wait_for("the others to agree", || (0..3).all(|at| at == full || nodes[at].state.lock().sum >= sum));
    disks[full].set_capacity(1 << 30);
    wait_for("it to go on by itself", || nodes[full].state.lock().sum >= sum && nodes[full]._host.problem().is_none());
}
