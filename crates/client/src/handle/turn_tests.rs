//! Several clients append to one file at the same time.
use super::FileHandle;
use crate::fake::FakeCluster;
use crate::file_writer::WriteOptions;
use crate::{Client, Volume};
use cairn_types::{Layout, Scheme};
use std::time::Duration;

const LINE: usize = 201;

/// A cluster with an empty file `/f`, and so many clients that have it open.
async fn start(clients: usize) -> (FakeCluster, Vec<(Client, Volume, FileHandle)>) {
    let cluster = FakeCluster::start(3, &[Scheme::Replicated(3)]);
    let mut all = Vec::new();
    for number in 0..clients {
        let client = cluster.connect().await;
        let volume = client.volume("default").await.expect("the volume");
        if number == 0 {
            let layout = Layout::replicated(3);
            let options = WriteOptions { mode: 0o644, mtime_ns: 0, layout, exclusive: false, owner: None };
            volume.write(b"/f", options).await.expect("begun").finish().await.expect("made");
        }
        let handle = volume.open(b"/f").await.expect("opened");
        all.push((client, volume, handle));
    }
    (cluster, all)
}

fn line(client: usize, number: usize) -> Vec<u8> {
    let mut line = format!("{client} {number} ").into_bytes();
    line.resize(LINE - 1, b'x');
    line.push(b'\n');
    line
}

/// Each line is there whole and once, and those of one client in their order.
fn check_lines(bytes: &[u8], clients: usize, each: usize) {
    assert_eq!(bytes.len(), clients * each * LINE);
    let mut next = vec![0; clients];
    for found in bytes.chunks(LINE) {
        let client = (0..clients).find(|client| next[*client] < each && found == line(*client, next[*client]));
        next[client.unwrap_or_else(|| panic!("torn: {}", String::from_utf8_lossy(found)))] += 1;
    }
    assert_eq!(next, vec![each; clients]);
}

/// Of those who append and sync at the same time nearly all would write again and again, and some give up in the end:
/// the file grows whenever they have written.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nobody_writes_in_vain_for_long() {
    let (clients, each) = (8, 40);
    let (cluster, all) = start(clients).await;
    let mut tasks = tokio::task::JoinSet::new();
    for (client, (kept, volume, mut handle)) in all.into_iter().enumerate() {
        tasks.spawn(async move {
            for number in 0..each {
                handle.append(&line(client, number)).await.expect("appended");
                handle.sync().await.expect("synced");
            }
            handle.close().await.expect("closed");
            (kept, volume)
        });
    }
    let volumes = tasks.join_all().await;
    let mut reader = volumes[0].1.open(b"/f").await.expect("opened");
    check_lines(&reader.read_at(0, 1 << 20).await.expect("read"), clients, each);
    reader.sync().await.expect("nothing to do");
    reader.close().await.expect("closed");
    let (appends, taken) = {
        let state = cluster.fake.state.lock();
        (state.calls.get("Append").copied().unwrap_or(0), state.turns.taken)
    };
    assert!(taken > 0, "nobody took a turn");
    // All of them lost a race or two before they knew of each other; a machine that stands still for a second costs
    // each another one.
    let lines = (clients * each) as u64;
    assert!(appends < 2 * lines, "{appends} appends for {lines} lines");
    cluster.check_namespace();
}

/// What is written for its turn would be seen where it does not lie yet, with zeros before it; or be laid there
/// although somebody else came between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_for_its_turn_floats() {
    let (cluster, mut all) = start(3).await;
    let (_a, volume, mut other) = all.remove(0);
    let (_b, _, mut handle) = all.remove(0);
    let (_c, _, mut old) = all.remove(0);
    // It learns that others append.
    handle.append(b"one\n").await.expect("appended");
    handle.data.write_all_behind();
    other.append(b"two\n").await.expect("appended");
    other.sync().await.expect("synced");
    handle.sync().await.expect("synced");
    let held = volume.take_append_turn(handle.inode(), b"/f", 4).await.expect("a turn");
    assert_eq!(held.begin, 8);
    handle.append(b"four\n").await.expect("appended");
    let data = handle.data.clone();
    let waits = tokio::spawn({
        let data = data.clone();
        async move { data.flush().await }
    });
    while cluster.fake.state.lock().turns.taken < 3 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(handle.read_at(0, 100).await.expect("read"), b"two\none\nfour\n", "a place that is not its own yet");
    other.append(b"3rd\n").await.expect("appended");
    other.sync().await.expect("synced");
    waits.await.expect("no panic").expect("synced");
    old.append(b"five\n").await.expect("appended");
    old.sync().await.expect("synced");
    let bytes = other.read_at(0, 100).await.expect("read");
    assert!(bytes == b"two\none\n3rd\nfour\nfive\n" || bytes == b"two\none\nfour\n3rd\nfive\n", "{bytes:?}");
    assert_eq!(handle.read_at(0, 100).await.expect("read"), bytes);
    cluster.check_namespace();
}

