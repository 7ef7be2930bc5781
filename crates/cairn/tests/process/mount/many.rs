//! Several mounts at once: programs on different machines that share files.
use super::leases::lead;
use super::seeds::{Rng, seeds};
use super::stamps::{Share, Stamped};
use super::{Mount, SMALL, skipped};
use crate::support::{Cluster, text};
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

const MOUNTS: u64 = 3;
/// Records that each appends.
const RECORDS: u64 = 150;

fn mounts(cluster: &Cluster, options: &str) -> Vec<Mount> {
    (0..MOUNTS).map(|number| Mount::new(cluster, &format!("mnt{number}"), "/", options)).collect()
}

/// A directory that the first mount leads until another one looks, as it is named in all of them.
fn led(mounts: &[Mount]) -> String {
    let top = lead(&mounts[0], "led");
    format!("{}/", top.file_name().and_then(|name| name.to_str()).expect("a name"))
}

fn record(writer: u64, number: u64, length: usize) -> Vec<u8> {
    let mut line = format!("{writer} {number} {length} ").into_bytes();
    let start = line.len();
    line.resize(start + length, b'a' + ((writer * 7 + number) % 26) as u8);
    line.push(b'\n');
    line
}

fn append(path: &Path, writer: u64, seed: u64) {
    let mut rng = Rng::new(seed * 100 + writer);
    let open = || OpenOptions::new().append(true).create(true).open(path).expect("open");
    let mut file = open();
    for number in 0..RECORDS {
        let length = if rng.one_in(10) { rng.index(100_000) } else { rng.index(300) };
        file.write_all(&record(writer, number, length)).expect("append");
        match rng.below(12) {
            0..3 => file.sync_all().expect("fsync"),
            3 => {
                drop(file);
                file = open();
            }
            _ => {}
        }
    }
    file.sync_all().expect("fsync");
}

/// Every record once, whole, and each writer's in its order.
fn check_records(what: &str, bytes: &[u8]) {
    let mut next: BTreeMap<u64, u64> = BTreeMap::new();
    let text = std::str::from_utf8(bytes).unwrap_or_else(|error| panic!("{what}: bytes that nobody wrote: {error}"));
    for line in text.lines() {
        let mut words = line.split(' ');
        let mut number = || words.next().and_then(|word| word.parse::<u64>().ok());
        let (Some(writer), Some(seen), Some(length)) = (number(), number(), number()) else {
            panic!("{what}: no record: {:?}", &line[..line.len().min(80)]);
        };
        let wanted = record(writer, seen, length as usize);
        assert!(wanted.strip_suffix(b"\n") == Some(line.as_bytes()), "{what}: a torn record: writer {writer}, {seen}");
        let expected = next.entry(writer).or_default();
        assert_eq!(seen, *expected, "{what}: writer {writer}'s records");
        *expected += 1;
    }
    let wanted: BTreeMap<u64, u64> = (0..MOUNTS).map(|writer| (writer, RECORDS)).collect();
    assert_eq!(next, wanted, "{what}: how many records of each writer there are");
}

/// A log that several machines append to would lose lines, have them twice, or have half ones.
#[test]
fn mounts_append_to_one_file() {
    if skipped() {
        return;
    }
    let cluster = Cluster::start(SMALL);
    let mounts = mounts(&cluster, "");
    seeds(1..3).into_iter().for_each(|seed| append_to_one(&cluster, &mounts, &format!("log-{seed}"), seed));
    end(mounts);
}

/// The same of one that is led by the mount that made it, until the others come.
#[test]
fn mounts_append_to_one_led_file() {
    if skipped() {
        return;
    }
    let cluster = Cluster::start(SMALL);
    let mounts = mounts(&cluster, "lease=new");
    for seed in seeds(3..4) {
        let name = format!("{}log", led(&mounts));
        append(&mounts[0].path(&name), MOUNTS, seed);
        fs::remove_file(mounts[0].path(&name)).expect("removed");
        append_to_one(&cluster, &mounts, &name, seed);
    }
    end(mounts);
}

fn append_to_one(cluster: &Cluster, mounts: &[Mount], name: &str, seed: u64) {
    std::thread::scope(|scope| {
        for (writer, mount) in (0u64..).zip(mounts) {
            let path = mount.path(name);
            scope.spawn(move || append(&path, writer, seed));
        }
    });
    let other = cluster.cairn(&["fs", "cat", &format!("/{name}")]);
    assert!(other.status.success(), "{}", text(&other.stderr));
    check_records("another client", &other.stdout);
    for mount in mounts {
        let found = fs::read(mount.path(name)).expect("read");
        check_records(&format!("{}, seed {seed}", mount.dir.display()), &found);
    }
}

fn end(mounts: Vec<Mount>) {
    for mount in mounts {
        let umount = mount.umount();
        assert!(umount.status.success(), "{}", text(&umount.stderr));
    }
}

