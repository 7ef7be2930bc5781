//! Snapshots of a volume: read by commands and through mounts, unchanged by what comes later, kept by servers that
//! start again, and given back whole when they are deleted.
mod clones;
mod diff;
mod directories;
mod sqlite;

use crate::disks::{chunk_use, chunks};
use crate::mount::{Mount, SMALL, skipped};
use crate::support::{Cluster, lines};
use crate::trees::noise;
use crate::wait::until;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, Instant};

/// A snapshot would show what came later, be lost with a restart, be changed by somebody, or hold its space for ever.
#[test]
fn a_snapshot_stays_as_it_was_until_it_is_deleted() {
    let mut cluster = Cluster::start(SMALL);
    let (dir, back) = (cluster.path("tree"), cluster.path("back"));
    fs::create_dir_all(dir.join("sub")).expect("directory");
    let (big, small) = (noise(3_000_000, 1), noise(777, 2));
    fs::write(dir.join("big"), &big).expect("file");
    fs::write(dir.join("sub/small"), &small).expect("file");
    cluster.ok(&["fs", "put", dir.to_str().expect("utf-8"), "/t"]);
    cluster.ok(&["fs", "snapshot", "create", "monday"]);
    assert!(cluster.fails(&["fs", "snapshot", "create", "monday"], 4).contains("has a snapshot of this name"));

    let new = cluster.path("new");
    fs::write(&new, noise(2_000_000, 3)).expect("file");
    cluster.ok(&["fs", "put", "--skip-trash", new.to_str().expect("utf-8"), "/t/big"]);
    cluster.ok(&["fs", "rm", "-r", "--skip-trash", "/t/sub"]);
    cluster.ok(&["fs", "mv", "/t/big", "/t/moved"]);
    cluster.ok(&["admin", "config", "set", "garbage_period=1s", "garbage_grace=1s"]);

    let check = |cluster: &Cluster, name: &str| {
        let at = format!("/t/.snapshots/{name}");
        let listed = cluster.ok(&["fs", "ls", &at]);
        assert!(listed.contains("big") && listed.contains("sub") && !listed.contains("moved"), "{listed}");
        let _ = fs::remove_dir_all(&back);
        cluster.ok(&["fs", "get", &at, back.to_str().expect("utf-8")]);
        assert!(fs::read(back.join("big")).expect("got") == big, "big differs");
        assert!(fs::read(back.join("sub/small")).expect("got") == small, "small differs");
        assert!(cluster.ok(&["fs", "find", &at]).contains("sub/small"));
        assert!(cluster.ok(&["fs", "stat", &format!("{at}/big")]).contains("3000000"));
        assert!(!cluster.ok(&["fs", "find", "/t"]).contains("snapshots"), "no walk comes into it");
    };
    check(&cluster, "monday");
    // The same inode, by a name that it had not then.
    assert!(cluster.ok(&["fs", "ls", "/.snapshots/monday/t"]).contains("big"));
    for args in [
        ["fs", "rm", "/t/.snapshots/monday/big"],
        ["fs", "mkdir", "/t/.snapshots/monday/d"],
        ["fs", "mkdir", "/t/.snapshots/x"],
    ] {
        let output = cluster.cairn(&args);
        assert!(!output.status.success(), "{args:?} changed a snapshot");
    }
    assert!(!cluster.cairn(&["fs", "put", new.to_str().expect("utf-8"), "/t/.snapshots"]).status.success());
    cluster.kill_all();
    cluster.start_all();
    cluster.ok(&["fs", "snapshot", "rename", "monday", "tuesday"]);
    check(&cluster, "tuesday");
    let held = &lines(&cluster, &["fs", "snapshot", "ls"])[0];
    assert!(held["held_bytes"].as_u64().is_some_and(|held| held >= 3_000_000), "{held}");
    cluster.ok(&["admin", "fsck", "default"]);

    // A copy of what a snapshot has is a file like any other.
    cluster.ok(&["fs", "cp", "-r", "/t/.snapshots/tuesday/sub", "/t/restored"]);
    let before = chunk_use(&cluster).1;
    cluster.ok(&["fs", "snapshot", "delete", "tuesday"]);
    until("the snapshot is gone", || lines(&cluster, &["fs", "snapshot", "ls"]).is_empty());
    until("its space is back", || chunk_use(&cluster).1 + 3 * 2_900_000 < before);
    assert!(cluster.cairn(&["fs", "ls", "/t/.snapshots/tuesday"]).status.code() != Some(0));
    cluster.ok(&["fs", "get", "/t/restored/small", cluster.path("small").to_str().expect("utf-8")]);
    assert!(fs::read(cluster.path("small")).expect("got") == small);
    assert!(
        fs::read(&new).expect("local") == {
            cluster.ok(&["fs", "get", "/t/moved", cluster.path("moved").to_str().expect("utf-8")]);
            fs::read(cluster.path("moved")).expect("got")
        }
    );
    cluster.ok(&["admin", "fsck", "default"]);
}

