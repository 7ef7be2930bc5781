//! Machines that lead directories, a real partition, and the model of a file system that takes each operation where it
//! is acknowledged.
#![allow(clippy::unwrap_used, reason = "a failed step of a test panics")]
mod choose;
mod clients;
mod cuts;
#[path = "../../../meta-core/tests/namespace/driver.rs"]
#[allow(unused, reason = "the namespace's own tests need more of it")]
mod driver;
mod network;
mod operations;
mod oracle;
mod random;
#[path = "../../../meta-core/tests/namespace/translate.rs"]
#[allow(unused, reason = "the namespace's own tests need more of it")]
mod translate;
mod world;

use std::collections::BTreeMap;
use world::World;

/// First seed and number of seeds.
#[expect(clippy::disallowed_methods, reason = "further schedules are asked for by hand")]
fn seeds(otherwise: u64) -> (u64, u64) {
    let number = |name, otherwise| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise);
    (number("CAIRN_SEED", 0), number("CAIRN_SEEDS", otherwise))
}

const SEEDS: u64 = 14;

/// Each happens often enough in the seeds that are run by themselves.
const EXPECTED: &[&str] = &[
    "acknowledged after the batch before was sent",
    "answer lost",
    "answer repeated",
    "asked to wait",
    "batch late",
    "batch that is full",
    "batch of a session that has ended",
    "cut off",
    "ended",
    "ended by a recall",
    "ended with its top",
    "fenced",
    "fsync of something that waited",
    "fsync that failed",
    "given back",
    "given, and nobody knows",
    "healed",
    "item",
    "items lost",
    "killed",
    "lease ran low",
    "lost, and told",
    "made to end by an operation",
    "more numbers",
    "new leader",
    "not answered when lost",
    "not for the holder",
    "others wait for a holder",
    "queue full",
    "read",
    "recalled",
    "recalled with more than a batch",
    "refused by its holder",
    "refused by the partition",
    "request lost",
    "sent again",
    "top not removed",
    "woken",
];

/// What a program was told would not be so: undone though it was synced, done twice, in part, or in another way than
/// others see it.
#[test]
fn holders_partition_and_model_agree() {
    let (from, count) = seeds(SEEDS);
    let mut outcomes = BTreeMap::<_, u64>::new();
    for seed in from..from + count {
        println!("seed {seed}");
        let mut world = World::new(seed);
        for _ in 0..1_000 {
            world.step();
        }
        world.settle();
        for (what, times) in world.counts {
            *outcomes.entry(what).or_default() += times;
        }
    }
    println!("{outcomes:#?}");
    if count >= SEEDS {
        for what in EXPECTED {
            assert!(outcomes.contains_key(what), "it never happened: {what}");
        }
    }
}
