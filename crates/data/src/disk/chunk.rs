//! [`Chunk`]: one chunk of a disk in memory: how far it got, its tables while they are needed, what is on its way.
//!
//! Invariants: a change of the table and the journal record that makes it durable are made under one hold of `state`,
//! so the journal has them in the same order; changes of one chunk are carried out one after the other, in the order in
//! which they were accepted.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use cairn_chunk_core::durability::Durability;
use cairn_chunk_core::overwrite::Follow;
use cairn_env::SharedBuf;
use cairn_format::chunk_header::ChunkHeader;
use cairn_format::crc_table::{PunchedBits, blocks_of, row_tables_crc, rows_to_tables, sector_run, table_crc};
use cairn_format::overwrite_number::OverwriteNumber;
use cairn_types::{ChunkId, Epoch, SessionId, Time};
use parking_lot::Mutex;

use super::DataError;
use super::overwrite::OverwriteJob;
use super::tables_at_home::Sums;

/// Called once with the outcome, from a thread of the disk: must not block.
pub type Done<T> = Box<dyn FnOnce(Result<T, DataError>) + Send>;

/// One chunk of a disk.
pub struct Chunk {
    pub(crate) id: ChunkId,
    pub(crate) header: ChunkHeader,
    pub(crate) strand: Mutex<Strand>,
    pub(crate) state: Mutex<ChunkMem>,
    pub(crate) home: Mutex<HomeView>,
    /// Held while its file gets longer, and while the space reserved behind its end is given back.
    pub(crate) sizing: Mutex<()>,
}

/// Changes of the chunk that wait, in order.
#[derive(Default)]
pub(crate) struct Strand {
    pub(crate) jobs: VecDeque<Job>,
    /// It is in the ready queue or a thread works on it.
    pub(crate) scheduled: bool,
    /// Waits for the creation to be durable in the journal.
    pub(crate) blocked: bool,
}

impl Strand {
    /// Takes an idle strand for the caller, as if it were a thread of the disk.
    pub(crate) fn claim(&mut self) -> bool {
        let idle = !self.scheduled && !self.blocked && self.jobs.is_empty();
        self.scheduled |= idle;
        idle
    }
}

/// A change of a chunk.
pub(crate) enum Job {
    Append(AppendJob),
    Sync {
        done: Done<u64>,
    },
    Seal {
        done: Done<u64>,
    },
    Punch {
        ranges: Vec<(u64, u64)>,
        done: Done<()>,
    },
    /// `as_of`: by a table as of that overwrite.
    Heal {
        block: u32,
        good: GoodBlock,
        as_of: Option<OverwriteNumber>,
        done: Done<()>,
    },
    Overwrite(OverwriteJob),
    /// The chunk was made equal to a table as of an overwrite.
    Copied {
        number: OverwriteNumber,
        epoch: Epoch,
        done: Done<bool>,
    },
}

/// What a bad block is replaced by.
#[derive(Debug, Clone)]
pub struct GoodBlock {
    /// The whole block.
    pub data: SharedBuf,
    /// Its checksum.
    pub crc: u32,
    /// In parity shards: the checksums of the k data blocks of its row; else none.
    pub row_crcs: Vec<u32>,
}

/// An append that was accepted.
pub(crate) struct AppendJob {
    pub(crate) offset: u64,
    /// Payload bytes; `data` is filled up with zeros to whole blocks.
    pub(crate) bytes: usize,
    pub(crate) data: SharedBuf,
    pub(crate) crcs: Vec<u32>,
    /// Of parity shards: k a block.
    pub(crate) row_crcs: Vec<u32>,
    pub(crate) replaces_tail: bool,
    pub(crate) as_of: Option<OverwriteNumber>,
    pub(crate) sync: bool,
    pub(crate) done: Done<Appended>,
}

/// Outcome of an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// End of the chunk after it.
    pub length: u64,
    /// How much is durable.
    pub durable: u64,
}

/// What is known of a chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkInfo {
    /// The chunk.
    pub id: ChunkId,
    /// Bytes written.
    pub length: u64,
    /// Bytes promised.
    pub durable: u64,
    /// Takes no more.
    pub sealed: bool,
    /// Epoch in which it was made.
    pub creation_epoch: Epoch,
    /// Who may append.
    pub session: SessionId,
    /// Checksum of the CRC table up to the length.
    pub table_crc: u32,
    /// Number of freed blocks.
    pub punched_blocks: u32,
    /// The last overwrite in place.
    pub overwrite: OverwriteNumber,
}

/// A block that is in the journal and not yet home.
pub(crate) struct OverlayBlock {
    pub(crate) data: SharedBuf,
    pub(crate) version: u64,
}

