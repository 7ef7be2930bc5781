//! Disks, limits, clock and kernel of this machine.
use super::Finding;
use crate::config::Config;
use crate::descriptors::{self, Descriptors};
use crate::memory;
use crate::private;
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::process::{Resource, getrlimit};
use std::fs;
use std::path::{Path, PathBuf};

/// A disk with less free can take little.
const FREE_MIN: u64 = 2 << 30;
/// Free inodes with which a disk soon takes no more chunks.
const INODES_MIN: u64 = 10_000;

/// What can be seen without asking anybody.
pub fn look(config: Option<&Config>) -> Vec<Finding> {
    let disks = config.and_then(|config| config.data.as_ref()).map_or(0, |data| data.disks.len());
    let mut findings = vec![kernel(), clock(), files(disks)];
    findings.extend(fuse());
    let Some(config) = config else { return findings };
    findings.extend(place("node dir", &config.node.dir, false));
    let disks = config.data.as_ref().map_or(&[][..], |data| &data.disks[..]);
    disks.iter().for_each(|disk| findings.extend(place("disk", disk, true)));
    findings.extend(shared(disks));
    findings.extend(available());
    if config.meta {
        findings.push(metadata(config.meta_memory_max, memory::limit()));
    }
    findings
}

fn kernel() -> Finding {
    let release = read("/proc/sys/kernel/osrelease");
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    match version >= (5, 4) {
        true => Finding::good("kernel", format!("Linux {release}")),
        false => Finding::warning(
            "kernel",
            format!("Linux {release}"),
            "before 5.4 mounts lack calls of FUSE that they use",
            "use a newer kernel on machines with mounts",
        ),
    }
}

fn fuse() -> Option<Finding> {
    Some(match fs::OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        Ok(_) => Finding::good("fuse", "/dev/fuse can be opened"),
        Err(error) => {
            let step = match error.kind() {
                // Packages let everybody open it; a server has no need to.
                std::io::ErrorKind::PermissionDenied => {
                    "mount as root, or let the user open it (chmod 666 /dev/fuse, as the package fuse3 does)"
                }
                _ => "load the module (modprobe fuse), and let containers have the device",
            };
            Finding::warning(
                "fuse",
                format!("/dev/fuse: {error}"),
                "who looks cannot mount volumes on this machine; servers do not need it",
                step,
            )
        }
    })
}

/// Whether something keeps the clock right; how far it is off is known from the managers.
fn clock() -> Finding {
    let mut about = unsynchronized();
    if about.is_none() && fs::metadata("/run/systemd/timesync/synchronized").is_ok() {
        about = Some(false);
    }
    match about {
        Some(false) => Finding::good("clock", "the kernel says that the clock is kept right"),
        Some(true) => Finding::warning(
            "clock",
            "the kernel says that nothing keeps the clock right",
            "times of files and events, expiry of trash and windows of hibernation go by it (leases and epochs do not)",
            "run chrony, ntpd or systemd-timesyncd",
        ),
        None => Finding::good("clock", "whether something keeps the clock right cannot be seen here"),
    }
}

/// From what time daemons leave behind; `None`: nothing is known.
fn unsynchronized() -> Option<bool> {
    let daemons = ["chronyd", "ntpd", "systemd-timesyn", "openntpd", "ptp4l", "phc2sys"];
    let all = fs::read_dir("/proc").ok()?;
    let names = all.flatten().filter_map(|entry| fs::read_to_string(entry.path().join("comm")).ok());
    let runs = names.into_iter().any(|name| daemons.contains(&name.trim()));
    // In a container the daemon runs outside.
    let container = fs::metadata("/.dockerenv").is_ok() || fs::metadata("/run/.containerenv").is_ok();
    match (runs, container) {
        (true, _) => Some(false),
        (false, true) => None,
        (false, false) => Some(true),
    }
}

/// How the descriptors would be dealt out to a server of this configuration.
fn files(disks: usize) -> Finding {
    let limit = descriptors::limit();
    let locked = getrlimit(Resource::Memlock).maximum;
    let locked = locked.map_or_else(|| "no limit".into(), |bytes| format!("{bytes} bytes"));
    let what = format!("{limit} open files at most, locked memory: {locked}");
    let todo = format!("set LimitNOFILE={} in the unit, or ulimit -n", descriptors::RECOMMENDED);
    let parts = match Descriptors::deal(limit, disks) {
        Ok(parts) => parts,
        Err(_) => {
            return Finding::bad(
                "limits",
                what,
                "too few for its disks and connections: a server does not start",
                todo,
            );
        }
    };
    let what = format!(
        "{what}; {} RPC connections, {} HTTP connections, {} chunks of each disk kept open",
        parts.rpc, parts.http, parts.disk_chunks
    );
    if limit >= descriptors::RECOMMENDED {
        return Finding::good("limits", what);
    }
    Finding::warning(
        "limits",
        what,
        "a data node has files open for each chunk in use and a socket for each client; with few, clients are refused sooner",
        todo,
    )
}

