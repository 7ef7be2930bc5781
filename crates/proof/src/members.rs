//! What members hold, asked one by one: every member that answers for bytes that were published at any time gives
//! those bytes, whatever happened since. [`Snapshot`] keeps what an extent map named when it was taken.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cairn_client::Volume;
use cairn_client::extent::{Extent, StripeSet};
use cairn_erasure::Codec;
use cairn_format::crc_table::decode_crcs;
use cairn_types::{BLOCK_SIZE, ChunkId, ErrorCode, ExtentKind, MemberState, Scheme, Stripe, crc32c};
use cairn_wire::Opcode;
use cairn_wire::data::{
    ChunkHeader, ChunkSummary, ListChunksRequest, ListChunksResponse, PgState, ReadRequest, ReadResponse,
    ReportBadBlockRequest,
};
use cairn_wire::manager::ClusterMap;

use crate::cluster::Cluster;

/// Bytes of one request.
const PART: u64 = 1 << 20;
const BLOCK: u64 = BLOCK_SIZE as u64;

/// What a member says when it is asked for bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// These, and every block matches its checksum.
    Bytes(Vec<u8>),
    /// A block does not match its checksum: whoever reads knows that it is bad.
    Bad(u64),
    /// It does not give them.
    No(String),
}

/// Bytes of a file where one member has them.
#[derive(Debug, Clone)]
pub struct Part {
    pub disk: u32,
    pub pg: u32,
    pub index: u32,
    /// In the member's chunk.
    pub offset: u64,
    pub want: Vec<u8>,
    /// What was written there since, perhaps in place.
    pub later: Vec<Vec<u8>>,
}

/// An extent map and the bytes that it named.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    pub extents: Vec<Extent>,
    pub sets: Vec<StripeSet>,
    pub bytes: Vec<u8>,
    /// What the file was to be since: blocks that were changed in place have bytes of one of these.
    pub later: Vec<Arc<Vec<u8>>>,
}

/// Groups by number.
pub type Groups = BTreeMap<u32, PgState>;

/// The groups of a map.
pub fn groups(map: &ClusterMap) -> Groups {
    map.pgs.iter().filter_map(|pg| pg.state.clone()).map(|state| (state.pg, state)).collect()
}

impl Snapshot {
    /// Takes the extent map of a file of which nothing changes meanwhile.
    pub async fn take(volume: &Volume, inode: u64, bytes: Vec<u8>) -> cairn_client::Result<Self> {
        let mut snapshot = Self { bytes, ..Self::default() };
        loop {
            let at = snapshot.extents.last().map_or(0, Extent::file_end);
            let page = volume.extents_page(inode, at, u64::MAX - at).await?;
            let end = page.end || page.extents.is_empty();
            snapshot.extents.extend(page.extents);
            snapshot.sets.extend(page.sets);
            if end {
                return Ok(snapshot);
            }
        }
    }

    /// Whether the extents name no more than the bytes that are known.
    pub fn is_within(&self) -> bool {
        self.extents.iter().all(|extent| extent.file_end() <= self.bytes.len() as u64)
    }

    /// What each member should have of it.
    pub fn parts(&self, groups: &Groups) -> Vec<Part> {
        self.extents.iter().flat_map(|extent| self.parts_of(extent, groups)).collect()
    }

