//! What an operator does for the data: the check of a volume, the scrub of disks, the trash.
use crate::disks::{chunks, flip, scrubbed_until_whole};
use crate::support::{Cluster, Shape};
use crate::trees::noise;
use crate::wait::eventually;
use std::fs;

const SHAPE: Shape = Shape { managers: 1, metas: 1, datas: 3, racks: 3 };

fn put(cluster: &Cluster, path: &str, bytes: &[u8]) {
    let local = cluster.path("local");
    fs::write(&local, bytes).expect("file");
    cluster.ok(&["fs", "put", local.to_str().expect("utf-8"), path]);
}

/// Bit rot of what nobody reads would stay until the other copies are lost.
#[test]
fn damage_that_nobody_reads_is_found_and_healed() {
    let mut cluster = Cluster::start(SHAPE);
    put(&cluster, "/a file", &noise(3_000_000, 1));
    cluster.ok(&["fs", "mkdir", "/dir"]);
    put(&cluster, "/dir/other", &noise(200_000, 2));
    let whole = cluster.ok(&["admin", "fsck"]);
    assert!(whole.contains("4 inodes (2 directories)") && whole.contains("0 findings"), "{whole}");

    // Everything is closed and written home, then a byte of each chunk of one disk is changed.
    cluster.kill("data1");
    cluster.restart("data1");
    cluster.wait_healthy();
    let damaged = chunks(&cluster.disk("data1"));
    damaged.iter().for_each(|path| flip(path, 1000));
    assert!(!damaged.is_empty(), "nothing was damaged");
    let all = damaged.len() as u64;
    let found = scrubbed_until_whole(&cluster);
    assert!(found >= all, "{found} of {all} bad blocks were found");
    eprintln!("{all} damaged chunks healed");
    // The leader of the metadata learns with a heartbeat that the disk serves again.
    eventually(&cluster, "nothing to find", || {
        let output = cluster.cairn(&["admin", "fsck"]);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(matches!(output.status.code(), Some(0 | 10)), "{said}");
        output.status.success() && said.contains("0 findings")
    });
}

/// A slip of the finger would cost a tree, or what was removed would stay for ever or hide from whoever looks for it.
#[test]
fn what_rm_removes_can_be_brought_back() {
    let cluster = Cluster::start(SHAPE);
    let bytes = noise(100_000, 1);
    cluster.ok(&["fs", "mkdir", "-p", "/home/ann/deep"]);
    put(&cluster, "/home/ann/file", &bytes);
    put(&cluster, "/home/ann/deep/inner", b"inner");
    cluster.ok(&["fs", "rm", "/home/ann/file"]);
    cluster.ok(&["fs", "rm", "-r", "/home/ann/deep"]);
    assert_eq!(cluster.ok(&["fs", "ls", "/home/ann"]).trim(), "");
    let listed = cluster.ok(&["--json", "fs", "trash", "ls"]);
    let items: Vec<serde_json::Value> = listed.lines().map(|line| serde_json::from_str(line).expect("json")).collect();
    let paths: Vec<&str> = items.iter().filter_map(|item| item["path"].as_str()).collect();
    assert_eq!(paths, ["/home/ann/file", "/home/ann/deep"], "{listed}");
    // What is in it can be read.
    let now_at = items[1]["now_at"].as_str().expect("a path");
    assert_eq!(cluster.ok(&["fs", "cat", &format!("{now_at}/inner")]), "inner");
    assert!(items[0]["expires_ns"].as_u64() > items[0]["removed_ns"].as_u64());
    // What went with a directory had no path of its own in the trash; it is told where it is, and how to get it.
    let within = cluster.fails(&["fs", "trash", "restore", "/home/ann/deep/inner"], 3);
    let take = format!("cairn fs mv {now_at}/inner PATH");
    assert!(within.contains("/home/ann/deep was removed as a whole") && within.contains(&take), "{within}");
    cluster.ok(&["fs", "mv", &format!("{now_at}/inner"), "/home/ann/inner"]);
    cluster.ok(&["fs", "mv", "/home/ann/inner", &format!("{now_at}/inner")]);
    assert!(!cluster.fails(&["fs", "trash", "restore", "/home/ann/deeper"], 3).contains("as a whole"));

    // Not over what is there by now.
    put(&cluster, "/home/ann/file", b"newer");
    let refused = cluster.fails(&["fs", "trash", "restore", "/home/ann/file"], 4);
    assert!(refused.contains("/home/ann/file exists") && refused.contains("--to"), "{refused}");
    cluster.ok(&["fs", "trash", "restore", "/home/ann/file", "--to", "/home/ann/old"]);
    assert_eq!(cluster.cairn(&["fs", "cat", "/home/ann/old"]).stdout, bytes);
    cluster.ok(&["fs", "trash", "restore", "/home/ann/deep"]);
    assert_eq!(cluster.ok(&["fs", "cat", "/home/ann/deep/inner"]), "inner");
    assert_eq!(cluster.ok(&["--json", "fs", "trash", "ls"]), "");
    cluster.fails(&["fs", "trash", "restore", "/home/ann/deep"], 3);

    // For good: by option, where a directory says so, and by emptying.
    cluster.ok(&["fs", "rm", "--skip-trash", "/home/ann/old"]);
    cluster.ok(&["fs", "trash", "keep", "/home/ann/deep", "off"]);
    cluster.ok(&["fs", "rm", "/home/ann/deep/inner"]);
    assert_eq!(cluster.ok(&["--json", "fs", "trash", "ls"]), "");
    cluster.ok(&["fs", "rm", "-r", "/home/ann"]);
    assert_eq!(cluster.ok(&["--json", "fs", "trash", "ls"]).lines().count(), 1);
    cluster.fails(&["fs", "rm", "-r", "/.trash"], 2);
    cluster.ok(&["fs", "trash", "empty"]);
    assert_eq!(cluster.ok(&["--json", "fs", "trash", "ls"]), "");
    assert!(cluster.ok(&["admin", "fsck"]).contains("0 findings"));
}

