//! Parity that is built up, changed and verified.
use crate::oracle::{self, shards};
use crate::{codec, schemes};
use cairn_erasure::{ErasureError, ShardSet};

const LENGTH: usize = if cfg!(miri) { 130 } else { 2500 };

/// A writer that adds shards as they fill, in any order, must get the parity of a writer that has them all at once.
#[test]
fn shards_that_come_one_by_one_give_the_same_parity() {
    for (k, m) in schemes() {
        let (codec, data) = (codec(k, m), shards(1, k, LENGTH));
        let expected = oracle::encode(k, m, &data).split_off(k);
        let mut parity = vec![vec![0xEE; LENGTH]; m];
        for (n, shard) in (0..k).rev().enumerate() {
            if n == 0 {
                codec.encode_start(shard, &data[shard], &mut parity).unwrap();
            } else {
                codec.encode_add(shard, &data[shard], &mut parity).unwrap();
            }
        }
        assert_eq!(parity, expected, "rs-{k}-{m}");
    }
}

/// A stripe with fewer columns is a stripe with columns of zeros.
#[test]
fn shards_that_are_not_there_count_as_zeros() {
    let data = shards(2, 4, LENGTH);
    let mut short = vec![vec![0; LENGTH]; 4];
    codec(4, 4).encode(&data, &mut short).unwrap();
    let mut full = vec![vec![0; LENGTH]; 4];
    let padded: Vec<Vec<u8>> = data.iter().cloned().chain(std::iter::repeat_n(vec![0; LENGTH], 6)).collect();
    codec(10, 4).encode(&padded, &mut full).unwrap();
    assert_eq!(short, full);
}

#[test]
fn updates_replace_a_shard() {
    for (k, m) in schemes() {
        let (codec, mut data) = (codec(k, m), shards(3, k, LENGTH));
        let mut parity = vec![vec![0; LENGTH]; m];
        codec.encode(&data, &mut parity).unwrap();
        for shard in 0..k {
            let new = oracle::bytes(shard as u64 + 100, LENGTH);
            codec.update_parity(shard, &data[shard], &new, &mut parity).unwrap();
            data[shard] = new;
            codec.verify(&data, &parity).unwrap();
        }
        assert_eq!(parity, oracle::encode(k, m, &data).split_off(k));
    }
}

/// A flipped bit anywhere in parity or data must not pass.
#[test]
fn verify_finds_any_flipped_bit_and_names_the_parity() {
    let (k, m) = (6, 3);
    let codec = codec(k, m);
    let stripe = oracle::encode(k, m, &shards(4, k, LENGTH));
    codec.verify(&stripe[..k], &stripe[k..]).unwrap();
    for shard in 0..k + m {
        for at in [0, 1, LENGTH / 2, LENGTH - 1] {
            let mut bad = stripe.clone();
            bad[shard][at] ^= 0x10;
            // A wrong data shard spoils all parities, since no factor is zero.
            let parity: ShardSet = if shard < k { (k..k + m).collect() } else { [shard].into_iter().collect() };
            let found = codec.verify(&bad[..k], &bad[k..]);
            assert_eq!(found, Err(ErasureError::ParityMismatch { parity, offset: at }));
        }
    }
    let mut bad = stripe.clone();
    bad[7][LENGTH - 1] ^= 1;
    bad[8][3] ^= 1;
    let error = codec.verify(&bad[..k], &bad[k..]).unwrap_err();
    assert_eq!(error.to_string(), "shard 7, 8: parity does not fit the data, first at byte 3");
}
