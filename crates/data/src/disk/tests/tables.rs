//! CRC tables that are dropped from memory come back before anything needs them, however small the bound.

use cairn_env::{Disk, OpenOptions};
use cairn_format::chunk_header::table_offset;
use cairn_sim::{FaultRule, SimDisk};
use cairn_types::ChunkId;
use std::sync::Arc;

use super::model::{PARITY, append, append_op, config, good_block, id, open_with, outcome, read, slot};
use crate::disk::{AppendOp, DiskConfig, DiskStore, TablesAtRest, paths};

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

/// A chunk of a disk that forgot what it had synced could not be sealed, and so never be deleted, because its file ends
/// before its tables.
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

/// A sealed chunk, all of it at home.
fn sealed_at_home(disk: &SimDisk, chunk: ChunkId) -> Arc<DiskStore> {
    let store = open_with(disk, config()).expect("an empty disk");
    append(&store, append_op(chunk, 0, &[5; BULK], true)).expect("durable");
    let (sealed, done) = slot();
    store.seal(chunk, done).expect("begun");
    outcome(&store, &sealed).expect("sealed");
    store.checkpoint();
    store
}

/// Changes an entry of a table on the disk, as rot does.
fn rot(disk: &SimDisk, chunk: ChunkId, table: usize, block: u64) {
    let file = disk.open(&paths::chunk(chunk), OpenOptions::READ_WRITE).expect("there");
    file.write_at(&[0xa5; 4], table_offset(table) + block * 4).expect("written");
    file.sync_all().expect("synced");
}

fn tables_at_rest(store: &DiskStore, chunk: ChunkId) -> TablesAtRest {
    store.verify_tables(&store.chunk(chunk).expect("there")).expect("read")
}

/// A disk whose tables rot would be found only at the next start, when nothing knows what was in them: where there is
/// no other copy, good blocks would be bad for ever.
#[test]
fn tables_that_rot_under_a_running_server_are_written_again() {
    for (chunk, table) in [(id(1), 0), (id(PARITY), 0), (id(PARITY), 1)] {
        let disk = SimDisk::new(1);
        let store = sealed_at_home(&disk, chunk);
        assert_eq!(tables_at_rest(&store, chunk), TablesAtRest::Good);
        rot(&disk, chunk, table, 3);
        rot(&disk, chunk, table, 7);
        assert_eq!(tables_at_rest(&store, chunk), TablesAtRest::Mended(2), "{chunk}");
        store.checkpoint();
        assert_eq!(tables_at_rest(&store, chunk), TablesAtRest::Good);
        store.close();
        drop(store);
        disk.kill();
        let store = open_with(&disk, config()).expect("opened");
        assert_eq!(store.verify_chunk(&store.chunk(chunk).expect("there")), Ok(vec![]));
        assert_eq!(tables_at_rest(&store, chunk), TablesAtRest::Good);
        assert!(store.take_bad_rows().is_empty(), "sums of rows are right as well");
        store.close();
    }
}

/// A header that rots on a disk would be found only at the next start, which sets the file aside: where there is no
/// other copy, its bytes would be gone.
#[test]
fn a_header_that_rots_under_a_running_server_is_written_again() {
    // The magic, what is in use of the header, what is not; the same of the state; the zeros behind it; marks of freed
    // blocks.
    for at in [0, 33, 300, 512, 530, 900, 1500, 2048, 4000] {
        for chunk in [id(1), id(PARITY)] {
            let disk = SimDisk::new(1);
            let store = sealed_at_home(&disk, chunk);
            let file = disk.open(&paths::chunk(chunk), OpenOptions::READ_WRITE).expect("there");
            file.write_at(&[0xa5; 4], at).expect("written");
            file.sync_all().expect("synced");
            assert_eq!(tables_at_rest(&store, chunk), TablesAtRest::Mended(1), "{chunk} at {at}");
            assert_eq!(store.metrics().crc_errors.load(std::sync::atomic::Ordering::Relaxed), 1);
            store.checkpoint();
            assert_eq!(tables_at_rest(&store, chunk), TablesAtRest::Good, "{chunk} at {at}");
            store.close();
            drop(store);
            disk.kill();
            let store = open_with(&disk, config()).expect("opened");
            let there = store.chunk(chunk).expect("it is not set aside");
            assert_eq!((store.verify_chunk(&there), there.info().punched_blocks), (Ok(vec![]), 0));
            assert_eq!(tables_at_rest(&store, chunk), TablesAtRest::Good);
            store.close();
        }
    }
}

/// A bit that flips in memory would be written over what is right on the disk.
#[test]
fn blocks_tell_which_of_two_tables_is_right() {
    let disk = SimDisk::new(1);
    let store = sealed_at_home(&disk, id(1));
    store.chunk(id(1)).expect("there").state.lock().table.as_mut().expect("in memory")[4] ^= 16;
    assert_eq!(tables_at_rest(&store, id(1)), TablesAtRest::Mended(1));
    store.checkpoint();
    assert_eq!(tables_at_rest(&store, id(1)), TablesAtRest::Good);
    assert!(read(&store, id(1), 0, BULK as u64).expect("read").data[..BULK].iter().all(|b| *b == 5));
    assert_eq!(store.verify_chunk(&store.chunk(id(1)).expect("there")), Ok(vec![]));
    store.close();
}

/// A sum that is off because of a block that nobody needs any more would be told at each start, for ever, and hide what
/// rots later.
#[test]
fn a_sum_that_is_off_where_all_blocks_are_good_is_mended() {
    let disk = SimDisk::new(1);
    let store = sealed_at_home(&disk, id(1));
    let (freed, done) = slot();
    store.punch(id(1), vec![(8192, 4096)], done).expect("begun");
    outcome(&store, &freed).expect("freed");
    store.checkpoint();
    store.close();
    drop(store);
    rot(&disk, id(1), 0, 2);
    disk.kill();
    let store = open_with(&disk, config()).expect("opened");
    assert_eq!(tables_at_rest(&store, id(1)), TablesAtRest::SumOff);
    let chunk = store.chunk(id(1)).expect("there");
    assert_eq!(store.verify_chunk(&chunk), Ok(vec![]), "the block is a hole");
    store.mend_sum(&chunk).expect("begun");
    store.checkpoint();
    assert_eq!(tables_at_rest(&store, id(1)), TablesAtRest::Good);
    store.close();
    drop((store, chunk));
    disk.kill();
    let store = open_with(&disk, config()).expect("opened");
    assert_eq!(tables_at_rest(&store, id(1)), TablesAtRest::Good);
    store.close();
}
