//! How many calls operations cost.
use crate::*;
use cairn_vfs::{SetAttr, SetTime};
use std::collections::BTreeMap;
use std::task::{Context, Poll, Waker};

fn counts(cluster: &FakeCluster) -> BTreeMap<&'static str, u64> {
    let mut calls = cluster.take_calls();
    // Work in the background, at any time.
    for background in ["KeepAlive", "GetMap", "Release", "Seal", "Ping"] {
        calls.remove(background);
    }
    calls
}

/// A tree of small files would cost several round trips a file more than it has to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_file_is_three_calls_and_two_to_read() {
    let cluster = cluster();
    let vfs = still_mount(&cluster).await;
    let (_, first) = create(&vfs, "first", RDWR).await;
    write(&vfs, first, 0, b"opens the session and a chunk").await;
    close(&vfs, first).await;
    counts(&cluster);
    let (ino, handle) = create(&vfs, "small", WRONLY).await;
    write(&vfs, handle, 0, &[7; 4096]).await;
    close(&vfs, handle).await;
    assert_eq!(counts(&cluster), BTreeMap::from([("Create", 1), ("Append", 1), ("Publish", 1)]));
    let other = still_mount(&cluster).await;
    other.statfs(&[]).await.expect("connected");
    open(&other, ROOT + 1, RDONLY).await;
    counts(&cluster);
    let handle = open(&other, ino, RDONLY).await;
    assert_eq!(read(&other, handle, 0, 4096).await, [7; 4096]);
    assert_eq!(read(&other, handle, 4096, 4096).await, [0u8; 0]);
    close(&other, handle).await;
    assert_eq!(counts(&cluster), BTreeMap::from([("Open", 1), ("Read", 1)]));
}

/// Unpacking an archive would cost three more logged requests for each file. What was set has to be there when the file
/// is closed, synced, opened again or left alone; whatever may have been seen by others is told at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attributes_of_a_new_file_go_with_its_contents() {
    let cluster = cluster();
    let asks = VfsOptions { attr_ttl: Duration::ZERO, ..options() };
    let (vfs, other) = (mount(&cluster).await, mount_with(&cluster, Duration::from_secs(8), asks).await);
    let (_, first) = create(&vfs, "first", RDWR).await;
    write(&vfs, first, 0, b"opens the session and a chunk").await;
    close(&vfs, first).await;
    let (mtime, atime) = (SetTime::At(-5_000_000_001), SetTime::At(1_000_000_000_000_000_007));
    let seen = async |vfs: &Vfs, ino| {
        let attr = vfs.getattr(&root(), ino, None).await.expect("there").0;
        (attr.mode & 0o7777, attr.uid, attr.gid, attr.atime, attr.mtime, attr.size)
    };
    for (number, end) in ["closed", "synced", "opened", "alone", "empty", "listed"].into_iter().enumerate() {
        // As programs make it that give rights last.
        let made = vfs.create(&root(), ROOT, format!("f{number}").as_bytes(), 0o600, WRONLY).await.expect("created");
        let (ino, handle) = (made.0.attr.ino, made.1.handle);
        let size = if end == "empty" { 0 } else { 4096 };
        write(&vfs, handle, 0, &[7; 4096][..size]).await;
        counts(&cluster);
        let times = SetAttr { mtime: Some(mtime), atime: Some(atime), ..SetAttr::default() };
        // As a kernel asks.
        let owner = SetAttr { uid: Some(5), gid: Some(6), kill_privileges: true, ..SetAttr::default() };
        let mode = SetAttr { mode: Some(0o640), ..SetAttr::default() };
        for set in [times, owner, mode] {
            vfs.setattr(&root(), ino, Some(handle), set).await.expect("set");
        }
        let wanted = (0o640, 5, 6, 1_000_000_000_000_000_007, -5_000_000_001, size as u64);
        assert_eq!(seen(&vfs, ino).await, wanted, "{end}: at once here");
        assert!(counts(&cluster).keys().all(|call| *call == "Append"), "{end}: the servers were asked");
        match end {
            "synced" => vfs.fsync(handle, false).await.expect("synced"),
            "opened" => {
                let user = Caller { uid: 9, gid: 9, ..root() };
                let refused = vfs.open(&user, ino, RDONLY).await.expect_err("it is not his");
                assert_eq!(refused.errno, 13, "by the mode that was just set");
                close(&vfs, open(&vfs, ino, RDONLY).await).await;
                vfs.fsync(handle, false).await.expect("synced");
            }
            "alone" => {
                let mut waits = 0;
                while seen(&other, ino).await.0 != 0o640 {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    waits += 1;
                    assert!(waits < 300, "the others never learn of it");
                }
                vfs.fsync(handle, false).await.expect("synced");
            }
            "listed" => {
                // A call of somebody who looks at the names does not bring the old ones back.
                vfs.lookup(&root(), ROOT, format!("f{number}").as_bytes()).await.expect("there");
                assert_eq!(seen(&vfs, ino).await, wanted);
                vfs.syncfs().await.expect("synced");
            }
            _ => close(&vfs, handle).await,
        }
        if end == "closed" {
            let mut calls = counts(&cluster);
            // It may have been sent before.
            assert!(calls.remove("Append").is_none_or(|appends| appends == 1));
            assert_eq!(calls, BTreeMap::from([("PublishAttributes", 1)]));
        }
        assert_eq!(seen(&other, ino).await, wanted, "{end}: elsewhere");
        assert_eq!(seen(&vfs, ino).await, wanted, "{end}: here");
        if end == "synced" {
            // Now others have seen contents.
            counts(&cluster);
            let closed = SetAttr { mode: Some(0o600), ..SetAttr::default() };
            vfs.setattr(&root(), ino, Some(handle), closed).await.expect("set");
            assert_eq!(counts(&cluster).remove("Setattr"), Some(1));
        }
    }
    vfs.shutdown().await.expect("ended");
}

