//! Gray disks: those that still work and are about to fail, or slow down everybody who writes to them.
//!
//! | a disk is | becomes | when |
//! |---|---|---|
//! | good | gray | its mean write took [`TIMES_PEERS`] times that of its peers, and at least [`SLOW_MIN_US`], for `gray_after` longer than it did not |
//! | good | gray | [`BAD_BLOCKS`] blocks were found bad on it within [`BAD_WINDOW`] |
//! | gray | good | it was heard for `gray_clear` without a slow write or another bad block |
//! | gray | good | without it a scheme in use lacks disks, because others are away: new data on a slow disk is better than none |
//! | gray | good | an operator says so |
//!
//! What is seen is the leader's memory: a new leader counts anew. What it comes to is in the log. A gray disk gets
//! nothing new, and one at a time is emptied as if it were drained (`drain_gray_disks`). Invariants: never more than
//! one of [`SHARE`] disks is marked, and never so many that a scheme in use lacks disks ([`State::may_be_gray`]);
//! without [`PEERS_MIN`] peers that write, and of disks that are being filled, there is no evidence. Not here: the log,
//! the moves ([`crate::moves`]).
use crate::apply::Outcome;
use crate::change::ItemKey;
use crate::command::SetGray;
use crate::config::Key;
use crate::items::{DiskState, clip};
use crate::pg::Pg;
use crate::soft::Soft;
use crate::state::State;
use cairn_types::{DiskId, ErrorCode, MemberState, Time, WallTime};
use cairn_wire::error::WireError;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// So many times as long as the median of its peers is slow.
pub const TIMES_PEERS: u32 = 8;
/// A mean write that takes less is never slow, in microseconds.
pub const SLOW_MIN_US: u32 = 50_000;
/// Fewest other disks with writes that a disk is held against.
pub const PEERS_MIN: usize = 3;
/// Bad blocks found within [`BAD_WINDOW`] that make a disk gray.
pub const BAD_BLOCKS: u64 = 16;
/// In which they are counted.
pub const BAD_WINDOW: Duration = Duration::from_secs(3600);
/// One of so many disks may be gray, and at least one.
pub const SHARE: usize = 8;
/// Longest time for which one look speaks.
const STEP_MAX: Duration = Duration::from_secs(15);

/// A disk that is marked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gray {
    pub since: WallTime,
    /// What was seen, in words.
    pub why: String,
}

/// As it is in a checkpoint.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct GrayRecord {
    #[prost(uint32, tag = "1")]
    pub disk: u32,
    #[prost(uint64, tag = "2")]
    pub since_ns: u64,
    #[prost(string, tag = "3")]
    pub why: String,
}

impl State {
    /// What is marked, by disk.
    pub fn grays(&self) -> impl Iterator<Item = (DiskId, &Gray)> {
        self.grays.iter().map(|(disk, gray)| (*disk, gray))
    }

    pub fn is_gray(&self, disk: DiskId) -> bool {
        self.grays.contains_key(&disk)
    }

    /// The gray disk that is emptied now: of those that serve something the one that was marked first.
    pub fn gray_leaving(&self) -> Option<DiskId> {
        if self.config().number(Key::DrainGrayDisks) == 0 {
            return None;
        }
        let serves =
            |disk: DiskId| self.pgs_of(disk).any(|pg| !pg.retired && pg.state_of(disk) == Some(MemberState::Serving));
        let left = self.grays().filter(|(disk, _)| self.is_able(*disk) && serves(*disk));
        left.min_by_key(|(disk, gray)| (gray.since, *disk)).map(|(disk, _)| disk)
    }

    /// Whether the cluster can do without new data on this disk.
    pub fn may_be_gray(&self, disk: DiskId) -> bool {
        let in_service = self.disks().filter(|d| self.is_able(d.id)).count();
        let marked = self.grays().filter(|(disk, _)| self.is_able(*disk)).count();
        self.is_able(disk) && !self.is_gray(disk) && marked < (in_service / SHARE).max(1) && self.suffices_without(disk)
    }

    /// Whether the disks that take new data are enough for all schemes in use without this one.
    fn suffices_without(&self, disk: DiskId) -> bool {
        let left = self.disks().filter(|d| d.id != disk && self.takes_more(d.id)).count();
        let wanted = self.pgs().filter(|pg| !pg.retired).map(|pg| pg.members.len()).max().unwrap_or(1);
        left >= wanted
    }

    pub(crate) fn set_gray(&mut self, time: WallTime, command: &SetGray) -> Result<Outcome, WireError> {
        let id = DiskId(command.disk);
        if self.disk(id).is_none_or(|disk| disk.state == DiskState::Removed) {
            let text = format!("there is no {id}; `cairn admin disk ls` shows what there is");
            return Err(WireError::new(ErrorCode::NotFound, text));
        }
        if !command.gray {
            self.grays.remove(&id).ok_or_else(|| {
                let text = format!("{id} is not gray; `cairn admin disk ls` shows which are");
                WireError::new(ErrorCode::NotFound, text)
            })?;
        } else if self.may_be_gray(id) {
            self.grays.insert(id, Gray { since: time, why: clip(&command.why) });
        } else {
            return Ok(Outcome::Done);
        }
        self.touch(ItemKey::Disk(id));
        Ok(Outcome::Done)
    }
}

