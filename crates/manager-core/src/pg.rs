//! A placement group in the manager's state: members in order, their states, the epoch.
//!
//! Invariants: the epoch rises with every change of a state (by one a command), and only here. Serving and waiting
//! members are always enough to read from, and none waits while the group can be written. No disk is a member twice,
//! and a disk keeps its position: in an erasure group that is the number of its shard. Another disk takes a position
//! only from a member that is away, or, having got everything, from one that [leaves](moving); the disk that leaves is
//! remembered until the group is complete without it.
mod force;
mod moving;
mod older;
mod replace;

pub use force::Forced;
pub use moving::Joining;
pub use older::Older;
pub use replace::FORMERS_MAX;

use crate::member_table::{Around, MemberEvent, next};
use crate::stripe::Column;
use cairn_types::{DiskId, Epoch, MemberState, PgId, Scheme, VolumeId, WallTime};

/// A disk in a placement group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member {
    pub disk: DiskId,
    pub state: MemberState,
    /// It was put here in the place of another one and has never been complete since.
    pub filling: bool,
    /// It held everything until it came back as an older copy of itself, and has not been complete since.
    pub older: bool,
}

/// A disk that was a member and whose place another one has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Former {
    pub disk: DiskId,
    /// Its place among the members.
    pub position: u8,
    /// It was complete in that place before it had to leave.
    pub served: bool,
    /// And it misses nothing: nothing could be acknowledged since.
    pub complete: bool,
    /// The group was complete without it since: it deletes what it has, and says so.
    pub drop: bool,
}

/// A placement group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pg {
    pub id: PgId,
    pub volume: VolumeId,
    pub scheme: Scheme,
    pub epoch: Epoch,
    pub creation_epoch: Epoch,
    /// What it is in a stripe group, if it is in one.
    pub column: Option<Column>,
    /// In order; the primary is the first serving one. In an erasure group member i holds shard i.
    pub members: Vec<Member>,
    /// Disks whose places others have, in the order in which they left.
    pub formers: Vec<Former>,
    /// A disk that gets what a member has, to take its place then.
    pub joining: Option<Joining>,
    /// Takes new chunks as far as the manager is concerned; false when its disks are full.
    pub open: bool,
    /// The volume is deleted: members may drop what they hold.
    pub retired: bool,
    /// Indices below are given no more: members that knew which were given are lost.
    pub index_floor: u32,
    /// Whether all that held everything came back as older copies of themselves.
    pub older: Older,
    pub created: WallTime,
    /// Map version of the last change.
    pub version: u64,
}

impl Pg {
    /// A new group: all members serve (nothing), epoch 1.
    pub fn new(id: PgId, volume: VolumeId, scheme: Scheme, disks: &[DiskId], created: WallTime) -> Self {
        let serving = |disk: &DiskId| Member { disk: *disk, state: MemberState::Serving, filling: false, older: false };
        let members = disks.iter().map(serving).collect();
        let (epoch, creation_epoch) = (Epoch(1), Epoch(1));
        Self {
            id,
            volume,
            scheme,
            epoch,
            creation_epoch,
            column: None,
            members,
            formers: Vec::new(),
            joining: None,
            open: true,
            retired: false,
            index_floor: 0,
            older: Older::default(),
            created,
            version: 0,
        }
    }

    /// Members without room from the beginning: they are offline, have nothing, and come when there is room for it.
    pub fn without(mut self, full: &[DiskId]) -> Self {
        for member in self.members.iter_mut().filter(|m| full.contains(&m.disk)) {
            (member.state, member.filling) = (MemberState::Offline, true);
        }
        self
    }

    /// State of the member on `disk`, or of the disk that is to take a member's place.
    pub fn state_of(&self, disk: DiskId) -> Option<MemberState> {
        let member = self.members.iter().find(|m| m.disk == disk).map(|m| m.state);
        member.or_else(|| self.joining.filter(|j| j.disk == disk).map(|j| j.state))
    }

