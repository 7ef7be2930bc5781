//! Tests that the simulated disk keeps its fault contract: it may do all that the contract names, and nothing else.

use std::collections::BTreeSet;

use cairn_env::disk::{Disk, DiskError, DiskOp, File, OpenOptions};

use super::*;
use crate::rng::SimRng;

fn create(disk: &SimDisk, path: &str) -> Arc<dyn File> {
    disk.open(path, OpenOptions::CREATE).unwrap()
}

/// A file of this content, durable with its name.
fn durable(disk: &SimDisk, path: &str, bytes: &[u8]) -> Arc<dyn File> {
    let file = create(disk, path);
    file.write_at(bytes, 0).unwrap();
    file.sync_data().unwrap();
    disk.sync_dir(parent(path)).unwrap();
    file
}

fn read(disk: &SimDisk, path: &str) -> Option<Vec<u8>> {
    let file = disk.open(path, OpenOptions::READ).ok()?;
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    Some(bytes)
}

/// Acknowledged data would be "lost" by the simulator itself, or unsynced data be trusted.
#[test]
fn synced_survives_and_unsynced_obeys_the_policy() {
    for (policy, left) in [(CrashPolicy::LoseAll, b'a'), (CrashPolicy::KeepAll, b'b')] {
        let disk = SimDisk::new(1);
        let file = durable(&disk, "f", &[b'a'; 3000]);
        assert_eq!(disk.unsynced(), 0);
        file.write_at(&[b'b'; 3000], 0).unwrap();
        assert_eq!(disk.unsynced(), 6);
        disk.crash(policy);
        assert_eq!(read(&disk, "f").unwrap(), [left; 3000]);
        assert_eq!(disk.unsynced(), 0);
    }
}

/// A recovery that was never shown some subset of lost sectors may fail on just that one.
#[test]
fn every_subset_of_sectors_and_names_can_survive() {
    let disk = SimDisk::new(1);
    let file = durable(&disk, "f", &[1; 2048]);
    file.write_at(&[2; 2048], 0).unwrap();
    create(&disk, "g");
    create(&disk, "h");
    let image = disk.snapshot();
    assert_eq!(disk.unsynced(), 6);
    let mut seen = BTreeSet::new();
    for mask in 0..1 << disk.unsynced() {
        disk.restore(&image);
        disk.crash(CrashPolicy::Subset(mask));
        let bytes = read(&disk, "f").unwrap();
        let sectors: Vec<u8> = bytes.chunks(512).map(|s| s[0]).collect();
        assert!(bytes.chunks(512).zip(&sectors).all(|(part, first)| part.iter().all(|b| b == first)));
        seen.insert((sectors, disk.exists("g").unwrap(), disk.exists("h").unwrap()));
    }
    assert_eq!(seen.len(), 64);
    let counts = disk.counts();
    assert_eq!((counts.crashes, counts.sectors_lost, counts.names_lost), (64, 128, 64));
}

/// Random crashes that always lose or always keep would find nothing.
#[test]
fn random_crashes_lose_keep_and_tear() {
    let disk = SimDisk::new(7);
    durable(&disk, "f", &[1; 8192]);
    let image = disk.snapshot();
    let mut kinds = BTreeSet::new();
    for _ in 0..60 {
        disk.restore(&image);
        let file = create(&disk, "f");
        file.write_at(&[2; 8192], 0).unwrap();
        file.write_at(&[3; 4096], 8192).unwrap();
        disk.crash(CrashPolicy::random());
        let bytes = read(&disk, "f").unwrap();
        assert!((8192..=12_288).contains(&bytes.len()));
        for sector in bytes.chunks(512) {
            let same = sector.iter().all(|&b| b == sector[0]);
            kinds.insert(if same { sector[0] } else { 255 });
        }
    }
    assert!(BTreeSet::from([0, 1, 2, 3, 255]).is_subset(&kinds), "{kinds:?}");
    let counts = disk.counts();
    println!("{counts:?}");
    assert!(counts.sectors_lost > 50 && counts.sectors_kept > 50 && counts.sectors_torn > 50);
    assert!(counts.sizes_lost > 5);
}

