//! How many groups are made, on which disks, and what is said when none can be.
use super::*;
use crate::apply::Outcome;
use crate::apply::tests::{cluster, ok};
use crate::command::{Command, ConfigValue, CreatePgs, NodeAt, NodesDown, SetConfig, SetPgsOpen};
use crate::soft::DiskLoad;
use cairn_types::{DiskId, NodeId};

fn scheme(text: &str) -> Scheme {
    text.parse().expect("a scheme")
}

fn make(state: &mut State, soft: &Soft, text: &str) -> usize {
    let groups = plan(state, soft, VolumeId(1), scheme(text), 7).expect("a plan");
    let count = groups.len();
    let scheme = u32::from(scheme(text).code());
    if count > 0 {
        ok(state, Command::CreatePgs(CreatePgs { volume: 1, scheme, groups }));
    }
    count
}

fn set(state: &mut State, key: &str, value: &str) {
    let item = ConfigValue { key: key.into(), value: value.into() };
    assert_eq!(ok(state, Command::SetConfig(SetConfig { items: vec![item] })), Outcome::Done);
}

/// Too few groups would leave disks idle, too many would waste memory on every start.
#[test]
fn as_many_as_configured_and_no_more() {
    let (mut state, soft) = (cluster(9), Soft::default());
    assert_eq!(make(&mut state, &soft, "r3"), 12);
    assert_eq!(make(&mut state, &soft, "r3"), 0);
    assert_eq!(make(&mut state, &soft, "r1"), 36, "another scheme has its own");
    for disk in state.disks() {
        assert_eq!(state.pgs_of(disk.id).count(), 8, "{}", disk.id);
    }
    let closed = state.pgs().filter(|pg| pg.members.len() == 3).take(5).map(|pg| pg.id.get()).collect();
    ok(&mut state, Command::SetPgsOpen(SetPgsOpen { open: Vec::new(), closed }));
    assert_eq!(make(&mut state, &soft, "r3"), 5, "full ones are replaced");
    set(&mut state, "pgs_per_volume_max", "3");
    assert_eq!(plan(&state, &soft, VolumeId(1), scheme("r2"), 7).map(|g| g.len()), Ok(3));
}

/// A short outage would multiply the groups; a long one would leave new files with fewer copies than can be had.
#[test]
fn outages_do_not_multiply_groups() {
    let (mut state, soft) = (cluster(9), Soft::default());
    make(&mut state, &soft, "r3");
    let incarnation = |state: &State, n| state.node(NodeId(n)).expect("known").incarnation.get();
    let mut down = |nodes: &[u32]| {
        let nodes = nodes.iter().map(|n| NodeAt { node: *n, incarnation: incarnation(&state, *n) }).collect();
        ok(&mut state, Command::NodesDown(NodesDown { nodes }));
        make(&mut state, &soft, "r3")
    };
    assert_eq!(down(&[16]), 0, "the rest can still be written");
    let made = down(&[17, 18, 19, 20, 21]);
    assert!(made > 0, "groups below the minimum are replaced");
}

/// "No space" without a reason leaves the operator guessing.
#[test]
fn refusals_say_what_is_missing() {
    let (mut state, mut soft) = (cluster(2), Soft::default());
    let error = plan(&state, &soft, VolumeId(1), scheme("r3"), 7).expect_err("two disks");
    assert_eq!(error.code, ErrorCode::NotEnoughDisks);
    assert!(error.message.starts_with("r3 needs 3 disks in service; this cluster has 2"), "{error}");
    let error = plan(&state, &soft, VolumeId(1), scheme("rs-6-3"), 7).expect_err("erasure");
    assert_eq!(error.code, ErrorCode::BadLayout);
    assert!(error.message.starts_with("rs-6-3 needs erasure coding, which this version does not have"), "{error}");
    assert_eq!(plan(&state, &soft, VolumeId(5), scheme("r1"), 7).expect_err("none").code, ErrorCode::UnknownVolume);
    set(&mut state, "disk_reserve", "1g");
    let full = DiskLoad { total_bytes: 1 << 40, free_bytes: 1 << 29, ..DiskLoad::default() };
    soft.disks.insert(DiskId(1), full);
    let error = plan(&state, &soft, VolumeId(1), scheme("r2"), 7).expect_err("full");
    assert_eq!(error.code, ErrorCode::NoSpace);
    assert!(error.message.contains("of 2 in service 1 can be used"), "{error}");
    assert!(plan(&state, &soft, VolumeId(1), scheme("r1"), 7).is_ok_and(|g| !g.is_empty()), "one disk has room");
}

/// A disk that is filled with groups would get more of them for ever.
#[test]
fn a_disk_carries_a_bounded_number() {
    let (mut state, soft) = (cluster(3), Soft::default());
    set(&mut state, "pgs_per_disk_max", "2");
    assert_eq!(make(&mut state, &soft, "r3"), 2);
    assert_eq!(make(&mut state, &soft, "r3"), 0);
}
