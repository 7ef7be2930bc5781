//! Serving members that lack what they should have.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use cairn_format::chunk_header::PUNCHED_OFFSET;
use cairn_rpc::Payload;
use cairn_types::MemberState::{Offline, Serving, Syncing};
use cairn_types::{CHUNK_SIZE_MAX, ErrorCode, PgId, Scheme, Time};
use cairn_wire::Opcode;
use cairn_wire::common::ChunkRange;
use cairn_wire::data::{FreeItem, FreeRequest, FreeResponse};

use super::cluster::{Cluster, PG, Tune, eventually, pattern};
use super::rebuilds::{damage, report};
use super::repairs::{free, id};
use super::shards::{ALL, RS32, UNIT};
use super::sources::sealed;
use super::stripes::{Shards, read_shard};

fn soon(config: &mut crate::DataConfig) {
    config.restore_delay = Duration::from_millis(150);
    config.restore_again = Duration::from_millis(300);
}

pub(super) fn remove(dir: &std::path::Path, index: u32) {
    std::fs::remove_file(dir.join(format!("pg/{PG}/{index:010}.chunk"))).expect("there");
}

/// A chunk file that vanished would be missing until the member's next catch-up: with another loss it would be too
/// late.
#[test]
fn a_missing_chunk_comes_back_when_it_is_read() {
    let (mut cluster, index, shards) = sealed(soon, 1, 6 * UNIT);
    for i in [2, 3] {
        cluster.restart_with(i, |dir| remove(dir, index));
    }
    cluster.raise(&[Serving; 5]);
    let missing = read_shard(&cluster, 2, index, 0, UNIT).expect_err("it is not there");
    assert_eq!(missing.code(), Some(ErrorCode::Missing));
    // That of 3 is missed by this read, or by 2, which rebuilds.
    let _either = read_shard(&cluster, 3, index, 0, UNIT);
    for i in [2, 3] {
        eventually("the chunk is back", || {
            cluster.nodes[i].store().info(id(index)).is_some_and(|info| info.sealed && info.length == 6 * UNIT as u64)
        });
        shards.check_all(&cluster, i, index);
        eventually("it is counted", || cluster.nodes[i].store().metrics().restored_chunks.load(Relaxed) == 1);
    }
    // Of a replicated group as well.
    let (cluster, index, bytes) = one_copy_lost(soon);
    assert_eq!(cluster.read(1, index, 0, 100).expect_err("it is not there").code(), Some(ErrorCode::Missing));
    eventually("the chunk is back", || cluster.nodes[1].store().info(id(index)).is_some_and(|info| info.sealed));
    assert_eq!(cluster.read(1, index, 0, 300_000).expect("read").expect("intact"), bytes);
}

/// A shard would stay away until somebody reads it once more because its group went on to a new epoch while it was
/// brought back.
#[test]
fn a_new_epoch_does_not_end_bringing_back() {
    let (mut cluster, index, shards) = sealed(soon, 1, 128 * UNIT);
    cluster.restart_with(4, |dir| remove(dir, index));
    cluster.raise(&[Serving; 5]);
    let missing = read_shard(&cluster, 4, index, 0, UNIT).expect_err("it is not there");
    assert_eq!(missing.code(), Some(ErrorCode::Missing));
    let length = |cluster: &Cluster| cluster.nodes[4].store().info(id(index)).map_or(0, |info| info.length);
    eventually("its beginning", || length(&cluster) > 0);
    cluster.raise(&[Serving; 5]);
    eventually("all of it", || length(&cluster) == 128 * UNIT as u64);
    shards.check_all(&cluster, 4, index);
}

/// A sealed chunk of which the second of three members has lost its copy.
fn one_copy_lost(tune: Tune) -> (Cluster, u32, Vec<u8>) {
    let mut cluster = Cluster::start_tuned(3, tune);
    let index = cluster.allocate(0).expect("an index");
    let bytes = pattern(1, 300_000);
    cluster.append(0, &[1, 2], index, 0, &bytes).expect("appended");
    cluster.seal(0, &[1, 2], index).expect("sealed");
    cluster.restart_with(1, |dir| remove(dir, index));
    cluster.raise(&[Serving; 3]);
    (cluster, index, bytes)
}

/// A copy that ended in the middle would never be completed: the part of it that is here would count as what was asked
/// for, and in the end be sealed as it is.
#[test]
fn bringing_back_goes_on_where_it_ended() {
    // Tried again by itself, or, when that was given up, by its next reader.
    for (lost_by, tries) in [(1, 3), (0, 3), (1, 9)] {
        bringing_back_goes_on(lost_by, tries);
    }
}

