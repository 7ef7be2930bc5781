//! Putting a tree together from leaf pages that arrive in key order, as when a checkpoint is loaded.
//!
//! Pages are validated one by one ([`LeafPage::decode`], in any thread); the builder checks only that they follow each
//! other and makes the inner nodes from the bottom up. No entry is parsed twice and none is moved.

use std::sync::Arc;

use crate::error::TreeError;
use crate::image::LeafPage;
use crate::inner::{FANOUT_MAX, Inner};
use crate::node::{Node, Totals};
use crate::page::Flat;
use crate::tree::Tree;

/// Children given to an inner node, so that the first insertions do not split it.
const FANOUT_LOADED: usize = FANOUT_MAX / 8 * 7;

/// See the module.
#[derive(Default)]
pub struct TreeBuilder {
    level: Level,
    last_key: Vec<u8>,
    totals: Totals,
}

/// Nodes of one height in order, and the keys between them.
#[derive(Default)]
struct Level {
    nodes: Vec<Node>,
    separators: Flat,
}

impl TreeBuilder {
    /// A builder without pages.
    pub fn new() -> TreeBuilder {
        TreeBuilder::default()
    }

    /// Validates a page image and adds it behind those before.
    pub fn push_leaf(&mut self, image: &[u8]) -> Result<(), TreeError> {
        self.push(LeafPage::decode(image)?)
    }

    /// Adds a page behind those before; its keys must be greater than theirs.
    pub fn push(&mut self, leaf: LeafPage) -> Result<(), TreeError> {
        let leaf = leaf.into_leaf();
        let page = leaf.page();
        if !self.level.nodes.is_empty() {
            let first_key = page.key(0);
            if first_key <= self.last_key {
                return Err(TreeError::OutOfOrder { page: self.level.nodes.len() });
            }
            let common = crate::page::common_prefix_len(&self.last_key, &first_key);
            self.level.separators.push(&first_key[..common + 1], &[]);
        }
        self.last_key.clear();
        page.append_key(page.count() - 1, &mut self.last_key);
        self.totals.entries += page.count() as u64;
        let node = Node::Leaf(leaf);
        self.totals.pages += 1;
        self.totals.bytes += node.memory();
        self.level.nodes.push(node);
        Ok(())
    }

    /// The tree over all pages.
    pub fn finish(self) -> Result<Tree, TreeError> {
        let TreeBuilder { mut level, mut totals, .. } = self;
        let mut page = Vec::new();
        while level.nodes.len() > 1 {
            level = level.parents(&mut page, &mut totals);
        }
        Ok(Tree::from_root(level.nodes.pop(), totals))
    }
}

impl Level {
    /// The level above: nodes of about equal fan-out.
    fn parents(self, page: &mut Vec<u8>, totals: &mut Totals) -> Level {
        let count = self.nodes.len();
        let groups = count.div_ceil(FANOUT_LOADED);
        let mut above = Level::default();
        let mut nodes = self.nodes.into_iter();
        for group in 0..groups {
            let (from, to) = (count * group / groups, count * (group + 1) / groups);
            if from > 0 {
                above.separators.push(self.separators.key(from - 1), &[]);
            }
            self.separators.encode(from..to - 1, page);
            let children: Vec<Node> = nodes.by_ref().take(to - from).collect();
            let node = Node::Inner(Arc::new(Inner::new(children.into_iter(), page)));
            totals.pages += 1;
            totals.bytes += node.memory();
            above.nodes.push(node);
        }
        above
    }
}
