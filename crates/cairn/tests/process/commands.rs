//! Commands for files that need no more than a cluster in one process.
use crate::dev::Dev;
use crate::private::is_root;
use crate::support::{binary, text};
use cairn_types::FEATURE_LEVEL;
use cairn_wire::hello::{PROTOCOL_VERSION, PROTOCOL_VERSION_MIN};
use serde_json::Value;
use std::fs::{self, File, FileTimes};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

fn path(path: &Path) -> &str {
    path.to_str().expect("utf-8")
}

fn set_changed(path: &Path, seconds: u64) {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    let file = File::options().write(true).open(path).expect("open");
    file.set_times(FileTimes::new().set_modified(time)).expect("times");
}

/// The summary of a command that was run with `--json`.
fn summary(dev: &Dev, args: &[&str]) -> Value {
    let args: Vec<&str> = ["--json"].iter().chain(args).copied().collect();
    serde_json::from_str(dev.ok(&args).trim()).expect("one value")
}

/// Somebody would see other bytes than the first, counts that are wrong, or lose what he did not cut off.
#[test]
fn head_count_and_truncate_do_what_they_say() {
    let dir = tempfile::Builder::new().prefix("cairn-commands-").tempdir().expect("temporary directory");
    let dev = Dev::start(dir.path());
    let lines: String = (0..40_000).map(|n| format!("line {n} of the file\n")).collect();
    let local = dir.path().join("lines");
    fs::write(&local, &lines).expect("write");
    dev.ok(&["fs", "mkdir", "-p", "/d/e"]);
    dev.ok(&["fs", "put", path(&local), "/d/lines"]);

    let first = |n: usize| lines.split_inclusive('\n').take(n).collect::<String>();
    assert_eq!(dev.ok(&["fs", "head", "/d/lines"]), first(10));
    assert_eq!(dev.ok(&["fs", "head", "-n", "33333", "/d/lines"]), first(33_333));
    assert_eq!(dev.ok(&["fs", "head", "-n", "50000", "/d/lines"]), lines);
    assert_eq!(dev.ok(&["fs", "head", "-n", "0", "/d/lines"]), "");
    assert_eq!(dev.ok(&["fs", "head", "-c", "1k", "/d/lines"]), lines[..1024]);
    dev.ok(&["fs", "truncate", "-s", "7", "/d/e/zeros"]);
    let both = dev.ok(&["fs", "head", "-n", "1", "/d/lines", "/d/e/zeros"]);
    assert!(both.starts_with("==> ") && both.contains("<==\nline 0 of the file\n\n==> "), "{both}");
    assert_eq!(dev.cairn(&["fs", "head", "/d"]).status.code(), Some(14), "a directory has no lines");

    dev.ok(&["fs", "ln", "/d/lines", "/d/e/again"]);
    dev.ok(&["fs", "ln", "-s", "anywhere", "/d/link"]);
    let counts = summary(&dev, &["fs", "count", "/d"]);
    let wanted = serde_json::json!({ "path": "/d", "volume": "default", "directories": 2, "files": 3, "others": 1,
        "bytes": lines.len() + 7, "complete": true });
    assert_eq!(counts, wanted);
    let words = dev.ok(&["fs", "count", "/d"]);
    let words: Vec<&str> = words.split_whitespace().collect();
    assert_eq!(words[..4], ["2", "3", "1", (lines.len() + 7).to_string().as_str()]);

    dev.ok(&["fs", "truncate", "-s", "1000", "/d/lines"]);
    assert_eq!(dev.ok(&["fs", "cat", "/d/lines"]), lines[..1000]);
    dev.ok(&["fs", "truncate", "-s", "+10", "/d/lines"]);
    assert_eq!(dev.ok(&["fs", "cat", "/d/lines"]), format!("{}{}", &lines[..1000], "\0".repeat(10)));
    dev.ok(&["fs", "truncate", "--size=-60", "/d/lines"]);
    assert_eq!(dev.ok(&["fs", "cat", "/d/lines"]), lines[..950]);
    dev.ok(&["fs", "truncate", "-c", "-s", "5", "/d/none"]);
    assert_eq!(dev.cairn(&["fs", "stat", "/d/none"]).status.code(), Some(3), "-c makes nothing");
    let refused = dev.cairn(&["fs", "truncate", "-s", "0", "/d"]);
    assert!(!refused.status.success() && text(&refused.stderr).contains("is a directory"), "{refused:?}");
}

