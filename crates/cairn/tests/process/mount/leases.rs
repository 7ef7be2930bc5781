//! Directories that a mount leads (`lease=new`): who looks at them sees all that was done, what was synced is there
//! whoever dies, and who is cut off loses what it has not stored, and is told.
use super::{Mount, SMALL, skipped};
use crate::members::leader;
use crate::support::{Cluster, Shape, text};
use crate::wait::until;
use rustix::process::{Pid, Signal};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn leading(cluster: &Cluster, name: &str) -> Mount {
    Mount::new(cluster, name, "/", "lease=new")
}

pub fn led(mount: &Mount) -> u64 {
    mount.number(&["worker", "vfs", "led_directories"]).expect("the state of the mount")
}

/// A directory that the mount leads. A partition of a new cluster knows what this build does after a moment.
pub fn lead(mount: &Mount, name: &str) -> PathBuf {
    let (mut tries, before) = (0, led(mount));
    let mut directory = PathBuf::new();
    until("a directory that is led", || {
        tries += 1;
        directory = mount.path(&format!("{name}-{tries}"));
        fs::create_dir(&directory).expect("mkdir");
        led(mount) > before
    });
    directory
}

fn as_seen_by(mount: &Mount, path: &Path) -> PathBuf {
    mount.path(path.file_name().and_then(|name| name.to_str()).expect("a name"))
}

/// What is below a directory: contents and permissions by path; directories have none.
fn tree(root: &Path) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut open = vec![root.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).expect("list").map(|entry| entry.expect("entry")) {
            let (path, meta) = (entry.path(), entry.metadata().expect("stat"));
            let contents = if meta.is_dir() { Vec::new() } else { fs::read(&path).expect("read") };
            found.insert(path.strip_prefix(root).expect("below").to_owned(), (meta.mode(), contents));
            if meta.is_dir() {
                open.push(path);
            }
        }
    }
    found
}

/// Makes what an archive makes: files with contents, modes and times, directories in directories, links.
fn unpack(top: &Path, directories: u32, files: u32) -> u32 {
    for d in 0..directories {
        let directory = top.join(format!("d{d}/e"));
        fs::create_dir_all(&directory).expect("mkdir");
        for f in 0..files {
            let path = directory.join(format!("f{f}"));
            let mut file = File::options().write(true).create_new(true).open(&path).expect("create");
            file.write_all(format!("{d} {f} ").repeat(100).as_bytes()).expect("write");
            drop(file);
            fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("chmod");
        }
        fs::rename(directory.join("f0"), top.join(format!("d{d}/moved"))).expect("rename");
        fs::hard_link(directory.join("f1"), directory.join("linked")).expect("link");
        fs::remove_file(directory.join("f2")).expect("unlink");
    }
    directories * (files + 2)
}

fn end(mounts: impl IntoIterator<Item = Mount>) {
    for mount in mounts {
        let umount = mount.umount();
        assert!(umount.status.success(), "{}", text(&umount.stderr));
    }
}

/// Nobody would get what the guide says without an option, or somebody get it who asked for something else.
#[test]
fn a_mount_leads_unless_its_options_say_otherwise() {
    if skipped() || std::env::var_os("CAIRN_MOUNT_OPTIONS").is_some() {
        return;
    }
    let cluster = Cluster::start(SMALL);
    let mount = Mount::new(&cluster, "default", "/", "");
    let top = lead(&mount, "top");
    fs::write(top.join("f"), "x").expect("write");
    let shown = mount.cairn(&["mount", "--status", mount.dir.to_str().expect("a temporary path")]);
    let shown = text(&shown.stdout);
    let line = shown.lines().find(|line| line.starts_with("leads")).expect(&shown);
    assert!(!line.contains(" 0 directories"), "{line}");
    let others = ["close=visible", "lease=off", "dirsync", "sync", "attr_timeout=30"];
    let others: Vec<_> =
        others.into_iter().map(|options| (options, Mount::new(&cluster, options, "/", options))).collect();
    for (options, other) in &others {
        let directory = other.path(&format!("with {options}"));
        fs::create_dir(&directory).expect("mkdir");
        fs::create_dir(directory.join("below")).expect("mkdir");
        assert_eq!(led(other), 0, "{options}");
        let before = led(&mount);
        assert!(mount.path(&format!("with {options}/below")).is_dir(), "{options}");
        assert_eq!(led(&mount), before);
    }
    // The level is not what keeps them from it.
    lead(&mount, "another");
    end(others.into_iter().map(|(_, other)| other).chain([mount]));
}

