//! A placement group in the manager's state: members in order, their states, the epoch.
//!
//! Invariants: the epoch rises with every change of a state (by one a command), and only here. A serving or a waiting
//! member is always there. No disk is a member twice.
use crate::member_table::{Around, MemberEvent, next};
use cairn_types::{DiskId, Epoch, MemberState, PgId, Scheme, VolumeId, WallTime};

/// A disk in a placement group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member {
    pub disk: DiskId,
    pub state: MemberState,
}

/// A placement group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pg {
    pub id: PgId,
    pub volume: VolumeId,
    pub scheme: Scheme,
    pub epoch: Epoch,
    pub creation_epoch: Epoch,
    /// In order; the primary is the first serving one.
    pub members: Vec<Member>,
    /// Takes new chunks as far as the manager is concerned; false when its disks are full.
    pub open: bool,
    /// The volume is deleted: members may drop what they hold.
    pub retired: bool,
    pub created: WallTime,
    /// Map version of the last change.
    pub version: u64,
}

impl Pg {
    /// A new group: all members serve (nothing), epoch 1.
    pub fn new(id: PgId, volume: VolumeId, scheme: Scheme, disks: &[DiskId], created: WallTime) -> Self {
        let members = disks.iter().map(|disk| Member { disk: *disk, state: MemberState::Serving }).collect();
        let (epoch, creation_epoch) = (Epoch(1), Epoch(1));
        Self { id, volume, scheme, epoch, creation_epoch, members, open: true, retired: false, created, version: 0 }
    }

    /// State of the member on `disk`.
    pub fn state_of(&self, disk: DiskId) -> Option<MemberState> {
        self.members.iter().find(|m| m.disk == disk).map(|m| m.state)
    }

    /// Members in `state`.
    pub fn count(&self, state: MemberState) -> usize {
        self.members.iter().filter(|m| m.state == state).count()
    }

    /// All members serve.
    pub fn is_complete(&self) -> bool {
        self.count(MemberState::Serving) == self.members.len()
    }

    /// May be written: open, in use, and enough members serve.
    pub fn is_writable(&self) -> bool {
        self.open && !self.retired && self.count(MemberState::Serving) >= self.scheme.write_minimum()
    }

    /// The first serving member.
    pub fn primary(&self) -> Option<DiskId> {
        self.members.iter().find(|m| m.state == MemberState::Serving).map(|m| m.disk)
    }

    /// Disks that were marked down together. True if the epoch rose.
    pub fn take_down(&mut self, down: &[DiskId]) -> bool {
        let source = self.members.iter().any(|m| m.state == MemberState::Serving && !down.contains(&m.disk));
        let around = Around { source, enough: false, able: false };
        self.change(
            |member| if down.contains(&member.disk) { next(member.state, MemberEvent::Down, around) } else { None },
        )
    }

    /// The member on `disk` was reported and a probe confirmed it. True if the epoch rose.
    pub fn fail(&mut self, disk: DiskId) -> bool {
        self.one(disk, MemberEvent::Failed)
    }

    /// The member on `disk` answers again after it was removed from this group. True if the epoch rose.
    pub fn rejoin(&mut self, disk: DiskId) -> bool {
        self.one(disk, MemberEvent::Rejoined)
    }

    /// These members verified that they hold what the primary holds, under the present epoch. True if it rose.
    pub fn caught_up(&mut self, disks: &[DiskId]) -> bool {
        let around = Around { source: self.primary().is_some(), enough: false, able: true };
        self.change(|m| if disks.contains(&m.disk) { next(m.state, MemberEvent::CaughtUp, around) } else { None })
    }

    /// The process of these disks started anew. `heard`: the leader knows that the disk's node lives; `able`: the
    /// disk's node is up and the disk in service. True if the epoch rose.
    pub fn register(
        &mut self,
        disks: &[DiskId],
        heard: impl Fn(DiskId) -> bool,
        able: impl Fn(DiskId) -> bool,
    ) -> bool {
        let had_source = self.primary().is_some();
        let before = self.members.clone();
        let mut raised = false;
        for disk in disks {
            let Some(at) = self.members.iter().position(|m| m.disk == *disk) else { continue };
            // Two disks of one process start together: none of them is a source for the other.
            let others = before.iter().filter(|m| m.state == MemberState::Serving && !disks.contains(&m.disk));
            let enough = others.filter(|m| heard(m.disk)).count() >= self.scheme.write_minimum();
            let source = self.members.iter().any(|m| m.state == MemberState::Serving && m.disk != *disk);
            if let Some(state) =
                next(self.members[at].state, MemberEvent::Registered, Around { source, enough, able: true })
            {
                self.members[at].state = state;
                raised = true;
            }
        }
        if !had_source && self.primary().is_some() {
            for member in &mut self.members {
                let around = Around { source: true, enough: false, able: able(member.disk) };
                if let Some(state) = next(member.state, MemberEvent::SourceBack, around) {
                    member.state = state;
                    raised = true;
                }
            }
        }
        self.raise(raised)
    }

    /// The volume was deleted: fences everybody off. True if the epoch rose.
    pub fn retire(&mut self) -> bool {
        let first = !self.retired;
        self.retired = true;
        self.open = false;
        self.raise(first)
    }

    fn one(&mut self, disk: DiskId, event: MemberEvent) -> bool {
        let source = self.members.iter().any(|m| m.state == MemberState::Serving && m.disk != disk);
        let around = Around { source, enough: false, able: true };
        self.change(|member| if member.disk == disk { next(member.state, event, around) } else { None })
    }

    fn change(&mut self, decide: impl Fn(&Member) -> Option<MemberState>) -> bool {
        let mut raised = false;
        for member in &mut self.members {
            if let Some(state) = decide(member) {
                member.state = state;
                raised = true;
            }
        }
        self.raise(raised)
    }

    fn raise(&mut self, raised: bool) -> bool {
        if raised {
            self.epoch = Epoch(self.epoch.get() + 1);
        }
        self.check();
        raised
    }

    /// Guards the only copy of the data: a group without a serving or waiting member could never be read again.
    fn check(&self) {
        let (serving, waiting) = (self.count(MemberState::Serving), self.count(MemberState::Waiting));
        assert!(serving + waiting > 0, "{}: no member serves or is waited for", self.id);
        assert!(serving == 0 || waiting == 0, "{}: a member is waited for although another serves", self.id);
    }
}

#[cfg(test)]
mod tests;
