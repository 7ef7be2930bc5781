//! A member that works leaves, and another disk takes its place: drains, rebalancing, mended failure domains.
//!
//! The disk that comes **joins** first: it gets everything while the member that leaves serves as before. When it has
//! verified that it holds its part, one entry gives it the place. In a replicated group it receives what is written
//! meanwhile like any member that catches up, so it serves from that entry on. In an erasure group a place is a shard,
//! and writers send a shard to one disk: the one that joins gets only what was written before its epoch, takes the
//! place as *syncing* when all other members serve, receives what is written from then on, and gets the rest, which the
//! disk that left still has.
//!
//! Invariants: the number of serving members of a replicated group is never less by a move; in an erasure group it is
//! one less from the last entry but one to the last, and what was acknowledged is at each moment on as many disks as
//! before. At most one disk joins a group at a time; it is neither a member nor a former one, and the member table
//! alone decides what it becomes. Whoever gives up on the way is a former member that never was complete: it deletes
//! what it has.
use super::{Former, Member, Pg};
use cairn_types::{DiskId, MemberState};

/// A disk that is to take the place of a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Joining {
    pub disk: DiskId,
    /// The place.
    pub position: u8,
    /// Syncing, or offline when it is away.
    pub state: MemberState,
}

impl Pg {
    /// The member whose place another disk is to have.
    pub fn leaving(&self) -> Option<DiskId> {
        self.joining.map(|j| self.members[usize::from(j.position)].disk)
    }

    /// Another disk begins to get what a serving member has. True if the epoch rose.
    pub fn begin_move(&mut self, old: DiskId, new: DiskId, able: impl Fn(DiskId) -> bool) -> bool {
        let place = self.members.iter().position(|m| m.disk == old && m.state == MemberState::Serving);
        let Some(position) = place else { return false };
        let free = self.joining.is_none() && !self.knows(new) && self.formers_left() > 0;
        if self.retired || !free || !able(new) || !self.is_readable() {
            return false;
        }
        self.joining = Some(Joining { disk: new, position: position as u8, state: MemberState::Syncing });
        self.raise(true)
    }

    /// The disk that joins gives up: the member stays. True if the epoch rose.
    pub fn cancel_move(&mut self, disk: DiskId) -> bool {
        let Some(joining) = self.joining.filter(|j| j.disk == disk && !self.retired) else { return false };
        self.joining = None;
        let Joining { disk, position, .. } = joining;
        self.formers.push(Former { disk, position, served: false, complete: false, drop: false });
        self.raise(true)
    }

    /// What the table decided about the disk that joins. True if anything changed.
    pub(super) fn joining_becomes(&mut self, joining: Joining, state: MemberState) -> bool {
        let Joining { disk, position, .. } = joining;
        let place = usize::from(position);
        if state != MemberState::Serving {
            self.joining = Some(Joining { state, ..joining });
            return true;
        }
        let others_serve = self.members.iter().enumerate().all(|(i, m)| i == place || m.state == MemberState::Serving);
        if !self.scheme.is_replicated() && !others_serve {
            return false;
        }
        self.joining = None;
        match self.scheme.is_replicated() {
            true => self.seat(place, Member { disk, state, filling: false, older: false }),
            // It gets what is written from now on, and what was written while it joined.
            false => self.seat(place, Member { disk, state: MemberState::Syncing, filling: true, older: false }),
        }
        true
    }

    /// Whether a member's place is being taken by a disk that joins.
    pub fn is_left_to_joining(&self, disk: DiskId) -> bool {
        self.leaving() == Some(disk)
    }

    /// What is wrong with the disk that joins, if anything.
    pub(super) fn joining_flaw(&self) -> Option<String> {
        let joining = self.joining?;
        let known =
            self.members.iter().any(|m| m.disk == joining.disk) || self.formers.iter().any(|f| f.disk == joining.disk);
        let placed = usize::from(joining.position) < self.members.len();
        let state = matches!(joining.state, MemberState::Syncing | MemberState::Offline);
        (known || !placed || !state).then(|| format!("{} joins although it is a member or was one", joining.disk))
    }
}
