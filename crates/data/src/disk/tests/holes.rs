//! Space that goes back to the file system while the disk works on.

use std::sync::Arc;

use cairn_env::{Disk, OpenOptions};
use cairn_format::chunk_header::{PUNCHED_OFFSET, STATE_OFFSET};
use cairn_format::chunk_state::CHUNK_STATE_LEN;
use cairn_sim::{CrashPolicy, SimDisk};
use cairn_types::{BLOCK_SIZE, ChunkId};

use super::model::{append, append_op, id, open, outcome, read, slot};
use crate::disk::{DiskStore, paths};

const BLOCKS: usize = 64;

fn bytes(seed: u8) -> Vec<u8> {
    (0..BLOCKS * BLOCK_SIZE).map(|i| seed.wrapping_add((i / 7) as u8)).collect()
}

/// Everything but giving space back.
fn work(store: &DiskStore) {
    while store.step_strand() || store.step_sync() || store.step_journal() || store.step_home(false) {}
    store.step_home(true);
}

fn free(store: &DiskStore, chunk: ChunkId, from: usize, count: usize) {
    let (slot, done) = slot();
    store.punch(chunk, vec![((from * BLOCK_SIZE) as u64, (count * BLOCK_SIZE) as u64)], done).expect("begun");
    work(store);
    slot.lock().take().expect("answered").expect("freed");
}

fn held(disk: &SimDisk, chunk: ChunkId) -> u64 {
    disk.open(&paths::chunk(chunk), OpenOptions::READ).expect("there").allocated_bytes().expect("told")
}

fn filled(disk: &SimDisk, chunk: ChunkId) -> Arc<DiskStore> {
    let store = open(disk).expect("an empty disk");
    append(&store, append_op(chunk, 0, &bytes(1), true)).expect("durable");
    store.checkpoint();
    store
}

/// A slow device would hold the journal, and with it all who write, while many small files are removed.
#[test]
fn the_journal_is_emptied_while_holes_wait() {
    let disk = SimDisk::new(1);
    let store = filled(&disk, id(1));
    let full = held(&disk, id(1));
    for i in 0..BLOCKS / 2 {
        free(&store, id(1), 2 * i, 1);
    }
    store.journal.write_tail().expect("written");
    assert!(store.journal.fullness() < 0.01, "all of it is home");
    assert_eq!(held(&disk, id(1)), full, "no hole is punched yet");
    assert_eq!(store.holes.bytes(), (BLOCKS / 2 * BLOCK_SIZE) as u64);
    append(&store, append_op(id(2), 0, &bytes(2), true)).expect("writing goes on");
    store.drive();
    assert_eq!(held(&disk, id(1)), full - (BLOCKS / 2 * BLOCK_SIZE) as u64);
    assert_eq!(store.holes.bytes(), 0);
    assert_eq!(&read(&store, id(1), BLOCK_SIZE as u64, 4096).expect("kept").data[..], &bytes(1)[4096..8192]);
}

/// Space that was promised to come back would be lost when the process ends before the hole is punched.
#[test]
fn holes_that_were_not_punched_are_found_by_the_next_start() {
    for crash in [false, true] {
        let disk = SimDisk::new(2);
        let store = filled(&disk, id(1));
        let full = held(&disk, id(1));
        free(&store, id(1), 8, 40);
        // Nothing in the journal tells of it any more.
        store.journal.write_tail().expect("written");
        drop(store);
        if crash {
            disk.crash(CrashPolicy::LoseAll);
        } else {
            disk.kill();
        }
        let store = open(&disk).expect("opens");
        assert_eq!(held(&disk, id(1)), full, "not before it serves");
        store.drive();
        assert_eq!(held(&disk, id(1)), full - 40 * 4096);
        assert_eq!(&read(&store, id(1), 0, 4096).expect("kept").data[..], &bytes(1)[..4096]);
    }
}

