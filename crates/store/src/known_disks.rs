//! [`KnownDisks`]: the disks that a node ever used and where they were, in a file of the node's own directory.
//!
//! Invariants: a disk is in the file before anything but its label is written to it; an empty directory where a disk
//! was is that disk's absence (nothing is mounted there), and becomes a new disk only when the absent one was declared
//! replaced by its uuid.
//!
//! Not here: what is in the directories of the disks (`label`, and the data role).

use std::collections::BTreeSet;
use std::sync::Arc;

use cairn_env::{Disk, DiskError, OpenOptions};
use cairn_format::disk_list::{DISK_LIST_LEN_MAX, DISK_LIST_VERSION, DiskList, DiskListError};
use cairn_types::DiskUuid;
use parking_lot::Mutex;

use crate::StoreError;

/// Name of the file.
pub const DISKS_FILE: &str = "disks";
const DISKS_TEMP: &str = "disks.tmp";

/// The list and its file.
pub struct KnownDisks {
    node_dir: Arc<dyn Disk>,
    replaced: BTreeSet<DiskUuid>,
    list: Mutex<DiskList>,
}

impl KnownDisks {
    /// Reads the list from the directory of the node with this uuid; without a file it is empty. `replaced` are disks
    /// that somebody declared lost for good.
    pub fn open(
        node_dir: Arc<dyn Disk>,
        node: DiskUuid,
        replaced: impl IntoIterator<Item = DiskUuid>,
    ) -> Result<Self, StoreError> {
        let name = format!("{}/{DISKS_FILE}", node_dir.name());
        let corrupt = |what: String| StoreError::Corrupt { file: name.clone(), offset: 0, what };
        let list = match node_dir.open(DISKS_FILE, OpenOptions::READ) {
            Err(DiskError::NotFound { .. }) => DiskList { node, disks: Default::default() },
            Err(error) => return Err(error.into()),
            Ok(file) => {
                let len = file.len()?;
                if len > DISK_LIST_LEN_MAX as u64 {
                    return Err(corrupt(format!("it has {len} bytes, more than any list of disks")));
                }
                let mut bytes = vec![0; len as usize];
                file.read_exact_at(&mut bytes, 0)?;
                DiskList::decode(&bytes).map_err(|error| match error {
                    DiskListError::Version(found) => {
                        StoreError::Version { file: name.clone(), found, known: DISK_LIST_VERSION }
                    }
                    other => corrupt(other.to_string()),
                })?
            }
        };
        if list.node != node {
            return Err(corrupt(format!("it belongs to the directory {}, not to {node}", list.node)));
        }
        Ok(Self { node_dir, replaced: replaced.into_iter().collect(), list: Mutex::new(list) })
    }

    /// The disk that has to be at a path: none was ever there, or the one that was is declared replaced.
    pub fn expected(&self, path: &str) -> Option<DiskUuid> {
        self.list.lock().disks.get(path).copied().filter(|uuid| !self.replaced.contains(uuid))
    }

    /// Notes durably which disk is at a path.
    pub fn note(&self, path: &str, uuid: DiskUuid) -> Result<(), StoreError> {
        if self.replaced.contains(&uuid) {
            tracing::warn!(disk = path, %uuid, "the disk is in use, though the configuration declares it replaced; take it out of that list");
        }
        let mut list = self.list.lock();
        if list.disks.get(path) == Some(&uuid) {
            return Ok(());
        }
        if !list.has_room_for(path) {
            return Err(StoreError::TooManyDisks { dir: self.node_dir.name().into(), path: path.into() });
        }
        let mut longer = list.clone();
        longer.disks.insert(path.to_owned(), uuid);
        self.write(&longer)?;
        *list = longer;
        Ok(())
    }

    fn write(&self, list: &DiskList) -> Result<(), StoreError> {
        let file = self.node_dir.open(DISKS_TEMP, OpenOptions::CREATE)?;
        file.set_len(0)?;
        file.write_at(&list.encode(), 0)?;
        file.sync_all()?;
        self.node_dir.rename(DISKS_TEMP, DISKS_FILE)?;
        self.node_dir.sync_dir("")?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
