//! A suite that others wrote, on a mount: `pjdfstest` (the Rust rewrite), as root. `.ci/prepare` installs it.
use crate::mount::leases::lead;
use crate::mount::{Mount, SMALL, skipped};
use crate::support::{Cluster, lines, text};
use crate::wait::{until, until_told};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Tests that cannot pass, with the reason. A test that passes although it is here fails this one.
const EXCEPTIONS: &[(&str, &str)] = &[];

/// Users of any Debian-like system, so that none have to be made.
const CONFIG: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.01
allow_remount = false
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"], ["bin", "bin"]]
"#;

/// Where `.ci/prepare` puts it, or a name of the PATH.
fn program() -> PathBuf {
    let tools = Path::new(crate::support::binary()).ancestors().nth(2).map(|target| target.join("tools/bin/pjdfstest"));
    match (std::env::var_os("PJDFSTEST"), tools) {
        (Some(named), _) => PathBuf::from(named),
        (None, Some(tool)) if tool.exists() => tool,
        _ => PathBuf::from("pjdfstest"),
    }
}

/// Some call would not do what POSIX says: wrong errors, times, permissions or modes.
#[test]
fn pjdfstest_passes() {
    run(|_| ("/", ""));
}

/// The same in a directory that the mount leads.
#[test]
fn pjdfstest_passes_where_the_mount_leads() {
    run(|_| ("/", "lease=new"));
}

/// The same where almost every directory is in another partition than the one that it is in.
#[test]
fn pjdfstest_passes_in_twelve_partitions() {
    let twelve = |cluster: &Cluster| {
        let create = || cluster.cairn(&["admin", "volume", "create", "v", "--layout", "r2", "--partitions", "12"]);
        // The first time it may be a moment too early for the feature level.
        until_told("the volume", || create().status.success(), || text(&create().stderr));
        let leaders = || {
            let all = lines(cluster, &["admin", "partition", "ls", "v"]);
            all.iter().filter(|partition| partition["leader"] != 0).count()
        };
        until("leaders of all partitions", || leaders() == 12);
        ("v:/", "spread")
    };
    run(twelve);
}

/// Runs the suite in a volume, mounted with options.
fn run(prepare: impl Fn(&Cluster) -> (&'static str, &'static str)) {
    if skipped() {
        return;
    }
    if Command::new(program()).arg("--version").output().is_err() {
        return eprintln!("skipped: pjdfstest is not installed; .ci/prepare installs it");
    }
    let cluster = Cluster::start(SMALL);
    let (remote, options) = prepare(&cluster);
    // Other users have to reach the mount.
    fs::set_permissions(cluster.dir.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
    let mount = Mount::new(&cluster, "mnt", remote, options);
    let suite = match options {
        "lease=new" => lead(&mount, "suite"),
        _ => mount.path("suite"),
    };
    fs::create_dir_all(&suite).expect("mkdir");
    let config = cluster.path("pjdfstest.toml");
    fs::write(&config, CONFIG).expect("configuration");
    let output = Command::new(program()).arg("-c").arg(&config).arg("-p").arg(&suite).output().expect("suite");
    let said = text(&output.stdout);
    // Why: the lines behind the name.
    let reasons = |names: &[&str]| -> String {
        let mut shown = false;
        let told = said.lines().filter(|line| {
            shown = if line.contains("::") && !line.starts_with(char::is_whitespace) {
                names.iter().any(|name| line.starts_with(name))
            } else {
                shown
            };
            shown
        });
        told.take(40).collect::<Vec<_>>().join("\n")
    };
    let row = |line: &str| -> Option<(String, bool)> {
        let (name, rest) = line.split_once(' ')?;
        let failed = rest.trim_start().starts_with("FAILED");
        (name.contains("::") && (failed || rest.trim() == "ok")).then(|| (name.to_owned(), failed))
    };
    let rows: Vec<(String, bool)> = said.lines().filter_map(row).collect();
    let excused = |name: &str| EXCEPTIONS.iter().any(|(test, _)| *test == name);
    let failed: Vec<&str> = rows.iter().filter(|(name, bad)| *bad && !excused(name)).map(|(n, _)| &n[..]).collect();
    let mended: Vec<&str> = rows.iter().filter(|(name, bad)| !bad && excused(name)).map(|(n, _)| &n[..]).collect();
    println!("pjdfstest: {} tests, {} excused", rows.len(), EXCEPTIONS.len());
    assert!(rows.len() > 300, "the suite did not run:\n{said}\n{}", text(&output.stderr));
    assert!(failed.is_empty(), "{} failed: {failed:#?}\n{}", failed.len(), reasons(&failed));
    assert!(mended.is_empty(), "these pass now; take them off the list: {mended:?}");
    let umount = mount.umount();
    assert!(umount.status.success(), "{}", text(&umount.stderr));
    let volume = if remote == "/" { "default" } else { remote.trim_end_matches(":/") };
    assert!(cluster.ok(&["admin", "fsck", volume]).contains("0 findings"));
}
