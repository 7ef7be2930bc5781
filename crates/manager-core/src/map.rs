//! The cluster map: whole, or what changed since a version.
//!
//! Invariant: a map at version v and the delta from v to w make the map at version w. Deleted volumes, removed
//! partitions and retired groups are told in deltas and left out of whole maps (but not out of a node's own: it
//! has to learn that it may drop their chunks, and their names). A delta is given only if it is complete.
use crate::change::ItemKey;
use crate::config::Key;
use crate::items::{DiskState, Partition, Roles, Volume};
use crate::pg::Pg;
use crate::soft::Soft;
use crate::state::State;
use cairn_types::{DiskId, MemberState, NodeId, PgId, VolumeId};
use cairn_wire::{data, manager as wire};
use std::collections::BTreeSet;

/// Most disks whose loads are told in an answer; a larger cluster tells this many of them, evenly chosen.
pub const LOADS_MAX: usize = 4096;

/// Most removed partitions that a whole map tells a node that had them: those that were removed last.
const REMOVED_TOLD_MAX: usize = 4096;

/// A delta of more items is given only if the whole map has more: it has to go into one message.
const DELTA_MAX: usize = 8192;

/// A disk with less free begins no chunk: data nodes reserve so much of one at a time.
const CHUNK_STEP: u64 = 8 << 20;

/// Which part of the map somebody needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// Everything.
    All,
    /// Everything but other volumes' placement groups.
    Volume(VolumeId),
    /// A node: a data node gets the groups of its disks and whom it meets in them, any other one everything.
    Node(NodeId),
}

impl State {
    /// The map, or what changed after `since` if that is known and less.
    pub fn map(&self, since: u64, asked: Scope, soft: &Soft) -> wire::ClusterMap {
        let full = since == 0 || since < self.delta_floor || since > self.version || self.is_long(since);
        let mut map = wire::ClusterMap {
            cluster: self.cluster.as_ref().map(|c| c.id.0.to_vec()).unwrap_or_default(),
            name: self.cluster.as_ref().map(|c| c.name.clone()).unwrap_or_default(),
            version: self.version,
            base_version: if full { 0 } else { since },
            ..Default::default()
        };
        match self.resolve(asked) {
            Scope::Node(node) => self.fill_for_node(node, full, since, soft, &mut map),
            scope if full => {
                self.nodes().for_each(|n| map.nodes.push(self.node_message(n.id, soft)));
                self.disks().for_each(|d| map.disks.push(self.disk_message(d.id, soft)));
                map.volumes.extend(self.volumes().filter(|v| !v.deleted).map(|v| volume_message(v, self)));
                map.partitions.extend(self.partitions().filter(|p| !p.removed).map(|p| partition_message(p, soft)));
                let pgs = self.pgs().filter(|pg| !pg.retired && in_scope(pg, scope));
                map.pgs.extend(pgs.map(|pg| self.pg_message(pg, soft)));
                if let Scope::Node(me) = asked {
                    self.tell_gone(me, soft, &mut map);
                }
            }
            scope => {
                for key in self.changed_since(since) {
                    self.tell(key, soft, &mut map, |pg| in_scope(pg, scope));
                }
            }
        }
        map
    }

    /// Whether the changes are many, and more than the whole: most are then of things that are gone.
    fn is_long(&self, since: u64) -> bool {
        let whole = (self.changes.len() - self.tombstones.len()).max(DELTA_MAX);
        self.changed_since(since).take(whole + 1).count() > whole
    }

    /// What a node has to drop, as it was away when that was removed.
    fn tell_gone(&self, me: NodeId, soft: &Soft, map: &mut wire::ClusterMap) {
        let retired: BTreeSet<PgId> = self.disks_of(me).flat_map(|d| self.pgs_of(d.id)).map(|pg| pg.id).collect();
        let retired = retired.iter().filter_map(|id| self.pg(*id)).filter(|pg| pg.retired);
        map.pgs.extend(retired.map(|pg| self.pg_message(pg, soft)));
        let gone = self.tombstones.iter().rev().filter_map(|(_, key)| match key {
            ItemKey::Partition(id) => self.partition(*id).filter(|p| p.members.contains(&me)),
            _ => None,
        });
        map.partitions.extend(gone.take(REMOVED_TOLD_MAX).map(|p| partition_message(p, soft)));
    }

