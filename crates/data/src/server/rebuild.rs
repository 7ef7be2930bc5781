//! Rebuilding: blocks of one shard made from the same blocks of k other serving members. Used by catching up, by
//! healing, and where a serving member lacks what it should have.
//!
//! The k best sources (data shards first) are read at the same time; for one that fails, or is slow, the next one is
//! asked. What comes is proven against the checksums of the rows ([`cairn_chunk_core::row_decode`]). If the proof
//! fails, or too few sources have the whole range, each row is made of whatever is good of it anywhere
//! ([`super::rebuild_rows`]).
//!
//! Invariants: nothing is answered that was not proven, and never anything for blocks that some source has freed;
//! memory is bounded by [`REBUILD_BLOCKS`] of every other shard a call, and callers hold a permit.

use std::ops::Range;
use std::sync::Arc;

use cairn_chunk_core::fence;
use cairn_chunk_core::row_decode::{Remade, RowTrouble, ShardBlocks, remake};
use cairn_chunk_core::striped::shard_of;
use cairn_env::AlignedBuf;
use cairn_erasure::{Codec, ShardSet};
use cairn_format::pg_state::PgStateRecord;
use cairn_types::{BLOCK_SIZE, ChunkId, DiskId, Epoch, ErrorCode};
use cairn_wire::error::WireError;
use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::Inner;
use super::copy::Theirs;
use super::fetch::{At, Fetched, is_about_bytes};
use super::leaver::Leaver;
use super::member::{Member, PgRuntime};
use crate::disk::DiskStore;
use crate::disk::metrics::add;

/// Blocks that one call makes at most.
pub(super) const REBUILD_BLOCKS: u32 = 128;

/// Blocks of a shard as they were proven.
pub(super) struct Rebuilt {
    pub(super) data: AlignedBuf,
    pub(super) sums: Remade,
    /// Blocks that nobody can make any more, under checksums that do not match. None unless they may be lost.
    pub(super) lost: Vec<u32>,
}

/// Why blocks could not be rebuilt.
#[derive(Debug, thiserror::Error)]
pub(super) enum RebuildError {
    /// A source has freed some of them: so has everybody, or soon.
    #[error("{chunk}: {disk} has freed blocks {blocks:?}")]
    Freed {
        /// The chunk.
        chunk: ChunkId,
        /// Who said so.
        disk: DiskId,
        /// The blocks asked for.
        blocks: Range<u32>,
    },
    /// Not enough sources have them.
    #[error(
        "{chunk}: blocks {blocks:?} of shard {shard} cannot be rebuilt now, {have} of {needed} shards came ({problems})"
    )]
    TooFew {
        /// The chunk.
        chunk: ChunkId,
        /// The shard.
        shard: usize,
        /// The blocks.
        blocks: Range<u32>,
        /// Sources that had them.
        have: usize,
        /// k.
        needed: usize,
        /// Why the others did not.
        problems: String,
        /// Some did not answer, so that later may be better.
        unanswered: bool,
        /// Some answered that they have not got all of it, or sent what does not match its checksum.
        damaged: bool,
    },
    /// What came cannot be proven.
    #[error(
        "{chunk}: blocks {blocks:?} of shard {shard} cannot be proven, whichever shards they are made of: {trouble}"
    )]
    Unproven {
        /// The chunk.
        chunk: ChunkId,
        /// The shard.
        shard: usize,
        /// The blocks.
        blocks: Range<u32>,
        /// Of the first attempt.
        trouble: RowTrouble,
    },
}

impl RebuildError {
    /// Whether everybody answered, and it is not there.
    pub(super) fn is_for_good(&self) -> bool {
        matches!(self, Self::TooFew { unanswered: false, .. } | Self::Unproven { .. })
    }

    pub(super) fn to_wire(&self) -> WireError {
        let code = match self {
            Self::Freed { .. } => ErrorCode::ChunkDeleted,
            Self::TooFew { unanswered: true, .. } => ErrorCode::Unavailable,
            Self::TooFew { .. } => ErrorCode::Missing,
            Self::Unproven { .. } => ErrorCode::ChecksumMismatch,
        };
        WireError::new(code, self.to_string())
    }
}

