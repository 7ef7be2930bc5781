//! A directory whose names are spread over the partitions of its volume, through commands and through a mount.
use crate::across::{mkdir, volume_of_three};
use crate::mount::{Mount, SMALL, skipped};
use crate::support::{Cluster, lines, text};
use crate::wait::until_told;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::Command;

fn stat(cluster: &Cluster, path: &str) -> Value {
    lines(cluster, &["fs", "stat", path]).remove(0)
}

/// Gives a directory of the volume "v" its shards.
fn shard(cluster: &Cluster, path: &str) {
    let asked = || cluster.cairn(&["--json", "fs", "shard", path]);
    // The first time it may be a moment too early for the feature level.
    until_told("the shards", || asked().status.success(), || text(&asked().stderr));
    assert_eq!(stat(cluster, path)["shards"], 2, "one in each of the other partitions");
}

/// Names in a directory, each once.
fn listed(mount: &Mount, name: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(mount.path(name)).expect("listed");
    let names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8")).collect();
    let set: BTreeSet<String> = names.iter().cloned().collect();
    assert_eq!(set.len(), names.len(), "a name is listed twice: {names:?}");
    set
}

/// A sharded directory would show a part of itself as its snapshot, or none of its own.
#[test]
fn snapshots_of_sharded_directories_are_whole() {
    let cluster = Cluster::start(SMALL);
    let parts = volume_of_three(&cluster);
    mkdir(&cluster, "v:/d", parts[1]);
    let put = |name: &str| {
        let local = cluster.path("local");
        fs::write(&local, name).expect("a file");
        cluster.ok(&["fs", "put", local.to_str().expect("UTF-8"), &format!("v:/d/{name}")]);
    };
    let names = |path: &str| cluster.ok(&["fs", "ls", path]).lines().map(str::to_owned).collect::<BTreeSet<_>>();
    ["old", "older"].into_iter().for_each(put);
    cluster.ok(&["fs", "snapshot", "create", "before", "v:/d"]);
    shard(&cluster, "v:/d");
    (0..12).for_each(|number| put(&format!("new{number}")));
    let (then, all) = (names("v:/d/.snapshots/before"), names("v:/d"));
    assert_eq!((then.len(), all.len()), (2, 14));
    cluster.ok(&["fs", "snapshot", "create", "own", "v:/d"]);
    cluster.ok(&["fs", "snapshot", "create", "of-all", "v:/"]);
    cluster.ok(&["fs", "rm", "-r", "--skip-trash", "v:/d/old", "v:/d/new3"]);
    put("later");
    assert_eq!(names("v:/d/.snapshots"), ["before", "of-all", "own"].map(str::to_owned).into());
    for path in ["v:/d/.snapshots/own", "v:/d/.snapshots/of-all", "v:/.snapshots/of-all/d"] {
        assert_eq!(names(path), all, "{path}");
        for name in &all {
            assert_eq!(cluster.ok(&["fs", "cat", &format!("{path}/{name}")]), *name, "{path}");
        }
    }
    assert_eq!(names("v:/d/.snapshots/before"), then, "it was taken before there were shards");
    for (taken, clone) in [("own", "v:/one"), ("before", "v:/two")] {
        cluster.ok(&["fs", "clone", &format!("v:/d@{taken}"), clone]);
        assert_eq!(names(clone), if taken == "own" { all.clone() } else { then.clone() }, "{taken}");
    }
    cluster.ok(&["fs", "snapshot", "restore", "v:/d/old@own"]);
    assert_eq!(cluster.ok(&["fs", "cat", "v:/d/old"]), "old");
    if !skipped() {
        let mount = Mount::new(&cluster, "mnt", "v:/", "");
        assert_eq!(listed(&mount, "d/.snapshots/own"), all);
        for name in &all {
            assert_eq!(fs::read_to_string(mount.path(&format!("d/.snapshots/own/{name}"))).expect(name), *name);
        }
    }
    cluster.fails(&["fs", "mkdir", "v:/d/.snapshots"], 4);
    cluster.ok(&["admin", "fsck", "v"]);
}

