//! Blocks from other members, verified: a range at once, or what a member has good of it, block by block. A member
//! whose block does not match its checksum is told, so that it heals itself.
//!
//! Invariants: what is handed on matches the checksum that came with it; the same member is told of the same block at
//! most once in [`TELL_AGAIN`], so that two members which lack the same block do not keep each other busy.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use cairn_chunk_core::striped;
use cairn_env::{AlignedBuf, SharedBuf};
use cairn_format::crc_table::{blocks_of, decode_crcs};
use cairn_format::pg_state::PgStateRecord;
use cairn_rpc::Payload;
use cairn_types::{BLOCK_SIZE, ChunkId, DiskId, Epoch, ErrorCode, crc32c};
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::data::{ChunkHeader, ReadRequest, ReadResponse, ReportBadBlockRequest};
use cairn_wire::error::WireError;

use super::Inner;
use super::heal_log::Heard;

/// A member is told again of a block that is still bad after this time.
pub(super) const TELL_AGAIN: Duration = Duration::from_secs(5);
/// A member that fails to heal so many blocks in one go is left alone with the rest.
const TELL_FAILURES_MAX: u32 = 8;
/// First pause before a busy member is asked again.
const BUSY_PAUSE: Duration = Duration::from_millis(5);
/// The pause doubles until it is so many times as long.
const BUSY_PATIENCE: u32 = 32;
/// Problems of one member that are kept for the message.
const PROBLEMS_MAX: usize = 2;

/// Blocks from another member.
pub(super) struct Fetched {
    pub(super) data: AlignedBuf,
    pub(super) crcs: Vec<u32>,
    /// Of parity shards, if they were asked for.
    pub(super) row_crcs: Vec<u32>,
    /// Blocks that do not match, counted from the first that was asked for.
    bad: Vec<u32>,
}

/// A chunk on another member.
#[derive(Clone)]
pub(super) struct At<'a> {
    pub(super) pg: &'a PgStateRecord,
    pub(super) disk: DiskId,
    pub(super) id: ChunkId,
    /// The epoch in which it was made, if the checksums of rows are wanted.
    pub(super) made: Option<Epoch>,
}

/// A block that matches its checksum.
pub(super) struct HeldBlock {
    pub(super) data: SharedBuf,
    pub(super) crc: u32,
    pub(super) row_crcs: Vec<u32>,
}

/// What a member has of a range.
#[derive(Default)]
pub(super) struct Held {
    pub(super) good: BTreeMap<u32, HeldBlock>,
    pub(super) freed: BTreeSet<u32>,
    /// Why it has not got all.
    pub(super) problems: Vec<String>,
    /// It did not answer, so that later may be better.
    pub(super) unanswered: bool,
}

impl Held {
    fn problem(&mut self, error: &WireError) {
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(error.to_string());
        }
    }
}

/// Whether a failed fetch says something about the bytes there, and not about the member or the way to it.
pub(super) fn is_about_bytes(error: &WireError) -> bool {
    matches!(error.code, ErrorCode::Missing | ErrorCode::ChecksumMismatch | ErrorCode::ChunkDeleted)
}

impl Inner {
    /// Reads from another member and verifies what comes.
    pub(super) async fn fetch(
        self: &Arc<Self>,
        pg: &PgStateRecord,
        disk: DiskId,
        id: ChunkId,
        offset: u64,
        length: u32,
    ) -> Result<(AlignedBuf, Vec<u32>), WireError> {
        let Fetched { data, crcs, .. } = self.fetch_rows(&At { pg, disk, id, made: None }, offset, length).await?;
        Ok((data, crcs))
    }

