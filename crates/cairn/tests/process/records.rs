//! Records that many writers append to one file while servers die: each is there whole, and once.
use crate::members::leader;
use crate::support::{Cluster, Shape, text};
use crate::wait::until;
use cairn_client::changes::NewFile;
use cairn_client::record::{RecordLevel, RecordOptions};
use cairn_client::{Client, ConnectOptions, Volume};
use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Writers of one client.
const WRITERS: u64 = 4;
const CLIENTS: u64 = 3;
/// Records that each writer has under way.
const DEPTH: usize = 16;

pub async fn volume(cluster: &Cluster) -> Volume {
    let addresses = cluster.address.split(',').map(str::to_owned).collect();
    let client = Client::connect(ConnectOptions::new(addresses)).await.expect("connected");
    client.volume("default").await.expect("a volume")
}

/// All bytes follow from the writer and its number: of many lengths, across borders of blocks.
pub fn record_of(writer: u64, number: u64) -> Vec<u8> {
    let length = if number % 40 == 7 { 70_000 } else { (number * 37 + writer * 11) % 3000 };
    let mut bytes = format!("{writer} {number} ").into_bytes();
    bytes.extend((0..length).map(|i| b'a' + ((i + writer + number) % 26) as u8));
    bytes
}

/// What one writer did: how many of its records were acknowledged, all in order.
async fn write(
    volume: Volume,
    path: String,
    writer: u64,
    (level, pause): (RecordLevel, Duration),
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
) -> u64 {
    let options = RecordOptions { level, ..RecordOptions::default() };
    let appender = volume.record_appender(path.as_bytes(), options).await.expect("an appender");
    let (mut number, mut under_way) = (0, std::collections::VecDeque::new());
    while !stop.load(Relaxed) {
        under_way.push_back(appender.append(&record_of(writer, number)).await.expect("taken"));
        number += 1;
        if under_way.len() == DEPTH
            && let Some(ticket) = under_way.pop_front()
        {
            ticket.done().await.expect("appended");
            done.fetch_add(1, Relaxed);
        }
        tokio::time::sleep(pause).await;
    }
    for ticket in under_way {
        ticket.done().await.expect("appended");
    }
    appender.close().await.expect("closed");
    number
}