/// Root could not help somebody who removed the wrong file, and many files would go one after the other.
#[test]
fn the_trash_of_somebody_else_and_many_operands() {
    let cluster = Cluster::start(SHAPE);
    // As if user 4242 had removed it.
    let entry = "/.trash/4242/009999999600/17-1";
    cluster.ok(&["fs", "mkdir", "-p", entry]);
    put(&cluster, &format!("{entry}/report"), b"of somebody else");
    cluster.ok(&["fs", "xattr", "set", entry, "user.cairn.trash_path", "/report"]);
    cluster.fails(&["fs", "trash", "restore", "/report"], 3);
    cluster.ok(&["fs", "trash", "restore", &format!("{entry}/report")]);
    assert_eq!(cluster.ok(&["fs", "cat", "/report"]), "of somebody else");

    // Files at the same time, but what an operand names is gone before one that lies in it is looked at.
    let local = cluster.path("many");
    fs::create_dir(&local).expect("directory");
    (0..300).for_each(|n| fs::write(local.join(format!("f{n}")), b"x").expect("file"));
    cluster.ok(&["fs", "put", local.to_str().expect("utf-8"), "/"]);
    let failed = cluster.fails(&["fs", "rm", "/many/f0", "/many/none", "/many/f[1-9]*", "/many/f0"], 10);
    assert!(failed.contains("/many/none") && failed.contains("/many/f0"), "{failed}");
    assert_eq!(cluster.ok(&["fs", "ls", "/many"]), "");
    let listed = cluster.ok(&["--json", "fs", "trash", "ls"]);
    assert_eq!(listed.lines().count(), 300, "{listed}");
    cluster.ok(&["fs", "trash", "restore", "/many/f7"]);
    let failed = cluster.fails(&["fs", "rm", "-r", "/many", "/many/f7"], 10);
    assert!(failed.contains("/many/f7: "), "{failed}");
    assert!(cluster.ok(&["fs", "trash", "empty"]).starts_with("300 removed"), "299 files and the directory");

    // A volume that is used up has no room for the trash either.
    put(&cluster, "/last", b"x");
    cluster.ok(&["fs", "quota", "set", "--volume", "--inodes", "1", "/"]);
    let refused = cluster.fails(&["fs", "rm", "/last"], 6);
    assert!(refused.contains("cannot be moved to the trash") && refused.contains("--skip-trash"), "{refused}");
    cluster.ok(&["fs", "rm", "--skip-trash", "/last"]);

    // A volume with nothing but a trash is not empty; whoever wants it to go is told of it.
    cluster.ok(&["admin", "volume", "create", "other"]);
    put(&cluster, "other:/x", b"x");
    cluster.ok(&["fs", "rm", "other:/x"]);
    let refused = cluster.fails(&["admin", "volume", "delete", "other"], 19);
    assert!(refused.contains("cairn fs rm -r --skip-trash other:/.trash"), "{refused}");
    cluster.ok(&["fs", "rm", "-r", "--skip-trash", "other:/.trash"]);
    eventually(&cluster, "the volume to be empty", || {
        cluster.cairn(&["admin", "volume", "delete", "other"]).status.success()
    });
    assert!(cluster.ok(&["admin", "fsck"]).contains("0 findings"));
}
