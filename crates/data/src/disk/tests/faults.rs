//! Failing devices, full disks, damage at rest. Each test counts the faults that fired.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use cairn_env::disk::DiskOp;
use cairn_env::{Disk, OpenOptions, PatientDisk};
use cairn_format::pg_state::{PgStateMember, PgStateRecord};
use cairn_sim::{CrashPolicy, FaultRule, FaultWhen, SimDisk, SimDiskOptions};
use cairn_types::{DiskId, Epoch, ErrorCode, MemberState, NodeId, PgId, Scheme, VolumeId, crc32c};

use super::model::{
    CLUSTER, PARITY, append, append_op, config, good_block, id, open, open_on, open_with, outcome, read, rows_of, slot,
};
use crate::disk::{AppendOp, DataError, DiskStore, OpenError, paths};

const BULK: usize = 100_000;

fn bytes(seed: u8, count: usize) -> Vec<u8> {
    (0..count).map(|i| seed.wrapping_add((i / 5) as u8)).collect()
}

/// A disk whose sync failed would go on acknowledging what it may have dropped.
#[test]
fn a_failed_sync_is_final_until_everything_was_read() {
    let disk = SimDisk::new(1);
    let store = open(&disk).expect("an empty disk");
    append(&store, append_op(id(1), 0, &bytes(1, BULK), true)).expect("durable");
    append(&store, append_op(id(2), 0, &bytes(2, BULK), false)).expect("written");
    let rule = disk.inject(FaultRule::io(&[DiskOp::Sync]).on_path("pg/*.chunk").times(1));
    let (slot, done) = slot();
    store.sync(id(2), done).expect("begun");
    let failed = outcome(&store, &slot).expect_err("the device failed");
    assert_eq!(failed.code(), ErrorCode::DiskFailed);
    assert_eq!(disk.hits(rule), 1);
    // The fault is over, the disk stays out of service.
    for error in [
        append(&store, append_op(id(1), 102_400, &bytes(3, 10), false)).expect_err("failed"),
        read(&store, id(1), 0, 10).expect_err("failed"),
        store.sync(id(1), Box::new(|_| {})).expect_err("failed"),
    ] {
        assert_eq!(error.code(), ErrorCode::DiskFailed, "{error}");
    }
    assert!(store.failure().is_some_and(|why| why.contains("sync failed")));
    assert!(disk.exists(paths::SUSPECT).expect("listed"));
    drop(store);
    disk.kill();
    let store = open(&disk).expect("everything can be read");
    assert_eq!(store.take_bad_blocks(), [], "what was promised is good");
    assert!(!disk.exists(paths::SUSPECT).expect("listed"), "verified");
    assert_eq!(read(&store, id(1), 0, BULK as u64).expect("read").data[..BULK], bytes(1, BULK));
    assert!(disk.counts().sectors_dropped_by_failed_sync > 0);
}

/// The same for the journal, and for every other write: one failure in each operation of a run.
#[test]
fn any_failed_write_or_sync_is_final() {
    let mut fired = 0;
    for op in [DiskOp::Write, DiskOp::Sync, DiskOp::SyncDir, DiskOp::SetLen] {
        for nth in 1..=8 {
            let disk = SimDisk::new(nth);
            let store = open(&disk).expect("an empty disk");
            append(&store, append_op(id(1), 0, &bytes(1, 5000), true)).expect("durable");
            let rule = disk.inject(FaultRule::io(&[op]).when(FaultWhen::Nth(nth)));
            let outcomes = [
                append(&store, append_op(id(1), 4096, &[&bytes(1, 5000)[4096..], &bytes(2, 100)].concat(), true)),
                append(&store, append_op(id(2), 0, &bytes(3, BULK), true)),
                append(&store, append_op(id(2), 102_400, &bytes(4, 50), true)),
            ];
            store.checkpoint();
            let hit = disk.hits(rule) > 0;
            fired += disk.hits(rule);
            assert_eq!(hit, store.failure().is_some(), "{op:?} {nth}: {outcomes:?}");
            disk.heal_all();
            drop(store);
            disk.crash(CrashPolicy::random());
            let store = open(&disk).unwrap_or_else(|error| panic!("{op:?} {nth}: {error}"));
            assert_eq!(read(&store, id(1), 0, 5000).expect("promised").data[..5000], bytes(1, 5000));
            for (chunk, outcome, content) in
                [(id(1), &outcomes[0], [bytes(1, 5000), bytes(2, 100)].concat()), (id(2), &outcomes[1], bytes(3, BULK))]
            {
                if outcome.is_ok() {
                    let found = read(&store, chunk, 0, content.len() as u64).expect("acknowledged");
                    assert_eq!(found.data[..content.len()], content, "{op:?} {nth}");
                }
            }
        }
    }
    println!("{fired} faults");
    assert!(fired > 12, "only {fired} faults fired");
}

