//! Clients that lead what they make, over a real namespace. The clock is stopped.
use crate::attributes::Attributes;
use crate::changes::{NewFile, SetAttributes};
use crate::connect::Client;
use crate::error::ClientError;
use crate::fake::{Fake, FakeCluster};
use crate::locks::{FileLock, LOCK_TO_THE_END, LockFamily, LockMode};
use crate::meta::delegations::memory::{LeftQueue, QueueLog, QueueMemory, QueueName};
use crate::meta::volume::Volume;
use crate::net::{LocalCall, LocalServers};
use cairn_rpc::{CallError, Unknown};
use cairn_types::{ErrorCode, InodeId, Scheme};
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use futures_util::FutureExt as _;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use tokio::time::Instant;

mod lost;

const ROOT: u64 = InodeId::ROOT.0;

/// The cluster, of which some answers to batches are lost, and every other such batch is refused before it is executed.
struct Lossy {
    servers: Arc<Fake>,
    lose: AtomicU32,
}

impl LocalServers for Lossy {
    fn call(&self, address: &str, opcode: u16, message: &[u8], payload: &[u8], deadline: Duration) -> LocalCall {
        let mut is_lost = false;
        if opcode == Opcode::Batch.code() {
            match self.lose.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) {
                // As a server whose clock is wrong.
                Ok(left) if left % 2 == 0 => {
                    let refused = WireError::new(ErrorCode::NotPermitted, "the key does not count yet");
                    return Box::pin(async move { Err(CallError::Remote(refused)) });
                }
                Ok(_) => is_lost = true,
                Err(_) => {}
            }
        }
        let call = self.servers.call(address, opcode, message, payload, deadline);
        let addr = address.to_owned();
        Box::pin(async move {
            let answer = call.await;
            if is_lost { Err(CallError::Unknown { addr, cause: Unknown::Deadline }) } else { answer }
        })
    }
}

/// The cluster, until its client is dead.
struct Dying {
    servers: Arc<Fake>,
    is_dead: AtomicBool,
}

impl LocalServers for Dying {
    fn call(&self, address: &str, opcode: u16, message: &[u8], payload: &[u8], deadline: Duration) -> LocalCall {
        if !self.is_dead.load(Ordering::Relaxed) {
            return self.servers.call(address, opcode, message, payload, deadline);
        }
        let addr = address.to_owned();
        Box::pin(async move {
            tokio::time::sleep(deadline).await;
            Err(CallError::Unknown { addr, cause: Unknown::Deadline })
        })
    }
}

/// A client that leads, and one that does not.
async fn start() -> (FakeCluster, (Client, Volume), (Client, Volume)) {
    let cluster = FakeCluster::local(1, &[Scheme::Replicated(1)]);
    cluster.raise_level();
    let (first, second) = (cluster.connect_local().await, cluster.connect_local().await);
    let leading = first.volume("default").await.expect("the volume").leading();
    let other = second.volume("default").await.expect("the volume");
    (cluster, (first, leading), (second, other))
}

async fn make_top(volume: &Volume) -> Attributes {
    let made = volume.mkdir_masked(ROOT, b"top", b"/top", 0o755, 0, 0).await.expect("made").attributes;
    assert_eq!(volume.caller.led_by(made.inode), Some(made.inode), "it is led");
    made
}

async fn make_file(volume: &Volume, parent: u64, name: &str) -> Attributes {
    let new = NewFile { mode: 0o100_640, exclusive: true, ..NewFile::default() };
    volume.create_at(parent, name.as_bytes(), name.as_bytes(), new).await.expect("made")
}

fn calls(cluster: &FakeCluster, name: &str) -> u64 {
    cluster.fake.state.lock().calls.get(name).copied().unwrap_or_default()
}

/// Makes a tree below a top: its files by name.
async fn make_tree(volume: &Volume, top: u64) -> Vec<(String, Attributes)> {
    let mut files = Vec::new();
    for d in 0..3 {
        let made = volume.mkdir_masked(top, format!("d{d}").as_bytes(), b"d", 0o750, 0, 0).await.expect("made");
        assert!(made.directory.is_some_and(|top| top.nlink == 3 + d), "who asks knows the directory, too");
        for f in 0..20 {
            let name = format!("f{f}");
            let file = make_file(volume, made.attributes.inode, &name).await;
            let set = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
            volume.setattr(file.inode, name.as_bytes(), set).await.expect("set");
            files.push((format!("/top/d{d}/{name}"), file));
        }
    }
    files
}

