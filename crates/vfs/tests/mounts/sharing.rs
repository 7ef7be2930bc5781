//! Several mounts and handles on one file.
use crate::*;
use cairn_vfs::{Lock, LockKind, LockRange, SetAttr, SetTime};

/// Blocks of one mount would be lost under those of another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn different_blocks_of_two_mounts_survive() {
    let cluster = cluster();
    let mounts = [mount(&cluster).await, mount(&cluster).await];
    let (ino, first) = create(&mounts[0], "f", RDWR).await;
    write(&mounts[0], first, 0, &vec![9; 64 * 4096]).await;
    vfs_sync(&mounts[0], first).await;
    let second = open(&mounts[1], ino, RDWR).await;
    for block in 0..64u64 {
        let (vfs, handle) = if block % 2 == 0 { (&mounts[0], first) } else { (&mounts[1], second) };
        write(vfs, handle, block * 4096, &[block as u8; 4096]).await;
        if block % 16 > 13 {
            vfs_sync(vfs, handle).await;
        }
    }
    close(&mounts[0], first).await;
    close(&mounts[1], second).await;
    for vfs in &mounts {
        let all = contents(vfs, ino).await;
        assert!(all.len() == 64 * 4096 && all.iter().enumerate().all(|(at, byte)| *byte as usize == at / 4096));
    }
}

async fn vfs_sync(vfs: &Vfs, handle: Handle) {
    vfs.fsync(handle, false).await.expect("synced");
}

/// A temporary file that is removed while it is used would be gone, or live for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_file_lives_as_long_as_it_is_open() {
    let cluster = cluster();
    let vfs = mount(&cluster).await;
    let (ino, handle) = create(&vfs, "f", RDWR).await;
    write(&vfs, handle, 0, b"before").await;
    vfs.unlink(&root(), ROOT, b"f").await.expect("removed");
    assert_eq!(vfs.lookup(&root(), ROOT, b"f").await.expect_err("gone").errno, libc::ENOENT);
    write(&vfs, handle, 6, b" and after").await;
    vfs_sync(&vfs, handle).await;
    assert_eq!(read(&vfs, handle, 0, 100).await, b"before and after");
    let (attr, _) = vfs.getattr(&root(), ino, Some(handle)).await.expect("attributes");
    assert_eq!((attr.nlink, attr.size), (0, 16));
    close(&vfs, handle).await;
    vfs.shutdown().await.expect("ended");
    cluster.check_namespace();
}

/// A file that is replaced by rename would take its open handles' data with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renaming_over_an_open_file_leaves_its_handle() {
    let cluster = cluster();
    let vfs = mount(&cluster).await;
    let (_, old) = create(&vfs, "f", RDWR).await;
    write(&vfs, old, 0, b"old").await;
    let (new_ino, new) = create(&vfs, "new", RDWR).await;
    write(&vfs, new, 0, b"new").await;
    close(&vfs, new).await;
    vfs.rename(&root(), (ROOT, b"new"), (ROOT, b"f"), 0).await.expect("renamed");
    assert_eq!(vfs.lookup(&root(), ROOT, b"f").await.expect("there").attr.ino, new_ino);
    assert_eq!(read(&vfs, old, 0, 10).await, b"old");
    close(&vfs, old).await;
    assert_eq!(contents(&vfs, new_ino).await, b"new");
}

/// Copies that keep times would have the time of their last write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_time_that_was_set_survives_the_publish() {
    let cluster = cluster();
    let vfs = mount(&cluster).await;
    let (ino, handle) = create(&vfs, "f", RDWR).await;
    write(&vfs, handle, 0, b"contents").await;
    let long_ago = 1_000_000_000_123_456_789;
    let set = SetAttr { mtime: Some(SetTime::At(long_ago)), ..Default::default() };
    vfs.setattr(&root(), ino, Some(handle), set).await.expect("set");
    close(&vfs, handle).await;
    let found = mount(&cluster).await.lookup(&root(), ROOT, b"f").await.expect("there");
    assert_eq!((found.attr.mtime, found.attr.size), (long_ago, 8));
}