/// A process without descriptors would mark its disks failed until the next start, though they are sound.
#[test]
fn a_disk_waits_for_descriptors() {
    let mut fired = 0;
    for nth in 1..=6 {
        let disk = SimDisk::new(nth);
        let ending = Arc::new(AtomicBool::new(false));
        let patient = PatientDisk::new(Arc::new(disk.clone()), ending.clone());
        let store = open_on(Arc::new(patient), config()).expect("an empty disk");
        append(&store, append_op(id(1), 0, &bytes(1, 5000), true)).expect("durable");
        let ops = [DiskOp::Open, DiskOp::List, DiskOp::Space, DiskOp::Write, DiskOp::SetLen];
        let rule = disk.inject(FaultRule::no_descriptors(&ops).when(FaultWhen::From(nth)).times(3));
        append(&store, append_op(id(2), 0, &bytes(3, BULK), true)).expect("it waits");
        append(&store, append_op(id(2), 102_400, &bytes(4, 50), true)).expect("it waits");
        store.checkpoint();
        assert_eq!(read(&store, id(2), 0, BULK as u64).expect("read").data[..BULK], bytes(3, BULK));
        fired += disk.hits(rule);
        assert_eq!(store.failure(), None, "nothing is known of the disk");
        drop(store);
        // Nobody waits for ever for what does not come.
        disk.inject(FaultRule::no_descriptors(&[DiskOp::Open]));
        ending.store(true, Relaxed);
        let patient = PatientDisk::new(Arc::new(disk.clone()), ending);
        let error = open_on(Arc::new(patient), config()).expect_err("no descriptors");
        assert!(matches!(&error, OpenError::Disk(error) if error.is_shortage()), "{error}");
    }
    println!("{fired} faults");
    assert!(fired >= 12, "only {fired} faults fired");
}

/// A full disk would keep half of an append, lose what was there, or be taken for a broken one.
#[test]
fn a_full_disk_refuses_and_keeps_what_it_has() {
    let disk = SimDisk::with_options(SimDiskOptions { capacity: 3 << 20, ..SimDiskOptions::seeded(1) });
    let store = open(&disk).expect("an empty disk");
    append(&store, append_op(id(1), 0, &bytes(1, BULK), true)).expect("room");
    let mut at = 0;
    let full = loop {
        match append(&store, append_op(id(2), at, &bytes(2, 1 << 18), true)) {
            Ok(appended) => at = appended.length,
            Err(error) => break error,
        }
        assert!(at < 3 << 20, "more than the disk has");
    };
    assert_eq!(full.code(), ErrorCode::NoSpace, "{full}");
    assert!(store.failure().is_none(), "a full disk is not a broken one");
    let again = append(&store, append_op(id(2), at, &bytes(2, 4096), true)).expect_err("it takes no more");
    assert_eq!(again.code(), ErrorCode::NoSpace);
    assert_eq!(store.info(id(2)).expect("there").length, at);
    let (sealed, done) = slot();
    store.seal(id(2), done).expect("begun");
    assert_eq!(outcome(&store, &sealed).expect("sealing needs no room"), at);
    // Freeing makes room again.
    let (freed, done) = slot();
    store.punch(id(2), vec![(0, at)], done).expect("begun");
    outcome(&store, &freed).expect("freed");
    store.checkpoint();
    assert!(store.chunk(id(2)).is_none());
    append(&store, append_op(id(4), 0, &bytes(4, BULK), true)).expect("room again");
    // A device that refuses in spite of its own promise.
    let rule = disk.inject(FaultRule::no_space(&[DiskOp::Allocate]).times(1));
    let refused = append(&store, append_op(id(6), 0, &bytes(5, BULK), false)).expect_err("refused");
    assert_eq!((refused.code(), disk.hits(rule)), (ErrorCode::NoSpace, 1));
    // The state of a group that does not fit is told again later.
    store.pg_files().update(PgId(1), |_| Some(record(3, 9))).expect("room");
    disk.set_capacity(0);
    let full = store.pg_files().update(PgId(1), |_| Some(record(4, 9))).expect_err("no room");
    assert_eq!(store.state_not_saved(&full).code, ErrorCode::NoSpace);
    assert!(store.failure().is_none(), "a full disk is not a broken one");
    disk.set_capacity(3 << 20);
    let saved = store.pg_files().update(PgId(1), |_| Some(record(4, 9))).expect("room again");
    assert_eq!(saved.expect("known").epoch, Epoch(4));
    assert_eq!(read(&store, id(1), 0, BULK as u64).expect("read").data[..BULK], bytes(1, BULK));
}

