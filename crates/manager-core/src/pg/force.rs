//! Giving up members that a group waits for: the one way in which a group goes on without what it had acknowledged.
//!
//! Only ever by an operator's explicit word. Members that are declared lost go offline; if then fewer serve or wait
//! than reading needs, others that may lack what was written last serve in their place. Where every disk that had a
//! part of the group is declared lost, disks without anything take places: what the group held is lost, and it goes on
//! empty. Invariants: indices that the lost ones may have given are never given again (`index_floor`), or a file's
//! extent would show another file's bytes; and nobody without anything serves while a disk that is not given up may
//! have something.
use super::{Former, Member, Pg};
use cairn_types::{DiskId, MemberState};

/// What an operator gives up, and who serves then.
#[derive(Clone, Copy, Default, Debug)]
pub struct Forced<'a> {
    pub lost: &'a [DiskId],
    /// Members and former ones that serve as they are.
    pub promoted: &'a [DiskId],
    /// Disks that have nothing of the group, each in the place of a lost one: who leaves and who comes.
    pub fresh: &'a [(DiskId, DiskId)],
    pub index_floor: u32,
}

impl Pg {
    /// How many members have to serve as they are, once these are given up.
    pub fn missing_without(&self, lost: &[DiskId]) -> usize {
        let left = |state: MemberState| matches!(state, MemberState::Serving | MemberState::Waiting);
        let left = self.members.iter().filter(|m| left(m.state) && !lost.contains(&m.disk)).count();
        self.scheme.read_minimum().saturating_sub(left)
    }

    /// Members that could serve in the place of lost ones, and disks that were members and have not deleted what they
    /// had. Of those of one [place](Self::position_of) only one can.
    pub fn stand_ins(&self, lost: &[DiskId]) -> impl Iterator<Item = DiskId> {
        let open = move |m: &super::Member| match m.state {
            MemberState::Syncing | MemberState::Offline => true,
            MemberState::Waiting => lost.contains(&m.disk),
            MemberState::Serving => false,
        };
        let members = self.members.iter().filter(move |m| open(m) && !lost.contains(&m.disk)).map(|m| m.disk);
        let formers = self
            .formers
            .iter()
            .filter(move |f| !f.drop && !lost.contains(&f.disk) && open(&self.members[usize::from(f.position)]));
        members.chain(formers.map(|f| f.disk))
    }

    /// Disks that may have something of the group, do not serve, and are not given up.
    pub fn left_without(&self, lost: &[DiskId]) -> impl Iterator<Item = DiskId> {
        let away = self.members.iter().filter(|m| m.state != MemberState::Serving).map(|m| m.disk);
        let formers = self.formers.iter().filter(|f| !f.drop).map(|f| f.disk);
        let joining = self.joining.map(|j| j.disk);
        away.chain(formers).chain(joining).filter(move |disk| !lost.contains(disk))
    }

    /// Indices from here on where nobody is left who knows which were given: half of those that are left.
    pub fn index_floor_of_none(&self) -> u32 {
        self.index_floor + (u32::MAX - self.index_floor) / 2
    }

    /// Gives up disks, and lets others serve. True if the epoch rose; nothing is changed when it makes no sense.
    pub fn force(&mut self, forced: Forced<'_>, able: impl Fn(DiskId) -> bool) -> bool {
        let Forced { lost, promoted, fresh, index_floor } = forced;
        let given_up = |m: &Member| lost.contains(&m.disk) && m.state == MemberState::Waiting;
        let fits = promoted.iter().all(|disk| self.stand_ins(lost).any(|fit| fit == *disk) && able(*disk))
            && promoted.len() + fresh.len() == self.missing_without(lost)
            && (1..promoted.len())
                .all(|i| promoted[..i].iter().all(|other| self.position_of(*other) != self.position_of(promoted[i])))
            && self.members.iter().any(given_up)
            && self.fresh_fit(&forced, &able)
            && !self.retired;
        if !fits {
            return false;
        }
        let readable = self.is_readable();
        if let Some(joining) = self.joining.filter(|j| lost.contains(&j.disk)) {
            self.joining = None;
            let super::Joining { disk, position, .. } = joining;
            self.formers.push(Former { disk, position, served: false, complete: false, drop: false });
        }
        for disk in promoted {
            let position = self.position_of(*disk).expect("it can stand in");
            if self.members[position].disk != *disk {
                self.seat(position, Member { disk: *disk, state: MemberState::Offline, filling: false, older: false });
            }
        }
        for (old, new) in fresh {
            let position = self.members.iter().position(|m| m.disk == *old).expect("it is a member");
            self.seat(position, Member { disk: *new, state: MemberState::Offline, filling: false, older: false });
        }
        let serves = |disk: DiskId| promoted.contains(&disk) || fresh.iter().any(|(_, new)| *new == disk);
        let raised = self.each(|m| match m.state {
            MemberState::Waiting if lost.contains(&m.disk) => Some(MemberState::Offline),
            _ if serves(m.disk) => Some(MemberState::Serving),
            _ => None,
        });
        let raised = self.settle(readable, able) || raised;
        self.index_floor = self.index_floor.max(index_floor);
        self.raise(raised)
    }

    /// Disks without anything come only in the places of lost ones, and when nobody is left who may have something.
    fn fresh_fit(&self, forced: &Forced<'_>, able: &impl Fn(DiskId) -> bool) -> bool {
        let Forced { lost, promoted, fresh, index_floor } = *forced;
        let distinct = |i: usize| fresh[..i].iter().all(|(old, new)| *old != fresh[i].0 && *new != fresh[i].1);
        let fits = |(i, (old, new)): (usize, &(DiskId, DiskId))| {
            let place = self.members.iter().position(|m| m.disk == *old && m.state != MemberState::Serving);
            let free = place.is_some_and(|at| promoted.iter().all(|disk| self.position_of(*disk) != Some(at)));
            free && lost.contains(old) && able(*new) && !self.knows(*new) && distinct(i)
        };
        fresh.is_empty()
            || fresh.iter().enumerate().all(fits)
                && self.left_without(lost).all(|disk| promoted.contains(&disk))
                && fresh.len() <= self.formers_left()
                && index_floor > self.index_floor
    }
}
