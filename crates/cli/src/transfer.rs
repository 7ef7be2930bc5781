//! Copies between the local file system and the cluster, and within it: streaming, parallel, bounded in memory.
pub mod clone_tree;
pub mod digest;
pub mod download;
pub mod hidden;
pub mod local_file;
pub mod local_tree;
pub mod pass;
pub mod rechunk;
pub mod remote_dir;
pub mod remote_make;
pub mod replace;
pub mod stdin;
pub mod temp_file;
pub mod upload;

/// What happens to a file that is there already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Overwrite {
    /// It is replaced, atomically.
    Replace,
    /// It is left as it is.
    Keep,
}

/// Files of up to so many bytes are read and written in one step.
pub const SMALL_MAX: u64 = cairn_client::SEGMENT_MAX as u64;
/// Small files in flight.
pub const SMALL_IN_FLIGHT: usize = 64;
/// Larger files in flight.
pub const LARGE_IN_FLIGHT: usize = 6;
