//! Disks of data nodes that are older copies of themselves (restored snapshots, machines that were rolled back): what
//! redundancy has to survive costs nothing; beyond it the loss is named until somebody says that he knows.

use crate::mount::{Mount, skipped};
use crate::support::{Cluster, Shape, copy_dir, text};
use crate::trees::noise;
use crate::wait::{eventually, until_told};
use std::fs;
use std::os::unix::fs::FileExt;
use std::time::Duration;

const SHAPE: Shape = Shape { managers: 1, metas: 1, datas: 3, racks: 3 };
const DATAS: [&str; 3] = ["data1", "data2", "data3"];

fn status(cluster: &Cluster) -> String {
    text(&cluster.cairn(&["admin", "status"]).stdout)
}

fn put(cluster: &Cluster, name: &str, bytes: &[u8]) {
    let local = cluster.path("local");
    fs::write(&local, bytes).expect("file");
    cluster.ok(&["fs", "put", local.to_str().expect("utf-8"), name]);
}

/// Everything has a file `/early`, all disks are copied, and then come `/late` and a shorter `/early-too` in the place
/// of one of before.
fn with_copies(early: &[u8], late: &[u8]) -> Cluster {
    let mut cluster = Cluster::start(SHAPE);
    cluster.allow_error("came back as an older copy of itself");
    put(&cluster, "/early", early);
    // Everything is closed and written home.
    DATAS.iter().for_each(|data| cluster.stop(data));
    DATAS.iter().for_each(|data| copy_dir(&cluster.disk(data), &cluster.path("copies").join(data)));
    DATAS.iter().for_each(|data| cluster.launch(data));
    DATAS.iter().for_each(|data| cluster.wait_ready(data));
    cluster.wait_healthy();
    put(&cluster, "/late", late);
    cluster
}

/// They are killed, and started together with what their disks had before.
fn go_back(cluster: &mut Cluster, datas: &[&str]) {
    datas.iter().for_each(|data| cluster.kill(data));
    for data in datas {
        fs::remove_dir_all(cluster.disk(data)).expect("gone");
        copy_dir(&cluster.path("copies").join(data), &cluster.disk(data));
    }
    datas.iter().for_each(|data| cluster.launch(data));
    datas.iter().for_each(|data| cluster.wait_ready(data));
}

/// Two disks that lack what they had acknowledged would serve at once, and when the third one goes all of it is lost.
#[test]
fn two_of_three_disks_that_go_back_lose_nothing() {
    let (early, late) = (noise(2_000_000, 31), noise(3_000_000, 32));
    let mut cluster = with_copies(&early, &late);
    go_back(&mut cluster, &["data1", "data2"]);
    let noticed = || cluster.ok(&["admin", "events", "--json"]).matches("disk-older").count();
    until_told("both to be noticed", || noticed() == 2, || format!("{} were; {}", noticed(), status(&cluster)));
    assert_eq!(cluster.cairn(&["fs", "cat", "/late"]).stdout, late, "the third has everything");
    cluster.wait_healthy();
    eventually(&cluster, "a silent check", || text(&cluster.cairn(&["admin", "fsck"]).stdout).contains("0 findings"));
    // Whoever has caught up has all of it.
    cluster.kill("data3");
    eventually(&cluster, "the late file without the third", || {
        cluster.cairn(&["--timeout", "5", "fs", "cat", "/late"]).stdout == late
    });
    assert_eq!(cluster.cairn(&["fs", "cat", "/early"]).stdout, early);
    cluster.restart("data3");
    cluster.wait_healthy();
    assert_eq!(cluster.kills, 3);
}

