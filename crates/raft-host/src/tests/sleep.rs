//! Groups that sleep, on three nodes.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use cairn_types::{GroupId, NodeId};
use cairn_wire::raft::{GroupMembersRequest, TakeCheckpointRequest};
use tempfile::TempDir;

use super::fixture::{Adder, Fate, Node, PATIENCE, Switch, config, start, wait_for};
use crate::members::MembersAsk;
use crate::{GroupHandle, HostConfig, MemberChange};

const GROUPS: u32 = 30;

struct Many {
    _dirs: Vec<TempDir>,
    switch: Arc<Switch>,
    nodes: Vec<Option<Node>>,
    /// By node, then by group.
    handles: Vec<Vec<GroupHandle<Sender<Fate>>>>,
}

fn settings(node: u32) -> HostConfig {
    HostConfig { sleep_after: Duration::from_millis(300), workers: 2, ..config(node) }
}

impl Many {
    fn new() -> Self {
        let dirs: Vec<TempDir> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
        let switch = Arc::default();
        let mut many = Self { _dirs: dirs, switch, nodes: Vec::new(), handles: Vec::new() };
        for at in 0..3 {
            let node = start(many._dirs[at].path(), &many.switch, settings(at as u32 + 1), &[1, 2, 3], 0);
            many.nodes.push(Some(node));
            many.handles.push(Vec::new());
        }
        for group in (0..GROUPS).map(|group| GroupId(100 + group)) {
            for at in 0..3 {
                let host = &many.nodes[at].as_ref().unwrap()._host;
                let members = [1, 2, 3].map(NodeId);
                many.handles[at].push(host.open_group(group, &members, Adder::new(&Arc::default())).unwrap());
            }
        }
        many
    }

    fn led_by(&self, group: usize) -> Option<usize> {
        (0..3).find(|&at| self.nodes[at].is_some() && self.handles[at][group].leads())
    }

    /// Waits for one: an election may be under way, the first one or one that a busy machine caused.
    fn leader_of(&self, group: usize) -> usize {
        wait_for("a leader", || self.led_by(group).is_some());
        self.led_by(group).unwrap_or_else(|| self.leader_of(group))
    }

    fn all_asleep(&self) {
        let asleep = |node: &Option<Node>| node.as_ref().is_none_or(|node| node._host.asleep() == GROUPS as usize + 1);
        wait_for("all to sleep", || self.nodes.iter().all(asleep));
    }

    fn add(&self, at: usize, group: usize) -> Fate {
        let (sender, receiver) = std::sync::mpsc::channel();
        self.handles[at][group].propose(1u64.to_le_bytes().to_vec(), sender).unwrap();
        receiver.recv_timeout(PATIENCE).unwrap()
    }
}

/// Idle groups would cost as much as busy ones; or one that sleeps would refuse what is proposed, or answer reads
/// without a lease.
#[test]
fn groups_sleep_and_wake_with_what_they_had() {
    let many = Many::new();
    many.all_asleep();
    let leaders: Vec<usize> = (0..GROUPS as usize).map(|group| many.leader_of(group)).collect();
    let sent = many.switch.messages();
    let beats = many.switch.beats();
    wait_for("beats", || many.switch.beats() > beats + 60);
    assert_eq!(many.switch.messages(), sent, "not a word of any group");
    for (group, &leader) in leaders.iter().enumerate() {
        let handle = &many.handles[leader][group];
        match group % 3 {
            0 => assert_eq!(many.add(leader, group), Fate::Done(1)),
            1 => {
                assert!(handle.read_permit().is_err(), "the lease has ended");
                wait_for("a lease", || handle.read_permit().is_ok());
            }
            _ => {
                let follower = &many.handles[(leader + 1) % 3][group];
                wait_for("what is new", || follower.age().is_some_and(|age| age < Duration::from_secs(1)));
            }
        }
    }
    let now: Vec<usize> = (0..GROUPS as usize).map(|group| many.leader_of(group)).collect();
    assert_eq!(now, leaders, "without an election");
    many.all_asleep();
}

