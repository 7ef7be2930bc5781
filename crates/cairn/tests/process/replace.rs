//! Files that a command replaces: they are in the trash, or were kept, or asked about; the name never leads to nothing.
use crate::mount::SMALL;
use crate::support::{Cluster, lines, text};
use crate::trees::noise;
use crate::wait::until;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

fn utf8(path: &Path) -> &str {
    path.to_str().expect("utf-8")
}

/// What is in the trash: former paths with their bytes, oldest first.
fn trashed(cluster: &Cluster) -> Vec<(String, Vec<u8>)> {
    let all = lines(cluster, &["fs", "trash", "ls"]);
    let one = |entry: &serde_json::Value| {
        let field = |key: &str| entry[key].as_str().expect("a text").to_owned();
        let read = cluster.cairn(&["fs", "cat", &field("now_at")]);
        assert!(read.status.success(), "{}", text(&read.stderr));
        (field("path"), read.stdout)
    };
    all.iter().map(one).collect()
}

fn cat(cluster: &Cluster, path: &str) -> String {
    cluster.ok(&["fs", "cat", path])
}

/// A slip of the hand would destroy the only copy of a file, without a word.
#[test]
fn what_put_cp_and_mv_replace_is_in_the_trash() {
    let cluster = Cluster::start(SMALL);
    let local = cluster.path("local");
    let put = |what: &[u8], flags: &[&str], to: &str| {
        fs::write(&local, what).expect("local");
        let output = cluster.cairn(&[&["fs", "put"], flags, &[utf8(&local), to]].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stderr)
    };
    put(b"one", &[], "/f");
    assert!(!put(b"other", &[], "/g").contains("in the place of"), "nothing was there");
    assert_eq!(trashed(&cluster), []);
    let said = put(b"two", &[], "/f");
    assert!(said.contains("1 of them replaced a file"), "{said}");
    assert_eq!(cat(&cluster, "/f"), "two");
    assert_eq!(trashed(&cluster), [("/f".to_owned(), b"one".to_vec())]);
    // It comes back as after `rm`.
    cluster.ok(&["fs", "trash", "restore", "/f", "--to", "/back"]);
    assert_eq!(cat(&cluster, "/back"), "one");

    // Kept, or gone for good.
    assert!(put(b"three", &["-n"], "/f").contains("1 left as they were"));
    assert_eq!((cat(&cluster, "/f"), trashed(&cluster).len()), ("two".to_owned(), 0));
    put(b"three", &["--skip-trash"], "/f");
    assert_eq!((cat(&cluster, "/f"), trashed(&cluster).len()), ("three".to_owned(), 0));
    // Nobody is there to be asked.
    for args in [&["fs", "put", "-i", utf8(&local), "/f"][..], &["fs", "mv", "-i", "/f", "/g"]] {
        assert!(cluster.fails(args, 2).contains("standard input is no terminal"));
    }

    cluster.ok(&["fs", "cp", "/f", "/g"]);
    assert_eq!(cat(&cluster, "/g"), "three");
    let said = cluster.cairn(&["fs", "mv", "/g", "/back"]);
    assert!(text(&said.stderr).contains("1 file replaced"), "{}", text(&said.stderr));
    assert_eq!(cat(&cluster, "/back"), "three");
    assert!(cluster.fails(&["fs", "cat", "/g"], 3).contains("/g"));
    cluster.fails(&["fs", "mv", "-n", "/f", "/back"], 4);
    assert_eq!(trashed(&cluster), [("/g".to_owned(), b"other".to_vec()), ("/back".to_owned(), b"one".to_vec())]);

    // As large as files that grow without a name, from a pipe, and where nothing is to be kept.
    let large = noise(9_000_000, 3);
    let mut pipe = cluster.command(&["fs", "put", "-", "/f"]).stdin(Stdio::piped()).spawn().expect("put");
    std::io::Write::write_all(pipe.stdin.as_mut().expect("a pipe"), &large).expect("taken");
    assert!(pipe.wait_with_output().expect("ended").status.success());
    assert_eq!(trashed(&cluster).pop(), Some(("/f".to_owned(), b"three".to_vec())));
    cluster.ok(&["fs", "mkdir", "/scratch"]);
    cluster.ok(&["fs", "trash", "keep", "/scratch", "off"]);
    let before = trashed(&cluster).len();
    for content in [b"a", b"b"] {
        put(content, &[], "/scratch/f");
    }
    assert_eq!((cat(&cluster, "/scratch/f"), trashed(&cluster).len()), ("b".to_owned(), before));
    assert!(cluster.cairn(&["fs", "cat", "/f"]).stdout == large);
    cluster.ok(&["admin", "fsck"]);
}

