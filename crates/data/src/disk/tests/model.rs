//! What a disk was asked and what it promised, and the check of a store against it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cairn_env::{AlignedBuf, BufPool, Disk, RealClock};
use cairn_format::journal_record::CreateRecord;
use cairn_format::overwrite_number::OverwriteNumber;
use cairn_sim::{SimDisk, SimRng};
use cairn_types::{BLOCK_SIZE, ChunkId, ClusterId, DiskUuid, Epoch, PgId, Scheme, SessionId, VolumeId, crc32c};
use parking_lot::Mutex;

use crate::disk::{
    AppendOp, Appended, DataError, DiskConfig, DiskContext, DiskStore, GoodBlock, OpenError, OverwriteOp,
    OverwriteOrder, OverwriteRun, ReadBlocks,
};

pub(super) const CLUSTER: ClusterId = ClusterId([9; 16]);
pub(super) const UUID: DiskUuid = DiskUuid([8; 16]);

/// Index from which on chunks of these tests are parity shards.
pub(super) const PARITY: u32 = 100;

pub(super) fn id(index: u32) -> ChunkId {
    ChunkId { pg: PgId(1 + index % 2), index }
}

pub(super) fn config() -> DiskConfig {
    DiskConfig {
        journal_bytes: 1 << 20,
        journal_append_max: 16 << 10,
        batch_bytes_max: 64 << 10,
        write_threads: 0,
        allocate_step: 64 << 10,
        reserve_bytes: 0,
        ..DiskConfig::default()
    }
}

pub(super) fn open_with(disk: &SimDisk, config: DiskConfig) -> Result<Arc<DiskStore>, OpenError> {
    open_on(Arc::new(disk.clone()), config)
}

pub(super) fn open_on(disk: Arc<dyn Disk>, config: DiskConfig) -> Result<Arc<DiskStore>, OpenError> {
    DiskStore::open(context(disk), config)
}

pub(super) fn context(disk: Arc<dyn Disk>) -> DiskContext {
    DiskContext {
        disk,
        uuid: UUID,
        cluster: CLUSTER,
        clock: Arc::new(RealClock),
        rng: Arc::new(SimRng::seeded(5)),
        pool: BufPool::new(64 << 20),
        shares: crate::disk::ReadShares::new(64 << 20),
    }
}

pub(super) fn open(disk: &SimDisk) -> Result<Arc<DiskStore>, OpenError> {
    open_with(disk, config())
}

/// The outcome of an operation once the store was driven.
pub(super) type Slot<T> = Arc<Mutex<Option<Result<T, DataError>>>>;

pub(super) fn slot<T: Send + 'static>() -> (Slot<T>, crate::disk::Done<T>) {
    let slot: Slot<T> = Arc::default();
    let fill = slot.clone();
    (slot, Box::new(move |outcome| assert!(fill.lock().replace(outcome).is_none(), "answered twice")))
}

pub(super) fn outcome<T>(store: &DiskStore, slot: &Slot<T>) -> Result<T, DataError> {
    store.drive();
    slot.lock().take().expect("driven to the end, everything is answered")
}

/// What an append writes: `bytes` at `offset`, filled up to whole blocks.
pub(super) fn append_op(id: ChunkId, offset: u64, bytes: &[u8], sync: bool) -> AppendOp {
    let mut data = AlignedBuf::unpooled(bytes.len());
    data.extend_from_slice(bytes);
    data.pad_to_align();
    let crcs: Vec<u32> = data.chunks(BLOCK_SIZE).map(crc32c).collect();
    let (scheme, shard) = kind_of(id);
    let row_crcs = crcs.iter().flat_map(|crc| rows_of(id, *crc)).collect();
    let create =
        CreateRecord { chunk: id, scheme, shard, volume: VolumeId(1), creation_epoch: Epoch(4), session: SessionId(7) };
    let (may_create, repair) = (true, false);
    AppendOp {
        create,
        may_create,
        offset,
        follows: None,
        bytes: bytes.len(),
        data: data.freeze(),
        crcs,
        row_crcs,
        sync,
        repair,
        as_of: None,
    }
}

