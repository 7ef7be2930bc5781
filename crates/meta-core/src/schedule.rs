//! Snapshots that are taken by themselves: hourly, daily, weekly, monthly, and how many of each are kept.
//!
//! The rules are in the namespace; the leader of the partition asks once in a while whether something is due and logs `RunSchedule` with a
//! time that a majority of the members has reached, so that one clock that is wrong neither takes nor removes any. A period of which none was
//! taken when it began (nobody led, files were overwritten in place) gets its snapshot when that is possible, until the next one begins.
//!
//! Invariants: a rule takes at most one snapshot a period, and removes only what it took itself and what was not renamed since; taking comes
//! before removing. What is wrong with one rule does not keep the others from running.
//! Not here: taking and deleting (`snapshots`).
use crate::encoding::{decode_rules, encode_rules};
use crate::error::{OpError, Result};
use crate::key;
use crate::message::request;
use crate::namespace::{Context, Namespace};
use cairn_types::ErrorCode;
use cairn_types::date::civil;

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

    /// What a snapshot is called.
    fn snapshot_name(self, ns: u64) -> Vec<u8> {
        let seconds = ns / 1_000_000_000;
        let (year, month, day) = civil(seconds / 86_400);
        let (hour, minute) = (seconds % 86_400 / 3600, seconds / 60 % 60);
        format!("{}-{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}Z", self.name()).into_bytes()
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
    "a schedule has each of hourly, daily, weekly and monthly at most once, and keeps from 1 to 900 in all",
);
/// Some room is left for those that people take.
const KEEP_MAX: u64 = 900;

impl Namespace {
    /// Replaces the schedule; none without rules. The snapshots that there are stay.
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
        let mut rules: Vec<Rule> = Vec::new();
        let (now, before) = (self.time, self.snapshots.schedule.clone());
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
        let kept: u64 = rules.iter().map(|rule| u64::from(rule.keep)).sum();
        if !is_unique || rules.iter().any(|rule| rule.keep == 0) || kept > KEEP_MAX {
            return Err(BAD_RULES);
        }
        self.put_schedule(rules);
        Ok(())
    }

    fn put_schedule(&mut self, rules: Vec<Rule>) {
        if rules.is_empty() {
            self.tree.remove(key::schedule().as_bytes());
        } else {
            let value = &mut self.scratch.value;
            value.clear();
            encode_rules(&rules, value);
            self.tree.put(key::schedule().as_bytes(), value);
        }
        self.snapshots.schedule = rules;
    }

    pub(crate) fn load_schedule(&self) -> Result<Vec<Rule>> {
        match self.tree.get(key::schedule().as_bytes()) {
            None => Ok(Vec::new()),
            Some(value) => decode_rules(value).ok_or(OpError::DAMAGED),
        }
    }

    /// Takes what is due and removes what is beyond the rules. The error is that of the first rule that could not take one.
    pub(crate) fn run_schedule(&mut self, bytes: &[u8]) -> Result<()> {
        let request = request::RunSchedule::decode(bytes)?;
        let now = self.time.min(request.up_to_ns);
        let (mut rules, mut failed) = (self.snapshots.schedule.clone(), None);
        for rule in &mut rules {
            let number = rule.period.number(now);
            // With other partitions it is taken by the leader, before.
            if number <= rule.done || self.is_one_of_several() {
                continue;
            }
            match self.take_snapshot(rule.period.snapshot_name(now), rule.period as u8) {
                Ok(Ok(_)) => rule.done = number,
                // Whoever overwrites in place was told to stop; it is asked again.
                Ok(Err(_)) => {}
                Err(error) => drop(failed.get_or_insert(error)),
            }
        }
        for rule in &rules {
            let taken = self.snapshots.taken_by(rule.period as u8);
            let beyond = taken.len().saturating_sub(rule.keep as usize);
            taken.into_iter().take(beyond).for_each(|number| self.begin_deletion(number));
        }
        if rules != self.snapshots.schedule {
            self.put_schedule(rules);
        }
        failed.map_or(Ok(()), Err)
    }
}

/// Of a volume with several partitions.
impl Namespace {
    /// A rule has its snapshot of the period that a time is in.
    pub(crate) fn note_scheduled(&mut self, rule: u8, up_to_ns: u64) {
        let mut rules = self.snapshots.schedule.clone();
        for known in rules.iter_mut().filter(|known| known.period as u8 == rule) {
            known.done = known.done.max(known.period.number(up_to_ns));
        }
        if rules != self.snapshots.schedule {
            self.put_schedule(rules);
        }
    }

    /// What a schedule wants to be taken at a time: the rule, and the name.
    pub fn due_snapshots(&self, now_ns: u64) -> Vec<(u8, Vec<u8>)> {
        let due = self.snapshots.schedule.iter().filter(|rule| rule.period.number(now_ns) > rule.done);
        due.map(|rule| (rule.period as u8, rule.period.snapshot_name(now_ns))).collect()
    }
}

/// For the server around it.
impl Namespace {
    /// Whether the schedule wants something to be done at a time.
    pub fn is_schedule_due(&self, now_ns: u64) -> bool {
        self.snapshots.schedule.iter().any(|rule| {
            rule.period.number(now_ns) > rule.done
                || self.snapshots.taken_by(rule.period as u8).len() > rule.keep as usize
        })
    }

    pub fn schedule(&self) -> &[Rule] {
        &self.snapshots.schedule
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
        let name = Period::Hourly.snapshot_name(day + 14 * HOUR + 61_000_000_000);
        assert_eq!(name, b"hourly-2026-11-26T14:01Z");
    }
}