fn bringing_back_goes_on(lost_by: usize, in_vain: u32) {
    const BYTES: usize = 3 << 20;
    let mut cluster = Cluster::start_tuned(3, |config| {
        soon(config);
        config.idle_seal = Duration::from_secs(1);
    });
    let others = [1 - lost_by, 2];
    let bytes = pattern(1, BYTES);
    let mut index = 0;
    eventually("a chunk that is not idle in between", || {
        index = cluster.allocate(0).expect("an index");
        let piece = |at: usize| &bytes[at..at + (1 << 20)];
        (0..BYTES).step_by(1 << 20).all(|at| cluster.append(0, &[1, 2], index, at as u64, piece(at)).is_ok())
    });
    cluster.seal(0, &[1, 2], index).expect("sealed");
    for i in others {
        cluster.nodes[i].store().checkpoint();
        damage(&cluster, i, index, 600);
    }
    cluster.restart_with(lost_by, |dir| remove(dir, index));
    cluster.raise(&[Serving; 3]);
    cluster.read(lost_by, index, 0, 100).expect_err("it is not there");
    let length = |cluster: &Cluster| cluster.nodes[lost_by].store().info(id(index)).map_or(0, |info| info.length);
    eventually("its beginning", || length(&cluster) == 2 << 20);
    let tries = |cluster: &Cluster| {
        let restores = cluster.nodes[lost_by].data.inner.missing.lock();
        restores.tries(cairn_types::DiskId(cluster.nodes[lost_by].disk), id(index))
    };
    eventually("further attempts", || tries(&cluster) >= in_vain);
    if lost_by == 0 {
        // What is idle is closed, but not this.
        let idle = cluster.allocate(0).expect("an index");
        cluster.append(0, &[1, 2], idle, 0, &bytes[..4096]).expect("appended");
        let store = cluster.nodes[0].store();
        for of in [index, idle] {
            store.chunk(id(of)).expect("here").state.lock().last_append = Time::default();
        }
        eventually("a look at what is idle", || store.info(id(idle)).is_some_and(|info| info.sealed));
        assert!(!store.info(id(index)).expect("here").sealed, "it would stay short");
    }
    // One of them has it whole.
    damage(&cluster, 2, index, 600);
    eventually("all of it", || {
        let _missing = (in_vain > 8).then(|| cluster.read(lost_by, index, BYTES as u64 - 10, 10));
        cluster.nodes[lost_by].store().info(id(index)).is_some_and(|info| info.sealed)
    });
    assert_eq!(length(&cluster), BYTES as u64);
    for at in (0..BYTES).step_by(1 << 20) {
        let found = cluster.read(lost_by, index, at as u64, 1 << 20).expect("read").expect("intact");
        assert!(found == bytes[at..at + (1 << 20)], "{at}");
    }
}

/// A chunk that one member has lost would count as deleted there once a part of it is freed: it would never come back,
/// and readers be told that it is gone.
#[test]
fn a_part_that_is_freed_does_not_delete_what_is_missing() {
    let (cluster, index, bytes) = one_copy_lost(soon);
    for i in 0..3 {
        // Right after its start a member may not know yet what it lacks; then it is told again.
        eventually("the free", || free(&cluster, i, index, 8192, 4096) == [0]);
    }
    // It may be on its way already.
    if let Err(missing) = cluster.read(1, index, 0, 100) {
        assert_eq!(missing.code(), Some(ErrorCode::Missing), "{missing}");
    }
    eventually("the chunk is back", || cluster.nodes[1].store().info(id(index)).is_some_and(|info| info.sealed));
    assert_eq!(cluster.read(1, index, 12_288, 200_000).expect("read").expect("intact"), bytes[12_288..212_288]);
    assert_eq!(cluster.read(1, index, 8192, 10).expect_err("freed").code(), Some(ErrorCode::ChunkDeleted));
}