/// A disk that others fill up would leave service for good, because what is durable in its journal finds no room at
/// home.
#[test]
fn what_finds_no_room_at_home_stays_in_the_journal() {
    for crash_while_full in [true, false] {
        let disk = SimDisk::with_options(SimDiskOptions { capacity: 64 << 20, ..SimDiskOptions::seeded(1) });
        let store = open(&disk).expect("an empty disk");
        append(&store, append_op(id(1), 0, &bytes(1, 5000), true)).expect("durable");
        append(&store, append_op(id(2), 0, &bytes(2, BULK), true)).expect("durable");
        disk.set_capacity(0);
        for _ in 0..3 {
            store.checkpoint();
        }
        assert_eq!(store.failure(), None, "a full disk is not a broken one");
        let check = |store: &DiskStore| {
            assert_eq!(read(store, id(1), 0, 5000).expect("read").data[..5000], bytes(1, 5000));
            assert_eq!(read(store, id(2), 0, BULK as u64).expect("read").data[..BULK], bytes(2, BULK));
        };
        check(&store);
        disk.set_capacity(64 << 20);
        if !crash_while_full {
            store.checkpoint();
            check(&store);
        }
        drop(store);
        disk.crash(CrashPolicy::random());
        let store = open(&disk).expect("nothing is lost");
        check(&store);
        store.checkpoint();
        check(&store);
    }
}

/// A full disk would leave service because a block is healed of which it has nothing, not even the place.
#[test]
fn a_hole_is_not_healed_without_room_for_it() {
    let disk = SimDisk::with_options(SimDiskOptions { capacity: 64 << 20, ..SimDiskOptions::seeded(1) });
    let store = open(&disk).expect("an empty disk");
    append(&store, append_op(id(1), 0, &bytes(1, BULK), true)).expect("durable");
    let (sealed, done) = slot();
    store.seal(id(1), done).expect("begun");
    outcome(&store, &sealed).expect("sealed");
    store.checkpoint();
    drop(store);
    disk.kill();
    let file = disk.open(&paths::chunk(id(1)), OpenOptions::READ_WRITE).expect("there");
    file.set_len(69_632 + 10 * 4096).expect("cut off");
    let store = open(&disk).expect("opens");
    let heal = |block: usize| {
        let good = good_block(id(1), &bytes(1, BULK)[block * 4096..(block + 1) * 4096]);
        let (healed, done) = slot();
        store.heal(id(1), block as u32, good, done).expect("begun");
        let outcome = outcome(&store, &healed);
        store.checkpoint();
        assert_eq!(store.failure(), None, "a full disk is not a broken one");
        outcome.map_err(|error| error.code())
    };
    disk.set_capacity(0);
    assert_eq!(heal(15), Err(ErrorCode::NoSpace));
    assert_eq!(heal(5), Ok(()), "it has its place");
    disk.set_capacity(64 << 20);
    assert_eq!(heal(15), Ok(()));
    assert_eq!(store.verify_block(id(1), 15), Ok(true));
}

