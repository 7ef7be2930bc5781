//! `cairn fs snapshot diff`: what a user changed, and nothing that only lies elsewhere since.
use crate::disks::chunk_use;
use crate::mount::SMALL;
use crate::private::is_root;
use crate::support::{Cluster, lines, text};
use crate::trees::noise;
use std::fs;
use std::os::unix::process::CommandExt as _;

const SIZE: usize = 600_000;

/// What the files are, and what of them is done after the snapshot.
const FILES: [&str; 9] = ["converted", "cloned", "mode", "times", "tagged", "same", "other", "longer", "still"];

fn told(cluster: &Cluster) -> Vec<String> {
    let output = cluster.ok(&["fs", "snapshot", "diff", "monday", "--path", "/d"]);
    let mut told: Vec<String> = output.lines().map(str::to_owned).collect();
    told.sort_unstable();
    told
}

/// Files would be shown as changed that are only stored in another way or were put back, or changes would not be shown.
#[test]
fn a_diff_shows_what_a_user_sees() {
    let cluster = Cluster::start(SMALL);
    let tree = cluster.path("d");
    fs::create_dir_all(tree.join("tree/deep")).expect("directory");
    for (seed, name) in (0..).zip(FILES) {
        fs::write(tree.join(name), noise(SIZE, seed)).expect("file");
        fs::write(tree.join("tree/deep").join(name), noise(5_000, 100 + seed)).expect("file");
    }
    let put = |local: &str, bytes: Vec<u8>, remote: &str| {
        let path = cluster.path(local);
        fs::write(&path, bytes).expect("local");
        cluster.ok(&["fs", "put", "--skip-trash", path.to_str().expect("utf-8"), remote]);
    };
    cluster.ok(&["fs", "put", tree.to_str().expect("utf-8"), "/d"]);
    cluster.ok(&["fs", "snapshot", "create", "monday"]);
    assert!(told(&cluster).is_empty());

    // Each is stored in another way, and something else than its contents changed, so that the server says that it was
    // touched.
    let stored = chunk_use(&cluster).0;
    cluster.ok(&["fs", "layout", "convert", "r2", "/d/converted"]);
    assert!(chunk_use(&cluster).0 > stored, "nothing was converted");
    cluster.ok(&["fs", "clone", "/d/cloned", "/clone"]);
    assert!(told(&cluster).is_empty(), "{:?}", told(&cluster));
    cluster.ok(&["fs", "chmod", "600", "/d/converted", "/d/cloned", "/d/mode"]);
    cluster.ok(&["fs", "touch", "-d", "2001-02-03T04:05:06", "/d/times"]);
    cluster.ok(&["fs", "xattr", "set", "/d/tagged", "user.colour", "green"]);
    // Written anew, as programs do that replace files.
    put("same", noise(SIZE, 5), "/d/same");
    put("other", noise(SIZE, 77), "/d/other");
    put("longer", noise(SIZE + 1, 7), "/d/longer");
    cluster.ok(&["fs", "touch", "-r", "/d/.snapshots/monday/same", "/d/same"]);
    let mode = lines(&cluster, &["fs", "stat", "/d/.snapshots/monday/same"])[0]["mode"].clone();
    for name in ["same", "other", "longer"] {
        cluster.ok(&["fs", "chmod", mode.as_str().expect("a mode"), &format!("/d/{name}")]);
    }
    let expected = ["A /cloned", "A /converted", "A /mode", "A /tagged", "A /times", "C /longer", "C /other"];
    assert_eq!(told(&cluster), expected);

    // What is put back is what it was; what was there is under another name.
    let said = &lines(&cluster, &["fs", "snapshot", "restore", "/d/tree@monday"])[0];
    let kept = said["kept_as"].as_str().expect("where what lived is").to_owned();
    let beside = format!("+ {}/", kept.strip_prefix("/d").expect("below"));
    assert!(told(&cluster).contains(&beside), "{:?}", told(&cluster));
    assert!(!told(&cluster).iter().any(|line| line.contains("/tree/")), "{:?}", told(&cluster));
    cluster.ok(&["fs", "rm", "-r", "--skip-trash", &kept]);
    assert_eq!(told(&cluster), expected);
    put("deep", noise(5_000, 55), "/d/tree/deep/mode");
    assert!(told(&cluster).iter().any(|line| line == "C /tree/deep/mode"), "{:?}", told(&cluster));
    cluster.ok(&["fs", "mv", "/d/tree", "/d/trunk"]);
    cluster.ok(&["fs", "touch", "-d", "2001-02-03T04:05:06", "/d/trunk"]);
    let now = told(&cluster);
    for line in ["- /tree/", "+ /trunk/"] {
        assert!(now.iter().any(|one| one == line), "{line}: {now:?}");
    }

    let output = cluster.cairn(&["fs", "snapshot", "diff", "monday", "--path", "/d"]);
    let summary = text(&output.stderr);
    assert!(summary.contains("names were read") && summary.contains("compared"), "{summary}");
    let json = lines(&cluster, &["fs", "snapshot", "diff", "monday", "--path", "/d"]);
    let summary = &json.last().expect("a summary")["summary"];
    assert!(summary["bytes_compared"].as_u64() >= Some(SIZE as u64), "{summary}");
}

