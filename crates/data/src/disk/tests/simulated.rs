//! The disk of the replicas' simulator against this one: the same operations at random, the same answers, the same
//! chunks; and after power was lost, one of the states in which the simulated one may come back. What seeds of
//! replicas show would hold for another disk than the one that is shipped.

use std::sync::Arc;

use cairn_env::AlignedBuf;
use cairn_format::crc_table::blocks_of;
use cairn_format::journal_record::CreateRecord;
use cairn_format::overwrite_number::OverwriteNumber;
use cairn_replica_core::disk::{DiskDone, DiskOp, Place};
use cairn_replica_core::message::{Data, Freed, Run};
use cairn_replica_sim::disk::SimDisk as Model;
use cairn_replica_sim::disk::breaks::DOUBTED;
use cairn_replica_sim::words::{Block, Bytes, WORD, crc, cut, data};
use cairn_sim::{CrashPolicy, SimDisk, SimRng};
use cairn_types::{BLOCK_SIZE, Epoch, ErrorCode, Scheme, SessionId, VolumeId, crc32c};

use super::model::{id, open, outcome, read, slot};
use crate::disk::{AppendOp, DataError, DiskStore, GoodBlock, OverwriteOp, OverwriteOrder, OverwriteRun};

const EPOCH: Epoch = Epoch(4);
const BLOCKS_MAX: u32 = 24;
const CHUNKS: u64 = 4;

/// What a symbolic block is on a disk.
fn bytes_of(block: &Block) -> Vec<u8> {
    block.iter().flat_map(|word| word.to_le_bytes().repeat(WORD as usize / 4)).collect()
}

fn buffer(blocks: &[Block]) -> AlignedBuf {
    let mut buffer = AlignedBuf::unpooled(blocks.len() * BLOCK_SIZE);
    blocks.iter().for_each(|block| buffer.extend_from_slice(&bytes_of(block)));
    buffer
}

/// Bytes with their checksums; of what stands for freed blocks those that do not match.
fn stored(given: &Data<Bytes>) -> (AlignedBuf, Vec<u32>) {
    let zeros = vec![[0; 4]; given.crcs.len()];
    let made = buffer(given.bytes.as_ref().unwrap_or(&zeros));
    let sum = |block: &[u8]| if given.bytes.is_some() { crc32c(block) } else { !crc32c(block) };
    let crcs = made.chunks(BLOCK_SIZE).map(sum).collect();
    (made, crcs)
}

struct Both {
    rng: SimRng,
    model: Model,
    disk: SimDisk,
    store: Option<Arc<DiskStore>>,
    count: u64,
    word: u32,
    /// Refusals that both gave, losses of power, chunks that were gone, bytes that power took, numbers in doubt.
    seen: [u64; 5],
    /// What was asked, for whoever has to understand a difference.
    asked: Vec<String>,
}

impl Both {
    fn new(seed: u64) -> Self {
        let disk = SimDisk::new(seed);
        let store = Some(open(&disk).expect("an empty disk"));
        Self {
            rng: SimRng::seeded(seed),
            model: Model::default(),
            disk,
            store,
            count: 0,
            word: 0,
            seen: [0; 5],
            asked: Vec::new(),
        }
    }

    fn store(&self) -> Arc<DiskStore> {
        self.store.clone().expect("open")
    }

    fn below(&self, end: u64) -> u64 {
        self.rng.range(0..end)
    }

    fn block(&mut self) -> Block {
        self.word += 4;
        [self.word, self.word + 1, self.word + 2, self.word + 3]
    }

    /// Blocks that end at a byte.
    fn blocks(&mut self, bytes: u64) -> Bytes {
        let mut blocks: Bytes = (0..blocks_of(bytes)).map(|_| self.block()).collect();
        let tail = bytes % BLOCK_SIZE as u64;
        if let Some(last) = blocks.last_mut().filter(|_| tail > 0) {
            *last = cut(last, tail);
        }
        blocks
    }

    fn next_number(&mut self) -> OverwriteNumber {
        self.count += 1;
        OverwriteNumber { epoch: EPOCH, count: self.count }
    }

