//! A member whose directory is an older copy.

use std::path::Path;
use std::sync::Arc;

use cairn_raft::{Mark, Shut, Teller};
use cairn_types::NodeId;

use super::fixture::{Fate, GROUP, Node, PATIENCE, Switch, config, start, wait_for};
use crate::{GroupMarks, HostConfig, HostError, MemberChange, Role};

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &target),
            false => drop(std::fs::copy(entry.path(), target).unwrap()),
        }
    }
}

fn leader(nodes: &[Option<Node>]) -> usize {
    let mut found = None;
    wait_for("a leader", || {
        found = nodes.iter().position(|node| node.as_ref().is_some_and(|node| node.handle.leads()));
        found.is_some()
    });
    found.unwrap()
}

fn add(nodes: &[Option<Node>], count: u64) {
    let mut done = 0;
    while done < count {
        let node = nodes[leader(nodes)].as_ref().unwrap();
        done += u64::from(matches!(node.add(1), Some(Fate::Done(_))));
    }
}

/// A directory that was put back from a copy would vote although it forgot what it acknowledged; or could never be a
/// member again.
#[test]
fn an_older_directory_is_found_out_and_added_anew() {
    let dirs: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let kept = tempfile::tempdir().unwrap();
    let switch: Arc<Switch> = Arc::default();
    let run = |at: usize| Some(start(dirs[at].path(), &switch, config(at as u32 + 1), &[1, 2, 3], 0));
    let mut nodes: Vec<Option<Node>> = (0..3).map(run).collect();
    add(&nodes, 20);
    let old = (leader(&nodes) + 1) % 3;
    nodes[old] = None;
    copy(dirs[old].path(), &kept.path().join("copy"));
    nodes[old] = run(old);
    wait_for("the member takes part", || nodes[old].as_ref().unwrap().handle.status().core.shut.is_none());
    add(&nodes, 20);
    let last = nodes[leader(&nodes)].as_ref().unwrap().handle.applied();
    wait_for("the member has everything", || nodes[old].as_ref().unwrap().handle.applied() >= last);
    nodes[old] = None;
    std::fs::remove_dir_all(dirs[old].path()).unwrap();
    copy(&kept.path().join("copy"), dirs[old].path());
    nodes[old] = run(old);
    let status = |nodes: &[Option<Node>]| nodes[old].as_ref().unwrap().handle.status();
    wait_for("it is told that it is older", || {
        matches!(status(&nodes).core.shut, Some(Shut::Older { by: Teller::Member(_), .. }))
    });
    let told = status(&nodes).trouble(GROUP, NodeId(old as u32 + 1)).unwrap();
    assert!(told.contains("older copy of itself") && told.contains("cairn admin partition renew"), "{told}");
    let node = NodeId(old as u32 + 1);
    for change in [MemberChange::Remove(node), MemberChange::Learner(node), MemberChange::Voter(node)] {
        wait_for("a change of the members", || {
            let handle = &nodes[leader(&nodes)].as_ref().unwrap().handle;
            let core = handle.status().core;
            let done = match change {
                MemberChange::Remove(_) => !core.members.contains(node),
                MemberChange::Learner(_) => core.members.contains(node),
                MemberChange::Voter(_) => core.members.voters.contains(&node),
            };
            // Refused while it has not caught up or another change is under way.
            let _ = if done { Ok(()) } else { handle.change_members(vec![change]) };
            done
        });
    }
    wait_for("it is whole again", || {
        let status = status(&nodes);
        status.core.shut.is_none() && status.core.members.voters.contains(&node)
    });
    add(&nodes, 5);
}

/// Nobody is left who could be asked but the witness: without waiting for it an old copy would lead alone.
#[test]
fn the_only_member_hears_its_witness_first() {
    let dir = tempfile::tempdir().unwrap();
    let patient = || HostConfig { witness_wait: std::time::Duration::from_secs(3600), ..config(1) };
    let mut node = start(dir.path(), &Arc::default(), patient(), &[1], 0);
    wait_for("it leads", || node.handle.leads());
    assert!(matches!(node.add(1), Some(Fate::Done(1))));
    drop(node);
    node = start(dir.path(), &Arc::default(), patient(), &[1], 0);
    assert_eq!(node.handle.status().core.shut, Some(Shut::Checking));
    let ahead = Mark { term: 900, index: 7 };
    node._host.marks().manager_said([(GROUP, ahead)].into());
    wait_for(
        "it is older",
        || matches!(node.handle.status().core.shut, Some(Shut::Older { known, .. }) if known == ahead),
    );
    assert!(!node.handle.leads());
    let (sender, answer) = std::sync::mpsc::channel();
    node._host.accept_loss(GROUP, Box::new(move |result| sender.send(result).unwrap()));
    assert_eq!(answer.recv_timeout(PATIENCE), Ok(Ok(())));
    wait_for("it leads although it is older", || node.handle.leads());
    drop(node);
    node = start(dir.path(), &Arc::default(), patient(), &[1], 0);
    node._host.marks().manager_said([].into());
    wait_for("the manager knows nothing that speaks against it", || node.handle.leads());
}

