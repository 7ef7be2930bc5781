//! Files whose time has come by the columns of stripe groups in which they lie: what there is to put into one chunk of
//! whole shards, and when it is enough.
//!
//! Invariants: each column has a list of its own, so that what is left over in a full one never hides what comes into a
//! poor one; a chunk is asked for when there is a shard's worth of every column, or somebody in the poorest one has
//! waited for half of the time that it waits for others. So a steady stream of files makes few chunks, and long ones.
//! Bounds: [`GROUPS_MAX`] stripe groups, [`COLUMN_FILES`] files of each column, [`FILES_MAX`] of a request. Not here:
//! who encodes, and what is left over (`together`).

use std::collections::BTreeMap;

use cairn_meta_core::StagedFile;
use cairn_node_agent::MapView;
use cairn_types::{CHUNK_SIZE_MAX, MemberState, PgId, Scheme, WallTime};
use cairn_wire::data::PgMember;
use cairn_wire::manager::PgColumn;

/// Stripe groups that are looked at; more come when these are done.
const GROUPS_MAX: usize = 1024;
/// Files of a column that are remembered.
const COLUMN_FILES: usize = 4096;
/// Copies of a file that is longer may lie in several columns: clients write files in pieces that are not shorter.
const PIECE_MIN: u64 = 1 << 20;
/// Files of a request: as many as the other side looks at.
const FILES_MAX: usize = 8192;

/// The column in which a file may be encoded together with others, and whether it lacks a member. What is complete and
/// takes no chunks is none: stripe groups are off, or it is given up. What lacks a member takes none for that reason,
/// for a time.
pub(super) fn column_of(map: &MapView, pg: u32) -> Option<(&PgColumn, bool)> {
    let (column, group) = (map.column(PgId(pg))?, map.pg(PgId(pg))?);
    let serves = |member: &&PgMember| member.state == u32::from(MemberState::Serving.code());
    let wanted = Scheme::from_code(u8::try_from(group.scheme).ok()?)?.members();
    // One that joins a group whose copies all serve is a member more.
    let degraded = group.members.iter().filter(serves).count() < wanted;
    (column.writable || degraded).then_some((column, degraded))
}

/// Whether the map has the group: one that was just made is told to leaders a moment later.
pub(super) fn is_known(map: &MapView, pg: u32) -> bool {
    map.pg(PgId(pg)).is_some()
}

/// What is due in one column.
#[derive(Debug)]
struct OfColumn {
    bytes: u64,
    inodes: Vec<u64>,
    /// Until when its first file waits for a chunk to be filled.
    fills_until: WallTime,
}

/// What is due in the columns of one stripe group.
#[derive(Debug)]
pub(super) struct OfGroup {
    pub(super) rack: String,
    /// One of its columns, to find nodes by.
    pub(super) pg: PgId,
    k: usize,
    columns: BTreeMap<u32, OfColumn>,
    /// A column lacks a member: nothing may come of it until that is back or replaced.
    pub(super) degraded: bool,
    /// Files that may lie in other columns as well, which only their extents tell.
    long_files: bool,
}

impl OfGroup {
    fn new(pg: PgId, column: &PgColumn) -> Option<Self> {
        let k = match Scheme::from_code(u8::try_from(column.later).ok()?)? {
            Scheme::Erasure { k, .. } => usize::from(k),
            _ => return None,
        };
        let (rack, columns) = (column.core_rack.clone(), BTreeMap::new());
        Some(Self { rack, pg, k, columns, degraded: false, long_files: false })
    }

    fn push(&mut self, position: u32, file: &StagedFile, fills_until: WallTime) {
        self.long_files |= file.copies > PIECE_MIN;
        let none = || OfColumn { bytes: 0, inodes: Vec::new(), fills_until };
        let column = self.columns.entry(position).or_insert_with(none);
        column.fills_until = column.fills_until.min(fills_until);
        column.bytes = column.bytes.saturating_add(file.copies);
        if column.inodes.len() < COLUMN_FILES {
            column.inodes.push(file.inode);
        }
    }