/// A log that appends into a half-filled sector loses its synced head on no real disk with power-safe overwrite; the
/// harsh policy has none.
#[test]
fn tearing_spares_synced_bytes_of_the_sector_unless_harsh() {
    let mut ruined = 0;
    for (policy, harsh) in [(CrashPolicy::random(), false), (CrashPolicy::harsh(), true)] {
        let disk = SimDisk::new(3);
        durable(&disk, "f", b"head");
        let image = disk.snapshot();
        for _ in 0..300 {
            disk.restore(&image);
            let file = create(&disk, "f");
            file.write_at(b"tail", 4).unwrap();
            disk.crash(policy);
            let intact = read(&disk, "f").unwrap().starts_with(b"head");
            assert!(intact || harsh);
            ruined += u32::from(!intact);
        }
        assert!(disk.counts().sectors_torn > 10);
    }
    assert!(ruined > 0);
}

/// A block written twice before its sync may reach the device in its first form.
#[test]
fn versions_between_two_syncs_can_surface() {
    let disk = SimDisk::new(5);
    durable(&disk, "f", &[0; 512]);
    let image = disk.snapshot();
    let mut seen = BTreeSet::new();
    for _ in 0..200 {
        disk.restore(&image);
        let file = create(&disk, "f");
        for version in 1..=3 {
            file.write_at(&[version; 512], 0).unwrap();
        }
        disk.crash(CrashPolicy::random());
        let bytes = read(&disk, "f").unwrap();
        if bytes.iter().all(|&b| b == bytes[0]) {
            seen.insert(bytes[0]);
        }
    }
    assert!(BTreeSet::from([0, 1, 2, 3]).is_subset(&seen), "{seen:?}");
}

/// Forgotten syncs of directories (the usual bug in atomic replacement) must be able to bite.
#[test]
fn names_are_volatile_until_their_directory_is_synced() {
    let disk = SimDisk::new(1);
    disk.create_dir_all("d").unwrap();
    let file = create(&disk, "d/f");
    file.write_at(b"x", 0).unwrap();
    file.sync_all().unwrap();
    disk.crash(CrashPolicy::LoseAll);
    assert_eq!(disk.list("d").unwrap(), [], "a synced file without a synced name vanishes");
    durable(&disk, "d/a", b"old");
    durable(&disk, "d/tmp", b"new");
    disk.rename("d/tmp", "d/a").unwrap();
    let image = disk.snapshot();
    disk.crash(CrashPolicy::LoseAll);
    assert_eq!(read(&disk, "d/a").unwrap(), b"old");
    assert_eq!(read(&disk, "d/tmp").unwrap(), b"new", "a rename is undone as a whole");
    disk.restore(&image);
    disk.sync_dir("").unwrap();
    disk.sync_dir("d").unwrap();
    disk.crash(CrashPolicy::LoseAll);
    assert_eq!((read(&disk, "d/a").unwrap(), read(&disk, "d/tmp")), (b"new".to_vec(), None));
    disk.remove("d/a").unwrap();
    disk.crash(CrashPolicy::LoseAll);
    assert_eq!(read(&disk, "d/a").unwrap(), b"new", "an unsynced remove comes back with its content");
    disk.remove("d/a").unwrap();
    disk.sync_dir("d").unwrap();
    disk.crash(CrashPolicy::KeepAll);
    assert_eq!(read(&disk, "d/a"), None);
    assert!(disk.counts().names_lost >= 3);
}

