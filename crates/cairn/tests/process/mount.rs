//! A volume mounted on a real cluster: what programs do with files, and what stays when processes die.
//!
//! Needs /dev/fuse and the right to mount; where they lack, each test says so and passes.
mod appended;
mod apps;
mod clones;
mod crash;
mod fsx;
pub mod leases;
mod leave;
mod locks;
mod many;
pub mod seeds;
mod space;
mod stamps;
mod tree;
mod visible;

use crate::support::{Cluster, Shape, in_spaces, text};
use crate::wait::{PATIENT, until};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

pub const SMALL: Shape = Shape { managers: 1, metas: 1, datas: 3, racks: 3 };

/// Why mounts cannot be tested here, if they cannot.
pub fn cannot_mount() -> Option<String> {
    if let Err(error) = File::options().read(true).write(true).open("/dev/fuse") {
        return Some(format!("/dev/fuse: {error}"));
    }
    let tried = Command::new("unshare").args(["--mount", "true"]).output();
    let allowed = tried.as_ref().is_ok_and(|output| output.status.success());
    (!allowed).then(|| "mounting needs root (CAP_SYS_ADMIN)".to_owned())
}

/// Says why a test is skipped; true if it is.
pub fn skipped() -> bool {
    let why = cannot_mount();
    if let Some(why) = &why {
        eprintln!("skipped: {why}");
    }
    why.is_some()
}

/// A mounted directory; unmounted when dropped.
pub struct Mount {
    pub dir: PathBuf,
    run: PathBuf,
    cluster: String,
    /// The network that it is in, as `nsenter` is told; none: that of this process.
    spaces: Vec<String>,
}

impl Mount {
    /// Unless `options` have a `timeout`, operations wait for servers as long as a slow machine needs.
    pub fn new(cluster: &Cluster, name: &str, remote: &str, options: &str) -> Mount {
        Mount::new_in(cluster, name, remote, options, &[])
    }
    /// The same on a host of its own.
    pub fn new_in(cluster: &Cluster, name: &str, remote: &str, options: &str, spaces: &[String]) -> Mount {
        let dir = cluster.path(name);
        fs::create_dir_all(&dir).expect("mount point");
        let (run, address) = (cluster.path("run"), cluster.address.clone());
        let mount = Mount { dir, run, cluster: address, spaces: spaces.to_vec() };
        // The last one of a kind counts, so what a test needs stays.
        let mut options = match std::env::var("CAIRN_MOUNT_OPTIONS") {
            Ok(all) => format!("{all},{options}").trim_end_matches(',').to_owned(),
            Err(_) => options.to_owned(),
        };
        if !options.split(',').any(|option| option.starts_with("timeout=")) {
            options = format!("timeout={PATIENT},{options}").trim_end_matches(',').to_owned();
        }
        let mut args = vec!["mount", "-o", &options];
        let dir = mount.dir.to_str().expect("a temporary path").to_owned();
        args.extend([remote, &dir]);
        let output = mount.cairn(&args);
        assert!(output.status.success(), "cairn {args:?}: {}", text(&output.stderr));
        mount
    }
    pub fn cairn(&self, args: &[&str]) -> Output {
        let mut command = in_spaces(&self.spaces);
        command.args(args).env("CAIRN_CLUSTER", &self.cluster).env("CAIRN_RUN_DIR", &self.run);
        command.output().expect("the binary starts")
    }
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
    /// State as `--status` tells it, one number of it.
    pub fn number(&self, keys: &[&str]) -> Option<u64> {
        let status = || self.cairn(&["--json", "mount", "--status", self.dir.to_str().expect("a temporary path")]);
        let mut output = status();
        // Its processes have to get their turn.
        until("the state of the mount", || {
            let told = output.status.success();
            if !told {
                output = status();
            }
            told
        });
        let mut value: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
        for key in keys {
            value = value[key].take();
        }
        value.as_u64()
    }
    /// The worker that serves; a dead one is not it.
    pub fn worker(&self) -> u32 {
        let mut pid = None;
        until("a worker", || {
            pid = self.number(&["worker", "pid"]).and_then(|pid| u32::try_from(pid).ok());
            pid.is_some_and(|pid| Path::new(&format!("/proc/{pid}")).exists())
        });
        pid.expect("just seen")
    }
    /// The worker that serves after one has died.
    pub fn worker_after(&self, dead: u32) -> u32 {
        until("another worker", || self.worker() != dead);
        self.worker()
    }
    /// SIGKILL to the worker, and nothing else.
    pub fn kill_worker(&self) -> u32 {
        let pid = self.worker();
        let killed = Command::new("kill").args(["-9", &pid.to_string()]).status().expect("kill");
        assert!(killed.success(), "the worker {pid} was there");
        pid
    }
    /// A process that another test is starting has copies of all files that are open here, until it runs its own
    /// program.
    pub fn umount(&self) -> Output {
        let mut last = self.umount_now();
        for _ in 0..100 {
            if last.status.success() || !text(&last.stderr).contains("is in use") {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
            last = self.umount_now();
        }
        last
    }
    pub fn umount_now(&self) -> Output {
        self.cairn(&["umount", self.dir.to_str().expect("a temporary path")])
    }
    pub fn is_mounted(&self) -> bool {
        let table = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        table.contains(&format!(" {} ", self.dir.display()))
    }
    pub fn logs(&self) -> String {
        let files = fs::read_dir(&self.run).into_iter().flatten().flatten().map(|entry| entry.path());
        let logs = files.filter(|path| path.extension().is_some_and(|ending| ending == "log"));
        logs.map(|path| fs::read_to_string(path).unwrap_or_default()).collect()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of the mount\n{}", self.logs());
        }
        if self.is_mounted() {
            let dir = self.dir.to_str().expect("a temporary path");
            let _detached = self.cairn(&["umount", "--lazy", dir]);
            let _at_last = Command::new("umount").args(["-l", dir]).output();
        }
    }
}