/// Another machine would see a part of a tree, or none; or a directory of which only one of both has the truth.
#[test]
fn others_see_a_whole_tree_when_they_look() {
    if skipped() {
        return;
    }
    let cluster = Cluster::start(SMALL);
    let (one, two) = (leading(&cluster, "one"), leading(&cluster, "two"));
    let top = lead(&one, "top");
    let count = unpack(&top, 4, 12);
    let before = led(&one);
    let own = tree(&top);
    assert_eq!((own.len() as u32, led(&one)), (count, before), "its holder's own look ends nothing");
    let seen = tree(&as_seen_by(&two, &top));
    assert!(seen == own, "{:?} instead of {:?}", seen.keys(), own.keys());
    assert_eq!(led(&one), before - 1, "it is an ordinary directory");
    // Both go on in it.
    fs::write(as_seen_by(&two, &top).join("theirs"), "x").expect("write");
    until("what the other one wrote", || top.join("theirs").exists());
    // A tree is removed by who leads it, and the top with it.
    let other = lead(&one, "removed");
    unpack(&other, 3, 5);
    let leads = led(&one);
    assert!(Command::new("rm").arg("-rf").arg(other.join("d0")).status().expect("rm").success());
    assert_eq!(led(&one), leads, "nothing of that ends it");
    fs::remove_dir_all(&other).expect("removed");
    assert!(!as_seen_by(&two, &other).exists());
    // The end of a mount stores everything.
    let last = lead(&one, "last");
    fs::write(last.join("f"), "stored at the end").expect("write");
    let last = as_seen_by(&two, &last);
    end([one]);
    assert_eq!(fs::read_to_string(last.join("f")).expect("read"), "stored at the end");
    end([two]);
}

/// What fsync promised would be gone with the mount's process or with a metadata server, or be there twice.
#[test]
fn what_was_synced_is_there_whoever_dies() {
    if skipped() {
        return;
    }
    let mut cluster = Cluster::start(Shape { managers: 1, metas: 3, datas: 3, racks: 3 });
    let (one, two) = (leading(&cluster, "one"), Mount::new(&cluster, "two", "/", ""));
    let top = lead(&one, "top");
    let sync = |path: &Path| File::open(path).and_then(|file| file.sync_all()).expect("fsync");
    let mut synced = Vec::new();
    for round in 0..40 {
        if round == 10 {
            let leads = leader(&cluster);
            cluster.kill(&leads);
        }
        let directory = top.join(format!("r{round}"));
        fs::create_dir(&directory).expect("mkdir");
        for f in 0..6 {
            fs::write(directory.join(format!("f{f}")), format!("{round}.{f}")).expect("write");
        }
        sync(&if round % 2 == 0 { directory.join("f5") } else { directory.clone() });
        synced.push(directory.file_name().expect("a name").to_owned());
    }
    // Not synced: it may be there or not, and nothing behind what is missing.
    for f in 0..50 {
        File::create(top.join(format!("last{f:02}"))).expect("create");
    }
    let dead = one.kill_worker();
    let seen = as_seen_by(&two, &top);
    let found = tree(&seen);
    for (round, name) in synced.iter().enumerate() {
        for f in 0..6 {
            let contents = found.get(&Path::new(name).join(format!("f{f}"))).map(|(_, contents)| &contents[..]);
            assert_eq!(contents, Some(format!("{round}.{f}").as_bytes()), "{name:?}/f{f}");
        }
    }
    let last: Vec<_> = found.keys().filter(|path| path.to_string_lossy().starts_with("last")).collect();
    let prefix = (0..last.len()).all(|f| found.contains_key(Path::new(&format!("last{f:02}"))));
    assert!(prefix, "what is there is no beginning of what was done: {last:?}");
    assert_eq!(found.len(), 40 * 7 + last.len(), "something is there that nobody made");
    one.worker_after(dead);
    assert_eq!(tree(&top), found, "the next worker sees the same");
    end([one, two]);
}

