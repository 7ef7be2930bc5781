//! Keys that are taken away at one place are refused at all servers, and stay so.
use crate::mount::cannot_mount;
use crate::secure::{HeldMount, file, give_keys};
use crate::support::{Cluster, Shape, text};
use crate::wait::{until, until_told};
use std::fs;
use std::time::{Duration, Instant};

const PERMISSION: i32 = 5;

/// What a command with the key of somebody is told, if it is refused.
fn refused(cluster: &mut Cluster, name: &str, args: &[&str]) -> Option<String> {
    let before = cluster.key.replace(file(cluster, name));
    let output = cluster.cairn(&[&["--timeout", "5"], args].concat());
    cluster.key = before;
    (output.status.code() == Some(PERMISSION)).then(|| text(&output.stderr))
}

/// A stolen key would go on to be served by each server whose list nobody thought of, or by all after a restart.
#[test]
fn a_key_that_is_taken_away_at_one_place_is_refused_everywhere() {
    let mut cluster = Cluster::prepare(Shape { managers: 3, metas: 1, datas: 3, racks: 3 });
    give_keys(&mut cluster);
    cluster.key = Some(file(&cluster, "ops"));
    cluster.start_all();
    cluster.wait_volume();
    cluster.wait_healthy();
    assert!(cluster.ok(&["admin", "key", "ls"]).contains("no key was revoked"));
    assert_eq!(refused(&mut cluster, "bob", &["fs", "ls", "/"]), None);

    let output = cluster.cairn(&["admin", "key", "revoke", "no/name"]);
    assert!(
        !output.status.success() && text(&output.stderr).contains("is no name of a key"),
        "{}",
        text(&output.stderr)
    );

    // A mount with the key of bob gets another one while it is in use.
    let rotating = file(&cluster, "rotating");
    fs::copy(file(&cluster, "bob"), &rotating).expect("a key");
    let mut held = (cannot_mount().is_none()).then(|| HeldMount::begin(&cluster, "rotated", Some("rotating")));
    fs::copy(file(&cluster, "alice"), &rotating).expect("a key");
    held.iter_mut().for_each(HeldMount::upgrade);

    let begun = Instant::now();
    let said = cluster.ok(&["admin", "key", "revoke", "bob", "eve"]);
    assert!(said.contains("bob, eve: revoked; all servers that are up know it"), "{said}");
    assert!(begun.elapsed() < Duration::from_secs(10), "it took {:?}", begun.elapsed());
    let names = cluster.names();
    let told = |cluster: &Cluster, name: &str| {
        fs::read_to_string(cluster.path("nodes").join(name).join("revoked.told")).unwrap_or_default()
    };
    for name in &names {
        assert_eq!(told(&cluster, name), "bob\neve\n", "{name}");
    }
    assert_eq!(
        fs::read_to_string(cluster.path("revoked")).expect("a list"),
        "",
        "the list of the servers is as it was"
    );
    let said = refused(&mut cluster, "bob", &["fs", "ls", "/"]).expect("refused");
    assert!(said.contains("bob was revoked"), "{said}");
    assert_eq!(refused(&mut cluster, "alice", &["fs", "ls", "/"]), None, "others go on");
    held.into_iter().for_each(HeldMount::end);
    let shown = |cluster: &Cluster| cluster.ok(&["admin", "key", "ls"]);
    assert!(shown(&cluster).contains("bob") && shown(&cluster).contains("eve"), "{}", shown(&cluster));
    let events = cluster.ok(&["admin", "events", "--kind", "key-revoked"]);
    assert!(events.contains("revoked: bob, eve"), "{events}");

    // Everybody starts anew: from the managers' log, and from what each was told.
    for name in &names {
        cluster.kill(name);
    }
    for name in &names {
        cluster.launch(name);
    }
    for name in &names {
        cluster.wait_ready(name);
    }
    cluster.wait_healthy();
    assert!(refused(&mut cluster, "bob", &["fs", "ls", "/"]).is_some());
    assert!(shown(&cluster).contains("bob"), "{}", shown(&cluster));
    // Who was away hears it when it is back.
    cluster.stop("data3");
    let output = cluster.cairn(&["admin", "key", "revoke", "carol"]);
    assert!(!told(&cluster, "data3").contains("carol"), "{}", text(&output.stderr));
    cluster.restart("data3");
    until("data3 to hear it", || told(&cluster, "data3") == "bob\ncarol\neve\n");
    let all = || names.iter().all(|name| told(&cluster, name) == "bob\ncarol\neve\n");
    until_told("all to know it", all, || names.iter().map(|name| told(&cluster, name)).collect());
    cluster.wait_healthy();
    cluster.check_logs();
}
