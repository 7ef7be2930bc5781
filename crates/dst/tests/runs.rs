//! What a run promises, tried with the standard library's own threads, locks, clocks and sockets. A run takes its whole
//! process, so each test starts this program once more for the run itself.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::{Duration, Instant};

use cairn_dst::{Config, host, links};

const CHILD: &str = "CAIRN_DST_CHILD";

/// Runs the named test once more, in a process of its own, as the seed's run.
fn in_child(test: &str, seed: u64) -> Output {
    let program = std::env::current_exe().expect("tests have a path");
    let mut command = Command::new(program);
    command.args(["--exact", test, "--nocapture", "--test-threads", "1"]).env(CHILD, seed.to_string());
    command.output().expect("this program can be started")
}

/// Where the seed's run is this process: runs it, prints its trace, and ends.
fn child(body: impl FnOnce() + Send) {
    let Some(seed) = std::env::var(CHILD).ok().and_then(|seed| seed.parse().ok()) else { return };
    cairn_dst::fix_layout();
    let ((), report) = cairn_dst::run(Config::seeded(seed), body);
    println!("trace {:x} {}", report.hash, report.records);
    std::process::exit(0);
}

fn trace(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let line = text.lines().find_map(|line| line.split("trace ").nth(1));
    line.expect("the run says its trace").to_owned()
}

fn passes(test: &str) {
    (0..5).for_each(|seed| drop(trace(&in_child(test, seed))));
}

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    (listener, address)
}

/// Threads that fight for a lock, wait for each other, sleep and talk over a socket, in an order that they note.
fn busy() -> Vec<usize> {
    let order = Arc::new((Mutex::new(Vec::new()), Condvar::new()));
    let (listener, address) = listener();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut all = Vec::new();
        stream.read_to_end(&mut all).expect("all of it");
        stream.write_all(&all).expect("room");
    });
    let threads: Vec<_> = (0..6)
        .map(|number| {
            let order = order.clone();
            std::thread::spawn(move || {
                for _ in 0..4 {
                    std::thread::sleep(Duration::from_micros(number as u64 % 3));
                    order.0.lock().expect("no panic").push(number);
                    order.1.notify_all();
                }
            })
        })
        .collect();
    let mut stream = TcpStream::connect(address).expect("somebody listens");
    let sent: Vec<u8> = (0..300_000u32).map(|at| (at % 251) as u8).collect();
    stream.write_all(&sent).expect("room");
    stream.shutdown(std::net::Shutdown::Write).expect("it is connected");
    let mut back = Vec::new();
    stream.read_to_end(&mut back).expect("all of it");
    assert!(back == sent, "bytes come back as they were sent");
    let done =
        order.1.wait_while(order.0.lock().expect("no panic"), |order| order.len() < 24).expect("no panic").clone();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    server.join().expect("no panic");
    done
}

/// A failure could not be replayed, or all seeds would try one interleaving.
#[test]
fn a_seed_decides_everything() {
    child(|| println!("order {:?}", busy()));
    let test = "a_seed_decides_everything";
    let runs: Vec<String> = (0..6).map(|seed| trace(&in_child(test, seed))).collect();
    for (seed, first) in runs.iter().enumerate() {
        assert_eq!(*first, trace(&in_child(test, seed as u64)), "seed {seed}");
    }
    let different: std::collections::BTreeSet<&String> = runs.iter().collect();
    assert_eq!(different.len(), runs.len(), "no two seeds are the same run");
}

/// Waits would take real time, or clocks would not show what was waited.
#[test]
fn waiting_takes_no_time() {
    child(|| {
        let (begun, hour) = (Instant::now(), Duration::from_secs(3600));
        std::thread::sleep(hour);
        let pair = (Mutex::new(()), Condvar::new());
        let held = pair.0.lock().expect("no panic");
        let (held, late) = pair.1.wait_timeout(held, hour).expect("no panic");
        drop(held);
        assert!(late.timed_out());
        let (_sender, receiver) = mpsc::channel::<()>();
        assert!(receiver.recv_timeout(hour).is_err());
        let passed = begun.elapsed();
        assert!((3 * hour..3 * hour + Duration::from_secs(1)).contains(&passed), "{passed:?}");
    });
    passes("waiting_takes_no_time");
}