    fn append(&mut self, index: u32) -> DiskOp<Bytes> {
        let length = self.model.now.chunks.get(&index).map_or(0, |chunk| chunk.length);
        let block = BLOCK_SIZE as u64;
        // Mostly at the end, now and then over the last block, where it was before, or with a gap.
        let offset = match self.below(8) {
            0 => self.below(u64::from(BLOCKS_MAX)) * block,
            1..=3 => length - length % block,
            _ => length.next_multiple_of(block),
        };
        let bytes = (1 + self.below(16)) * WORD;
        let fills = self.below(8) == 0;
        let data = match fills {
            true => Data { crcs: vec![0; blocks_of(bytes) as usize], bytes: None },
            false => data(self.blocks(bytes)),
        };
        let (sync, repair) = (self.below(2) > 0, fills || self.below(4) == 0);
        let may_create = self.below(8) > 0;
        DiskOp::Append { index, made: EPOCH, session: SessionId(7), offset, bytes, data, may_create, sync, repair }
    }

    /// An overwrite that whoever serves would let through: of what is durable, and not freed.
    fn overwrite(&mut self, index: u32) -> Option<DiskOp<Bytes>> {
        let chunk = self.model.now.chunks.get(&index)?.clone();
        let whole = if chunk.sealed { blocks_of(chunk.durable) } else { (chunk.durable / BLOCK_SIZE as u64) as u32 };
        let place = match self.below(6) {
            0 => Place::Level { number: self.next_number(), serving: self.below(2) == 0 },
            1 | 2 => Place::Follow { previous: chunk.follow.last, number: self.next_number() },
            // Out of order.
            3 if self.count > 1 => {
                Place::After { previous: OverwriteNumber { epoch: EPOCH, count: 1 }, number: self.next_number() }
            }
            _ => Place::After { previous: chunk.follow.last, number: self.next_number() },
        };
        let free = |block: &u32| !chunk.is_freed(*block);
        let first = (0..whole).filter(free).nth(self.below(u64::from(whole.max(1))) as usize)?;
        let end = (first..whole).take(1 + self.below(3) as usize).take_while(free).last()? + 1;
        let bytes = (u64::from(end) * BLOCK_SIZE as u64).min(chunk.length) - u64::from(first) * BLOCK_SIZE as u64;
        let runs = vec![Run { block: first, data: data(self.blocks(bytes)) }];
        Some(DiskOp::Overwrite { index, place, runs })
    }

    fn replace(&mut self, index: u32) -> Option<DiskOp<Bytes>> {
        let chunk = self.model.now.chunks.get(&index)?.clone();
        let block = self.below(u64::from(blocks_of(chunk.length)).max(1)) as u32;
        let bytes = chunk.length.checked_sub(u64::from(block) * BLOCK_SIZE as u64)?.min(BLOCK_SIZE as u64);
        let as_of = OverwriteNumber { epoch: EPOCH, count: self.below(self.count + 1) };
        (bytes > 0).then(|| DiskOp::Replace { index, block, data: data(self.blocks(bytes)), as_of })
    }

    fn op(&mut self) -> Option<DiskOp<Bytes>> {
        let index = 1 + self.below(CHUNKS) as u32;
        let block = self.below(u64::from(BLOCKS_MAX)) as u32;
        let here = self.model.now.chunks.contains_key(&index);
        Some(match self.below(24) {
            0..=9 => self.append(index),
            10 | 11 => DiskOp::Sync { index },
            12 => DiskOp::Seal { index },
            13..=15 => self.overwrite(index)?,
            16 | 17 => self.replace(index)?,
            18 | 19 => {
                let run = block..block + 1 + self.below(8) as u32;
                DiskOp::Free { index, what: Freed::Blocks([run].to_vec()) }
            }
            20 => DiskOp::Free { index, what: Freed::Whole },
            // Of what nobody has overwritten the server does not ask it.
            21 if here && self.count > 0 => {
                DiskOp::InStep { index, number: OverwriteNumber { epoch: EPOCH, count: self.count }, epoch: EPOCH }
            }
            _ => {
                DiskOp::Read { index, offset: u64::from(block) * BLOCK_SIZE as u64, bytes: (1 + self.below(8)) * WORD }
            }
        })
    }

