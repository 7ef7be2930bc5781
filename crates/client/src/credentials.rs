//! [`Credentials`]: on whose behalf something is asked.
use cairn_wire::common;

/// Who asks, for permission checks.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Credentials {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups, at most 64.
    pub groups: Vec<u32>,
}

impl Credentials {
    pub(crate) fn of_wire(found: common::Credentials) -> Self {
        let common::Credentials { uid, gid, groups } = found;
        Self { uid, gid, groups }
    }
    pub(crate) fn to_wire(&self) -> common::Credentials {
        common::Credentials { uid: self.uid, gid: self.gid, groups: self.groups.clone() }
    }
}