/// A flipped bit would be served as good, or a block could not be healed.
#[test]
fn flipped_bits_are_found_and_healed() {
    let disk = SimDisk::new(1);
    let store = open(&disk).expect("an empty disk");
    let content = bytes(1, BULK);
    append(&store, append_op(id(1), 0, &content, true)).expect("durable");
    store.checkpoint();
    let path = paths::chunk(id(1));
    disk.flip_bit(&path, 69_632 + 3 * 4096 + 17, 4);
    let found = read(&store, id(1), 0, BULK as u64).expect("read");
    let bad: Vec<usize> = found
        .data
        .chunks(4096)
        .zip(&found.crcs)
        .enumerate()
        .filter(|(_, (b, c))| crc32c(b) != **c)
        .map(|(i, _)| i)
        .collect();
    assert_eq!(bad, [3]);
    assert_eq!(store.verify_block(id(1), 3), Ok(false));
    assert_eq!(store.verify_block(id(1), 2), Ok(true));
    let (healed, done) = slot();
    store.heal(id(1), 3, good_block(id(1), &content[3 * 4096..4 * 4096]), done).expect("begun");
    outcome(&store, &healed).expect("healed");
    store.checkpoint();
    assert_eq!(store.verify_block(id(1), 3), Ok(true));
    disk.crash(CrashPolicy::LoseAll);
    let store = open(&disk).expect("opens");
    let found = read(&store, id(1), 0, BULK as u64).expect("read");
    assert!(found.data[..BULK] == content[..]);
    assert_eq!(store.verify_chunk(&store.chunk(id(1)).expect("there")), Ok(vec![]));
    assert_eq!(disk.counts().bits_flipped, 1);
    // An unreadable sector is an answer, not the end of the disk.
    let rule = disk.inject(FaultRule::io(&[DiskOp::Read]).on_path("pg/*.chunk").on_range(73_728..73_729));
    let error = read(&store, id(1), 0, 8192).expect_err("unreadable");
    assert!(matches!(error, DataError::Unreadable { .. }) && error.code() == ErrorCode::Missing, "{error}");
    assert!(store.failure().is_none() && disk.hits(rule) > 0);
    assert_eq!(store.verify_block(id(1), 1), Ok(false));
    assert!(read(&store, id(1), 8192, 4096).is_ok());
    let (beyond, done) = slot::<()>();
    assert!(store.heal(id(1), 900, good_block(id(1), &[0; 4096]), done).is_err() && beyond.lock().is_none());
}

/// A chunk whose table of checksums cannot be read would take its space for ever, though nobody needs any of it; or a
/// part of it would count as freed that is still there.
#[test]
fn a_chunk_whose_table_cannot_be_read_is_deleted_whole() {
    let disk = SimDisk::new(1);
    let store = open(&disk).expect("an empty disk");
    append(&store, append_op(id(1), 0, &bytes(1, BULK), true)).expect("durable");
    append(&store, append_op(id(2), 0, &bytes(2, BULK), true)).expect("durable");
    let (sealed, done) = slot();
    store.seal(id(1), done).expect("begun");
    outcome(&store, &sealed).expect("sealed");
    store.checkpoint();
    drop(store);
    disk.kill();
    let store = open(&disk).expect("opens");
    let rule = disk.inject(FaultRule::io(&[DiskOp::Read]).on_path("pg/*.chunk").on_range(4096..4097));
    let punch = |chunk, ranges| {
        let (freed, done) = slot();
        store.punch(chunk, ranges, done).expect("begun");
        outcome(&store, &freed)
    };
    let error = punch(id(1), vec![(0, 8192)]).expect_err("which of it was freed before is not known");
    assert!(matches!(error, DataError::Unreadable { .. }), "{error}");
    assert!(store.info(id(1)).is_some());
    punch(id(1), vec![(0, 1 << 26)]).expect("all of it goes");
    assert!(store.failure().is_none() && disk.hits(rule) >= 2 && store.info(id(1)).is_none());
    drop(store);
    disk.crash(CrashPolicy::LoseAll);
    disk.heal_all();
    let store = open(&disk).expect("opens");
    assert!(store.info(id(1)).is_none(), "it was durable");
    store.checkpoint();
    assert!(!disk.exists(&paths::chunk(id(1))).expect("listed"));
    assert_eq!(read(&store, id(2), 0, BULK as u64).expect("read").data[..BULK], bytes(2, BULK));
}

