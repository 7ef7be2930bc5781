//! Power cuts at every operation, and failing syncs: what was acknowledged survives, nothing else appears, recovering
//! twice gives the same.

use cairn_env::DiskOp;
use cairn_sim::{CrashPolicy, FaultRule, FaultWhen, SimDisk, SimRng};

use super::fixture::{Model, Script, open};
use crate::wal::Record;

/// What may be read back: the state after all acknowledged submissions, or with the one that was under way.
struct Allowed {
    before: Model,
    after: Model,
}

/// Writes a script until it fails; gives what may be found then.
fn write(disk: &SimDisk, model: &mut Model, script: &mut Script, count: usize) -> Allowed {
    let opened = open(disk);
    let Ok((wal, groups)) = opened else {
        return Allowed { before: model.clone(), after: model.clone() };
    };
    assert_eq!(groups, model.0);
    for _ in 0..count {
        let records: Vec<Record> = script.next();
        let mut after = model.clone();
        after.take(&records);
        if wal.append(records).is_err() {
            assert!(wal.append(script.next()).is_err(), "a log that failed refuses everything");
            return Allowed { before: model.clone(), after };
        }
        *model = after;
    }
    Allowed { before: model.clone(), after: model.clone() }
}

/// Recovers after a crash, twice, and takes what was found as the new truth.
fn recover(disk: &SimDisk, allowed: &Allowed, model: &mut Model, what: &str) {
    let (wal, groups) = open(disk).unwrap_or_else(|error| panic!("{what}: {error}"));
    drop(wal);
    assert!(groups == allowed.before.0 || groups == allowed.after.0, "{what}: neither before nor after");
    let (_, again) = open(disk).unwrap_or_else(|error| panic!("{what}, second time: {error}"));
    assert_eq!(groups, again, "{what}: recovering twice gives the same");
    *model = Model(groups);
}

/// A run of the script on a new disk that loses power at operation `n`; `false` when it ended before.
fn crash_at(n: u64, policy: CrashPolicy, seed: u64, count: usize) -> (bool, SimDisk) {
    let disk = SimDisk::new(seed);
    let (mut model, mut script) = (Model::default(), Script::new(seed));
    disk.crash_at_op(n);
    let allowed = write(&disk, &mut model, &mut script, count);
    let fired = disk.is_down();
    disk.crash(policy);
    let what = format!("crash at {n}, {policy:?}, seed {seed}");
    recover(&disk, &allowed, &mut model, &what);
    // It goes on from there, also over the place that was torn.
    write(&disk, &mut model, &mut Script::new(seed + 1000), 0);
    let (wal, _) = open(&disk).unwrap();
    let group = cairn_types::GroupId(50);
    let more = Record::HardState { group, state: crate::wal::HardState { term: n, vote: 0, commit: 0 } };
    wal.append(vec![more.clone()]).unwrap();
    drop(wal);
    disk.crash(CrashPolicy::LoseAll);
    model.take(&[more]);
    assert_eq!(open(&disk).unwrap().1, model.0, "{what}: goes on");
    (fired, disk)
}

/// Exhaustive: every operation of a script that rolls over several segments and recycles them.
#[test]
fn every_operation_may_be_the_last() {
    let policies =
        [CrashPolicy::LoseAll, CrashPolicy::KeepAll, CrashPolicy::random(), CrashPolicy::harsh(), CrashPolicy::harsh()];
    let (mut crashes, mut torn, mut names) = (0, 0, 0);
    for (round, policy) in policies.into_iter().enumerate() {
        for n in 1.. {
            let (fired, disk) = crash_at(n, policy, round as u64, 60);
            if !fired {
                assert!(n > 150, "the script has {n} operations only");
                break;
            }
            let counts = disk.counts();
            crashes += counts.crashes;
            torn += counts.sectors_torn;
            names += counts.names_lost;
        }
    }
    println!("{crashes} crashes, {torn} sectors torn, {names} changes of names lost");
    assert!(crashes > 500 && torn > 100 && names > 50);
}

/// Exhaustive: every subset of the sectors of one write, while a batch is being written.
#[test]
fn any_subset_of_sectors_may_survive() {
    let mut subsets = 0u64;
    for n in 1..40 {
        for mask in 0..256u64 {
            // Batches of one block have eight sectors; for larger ones these are some of the subsets.
            let policy = CrashPolicy::Subset(mask | mask << 8 | (mask.reverse_bits() >> 20));
            let (fired, _) = crash_at(n, policy, 77, 8);
            if !fired {
                break;
            }
            subsets += 1;
        }
    }
    println!("{subsets} subsets tried");
    assert!(subsets > 2_000);
}

/// Random: long lives with many crashes, kills and failing syncs.
#[test]
fn long_lives_with_crashes_and_failing_syncs() {
    let (mut crashes, mut failed, mut kills) = (0, 0, 0);
    for seed in 0..25 {
        let disk = SimDisk::new(seed);
        let rng = SimRng::derived(seed, "life");
        let (mut model, mut script) = (Model::default(), Script::new(seed));
        for life in 0..8 {
            let rule = rng.chance(0.3).then(|| {
                let when = FaultWhen::Nth(1 + rng.range(0..60));
                let op = if rng.chance(0.7) { DiskOp::Sync } else { DiskOp::Write };
                disk.inject(FaultRule::io(&[op]).on_path("log/*").when(when))
            });
            if rng.chance(0.7) {
                disk.crash_at_op(disk.ops() + 1 + rng.range(0..150));
            }
            let allowed = write(&disk, &mut model, &mut script, 60);
            failed += rule.map_or(0, |rule| disk.hits(rule));
            disk.heal_all();
            if disk.is_down() || rng.chance(0.6) {
                disk.crash(if rng.chance(0.5) { CrashPolicy::random() } else { CrashPolicy::harsh() });
            } else {
                disk.kill();
            }
            recover(&disk, &allowed, &mut model, &format!("seed {seed} life {life}"));
            // The script goes on from what survived.
            script = Script::continued(seed * 100 + life, &model);
        }
        let counts = disk.counts();
        crashes += counts.crashes;
        kills += counts.kills;
    }
    println!("{crashes} crashes, {kills} kills, {failed} failed operations");
    assert!(crashes > 50 && kills > 10 && failed > 10);
}
