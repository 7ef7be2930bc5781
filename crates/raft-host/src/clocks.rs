//! [`Clocks`]: what the clocks of others say, so that nobody's wrong clock decides alone.
//!
//! Members of Raft groups put their calendar into each message, nodes and the manager into heartbeats. What was heard
//! goes on with this process's monotonic clock, so a jump of its own calendar is seen at once. The time that is agreed
//! is the own one, unless it differs by more than the bound from the middle of all: then it is that. Of two that
//! disagree the earlier counts: a clock that lies behind deletes nothing early.
//!
//! Invariants: an age is reached only when a majority of a group's members have clocks that say so; what was not heard
//! for [`FRESH`] is not known. Not here: logged time itself ([`cairn_raft::LogClock`]), what is deleted by age (the
//! roles).

use std::collections::BTreeMap;
use std::time::Duration;

use cairn_types::{NodeId, Time, WallTime};
use parking_lot::Mutex;

/// How long what a clock said counts.
pub const FRESH: Duration = Duration::from_secs(60);
/// A difference that lasts so long is said: messages that were long on their way are no wrong clock.
pub const SAID_AFTER: Duration = Duration::from_secs(5);
/// Clocks that are remembered; more say nothing new about the middle.
const HEARD_MAX: usize = 64;
/// Difference from which on a clock is wrong, if the cluster says nothing else.
pub const BOUND: Duration = Duration::from_secs(10);
/// The calendar may be so far ahead of the last logged time at a start before somebody else has to confirm it.
pub(crate) const JUMP: Duration = Duration::from_secs(3600);
/// So long is a confirmation waited for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// After a jump that nobody confirmed nothing is deleted by age for so long.
pub(crate) const DOUBT: Duration = Duration::from_secs(3600);

/// What one clock said when.
#[derive(Debug, Clone, Copy)]
struct Heard {
    wall: WallTime,
    at: Time,
}

impl Heard {
    fn present(&self, now: Time) -> WallTime {
        let passed = u64::try_from(now.since(self.at).as_nanos()).unwrap_or(u64::MAX);
        WallTime(self.wall.0.saturating_add(passed))
    }
}

#[derive(Debug)]
struct Inner {
    heard: BTreeMap<NodeId, Heard>,
    bound: Duration,
    /// Since when the own clock differs.
    differs: Option<Time>,
    /// The difference is in the log.
    said: bool,
    /// Until then nothing is deleted by age, unless somebody confirms the time.
    doubt_until: Option<Time>,
}

/// The calendar as it was agreed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreed {
    pub wall: WallTime,
    /// Others whose clocks are known.
    pub others: usize,
}

/// The clocks of a process's peers.
#[derive(Debug)]
pub struct Clocks {
    own: NodeId,
    inner: Mutex<Inner>,
}

impl Clocks {
    pub fn new(own: NodeId) -> Self {
        let inner = Inner { heard: BTreeMap::new(), bound: BOUND, differs: None, said: false, doubt_until: None };
        Self { own, inner: Mutex::new(inner) }
    }

    /// From which difference on a clock is wrong.
    pub fn set_bound(&self, bound: Duration) {
        self.inner.lock().bound = bound;
    }

    /// Somebody's clock, as a message has it that came now. 0: it does not say.
    pub fn heard(&self, from: NodeId, wall: WallTime, now: Time) {
        if from == self.own || wall.0 == 0 {
            return;
        }
        let mut inner = self.inner.lock();
        let heard = Heard { wall, at: now };
        match inner.heard.get_mut(&from) {
            // One that was long on its way looks like a clock that lies behind: the best of the last seconds counts.
            Some(known) if known.present(now) > wall && now.since(known.at) < FRESH / 2 => {}
            Some(known) => *known = heard,
            None => {
                if inner.heard.len() >= HEARD_MAX {
                    inner.heard.retain(|_, heard| now.since(heard.at) < FRESH);
                }
                if inner.heard.len() < HEARD_MAX {
                    inner.heard.insert(from, heard);
                }
            }
        }
    }

    /// The present by the own calendar, or by the others'.
    pub fn agreed(&self, now: Time, own: WallTime) -> Agreed {
        let mut inner = self.inner.lock();
        let others = inner.others(now);
        let Some((middle, wrong)) = inner.middle(&others, own) else {
            (inner.differs, inner.said) = (None, false);
            return Agreed { wall: own, others: others.len() };
        };
        if !wrong {
            if inner.said {
                tracing::info!("the clock of this node agrees with the others' again");
            }
            (inner.differs, inner.said) = (None, false);
            return Agreed { wall: own, others: others.len() };
        }
        let since = *inner.differs.get_or_insert(now);
        if !inner.said && now.since(since) >= SAID_AFTER {
            inner.said = true;
            tracing::warn!("{}", told(&others, middle, own));
        }
        Agreed { wall: middle, others: others.len() }
    }

