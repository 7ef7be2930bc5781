//! Trees of local files for tests: made, read, compared.
use crate::support::Cluster;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Bytes that differ from file to file and compress badly.
pub fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = Vec::with_capacity(length + 8);
    while out.len() < length {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        out.extend_from_slice(&(x ^ (x >> 29)).to_le_bytes());
    }
    out.truncate(length);
    out
}

/// A tree of `count` files of assorted sizes, with directories and a symbolic link.
pub fn make_tree(root: &Path, count: usize, seed: u64) {
    const SIZES: [usize; 8] = [0, 1, 100, 4096, 5000, 70_000, 200_000, 1_500_000];
    for i in 0..count {
        let dir = root.join(format!("d{}", i % 7)).join(format!("e{}", i % 3));
        fs::create_dir_all(&dir).expect("directory");
        fs::write(dir.join(format!("file-{i}")), noise(SIZES[i % SIZES.len()], seed + i as u64)).expect("file");
    }
    std::os::unix::fs::symlink("d0/e0/file-0", root.join("link")).expect("link");
}

/// Every path below `root` with its contents or link target.
pub fn read_tree(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut out = BTreeMap::new();
    let mut stack = vec![root.to_path_buf()];
    while let Some(dir) = stack.pop() {
        for entry in fs::read_dir(&dir).expect("directory") {
            let path = entry.expect("entry").path();
            let kind = fs::symlink_metadata(&path).expect("metadata").file_type();
            let name = path.strip_prefix(root).expect("below the root").to_path_buf();
            if kind.is_dir() {
                stack.push(path);
            } else if kind.is_symlink() {
                out.insert(name, fs::read_link(&path).expect("link").into_os_string().into_encoded_bytes());
            } else {
                let mut bytes = Vec::new();
                File::open(&path).expect("open").read_to_end(&mut bytes).expect("read");
                out.insert(name, bytes);
            }
        }
    }
    out
}

/// Panics with the first difference of two trees.
pub fn assert_same_tree(left: &Path, right: &Path) {
    let (a, b) = (read_tree(left), read_tree(right));
    for (name, bytes) in &a {
        match b.get(name) {
            None => panic!("{} is missing in {}", name.display(), right.display()),
            Some(other) => {
                assert!(bytes == other, "{} differs: {} and {} bytes", name.display(), bytes.len(), other.len())
            }
        }
    }
    assert_eq!(a.len(), b.len(), "{} has entries that were not there", right.display());
}

/// A tree of small files and a large one, stored in copies and in shards below `/copies` and `/shards`.
pub fn put_trees(cluster: &Cluster) -> PathBuf {
    let tree = cluster.path("tree");
    make_tree(&tree, 30, 5);
    fs::write(tree.join("large"), noise(9_000_000, 31)).expect("large");
    for (layout, target) in [("r3", "/copies"), ("rs-3-2", "/shards")] {
        cluster.ok(&["fs", "mkdir", "--layout", layout, target]);
        cluster.ok(&["fs", "put", &format!("{}/.", tree.display()), target]);
    }
    tree
}

/// Reads both of them back and compares them.
pub fn check_trees(cluster: &Cluster, tree: &Path, name: &str) {
    for target in ["/copies", "/shards"] {
        let back = cluster.path(name);
        cluster.ok(&["fs", "get", target, &back.display().to_string()]);
        assert_same_tree(tree, &back);
        fs::remove_dir_all(&back).expect("removed");
    }
}