/// A tree that is stored over another one would take its files away, links among them.
#[test]
fn a_tree_over_a_tree_keeps_what_it_replaces() {
    let cluster = Cluster::start(SMALL);
    let tree = cluster.path("tree");
    let fill = |what: &str| {
        let _none_at_first = fs::remove_dir_all(&tree);
        fs::create_dir_all(tree.join("below")).expect("directory");
        for file in 0..40 {
            fs::write(tree.join(format!("below/{file}")), format!("{what} {file}")).expect("file");
        }
        symlink(what, tree.join("link")).expect("link");
    };
    fill("old");
    cluster.ok(&["fs", "put", utf8(&tree), "/tree"]);
    fill("new");
    let output = cluster.cairn(&["--json", "fs", "put", &format!("{}/.", utf8(&tree)), "/tree"]);
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a summary");
    assert_eq!((&summary["replaced"], &summary["failed"]), (&41.into(), &0.into()), "{summary}");
    let kept = lines(&cluster, &["fs", "trash", "ls"]);
    assert_eq!(kept.len(), 41);
    assert_eq!(cat(&cluster, "/tree/below/7"), "new 7");
    assert_eq!(cluster.ok(&["fs", "readlink", "/tree/link"]).trim(), "new");
    cluster.ok(&["fs", "trash", "restore", "/tree/link", "--to", "/link"]);
    assert_eq!(cluster.ok(&["fs", "readlink", "/link"]).trim(), "old");
    cluster.ok(&["fs", "trash", "restore", "/tree/below/7", "--to", "/seven"]);
    assert_eq!(cat(&cluster, "/seven"), "old 7");
    let names = cluster.ok(&["fs", "ls", "/tree"]);
    assert_eq!(names.split_whitespace().collect::<Vec<_>>(), ["below", "link"]);
    cluster.ok(&["admin", "fsck"]);
}

/// Whoever reads while a file is replaced would meet a moment without it; or what was replaced would be lost with its
/// replacer.
#[test]
fn a_name_is_always_there_while_it_is_replaced_and_replacers_are_killed() {
    let cluster = Cluster::start(SMALL);
    let local = cluster.path("local");
    fs::write(&local, "0").expect("local");
    cluster.ok(&["fs", "put", utf8(&local), "/f"]);
    let (done, reads) = (AtomicBool::new(false), std::sync::atomic::AtomicUsize::new(0));
    let killed = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                cluster.ok(&["fs", "stat", "/f"]);
                reads.fetch_add(1, Ordering::Relaxed);
            }
        });
        let mut killed = 0;
        for round in 1_u64..=30 {
            fs::write(&local, round.to_string()).expect("local");
            let mut job = cluster.command(&["fs", "put", utf8(&local), "/f"]).spawn().expect("put");
            if round % 2 == 0 {
                std::thread::sleep(std::time::Duration::from_millis(round * 3));
                killed += usize::from(job.try_wait().expect("wait").is_none());
                // It may have ended.
                let _ended = job.kill();
            }
            job.wait().expect("ended");
        }
        until("some reads", || reads.load(Ordering::Relaxed) > 3);
        done.store(true, Ordering::Relaxed);
        killed
    });
    assert!(killed > 0, "no fault fired: every put ended before it could be killed");
    // All versions that were complete are there, once or, where a replacer died, twice.
    let mut found: Vec<String> = trashed(&cluster).into_iter().map(|(_, bytes)| text(&bytes)).collect();
    found.push(cat(&cluster, "/f"));
    for round in (0..=30).filter(|round| round % 2 == 1 || *round == 0) {
        assert!(found.contains(&round.to_string()), "version {round} is gone: {found:?}");
    }
    cluster.ok(&["admin", "fsck"]);
}
