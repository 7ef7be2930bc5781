//! What must hold of delegations between two operations: part of the check of all invariants.
use crate::check::{Violation, ensure};
use crate::check_found::Found;
use crate::namespace::Namespace;

impl Namespace {
    pub(crate) fn check_delegations(&self, found: &Found) -> Result<(), Violation> {
        // A holder has but its own, of which the tree knows the beginning.
        let is_holder = self.delegations.acting().is_some();
        ensure(is_holder || self.delegations.holds(&found.delegations), 0, "delegations are kept wrong")?;
        for top in self.delegations.tops() {
            let Some(record) = self.delegations.get(top) else { continue };
            let ranges = record.ids.ranges();
            let is_live = self.sessions.state(record.session) == crate::SessionState::Live;
            ensure(is_live, top, "a delegation of a session that is not live")?;
            let is_top = found.inodes.get(&top).is_some_and(|inode| inode.is_dir() && inode.nlink > 0);
            ensure(
                is_top && *ranges[0].start() == top,
                top,
                "leads a delegation and is no directory, or not its first",
            )?;
            let given = ranges.iter().all(|range| *range.end() < self.inode_next || self.inode_next == 0);
            ensure(given, top, "a delegation has numbers that were not given to it")?;
            for range in ranges {
                for (id, inode) in found.inodes.range(range.clone()) {
                    ensure(record.ids.has_given(*id), *id, "has a number that its delegation has not given yet")?;
                    ensure(!self.txs.is_locked(*id), *id, "is led by a session, and locked by an operation")?;
                    let in_it = !inode.is_dir() || inode.nlink == 0 || *id == top;
                    ensure(in_it || self.delegations.of(inode.parent) == top, *id, "was moved out of its delegation")?;
                }
            }
        }
        if self.delegations.is_empty() {
            return Ok(());
        }
        for ((directory, _), inode) in &found.entry_inodes {
            let (of, leads_to) = (self.delegations.of(*directory), self.delegations.of(*inode));
            let is_top = leads_to == *inode && of == 0;
            ensure(of == leads_to || is_top, *inode, "has a name on the other side of the border of a delegation")?;
        }
        Ok(())
    }
}
