//! Seeds of the proof: a few fixed ones, or as many as the environment says.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

use cairn_proof::seed::{Plan, run};

/// Run by `cargo test`: each layout twice, all kinds of faults.
const FIXED: [u64; 8] = [16, 17, 20, 31, 37, 38, 42, 43];

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// A published byte would be lost or read back wrong, or bytes would come where only an error is right.
#[test]
fn every_published_byte_reads_back_right() {
    if let Ok(filter) = std::env::var("CAIRN_LOG") {
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    }
    let first = number("CAIRN_FIRST").unwrap_or(0);
    let seeds: Vec<u64> = match (number("CAIRN_SEED"), number("CAIRN_SEEDS")) {
        (Some(seed), _) => vec![seed],
        (None, Some(count)) => (first..first + count).collect(),
        (None, None) => FIXED.to_vec(),
    };
    let steps = number("CAIRN_STEPS").unwrap_or(16) as usize;
    let scale = number("CAIRN_SCALE").unwrap_or(1) as usize;
    let jobs = number("CAIRN_JOBS").unwrap_or(8) as usize;
    let (next, faults, failed) = (AtomicUsize::new(0), AtomicU64::new(0), Mutex::new(Vec::new()));
    let in_place = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..jobs.min(seeds.len()) {
            scope.spawn(|| {
                while let Some(seed) = seeds.get(next.fetch_add(1, SeqCst)) {
                    match run(Plan { seed: *seed, steps, scale }) {
                        Ok(summary) => {
                            println!("{}", summary.text);
                            assert!(summary.faults > 0, "seed {seed} had no fault, so it proves nothing");
                            faults.fetch_add(summary.faults, SeqCst);
                            in_place.fetch_add(summary.in_place, SeqCst);
                        }
                        Err(why) => {
                            println!("seed {seed} FAILED: {why}");
                            failed.lock().expect("no panic while it is held").push((*seed, why));
                        }
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("no panic while it was held");
    println!("{} seeds, {} faults, {} failed", seeds.len(), faults.into_inner(), failed.len());
    if seeds == FIXED {
        assert!(in_place.into_inner() > 50, "too few blocks were overwritten in place to prove anything of it");
    }
    assert!(failed.is_empty(), "repeat with CAIRN_SEED=n CAIRN_STEPS={steps} CAIRN_SCALE={scale}: {failed:#?}");
}
