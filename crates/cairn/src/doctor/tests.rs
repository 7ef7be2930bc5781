//! What is concluded from what was measured.
use super::cluster::{belongs, listens, offset, plain};
use super::*;
use cairn_env::{OsRng, RealDisk};
use cairn_format::label::LabelKind;
use cairn_store::{KnownDisks, LabelledDir};
use cairn_types::{ClusterId, DiskId, DiskUuid, NodeId, WallTime};
use cairn_wire::manager::{ClusterMap, Node, WithoutKey};
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;

/// A slow answer would be taken for a wrong clock, or a wrong clock be missed.
#[test]
fn only_what_cannot_be_the_way_is_the_clock() {
    const S: u64 = 1_000_000_000;
    assert_eq!(offset("n1", 100 * S, 103 * S, 106 * S).level, Level::Good, "it may have been a slow answer");
    assert_eq!(offset("n1", 100 * S, 100 * S, 106 * S).level, Level::Good);
    let ahead = offset("n1", 100 * S, 110 * S, 101 * S);
    assert!(ahead.level == Level::Warning && ahead.what.contains("9.0 s ahead of"), "{ahead:?}");
    let behind = offset("n1", 100 * S, 50 * S, 101 * S);
    assert!(behind.level == Level::Warning && behind.what.contains("50.0 s behind"), "{behind:?}");
}

const OURS: ClusterId = ClusterId([1; 16]);
const OTHER: ClusterId = ClusterId([2; 16]);

fn labelled(dir: &Path, kind: LabelKind, cluster: ClusterId, node: u32) -> LabelledDir {
    let disk = Arc::new(RealDisk::create(dir).expect("a directory"));
    let mut made = LabelledDir::open(disk, kind, cluster, &OsRng, WallTime(1)).expect("a label");
    match kind {
        LabelKind::Node => made.set_node(NodeId(node)).expect("written"),
        LabelKind::Disk => made.set_disk(NodeId(node), DiskId(node)).expect("written"),
    }
    made
}

/// All would be called good, and the server refuse to start, or start without a disk.
#[test]
fn directories_of_others_are_told() {
    let dir = tempfile::tempdir().expect("directory");
    let at = |name: &str| dir.path().join(name);
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let listen = taken.local_addr().expect("its address");
    let text = format!(
        "[node]\ndir = {:?}\nlisten = \"{listen}\"\n[manager]\nmembers = [\"1@127.0.0.1:1\"]\n[data]\ndisks = [{:?}, {:?}, {:?}, {:?}, {:?}]\n",
        at("node"),
        at("good"),
        at("other"),
        at("photos"),
        at("file"),
        at("unmounted").join("disk"),
    );
    let config = config::parse("x", &text).expect("a configuration");
    let node = labelled(&at("node"), LabelKind::Node, OURS, 16);
    drop(labelled(&at("good"), LabelKind::Disk, OURS, 16));
    drop(labelled(&at("other"), LabelKind::Disk, OTHER, 17));
    fs::create_dir(at("photos")).expect("directory");
    fs::write(at("photos").join("holiday.jpg"), b"x").expect("file");
    fs::write(at("file"), b"x").expect("file");
    let before = fs::read_dir(at("good")).expect("listed").count();

    let (identity, found) = labels::look(&config);
    let bad: Vec<&str> = found.iter().filter(|f| f.level == Level::Bad).map(|f| f.what.as_str()).collect();
    assert_eq!(bad.len(), 4, "{bad:?}");
    assert!(bad[3].contains("unmounted is not there; mount"), "{bad:?}");
    assert!(bad[0].contains("d17 of n17 of cluster") && bad[0].contains("node directory is that of n16"), "{bad:?}");
    assert!(bad[1].contains("holiday.jpg") && bad[2].ends_with("is no directory"), "{bad:?}");
    assert_eq!(fs::read_dir(at("good")).expect("listed").count(), before, "nothing is changed");
    assert_eq!(listens(&config, identity.held).level, Level::Good, "its server runs");
    drop(node);
    let (identity, _) = labels::look(&config);
    let port = listens(&config, identity.held);
    assert!(port.level == Level::Bad && port.what.contains("is taken, and not by this node"), "{port:?}");

    let nodes = vec![Node { id: 16, removed: true, ..Node::default() }];
    let map = ClusterMap { cluster: OTHER.0.to_vec(), nodes: nodes.clone(), ..ClusterMap::default() };
    let told = |map: &ClusterMap| -> Vec<String> {
        identity.labels.iter().filter_map(|(dir, label)| belongs(dir, label, map)).map(|finding| finding.what).collect()
    };
    let theirs = told(&map);
    assert!(theirs.len() == 2 && theirs.iter().all(|what| what.contains("the managers are of cluster")), "{theirs:?}");
    let removed = told(&ClusterMap { cluster: OURS.0.to_vec(), nodes, ..ClusterMap::default() });
    assert!(removed.iter().any(|what| what.contains("is of n16, which was removed")), "{removed:?}");
    // An empty directory where a disk was.
    fs::remove_dir_all(at("photos")).expect("removed");
    remember_disk(&at("node"), &at("photos"));
    fs::create_dir(at("photos")).expect("directory");
    let (_, found) = labels::look(&config);
    assert!(found.iter().any(|f| f.level == Level::Bad && f.what.contains("is empty, but disk")), "{found:?}");
}

/// A node has had a disk at a path.
fn remember_disk(node: &Path, path: &Path) {
    let at = Arc::new(RealDisk::open(node).expect("it is there"));
    let dir = LabelledDir::open(at, LabelKind::Node, OURS, &OsRng, WallTime(1)).expect("its label");
    let known = KnownDisks::open(dir.disk().clone(), dir.label().uuid, []).expect("a list");
    known.note(&path.display().to_string(), DiskUuid([7; 16])).expect("noted");
}

/// A server that requires keys would shut somebody out, and its administrator hear of it from him.
#[test]
fn who_would_be_shut_out_is_named_before() {
    let one = |who: &str| WithoutKey { who: who.to_owned(), nodes: vec![16] };
    assert!(plain(&[]).is_none());
    let found = plain(&[one("10.0.0.7"), one("n18 at\n10.0.0.8")]).expect("two have none");
    assert!(found.level == Level::Bad && found.what.contains("10.0.0.7, n18 at10.0.0.8 still come"), "{found:?}");
    let many = vec![one("10.0.0.7"); 9];
    assert!(plain(&many).expect("nine").what.contains("and others"));
}