    /// What the store answers to it: whether something is so, where that is asked.
    fn really(&self, op: &DiskOp<Bytes>) -> Result<Option<bool>, ErrorCode> {
        let store = self.store();
        match op.clone() {
            DiskOp::Append { index, made, session, offset, bytes, data, may_create, sync, repair } => {
                let (scheme, volume) = (Scheme::Replicated(3), VolumeId(1));
                let create = CreateRecord { chunk: id(index), scheme, shard: 0, volume, creation_epoch: made, session };
                let (data, crcs) = stored(&data);
                let (data, bytes, row_crcs, follows) = (data.freeze(), bytes as usize, Vec::new(), None);
                let as_of = Some(cairn_format::overwrite_number::OverwriteNumber::NONE);
                let op =
                    AppendOp { create, may_create, offset, follows, bytes, data, crcs, row_crcs, sync, repair, as_of };
                super::model::append(&store, op).map(|_| None).map_err(|error| error.code())
            }
            DiskOp::Sync { index } => done(&store, |store, done| store.sync(id(index), done)).map(|_: u64| None),
            DiskOp::Seal { index } => done(&store, |store, done| store.seal(id(index), done)).map(|_: u64| None),
            DiskOp::Free { index, what } => {
                let ranges = match what {
                    Freed::Whole => vec![(0, cairn_types::CHUNK_SIZE_MAX)],
                    Freed::Blocks(runs) => {
                        let bytes = |blocks: u32| u64::from(blocks) * BLOCK_SIZE as u64;
                        runs.iter().map(|run| (bytes(run.start), bytes(run.end - run.start))).collect()
                    }
                };
                done(&store, |store, done| store.punch(id(index), ranges, done)).map(|()| None)
            }
            DiskOp::Overwrite { index, place, runs } => {
                let order = match place {
                    Place::After { previous, number } => OverwriteOrder::After { previous, number },
                    Place::Follow { previous, number } => OverwriteOrder::Follow { previous, number },
                    Place::Level { number, serving } => OverwriteOrder::Settle { number, serving },
                };
                let run = |run: &Run<Bytes>| {
                    let (data, crcs) = stored(&run.data);
                    OverwriteRun { block: run.block, data: data.freeze(), crcs }
                };
                let op = OverwriteOp { chunk: id(index), epoch: EPOCH, order, runs: runs.iter().map(run).collect() };
                done(&store, |store, done| store.overwrite(op, done).map(drop)).map(|_: OverwriteNumber| None)
            }
            DiskOp::Replace { index, block, data, as_of } => {
                let (data, crcs) = stored(&data);
                let good = GoodBlock { data: data.freeze(), crc: crcs[0], row_crcs: Vec::new() };
                done(&store, |store, done| store.replace_as_of(id(index), block, good, as_of, done)).map(|()| None)
            }
            DiskOp::InStep { index, number, epoch } => {
                done(&store, |store, done| store.settle_copy(id(index), number, epoch, done)).map(Some)
            }
            DiskOp::Read { index, offset, bytes } => {
                let found = read(&store, id(index), offset, bytes).map_err(|error| error.code())?;
                let good = found.data.chunks(BLOCK_SIZE).zip(&found.crcs).all(|(block, crc)| crc32c(block) == *crc);
                if good { Ok(None) } else { Err(ErrorCode::ChecksumMismatch) }
            }
            other => panic!("{other:?} is not asked for"),
        }
    }

    fn step(&mut self) {
        let Some(op) = self.op() else { return };
        let (said, commit) = self.model.submit(op.clone());
        self.asked.push(format!("{op:?}: {said:?}"));
        commit.into_iter().for_each(|commit| self.model.committed(commit));
        match (said, self.really(&op)) {
            (Err(model), Err(real)) => {
                assert_eq!(model.code, real, "{op:?}");
                self.seen[0] += 1;
            }
            (Ok(DiskDone::Is(model)), Ok(Some(real))) => assert_eq!(model, real, "{op:?}"),
            (Ok(_), Ok(None)) => {}
            (model, real) => panic!("{op:?}: {model:?}, and {real:?} in truth"),
        }
        self.same(&op);
    }

