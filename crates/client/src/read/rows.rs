//! Reading a range of a striped chunk: the shards that hold it in parallel, parity for those that fail or are slow.
//!
//! What to ask and when it is enough is decided by `row_read`; this asks, waits and decodes. Where no k shards are good
//! over the whole range, `gather` reads its rows one by one. Reads that are no longer
//! needed are cancelled. Bytes come back in the order of the file, as views of what was received where units are large.
use super::decode::Decoding;
use super::gather::{Torn, gather};
use super::news::or_news;
use super::piece::Got;
use super::row_read::{RowRead, ShardBytes, Standing, Step};
use super::shard::{ShardError, ShardRange, read_shard};
use super::verdict::Verdict;
use crate::cluster::Cluster;
use crate::error::ClientError;
use crate::net::NetError;
use crate::view::{ClusterView, PgView};
use cairn_env::buf::{AlignedBuf, SharedBuf};
use cairn_erasure::Codec;
use cairn_types::{ChunkId, ErrorCode, MemberState, Stripe};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// Between two times that all members are asked for all blocks: what they heal takes about so long.
const GATHER_PAUSE_MIN: Duration = Duration::from_millis(250);
const GATHER_PAUSE_MAX: Duration = Duration::from_secs(4);
/// Units below this are put together into buffers of [`JOINED_BYTES`]; larger ones are handed on as they came.
const UNIT_JOINED_BELOW: u64 = 64 << 10;
const JOINED_BYTES: usize = 1 << 20;

/// A range of the logical space of a striped chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rows {
    pub chunk: ChunkId,
    pub stripe: Stripe,
    pub from: u64,
    pub to: u64,
}

/// Why an attempt gave no bytes.
struct Failure {
    detail: String,
    /// Everybody says that the chunk was deleted.
    deleted: bool,
    /// Some shard is bad in some of the range, and may be good in the rest; or a member that catches up may have it.
    in_parts: bool,
    /// Members that do not serve or gave no answer about their shard.
    away: Vec<String>,
}

/// Reads it; tries until the cluster's patience ends, all members say that the chunk was deleted, or it is certain that
/// it is lost.
pub(crate) async fn read_rows(cluster: &Arc<Cluster>, rows: Rows) -> Got<Vec<SharedBuf>> {
    let started = cluster.clock.now();
    let (mut pause, mut gather_pause) = (PAUSE_MIN, GATHER_PAUSE_MIN);
    let (mut gather_next, mut verdict) = (started, Verdict::default());
    loop {
        let failure = match or_news(cluster, rows.chunk.pg, attempt(cluster, rows)).await {
            Some(Ok(data)) => return Got { data, failed: None },
            Some(Err(failure)) => failure,
            None => continue,
        };
        let what = rows.chunk.to_string();
        if failure.deleted {
            return Got { data: Vec::new(), failed: Some(ClientError::Changed { what }) };
        }
        let is_over = || cluster.clock.now().since(started) > cluster.patience;
        // Every row by itself may have enough good blocks; and the last answer is to say which has not.
        if failure.in_parts && cluster.clock.now() >= gather_next || is_over() {
            let torn = match or_news(cluster, rows.chunk.pg, gather_rows(cluster, rows)).await {
                Some(Ok(data)) => return Got { data, failed: None },
                Some(Err(torn)) => torn,
                None => continue,
            };
            let hopeless = torn.as_ref().is_some_and(|torn| torn.hopeless);
            if verdict.is_final(hopeless, cluster.clock.now()) || is_over() {
                let (from, to) = (rows.from, rows.to);
                let Failure { detail, away, .. } = failure;
                let whole = || Torn { data: Vec::new(), from, to, detail, hopeless, away };
                let Torn { data, from, to, detail, away, .. } = torn.unwrap_or_else(whole);
                let failed = ClientError::unread(what, (from, to - from), away, detail);
                return Got { data, failed: Some(failed) };
            }
            gather_next = cluster.clock.now() + gather_pause;
            gather_pause = (gather_pause * 2).min(GATHER_PAUSE_MAX);
        }
        tokio::time::sleep(cluster.jitter(pause)).await;
        pause = (pause * 2).min(PAUSE_MAX);
        cluster.refresh_quietly().await;
    }
}

