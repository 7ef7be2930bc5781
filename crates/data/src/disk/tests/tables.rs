//! CRC tables that are dropped from memory come back before anything needs them, however small the bound.

use cairn_sim::SimDisk;

use super::model::{PARITY, append, append_op, config, good_block, id, open_with, outcome, read, slot};
use crate::disk::{AppendOp, DiskConfig};

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
