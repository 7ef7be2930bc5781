//! [`SimDisk`]: what `DiskStore` does for one group, with blocks of four words and faults of disks.
//!
//! An operation takes effect in memory when it is accepted, and becomes durable when it is done. A crash keeps, of what
//! was accepted and not done, any beginning; of bytes that no sync covers, any beginning as well. A disk that forgets
//! comes back with chunks as they were some time ago.

pub mod breaks;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use cairn_chunk_core::append::{AppendDecision, AppendRefusal, judge_append};
use cairn_chunk_core::overwrite::{Follow, check_blocks, check_order};
use cairn_format::crc_table::{PunchedBits, blocks_of};
use cairn_format::overwrite_number::OverwriteNumber;
use cairn_format::pg_state::PgStateRecord;
use cairn_replica_core::disk::{DiskDone, DiskOp, Place};
use cairn_replica_core::input::Seen;
use cairn_replica_core::message::{ChunkSum, Data, Freed, Refused, Run, Table, Which};
use cairn_types::{BLOCK_SIZE, Epoch, ErrorCode, SessionId};

use crate::words::{Block, Bytes, FILLER, WORDS, crc, cut, decode};

/// A chunk on a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SimChunk {
    /// Its epoch.
    pub made: Epoch,
    /// Its writer.
    pub session: SessionId,
    /// What is there.
    pub blocks: Bytes,
    /// What should be.
    pub crcs: Vec<u32>,
    /// Bytes.
    pub length: u64,
    /// Of them no loss of power takes anything.
    pub durable: u64,
    /// Takes no more.
    pub sealed: bool,
    /// Overwrites.
    pub follow: Follow,
    /// Blocks that overwrites came for while it catches up.
    touched: BTreeMap<u32, OverwriteNumber>,
    /// Freed blocks, a bit each.
    pub freed: u64,
}

impl SimChunk {
    fn sum(&self, index: u32) -> ChunkSum {
        let mut table_crc = 0x9e37_79b9u32;
        for crc in &self.crcs {
            table_crc = (table_crc ^ crc).wrapping_mul(0x85eb_ca6b).rotate_left(13);
        }
        ChunkSum {
            index,
            length: self.length,
            durable: self.durable,
            sealed: self.sealed,
            made: self.made,
            session: self.session,
            table_crc,
            freed: self.freed.count_ones(),
            number: self.follow.last,
            follow: self.follow,
        }
    }

    /// Whether a block was freed.
    pub fn is_freed(&self, block: u32) -> bool {
        self.freed >> block & 1 == 1
    }

    fn all_freed(&self) -> bool {
        self.freed.count_ones() >= blocks_of(self.length)
    }

    /// Where it may end after a loss of power: bytes that no sync covers are there up to a block, or all, or none.
    pub fn ends(&self) -> Vec<u64> {
        let (durable, length, block) = (self.durable, self.length, BLOCK_SIZE as u64);
        let whole = (durable.div_ceil(block)..=length / block).map(|at| at * block);
        let mut ends: Vec<u64> = whole.filter(|end| *end > durable).chain([durable, length]).collect();
        ends.dedup();
        ends
    }

    fn put(&mut self, block: u32, bytes: Block, sum: u32) {
        let at = block as usize;
        if at >= self.blocks.len() {
            self.blocks.resize(at + 1, [0; WORDS]);
            self.crcs.resize(at + 1, 0);
        }
        self.blocks[at] = bytes;
        self.crcs[at] = sum;
    }
}

/// One thing that becomes durable.
#[derive(Debug, Clone)]
enum Commit {
    Record(Arc<PgStateRecord>),
    Chunk(u32, Option<Box<SimChunk>>),
}

/// What the disk has.
#[derive(Debug, Clone, Default)]
pub struct Image {
    /// The group's state.
    pub record: Option<Arc<PgStateRecord>>,
    /// Its chunks.
    pub chunks: BTreeMap<u32, SimChunk>,
}

/// As named above.
#[derive(Debug, Default)]
pub struct SimDisk {
    /// As the process sees it.
    pub now: Image,
    durable: Image,
    pending: Vec<(u64, Commit)>,
    next: u64,
    older: Option<Image>,
    /// No room for anything new.
    pub full: bool,
    /// A write failed: nothing is answered any more until the process ends.
    pub failed: bool,
    /// The how manyth write from now fails.
    pub write_fails_in: Option<u32>,
    /// So many reads of a thousand fail.
    pub read_failures: u64,
    reads: u64,
    /// Which shard, and of how many any k are enough.
    pub shards: Option<(u8, usize)>,
}

