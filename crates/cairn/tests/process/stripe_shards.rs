//! Files in stripe groups are encoded where they lie, with real processes: shards are made of copies on the disks that
//! have them, and what came of it is read, decoded, repaired and checked like anything else.
use crate::disks::chunk_use;
use crate::stripe_groups::{check, put};
use crate::support::{Cluster, Shape, lines, text};
use crate::trees::noise;
use crate::wait::{eventually, until, until_told};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

const KIB: usize = 1 << 10;
/// The unit of chunks of whole shards, as `fs stat` tells it.
const WHOLE: u64 = 64 << 20;

pub fn stat(cluster: &Cluster, path: &str) -> Value {
    lines(cluster, &["fs", "stat", "--extents", path]).remove(0)
}

/// Groups of the whole shards in which a file has bytes, and how many.
fn in_whole_shards(found: &Value) -> (BTreeSet<u64>, u64) {
    let extents = found["extents"].as_array().expect("extents");
    let whole: Vec<&Value> = extents.iter().filter(|extent| extent["unit"].as_u64() == Some(WHOLE)).collect();
    let bytes = whole.iter().filter_map(|extent| extent["length"].as_u64()).sum();
    (whole.iter().filter_map(|extent| extent["pg"].as_u64()).collect(), bytes)
}

/// All groups by their numbers.
fn groups(cluster: &Cluster) -> BTreeMap<u64, Value> {
    let all = lines(cluster, &["admin", "pg", "ls"]);
    all.into_iter().map(|pg| (pg["pg"].as_u64().expect("a number"), pg)).collect()
}

fn disks_of(pg: &Value) -> Vec<u64> {
    pg["members"].as_array().expect("members").iter().filter_map(|member| member["disk"].as_u64()).collect()
}

/// A cluster with stripe groups, and a directory whose files are encoded after two seconds.
fn start(shape: Shape, settings: &[&str]) -> Cluster {
    start_with(shape, "r3>rs-4-2@2s", settings)
}

pub fn start_with(shape: Shape, layout: &str, settings: &[&str]) -> Cluster {
    let cluster = Cluster::start(shape);
    let set = || cluster.cairn(&[&["admin", "config", "set", "stripe_groups=on"], settings].concat());
    until_told("the setting is taken", || set().status.success(), || text(&set().stderr));
    cluster.ok(&["fs", "mkdir", "/warm"]);
    let staged = || cluster.cairn(&["fs", "layout", "set", layout, "/warm"]).status.success();
    until("the layout is taken", staged);
    cluster
}

fn files(cluster: &Cluster, count: u64) -> Vec<(String, Vec<u8>)> {
    let of = |i: u64| (format!("/warm/f{i}"), noise(300 * KIB + 37_001 * (i as usize % 7), i));
    let files: Vec<(String, Vec<u8>)> = (0..count).map(of).collect();
    // Each by another client: so they come into many columns.
    files.iter().for_each(|(path, bytes)| put(cluster, bytes, path));
    files
}

fn node_of(cluster: &Cluster, disk: u64) -> String {
    let listed = lines(cluster, &["admin", "disk", "ls"]);
    let found = listed.iter().find(|row| row["id"] == disk).expect("a disk");
    let path = found["path"].as_str().expect("a path").to_owned();
    let name = cluster.names().into_iter().find(|name| cluster.disk(name).display().to_string() == path);
    name.expect("a data node")
}

