//! The cluster map: whole, or what changed since a version.
//!
//! Invariant: a map at version v and the delta from v to w make the map at version w. Deleted volumes, removed
//! partitions and retired groups are told in deltas and left out of whole maps (but not out of a data node's own: it
//! has to learn that it may drop their chunks). A delta is given only if it is complete.
use crate::change::ItemKey;
use crate::config::Key;
use crate::items::{DiskState, Partition, Roles, Volume};
use crate::pg::Pg;
use crate::soft::Soft;
use crate::state::State;
use cairn_types::{MemberState, NodeId, VolumeId};
use cairn_wire::{data, manager as wire};

/// Most disks whose loads are told in an answer; a larger cluster tells this many of them, evenly chosen.
pub const LOADS_MAX: usize = 4096;

/// Which part of the map somebody needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// Everything.
    All,
    /// Everything but other volumes' placement groups.
    Volume(VolumeId),
    /// A node: a data node gets the groups of its disks, one with a meta role everything.
    Node(NodeId),
}

impl State {
    /// The map, or what changed after `since` if that is known and less.
    pub fn map(&self, since: u64, scope: Scope, soft: &Soft) -> wire::ClusterMap {
        let full = since == 0 || since < self.delta_floor || since > self.version;
        let mut map = wire::ClusterMap {
            cluster: self.cluster.as_ref().map(|c| c.id.0.to_vec()).unwrap_or_default(),
            name: self.cluster.as_ref().map(|c| c.name.clone()).unwrap_or_default(),
            version: self.version,
            base_version: if full { 0 } else { since },
            ..Default::default()
        };
        let scope = self.resolve(scope);
        if full {
            self.nodes().for_each(|n| map.nodes.push(self.node_message(n.id, soft)));
            self.disks().for_each(|d| map.disks.push(self.disk_message(d.id, soft)));
            self.volumes().filter(|v| !v.deleted).for_each(|v| map.volumes.push(volume_message(v)));
            self.partitions().filter(|p| !p.removed).for_each(|p| map.partitions.push(partition_message(p, soft)));
            for pg in self.pgs().filter(|pg| self.in_scope(pg, scope)) {
                if !pg.retired || matches!(scope, Scope::Node(_)) {
                    map.pgs.push(self.pg_message(pg, soft));
                }
            }
            return map;
        }
        for (_, key) in self.changes.range((since + 1, ItemKey::Node(NodeId(0)))..) {
            match key {
                ItemKey::Node(id) => map.nodes.push(self.node_message(*id, soft)),
                ItemKey::Disk(id) => map.disks.push(self.disk_message(*id, soft)),
                ItemKey::Volume(id) => map.volumes.extend(self.volume(*id).map(volume_message)),
                ItemKey::Partition(id) => {
                    map.partitions.extend(self.partition(*id).map(|p| partition_message(p, soft)));
                }
                ItemKey::Pg(id) => {
                    let pg = self.pg(*id).filter(|pg| self.in_scope(pg, scope));
                    map.pgs.extend(pg.map(|pg| self.pg_message(pg, soft)));
                }
            }
        }
        map
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

    fn in_scope(&self, pg: &Pg, scope: Scope) -> bool {
        match scope {
            Scope::All => true,
            Scope::Volume(volume) => pg.volume == volume,
            Scope::Node(node) => pg.members.iter().any(|m| self.disk(m.disk).is_some_and(|d| d.node == node)),
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
        }
    }

    fn disk_message(&self, id: cairn_types::DiskId, soft: &Soft) -> wire::Disk {
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
        }
    }

    /// Free bytes of a disk above the reserve, as last told.
    pub fn free_above_reserve(&self, disk: cairn_types::DiskId, soft: &Soft) -> u64 {
        let free = soft.disks.get(&disk).map(|l| l.free_bytes).or_else(|| self.disk(disk).map(|d| d.free_bytes));
        free.unwrap_or(0).saturating_sub(self.config.number(Key::DiskReserve))
    }

    /// A group with what clients need to choose.
    pub fn pg_message(&self, pg: &Pg, soft: &Soft) -> wire::Pg {
        let free = pg.members.iter().filter(|m| m.state == MemberState::Serving);
        wire::Pg {
            state: Some(self.pg_state(pg)),
            writable: pg.is_writable(),
            free_bytes: free.map(|m| self.free_above_reserve(m.disk, soft)).min().unwrap_or(0),
            used_bytes: soft.pg_used.get(&pg.id).copied().unwrap_or(0),
        }
    }

    /// A group as its members store it.
    pub fn pg_state(&self, pg: &Pg) -> data::PgState {
        let members = pg.members.iter().map(|m| data::PgMember {
            disk: m.disk.get(),
            state: u32::from(m.state.code()),
            node: self.disk(m.disk).map_or(0, |d| d.node.get()),
        });
        data::PgState {
            pg: pg.id.get(),
            volume: pg.volume.get(),
            scheme: u32::from(pg.scheme.code()),
            epoch: pg.epoch.get(),
            creation_epoch: pg.creation_epoch.get(),
            members: members.collect(),
            retired: pg.retired,
        }
    }

    /// Counts of groups by what they can do.
    pub fn pg_counts(&self) -> wire::PgCounts {
        let mut counts = wire::PgCounts::default();
        for pg in self.pgs().filter(|pg| !pg.retired) {
            match pg.count(MemberState::Serving) {
                0 => counts.waiting += 1,
                _ if pg.is_complete() => counts.complete += 1,
                n if n >= pg.scheme.write_minimum() => counts.degraded += 1,
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

/// A volume as others see it.
pub fn volume_message(volume: &Volume) -> wire::Volume {
    wire::Volume {
        id: volume.id.get(),
        name: volume.name.clone(),
        layout: volume.layout.to_bits(),
        deleted: volume.deleted,
        created_ns: volume.created.0,
    }
}

fn partition_message(partition: &Partition, soft: &Soft) -> wire::Partition {
    wire::Partition {
        id: partition.id.get(),
        volume: partition.volume.get(),
        inode_first: partition.inode_first,
        inode_last: partition.inode_last,
        nodes: partition.members.iter().map(|n| n.get()).collect(),
        leader: soft.partitions.get(&partition.id).map_or(0, |load| load.leader.get()),
        removed: partition.removed,
    }
}