/// Changes of names until it is told to stop, each of which has to succeed; what is there then.
fn busy(top: &Path, stop: &AtomicBool) -> BTreeSet<PathBuf> {
    let mut names = BTreeSet::new();
    for n in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let directory = top.join(format!("d{}", n / 16));
        if n % 16 == 0 {
            fs::create_dir(&directory).expect("mkdir");
            names.insert(directory.clone());
        }
        let file = directory.join(format!("f{n}"));
        File::options().write(true).create_new(true).open(&file).expect("create");
        let stays = match n % 4 {
            0 => file,
            1 => {
                fs::rename(&file, directory.join(format!("moved{n}"))).expect("rename");
                directory.join(format!("moved{n}"))
            }
            2 => {
                fs::remove_file(&file).expect("unlink");
                continue;
            }
            _ => {
                std::os::unix::fs::symlink("target", directory.join(format!("link{n}"))).expect("symlink");
                fs::remove_file(&file).expect("unlink");
                fs::create_dir(directory.join(format!("empty{n}"))).expect("mkdir");
                fs::remove_dir(directory.join(format!("empty{n}"))).expect("rmdir");
                directory.join(format!("link{n}"))
            }
        };
        names.insert(stays);
    }
    names
}

/// Names of all that is below a directory.
fn names_below(top: &Path) -> BTreeSet<PathBuf> {
    let (mut found, mut open) = (BTreeSet::new(), vec![top.to_owned()]);
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).expect("list").map(|entry| entry.expect("entry")) {
            if entry.file_type().expect("its type").is_dir() {
                open.push(entry.path());
            }
            found.insert(entry.path());
        }
    }
    found
}

/// A program that goes on would find undone, or refused, what it was told was done.
#[test]
fn what_was_answered_is_there_behind_a_crash_of_the_worker() {
    if skipped() {
        return;
    }
    let cluster = Cluster::start(SMALL);
    let (one, two) = (leading(&cluster, "one"), Mount::new(&cluster, "two", "/", ""));
    let mut all = Vec::new();
    for round in 0..4 {
        let (top, stop) = (lead(&one, &format!("top{round}")), AtomicBool::new(false));
        let mut open = File::create(top.join("open")).expect("create");
        let mut names = std::thread::scope(|scope| {
            let program = scope.spawn(|| busy(&top, &stop));
            std::thread::sleep(Duration::from_millis(300 + 170 * round));
            let dead = one.kill_worker();
            // A call that was waiting when it died, and some behind it.
            File::create(top.join("behind")).expect("create");
            one.worker_after(dead);
            stop.store(true, Ordering::Relaxed);
            program.join().expect("no change is refused")
        });
        open.write_all(b"goes on").and_then(|()| open.sync_all()).expect("the open file goes on");
        names.extend([top.join("open"), top.join("behind")]);
        assert_eq!(names_below(&top), names, "round {round}");
        all.push((top, names));
    }
    for (top, names) in &all {
        let seen = as_seen_by(&two, top);
        let expected: BTreeSet<_> =
            names.iter().map(|path| seen.join(path.strip_prefix(top).expect("below"))).collect();
        assert_eq!(names_below(&seen), expected);
    }
    let logs = one.logs();
    assert!(logs.contains("what a dead process had queued is stored"), "nothing waited");
    assert!(!logs.contains("are lost"), "{logs}");
    end([one, two]);
    assert!(cluster.ok(&["admin", "fsck", "default"]).contains("0 findings"));
}