/// A kernel drops its pages some time after it was told to, if it gets to hear of it: whoever opens the file before
/// that would read what was there before others closed it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_drops_pages_although_the_kernel_was_told_to() {
    let cluster = cluster();
    let asks = VfsOptions { attr_ttl: std::time::Duration::ZERO, ..options() };
    let (one, two) = (mount_with(&cluster, std::time::Duration::from_secs(8), asks).await, mount(&cluster).await);
    let (ino, kept) = create(&one, "f", RDWR).await;
    write(&one, kept, 0, b"of before").await;
    close(&one, open(&one, ino, RDONLY).await).await;
    let handle = open(&two, ino, RDWR).await;
    write(&two, handle, 0, b"another one").await;
    close(&two, handle).await;
    // Noticed here, by whatever asks, and told.
    let mut told = one.invalidations().expect("nobody listens yet");
    one.getattr(&root(), ino, Some(kept)).await.expect("asked");
    read(&one, kept, 0, 100).await;
    while !matches!(told.try_recv(), Ok(cairn_vfs::Invalidation::Inode { ino: about, .. }) if about == ino) {
        tokio::task::yield_now().await;
    }
    let opened = one.open(&root(), ino, RDONLY).await.expect("opened");
    assert!(!opened.keep_cache, "nobody knows whether they are gone");
    close(&one, opened.handle).await;
    let again = one.open(&root(), ino, RDONLY).await.expect("opened");
    assert!(again.keep_cache, "nothing has changed since");
    close(&one, again.handle).await;
    close(&one, kept).await;
}

/// Programs on two machines would both believe that they alone have the file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_hold_between_mounts_and_carry_data() {
    let cluster = cluster();
    let (one, two) = (mount(&cluster).await, mount(&cluster).await);
    let (ino, first) = create(&one, "f", RDWR).await;
    let second = open(&two, ino, RDWR).await;
    let whole = |kind| Lock { kind, range: LockRange::ALL, pid: 5 };
    one.setlk(first, 1, whole(LockKind::Write), None).await.expect("granted");
    let refused = two.setlk(second, 1, whole(LockKind::Read), None).await.expect_err("locked");
    assert_eq!(refused.errno, libc::EAGAIN);
    assert_eq!(
        two.getlk(second, 1, whole(LockKind::Read)).await.expect("asked").map(|l| l.kind),
        Some(LockKind::Write)
    );
    write(&one, first, 0, b"under the lock").await;
    one.setlk(first, 1, whole(LockKind::Unlock), None).await.expect("given back");
    two.setlk(second, 1, whole(LockKind::Read), None).await.expect("free now");
    assert_eq!(read(&two, second, 0, 100).await, b"under the lock");
    close(&two, second).await;
    one.flock(first, 9, LockKind::Write, None).await.expect("another kind");
    close(&one, first).await;
}

/// A lock of an open file description (F_OFD_SETLK), of which no flush tells, would keep everybody out after its file
/// is closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_end_with_the_handle_that_took_them() {
    let cluster = cluster();
    let (one, two) = (mount(&cluster).await, mount(&cluster).await);
    let (ino, first) = create(&one, "f", RDWR).await;
    let again = open(&one, ino, RDWR).await;
    let second = open(&two, ino, RDWR).await;
    let part = |start| Lock { kind: LockKind::Write, range: LockRange { start, end: start + 9 }, pid: 5 };
    one.setlk(first, 77, part(0), None).await.expect("granted");
    one.setlk(again, 78, part(10), None).await.expect("granted");
    one.flush(first, 1).await.expect("a copy of the descriptor is closed");
    assert_eq!(two.setlk(second, 1, part(0), None).await.expect_err("locked").errno, libc::EAGAIN);
    one.flush(first, 1).await.expect("the last one is");
    one.unlock_handle(first).await.expect("given back");
    one.release(first, None).await.expect("released");
    two.setlk(second, 1, part(0), None).await.expect("free now");
    let kept = two.setlk(second, 1, part(10), None).await.expect_err("the other handle's");
    assert_eq!(kept.errno, libc::EAGAIN);
    one.unlock_handle(again).await.expect("given back");
    two.setlk(second, 1, part(10), None).await.expect("free now");
    close(&one, again).await;
    close(&two, second).await;
}

