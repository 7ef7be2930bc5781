//! O_APPEND from several mounts.
use crate::*;

/// Lines of a log that several machines append to would cover each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_of_two_mounts_never_overwrite() {
    const LINES: u32 = 120;
    let cluster = cluster();
    let mounts = [mount(&cluster).await, mount(&cluster).await];
    let (ino, handle) = create(&mounts[0], "log", WRONLY | APPEND).await;
    close(&mounts[0], handle).await;
    let mut writers = Vec::new();
    for (who, vfs) in mounts.iter().enumerate() {
        let vfs = vfs.clone();
        writers.push(tokio::spawn(async move {
            let handle = open(&vfs, ino, WRONLY | APPEND).await;
            for line in 0..LINES {
                let text = format!("{who} {line} {}\n", "x".repeat((line * 37 % 300) as usize));
                write(&vfs, handle, 0, text.as_bytes()).await;
                if line % 5 == who as u32 {
                    vfs.fsync(handle, false).await.expect("synced");
                }
            }
            close(&vfs, handle).await;
        }));
    }
    // Opens and attributes in the middle of publishes must not be taken for somebody else's appends.
    let mut lookers = Vec::new();
    for vfs in &mounts {
        let vfs = vfs.clone();
        lookers.push(tokio::spawn(async move {
            loop {
                let handle = open(&vfs, ino, RDONLY).await;
                read(&vfs, handle, 0, 1000).await;
                close(&vfs, handle).await;
            }
        }));
    }
    for writer in writers {
        writer.await.expect("written");
    }
    for looker in lookers {
        assert!(!looker.is_finished());
        looker.abort();
    }
    let all = String::from_utf8(contents(&mounts[0], ino).await).expect("whole lines");
    for who in ["0", "1"] {
        let own: Vec<u32> =
            all.lines().filter_map(|line| line.strip_prefix(who)?.split_whitespace().next()?.parse().ok()).collect();
        assert_eq!(own, (0..LINES).collect::<Vec<_>>(), "each line once, in order");
    }
    assert_eq!(all.lines().count() as u32, 2 * LINES);
    cluster.check_namespace();
}

/// A program that appends would not read back what it wrote before others see it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appended_bytes_are_read_where_they_are() {
    let cluster = cluster();
    let (one, two) = (mount(&cluster).await, mount(&cluster).await);
    let (ino, first) = create(&one, "log", RDWR | APPEND).await;
    write(&one, first, 0, b"one").await;
    let second = open(&two, ino, RDWR | APPEND).await;
    write(&two, second, 0, b"second").await;
    close(&two, second).await;
    assert_eq!(read(&one, first, 0, 100).await, b"one", "not published yet");
    write(&one, first, 0, b" more").await;
    vfs_sync(&one, first).await;
    assert_eq!(read(&one, first, 0, 100).await, b"secondone more");
    close(&one, first).await;
    assert_eq!(contents(&two, ino).await, b"secondone more");
}

async fn vfs_sync(vfs: &Vfs, handle: Handle) {
    vfs.fsync(handle, false).await.expect("synced");
}