    /// The disks of the members, and the one that is to take a member's place.
    pub fn disks(&self) -> impl Iterator<Item = DiskId> + '_ {
        self.members.iter().map(|m| m.disk).chain(self.joining.map(|j| j.disk))
    }

    /// Members in `state`.
    pub fn count(&self, state: MemberState) -> usize {
        self.members.iter().filter(|m| m.state == state).count()
    }

    /// All members serve.
    pub fn is_complete(&self) -> bool {
        self.count(MemberState::Serving) == self.members.len()
    }

    /// Enough members serve to read everything.
    pub fn is_readable(&self) -> bool {
        self.count(MemberState::Serving) >= self.scheme.read_minimum()
    }

    /// Enough members serve to write.
    pub fn has_write_minimum(&self) -> bool {
        self.count(MemberState::Serving) >= self.scheme.write_minimum()
    }

    /// May be written: open, in use, and enough members serve.
    pub fn is_writable(&self) -> bool {
        self.open && !self.retired && self.has_write_minimum() && !self.older.comparing
    }

    /// The member on `disk` has parity shards.
    pub fn keeps_parity(&self, disk: DiskId) -> bool {
        match self.scheme {
            Scheme::Replicated(_) => false,
            Scheme::Erasure { k, .. } => self.members.iter().skip(usize::from(k)).any(|m| m.disk == disk),
        }
    }

    /// The first serving member.
    pub fn primary(&self) -> Option<DiskId> {
        self.members.iter().find(|m| m.state == MemberState::Serving).map(|m| m.disk)
    }

    /// Disks that were marked down together. True if the epoch rose.
    pub fn take_down(&mut self, down: &[DiskId]) -> bool {
        let around = self.around(down, true);
        let raised =
            self.each(|m| if down.contains(&m.disk) { next(m.state, MemberEvent::Down, around) } else { None });
        self.raise(raised)
    }

    /// The member on `disk` was reported and a probe confirmed it. True if the epoch rose.
    pub fn fail(&mut self, disk: DiskId) -> bool {
        let raised = self.one(disk, MemberEvent::Failed);
        self.raise(raised)
    }

    /// The member on `disk` answers again after it had to leave this group. `able`: the disk's node is up and the disk
    /// in service. True if the epoch rose.
    pub fn rejoin(&mut self, disk: DiskId, able: impl Fn(DiskId) -> bool) -> bool {
        let readable = self.is_readable();
        let raised = self.one(disk, MemberEvent::Rejoined);
        let raised = self.settle(readable, able) || raised;
        self.raise(raised)
    }

    /// These members verified that they hold their part of everything, under the present epoch. True if it rose.
    pub fn caught_up(&mut self, disks: &[DiskId]) -> bool {
        let readable = self.is_readable();
        let around = Around { readable, writable: false, held: readable, heard: false, able: true };
        let caught =
            |m: &Member| if disks.contains(&m.disk) { next(m.state, MemberEvent::CaughtUp, around) } else { None };
        let compared = self.compared(disks);
        let raised = self.each(caught) || compared;
        // Catching up needs sources, so none came back by it.
        let raised = self.settle(true, |_| false) || raised;
        self.raise(raised)
    }

    /// The process of these disks started anew; `older` ones among them are older copies of themselves. `heard`: the
    /// leader knows that the disk's node lives; `able`: the disk's node is up and the disk in service. True if the
    /// epoch rose.
    pub fn register(
        &mut self,
        disks: &[DiskId],
        older: &[DiskId],
        heard: impl Fn(DiskId) -> bool,
        able: impl Fn(DiskId) -> bool,
    ) -> bool {
        let readable = self.is_readable();
        // Disks of one process start together: none of them speaks for another.
        let others = self.members.iter().filter(|m| m.state == MemberState::Serving && !disks.contains(&m.disk));
        let heard = others.filter(|m| heard(m.disk)).count() >= self.scheme.write_minimum();
        let mut raised = self.leave_older(older, &able);
        for disk in disks.iter().filter(|disk| !older.contains(disk)) {
            let around = Around { heard, ..self.around(&[*disk], true) };
            raised |=
                self.each(|m| if m.disk == *disk { next(m.state, MemberEvent::Registered, around) } else { None });
        }
        let raised = self.settle(readable, able) || raised;
        self.raise(raised)
    }

    /// The volume was deleted: fences everybody off. True if the epoch rose.
    pub fn retire(&mut self) -> bool {
        let first = !self.retired;
        self.retired = true;
        self.open = false;
        self.raise(first)
    }

    /// What is around a member when these do not count.
    fn around(&self, without: &[DiskId], able: bool) -> Around {
        let others = self.members.iter().filter(|m| m.state == MemberState::Serving && !without.contains(&m.disk));
        let others = others.count();
        let (readable, writable) = (others >= self.scheme.read_minimum(), others >= self.scheme.write_minimum());
        Around { readable, writable, held: readable, heard: false, able }
    }

    fn one(&mut self, disk: DiskId, event: MemberEvent) -> bool {
        let around = self.around(&[disk], true);
        self.each(|member| if member.disk == disk { next(member.state, event, around) } else { None })
    }

    /// What follows for the other members when more serve than before; `readable`: whether it could be read before.
    fn settle(&mut self, readable: bool, able: impl Fn(DiskId) -> bool) -> bool {
        let around =
            |disk: DiskId| Around { readable: true, writable: true, held: true, heard: false, able: able(disk) };
        let mut changed = false;
        if self.has_write_minimum() {
            changed |= self.each(|m| next(m.state, MemberEvent::WritesBack, around(m.disk)));
        }
        if !readable && self.is_readable() {
            changed |= self.each(|m| next(m.state, MemberEvent::SourcesBack, around(m.disk)));
        }
        changed
    }

    /// True if a state was decided anew.
    fn each(&mut self, decide: impl Fn(&Member) -> Option<MemberState>) -> bool {
        let mut changed = false;
        for member in &mut self.members {
            if let Some(state) = decide(member) {
                member.state = state;
                member.filling &= state != MemberState::Serving;
                member.older &= state != MemberState::Serving;
                changed = true;
            }
        }
        let joining = self.joining.map(|j| (j, Member { disk: j.disk, state: j.state, filling: true, older: false }));
        if let Some((joining, state)) = joining.and_then(|(j, member)| Some((j, decide(&member)?))) {
            changed |= self.joining_becomes(joining, state);
        }
        changed
    }

    fn raise(&mut self, raised: bool) -> bool {
        if raised {
            self.epoch = Epoch(self.epoch.get() + 1);
            self.release_formers();
        }
        // Guards the only copy of the data: what such a group holds could never be read again, or not be trusted.
        let flaw = self.flaw();
        assert!(flaw.is_none(), "{}: {flaw:?}", self.id);
        raised
    }

    /// What is wrong with the states of the members, if anything.
    pub(crate) fn flaw(&self) -> Option<String> {
        let (serving, waiting) = (self.count(MemberState::Serving), self.count(MemberState::Waiting));
        if serving + waiting < self.scheme.read_minimum() {
            return Some(format!(
                "{serving} serving and {waiting} waiting members are too few to read {}",
                self.scheme
            ));
        }
        if waiting > 0 && self.has_write_minimum() {
            return Some(format!("{waiting} members wait although {serving} serve and {} can be written", self.scheme));
        }
        None
    }
}

#[cfg(test)]
mod tests;