/// Of two machines that write different parts of a file, down to single blocks, one would undo what the other wrote.
#[test]
fn mounts_write_parts_of_one_file() {
    if skipped() {
        return;
    }
    let cluster = Cluster::start(SMALL);
    let mounts = mounts(&cluster, "");
    seeds(1..3).into_iter().for_each(|seed| write_parts(&cluster, &mounts, &format!("parts-{seed}"), seed));
    end(mounts);
}

/// The same of one that is led by the mount that made it, until the others come.
#[test]
fn mounts_write_parts_of_one_led_file() {
    if skipped() {
        return;
    }
    let cluster = Cluster::start(SMALL);
    let mounts = mounts(&cluster, "lease=new");
    seeds(3..4).into_iter().for_each(|seed| write_parts(&cluster, &mounts, &format!("{}parts", led(&mounts)), seed));
    end(mounts);
}

fn write_parts(cluster: &Cluster, mounts: &[Mount], name: &str, seed: u64) {
    let work = |writer: u64, path: &Path| {
        let share = Share { writer, writers: MOUNTS, blocks: 120, bytes: 3500 };
        let mut own = Stamped::new(path, share, seed * 10 + writer, true);
        (0..60).for_each(|_| own.round());
        own.finish()
    };
    let finished: Vec<_> = std::thread::scope(|scope| {
        let start = |(writer, mount): (u64, &Mount)| {
            let path = mount.path(name);
            scope.spawn(move || work(writer, &path))
        };
        let writers: Vec<_> = (0u64..).zip(mounts).map(start).collect();
        writers.into_iter().map(|writer| writer.join().expect("a writer met an error")).collect()
    });
    let other = cluster.cairn(&["fs", "cat", &format!("/{name}")]);
    assert!(other.status.success(), "{}", text(&other.stderr));
    finished.iter().for_each(|own| own.check(&other.stdout));
    for mount in mounts {
        let found = fs::read(mount.path(name)).expect("read");
        assert!(found == other.stdout, "{} shows other bytes than the servers have", mount.dir.display());
    }
}

/// What several machines append would be mixed: the kernel sends a write through its pages in two parts if it begins
/// within a page, and what somebody else appends may come between them.
#[test]
fn a_write_that_appends_is_one_request() {
    if skipped() {
        return;
    }
    let cluster = Cluster::start(SMALL);
    let mount = Mount::new(&cluster, "mnt", "/", "");
    let local = cluster.path("local");
    let mut all = record(0, 0, 5000);
    fs::write(&local, &all).expect("local file");
    cluster.ok(&["fs", "put", local.to_str().expect("utf-8"), "/file"]);
    let path = mount.path("file");
    let writes = || {
        let stats = fs::read_to_string(mount.path(".cairn/stats")).expect("stats");
        let stats: serde_json::Value = serde_json::from_str(&stats).expect("JSON");
        stats["requests"]["operations"]["write"]["count"].as_u64().unwrap_or(0)
    };
    let before = writes();
    let mut appended = OpenOptions::new().append(true).open(&path).expect("open");
    for number in 1..4 {
        let more = record(0, number, 9000);
        assert_eq!(appended.write(&more).expect("append"), more.len());
        all.extend(&more);
        // Whoever has read the end in pages of this machine sees what comes behind it.
        assert!(fs::read(&path).expect("read") == all, "after append {number}");
    }
    assert_eq!(writes() - before, 3, "each is one request");
    appended.sync_all().expect("fsync");
    let output = cluster.cairn(&["fs", "cat", "/file"]);
    assert!(output.stdout == all, "{}", text(&output.stderr));
}

/// A program that seeks to the end of what another machine has closed would write over it: the kernel would still
/// believe the old size.
#[test]
fn an_open_sees_the_size_that_another_machine_gave() {
    if skipped() {
        return;
    }
    let cluster = Cluster::start(SMALL);
    // Without asking again at the open the old size would be believed for an hour.
    let mounts: Vec<_> =
        (0..2).map(|number| Mount::new(&cluster, &format!("mnt{number}"), "/", "attr_timeout=3600")).collect();
    let (here, there) = (mounts[0].path("file"), mounts[1].path("file"));
    fs::write(&here, "one ").expect("write");
    let mut expected = String::from("one ");
    for round in 0..20 {
        assert_eq!(fs::metadata(&here).expect("stat").len(), expected.len() as u64, "round {round}");
        let more = format!("{round} ");
        let mut other = OpenOptions::new().append(true).open(&there).expect("open");
        other.write_all(more.as_bytes()).expect("append");
        drop(other);
        expected += &more;
        let mut file = OpenOptions::new().read(true).write(true).open(&here).expect("open");
        assert_eq!(file.metadata().expect("fstat").len(), expected.len() as u64, "round {round}");
        assert_eq!(file.seek(SeekFrom::End(0)).expect("seek"), expected.len() as u64);
        file.write_all(b"end ").expect("write");
        drop(file);
        expected += "end ";
        assert_eq!(fs::read_to_string(&there).expect("read"), expected, "round {round}");
    }
    end(mounts);
}
