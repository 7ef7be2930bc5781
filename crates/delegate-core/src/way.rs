//! [`Led`]: which operations are for a holder, which are for the partition, and which need the end of a delegation
//! first.
//!
//! An operation that names only what one delegation covers is for that one. One that names nothing covered is the
//! partition's. What names both, or two, or is nothing that a holder executes, waits until those have ended. Requests
//! that take a list (GetattrMany, Release) are split by their sender; else a list ends all that it names.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use cairn_meta_core::may_be_item;
use cairn_wire::Opcode;

use crate::named::named;

/// Where an operation goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// To the holder of this delegation, as a change.
    Change(u64),
    /// To the holder of this delegation, which only reads.
    Read(u64),
    /// To the partition.
    Partition,
    /// To the partition when these have ended.
    AfterEnd(BTreeSet<u64>),
}

/// What a client leads: ranges of numbers, each of one delegation.
#[derive(Debug, Clone, Default)]
pub struct Led {
    /// First number, to the last one and the delegation.
    ranges: BTreeMap<u64, (u64, u64)>,
}

impl Led {
    /// A delegation covers these.
    pub fn add(&mut self, number: u64, covered: RangeInclusive<u64>) {
        self.ranges.insert(*covered.start(), (*covered.end(), number));
    }

    /// A delegation has ended.
    pub fn remove(&mut self, number: u64) {
        self.ranges.retain(|_, (_, of)| *of != number);
    }

    /// Which delegation covers an inode.
    pub fn of(&self, inode: u64) -> Option<u64> {
        let (last, number) = self.ranges.range(..=inode).next_back()?.1;
        (inode <= *last).then_some(*number)
    }

    /// Where an operation goes.
    pub fn way(&self, opcode: Opcode, request: &[u8]) -> Way {
        if self.ranges.is_empty() {
            return Way::Partition;
        }
        let inodes = named(opcode, request);
        let led: BTreeSet<u64> = inodes.iter().filter_map(|inode| self.of(*inode)).collect();
        let is_whole = led.len() == 1 && inodes.iter().all(|inode| self.of(*inode).is_some());
        match led.first() {
            None => Way::Partition,
            Some(number) if is_whole && may_be_item(opcode) => Way::Change(*number),
            Some(number) if is_whole && is_read(opcode) => Way::Read(*number),
            Some(_) => Way::AfterEnd(led),
        }
    }
}

/// Reads that a holder answers.
const fn is_read(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::Lookup
            | Opcode::Resolve
            | Opcode::Getattr
            | Opcode::GetattrMany
            | Opcode::Readlink
            | Opcode::Readdir
            | Opcode::GetExtents
            | Opcode::GetXattr
            | Opcode::ListXattr
            | Opcode::Access
            | Opcode::Open
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_wire::meta::*;
    use prost::Message;

    /// A name would be made on one side only, or an operation meet a holder that cannot execute it.
    #[test]
    fn what_is_not_wholly_in_one_delegation_needs_the_end() {
        let mut led = Led::default();
        let rename = |parent, new_parent| {
            RenameRequest { parent, new_parent, name: b"a".to_vec(), ..RenameRequest::default() }.encode_to_vec()
        };
        assert_eq!(led.way(Opcode::Rename, &rename(10, 11)), Way::Partition);
        led.add(10, 10..=19);
        led.add(30, 30..=39);
        led.add(10, 50..=59);
        assert_eq!(led.way(Opcode::Rename, &rename(10, 55)), Way::Change(10));
        assert_eq!(led.way(Opcode::Rename, &rename(10, 20)), Way::AfterEnd([10].into()));
        assert_eq!(led.way(Opcode::Rename, &rename(10, 30)), Way::AfterEnd([10, 30].into()));
        let lock = SetLockRequest { inode: 12, ..SetLockRequest::default() };
        assert_eq!(led.way(Opcode::SetLock, &lock.encode_to_vec()), Way::AfterEnd([10].into()));
        let getattr = GetattrRequest { inode: 59, ..GetattrRequest::default() };
        assert_eq!(led.way(Opcode::Getattr, &getattr.encode_to_vec()), Way::Read(10));
        led.remove(10);
        assert_eq!(led.way(Opcode::Getattr, &getattr.encode_to_vec()), Way::Partition);
    }
}
