//! A client of a volume of several partitions. The clock is stopped.
use crate::attributes::Attributes;
use crate::changes::{CloneRange, NewFile, SetAttributes};
use crate::connect::Client;
use crate::credentials::Credentials;
use crate::error::ClientError;
use crate::fake::{Fake, FakeCluster};
use crate::meta::volume::{RenameMode, Volume};
use crate::net::{LocalCall, LocalServers};
use bytes::Bytes;
use cairn_rpc::{CallError, NotSent};
use cairn_types::{ErrorCode, Scheme};
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::meta::*;
use parking_lot::Mutex;
use prost::Message as _;
use std::sync::Arc;
use std::time::Duration;

const DIRECTORY: u32 = 0o040_000;

async fn start(partitions: u32) -> (FakeCluster, Client, Volume) {
    let cluster = FakeCluster::local(1, &[Scheme::Replicated(1)]).across(partitions);
    let client = cluster.connect_local().await;
    let volume = client.volume("default").await.expect("the volume");
    (cluster, client, volume)
}

async fn make_file(volume: &Volume, path: &str) -> Attributes {
    let request = NewFile { mode: 0o100_640, exclusive: true, ..Default::default() };
    volume.create(path.as_bytes(), request).await.expect("made")
}

fn count(cluster: &FakeCluster, partition: u32, name: &str) -> u64 {
    cluster.take_calls_at().iter().filter(|((p, n), _)| (*p, *n) == (partition, name)).map(|(_, count)| *count).sum()
}

/// Programs would see directories that nobody may enter, of the year 1970 and of root.
#[tokio::test(start_paused = true)]
async fn what_another_partition_has_is_shown_as_it_is_there() {
    let (cluster, _client, volume) = start(3).await;
    let user = volume.as_user(Credentials { uid: 7, gid: 8, groups: vec![] });
    let made = user.mkdir_in(b"/d", 0o751, 0, 2).await.expect("made");
    assert_eq!((volume.partition_of(made.inode).await.expect("known"), made.uid), (2, 7));
    let below = volume.mkdir_in(b"/d/e", 0o700, 0, 3).await.expect("made");
    assert_eq!(volume.partition_of(below.inode).await.expect("known"), 3);
    let file = make_file(&volume, "/d/e/f").await;
    assert_eq!(volume.partition_of(file.inode).await.expect("known"), 3, "a file is where its directory is");
    let there = volume.getattr(made.inode).await.expect("there");
    assert_eq!((there.mode, there.uid, there.nlink), (DIRECTORY | 0o751, 7, 3));
    assert_eq!(volume.stat(b"/d", true).await.expect("there"), there);
    assert_eq!(volume.lookup(1, b"d", b"/d").await.expect("there"), there);
    assert_eq!(volume.parent_of_directory(below.inode).await.expect("there"), there);
    assert_eq!(volume.parent_inode(below.inode).await.expect("there"), made.inode);
    let page = volume.readdir(1, b"", true).await.expect("listed");
    assert_eq!(page.entries[0].attributes, Some(there));
    assert_eq!(volume.stat(b"/d/e/f", true).await.expect("there").inode, file.inode);
    assert_eq!(volume.stat(b"/d/e/f/g", true).await.expect_err("a file").code(), Some(ErrorCode::NotDirectory));
    // Each directory is asked whether it may be searched.
    let denied = user.stat(b"/d/e/f", true).await.expect_err("0700 of root");
    assert_eq!(denied.code(), Some(ErrorCode::PermissionDenied), "{denied}");
    cluster.check_namespace();
}

/// One name that leads nowhere, as after a part of a volume was put back, would hide all others of its directory.
#[tokio::test(start_paused = true)]
async fn a_name_without_an_inode_hides_no_other() {
    let (cluster, _client, volume) = start(2).await;
    let make = async |name: &[u8]| volume.mkdir_in(name, 0o755, 0, 2).await.expect("made");
    make(b"/a").await;
    make(b"/c").await;
    make_file(&volume, "/d").await;
    let before = cluster.copy_of(2);
    make(b"/b").await;
    cluster.put_back(before);
    let page = volume.readdir(1, b"", true).await.expect("the others are listed");
    let mut shown: Vec<_> = page.entries.iter().map(|e| (e.name.as_slice(), e.attributes.is_some())).collect();
    shown.sort_unstable();
    assert_eq!(shown, [(&b"a"[..], true), (b"b", false), (b"c", true), (b"d", true)]);
    assert!(volume.stat(b"/d", true).await.is_ok());
    let error = volume.stat(b"/b", true).await.expect_err("nothing is there");
    assert_eq!(error.code(), Some(ErrorCode::Stale));
    assert!(error.to_string().contains("cairn admin fsck --repair"), "{error}");
}