    /// The same with the checksums of the rows, of a chunk that was made in a known epoch.
    pub(super) async fn fetch_rows(
        self: &Arc<Self>,
        at: &At<'_>,
        offset: u64,
        length: u32,
    ) -> Result<Fetched, WireError> {
        let fetched = self.fetch_any(at, offset, length).await?;
        match fetched.bad.first() {
            None => Ok(fetched),
            Some(first) => {
                let (id, disk, block) = (at.id, at.disk, offset / BLOCK_SIZE as u64 + u64::from(*first));
                let text = format!("{id}: damaged blocks came from {disk}, the first is block {block}");
                Err(WireError::new(ErrorCode::ChecksumMismatch, text))
            }
        }
    }

    /// The blocks of a range with those that do not match, of which the member is told. One that is busy, perhaps with
    /// writing just these blocks, is asked again.
    async fn fetch_any(self: &Arc<Self>, at: &At<'_>, offset: u64, length: u32) -> Result<Fetched, WireError> {
        let mut pause = BUSY_PAUSE;
        loop {
            match self.fetch_once(at, offset, length).await {
                Err(error) if error.code == ErrorCode::Overloaded && pause < BUSY_PAUSE * BUSY_PATIENCE => {
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                outcome => return outcome,
            }
        }
    }

    async fn fetch_once(self: &Arc<Self>, at: &At<'_>, offset: u64, length: u32) -> Result<Fetched, WireError> {
        let (id, from) = (at.id, at.disk);
        let header =
            ChunkHeader { disk: from.get(), pg: id.pg.get(), index: id.index, epoch: at.pg.epoch.get(), session: 0 };
        let creation_epoch = at.made.map_or(0, Epoch::get);
        let (chunk, shard) = (Some(header), at.made.is_some());
        let request = ReadRequest {
            chunk,
            offset,
            length,
            creation_epoch,
            row_crcs: shard,
            catching_up: shard,
            shard: striped::shard_of(at.pg, from).map_or(0, |place| u32::from(place) + 1),
            // By epoch.
            sure: false,
            at_rest: false,
            of_check: false,
            sums: false,
        };
        let (answer, response): (ReadResponse, _) =
            self.ask(at.pg, from, Opcode::Read, &request, Payload::None).await?;
        let damaged =
            |what: &str| WireError::new(ErrorCode::ChecksumMismatch, format!("{id}: {what} from {from} at {offset}"));
        let data = response.payload.ok_or_else(|| damaged("nothing came"))?;
        let crcs = decode_crcs(&answer.crcs).ok_or_else(|| damaged("bad checksums came"))?;
        let row_crcs = decode_crcs(&answer.row_crcs).ok_or_else(|| damaged("bad checksums of rows came"))?;
        let blocks = blocks_of(offset % BLOCK_SIZE as u64 + u64::from(length)) as usize;
        if data.len() != crcs.len() * BLOCK_SIZE || crcs.len() != blocks {
            return Err(damaged("other blocks than asked for came"));
        }
        let matches = |(_, (block, crc)): &(u32, (&[u8], &u32))| crc32c(block) != **crc;
        let bad: Vec<u32> =
            (0..).zip(data.chunks(BLOCK_SIZE).zip(&crcs)).filter(matches).map(|(block, _)| block).collect();
        if !bad.is_empty() {
            let first = (offset / BLOCK_SIZE as u64) as u32;
            self.tell_bad(at, bad.iter().map(|block| first + block).collect());
        }
        Ok(Fetched { data, crcs, row_crcs, bad })
    }

    /// Everything that a member has of a range of bytes: what is bad, freed or missing there keeps nothing else out.
    pub(super) async fn fetch_good(self: &Arc<Self>, at: &At<'_>, range: Range<u64>) -> Held {
        let mut held = Held::default();
        let block = BLOCK_SIZE as u64;
        let length = match self.length_of(at).await {
            Ok(length) => length,
            Err(error) => {
                held.problem(&error);
                held.unanswered = !is_about_bytes(&error);
                return held;
            }
        };
        // A partial last block is there only if all that is wanted of it is.
        let end = if length >= range.end { range.end } else { length - length % block };
        if end < range.end {
            let text = format!("{}: {} has only {length} bytes", at.id, at.disk);
            held.problem(&WireError::new(ErrorCode::Missing, text));
        }
        let mut left = Vec::new();
        left.extend(Some(range.start..end).filter(|piece| !piece.is_empty()));
        while let Some(piece) = left.pop() {
            let first = (piece.start / block) as u32;
            match self.fetch_any(at, piece.start, (piece.end - piece.start) as u32).await {
                Ok(fetched) => take_good(&mut held, first, fetched, at),
                Err(error) if !is_about_bytes(&error) => {
                    held.problem(&error);
                    held.unanswered = true;
                    return held;
                }
                Err(error) => {
                    let blocks = blocks_of(piece.end - piece.start);
                    if blocks > 1 {
                        let middle = piece.start + u64::from(blocks / 2) * block;
                        left.extend([middle..piece.end, piece.start..middle]);
                    } else if error.code == ErrorCode::ChunkDeleted {
                        held.freed.insert(first);
                    } else {
                        held.problem(&error);
                    }
                }
            }
        }
        held
    }

    /// How much another member has of a chunk.
    async fn length_of(&self, at: &At<'_>) -> Result<u64, WireError> {
        let (id, disk) = (at.id, at.disk);
        let found = self.listed(at.pg, disk, id).await?;
        let absent = || WireError::new(ErrorCode::Missing, format!("{id} is not on {disk}"));
        found.map(|chunk| chunk.length).ok_or_else(absent)
    }

    /// Tells a member of its bad blocks, in the background.
    fn tell_bad(self: &Arc<Self>, at: &At<'_>, blocks: Vec<u32>) {
        let (id, disk, pg) = (at.id, at.disk, at.pg.clone());
        let now = self.clock.now();
        let news: Vec<u32> = {
            let mut told = self.told.lock();
            blocks.into_iter().filter(|block| told.is_news((disk, id, *block, Heard::Report), now)).collect()
        };
        let Some(first) = news.first() else { return };
        tracing::warn!(%disk, chunk = %id, first, count = news.len(), "another member's blocks do not match their checksums; it is told to heal them");
        let inner = self.clone();
        self.tasks.spawn(async move {
            let mut failures = 0;
            for block in news {
                // The blocks under a checksum are the same in every epoch.
                let header = ChunkHeader { disk: disk.get(), pg: id.pg.get(), index: id.index, epoch: 0, session: 0 };
                let request = ReportBadBlockRequest { chunk: Some(header), block: u64::from(block) };
                let answer: Result<(Empty, _), WireError> =
                    inner.ask(&pg, disk, Opcode::ReportBadBlock, &request, Payload::None).await;
                if let Err(error) = answer {
                    tracing::debug!(%disk, chunk = %id, block, %error, "it did not heal a bad block now");
                    failures += 1;
                    if failures == TELL_FAILURES_MAX {
                        return;
                    }
                }
            }
        });
    }
}

/// Takes over what matches.
fn take_good(held: &mut Held, first: u32, fetched: Fetched, at: &At<'_>) {
    let Fetched { data, crcs, row_crcs, bad } = fetched;
    let (data, rows) = (data.freeze(), row_crcs.len() / crcs.len().max(1));
    for (i, crc) in crcs.iter().enumerate() {
        let block = first + i as u32;
        if bad.contains(&(i as u32)) {
            let text = format!("{}: block {block} on {} does not match its checksum", at.id, at.disk);
            held.problem(&WireError::new(ErrorCode::ChecksumMismatch, text));
            continue;
        }
        let data = data.slice(i * BLOCK_SIZE..(i + 1) * BLOCK_SIZE);
        let row_crcs = row_crcs[i * rows..(i + 1) * rows].to_vec();
        held.good.insert(block, HeldBlock { data, crc: *crc, row_crcs });
    }
}
