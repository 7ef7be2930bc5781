//! Checkpoints of a moment that somebody names.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;

use cairn_env::{Disk, RealDisk};
use cairn_store::{CheckpointSource, CheckpointStore};
use cairn_types::ClusterId;
use cairn_wire::raft::TakeCheckpointRequest;

use super::fixture::{Fate, GROUP, Node, config, start, wait_for};
use crate::host::CHECKPOINT_DIR;
use crate::{Frozen, HostError};

fn freeze(node: &Node) -> Result<Frozen, HostError> {
    let (sender, receiver) = channel();
    node.handle.freeze(Box::new(move |frozen| sender.send(frozen).unwrap()));
    receiver.recv().unwrap()
}

/// Index of the checkpoint that is given for one of an entry, or for one of now.
fn take(node: &Node, index: u64) -> u64 {
    let (sender, receiver) = channel();
    let request = TakeCheckpointRequest { group: GROUP.0, any_member: false, index };
    node._host.take_checkpoint(request, Box::new(move |answer| sender.send(answer).unwrap()));
    receiver.recv().unwrap().unwrap().index
}

/// The sum in a file.
fn sum(dir: &Path, index: u64) -> u64 {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(dir).unwrap());
    let mut file = CheckpointStore::new(disk, CHECKPOINT_DIR, ClusterId::NONE).open(GROUP, index).unwrap();
    let mut sum = [0; 8];
    file.read_exact(&mut sum).unwrap();
    u64::from_le_bytes(sum)
}

/// A backup of several groups would have something of one that came after the moment of all; or its file would be gone
/// before it was fetched.
#[test]
fn what_is_frozen_is_of_that_moment_and_stays() {
    let dir = tempfile::tempdir().unwrap();
    // Large ones take a while to be written, so some are frozen meanwhile.
    let node = start(dir.path(), &Arc::default(), config(1), &[1], 4 << 20);
    wait_for("leadership", || node.handle.leads());
    let mut last = 0;
    for round in 1..=4 {
        for _ in 0..3 {
            let Some(Fate::Done(done)) = node.add(1) else { panic!("it leads") };
            node.handle.checkpoint_soon();
            let frozen = freeze(&node).unwrap();
            assert_eq!(node.add(1), Some(Fate::Done(done + 1)), "it goes on");
            assert!(frozen.index > last && frozen.node.0 == 1);
            assert_eq!(take(&node, frozen.index), frozen.index, "the file of that moment");
            assert_eq!(sum(dir.path(), frozen.index), done, "without what came later");
            last = frozen.index;
        }
        let frozen = freeze(&node).unwrap();
        assert_eq!(freeze(&node).unwrap(), frozen, "nothing came in between");
        for _ in 0..4 {
            node.add(1).unwrap();
            assert!(take(&node, 0) > frozen.index, "a newer one");
        }
        assert_eq!(take(&node, frozen.index), frozen.index, "it stays although newer ones came");
        assert_eq!(sum(dir.path(), frozen.index), round * 10 - 4);
        assert_eq!(take(&node, last), node.handle.applied(), "of one that is gone another one is given");
        last = frozen.index;
    }
}

/// A member that does not lead lacks what was acknowledged elsewhere.
#[test]
fn only_a_leader_freezes() {
    let dir = tempfile::tempdir().unwrap();
    let alone = start(dir.path(), &Arc::default(), config(1), &[1, 2, 3], 0);
    assert!(matches!(freeze(&alone), Err(HostError::Refused(_))));
}
