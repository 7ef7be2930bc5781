//! One chunk of whole shards, written and read back: data shards are made on the disks that have copies, of what is
//! there; parities are computed here, from copies of the core rack, and sent.
//!
//! Invariants: a data shard has the blocks that parity was computed of, or the chunk fails: each member holds the
//! checksums that come with a request against what it has. All members have all of it durably, in one incarnation each.
//! [`check`] is answered by disks, past the page cache, with the checksums of what they read: nothing may be replaced
//! before. Whatever fails leaves a chunk that nothing names. Memory: two segments of each shard, and the checksums of
//! the chunk. Not here: what is put together (`plan`), what becomes of files.
use super::pace::{Pace, Step};
use super::plan::{Source, Together};
use crate::append::open::{Allocated, allocate};
use crate::append::segment::block_crcs;
use crate::append::target::Target;
use crate::cluster::Cluster;
use crate::error::{ClientError, Result};
use crate::net::NetError;
use crate::read::piece::report_bad_block;
use crate::read::read_epochs::ReadEpochs;
use crate::view::PgView;
use cairn_env::buf::{AlignedBuf, SharedBuf};
use cairn_erasure::Codec;
use cairn_rpc::{CallOptions, Payload};
use cairn_types::{BLOCK_SIZE, ChunkId, ErrorCode, MemberState, SessionId};
use cairn_wire::Opcode;
use cairn_wire::data::{
    AppendRequest, AppendResponse, ChunkHeader, LocalBlocks, ReadRequest, ReadResponse, SealRequest, SealResponse,
};
use futures_util::future::try_join_all;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// Blocks of each shard that are read, computed and sent together.
const SEGMENT_BLOCKS: u64 = 256;
/// Blocks of a shard that are read back with one request.
const CHECK_BLOCKS: u64 = 1024;
/// Blocks of a damaged piece that are reported: whoever is told heals what is around them, too.
const REPORTS_MAX: usize = 16;
const DEADLINE: Duration = Duration::from_secs(20);
const SEAL_DEADLINE: Duration = Duration::from_secs(5);
/// A group that was made just now has taken its first chunks by then.
const YOUNG: Duration = Duration::from_secs(10);
const YOUNG_PAUSE: Duration = Duration::from_millis(200);

fn unsound(chunk: ChunkId, why: impl Into<String>) -> ClientError {
    ClientError::NotAtRest { what: chunk.to_string(), detail: why.into() }
}

/// The disks from which the blocks of each shard are read.
pub(super) type Sources = Vec<u32>;

/// What is written.
pub(super) struct Work<'a> {
    pub cluster: &'a Arc<Cluster>,
    /// Shard i is on a disk that has what it is made of.
    pub pg: PgView,
    pub target: Target,
    pub together: Arc<Together>,
    pub disks: Arc<Sources>,
    pub epochs: Arc<ReadEpochs>,
    pub pace: &'a Pace<'a>,
}

/// A chunk that is on all members, with the checksums of its blocks by shard.
pub(super) struct Written {
    pub chunk: ChunkId,
    /// Who wrote it.
    pub session: SessionId,
    creation_epoch: u64,
    sums: Vec<Vec<u8>>,
}

/// Bytes of all columns, and the checksums of their blocks, by which they were checked.
struct Segment {
    from: u64,
    to: u64,
    columns: Vec<(SharedBuf, Vec<u8>)>,
}

