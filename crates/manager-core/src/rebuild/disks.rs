//! Disks of the new state: those that were found, those that the backup knows, those that groups name.
//!
//! Invariant: what the backup knows to be removed stays removed, and what it still has does not count.
use super::{Builder, Weight, unseen, unseen_disk};
use crate::items::{Disk, DiskState, Roles, clip};
use crate::state::State;
use cairn_types::{DiskId, DiskUuid, NodeId};
use std::collections::BTreeMap;
use std::sync::Arc;

impl Builder<'_> {
    /// Whether the backup says that it was taken out of the cluster.
    pub(super) fn was_removed(&self, id: DiskId, uuid: DiskUuid) -> bool {
        let known = self.base.as_ref().and_then(|base| base.disk(id));
        known.is_some_and(|disk| disk.state == DiskState::Removed && disk.uuid == uuid)
    }

    pub(super) fn put_disk(&mut self, id: DiskId, uuid: DiskUuid, node: NodeId, path: &str, state: DiskState) {
        let node_uuid = self.base.as_ref().and_then(|base| base.node(node)).map_or(unseen(node.get()), |n| n.uuid);
        self.put_node(node, node_uuid, Roles::DATA);
        let based = self.base.as_ref().and_then(|base| base.disk(id));
        let disk = Disk {
            id,
            uuid,
            node,
            path: clip(path),
            total_bytes: based.map_or(0, |disk| disk.total_bytes),
            free_bytes: based.map_or(0, |disk| disk.free_bytes),
            state,
            since: self.wanted.now,
            problem: String::new(),
            // Its first registration tells it.
            generation: None,
            is_ahead: false,
            version: self.state.version,
        };
        self.state.disks.insert(id, Arc::new(disk));
    }

    pub(super) fn disks(&mut self) {
        let mut seen: BTreeMap<DiskId, (DiskUuid, &str)> = BTreeMap::new();
        for disk in &self.found.disks {
            if disk.id.get() == 0 {
                self.say(Weight::Note, format!("disk {} was never registered and is left out", disk.path));
                continue;
            }
            if let Some((uuid, path)) = seen.insert(disk.id, (disk.uuid, &disk.path)) {
                let what = if uuid == disk.uuid { "copies of disk" } else { "both disk" };
                let text = format!("{} and {path} are {what} {}; name the right one", disk.path, disk.id);
                self.say(Weight::Conflict, text);
            }
            let mut state = DiskState::InService;
            if self.was_removed(disk.id, disk.uuid) {
                let text = format!(
                    "disk {} ({}) was removed from the cluster and stays so, whatever it still has: take it away, or empty its \
                     directory and start its node to have it as a new disk",
                    disk.id, disk.path
                );
                self.say(Weight::Note, text);
                state = DiskState::Removed;
            }
            self.put_disk(disk.id, disk.uuid, disk.node, &disk.path, state);
        }
        let based: Vec<Disk> = self.base.iter().flat_map(State::disks).cloned().collect();
        for disk in based {
            if !self.state.disks.contains_key(&disk.id) && !self.found.disks.iter().any(|found| found.uuid == disk.uuid)
            {
                let removed = self.was_removed(disk.id, disk.uuid);
                let state = if removed { DiskState::Removed } else { DiskState::Absent };
                self.put_disk(disk.id, disk.uuid, disk.node, &disk.path, state);
            }
        }
    }

    /// A disk that groups name and that was not found.
    pub(super) fn missing_disk(&mut self, id: DiskId, node: NodeId) {
        if self.found.disks.iter().any(|disk| disk.id == id) {
            return;
        }
        let based = self.base.as_ref().and_then(|base| base.disk(id)).cloned();
        let uuid = based.as_ref().map_or(unseen_disk(id), |disk| disk.uuid);
        let node = based.as_ref().map_or(node, |disk| disk.node);
        self.put_disk(id, uuid, node, based.as_ref().map_or("", |disk| &disk.path), DiskState::Absent);
        let text = format!(
            "disk {id} of {node} was not found, but groups name it: what it knows cannot be taken into account"
        );
        self.say(Weight::Missing, text);
    }
}
