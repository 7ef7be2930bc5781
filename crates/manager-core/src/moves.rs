//! Which members that work leave their disks now, and where to: pure planning by the leader, from state and soft loads.
//!
//! Members of what is [drained](crate::maintenance), or of a [gray](crate::gray) disk, leave, one of a group at a time,
//! to disks that keep the failure domains as [`Chooser::successor`](cairn_placement::Chooser::successor) does. They
//! share what may be in flight with [`repair`](crate::repair), which is planned first. When nothing is drained, groups
//! are mended that have more members in a failure domain than they need to ([`misplaced`]), and then disks that are
//! fuller than `rebalance_above` give groups to disks that are emptier than `rebalance_below` ([`balance`]). A disk
//! that joins and is away for `repair_delay_urgent`, has no room, or is itself to be emptied gives up, as does one that
//! only balances while repair waits. Invariant: nobody leaves a group that could not be written without it, nor an
//! erasure group of which another member does not serve.
//!
//! Not here: the log, and what a move is for its group ([`crate::pg`]).
mod balance;
mod domains;

pub use domains::misplaced;

use crate::command::{MemberAt, ReplaceIn, Swap};
use crate::config::Key;
use crate::pg::Pg;
use crate::repair::{Found, Planner, away, has_room, room_of, too_many_formers};
use crate::soft::Soft;
use crate::state::State;
use balance::{balance, gives_way};
use cairn_placement::{NoSuccessor, Seat, Vacancy};
use cairn_types::{DiskId, MemberState, NodeId, PgId, Time};
use std::collections::BTreeMap;

/// Most groups of one command.
pub const GROUPS_MAX: usize = 256;

/// What is done now.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct MovePlan {
    pub groups: Vec<ReplaceIn>,
    /// Disks that give up joining.
    pub cancels: Vec<MemberAt>,
    /// Who is to leave and cannot, and why.
    pub blocked: BTreeMap<(PgId, DiskId), String>,
    /// Members that wait until fewer are in flight.
    pub queued: usize,
}

/// Members that are to leave: of each group that is in use the first one, if nobody joins it yet.
pub fn leavers(state: &State) -> impl Iterator<Item = (&Pg, usize)> {
    let gray = state.gray_leaving();
    let drains = state.drains().next().is_some() || gray.is_some();
    let pgs = state.pgs().filter(move |pg| drains && !pg.retired && pg.joining.is_none());
    pgs.filter_map(move |pg| {
        let leaves = |m: &crate::pg::Member| {
            m.state == MemberState::Serving && (state.is_drained(m.disk) || gray == Some(m.disk))
        };
        Some((pg, pg.members.iter().position(leaves)?))
    })
}

/// Something is to be planned at once. What else may be to be moved takes longer to find, and [`plan`] finds it.
pub fn is_needed(state: &State) -> bool {
    leavers(state).next().is_some() || state.pgs().any(|pg| !pg.retired && pg.joining.is_some())
}

/// Disks that join and have to give up.
fn cancels(state: &State, soft: &Soft, now: Time) -> Vec<MemberAt> {
    let gives_up = |pg: &&Pg| {
        let Some(joining) = pg.joining else { return false };
        let delay = state.config().duration(Key::RepairDelayUrgent);
        let stays_away = away(state, soft, joining.disk, now).is_some_and(|away| away >= delay);
        let full = joining.state == MemberState::Offline
            && state.is_able(joining.disk)
            && !has_room(state, soft, pg, joining.disk);
        stays_away
            || full
            || state.is_drained(joining.disk)
            || state.is_gray(joining.disk)
            || gives_way(state, soft, pg)
    };
    let joined = state.pgs().filter(|pg| !pg.retired).filter(gives_up);
    let at =
        |pg: &Pg| MemberAt { pg: pg.id.get(), disk: pg.joining.map_or(0, |j| j.disk.get()), epoch: pg.epoch.get() };
    joined.map(at).take(GROUPS_MAX).collect()
}

