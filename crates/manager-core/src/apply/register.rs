//! Registration: a node starts, gets its id, a new incarnation, and its disks are entered.
//!
//! Every registration is a new incarnation and raises the epochs of the groups concerned: what an older start of the
//! same process may still do is fenced. A node or disk that claims an id which its uuid does not have belongs to
//! another cluster and is refused: accepting it would mix two clusters' data.
use super::{Outcome, Registered};
use crate::change::ItemKey;
use crate::command::{DiskGenerations, Register, RegisterDisk};
use crate::generation::{Standing, standing};
use crate::items::{DISKS_MAX, Disk, DiskState, NODE_ID_FIRST, Node, Roles, clip};
use crate::rebuild::is_unseen;
use crate::state::State;
use cairn_types::generation::{Generation, Lineage};
use cairn_types::{DiskId, DiskUuid, ErrorCode, Incarnation, NodeId, PgId, WallTime};
use cairn_wire::error::WireError;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

impl State {
    pub(super) fn register(
        &mut self,
        time: WallTime,
        command: &Register,
        raised: &mut Vec<PgId>,
    ) -> Result<Outcome, WireError> {
        let uuid = uuid_of(&command.uuid).ok_or_else(|| bad("a node's uuid has 16 bytes, not all zero"))?;
        if let Some(flaw) = register_disks_flaw(self, &command.disks) {
            return Err(flaw);
        }
        let id = self.identify_node(uuid, command)?;
        if self.is_removed(id) {
            let text = format!(
                "{id} was removed from this cluster; to use this machine again, delete everything in its node directory and on \
                 its disks: it gets a new number then"
            );
            return Err(WireError::new(ErrorCode::WrongCluster, text));
        }
        self.next.incarnation = self.next.incarnation.max(self.floor_at(time));
        let incarnation = Incarnation(self.next.incarnation);
        self.next.incarnation += 1;
        self.enter_node(time, id, uuid, incarnation, command);

        let mut registered = Registered { node: id, incarnation, ..Registered::default() };
        let (mut good, mut older) = (BTreeSet::new(), Vec::new());
        let mut fallen = Vec::new();
        for disk in &command.disks {
            match self.enter_disk(time, id, disk) {
                Ok((disk_id, state, left)) => {
                    registered.disks.push(disk_id);
                    if state == DiskState::InService {
                        good.insert(disk_id);
                        if self.take_generation(disk_id, disk) == Standing::Older {
                            older.push(disk_id);
                        }
                    } else if left {
                        fallen.push(disk_id);
                    }
                }
                Err(problem) => {
                    registered.disks.push(DiskId(0));
                    registered.problems.push(problem);
                }
            }
        }
        let absent: Vec<DiskId> = self.disks_of(id).map(|d| d.id).filter(|d| !registered.disks.contains(d)).collect();
        for disk in absent {
            if self.set_disk_state(time, disk, DiskState::Absent, "its node started without it") {
                fallen.push(disk);
            }
        }
        self.take_down(&fallen, raised);
        self.restart_members(&good, &older, &command.silent, raised);
        registered.older = older;
        Ok(Outcome::Registered(registered))
    }

    /// The id of the node with this uuid; a new one if it is new.
    fn identify_node(&mut self, uuid: DiskUuid, command: &Register) -> Result<NodeId, WireError> {
        let claimed = NodeId(command.node);
        match self.node_by_uuid(uuid) {
            Some(node) if claimed.get() == 0 || claimed == node.id => Ok(node.id),
            Some(node) => Err(foreign(format!(
                "the node with uuid {uuid} is {} in this cluster, but its label says {claimed}",
                node.id
            ))),
            None if claimed.get() == 0 => {
                let id = NodeId(self.next.node);
                self.next.node += 1;
                Ok(id)
            }
            // A member of the manager's group has its number from its configuration; its first registration tells its
            // uuid.
            None if claimed.get() < NODE_ID_FIRST
                && self.node(claimed).is_some_and(|n| n.uuid.is_none() && n.roles.has(Roles::MANAGER)) =>
            {
                Ok(claimed)
            }
            // The state was rebuilt without this node's directory: it tells the uuid now.
            None if self.node(claimed).is_some_and(|n| is_unseen(n.uuid)) => {
                if let Some(known) = self.node(claimed) {
                    let unseen = known.uuid;
                    self.node_by_uuid.remove(&unseen);
                }
                Ok(claimed)
            }
            // It was let in by what this state has forgotten.
            None if self.forgot_node(claimed) => Ok(claimed),
            // It waits to be added, or the group's first entries are still on their way.
            None if claimed.get() < NODE_ID_FIRST
                && self.node(claimed).is_none_or(|n| !n.roles.has(Roles::MANAGER)) =>
            {
                let text = format!(
                    "{claimed} is not one of the managers yet; `cairn admin manager add {}@HOST:PORT` makes it one",
                    claimed.get()
                );
                Err(WireError::new(ErrorCode::Conflict, text))
            }
            None => Err(foreign(format!("this cluster has no {claimed} with uuid {uuid}"))),
        }
    }

