//! Walking over entries in both directions.
//!
//! A cursor borrows the tree, so nothing changes under it. It holds its path, so a step costs no descent.

use crate::inner::Inner;
use crate::node::Node;
use crate::page::Page;

/// No tree is higher: with at least a dozen children a node on average, this would take 10^17 pages.
const HEIGHT_MAX: usize = 16;

/// A place in a tree, without the key that a [`Cursor`] keeps.
#[derive(Clone)]
pub(crate) struct Position<'a> {
    root: Option<&'a Node>,
    path: [Option<(&'a Inner, usize)>; HEIGHT_MAX],
    depth: usize,
    page: Option<Page<'a>>,
    at: usize,
}

/// One entry of a tree, borrowed from it.
#[derive(Clone, Copy)]
pub struct EntryRef<'a> {
    page: Page<'a>,
    at: usize,
}

impl<'a> EntryRef<'a> {
    /// The key, copied out of its compressed form.
    pub fn key(&self) -> Vec<u8> {
        self.page.key(self.at)
    }

    /// Appends the key to `out`.
    pub fn append_key(&self, out: &mut Vec<u8>) {
        self.page.append_key(self.at, out);
    }

    /// The value.
    pub fn value(&self) -> &'a [u8] {
        self.page.value(self.at)
    }
}

impl<'a> Position<'a> {
    pub(crate) fn new(root: Option<&'a Node>) -> Position<'a> {
        Position { root, path: [None; HEIGHT_MAX], depth: 0, page: None, at: 0 }
    }

    pub(crate) fn entry(&self) -> Option<EntryRef<'a>> {
        self.page.map(|page| EntryRef { page, at: self.at })
    }

    pub(crate) fn page(&self) -> Option<Page<'a>> {
        self.page
    }

    /// To the first entry with `key` or a greater one.
    pub(crate) fn seek(&mut self, key: &[u8]) {
        self.descend_from_root(|inner| inner.child_index(key));
        if let Some(page) = self.page {
            self.at = page.lower_bound(key);
            if self.at == page.count() {
                self.next_page();
            }
        }
    }

    /// To the last entry with a key less than `key`.
    pub(crate) fn seek_before(&mut self, key: &[u8]) {
        self.descend_from_root(|inner| inner.child_index(key));
        if let Some(page) = self.page {
            self.at = page.lower_bound(key);
            self.prev();
        }
    }

    pub(crate) fn seek_first(&mut self) {
        self.descend_from_root(|_| 0);
        self.at = 0;
    }

    pub(crate) fn seek_last(&mut self) {
        self.descend_from_root(|inner| inner.children.len() - 1);
        self.at = self.page.map_or(0, |page| page.count() - 1);
    }

    /// One entry on; returns false, and stands nowhere, behind the last.
    #[inline]
    pub(crate) fn next(&mut self) -> bool {
        match self.page {
            Some(page) if self.at + 1 < page.count() => {
                self.at += 1;
                true
            }
            Some(_) => self.next_page(),
            None => false,
        }
    }

    /// One entry back; returns false, and stands nowhere, before the first.
    #[inline]
    pub(crate) fn prev(&mut self) -> bool {
        match self.page {
            Some(_) if self.at > 0 => {
                self.at -= 1;
                true
            }
            Some(_) => self.prev_page(),
            None => false,
        }
    }

    /// To the first entry of the next page.
    pub(crate) fn next_page(&mut self) -> bool {
        self.page = None;
        self.at = 0;
        while self.depth > 0 {
            let Some((inner, child)) = self.path[self.depth - 1] else { break };
            if child + 1 < inner.children.len() {
                self.path[self.depth - 1] = Some((inner, child + 1));
                self.descend(&inner.children[child + 1], |_| 0);
                return true;
            }
            self.depth -= 1;
        }
        false
    }

    /// To the last entry of the page before.
    fn prev_page(&mut self) -> bool {
        self.page = None;
        while self.depth > 0 {
            let Some((inner, child)) = self.path[self.depth - 1] else { break };
            if child > 0 {
                self.path[self.depth - 1] = Some((inner, child - 1));
                self.descend(&inner.children[child - 1], |inner| inner.children.len() - 1);
                self.at = self.page.map_or(0, |page| page.count() - 1);
                return true;
            }
            self.depth -= 1;
        }
        false
    }

    fn descend_from_root(&mut self, choose: impl Fn(&Inner) -> usize) {
        self.depth = 0;
        self.page = None;
        if let Some(root) = self.root {
            self.descend(root, choose);
        }
    }

    #[inline]
    fn descend(&mut self, mut node: &'a Node, choose: impl Fn(&Inner) -> usize) {
        loop {
            match node {
                Node::Inner(inner) => {
                    let child = choose(inner);
                    self.path[self.depth] = Some((inner, child));
                    self.depth += 1;
                    node = &inner.children[child];
                }
                Node::Leaf(leaf) => {
                    self.page = Some(leaf.page());
                    return;
                }
            }
        }
    }
}

