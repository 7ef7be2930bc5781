//! A volume whose directories are in several meta partitions, through commands and through a mount.
use crate::mount::{Mount, SMALL, skipped};
use crate::support::{Cluster, lines, text};
use crate::trees::noise;
use crate::wait::{until, until_told};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Makes the volume "v" of three partitions; their numbers, in the order of their inodes.
pub(crate) fn volume_of_three(cluster: &Cluster) -> Vec<u64> {
    let create = || cluster.cairn(&["admin", "volume", "create", "v", "--layout", "r2", "--partitions", "3"]);
    // The first time it may be a moment too early for the feature level.
    until_told("the volume", || create().status.success(), || text(&create().stderr));
    let listed = || {
        let all = lines(cluster, &["admin", "partition", "ls"]);
        all.into_iter().filter(|partition| partition["volume"] == "v").collect::<Vec<Value>>()
    };
    until("leaders of all three", || listed().iter().filter(|partition| partition["leader"] != 0).count() == 3);
    listed().iter().map(|partition| partition["id"].as_u64().expect("a number")).collect()
}

fn stat(cluster: &Cluster, path: &str) -> Value {
    lines(cluster, &["fs", "stat", path]).remove(0)
}

/// Makes a directory in a partition.
pub(crate) fn mkdir(cluster: &Cluster, path: &str, partition: u64) {
    // What waits for members to have announced that they understand it is repeated by the client.
    cluster.ok(&["fs", "mkdir", "--partition", &partition.to_string(), path]);
    let found = stat(cluster, path);
    assert_eq!((&found["partition"], &found["type"]), (&Value::from(partition), &Value::from("directory")), "{path}");
}

/// People would see directories that are not as they were made, and could not move what is in them.
#[test]
fn commands_work_across_partitions() {
    let cluster = Cluster::start(SMALL);
    let parts = volume_of_three(&cluster);
    let refused = cluster.fails(&["fs", "mkdir", "--partition", "9999", "v:/x"], 3);
    assert!(refused.contains(&format!("p{}", parts[2])), "{refused}");
    for (number, path) in ["v:/a", "v:/a/b", "v:/a/b/c"].into_iter().enumerate() {
        mkdir(&cluster, path, parts[number]);
    }
    cluster.ok(&["fs", "chmod", "750", "v:/a/b"]);
    let local = cluster.path("local");
    fs::write(&local, vec![7u8; 300_000]).expect("a file");
    let local = local.to_str().expect("UTF-8");
    cluster.ok(&["fs", "put", local, "v:/a/b/f"]);
    cluster.ok(&["fs", "put", local, "v:/a/b/c/g"]);
    assert_eq!(stat(&cluster, "v:/a/b/f")["partition"], parts[1], "a file is where its directory is");
    let long = cluster.ok(&["fs", "ls", "-l", "v:/a"]);
    assert!(long.starts_with("drwxr-x---") && !long.contains("1970"), "{long}");
    assert_eq!(cluster.ok(&["fs", "find", "v:/a"]), "v:/a\nv:/a/b\nv:/a/b/c\nv:/a/b/c/g\nv:/a/b/f\n");
    assert_eq!(cluster.cairn(&["fs", "cat", "v:/a/b/c/g"]).stdout, vec![7; 300_000]);

    // A file, and a directory with others in it, change their partition's directory; their inodes stay.
    let before = stat(&cluster, "v:/a/b/f");
    cluster.ok(&["fs", "mv", "v:/a/b/f", "v:/a/b/c/h"]);
    let after = stat(&cluster, "v:/a/b/c/h");
    assert_eq!((&after["inode"], &after["size"]), (&before["inode"], &before["size"]));
    cluster.ok(&["fs", "ln", "v:/a/b/c/h", "v:/a/i"]);
    assert_eq!(stat(&cluster, "v:/a/i")["nlink"], 2);
    cluster.ok(&["fs", "rm", "--skip-trash", "v:/a/b/c/h"]);
    assert_eq!(cluster.cairn(&["fs", "cat", "v:/a/i"]).stdout, vec![7; 300_000]);
    cluster.fails(&["fs", "rmdir", "v:/a/b"], 19);
    cluster.ok(&["fs", "mv", "v:/a/b", "v:/z"]);
    assert_eq!(cluster.cairn(&["fs", "cat", "v:/z/c/g"]).stdout, vec![7; 300_000]);

    // The root, a, z, z/c; i and g.
    let volumes = lines(&cluster, &["fs", "df", "v:/"]);
    assert_eq!((&volumes[0]["directories"], &volumes[0]["files"]), (&Value::from(4), &Value::from(2)));
    assert!(cluster.ok(&["admin", "fsck", "v"]).contains("6 inodes (4 directories)"));
    for (verb, path) in
        [("rm", "v:/z/c/g"), ("rmdir", "v:/z/c"), ("rmdir", "v:/z"), ("rm", "v:/a/i"), ("rmdir", "v:/a")]
    {
        match verb {
            "rm" => cluster.ok(&["fs", "rm", "--skip-trash", path]),
            verb => cluster.ok(&["fs", verb, path]),
        };
    }
    assert_eq!(cluster.ok(&["fs", "ls", "v:/"]), "");
    assert!(cluster.ok(&["admin", "fsck", "v"]).contains("0 findings"));
}

