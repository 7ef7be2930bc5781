//! Every pattern of losses of every scheme.
use crate::oracle::{self, shards};
use crate::{codec, schemes};
use cairn_erasure::ShardSet;

/// Odd, so that vectors and a tail are used.
const LENGTH: usize = if cfg!(miri) { 70 } else { 203 };

/// A pattern that cannot be decoded, or is decoded wrong, is data lost although m members or fewer are gone.
#[test]
fn any_m_losses_are_repaired() {
    for (k, m) in schemes() {
        if cfg!(miri) && k > 4 {
            continue;
        }
        let codec = codec(k, m);
        let stripe = oracle::encode(k, m, &shards(7, k, LENGTH));
        let mut patterns = 0;
        for lost in (0u32..1 << (k + m)).filter(|lost| lost.count_ones() as usize <= m) {
            let lost = ShardSet::from_bits(lost);
            let present = ShardSet::first(k + m) - lost;
            let wanted: Vec<usize> = lost.iter().collect();
            let plan = codec.decode_plan(present, &wanted).unwrap();
            assert_eq!(plan.sources().len(), k);
            assert!(plan.sources().iter().all(|s| present.contains(*s)));
            let sources: Vec<&[u8]> = plan.sources().iter().map(|s| &stripe[*s][..]).collect();
            let mut outputs = vec![vec![0xEE; LENGTH]; wanted.len()];
            plan.run(&sources, &mut outputs).unwrap();
            for (shard, output) in wanted.iter().zip(&outputs) {
                assert_eq!(output, &stripe[*shard], "rs-{k}-{m}, lost {lost}: shard {shard}");
            }
            patterns += 1;
        }
        let expected: u64 = (0..=m as u64).map(|lost| binomial((k + m) as u64, lost)).sum();
        assert_eq!(patterns, expected);
    }
}

/// Repair reads k shards of the caller's choice: any k, not only those that a loss leaves.
#[test]
fn any_k_shards_give_every_shard() {
    for (k, m) in schemes() {
        if cfg!(miri) && k > 3 {
            continue;
        }
        let codec = codec(k, m);
        let length = 67;
        let stripe = oracle::encode(k, m, &shards(8, k, length));
        let wanted: Vec<usize> = (0..k + m).rev().collect();
        for present in (0u32..1 << (k + m)).filter(|present| present.count_ones() as usize == k) {
            let plan = codec.decode_plan(ShardSet::from_bits(present), &wanted).unwrap();
            let sources: Vec<&[u8]> = plan.sources().iter().map(|s| &stripe[*s][..]).collect();
            let mut outputs = vec![vec![0; length]; wanted.len()];
            plan.run(&sources, &mut outputs).unwrap();
            for (shard, output) in wanted.iter().zip(&outputs) {
                assert_eq!(output, &stripe[*shard], "rs-{k}-{m}, present {present:b}: shard {shard}");
            }
        }
    }
}

/// Decoding by elimination of the whole matrix, which knows nothing of how the crate inverts, agrees.
#[test]
fn another_decoder_reads_our_parity() {
    for (k, m) in schemes() {
        let data = shards(9, k, 5);
        let mut parity = vec![vec![0; 5]; m];
        codec(k, m).encode(&data, &mut parity).unwrap();
        let all: Vec<&[u8]> = data.iter().chain(&parity).map(|s| &s[..]).collect();
        let mut tried = 0;
        for seed in 0..40u64 {
            let mut order: Vec<usize> = (0..k + m).collect();
            let keys = oracle::bytes(seed, k + m);
            order.sort_by_key(|shard| keys[*shard]);
            let given: Vec<(usize, &[u8])> = order[..k].iter().map(|s| (*s, all[*s])).collect();
            assert_eq!(oracle::decode(k, &given).expect("any k shards are enough"), data);
            tried += 1;
        }
        assert_eq!(tried, 40);
    }
}

/// The library takes any k + m up to 32, more than one group of rows among them.
#[test]
fn every_shape_encodes_and_decodes() {
    let length = 129;
    for k in 1..32usize {
        for m in (1..=32 - k).filter(|m| !cfg!(miri) || (k + m) % 11 == 0) {
            let codec = codec(k, m);
            let data = shards((k * 32 + m) as u64, k, length);
            let mut parity = vec![vec![0xEE; length]; m];
            codec.encode(&data, &mut parity).unwrap();
            let stripe: Vec<&[u8]> = data.iter().chain(&parity).map(|s| &s[..]).collect();
            // Byte 0 of each parity by the oracle; the rest by the other tests.
            for (p, parity) in parity.iter().enumerate() {
                let sum = (0..k).fold(0, |sum, d| sum ^ oracle::mul(oracle::coefficient(p, d), data[d][0]));
                assert_eq!(parity[0], sum);
            }
            // As many data shards lost as can be, from the front.
            let lost = m.min(k);
            let wanted: Vec<usize> = (0..lost).collect();
            let plan = codec.decode_plan(ShardSet::first(k + m) - ShardSet::first(lost), &wanted).unwrap();
            let sources: Vec<&[u8]> = plan.sources().iter().map(|s| stripe[*s]).collect();
            let mut outputs = vec![vec![0; length]; lost];
            plan.run(&sources, &mut outputs).unwrap();
            assert_eq!(outputs, data[..lost], "k {k}, m {m}");
        }
    }
}

/// A single lost data shard is the XOR of the others and the first parity: what its cheap kernel relies on.
#[test]
fn the_first_parity_is_the_xor() {
    let data = shards(10, 6, 100);
    let mut parity = vec![vec![0; 100]; 3];
    codec(6, 3).encode(&data, &mut parity).unwrap();
    let xor: Vec<u8> = (0..100).map(|i| data.iter().fold(0, |sum, d| sum ^ d[i])).collect();
    assert_eq!(parity[0], xor);
}

fn binomial(n: u64, k: u64) -> u64 {
    (0..k).fold(1, |product, i| product * (n - i) / (i + 1))
}
