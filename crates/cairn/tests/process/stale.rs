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
    let said = |cluster: &Cluster, args: &[&str]| {
        let output = cluster.cairn(args);
        (output.status.code(), output.stdout, text(&output.stderr))
    };
    let usual = || said(&cluster, &["fs", "ls", "--stale-ok", "/d"]);
    until_told("the leader to answer", || usual() == (Some(0), b"file\n".to_vec(), String::new()), || usual().2);
    // Two leaders die one after the other: who is left followed both, so it has what was acknowledged before the second
    // one took something on.
    let first = leader(&cluster);
    cluster.kill(&first);
    until("another leader", || cluster.cairn(&["fs", "mkdir", "/later"]).status.success());
    let second = leader(&cluster);
    cluster.kill(&second);
    // The second one's lease may last for a moment longer than it.
    let refused = |cluster: &Cluster, args: &[&str], parts: &[&str]| {
        let holds = || {
            let (code, _, error) = said(cluster, args);
            code == Some(7) && parts.iter().all(|part| error.contains(part))
        };
        until_told("a refusal", holds, || said(cluster, args).2);
    };
    let plain = ["--timeout", "3", "fs", "cat", "/d/file"];
    refused(&cluster, &plain, &["no leader of partition p1", "--stale-ok"]);
    let read = |cluster: &Cluster, args: &[&str], wanted: &dyn Fn(&[u8]) -> bool| {
        let holds = || {
            let (code, out, error) = said(cluster, args);
            let warned = error.contains("cairn: warning: answers are up to") && error.contains("partition p1");
            code == Some(0) && warned && wanted(&out)
        };
        until_told("an old answer", holds, || said(cluster, args).2);
    };
    let whole = |out: &[u8]| out == vec![7u8; 300_000];
    read(&cluster, &["fs", "cat", "--stale-ok", "/d/file"], &whole);
    read(&cluster, &["fs", "ls", "-R", "--stale-ok=10h", "/"], &|out| text(out).contains("file"));
    refused(&cluster, &["fs", "ls", "--stale-ok=1ms", "/"], &["were allowed"]);
    let misuse = cluster.fails(&["fs", "rm", "--stale-ok", "/d/file"], 2);
    assert!(misuse.contains("unexpected argument '--stale-ok'"), "{misuse}");
    // The same without a majority of managers: the map is an old one, too.
    ["manager1", "manager2"].iter().for_each(|name| cluster.kill(name));
    refused(&cluster, &plain, &["no leader of the managers", "--stale-ok"]);
    let target = cluster.path("copy");
    read(&cluster, &["fs", "get", "--stale-ok", "/d/file", target.to_str().expect("UTF-8")], &|_| true);
    assert_eq!(fs::read(&target).expect("a copy"), vec![7u8; 300_000]);
    cluster.start_all();
    cluster.wait_healthy();
    assert_eq!(cluster.ok(&["fs", "ls", "/d"]).trim(), "file");
    assert_eq!(cluster.kills, 4);
}
