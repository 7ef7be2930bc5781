//! How bad things are in a simulated cluster, and what became of it.

/// How bad things are.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Faults {
    pub loss: f64,
    pub repeat: f64,
    pub delay_ms: u64,
    pub disk_ms: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub sent: u64,
    pub lost: u64,
    pub repeated: u64,
    pub cut: u64,
    pub crashes: u64,
    pub writes_lost: u64,
    pub snapshots: u64,
    pub elections: u64,
    pub acknowledged: u64,
    pub reads: u64,
    /// Looks at members that do not lead and said how old they are, less than two seconds.
    pub young: u64,
    pub changes: u64,
    pub transfers: u64,
    pub rollbacks: u64,
    /// Ticks that found a member asleep.
    pub slept: u64,
    /// Leaders that were given up because their node was not heard.
    pub given_up: u64,
    /// Looks at members that were shut because they are older than themselves.
    pub older: u64,
}
