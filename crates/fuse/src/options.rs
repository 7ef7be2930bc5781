//! Options of a mount, in the style of fstab: `ro,allow_other,cache=1G`.
use crate::failure::{Failure, Result};
use cairn_vfs::{Atime, VfsOptions};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Options that are known, in the order of the manual.
pub const KNOWN: &[&str] = &[
    "ro",
    "rw",
    "allow_other",
    "noallow_other",
    "default_permissions",
    "noatime",
    "relatime",
    "strictatime",
    "nodiratime",
    "diratime",
    "suid",
    "nosuid",
    "dev",
    "nodev",
    "exec",
    "noexec",
    "sync",
    "async",
    "dirsync",
    "attr_timeout=SECONDS",
    "entry_timeout=SECONDS",
    "negative_timeout=SECONDS",
    "cache=SIZE",
    "read_ahead=SIZE",
    "timeout=SECONDS",
    "close=durable|visible",
    "lease=off|new",
    "host=NAME",
    "rack=NAME",
    "key=FILE",
    "threads=N",
    "log=FILE",
    "log_level=FILTER",
    "spread",
    "nospread",
    "nocairndir",
];
/// What fstab has for mount(8) itself.
const FOR_OTHERS: &[&str] =
    &["defaults", "auto", "noauto", "nofail", "_netdev", "user", "users", "nouser", "owner", "group"];
/// What Linux knows for every file system, and what changes nothing here: access times are kept in memory and sent
/// later anyway, and there are no mandatory locks.
const NO_CHANGE: &[&str] =
    &["lazytime", "nolazytime", "norelatime", "noiversion", "nomand", "symfollow", "silent", "loud"];
/// What the kernel shows of every FUSE mount, and mount(8) hands back when it remounts what fstab does not name.
const SHOWN_BY_KERNEL: &[&str] = &["user_id", "group_id", "max_read", "blksize"];
/// Whether new directories are led where the options do not say.
const LEASE_NEW: bool = true;
/// Smallest memory with which reading and writing at speed works.
const CACHE_MIN: usize = 16 << 20;
const CACHE_MAX: usize = 512 << 20;
const THREADS_MAX: usize = 64;

/// Parsed options.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MountOptions {
    pub read_only: bool,
    /// `None`: if root mounts.
    pub allow_other: Option<bool>,
    pub atime: Atime,
    /// Reading a directory changes its access time as reading a file does.
    #[serde(default = "yes")]
    pub dir_atime: bool,
    pub nosuid: bool,
    pub nodev: bool,
    pub noexec: bool,
    pub sync: bool,
    pub attr_timeout: f64,
    pub entry_timeout: f64,
    pub negative_timeout: f64,
    /// Bytes; `None`: 512 MiB or 1/8 of the memory, whatever is less.
    pub cache: Option<usize>,
    pub read_ahead: Option<usize>,
    pub timeout: f64,
    pub host: String,
    pub rack: String,
    /// Threads that read requests.
    pub threads: Option<usize>,
    pub log: Option<PathBuf>,
    pub log_level: Option<String>,
    /// `.cairn/` at the root.
    pub cairn_dir: bool,
    /// Close makes files visible, not durable.
    #[serde(default)]
    pub close_visible: bool,
    /// Directories made through it go to the partitions of the volume by turns.
    #[serde(default)]
    pub spread: bool,
    /// Directories that are made through it are led by it.
    #[serde(default)]
    pub lease_new: bool,
    /// Nobody said whether they are: whatever excludes it is heeded.
    #[serde(default)]
    pub lease_default: bool,
    /// Changes of directories are durable when they return, whatever `lease` says.
    #[serde(default)]
    pub dirsync: bool,
    /// File of the key that is shown to the cluster; `None`: the one that is found.
    #[serde(default)]
    pub key: Option<PathBuf>,
    /// The mount is there, and its flags change.
    #[serde(skip)]
    pub remount: bool,
}