/// A node that dies would leave the groups that it led without a leader, or wake those that it did not.
#[test]
fn a_node_that_ends_wakes_what_it_led() {
    let mut many = Many::new();
    let other = (many.leader_of(0) + 1) % 3;
    // All begin at the same node.
    for group in 0..GROUPS as usize / 2 {
        wait_for("the hand-over", || {
            let leader = many.led_by(group);
            leader == Some(other) || {
                // Refused while another one is under way.
                let _ = leader.map(|at| many.handles[at][group].transfer_leader(NodeId(other as u32 + 1)));
                std::thread::sleep(Duration::from_millis(20));
                false
            }
        });
    }
    many.all_asleep();
    let before: Vec<Option<usize>> = (0..GROUPS as usize).map(|group| many.led_by(group)).collect();
    let terms = |many: &Many, at: usize| -> Vec<u64> {
        many.handles[at].iter().map(|handle| handle.status().core.term).collect()
    };
    let witness = (0..3).find(|at| *at != other && Some(*at) != before[GROUPS as usize - 1]).expect("a third node");
    let earlier = terms(&many, witness);
    many.switch.cut(NodeId(other as u32 + 1), true);
    many.nodes[other] = None;
    wait_for("all to be led again", || (0..GROUPS as usize).all(|group| many.led_by(group).is_some()));
    let later = terms(&many, witness);
    for group in 0..GROUPS as usize {
        if before[group] == Some(other) {
            assert_ne!(many.led_by(group), Some(other));
        } else {
            assert_eq!((many.led_by(group), later[group]), (before[group], earlier[group]), "it had another leader");
        }
        let leader = many.leader_of(group);
        wait_for("what is proposed to be done", || matches!(many.add(leader, group), Fate::Done(_)));
    }
}

/// A member that stopped alone would be listened for through its node for ever.
#[test]
fn a_leader_that_is_closed_is_noticed_although_its_node_lives() {
    let many = Many::new();
    many.all_asleep();
    let leader = many.leader_of(3);
    many.nodes[leader].as_ref().unwrap()._host.close_group(GroupId(103));
    wait_for("another leader", || (0..3).any(|at| at != leader && many.handles[at][3].leads()));
}

/// A change of members would be refused for ever, or a member that was removed be woken by nobody.
#[test]
fn members_change_while_the_group_sleeps() {
    let many = Many::new();
    many.all_asleep();
    let leader = many.leader_of(3);
    let gone = NodeId(((leader + 1) % 3) as u32 + 1);
    let handle = &many.handles[leader][3];
    handle.change_members(vec![MemberChange::Remove(gone)]).unwrap();
    wait_for("the removal", || !handle.status().core.members.contains(gone));
    handle.change_members(vec![MemberChange::Learner(gone)]).unwrap();
    wait_for("the addition", || handle.status().core.members.contains(gone));
    many.all_asleep();
}

/// Members of an idle partition could not be changed, its leadership not be handed over, and no backup be made of it.
#[test]
fn who_asks_the_leader_of_a_group_that_sleeps_wakes_it() {
    let many = Many::new();
    let ask = |at: usize, take: bool| {
        let (sender, receiver) = std::sync::mpsc::channel();
        let host = &many.nodes[at].as_ref().unwrap()._host;
        if take {
            let request = TakeCheckpointRequest { group: 103, ..TakeCheckpointRequest::default() };
            host.take_checkpoint(request, Box::new(move |answer| sender.send(answer.unwrap().taken).unwrap()));
        } else {
            let request = GroupMembersRequest { group: 103, ..GroupMembersRequest::default() };
            let ask = MembersAsk::decode(&request).unwrap();
            host.ask_members(GroupId(103), ask, Box::new(move |answer| sender.send(answer.unwrap().leads).unwrap()));
        }
        receiver.recv_timeout(PATIENCE).unwrap()
    };
    for take in [false, true] {
        many.all_asleep();
        // By then the last lease has ended.
        let beats = many.switch.beats();
        wait_for("beats", || many.switch.beats() > beats + 60);
        let leader = many.leader_of(3);
        assert!(!ask(leader, take), "it has no lease yet");
        wait_for("a leader who answers", || ask(leader, take));
    }
}
