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
            let id = PgId(group.pg);
            let Some(pg) = self.pg(id).filter(|pg| pg.epoch == Epoch(group.epoch)) else { continue };
            let swaps: Vec<(DiskId, DiskId)> = group.swaps.iter().map(|s| (DiskId(s.old), DiskId(s.new))).collect();
            let mut changed: Pg = pg.clone();
            if changed.replace(&swaps, |disk| self.is_able(disk)) {
                self.put_pg(changed);
                raised.push(id);
            }
        }
        Ok(Outcome::Done)
    }

    pub(super) fn take_member_back(&mut self, at: &MemberAt, raised: &mut Vec<PgId>) -> Result<Outcome, WireError> {
        let id = PgId(at.pg);
        let Some(pg) = self.pg(id) else {
            return Err(WireError::new(ErrorCode::UnknownPg, format!("there is no {id}")));
        };
        let mut changed = pg.clone();
        if pg.epoch == Epoch(at.epoch) && changed.take_back(DiskId(at.disk), |disk| self.is_able(disk)) {
            self.put_pg(changed);
            raised.push(id);
        }
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
