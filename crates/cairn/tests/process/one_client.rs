//! What one client puts into a staged directory is encoded together, where it lies, with real processes: also small
//! files, and a large one alone.
use crate::stripe_shards::{start_with, stat};
use crate::support::{Cluster, Shape};
use crate::trees::{assert_same_tree, noise, read_tree};
use crate::wait::until_told;
use std::fs;
use std::path::Path;

const MIB: usize = 1 << 20;

fn together(cluster: &Cluster) -> f64 {
    cluster.metric("meta1", "cairn_meta_encoded_together_bytes").unwrap_or_default()
}

fn bytes_of(root: &Path) -> u64 {
    read_tree(root).values().map(|bytes| bytes.len() as u64).sum()
}

/// The leader counts a moment after the files have their stage.
fn check_together(cluster: &Cluster, local: &Path) {
    let bytes = bytes_of(local);
    let most = || together(cluster) >= 0.9 * bytes as f64;
    until_told("most to be encoded together", most, || format!("{} of {bytes} bytes were", together(cluster)));
}

/// Reads all back into a new local directory, and compares.
fn check(cluster: &Cluster, local: &Path, as_name: &str) {
    let back = cluster.path(as_name);
    cluster.ok(&["fs", "get", "-r", "/warm/tree", back.to_str().expect("utf-8")]);
    assert_same_tree(local, &back);
    fs::remove_dir_all(&back).expect("removed");
}

/// All of it would be encoded by file, so that its bytes cross racks, and small files stay copies for ever; or what is
/// left of it when half was removed be lost.
#[test]
fn a_tree_is_encoded_together() {
    let shape = Shape { managers: 1, metas: 1, datas: 9, racks: 3 };
    let cluster = start_with(shape, "r3>rs-4-2", &["garbage_period=1s", "garbage_grace=1s"]);
    let local = cluster.path("tree");
    for i in 0..337usize {
        let dir = local.join(format!("d{}", i % 7));
        fs::create_dir_all(&dir).expect("directory");
        fs::write(dir.join(format!("f{i}")), noise(1 + i % 11 * 9_001, i as u64)).expect("file");
    }
    fs::write(local.join("large"), noise(20 * MIB + 5, 999)).expect("file");
    cluster.ok(&["fs", "put", "-r", local.to_str().expect("utf-8"), "/warm"]);
    assert_eq!(together(&cluster), 0.0, "nothing is due for a day");
    let told = cluster.ok(&["fs", "layout", "encode", "/warm"]);
    assert!(told.contains("338 encoded"), "{told}");
    check_together(&cluster, &local);
    assert_eq!(stat(&cluster, "/warm/tree/d1/f1")["stage"], "encoded");
    check(&cluster, &local, "first");
    // Half of it goes.
    for i in (0..337).step_by(2) {
        let name = format!("d{}/f{i}", i % 7);
        cluster.ok(&["fs", "rm", "--skip-trash", &format!("/warm/tree/{name}")]);
        fs::remove_file(local.join(name)).expect("removed");
    }
    check(&cluster, &local, "second");
    cluster.ok(&["admin", "fsck"]);
}

/// A large file would lie in one column after the other, so that there is never something of all of them.
#[test]
fn a_large_file_alone_is_encoded_together() {
    let shape = Shape { managers: 1, metas: 1, datas: 9, racks: 3 };
    let cluster = start_with(shape, "r3>rs-4-2", &[]);
    let local = cluster.path("tree");
    fs::create_dir_all(&local).expect("directory");
    fs::write(local.join("large"), noise(36 * MIB + 5, 7)).expect("file");
    cluster.ok(&["fs", "put", "-r", local.to_str().expect("utf-8"), "/warm"]);
    let told = cluster.ok(&["fs", "layout", "encode", "/warm"]);
    assert!(told.contains("1 encoded"), "{told}");
    check_together(&cluster, &local);
    check(&cluster, &local, "back");
}

/// Out of the hours of encoding, whoever asks for small files would be told that they stay copies, and they would, for
/// ever.
#[test]
fn who_asks_is_served_at_any_hour() {
    let shape = Shape { managers: 1, metas: 1, datas: 9, racks: 3 };
    let cluster = start_with(shape, "r3>rs-4-2", &["stage_hours=never"]);
    let local = cluster.path("tree");
    fs::create_dir_all(&local).expect("directory");
    for i in 0..80 {
        fs::write(local.join(format!("f{i}")), noise(60_000, i)).expect("file");
    }
    cluster.ok(&["fs", "put", "-r", local.to_str().expect("utf-8"), "/warm"]);
    let told = cluster.ok(&["fs", "layout", "encode", "/warm"]);
    assert!(told.contains("80 encoded"), "{told}");
    check_together(&cluster, &local);
    check(&cluster, &local, "back");
}