/// truncate(2), which cuts a file by its name.
fn truncate(path: &Path, size: u64) -> rustix::io::Result<()> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).expect("no name has zeros");
    // SAFETY: a string that ends with a zero.
    match unsafe { libc::truncate(path.as_ptr(), size as libc::off_t) } {
        0 => Ok(()),
        _ => Err(rustix::io::Errno::from_io_error(&std::io::Error::last_os_error()).expect("a number")),
    }
}

/// Files through the mount would not be what programs wrote, in one of the ways that all programs use.
#[test]
fn files_of_a_mount_are_files() {
    if skipped() {
        return;
    }
    let cluster = Cluster::start(SMALL);
    let mount = Mount::new(&cluster, "mnt", "/", "");
    contents(&mount);
    names(&mount);
    attributes(&mount);
    the_virtual_directory(&mount);
    refusals(&mount, &cluster);
    managers_in_the_uri(&mount, &cluster);
    let umount = mount.umount();
    assert!(umount.status.success(), "{}", text(&umount.stderr));
    assert!(!mount.is_mounted());
    let left: Vec<_> = fs::read_dir(cluster.path("run")).expect("run directory").flatten().collect();
    assert!(left.is_empty(), "left behind: {left:?}");
    // What was written is what other clients read.
    assert_eq!(cluster.ok(&["fs", "cat", "/dir/hello"]), "hello world\n");
}