/// A whole member would be said to have forgotten something, and the wrong one of two be let lead unnoticed.
#[test]
fn a_member_that_is_whole_has_no_loss_to_accept() {
    let dir = tempfile::tempdir().unwrap();
    let (node, ..) = lead_alone(dir.path());
    let term = node.handle.status().core.term;
    let (sender, answer) = std::sync::mpsc::channel();
    node._host.accept_loss(GROUP, Box::new(move |result| sender.send(result).unwrap()));
    let Ok(Err(HostError::Refused(why))) = answer.recv_timeout(PATIENCE) else { panic!("it was taken") };
    assert!(why.contains("no older copy of itself") && why.contains("nothing was done"), "{why}");
    assert!(node.handle.leads() && node.handle.status().core.term == term && !node._host.marks().has_forgotten(GROUP));
}

/// Starts the only member, and gives what it was told of itself as it began to lead.
pub(super) fn lead_alone(dir: &Path) -> (Node, u64, bool) {
    let node = start(dir, &Arc::default(), config(1), &[1], 0);
    node._host.marks().manager_said([].into());
    let mut told = None;
    wait_for("it leads", || {
        let lead = |role: &Role| if let Role::Leader { term, forgot } = role { Some((*term, *forgot)) } else { None };
        told = node.roles.lock().iter().find_map(lead);
        told.is_some()
    });
    let (term, forgot) = told.unwrap();
    (node, term, forgot)
}

/// A process that ends before what was forgotten is made good would be followed by one that gives numbers a second
/// time.
#[test]
fn what_was_accepted_is_known_after_a_new_start() {
    let dir = tempfile::tempdir().unwrap();
    let (mut node, _, forgot) = lead_alone(dir.path());
    assert!(!forgot && matches!(node.add(1), Some(Fate::Done(1))));
    drop(node);
    let patient = HostConfig { witness_wait: std::time::Duration::from_secs(3600), ..config(1) };
    node = start(dir.path(), &Arc::default(), patient, &[1], 0);
    node._host.marks().manager_said([(GROUP, Mark { term: 900, index: 7 })].into());
    wait_for("it is older", || matches!(node.handle.status().core.shut, Some(Shut::Older { .. })));
    let (sender, answer) = std::sync::mpsc::channel();
    node._host.accept_loss(GROUP, Box::new(move |result| sender.send(result).unwrap()));
    assert_eq!(answer.recv_timeout(PATIENCE), Ok(Ok(())));
    drop(node);
    for start in 0..2 {
        let (again, _, forgot) = lead_alone(dir.path());
        assert!(forgot, "start {start}: nothing was recalled");
        drop(again);
    }
    let (node, term, forgot) = lead_alone(dir.path());
    assert!(forgot);
    node.handle.recalled(term);
    wait_for("it is written down", || !node._host.marks().has_forgotten(GROUP));
    drop(node);
    assert!(!lead_alone(dir.path()).2, "it was recalled");
}

/// Whether something was accepted was in the file: a leader would serve as if nothing had been.
#[test]
fn who_has_lost_what_it_wrote_down_counts_as_forgetful() {
    let dir = tempfile::tempdir().unwrap();
    let (node, term, _) = lead_alone(dir.path());
    let file = dir.path().join("marks");
    let written = || node._host.marks().known(GROUP).members.values().any(|mark| mark.term == term) && file.exists();
    wait_for("marks are written down", written);
    drop(node);
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[64] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    for start in 0..2 {
        assert!(lead_alone(dir.path()).2, "start {start}: what was in the file is not known");
    }
    let (node, term, _) = lead_alone(dir.path());
    node.handle.recalled(term);
    wait_for("it is written down", || !node._host.marks().has_forgotten(GROUP));
    drop(node);
    assert!(!lead_alone(dir.path()).2, "it was recalled");
}

/// Members that all lost their memory of others, as with their power, would know nothing: they write it down.
#[test]
fn what_is_known_of_others_is_written_down() {
    let dirs: Vec<_> = (0..2).map(|_| tempfile::tempdir().unwrap()).collect();
    let switch: Arc<Switch> = Arc::default();
    let run = |at: usize| Some(start(dirs[at].path(), &switch, config(at as u32 + 1), &[1, 2], 0));
    let mut nodes: Vec<Option<Node>> = (0..2).map(run).collect();
    add(&nodes, 3);
    let term = nodes[leader(&nodes)].as_ref().unwrap().handle.status().core.term;
    let known = |node: &Node| node._host.marks().known(GROUP);
    let both = |marks: &GroupMarks| marks.members.len() == 2 && marks.members.values().all(|mark| mark.term >= term);
    wait_for("both know of each other", || nodes.iter().flatten().all(|node| both(&known(node))));
    let file = dirs[0].path().join("marks");
    wait_for("it is written", || file.exists());
    nodes.iter_mut().for_each(|node| *node = None);
    let mut again = run(0);
    let marks = known(again.as_ref().unwrap());
    assert!(marks.members.contains_key(&NodeId(2)), "{marks:?}");
    again.take();
}
