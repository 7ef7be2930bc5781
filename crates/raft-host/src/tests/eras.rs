//! Groups whose state was put back from a checkpoint, and what members of before may do.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;

use cairn_env::{Disk, RealDisk};
use cairn_format::checkpoint::CheckpointHeader;
use cairn_store::{CheckpointSource, CheckpointStore, HardState, Record, Wal, WalConfig};
use cairn_types::{ClusterId, first_term};
use cairn_wire::raft::TakeCheckpointRequest;

use super::fixture::{Fate, GROUP, Node, Switch, config, start, wait_for};
use super::older::lead_alone;
use crate::HostError;
use crate::host::{CHECKPOINT_DIR, LOG_DIR};

const ERA: u64 = 1_795_000_000;

fn checkpoints(dir: &Path) -> CheckpointStore {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(dir).unwrap());
    CheckpointStore::new(disk, CHECKPOINT_DIR, ClusterId::NONE)
}

/// Asks for a checkpoint; index and term of the file, and whether a leader gave it.
fn take(node: &Node, any_member: bool) -> Option<(u64, u64, bool)> {
    let (sender, receiver) = channel();
    let request = TakeCheckpointRequest { group: GROUP.0, any_member, index: 0 };
    node._host.take_checkpoint(request, Box::new(move |result| sender.send(result).unwrap()));
    let answer: Result<_, HostError> = receiver.recv().unwrap();
    answer.ok().filter(|answer| answer.taken).map(|answer| (answer.index, answer.term, answer.led))
}

/// Puts the newest checkpoint of one directory into another one, in a later era, for that member alone.
fn restore(from: &Path, to: &Path, member: u32) {
    let source = checkpoints(from);
    let index = source.indices(GROUP).unwrap()[0];
    let mut file = source.open(GROUP, index).unwrap();
    let mut state = vec![0; usize::try_from(CheckpointSource::len(&file)).unwrap()];
    file.read_exact(&mut state).unwrap();
    let (index, term) = (index + (1 << 32), first_term(ERA));
    let header = CheckpointHeader {
        index,
        term,
        voters: vec![u64::from(member)],
        learners: Vec::new(),
        ..file.header().clone()
    };
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(to).unwrap());
    checkpoints(to).write(header, |sink| cairn_store::CheckpointSink::write(sink, &state)).unwrap();
    let (wal, _) = Wal::open(disk, WalConfig::new(LOG_DIR, config(member).log)).unwrap();
    let hard = HardState { term, vote: 0, commit: index };
    wal.append(vec![Record::Reset { group: GROUP, index, term }, Record::HardState { group: GROUP, state: hard }])
        .unwrap();
}

/// A backup would lack what was acknowledged before it was asked for, or come from a member that only follows.
#[test]
fn a_taken_checkpoint_has_all_that_was_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), &Arc::default(), config(1), &[1], 0);
    wait_for("leadership", || node.handle.leads());
    for round in 1..=3u64 {
        assert_eq!(node.add(5), Some(Fate::Done(5 * round)));
        let applied = node.handle.applied();
        let (index, _, led) = take(&node, false).unwrap();
        assert!(index >= applied && led);
        let mut file = checkpoints(dir.path()).open(GROUP, index).unwrap();
        let mut sum = [0; 8];
        file.read_exact(&mut sum).unwrap();
        assert_eq!(u64::from_le_bytes(sum), 5 * round);
        assert_eq!(take(&node, false), Some((index, file.header().term, true)), "nothing new: the same file");
    }
    // Of three, two that are silent make the third one no leader.
    let (other, switch) = (tempfile::tempdir().unwrap(), Arc::default());
    let alone = start(other.path(), &switch, config(1), &[1, 2, 3], 0);
    assert_eq!(take(&alone, false), None);
    assert_eq!(take(&alone, true).map(|(.., led)| led), Some(false));
}

