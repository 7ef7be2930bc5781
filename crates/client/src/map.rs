//! What the cluster is made of, as its map names it: [`Node`], [`Disk`], [`VolumeEntry`], [`Partition`]. Placement
//! groups are in `view`.
use cairn_types::DiskUuid;
use cairn_wire::manager;

/// A process with roles.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Node {
    pub id: u32,
    /// `host:port` of its RPC port.
    pub address: String,
    pub http_address: String,
    pub rack: String,
    pub host: String,
    /// `manager`, `meta`, `data`.
    pub roles: Vec<String>,
    pub up: bool,
    /// Which of its runs.
    pub incarnation: u64,
    pub version: String,
    /// How long ago; only in what managers tell of the whole cluster.
    pub last_heard_ms: u64,
    /// It is no part of the cluster any more.
    pub removed: bool,
    /// Name in the key that it has; empty: not known, or a manager.
    pub holder: String,
}

impl Node {
    pub fn has_role(&self, role: &str) -> bool {
        self.roles.iter().any(|one| one == role)
    }
    pub(crate) fn of_wire(found: manager::Node) -> Self {
        let manager::Node {
            id,
            address,
            http_address,
            rack,
            host,
            roles,
            up,
            incarnation,
            version,
            last_heard_ms,
            removed,
            holder,
        } = found;
        Self { id, address, http_address, rack, host, roles, up, incarnation, version, last_heard_ms, removed, holder }
    }
}

/// What a disk is to the cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DiskState {
    #[default]
    InService,
    Failed,
    Quarantined,
    Absent,
    /// It is no part of the cluster any more.
    Removed,
    /// Of a later version.
    Unknown(u32),
}

impl DiskState {
    const fn of_wire(code: u32) -> Self {
        match code {
            0 => Self::InService,
            1 => Self::Failed,
            2 => Self::Quarantined,
            3 => Self::Absent,
            4 => Self::Removed,
            code => Self::Unknown(code),
        }
    }
    /// For people and programs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::InService => "in service",
            Self::Failed => "failed",
            Self::Quarantined => "quarantined",
            Self::Absent => "absent",
            Self::Removed | Self::Unknown(_) => "unknown",
        }
    }
}

/// A disk of a data node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Disk {
    pub id: u32,
    pub node: u32,
    pub uuid: DiskUuid,
    pub state: DiskState,
    pub total_bytes: u64,
    pub free_bytes: u64,
    /// Of what is free, what data may take; older managers do not say.
    pub writable_bytes: Option<u64>,
    pub queue_depth: u32,
    pub latency_us: u32,
    pub path: String,
    pub problem: String,
    /// Placement groups and chunks on it.
    pub pgs: u32,
    pub chunks: u64,
    /// Disks with the same number (not 0) share their space.
    pub filesystem: u64,
    /// Why it gets nothing new although it is in service; empty: it is good.
    pub gray: String,
    pub gray_since_ns: u64,
}

impl Disk {
    pub fn is_in_service(&self) -> bool {
        self.state == DiskState::InService
    }
    pub fn is_removed(&self) -> bool {
        self.state == DiskState::Removed
    }
    pub(crate) fn of_wire(found: manager::Disk) -> Self {
        Self {
            id: found.id,
            node: found.node,
            uuid: DiskUuid::from_slice(&found.uuid).unwrap_or_default(),
            state: DiskState::of_wire(found.state),
            total_bytes: found.total_bytes,
            free_bytes: found.free_bytes,
            writable_bytes: found.writable_bytes,
            queue_depth: found.queue_depth,
            latency_us: found.latency_us,
            path: found.path,
            problem: found.problem,
            pgs: found.pgs,
            chunks: found.chunks,
            filesystem: found.filesystem,
            gray: found.gray,
            gray_since_ns: found.gray_since_ns,
        }
    }
}

/// A volume, as the map names it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VolumeEntry {
    pub id: u32,
    pub name: String,
    /// Bits of the [`Layout`](cairn_types::Layout) of its root, which may be one of a later version.
    pub layout: u64,
    pub deleted: bool,
    pub created_ns: u64,
    /// Its own settings in the place of the cluster's: key and value.
    pub settings: Vec<(String, String)>,
    /// Since when it is in the trash and serves nobody; 0: it is not.
    pub trashed_ns: u64,
    /// When it is deleted for good, as the cluster is set now.
    pub trashed_until_ns: u64,
    /// What is said of its chunks goes through TLS alone.
    pub private: bool,
}

impl VolumeEntry {
    pub(crate) fn of_wire(found: manager::Volume) -> Self {
        let manager::Volume { id, name, layout, deleted, created_ns, settings, trashed_ns, trashed_until_ns, private } =
            found;
        let settings = settings.into_iter().map(|item| (item.key, item.value)).collect();
        Self { id, name, layout, deleted, created_ns, settings, trashed_ns, trashed_until_ns, private }
    }
}

/// A meta partition: a range of the inodes of a volume.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Partition {
    pub id: u32,
    pub volume: u32,
    pub inode_first: u64,
    pub inode_last: u64,
    /// Members.
    pub nodes: Vec<u32>,
    /// Last reported; 0: none.
    pub leader: u32,
    /// Its volume is deleted.
    pub removed: bool,
    /// Members that are known to have opened it.
    pub begun: Vec<u32>,
    /// Members that it shall have, while that is being done.
    pub target: Vec<u32>,
    /// So many more partitions are made when this one has ended its range of ids.
    pub add: u32,
}

impl Partition {
    pub(crate) fn of_wire(found: manager::Partition) -> Self {
        let manager::Partition {
            id, volume, inode_first, inode_last, nodes, leader, removed, begun, target, add, ..
        } = found;
        Self { id, volume, inode_first, inode_last, nodes, leader, removed, begun, target, add }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk that failed would be taken for one in service, or one that was taken away for one that is there.
    #[test]
    fn disks_are_what_the_manager_says() {
        let of = |state| Disk::of_wire(manager::Disk { state, ..Default::default() });
        assert!(of(0).is_in_service() && !of(1).is_in_service() && !of(9).is_in_service());
        assert!(of(4).is_removed() && !of(3).is_removed());
        assert_eq!(
            [of(0), of(1), of(2), of(3), of(7)].map(|disk| disk.state.name()),
            ["in service", "failed", "quarantined", "absent", "unknown"]
        );
    }
}
