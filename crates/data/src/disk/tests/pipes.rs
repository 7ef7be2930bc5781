//! Reads that go through pipes, on a real directory: what is read so, what is not, and what damage does.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use cairn_env::{Disk, OpenOptions, RealDisk};
use cairn_format::chunk_header::DATA_OFFSET;
use cairn_types::{BLOCK_SIZE, crc32c};

use super::model::*;
use crate::disk::{BlockData, DataError, DiskStore, ReadBlocks, ReadPurpose, paths};

const LEN: usize = 512 << 10;

fn bytes() -> Vec<u8> {
    (0..LEN).map(|i| (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[6]).collect()
}

/// A store whose chunk 1 holds [`bytes`].
fn store() -> (tempfile::TempDir, Arc<RealDisk>, Arc<DiskStore>) {
    let dir = tempfile::tempdir().unwrap();
    let disk = Arc::new(RealDisk::open(dir.path()).unwrap());
    let store = open_on(disk.clone(), config()).unwrap();
    append(&store, append_op(id(1), 0, &bytes(), true)).unwrap();
    (dir, disk, store)
}

fn send(store: &DiskStore, offset: u64, length: u64) -> Result<ReadBlocks<BlockData>, DataError> {
    send_for(store, offset, length, ReadPurpose::Again)
}

fn send_for(
    store: &DiskStore,
    offset: u64,
    length: u64,
    purpose: ReadPurpose,
) -> Result<ReadBlocks<BlockData>, DataError> {
    let (slot, done) = slot();
    store.read_to_send(id(1), (offset, length), purpose, None, done)?;
    outcome(store, &slot)
}

fn is_piped(blocks: &ReadBlocks<BlockData>) -> bool {
    matches!(blocks.data, BlockData::Pipe(_))
}

/// The bytes as a socket gets them.
fn received(blocks: ReadBlocks<BlockData>) -> Vec<u8> {
    let mut pipe = match blocks.data {
        BlockData::Memory(data) => return data.to_vec(),
        BlockData::Pipe(pipe) => pipe,
    };
    let (to, mut from) = UnixStream::pair().unwrap();
    let reader = std::thread::spawn(move || {
        let mut got = Vec::new();
        from.read_to_end(&mut got).unwrap();
        got
    });
    while !pipe.is_empty() {
        match pipe.send(&to, false) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => std::thread::yield_now(),
            sent => assert!(sent.unwrap() > 0),
        }
    }
    drop(to);
    reader.join().unwrap()
}

/// Warm reads would be copied twice again without anybody noticing, or bring other blocks than a copy does.
#[test]
fn whole_blocks_at_home_are_not_copied() {
    let (_dir, _disk, store) = store();
    let blocks = send(&store, 5000, 100_000).unwrap();
    assert!(is_piped(&blocks));
    assert_eq!((blocks.first_block_offset, blocks.crcs.len()), (4096, 25));
    let copy = read(&store, id(1), 5000, 100_000).unwrap();
    assert_eq!(blocks.crcs, copy.crcs);
    assert!(received(blocks) == copy.data[..], "the same bytes on both ways");
    let few = send(&store, 5000, 4096).unwrap();
    assert!(!is_piped(&few), "few bytes are copied");
    assert_eq!(store.metrics().reads_in_memory.load(std::sync::atomic::Ordering::Relaxed), 1, "and on no other thread");
    assert_eq!((few.first_block_offset, few.crcs.len()), (4096, 2));
    assert!(received(few) == bytes()[4096..3 * 4096]);
    assert!(matches!(send(&store, LEN as u64 - 4096, 8192), Err(DataError::Missing { .. })));
}

/// A reader that takes no answers would have all memory of reads, and everybody else's reads would wait for it.
#[test]
fn a_reader_that_takes_no_answers_waits_alone() {
    let (_dir, _disk, store) = store();
    let here = "127.0.0.1".parse().unwrap();
    let readers = ["taker", "other"].map(|name| Some(store.context.shares.reader(Some(name), here)));
    let ask = |reader| {
        let (slot, done) = slot();
        store.read_to_send(id(1), (0, LEN as u64), ReadPurpose::Again, reader, done).unwrap();
        slot
    };
    let asked: Vec<_> = (0..100).map(|_| ask(readers[0])).collect();
    store.drive();
    let answered = || asked.iter().filter(|slot| slot.lock().is_some()).count();
    // What pipes hold, and half of the pool.
    let first = answered();
    assert_eq!(first, 16 + 51);
    assert_eq!(store.metrics().reads_parked.load(std::sync::atomic::Ordering::Relaxed), 100 - 67);
    let other = outcome(&store, &ask(readers[1])).unwrap();
    assert!(received(other) == bytes());
    // With each answer that is taken the next one comes.
    let taken = asked[20].lock().take().unwrap().unwrap();
    assert!(!is_piped(&taken));
    drop(taken);
    store.drive();
    assert_eq!(answered(), first);
    let mut read = 1;
    while read < 100 {
        let done: Vec<_> = asked.iter().filter_map(|slot| slot.lock().take()).collect();
        assert!(!done.is_empty(), "those that waited are never read");
        for blocks in done {
            assert!(received(blocks.unwrap()) == bytes());
            read += 1;
        }
        store.drive();
    }
    assert_eq!(store.context.shares.held(), 0);
}