/// Chunks from [`PARITY`] on are parity shards.
fn kind_of(id: ChunkId) -> (Scheme, u8) {
    if id.index < PARITY {
        return (Scheme::Replicated(3), 0);
    }
    let k = if id.index.is_multiple_of(2) { 12 } else { 3 };
    (Scheme::all().find(|scheme| scheme.read_minimum() == k).expect("in the table"), k as u8 + 1)
}

/// Checksums of a row as the tests have them: they depend on that of the block, so that both are known to belong
/// together.
pub(super) fn rows_of(id: ChunkId, crc: u32) -> Vec<u32> {
    let (scheme, shard) = kind_of(id);
    let count = cairn_format::chunk_header::row_tables(scheme, shard) as u32;
    (0..count).map(|j| crc.rotate_left(j + 1) ^ j).collect()
}

pub(super) fn good_block(id: ChunkId, bytes: &[u8]) -> GoodBlock {
    let mut data = AlignedBuf::unpooled(BLOCK_SIZE);
    data.extend_from_slice(bytes);
    let crc = crc32c(bytes);
    GoodBlock { data: data.freeze(), crc, row_crcs: rows_of(id, crc) }
}

pub(super) fn run(block: u32, bytes: &[u8]) -> OverwriteRun {
    let mut data = AlignedBuf::unpooled(bytes.len());
    data.extend_from_slice(bytes);
    OverwriteRun { block, crcs: bytes.chunks(BLOCK_SIZE).map(crc32c).collect(), data: data.freeze() }
}

pub(super) fn append(store: &DiskStore, op: AppendOp) -> Result<Appended, DataError> {
    let (slot, done) = slot();
    store.append(op, done)?;
    outcome(store, &slot)
}

pub(super) fn read(store: &DiskStore, id: ChunkId, offset: u64, length: u64) -> Result<ReadBlocks, DataError> {
    let (slot, done) = slot();
    store.read(id, offset, length, done)?;
    outcome(store, &slot)
}

/// One step of a script.
#[derive(Debug, Clone)]
pub(super) enum Op {
    /// Appends bytes; `replace`: at the partial tail block, else at the next boundary.
    Append {
        chunk: u32,
        bytes: usize,
        sync: bool,
        replace: bool,
    },
    Sync(u32),
    Seal(u32),
    /// Frees blocks.
    Punch(u32, u32, u32),
    /// Rewrites a block with its own bytes.
    Heal(u32, u32),
    /// Overwrites blocks of a replicated chunk: so many, each so far behind the one before it.
    Overwrite {
        chunk: u32,
        first: u32,
        step: u32,
        count: u32,
    },
    /// Writes everything home.
    Checkpoint,
}

impl Op {
    /// The same on a parity shard.
    pub(super) fn of_parity(&self) -> Op {
        match self.clone() {
            Op::Append { chunk, bytes, sync, replace } => Op::Append { chunk: chunk + PARITY, bytes, sync, replace },
            Op::Sync(chunk) => Op::Sync(chunk + PARITY),
            Op::Seal(chunk) => Op::Seal(chunk + PARITY),
            Op::Punch(chunk, from, to) => Op::Punch(chunk + PARITY, from, to),
            Op::Heal(chunk, block) => Op::Heal(chunk + PARITY, block),
            Op::Overwrite { chunk, first, step, count } => Op::Overwrite { chunk: chunk + PARITY, first, step, count },
            Op::Checkpoint => Op::Checkpoint,
        }
    }
}

/// One chunk as asked and promised.
#[derive(Debug, Clone, Default)]
pub(super) struct ModelChunk {
    /// Every byte ever asked to be written.
    pub(super) asked: Vec<u8>,
    /// Bytes that a sync or seal answered.
    pub(super) promised: usize,
    pub(super) sealed_asked: bool,
    pub(super) sealed: bool,
    pub(super) punched_asked: BTreeSet<u32>,
    pub(super) punched: BTreeSet<u32>,
    /// What blocks may be instead, because an overwrite was not acknowledged.
    pub(super) instead: BTreeMap<u32, Vec<Vec<u8>>>,
    /// Number of the last overwrite that was acknowledged, and of the last one asked for.
    pub(super) overwritten: (OverwriteNumber, OverwriteNumber),
}

