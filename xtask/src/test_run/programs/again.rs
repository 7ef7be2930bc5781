//! A second look at what failed, where failing may say more about the machine than about the project.
//!
//! Programs with threads, sockets and real clocks share a machine with other work, and a test that waits may have
//! waited for the machine. What fails in them is run again by itself, several times, when nothing else runs. Only what
//! passes each time counts as passed; it is listed at the end as unsteady, and its first output stays in the log. In a
//! program that depends on no clock a failure is a failure: the same input fails again.

use super::{Program, Tally, output_of};
use anyhow::{Context, Result};
use std::io::Write;
use std::process::Command;

/// Programs whose tests depend on the time of this machine.
const TIMED: [&str; 13] = [
    "process",
    "mounts",
    "cairn_client",
    "cairn_data",
    "cairn_fuse",
    "cairn_jobs",
    "cairn_manager",
    "cairn_meta",
    "cairn_node_agent",
    "cairn_raft_host",
    "cairn_rpc",
    "cairn_store",
    "cairn_telemetry",
];
/// How often a test has to pass by itself.
const TIMES: usize = 3;
/// With more failures than these it is no matter of luck.
const FAILURES_MAX: usize = 4;

/// Runs `failures` again. What passes each time is taken from the failures of `tally`.
pub fn run(failures: &[(Program, String)], log: &mut dyn Write, tally: &mut Tally) -> Result<()> {
    if failures.len() > FAILURES_MAX {
        return Ok(());
    }
    for (program, test) in failures.iter().filter(|(program, _)| TIMED.contains(&program.name.as_str())) {
        let passed = passes_each_time(program, test, log)?;
        writeln!(log, "     {test} {}", if passed { "passed each time" } else { "failed again" })?;
        if passed {
            tally.was_unsteady(test);
        }
    }
    Ok(())
}

fn passes_each_time(program: &Program, test: &str, log: &mut dyn Write) -> Result<bool> {
    for time in 1..=TIMES {
        writeln!(log, "\n     Running {test} of {} again, by itself, {time} of {TIMES}", program.name)?;
        let mut command = Command::new(&program.path);
        command.args(["--exact", test]).current_dir(&program.dir);
        let (output, success) = output_of(command, |_| ())?;
        log.write_all(&output).context("writing the tests' output")?;
        let mut once = Tally::default();
        once.program(&program.name, &output, success);
        if (once.passed, once.failed) != (1, 0) {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::super::tests::shell;
    use super::*;

    const OK: &str = "echo 'test result: ok. 1 passed; 0 failed; 0 ignored'";
    const BAD: &str = "echo 'test b::c ... FAILED'; echo 'test result: FAILED. 0 passed; 1 failed; 0 ignored'; exit 1";

    fn after(name: &str, script: &str) -> Tally {
        let dir = tempfile::tempdir().expect("a directory");
        let program = shell(name, script, dir.path());
        let mut tally = Tally { passed: 4, failed: 1, failed_names: vec!["b::c".to_string()], ..Tally::default() };
        run(&[(program, "b::c".to_string())], &mut Vec::new(), &mut tally).expect("run");
        tally
    }

    #[test]
    fn what_passes_each_time_was_unsteady() {
        let tally = after("process", &format!("test \"$*\" = '--exact b::c' && {OK}"));
        assert_eq!(
            (tally.summary().as_str(), tally.unsteady.len(), tally.failed_names.len()),
            ("5 passed, 0 failed", 1, 0)
        );
    }

    /// A defect that shows itself now and then would land.
    #[test]
    fn what_fails_again_has_failed() {
        let third = format!("echo x >> runs; if [ $(wc -l < runs) -ge 3 ]; then {BAD}; else {OK}; fi");
        let none = "echo 'test result: ok. 0 passed; 0 failed; 0 ignored'";
        for script in [BAD, third.as_str(), none, "kill -ABRT $$"] {
            let tally = after("process", script);
            assert_eq!((tally.summary().as_str(), tally.unsteady.len()), ("4 passed, 1 failed", 0), "{script}");
        }
    }

    /// A schedule that fails would be taken for bad luck.
    #[test]
    fn what_depends_on_no_clock_is_not_run_again() {
        assert_eq!(after("cairn_meta_core", OK).summary(), "4 passed, 1 failed");
    }

    #[test]
    fn many_failures_are_failures() {
        let dir = tempfile::tempdir().expect("a directory");
        let failures: Vec<_> = (0..=FAILURES_MAX).map(|n| (shell("process", OK, dir.path()), n.to_string())).collect();
        let mut tally = Tally { failed: failures.len(), ..Tally::default() };
        run(&failures, &mut Vec::new(), &mut tally).expect("run");
        assert_eq!(tally.failed, failures.len());
    }
}