/// What a worker of an earlier build did not know.
fn yes() -> bool {
    true
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            allow_other: None,
            atime: Atime::Relative,
            dir_atime: true,
            nosuid: false,
            nodev: false,
            noexec: false,
            sync: false,
            attr_timeout: 1.0,
            entry_timeout: 1.0,
            negative_timeout: 1.0,
            cache: None,
            read_ahead: None,
            timeout: 60.0,
            host: String::new(),
            rack: String::new(),
            threads: None,
            log: None,
            log_level: None,
            cairn_dir: true,
            close_visible: false,
            spread: false,
            lease_new: LEASE_NEW,
            lease_default: true,
            dirsync: false,
            key: None,
            remount: false,
        }
    }
}

impl MountOptions {
    /// Parses lists of options; later ones win.
    pub fn parse<'a>(lists: impl IntoIterator<Item = &'a str>) -> Result<MountOptions> {
        let mut options = MountOptions::default();
        let items: Vec<&str> = lists.into_iter().flat_map(|list| list.split(',')).filter(|i| !i.is_empty()).collect();
        let remount = items.contains(&"remount");
        for item in items {
            match item.split_once('=') {
                Some((name, _)) if remount && SHOWN_BY_KERNEL.contains(&name) => {}
                Some((name, value)) => options.set_value(item, name, value)?,
                None => options.set_flag(item)?,
            }
        }
        if options.lease_default {
            options.lease_new = LEASE_NEW && !options.excludes_leading();
        } else if options.lease_new && options.close_visible {
            return Err(Failure::usage("lease=new and close=visible exclude each other: leave one of them out"));
        }
        Ok(options)
    }
    /// Whether something was asked for that directories which are led do not give.
    fn excludes_leading(&self) -> bool {
        let longest = self.attr_timeout.max(self.entry_timeout).max(self.negative_timeout);
        self.close_visible || self.read_only || longest > cairn_vfs::LED_TTL_MAX.as_secs_f64()
    }
    fn set_flag(&mut self, flag: &str) -> Result<()> {
        match flag {
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "allow_other" => self.allow_other = Some(true),
            "noallow_other" => self.allow_other = Some(false),
            // The kernel always checks, and the servers check again.
            "default_permissions" => {}
            "noatime" => self.atime = Atime::Never,
            "relatime" => self.atime = Atime::Relative,
            "strictatime" => self.atime = Atime::Strict,
            "diratime" => self.dir_atime = true,
            "nodiratime" => self.dir_atime = false,
            "spread" => self.spread = true,
            "nospread" => self.spread = false,
            // They take back just the one that they name.
            "atime" if self.atime == Atime::Never => self.atime = Atime::Relative,
            "nostrictatime" if self.atime == Atime::Strict => self.atime = Atime::Relative,
            "atime" | "nostrictatime" => {}
            "suid" => self.nosuid = false,
            "nosuid" => self.nosuid = true,
            "dev" => self.nodev = false,
            "nodev" => self.nodev = true,
            "exec" => self.noexec = false,
            "noexec" => self.noexec = true,
            "sync" => self.sync = true,
            "async" => self.sync = false,
            "dirsync" => self.dirsync = true,
            "nocairndir" => self.cairn_dir = false,
            "remount" => self.remount = true,
            "allow_root" => return Err(Failure::usage("allow_root: use allow_other; permissions are always checked")),
            flag if NO_CHANGE.contains(&flag) => {}
            flag if FOR_OTHERS.contains(&flag) || flag.starts_with("x-") || flag.starts_with("X-") => {}
            flag => return Err(unknown(flag)),
        }
        Ok(())
    }
    fn set_value(&mut self, item: &str, name: &str, value: &str) -> Result<()> {
        match name {
            "attr_timeout" => self.attr_timeout = seconds(item, value)?,
            "entry_timeout" => self.entry_timeout = seconds(item, value)?,
            "negative_timeout" => self.negative_timeout = seconds(item, value)?,
            "timeout" => self.timeout = seconds(item, value).map(|seconds| seconds.clamp(1.0, 86_400.0))?,
            "cache" => self.cache = Some(size(item, value)?.max(CACHE_MIN)),
            "read_ahead" => self.read_ahead = Some(size(item, value)?),
            "host" => value.clone_into(&mut self.host),
            "rack" => value.clone_into(&mut self.rack),
            "key" => self.key = Some(PathBuf::from(value)),
            "log" => self.log = Some(PathBuf::from(value)),
            "log_level" => self.log_level = Some(value.to_owned()),
            "threads" => match value.parse() {
                Ok(threads @ 1..=THREADS_MAX) => self.threads = Some(threads),
                _ => return Err(Failure::usage(format!("{item}: write a number from 1 to {THREADS_MAX}"))),
            },
            "close" => match value {
                "durable" => self.close_visible = false,
                "visible" => self.close_visible = true,
                _ => return Err(Failure::usage(format!("{item}: write close=durable or close=visible"))),
            },
            "lease" => {
                (self.lease_new, self.lease_default) = match value {
                    "off" => (false, false),
                    "new" => (true, false),
                    _ => return Err(Failure::usage(format!("{item}: write lease=off or lease=new"))),
                }
            }
            "uid" | "gid" => {
                return Err(Failure::usage(format!(
                    "{item}: files keep their owners; use chown, or mount a sub-directory that the user owns"
                )));
            }
            "comment" => {}
            name if name.starts_with("x-") || name.starts_with("X-") => {}
            _ => return Err(unknown(item)),
        }
        Ok(())
    }
    /// Takes the key of the command line where the options name none. Workers run in other directories, so its path
    /// begins at the root.
    pub fn set_key(&mut self, given: Option<&Path>) -> Result<()> {
        let Some(key) = self.key.take().or_else(|| given.map(Path::to_path_buf)) else { return Ok(()) };
        let shown = key.display().to_string();
        self.key = Some(std::path::absolute(key).map_err(|error| Failure::io(&shown, &error))?);
        Ok(())
    }
    /// Whether other users see the mount.
    pub fn others(&self, root: bool) -> bool {
        self.allow_other.unwrap_or(root)
    }
    pub fn vfs(&self) -> VfsOptions {
        let memory_max = self.cache.unwrap_or_else(|| CACHE_MAX.min(memory() / 8).max(CACHE_MIN));
        let defaults = VfsOptions::default();
        VfsOptions {
            read_only: self.read_only,
            atime: self.atime,
            dir_atime: self.dir_atime,
            attr_ttl: Duration::from_secs_f64(self.attr_timeout),
            entry_ttl: Duration::from_secs_f64(self.entry_timeout),
            negative_ttl: Duration::from_secs_f64(self.negative_timeout),
            timeout: Duration::from_secs_f64(self.timeout),
            memory_max,
            close_visible: self.close_visible,
            spread: self.spread,
            lease_new: self.lease_new && !self.sync && !self.dirsync,
            read_ahead_max: self.read_ahead.unwrap_or(defaults.read_ahead_max).min(memory_max / 2),
            ..defaults
        }
    }
}

