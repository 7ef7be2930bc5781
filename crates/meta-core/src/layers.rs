//! The tree of a partition, and what it was when snapshots were taken: [`Layers`] is the only way to change the tree.
//!
//! While a snapshot is the newest one, the first change of a key that snapshots keep (attributes, names, targets,
//! extents, stripe sets, extended attributes) stores what the key was, as an *image* under the snapshot's number.
//! Reading at a snapshot takes the image with the lowest number that is not below the snapshot's, else what is there
//! now: one descent for the image, however many snapshots there are.
//!
//! Invariants: every change of the tree goes through [`Layers`], which saves first (there is no `&mut Tree` outside of
//! it), and removing by prefix saves each key that it removes; an image, once stored under a number, is never changed;
//! a key has an image under a number if and only if it is listed as changed under it. Inodes that were made after a
//! snapshot need no images: their numbers say so. What is not an inode's (key of inode 0), holds, locks, deferrals and
//! open appends are not kept. Not here: which snapshots there are (`snapshots`), reading at one (`at_snapshot`).
use crate::at_snapshot::{At, CursorAt, RangeAt};
use crate::key::{self, Kind};
use cairn_tree::{Tree, Update};
use std::ops::Deref;

/// First byte of an image of a key that was there; its value follows.
const WAS: u8 = 0x10;
/// An image of a key that was not there.
const WAS_NOT: [u8; 1] = [0x11];
pub(crate) const LISTED: [u8; 1] = [0x10];

/// The newest snapshot: what images are saved under.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Layer {
    pub number: u64,
    /// Inodes from this one on were made after it.
    pub inode_next: u64,
}

/// What an image says.
pub(crate) fn read_image(image: &[u8]) -> Option<Option<&[u8]>> {
    match image {
        [WAS, value @ ..] => Some(Some(value)),
        image if image == WAS_NOT => Some(None),
        _ => None,
    }
}

/// Inode of a key that snapshots keep.
#[inline]
pub(crate) fn kept_inode(key: &[u8]) -> Option<u64> {
    let (inode, rest) = key.split_first_chunk::<8>()?;
    let inode = u64::from_be_bytes(*inode);
    (inode != 0 && Kind::is_in_snapshots(*rest.first()?)).then_some(inode)
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Layers {
    tree: Tree,
    newest: Option<Layer>,
    /// Inodes below this one are other partitions', and stand in the tree only as guests.
    first: u64,
    /// Reads are answered as of a snapshot; nothing is written then.
    at: Option<At>,
    image: Vec<u8>,
}

impl From<Tree> for Layers {
    fn from(tree: Tree) -> Self {
        Layers { tree, ..Layers::default() }
    }
}

/// Reading what is there now. What has to work at a snapshot too is below.
impl Deref for Layers {
    type Target = Tree;

    #[inline]
    fn deref(&self) -> &Tree {
        &self.tree
    }
}

impl Layers {
    /// From now on images are saved under this snapshot; `None`: nothing is saved.
    pub fn set_newest(&mut self, newest: Option<Layer>) {
        self.newest = newest;
    }

    /// The first inode that is this partition's own.
    pub fn set_first(&mut self, first: u64) {
        self.first = first;
    }

    /// The tree as it was at a snapshot.
    pub fn as_of(&self, at: At) -> Layers {
        Layers { tree: self.tree.snapshot(), newest: None, first: self.first, at: Some(at), image: Vec::new() }
    }

    /// Inode of the directory of which the snapshot is that is read; 0: of the volume, or none is.
    pub fn root_of_snapshot(&self) -> u64 {
        self.at.map_or(0, |at| at.directory)
    }

    #[inline]
    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        match &self.at {
            None => self.tree.get(key),
            Some(at) => at.get(&self.tree, key),
        }
    }

    #[inline]
    pub fn contains_key(&self, key: &[u8]) -> bool {
        self.get(key).is_some()
    }

    #[inline]
    pub fn cursor(&self) -> CursorAt<'_> {
        match &self.at {
            None => CursorAt::Now(self.tree.cursor()),
            Some(at) => CursorAt::then(&self.tree, *at),
        }
    }

    #[inline]
    pub fn prefix(&self, prefix: &[u8]) -> RangeAt<'_> {
        match &self.at {
            None => RangeAt::Now(self.tree.prefix(prefix)),
            Some(at) => RangeAt::then(&self.tree, *at, prefix),
        }
    }

    /// Stores what a key is, unless the newest snapshot knows it.
    #[inline]
    fn save(&mut self, key: &[u8]) {
        if let Some(newest) = self.newest {
            self.save_under(newest, key);
        }
    }

    fn save_under(&mut self, newest: Layer, key: &[u8]) {
        if kept_inode(key).is_none_or(|inode| inode >= newest.inode_next || inode < self.first)
            || self.has_image(key, newest.number, u64::MAX)
        {
            return;
        }
        self.image.clear();
        match self.tree.get(key) {
            Some(value) => {
                self.image.push(WAS);
                self.image.extend_from_slice(value);
            }
            None => self.image.extend_from_slice(&WAS_NOT),
        }
        self.tree.put(key::image(key, newest.number).as_bytes(), &self.image);
        self.tree.put(key::changed(newest.number, key).as_bytes(), &LISTED);
    }

    /// Whether a key has an image under a number from `first` to `last`.
    pub fn has_image(&self, key: &[u8], first: u64, last: u64) -> bool {
        let found = self.tree.first_at_or_after(key::image(key, first).as_bytes());
        found
            .is_some_and(|entry| key::image_parts(&entry.key()).is_some_and(|(of, number)| of == key && number <= last))
    }

    pub fn put(&mut self, key: &[u8], value: &[u8]) -> bool {
        assert!(self.at.is_none(), "nothing is written into a snapshot");
        self.save(key);
        self.tree.put(key, value)
    }

    pub fn remove(&mut self, key: &[u8]) -> bool {
        assert!(self.at.is_none(), "nothing is written into a snapshot");
        if self.newest.is_some() && self.tree.contains_key(key) {
            self.save(key);
        }
        self.tree.remove(key)
    }

    /// See [`Tree::update`].
    pub fn update(
        &mut self,
        key: &[u8],
        buffer: &mut Vec<u8>,
        mut decide: impl FnMut(Option<&[u8]>, &mut Vec<u8>) -> Update,
    ) {
        if self.newest.is_none() {
            return self.tree.update(key, buffer, decide);
        }
        buffer.clear();
        match decide(self.tree.get(key), buffer) {
            Update::Keep => {}
            Update::Put => drop(self.put(key, buffer)),
            Update::Remove => drop(self.remove(key)),
        }
    }

    pub fn get_mut(&mut self, key: &[u8]) -> Option<&mut [u8]> {
        if self.newest.is_some() && self.tree.contains_key(key) {
            self.save(key);
        }
        self.tree.get_mut(key)
    }

    pub fn remove_prefix(&mut self, prefix: &[u8]) -> u64 {
        if self.newest.is_some() {
            let mut keys = Vec::new();
            let mut range = self.tree.prefix(prefix);
            while let Some((key, _)) = range.next() {
                keys.extend(kept_inode(key).map(|_| key.to_vec()));
            }
            keys.iter().for_each(|key| self.save(key));
        }
        self.tree.remove_prefix(prefix)
    }
}

