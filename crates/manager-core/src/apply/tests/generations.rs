//! Disks that come back as older copies of themselves, and what is known of their generations.
use super::*;
use cairn_types::generation::{Generation, Lineage};

/// A start of the `number`-th node with one disk that tells this.
fn start(state: &mut State, number: u32, lineage: &Lineage) -> Vec<DiskId> {
    let mut command = register(number, Roles::DATA, 1);
    command.disks[0].generations = lineage.runs.iter().map(|run| GenerationOf::from(*run)).collect();
    command.disks[0].generation_confirmed = lineage.confirmed;
    command.disks[0].tells_generations = true;
    let command = Command::Register(command);
    assert_eq!(command.level(), 5);
    match ok(state, command) {
        Outcome::Registered(registered) => registered.older,
        other => panic!("{other:?}"),
    }
}

fn rose(state: &mut State, disk: u32, generation: Option<Generation>) {
    let incarnation = state.node(NodeId(15 + disk)).expect("known").incarnation.get();
    let at = DiskGenerationAt { disk, incarnation, generation: generation.map(GenerationOf::from) };
    ok(state, Command::DiskGenerations(DiskGenerations { disks: vec![at] }));
}

fn known(state: &State, disk: u32) -> Option<Generation> {
    state.disk(DiskId(disk)).expect("known").generation
}

/// Two of three data nodes that start from older copies would serve what they lack, and be called healthy.
#[test]
fn older_copies_are_found_at_their_registration() {
    let mut state = cluster(3);
    let pg = make_pg(&mut state, &[1, 2, 3]);
    let mut disks = vec![Lineage::default(); 3];
    for (number, disk) in (0..).zip(&mut disks) {
        disk.start(u64::from(number) + 10);
        assert!(start(&mut state, number, disk).is_empty(), "it never told any before");
        disk.confirmed = 1;
    }
    let copies = disks.clone();
    for (number, disk) in (1..).zip(&mut disks) {
        disk.rise();
        rose(&mut state, number, disk.present());
        assert_eq!(known(&state, number), disk.present());
    }
    // Each restarts in turn, and what it tells follows.
    for (number, disk) in (0..).zip(&mut disks) {
        disk.start(u64::from(number) + 20);
        assert!(start(&mut state, number, disk).is_empty());
        let epoch = state.pg(pg).expect("known").epoch.get();
        let members = vec![MemberAt { pg: pg.get(), disk: number + 1, epoch }];
        ok(&mut state, Command::CaughtUp(CaughtUp { members }));
    }
    assert!(state.pg(pg).expect("known").is_complete());
    let older = |number: u32| {
        let mut copy = copies[number as usize].clone();
        copy.start(u64::from(number) + 30);
        copy
    };
    assert_eq!(start(&mut state, 0, &older(0)), [DiskId(1)]);
    assert_eq!(start(&mut state, 1, &older(1)), [DiskId(2)]);
    assert_eq!(states(&state, pg), [MemberState::Syncing, MemberState::Syncing, MemberState::Serving]);
    let said = crate::problems::problems(&state, &Soft::default(), WallTime(0)).texts().join("\n");
    assert!(said.contains("d1 (/data0/0 on n16)") && said.contains("older copies of themselves"), "{said}");
    assert!(!said.contains("may have lost"), "{said}");
    assert_eq!(start(&mut state, 2, &older(2)), [DiskId(3)]);
    assert_eq!(states(&state, pg), [MemberState::Serving; 3]);
    let said = crate::problems::problems(&state, &Soft::default(), WallTime(0)).texts().join("\n");
    assert!(said.contains("1 placement group (pg1) may have lost what was acknowledged"), "{said}");
    assert!(state.events().any(|event| event.text.contains("d3 (/data2/0 on n18) is an older copy of itself")));
    assert!(state.events().any(|event| event.text.contains("no disk was left")));
    // It goes through a checkpoint.
    let epoch = state.pg(pg).expect("known").epoch;
    let mut reader = crate::checkpoint::Reader::new();
    crate::checkpoint::write(&state, |part| reader.feed(part)).expect("it is read while it is written");
    let back = reader.finish().expect("a whole checkpoint");
    assert!(back == state, "a checkpoint lost something");
    ok(&mut state, Command::CaughtUp(CaughtUp { members: vec![MemberAt { pg: 1, disk: 1, epoch: epoch.get() }] }));
    let pg_now = state.pg(pg).expect("known");
    assert!(!pg_now.older.comparing && pg_now.older.unconfirmed);
    let command = ForcePg { pg: 1, epoch: pg_now.epoch.get(), ..ForcePg::default() };
    assert_eq!(Command::ForcePg(command.clone()).level(), 5);
    ok(&mut state, Command::ForcePg(command));
    let said = crate::problems::problems(&state, &Soft::default(), WallTime(0)).texts().join("\n");
    assert!(!said.contains("older"), "{said}");
}

/// A clone would serve beside its disk, or an old manager go unnoticed.
#[test]
fn clones_and_old_managers_are_told_apart() {
    let mut state = cluster(2);
    let mut disk = Lineage::default();
    disk.start(1);
    start(&mut state, 0, &disk);
    let old = state.clone();
    let mut clone = disk.clone();
    disk.start(2);
    assert!(start(&mut state, 0, &disk).is_empty());
    disk.confirmed = 2;
    clone.start(3);
    assert_eq!(start(&mut state, 0, &clone), [DiskId(1)]);
    assert_eq!(start(&mut state, 0, &disk), [DiskId(1)], "and so is the other one then");
    let mut state = old;
    assert!(start(&mut state, 0, &disk).is_empty());
    assert!(state.disk(DiskId(1)).expect("known").is_ahead);
    let said = crate::problems::problems(&state, &Soft::default(), WallTime(0)).texts().join("\n");
    assert!(said.contains("the managers' state is older"), "{said}");
    // What is late, or of another start, changes nothing.
    let present = known(&state, 1).expect("told");
    for (number, nonce) in [(present.number - 1, present.nonce), (present.number + 9, 77)] {
        rose(&mut state, 1, Some(Generation { number, nonce }));
        assert_eq!(known(&state, 1), Some(present));
    }
    // A build of before generations says nothing about them.
    ok(&mut state, Command::Register(register(0, Roles::DATA, 1)));
    assert_eq!(known(&state, 1), Some(present));
}
