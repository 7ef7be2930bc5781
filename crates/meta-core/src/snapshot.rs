//! A version of the namespace that does not change any more, and its pages for a checkpoint.
//!
//! Taking one is O(1). Pages are written by another thread while operations go on. Every page starts with one byte:
//!
//! | kind | page | contents |
//! |---|---|---|
//! | 1 | header, the first page, one | below |
//! | 2 | live sessions | records, see `session/image.rs` |
//! | 3 | ended sessions, at most one | numbers, see `session/image.rs` |
//! | 4 | entries | leaf images of the tree one after the other, see `cairn_tree` |
//! | 5 | end, the last page, one | number of entries, of live and of other sessions in all pages, u64 each |
//! | 6 | spared sessions, at most one | from feature level 24 on: numbers, see `session/image.rs` |
//!
//! Header with its kind, 144 bytes (152 in version 3), all numbers little-endian:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 1 | 8 | magic `CAIRNNSP` |
//! | 9 | 2 | format version: 3 if the range of inode ids begins behind 1, else 2 if there is a feature level, else 1 |
//! | 11 | 2 | activated feature level; 0 in version 1, not 0 in version 2 |
//! | 13 | 3 | zero |
//! | 16 | 4 | volume |
//! | 20 | 4 | partition |
//! | 24 | 8 | last inode id of the range |
//! | 32 | 8 | next inode id to give (0: none left) |
//! | 40 | 8 | next free record id |
//! | 48 | 8 | index of the last operation |
//! | 56 | 8 | newest logged time |
//! | 64 | 8 each | inodes, directories, file bytes, stored bytes, holds, dead inodes, dead directories, dead sessions, free records |
//! | 136 | 8 | floor of ended sessions |
//! | 144 | 8 | version 3 only: first inode id of the range, above 1 |
//!
//! Pages have no checksums of their own but for leaf images; the checkpoint file around them has.
use crate::counters::Counters;
use crate::key;
use crate::namespace::Namespace;
use crate::session::SessionTable;
use cairn_tree::{LeafImage, Tree};
use cairn_types::InodeId;

pub(crate) const MAGIC: &[u8; 8] = b"CAIRNNSP";
pub(crate) const VERSION: u16 = 1;
/// Since there is a feature level: builds from before refuse it instead of leaving it out.
pub(crate) const VERSION_LEVEL: u16 = 2;
/// Since a volume may have several partitions: builds from before take all ids up to the last one for its own.
pub(crate) const VERSION_RANGE: u16 = 3;
/// Without what version 3 has behind it.
pub(crate) const HEADER_LEN: usize = 144;
pub(crate) const PAGE_HEADER: u8 = 1;
pub(crate) const PAGE_LIVE_SESSIONS: u8 = 2;
pub(crate) const PAGE_ENDED_SESSIONS: u8 = 3;
pub(crate) const PAGE_ENTRIES: u8 = 4;
pub(crate) const PAGE_END: u8 = 5;
pub(crate) const PAGE_SPARED_SESSIONS: u8 = 6;

/// The state after one log entry.
#[derive(Debug)]
pub struct NamespaceSnapshot {
    pub(crate) volume: u32,
    pub(crate) partition: u32,
    pub(crate) inode_first: u64,
    pub(crate) inode_last: u64,
    pub(crate) inode_next: u64,
    pub(crate) free_next: u64,
    pub(crate) applied: u64,
    pub(crate) time: u64,
    pub(crate) level: u16,
    pub(crate) counters: Counters,
    pub(crate) tree: Tree,
    pub(crate) sessions: SessionTable,
}

impl Namespace {
    /// The present state, O(1).
    pub fn snapshot(&self) -> NamespaceSnapshot {
        NamespaceSnapshot {
            volume: self.volume,
            partition: self.partition,
            inode_first: self.inode_first,
            inode_last: self.inode_last,
            inode_next: self.inode_next,
            free_next: self.free_next,
            applied: self.applied,
            time: self.time,
            level: self.level,
            counters: self.counters,
            tree: self.tree.snapshot(),
            sessions: self.sessions.clone(),
        }
    }
}

impl NamespaceSnapshot {
    pub(crate) const fn is_own(&self, id: u64) -> bool {
        self.inode_first <= id && id <= self.inode_last
    }

    pub(crate) const fn is_one_of_several(&self) -> bool {
        self.inode_first > InodeId::ROOT.0 || self.inode_last < u64::MAX
    }