/// People would not find files that are there, find them twice, or could not remove a directory that is empty.
#[test]
fn commands_work_in_a_sharded_directory() {
    let mut cluster = Cluster::start(SMALL);
    let parts = volume_of_three(&cluster);
    let refused = cluster.fails(&["fs", "shard", "/"], 1);
    assert!(refused.contains("split"), "{refused}");
    mkdir(&cluster, "v:/d", parts[1]);
    let local = cluster.path("local");
    fs::write(&local, vec![7u8; 100_000]).expect("a file");
    let local = local.to_str().expect("UTF-8").to_owned();
    for name in ["old", "older", "oldest"] {
        cluster.ok(&["fs", "put", &local, &format!("v:/d/{name}")]);
    }
    shard(&cluster, "v:/d");
    assert_eq!(cluster.ok(&["fs", "ls", "v:/d"]), "old\nolder\noldest\n");
    let mut partitions = BTreeSet::new();
    for name in 0..12 {
        let path = format!("v:/d/new{name}");
        cluster.ok(&["fs", "put", &local, &path]);
        partitions.insert(stat(&cluster, &path)["partition"].as_u64());
    }
    assert_eq!(partitions, [Some(parts[0]), Some(parts[2])].into(), "new files are in the shards");
    let refused = cluster.fails(&["fs", "quota", "set", "--inodes", "100", "v:/d"], 1);
    assert!(refused.contains("sharded") && refused.contains("--volume"), "{refused}");
    let directory = stat(&cluster, "v:/d");
    assert_eq!((&directory["size"], &directory["nlink"]), (&Value::from(15), &Value::from(2)), "{directory}");
    assert!(cluster.ok(&["fs", "stat", "v:/d"]).contains("2, to which new names go"));
    assert_eq!(cluster.ok(&["fs", "ls", "v:/d"]).lines().count(), 15);
    assert_eq!(cluster.ok(&["fs", "find", "v:/d", "--name", "new1*"]).lines().count(), 3);
    assert_eq!(cluster.cairn(&["fs", "cat", "v:/d/new3"]).stdout, vec![7; 100_000]);

    // Over what is old, from old to new, out and in, onto each other; a directory in it, and back up by its "..".
    cluster.ok(&["fs", "put", "--skip-trash", &local, "v:/d/old"]);
    cluster.ok(&["fs", "mv", "v:/d/older", "v:/d/newer"]);
    cluster.ok(&["fs", "mv", "v:/d/oldest", "v:/out"]);
    cluster.ok(&["fs", "mv", "v:/out", "v:/d/in"]);
    cluster.ok(&["fs", "mkdir", "-p", "v:/d/sub/below"]);
    cluster.ok(&["fs", "put", &local, "v:/d/sub/../again"]);
    assert_eq!(cluster.ok(&["fs", "ls", "v:/d/sub/below/../.."]), cluster.ok(&["fs", "ls", "v:/d"]));
    cluster.ok(&["fs", "rm", "--skip-trash", "v:/d/new0"]);
    cluster.fails(&["fs", "stat", "v:/d/new0"], 3);
    cluster.fails(&["fs", "rmdir", "v:/d"], 19);
    // What its directory refuses, a shard refuses.
    cluster.ok(&["fs", "chmod", "700", "v:/d"]);
    assert!(cluster.ok(&["admin", "fsck", "v"]).contains("0 findings"));

    cluster.kill_all();
    cluster.start_all();
    let again = || cluster.cairn(&["fs", "ls", "v:/d"]);
    until_told("the listing after all were killed", || again().status.success(), || text(&again().stderr));
    assert_eq!(text(&again().stdout).lines().count(), 16);
    assert_eq!(cluster.cairn(&["fs", "cat", "v:/d/in"]).stdout, vec![7; 100_000]);
    // A directory that moves takes its shards along; a removed tree goes with them.
    cluster.ok(&["fs", "mv", "v:/d", "v:/e"]);
    assert_eq!(cluster.cairn(&["fs", "cat", "v:/e/again"]).stdout, vec![7; 100_000]);
    cluster.ok(&["fs", "rm", "-r", "--skip-trash", "v:/e"]);
    let checked = || cluster.ok(&["admin", "fsck", "v"]);
    until_told("nothing but the root", || checked().contains("1 inodes (1 directories)"), checked);
}

