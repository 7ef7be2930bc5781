//! Machines that append lines to one file at the same time, through mounts and commands, while servers die.
use crate::mount::{Mount, skipped};
use crate::support::{Cluster, Shape, lines, text};
use crate::wait::until_told;
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const MOUNTS: usize = 5;
const COMMANDS: usize = 4;
const FILE: &str = "/log";

fn line(writer: usize, number: usize) -> String {
    // Lengths that meet no border of blocks.
    format!("{writer} {number} {}\n", "x".repeat((writer * 31 + number * 7) % 397))
}

/// Appends a line at a time, each durable before the next, until it is told to stop. How many.
fn append_through(mount: &Path, writer: usize, stop: &AtomicBool, all: &AtomicUsize) -> usize {
    let mut file = OpenOptions::new().append(true).open(mount).expect("opened");
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        file.write_all(line(writer, number).as_bytes()).expect("written");
        file.sync_all().expect("synced");
        number += 1;
        all.fetch_add(1, Ordering::Relaxed);
    }
    number
}

/// The same by commands, one after the other, of some lines each.
fn append_by_commands(cluster: &Cluster, writer: usize, stop: &AtomicBool, all: &AtomicUsize) -> usize {
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        let input: String = (number..number + 5).map(|number| line(writer, number)).collect();
        let args = ["fs", "append", "--lines", FILE];
        let mut child = cluster.command(&args).stdin(Stdio::piped()).spawn().expect("append");
        child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("taken");
        let output = child.wait_with_output().expect("ended");
        assert!(output.status.success(), "{}", text(&output.stderr));
        number += 5;
        all.fetch_add(5, Ordering::Relaxed);
    }
    number
}

/// Each line once and whole, those of a writer in their order, and nothing else. How many of each.
fn counted(bytes: &str) -> BTreeMap<usize, usize> {
    let mut next = BTreeMap::new();
    for found in bytes.split_inclusive('\n') {
        let writer = found.split(' ').next().and_then(|word| word.parse().ok());
        let writer = writer.unwrap_or_else(|| panic!("bytes that nobody wrote: {:?}", &found[..found.len().min(80)]));
        let number = next.entry(writer).or_default();
        assert_eq!(found, line(writer, *number), "a line of {writer}");
        *number += 1;
    }
    next
}

/// Ends who writes and who follows, also where something failed: nobody waits for them then.
struct Ends<'a> {
    stop: &'a AtomicBool,
    follower: Child,
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ended = self.follower.kill().and_then(|()| self.follower.wait());
    }
}

/// The meta node that leads the partition.
fn leader(cluster: &Cluster) -> Option<String> {
    let metas = lines(cluster, &["admin", "node", "ls"]);
    let leads = metas.iter().find(|node| node["partitions_led"].as_u64().is_some_and(|led| led > 0))?;
    let id = leads["id"].as_u64()?;
    (1..=3)
        .map(|number| format!("meta{number}"))
        .find(|name| cluster.is_running(name) && cluster.read_log(name).contains(&format!("node=n{id} ")))
}

/// Lines of machines that append at the same time would be lost, torn or doubled when servers die, or some machines
/// never come to it.
#[test]
fn lines_of_many_machines_are_there_once_whichever_servers_die() {
    if skipped() {
        return;
    }
    let cluster = Cluster::start(Shape { managers: 1, metas: 3, datas: 4, racks: 4 });
    cluster.ok(&["fs", "touch", FILE]);
    let mounts: Vec<Mount> = (0..MOUNTS).map(|at| Mount::new(&cluster, &format!("mnt{at}"), "/", "")).collect();
    let mut follower = cluster.command(&["fs", "tail", "-f", "-c", "1g", FILE]).spawn().expect("tail");
    let mut followed = follower.stdout.take().expect("a pipe");
    let seen = AtomicUsize::new(0);
    let (stop, all) = (AtomicBool::new(false), AtomicUsize::new(0));
    let go_on = |count: usize| {
        let wanted = all.load(Ordering::Relaxed) + count;
        let told = || format!("{} lines so far", all.load(Ordering::Relaxed));
        until_told("more lines", || all.load(Ordering::Relaxed) >= wanted, told);
    };
    let (wanted, found) = std::thread::scope(|scope| {
        let ends = Ends { stop: &stop, follower };
        let watched = scope.spawn(|| {
            let (mut found, mut part) = (Vec::new(), [0; 64 << 10]);
            while let Ok(count @ 1..) = std::io::Read::read(&mut followed, &mut part) {
                found.extend_from_slice(&part[..count]);
                seen.store(found.len(), Ordering::Relaxed);
            }
            found
        });
        let (own, stop, all) = (&cluster, &stop, &all);
        let through = mounts.iter().enumerate().map(|(writer, mount)| {
            let path = mount.path("log");
            scope.spawn(move || append_through(&path, writer, stop, all))
        });
        let mut writers: Vec<_> = through.collect();
        for writer in MOUNTS..MOUNTS + COMMANDS {
            writers.push(scope.spawn(move || append_by_commands(own, writer, stop, all)));
        }
        go_on(100);
        let mut leads = None;
        let mut somebody_leads = || {
            leads = leader(own);
            leads.is_some()
        };
        until_told("somebody to lead", &mut somebody_leads, || "nobody".to_owned());
        let leads = leads.expect("somebody");
        for victim in [leads.as_str(), "data2"] {
            // Ended from outside: the cluster is shared with the writers.
            let pid = own.pid(victim).to_string();
            let killed = std::process::Command::new("kill").args(["-9", &pid]).status().expect("kill");
            assert!(killed.success(), "{victim} was not there");
            go_on(100);
        }
        stop.store(true, Ordering::Relaxed);
        let wanted: BTreeMap<usize, usize> =
            writers.into_iter().map(|writer| writer.join().expect("a writer met an error")).enumerate().collect();
        let size = || own.ok(&["fs", "cat", FILE]).len();
        let told = || format!("{} bytes were seen", seen.load(Ordering::Relaxed));
        until_told("all to be seen by who follows", || seen.load(Ordering::Relaxed) >= size(), told);
        drop(ends);
        (wanted, watched.join().expect("a reader"))
    });
    let whole = cluster.ok(&["fs", "cat", FILE]);
    let wanted: BTreeMap<usize, usize> = wanted.into_iter().filter(|(_, count)| *count > 0).collect();
    assert_eq!(counted(&whole), wanted, "lines of each writer");
    assert_eq!(wanted.len(), MOUNTS + COMMANDS, "each came to it");
    assert!(text(&found) == whole, "who follows sees the same");
    println!("lines of each writer: {wanted:?}");
    for mount in mounts {
        let umount = mount.umount();
        assert!(umount.status.success(), "{}", text(&umount.stderr));
    }
}
