//! Which disks are marked and when, with a model of time: one look each five seconds.
use super::*;
use crate::apply::tests::{cluster, ok};
use crate::command::{Command, ConfigValue, CreatePgs, Disks, NodeAt, NodesDown, SetConfig};
use crate::moves;
use crate::soft::DiskLoad;

const STEP: u64 = 5;

struct Model {
    state: State,
    soft: Soft,
    grayness: Grayness,
    seconds: u64,
}

impl Model {
    /// So many disks with a group of three copies on the first three.
    fn new(disks: u32) -> Self {
        let mut state = cluster(disks);
        let groups = vec![Disks { disks: vec![1, 2, 3], ..Disks::default() }];
        ok(&mut state, Command::CreatePgs(CreatePgs { volume: 1, scheme: 3, groups }));
        let mut soft = Soft::default();
        for disk in state.disks() {
            let (total_bytes, free_bytes) = (1 << 40, 1 << 39);
            soft.disks.insert(disk.id, DiskLoad { total_bytes, free_bytes, latency_us: 2_000, ..DiskLoad::default() });
        }
        Self { state, soft, grayness: Grayness::default(), seconds: 0 }
    }

    fn latency(&mut self, disk: u32, latency_us: u32) {
        self.soft.disks.get_mut(&DiskId(disk)).expect("known").latency_us = latency_us;
    }

    /// Looks for so long; what follows is done. When each disk was marked or cleared.
    fn pass(&mut self, seconds: u64) -> Vec<(u64, Verdict)> {
        let mut found = Vec::new();
        for _ in 0..seconds / STEP {
            self.seconds += STEP;
            for verdict in self.grayness.observe(&self.state, &self.soft, Time(self.seconds * 1_000_000_000)) {
                let command = match &verdict {
                    Verdict::Gray(disk, why) => SetGray { disk: disk.get(), gray: true, why: why.clone() },
                    Verdict::Good(disk) => SetGray { disk: disk.get(), ..SetGray::default() },
                };
                ok(&mut self.state, Command::SetGray(command));
                found.push((self.seconds, verdict));
            }
        }
        found
    }

    fn set(&mut self, key: &str, value: &str) {
        let item = ConfigValue { key: key.into(), value: value.into() };
        ok(&mut self.state, Command::SetConfig(SetConfig { items: vec![item] }));
    }
}

/// With some nodes down nobody could write, although a disk is there that is only slow, or had some bad blocks.
#[test]
fn a_gray_disk_is_used_when_too_few_others_are_left() {
    let mut model = Model::new(9);
    model.latency(2, 400_000);
    let found = model.pass(300);
    assert!(matches!(found.as_slice(), [(_, Verdict::Gray(DiskId(2), _))]), "{found:?}");
    let down = |model: &mut Model, disks: &[u32]| {
        let at = |disk: &u32| {
            let node = model.state.disk(DiskId(*disk)).expect("known").node;
            let incarnation = model.state.node(node).expect("known").incarnation.get();
            NodeAt { node: node.get(), incarnation }
        };
        let nodes = disks.iter().map(at).collect();
        ok(&mut model.state, Command::NodesDown(NodesDown { nodes }));
    };
    down(&mut model, &[4, 5, 6, 7, 8]);
    assert_eq!(model.pass(60), [], "three others are enough for three copies");
    down(&mut model, &[9]);
    assert!(matches!(model.pass(STEP).as_slice(), [(_, Verdict::Good(DiskId(2)))]));
    assert!(model.state.takes_more(DiskId(2)));
    assert_eq!(model.pass(600), [], "slow as it is, it is needed");
}

/// A disk that holds up all writers would stay until it dies; or one that had a bad minute be emptied.
#[test]
fn slow_for_minutes_is_gray_and_a_moment_is_not() {
    let mut model = Model::new(9);
    assert_eq!(model.pass(600), []);
    model.latency(2, 400_000);
    assert_eq!(model.pass(120), []);
    model.latency(2, 2_000);
    assert_eq!(model.pass(60), [], "the good minute counts against the two bad ones");
    model.latency(2, 400_000);
    assert_eq!(model.pass(100), []);
    let found = model.pass(60);
    assert!(matches!(found.as_slice(), [(_, Verdict::Gray(DiskId(2), why))] if why.contains("400 ms")), "{found:?}");
    assert!(!model.state.takes_more(DiskId(2)) && model.state.is_able(DiskId(2)));
    // It is bad now and then: not good again.
    model.latency(2, 2_000);
    assert_eq!(model.pass(20 * 3600), []);
    model.latency(2, 300_000);
    assert_eq!(model.pass(5), []);
    model.latency(2, 2_000);
    assert_eq!(model.pass(23 * 3600), []);
    let found = model.pass(2 * 3600);
    assert!(matches!(found.as_slice(), [(_, Verdict::Good(DiskId(2)))]), "{found:?}");
    assert!(model.state.takes_more(DiskId(2)));
}

