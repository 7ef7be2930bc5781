//! Snapshots that are taken by themselves: hourly, daily, weekly, monthly, and how many of each are kept.
//!
//! The rules are in the namespace; the leader of the partition asks once in a while whether something is due and logs
//! `RunSchedule` with a time that a majority of the members has reached, so that one clock that is wrong neither takes
//! nor removes any. A period of which none was taken when it began (nobody led, files were overwritten in place) gets
//! its snapshot when that is possible, until the next one begins.
//!
//! A volume has a schedule, and each of its directories may have one; that of a directory ends with it. What is taken
//! of a directory has another ending than what is taken of the volume, since the directory shows both.
//!
//! Invariants: a rule takes at most one snapshot a period, and removes only what it took itself and what was not
//! renamed since; taking comes before removing. What is wrong with one rule does not keep the others from running. Not
//! here: taking and deleting (`snapshots`).
use crate::encoding::{decode_rules, encode_rules};
use crate::error::{OpError, Result};
use crate::key::{self, Kind};
use crate::message::request;
use crate::namespace::{Context, Namespace};
use crate::snapshots::{NO_DIRECTORY, NOT_FOR_DIRECTORIES, Snapshots};
use cairn_types::ErrorCode;
use cairn_types::date::civil;
use cairn_wire::error::WireError;
use std::collections::{BTreeMap, BTreeSet};

/// Feature level from which on there are schedules.
pub const SCHEDULE_LEVEL: u16 = 13;

/// How often a rule takes a snapshot. Periods begin by UTC; weeks on Mondays.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Period {
    Hourly = 1,
    Daily = 2,
    Weekly = 3,
    Monthly = 4,
}

impl Period {
    pub const fn from_code(code: u64) -> Option<Period> {
        match code {
            1 => Some(Period::Hourly),
            2 => Some(Period::Daily),
            3 => Some(Period::Weekly),
            4 => Some(Period::Monthly),
            _ => None,
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Period::Hourly => "hourly",
            Period::Daily => "daily",
            Period::Weekly => "weekly",
            Period::Monthly => "monthly",
        }
    }

    /// Number of the period that a time is in; they ascend.
    const fn number(self, ns: u64) -> u64 {
        let seconds = ns / 1_000_000_000;
        let days = seconds / 86_400;
        match self {
            Period::Hourly => seconds / 3600,
            Period::Daily => days,
            // 1970 began on a Thursday.
            Period::Weekly => (days + 3) / 7,
            Period::Monthly => {
                let (year, month, _) = civil(days);
                year * 12 + month
            }
        }
    }

    /// What a snapshot of a directory (0: of the volume) is called.
    fn snapshot_name(self, directory: u64, ns: u64) -> Vec<u8> {
        let ending = if directory == 0 { "" } else { ".dir" };
        let seconds = ns / 1_000_000_000;
        let (year, month, day) = civil(seconds / 86_400);
        let (hour, minute) = (seconds % 86_400 / 3600, seconds / 60 % 60);
        format!("{}-{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}Z{ending}", self.name()).into_bytes()
    }
}

/// One of a schedule's rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rule {
    pub period: Period,
    /// So many of its snapshots are there at most.
    pub keep: u32,
    /// Number of the last period that is done.
    pub done: u64,
}

const BAD_RULES: OpError = OpError::new(
    ErrorCode::InvalidArgument,
    "a schedule has each of hourly, daily, weekly and monthly at most once, and all schedules of a volume keep from 1 to 900 together",
);
/// Some room is left for those that people take.
const KEEP_MAX: u64 = 900;