/// It would cost a round trip for each name, or somebody would see half of a tree, or another one.
#[tokio::test(start_paused = true)]
async fn what_is_made_is_answered_here_and_others_see_all_of_it() {
    let (cluster, (_first, volume), (_second, other)) = start().await;
    let top = make_top(&volume).await;
    let files = make_tree(&volume, top.inode).await;
    assert_eq!(calls(&cluster, "Create") + calls(&cluster, "Setattr"), 0);
    assert_eq!(calls(&cluster, "Mkdir"), 1);
    let listed = volume.readdir(top.inode, b"", true).await.expect("listed");
    assert_eq!(listed.entries.len(), 3);
    assert_eq!(volume.parent_inode(top.inode).await.expect("above"), ROOT);
    assert!(volume.quota(top.inode, b"top").await.expect("asked").is_none(), "as statfs asks");
    let above = volume.readdir(ROOT, b"", true).await.expect("listed");
    assert_eq!(above.entries[0].attributes.map(|a| a.nlink), Some(5), "the holder sees its own top as it is");
    assert_eq!(volume.caller.led_by(top.inode), Some(top.inode), "nothing of that ends it");
    let began = Instant::now();
    for (path, file) in &files {
        let found = other.stat(path.as_bytes(), true).await.expect("there");
        assert_eq!((found.inode, found.mode & 0o777), (file.inode, 0o600), "{path}");
    }
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert_eq!(volume.caller.led_by(top.inode), None, "it is an ordinary directory");
    make_file(&volume, top.inode, "later").await;
    assert_eq!(calls(&cluster, "Create"), 1);
    assert!(other.stat(b"/top/later", true).await.is_ok());
}

/// Fsync would return before names are durable; or each would wait for half a second.
#[tokio::test(start_paused = true)]
async fn a_commit_stores_what_was_done_before_and_nothing_is_older_than_a_moment() {
    let (cluster, (_first, volume), _second) = start().await;
    let top = make_top(&volume).await;
    let file = make_file(&volume, top.inode, "a").await;
    let began = Instant::now();
    volume.commit(file.inode).await.expect("stored");
    assert!(began.elapsed() < Duration::from_millis(100), "{:?}", began.elapsed());
    assert_eq!(calls(&cluster, "Batch"), 1);
    volume.commit(file.inode).await.expect("nothing to do");
    volume.commit(ROOT).await.expect("nothing is led there");
    assert_eq!(calls(&cluster, "Batch"), 1);
    make_file(&volume, top.inode, "b").await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!(calls(&cluster, "Batch"), 2, "it goes by itself");
    assert!(volume.close_within(Duration::ZERO).await);
}

/// A file would be there twice, or not at all, when the network swallows answers, or one server takes nothing.
#[tokio::test(start_paused = true)]
async fn a_batch_whose_answer_is_lost_counts_once() {
    let (cluster, _leading, (_second, other)) = start().await;
    let servers = Arc::new(Lossy { servers: cluster.fake.clone(), lose: AtomicU32::new(4) });
    let client = cluster.connect_through(servers.clone()).await;
    let volume = client.volume("default").await.expect("the volume").leading();
    let top = make_top(&volume).await;
    for round in 0..4 {
        for f in 0..100 {
            make_file(&volume, top.inode, &format!("{round}.{f}")).await;
        }
        volume.commit(top.inode).await.expect("stored");
    }
    assert_eq!(servers.lose.load(Ordering::Relaxed), 0, "answers were lost");
    let mut names = 0;
    let mut after = Vec::new();
    loop {
        let page = other.readdir(top.inode, &after, false).await.expect("listed");
        names += page.entries.len();
        let Some(last) = page.entries.last().filter(|_| !page.end) else { break };
        after.clone_from(&last.cookie);
    }
    assert_eq!(names, 400);
}