/// Impossible images (half a rename, one file under two names, a rename without the create) would send people
/// after bugs that cannot happen.
#[test]
fn crashes_keep_the_tree_of_names_possible() {
    for seed in 0..200 {
        let disk = SimDisk::new(seed);
        disk.create_dir_all("p").unwrap();
        disk.create_dir_all("q").unwrap();
        let rng = SimRng::seeded(seed);
        let names = ["p/a", "p/b", "p/c", "q/a", "q/b"];
        for step in 0..30u8 {
            let (a, b) = (*rng.pick(&names), *rng.pick(&names));
            match rng.range(0..5) {
                0 => create(&disk, a).write_at(&[step; 3], 0).unwrap(),
                1 => {
                    disk.rename(a, b).ok();
                }
                2 => {
                    disk.remove(a).ok();
                }
                3 => disk.sync_dir("p").unwrap(),
                _ => create(&disk, a).sync_data().unwrap(),
            }
        }
        let before = names.map(|n| read(&disk, n).is_some());
        let unsynced = disk.unsynced();
        disk.crash(if seed % 2 == 0 { CrashPolicy::random() } else { CrashPolicy::Subset(rng.range(0..u64::MAX)) });
        let world = disk.world();
        let mut files = BTreeSet::new();
        for dir in ["p", "q"] {
            for (name, entry) in world.store.names.children(dir) {
                let Entry::File(id) = entry else { panic!("{dir}/{name} became a directory") };
                assert!(files.insert(id), "seed {seed}: one file has two names");
                assert!(world.store.files.contains_key(&id));
            }
        }
        assert_eq!(files.len(), world.store.files.len(), "seed {seed}: a file without a name stayed");
        drop(world);
        if unsynced == 0 {
            assert_eq!(before, names.map(|n| read(&disk, n).is_some()));
        }
    }
}

/// The sweep over all crash points would skip one, or work would go on after the crash.
#[test]
fn everything_fails_after_the_crash_point_until_the_restart() {
    let disk = SimDisk::new(1);
    let work = |disk: &SimDisk| -> Result<(), DiskError> {
        let file = disk.open("f", OpenOptions::CREATE)?;
        file.write_at(b"x", 0)?;
        file.sync_data()?;
        disk.rename("f", "g")?;
        disk.sync_dir("")
    };
    work(&disk).unwrap();
    assert_eq!(disk.ops(), 5);
    for n in 1..=5 {
        let disk = SimDisk::new(n);
        let lock = disk.lock("LOCK").unwrap();
        let start = disk.ops();
        disk.crash_at_op(start + n);
        let held = disk.open("LOCK", OpenOptions::READ).unwrap();
        let failure = work(&disk).unwrap_err();
        assert!(matches!(failure, DiskError::Gone { .. }) && !failure.is_refusal());
        assert_eq!(disk.ops(), start + n);
        assert!(disk.is_down());
        assert!(matches!(disk.list(""), Err(DiskError::Gone { .. })));
        assert!(matches!(disk.lock("LOCK").map(|_| ()), Err(DiskError::Gone { .. })));
        disk.crash(CrashPolicy::KeepAll);
        assert!(matches!(held.len(), Err(DiskError::Gone { .. })), "an old handle stays dead");
        let again = disk.lock("LOCK").unwrap();
        drop(lock);
        assert!(disk.lock("LOCK").is_err(), "a dead guard must not release the new lock");
        drop(again);
        assert_eq!(disk.exists("g").unwrap(), n >= 4);
        work(&disk).unwrap();
    }
}

/// Software that trusts a sync after a failed one loses data on Linux; it must here, too.
#[test]
fn a_failed_sync_forgets_while_later_ones_succeed() {
    let mut lost = 0;
    for seed in 0..20 {
        let disk = SimDisk::new(seed);
        let file = durable(&disk, "f", &[1; 4096]);
        let rule = disk.inject(FaultRule::io(&[DiskOp::Sync]).on_path("f").when(FaultWhen::Nth(1)));
        file.write_at(&[2; 4096], 0).unwrap();
        assert!(matches!(file.sync_data(), Err(DiskError::Io { errno: Some(5), .. })));
        assert_eq!(disk.hits(rule), 1);
        assert_eq!(read(&disk, "f").unwrap(), [2; 4096], "the cache still shows it");
        file.sync_data().unwrap();
        let image = disk.snapshot();
        disk.drop_caches();
        let after = read(&disk, "f").unwrap();
        disk.restore(&image);
        disk.crash(CrashPolicy::KeepAll);
        assert_eq!(read(&disk, "f").unwrap(), after, "cache drop and crash agree on what was forgotten");
        assert_eq!(
            disk.counts().sectors_dropped_by_failed_sync,
            after.chunks(512).filter(|s| s[0] == 1).count() as u64
        );
        lost += after.chunks(512).filter(|s| s[0] == 1).count();
    }
    assert!(lost > 20, "{lost}");
}

