//! Members whose calendars are wrong.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cairn_env::{Clock, RealClock, RealDisk};
use cairn_types::{NodeId, WallTime};
use tempfile::TempDir;

use super::fixture::{Fate, Node, Skewed, Switch, config, start_with, wait_for};

const DAY: Duration = Duration::from_secs(86_400);
/// No test takes so long, and no clock is so wrong without being named.
const SOON: Duration = Duration::from_secs(1800);
const FIVE_DAYS: i64 = 5 * DAY.as_nanos() as i64;

struct Members {
    _dirs: Vec<TempDir>,
    clocks: Vec<Arc<Skewed>>,
    nodes: Vec<Node>,
}

fn members(count: u32) -> Members {
    let switch: Arc<Switch> = Arc::default();
    let dirs: Vec<TempDir> = (0..count).map(|_| tempfile::tempdir().unwrap()).collect();
    let clocks: Vec<Arc<Skewed>> = (0..count).map(|_| Arc::default()).collect();
    let all: Vec<u32> = (1..=count).collect();
    let start = |at: usize| {
        let disk = Arc::new(RealDisk::open(dirs[at].path()).unwrap());
        start_with(disk, clocks[at].clone(), &switch, config(at as u32 + 1), &all, 10)
    };
    let nodes = (0..count as usize).map(start).collect();
    Members { _dirs: dirs, clocks, nodes }
}

impl Members {
    fn leader(&self) -> usize {
        let mut found = None;
        wait_for("a leader", || {
            found = self.nodes.iter().position(|node| node.handle.leads());
            found.is_some()
        });
        found.unwrap()
    }

    /// Hands leadership over until this member has it.
    fn lead(&self, at: usize) {
        wait_for("the leader that is wanted", || {
            let leader = self.leader();
            if leader == at {
                return true;
            }
            // Refused while another hand-over is under way.
            let _ = self.nodes[leader].handle.transfer_leader(NodeId(at as u32 + 1));
            std::thread::sleep(Duration::from_millis(20));
            false
        });
    }

    /// Logs something, by this member if it leads, and gives the logged time.
    fn log(&self, at: usize) -> Option<WallTime> {
        match self.nodes[at].add(1) {
            Some(Fate::Done(_)) => Some(self.nodes[at].state.lock().time),
            _ => None,
        }
    }
}

fn ahead(time: WallTime) -> Duration {
    Duration::from_nanos(time.0.saturating_sub(RealClock.wall().0))
}

/// Logged time, which never falls, would be five days ahead for ever after one member with a wrong clock led for a
/// minute.
#[test]
fn a_leader_whose_clock_is_ahead_logs_time_by_the_others() {
    let trio = members(3);
    let first = trio.leader();
    wait_for("an entry", || trio.log(trio.leader()).is_some());
    for wrong in [FIVE_DAYS, -FIVE_DAYS] {
        let at = (first + 1) % 3;
        trio.clocks[at].0.store(wrong, Ordering::SeqCst);
        let mut logged = None;
        wait_for("an entry of the member whose clock is wrong", || {
            trio.lead(at);
            logged = trio.log(at);
            logged.is_some()
        });
        let logged = logged.unwrap();
        assert!(ahead(logged) < SOON, "{wrong}: {logged:?} is {:?} ahead", ahead(logged));
        assert!(
            ahead(WallTime(logged.0 + SOON.as_nanos() as u64)) > Duration::ZERO,
            "{wrong}: {logged:?} lies far behind"
        );
        let voters = [NodeId(1), NodeId(2), NodeId(3)];
        let clock = &trio.clocks[at];
        let reached = trio.nodes[at]._host.clocks().reached(&voters, clock.now(), clock.wall()).unwrap();
        assert!(ahead(reached) < SOON, "an age is reached by the clocks of two");
        trio.clocks[at].0.store(0, Ordering::SeqCst);
    }
}

/// The only manager or the only member of a partition would log the time of its own wrong clock, though others could
/// tell.
#[test]
fn the_only_member_asks_whoever_else_is_there() {
    let one = members(1);
    wait_for("an entry", || one.log(0).is_some());
    one.clocks[0].0.store(FIVE_DAYS, Ordering::SeqCst);
    let logged = one.log(0).unwrap();
    assert!(ahead(logged) < SOON, "a jump while it leads is not followed");
    let clocks = one.nodes[0]._host.clocks();
    clocks.heard(NodeId(20), RealClock.wall(), RealClock.now());
    let agreed = clocks.agreed(RealClock.now(), one.clocks[0].wall());
    assert!(ahead(agreed.wall) < SOON, "{agreed:?}");
}

/// After a start its clock would be believed though it is days ahead of all that was logged.
#[test]
fn a_calendar_that_jumped_over_a_restart_waits_for_a_confirmation() {
    let (dir, switch): (TempDir, Arc<Switch>) = (tempfile::tempdir().unwrap(), Arc::default());
    let start = |clock: &Arc<Skewed>| {
        let disk = Arc::new(RealDisk::open(dir.path()).unwrap());
        let node = start_with(disk, clock.clone(), &switch, config(1), &[1], 10);
        wait_for("leadership", || node.handle.leads());
        node
    };
    let clock: Arc<Skewed> = Arc::default();
    let node = start(&clock);
    assert!(matches!(node.add(1), Some(Fate::Done(_))));
    drop(node);
    clock.0.store(FIVE_DAYS, Ordering::SeqCst);
    let node = start(&clock);
    assert!(matches!(node.add(1), Some(Fate::Done(_))));
    let logged = node.state.lock().time;
    assert!(ahead(logged) < SOON, "nobody has confirmed it: {:?}", ahead(logged));
    let right = WallTime(RealClock.wall().0 + FIVE_DAYS as u64);
    node._host.clocks().heard(NodeId(20), right, RealClock.now());
    assert!(matches!(node.add(1), Some(Fate::Done(_))));
    let logged = node.state.lock().time;
    assert!(ahead(logged) > 4 * DAY, "the machine was off for five days: {:?}", ahead(logged));
}
