//! Disks that came back as older copies of themselves: they may lack what they had acknowledged, so they hold nothing
//! for sure.
//!
//! One that served, or was waited for, catches up like a member that was away, as long as the others that hold
//! everything are enough to read. If they are not, what the older copies have together is all there is: those that are
//! up serve at once, the group is **comparing**, and nobody answers clients before the primary has compared them.
//! Invariants: nobody serves as an older copy while those who hold everything are enough; and that what was
//! acknowledged may be lost is remembered until somebody says that he knows.
use super::{Around, Member, MemberEvent, Pg, next};
use cairn_types::{DiskId, Epoch, MemberState};

/// What is remembered of it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Older {
    /// The epoch in which none was left that held everything for sure; 0: never. Every member goes on far above its
    /// mark of indices in it.
    pub epoch: Epoch,
    /// The members are being compared: nobody serves clients.
    pub comparing: bool,
    /// Nobody has said yet that he knows of it.
    pub unconfirmed: bool,
}

impl Pg {
    /// Members among `older` no longer count as holding anything. True if a state was decided anew.
    pub(super) fn leave_older(&mut self, older: &[DiskId], able: &impl Fn(DiskId) -> bool) -> bool {
        // Who was replaced while it was waited for misses something after all.
        self.formers.iter_mut().filter(|f| older.contains(&f.disk)).for_each(|f| f.complete = false);
        let is_sure = |m: &&Member| !older.contains(&m.disk);
        let serving = self.members.iter().filter(is_sure).filter(|m| m.state == MemberState::Serving).count();
        let waiting = self.members.iter().filter(is_sure).filter(|m| m.state == MemberState::Waiting).count();
        let minimum = self.scheme.read_minimum();
        let around = Around {
            readable: serving >= minimum,
            held: serving + waiting >= minimum,
            writable: false,
            heard: false,
            able: true,
        };
        let counted = |m: &Member| matches!(m.state, MemberState::Serving | MemberState::Waiting);
        let hit = |m: &Member| older.contains(&m.disk);
        let last = !around.held && self.members.iter().any(|m| hit(m) && counted(m));
        self.members.iter_mut().filter(|m| hit(m) && counted(m)).for_each(|m| m.older = true);
        let mut changed = self.each(|m| if hit(m) { next(m.state, MemberEvent::Older, around) } else { None });
        if last {
            // Who caught up had everything when its process started, and what those who came back have forgotten since.
            let may_know = |m: &Member| m.older || (m.state == MemberState::Syncing && !m.filling);
            changed |= self.each(|m| (may_know(m) && able(m.disk)).then_some(MemberState::Serving));
            self.older = Older {
                epoch: Epoch(self.epoch.get() + 1),
                // Shards are never overwritten, and a shard that somebody lacks is made of others.
                comparing: self.scheme.is_replicated() && self.members.len() > 1,
                unconfirmed: true,
            };
        }
        changed
    }

    /// Members may lack what was acknowledged before this epoch, and nobody is left who knows: they are compared before
    /// they serve.
    pub(crate) fn doubt(&mut self) {
        self.older = Older {
            epoch: self.epoch,
            comparing: self.scheme.is_replicated() && self.members.len() > 1,
            unconfirmed: true,
        };
    }

    /// The members that have everything, as far as is known.
    pub fn holders(&self) -> impl Iterator<Item = DiskId> {
        let holds = |m: &&Member| matches!(m.state, MemberState::Serving | MemberState::Waiting);
        self.members.iter().filter(holds).map(|member| member.disk)
    }

    /// The primary has compared all members that serve. True if that was waited for.
    pub(super) fn compared(&mut self, disks: &[DiskId]) -> bool {
        let done = self.older.comparing && self.primary().is_some_and(|primary| disks.contains(&primary));
        self.older.comparing &= !done;
        done
    }

    /// Somebody knows that what was acknowledged may be lost. True if it was not known.
    pub fn confirm_older(&mut self) -> bool {
        std::mem::take(&mut self.older.unconfirmed)
    }
}
