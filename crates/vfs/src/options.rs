//! How a volume is presented.
use std::time::Duration;

/// When reading changes the access time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum Atime {
    /// When it is older than the modification, or than a day.
    #[default]
    Relative,
    Strict,
    Never,
}

/// Options of a [`Vfs`](crate::Vfs).
#[derive(Clone, Debug)]
pub struct VfsOptions {
    pub read_only: bool,
    pub atime: Atime,
    /// Also of directories.
    pub dir_atime: bool,
    /// How long attributes and entries are used without asking, here and in the kernel together.
    pub attr_ttl: Duration,
    pub entry_ttl: Duration,
    /// How long it is remembered that a name does not exist.
    pub negative_ttl: Duration,
    /// Longest time of a call.
    pub timeout: Duration,
    /// Bytes of unwritten data, data on its way and read-ahead together.
    pub memory_max: usize,
    /// Largest read-ahead of one open file.
    pub read_ahead_max: usize,
    /// Unwritten data is written out when it is so old …
    pub write_after: Duration,
    /// … and published, so that other mounts see it, at the latest after this.
    pub publish_after: Duration,
    /// Closing a file makes it visible when all members have it in memory, and durable behind; else durable before it
    /// returns.
    pub close_visible: bool,
    /// New directories go to the partitions of the volume by turns, instead of to that of their parent.
    pub spread: bool,
    /// Directories that are made here are led by this mount, as long as nobody else looks into them: what is done in
    /// them is answered at once, and durable behind ([`Volume::leading`](cairn_client::Volume::leading)).
    pub lease_new: bool,
    /// With `close_visible`: when files are made durable that were closed, within a second of this.
    pub durable_after: Duration,
    /// Attributes and entries that are kept, each.
    pub cached_max: usize,
}

/// What may be believed without asking, where directories are led: an answer is given up to three quarters of the lease
/// after its last renewal, and the rest of it, 5 s, is left. The kernel's time begins when it has the answer, and
/// clocks may differ.
pub const LED_TTL_MAX: Duration = Duration::from_secs(4);

impl VfsOptions {
    /// With times to live that end before a lease does.
    pub(crate) fn within_the_lease(self) -> Self {
        if !self.lease_new {
            return self;
        }
        let (attr_ttl, entry_ttl) = (self.attr_ttl.min(LED_TTL_MAX), self.entry_ttl.min(LED_TTL_MAX));
        Self { attr_ttl, entry_ttl, negative_ttl: self.negative_ttl.min(LED_TTL_MAX), ..self }
    }
}

impl Default for VfsOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            atime: Atime::default(),
            dir_atime: true,
            attr_ttl: Duration::from_secs(1),
            entry_ttl: Duration::from_secs(1),
            negative_ttl: Duration::from_secs(1),
            timeout: Duration::from_secs(60),
            memory_max: 512 << 20,
            read_ahead_max: 16 << 20,
            write_after: Duration::from_secs(2),
            publish_after: Duration::from_secs(4),
            close_visible: false,
            spread: false,
            lease_new: false,
            durable_after: Duration::from_secs(2),
            cached_max: 200_000,
        }
    }
}