/// A name that was moved into another partition's directory leads to an inode of the old one, whatever it is of.
#[tokio::test(start_paused = true)]
async fn what_was_moved_is_found_opened_held_and_read() {
    let (cluster, _client, volume) = start(2).await;
    volume.mkdir_in(b"/d", 0o755, 0, 2).await.expect("made");
    let file = make_file(&volume, "/f").await;
    volume.rename(b"/f", b"/d/f", RenameMode::NoReplace).await.expect("moved");
    let found = volume.stat(b"/d/f", false).await.expect("there");
    assert_eq!((found.inode, found.mode), (file.inode, 0o100_640));
    volume.symlink(b"f", b"/l").await.expect("made");
    volume.rename(b"/l", b"/d/l", RenameMode::NoReplace).await.expect("moved");
    assert_eq!(volume.readlink(b"/d/l").await.expect("read"), b"f");
    assert_eq!(volume.stat(b"/d/l", true).await.expect("relative to where it is now").inode, file.inode);
    let link = volume.link(b"/d/f", b"/g", false).await.expect("linked");
    assert_eq!((link.inode, link.nlink), (file.inode, 2));

    let at = volume.stat(b"/d", true).await.expect("there").inode;
    let opened = volume.open_for_read_at(at, b"f", b"/d/f", 4, 8).await.expect("opened");
    assert_eq!((opened.attributes.inode, opened.attributes.nlink), (file.inode, 2));
    let user = volume.as_user(Credentials { uid: 7, gid: 8, groups: vec![] });
    let denied = user.open_for_read_at(at, b"f", b"/d/f", 4, 8).await.expect_err("0640 of root");
    assert_eq!(denied.code(), Some(ErrorCode::PermissionDenied), "{denied}");
    volume.close_for_read(file.inode).await.expect("closed");

    let request = NewFile { mode: 0o100_640, hold: true, ..Default::default() };
    let held = volume.create_at(at, b"f", b"/d/f", request).await.expect("it is there");
    assert_eq!(held.inode, file.inode);
    volume.note_held(held.inode).await.expect("noted");
    volume.unlink(b"/d/f").await.expect("removed");
    volume.unlink(b"/g").await.expect("removed");
    assert_eq!(volume.getattr(file.inode).await.expect("it is held").nlink, 0);
    volume.release_inode(file.inode).await.expect("released");
    assert_eq!(volume.getattr(file.inode).await.expect_err("gone").code(), Some(ErrorCode::Stale));
    cluster.check_namespace();
}

/// Requests would be repeated where they are refused until the patience ends, or use a number that is used there.
#[tokio::test(start_paused = true)]
async fn an_old_map_costs_one_refusal() {
    let (cluster, _client, writer) = start(3).await;
    cluster.show(1);
    let old = cluster.connect_local().await;
    let volume = old.volume("default").await.expect("the volume");
    let session = volume.session_number().await.expect("opened");
    cluster.show(3);
    let directory = writer.mkdir_in(b"/d", 0o755, 0, 2).await.expect("made").inode;
    // A map that was fetched a moment ago is not fetched again.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let started = tokio::time::Instant::now();
    cluster.take_calls_at();
    let made = volume.create_at(directory, b"f", b"/d/f", NewFile::default()).await.expect("made");
    let calls = cluster.take_calls_at();
    assert_eq!((calls[&(1, "Create")], calls[&(2, "Create")]), (1, 1), "{calls:?}");
    assert!(started.elapsed() < Duration::from_millis(100), "{:?}", started.elapsed());
    assert_eq!(volume.partition_of(made.inode).await.expect("known"), 2);
    // The number that was refused is the next one's, and the session goes on.
    volume.mkdir(b"/e", 0o755, 0).await.expect("made");
    assert_eq!(volume.session_number().await.expect("known"), session);

    for path in [&b"/d"[..], b"/d/f"] {
        cluster.show(1);
        let volume = cluster.connect_local().await.volume("default").await.expect("the volume");
        cluster.show(3);
        let found = volume.stat(path, true).await.expect("found");
        assert_eq!(found, writer.stat(path, true).await.expect("found"));
    }
    cluster.show(1);
    let volume = cluster.connect_local().await.volume("default").await.expect("the volume");
    cluster.show(3);
    let found = volume.getattr_many(&[made.inode, 1, directory, 99 << 32]).await.expect("answered");
    assert_eq!(found.iter().map(|one| one.inode).collect::<Vec<_>>(), [made.inode, 1, directory]);
    cluster.check_namespace();
}

