//! Reading the tree of a partition as it was at a snapshot: single keys, cursors and ranges that find images before
//! what is there now.
//!
//! Inode numbers of a snapshot are numbers of their own outside of this file: the lower 48 bits are the inode's, the
//! upper 16 say which snapshot (`view`). Keys come with them and go with them, so what is built on the tree knows
//! nothing of it; in values they are put where values are decoded.
//!
//! A step of a cursor costs a descent for the image, one for what is there, one for the value, and passes over what
//! came later one by one. It stays within the inode where it was set. Entries of inode 0 are those of now.
use crate::key::{self, INODE_BITS};
use crate::layers::{kept_inode, read_image};
use cairn_tree::{Cursor, Range, Tree};

/// A snapshot that is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct At {
    pub number: u64,
    /// Inodes from this one on were made after it.
    pub inode_next: u64,
    /// The upper bits of inode numbers by which it is asked.
    pub outward: u64,
    /// Index of the log entry that cut it, in a volume of several partitions.
    pub cut: u64,
    /// Inode of the directory that it is of; 0: of the volume.
    pub directory: u64,
}

/// Where the entry behind or before a place was found: its key as it is stored.
type Found = Option<Vec<u8>>;

impl At {
    /// The key as it is stored; `None` if nothing of this snapshot has it.
    fn inward(&self, key: &[u8]) -> Option<Vec<u8>> {
        let (inode, rest) = key.split_first_chunk::<8>()?;
        let inode = u64::from_be_bytes(*inode);
        if inode != 0 && inode >> INODE_BITS != self.outward >> INODE_BITS {
            return None;
        }
        let inner = inode & ((1 << INODE_BITS) - 1);
        Some([inner.to_be_bytes().as_slice(), rest].concat())
    }

    /// The key as it is asked for.
    fn outward(&self, mut key: Vec<u8>) -> Vec<u8> {
        if let Some((inode, _)) = key.split_first_chunk_mut::<8>() {
            let number = u64::from_be_bytes(*inode);
            *inode = (if number == 0 { 0 } else { number | self.outward }).to_be_bytes();
        }
        key
    }

    pub fn get<'a>(&self, tree: &'a Tree, key: &[u8]) -> Option<&'a [u8]> {
        self.stored(tree, &self.inward(key)?)
    }

    /// The value of a key that is as it is stored.
    fn stored<'a>(&self, tree: &'a Tree, key: &[u8]) -> Option<&'a [u8]> {
        let Some(inode) = kept_inode(key) else {
            // Of what is not kept an inode of a snapshot has nothing.
            return if key.starts_with(&[0; 8]) { tree.get(key) } else { None };
        };
        if inode >= self.inode_next {
            return None;
        }
        let image = tree.first_at_or_after(key::image(key, self.number).as_bytes());
        let image = image.filter(|entry| key::image_parts(&entry.key()).is_some_and(|(of, _)| of == key));
        match image {
            // What no version wrote is no entry; the check of the partition finds it.
            Some(entry) => read_image(entry.value()).flatten(),
            None => tree.get(key),
        }
    }

    /// The first entry of the same inode at or after a stored key. Others are not looked through: all behind it may be
    /// newer.
    fn first(&self, tree: &Tree, from: &[u8]) -> Found {
        let mut from = from.to_vec();
        loop {
            let now = tree.first_at_or_after(&from).map(|entry| entry.key());
            let image = first_with_image(tree, &from);
            let next = match (now, image) {
                (Some(now), Some(image)) => now.min(image),
                (now, image) => now.or(image)?,
            };
            if next.get(..8) != from.get(..8) {
                return None;
            }
            if self.stored(tree, &next).is_some() {
                return Some(next);
            }
            from = next;
            from.push(0);
        }
    }

    /// The last entry of the same inode before a stored key.
    fn last_before(&self, tree: &Tree, before: &[u8]) -> Found {
        let mut before = before.to_vec();
        loop {
            let now = tree.last_before(&before).map(|entry| entry.key());
            let image = tree.last_before(key::images_from(&before).as_bytes());
            let image = image.and_then(|entry| Some(key::image_parts(&entry.key())?.0.to_vec()));
            let next = match (now, image) {
                (Some(now), Some(image)) => now.max(image),
                (now, image) => now.or(image)?,
            };
            if next.get(..8) != before.get(..8) {
                return None;
            }
            if self.stored(tree, &next).is_some() {
                return Some(next);
            }
            before = next;
        }
    }
}

