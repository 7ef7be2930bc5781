//! Name spaces of the kernel for processes under test: networks of their own, and small file systems that outlast the
//! processes that use them.
//!
//! A waiting process holds each, so all of it goes with this process, also when that is killed. Needs root, of the
//! machine or of a user name space.
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// What a mount name space begins with: mounts of tests beside it would live on here after they are unmounted, and
/// their workers not end. As somebody else than root they cannot be let go of.
pub const LET_GO: &str =
    "awk '$3 ~ /^fuse/ {print $2}' /proc/mounts | while read -r at; do umount -l \"$at\" 2>/dev/null || :; done";

/// A name space, for as long as this lives.
pub struct Namespace {
    holder: Child,
    kind: &'static str,
}

impl Namespace {
    /// A network with nothing in it; `None` where it cannot be made.
    pub fn network() -> Option<Namespace> {
        Namespace::new("net", "echo ready; exec cat", &[])
    }
    /// `script` is run in it with `args` by `sh` and waits behind the line `ready`.
    fn new(kind: &'static str, script: &str, args: &[&str]) -> Option<Namespace> {
        // It ends with the pipe, also when this process is killed.
        let mut holder = Command::new("unshare")
            .args([&format!("--{}", if kind == "mnt" { "mount" } else { kind }), "sh", "-c", script, "sh"])
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let mut line = String::new();
        let said = BufReader::new(holder.stdout.take()?).read_line(&mut line);
        let made = Namespace { holder, kind };
        (said.is_ok() && line == "ready\n").then_some(made)
    }
    /// Where the system shows it.
    pub fn file(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/ns/{}", self.holder.id(), self.kind))
    }
    /// What `nsenter` is told.
    pub fn enter(&self) -> String {
        format!("--{}={}", if self.kind == "mnt" { "mount" } else { self.kind }, self.file().display())
    }
    pub fn pid(&self) -> u32 {
        self.holder.id()
    }
    /// Runs a program in it; false if it fails.
    pub fn run(&self, program: &str, args: &str) -> bool {
        let mut command = Command::new("nsenter");
        command.arg(self.enter()).arg(program).args(args.split(' ')).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ended = self.holder.kill();
        let _ended = self.holder.wait();
    }
}

/// A small file system at a directory, in a name space of its own. What is in it outlasts the processes that use it.
pub struct SmallDisk {
    space: Namespace,
    dir: PathBuf,
    megabytes: u32,
}

impl SmallDisk {
    /// `None` where the system does not allow it, or not to change its size later.
    pub fn new(dir: &Path, megabytes: u32) -> Option<SmallDisk> {
        fs::create_dir_all(dir).ok()?;
        let script = format!("{LET_GO}; mount -t tmpfs -o size=\"$1m\" tmpfs \"$2\" && echo ready && exec cat");
        let space = Namespace::new("mnt", &script, &[&megabytes.to_string(), dir.to_str()?])?;
        let made = SmallDisk { space, dir: dir.to_owned(), megabytes };
        made.resize(u64::from(megabytes) << 20).then_some(made)
    }
    /// What `nsenter` is told, so that a program sees it.
    pub fn enter(&self) -> String {
        self.space.enter()
    }
    /// Where this process sees it.
    fn seen(&self) -> PathBuf {
        let inside = self.dir.strip_prefix("/").expect("an absolute path");
        Path::new(&format!("/proc/{}/root", self.space.pid())).join(inside)
    }
    /// False where the system does not allow it.
    fn resize(&self, bytes: u64) -> bool {
        let dir = self.dir.to_str().expect("a temporary path");
        self.space.run("mount", &format!("-o remount,size={bytes} {dir}"))
    }
    /// Takes the space away that is left but for so much, without using any. How many bytes that was.
    pub fn fill(&self, but_for: u64) -> u64 {
        let seen = rustix::fs::statvfs(self.seen()).expect("a file system");
        let resized = self.resize((seen.f_blocks - seen.f_bfree) * seen.f_frsize + but_for);
        assert!(resized, "{} cannot be made smaller", self.dir.display());
        let left = rustix::fs::statvfs(self.seen()).expect("a file system");
        seen.f_bfree.saturating_sub(left.f_bfree) * seen.f_frsize
    }
    /// Gives it back.
    pub fn empty(&self) {
        assert!(self.resize(u64::from(self.megabytes) << 20), "{} stays full", self.dir.display());
    }
}

/// A disk that can be made slow: a file system on a loop device, seen by the processes of a mount name space, of whose
/// device a control group may write only so often. Needs root of the machine and version 1 of control groups.
pub struct SlowDisk {
    space: Namespace,
    group: PathBuf,
    /// `major:minor`
    device: String,
}

/// Where limits of block devices are.
const LIMITS: &str = "/sys/fs/cgroup/blkio";

impl SlowDisk {
    /// As fast as the disk below it; `None` where the system does not allow it.
    pub fn new(dir: &Path, megabytes: u32) -> Option<SlowDisk> {
        fs::create_dir_all(dir).ok()?;
        let image = dir.with_extension("image");
        fs::File::create(&image).and_then(|file| file.set_len(u64::from(megabytes) << 20)).ok()?;
        let mut make = Command::new("mkfs.ext4");
        make.arg("-q").arg(&image).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        make.status().ok().filter(|status| status.success())?;
        // The device goes with its last mount, which goes with the last process of the name space.
        let script = format!("{LET_GO}; mount -o loop \"$1\" \"$2\" && echo ready && exec cat");
        let space = Namespace::new("mnt", &script, &[image.to_str()?, dir.to_str()?])?;
        let seen = Path::new(&format!("/proc/{}/root", space.pid())).join(dir.strip_prefix("/").ok()?);
        let device = rustix::fs::stat(seen).ok()?.st_dev;
        let device = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
        let group = Path::new(LIMITS).join(format!("cairn-test-{}-{}", std::process::id(), space.pid()));
        fs::create_dir(&group).ok()?;
        let made = SlowDisk { space, group, device };
        made.limit(1000).then_some(made)
    }
    /// What `nsenter` is told, so that a program sees it.
    pub fn enter(&self) -> String {
        self.space.enter()
    }
    /// From now on a process and what it starts write to it so many times a second; 0: as often as they like.
    pub fn slow_down(&self, pid: u32, writes: u32) {
        fs::write(self.group.join("cgroup.procs"), pid.to_string()).expect("the process is there");
        assert!(self.limit(writes), "no limit of {writes} writes a second can be set");
    }
    fn limit(&self, writes: u32) -> bool {
        fs::write(self.group.join("blkio.throttle.write_iops_device"), format!("{} {writes}", self.device)).is_ok()
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        let _unlimited = self.limit(0);
        for pid in fs::read_to_string(self.group.join("cgroup.procs")).unwrap_or_default().lines() {
            let _may_have_ended = fs::write(Path::new(LIMITS).join("cgroup.procs"), pid);
        }
        let _removed = fs::remove_dir(&self.group);
    }
}
