//! References of blocks, against a plain count of each block.
use super::*;
use crate::Fsck;
use crate::encoding::{Inode, NodeType};
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

fn file(n: &mut Namespace, extent: Extent) {
    let id = n.next_inode().expect("an id");
    let (size, stored) = (extent.end(), extent.length);
    n.add_inode(id, &Inode { mode: NodeType::Regular as u16, nlink: 1, size, stored, ..Inode::at(1) });
    n.scratch.incoming = vec![extent];
    n.put_first_extents(id);
}

/// What the proof says of shared blocks, whatever the size of its parts.
fn proof(n: &Namespace) -> Vec<String> {
    let found = [1, 1000].map(|part| {
        let (snapshot, mut fsck) = (n.snapshot(), Fsck::new(part));
        while fsck.step(&snapshot, 3) {}
        let texts = fsck.into_report().findings.into_iter().map(|finding| finding.text);
        texts.filter(|text| text.contains("blocks")).collect::<Vec<_>>()
    });
    assert_eq!(found[0], found[1]);
    let [found, _] = found;
    found
}

/// References that are wrong would be found when a block was freed too early.
#[test]
fn the_proof_finds_wrong_references() {
    let mut n = namespace();
    let kind = ExtentKind::Plain;
    let extent = |index, shared| Extent {
        file_offset: 0,
        length: 40_000,
        pg: 1,
        index,
        chunk_offset: 0,
        kind,
        shared,
        birth: 0,
    };
    for index in [1, 1, 1, 2, 3] {
        file(&mut n, extent(index, true));
    }
    assert_eq!(records(&n), [(0, 10, 3)]);
    assert_eq!(proof(&n), [""; 0]);
    n.change_references((1, 1, 4, 5), |r| r - 1);
    let found = proof(&n);
    assert!(matches!(&found[..], [text] if text.contains("recorded as named 2 times each, files name 3")), "{found:?}");
    n.change_references((1, 1, 4, 5), |r| r + 1);
    n.change_references((1, 2, 0, 3), |r| r - 1);
    let found = proof(&n);
    assert!(matches!(&found[..], [text] if text.contains("shares 3 blocks of which nothing")), "{found:?}");
    n.change_references((1, 2, 0, 3), |r| r + 1);
    assert_eq!(proof(&n), [""; 0]);
    // One that was there before its blocks were shared.
    let id = n.next_inode().expect("an id");
    n.add_inode(id, &Inode { mode: NodeType::Regular as u16, nlink: 1, size: 40_000, stored: 40_000, ..Inode::at(1) });
    n.swap_entries(id, &[], &[extent(3, false)]);
    let found = proof(&n);
    assert!(matches!(&found[..], [text] if text.contains("does not say so")), "{found:?}");
}
