//! [`run`]: many seeds, each in a process of its own, some at a time. A seed that the scheduler runs is a process, as
//! its hooks are those of the whole process.

use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Instant;

/// Which seeds, and how.
#[derive(Debug, Clone, Copy)]
pub struct Order {
    pub first: u64,
    pub count: u64,
    /// Processes at a time.
    pub jobs: usize,
    pub steps: usize,
    pub scale: usize,
    /// Nobody is served without a key.
    pub keys: bool,
    /// None is begun any more once one has failed.
    pub until_failure: bool,
}

/// One seed's end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    pub seed: u64,
    pub passed: bool,
    /// What it said of itself, and where it failed in the scheduler, the end of what it said there.
    pub text: String,
}

/// What came of them.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    pub passed: Vec<Ended>,
    pub failed: Vec<Ended>,
}

/// Runs one seed in a process of its own, on the processor of its lane.
pub fn one(program: &Path, seed: u64, order: Order, lane: usize) -> Ended {
    let mut command = Command::new(program);
    let (steps, scale) = (order.steps as u64, order.scale as u64);
    let numbers = [("--seed", seed), ("--steps", steps), ("--scale", scale), ("--lane", lane as u64)];
    for (name, value) in numbers {
        command.arg(name).arg(value.to_string());
    }
    if order.keys {
        command.arg("--keys");
    }
    match command.output() {
        Ok(output) => {
            let mut text = String::from_utf8_lossy(&output.stdout).trim_end().to_owned();
            if !output.status.success() {
                let more = String::from_utf8_lossy(&output.stderr).into_owned();
                let lines: Vec<&str> = more.lines().collect();
                let tail = lines[lines.len().saturating_sub(70)..].join("\n");
                text = format!("{text} ({})\n{tail}", output.status);
            }
            Ended { seed, passed: output.status.success(), text }
        }
        Err(error) => Ended { seed, passed: false, text: format!("seed {seed} cannot be run: {error}") },
    }
}

/// Runs them all and prints a line for each, and the sum.
pub fn run(program: &Path, order: Order) -> Outcome {
    let seeds: Vec<u64> = (order.first..order.first + order.count).collect();
    let begun = Instant::now();
    let outcome = run_each(program, &seeds, order);
    let seconds = begun.elapsed().as_secs_f64();
    let ran = outcome.passed.len() + outcome.failed.len();
    let failed: Vec<u64> = outcome.failed.iter().map(|ended| ended.seed).collect();
    println!(
        "{ran} seeds, {} failed {failed:?}, {:.2} seeds per second with {} at a time",
        failed.len(),
        ran as f64 / seconds,
        order.jobs
    );
    outcome
}

/// The same for any list of seeds; `first` and `count` of the order are not looked at.
pub fn run_each(program: &Path, seeds: &[u64], order: Order) -> Outcome {
    let (next, outcome) = (AtomicU64::new(0), Mutex::new(Outcome::default()));
    std::thread::scope(|scope| {
        // Two orders at the same time take other processors, if chance wants it.
        let first = std::process::id() as usize;
        for lane in 0..order.jobs.clamp(1, seeds.len().max(1)) {
            let (next, outcome) = (&next, &outcome);
            scope.spawn(move || {
                while let Some(seed) = seeds.get(next.fetch_add(1, SeqCst) as usize) {
                    let ended = one(program, *seed, order, first + lane);
                    println!("{}", ended.text);
                    let mut outcome = outcome.lock().expect("no panic while it is held");
                    if ended.passed { &mut outcome.passed } else { &mut outcome.failed }.push(ended);
                    if order.until_failure && !outcome.failed.is_empty() {
                        next.store(u64::MAX / 2, SeqCst);
                    }
                }
            });
        }
    });
    outcome.into_inner().expect("no panic while it was held")
}
