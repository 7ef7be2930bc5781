//! What an operator hands on or tries out: a support bundle, a restore drill, and messages that say what is in the way.
use crate::dev::Dev;
use crate::private::is_root;
use crate::support::{binary, text};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn temporary() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("cairn-handover-").tempdir().expect("temporary directory")
}

fn path(path: &Path) -> &str {
    path.to_str().expect("utf-8")
}

/// Somebody who helps would lack what he needs, or get a password along with it.
#[test]
fn a_support_bundle_has_the_state_and_no_secrets() {
    let dir = temporary();
    let dev = Dev::start(dir.path());
    let (bundle, config, contents) =
        (dir.path().join("bundle.txt"), dir.path().join("node.toml"), dir.path().join("file"));
    fs::write(&contents, "hunter2 is the content of a file").expect("file");
    dev.ok(&["fs", "put", path(&contents), "/name-of-a-file"]);
    let text_of_config =
        "# hunter2\n[node]\nrack = \"the-rack\"\npassword = \"hunter2\"\nkeys = [\n  \"hunter2\",\n]\n";
    fs::write(&config, text_of_config).expect("configuration");
    let args = ["admin", "support-bundle", path(&bundle), "--config", path(&config)];
    // What a process is started with is nobody's business either.
    let said = dev.command(&args).env("SOME_TOKEN", "hunter2").output().expect("the binary starts");
    assert!(said.status.success(), "{}", text(&said.stderr));
    assert!(text(&said.stdout).contains("Read the file before you send it"), "{}", text(&said.stdout));
    let found = fs::read_to_string(&bundle).expect("the bundle is text");
    for part in [
        "==== cairn --version ====\ncairn 0.",
        "==== cairn admin status ====\n",
        "\"healthy\":",
        "==== cairn admin config get ====\n",
        "repair_delay",
        "==== cairn admin events --meaning ====\n",
        "/metrics ====",
        "cairn_build_info",
        "rack = \"the-rack\"",
        "password = (left out)",
        "cairn doctor",
        "/proc/meminfo",
    ] {
        assert!(found.contains(part), "{part:?} is missing:\n{found}");
    }
    assert!(!found.contains("hunter2") && !found.contains("name-of-a-file"), "{found}");
    assert_eq!(fs::metadata(&bundle).expect("bundle").permissions().mode() & 0o777, 0o600);
    // Not over what is there.
    let again = dev.cairn(&args);
    assert!(
        !again.status.success() && fs::read_to_string(&bundle).expect("bundle") == found,
        "{}",
        text(&again.stderr)
    );
}

/// A backup that cannot be restored would be found out when it is needed; or the drill would touch the cluster.
#[test]
fn a_restore_drill_counts_what_the_backup_has() {
    let tried = Command::new("unshare").args(["--net", "true"]).output();
    if !is_root() || !tried.is_ok_and(|output| output.status.success()) {
        println!("skipped: needs root and unshare for a network of its own");
        return;
    }
    let dir = temporary();
    let dev = Dev::start(dir.path());
    let local = dir.path().join("tree");
    for sub in ["a/b", "c"] {
        fs::create_dir_all(local.join(sub)).expect("directory");
    }
    for file in ["1", "a/2", "a/b/3", "c/4"] {
        fs::write(local.join(file), file).expect("file");
    }
    dev.ok(&["fs", "put", path(&local), "/tree"]);
    let backups = dir.path().join("backups");
    dev.ok(&["admin", "backup", path(&backups)]);
    dev.ok(&["fs", "rm", "-r", "--skip-trash", "/tree/a"]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/restore-drill.sh");
    let drill = |backups: &Path| {
        let mut command = Command::new("bash");
        command.arg(&script).arg(backups).env("CAIRN", binary()).env("TMPDIR", dir.path()).stdin(Stdio::null());
        command.output().expect("bash")
    };
    let output = drill(&backups);
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{out}{error}");
    // The root, /tree, three below it, and what the trash has: four files as they were before two were removed.
    assert!(out.contains("restore drill passed: backup 1, volume default: "), "{out}{error}");
    assert!(out.contains(" directories, 4 files"), "{out}{error}");
    let left: Vec<PathBuf> =
        fs::read_dir(dir.path()).expect("list").map(|entry| entry.expect("entry").path()).collect();
    assert!(!left.iter().any(|path| path.display().to_string().contains("cairn-drill")), "{left:?}");
    // The cluster was not touched.
    assert!(dev.ok(&["admin", "status"]).contains("healthy"));
    assert!(!dev.cairn(&["fs", "stat", "/tree/a/2"]).status.success());
    // A backup that rotted is no backup.
    let checkpoint = largest_file(&backups);
    let mut bytes = fs::read(&checkpoint).expect("checkpoint");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&checkpoint, bytes).expect("checkpoint");
    let output = drill(&backups);
    assert!(
        !output.status.success() && text(&output.stderr).contains("restore drill FAILED"),
        "{}",
        text(&output.stderr)
    );
}

