//! Deaths that wait for readers: a session that opened a file by Open alone has no hold in the log.
//!
//! While a partition's sessions use Open (`SetDeferral`, proposed by the leader before it answers the first one), an
//! inode that loses its last name and holder is not taken apart but numbered and listed. Keep-alives tell the numbers
//! to the sessions; `ReclaimBatch` takes apart what all of them have acknowledged. Until then the inode is as good as
//! held.
//!
//! Invariants: numbers ascend over the whole life of the partition and over restarts (they contain the index of their
//! entry), so whoever has seen [`Namespace::death_position`] has been told of every death up to it; a deferred inode
//! has no name, is not in the list of the dead, and has exactly one entry in the list of the deferred. Not here: who
//! has acknowledged what (the leader's memory, in `meta`).
use crate::dead::Budget;
use crate::encoding::Inode;
use crate::encoding::varint::Cursor;
use crate::error::{OpError, Result};
use crate::key::{self, Kind};
use crate::message::writer::put_varint;
use crate::namespace::Namespace;

const TAG: u8 = 0x10;
/// Deaths of one log entry are numbered below the next entry's.
const ENTRY_SHIFT: u32 = 24;

/// Reads the value of a deferral: the number of the death.
pub(crate) fn decode_deferral(value: &[u8]) -> Option<u64> {
    let mut cursor = Cursor::new(value);
    let tag = cursor.byte()?;
    let number = cursor.varint()?;
    cursor.end()?;
    (tag == TAG).then_some(number)
}

/// What died and waits for acknowledgements.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Deaths {
    /// To be acknowledged when all of `inodes` are held or not needed.
    pub position: u64,
    pub inodes: Vec<u64>,
    /// There are more behind `position`.
    pub more: bool,
}

impl Namespace {
    /// Whether sessions of the partition use Open.
    pub fn is_deferring(&self) -> bool {
        self.deferring
    }

    /// Every death up to this number has happened, none beyond.
    pub fn death_position(&self) -> u64 {
        self.death_last.max(self.applied << ENTRY_SHIFT).max(1)
    }

    /// Inodes whose death is deferred.
    pub fn deferred_count(&self) -> u64 {
        self.deferred
    }

    /// Deferred deaths behind a number, at most `max`.
    pub fn deaths_after(&self, acknowledged: u64, max: usize) -> Deaths {
        let mut deaths = Deaths { position: self.death_position(), ..Deaths::default() };
        if self.deferred == 0 {
            return deaths;
        }
        let prefix = key::prefix(0, Kind::Deferred);
        let mut cursor = self.tree.cursor();
        let mut found = cursor.seek(key::deferred(acknowledged.saturating_add(1), 0).as_bytes());
        while found {
            let Some(suffix) = cursor.key().strip_prefix(prefix.as_bytes()) else { break };
            let (number, inode) =
                key::deferred_death(suffix).expect("written by this partition and checked when loaded");
            if deaths.inodes.len() == max {
                deaths.more = true;
                break;
            }
            if deaths.inodes.len() + 1 == max {
                deaths.position = number;
            }
            deaths.inodes.push(inode);
            found = cursor.advance();
        }
        if !deaths.more {
            deaths.position = self.death_position();
        }
        deaths
    }

    /// The number of the oldest deferred death.
    pub fn first_deferred(&self) -> Option<u64> {
        self.first_deferred_death().map(|(number, _)| number)
    }

    fn first_deferred_death(&self) -> Option<(u64, u64)> {
        if self.deferred == 0 {
            return None;
        }
        let prefix = key::prefix(0, Kind::Deferred);
        let mut cursor = self.tree.cursor();
        cursor.seek(prefix.as_bytes());
        key::deferred_death(cursor.key().strip_prefix(prefix.as_bytes())?)
    }

    /// True when a reader may have the inode open that lost its last name and holder.
    pub(crate) fn is_deferred(&self, inode: u64) -> bool {
        self.deferred > 0 && self.tree.contains_key(key::deferral(inode).as_bytes())
    }

    pub(crate) fn set_deferring(&mut self, on: bool) {
        if on == self.deferring {
            return;
        }
        self.deferring = on;
        if on {
            self.tree.put(key::deferring().as_bytes(), &[TAG]);
        } else {
            self.tree.remove(key::deferring().as_bytes());
        }
    }

    /// Stores an inode without names and holders, and numbers its death.
    pub(crate) fn defer(&mut self, inode: u64, attributes: &Inode) {
        self.put_inode(inode, attributes);
        self.death_last = self.death_last.max(self.applied << ENTRY_SHIFT) + 1;
        let value = &mut self.scratch.value;
        value.clear();
        value.push(TAG);
        put_varint(value, self.death_last);
        let is_new = self.tree.put(key::deferral(inode).as_bytes(), value);
        assert!(is_new, "inode {inode} dies once");
        self.tree.put(key::deferred(self.death_last, inode).as_bytes(), &[TAG]);
        self.deferred += 1;
    }

    /// Takes the oldest deferred death up to a number apart; false when there is none. What is held by now stays.
    pub(crate) fn reclaim_deferred(&mut self, to: u64, budget: &mut Budget) -> Result<bool> {
        let Some((number, inode)) = self.first_deferred_death().filter(|(number, _)| *number <= to) else {
            return Ok(false);
        };
        let attributes = self.stored_inode(inode)?;
        self.tree.remove(key::deferred(number, inode).as_bytes());
        let had = self.tree.remove(key::deferral(inode).as_bytes());
        assert!(had, "inode {inode} was listed as deferred");
        self.deferred -= 1;
        budget.take_inode();
        self.bury_unless_held(inode, &attributes)?;
        Ok(true)
    }

    /// What is not in the checkpoint's header, found again when one is loaded.
    pub(crate) fn recount_deferred(&mut self) -> Result<()> {
        self.deferring = self.tree.contains_key(key::deferring().as_bytes());
        let prefix = key::prefix(0, Kind::Deferred);
        let (mut count, mut last) = (0, 0);
        let mut range = self.tree.prefix(prefix.as_bytes());
        while let Some((found, _)) = range.next() {
            let (number, _) = key::deferred_death(&found[prefix.as_bytes().len()..]).ok_or(OpError::DAMAGED)?;
            count += 1;
            last = number;
        }
        (self.deferred, self.death_last) = (count, last);
        Ok(())
    }
}