/// A block that metadata freed, on a disk that has forgotten it and has lost the bytes, could never be healed, and
/// would keep everybody out who copies the chunk.
#[test]
fn a_bad_block_that_the_others_have_freed_is_freed() {
    let cluster = Cluster::start_tuned(3, soon);
    let index = cluster.allocate(0).expect("an index");
    let bytes = pattern(1, 300_000);
    cluster.append(0, &[1, 2], index, 0, &bytes).expect("appended");
    cluster.seal(0, &[1, 2], index).expect("sealed");
    cluster.nodes[0].store().checkpoint();
    damage(&cluster, 0, index, 2);
    assert!([1, 2].iter().all(|i| free(&cluster, *i, index, 8192, 4096) == [0]));
    report(&cluster, 0, index, 2).expect("freed here as well");
    assert_eq!(cluster.read(0, index, 8192, 10).expect_err("freed").code(), Some(ErrorCode::ChunkDeleted));
    assert_eq!(cluster.read(0, index, 12_288, 100).expect("good").expect("intact"), bytes[12_288..12_388]);
    // As long as anybody has it, it is healed.
    damage(&cluster, 0, index, 3);
    report(&cluster, 0, index, 3).expect("healed");
    assert_eq!(cluster.read(0, index, 12_288, 100).expect("good").expect("intact"), bytes[12_288..12_388]);
}

/// The only one of three members that still has a chunk, all of which was freed: its disk forgot that, and the marks of
/// what was freed before are damaged. One block is a hole, or holds something else.
fn marks_damaged(hole: bool) -> (Cluster, u32, Vec<u8>) {
    marks_damaged_of(hole, &[1, 2])
}

/// The same where only some of the others have freed it.
fn marks_damaged_of(hole: bool, gone_from: &[usize]) -> (Cluster, u32, Vec<u8>) {
    use std::os::unix::fs::FileExt;
    let mut cluster = Cluster::start_tuned(3, soon);
    let index = cluster.allocate(0).expect("an index");
    let bytes = pattern(1, 300_000);
    cluster.append(0, &[1, 2], index, 0, &bytes).expect("appended");
    cluster.seal(0, &[1, 2], index).expect("sealed");
    assert_eq!(free(&cluster, 0, index, 8192, 4096), [0]);
    assert!(gone_from.iter().all(|i| free(&cluster, *i, index, 0, 1 << 20) == [0]));
    cluster.nodes[0].store().checkpoint();
    let (path, at) = (cluster.nodes[0].file(index), cluster.nodes[0].store().chunk(id(index)).expect("here"));
    let at = at.header.data_offset() + 8192;
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).expect("a file");
    let mut found = [7; 4096];
    eventually("the hole", || file.read_exact_at(&mut found, at).is_ok() && found == [0; 4096]);
    // What was not home yet when the node ended would be written over the damage.
    eventually("marks to be left out", || {
        cluster.restart_with(0, |_| {
            file.write_all_at(&[0xe4], PUNCHED_OFFSET).expect("written");
            file.write_all_at(&[7; 4096], at).expect("written");
            // Not all of a hole was there before power failed.
            file.write_all_at(&[if hole { 0 } else { 7 }; 512], at + 1024).expect("written");
        });
        cluster.nodes[0].store().info(id(index)).expect("here").punched_blocks == 0
    });
    (cluster, index, bytes)
}

/// A block that was freed, on the only disk that has anything of its chunk and does not know it any more, could never
/// be healed, and would keep everybody out who copies the chunk.
#[test]
fn a_hole_whose_mark_was_lost_is_freed_when_nobody_else_has_the_chunk() {
    let (mut cluster, index, bytes) = marks_damaged(true);
    cluster.raise(&[Serving, Serving, Offline]);
    report(&cluster, 0, index, 2).expect_err("who is away may have it");
    // It knows no more that it was freed.
    cluster.restart(2);
    cluster.raise(&[Serving, Serving, Syncing]);
    eventually("catching up", || cluster.nodes[2].report().is_some_and(|report| report.caught_up));
    cluster.raise(&[Serving; 3]);
    for i in [0, 2] {
        assert_eq!(cluster.read(i, index, 8192, 10).expect_err("freed").code(), Some(ErrorCode::ChunkDeleted));
        assert_eq!(cluster.read(i, index, 12_288, 100).expect("good").expect("intact"), bytes[12_288..12_388]);
    }
    // What is damaged otherwise stays a bad block.
    let (mut cluster, index, _) = marks_damaged(false);
    cluster.raise(&[Serving; 3]);
    report(&cluster, 0, index, 2).expect_err("nobody has it");
    assert_eq!(cluster.read(0, index, 8192, 10).expect("asked"), None, "its checksum does not match");
}

