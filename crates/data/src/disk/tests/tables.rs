//! CRC tables that are dropped from memory come back before anything needs them, however small the bound.

use cairn_env::{Disk, OpenOptions};
use cairn_sim::{FaultRule, SimDisk};

use super::model::{PARITY, append, append_op, config, good_block, id, open_with, outcome, read, slot};
use crate::disk::{AppendOp, DiskConfig, paths};

const BULK: usize = 60_000;

/// A thread of the disk would end, and everything behind it would wait for ever, when a sealed chunk is brought up to
/// others after its table went; or a shard whose tables alone exceed the bound could never be read.
#[test]
fn chunks_whose_tables_were_dropped_are_read_healed_and_brought_up() {
    let disk = SimDisk::new(1);
    let store = open_with(&disk, DiskConfig { tables_max: 2, ..config() }).expect("an empty disk");
    let ids: Vec<_> = (1..=4).chain(PARITY + 1..=PARITY + 4).map(id).collect();
    for chunk in &ids {
        let bytes = vec![chunk.index as u8; BULK];
        append(&store, append_op(*chunk, 0, &bytes, true)).expect("durable");
        let (sealed, done) = slot();
        store.seal(*chunk, done).expect("begun");
        outcome(&store, &sealed).expect("sealed");
        store.checkpoint();
    }
    // Each is the one whose table is gone when its turn comes.
    for chunk in &ids {
        let byte = chunk.index as u8;
        assert!(read(&store, *chunk, 0, BULK as u64).expect("read").data[..BULK].iter().all(|b| *b == byte));
    }
    for chunk in &ids {
        let at = (BULK as u64).next_multiple_of(4096);
        let more = AppendOp { repair: true, ..append_op(*chunk, at, &[7; 8192], true) };
        append(&store, more).expect("brought up");
        store.checkpoint();
    }
    for chunk in &ids {
        let (healed, done) = slot();
        store.heal(*chunk, 1, good_block(*chunk, &[9; 4096]), done).expect("begun");
        outcome(&store, &healed).expect("healed");
        store.checkpoint();
        let tables = store.tables(*chunk).expect("tables");
        assert_eq!(tables.crcs.len(), 17);
        assert_eq!(tables.info.length, (BULK as u64).next_multiple_of(4096) + 8192);
    }
}

/// A bit that flips while a table is read would stay wrong in memory, and a good block count as bad until a restart.
#[test]
fn tables_that_were_read_wrong_are_read_again() {
    let disk = SimDisk::new(1);
    // A table that fills its sectors.
    let bytes = vec![5; 1 << 20];
    {
        let store = open_with(&disk, config()).expect("an empty disk");
        for chunk in [id(1), id(PARITY)] {
            for at in 0..4 {
                append(&store, append_op(chunk, at << 20, &bytes, true)).expect("durable");
            }
            let (sealed, done) = slot();
            store.seal(chunk, done).expect("begun");
            outcome(&store, &sealed).expect("sealed");
        }
        store.checkpoint();
        store.close();
    }
    let tables = 4096..69_632;
    let of_rows = tables.start..69_632 + 65_536;
    for (range, times) in [(tables.clone(), 1), (tables, 3), (of_rows, 2)] {
        disk.kill();
        let store = open_with(&disk, config()).expect("opened");
        let rule = disk.inject(FaultRule::flips().on_path("pg/*.chunk").on_range(range).times(times));
        for chunk in [id(1), id(PARITY)] {
            let there = store.chunk(chunk).expect("there");
            assert_eq!(store.verify_chunk(&there), Ok(vec![]), "{chunk}, {times} times");
            assert!(read(&store, chunk, 0, 1 << 20).expect("read").data[..] == bytes[..]);
        }
        assert_eq!(store.metrics().crc_errors.load(std::sync::atomic::Ordering::Relaxed), 0);
        assert_eq!(disk.hits(rule), times, "not everything was read wrong");
        disk.heal_all();
        store.close();
    }
}

/// A chunk of a disk that forgot what it had synced could not be sealed, and so never be deleted, because its file ends before
/// its tables.
#[test]
fn a_chunk_whose_file_ends_before_its_tables_is_sealed_and_deleted() {
    let disk = SimDisk::new(1);
    {
        let store = open_with(&disk, config()).expect("an empty disk");
        append(&store, append_op(id(1), 0, &[5; 8192], true)).expect("durable");
        store.checkpoint();
        store.close();
    }
    let path = paths::chunk(id(1));
    disk.kill();
    disk.open(&path, OpenOptions::READ_WRITE).expect("there").set_len(4096).expect("cut");
    let store = open_with(&disk, config()).expect("opened");
    read(&store, id(1), 0, 8192).expect_err("no byte of it is there");
    let (sealed, done) = slot();
    store.seal(id(1), done).expect("begun");
    assert_eq!(outcome(&store, &sealed).expect("sealed"), 8192);
    let (freed, done) = slot();
    store.punch(id(1), vec![(0, 8192)], done).expect("begun");
    outcome(&store, &freed).expect("freed");
    store.checkpoint();
    assert!(store.chunk(id(1)).is_none() && !disk.exists(&path).expect("listed"));
}