    pub(crate) fn is_listed_dead(&self, id: u64) -> bool {
        let keys = [key::dead_inode(id), key::waiting_directory(id)];
        keys.iter().any(|key| self.tree.contains_key(key.as_bytes()))
    }

    /// Raft index of the last operation in it.
    pub fn applied_index(&self) -> u64 {
        self.applied
    }

    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The pages in order, each of about `page_bytes` (at least one record or tree page).
    pub fn pages(&self, page_bytes: usize) -> SnapshotPages<'_> {
        SnapshotPages { snapshot: self, page_bytes, stage: Stage::Header, leaves: self.tree.pages(), next_leaf: None }
    }

    pub(crate) fn header(&self, out: &mut Vec<u8>) {
        out.push(PAGE_HEADER);
        out.extend_from_slice(MAGIC);
        let has_first = self.inode_first > InodeId::ROOT.0;
        let version = match self.level {
            _ if has_first => VERSION_RANGE,
            0 => VERSION,
            _ => VERSION_LEVEL,
        };
        out.extend_from_slice(&version.to_le_bytes());
        out.extend_from_slice(&self.level.to_le_bytes());
        out.extend_from_slice(&[0; 3]);
        out.extend_from_slice(&self.volume.to_le_bytes());
        out.extend_from_slice(&self.partition.to_le_bytes());
        for field in [self.inode_last, self.inode_next, self.free_next, self.applied, self.time] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        for counter in self.counters.to_array() {
            out.extend_from_slice(&counter.to_le_bytes());
        }
        out.extend_from_slice(&self.sessions.floor().to_le_bytes());
        if has_first {
            out.extend_from_slice(&self.inode_first.to_le_bytes());
        }
    }
}

enum Stage {
    Header,
    /// Live sessions after this one.
    Live(Option<u64>),
    Ended,
    Spared,
    Entries,
    End,
    Done,
}

/// See [`NamespaceSnapshot::pages`].
pub struct SnapshotPages<'a> {
    snapshot: &'a NamespaceSnapshot,
    page_bytes: usize,
    stage: Stage,
    leaves: cairn_tree::Pages<'a>,
    /// A leaf that did not fit the page before.
    next_leaf: Option<LeafImage<'a>>,
}

impl SnapshotPages<'_> {
    /// Puts the next page into `page` (cleared first); false when there is none.
    pub fn next_into(&mut self, page: &mut Vec<u8>) -> bool {
        loop {
            page.clear();
            match self.stage {
                Stage::Header => {
                    self.snapshot.header(page);
                    self.stage = Stage::Live(None);
                }
                Stage::Live(after) => {
                    page.push(PAGE_LIVE_SESSIONS);
                    match self.snapshot.sessions.append_live(after, self.page_bytes.saturating_sub(1), page) {
                        Some(last) => self.stage = Stage::Live(Some(last)),
                        None => {
                            self.stage = Stage::Ended;
                            continue;
                        }
                    }
                }
                Stage::Ended => {
                    self.stage = Stage::Spared;
                    page.push(PAGE_ENDED_SESSIONS);
                    if !self.snapshot.sessions.append_ended(page) {
                        continue;
                    }
                }
                Stage::Spared => {
                    self.stage = Stage::Entries;
                    page.push(PAGE_SPARED_SESSIONS);
                    if !self.snapshot.sessions.append_spared(page) {
                        continue;
                    }
                }
                Stage::Entries => {
                    if !self.fill_with_leaves(page) {
                        self.stage = Stage::End;
                        continue;
                    }
                }
                Stage::End => {
                    self.stage = Stage::Done;
                    page.push(PAGE_END);
                    let (live, ended) = self.snapshot.sessions.counts();
                    for count in [self.snapshot.tree.len(), live, ended] {
                        page.extend_from_slice(&count.to_le_bytes());
                    }
                }
                Stage::Done => return false,
            }
            return true;
        }
    }

    fn fill_with_leaves(&mut self, page: &mut Vec<u8>) -> bool {
        page.push(PAGE_ENTRIES);
        while let Some(leaf) = self.next_leaf.take().or_else(|| self.leaves.next()) {
            if page.len() > 1 && page.len() + leaf.image_len() > self.page_bytes {
                self.next_leaf = Some(leaf);
                break;
            }
            leaf.append_to(page);
        }
        page.len() > 1
    }
}

impl Iterator for SnapshotPages<'_> {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        let mut page = Vec::with_capacity(self.page_bytes.min(1 << 20));
        self.next_into(&mut page).then_some(page)
    }
}