/// Data would cross racks to be encoded, or be lost by it; or what was encoded could not be read without a member,
/// repaired, checked, overwritten or removed.
#[test]
fn copies_become_shards_where_they_lie() {
    let shape = Shape { managers: 1, metas: 1, datas: 9, racks: 3 };
    let mut cluster = start(shape, &["repair_delay_urgent=1s", "repair_delay=2s"]);
    let mut files = files(&cluster, 48);
    let bytes: u64 = files.iter().map(|(_, bytes)| bytes.len() as u64).sum();
    for (path, _) in &files {
        eventually(&cluster, &format!("{path} to be encoded"), || stat(&cluster, path)["stage"] == "encoded");
    }
    let together = cluster.metric("meta1", "cairn_meta_encoded_together_bytes").unwrap_or_default();
    assert!(together > bytes as f64 / 4.0, "only {together} of {bytes} bytes were encoded together");
    let (all, mut shards, mut whole, mut raw) = (groups(&cluster), BTreeSet::new(), 0, 0);
    for (path, bytes) in &files {
        let found = stat(&cluster, path);
        let (pgs, length) = in_whole_shards(&found);
        (whole, raw) = (whole + length, raw + found["raw_bytes"].as_u64().expect("a number"));
        shards.extend(pgs);
        assert_eq!(found["losses_survived"], 2, "{found}");
        check(&cluster, path, bytes);
    }
    assert!(whole as f64 >= together, "{whole} bytes are in whole shards, {together} were encoded so");
    assert!(raw as f64 <= 1.75 * bytes as f64, "{bytes} bytes take {raw}");
    for pg in &shards {
        let members = disks_of(&all[pg]);
        // Its data shards are where the columns of one stripe group have copies: nothing moved.
        let mut columns: BTreeMap<u64, BTreeMap<u64, Vec<u64>>> = BTreeMap::new();
        for column in all.values().filter(|pg| !pg["stripe"].is_null()) {
            let number = |name: &str| column["stripe"][name].as_u64().expect("a number");
            columns.entry(number("group")).or_default().insert(number("column"), disks_of(column));
        }
        let fits = |columns: &BTreeMap<u64, Vec<u64>>| {
            columns.len() == 4 && columns.values().zip(&members).all(|(copies, disk)| copies.contains(disk))
        };
        assert!(columns.values().any(fits), "pg{pg} on {members:?}: {columns:?}");
    }
    // A data shard is lost: first it is decoded, then made anew.
    let lost = disks_of(&all[shards.first().expect("whole shards")])[0];
    let victim = node_of(&cluster, lost);
    cluster.kill(&victim);
    files.iter().for_each(|(path, bytes)| check(&cluster, path, bytes));
    let repaired = || {
        let all = groups(&cluster);
        all.values().all(|pg| pg["health"] == "complete" && !disks_of(pg).contains(&lost))
    };
    eventually(&cluster, "others to have its places", repaired);
    files.iter().for_each(|(path, bytes)| check(&cluster, path, bytes));
    // Another one, so that what was made anew is read, and decoded with.
    let other = disks_of(&groups(&cluster)[shards.first().expect("whole shards")])[1];
    let victim = node_of(&cluster, other);
    cluster.kill(&victim);
    files.iter().for_each(|(path, bytes)| check(&cluster, path, bytes));
    cluster.start_all();
    // Half of them go, and the others, beside which they lie, stay; clones and newer writes are as ever.
    for (number, (path, bytes)) in files.iter_mut().enumerate() {
        match number % 4 {
            0 => drop(cluster.ok(&["fs", "rm", "--skip-trash", path])),
            1 => {
                *bytes = noise(bytes.len() + 5, 7_000 + number as u64);
                put(&cluster, bytes, path);
            }
            2 => drop(cluster.ok(&["fs", "cp", path, &format!("{path}-clone")])),
            _ => {}
        }
    }
    cluster.wait_healthy();
    for (number, (path, bytes)) in files.iter().enumerate().filter(|(number, _)| number % 4 != 0) {
        check(&cluster, path, bytes);
        if number % 4 == 2 {
            check(&cluster, &format!("{path}-clone"), bytes);
        }
    }
    assert_eq!(cluster.kills, 2, "every fault fired");
    cluster.ok(&["admin", "fsck"]);
}

/// Files of each chunk of whole shards, one of every shard: the first one of one shard, the last one of the next.
/// Whoever removes all others leaves twice as many rows as these need, and of every shard something, wherever chance
/// put them.
fn sparse(cluster: &Cluster, files: &[(String, Vec<u8>)]) -> BTreeSet<String> {
    type Place = (u64, u64, String);
    let mut chunks: BTreeMap<(u64, u64), BTreeMap<u64, Vec<Place>>> = BTreeMap::new();
    for (path, bytes) in files {
        let found = stat(cluster, path);
        let [only] = &found["extents"].as_array().expect("extents")[..] else { continue };
        let number = |name: &str| only[name].as_u64().unwrap_or_default();
        if number("unit") == WHOLE && number("length") >= bytes.len() as u64 {
            let (shard, at) = (number("chunk_offset") / WHOLE, number("chunk_offset") % WHOLE);
            let shards = chunks.entry((number("pg"), number("index"))).or_default();
            shards.entry(shard).or_default().push((at, at + bytes.len() as u64, path.clone()));
        }
    }
    let mut kept = BTreeSet::new();
    for shards in chunks.values().filter(|shards| shards.len() == 4) {
        let of_shard = |(shard, places): (&u64, &Vec<Place>)| {
            let place = if shard % 2 == 0 { places.iter().min() } else { places.iter().max() };
            (shard % 2 == 0, place.expect("at least one").clone())
        };
        let (first, last): (Vec<_>, Vec<_>) = shards.iter().map(of_shard).partition(|(first, _)| *first);
        if first.iter().all(|(_, a)| last.iter().all(|(_, b)| a.1 <= b.0)) {
            kept.extend(first.into_iter().chain(last).map(|(_, place)| place.2));
        }
    }
    assert!(!kept.is_empty(), "no chunk has enough of every shard: {chunks:?}");
    kept
}