fn contents(mount: &Mount) {
    fs::create_dir(mount.path("dir")).expect("mkdir");
    fs::write(mount.path("dir/hello"), "hello world\n").expect("write");
    assert_eq!(fs::read_to_string(mount.path("dir/hello")).expect("read"), "hello world\n");
    let big: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
    fs::write(mount.path("big"), &big).expect("write");
    assert!(fs::read(mount.path("big")).expect("read") == big, "a large file differs");
    let file = File::options().read(true).write(true).open(mount.path("big")).expect("open");
    file.write_all_at(b"XYZ", 1_000_001).expect("overwrite");
    file.sync_all().expect("fsync");
    let mut some = [0; 5];
    file.read_exact_at(&mut some, 1_000_000).expect("read");
    assert_eq!(some, [big[1_000_000], b'X', b'Y', b'Z', big[1_000_004]]);
    file.set_len(5).expect("truncate");
    assert_eq!(fs::read(mount.path("big")).expect("read"), &big[..5]);
    let mut sparse =
        File::options().read(true).write(true).create(true).truncate(false).open(mount.path("sparse")).expect("create");
    sparse.seek(SeekFrom::Start(10 << 20)).expect("seek");
    sparse.write_all(b"end").expect("write");
    let mut start = vec![1; 4096];
    sparse.read_exact_at(&mut start, 1 << 20).expect("read a hole");
    assert!(start.iter().all(|byte| *byte == 0), "a hole has bytes");
    assert_eq!(fs::metadata(mount.path("sparse")).expect("stat").len(), (10 << 20) + 3);
    let mut appended = File::options().append(true).create(true).open(mount.path("log")).expect("append");
    for line in 0..20 {
        writeln!(appended, "line {line}").expect("append");
    }
    drop(appended);
    assert_eq!(fs::read_to_string(mount.path("log")).expect("read").lines().count(), 20);
    // Removed while open.
    let mut gone = File::options().read(true).write(true).create_new(true).open(mount.path("gone")).expect("create");
    gone.write_all(b"still here").expect("write");
    fs::remove_file(mount.path("gone")).expect("unlink");
    gone.seek(SeekFrom::Start(0)).expect("seek");
    let mut back = String::new();
    gone.read_to_string(&mut back).expect("read");
    assert_eq!(back, "still here");
    nameless(mount);
    running(mount);
}

/// A program that runs would be emptied by an open that is refused.
fn running(mount: &Mount) {
    use rustix::fs::{CWD, Mode, OFlags, openat};
    let program = mount.path("program");
    // By another process: one that a test beside this one forks just now would have the file open for writing.
    let Ok(found) = Command::new("sh").args(["-c", "cp \"$(command -v sleep)\" \"$0\""]).arg(&program).status() else {
        return eprintln!("not tested (a program that runs): no shell");
    };
    assert!(found.success(), "cp");
    let before = fs::read(&program).expect("read");
    let mut runs = Command::new(&program).arg("1000").spawn().expect("it runs");
    for flags in [OFlags::WRONLY, OFlags::RDWR, OFlags::WRONLY | OFlags::TRUNC, OFlags::RDONLY | OFlags::TRUNC] {
        let refused = openat(CWD, &program, flags | OFlags::CLOEXEC, Mode::empty()).expect_err("it runs");
        assert_eq!(refused, rustix::io::Errno::TXTBSY, "{flags:?}");
    }
    assert!(fs::read(&program).expect("read") == before, "it was changed");
    assert!(runs.try_wait().expect("wait").is_none(), "it was killed");
    runs.kill().and_then(|()| runs.wait()).expect("ended");
    fs::remove_file(&program).expect("unlink");
}

/// Programs write a file without a name and link it when it is whole, so that nobody sees half of it.
fn nameless(mount: &Mount) {
    use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, openat};
    use std::os::fd::AsRawFd;
    let directory = mount.path("dir");
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = File::from(openat(CWD, &directory, flags, Mode::from_raw_mode(0o640)).expect("O_TMPFILE"));
    file.write_all_at(b"whole", 0).expect("write");
    let before = fs::read_dir(&directory).expect("list").count();
    let open = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(CWD, open, CWD, mount.path("dir/whole"), AtFlags::SYMLINK_FOLLOW).expect("link");
    drop(file);
    assert_eq!(fs::read_dir(&directory).expect("list").count(), before + 1, "it was seen before it had a name");
    assert_eq!(fs::read(mount.path("dir/whole")).expect("read"), b"whole");
    assert_eq!(fs::metadata(mount.path("dir/whole")).expect("stat").nlink(), 1);
    fs::remove_file(mount.path("dir/whole")).expect("unlink");
}