/// A parity shard would lose the checksums that decoded bytes are held against, or take bytes without them; one of 64
/// MiB has more of them than a record of the journal takes.
#[test]
fn the_checksums_of_rows_are_kept_with_parity() {
    let disk = SimDisk::with_options(SimDiskOptions { capacity: 200 << 20, ..SimDiskOptions::seeded(1) });
    let chunk = id(PARITY);
    let store = open(&disk).expect("an empty disk");
    let bare = AppendOp { row_crcs: Vec::new(), ..append_op(chunk, 0, &bytes(1, BULK), false) };
    let refused = append(&store, bare).expect_err("no checksums of rows");
    assert_eq!((refused.code(), store.chunk_count()), (ErrorCode::BadRequest, 0), "{refused}");
    let rows = append_op(chunk, 0, &bytes(1, BULK), false).row_crcs;
    let superfluous = AppendOp { row_crcs: rows, ..append_op(id(1), 0, &bytes(1, BULK), false) };
    assert_eq!(append(&store, superfluous).expect_err("no parity").code(), ErrorCode::BadRequest);
    let piece = bytes(3, 1 << 20);
    for at in 0..24 {
        append(&store, append_op(chunk, at << 20, &piece, false)).expect("written");
    }
    let mut other = append_op(chunk, 23 << 20, &piece, false);
    assert!(append(&store, append_op(chunk, 23 << 20, &piece, false)).is_ok(), "a repeat");
    other.row_crcs[7] ^= 1;
    assert_eq!(append(&store, other).expect_err("no repeat").code(), ErrorCode::OffsetMismatch);
    let (sealed, done) = slot();
    store.seal(chunk, done).expect("begun");
    assert_eq!(outcome(&store, &sealed).expect("sealed"), 24 << 20);
    let expected = append_op(chunk, 0, &piece, false);
    let check = |store: &crate::disk::DiskStore| {
        for at in [0, 5 << 20, 23 << 20] {
            let found = read(store, chunk, at, 1 << 20).expect("read");
            assert!(found.data[..] == piece[..] && found.crcs == expected.crcs);
            assert_eq!(found.row_crcs, expected.row_crcs);
        }
    };
    check(&store);
    drop(store);
    disk.crash(CrashPolicy::LoseAll);
    // Once from the journal, once from home, where the tables have to be read again.
    let store = open(&disk).expect("opens");
    check(&store);
    store.checkpoint();
    drop(store);
    disk.kill();
    let store = open(&disk).expect("opens");
    check(&store);
    assert_eq!(store.verify_chunk(&store.chunk(chunk).expect("there")), Ok(vec![]));
    let errors = || store.metrics().crc_errors.load(Relaxed);
    assert_eq!(errors(), 0);
    drop(store);
    disk.kill();
    // A flipped bit among them is noticed, and changes nothing else.
    disk.flip_bit(&paths::chunk(chunk), 69_632 + 65_536 * 3 + 40, 2);
    let store = open(&disk).expect("opens");
    let found = read(&store, chunk, 0, 1 << 20).expect("read");
    let wrong: Vec<usize> = (0..found.row_crcs.len()).filter(|i| found.row_crcs[*i] != expected.row_crcs[*i]).collect();
    assert_eq!(wrong, [10 * 12 + 3], "block 10, data shard 3");
    assert_eq!(store.metrics().crc_errors.load(Relaxed), 1);
    assert_eq!(rows_of(chunk, 5).len(), 12);
}

