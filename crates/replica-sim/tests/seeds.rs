//! Seeds of replicas, as `cargo xtask sim --replicas` runs more of them.

use cairn_replica_core::role::Role;
use cairn_replica_core::source::SourceKind;
use cairn_replica_sim::count::Counts;
use cairn_replica_sim::world::{Plan, World};

/// Seeds of one test; the four run side by side. Mutants ask for more.
fn seeds() -> u64 {
    std::env::var("CAIRN_REPLICA_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(150)
}

fn run(first: u64) {
    let (mut all, seeds) = (Counts::default(), seeds());
    for seed in first..first + seeds {
        match World::run(Plan { seed, steps: 2_000, trace: false }) {
            Ok(counts) => {
                assert!(counts.steps >= 2_000, "seed {seed} has {} steps", counts.steps);
                all.merge(&counts);
            }
            Err(why) => panic!("{why}; cargo xtask sim --replicas --seed {seed} --trace shows all that happened"),
        }
    }
    println!("{} seeds, {} steps, {} faults", all.seeds, all.steps, all.faults());
    for fault in [
        "fault: crash",
        "fault: crash at an output",
        "fault: power lost everywhere",
        "fault: cut",
        "fault: lost",
        "fault: sent twice",
        "fault: out of order",
        "fault: slow disk",
        "fault: full disk",
        "fault: reads fail",
        "fault: a write fails",
        "fault: bit flipped",
        "fault: disk forgot",
        "fault: member put out",
        "fault: client died",
    ] {
        assert!(all.get(fault) > 0, "{fault} never fired");
    }
    for (role, source) in [
        (Role::Leading, SourceKind::Copy),
        (Role::Leading, SourceKind::Own),
        (Role::Leading, SourceKind::Rebuild),
        (Role::Serving, SourceKind::Rebuild),
        (Role::Syncing, SourceKind::Copy),
        (Role::Syncing, SourceKind::Rebuild),
    ] {
        assert!(all.moved(role, source) > 0, "{role:?} never moved bytes of {source:?}");
    }
    assert_eq!(all.get("converged"), seeds);
}

/// What was acknowledged would be lost, members would stay different, or what was freed would come back.
#[test]
fn seeds_from_0() {
    run(0);
}

/// The same.
#[test]
fn seeds_from_10000() {
    run(10_000);
}

/// The same.
#[test]
fn seeds_from_20000() {
    run(20_000);
}

/// The same.
#[test]
fn seeds_from_30000() {
    run(30_000);
}

/// A seed that failed could not be looked at again.
#[test]
fn the_same_seed_is_the_same_run() {
    for seed in [3, 5, 80] {
        let run = || World::run(Plan { seed, steps: 2_000, trace: false }).expect("it passes");
        assert_eq!(run(), run(), "seed {seed}");
    }
}
