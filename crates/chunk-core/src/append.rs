//! Whether a chunk takes an append: in order, aligned, recognised when it is repeated.
//!
//! Invariants: bytes are only added at the end; the only block that is ever replaced is a partial last one, whole; an
//! append that was taken is taken again without doing anything; one whose sender says what it follows is taken behind
//! nothing else, so that members of a chunk whose ends are the same have the same bytes. Not here: epochs and sessions
//! ([`crate::fence`]).

use cairn_types::{BLOCK_SIZE, CHUNK_SIZE_MAX};

/// Largest payload of one append.
pub const APPEND_MAX: usize = 1 << 20;

/// What to do with an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppendDecision {
    /// New bytes. `replaces_tail`: the first block stands where a partial last block was.
    Take {
        /// The first block replaces a partial one.
        replaces_tail: bool,
    },
    /// All of it was taken before: answer as then.
    Repeat,
}

/// Why an append is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AppendRefusal {
    /// The request makes no sense.
    #[error(
        "an append has 1 to {APPEND_MAX} bytes at a multiple of 4096 within 64 MiB, a checksum a block, and to a parity shard those of its rows"
    )]
    Malformed,
    /// The chunk takes no more.
    #[error("the chunk is sealed at {length} bytes; go on in a new chunk")]
    Sealed {
        /// Where.
        length: u64,
    },
    /// Not at the end.
    #[error("an append at {offset} does not continue a chunk of {length} bytes")]
    NotAtEnd {
        /// Where it was to go.
        offset: u64,
        /// Where the chunk ends.
        length: u64,
    },
}

/// Judges an append of `bytes` bytes with `crcs` checksums at `offset` of a chunk of `length` bytes. `follows`: where
/// the append before it ended. Whoever replaces last blocks has to say it: one that did not arrive may have ended where
/// the next one begins, and would leave an old last block in the middle of the chunk.
pub fn judge_append(
    length: u64,
    sealed: bool,
    (offset, follows): (u64, Option<u64>),
    bytes: usize,
    crcs: usize,
) -> Result<AppendDecision, AppendRefusal> {
    let block = BLOCK_SIZE as u64;
    let end = offset.checked_add(bytes as u64).filter(|end| *end <= CHUNK_SIZE_MAX).ok_or(AppendRefusal::Malformed)?;
    let whole = offset.is_multiple_of(block) && crcs == bytes.div_ceil(BLOCK_SIZE);
    if bytes == 0 || bytes > APPEND_MAX || !whole {
        return Err(AppendRefusal::Malformed);
    }
    if follows.is_some_and(|follows| follows != length) {
        // Also what is here already: whoever says what it follows repeats nothing, and the last block may have other
        // bytes.
        return Err(if sealed { AppendRefusal::Sealed { length } } else { AppendRefusal::NotAtEnd { offset, length } });
    }
    if end <= length {
        return Ok(AppendDecision::Repeat);
    }
    if sealed {
        return Err(AppendRefusal::Sealed { length });
    }
    if offset == length.next_multiple_of(block) {
        return Ok(AppendDecision::Take { replaces_tail: false });
    }
    if offset == length - length % block {
        return Ok(AppendDecision::Take { replaces_tail: true });
    }
    Err(AppendRefusal::NotAtEnd { offset, length })
}

#[cfg(test)]
mod tests {
    use super::*;
    use AppendDecision::{Repeat, Take};

    /// Bytes could be lost, doubled or overwritten if any row of this table changed.
    #[test]
    fn table() {
        let at = |length, sealed, offset, bytes: usize| {
            judge_append(length, sealed, (offset, None), bytes, bytes.div_ceil(BLOCK_SIZE))
        };
        let new = Ok(Take { replaces_tail: false });
        for (length, sealed, offset, bytes, wanted) in [
            (0, false, 0, 1, new),
            (4096, false, 4096, 8192, new),
            (100, false, 4096, 10, new),
            (100, false, 0, 200, Ok(Take { replaces_tail: true })),
            (100, false, 0, 100, Ok(Repeat)),
            (100, true, 0, 50, Ok(Repeat)),
            (100, true, 0, 101, Err(AppendRefusal::Sealed { length: 100 })),
            (8192, false, 4096, 8192, Err(AppendRefusal::NotAtEnd { offset: 4096, length: 8192 })),
            (0, false, 4096, 1, Err(AppendRefusal::NotAtEnd { offset: 4096, length: 0 })),
            (0, false, 1, 1, Err(AppendRefusal::Malformed)),
            (0, false, 0, 0, Err(AppendRefusal::Malformed)),
            (0, false, 0, APPEND_MAX + 1, Err(AppendRefusal::Malformed)),
            (0, false, CHUNK_SIZE_MAX, 1, Err(AppendRefusal::Malformed)),
            (0, false, u64::MAX - 4095, 4096, Err(AppendRefusal::Malformed)),
        ] {
            assert_eq!(at(length, sealed, offset, bytes), wanted, "{length} {sealed} {offset} {bytes}");
        }
        assert_eq!(judge_append(0, false, (0, None), 4097, 1), Err(AppendRefusal::Malformed));
    }

    /// A member that lacks an append which replaced the last block would take the next one, and have other bytes than
    /// the rest.
    #[test]
    fn what_follows_something_is_taken_behind_nothing_else() {
        let at = |length, offset, follows| judge_append(length, false, (offset, Some(follows)), 200, 1);
        let not_at_end = |offset, length| Err(AppendRefusal::NotAtEnd { offset, length });
        assert_eq!(at(100, 0, 100), Ok(Take { replaces_tail: true }));
        assert_eq!(at(4096, 4096, 4096), Ok(Take { replaces_tail: false }));
        // The append from 0 to 4096, or to 150, is not here.
        assert_eq!(at(100, 4096, 4096), not_at_end(4096, 100));
        assert_eq!(at(100, 0, 150), not_at_end(0, 100));
        // Bytes of somebody else are here.
        assert_eq!(at(200, 0, 100), not_at_end(0, 200));
        assert_eq!(judge_append(300, true, (0, Some(100)), 200, 1), Err(AppendRefusal::Sealed { length: 300 }));
    }
}
