//! Disks that are very full give groups to disks that are not.
//!
//! A disk fuller than `rebalance_above` gives one group at a time, the largest that fits, until it is below; only disks
//! that are, and would be with the group and with all that is on its way to them, emptier than `rebalance_below` (and
//! than the ceiling) get any. Both are those of the group's volume, or else of the cluster. So nobody who gets
//! something has to give it on, groups do not go back and forth (each move makes disks more equal), and growth alone
//! moves nothing. Failure domains are kept, and stripe groups encode in their core racks as before. What cannot be
//! moved stays: that is no problem. Nothing begins while any group of the cluster lacks a member, and what is under way
//! [gives up](gives_way) while repair has to wait for a place.
use super::{MovePlan, hindrance};
use crate::command::{ReplaceIn, Swap};
use crate::config::Key;
use crate::items::Volume;
use crate::pg::Pg;
use crate::repair::Planner;
use crate::soft::Soft;
use crate::state::State;
use cairn_placement::{Seat, Vacancy};
use cairn_types::{DiskId, MemberState, NodeId, VolumeId};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Groups of a full disk for which a place is looked for in one round: in a large cluster each look takes long.
const TRIES_MAX: usize = 32;
/// Full disks that are looked at in one round, the fullest first.
const GIVERS_MAX: usize = 256;

/// Between which shares of a disk, in percent of its size, groups move; 0 as ceiling: never.
#[derive(Clone, Copy)]
struct Fill {
    above: u64,
    below: u64,
}

impl Fill {
    /// A floor above the ceiling would let groups go back and forth.
    fn of(state: &State, volume: &Volume) -> Self {
        let number = |key| volume.settings.number(key, state.config());
        let above = number(Key::RebalanceAbove);
        Self { above, below: number(Key::RebalanceBelow).min(above) }
    }

    fn gives(self, used: u64) -> bool {
        self.above > 0 && used > self.above
    }
}

/// Those of all volumes.
struct Fills {
    volumes: BTreeMap<VolumeId, Fill>,
}

impl Fills {
    fn new(state: &State) -> Self {
        let volumes = state.volumes().filter(|volume| !volume.deleted);
        Self { volumes: volumes.map(|volume| (volume.id, Fill::of(state, volume))).collect() }
    }

    /// Groups of no volume stay.
    fn of(&self, pg: &Pg) -> Fill {
        self.volumes.get(&pg.volume).copied().unwrap_or(Fill { above: 0, below: 0 })
    }

    /// What is above one of the ceilings.
    fn may_give(&self, used: u64) -> bool {
        self.volumes.values().any(|fill| fill.gives(used))
    }

    /// The highest floor.
    fn below(&self) -> u64 {
        self.volumes.values().map(|fill| fill.below).max().unwrap_or(0)
    }
}

/// Disks that share their space.
type Space = (NodeId, u64, DiskId);

fn space(state: &State, soft: &Soft, disk: DiskId) -> Space {
    let node = state.disk(disk).map_or(NodeId(0), |disk| disk.node);
    match soft.disks.get(&disk).map_or(0, |load| load.filesystem) {
        0 => (node, 0, disk),
        filesystem => (node, filesystem, DiskId(0)),
    }
}

/// What is on its way to disks, as if nothing of it had arrived.
struct Coming<'a> {
    state: &'a State,
    soft: &'a Soft,
    bytes: BTreeMap<Space, u64>,
}

impl<'a> Coming<'a> {
    fn new(state: &'a State, soft: &'a Soft) -> Self {
        let mut coming = Self { state, soft, bytes: BTreeMap::new() };
        for pg in state.pgs().filter(|pg| !pg.retired) {
            pg.filling().for_each(|disk| coming.add(disk, size(soft, pg)));
        }
        coming
    }

    fn add(&mut self, disk: DiskId, bytes: u64) {
        let sum = self.bytes.entry(space(self.state, self.soft, disk)).or_default();
        *sum = sum.saturating_add(bytes);
    }

    /// Percent of the disk that would be in use with so many bytes more; `None`: not known from a heartbeat.
    fn used(&self, disk: DiskId, more: u64) -> Option<u64> {
        let coming = self.bytes.get(&space(self.state, self.soft, disk)).copied().unwrap_or(0);
        used(self.soft, disk, coming.saturating_add(more))
    }
}

fn size(soft: &Soft, pg: &Pg) -> u64 {
    soft.pg_used.get(&pg.id).copied().unwrap_or(0)
}

/// Percent of the disk that would be in use with so many bytes more; `None`: not known from a heartbeat.
fn used(soft: &Soft, disk: DiskId, more: u64) -> Option<u64> {
    let load = soft.disks.get(&disk).filter(|load| load.total_bytes > 0)?;
    let used = load.total_bytes.saturating_sub(load.free_bytes).saturating_add(more);
    Some((u128::from(used) * 100 / u128::from(load.total_bytes)) as u64)
}

