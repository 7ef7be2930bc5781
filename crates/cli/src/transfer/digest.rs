//! [`Digest`]: CRC-64/NVME and length of a stream of bytes, to compare a copy with its source.
//!
//! It finds damage (one chance in 2⁶⁴ to miss it), not forgery.
use crate::error::{CliError, Result};
use cairn_client::FileReader;
use crc_fast::CrcAlgorithm;
use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Bytes read at a time.
const PART: usize = 256 << 10;

/// Sum of the bytes so far.
pub struct Digest {
    crc: crc_fast::Digest,
    length: u64,
}

/// The finished sum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sum {
    pub crc: u64,
    pub length: u64,
}

impl fmt::Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "crc64nvme {:016x} over {} bytes", self.crc, self.length)
    }
}

impl Default for Digest {
    fn default() -> Self {
        Self { crc: crc_fast::Digest::new(CrcAlgorithm::Crc64Nvme), length: 0 }
    }
}

impl Digest {
    pub fn update(&mut self, bytes: &[u8]) {
        self.crc.update(bytes);
        self.length += bytes.len() as u64;
    }
    pub fn finish(self) -> Sum {
        Sum { crc: self.crc.finalize(), length: self.length }
    }
}

/// Reads a local file again from its beginning. Blocks.
pub fn of_file(file: &File, path: &Path) -> Result<Sum> {
    let mut digest = Digest::default();
    let mut part = vec![0; PART];
    loop {
        let read = file.read_at(&mut part, digest.length);
        match read.map_err(|error| CliError::local(path, "reading it again to compare", error))? {
            0 => return Ok(digest.finish()),
            count => digest.update(&part[..count]),
        }
    }
}

/// Reads a remote file to its end.
pub async fn of_remote(mut reader: FileReader) -> Result<Sum> {
    let mut digest = Digest::default();
    while let Some(piece) = reader.next().await? {
        digest.update(&piece.data);
    }
    Ok(digest.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Damage in the middle of a copy would go unnoticed.
    #[test]
    fn sums_follow_the_bytes() {
        let mut digest = Digest::default();
        digest.update(b"1234");
        digest.update(b"56789");
        // The check value of CRC-64/NVME.
        assert_eq!(digest.finish(), Sum { crc: 0xae8b_1486_0a79_9888, length: 9 });
    }
}
