//! [`Doubts`]: whose nodes know of what the managers' state never gave: one stolen key does not stop the cluster.
//!
//! A state that was put back from a copy is found out by all nodes within a second: each was told more than it has. So
//! what nodes of one key say alone is believed only where nobody else is there to say it. Until somebody else was
//! heard, nothing is changed; whoever is heard and knows of nothing else ends that, once for each key that doubts.
//! Invariant: what two keys say is believed. Without keys one word is enough, and that of a manager. Not here: what
//! follows (`ops/restored.rs`).
use std::collections::BTreeSet;

/// Keys whose nodes doubt, in one leadership: two at most, for then it is believed.
#[derive(Default, Debug)]
pub(crate) struct Doubts {
    keys: BTreeSet<String>,
    /// Nodes of another key know of nothing, since the last key that doubts came.
    settled: bool,
}

impl Doubts {
    /// A node of this key knows more. Returns whether it is believed.
    pub(crate) fn doubt(&mut self, key: &str, is_alone: bool) -> bool {
        if self.keys.insert(key.to_owned()) {
            self.settled = false;
        }
        self.keys.len() > 1 || is_alone
    }

    /// A node of this key knows no more than the state.
    pub(crate) fn agree(&mut self, key: &str) {
        self.settled |= !self.keys.contains(key);
    }

    /// Whether somebody else has to be heard before anything is changed.
    pub(crate) fn hold(&self) -> bool {
        !self.keys.is_empty() && !self.settled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One stolen key would stop the cluster, as often as its holder likes; or a state that was put back go on.
    #[test]
    fn two_keys_are_believed() {
        let mut doubts = Doubts::default();
        doubts.agree("d1");
        assert!(!doubts.hold());
        assert!(!doubts.doubt("d2", false) && doubts.hold(), "somebody else is asked first");
        doubts.agree("d2");
        assert!(doubts.hold(), "the same key");
        doubts.agree("d1");
        assert!(!doubts.hold());
        assert!(!doubts.doubt("d2", false) && !doubts.hold(), "once for each key");
        assert!(doubts.doubt("d1", false), "and another one");
        assert!(Doubts::default().doubt("d1", true), "nobody else is there");
    }
}