/// Whether the kernel would end the process before its metadata is at its bound.
fn metadata(configured: Option<u64>, limit: Option<u64>) -> Finding {
    let max = configured.unwrap_or_else(memory::for_metadata);
    let of = limit.map_or(String::new(), |limit| format!(", of {} MiB that the process may use", limit >> 20));
    let what = format!("up to {} MiB{of}", max >> 20);
    match limit {
        Some(limit) if max > limit / 4 * 3 => Finding::warning(
            "metadata",
            what,
            "checkpoints, logs and sessions need a quarter on top; without it the kernel ends the process when its partitions grow",
            "lower memory_max_mib in [meta], or give the process more",
        ),
        _ => Finding::good("metadata", what),
    }
}

fn available() -> Option<Finding> {
    let text = read("/proc/meminfo");
    let kib = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = kib.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(match kib >= 512 << 10 {
        true => Finding::good("memory", format!("{} MiB available", kib >> 10)),
        false => Finding::warning(
            "memory",
            format!("{} MiB available", kib >> 10),
            "meta nodes keep their inodes in memory, and the kernel ends the largest process when there is none",
            "give the machine more memory, or move partitions away (cairn admin partition move)",
        ),
    })
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// A directory of the configuration: is it there, has it room, does its file system do what is asked of it?
fn place(what: &'static str, dir: &Path, is_disk: bool) -> Vec<Finding> {
    let name = dir.display();
    if fs::metadata(dir).is_ok_and(|about| !about.is_dir()) {
        // What it is is told with the labels.
        return Vec::new();
    }
    // What does not exist yet is made by the server, in the file system of what is above.
    let there = dir.ancestors().find(|dir| dir.is_dir()).unwrap_or(Path::new("/")).to_path_buf();
    let mut findings = Vec::new();
    if there != dir {
        findings.push(Finding::warning(
            what,
            format!("{name} does not exist: it would be made in the file system of {}", there.display()),
            "when its device is not mounted, data would go to another one, and the server would take the disk for a new one",
            "mount the device, or make the directory if it is meant so",
        ));
    }
    match rustix::fs::statvfs(&there) {
        Ok(about) => findings.push(space(what, dir, &about)),
        Err(error) => findings.push(Finding::bad(
            what,
            format!("{name}: {error}"),
            "the server cannot start without it",
            "check path, mount and permissions",
        )),
    }
    findings.extend(private(what, dir));
    findings.extend(kind(what, &there, is_disk));
    findings.extend(abilities(what, &there, is_disk));
    if is_disk {
        findings.extend(device(&there));
    }
    findings
}

/// Whether others of the machine can read what is stored. What is not there yet is made for its owner alone.
fn private(what: &'static str, dir: &Path) -> Option<Finding> {
    if !dir.is_dir() {
        return None;
    }
    let name = dir.display();
    Some(match private::open_to_others(dir) {
        None => Finding::good(what, format!("{name} is for its owner alone")),
        Some(mode) => Finding::warning(
            what,
            format!("{name} has mode {mode:04o}: other users of this machine can look into it"),
            "chunks, journals and logs have the contents of everybody's files, whatever their modes in Cairn",
            format!("start the server, which mends it, or chmod go= {name}"),
        ),
    })
}

fn space(what: &'static str, dir: &Path, about: &rustix::fs::StatVfs) -> Finding {
    let (free, total) = (about.f_bavail * about.f_frsize, about.f_blocks * about.f_frsize);
    let text = format!(
        "{}: {} MiB of {} MiB free, {} of {} inodes",
        dir.display(),
        free >> 20,
        total >> 20,
        about.f_favail,
        about.f_files
    );
    // Some file systems have no fixed number of inodes and say 0.
    if free >= FREE_MIN && (about.f_files == 0 || about.f_favail >= INODES_MIN) {
        return Finding::good(what, text);
    }
    Finding::warning(
        what,
        text,
        "a full disk takes no chunks, and a node directory without space ends its server",
        "free some, add disks, or drain the disk",
    )
}

/// Numbers of `statfs` (linux/magic.h).
const KINDS: [(i64, &str, bool); 8] = [
    (0xef53, "ext4", true),
    (0x5846_5342, "xfs", true),
    (0x9123_683e, "btrfs", true),
    (0x2fc1_2fc1, "zfs", true),
    (0x0102_1994, "tmpfs", false),
    (0x6969, "nfs", false),
    (0x794c_7630, "overlayfs", false),
    (0xff53_4d42, "cifs", false),
];

fn kind(what: &'static str, dir: &Path, is_disk: bool) -> Option<Finding> {
    let number = rustix::fs::statfs(dir).ok()?.f_type as i64 & 0xffff_ffff;
    let (_, name, durable) = KINDS.into_iter().find(|(known, ..)| *known == number).unwrap_or((0, "unknown", true));
    let text = format!("{} is on {name}", dir.display());
    if durable {
        return Some(Finding::good(what, text));
    }
    let todo = if is_disk { "give each disk its own ext4 or xfs" } else { "put it on a local ext4 or xfs" };
    let why = match name {
        "tmpfs" => "what is acknowledged is gone with the power",
        "overlayfs" => "it goes with the container, and is slow to write to",
        _ => "a disk behind a network adds its failures, and its syncs and locks may not be what they seem",
    };
    Some(Finding::warning(what, text, why, todo))
}

/// Writes, syncs and punches a hole in a file without a name.
fn abilities(what: &'static str, dir: &Path, is_disk: bool) -> Vec<Finding> {
    let name = dir.display();
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    let file = match rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => file,
        Err(rustix::io::Errno::OPNOTSUPP) => return Vec::new(),
        Err(error) => {
            return vec![Finding::bad(
                what,
                format!("no file can be made in {name}: {error}"),
                "the server cannot start",
                "check owner, permissions and whether the file system is mounted read-only",
            )];
        }
    };
    let mut findings = Vec::new();
    let written = rustix::io::write(&file, &[7; 8192]).and_then(|_| rustix::fs::fdatasync(&file));
    if let Err(error) = written {
        findings.push(Finding::bad(
            what,
            format!("writing and syncing in {name}: {error}"),
            "nothing can be acknowledged that is not durable",
            "check the device (dmesg) and its free space",
        ));
        return findings;
    }
    let punched = rustix::fs::fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 4096);
    findings.push(match punched {
        Ok(()) => Finding::good(what, format!("{name} takes writes, syncs and holes")),
        Err(error) if is_disk => Finding::warning(
            what,
            format!("{name} takes no holes: {error}"),
            "the space of deleted small files comes back only when all of their chunk is deleted",
            "use ext4, xfs or btrfs",
        ),
        Err(_) => Finding::good(what, format!("{name} takes writes and syncs")),
    });
    findings
}

