//! Directories with an identity: the label file and the exclusive lock.
//!
//! Invariants: a directory is worked in by one process at a time; a label is replaced as a whole (temporary file,
//! sync, rename, sync of the directory) and its cluster, node and disk id change from none to a value only once.
//!
//! Not here: what else lies in the directory.

use std::sync::Arc;

use cairn_env::{AlignedBuf, Disk, DiskError, LockGuard, OpenOptions, Rng};
use cairn_format::label::{LABEL_LEN, LABEL_VERSION, Label, LabelError, LabelKind};
use cairn_types::{ClusterId, DiskId, DiskUuid, NodeId, WallTime};

use crate::{KnownDisks, StoreError};

/// Name of the label file.
pub const LABEL_FILE: &str = "label";
/// Name of the lock file.
pub const LOCK_FILE: &str = "lock";
const LABEL_TEMP: &str = "label.tmp";

/// A directory that this process has locked and whose identity it knows.
pub struct LabelledDir {
    disk: Arc<dyn Disk>,
    label: Label,
    _lock: Box<dyn LockGuard>,
}

/// Reads the label without taking the lock, for inspection.
pub fn read_label(disk: &dyn Disk) -> Result<Option<Label>, StoreError> {
    let file = match disk.open(LABEL_FILE, OpenOptions::READ) {
        Err(DiskError::NotFound { .. }) => return Ok(None),
        other => other?,
    };
    let name = format!("{}/{LABEL_FILE}", disk.name());
    let len = file.len()?;
    if len != LABEL_LEN as u64 {
        let what = format!("it has {len} bytes instead of {LABEL_LEN}");
        return Err(StoreError::Corrupt { file: name, offset: 0, what });
    }
    let mut block = [0; LABEL_LEN];
    file.read_exact_at(&mut block, 0)?;
    Label::decode(&block).map(Some).map_err(|error| match error {
        LabelError::Version(found) => StoreError::Version { file: name, found, known: LABEL_VERSION },
        other => StoreError::Corrupt { file: name, offset: 0, what: other.to_string() },
    })
}

/// The label of a directory that may be worked in as `kind`; none of an empty one. Takes no lock and changes nothing.
pub fn inspect(disk: &dyn Disk, kind: LabelKind) -> Result<Option<Label>, StoreError> {
    let Some(label) = read_label(disk)? else {
        return refuse_foreign(disk).map(|()| None);
    };
    if label.kind != kind {
        return Err(StoreError::OtherKind { dir: disk.name().into(), found: label.kind.name(), expected: kind.name() });
    }
    Ok(Some(label))
}

impl LabelledDir {
    /// Locks the directory and reads its label, or makes one in an empty directory. `cluster` is the cluster of
    /// this process, or none while it is not known.
    pub fn open(
        disk: Arc<dyn Disk>,
        kind: LabelKind,
        cluster: ClusterId,
        rng: &dyn Rng,
        now: WallTime,
    ) -> Result<Self, StoreError> {
        disk.create_dir_all("")?;
        let lock = disk.lock(LOCK_FILE).map_err(|error| match error {
            DiskError::Locked { holder, .. } => StoreError::InUse { dir: disk.name().into(), holder },
            other => other.into(),
        })?;
        let label = match inspect(disk.as_ref(), kind)? {
            Some(label) => label,
            None => {
                let mut uuid = [0; 16];
                rng.fill(&mut uuid);
                let uuid = DiskUuid(uuid);
                let label = Label { kind, cluster, uuid, node: NodeId(0), disk: DiskId(0), created: now };
                write(disk.as_ref(), &label)?;
                label
            }
        };
        let mut dir = Self { disk, label, _lock: lock };
        if !cluster.is_none() {
            dir.set_cluster(cluster)?;
        }
        Ok(dir)
    }

    /// Opens a disk of a node that knows its disks: an empty directory where one was is refused, and what is opened
    /// is noted before it is used.
    pub fn open_disk(
        disk: Arc<dyn Disk>,
        known: &KnownDisks,
        cluster: ClusterId,
        rng: &dyn Rng,
        now: WallTime,
    ) -> Result<Self, StoreError> {
        if let Some(uuid) = known.expected(disk.name())
            && read_label(disk.as_ref())?.is_none()
        {
            refuse_foreign(disk.as_ref())?;
            return Err(StoreError::DiskAbsent { dir: disk.name().into(), uuid });
        }
        let dir = Self::open(disk, LabelKind::Disk, cluster, rng, now)?;
        known.note(dir.disk.name(), dir.label.uuid)?;
        Ok(dir)
    }

    /// The identity.
    pub fn label(&self) -> &Label {
        &self.label
    }

    /// The disk that the directory is on.
    pub fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    /// Writes the cluster into the label, or compares it.
    pub fn set_cluster(&mut self, cluster: ClusterId) -> Result<(), StoreError> {
        if self.label.cluster == cluster {
            return Ok(());
        }
        if !self.label.cluster.is_none() {
            return Err(StoreError::OtherCluster {
                dir: self.disk.name().into(),
                found: self.label.cluster,
                expected: cluster,
            });
        }
        self.replace(Label { cluster, ..self.label })
    }

    /// Writes the node id into the label.
    ///
    /// # Panics
    /// When the label has another one already: identities never change.
    pub fn set_node(&mut self, node: NodeId) -> Result<(), StoreError> {
        if self.label.node == node {
            return Ok(());
        }
        assert_eq!(self.label.node, NodeId(0), "{} is node {} and stays so", self.disk.name(), self.label.node);
        self.replace(Label { node, ..self.label })
    }

    /// Writes the disk id (and its node's) into the label.
    ///
    /// # Panics
    /// When the label has another disk id already: identities never change.
    pub fn set_disk(&mut self, node: NodeId, disk: DiskId) -> Result<(), StoreError> {
        if (self.label.node, self.label.disk) == (node, disk) {
            return Ok(());
        }
        let free = self.label.disk == DiskId(0) || self.label.disk == disk;
        assert!(free, "{} is disk {} and stays so", self.disk.name(), self.label.disk);
        self.replace(Label { node, disk, ..self.label })
    }

    fn replace(&mut self, label: Label) -> Result<(), StoreError> {
        write(self.disk.as_ref(), &label)?;
        self.label = label;
        Ok(())
    }
}

/// A directory with files but without a label is not ours (or lost its label): nothing is made in it.
fn refuse_foreign(disk: &dyn Disk) -> Result<(), StoreError> {
    let known = [LOCK_FILE, LABEL_TEMP, "lost+found"];
    match disk.list("")?.into_iter().find(|entry| !known.contains(&entry.name.as_str())) {
        Some(entry) => Err(StoreError::Unlabelled { dir: disk.name().into(), example: entry.name }),
        None => Ok(()),
    }
}

fn write(disk: &dyn Disk, label: &Label) -> Result<(), StoreError> {
    let file = disk.open(LABEL_TEMP, OpenOptions::CREATE)?;
    let mut block = AlignedBuf::unpooled(LABEL_LEN);
    block.extend_from_slice(&label.encode());
    file.set_len(0)?;
    file.write_at(&block, 0)?;
    file.sync_all()?;
    disk.rename(LABEL_TEMP, LABEL_FILE)?;
    disk.sync_dir("")?;
    Ok(())
}

#[cfg(test)]
mod tests;
