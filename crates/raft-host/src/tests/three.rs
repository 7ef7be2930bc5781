//! Three members in one process.

use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;

use super::fixture::{Fate, Node, PATIENCE, Switch, config, start, wait_for};
use crate::{DropReason, HostConfig, MemberChange, Role};
use cairn_env::{Clock, RealClock};
use cairn_types::NodeId;

struct Trio {
    dirs: Vec<TempDir>,
    switch: Arc<Switch>,
    nodes: Vec<Option<Node>>,
    settings: fn(u32) -> HostConfig,
}

impl Trio {
    fn new(settings: fn(u32) -> HostConfig) -> Self {
        let dirs = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
        let mut trio = Self { dirs, switch: Arc::default(), nodes: vec![None, None, None], settings };
        (0..3).for_each(|at| trio.start(at));
        trio
    }

    fn start(&mut self, at: usize) {
        let settings = (self.settings)(at as u32 + 1);
        self.nodes[at] = Some(start(self.dirs[at].path(), &self.switch, settings, &[1, 2, 3], 50_000));
    }

    fn node(&self, at: usize) -> &Node {
        self.nodes[at].as_ref().unwrap()
    }

    fn leader(&self) -> usize {
        let mut found = None;
        wait_for("a leader", || {
            found = (0..3).find(|&at| self.nodes[at].as_ref().is_some_and(|node| node.handle.leads()));
            found.is_some()
        });
        found.unwrap()
    }

    /// Adds one until it is done; what is unknown may count as well.
    fn add(&self, unknown: &mut u64) -> u64 {
        loop {
            match self.node(self.leader()).add(1) {
                Some(Fate::Done(sum)) => return sum,
                Some(Fate::Dropped(DropReason::Unknown)) => *unknown += 1,
                Some(Fate::Dropped(DropReason::NotLeader { .. })) | None => {}
            }
        }
    }
}

/// Acknowledged proposals must survive the loss of any one member, and a member that comes back must catch up.
#[test]
fn members_take_over_and_catch_up() {
    let mut trio = Trio::new(config);
    let mut unknown = 0;
    let mut done = 0;
    for round in 0..4 {
        for _ in 0..50 {
            done += 1;
            let sum = trio.add(&mut unknown);
            assert!((done..=done + unknown).contains(&sum), "round {round}: {sum} after {done} (+ {unknown})");
        }
        let leader = trio.leader();
        trio.nodes[leader] = None;
        for _ in 0..50 {
            done += 1;
            trio.add(&mut unknown);
        }
        trio.start(leader);
    }
    let sum = trio.add(&mut unknown);
    // An entry of a new leader changes the time alone, and comes to one after the other.
    wait_for("agreement", || {
        let states: Vec<_> = (0..3).map(|at| trio.node(at).state.lock().clone()).collect();
        states[0].sum >= sum && states.windows(2).all(|pair| pair[0] == pair[1])
    });
}

fn small_log(node: u32) -> HostConfig {
    HostConfig { checkpoint_log_bytes: 50_000, segment_bytes: 256 << 10, fetch_part_bytes: 10_000, ..config(node) }
}

/// A member that was away for longer than the log reaches back must be filled by a checkpoint, in parts.
#[test]
fn a_member_left_behind_takes_over_a_checkpoint() {
    let mut trio = Trio::new(small_log);
    let mut unknown = 0;
    trio.add(&mut unknown);
    let away = (trio.leader() + 1) % 3;
    trio.nodes[away] = None;
    // The members keep 16 MiB of entries in memory; longer ones are needed to push them out.
    let mut large = vec![0u8; 500_000];
    large[0] = 1;
    let mut done = 0;
    while done < 80 {
        let (sender, receiver) = std::sync::mpsc::channel();
        if trio.node(trio.leader()).handle.propose(large.clone(), sender).is_ok() {
            let fate = receiver.recv_timeout(PATIENCE).expect("every proposal has a fate");
            done += u32::from(matches!(fate, Fate::Done(_)));
        }
    }
    wait_for("a checkpoint", || trio.node(trio.leader()).handle.status().checkpoints > 2);
    let sum = trio.add(&mut unknown);
    trio.start(away);
    wait_for("the checkpoint to be taken over", || trio.node(away).state.lock().sum >= sum);
    let status = trio.node(trio.leader()).handle.status();
    assert!(status.core.applied.index > 50, "{status:?}");
    trio.nodes[away] = None;
    trio.start(away);
    wait_for("the same after a restart", || trio.node(away).state.lock().sum >= sum);
}

