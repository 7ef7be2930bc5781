//! Replicas against each other, past all faults: members of partitions and managers have the same state, members of
//! placement groups the same chunks.
//!
//! Not here: bytes of files against the model (`members`), which see only what files name.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cairn_env::disk::Disk;
use cairn_types::{BLOCK_SIZE, PartitionId, Scheme};
use cairn_wire::Opcode;
use cairn_wire::data::{
    ChunkHeader, ChunkSummary, ChunkTableRequest, ChunkTableResponse, ListChunksRequest, ListChunksResponse, PgState,
};
use cairn_wire::manager::ClusterMap;

use crate::cluster::Cluster;
use crate::members::groups;

/// Time in which those who lag have what the others have, and chunks that nobody writes any more are sealed.
const PATIENCE: Duration = Duration::from_secs(120);

/// What is compared of a chunk: its index, and of copies all that says what is in it.
type Chunks = BTreeMap<u32, Option<ChunkSummary>>;

impl Cluster {
    /// All members of each partition have the same state, and so have all managers. How many were compared.
    pub fn compare_heads(&self) -> Result<u64, String> {
        let (mut compared, mut last) = (0, String::new());
        let same = self.eventually("members of partitions and managers have the same state", PATIENCE, || {
            (compared, last) = match self.look_at_heads() {
                Ok(compared) => (compared, String::new()),
                Err(why) => (0, why),
            };
            last.is_empty()
        });
        same.map(|()| compared).map_err(|why| format!("{why}: {last}"))
    }

    fn look_at_heads(&self) -> Result<u64, String> {
        let map = self.map().ok_or("the manager does not answer")?;
        let mut compared = 0;
        for partition in map.partitions.iter().filter(|partition| !partition.removed) {
            let mut digests = Vec::new();
            for node in &partition.nodes {
                let Some(place) = self.place_of(*node) else {
                    return Err(format!("member n{node} of partition {} is nobody", partition.id));
                };
                let (digest, _) = self.heads[place].lock().digests(PartitionId(partition.id));
                digests.push((place, digest.ok_or(format!("place {place} does not have partition {}", partition.id))?));
            }
            compared += all_same(&digests)?;
        }
        let manager = |place: usize| (place, self.heads[place].lock().digests(PartitionId(0)).1);
        compared += all_same(&self.roster.places().into_iter().map(manager).collect::<Vec<_>>())?;
        Ok(compared)
    }

    /// All members of each placement group list the same chunks, all sealed; copies with the same blocks, but for those
    /// that were freed, equally often overwritten. No disk has chunks of a group in which it is no member. How many
    /// were compared.
    pub fn compare_chunks(&self) -> Result<u64, String> {
        let (mut compared, mut last) = (0, String::new());
        let same = self.eventually("members of placement groups have the same chunks", PATIENCE, || {
            (compared, last) = match self.runtime.block_on(self.look_at_chunks()) {
                Ok(compared) => (compared, String::new()),
                Err(why) => (0, why),
            };
            last.is_empty()
        });
        same.map(|()| compared).map_err(|why| format!("{why}: {last}"))
    }

    async fn look_at_chunks(&self) -> Result<u64, String> {
        let map = self.map_now().await.ok_or("the manager does not answer")?;
        let mut compared = 0;
        for state in groups(&map).values().filter(|state| !state.retired) {
            let copies = Scheme::from_code(state.scheme as u8).is_some_and(|scheme| scheme.is_replicated());
            let mut first: Option<(u32, Chunks)> = None;
            for member in &state.members {
                let chunks = self.chunks_of(&map, state, member.disk, copies).await?;
                let Some((other, expected)) = &first else {
                    first = Some((member.disk, chunks));
                    continue;
                };
                let why = |why| format!("disks {other} and {} of pg{}: {why}", member.disk, state.pg);
                for index in expected.keys().chain(chunks.keys()) {
                    let pair = (expected.get(index), chunks.get(index));
                    if pair.0 != pair.1 {
                        let disks = (*other, member.disk);
                        self.compare_blocks(&map, (state.pg, *index), disks, pair).await.map_err(why)?;
                    }
                }
                compared += chunks.len() as u64;
            }
        }
        self.no_strays(&map).map(|()| compared)
    }

    async fn chunks_of(&self, map: &ClusterMap, state: &PgState, disk: u32, copies: bool) -> Result<Chunks, String> {
        let place = *self.places(map).get(&disk).ok_or(format!("disk {disk} is nowhere"))?;
        let (mut chunks, mut after) = (Chunks::new(), None);
        loop {
            let request = ListChunksRequest {
                disk,
                pg: state.pg,
                after_index: after.unwrap_or_default(),
                from_start: after.is_none(),
                count_max: 1000,
                ..ListChunksRequest::default()
            };
            let answer = self.ask(place, Opcode::ListChunks, &request).await?;
            let page = answer.decode::<ListChunksResponse>().map_err(|error| error.to_string())?;
            if let Some(open) = page.chunks.iter().find(|chunk| !chunk.sealed) {
                return Err(format!("pg{}.{} on disk {disk} is not sealed", state.pg, open.index));
            }
            // What a file takes of its device is its own affair.
            let told = |chunk: &ChunkSummary| ChunkSummary { allocated_bytes: 0, ..chunk.clone() };
            chunks.extend(page.chunks.iter().map(|chunk| (chunk.index, copies.then(|| told(chunk)))));
            match page.chunks.last().filter(|_| !page.end) {
                Some(last) => after = Some(last.index),
                None => return Ok(chunks),
            }
        }
    }

