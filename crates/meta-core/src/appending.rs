//! The list of open appends: so that the leader finds those that nobody publishes any more, without a walk through the
//! namespace.
//!
//! Invariants: what is listed is open, and its file is not dead. What is open is listed from its first publish under
//! [`APPENDING_LEVEL`] on: one that was opened before is left to the next writer. Not here: what is done with them
//! (`meta`).
use crate::encoding::AppendRecord;
use crate::key::{self, Kind};
use crate::namespace::Namespace;

/// Feature level from which on there is the list, and a file may have an open append in each lane.
pub const APPENDING_LEVEL: u16 = 14;
/// Feature level from which on several of a file are published at once, and none is opened in a file without room.
pub(crate) const TOGETHER_LEVEL: u16 = 17;
/// An append's number has its lane above this.
pub(crate) const LANE_SHIFT: u32 = 56;
const LISTED: [u8; 1] = [0x10];

/// An open append.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Appending {
    pub inode: u64,
    pub number: u64,
    /// The group of its chunk.
    pub pg: u32,
    /// The file has so much of the chunk.
    pub published: u64,
}

impl Namespace {
    pub(crate) fn count_appending(&self) -> u64 {
        let prefix = key::prefix(0, Kind::Appending);
        let mut range = self.tree.prefix(prefix.as_bytes());
        let mut count = 0;
        while range.next().is_some() {
            count += 1;
        }
        count
    }

    /// An append was opened or published, or closed.
    pub(crate) fn list_appending(&mut self, inode: u64, number: u64, open: bool) {
        let key = key::appending(inode, number);
        if open && self.level >= APPENDING_LEVEL {
            self.appending += u64::from(self.tree.put(key.as_bytes(), &LISTED));
        } else if self.appending > 0 {
            self.appending -= u64::from(self.tree.remove(key.as_bytes()));
        }
    }

    /// The file goes as a whole.
    pub(crate) fn forget_appending(&mut self, inode: u64) {
        if self.appending == 0 {
            return;
        }
        let mut numbers = Vec::new();
        self.visit_appending_of(inode, |number, _| numbers.push(number));
        numbers.into_iter().for_each(|number| self.list_appending(inode, number, false));
    }

    /// Open appends of a file, a few.
    pub(crate) fn visit_appending_of(&self, inode: u64, mut visit: impl FnMut(u64, &AppendRecord)) {
        if self.appending == 0 {
            return;
        }
        let prefix = key::appending_of(inode);
        let mut cursor = self.tree.cursor();
        let mut found = cursor.seek(prefix.as_bytes());
        while found && let Some(number) = cursor.key().strip_prefix(prefix.as_bytes()).and_then(key::number) {
            if let Some(append) = self.stored_append(inode, number) {
                visit(number, &append);
            }
            found = cursor.advance();
        }
    }

    /// Open appends behind that one, at most `max`, in order.
    pub fn open_appends(&self, after: (u64, u64), max: usize) -> Vec<Appending> {
        let mut all = Vec::new();
        if self.appending == 0 {
            return all;
        }
        let prefix = key::prefix(0, Kind::Appending);
        let mut cursor = self.tree.cursor();
        let mut found = cursor.seek(key::appending(after.0, after.1.saturating_add(1)).as_bytes());
        while found && all.len() < max {
            let Some((inode, number)) = cursor.key().strip_prefix(prefix.as_bytes()).and_then(key::deferred_death)
            else {
                break;
            };
            if let Some(append) = self.stored_append(inode, number) {
                all.push(Appending { inode, number, pg: append.pg, published: append.published });
            }
            found = cursor.advance();
        }
        all
    }

    pub(crate) fn stored_append(&self, inode: u64, number: u64) -> Option<AppendRecord> {
        AppendRecord::decode(self.tree.get(key::append(inode, number).as_bytes())?)
    }

    /// Open appends.
    pub fn appending_count(&self) -> u64 {
        self.appending
    }
}
