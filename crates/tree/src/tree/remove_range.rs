//! Cutting out all entries of a key range: whole subtrees inside it are dropped unread but for their counts, only the
//! pages at its two ends are repacked.

use std::sync::Arc;

use super::Tree;
use crate::leaf::Leaf;
use crate::node::{Node, Totals};
use crate::page::{PageBuf, Scratch};
use crate::prefix_end;

impl Tree {
    /// Removes all entries with `low <= key < high`; returns how many there were.
    pub fn remove_range(&mut self, low: &[u8], high: &[u8]) -> u64 {
        self.cut(low, Some(high))
    }

    /// Removes all entries whose key starts with `prefix`; returns how many there were.
    pub fn remove_prefix(&mut self, prefix: &[u8]) -> u64 {
        self.cut(prefix, prefix_end(prefix).as_deref())
    }

    fn cut(&mut self, low: &[u8], high: Option<&[u8]>) -> u64 {
        let nothing_there = match self.first_at_or_after(low) {
            None => true,
            Some(first) => high.is_some_and(|high| first.key().as_slice() >= high),
        };
        if nothing_there {
            return 0;
        }
        let before = self.totals.entries;
        if let Some(root) = &mut self.root {
            cut_node(root, low, high, &mut self.totals, &mut self.scratch);
            self.lower_root();
        }
        before - self.totals.entries
    }
}

/// Recursion is as deep as the tree is high, along the two edges of the range.
fn cut_node(node: &mut Node, low: &[u8], high: Option<&[u8]>, totals: &mut Totals, scratch: &mut Scratch) {
    let inner = match node {
        Node::Leaf(leaf) => return cut_leaf(leaf, low, high, totals, scratch),
        Node::Inner(inner) => Arc::make_mut(inner),
    };
    let first = inner.child_index(low);
    let last = high.map_or(inner.children.len() - 1, |high| inner.child_index(high));
    cut_node(&mut inner.children[first], low, high, totals, scratch);
    if last > first {
        cut_node(&mut inner.children[last], low, high, totals, scratch);
        inner.children[first + 1..last].iter().for_each(|child| totals.subtract(child.totals()));
        let before = inner.memory();
        inner.remove_children(first + 1, last, scratch);
        totals.bytes = totals.bytes + inner.memory() - before;
    }
    // Empty children go first: joining takes both sides for nodes with content.
    for child in [first + 1, first] {
        if inner.children.get(child).is_some_and(Node::is_empty) {
            inner.repair(child, totals, scratch);
        }
    }
    for child in [first + 1, first] {
        if child < inner.children.len() {
            inner.repair(child, totals, scratch);
        }
    }
}

fn cut_leaf(leaf: &mut Leaf, low: &[u8], high: Option<&[u8]>, totals: &mut Totals, scratch: &mut Scratch) {
    let page = leaf.page();
    let from = page.lower_bound(low);
    let to = high.map_or(page.count(), |high| page.lower_bound(high));
    if from >= to {
        return;
    }
    let before = leaf.memory();
    let flat = &mut scratch.flat;
    flat.clear();
    flat.push_page(page, 0..from);
    flat.push_page(page, to..page.count());
    flat.encode(0..flat.len(), &mut scratch.page);
    leaf.replace(&scratch.page);
    totals.entries -= (to - from) as u64;
    totals.bytes = totals.bytes + leaf.memory() - before;
}
