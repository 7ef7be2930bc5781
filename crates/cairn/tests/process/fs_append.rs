//! `cairn fs append`: several writers of one file, and what is said when something is not appended.
use crate::support::{Cluster, Shape, text};
use crate::wait::until;
use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Output, Stdio};

fn cluster() -> Cluster {
    Cluster::start(Shape { managers: 1, metas: 1, datas: 3, racks: 3 })
}

fn append(cluster: &Cluster, args: &[&str], input: &[u8]) -> Output {
    let args = [&["fs", "append"], args].concat();
    let mut child = cluster.command(&args).stdin(Stdio::piped()).spawn().expect("append");
    child.stdin.take().expect("a pipe").write_all(input).expect("taken");
    child.wait_with_output().expect("ended")
}

/// Lines of several writers would be torn, lost or doubled.
#[test]
fn lines_of_several_writers_are_whole_and_followed() {
    const WRITERS: usize = 4;
    const LINES: usize = 3_000;
    let cluster = cluster();
    cluster.ok(&["fs", "mkdir", "--layout", "r2", "/logs"]);
    cluster.ok(&["fs", "touch", "/logs/all"]);
    let mut follower = cluster.command(&["fs", "tail", "-f", "-c", "0", "/logs/all"]).spawn().expect("tail");
    let mut followed = follower.stdout.take().expect("a pipe");
    let reader = std::thread::spawn(move || {
        let (mut found, mut lines, mut part) = (Vec::new(), 0, [0; 64 << 10]);
        while lines < WRITERS * LINES {
            let count = std::io::Read::read(&mut followed, &mut part).expect("what was appended");
            assert_ne!(count, 0, "it goes on until it is told to end");
            lines += part[..count].iter().filter(|byte| **byte == b'\n').count();
            found.extend_from_slice(&part[..count]);
        }
        found
    });
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let cluster = &cluster;
            scope.spawn(move || {
                let mut child = cluster
                    .command(&["fs", "append", "--lines", "/logs/all"])
                    .stdin(Stdio::piped())
                    .spawn()
                    .expect("append");
                let mut pipe = child.stdin.take().expect("a pipe");
                for line in 0..LINES {
                    // Lengths that meet no border of blocks; parts that end within a line.
                    let whole = format!("{writer} {line} {}\n", "x".repeat(line % 211));
                    let (head, tail) = whole.split_at(whole.len() / 2);
                    pipe.write_all(head.as_bytes()).and_then(|()| pipe.write_all(tail.as_bytes())).expect("taken");
                }
                drop(pipe);
                let output = child.wait_with_output().expect("ended");
                assert!(output.status.success(), "{}", text(&output.stderr));
                assert!(
                    text(&output.stdout).starts_with(&format!("appended {LINES} lines, ")),
                    "{}",
                    text(&output.stdout)
                );
            });
        }
    });
    let whole = cluster.ok(&["fs", "cat", "/logs/all"]);
    let mut next = BTreeMap::new();
    for line in whole.lines() {
        let mut parts = line.split(' ');
        let mut number = || parts.next().and_then(|part| part.parse::<usize>().ok()).expect("a whole line");
        let (writer, line) = (number(), number());
        assert_eq!(parts.next().map(str::len), Some(line % 211), "nothing is torn");
        let due = next.entry(writer).or_insert(0);
        assert_eq!((writer, line), (writer, *due), "each line of a writer once, in their order");
        *due += 1;
    }
    assert_eq!(next.into_values().collect::<Vec<_>>(), [LINES; WRITERS]);
    let found = reader.join().expect("a reader");
    follower.kill().and_then(|()| follower.wait()).expect("ended");
    assert!(text(&found) == whole, "who follows sees the same");
}

/// Slow input would be visible only when its writer ends; a wrong size, a directory, a missing file would be taken.
#[test]
fn what_comes_slowly_is_seen_and_what_cannot_be_appended_is_said() {
    let cluster = cluster();
    let mut slow =
        cluster.command(&["fs", "append", "-l", "r2", "/new"]).stdin(Stdio::piped()).spawn().expect("append");
    let mut pipe = slow.stdin.take().expect("a pipe");
    pipe.write_all(b"first").expect("taken");
    let printed = || text(&cluster.cairn(&["fs", "cat", "/new"]).stdout).clone();
    until("what was written is there before the input ends", || printed() == "first");
    pipe.write_all(b" second\n").expect("taken");
    drop(pipe);
    assert!(slow.wait_with_output().expect("ended").status.success());
    assert_eq!(printed(), "first second\n");
    assert_eq!(cluster.ok(&["fs", "layout", "get", "/new"]).trim(), "r2");

    for line in ["three", "four\n"] {
        assert!(append(&cluster, &["--lines", "/cut"], line.as_bytes()).status.success());
    }
    assert_eq!(cluster.ok(&["fs", "cat", "/cut"]), "three\nfour\n", "a line that was cut off ends all the same");

    let odd = append(&cluster, &["--size", "4", "/records"], b"aaaabbbbc");
    assert!(!odd.status.success());
    let said = text(&odd.stderr);
    assert!(said.contains("ends with 1 bytes") && said.contains("the 2 records"), "{said}");
    assert_eq!(cluster.ok(&["fs", "cat", "/records"]), "aaaabbbb");
    let even = append(&cluster, &["--size", "4", "--json", "/records"], b"cccc");
    assert!(text(&even.stdout).contains("\"records\":1"), "{}", text(&even.stdout));

    cluster.ok(&["fs", "mkdir", "/dir"]);
    for (args, told) in
        [(&["/dir"][..], "a directory"), (&["-c", "/none"], "/none"), (&["--size", "0", "/x"], "records")]
    {
        let refused = append(&cluster, args, b"");
        assert!(!refused.status.success() && text(&refused.stderr).contains(told), "{}", text(&refused.stderr));
    }
}