    fn parts_of(&self, extent: &Extent, groups: &Groups) -> Vec<Part> {
        let from = extent.file_offset as usize;
        let whole = &self.bytes[from..from + extent.length as usize];
        let copies = |chunk: ChunkId, offset: u64, want: Vec<u8>| {
            let (pg, index) = (chunk.pg.0, chunk.index);
            let members = groups.get(&pg).map(|state| state.members.as_slice()).unwrap_or_default();
            let part = move |disk: u32| Part { disk, pg, index, offset, want: want.clone(), later: Vec::new() };
            members.iter().map(|member| member.disk).map(part).collect::<Vec<Part>>()
        };
        let (at, end) = (extent.chunk_offset, extent.chunk_offset + extent.length);
        match extent.kind {
            Some(ExtentKind::Plain) => {
                let later = |bytes: &Arc<Vec<u8>>| {
                    let known = bytes.get(from..).unwrap_or_default();
                    let known = &known[..known.len().min(whole.len())];
                    [known, &whole[known.len()..]].concat()
                };
                let later: Vec<Vec<u8>> = self.later.iter().map(later).collect();
                let mut parts = copies(extent.chunk, at, whole.to_vec());
                parts.iter_mut().for_each(|part| part.later.clone_from(&later));
                parts
            }
            Some(ExtentKind::Erasure(stripe)) => {
                let members = groups.get(&extent.chunk.pg.0).map(|state| state.members.as_slice()).unwrap_or_default();
                let column = |column: u16| {
                    let (offset, want) = column_bytes(stripe, column, at, end, whole)?;
                    let disk = members.get(usize::from(column))?.disk;
                    Some(Part {
                        disk,
                        pg: extent.chunk.pg.0,
                        index: extent.chunk.index,
                        offset,
                        want,
                        later: Vec::new(),
                    })
                };
                (0..stripe.columns()).filter_map(column).collect()
            }
            Some(ExtentKind::Set(stripe)) => {
                let named = |set: &&StripeSet| set.first == extent.chunk;
                let set = self.sets.iter().find(named).expect("every set of a page comes with it");
                let column = |column: u16| {
                    let (offset, want) = column_bytes(stripe, column, at, end, whole)?;
                    Some(copies(set.columns[usize::from(column)], offset, want))
                };
                (0..stripe.columns()).filter_map(column).flatten().collect()
            }
            None => panic!("an extent of a later version: {extent:?}"),
        }
    }
}

/// The first byte that is neither the one that was there nor one that was written since.
pub fn wrong_byte<T: AsRef<[u8]>>(have: &[u8], want: &[u8], later: &[T]) -> Option<usize> {
    if have.len() != want.len() {
        return Some(have.len().min(want.len()));
    }
    let is_wrong = |at: usize| have[at] != want[at] && !later.iter().any(|l| l.as_ref().get(at) == Some(&have[at]));
    (0..have.len()).find(|at| is_wrong(*at))
}

/// The bytes of a column of a logical range, and where they begin in it.
fn column_bytes(stripe: Stripe, column: u16, from: u64, to: u64, whole: &[u8]) -> Option<(u64, Vec<u8>)> {
    let part = stripe.part(column, from, to)?;
    let mut bytes = Vec::with_capacity(part.length as usize);
    let mut at = part.offset;
    while at < part.offset + part.length {
        let run = (stripe.unit() - at % stripe.unit()).min(part.offset + part.length - at);
        let begin = (stripe.logical(column, at) - from) as usize;
        bytes.extend_from_slice(&whole[begin..begin + run as usize]);
        at += run;
    }
    Some((part.offset, bytes))
}

impl Cluster {
    /// Asks one member, whatever state it is in, for bytes of a chunk.
    pub async fn member(&self, place: usize, disk: u32, chunk: (u32, u32), offset: u64, length: u64) -> Said {
        let mut bytes = Vec::with_capacity(length as usize);
        while (bytes.len() as u64) < length {
            let at = offset + bytes.len() as u64;
            let next = (PART - at % BLOCK).min(length - bytes.len() as u64);
            match self.member_part(place, disk, chunk, at, next).await {
                Said::Bytes(part) => bytes.extend(part),
                other => return other,
            }
        }
        Said::Bytes(bytes)
    }

    async fn member_part(&self, place: usize, disk: u32, (pg, index): (u32, u32), offset: u64, length: u64) -> Said {
        let chunk = Some(ChunkHeader { disk, pg, index, epoch: 0, session: 0 });
        // As clients read who do not ask for the last resort.
        let request = ReadRequest { chunk, offset, length: length as u32, sure: true, ..ReadRequest::default() };
        let answer = match self.ask(place, Opcode::Read, &request).await {
            Ok(answer) => answer,
            Err(why) => return Said::No(why),
        };
        let Ok(read) = answer.decode::<ReadResponse>() else { return Said::No("a malformed answer".into()) };
        let payload = answer.payload.as_deref().unwrap_or_default();
        let crcs = decode_crcs(&read.crcs).unwrap_or_default();
        let first = read.first_block_offset;
        let enough = first <= offset && first + payload.len() as u64 >= offset + length;
        if crcs.len() * BLOCK_SIZE != payload.len() || !enough {
            return Said::No(format!("{} bytes from {first} with {} checksums", payload.len(), crcs.len()));
        }
        let bad = payload.chunks(BLOCK_SIZE).zip(&crcs).position(|(block, crc)| crc32c(block) != *crc);
        if let Some(bad) = bad {
            return Said::Bad(first / BLOCK + bad as u64);
        }
        let skip = (offset - first) as usize;
        Said::Bytes(payload[skip..skip + length as usize].to_vec())
    }