fn no<T>(code: ErrorCode) -> Result<T, Refused> {
    Err(Refused::because(code))
}

type Done = Result<DiskDone<Bytes>, Refused>;

impl SimDisk {
    /// What is here of a chunk that a request names.
    pub fn look(&self, index: u32, blocks: &[Range<u32>]) -> Option<Seen> {
        let chunk = self.now.chunks.get(&index)?;
        let freed = blocks.iter().cloned().flatten().any(|block| block < 64 && chunk.is_freed(block));
        Some(Seen { sum: chunk.sum(index), freed, full: self.full })
    }

    /// Above it there is no chunk.
    pub fn index_end(&self) -> u32 {
        self.now.chunks.last_key_value().map_or(0, |(index, _)| index + 1)
    }

    /// Accepts an operation: what will come of it, and what to call when it is durable.
    pub fn submit(&mut self, op: DiskOp<Bytes>) -> (Done, Option<u64>) {
        if let Err(refused) = self.fails(&op) {
            return (Err(refused), None);
        }
        if let DiskOp::Save(record) = op {
            if self.full && record.epoch.get().is_multiple_of(2) {
                return (no(ErrorCode::NoSpace), None);
            }
            return (Ok(DiskDone::Done), Some(self.commit(Commit::Record(record))));
        }
        let index = match touched_by(&op) {
            None => return (self.look_at(op), None),
            Some(index) => index,
        };
        let grows = matches!(op, DiskOp::Append { .. } | DiskOp::Overwrite { .. } | DiskOp::Replace { .. });
        if self.full && grows {
            return (no(ErrorCode::NoSpace), None);
        }
        let (outcome, synced) = self.change(op);
        if outcome.is_err() {
            return (outcome, None);
        }
        let mut after = self.now.chunks.get(&index).cloned();
        if let Some(after) = after.as_mut().filter(|_| synced) {
            after.durable = after.length;
        }
        let outcome = match (outcome, &after) {
            (Ok(DiskDone::Wrote { .. }), Some(after)) => {
                Ok(DiskDone::Wrote { length: after.length, durable: after.durable })
            }
            (outcome, _) => outcome,
        };
        (outcome, Some(self.commit(Commit::Chunk(index, after.map(Box::new)))))
    }

    fn commit(&mut self, commit: Commit) -> u64 {
        self.next += 1;
        self.pending.push((self.next, commit));
        self.next
    }

    /// An accepted operation is durable.
    pub fn committed(&mut self, id: u64) {
        let Some(at) = self.pending.iter().position(|(pending, _)| *pending == id) else { return };
        let (_, commit) = self.pending.remove(at);
        if let Commit::Chunk(index, Some(after)) = &commit
            && let Some(chunk) = self.now.chunks.get_mut(index)
        {
            chunk.durable = chunk.durable.max(after.durable);
        }
        if let Commit::Record(record) = &commit {
            self.now.record = Some(record.clone());
        }
        apply(&mut self.durable, commit);
    }

    fn look_at(&self, op: DiskOp<Bytes>) -> Done {
        match op {
            DiskOp::List(which) => {
                let wanted = |(index, chunk): &(&u32, &SimChunk)| match which {
                    Which::All => true,
                    Which::Open => !chunk.sealed,
                    Which::Overwritten => chunk.follow.last.is_some(),
                    Which::One(one) => **index == one,
                };
                let all = self.now.chunks.iter().filter(wanted);
                Ok(DiskDone::List(all.map(|(index, chunk)| chunk.sum(*index)).collect()))
            }
            DiskOp::Table { index } => {
                let Some(chunk) = self.now.chunks.get(&index) else { return no(ErrorCode::Missing) };
                let mut freed = PunchedBits::default();
                (0..chunk.crcs.len() as u32).filter(|block| chunk.is_freed(*block)).for_each(|block| {
                    freed.set(block..block + 1);
                });
                Ok(DiskDone::Table(Table { sum: chunk.sum(index), crcs: chunk.crcs.clone(), freed }))
            }
            DiskOp::Read { index, offset, bytes } => self.read(index, offset, bytes),
            DiskOp::Verify { index, block } => {
                let Some(chunk) = self.now.chunks.get(&index) else { return no(ErrorCode::Missing) };
                let Some(bytes) = chunk.blocks.get(block as usize) else { return no(ErrorCode::Missing) };
                Ok(DiskDone::Is(chunk.is_freed(block) || crc(bytes) == chunk.crcs[block as usize]))
            }
            DiskOp::Decode { shards, shard, blocks } => {
                let k = self.shards.map_or(1, |(_, k)| k);
                let mut made = Vec::new();
                for at in 0..blocks.len() {
                    let of: Vec<(u8, Block)> =
                        shards.iter().filter_map(|(of, data)| Some((*of, *data.bytes.as_ref()?.get(at)?))).collect();
                    match decode(&of, k, shard) {
                        Some(block) => made.push(block),
                        None => return no(ErrorCode::ChecksumMismatch),
                    }
                }
                Ok(DiskDone::Data(crate::words::data(made)))
            }
            _ => no(ErrorCode::Internal),
        }
    }

