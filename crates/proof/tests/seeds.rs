//! Seeds of the proof, each in a process of its own under the deterministic scheduler: a few fixed ones, or as many as
//! the environment says.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use std::path::Path;

use cairn_proof::fleet::{Order, one, run_each};

/// Run by `cargo test`: each layout with one head and with three, all kinds of faults; copies that are encoded together
/// and by file.
fn fixed() -> impl Iterator<Item = u64> {
    (0..19).chain([24, 34])
}
/// The same with keys: each layout; with 42 and 46 a partition and a machine come back that did not once.
/// In some seeds, as 40, a node that has its number gets a manager in its own directory. With keys that takes a new
/// directory (guides/operate), for a key has one number: such a node is refused, and the seed ends with it.
const WITH_KEYS: std::ops::Range<u64> = 41..47;

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_sim"))
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// A number in what a seed says of itself, behind these words.
fn said(text: &str, before: &str) -> u64 {
    let rest = text.split(before).nth(1).unwrap_or_default();
    rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap_or(0)
}

fn order() -> Order {
    Order {
        first: 0,
        count: 0,
        jobs: number("CAIRN_JOBS").unwrap_or(2) as usize,
        steps: number("CAIRN_STEPS").unwrap_or(16) as usize,
        scale: number("CAIRN_SCALE").unwrap_or(1) as usize,
        keys: number("CAIRN_KEYS").is_some(),
        until_failure: false,
    }
}

/// A published byte would be lost or read back wrong, or bytes would come where only an error is right.
#[test]
fn every_published_byte_reads_back_right() {
    let first = number("CAIRN_FIRST").unwrap_or(0);
    let seeds: Vec<u64> = match (number("CAIRN_SEED"), number("CAIRN_SEEDS")) {
        (Some(seed), _) => vec![seed],
        (None, Some(count)) => (first..first + count).collect(),
        (None, None) => fixed().collect(),
    };
    let outcome = run_each(program(), &seeds, order());
    println!("{} seeds, {} failed", seeds.len(), outcome.failed.len());
    if seeds.iter().copied().eq(fixed()) {
        let in_place: u64 = outcome.passed.iter().map(|ended| said(&ended.text, "blocks overwritten in place ")).sum();
        let counted = |what| outcome.passed.iter().map(|ended| said(&ended.text, what)).sum::<u64>();
        assert!(counted("disks that went back ") > 0, "no disk came back as an older copy of itself");
        assert!(counted("heads that went back ") > 0, "no head came back as an older copy of itself");
        assert!(counted("records compared ") > 100, "too few records were appended to prove anything of them");
        assert!(counted("operations on names ") > 100, "too little was done to names across partitions");
        let of_several = counted("snapshots of several partitions ");
        assert!(of_several > 0 && counted("snapshots of directories ") > 0, "a kind of snapshot was not taken");
        assert!(counted("rounds checked ") > 5, "too few histories of names were checked");
        assert!(in_place > 20, "too few blocks were overwritten in place to prove anything of it");
        let encoded = (counted("bytes encoded together "), counted("bytes encoded by file "));
        assert!(encoded.0 > 0 && encoded.1 > 0, "together and by file {encoded:?} bytes were encoded");
    }
    let failed: Vec<u64> = outcome.failed.iter().map(|ended| ended.seed).collect();
    assert!(
        failed.is_empty(),
        "repeat with `cargo run -p cairn-proof --bin sim -- --seed N`: {failed:?}; what they said is above"
    );
}

/// The trace that a seed says it left.
fn trace(text: &str) -> Option<String> {
    text.split("trace ").nth(1).map(str::to_owned)
}

/// A failure that a seed found could not be found again.
#[test]
fn the_same_seed_is_the_same_run() {
    let order = order();
    let run = |seed| {
        let ended = one(program(), seed, order, seed as usize);
        assert!(ended.passed, "{}", ended.text);
        ended.text
    };
    let (first, again, other) = (run(17), run(17), run(25));
    assert!(trace(&first).is_some(), "{first}");
    assert_eq!(first, again);
    assert_ne!(trace(&first), trace(&other));
}

/// Something would be lost only where keys are required, or a failure there not be found again: handshakes and codes
/// have their own chance and time.
#[test]
fn with_keys_too_and_again() {
    let with = Order { keys: true, ..order() };
    let seeds: Vec<u64> = WITH_KEYS.collect();
    let outcome = run_each(program(), &seeds, with);
    let failed: Vec<&str> = outcome.failed.iter().map(|ended| ended.text.as_str()).collect();
    assert!(failed.is_empty(), "repeat with `cargo run -p cairn-proof --bin sim -- --keys --seed N`: {failed:?}");
    let first = outcome.passed.iter().find(|ended| ended.seed == WITH_KEYS.start).expect("it passed");
    let again = one(program(), WITH_KEYS.start, with, 0);
    assert_eq!(trace(&first.text), trace(&again.text), "{}", again.text);
    assert!(first.text.contains(", keys"), "{}", first.text);
    let plain = one(program(), WITH_KEYS.start, Order { keys: false, ..with }, 0);
    assert_ne!(trace(&first.text), trace(&plain.text), "nothing went through TLS");
}