/// Whoever is cut off would go on acknowledging, or others wait for ever; or what is lost would look as if it was kept.
#[tokio::test(start_paused = true)]
async fn a_lost_session_is_an_error_and_others_go_on() {
    let (_cluster, (_first, volume), (_second, other)) = start().await;
    let top = make_top(&volume).await;
    let kept = make_file(&volume, top.inode, "kept").await;
    volume.commit(top.inode).await.expect("stored");
    let session = volume.session_number().await.expect("a session");
    make_file(&volume, top.inode, "lost").await;
    other.end_session_of(session).await.expect("ended");
    assert_eq!(other.lookup(top.inode, b"kept", b"kept").await.expect("there").inode, kept.inode);
    let gone = other.lookup(top.inode, b"lost", b"lost").await.expect_err("never stored");
    assert!(gone.is_not_found(), "{gone}");
    let error = volume.commit(top.inode).await.expect_err("it is lost");
    assert_eq!(error.code(), Some(ErrorCode::Internal), "{error}");
    for refused in [
        volume.lookup(top.inode, b"kept", b"kept").await.err(),
        volume.mkdir_masked(top.inode, b"x", b"x", 0o755, 0, 0).await.err(),
        volume.commit_all().await.err(),
    ] {
        assert_eq!(refused.as_ref().map(ClientError::errno), Some(5), "{refused:?}");
    }
    volume.commit_all().await.expect("whoever syncs everything was told");
    other.mkdir(b"/top/theirs", 0o755, 0).await.expect("others go on");
    volume.mkdir(b"/elsewhere", 0o755, 0).await.expect("so does this client, elsewhere");
}

/// A rename out of the directory, a lock, or the removal of the top would be done by one side only.
#[tokio::test(start_paused = true)]
async fn what_is_not_wholly_in_it_is_done_when_all_is_stored() {
    let (cluster, (_first, volume), (_second, other)) = start().await;
    let top = make_top(&volume).await;
    make_file(&volume, top.inode, "out").await;
    volume.rename_at(top.inode, b"out", ROOT, b"moved", b"out", 0).await.expect("moved");
    assert!(other.stat(b"/moved", true).await.is_ok());
    assert_eq!(volume.caller.led_by(top.inode), None);
    let two = volume.mkdir_masked(ROOT, b"two", b"/two", 0o755, 0, 0).await.expect("made").attributes;
    let file = make_file(&volume, two.inode, "locked").await;
    let (family, mode, end) = (LockFamily::Posix, LockMode::Write, LOCK_TO_THE_END);
    let lock = FileLock { family, mode, owner: 1, start: 0, end, pid: 1 };
    volume.set_lock(file.inode, b"locked", lock).await.expect("locked");
    assert_eq!(volume.caller.led_by(two.inode), None);
    let three = volume.mkdir_masked(ROOT, b"three", b"/three", 0o755, 0, 0).await.expect("made").attributes;
    make_file(&volume, three.inode, "f").await;
    let busy = volume.rmdir_at(ROOT, b"three", b"/three").await.expect_err("a file is in it");
    assert_eq!(busy.code(), Some(ErrorCode::NotEmpty));
    assert_eq!(volume.caller.led_by(three.inode), Some(three.inode), "it goes on");
    volume.unlink_at(three.inode, b"f", b"f").await.expect("removed");
    let batches = calls(&cluster, "Batch");
    volume.rmdir_at(ROOT, b"three", b"/three").await.expect("removed");
    assert_eq!((calls(&cluster, "Batch") - batches, volume.caller.led_by(three.inode)), (1, None));
    assert!(other.stat(b"/three", true).await.expect_err("removed").is_not_found());
}

/// An open file would be gone when its name goes, here or behind the end.
#[tokio::test(start_paused = true)]
async fn an_open_file_outlives_its_name() {
    let (_cluster, (_first, volume), (_second, other)) = start().await;
    let top = make_top(&volume).await;
    let file = make_file(&volume, top.inode, "f").await;
    volume.open_for_read_at(top.inode, b"f", b"f", 4, 1).await.expect("opened");
    volume.unlink_at(top.inode, b"f", b"f").await.expect("removed");
    assert_eq!(volume.getattr(file.inode).await.expect("it is open").nlink, 0);
    assert_eq!(other.readdir(top.inode, b"", false).await.expect("listed").entries.len(), 0);
    assert_eq!(volume.getattr(file.inode).await.expect("it is open").nlink, 0);
    volume.close_for_read(file.inode).await.expect("closed");
    assert_eq!(volume.getattr(file.inode).await.expect_err("gone").code(), Some(ErrorCode::Stale));
}

/// An answer that comes late would begin what the partition has ended, and all that is done in it would be lost.
#[tokio::test(start_paused = true)]
async fn what_was_wanted_before_it_was_known_is_never_led() {
    let (cluster, (_first, volume), _second) = start().await;
    let before = volume.mkdir(b"/before", 0o755, 0).await.expect("made").inode;
    let partition = volume.partition_of(ROOT).await.expect("known");
    assert!(!volume.caller.delegations().wanted(partition, before + 1));
    let made = volume.mkdir_masked(ROOT, b"top", b"/top", 0o755, 0, 0).await.expect("made").attributes;
    assert_eq!((made.inode, volume.caller.led_by(made.inode)), (before + 1, None));
    make_file(&volume, made.inode, "f").await;
    assert!(calls(&cluster, "Create") > 0, "the partition made it");
    assert_eq!(calls(&cluster, "EndDelegations"), 1, "it was given back");
}

