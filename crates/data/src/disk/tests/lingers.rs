//! Records that nobody waits for share group commits, on a real directory with the disk's threads.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::channel;
use std::time::Duration;

use cairn_env::{Disk, RealDisk};
use cairn_types::BLOCK_SIZE;

use super::model::*;
use crate::disk::{Appended, DataError, DiskConfig, DiskStore};

fn store(linger: Duration) -> (tempfile::TempDir, Arc<DiskStore>) {
    let dir = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(dir.path()).unwrap());
    let config = DiskConfig { write_threads: 1, journal_linger: linger, ..config() };
    (dir, open_on(disk, config).unwrap())
}

fn append_and_wait(store: &DiskStore, block: u64, sync: bool) -> Result<Appended, DataError> {
    let (sender, receiver) = channel();
    let op = append_op(id(1), block * BLOCK_SIZE as u64, &[block as u8; BLOCK_SIZE], sync);
    store.append(op, Box::new(move |outcome| drop(sender.send(outcome))))?;
    receiver.recv().expect("answered")
}

/// The commits are counted behind the answers.
fn until(holds: impl Fn() -> bool) {
    let begun = std::time::Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it was not committed");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Small files that are closed before they are durable would cost a flush of the device each; or whoever waits for a
/// sync would wait for the others, too.
#[test]
fn appends_without_a_sync_share_a_commit() {
    let (_dir, store) = store(Duration::from_secs(3600));
    let commits = || store.metrics().journal_batches.load(Relaxed);
    for block in 0..10 {
        append_and_wait(&store, block, false).unwrap();
        // What was written home means room for those that wait for it, and nothing for these.
        store.journal.queue.poke();
        std::thread::sleep(Duration::from_millis(2));
    }
    let before = commits();
    assert!(before <= 2, "the chunk is made, and the first record may go along: {before}");
    let last = append_and_wait(&store, 10, true).unwrap();
    assert_eq!(last.durable, 11 * BLOCK_SIZE as u64);
    until(|| commits() > before);
    // One more, and what had not been counted yet.
    assert!(commits() <= 3, "{} commits", commits());
    // A full batch waits for nobody (64 KiB here), nor does an overlay that grows.
    for block in 11..60 {
        append_and_wait(&store, block, false).unwrap();
    }
    until(|| commits() >= before + 3);
}

/// What nobody waits for would never be written.
#[test]
fn nothing_lingers_for_ever() {
    let (_dir, store) = store(Duration::from_millis(1));
    append_and_wait(&store, 0, false).unwrap();
    until(|| store.metrics().journal_batches.load(Relaxed) >= 2);
}
