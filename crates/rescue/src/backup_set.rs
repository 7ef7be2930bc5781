//! [`BackupSet`]: a directory with backups of one cluster's metadata.
//!
//! | path | what |
//! |---|---|
//! | `backup-NNNNNNNNNN` | the manifest of backup N |
//! | `checkpoints/GGGGGGGGGG/IIIIIIIIIIIIIIIIIIII-TTTTTTTTTTTTTTTTTTTT.ckpt` | state of group G at entry I of term T |
//! | `….tmp` | unfinished; goes with the next backup |
//! | `lock` | held while a backup is being written |
//!
//! Invariants: a manifest is written last, after every file that it names was verified here and synced; a file is never
//! changed; backups share the files of groups that did not change between them, and a file goes only when no manifest
//! names it. All backups in a directory are of one cluster.
use crate::error::{RescueError, Result};
use crate::manager_state;
use cairn_env::{Disk, DiskError, File, LockGuard, OpenOptions, RealDisk};
use cairn_format::backup_manifest::{BACKUP_LEN_MAX, BackupEntry, BackupManifest};
use cairn_manager_core::State;
use cairn_store::{CheckpointFile, StoreError};
use cairn_types::{GroupId, crc32c_append};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// Bytes read at a time.
const PIECE: usize = 1 << 20;
const CHECKPOINTS: &str = "checkpoints";

/// A directory with backups.
pub struct BackupSet {
    disk: Arc<dyn Disk>,
}

/// A file that a group's state is being written into.
pub struct Incoming<'a> {
    set: &'a BackupSet,
    group: GroupId,
    temp: String,
    file: Arc<dyn File>,
    len: u64,
    crc: u32,
}

/// A checkpoint file of the set, verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    pub bytes: u64,
    pub crc: u32,
    pub time: cairn_types::WallTime,
}

fn manifest_path(number: u64) -> String {
    format!("backup-{number:010}")
}

fn group_dir(group: GroupId) -> String {
    format!("{CHECKPOINTS}/{:010}", group.0)
}

fn file_path(group: GroupId, index: u64, term: u64) -> String {
    format!("{}/{index:020}-{term:020}.ckpt", group_dir(group))
}

impl BackupSet {
    /// A directory to write backups into, made if it is not there.
    pub fn create(dir: &Path) -> Result<Self> {
        Ok(Self { disk: Arc::new(RealDisk::create(dir)?) })
    }

    /// A directory with at least one backup.
    pub fn open(dir: &Path) -> Result<Self> {
        let set = Self { disk: Arc::new(RealDisk::open(dir)?) };
        match set.numbers()?.is_empty() {
            true => Err(RescueError::NoBackups { dir: set.name() }),
            false => Ok(set),
        }
    }

    /// The directory, for messages.
    pub fn name(&self) -> String {
        self.disk.name().to_owned()
    }

    /// Held while a backup is written: two would take the same number.
    pub fn lock(&self) -> Result<Box<dyn LockGuard>> {
        self.disk.lock("lock").map_err(|error| match error {
            DiskError::Locked { holder, .. } => RescueError::Store(StoreError::InUse { dir: self.name(), holder }),
            other => other.into(),
        })
    }

    /// Numbers of the backups, ascending.
    pub fn numbers(&self) -> Result<Vec<u64>> {
        let digits = |name: &str| name.strip_prefix("backup-").filter(|d| d.len() == 10)?.parse().ok();
        let mut numbers: Vec<u64> = self.disk.list("")?.iter().filter_map(|entry| digits(&entry.name)).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    fn damaged(&self, path: &str, what: impl ToString) -> RescueError {
        RescueError::Damaged { file: format!("{}/{path}", self.disk.name()), what: what.to_string() }
    }

    /// The manifest of a backup; of the newest without a number.
    pub fn manifest(&self, number: Option<u64>) -> Result<BackupManifest> {
        let number = match number {
            Some(number) => number,
            None => *self.numbers()?.last().ok_or_else(|| RescueError::NoBackups { dir: self.name() })?,
        };
        let path = manifest_path(number);
        let file = match self.disk.open(&path, OpenOptions::READ) {
            Err(DiskError::NotFound { .. }) => return Err(RescueError::NoBackup { dir: self.name(), number }),
            other => other?,
        };
        let len = file.len()?;
        if len > BACKUP_LEN_MAX as u64 {
            return Err(self.damaged(&path, format!("it has {len} bytes")));
        }
        let mut bytes = vec![0; len as usize];
        file.read_exact_at(&mut bytes, 0)?;
        let manifest = BackupManifest::decode(&bytes).map_err(|error| self.damaged(&path, error))?;
        match manifest.number == number {
            true => Ok(manifest),
            false => Err(self.damaged(&path, format!("it is the manifest of backup {}", manifest.number))),
        }
    }

    /// A group's state that an earlier backup brought here already, if it is sound.
    pub fn kept(&self, group: GroupId, index: u64, term: u64) -> Result<Option<Kept>> {
        let path = file_path(group, index, term);
        if !self.disk.exists(&path)? {
            return Ok(None);
        }
        // A damaged one is fetched again.
        Ok(self.verify_file(&path, group, index, term).ok())
    }

    /// Begins a file for a group's state.
    pub fn incoming(&self, group: GroupId) -> Result<Incoming<'_>> {
        self.disk.create_dir_all(&group_dir(group))?;
        let temp = format!("{}/incoming.tmp", group_dir(group));
        let file = self.disk.open(&temp, OpenOptions::CREATE)?;
        file.set_len(0)?;
        Ok(Incoming { set: self, group, temp, file, len: 0, crc: 0 })
    }

