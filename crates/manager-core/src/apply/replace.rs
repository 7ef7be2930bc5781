//! Members replaced, taken back in their old places, and old ones forgotten once they have deleted what they had.
use super::Outcome;
use crate::command::{FormersGone, MemberAt, ReplaceMembers};
use crate::pg::Pg;
use crate::state::State;
use cairn_types::{DiskId, Epoch, ErrorCode, PgId};
use cairn_wire::error::WireError;

impl State {
    /// Each group by itself: what changed since it was decided makes it void for that group only.
    pub(super) fn replace_members(
        &mut self,
        command: &ReplaceMembers,
        raised: &mut Vec<PgId>,
    ) -> Result<Outcome, WireError> {
        for group in &command.groups {
            let swaps: Vec<(DiskId, DiskId)> = group.swaps.iter().map(|s| (DiskId(s.old), DiskId(s.new))).collect();
            let replace = |state: &State, pg: &mut Pg| pg.replace(&swaps, |disk| state.is_able(disk));
            self.change_decided((group.pg, group.epoch), raised, replace);
        }
        Ok(Outcome::Done)
    }

    /// Changes a group if its epoch is still the one under which that was decided. `change`: true if the epoch rose.
    pub(super) fn change_decided(
        &mut self,
        (pg, epoch): (u32, u64),
        raised: &mut Vec<PgId>,
        change: impl FnOnce(&State, &mut Pg) -> bool,
    ) {
        let id = PgId(pg);
        let Some(pg) = self.pg(id).filter(|pg| pg.epoch == Epoch(epoch)) else { return };
        let mut changed = pg.clone();
        if change(self, &mut changed) {
            self.put_pg(changed);
            raised.push(id);
        }
    }

    pub(super) fn take_member_back(&mut self, at: &MemberAt, raised: &mut Vec<PgId>) -> Result<Outcome, WireError> {
        let id = PgId(at.pg);
        if self.pg(id).is_none() {
            return Err(WireError::new(ErrorCode::UnknownPg, format!("there is no {id}")));
        }
        let take_back = |state: &State, pg: &mut Pg| pg.take_back(DiskId(at.disk), |disk| state.is_able(disk));
        self.change_decided((at.pg, at.epoch), raised, take_back);
        Ok(Outcome::Done)
    }

    /// No epoch rises: nothing that members do depends on it.
    pub(super) fn formers_gone(&mut self, command: &FormersGone) -> Result<Outcome, WireError> {
        for at in &command.members {
            let Some(pg) = self.pg(PgId(at.pg)) else { continue };
            let mut changed = pg.clone();
            if changed.forget_former(DiskId(at.disk)) {
                self.put_pg(changed);
            }
        }
        Ok(Outcome::Done)
    }
}
