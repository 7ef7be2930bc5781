//! Giving up members that a group waits for: the one way in which a group goes on without what it had acknowledged.
//!
//! Only ever by an operator's explicit word. Members that are declared lost go offline; if then fewer serve or wait than
//! reading needs, others that may lack what was written last serve in their place. Invariant: indices that the lost ones
//! may have given are never given again (`index_floor`), or a file's extent would show another file's bytes.
use super::Pg;
use cairn_types::{DiskId, MemberState};

impl Pg {
    /// How many members have to serve as they are, once these are given up.
    pub fn missing_without(&self, lost: &[DiskId]) -> usize {
        let left = |state: MemberState| matches!(state, MemberState::Serving | MemberState::Waiting);
        let left = self.members.iter().filter(|m| left(m.state) && !lost.contains(&m.disk)).count();
        self.scheme.read_minimum().saturating_sub(left)
    }

    /// Members that could serve in the place of lost ones, and disks that were members and have not deleted what they had.
    /// Of those of one [place](Self::position_of) only one can.
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

    /// Gives up `lost`, lets `promoted` serve. True if the epoch rose; nothing is changed when it makes no sense.
    pub fn force(
        &mut self,
        lost: &[DiskId],
        promoted: &[DiskId],
        index_floor: u32,
        able: impl Fn(DiskId) -> bool,
    ) -> bool {
        let given_up = |m: &super::Member| lost.contains(&m.disk) && m.state == MemberState::Waiting;
        let fits = promoted.iter().all(|disk| self.stand_ins(lost).any(|fit| fit == *disk) && able(*disk))
            && promoted.len() == self.missing_without(lost)
            && (1..promoted.len())
                .all(|i| promoted[..i].iter().all(|other| self.position_of(*other) != self.position_of(promoted[i])))
            && self.members.iter().any(given_up)
            && !self.retired;
        if !fits {
            return false;
        }
        let readable = self.is_readable();
        for disk in promoted {
            let position = self.position_of(*disk).expect("it can stand in");
            if self.members[position].disk != *disk {
                self.seat(
                    position,
                    super::Member { disk: *disk, state: MemberState::Offline, filling: false, older: false },
                );
            }
        }
        let raised = self.each(|m| match m.state {
            MemberState::Waiting if lost.contains(&m.disk) => Some(MemberState::Offline),
            _ if promoted.contains(&m.disk) => Some(MemberState::Serving),
            _ => None,
        });
        let raised = self.settle(readable, able) || raised;
        self.index_floor = self.index_floor.max(index_floor);
        self.raise(raised)
    }
}
