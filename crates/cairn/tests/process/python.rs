//! The Python package against clusters of real processes: its own tests, the wheel as it is installed, fsspec's suite.
//!
//! Where there is no python3, or packages cannot be had, the tests say that they are skipped.
use crate::bindings::{SMALL, library, root, run, succeeds};
use crate::support::{Cluster, text};
use std::path::{Path, PathBuf};
use std::process::Command;

/// `python3`, if there is one that is new enough.
pub fn python() -> Option<Command> {
    let mut command = Command::new("python3");
    let new_enough = "import sys; sys.exit(sys.version_info < (3, 9))";
    let found = command.args(["-c", new_enough]).output().is_ok_and(|output| output.status.success());
    if !found {
        println!("skipped: there is no python3, of version 3.9 or later");
    }
    found.then(|| Command::new("python3"))
}

/// The wheel, made with the library under test.
pub fn wheel(dir: &Path) -> PathBuf {
    let mut make = Command::new("python3");
    make.arg(root().join("python/build_wheel.py")).arg(library()).arg(dir);
    PathBuf::from(succeeds(&mut make).trim())
}

/// A virtual environment with the wheel in it: its interpreter. None where the system's Python can make none.
pub fn environment(dir: &Path) -> Option<PathBuf> {
    let made = run(Command::new("python3").args(["-m", "venv"]).arg(dir.join("venv")));
    if !made.status.success() {
        println!("skipped: python3 makes no virtual environments (Debian: python3-venv): {}", text(&made.stderr));
        return None;
    }
    let python = dir.join("venv/bin/python");
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet", "--no-index", "--disable-pip-version-check"]).arg(wheel(dir));
    succeeds(&mut install);
    Some(python)
}

/// A Python program would not get what it expects of files, of errors, of threads, or of processes that it forks or spawns.
#[test]
fn the_package_passes_its_tests() {
    let Some(mut command) = python() else { return };
    let cluster = Cluster::start(SMALL);
    command.arg(root().join("python/tests/test_cairn.py")).arg("-v");
    command.env("PYTHONPATH", root().join("python")).env("PYTHONDONTWRITEBYTECODE", "1");
    command.env("CAIRN_CLUSTER", &cluster.address).env("CAIRN_LIBRARY", library()).current_dir(cluster.dir.path());
    let output = run(&mut command);
    let said = text(&output.stderr);
    assert!(output.status.success() && said.contains("\nOK"), "{}\n{said}", text(&output.stdout));
}

/// The wheel could not be installed, or what is above fsspec would find a file system that behaves like no other.
#[test]
fn the_wheel_passes_the_suite_of_fsspec() {
    if python().is_none() {
        return;
    }
    let cluster = Cluster::start(SMALL);
    let dir = cluster.dir.path();
    let Some(python) = environment(dir) else { return };
    let needs = root().join("python/tests/requirements.txt");
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"]).arg(needs);
    let installed = run(&mut install);
    if !installed.status.success() {
        println!("skipped: fsspec and pytest cannot be installed: {}", text(&installed.stderr));
        return;
    }
    let mut suite = Command::new(&python);
    suite.args(["-m", "pytest", "-q", "-p", "no:cacheprovider"]).arg(root().join("python/tests/test_fsspec.py"));
    suite.env("CAIRN_CLUSTER", &cluster.address).env("PYTHONDONTWRITEBYTECODE", "1").current_dir(dir);
    let output = run(&mut suite);
    let said = text(&output.stdout);
    assert!(output.status.success() && said.contains(" passed"), "{said}\n{}", text(&output.stderr));
    println!("{}", said.lines().last().unwrap_or_default());
}
