//! [`ListDigest`]: what a member lists of a range of a group's chunks, as one number, so that members can see whether
//! they list the same without sending their lists.
//!
//! Only sealed chunks count: open ones differ from moment to moment. In an erasure group the shards of a chunk differ
//! in contents and may in length, so only their indices count. Invariant: members with equal lists have equal digests,
//! whatever machine they run on; that lists with equal digests are equal is as likely as 64 bits make it.

/// Chunks of which one digest tells: those whose indices differ only in the lowest bits.
pub const DIGEST_CHUNKS: u32 = 1024;

const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0100_0000_01b3;

/// What one member lists of one chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListedChunk {
    pub index: u32,
    pub length: u64,
    pub sealed: bool,
    /// CRC-32C of the table of checksums.
    pub table_crc: u32,
    /// Blocks were freed or overwritten: members may have other checksums for them, and be right.
    pub changed: bool,
}

/// FNV-1a, 64 bits (Fowler, Noll, Vo), over what is listed, in the order of the indices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListDigest {
    hash: u64,
    count: u32,
    replicated: bool,
}

impl ListDigest {
    /// Of nothing so far.
    pub const fn new(replicated: bool) -> Self {
        Self { hash: OFFSET, count: 0, replicated }
    }

    /// Takes the next chunk; open ones are left out.
    pub fn add(&mut self, chunk: ListedChunk) {
        if !chunk.sealed || chunk.length == 0 {
            return;
        }
        self.count += 1;
        self.eat(&chunk.index.to_le_bytes());
        if self.replicated {
            self.eat(&chunk.length.to_le_bytes());
            self.eat(&[u8::from(chunk.changed)]);
            self.eat(&if chunk.changed { 0 } else { chunk.table_crc }.to_le_bytes());
        }
    }

    fn eat(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.hash = (self.hash ^ u64::from(*byte)).wrapping_mul(PRIME);
        }
    }

    /// The number that members compare.
    pub const fn value(&self) -> u64 {
        self.hash
    }

    /// How many chunks it tells of.
    pub const fn count(&self) -> u32 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(index: u32) -> ListedChunk {
        ListedChunk { index, length: 4096 * u64::from(index), sealed: true, table_crc: 77 + index, changed: false }
    }

    fn of(replicated: bool, chunks: impl IntoIterator<Item = ListedChunk>) -> (u32, u64) {
        let mut digest = ListDigest::new(replicated);
        chunks.into_iter().for_each(|chunk| digest.add(chunk));
        (digest.count(), digest.value())
    }

    /// A chunk that one member lacks, or has shorter or otherwise, would never be looked for.
    #[test]
    fn whatever_differs_in_a_list_differs_in_its_digest() {
        let all = || (1..=5).map(chunk);
        let whole = of(true, all());
        assert_eq!(whole, of(true, all()));
        assert_ne!(whole, of(true, all().filter(|chunk| chunk.index != 3)));
        for change in [
            |chunk: &mut ListedChunk| chunk.length -= 1,
            |chunk: &mut ListedChunk| chunk.sealed = false,
            |chunk: &mut ListedChunk| chunk.table_crc += 1,
            |chunk: &mut ListedChunk| chunk.changed = true,
        ] {
            let mut other: Vec<ListedChunk> = all().collect();
            change(&mut other[2]);
            assert_ne!(whole, of(true, other));
        }
    }

    /// Shards would be compared by what always differs, and all groups listed in full for ever.
    #[test]
    fn shards_are_compared_by_their_indices_and_open_chunks_not_at_all() {
        let other = |chunk: ListedChunk| ListedChunk { length: 4096, table_crc: 1, ..chunk };
        assert_eq!(of(false, (1..=5).map(chunk)), of(false, (1..=5).map(chunk).map(other)));
        assert_ne!(of(false, (1..=5).map(chunk)), of(false, (1..=4).map(chunk)));
        let open = ListedChunk { sealed: false, ..chunk(6) };
        assert_eq!(of(true, (1..=5).map(chunk)), of(true, (1..=5).map(chunk).chain([open])));
        let freed = |table_crc| of(true, [ListedChunk { table_crc, changed: true, ..chunk(1) }]);
        assert_eq!(freed(1), freed(2), "checksums of freed blocks are nobody's");
    }

    /// Members of different builds would find differences where there are none.
    #[test]
    fn the_digest_is_the_same_for_ever() {
        assert_eq!(of(true, []), (0, 0xcbf2_9ce4_8422_2325));
        assert_eq!(of(true, (1..=3).map(chunk)), (3, GOLDEN.0));
        assert_eq!(of(false, (1..=3).map(chunk)), (3, GOLDEN.1));
    }

    const GOLDEN: (u64, u64) = (0x874b_c7d6_c9ec_7984, 0xfd1f_0f43_81eb_0395);
}