/// A client that was told of a new session by its own slots would throw away what it had answered under the old one.
#[tokio::test(start_paused = true)]
async fn a_session_that_is_left_stores_what_waits() {
    let (_cluster, (_first, volume), (_second, other)) = start().await;
    let top = make_top(&volume).await;
    make_file(&volume, top.inode, "before").await;
    volume.caller.session().await.expect("a session").mark_ended();
    make_file(&volume, top.inode, "behind").await;
    assert_eq!(volume.caller.led_by(top.inode), None);
    for name in ["before", "behind"] {
        assert!(other.lookup(top.inode, name.as_bytes(), b"f").await.is_ok(), "{name}");
    }
}

/// A mount that is handed over would leave changes behind, or one that goes on after all be slow from then on.
#[tokio::test(start_paused = true)]
async fn who_ends_leading_asks_for_nothing_until_it_leads_again() {
    let (cluster, (_first, volume), (_second, other)) = start().await;
    let top = make_top(&volume).await;
    make_file(&volume, top.inode, "f").await;
    cluster.fake.state.lock().leaderless_for = Some(0);
    assert!(!volume.end_leading(Duration::from_secs(2)).await, "nobody takes it");
    cluster.fake.state.lock().leaderless_for = None;
    volume.lead_again();
    assert!(volume.end_leading(Duration::from_secs(10)).await);
    assert!(other.stat(b"/top/f", true).await.is_ok(), "nothing is lost");
    let plain = volume.mkdir_masked(ROOT, b"plain", b"/plain", 0o755, 0, 0).await.expect("made").attributes;
    assert_eq!(volume.caller.led_by(plain.inode), None);
    volume.lead_again();
    let again = volume.mkdir_masked(ROOT, b"again", b"/again", 0o755, 0, 0).await.expect("made").attributes;
    assert_eq!(volume.caller.led_by(again.inode), Some(again.inode));
}

async fn make_directory(volume: &Volume, name: &str) -> u64 {
    let made = volume.mkdir_masked(ROOT, name.as_bytes(), name.as_bytes(), 0o755, 0, 0).await.expect("made");
    made.attributes.inode
}

/// An archive with many directories would be unpacked fast at first, and then slowly for minutes.
#[tokio::test(start_paused = true)]
async fn what_nobody_uses_makes_room_for_what_is_made() {
    let (_cluster, (_first, volume), _second) = start().await;
    let mut tops = Vec::new();
    for number in 0..64 {
        tops.push(make_directory(&volume, &format!("d{number}")).await);
    }
    assert!(tops.iter().all(|top| volume.caller.led_by(*top) == Some(*top)), "{:?}", volume.led_counts());
    let more = make_directory(&volume, "more").await;
    assert_eq!(volume.caller.led_by(more), None, "all are in use");
    tokio::time::sleep(Duration::from_secs(11)).await;
    for top in tops.iter().filter(|top| **top != tops[40]) {
        make_file(&volume, *top, "f").await;
    }
    make_directory(&volume, "wants room").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(volume.caller.led_by(tops[40]), None, "nobody used it");
    let last = make_directory(&volume, "last").await;
    assert_eq!((volume.caller.led_by(last), volume.led_counts().0), (Some(last), 64));
}

/// A mount whose clients are those of another server would answer them what is not durable.
#[tokio::test(start_paused = true)]
async fn who_rests_leads_nothing_until_it_goes_on() {
    let (_cluster, (_first, volume), (_second, other)) = start().await;
    let top = make_top(&volume).await;
    make_file(&volume, top.inode, "f").await;
    volume.rest_leading(true);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(volume.led_counts(), (0, 0));
    assert!(other.stat(b"/top/f", true).await.is_ok(), "nothing is lost");
    let plain = make_directory(&volume, "plain").await;
    assert_eq!(volume.caller.led_by(plain), None);
    volume.lead_again();
    let plain = make_directory(&volume, "plain too").await;
    assert_eq!(volume.caller.led_by(plain), None, "it rests, whoever hands over what");
    volume.rest_leading(false);
    let again = make_directory(&volume, "again").await;
    assert_eq!(volume.caller.led_by(again), Some(again));
}

