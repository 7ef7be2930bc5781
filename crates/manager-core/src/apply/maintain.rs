//! Drains begun and cancelled; disks that begin to join groups, and give up.
use super::Outcome;
use crate::command::{CancelMoves, ReplaceMembers, SetDrain};
use crate::maintenance::{DRAINS_MAX, Drain, Target};
use crate::pg::Pg;
use crate::state::State;
use cairn_types::{DiskId, ErrorCode, PgId, WallTime};
use cairn_wire::error::WireError;

impl State {
    /// Each group by itself: what changed since it was decided makes it void for that group only.
    pub(super) fn begin_moves(
        &mut self,
        command: &ReplaceMembers,
        raised: &mut Vec<PgId>,
    ) -> Result<Outcome, WireError> {
        for group in &command.groups {
            for swap in &group.swaps {
                let (old, new) = (DiskId(swap.old), DiskId(swap.new));
                let begin = |state: &State, pg: &mut Pg| pg.begin_move(old, new, |disk| state.takes_more(disk));
                self.change_decided((group.pg, group.epoch), raised, begin);
            }
        }
        Ok(Outcome::Done)
    }

    pub(super) fn cancel_moves(&mut self, command: &CancelMoves, raised: &mut Vec<PgId>) -> Result<Outcome, WireError> {
        for at in &command.members {
            self.change_decided((at.pg, at.epoch), raised, |_, pg| pg.cancel_move(DiskId(at.disk)));
        }
        Ok(Outcome::Done)
    }

    /// A drain that is cancelled leaves those who are on the way where they are: they give up.
    pub(super) fn set_drain(
        &mut self,
        time: WallTime,
        command: &SetDrain,
        raised: &mut Vec<PgId>,
    ) -> Result<Outcome, WireError> {
        let target = command.target.as_ref().and_then(Target::from_command);
        let target =
            target.ok_or_else(|| WireError::new(ErrorCode::BadRequest, "a disk, a node or a rack is drained"))?;
        if command.cancel {
            return match self.drains.remove(&target) {
                Some(_) => {
                    let joins =
                        self.pgs().filter(|pg| !pg.retired).filter_map(|pg| Some((pg, pg.joining?, pg.leaving()?)));
                    let stays = joins.filter(|(_, _, old)| self.is_in(&target, *old) && !self.is_drained(*old));
                    let stays: Vec<(PgId, DiskId)> = stays.map(|(pg, joining, _)| (pg.id, joining.disk)).collect();
                    for (id, disk) in stays {
                        self.change_pg(id, raised, |pg| pg.cancel_move(disk));
                    }
                    Ok(Outcome::Done)
                }
                None => {
                    let text = format!("{target} is not being drained; `cairn admin drain ls` shows what is");
                    Err(WireError::new(ErrorCode::NotFound, text))
                }
            };
        }
        if !self.disks().any(|disk| self.is_in(&target, disk.id)) {
            let text = format!("there is no disk in {target}; `cairn admin disk ls` and `node ls` show what there is");
            return Err(WireError::new(ErrorCode::NotFound, text));
        }
        if self.drains.len() >= DRAINS_MAX && !self.drains.contains_key(&target) {
            let text = format!("{DRAINS_MAX} drains are under way; cancel some, or remove what is empty");
            return Err(WireError::new(ErrorCode::Overloaded, text));
        }
        self.drains.entry(target).or_insert(Drain { since: time });
        Ok(Outcome::Done)
    }
}
