//! Runs every test of the project and adds the results up: the last line is `N passed, N failed`.
//!
//! Tests are the test programs of the whole workspace, some of them side by side ([`programs`]), the examples in
//! documentation where there are any, and then every `scripts/*-test.sh`, one test each, for what has to start from a
//! shell. A run in which something ended without a result is a failed run, and so is an empty one.

mod programs;

use crate::cargo::cargo;
use crate::files;
use anyhow::{Context, Result};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the log of a test run says.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    passed: usize,
    failed: usize,
    ignored: usize,
    failed_names: Vec<String>,
    /// What failed, and then passed by itself each time.
    unsteady: Vec<String>,
}

/// `Ok(true)`: something ran and nothing failed. `args` go to every test program, such as a part of test names.
pub fn run(args: &[&str]) -> Result<bool> {
    let mut tally = Tally::default();
    match programs::build()? {
        None => tally.fail("the build of the tests; see above"),
        Some(programs) => programs::run(programs, args, &mut std::io::stdout(), &mut tally)?,
    }
    if args.is_empty() && has_examples(Path::new("."))? {
        println!("\n     Running examples in documentation");
        let mut examples = cargo();
        examples.args(["test", "--workspace", "--locked", "--no-fail-fast", "--doc"]);
        let (output, success) = output_of(examples, |line| print!("{line}"))?;
        tally.program("examples in documentation", &output, success);
    }
    if args.is_empty() {
        for script in scripts(Path::new("scripts"))? {
            run_script(&script, &mut tally)?;
        }
    }
    println!();
    for name in &tally.failed_names {
        println!("failed: {name}");
    }
    for name in &tally.unsteady {
        println!("unsteady, a defect to be looked into: {name}");
    }
    if tally.ignored > 0 {
        println!("{} ignored", tally.ignored);
    }
    println!("{}", tally.summary());
    Ok(tally.failed == 0 && tally.passed > 0)
}

/// Whether documentation has code that `cargo test --doc` would run: without any, looking at every crate takes a
/// minute.
fn has_examples(root: &Path) -> Result<bool> {
    Ok(files::walk(root)?.iter().any(|file| file.is("rs") && text_has_examples(&file.text)))
}

fn text_has_examples(text: &str) -> bool {
    let mut inside = false;
    for line in text.lines() {
        let line = line.trim_start();
        let Some(doc) = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")) else {
            inside = false;
            continue;
        };
        let Some(language) = doc.trim().strip_prefix("```") else { continue };
        let runs = ["rust", "no_run", "should_panic", "compile_fail", "edition"];
        if !inside && (language.is_empty() || runs.iter().any(|word| language.starts_with(word))) {
            return true;
        }
        inside = !inside;
    }
    false
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
        tally.fail(&format!("{} ({status})", script.display()));
    }
    Ok(())
}

/// Runs a command, both of its streams in one; `line` sees each line as it comes. All of the output, and whether it
/// ended with success.
fn output_of(mut command: Command, mut line: impl FnMut(&str)) -> Result<(Vec<u8>, bool)> {
    let (reader, writer) = std::io::pipe().context("making a pipe")?;
    command.stdout(writer.try_clone().context("sharing the pipe")?).stderr(writer);
    let mut child = command.spawn().with_context(|| format!("starting {}", command.get_program().display()))?;
    // The command holds our copies of the writing end; the pipe ends only when they are gone.
    drop(command);
    let mut reader = BufReader::new(reader);
    let mut output = Vec::new();
    loop {
        let begin = output.len();
        if reader.read_until(b'\n', &mut output).context("reading the tests' output")? == 0 {
            break;
        }
        line(&String::from_utf8_lossy(&output[begin..]));
    }
    Ok((output, child.wait().context("waiting for a test program")?.success()))
}

impl Tally {
    fn fail(&mut self, name: &str) {
        self.failed += 1;
        self.failed_names.push(name.to_string());
    }

