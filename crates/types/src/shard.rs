//! Sharded directories: which shard has a name, and under which names a directory has its shards.
//!
//! A shard is a directory that the directory has under a name that nobody else can give, as it begins with a slash.
//! The rule is part of what is stored: it never changes.

/// A directory has at most so many shards.
pub const SHARDS_MAX: u8 = 15;

/// The shard, below `count`, that has a name: FNV-1a of its bytes, mixed, modulo the count.
pub fn shard_of(name: &[u8], count: usize) -> usize {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in name {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash ^= hash >> 32;
    (hash % count.max(1) as u64) as usize
}

/// The name of a shard in its directory.
pub fn shard_name(index: u8) -> [u8; 3] {
    [b'/', b'0' + index / 10, b'0' + index % 10]
}

/// Whether an entry of a directory is one of its shards.
pub fn is_shard_name(name: &[u8]) -> bool {
    matches!(name, [b'/', tens @ b'0'..=b'9', ones @ b'0'..=b'9'] if (tens - b'0') * 10 + ones - b'0' < SHARDS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names would be looked for in another shard than they were put in.
    #[test]
    fn a_name_stays_in_its_shard() {
        let found: Vec<usize> =
            [&b""[..], b"a", b"b", b"part-00000", b"\xff"].iter().map(|n| shard_of(n, 11)).collect();
        assert_eq!(found, [10, 2, 7, 5, 4]);
        assert_eq!(shard_of(b"a", 1), 0);
    }

    /// One partition would get most of a directory whose names are alike.
    #[test]
    fn numbered_names_are_spread_evenly() {
        for count in [2, 3, 11, 15] {
            let mut found = vec![0u32; count];
            (0..15_000).for_each(|i| found[shard_of(format!("part-{i:05}").as_bytes(), count)] += 1);
            let fair = 15_000 / count as u32;
            assert!(found.iter().all(|n| *n > fair * 9 / 10 && *n < fair * 11 / 10), "{found:?}");
        }
    }

    #[test]
    fn names_of_shards_are_those_that_nobody_else_can_give() {
        for index in 0..SHARDS_MAX {
            assert!(is_shard_name(&shard_name(index)) && crate::name::check_name(&shard_name(index)).is_err());
        }
        for other in [&b"/"[..], b"00", b"/0", b"/15", b"/99", b"/000", b"a/0", b""] {
            assert!(!is_shard_name(other), "{other:?}");
        }
    }
}
