//! Operations across three partitions beside the model, under a network that loses, repeats and delays, and leaders that end at
//! any moment. An operation takes effect where its partition applies it, so the model takes it there: answers, trees and link
//! counts have to be the same.
mod choose;
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
fn seeds(otherwise: u64) -> (u64, u64) {
    let number = |name, otherwise| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise);
    (number("CAIRN_SEED", 0), number("CAIRN_SEEDS", otherwise))
}

/// An operation across partitions would be done in part, twice, or not though it was acknowledged; a name would lead nowhere, or
/// two directories be in each other.
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

/// A name would be there twice, or nowhere; a directory would be removed with names in it, or its shards stay when it has gone;
/// somebody would be let in by a shard whom its directory refuses.
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
