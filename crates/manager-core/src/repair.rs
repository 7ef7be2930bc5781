//! Which lost members are replaced now, and by which disks: pure planning by the leader, from state and soft loads.
//!
//! A member is due when this leader saw its disk away for `repair_delay`, or for `repair_delay_urgent` when the group
//! serves with the fewest members that writes need, or fewer. One whose former disk is in service again is not: that
//! one gets its place back (see [`returns`]). One that never had anything and whose disk is full is due at once. The
//! most endangered groups are first: those with the fewest serving members beyond what reads need. Domains are kept as
//! [`Chooser::successor`] does, of columns of stripe groups as [`Chooser::ear_successor`] does if there is such a disk;
//! what cannot be replaced is named with the reason. Invariants: never more in flight than
//! the settings say, on a disk and in the cluster; nobody is replaced whom reading needs.
//!
//! Not here: the log, and what a replacement is ([`crate::pg`]).
use crate::command::{ReplaceIn, Swap};
use crate::config::Key;
use crate::items::{Disk, DiskState};
use crate::moves::fullest;
use crate::pg::{Member, Pg};
use crate::plan::candidates_in;
use crate::soft::Soft;
use crate::state::State;
use crate::stripe::seats::{self, Seats};
use cairn_placement::ear::{EarMember, StripeSeats};
use cairn_placement::{Chooser, DiskCandidate, Domains, NoSuccessor, Seat, Vacancy};
use cairn_types::{ByteCount, DiskId, MemberState, NodeId, PgId, StripeGroupId, Time, WallTime};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Most groups of one command.
pub const GROUPS_MAX: usize = 256;
/// Least room of a disk that is filled: with less it would soon be full again.
const ROOM_MIN: u64 = 64 << 20;

/// What is done now.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct RepairPlan {
    /// The most endangered groups first.
    pub groups: Vec<ReplaceIn>,
    /// What cannot be replaced, and why.
    pub blocked: BTreeMap<(PgId, DiskId), String>,
    /// Members that are due and wait until fewer are in flight.
    pub queued: usize,
}

/// When the disk of a lost member went away by the clock of the leader of then, or `None`: it is there.
fn lost_since(state: &State, disk: &Disk) -> Option<WallTime> {
    Some(match (disk.state, state.node(disk.node)) {
        (DiskState::InService, Some(node)) if node.up => return None,
        (DiskState::InService, Some(node)) => node.since,
        (_, Some(node)) if !node.up && disk.since.0 == 0 => node.since,
        _ => disk.since,
    })
}

/// Notes which disks are lost, at the time of the leader's own clock, which never jumps. Clocks of different leaders
/// may differ by more than `repair_delay`, so the time in the log only says whether a disk was there in between.
pub fn note_lost(state: &State, soft: &mut Soft, now: Time) {
    let before = std::mem::take(&mut soft.lost);
    let first = |disk: DiskId, since: WallTime| {
        before.get(&disk).filter(|(known, _)| *known == since).map_or(now, |(_, first)| *first)
    };
    let lost = state.disks().filter_map(|disk| Some((disk.id, lost_since(state, disk)?)));
    soft.lost = lost.map(|(disk, since)| (disk, (since, first(disk, since)))).collect();
}

/// How long this leader has seen that the disk of a lost member is away, or `None`: it is there.
pub fn away(state: &State, soft: &Soft, disk: DiskId, now: Time) -> Option<std::time::Duration> {
    let since = lost_since(state, state.disk(disk)?)?;
    let first = soft.lost.get(&disk).filter(|(known, _)| *known == since).map(|(_, first)| *first);
    Some(first.map_or(std::time::Duration::ZERO, |first| now.since(first)))
}

/// As few members serve as writes need, or fewer: the next loss makes the group read-only, or its data unreachable.
fn is_endangered(pg: &Pg) -> bool {
    pg.count(MemberState::Serving) <= pg.scheme.write_minimum()
}

/// The setting that says how long a lost member of the group is waited for.
pub(crate) fn delay_of(pg: &Pg, filling: bool) -> Key {
    if is_endangered(pg) || filling { Key::RepairDelayUrgent } else { Key::RepairDelay }
}

/// A former member that may have the place of this one again.
fn returns_for(state: &State, pg: &Pg, position: usize) -> Option<DiskId> {
    let back = |f: &&crate::pg::Former| usize::from(f.position) == position && !f.drop && state.is_able(f.disk);
    let of_place = || pg.formers.iter().rev().filter(back);
    let best = of_place().find(|f| f.complete).or_else(|| of_place().find(|f| f.served));
    best.or_else(|| of_place().next()).map(|f| f.disk)
}

