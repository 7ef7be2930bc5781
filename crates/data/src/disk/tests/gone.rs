//! Chunks that are deleted while something else is at their files.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use cairn_env::{Disk, OpenOptions};
use cairn_types::{BLOCK_SIZE, ErrorCode};

use super::interrupted::Interrupted;
use super::model::{append, append_op, config, id, open_on, outcome, read, slot};
use crate::disk::files::FileCache;
use crate::disk::{DiskConfig, DiskStore, paths};

/// Frees all of chunk 1; its file is gone when this returns.
fn delete(store: &DiskStore) {
    let (freed, done) = slot();
    store.punch(id(1), vec![(0, 4 * BLOCK_SIZE as u64)], done).expect("begun");
    outcome(store, &freed).expect("freed");
    store.checkpoint();
}

/// A store with a sealed chunk of four blocks, at home.
fn store(disk: &Arc<Interrupted>, direct_reads: bool) -> Arc<DiskStore> {
    let store = open_on(disk.clone(), DiskConfig { direct_reads, ..config() }).expect("an empty disk");
    append(&store, append_op(id(1), 0, &[7; 4 * BLOCK_SIZE], true)).expect("durable");
    let (sealed, done) = slot();
    store.seal(id(1), done).expect("begun");
    outcome(&store, &sealed).expect("sealed");
    store.checkpoint();
    store
}

/// The scrub would warn of a chunk that was deleted while it was read, or report its blocks as bad; a reader would be
/// told that the disk cannot read.
#[test]
fn nobody_misses_the_file_of_a_deleted_chunk() {
    for way in ["verified", "read"] {
        let disk = Interrupted::new();
        let store = store(&disk, true);
        let chunk = store.chunk(id(1)).expect("there");
        let gone = store.clone();
        *disk.before.lock() = Some(Box::new(move || delete(&gone)));
        if way == "verified" {
            assert!(store.verify_chunk(&chunk).expect("nothing is wrong").is_empty());
        } else {
            let error = store.read_now(&chunk, 0, 100).expect_err("deleted");
            assert_eq!(error.code(), ErrorCode::ChunkDeleted, "{error}");
        }
        assert!(disk.before.lock().is_none(), "it was not {way} from the file");
        assert!(chunk.is_deleted() && store.chunk(id(1)).is_none());
        let metrics = store.metrics();
        assert_eq!((metrics.io_errors.load(Relaxed), metrics.crc_errors.load(Relaxed)), (0, 0), "{way}");
        assert!(store.verify_chunk(&chunk).expect("nothing is there").is_empty());
        assert_eq!(read(&store, id(1), 0, 100).expect_err("deleted").code(), ErrorCode::Missing);
    }
}

/// A chunk that is made under the name of one that was deleted would be written into the deleted file, whose handle was
/// opened while it went, and be lost when that is closed.
#[test]
fn the_handle_of_a_deleted_file_is_not_kept() {
    let disk = Interrupted::new();
    let cache = Arc::new(FileCache::new(disk.clone(), 10));
    let path = paths::chunk(id(1));
    disk.create_dir_all(&paths::pg_dir(id(1).pg)).expect("a directory");
    cache.create(id(1)).expect("made").cached.write_at(b"first", 0).expect("written");
    cache.forget(id(1));
    let (inner, others) = (disk.disk.clone(), cache.clone());
    *disk.behind.lock() = Some(Box::new(move || {
        inner.remove(&paths::chunk(id(1))).expect("there");
        others.forget(id(1));
    }));
    drop(cache.get(id(1)).expect("it was there"));
    assert!(disk.behind.lock().is_none() && !disk.exists(&path).expect("listed"));
    cache.create(id(1)).expect("made anew").cached.write_at(b"second", 0).expect("written");
    let found = disk.open(&path, OpenOptions::READ).expect("the new file");
    let mut bytes = [0; 6];
    found.read_exact_at(&mut bytes, 0).expect("written to it");
    assert_eq!(&bytes, b"second");
}