/// A directory that nobody knows of would be asked for again and again for ever, or the error not say what is wrong.
#[tokio::test(start_paused = true)]
async fn where_no_map_names_another_partition_the_refusal_is_told() {
    let (cluster, _client, volume) = start(2).await;
    let directory = volume.mkdir_in(b"/d", 0o755, 0, 2).await.expect("made").inode;
    cluster.show(1);
    let volume = cluster.connect_local().await.volume("default").await.expect("the volume");
    let error = volume.getattr(directory).await.expect_err("the map never gets newer");
    assert!(matches!(error, ClientError::Unreachable { .. } | ClientError::NoLeader { .. }), "{error:?}");
    assert!(error.to_string().contains("another partition"), "{error}");
}

/// A listing of a thousand directories would cost a thousand calls.
#[tokio::test(start_paused = true)]
async fn a_listing_asks_each_partition_once() {
    let (cluster, _client, volume) = start(3).await;
    for number in 0..60 {
        volume.mkdir_in(format!("/d{number:02}").as_bytes(), 0o711, 0, number % 3 + 1).await.expect("made");
    }
    cluster.take_calls_at();
    let page = volume.readdir(1, b"", true).await.expect("listed");
    assert_eq!(page.entries.len(), 60);
    assert!(page.entries.iter().all(|entry| entry.attributes.is_some_and(|a| a.mode == DIRECTORY | 0o711)));
    let calls = cluster.take_calls_at();
    let asked: Vec<u64> = calls.iter().filter(|((_, name), _)| *name == "GetattrMany").map(|(_, n)| *n).collect();
    assert_eq!(asked, [1, 1], "{calls:?}");
    assert!(!calls.keys().any(|(_, name)| *name == "Getattr"), "{calls:?}");
    volume.readdir(1, b"", false).await.expect("listed");
    assert_eq!(count(&cluster, 2, "GetattrMany"), 0, "nobody asked for attributes");

    // One that does not answer costs a moment and its own attributes.
    cluster.silence(2, true);
    let started = tokio::time::Instant::now();
    let page = volume.readdir(1, b"", true).await.expect("listed");
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert_eq!(page.entries.iter().filter(|entry| entry.attributes.is_none()).count(), 20);
}

/// Who may list names would be told what is behind them.
#[tokio::test(start_paused = true)]
async fn without_search_permission_names_come_alone() {
    let (cluster, _client, volume) = start(2).await;
    volume.mkdir(b"/r", 0o744, 0).await.expect("made");
    volume.mkdir_in(b"/r/d", 0o755, 0, 2).await.expect("made");
    let inode = volume.stat(b"/r", true).await.expect("there").inode;
    let user = volume.as_user(Credentials { uid: 7, gid: 8, groups: vec![] });
    let listed = async |volume: &Volume| {
        let page = volume.readdir(inode, b"", true).await.expect("listed");
        page.entries.iter().map(|entry| entry.attributes.is_some()).collect::<Vec<_>>()
    };
    assert_eq!(listed(&user).await, [false]);
    make_file(&volume, "/r/a").await;
    assert_eq!(listed(&user).await, [false, false]);
    assert_eq!(listed(&volume).await, [true, true]);
    let request = SetAttributes { mode: Some(0o745), ..Default::default() };
    volume.setattr(inode, b"/r", request).await.expect("changed");
    assert_eq!(listed(&user).await, [true, true]);
    volume.unlink(b"/r/a").await.expect("removed");
    assert_eq!(listed(&user).await, [true]);
    cluster.check_namespace();
}

/// `df` would show what the root's partition has, or a sum without a partition that does not answer.
#[tokio::test(start_paused = true)]
async fn totals_are_those_of_all_partitions() {
    let (cluster, _client, volume) = start(3).await;
    for partition in 1..=3 {
        volume.mkdir_in(format!("/d{partition}").as_bytes(), 0o755, 0, partition).await.expect("made");
        make_file(&volume, &format!("/d{partition}/f")).await;
    }
    let counts = volume.statfs().await.expect("counted");
    assert_eq!((counts.inodes, counts.directories), (7, 4), "with the root");
    let mut expected = Vec::new();
    for (path, bytes) in [(b"/d1", 1 << 30), (b"/d3", 1 << 20)] {
        let inode = volume.stat(path, true).await.expect("there").inode;
        volume.set_quota(inode, path, bytes, 10).await.expect("set");
        expected.push((inode, bytes));
    }
    let quotas = volume.quotas().await.expect("listed");
    assert_eq!(quotas.iter().map(|quota| (quota.inode, quota.bytes_max)).collect::<Vec<_>>(), expected);
    let refused = volume.set_quota(0, b"/", 1 << 30, 0).await.expect_err("of several partitions");
    assert_eq!(refused.code(), Some(ErrorCode::NotSupported));
    cluster.silence(3, true);
    let error = volume.statfs().await.expect_err("one does not answer");
    assert!(error.to_string().contains("p3"), "{error}");
}