    /// Every chunk is the same on both.
    fn same(&mut self, after: &dyn std::fmt::Debug) {
        let store = self.store();
        for index in 1..=CHUNKS as u32 {
            let model = self.model.now.chunks.get(&index).cloned();
            let real = store.info(id(index));
            let (Some(model), Some(real)) = (&model, &real) else {
                assert_eq!(model.is_some(), real.is_some(), "chunk {index} after {after:?}");
                continue;
            };
            assert_eq!((real.length, real.sealed), (model.length, model.sealed), "chunk {index} after {after:?}");
            assert!(real.durable >= model.durable, "chunk {index} after {after:?}: {} durable", real.durable);
            let follow = store.chunk(id(index)).map(|chunk| chunk.follow());
            assert_eq!(follow, Some(model.follow), "chunk {index} after {after:?}");
            let tables = store.tables(id(index)).expect("readable");
            for block in 0..blocks_of(real.length) {
                let what = format!("block {block} of chunk {index} after {after:?}");
                assert_eq!(tables.punched.get(block), model.is_freed(block), "{what}");
                if model.is_freed(block) {
                    continue;
                }
                let from = u64::from(block) * BLOCK_SIZE as u64;
                let found = read(&store, id(index), from, (real.length - from).min(BLOCK_SIZE as u64)).expect("read");
                let (symbolic, at) = (&model.blocks[block as usize], block as usize);
                let good = crc(symbolic) == model.crcs[at];
                assert_eq!(crc32c(&found.data) == found.crcs[0], good, "{what}");
                assert!(!good || found.data[..] == bytes_of(symbolic)[..], "{what} differs");
            }
        }
    }

    fn lose_power(&mut self) {
        self.store = None;
        self.disk.crash(if self.rng.chance(0.5) { CrashPolicy::random() } else { CrashPolicy::harsh() });
        let store = open(&self.disk).expect("opens again");
        self.store = Some(store.clone());
        self.seen[1] += 1;
        let seen = &mut self.seen;
        self.model.crash_at(|index, chunk| {
            let Some(real) = store.info(id(index)) else {
                assert_eq!(chunk.durable, 0, "chunk {index} is gone after {:#?}", self.asked);
                seen[2] += 1;
                return None;
            };
            let ends = chunk.ends();
            assert!(ends.contains(&real.length), "chunk {index} ends at {}, and not at one of {ends:?}", real.length);
            seen[3] += chunk.length - real.length;
            Some(real.length)
        });
        for (index, chunk) in &mut self.model.now.chunks {
            let doubted = store.info(id(*index)).is_some_and(|real| real.overwrite == DOUBTED);
            if doubted && chunk.follow.last.is_some() {
                seen[4] += 1;
                chunk.follow.last = DOUBTED;
            }
        }
        self.same(&"a loss of power");
    }
}

fn done<T: Send + 'static>(
    store: &DiskStore,
    begin: impl FnOnce(&DiskStore, crate::disk::Done<T>) -> Result<(), DataError>,
) -> Result<T, ErrorCode> {
    let (slot, done) = slot();
    begin(store, done).and_then(|()| outcome(store, &slot)).map_err(|error| error.code())
}

/// Seeds of replicas would say nothing about what is shipped.
#[test]
fn the_simulated_disk_is_as_this_one() {
    let mut seen = [0; 5];
    for seed in 0..60 {
        let mut both = Both::new(seed);
        for step in 1..=120 {
            both.step();
            if both.below(12) == 0 {
                both.store().checkpoint();
                both.same(&"a checkpoint");
            }
            if step % 30 == 0 {
                both.lose_power();
            }
        }
        seen.iter_mut().zip(both.seen).for_each(|(all, of)| *all += of);
    }
    println!("refusals, losses of power, chunks gone, bytes gone, numbers in doubt: {seen:?}");
    // The store ends before power goes, and has stored by then what it had taken.
    let [refused, lost_power, _, _, in_doubt] = seen;
    assert!(refused > 0 && lost_power > 0 && in_doubt > 0, "{seen:?}");
}