    /// Whether a chunk is to be made of it now.
    pub(super) fn is_ready(&self, wall: WallTime) -> bool {
        let mut columns = self.columns.values();
        if self.long_files {
            let all: u64 = self.columns.values().map(|column| column.bytes).sum();
            return all >= CHUNK_SIZE_MAX * self.k as u64 || columns.any(|column| column.fills_until <= wall);
        }
        let poorest = columns.min_by_key(|column| column.bytes).filter(|_| self.columns.len() == self.k);
        poorest.is_some_and(|column| column.bytes >= CHUNK_SIZE_MAX || column.fills_until <= wall)
    }

    /// Whether there may be something to put together, now or when more comes.
    pub(super) fn is_in_all(&self) -> bool {
        self.columns.len() == self.k || self.long_files
    }

    /// Files to encode together, ascending: of all columns as many.
    pub(super) fn files(&self) -> Vec<u64> {
        let longest = self.columns.values().map(|column| column.inodes.len()).max().unwrap_or(0);
        let turn = |at: usize| self.columns.values().filter_map(move |column| column.inodes.get(at).copied());
        let mut files: Vec<u64> = (0..longest).flat_map(turn).take(FILES_MAX).collect();
        files.sort_unstable();
        files.dedup();
        files
    }
}

/// What is due in stripe groups.
#[derive(Debug, Default)]
pub(super) struct InColumns {
    groups: BTreeMap<u32, OfGroup>,
    /// It is only what somebody asks for, whatever the hour.
    pub(super) only_asked: bool,
}

impl InColumns {
    /// A file whose time has come, with the column in which it has bytes.
    pub(super) fn push(&mut self, column: &PgColumn, file: &StagedFile, fills_until: WallTime) {
        if !self.groups.contains_key(&column.group) {
            match OfGroup::new(PgId(file.pg), column) {
                Some(group) if self.groups.len() < GROUPS_MAX => drop(self.groups.insert(column.group, group)),
                _ => return,
            }
        }
        if let Some(group) = self.groups.get_mut(&column.group) {
            group.push(column.position, file, fills_until);
        }
    }

    /// A column of a stripe group lacks a member.
    pub(super) fn note_degraded(&mut self, group: u32) {
        if let Some(group) = self.groups.get_mut(&group) {
            group.degraded = true;
        }
    }

    pub(super) fn contains(&self, group: u32) -> bool {
        self.groups.contains_key(&group)
    }