/// A one-way cut would let bytes through, or lose what TCP would send again.
#[test]
fn a_held_link_delivers_late_and_one_way_only() {
    child(|| {
        let (listener, address) = {
            let _there = host::enter(2);
            listener()
        };
        let mut near = {
            let _here = host::enter(1);
            TcpStream::connect(address).expect("somebody listens")
        };
        let (mut far, _) = listener.accept().expect("a connection");
        links::hold(1, 2);
        near.write_all(b"late").expect("room");
        far.write_all(b"soon").expect("room");
        let mut got = [0; 4];
        near.read_exact(&mut got).expect("the other way is open");
        assert_eq!(&got, b"soon");
        let begun = Instant::now();
        let waker = std::thread::spawn(|| {
            std::thread::sleep(Duration::from_secs(5));
            links::let_go(1, 2);
        });
        far.read_exact(&mut got).expect("it comes in the end");
        assert_eq!(&got, b"late");
        assert!(begun.elapsed() >= Duration::from_secs(5), "it came through a held link");
        waker.join().expect("no panic");
    });
    passes("a_held_link_delivers_late_and_one_way_only");
}

/// A host that stands still would go on working, or its clock would stand as well.
#[test]
fn a_paused_host_does_nothing_and_notices_later() {
    child(|| {
        let count = Arc::new(Mutex::new(0));
        let counter = {
            let _there = host::enter(1);
            let count = count.clone();
            std::thread::spawn(move || {
                let begun = Instant::now();
                for _ in 0..100 {
                    std::thread::sleep(Duration::from_millis(10));
                    *count.lock().expect("no panic") += 1;
                }
                begun.elapsed()
            })
        };
        std::thread::sleep(Duration::from_millis(300));
        host::pause(1, true);
        let before = *count.lock().expect("no panic");
        std::thread::sleep(Duration::from_secs(60));
        assert_eq!(*count.lock().expect("no panic"), before);
        assert!((1..100).contains(&before), "{before}");
        host::pause(1, false);
        let passed = counter.join().expect("no panic");
        assert!(passed >= Duration::from_secs(60), "{passed:?}");
    });
    passes("a_paused_host_does_nothing_and_notices_later");
}

/// Leases of hosts with other clocks would all end at the same moment.
#[test]
fn clocks_drift_apart() {
    child(|| {
        host::drift(0, 0);
        let fast = {
            let _there = host::enter(1);
            host::drift(1, 100_000);
            std::thread::spawn(|| {
                let begun = Instant::now();
                std::thread::sleep(Duration::from_secs(11));
                begun.elapsed()
            })
        };
        let begun = Instant::now();
        let there = fast.join().expect("no panic");
        let here = begun.elapsed();
        assert!(there >= Duration::from_secs(11), "{there:?}");
        assert!((Duration::from_secs(9)..Duration::from_millis(10_300)).contains(&here), "{here:?}");
    });
    passes("clocks_drift_apart");
}

/// A run that can never end would hang for ever instead of saying who waits for what.
#[test]
fn a_deadlock_is_told() {
    child(|| {
        let (_sender, receiver) = mpsc::channel::<()>();
        std::thread::Builder::new()
            .name("keeps-lock".into())
            .spawn(move || receiver.recv())
            .expect("a thread")
            .join()
            .expect("no panic")
            .ok();
    });
    let output = in_child("a_deadlock_is_told", 1);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(70), "{said}");
    assert!(said.contains("no thread can run any more") && said.contains("keeps-lock"), "{said}");
}

/// Outside of a run the program would not get the system's own threads, clocks and sockets.
#[test]
fn without_a_run_nothing_is_different() {
    let (listener, address) = listener();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        stream.write_all(b"real").expect("room");
    });
    let mut got = String::new();
    TcpStream::connect(address).expect("somebody listens").read_to_string(&mut got).expect("text");
    server.join().expect("no panic");
    let begun = Instant::now();
    std::thread::sleep(Duration::from_millis(2));
    assert!(got == "real" && begun.elapsed() >= Duration::from_millis(2) && !cairn_dst::managed());
}
