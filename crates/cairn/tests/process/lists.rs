//! What servers know to be wrong, and the status says: chunks that members lack, which are looked for until they are
//! there; groups that refuse what clients want.
use crate::disks::chunks;
use crate::support::{Cluster, Shape, copy_dir, text};
use crate::trees::noise;
use crate::wait::{LIMIT, eventually};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

const SHAPE: Shape = Shape { managers: 1, metas: 1, datas: 3, racks: 3 };
const DATAS: [&str; 3] = ["data1", "data2", "data3"];
/// Where the tables of a chunk file begin, behind its header and state.
const TABLES: usize = 4096;

/// What a disk has of a chunk, by its path below the disk.
fn copy(cluster: &Cluster, data: &str, chunk: &Path) -> Option<Vec<u8>> {
    fs::read(cluster.disk(data).join(chunk)).ok().map(|bytes| bytes[TABLES.min(bytes.len())..].to_vec())
}

fn is_silent(cluster: &Cluster) -> bool {
    let checked = cluster.cairn(&["admin", "fsck"]);
    checked.status.success() && text(&checked.stdout).contains("0 findings")
}

fn status(cluster: &Cluster) -> String {
    text(&cluster.cairn(&["admin", "status"]).stdout)
}

/// The same chunks are damaged on two of three members and everything is started anew: what is left on the third would
/// stay the only copy for ever, in a cluster that says it is healthy.
#[test]
fn what_two_of_three_lost_comes_back_and_the_status_says_so_meanwhile() {
    let mut cluster = Cluster::start(SHAPE);
    let (local, bytes) = (cluster.path("local"), noise(3_000_000, 1));
    fs::write(&local, &bytes).expect("file");
    cluster.ok(&["fs", "put", local.to_str().expect("utf-8"), "/file"]);
    // Everything is closed and written home.
    DATAS.iter().for_each(|data| cluster.stop(data));
    DATAS.iter().for_each(|data| cluster.restart(data));
    cluster.wait_healthy();
    cluster.kill_all();

    let disk = cluster.disk("data1");
    let below = |path: PathBuf| path.strip_prefix(&disk).expect("below its disk").to_path_buf();
    let damaged: Vec<PathBuf> = chunks(&disk).into_iter().map(below).collect();
    assert!(!damaged.is_empty(), "nothing was damaged");
    let mut hits = 0;
    for (data, chunk) in ["data1", "data2"].iter().flat_map(|data| damaged.iter().map(move |chunk| (data, chunk))) {
        let file = fs::File::options().write(true).open(cluster.disk(data).join(chunk)).expect("every member has it");
        file.write_all_at(&[0x5a; 64], 0).expect("written");
        hits += 1;
    }
    eprintln!("{hits} headers of {} chunks damaged", damaged.len());
    cluster.allow_error("a chunk's file is damaged");
    // The one that has them comes last.
    let first: Vec<String> = cluster.names().into_iter().filter(|name| name != "data3").collect();
    cluster.start_some(&first);
    eventually(&cluster, "the status to name what is missing", || {
        let said = status(&cluster);
        said.contains("missing on members that serve") || said.contains("is lost: damaged or gone")
    });
    cluster.restart("data3");
    cluster.wait_healthy();
    // Healthy means that the check finds nothing either, as soon as it has heard which disks serve.
    eventually(&cluster, "a silent check", || is_silent(&cluster));
    for chunk in &damaged {
        eventually(&cluster, "three equal copies", || {
            let copies: Vec<_> = DATAS.iter().map(|data| copy(&cluster, data, chunk)).collect();
            copies.iter().all(|copy| copy.is_some() && *copy == copies[2])
        });
    }
    let stat = cluster.ok(&["fs", "stat", "/file"]);
    assert!(stat.contains("copies present") && !stat.contains("missing"), "{stat}");
    assert_eq!(cluster.cairn(&["fs", "cat", "/file"]).stdout, bytes);
    cluster.check_logs();
}

/// A manager that was restored from an older copy knows epochs of before: its groups would refuse what clients write,
/// and the status say nothing of it. Either clients are served, or they are told why not.
#[test]
fn writes_that_are_refused_are_named_in_the_status() {
    let mut cluster = Cluster::start(SHAPE);
    let local = cluster.path("local");
    fs::write(&local, noise(300_000, 1)).expect("file");
    let put = |cluster: &Cluster, name: &str| {
        cluster.cairn(&["--timeout", "5", "fs", "put", local.to_str().expect("utf-8"), name]).status.success()
    };
    cluster.ok(&["fs", "put", local.to_str().expect("utf-8"), "/before"]);
    cluster.wait_healthy();
    cluster.stop("manager1");
    let (dir, old) = (cluster.path("nodes").join("manager1"), cluster.path("old-manager"));
    copy_dir(&dir, &old);
    cluster.restart("manager1");
    // Epochs of all groups rise, more often than they do when everything is started once more.
    for _ in 0..3 {
        DATAS.iter().for_each(|data| cluster.kill(data));
        DATAS.iter().for_each(|data| cluster.restart(data));
        cluster.wait_healthy();
    }
    cluster.kill_all();
    fs::remove_dir_all(&dir).expect("gone");
    copy_dir(&old, &dir);
    // Nobody waits for it to serve: it may find that it is older than itself, say so, and not lead.
    cluster.allow_error("is an older copy of itself");
    cluster.names().iter().for_each(|name| cluster.launch(name));
    let (began, mut refused) = (Instant::now(), 0);
    loop {
        if put(&cluster, "/after") {
            break;
        }
        refused += 1;
        let said = cluster.cairn(&["--timeout", "5", "admin", "status"]);
        let (ok, said) = (said.status.success(), text(&said.stdout));
        let named = said.contains("never gave") || said.contains("of clients are refused in");
        if ok && named {
            assert!(!said.contains("healthy: nothing is wrong"), "{said}");
            break;
        }
        // A manager that refuses to lead says so by itself.
        if !ok && began.elapsed() > LIMIT / 5 {
            break;
        }
        assert!(began.elapsed() < LIMIT, "refused {refused} times, and not a word: {said}");
    }
    eprintln!("refused {refused} times");
}