/// Row by row, if there is such a group.
async fn gather_rows(cluster: &Arc<Cluster>, rows: Rows) -> std::result::Result<Vec<SharedBuf>, Option<Torn>> {
    let view = cluster.view();
    let (pg, codec) = group(&view, rows).map_err(|_| None)?;
    gather(cluster, rows, pg, &codec).await.map_err(Some)
}

fn failed(detail: impl Into<String>) -> Failure {
    Failure { detail: detail.into(), deleted: false, in_parts: false, away: Vec::new() }
}

/// The group of a chunk, and its code.
fn group(view: &ClusterView, rows: Rows) -> std::result::Result<(&PgView, Codec), Failure> {
    let pg = view.pgs.get(&rows.chunk.pg.0).ok_or_else(|| failed(format!("the map has no {}", rows.chunk.pg)))?;
    let codec = Codec::for_scheme(pg.scheme).map_err(|e| failed(format!("{}: {e}", pg.id)))?;
    if codec.k() != usize::from(rows.stripe.columns()) || pg.members.len() != codec.shards() {
        return Err(failed(format!("{} is {} and cannot hold {} columns", pg.id, pg.scheme, rows.stripe.columns())));
    }
    Ok((pg, codec))
}

/// One pass over the members as they are known now.
async fn attempt(cluster: &Arc<Cluster>, rows: Rows) -> std::result::Result<Vec<SharedBuf>, Failure> {
    let view = cluster.view();
    let (pg, codec) = group(&view, rows)?;
    Attempt {
        cluster,
        rows,
        pg,
        codec,
        running: JoinSet::new(),
        deleted: 0,
        refused: 0,
        damaged: false,
        silent: BTreeSet::new(),
    }
    .run()
    .await
}

type ShardAnswer = std::result::Result<ShardBytes, ShardError>;

struct Attempt<'a> {
    cluster: &'a Arc<Cluster>,
    rows: Rows,
    pg: &'a PgView,
    codec: Codec,
    running: JoinSet<(usize, ShardAnswer)>,
    /// Members that said that the chunk was deleted, and all that failed.
    deleted: usize,
    refused: usize,
    /// A member has the chunk, but not all of the range.
    damaged: bool,
    /// Members that said nothing about their shard.
    silent: BTreeSet<usize>,
}