impl Namespace {
    /// Replaces the schedule of the volume or of a directory; none without rules. The snapshots that there are stay.
    pub(crate) fn set_schedule(&mut self, context: &Context<'_>, bytes: &[u8]) -> Result<()> {
        let request = request::SetSnapshotSchedule::decode(bytes)?;
        self.check_snapshots(context)?;
        if self.level < SCHEDULE_LEVEL {
            return Err(OpError::new(ErrorCode::UnknownOperation, "schedules are of feature level 13"));
        }
        if self.is_one_of_several() && self.level < crate::cut_across::SEVERAL_LEVEL {
            let text = "schedules of volumes with several partitions need feature level 16 of all meta nodes";
            return Err(OpError::new(ErrorCode::UnknownOperation, text));
        }
        if self.has_no_snapshots() {
            return Err(crate::snapshots::TOO_MANY_INODES);
        }
        // A directory that is gone loses what is left of its schedule.
        let directory = match request.directory {
            gone if request.rules.is_empty && self.snapshots.schedules.contains_key(&gone) => gone,
            directory => self.directory_of_snapshots(directory)?,
        };
        if directory != 0 && self.level < crate::snapshots::DIRECTORY_LEVEL {
            return Err(NOT_FOR_DIRECTORIES);
        }
        let mut rules: Vec<Rule> = Vec::new();
        let (now, before) = (self.time, self.snapshots.schedule(directory).to_vec());
        request.rules.visit(|bytes| {
            let rule = request::SnapshotRule::decode(bytes)?;
            let period = Period::from_code(u64::from(rule.period)).ok_or(BAD_RULES)?;
            // It begins with the next period; one that goes on does not take one more in this.
            let known = before.iter().find(|known| known.period == period);
            let done = known.map_or(period.number(now), |known| known.done);
            rules.push(Rule { period, keep: rule.keep, done });
            if rules.len() > 4 { Err(BAD_RULES) } else { Ok(()) }
        })?;
        rules.sort_unstable_by_key(|rule| rule.period);
        let is_unique = rules.windows(2).all(|pair| pair[0].period < pair[1].period);
        let others = self.snapshots.schedules.iter().filter(|(of, _)| **of != directory);
        let kept = others.flat_map(|(_, rules)| rules).chain(&rules);
        let kept: u64 = kept.map(|rule| u64::from(rule.keep)).sum();
        if !is_unique || rules.iter().any(|rule| rule.keep == 0) || kept > KEEP_MAX {
            return Err(BAD_RULES);
        }
        self.put_schedule(directory, rules);
        Ok(())
    }

    fn put_schedule(&mut self, directory: u64, rules: Vec<Rule>) {
        let key = key::schedule(directory);
        if rules.is_empty() {
            self.tree.remove(key.as_bytes());
            self.snapshots.schedules.remove(&directory);
        } else {
            let value = &mut self.scratch.value;
            value.clear();
            encode_rules(&rules, value);
            self.tree.put(key.as_bytes(), value);
            self.snapshots.schedules.insert(directory, rules);
        }
    }

    pub(crate) fn load_schedules(&self) -> Result<BTreeMap<u64, Vec<Rule>>> {
        let prefix = key::prefix(0, Kind::Schedule);
        let mut schedules = BTreeMap::new();
        let mut range = self.tree.prefix(prefix.as_bytes());
        while let Some((entry, value)) = range.next() {
            let directory = match &entry[prefix.as_bytes().len()..] {
                [] => 0,
                directory => key::number(directory).ok_or(OpError::DAMAGED)?,
            };
            schedules.insert(directory, decode_rules(value).ok_or(OpError::DAMAGED)?);
        }
        Ok(schedules)
    }

