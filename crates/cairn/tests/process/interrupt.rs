//! Writers that are interrupted: what they wrote for nothing is free again at once, or shown with the time by when it
//! is.
use crate::disks::chunk_use;
use crate::support::{Cluster, Shape, lines, text};
use crate::trees::noise;
use crate::wait::{eventually, until};
use rustix::process::Signal;
use std::fs;
use std::io::Write;
use std::process::{Child, Stdio};

const MIB: usize = 1 << 20;
/// What a put of the tests writes, in one copy.
const LENGTH: usize = 20 * MIB;
/// Headers of chunks and reserved space.
const ROOM: u64 = 8 * MIB as u64;

fn signal(child: &Child, signal: Signal) {
    let pid = rustix::process::Pid::from_raw(child.id() as i32).expect("a process");
    rustix::process::kill_process(pid, signal).expect("a signal");
}

/// Begins `put - TARGET` and waits until half of it is on disks; it waits for more then.
fn begin_put(cluster: &Cluster, target: &str, options: &[&str]) -> Child {
    let before = cluster.stored();
    let args = [options, &["fs", "put", "-", target]].concat();
    let mut put = cluster.command(&args).stdin(Stdio::piped()).spawn().expect("put");
    put.stdin.as_mut().expect("a pipe").write_all(&noise(LENGTH, 5)).expect("taken");
    assert!(cluster.wait_stored(&mut put, before + LENGTH as u64 * 3 / 4), "it waits for more");
    put
}

/// Waits for the end of a command; its exit code and what it said.
fn ended(mut put: Child) -> (Option<i32>, String) {
    // The pipe stays open: it has to end by itself.
    let pipe = put.stdin.take();
    until("the end of the put", || put.try_wait().expect("wait").is_some());
    drop(pipe);
    let output = put.wait_with_output().expect("ended");
    (output.status.code(), text(&output.stderr))
}

/// Long before garbage is collected, which takes its grace of ten minutes.
fn wait_free(cluster: &Cluster, before: u64, what: &str) {
    let began = std::time::Instant::now();
    eventually(cluster, &format!("the space of {what}"), || chunk_use(cluster).1 <= before + ROOM);
    eprintln!("{what}: space back after {:?}", began.elapsed());
}

/// Gigabytes would be gone for an hour, and nobody could see where they are.
#[test]
fn an_interrupted_put_gives_its_space_back() {
    let mut cluster = Cluster::start(Shape { managers: 1, metas: 1, datas: 5, racks: 5 });
    cluster.ok(&["fs", "mkdir", "--layout", "rs-3-2", "/shards"]);
    cluster.ok(&["fs", "mkdir", "--layout", "r3", "/copies"]);
    let kept = noise(3 * MIB + 17, 1);
    let local = cluster.path("kept");
    fs::write(&local, &kept).expect("file");
    for target in ["/copies/kept", "/shards/kept"] {
        cluster.ok(&["fs", "put", local.to_str().expect("utf-8"), target]);
    }
    let (_, before) = chunk_use(&cluster);
    for (how, target) in [(Signal::INT, "/copies/x"), (Signal::TERM, "/copies/y"), (Signal::INT, "/shards/x")] {
        let put = begin_put(&cluster, target, &[]);
        signal(&put, how);
        let (code, said) = ended(put);
        assert_eq!(code, Some(130), "{said}");
        assert!(!said.contains("could not be freed"), "{said}");
        wait_free(&cluster, before, &format!("{target}, ended by {how:?}"));
    }

    // A file that tasks of their own store.
    let large = cluster.path("large");
    fs::write(&large, vec![7; 256 * MIB]).expect("file");
    let mut interrupted = false;
    for attempt in 0..10 {
        let target = format!("/copies/large{attempt}");
        let stored = cluster.stored();
        let mut put = cluster.command(&["fs", "put", large.to_str().expect("utf-8"), &target]).spawn().expect("put");
        if cluster.wait_stored(&mut put, stored + LENGTH as u64) {
            signal(&put, Signal::INT);
        }
        let (code, said) = ended(put);
        interrupted = code == Some(130);
        if interrupted {
            break;
        }
        assert_eq!(code, Some(0), "{said}");
        cluster.ok(&["fs", "rm", "--skip-trash", &target]);
    }
    assert!(interrupted, "every put ended before it could be interrupted");
    wait_free(&cluster, before, "a large file");

    // All data nodes are gone: it gives up, and what it had written is freed when they are back.
    let put = begin_put(&cluster, "/copies/z", &["--timeout", "10"]);
    let datas = ["data1", "data2", "data3", "data4", "data5"];
    datas.iter().for_each(|name| cluster.kill(name));
    let mut put = put;
    // More than it may keep in memory.
    let _it_may_have_ended = put.stdin.as_mut().expect("a pipe").write_all(&noise(3 * LENGTH, 6));
    drop(put.stdin.take());
    let (code, said) = ended(put);
    assert!(code.is_some_and(|code| code != 0 && code != 130), "{code:?} {said}");
    cluster.start_all();
    wait_free(&cluster, before, "a put that gave up");
    for target in ["/copies/kept", "/shards/kept"] {
        let read = cluster.cairn(&["fs", "cat", target]);
        assert!(read.status.success() && read.stdout == kept, "{target}: {}", text(&read.stderr));
    }
    let names = cluster.ok(&["fs", "ls", "/copies"]);
    assert_eq!(names.trim(), "kept", "nothing of the others is visible");
    assert_eq!(cluster.kills, 5, "every fault fired");
}

/// Bytes that `df` says no file names: of writers that may live, and of those that are gone.
fn unreferenced(cluster: &Cluster) -> (u64, u64) {
    let mut found = None;
    // It is counted behind the answers, and asked for again.
    until("a count", || {
        let volumes = lines(cluster, &["fs", "df"]);
        let number = |key: &str| volumes[0][key].as_u64();
        found = number("unnamed_bytes").zip(number("unreferenced_bytes"));
        found.is_some()
    });
    found.expect("just seen")
}

/// Whoever looks for the space of a writer that was killed would find it in no command.
#[test]
fn what_a_killed_writer_left_is_shown_with_when_it_is_freed() {
    let cluster = Cluster::start(Shape { managers: 1, metas: 1, datas: 3, racks: 3 });
    let (_, before) = chunk_use(&cluster);
    assert_eq!(unreferenced(&cluster), (0, 0));
    let stored = cluster.stored();
    let mut put = begin_put(&cluster, "/x", &[]);
    // More than what has to be found of its three copies.
    assert!(cluster.wait_stored(&mut put, stored + 2 * LENGTH as u64), "it waits for more");
    signal(&put, Signal::KILL);
    assert_eq!(ended(put).0, None);
    let least = LENGTH as u64 * 3 / 2;
    eventually(&cluster, "what it wrote to be counted", || {
        let (recent, left) = unreferenced(&cluster);
        recent + left >= least
    });
    // Of a writer that is gone, or, if its session was too short for the partition to know it, of one that may be.
    let said = cluster.ok(&["fs", "df", "-h"]);
    assert!(said.contains("unreferenced on all disks together") && said.contains("freed by 20"), "{said}");
    cluster.ok(&["admin", "config", "set", "garbage_period=1s", "garbage_grace=1s"]);
    eventually(&cluster, "it to be freed", || {
        chunk_use(&cluster).1 <= before + ROOM && !cluster.ok(&["fs", "df"]).contains("unreferenced")
    });
}
