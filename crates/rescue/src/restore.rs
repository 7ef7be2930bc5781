//! Putting meta partitions of a backup into the directory of a node that does not run.
//!
//! The manager's own state is not put back like this: which disks hold which chunks is asked of the disks, so that no
//! backup's idea of it is believed ([`crate::scan`], and `manager-core`'s `rebuild` with the backup for names and
//! settings). Invariants: everything is verified before anything is changed; the guards of [`crate::node_dir`].
use crate::backup_set::BackupSet;
use crate::error::{RescueError, Result};
use crate::node_dir::{NodeDir, Place};
use cairn_format::backup_manifest::BackupManifest;
use cairn_format::partition_list::PartitionEntry;
use cairn_manager_core::State;
use cairn_store::CheckpointSource;
use cairn_types::{GroupId, NodeId, PartitionId, WallTime};
use std::path::Path;

const PIECE: usize = 256 << 10;

/// What is to be put where.
#[derive(Debug, Clone)]
pub struct RestoreOrder<'a> {
    /// The number of a backup; without it, the newest.
    pub backup: Option<u64>,
    /// The node whose directory it is.
    pub node: NodeId,
    pub dir: &'a Path,
    /// These partitions; without any, all of the backup.
    pub partitions: Vec<PartitionId>,
    /// Also over what is newer.
    pub over_newer: bool,
    pub now: WallTime,
}

/// A partition that was put in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restored {
    pub partition: PartitionId,
    /// Up to here the state goes.
    pub backup: Place,
    /// When its last entry was logged.
    pub time: WallTime,
    /// Here it goes on.
    pub place: Place,
}

/// A volume of which only some partitions were put in place: the others are of another time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    pub volume: String,
    pub restored: usize,
    /// Partitions that it had when the backup was made.
    pub all: usize,
}

/// What was put in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestoreReport {
    /// Volumes with several partitions that the backup does not have as of one moment.
    pub apart: Vec<String>,
    pub number: u64,
    pub begun: WallTime,
    pub restored: Vec<Restored>,
    pub parts: Vec<Part>,
}

/// Verifies, guards, puts in place.
pub fn restore(set: &BackupSet, order: &RestoreOrder<'_>) -> Result<RestoreReport> {
    let manifest = set.manifest(order.backup)?;
    if let Some(error) = set.verify(&manifest).into_iter().next() {
        return Err(error);
    }
    let state = set.manager_state(&manifest)?;
    let all = || manifest.entries.iter().map(|entry| entry.group).filter(|group| *group != GroupId::MANAGER);
    let wanted: Vec<GroupId> = match order.partitions.is_empty() {
        true => all().collect(),
        false => order.partitions.iter().map(|id| GroupId::from(*id)).collect(),
    };
    let mut work = Vec::new();
    for group in wanted {
        let no_group = || RescueError::NoGroup { dir: set.name(), number: manifest.number, group };
        let entry = manifest.entry(group).ok_or_else(no_group)?;
        work.push((entry, list_entry(&state, group, order.node).ok_or_else(no_group)?));
    }
    let dir = NodeDir::open(order.dir, manifest.cluster, order.node, order.now)?;
    if !order.over_newer {
        work.iter().try_for_each(|(entry, _)| dir.guard(entry.group, entry.index))?;
    }
    let mut restored = Vec::new();
    for (entry, listed) in work {
        let mut file = set.open_entry(entry)?;
        let of = Place { index: entry.index, term: entry.term };
        let place = dir.put(entry.group, of, entry.time, order.now, |sink| {
            let mut piece = vec![0; PIECE];
            loop {
                match file.read(&mut piece)? {
                    0 => return Ok(()),
                    got => sink.write(&piece[..got])?,
                }
            }
        })?;
        let partition = listed.partition;
        dir.list_partitions(vec![listed])?;
        restored.push(Restored { partition, backup: of, time: entry.time, place });
    }
    let parts = parts(&state, &restored);
    let apart = apart(&state, &manifest, &restored);
    Ok(RestoreReport { apart, number: manifest.number, begun: manifest.begun, restored, parts })
}

/// Volumes that are not whole.
fn parts(state: &State, restored: &[Restored]) -> Vec<Part> {
    let put = |id: PartitionId| restored.iter().any(|one| one.partition == id);
    let volumes = state.volumes().filter(|volume| !volume.deleted).map(|volume| {
        let own = || state.partitions().filter(|partition| partition.volume == volume.id && !partition.removed);
        let restored = own().filter(|partition| put(partition.id)).count();
        Part { volume: volume.name.clone(), restored, all: own().count() }
    });
    volumes.filter(|part| part.restored > 0 && part.restored < part.all).collect()
}

/// Volumes of which the backup has several partitions, each as of a moment of its own.
fn apart(state: &State, manifest: &BackupManifest, restored: &[Restored]) -> Vec<String> {
    let cut = |id: PartitionId| manifest.entry(GroupId::from(id)).is_some_and(|entry| entry.cut);
    let volumes = state.volumes().filter(|volume| {
        let own = || state.partitions().filter(|partition| partition.volume == volume.id && !partition.removed);
        let is_put = own().any(|partition| restored.iter().any(|one| one.partition == partition.id));
        !volume.deleted && is_put && own().count() > 1 && !own().all(|partition| cut(partition.id))
    });
    volumes.map(|volume| volume.name.clone()).collect()
}

/// What a node's list says about a partition that it has alone.
fn list_entry(state: &State, group: GroupId, node: NodeId) -> Option<PartitionEntry> {
    let partition = state.partition(PartitionId(group.0))?;
    let volume = state.volume(partition.volume)?;
    Some(PartitionEntry {
        partition: partition.id,
        volume: volume.id,
        inodes: (partition.inode_first, partition.inode_last),
        begun: true,
        members: vec![node],
        layout: volume.layout,
        created: volume.created,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_manager_core::command::{Command, CreateVolume, InitCluster, Register};
    use cairn_manager_core::items::Roles;

    /// Somebody would take half a volume of then, and half of now, for the whole of then.
    #[test]
    fn volumes_that_are_not_whole_are_named() {
        let mut state = State::new();
        let volume = |name: &str, partitions| {
            Command::CreateVolume(CreateVolume { name: name.into(), partitions, ..Default::default() })
        };
        for command in [
            Command::InitCluster(InitCluster { cluster: vec![7; 16], name: "test".into() }),
            Command::Register(Register { uuid: vec![1; 16], roles: Roles::META.0, ..Register::default() }),
            volume("one", 0),
            volume("three", 3),
        ] {
            state.apply(WallTime(1), &command).outcome.expect("applied");
        }
        let place = Place { index: 5, term: 1 };
        let restored = |ids: &[u32]| {
            let one = |id: &u32| Restored { partition: PartitionId(*id), backup: place, time: WallTime(1), place };
            ids.iter().map(one).collect::<Vec<_>>()
        };
        assert_eq!(parts(&state, &restored(&[1, 2, 3, 4])), []);
        let part = Part { volume: "three".into(), restored: 2, all: 3 };
        assert_eq!(parts(&state, &restored(&[1, 2, 4])), [part]);
    }
}
