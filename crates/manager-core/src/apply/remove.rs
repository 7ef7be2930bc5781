//! Disks and nodes that keep nothing are taken out of the cluster for good.
//!
//! Invariants: nothing is removed that a group in use may need: as a member, on the way to be one, or as a former
//! member that may have what others lack. What is removed never comes back under its number, so that it may still have
//! something of a group matters to nobody: it is forgotten as a former member. The items stay, so that who comes back
//! is known.
use super::Outcome;
use crate::change::ItemKey;
use crate::command::Remove;
use crate::items::{Disk, DiskState, Roles};
use crate::maintenance::Target;
use crate::state::State;
use cairn_types::{DiskId, ErrorCode, NodeId, PgId, WallTime};
use cairn_wire::error::WireError;
use std::sync::Arc;

/// Groups named in a refusal.
const NAMED_MAX: usize = 4;

fn refused(text: String) -> WireError {
    WireError::new(ErrorCode::Conflict, text)
}

fn names(ids: impl Iterator<Item = String>) -> String {
    let mut all: Vec<String> = ids.collect();
    let more = all.len().saturating_sub(NAMED_MAX);
    all.truncate(NAMED_MAX);
    if more > 0 { format!("{} and {more} more", all.join(", ")) } else { all.join(", ") }
}

impl State {
    pub(super) fn remove(&mut self, time: WallTime, command: &Remove) -> Result<Outcome, WireError> {
        match command.target.as_ref().and_then(Target::from_command) {
            Some(Target::Disk(disk)) => {
                let known = self.disk(disk).filter(|disk| disk.state != DiskState::Removed);
                known.ok_or_else(|| unknown(&Target::Disk(disk)))?;
                self.needs_disk(disk)?;
                self.remove_disk(time, disk);
            }
            Some(Target::Node(node)) => {
                self.needs_node(node)?;
                let disks: Vec<DiskId> = self.disks_of(node).map(|disk| disk.id).collect();
                disks.iter().try_for_each(|disk| self.needs_disk(*disk))?;
                disks.into_iter().for_each(|disk| self.remove_disk(time, disk));
                self.drains.remove(&Target::Node(node));
                self.hibernations.remove(&Target::Node(node));
                self.gone.insert(node);
                self.touch(ItemKey::Node(node));
            }
            _ => {
                let text = "a disk or a node is removed; a rack is gone when its nodes are";
                return Err(WireError::new(ErrorCode::BadRequest, text));
            }
        }
        Ok(Outcome::Done)
    }

    fn remove_disk(&mut self, time: WallTime, id: DiskId) {
        let formers: Vec<PgId> = self.former_pgs_of(id).map(|pg| pg.id).collect();
        for pg in formers {
            let mut changed = self.pg(pg).expect("it is in the index").clone();
            changed.forget_former(id);
            self.put_pg(changed);
        }
        self.drains.remove(&Target::Disk(id));
        self.grays.remove(&id);
        let disk = Arc::make_mut(self.disks.get_mut(&id).expect("looked up before"));
        if disk.state != DiskState::Removed {
            (disk.state, disk.since, disk.problem) = (DiskState::Removed, time, String::new());
            self.touch(ItemKey::Disk(id));
        }
    }

    /// Why a disk cannot be removed, if so.
    fn needs_disk(&self, id: DiskId) -> Result<(), WireError> {
        let keeps: Vec<PgId> = self.pgs_of(id).filter(|pg| !pg.retired).map(|pg| pg.id).collect();
        if !keeps.is_empty() {
            let how = match self.is_able(id) {
                true if self.is_drained(id) => {
                    "it is being drained; `cairn admin drain ls` shows how far that is".into()
                }
                true => format!("drain it first: `cairn admin drain start disk {id} --wait`"),
                false if self.pgs_of(id).any(|pg| !pg.retired && !pg.is_readable()) => {
                    let waits = |pg: &&crate::pg::Pg| !pg.retired && !pg.is_readable();
                    let waits: Vec<PgId> = self.pgs_of(id).filter(waits).map(|pg| pg.id).collect();
                    format!(
                        "{} of them ({}) cannot be read without it, so repair cannot replace it: bring it back; only if it is destroyed, \
                         `cairn admin pg force GROUP --lost {id}` says what giving it up means",
                        waits.len(),
                        names(waits.iter().map(PgId::to_string))
                    )
                }
                false => {
                    "it is replaced by repair after repair_delay; `cairn admin repair` shows how far that is, and \
                          what it waits for"
                        .into()
                }
            };
            return Err(refused(format!(
                "{id} is a member of {} placement groups ({}): {how}",
                keeps.len(),
                names(keeps.iter().map(PgId::to_string))
            )));
        }
        let former = |pg: &&crate::pg::Pg| !pg.retired && pg.formers.iter().any(|f| f.disk == id && !f.drop);
        let may: Vec<PgId> = self.former_pgs_of(id).filter(former).map(|pg| pg.id).collect();
        if may.is_empty() {
            return Ok(());
        }
        Err(refused(format!(
            "{id} may have what others lack of {} placement groups that are not complete yet ({}): wait until their members \
             have caught up; `cairn admin repair` shows how far that is",
            may.len(),
            names(may.iter().map(PgId::to_string))
        )))
    }

    /// Why a node cannot be removed, apart from its disks, if so.
    fn needs_node(&self, id: NodeId) -> Result<(), WireError> {
        let node = self.node(id).filter(|node| !node.uuid.is_none() && !self.is_removed(node.id));
        let node = node.ok_or_else(|| unknown(&Target::Node(id)))?;
        if node.roles.has(Roles::MANAGER) {
            return Err(refused(format!("{id} is a manager: `cairn admin manager remove {}` first", id.get())));
        }
        let member = |p: &&crate::items::Partition| !p.removed && p.members.contains(&id);
        let serves: Vec<String> = self.partitions().filter(member).map(|p| p.id.to_string()).collect();
        if !serves.is_empty() {
            return Err(refused(format!(
                "{id} is a member of the meta partitions {}: put another meta node in its place first: `cairn admin \
                 partition move all {id}`",
                names(serves.into_iter())
            )));
        }
        let in_service = |disk: &Disk| disk.state == DiskState::InService;
        if let Some(disk) = self.disks_of(id).find(|disk| in_service(disk)).filter(|_| node.up) {
            self.needs_disk(disk.id)?;
        }
        match node.up {
            true => {
                let text = "stop its process first; if it was just stopped, repeat when `cairn admin node ls` shows it as down";
                Err(refused(format!("{id} runs ({}): {text}", node.address)))
            }
            false => Ok(()),
        }
    }
}

fn unknown(target: &Target) -> WireError {
    let text = format!("there is no {target}; `cairn admin disk ls` and `node ls` show what there is");
    WireError::new(ErrorCode::NotFound, text)
}

#[cfg(test)]
mod tests;
