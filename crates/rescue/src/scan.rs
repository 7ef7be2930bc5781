//! What directories say about the cluster: reading labels, placement group states, lists of partitions; and what they
//! mean.
//!
//! Nothing is locked or changed, so nodes may run meanwhile: without a manager none of this changes. What cannot be
//! read is named and left out. Not here: what follows from it (`manager-core`'s `rebuild`).
use crate::error::{RescueError, Result};
use crate::node_dir::partitions_bytes;
use cairn_env::{AlignedBuf, Disk, DiskError, OpenOptions, RealDisk};
use cairn_format::checkpoint::{CHECKPOINT_BLOCK, CheckpointHeader};
use cairn_format::disk_list::{DISK_LIST_LEN_MAX, DiskList};
use cairn_format::label::{LABEL_LEN, Label, LabelKind};
use cairn_format::map_scan::{MapScan, ScanItem, ScanKind};
use cairn_format::partition_list::PartitionList;
use cairn_format::pg_state::{PG_STATE_LEN, PgStateRecord};
use cairn_manager_core::rebuild::{Found, FoundDisk, FoundNode, FoundPartition, FoundPg};
use cairn_types::{GroupId, era_of};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// How deep directories with labels are looked for below one that has none.
const DEPTH: usize = 3;

/// What was found, and what could not be read.
#[derive(Debug, Default)]
pub struct Scanned {
    pub scan: MapScan,
    pub problems: Vec<String>,
    seen: Vec<PathBuf>,
}

/// Looks at a directory of a node or a disk, at the disks that a node's directory lists, or at all below a directory
/// without a label.
pub fn scan(dirs: &[PathBuf]) -> Result<Scanned> {
    let mut scanned = Scanned::default();
    for dir in dirs {
        let before = scanned.scan.items.len();
        scanned.directory(dir, DEPTH)?;
        if scanned.scan.items.len() == before && !scanned.seen.contains(&canonical(dir)) {
            scanned.problems.push(format!("{}: neither it nor what is below it has a label", dir.display()));
        }
    }
    Ok(scanned)
}

fn canonical(dir: &Path) -> PathBuf {
    std::fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned())
}

fn read(disk: &dyn Disk, path: &str, most: usize) -> Result<Option<Vec<u8>>> {
    let file = match disk.open(path, OpenOptions::READ) {
        Err(DiskError::NotFound { .. }) => return Ok(None),
        other => other?,
    };
    let len = file.len()?;
    if len > most as u64 {
        return Err(RescueError::Damaged {
            file: format!("{}/{path}", disk.name()),
            what: format!("it has {len} bytes"),
        });
    }
    let mut bytes = vec![0; len as usize];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(Some(bytes))
}

impl Scanned {
    fn put(&mut self, kind: ScanKind, path: String, contents: Vec<u8>) {
        self.scan.items.push(ScanItem { kind, path, contents });
    }

    fn directory(&mut self, dir: &Path, depth: usize) -> Result<()> {
        let name = canonical(dir);
        if self.seen.contains(&name) {
            return Ok(());
        }
        let disk = RealDisk::open(dir)?;
        let Some(label) = read(&disk, "label", LABEL_LEN)? else {
            if depth > 0 {
                for entry in disk.list("")?.into_iter().filter(|entry| entry.is_dir) {
                    self.directory(&dir.join(entry.name), depth - 1)?;
                }
            }
            return Ok(());
        };
        self.seen.push(name.clone());
        let path = name.display().to_string();
        let decoded = <&[u8; LABEL_LEN]>::try_from(label.as_slice()).ok().and_then(|label| Label::decode(label).ok());
        match decoded {
            None => self.problems.push(format!("{path}: its label is damaged; restore it (docs/guides/recover.md)")),
            Some(known) => {
                self.put(ScanKind::Label, path, label);
                match known.kind {
                    LabelKind::Disk => self.disk(&disk)?,
                    LabelKind::Node => self.node(&disk)?,
                }
            }
        }
        Ok(())
    }

    fn disk(&mut self, disk: &dyn Disk) -> Result<()> {
        let groups = match disk.list("pg") {
            Err(DiskError::NotFound { .. }) => return Ok(()),
            other => other?,
        };
        for group in groups.into_iter().filter(|entry| entry.is_dir) {
            let path = format!("pg/{}/state", group.name);
            match read(disk, &path, PG_STATE_LEN) {
                Ok(Some(state)) => self.put(ScanKind::PgState, format!("{}/{path}", disk.name()), state),
                Ok(None) => {}
                Err(error) => self.problems.push(error.to_string()),
            }
        }
        Ok(())
    }

    fn node(&mut self, disk: &dyn Disk) -> Result<()> {
        let mut listed = Vec::new();
        match partitions_bytes(disk) {
            Ok(Some(bytes)) => {
                if let Ok(list) = PartitionList::decode(&bytes) {
                    listed = list.entries.iter().filter(|e| e.begun).map(|e| GroupId::from(e.partition)).collect();
                }
                self.put(ScanKind::PartitionList, format!("{}/meta/partitions", disk.name()), bytes);
            }
            Ok(None) => {}
            Err(error) => self.problems.push(error.to_string()),
        }
        for group in listed {
            self.checkpoint_head(disk, group)?;
        }
        let disks = match read(disk, "disks", DISK_LIST_LEN_MAX) {
            Ok(bytes) => bytes.and_then(|bytes| DiskList::decode(&bytes).ok()),
            Err(error) => {
                self.problems.push(error.to_string());
                None
            }
        };
        for path in disks.iter().flat_map(|list| list.disks.keys()) {
            if Path::new(path).is_dir() {
                self.directory(Path::new(path), 0)?;
            } else {
                // The list keeps disks that were removed from the cluster too, and does not say which.
                self.problems.push(format!(
                    "{path}: there is no directory; the node in {} had a disk there. Attach it and look again, or leave it \
                     out if it was removed from the cluster",
                    disk.name()
                ));
            }
        }
        Ok(())
    }

