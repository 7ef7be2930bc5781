//! [`CheckpointStore`]: the checkpoint files of a node, by group and index.

use std::sync::Arc;

use cairn_env::{Disk, DiskError};
use cairn_format::checkpoint::CheckpointHeader;
use cairn_types::{ClusterId, GroupId};

use super::file::{CheckpointFile, CheckpointWriter};
use super::install::Incoming;
use crate::StoreError;

/// Generations kept of each group unless said otherwise; the fewest that may be kept.
pub const GENERATIONS: usize = 2;
/// Most generations that may be kept.
pub const GENERATIONS_MAX: usize = 64;

/// Keeps checkpoints under one directory: `<dir>/<group>/<index>.ckpt`.
pub struct CheckpointStore {
    disk: Arc<dyn Disk>,
    dir: String,
    cluster: ClusterId,
    generations: usize,
}

/// What [`CheckpointStore::recover`] found of a group.
#[derive(Default)]
pub struct Found {
    /// The newest checkpoint with sound header and footer.
    pub newest: Option<CheckpointFile>,
    /// Index and term of the one before it, if kept.
    pub older: Option<(u64, u64)>,
    /// What is wrong with the damaged ones that were set aside.
    pub damaged: Vec<StoreError>,
}

impl CheckpointStore {
    /// Keeps files below `dir` of the disk; `cluster` may be none as long as it is not known.
    pub fn new(disk: Arc<dyn Disk>, dir: impl Into<String>, cluster: ClusterId) -> Self {
        Self { disk, dir: dir.into(), cluster, generations: GENERATIONS }
    }

    /// Keeps so many generations of each group: never fewer than the log can do without.
    pub fn keeping(self, generations: usize) -> Self {
        Self { generations: generations.clamp(GENERATIONS, GENERATIONS_MAX), ..self }
    }

    /// Generations kept of each group.
    pub fn generations(&self) -> usize {
        self.generations
    }

    pub(super) fn disk(&self) -> &dyn Disk {
        self.disk.as_ref()
    }

    /// The cluster written into new files.
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    pub(super) fn group_dir(&self, group: GroupId) -> String {
        format!("{}/{:010}", self.dir, group.0)
    }

    pub(super) fn path(&self, group: GroupId, index: u64) -> String {
        format!("{}/{index:020}.ckpt", self.group_dir(group))
    }

    /// Indices of a group's checkpoints, newest first.
    pub fn indices(&self, group: GroupId) -> Result<Vec<u64>, StoreError> {
        let entries = match self.disk.list(&self.group_dir(group)) {
            Err(DiskError::NotFound { .. }) => return Ok(Vec::new()),
            other => other?,
        };
        let mut indices: Vec<u64> = entries
            .iter()
            .filter_map(|entry| entry.name.strip_suffix(".ckpt").filter(|digits| digits.len() == 20)?.parse().ok())
            .collect();
        indices.sort_unstable_by(|a, b| b.cmp(a));
        Ok(indices)
    }

    /// Opens a group's checkpoint; header and footer are verified.
    pub fn open(&self, group: GroupId, index: u64) -> Result<CheckpointFile, StoreError> {
        let path = self.path(group, index);
        let file = match CheckpointFile::open(self.disk.as_ref(), &path) {
            Err(StoreError::Disk(DiskError::NotFound { .. })) => {
                return Err(StoreError::NoCheckpoint { group: group.0, index });
            }
            other => other?,
        };
        let header = file.header();
        if (header.group, header.index) != (group, index) {
            let what = format!("it is the checkpoint of {} at {}", header.group, header.index);
            return Err(StoreError::Corrupt { file: file.name().into(), offset: 32, what });
        }
        if !self.cluster.is_none() && !header.cluster.is_none() && header.cluster != self.cluster {
            return Err(StoreError::OtherCluster {
                dir: file.name().into(),
                found: header.cluster,
                expected: self.cluster,
            });
        }
        Ok(file)
    }

