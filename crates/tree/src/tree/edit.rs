//! Inserting, replacing and removing one entry: one descent, pages copied on the way down where they are shared, nodes
//! split or joined on the way up.

use std::ops::Range;
use std::sync::Arc;

use super::{Tree, Update};
use crate::inner::{Inner, Split};
use crate::leaf::Leaf;
use crate::node::{Node, Totals};
use crate::page::{Page, PageBuf, Scratch, entry_len, insert_entry, remove_entry, replace_value, warm};
use crate::{KEY_BYTES_MAX, PAGE_MAX, VALUE_BYTES_MAX};

/// What to do with an entry once it, or the place where it belongs, has been found.
trait Editor {
    fn edit(&mut self, old: Option<&[u8]>) -> Decision<'_>;
}

enum Decision<'v> {
    Keep,
    Put(&'v [u8]),
    Remove,
}

/// What an edit did to the node it went into.
enum Effect {
    /// Nothing that concerns the parent.
    Settled,
    /// New neighbours on its right.
    Split(Vec<Split>),
    /// It lost entries and may be too small or empty now.
    Shrunk,
}

struct Put<'v> {
    value: &'v [u8],
    was_there: bool,
}

impl Editor for Put<'_> {
    fn edit(&mut self, old: Option<&[u8]>) -> Decision<'_> {
        self.was_there = old.is_some();
        Decision::Put(self.value)
    }
}

struct Swap<'v> {
    value: &'v [u8],
    old: Option<Vec<u8>>,
}

impl Editor for Swap<'_> {
    fn edit(&mut self, old: Option<&[u8]>) -> Decision<'_> {
        self.old = old.map(<[u8]>::to_vec);
        Decision::Put(self.value)
    }
}

struct Remove {
    was_there: bool,
}

impl Editor for Remove {
    fn edit(&mut self, old: Option<&[u8]>) -> Decision<'_> {
        self.was_there = old.is_some();
        Decision::Remove
    }
}

struct Take {
    old: Option<Vec<u8>>,
}

impl Editor for Take {
    fn edit(&mut self, old: Option<&[u8]>) -> Decision<'_> {
        self.old = old.map(<[u8]>::to_vec);
        Decision::Remove
    }
}

struct Call<'b, F> {
    decide: F,
    buffer: &'b mut Vec<u8>,
}

impl<F: FnMut(Option<&[u8]>, &mut Vec<u8>) -> Update> Editor for Call<'_, F> {
    fn edit(&mut self, old: Option<&[u8]>) -> Decision<'_> {
        self.buffer.clear();
        match (self.decide)(old, self.buffer) {
            Update::Keep => Decision::Keep,
            Update::Put => Decision::Put(self.buffer),
            Update::Remove => Decision::Remove,
        }
    }
}

impl Tree {
    /// Sets the value of `key`; returns the value it had.
    pub fn insert(&mut self, key: &[u8], value: &[u8]) -> Option<Vec<u8>> {
        let mut editor = Swap { value, old: None };
        self.edit(key, &mut editor);
        editor.old
    }