impl Work<'_> {
    /// Writes and reads back. What comes is complete on the disks of all members.
    pub async fn run(&self) -> Result<Written> {
        let what = self.pg.id.to_string();
        if self.pg.members.iter().any(|(_, state)| *state != MemberState::Serving) {
            return Err(ClientError::NotAtRest { what, detail: "it is not complete now".into() });
        }
        let failed = |error: NetError| ClientError::NotAtRest { what: what.clone(), detail: error.text() };
        let (index, creation_epoch) = self.allocate().await.map_err(failed)?;
        let chunk = ChunkId { pg: self.pg.id, index };
        let session = self.target.session;
        let mut written = Written { chunk, session, creation_epoch, sums: vec![Vec::new(); self.pg.members.len()] };
        let outcome = self.write(&mut written).await;
        // Best effort: members seal an idle chunk by themselves.
        self.seal(chunk).await;
        outcome?;
        self.check(&written).await?;
        Ok(written)
    }

    /// A group that has just been made takes chunks a moment later.
    async fn allocate(&self) -> Allocated {
        let began = self.cluster.clock.now();
        loop {
            let outcome = allocate(self.cluster, self.target, &self.pg).await;
            let is_young = matches!(&outcome, Err(NetError::Remote(error)) if error.code == ErrorCode::Overloaded);
            if !is_young || self.cluster.clock.now().since(began) > YOUNG {
                return outcome;
            }
            sleep(YOUNG_PAUSE).await;
        }
    }

    async fn write(&self, written: &mut Written) -> Result<()> {
        let codec = Codec::for_scheme(self.pg.scheme).map_err(|error| unsound(written.chunk, error.to_string()))?;
        let mut stamps: Vec<Option<u64>> = vec![None; codec.shards()];
        let (mut at, end) = (0, self.together.blocks);
        let mut next = self.read_ahead(at);
        while at < end {
            let began = self.cluster.clock.now();
            let segment = next.await.map_err(|join| unsound(written.chunk, join.to_string()))??;
            let bytes = (segment.to - segment.from) * BLOCK * codec.k() as u64;
            at = segment.to;
            next = self.read_ahead(at);
            let code = codec.clone();
            let computed = tokio::task::spawn_blocking(move || compute(&code, segment)).await;
            let computed = computed.map_err(|join| unsound(written.chunk, join.to_string()))?;
            let computed = computed.map_err(|why| unsound(written.chunk, why))?;
            for (sums, crcs) in written.sums.iter_mut().zip(&computed.crcs) {
                sums.extend_from_slice(crcs);
            }
            self.send(written, &computed, at == end, &mut stamps).await?;
            self.pace.after(Step::Write, bytes, began).await;
        }
        Ok(())
    }

    /// The next segment of all columns, of copies in the core rack; nothing behind the end.
    fn read_ahead(&self, from: u64) -> tokio::task::JoinHandle<Result<Segment>> {
        let to = (from + SEGMENT_BLOCKS).min(self.together.blocks);
        let (cluster, together) = (self.cluster.clone(), self.together.clone());
        let (disks, epochs) = (self.disks.clone(), self.epochs.clone());
        let k = self.pg.scheme.members() - self.pg.scheme.tolerated_losses();
        tokio::spawn(async move {
            let column = async |shard: usize| {
                let (all, sources) = (((to - from) * BLOCK) as usize, together.sources(shard, from, to));
                if let [source] = sources[..]
                    && source.held() == all as u64
                {
                    let (bytes, sums) = read_source(&cluster, disks[shard], &epochs, source).await?;
                    return Ok::<_, ClientError>((bytes.freeze(), sums));
                }
                let (mut buffer, mut sums) = (AlignedBuf::unpooled(all), Vec::new());
                for source in sources {
                    let (bytes, of_blocks) = read_source(&cluster, disks[shard], &epochs, source).await?;
                    buffer.extend_from_slice(&bytes);
                    sums.extend_from_slice(&of_blocks);
                }
                let read = buffer.len();
                buffer.resize(all);
                sums.extend_from_slice(&block_crcs(&buffer[read..]));
                Ok((buffer.freeze(), sums))
            };
            let columns = try_join_all((0..k).map(column)).await?;
            Ok(Segment { from, to, columns })
        })
    }

    /// Each shard takes its part; the last one makes all of it durable.
    async fn send(&self, written: &Written, computed: &Computed, last: bool, stamps: &mut [Option<u64>]) -> Result<()> {
        let k = computed.k;
        let shard = async |shard: usize| {
            let disk = self.pg.members[shard].0;
            let crcs = &computed.crcs[shard];
            let mut answers = Vec::new();
            if shard < k {
                let sources = self.together.sources(shard, computed.from, computed.to);
                let (mut at, all) = (0, (computed.to - computed.from) as usize * BLOCK_SIZE);
                for source in sources {
                    let bytes = source.held() as usize;
                    let local = LocalBlocks {
                        pg: source.chunk.pg.0,
                        index: source.chunk.index,
                        offset: source.offset,
                        length: source.length as u32,
                    };
                    let sums = crcs[at / BLOCK_SIZE * 4..(at + bytes) / BLOCK_SIZE * 4].to_vec();
                    let request = AppendRequest {
                        local: Some(local),
                        ..self.append(written, disk, computed.from * BLOCK + at as u64, sums)
                    };
                    at += bytes;
                    let sync = last && at == all;
                    answers.push(self.ask(written.chunk, disk, AppendRequest { sync, ..request }, None).await?);
                }
                if at < all {
                    let mut zeros = AlignedBuf::unpooled(all - at);
                    zeros.resize(all - at);
                    let sums = crcs[at / BLOCK_SIZE * 4..].to_vec();
                    let request = self.append(written, disk, computed.from * BLOCK + at as u64, sums);
                    let request = AppendRequest { sync: last, ..request };
                    answers.push(self.ask(written.chunk, disk, request, Some(zeros.freeze())).await?);
                }
            } else {
                let request = AppendRequest {
                    row_crcs: computed.row_crcs.clone(),
                    sync: last,
                    ..self.append(written, disk, computed.from * BLOCK, crcs.clone())
                };
                let parity = computed.parity[shard - k].clone();
                answers.push(self.ask(written.chunk, disk, request, Some(parity)).await?);
            }
            Ok::<Vec<AppendResponse>, ClientError>(answers)
        };
        let all = try_join_all((0..self.pg.members.len()).map(shard)).await?;
        for ((answers, stamp), (disk, _)) in all.iter().zip(stamps).zip(&self.pg.members) {
            for answer in answers {
                // What a member had not made durable is lost when it starts anew.
                let now = answer.members.iter().find(|stamp| stamp.disk == *disk).map(|stamp| stamp.incarnation);
                if now.is_none() || *stamp.get_or_insert(now.unwrap_or(0)) != now.unwrap_or(0) {
                    return Err(unsound(written.chunk, format!("d{disk} was restarted")));
                }
            }
            let durable = answers.last().map_or(0, |answer| answer.durable_length);
            if last && durable < self.together.blocks * BLOCK {
                return Err(unsound(written.chunk, format!("d{disk} has made {durable} bytes durable")));
            }
        }
        Ok(())
    }

    fn append(&self, written: &Written, disk: u32, offset: u64, crcs: Vec<u8>) -> AppendRequest {
        AppendRequest {
            chunk: Some(self.header(written.chunk, disk)),
            creation_epoch: written.creation_epoch,
            offset,
            crcs,
            scheme: u32::from(self.pg.scheme.code()),
            ..AppendRequest::default()
        }
    }

    async fn ask(
        &self,
        chunk: ChunkId,
        disk: u32,
        request: AppendRequest,
        payload: Option<SharedBuf>,
    ) -> Result<AppendResponse> {
        let failed = |error: NetError| unsound(chunk, format!("d{disk}: {}", error.text()));
        let address = self.cluster.disk_address(disk).map_err(failed)?;
        let payload = payload.map_or(Payload::None, Payload::One);
        let options = CallOptions::new(DEADLINE).bulk().protected(self.cluster.protection(chunk));
        let call = self.cluster.net.call_with(&address, Opcode::Append, &request, payload, options);
        call.await.map(|(answer, _)| answer).map_err(failed)
    }

    fn header(&self, chunk: ChunkId, disk: u32) -> ChunkHeader {
        let (epoch, session) = (self.pg.epoch.0, self.target.session.0);
        ChunkHeader { disk, pg: chunk.pg.0, index: chunk.index, epoch, session }
    }

    async fn seal(&self, chunk: ChunkId) {
        let seal = async |disk: u32| {
            let request = SealRequest { chunk: Some(self.header(chunk, disk)), chain: Vec::new() };
            let Ok(address) = self.cluster.disk_address(disk) else { return };
            let sealed = self.cluster.net.call::<SealResponse>(&address, Opcode::Seal, &request, SEAL_DEADLINE).await;
            if let Err(error) = sealed {
                tracing::debug!(%chunk, disk, error = error.text(), "a shard was left to be sealed by its member");
            }
        };
        futures_util::future::join_all(self.pg.members.iter().map(|(disk, _)| seal(*disk))).await;
    }

    /// Fails unless every disk reads all of its shard with the checksums that it was computed with.
    async fn check(&self, written: &Written) -> Result<()> {
        let k = self.pg.scheme.members() - self.pg.scheme.tolerated_losses();
        let (mut from, shards) = (0, self.pg.members.len());
        while from < self.together.blocks {
            let began = self.cluster.clock.now();
            let to = (from + CHECK_BLOCKS).min(self.together.blocks);
            try_join_all((0..shards).map(|shard| self.check_part(written, (shard, k), from, to))).await?;
            self.pace.after(Step::ReadBack, (to - from) * BLOCK * shards as u64, began).await;
            from = to;
        }
        Ok(())
    }

    async fn check_part(&self, written: &Written, (shard, k): (usize, usize), from: u64, to: u64) -> Result<()> {
        let (chunk, disk) = (written.chunk, self.pg.members[shard].0);
        let request = ReadRequest {
            chunk: Some(ChunkHeader { session: 0, epoch: 0, ..self.header(chunk, disk) }),
            offset: from * BLOCK,
            length: ((to - from) * BLOCK) as u32,
            creation_epoch: written.creation_epoch,
            row_crcs: shard >= k,
            shard: shard as u32 + 1,
            at_rest: true,
            sums: true,
            ..ReadRequest::default()
        };
        let failed = |error: NetError| unsound(chunk, format!("d{disk}: {}", error.text()));
        let address = self.cluster.disk_address(disk).map_err(failed)?;
        let options = CallOptions::new(DEADLINE);
        let call =
            self.cluster.net.call_with::<ReadResponse, _>(&address, Opcode::Read, &request, Payload::None, options);
        let (answer, payload) = call.await.map_err(failed)?;
        // A server of before level 20 answers with the blocks and what its table says of them, unread.
        if payload.is_some() {
            return Err(unsound(chunk, format!("the server of d{disk} is of a version that cannot read it back")));
        }
        let range = from as usize * 4..to as usize * 4;
        let rows = if shard < k { Vec::new() } else { interleave(&written.sums[..k], from as usize, to as usize) };
        let same = answer.first_block_offset == from * BLOCK
            && answer.crcs == written.sums[shard][range]
            && answer.row_crcs == rows;
        if same { Ok(()) } else { Err(unsound(chunk, format!("d{disk} has something else in shard {shard}"))) }
    }
}

