//! What reclaiming cannot do by itself: entries of removed directories whose inode another partition has, an operation
//! across partitions has locked, or a session leads; and buckets of the trash that are over and in another partition.
//!
//! Whoever meets such an entry notes it and goes on with the rest. A dead directory of which only such entries are left
//! goes from the list of the dead to a list of its own, so a batch never looks at it again. The leader works off the
//! notes one by one (`ReclaimEntry`, in `ops`), and the directory goes with its last entry.
//!
//! Invariants: a note is of a directory that is there; of a dead directory every note is an entry, and all entries up
//! to the last note are noted; a directory that waits is dead, and all its entries are noted. A note says which inode
//! the entry had: if somebody has given the name of a bucket to something else meanwhile, it means nothing any more.
//! Partitions without inodes of others have no notes.
use crate::encoding::varint::Cursor;
use crate::error::{OpError, Result};
use crate::key::{self, Kind};
use crate::message::writer::put_varint;
use crate::namespace::Namespace;

const TAG: u8 = 0x10;

/// The inode in the value of a note.
pub(crate) fn decode_note(value: &[u8]) -> Option<u64> {
    let mut cursor = Cursor::new(value);
    let tag = cursor.byte()?;
    let inode = cursor.varint()?;
    cursor.end()?;
    (tag == TAG).then_some(inode)
}

/// What waits, counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Waiting {
    pub entries: u64,
    /// Dead directories with nothing but such entries.
    pub directories: u64,
}

impl Namespace {
    /// Entries at which reclaiming waits for a `ReclaimEntry`, with their directory, at most so many: those whose inode
    /// another partition has, or was locked or led by a session here and is not any more.
    pub fn reclaim_blocked(&self, max: usize) -> Vec<(u64, Vec<u8>)> {
        self.reclaim_blocked_after(0, &[], max)
    }

    /// The same behind one of them, so that those that cannot be worked off yet do not keep back the others.
    pub fn reclaim_blocked_after(&self, directory: u64, name: &[u8], max: usize) -> Vec<(u64, Vec<u8>)> {
        let mut blocked = Vec::new();
        if self.waiting.entries == 0 {
            return blocked;
        }
        let (prefix, from) = (key::prefix(0, Kind::WaitingEntry), key::waiting_entry(directory, name));
        let mut cursor = self.tree.cursor();
        let mut found = cursor.seek(from.as_bytes());
        while found && blocked.len() < max {
            let Some(suffix) = cursor.key().strip_prefix(prefix.as_bytes()) else { break };
            let entry = key::waiting_parts(suffix).zip(decode_note(cursor.value()));
            let ((at, called), inode) = entry.expect("written by this partition and checked when loaded");
            let is_free = !self.txs.is_locked(inode) && !self.delegations.hides(inode);
            if is_free && (at, called) != (directory, name) {
                blocked.push((at, called.to_vec()));
            }
            found = cursor.advance();
        }
        blocked
    }

    /// The inode that an entry had when it was noted.
    pub fn waiting_inode(&self, directory: u64, name: &[u8]) -> Option<u64> {
        if self.waiting.entries == 0 {
            return None;
        }
        self.tree.get(key::waiting_entry(directory, name).as_bytes()).and_then(decode_note)
    }

    pub(crate) fn note_waiting(&mut self, directory: u64, name: &[u8], inode: u64) {
        let value = &mut self.scratch.value;
        value.clear();
        value.push(TAG);
        put_varint(value, inode);
        self.waiting.entries += u64::from(self.tree.put(key::waiting_entry(directory, name).as_bytes(), value));
    }

    pub(crate) fn forget_waiting(&mut self, directory: u64, name: &[u8]) {
        if self.waiting.entries > 0 {
            self.waiting.entries -= u64::from(self.tree.remove(key::waiting_entry(directory, name).as_bytes()));
        }
    }

    /// A directory dies, or is gone: what was noted of it before says nothing any more.
    pub(crate) fn forget_waiting_entries(&mut self, directory: u64) {
        if self.waiting.entries == 0 {
            return;
        }
        let prefix = key::waiting_entry(directory, &[]);
        let mut names = Vec::new();
        let mut range = self.tree.prefix(prefix.as_bytes());
        while let Some((found, _)) = range.next() {
            names.push(found[prefix.as_bytes().len()..].to_vec());
        }
        for name in names {
            self.forget_waiting(directory, &name);
        }
    }

    /// The last name of a dead directory that was noted; none: empty.
    pub(crate) fn last_waiting(&self, directory: u64) -> Vec<u8> {
        if self.waiting.entries == 0 {
            return Vec::new();
        }
        let prefix = key::waiting_entry(directory, &[]);
        let mut cursor = self.tree.cursor();
        let found = match directory.checked_add(1) {
            Some(next) => cursor.seek_before(key::waiting_entry(next, &[]).as_bytes()),
            None => cursor.seek_before(key::prefix(0, Kind::WaitingDirectory).as_bytes()),
        };
        let name = cursor.key().strip_prefix(prefix.as_bytes()).filter(|_| found);
        name.unwrap_or_default().to_vec()
    }

    pub(crate) fn is_waiting_directory(&self, directory: u64) -> bool {
        self.waiting.directories > 0 && self.tree.contains_key(key::waiting_directory(directory).as_bytes())
    }

    /// All that is left in a dead directory is noted: it goes out of the way of what can be worked off.
    pub(crate) fn list_waiting(&mut self, directory: u64) {
        self.tree.remove(key::dead_inode(directory).as_bytes());
        self.waiting.directories += u64::from(self.tree.put(key::waiting_directory(directory).as_bytes(), &[TAG]));
    }

    /// What is not in the checkpoint's header, found again when one is loaded.
    pub(crate) fn count_waiting(&self) -> Result<Waiting> {
        let mut waiting = Waiting::default();
        let prefix = key::prefix(0, Kind::WaitingEntry);
        let mut range = self.tree.prefix(prefix.as_bytes());
        while let Some((found, value)) = range.next() {
            key::waiting_parts(&found[prefix.as_bytes().len()..]).ok_or(OpError::DAMAGED)?;
            decode_note(value).ok_or(OpError::DAMAGED)?;
            waiting.entries += 1;
        }
        let mut range = self.tree.prefix(key::prefix(0, Kind::WaitingDirectory).as_bytes());
        while range.next().is_some() {
            waiting.directories += 1;
        }
        Ok(waiting)
    }
}
