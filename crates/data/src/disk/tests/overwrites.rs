//! Overwrites of one disk that a crash test does not show: bounds, orders, members that catch up.

use cairn_chunk_core::overwrite::OverwriteRefusal;
use cairn_format::overwrite_number::OverwriteNumber;
use cairn_sim::SimDisk;
use cairn_types::{BLOCK_SIZE, Epoch, ErrorCode};

use super::model::{append, append_op, config, good_block, id, open, open_with, outcome, read, run, slot};
use crate::disk::{AppendOp, DataError, DiskConfig, DiskStore, OverwriteOp, OverwriteOrder};

fn no(count: u64) -> OverwriteNumber {
    OverwriteNumber { epoch: Epoch(4), count }
}

fn bytes(seed: u8) -> Vec<u8> {
    (0..BLOCK_SIZE).map(|i| seed.wrapping_add((i / 5) as u8)).collect()
}

fn op(order: OverwriteOrder, blocks: &[(u32, u8)]) -> OverwriteOp {
    let runs = blocks.iter().map(|(block, seed)| run(*block, &bytes(*seed))).collect();
    OverwriteOp { chunk: id(1), epoch: Epoch(4), order, runs }
}

fn overwrite(store: &DiskStore, order: OverwriteOrder, blocks: &[(u32, u8)]) -> Result<OverwriteNumber, DataError> {
    let (slot, done) = slot();
    store.overwrite(op(order, blocks), done)?;
    outcome(store, &slot)
}

fn block(store: &DiskStore, at: u32) -> Vec<u8> {
    read(store, id(1), u64::from(at) * BLOCK_SIZE as u64, BLOCK_SIZE as u64).expect("read").data.to_vec()
}

/// Memory would grow without bound while the disk is slow, instead of new space being written.
#[test]
fn a_saturated_journal_says_new_space_until_it_was_written_home() {
    let disk = SimDisk::new(1);
    let store = open_with(&disk, DiskConfig { overlay_bytes_max: 8 * BLOCK_SIZE, ..config() }).expect("an empty disk");
    append(&store, append_op(id(1), 0, &[3; 20 * BLOCK_SIZE], true)).expect("durable");
    store.checkpoint();
    let mut waiting = Vec::new();
    let refused = loop {
        let (slot, done) = slot();
        match store.overwrite(op(OverwriteOrder::Next, &[(waiting.len() as u32, 1)]), done) {
            Ok(_) => waiting.push(slot),
            Err(error) => break error,
        }
        // Journaled, never written home.
        while store.step_strand() {}
    };
    assert_eq!((refused.code(), waiting.len()), (ErrorCode::NotInPlace, 9), "{refused}");
    for slot in waiting {
        outcome(&store, &slot).expect("what was accepted is done");
    }
    assert_eq!(overwrite(&store, OverwriteOrder::Next, &[(0, 2)]).expect("there is room again"), no(10));
    assert_eq!((block(&store, 0), block(&store, 8)), (bytes(2), bytes(1)));
}

/// An overwrite could be applied where the one before it is missing.
#[test]
fn a_serving_member_takes_only_the_next_one() {
    let disk = SimDisk::new(1);
    let store = open(&disk).expect("an empty disk");
    append(&store, append_op(id(1), 0, &[3; 8 * BLOCK_SIZE], true)).expect("durable");
    let after = |previous, number| OverwriteOrder::After { previous: no(previous), number: no(number) };
    let first = OverwriteOrder::After { previous: OverwriteNumber::NONE, number: no(1) };
    assert_eq!(overwrite(&store, first, &[(1, 1)]), Ok(no(1)));
    // Two that are accepted before either is carried out.
    let (second, third) = (slot(), slot());
    store.overwrite(op(after(1, 2), &[(1, 2)]), second.1).expect("the next");
    store.overwrite(op(after(2, 3), &[(1, 3)]), third.1).expect("behind it");
    assert_eq!((outcome(&store, &second.0), outcome(&store, &third.0)), (Ok(no(2)), Ok(no(3))));
    for (previous, number) in [(4, 5), (2, 3), (0, 4)] {
        let error = overwrite(&store, after(previous, number), &[(1, 9)]).expect_err("out of order");
        let out = matches!(error, DataError::NotOverwritten { refusal: OverwriteRefusal::OutOfOrder { .. }, .. });
        assert!(out, "{error}");
    }
    assert_eq!(block(&store, 1), bytes(3));
    overwrite(&store, OverwriteOrder::Settle { number: no(9), serving: true }, &[]).expect("made equal");
    assert_eq!(overwrite(&store, after(9, 10), &[(1, 4)]), Ok(no(10)));
    drop(store);
    disk.crash(cairn_sim::CrashPolicy::LoseAll);
    let store = open(&disk).expect("opens");
    assert_eq!((block(&store, 1), store.info(id(1)).expect("here").overwrite), (bytes(4), no(10)));
}

