//! How far members that catch up have come, from what they report with heartbeats; the leader's memory only.
//!
//! A member's bytes are held against those of the group's primary. The rate is that of at least the last [`HALF`] and
//! at most twice that; before [`KNOWN`] there is none: a member that has just begun, or compares lists, would be said
//! to need hours.
use crate::leading::Leading;
use cairn_manager_core::{DiskState, Pg, State, Target, repair};
use cairn_types::{DiskId, MemberState, PgId, Time};
use cairn_wire::manager::{DrainReason, DrainStatus, RepairStatus};
use std::collections::BTreeMap;
use std::time::Duration;

/// A member that has so much of its group, in eighths, lacks less than one that was away.
const NEARLY: u64 = 7;

/// Most reasons that a status names for which members cannot leave.
const REASONS_MAX: usize = 8;

/// Half of the longest time over which rates are measured.
const HALF: Duration = Duration::from_secs(10);
/// Shortest time over which they are.
const KNOWN: Duration = Duration::from_secs(3);

/// What one member had at some time.
#[derive(Clone, Copy, Debug)]
struct Had {
    at: Time,
    bytes: u64,
}

/// What one member reported.
#[derive(Clone, Copy, Debug)]
struct Come {
    /// Since when the rate is measured, and from when on it is next.
    since: Had,
    next: Had,
    now: Had,
}

/// Of all members that catch up.
#[derive(Default, Debug)]
pub(crate) struct Progress(BTreeMap<(PgId, DiskId), Come>);

impl Progress {
    /// A member has so many bytes now.
    pub(crate) fn report(&mut self, pg: PgId, disk: DiskId, bytes: u64, now: Time) {
        let had = Had { at: now, bytes };
        let come = self.0.entry((pg, disk)).or_insert(Come { since: had, next: had, now: had });
        if now.since(come.next.at) > HALF {
            (come.since, come.next) = (come.next, come.now);
        }
        come.now = had;
    }

    /// Forgets those that do not catch up any more.
    pub(crate) fn retain(&mut self, state: &State) {
        let syncs = |pg: &Pg, disk: DiskId| pg.state_of(disk) == Some(MemberState::Syncing);
        self.0.retain(|(pg, disk), _| state.pg(*pg).is_some_and(|pg| !pg.retired && syncs(pg, *disk)));
    }

    /// Whether a member that is being filled has nearly all of `total` bytes.
    pub(crate) fn is_nearly_done(&self, pg: PgId, disk: DiskId, total: u64) -> bool {
        total > 0 && self.of(pg, disk).0 >= total / 8 * NEARLY
    }

    /// Bytes that a member has, and bytes a second.
    fn of(&self, pg: PgId, disk: DiskId) -> (u64, u64) {
        let Some(come) = self.0.get(&(pg, disk)) else { return (0, 0) };
        let Come { since, now, .. } = come;
        let time = now.at.since(since.at);
        let rate = if time >= KNOWN { now.bytes.saturating_sub(since.bytes) as f64 / time.as_secs_f64() } else { 0.0 };
        (now.bytes, rate as u64)
    }
}

/// Everything that is being repaired or cannot be, the most endangered groups first.
pub(crate) fn repairs(state: &State, leading: &mut Leading, now: Time) -> Vec<RepairStatus> {
    leading.progress.retain(state);
    let busy = |pg: &&Pg| !pg.retired && (!pg.is_complete() || pg.joining.is_some());
    let mut pgs: Vec<&Pg> = state.pgs().filter(busy).collect();
    let spare = |pg: &Pg| pg.count(MemberState::Serving) as i64 - pg.scheme.read_minimum() as i64;
    pgs.sort_by_key(|pg| (spare(pg), pg.id));
    let mut repairs = Vec::new();
    for pg in pgs {
        let total = leading.soft.pg_used.get(&pg.id).copied().unwrap_or(0);
        for (position, member) in pg.members.iter().enumerate() {
            let waits = match member.state {
                MemberState::Serving => continue,
                MemberState::Syncing => leading.soft.pg_waits.get(&(pg.id, member.disk)),
                MemberState::Waiting | MemberState::Offline => leading.soft.unreplaced.get(&(pg.id, member.disk)),
            };
            let outlook = || repair::outlook(state, &leading.soft, pg, position, now);
            let (bytes, rate) = leading.progress.of(pg.id, member.disk);
            let replaced = pg.formers.iter().rev().find(|f| usize::from(f.position) == position);
            repairs.push(RepairStatus {
                pg: pg.id.get(),
                disk: member.disk.get(),
                state: u32::from(member.state.code()),
                filling: member.filling,
                replaces: replaced.filter(|_| member.filling).map_or(0, |f| f.disk.get()),
                done_bytes: bytes.min(total),
                total_bytes: total,
                bytes_per_second: rate,
                waits_for: waits.cloned().or_else(outlook).unwrap_or_default(),
                spare: spare(pg).max(0) as u32,
            });
        }
        if let Some((joining, leaving)) = pg.joining.zip(pg.leaving()) {
            let (bytes, rate) = leading.progress.of(pg.id, joining.disk);
            repairs.push(RepairStatus {
                pg: pg.id.get(),
                disk: joining.disk.get(),
                state: u32::from(joining.state.code()),
                filling: true,
                replaces: leaving.get(),
                done_bytes: bytes.min(total),
                total_bytes: total,
                bytes_per_second: rate,
                waits_for: leading.soft.pg_waits.get(&(pg.id, joining.disk)).cloned().unwrap_or_default(),
                spare: spare(pg).max(0) as u32,
            });
        }
    }
    repairs
}