/// Former members that are in service again and lack less than those that have their places now: one that was complete,
/// in the place of one that is being filled; or anyone in the place of one that is away. Of a group that cannot be
/// read, and in the place of one that is waited for, those that miss nothing.
pub fn returns(state: &State, pg: &Pg) -> Vec<DiskId> {
    if pg.retired {
        return Vec::new();
    }
    let back = |(position, member): (usize, &Member)| {
        let former = returns_for(state, pg, position)?;
        let former = pg.formers.iter().find(|f| f.disk == former)?;
        let away = !state.is_able(member.disk);
        let lacks_less = match member.state {
            MemberState::Serving => false,
            MemberState::Waiting => former.complete && away,
            MemberState::Syncing | MemberState::Offline => {
                former.complete || (away || member.filling && former.served) && pg.is_readable()
            }
        };
        lacks_less.then_some(former.disk)
    };
    pg.members.iter().enumerate().filter_map(back).collect()
}

/// Whether a disk has the room that a member of the group needs, and some more.
pub fn has_room(state: &State, soft: &Soft, pg: &Pg, disk: DiskId) -> bool {
    let used = soft.pg_used.get(&pg.id).copied().unwrap_or(0);
    state.free_above_reserve(disk, soft) > used.max(state.config().number(Key::DiskReserve)).max(ROOM_MIN)
}

/// Members that are being filled on disks that got full: they cannot go on, and hold up who writes to the group.
pub fn stuck<'a>(state: &'a State, soft: &'a Soft) -> impl Iterator<Item = (&'a Pg, DiskId)> {
    let pgs = state.pgs().filter(|pg| !pg.retired);
    let filling = pgs.flat_map(|pg| pg.filling().map(move |disk| (pg, disk)));
    filling.filter(|(_, disk)| soft.disks.contains_key(disk) && state.free_above_reserve(*disk, soft) == 0)
}

/// A node's share of the rate of the whole cluster: as much as of the members that are being filled are on it; 0: there
/// is no limit.
pub fn share_of_rate(state: &State, node: NodeId) -> u64 {
    let rate = state.config().number(Key::RepairRate);
    if rate == 0 {
        return 0;
    }
    let filling = || state.pgs().filter(|pg| !pg.retired).flat_map(Pg::filling);
    let here = filling().filter(|disk| state.disk(*disk).is_some_and(|disk| disk.node == node)).count() as u64;
    let all = filling().count().max(1) as u64;
    (rate / all * here.max(1)).max(1)
}

/// Whether a member is to be replaced now.
fn is_due(state: &State, soft: &Soft, pg: &Pg, position: usize, now: Time) -> bool {
    let member = pg.members[position];
    let lost = matches!(member.state, MemberState::Offline | MemberState::Waiting);
    // A disk that joins in its place gets there by itself.
    if !lost
        || state.hibernates(member.disk)
        || pg.is_left_to_joining(member.disk)
        || returns_for(state, pg, position).is_some()
    {
        return false;
    }
    match away(state, soft, member.disk, now) {
        Some(away) => away >= state.config().duration(delay_of(pg, member.filling)),
        // It never had anything, and has no room.
        None => member.filling && !has_room(state, soft, pg, member.disk),
    }
}

/// Why a lost member that could be replaced is not being replaced yet, in words.
pub fn outlook(state: &State, soft: &Soft, pg: &Pg, position: usize, now: Time) -> Option<String> {
    let member = pg.members[position];
    if member.state != MemberState::Offline {
        return None;
    }
    if state.hibernates(member.disk) {
        return Some("it hibernates, nothing is repaired for it meanwhile".into());
    }
    if is_due(state, soft, pg, position, now) {
        return Some("another disk takes its place when fewer members are being filled".into());
    }
    let key = delay_of(pg, member.filling);
    let left = state.config().duration(key).checked_sub(away(state, soft, member.disk, now)?)?;
    Some(format!("another disk takes its place in {} s ({})", left.as_secs_f64().ceil(), key.name()))
}