/// Paths and contents below a directory of the volume "v".
fn tree(cluster: &Cluster, root: &str) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in lines(cluster, &["fs", "find", root]) {
        let path = entry["path"].as_str().expect("a path");
        let is_file = entry["type"] == "file";
        let output = cluster.cairn(&["fs", "cat", &format!("v:{path}")]);
        assert!(!is_file || output.status.success(), "{path}: {}", text(&output.stderr));
        let name = path.strip_prefix(root.trim_start_matches("v:")).expect("it is below it");
        found.push((name.to_owned(), output.stdout));
    }
    found.sort();
    found
}

/// A file that is renamed from one partition to another would be in both directories of a snapshot or in none; or a
/// snapshot be read in one partition and not in another, change with what comes later, be lost with a restart, or keep
/// its space for ever.
#[test]
fn snapshots_are_of_all_partitions() {
    let mut cluster = Cluster::start(SMALL);
    let parts = volume_of_three(&cluster);
    for (number, path) in ["v:/a", "v:/a/b", "v:/a/b/c"].into_iter().enumerate() {
        mkdir(&cluster, path, parts[number]);
    }
    let local = cluster.path("local");
    let (first, second) = (noise(900_000, 1), noise(700_000, 2));
    fs::write(&local, &first).expect("a file");
    let local = local.to_str().expect("UTF-8").to_owned();
    for path in ["v:/a/f", "v:/a/b/f", "v:/a/b/c/f", "v:/a/moved"] {
        cluster.ok(&["fs", "put", &local, path]);
    }
    let end = AtomicBool::new(false);
    let taken: Vec<String> = thread::scope(|scope| {
        let (cluster, end) = (&cluster, &end);
        let mover = scope.spawn(move || {
            let places = ["v:/a/moved", "v:/a/b/moved", "v:/a/b/c/moved"];
            for round in 0.. {
                if end.load(Ordering::SeqCst) {
                    return round;
                }
                cluster.ok(&["fs", "mv", places[round % 3], places[(round + 1) % 3]]);
            }
            0
        });
        let taken = (0..4).map(|round| {
            let name = format!("s{round}");
            cluster.ok(&["fs", "snapshot", "create", &name, "v:/"]);
            name
        });
        let taken = taken.collect();
        end.store(true, Ordering::SeqCst);
        assert!(mover.join().expect("it moves") > 0);
        taken
    });
    let then: Vec<_> = taken.iter().map(|name| tree(&cluster, &format!("v:/a/.snapshots/{name}"))).collect();
    for (name, tree) in taken.iter().zip(&then) {
        let moved = tree.iter().filter(|(path, _)| path.ends_with("/moved"));
        assert_eq!(moved.map(|(_, contents)| contents == &first).collect::<Vec<_>>(), [true], "{name}");
        let all = tree.iter().filter(|(path, contents)| path.ends_with("/f") && *contents == first).count();
        assert_eq!((tree.len(), all), (7, 3), "{name}");
    }
    // Everything changes, in all partitions.
    fs::write(&local, &second).expect("a file");
    for path in ["v:/a/f", "v:/a/b/f", "v:/a/b/c/f"] {
        cluster.ok(&["fs", "put", "--skip-trash", &local, path]);
    }
    cluster.ok(&["fs", "mv", "v:/a/b/c", "v:/d"]);
    mkdir(&cluster, "v:/a/b/new", parts[2]);
    cluster.kill_all();
    cluster.start_all();
    until("the volume", || cluster.cairn(&["fs", "ls", "v:/a/b/.snapshots/s0"]).status.success());
    for (name, then) in taken.iter().zip(&then) {
        assert!(tree(&cluster, &format!("v:/a/.snapshots/{name}")) == *then, "{name} is another");
    }
    // Below what was moved, by names of now.
    assert!(cluster.cairn(&["fs", "cat", "v:/d/.snapshots/s0/f"]).stdout == first);
    cluster.fails(&["fs", "ls", "v:/a/b/new/.snapshots/s0"], 3);
    let refused = cluster.fails(&["fs", "rm", "v:/a/b/.snapshots/s0/f"], 5);
    assert!(refused.contains("snapshot"), "{refused}");
    if !skipped() {
        let mount = Mount::new(&cluster, "mnt", "v:/", "");
        let names = |path: &str| {
            let all = fs::read_dir(mount.path(path)).expect("a listing");
            let mut all: Vec<_> = all.map(|entry| entry.expect("an entry").file_name()).collect();
            all.sort();
            all
        };
        assert_eq!(names("a/b/.snapshots"), ["s0", "s1", "s2", "s3"]);
        assert!(fs::read(mount.path("a/.snapshots/s1/b/c/f")).expect("read") == first);
        let (then, now) = (mount.path("a/.snapshots/s1/b/c/f"), mount.path("d/f"));
        assert_ne!(fs::metadata(then).expect("stat").ino(), fs::metadata(now).expect("stat").ino());
    }

    let diff = cluster.ok(&["fs", "snapshot", "diff", "s0", "--path", "v:/"]);
    assert!(diff.contains("/d/") && diff.contains("+ /a/b/new"), "{diff}");
    cluster.ok(&["fs", "snapshot", "restore", "v:/a/b@s0", "--to", "v:/restored"]);
    assert!(cluster.cairn(&["fs", "cat", "v:/restored/c/f"]).stdout == first);
    cluster.ok(&["admin", "fsck", "v"]);

    cluster.ok(&["fs", "snapshot", "rename", "s3", "last", "v:/"]);
    assert!(cluster.ok(&["fs", "ls", "v:/d/.snapshots/last"]).contains('f'));
    cluster.fails(&["fs", "ls", "v:/a/b/.snapshots/s3"], 3);
    let held = |cluster: &Cluster| -> Vec<u64> {
        let all = lines(cluster, &["fs", "snapshot", "ls", "v:/"]);
        all.iter().map(|snapshot| snapshot["held_bytes"].as_u64().expect("a number")).collect()
    };
    let before = held(&cluster);
    assert!(before.len() == 4 && before[3] >= 3 * 880_000, "of three partitions: {before:?}");
    for name in ["s0", "s1", "s2"] {
        cluster.ok(&["fs", "snapshot", "delete", name, "v:/"]);
        cluster.fails(&["fs", "ls", &format!("v:/a/b/.snapshots/{name}")], 3);
    }
    until("they are gone", || held(&cluster).len() == 1);
    assert!(tree(&cluster, "v:/a/.snapshots/last") == then[3], "what is left has what it had");
    cluster.ok(&["fs", "snapshot", "delete", "last", "v:/"]);
    until("it is gone", || held(&cluster).is_empty());
    assert!(cluster.cairn(&["fs", "cat", "v:/restored/c/f"]).stdout == first);
    assert!(cluster.cairn(&["fs", "cat", "v:/d/f"]).stdout == second);
    cluster.ok(&["admin", "fsck", "v"]);
}

