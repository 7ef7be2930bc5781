//! Backups in a directory, and states put into directories of nodes.
use cairn_env::{Disk, RealDisk};
use cairn_format::backup_manifest::{BackupEntry, BackupManifest};
use cairn_format::checkpoint::CheckpointHeader;
use cairn_format::disk_list::DiskList;
use cairn_format::partition_list::PartitionEntry;
use cairn_rescue::node_dir::Place;
use cairn_rescue::scan::{scan, understand};
use cairn_rescue::{BackupSet, NodeDir, RescueError};
use cairn_store::{CheckpointSink, CheckpointStore};
use cairn_types::{ClusterId, DiskUuid, GroupId, Layout, NodeId, PartitionId, VolumeId, WallTime};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

const CLUSTER: ClusterId = ClusterId([7; 16]);
const GROUP: GroupId = GroupId(4);
const NOW: WallTime = WallTime(1_795_000_000_000_000_000);

/// A checkpoint file as a node writes it.
fn checkpoint(dir: &Path, index: u64, state: &[u8]) -> Vec<u8> {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::create(dir).expect("directory"));
    let header = CheckpointHeader {
        cluster: CLUSTER,
        group: GROUP,
        index,
        term: 3,
        time: WallTime(50),
        voters: vec![17],
        learners: Vec::new(),
    };
    CheckpointStore::new(disk, "c", CLUSTER).write(header, |sink| sink.write(state)).expect("written");
    std::fs::read(dir.join(format!("c/{:010}/{index:020}.ckpt", GROUP.0))).expect("file")
}

fn put(set: &BackupSet, number: u64, index: u64, bytes: &[u8]) -> BackupManifest {
    let mut incoming = set.incoming(GROUP).expect("file");
    bytes.chunks(1000).for_each(|part| incoming.write(part).expect("written"));
    let kept = incoming.finish(index, 3).expect("whole");
    let entry = BackupEntry {
        group: GROUP,
        node: NodeId(17),
        index,
        term: 3,
        time: kept.time,
        bytes: kept.bytes,
        crc: kept.crc,
        led: true,
        cut: false,
    };
    let manifest = BackupManifest { cluster: CLUSTER, number, begun: NOW, ended: NOW, entries: vec![entry] };
    set.publish(&manifest).expect("published");
    manifest
}

fn files(dir: &Path) -> Vec<String> {
    let inside = dir.join("checkpoints").join(format!("{:010}", GROUP.0));
    let mut names: Vec<String> = std::fs::read_dir(inside)
        .expect("directory")
        .map(|e| e.expect("entry").file_name().into_string().expect("name"))
        .collect();
    names.sort();
    names
}

/// A backup that cannot be relied on would be found out when it is needed.
#[test]
fn every_byte_of_a_backup_is_verified() {
    let dir = tempfile::tempdir().expect("dir");
    let set = BackupSet::create(&dir.path().join("set")).expect("set");
    let bytes = checkpoint(&dir.path().join("node"), 9, &[5; 300_000]);
    let manifest = put(&set, 1, 9, &bytes);
    assert_eq!(set.verify(&manifest), []);
    assert_eq!(set.manifest(None), Ok(manifest.clone()));
    assert!(matches!(set.manifest(Some(2)), Err(RescueError::NoBackup { number: 2, .. })));
    let file = dir.path().join("set/checkpoints/0000000004").join(&files(&dir.path().join("set"))[0]);
    let mut faults = 0;
    for at in (0..bytes.len()).step_by(9_973) {
        let mut bad = bytes.clone();
        bad[at] ^= 4;
        std::fs::write(&file, &bad).expect("damage");
        assert_eq!(set.verify(&manifest).len(), 1, "byte {at}");
        assert_eq!(set.kept(GROUP, 9, 3), Ok(None), "it is brought again");
        faults += 1;
    }
    assert!(faults > 20);
    std::fs::remove_file(&file).expect("damage");
    assert_eq!(set.verify(&manifest).len(), 1);
}

/// What came over the network damaged would be kept under a good name.
#[test]
fn a_file_that_is_not_whole_gets_no_name() {
    let dir = tempfile::tempdir().expect("dir");
    let set = BackupSet::create(&dir.path().join("set")).expect("set");
    let bytes = checkpoint(&dir.path().join("node"), 9, b"state");
    for (index, bytes) in [(10, bytes.clone()), (9, bytes[..bytes.len() - 4096].to_vec())] {
        let mut incoming = set.incoming(GROUP).expect("file");
        incoming.write(&bytes).expect("written");
        assert!(incoming.finish(index, 3).is_err());
        assert_eq!(files(&dir.path().join("set")), ["incoming.tmp"]);
    }
}

