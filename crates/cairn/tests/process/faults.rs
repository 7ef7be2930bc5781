//! Real processes and SIGKILL: what was acknowledged is there afterwards, whoever dies in the middle.
use crate::disks::{chunk_use, chunks};
use crate::support::{self, Cluster, Shape};
use crate::trees::{assert_same_tree, make_tree, noise};
use crate::wait::{LIMIT, until, until_told};
use std::fs;
use std::time::Instant;

const FULL: Shape = Shape { managers: 3, metas: 3, datas: 4, racks: 4 };

/// A put that outlives the death of any one process would be lost or torn if acknowledgements came too early.
fn killed_during_put(victims: &[&str]) {
    let mut cluster = Cluster::start(FULL);
    let tree = cluster.path("tree");
    make_tree(&tree, 400, 1);
    for (round, victim) in victims.iter().enumerate() {
        let target = cluster.put_with_a_death(&tree, &format!("/tree{round}"), victim);
        let back = cluster.path(&format!("back{round}"));
        cluster.ok(&["fs", "get", &target, back.to_str().expect("utf-8")]);
        assert_same_tree(&tree, &back);
        cluster.start_all();
    }
    // Whoever came back has caught up.
    cluster.wait_healthy();
    assert_eq!(cluster.kills, victims.len(), "every fault fired");
}

#[test]
fn a_put_survives_the_death_of_data_nodes() {
    killed_during_put(&["data1", "data2"]);
}

#[test]
fn a_put_survives_the_death_of_metas_and_managers() {
    killed_during_put(&["meta1", "manager1", "meta2", "manager2"]);
}

/// Losing power everywhere must not lose anything that a finished put stored.
#[test]
fn everything_acknowledged_is_there_after_all_processes_were_killed() {
    let mut cluster = Cluster::start(Shape { managers: 1, metas: 1, datas: 3, racks: 3 });
    let tree = cluster.path("tree");
    make_tree(&tree, 200, 2);
    cluster.ok(&["fs", "put", tree.to_str().expect("utf-8"), "/tree"]);
    for round in 0..2 {
        cluster.kill_all();
        cluster.start_all();
        cluster.wait_volume();
        let back = cluster.path(&format!("back{round}"));
        cluster.ok(&["fs", "get", "/tree", back.to_str().expect("utf-8")]);
        assert_same_tree(&tree, &back);
    }
    assert_eq!(cluster.kills, 10);
}

/// A flipped bit must neither reach a reader nor stay on the disk.
#[test]
fn a_flipped_bit_is_healed_from_another_replica() {
    let mut cluster = Cluster::start(Shape { managers: 1, metas: 1, datas: 3, racks: 3 });
    let data = noise(3_000_000, 5);
    let file = cluster.path("file");
    fs::write(&file, &data).expect("file");
    cluster.ok(&["fs", "put", file.to_str().expect("utf-8"), "/file"]);
    for name in ["data1", "data2", "data3"] {
        cluster.kill(name);
    }
    // The same bytes lie on every disk: damage the copies of the first two, each at another place.
    let needle = &data[1_000_000..1_000_064];
    let mut flipped = Vec::new();
    for (disk, shift) in [("data1", 0), ("data2", 40_000)] {
        let chunk = find_chunk(&cluster, disk, needle);
        let mut bytes = fs::read(&chunk).expect("chunk");
        let at = bytes.windows(needle.len()).position(|w| w == needle).expect("there") + shift;
        bytes[at] ^= 0x10;
        fs::write(&chunk, &bytes).expect("damage");
        flipped.push((chunk, at, bytes[at]));
    }
    cluster.start_all();
    // Each read begins at a copy chosen by chance: enough of them meet the damaged ones.
    for round in 0..12 {
        let back = cluster.path(&format!("back{round}"));
        cluster.ok(&["fs", "get", "/file", back.to_str().expect("utf-8")]);
        assert!(fs::read(&back).expect("back") == data, "a damaged block reached the reader");
    }
    let healed = |(chunk, at, bad): &(std::path::PathBuf, usize, u8)| fs::read(chunk).expect("chunk")[*at] != *bad;
    until("the damaged blocks are healed on the disks", || {
        cluster.ok(&["fs", "cat", "/file"]);
        flipped.iter().all(healed)
    });
}

