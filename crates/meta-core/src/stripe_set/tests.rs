//! Rows of striped files: freed exactly when no extent of the file names any of their bytes, on all columns; records of
//! stripe sets come and go with what names them.
use super::*;
use crate::encoding::{Inode, NodeType};
use crate::namespace::NamespaceConfig;
use cairn_types::{Layout, PartitionId, Stripe, VolumeId};
use proptest::prelude::*;
use std::collections::BTreeSet;

const UNIT: u64 = 8192;

fn stripe() -> Stripe {
    Stripe::new(3, UNIT).expect("valid")
}

fn namespace() -> Namespace {
    Namespace::new(&NamespaceConfig::new(VolumeId(1), PartitionId(1), Layout::replicated(3)))
}

fn file(namespace: &mut Namespace) -> u64 {
    let id = namespace.next_inode().unwrap();
    namespace.add_inode(id, &Inode { mode: NodeType::Regular as u16, nlink: 1, ..Inode::at(1) });
    id
}

fn freed(namespace: &Namespace) -> Vec<(u32, u32, u64)> {
    let records = namespace.pending_frees(0, usize::MAX);
    records.iter().flat_map(|f| (f.first_block..f.first_block + f.blocks).map(|b| (f.pg, f.index, b))).collect()
}

fn publish(n: &mut Namespace, inode: u64, extents: Vec<Extent>, sets: Vec<Columns>) -> i64 {
    n.scratch.incoming = extents;
    n.scratch.sets = sets;
    n.put_sets(inode);
    n.replace_extents(inode).unwrap()
}

/// Blocks of each column's file that the extents of a file name, in whole rows.
fn named(n: &Namespace, inode: u64) -> BTreeSet<(u32, u64)> {
    let mut blocks = BTreeSet::new();
    n.visit_extents(inode, 0, u64::MAX, |extent| {
        let (first, end) = extent.blocks();
        blocks.extend((first..end).map(|block| (extent.index, block)));
        true
    })
    .unwrap();
    blocks
}

proptest! {
    /// A row freed while part of it is read would take data (or the parity of data) away; one never freed is lost
    /// space.
    #[test]
    fn rows_are_freed_when_nothing_of_them_is_named(
        steps in prop::collection::vec((0u64..60, 1u64..40, any::<bool>()), 1..25),
    ) {
        let mut n = namespace();
        let id = file(&mut n);
        let mut ever: BTreeSet<(u32, u64)> = BTreeSet::new();
        for (i, (at, blocks, truncate)) in steps.into_iter().enumerate() {
            if truncate {
                n.truncate_extents(id, at * 4096 + 100).unwrap();
            } else {
                // A new chunk for each write, as a writer session does.
                let index = i as u32 + 1;
                let kind = ExtentKind::Erasure(stripe());
                let extent = Extent { file_offset: at * 4096, length: blocks * 4096, pg: 4, index, chunk_offset: 0, kind, shared: false, birth: 0 };
                publish(&mut n, id, vec![extent], Vec::new());
                ever.extend((0..extent.blocks().1).map(|block| (index, block)));
            }
            let gone: Vec<(u32, u64)> = freed(&n).into_iter().map(|(_, index, block)| (index, block)).collect();
            let now: BTreeSet<(u32, u64)> = gone.iter().copied().collect();
            prop_assert_eq!(now.len(), gone.len(), "freed twice");
            let expected: BTreeSet<_> = ever.difference(&named(&n, id)).copied().collect();
            prop_assert_eq!(now, expected);
        }
    }
}

fn columns(count: u32) -> Columns {
    (0..count).map(|i| (100 + i, 7 * i)).collect()
}

