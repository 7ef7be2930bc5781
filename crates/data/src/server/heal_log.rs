//! Which lines about bad blocks the log has already: readers have a block tried several times a second, and a person
//! needs to be told once in a while.
//!
//! Invariant: the same is said of one block at most once in the time that it was made with; no more than [`BLOCKS_MAX`]
//! are remembered.

use std::collections::BTreeMap;
use std::time::Duration;

use cairn_types::{ChunkId, DiskId, Time};

/// The same is logged of a block again after this time.
pub(super) const AGAIN_AFTER: Duration = Duration::from_secs(60);
const BLOCKS_MAX: usize = 4096;

/// What is said of a block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Heard {
    Report,
    NotHealed,
    Unreadable,
}

/// Lines about single blocks, and when they were logged.
pub(super) struct HealLog {
    again_after: Duration,
    at: BTreeMap<(DiskId, ChunkId, u32, Heard), Time>,
}

impl HealLog {
    /// One in which the same is news again after this time.
    pub(super) fn new(again_after: Duration) -> Self {
        Self { again_after, at: BTreeMap::new() }
    }

    /// Whether it is to be logged now; it counts as logged then.
    pub(super) fn is_news(&mut self, what: (DiskId, ChunkId, u32, Heard), now: Time) -> bool {
        if self.at.get(&what).is_some_and(|at| now.since(*at) < self.again_after) {
            return false;
        }
        if self.at.len() >= BLOCKS_MAX {
            let again_after = self.again_after;
            self.at.retain(|_, at| now.since(*at) < again_after);
        }
        // So much damage at once is in the log well enough.
        if self.at.len() >= BLOCKS_MAX {
            return false;
        }
        self.at.insert(what, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_types::PgId;

    /// One bad block would fill the log while somebody waits for it.
    #[test]
    fn a_block_is_named_once_a_minute() {
        let mut log = HealLog::new(AGAIN_AFTER);
        let line = |block, heard| (DiskId(1), ChunkId { pg: PgId(1), index: 1 }, block, heard);
        let start = Time::default();
        assert!(log.is_news(line(1, Heard::NotHealed), start));
        assert!(!log.is_news(line(1, Heard::NotHealed), start + AGAIN_AFTER / 2));
        assert!(log.is_news(line(1, Heard::Report), start) && log.is_news(line(2, Heard::NotHealed), start));
        assert!(log.is_news(line(1, Heard::NotHealed), start + AGAIN_AFTER));
        let logged = (10..10_000).filter(|block| log.is_news(line(*block, Heard::Report), start)).count();
        assert!(logged < BLOCKS_MAX && log.at.len() == BLOCKS_MAX, "{logged}");
        assert!(log.is_news(line(7, Heard::Report), start + AGAIN_AFTER * 2) && log.at.len() < BLOCKS_MAX);
    }
}