/// Others would wait for a machine that is cut off for ever, or it would go on as if nothing was.
#[test]
fn who_is_cut_off_loses_it_and_is_told() {
    if skipped() {
        return;
    }
    let cluster = Cluster::start(SMALL);
    let (one, two) = (leading(&cluster, "one"), Mount::new(&cluster, "two", "/", ""));
    let top = lead(&one, "top");
    fs::write(top.join("synced"), "x").expect("write");
    let kept = File::open(&top).expect("open");
    kept.sync_all().expect("fsync");
    // Renewals are heard, and nothing that is done from now on is stored before it stands still.
    File::create(top.join("lost")).expect("create");
    let worker = one.worker().to_string();
    let signal = |name: &str| assert!(Command::new("kill").args([name, &worker]).status().expect("kill").success());
    signal("-STOP");
    let began = Instant::now();
    let seen = as_seen_by(&two, &top);
    let names: Vec<_> = tree(&seen).into_keys().collect();
    let waited = began.elapsed();
    assert!(waited < Duration::from_secs(30), "others waited for {waited:?}");
    assert!(names.contains(&PathBuf::from("synced")), "{names:?}");
    let was_lost = !names.contains(&PathBuf::from("lost"));
    fs::write(seen.join("theirs"), "others go on").expect("write");
    signal("-CONT");
    if was_lost {
        until("the loss is told", || one.logs().contains("changes in a delegated directory are lost"));
        let error = fs::read_dir(&top).map(|_| ()).and_then(|()| File::create(top.join("more")).map(|_| ()));
        assert_eq!(error.expect_err("it is lost").raw_os_error(), Some(5));
        assert_eq!(kept.sync_all().expect_err("it is lost").raw_os_error(), Some(5));
        let said = one.cairn(&["umount", one.dir.to_str().expect("a temporary path")]);
        assert!(!said.status.success() && text(&said.stderr).contains("they are lost"), "{}", text(&said.stderr));
    }
    println!("others waited for {waited:?}; the last change was {}", if was_lost { "lost" } else { "stored" });
    fs::write(one.path("elsewhere"), "goes on").expect("write");
    assert_eq!(fs::read_to_string(two.path("elsewhere")).expect("read"), "goes on");
    drop(kept);
    end([one, two]);
}

/// What was answered and not stored would be gone with a worker that cannot hand over.
#[test]
fn an_upgrade_that_cannot_store_everything_is_refused() {
    if skipped() {
        return;
    }
    let cluster = Cluster::start(SMALL);
    // Not by a command: each that begins closes its copy of the open file, and waits for the data servers.
    let datas = |signal: Signal| {
        for name in ["data1", "data2", "data3"] {
            let pid = Pid::from_raw(cluster.pid(name) as i32).expect("a process");
            rustix::process::kill_process(pid, signal).expect("a signal");
        }
    };
    let (one, two) = (Mount::new(&cluster, "one", "/", "lease=new,timeout=4"), Mount::new(&cluster, "two", "/", ""));
    let top = lead(&one, "top");
    let mut file = File::create(top.join("open")).expect("create");
    let (worker, dir) = (one.worker(), one.dir.to_str().expect("a temporary path"));
    datas(Signal::STOP);
    file.write_all(b"not synced").expect("write");
    File::create(top.join("name")).expect("create");
    let upgraded = one.cairn(&["mount", "--upgrade", dir]);
    let said = text(&upgraded.stderr);
    assert!(!upgraded.status.success() && said.contains("the old worker goes on"), "{said}");
    datas(Signal::CONT);
    until("the data is stored", || file.sync_all().is_ok());
    assert_eq!(one.worker(), worker);
    // It leads as before, and what waits when it is handed over is stored.
    let other = lead(&one, "other");
    File::create(other.join("later")).expect("create");
    until("an upgrade", || one.cairn(&["mount", "--upgrade", dir]).status.success());
    assert_ne!(one.worker(), worker);
    file.write_all(b", and more").expect("the open file goes on");
    file.sync_all().expect("fsync");
    assert_eq!(fs::read_to_string(as_seen_by(&two, &top).join("open")).expect("read"), "not synced, and more");
    assert!(as_seen_by(&two, &top).join("name").exists() && as_seen_by(&two, &other).join("later").exists());
    drop(file);
    end([one, two]);
}

