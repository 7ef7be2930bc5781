//! Parity bytes that are on disk, computed once outside of this project from the description in
//! docs/internals/erasure.md.
use crate::{codec, schemes};

/// Byte i of data shard d is 37 d + 11 i + 1.
const PARITY: &[((usize, usize), &[&str])] = &[
    ((3, 2), &["6c6b4a0908e7a6a5", "c924ae7aaa6d9344"]),
    ((6, 3), &["3375b7f5b37d3ffd", "15d2f81018a80574", "2092f4c3988de75e"]),
    ((8, 3), &["e89058d088505880", "200459cccd624c68", "370d1ed4e34c7da7"]),
    ((10, 4), &["8ffd03f5a7b5a36d", "0e2b80f5a25c87d9", "dcf9448bb8947392", "b3f2de405da91e2b"]),
    ((12, 4), &["642024d8fcd0cc48", "85f87404b411ffe2", "a85e1012afc47cb6", "69583a824f0b5fc4"]),
    ((4, 2), &["1c10cc9894401418", "cffc0580945d0fe1"]),
    ((6, 2), &["3375b7f5b37d3ffd", "15d2f81018a80574"]),
    ((8, 2), &["e89058d088505880", "200459cccd624c68"]),
    ((10, 2), &["8ffd03f5a7b5a36d", "0e2b80f5a25c87d9"]),
];

/// If parity of any scheme changed, stripes on disk could not be decoded any more.
#[test]
fn parity_of_every_scheme_stays_as_it_is() {
    assert_eq!(PARITY.len(), schemes().len(), "a new scheme needs its golden bytes");
    for (k, m) in schemes() {
        let (_, expected) = PARITY.iter().find(|(shape, _)| *shape == (k, m)).expect("a scheme without golden bytes");
        let data: Vec<Vec<u8>> = (0..k).map(|d| (0..8).map(|i| (d * 37 + i * 11 + 1) as u8).collect()).collect();
        let mut parity = vec![vec![0; 8]; m];
        codec(k, m).encode(&data, &mut parity).unwrap();
        let hex: Vec<String> = parity.iter().map(|p| p.iter().map(|b| format!("{b:02x}")).collect()).collect();
        assert_eq!(hex, *expected, "rs-{k}-{m}");
    }
}
