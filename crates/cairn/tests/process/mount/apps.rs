//! Applications on a mount: git, SQLite, compilers, rsync, tar, PostgreSQL, fio. `make test-apps` runs them.
//!
//! They take minutes, so `CAIRN_TEST_APPS` has to say which (`all`, or names with commas between). One whose programs
//! are not installed says so; if none ran at all, or one failed, the run fails.
mod build;
mod git;
mod pack;
mod postgres;
mod sqlite;
mod verify;

use super::Mount;
use crate::support::{Cluster, Shape, text};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

/// Where an application works.
struct Place {
    mount: Mount,
    /// On the mount.
    dir: PathBuf,
    /// On a local disk.
    local: tempfile::TempDir,
    cluster: Cluster,
}

/// An application: its name, the programs that it needs with their packages, and what it does.
struct App {
    name: &'static str,
    needs: &'static [(&'static str, &'static str)],
    run: fn(&mut Place),
}

const APPS: &[App] = &[
    App { name: "git", needs: &[("git", "git")], run: git::run },
    App { name: "sqlite", needs: &[("python3", "python3")], run: sqlite::run },
    App { name: "c", needs: &[("cc", "gcc"), ("make", "make")], run: build::with_make },
    App { name: "rust", needs: &[("cc", "gcc"), ("cargo", "cargo")], run: build::with_cargo },
    App { name: "rsync", needs: &[("rsync", "rsync")], run: pack::with_rsync },
    App { name: "tar", needs: &[("tar", "tar"), ("python3", "python3")], run: pack::with_tar },
    App { name: "postgres", needs: &[("pg_ctl", "postgresql"), ("pgbench", "postgresql-contrib")], run: postgres::run },
    App { name: "fio", needs: &[("fio", "fio")], run: verify::run },
];

/// Directories of programs that are not on the PATH: servers of PostgreSQL.
fn search_path() -> String {
    let mut path = std::env::var("PATH").unwrap_or_default();
    for version in fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten() {
        path.push_str(&format!(":{}", version.path().join("bin").display()));
    }
    path
}

fn is_there(program: &str) -> bool {
    search_path().split(':').any(|dir| Path::new(dir).join(program).is_file())
}

impl Place {
    fn new(name: &str) -> Place {
        let cluster = Cluster::start(Shape { managers: 1, metas: 3, datas: 4, racks: 4 });
        // Other users have to reach the mount.
        fs::set_permissions(cluster.dir.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
        let mount = Mount::new(&cluster, "mnt", "/", "");
        let dir = mount.path(name);
        fs::create_dir(&dir).expect("mkdir");
        Place { mount, dir, local: tempfile::tempdir().expect("temporary directory"), cluster }
    }
    /// A shell script that ends at its first error, in a directory.
    fn shell(&self, dir: &Path, script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-euc", script]).current_dir(dir).stdin(Stdio::null());
        command.env("PATH", search_path()).env("HOME", self.local.path()).env("LC_ALL", "C");
        command.env("LOCAL", self.local.path()).env("DIR", &self.dir);
        command
    }
    fn output(&self, dir: &Path, script: &str) -> Output {
        self.shell(dir, script).output().expect("sh")
    }
    /// The same; it has to succeed. Its standard output.
    fn sh(&self, dir: &Path, script: &str) -> String {
        let output = self.output(dir, script);
        let (out, error) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{}\n{script}\n--- said:\n{}\n{}", output.status, last(&out), last(&error));
        out
    }
    fn on_mount(&self, script: &str) -> String {
        self.sh(&self.dir, script)
    }
}

fn last(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}

/// A program that many people trust with their work would lose or damage it on a mount.
#[test]
fn applications() {
    let Ok(wanted) = std::env::var("CAIRN_TEST_APPS") else {
        return eprintln!("not run: applications on a mount; make test-apps runs them");
    };
    if let Some(why) = super::cannot_mount() {
        panic!("applications cannot be tested here: {why}");
    }
    let (mut passed, mut failed, mut missing) = (Vec::new(), Vec::new(), Vec::new());
    for app in APPS.iter().filter(|app| wanted == "all" || wanted.split(',').any(|name| name == app.name)) {
        let lacking: Vec<String> = app
            .needs
            .iter()
            .filter(|(program, _)| !is_there(program))
            .map(|(program, package)| format!("{program} (package {package})"))
            .collect();
        if !lacking.is_empty() {
            println!("{}: not run, missing: {}", app.name, lacking.join(", "));
            missing.push(app.name);
            continue;
        }
        let started = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mut place = Place::new(app.name);
            (app.run)(&mut place);
            let umount = place.mount.umount();
            assert!(umount.status.success(), "{}", text(&umount.stderr));
        }));
        let said = if outcome.is_ok() { "passed" } else { "FAILED" };
        println!("{}: {said} in {:.1} s", app.name, started.elapsed().as_secs_f64());
        if outcome.is_ok() { passed.push(app.name) } else { failed.push(app.name) }
    }
    assert!(failed.is_empty(), "failed: {failed:?}");
    assert!(!passed.is_empty(), "nothing ran (missing: {missing:?}, asked for: {wanted:?})");
    println!("applications: {} passed ({}), {} not installed", passed.len(), passed.join(", "), missing.len());
}
