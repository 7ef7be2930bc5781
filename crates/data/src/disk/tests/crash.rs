//! Crashes: at every operation of small scripts with every way to lose and tear, then at random in long ones.

use cairn_sim::{CrashPolicy, SimDisk, SimRng};

use super::model::{Model, Op, PARITY, config, open, open_with};

/// Runs a script, crashing at the `n`-th operation; then recovers (crashing again on the way, if asked) and checks.
/// Returns whether the crash came.
fn crash_at(disk: &SimDisk, script: &[Op], n: u64, policy: CrashPolicy, again: Option<u64>) -> bool {
    let store = open(disk).expect("a sound disk");
    disk.crash_at_op(disk.ops() + n);
    let mut model = Model::default();
    for op in script {
        if model.step(&store, op).is_err() {
            break;
        }
    }
    let crashed = disk.is_down();
    drop(store);
    disk.crash(policy);
    if let Some(again) = again {
        disk.crash_at_op(disk.ops() + again);
        // It may end before that operation comes.
        let _interrupted = open(disk);
        disk.crash(policy);
    }
    let store = open(disk).unwrap_or_else(|error| panic!("after a crash at {n} with {policy:?}: {error}"));
    model.check(&store, disk);
    let before: Vec<_> = infos(&store);
    drop(store);
    // Nothing may change from opening once more: recovery is idempotent.
    disk.kill();
    let store = open(disk).expect("opens again");
    assert_eq!(infos(&store), before, "a second recovery differs");
    model.check(&store, disk);
    crashed
}

fn infos(store: &crate::disk::DiskStore) -> Vec<crate::disk::ChunkInfo> {
    store.chunks.read().values().map(|chunk| chunk.info()).collect()
}

fn append(chunk: u32, bytes: usize, sync: bool, replace: bool) -> Op {
    Op::Append { chunk, bytes, sync, replace }
}

fn overwrite(chunk: u32, first: u32, step: u32, count: u32) -> Op {
    Op::Overwrite { chunk, first, step, count }
}

/// Each once with chunks of replicated groups and once with parity shards.
fn scripts() -> Vec<Vec<Op>> {
    let plain = plain_scripts();
    let parity = plain.iter().map(|script| script.iter().map(|op| op.of_parity()).collect()).collect::<Vec<_>>();
    plain.into_iter().chain(parity).collect()
}

fn plain_scripts() -> Vec<Vec<Op>> {
    vec![
        // Small appends, tails replaced, written home in between.
        vec![
            append(1, 100, true, false),
            append(1, 300, true, true),
            Op::Checkpoint,
            append(1, 5000, false, true),
            append(1, 10, true, true),
            append(2, 8192, false, false),
            Op::Sync(2),
            Op::Checkpoint,
            append(1, 20, true, true),
        ],
        // Bulk past the journal, with a replaced tail in it, sealed.
        vec![
            append(1, 40_000, false, false),
            Op::Sync(1),
            append(1, 50_000, false, true),
            append(1, 100, false, true),
            append(1, 30_000, true, false),
            Op::Checkpoint,
            append(1, 20_000, false, false),
            Op::Seal(1),
            Op::Checkpoint,
        ],
        // Overwrites, scattered and in several records, over bulk and over each other, home and not, then a tail.
        vec![
            append(1, 60_000, true, false),
            overwrite(1, 1, 1, 2),
            Op::Checkpoint,
            overwrite(1, 0, 2, 7),
            overwrite(1, 2, 1, 3),
            append(1, 9_000, true, true),
            overwrite(1, 14, 1, 2),
            Op::Seal(1),
            overwrite(1, 16, 1, 1),
            Op::Punch(1, 3, 5),
            overwrite(1, 5, 5, 2),
            Op::Checkpoint,
        ],
        // Frees, a chunk that dies, healing.
        vec![
            append(1, 32_768, true, false),
            append(2, 4096, true, false),
            Op::Punch(1, 0, 2),
            Op::Heal(1, 3),
            Op::Seal(2),
            Op::Checkpoint,
            Op::Punch(2, 0, 1),
            Op::Seal(1),
            Op::Punch(1, 2, 5),
            Op::Checkpoint,
            Op::Punch(1, 0, 8),
            append(3, 10, true, false),
            Op::Checkpoint,
        ],
    ]
}