/// Space of files that are gone would stay taken for the sake of their neighbours in other shards; or what is left be
/// damaged when it is put together anew.
#[test]
fn what_is_left_of_many_files_becomes_dense() {
    let shape = Shape { managers: 1, metas: 1, datas: 9, racks: 3 };
    let mut cluster = start_with(shape, "r3>rs-4-2", &["garbage_grace=1s"]);
    let files = files(&cluster, 96);
    // All at once, so that chunks are as long as there are files for them.
    let told = cluster.ok(&["fs", "layout", "encode", "/warm"]);
    assert!(told.contains("96 encoded"), "{told}");
    let sparse = sparse(&cluster, &files);
    let (kept, gone): (Vec<_>, Vec<_>) = files.iter().partition(|(path, _)| sparse.contains(path));
    gone.iter().for_each(|(path, _)| drop(cluster.ok(&["fs", "rm", "--skip-trash", path])));
    let before = chunk_use(&cluster).1;
    cluster.ok(&["admin", "config", "set", "garbage_period=1s"]);
    let moved = || cluster.metric("meta1", "cairn_meta_compacted_bytes").unwrap_or_default();
    until("something is moved", || moved() > 0.0);
    // And then it ends: what is dense is not written again.
    let all: u64 = kept.iter().map(|(_, bytes)| bytes.len() as u64).sum();
    std::thread::sleep(std::time::Duration::from_secs(15));
    assert!(moved() <= 2.0 * all as f64, "{} bytes were moved of {all}", moved());
    until("space comes back", || chunk_use(&cluster).1 < before);
    kept.iter().for_each(|(path, bytes)| check(&cluster, path, bytes));
    // What was put together is decoded, too.
    let (path, _) = kept[0];
    let pg = stat(&cluster, path)["extents"][0]["pg"].as_u64().expect("a number");
    let victim = node_of(&cluster, disks_of(&groups(&cluster)[&pg])[0]);
    cluster.kill(&victim);
    kept.iter().for_each(|(path, bytes)| check(&cluster, path, bytes));
    cluster.start_all();
    until("all to be whole again", || cluster.cairn(&["admin", "fsck"]).status.success());
}

/// Whoever asks for files before their time has come would have all their bytes sent across racks, one file after the
/// other, or wait for ever for those that cannot be put together.
#[test]
fn what_is_asked_for_is_encoded_where_it_lies() {
    let cluster = start_with(Shape { managers: 1, metas: 1, datas: 9, racks: 3 }, "r3>rs-4-2", &[]);
    let files = files(&cluster, 48);
    let bytes: u64 = files.iter().map(|(_, bytes)| bytes.len() as u64).sum();
    let together = || cluster.metric("meta1", "cairn_meta_encoded_together_bytes").unwrap_or_default();
    assert_eq!(together(), 0.0, "nothing is due for a day");
    let told = cluster.ok(&["fs", "layout", "encode", "/warm"]);
    assert!(told.contains("48 encoded"), "{told}");
    assert!(together() > bytes as f64 / 4.0, "only {} of {bytes} bytes were encoded together", together());
    let counted = cluster.metric("meta1", "cairn_meta_encoded_files").unwrap_or_default();
    assert!((1.0..=48.0).contains(&counted), "{counted} files were counted");
    for (path, bytes) in &files {
        assert_eq!(stat(&cluster, path)["stage"], "encoded", "{path}");
        check(&cluster, path, bytes);
    }
    cluster.ok(&["admin", "fsck"]);
}

/// Data nodes in whose log there is a chunk that they made of copies.
fn encoders(cluster: &Cluster) -> Vec<String> {
    let made = |name: &String| name.starts_with("data") && cluster.read_log(name).contains("copies became shards");
    cluster.names().into_iter().filter(made).collect()
}

/// Bytes would be lost, or files stay copies for ever, when whoever encodes, who has copies and shards, or the leader
/// of the managers dies in the middle of it.
#[test]
fn whoever_dies_nothing_is_lost() {
    // Slowly, so that what dies dies in the middle.
    let shape = Shape { managers: 3, metas: 1, datas: 9, racks: 3 };
    let mut cluster = start(shape, &["stage_rate=1m"]);
    let mut files = files(&cluster, 32);
    until("something is encoded together", || !encoders(&cluster).is_empty());
    let encoder = encoders(&cluster).remove(0);
    cluster.kill(&encoder);
    files.iter().step_by(3).for_each(|(path, bytes)| check(&cluster, path, bytes));
    let managers = lines(&cluster, &["admin", "manager", "ls"]);
    let leader = managers.iter().find(|row| row["leads"] == true).expect("a leader")["id"].clone();
    cluster.kill(&format!("manager{leader}"));
    for (number, (path, bytes)) in files.iter_mut().enumerate().step_by(4) {
        *bytes = noise(bytes.len() + 1_000, 5_000 + number as u64);
        put(&cluster, bytes, path);
    }
    cluster.start_all();
    cluster.wait_healthy();
    // One with shards, or with copies of what is being encoded.
    let other = (1..=9).map(|i| format!("data{i}")).find(|name| *name != encoder).expect("nine of them");
    cluster.kill(&other);
    files.iter().for_each(|(path, bytes)| check(&cluster, path, bytes));
    cluster.start_all();
    cluster.ok(&["admin", "config", "set", "stage_rate=100m"]);
    for (path, bytes) in &files {
        eventually(&cluster, &format!("{path} to be encoded"), || stat(&cluster, path)["stage"] == "encoded");
        check(&cluster, path, bytes);
    }
    cluster.wait_healthy();
    cluster.ok(&["admin", "fsck"]);
}
