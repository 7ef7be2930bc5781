//! The Python package against clusters of real processes: its own tests, the wheel as it is installed, fsspec's suite,
//! and by `make test-apps` pandas, pyarrow, dask and torch.
//!
//! Where there is no python3, or packages cannot be had, the tests say that they are skipped.
use crate::bindings::{SMALL, blocks, library, root, run, run_within, succeeds};
use crate::disturb::{WITH_SPARE, disturb};
use crate::support::{Cluster, text};
use crate::wait::until_told;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// pip may have to fetch some 100 MB.
const LONG: Duration = Duration::from_secs(900);

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
    environment_of("python3", &[], dir)
}

/// The same of some interpreter.
fn environment_of(python: &str, options: &[&str], dir: &Path) -> Option<PathBuf> {
    let made = run(Command::new(python).args(["-m", "venv"]).args(options).arg(dir.join("venv")));
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

/// A Python program would not get what it expects of files, of errors, of threads, or of processes that it forks or
/// spawns.
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

/// Programs of a guide that need more than fsspec.
pub fn is_heavy(program: &str) -> bool {
    ["pandas", "pyarrow", "dask", "torch"].iter().any(|name| program.contains(&format!("import {name}\n")))
}

/// An interpreter that has torch, which comes with the system: what pip brings is larger than all else together.
fn with_torch() -> Option<&'static str> {
    let has_it = |python: &&str| {
        Command::new(python).args(["-c", "import torch"]).output().is_ok_and(|said| said.status.success())
    };
    ["python3", "/usr/bin/python3"].into_iter().find(has_it)
}

/// A command in a directory, with what the package needs to find the cluster.
fn in_cluster(cluster: &Cluster, program: &Path, dir: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("CAIRN_CLUSTER", &cluster.address).env("PYTHONDONTWRITEBYTECODE", "1").current_dir(dir);
    command
}

/// Tables and tensors would come back as others than they were saved, also when servers die under those who work with
/// them.
#[test]
fn applications() {
    let wanted = std::env::var("CAIRN_TEST_APPS").unwrap_or_default();
    if !wanted.split(',').any(|name| name == "python") {
        return eprintln!("not run: pandas, pyarrow, dask and torch; make test-apps runs them");
    }
    let torch = with_torch();
    if torch.is_none() {
        println!("skipped: torch is not installed (Debian: python3-torch), and so no DataLoader is tried");
    }
    let cluster = Cluster::start(SMALL);
    let dir = cluster.dir.path();
    let python = environment_of(torch.unwrap_or("python3"), &["--system-site-packages"], dir).expect("an environment");
    let needs = root().join("python/tests/requirements-applications.txt");
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"]).arg(needs);
    let installed = run_within(&mut install, LONG);
    assert!(installed.status.success(), "pandas, pyarrow and dask are needed: {}", text(&installed.stderr));
    let mut suites = in_cluster(&cluster, &python, dir);
    suites.args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore"]);
    suites.args(["test_applications.py", "test_torch.py"].map(|name| root().join("python/tests").join(name)));
    let output = run_within(&mut suites, LONG);
    let said = text(&output.stdout);
    assert!(output.status.success() && said.contains(" passed"), "{said}\n{}", text(&output.stderr));
    println!("{}", said.lines().last().unwrap_or_default());
    let page = fs::read_to_string(root().join("docs/guides/python.md")).expect("page");
    let programs: Vec<String> = blocks(&page, "python").into_iter().filter(|program| is_heavy(program)).collect();
    assert_eq!(programs.len(), 4, "programs of the guide that need more than fsspec");
    for (number, program) in
        programs.iter().enumerate().filter(|(_, program)| torch.is_some() || !program.contains("torch"))
    {
        let file = format!("guide{number}.py");
        fs::write(cluster.path(&file), program).expect("program");
        let output = run(in_cluster(&cluster, &python, dir).args(["-W", "ignore", &file]));
        assert!(output.status.success(), "{program}\n{}\n{}", text(&output.stdout), text(&output.stderr));
    }
    for method in ["fork", "spawn"].into_iter().filter(|_| torch.is_some()) {
        let said = loader_under_kills(&python, method);
        println!("under kills, by {method}: {said}");
    }
    println!("python: done");
}

/// A program that is killed with its test.
struct Job(Child);

impl Drop for Job {
    fn drop(&mut self) {
        let _it_may_have_ended = self.0.kill().and_then(|()| self.0.wait().map(drop));
    }
}

/// A DataLoader and writers while servers are killed and started again. How far they came.
fn loader_under_kills(python: &Path, method: &str) -> String {
    let mut cluster = Cluster::start(WITH_SPARE);
    let (dir, said) = (cluster.path("job"), cluster.path("job.out"));
    fs::create_dir(&dir).expect("directory");
    let mut command = in_cluster(&cluster, python, &dir);
    command.args(["-W", "ignore"]).arg(root().join("python/tests/loader_under_kills.py")).args(["/kills", method]);
    command
        .stdin(Stdio::null())
        .stdout(File::create(&said).expect("file"))
        .stderr(File::create(cluster.path("job.err")).expect("file"));
    let mut job = Job(command.spawn().expect("python"));
    let told = || fs::read_to_string(&said).expect("output");
    let all = || format!("{}{}", told(), fs::read_to_string(dir.with_extension("err")).expect("output"));
    // Two epochs: at least one of them has begun since, and so have files of writers.
    let mut goes_on = |_cluster: &Cluster| {
        let wanted = told().lines().count() + 2;
        let further = || job.0.try_wait().expect("wait").is_some() || told().lines().count() >= wanted;
        until_told("more epochs", further, all);
        assert!(job.0.try_wait().expect("wait").is_none(), "the job ended before it was told to: {}", all());
    };
    goes_on(&cluster);
    disturb(&mut cluster, &mut goes_on);
    fs::write(dir.join("stop"), "").expect("file");
    let mut ended = None;
    until_told(
        "the end of the job",
        || {
            ended = job.0.try_wait().expect("wait");
            ended.is_some()
        },
        all,
    );
    assert!(ended.is_some_and(|status| status.success()) && told().ends_with("done\n"), "{}", all());
    let fsck = cluster.ok(&["admin", "fsck"]);
    assert!(!fsck.contains("wrong"), "{fsck}");
    told().lines().rev().nth(1).unwrap_or_default().to_owned()
}