/// What a program overwrites in a mounted file would get into a snapshot that was taken before; or mounts would not
/// show snapshots, or take a file and its former self for one.
#[test]
fn a_mount_reads_snapshots_and_leaves_them_alone() {
    if skipped() {
        return;
    }
    let cluster = Cluster::start(SMALL);
    let mount = Mount::new(&cluster, "mnt", "/", "");
    let first = noise(1 << 20, 7);
    fs::create_dir(mount.path("d")).expect("mkdir");
    fs::write(mount.path("d/file"), &first).expect("write");
    let file = File::options().read(true).write(true).open(mount.path("d/file")).expect("open");
    file.sync_all().expect("fsync");
    let mut expected = first;
    let mut overwrite = |round: u64| {
        for at in 0..16u64 {
            let block = noise(4096, 1000 * round + at);
            let offset = (at * 61 + round) % 256 * 4096;
            file.write_all_at(&block, offset).expect("write");
            expected[offset as usize..][..4096].copy_from_slice(&block);
        }
        file.sync_all().expect("fsync");
        expected.clone()
    };
    // In place, under the lease, which the snapshot waits for.
    overwrite(0);
    let mut taken = Vec::new();
    for round in 1..4 {
        let name = format!("s{round}");
        let contents = overwrite(round);
        cluster.ok(&["fs", "snapshot", "create", &name]);
        taken.push((name, contents));
        overwrite(100 + round);
    }
    for (name, contents) in &taken {
        let path = mount.path(&format!("d/.snapshots/{name}/file"));
        assert!(fs::read(&path).expect("read") == *contents, "{name} is not what the file was");
        let (then, now) = (fs::metadata(&path).expect("stat"), fs::metadata(mount.path("d/file")).expect("stat"));
        assert_eq!((then.len(), then.dev()), (now.len(), now.dev()));
        assert_ne!(then.ino(), now.ino(), "tar and du would take them for one file");
        let refused = File::options().write(true).open(&path).expect_err("a snapshot is not written");
        assert_eq!(refused.raw_os_error(), Some(libc::EROFS), "{refused}");
        for error in [
            fs::remove_file(&path).expect_err("nor removed"),
            fs::create_dir(mount.path(&format!("d/.snapshots/{name}/new"))).expect_err("nor added to"),
            fs::rename(&path, mount.path(&format!("d/.snapshots/{name}/other"))).expect_err("nor renamed"),
        ] {
            assert_eq!(error.raw_os_error(), Some(libc::EROFS), "{error}");
        }
        assert_eq!(cluster.ok(&["fs", "cat", &format!("/d/.snapshots/{name}/file")]).len(), {
            String::from_utf8_lossy(contents).len()
        });
    }
    let names = |path: &str| {
        let mut names: Vec<String> = fs::read_dir(mount.path(path))
            .expect("listing")
            .map(|entry| entry.expect("entry").file_name().into_string().expect("utf-8"))
            .collect();
        names.sort();
        names
    };
    assert_eq!(names("d"), ["file"], "no listing shows it");
    assert_eq!(names("d/.snapshots"), ["s1", "s2", "s3"]);
    assert!(fs::read(mount.path("d/file")).expect("read") == expected);
    for (name, _) in &taken {
        cluster.ok(&["fs", "snapshot", "delete", name]);
    }
    until("they are gone", || lines(&cluster, &["fs", "snapshot", "ls"]).is_empty());
    assert!(fs::read(mount.path("d/file")).expect("read") == expected);
    cluster.ok(&["admin", "fsck", "default"]);
}

/// What `ls`, `stat` and reading tell of a tree, so that two can be compared.
fn portrait(cluster: &Cluster, root: &str) -> Vec<String> {
    let mut seen = Vec::new();
    for found in lines(cluster, &["fs", "find", root]) {
        let path = found["path"].as_str().expect("a path");
        let stat = &lines(cluster, &["fs", "stat", path])[0];
        let mut about = vec![path.strip_prefix(root).unwrap_or(path).to_owned()];
        for key in ["type", "mode", "uid", "gid", "size", "mtime_ns", "nlink", "layout", "target"] {
            about.push(format!("{key}={}", stat[key]));
        }
        about.push(cluster.ok(&["fs", "xattr", "ls", path]));
        seen.push(about.join(" "));
    }
    seen.sort();
    seen
}