/// A damaged header or state would be believed; a damaged journal would lose acknowledged bytes silently.
#[test]
fn damaged_files_are_named_and_set_aside() {
    let disk = SimDisk::new(1);
    let store = open(&disk).expect("an empty disk");
    for chunk in 1..=4 {
        append(&store, append_op(id(chunk), 0, &bytes(chunk as u8, 9000), true)).expect("durable");
    }
    store.checkpoint();
    drop(store);
    disk.kill();
    let image = disk.snapshot();
    // A bit of the header, of the state.
    for (chunk, offset) in [(1, 40), (2, 512 + 24)] {
        disk.flip_bit(&paths::chunk(id(chunk)), offset, 0);
    }
    let store = open(&disk).expect("the others are good");
    assert!(store.chunk(id(1)).is_none() && store.chunk(id(2)).is_none());
    assert!(disk.exists(&paths::bad_chunk(id(1))).expect("listed"));
    assert!(disk.exists(&paths::bad_chunk(id(2))).expect("listed"));
    assert_eq!(read(&store, id(3), 0, 9000).expect("read").data[..9000], bytes(3, 9000));
    drop(store);
    disk.kill();
    // The journal's header; a journal that is gone; another disk's.
    disk.restore(&image);
    disk.flip_bit(paths::JOURNAL, 20, 3);
    assert!(matches!(open(&disk), Err(OpenError::Corrupt { file, .. }) if file.ends_with("journal")));
    disk.restore(&image);
    disk.remove(paths::JOURNAL).expect("removed");
    assert!(open(&disk).expect_err("missing").to_string().contains("missing"));
    // A batch in the middle of those that are needed.
    disk.restore(&image);
    let mut config = config();
    config.flush_age = std::time::Duration::from_secs(1000);
    let store = open_with(&disk, config).expect("opens");
    for round in 0..5u64 {
        append(&store, append_op(id(5), round * 4096, &bytes(7, 4096), true)).expect("durable");
    }
    let batches = store.metrics().journal_batches.load(Relaxed);
    drop(store);
    disk.kill();
    let file = disk.open(paths::JOURNAL, OpenOptions::READ).expect("there");
    let mut ring = vec![0; file.len().expect("a size") as usize];
    file.read_exact_at(&mut ring, 0).expect("read");
    let starts: Vec<usize> =
        (1..ring.len() / 4096).map(|i| i * 4096).filter(|at| &ring[*at..*at + 8] == b"CAIRNJBT").collect();
    assert!(batches >= 5 && starts.len() >= 5, "{batches} batches");
    disk.flip_bit(paths::JOURNAL, starts[starts.len() - 3] as u64 + 100, 1);
    let error = open(&disk).expect_err("a hole").to_string();
    assert!(error.contains("journal") && error.contains("missing or damaged"), "{error}");
    assert!(disk.counts().bits_flipped >= 4);
}

fn record(epoch: u64, high_water: u32) -> PgStateRecord {
    let member = PgStateMember { disk: DiskId(1), node: NodeId(16), state: MemberState::Serving };
    PgStateRecord {
        cluster: CLUSTER,
        pg: PgId(1),
        volume: VolumeId(1),
        disk: DiskId(1),
        high_water,
        epoch: Epoch(epoch),
        creation_epoch: Epoch(1),
        term: 1,
        scheme: Scheme::Replicated(1),
        retired: false,
        comparing: false,
        older_epoch: Epoch(0),
        members: vec![member],
    }
}

/// A member would answer an epoch that is over, or an index would be given twice after a crash.
#[test]
fn states_of_groups_survive_every_crash() {
    let mut crashes = 0;
    for policy in [CrashPolicy::LoseAll, CrashPolicy::KeepAll, CrashPolicy::random(), CrashPolicy::harsh()] {
        for n in 1.. {
            let disk = SimDisk::new(n);
            let store = open(&disk).expect("an empty disk");
            disk.crash_at_op(disk.ops() + n);
            let (mut saved, mut asked) = ((0, 0), (0, 0));
            for (epoch, mark) in [(1, 0), (1, 8), (2, 8), (2, 16), (5, 40)] {
                asked = (epoch, mark);
                if store.pg_files().update(PgId(1), |_| Some(record(epoch, mark))).is_err() {
                    break;
                }
                saved = asked;
            }
            let down = disk.is_down();
            crashes += u64::from(down);
            drop(store);
            disk.crash(policy);
            let store = open(&disk).expect("opens");
            let found = store.pg_files().get(PgId(1)).map_or((0, 0), |state| (state.epoch.get(), state.high_water));
            assert!(found == saved || found == asked, "saved {saved:?}, asked {asked:?}, found {found:?}");
            assert_eq!(store.pg_files().troubles(), []);
            if !down {
                break;
            }
        }
    }
    assert!(crashes > 50, "{crashes}");
    // Damage is named and is not the same as "nothing known".
    let disk = SimDisk::new(1);
    let store = open(&disk).expect("an empty disk");
    store.pg_files().update(PgId(1), |_| Some(record(3, 9))).expect("saved");
    drop(store);
    disk.kill();
    disk.flip_bit(&paths::pg_state(PgId(1)), 50, 2);
    let store = open(&disk).expect("opens");
    assert!(store.pg_files().get(PgId(1)).is_none() && store.pg_files().is_troubled(PgId(1)));
    assert!(store.pg_files().troubles()[0].what.contains("pg/1/state"));
}