/// A program that waits for three round trips before it closes a file would wait for its bytes after them; or what it
/// writes then would be lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_are_on_their_way_when_attributes_are_set() {
    let cluster = cluster();
    let visible = VfsOptions { close_visible: true, ..options() };
    for options in [options(), visible] {
        let vfs = mount_with(&cluster, Duration::from_secs(8), options).await;
        close(&vfs, create(&vfs, "first", WRONLY).await.1).await;
        let (ino, handle) = create(&vfs, "f", WRONLY).await;
        write(&vfs, handle, 0, &[1; 5000]).await;
        counts(&cluster);
        let mode = SetAttr { mode: Some(0o755), ..SetAttr::default() };
        vfs.setattr(&root(), ino, Some(handle), mode).await.expect("set");
        let mut waits = 0;
        while counts(&cluster).remove("Append").is_none() {
            tokio::time::sleep(Duration::from_millis(10)).await;
            waits += 1;
            assert!(waits < 100, "nothing is sent before the close or the time after which all is");
        }
        write(&vfs, handle, 5000, &[2; 3000]).await;
        write(&vfs, handle, 4000, &[3; 10]).await;
        close(&vfs, handle).await;
        let model = [vec![1; 4000], vec![3; 10], vec![1; 990], vec![2; 3000]].concat();
        assert!(contents(&mount(&cluster).await, ino).await == model);
        vfs.unlink(&root(), ROOT, b"f").await.expect("removed");
        vfs.shutdown().await.expect("ended");
    }
}