/// A process would lose the lock that it has through one descriptor when another one, which it closed before and a
/// child kept, is closed at last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_close_leaves_the_locks_of_another_handle() {
    let cluster = cluster();
    let (one, two) = (mount(&cluster).await, mount(&cluster).await);
    let (ino, first) = create(&one, "f", RDWR).await;
    let again = open(&one, ino, RDWR).await;
    let second = open(&two, ino, RDWR).await;
    let whole = Lock { kind: LockKind::Write, range: LockRange::ALL, pid: 5 };
    for flushes in [true, false] {
        one.setlk(first, 7, whole, None).await.expect("granted");
        if flushes {
            one.flush(first, 7).await.expect("the parent's descriptor is closed");
        }
        one.setlk(again, 7, whole, None).await.expect("granted");
        one.unlock_handle(first).await.expect("the child's is");
        let kept = two.setlk(second, 7, whole, None).await.expect_err("the parent has it");
        assert_eq!(kept.errno, libc::EAGAIN, "flushed before: {flushes}");
        one.flush(again, 7).await.expect("the other one is closed");
    }
    two.setlk(second, 7, whole, None).await.expect("free now");
    close(&one, first).await;
    close(&one, again).await;
    close(&two, second).await;
}

/// Files without a name could not be given one, or would stay after a crash.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_without_a_name_gets_one() {
    let cluster = cluster();
    let vfs = mount(&cluster).await;
    let (entry, opened) = vfs.tmpfile(&root(), ROOT, 0o600, RDWR).await.expect("made");
    write(&vfs, opened.handle, 0, b"hidden").await;
    vfs.link(&root(), entry.attr.ino, ROOT, b"seen").await.expect("linked");
    close(&vfs, opened.handle).await;
    assert_eq!(contents(&mount(&cluster).await, entry.attr.ino).await, b"hidden");
}

/// Whoever looks at a file just as it is closed would be told an old size, and the kernel would cut its pages there:
/// they then have zeros where the file has bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_old_size_is_told_while_a_file_is_closed() {
    let cluster = cluster();
    let vfs = mount(&cluster).await;
    let (ino, mut handle) = create(&vfs, "f", RDWR).await;
    for round in 0..60 {
        let cut = cairn_vfs::SetAttr { size: Some(5000), ..Default::default() };
        vfs.setattr(&root(), ino, Some(handle), cut).await.expect("cut");
        assert_eq!(vfs.status().cached_attributes, 0, "round {round}: it changes without anybody asking");
        write(&vfs, handle, 3000, &[round; 6000]).await;
        vfs.flush(handle, 0).await.expect("flushed");
        let looks = tokio::spawn({
            let vfs = vfs.clone();
            async move {
                for _ in 0..10 {
                    let (attr, _) = vfs.getattr(&root(), ino, None).await.expect("looked at");
                    assert_eq!(attr.size, 9000);
                    let entry = vfs.lookup(&root(), ROOT, b"f").await.expect("looked up");
                    assert_eq!(entry.attr.size, 9000);
                }
            }
        });
        vfs.release(handle, None).await.expect("released");
        looks.await.expect("never less");
        handle = open(&vfs, ino, RDWR).await;
    }
    close(&vfs, handle).await;
}