    fn read(&self, index: u32, offset: u64, bytes: u64) -> Done {
        let Some(chunk) = self.now.chunks.get(&index) else { return no(ErrorCode::Missing) };
        if bytes == 0 || offset + bytes > chunk.length {
            return no(ErrorCode::Missing);
        }
        let blocks = (offset / BLOCK_SIZE as u64) as u32..blocks_of(offset + bytes);
        if blocks.clone().any(|block| chunk.is_freed(block)) {
            return no(ErrorCode::ChunkDeleted);
        }
        let range = blocks.start as usize..blocks.end as usize;
        let (found, crcs) = (chunk.blocks[range.clone()].to_vec(), chunk.crcs[range].to_vec());
        if found.iter().zip(&crcs).any(|(block, sum)| crc(block) != *sum) {
            return no(ErrorCode::ChecksumMismatch);
        }
        Ok(DiskDone::Data(Data { crcs, bytes: Some(found) }))
    }

    /// Changes a chunk in memory; whether all of it is durable when that is done.
    fn change(&mut self, op: DiskOp<Bytes>) -> (Done, bool) {
        let wrote = Ok(DiskDone::Wrote { length: 0, durable: 0 });
        match op {
            DiskOp::Append { index, made, session, offset, bytes, data, may_create, sync, repair } => {
                let header = (made, session, may_create);
                (
                    self.append(index, header, (offset, bytes, data), repair)
                        .map(|()| DiskDone::Wrote { length: 0, durable: 0 }),
                    sync,
                )
            }
            DiskOp::Overwrite { index, place, runs } => {
                (self.overwrite(index, place, runs).map(|()| DiskDone::Wrote { length: 0, durable: 0 }), false)
            }
            DiskOp::Free { index, what } => (Ok(DiskDone::Gone(self.free(index, &what))), false),
            DiskOp::Sync { index } => match self.now.chunks.get(&index) {
                Some(_) => (wrote, true),
                None => (no(ErrorCode::Missing), false),
            },
            DiskOp::Seal { index } => {
                let Some(chunk) = self.now.chunks.get_mut(&index) else { return (no(ErrorCode::Missing), false) };
                chunk.sealed = true;
                let length = chunk.length;
                if chunk.all_freed() {
                    self.now.chunks.remove(&index);
                    return (Ok(DiskDone::Gone(Some(length))), false);
                }
                (wrote, true)
            }
            DiskOp::Replace { index, block, data, as_of } => {
                (self.replace(index, block, &data, as_of).map(|()| DiskDone::Done), false)
            }
            DiskOp::Begin { index, block, data, known, as_of } => {
                (self.begin(index, block, &data, (known, as_of)).map(DiskDone::Is), false)
            }
            DiskOp::InStep { index, number, epoch } => {
                let Some(chunk) = self.now.chunks.get_mut(&index) else { return (Ok(DiskDone::Is(true)), false) };
                let in_step = !number.is_some() && !chunk.follow.last.is_some() || chunk.follow.copied(number, epoch);
                if in_step {
                    chunk.touched.clear();
                }
                (Ok(DiskDone::Is(in_step)), false)
            }
            DiskOp::FreeHole { index, block } => {
                let hole = |chunk: &&mut SimChunk| chunk.blocks.get(block as usize) == Some(&FILLER);
                if self.now.chunks.get_mut(&index).filter(hole).is_none() {
                    return (no(ErrorCode::ChecksumMismatch), false);
                }
                let run = block..block + 1;
                (Ok(DiskDone::Gone(self.free(index, &Freed::Blocks(vec![run])))), false)
            }
            DiskOp::Heal { index, block, data } => (self.heal(index, block, &data).map(|()| DiskDone::Done), false),
            _ => (no(ErrorCode::Internal), false),
        }
    }

