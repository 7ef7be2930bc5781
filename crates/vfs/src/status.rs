//! What a mount is doing, for people.

/// Space of the volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Space {
    pub block_size: u32,
    /// In blocks.
    pub blocks: u64,
    pub blocks_free: u64,
    pub files: u64,
    pub files_free: u64,
    pub name_max: u32,
}

/// State of a [`Vfs`](crate::Vfs).
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct VfsStatus {
    pub volume: String,
    pub handles: u64,
    pub open_files: u64,
    /// Bytes that were written by programs and are not yet sent.
    pub dirty_bytes: u64,
    /// Bytes on their way, or durable and not yet published.
    pub writing_bytes: u64,
    pub read_ahead_bytes: u64,
    /// All of it, as it counts against the limit.
    pub memory_bytes: u64,
    pub memory_max: u64,
    pub cached_attributes: u64,
    pub cached_entries: u64,
    /// Files that were closed and are not durable yet.
    pub volatile_files: u64,
    /// Directories that this mount leads, and changes in them that are not durable yet.
    pub led_directories: u64,
    pub unstored_changes: u64,
    /// Directories that it led and that are errors, because changes in them were lost; and those changes.
    pub lost_directories: u64,
    pub lost_changes: u64,
    /// Sessions that ended while this mount used them.
    pub sessions_lost: u64,
    pub write_errors: u64,
    /// The last failed write in the background.
    pub last_error: Option<String>,
}
