//! [`OverwriteNumber`]: which overwrite of a chunk was the last one.
//!
//! Numbers of a chunk are given by the primary of its group: the epoch, and a count that goes on over epochs. So two
//! overwrites that were ordered by different primaries never have the same number, and a member that was away with
//! overwrites that nobody else has is told apart from the others.

use cairn_types::Epoch;

/// Number of an overwrite within its chunk. Zero: there was none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct OverwriteNumber {
    /// The group's epoch when it was ordered.
    pub epoch: Epoch,
    /// One more than that of the overwrite before it.
    pub count: u64,
}

impl OverwriteNumber {
    /// No overwrite.
    pub const NONE: Self = Self { epoch: Epoch(0), count: 0 };

    /// Whether there was any.
    pub fn is_some(&self) -> bool {
        self.count > 0
    }

    /// The number after this one in `epoch`.
    pub fn next(&self, epoch: Epoch) -> Self {
        Self { epoch, count: self.count.saturating_add(1) }
    }
}

impl std::fmt::Display for OverwriteNumber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.epoch, self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A newer overwrite would be taken for an older one, and undone.
    #[test]
    fn numbers_rise_over_epochs() {
        let first = OverwriteNumber::NONE.next(Epoch(3));
        let second = first.next(Epoch(3));
        let other = first.next(Epoch(4));
        assert!(OverwriteNumber::NONE < first && first < second && second < other);
        assert_eq!((second.count, other.count), (2, 2));
        assert!(!OverwriteNumber::NONE.is_some() && first.is_some());
        assert_eq!(second.to_string(), "e3.2");
    }
}