    /// Sets the value of `key`; returns true when the key is new. Cheaper than [`Tree::insert`]: the old value is not
    /// copied.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> bool {
        let mut editor = Put { value, was_there: false };
        self.edit(key, &mut editor);
        !editor.was_there
    }

    /// Removes `key`; returns true when it was there.
    pub fn remove(&mut self, key: &[u8]) -> bool {
        let mut editor = Remove { was_there: false };
        self.edit(key, &mut editor);
        editor.was_there
    }

    /// Removes `key`; returns the value it had.
    pub fn take(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        let mut editor = Take { old: None };
        self.edit(key, &mut editor);
        editor.old
    }

    /// Shows the value of `key` to `decide`, which answers what to do and leaves a new value in the buffer (given to it
    /// empty; reuse one buffer for many calls). One descent. Pages shared with a snapshot may be copied even for
    /// [`Update::Keep`].
    pub fn update(
        &mut self,
        key: &[u8],
        buffer: &mut Vec<u8>,
        decide: impl FnMut(Option<&[u8]>, &mut Vec<u8>) -> Update,
    ) {
        self.edit(key, &mut Call { decide, buffer });
    }

    fn edit<E: Editor>(&mut self, key: &[u8], editor: &mut E) {
        assert!(key.len() <= KEY_BYTES_MAX, "a key of {} bytes, at most {KEY_BYTES_MAX} are allowed", key.len());
        let Some(root) = &mut self.root else {
            if let Decision::Put(value) = editor.edit(None) {
                self.root = Some(Node::Leaf(first_leaf(key, value, &mut self.totals, &mut self.scratch)));
            }
            return;
        };
        match edit_node(root, key, editor, &mut self.totals, &mut self.scratch) {
            Effect::Settled => {}
            Effect::Split(splits) => self.grow(splits),
            Effect::Shrunk => self.lower_root(),
        }
    }

    fn grow(&mut self, splits: Vec<Split>) {
        let first = self.root.take().expect("a split came from the root");
        let root = Node::Inner(Arc::new(Inner::over(first, splits, &mut self.scratch)));
        self.totals.pages += 1;
        self.totals.bytes += root.memory();
        self.root = Some(root);
    }

    /// Takes away roots with a single child and the empty root.
    pub(super) fn lower_root(&mut self) {
        loop {
            let child = match &self.root {
                Some(Node::Inner(inner)) if inner.children.len() == 1 => Some(inner.children[0].clone()),
                Some(root) if root.is_empty() => None,
                _ => return,
            };
            self.totals.pages -= 1;
            self.totals.bytes -= self.root.as_ref().map_or(0, Node::memory);
            self.root = child;
        }
    }
}

fn first_leaf(key: &[u8], value: &[u8], totals: &mut Totals, scratch: &mut Scratch) -> Leaf {
    check_value(value);
    scratch.flat.clear();
    scratch.flat.push(key, value);
    scratch.flat.encode(0..1, &mut scratch.page);
    let leaf = Leaf::new(&scratch.page);
    totals.entries += 1;
    totals.pages += 1;
    totals.bytes += leaf.memory();
    leaf
}

fn check_value(value: &[u8]) {
    assert!(value.len() <= VALUE_BYTES_MAX, "a value of {} bytes, at most {VALUE_BYTES_MAX} are allowed", value.len());
}

/// Recursion is as deep as the tree is high.
fn edit_node<E: Editor>(
    node: &mut Node,
    key: &[u8],
    editor: &mut E,
    totals: &mut Totals,
    scratch: &mut Scratch,
) -> Effect {
    let inner = match node {
        Node::Leaf(leaf) => return edit_leaf(leaf, key, editor, totals, scratch),
        Node::Inner(inner) => Arc::make_mut(inner),
    };
    let child = inner.child_index(key);
    match edit_node(&mut inner.children[child], key, editor, totals, scratch) {
        Effect::Settled => Effect::Settled,
        Effect::Split(splits) => match inner.insert_children(child, splits, totals, scratch) {
            None => Effect::Settled,
            Some(split) => Effect::Split(vec![split]),
        },
        Effect::Shrunk => {
            inner.repair(child, totals, scratch);
            Effect::Shrunk
        }
    }
}

