//! The test programs of the workspace: built once, then run side by side.
//!
//! Those of whole clusters mostly wait and those of single crates mostly compute, so two at a time need little more
//! time than the longer half. What a program says is printed when it ends, in one piece; what fails or takes long is
//! named at once. What failed in a program that depends on the time of this machine is run again when all others have
//! ended ([`again`]).

mod again;

use super::{Tally, failed_test, output_of};
use crate::cargo::cargo;
use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::VecDeque;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

/// Programs at a time. Each runs as many of its tests at a time as there are processors.
const SIDE_BY_SIDE: usize = 2;
/// Programs that take longest, which begin first: whole clusters as processes, seeds of the proof.
const LONGEST: [&str; 2] = ["process", "seeds"];
/// How often it is said what still runs.
const STILL_RUNNING: Duration = Duration::from_secs(120);

/// A test program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Of the crate's target: `process`, `cairn_tree`.
    name: String,
    path: PathBuf,
    /// Of its `Cargo.toml`, where its tests expect to be run.
    dir: PathBuf,
}

/// Builds all of them; none: the build failed, and said why.
pub fn build() -> Result<Option<Vec<Program>>> {
    let output = cargo()
        .args(["test", "--workspace", "--locked", "--no-run", "--message-format=json-render-diagnostics"])
        .stderr(Stdio::inherit())
        .output()
        .context("starting cargo test")?;
    let mut programs: Vec<Program> = output.stdout.split(|byte| *byte == b'\n').filter_map(program).collect();
    let rank = |program: &Program| LONGEST.iter().position(|name| *name == program.name).unwrap_or(LONGEST.len());
    programs.sort_by_key(rank);
    Ok(output.status.success().then_some(programs))
}

/// The test program that a message of cargo names.
fn program(line: &[u8]) -> Option<Program> {
    let message: Value = serde_json::from_slice(line).ok()?;
    let is_test = message["reason"] == "compiler-artifact" && message["profile"]["test"] == true;
    let path = PathBuf::from(message["executable"].as_str().filter(|_| is_test)?);
    let dir = Path::new(message["manifest_path"].as_str()?).parent()?.to_path_buf();
    Some(Program { name: message["target"]["name"].as_str()?.to_string(), path, dir })
}

/// What a thread that runs programs tells.
enum News {
    Line(String),
    Ended(Program, Result<(Vec<u8>, bool)>, Duration),
}

/// Runs them with `args`, prints what they say, and adds it up.
pub fn run(programs: Vec<Program>, args: &[&str], log: &mut dyn Write, tally: &mut Tally) -> Result<()> {
    let mut failures = Vec::new();
    run_all(programs, args, log, tally, &mut failures)?;
    again::run(&failures, log, tally)
}

/// Each of them once. `failures`: the tests that failed, with their programs.
fn run_all(
    programs: Vec<Program>,
    args: &[&str],
    log: &mut dyn Write,
    tally: &mut Tally,
    failures: &mut Vec<(Program, String)>,
) -> Result<()> {
    let mut open: Vec<Program> = programs.clone();
    let queue = Mutex::new(VecDeque::from(programs));
    let (sender, news) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..SIDE_BY_SIDE {
            let (sender, queue) = (sender.clone(), &queue);
            scope.spawn(move || run_from(queue, args, &sender));
        }
        drop(sender);
        let mut said = Instant::now();
        loop {
            match news.recv_timeout(STILL_RUNNING.saturating_sub(said.elapsed())) {
                Ok(News::Line(line)) => writeln!(log, "{line}").context("writing the tests' output")?,
                Ok(News::Ended(program, outcome, took)) => {
                    open.retain(|other| *other != program);
                    let (output, success) = outcome?;
                    let header = format!("\n     Running {} ({})", program.name, program.path.display());
                    let footer = format!("     {} took {:.0} s", program.name, took.as_secs_f64());
                    let bytes = [header.as_bytes(), b"\n", &output, footer.as_bytes(), b"\n"].concat();
                    log.write_all(&bytes).context("writing the tests' output")?;
                    let known = tally.failed_names.len();
                    tally.program(&program.name, &output, success);
                    failures.extend(tally.failed_names[known..].iter().map(|name| (program.clone(), name.clone())));
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    said = Instant::now();
                    let names: Vec<&str> = open.iter().map(|program| program.name.as_str()).collect();
                    writeln!(log, "to be done: {}", names.join(", ")).context("writing the tests' output")?;
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    })
}

/// Runs one program after the other.
fn run_from(queue: &Mutex<VecDeque<Program>>, args: &[&str], news: &mpsc::Sender<News>) {
    loop {
        let next = queue.lock().expect("no thread panics while it holds the lock").pop_front();
        let Some(program) = next else { return };
        let begun = Instant::now();
        let mut command = Command::new(&program.path);
        command.args(args).current_dir(&program.dir);
        let outcome = output_of(command, |line| {
            let line = line.trim();
            if failed_test(line).is_some() || line.ends_with("has been running for over 60 seconds") {
                // Whoever reads news has ended only with an error of its own.
                news.send(News::Line(format!("{}: {line}", program.name))).ok();
            }
        });
        if news.send(News::Ended(program, outcome, begun.elapsed())).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A script, written by another process: a file that this one has open for writing could not be started.
    pub(super) fn shell(name: &str, script: &str, dir: &Path) -> Program {
        let path = dir.join(name);
        let write = "printf '#!/bin/sh\\n%s\\n' \"$2\" > \"$1\" && chmod 755 \"$1\"";
        let written = Command::new("sh").args(["-c", write, "sh"]).arg(&path).arg(script).status().expect("sh runs");
        assert!(written.success());
        Program { name: name.to_string(), path, dir: dir.to_path_buf() }
    }

    /// A program would not be run, or be counted twice, or its failure be lost among the others.
    #[test]
    fn all_are_run_in_their_directories_and_added_up() {
        let dir = tempfile::tempdir().expect("a directory");
        let good = "test -f good && echo \"test result: ok. $# passed; 0 failed; 0 ignored\"";
        let bad = "echo 'test b::c ... FAILED'; echo 'test result: FAILED. 1 passed; 1 failed; 0 ignored'; exit 1";
        let programs = [("good", good), ("bad", bad), ("crash", "kill -ABRT $$"), ("better", good)];
        let programs = programs.map(|(name, script)| shell(name, script, dir.path())).to_vec();
        let (mut log, mut tally) = (Vec::new(), Tally::default());
        run(programs, &["x", "y", "z"], &mut log, &mut tally).expect("run");
        let log = String::from_utf8(log).expect("text");
        assert_eq!(tally.summary(), "7 passed, 2 failed", "{log}");
        assert!(tally.failed_names.contains(&"b::c".to_string()), "{:?}", tally.failed_names);
        assert!(log.contains("bad: test b::c ... FAILED") && log.matches("     Running ").count() == 4, "{log}");
    }

    #[test]
    fn programs_are_found_in_what_cargo_says() {
        let line = br#"{"reason":"compiler-artifact","manifest_path":"/p/crates/a/Cargo.toml","target":{"name":"seeds"},"profile":{"test":true},"executable":"/t/seeds-1"}"#;
        let found = Program { name: "seeds".into(), path: "/t/seeds-1".into(), dir: "/p/crates/a".into() };
        assert_eq!(program(line), Some(found));
        let library = String::from_utf8_lossy(line).replace("\"/t/seeds-1\"", "null");
        let binary = String::from_utf8_lossy(line).replace("true", "false");
        assert_eq!((program(library.as_bytes()), program(binary.as_bytes()), program(b"no json")), (None, None, None));
    }
}