/// Space of 127 of 128 chunks would never come back, or a reader would not find its chunks.
#[test]
fn a_stripe_set_frees_all_its_columns_and_goes_with_its_last_extent() {
    let mut n = namespace();
    let id = file(&mut n);
    let wide = Stripe::new(130, UNIT).expect("valid");
    let kind = ExtentKind::Set(wide);
    let extent = Extent {
        file_offset: 0,
        length: 3 * wide.row(),
        pg: 100,
        index: 0,
        chunk_offset: 0,
        kind,
        shared: false,
        birth: 0,
    };
    publish(&mut n, id, vec![extent], vec![columns(130)]);
    assert_eq!(n.set_columns(id, 100, 0).unwrap(), columns(130));
    n.truncate_extents(id, wide.row() + 1).unwrap();
    assert_eq!(freed(&n).len(), 130 * 2, "one row of two blocks on each column");
    assert_eq!(n.set_columns(id, 100, 0).unwrap(), columns(130));
    n.truncate_extents(id, 0).unwrap();
    let all: BTreeSet<_> = freed(&n).into_iter().collect();
    assert_eq!(all.len(), 130 * 3 * 2);
    assert!(columns(130).iter().all(|(pg, index)| all.contains(&(*pg, *index, 5))));
    assert_eq!(n.set_columns(id, 100, 0).unwrap(), Columns::new());
}

/// The space of failed writes would never come back.
#[test]
fn what_was_never_published_is_freed_on_all_columns() {
    let mut n = namespace();
    let set = ExtentKind::Set(stripe());
    let plain = ExtentKind::Plain;
    n.scratch.incoming = vec![
        Extent {
            file_offset: 0,
            length: 5000,
            pg: 9,
            index: 4,
            chunk_offset: 4096,
            kind: plain,
            shared: false,
            birth: 0,
        },
        Extent {
            file_offset: 1 << 20,
            length: 10,
            pg: 100,
            index: 0,
            chunk_offset: 0,
            kind: set,
            shared: false,
            birth: 0,
        },
    ];
    n.scratch.sets = vec![columns(3)];
    n.free_incoming();
    let gone: BTreeSet<_> = freed(&n).into_iter().collect();
    let mut expected = BTreeSet::from([(9, 4, 1), (9, 4, 2)]);
    expected.extend(columns(3).into_iter().flat_map(|(pg, index)| [(pg, index, 0), (pg, index, 1)]));
    assert_eq!(gone, expected);
}

/// Damage or a hostile client would put a map into the tree that no reader can follow.
#[test]
fn sets_that_do_not_fit_are_refused() {
    let mut n = namespace();
    let id = file(&mut n);
    let set = |name: (u32, u32), pgs: &[u32], indices: &[u32]| {
        let mut set = Vec::new();
        put_message(&mut set, 9, |out| {
            put_number(out, 1, u64::from(name.0));
            put_number(out, 2, u64::from(name.1));
            put_message(out, 3, |out| pgs.iter().for_each(|n| put_varint(out, u64::from(*n))));
            put_message(out, 4, |out| indices.iter().for_each(|n| put_varint(out, u64::from(*n))));
        });
        set
    };
    let kind = ExtentKind::Set(stripe());
    let extent = Extent { file_offset: 0, length: 10, pg: 1, index: 2, chunk_offset: 0, kind, shared: false, birth: 0 };
    let good = set((1, 2), &[1, 5, 6], &[2, 0, 1]);
    let cases = [
        (Vec::new(), "no set at all"),
        (set((1, 2), &[1, 5], &[2, 0]), "too few columns"),
        (set((1, 2), &[1, 5, 6], &[2, 0]), "lists of different lengths"),
        (set((1, 2), &[9, 5, 6], &[2, 0, 1]), "not named by its first column"),
        ([good.clone(), good.clone()].concat(), "twice"),
        ([good.clone(), set((3, 3), &[3], &[3])].concat(), "one that no extent names"),
    ];
    for (bytes, what) in cases {
        n.scratch.incoming = vec![extent];
        assert!(n.check_sets(&RepeatedMessages::new(&bytes, 9, false), Some(id)).is_err(), "{what}");
    }
    n.scratch.incoming = vec![extent];
    n.check_sets(&RepeatedMessages::new(&good, 9, false), Some(id)).unwrap();
    n.put_sets(id);
    n.put_first_extents(id);
    // Known to the file: need not be sent again, and cannot become another one.
    n.check_sets(&RepeatedMessages::new(&[], 9, true), Some(id)).unwrap();
    let other = set((1, 2), &[1, 5, 7], &[2, 0, 1]);
    assert!(n.check_sets(&RepeatedMessages::new(&other, 9, false), Some(id)).is_err());
}
