//! Block ranges, and the rare paths of the map that random files of a few extents do not reach.
use super::*;
use crate::encoding::{Inode, NodeType};
use crate::namespace::NamespaceConfig;
use cairn_types::{Layout, PartitionId, VolumeId};
use proptest::prelude::*;
use std::collections::BTreeSet;

fn namespace() -> Namespace {
    Namespace::new(&NamespaceConfig::new(VolumeId(1), PartitionId(1), Layout::replicated(3)))
}

fn piece(file_offset: u64, length: u64, index: u32, chunk_offset: u64) -> Extent {
    Extent { file_offset, length, pg: 1, index, chunk_offset, kind: ExtentKind::Plain, shared: false, birth: 0 }
}

fn freed(namespace: &Namespace) -> Vec<(u32, u64, u64)> {
    namespace.pending_frees(0, usize::MAX).iter().map(|f| (f.index, f.first_block, f.blocks)).collect()
}

fn file(namespace: &mut Namespace, extents: &[Extent]) -> u64 {
    let id = namespace.next_inode().unwrap();
    let stored = extents.iter().map(|e| e.length).sum();
    let size = extents.last().map_or(0, Extent::end);
    namespace.add_inode(id, &Inode { mode: NodeType::Regular as u16, nlink: 1, size, stored, ..Inode::at(1) });
    namespace.scratch.incoming = extents.to_vec();
    namespace.put_first_extents(id);
    id
}

impl Namespace {
    /// Everything at once, whatever it costs.
    pub(crate) fn truncate_extents(&mut self, inode: u64, size: u64) -> Result<u64> {
        let mut all = Vec::new();
        self.visit_extents(inode, size, u64::MAX, |extent| {
            all.push(extent);
            true
        })?;
        self.remove_behind(inode, size, &all)
    }
}

proptest! {
    /// A block freed that is still named, or one forgotten.
    #[test]
    fn subtracting_ranges_is_subtracting_sets(
        freed in prop::collection::vec((0u32..2, 0u64..40, 1u64..12), 0..8),
        kept in prop::collection::vec((0u32..2, 0u64..40, 1u64..12), 0..8),
    ) {
        let range = |list: &[(u32, u64, u64)]| list.iter().map(|(i, first, n)| (1, *i, *first, first + n)).collect::<Vec<BlockRange>>();
        let set = |list: &[BlockRange]| list.iter().flat_map(|r| (r.2..r.3).map(|b| (r.1, b))).collect::<BTreeSet<_>>();
        let (mut freed, mut kept) = (range(&freed), range(&kept));
        let expected: BTreeSet<_> = set(&freed).difference(&set(&kept)).copied().collect();
        subtract(&mut freed, &mut kept);
        prop_assert_eq!(set(&freed), expected);
    }
}

/// A partly covered block of a file with very many extents is freed although another part may use it.
#[test]
fn a_shared_block_is_kept_when_proof_would_take_too_long() {
    let mut n = namespace();
    // Every second block, so that nothing joins; each in a chunk of its own.
    let many: Vec<Extent> = (0..2000).map(|i| piece(i * 8192, 4096, 100 + i as u32, 0)).collect();
    let mut extents = many.clone();
    extents.push(piece(2000 * 8192, 100, 7, 4096));
    extents.push(piece(3000 * 8192 + 100, 100, 7, 4096 + 100));
    let id = file(&mut n, &extents);
    n.truncate_extents(id, 2500 * 8192).unwrap();
    assert_eq!(freed(&n), [], "the block's first hundred bytes are in use, far away in the file");

    let mut n = namespace();
    let mut few = many[..20].to_vec();
    few.push(piece(2000 * 8192, 100, 7, 4096));
    few.push(piece(3000 * 8192 + 100, 100, 7, 4096 + 100));
    let id = file(&mut n, &few);
    n.truncate_extents(id, 2500 * 8192).unwrap();
    assert_eq!(freed(&n), [], "found by the scan");
    n.truncate_extents(id, 100 * 8192).unwrap();
    assert_eq!(freed(&n), [(7, 1, 1)], "nobody uses it any more");
}

/// A tail block that is replaced with its old bytes as prefix is freed under the new extent.
#[test]
fn a_replaced_tail_block_stays() {
    let mut n = namespace();
    let id = file(&mut n, &[piece(0, 5000, 1, 0)]);
    n.scratch.incoming = vec![piece(4096, 4000, 1, 4096)];
    assert_eq!(n.replace_extents(id).unwrap(), 4000 - 904);
    assert_eq!(freed(&n), []);
    let mut all = Vec::new();
    n.visit_extents(id, 0, u64::MAX, |e| {
        all.push(e);
        true
    })
    .unwrap();
    assert_eq!(all, [piece(0, 8096, 1, 0)]);
}

/// Blocks of several chunks and pieces give more records than ranges.
#[test]
fn free_records_are_joined() {
    let mut n = namespace();
    n.free_all(1, &[piece(0, 4097, 1, 0), piece(8192 + 5, 4096, 1, 4096 + 5), piece(40960, 10, 2, 0)]);
    assert_eq!(freed(&n), [(1, 0, 3), (2, 0, 1)]);
    assert_eq!(n.counters.free_records, 2);
}