fn unknown(item: &str) -> Failure {
    Failure::usage(format!("{item:?} is no option of a Cairn mount; there are {}", KNOWN.join(", ")))
}

fn seconds(item: &str, value: &str) -> Result<f64> {
    match value.parse::<f64>() {
        Ok(seconds) if (0.0..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err(Failure::usage(format!("{item}: write seconds from 0 to 86400, such as 1 or 0.5"))),
    }
}

fn size(item: &str, value: &str) -> Result<usize> {
    let lower = value.to_ascii_lowercase();
    let digits = lower.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match &lower[digits.len()..] {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        _ => 64,
    };
    let bytes = digits.parse::<usize>().ok().filter(|_| shift < 64).and_then(|number| number.checked_mul(1 << shift));
    bytes.ok_or_else(|| Failure::usage(format!("{item}: write a size, such as 512M or 2G")))
}

/// Memory of this machine.
fn memory() -> usize {
    let info = rustix::system::sysinfo();
    usize::try_from(info.totalram).unwrap_or(usize::MAX).saturating_mul(info.mem_unit as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line of fstab would mean something else here than elsewhere.
    #[test]
    fn fstab_options_are_understood() {
        let options = MountOptions::parse(["rw,_netdev,noatime,cache=1g,x-systemd.automount", "ro,attr_timeout=0.5"])
            .expect("known options");
        assert!(options.read_only && !options.nosuid && options.cairn_dir);
        assert_eq!((options.atime, options.cache, options.attr_timeout), (Atime::Never, Some(1 << 30), 0.5));
        assert!(options.others(true) && !options.others(false));
        assert!(!options.vfs().close_visible, "nobody asked for less");
        let visible = MountOptions::parse(["close=visible"]).expect("a known option");
        assert!(visible.vfs().close_visible);
        assert_eq!(options.vfs().attr_ttl, Duration::from_millis(500));
        let leads = |list| MountOptions::parse([list]).expect("known options").vfs().lease_new;
        assert!(leads("lease=new") && leads("rw") && !leads("lease=new,lease=off") && leads("lease=off,lease=new"));
        assert!(!leads("lease=new,sync") && !leads("lease=new,dirsync"), "names would not be durable");
    }

    /// What a line of fstab asks for would be refused, or not be given, because of what it does not say.
    #[test]
    fn new_directories_are_led_unless_something_else_was_asked_for() {
        let options = |list| MountOptions::parse([list]).expect(list);
        for list in ["close=visible", "ro", "sync", "dirsync", "attr_timeout=60", "entry_timeout=5", "lease=off"] {
            assert!(!options(list).vfs().lease_new, "{list}");
        }
        for list in ["", "rw", "close=durable", "attr_timeout=4", "negative_timeout=0", "ro,rw", "lease=new,ro"] {
            assert!(options(list).vfs().lease_new, "{list}");
        }
        let (said, unsaid) = (options("lease=new,attr_timeout=60"), options("rw"));
        assert!(said.vfs().lease_new && !said.lease_default && unsaid.lease_default);
        // A supervisor of before says nothing of it, or that its mount does not lead.
        let mut told = serde_json::to_value(&unsaid).expect("JSON");
        let fields = told.as_object_mut().expect("fields");
        fields.remove("lease_new").and(fields.remove("lease_default")).expect("both are told");
        let understood: MountOptions = serde_json::from_value(told).expect("older supervisors are understood");
        assert!(!understood.vfs().lease_new, "its worker has no memory that outlives it");
    }

    /// A line of fstab that every local file system takes would keep a machine from booting.
    #[test]
    fn options_that_change_nothing_here_are_passed_over() {
        let all = "lazytime,nolazytime,norelatime,noiversion,nomand,symfollow,silent,loud,atime";
        assert_eq!(MountOptions::parse([all]).expect("known options"), MountOptions::default());
        for (list, atime) in [
            ("noatime,lazytime", Atime::Never),
            ("noatime,norelatime", Atime::Never),
            ("noatime,nostrictatime", Atime::Never),
            ("noatime,atime", Atime::Relative),
            ("strictatime,atime", Atime::Strict),
            ("strictatime,nostrictatime", Atime::Relative),
        ] {
            assert_eq!(MountOptions::parse([list]).expect(list).atime, atime, "{list}");
        }
        let directories = |list| MountOptions::parse([list]).expect(list).vfs().dir_atime;
        assert!(directories("rw") && !directories("nodiratime") && directories("nodiratime,diratime"));
    }

    /// `mount -o remount,ro DIR` would be refused for what the kernel itself says of the mount.
    #[test]
    fn a_remount_takes_what_the_kernel_shows() {
        let shown = "rw,relatime,user_id=0,group_id=0,default_permissions,allow_other,max_read=1048576";
        let options = MountOptions::parse([shown, "remount,ro"]).expect("known options");
        assert!(options.remount && options.read_only && options.others(false));
        let error = MountOptions::parse([shown]).expect_err("nobody sets these");
        assert!(error.text.contains("user_id=0"), "{}", error.text);
    }

    /// Somebody would believe that an option works which nobody looked at.
    #[test]
    fn unknown_options_are_named_with_what_there_is() {
        for (list, part) in [
            ("bogus", "there are ro, rw"),
            ("cache=much", "such as 512M"),
            ("close=never", "close=visible"),
            ("lease=on", "lease=new"),
            ("lease=new,close=visible", "exclude"),
            ("threads=0", "1 to 64"),
            ("uid=5", "chown"),
            ("attr_timeout=-1", "seconds"),
        ] {
            let error = MountOptions::parse([list]).expect_err(list);
            assert!(error.text.contains(part), "{list}: {}", error.text);
        }
    }
}