    /// Takes what is due and removes what is beyond the rules. The error is that of the first rule that could not take
    /// one.
    pub(crate) fn run_schedule(&mut self, bytes: &[u8]) -> Result<()> {
        let request = request::RunSchedule::decode(bytes)?;
        let mut gone = BTreeSet::new();
        request.gone.visit(|directory| {
            gone.insert(directory);
            true
        })?;
        let now = self.time.min(request.up_to_ns);
        let mut failed = None;
        for (directory, rules) in self.snapshots.schedules.clone() {
            let is_gone = directory != 0 && (gone.contains(&directory) || self.is_gone_directory(directory));
            let left = if is_gone { Vec::new() } else { self.run_rules(directory, rules.clone(), now, &mut failed) };
            if left != rules {
                self.put_schedule(directory, left);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    fn run_rules(&mut self, directory: u64, mut rules: Vec<Rule>, now: u64, failed: &mut Option<OpError>) -> Vec<Rule> {
        for rule in &mut rules {
            let number = rule.period.number(now);
            // With other partitions it is taken by the leader, before.
            if number <= rule.done || self.is_one_of_several() {
                continue;
            }
            match self.take_snapshot(directory, rule.period.snapshot_name(directory, now), rule.period as u8) {
                Ok(Ok(_)) => rule.done = number,
                // Whoever overwrites in place was told to stop; it is asked again.
                Ok(Err(_)) => {}
                Err(error) => drop(failed.get_or_insert(error)),
            }
        }
        for rule in &rules {
            let taken = self.snapshots.taken_by(directory, rule.period as u8);
            let beyond = taken.len().saturating_sub(rule.keep as usize);
            taken.into_iter().take(beyond).for_each(|number| self.begin_deletion(number));
        }
        rules
    }
}

/// Of a volume with several partitions.
impl Namespace {
    /// A rule has its snapshot of the period that a time is in.
    pub(crate) fn note_scheduled(&mut self, directory: u64, rule: u8, up_to_ns: u64) {
        let before = self.snapshots.schedule(directory).to_vec();
        let mut rules = before.clone();
        for known in rules.iter_mut().filter(|known| known.period as u8 == rule) {
            known.done = known.done.max(known.period.number(up_to_ns));
        }
        if rules != before {
            self.put_schedule(directory, rules);
        }
    }

    /// What schedules want to be taken at a time.
    pub fn due_snapshots(&self, now_ns: u64) -> Vec<DueSnapshot> {
        let all = self.snapshots.schedules.iter().flat_map(|(of, rules)| rules.iter().map(|rule| (*of, rule)));
        let due = all.filter(|(_, rule)| rule.period.number(now_ns) > rule.done);
        let of = |(directory, rule): (u64, &Rule)| DueSnapshot {
            directory,
            rule: rule.period as u8,
            name: rule.period.snapshot_name(directory, now_ns),
        };
        due.map(of).collect()
    }
}

/// What a schedule wants to be taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DueSnapshot {
    /// 0: of the volume.
    pub directory: u64,
    pub rule: u8,
    pub name: Vec<u8>,
}

impl Snapshots {
    /// Rules of a directory (0: of the volume); none without a schedule.
    pub(crate) fn schedule(&self, directory: u64) -> &[Rule] {
        self.schedules.get(&directory).map_or(&[], Vec::as_slice)
    }
}

/// For the server around it.
impl Namespace {
    /// Whether some schedule wants something to be done at a time.
    pub fn is_schedule_due(&self, now_ns: u64) -> bool {
        self.snapshots.schedules.iter().any(|(directory, rules)| {
            let is_due = |rule: &Rule| {
                rule.period.number(now_ns) > rule.done
                    || self.snapshots.taken_by(*directory, rule.period as u8).len() > rule.keep as usize
            };
            rules.iter().any(is_due)
        })
    }

    /// Whether refused because the directory is gone.
    pub fn lacks_directory(error: &WireError) -> bool {
        error.code == ErrorCode::NotFound && error.message == NO_DIRECTORY.text
    }

    pub fn schedule(&self) -> &[Rule] {
        self.snapshots.schedule(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000_000_000;

    /// A snapshot would be taken twice in a period or not at all, or be called by a time that nobody knows.
    #[test]
    fn periods_begin_by_utc() {
        // 2026-11-26 is a Thursday.
        let day = 20_783 * 24 * HOUR;
        for (period, begin) in [
            (Period::Hourly, day + 5 * HOUR),
            (Period::Daily, day),
            (Period::Weekly, day - 3 * 24 * HOUR),
            (Period::Monthly, day - 25 * 24 * HOUR),
        ] {
            assert_eq!(period.number(begin), period.number(begin + HOUR - 1), "{period:?}");
            assert_eq!(period.number(begin), period.number(begin - 1) + 1, "{period:?}");
            assert_eq!(Period::from_code(period as u64), Some(period));
        }
        let name = |of| Period::Hourly.snapshot_name(of, day + 14 * HOUR + 61_000_000_000);
        assert_eq!(name(0), b"hourly-2026-11-26T14:01Z");
        assert_eq!(name(7), b"hourly-2026-11-26T14:01Z.dir");
    }
}
