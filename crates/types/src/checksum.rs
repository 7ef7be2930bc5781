//! CRC-32C (Castagnoli), the checksum of blocks, frames, records and pages.
use crate::units::BLOCK_SIZE;
use crc_fast::{CrcAlgorithm, Digest, checksum};

#[cfg(target_arch = "x86_64")]
mod three;

/// CRC-32C of `data` (polynomial 0x1EDC6F41 reflected, as in iSCSI).
pub fn crc32c(data: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, data) as u32
}

/// CRC-32C of the concatenation of what gave `seed` and of `data`.
pub fn crc32c_append(seed: u32, data: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!seed));
    digest.update(data);
    digest.finalize() as u32
}

/// One CRC per 4 KiB block of `data`, appended to `out`; a partial last block is summed over just its bytes.
pub fn crc32c_blocks(data: &[u8], out: &mut Vec<u32>) {
    out.reserve(data.len().div_ceil(BLOCK_SIZE));
    let rest = several_at_once(data, out);
    out.extend(rest.chunks(BLOCK_SIZE).map(crc32c));
}

/// Does as many leading blocks as this processor does faster together, and returns the rest.
#[cfg(target_arch = "x86_64")]
fn several_at_once<'a>(data: &'a [u8], out: &mut Vec<u32>) -> &'a [u8] {
    if !three::available() {
        return data;
    }
    let (groups, rest) = data.as_chunks::<{ three::BLOCKS * BLOCK_SIZE }>();
    for group in groups {
        // SAFETY: the instructions are available, as was just asked.
        out.extend(unsafe { three::crc_of_three(group) });
    }
    rest
}

#[cfg(not(target_arch = "x86_64"))]
fn several_at_once<'a>(data: &'a [u8], _out: &mut Vec<u32>) -> &'a [u8] {
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_vectors() {
        // RFC 3720 §B.4
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn append_equals_whole() {
        let data: Vec<u8> = (0..10_000u32).map(|i| (i * 7) as u8).collect();
        for cut in [0, 1, 63, 64, 4096, 9_999, 10_000] {
            assert_eq!(crc32c_append(crc32c(&data[..cut]), &data[cut..]), crc32c(&data));
        }
    }

    /// A block's checksum must not depend on how many blocks are summed with it.
    #[test]
    fn many_blocks_equal_single_ones() {
        let data: Vec<u8> =
            (0..8 * BLOCK_SIZE + 100).map(|i| (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) as u8 >> 1).collect();
        for len in [0, 1, 4095, 4096, 3 * 4096, 3 * 4096 + 1, 7 * 4096, data.len()] {
            let (mut found, single) = (vec![7], data[..len].chunks(BLOCK_SIZE).map(crc32c));
            crc32c_blocks(&data[..len], &mut found);
            assert_eq!(found, [7].into_iter().chain(single).collect::<Vec<_>>(), "{len} bytes");
        }
    }
}