fn largest_file(dir: &Path) -> PathBuf {
    let (mut open, mut largest) = (vec![dir.to_owned()], (0, PathBuf::new()));
    while let Some(at) = open.pop() {
        for entry in fs::read_dir(at).expect("list").map(|entry| entry.expect("entry")) {
            let meta = entry.metadata().expect("metadata");
            if meta.is_dir() {
                open.push(entry.path());
            } else if meta.len() > largest.0 {
                largest = (meta.len(), entry.path());
            }
        }
    }
    largest.1
}

/// A person would be told that some quota is used up, and look for it in vain.
#[test]
fn a_quota_error_names_the_directory_and_its_limit() {
    if !is_root() {
        println!("skipped: only root sets quotas");
        return;
    }
    let dir = temporary();
    let dev = Dev::start(dir.path());
    dev.ok(&["fs", "mkdir", "-p", "/home/ann/deep", "/home/anna"]);
    dev.ok(&["fs", "quota", "set", "--bytes", "1m", "/home/ann"]);
    dev.ok(&["fs", "quota", "set", "--bytes", "1m", "/home/anna"]);
    let (tree, local) = (dir.path().join("tree"), dir.path().join("tree/big"));
    fs::create_dir(&tree).expect("directory");
    fs::write(&local, vec![7; 3 << 20]).expect("file");
    for args in [&["fs", "put", path(&local), "/home/ann/deep/"][..], &["fs", "put", path(&tree), "/home/ann/deep/"]] {
        let output = dev.cairn(args);
        let said = text(&output.stderr);
        assert!(!output.status.success(), "{said}");
        assert!(said.contains("the quota of /home/ann has ") && said.contains("of 1.0 MiB in use"), "{said}");
        assert!(!said.contains("the quota of /home/anna"), "{said}");
    }
}

/// A copy that takes all the space again would come without a word.
#[test]
fn a_copy_to_another_layout_says_that_it_is_a_full_one() {
    let dir = temporary();
    let dev = Dev::start(dir.path());
    let local = dir.path().join("big");
    fs::write(&local, vec![7; 1 << 20]).expect("file");
    dev.ok(&["fs", "put", "--layout", "r2", path(&local), "/big"]);
    let cp = |args: &[&str]| {
        let output = dev.cairn(&[&["fs", "cp"], args].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stderr)
    };
    let said = cp(&["--layout", "r1", "/big", "/other"]);
    assert!(said.contains("1 file was copied in full (1.0 MiB)"), "{said}");
    assert!(!cp(&["--layout", "r2", "/big", "/same"]).contains("in full"));
}

/// Files would come along that were to stay, or a copy would take the whole network.
#[test]
fn copies_take_what_they_are_told_and_keep_to_a_rate() {
    let dir = temporary();
    let dev = Dev::start(dir.path());
    let local = dir.path().join("tree");
    for sub in ["src", "target/deep"] {
        fs::create_dir_all(local.join(sub)).expect("directory");
    }
    for file in ["src/main.rs", "src/main.o", "target/deep/lib.rs", "notes.md"] {
        fs::write(local.join(file), file).expect("file");
    }
    let files = |at: &str| {
        let found = dev.ok(&["fs", "find", at, "--type", "f"]);
        let mut names: Vec<String> = found.lines().map(|line| line.trim_start_matches(at).to_owned()).collect();
        names.sort();
        names
    };
    let filters = ["--exclude", "target", "--include", "*.rs", "--include", "*.md"];
    dev.ok(&[&["fs", "put"], &filters[..], &[path(&local), "/put"]].concat());
    assert_eq!(files("/put"), ["/notes.md", "/src/main.rs"]);
    dev.ok(&["fs", "put", path(&local), "/all"]);
    assert_eq!(files("/all").len(), 4);
    dev.ok(&[&["fs", "cp", "-r"], &filters[..], &["/all", "/cp"]].concat());
    assert_eq!(files("/cp"), ["/notes.md", "/src/main.rs"]);
    let fetched = dir.path().join("get");
    dev.ok(&["fs", "get", "--exclude", "*.o", "/all", path(&fetched)]);
    assert!(fetched.join("target/deep/lib.rs").exists() && fetched.join("notes.md").exists());
    assert!(!fetched.join("src/main.o").exists());
    // Three parts of 1 MiB at 1 MiB a second: the last one may go two seconds after the first.
    let big = dir.path().join("big");
    fs::write(&big, vec![7; 3 << 20]).expect("file");
    let begin = Instant::now();
    dev.ok(&["fs", "put", "--limit-rate", "1m", path(&big), "/big"]);
    assert!(begin.elapsed() > Duration::from_millis(1900), "it took {:?}", begin.elapsed());
}