/// A hand-over would fail for what was lost long ago.
#[tokio::test(start_paused = true)]
async fn what_was_lost_is_no_error_of_the_end() {
    let (_cluster, (_first, volume), (_second, other)) = start().await;
    let top = make_top(&volume).await;
    make_file(&volume, top.inode, "lost").await;
    let session = volume.session_number().await.expect("a session");
    other.end_session_of(session).await.expect("ended");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(volume.end_leading(Duration::from_secs(2)).await);
    volume.commit_all().await.expect("the log tells it");
    assert!(volume.commit(top.inode).await.is_err(), "and whoever syncs what is in it");
}

/// Everybody would wait for the lease of a process that is dead, its successor with open files first.
#[tokio::test(start_paused = true)]
async fn what_a_dead_process_led_ends_when_it_is_wanted() {
    let (cluster, _leading, (_second, other)) = start().await;
    let servers = Arc::new(Dying { servers: cluster.fake.clone(), is_dead: AtomicBool::new(false) });
    let client = cluster.connect_through(servers.clone()).await;
    let volume = client.volume("default").await.expect("the volume").leading();
    let top = make_top(&volume).await;
    let file = make_file(&volume, top.inode, "f").await;
    volume.open_for_read_at(top.inode, b"f", b"f", 4, 1).await.expect("opened");
    volume.unlink_at(top.inode, b"f", b"f").await.expect("removed");
    volume.commit(top.inode).await.expect("stored");
    let session = volume.session_number().await.expect("a session");
    servers.is_dead.store(true, Ordering::Relaxed);
    let (began, dead) = (Instant::now(), other.dead_session(session, 0));
    let names = tokio::select! {
        listed = other.readdir(top.inode, b"", false) => listed.expect("listed").entries.len(),
        never = dead.renew() => match never {},
    };
    assert_eq!(names, 0);
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!(other.getattr(file.inode).await.expect("its session lives and holds it").nlink, 0);
    other.end_session_of(session).await.expect("ended");
    assert!(other.getattr(file.inode).await.is_err());
}

/// A fault in the machine of one directory would keep all others out of it for as long as the mount lives.
#[tokio::test(start_paused = true)]
async fn a_machine_that_panics_is_lost_and_given_back() {
    let (cluster, (_first, volume), (_second, other)) = start().await;
    let top = make_top(&volume).await;
    make_file(&volume, top.inode, "kept").await;
    volume.commit(top.inode).await.expect("stored");
    make_file(&volume, top.inode, "lost").await;
    volume.caller.delegations().get(top.inode).expect("it is led").fail();
    let began = Instant::now();
    assert!(other.stat(b"/top/kept", true).await.is_ok());
    assert!(other.stat(b"/top/lost", true).await.expect_err("it was never stored").is_not_found());
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    let refused = volume.lookup(top.inode, b"kept", b"kept").await.expect_err("it is not to be believed");
    assert_eq!(refused.errno(), 5, "{refused}");
    assert!(volume.commit(top.inode).await.is_err());
    assert_eq!(calls(&cluster, "EndDelegations"), 1);
    let two = volume.mkdir_masked(ROOT, b"two", b"/two", 0o755, 0, 0).await.expect("made").attributes;
    assert_eq!(volume.caller.led_by(two.inode), Some(two.inode), "others are led as before");
}