/// Of servers of an older build nobody would be able to append.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn servers_that_know_of_no_turns_are_done_without() {
    let (clients, each) = (3, 10);
    let (cluster, all) = start(clients).await;
    cluster.fake.state.lock().of_older_build = true;
    let mut tasks = tokio::task::JoinSet::new();
    for (client, (kept, volume, mut handle)) in all.into_iter().enumerate() {
        tasks.spawn(async move {
            for number in 0..each {
                handle.append(&line(client, number)).await.expect("appended");
                handle.sync().await.expect("synced");
            }
            (kept, volume, handle)
        });
    }
    let all = tasks.join_all().await;
    check_lines(&all[0].2.read_at(0, 1 << 20).await.expect("read"), clients, each);
    assert_eq!(cluster.fake.state.lock().turns.taken, 0);
    cluster.check_namespace();
}

/// Who changes the beginning of a file and appends to it would never come to it while others append.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_overwritten_beside_appends_is_stored_too() {
    let (cluster, mut all) = start(3).await;
    let (_a, _, mut mixed) = all.remove(0);
    mixed.append(&line(0, 0)).await.expect("appended");
    mixed.sync().await.expect("synced");
    let mut tasks = tokio::task::JoinSet::new();
    for (client, (kept, volume, mut handle)) in (1..).zip(all) {
        tasks.spawn(async move {
            for number in 0..40 {
                handle.append(&line(client, number)).await.expect("appended");
                handle.sync().await.expect("synced");
            }
            (kept, volume, handle)
        });
    }
    for number in 1..20 {
        mixed.write_at(0, &line(0, 0)).await.expect("written");
        mixed.append(&line(0, number)).await.expect("appended");
        mixed.write_at(0, format!("0 {}", 0).as_bytes()).await.expect("written");
        mixed.sync().await.expect("synced");
    }
    let _others = tasks.join_all().await;
    let bytes = mixed.read_at(0, 1 << 20).await.expect("read");
    let own: Vec<&[u8]> = bytes.chunks(LINE).filter(|line| line.starts_with(b"0 ")).collect();
    assert_eq!(bytes.len(), 100 * LINE);
    assert!(own.iter().enumerate().all(|(number, found)| *found == line(0, number)) && own.len() == 20);
    cluster.check_namespace();
}

/// Who gives up a sync while others are before it would leave zeros in the file: bytes that were written for a place
/// behind the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_did_not_arrive_is_not_published() {
    let (cluster, mut all) = start(2).await;
    let (_a, volume, mut other) = all.remove(0);
    let (_b, _, mut handle) = all.remove(0);
    handle.append(b"one\n").await.expect("appended");
    handle.data.write_all_behind();
    other.append(b"two\n").await.expect("appended");
    other.sync().await.expect("synced");
    handle.sync().await.expect("synced");
    let held = volume.take_append_turn(handle.inode(), b"/f", 4).await.expect("a turn");
    handle.append(b"three\n").await.expect("appended");
    let data = handle.data.clone();
    let waits = tokio::spawn(async move { data.flush().await });
    while handle.data.status().durable_bytes == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    waits.abort();
    assert!(waits.await.is_err_and(|error| error.is_cancelled()), "others are before it");
    volume.give_up_append_turn(handle.inode(), b"/f", held.number).await.expect("given up");
    assert_eq!(handle.data.publish_flights().await.ok(), Some(false), "it has not arrived");
    handle.sync().await.expect("synced");
    assert_eq!(other.read_at(0, 100).await.expect("read"), b"two\none\nthree\n");
    cluster.check_namespace();
}
