//! A seal gives back what is reserved behind the end of a chunk while something else makes the chunk longer.

use std::sync::Arc;
use std::time::Duration;

use cairn_env::{Disk, OpenOptions};
use cairn_sim::SimDisk;
use cairn_types::{BLOCK_SIZE, ChunkId};
use parking_lot::Mutex;

use super::interrupted::Interrupted;
use super::model::{append, append_op, config, id, open_on, outcome, read, slot};
use crate::disk::{AppendOp, DataError, DiskStore, paths};

/// How long the seal waits for what comes between: it comes at once, unless the store keeps it out.
const BETWEEN: Duration = Duration::from_millis(100);

/// What a repair appends to a chunk that may be sealed.
fn repaired(chunk: ChunkId, offset: u64, bytes: &[u8]) -> AppendOp {
    AppendOp { repair: true, ..append_op(chunk, offset, bytes, false) }
}

fn held(disk: &SimDisk, chunk: ChunkId) -> u64 {
    disk.open(&paths::chunk(chunk), OpenOptions::READ).expect("there").allocated_bytes().expect("told")
}

/// Bytes past the journal (a repair interrupted by the epoch that seals), and bytes that come home from the journal:
/// the seal had read the length before they were there and would cut them off, and what was appended behind them would
/// leave zeros under good checksums.
#[test]
fn a_seal_cuts_off_nothing_that_comes_meanwhile() {
    const HEAD: usize = 8 * BLOCK_SIZE;
    for (way, bytes) in [("bulk", 16 * BLOCK_SIZE), ("journal", 2 * BLOCK_SIZE)] {
        let disk = Interrupted::new();
        let store = open_on(disk.clone(), config()).expect("an empty disk");
        append(&store, append_op(id(1), 0, &[1; HEAD], true)).expect("durable");
        store.checkpoint();

        let (ended, end) = std::sync::mpsc::channel::<Result<(), DataError>>();
        let (others, threads) = (store.clone(), Arc::<Mutex<Vec<std::thread::JoinHandle<()>>>>::default());
        let started = threads.clone();
        *disk.measured.lock() = Some(Box::new(move || {
            let (between, came) = std::sync::mpsc::channel();
            let appends = std::thread::spawn(move || {
                let outcome = others.append(
                    // A sync that goes through the journal does not need that thread, and lets nothing linger there.
                    AppendOp { sync: way == "journal", ..repaired(id(1), HEAD as u64, &vec![2; bytes]) },
                    Box::new(|_| {}),
                );
                // All of it but the sync thread, which is the one that seals.
                while others.step_strand() {}
                others.step_journal();
                others.step_home(false);
                ended.send(outcome).expect("waited for");
                let _seal_may_be_over = between.send(());
            });
            started.lock().push(appends);
            let _kept_out = came.recv_timeout(BETWEEN);
        }));
        let (sealed, done) = slot();
        store.seal(id(1), done).expect("begun");
        while store.step_strand() || store.step_sync() {}
        end.recv().expect("ended").expect("appended");
        threads.lock().drain(..).for_each(|thread| thread.join().expect("ended well"));
        outcome(&store, &sealed).expect("sealed");
        assert!(disk.measured.lock().is_none(), "the seal did not look at the length");

        let last = (HEAD + bytes) as u64;
        append(&store, repaired(id(1), last, &[3; 16 * BLOCK_SIZE])).expect("what follows");
        store.checkpoint();
        let length = last as usize + 16 * BLOCK_SIZE;
        let found = read(&store, id(1), 0, length as u64).expect("all of it, under its checksums");
        let mut wanted = vec![1; HEAD];
        wanted.resize(last as usize, 2);
        wanted.resize(length, 3);
        assert!(found.data.as_ref() == wanted, "{way}: other bytes");
    }
}

/// A seal that makes the file longer, for blocks that are in the journal still, would keep what was reserved behind it
/// for as long as the chunk lives.
#[test]
fn a_seal_gives_back_what_is_reserved_behind_blocks_of_the_journal() {
    let disk = SimDisk::new(1);
    let store: Arc<DiskStore> = open_on(Arc::new(disk.clone()), config()).expect("an empty disk");
    append(&store, append_op(id(1), 0, &[1; 16 * BLOCK_SIZE], true)).expect("durable");
    store.checkpoint();
    let (appended, done) = slot();
    store.append(append_op(id(1), 16 * BLOCK_SIZE as u64, &[2; BLOCK_SIZE], true), done).expect("begun");
    while store.step_strand() {}
    store.step_journal();
    assert!(appended.lock().is_some(), "durable in the journal, and not at home yet");
    let reserved = held(&disk, id(1));
    let (_sealed, done) = slot();
    store.seal(id(1), done).expect("begun");
    while store.step_strand() || store.step_sync() {}
    let sealed = held(&disk, id(1));
    assert!(sealed < reserved, "{sealed} of {reserved}: nothing was reserved, or it was not given back");
    let found = read(&store, id(1), 16 * BLOCK_SIZE as u64, BLOCK_SIZE as u64).expect("under its checksums");
    assert!(found.data.as_ref() == [2; BLOCK_SIZE]);
}

/// What is appended to a sealed chunk reserves no more than it needs: nobody would give the rest back.
#[test]
fn a_repair_reserves_nothing_behind_a_sealed_chunk() {
    let disk = SimDisk::new(1);
    let store: Arc<DiskStore> = open_on(Arc::new(disk.clone()), config()).expect("an empty disk");
    append(&store, append_op(id(1), 0, &[1; BLOCK_SIZE], true)).expect("durable");
    let reserved = held(&disk, id(1));
    let (sealed, done) = slot();
    store.seal(id(1), done).expect("begun");
    outcome(&store, &sealed).expect("sealed");
    store.checkpoint();
    let alone = held(&disk, id(1));
    assert!(alone < reserved, "{alone} of {reserved}: nothing was reserved, or it was not given back");
    append(&store, repaired(id(1), BLOCK_SIZE as u64, &[2; 20 * BLOCK_SIZE])).expect("appended");
    store.checkpoint();
    assert_eq!(held(&disk, id(1)), alone + 20 * BLOCK_SIZE as u64);
}