    /// Tells a member of a bad block, as a reader does.
    pub async fn report_bad(&self, place: usize, part: &Part, block: u64) {
        let chunk = Some(ChunkHeader { disk: part.disk, pg: part.pg, index: part.index, epoch: 0, session: 0 });
        // It is asked for again anyway.
        let _answer = self.ask(place, Opcode::ReportBadBlock, &ReportBadBlockRequest { chunk, block }).await;
    }

    /// Holds every member that answers against what a snapshot named. The parts that were answered and refused, or what
    /// is wrong.
    pub async fn check_snapshot(&self, map: &ClusterMap, snapshot: &Snapshot) -> Result<(usize, usize), String> {
        let places = self.places(map);
        let (mut good, mut refused) = (0, 0);
        for part in snapshot.parts(&groups(map)) {
            let Some(place) = places.get(&part.disk) else { continue };
            let length = part.want.len() as u64;
            match self.member(*place, part.disk, (part.pg, part.index), part.offset, length).await {
                Said::Bytes(bytes) => {
                    let Some(at) = wrong_byte(&bytes, &part.want, &part.later) else {
                        good += 1;
                        continue;
                    };
                    return Err(format!(
                        "place {place} answers other bytes than were published, with good checksums: pg{}.{} at {} + {at}",
                        part.pg, part.index, part.offset
                    ));
                }
                Said::Bad(_) | Said::No(_) => refused += 1,
            }
        }
        Ok((good, refused))
    }

    /// What a snapshot names has to be with every member that serves: parts that one of them lacks, without those of
    /// `excused` places. Members whose group changed meanwhile are passed over.
    pub async fn serving_lack(&self, snapshot: &Snapshot, excused: &BTreeSet<usize>) -> Vec<String> {
        let Some(before) = self.map_now().await else { return Vec::new() };
        let (places, groups_before) = (self.places(&before), groups(&before));
        let mut lacking = Vec::new();
        for part in snapshot.parts(&groups_before) {
            let Some(place) = places.get(&part.disk).filter(|place| !excused.contains(place)) else { continue };
            let length = part.want.len() as u64;
            if let Said::No(why) = self.member(*place, part.disk, (part.pg, part.index), part.offset, length).await
                && why.contains("Missing")
            {
                lacking.push((part.pg, part.disk, format!("place {place}, pg{}.{}: {why}", part.pg, part.index)));
            }
        }
        let Some(after) = self.map_now().await else { return Vec::new() };
        let groups_after = groups(&after);
        let serving = u32::from(MemberState::Serving.code());
        lacking.retain(|(pg, disk, _)| {
            let (Some(before), Some(after)) = (groups_before.get(pg), groups_after.get(pg)) else { return false };
            let serves = before.members.iter().any(|member| member.disk == *disk && member.state == serving);
            serves && before.epoch == after.epoch
        });
        lacking.into_iter().map(|(_, _, text)| text).collect()
    }

    /// Parts of live files that a place does not give or has bad; bad ones are reported to it.
    pub async fn lacking(&self, map: &ClusterMap, live: &[Snapshot], place: usize) -> Vec<String> {
        let (places, groups) = (self.places(map), groups(map));
        let mut lacking = Vec::new();
        for part in live.iter().flat_map(|snapshot| snapshot.parts(&groups)) {
            if places.get(&part.disk) != Some(&place) {
                continue;
            }
            let length = part.want.len() as u64;
            let name = format!("pg{}.{} at {}", part.pg, part.index, part.offset);
            match self.member(place, part.disk, (part.pg, part.index), part.offset, length).await {
                Said::Bytes(bytes) if bytes == part.want => {}
                Said::Bytes(_) => lacking.push(format!("{name}: other bytes with good checksums")),
                Said::Bad(block) => {
                    self.report_bad(place, &part, block).await;
                    lacking.push(format!("{name}: block {block} is bad"));
                }
                Said::No(why) => lacking.push(format!("{name}: {why}")),
            }
        }
        lacking
    }

