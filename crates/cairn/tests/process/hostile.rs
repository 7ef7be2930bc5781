//! Hostile peers and odd neighbours of a cluster of real processes: strangers that connect and say nothing, stop in the
//! middle, or take the last descriptor; clones of a directory, and the directory of one that was removed. Clients are
//! served beside them, memory and descriptors come back, and what a person has to know is said.
//!
//! Not here: the same against a server in the test's own process, with each kind of close counted (tests of cairn-rpc
//! and cairn-telemetry).
use crate::support::{Cluster, Shape, copy_dir, text};
use crate::trees::noise;
use crate::wait::{LIMIT, eventually, until, until_told};
use cairn_types::{ClusterId, NodeId};
use cairn_wire::Opcode;
use cairn_wire::frame::{CallHeader, Flags, HEADER_LEN, OPCODE_HELLO, begin_frame, finish_frame};
use cairn_wire::hello::{Hello, PeerKind};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;

pub const SMALL: Shape = Shape { managers: 1, metas: 1, datas: 1, racks: 1 };
/// What a client waits, in seconds: less than strangers would hold it up if they could, more than a slow machine needs.
pub const PATIENCE: &str = "120";
/// A payload that is announced.
const ANNOUNCED: usize = 4 << 20;
/// Of it that comes.
const SENT: usize = 100 << 10;

/// Addresses of a process: for calls, and its HTTP port.
pub fn addresses(cluster: &Cluster, name: &str) -> (String, String) {
    let said = fs::read_to_string(cluster.path(&format!("{name}.out"))).expect("what it said");
    let of = |key: &str| {
        let (_, rest) = said.split_once(key).expect("an address");
        rest.split_whitespace().next().expect("an address").to_owned()
    };
    (of("cluster="), of("http="))
}

pub fn dial(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(LIMIT)).expect("a limit");
    stream
}

pub fn frame(opcode: u16, payload: usize, fill: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    let start = begin_frame(&mut out);
    fill(&mut out);
    finish_frame(&mut out, start, Flags::REQUEST, opcode, 1, payload).expect("a frame");
    out
}

/// A connection that said hello, as clients do.
fn greeted(address: &str) -> TcpStream {
    let mut stream = dial(address);
    let hello = Hello::new(ClusterId::NONE, PeerKind::Client, NodeId(0));
    stream.write_all(&frame(OPCODE_HELLO, 0, |out| hello.encode(out))).expect("sent");
    let mut answer = [0; HEADER_LEN];
    stream.read_exact(&mut answer).expect("a hello");
    stream
}

/// It announced a payload, sent a part of it, and stops.
fn stopped(address: &str) -> TcpStream {
    let mut stream = greeted(address);
    let header = CallHeader { deadline_ms: 60_000, trace_id: 0 };
    let request = frame(Opcode::Append.code(), ANNOUNCED, |out| header.encode(out));
    stream.write_all(&request).and_then(|()| stream.write_all(&vec![7; SENT])).expect("sent");
    stream
}

/// Waits until the other side closes it.
fn expect_closed(mut stream: TcpStream) {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "it stays open: {error}"),
    }
}

/// Bytes of memory of a process.
pub fn memory(cluster: &Cluster, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", cluster.pid(name))).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a line");
    line.split_whitespace().nth(1).expect("a number").parse::<u64>().expect("a number") << 10
}

fn open_files(cluster: &Cluster, name: &str) -> u64 {
    fs::read_dir(format!("/proc/{}/fd", cluster.pid(name))).expect("it runs").count() as u64
}

/// Stores a file and reads it back.
pub fn store_and_read(cluster: &Cluster, name: &str, bytes: &[u8]) {
    let local = cluster.path("local");
    fs::write(&local, bytes).expect("file");
    cluster.ok(&["--timeout", PATIENCE, "fs", "put", local.to_str().expect("utf-8"), name]);
    let back = cluster.cairn(&["--timeout", PATIENCE, "fs", "cat", name]);
    assert!(back.stdout == bytes, "{}", text(&back.stderr));
}

/// Strangers would hold up writers for as long as they like, and the memory that they took would never come back.
#[test]
fn strangers_hold_up_nobody_and_their_memory_comes_back() {
    const STOPPED: usize = 64;
    const SILENT: usize = 300;
    const HALF: usize = 100;
    /// What a server may have beside: far less than the strangers announced.
    const SLACK: u64 = 120 << 20;
    let cluster = Cluster::start(SMALL);
    let bytes = noise(6_000_000, 41);
    store_and_read(&cluster, "/before", &bytes);
    let before = memory(&cluster, "data1");
    let (address, http) = addresses(&cluster, "data1");
    let half: Vec<TcpStream> = (0..HALF)
        .map(|_| {
            let mut stream = dial(&http);
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Half: ").expect("sent");
            stream
        })
        .collect();
    let silent: Vec<TcpStream> = (0..SILENT).map(|_| dial(&address)).collect();
    let idle: Vec<TcpStream> = (0..SILENT).map(|_| greeted(&address)).collect();
    let stopped: Vec<TcpStream> = (0..STOPPED).map(|_| stopped(&address)).collect();
    for i in 0..3 {
        store_and_read(&cluster, &format!("/beside{i}"), &bytes);
    }
    // All of them are closed by the server, but for those that said hello and are idle, for which there is room.
    half.into_iter().chain(silent).chain(stopped).for_each(expect_closed);
    store_and_read(&cluster, "/behind", &bytes);
    let now = || memory(&cluster, "data1");
    until_told("the memory of strangers", || now() < before + SLACK, || format!("{before} before, {}", now()));
    drop(idle);
    cluster.wait_healthy();
}