    fn changed_since(&self, since: u64) -> impl Iterator<Item = ItemKey> {
        self.changes.range((since + 1, ItemKey::Node(NodeId(0)))..).map(|(_, key)| *key)
    }

    fn tell(&self, key: ItemKey, soft: &Soft, map: &mut wire::ClusterMap, wanted: impl Fn(&Pg) -> bool) {
        match key {
            ItemKey::Node(id) => map.nodes.push(self.node_message(id, soft)),
            ItemKey::Disk(id) => map.disks.push(self.disk_message(id, soft)),
            ItemKey::Volume(id) => map.volumes.extend(self.volume(id).map(|v| volume_message(v, self))),
            ItemKey::Partition(id) => map.partitions.extend(self.partition(id).map(|p| partition_message(p, soft))),
            ItemKey::Pg(id) => {
                let pg = self.pg(id).filter(|pg| wanted(pg));
                map.pgs.extend(pg.map(|pg| self.pg_message(pg, soft)));
            }
        }
    }

    /// A data node's map: its groups (retired ones too), and of nodes and disks those of its groups and the managers.
    /// A group is always told together with its nodes and disks, which may be older than the change.
    fn fill_for_node(&self, me: NodeId, full: bool, since: u64, soft: &Soft, map: &mut wire::ClusterMap) {
        let mine: BTreeSet<DiskId> = self.disks_of(me).map(|d| d.id).collect();
        // Those that a disk was a member of as well: it has to learn that it is none any more.
        let of_disk = |disk: &DiskId| self.pgs_of(*disk).chain(self.former_pgs_of(*disk));
        let groups: BTreeSet<PgId> = mine.iter().flat_map(of_disk).map(|pg| pg.id).collect();
        let mut disks = mine;
        disks.extend(groups.iter().filter_map(|id| self.pg(*id)).flat_map(Pg::disks));
        let mut nodes: BTreeSet<NodeId> = disks.iter().filter_map(|id| self.disk(*id)).map(|d| d.node).collect();
        nodes.extend(self.nodes().filter(|n| n.roles.has(Roles::MANAGER)).map(|n| n.id));
        nodes.insert(me);
        let mut told: BTreeSet<ItemKey> = match full {
            true => {
                let volumes = self.volumes().filter(|v| !v.deleted).map(|v| ItemKey::Volume(v.id));
                let partitions = self.partitions().filter(|p| !p.removed).map(|p| ItemKey::Partition(p.id));
                let groups = groups.iter().map(|id| ItemKey::Pg(*id));
                let disks = disks.iter().map(|id| ItemKey::Disk(*id));
                let nodes = nodes.iter().map(|id| ItemKey::Node(*id));
                volumes.chain(partitions).chain(groups).chain(disks).chain(nodes).collect()
            }
            false => {
                let concerns = |key: &ItemKey| match key {
                    ItemKey::Node(id) => nodes.contains(id),
                    ItemKey::Disk(id) => disks.contains(id),
                    ItemKey::Pg(id) => groups.contains(id),
                    ItemKey::Volume(_) | ItemKey::Partition(_) => true,
                };
                self.changed_since(since).filter(concerns).collect()
            }
        };
        let changed: Vec<&Pg> = told
            .iter()
            .filter_map(|key| match key {
                ItemKey::Pg(id) => self.pg(*id),
                _ => None,
            })
            .collect();
        for disk in changed.into_iter().flat_map(Pg::disks).filter_map(|disk| self.disk(disk)) {
            told.insert(ItemKey::Disk(disk.id));
            told.insert(ItemKey::Node(disk.node));
        }
        told.into_iter().for_each(|key| self.tell(key, soft, map, |_| true));
    }

    /// Present loads, for clients that choose where to write.
    pub fn loads(&self, soft: &Soft) -> Vec<wire::DiskLoad> {
        let step = soft.disks.len().div_ceil(LOADS_MAX).max(1);
        let chosen = soft.disks.iter().step_by(step);
        chosen
            .map(|(disk, load)| wire::DiskLoad {
                disk: disk.get(),
                free_bytes: load.free_bytes,
                queue_depth: load.queue_depth,
                latency_us: load.latency_us,
            })
            .collect()
    }