/// Plans at most [`GROUPS_MAX`] groups, at the time of the clock of [`note_lost`](crate::repair::note_lost). `heard`:
/// the leader knows that the node lives.
pub fn plan(state: &State, soft: &Soft, now: Time, heard: impl Fn(NodeId) -> bool, seed: u64) -> MovePlan {
    let mut plan = MovePlan { cancels: cancels(state, soft, now), ..MovePlan::default() };
    let mut planner = Planner::new(state, soft, heard, seed);
    let gray = state.gray_leaving();
    let emptied = |disk: DiskId| state.is_drained(disk) || gray == Some(disk);
    let mut leavers: Vec<(&Pg, usize)> = leavers(state).collect();
    leavers.extend(misplaced(state).into_iter().filter(|(pg, _)| !pg.members.iter().any(|m| emptied(m.disk))));
    for (pg, position) in leavers {
        let old = pg.members[position].disk;
        if let Some(why) = hindrance(pg, position) {
            plan.blocked.insert((pg.id, old), why);
            continue;
        }
        let taken: Vec<DiskId> = pg.disks().chain(pg.formers.iter().map(|f| f.disk)).collect();
        let seats: Vec<Seat> = pg.members.iter().map(|m| planner.seat(m.disk)).collect();
        let others: Vec<Seat> = seats.iter().enumerate().filter(|(i, _)| *i != position).map(|(_, s)| *s).collect();
        let bytes = soft.pg_used.get(&pg.id).copied().unwrap_or(0);
        // Whoever leaves because of the domains has to get a better place.
        let beside = if emptied(old) { fullest(&seats) } else { [0, 0] };
        let vacancy = Vacancy { lost: seats[position], others: &others, taken: &taken, bytes, beside };
        match planner.find_for((pg, position), &vacancy, |new| emptied(old) || is_better(new, seats[position], &others))
        {
            Found::Disk(_) if plan.groups.len() >= GROUPS_MAX => plan.queued += 1,
            Found::Disk(new) => {
                let swaps = vec![Swap { old: old.get(), new: new.get() }];
                plan.groups.push(ReplaceIn { pg: pg.id.get(), epoch: pg.epoch.get(), swaps });
            }
            Found::Later => plan.queued += 1,
            Found::None(why) => drop(plan.blocked.insert((pg.id, old), reason(state, pg, old, bytes, why))),
        }
    }
    if plan.groups.is_empty() && plan.queued == 0 {
        balance(state, soft, planner, &mut plan);
    }
    plan
}

/// Fewer other members are beside it, in its rack, or else on its host.
fn is_better(new: Seat, old: Seat, others: &[Seat]) -> bool {
    let beside = |seat: Seat| {
        let count = |same: &dyn Fn(&Seat) -> bool| others.iter().filter(|other| same(other)).count();
        (count(&|other| other.rack == seat.rack), count(&|other| other.host == seat.host))
    };
    beside(new) < beside(old)
}

/// Other members on the fullest host of a group and in its fullest rack: with so many beside it a disk makes nothing
/// worse. Else the members of one rack could not go to another one.
pub(crate) fn fullest(seats: &[Seat]) -> [usize; 2] {
    let most = |same: &dyn Fn(&Seat, &Seat) -> bool| {
        seats.iter().map(|seat| seats.iter().filter(|other| same(seat, other)).count()).max().unwrap_or(1) - 1
    };
    [most(&|a, b| a.host == b.host), most(&|a, b| a.rack == b.rack)]
}

/// Why the member cannot leave its group as it is.
fn hindrance(pg: &Pg, position: usize) -> Option<String> {
    let others_serve = pg.members.iter().enumerate().all(|(i, m)| i == position || m.state == MemberState::Serving);
    if !pg.has_write_minimum() || !pg.scheme.is_replicated() && !others_serve {
        return Some(format!(
            "other members of {} do not serve: it goes on when they are back or replaced (`cairn admin repair`)",
            pg.id
        ));
    }
    (pg.formers_left() == 0).then(|| too_many_formers(pg))
}

fn reason(state: &State, pg: &Pg, old: DiskId, bytes: u64, why: NoSuccessor) -> String {
    let node = state.disk(old).and_then(|disk| state.node(disk.node));
    let rack = node.map_or("", |node| node.rack.as_str());
    let or = if state.is_drained(old) { ", or cancel the drain" } else { "" };
    match why {
        NoSuccessor::NoDisk => {
            format!("every other disk that may take it is already in {}, or was: add a disk{or}", pg.id)
        }
        NoSuccessor::Domain => format!(
            "every other disk that may take it is in a rack or on a host with other members of {}: add a disk {}{or}",
            pg.id,
            state.where_to_add(rack)
        ),
        NoSuccessor::NoSpace => format!(
            "no other disk outside the racks and hosts of the other members has {} free above disk_reserve: add a \
             disk, delete files{or}",
            room_of(pg, bytes)
        ),
    }
}

#[cfg(test)]
mod tests;