/// A member that lost an overwrite with its memory would be taken for one that has it.
#[test]
fn the_sum_of_a_table_is_of_what_is_at_home() {
    let disk = SimDisk::new(1);
    let store = open(&disk).expect("an empty disk");
    append(&store, append_op(id(1), 0, &[3; 8 * BLOCK_SIZE], true)).expect("durable");
    let (sealed, done) = slot();
    store.seal(id(1), done).expect("begun");
    outcome(&store, &sealed).expect("sealed");
    let before = store.info(id(1)).expect("here").table_crc;
    // Carried out, not journaled; then what is durable is written home.
    let (lost, done) = slot();
    store.overwrite(op(OverwriteOrder::Next, &[(1, 1)]), done).expect("accepted");
    while store.step_strand() {}
    assert_ne!(store.info(id(1)).expect("here").table_crc, before);
    store.step_home(true);
    assert!(lost.lock().is_none(), "nobody was answered");
    drop(store);
    disk.crash(cairn_sim::CrashPolicy::KeepAll);
    let store = open(&disk).expect("opens");
    assert_eq!(store.info(id(1)).expect("here").table_crc, before);
    assert_eq!(block(&store, 1), [3; BLOCK_SIZE]);
}

/// A block that was fetched to heal or to catch up would undo an overwrite that came meanwhile.
#[test]
fn older_blocks_do_not_replace_newer_ones() {
    let disk = SimDisk::new(1);
    let store = open(&disk).expect("an empty disk");
    append(&store, append_op(id(1), 0, &[3; 8 * BLOCK_SIZE], true)).expect("durable");
    let follow = |previous, number| OverwriteOrder::Follow { previous: no(previous), number: no(number) };
    // It lacks 1 to 6; then 7 comes, and a copy of a table as of 6.
    overwrite(&store, follow(6, 7), &[(1, 7), (20, 7)]).expect("what is here is taken");
    for (at, seed) in [(1, 5), (2, 6)] {
        let (slot, done) = slot();
        store.replace_as_of(id(1), at, good_block(id(1), &bytes(seed)), no(6), done).expect("begun");
        outcome(&store, &slot).expect("done");
    }
    assert_eq!((block(&store, 1), block(&store, 2)), (bytes(7), bytes(6)));
    let copied = |number| {
        let (slot, done) = slot();
        store.settle_copy(id(1), no(number), Epoch(4), done).expect("begun");
        outcome(&store, &slot).expect("done")
    };
    assert!(!copied(6), "a block of the seventh was not here");
    assert!(copied(7));
    assert!(store.chunk(id(1)).expect("here").follow().has(no(7), Epoch(4)));
    // A healer's block from before the overwrite.
    for (seed, found) in [(5, 7), (7, 7)] {
        let (slot, done) = slot();
        store.heal(id(1), 1, good_block(id(1), &bytes(seed)), done).expect("begun");
        outcome(&store, &slot).expect("done");
        assert_eq!(block(&store, 1), bytes(found));
    }
}

/// A member that catches up would take back an overwrite of its last block that came while the block was being read: as
/// primary it would make all others so.
#[test]
fn an_append_that_was_read_before_leaves_a_last_block_that_was_overwritten_since() {
    let half = BLOCK_SIZE / 2;
    for length in [4 * BLOCK_SIZE, BLOCK_SIZE + half + 512] {
        let disk = SimDisk::new(1);
        let store = open(&disk).expect("an empty disk");
        append(&store, append_op(id(1), 0, &vec![3; BLOCK_SIZE + half], true)).expect("durable");
        let follow = OverwriteOrder::Follow { previous: OverwriteNumber::NONE, number: no(1) };
        overwrite(&store, follow, &[(1, 7)]).expect("taken");
        let brought = append_op(id(1), BLOCK_SIZE as u64, &vec![5; length - BLOCK_SIZE], true);
        append(&store, AppendOp { as_of: Some(OverwriteNumber::NONE), ..brought }).expect("durable");
        drop(store);
        disk.crash(cairn_sim::CrashPolicy::LoseAll);
        let store = open(&disk).expect("opens");
        let found = read(&store, id(1), 0, length as u64).expect("read").data.to_vec();
        let expected = [vec![3; BLOCK_SIZE], bytes(7), vec![5; 2 * BLOCK_SIZE]].concat();
        assert!(found[..length] == expected[..length], "of {length} bytes");
        assert_eq!(store.info(id(1)).expect("here").length, length as u64);
    }
}

/// A member that missed an overwrite of its last block, but not the ones before and behind it, would keep the older one
/// and count as in step.
#[test]
fn an_append_that_is_newer_than_an_overwrite_of_the_last_block_is_taken() {
    let half = BLOCK_SIZE / 2;
    let disk = SimDisk::new(1);
    let store = open(&disk).expect("an empty disk");
    append(&store, append_op(id(1), 0, &vec![3; BLOCK_SIZE + half], true)).expect("durable");
    let first = OverwriteOrder::Follow { previous: OverwriteNumber::NONE, number: no(1) };
    overwrite(&store, first, &[(1, 7)]).expect("taken");
    let third = OverwriteOrder::Follow { previous: no(2), number: no(3) };
    overwrite(&store, third, &[(0, 4)]).expect("taken");
    let brought = append_op(id(1), BLOCK_SIZE as u64, &vec![9; 2 * BLOCK_SIZE], true);
    let brought = AppendOp { as_of: Some(no(3)), ..brought };
    append(&store, brought).expect("durable");
    let (slot, done) = slot();
    store.settle_copy(id(1), no(3), Epoch(4), done).expect("begun");
    assert!(outcome(&store, &slot).expect("answered"), "in step as of 3");
    assert_eq!(block(&store, 1), [9; BLOCK_SIZE]);
}