/// EIO and ENOSPC that never fire, or leave no partial effects, test nothing.
#[test]
fn rules_fail_operations_with_partial_effects() {
    let disk = SimDisk::new(11);
    durable(&disk, "f", &[1; 65_536]);
    let image = disk.snapshot();
    let rule = disk.inject(FaultRule::io(&[DiskOp::Write]).times(20));
    let mut prefixes = BTreeSet::new();
    for _ in 0..20 {
        disk.restore(&image);
        assert!(create(&disk, "f").write_at(&[2; 65_536], 0).unwrap_err().is_disk_fault());
        let bytes = read(&disk, "f").unwrap();
        let cut = bytes.iter().position(|&b| b == 1).unwrap_or(bytes.len());
        assert!(cut.is_multiple_of(512) && bytes[cut..].iter().all(|&b| b == 1));
        prefixes.insert(cut);
    }
    assert_eq!(disk.hits(rule), 20);
    assert!(prefixes.len() > 10, "{prefixes:?}");
    create(&disk, "f").write_at(b"fine again", 0).unwrap();
    disk.heal_all();
    let sick = disk.inject(FaultRule::io(&[DiskOp::Read]).on_range(4096..8192));
    let file = create(&disk, "f");
    let mut buf = [0; 100];
    file.read_exact_at(&mut buf, 0).unwrap();
    assert!(file.read_exact_at(&mut buf, 4090).is_err());
    disk.heal(sick);
    file.read_exact_at(&mut buf, 4090).unwrap();
    disk.inject(FaultRule::no_space(&[DiskOp::Open, DiskOp::Allocate]));
    assert!(matches!(disk.open("new", OpenOptions::CREATE).map(|_| ()), Err(DiskError::NoSpace { .. })));
    assert!(matches!(file.allocate(0, 1 << 20), Err(DiskError::NoSpace { .. })));
    let counts = disk.counts();
    assert!(counts.io_errors == 21 && counts.no_space == 2, "{counts:?}");
}

/// Space accounting that drifts makes ENOSPC tests meaningless.
#[test]
fn capacity_is_enforced_and_given_back() {
    let disk = SimDisk::with_options(SimDiskOptions { capacity: 10 * 4096, ..SimDiskOptions::seeded(1) });
    let free = || disk.space().unwrap().free / 4096;
    let file = create(&disk, "f");
    file.allocate(0, 4 * 4096).unwrap();
    assert_eq!(free(), 6);
    file.write_at(&[1; 4096], 0).unwrap();
    assert_eq!(free(), 6, "a reserved page is not paid twice");
    let failure = create(&disk, "g").write_at(&[2; 8 * 4096], 0).unwrap_err();
    assert!(matches!(failure, DiskError::NoSpace { .. }) && !failure.is_refusal());
    assert_eq!((free(), read(&disk, "g").unwrap().len()), (0, 6 * 4096), "the pages that fit were written");
    disk.remove("g").unwrap();
    assert_eq!(free(), 6);
    file.punch_hole(0, 2 * 4096).unwrap();
    assert_eq!(free(), 8);
    disk.rename("f", "h").unwrap();
    disk.remove("h").unwrap();
    assert_eq!(free(), 8, "an open file keeps its space");
    drop(file);
    assert_eq!(free(), 10);
    disk.crash(CrashPolicy::LoseAll);
    assert_eq!(free(), 10);
    assert!(disk.counts().no_space > 0);
}

/// Bit flips that heal at the next crash, or hit nothing, test no checksum.
#[test]
fn flipped_bits_stay_flipped() {
    let disk = SimDisk::new(1);
    durable(&disk, "d", &[0; 10_000]);
    disk.flip_bit("d", 5000, 3);
    let (path, at) = disk.flip_random_bit("").unwrap();
    assert_eq!(path, "d");
    disk.crash(CrashPolicy::LoseAll);
    let bytes = read(&disk, "d").unwrap();
    let wrong: Vec<usize> = (0..bytes.len()).filter(|&i| bytes[i] != 0).collect();
    assert_eq!(bytes[5000] & 8, 8);
    assert!(wrong.contains(&(at as usize)) && wrong.len() <= 2);
    assert_eq!(disk.counts().bits_flipped, 2);
    assert_eq!(SimDisk::new(1).flip_random_bit(""), None);
}