    /// What people are to know about the own clock, if anything.
    pub fn problem(&self, now: Time, own: WallTime) -> Option<String> {
        // Whoever leads nothing asks here only.
        self.agreed(now, own);
        let inner = self.inner.lock();
        if let Some(until) = inner.doubt_until.filter(|until| now < *until) {
            let others = inner.others(now);
            if others.is_empty() {
                return Some(format!(
                    "the clock of this machine is far ahead of the last logged time, and nobody's clock confirms it: nothing is \
                     deleted by age for {} more minutes; if the clock is wrong, set it and restart this node",
                    until.since(now).as_secs().div_ceil(60)
                ));
            }
        }
        if !inner.said {
            return None;
        }
        let others = inner.others(now);
        let (middle, wrong) = inner.middle(&others, own)?;
        wrong.then(|| told(&others, middle, own))
    }

    /// The latest time that a majority of these members have reached by their own clocks. `None`: too few are known.
    pub fn reached(&self, voters: &[NodeId], now: Time, own: WallTime) -> Option<WallTime> {
        let inner = self.inner.lock();
        let others = inner.others(now);
        if voters.len() <= 1 {
            if others.is_empty() && inner.doubt_until.is_some_and(|until| now < until) {
                return None;
            }
            let middle = inner.middle(&others, own).map(|(middle, _)| middle);
            return Some(middle.map_or(own, |middle| middle.min(own)));
        }
        let of = |node: &NodeId| match *node == self.own {
            true => Some(own),
            false => others.iter().find(|(other, _)| other == node).map(|(_, wall)| *wall),
        };
        let mut known: Vec<WallTime> = voters.iter().filter_map(of).collect();
        known.sort_unstable_by(|a, b| b.cmp(a));
        known.get(voters.len() / 2).copied()
    }

    /// The calendar jumped at a start, and nobody confirmed it.
    pub(crate) fn doubt(&self, now: Time) {
        self.inner.lock().doubt_until = Some(now + DOUBT);
    }
}

impl Inner {
    fn others(&self, now: Time) -> Vec<(NodeId, WallTime)> {
        let fresh = self.heard.iter().filter(|(_, heard)| now.since(heard.at) < FRESH);
        fresh.map(|(node, heard)| (*node, heard.present(now))).collect()
    }

    /// The middle of all (of two the earlier), and whether the own clock is too far from it. `None`: nobody else is
    /// known.
    fn middle(&self, others: &[(NodeId, WallTime)], own: WallTime) -> Option<(WallTime, bool)> {
        if others.is_empty() {
            return None;
        }
        let mut walls: Vec<WallTime> = others.iter().map(|(_, wall)| *wall).collect();
        walls.push(own);
        walls.sort_unstable();
        let middle = walls[(walls.len() - 1) / 2];
        let bound = u64::try_from(self.bound.as_nanos()).unwrap_or(u64::MAX);
        Some((middle, own.0.abs_diff(middle.0) > bound))
    }
}

fn told(others: &[(NodeId, WallTime)], middle: WallTime, own: WallTime) -> String {
    let names: Vec<String> = others.iter().take(5).map(|(node, _)| node.to_string()).collect();
    let more = if others.len() > names.len() { " and others" } else { "" };
    let (by, side) = match own > middle {
        true => (own.0 - middle.0, "ahead of"),
        false => (middle.0 - own.0, "behind"),
    };
    format!(
        "the clock of this node is {} {side} those of {}{more}: what it logs is timed by theirs; set its clock (is a time service \
         running?)",
        span(Duration::from_nanos(by)),
        names.join(", ")
    )
}

