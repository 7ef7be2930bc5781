//! Wrong arguments are errors that say what is wrong, and write nothing.
use crate::codec;
use cairn_erasure::{Codec, ErasureError, Kernel, Role, ShardSet};
use cairn_types::Scheme;

#[test]
fn shapes_that_do_not_exist() {
    for (k, m) in [(0, 1), (1, 0), (0, 0), (32, 1), (30, 3), (usize::MAX, 2), (2, usize::MAX)] {
        assert_eq!(Codec::new(k, m).unwrap_err(), ErasureError::Shape { k, m });
    }
    let copies = Scheme::Replicated(3);
    assert_eq!(Codec::for_scheme(copies).unwrap_err(), ErasureError::NotErasure(copies));
    for kernel in Kernel::ALL.into_iter().filter(|kernel| !kernel.is_available()) {
        assert_eq!(Codec::with_kernel(2, 2, kernel).unwrap_err(), ErasureError::KernelUnavailable { kernel });
    }
    for scheme in Scheme::all().filter(|s| !s.is_replicated()) {
        assert_eq!(Codec::for_scheme(scheme).unwrap().shards(), scheme.members());
    }
}

#[test]
fn wrong_counts_and_lengths_write_nothing() {
    let codec = codec(3, 2);
    let data = vec![vec![1u8; 10]; 3];
    let mut parity = vec![vec![7u8; 10]; 2];
    let count = |role, expected, got| Err(ErasureError::Count { role, expected, got });
    let length = |role, index, expected, got| Err(ErasureError::Length { role, index, expected, got });

    assert_eq!(codec.encode(&data[..2], &mut parity), count(Role::Data, 3, 2));
    assert_eq!(codec.encode(&data, &mut parity[..1]), count(Role::Parity, 2, 1));
    assert_eq!(codec.encode(&vec![vec![1u8; 10]; 1000], &mut parity), count(Role::Data, 3, 1000));
    assert_eq!(codec.encode(&[vec![1; 10], vec![1; 9], vec![1; 10]], &mut parity), length(Role::Data, 1, 10, 9));
    assert_eq!(codec.encode(&data, &mut [vec![0; 10], vec![0; 11]]), length(Role::Parity, 1, 10, 11));
    assert_eq!(codec.encode_add(0, &[1; 9], &mut parity), length(Role::Parity, 0, 9, 10));
    assert_eq!(codec.update_parity(0, &[1; 10], &[1; 9], &mut parity), length(Role::Data, 1, 10, 9));
    assert_eq!(codec.update_parity(0, &[1; 9], &[1; 9], &mut parity), length(Role::Parity, 0, 9, 10));
    assert_eq!(codec.verify(&data, &[vec![0; 10]]), count(Role::Parity, 2, 1));
    assert_eq!(codec.verify(&data, &vec![vec![0; 9]; 2]), length(Role::Parity, 0, 10, 9));
    for index in [3, 4, usize::MAX] {
        let none = Err(ErasureError::NoSuchShard { shard: index, shards: 3 });
        assert_eq!(codec.encode_start(index, &data[0], &mut parity), none);
        assert_eq!(codec.encode_add(index, &data[0], &mut parity), none);
        assert_eq!(codec.update_parity(index, &data[0], &data[1], &mut parity), none);
    }
    assert!(parity.iter().flatten().all(|b| *b == 7), "something was written");
}

#[test]
fn plans_that_cannot_be() {
    let codec = codec(3, 2);
    let present: ShardSet = [0, 4].into_iter().collect();
    let error = codec.decode_plan(present, &[1]).unwrap_err();
    assert_eq!(error, ErasureError::NotEnoughShards { needed: 3, have: 2, present });
    assert_eq!(error.to_string(), "3 shards are needed, only 2 are there (0, 4)");
    let none = ErasureError::NoSuchShard { shard: 5, shards: 5 };
    assert_eq!(codec.decode_plan(ShardSet::first(6), &[1]).unwrap_err(), none);
    assert_eq!(codec.decode_plan(ShardSet::first(5), &[5]).unwrap_err(), none);
    let many = ErasureError::TooManyWanted { wanted: 6, shards: 5 };
    assert_eq!(codec.decode_plan(ShardSet::first(5), &[1; 6]).unwrap_err(), many);
}

#[test]
fn runs_with_wrong_shards() {
    let plan = codec(3, 2).decode_plan([1, 2, 4].into_iter().collect(), &[0, 3]).unwrap();
    let mut outputs = vec![vec![7u8; 4]; 2];
    let count = |role, expected, got| Err(ErasureError::Count { role, expected, got });
    assert_eq!(plan.run(&[[0u8; 4]; 2], &mut outputs), count(Role::Source, 3, 2));
    assert_eq!(plan.run(&[[0u8; 4]; 3], &mut outputs[..1]), count(Role::Output, 2, 1));
    let short = plan.run(&[[0u8; 3]; 3], &mut outputs);
    assert_eq!(short, Err(ErasureError::Length { role: Role::Output, index: 0, expected: 3, got: 4 }));
    assert!(outputs.iter().flatten().all(|b| *b == 7));
    assert_eq!(plan.wanted(), [0, 3]);
}

/// Nothing to do is no error.
#[test]
fn empty_shards_and_empty_wishes() {
    let codec = codec(3, 2);
    codec.encode(&[[0u8; 0]; 3], &mut [[0u8; 0]; 2]).unwrap();
    codec.verify(&[[0u8; 0]; 3], &[[0u8; 0]; 2]).unwrap();
    let plan = codec.decode_plan(ShardSet::first(5), &[]).unwrap();
    plan.run(&[[1u8; 8]; 3], &mut Vec::<Vec<u8>>::new()).unwrap();
    // A wish twice, and one for a shard that is there.
    let data = [[1u8; 8], [2; 8], [3; 8]];
    let mut parity = [[0u8; 8]; 2];
    codec.encode(&data, &mut parity).unwrap();
    let plan = codec.decode_plan([0, 2, 3].into_iter().collect(), &[1, 1, 2, 3]).unwrap();
    let mut outputs = [[0u8; 8]; 4];
    plan.run(&[data[0], data[2], parity[0]], &mut outputs).unwrap();
    assert_eq!(outputs, [data[1], data[1], data[2], parity[0]]);
}
