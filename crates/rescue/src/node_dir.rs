//! [`NodeDir`]: the directory of a node that does not run: what it has of Raft groups, and putting other states in
//! their place.
//!
//! A state that is put in place gets an index and an era of its own ([`Place`]) and one member, this node: nobody of
//! before can follow it, outvote it or mix with it, and others join it as they join any group. Invariants: the
//! directory is locked meanwhile; nothing newer than what comes is replaced unless the caller says so; the checkpoint
//! is complete and synced before the log says that the group goes on behind it.
use crate::error::{RescueError, Result};
use cairn_env::{Disk, DiskError, OpenOptions, OsRng, RealDisk};
use cairn_format::checkpoint::CheckpointHeader;
use cairn_format::label::LabelKind;
use cairn_format::partition_list::{PartitionEntry, PartitionList};
use cairn_store::{
    CheckpointSink, CheckpointStore, HardState, LabelledDir, Record, RecoveredGroup, StoreError, Wal, WalConfig,
};
use cairn_types::{ClusterId, GroupId, NodeId, WallTime, era_of, first_term};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Where a node keeps its log and its checkpoints.
const LOG_DIR: &str = "log";
const CHECKPOINT_DIR: &str = "checkpoints";
const PARTITIONS_DIR: &str = "meta";
const PARTITIONS_FILE: &str = "meta/partitions";
const PARTITIONS_LEN_MAX: u64 = 8 << 20;
/// Entries by which a state that is put in place is ahead of what it was: more than the lost group can have had behind
/// it.
const INDEX_STEP: u64 = 1 << 32;

/// Index and term at which a group goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub index: u64,
    pub term: u64,
}

impl Place {
    /// Behind what is known of a group, in a later history.
    fn after(index: u64, term: u64, now: WallTime) -> Self {
        let era = (era_of(term) + 1).max(now.0 / 1_000_000_000);
        Self { index: index + INDEX_STEP, term: first_term(era) }
    }
}

/// A node's directory, locked.
pub struct NodeDir {
    dir: LabelledDir,
    wal: Wal,
    recovered: BTreeMap<GroupId, RecoveredGroup>,
    checkpoints: CheckpointStore,
}