/// Plans at most [`GROUPS_MAX`] groups, at the time of the clock of [`note_lost`]. `heard`: the leader knows that the
/// node lives.
pub fn plan(state: &State, soft: &Soft, now: Time, heard: impl Fn(NodeId) -> bool, seed: u64) -> RepairPlan {
    let mut plan = RepairPlan::default();
    let due = |pg: &&Pg| (0..pg.members.len()).any(|position| is_due(state, soft, pg, position, now));
    let mut pgs: Vec<&Pg> = state.pgs().filter(|pg| !pg.retired && pg.is_readable()).filter(due).collect();
    if pgs.is_empty() {
        return plan;
    }
    pgs.sort_by_key(|pg| (pg.count(MemberState::Serving) - pg.scheme.read_minimum(), pg.has_write_minimum(), pg.id));
    let mut planner = Planner::new(state, soft, heard, seed);
    for pg in pgs {
        let swaps = planner.group(pg, now, &mut plan);
        if !swaps.is_empty() && plan.groups.len() < GROUPS_MAX {
            plan.groups.push(ReplaceIn { pg: pg.id.get(), epoch: pg.epoch.get(), swaps });
        }
    }
    plan
}

/// Why nobody else is replaced in a group.
pub(crate) fn too_many_formers(pg: &Pg) -> String {
    let formers: Vec<String> = pg.formers.iter().map(|former| former.disk.to_string()).collect();
    format!(
        "{} disks were replaced in {} and none of them has said that it deleted what it had: bring one of them back ({}), or, if it is \
         gone for good, `cairn admin disk remove` it",
        formers.len(),
        pg.id,
        formers.join(", ")
    )
}

/// What a disk needs to take a member's place.
pub(crate) fn room_of(pg: &Pg, bytes: u64) -> String {
    match bytes {
        0 => "anything".into(),
        bytes => format!("the {} of {}", ByteCount(bytes), pg.id),
    }
}

/// Chooses disks that take places of others, as many as may be in flight.
pub(crate) struct Planner<'a> {
    state: &'a State,
    soft: &'a Soft,
    domains: Domains,
    /// All that are fit.
    all: Vec<DiskCandidate>,
    /// Among those that have fewer than the maximum in flight.
    chooser: Chooser,
    flights: BTreeMap<DiskId, usize>,
    /// Who gets which place of a column by what was planned so far.
    coming: BTreeMap<(PgId, usize), DiskId>,
    /// How stripe groups would be encoded with those that come.
    arranged: BTreeMap<StripeGroupId, Option<Rc<StripeSeats>>>,
    /// Nodes that parities could go to.
    nodes: Option<Rc<[Seat]>>,
    left: usize,
    most: usize,
}

/// What came of the search for a disk that keeps a stripe group encoding in its core rack.
enum Near {
    Disk(DiskId),
    /// None that may get something now.
    Nobody(Rc<StripeSeats>),
    /// It is no column, or one of a stripe group that does not encode in its core rack anyway.
    Not,
}

/// The position of a column; of what is none, 0.
fn column_of(pg: &Pg) -> usize {
    pg.column.map_or(0, |column| usize::from(column.position))
}

/// What came of the search for a disk.
pub(crate) enum Found {
    Disk(DiskId),
    /// There is one, when fewer are in flight.
    Later,
    None(NoSuccessor),
}

impl<'a> Planner<'a> {
    pub(crate) fn new(state: &'a State, soft: &'a Soft, heard: impl Fn(NodeId) -> bool, seed: u64) -> Self {
        let mut flights: BTreeMap<DiskId, usize> = BTreeMap::new();
        for disk in state.pgs().filter(|pg| !pg.retired).flat_map(Pg::filling) {
            *flights.entry(disk).or_default() += 1;
        }
        let most = state.config().number(Key::RepairInFlightPerDisk) as usize;
        let left = state.config().number(Key::RepairInFlight) as usize;
        let left = left.saturating_sub(flights.values().sum());
        let fit = |disk: DiskId| state.takes_more(disk) && state.disk(disk).is_some_and(|disk| heard(disk.node));
        let mut domains = Domains::new();
        let mut all = candidates_in(state, soft, &mut domains, fit);
        // A full disk is one that is there: the reason is its space.
        all.iter_mut().filter(|disk| disk.free_bytes == 0).for_each(|disk| (disk.free_bytes, disk.room) = (1, 0));
        let mut chooser = Chooser::new(all.iter().copied(), seed);
        flights.iter().filter(|(_, count)| **count >= most).for_each(|(disk, _)| chooser.close(*disk));
        Self {
            state,
            soft,
            domains,
            all,
            chooser,
            flights,
            coming: BTreeMap::new(),
            arranged: BTreeMap::new(),
            nodes: None,
            left,
            most,
        }
    }

    pub(crate) fn seat(&mut self, disk: DiskId) -> Seat {
        let node = self.state.disk(disk).and_then(|disk| self.state.node(disk.node));
        let Some(node) = node else { return Seat { node: NodeId(0), rack: u32::MAX, host: u32::MAX } };
        let (rack, host) = self.domains.host(&node.rack, &node.host);
        Seat { node: node.id, rack, host }
    }