/// The chunk file on a disk that holds these bytes.
fn find_chunk(cluster: &Cluster, name: &str, needle: &[u8]) -> std::path::PathBuf {
    let holds =
        |path: &std::path::PathBuf| fs::read(path).expect("chunk").windows(needle.len()).any(|window| window == needle);
    chunks(&cluster.disk(name)).into_iter().find(holds).expect("a chunk that holds the bytes")
}

/// Deleted files that kept their space would fill the cluster for ever.
#[test]
fn deleted_files_give_their_space_back() {
    let cluster = Cluster::start(Shape { managers: 1, metas: 1, datas: 3, racks: 3 });
    let file = cluster.path("file");
    fs::write(&file, noise(40_000_000, 9)).expect("file");
    cluster.ok(&["fs", "put", file.to_str().expect("utf-8"), "/file"]);
    let used = || -> u64 {
        let output = std::process::Command::new("du").arg("-sk").arg(cluster.path("disks")).output().expect("du");
        support::text(&output.stdout).split_whitespace().next().and_then(|t| t.parse().ok()).expect("a number")
    };
    let full = used();
    cluster.ok(&["fs", "rm", "--skip-trash", "/file"]);
    let told = || format!("{full} KiB before, {} KiB now", used());
    until_told("the space of the file", || used() + 3 * 35_000 <= full, told);
}

/// Blocks of small files that were deleted would stay in use because their neighbours in the chunk live, or dead chunks
/// would stay; also when everything is killed in the middle.
#[test]
fn deleted_small_files_give_their_blocks_back() {
    const COPIES: u64 = 3;
    /// Header and tables of a chunk file, and what the file system needs for many holes.
    const OVERHEAD: u64 = 69_632 + 16_384;
    let mut cluster = Cluster::start(Shape { managers: 1, metas: 1, datas: 3, racks: 3 });
    let mut live = 0;
    for round in 0..2 {
        let tree = cluster.path(&format!("tree{round}"));
        fs::create_dir_all(&tree).expect("directory");
        let size = |i: usize| 1024 + i * 7919 % (99 * 1024);
        for i in 0..1000 {
            fs::write(tree.join(format!("f{i:03}")), noise(size(i), i as u64)).expect("file");
        }
        cluster.ok(&["fs", "put", tree.to_str().expect("utf-8"), "/"]);
        let doomed = (0..1000).filter(|i| i % 10 != 0).map(|i| format!("/tree{round}/f{i:03}"));
        let args: Vec<String> = ["fs", "rm", "--skip-trash"].into_iter().map(String::from).chain(doomed).collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        live += (0..1000).step_by(10).map(|i| (size(i) as u64).next_multiple_of(4096)).sum::<u64>() * COPIES;
        let (_, before) = chunk_use(&cluster);
        let mut job = cluster.command(&args).spawn().expect("rm");
        if round == 1 {
            let started = Instant::now();
            while chunk_use(&cluster).1 > before - (8 << 20) && job.try_wait().expect("wait").is_none() {
                assert!(started.elapsed() < LIMIT, "nothing was freed");
            }
            cluster.kill_all();
            cluster.start_all();
        }
        let ended = job.wait_with_output().expect("rm ends");
        assert!(ended.status.success(), "{}", support::text(&ended.stderr));
        let started = Instant::now();
        let fits = |(count, bytes): (usize, u64)| bytes <= live + count as u64 * OVERHEAD;
        let told = || format!("{:?} chunks and bytes in use, {live} live, {before} before", chunk_use(&cluster));
        until_told("no more blocks in use than live ones", || fits(chunk_use(&cluster)), told);
        eprintln!(
            "round {round}: {before} before, {:?} after {:?}, {live} live",
            chunk_use(&cluster),
            started.elapsed()
        );
        let back = cluster.path(&format!("back{round}"));
        cluster.ok(&["fs", "get", &format!("/tree{round}"), back.to_str().expect("utf-8")]);
        for i in (0..1000).step_by(10) {
            let found = fs::read(back.join(format!("f{i:03}"))).expect("kept");
            assert!(found == noise(size(i), i as u64), "f{i:03} differs");
        }
    }
    // Chunks of which nothing is left go.
    for round in 0..2 {
        cluster.ok(&["fs", "rm", "--skip-trash", "-r", &format!("/tree{round}")]);
    }
    until_told("no chunk left", || chunk_use(&cluster).0 == 0, || format!("{:?} are there", chunk_use(&cluster)));
}
