//! Runs seeds of replicas: `cargo xtask sim --replicas`.

use std::process::ExitCode;
use std::time::Instant;

use cairn_replica_sim::count::Counts;
use cairn_replica_sim::world::{Plan, World};

const USAGE: &str = "\
sim --replicas --seed N [--steps N] [--trace]               one seed; --trace says all that happens
sim --replicas --seeds N [--first N] [--steps N] [--keep-on]  many, one after the other, on one core; what they did is
                                                            counted at the end; --keep-on: also after one that failed";

fn number(args: &[String], name: &str) -> Option<u64> {
    let at = args.iter().position(|arg| arg == name)?;
    args.get(at + 1)?.parse().ok()
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let flag = |name: &str| args.iter().any(|arg| arg == name);
    let steps = number(&args, "--steps").unwrap_or(2_000);
    if let Some(seed) = number(&args, "--seed") {
        return match World::run(Plan { seed, steps, trace: flag("--trace") }) {
            Ok(counts) => {
                println!("{counts}");
                ExitCode::SUCCESS
            }
            Err(why) => {
                println!("FAILED: {why}");
                ExitCode::FAILURE
            }
        };
    }
    let Some(count) = number(&args, "--seeds") else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let first = number(&args, "--first").unwrap_or(0);
    let (begun, mut all, mut failed) = (Instant::now(), Counts::default(), 0u64);
    for seed in first..first + count {
        let run = std::panic::catch_unwind(|| World::run(Plan { seed, steps, trace: false }));
        match run {
            Ok(Ok(counts)) => all.merge(&counts),
            Ok(Err(why)) => {
                println!("FAILED: {why}");
                failed += 1;
            }
            Err(_) => {
                println!("FAILED: seed {seed} broke an invariant");
                failed += 1;
            }
        }
        if failed > 0 && !flag("--keep-on") {
            break;
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!("{all}{failed} failed; {:.0} seeds a second", (all.seeds + failed) as f64 / seconds);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
