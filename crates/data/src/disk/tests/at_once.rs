//! Small appends that need no thread of the disk.

use cairn_sim::SimDisk;

use super::model::{append, append_op, id, open, outcome, read, slot};

fn filled(disk: &SimDisk) -> std::sync::Arc<crate::disk::DiskStore> {
    let store = open(disk).expect("an empty disk");
    append(&store, append_op(id(1), 0, &[1; 4096], true)).expect("durable");
    store
}

/// Every small file would cost a hop to another thread on each member.
#[test]
fn a_small_append_is_with_the_journal_when_the_call_returns() {
    let disk = SimDisk::new(1);
    let store = filled(&disk);
    let (slot, done) = slot();
    store.append(append_op(id(1), 4096, &[2; 4096], true), done).expect("taken");
    assert_eq!(store.ready.len(), 0, "no thread has to do anything");
    assert!(slot.lock().is_none(), "not durable yet");
    assert!(store.step_journal());
    assert_eq!(slot.lock().take().expect("answered").expect("durable").durable, 8192);
    assert_eq!(&read(&store, id(1), 4096, 4096).expect("read").data[..], &[2; 4096]);
}

/// An append that overtook what was asked before it would be acknowledged by a sync, or a seal, that did not have it.
#[test]
fn an_append_stays_behind_what_waits() {
    let disk = SimDisk::new(2);
    let store = filled(&disk);
    let ((synced, sync_done), (slot, done)) = (slot(), slot());
    store.sync(id(1), sync_done).expect("begun");
    store.append(append_op(id(1), 4096, &[2; 4096], true), done).expect("taken");
    assert_eq!(store.chunk(id(1)).expect("there").strand.lock().jobs.len(), 2, "the append waits for its turn");
    assert_eq!(outcome(&store, &slot).expect("durable").durable, 8192);
    assert!(synced.lock().take().expect("answered").expect("synced") >= 4096);
}

/// A chunk would stand still after its first append at once, or after one that failed.
#[test]
fn what_comes_meanwhile_and_later_is_done() {
    let disk = SimDisk::new(3);
    let store = filled(&disk);
    for i in 1..200 {
        let (slot, done) = slot();
        store.append(append_op(id(1), i * 4096, &[i as u8; 4096], i % 3 == 0), done).expect("taken");
        let ((synced, sync_done), sync) = (super::model::slot(), i % 2 == 0);
        if sync {
            store.sync(id(1), sync_done).expect("begun");
            assert!(outcome(&store, &synced).expect("synced") >= (i + 1) * 4096);
        }
        outcome(&store, &slot).expect("written");
    }
    assert_eq!(store.queue_depth(), 0);
    for i in 1..200 {
        assert_eq!(&read(&store, id(1), i * 4096, 4096).expect("read").data[..], &[i as u8; 4096]);
    }
}

/// Whoever was told that a chunk is sealed, and lists it, would take its end for lost as long as it is not written
/// home.
#[test]
fn what_is_durable_is_listed_so_before_it_is_home() {
    let disk = SimDisk::new(4);
    let store = filled(&disk);
    let (slot, done) = slot();
    store.append(append_op(id(1), 4096, &[2; 4096], true), done).expect("taken");
    assert!(store.step_journal());
    slot.lock().take().expect("answered").expect("durable");
    assert_eq!(store.chunk(id(1)).expect("there").info().durable, 8192);
}