/// Scheduler and cache of the device below.
fn device(dir: &Path) -> Option<Finding> {
    use std::os::unix::fs::MetadataExt;
    let number = fs::metadata(dir).ok()?.dev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let at = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    // A partition has its queue one above.
    let queue = [at.join("queue"), at.parent()?.join("queue")].into_iter().find(|queue| queue.is_dir())?;
    let word = |file: &str| fs::read_to_string(queue.join(file)).unwrap_or_default().trim().to_owned();
    let (scheduler, rotates) = (word("scheduler"), word("rotational") == "1");
    let chosen = scheduler.split(['[', ']']).nth(1).unwrap_or(scheduler.as_str()).to_owned();
    let text = format!("{}: {} disk, scheduler {chosen}", dir.display(), if rotates { "rotating" } else { "flash" });
    match (rotates, chosen.as_str()) {
        (false, "bfq" | "cfq") => Some(Finding::warning(
            "device",
            text,
            "this scheduler costs flash much of its speed",
            format!("echo none > {}/scheduler", queue.display()),
        )),
        _ => Some(Finding::good("device", text)),
    }
}

/// Disks that are one device fail together.
fn shared(disks: &[PathBuf]) -> Option<Finding> {
    use std::os::unix::fs::MetadataExt;
    let device = |disk: &&PathBuf| fs::metadata(disk).map(|about| about.dev()).ok();
    let mut known: Vec<u64> = disks.iter().filter_map(|disk| device(&disk)).collect();
    let all = known.len();
    known.sort_unstable();
    known.dedup();
    (known.len() < all).then(|| {
        Finding::warning(
            "disk",
            format!("{all} disks of the configuration are on {} file systems", known.len()),
            "copies and shards on them count as being on disks of their own, but fail and fill together",
            "give each disk a device of its own",
        )
    })
}
