//! State of a member of a placement group, kept in the manager's Raft state and durably on each disk.

/// What a member may do. The numbers go on the wire and on disk: add, never edit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum MemberState {
    /// Complete; answers reads, may be primary or source, counts for the minimum.
    Serving = 1,
    /// Catching up: receives new writes, answers no reads.
    Syncing = 2,
    /// Was the last one serving and is down: the placement group waits for it.
    Waiting = 3,
    /// Not there; receives nothing.
    Offline = 4,
}

impl MemberState {
    pub fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Serving,
            2 => Self::Syncing,
            3 => Self::Waiting,
            4 => Self::Offline,
            _ => return None,
        })
    }
    pub fn code(self) -> u8 {
        self as u8
    }
    /// Takes part in appends (in the chain).
    pub fn receives_writes(self) -> bool {
        matches!(self, Self::Serving | Self::Syncing)
    }
    pub fn name(self) -> &'static str {
        match self {
            Self::Serving => "serving",
            Self::Syncing => "syncing",
            Self::Waiting => "waiting",
            Self::Offline => "offline",
        }
    }
}

impl std::fmt::Display for MemberState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
