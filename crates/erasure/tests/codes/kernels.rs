//! Every kernel that this machine runs computes what the oracle computes, and touches nothing else.
use crate::oracle::{self, bytes, shards};
use cairn_erasure::{Codec, Kernel, ShardSet};
use proptest::prelude::*;

/// What surrounds each output; a kernel that writes outside of it is caught.
const GUARD: usize = 64;

/// Encodes with sources and outputs at odd addresses.
fn encode_at_odd_addresses(codec: &Codec, data: &[Vec<u8>], shift: usize, add_to: Option<&[Vec<u8>]>) -> Vec<Vec<u8>> {
    let length = data[0].len();
    let sources: Vec<Vec<u8>> =
        data.iter().enumerate().map(|(i, d)| [&vec![0xAA; (shift + i * 5) % 64][..], d].concat()).collect();
    let starts: Vec<usize> = (0..codec.m()).map(|i| GUARD + (shift * 3 + i * 7) % 64).collect();
    let mut outputs: Vec<Vec<u8>> = starts.iter().map(|start| vec![0x55; start + length + GUARD]).collect();
    {
        let mut parity: Vec<&mut [u8]> =
            outputs.iter_mut().zip(&starts).map(|(o, start)| &mut o[*start..*start + length]).collect();
        let shifted: Vec<&[u8]> = sources.iter().map(|s| &s[s.len() - length..]).collect();
        match add_to {
            None => codec.encode(&shifted, &mut parity).expect("shapes fit"),
            Some(before) => {
                parity.iter_mut().zip(before).for_each(|(p, b)| p.copy_from_slice(b));
                for (i, source) in shifted.iter().enumerate() {
                    codec.encode_add(i, source, &mut parity).expect("shapes fit");
                }
            }
        }
    }
    for (output, start) in outputs.iter().zip(&starts) {
        assert!(output[..*start].iter().chain(&output[start + length..]).all(|b| *b == 0x55), "written outside");
    }
    outputs.iter().zip(&starts).map(|(o, start)| o[*start..*start + length].to_vec()).collect()
}

fn kernels() -> Vec<Kernel> {
    let kernels = Kernel::available();
    assert!(kernels.contains(&Kernel::Portable));
    kernels
}

/// Every tail length of every kernel's unrolled loop, at aligned and odd addresses.
#[test]
fn all_lengths_up_to_several_vectors() {
    let step = if cfg!(miri) { 149 } else { 1 };
    for (k, m) in [(1, 1), (2, 2), (3, 3), (2, 4), (3, 5)].into_iter().filter(|(_, m)| !cfg!(miri) || *m == 2) {
        for length in (0..600).step_by(step) {
            let data = shards(length as u64, k, length);
            let expected = oracle::encode(k, m, &data).split_off(k);
            for kernel in kernels() {
                let codec = Codec::with_kernel(k, m, kernel).unwrap();
                for shift in [0, 1] {
                    let parity = encode_at_odd_addresses(&codec, &data, shift, None);
                    assert_eq!(parity, expected, "{kernel}, rs-{k}-{m}, {length} bytes");
                }
            }
        }
    }
}

/// Beyond a block and with more rows than a group, where the loop over blocks and groups matters.
#[test]
fn long_shards_with_many_parities() {
    let (k, m, length) = (5, 9, if cfg!(miri) { 300 } else { 40_000 });
    let data = shards(4, k, length);
    let mut expected = vec![vec![0; length]; m];
    Codec::with_kernel(k, m, Kernel::Portable).unwrap().encode(&data, &mut expected).unwrap();
    for i in (0..length).step_by(997) {
        let column: Vec<Vec<u8>> = data.iter().map(|d| vec![d[i]]).collect();
        let checked = oracle::encode(k, m, &column);
        assert!((0..m).all(|p| expected[p][i] == checked[k + p][0]));
    }
    for kernel in kernels() {
        let codec = Codec::with_kernel(k, m, kernel).unwrap();
        assert_eq!(encode_at_odd_addresses(&codec, &data, 3, None), expected, "{kernel}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 3 } else { 200 }, failure_persistence: None, ..ProptestConfig::default() })]

    /// Random shapes, lengths of several KiB and addresses: every kernel is the portable one, which is the oracle.
    #[test]
    fn kernels_agree(k in 1usize..17, m in 1usize..10, length in 0usize..6000, shift in 0usize..64, seed: u32) {
        let length = if cfg!(miri) { length % 200 } else { length };
        let data = shards(u64::from(seed), k, length);
        let before = shards(u64::from(seed) + 1, m, length);
        let portable = Codec::with_kernel(k, m, Kernel::Portable).unwrap();
        let expected = encode_at_odd_addresses(&portable, &data, 0, None);
        for i in [0, length / 2, length.saturating_sub(1)].into_iter().filter(|i| *i < length) {
            let column: Vec<Vec<u8>> = data.iter().map(|d| vec![d[i]]).collect();
            let checked = oracle::encode(k, m, &column);
            prop_assert!((0..m).all(|p| expected[p][i] == checked[k + p][0]));
        }
        let added: Vec<Vec<u8>> = expected.iter().zip(&before)
            .map(|(e, b)| e.iter().zip(b).map(|(x, y)| x ^ y).collect()).collect();
        for kernel in kernels() {
            let codec = Codec::with_kernel(k, m, kernel).unwrap();
            prop_assert_eq!(&encode_at_odd_addresses(&codec, &data, shift, None), &expected, "{}", kernel);
            prop_assert_eq!(&encode_at_odd_addresses(&codec, &data, shift, Some(&before)), &added, "{}", kernel);
        }
    }

    /// Random losses of random shapes come back from random survivors, in every kernel.
    #[test]
    fn kernels_decode(k in 1usize..14, m in 1usize..8, length in 1usize..3000, seed: u32) {
        let length = if cfg!(miri) { length % 200 + 1 } else { length };
        let data = shards(u64::from(seed), k, length);
        let mut parity = vec![vec![0; length]; m];
        Codec::with_kernel(k, m, Kernel::Portable).unwrap().encode(&data, &mut parity).unwrap();
        let stripe: Vec<&[u8]> = data.iter().chain(&parity).map(|s| &s[..]).collect();
        let mut order: Vec<usize> = (0..k + m).collect();
        let keys = bytes(u64::from(seed) + 5, k + m);
        order.sort_by_key(|shard| keys[*shard]);
        let (wanted, present) = order.split_at(m);
        for kernel in kernels() {
            let codec = Codec::with_kernel(k, m, kernel).unwrap();
            let plan = codec.decode_plan(present.iter().copied().collect::<ShardSet>(), wanted).unwrap();
            let sources: Vec<&[u8]> = plan.sources().iter().map(|s| stripe[*s]).collect();
            let mut outputs = vec![vec![0; length]; m];
            plan.run(&sources, &mut outputs).unwrap();
            for (shard, output) in wanted.iter().zip(&outputs) {
                prop_assert_eq!(&output[..], stripe[*shard], "{}, shard {}", kernel, shard);
            }
        }
    }
}