/// A program that waits for files of another machine would be told for twice the time that they do not exist; a
/// directory of its own is no exception: others make files in it at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_exist_is_remembered_for_its_time() {
    let cluster = cluster();
    let short = VfsOptions { negative_ttl: Duration::from_millis(500), ..options() };
    let (vfs, other) = (mount_with(&cluster, Duration::from_secs(8), short).await, mount(&cluster).await);
    let dir = vfs.mkdir(&root(), ROOT, b"d", 0o777).await.expect("made").attr.ino;
    let made = other.create(&root(), dir, b"theirs", 0o644, WRONLY).await.expect("made").1;
    close(&other, made.handle).await;
    vfs.lookup(&root(), dir, b"theirs").await.expect("nobody asked for it before");
    let asked = std::time::Instant::now();
    assert_eq!(vfs.lookup(&root(), dir, b"late").await.expect_err("not there").errno, 2);
    let first = vfs.absent_for(&root(), dir, b"late");
    tokio::time::sleep(Duration::from_millis(20)).await;
    let left = vfs.absent_for(&root(), dir, b"late");
    assert!(first <= Duration::from_millis(500) && left < first, "{first:?} {left:?}");
    let made = other.create(&root(), dir, b"late", 0o644, WRONLY).await.expect("made").1;
    close(&other, made.handle).await;
    while vfs.lookup(&root(), dir, b"late").await.is_err() {
        assert!(asked.elapsed() < Duration::from_secs(60), "it is never found");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(vfs.absent_for(&root(), dir, b"late"), Duration::ZERO);
}

/// A user would set what only root or the owner may, or a program would not be told that it may not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_may_be_refused_is_asked_at_once() {
    let cluster = cluster();
    let vfs = still_mount(&cluster).await;
    let user = Caller { uid: 9, gid: 9, ..root() };
    vfs.setattr(&root(), ROOT, None, SetAttr { mode: Some(0o777), ..SetAttr::default() }).await.expect("set");
    let (entry, opened) = vfs.create(&user, ROOT, b"f", 0o644, WRONLY).await.expect("created");
    let (ino, handle) = (entry.attr.ino, Some(opened.handle));
    write(&vfs, opened.handle, 0, b"x").await;
    counts(&cluster);
    vfs.setattr(&user, ino, handle, SetAttr { mode: Some(0o755), ..SetAttr::default() }).await.expect("his own");
    assert_eq!(counts(&cluster).get("Setattr"), None);
    let other = Caller { uid: 10, gid: 10, ..root() };
    for (who, set) in [
        (&user, SetAttr { uid: Some(10), ..SetAttr::default() }),
        (&user, SetAttr { gid: Some(10), ..SetAttr::default() }),
        (&other, SetAttr { mode: Some(0o777), ..SetAttr::default() }),
        (&other, SetAttr { mtime: Some(SetTime::At(1)), ..SetAttr::default() }),
    ] {
        let refused = vfs.setattr(who, ino, handle, set).await.expect_err("not allowed");
        assert_eq!(refused.errno, 1, "{set:?}");
    }
    // Root's change comes after the user's, which waits, and after what he wrote, which would take the bit away.
    vfs.setattr(&root(), ino, handle, SetAttr { mode: Some(0o4755), ..SetAttr::default() }).await.expect("set");
    close(&vfs, opened.handle).await;
    assert_eq!(still_mount(&cluster).await.getattr(&root(), ino, None).await.expect("there").0.mode & 0o7777, 0o4755);
}