/// A place in a tree that can be moved. A cursor that ran off an end stands nowhere until the next seek.
#[derive(Clone)]
pub struct Cursor<'a> {
    position: Position<'a>,
    key: Vec<u8>,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(root: Option<&'a Node>) -> Cursor<'a> {
        Cursor { position: Position::new(root), key: Vec::new() }
    }

    /// To the first entry with `key` or a greater one. Returns whether there is one.
    pub fn seek(&mut self, key: &[u8]) -> bool {
        self.position.seek(key);
        self.read_key()
    }

    /// To the last entry with a key less than `key`. Returns whether there is one.
    pub fn seek_before(&mut self, key: &[u8]) -> bool {
        self.position.seek_before(key);
        self.read_key()
    }

    /// To the first entry. Returns whether there is one.
    pub fn seek_first(&mut self) -> bool {
        self.position.seek_first();
        self.read_key()
    }

    /// To the last entry. Returns whether there is one.
    pub fn seek_last(&mut self) -> bool {
        self.position.seek_last();
        self.read_key()
    }

    /// To the next entry. Returns whether there is one.
    #[inline]
    pub fn advance(&mut self) -> bool {
        let on_same_page = self.position.at + 1 < self.position.page.map_or(0, |page| page.count());
        self.position.next() && if on_same_page { self.read_suffix() } else { self.read_key() }
    }

    /// To the entry before. Returns whether there is one.
    pub fn prev(&mut self) -> bool {
        let on_same_page = self.position.at > 0;
        self.position.prev() && if on_same_page { self.read_suffix() } else { self.read_key() }
    }

    /// The key here; empty when the cursor stands nowhere.
    pub fn key(&self) -> &[u8] {
        if self.is_valid() { &self.key } else { &[] }
    }

    /// The value here; empty when the cursor stands nowhere.
    #[inline]
    pub fn value(&self) -> &'a [u8] {
        self.position.page.map_or(&[], |page| page.value(self.position.at))
    }

    /// Key and value here.
    #[inline]
    pub fn entry(&self) -> Option<(&[u8], &'a [u8])> {
        self.position.page.map(|page| (self.key.as_slice(), page.value(self.position.at)))
    }

    /// True when the cursor stands on an entry.
    pub fn is_valid(&self) -> bool {
        self.position.page.is_some()
    }

    fn read_key(&mut self) -> bool {
        let Some(page) = self.position.page else { return false };
        self.key.clear();
        page.append_key(self.position.at, &mut self.key);
        true
    }

    #[inline]
    fn read_suffix(&mut self) -> bool {
        let Some(page) = self.position.page else { return false };
        page.set_suffix(self.position.at, &mut self.key);
        true
    }
}

/// The entries of a key range in order. Not an [`Iterator`]: the key is lent from the cursor's buffer.
#[derive(Clone)]
pub struct Range<'a> {
    cursor: Cursor<'a>,
    high: Option<Vec<u8>>,
    /// Entries of the page at hand that lie below `high`.
    page_end: usize,
    started: bool,
}

impl<'a> Range<'a> {
    pub(crate) fn new(root: Option<&'a Node>, low: &[u8], high: Option<Vec<u8>>) -> Range<'a> {
        let mut cursor = Cursor::new(root);
        cursor.seek(low);
        let mut range = Range { cursor, high, page_end: 0, started: false };
        range.find_page_end();
        range
    }

    /// The next entry.
    #[inline]
    #[allow(clippy::should_implement_trait)] // A lending iterator cannot implement it.
    pub fn next(&mut self) -> Option<(&[u8], &'a [u8])> {
        if self.started {
            let at = self.cursor.position.at + 1;
            if at < self.page_end {
                self.cursor.position.at = at;
                let page = self.cursor.position.page?;
                let value = page.set_suffix(at, &mut self.cursor.key);
                return Some((&self.cursor.key, value));
            }
            if !self.cursor.advance() {
                return None;
            }
            self.find_page_end();
        }
        self.started = true;
        if self.cursor.position.at >= self.page_end {
            self.cursor.position.page = None;
        }
        self.cursor.entry()
    }

    fn find_page_end(&mut self) {
        let Some(page) = self.cursor.position.page else { return };
        self.page_end = match &self.high {
            None => page.count(),
            Some(high) => page.lower_bound(high),
        };
    }
}
