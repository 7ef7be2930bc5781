//! An inner node: children and the truncated keys that separate them, packed like a leaf page.
//!
//! Invariants: one separator less than children; child `i` holds keys below separator `i`, child `i + 1` keys at or
//! above it. Splitting and merging of children is here, deciding about entries is in `tree`.

use std::sync::Arc;

use crate::PAGE_MAX;
use crate::node::{Node, Totals};
use crate::page::{Flat, Page, PageBuf, Scratch, head8_of, insert_entry, remove_entry, starts_with};

/// Most children of an inner node. Copying a shared node touches the counts of all its children, so it is kept small.
pub(crate) const FANOUT_MAX: usize = 64;

/// Bytes of the separators' prefix kept in the node itself.
const PREFIX_INLINE: usize = 28;

/// Heads in a cache line.
const HEADS_A_LINE: usize = 8;

/// Two nodes are joined when they fill no more than this of one, so that the next insertion does not split it again.
const MERGED_BYTES_MAX: usize = PAGE_MAX / 4 * 3;
const MERGED_FANOUT_MAX: usize = FANOUT_MAX / 4 * 3;

/// See the module.
pub(crate) struct Inner {
    /// First eight bytes of each separator behind their common prefix, big-endian, zero-padded: what a descent reads.
    /// Filled up with the greatest number.
    heads: [u64; FANOUT_MAX],
    /// The prefix of all separators, up to `PREFIX_INLINE` bytes of it: a descent mostly needs no look at their page.
    prefix: [u8; PREFIX_INLINE],
    prefix_len: u16,
    separator_count: u16,
    separators: Separators,
    pub(crate) children: Vec<Node>,
}

/// A node split off to the right of the one that was changed, with the key that separates it from its left neighbour.
pub(crate) struct Split {
    pub separator: Vec<u8>,
    pub node: Node,
}

/// The page of separators; never shared, it lives and dies with its node.
struct Separators(Box<[u8]>);

impl PageBuf for Separators {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn is_unique(&self) -> bool {
        true
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }

    fn replace(&mut self, bytes: &[u8]) {
        self.0 = Box::from(bytes);
    }
}

impl Clone for Inner {
    /// Keeps the capacity, so that memory accounting does not depend on what is shared.
    fn clone(&self) -> Inner {
        let mut children = Vec::with_capacity(self.children.capacity());
        children.extend_from_slice(&self.children);
        Inner { children, separators: Separators(self.separators.0.clone()), ..*self }
    }
}

impl Inner {
    /// A node over `children`; `separators` holds the keys between them.
    pub(crate) fn new(children: impl ExactSizeIterator<Item = Node>, separators: &[u8]) -> Inner {
        let mut list = Vec::with_capacity(children.len().max(FANOUT_MAX + 2));
        list.extend(children);
        let mut inner = Inner {
            heads: [0; FANOUT_MAX],
            prefix: [0; PREFIX_INLINE],
            prefix_len: 0,
            separator_count: 0,
            separators: Separators(Box::from(separators)),
            children: list,
        };
        inner.read_heads();
        assert_eq!(inner.separators().count() + 1, inner.children.len(), "a separator between two children");
        inner
    }

    /// Brings what a descent reads in line with the separators; after each change of these.
    fn read_heads(&mut self) {
        let separators = Page::new(&self.separators.0);
        let count = separators.count().min(FANOUT_MAX);
        for (i, head) in self.heads[..count].iter_mut().enumerate() {
            *head = separators.entry(i).head8();
        }
        self.heads[count..].fill(u64::MAX);
        let prefix = separators.prefix();
        let inline = prefix.len().min(PREFIX_INLINE);
        self.prefix[..inline].copy_from_slice(&prefix[..inline]);
        self.prefix_len = u16::try_from(prefix.len()).expect("a prefix is no longer than a key");
        self.separator_count = u16::try_from(count).expect("bounded by the fan-out");
    }

    /// The root over a root that was split.
    pub(crate) fn over(first: Node, splits: Vec<Split>, scratch: &mut Scratch) -> Inner {
        scratch.flat.clear();
        splits.iter().for_each(|split| scratch.flat.push(&split.separator, &[]));
        scratch.flat.encode(0..splits.len(), &mut scratch.page);
        let children: Vec<Node> = std::iter::once(first).chain(splits.into_iter().map(|split| split.node)).collect();
        Inner::new(children.into_iter(), &scratch.page)
    }