    /// Disks that are not allowed get nothing more.
    pub(crate) fn only(&mut self, allowed: impl Fn(DiskId) -> bool) {
        let others: Vec<DiskId> = self.all.iter().map(|disk| disk.disk).filter(|disk| !allowed(*disk)).collect();
        others.into_iter().for_each(|disk| self.chooser.close(disk));
    }

    /// Disks that may get more now.
    pub(crate) fn open(&self) -> impl Iterator<Item = DiskId> + '_ {
        self.chooser.open()
    }

    /// A disk for a vacancy, if one may be taken now; it counts as in flight from then on.
    pub(crate) fn choose(&mut self, vacancy: &Vacancy<'_>) -> Option<DiskId> {
        self.choose_if(vacancy, |_| true)
    }

    fn choose_if(&mut self, vacancy: &Vacancy<'_>, fits: impl Fn(Seat) -> bool) -> Option<DiskId> {
        let new = if self.left > 0 { self.chooser.successor(vacancy).ok()? } else { return None };
        if !fits(self.seat(new)) {
            return None;
        }
        Some(self.fly(new))
    }

    /// It counts as in flight.
    fn fly(&mut self, new: DiskId) -> DiskId {
        self.left -= 1;
        let flights = self.flights.entry(new).or_default();
        *flights += 1;
        if *flights >= self.most {
            self.chooser.close(new);
        }
        new
    }

    /// As [`choose`](Self::choose) where only some places will do, with the reason if there is none.
    pub(crate) fn find(&mut self, vacancy: &Vacancy<'_>, fits: impl Fn(Seat) -> bool) -> Found {
        if let Some(new) = self.choose_if(vacancy, &fits) {
            return Found::Disk(new);
        }
        // Among all: a reason that does not pass by itself is told. The best place comes first.
        match Chooser::new(self.all.clone(), 0).successor(vacancy) {
            Ok(new) if fits(self.seat(new)) => Found::Later,
            Ok(_) => Found::None(NoSuccessor::Domain),
            Err(why) => Found::None(why),
        }
    }

    /// As [`find`](Self::find) for a place of a group; of a column first among disks with which its stripe group
    /// encodes in its core rack. Copies come before that: if there is none now, a member that is lost is replaced by
    /// any that fits. One that still serves waits for a better place that only others' flights keep from it.
    pub(crate) fn find_for(
        &mut self,
        (pg, position): (&Pg, usize),
        vacancy: &Vacancy<'_>,
        fits: impl Fn(Seat) -> bool,
    ) -> Found {
        let found = match self.near_core(pg, position, vacancy, &fits) {
            Near::Disk(new) => Found::Disk(new),
            Near::Nobody(seats) if pg.members[position].state == MemberState::Serving => {
                let member = EarMember::Copy { column: column_of(pg), member: position };
                let found =
                    Chooser::new(self.all.clone(), 0).ear_successor(&seats, member, vacancy.taken, vacancy.bytes);
                match found {
                    Ok(found) if fits(self.seat(found.disk)) => Found::Later,
                    _ => self.find(vacancy, fits),
                }
            }
            Near::Nobody(_) | Near::Not => self.find(vacancy, fits),
        };
        if let Found::Disk(new) = found {
            self.comes(pg, position, new);
        }
        found
    }

    /// As [`choose`](Self::choose) for a place of a group; of a column whose stripe group encodes in its core rack only
    /// a disk with which it still does.
    pub(crate) fn choose_for(&mut self, (pg, position): (&Pg, usize), vacancy: &Vacancy<'_>) -> Option<DiskId> {
        let new = match self.near_core(pg, position, vacancy, &|_| true) {
            Near::Disk(new) => new,
            Near::Nobody(_) => return None,
            Near::Not => self.choose(vacancy)?,
        };
        self.comes(pg, position, new);
        Some(new)
    }

    /// The disk gets the place: its stripe group, if it is in one, is arranged anew when it is asked for again.
    fn comes(&mut self, pg: &Pg, position: usize, new: DiskId) {
        self.coming.insert((pg.id, position), new);
        if let Some(column) = pg.column {
            self.arranged.remove(&column.group);
        }
    }

    /// A disk for a place of a column that lets its stripe group encode in its core rack.
    fn near_core(&mut self, pg: &Pg, position: usize, vacancy: &Vacancy<'_>, fits: &impl Fn(Seat) -> bool) -> Near {
        let Some(seats) = self.arrangement(pg) else { return Near::Not };
        let member = EarMember::Copy { column: column_of(pg), member: position };
        if self.left > 0
            && let Ok(found) = self.chooser.ear_successor(&seats, member, vacancy.taken, vacancy.bytes)
            && fits(self.seat(found.disk))
        {
            return Near::Disk(self.fly(found.disk));
        }
        Near::Nobody(seats)
    }

    /// How the stripe group of a column would be encoded, with those that come. `None`: not in its core rack, so that
    /// it is a group like others; or it is no column. Made once for a stripe group, until somebody comes.
    fn arrangement(&mut self, pg: &Pg) -> Option<Rc<StripeSeats>> {
        let id = pg.column?.group;
        if let Some(known) = self.arranged.get(&id) {
            return known.clone();
        }
        let group = self.state.stripe_group(id)?;
        let core = self.domains.rack(&group.core_rack);
        let nodes = match self.nodes.clone() {
            Some(nodes) => nodes,
            None => {
                let ids = seats::able_nodes(self.state);
                let nodes: Rc<[Seat]> = ids.into_iter().map(|disk| self.seat(disk)).collect();
                self.nodes.insert(nodes).clone()
            }
        };
        let coming = std::mem::take(&mut self.coming);
        let disk_at = |pg: &Pg, at: usize| {
            let joining = pg.joining.filter(|joining| usize::from(joining.position) == at).map(|joining| joining.disk);
            coming.get(&(pg.id, at)).copied().or(joining).unwrap_or(pg.members[at].disk)
        };
        let seats = Seats::new(self.state, group, (core, &nodes), disk_at, |disk| self.seat(disk));
        self.coming = coming;
        let arranged = seats.and_then(|seats| seats.arrange()).map(Rc::new);
        self.arranged.insert(id, arranged.clone());
        arranged
    }

    /// Who leaves one group and who comes.
    fn group(&mut self, pg: &Pg, now: Time, plan: &mut RepairPlan) -> Vec<Swap> {
        let mut swaps: Vec<Swap> = Vec::new();
        let mut taken: Vec<DiskId> = pg.disks().chain(pg.formers.iter().map(|f| f.disk)).collect();
        let mut seats: Vec<Seat> = pg.members.iter().map(|m| self.seat(m.disk)).collect();
        let bytes = self.soft.pg_used.get(&pg.id).copied().unwrap_or(0);
        for position in (0..pg.members.len()).filter(|position| is_due(self.state, self.soft, pg, *position, now)) {
            let lost = pg.members[position].disk;
            if swaps.len() >= pg.formers_left() {
                plan.blocked.insert((pg.id, lost), too_many_formers(pg));
                continue;
            }
            let others: Vec<Seat> = seats.iter().enumerate().filter(|(i, _)| *i != position).map(|(_, s)| *s).collect();
            let mut vacancy = Vacancy { lost: seats[position], others: &others, taken: &taken, bytes, beside: [0, 0] };
            let mut found = self.find_for((pg, position), &vacancy, |_| true);
            if matches!(found, Found::None(_)) && !self.state.is_able(lost) {
                // Better as many in one rack as there are in another one than a shard less. When there is a place apart
                // again, it moves.
                vacancy.beside = fullest(&seats);
                found = self.find_for((pg, position), &vacancy, |_| true);
            }
            let new = match found {
                Found::Disk(new) => new,
                Found::Later => {
                    plan.queued += 1;
                    continue;
                }
                // That its own disk is full is told already.
                Found::None(_) if self.state.is_able(lost) => continue,
                Found::None(why) => {
                    plan.blocked.insert((pg.id, lost), self.reason(pg, lost, bytes, why));
                    continue;
                }
            };
            taken.push(new);
            seats[position] = self.seat(new);
            swaps.push(Swap { old: lost.get(), new: new.get() });
        }
        swaps
    }

    fn reason(&self, pg: &Pg, lost: DiskId, bytes: u64, why: NoSuccessor) -> String {
        let node = self.state.disk(lost).and_then(|disk| self.state.node(disk.node));
        let rack = node.map_or("", |node| node.rack.as_str());
        match why {
            NoSuccessor::NoDisk => {
                format!("every other disk in service is already in {}, or was: bring it back, or add a disk", pg.id)
            }
            NoSuccessor::Domain => format!(
                "every other disk in service is in a rack or on a host with other members of {}: bring it back, or add a \
                 disk {}",
                pg.id,
                self.state.where_to_add(rack)
            ),
            NoSuccessor::NoSpace => format!(
                "no other disk outside the racks and hosts of the other members has {} free above disk_reserve: \
                 bring it back, add a disk, or delete files",
                room_of(pg, bytes)
            ),
        }
    }
}

#[cfg(test)]
mod tests;