/// The first key at or after `from` that has an image.
fn first_with_image(tree: &Tree, from: &[u8]) -> Found {
    let mut place = key::images_from(from);
    loop {
        let found = tree.first_at_or_after(place.as_bytes())?.key();
        let (of, _) = key::image_parts(&found)?;
        if of >= from {
            return Some(of.to_vec());
        }
        // Images of the key before come behind those places that are behind the key.
        place = key::image(of, u64::MAX);
    }
}

/// A cursor over the tree as it is now, or as it was.
#[allow(clippy::large_enum_variant)] // The large one is what nearly all are; none is kept.
pub(crate) enum CursorAt<'a> {
    Now(Cursor<'a>),
    Then { tree: &'a Tree, at: At, stored: Vec<u8>, key: Vec<u8>, value: &'a [u8] },
}

impl<'a> CursorAt<'a> {
    pub fn then(tree: &'a Tree, at: At) -> Self {
        CursorAt::Then { tree, at, stored: Vec::new(), key: Vec::new(), value: &[] }
    }

    #[inline]
    pub fn seek(&mut self, from: &[u8]) -> bool {
        match self {
            CursorAt::Now(cursor) => cursor.seek(from),
            CursorAt::Then { tree, at, .. } => {
                let found = at.inward(from).and_then(|from| at.first(tree, &from));
                self.stand_on(found)
            }
        }
    }

    #[inline]
    pub fn seek_before(&mut self, before: &[u8]) -> bool {
        match self {
            CursorAt::Now(cursor) => cursor.seek_before(before),
            CursorAt::Then { tree, at, .. } => {
                let found = at.inward(before).and_then(|before| at.last_before(tree, &before));
                self.stand_on(found)
            }
        }
    }

    #[inline]
    pub fn seek_first(&mut self) -> bool {
        match self {
            CursorAt::Now(cursor) => cursor.seek_first(),
            CursorAt::Then { tree, at, .. } => {
                let found = at.first(tree, &[]);
                self.stand_on(found)
            }
        }
    }

    #[inline]
    pub fn advance(&mut self) -> bool {
        match self {
            CursorAt::Now(cursor) => cursor.advance(),
            CursorAt::Then { tree, at, stored, .. } => {
                stored.push(0);
                let found = at.first(tree, stored);
                self.stand_on(found)
            }
        }
    }

    #[inline]
    pub fn key(&self) -> &[u8] {
        match self {
            CursorAt::Now(cursor) => cursor.key(),
            CursorAt::Then { key, .. } => key,
        }
    }

    #[inline]
    pub fn value(&self) -> &'a [u8] {
        match self {
            CursorAt::Now(cursor) => cursor.value(),
            CursorAt::Then { value, .. } => value,
        }
    }

    fn stand_on(&mut self, found: Found) -> bool {
        let CursorAt::Then { tree, at, stored, key, value } = self else { return false };
        let entry = found.and_then(|found| Some((at.stored(tree, &found)?, found)));
        let is_there = entry.is_some();
        let (at_value, at_key) = entry.unwrap_or_default();
        *value = at_value;
        *key = at.outward(at_key.clone());
        *stored = at_key;
        is_there
    }
}

/// Entries with a prefix, as they are now or were.
#[allow(clippy::large_enum_variant)] // As above.
pub(crate) enum RangeAt<'a> {
    Now(Range<'a>),
    Then { cursor: CursorAt<'a>, prefix: Vec<u8>, begun: bool },
}

impl<'a> RangeAt<'a> {
    pub fn then(tree: &'a Tree, at: At, prefix: &[u8]) -> Self {
        RangeAt::Then { cursor: CursorAt::then(tree, at), prefix: prefix.to_vec(), begun: false }
    }

    #[allow(clippy::should_implement_trait)] // As of the tree: an entry borrows from the range.
    pub fn next(&mut self) -> Option<(&[u8], &'a [u8])> {
        match self {
            RangeAt::Now(range) => range.next(),
            RangeAt::Then { cursor, prefix, begun } => {
                let found = if std::mem::replace(begun, true) { cursor.advance() } else { cursor.seek(prefix) };
                (found && cursor.key().starts_with(prefix)).then(|| (cursor.key(), cursor.value()))
            }
        }
    }
}