/// What is to be rebuilt, and where its sources are.
pub(super) struct Rebuild {
    store: Arc<DiskStore>,
    /// With epoch 0: a block under a checksum is the same in every epoch.
    pub(super) pg: Arc<PgStateRecord>,
    pub(super) id: ChunkId,
    pub(super) creation_epoch: Epoch,
    pub(super) shard: usize,
    pub(super) codec: Codec,
    /// Serving members besides this one: data shards first.
    pub(super) others: Vec<(usize, DiskId)>,
    /// Members that catch up, this one left out: asked row by row only.
    pub(super) syncing: Vec<(usize, DiskId)>,
    /// What no member can give any more is not waited for.
    pub(super) may_lose: bool,
    /// The member in whose place this one joins.
    pub(super) leaver: Option<Leaver>,
    /// The tables of the data shards, once that one's checksums of rows are held against them.
    pub(super) data_tables: tokio::sync::OnceCell<Vec<Option<Theirs>>>,
    pub(super) runtime: Arc<PgRuntime>,
    /// Those that failed or were slow before: asked last.
    tardy: Mutex<ShardSet>,
}

/// A source that answered.
struct Source {
    shard: usize,
    disk: DiskId,
    fetched: Fetched,
}

/// Why sources did not have what was asked for.
#[derive(Default)]
pub(super) struct Failures {
    pub(super) problems: Vec<String>,
    pub(super) unanswered: bool,
    pub(super) damaged: bool,
}

/// One read of a source.
type Read = ((usize, DiskId), Result<Fetched, WireError>);

impl Rebuild {
    pub(super) fn new(member: &Member, id: ChunkId, creation_epoch: Epoch) -> Result<Self, WireError> {
        let codec = Codec::for_scheme(member.pg.scheme);
        let codec = codec.map_err(|error| WireError::new(ErrorCode::Internal, error.to_string()))?;
        let place = |disk: DiskId| {
            let shard = shard_of(&member.pg, disk).ok().filter(|_| disk != member.disk)?;
            Some((usize::from(shard), disk))
        };
        let others = fence::serving(&member.pg).filter_map(place).collect();
        let syncing = fence::syncing(&member.pg).filter_map(place).collect();
        let pg = Arc::new(PgStateRecord { epoch: Epoch(0), ..(*member.pg).clone() });
        let shard = usize::from(member.shard());
        let (store, tardy) = (member.store.clone(), Mutex::new(ShardSet::EMPTY));
        let (leaver, runtime) = (Leaver::of(member), member.runtime.clone());
        let (may_lose, data_tables) = (false, tokio::sync::OnceCell::new());
        Ok(Self {
            store,
            pg,
            id,
            creation_epoch,
            shard,
            codec,
            others,
            syncing,
            may_lose,
            leaver,
            data_tables,
            runtime,
            tardy,
        })
    }

    pub(super) fn too_few(&self, blocks: &Range<u32>, have: usize, failures: &Failures) -> RebuildError {
        RebuildError::TooFew {
            chunk: self.id,
            shard: self.shard,
            blocks: blocks.clone(),
            have,
            needed: self.codec.k(),
            problems: failures.problems.join("; "),
            unanswered: failures.unanswered,
            damaged: failures.damaged,
        }
    }

    /// The chunk on one of the sources.
    pub(super) fn at(&self, disk: DiskId) -> At<'_> {
        At { pg: &self.pg, disk, id: self.id, made: Some(self.creation_epoch) }
    }

    fn prove(&self, sources: &[Source], bytes: usize) -> Result<Rebuilt, RowTrouble> {
        let views: Vec<ShardBlocks<'_>> = sources
            .iter()
            .map(|source| ShardBlocks {
                shard: source.shard,
                data: &source.fetched.data,
                crcs: &source.fetched.crcs,
                row_crcs: &source.fetched.row_crcs,
            })
            .collect();
        let mut data = AlignedBuf::unpooled(bytes);
        data.resize(bytes);
        let sums = remake(&self.codec, self.shard, &views, &mut data)?;
        Ok(Rebuilt { data, sums, lost: Vec::new() })
    }
}

impl Inner {
    /// Makes `blocks` (at most [`REBUILD_BLOCKS`]) of the member's shard.
    pub(super) async fn rebuild(
        self: &Arc<Self>,
        job: &Arc<Rebuild>,
        blocks: Range<u32>,
    ) -> Result<Rebuilt, RebuildError> {
        if let Some(copied) = self.copy_from_leaver(job, &blocks).await {
            return Ok(copied);
        }
        let begun = self.clock.now();
        let made = self.make(job, &blocks).await;
        self.made_of_others(job, begun, &blocks, made.is_ok());
        match made {
            Ok(made) => {
                add(&job.store.metrics().rebuilt_bytes, (blocks.len() * BLOCK_SIZE) as u64);
                Ok(made)
            }
            Err(error @ RebuildError::Freed { .. }) => Err(error),
            Err(error) => self.of_both(job, &blocks, error).await,
        }
    }

