//! Mutants against seeds of the whole cluster (`cargo xtask sim`): a mutant whose file names `seeds` has to make one of
//! so many fail, from seed [`FIRST`] on. What its tests find is another question, asked by `cargo xtask mutants`
//! without `--seeds`.
//!
//! Not here: that all of these seeds pass without a mutant (`cargo xtask sim --seeds N --first 1000` says so).

use super::{Mutant, Outcome, last_lines, run_for};
use crate::cargo::cargo;
use anyhow::{Context, Result};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Seeds of mutants begin here: those of the test run are lower.
const FIRST: u64 = 1000;
/// No seed takes longer, on a busy machine.
const PATIENCE_OF_ONE: Duration = Duration::from_secs(120);

/// Builds the program of the seeds with the bug and runs them until one fails.
pub(super) fn try_to_catch(mutant: &Mutant, count: u64, tree: &Path, build: &Path) -> Result<Outcome> {
    let mut command = cargo();
    command.args(["build", "--locked", "--package", "cairn-proof", "--bin", "sim", "--profile", "sim"]);
    command.current_dir(tree);
    command.env("CARGO_TARGET_DIR", build).stdin(Stdio::null());
    let built = command.output().context("starting cargo")?;
    if !built.status.success() {
        let said = last_lines(&String::from_utf8_lossy(&built.stderr));
        return Ok(Outcome::Survived(format!("{} does not compile:\n{said}", mutant.name)));
    }
    let mut command = Command::new(build.join("sim").join("sim"));
    let jobs = std::env::var("CAIRN_JOBS").unwrap_or_else(|_| "2".into());
    let (first, seeds) = (FIRST.to_string(), count.to_string());
    command.args(["--seeds", &seeds, "--first", &first, "--jobs", &jobs, "--until-failure"]);
    let (ended, output) = run_for(command, PATIENCE_OF_ONE * u32::try_from(count).unwrap_or(u32::MAX))?;
    Ok(judge(ended, &output))
}

/// The last line says which seeds failed.
fn judge(ended: bool, output: &str) -> Outcome {
    let sum = output.lines().rev().find(|line| line.contains(" seeds, ")).unwrap_or_default();
    let failed = sum.split(['[', ']']).nth(1).filter(|failed| !failed.is_empty());
    match (ended, failed) {
        (true, Some(failed)) => {
            let why = output.lines().find(|line| line.contains(" FAILED: ")).unwrap_or("it did not come to its end");
            let why: String = why.chars().take(160).collect();
            Outcome::Caught(vec![format!("{sum}: seed {failed}: {why}")])
        }
        (true, None) if !sum.is_empty() => Outcome::Survived(format!("no seed failed: {sum}")),
        (true, None) => Outcome::Survived(format!("no seed ran:\n{}", last_lines(output))),
        (false, _) => Outcome::Survived(format!("the seeds do not end:\n{}", last_lines(output))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seeds that all passed, or never ran, would count as caught.
    #[test]
    fn a_failed_seed_catches() {
        let caught =
            "seed 1000 (r3): fine\nseed 1001 FAILED: step 3: a byte\n2 seeds, 1 failed [1001], 1.00 seeds per second\n";
        assert!(matches!(judge(true, caught), Outcome::Caught(by) if by[0].contains("a byte")));
        let passed = "seed 1000 (r3): fine\n1 seeds, 0 failed [], 1.00 seeds per second\n";
        for (ended, output) in [(true, passed), (true, ""), (false, caught)] {
            assert!(matches!(judge(ended, output), Outcome::Survived(_)), "{output}");
        }
    }
}