/// Something that a sync, seal or free answered would be lost, or something nobody asked for would appear: a crash at
/// every operation, with nothing, everything, or random parts of what was not synced surviving.
#[test]
fn every_operation_of_small_scripts() {
    let disk = SimDisk::new(3);
    drop(open(&disk).expect("an empty disk"));
    let image = disk.snapshot();
    let mut crashes = 0;
    for (number, script) in scripts().iter().enumerate() {
        let mut policies = vec![CrashPolicy::LoseAll, CrashPolicy::KeepAll];
        policies.extend([CrashPolicy::random(), CrashPolicy::harsh()].repeat(2));
        for (i, policy) in policies.into_iter().enumerate() {
            let mut n = 1;
            loop {
                disk.restore(&image);
                // Every third run is interrupted again in its recovery.
                let again = (n % 3 == 0).then_some(1 + (n + i as u64) % 7);
                if !crash_at(&disk, script, n, policy, again) {
                    break;
                }
                crashes += 1;
                n += 1;
            }
            assert!(n > 10, "script {number} has too few operations to crash at: {n}");
        }
    }
    let counts = disk.counts();
    println!("{crashes} crashes; {counts:?}");
    assert!(counts.sectors_lost > 0 && counts.sectors_torn > 0 && counts.names_lost > 0 && counts.sizes_lost > 0);
}

fn random_op(rng: &SimRng) -> Op {
    let chunk = rng.range(1..6) as u32 + if rng.chance(0.4) { PARITY } else { 0 };
    let bytes = match rng.range(0..4) {
        0 => rng.range(1..300),
        1 => rng.range(300..9000),
        2 => rng.range(9000..20_000),
        _ => rng.range(20_000..150_000),
    };
    match rng.range(0..20) {
        0..=3 => overwrite(chunk % PARITY, rng.range(0..8) as u32, rng.range(1..4) as u32, rng.range(1..12) as u32),
        4..=11 => append(chunk, bytes as usize, rng.chance(0.4), rng.chance(0.4)),
        12..=14 => Op::Sync(chunk),
        15 => Op::Seal(chunk),
        16..=17 => {
            let from = rng.range(0..30) as u32;
            Op::Punch(chunk, from, from + rng.range(1..40) as u32)
        }
        18 => Op::Heal(chunk, rng.range(0..10) as u32),
        _ => Op::Checkpoint,
    }
}

/// The same for long random scripts over several lives of the disk, with laps of the journal: what no small case shows.
#[test]
fn random_lives() {
    let (mut crashes, mut flushes) = (0, 0);
    for seed in 0..60 {
        let rng = SimRng::seeded(seed);
        let disk = SimDisk::new(seed);
        let mut model = Model::default();
        drop(open(&disk).expect("an empty disk"));
        for life in 0..4 {
            let mut config = config();
            // Now and then everything stays in the journal until it is half full.
            config.flush_age = std::time::Duration::from_secs(if rng.chance(0.5) { 0 } else { 1000 });
            let store = open_with(&disk, config).unwrap_or_else(|error| panic!("seed {seed} life {life}: {error}"));
            model.check(&store, &disk);
            model.adopt(&store);
            disk.crash_at_op(disk.ops() + rng.range(1..400));
            for _ in 0..80 {
                if model.step(&store, &random_op(&rng)).is_err() {
                    break;
                }
            }
            crashes += u64::from(disk.is_down());
            flushes += store.metrics().flushes.load(std::sync::atomic::Ordering::Relaxed);
            drop(store);
            disk.crash(if rng.chance(0.5) { CrashPolicy::random() } else { CrashPolicy::harsh() });
        }
        let store = open(&disk).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        model.check(&store, &disk);
    }
    println!("{crashes} crashes, {flushes} flushes");
    assert!(crashes > 100 && flushes > 100);
}