/// The whole disk.
#[derive(Debug, Clone, Default)]
pub(super) struct Model {
    pub(super) chunks: BTreeMap<u32, ModelChunk>,
    fill: u8,
}

impl Model {
    /// Carries a step out on both; an error means that the disk went down.
    pub(super) fn step(&mut self, store: &DiskStore, op: &Op) -> Result<(), DataError> {
        match *op {
            Op::Append { chunk, bytes, sync, replace } => self.append(store, chunk, bytes, sync, replace),
            Op::Sync(chunk) => self.sync(store, chunk, false),
            Op::Seal(chunk) => self.sync(store, chunk, true),
            Op::Punch(chunk, from, to) => self.punch(store, chunk, from, to),
            Op::Heal(chunk, block) => self.heal(store, chunk, block),
            Op::Overwrite { chunk, first, step, count } => self.overwrite(store, chunk, first, step, count),
            Op::Checkpoint => {
                store.checkpoint();
                store.check()
            }
        }
    }

    fn append(
        &mut self,
        store: &DiskStore,
        chunk: u32,
        bytes: usize,
        sync: bool,
        replace: bool,
    ) -> Result<(), DataError> {
        self.fill = self.fill.wrapping_mul(31).wrapping_add(17) | 1;
        let entry = self.chunks.entry(chunk).or_default();
        if entry.sealed_asked {
            return Ok(());
        }
        let length = entry.asked.len();
        let at = if replace { length - length % BLOCK_SIZE } else { length.next_multiple_of(BLOCK_SIZE) };
        let mut payload = entry.asked[at.min(length)..].to_vec();
        payload.extend((0..bytes).map(|i| self.fill.wrapping_add((i / 7) as u8)));
        entry.asked.resize(at, 0);
        entry.asked.extend_from_slice(&payload);
        let appended = append(store, append_op(id(chunk), at as u64, &payload, sync))?;
        assert_eq!(appended.length, (at + payload.len()) as u64);
        if sync {
            assert_eq!(appended.durable, appended.length);
        }
        entry.promised = entry.promised.max(appended.durable as usize);
        Ok(())
    }

    fn sync(&mut self, store: &DiskStore, chunk: u32, seal: bool) -> Result<(), DataError> {
        let Some(entry) = self.chunks.get_mut(&chunk) else { return Ok(()) };
        entry.sealed_asked |= seal;
        let (slot, done) = slot();
        let submitted = if seal { store.seal(id(chunk), done) } else { store.sync(id(chunk), done) };
        if matches!(submitted, Err(DataError::Deleted { .. } | DataError::NoChunk { .. })) {
            return Ok(());
        }
        submitted?;
        let durable = outcome(store, &slot)? as usize;
        assert_eq!(durable, entry.asked.len(), "everything before it");
        entry.promised = durable;
        entry.sealed |= seal;
        Ok(())
    }

    fn punch(&mut self, store: &DiskStore, chunk: u32, from: u32, to: u32) -> Result<(), DataError> {
        let Some(entry) = self.chunks.get_mut(&chunk) else { return Ok(()) };
        // Metadata frees only what was published, so only what was promised.
        let to = to.min((entry.promised / BLOCK_SIZE) as u32);
        entry.punched_asked.extend(from..to);
        let (slot, done) = slot();
        let range = (u64::from(from) * BLOCK_SIZE as u64, u64::from(to.saturating_sub(from)) * BLOCK_SIZE as u64);
        match store.punch(id(chunk), vec![range], done) {
            Err(DataError::Deleted { .. }) => return Ok(()),
            other => other?,
        }
        outcome(store, &slot)?;
        entry.punched.extend(from..to);
        Ok(())
    }

