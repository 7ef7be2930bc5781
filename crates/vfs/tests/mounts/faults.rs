//! Servers that vanish, sessions that end, memory that runs short.
use crate::*;
use std::time::Instant;

/// Somebody would believe data safe that is not, or lose it although the cluster came back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_write_is_reported_and_kept() {
    let cluster = cluster();
    let quick =
        VfsOptions { write_after: Duration::from_millis(50), publish_after: Duration::from_millis(50), ..options() };
    let vfs = mount_with(&cluster, Duration::from_millis(1500), quick).await;
    let (ino, handle) = create(&vfs, "f", RDWR).await;
    write(&vfs, handle, 0, b"safe").await;
    vfs.fsync(handle, false).await.expect("synced");
    (1..=5).for_each(|disk| cluster.stop(disk));
    write(&vfs, handle, 4, b" and not yet").await;
    let failed = async {
        while vfs.status().write_errors == 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(15), failed).await.expect("a failure in the background");
    let error = vfs.fsync(handle, false).await.expect_err("it is not durable");
    assert_eq!(error.errno, libc::EIO, "{error}");
    assert!(vfs.write(handle, 16, Bytes::from_static(b"x")).await.is_err(), "no more is taken meanwhile");
    assert_eq!(vfs.getattr(&root(), ino, Some(handle)).await.expect("known").0.size, 16);
    assert!(vfs.status().dirty_bytes > 0 || vfs.status().writing_bytes > 0, "nothing was dropped: {:?}", vfs.status());
}

/// A call would hang for ever when nobody answers any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_takes_longer_than_its_limit() {
    let cluster = cluster();
    let limit = VfsOptions { timeout: Duration::from_secs(2), memory_max: 1 << 20, ..options() };
    let vfs = mount_with(&cluster, Duration::from_secs(60), limit).await;
    let (ino, handle) = create(&vfs, "f", RDWR).await;
    write(&vfs, handle, 0, &[1; 100_000]).await;
    vfs.fsync(handle, false).await.expect("synced");
    (1..=5).for_each(|disk| cluster.stop(disk));
    let begun = Instant::now();
    let reader = open(&vfs, ino, RDONLY).await;
    assert!(vfs.read(reader, 0, 4096).await.is_err());
    write(&vfs, handle, 0, &[2; 1 << 20]).await;
    assert!(vfs.write(handle, 1 << 20, Bytes::from(vec![3; 1 << 20])).await.is_err(), "there is no memory for it");
    assert!(vfs.fsync(handle, false).await.is_err());
    assert!(vfs.release(handle, None).await.is_err());
    assert!(begun.elapsed() < Duration::from_secs(20), "four calls of 2 s: {:?}", begun.elapsed());
}

/// What was written before the session was lost would be lost with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_survives_the_end_of_the_session() {
    let cluster = cluster();
    let vfs = mount(&cluster).await;
    let (ino, handle) = create(&vfs, "f", RDWR).await;
    write(&vfs, handle, 0, &vec![1; 300_000]).await;
    vfs.fsync(handle, false).await.expect("synced");
    write(&vfs, handle, 100, b"written under the old session").await;
    assert!(cluster.expire_sessions() > 0);
    vfs.fsync(handle, false).await.expect("written again under another one");
    let lost = async {
        while vfs.status().sessions_lost == 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), lost).await.expect("noticed");
    write(&vfs, handle, 300_000, b"new").await;
    close(&vfs, handle).await;
    let all = contents(&mount(&cluster).await, ino).await;
    assert!(all.len() == 300_003 && &all[100..129] == b"written under the old session" && all.ends_with(b"new"));
}

/// A mount that writes faster than the cluster stores would take all memory of its machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_stays_within_its_limit() {
    const LIMIT: usize = 6 << 20;
    let cluster = cluster();
    let vfs = mount_with(&cluster, Duration::from_secs(8), VfsOptions { memory_max: LIMIT, ..options() }).await;
    let mut writers = Vec::new();
    for file in 0..4u8 {
        let vfs = vfs.clone();
        writers.push(tokio::spawn(async move {
            let (ino, handle) = create(&vfs, &format!("f{file}"), RDWR).await;
            for i in 0..20u64 {
                write(&vfs, handle, i * 700_000, &vec![file + i as u8; 700_000]).await;
                assert!(vfs.status().memory_bytes <= LIMIT as u64);
            }
            close(&vfs, handle).await;
            ino
        }));
    }
    for (file, writer) in (0u8..).zip(writers) {
        let ino = writer.await.expect("written");
        let all = contents(&vfs, ino).await;
        assert!(
            all.len() == 14_000_000 && all.iter().enumerate().all(|(at, byte)| *byte == file + (at / 700_000) as u8)
        );
    }
    assert_eq!(vfs.status().write_errors, 0);
}

/// The mount's process could not be replaced under running programs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_process_takes_the_handles_over() {
    let cluster = cluster();
    let old = mount(&cluster).await;
    let (ino, handle) = create(&old, "f", RDWR).await;
    write(&old, handle, 0, b"from the old one").await;
    let dir = old.opendir(&root(), ROOT, 0).await.expect("opened").handle;
    old.sync_all().await.expect("synced");
    let state = old.open_state();
    old.shutdown().await.expect("ended");
    let new = mount(&cluster).await;
    assert_eq!(new.restore(state.clone()).await, Vec::<u64>::new());
    assert_eq!(new.open_state().len(), 2);
    assert_eq!(read(&new, handle, 0, 100).await, b"from the old one");
    write(&new, handle, 9, b"new").await;
    close(&new, handle).await;
    new.releasedir(dir).await.expect("closed");
    assert_eq!(contents(&new, ino).await, b"from the new one");
    let (_, fresh) = create(&new, "g", RDWR).await;
    assert!(state.iter().all(|state| state.handle < fresh.0), "numbers are not given twice");
}

/// Interrupted programs would leave files open that nobody can close.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_that_nobody_waits_for_is_undone() {
    let cluster = cluster();
    let vfs = mount(&cluster).await;
    let (ino, handle) = create(&vfs, "f", RDWR).await;
    close(&vfs, handle).await;
    let mut dropped: u32 = 0;
    for i in 0..30u32 {
        let name = format!("new{i}");
        let caller = root();
        // After one look at the first third, a little later at the others.
        let soon = || async move {
            for _ in 0..(i % 3) * 20 {
                tokio::task::yield_now().await;
            }
        };
        let open = vfs.open(&caller, ino, RDWR);
        dropped += tokio::select! { biased; _ = open => 0, () = soon() => 1 };
        let make = vfs.create(&caller, ROOT, name.as_bytes(), 0o644, RDWR);
        dropped += tokio::select! { biased; _ = make => 0, () = soon() => 1 };
    }
    assert!(dropped > 10, "{dropped} were dropped");
    let kept = u64::from(60 - dropped);
    let undone = async {
        while vfs.status().handles != kept {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(8), undone).await.expect("undone");
}