/// The first snapshot of a volume would wait for a minute for nobody; or what is refused would cost space, or be found
/// out too late.
#[test]
fn a_volume_of_now_has_its_first_snapshot_at_once() {
    let cluster = Cluster::start(SMALL);
    let local = cluster.path("local");
    fs::write(&local, noise(500_000, 31)).expect("a file");
    let local = local.to_str().expect("utf-8");
    cluster.ok(&["admin", "volume", "create", "new"]);
    cluster.ok(&["fs", "put", local, "new:/f"]);
    let started = Instant::now();
    cluster.ok(&["fs", "snapshot", "create", "first", "new:/"]);
    assert!(started.elapsed() < Duration::from_secs(50), "it waited for {:?}", started.elapsed());

    let stored = chunk_use(&cluster).0;
    for place in ["new:/.snapshots/first/g", "new:/.snapshots/g"] {
        assert!(cluster.fails(&["fs", "put", local, place], 5).contains("cannot be changed"), "{place}");
    }
    assert_eq!(chunk_use(&cluster).0, stored, "nothing is stored for what is refused");
    for args in [&["create", "a@b", "new:/"][..], &["rename", "first", "a@b", "new:/"]] {
        let said = cluster.fails(&[&["fs", "snapshot"], args].concat(), 2);
        assert!(said.contains("no @"), "{said}");
    }
    let said = cluster.fails(&["fs", "snapshot", "diff", "first", "first", "--path", "new:/"], 2);
    assert!(said.contains("with itself"), "{said}");
}

/// Bytes up to the ends of all chunks. Unlike what they take on disk it leaves out the room that an open one has
/// reserved, which a writer that ended early leaves for minutes.
fn written(cluster: &Cluster) -> u64 {
    chunks(&cluster.path("disks")).iter().filter_map(|path| fs::metadata(path).ok()).map(|about| about.len()).sum()
}

