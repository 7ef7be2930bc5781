//! The map: lookups, snapshots, counters. Changing entries is in `edit`, cutting out ranges in `remove_range`,
//! walking in `cursor`, checks in `check`.

mod check;
mod edit;
mod remove_range;

use std::sync::Arc;

use crate::cursor::{Cursor, EntryRef, Position, Range};
use crate::image::Pages;
use crate::node::{Node, Totals};
use crate::page::{PageBuf, Scratch, warm};
use crate::prefix_end;

/// An ordered map from byte strings to byte strings. See the crate's documentation for layout and cost.
///
/// Keys are at most [`crate::KEY_BYTES_MAX`] and values at most [`crate::VALUE_BYTES_MAX`] bytes; the writing functions
/// panic beyond that, so whoever takes them from a request checks them first.
#[derive(Default)]
pub struct Tree {
    pub(crate) root: Option<Node>,
    pub(crate) totals: Totals,
    scratch: Scratch,
}

/// What [`Tree::update`] is to do with the entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Update {
    /// Leave it as it is (also: leave it absent).
    Keep,
    /// Give it the value that is in the buffer.
    Put,
    /// Remove it if it is there.
    Remove,
}

impl Clone for Tree {
    fn clone(&self) -> Tree {
        self.snapshot()
    }
}

impl Tree {
    /// An empty map.
    pub fn new() -> Tree {
        Tree::default()
    }

    pub(crate) fn from_root(root: Option<Node>, totals: Totals) -> Tree {
        Tree { root, totals, scratch: Scratch::default() }
    }

    /// This version of the map, in constant time. Later changes of either do not show in the other.
    pub fn snapshot(&self) -> Tree {
        Tree::from_root(self.root.clone(), self.totals)
    }

    /// Entries.
    pub fn len(&self) -> u64 {
        self.totals.entries
    }

    /// True when there is no entry.
    pub fn is_empty(&self) -> bool {
        self.totals.entries == 0
    }

    /// Leaf pages and inner nodes.
    pub fn page_count(&self) -> usize {
        self.totals.pages
    }

    /// Bytes asked from the allocator for all pages of this version, whether shared with other versions or not.
    pub fn memory_bytes(&self) -> usize {
        self.totals.bytes
    }

    /// The value of `key`.
    #[inline]
    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        let mut node = self.root.as_ref()?;
        loop {
            match node {
                Node::Inner(inner) => node = &inner.children[inner.child_index(key)],
                Node::Leaf(leaf) => {
                    warm(leaf.bytes());
                    let page = leaf.page();
                    return page.search(key).ok().map(|i| page.value(i));
                }
            }
        }
    }

    /// True when there is an entry for `key`.
    pub fn contains_key(&self, key: &[u8]) -> bool {
        self.get(key).is_some()
    }

    /// The value of `key` for editing in place at the same length, in one descent. Pages shared with a snapshot are
    /// copied, whether the caller then changes anything or not.
    pub fn get_mut(&mut self, key: &[u8]) -> Option<&mut [u8]> {
        let mut node = self.root.as_mut()?;
        loop {
            match node {
                Node::Inner(inner) => {
                    let inner = Arc::make_mut(inner);
                    let child = inner.child_index(key);
                    node = &mut inner.children[child];
                }
                Node::Leaf(leaf) => {
                    let i = leaf.page().search(key).ok()?;
                    if !leaf.is_unique() {
                        let copy = leaf.bytes().to_vec();
                        leaf.replace(&copy);
                    }
                    let value = leaf.page().value_span(i);
                    return Some(&mut leaf.bytes_mut()[value]);
                }
            }
        }
    }

    /// A cursor that stands nowhere yet.
    pub fn cursor(&self) -> Cursor<'_> {
        Cursor::new(self.root.as_ref())
    }

    /// All entries in order.
    pub fn iter(&self) -> Range<'_> {
        Range::new(self.root.as_ref(), &[], None)
    }

    /// Entries with `low <= key < high`.
    pub fn range(&self, low: &[u8], high: &[u8]) -> Range<'_> {
        Range::new(self.root.as_ref(), low, Some(high.to_vec()))
    }

    /// Entries with `low <= key`.
    pub fn range_from(&self, low: &[u8]) -> Range<'_> {
        Range::new(self.root.as_ref(), low, None)
    }

    /// Entries whose key starts with `prefix`.
    pub fn prefix(&self, prefix: &[u8]) -> Range<'_> {
        Range::new(self.root.as_ref(), prefix, prefix_end(prefix))
    }

    /// The first entry with `key` or a greater key.
    pub fn first_at_or_after(&self, key: &[u8]) -> Option<EntryRef<'_>> {
        let mut position = Position::new(self.root.as_ref());
        position.seek(key);
        position.entry()
    }

    /// The last entry with a key less than `key`.
    pub fn last_before(&self, key: &[u8]) -> Option<EntryRef<'_>> {
        let mut position = Position::new(self.root.as_ref());
        position.seek_before(key);
        position.entry()
    }

    /// The entry with the least key.
    pub fn first(&self) -> Option<EntryRef<'_>> {
        let mut position = Position::new(self.root.as_ref());
        position.seek_first();
        position.entry()
    }

    /// The entry with the greatest key.
    pub fn last(&self) -> Option<EntryRef<'_>> {
        let mut position = Position::new(self.root.as_ref());
        position.seek_last();
        position.entry()
    }

    /// The leaf pages in key order, for a checkpoint.
    pub fn pages(&self) -> Pages<'_> {
        Pages::new(self.root.as_ref())
    }
}

impl std::fmt::Debug for Tree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tree")
            .field("entries", &self.totals.entries)
            .field("pages", &self.totals.pages)
            .field("bytes", &self.totals.bytes)
            .finish()
    }
}