/// What is being emptied, and how far that is.
pub(crate) fn drains(state: &State, leading: &Leading) -> Vec<DrainStatus> {
    let one = |(target, drain): (&Target, &cairn_manager_core::Drain)| {
        let target_message = Some(crate::ops::target_message(target));
        let mut status = DrainStatus { target: target_message, since_ns: drain.since.0, ..DrainStatus::default() };
        let mut reasons = Reasons::default();
        let there = state.disks().filter(|disk| disk.state != DiskState::Removed).map(|disk| disk.id);
        for disk in there.filter(|disk| state.is_in(target, *disk)) {
            status.disks += 1;
            for pg in state.pgs_of(disk).filter(|pg| !pg.retired && pg.members.iter().any(|m| m.disk == disk)) {
                if let Some(why) = count_group(leading, pg, disk, &mut status) {
                    reasons.add(pg.id, disk, why);
                }
            }
        }
        (status.blocked, status.waits_for, status.reasons) = reasons.told();
        status
    };
    state.drains().map(one).collect()
}

/// Why members cannot leave, each reason once.
#[derive(Default)]
struct Reasons {
    blocked: u32,
    waits_for: String,
    /// By what is the same for all groups.
    all: BTreeMap<String, DrainReason>,
}

impl Reasons {
    fn add(&mut self, pg: PgId, disk: DiskId, why: &str) {
        let first = format!("{disk} in {pg}");
        if self.blocked == 0 {
            self.waits_for = format!("{first}: {why}");
        }
        self.blocked += 1;
        let why = why.replace(&pg.to_string(), "its group");
        let reason = self.all.entry(why.clone()).or_insert(DrainReason { why, members: 0, first });
        reason.members += 1;
    }

    /// How many members, the first reason, and all of them.
    fn told(self) -> (u32, String, Vec<DrainReason>) {
        let mut reasons: Vec<DrainReason> = self.all.into_values().collect();
        reasons.sort_by_key(|reason| std::cmp::Reverse(reason.members));
        reasons.truncate(REASONS_MAX);
        (self.blocked, self.waits_for, reasons)
    }
}

/// A group of which a disk that is being emptied is a member. Returns why that one cannot leave, if it cannot.
fn count_group<'a>(leading: &'a Leading, pg: &Pg, disk: DiskId, status: &mut DrainStatus) -> Option<&'a str> {
    let total = leading.soft.pg_used.get(&pg.id).copied().unwrap_or(0);
    let joins = pg.joining.filter(|_| pg.leaving() == Some(disk));
    let (done, rate) = joins.map_or((0, 0), |joining| leading.progress.of(pg.id, joining.disk));
    status.groups += 1;
    status.moving += u32::from(joins.is_some());
    status.bytes_left += total.saturating_sub(done);
    status.bytes_per_second += rate;
    let why = match joins {
        Some(joining) => leading.soft.pg_waits.get(&(pg.id, joining.disk)),
        None => leading.soft.unmoved.get(&(pg.id, disk)),
    };
    why.map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An operator would mend the first thing, and find the next one only then.
    #[test]
    fn every_reason_is_told_once() {
        let mut reasons = Reasons::default();
        reasons.add(PgId(1), DiskId(3), "no other disk has the 5 MiB of pg1 free: add a disk");
        for pg in [2, 12] {
            reasons.add(PgId(pg), DiskId(4), &format!("other members of pg{pg} do not serve"));
        }
        let (blocked, first, all) = reasons.told();
        assert_eq!((blocked, first.as_str()), (3, "d3 in pg1: no other disk has the 5 MiB of pg1 free: add a disk"));
        let told: Vec<_> = all.iter().map(|r| (r.members, r.first.as_str(), r.why.as_str())).collect();
        let (two, one) =
            ("other members of its group do not serve", "no other disk has the 5 MiB of its group free: add a disk");
        assert_eq!(told, [(2, "d4 in pg2", two), (1, "d3 in pg1", one)]);
    }

    /// An operator would be told a rate of long ago, or none.
    #[test]
    fn the_rate_is_of_the_last_seconds() {
        let (mut progress, pg, disk) = (Progress::default(), PgId(1), DiskId(2));
        let at = |seconds: u64| Time(seconds * 1_000_000_000);
        progress.report(pg, disk, 0, at(0));
        progress.report(pg, disk, 10, at(1));
        assert_eq!(progress.of(pg, disk), (10, 0), "it has just begun");
        for second in 2..=40 {
            progress.report(pg, disk, second * 1000, at(second));
            assert!(second < 3 || progress.of(pg, disk) == (second * 1000, 1000), "also where a time begins anew");
        }
        progress.report(pg, disk, 41_000 - 1000, at(41));
        assert!(progress.of(pg, disk).1 > 800, "one second is not much");
        for second in 42..=80 {
            progress.report(pg, disk, 40_000, at(second));
        }
        assert_eq!(progress.of(pg, disk), (40_000, 0));
        assert!(progress.is_nearly_done(pg, disk, 44_000) && !progress.is_nearly_done(pg, disk, 60_000));
        assert!(!progress.is_nearly_done(pg, disk, 0), "nothing is known of the group");
        assert_eq!(progress.of(pg, DiskId(3)), (0, 0));
    }
}
