//! Checkpoints: golden bytes, damage is noticed, later formats are refused.
use super::*;
use crate::apply::tests::{cluster, empty_cluster, ok};
use crate::command::{
    ActivateLevel, Command, ConfigValue, CreatePgs, Disks, PartitionAt, PartitionsBegun, RevokeKeys, SetConfig,
    SetVolume,
};
use cairn_types::PartitionId;
use proptest::prelude::*;

fn bytes_of(state: &State) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(state, |part| {
        bytes.extend_from_slice(part);
        Ok::<(), ()>(())
    })
    .expect("a vector takes everything");
    bytes
}

fn read(bytes: &[u8]) -> Result<State, CheckpointError> {
    let mut reader = Reader::new();
    reader.feed(bytes)?;
    reader.finish()
}

fn sample() -> State {
    let mut state = cluster(3);
    ok(
        &mut state,
        Command::CreatePgs(CreatePgs {
            volume: 1,
            scheme: 3,
            groups: vec![Disks { disks: vec![1, 2, 3], ..Disks::default() }],
        }),
    );
    let item = ConfigValue { key: "node_timeout".into(), value: "20s".into() };
    ok(&mut state, Command::SetConfig(SetConfig { items: vec![item] }));
    let node = state.partition(PartitionId(1)).expect("the volume's").members[0].get();
    ok(&mut state, Command::PartitionsBegun(PartitionsBegun { members: vec![PartitionAt { partition: 1, node }] }));
    state
}

/// A checkpoint written today would not be read by the next version.
#[test]
fn golden_bytes() {
    let hex: String = bytes_of(&empty_cluster()).iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(
        hex,
        "434149524e4d475201000000000000002e000000644a9e6a0a2c0a1009090909090909090909090909090909120474657374188094ebdc03301038014001480150015801600102000000d5321dfc4001"
    );
    assert_eq!(crc32c(&bytes_of(&sample())), 3_938_222_132, "the bytes of a state with every kind of item changed");
}

/// Keys that were taken away would count again once a manager starts from a checkpoint.
#[test]
fn revoked_names_are_kept() {
    let mut state = sample();
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    ok(&mut state, Command::RevokeKeys(RevokeKeys { names: names(&["bob", "alice"]) }));
    ok(&mut state, Command::RevokeKeys(RevokeKeys { names: names(&["alice", "carol"]) }));
    let read = read(&bytes_of(&state)).expect("a state");
    assert_eq!(read.revoked().map(|(name, _)| name).collect::<Vec<_>>(), ["alice", "bob", "carol"]);
    assert_eq!(read, state);
    assert_ne!(read.revoked_sum(), sample().revoked_sum());
}

/// A member filled by a checkpoint would propose nothing new, or what others do not understand.
#[test]
fn the_feature_level_is_kept() {
    let mut state = sample();
    let before = bytes_of(&state);
    ok(&mut state, Command::ActivateLevel(ActivateLevel { level: 4 }));
    ok(&mut state, Command::ActivateLevel(ActivateLevel { level: 2 }));
    assert_eq!(state.level(), 4, "it never falls");
    assert_eq!(read(&bytes_of(&state)).map(|state| state.level()), Ok(4));
    assert_eq!(read(&before).map(|state| state.level()), Ok(0), "what was written before levels has none");
}

/// A volume would go by the limits of others after a restart.
#[test]
fn settings_of_a_volume_are_kept() {
    let mut state = sample();
    let before = bytes_of(&state);
    let set = |state: &mut State, value: &str| {
        let items = vec![ConfigValue { key: "rebalance_above".into(), value: value.into() }];
        ok(state, Command::SetVolume(SetVolume { name: "default".into(), items }))
    };
    assert!(matches!(set(&mut state, "100"), crate::Outcome::Mistakes(_)));
    assert_eq!(bytes_of(&state), before, "a mistake sets nothing");
    set(&mut state, "80");
    let bytes = bytes_of(&state);
    assert_eq!(crc32c(&bytes), 643_538_920, "the bytes of a volume's settings changed");
    let read = read(&bytes).expect("what was written");
    assert_eq!(read, state);
    assert_eq!(read.volume_by_name("default").expect("there").settings.items()[0].value, "80");
}

/// A node restarted from a checkpoint would hold another state.
#[test]
fn what_is_written_is_read() {
    for state in [State::new(), empty_cluster(), sample()] {
        assert_eq!(read(&bytes_of(&state)), Ok(state));
    }
}

/// Damage that is not noticed would become the cluster's truth.
#[test]
fn every_flipped_bit_and_every_cut_is_noticed() {
    let state = sample();
    let bytes = bytes_of(&state);
    for at in 0..bytes.len() {
        for bit in [0, 3, 7] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            assert!(read(&damaged).is_err(), "bit {bit} of byte {at}");
        }
        assert!(read(&bytes[..at]).is_err(), "cut at {at}");
    }
    let mut longer = bytes.clone();
    longer.push(0);
    assert!(read(&longer).is_err());
}

/// An older build would read a later format wrongly.
#[test]
fn later_formats_are_refused() {
    let mut bytes = bytes_of(&State::new());
    bytes[8] = 2;
    assert_eq!(read(&bytes), Err(CheckpointError::Later { format: 2 }));
}

proptest! {
    /// Foreign bytes would bring a member down.
    #[test]
    fn any_bytes_are_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..400), begin: bool) {
        if begin {
            let head = bytes_of(&State::new());
            bytes.splice(0..0, head[..16].iter().copied());
        }
        prop_assert!(read(&bytes).is_err());
        let _ = Command::from_bytes(&bytes);
    }
}
