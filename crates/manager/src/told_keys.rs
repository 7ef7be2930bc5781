//! [`ToldKeys`]: refusals of keys that were told lately, so that a node that comes again and again is told once.
use std::collections::BTreeSet;
use std::time::Duration;

use cairn_types::{NodeId, Time};

/// The same refusal is told once in this time.
const TOLD_FOR: Duration = Duration::from_secs(3600);
/// Refusals that are told in it: who has a key would fill the log and the events.
const TOLD_MAX: usize = 64;

/// Refusals that were told lately.
#[derive(Default)]
pub(crate) struct ToldKeys {
    since: Option<Time>,
    pairs: BTreeSet<(NodeId, String)>,
}

impl ToldKeys {
    /// Whether it is to be told now.
    pub(crate) fn is_new(&mut self, node: NodeId, name: &str, now: Time) -> bool {
        if self.since.is_none_or(|since| now.since(since) >= TOLD_FOR) {
            *self = Self { since: Some(now), pairs: BTreeSet::new() };
        }
        self.pairs.len() < TOLD_MAX && self.pairs.insert((node, name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One wrong key would fill the log.
    #[test]
    fn a_refusal_is_told_once() {
        let (mut told, start) = (ToldKeys::default(), Time(7));
        assert!(told.is_new(NodeId(17), "n5", start));
        assert!(!told.is_new(NodeId(17), "n5", start) && told.is_new(NodeId(18), "n5", start));
        assert_eq!((0..1000).filter(|id| told.is_new(NodeId(*id), "n6", start)).count(), TOLD_MAX - 2);
        assert!(told.is_new(NodeId(17), "n5", start + TOLD_FOR));
    }
}