fn said(command: &str, args: &[&str]) -> String {
    let output = Command::new(command).args(args).env("LC_ALL", "C").output().expect("it starts");
    assert!(output.status.success(), "{command} {args:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Programs would miss entries while others come and go, or meet a directory that is not empty and shows nothing.
#[test]
fn programs_work_in_a_sharded_directory() {
    if skipped() {
        return;
    }
    let cluster = Cluster::start(SMALL);
    let parts = volume_of_three(&cluster);
    mkdir(&cluster, "v:/d", parts[0]);
    let mount = Mount::new(&cluster, "mnt", "v:/", "");
    (0..20).for_each(|i| drop(File::create(mount.path(&format!("d/old{i}"))).expect("made")));
    let mut open = File::create(mount.path("d/open")).expect("made");
    open.write_all(b"before").expect("written");
    shard(&cluster, "v:/d");
    for i in 0..600 {
        File::create(mount.path(&format!("d/new{i}"))).expect("made");
    }
    open.write_all(b" and after").expect("written");
    open.sync_all().expect("synced");
    drop(open);
    let all = listed(&mount, "d");
    assert_eq!(all.len(), 621);
    let seen = fs::metadata(mount.path("d")).expect("there");
    assert_eq!(seen.nlink(), 2);
    let before = seen.modified().expect("a time");
    // Entries that stay are listed once while others go and come.
    let mut steps = fs::read_dir(mount.path("d")).expect("opened");
    let mut found: Vec<String> = Vec::new();
    for i in 0.. {
        let Some(entry) = steps.next() else { break };
        found.push(entry.expect("an entry").file_name().into_string().expect("UTF-8"));
        if i < 200 {
            fs::remove_file(mount.path(&format!("d/new{i}"))).expect("removed");
            File::create(mount.path(&format!("d/late{i}"))).expect("made");
        }
    }
    drop(steps);
    let stays = |name: &&String| !name.starts_with("late") && !(0..200).any(|i| **name == format!("new{i}"));
    let (kept, listed_once): (BTreeSet<&String>, usize) =
        (found.iter().filter(stays).collect(), found.iter().filter(stays).count());
    assert_eq!((kept.len(), listed_once), (421, 421));
    assert!(fs::metadata(mount.path("d")).expect("there").modified().expect("a time") > before);

    // Within it, from what is old to what is new; links; a directory in it; what is refused.
    fs::rename(mount.path("d/open"), mount.path("d/renamed")).expect("renamed");
    assert_eq!(fs::read(mount.path("d/renamed")).expect("read"), b"before and after");
    fs::hard_link(mount.path("d/renamed"), mount.path("d/linked")).expect("linked");
    assert_eq!(fs::metadata(mount.path("d/renamed")).expect("there").nlink(), 2);
    symlink("renamed", mount.path("d/link")).expect("made");
    assert_eq!(fs::read(mount.path("d/link")).expect("through the link"), b"before and after");
    fs::create_dir(mount.path("d/sub")).expect("made");
    assert_eq!(fs::metadata(mount.path("d")).expect("there").nlink(), 3);
    fs::write(mount.path("d/sub/../up"), b"up").expect("written");
    let inode = |name: &str| fs::metadata(mount.path(name)).expect("there").ino();
    assert_eq!(inode("d/sub/.."), inode("d"));
    said("sh", &["-c", &format!("cd {}/d/sub && test -e ../up && cd .. && test -e sub", mount.dir.display())]);
    let taken = fs::create_dir(mount.path("d/old3")).expect_err("it is there");
    assert_eq!(taken.raw_os_error(), Some(17), "{taken}");
    let busy = fs::remove_dir(mount.path("d")).expect_err("it is not empty");
    assert_eq!(busy.raw_os_error(), Some(39), "{busy}");
    fs::create_dir(mount.path("x")).expect("made");
    let over = fs::rename(mount.path("x"), mount.path("d")).expect_err("it is not empty");
    assert_eq!(over.raw_os_error(), Some(39), "{over}");
    fs::set_permissions(mount.path("d"), fs::Permissions::from_mode(0o2770)).expect("set");
    fs::write(mount.path("d/inherits"), b"x").expect("written");
    assert!(cluster.ok(&["admin", "fsck", "v"]).contains("0 findings"));

    // Empty it entry by entry, as rm does; then it goes, replaced by another one.
    let root = mount.dir.to_str().expect("UTF-8");
    said("sh", &["-c", &format!("rm -rf {root}/d/*")]);
    assert_eq!(listed(&mount, "d").len(), 0);
    fs::rename(mount.path("x"), mount.path("d")).expect("over an empty one");
    fs::remove_dir(mount.path("d")).expect("removed");
    let mut text_of = String::new();
    File::open(mount.path("d")).map(|mut file| file.read_to_string(&mut text_of)).expect_err("it is gone");
    let left = mount.umount();
    assert!(left.status.success(), "{}", text(&left.stderr));
    let checked = || cluster.ok(&["admin", "fsck", "v"]);
    until_told("nothing but the root", || checked().contains("1 inodes (1 directories)"), checked);
}
