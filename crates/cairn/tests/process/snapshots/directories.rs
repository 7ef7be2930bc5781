//! Snapshots of directories: shown by them alone, through commands and a mount, also when they were moved or removed.
use crate::mount::{Mount, SMALL, skipped};
use crate::support::{Cluster, lines};
use crate::trees::noise;
use crate::wait::until;
use std::fs;

fn listed(cluster: &Cluster, path: &str) -> Vec<(String, Option<String>)> {
    let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
    let all = lines(cluster, &["fs", "snapshot", "ls", path]);
    let there = all.iter().filter(|one| one["deleting"] == false);
    there.map(|one| (text(&one["name"]).expect("a name"), text(&one["path"]))).collect()
}

fn of(name: &str, path: &str) -> (String, Option<String>) {
    (name.to_owned(), Some(path.to_owned()))
}

/// A directory would show another one's snapshots, lose its own when it is moved or removed, or be restored or deleted
/// in place of another.
#[test]
fn snapshots_of_directories_are_theirs() {
    let cluster = Cluster::start(SMALL);
    let (local, back) = (cluster.path("local"), cluster.path("back"));
    let (first, second) = (noise(300_000, 21), noise(200_000, 22));
    let put = |contents: &[u8], path: &str| {
        fs::write(&local, contents).expect("a file");
        cluster.ok(&["fs", "put", "--skip-trash", local.to_str().expect("utf-8"), path]);
    };
    let got = |path: &str| {
        let _ = fs::remove_file(&back);
        cluster.ok(&["fs", "get", path, back.to_str().expect("utf-8")]);
        fs::read(&back).expect("got")
    };
    cluster.ok(&["fs", "mkdir", "-p", "/a/b/c", "/x"]);
    put(&first, "/a/b/c/f");
    put(&first, "/x/f");
    cluster.ok(&["fs", "snapshot", "create", "one", "/a/b"]);
    cluster.ok(&["fs", "snapshot", "create", "one", "/x"]);
    cluster.ok(&["fs", "snapshot", "create", "all"]);
    assert!(cluster.fails(&["fs", "snapshot", "create", "one"], 4).contains("a snapshot of this name"));
    assert!(cluster.fails(&["fs", "snapshot", "create", "all", "/x"], 4).contains("a snapshot of this name"));
    assert!(cluster.fails(&["fs", "snapshot", "create", "f", "/x/f"], 2).contains("no directory"));
    cluster.fails(&["fs", "snapshot", "create", "y", "/a/b/.snapshots/one"], 2);
    put(&second, "/a/b/c/f");
    put(&second, "/x/f");

    assert!(got("/a/b/.snapshots/one/c/f") == first);
    assert!(got("/x/.snapshots/one/f") == first);
    for hidden in ["/.snapshots/one", "/a/.snapshots/one", "/a/b/c/.snapshots/one", "/x/.snapshots/one/c"] {
        cluster.fails(&["fs", "ls", hidden], 3);
    }
    assert_eq!(listed(&cluster, "/"), [of("one", "/a/b"), of("one", "/x"), of("all", "/")]);
    assert_eq!(listed(&cluster, "/x"), [of("one", "/x")]);
    let shown = cluster.cairn(&["fs", "snapshot", "ls"]);
    assert!(String::from_utf8_lossy(&shown.stderr).contains("whole volume"), "what it holds is said");

    // A path of now says of which directory.
    assert_eq!(cluster.ok(&["fs", "snapshot", "diff", "one", "--path", "/a/b"]), "C /c/f\n");
    assert!(cluster.fails(&["fs", "snapshot", "diff", "one"], 3).contains("not on this path"));
    cluster.ok(&["fs", "clone", "/a/b/c/f@one", "/f-of-one"]);
    assert!(got("/f-of-one") == first);
    assert!(cluster.fails(&["fs", "clone", "/a/nothing@one", "/z"], 3).contains("not on this path"));
    cluster.ok(&["fs", "snapshot", "restore", "/a/b/c/f@one"]);
    assert!(got("/a/b/c/f") == first);
    assert!(cluster.fails(&["fs", "snapshot", "delete", "one"], 2).contains("several directories"));

    cluster.ok(&["fs", "mv", "/a/b", "/moved"]);
    assert!(got("/moved/.snapshots/one/c/f") == first, "they go along");
    assert_eq!(listed(&cluster, "/")[0], of("one", "/moved"));
    if !skipped() {
        let mount = Mount::new(&cluster, "mnt", "/", "");
        let names = |path: &str| {
            let mut names: Vec<_> =
                fs::read_dir(mount.path(path)).expect("a list").collect::<Result<_, _>>().expect("names");
            names.sort_by_key(std::fs::DirEntry::file_name);
            names.into_iter().map(|entry| entry.file_name().into_string().expect("utf-8")).collect::<Vec<_>>()
        };
        assert_eq!(names("moved/.snapshots"), ["all", "one"]);
        assert_eq!(names(".snapshots"), ["all"]);
        assert!(fs::read(mount.path("moved/.snapshots/one/c/f")).expect("read") == first);
        assert!(fs::metadata(mount.path("a/.snapshots/one")).is_err());
        assert!(fs::read(mount.path("x/.snapshots/one/f")).expect("read") == first);
    }

    cluster.ok(&["fs", "rm", "-r", "--skip-trash", "/moved"]);
    until("it is known to be gone", || listed(&cluster, "/")[0] == ("one".to_owned(), None));
    cluster.fails(&["fs", "snapshot", "restore", "/moved/c/f@one"], 3);
    assert!(cluster.fails(&["fs", "snapshot", "restore", "/@one", "--to", "/back"], 3).contains("not on this path"));
    let numbers: Vec<u64> = lines(&cluster, &["fs", "snapshot", "ls"])
        .iter()
        .map(|one| one["number"].as_u64().expect("a number"))
        .collect();
    let number = numbers[0].to_string();
    cluster.ok(&["fs", "snapshot", "rename", "one", "gone", "--number", &number]);
    cluster.ok(&["fs", "snapshot", "restore", "/@gone", "--to", "/back"]);
    assert!(got("/back/c/f") == first);
    cluster.ok(&["fs", "snapshot", "delete", "gone"]);
    cluster.ok(&["fs", "snapshot", "delete", "one", "/x"]);
    until("two are gone", || lines(&cluster, &["fs", "snapshot", "ls"]).len() == 1);
    assert!(got("/x/.snapshots/all/f") == first && got("/back/c/f") == first);
    cluster.ok(&["fs", "snapshot", "delete", "all", "/"]);

    cluster.ok(&["fs", "snapshot", "schedule", "set", "daily=2", "/x"]);
    cluster.ok(&["fs", "snapshot", "schedule", "set", "hourly=3"]);
    let rules = lines(&cluster, &["fs", "snapshot", "schedule", "ls"]);
    assert_eq!((rules[0]["path"].as_str(), rules[0]["keep"].as_u64()), (Some("/"), Some(3)));
    assert_eq!((rules[1]["path"].as_str(), rules[1]["period"].as_str()), (Some("/x"), Some("daily")));
    assert_eq!(lines(&cluster, &["fs", "snapshot", "schedule", "ls", "/x"]).len(), 1);
    cluster.ok(&["fs", "snapshot", "schedule", "clear", "/x"]);
    assert_eq!(lines(&cluster, &["fs", "snapshot", "schedule", "ls"]).len(), 1);
    cluster.ok(&["admin", "fsck", "default"]);
}