    fn enter_node(&mut self, time: WallTime, id: NodeId, uuid: DiskUuid, incarnation: Incarnation, command: &Register) {
        let old = self.node(id);
        let node = Node {
            id,
            uuid,
            // Whether it is a manager is decided by the group's membership, not by the node.
            roles: Roles(command.roles & !Roles::MANAGER.0 | old.map_or(0, |old| old.roles.0 & Roles::MANAGER.0)),
            address: clip(&command.address),
            http_address: clip(&command.http_address),
            rack: clip(&command.rack),
            host: clip(&command.host),
            software: clip(&command.software),
            incarnation,
            up: true,
            since: old.filter(|old| old.up).map_or(time, |old| old.since),
            holder: old.map(|old| old.holder.clone()).unwrap_or_default(),
            version: old.map_or(0, |old| old.version),
        };
        self.nodes.insert(id, Arc::new(node));
        self.node_by_uuid.insert(uuid, id);
        self.touch(ItemKey::Node(id));
    }

    /// The disk's id, its state, and whether it left service by this; or why it is refused.
    fn enter_disk(
        &mut self,
        time: WallTime,
        node: NodeId,
        report: &RegisterDisk,
    ) -> Result<(DiskId, DiskState, bool), String> {
        let uuid = uuid_of(&report.uuid).expect("checked before");
        self.meet_unseen_disk(DiskId(report.disk), uuid);
        let state = DiskState::of_node(report.state).unwrap_or(DiskState::Failed);
        let old = self.disk_by_uuid(uuid).cloned();
        if let Some(old) = &old
            && old.node != node
            && old.state == DiskState::InService
            && self.node(old.node).is_some_and(|n| n.up)
        {
            let holder = self.node(old.node).map_or("", |n| n.address.as_str());
            return Err(format!(
                "disk {} ({}) is in service at {} ({holder}); stop that node before moving the disk, \
                 or format this one anew if it is a copy",
                old.id, report.path, old.node
            ));
        }
        if let Some(old) = old.as_ref().filter(|old| old.state == DiskState::Removed) {
            return Err(format!(
                "disk {} ({}) was removed from this cluster, what it has is used no more; to use it again, delete everything in \
                 its directory: it gets a new number then",
                old.id, report.path
            ));
        }
        let id = match &old {
            Some(old) => old.id,
            None if self.forgot_disk(DiskId(report.disk)) => DiskId(report.disk),
            None => {
                let id = DiskId(self.next.disk);
                self.next.disk += 1;
                id
            }
        };
        let disk = Disk {
            id,
            uuid,
            node,
            path: clip(&report.path),
            total_bytes: report.total_bytes,
            free_bytes: report.free_bytes,
            state,
            since: old.as_ref().map_or(WallTime(0), |old| if old.state == state { old.since } else { time }),
            problem: clip(&report.problem),
            generation: old.as_ref().and_then(|old| old.generation),
            is_ahead: old.as_ref().is_some_and(|old| old.is_ahead),
            version: old.as_ref().map_or(0, |old| old.version),
        };
        let left = old.as_ref().is_some_and(|old| old.state == DiskState::InService) && state != DiskState::InService;
        if let Some(old) = old.filter(|old| old.node != node) {
            self.disks_of_node.entry(old.node).or_default().remove(&id);
            // Where the member is changed, whatever becomes of its state.
            let pgs: Vec<PgId> = self.pgs_of(id).chain(self.former_pgs_of(id)).map(|pg| pg.id).collect();
            pgs.into_iter().for_each(|pg| self.touch(ItemKey::Pg(pg)));
        }
        self.disks.insert(id, Arc::new(disk));
        self.disk_by_uuid.insert(uuid, id);
        self.disks_of_node.entry(node).or_default().insert(id);
        self.touch(ItemKey::Disk(id));
        Ok((id, state, left))
    }

    /// What its generations say of a disk that is in service; the one that it tells is known from now on.
    fn take_generation(&mut self, id: DiskId, report: &RegisterDisk) -> Standing {
        let restored = self.restored.is_some();
        // Of a build of before it nothing is known.
        let Some(disk) = self.disks.get_mut(&id).filter(|_| report.tells_generations) else { return Standing::New };
        let runs: Vec<Generation> = report.generations.iter().map(|run| Generation::from(*run)).collect();
        let came = Lineage { runs, confirmed: report.generation_confirmed };
        let standing = standing(disk.generation, &came);
        let disk = Arc::make_mut(disk);
        disk.generation = came.present().or(disk.generation);
        // A restored state has taken up what was forgotten.
        disk.is_ahead = standing == Standing::ManagerIsOlder && !restored;
        standing
    }