/// What was seen of a disk.
#[derive(Clone, Default, Debug)]
struct Sight {
    /// Time of slow writes, less that of good ones.
    slow: Duration,
    /// Time without anything bad.
    good: Duration,
    /// Bad blocks as last told, and within the window.
    told: u64,
    found: u64,
    window: Option<Time>,
}

/// What follows from what was seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    Gray(DiskId, String),
    Good(DiskId),
}

/// The leader's memory of how disks do.
#[derive(Clone, Default, Debug)]
pub struct Grayness {
    disks: BTreeMap<DiskId, Sight>,
    last: Option<Time>,
}

impl Grayness {
    /// Takes what the disks told last, at the time of a clock that never jumps.
    pub fn observe(&mut self, state: &State, soft: &Soft, now: Time) -> Vec<Verdict> {
        let step = self.last.map_or(Duration::ZERO, |last| now.since(last)).min(STEP_MAX);
        self.last = Some(now);
        let loads = || soft.disks.iter().filter(|(disk, _)| state.is_able(**disk));
        let mut writes: Vec<(u32, DiskId)> =
            loads().filter(|(_, load)| load.latency_us > 0).map(|(disk, load)| (load.latency_us, *disk)).collect();
        writes.sort_unstable();
        self.disks.retain(|disk, _| soft.disks.contains_key(disk));
        let (after, clear) = (state.config().duration(Key::GrayAfter), state.config().duration(Key::GrayClear));
        // Who is filled in the place of another one is busy.
        let filled: BTreeSet<DiskId> = state.pgs().filter(|pg| !pg.retired).flat_map(Pg::filling).collect();
        let (mut verdicts, mut lifted) = (Vec::new(), false);
        for (disk, load) in loads() {
            let sight = self.disks.entry(*disk).or_insert_with(|| Sight { told: load.bad_blocks, ..Sight::default() });
            let peers = median_without(&writes, *disk);
            let quiet = load.latency_us == 0 || filled.contains(disk);
            let slow = peers.filter(|_| !quiet).map(|peers| is_slow(load.latency_us, peers));
            let found = sight.count_bad(load.bad_blocks, now);
            match slow {
                Some(true) => (sight.slow, sight.good) = ((sight.slow + step).min(after), Duration::ZERO),
                // Nothing is seen.
                _ if quiet => {}
                _ => sight.slow = sight.slow.saturating_sub(step),
            }
            sight.good = if found > 0 || slow == Some(true) { Duration::ZERO } else { sight.good.saturating_add(step) };
            if state.is_gray(*disk) {
                // Who says that it is good means what was seen so far.
                (sight.slow, sight.found) = (Duration::ZERO, 0);
                let needed = !lifted && !state.suffices_without(*disk);
                lifted |= needed;
                if sight.good >= clear || needed {
                    *sight = Sight { told: load.bad_blocks, ..Sight::default() };
                    verdicts.push(Verdict::Good(*disk));
                }
            } else if let Some(why) = sight.flaw(after, load.latency_us, peers) {
                *sight = Sight { told: load.bad_blocks, ..Sight::default() };
                verdicts.push(Verdict::Gray(*disk, why));
            }
        }
        // One at a time: each changes what the next one may be.
        let mut marks = 0;
        verdicts.retain(|verdict| match verdict {
            Verdict::Gray(disk, _) => {
                let may = marks == 0 && state.may_be_gray(*disk);
                marks += usize::from(may);
                may
            }
            Verdict::Good(_) => true,
        });
        verdicts
    }
}

impl Sight {
    /// Bad blocks that are new; a node that started anew counts from nothing.
    fn count_bad(&mut self, told: u64, now: Time) -> u64 {
        let new = if told >= self.told { told - self.told } else { told };
        self.told = told;
        let over = self.window.is_none_or(|since| now.since(since) >= BAD_WINDOW);
        if over {
            (self.window, self.found) = (Some(now), 0);
        }
        self.found = self.found.saturating_add(new);
        new
    }

    fn flaw(&self, after: Duration, latency_us: u32, peers: Option<u32>) -> Option<String> {
        if after.is_zero() {
            return None;
        }
        if self.found >= BAD_BLOCKS {
            return Some(format!("{} of its blocks were found bad within an hour", self.found));
        }
        let ms = |us: u32| f64::from(us) / 1000.0;
        (self.slow >= after).then(|| {
            format!(
                "its writes took {:.0} ms on average where those of other disks took {:.1} ms, for {} s",
                ms(latency_us),
                ms(peers.unwrap_or(0)),
                after.as_secs()
            )
        })
    }
}

fn is_slow(latency_us: u32, peers: u32) -> bool {
    latency_us >= SLOW_MIN_US && latency_us >= peers.saturating_mul(TIMES_PEERS)
}

/// The median of all others, if they are enough.
fn median_without(sorted: &[(u32, DiskId)], disk: DiskId) -> Option<u32> {
    let others: usize = sorted.iter().filter(|(_, other)| *other != disk).count();
    let mut without = sorted.iter().filter(|(_, other)| *other != disk);
    if others < PEERS_MIN { None } else { without.nth(others / 2).map(|(latency, _)| *latency) }
}

#[cfg(test)]
mod tests;
