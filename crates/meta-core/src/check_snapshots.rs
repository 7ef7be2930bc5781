//! What must hold of snapshots between two operations, checked by reading everything. Part of
//! [`Namespace::check_invariants`].
use crate::check::{Violation, ensure};
use crate::encoding::{Extent, Inode, KeptRecord, ShareRecord, SnapshotRecord};
use crate::key::{self, Kind};
use crate::layers::{LISTED, kept_inode, read_image};
use crate::namespace::Namespace;
use crate::stripe_set::set_of;
use std::collections::{BTreeMap, BTreeSet};

type Block = (u32, u32, u64);

/// Entries that snapshots leave.
#[derive(Default)]
pub(crate) struct FoundSnapshots {
    records: BTreeMap<u64, SnapshotRecord>,
    images: BTreeSet<(u64, Vec<u8>)>,
    changed: BTreeSet<(u64, Vec<u8>)>,
    kept: Vec<(u64, KeptRecord)>,
}

impl FoundSnapshots {
    pub fn collect(&mut self, kind: Kind, suffix: &[u8], value: &[u8]) -> Option<()> {
        match kind {
            Kind::Image => {
                let whole = [&[0; 8], [kind as u8].as_slice(), suffix].concat();
                let (of, number) = key::image_parts(&whole)?;
                kept_inode(of)?;
                read_image(value)?;
                self.images.insert((number, of.to_vec()));
            }
            Kind::Changed => {
                let (number, of) = suffix.split_first_chunk::<8>()?;
                kept_inode(of).filter(|_| value == LISTED)?;
                self.changed.insert((u64::from_be_bytes(*number), of.to_vec()));
            }
            Kind::Snapshot => {
                self.records.insert(key::number(suffix)?, SnapshotRecord::decode(value)?);
            }
            Kind::Snapshots => drop(crate::encoding::SnapshotState::decode(value).filter(|_| suffix.is_empty())?),
            Kind::Schedule => {
                let is_place = suffix.is_empty() || key::number(suffix).is_some_and(|directory| directory != 0);
                drop(crate::encoding::decode_rules(value).filter(|_| is_place)?);
            }
            Kind::Kept => {
                let (number, _) = key::deferred_death(suffix)?;
                self.kept.push((number, KeptRecord::decode(value)?));
            }
            _ => return None,
        }
        Some(())
    }
}

impl Namespace {
    pub(crate) fn check_snapshots_found(
        &self,
        found: &FoundSnapshots,
        inodes: &BTreeMap<u64, Inode>,
        extents: &BTreeMap<u64, Vec<Extent>>,
        free: &BTreeSet<Block>,
    ) -> Result<(), Violation> {
        let leases: BTreeSet<u64> =
            inodes.iter().filter(|(_, inode)| inode.lease.is_some()).map(|(id, _)| *id).collect();
        ensure(leases == self.snapshots.leases, 0, "files with overwrite leases are listed wrong")?;
        let (images, changed) = (&found.images, &found.changed);
        ensure(images == changed, 0, "images are not what is listed as changed")?;
        let numbers: BTreeSet<u64> = found.records.keys().copied().collect();
        let foreign = images.iter().find(|(number, _)| !numbers.contains(number));
        ensure(foreign.is_none(), 0, &format!("an image of a snapshot that is not there: {foreign:?}"))?;
        let known: BTreeMap<u64, SnapshotRecord> = found.records.clone();
        let listed = self.snapshots().into_iter().map(|info| (info.number, info.name, info.deleting));
        let stored = known.iter().map(|(number, record)| (*number, record.name.clone(), record.deleting));
        ensure(listed.eq(stored), 0, "snapshots are listed wrong")?;
        let live = || known.iter().filter(|(_, record)| !record.deleting).map(|(number, _)| *number);
        ensure(
            leases.is_empty() || live().next().is_none(),
            0,
            "a file is overwritten in place while there are snapshots",
        )?;

        let mut named: BTreeSet<Block> = BTreeSet::new();
        extents.iter().for_each(|(id, extents)| extents.iter().for_each(|e| self.blocks_of(*id, e, &mut named)));
        let (mut kept, mut sums) = (BTreeMap::<Block, Vec<(u64, u64)>>::new(), BTreeMap::<u64, u64>::new());
        for (number, record) in &found.kept {
            *sums.entry(*number).or_default() += record.blocks;
            ensure(
                numbers.contains(number) && record.birth < *number,
                0,
                "blocks are kept for a snapshot that cannot name them",
            )?;
            for block in record.first_block..record.first_block + record.blocks {
                let block = (record.pg, record.index, block);
                kept.entry(block).or_default().push((record.birth, *number));
                ensure(!free.contains(&block), 0, &format!("block {block:?} is kept and to be freed"))?;
            }
        }
        let listed =
            self.snapshots().into_iter().map(|info| (info.number, info.kept_blocks)).filter(|(_, kept)| *kept > 0);
        ensure(listed.eq(sums), 0, "blocks that snapshots keep are counted wrong")?;
        for number in live() {
            for (id, block) in self.blocks_at(number)? {
                let lives = kept.get(&block).into_iter().flatten();
                let is_kept = lives.into_iter().any(|(birth, until)| *birth < number && number <= *until);
                let rule = format!("block {block:?} is named at snapshot {number}, and neither kept nor a file's");
                ensure(is_kept || named.contains(&block), id, &rule)?;
                ensure(
                    !free.contains(&block),
                    id,
                    &format!("block {block:?} is named at snapshot {number} and to be freed"),
                )?;
            }
        }
        Ok(())
    }