/// A program would open a file that another machine had just replaced, read what was there before and append to what
/// nobody sees any more; or could not open again what it has open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_lost_its_name_is_looked_up_again() {
    let cluster = cluster();
    let ttl = Duration::from_secs(3600);
    let long = VfsOptions { attr_ttl: ttl, entry_ttl: ttl, ..options() };
    let (vfs, other) = (mount_with(&cluster, Duration::from_secs(8), long).await, mount(&cluster).await);
    for (name, maker, reads) in [("lingers", &vfs, false), ("read", &other, true), ("unknown", &other, false)] {
        let (_, made) = create(maker, name, WRONLY).await;
        write(maker, made, 0, b"old").await;
        close(maker, made).await;
        let ino = vfs.lookup(&root(), ROOT, name.as_bytes()).await.expect("there").attr.ino;
        let has = if reads { Some(open(&vfs, ino, RDONLY).await) } else { None };
        let (new, made) = create(&other, "new", WRONLY).await;
        write(&other, made, 0, b"newer").await;
        close(&other, made).await;
        other.rename(&root(), (ROOT, b"new"), (ROOT, name.as_bytes()), 0).await.expect("replaced");
        let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        let set = vfs.setattr(&root(), ino, None, set).await.map(|_| ()).map_err(|error| error.errno);
        assert_eq!(set, if reads { Ok(()) } else { Err(libc::ESTALE) }, "{name}");
        let refused = vfs.open(&root(), ino, RDONLY).await.map(|_| ()).map_err(|error| error.errno);
        assert_eq!(refused, Err(libc::ESTALE), "{name}");
        // As a kernel's front does.
        vfs.is_gone(ino);
        assert_eq!(vfs.lookup(&root(), ROOT, name.as_bytes()).await.expect("there").attr.ino, new, "{name}");
        if let Some(has) = has {
            assert_eq!(read(&vfs, has, 0, 10).await, b"old", "it is open");
            assert_eq!(contents(&vfs, ino).await, b"old", "he comes again, so it is meant");
            close(&vfs, has).await;
        }
    }
    // Directories.
    let dir = other.mkdir(&root(), ROOT, b"d", 0o777).await.expect("made").attr.ino;
    assert_eq!(vfs.lookup(&root(), ROOT, b"d").await.expect("there").attr.ino, dir);
    other.rmdir(&root(), ROOT, b"d").await.expect("removed");
    let errnos = [
        vfs.create(&root(), dir, b"f", 0o644, WRONLY).await.map(|_| ()),
        vfs.mkdir(&root(), dir, b"f", 0o755).await.map(|_| ()),
        vfs.lookup(&root(), dir, b"f").await.map(|_| ()),
        vfs.unlink(&root(), dir, b"f").await,
        vfs.rename(&root(), (ROOT, b"read"), (dir, b"f"), 0).await,
    ]
    .map(|outcome| outcome.map_err(|error| error.errno));
    assert_eq!(errnos, [Err(libc::ESTALE); 5]);
    assert_eq!(vfs.unlink(&root(), ROOT, b"nothing").await.map_err(|error| error.errno), Err(libc::ENOENT));
}

/// A program whose wait for a lock was interrupted, or that was killed, would keep everybody out with a lock that it
/// does not know of.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn whoever_gave_up_waiting_has_no_lock() {
    let cluster = cluster();
    let (one, two) = (mount(&cluster).await, mount(&cluster).await);
    let (ino, first) = create(&one, "f", RDWR).await;
    let second = open(&two, ino, RDWR).await;
    let whole = |kind| Lock { kind, range: LockRange::ALL, pid: 5 };
    let (mut interrupted, mut granted, begun) = (0, 0, std::time::Instant::now());
    for number in 0..200 {
        one.setlk(first, 1, whole(LockKind::Write), None).await.expect("free");
        let (signal, wait) = tokio::sync::oneshot::channel();
        let waiter = two.clone();
        let waiting = tokio::spawn(async move { waiter.setlk(second, 2, whole(LockKind::Write), Some(wait)).await });
        let unlocker = one.clone();
        let mut unlocked = tokio::spawn(async move { unlocker.setlk(first, 1, whole(LockKind::Unlock), None).await });
        // At all moments of the question that comes when the lock is free.
        for _ in 0..number % 50 * 20 {
            tokio::task::yield_now().await;
        }
        if number % 2 == 0 {
            let _may_be_granted = signal.send(());
            let outcome = waiting.await.expect("ended").map_err(|error| error.errno);
            (&mut unlocked).await.expect("ended").expect("unlocked");
            match outcome {
                Err(libc::EINTR) => interrupted += 1,
                outcome => {
                    outcome.expect("granted");
                    granted += 1;
                    two.setlk(second, 2, whole(LockKind::Unlock), None).await.expect("unlocked");
                }
            }
        } else {
            waiting.abort();
            let _aborted = waiting.await;
            // Its descriptors are closed, and that is interrupted, too.
            let interrupt = async {
                for _ in 0..number % 9 {
                    tokio::task::yield_now().await;
                }
            };
            tokio::select! {
                biased;
                closed = two.flush(second, 2) => closed.expect("closed"),
                () = interrupt => {}
            }
            unlocked.await.expect("ended").expect("unlocked");
            while one.setlk(first, 1, whole(LockKind::Write), None).await.is_err() {
                assert!(begun.elapsed() < Duration::from_secs(60), "it is never free again");
                tokio::task::yield_now().await;
            }
        }
    }
    assert!(interrupted > 0, "none was interrupted, {granted} granted");
    close(&one, first).await;
    close(&two, second).await;
}
