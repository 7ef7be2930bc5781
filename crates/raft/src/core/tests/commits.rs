//! How members hear what is committed: with the next entries, a moment later, or with a tick.

use std::collections::BTreeMap;

use bytes::Bytes;
use cairn_types::{NodeId, Time};

use super::member::{Durable, GROUP};
use crate::{CoreConfig, GroupCore, Input, Output, Position};

/// Three members whose messages arrive and whose disks write at once.
struct Three {
    cores: BTreeMap<NodeId, GroupCore>,
    now: Time,
    sent: usize,
}

impl Three {
    fn new() -> Self {
        let voters = [NodeId(1), NodeId(2), NodeId(3)];
        let core = |node| {
            let (restored, _) = Durable::bootstrapped(&voters).restored();
            (node, GroupCore::new(CoreConfig::new(node, GROUP), restored, Time(0)))
        };
        let mut three = Self { cores: voters.map(core).into(), now: Time(0), sent: 0 };
        three.step(NodeId(1), Input::Campaign);
        assert!(three.leader().is_leader());
        three.step(NodeId(1), Input::TellCommit);
        three
    }

    fn leader(&mut self) -> &mut GroupCore {
        self.cores.get_mut(&NodeId(1)).expect("it is there")
    }

    fn step(&mut self, at: NodeId, input: Input) {
        let mut out = Vec::new();
        let core = self.cores.get_mut(&at).expect("it is there");
        core.step(self.now, input, &mut out).expect("taken");
        self.carry_out(at, out);
    }

    fn propose(&mut self) -> Position {
        let (now, mut out) = (self.now, Vec::new());
        let at = self.leader().propose(now, Bytes::from_static(b"x"), &mut out).expect("taken");
        self.carry_out(NodeId(1), out);
        at
    }

    fn carry_out(&mut self, at: NodeId, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Persist { number, .. } => self.step(at, Input::Persisted(number)),
                Output::Send(message) => {
                    self.sent += 1;
                    let to = NodeId(u32::try_from(message.to).expect("a node"));
                    self.step(to, Input::Message(message));
                }
                _ => {}
            }
        }
    }

    fn applied(&self) -> [u64; 3] {
        [1, 2, 3].map(|node| self.cores[&NodeId(node)].applied().index)
    }

    /// Messages since this was asked last.
    fn sent(&mut self) -> usize {
        std::mem::take(&mut self.sent)
    }
}

/// Each entry would cost twice the messages; or members that follow stay behind until the next one.
#[test]
fn commits_are_told_with_entries_or_a_moment_later() {
    let mut three = Three::new();
    assert!(!three.leader().has_commit_to_tell());
    three.sent();
    let first = three.propose().index;
    assert_eq!(three.sent(), 4, "two members get the entry and answer");
    assert_eq!(three.applied(), [first, first - 1, first - 1]);
    assert!(three.leader().has_commit_to_tell());
    let second = three.propose().index;
    assert_eq!((three.sent(), three.applied()), (4, [second, first, first]), "the next entry tells it");
    three.step(NodeId(1), Input::TellCommit);
    assert_eq!((three.sent(), three.applied()), (4, [second; 3]));
    assert!(!three.leader().has_commit_to_tell());
    three.step(NodeId(1), Input::TellCommit);
    assert_eq!(three.sent(), 0, "nothing is new");
    let third = three.propose().index;
    three.step(NodeId(1), Input::Tick);
    assert_eq!(three.applied(), [third; 3], "a host that says nothing");
}