    fn resolve(&self, scope: Scope) -> Scope {
        match scope {
            Scope::Node(id) if self.node(id).is_none_or(|n| n.roles != Roles::DATA) => Scope::All,
            Scope::Volume(VolumeId(0)) => Scope::All,
            scope => scope,
        }
    }

    /// A node as others see it.
    pub fn node_message(&self, id: NodeId, soft: &Soft) -> wire::Node {
        let Some(node) = self.node(id) else { return wire::Node { id: id.get(), ..Default::default() } };
        wire::Node {
            id: node.id.get(),
            address: node.address.clone(),
            http_address: node.http_address.clone(),
            rack: node.rack.clone(),
            host: node.host.clone(),
            roles: node.roles.names(),
            up: node.up,
            incarnation: node.incarnation.get(),
            version: node.software.clone(),
            last_heard_ms: soft.silence_ms.get(&node.id).copied().unwrap_or(0),
            removed: self.is_removed(node.id),
            holder: node.holder.clone(),
        }
    }

    fn disk_message(&self, id: DiskId, soft: &Soft) -> wire::Disk {
        let Some(disk) = self.disk(id) else { return wire::Disk { id: id.get(), ..Default::default() } };
        let load = soft.disks.get(&id).copied();
        wire::Disk {
            id: disk.id.get(),
            node: disk.node.get(),
            uuid: disk.uuid.0.to_vec(),
            total_bytes: load.map_or(disk.total_bytes, |l| l.total_bytes),
            free_bytes: load.map_or(disk.free_bytes, |l| l.free_bytes),
            state: disk.state.code(),
            queue_depth: load.map_or(0, |l| l.queue_depth),
            latency_us: load.map_or(0, |l| l.latency_us),
            path: disk.path.clone(),
            problem: disk.problem.clone(),
            pgs: self.pgs_of(id).filter(|pg| !pg.retired).count() as u32,
            chunks: load.map_or(0, |l| l.chunks),
            filesystem: load.map_or(0, |l| l.filesystem),
            gray: self.grays.get(&id).map(|gray| gray.why.clone()).unwrap_or_default(),
            gray_since_ns: self.grays.get(&id).map_or(0, |gray| gray.since.0),
            writable_bytes: Some(self.free_above_reserve(id, soft)),
        }
    }

    /// Free bytes of a disk above the reserve, as last told.
    pub fn free_above_reserve(&self, disk: DiskId, soft: &Soft) -> u64 {
        let free = soft.disks.get(&disk).map(|l| l.free_bytes).or_else(|| self.disk(disk).map(|d| d.free_bytes));
        free.unwrap_or(0).saturating_sub(self.config.number(Key::DiskReserve).max(CHUNK_STEP))
    }

    /// A group with what clients need to choose.
    pub fn pg_message(&self, pg: &Pg, soft: &Soft) -> wire::Pg {
        let free = pg.members.iter().filter(|m| m.state == MemberState::Serving);
        wire::Pg {
            state: Some(self.pg_state(pg)),
            // Whoever knows of no columns would write anything to them.
            writable: pg.is_writable() && pg.column.is_none(),
            free_bytes: free.map(|m| self.free_above_reserve(m.disk, soft)).min().unwrap_or(0),
            used_bytes: soft.pg_used.get(&pg.id).copied().unwrap_or(0),
            column: self.column_message(pg),
        }
    }

    fn column_message(&self, pg: &Pg) -> Option<wire::PgColumn> {
        let column = pg.column?;
        let group = self.stripe_group(column.group);
        Some(wire::PgColumn {
            group: column.group.get(),
            position: u32::from(column.position),
            later: u32::from(column.later.code()),
            core_rack: group.map(|group| group.core_rack.clone()).unwrap_or_default(),
            rack_capacity: group.map_or(0, |group| u32::from(group.rack_capacity)),
            writable: pg.is_writable() && self.may_take_chunks(pg),
        })
    }

