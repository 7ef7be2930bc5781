//! The Hadoop file system against clusters of real processes: Hadoop's own contract suites, the guide, threads and errors.
//!
//! Where there is no Java or no Maven, or Maven gets no packages, the tests say that they are skipped.
use crate::bindings::{SMALL, bash, blocks, root, run_within};
use crate::support::{Cluster, text};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Maven may have to fetch 90 packages, and Java runs 30 suites.
const LONG: Duration = Duration::from_secs(900);
/// Methods of Hadoop's suites that pass, at least. Those that an option excludes are listed in `hadoop/src/test`.
const PASSED_MIN: usize = 545;

/// Where cargo put the native library that this test program was built with.
fn library() -> PathBuf {
    crate::bindings::library().with_file_name("libcairn_jni.so")
}

fn is_there(program: &str, version: &str) -> bool {
    let there = Command::new(program).arg(version).output().is_ok_and(|output| output.status.success());
    if !there {
        println!("skipped: there is no {program}");
    }
    there
}

/// `scripts/hadoop.sh` with the library under test, building in `out`; what it printed, or `None` if packages cannot be had.
fn script(out: &Path, arguments: &[&str]) -> Option<(bool, String)> {
    if !is_there("java", "-version") || !is_there("mvn", "--version") {
        return None;
    }
    let mut command = Command::new(root().join("scripts/hadoop.sh"));
    command.args(arguments).env("CAIRN_JNI", library()).env("CAIRN_HADOOP_OUT", out).current_dir(root());
    let output = run_within(&mut command, LONG);
    let said = format!("{}\n{}", text(&output.stdout), text(&output.stderr));
    let unreachable = ["Could not transfer", "Unknown host", "Could not resolve dependencies", "could not be resolved"];
    if !output.status.success() && unreachable.iter().any(|part| said.contains(part)) {
        println!("skipped: Maven gets no packages: {said}");
        return None;
    }
    Some((output.status.success(), said))
}

/// A program for Hadoop would find a file system that behaves like no other: all suites that hadoop-common has for file systems, out of
/// the jar as it is shipped.
#[test]
fn the_jar_passes_the_suites_of_hadoop() {
    let cluster = Cluster::start(SMALL);
    let out = cluster.path("hadoop");
    let Some((succeeded, said)) = script(&out, &["test", &cluster.address]) else { return };
    let sum = said.lines().find(|line| line.starts_with("suites: ")).unwrap_or_default().to_owned();
    let passed = sum.split(", ").nth(1).and_then(|part| part.split(' ').next()?.parse::<usize>().ok());
    assert!(succeeded && passed >= Some(PASSED_MIN), "{said}");
    println!("{sum}");
    // Nothing that was open is left, and no session.
    let fsck = cluster.ok(&["admin", "fsck"]);
    assert!(!fsck.contains("wrong"), "{fsck}");
}