    /// Who names again what a snapshot keeps, or keeps it twice, is counted.
    pub(crate) fn check_kept(
        &self,
        found: &FoundSnapshots,
        extents: &BTreeMap<u64, Vec<Extent>>,
        shares: &[ShareRecord],
    ) -> Result<(), Violation> {
        let mut named: BTreeSet<Block> = BTreeSet::new();
        extents.iter().for_each(|(id, extents)| extents.iter().for_each(|e| self.blocks_of(*id, e, &mut named)));
        let mut kept: BTreeMap<Block, u64> = BTreeMap::new();
        for (_, record) in &found.kept {
            let blocks = record.first_block..record.first_block + record.blocks;
            blocks.for_each(|block| *kept.entry((record.pg, record.index, block)).or_default() += 1);
        }
        let mut counted: BTreeMap<Block, u64> = BTreeMap::new();
        for record in shares.iter().filter(|record| record.kept > 0) {
            let blocks = record.first_block..record.end_block();
            counted.extend(blocks.map(|block| ((record.pg, record.index, block), record.kept)));
        }
        for (block, count) in &counted {
            let is = kept.get(block).copied().unwrap_or(0);
            ensure(is == *count, 0, &format!("block {block:?} is kept by {is} records, counted {count}"))?;
        }
        for (block, count) in kept.iter().filter(|(block, _)| !counted.contains_key(block)) {
            ensure(*count == 1, 0, &format!("block {block:?} is kept {count} times, and nothing is counted of it"))?;
            ensure(!named.contains(block), 0, &format!("block {block:?} is kept and a file names it"))?;
        }
        Ok(())
    }

    fn blocks_of(&self, id: u64, extent: &Extent, to: &mut BTreeSet<Block>) {
        let columns = match set_of(extent) {
            None => vec![(extent.pg, extent.index)],
            Some((pg, index)) => self.set_columns(id, pg, index).unwrap_or_default(),
        };
        let (first, end) = extent.blocks();
        columns.iter().for_each(|(pg, index)| to.extend((first..end).map(|block| (*pg, *index, block))));
    }

    /// All blocks that a snapshot names, each with an inode that does.
    fn blocks_at(&self, number: u64) -> Result<Vec<(u64, Block)>, Violation> {
        let Some(at) = self.snapshots.at_number(number) else { return Ok(Vec::new()) };
        let view = self.view(at);
        let mut inodes: BTreeSet<u64> = BTreeSet::new();
        let mut range = self.tree.iter();
        while let Some((entry, _)) = range.next() {
            let of = key::image_parts(entry).map_or(entry, |(of, _)| of);
            inodes.extend(kept_inode(of).filter(|inode| *inode < at.inode_next));
        }
        let mut blocks = Vec::new();
        for inode in inodes {
            let mut of_inode = BTreeSet::new();
            let id = inode | at.outward;
            let read = view.visit_extents(id, 0, u64::MAX, |extent| {
                view.blocks_of(id, &extent, &mut of_inode);
                true
            });
            ensure(read.is_ok(), inode, &format!("an extent at snapshot {number} cannot be read"))?;
            blocks.extend(of_inode.into_iter().map(|block| (inode, block)));
        }
        Ok(blocks)
    }
}
