//! What a volume holds: [`VolumeCounts`], and its limits: [`Quota`].
use cairn_wire::meta;

/// Limits of a directory with all below it, or of a volume, and what is used of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Quota {
    /// Of the directory; 0: the volume.
    pub inode: u64,
    /// 0: no limit.
    pub bytes_max: u64,
    /// 0: no limit.
    pub inodes_max: u64,
    /// That extents cover.
    pub bytes_used: u64,
    /// Without the directory itself.
    pub inodes_used: u64,
    /// What was there before is still being counted; limits hold from then on.
    pub counting: bool,
    /// Of the volume: some partitions were not told yet.
    pub being_set: bool,
    /// Of a directory: what other partitions have below it is not counted.
    pub elsewhere: QuotaParts,
}

/// Whether other partitions have something below a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum QuotaParts {
    /// Or the server is of a build that does not tell.
    #[default]
    None,
    Some,
    /// There is too much below it to tell, or the server is of a later build.
    Unknown,
}

impl QuotaParts {
    fn of_wire(code: i32) -> Self {
        match meta::QuotaParts::try_from(code) {
            Ok(meta::QuotaParts::None) => Self::None,
            Ok(meta::QuotaParts::Some) => Self::Some,
            Ok(meta::QuotaParts::Unknown) | Err(_) => Self::Unknown,
        }
    }
}

impl Quota {
    pub(crate) fn of_wire(found: meta::Quota) -> Self {
        let meta::Quota { inode, bytes_max, inodes_max, bytes_used, inodes_used, counting, being_set, elsewhere } =
            found;
        let elsewhere = QuotaParts::of_wire(elsewhere);
        Self { inode, bytes_max, inodes_max, bytes_used, inodes_used, counting, being_set, elsewhere }
    }
}

/// Bytes on all disks together that no file names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Unreferenced {
    /// Written by sessions that have ended.
    pub left_bytes: u64,
    /// When they are free at the latest, if all members are there.
    pub left_freed_by_ns: u64,
    /// Written a short time ago by sessions that may go on.
    pub recent_bytes: u64,
    /// When they are free if these do not.
    pub recent_freed_by_ns: u64,
}

/// What a volume holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VolumeCounts {
    pub inodes: u64,
    pub directories: u64,
    pub file_bytes: u64,
    /// That extents cover.
    pub stored_bytes: u64,
    pub memory_bytes: u64,
    /// The volume's quota; 0: none.
    pub quota_bytes: u64,
    pub quota_inodes: u64,
    /// Files and runs of blocks that were removed and whose space is not free yet.
    pub freeing: u64,
    /// Where it was asked for and counted.
    pub unreferenced: Option<Unreferenced>,
}

impl VolumeCounts {
    pub(crate) fn of_wire(found: meta::StatfsResponse) -> Self {
        let unreferenced = found.unreferenced.filter(|found| found.known).map(|found| Unreferenced {
            left_bytes: found.left_bytes,
            left_freed_by_ns: found.left_freed_by_ns,
            recent_bytes: found.recent_bytes,
            recent_freed_by_ns: found.recent_freed_by_ns,
        });
        Self {
            inodes: found.inodes,
            directories: found.directories,
            file_bytes: found.file_bytes,
            stored_bytes: found.stored_bytes,
            memory_bytes: found.memory_bytes,
            quota_bytes: found.quota_bytes,
            quota_inodes: found.quota_inodes,
            freeing: found.freeing,
            unreferenced,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing that was counted would be told as nothing that is there.
    #[test]
    fn what_was_not_counted_is_not_told() {
        let of = |known| meta::StatfsResponse {
            unreferenced: Some(meta::Unreferenced { known, left_bytes: 5, ..Default::default() }),
            ..Default::default()
        };
        assert_eq!(VolumeCounts::of_wire(of(false)).unreferenced, None);
        assert_eq!(VolumeCounts::of_wire(of(true)).unreferenced.map(|found| found.left_bytes), Some(5));
    }
}
