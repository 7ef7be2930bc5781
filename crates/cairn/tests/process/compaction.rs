//! Packs that are mostly dead are compacted: little is left of many small files, and disks take little more than that.
use crate::across::{mkdir, volume_of_three};
use crate::disks::chunk_use;
use crate::support::{Cluster, Shape};
use crate::trees::noise;
use crate::wait::LIMIT;
use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

const ROUNDS: u64 = 48;
const FILES: u64 = 50;

/// Chunks of which little lives would stay for the sake of it, each with its tables; or files would be lost when what
/// lives is moved, while servers are killed in the middle.
#[test]
fn little_is_left_and_takes_little() {
    let mut cluster = Cluster::start(Shape { managers: 1, metas: 1, datas: 3, racks: 3 });
    cluster.ok(&["fs", "mkdir", "/t"]);
    compacts(&mut cluster, &["/t"], "default", 3);
}

/// Space would be lost for good where directories are in several partitions; or what one of them names be taken for
/// dead by the one that chooses.
#[test]
fn little_is_left_in_a_volume_of_three_partitions() {
    let mut cluster = Cluster::start(Shape { managers: 1, metas: 1, datas: 3, racks: 3 });
    let parts = volume_of_three(&cluster);
    let trees = ["v:/t0", "v:/t1", "v:/t2"];
    trees.iter().zip(parts).for_each(|(tree, partition)| mkdir(&cluster, tree, partition));
    // Of layout r2.
    compacts(&mut cluster, &trees, "v", 2);
}

/// Fills these directories in turn, removes most of it, and waits until little is left.
fn compacts(cluster: &mut Cluster, trees: &[&str], volume: &str, copies: u64) {
    let (mut kept, mut live) = (BTreeMap::new(), 0);
    // Each round is a session of its own, and leaves packs of its own.
    for round in 0..ROUNDS {
        let (dir, tree) = (cluster.path(&format!("d{round}")), trees[round as usize % trees.len()]);
        fs::create_dir(&dir).expect("directory");
        let mut gone: Vec<String> = Vec::new();
        for file in 0..FILES {
            let seed = round * FILES + file;
            let data = noise(1 + (seed * 7919 % 9000) as usize, seed);
            fs::write(dir.join(format!("f{file}")), &data).expect("file");
            let path = format!("{tree}/d{round}/f{file}");
            // 70 of 100, spread over the order in which they were written.
            if (seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) % 10 < 7 {
                gone.push(path);
            } else {
                live += data.len().div_ceil(4096) as u64 * 4096 * copies;
                kept.insert(path, data);
            }
        }
        cluster.ok(&["fs", "put", dir.to_str().expect("utf-8"), tree]);
        let mut args = vec!["fs", "rm", "--skip-trash"];
        args.extend(gone.iter().map(String::as_str));
        cluster.ok(&args);
        fs::remove_dir_all(&dir).expect("removed");
    }
    let most = live + live * 30 / 100;
    // Tables of one pack a round alone are more than that.
    assert!(ROUNDS * copies * 69_632 > most - live);
    cluster.ok(&["admin", "config", "set", "garbage_period=1s", "garbage_grace=1s"]);
    let started = Instant::now();
    let mut killed = 0;
    let mut before = chunk_use(cluster).0;
    while chunk_use(cluster).1 > most {
        let (count, bytes) = chunk_use(cluster);
        assert!(started.elapsed() < 2 * LIMIT, "{count} chunks take {bytes} bytes, of which {live} live");
        // Moves are under way: chunks went, or came.
        if killed < 4 && count != before {
            let name = ["data1", "meta1", "data2", "data3"][killed];
            cluster.kill(name);
            cluster.start_all();
            killed += 1;
        }
        before = count;
        std::thread::sleep(Duration::from_millis(300));
    }
    assert!(killed > 0, "nothing was moved");
    let (count, bytes) = chunk_use(cluster);
    eprintln!("{count} chunks take {bytes} bytes, {live} live, {killed} servers killed, {:?}", started.elapsed());
    cluster.wait_healthy();
    for (number, tree) in trees.iter().enumerate() {
        let back = cluster.path(&format!("back{number}"));
        cluster.ok(&["fs", "get", tree, back.to_str().expect("utf-8")]);
        for (path, data) in kept.iter().filter(|(path, _)| path.starts_with(tree)) {
            let local = back.join(path.strip_prefix(&format!("{tree}/")).expect("below it"));
            assert!(fs::read(&local).expect("kept") == *data, "{path} differs");
        }
    }
    cluster.ok(&["admin", "fsck", volume]);
}