/// Disks that are too full, the fullest first. One that has just given something is looked at again when that is
/// deleted there.
fn givers(state: &State, soft: &Soft, fills: &Fills) -> Vec<DiskId> {
    let full = |disk: DiskId| used(soft, disk, 0).filter(|used| fills.may_give(*used));
    let gives = |disk: DiskId| {
        let used = full(disk).filter(|_| state.takes_more(disk))?;
        // Else disks whose groups may all stay would keep others from being looked at.
        state.pgs_of(disk).find(|pg| !pg.retired && fills.of(pg).gives(used))?;
        let gave = state.former_pgs_of(disk).any(|pg| !pg.retired);
        let leaves = state.pgs_of(disk).any(|pg| !pg.retired && pg.leaving() == Some(disk));
        (!gave && !leaves).then_some((Reverse(used), disk))
    };
    let mut disks: Vec<_> = state.disks().filter_map(|disk| gives(disk.id)).collect();
    disks.sort_unstable();
    disks.into_iter().map(|(_, disk)| disk).take(GIVERS_MAX).collect()
}

/// Whether a disk that joins the group is to give up so that repair gets its place: nobody has to leave this group.
pub(super) fn gives_way(state: &State, soft: &Soft, pg: &Pg) -> bool {
    let wanted = |old: DiskId| state.is_drained(old) || state.is_gray(old) || super::domains::is_misplaced(state, pg);
    soft.repairs_queued > 0 && pg.leaving().is_some_and(|old| !wanted(old))
}

/// One group of each disk that is too full, if there is a place for it.
pub(super) fn balance(state: &State, soft: &Soft, mut planner: Planner<'_>, plan: &mut MovePlan) {
    let fills = Fills::new(state);
    let givers = givers(state, soft, &fills);
    let damaged = || state.pgs().any(|pg| !pg.retired && !pg.is_complete());
    if givers.is_empty() || soft.repairs_queued > 0 || damaged() {
        return;
    }
    let mut coming = Coming::new(state, soft);
    let stays_below = |coming: &Coming<'_>, disk: DiskId, more: u64, below: u64| {
        coming.used(disk, more).is_some_and(|used| used < below)
    };
    planner.only(|disk| stays_below(&coming, disk, 0, fills.below()));
    for old in givers {
        let position = |pg: &Pg| pg.members.iter().position(|m| m.disk == old && m.state == MemberState::Serving);
        let too_full = |pg: &Pg| used(soft, old, 0).is_some_and(|used| fills.of(pg).gives(used));
        let free = |pg: &&Pg| !pg.retired && pg.joining.is_none() && size(soft, pg) > 0 && too_full(pg);
        let takes =
            |coming: &Coming<'_>, disk: DiskId, pg: &Pg| stays_below(coming, disk, size(soft, pg), fills.of(pg).below);
        // With this group, some disk that may get it at all stays below.
        let fits = |pg: &Pg| planner.open().any(|disk| takes(&coming, disk, pg));
        let mine = state.pgs_of(old).filter(free).filter_map(|pg| Some((pg, position(pg)?)));
        let mut mine: Vec<(&Pg, usize)> =
            mine.filter(|(pg, position)| hindrance(pg, *position).is_none() && fits(pg)).collect();
        mine.sort_by_key(|(pg, _)| (Reverse(size(soft, pg)), pg.id));
        let moved = mine.into_iter().take(TRIES_MAX).find_map(|(pg, position)| {
            // Those that would be too full with it cannot be taken either.
            let too_full = planner.open().filter(|disk| !takes(&coming, *disk, pg));
            let taken: Vec<DiskId> = pg.disks().chain(pg.formers.iter().map(|f| f.disk)).chain(too_full).collect();
            let seats: Vec<Seat> = pg.members.iter().map(|m| planner.seat(m.disk)).collect();
            let others: Vec<Seat> = seats.iter().enumerate().filter(|(i, _)| *i != position).map(|(_, s)| *s).collect();
            let (lost, bytes) = (seats[position], size(soft, pg));
            let vacancy = Vacancy { lost, others: &others, taken: &taken, bytes, beside: [0, 0] };
            planner.choose_for((pg, position), &vacancy).map(|new| (pg, new))
        });
        if let Some((pg, new)) = moved {
            coming.add(new, size(soft, pg));
            let swaps = vec![Swap { old: old.get(), new: new.get() }];
            plan.groups.push(ReplaceIn { pg: pg.id.get(), epoch: pg.epoch.get(), swaps });
        }
    }
}

#[cfg(test)]
mod tests;