/// `5 days 2 h`, `3 h 20 min`, `42 s`.
fn span(length: Duration) -> String {
    let seconds = length.as_secs();
    match (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60) {
        (0, 0, 0..=2) => format!("{seconds} s"),
        (0, 0, minutes) => format!("{minutes} min"),
        (0, hours, minutes) => format!("{hours} h {minutes} min"),
        (days, hours, _) => format!("{days} days {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 86_400_000_000_000;
    const BASE: u64 = 20_000 * DAY;
    const fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }
    fn clocks(offsets: &[(u32, i64)], now: Time) -> Clocks {
        let clocks = Clocks::new(NodeId(1));
        for (node, offset) in offsets {
            clocks.heard(NodeId(*node), wall(now, *offset), now);
        }
        clocks
    }
    fn wall(now: Time, offset: i64) -> WallTime {
        WallTime((BASE + now.0).checked_add_signed(offset).unwrap())
    }
    const FIVE_DAYS: i64 = 5 * DAY as i64;

    /// One clock five days ahead would time everything that its member logs, and what is logged never goes back.
    #[test]
    fn a_clock_that_is_ahead_is_not_followed() {
        let own = |now: Time| wall(now, FIVE_DAYS);
        let trio = clocks(&[(2, 3_000_000), (3, -2_000_000)], at(10));
        let agreed = trio.agreed(at(12), own(at(12)));
        assert_eq!((agreed.wall, agreed.others), (wall(at(12), 3_000_000), 2), "what was heard goes on");
        let pair = clocks(&[(2, 0)], at(10));
        assert_eq!(pair.agreed(at(10), own(at(10))).wall, wall(at(10), 0), "of two the earlier counts");
        assert_eq!(pair.agreed(at(80), own(at(80))).wall, own(at(80)), "what was said long ago is not known");
        let alone = clocks(&[], at(10));
        assert_eq!(alone.agreed(at(10), own(at(10))), Agreed { wall: own(at(10)), others: 0 });
    }

    /// A cluster of sound clocks would follow the one that is wrong.
    #[test]
    fn one_wrong_clock_among_the_others_moves_nobody() {
        for wrong in [FIVE_DAYS, -FIVE_DAYS] {
            let four = clocks(&[(2, wrong), (3, 40_000_000), (4, 1_000)], at(10));
            assert_eq!(four.agreed(at(10), wall(at(10), 0)).wall, wall(at(10), 0));
            let three = clocks(&[(2, wrong), (3, 40_000_000)], at(10));
            assert_eq!(three.agreed(at(10), wall(at(10), 0)).wall, wall(at(10), 0));
        }
        let pair = clocks(&[(2, FIVE_DAYS)], at(10));
        assert_eq!(pair.agreed(at(10), wall(at(10), 0)).wall, wall(at(10), 0), "ahead of the own one");
        let behind = clocks(&[(2, 0), (3, 0)], at(10));
        assert_eq!(
            behind.agreed(at(10), wall(at(10), -FIVE_DAYS)).wall,
            wall(at(10), 0),
            "two agree that it lies behind"
        );
    }

    /// The trash of three days would be removed because one member believes that they are over.
    #[test]
    fn an_age_is_reached_when_a_majority_says_so() {
        let voters = [NodeId(1), NodeId(2), NodeId(3)];
        let both = clocks(&[(2, 0), (3, 0), (9, FIVE_DAYS)], at(10));
        assert_eq!(both.reached(&voters, at(10), wall(at(10), FIVE_DAYS)), Some(wall(at(10), 0)));
        let one = clocks(&[(2, 0)], at(10));
        assert_eq!(one.reached(&voters, at(10), wall(at(10), FIVE_DAYS)), Some(wall(at(10), 0)));
        let nobody = clocks(&[(9, FIVE_DAYS)], at(10));
        assert_eq!(nobody.reached(&voters, at(10), wall(at(10), FIVE_DAYS)), None, "alone it is no majority");
        assert_eq!(both.reached(&voters, at(90), wall(at(90), FIVE_DAYS)), None, "nobody was heard of late");
        // The only member of its group asks the managers and whoever else is there.
        assert_eq!(one.reached(&[NodeId(1)], at(10), wall(at(10), FIVE_DAYS)), Some(wall(at(10), 0)));
        let alone = clocks(&[], at(10));
        assert_eq!(alone.reached(&[NodeId(1)], at(10), wall(at(10), 0)), Some(wall(at(10), 0)));
        alone.doubt(at(10));
        assert_eq!(alone.reached(&[NodeId(1)], at(3000), wall(at(3000), 0)), None, "after a jump it waits");
        assert!(alone.problem(at(3000), wall(at(3000), 0)).unwrap().contains("11 more minutes"));
        assert_eq!(alone.reached(&[NodeId(1)], at(3610), wall(at(3610), 0)), Some(wall(at(3610), 0)));
    }

    /// Nobody would know which clock is to be set, or a message that was late would be called a wrong clock.
    #[test]
    fn a_wrong_clock_is_named_with_who_and_by_how_much() {
        let clocks = clocks(&[(2, 0), (3, 0)], at(10));
        let own = |now: Time| wall(now, FIVE_DAYS + 7_200_000_000_000);
        assert_eq!(clocks.problem(at(10), own(at(10))), None, "not at once");
        let said = clocks.problem(at(16), own(at(16))).unwrap();
        assert!(said.starts_with("the clock of this node is 5 days 2 h ahead of those of n2, n3:"), "{said}");
        assert_eq!(clocks.problem(at(17), wall(at(17), 0)), None, "it was set");
        // Late messages look like clocks that lie behind.
        clocks.heard(NodeId(2), wall(at(1), 0), at(20));
        assert_eq!(clocks.reached(&[NodeId(1), NodeId(2)], at(20), wall(at(20), 0)), Some(wall(at(20), 0)));
        clocks.set_bound(Duration::from_secs(1));
        for now in [20, 26] {
            let said = clocks.problem(at(now), wall(at(now), -2_000_000_000));
            assert_eq!(said.is_some(), now == 26, "{said:?}");
        }
    }

    /// A stranger's messages would fill the memory.
    #[test]
    fn memory_is_bounded() {
        let clocks = Clocks::new(NodeId(1));
        (2..1000).for_each(|node| clocks.heard(NodeId(node), wall(at(5), 0), at(5)));
        assert_eq!(clocks.agreed(at(5), wall(at(5), 0)).others, HEARD_MAX);
        clocks.heard(NodeId(2000), wall(at(100), 0), at(100));
        assert_eq!(clocks.agreed(at(100), wall(at(100), 0)).others, 1, "those of before are forgotten");
    }
}