/// Live blocks would read as deleted on a disk that forgot a sync, and nobody would copy them.
#[test]
fn damaged_marks_of_freed_blocks_are_left_out_whatever_the_journal_has() {
    for (damage, state_too) in [(false, false), (true, false), (true, true)] {
        let disk = SimDisk::new(4);
        let store = filled(&disk, id(1));
        free(&store, id(1), 3, 2);
        store.journal.write_tail().expect("written");
        // The journal has something of the chunk, and nothing of what was freed.
        let (sealed, done) = slot();
        store.seal(id(1), done).expect("begun");
        while store.step_strand() || store.step_sync() || store.step_journal() {}
        sealed.lock().take().expect("answered").expect("sealed");
        drop(store);
        disk.kill();
        if damage {
            let file = disk.open(&paths::chunk(id(1)), OpenOptions::READ_WRITE).expect("there");
            file.write_at(&[0xb9; 512], PUNCHED_OFFSET).expect("written");
            if state_too {
                file.write_at(&[0x5a; CHUNK_STATE_LEN], STATE_OFFSET).expect("written");
            }
        }
        let store = open(&disk).expect("opens");
        let info = store.info(id(1)).expect("here");
        assert_eq!((info.sealed, info.punched_blocks), (true, if damage { 0 } else { 2 }));
        for block in [0, 5, 7] {
            let found = read(&store, id(1), (block * BLOCK_SIZE) as u64, BLOCK_SIZE as u64).expect("it lives");
            assert_eq!(&found.data[..], &bytes(1)[block * BLOCK_SIZE..][..BLOCK_SIZE]);
        }
    }
}

/// Noise in one part of the marks would count because the journal has frees in another part of them: live blocks would
/// read as deleted, and nobody would copy them. Or what was freed since the noise was left out would be left out as
/// well.
#[test]
fn damaged_marks_are_left_out_although_the_journal_frees_other_blocks() {
    const MIB: usize = 1 << 20;
    // In the second sector of the marks.
    const FAR: usize = 4100;
    let noise = |disk: &SimDisk| {
        let file = disk.open(&paths::chunk(id(1)), OpenOptions::READ_WRITE).expect("there");
        file.write_at(&[0xb9], PUNCHED_OFFSET).expect("written");
    };
    for (left_out_before, written_home) in [(false, false), (true, false), (true, true)] {
        let disk = SimDisk::new(5);
        let store = open(&disk).expect("an empty disk");
        for at in 0..17 {
            append(&store, append_op(id(1), (at * MIB) as u64, &[at as u8 + 1; MIB], true)).expect("durable");
        }
        store.checkpoint();
        free(&store, id(1), FAR, 1);
        store.journal.write_tail().expect("written");
        let mut store = store;
        if left_out_before {
            drop(store);
            disk.kill();
            noise(&disk);
            store = open(&disk).expect("opens");
            assert_eq!(store.info(id(1)).expect("here").punched_blocks, 0, "left out");
        }
        let (freed, done) = slot();
        store.punch(id(1), vec![((FAR + 7) as u64 * BLOCK_SIZE as u64, BLOCK_SIZE as u64)], done).expect("begun");
        while store.step_strand() || store.step_sync() || store.step_journal() {}
        freed.lock().take().expect("answered").expect("freed");
        if written_home {
            work(&store);
            store.journal.write_tail().expect("written");
        }
        drop(store);
        disk.kill();
        if !left_out_before {
            noise(&disk);
        }
        let store = open(&disk).expect("opens");
        let what = format!("left out before: {left_out_before}, written home: {written_home}");
        for block in [0, 3, 5] {
            let found = read(&store, id(1), (block * BLOCK_SIZE) as u64, BLOCK_SIZE as u64);
            assert!(found.is_ok_and(|found| found.data[..] == [1; BLOCK_SIZE]), "{what}: it lives");
        }
        let freed = read(&store, id(1), ((FAR + 7) * BLOCK_SIZE) as u64, 10).expect_err("freed");
        assert_eq!(freed.code(), cairn_types::ErrorCode::ChunkDeleted, "{what}");
    }
}

/// A later chunk of the same name would lose its bytes to a hole of the earlier one.
#[test]
fn holes_of_a_removed_chunk_spare_the_next_one_of_its_name() {
    let disk = SimDisk::new(3);
    let store = filled(&disk, id(1));
    let (sealed, done) = slot();
    store.seal(id(1), done).expect("begun");
    outcome(&store, &sealed).expect("sealed");
    free(&store, id(1), 0, BLOCKS / 2);
    let early = store.holes.take_all();
    assert_eq!(early.len(), 1);
    free(&store, id(1), BLOCKS / 2, BLOCKS / 2);
    work(&store);
    assert!(store.chunk(id(1)).is_none(), "nothing is left of it");
    append(&store, append_op(id(1), 0, &bytes(9), true)).expect("a new one");
    work(&store);
    // The thread had taken these before the chunk was removed.
    store.holes.put_back(early);
    store.drive();
    assert_eq!(&read(&store, id(1), 0, (BLOCKS * BLOCK_SIZE) as u64).expect("whole").data[..], &bytes(9)[..]);
}
