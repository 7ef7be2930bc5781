//! Reads while nobody leads: refused with the way out in words, and answered by whoever is left if that was asked for.
use crate::members::leader;
use crate::support::{Cluster, Shape, text};
use crate::wait::{until, until_told};
use std::fs;

/// All files would be out of reach as long as most members of a partition are down, although everything is there.
#[test]
fn what_is_left_of_a_partition_is_read_on_request() {
    let mut cluster = Cluster::start(Shape { managers: 3, metas: 3, datas: 1, racks: 1 });
    let local = cluster.path("local");
    fs::write(&local, vec![7u8; 300_000]).expect("a file");
    cluster.ok(&["fs", "mkdir", "/d"]);
    cluster.ok(&["fs", "put", local.to_str().expect("UTF-8"), "/d/file"]);
    // A flag that nobody needs changes nothing, and nothing is said of it.
    let usual = cluster.cairn(&["fs", "ls", "--stale-ok", "/d"]);
    assert_eq!((text(&usual.stdout).trim(), text(&usual.stderr).as_str()), ("file", ""));
    // Two leaders die one after the other: who is left followed both, so it has what was acknowledged before the second
    // one took something on.
    let first = leader(&cluster);
    cluster.kill(&first);
    until("another leader", || cluster.cairn(&["fs", "mkdir", "/later"]).status.success());
    let second = leader(&cluster);
    cluster.kill(&second);
    let plain = ["--timeout", "3", "fs", "cat", "/d/file"];
    let refusal = || text(&cluster.cairn(&plain).stderr);
    // The second one's lease may last for a moment longer than it.
    until_told("the way out", || refusal().contains("--stale-ok"), refusal);
    assert!(cluster.fails(&plain, 7).contains("no leader of partition p1"), "{}", refusal());
    let read = |cluster: &Cluster, args: &[&str]| {
        let output = cluster.cairn(args);
        let (error, code) = (text(&output.stderr), output.status.code());
        assert_eq!(code, Some(0), "{error}");
        assert!(error.contains("cairn: warning: answers are up to") && error.contains("partition p1"), "{error}");
        output.stdout
    };
    assert!(read(&cluster, &["fs", "cat", "--stale-ok", "/d/file"]) == vec![7u8; 300_000]);
    let listed = read(&cluster, &["fs", "ls", "-R", "--stale-ok=10h", "/"]);
    assert!(text(&listed).contains("file"), "{}", text(&listed));
    let old = cluster.fails(&["fs", "ls", "--stale-ok=1ms", "/"], 7);
    assert!(old.contains("were allowed"), "{old}");
    let misuse = cluster.fails(&["fs", "rm", "--stale-ok", "/d/file"], 2);
    assert!(misuse.contains("only read"), "{misuse}");
    // The same without a majority of managers: the map is an old one, too.
    ["manager1", "manager2"].iter().for_each(|name| cluster.kill(name));
    let refusal = || text(&cluster.cairn(&plain).stderr);
    until_told("no leader of the managers", || refusal().contains("no leader of the managers"), refusal);
    let target = cluster.path("copy");
    read(&cluster, &["fs", "get", "--stale-ok", "/d/file", target.to_str().expect("UTF-8")]);
    assert_eq!(fs::read(&target).expect("a copy"), vec![7u8; 300_000]);
    cluster.start_all();
    cluster.wait_healthy();
    assert_eq!(cluster.ok(&["fs", "ls", "/d"]).trim(), "file");
    assert_eq!(cluster.kills, 4);
}