    fn heal(&mut self, store: &DiskStore, chunk: u32, block: u32) -> Result<(), DataError> {
        let Some(entry) = self.chunks.get(&chunk) else { return Ok(()) };
        let at = block as usize * BLOCK_SIZE;
        let Some(bytes) = entry.asked.get(at..at + BLOCK_SIZE) else { return Ok(()) };
        let (slot, done) = slot();
        match store.heal(id(chunk), block, good_block(id(chunk), bytes), done) {
            Err(DataError::Deleted { .. } | DataError::NoChunk { .. }) => return Ok(()),
            other => other?,
        }
        outcome(store, &slot)
    }

    fn overwrite(&mut self, store: &DiskStore, chunk: u32, first: u32, step: u32, count: u32) -> Result<(), DataError> {
        self.fill = self.fill.wrapping_mul(31).wrapping_add(17) | 1;
        let fill = self.fill;
        let Some(entry) = self.chunks.get_mut(&chunk).filter(|_| chunk < PARITY) else { return Ok(()) };
        // Whole promised blocks, and the partial last one once it can grow no more.
        let end = if entry.sealed { entry.promised.div_ceil(BLOCK_SIZE) } else { entry.promised / BLOCK_SIZE } as u32;
        let blocks: Vec<u32> = (0..count).map(|i| first + i * step).take_while(|block| *block < end).collect();
        if blocks.is_empty() || blocks.iter().any(|block| entry.punched_asked.contains(block)) {
            return Ok(());
        }
        let mut runs = Vec::new();
        for &block in &blocks {
            let at = block as usize * BLOCK_SIZE;
            let bytes: Vec<u8> =
                (0..BLOCK_SIZE).map(|i| fill.wrapping_add((block as usize * 3 + i / 9) as u8)).collect();
            let end = (at + BLOCK_SIZE).min(entry.asked.len());
            let mut new = bytes[..end - at].to_vec();
            let mut old = entry.asked[at..end].to_vec();
            entry.asked[at..end].copy_from_slice(&new);
            old.resize(BLOCK_SIZE, 0);
            new.resize(BLOCK_SIZE, 0);
            entry.instead.entry(block).or_default().push(old);
            runs.push(run(block, &new));
        }
        let (slot, done) = slot();
        let op = OverwriteOp { chunk: id(chunk), epoch: Epoch(4), order: OverwriteOrder::Next, runs };
        let (_, number) = match store.overwrite(op, done) {
            Err(DataError::Saturated { .. }) => {
                self.undo(chunk, &blocks);
                return Ok(());
            }
            other => other?,
        };
        entry.overwritten.1 = number;
        assert_eq!(outcome(store, &slot)?, number);
        entry.overwritten.0 = number;
        blocks.iter().for_each(|block| drop(entry.instead.remove(block)));
        Ok(())
    }

    /// An overwrite was refused.
    fn undo(&mut self, chunk: u32, blocks: &[u32]) {
        let entry = self.chunks.get_mut(&chunk).expect("it was overwritten");
        for block in blocks {
            let Some(old) = entry.instead.get_mut(block).and_then(Vec::pop) else { continue };
            let at = *block as usize * BLOCK_SIZE;
            let end = (at + BLOCK_SIZE).min(entry.asked.len());
            entry.asked[at..end].copy_from_slice(&old[..end - at]);
        }
    }

    /// Holds a store against what was asked and promised.
    pub(super) fn check(&self, store: &DiskStore, disk: &SimDisk) {
        let known: BTreeSet<ChunkId> = self.chunks.keys().map(|index| id(*index)).collect();
        for chunk in [PgId(1), PgId(2)].into_iter().flat_map(|pg| store.list(pg, 0, 1000)) {
            assert!(known.contains(&chunk.id), "{} was never asked for", chunk.id);
        }
        for (&index, asked) in &self.chunks {
            check_chunk(store, id(index), asked);
        }
        for pg in [1, 2] {
            for entry in disk.list(&format!("pg/{pg}")).unwrap_or_default() {
                assert!(!entry.name.ends_with(".bad"), "{} was set aside after a mere crash", entry.name);
            }
        }
    }

