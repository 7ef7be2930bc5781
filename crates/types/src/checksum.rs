//! CRC-32C (Castagnoli), the checksum of blocks, frames, records and pages.
use crate::units::BLOCK_SIZE;
use crc_fast::{CrcAlgorithm, Digest, checksum};

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
    out.extend(data.chunks(BLOCK_SIZE).map(crc32c));
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
}