/// The same after one more start, which no longer knows that marks were lost, if the whole block is a hole.
#[test]
fn a_whole_hole_is_freed_after_another_start_too() {
    use std::os::unix::fs::FileExt;
    for whole in [true, false] {
        let (mut cluster, index, bytes) = marks_damaged(true);
        cluster.nodes[0].store().checkpoint();
        let store = cluster.nodes[0].store();
        let at = store.chunk(id(index)).expect("here").header.data_offset() + 8192;
        // Something else of the chunk goes home, and its state with it.
        assert_eq!(free(&cluster, 0, index, 40_960, 4096), [0]);
        store.checkpoint();
        drop(store);
        let path = cluster.nodes[0].file(index);
        cluster.restart_with(0, |_| {
            let file = std::fs::OpenOptions::new().write(true).open(path).expect("a file");
            file.write_all_at(&[0; 4096][..if whole { 4096 } else { 3584 }], at).expect("written");
        });
        let here = cluster.nodes[0].store().chunk(id(index)).expect("here");
        assert!(!here.has_lost_marks(), "it knows");
        cluster.raise(&[Serving; 3]);
        let freed = report(&cluster, 0, index, 2);
        assert_eq!(freed.is_ok(), whole, "{freed:?}");
        if whole {
            assert_eq!(cluster.read(0, index, 8192, 10).expect_err("freed").code(), Some(ErrorCode::ChunkDeleted));
        }
        assert_eq!(cluster.read(0, index, 12_288, 100).expect("good").expect("intact"), bytes[12_288..12_388]);
    }
}

/// What may be in use would be freed because nobody has it good at this moment.
#[test]
fn a_hole_of_which_another_member_has_something_stays() {
    let (mut cluster, index, bytes) = marks_damaged_of(true, &[2]);
    cluster.nodes[1].store().checkpoint();
    damage(&cluster, 1, index, 2);
    cluster.raise(&[Serving; 3]);
    report(&cluster, 0, index, 2).expect_err("another one has it, bad as it is");
    assert_eq!(cluster.read(0, index, 8192, 10).expect("asked"), None, "its checksum does not match");
    damage(&cluster, 1, index, 2);
    report(&cluster, 0, index, 2).expect("healed");
    assert_eq!(cluster.read(0, index, 8192, 100).expect("good").expect("intact"), bytes[8192..8292]);
}

/// The same where another member remembers that the whole chunk was deleted: that says no less than that it has nothing
/// of it.
#[test]
fn a_hole_whose_mark_was_lost_is_freed_when_others_know_that_the_chunk_was_deleted() {
    let (mut cluster, index, bytes) = marks_damaged(true);
    cluster.raise(&[Serving; 3]);
    assert_eq!(free(&cluster, 1, index, 0, CHUNK_SIZE_MAX), [0], "told once more");
    assert_eq!(cluster.read(1, index, 8192, 10).expect_err("freed").code(), Some(ErrorCode::ChunkDeleted));
    report(&cluster, 0, index, 2).expect("freed");
    assert_eq!(cluster.read(0, index, 8192, 10).expect_err("freed").code(), Some(ErrorCode::ChunkDeleted));
    assert_eq!(cluster.read(0, index, 12_288, 100).expect("good").expect("intact"), bytes[12_288..12_388]);
}

/// A file that was set aside as damaged would be missed only when somebody reads it.
#[test]
fn a_damaged_file_is_brought_back_at_once() {
    let (mut cluster, index, shards) = sealed(|_| {}, 1, 2 * UNIT);
    cluster.restart_with(4, |dir| {
        let path = dir.join(format!("pg/{PG}/{index:010}.chunk"));
        std::fs::write(path, vec![0; 300_000]).expect("damaged");
    });
    assert!(cluster.nodes[4].store().info(id(index)).is_none(), "it was set aside");
    cluster.raise(&[Serving; 5]);
    eventually("the chunk is back", || cluster.nodes[4].store().info(id(index)).is_some_and(|info| info.sealed));
    shards.check_all(&cluster, 4, index);
}