    /// What failed has passed since, each time.
    fn was_unsteady(&mut self, name: &str) {
        if let Some(at) = self.failed_names.iter().position(|failed| failed == name) {
            self.unsteady.push(self.failed_names.remove(at));
            self.failed -= 1;
            self.passed += 1;
        }
    }

    /// Adds what a program said. One that says no result, or ends with an error although all it said is good, has
    /// failed.
    fn program(&mut self, name: &str, output: &[u8], success: bool) {
        let (mut results, before) = (0, self.failed);
        for line in String::from_utf8_lossy(output).lines() {
            results += usize::from(self.count(line));
        }
        if results == 0 {
            self.fail(&format!("{name}: it ended without a result; see above"));
        } else if !success && self.failed == before {
            self.fail(&format!("{name}: it ended with an error; see above"));
        }
    }

    /// Whether the line is a result.
    fn count(&mut self, line: &str) -> bool {
        let line = line.trim();
        if let Some(name) = failed_test(line) {
            self.failed_names.push(name.to_string());
        }
        let Some(result) = line.strip_prefix("test result: ") else { return false };
        self.passed += number_before(result, " passed");
        self.failed += number_before(result, " failed");
        self.ignored += number_before(result, " ignored");
        true
    }

    fn summary(&self) -> String {
        format!("{} passed, {} failed", self.passed, self.failed)
    }
}

/// `b::c` of `test b::c ... FAILED`.
fn failed_test(line: &str) -> Option<&str> {
    line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED"))
}

/// 12 for `number_before("ok. 12 passed; 0 failed", " passed")`; 0 if it is not there.
fn number_before(text: &str, unit: &str) -> usize {
    let Some(end) = text.find(unit) else { return 0 };
    text[..end].rsplit(|c: char| !c.is_ascii_digit()).next().and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally_of(log: &str, success: bool) -> Tally {
        let mut tally = Tally::default();
        tally.program("a-1", log.as_bytes(), success);
        tally
    }

    const GOOD: &str = "
test one ... ok
test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

    #[test]
    fn results_are_added_up() {
        let mut tally = tally_of(GOOD, true);
        tally.program("b-1", b"test result: ok. 3 passed; 0 failed; 0 ignored", true);
        assert_eq!((tally.summary().as_str(), tally.ignored), ("15 passed, 0 failed", 1));
    }

    #[test]
    fn a_failed_test_is_counted_and_named() {
        let log = "test b::c ... FAILED\n\
                   test result: FAILED. 4 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out";
        let tally = tally_of(log, false);
        assert_eq!(
            (tally.summary().as_str(), tally.failed_names.as_slice()),
            ("4 passed, 1 failed", &["b::c".to_string()][..])
        );
    }

    #[test]
    fn a_program_that_crashed_is_a_failure() {
        assert_eq!(tally_of("test one ... ok\n", false).summary(), "0 passed, 1 failed");
        assert_eq!(tally_of("", true).summary(), "0 passed, 1 failed", "it said nothing");
        assert_eq!(tally_of(GOOD, false).summary(), "12 passed, 1 failed", "it crashed behind its result");
    }

    #[test]
    fn output_and_end_of_a_program_are_seen() {
        let mut command = Command::new("bash");
        command.args(["-c", "echo one >&2; echo two; kill -ABRT $$"]);
        let mut seen = Vec::new();
        let (output, success) = output_of(command, |line| seen.push(line.to_string())).expect("bash runs");
        assert_eq!((output.as_slice(), success), (&b"one\ntwo\n"[..], false));
        assert_eq!(seen, ["one\n", "two\n"]);
    }

    /// An example in documentation would never be run.
    #[test]
    fn examples_in_documentation_are_found() {
        for (text, has) in [
            ("/// ```\n/// f();\n/// ```", true),
            ("//! ```rust,no_run\n", true),
            ("/// ```text\n/// a table\n/// ```\nfn f() {}\n", false),
            ("/// ```text\n/// ```\n/// ```\n/// f();", true),
            ("let fence = \"```\";", false),
        ] {
            assert_eq!(text_has_examples(text), has, "{text}");
        }
    }
}
