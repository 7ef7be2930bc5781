//! Units and fixed sizes.
use std::fmt;

/// The checksum unit: bytes covered by one CRC32C, and the alignment of direct I/O.
pub const BLOCK_SIZE: usize = 4096;
/// Largest data size of a chunk on one member (GFS §2.5: 64 MiB).
pub const CHUNK_SIZE_MAX: u64 = 64 << 20;
/// Blocks of a full chunk.
pub const CHUNK_BLOCKS_MAX: usize = CHUNK_SIZE_MAX as usize / BLOCK_SIZE;

/// A number of bytes that prints with a binary unit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct ByteCount(pub u64);

impl fmt::Display for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        let mut value = self.0 as f64 / 1024.0;
        let mut unit = 0;
        while value >= 1023.95 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        write!(f, "{value:.1} {}", UNITS[unit])
    }
}

impl std::str::FromStr for ByteCount {
    type Err = String;

    /// `4096`, `64k`, `64KiB`, `1.5g`: binary units, any case.
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is not a size: write bytes or a number with k, m, g, t (binary), such as 64k");
        let lower = text.trim().to_ascii_lowercase();
        let digits = lower.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let shift = match lower[digits.len()..].trim() {
            "" | "b" => 0,
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            "t" | "tb" | "tib" => 40,
            _ => return Err(bad()),
        };
        let digits = digits.trim();
        if let Ok(whole) = digits.parse::<u64>() {
            return whole.checked_mul(1 << shift).map(ByteCount).ok_or_else(bad);
        }
        match digits.parse::<f64>() {
            Ok(value) if value >= 0.0 && value * ((1u64 << shift) as f64) < 9e18 => {
                Ok(ByteCount((value * (1u64 << shift) as f64) as u64))
            }
            _ => Err(bad()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_print_and_parse() {
        assert_eq!(ByteCount(512).to_string(), "512 B");
        assert_eq!(ByteCount(64 << 10).to_string(), "64.0 KiB");
        assert_eq!("64k".parse(), Ok(ByteCount(65536)));
        assert_eq!("1.5 GiB".parse(), Ok(ByteCount(3 << 29)));
        assert!("-1k".parse::<ByteCount>().is_err());
        assert!("99999999999t".parse::<ByteCount>().is_err());
        assert!("12q".parse::<ByteCount>().is_err());
    }
}