/// Kills servers one after the other while writers go on, and waits each time until they did. Returns how many.
fn make_trouble(cluster: &mut Cluster, done: &AtomicU64) -> usize {
    let goes_on = |done: &AtomicU64| {
        let (begun, before) = (Instant::now(), done.load(Relaxed));
        while done.load(Relaxed) < before + 200 {
            assert!(begun.elapsed() < Duration::from_secs(60), "nothing was appended any more");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    goes_on(done);
    // One of them is the primary.
    for data in ["data1", "data2", "data3", "data4"] {
        cluster.kill(data);
        goes_on(done);
        cluster.restart(data);
        cluster.wait_healthy();
    }
    for _ in 0..2 {
        let meta = leader(cluster);
        cluster.kill(&meta);
        goes_on(done);
        cluster.restart(&meta);
    }
    6
}

pub async fn read_all(volume: &Volume, path: &str) -> BTreeMap<(u64, u64), u32> {
    let mut found = BTreeMap::new();
    let mut reader = volume.record_reader(path.as_bytes(), 0, u64::MAX).await.expect("a reader");
    while let Some(record) = reader.next().await.expect("read") {
        let head: Vec<u64> =
            text(&record.bytes).split(' ').take(2).map(|word| word.parse().expect("a number")).collect();
        // Commands keep the ends of lines.
        let bytes = record.bytes.strip_suffix(b"\n").unwrap_or(&record.bytes);
        assert!(bytes == record_of(head[0], head[1]), "a record at {} is not as it was given", record.offset);
        *found.entry((head[0], head[1])).or_default() += 1;
    }
    assert_eq!((reader.skipped().damaged, reader.left_over()), (0, 0), "nothing but records and padding");
    found
}

/// So many clients with so many writers each; servers die in turns until that time is over, once at least.
fn each_record_is_there_once(level: RecordLevel, clients: u64, writers_of_each: u64, time: Duration) {
    let mut cluster = Cluster::start(Shape { managers: 1, metas: 3, datas: 4, racks: 4 });
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let path = "/records".to_owned();
    let new = NewFile { mode: 0o100_644, ..NewFile::default() };
    let first = runtime.block_on(volume(&cluster));
    runtime.block_on(first.create(path.as_bytes(), new)).expect("a file");
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    // Hundreds write some hundred records a second, all of them together: a file of a GiB in ten minutes.
    let all = clients * writers_of_each;
    let pause = Duration::from_micros(if all > CLIENTS * WRITERS { 1500 * all } else { 2000 });
    let mut writers = Vec::new();
    for client in 0..clients {
        let volume = runtime.block_on(volume(&cluster));
        for writer in 0..writers_of_each {
            let (volume, path, stop, done) = (volume.clone(), path.clone(), stop.clone(), done.clone());
            let writer = client * writers_of_each + writer;
            writers.push((writer, runtime.spawn(write(volume, path, writer, (level, pause), stop, done))));
        }
    }
    let (begun, mut kills) = (Instant::now(), 0);
    while kills == 0 || begun.elapsed() < time {
        kills += make_trouble(&mut cluster, &done);
    }
    stop.store(true, Relaxed);
    let mut wanted = BTreeMap::new();
    for (writer, task) in writers {
        let count = runtime.block_on(task).expect("a writer");
        wanted.extend((0..count).map(|number| ((writer, number), 1)));
    }
    let found = runtime.block_on(read_all(&first, &path));
    let wrong: Vec<_> = wanted.iter().filter(|(record, _)| found.get(record) != Some(&1)).take(10).collect();
    assert!(wrong.is_empty(), "of {} records {} are there; not once: {wrong:?}", wanted.len(), found.len());
    assert_eq!(found.len(), wanted.len());
    runtime.block_on(first.close());
    assert_eq!(cluster.kills, kills);
    let count = found.len();
    eprintln!("{count} records of {} writers, {kills} servers killed in {:?}", wanted_by(&wanted), begun.elapsed());
    cluster.ok(&["admin", "fsck"]);
}

fn wanted_by(wanted: &BTreeMap<(u64, u64), u32>) -> usize {
    wanted.keys().map(|(writer, _)| writer).collect::<std::collections::BTreeSet<_>>().len()
}

/// Acknowledged records would be lost, or be there twice, when the primary of their chunk or the leader of their file's
/// partition dies.
#[test]
fn durable_records_are_there_once_whoever_dies() {
    each_record_is_there_once(RecordLevel::Durable, CLIENTS, WRITERS, Duration::ZERO);
}

/// The same of records that a living writer keeps until they are durable.
#[test]
fn records_in_memory_are_there_once_while_their_writer_lives() {
    each_record_is_there_once(RecordLevel::Memory, CLIENTS, WRITERS, Duration::ZERO);
}

/// What happens rarely, and with many writers in several lanes, would not be met.
#[test]
fn soak() {
    let Ok(minutes) = std::env::var("CAIRN_RECORD_MINUTES") else {
        return eprintln!("not run here: hundreds append for minutes by make soak");
    };
    let minutes: f64 = minutes.parse().expect("CAIRN_RECORD_MINUTES is a number");
    let writers = std::env::var("CAIRN_RECORD_WRITERS").map_or(200, |count| count.parse().expect("a number"));
    let time = Duration::from_secs_f64(minutes * 60.0);
    each_record_is_there_once(RecordLevel::Durable, 4, u64::div_ceil(writers, 4), time);
}

/// What all writers left durably when they died at once would be visible only when another one comes, and their chunk
/// stay open.
#[test]
fn what_dead_writers_left_becomes_visible_by_itself() {
    let mut cluster = Cluster::start(Shape { managers: 1, metas: 3, datas: 4, racks: 4 });
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let reader = runtime.block_on(volume(&cluster));
    let new = NewFile { mode: 0o100_644, ..NewFile::default() };
    for path in [&b"/dead"[..], b"/primary"] {
        runtime.block_on(reader.create(path, new)).expect("a file");
    }
    let ended = |cluster: &Cluster| -> f64 {
        let of = |name: &str| cluster.metric(name, "cairn_meta_appends_ended").unwrap_or(0.0);
        ["meta1", "meta2", "meta3"].map(of).iter().sum()
    };
    // Processes, killed in the middle, and a client of this process that is gone without a word with what was
    // acknowledged as durable.
    let append = |path: &str| {
        let args = ["fs", "append", "--record", "--level", "durable", path];
        cluster.command(&args).stdin(Stdio::piped()).spawn().expect("append")
    };
    let mut children: Vec<_> = (0..3).map(|_| append("/dead")).collect();
    let acknowledged = async |path: &[u8], writer: u64| {
        let volume = volume(&cluster).await;
        let options = RecordOptions { level: RecordLevel::Durable, ..RecordOptions::default() };
        let appender = volume.record_appender(path, options).await.expect("an appender");
        for number in 0..50 {
            let ticket = appender.append(&record_of(writer, number)).await.expect("taken");
            ticket.done().await.expect("durable");
        }
    };
    for number in 0..200u64 {
        for (writer, child) in children.iter_mut().enumerate() {
            let line = [&record_of(writer as u64, number)[..], b"\n"].concat();
            child.stdin.as_mut().expect("a pipe").write_all(&line).expect("taken");
        }
    }
    let die = |path: &[u8]| {
        let doomed = tokio::runtime::Runtime::new().expect("a runtime");
        doomed.block_on(acknowledged(path, 9));
        doomed.shutdown_background();
    };
    let wait = |cluster: &Cluster, count: f64| {
        let begun = Instant::now();
        while ended(cluster) < count {
            assert!(begun.elapsed() < Duration::from_secs(60), "{} appends were closed", ended(cluster));
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    let check = |path: &str| {
        let found = runtime.block_on(read_all(&reader, path));
        let lost: Vec<u64> = (0..50).filter(|number| found.get(&(9, *number)) != Some(&1)).collect();
        assert!(lost.is_empty(), "{path}: {lost:?} were acknowledged as durable");
        assert!(found.values().all(|times| *times == 1), "{path}: {found:?}");
        for writer in 0..3 {
            let numbers: Vec<u64> = found.keys().filter(|(of, _)| *of == writer).map(|(_, number)| *number).collect();
            assert!(numbers.iter().copied().eq(0..numbers.len() as u64), "{path}: not in order: {numbers:?}");
        }
    };
    die(b"/dead");
    for mut child in children {
        child.kill().expect("it runs");
        child.wait().expect("ended");
    }
    wait(&cluster, 1.0);
    check("/dead");
    // Its primary dies too, and comes back as one that does not know where the chunk ends.
    die(b"/primary");
    for data in ["data1", "data2", "data3", "data4"] {
        cluster.kill(data);
        cluster.restart(data);
    }
    cluster.wait_healthy();
    wait(&cluster, 2.0);
    check("/primary");
    cluster.ok(&["admin", "fsck"]);
}

/// A file would end with its first chunk, records be lost on the way to the next one, or each writer ask the metadata
/// for it.
#[test]
fn records_go_on_in_the_next_chunk() {
    let cluster = Cluster::start(Shape { managers: 1, metas: 1, datas: 3, racks: 3 });
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let new = NewFile { mode: 0o100_644, ..NewFile::default() };
    let first = runtime.block_on(volume(&cluster));
    runtime.block_on(first.create(b"/many", new)).expect("a file");
    // 150 MiB of two clients, that come in several lengths; one is longer than an append.
    let length = |number: u64| if number == 3 { 5 << 20 } else { 200_000 + (number as usize * 7919) % 700_000 };
    let write = async |volume: Volume, writer: u64| {
        let level = [RecordLevel::Memory, RecordLevel::Durable, RecordLevel::Visible][writer as usize % 3];
        let options = RecordOptions { level, ..RecordOptions::default() };
        let appender = volume.record_appender(b"/many", options).await.expect("an appender");
        for number in 0..45u64 {
            let mut bytes = vec![(writer + number) as u8; length(number)];
            bytes[..8].copy_from_slice(&(writer << 32 | number).to_le_bytes());
            appender.append(&bytes).await.expect("taken");
        }
        appender.close().await.expect("closed");
    };
    let second = runtime.block_on(volume(&cluster));
    runtime.block_on(async {
        tokio::join!(
            write(first.clone(), 0),
            write(first.clone(), 1),
            write(first.clone(), 2),
            write(second.clone(), 3),
            write(second.clone(), 4),
            write(second.clone(), 5)
        )
    });
    let mut found = BTreeMap::new();
    runtime.block_on(async {
        let mut reader = first.record_reader(b"/many", 0, u64::MAX).await.expect("a reader");
        while let Some(record) = reader.next().await.expect("read") {
            let head = u64::from_le_bytes(record.bytes[..8].try_into().expect("eight"));
            let (writer, number) = (head >> 32, head & 0xffff_ffff);
            assert_eq!(record.bytes.len(), length(number));
            assert!(record.bytes[8..].iter().all(|byte| *byte == (writer + number) as u8), "{writer} {number}");
            *found.entry((writer, number)).or_insert(0) += 1;
        }
        assert_eq!((reader.skipped().damaged, reader.left_over()), (0, 0));
        first.close().await;
        second.close().await;
    });
    assert_eq!(found.len(), 6 * 45);
    assert!(found.values().all(|times| *times == 1), "{found:?}");
    cluster.ok(&["admin", "fsck"]);
}

/// Whoever follows a file would see what is new late, or not at all; or a long record would not come through.
#[test]
fn who_follows_records_is_woken() {
    let cluster = Cluster::start(Shape { managers: 1, metas: 1, datas: 3, racks: 3 });
    assert!(append(&cluster, &["/r"], b"first\n").status.success());
    let mut tail = cluster
        .command(&["fs", "tail", "-f", "--record", "--no-repeats", "/r"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("tail");
    let mut lines = std::io::BufReader::new(tail.stdout.take().expect("a pipe"));
    let mut next = || {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut lines, &mut line).expect("a line");
        line
    };
    assert_eq!(next(), "first\n");
    for i in 0..5 {
        assert!(append(&cluster, &["--level", "visible", "/r"], format!("line {i}\n").as_bytes()).status.success());
        assert_eq!(next(), format!("line {i}\n"));
    }
    let mut long = vec![b'x'; (16 << 20) - 1];
    long.push(b'\n');
    assert!(append(&cluster, &["--size", "16m", "/r"], &long).status.success());
    assert_eq!(next().len(), 16 << 20);
    tail.kill().expect("it runs");
    tail.wait().expect("ended");
}

fn append(cluster: &Cluster, args: &[&str], input: &[u8]) -> Output {
    let args = [&["fs", "append", "--record"], args].concat();
    let mut child = cluster.command(&args).stdin(Stdio::piped()).spawn().expect("append");
    child.stdin.take().expect("a pipe").write_all(input).expect("taken");
    child.wait_with_output().expect("ended")
}

/// Commands would lose records that are visible, tear them, or show what was cut off as one.
#[test]
fn records_go_in_and_out_of_commands() {
    let cluster = Cluster::start(Shape { managers: 1, metas: 1, datas: 3, racks: 3 });
    for level in ["memory", "durable", "visible"] {
        let output = append(&cluster, &["--level", level, "/r"], format!("one {level}\ntwo\n\nlast").as_bytes());
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(text(&output.stdout).starts_with("appended 4 records, "), "{}", text(&output.stdout));
    }
    // The last line gets an end.
    let wanted = "one memory\ntwo\n\nlast\none durable\ntwo\n\nlast\none visible\ntwo\n\nlast\n";
    assert_eq!(cluster.ok(&["fs", "tail", "--record", "/r"]), wanted);
    let output = append(&cluster, &["--size", "3", "/sized"], b"abcdef");
    assert!(output.status.success() && text(&output.stdout).starts_with("appended 2 records, "));
    let output = append(&cluster, &["--size", "3", "/sized"], b"ghij");
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    assert_eq!(cluster.ok(&["fs", "tail", "--record", "/sized"]), "abcdefghi");
    // Others may append and cut as they like: whole records stay, the rest is said.
    let plain = cluster.command(&["fs", "append", "/r"]).stdin(Stdio::piped()).spawn();
    let mut plain = plain.expect("append");
    plain.stdin.take().expect("a pipe").write_all(b"no record\n").expect("taken");
    assert!(plain.wait().expect("ended").success());
    assert!(append(&cluster, &["/r"], b"behind\n").status.success());
    let output = cluster.cairn(&["fs", "tail", "--record", "/r"]);
    assert_eq!(text(&output.stdout), format!("{wanted}behind\n"));
    assert!(text(&output.stderr).contains("10 bytes belong to no whole record"), "{}", text(&output.stderr));
    cluster.ok(&["fs", "mv", "/r", "/s"]);
    cluster.ok(&["fs", "truncate", "-s", "40", "/s"]);
    assert!(append(&cluster, &["/s"], b"again\n").status.success());
    assert_eq!(text(&cluster.cairn(&["fs", "tail", "--record", "/s"]).stdout), "again\n");
    cluster.ok(&["fs", "rm", "--skip-trash", "/s"]);
    cluster.ok(&["admin", "fsck"]);
}

/// Whoever interrupts a writer would not know where to go on, or be told of records in a file that is gone.
#[test]
fn an_append_of_records_that_ends_says_which_are_there() {
    let cluster = Cluster::start(Shape { managers: 1, metas: 1, datas: 3, racks: 3 });
    let begin = |path: &str| {
        let mut child =
            cluster.command(&["fs", "append", "--record", path]).stdin(Stdio::piped()).spawn().expect("append");
        child.stdin.as_mut().expect("a pipe").write_all(b"one\ntwo\nthree\n").expect("taken");
        until("what came is visible before the input ends", || {
            text(&cluster.cairn(&["fs", "tail", "--record", path]).stdout) == "one\ntwo\nthree\n"
        });
        child
    };
    let mut number = 0;
    // It looks now and then what is acknowledged.
    until("all of them are said to be there", || {
        number += 1;
        let mut writer = begin(&format!("/interrupted{number}"));
        // Its input goes on, or it may end before it sees the signal.
        let pipe = writer.stdin.take();
        let pid = rustix::process::Pid::from_raw(writer.id() as i32).expect("a process");
        rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("a signal");
        let output = writer.wait_with_output().expect("ended");
        drop(pipe);
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains("records of the input"), "{said}");
        said.contains("interrupted; the first 3 records of the input, 14 B, are durable; readers of ")
    });
    let mut writer = begin("/removed");
    cluster.ok(&["fs", "rm", "--skip-trash", "/removed"]);
    let mut pipe = writer.stdin.take().expect("a pipe");
    until("the writer has ended", || {
        // Whose reader may be gone.
        let _taken = pipe.write_all(b"more\n");
        writer.try_wait().expect("a child").is_some()
    });
    let output = writer.wait_with_output().expect("ended");
    let said = text(&output.stderr);
    let told = said.contains("/removed: the file was removed") && !said.contains("inode");
    assert!(!output.status.success() && told && !said.contains("records of the input"), "{said}");
}