    /// Generations that rose since a registration. What is not newer, or of another start, changes nothing.
    pub(super) fn disk_generations(&mut self, command: &DiskGenerations) -> Result<Outcome, WireError> {
        for at in &command.disks {
            let (id, Some(came)) = (DiskId(at.disk), at.generation.map(Generation::from)) else { continue };
            let Some(node) = self.disk(id).and_then(|disk| self.node(disk.node)) else { continue };
            let current = node.incarnation == Incarnation(at.incarnation);
            let Some(disk) = self.disks.get_mut(&id).filter(|disk| current && disk.state == DiskState::InService)
            else {
                continue;
            };
            if disk.generation.is_none_or(|known| known.nonce == came.nonce && known.number < came.number) {
                // No part of the map: nobody is told.
                Arc::make_mut(disk).generation = Some(came);
            }
        }
        Ok(Outcome::Done)
    }

    /// A disk that was not found when the state was rebuilt tells its uuid.
    fn meet_unseen_disk(&mut self, id: DiskId, uuid: DiskUuid) {
        if self.disk_by_uuid(uuid).is_some() {
            return;
        }
        let Some(disk) = self.disks.get_mut(&id).filter(|disk| is_unseen(disk.uuid)) else { return };
        self.disk_by_uuid.remove(&disk.uuid);
        Arc::make_mut(disk).uuid = uuid;
        self.disk_by_uuid.insert(uuid, id);
    }

    fn restart_members(&mut self, disks: &BTreeSet<DiskId>, older: &[DiskId], silent: &[u32], raised: &mut Vec<PgId>) {
        let mut groups: BTreeMap<PgId, Vec<DiskId>> = BTreeMap::new();
        for id in older.iter().flat_map(|disk| self.former_pgs_of(*disk).map(|pg| pg.id).collect::<Vec<_>>()) {
            // Who was replaced while it was waited for: it misses something after all.
            groups.entry(id).or_default();
        }
        for disk in disks {
            for pg in self.pgs_of(*disk).filter(|pg| !pg.retired) {
                groups.entry(pg.id).or_default().push(*disk);
            }
        }
        for (id, disks) in groups {
            let mut pg = self.pg(id).expect("it is in the index").clone();
            let node_of = |disk: DiskId| self.disk(disk).map_or(NodeId(0), |d| d.node);
            let heard = |disk: DiskId| self.is_able(disk) && !silent.contains(&node_of(disk).get());
            let rose = pg.register(&disks, older, heard, |disk| self.is_able(disk));
            // What is known of a former member may change without a new epoch.
            if self.pg(id) != Some(&pg) {
                self.put_pg(pg);
            }
            raised.extend(rose.then_some(id));
        }
    }
}

/// Why the disks of a registration are refused as a whole, if they are.
pub(crate) fn register_disks_flaw(state: &State, disks: &[RegisterDisk]) -> Option<WireError> {
    if disks.len() > DISKS_MAX {
        return Some(bad(format!("a node has at most {DISKS_MAX} disks")));
    }
    let mut seen = BTreeSet::new();
    for disk in disks {
        let Some(uuid) = uuid_of(&disk.uuid) else {
            return Some(bad(format!("disk {}: a disk's uuid has 16 bytes, not all zero", clip(&disk.path))));
        };
        if !seen.insert(uuid) {
            return Some(bad(format!("disk {}: its uuid {uuid} was given twice; one is a copy", clip(&disk.path))));
        }
        let (known, claimed) = (state.disk_by_uuid(uuid), DiskId(disk.disk));
        let path = clip(&disk.path);
        match known {
            _ if claimed.get() == 0 => {}
            Some(known) if known.id == claimed => {}
            Some(known) => {
                return Some(foreign(format!(
                    "disk {path} is {} in this cluster, but its label says {claimed}",
                    known.id
                )));
            }
            None if state.forgot_disk(claimed) || state.disk(claimed).is_some_and(|disk| is_unseen(disk.uuid)) => {}
            None => return Some(foreign(format!("disk {path}: this cluster has no {claimed} with uuid {uuid}"))),
        }
    }
    None
}

fn uuid_of(bytes: &[u8]) -> Option<DiskUuid> {
    DiskUuid::from_slice(bytes).filter(|uuid| !uuid.is_none())
}

fn bad(text: impl Into<String>) -> WireError {
    WireError::new(ErrorCode::BadRequest, text)
}

fn foreign(text: String) -> WireError {
    let text = format!("{text}; its directory belongs to another cluster (or its manager's state was lost)");
    WireError::new(ErrorCode::WrongCluster, text)
}