/// One directory that somebody may not read would hide from him all that changed behind it, or a part be taken for all.
#[test]
fn a_diff_goes_on_behind_what_may_not_be_read() {
    if !is_root() {
        return;
    }
    let cluster = Cluster::start(SMALL);
    cluster.ok(&["fs", "mkdir", "-p", "/d/p", "/d/q"]);
    cluster.ok(&["fs", "chmod", "700", "/d/p"]);
    cluster.ok(&["fs", "snapshot", "create", "one"]);
    for name in ["p", "q"] {
        let local = cluster.path(name);
        fs::write(&local, b"new").expect("local");
        cluster.ok(&["fs", "put", local.to_str().expect("utf-8"), &format!("/d/{name}/new")]);
    }
    let mut command = cluster.command(&["fs", "snapshot", "diff", "one", "--path", "/d"]);
    let output = command.uid(65_534).gid(65_534).output().expect("it runs");
    let (told, said) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(10), "{said}");
    assert!(told.contains("+ /q/new") && !told.contains("/p/"), "{told}");
    assert!(said.contains("/d/p:") && said.contains("names were read"), "{said}");
    assert_eq!(cluster.ok(&["fs", "snapshot", "diff", "one", "--path", "/d"]).lines().count(), 2);
}

/// All of a volume would be read for a few changes, or something that changed be passed over.
#[test]
fn a_diff_passes_over_what_did_not_change() {
    let cluster = Cluster::start(SMALL);
    let tree = cluster.path("d");
    for directory in 0..30 {
        fs::create_dir_all(tree.join(format!("{directory}/below"))).expect("directory");
        for file in 0..20 {
            fs::write(tree.join(format!("{directory}/below/{file}")), b"some").expect("file");
        }
    }
    cluster.ok(&["fs", "put", tree.to_str().expect("utf-8"), "/d"]);
    let read = |names: &[&str]| {
        let told = lines(&cluster, &[&["fs", "snapshot", "diff"], names].concat());
        let (summary, changes) = told.split_last().expect("a summary");
        let paths = changes.iter().map(|one| format!("{} {}", one["change"], one["path"]).replace('"', "")).collect();
        let paths: std::collections::BTreeSet<String> = paths;
        (summary["summary"]["entries_read"].as_u64().expect("a number"), paths)
    };
    cluster.ok(&["fs", "snapshot", "create", "one"]);
    assert_eq!(read(&["one"]), (0, Default::default()));
    let new = cluster.path("new");
    fs::write(&new, b"new").expect("local");
    cluster.ok(&["fs", "put", new.to_str().expect("utf-8"), "/d/7/below/new"]);
    cluster.ok(&["fs", "mv", "/d/3/below", "/d/4/moved"]);
    cluster.ok(&["fs", "snapshot", "create", "two"]);
    let (entries, paths) = read(&["one", "two"]);
    let expected = ["created /d/7/below/new", "renamed /d/4/moved"].map(str::to_owned);
    assert!(expected.iter().all(|one| paths.contains(one)) && paths.len() == 2, "{paths:?}");
    assert!(entries < 250, "{entries} names were read, of 660 in each state");
    assert_eq!(read(&["two"]), (0, Default::default()));

    // A file that is changed in place is looked for.
    cluster.ok(&["fs", "chmod", "600", "/d/29/below/11"]);
    let (entries, paths) = read(&["two"]);
    assert_eq!(paths.into_iter().collect::<Vec<_>>(), ["attributes /d/29/below/11"]);
    assert!(entries >= 22, "{entries}");
    // The images of the one that goes are those of the one before.
    cluster.ok(&["fs", "snapshot", "delete", "two"]);
    crate::wait::until("it is gone", || lines(&cluster, &["fs", "snapshot", "ls"]).len() == 1);
    let (_, paths) = read(&["one"]);
    assert!(paths.len() == 3 && expected.iter().all(|one| paths.contains(one)), "{paths:?}");
}