    /// What was freed of a chunk need not be the same: only blocks that are there, and how often they were overwritten.
    async fn compare_blocks(
        &self,
        map: &ClusterMap,
        chunk: (u32, u32),
        disks: (u32, u32),
        pair: (Option<&Option<ChunkSummary>>, Option<&Option<ChunkSummary>>),
    ) -> Result<(), String> {
        let name = format!("chunk {}", chunk.1);
        let (Some(Some(one)), Some(Some(other))) = pair else { return Err(format!("{name}: {pair:?}")) };
        let origin =
            |chunk: &ChunkSummary| (chunk.creation_epoch, chunk.session, chunk.overwrite_epoch, chunk.overwrite_count);
        let (a, b) = (self.blocks_of(map, disks.0, chunk).await?, self.blocks_of(map, disks.1, chunk).await?);
        let differs = |block: &usize| a.get(*block).copied().flatten() != b.get(*block).copied().flatten();
        match (0..a.len().max(b.len())).find(differs) {
            Some(block) => {
                let of = |blocks: &[Option<u32>]| blocks.get(block).copied().flatten();
                Err(format!("{name}: block {block} has {:?} and {:?} in {one:?} and {other:?}", of(&a), of(&b)))
            }
            None if origin(one) != origin(other) => Err(format!("{name}: {one:?} and {other:?}")),
            None => Ok(()),
        }
    }

    /// The checksum of each block that a member has of a chunk and has not freed.
    async fn blocks_of(
        &self,
        map: &ClusterMap,
        disk: u32,
        (pg, index): (u32, u32),
    ) -> Result<Vec<Option<u32>>, String> {
        let place = *self.places(map).get(&disk).ok_or(format!("disk {disk} is nowhere"))?;
        let chunk = Some(ChunkHeader { disk, pg, index, epoch: 0, session: 0 });
        let answer = self.ask(place, Opcode::ChunkTable, &ChunkTableRequest { chunk }).await?;
        let table = answer.payload.as_deref().unwrap_or_default();
        let told = answer.decode::<ChunkTableResponse>().map_err(|error| error.to_string())?;
        let blocks = told.summary.map_or(0, |summary| summary.length).div_ceil(BLOCK_SIZE as u64) as usize;
        if table.len() != 4 * blocks + blocks.div_ceil(8) {
            return Err(format!("the table of pg{pg}.{index} has {} bytes for {blocks} blocks", table.len()));
        }
        let (crcs, freed) = table.split_at(4 * blocks);
        let crc = |block: usize| u32::from_le_bytes(*crcs[4 * block..].first_chunk().expect("it is long enough"));
        let is_freed = |block: usize| freed[block / 8] >> (block % 8) & 1 == 1;
        Ok((0..blocks).map(|block| (!is_freed(block)).then(|| crc(block))).collect())
    }

    /// Looks at the files of each disk.
    fn no_strays(&self, map: &ClusterMap) -> Result<(), String> {
        let groups = groups(map);
        for node in &self.nodes {
            let node = node.lock();
            // One that has forgotten that files are gone, of a group that it has left, has nobody to remind it; nor has
            // an older copy.
            if node.disk.counts().syncs_forgotten > 0 || node.has_gone_back {
                continue;
            }
            let ids: BTreeSet<u32> =
                map.disks.iter().filter(|disk| disk.path == node.disk.name()).map(|disk| disk.id).collect();
            for entry in node.disk.list("pg").unwrap_or_default() {
                let Ok(pg) = entry.name.parse::<u32>() else { continue };
                let is_member = |state: &PgState| state.members.iter().any(|member| ids.contains(&member.disk));
                if groups.get(&pg).is_some_and(|state| !state.retired && is_member(state)) {
                    continue;
                }
                let files = node.disk.list(&format!("pg/{pg}")).unwrap_or_default();
                if let Some(file) = files.iter().find(|file| file.name.ends_with(".chunk")) {
                    return Err(format!("place {} has {} of pg{pg} and is no member", node.place, file.name));
                }
            }
        }
        Ok(())
    }
}

fn all_same<T: PartialEq + std::fmt::Debug>(members: &[(usize, T)]) -> Result<u64, String> {
    match members.iter().all(|(_, digest)| *digest == members[0].1) {
        true => Ok(members.len() as u64 - 1),
        false => Err(format!("by place: {members:?}")),
    }
}