fn said(command: &str, args: &[&str]) -> String {
    let output = Command::new(command).args(args).env("LC_ALL", "C").output().expect("it starts");
    assert!(output.status.success(), "{command} {args:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Whoever looks, or moves something between partitions, would wait for what a mount leads in one of them for ever, or
/// see a part of it.
#[test]
fn led_directories_of_several_partitions_are_shared() {
    if skipped() {
        return;
    }
    let cluster = Cluster::start(SMALL);
    let parts = volume_of_three(&cluster);
    let (one, two) = (Mount::new(&cluster, "one", "v:/", "lease=new"), Mount::new(&cluster, "two", "v:/", "lease=new"));
    for (number, name) in ["a", "b", "c"].into_iter().enumerate() {
        mkdir(&cluster, &format!("v:/{name}"), parts[number]);
    }
    let mut were_led = 0;
    for round in 0..3 {
        for (above, other) in [("a", "b"), ("b", "c"), ("c", "a")] {
            let name = format!("{above}/d{round}");
            let (mine, theirs) = (one.path(&name), two.path(&name));
            fs::create_dir(&mine).expect("made");
            fs::create_dir(mine.join("below")).expect("made");
            were_led += one.number(&["worker", "vfs", "led_directories"]).expect("the state of the mount");
            fs::write(mine.join("below/f"), &name).expect("written");
            match round {
                // Looked at.
                0 => assert_eq!(fs::read_to_string(theirs.join("below/f")).expect("read"), name),
                // Moved to another partition by the one that leads it, with what is below.
                1 => {
                    let moved = format!("{other}/moved{round}");
                    fs::rename(mine.join("below"), one.path(&moved)).expect("moved");
                    assert_eq!(fs::read_to_string(two.path(&moved).join("f")).expect("read"), name);
                }
                // The top is moved by another one, and something else put into its place.
                _ => {
                    let moved = format!("{other}/top{round}");
                    fs::rename(&theirs, two.path(&moved)).expect("moved");
                    fs::create_dir(&theirs).expect("made");
                    assert_eq!(fs::read_to_string(one.path(&moved).join("below/f")).expect("read"), name);
                }
            }
            fs::write(theirs.join("theirs"), "x").expect("written");
            // The name may be believed to be the other directory's for a second.
            until("what the other one wrote", || fs::read_to_string(mine.join("theirs")).is_ok_and(|text| text == "x"));
        }
    }
    assert!(were_led > 2, "{were_led}");
    for mount in [one, two] {
        let umount = mount.umount();
        assert!(umount.status.success(), "{}", text(&umount.stderr));
    }
    assert!(cluster.ok(&["admin", "fsck", "v"]).contains("0 findings"));
}

/// Programs would meet directories without permissions or times, EXDEV, or files that are gone while they have them
/// open.
#[test]
fn programs_work_across_partitions() {
    if skipped() {
        return;
    }
    let cluster = Cluster::start(SMALL);
    let parts = volume_of_three(&cluster);
    let mount = Mount::new(&cluster, "mnt", "v:/", "");
    for (number, name) in ["a", "b", "c"].into_iter().enumerate() {
        mkdir(&cluster, &format!("v:/{name}"), parts[number]);
    }
    mkdir(&cluster, "v:/a/d", parts[2]);
    let root = mount.dir.to_str().expect("UTF-8");
    let long = said("ls", &["-l", root]);
    assert_eq!(long.lines().filter(|line| line.starts_with("drwxr-xr-x")).count(), 3, "{long}");
    assert!(!long.contains("1970") && !long.contains("?????"), "{long}");
    let found = said("find", &[root, "-mindepth", "1", "-type", "d", "-printf", "%P %m\n"]);
    let mut found: Vec<&str> = found.lines().collect();
    found.sort_unstable();
    assert_eq!(found, ["a 755", "a/d 755", "b 755", "c 755"]);

    let mut file = File::options().read(true).write(true).create_new(true).open(mount.path("a/f")).expect("made");
    file.write_all(b"first").expect("written");
    let ino = file.metadata().expect("there").ino();
    fs::rename(mount.path("a/f"), mount.path("b/f")).expect("moved");
    file.write_all(b" second").expect("written");
    file.sync_all().expect("synced");
    assert_eq!(fs::read(mount.path("b/f")).expect("read"), b"first second");
    assert_eq!(fs::metadata(mount.path("b/f")).expect("there").ino(), ino);
    assert_eq!(cluster.cairn(&["fs", "cat", "v:/b/f"]).stdout, b"first second");
    fs::hard_link(mount.path("b/f"), mount.path("a/d/g")).expect("linked");
    assert_eq!(fs::metadata(mount.path("b/f")).expect("there").nlink(), 2);
    fs::write(mount.path("c/f"), b"other").expect("written");
    fs::rename(mount.path("c/f"), mount.path("b/f")).expect("replaced");
    assert_eq!(fs::read(mount.path("b/f")).expect("read"), b"other");
    assert_eq!(fs::read(mount.path("a/d/g")).expect("read"), b"first second");
    fs::remove_file(mount.path("a/d/g")).expect("removed");
    let mut rest = Vec::new();
    file.seek(SeekFrom::Start(0)).expect("sought");
    file.read_to_end(&mut rest).expect("it is open");
    assert_eq!(rest, b"first second", "it has no name any more");
    drop(file);

    symlink("../b/f", mount.path("c/l")).expect("made");
    fs::rename(mount.path("c/l"), mount.path("a/l")).expect("moved");
    assert_eq!(fs::read(mount.path("a/l")).expect("through the link"), b"other");
    let busy = fs::remove_dir(mount.path("a")).expect_err("d is in it");
    assert_eq!(busy.raw_os_error(), Some(39), "{busy}");
    // With a directory of another partition in it, into a third one's.
    fs::rename(mount.path("a"), mount.path("b/a")).expect("moved");
    fs::set_permissions(mount.path("b/a/d"), fs::Permissions::from_mode(0o700)).expect("set");
    assert_eq!(fs::metadata(mount.path("b/a/d")).expect("there").mode() & 0o777, 0o700);
    fs::rename(mount.path("b"), mount.path("b/a/d/b")).expect_err("into itself");
    assert!(cluster.ok(&["admin", "fsck", "v"]).contains("0 findings"));
    said("rm", &["-r", &format!("{root}/b"), &format!("{root}/c")]);
    assert_eq!(said("ls", &["-A", root]), "");
    let left = mount.umount();
    assert!(left.status.success(), "{}", text(&left.stderr));
    let checked = || cluster.ok(&["admin", "fsck", "v"]);
    until_told("nothing but the root", || checked().contains("1 inodes (1 directories)"), checked);
}