    pub(crate) fn separators(&self) -> Page<'_> {
        Page::new(&self.separators.0)
    }

    /// Bytes asked from the allocator, without children.
    pub(crate) fn memory(&self) -> usize {
        let counts = 2 * size_of::<usize>();
        counts + size_of::<Inner>() + self.separators.0.len() + self.children.capacity() * size_of::<Node>()
    }

    /// Separators with a smaller head. One look at each line, then one line: two memory latencies, no branches.
    #[inline]
    fn count_heads_below(&self, head: u64) -> usize {
        let lines = self.heads.as_chunks::<HEADS_A_LINE>().0;
        let line: usize = lines.iter().map(|line| usize::from(line[HEADS_A_LINE - 1] < head)).sum();
        match lines.get(line) {
            None => FANOUT_MAX,
            Some(heads) => line * HEADS_A_LINE + heads.iter().map(|&other| usize::from(other < head)).sum::<usize>(),
        }
    }

    /// The child that holds `key` if any does.
    #[inline]
    pub(crate) fn child_index(&self, key: &[u8]) -> usize {
        let prefix_len = usize::from(self.prefix_len);
        let prefix = match self.prefix.get(..prefix_len) {
            Some(prefix) => prefix,
            None => self.separators().prefix(),
        };
        let count = usize::from(self.separator_count);
        if !starts_with(key, prefix) {
            return if key < prefix { 0 } else { count };
        }
        let suffix = &key[prefix_len..];
        let head = head8_of(suffix);
        let at = self.count_heads_below(head);
        let heads = &self.heads[..count];
        if heads.get(at) != Some(&head) {
            return at;
        }
        let equal = heads[at..].partition_point(|&other| other == head);
        match self.separators().search_between(suffix, at, at + equal) {
            Ok(i) => i + 1,
            Err(i) => i,
        }
    }

    /// Puts what was split off child `at` behind it. Returns the right part of this node if it had to be split itself.
    pub(crate) fn insert_children(
        &mut self,
        at: usize,
        splits: Vec<Split>,
        totals: &mut Totals,
        scratch: &mut Scratch,
    ) -> Option<Split> {
        let before = self.memory();
        let mut next = at;
        for split in splits {
            insert_entry(&mut self.separators, next, &split.separator, &[], scratch);
            self.children.insert(next + 1, split.node);
            next += 1;
        }
        let appended = next + 1 == self.children.len();
        let right = (self.children.len() > FANOUT_MAX).then(|| self.split(appended, scratch));
        self.read_heads();
        totals.bytes = totals.bytes + self.memory() - before;
        if let Some(right) = &right {
            totals.pages += 1;
            totals.bytes += right.node.memory();
        }
        right
    }

    /// Cuts off the right half, or just the last child when children arrive in order.
    fn split(&mut self, appended: bool, scratch: &mut Scratch) -> Split {
        let keep = if appended { self.children.len() - 1 } else { self.children.len() / 2 };
        let separators = self.separators();
        let count = separators.count();
        let separator = separators.key(keep - 1);
        let flat = &mut scratch.flat;
        flat.clear();
        flat.push_page(separators, 0..count);

        flat.encode(keep..count, &mut scratch.page);
        let right = Inner::new(self.children.drain(keep..), &scratch.page);
        scratch.flat.encode(0..keep - 1, &mut scratch.page);
        self.separators.replace(&scratch.page);
        Split { separator, node: Node::Inner(Arc::new(right)) }
    }

    /// After child `at` has lost entries: drops it if it is empty, joins it with a neighbour if both are small.
    pub(crate) fn repair(&mut self, at: usize, totals: &mut Totals, scratch: &mut Scratch) {
        if self.children[at].is_empty() {
            let before = self.memory();
            totals.pages -= 1;
            totals.bytes -= self.children[at].memory();
            self.remove_children(at, at + 1, scratch);
            totals.bytes = totals.bytes + self.memory() - before;
        } else if self.children[at].is_underfull() {
            let joined = at + 1 < self.children.len() && self.try_merge(at, totals, scratch);
            if !joined && at > 0 {
                self.try_merge(at - 1, totals, scratch);
            }
        }
    }

    /// Removes children `from..to` and the separators that go with them.
    pub(crate) fn remove_children(&mut self, from: usize, to: usize, scratch: &mut Scratch) {
        self.children.drain(from..to);
        for _ in from..to {
            if self.separators().count() > 0 {
                remove_entry(&mut self.separators, from.saturating_sub(1), scratch);
            }
        }
        self.read_heads();
    }

    /// Joins children `left` and `left + 1` if they fit into one with room to spare.
    fn try_merge(&mut self, left: usize, totals: &mut Totals, scratch: &mut Scratch) -> bool {
        let before = self.memory() + self.children[left].memory() + self.children[left + 1].memory();
        let separator = self.separators().key(left);
        let (head, tail) = self.children.split_at_mut(left + 1);
        let merged = match (&mut head[left], &mut tail[0]) {
            (Node::Leaf(a), Node::Leaf(b)) => merge_leaves(a, b.page(), scratch),
            (Node::Inner(a), Node::Inner(b)) => merge_inner(a, b, &separator, scratch),
            _ => unreachable!("all leaves are at the same depth"),
        };
        if merged {
            self.children.remove(left + 1);
            remove_entry(&mut self.separators, left, scratch);
            self.read_heads();
            totals.pages -= 1;
            totals.bytes = totals.bytes + self.memory() + self.children[left].memory() - before;
        }
        merged
    }
}

fn merge_leaves(left: &mut crate::leaf::Leaf, right: Page<'_>, scratch: &mut Scratch) -> bool {
    if left.page().used() + right.used() > MERGED_BYTES_MAX {
        return false;
    }
    let flat = &mut scratch.flat;
    flat.clear();
    flat.push_page(left.page(), 0..left.page().count());
    flat.push_page(right, 0..right.count());
    let fits = flat.encoded_len(0..flat.len()) <= PAGE_MAX;
    if fits {
        flat.encode(0..flat.len(), &mut scratch.page);
        left.replace(&scratch.page);
    }
    fits
}

fn merge_inner(left: &mut Arc<Inner>, right: &mut Arc<Inner>, separator: &[u8], scratch: &mut Scratch) -> bool {
    if left.children.len() + right.children.len() > MERGED_FANOUT_MAX {
        return false;
    }
    let flat: &mut Flat = &mut scratch.flat;
    flat.clear();
    flat.push_page(left.separators(), 0..left.separators().count());
    flat.push(separator, &[]);
    flat.push_page(right.separators(), 0..right.separators().count());
    flat.encode(0..flat.len(), &mut scratch.page);
    let left = Arc::make_mut(left);
    left.separators.replace(&scratch.page);
    left.read_heads();
    left.children.extend_from_slice(&right.children);
    true
}
