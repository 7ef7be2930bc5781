//! Reading striped rows where damage leaves no k shards that are good over a whole range: block by block, row by row.
//!
//! Invariants: whatever row has k good blocks on members that answer is read, whichever they are; an error names the
//! first block in the order of the file that has not, and what its row lacks. Only reads that failed otherwise come
//! here.
//!
//! Members that do not serve are asked for what is still lacking when all who serve have answered: those that catch up,
//! or are up but cannot begin to (their group lacks too many others), have most of the shards, and what lies at a place
//! of a shard is never replaced by anything else. They answer only if the chunk was made in the epoch that serving
//! members name (indices may be given again after data was given up by force).
//!
//! Bounds: rows are gathered [`WINDOW_BYTES`] at a time over all members, every member is asked for a window at once,
//! and in smaller parts down to a block only where it refuses a range: so at most 2 × [`WINDOW_BLOCKS_MAX`] requests a
//! member and window, each with its deadline. Nobody is waited for whose blocks are not needed, and one that gives no
//! answer is not asked again.
use super::block_rows::{At, BlockRows, GoodBlock};
use super::rows::{Located, Rows, in_file_order};
use super::shard::{GoodBlocks, ShardRange, read_good_blocks};
use crate::cluster::Cluster;
use crate::view::PgView;
use cairn_env::buf::{AlignedBuf, SharedBuf};
use cairn_erasure::Codec;
use cairn_types::{BLOCK_SIZE, MemberState};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use tokio::task::JoinSet;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// What the members of a window answer together, at most.
const WINDOW_BYTES: u64 = 2 << 20;
const WINDOW_BLOCKS_MAX: u64 = 64;

/// What comes before the first block that cannot be had, where that is in the logical space, and why.
pub(super) struct Torn {
    pub data: Vec<SharedBuf>,
    pub from: u64,
    pub to: u64,
    pub detail: String,
    /// Members that were away or silent would not be enough either.
    pub hopeless: bool,
    /// Members that gave no answer about it, if it takes no more than these.
    pub away: Vec<String>,
}

/// Why a block cannot be had.
struct Lost {
    detail: String,
    hopeless: bool,
    away: Vec<String>,
}

/// What one member gave of a window.
#[derive(Default)]
struct Found {
    parts: Vec<(u64, GoodBlocks)>,
    /// Why a block is not among them.
    bad: BTreeMap<u64, String>,
    /// Those of them that do not match their checksums at rest.
    rotten: BTreeSet<u64>,
    /// Why nothing more is to be had of it.
    gone: Option<String>,
}

/// Reads the range from whatever is good.
pub(super) async fn gather(
    cluster: &Arc<Cluster>,
    rows: Rows,
    pg: &PgView,
    codec: &Codec,
) -> std::result::Result<Vec<SharedBuf>, Torn> {
    let absent = |(shard, (_, state)): (usize, &(u32, MemberState))| {
        (*state != MemberState::Serving).then(|| (shard, format!("it is {state}")))
    };
    let gone: BTreeMap<usize, String> = pg.members.iter().enumerate().filter_map(absent).collect();
    let others = gone.keys().copied().collect();
    let (bad, rotten, lost) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
    Gather { cluster, rows, pg, codec, gone, others, made: None, bad, rotten, lost }.run().await
}

struct Gather<'a> {
    cluster: &'a Arc<Cluster>,
    rows: Rows,
    pg: &'a PgView,
    codec: &'a Codec,
    gone: BTreeMap<usize, String>,
    /// Members that do not serve, while there is hope in them.
    others: BTreeSet<usize>,
    /// The epoch in which the chunk was made, as serving members say.
    made: Option<u64>,
    bad: BTreeMap<At, String>,
    /// Blocks that do not match their checksums where they lie.
    rotten: BTreeSet<At>,
    /// By offset in the logical space: what cannot be had.
    lost: BTreeMap<u64, Lost>,
}