fn names(mount: &Mount) {
    fs::rename(mount.path("big"), mount.path("dir/small")).expect("rename");
    assert!(!mount.path("big").exists() && mount.path("dir/small").exists());
    fs::hard_link(mount.path("dir/small"), mount.path("other")).expect("link");
    assert_eq!(fs::metadata(mount.path("other")).expect("stat").nlink(), 2);
    symlink("dir/small", mount.path("way")).expect("symlink");
    assert_eq!(fs::read_link(mount.path("way")).expect("readlink"), Path::new("dir/small"));
    assert_eq!(fs::read(mount.path("way")).expect("through the symlink").len(), 5);
    fs::remove_file(mount.path("other")).expect("unlink");
    assert_eq!(fs::metadata(mount.path("dir/small")).expect("stat").nlink(), 1);
    let many = mount.path("many");
    fs::create_dir(&many).expect("mkdir");
    for i in 0..300 {
        File::create(many.join(format!("file-{i:04}"))).expect("create");
    }
    let mut found: Vec<String> = fs::read_dir(&many)
        .expect("list")
        .map(|e| e.expect("entry").file_name().to_string_lossy().into_owned())
        .collect();
    found.sort();
    assert_eq!(found.len(), 300);
    assert_eq!(found[299], "file-0299");
    let not_empty = fs::remove_dir(&many).expect_err("not empty");
    assert_eq!(not_empty.raw_os_error(), Some(39));
    fs::remove_dir_all(&many).expect("remove all");
    assert!(File::open(mount.path("none")).is_err_and(|error| error.raw_os_error() == Some(2)));
    let long = "n".repeat(256);
    assert!(File::create(mount.path(&long)).is_err_and(|error| error.raw_os_error() == Some(36)));
    File::create(mount.path(&long[..255])).expect("255 bytes");
}

fn attributes(mount: &Mount) {
    let path = mount.path("dir/hello");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("chmod");
    assert_eq!(fs::metadata(&path).expect("stat").mode() & 0o7777, 0o640);
    let status =
        Command::new("touch").args(["-d", "1999-12-31 23:59:59.123456789 UTC"]).arg(&path).status().expect("touch");
    assert!(status.success());
    let found = fs::metadata(&path).expect("stat");
    assert_eq!((found.mtime(), found.mtime_nsec()), (946_684_799, 123_456_789));
    let python = r#"
import os, sys, mmap, fcntl
p = sys.argv[1]
os.setxattr(p, "user.colour", b"blue")
assert os.getxattr(p, "user.colour") == b"blue"
assert "user.colour" in os.listxattr(p)
os.removexattr(p, "user.colour")
f = open(p + ".map", "w+b"); f.truncate(8192)
m = mmap.mmap(f.fileno(), 8192); m[5000:5005] = b"mmap!"; m.flush(); m.close()
f.seek(5000); assert f.read(5) == b"mmap!"
fcntl.flock(f, fcntl.LOCK_EX); fcntl.flock(f, fcntl.LOCK_UN)
fcntl.lockf(f, fcntl.LOCK_EX, 10, 0); fcntl.lockf(f, fcntl.LOCK_UN, 10, 0)
s = os.statvfs(p); assert s.f_blocks > 0 and s.f_namemax == 255
"#;
    let output = Command::new("python3").args(["-c", python]).arg(&path).output();
    match output {
        Ok(output) => assert!(output.status.success(), "{}", text(&output.stderr)),
        Err(error) => eprintln!("not tested (xattr, mmap, locks): python3: {error}"),
    }
}

fn the_virtual_directory(mount: &Mount) {
    let listed = fs::read_dir(&mount.dir).expect("list").any(|entry| entry.expect("entry").file_name() == ".cairn");
    assert!(!listed, ".cairn is shown by a listing");
    let stats = fs::read_to_string(mount.path(".cairn/stats")).expect("stats");
    let stats: serde_json::Value = serde_json::from_str(&stats).expect("JSON");
    assert!(stats["requests"]["operations"]["write"]["count"].as_u64() > Some(0), "{stats}");
    let places = fs::read_to_string(mount.path(".cairn/locations/dir/small")).expect("locations");
    let places: serde_json::Value = serde_json::from_str(&places).expect("JSON");
    assert_eq!(places["size"].as_u64(), Some(5));
    assert!(places["extents"][0]["members"].as_array().is_some_and(|m| m.len() == 3), "{places}");
    assert!(!fs::read_to_string(mount.path(".cairn/layout/dir/.this")).expect("layout").is_empty());
    assert!(fs::write(mount.path(".cairn/new"), "x").is_err());
    assert!(fs::remove_dir(mount.path(".cairn")).is_err());
}