impl Attempt<'_> {
    async fn run(mut self) -> std::result::Result<Vec<SharedBuf>, Failure> {
        let standing = (0..self.pg.members.len()).map(|shard| self.standing(shard)).collect();
        let mut read = RowRead::new(self.rows.stripe, self.rows.from, self.rows.to, standing);
        let health = &self.cluster.shards.health;
        loop {
            let (now, late_after) = (self.cluster.clock.now(), health.late_after(read.length));
            for shard in read.asks(now, late_after, || health.may_hedge()) {
                self.ask(shard, &read);
            }
            match read.step() {
                // Nobody is waited for whom single rows may not need.
                Step::Wait if self.damaged && read.hangs_on(read.late(now, late_after)) => {
                    return Err(self.failure(&read));
                }
                Step::Wait => {}
                Step::Complete => return Ok(self.assemble(&read, Vec::new())),
                Step::Decode { present, missing } => {
                    let late = read.late(now, late_after);
                    late.iter().for_each(|shard| health.mark_slow(self.pg.members[shard].0, now));
                    let present = present.iter().filter_map(|s| Some((s, read.bytes(s)?.clone()))).collect();
                    match self.decode(present, missing.clone(), read.length).await {
                        Ok(columns) => return Ok(self.assemble(&read, missing.into_iter().zip(columns).collect())),
                        Err((text, Some(parity))) => {
                            self.damaged = true;
                            read.answered(parity, Err(text));
                        }
                        Err((text, None)) => return Err(failed(text)),
                    }
                    continue;
                }
                Step::Failed => return Err(self.failure(&read)),
            }
            let patience = read.next_late(now, late_after).map_or(late_after, |at| at.since(now));
            match tokio::time::timeout(patience, self.running.join_next()).await {
                Ok(Some(Ok((shard, answer)))) => self.take(&mut read, shard, answer),
                Ok(Some(Err(join))) => return Err(failed(format!("a read task ended: {join}"))),
                // Nothing runs, or nothing came in time: what is to be done is decided above.
                Ok(None) | Err(_) => {}
            }
        }
    }

    fn standing(&self, shard: usize) -> Standing {
        let (disk, state) = self.pg.members[shard];
        if state != MemberState::Serving {
            return Standing::Absent(format!("it is {state}"));
        }
        match self.cluster.shards.health.is_slow(disk, self.cluster.clock.now()) {
            true => Standing::Slow,
            false => Standing::Good,
        }
    }
    fn ask(&mut self, shard: usize, read: &RowRead) {
        let k = self.codec.k();
        let range = ShardRange {
            chunk: self.rows.chunk,
            shard: Some(shard),
            disk: self.pg.members[shard].0,
            offset: read.offset,
            length: read.length,
            row_crcs: (shard >= k).then_some(k),
            made: None,
            at_rest: false,
        };
        let cluster = self.cluster.clone();
        self.running.spawn(async move { (shard, read_shard(&cluster, range).await) });
    }
    fn take(&mut self, read: &mut RowRead, shard: usize, answer: ShardAnswer) {
        let answer = answer.map_err(|error| {
            self.refused += 1;
            self.damaged |= error.is_damage();
            let told =
                matches!(&error, ShardError::Net(NetError::Remote(remote)) if remote.code == ErrorCode::ChunkDeleted);
            if !told && !error.is_damage() {
                self.silent.insert(shard);
            }
            match &error {
                ShardError::Net(NetError::Remote(remote)) => {
                    self.deleted += usize::from(remote.code == ErrorCode::ChunkDeleted);
                    if remote.code == ErrorCode::DiskFailed {
                        self.mark_slow(shard);
                    }
                }
                // Nobody there: others need not find that out one by one.
                ShardError::Net(NetError::NotSent(_) | NetError::Refused(_)) => self.mark_slow(shard),
                ShardError::Net(NetError::Unknown(_)) | ShardError::Damaged(_) => {}
            }
            tracing::debug!(chunk = %self.rows.chunk, shard, error = error.text(), "a shard is read around");
            error.text()
        });
        read.answered(shard, answer);
    }

    fn mark_slow(&self, shard: usize) {
        self.cluster.shards.health.mark_slow(self.pg.members[shard].0, self.cluster.clock.now());
    }

    async fn decode(
        &self,
        present: Vec<(usize, ShardBytes)>,
        missing: Vec<usize>,
        length: u64,
    ) -> super::decode::Decoded {
        let pool = self.cluster.shards.pool.clone();
        let decoding = Decoding { codec: self.codec.clone(), pool, present, missing, length: length as usize };
        match tokio::task::spawn_blocking(move || decoding.run()).await {
            Ok(decoded) => decoded,
            Err(join) => Err((format!("the decoding ended: {join}"), None)),
        }
    }

    /// The bytes in the order of the file.
    fn assemble(&self, read: &RowRead, decoded: Vec<(usize, SharedBuf)>) -> Vec<SharedBuf> {
        let mut columns: Vec<Option<Located>> = (0..self.codec.k())
            .map(|shard| Some(Located { offset: read.offset, data: read.bytes(shard)?.data.clone() }))
            .collect();
        for (shard, data) in decoded {
            columns[shard] = Some(Located { offset: read.offset, data });
        }
        let column = |column: u16| columns[usize::from(column)].as_ref().expect("every column that is wanted is there");
        in_file_order(self.rows.stripe, self.rows.from, self.rows.to, column)
    }

    fn failure(&self, read: &RowRead) -> Failure {
        let name = |(shard, text): (usize, String)| {
            format!("shard {shard} on {}: {text}", self.cluster.disk_name(self.pg.members[shard].0))
        };
        let missing: Vec<String> = read.failures().into_iter().map(name).collect();
        let have = self.pg.members.len() - missing.len();
        let detail = format!("{} of {} shards needed are there; {}", have, self.codec.k(), missing.join("; "));
        let deleted = self.refused > 0 && self.deleted == self.refused;
        let others = self.pg.members.iter().any(|(_, state)| *state != MemberState::Serving);
        let members = self.pg.members.iter().enumerate();
        let away = members.filter(|(shard, (_, state))| *state != MemberState::Serving || self.silent.contains(shard));
        let away = away.map(|(_, (disk, _))| self.cluster.disk_name(*disk)).collect();
        Failure { detail, deleted, in_parts: self.damaged || others, away }
    }
}