/// More generations than two would not be kept, or the log be lost for the older one of two.
#[test]
fn as_many_generations_as_configured_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = config(1);
    settings.checkpoint_generations = 4;
    let node = start(dir.path(), &Arc::default(), settings, &[1], 0);
    wait_for("leadership", || node.handle.leads());
    let mut taken = Vec::new();
    for number in 1..=6 {
        node.add(number).unwrap();
        taken.push(take(&node, false).unwrap().0);
    }
    taken.reverse();
    assert_eq!(checkpoints(dir.path()).indices(GROUP).unwrap(), taken[..4]);
}

/// Members of before a restore would outvote the restored one, or mix their log with its.
#[test]
fn members_of_before_stop_and_the_restored_one_goes_on() {
    let dirs: Vec<_> = (0..4).map(|_| tempfile::tempdir().unwrap()).collect();
    let switch = Arc::<Switch>::default();
    let launch = |at: usize, member: u32| start(dirs[at].path(), &switch, config(member), &[1, 2, 3], 100);
    let old: Vec<Node> = (0..3).map(|at| launch(at, at as u32 + 1)).collect();
    // On a busy machine one may stop leading at any time; what was begun under it counts as well or not.
    let (mut leader, mut sum) = (0, 0);
    wait_for("a backup of what was acknowledged", || {
        let Some(leads) = old.iter().position(|node| node.handle.leads()) else { return false };
        let Some(Fate::Done(done)) = old[leads].add(40) else { return false };
        (leader, sum) = (leads, done);
        take(&old[leader], false).is_some()
    });
    restore(dirs[leader].path(), dirs[3].path(), 1);
    // Acknowledged after the backup: the restored state does not have it, and must not get it by halves.
    let mut more = 0;
    wait_for("more", || {
        let leads = old.iter().find(|node| node.handle.leads());
        more += u32::from(leads.is_some_and(|node| matches!(node.add(1), Some(Fate::Done(_)))));
        more == 20
    });
    drop(old);
    let restored = launch(3, 1);
    wait_for("leadership", || restored.handle.leads());
    assert_eq!(restored.add(2), Some(Fate::Done(sum + 2)));
    let stale: Vec<Node> = [1, 2].map(|at| launch(at, at as u32 + 1)).into_iter().collect();
    wait_for("both to stop", || stale.iter().all(|node| node.handle.status().failure.is_some()));
    for node in &stale {
        assert!(node.handle.status().failure.unwrap().contains("superseded"));
        assert!(!node.handle.leads() && node.add(1).is_none_or(|fate| matches!(fate, Fate::Dropped(_))));
    }
    assert!(restored.handle.status().failure.is_none());
    assert_eq!(restored.add(1), Some(Fate::Done(sum + 3)));
    // And it still knows after a restart.
    drop(restored);
    let restored = launch(3, 1);
    wait_for("leadership", || restored.handle.leads());
    assert_eq!(restored.add(1), Some(Fate::Done(sum + 4)));
}

/// A partition that was put back from a backup would give numbers again that came after that: names elsewhere would
/// lead to other files than before.
#[test]
fn a_state_that_was_put_in_place_has_forgotten_what_came_later() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let node = start(from.path(), &Arc::default(), config(1), &[1], 0);
    wait_for("leadership", || node.handle.leads());
    node.add(4).unwrap();
    take(&node, false).unwrap();
    drop(node);
    restore(from.path(), to.path(), 1);
    let (node, _, forgot) = lead_alone(to.path());
    assert!(forgot && matches!(node.add(1), Some(Fate::Done(5))));
    drop(node);
    let (node, term, forgot) = lead_alone(to.path());
    assert!(forgot, "nothing was made good before the process ended");
    node.handle.recalled(term);
    wait_for("it is written down", || !node._host.marks().has_forgotten(GROUP));
    drop(node);
    assert!(!lead_alone(to.path()).2, "it was made good");
    assert!(!lead_alone(from.path()).2, "its own state is none that was put there");
}