/// A killed process leaves its writes to the kernel; a test of restarts must not lose them.
#[test]
fn a_kill_keeps_what_was_written() {
    let disk = SimDisk::new(1);
    let lock = disk.lock("LOCK").unwrap();
    let file = create(&disk, "f");
    file.write_at(b"abc", 0).unwrap();
    disk.kill();
    assert!(file.write_at(b"x", 0).is_err());
    assert_eq!(read(&disk, "f").unwrap(), b"abc");
    drop(disk.lock("LOCK").unwrap());
    drop(lock);
    assert!(disk.unsynced() > 0, "it is as volatile as before");
    disk.crash(CrashPolicy::LoseAll);
    assert_eq!(read(&disk, "f"), None);
}

/// A failing seed could not be replayed.
#[test]
fn same_seed_same_faults_same_image() {
    let run = |seed| {
        let disk = SimDisk::new(seed);
        disk.inject(FaultRule::io(&[DiskOp::Write, DiskOp::Sync, DiskOp::Rename]).when(FaultWhen::Chance(0.1)));
        let rng = SimRng::seeded(9);
        for _ in 0..10 {
            for step in 0..40u8 {
                let (a, b) = (format!("f{}", rng.range(0..5)), format!("f{}", rng.range(0..5)));
                let Ok(file) = disk.open(&a, OpenOptions::CREATE) else { continue };
                file.write_at(&vec![step; rng.range(1..9000) as usize], rng.range(0..9000)).ok();
                file.sync_data().ok();
                file.set_len(rng.range(0..20_000)).ok();
                disk.rename(&a, &b).ok();
                disk.sync_dir("").ok();
            }
            disk.crash(CrashPolicy::harsh());
        }
        let files: Vec<_> = disk.list("").unwrap().into_iter().map(|e| (read(&disk, &e.name), e.name)).collect();
        (files, disk.counts(), disk.ops())
    };
    let first = run(1);
    assert_eq!(first, run(1));
    assert_ne!(first.0, run(2).0);
    assert!(first.1.io_errors > 10 && first.1.total() > 50, "{:?}", first.1);
}

/// A disk that lies would not, or would spoil what is at rest.
#[test]
fn a_disk_lies_if_it_is_asked_to() {
    let disk = SimDisk::new(1);
    let file = durable(&disk, "f", &[1; 4096]);
    disk.inject(FaultRule::forgets());
    disk.inject(FaultRule::flips());
    let mut bytes = [0; 4096];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes.iter().map(|byte| (byte ^ 1).count_ones()).sum::<u32>(), 1);
    file.write_at(&[2; 4096], 0).unwrap();
    file.sync_data().unwrap();
    disk.heal_all();
    assert_eq!(read(&disk, "f").unwrap(), [2; 4096]);
    disk.crash(CrashPolicy::LoseAll);
    assert_eq!(read(&disk, "f").unwrap(), [1; 4096]);
    let counts = disk.counts();
    assert_eq!((counts.syncs_forgotten, counts.reads_flipped), (1, 1));
}

/// Space that was reserved and given back would count as taken for ever: whoever looks at what files hold would write
/// them anew again and again.
#[test]
fn what_is_reserved_behind_the_end_goes_with_the_same_size() {
    let disk = SimDisk::new(1);
    let file = durable(&disk, "f", &[1; 4096]);
    assert!(file.allocate(0, 1 << 20).unwrap());
    assert_eq!(file.allocated_bytes().unwrap(), 1 << 20);
    file.set_len(4096).unwrap();
    assert_eq!(file.allocated_bytes().unwrap(), 4096);
    assert_eq!(read(&disk, "f").unwrap(), [1; 4096]);
}