/// A tree that is stored every night would be sent as a whole each time, or a change would be left out.
#[test]
fn put_update_sends_what_changed_and_nothing_else() {
    let dir = tempfile::Builder::new().prefix("cairn-update-").tempdir().expect("temporary directory");
    let dev = Dev::start(dir.path());
    let tree = dir.path().join("tree");
    fs::create_dir_all(tree.join("below")).expect("directory");
    let files = ["below/small", "below/empty", "large", "same size", "newer", "longer"];
    for (number, name) in files.iter().enumerate() {
        let size = [5000, 0, 3_000_000, 8, 8, 8][number];
        fs::write(tree.join(name), vec![b'a'; size]).expect("write");
        set_changed(&tree.join(name), 1_600_000_000 + number as u64);
    }
    symlink("large", tree.join("link")).expect("link");
    let put = || summary(&dev, &["fs", "put", "--update", path(&tree.join(".")), "/"]);
    let counts = |of: &Value| [&of["files"], &of["symlinks"], &of["skipped"]].map(|n| n.as_u64().expect("a number"));
    assert_eq!(counts(&put()), [6, 1, 0], "the first time");
    assert_eq!(counts(&put()), [0, 0, 7], "nothing changed");

    fs::write(tree.join("newer"), "bbbbbbbb").expect("write");
    fs::write(tree.join("longer"), "bbbbbbbbb").expect("write");
    set_changed(&tree.join("longer"), 1_600_000_005);
    fs::write(tree.join("new"), "new").expect("write");
    fs::remove_file(tree.join("link")).expect("remove");
    symlink("newer", tree.join("link")).expect("link");
    assert_eq!(counts(&put()), [3, 1, 4]);
    for (name, bytes) in [("newer", "bbbbbbbb"), ("longer", "bbbbbbbbb"), ("new", "new"), ("same size", "aaaaaaaa")] {
        assert_eq!(dev.ok(&["fs", "cat", &format!("/{name}")]), bytes, "{name}");
    }
    assert_eq!(dev.ok(&["fs", "readlink", "/link"]).trim(), "newer");
    assert_eq!(counts(&put()), [0, 0, 8], "and that stays");
    let copied = |_: ()| summary(&dev, &["fs", "cp", "-r", "--update", "/below", "/copy"]);
    assert_eq!(counts(&copied(())), [2, 0, 0]);
    let clash = dev.cairn(&["fs", "put", "--update", "-n", path(&tree), "/x"]);
    assert_eq!(clash.status.code(), Some(2), "both say what becomes of what exists");
}

/// A report of a defect would not say which build it is of.
#[test]
fn the_version_names_the_commit_and_what_is_understood() {
    let output = Command::new(binary()).arg("--version").output().expect("the binary starts");
    let said = text(&output.stdout);
    let lines: Vec<&str> = said.lines().collect();
    let [first, commit, protocol, level] = lines[..] else { panic!("four lines: {said}") };
    assert_eq!(first, format!("cairn {}", env!("CARGO_PKG_VERSION")));
    assert_eq!(protocol, format!("protocol {PROTOCOL_VERSION_MIN} to {PROTOCOL_VERSION}"));
    assert_eq!(level, format!("feature level {FEATURE_LEVEL}"));
    let commit = commit.strip_prefix("commit ").expect("a commit");
    let is_hash = commit.len() == 12 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.git").exists();
    assert!(is_hash || commit == "unknown" && !is_checkout || std::env::var_os("CAIRN_COMMIT").is_some(), "{said}");
}

/// Symbols would be lost, or a program that no longer runs be shipped.
#[test]
fn a_stripped_program_runs_and_its_symbols_are_beside_it() {
    let has = |tool: &str| Command::new(tool).arg("--version").output().is_ok_and(|output| output.status.success());
    if !has("objcopy") || !has("strip") {
        println!("skipped: binutils is not installed");
        return;
    }
    let dir = tempfile::tempdir().expect("dir");
    let program = dir.path().join("cairn");
    fs::copy(binary(), &program).expect("copy");
    let before = fs::metadata(&program).expect("program").len();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/strip.sh");
    for _ in 0..2 {
        let output = Command::new(&script).arg(&program).output().expect("strip.sh");
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(fs::metadata(&program).expect("program").len() < before / 2, "it is smaller");
        assert!(fs::metadata(dir.path().join("cairn.debug")).expect("symbols").len() > before / 4, "symbols are kept");
        let version = Command::new(&program).arg("-V").output().expect("it starts");
        assert_eq!(text(&version.stdout).trim(), format!("cairn {}", env!("CARGO_PKG_VERSION")));
    }
    let left = fs::read_dir(dir.path()).expect("list").count();
    assert_eq!(left, 2, "nothing else is left");
}

/// Whoever types the first command before a cluster runs would wait for seconds, and not learn what to do.
#[test]
fn without_a_cluster_the_first_command_says_what_to_do() {
    if !is_root() {
        println!("skipped: needs root for a network of its own, where nobody listens at the default address");
        return;
    }
    for args in [&["fs", "ls"][..], &["admin", "status"], &["bench", "meta"], &["mount", "/", "/mnt"]] {
        let mut command = Command::new("unshare");
        command.args(["--net", binary()]).args(args).env_remove("CAIRN_CLUSTER").stdin(Stdio::null());
        let output = command.output().expect("unshare");
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(7), "{args:?}: {said}");
        assert!(said.contains("cairn dev") && said.contains("--cluster"), "{args:?}: {said}");
    }
}