    /// Writes a manifest; its files are here.
    pub fn publish(&self, manifest: &BackupManifest) -> Result<()> {
        let path = manifest_path(manifest.number);
        let temp = format!("{path}.tmp");
        let file = self.disk.open(&temp, OpenOptions::CREATE)?;
        file.set_len(0)?;
        file.write_at(&manifest.encode(), 0)?;
        file.sync_all()?;
        self.disk.rename(&temp, &path)?;
        self.disk.sync_dir("")?;
        Ok(())
    }

    /// Reads every byte that a backup names; what is wrong, if anything.
    pub fn verify(&self, manifest: &BackupManifest) -> Vec<RescueError> {
        let check = |entry: &BackupEntry| {
            let path = file_path(entry.group, entry.index, entry.term);
            let kept = self.verify_file(&path, entry.group, entry.index, entry.term)?;
            match (kept.bytes, kept.crc) == (entry.bytes, entry.crc) {
                true => self.fits(manifest, entry),
                false => Err(self.damaged(&path, "it is not the file that the manifest names")),
            }
        };
        manifest.entries.iter().filter_map(|entry| check(entry).err()).collect()
    }

    /// A file may be of a time when the cluster was not known, never of another one.
    fn fits(&self, manifest: &BackupManifest, entry: &BackupEntry) -> Result<()> {
        let file = self.open_entry(entry)?;
        let cluster = file.header().cluster;
        match cluster.is_none() || cluster == manifest.cluster {
            true => Ok(()),
            false => {
                let dir = file.name().to_owned();
                Err(RescueError::OtherCluster { dir, found: cluster, expected: manifest.cluster })
            }
        }
    }

    /// Opens a group's state.
    pub fn open_entry(&self, entry: &BackupEntry) -> Result<CheckpointFile> {
        let path = file_path(entry.group, entry.index, entry.term);
        Ok(CheckpointFile::open(self.disk.as_ref(), &path)?)
    }

    /// The manager's state of a backup.
    pub fn manager_state(&self, manifest: &BackupManifest) -> Result<State> {
        let group = GroupId::MANAGER;
        let no_group = || RescueError::NoGroup { dir: self.name(), number: manifest.number, group };
        let entry = manifest.entry(group).ok_or_else(no_group)?;
        manager_state::read(self.open_entry(entry)?)
    }

    /// Checks pages, place and checksum of a file.
    fn verify_file(&self, path: &str, group: GroupId, index: u64, term: u64) -> Result<Kept> {
        let mut checkpoint = CheckpointFile::open(self.disk.as_ref(), path)?;
        checkpoint.verify()?;
        let header = checkpoint.header();
        if (header.group, header.index, header.term) != (group, index, term) {
            let (group, index) = (header.group, header.index);
            return Err(self.damaged(path, format!("it is group {group} at entry {index}")));
        }
        let time = header.time;
        let file = self.disk.open(path, OpenOptions::READ)?;
        let (mut at, mut crc, bytes) = (0, 0, file.len()?);
        let mut piece = vec![0; PIECE];
        while at < bytes {
            let got = file.read_at(&mut piece, at)?;
            if got == 0 {
                return Err(self.damaged(path, "it ends while it is read"));
            }
            crc = crc32c_append(crc, &piece[..got]);
            at += got as u64;
        }
        Ok(Kept { bytes, crc, time })
    }

    /// Drops all but the newest backups, and the files that only they name.
    pub fn prune(&self, keep: usize) -> Result<Vec<u64>> {
        let mut numbers = self.numbers()?;
        let kept = numbers.split_off(numbers.len().saturating_sub(keep.max(1)));
        let mut named = BTreeSet::new();
        for number in &kept {
            // One that cannot be read may name anything: then nothing goes.
            let manifest = self.manifest(Some(*number))?;
            named.extend(manifest.entries.iter().map(|e| file_path(e.group, e.index, e.term)));
        }
        for number in &numbers {
            self.disk.remove(&manifest_path(*number))?;
        }
        self.disk.sync_dir("")?;
        let groups = match self.disk.list(CHECKPOINTS) {
            Err(DiskError::NotFound { .. }) => return Ok(numbers),
            other => other?,
        };
        for group in groups.iter().filter(|entry| entry.is_dir) {
            for file in self.disk.list(&format!("{CHECKPOINTS}/{}", group.name))? {
                let path = format!("{CHECKPOINTS}/{}/{}", group.name, file.name);
                if !named.contains(&path) {
                    self.disk.remove(&path)?;
                }
            }
        }
        Ok(numbers)
    }
}

impl Incoming<'_> {
    /// Bytes taken so far.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether nothing was taken yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends a part.
    pub fn write(&mut self, part: &[u8]) -> Result<()> {
        self.file.write_at(part, self.len)?;
        self.len += part.len() as u64;
        self.crc = crc32c_append(self.crc, part);
        Ok(())
    }

    /// Syncs, verifies what is on the disk now, and names the file.
    pub fn finish(self, index: u64, term: u64) -> Result<Kept> {
        self.file.sync_all()?;
        let kept = self.set.verify_file(&self.temp, self.group, index, term)?;
        if (kept.bytes, kept.crc) != (self.len, self.crc) {
            return Err(self.set.damaged(&self.temp, "the disk gave back other bytes than were written"));
        }
        self.set.disk.rename(&self.temp, &file_path(self.group, index, term))?;
        self.set.disk.sync_dir(&group_dir(self.group))?;
        Ok(kept)
    }
}
