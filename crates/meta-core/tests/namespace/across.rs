//! Operations across three partitions beside the model, under a network that loses, repeats and delays, and leaders
//! that end at any moment. An operation takes effect where its partition applies it, so the model takes it there:
//! answers, trees and link counts have to be the same.
mod choose;
mod cuts;
mod fullness;
mod limits;
mod quotas;
mod removed_trees;
mod schedules;
mod trash;
mod world;

use world::World;

fn run(seeds: std::ops::Range<u64>, steps: u32, world: fn(u64) -> World) -> std::collections::BTreeMap<String, u64> {
    let mut outcomes = std::collections::BTreeMap::new();
    for seed in seeds {
        println!("seed {seed}");
        let mut world = world(seed);
        for _ in 0..steps {
            world.step();
        }
        world.settle();
        world.compare();
        for (what, count) in world.outcomes {
            *outcomes.entry(what).or_default() += count;
        }
    }
    outcomes
}

/// First seed and number of seeds.
#[expect(clippy::disallowed_methods, reason = "further schedules are asked for by hand")]
pub(crate) fn seeds(otherwise: u64) -> (u64, u64) {
    let number = |name, otherwise| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise);
    (number("CAIRN_SEED", 0), number("CAIRN_SEEDS", otherwise))
}

/// An operation across partitions would be done in part, twice, or not though it was acknowledged; a name would lead
/// nowhere, or two directories be in each other.
#[test]
fn partitions_and_model_agree() {
    let (from, count) = seeds(400);
    let outcomes = run(from..from + count, 2_000, World::new);
    if count < 400 {
        return;
    }
    for what in [
        "Mkdir across",
        "Rmdir across",
        "Unlink across",
        "Link across",
        "RemoveTree across",
        "tree removed",
        "ReclaimEntry across",
        "session ended",
        "session ended at work",
        "Rename SessionEnded",
        "own begun anew",
        "refused in a removed tree",
        "gone with its tree",
        "Rename across",
        "Rename exchange across",
        "move locked",
        "conflict",
        "leader ended",
        "lock resolved",
        "done late",
        "lock taken anew",
        "repeat",
        "checked at once",
        "checked again",
        "checked in the end",
    ] {
        assert!(outcomes.get(what).is_some_and(|count| *count > 10), "{what} is rare: {outcomes:?}");
    }
}

/// A name would be there twice, or nowhere; a directory would be removed with names in it, or its shards stay when it
/// has gone; somebody would be let in by a shard whom its directory refuses.
#[test]
fn sharded_directories_and_model_agree() {
    let (from, count) = seeds(300);
    let outcomes = run(from..from + count, 2_000, World::with_shards);
    if count < 300 {
        return;
    }
    for what in [
        "AddShard across",
        "AddShard here",
        "sent on to a shard",
        "Rmdir across",
        "Rmdir done",
        "Setattr across",
        "Rename across",
        "Rename exchange across",
        "RemoveTree across",
        "ReclaimEntry across",
        "tree removed",
        "leader ended",
        "checked in the end",
    ] {
        assert!(outcomes.get(what).is_some_and(|count| *count > 10), "{what} is rare: {outcomes:?}");
    }
}

/// A file that is renamed while a snapshot is taken would be in both directories of it, or in neither; what was
/// acknowledged before would not be in it, or what came after would.
#[test]
fn snapshots_of_all_partitions_are_moments() {
    let (from, count) = seeds(100);
    let outcomes = run(from..from + count, 3_000, World::with_snapshots);
    if count < 100 {
        return;
    }
    for what in [
        "snapshot complete",
        "snapshot deleted",
        "snapshot compared",
        "snapshot compared in the end",
        "snapshot read waits",
        "hold lapsed",
        "void: did not hold",
        "void after a cut",
        "void by the next leader",
        "Rename across",
        "Rename exchange across",
        "Link across",
        "Mkdir across",
        "ReclaimEntry across",
        "leader ended",
        "lock resolved",
    ] {
        assert!(outcomes.get(what).is_some_and(|count| *count > 10), "{what} is rare: {outcomes:?}");
    }
}

/// The same of directories whose names are in several partitions.
#[test]
fn snapshots_of_sharded_directories_are_moments() {
    let (from, count) = seeds(40);
    let outcomes = run(from..from + count, 3_000, World::with_snapshots_and_shards);
    if count < 40 {
        return;
    }
    for what in ["snapshot complete", "snapshot compared in the end", "AddShard across", "void after a cut"] {
        assert!(outcomes.get(what).is_some_and(|count| *count > 10), "{what} is rare: {outcomes:?}");
    }
}
