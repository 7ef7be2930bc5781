//! Members of the manager's group, nodes going down, disks changing their state.
use super::Outcome;
use crate::change::ItemKey;
use crate::command::{BindNode, DiskStates, NodesDown, PutManager};
use crate::items::{DiskState, NODE_ID_FIRST, Node, Roles, clip};
use crate::state::State;
use cairn_types::{DiskId, DiskUuid, ErrorCode, Incarnation, NodeId, PgId, WallTime};
use cairn_wire::error::WireError;
use std::collections::BTreeMap;
use std::sync::Arc;

impl State {
    /// Why a node that is none cannot become a manager, if so. One that was removed cannot register, and would never
    /// get its vote.
    pub fn manager_flaw(&self, id: NodeId) -> Option<String> {
        if id.get() == 0 || id.get() >= NODE_ID_FIRST {
            return Some(format!("managers have numbers 1 to {}, not {}", NODE_ID_FIRST - 1, id.get()));
        }
        self.is_removed(id).then(|| {
            format!("{id} was removed from this cluster for good (`cairn admin node remove`): give the manager another number")
        })
    }

    /// Another node, that is in the cluster, with the key of this name.
    pub fn other_holder(&self, node: NodeId, holder: &str) -> Option<NodeId> {
        let has = |other: &&Node| other.id != node && other.holder == holder && !self.is_removed(other.id);
        self.nodes().find(has).map(|other| other.id)
    }

    /// A node that serves at an address with another key than this one.
    pub fn other_at(&self, node: Option<NodeId>, address: &str, holder: &str) -> Option<NodeId> {
        let is_another = |other: &&Node| {
            let is_there = other.up && other.address == address && !self.is_removed(other.id);
            is_there && Some(other.id) != node && !other.holder.is_empty() && other.holder != holder
        };
        self.nodes().find(is_another).map(|other| other.id)
    }

    /// Binds a node to a key that no other node has, unless another one was faster. Managers are bound by their keys,
    /// and by nothing here.
    pub(super) fn bind_node(&mut self, command: &BindNode) -> Result<Outcome, WireError> {
        let id = NodeId(command.node);
        let free = self.node(id).filter(|node| id.get() >= NODE_ID_FIRST && node.holder == command.former).cloned();
        let may = !command.holder.is_empty() && self.other_holder(id, &command.holder).is_none();
        if let Some(node) = free.filter(|_| may) {
            self.nodes.insert(id, Arc::new(Node { holder: clip(&command.holder), ..node }));
            self.touch(ItemKey::Node(id));
        }
        Ok(Outcome::Done)
    }

    /// Enters a member before its own registration, or takes its manager role away. What a registration told is kept.
    pub(super) fn put_manager(&mut self, time: WallTime, command: &PutManager) -> Result<Outcome, WireError> {
        let id = NodeId(command.node);
        if id.get() == 0 || id.get() >= NODE_ID_FIRST {
            let text = format!("{id} cannot be a manager: members have numbers 1 to {}", NODE_ID_FIRST - 1);
            return Err(WireError::new(ErrorCode::BadRequest, text));
        }
        let fresh = || Node {
            id,
            uuid: DiskUuid::NONE,
            roles: Roles::default(),
            address: String::new(),
            http_address: clip(&command.http_address),
            rack: clip(&command.rack),
            host: clip(&command.host),
            software: clip(&command.software),
            incarnation: Incarnation(0),
            up: true,
            since: time,
            holder: String::new(),
            version: 0,
        };
        let old = self.node(id);
        let mut node = old.cloned().unwrap_or_else(fresh);
        let mut freed = None;
        if command.removed {
            node.roles = Roles(node.roles.0 & !Roles::MANAGER.0);
        } else {
            if !node.roles.has(Roles::MANAGER) && !node.uuid.is_none() {
                // Added anew: it may come with an empty directory, so its next registration tells its uuid.
                freed = Some(std::mem::replace(&mut node.uuid, DiskUuid::NONE));
                node.incarnation = Incarnation(0);
            }
            node.roles = Roles(node.roles.0 | Roles::MANAGER.0);
            if node.uuid.is_none() {
                node.address = clip(&command.address);
            }
        }
        if old != Some(&node) {
            self.nodes.insert(id, Arc::new(node));
            self.touch(ItemKey::Node(id));
        }
        freed.map(|uuid| self.node_by_uuid.remove(&uuid));
        Ok(Outcome::Done)
    }

    /// All of them fell together; see the table of member states.
    pub(super) fn nodes_down(
        &mut self,
        time: WallTime,
        command: &NodesDown,
        raised: &mut Vec<PgId>,
    ) -> Result<Outcome, WireError> {
        let mut fallen = Vec::new();
        for at in &command.nodes {
            let id = NodeId(at.node);
            let Some(node) = self.nodes.get_mut(&id) else { continue };
            // Registered again in the meantime, or down already.
            if node.incarnation != Incarnation(at.incarnation) || !node.up {
                continue;
            }
            let node = Arc::make_mut(node);
            node.up = false;
            node.since = time;
            self.touch(ItemKey::Node(id));
            fallen.extend(self.disks_of(id).map(|d| d.id));
        }
        self.take_down(&fallen, raised);
        Ok(Outcome::Done)
    }

    pub(super) fn disk_states(
        &mut self,
        time: WallTime,
        command: &DiskStates,
        raised: &mut Vec<PgId>,
    ) -> Result<Outcome, WireError> {
        let mut fallen = Vec::new();
        for at in &command.disks {
            let id = DiskId(at.disk);
            let Some(state) = DiskState::of_node(at.state) else { continue };
            let Some(node) = self.disk(id).and_then(|d| self.node(d.node)) else { continue };
            // A disk comes back into service only by a registration, which fences what it may have missed.
            if node.incarnation != Incarnation(at.incarnation) || state == DiskState::InService {
                continue;
            }
            if self.set_disk_state(time, id, state, &at.problem) {
                fallen.push(id);
            }
        }
        self.take_down(&fallen, raised);
        Ok(Outcome::Done)
    }

    /// True if the disk leaves service by this.
    pub(super) fn set_disk_state(&mut self, time: WallTime, id: DiskId, state: DiskState, problem: &str) -> bool {
        let Some(disk) = self.disks.get_mut(&id) else { return false };
        let problem = clip(problem);
        if disk.state == state && disk.problem == problem || disk.state == DiskState::Removed {
            return false;
        }
        let left = disk.state == DiskState::InService && state != DiskState::InService;
        let disk = Arc::make_mut(disk);
        if disk.state != state {
            disk.since = time;
        }
        (disk.state, disk.problem) = (state, problem);
        self.touch(ItemKey::Disk(id));
        left
    }

    /// Takes these disks out of their groups, all at once.
    pub(super) fn take_down(&mut self, disks: &[DiskId], raised: &mut Vec<PgId>) {
        let mut fallen: BTreeMap<PgId, Vec<DiskId>> = BTreeMap::new();
        for disk in disks {
            for pg in self.pgs_of(*disk).filter(|pg| !pg.retired) {
                fallen.entry(pg.id).or_default().push(*disk);
            }
        }
        for (id, disks) in fallen {
            let pg = Arc::make_mut(self.pgs.get_mut(&id).expect("it is in the index"));
            if pg.take_down(&disks) {
                self.touch(ItemKey::Pg(id));
                raised.push(id);
            }
        }
    }
}
