//! What a run promises, tried with the standard library's own threads, locks, clocks and sockets. A run takes its whole
//! process, so each test starts this program once more for the run itself.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::{Duration, Instant};

use cairn_dst::links::{Effect, Rule};
use cairn_dst::{Config, host, links};

#[global_allocator]
static MEMORY: cairn_dst::Memory = cairn_dst::Memory;

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

/// A connection from host 1 to a listener on host 2: both ends, and the listener with its address.
fn connected() -> (TcpStream, TcpStream, (TcpListener, SocketAddr)) {
    let (listener, address) = {
        let _there = host::enter(2);
        listener()
    };
    let near = connect(address).expect("somebody listens");
    let (far, _) = listener.accept().expect("a connection");
    (near, far, (listener, address))
}

fn connect(to: SocketAddr) -> std::io::Result<TcpStream> {
    let _here = host::enter(1);
    TcpStream::connect(to)
}

fn rule(effect: Effect) -> u64 {
    links::add(Rule { from: Some(1), to: Some(2), effect })
}

/// A one-way cut would let bytes through, or lose what TCP would send again.
#[test]
fn a_held_link_delivers_late_and_one_way_only() {
    child(|| {
        let (mut near, mut far, (_listener, address)) = connected();
        let held = rule(Effect::HoldThere);
        near.write_all(b"late").expect("room");
        far.write_all(b"soon").expect("room");
        let mut got = [0; 4];
        near.read_exact(&mut got).expect("the other way is open");
        assert_eq!(&got, b"soon");
        let begun = Instant::now();
        let connecting = std::thread::spawn(move || connect(address).map(|_| begun.elapsed()));
        let waker = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(5));
            links::remove(held);
        });
        far.read_exact(&mut got).expect("it comes in the end");
        assert_eq!(&got, b"late");
        assert!(begun.elapsed() >= Duration::from_secs(5), "it came through a held link");
        waker.join().expect("no panic");
        let took = connecting.join().expect("no panic").expect("the link is open again");
        assert!(took >= Duration::from_secs(5), "a connection came about over a held link: {took:?}");
    });
    passes("a_held_link_delivers_late_and_one_way_only");
}

/// Bytes of a host that lost its power, or is cut off, would arrive all the same, or what it had said before would be
/// lost.
#[test]
fn a_host_that_is_down_is_heard_no_more() {
    child(|| {
        let (mut near, mut far, (_listener, address)) = connected();
        far.write_all(b"before").expect("room");
        links::set_down(2, true);
        // The end may be a reset, for either of them.
        far.write_all(b"after").ok();
        let mut all = [0; 6];
        near.read_exact(&mut all).expect("what it had sent before");
        assert_eq!(&all, b"before");
        let ended = |stream: &mut TcpStream| !matches!(stream.read(&mut [0; 8]), Ok(1..));
        assert!(ended(&mut near) && ended(&mut far), "nothing more comes");
        assert!(connect(address).is_err(), "nobody is there");
        links::set_down(2, false);
        connect(address).expect("it is there again");
    });
    passes("a_host_that_is_down_is_heard_no_more");
}

/// A rule would have no effect, or one on connections that it is not for.
#[test]
fn rules_refuse_break_delay_and_flip() {
    child(|| {
        let (mut near, mut far, (listener, address)) = connected();
        let mut byte = [0];
        let flips = rule(Effect::Flip(1.0));
        near.write_all(&[0]).expect("room");
        far.read_exact(&mut byte).expect("it comes");
        assert_eq!(byte[0].count_ones(), 1, "one bit is another one");
        links::remove(flips);
        let slow = rule(Effect::Delay(10_000));
        let begun = Instant::now();
        far.write_all(&[7]).expect("room");
        near.read_exact(&mut byte).expect("it comes");
        assert!(byte == [7] && begun.elapsed() > Duration::from_millis(50), "{:?}", begun.elapsed());
        links::remove(slow);
        let other = links::add(Rule { from: Some(3), to: None, effect: Effect::Refuse });
        near.write_all(&[9]).expect("room");
        far.read_exact(&mut byte).expect("this rule is for others");
        links::remove(other);
        let breaks = rule(Effect::Break(1.0));
        near.write_all(&[1; 100]).expect("it is sent");
        let mut got = Vec::new();
        far.read_to_end(&mut got).ok();
        assert!(got.len() < 100, "a part at most comes");
        links::remove(breaks);
        let mut near = connect(address).expect("nothing is in force");
        let (mut far, _) = listener.accept().expect("a connection");
        rule(Effect::Refuse);
        assert!(!matches!(far.read(&mut byte), Ok(1..)) && !matches!(near.read(&mut byte), Ok(1..)), "it is ended");
        // It may come about and end at once.
        let useless = |mut stream: TcpStream| !matches!(stream.read(&mut [0]), Ok(1..));
        assert!(connect(address).map_or(true, useless));
        links::spare(1);
        connect(address).expect("no rule is for it");
        let counts = links::counts();
        assert!(counts.flipped == 1 && counts.delayed == 1 && counts.broken == 1 && counts.refused == 2, "{counts}");
    });
    passes("rules_refuse_break_delay_and_flip");
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