    fn append(
        &mut self,
        index: u32,
        (made, session, may_create): (Epoch, SessionId, bool),
        (offset, bytes, data): (u64, u64, Data<Bytes>),
        repair: bool,
    ) -> Result<(), Refused> {
        let here = self.now.chunks.get(&index);
        if here.is_none() && (!may_create || offset != 0) {
            return no(ErrorCode::Missing);
        }
        let (length, sealed) = here.map_or((0, false), |chunk| (chunk.length, chunk.sealed && !repair));
        match judge_append(length, sealed, (offset, None), bytes as usize, data.crcs.len()) {
            Ok(AppendDecision::Repeat) => {
                let first = (offset / BLOCK_SIZE as u64) as usize;
                let whole = (bytes / BLOCK_SIZE as u64) as usize;
                let known = here.map_or(&[][..], |chunk| &chunk.crcs[..]);
                let other = |(at, sum): (usize, &u32)| known.get(first + at).is_some_and(|known| known != sum);
                // A repeat has to be one.
                let differs = data.crcs.iter().take(whole).enumerate().any(other);
                return if differs { no(ErrorCode::OffsetMismatch) } else { Ok(()) };
            }
            Ok(AppendDecision::Take { .. }) => {}
            Err(AppendRefusal::Malformed) => return no(ErrorCode::BadRequest),
            Err(AppendRefusal::Sealed { .. }) => return no(ErrorCode::ChunkSealed),
            Err(AppendRefusal::NotAtEnd { .. }) => return no(ErrorCode::OffsetMismatch),
        }
        let new = SimChunk {
            made,
            session,
            blocks: Vec::new(),
            crcs: Vec::new(),
            length: 0,
            durable: 0,
            sealed: false,
            follow: Follow::default(),
            touched: BTreeMap::new(),
            freed: 0,
        };
        let chunk = self.now.chunks.entry(index).or_insert(new);
        let (first, end) = ((offset / BLOCK_SIZE as u64) as u32, blocks_of(chunk.length));
        for (at, sum) in data.crcs.iter().enumerate() {
            let block = first + at as u32;
            if block < end && chunk.touched.contains_key(&block) {
                // It was overwritten since what is brought was read.
                continue;
            }
            match &data.bytes {
                Some(blocks) => chunk.put(block, blocks[at], *sum),
                // An even number is never that of a block.
                None => chunk.put(block, FILLER, *sum & !1),
            }
        }
        chunk.length = offset + bytes;
        Ok(())
    }

    fn overwrite(&mut self, index: u32, place: Place, runs: Vec<Run<Bytes>>) -> Result<(), Refused> {
        let Some(chunk) = self.now.chunks.get_mut(&index) else { return no(ErrorCode::Missing) };
        let ranges: Vec<Range<u32>> = runs.iter().map(Run::blocks).collect();
        if let Place::After { previous, number } = place {
            if check_order(chunk.follow.last, previous, number).is_err() {
                return no(ErrorCode::OffsetMismatch);
            }
            if check_blocks(&ranges, chunk.durable, chunk.sealed, None).is_err() {
                return no(ErrorCode::Missing);
            }
        }
        let (end, mut whole) = (blocks_of(chunk.length), true);
        for run in runs {
            let Some(bytes) = &run.data.bytes else { return no(ErrorCode::BadRequest) };
            for (at, block) in run.blocks().enumerate() {
                whole &= block < end;
                if block >= end || chunk.is_freed(block) {
                    continue;
                }
                chunk.put(block, bytes[at], run.data.crcs[at]);
                if let Place::Follow { number, .. } = place {
                    chunk.touched.insert(block, number);
                }
            }
        }
        match place {
            Place::After { number, .. } => chunk.follow.last = number,
            Place::Follow { previous, number } => chunk.follow.came(previous, number, whole),
            Place::Level { number, serving } => {
                let need = if serving { OverwriteNumber::NONE } else { number };
                chunk.follow = Follow { last: number, need, in_step: Epoch(0) };
            }
        }
        Ok(())
    }