/// A clone would miss something of its source, take space, be seen half, or name what is freed with its snapshot.
#[test]
fn a_tree_is_cloned_restored_and_compared() {
    let cluster = Cluster::start(SMALL);
    let (dir, back) = (cluster.path("tree"), cluster.path("back"));
    fs::create_dir_all(dir.join("sub/deep")).expect("directory");
    let (big, small) = (noise(3_000_000, 11), noise(777, 12));
    fs::write(dir.join("big"), &big).expect("file");
    fs::write(dir.join("sub/small"), &small).expect("file");
    fs::write(dir.join("sub/deep/empty"), b"").expect("file");
    cluster.ok(&["fs", "put", dir.to_str().expect("utf-8"), "/t"]);
    cluster.ok(&["fs", "ln", "/t/big", "/t/sub/same"]);
    cluster.ok(&["fs", "ln", "-s", "../big", "/t/sub/link"]);
    cluster.ok(&["fs", "chmod", "4750", "/t/sub/small"]);
    cluster.ok(&["fs", "chmod", "2711", "/t/sub"]);
    cluster.ok(&["fs", "xattr", "set", "/t/sub/small", "user.colour", "green"]);
    cluster.ok(&["fs", "xattr", "set", "/t/sub", "user.shape", "round"]);
    let before = portrait(&cluster, "/t");
    assert!(before.iter().any(|line| line.contains("user.colour")), "{before:?}");
    cluster.ok(&["fs", "snapshot", "create", "monday"]);

    let used = written(&cluster);
    cluster.ok(&["fs", "clone", "/t", "/now"]);
    assert_eq!(portrait(&cluster, "/now"), before);
    cluster.fails(&["fs", "clone", "/t", "/t/inside"], 2);
    cluster.fails(&["fs", "clone", "/t/big", "/now/big"], 4);
    assert!(cluster.fails(&["fs", "clone", "/t@friday", "/x"], 3).contains("no snapshot"));

    // What changes afterwards is in no clone of the snapshot.
    let new = cluster.path("new");
    fs::write(&new, noise(5_000, 13)).expect("file");
    cluster.ok(&["fs", "put", "--skip-trash", new.to_str().expect("utf-8"), "/t/sub/small"]);
    cluster.ok(&["fs", "mv", "/t/sub/deep", "/t/moved"]);
    cluster.ok(&["fs", "rm", "--skip-trash", "/t/big"]);
    cluster.ok(&["fs", "chmod", "700", "/t"]);
    cluster.ok(&["fs", "put", new.to_str().expect("utf-8"), "/t/added"]);
    // As a builder that crashed leaves it.
    cluster.ok(&["fs", "mkdir", "-p", "/.then.cloning/tree/junk"]);
    cluster.ok(&["fs", "put", new.to_str().expect("utf-8"), "/.then.cloning/lock"]);
    cluster.ok(&["fs", "clone", "/t@monday", "/then"]);
    // What is a user's own stays, whatever its name.
    cluster.ok(&["fs", "mkdir", "-p", "/.own.cloning/mine"]);
    assert!(cluster.fails(&["fs", "clone", "/t@monday", "/own"], 4).contains("in the way"));
    cluster.ok(&["fs", "rm", "-r", "--skip-trash", "/.own.cloning/mine", "/.own.cloning"]);
    assert_eq!(portrait(&cluster, "/then"), before);
    let listed = cluster.ok(&["fs", "ls", "-a", "/"]);
    assert!(!listed.contains("cloning"), "{listed}");
    assert!(written(&cluster) < used + 1_000_000, "a clone takes space");

    let diff = cluster.ok(&["fs", "snapshot", "diff", "monday", "--path", "/t"]);
    let mut told: Vec<&str> = diff.lines().collect();
    told.sort_unstable();
    // The file with two names was cloned and lost one: its bytes are those of before.
    let expected = ["+ /added", "- /big", "A /", "A /sub/small", "C /sub/small", "R /sub/deep/ -> /moved/"];
    assert_eq!(told, expected, "{diff}");
    cluster.ok(&["fs", "snapshot", "create", "tuesday"]);
    assert_eq!(cluster.ok(&["fs", "snapshot", "diff", "monday", "tuesday", "--path", "/t"]), diff);
    assert_eq!(cluster.ok(&["fs", "snapshot", "diff", "tuesday", "--path", "/t"]), "");
    cluster.fails(&["fs", "snapshot", "diff", "tuesday", "monday"], 2);

    assert!(cluster.fails(&["fs", "rm", "-r", "--skip-trash", "/t/.snapshots/monday"], 5).contains("snapshot delete"));
    assert!(cluster.fails(&["fs", "layout", "convert", "r2", "/t/.snapshots/monday/big"], 5).contains("snapshot"));

    let said = &lines(&cluster, &["fs", "snapshot", "restore", "/t@monday"])[0];
    let kept = said["kept_as"].as_str().expect("where what lived is").to_owned();
    assert!(kept.starts_with("/t.before-restore-"), "{kept}");
    assert_eq!(portrait(&cluster, "/t"), before);
    assert!(cluster.ok(&["fs", "ls", &kept]).contains("added"), "what lived is beside it");
    cluster.ok(&["fs", "snapshot", "restore", "/t/sub/small@tuesday", "--to", "/t/newer"]);
    let newer = cluster.path("newer");
    cluster.ok(&["fs", "get", "/t/newer", newer.to_str().expect("utf-8")]);
    assert!(fs::read(&newer).expect("got") == fs::read(&new).expect("local"), "the other snapshot's file differs");

    // The clones have their blocks in their own right.
    cluster.ok(&["admin", "config", "set", "garbage_period=1s", "garbage_grace=1s"]);
    cluster.ok(&["fs", "rm", "-r", "--skip-trash", &kept]);
    cluster.ok(&["fs", "rm", "-r", "--skip-trash", "/now"]);
    cluster.ok(&["fs", "snapshot", "delete", "monday"]);
    cluster.ok(&["fs", "snapshot", "delete", "tuesday"]);
    until("the snapshots are gone", || lines(&cluster, &["fs", "snapshot", "ls"]).is_empty());
    cluster.ok(&["admin", "fsck", "default"]);
    for root in ["/t", "/then"] {
        let _ = fs::remove_dir_all(&back);
        cluster.ok(&["fs", "get", root, back.to_str().expect("utf-8")]);
        assert!(fs::read(back.join("big")).expect("got") == big, "big differs");
        assert!(fs::read(back.join("sub/same")).expect("got") == big, "its other name differs");
        assert!(fs::read(back.join("sub/small")).expect("got") == small, "small differs");
    }
}