/// The kernel asks for the capability of each file that is written, which nearly no file has: a round trip for each
/// small file; or one that was set would not be seen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_files_have_no_capability() {
    const NAME: &[u8] = b"security.capability";
    let cluster = cluster();
    let vfs = still_mount(&cluster).await;
    let (ino, handle) = create(&vfs, "small", WRONLY).await;
    counts(&cluster);
    for _ in 0..2 {
        assert_eq!(vfs.getxattr(&root(), ino, NAME).await.map_err(|error| error.errno), Err(61));
    }
    assert_eq!(counts(&cluster), BTreeMap::new());
    vfs.setxattr(&root(), ino, NAME, b"x", 0).await.expect("set");
    assert_eq!(vfs.getxattr(&root(), ino, NAME).await.expect("there"), b"x");
    vfs.removexattr(&root(), ino, NAME).await.expect("removed");
    counts(&cluster);
    for _ in 0..2 {
        assert_eq!(vfs.getxattr(&root(), ino, NAME).await.map_err(|error| error.errno), Err(61));
    }
    assert_eq!(counts(&cluster), BTreeMap::from([("GetXattr", 1)]), "asked once");
    close(&vfs, handle).await;
    // A file that is there already may have one.
    let (ino, handle) = create(&vfs, "other", WRONLY).await;
    close(&vfs, handle).await;
    vfs.setxattr(&root(), ino, NAME, b"y", 0).await.expect("set");
    let other = mount(&cluster).await;
    let (same, handle) = create(&other, "other", WRONLY).await;
    assert_eq!((same, other.getxattr(&root(), ino, NAME).await.expect("there")), (ino, b"y".to_vec()));
    close(&other, handle).await;
}

/// Before each file that it makes the kernel looks at the directory, which has just changed: a round trip for each
/// file; or programs would not see that it changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directories_are_known_while_files_are_made_in_them() {
    let cluster = cluster();
    let vfs = still_mount(&cluster).await;
    let mut handles = vec![create(&vfs, "first", WRONLY).await.1];
    vfs.getattr(&root(), ROOT, None).await.expect("asked");
    counts(&cluster);
    for number in 0..10 {
        handles.push(create(&vfs, &format!("f{number}"), WRONLY).await.1);
        let (known, _) = vfs.getattr(&root(), ROOT, None).await.expect("known");
        let other = mount(&cluster).await;
        let (now, _) = other.getattr(&root(), ROOT, None).await.expect("asked");
        assert_eq!(known, now, "it is as others see it");
    }
    assert_eq!(counts(&cluster).remove("Getattr"), Some(10), "by the others");
    // One that is there was made by somebody else, at another time.
    let (known, _) = vfs.getattr(&root(), ROOT, None).await.expect("known");
    handles.push(create(&vfs, "f3", WRONLY).await.1);
    assert_eq!(vfs.getattr(&root(), ROOT, None).await.expect("known").0, known);
    for handle in handles {
        close(&vfs, handle).await;
    }
    vfs.unlink(&root(), ROOT, b"f3").await.expect("removed");
    let other = mount(&cluster).await;
    let known = vfs.getattr(&root(), ROOT, None).await.expect("asked").0;
    assert_eq!(known, other.getattr(&root(), ROOT, None).await.expect("asked").0);
}

/// Whoever removes many files would wait for a look at the directory before each of them, or see it as it was before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_is_known_after_something_was_made_removed_or_moved_in_it() {
    let cluster = cluster();
    let asks = VfsOptions { attr_ttl: Duration::ZERO, ..options() };
    let vfs = still_mount(&cluster).await;
    let other = mount_with(&cluster, Duration::from_secs(8), asks).await;
    for number in 0..10 {
        close(&vfs, create(&vfs, &format!("f{number}"), WRONLY).await.1).await;
    }
    vfs.getattr(&root(), ROOT, None).await.expect("asked");
    counts(&cluster);
    for number in 0..10 {
        let (name, other_name) = (format!("f{number}"), format!("g{number}"));
        let asked = match number % 5 {
            0 | 1 => vfs.unlink(&root(), ROOT, name.as_bytes()).await.map(|()| None),
            2 => vfs.mkdir(&root(), ROOT, other_name.as_bytes(), 0o755).await.map(|_| None),
            3 => vfs.rmdir(&root(), ROOT, format!("g{}", number - 1).as_bytes()).await.map(|()| None),
            _ => vfs.rename(&root(), (ROOT, name.as_bytes()), (ROOT, other_name.as_bytes()), 0).await.map(|()| Some(1)),
        };
        let asked = asked.expect("done");
        let (known, _) = vfs.getattr(&root(), ROOT, None).await.expect("known");
        assert_eq!(counts(&cluster).remove("Getattr"), asked, "{number}: only after a rename, and once");
        assert_eq!(known, other.getattr(&root(), ROOT, None).await.expect("asked").0, "it is as others see it");
        counts(&cluster);
    }
    // Nobody looked at it since.
    close(&vfs, create(&vfs, "g", WRONLY).await.1).await;
    vfs.unlink(&root(), ROOT, b"g").await.expect("removed");
    vfs.mkdir(&root(), ROOT, b"d", 0o755).await.expect("made");
    vfs.rmdir(&root(), ROOT, b"d").await.expect("removed");
    assert!(counts(&cluster).remove("Getattr").is_none_or(|asked| asked == 1));
}

