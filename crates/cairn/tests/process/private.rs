//! What servers keep is for their user alone; other users of the machine see nothing of it.
use crate::support::{Cluster, Shape, lines};
use crate::wait::until_told;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SHAPE: Shape = Shape { managers: 1, metas: 1, datas: 2, racks: 2 };
/// Of nobody.
pub const OTHER_USER: u32 = 65534;

/// Whether this test may run something as another user; if not, that is said, and that part is left out.
pub fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("not root: what needs another user is left out");
    }
    root
}

fn children(dir: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// All below a directory that others than its owner have rights to.
fn open_to_others(dir: &Path) -> Vec<PathBuf> {
    let (mut found, mut stack, mut seen) = (Vec::new(), children(dir).collect::<Vec<_>>(), 0);
    while let Some(path) = stack.pop() {
        // What is gone meanwhile is open to nobody.
        let Ok(about) = fs::symlink_metadata(&path) else { continue };
        seen += 1;
        if about.permissions().mode() & 0o077 != 0 {
            found.push(path.clone());
        }
        if about.is_dir() {
            stack.extend(children(&path));
        }
    }
    assert!(seen > 10, "{} holds next to nothing", dir.display());
    found
}

/// What another user of the machine finds of a text in files below a directory.
fn grep_as_other(dir: &Path, secret: &str) -> String {
    let mut grep = Command::new("grep");
    grep.args(["-r", "-l", "-a", secret]).arg(dir).uid(OTHER_USER).gid(OTHER_USER);
    let output = grep.stdin(Stdio::null()).output().expect("grep runs");
    crate::support::text(&output.stdout)
}

/// Anybody with an account on a server would read files of mode 0600 in chunks, journals, logs and logs of requests.
#[test]
fn what_servers_keep_is_hidden_from_other_users() {
    const SECRET: &str = "the-combination-of-the-safe-is-4711";
    let mut cluster = Cluster::start(SHAPE);
    fs::set_permissions(cluster.dir.path(), Permissions::from_mode(0o755)).expect("a mode");
    let local = cluster.path("secret");
    // More than a file keeps beside its attributes: it is in chunks, too.
    fs::write(&local, format!("{SECRET}\n").repeat(20_000)).expect("a file");
    fs::set_permissions(&local, Permissions::from_mode(0o600)).expect("a mode");
    cluster.ok(&["fs", "put", local.to_str().expect("utf-8"), "/secret"]);
    let places = [cluster.path("nodes"), cluster.path("disks")];
    for place in &places {
        assert_eq!(open_to_others(place), Vec::<PathBuf>::new());
    }

    // As a build of before made them.
    cluster.stop("data1");
    for place in [cluster.path("nodes").join("data1"), cluster.disk("data1")] {
        let mut stack = vec![place];
        while let Some(path) = stack.pop() {
            let dir = path.is_dir();
            if dir {
                stack.extend(fs::read_dir(&path).expect("listed").flatten().map(|entry| entry.path()));
            }
            fs::set_permissions(&path, Permissions::from_mode(if dir { 0o755 } else { 0o644 })).expect("a mode");
        }
    }
    for place in &places {
        fs::set_permissions(place, Permissions::from_mode(0o755)).expect("a mode");
    }
    let config = cluster.path("data1.toml");
    let look = |cluster: &Cluster, wanted: &str| -> usize {
        let output = cluster.cairn(&["doctor", "--json", "--config", config.to_str().expect("utf-8")]);
        let all = crate::support::text(&output.stdout);
        let found = all.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
        found.filter(|f| f["level"] == "warning" && f["what"].as_str().expect("text").contains(wanted)).count()
    };
    assert_eq!(look(&cluster, "has mode 0755"), 2, "the directory of the node and its disk");
    if is_root() {
        assert!(
            !grep_as_other(&cluster.disk("data1"), SECRET).is_empty(),
            "the search of another user finds what is open"
        );
    }
    let told = |cluster: &Cluster| cluster.read_log("data1").matches("from now on they are 0700").count();
    assert_eq!(told(&cluster), 0, "nothing was to be mended");
    cluster.restart("data1");
    assert_eq!(told(&cluster), 2, "the node and its disks, once each");
    for dir in [cluster.path("nodes").join("data1"), cluster.disk("data1")] {
        assert_eq!(fs::metadata(&dir).expect("there").permissions().mode() & 0o777, 0o700, "{}", dir.display());
    }
    assert_eq!(look(&cluster, "has mode 0755"), 0);
    if is_root() {
        for place in &places {
            assert_eq!(grep_as_other(place, SECRET), "", "found by another user");
        }
    }
    cluster.stop("data1");
    cluster.restart("data1");
    assert_eq!(told(&cluster), 2, "it stays as it is, and is not said again");
    let healthy = || lines(&cluster, &["admin", "status"])[0].to_string();
    until_told("the node", || cluster.cairn(&["fs", "cat", "/secret"]).status.success(), healthy);
}
