//! A set of shard numbers, which are at most 31.
use crate::SHARDS_MAX;
use std::fmt;
use std::ops::{BitAnd, BitOr, Sub};

/// Shard numbers of one stripe: 0..k are data, k..k + m parity.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash, PartialOrd, Ord)]
pub struct ShardSet(u32);

impl ShardSet {
    pub const EMPTY: ShardSet = ShardSet(0);

    /// The shards 0..n; n beyond 32 counts as 32.
    pub fn first(n: usize) -> Self {
        if n >= SHARDS_MAX { ShardSet(u32::MAX) } else { ShardSet((1 << n) - 1) }
    }
    /// Bit i is shard i.
    pub fn from_bits(bits: u32) -> Self {
        ShardSet(bits)
    }
    pub fn bits(self) -> u32 {
        self.0
    }
    /// Adds a shard.
    ///
    /// # Panics
    /// When `shard` is 32 or more: no scheme has that many.
    pub fn insert(&mut self, shard: usize) {
        assert!(shard < SHARDS_MAX, "shard {shard}: there are at most {SHARDS_MAX}");
        self.0 |= 1 << shard;
    }
    pub fn remove(&mut self, shard: usize) {
        if shard < SHARDS_MAX {
            self.0 &= !(1 << shard);
        }
    }
    pub fn contains(self, shard: usize) -> bool {
        shard < SHARDS_MAX && self.0 >> shard & 1 != 0
    }
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
    /// The shards, ascending.
    pub fn iter(self) -> impl Iterator<Item = usize> + Clone {
        (0..SHARDS_MAX).filter(move |shard| self.contains(*shard))
    }
}

impl FromIterator<usize> for ShardSet {
    fn from_iter<I: IntoIterator<Item = usize>>(shards: I) -> Self {
        let mut set = ShardSet::EMPTY;
        for shard in shards {
            set.insert(shard);
        }
        set
    }
}

impl BitOr for ShardSet {
    type Output = ShardSet;
    fn bitor(self, other: ShardSet) -> ShardSet {
        ShardSet(self.0 | other.0)
    }
}

impl BitAnd for ShardSet {
    type Output = ShardSet;
    fn bitand(self, other: ShardSet) -> ShardSet {
        ShardSet(self.0 & other.0)
    }
}

impl Sub for ShardSet {
    type Output = ShardSet;
    fn sub(self, other: ShardSet) -> ShardSet {
        ShardSet(self.0 & !other.0)
    }
}

/// `0, 3, 7`, or `none`.
impl fmt::Display for ShardSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("none");
        }
        for (i, shard) in self.iter().enumerate() {
            write!(f, "{}{shard}", if i > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}

impl fmt::Debug for ShardSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_sets() {
        let mut set: ShardSet = [3, 0, 31, 3].into_iter().collect();
        assert_eq!((set.len(), set.to_string().as_str()), (3, "0, 3, 31"));
        set.remove(3);
        set.remove(77);
        assert!(set.contains(31) && !set.contains(3) && !set.contains(77));
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 31]);
        assert_eq!((set - ShardSet::first(1)).iter().collect::<Vec<_>>(), [31]);
        assert_eq!((ShardSet::first(2) | set).len(), 3);
        assert_eq!((ShardSet::first(32) & set, ShardSet::first(99).len()), (set, 32));
        assert_eq!(ShardSet::from_bits(5).bits(), 5);
        assert_eq!(ShardSet::EMPTY.to_string(), "none");
    }
}
