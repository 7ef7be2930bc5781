//! Clones out of snapshots: by users who are not root, of snapshots that are deleted meanwhile, and by builders that
//! die.
use crate::mount::SMALL;
use crate::support::{Cluster, lines, text};
use crate::trees::noise;
use crate::wait::until;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::process::Output;

const USER: u32 = 65_534;

fn as_user(cluster: &Cluster, args: &[&str]) -> Output {
    cluster.command(args).uid(USER).gid(USER).output().expect("the binary starts")
}

/// Who is not root could clone what they may not read, or would get files of others, or setuid programs; or could not
/// clone what is theirs.
#[test]
fn a_user_clones_what_the_user_may_read() {
    if !rustix::process::getuid().is_root() {
        return eprintln!("skipped: only root becomes another user");
    }
    let cluster = Cluster::start(SMALL);
    let tree = cluster.path("tree");
    fs::create_dir_all(&tree).expect("directory");
    let bytes = noise(100_000, 3);
    for name in ["own", "roots", "secret"] {
        fs::write(tree.join(name), &bytes).expect("file");
    }
    cluster.ok(&["fs", "put", tree.to_str().expect("utf-8"), "/t"]);
    cluster.ok(&["fs", "mkdir", "/home"]);
    cluster.ok(&["fs", "chown", &format!("{USER}:{USER}"), "/home", "/t/own"]);
    cluster.ok(&["fs", "chmod", "755", "/t"]);
    cluster.ok(&["fs", "chmod", "640", "/t/own"]);
    cluster.ok(&["fs", "chmod", "4755", "/t/roots"]);
    cluster.ok(&["fs", "chmod", "600", "/t/secret"]);
    cluster.ok(&["fs", "xattr", "set", "/t/own", "user.colour", "green"]);
    cluster.ok(&["fs", "snapshot", "create", "monday"]);

    let refused = as_user(&cluster, &["fs", "clone", "/t@monday", "/home/all"]);
    let error = text(&refused.stderr);
    assert!(refused.status.code() == Some(5) && error.contains("secret"), "{error}");
    assert!(!cluster.ok(&["fs", "ls", "-a", "/home"]).contains("all"), "half of a clone stays");
    cluster.ok(&["fs", "rm", "--skip-trash", "/t/own"]);
    for name in ["own", "roots"] {
        let output = as_user(&cluster, &["fs", "clone", &format!("/t/{name}@monday"), &format!("/home/{name}")]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let stat = &lines(&cluster, &["fs", "stat", &format!("/home/{name}")])[0];
        assert_eq!(stat["uid"].as_u64(), Some(u64::from(USER)), "{stat}");
        let mode = stat["mode"].to_string();
        assert!(!mode.contains("4755"), "a program of root's runs as somebody else: {stat}");
        let back = cluster.path(&format!("back-{name}"));
        cluster.ok(&["fs", "get", &format!("/home/{name}"), back.to_str().expect("utf-8")]);
        assert!(fs::read(back).expect("got") == bytes, "{name} differs");
    }
    assert!(cluster.ok(&["fs", "xattr", "ls", "/home/own"]).contains("user.colour"));
    // Shared: the bytes are there as long as one of them has them.
    cluster.ok(&["fs", "snapshot", "delete", "monday"]);
    until("the snapshot is gone", || lines(&cluster, &["fs", "snapshot", "ls"]).is_empty());
    cluster.ok(&["admin", "fsck", "default"]);
    assert_eq!(as_user(&cluster, &["fs", "cat", "/home/own"]).stdout, bytes);
}

/// Who clones out of a snapshot that is deleted meanwhile would get half of it, or not be told why it failed; what a
/// builder that was killed leaves would not be told.
#[test]
fn a_snapshot_goes_while_it_is_cloned() {
    let cluster = Cluster::start(SMALL);
    let tree = cluster.path("tree");
    for directory in 0..20 {
        fs::create_dir_all(tree.join(format!("d{directory}"))).expect("directory");
        for file in 0..40 {
            fs::write(tree.join(format!("d{directory}/{file}")), b"some").expect("file");
        }
    }
    cluster.ok(&["fs", "put", tree.to_str().expect("utf-8"), "/t"]);
    let mut told = None;
    for round in 0..20 {
        let name = format!("s{round}");
        cluster.ok(&["fs", "snapshot", "create", &name]);
        let target = format!("/c{round}");
        let clone = cluster.command(&["fs", "clone", &format!("/t@{name}"), &target]).spawn().expect("it starts");
        until("it has begun", || cluster.ok(&["fs", "ls", "-a", "/"]).contains(&format!("c{round}")));
        cluster.ok(&["fs", "snapshot", "delete", &name]);
        let output = clone.wait_with_output().expect("it ends");
        let files = lines(&cluster, &["fs", "find", "/"]);
        let cloned =
            files.iter().filter(|one| one["path"].as_str().is_some_and(|path| path.starts_with(&target))).count();
        match output.status.success() {
            // All of it was there before the snapshot went.
            true => assert_eq!(cloned, 821, "half of a snapshot is told to be all of it"),
            false => {
                assert_eq!(cloned, 0, "half of a clone is seen");
                told = Some((name, text(&output.stderr)));
                break;
            }
        }
    }
    let (name, error) = told.expect("a snapshot that went first");
    assert!(error.contains(&format!("the snapshot {name:?} was deleted")), "{error}");
    assert!(error.contains("cairn fs snapshot ls"), "{error}");

    // As a builder that was killed leaves it.
    cluster.ok(&["fs", "mkdir", "-p", "/t/.half.cloning/tree"]);
    let checked = cluster.ok(&["admin", "fsck", "default"]);
    assert!(checked.contains("/t/.half.cloning") && checked.contains("note"), "{checked}");
    assert!(checked.contains("0 findings"), "{checked}");
}