/// The chunk's state in memory.
#[derive(Default)]
pub(crate) struct ChunkMem {
    /// Length with what is accepted and not written yet.
    pub(crate) accepted: u64,
    /// Length as it can be read.
    pub(crate) written: u64,
    /// Length as promised in a durable journal record.
    pub(crate) durable: u64,
    pub(crate) durability: Durability,
    /// Takes no more appends.
    pub(crate) sealed: bool,
    /// The journal's records say so too.
    pub(crate) seal_journaled: bool,
    pub(crate) deleted: bool,
    /// Its creation is in the journal.
    pub(crate) created: bool,
    /// Its file exists.
    pub(crate) file_made: bool,
    /// The file's name is durable.
    pub(crate) named: bool,
    /// CRCs of all blocks of `written`; `None` while they are only at home.
    pub(crate) table: Option<Vec<u32>>,
    /// In parity shards, while `table` is in memory: for each data shard the CRCs of the same blocks of it.
    pub(crate) rows: Vec<Vec<u32>>,
    /// Checksum of the table at home, valid while `table` is `None`.
    pub(crate) stored_table_crc: u32,
    /// The same of the tables of row CRCs.
    pub(crate) stored_row_crc: u32,
    pub(crate) punched: Option<Box<PunchedBits>>,
    pub(crate) punched_blocks: u32,
    /// The start left out marks of freed blocks that were damaged: some that read as bad may be freed.
    pub(crate) marks_lost: bool,
    pub(crate) overlay: BTreeMap<u32, OverlayBlock>,
    pub(crate) next_version: u64,
    /// Odd while blocks are being written home.
    pub(crate) home_gen: u64,
    /// End of the space reserved, as an offset in the data.
    pub(crate) allocated: u64,
    /// Records of this chunk that are not yet home and flushed: the table must stay.
    pub(crate) pending: u32,
    /// Why it takes no more appends, if one failed.
    pub(crate) broken: Option<DataError>,
    pub(crate) last_append: Time,
    /// The last overwrite in place, and what is missing before it while the member catches up.
    pub(crate) follow: Follow,
    /// The last overwrite that was accepted, if some are.
    pub(crate) overwrite_accepted: OverwriteNumber,
    pub(crate) overwrites_queued: u32,
    /// Blocks that overwrites changed while the chunk is being copied, with the last one of each.
    pub(crate) touched: BTreeMap<u32, OverwriteNumber>,
    pub(crate) last_overwrite: Option<Time>,
    /// The table at home was held against its sum since the disk was opened, or is in memory since then.
    pub(crate) table_known: bool,
    /// That was not so, and blocks were overwritten: as primary it is first compared with members that know better.
    pub(crate) doubtful: bool,
}

impl ChunkMem {
    pub(crate) fn blocks(&self) -> u32 {
        blocks_of(self.written)
    }

    pub(crate) fn is_punched(&self, blocks: std::ops::Range<u32>) -> bool {
        self.punched.as_ref().is_some_and(|bits| bits.any(blocks))
    }

    /// The CRCs that a record about `blocks` carries: its first block, those of the blocks, those of their rows.
    pub(crate) fn crc_run(&self, blocks: std::ops::Range<u32>) -> (u32, Vec<u32>, Vec<Vec<u32>>) {
        let table = self.table.as_ref().expect("a chunk that changes has its table in memory");
        let run = sector_run(blocks, table.len() as u32);
        let range = run.start as usize..(run.end as usize).min(table.len());
        (run.start, table[range.clone()].to_vec(), self.rows.iter().map(|row| row[range.clone()].to_vec()).collect())
    }

    /// Puts CRCs in from a block on; `row_crcs` has one of each data shard for each block in parity shards.
    pub(crate) fn set_crcs(&mut self, first: u32, crcs: &[u32], row_crcs: &[u32]) {
        assert_eq!(row_crcs.len(), self.rows.len() * crcs.len(), "checksums of rows belong to parity shards");
        let table = self.table.as_mut().expect("a chunk that changes has its table in memory");
        put(table, first as usize, crcs);
        for (row, crcs) in self.rows.iter_mut().zip(rows_to_tables(row_crcs, row_crcs.len() / crcs.len().max(1))) {
            put(row, first as usize, &crcs);
        }
    }

    /// Puts in what a block matches.
    pub(super) fn set_crc(&mut self, block: u32, crc: u32) {
        if let Some(entry) = self.table.as_mut().and_then(|table| table.get_mut(block as usize)) {
            *entry = crc;
        }
    }

    /// The CRCs of the data blocks of the rows of `blocks`, block by block; none but in parity shards, `None` if a
    /// block has none.
    pub(crate) fn row_crcs(&self, blocks: std::ops::Range<u32>) -> Option<Vec<u32>> {
        let mut crcs = Vec::with_capacity(blocks.len() * self.rows.len());
        for block in blocks {
            for row in &self.rows {
                crcs.push(*row.get(block as usize)?);
            }
        }
        Some(crcs)
    }

