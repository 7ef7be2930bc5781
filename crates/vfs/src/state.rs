//! Open handles in a form that another process can go on with.

/// One open handle. Data that was not written out has to be synced before: [`Vfs::sync_all`](crate::Vfs::sync_all).
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct OpenState {
    /// Number of the handle.
    pub handle: u64,
    pub ino: u64,
    /// Flags of open(2).
    pub flags: i32,
    pub directory: bool,
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    /// Version of the contents that the kernel's pages are of.
    pub kernel_version: u64,
}