    /// The same of the shards of others alone.
    async fn make(self: &Arc<Self>, job: &Arc<Rebuild>, blocks: &Range<u32>) -> Result<Rebuilt, RebuildError> {
        // The member that leaves may have what they lack, and is asked then.
        let may_lose = job.may_lose && job.leaver.is_none();
        match self.gather(job, blocks).await {
            Ok(sources) => match job.prove(&sources, blocks.len() * BLOCK_SIZE) {
                Ok(rebuilt) => Ok(rebuilt),
                Err(trouble) => {
                    tracing::warn!(chunk = %job.id, shard = job.shard, ?blocks, %trouble, "shards do not belong together; trying all that can be had");
                    self.rebuild_rows(job, blocks, may_lose).await
                }
            },
            // What is bad of one source in one row may be good in others, and members that catch up may have it.
            Err(RebuildError::TooFew { damaged, .. }) if damaged || !job.syncing.is_empty() => {
                self.rebuild_rows(job, blocks, may_lose).await
            }
            Err(error) => Err(error),
        }
    }

    /// The blocks of k other shards, in the order of the shards.
    async fn gather(self: &Arc<Self>, job: &Arc<Rebuild>, blocks: &Range<u32>) -> Result<Vec<Source>, RebuildError> {
        let needed = job.codec.k();
        let mut order = job.others.clone();
        let tardy = *job.tardy.lock();
        order.sort_by_key(|(shard, _)| tardy.contains(*shard));
        let mut spare = order.iter().copied();
        let mut reads = JoinSet::new();
        let (mut sources, mut failures) = (Vec::new(), Failures::default());
        let mut waits = ShardSet::EMPTY;
        for next in spare.by_ref().take(needed) {
            waits.insert(next.0);
            self.start_read(job, &mut reads, next, blocks);
        }
        while sources.len() < needed {
            let waited = tokio::time::timeout(self.config.rebuild_hedge, reads.join_next()).await;
            let (source, outcome) = match waited {
                // Slow ones are not waited for alone.
                Err(_) => {
                    let slow = reads.len();
                    let known = *job.tardy.lock();
                    *job.tardy.lock() = known | waits;
                    for next in spare.by_ref().take(slow) {
                        waits.insert(next.0);
                        self.start_read(job, &mut reads, next, blocks);
                    }
                    continue;
                }
                Ok(None) => return Err(job.too_few(blocks, sources.len(), &failures)),
                Ok(Some(Err(_gone))) => continue,
                Ok(Some(Ok(read))) => read,
            };
            let (shard, disk) = source;
            waits.remove(shard);
            match outcome {
                Ok(fetched) => sources.push(Source { shard, disk, fetched }),
                Err(error) if error.code == ErrorCode::ChunkDeleted => {
                    return Err(RebuildError::Freed { chunk: job.id, disk, blocks: blocks.clone() });
                }
                Err(error) => {
                    failures.unanswered |= !is_about_bytes(&error);
                    failures.damaged |= is_about_bytes(&error);
                    failures.problems.push(format!("shard {shard} on {disk}: {error}"));
                    job.tardy.lock().insert(shard);
                    if let Some(next) = spare.next() {
                        waits.insert(next.0);
                        self.start_read(job, &mut reads, next, blocks);
                    }
                }
            }
        }
        sources.sort_by_key(|source| source.shard);
        tracing::trace!(chunk = %job.id, ?blocks, disks = ?sources.iter().map(|source| source.disk).collect::<Vec<_>>(), "sources");
        Ok(sources)
    }

    fn start_read(
        self: &Arc<Self>,
        job: &Arc<Rebuild>,
        reads: &mut JoinSet<Read>,
        source: (usize, DiskId),
        blocks: &Range<u32>,
    ) {
        let (inner, job) = (self.clone(), job.clone());
        let from = u64::from(blocks.start) * BLOCK_SIZE as u64;
        let length = (blocks.len() * BLOCK_SIZE) as u32;
        reads.spawn(async move {
            let at = job.at(source.1);
            (source, inner.fetch_rows(&at, from, length).await)
        });
    }
}
