//! On whose behalf an operation is done.
use cairn_client::credentials::Credentials;
use std::sync::Arc;

/// Supplementary groups that are sent along; the wire's bound.
pub const GROUPS_MAX: usize = 64;

/// The process that asks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Caller {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups. Those beyond [`GROUPS_MAX`] are not sent.
    pub groups: Arc<[u32]>,
    pub pid: u32,
    /// Taken off the mode of what is made, unless the directory has a default ACL. 0 if the kernel did it already.
    pub umask: u32,
}

impl Caller {
    /// The superuser.
    pub fn root() -> Self {
        Self { uid: 0, gid: 0, groups: Arc::new([]), pid: 0, umask: 0 }
    }
    /// As requests carry it.
    pub fn credentials(&self) -> Credentials {
        let groups = self.groups.iter().copied().take(GROUPS_MAX).collect();
        Credentials { uid: self.uid, gid: self.gid, groups }
    }
}
