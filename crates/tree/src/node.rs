//! A subtree: a leaf or an inner node.

use std::sync::Arc;

use crate::PAGE_MAX;
use crate::inner::{FANOUT_MAX, Inner};
use crate::leaf::Leaf;

/// Owner of one reference to a leaf or an inner node.
#[derive(Clone)]
pub(crate) enum Node {
    Leaf(Leaf),
    Inner(Arc<Inner>),
}

/// What a tree holds, counted along with every change. Pages shared with other versions count in each of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub entries: u64,
    pub pages: usize,
    pub bytes: usize,
}

impl Node {
    /// Bytes of this node alone.
    #[inline]
    pub(crate) fn memory(&self) -> usize {
        match self {
            Node::Leaf(leaf) => leaf.memory(),
            Node::Inner(inner) => inner.memory(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Node::Leaf(leaf) => leaf.page().count() == 0,
            Node::Inner(inner) => inner.children.is_empty(),
        }
    }

    /// Small enough that joining a neighbour is worth a try.
    pub(crate) fn is_underfull(&self) -> bool {
        match self {
            Node::Leaf(leaf) => leaf.page().used() < PAGE_MAX / 3,
            Node::Inner(inner) => inner.children.len() < FANOUT_MAX / 4,
        }
    }

    /// Counts this subtree; recursion is as deep as the tree is high.
    pub(crate) fn add_to(&self, totals: &mut Totals) {
        totals.pages += 1;
        totals.bytes += self.memory();
        match self {
            Node::Leaf(leaf) => totals.entries += leaf.page().count() as u64,
            Node::Inner(inner) => inner.children.iter().for_each(|child| child.add_to(totals)),
        }
    }

    pub(crate) fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        self.add_to(&mut totals);
        totals
    }
}

impl Totals {
    pub(crate) fn subtract(&mut self, other: Totals) {
        self.entries -= other.entries;
        self.pages -= other.pages;
        self.bytes -= other.bytes;
    }
}
