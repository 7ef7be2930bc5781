//! [`ListFile`]: the list of this node's partitions on disk, replaced as a whole.
//!
//! Invariant: a partition is in the list before its Raft group begins, and is marked as begun before it serves anybody;
//! from then on its log must not be missing.

use std::sync::Arc;

use cairn_env::{Disk, DiskError, OpenOptions};
use cairn_format::partition_list::{PARTITION_LIST_VERSION, PartitionEntry, PartitionList, PartitionListError};
use cairn_store::StoreError;
use cairn_types::{DiskUuid, PartitionId};

const FILE: &str = "partitions";
const TEMP: &str = "partitions.tmp";
/// No list of the format is longer.
const LEN_MAX: u64 = 8 << 20;

/// The list and its file.
pub(crate) struct ListFile {
    disk: Arc<dyn Disk>,
    dir: String,
    list: PartitionList,
}

impl ListFile {
    /// Reads the list; without a file it is empty.
    pub(crate) fn open(disk: Arc<dyn Disk>, dir: &str, node: DiskUuid) -> Result<Self, StoreError> {
        disk.create_dir_all(dir)?;
        let path = format!("{dir}/{FILE}");
        let name = format!("{}/{path}", disk.name());
        let corrupt = |what: String| StoreError::Corrupt { file: name.clone(), offset: 0, what };
        let list = match disk.open(&path, OpenOptions::READ) {
            Err(DiskError::NotFound { .. }) => PartitionList { node, entries: Vec::new() },
            Err(error) => return Err(error.into()),
            Ok(file) => {
                let len = file.len()?;
                if len > LEN_MAX {
                    return Err(corrupt(format!("it has {len} bytes, more than any list of partitions")));
                }
                let mut bytes = vec![0; len as usize];
                file.read_exact_at(&mut bytes, 0)?;
                PartitionList::decode(&bytes).map_err(|error| match error {
                    PartitionListError::Version(found) => {
                        StoreError::Version { file: name.clone(), found, known: PARTITION_LIST_VERSION }
                    }
                    other => corrupt(other.to_string()),
                })?
            }
        };
        if list.node != node {
            return Err(corrupt(format!("it belongs to the directory {}, not to {node}", list.node)));
        }
        Ok(Self { disk, dir: dir.to_owned(), list })
    }

    /// All entries.
    pub(crate) fn entries(&self) -> &[PartitionEntry] {
        &self.list.entries
    }

    /// One entry.
    pub(crate) fn get(&self, partition: PartitionId) -> Option<&PartitionEntry> {
        self.list.entries.iter().find(|entry| entry.partition == partition)
    }

    /// Adds or replaces an entry, durably.
    pub(crate) fn put(&mut self, entry: PartitionEntry) -> Result<(), StoreError> {
        let mut list = self.list.clone();
        match list.entries.binary_search_by_key(&entry.partition, |entry| entry.partition) {
            Ok(at) if list.entries[at] == entry => return Ok(()),
            Ok(at) => list.entries[at] = entry,
            Err(at) => list.entries.insert(at, entry),
        }
        self.replace(list)
    }

    /// Takes an entry out, durably.
    pub(crate) fn remove(&mut self, partition: PartitionId) -> Result<(), StoreError> {
        let mut list = self.list.clone();
        list.entries.retain(|entry| entry.partition != partition);
        self.replace(list)
    }

    fn replace(&mut self, list: PartitionList) -> Result<(), StoreError> {
        let (temp, path) = (format!("{}/{TEMP}", self.dir), format!("{}/{FILE}", self.dir));
        let file = self.disk.open(&temp, OpenOptions::CREATE)?;
        file.set_len(0)?;
        file.write_at(&list.encode(), 0)?;
        file.sync_all()?;
        self.disk.rename(&temp, &path)?;
        self.disk.sync_dir(&self.dir)?;
        self.list = list;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_env::RealDisk;
    use cairn_types::{Layout, NodeId, VolumeId, WallTime};

    const NODE: DiskUuid = DiskUuid([4; 16]);

    fn entry(partition: u32) -> PartitionEntry {
        PartitionEntry {
            partition: PartitionId(partition),
            volume: VolumeId(1),
            inodes: (1, u64::MAX),
            begun: false,
            members: vec![NodeId(16)],
            layout: Layout::replicated(3),
            created: WallTime(1),
        }
    }

    fn open(dir: &tempfile::TempDir) -> Result<ListFile, StoreError> {
        let disk = RealDisk::open(dir.path()).expect("a disk");
        ListFile::open(Arc::new(disk), "meta", NODE)
    }

    /// A node would forget its partitions, or keep deleted ones, over a restart.
    #[test]
    fn what_was_put_is_there_after_a_restart() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut list = open(&dir).expect("an empty list");
        list.put(entry(9)).expect("stored");
        list.put(entry(3)).expect("stored");
        list.put(PartitionEntry { begun: true, ..entry(9) }).expect("stored");
        list.put(entry(5)).expect("stored");
        list.remove(PartitionId(5)).expect("stored");
        let list = open(&dir).expect("the list");
        assert_eq!(list.entries(), [entry(3), PartitionEntry { begun: true, ..entry(9) }]);
        assert!(list.get(PartitionId(5)).is_none());
    }

    /// A damaged list would let partitions begin anew, empty; it has to be named instead.
    #[test]
    fn damage_is_named() {
        let dir = tempfile::tempdir().expect("a directory");
        open(&dir).expect("an empty list").put(entry(9)).expect("stored");
        let path = dir.path().join("meta/partitions");
        let mut bytes = std::fs::read(&path).expect("the file");
        bytes[70] ^= 1;
        std::fs::write(&path, bytes).expect("written");
        let error = open(&dir).err().expect("an error").to_string();
        assert!(error.contains("meta/partitions"), "{error}");
    }
}
