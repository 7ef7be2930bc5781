//! [`WantedLeases`]: overwrite leases that are in somebody's way, until their sessions gave them back. Keep-alives tell
//! them.
//!
//! Memory of one leader: whoever was refused comes again, and a new leader notes it then. Bounded by [`WANTED_MAX`];
//! what is not noted is noted at a later attempt. Not here: who has a lease and what is refused (meta-core).

use std::collections::{BTreeMap, BTreeSet};

use cairn_meta_core::Namespace;
use cairn_wire::meta::WantedLease;
use parking_lot::Mutex;

/// Leases that are noted at a time.
const WANTED_MAX: usize = 64 << 10;
/// Leases that one keep-alive names.
const NAMED_MAX: usize = 1024;

#[derive(Default)]
struct Table {
    /// Inodes by session.
    sessions: BTreeMap<u64, BTreeSet<u64>>,
    count: usize,
}

/// See the module.
#[derive(Default)]
pub(crate) struct WantedLeases {
    table: Mutex<Table>,
}

impl WantedLeases {
    /// Sessions and inodes that were in the way of an entry.
    pub(crate) fn note(&self, wanted: &[(u64, u64)]) {
        if wanted.is_empty() {
            return;
        }
        let mut table = self.table.lock();
        for (session, inode) in wanted {
            if table.count < WANTED_MAX && table.sessions.entry(*session).or_default().insert(*inode) {
                table.count += 1;
            }
        }
    }

    /// Those that a session still has. What it gave back is forgotten.
    pub(crate) fn of(&self, session: u64, namespace: &Namespace) -> Vec<WantedLease> {
        let mut table = self.table.lock();
        let Some(mut inodes) = table.sessions.remove(&session) else { return Vec::new() };
        let before = inodes.len();
        inodes.retain(|inode| namespace.overwrite_lease_of(session, *inode).is_some());
        table.count -= before - inodes.len();
        let named = inodes.iter().take(NAMED_MAX).filter_map(|inode| {
            let number = namespace.overwrite_lease_of(session, *inode)?;
            Some(WantedLease { inode: *inode, number })
        });
        let named = named.collect();
        if !inodes.is_empty() {
            table.sessions.insert(session, inodes);
        }
        named
    }

    /// The session ended, and its leases with it.
    pub(crate) fn forget(&self, session: u64) {
        let mut table = self.table.lock();
        let gone = table.sessions.remove(&session).map_or(0, |inodes| inodes.len());
        table.count -= gone;
    }

    /// Another member leads, or this one from now on.
    pub(crate) fn clear(&self) {
        *self.table.lock() = Table::default();
    }
}