    /// A group as its members store it.
    pub fn pg_state(&self, pg: &Pg) -> data::PgState {
        let member = |disk: DiskId, state: MemberState| data::PgMember {
            disk: disk.get(),
            state: u32::from(state.code()),
            node: self.disk(disk).map_or(0, |d| d.node.get()),
        };
        let members = pg.members.iter().map(|m| member(m.disk, m.state));
        // To copies, a disk that joins is one more member that catches up; a shard has one place only.
        let joining = pg.joining.map(|j| (j, member(j.disk, j.state)));
        let (more, of_shard) = if pg.scheme.is_replicated() { (joining, None) } else { (None, joining) };
        let formers = pg.formers.iter().map(|f| data::PgFormer {
            disk: f.disk.get(),
            node: self.disk(f.disk).map_or(0, |d| d.node.get()),
            drop: f.drop,
        });
        data::PgState {
            pg: pg.id.get(),
            volume: pg.volume.get(),
            scheme: u32::from(pg.scheme.code()),
            epoch: pg.epoch.get(),
            creation_epoch: pg.creation_epoch.get(),
            members: members.chain(more.map(|(_, member)| member)).collect(),
            retired: pg.retired,
            index_floor: pg.index_floor,
            comparing: pg.older.comparing,
            older_epoch: pg.older.epoch.get(),
            formers: formers.collect(),
            filling: {
                let members = pg.members.iter().filter(|m| m.filling).map(|m| m.disk.get());
                members.chain(pg.joining.map(|j| j.disk.get())).collect()
            },
            joining: of_shard.map(|(j, member)| data::PgJoining {
                disk: member.disk,
                node: member.node,
                state: member.state,
                position: u32::from(j.position),
            }),
        }
    }

    /// Counts of groups by what they can do.
    pub fn pg_counts(&self) -> wire::PgCounts {
        let mut counts = wire::PgCounts::default();
        for pg in self.pgs().filter(|pg| !pg.retired) {
            match pg {
                _ if !pg.is_readable() => counts.waiting += 1,
                _ if pg.is_complete() => counts.complete += 1,
                _ if pg.has_write_minimum() => counts.degraded += 1,
                _ => counts.read_only += 1,
            }
            counts.closed += u32::from(!pg.open);
        }
        counts
    }

    /// Disks that may carry new groups as far as their state goes.
    pub fn disks_in_service(&self) -> usize {
        self.disks().filter(|d| d.state == DiskState::InService && self.is_able(d.id)).count()
    }
}

fn in_scope(pg: &Pg, scope: Scope) -> bool {
    match scope {
        Scope::All | Scope::Node(_) => true,
        Scope::Volume(volume) => pg.volume == volume,
    }
}

/// A volume as others see it.
pub fn volume_message(volume: &Volume, state: &State) -> wire::Volume {
    wire::Volume {
        id: volume.id.get(),
        name: volume.name.clone(),
        layout: volume.layout.to_bits(),
        deleted: volume.deleted,
        created_ns: volume.created.0,
        settings: volume.settings.items(),
        trashed_ns: volume.trashed.map_or(0, |since| since.0),
        trashed_until_ns: state.trashed_until(volume).map_or(0, |until| until.0),
        private: volume.settings.is_on(Key::PrivateData, state.config()),
    }
}

fn partition_message(partition: &Partition, soft: &Soft) -> wire::Partition {
    // Who led it last may have left it since.
    let leader = soft.partitions.get(&partition.id).map(|load| load.leader);
    let leader = leader.filter(|node| partition.members.contains(node));
    wire::Partition {
        id: partition.id.get(),
        volume: partition.volume.get(),
        inode_first: partition.inode_first,
        inode_last: partition.inode_last,
        nodes: partition.members.iter().map(|n| n.get()).collect(),
        leader: leader.map_or(0, NodeId::get),
        removed: partition.removed,
        begun: partition.begun.iter().map(|n| n.get()).collect(),
        changed: partition.changed,
        target: partition.target.iter().map(|n| n.get()).collect(),
        left: partition.left.iter().map(|n| n.get()).collect(),
        add: partition.add,
        level: partition.level,
    }
}