/// Bytes of a column from an offset in it on.
pub(crate) struct Located {
    pub offset: u64,
    pub data: SharedBuf,
}

/// Cuts the columns' units and puts them one after the other; small ones are copied together.
pub(crate) fn in_file_order<'a>(
    stripe: Stripe,
    from: u64,
    to: u64,
    column: impl Fn(u16) -> &'a Located,
) -> Vec<SharedBuf> {
    let mut parts = Vec::new();
    let mut joined: Option<AlignedBuf> = None;
    let mut at = from;
    while at < to {
        let (number, in_column) = stripe.locate(at);
        let length = (stripe.unit() - at % stripe.unit()).min(to - at) as usize;
        let bytes = column(number);
        let skip = (in_column - bytes.offset) as usize;
        at += length as u64;
        if stripe.unit() >= UNIT_JOINED_BELOW {
            parts.push(bytes.data.slice(skip..skip + length));
            continue;
        }
        let left = (to - at) as usize + length;
        let into = joined.get_or_insert_with(|| AlignedBuf::unpooled(left.min(JOINED_BYTES)));
        let first = length.min(into.remaining());
        into.extend_from_slice(&bytes.data[skip..skip + first]);
        if into.remaining() == 0 || at == to {
            parts.extend(joined.take().map(AlignedBuf::freeze));
        }
        if first < length {
            let mut next = AlignedBuf::unpooled((left - first).min(JOINED_BYTES));
            next.extend_from_slice(&bytes.data[skip + first..skip + length]);
            joined = Some(next);
        }
    }
    parts.extend(joined.map(AlignedBuf::freeze));
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader would get the units in another order than that of the file.
    #[test]
    fn columns_come_back_in_the_order_of_the_file() {
        for (columns, unit, rows, cut) in [(3u16, 4096u64, 200u64, 777u64), (2, 65536, 5, 100_000), (5, 8192, 90, 1)] {
            let stripe = Stripe::new(columns, unit).expect("valid");
            let logical = |i: u64| (i % 251) as u8;
            let total = stripe.row() * rows;
            let mut shards = vec![vec![0u8; (unit * rows) as usize]; usize::from(columns)];
            for i in 0..total {
                let (column, offset) = stripe.locate(i);
                shards[usize::from(column)][offset as usize] = logical(i);
            }
            let (from, to) = (cut, total - cut);
            let offset = from / stripe.row() * unit;
            let located = |s: Vec<u8>| Located { offset, data: SharedBuf::from_owner(s[offset as usize..].to_vec()) };
            let shards: Vec<Located> = shards.into_iter().map(located).collect();
            let parts = in_file_order(stripe, from, to, |c| &shards[usize::from(c)]);
            let bytes: Vec<u8> = parts.iter().flat_map(|p| p.to_vec()).collect();
            assert_eq!(bytes.len() as u64, to - from);
            assert!(bytes.iter().zip(from..).all(|(b, i)| *b == logical(i)));
            let small = unit < UNIT_JOINED_BELOW;
            assert!(!small || parts.len() == (to - from).div_ceil(JOINED_BYTES as u64) as usize, "{}", parts.len());
        }
    }
}