    fn free(&mut self, index: u32, what: &Freed) -> Option<u64> {
        let Some(chunk) = self.now.chunks.get_mut(&index) else { return Some(0) };
        let (length, end) = (chunk.length, blocks_of(chunk.length));
        match what {
            Freed::Whole => chunk.freed |= (1u64 << end) - 1,
            Freed::Blocks(runs) => {
                for block in runs.iter().cloned().flatten().filter(|block| *block < end) {
                    chunk.freed |= 1 << block;
                }
            }
        }
        let gone = chunk.sealed && chunk.all_freed();
        if gone {
            self.now.chunks.remove(&index);
        }
        gone.then_some(length)
    }

    fn replace(&mut self, index: u32, block: u32, data: &Data<Bytes>, as_of: OverwriteNumber) -> Result<(), Refused> {
        let Some(chunk) = self.now.chunks.get_mut(&index) else { return no(ErrorCode::Missing) };
        let newer = chunk.touched.get(&block).is_some_and(|number| *number > as_of);
        // Of a block that is not here there is nothing to replace.
        let Some(bytes) = data.bytes.as_ref().filter(|_| block < blocks_of(chunk.length)) else { return Ok(()) };
        if !newer && !chunk.is_freed(block) {
            chunk.put(block, bytes[0], data.crcs[0]);
        }
        Ok(())
    }

    fn begin(
        &mut self,
        index: u32,
        block: u32,
        data: &Data<Bytes>,
        (known, as_of): (u64, OverwriteNumber),
    ) -> Result<bool, Refused> {
        let Some(chunk) = self.now.chunks.get_mut(&index) else { return no(ErrorCode::Missing) };
        let Some(theirs) = data.bytes.as_ref().map(|bytes| bytes[0]) else { return no(ErrorCode::Missing) };
        let Some(own) = chunk.blocks.get(block as usize).copied() else { return no(ErrorCode::Missing) };
        if chunk.is_freed(block) || chunk.touched.get(&block).is_some_and(|number| *number > as_of) {
            return Ok(true);
        }
        if crc(&own) != chunk.crcs[block as usize] {
            return no(ErrorCode::ChecksumMismatch);
        }
        let (begins, ours) = (cut(&theirs, known), cut(&own, known));
        if begins == ours {
            return Ok(true);
        }
        let mut mixed = own;
        let words = (known / crate::words::WORD) as usize;
        mixed[..words].copy_from_slice(&theirs[..words]);
        chunk.put(block, mixed, crc(&mixed));
        Ok(false)
    }

    fn heal(&mut self, index: u32, block: u32, data: &Data<Bytes>) -> Result<(), Refused> {
        let Some(chunk) = self.now.chunks.get_mut(&index) else { return no(ErrorCode::Missing) };
        let Some(bytes) = data.bytes.as_ref().filter(|_| (block as usize) < chunk.blocks.len()) else {
            return no(ErrorCode::Missing);
        };
        if chunk.is_freed(block) || crc(&chunk.blocks[block as usize]) == chunk.crcs[block as usize] {
            return Ok(());
        }
        if chunk.follow.last.is_some() && chunk.crcs[block as usize] != data.crcs[0] {
            return no(ErrorCode::ChecksumMismatch);
        }
        chunk.put(block, bytes[0], data.crcs[0]);
        Ok(())
    }
}

fn apply(image: &mut Image, commit: Commit) {
    match commit {
        Commit::Record(record) => image.record = Some(record),
        Commit::Chunk(index, Some(mut chunk)) => {
            // What was synced stays so, whatever was accepted in between.
            let before = image.chunks.get(&index).filter(|before| before.made == chunk.made);
            chunk.durable = chunk.durable.max(before.map_or(0, |before| before.durable)).min(chunk.length);
            image.chunks.insert(index, *chunk);
        }
        Commit::Chunk(index, None) => {
            image.chunks.remove(&index);
        }
    }
}

fn touched_by(op: &DiskOp<Bytes>) -> Option<u32> {
    match op {
        DiskOp::Append { index, .. }
        | DiskOp::Sync { index }
        | DiskOp::Seal { index }
        | DiskOp::Free { index, .. }
        | DiskOp::Overwrite { index, .. }
        | DiskOp::Replace { index, .. }
        | DiskOp::Begin { index, .. }
        | DiskOp::InStep { index, .. }
        | DiskOp::FreeHole { index, .. }
        | DiskOp::Heal { index, .. } => Some(*index),
        DiskOp::Save(_)
        | DiskOp::List(_)
        | DiskOp::Table { .. }
        | DiskOp::Read { .. }
        | DiskOp::Verify { .. }
        | DiskOp::Decode { .. } => None,
    }
}
