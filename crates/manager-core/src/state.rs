//! [`State`]: all that the manager's group replicates.
//!
//! Invariants: ids, incarnations and session ids come from counters that only rise. Every change of an item that the
//! cluster map shows raises the map version and is entered under it in the index of changes. Derived indexes agree
//! with the items ([`State::check_invariants`](crate::invariants)).
//!
//! Items are shared by reference count: a clone for a checkpoint costs a pointer an item.
use crate::change::ItemKey;
use crate::config::{Config, Key};
use crate::items::{Cluster, Disk, NODE_ID_FIRST, Node, Partition, Volume};
use crate::job::Job;
use crate::maintenance::{Drain, Hibernation, Target};
use crate::pg::Pg;
use crate::stripe::StripeGroup;
use cairn_types::{DiskId, DiskUuid, NodeId, PartitionId, PgId, StripeGroupId, VolumeId, WallTime};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// The next number of each kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counters {
    pub node: u32,
    pub disk: u32,
    pub volume: u32,
    pub partition: u32,
    pub pg: u32,
    pub incarnation: u64,
    pub session: u64,
    pub job: u64,
    /// Events so far.
    pub event: u64,
    pub stripe_group: u32,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            node: NODE_ID_FIRST,
            disk: 1,
            volume: 1,
            partition: 1,
            pg: 1,
            incarnation: 1,
            session: 1,
            job: 1,
            event: 0,
            stripe_group: 1,
        }
    }
}

/// Deleted volumes, partitions and groups that deltas still tell; beyond it the oldest are forgotten and whoever asks
/// from before that gets the full map.
pub const TOMBSTONES_MAX: usize = 16_384;

/// The replicated state. Changed by [`State::apply`](crate::apply) only.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct State {
    pub(crate) cluster: Option<Cluster>,
    /// Of the cluster map.
    pub(crate) version: u64,
    /// Deltas from before this version are not complete.
    pub(crate) delta_floor: u64,
    pub(crate) next: Counters,
    /// Feature level that all members understand: commands of higher ones are not proposed.
    pub(crate) level: u32,
    pub(crate) config: Config,
    pub(crate) nodes: BTreeMap<NodeId, Arc<Node>>,
    pub(crate) disks: BTreeMap<DiskId, Arc<Disk>>,
    pub(crate) volumes: BTreeMap<VolumeId, Arc<Volume>>,
    /// Until when volumes in the trash are kept at least: what was promised when they were put there. Means nothing for
    /// others.
    pub(crate) trash_promises: BTreeMap<VolumeId, WallTime>,
    pub(crate) partitions: BTreeMap<PartitionId, Arc<Partition>>,
    pub(crate) pgs: BTreeMap<PgId, Arc<Pg>>,
    /// Told with their columns, and never changed while these are filled.
    pub(crate) stripe_groups: BTreeMap<StripeGroupId, Arc<StripeGroup>>,
    /// Not part of the cluster map.
    pub(crate) jobs: BTreeMap<u64, Arc<Job>>,
    /// What is being emptied. Not part of the cluster map.
    pub(crate) drains: BTreeMap<Target, Drain>,
    /// What is away for a time.
    pub(crate) hibernations: BTreeMap<Target, Hibernation>,
    /// Disks that are about to fail.
    pub(crate) grays: BTreeMap<DiskId, crate::gray::Gray>,
    /// What happened, the oldest first.
    pub(crate) events: VecDeque<Arc<cairn_wire::manager::Event>>,
    /// How far members of partitions got. Not part of the cluster map.
    pub(crate) marks: crate::marks::Marks,
    /// The state is older than what it once gave.
    pub(crate) restored: Option<crate::restored::Restored>,
    /// Nodes that are no part of the cluster any more.
    pub(crate) gone: BTreeSet<NodeId>,
    /// Names whose keys count no more, and since when. Not part of the cluster map.
    pub(crate) revoked: BTreeMap<String, WallTime>,
    // Derived from the items.
    pub(crate) node_by_uuid: BTreeMap<DiskUuid, NodeId>,
    pub(crate) disk_by_uuid: BTreeMap<DiskUuid, DiskId>,
    pub(crate) disks_of_node: BTreeMap<NodeId, BTreeSet<DiskId>>,
    /// With those that a disk joins.
    pub(crate) pgs_of_disk: BTreeMap<DiskId, BTreeSet<PgId>>,
    /// Groups that a disk was a member of and may still have something of.
    pub(crate) former_pgs_of_disk: BTreeMap<DiskId, BTreeSet<PgId>>,
    /// By the version of their last change.
    pub(crate) changes: BTreeSet<(u64, ItemKey)>,
    /// Deleted volumes, removed partitions and retired groups, by version.
    pub(crate) tombstones: BTreeSet<(u64, ItemKey)>,
}

