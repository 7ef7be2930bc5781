//! Directories that a mount leads: what is durable when.
use crate::*;

/// Calls of an operation since this was asked last.
fn batches(cluster: &FakeCluster) -> u64 {
    cluster.take_calls().get("Batch").copied().unwrap_or_default()
}

/// A program that syncs would lose the name of its file with the machine; or the end of the mount would lose all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sync_stores_what_was_done_before() {
    let cluster = cluster();
    cluster.raise_level();
    let vfs = mount_with(&cluster, Duration::from_secs(8), VfsOptions { lease_new: true, ..options() }).await;
    let directory = vfs.mkdir(&root(), ROOT, b"d", 0o755).await.expect("made").attr.ino;
    assert_eq!(vfs.status().led_directories, 1);
    let made = async |name: &str, flags| {
        let (_, opened) = vfs.create(&root(), directory, name.as_bytes(), 0o644, flags).await.expect("created");
        opened.handle
    };
    let unstored = || vfs.status().unstored_changes;
    let handle = made("synced", RDWR).await;
    write(&vfs, handle, 0, b"contents").await;
    vfs.fsync(handle, false).await.expect("synced");
    assert_eq!((unstored(), batches(&cluster) > 0), (0, true), "fsync of a file");
    made("named", RDWR).await;
    // Nothing is written, and nothing is durable but by the directory.
    vfs.fsync(handle, false).await.expect("synced");
    assert_eq!((unstored(), batches(&cluster) > 0), (0, true), "fsync of what is durable itself");
    made("listed", RDWR).await;
    let listed = vfs.opendir(&root(), directory, 0).await.expect("opened");
    vfs.fsyncdir(listed.handle, false).await.expect("synced");
    assert_eq!((unstored(), batches(&cluster) > 0), (0, true), "fsync of a directory");
    let each = made("each", WRONLY | 0o4_010_000).await;
    write(&vfs, each, 0, b"O_SYNC").await;
    assert_eq!((unstored(), batches(&cluster) > 0), (0, true), "O_SYNC");
    made("all", RDWR).await;
    vfs.syncfs().await.expect("synced");
    assert_eq!((unstored(), batches(&cluster) > 0), (0, true), "everything");
    assert_eq!(vfs.status().led_directories, 1, "it goes on");
    made("last", RDWR).await;
    vfs.shutdown().await.expect("all is stored");
    let other = mount(&cluster).await;
    for name in ["synced", "named", "listed", "each", "all", "last"] {
        assert!(other.lookup(&root(), directory, name.as_bytes()).await.is_ok(), "{name}");
    }
    cluster.check_namespace();
}
