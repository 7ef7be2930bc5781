//! Another disk in the place of a lost one, and the way back.
//!
//! Invariants: only an offline or waiting member is replaced, only while the others can be read without it, and never
//! by a disk that is a member or was one and may still have something. The disk that leaves is remembered: if it is
//! back before the group is complete it may have its place again, and it is told to delete what it has only once all
//! members serve, which means that each of them was verified to hold its part of everything.
//!
//! Who is replaced while it is waited for misses nothing as long as the group cannot be written. Until then it serves
//! at once when it is back, as it would have if it still had its place: so replacing it takes away no way back to the
//! data.
use super::{Former, Member, Pg};
use cairn_types::{DiskId, MemberState};

/// Former members that are remembered of a group; beyond it nobody is replaced. None is forgotten that may have
/// something: it would not learn that it is no member any more, and might get another place with the bytes of its old
/// one.
pub const FORMERS_MAX: usize = 16;

impl Pg {
    /// The place of a disk that is a member, or was one and may still have what it held.
    pub fn position_of(&self, disk: DiskId) -> Option<usize> {
        let member = self.members.iter().position(|m| m.disk == disk);
        member.or_else(|| self.formers.iter().find(|f| f.disk == disk && !f.drop).map(|f| usize::from(f.position)))
    }

    /// Members that are being filled now: the copies that repair has under way.
    pub fn filling(&self) -> impl Iterator<Item = DiskId> {
        let members = self.members.iter().filter(|m| m.filling && m.state == MemberState::Syncing).map(|m| m.disk);
        members.chain(self.joining.filter(|j| j.state == MemberState::Syncing).map(|j| j.disk))
    }

    /// The disk has to do with the group: as a member, or as one that was.
    pub fn knows(&self, disk: DiskId) -> bool {
        self.disks().any(|known| known == disk) || self.formers.iter().any(|f| f.disk == disk)
    }

    /// How many members may be replaced until former ones have deleted what they have.
    pub fn formers_left(&self) -> usize {
        // Whoever joins makes one more, whether it arrives or not.
        FORMERS_MAX.saturating_sub(self.formers.len() + usize::from(self.joining.is_some()))
    }

    /// Puts disks in the places of others: `swaps` has who leaves and who comes. All or nothing; true if the epoch
    /// rose.
    pub fn replace(&mut self, swaps: &[(DiskId, DiskId)], able: impl Fn(DiskId) -> bool) -> bool {
        let leaves = |disk: DiskId| {
            let member = self.members.iter().find(|m| m.disk == disk);
            // One that never was complete is no loss, whether it can be reached or not.
            member.is_some_and(|m| match m.state {
                MemberState::Offline => m.filling || !able(disk),
                MemberState::Waiting => !able(disk),
                MemberState::Serving | MemberState::Syncing => false,
            })
        };
        let distinct = |i: usize| swaps[..i].iter().all(|(old, new)| *old != swaps[i].0 && *new != swaps[i].1);
        let fits = |(i, (old, new)): (usize, &(DiskId, DiskId))| {
            leaves(*old) && able(*new) && !self.knows(*new) && distinct(i) && !self.is_left_to_joining(*old)
        };
        if swaps.len() > self.formers_left() {
            return false;
        }
        if self.retired || swaps.is_empty() || !self.is_readable() || !swaps.iter().enumerate().all(fits) {
            return false;
        }
        for (old, new) in swaps {
            let position = self.members.iter().position(|m| m.disk == *old).expect("it is a member");
            self.seat(position, Member { disk: *new, state: MemberState::Syncing, filling: true, older: false });
        }
        self.raise(true)
    }

    /// The way back of a disk that was replaced: it lacks less than the one that was put in its place, if that one is
    /// not complete yet. If that one is complete but waited for, the disk serves instead, if it misses nothing either.
    /// True if the epoch rose.
    pub fn take_back(&mut self, disk: DiskId, able: impl Fn(DiskId) -> bool) -> bool {
        let Some(former) = self.formers.iter().find(|f| f.disk == disk && !f.drop).copied() else { return false };
        let position = usize::from(former.position);
        let readable = self.is_readable();
        let lacks_less = match self.members[position].state {
            MemberState::Syncing | MemberState::Offline => readable || former.complete,
            MemberState::Waiting => former.complete,
            MemberState::Serving => false,
        };
        if self.retired || !lacks_less || !able(disk) {
            return false;
        }
        let state = if former.complete { MemberState::Serving } else { MemberState::Syncing };
        self.seat(position, Member { disk, state, filling: !former.served, older: false });
        self.settle(readable, able);
        self.raise(true)
    }

    /// A former member has deleted all that it had. True if that was waited for.
    pub fn forget_former(&mut self, disk: DiskId) -> bool {
        let before = self.formers.len();
        self.formers.retain(|f| f.disk != disk || !f.drop);
        self.formers.len() != before
    }

    /// Puts a member in a place and remembers who had it.
    pub(super) fn seat(&mut self, position: usize, member: Member) {
        self.formers.retain(|f| f.disk != member.disk);
        let old = std::mem::replace(&mut self.members[position], member);
        let complete = old.state == MemberState::Waiting;
        let (position, served) = (position as u8, !old.filling);
        self.formers.push(Former { disk: old.disk, position, served, complete, drop: false });
    }

    /// What follows for those that left. Once the group can be written they may miss something; once all members serve,
    /// nothing of theirs is needed any more.
    pub(super) fn release_formers(&mut self) {
        if self.has_write_minimum() {
            self.formers.iter_mut().for_each(|f| f.complete = false);
        }
        if self.is_complete() && !self.older.comparing {
            self.formers.iter_mut().for_each(|f| f.drop = true);
        }
    }

    /// What is wrong with the former members, if anything.
    pub(crate) fn formers_flaw(&self) -> Option<String> {
        let twice = |i: usize| self.formers[..i].iter().any(|f| f.disk == self.formers[i].disk);
        for (i, former) in self.formers.iter().enumerate() {
            if twice(i) || self.members.iter().any(|m| m.disk == former.disk) {
                return Some(format!("{} is a former member twice, or a member", former.disk));
            }
            if usize::from(former.position) >= self.members.len() {
                return Some(format!("{} had a place that does not exist", former.disk));
            }
        }
        if let Some(flaw) = self.joining_flaw() {
            return Some(flaw);
        }
        let serving = self.members.iter().find(|m| m.filling && m.state == MemberState::Serving);
        serving.map(|m| format!("{} serves although it is being filled", m.disk))
    }
}