    pub(super) fn into_groups(self) -> impl Iterator<Item = (u32, OfGroup)> {
        self.groups.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_types::{Stage, StageAfter};
    use cairn_wire::data::{PgMember, PgState};
    use cairn_wire::manager::{ClusterMap, Pg};

    const WAITS: WallTime = WallTime(1_000);
    const LATER: WallTime = WallTime(1_001);
    const NOW: WallTime = WallTime(10);

    fn file(inode: u64, bytes: u64) -> StagedFile {
        let (stage, after) = (Stage::Copies, StageAfter::DEFAULT);
        let copies = bytes;
        StagedFile {
            inode,
            bytes,
            copies,
            shared: 0,
            stage,
            after,
            changed: 0,
            durable: true,
            pg: 40 + inode as u32 % 3,
        }
    }

    fn column(group: u32, position: u32) -> PgColumn {
        let later = u32::from("rs-3-2".parse::<Scheme>().expect("a scheme").code());
        PgColumn { group, position, later, core_rack: format!("r{group}"), writable: true, ..Default::default() }
    }

    fn only(all: InColumns) -> OfGroup {
        let mut groups: Vec<_> = all.into_groups().collect();
        assert_eq!(groups.len(), 1);
        groups.remove(0).1
    }

    /// What is left over in full columns would keep files of poor ones from ever being looked at, and all of them from
    /// being encoded together.
    #[test]
    fn a_poor_column_is_not_hidden_by_full_ones() {
        let mut all = InColumns::default();
        (0..50_000).for_each(|inode| all.push(&column(7, inode as u32 % 2), &file(inode, 4096), WAITS));
        assert!(!all.contains(8) && all.contains(7));
        all.push(&column(7, 2), &file(99_999, 4096), WAITS);
        let group = only(all);
        let files = group.files();
        assert_eq!(files.len(), FILES_MAX);
        assert!(files.is_sorted() && files.contains(&99_999) && files.contains(&0) && files.contains(&1));
        assert_eq!(group.rack, "r7");
    }

    /// Each look would make a small chunk of what came since the last one; or files wait for ever for a column that
    /// nobody writes to.
    #[test]
    fn a_chunk_waits_to_be_filled_but_not_for_ever() {
        let mut all = InColumns::default();
        (0..2).for_each(|position| all.push(&column(7, position), &file(u64::from(position), 4096), WAITS));
        let mut group = only(all);
        assert!(!group.is_ready(NOW) && !group.is_ready(LATER), "a column has nothing");
        group.push(2, &file(3, 1000), WallTime(2_000));
        assert!(!group.is_ready(NOW) && !group.is_ready(LATER), "more may come");
        assert!(group.is_ready(WallTime(2_000)), "the first one of the poorest column has waited");
        (0..3).for_each(|position| group.push(position, &file(9, CHUNK_SIZE_MAX - 1), WAITS));
        assert!(group.is_ready(NOW), "full");
    }

    /// A long file lies in several columns, of which only the first is known here.
    #[test]
    fn long_files_fill_columns_that_are_not_known() {
        let mut all = InColumns::default();
        all.push(&column(7, 1), &file(3, PIECE_MIN), WAITS);
        assert!(!only(std::mem::take(&mut all)).is_in_all(), "one piece");
        all.push(&column(7, 1), &file(1, 2 * CHUNK_SIZE_MAX), WAITS);
        let mut group = only(all);
        assert!(!group.is_ready(NOW));
        assert!(group.is_ready(LATER));
        group.push(1, &file(2, CHUNK_SIZE_MAX), WAITS);
        assert!(group.is_ready(NOW), "three shards");
    }

    /// Files would be encoded one by one through other racks while a member is away for a minute; or wait for columns
    /// to which nobody writes any more.
    #[test]
    fn a_column_that_lacks_a_member_is_one_and_a_closed_one_is_not() {
        let scheme = u32::from("r3".parse::<Scheme>().expect("a scheme").code());
        let of = |codes: &[u32], writable: bool| {
            let members = (1..).zip(codes).map(|(disk, state)| PgMember { disk, state: *state, node: disk });
            let state = PgState { pg: 40, scheme, members: members.collect(), ..Default::default() };
            let column = PgColumn { writable, ..column(7, 0) };
            let pg = Pg { state: Some(state), column: Some(column), ..Default::default() };
            let mut map = MapView::default();
            map.apply(&ClusterMap { version: 1, pgs: vec![pg], ..Default::default() });
            column_of(&map, 40).map(|(column, degraded)| (column.group, degraded))
        };
        let state = |code: u32, writable: bool| of(&[1, 1, code], writable);
        let serving = u32::from(MemberState::Serving.code());
        let syncing = u32::from(MemberState::Syncing.code());
        assert_eq!(serving, 1);
        assert_eq!(state(serving, true), Some((7, false)));
        assert_eq!(state(serving, false), None, "stripe groups are off");
        assert_eq!((state(syncing, false), state(syncing, true)), (Some((7, true)), Some((7, true))));
        assert_eq!(of(&[1, 1, 1, syncing], true), Some((7, false)), "a disk joins, and no copy is away");
        assert_eq!(of(&[1, 1, syncing, syncing], true), Some((7, true)));
    }
}
