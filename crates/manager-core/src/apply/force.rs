//! ForcePg: an operator gave up disks that a group waits for.
use super::Outcome;
use crate::command::ForcePg;
use crate::pg::Forced;
use crate::state::State;
use cairn_types::{DiskId, Epoch, ErrorCode, PgId};
use cairn_wire::error::WireError;

impl State {
    /// Decided on one epoch, for that epoch only; a lost disk that is in service after all makes it void.
    pub(super) fn force_pg(&mut self, command: &ForcePg, raised: &mut Vec<PgId>) -> Result<Outcome, WireError> {
        let id = PgId(command.pg);
        let disks = |ids: &[u32]| ids.iter().copied().map(DiskId).collect::<Vec<DiskId>>();
        let (lost, promoted) = (disks(&command.lost), disks(&command.promoted));
        let fresh: Vec<(DiskId, DiskId)> =
            command.fresh.iter().map(|swap| (DiskId(swap.old), DiskId(swap.new))).collect();
        let given_up = Forced { lost: &lost, promoted: &promoted, fresh: &fresh, index_floor: command.index_floor };
        let changed = || {
            let text = format!("{id} or its disks changed meanwhile; look at it again before you give anything up");
            Err(WireError::new(ErrorCode::Conflict, text))
        };
        let Some(pg) = self.pg(id) else {
            return Err(WireError::new(ErrorCode::UnknownPg, format!("there is no {id}")));
        };
        if pg.epoch != Epoch(command.epoch) || lost.iter().any(|disk| self.is_able(*disk)) {
            return changed();
        }
        let mut forced = pg.clone();
        if lost.is_empty() && promoted.is_empty() && forced.confirm_older() {
            self.put_pg(forced);
            return Ok(Outcome::Done);
        }
        if !forced.force(given_up, |disk| self.is_able(disk)) {
            return changed();
        }
        self.put_pg(forced);
        raised.push(id);
        Ok(Outcome::Done)
    }
}