/// What was decided before a snapshot and is done behind it.
impl Layers {
    /// Changes what a key is in all snapshots with a number above another, as far as they have it otherwise than it is
    /// now. `older`: the newest one that is not above, for which it stays as it was.
    pub fn change_after(
        &mut self,
        key: &[u8],
        after: u64,
        older: Option<Layer>,
        change: impl Fn(Option<&[u8]>) -> Option<Vec<u8>>,
    ) {
        let mut numbers = Vec::new();
        let mut next = after.saturating_add(1);
        while let Some(entry) = self.tree.first_at_or_after(key::image(key, next).as_bytes())
            && let Some((of, number)) = key::image_parts(&entry.key())
            && of == key
        {
            numbers.push(number);
            next = number + 1;
        }
        for (at, number) in numbers.into_iter().enumerate() {
            let Some(image) = self.tree.get(key::image(key, number).as_bytes()).map(<[u8]>::to_vec) else { continue };
            let is_known = |older: &Layer| {
                let is_new = kept_inode(key).is_none_or(|inode| inode >= older.inode_next);
                is_new || self.has_image(key, older.number, after)
            };
            if at == 0
                && let Some(older) = older.filter(|older| !is_known(older))
            {
                self.tree.put(key::image(key, older.number).as_bytes(), &image);
                self.tree.put(key::changed(older.number, key).as_bytes(), &LISTED);
            }
            let changed = match change(read_image(&image).flatten()) {
                Some(value) => [&[WAS], value.as_slice()].concat(),
                None => WAS_NOT.to_vec(),
            };
            self.tree.put(key::image(key, number).as_bytes(), &changed);
        }
    }
}

/// What the deletion of a snapshot does.
impl Layers {
    /// Keys that have images under a number, at most so many, in order.
    pub fn changed_in(&self, number: u64, max: usize) -> Vec<Vec<u8>> {
        let prefix = key::changed_in(number);
        let mut keys = Vec::new();
        let mut range = self.tree.prefix(prefix.as_bytes());
        while keys.len() < max
            && let Some((key, _)) = range.next()
        {
            keys.push(key[prefix.as_bytes().len()..].to_vec());
        }
        keys
    }

    /// The first inode from one on of which a key has an image under a number.
    pub fn next_changed(&self, number: u64, from: u64) -> Option<u64> {
        let found = self.tree.first_at_or_after(key::changed(number, &from.to_be_bytes()).as_bytes())?.key();
        let of = found.strip_prefix(key::changed_in(number).as_bytes())?;
        Some(u64::from_be_bytes(*of.first_chunk::<8>()?))
    }

    /// Takes an image away from a number; it goes to an older snapshot that has to know it and has none.
    pub fn hand_down(&mut self, key: &[u8], number: u64, to: Option<Layer>) {
        let image = self.tree.take(key::image(key, number).as_bytes());
        self.tree.remove(key::changed(number, key).as_bytes());
        let (Some(image), Some(to)) = (image, to) else { return };
        // What was made after the older one, or has been saved for it, it does not need.
        let is_new = kept_inode(key).is_none_or(|inode| inode >= to.inode_next);
        if !is_new && !self.has_image(key, to.number, number) {
            self.tree.put(key::image(key, to.number).as_bytes(), &image);
            self.tree.put(key::changed(to.number, key).as_bytes(), &LISTED);
        }
    }
}
