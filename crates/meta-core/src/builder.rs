//! Putting a namespace together from the pages of a checkpoint. Entries are not parsed: tree pages are taken over as
//! they are, after their checksum and structure have been checked.
use crate::counters::Counters;
use crate::namespace::Namespace;
use crate::session::SessionTable;
use crate::snapshot::{
    HEADER_LEN, MAGIC, PAGE_END, PAGE_ENDED_SESSIONS, PAGE_ENTRIES, PAGE_HEADER, PAGE_LIVE_SESSIONS,
    PAGE_SPARED_SESSIONS, VERSION, VERSION_LEVEL, VERSION_RANGE,
};
use cairn_tree::{LeafPage, TreeBuilder, TreeError};
use cairn_types::InodeId;

/// Why a checkpoint was refused. The caller takes an older one, or one of another replica.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    #[error("not a checkpoint of a namespace, or of a version that this program does not read: {0}")]
    NotANamespace(&'static str),
    #[error("page {page} of the namespace's checkpoint is damaged: {rule}; take another checkpoint")]
    Malformed { page: u64, rule: &'static str },
    #[error("page {page} of the namespace's checkpoint: {source}")]
    Tree { page: u64, source: TreeError },
    #[error("the namespace's checkpoint ends early; take another checkpoint")]
    Incomplete,
}

/// Takes pages in the order in which [`crate::SnapshotPages`] gave them.
#[derive(Default)]
pub struct NamespaceBuilder {
    header: Option<Header>,
    sessions: SessionTable,
    tree: TreeBuilder,
    pages: u64,
    /// What the last page counted: entries, live sessions, ended and spared ones.
    counts: Option<[u64; 3]>,
}

struct Header {
    volume: u32,
    partition: u32,
    inode_first: u64,
    fields: [u64; 5],
    level: u16,
    counters: Counters,
}

impl NamespaceBuilder {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a page. Any bytes are safe.
    pub fn push_page(&mut self, page: &[u8]) -> Result<(), RestoreError> {
        let number = self.pages;
        self.pages += 1;
        let malformed = |rule| RestoreError::Malformed { page: number, rule };
        let (kind, body) = page.split_first().ok_or(malformed("a page is not empty"))?;
        if (number == 0) != (*kind == PAGE_HEADER) {
            return Err(malformed("the header comes first, and once"));
        }
        if self.counts.is_some() {
            return Err(malformed("nothing follows the end"));
        }
        match *kind {
            PAGE_HEADER => self.push_header(page),
            PAGE_LIVE_SESSIONS => self.sessions.load_live(body).ok_or(malformed("a session record")),
            PAGE_ENDED_SESSIONS => self.sessions.load_ended(body).ok_or(malformed("the list of ended sessions")),
            PAGE_SPARED_SESSIONS => self.sessions.load_spared(body).ok_or(malformed("the list of spared sessions")),
            PAGE_ENTRIES => self.push_leaves(number, body),
            PAGE_END => {
                let (numbers, rest) = body.as_chunks::<8>();
                let counts = numbers.try_into().ok().filter(|_| rest.is_empty());
                let counts: [[u8; 8]; 3] = counts.ok_or(malformed("the end has three numbers"))?;
                self.counts = Some(counts.map(u64::from_le_bytes));
                Ok(())
            }
            _ => Err(malformed("a kind of page that is not known")),
        }
    }

    fn push_header(&mut self, page: &[u8]) -> Result<(), RestoreError> {
        const OTHER_LENGTH: RestoreError = RestoreError::NotANamespace("the header has another length");
        let (page, first): (&[u8; HEADER_LEN], &[u8]) = page.split_first_chunk().ok_or(OTHER_LENGTH)?;
        if page[1..9] != *MAGIC {
            return Err(RestoreError::NotANamespace("the header has another magic"));
        }
        let (version, level) = (u16::from_le_bytes([page[9], page[10]]), u16::from_le_bytes([page[11], page[12]]));
        let known = matches!((version, level), (VERSION, 0) | (VERSION_LEVEL, 1..) | (VERSION_RANGE, _));
        if !known || page[13..16] != [0; 3] {
            return Err(RestoreError::NotANamespace("the header is of another version"));
        }
        let inode_first = match (version, first) {
            (VERSION_RANGE, bytes) => u64::from_le_bytes(bytes.try_into().map_err(|_| OTHER_LENGTH)?),
            (_, []) => InodeId::ROOT.0,
            _ => return Err(OTHER_LENGTH),
        };
        if version == VERSION_RANGE && inode_first <= InodeId::ROOT.0 {
            return Err(RestoreError::NotANamespace("the range of inode ids of that version begins behind 1"));
        }
        let short = |at: usize| u32::from_le_bytes([page[at], page[at + 1], page[at + 2], page[at + 3]]);
        let long = |at: usize| u64::from(short(at)) | u64::from(short(at + 4)) << 32;
        self.header = Some(Header {
            volume: short(16),
            partition: short(20),
            inode_first,
            fields: std::array::from_fn(|i| long(24 + 8 * i)),
            level,
            counters: Counters::from_array(std::array::from_fn(|i| long(64 + 8 * i))),
        });
        self.sessions.set_floor(long(136));
        Ok(())
    }

    fn push_leaves(&mut self, number: u64, mut images: &[u8]) -> Result<(), RestoreError> {
        let malformed = |rule| RestoreError::Malformed { page: number, rule };
        while !images.is_empty() {
            let length = LeafPage::image_len(images).ok_or(malformed("a tree page is cut off"))?;
            let (image, rest) = images.split_at_checked(length).ok_or(malformed("a tree page is cut off"))?;
            self.tree.push_leaf(image).map_err(|source| RestoreError::Tree { page: number, source })?;
            images = rest;
        }
        Ok(())
    }

    /// The namespace, when all pages have come.
    pub fn finish(self) -> Result<Namespace, RestoreError> {
        let (Some(header), Some(counts)) = (self.header, self.counts) else {
            return Err(RestoreError::Incomplete);
        };
        let tree = self.tree.finish().map_err(|source| RestoreError::Tree { page: self.pages, source })?;
        let (live, ended) = self.sessions.counts();
        if [tree.len(), live, ended] != counts {
            return Err(RestoreError::Incomplete);
        }
        let [inode_last, inode_next, free_next, applied, time] = header.fields;
        let mut namespace = Namespace::empty(header.volume, header.partition, header.inode_first, inode_last);
        (namespace.inode_next, namespace.free_next, namespace.applied) = (inode_next, free_next, applied);
        (namespace.time, namespace.level, namespace.counters) = (time, header.level, header.counters);
        (namespace.tree, namespace.sessions) = (tree.into(), self.sessions);
        namespace.cuts = namespace.count_cuts();
        namespace.volatiles = namespace.count_volatiles();
        namespace.appending = namespace.count_appending();
        namespace.staged = namespace.count_staged();
        let malformed = RestoreError::Malformed { page: self.pages, rule: "a record of a snapshot" };
        namespace.load_snapshots().map_err(|_| malformed)?;
        let malformed = RestoreError::Malformed { page: self.pages, rule: "a record of shared blocks" };
        namespace.shares = namespace.count_shares().ok_or(malformed)?;
        let malformed = RestoreError::Malformed { page: self.pages, rule: "a key of a deferred death" };
        namespace.recount_deferred().map_err(|_| malformed)?;
        let malformed = RestoreError::Malformed { page: self.pages, rule: "a key of a session's locks" };
        namespace.recount_locks().map_err(|_| malformed)?;
        let malformed = RestoreError::Malformed { page: self.pages, rule: "how full the partition is" };
        namespace.load_fullness().map_err(|_| malformed)?;
        let malformed = RestoreError::Malformed { page: self.pages, rule: "the volume's quota" };
        namespace.recount_quotas().map_err(|_| malformed)?;
        let malformed = RestoreError::Malformed { page: self.pages, rule: "a record of operations across partitions" };
        namespace.recount_txs().map_err(|_| malformed)?;
        let malformed = RestoreError::Malformed { page: self.pages, rule: "what is lent of the volume's limit" };
        namespace.load_lending().map_err(|_| malformed)?;
        let malformed =
            RestoreError::Malformed { page: self.pages, rule: "an entry of a removed directory that waits" };
        namespace.waiting = namespace.count_waiting().map_err(|_| malformed)?;
        let malformed = RestoreError::Malformed { page: self.pages, rule: "a record of a delegation" };
        namespace.recount_delegations().map_err(|_| malformed)?;
        Ok(namespace)
    }
}