    /// After a restart unsynced bytes may be gone: what is there now is what counts from here on.
    pub(super) fn adopt(&mut self, store: &DiskStore) {
        self.chunks.retain(|index, _| store.chunk(id(*index)).is_some());
        for (index, entry) in &mut self.chunks {
            let info = store.chunk(id(*index)).expect("retained").info();
            entry.asked.truncate(info.length as usize);
            entry.promised = info.length as usize;
            (entry.sealed, entry.sealed_asked) = (info.sealed, info.sealed);
            for block in std::mem::take(&mut entry.instead).into_keys() {
                let at = block as usize * BLOCK_SIZE;
                let Some(room) = entry.asked.get_mut(at..) else { continue };
                let bytes = room.len().min(BLOCK_SIZE);
                if let Ok(found) = read(store, id(*index), at as u64, bytes as u64) {
                    room[..bytes].copy_from_slice(&found.data[..bytes]);
                }
            }
            entry.overwritten = (info.overwrite, info.overwrite);
            // What was asked to be freed stays uncertain until it is asked again.
        }
    }
}

fn check_chunk(store: &DiskStore, id: ChunkId, asked: &ModelChunk) {
    let blocks = asked.asked.len().div_ceil(BLOCK_SIZE) as u32;
    let may_be_dead = asked.sealed_asked && (0..blocks).all(|block| asked.punched_asked.contains(&block));
    let Some(chunk) = store.chunk(id) else {
        assert!(asked.promised == 0 || may_be_dead, "{id} with {} promised bytes is gone", asked.promised);
        return;
    };
    let info = chunk.info();
    let length = info.length as usize;
    assert!(length >= asked.promised, "{id}: {length} bytes of {} promised", asked.promised);
    assert!(length <= asked.asked.len(), "{id}: {length} bytes, {} asked", asked.asked.len());
    assert!(info.sealed || !asked.sealed, "{id} was sealed");
    assert!(!info.sealed || asked.sealed_asked, "{id}: nobody sealed it");
    let (done, begun) = asked.overwritten;
    // A crash while tables were written home looks as if the disk had forgotten overwrites: then others are asked.
    let doubted = begun.is_some() && info.overwrite == OverwriteNumber { epoch: Epoch(0), count: 1 };
    let known = (done..=begun.max(done)).contains(&info.overwrite);
    assert!(known || doubted, "{id}: {} of {done} to {begun}", info.overwrite);
    for block in 0..length.div_ceil(BLOCK_SIZE) as u32 {
        let at = block as usize * BLOCK_SIZE;
        let want = (BLOCK_SIZE).min(length - at) as u64;
        match read(store, id, at as u64, want) {
            Ok(found) => {
                assert!(!asked.punched.contains(&block), "{id}: freed block {block} is back");
                let mut wanted = asked.asked[at..at + want as usize].to_vec();
                wanted.resize(BLOCK_SIZE, 0);
                let instead = asked.instead.get(&block).into_iter().flatten();
                let matches = instead.chain([&wanted]).any(|wanted| found.data[..] == wanted[..]);
                assert!(matches, "{id}: block {block} of {length} bytes differs");
                assert_eq!(found.crcs, [crc32c(&found.data)], "{id}: checksum of block {block}");
                assert_eq!(found.row_crcs, rows_of(id, found.crcs[0]), "{id}: checksums of the row of block {block}");
            }
            Err(DataError::Deleted { .. }) => {
                assert!(asked.punched_asked.contains(&block), "{id}: nobody freed block {block}");
            }
            Err(error) => panic!("{id}: block {block}: {error}"),
        }
    }
    let tables = store.tables(id).expect("readable");
    assert_eq!(info.table_crc, cairn_format::crc_table::table_crc(&tables.crcs), "{id}: the sum of its table");
    let beyond = read(store, id, info.length, 1).expect_err("nothing is there");
    assert!(matches!(beyond, DataError::Missing { .. } | DataError::Deleted { .. }), "{beyond}");
}