/// Pages that are read at random would cost more than one request each, or bring megabytes along.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_random_page_is_one_read() {
    let cluster = cluster();
    let vfs = still_mount(&cluster).await;
    let (ino, handle) = create(&vfs, "f", RDWR).await;
    let data: Vec<u8> = (0..3_000_000u32).map(|i| (i / 4096) as u8).collect();
    for (i, part) in data.chunks(1 << 20).enumerate() {
        write(&vfs, handle, (i << 20) as u64, part).await;
    }
    close(&vfs, handle).await;
    let other = still_mount(&cluster).await;
    let handle = open(&other, ino, RDONLY).await;
    counts(&cluster);
    for page in [500u64, 3, 77, 600, 12] {
        assert_eq!(read(&other, handle, page * 4096, 4096).await, vec![page as u8; 4096]);
    }
    assert_eq!(counts(&cluster), BTreeMap::from([("Read", 5)]));
    assert_eq!(other.status().read_ahead_bytes, 0);
    close(&other, handle).await;
}

/// Scattered overwrites that cannot go in place would cost a request and a sync each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scattered_writes_go_out_as_vectors() {
    let cluster = cluster();
    let vfs = still_mount(&cluster).await;
    let (ino, handle) = create(&vfs, "f", RDWR).await;
    write(&vfs, handle, 0, &vec![1; 4 << 20]).await;
    vfs.fsync(handle, false).await.expect("synced");
    cluster.saturate(true);
    counts(&cluster);
    for page in 0..400u64 {
        write(&vfs, handle, page * 2 * 4096, &[2; 4096]).await;
    }
    vfs.fsync(handle, false).await.expect("synced");
    let calls = counts(&cluster);
    assert!(calls["Append"] <= 4 && calls["Publish"] == 1 && calls.get("Sync").is_none_or(|n| *n <= 2), "{calls:?}");
    let other = still_mount(&cluster).await;
    let all = contents(&other, ino).await;
    let expected = |at: usize| if (at / 4096).is_multiple_of(2) && at / 8192 < 400 { 2 } else { 1 };
    assert!(all.len() == 4 << 20 && all.iter().enumerate().all(|(at, byte)| *byte == expected(at)));
    close(&vfs, handle).await;
}

/// Whoever reads a file from front to end would wait for each request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sequential_reads_are_read_ahead() {
    let cluster = cluster();
    let vfs = mount(&cluster).await;
    let (ino, handle) = create(&vfs, "f", RDWR).await;
    let data: Vec<u8> = (0..12_000_000u32).map(|i| (i / 1000) as u8).collect();
    for (i, part) in data.chunks(1 << 20).enumerate() {
        write(&vfs, handle, (i << 20) as u64, part).await;
    }
    close(&vfs, handle).await;
    let other = mount(&cluster).await;
    let handle = open(&other, ino, RDONLY).await;
    let (mut at, mut most) = (0, 0);
    while at < data.len() {
        let part = read(&other, handle, at as u64, 131_072).await;
        assert!(part == data[at..at + part.len()], "at {at}");
        at += part.len();
        most = most.max(other.status().read_ahead_bytes);
    }
    assert!(most >= 4 << 20, "{most}");
    close(&other, handle).await;
    // What was asked for ahead and is still on its way is given back when it comes.
    for _ in 0..500 {
        if other.status().memory_bytes == 0 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("{} bytes are kept for a file that nobody has open", other.status().memory_bytes);
}

