//! Who has not answered yet, and who of them lags behind the others.
//!
//! A member is slow only compared with its peers: when nobody answers, the cause is elsewhere (this machine, the
//! network), and the deadline of the calls decides.
use cairn_erasure::ShardSet;
use cairn_types::Time;
use std::time::Duration;

/// So long after the others have answered, a member is pinged: one that stands still is reported. With the ping, the
/// manager's probe (0.3 s each) and the opening of a chunk that stays below 2 s.
pub(crate) const STALL: Duration = Duration::from_millis(400);
/// So long after the others a member that answers pings is reported as well: the manager decides whether it is too
/// slow.
pub(crate) const SLOW: Duration = Duration::from_millis(2500);

/// Shards that owe an answer.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    shards: ShardSet,
    /// When all but a few had answered.
    few_since: Option<Time>,
    /// Shards left of which one says "few".
    few: usize,
}

impl Waiting {
    /// All of `shards` were asked; up to `few` of them may be the slow ones.
    pub(crate) fn new(shards: ShardSet, few: usize) -> Self {
        Self { shards, few_since: None, few }
    }
    /// One answered.
    pub(crate) fn answered(&mut self, shard: usize, now: Time) {
        self.shards.remove(shard);
        if self.shards.len() <= self.few && self.few_since.is_none() {
            self.few_since = Some(now);
        }
    }
    pub(crate) fn is_done(&self) -> bool {
        self.shards.is_empty()
    }
    /// Those that lag by so much.
    pub(crate) fn late(&self, now: Time, by: Duration) -> ShardSet {
        match self.few_since {
            Some(since) if now.since(since) >= by => self.shards,
            _ => ShardSet::EMPTY,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stopped member would hold up a write, or a busy machine would get healthy members reported.
    #[test]
    fn only_who_lags_behind_its_peers_is_late() {
        let start = Time(1);
        let mut waiting = Waiting::new(ShardSet::first(5), 2);
        assert!(waiting.late(start + STALL * 10, STALL).is_empty(), "nobody answers: nobody is compared");
        waiting.answered(0, start);
        waiting.answered(1, start);
        waiting.answered(4, start + STALL);
        assert!(waiting.late(start + STALL + STALL / 2, STALL).is_empty());
        assert_eq!(waiting.late(start + STALL * 2, STALL).iter().collect::<Vec<_>>(), [2, 3]);
        waiting.answered(2, start + STALL * 2);
        waiting.answered(3, start + STALL * 2);
        assert!(waiting.is_done() && waiting.late(start + STALL * 9, STALL).is_empty());
    }
}