/// Parity and checksums of a segment.
struct Computed {
    k: usize,
    from: u64,
    to: u64,
    /// By shard, u32 little-endian a block.
    crcs: Vec<Vec<u8>>,
    row_crcs: Vec<u8>,
    parity: Vec<SharedBuf>,
}

fn compute(codec: &Codec, segment: Segment) -> std::result::Result<Computed, String> {
    let Segment { from, to, columns } = segment;
    let (data, mut crcs): (Vec<SharedBuf>, Vec<Vec<u8>>) = columns.into_iter().unzip();
    let length = ((to - from) * BLOCK) as usize;
    let mut parity: Vec<AlignedBuf> = (0..codec.m()).map(|_| AlignedBuf::unpooled(length)).collect();
    parity.iter_mut().for_each(|buffer| buffer.resize(length));
    let mut outputs: Vec<&mut [u8]> = parity.iter_mut().map(|buffer| &mut buffer[..]).collect();
    codec.encode(&data, &mut outputs).map_err(|error| error.to_string())?;
    let parity: Vec<SharedBuf> = parity.into_iter().map(AlignedBuf::freeze).collect();
    crcs.extend(parity.iter().map(|bytes| block_crcs(bytes)));
    let row_crcs = interleave(&crcs[..codec.k()], 0, (to - from) as usize);
    Ok(Computed { k: codec.k(), from, to, crcs, row_crcs, parity })
}