/// As a line of fstab: nothing else says where the managers are, and none is at the default address.
fn managers_in_the_uri(mount: &Mount, cluster: &Cluster) {
    let dir = cluster.path("by-uri");
    fs::create_dir_all(&dir).expect("directory");
    let (uri, at) = (format!("cairn://{}/default", mount.cluster), dir.to_str().expect("a temporary path"));
    for args in [&["mount", &uri, at][..], &["mount", "--status"], &["umount", at]] {
        let mut command = in_spaces(&mount.spaces);
        let output = command.args(args).env_remove("CAIRN_CLUSTER").env("CAIRN_RUN_DIR", &mount.run).output();
        let output = output.expect("the binary starts");
        assert!(output.status.success(), "cairn {args:?}: {}", text(&output.stderr));
    }
}

fn refusals(mount: &Mount, cluster: &Cluster) {
    let dir = mount.dir.to_str().expect("a temporary path");
    for (args, code, part) in [
        (vec!["mount", "/", dir], 20, "a Cairn mount already"),
        (vec!["mount", "/", "/nowhere/at/all"], 3, "/nowhere/at/all"),
        (vec!["mount", "-o", "bogus", "/", dir], 2, "there are ro, rw"),
        (vec!["mount", "/"], 2, "what to mount and where"),
        (vec!["umount", "/"], 3, "no Cairn mount"),
    ] {
        let output = mount.cairn(&args);
        let error = text(&output.stderr);
        assert_eq!((output.status.code(), error.contains(part)), (Some(code), true), "{args:?}: {error}");
    }
    let other = cluster.path("other");
    fs::create_dir_all(&other).expect("directory");
    let output = mount.cairn(&["mount", "/no/such/dir", other.to_str().expect("path")]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    let busy = File::open(mount.path("dir/hello")).expect("open");
    let output = mount.umount_now();
    assert_eq!(output.status.code(), Some(20), "{}", text(&output.stderr));
    drop(busy);
}

/// A second machine would see old contents after a file was closed, or two writers would overwrite each other's blocks.
#[test]
fn two_mounts_see_each_other() {
    if skipped() {
        return;
    }
    let cluster = Cluster::start(SMALL);
    cluster.ok(&["fs", "mkdir", "/shared"]);
    let one = Mount::new(&cluster, "one", "/shared", "");
    let two = Mount::new(&cluster, "two", "/shared", "");
    fs::write(one.path("file"), "first").expect("write");
    assert_eq!(fs::read_to_string(two.path("file")).expect("read"), "first");
    fs::write(two.path("file"), "second, longer").expect("write");
    until("the other mount's contents", || fs::read_to_string(one.path("file")).is_ok_and(|t| t == "second, longer"));
    let (left, right) = (one.path("blocks"), two.path("blocks"));
    fs::write(&left, vec![0; 8192]).expect("write");
    let write = |path: &Path, at, byte| {
        let file = File::options().write(true).open(path).expect("open");
        file.write_all_at(&[byte; 4096], at).expect("write");
        file.sync_all().expect("fsync");
    };
    write(&left, 0, b'a');
    write(&right, 4096, b'b');
    until("both blocks", || {
        fs::read(&left)
            .is_ok_and(|bytes| bytes[..4096].iter().all(|b| *b == b'a') && bytes[4096..].iter().all(|b| *b == b'b'))
    });
    let lock = "import fcntl,sys\nf=open(sys.argv[1],'r+')\nfcntl.lockf(f,fcntl.LOCK_EX|fcntl.LOCK_NB)\nprint('have',flush=True)\nsys.stdin.read()";
    let python = |path: &Path| {
        let mut command = Command::new("python3");
        command.args(["-c", lock]).arg(path).stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        command.stderr(std::process::Stdio::null());
        command.spawn()
    };
    let Ok(mut holder) = python(&left) else { return eprintln!("not tested (locks): no python3") };
    let mut said = [0; 4];
    holder.stdout.as_mut().expect("out").read_exact(&mut said).expect("the first lock");
    let refused = python(&right).expect("python3").wait().expect("wait");
    assert!(!refused.success(), "two mounts have the same lock");
    drop(holder.stdin.take());
    holder.wait().expect("wait");
    until("the lock is free", || {
        let mut next = python(&right).expect("python3");
        drop(next.stdin.take());
        next.wait().expect("wait").success()
    });
}