/// Before the second partition is asked this, somebody else does that.
struct Between {
    servers: Arc<Fake>,
    before: Opcode,
    requests: Mutex<Vec<(Opcode, Vec<u8>)>>,
}

impl LocalServers for Between {
    fn call(&self, address: &str, opcode: u16, message: &[u8], payload: &[u8], deadline: Duration) -> LocalCall {
        let partition = || EndSessionRequest::decode(message).ok()?.header.map(|header| header.partition);
        if opcode == self.before.code() && partition() == Some(2) {
            for (opcode, request) in std::mem::take(&mut *self.requests.lock()) {
                // It is carried out when it is called.
                drop(self.servers.call(address, opcode.code(), &request, &[], deadline));
            }
        }
        self.servers.call(address, opcode, message, payload, deadline)
    }
}

fn header(sequence: u64) -> Option<MetaHeader> {
    let who = Some(Credentials::default().to_wire());
    Some(MetaHeader { volume: 1, partition: 1, session: 900, slot: 0, sequence, who })
}

/// A name that is there all the time would seem to be gone, or stale, because it is another directory's by now.
#[tokio::test(start_paused = true)]
async fn what_is_replaced_between_two_answers_is_looked_up_again() {
    for before in [Opcode::Getattr, Opcode::GetattrMany, Opcode::Resolve] {
        let (cluster, _client, volume) = start(2).await;
        let old = volume.mkdir_in(b"/d", 0o755, 0, 2).await.expect("made").inode;
        volume.mkdir_in(b"/gone", 0o755, 0, 2).await.expect("made");
        let remove = |name: &[u8], sequence| RmdirRequest { header: header(sequence), parent: 1, name: name.to_vec() };
        let again = MkdirRequest {
            header: header(3),
            parent: 1,
            name: b"d".to_vec(),
            mode: 0o700,
            partition: 2,
            ..Default::default()
        };
        let requests = vec![
            (Opcode::Rmdir, remove(b"gone", 1).encode_to_vec()),
            (Opcode::Rmdir, remove(b"d", 2).encode_to_vec()),
            (Opcode::Mkdir, again.encode_to_vec()),
        ];
        let between = Arc::new(Between { servers: cluster.fake.clone(), before, requests: Mutex::default() });
        let client = cluster.connect_through(between.clone()).await;
        let volume = client.volume("default").await.expect("the volume");
        *between.requests.lock() = requests;
        let found = match before {
            Opcode::Getattr => volume.lookup(1, b"d", b"/d").await.expect("there"),
            Opcode::Resolve => volume.stat(b"/d", true).await.expect("there"),
            _ => {
                let page = volume.readdir(1, b"", true).await.expect("listed");
                assert_eq!(page.entries.len(), 1, "one is gone: {page:?}");
                assert_eq!(page.entries[0].inode, page.entries[0].attributes.expect("known").inode);
                page.entries[0].attributes.expect("known")
            }
        };
        assert!(between.requests.lock().is_empty(), "nothing happened in between");
        assert_eq!(found.mode, DIRECTORY | 0o700, "{before:?}");
        assert!(found.inode > old, "{before:?}");
        cluster.check_namespace();
    }
}

/// Its answers to one operation are those of a server that speaks otherwise.
struct Garbling {
    servers: Arc<Fake>,
    of: Opcode,
}

impl LocalServers for Garbling {
    fn call(&self, address: &str, opcode: u16, message: &[u8], payload: &[u8], deadline: Duration) -> LocalCall {
        let answer = self.servers.call(address, opcode, message, payload, deadline);
        if opcode != self.of.code() {
            return answer;
        }
        Box::pin(async move {
            let mut answer = answer.await?;
            answer.message = Bytes::from_static(&[0x0a, 200]);
            Ok(answer)
        })
    }
}