impl Gather<'_> {
    async fn run(mut self) -> std::result::Result<Vec<SharedBuf>, Torn> {
        let Rows { stripe, from, to, .. } = self.rows;
        let wanted: Vec<(usize, Range<u64>)> = (0..stripe.columns())
            .filter_map(|column| stripe.part(column, from, to))
            .map(|p| (usize::from(p.column), p.offset / BLOCK..(p.offset + p.length).div_ceil(BLOCK)))
            .collect();
        let first = wanted.iter().map(|(_, blocks)| blocks.start).min().unwrap_or(0);
        let end = wanted.iter().map(|(_, blocks)| blocks.end).max().unwrap_or(first);
        let length = ((end - first) * BLOCK) as usize;
        let mut columns: BTreeMap<usize, AlignedBuf> = BTreeMap::new();
        for (column, _) in &wanted {
            let mut buffer = AlignedBuf::unpooled(length);
            buffer.resize(length);
            columns.insert(*column, buffer);
        }
        let step = (WINDOW_BYTES / (self.codec.shards() as u64 * BLOCK)).clamp(1, WINDOW_BLOCKS_MAX);
        let mut at = first;
        // What follows the first loss in the file is not looked at.
        while at < end && self.lost.keys().next().is_none_or(|lost| stripe.logical(0, at * BLOCK) < *lost) {
            let window = at..(at + step).min(end);
            at = window.end;
            let inside = |(column, blocks): &(usize, Range<u64>)| {
                let (column, blocks) = (*column, blocks.start.max(window.start)..blocks.end.min(window.end));
                blocks.map(move |block| (column, block))
            };
            let wanted: Vec<At> = wanted.iter().flat_map(inside).collect();
            let found = self.window(window, &wanted).await;
            for (column, block) in wanted {
                let into = columns.get_mut(&column).expect("every wanted column has a buffer");
                let start = ((block - first) * BLOCK) as usize;
                match found.bytes((column, block)) {
                    Some(bytes) => into[start..start + BLOCK_SIZE].copy_from_slice(bytes),
                    None => self.lose(&found, (column, block)),
                }
            }
        }
        let located = |buffer: AlignedBuf| Located { offset: first * BLOCK, data: buffer.freeze() };
        let columns: BTreeMap<usize, Located> = columns.into_iter().map(|(c, buffer)| (c, located(buffer))).collect();
        let until = |to: u64| in_file_order(stripe, from, to, |column| &columns[&usize::from(column)]);
        match self.lost.pop_first() {
            None => Ok(until(to)),
            Some((lost, Lost { detail, hopeless, away })) => {
                let start = lost.max(from);
                Err(Torn { data: until(start), from: start, to: (lost + BLOCK).min(to), detail, hopeless, away })
            }
        }
    }

    /// Asks all members for a few blocks until every one that is wanted is there or can be made, or nobody is left.
    async fn window(&mut self, window: Range<u64>, wanted: &[At]) -> BlockRows {
        let mut running: JoinSet<(usize, Found)> = JoinSet::new();
        let serving: Vec<usize> = (0..self.codec.shards()).filter(|shard| !self.gone.contains_key(shard)).collect();
        self.ask(&mut running, serving, &window, None);
        let (mut rows, mut last_resort) = (BlockRows::default(), self.others.clone());
        loop {
            if running.is_empty() || wanted.iter().all(|at| rows.is_enough(self.codec, *at)) {
                rows = self.make(rows, wanted).await;
                if wanted.iter().all(|at| rows.bytes(*at).is_some()) {
                    return rows;
                }
            }
            if running.is_empty() {
                // Everybody who serves has said what there is. Of a shard nobody has anything else at the same place,
                // if it is the same chunk: without that being known, members that do not serve are not asked.
                let others: Vec<usize> = std::mem::take(&mut last_resort).into_iter().collect();
                if others.is_empty() || self.made.is_none() {
                    return rows;
                }
                self.ask(&mut running, others, &window, self.made);
            }
            match running.join_next().await {
                Some(Ok((shard, found))) => self.take(&mut rows, shard, found),
                Some(Err(join)) => tracing::warn!(%join, "a read task ended"),
                None => {}
            }
        }
    }

    fn ask(&self, running: &mut JoinSet<(usize, Found)>, shards: Vec<usize>, window: &Range<u64>, made: Option<u64>) {
        let k = self.codec.k();
        for shard in shards {
            let range = ShardRange {
                chunk: self.rows.chunk,
                shard: Some(shard),
                disk: self.pg.members[shard].0,
                offset: window.start * BLOCK,
                length: (window.end - window.start) * BLOCK,
                row_crcs: (shard >= k).then_some(k),
                made,
                at_rest: false,
            };
            let cluster = self.cluster.clone();
            running.spawn(async move { (shard, from_member(&cluster, range).await) });
        }
    }

    async fn make(&self, mut rows: BlockRows, wanted: &[At]) -> BlockRows {
        if wanted.iter().all(|at| rows.bytes(*at).is_some()) {
            return rows;
        }
        let (codec, wanted) = (self.codec.clone(), wanted.to_vec());
        let making = move || {
            rows.make(&codec, &wanted);
            rows
        };
        // A thread that ended took the blocks along: they count as missing.
        tokio::task::spawn_blocking(making).await.unwrap_or_default()
    }

    fn take(&mut self, rows: &mut BlockRows, shard: usize, found: Found) {
        let k = self.codec.k();
        let serves = self.pg.members[shard].1 == MemberState::Serving;
        for (first, part) in found.parts {
            if serves && part.made != 0 {
                self.made = Some(part.made);
            }
            for (i, crc) in part.crcs.iter().enumerate().filter(|(i, _)| !part.bad.contains(i)) {
                let row = if shard < k { &[][..] } else { &part.row_crcs[i * k * 4..(i + 1) * k * 4] };
                let number = |crc: &[u8]| u32::from_le_bytes([crc[0], crc[1], crc[2], crc[3]]);
                let data = part.data.slice(i * BLOCK_SIZE..(i + 1) * BLOCK_SIZE);
                let row_crcs = row.chunks_exact(4).map(number).collect();
                rows.put((shard, first + i as u64), GoodBlock { data, crc: *crc, row_crcs });
            }
            for i in part.bad {
                self.bad.insert((shard, first + i as u64), "the block does not match its checksum".to_owned());
                self.rotten.insert((shard, first + i as u64));
            }
        }
        self.rotten.extend(found.rotten.into_iter().map(|block| (shard, block)));
        self.bad.extend(found.bad.into_iter().map(|(block, text)| ((shard, block), text)));
        if let Some(text) = found.gone {
            self.others.remove(&shard);
            self.gone.entry(shard).and_modify(|state| *state = format!("{state}; {text}")).or_insert(text);
        }
    }

    /// Notes why a block cannot be had.
    fn lose(&mut self, rows: &BlockRows, (column, block): At) {
        let stripe = self.rows.stripe;
        let shards = 0..self.codec.shards();
        let lacking: BTreeSet<usize> = shards.clone().filter(|shard| !rows.is_good((*shard, block))).collect();
        let why = |shard: &usize| {
            let text = self.bad.get(&(*shard, block)).or_else(|| self.gone.get(shard));
            let text = text.map_or("it gave no answer", String::as_str);
            format!("shard {shard} on {}: {text}", self.cluster.disk_name(self.pg.members[*shard].0))
        };
        let hopeless = shards.clone().filter(|shard| !self.rotten.contains(&(*shard, block))).count() < self.codec.k();
        let silent = lacking.iter().filter(|shard| !self.bad.contains_key(&(**shard, block)));
        let mut away: Vec<String> = silent.map(|shard| self.cluster.disk_name(self.pg.members[*shard].0)).collect();
        if shards.len() - lacking.len() + away.len() < self.codec.k() {
            away.clear();
        }
        let mut detail = format!(
            "row {}, block {block} of each shard: {} of {} shards needed are there; {}",
            block * BLOCK / stripe.unit(),
            shards.len() - lacking.len(),
            self.codec.k(),
            lacking.iter().map(why).collect::<Vec<_>>().join("; ")
        );
        if let Some(trouble) = rows.trouble((column, block)) {
            detail.push_str(&format!("; the others do not belong together: {trouble}"));
        }
        self.lost.insert(stripe.logical(column as u16, block * BLOCK), Lost { detail, hopeless, away });
    }
}

/// What a member has of a range; asked in ever smaller parts where it refuses for damage.
async fn from_member(cluster: &Arc<Cluster>, range: ShardRange) -> Found {
    let mut found = Found::default();
    let mut ranges = vec![(range.offset, range.length)];
    while let Some((offset, length)) = ranges.pop() {
        match read_good_blocks(cluster, ShardRange { offset, length, ..range }).await {
            Ok(blocks) => found.parts.push((offset / BLOCK, blocks)),
            Err(error) if error.is_damage() => {
                let half = length / BLOCK / 2 * BLOCK;
                if half == 0 {
                    if error.is_rotten() {
                        found.rotten.insert(offset / BLOCK);
                    }
                    found.bad.insert(offset / BLOCK, error.text());
                } else {
                    ranges.extend([(offset + half, length - half), (offset, half)]);
                }
            }
            Err(error) => {
                found.gone = Some(error.text());
                break;
            }
        }
    }
    found
}

#[cfg(test)]
mod tests;