/// A leader without a majority must stop serving reads and acknowledging; its lease must end by itself.
#[test]
fn a_leader_cut_off_loses_its_lease() {
    let trio = Trio::new(config);
    let mut unknown = 0;
    trio.add(&mut unknown);
    let mut old = 0;
    wait_for("a lease", || {
        old = trio.leader();
        trio.node(old).handle.read_permit().is_ok()
    });
    let node = NodeId(old as u32 + 1);
    trio.switch.cut(node, true);
    wait_for("the end of the lease", || trio.node(old).handle.read_permit().is_err());
    wait_for("another leader", || (0..3).any(|at| at != old && trio.node(at).handle.leads()));
    wait_for("the old one to notice", || !trio.node(old).handle.leads());
    assert!(trio.node(old).handle.read_permit().is_err());
    wait_for("the state machine to be told", || {
        matches!(trio.node(old).roles.lock().last(), Some(Role::Follower { .. }))
    });
    trio.switch.cut(node, false);
    let sum = trio.add(&mut unknown);
    wait_for("agreement", || trio.node(old).state.lock().sum >= sum);
}

/// A member that hears nothing would call its state new for ever, or one that follows call it old.
#[test]
fn members_know_how_old_they_are() {
    let mut trio = Trio::new(config);
    let mut unknown = 0;
    trio.add(&mut unknown);
    let leader = trio.leader();
    let (cut, other) = ((leader + 1) % 3, (leader + 2) % 3);
    // A member that has just begun has none yet.
    let age = |trio: &Trio, at: usize| {
        let mut known = None;
        wait_for("a state that has an age", || {
            known = trio.node(at).handle.age();
            known.is_some()
        });
        known.expect("waited for")
    };
    trio.switch.cut(NodeId(cut as u32 + 1), true);
    let sum = trio.add(&mut unknown);
    wait_for("it to get older than the others ever are", || age(&trio, cut) > Duration::from_millis(1500));
    assert!(trio.node(cut).state.lock().sum < sum, "it heard nothing");
    let young = Duration::from_millis(1500);
    wait_for("one that follows to be young", || age(&trio, other) < young && trio.node(other).state.lock().sum >= sum);
    wait_for("the leader to be young", || age(&trio, trio.leader()) < young);
    trio.switch.cut(NodeId(cut as u32 + 1), false);
    wait_for("it to be young again", || age(&trio, cut) < young);
    assert!(trio.node(cut).state.lock().sum >= sum, "as new as it says");
    // A start tells nothing of what others did meanwhile: it counts from the last entry that it has.
    (0..3).for_each(|at| trio.nodes[at] = None);
    trio.start(cut);
    wait_for("its age to count from there", || {
        let logged = trio.node(cut).state.lock().time;
        let counted = Duration::from_nanos(RealClock.wall().0.saturating_sub(logged.0));
        counted > 2 * young && trio.node(cut).handle.age().is_some_and(|age| age >= counted - young)
    });
}

/// Leadership can be handed over, and members be removed and added again, while proposals go on.
#[test]
fn leadership_and_members_change() {
    let trio = Trio::new(config);
    let mut unknown = 0;
    trio.add(&mut unknown);
    let (old, to) = (trio.leader(), (trio.leader() + 1) % 3);
    wait_for("the hand-over", || {
        // Refused as long as another is under way.
        let _ = trio.node(trio.leader()).handle.transfer_leader(NodeId(to as u32 + 1));
        std::thread::sleep(Duration::from_millis(50));
        trio.node(to).handle.leads()
    });
    let gone = NodeId(old as u32 + 1);
    let members = || trio.node(trio.leader()).handle.status().core.members;
    wait_for("the removal", || {
        let _ = trio.node(trio.leader()).handle.change_members(vec![MemberChange::Remove(gone)]);
        !members().contains(gone)
    });
    trio.add(&mut unknown);
    wait_for("the addition", || {
        let _ = trio.node(trio.leader()).handle.change_members(vec![MemberChange::Learner(gone)]);
        members().contains(gone)
    });
    wait_for("the promotion", || {
        let _ = trio.node(trio.leader()).handle.change_members(vec![MemberChange::Voter(gone)]);
        members().voters.contains(&gone)
    });
    let sum = trio.add(&mut unknown);
    wait_for("agreement", || trio.node(old).state.lock().sum >= sum);
}
