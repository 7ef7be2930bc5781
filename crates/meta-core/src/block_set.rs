//! [`BlockSet`]: blocks of one chunk, as a few runs or, when there are many, as bits. At most 2 KiB.

use cairn_types::CHUNK_BLOCKS_MAX;

/// Runs kept as such; with more the bits take less.
const RUNS_MAX: usize = 256;
const WORDS: usize = CHUNK_BLOCKS_MAX / 64;

/// A set of blocks of a chunk.
#[derive(Clone, Debug)]
pub(crate) enum BlockSet {
    /// Ascending, apart from each other: first, one past the last.
    Runs(Vec<(u16, u16)>),
    Bits(Box<[u64; WORDS]>),
}

impl Default for BlockSet {
    fn default() -> Self {
        BlockSet::Runs(Vec::new())
    }
}

const _: () = assert!(CHUNK_BLOCKS_MAX <= u16::MAX as usize && CHUNK_BLOCKS_MAX.is_multiple_of(64));

/// Cuts a range to what a chunk can have.
fn clamp(first: u64, end: u64) -> (u16, u16) {
    let cut = |block: u64| block.min(CHUNK_BLOCKS_MAX as u64) as u16;
    (cut(first), cut(end))
}

impl BlockSet {
    /// Adds `first..end`.
    pub fn insert(&mut self, first: u64, end: u64) {
        self.change(clamp(first, end), true);
    }

    /// Takes `first..end` out.
    pub fn remove(&mut self, first: u64, end: u64) {
        self.change(clamp(first, end), false);
    }

    fn change(&mut self, (first, end): (u16, u16), to: bool) {
        if first >= end {
            return;
        }
        match self {
            BlockSet::Runs(runs) => {
                if to {
                    insert_run(runs, first, end);
                } else {
                    remove_run(runs, first, end);
                }
                if runs.len() > RUNS_MAX {
                    let mut bits = Box::new([0; WORDS]);
                    runs.iter().for_each(|(first, end)| set_bits(&mut bits, *first, *end, true));
                    *self = BlockSet::Bits(bits);
                }
            }
            BlockSet::Bits(bits) => set_bits(bits, first, end, to),
        }
    }

    /// Whether any block of `first..end` is in it.
    pub fn meets(&self, first: u64, end: u64) -> bool {
        let (first, end) = clamp(first, end);
        match self {
            BlockSet::Runs(runs) => {
                let at = runs.partition_point(|run| run.1 <= first);
                runs.get(at).is_some_and(|run| run.0 < end) && first < end
            }
            BlockSet::Bits(bits) => {
                (usize::from(first)..usize::from(end)).any(|block| bits[block / 64] >> (block % 64) & 1 == 1)
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        match self {
            BlockSet::Runs(runs) => runs.is_empty(),
            BlockSet::Bits(bits) => bits.iter().all(|word| *word == 0),
        }
    }

    /// Runs in order: first, one past the last.
    pub fn runs(&self) -> Vec<(u32, u32)> {
        match self {
            BlockSet::Runs(runs) => runs.iter().map(|(first, end)| (u32::from(*first), u32::from(*end))).collect(),
            BlockSet::Bits(bits) => {
                let mut runs: Vec<(u32, u32)> = Vec::new();
                let has = |block: u32| bits[block as usize / 64] >> (block % 64) & 1 == 1;
                for block in (0..CHUNK_BLOCKS_MAX as u32).filter(|block| has(*block)) {
                    match runs.last_mut() {
                        Some((_, end)) if *end == block => *end += 1,
                        _ => runs.push((block, block + 1)),
                    }
                }
                runs
            }
        }
    }

    /// Memory beside the value itself.
    pub fn memory_bytes(&self) -> usize {
        match self {
            BlockSet::Runs(runs) => runs.capacity() * size_of::<(u16, u16)>(),
            BlockSet::Bits(_) => WORDS * 8,
        }
    }
}

fn insert_run(runs: &mut Vec<(u16, u16)>, mut first: u16, mut end: u16) {
    let from = runs.partition_point(|run| run.1 < first);
    let to = runs.partition_point(|run| run.0 <= end);
    if from < to {
        (first, end) = (first.min(runs[from].0), end.max(runs[to - 1].1));
    }
    runs.splice(from..to, [(first, end)]);
}

fn remove_run(runs: &mut Vec<(u16, u16)>, first: u16, end: u16) {
    let from = runs.partition_point(|run| run.1 <= first);
    let to = runs.partition_point(|run| run.0 < end);
    if from >= to {
        return;
    }
    let before = (runs[from].0, first);
    let behind = (end, runs[to - 1].1);
    runs.splice(from..to, [before, behind].into_iter().filter(|run| run.0 < run.1));
}

fn set_bits(bits: &mut [u64; WORDS], first: u16, end: u16, to: bool) {
    for block in usize::from(first)..usize::from(end) {
        let bit = 1 << (block % 64);
        if to {
            bits[block / 64] |= bit;
        } else {
            bits[block / 64] &= !bit;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// A block that a file names would be taken for garbage, or the other way round.
        #[test]
        fn is_a_set_of_blocks(changes in prop::collection::vec((any::<bool>(), 0u64..1100, 0u64..40), 0..700)) {
            let (mut set, mut model) = (BlockSet::default(), BTreeSet::new());
            // Odd blocks apart from each other, so that both forms are met.
            for (add, first, length) in changes {
                let (first, end) = (first * 15, first * 15 + length / 8);
                if add {
                    set.insert(first, end);
                    model.extend(first..end.min(CHUNK_BLOCKS_MAX as u64));
                } else {
                    set.remove(first, end);
                    (first..end).for_each(|block| { model.remove(&block); });
                }
            }
            let blocks: BTreeSet<u64> = set.runs().into_iter().flat_map(|(first, end)| u64::from(first)..u64::from(end)).collect();
            prop_assert!(set.runs().windows(2).all(|pair| pair[0].1 < pair[1].0));
            prop_assert_eq!(blocks == model, true);
            prop_assert_eq!(set.is_empty(), model.is_empty());
            for first in (0..200).map(|n| n * 80) {
                prop_assert_eq!(set.meets(first, first + 7), model.range(first..first + 7).next().is_some());
            }
            prop_assert!(set.memory_bytes() <= 4096);
        }
    }

    /// Bits would never be used in tests with few runs.
    #[test]
    fn many_runs_become_bits() {
        let mut set = BlockSet::default();
        (0..300).for_each(|n| set.insert(n * 3, n * 3 + 1));
        assert!(matches!(set, BlockSet::Bits(_)));
        assert_eq!(set.runs().len(), 300);
        set.remove(0, 20_000);
        assert!(set.is_empty());
    }
}