/// The kernel would read everything again at each open, or show old pages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_are_kept_while_nobody_else_writes() {
    let cluster = cluster();
    let (one, two) = (mount(&cluster).await, mount(&cluster).await);
    let (ino, handle) = create(&one, "f", RDWR).await;
    write(&one, handle, 0, b"own writes are in the pages").await;
    close(&one, handle).await;
    let again = one.open(&root(), ino, RDONLY).await.expect("opened");
    assert!(again.keep_cache);
    close(&one, again.handle).await;
    let handle = open(&two, ino, RDWR).await;
    write(&two, handle, 3, b"another").await;
    close(&two, handle).await;
    let again = one.open(&root(), ino, RDONLY).await.expect("opened");
    assert!(!again.keep_cache, "somebody else wrote");
    assert_eq!(read(&one, again.handle, 0, 12).await, b"ownanother a");
    let once_more = one.open(&root(), ino, RDONLY).await.expect("opened");
    assert!(once_more.keep_cache);
    close(&one, again.handle).await;
    close(&one, once_more.handle).await;
}

/// Each new file would cost a second logged request when it is closed, or stay held for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_files_are_let_go_of_together() {
    const FILES: usize = 60;
    let cluster = cluster();
    let vfs = mount(&cluster).await;
    let mut inodes = Vec::new();
    for i in 0..FILES {
        let (ino, handle) = create(&vfs, &format!("f{i}"), RDWR).await;
        close(&vfs, handle).await;
        inodes.push(ino);
    }
    let again = open(&vfs, inodes[7], RDWR).await;
    let mut releases = 0;
    let mut calls = BTreeMap::new();
    for _ in 0..60 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        calls.append(&mut cluster.take_calls());
        releases += calls.remove("Release").unwrap_or(0);
    }
    assert!((1..20).contains(&releases), "{releases}");
    assert!(!calls.contains_key("Hold"), "the hold of the create serves an open that follows");
    write(&vfs, again, 0, b"still held").await;
    close(&vfs, again).await;
    assert_eq!(contents(&vfs, inodes[7]).await, b"still held");
    vfs.shutdown().await.expect("ended");
    cluster.check_namespace();
}

/// Each close of a file of which nothing is to be stored would wake another thread.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settled_file_is_closed_at_once() {
    let cluster = cluster();
    let vfs = still_mount(&cluster).await;
    for dirty in [false, true] {
        let (_, handle) = create(&vfs, &format!("f{dirty}"), RDWR).await;
        if dirty {
            write(&vfs, handle, 0, b"stored before").await;
        }
        vfs.flush(handle, 0).await.expect("flushed");
        let mut release = std::pin::pin!(vfs.release(handle, None));
        let polled = release.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(polled, Poll::Ready(Ok(()))), "{polled:?}");
        assert_eq!(vfs.status().handles, 0);
    }
}

/// A program that is killed while it removes something would leave a slot of the session that nobody uses again, or
/// half of what it did.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_goes_on_when_nobody_waits_for_it() {
    let cluster = cluster();
    let (vfs, other) = (mount(&cluster).await, mount(&cluster).await);
    for i in 0..20 {
        let name = format!("f{i}");
        let (_, handle) = create(&vfs, &name, RDWR).await;
        close(&vfs, handle).await;
        let caller = root();
        let looked = tokio::select! {
            biased;
            removed = vfs.unlink(&caller, ROOT, name.as_bytes()) => removed.is_ok(),
            () = std::future::ready(()) => false,
        };
        let gone = async {
            while other.lookup(&caller, ROOT, name.as_bytes()).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), gone).await.unwrap_or_else(|_| panic!("{name}, {looked}"));
    }
    cluster.check_namespace();
}