    fn checkpoint_head(&mut self, disk: &dyn Disk, group: GroupId) -> Result<()> {
        let dir = format!("checkpoints/{:010}", group.0);
        let files = match disk.list(&dir) {
            Err(DiskError::NotFound { .. }) => return Ok(()),
            other => other?,
        };
        let Some(newest) = files.into_iter().filter(|file| file.name.ends_with(".ckpt")).max() else { return Ok(()) };
        let path = format!("{dir}/{}", newest.name);
        let file = disk.open(&path, OpenOptions::READ)?;
        let mut block = AlignedBuf::unpooled(CHECKPOINT_BLOCK);
        block.resize(CHECKPOINT_BLOCK);
        match file.read_exact_at(&mut block, 0) {
            Ok(()) => self.put(ScanKind::CheckpointHead, format!("{}/{path}", disk.name()), block.to_vec()),
            Err(error) => self.problems.push(error.to_string()),
        }
        Ok(())
    }
}

/// Reads what the items of scans are copies of; what is damaged is told and left out.
pub fn understand(scans: &[MapScan], problems: &mut Vec<String>) -> Found {
    let mut found = Found::default();
    for scan in scans {
        let mut reading = Reading { found: &mut found, problems, of: Of::Nothing };
        scan.items.iter().for_each(|item| reading.item(item));
    }
    found
}

/// Whose label came last.
#[derive(Clone, Copy)]
enum Of {
    Nothing,
    Node,
    Disk,
}

struct Reading<'a> {
    found: &'a mut Found,
    problems: &'a mut Vec<String>,
    of: Of,
}

impl Reading<'_> {
    fn item(&mut self, item: &ScanItem) {
        let done = match item.kind {
            ScanKind::Label => self.label(item),
            ScanKind::PgState => self.pg(item),
            ScanKind::PartitionList => self.partitions(item),
            ScanKind::CheckpointHead => self.head(item),
        };
        if let Err(why) = done {
            self.problems.push(format!("{}: {why}", item.path));
        }
    }

    fn label(&mut self, item: &ScanItem) -> std::result::Result<(), String> {
        self.of = Of::Nothing;
        let block = <&[u8; LABEL_LEN]>::try_from(item.contents.as_slice()).map_err(|_| "it is no label")?;
        let label = Label::decode(block).map_err(|error| error.to_string())?;
        let (path, cluster, uuid) = (item.path.clone(), label.cluster, label.uuid);
        match label.kind {
            LabelKind::Node => {
                self.of = Of::Node;
                self.found.nodes.push(FoundNode { path, cluster, id: label.node, uuid, partitions: Vec::new() });
            }
            LabelKind::Disk => {
                self.of = Of::Disk;
                let (id, node) = (label.disk, label.node);
                self.found.disks.push(FoundDisk { path, cluster, id, uuid, node, pgs: Vec::new() });
            }
        }
        Ok(())
    }

    fn pg(&mut self, item: &ScanItem) -> std::result::Result<(), String> {
        let block = <&[u8; PG_STATE_LEN]>::try_from(item.contents.as_slice()).map_err(|_| "it has a wrong length")?;
        let state = PgStateRecord::decode(block).map_err(|error| error.to_string())?;
        let disk = match self.of {
            Of::Disk => self.found.disks.last_mut(),
            _ => None,
        };
        let disk = disk.ok_or("it belongs to no disk")?;
        if state.disk != disk.id || state.cluster != disk.cluster {
            return Err(format!("it is of disk {} of cluster {}, and lies on {}", state.disk, state.cluster, disk.id));
        }
        disk.pgs.push(FoundPg {
            id: state.pg,
            volume: state.volume,
            scheme: state.scheme,
            epoch: state.epoch,
            creation_epoch: state.creation_epoch,
            high_water: state.high_water,
            retired: state.retired,
            members: state.members.iter().map(|m| (m.disk, m.node, m.state)).collect(),
        });
        Ok(())
    }

    fn node(&mut self) -> std::result::Result<&mut FoundNode, String> {
        let node = match self.of {
            Of::Node => self.found.nodes.last_mut(),
            _ => None,
        };
        node.ok_or_else(|| "it belongs to no node".to_owned())
    }

    fn partitions(&mut self, item: &ScanItem) -> std::result::Result<(), String> {
        let list = PartitionList::decode(&item.contents).map_err(|error| error.to_string())?;
        let node = self.node()?;
        let begun: BTreeMap<_, _> = list.entries.iter().filter(|e| e.begun).map(|e| (e.partition, e)).collect();
        node.partitions = begun
            .into_values()
            .map(|entry| FoundPartition {
                id: entry.partition,
                volume: entry.volume,
                inodes: entry.inodes,
                layout: entry.layout,
                created: entry.created,
                era: 0,
            })
            .collect();
        Ok(())
    }

    fn head(&mut self, item: &ScanItem) -> std::result::Result<(), String> {
        let block = <&[u8; CHECKPOINT_BLOCK]>::try_from(item.contents.as_slice()).map_err(|_| "it is no checkpoint")?;
        let head = CheckpointHeader::decode(block).map_err(|error| error.to_string())?;
        let node = self.node()?;
        let known = node.partitions.iter_mut().find(|partition| GroupId::from(partition.id) == head.group);
        if let Some(partition) = known {
            partition.era = era_of(head.term);
        }
        Ok(())
    }
}