/// The only disk that has everything comes back first, when the others were heard a moment ago: what they have from
/// before would be written over what was overwritten in place since.
#[test]
fn what_was_overwritten_since_stays_when_two_of_three_disks_go_back() {
    if skipped() {
        return;
    }
    let early = noise(2_000_000, 35);
    let mut cluster = with_copies(&early, &noise(1_000, 36));
    let mount = Mount::new(&cluster, "mnt", "/", "");
    let mut expected = early;
    let file = fs::File::options().write(true).open(mount.path("early")).expect("file");
    for place in [4096, 700_000, 1_500_001] {
        let bytes = noise(5_000, place as u64);
        file.write_all_at(&bytes, place as u64).expect("written in place");
        file.sync_all().expect("synced");
        expected[place..place + bytes.len()].copy_from_slice(&bytes);
    }
    drop(file);
    assert!(mount.umount().status.success());
    // Generations of what was written rise after 10 s, and are logged as often.
    std::thread::sleep(Duration::from_secs(22));
    DATAS.iter().for_each(|data| cluster.kill(data));
    for data in ["data1", "data2"] {
        fs::remove_dir_all(cluster.disk(data)).expect("gone");
        copy_dir(&cluster.path("copies").join(data), &cluster.disk(data));
    }
    cluster.launch("data3");
    cluster.wait_ready("data3");
    ["data1", "data2"].iter().for_each(|data| cluster.launch(data));
    ["data1", "data2"].iter().for_each(|data| cluster.wait_ready(data));
    cluster.wait_healthy();
    assert_eq!(cluster.ok(&["admin", "events", "--json"]).matches("disk-older").count(), 2, "both were noticed");
    for data in DATAS {
        assert!(cluster.cairn(&["fs", "cat", "/early"]).stdout == expected, "before {data} is killed");
        cluster.kill(data);
        eventually(&cluster, "the others to be read", || {
            cluster.cairn(&["--timeout", "5", "fs", "cat", "/early"]).stdout == expected
        });
        cluster.restart(data);
        cluster.wait_healthy();
    }
}

/// All disks go back: what was acknowledged since is gone, in a cluster that says it is healthy.
#[test]
fn all_disks_that_go_back_are_named_with_what_is_lost() {
    let (early, late) = (noise(2_000_000, 33), noise(3_000_000, 34));
    let mut cluster = with_copies(&early, &late);
    // Chunks that files name and nobody has.
    cluster.allow_error("is lost");
    // The check asks for them.
    cluster.allow_error("no other member has anything of a chunk");
    go_back(&mut cluster, &DATAS);
    let loss = "may have lost what was acknowledged";
    eventually(&cluster, "the status to name the loss", || status(&cluster).contains(loss));
    eventually(&cluster, "the early file", || {
        cluster.cairn(&["--timeout", "5", "fs", "cat", "/early"]).stdout == early
    });
    eventually(&cluster, "the check to name the late file, and no other", || {
        let checked = cluster.cairn(&["admin", "fsck"]);
        let said = text(&checked.stdout);
        !checked.status.success() && said.contains("late") && !said.contains("early")
    });
    let read = cluster.cairn(&["--timeout", "5", "fs", "cat", "/late"]);
    assert!(
        !read.status.success() && late.starts_with(&read.stdout),
        "what is lost is an error, and never other bytes"
    );
    // It is named until somebody says that he knows, group by group.
    let named = |cluster: &Cluster| {
        let said = cluster.ok(&["admin", "status"]);
        let (_, rest) = said.split_once(loss)?;
        let (_, command) = rest.split_once("`cairn admin pg force ").expect("the command that ends it");
        Some(command.split(' ').next().expect("a group").to_owned())
    };
    let mut known = 0;
    while let Some(pg) = named(&cluster) {
        let done = cluster.ok(&["admin", "pg", "force", &pg, "--known-loss"]);
        assert!(done.contains("is known"), "{done}");
        known += 1;
        assert!(known < 100, "pg {pg} is named for ever");
    }
    assert!(known > 0);
    // What is written from now on is as safe as ever. What it replaces is not kept: it is damaged.
    let local = cluster.path("local");
    fs::write(&local, &early).expect("file");
    cluster.ok(&["fs", "put", "--skip-trash", local.to_str().expect("utf-8"), "/late"]);
    assert_eq!(cluster.cairn(&["fs", "cat", "/late"]).stdout, early);
    eventually(&cluster, "a silent check", || text(&cluster.cairn(&["admin", "fsck"]).stdout).contains("0 findings"));
}
