//! Checks of everything that the crate promises about a tree's shape. For tests, simulations and `fsck`.

use super::Tree;
use crate::PAGE_MAX;
use crate::image::check_page;
use crate::inner::FANOUT_MAX;
use crate::node::Node;
use crate::page::PageBuf;

impl Tree {
    /// Panics with what is wrong if the tree breaks one of its invariants. Reads every entry.
    pub fn check_invariants(&self) {
        let Some(root) = &self.root else {
            assert_eq!(self.totals, Default::default(), "an empty tree counts nothing");
            return;
        };
        assert_eq!(self.totals, root.totals(), "the running totals differ from a recount");
        check_node(root, None, None, true);
    }
}

/// Checks a subtree whose keys must be within `low..high`; returns its height.
fn check_node(node: &Node, low: Option<&[u8]>, high: Option<&[u8]>, is_root: bool) -> usize {
    let inner = match node {
        Node::Leaf(leaf) => {
            let page = leaf.page();
            if let Err(error) = check_page(leaf.bytes()) {
                panic!("a page in memory is malformed: {error}");
            }
            assert!(page.used() <= PAGE_MAX || page.count() == 1, "a page with several entries is too large");
            let (first, last) = (page.key(0), page.key(page.count() - 1));
            assert!(low.is_none_or(|low| low <= first.as_slice()), "a key sorts before its page's separator");
            assert!(high.is_none_or(|high| last.as_slice() < high), "a key sorts behind its page's range");
            return 1;
        }
        Node::Inner(inner) => inner,
    };
    let separators = inner.separators();
    assert_eq!(separators.count() + 1, inner.children.len(), "a separator between two children");
    assert!(inner.children.len() <= FANOUT_MAX, "too many children");
    assert!(!is_root || inner.children.len() > 1, "a root with a single child");
    let keys: Vec<Vec<u8>> = (0..separators.count()).map(|i| separators.key(i)).collect();
    assert!(keys.is_sorted_by(|a, b| a < b), "separators out of order");
    let mut heights = inner.children.iter().enumerate().map(|(i, child)| {
        let child_low = if i == 0 { low } else { Some(keys[i - 1].as_slice()) };
        let child_high = keys.get(i).map(Vec::as_slice).or(high);
        check_node(child, child_low, child_high, false)
    });
    let height = heights.next().expect("an inner node has children");
    assert!(heights.all(|other| other == height), "leaves at different depths");
    height + 1
}