fn edit_leaf<E: Editor>(
    leaf: &mut Leaf,
    key: &[u8],
    editor: &mut E,
    totals: &mut Totals,
    scratch: &mut Scratch,
) -> Effect {
    let before = leaf.memory();
    warm(leaf.bytes());
    let page = leaf.page();
    let found = page.search(key);
    let effect = match (found, editor.edit(found.ok().map(|i| page.value(i)))) {
        (_, Decision::Keep) | (Err(_), Decision::Remove) => return Effect::Settled,
        (Ok(at), Decision::Remove) => {
            totals.entries -= 1;
            remove_entry(leaf, at, scratch);
            Effect::Shrunk
        }
        (Ok(at), Decision::Put(value)) => {
            check_value(value);
            replace(leaf, at, key, value, scratch)
        }
        (Err(at), Decision::Put(value)) => {
            check_value(value);
            totals.entries += 1;
            insert(leaf, at, key, value, scratch)
        }
    };
    totals.bytes = totals.bytes + leaf.memory() - before;
    if let Effect::Split(splits) = &effect {
        totals.pages += splits.len();
        totals.bytes += splits.iter().map(|split| split.node.memory()).sum::<usize>();
    }
    effect
}

fn insert(leaf: &mut Leaf, at: usize, key: &[u8], value: &[u8], scratch: &mut Scratch) -> Effect {
    let page = leaf.page();
    if used_with(page, key, value) <= PAGE_MAX {
        insert_entry(leaf, at, key, value, scratch);
        return Effect::Settled;
    }
    // Keys that arrive in order leave full pages behind: the cut is at the newcomer, not in the middle.
    let in_order = at > 0 && page.hint() == at;
    let first_cut = in_order.then_some(if at == page.count() { at } else { at + 1 });
    split(leaf, at..at, key, value, first_cut, scratch)
}

fn replace(leaf: &mut Leaf, at: usize, key: &[u8], value: &[u8], scratch: &mut Scratch) -> Effect {
    let page = leaf.page();
    let old_len = page.value(at).len();
    if page.count() == 1 || page.used() - old_len + value.len() <= PAGE_MAX {
        replace_value(leaf, at, value, scratch);
        return if value.len() < old_len { Effect::Shrunk } else { Effect::Settled };
    }
    split(leaf, at..at + 1, key, value, None, scratch)
}

/// Bytes that the page would use with one entry more.
fn used_with(page: Page<'_>, key: &[u8], value: &[u8]) -> usize {
    let prefix = page.prefix();
    let common = crate::page::common_prefix_len(prefix, key);
    let lost = prefix.len() - common;
    // A shorter prefix makes each suffix longer by what was lost; three bytes more if its length then takes three.
    let repacked = if lost == 0 { 0 } else { page.count() * (lost + 2) };
    page.used() + repacked + crate::page::SLOT + entry_len(key.len() - common, value.len())
}

/// Packs the page's entries, with those of `replaced` exchanged for the given one, into two or more pages.
fn split(
    leaf: &mut Leaf,
    replaced: Range<usize>,
    key: &[u8],
    value: &[u8],
    first_cut: Option<usize>,
    scratch: &mut Scratch,
) -> Effect {
    let page = leaf.page();
    let flat = &mut scratch.flat;
    flat.clear();
    flat.push_page(page, 0..replaced.start);
    flat.push(key, value);
    flat.push_page(page, replaced.end..page.count());

    let mut cuts = flat.cuts(first_cut);
    let end = flat.len();
    cuts.push(end);
    let mut splits = Vec::with_capacity(cuts.len() - 1);
    flat.encode(0..cuts[0], &mut scratch.page);
    if first_cut == Some(replaced.start + 1) && cuts[0] == replaced.start + 1 {
        crate::page::set_hint(&mut scratch.page, replaced.start + 1);
    }
    leaf.replace(&scratch.page);
    for pair in cuts.windows(2) {
        scratch.flat.encode(pair[0]..pair[1], &mut scratch.page);
        if first_cut == Some(pair[0]) && pair[0] == replaced.start {
            crate::page::set_hint(&mut scratch.page, 1);
        }
        let node = Node::Leaf(Leaf::new(&scratch.page));
        splits.push(Split { separator: scratch.flat.separator(pair[0]).to_vec(), node });
    }
    // The estimate that led here may have been too high by a few bytes: then all fits one page after all.
    if splits.is_empty() { Effect::Settled } else { Effect::Split(splits) }
}