/// Checksums by shard become checksums by block: those of all shards' block `from`, of the next one, …
fn interleave(shards: &[Vec<u8>], from: usize, to: usize) -> Vec<u8> {
    let mut rows = Vec::with_capacity((to - from) * 4 * shards.len());
    for block in from..to {
        shards.iter().for_each(|sums| rows.extend_from_slice(&sums[block * 4..block * 4 + 4]));
    }
    rows
}

/// Blocks on one disk, with the checksums that they match, under the epoch of the map: whoever answers has all that was
/// acknowledged.
async fn read_source(
    cluster: &Cluster,
    disk: u32,
    epochs: &ReadEpochs,
    source: Source,
) -> Result<(AlignedBuf, Vec<u8>)> {
    let (Source { chunk, offset, length }, held) = (source, source.held());
    let epoch = epochs.of(cluster, chunk.pg).await?.0;
    let header = ChunkHeader { disk, pg: chunk.pg.0, index: chunk.index, epoch, session: 0 };
    let length = length as u32;
    let request = ReadRequest { chunk: Some(header), offset, length, sure: true, ..ReadRequest::default() };
    let failed = |error: NetError| unsound(chunk, format!("d{disk}: {}", error.text()));
    let address = cluster.disk_address(disk).map_err(failed)?;
    let options = CallOptions::new(DEADLINE).bulk().protected(cluster.protection(chunk));
    let call = cluster.net.call_with(&address, Opcode::Read, &request, Payload::None, options);
    let (answer, payload): (ReadResponse, _) = call.await.map_err(failed)?;
    let payload = payload.unwrap_or_else(|| AlignedBuf::unpooled(0));
    let whole = payload.len() as u64 == held && answer.first_block_offset == offset;
    let crcs = block_crcs(&payload);
    if whole && crcs == answer.crcs {
        return Ok((payload, crcs));
    }
    let sums = crcs.chunks(4).zip(answer.crcs.chunks(4));
    let bad = (offset / BLOCK..).zip(sums).filter(|(_, (read, told))| whole && read != told);
    for (block, _) in bad.take(REPORTS_MAX) {
        tracing::warn!(%chunk, disk, block, "what is to be encoded has a block that does not match its checksum");
        report_bad_block(cluster, &address, header, block);
    }
    Err(unsound(chunk, format!("d{disk} answered other bytes than its checksums are of")))
}