/// A block that lies in the journal, or one that the next append replaces, would reach the reader old or torn.
#[test]
fn blocks_that_may_change_are_copied() {
    let (_dir, _disk, store) = store();
    // A small append lies in the journal, and ends within a block.
    append(&store, append_op(id(1), LEN as u64, &[7; 5000], true)).unwrap();
    let from = (LEN - (64 << 10)) as u64;
    let blocks = send(&store, from, (64 << 10) + 5000).unwrap();
    assert!(!is_piped(&blocks));
    let mut expected = bytes()[from as usize..].to_vec();
    expected.extend([7; 5000]);
    expected.resize(expected.len().next_multiple_of(BLOCK_SIZE), 0);
    assert!(received(blocks) == expected);
    store.checkpoint();
    assert!(!is_piped(&send(&store, from, (64 << 10) + 5000).unwrap()), "the partial block may be replaced");
    assert!(is_piped(&send(&store, from, (64 << 10) + 4096).unwrap()), "whole blocks at home are not");
    let (slot, done) = slot();
    store.seal(id(1), done).unwrap();
    outcome(&store, &slot).unwrap();
    let blocks = send(&store, from, (64 << 10) + 5000).unwrap();
    assert!(is_piped(&blocks), "a sealed chunk's last block stays as it is");
    assert!(received(blocks) == expected);
}

/// Damage must reach the reader's check as damage, and a file that ends early must be an error, never a short answer.
#[test]
fn damage_is_found() {
    let (_dir, disk, store) = store();
    let file = disk.open(&paths::chunk(id(1)), OpenOptions::READ_WRITE).unwrap();
    file.write_at(b"damage", DATA_OFFSET + 8192).unwrap();
    let blocks = send(&store, 0, 65_536).unwrap();
    assert!(is_piped(&blocks));
    let crcs = blocks.crcs.clone();
    let bad: Vec<usize> = (received(blocks).chunks(BLOCK_SIZE).zip(crcs).enumerate())
        .filter_map(|(i, (block, crc))| (crc32c(block) != crc).then_some(i))
        .collect();
    assert_eq!(bad, [2]);
    file.set_len(DATA_OFFSET + 40_000).unwrap();
    assert!(matches!(send(&store, 0, 65_536), Err(DataError::Unreadable { .. })));
    assert!(is_piped(&send(&store, 0, 36_864).unwrap()), "what is still there is served");
}

/// A repair would push out of memory what readers use, and take several times the processor for pages that nobody wants
/// again; or leave aside what is in memory, or bring other bytes.
#[test]
fn what_is_read_once_does_not_fill_the_page_cache() {
    let (dir, _disk, store) = store();
    store.close();
    drop(store);
    let disk = Arc::new(RealDisk::open(dir.path()).unwrap());
    let store = open_on(disk.clone(), config()).unwrap();
    let file = disk.open(&paths::chunk(id(1)), OpenOptions::READ).unwrap();
    let other = disk.open("other", OpenOptions::CREATE).unwrap();
    other.write_at(&bytes(), DATA_OFFSET).unwrap();
    drop_pages(&dir, "other");
    if is_in_memory(&*other) {
        eprintln!("skipped: the file system of {} keeps all pages", dir.path().display());
        return;
    }
    // Its tables are read beforehand, and the system reads on behind them.
    send_for(&store, 0, 4096, ReadPurpose::Once).unwrap();
    drop_pages(&dir, &paths::chunk(id(1)));
    let once = send_for(&store, 5000, 300_000, ReadPurpose::Once).unwrap();
    assert!(!is_piped(&once));
    assert_eq!((once.first_block_offset, once.crcs.len()), (4096, 74));
    assert!(received(once) == bytes()[4096..75 * 4096]);
    assert!(!is_in_memory(&*file), "nothing of it stays");

    assert!(is_piped(&send(&store, 0, LEN as u64).unwrap()));
    assert!(is_in_memory(&*file), "a reader may come again");
    let once = send_for(&store, 5000, 300_000, ReadPurpose::Once).unwrap();
    assert!(received(once) == bytes()[4096..75 * 4096]);
    assert!(is_in_memory(&*file), "what was there before stays");
}

/// Writes a file out and takes it out of the page cache, where the file system does that.
fn drop_pages(dir: &tempfile::TempDir, path: &str) {
    let file = std::fs::File::open(dir.path().join(path)).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

/// Whether all of what the test reads once is; if not, the system may bring it in now.
fn is_in_memory(file: &dyn cairn_env::File) -> bool {
    file.read_in_memory(&mut vec![0; 74 * BLOCK_SIZE], DATA_OFFSET + BLOCK_SIZE as u64).is_some()
}
