//! Copies that share their bytes: through `copy_file_range` of a mount and `cairn fs cp`, with real disks behind.
use super::seeds::Rng;
use super::{Mount, SMALL, skipped};
use crate::disks::chunk_use;
use crate::support::{Cluster, text};
use crate::wait::until_told;
use rustix::fs::copy_file_range;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const BLOCK: usize = 4096;

fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..length.div_ceil(8)).flat_map(|_| rng.next().to_le_bytes()).take(length).collect()
}

fn copy(mount: &Mount, from: &str, to: &str) {
    let (source, target) = (File::open(mount.path(from)).expect("open"), File::create(mount.path(to)).expect("create"));
    let (mut read, mut written) = (0, 0);
    while copy_file_range(&source, Some(&mut read), &target, Some(&mut written), 1 << 30).expect("copied") > 0 {}
    target.sync_all().expect("synced");
}

/// Bytes that chunks occupy, at most so much.
fn wait_for_use(cluster: &Cluster, most: u64, what: &str) {
    let used = || chunk_use(cluster).1;
    until_told(what, || used() <= most, || format!("{} bytes are used, {most} would do", used()));
}

/// Copies would take space, a write to one would change the others, or deleting one would take the bytes from all.
#[test]
fn copies_take_no_space_until_they_differ() {
    if skipped() {
        return;
    }
    let cluster = Cluster::start(SMALL);
    let mount = Mount::new(&cluster, "mnt", "/", "");
    let mut contents = vec![("a", bytes(1, 24 * MIB as usize + 777))];
    fs::write(mount.path("a"), &contents[0].1).expect("written");
    let (_, one) = chunk_use(&cluster);
    assert!(one >= 3 * 24 * MIB, "{one} bytes are used by three copies of a file");
    for (from, to) in [("a", "b"), ("b", "c")] {
        copy(&mount, from, to);
        contents.push((to, contents[0].1.clone()));
    }
    cluster.ok(&["fs", "cp", "/c", "/d"]);
    contents.push(("d", contents[0].1.clone()));
    let (_, four) = chunk_use(&cluster);
    assert!(four < one + 3 * MIB, "{four} bytes are used by four files that share {one}");

    // Each of them is written at its own places, in the middle of blocks too.
    let mut rng = Rng::new(5);
    for round in 0..12u64 {
        let (name, model) = &mut contents[round as usize % 4];
        let file = File::options().write(true).open(mount.path(name)).expect("open");
        for _ in 0..20 {
            let at = rng.next() as usize % (model.len() - BLOCK);
            let at = if round % 3 == 0 { at } else { at / BLOCK * BLOCK };
            file.write_all_at(&[round as u8; BLOCK], at as u64).expect("written");
            model[at..at + BLOCK].fill(round as u8);
        }
        file.sync_all().expect("synced");
    }
    let (name, model) = &mut contents[3];
    File::options().write(true).open(mount.path(name)).expect("open").set_len(5 * MIB + 99).expect("cut");
    model.truncate(5 * MIB as usize + 99);
    for (name, model) in &contents {
        assert!(fs::read(mount.path(name)).expect("read") == *model, "{name} in the mount");
        let output = cluster.cairn(&["fs", "cat", &format!("/{name}")]);
        assert!(output.stdout == *model, "{name} elsewhere: {}", text(&output.stderr));
    }
    let report = cluster.ok(&["admin", "fsck"]);
    println!("{report}");

    // With the last that names it a block is free, not before.
    for name in ["a", "c"] {
        fs::remove_file(mount.path(name)).expect("removed");
    }
    std::thread::sleep(Duration::from_secs(8));
    for (name, model) in contents.iter().filter(|(name, _)| ["b", "d"].contains(name)) {
        assert!(
            cluster.cairn(&["fs", "cat", &format!("/{name}")]).stdout == *model,
            "{name} after others were removed"
        );
    }
    cluster.ok(&["admin", "fsck"]);
    for name in ["b", "d"] {
        fs::remove_file(mount.path(name)).expect("removed");
    }
    wait_for_use(&cluster, one / 8, "all files are removed");
    let umount = mount.umount();
    assert!(umount.status.success(), "{}", text(&umount.stderr));
}