/// Dropping an old backup would take files from a newer one, or old ones would fill the disk.
#[test]
fn files_go_with_the_last_backup_that_names_them() {
    let dir = tempfile::tempdir().expect("dir");
    let set = BackupSet::create(&dir.path().join("set")).expect("set");
    let old = checkpoint(&dir.path().join("node"), 9, b"old");
    let new = checkpoint(&dir.path().join("node"), 12, b"new");
    put(&set, 1, 9, &old);
    put(&set, 2, 12, &new);
    let third = BackupManifest { number: 3, ..set.manifest(Some(2)).expect("second") };
    set.publish(&third).expect("published");
    assert_eq!(set.prune(2), Ok(vec![1]));
    assert_eq!((set.numbers(), files(&dir.path().join("set")).len()), (Ok(vec![2, 3]), 1));
    assert_eq!(set.prune(1), Ok(vec![2]));
    assert_eq!(set.verify(&third), []);
}

/// The only copy of newer names would be replaced by an older one, or another cluster's or node's directory be used.
#[test]
fn directories_are_guarded() {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("node");
    let of = Place { index: 100, term: 3 };
    let first = {
        let node = NodeDir::open(&path, CLUSTER, NodeId(17), NOW).expect("new");
        assert_eq!(node.has(GROUP), Ok(None));
        node.guard(GROUP, 1).expect("nothing is there");
        let place = node.put(GROUP, of, WallTime(50), NOW, |sink| sink.write(b"state")).expect("put");
        assert!(place.index > of.index && cairn_types::era_of(place.term) == NOW.0 / 1_000_000_000);
        assert!(matches!(NodeDir::open(&path, CLUSTER, NodeId(17), NOW), Err(RescueError::Store(_))), "it is locked");
        place
    };
    for (cluster, id) in [(ClusterId([8; 16]), NodeId(17)), (CLUSTER, NodeId(18))] {
        assert!(NodeDir::open(&path, cluster, id, NOW).is_err());
    }
    let node = NodeDir::open(&path, CLUSTER, NodeId(17), NOW).expect("the same again");
    assert_eq!(node.has(GROUP), Ok(Some(first)));
    assert!(matches!(node.guard(GROUP, 100), Err(RescueError::NewerState { has, .. }) if has == first.index));
    // Once more at the same time of day, over it: still a later history.
    let second = node.put(GROUP, of, WallTime(50), NOW, |sink| sink.write(b"state")).expect("put");
    assert!(second.index > first.index && cairn_types::era_of(second.term) > cairn_types::era_of(first.term));
    let foreign = dir.path().join("foreign");
    std::fs::create_dir(&foreign).expect("directory");
    std::fs::write(foreign.join("thesis.txt"), "mine").expect("file");
    assert!(NodeDir::open(&foreign, CLUSTER, NodeId(17), NOW).is_err());
    assert_eq!(
        std::fs::read_dir(&foreign)
            .expect("directory")
            .filter(|e| e.as_ref().is_ok_and(|e| e.file_name() != "lock"))
            .count(),
        1
    );
}

/// A restored partition would not be found when the map is made anew, or taken for one of before.
#[test]
fn a_scan_finds_what_was_put_in_place() {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("some/nodes/meta");
    let entry = PartitionEntry {
        partition: PartitionId(GROUP.0),
        volume: VolumeId(2),
        inodes: (1, 99),
        begun: true,
        members: vec![NodeId(17)],
        layout: Layout::replicated(3),
        created: WallTime(5),
    };
    {
        let node = NodeDir::open(&path, CLUSTER, NodeId(17), NOW).expect("new");
        node.put(GROUP, Place { index: 1, term: 1 }, WallTime(5), NOW, |sink| sink.write(b"state")).expect("put");
        node.list_partitions(vec![entry.clone()]).expect("listed");
        node.list_partitions(vec![entry]).expect("listed once");
    }
    let scanned = scan(&[dir.path().to_owned()]).expect("scan");
    assert_eq!(scanned.problems, Vec::<String>::new());
    let mut problems = Vec::new();
    let found = understand(&[scanned.scan], &mut problems);
    assert!(problems.is_empty() && found.nodes.len() == 1 && found.disks.is_empty(), "{problems:?}");
    let partitions = &found.nodes[0].partitions;
    assert_eq!((found.nodes[0].id, partitions.len()), (NodeId(17), 1));
    assert_eq!((partitions[0].volume, partitions[0].era), (VolumeId(2), NOW.0 / 1_000_000_000));
    let nothing = scan(&[dir.path().join("some/nodes/meta/log")]).expect("scan");
    assert_eq!(nothing.problems.len(), 1);
}

/// A disk of which nothing is read would be missed without a word, or be called lost though it was removed on purpose.
#[test]
fn a_listed_disk_without_a_directory_is_told() {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("node");
    drop(NodeDir::open(&path, CLUSTER, NodeId(17), NOW).expect("new"));
    let gone = dir.path().join("gone").display().to_string();
    let list = DiskList { node: DiskUuid([4; 16]), disks: BTreeMap::from([(gone.clone(), DiskUuid([5; 16]))]) };
    std::fs::write(path.join("disks"), list.encode()).expect("list");
    let problems = scan(&[path]).expect("scan").problems;
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].starts_with(&gone) && problems[0].contains("if it was removed"), "{problems:?}");
}