/// A file that went while its node was stopped, and whose creation is still in the journal, would be made anew of the
/// journal alone: what went past that would be bad, and nobody know it before somebody reads it.
#[test]
fn a_file_made_anew_of_the_journal_is_completed() {
    let bytes = pattern(1, 300_000);
    for scheme in [Scheme::Replicated(3), RS32] {
        let mut cluster = Cluster::start_scheme(scheme, |_| {});
        let index = cluster.allocate(0).expect("an index");
        let shards = Shards::new(RS32, 1, 6 * UNIT);
        // What is written home now stays away from the journal, and the next time comes seconds later.
        let first = cluster.allocate(0).expect("an index");
        match scheme {
            RS32 => shards.put(&cluster, &ALL, first),
            _ => drop(cluster.append(0, &[1, 2], first, 0, &bytes).expect("appended")),
        }
        cluster.nodes[1].store().checkpoint();
        match scheme {
            RS32 => shards.put(&cluster, &ALL, index),
            _ => {
                cluster.append(0, &[1, 2], index, 0, &bytes).expect("appended");
                cluster.sync(0, &[1, 2], index).expect("synced");
            }
        }
        let journal = std::fs::read(cluster.nodes[1].dir.path().join("journal")).expect("a journal");
        cluster.restart_with(1, |dir| {
            remove(dir, index);
            std::fs::write(dir.join("journal"), journal).expect("written");
        });
        cluster.raise(&vec![Serving; scheme.members()]);
        eventually("the chunk is whole", || {
            let store = cluster.nodes[1].store();
            store.chunk(id(index)).is_some_and(|chunk| store.verify_chunk(&chunk) == Ok(vec![]))
        });
        match scheme {
            RS32 => shards.check_all(&cluster, 1, index),
            _ => assert!(cluster.read(1, index, 0, bytes.len()).expect("read").expect("intact") == bytes),
        }
    }
}

/// A deleted chunk would come back on a member that was asked for it once more, and stay for ever.
#[test]
fn a_deleted_chunk_does_not_come_back() {
    let mut cluster = Cluster::start_scheme(RS32, soon);
    let index = cluster.allocate(0).expect("an index");
    Shards::new(RS32, 1, UNIT).put(&cluster, &ALL, index);
    let free = |cluster: &Cluster, i: usize| {
        let ranges = vec![ChunkRange { offset: 0, length: UNIT as u64 }];
        let item = FreeItem { disk: cluster.nodes[i].disk, pg: PG, index, ranges };
        let answer = cluster.call(i, Opcode::Free, &FreeRequest { items: vec![item] }, Payload::None);
        let answer: (FreeResponse, _) = answer.expect("answered");
        assert_eq!(answer.0.codes, [0]);
    };
    for i in ALL {
        cluster.seal(i, &[], index).expect("sealed");
    }
    free(&cluster, 1);
    eventually("the file's end", || !cluster.nodes[1].file(index).exists());
    // After a restart it does not remember. The others hear of it during the pause.
    cluster.restart(1);
    cluster.raise(&[Serving; 5]);
    assert_eq!(read_shard(&cluster, 1, index, 0, UNIT).expect_err("gone").code(), Some(ErrorCode::Missing));
    [0, 2, 3, 4].iter().for_each(|i| free(&cluster, *i));
    std::thread::sleep(Duration::from_millis(500));
    assert!(ALL.iter().all(|i| cluster.nodes[*i].store().list(PgId(PG), 0, 10).is_empty()));
}

/// Rows written while a member caught up would be missing on it: the writer waits only for those that serve.
#[test]
fn what_was_written_meanwhile_is_looked_for_when_it_serves() {
    let mut cluster = Cluster::start_scheme(RS32, |_| {});
    cluster.restart(3);
    cluster.raise(&[Serving, Serving, Serving, Syncing, Serving]);
    let index = cluster.allocate(0).expect("an index");
    let shards = Shards::new(RS32, 1, 4 * UNIT);
    shards.put(&cluster, &[0, 1, 2, 4], index);
    shards.write(&cluster, 3, index, 0, UNIT).expect("only a part came");
    eventually("catching up", || cluster.nodes[3].report().is_some_and(|report| report.caught_up));
    cluster.raise(&[Serving; 5]);
    eventually("the rest", || {
        cluster.nodes[3].store().info(id(index)).is_some_and(|info| info.sealed && info.length == 4 * UNIT as u64)
    });
    shards.check_all(&cluster, 3, index);
}

/// A disk that forgot a whole file, on a member that served at once after its start, lacked it until somebody read it
/// (seed 802368).
#[test]
fn what_a_disk_forgot_is_looked_for_after_its_start() {
    let tune: Tune = |config| config.look_after = Duration::from_millis(50);
    let (mut cluster, index, shards) = sealed(tune, 1, 6 * UNIT);
    cluster.restart_with(2, |dir| remove(dir, index));
    cluster.raise(&[Serving; 5]);
    eventually("the shard is back", || cluster.nodes[2].store().info(id(index)).is_some_and(|info| info.sealed));
    shards.check_all(&cluster, 2, index);

    let (cluster, index, bytes) = one_copy_lost(|config| {
        soon(config);
        config.look_after = Duration::from_millis(50);
    });
    eventually("the copy is back", || cluster.nodes[1].store().info(id(index)).is_some_and(|info| info.sealed));
    assert_eq!(cluster.read(1, index, 0, 300_000).expect("read").expect("intact"), bytes);
}
