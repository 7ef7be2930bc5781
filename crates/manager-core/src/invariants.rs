//! What must hold of every state, checked by tests after each command and after reading a checkpoint.
use crate::items::{DiskState, NODE_ID_FIRST, Partition};
use crate::pg::Pg;
use crate::state::State;
use cairn_types::{DiskId, Epoch, PartitionId};
use std::collections::BTreeSet;

impl State {
    /// # Panics
    /// When an invariant is broken.
    pub fn check_invariants(&self) {
        if let Err(flaw) = self.find_flaw() {
            panic!("the manager's state is broken: {flaw}");
        }
        let mut derived = self.clone();
        derived.derive();
        let without_empty = |mut state: State| {
            state.disks_of_node.retain(|_, disks| !disks.is_empty());
            state.pgs_of_disk.retain(|_, pgs| !pgs.is_empty());
            state.former_pgs_of_disk.retain(|_, pgs| !pgs.is_empty());
            state
        };
        assert!(without_empty(derived) == without_empty(self.clone()), "an index disagrees with the items");
    }

    /// What is wrong with the items, if anything.
    pub(crate) fn find_flaw(&self) -> Result<(), String> {
        self.check_nodes_and_disks()?;
        for volume in self.volumes() {
            if volume.id.get() >= self.next.volume || volume.version > self.version {
                return Err(format!("{} has an id or version of the future", volume.id));
            }
        }
        if let Some(volume) = self.volumes().find(|v| v.deleted && v.trashed.is_some()) {
            return Err(format!("{} is deleted and in the trash", volume.id));
        }
        let names: Vec<&str> = self.volumes().filter(|v| !v.deleted).map(|v| v.name.as_str()).collect();
        if names.iter().collect::<BTreeSet<_>>().len() != names.len() {
            return Err("two volumes have one name".into());
        }
        for partition in self.partitions() {
            if partition.id.get() >= self.next.partition || partition.version > self.version {
                return Err(format!("{} has an id or version of the future", partition.id));
            }
            if partition.members.is_empty() || partition.inode_first > partition.inode_last {
                return Err(format!("{} has no members or no inodes", partition.id));
            }
            if !partition.begun.iter().all(|node| partition.members.contains(node)) {
                return Err(format!("{} was begun by a node that is no member", partition.id));
            }
            if !partition.target.iter().all(|node| partition.members.contains(node)) {
                return Err(format!("{} shall have a member that it does not let in", partition.id));
            }
            if partition.left.iter().any(|node| partition.members.contains(node)) {
                return Err(format!("{} was left by a node that is a member", partition.id));
            }
        }
        if let Some((one, other)) = self.shared_inodes() {
            return Err(format!("{one} and {other} have the same inodes of one volume"));
        }
        self.pgs().try_for_each(|pg| self.check_pg(pg))?;
        self.check_stripe_groups()
    }

    /// Two partitions that own the same inodes, if there are such.
    pub(crate) fn shared_inodes(&self) -> Option<(PartitionId, PartitionId)> {
        let mut ranges: Vec<&Partition> = self.partitions().filter(|p| !p.removed).collect();
        ranges.sort_by_key(|p| (p.volume, p.inode_first));
        let meet = |pair: &&[&Partition]| pair[0].volume == pair[1].volume && pair[1].inode_first <= pair[0].inode_last;
        ranges.windows(2).find(meet).map(|pair| (pair[0].id, pair[1].id))
    }

    fn check_nodes_and_disks(&self) -> Result<(), String> {
        let mut incarnations = BTreeSet::new();
        let mut uuids = BTreeSet::new();
        for node in self.nodes() {
            let manager = node.id.get() < NODE_ID_FIRST;
            if node.id.get() == 0 || node.id.get() >= self.next.node || node.version > self.version {
                return Err(format!("{} has an id or version of the future", node.id));
            }
            if node.uuid.is_none() {
                if !manager {
                    return Err(format!("{} has no uuid", node.id));
                }
                continue;
            }
            if !uuids.insert(node.uuid) {
                return Err(format!("{} has a uuid that another has", node.id));
            }
            if node.incarnation.get() >= self.next.incarnation || !incarnations.insert(node.incarnation) {
                return Err(format!("{} has an incarnation that another has or that was not given yet", node.id));
            }
        }
        for disk in self.disks() {
            if disk.id.get() == 0 || disk.id.get() >= self.next.disk || disk.version > self.version {
                return Err(format!("{} has an id or version of the future", disk.id));
            }
            if self.node(disk.node).is_none() || !uuids.insert(disk.uuid) {
                return Err(format!("{} has no node or a uuid that another has", disk.id));
            }
        }
        Ok(())
    }

    fn check_pg(&self, pg: &Pg) -> Result<(), String> {
        let id = pg.id;
        if id.get() >= self.next.pg || pg.version > self.version {
            return Err(format!("{id} has an id or version of the future"));
        }
        if pg.epoch < pg.creation_epoch || pg.creation_epoch < Epoch(1) {
            return Err(format!("{id} has an epoch before its creation"));
        }
        if pg.members.len() != pg.scheme.members() || pg.members.iter().any(|m| self.disk(m.disk).is_none()) {
            return Err(format!("{id} has unknown or too few members"));
        }
        if pg.members.iter().map(|m| m.disk).collect::<BTreeSet<_>>().len() != pg.members.len() {
            return Err(format!("{id} has two members on one disk"));
        }
        let removed = |disk: DiskId| self.disk(disk).is_some_and(|disk| disk.state == DiskState::Removed);
        if !pg.retired && pg.disks().chain(pg.formers.iter().map(|f| f.disk)).any(removed) {
            return Err(format!("{id} needs a disk that was removed"));
        }
        let joining = pg.joining.map(|j| j.disk);
        if pg.formers.iter().map(|f| f.disk).chain(joining).any(|disk| self.disk(disk).is_none()) {
            return Err(format!("{id} has unknown former members, or an unknown disk joins it"));
        }
        if let Some(flaw) = pg.flaw().or_else(|| pg.formers_flaw()) {
            return Err(format!("{id}: {flaw}"));
        }
        if pg.open && pg.retired {
            return Err(format!("{id} is open although its volume is deleted"));
        }
        Ok(())
    }
}