    /// Whether no chunk of a place has a bad block any more; the member is told of those that they have.
    pub async fn is_intact(&self, map: &ClusterMap, place: usize) -> bool {
        let places = self.places(map);
        for (pg, state) in groups(map) {
            let Some(member) = state.members.iter().find(|m| places.get(&m.disk) == Some(&place)) else { continue };
            let (disk, from_start, count_max, used) = (member.disk, true, 1000, true);
            let request = ListChunksRequest { disk, pg, from_start, count_max, used, ..ListChunksRequest::default() };
            let Ok(answer) = self.ask(place, Opcode::ListChunks, &request).await else { return false };
            let Ok(page) = answer.decode::<ListChunksResponse>() else { return false };
            for chunk in &page.chunks {
                if !self.is_chunk_intact(place, disk, pg, chunk).await {
                    return false;
                }
            }
        }
        true
    }

    async fn is_chunk_intact(&self, place: usize, disk: u32, pg: u32, chunk: &ChunkSummary) -> bool {
        let index = chunk.index;
        let all = [0, chunk.length.div_ceil(BLOCK) as u32];
        let runs = if chunk.punched_blocks == 0 { &all[..] } else { &chunk.used };
        for run in runs.chunks_exact(2) {
            let (from, blocks) = (u64::from(run[0]) * BLOCK, u64::from(run[1]));
            let length = (blocks * BLOCK).min(chunk.length - from);
            match self.member(place, disk, (pg, index), from, length).await {
                Said::Bytes(_) => {}
                Said::Bad(block) => {
                    let (offset, want, later) = (from, Vec::new(), Vec::new());
                    self.report_bad(place, &Part { disk, pg, index, offset, want, later }, block).await;
                    return false;
                }
                Said::No(_) => return false,
            }
        }
        true
    }

    /// Holds the parity of every row of a file against its data: all shards must answer.
    pub async fn check_parity(&self, map: &ClusterMap, snapshot: &Snapshot) -> Result<usize, String> {
        let (places, groups) = (self.places(map), groups(map));
        let mut rows = 0;
        for extent in &snapshot.extents {
            let Some(ExtentKind::Erasure(stripe)) = extent.kind else { continue };
            let group =
                groups.get(&extent.chunk.pg.0).ok_or_else(|| format!("pg{} is not in the map", extent.chunk.pg.0))?;
            let scheme = Scheme::from_code(group.scheme as u8).expect("a known scheme");
            let codec = Codec::for_scheme(scheme).map_err(|error| error.to_string())?;
            let (from, to) = stripe.rows_around(extent.chunk_offset, extent.chunk_offset + extent.length);
            let mut shards = Vec::new();
            for member in &group.members {
                let place = places[&member.disk];
                let name =
                    || format!("shard on place {place} of pg{}.{} {from}..{to}", extent.chunk.pg.0, extent.chunk.index);
                let chunk = (extent.chunk.pg.0, extent.chunk.index);
                match self.member(place, member.disk, chunk, from, to - from).await {
                    Said::Bytes(bytes) => shards.push(bytes),
                    Said::Bad(block) => {
                        let want = Vec::new();
                        let later = Vec::new();
                        let part = Part { disk: member.disk, pg: chunk.0, index: chunk.1, offset: from, want, later };
                        self.report_bad(place, &part, block).await;
                        return Err(format!("{}: block {block} is bad", name()));
                    }
                    Said::No(why) => return Err(format!("{}: {why}", name())),
                }
            }
            codec
                .verify(&shards[..codec.k()], &shards[codec.k()..])
                .map_err(|error| format!("pg{}.{} {from}..{to}: {error}", extent.chunk.pg.0, extent.chunk.index))?;
            // Of whole shards, which have one row, blocks.
            let unit = if stripe.is_whole_shards() { BLOCK } else { stripe.unit() };
            rows += ((to - from) / unit) as usize;
        }
        Ok(rows)
    }
}

/// Whether an error says that the file is another by now, which is no fault.
pub fn is_changed(error: &cairn_client::ClientError) -> bool {
    matches!(error, cairn_client::ClientError::Changed { .. }) || error.code() == Some(ErrorCode::NotFound)
}