    /// Finds the newest checkpoint of a group whose header and footer are sound; pages are verified as they are
    /// read. Leftovers of unfinished writes go; damaged files are set aside.
    pub fn recover(&self, group: GroupId) -> Result<Found, StoreError> {
        self.clear_leftovers(group)?;
        let mut found = Found::default();
        for index in self.indices(group)? {
            match self.open(group, index) {
                Ok(file) if found.newest.is_none() => found.newest = Some(file),
                Ok(file) => found.older = found.older.max(Some((file.header().index, file.header().term))),
                Err(error @ StoreError::Corrupt { .. }) => {
                    self.set_aside(group, index)?;
                    found.damaged.push(error);
                }
                Err(other) => return Err(other),
            }
        }
        Ok(found)
    }

    /// Renames a damaged checkpoint to `.damaged`, so that it is kept for inspection and never read again.
    pub fn set_aside(&self, group: GroupId, index: u64) -> Result<(), StoreError> {
        let path = self.path(group, index);
        self.disk.rename(&path, &format!("{path}.damaged"))?;
        self.disk.sync_dir(&self.group_dir(group))?;
        Ok(())
    }

    fn clear_leftovers(&self, group: GroupId) -> Result<(), StoreError> {
        let dir = self.group_dir(group);
        let entries = match self.disk.list(&dir) {
            Err(DiskError::NotFound { .. }) => return Ok(()),
            other => other?,
        };
        for entry in entries.iter().filter(|entry| entry.name.ends_with(".tmp")) {
            self.disk.remove(&format!("{dir}/{}", entry.name))?;
        }
        // What was found must not vanish: names that are not durable yet become so.
        self.disk.sync_dir(&dir)?;
        Ok(())
    }

    /// Writes a checkpoint durably; gives the file's length. Follow with [`prune`](Self::prune).
    pub fn write(
        &self,
        header: CheckpointHeader,
        state: impl FnOnce(&mut CheckpointWriter) -> Result<(), StoreError>,
    ) -> Result<u64, StoreError> {
        let (group, index) = (header.group, header.index);
        let temp = format!("{}.tmp", self.path(group, index));
        self.disk.create_dir_all(&self.group_dir(group))?;
        let written = CheckpointWriter::create(self.disk.as_ref(), &temp, header).and_then(|mut writer| {
            state(&mut writer)?;
            writer.finish()
        });
        match written {
            Ok(len) => {
                self.publish(group, index, &temp)?;
                Ok(len)
            }
            Err(error) => {
                // A leftover is cleared at the next start, too.
                drop(self.disk.remove(&temp));
                Err(error)
            }
        }
    }

    /// Gives a complete, synced file its name.
    pub(super) fn publish(&self, group: GroupId, index: u64, temp: &str) -> Result<(), StoreError> {
        self.disk.rename(temp, &self.path(group, index))?;
        self.disk.sync_dir(&self.group_dir(group))?;
        Ok(())
    }

    /// Drops all but the newest generations of a group, and one that somebody still needs; gives the indices of the
    /// generations kept, newest first.
    pub fn prune(&self, group: GroupId, needed: Option<u64>) -> Result<Vec<u64>, StoreError> {
        let mut indices = self.indices(group)?;
        let surplus = indices.split_off(indices.len().min(self.generations));
        for index in surplus.into_iter().filter(|index| Some(*index) != needed) {
            self.disk.remove(&self.path(group, index))?;
        }
        Ok(indices)
    }

    /// Drops a group's checkpoints before `index`: they cannot be continued by the log any more.
    pub fn drop_before(&self, group: GroupId, index: u64) -> Result<(), StoreError> {
        for old in self.indices(group)?.into_iter().filter(|&old| old < index) {
            self.disk.remove(&self.path(group, old))?;
        }
        Ok(())
    }

    /// Drops all of a group.
    pub fn drop_group(&self, group: GroupId) -> Result<(), StoreError> {
        for index in self.indices(group)? {
            self.disk.remove(&self.path(group, index))?;
        }
        Ok(())
    }

    /// Starts taking a checkpoint over from another node.
    pub fn receive(&self, group: GroupId, index: u64, term: u64) -> Result<Incoming<'_>, StoreError> {
        Incoming::start(self, group, index, term)
    }

    /// Groups that have a directory.
    pub fn groups(&self) -> Result<Vec<GroupId>, StoreError> {
        let entries = match self.disk.list(&self.dir) {
            Err(DiskError::NotFound { .. }) => return Ok(Vec::new()),
            other => other?,
        };
        Ok(entries.iter().filter_map(|entry| entry.name.parse().ok().map(GroupId)).collect())
    }
}