/// Nothing on the mount would be answered until the lease of the dead worker has ended.
#[test]
fn open_files_of_led_directories_go_on_after_a_crash() {
    if skipped() {
        return;
    }
    let cluster = Cluster::start(SMALL);
    let (one, two) = (leading(&cluster, "one"), Mount::new(&cluster, "two", "/", ""));
    fs::write(one.path("elsewhere"), "x").expect("write");
    let top = lead(&one, "top");
    let mut file = File::create(top.join("open")).expect("create");
    file.write_all(b"synced").expect("write");
    file.sync_all().expect("fsync");
    let dead = one.kill_worker();
    let began = Instant::now();
    assert_eq!(fs::read_to_string(one.path("elsewhere")).expect("read"), "x");
    file.write_all(b", and more").expect("write");
    file.sync_all().expect("fsync");
    let took = began.elapsed();
    assert!(took < Duration::from_secs(12), "the mount was away for {took:?}");
    println!("the mount was away for {took:?}");
    one.worker_after(dead);
    assert_eq!(fs::read_to_string(as_seen_by(&two, &top).join("open")).expect("read"), "synced, and more");
    drop(file);
    end([one, two]);
}

/// A directory of which names are lost, with the worker that answered them dead. `None`: they were stored before it
/// stood still.
fn lose_with_the_worker(one: &Mount, two: &Mount, name: &str) -> Option<(PathBuf, File)> {
    let top = lead(one, name);
    fs::write(top.join("synced"), "x").expect("write");
    let kept = File::open(&top).expect("open");
    kept.sync_all().expect("fsync");
    let worker = one.worker();
    let pid = Pid::from_raw(worker as i32).expect("a process");
    File::create(top.join("lost")).expect("create");
    rustix::process::kill_process(pid, Signal::STOP).expect("a signal");
    let names: Vec<_> = tree(&as_seen_by(two, &top)).into_keys().collect();
    assert!(names.contains(&PathBuf::from("synced")), "{names:?}");
    rustix::process::kill_process(pid, Signal::KILL).expect("a signal");
    one.worker_after(worker);
    (!names.contains(&PathBuf::from("lost"))).then_some((top, kept))
}

/// A program that goes on behind the death of the worker would be told that what it did is durable, and find it gone.
#[test]
fn what_no_worker_could_store_is_an_error_until_it_is_mounted_anew() {
    if skipped() {
        return;
    }
    let cluster = Cluster::start(SMALL);
    let (one, two) = (leading(&cluster, "one"), Mount::new(&cluster, "two", "/", ""));
    let lost = (0..3).find_map(|round| lose_with_the_worker(&one, &two, &format!("top{round}")));
    let (top, kept) = lost.expect("names are lost with a worker that stands still at once");
    let is_told = || {
        let listed = fs::read_dir(&top).and_then(|mut all| all.next().transpose().map(|_| ()));
        let made = File::create(top.join("more")).map(|_| ());
        for (what, outcome) in [("fsync", kept.sync_all()), ("list", listed), ("create", made)] {
            assert_eq!(outcome.expect_err(what).raw_os_error(), Some(5), "{what}");
        }
        assert_eq!(one.number(&["worker", "vfs", "lost_directories"]), Some(1));
        fs::write(one.path("elsewhere"), "goes on").expect("write");
    };
    is_told();
    // Nor does another worker forget it.
    let (dir, worker) = (one.dir.to_str().expect("a temporary path"), one.worker());
    let upgraded = one.cairn(&["mount", "--upgrade", dir]);
    assert!(upgraded.status.success(), "{}", text(&upgraded.stderr));
    one.worker_after(worker);
    is_told();
    drop(kept);
    let said = one.umount();
    assert!(!said.status.success(), "it is told");
    assert!(text(&said.stderr).contains("nothing else is left to write"), "{}", text(&said.stderr));
    end([one]);
    let again = leading(&cluster, "one");
    let top = as_seen_by(&again, &top);
    assert_eq!(tree(&top).into_keys().collect::<Vec<_>>(), [PathBuf::from("synced")]);
    fs::write(top.join("more"), "x").expect("write");
    File::open(&top).and_then(|top| top.sync_all()).expect("fsync");
    end([again, two]);
}