/// A busy cluster would lose its disks one after the other: all are slow, or nobody is there to compare with.
#[test]
fn load_on_all_and_single_disks_are_no_evidence() {
    let mut model = Model::new(9);
    for disk in 1..=9 {
        model.latency(disk, 300_000);
    }
    assert_eq!(model.pass(3600), []);
    // Twice as slow, or slow by a standard of flash.
    model.latency(1, 600_000);
    assert_eq!(model.pass(3600), []);
    for disk in 1..=9 {
        model.latency(disk, 100);
    }
    model.latency(1, 20_000);
    assert_eq!(model.pass(3600), []);
    // Nobody else writes.
    model.latency(1, 900_000);
    (2..=9).for_each(|disk| model.latency(disk, 0));
    assert_eq!(model.pass(3600), []);
    let mut small = Model::new(3);
    small.latency(1, 900_000);
    assert_eq!(small.pass(3600), []);
}

/// A new disk would be given up as long as it is filled as fast as it goes.
#[test]
fn a_disk_that_is_filled_is_busy() {
    use crate::command::{ReplaceIn, ReplaceMembers, Swap};
    let mut model = Model::new(9);
    let groups = vec![ReplaceIn { pg: 1, epoch: 1, swaps: vec![Swap { old: 1, new: 4 }] }];
    ok(&mut model.state, Command::BeginMoves(ReplaceMembers { groups }));
    model.latency(4, 900_000);
    assert_eq!(model.pass(3600), []);
}

/// A fault of the network, or of a rack, would take away more disks than the cluster can do without.
#[test]
fn few_are_marked_and_never_one_that_is_needed() {
    let mut model = Model::new(9);
    model.latency(2, 400_000);
    model.latency(3, 400_000);
    assert_eq!(model.pass(3600).len(), 1, "one of eight");
    let mut four = Model::new(4);
    four.latency(4, 400_000);
    assert_eq!(four.pass(3600).len(), 1, "three are left for three copies");
    let mut four = Model::new(4);
    let groups = vec![Disks { disks: vec![1, 2, 3, 4], ..Disks::default() }];
    let scheme = u32::from("r4".parse::<cairn_types::Scheme>().expect("a scheme").code());
    ok(&mut four.state, Command::CreatePgs(CreatePgs { volume: 1, scheme, groups }));
    four.latency(4, 400_000);
    assert_eq!(four.pass(3600), [], "three are too few for four copies");
    let mut off = Model::new(9);
    off.set("gray_after", "0s");
    off.latency(2, 400_000);
    assert_eq!(off.pass(3600), []);
}

/// A disk that loses sectors would be read until it has lost what its group cannot lose.
#[test]
fn bad_blocks_make_gray() {
    let mut model = Model::new(9);
    let tell = |model: &mut Model, bad: u64| {
        model.soft.disks.get_mut(&DiskId(2)).expect("known").bad_blocks = bad;
    };
    tell(&mut model, 1_000);
    assert_eq!(model.pass(60), [], "what was found before this leader looked");
    tell(&mut model, 1_010);
    assert_eq!(model.pass(4000), []);
    tell(&mut model, 1_020);
    assert_eq!(model.pass(60), [], "another hour");
    // Its node starts anew.
    tell(&mut model, 3);
    assert_eq!(model.pass(60), []);
    tell(&mut model, 30);
    let found = model.pass(60);
    assert!(matches!(found.as_slice(), [(_, Verdict::Gray(DiskId(2), why))] if why.contains("found bad")), "{found:?}");
    // An operator who says that it is good would be told otherwise a moment later, by what was found before.
    tell(&mut model, 500);
    assert_eq!(model.pass(60), []);
    ok(&mut model.state, Command::SetGray(SetGray { disk: 2, ..SetGray::default() }));
    assert_eq!(model.pass(600), []);
    tell(&mut model, 516);
    assert_eq!(model.pass(60).len(), 1, "more were found");
}

/// Groups would lose copies because a disk is slow; or two disks be emptied at once.
#[test]
fn it_is_emptied_like_a_drained_disk() {
    let mut model = Model::new(9);
    let gray = |disk: u32, gray: bool| Command::SetGray(SetGray { disk, gray, why: "slow".into() });
    ok(&mut model.state, gray(2, true));
    assert_eq!(model.state.gray_leaving(), Some(DiskId(2)));
    let plan = |model: &Model| moves::plan(&model.state, &model.soft, Time(0), |_| true, 7);
    let begun = plan(&model).groups;
    assert_eq!((begun.len(), begun[0].swaps[0].old), (1, 2));
    model.set("drain_gray_disks", "off");
    assert_eq!((model.state.gray_leaving(), plan(&model).groups), (None, Vec::new()));
    model.set("drain_gray_disks", "on");
    ok(&mut model.state, gray(3, true));
    assert!(!model.state.is_gray(DiskId(3)), "one of eight");
    let text = crate::problems::problems(&model.state, &model.soft, WallTime(0)).texts().join("\n");
    assert!(text.contains("d2") && text.contains("gray: slow") && text.contains("cairn admin disk clear d2"), "{text}");
    // The checkpoint keeps it.
    let mut bytes = Vec::new();
    let written: Result<(), ()> = crate::checkpoint::write(&model.state, |piece| {
        bytes.extend_from_slice(piece);
        Ok(())
    });
    written.expect("nothing fails");
    let mut reader = crate::checkpoint::Reader::new();
    reader.feed(&bytes).expect("whole");
    assert_eq!(reader.finish().expect("whole"), model.state);
    ok(&mut model.state, gray(2, false));
    assert_eq!(plan(&model).groups, Vec::new());
    let again = model.state.apply(WallTime(9), &gray(2, false)).outcome.expect_err("it is not gray");
    assert!(again.message.contains("is not gray"), "{again}");
    model.state.check_invariants();
}