/// One that can open no file would be called a broken disk until somebody restarts it, and nobody be told what is
/// lacking.
#[test]
fn a_process_without_descriptors_waits_and_says_so() {
    const BEGIN: usize = 4 << 20;
    const REST: usize = 80 << 20;
    let cluster = Cluster::start(SMALL);
    let (address, _) = addresses(&cluster, "data1");
    let pid = Pid::from_raw(cluster.pid("data1") as i32).expect("a process");
    let all = limit_of(pid);
    let set = |current: u64| {
        let new = Rlimit { current: Some(current), maximum: all.maximum };
        let _old = prlimit(Some(pid), Resource::Nofile, new).expect("the soft limit can be changed");
    };
    // Strangers take what is left; they have to say hello in time, so they do not keep it.
    set(open_files(&cluster, "data1") + 10);
    let strangers: Vec<TcpStream> = (0..40).map(|_| dial(&address)).collect();
    let bytes = noise(1_000_000, 42);
    store_and_read(&cluster, "/beside", &bytes);
    until("the lack to be in the log", || cluster.read_log("data1").contains("is the limit of open files too low?"));
    drop(strangers);
    // A writer that is connected needs new files, and there is none left.
    set(all.current.expect("a limit"));
    let whole = noise(BEGIN + REST, 43);
    let mut put = cluster.command(&["fs", "put", "-", "/large"]).stdin(Stdio::piped()).spawn().expect("put");
    let mut input = put.stdin.take().expect("a pipe");
    let stored = cluster.stored();
    input.write_all(&whole[..BEGIN]).expect("written");
    until("the beginning to be stored", || cluster.stored() > stored);
    set(open_files(&cluster, "data1"));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            input.write_all(&whole[BEGIN..]).expect("written");
            drop(input);
        });
        eventually(&cluster, "the status to say what is lacking", || {
            text(&cluster.cairn(&["admin", "status"]).stdout).contains("disks and logs wait")
        });
        set(all.current.expect("a limit"));
    });
    let put = put.wait_with_output().expect("put ends");
    assert!(put.status.success(), "{}", text(&put.stderr));
    assert!(cluster.cairn(&["fs", "cat", "/large"]).stdout == whole, "other bytes");
    cluster.wait_healthy();
}

fn limit_of(pid: Pid) -> Rlimit {
    let said = fs::read_to_string(format!("/proc/{}/limits", pid.as_raw_nonzero())).expect("it runs");
    let line = said.lines().find(|line| line.starts_with("Max open files")).expect("a line");
    let mut numbers = line.split_whitespace().skip(3).map(|number| number.parse().ok());
    Rlimit { current: numbers.next().flatten(), maximum: numbers.next().flatten() }
}

/// Two processes with the directory of one would take turns as the member that it is, and nobody know why it comes and
/// goes.
#[test]
fn a_clone_of_a_metas_directory_is_refused_and_named() {
    let mut cluster = Cluster::start(Shape { managers: 1, metas: 3, datas: 1, racks: 1 });
    cluster.allow_error("two processes have the identity of one node");
    cluster.allow_error("has the same identity");
    cluster.ok(&["fs", "mkdir", "/before"]);
    cluster.stop("meta1");
    cluster.add("clone", "127.0.0.1:0", 0, "[meta]\n");
    copy_dir(&cluster.path("nodes").join("meta1"), &cluster.path("nodes").join("clone"));
    cluster.restart("meta1");
    cluster.wait_healthy();
    cluster.launch("clone");
    eventually(&cluster, "the clone to be named", || {
        text(&cluster.cairn(&["admin", "status"]).stdout).contains("has the same identity")
    });
    assert!(cluster.is_running("clone") && cluster.is_running("meta1"));
    (0..5).for_each(|i| drop(cluster.ok(&["--timeout", PATIENCE, "fs", "mkdir", &format!("/beside{i}")])));
    let (first, _) = addresses(&cluster, "meta1");
    let at = cluster.ok(&["admin", "node", "ls"]);
    assert!(at.contains(&first), "the first one is no node any more: {at}");
    cluster.kill("clone");
    assert_eq!(cluster.ok(&["fs", "ls", "/"]).split_whitespace().count(), 6);
}

/// The directory of a manager that was removed would vote, and lead, with what it knew then.
#[test]
fn the_directory_of_a_removed_manager_takes_no_part() {
    let mut cluster = Cluster::start(Shape { managers: 3, metas: 1, datas: 1, racks: 1 });
    cluster.allow_error("is of a former member");
    cluster.stop("manager3");
    let (dir, old) = (cluster.path("nodes").join("manager3"), cluster.path("old"));
    copy_dir(&dir, &old);
    cluster.restart("manager3");
    cluster.wait_healthy();
    until("its removal", || cluster.cairn(&["admin", "manager", "remove", "3"]).status.success());
    cluster.kill("manager3");
    fs::remove_dir_all(&dir).expect("gone");
    copy_dir(&old, &dir);
    cluster.launch("manager3");
    until_told(
        "it to be told",
        || {
            ["of a former member", "cairn admin manager add"]
                .iter()
                .any(|part| cluster.read_log("manager3").contains(part))
        },
        || cluster.read_log("manager3"),
    );
    // With one of the two down there is no majority, whatever the old one would vote for.
    cluster.kill("manager2");
    let refused = cluster.cairn(&["--timeout", "8", "admin", "volume", "create", "other", "--layout", "r1"]);
    assert!(!refused.status.success(), "it voted: {}", text(&refused.stdout));
    cluster.restart("manager2");
    let members = || cluster.ok(&["admin", "manager", "ls", "--json"]).lines().count();
    assert_eq!(members(), 2);
    cluster.ok(&["admin", "volume", "create", "another", "--layout", "r1"]);
}