    /// What its tables at home should be.
    pub(super) fn sums(&self) -> Sums {
        let (table, rows) = (self.stored_table_crc, self.stored_row_crc);
        Sums { blocks: self.blocks(), table, rows, punched: self.punched_blocks }
    }

    pub(crate) fn table_crc(&self) -> u32 {
        match &self.table {
            Some(table) => table_crc(&table[..(self.blocks() as usize).min(table.len())]),
            None => self.stored_table_crc,
        }
    }

    pub(crate) fn row_crc(&self) -> u32 {
        if self.table.is_none() {
            return self.stored_row_crc;
        }
        let blocks = self.blocks() as usize;
        row_tables_crc(self.rows.iter().map(|row| &row[..blocks.min(row.len())]))
    }
}

fn put(table: &mut Vec<u32>, first: usize, crcs: &[u32]) {
    if table.len() < first + crcs.len() {
        table.resize(first + crcs.len(), 0);
    }
    table[first..first + crcs.len()].copy_from_slice(crcs);
}

/// CRCs to be written home.
pub(crate) struct CrcRun {
    /// 0: of the chunk's own blocks; j + 1: of data shard j.
    pub(crate) table: usize,
    pub(crate) first: u32,
    pub(crate) crcs: Arc<[u32]>,
}

/// What is durable in the journal and has to be at home before the journal's space is used again. Owned by the thread
/// that writes home.
#[derive(Default)]
pub(crate) struct HomeView {
    pub(crate) length: u64,
    pub(crate) sealed: bool,
    pub(crate) runs: Vec<CrcRun>,
    pub(crate) punched: Option<Box<PunchedBits>>,
    /// Sectors of PUNCHED bits to be written.
    pub(crate) punched_sectors: Vec<u32>,
    /// The header is to be written, and the zeros behind the state.
    pub(crate) header: bool,
    pub(crate) overwrite: OverwriteNumber,
    /// Records since the last flush.
    pub(crate) records: u32,
}

impl Chunk {
    /// A chunk that does not exist on disk yet.
    pub(crate) fn new(header: ChunkHeader) -> Self {
        let rows = vec![Vec::new(); header.row_tables()];
        let state = ChunkMem { table: Some(Vec::new()), rows, ..ChunkMem::default() };
        Self::with_state(header, state, HomeView::default())
    }

    pub(crate) fn with_state(header: ChunkHeader, state: ChunkMem, home: HomeView) -> Self {
        let (state, home) = (Mutex::new(state), Mutex::new(home));
        Self { id: header.chunk, header, strand: Mutex::default(), state, home, sizing: Mutex::new(()) }
    }

    /// Who may append.
    pub fn session(&self) -> SessionId {
        self.header.session
    }

    /// The group's epoch when it was made.
    pub fn creation_epoch(&self) -> Epoch {
        self.header.creation_epoch
    }

    /// Which shard of its row it is; 0 in replicated groups.
    pub fn shard(&self) -> u8 {
        self.header.shard
    }

    /// Whether it is a shard that has checksums of the data blocks of its rows.
    pub fn is_parity(&self) -> bool {
        self.header.row_tables() > 0
    }

    /// Where a block is in the file.
    pub(crate) fn place_of(&self, block: u32) -> u64 {
        self.header.data_offset() + u64::from(block) * cairn_types::BLOCK_SIZE as u64
    }

    /// Whether it takes no more appends and everything accepted before is written.
    pub fn is_sealed(&self) -> bool {
        self.state.lock().seal_journaled
    }

    /// Whether its end is in the journal.
    pub fn is_deleted(&self) -> bool {
        self.state.lock().deleted
    }

    /// Whether blocks of it were freed, and the last start found that which ones is not known any more.
    pub(crate) fn has_lost_marks(&self) -> bool {
        self.state.lock().marks_lost
    }

    /// Whether any block was overwritten in place.
    pub fn is_overwritten(&self) -> bool {
        self.state.lock().follow.last.is_some()
    }

    /// What it knows of overwrites while its member catches up.
    pub fn follow(&self) -> Follow {
        self.state.lock().follow
    }

    /// When the last append came.
    pub fn last_append(&self) -> Time {
        self.state.lock().last_append
    }

    /// Bytes that its file occupies, without what was freed.
    pub fn used_bytes(&self) -> u64 {
        let state = self.state.lock();
        let blocks = state.blocks().saturating_sub(state.punched_blocks);
        u64::from(blocks) * cairn_types::BLOCK_SIZE as u64
    }

    /// What is known of it.
    pub fn info(&self) -> ChunkInfo {
        let state = self.state.lock();
        ChunkInfo {
            id: self.id,
            length: state.written,
            durable: state.durable,
            sealed: state.seal_journaled,
            creation_epoch: self.header.creation_epoch,
            session: self.header.session,
            table_crc: state.table_crc(),
            punched_blocks: state.punched_blocks,
            overwrite: state.follow.last,
        }
    }
}
