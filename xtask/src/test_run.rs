//! Runs every test of the project and adds the results up: the last line is `N passed, N failed`.
//!
//! Tests are those of `cargo test` on the whole workspace, and then every `scripts/*-test.sh`, one test each, for what
//! has to start from a shell. A run in which something ended without a result is a failed run, and so is an empty one.

use crate::cargo::cargo;
use anyhow::{Context, Result};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the log of a test run says.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    passed: usize,
    failed: usize,
    ignored: usize,
    /// Test binaries and doc-test runs that were started, and those that reported a result.
    started: usize,
    finished: usize,
    failed_names: Vec<String>,
}

/// `Ok(true)`: something ran and nothing failed. `args` go to `cargo test`, such as a part of test names.
pub fn run(args: &[&str]) -> Result<bool> {
    let mut tally = Tally::default();
    let mut command = cargo();
    command.args(["test", "--workspace", "--locked", "--no-fail-fast"]).args(args);
    let clean_exit = run_and_tally(command, &mut std::io::stdout(), &mut tally)?;
    tally.close(clean_exit);
    if args.is_empty() {
        for script in scripts(Path::new("scripts"))? {
            run_script(&script, &mut tally)?;
        }
    }
    println!();
    for name in &tally.failed_names {
        println!("failed: {name}");
    }
    if tally.ignored > 0 {
        println!("{} ignored", tally.ignored);
    }
    println!("{}", tally.summary());
    Ok(tally.failed == 0 && tally.passed > 0)
}

/// Runs the command, passes its output on line by line, and counts. Whether it exited with success.
fn run_and_tally(mut command: Command, log: &mut dyn Write, tally: &mut Tally) -> Result<bool> {
    // One pipe for both streams keeps "Running …" (stderr) before the results that belong to it (stdout).
    let (reader, writer) = std::io::pipe().context("making a pipe")?;
    command.stdout(writer.try_clone().context("sharing the pipe")?).stderr(writer);
    let mut child = command.spawn().context("starting cargo test")?;
    // The command holds our copies of the writing end; the pipe ends only when they are gone.
    drop(command);
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).context("reading the tests' output")? > 0 {
        log.write_all(&line).and_then(|()| log.flush()).context("writing the tests' output")?;
        tally.count(&String::from_utf8_lossy(&line));
        line.clear();
    }
    Ok(child.wait().context("waiting for cargo test")?.success())
}

fn scripts(dir: &Path) -> Result<Vec<PathBuf>> {
    if !dir.is_dir() {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("listing {}", dir.display()))? {
        let path = entry.with_context(|| format!("listing {}", dir.display()))?.path();
        if path.to_string_lossy().ends_with("-test.sh") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn run_script(script: &Path, tally: &mut Tally) -> Result<()> {
    println!("\n     Running {}", script.display());
    let status = Command::new("bash").arg(script).status().with_context(|| format!("starting {}", script.display()))?;
    if status.success() {
        tally.passed += 1;
    } else {
        tally.failed += 1;
        tally.failed_names.push(format!("{} ({status})", script.display()));
    }
    Ok(())
}

impl Tally {
    fn count(&mut self, line: &str) {
        let line = line.trim();
        if line.starts_with("Running ") && line.ends_with(')') || line.starts_with("Doc-tests ") {
            self.started += 1;
        } else if let Some(name) = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED")) {
            self.failed_names.push(name.to_string());
        } else if let Some(result) = line.strip_prefix("test result: ") {
            self.finished += 1;
            self.passed += number_before(result, " passed");
            self.failed += number_before(result, " failed");
            self.ignored += number_before(result, " ignored");
        }
    }

    /// Counts as failed what ended without a result: a test binary that crashed, or a build that failed.
    fn close(&mut self, clean_exit: bool) {
        if clean_exit {
            return;
        }
        let without_result = self.started.saturating_sub(self.finished);
        if without_result > 0 {
            self.failed += without_result;
            self.failed_names.push(format!("{without_result} test programs ended without a result; see above"));
        } else if self.failed == 0 {
            self.failed = 1;
            self.failed_names.push("cargo test itself; see above".to_string());
        }
    }

    fn summary(&self) -> String {
        format!("{} passed, {} failed", self.passed, self.failed)
    }
}

/// 12 for `number_before("ok. 12 passed; 0 failed", " passed")`; 0 if it is not there.
fn number_before(text: &str, unit: &str) -> usize {
    let Some(end) = text.find(unit) else { return 0 };
    text[..end].rsplit(|c: char| !c.is_ascii_digit()).next().and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally_of(log: &str, clean_exit: bool) -> Tally {
        let mut tally = Tally::default();
        log.lines().for_each(|line| tally.count(line));
        tally.close(clean_exit);
        tally
    }

    const TWO_BINARIES: &str = "
     Running unittests src/lib.rs (target/debug/deps/a-1)
test one ... ok
test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
   Doc-tests a
test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

    #[test]
    fn results_are_added_up() {
        let tally = tally_of(TWO_BINARIES, true);
        assert_eq!((tally.summary().as_str(), tally.ignored), ("15 passed, 0 failed", 1));
    }

    #[test]
    fn a_failed_test_is_counted_and_named() {
        let log = "     Running tests/a.rs (target/debug/deps/a-1)\ntest b::c ... FAILED\n\
                   test result: FAILED. 4 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out";
        let tally = tally_of(log, false);
        assert_eq!(
            (tally.summary().as_str(), tally.failed_names.as_slice()),
            ("4 passed, 1 failed", &["b::c".to_string()][..])
        );
    }

    #[test]
    fn a_binary_that_crashed_is_a_failure() {
        let log = format!("{TWO_BINARIES}     Running tests/crash.rs (target/debug/deps/crash-1)\n");
        assert_eq!(tally_of(&log, false).summary(), "15 passed, 1 failed");
        assert_eq!(tally_of(&log, true).summary(), "15 passed, 0 failed", "a test that prints such a line");
    }

    #[test]
    fn a_build_that_failed_is_a_failure() {
        assert_eq!(tally_of("error: could not compile", false).summary(), "0 passed, 1 failed");
    }

    #[test]
    fn a_crash_is_seen_where_the_run_goes_on() {
        let mut tally = Tally::default();
        let mut command = Command::new("bash");
        command.args(["-c", "echo '     Running unittests src/lib.rs (x)' >&2; kill -ABRT $$"]);
        let clean_exit = run_and_tally(command, &mut Vec::new(), &mut tally).expect("bash runs");
        tally.close(clean_exit);
        assert_eq!((clean_exit, tally.summary().as_str()), (false, "0 passed, 1 failed"));
    }
}
