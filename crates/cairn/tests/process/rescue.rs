//! Metadata lost and got back: backups, partitions put back, the cluster map made anew from the disks.
use crate::support::{Cluster, Shape, text};
use crate::wait::until;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

/// Bytes that differ from file to file and block to block.
fn contents(name: &str, length: usize) -> Vec<u8> {
    let mut state =
        name.bytes().fold(0x9e37_79b9_7f4a_7c15_u64, |state, byte| (state ^ u64::from(byte)).wrapping_mul(31));
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

/// Stores files of several sizes below `/dir`; what they hold.
fn write_tree(cluster: &Cluster, dir: &str) -> BTreeMap<String, Vec<u8>> {
    let local = cluster.path(dir);
    fs::create_dir_all(&local).expect("directory");
    let mut files = BTreeMap::new();
    for (at, length) in [10, 5_000, 300_000, 3_000_000].into_iter().enumerate() {
        let name = format!("f{at}");
        let bytes = contents(&format!("{dir}{name}"), length);
        fs::write(local.join(&name), &bytes).expect("file");
        files.insert(format!("/{dir}/{name}"), bytes);
    }
    cluster.ok(&["fs", "put", "-r", &local.display().to_string(), "/"]);
    files
}

fn check_tree(cluster: &Cluster, files: &BTreeMap<String, Vec<u8>>) {
    for (path, bytes) in files {
        let output = cluster.cairn(&["fs", "cat", path]);
        assert!(output.status.success(), "{path}: {}", text(&output.stderr));
        assert!(output.stdout == *bytes, "{path} has other bytes");
    }
}

fn node_dir(cluster: &Cluster, name: &str) -> PathBuf {
    cluster.path("nodes").join(name)
}

fn lose(cluster: &Cluster, name: &str) {
    fs::remove_dir_all(node_dir(cluster, name)).expect("lost");
}

fn string(path: PathBuf) -> String {
    path.display().to_string()
}

/// Directories of the data nodes, which bring their disks.
fn data_dirs(cluster: &Cluster) -> Vec<String> {
    cluster.names().iter().filter(|n| n.starts_with("data")).map(|n| string(node_dir(cluster, n))).collect()
}

/// The id of the only meta node, such as n17.
fn meta_node(cluster: &Cluster) -> String {
    let said = cluster.ok(&["admin", "partition", "ls", "--json"]);
    let row: serde_json::Value = serde_json::from_str(said.lines().next().expect("a partition")).expect("JSON");
    let node = row["members"].as_array().or_else(|| row["nodes"].as_array()).expect("members")[0].clone();
    format!("n{}", node.as_u64().or_else(|| node["id"].as_u64()).expect("a number"))
}

/// A lost directory of names would be the end of all files, although every byte of them is there.
#[test]
fn a_backup_brings_back_what_was_there_when_it_was_made() {
    let mut cluster = Cluster::start(Shape { managers: 1, metas: 1, datas: 3, racks: 3 });
    let first = write_tree(&cluster, "first");
    let backups = string(cluster.path("backups"));
    let said = cluster.ok(&["admin", "backup", &backups]);
    assert!(said.contains("backup 1 ") && said.contains("2 groups, 2 brought"), "{said}");
    let second = write_tree(&cluster, "second");
    cluster.ok(&["admin", "backup", &backups, "--keep", "2"]);
    assert_eq!(cluster.ok(&["admin", "backup", &backups, "--list", "--json"]).lines().count(), 2);
    assert!(cluster.ok(&["admin", "backup", &backups, "--verify"]).contains("backup 2 is whole"));
    let third = write_tree(&cluster, "third");
    cluster.ok(&["fs", "rm", "--skip-trash", "/first/f2"]);
    let node = meta_node(&cluster);
    let meta = string(node_dir(&cluster, "meta1"));
    // Not while it runs, and not over what is newer.
    let running = cluster.fails(&["admin", "restore", &backups, "--node", &node, "--dir", &meta], 20);
    assert!(running.contains("in use"), "{running}");
    cluster.kill_all();
    let newer = cluster.fails(&["admin", "restore", &backups, "--node", &node, "--dir", &meta], 4);
    assert!(newer.contains("--over-newer-state"), "{newer}");
    let other = cluster.fails(&["admin", "restore", &backups, "--node", "n99", "--dir", &meta], 1);
    assert!(other.contains("belongs to node"), "{other}");
    lose(&cluster, "meta1");
    lose(&cluster, "manager1");
    let said = cluster.ok(&["admin", "restore", &backups, "--node", &node, "--dir", &meta]);
    assert!(said.contains("is freed as garbage after garbage_grace"), "{said}");
    assert!(said.contains("entry") && said.contains("of backup 2"), "{said}");
    let manager = string(node_dir(&cluster, "manager1"));
    let at = format!("1@{}", cluster.address);
    let mut rebuild: Vec<String> = data_dirs(&cluster);
    rebuild.push(meta);
    let rebuild = |rest: &[&str]| {
        let mut args = vec!["admin", "rebuild-map", "--manager", &at, "--dir", &manager, "--backups", &backups];
        args.extend(rebuild.iter().map(String::as_str));
        args.extend(rest);
        cluster.cairn(&args)
    };
    let dry = rebuild(&[]);
    assert!(dry.status.success() && text(&dry.stdout).contains("nothing was written"), "{}", text(&dry.stderr));
    assert!(!node_dir(&cluster, "manager1").exists());
    let wrote = rebuild(&["--write"]);
    assert!(wrote.status.success(), "{}{}", text(&wrote.stdout), text(&wrote.stderr));
    let again = rebuild(&["--write"]);
    assert!(!again.status.success() && text(&again.stderr).contains("--over-newer-state"), "{}", text(&again.stderr));
    cluster.start_all();
    cluster.wait_volume();
    cluster.wait_healthy();
    let removed = "/first/f2".to_owned();
    let kept: BTreeMap<_, _> =
        first.iter().filter(|(path, _)| **path != removed).map(|(p, b)| (p.clone(), b.clone())).collect();
    check_tree(&cluster, &kept);
    check_tree(&cluster, &second);
    // What came after the backup has no names; what was deleted after it has one, and is there whole, or is told as
    // lost.
    for path in third.keys() {
        assert!(!cluster.cairn(&["fs", "stat", path]).status.success(), "{path} was written after the backup");
    }
    cluster.allow_error("lost");
    let back = cluster.cairn(&["fs", "cat", &removed]);
    let fsck = cluster.cairn(&["admin", "fsck"]);
    match back.status.success() {
        true => assert!(back.stdout == first[&removed]),
        false => assert!(text(&fsck.stdout).contains(&removed), "{}{}", text(&fsck.stdout), text(&fsck.stderr)),
    }
    // Life goes on.
    let fourth = write_tree(&cluster, "fourth");
    check_tree(&cluster, &fourth);
    cluster.ok(&["admin", "backup", &backups]);
}

/// With all managers gone, nobody would know which disk has what; and one that returns could decide on what has moved
/// on.
#[test]
fn the_map_is_rebuilt_from_the_disks_and_old_managers_stay_out() {
    let mut cluster = Cluster::start(Shape { managers: 3, metas: 1, datas: 3, racks: 3 });
    let files = write_tree(&cluster, "first");
    let managers = ["manager1", "manager2", "manager3"];
    managers.iter().for_each(|name| cluster.kill(name));
    // One of them is found again later, with all that it knew.
    let attic = cluster.path("attic");
    fs::rename(node_dir(&cluster, "manager2"), &attic).expect("moved");
    ["manager1", "manager3"].iter().for_each(|name| lose(&cluster, name));
    // Data and meta nodes run on; one disk is looked at on its own machine.
    let scan = string(cluster.path("data1.scan"));
    cluster.ok(&["admin", "rebuild-map", "--save-scan", &scan, &string(node_dir(&cluster, "data1"))]);
    let at = format!("1@{}", cluster.address.split(',').next().expect("an address"));
    let dir = string(node_dir(&cluster, "manager1"));
    let (two, three) = (string(node_dir(&cluster, "data2")), string(node_dir(&cluster, "data3")));
    let meta = string(node_dir(&cluster, "meta1"));
    let args = ["admin", "rebuild-map", "--manager", &at, "--dir", &dir];
    // Something is missing: that is said, and nothing is written without a word.
    let partly = [&args[..], &[&scan, &two, &meta, "--write"]].concat();
    let missing = cluster.fails(&partly, 10);
    assert!(missing.contains("--accept-missing"), "{missing}");
    let whole = [&args[..], &[&scan, &two, &three, &meta, "--write"]].concat();
    let said = cluster.ok(&whole);
    assert!(said.contains("volumes: default") && said.contains("written into"), "{said}");
    cluster.launch("manager1");
    cluster.wait_ready("manager1");
    until("everybody to register", || {
        let output = cluster.cairn(&["admin", "status"]);
        text(&output.stdout).contains("healthy: nothing is wrong")
    });
    check_tree(&cluster, &files);
    let more = write_tree(&cluster, "second");
    check_tree(&cluster, &more);
    // The old manager returns.
    cluster.allow_error("superseded");
    cluster.allow_error("this member takes no part in elections");
    cluster.allow_error("the manager cannot be reached");
    fs::rename(&attic, node_dir(&cluster, "manager2")).expect("moved");
    cluster.launch("manager2");
    until("its end", || cluster.read_log("manager2").contains("superseded"));
    check_tree(&cluster, &files);
    let third = write_tree(&cluster, "third");
    // Everything starts anew, the old one with it.
    let running: Vec<String> = cluster.names().into_iter().filter(|n| cluster.is_running(n)).collect();
    running.iter().for_each(|name| cluster.kill(name));
    running.iter().for_each(|name| cluster.launch(name));
    running.iter().filter(|name| *name != "manager2").for_each(|name| cluster.wait_ready(name));
    cluster.wait_volume();
    for files in [&files, &more, &third] {
        check_tree(&cluster, files);
    }
    // With an empty directory it is welcome.
    cluster.kill("manager2");
    lose(&cluster, "manager2");
    cluster.launch("manager2");
    let two = format!("2@{}", cluster.address.split(',').nth(1).expect("an address"));
    until("it to be added", || cluster.cairn(&["admin", "manager", "add", &two]).status.success());
    cluster.wait_ready("manager2");
}

/// One partition could not go back while the rest of the cluster runs on, or members of before would outvote the
/// restored one.
#[test]
fn one_partition_goes_back_while_the_managers_run() {
    let mut cluster = Cluster::start(Shape { managers: 1, metas: 3, datas: 1, racks: 1 });
    let first = write_tree(&cluster, "first");
    let backups = string(cluster.path("backups"));
    cluster.ok(&["admin", "backup", &backups]);
    write_tree(&cluster, "second");
    let said = cluster.ok(&["admin", "partition", "ls", "--json"]);
    let row: serde_json::Value = serde_json::from_str(said.lines().next().expect("a partition")).expect("JSON");
    let members: Vec<u64> = row["nodes"].as_array().expect("members").iter().filter_map(|n| n.as_u64()).collect();
    assert_eq!(members.len(), 3, "{said}");
    let metas = ["meta1", "meta2", "meta3"];
    metas.iter().for_each(|name| cluster.kill(name));
    // Which directory is whose.
    let nodes = cluster.ok(&["admin", "node", "ls", "--json"]);
    let host_of = |id: u64| {
        let rows = nodes.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
        rows.into_iter().find(|row| row["id"] == id).expect("a node")["host"].as_str().expect("a host").to_owned()
    };
    let (one, name) = (format!("n{}", members[0]), host_of(members[0]));
    let dir = string(node_dir(&cluster, &name));
    let guarded = cluster.fails(&["admin", "restore", &backups, "--node", &one, "--dir", &dir], 4);
    assert!(guarded.contains("--over-newer-state"), "{guarded}");
    let args = ["admin", "restore", &backups, "--node", &one, "--dir", &dir, "--partition", "1", "--over-newer-state"];
    cluster.ok(&args);
    cluster.allow_error("superseded");
    metas.iter().for_each(|name| cluster.launch(name));
    cluster.wait_ready(&name);
    let others: Vec<String> = metas.iter().map(|m| (*m).to_owned()).filter(|m| *m != name).collect();
    until("members of before to stop", || others.iter().all(|m| cluster.read_log(m).contains("superseded")));
    until("its names", || cluster.cairn(&["fs", "ls", "/first"]).status.success());
    check_tree(&cluster, &first);
    // The partition has one member now, and only the logs of the others would say so.
    let superseded = || cluster.ok(&["admin", "status"]).matches(" is superseded").count();
    until("the status to name the others", || superseded() == 2);
    assert!(!cluster.cairn(&["fs", "ls", "/second"]).status.success(), "it was written after the backup");
    let (two, three) = (format!("n{}", members[1]), format!("n{}", members[2]));
    cluster.ok(&["admin", "partition", "remove", "1", &two, &three]);
    // Who is added again before it has heard that it was removed keeps its old state, and takes no part.
    let dropped = |m: &String| cluster.read_log(m).contains("the state of a partition is dropped");
    until("the old states to be dropped", || others.iter().all(dropped));
    // Refused until both are known to have dropped it.
    let add = ["admin", "partition", "add", "1", &two, &three];
    until("the members to be taken again", || cluster.cairn(&add).status.success());
    until("the status to be content with them", || superseded() == 0);
    // The new members hold it without the first one.
    cluster.kill(&name);
    until("another leader", || cluster.cairn(&["fs", "ls", "/first"]).status.success());
    check_tree(&cluster, &first);
}

/// A reader in trouble would copy options that do not exist.
#[test]
fn the_guides_name_options_that_exist() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guides/");
    let pages = ["recover.md", "operate.md"].map(|page| fs::read_to_string(format!("{root}{page}")).expect(page));
    let mut checked = 0;
    for command in ["backup", "restore", "rebuild-map"] {
        let output = std::process::Command::new(crate::support::binary()).args(["admin", command, "--help"]).output();
        let help = text(&output.expect("the binary runs").stdout);
        for line in
            pages.iter().flat_map(|page| page.lines()).filter(|l| l.contains(&format!("cairn admin {command} ")))
        {
            let (_, rest) = line.split_once(&format!("cairn admin {command} ")).expect("just seen");
            let command_line = rest.split(['`', '#']).next().expect("a part");
            for option in command_line.split_whitespace().filter(|word| word.starts_with("--")) {
                assert!(
                    help.contains(option),
                    "{option} of cairn admin {command}, which a guide names, does not exist"
                );
                checked += 1;
            }
        }
    }
    assert!(checked >= 8, "the guides' commands were not found");
}