impl NodeDir {
    /// Locks the directory of `node`, or makes one where there is nothing.
    pub fn open(dir: &Path, cluster: ClusterId, node: NodeId, now: WallTime) -> Result<Self> {
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::create(dir)?);
        // Looked at before anything is made or changed.
        if let Some(label) = cairn_store::label::read_label(disk.as_ref())? {
            let name = disk.name().to_owned();
            if !label.cluster.is_none() && label.cluster != cluster {
                return Err(RescueError::OtherCluster { dir: name, found: label.cluster, expected: cluster });
            }
            if label.node.get() != 0 && label.node != node {
                return Err(RescueError::OtherNode { dir: name, found: label.node.get(), wanted: node.get() });
            }
        }
        let mut dir = LabelledDir::open(disk.clone(), LabelKind::Node, cluster, &OsRng, now)?;
        dir.set_node(node)?;
        let (wal, recovered) = Wal::open(disk.clone(), WalConfig::new(LOG_DIR, dir.label().uuid))?;
        let checkpoints = CheckpointStore::new(disk, CHECKPOINT_DIR, cluster);
        Ok(Self { dir, wal, recovered, checkpoints })
    }

    /// Index and term up to which the directory has a group; `None`: it has nothing of it.
    pub fn has(&self, group: GroupId) -> Result<Option<Place>> {
        let mut places = Vec::new();
        for index in self.checkpoints.indices(group)? {
            // A damaged one counts by its name: it may hold what nothing else has.
            let term = self.checkpoints.open(group, index).map_or(0, |file| file.header().term);
            places.push(Place { index, term });
        }
        if let Some(log) = self.recovered.get(&group).filter(|log| !log.removed) {
            places.push(Place { index: log.base.0, term: log.base.1 });
            places.extend(log.entries.last().map(|entry| Place { index: entry.index, term: entry.term }));
            places.extend(log.hard.map(|hard| Place { index: 0, term: hard.term }));
        }
        let index = places.iter().map(|place| place.index).max();
        let term = places.iter().map(|place| place.term).max().unwrap_or(0);
        Ok(index.map(|index| Place { index, term }))
    }

    /// Refuses to replace a state that is newer than entry `index`.
    pub fn guard(&self, group: GroupId, index: u64) -> Result<()> {
        match self.has(group)? {
            Some(has) if has.index > index => {
                let dir = self.dir.disk().name().to_owned();
                Err(RescueError::NewerState { dir, group, has: has.index, backup: index })
            }
            _ => Ok(()),
        }
    }

    /// Puts a state in the place of whatever the directory has of a group; where it goes on. `of`: what the state was
    /// taken from.
    pub fn put(
        &self,
        group: GroupId,
        of: Place,
        time: WallTime,
        now: WallTime,
        write: impl FnOnce(&mut dyn CheckpointSink) -> std::result::Result<(), StoreError>,
    ) -> Result<Place> {
        let has = self.has(group)?.unwrap_or(of);
        let place = Place::after(of.index.max(has.index), of.term.max(has.term), now);
        let label = self.dir.label();
        let header = CheckpointHeader {
            cluster: label.cluster,
            group,
            index: place.index,
            term: place.term,
            time,
            voters: vec![u64::from(label.node.get())],
            learners: Vec::new(),
        };
        let (index, term) = (place.index, place.term);
        if self.wal.is_chained() {
            self.wal.append(vec![Record::Fetched { group, index, term }])?;
        }
        self.checkpoints.write(header, |sink| write(sink))?;
        let hard = HardState { term: place.term, vote: 0, commit: place.index };
        self.wal.append(vec![Record::Reset { group, index, term }, Record::HardState { group, state: hard }])?;
        self.checkpoints.drop_before(group, place.index)?;
        Ok(place)
    }

    /// Enters partitions of which this node is the only member into its list.
    pub fn list_partitions(&self, entries: Vec<PartitionEntry>) -> Result<()> {
        let disk = self.dir.disk();
        let mut list = read_partitions(disk.as_ref())?
            .unwrap_or(PartitionList { node: self.dir.label().uuid, entries: Vec::new() });
        for entry in entries {
            list.entries.retain(|known| known.partition != entry.partition);
            list.entries.push(entry);
        }
        list.entries.sort_by_key(|entry| entry.partition);
        disk.create_dir_all(PARTITIONS_DIR)?;
        let temp = format!("{PARTITIONS_FILE}.tmp");
        let file = disk.open(&temp, OpenOptions::CREATE)?;
        file.set_len(0)?;
        file.write_at(&list.encode(), 0)?;
        file.sync_all()?;
        disk.rename(&temp, PARTITIONS_FILE)?;
        disk.sync_dir(PARTITIONS_DIR)?;
        Ok(())
    }
}

/// The bytes of a node's list of partitions.
pub(crate) fn partitions_bytes(disk: &dyn Disk) -> Result<Option<Vec<u8>>> {
    let file = match disk.open(PARTITIONS_FILE, OpenOptions::READ) {
        Err(DiskError::NotFound { .. }) => return Ok(None),
        other => other?,
    };
    let name = format!("{}/{PARTITIONS_FILE}", disk.name());
    let len = file.len()?;
    if len > PARTITIONS_LEN_MAX {
        return Err(RescueError::Damaged { file: name, what: format!("it has {len} bytes") });
    }
    let mut bytes = vec![0; len as usize];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(Some(bytes))
}

fn read_partitions(disk: &dyn Disk) -> Result<Option<PartitionList>> {
    let Some(bytes) = partitions_bytes(disk)? else { return Ok(None) };
    let name = format!("{}/{PARTITIONS_FILE}", disk.name());
    PartitionList::decode(&bytes)
        .map(Some)
        .map_err(|error| RescueError::Damaged { file: name, what: error.to_string() })
}