/// Each keep-alive would send another one, and take the slots of what keeps the session alive.
#[tokio::test(start_paused = true)]
async fn what_is_given_back_is_told_once_at_a_time() {
    let (cluster, (_first, volume), _second) = start().await;
    let partition = volume.partition_of(ROOT).await.expect("known");
    let session = volume.caller.session().await.expect("a session");
    for _ in 0..10 {
        volume.caller.give_back_delegation(&session, partition, 77);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(calls(&cluster, "EndDelegations"), 1);
    volume.caller.give_back_delegation(&session, partition, 77);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(calls(&cluster, "EndDelegations"), 2, "the next time it is told again");
}

/// Nothing would be answered any more below a directory whose remover was interrupted at the wrong moment.
#[tokio::test(start_paused = true)]
async fn a_removal_that_is_given_up_leaves_the_directory_led() {
    let (_cluster, (_first, volume), _second) = start().await;
    let top = make_top(&volume).await;
    make_file(&volume, top.inode, "before").await;
    let held = volume.caller.delegations().get(top.inode).expect("it is led");
    let mut removing = Box::pin(held.remove_top());
    assert!((&mut removing).now_or_never().is_none(), "all is stored first");
    tokio::time::sleep(Duration::from_secs(1)).await;
    drop(removing);
    let behind = tokio::time::timeout(Duration::from_secs(1), make_file(&volume, top.inode, "behind"));
    behind.await.expect("it goes on");
    assert_eq!(volume.caller.led_by(top.inode), Some(top.inode));
}

/// Queues in memory of this process.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<BTreeMap<u64, KeptQueue>>>);

type KeptQueue = (QueueName, BTreeMap<u64, Vec<u8>>, Vec<RangeInclusive<u64>>);

struct KeptLog(Kept, u64);

impl QueueMemory for Kept {
    fn begin(&self, of: QueueName) -> Option<Box<dyn QueueLog>> {
        self.0.lock().insert(of.number, (of, BTreeMap::new(), Vec::new()));
        Some(Box::new(KeptLog(self.clone(), of.number)))
    }
}

impl QueueLog for KeptLog {
    fn covers(&mut self, inodes: RangeInclusive<u64>) -> std::io::Result<()> {
        self.0.0.lock().get_mut(&self.1).expect("begun").2.push(inodes);
        Ok(())
    }
    fn push(&mut self, number: u64, item: &[u8]) -> std::io::Result<()> {
        let mut kept = self.0.0.lock();
        let items = &mut kept.get_mut(&self.1).expect("begun").1;
        assert!(items.last_key_value().is_none_or(|(last, _)| last + 1 == number), "item {number} behind a gap");
        items.insert(number, item.to_vec());
        Ok(())
    }
    fn stored(&mut self, next: u64) {
        self.0.0.lock().get_mut(&self.1).expect("begun").1.retain(|number, _| *number >= next);
    }
    fn end(&mut self) {
        self.0.0.lock().remove(&self.1);
    }
}

impl Kept {
    fn left(&self) -> Vec<LeftQueue> {
        let left = |(number, (of, items, covered)): (&u64, &KeptQueue)| LeftQueue {
            of: *of,
            covered: covered.clone(),
            is_given_up: false,
            first: *items.first_key_value().expect("something waits").0,
            items: items.values().cloned().collect(),
            log: Box::new(KeptLog(self.clone(), *number)),
        };
        self.0.lock().iter().map(left).collect()
    }
}

/// What programs that go on were told would be undone by the end of the process that told them; or be there twice.
#[tokio::test(start_paused = true)]
async fn what_a_dead_process_had_queued_is_stored_by_its_successor() {
    let (cluster, _leading, (_second, other)) = start().await;
    let servers = Arc::new(Dying { servers: cluster.fake.clone(), is_dead: AtomicBool::new(false) });
    let client = cluster.connect_through(servers.clone()).await;
    let volume = client.volume("default").await.expect("the volume").leading();
    let kept = Kept::default();
    volume.keep_queues_in(Arc::new(kept.clone()));
    let top = make_top(&volume).await;
    make_file(&volume, top.inode, "stored").await;
    volume.commit(top.inode).await.expect("stored");
    servers.is_dead.store(true, Ordering::Relaxed);
    for number in 0..200 {
        make_file(&volume, top.inode, &format!("f{number:03}")).await;
    }
    volume.unlink_at(top.inode, b"stored", b"stored").await.expect("removed");
    for number in 0..100 {
        let name = format!("f{number:03}");
        volume.unlink_at(top.inode, name.as_bytes(), name.as_bytes()).await.expect("removed");
    }
    let session = volume.session_number().await.expect("a session");
    let waiting = kept.left();
    assert_eq!((waiting.len(), waiting[0].items.len(), waiting[0].of.session), (1, 301, session));
    let (dead, began) = (other.dead_session(session, 1), Instant::now());
    tokio::select! {
        () = dead.store(waiting) => {}
        never = dead.renew() => match never {},
    }
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    let names = other.readdir(top.inode, b"", false).await.expect("listed, for it is led no longer").entries;
    let names: Vec<_> = names.into_iter().map(|entry| String::from_utf8_lossy(&entry.name).into_owned()).collect();
    let expected: Vec<_> = (100..200).map(|number| format!("f{number:03}")).collect();
    let sorted: std::collections::BTreeSet<_> = names.iter().cloned().collect();
    assert!(names.len() == 100 && sorted.into_iter().eq(expected), "{names:?}");
    assert!(kept.0.lock().is_empty(), "its place is free");
    other.end_session_of(session).await.expect("ended");
}