impl State {
    pub fn new() -> Self {
        Self::default()
    }
    pub fn cluster(&self) -> Option<&Cluster> {
        self.cluster.as_ref()
    }
    /// Version of the cluster map.
    pub fn version(&self) -> u64 {
        self.version
    }
    /// The activated feature level.
    pub fn level(&self) -> u32 {
        self.level
    }
    pub fn config(&self) -> &Config {
        &self.config
    }
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(&id).map(Arc::as_ref)
    }
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values().map(Arc::as_ref)
    }
    pub fn node_by_uuid(&self, uuid: DiskUuid) -> Option<&Node> {
        self.node_by_uuid.get(&uuid).and_then(|id| self.node(*id))
    }
    pub fn disk(&self, id: DiskId) -> Option<&Disk> {
        self.disks.get(&id).map(Arc::as_ref)
    }
    pub fn disks(&self) -> impl Iterator<Item = &Disk> {
        self.disks.values().map(Arc::as_ref)
    }
    pub fn disk_by_uuid(&self, uuid: DiskUuid) -> Option<&Disk> {
        self.disk_by_uuid.get(&uuid).and_then(|id| self.disk(*id))
    }
    pub fn disks_of(&self, node: NodeId) -> impl Iterator<Item = &Disk> {
        self.disks_of_node.get(&node).into_iter().flatten().filter_map(|id| self.disk(*id))
    }
    pub fn volume(&self, id: VolumeId) -> Option<&Volume> {
        self.volumes.get(&id).map(Arc::as_ref)
    }
    /// Until when a volume in the trash is kept: as long as the setting says, and never less than was promised.
    pub fn trashed_until(&self, volume: &Volume) -> Option<WallTime> {
        let since = volume.trashed?;
        let expiry = self.config.duration(Key::TrashExpiry).as_nanos() as u64;
        let promised = self.trash_promises.get(&volume.id).copied().unwrap_or_default();
        Some(promised.max(WallTime(since.0.saturating_add(expiry))))
    }
    pub fn volumes(&self) -> impl Iterator<Item = &Volume> {
        self.volumes.values().map(Arc::as_ref)
    }
    /// Whether a volume was ever made.
    pub fn had_volumes(&self) -> bool {
        self.next.volume > 1
    }

    /// Every session that was given has a smaller id.
    pub fn next_session(&self) -> u64 {
        self.next.session
    }
    /// The volume of this name that is not deleted.
    pub fn volume_by_name(&self, name: &str) -> Option<&Volume> {
        self.volumes().find(|v| !v.deleted && v.name == name)
    }
    pub fn partition(&self, id: PartitionId) -> Option<&Partition> {
        self.partitions.get(&id).map(Arc::as_ref)
    }
    pub fn partitions(&self) -> impl Iterator<Item = &Partition> {
        self.partitions.values().map(Arc::as_ref)
    }
    pub fn pg(&self, id: PgId) -> Option<&Pg> {
        self.pgs.get(&id).map(Arc::as_ref)
    }
    pub fn pgs(&self) -> impl Iterator<Item = &Pg> {
        self.pgs.values().map(Arc::as_ref)
    }
    pub fn pgs_of(&self, disk: DiskId) -> impl Iterator<Item = &Pg> {
        self.pgs_of_disk.get(&disk).into_iter().flatten().filter_map(|id| self.pg(*id))
    }
    /// Groups that the disk was a member of and has not deleted yet.
    pub fn former_pgs_of(&self, disk: DiskId) -> impl Iterator<Item = &Pg> {
        self.former_pgs_of_disk.get(&disk).into_iter().flatten().filter_map(|id| self.pg(*id))
    }
    /// Puts a changed group in the place of what it was.
    pub(crate) fn put_pg(&mut self, pg: Pg) {
        let id = pg.id;
        let old = self.pgs.insert(id, Arc::new(pg));
        let new = self.pgs[&id].clone();
        if let Some(old) = old {
            old.disks().for_each(|disk| unindex(&mut self.pgs_of_disk, disk, id));
            old.formers.iter().for_each(|f| unindex(&mut self.former_pgs_of_disk, f.disk, id));
        }
        for disk in new.disks() {
            self.pgs_of_disk.entry(disk).or_default().insert(id);
        }
        for former in &new.formers {
            self.former_pgs_of_disk.entry(former.disk).or_default().insert(id);
        }
        self.touch(ItemKey::Pg(id));
    }
    /// Nodes of a group's members and of the disk that joins it, each once, in order.
    pub fn nodes_of(&self, pg: &Pg) -> Vec<NodeId> {
        let mut nodes = Vec::with_capacity(pg.members.len());
        for node in pg.disks().filter_map(|disk| self.disk(disk)).map(|d| d.node) {
            if !nodes.contains(&node) {
                nodes.push(node);
            }
        }
        nodes
    }
    /// The disk's node is up and the disk in service.
    pub fn is_able(&self, disk: DiskId) -> bool {
        self.disk(disk).is_some_and(|disk| {
            disk.state == crate::items::DiskState::InService && self.node(disk.node).is_some_and(|node| node.up)
        })
    }
    /// Nodes that registered: those that send heartbeats.
    pub fn servers(&self) -> impl Iterator<Item = &Node> {
        self.nodes().filter(|n| !n.uuid.is_none() && !self.gone.contains(&n.id))
    }

    /// Enters that an item changed, or is new, under the next map version.
    pub(crate) fn touch(&mut self, key: ItemKey) {
        let version = self.version + 1;
        let old = match key {
            ItemKey::Node(id) => self.nodes.get_mut(&id).map(|i| &mut Arc::make_mut(i).version),
            ItemKey::Disk(id) => self.disks.get_mut(&id).map(|i| &mut Arc::make_mut(i).version),
            ItemKey::Volume(id) => self.volumes.get_mut(&id).map(|i| &mut Arc::make_mut(i).version),
            ItemKey::Partition(id) => self.partitions.get_mut(&id).map(|i| &mut Arc::make_mut(i).version),
            ItemKey::Pg(id) => self.pgs.get_mut(&id).map(|i| &mut Arc::make_mut(i).version),
        };
        let old = std::mem::replace(old.expect("only items that are there are touched"), version);
        self.changes.remove(&(old, key));
        self.tombstones.remove(&(old, key));
        self.changes.insert((version, key));
        if self.is_tombstone(key) {
            self.tombstones.insert((version, key));
        }
    }

    /// Whether an item is only kept to tell that it is gone.
    pub(crate) fn is_tombstone(&self, key: ItemKey) -> bool {
        match key {
            ItemKey::Node(_) | ItemKey::Disk(_) => false,
            ItemKey::Volume(id) => self.volume(id).is_some_and(|v| v.deleted),
            ItemKey::Partition(id) => self.partition(id).is_some_and(|p| p.removed),
            ItemKey::Pg(id) => self.pg(id).is_some_and(|p| p.retired),
        }
    }

    /// Ends a command: the map version rises if anything was touched.
    pub(crate) fn seal_version(&mut self) {
        if self.changes.last().is_some_and(|(version, _)| *version > self.version) {
            self.version += 1;
        }
        while self.tombstones.len() > TOMBSTONES_MAX {
            let (version, key) = self.tombstones.pop_first().expect("there are more than the maximum");
            self.forget(key);
            self.changes.remove(&(version, key));
            self.delta_floor = self.delta_floor.max(version);
        }
    }

    fn forget(&mut self, key: ItemKey) {
        match key {
            ItemKey::Node(_) | ItemKey::Disk(_) => {}
            ItemKey::Volume(id) => drop(self.volumes.remove(&id)),
            ItemKey::Partition(id) => drop(self.partitions.remove(&id)),
            ItemKey::Pg(id) => {
                if let Some(pg) = self.pgs.remove(&id) {
                    pg.disks().for_each(|disk| unindex(&mut self.pgs_of_disk, disk, id));
                    pg.formers.iter().for_each(|f| unindex(&mut self.former_pgs_of_disk, f.disk, id));
                    pg.column.into_iter().for_each(|column| self.forget_column(column));
                }
            }
        }
    }

    /// Builds the derived indexes anew from the items.
    pub(crate) fn derive(&mut self) {
        self.node_by_uuid = self.nodes().filter(|n| !n.uuid.is_none()).map(|n| (n.uuid, n.id)).collect();
        self.disk_by_uuid = self.disks().map(|d| (d.uuid, d.id)).collect();
        let mut of_node: BTreeMap<NodeId, BTreeSet<DiskId>> = BTreeMap::new();
        for disk in self.disks() {
            of_node.entry(disk.node).or_default().insert(disk.id);
        }
        self.disks_of_node = of_node;
        let mut of_disk: BTreeMap<DiskId, BTreeSet<PgId>> = BTreeMap::new();
        let mut former_of: BTreeMap<DiskId, BTreeSet<PgId>> = BTreeMap::new();
        for pg in self.pgs() {
            for former in &pg.formers {
                former_of.entry(former.disk).or_default().insert(pg.id);
            }
            for disk in pg.disks() {
                of_disk.entry(disk).or_default().insert(pg.id);
            }
        }
        self.pgs_of_disk = of_disk;
        self.former_pgs_of_disk = former_of;
        let nodes = self.nodes().map(|i| (i.version, ItemKey::Node(i.id)));
        let disks = self.disks().map(|i| (i.version, ItemKey::Disk(i.id)));
        let volumes = self.volumes().map(|i| (i.version, ItemKey::Volume(i.id)));
        let partitions = self.partitions().map(|i| (i.version, ItemKey::Partition(i.id)));
        let pgs = self.pgs().map(|i| (i.version, ItemKey::Pg(i.id)));
        self.changes = nodes.chain(disks).chain(volumes).chain(partitions).chain(pgs).collect();
        self.tombstones = self.changes.iter().filter(|(_, key)| self.is_tombstone(*key)).copied().collect();
    }
}

/// A disk without groups has no entry, as if the index were [derived](State::derive) anew.
fn unindex(index: &mut BTreeMap<DiskId, BTreeSet<PgId>>, disk: DiskId, pg: PgId) {
    if let Some(pgs) = index.get_mut(&disk) {
        pgs.remove(&pg);
        if pgs.is_empty() {
            index.remove(&disk);
        }
    }
}
