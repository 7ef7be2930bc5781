//! References of blocks, against a plain count of each block.
use super::*;
use crate::namespace::NamespaceConfig;
use cairn_types::{Layout, PartitionId, VolumeId};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn namespace() -> Namespace {
    Namespace::new(&NamespaceConfig::new(VolumeId(1), PartitionId(1), Layout::replicated(3)))
}

fn records(namespace: &Namespace) -> Vec<(u64, u64, u64)> {
    let found = namespace.share_records(1, 1, 0, u64::from(u32::MAX));
    found.iter().map(|r| (r.first_block, r.end_block(), r.references)).collect()
}

proptest! {
    /// A block would be freed while a file names it, or never.
    #[test]
    fn references_are_counted_for_each_block(changes in prop::collection::vec((0u64..40, 1u64..15, prop::bool::weighted(0.6)), 0..30)) {
        let mut n = namespace();
        let mut model: BTreeMap<u64, u64> = BTreeMap::new();
        for (first, blocks, up) in changes {
            let before = n.change_references((1, 1, first, first + blocks), |r| if up { r + 1 } else { r.saturating_sub(1) });
            let mut at = first;
            for (from, to, references) in before {
                prop_assert_eq!(from, at);
                at = to;
                for block in from..to {
                    prop_assert_eq!(model.get(&block).copied().unwrap_or(0), references);
                }
            }
            prop_assert_eq!(at, first + blocks);
            for block in first..first + blocks {
                let count = model.entry(block).or_default();
                *count = if up { *count + 1 } else { count.saturating_sub(1) };
            }
            model.retain(|_, count| *count > 0);
            let mut expected: Vec<(u64, u64, u64)> = Vec::new();
            for (block, count) in &model {
                match expected.last_mut() {
                    Some(last) if last.1 == *block && last.2 == *count => last.1 += 1,
                    _ => expected.push((*block, block + 1, *count)),
                }
            }
            prop_assert_eq!(records(&n), &expected[..]);
            prop_assert_eq!(n.shares, expected.len() as u64);
            prop_assert_eq!(n.count_shares(), Some(n.shares));
        }
    }
}

/// Chunks next to each other in the order of keys would get each other's references.
#[test]
fn chunks_are_kept_apart() {
    let mut n = namespace();
    for (pg, index) in [(1, 0), (1, 1), (1, 2), (2, 1)] {
        n.change_references((pg, index, 5, 10), |r| r + 1);
    }
    n.change_references((1, 1, 0, 20), |r| r + 1);
    assert_eq!(records(&n), [(0, 5, 1), (5, 10, 2), (10, 20, 1)]);
    assert_eq!(n.share_records(1, 0, 0, 100).len(), 1);
    let mut freed = vec![(1, 1, 0, 30), (2, 1, 0, 7), (3, 1, 0, 7)];
    n.spare_shared(&mut freed);
    assert_eq!(freed, [(1, 1, 20, 30), (2, 1, 0, 5), (3, 1, 0, 7)]);
}

/// What is left of a range when some of it is taken.
#[test]
fn ranges_without_others() {
    assert_eq!(without((5, 10), &[]), [(5, 10)]);
    assert_eq!(without((5, 10), &[(0, 6), (6, 7), (9, 20)]), [(7, 9)]);
    assert_eq!(without((5, 10), &[(0, 5), (10, 12)]), [(5, 10)]);
    assert_eq!(without((5, 10), &[(4, 12)]), []);
}