/// A change that was done would be taken for one that was not, or be asked for until the patience ends.
#[tokio::test(start_paused = true)]
async fn an_answer_that_is_not_understood_ends_the_call() {
    let (cluster, _client, sound) = start(1).await;
    for (of, is_unknown) in [(Opcode::Mkdir, true), (Opcode::Readdir, false)] {
        let client = cluster.connect_through(Arc::new(Garbling { servers: cluster.fake.clone(), of })).await;
        let volume = client.volume("default").await.expect("the volume");
        let begun = tokio::time::Instant::now();
        let error = match is_unknown {
            true => volume.mkdir_in(b"/d", 0o755, 0, 1).await.expect_err("garbled"),
            false => volume.readdir(1, b"", false).await.expect_err("garbled"),
        };
        assert_eq!(error.is_unknown(), is_unknown, "{error}");
        assert!(error.to_string().contains("not understood"), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    }
    assert_eq!(sound.stat(b"/d", true).await.expect("it was made").mode, DIRECTORY | 0o755);
}

/// Cloning within the volume would fail where `cp` can copy.
#[tokio::test(start_paused = true)]
async fn what_two_partitions_have_is_copied_instead_of_shared() {
    let (_cluster, _client, volume) = start(2).await;
    volume.mkdir_in(b"/d", 0o755, 0, 2).await.expect("made");
    let (source, target) = (make_file(&volume, "/a").await.inode, make_file(&volume, "/d/b").await.inode);
    volume.hold(target, b"/d/b").await.expect("held");
    let request = CloneRange { source, inode: target, length: 0, ..Default::default() };
    assert!(volume.clone_range(b"/d/b", request).await.expect("answered").is_none());
    volume.let_go(target).await.expect("released");
}

/// A mount that closes many files would let go of them one after the other, or be refused all of them for one.
#[tokio::test(start_paused = true)]
async fn what_names_many_inodes_is_split() {
    let (cluster, _client, volume) = start(3).await;
    let (mut inodes, mut paths) = (Vec::new(), Vec::new());
    for partition in 1..=3 {
        volume.mkdir_in(format!("/d{partition}").as_bytes(), 0o755, 0, partition).await.expect("made");
    }
    for number in 0..9 {
        let path = format!("/d{}/f{number}", number % 3 + 1);
        let inode = make_file(&volume, &path).await.inode;
        volume.hold(inode, path.as_bytes()).await.expect("held");
        volume.unlink(path.as_bytes()).await.expect("removed");
        inodes.push(inode);
        paths.push(path);
    }
    cluster.take_calls_at();
    let found = volume.getattr_many(&inodes).await.expect("answered");
    assert_eq!(found.iter().map(|one| one.inode).collect::<Vec<_>>(), inodes, "in their order");
    volume.release_inodes(&inodes).await.expect("released");
    let calls = cluster.take_calls_at();
    for partition in 1..=3 {
        assert_eq!((calls[&(partition, "GetattrMany")], calls[&(partition, "Release")]), (1, 1), "{calls:?}");
    }
    assert!(volume.getattr_many(&inodes).await.expect("answered").is_empty(), "they are gone: {paths:?}");
    cluster.check_namespace();
}

/// Its server takes no connection for one of the calls.
struct Closed {
    servers: Arc<Fake>,
    of: Opcode,
    times: Mutex<u32>,
}

impl LocalServers for Closed {
    fn call(&self, address: &str, opcode: u16, message: &[u8], payload: &[u8], deadline: Duration) -> LocalCall {
        let mut times = self.times.lock();
        if opcode != self.of.code() || *times == 0 {
            return self.servers.call(address, opcode, message, payload, deadline);
        }
        *times -= 1;
        let (addr, refusal) = (address.to_owned(), WireError::new(ErrorCode::NotPermitted, "its key ended"));
        Box::pin(async move { Err(CallError::NotSent { addr, cause: NotSent::Refused(refusal) }) })
    }
}

/// The number of a change that never left would be left out, and its session be lost with the next change.
#[tokio::test(start_paused = true)]
async fn a_change_that_no_server_took_uses_no_number() {
    let (cluster, _client, _) = start(1).await;
    let closed = Arc::new(Closed { servers: cluster.fake.clone(), of: Opcode::Mkdir, times: Mutex::new(0) });
    let client = cluster.connect_through(closed.clone()).await;
    let volume = client.volume("default").await.expect("the volume");
    for round in 0..5 {
        volume.mkdir_in(format!("/a{round}").as_bytes(), 0o755, 0, 1).await.expect("made");
        *closed.times.lock() = 2;
        for _ in 0..2 {
            let error = volume.mkdir_in(b"/b", 0o755, 0, 1).await.expect_err("refused");
            assert_eq!(error.code(), Some(ErrorCode::NotPermitted), "{error}");
        }
    }
    assert_eq!(*closed.times.lock(), 0);
    volume.mkdir_in(b"/b", 0o755, 0, 1).await.expect("the session goes on");
    assert_eq!(volume.readdir(1, b"", false).await.expect("listed").entries.len(), 6);
    cluster.check_namespace();
}
