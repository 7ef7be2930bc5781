//! Placement groups: made, opened and closed, members failing, rejoining and catching up.
use super::Outcome;
use crate::change::ItemKey;
use crate::command::{CaughtUp, CreatePgs, MemberAt, SetPgsOpen};
use crate::pg::Pg;
use crate::state::State;
use cairn_types::{DiskId, Epoch, ErrorCode, PgId, Scheme, VolumeId, WallTime};
use cairn_wire::error::WireError;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Most groups of one command.
pub const GROUPS_MAX: usize = 256;

impl State {
    /// All or nothing: the plan is void if the cluster changed under it.
    pub(super) fn create_pgs(
        &mut self,
        time: WallTime,
        command: &CreatePgs,
        raised: &mut Vec<PgId>,
    ) -> Result<Outcome, WireError> {
        let volume = VolumeId(command.volume);
        if self.volume(volume).is_none_or(|v| v.deleted) {
            return Err(WireError::new(ErrorCode::UnknownVolume, format!("there is no volume {volume}")));
        }
        let Some(scheme) = u8::try_from(command.scheme).ok().and_then(Scheme::from_code) else {
            return Err(WireError::new(ErrorCode::BadLayout, "the scheme is not one of this version"));
        };
        if command.groups.len() > GROUPS_MAX {
            return Err(WireError::new(ErrorCode::BadRequest, "too many placement groups at once"));
        }
        for group in &command.groups {
            let distinct = (1..group.disks.len()).all(|i| !group.disks[..i].contains(&group.disks[i]));
            let able = group.disks.iter().all(|disk| self.is_able(DiskId(*disk)));
            let full = |disk: &&u32| group.full.contains(disk);
            let serving = group.disks.iter().filter(|disk| !full(disk)).count();
            let enough = group.full.is_empty() || !scheme.is_replicated() && serving >= scheme.write_minimum();
            if group.disks.len() != scheme.members() || !distinct || !able || !enough {
                return Err(WireError::new(ErrorCode::Conflict, "a disk went out of service meanwhile; repeat"));
            }
        }
        let mut made = Vec::with_capacity(command.groups.len());
        for group in &command.groups {
            let id = PgId(self.next.pg);
            self.next.pg += 1;
            let disks: Vec<DiskId> = group.disks.iter().copied().map(DiskId).collect();
            let full: Vec<DiskId> = group.full.iter().copied().map(DiskId).collect();
            self.put_pg(Pg::new(id, volume, scheme, &disks, time).without(&full));
            made.push(id);
        }
        raised.extend(&made);
        Ok(Outcome::Pgs(made))
    }

    pub(super) fn set_pgs_open(&mut self, command: &SetPgsOpen) -> Result<Outcome, WireError> {
        let all = command.open.iter().map(|pg| (pg, true)).chain(command.closed.iter().map(|pg| (pg, false)));
        for (pg, open) in all {
            let id = PgId(*pg);
            let Some(pg) = self.pgs.get_mut(&id).filter(|pg| pg.open != open && !pg.retired) else { continue };
            Arc::make_mut(pg).open = open;
            self.touch(ItemKey::Pg(id));
        }
        Ok(Outcome::Done)
    }

    pub(super) fn member_failed(&mut self, at: &MemberAt, raised: &mut Vec<PgId>) -> Result<Outcome, WireError> {
        self.member(at, raised, |pg, disk| pg.fail(disk))
    }

    pub(super) fn rejoin(&mut self, at: &MemberAt, raised: &mut Vec<PgId>) -> Result<Outcome, WireError> {
        if !self.is_able(DiskId(at.disk)) {
            return Ok(Outcome::Done);
        }
        let able: BTreeSet<DiskId> = match self.pg(PgId(at.pg)) {
            Some(pg) => pg.disks().filter(|disk| self.is_able(*disk)).collect(),
            None => BTreeSet::new(),
        };
        self.member(at, raised, |pg, disk| pg.rejoin(disk, |disk| able.contains(&disk)))
    }

    /// Members of one group that caught up under the same epoch serve from the same new one.
    pub(super) fn caught_up(&mut self, command: &CaughtUp, raised: &mut Vec<PgId>) -> Result<Outcome, WireError> {
        let mut groups: BTreeMap<PgId, Vec<DiskId>> = BTreeMap::new();
        for at in &command.members {
            let current = self.pg(PgId(at.pg)).is_some_and(|pg| pg.epoch == Epoch(at.epoch) && !pg.retired);
            if current && self.is_able(DiskId(at.disk)) {
                groups.entry(PgId(at.pg)).or_default().push(DiskId(at.disk));
            }
        }
        for (id, disks) in groups {
            self.change_pg(id, raised, |pg| pg.caught_up(&disks));
        }
        Ok(Outcome::Done)
    }

    pub(super) fn member(
        &mut self,
        at: &MemberAt,
        raised: &mut Vec<PgId>,
        change: impl FnOnce(&mut Pg, DiskId) -> bool,
    ) -> Result<Outcome, WireError> {
        let id = PgId(at.pg);
        match self.pg(id) {
            None => Err(WireError::new(ErrorCode::UnknownPg, format!("there is no {id}"))),
            // Decided on an older view: the caller looks again.
            Some(pg) if pg.epoch != Epoch(at.epoch) || pg.retired => Ok(Outcome::Done),
            Some(_) => {
                self.change_pg(id, raised, |pg| change(pg, DiskId(at.disk)));
                Ok(Outcome::Done)
            }
        }
    }

    pub(super) fn change_pg(&mut self, id: PgId, raised: &mut Vec<PgId>, change: impl FnOnce(&mut Pg) -> bool) {
        let mut pg = self.pg(id).expect("looked up before").clone();
        if change(&mut pg) {
            self.put_pg(pg);
            raised.push(id);
        }
    }
}
