//! What clients do, and what they make of the answers.

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_chunk_core::fence;
use cairn_format::crc_table::blocks_of;
use cairn_format::pg_state::PgStateRecord;
use cairn_replica_core::epoch::Fencing;
use cairn_replica_core::message::{Along, Answer, Append, Ordered, Overwrite, Read, Refused, Request, Run, Wrote};
use cairn_types::{BLOCK_SIZE, DiskId, ErrorCode};

use super::{MS, World};
use crate::client::{Overwriting, Waits, Writing, chain, leader, names_all};
use crate::event::{Caller, Event};
use crate::words::{Block, Bytes, WORD, WORDS, cut, data, shard_of_row};

/// Blocks of a chunk at most.
const BLOCKS_MAX: u64 = 10;

impl World {
    fn value(&mut self) -> Block {
        self.next_value += 1;
        let value = self.next_value;
        [value, value ^ 0x0101_0101, value.rotate_left(9), value.wrapping_mul(3) | 1]
    }

    fn client_asks(&mut self, client: usize, to: DiskId, what: Waits, request: Request<Bytes>) {
        let call = self.clients[client].waits_for(what);
        let from = Caller::Client { client, call };
        let deadline = if matches!(request, Request::Append(_) | Request::Read(_)) { 900 } else { 1500 };
        self.plan(deadline * MS, Event::TimedOut(from));
        let place = self.client_place(client);
        let node = (to.get() - 1) as usize;
        self.say(|| format!("client {client} asks {to} {}", super::brief(&request)));
        self.send(place, node, Event::Asked { node, from, request });
    }

    /// The client looks for a newer map.
    fn refresh(&mut self, client: usize) {
        let (place, manager) = (self.client_place(client), self.manager_place());
        if !self.network.cut[place][manager] && !self.network.cut[manager][place] && self.chance.per_mille(600) {
            self.clients[client].map = self.map(0);
        }
    }

    /// The client tells the manager of a member.
    fn reports(&mut self, client: usize, disk: Option<DiskId>) {
        if let Some(disk) = disk {
            let (place, manager) = (self.client_place(client), self.manager_place());
            self.send(place, manager, Event::Suspected(disk));
        }
    }

    pub(super) fn client_acts(&mut self, client: usize) {
        let pause = self.chance.range(2 * MS..30 * MS);
        self.plan(pause, Event::Client(client));
        if let Some(overwriting) = self.clients[client].overwriting.clone().filter(|of| !of.asked) {
            return self.overwrites(client, overwriting);
        }
        if self.quiet {
            return;
        }
        match self.chance.range(0..100) {
            0..=54 => self.writes(client),
            55..=74 if !self.model.shards => self.begins_to_overwrite(client),
            _ => self.reads(client),
        }
    }

    fn writes(&mut self, client: usize) {
        let of = &mut self.clients[client];
        let Some(writing) = of.writing.as_ref() else {
            let map = of.map.clone();
            if of.allocating {
                return;
            }
            let Some(leader) = leader(&map) else { return self.refresh(client) };
            of.allocating = true;
            let request = Request::Allocate { epoch: map.epoch, count: 1 };
            return self.client_asks(client, leader, Waits::Index(map), request);
        };
        let full = writing.sent >= BLOCKS_MAX * BLOCK_SIZE as u64 - 3 * BLOCK_SIZE as u64;
        if writing.syncing.is_some() {
            return;
        }
        if writing.frames > 0 && !full {
            if writing.open < 3 * writing.map.members.len() {
                self.sends_frame(client);
            }
        } else if writing.open == 0 {
            self.syncs(client);
        }
    }

    fn sends_frame(&mut self, client: usize) {
        let value = [self.value(), self.value(), self.value()];
        let shards = self.model.shards;
        let (words, skips) = (self.chance.range(1..10), self.chance.per_mille(300));
        let session = self.clients[client].session;
        let Some(writing) = self.clients[client].writing.as_mut() else { return };
        writing.frames -= 1;
        let (index, epoch, map) = (writing.index, writing.epoch, writing.map.clone());
        let block = BLOCK_SIZE as u64;
        let append = |offset, bytes, data, chain| {
            Request::Append(Append {
                index,
                epoch,
                session,
                made: epoch,
                offset,
                bytes,
                data,
                chain,
                sync: false,
                repair: false,
            })
        };
        if shards {
            let rows: Vec<u32> = value.iter().take(1 + words as usize % 2).map(|value| value[0]).collect();
            let (offset, bytes) = (writing.sent, rows.len() as u64 * block);
            writing.blocks.extend(rows.iter().map(|row| shard_of_row(*row, 0)));
            writing.sent += bytes;
            let receivers: Vec<DiskId> = fence::receivers(&map).collect();
            writing.open += receivers.len();
            for disk in receivers {
                let place = (disk.get() - 1) as u8;
                let blocks: Vec<Block> = rows.iter().map(|row| shard_of_row(*row, place)).collect();
                self.client_asks(client, disk, Waits::Frame, append(offset, bytes, data(blocks), Vec::new()));
            }
            return;
        }
        let partial = writing.sent % block;
        let offset = if partial > 0 && skips { writing.sent + block - partial } else { writing.sent - partial };
        let kept = if offset < writing.sent { partial / WORD } else { 0 };
        let first = (offset / block) as usize;
        writing.blocks.resize(first + (kept + words).div_ceil(WORDS as u64) as usize, [0; WORDS]);
        for at in kept..kept + words {
            let (at_block, at_word) = (at as usize / WORDS, at as usize % WORDS);
            writing.blocks[first + at_block][at_word] = value[at_block % 3][at_word] + at as u32;
        }
        let bytes = (kept + words) * WORD;
        writing.sent = offset + bytes;
        writing.open += 1;
        let blocks = writing.blocks[first..].to_vec();
        let request = append(offset, bytes, data(blocks), chain(&map));
        if let Some(leader) = leader(&map) {
            self.client_asks(client, leader, Waits::Frame, request);
        }
    }

    fn syncs(&mut self, client: usize) {
        let session = self.clients[client].session;
        let shards = self.model.shards;
        let Some(writing) = self.clients[client].writing.as_mut() else { return };
        let (index, epoch, map) = (writing.index, writing.epoch, writing.map.clone());
        let asked: Vec<(DiskId, Vec<DiskId>)> = if shards {
            fence::receivers(&map).map(|disk| (disk, Vec::new())).collect()
        } else {
            leader(&map).map(|leader| (leader, chain(&map))).into_iter().collect()
        };
        writing.syncing = Some((u64::MAX, asked.len(), writing.sent));
        for (disk, chain) in asked {
            let request = Request::Sync(Along { index, epoch, session, chain });
            self.client_asks(client, disk, Waits::Sync, request);
        }
    }

    fn begins_to_overwrite(&mut self, client: usize) {
        if self.clients[client].overwriting.is_some() {
            return;
        }
        let may = |chunk: &crate::model::Chunk| chunk.owner == client && !chunk.gone && !chunk.open && !chunk.busy;
        let chunks: Vec<u32> =
            self.model.chunks.iter().filter(|(_, chunk)| may(chunk)).map(|(index, _)| *index).collect();
        let Some(index) = self.chance.one(&chunks) else { return };
        let Some(chunk) = self.model.chunks.get(&index) else { return };
        let blocks: Vec<u32> = (0..chunk.blocks.len() as u32)
            .filter(|block| {
                let named = &chunk.blocks[*block as usize];
                !named.freed && !named.left && !named.orphan
            })
            .collect();
        let Some(first) = self.chance.one(&blocks) else { return };
        let mut all = vec![first];
        if self.chance.per_mille(400) && blocks.contains(&(first + 1)) {
            all.push(first + 1);
        }
        let mut runs = Vec::new();
        for block in all {
            let bytes = self.model.bytes_of(index, block);
            let value = cut(&self.value(), bytes);
            runs.push((block, vec![value]));
        }
        self.model.overwrites(index, &runs);
        let of = &mut self.clients[client];
        of.next_request += 1;
        let map = of.map.clone();
        let overwriting = Overwriting { index, request: of.next_request, runs, asked: false, tries: 0, map };
        of.overwriting = Some(overwriting.clone());
        self.overwrites(client, overwriting);
    }

    fn overwrites(&mut self, client: usize, overwriting: Overwriting) {
        let map = self.clients[client].map.clone();
        let Some(leader) = leader(&map) else { return self.refresh(client) };
        let session = self.clients[client].session;
        if let Some(of) = self.clients[client].overwriting.as_mut() {
            (of.asked, of.tries, of.map) = (true, of.tries + 1, map.clone());
        }
        let runs = overwriting.runs.iter().map(|(block, blocks)| Run { block: *block, data: data(blocks.clone()) });
        let request = Request::Overwrite(Overwrite {
            index: overwriting.index,
            epoch: map.epoch,
            session,
            request: overwriting.request,
            floor: overwriting.request,
            order: Ordered::Next,
            runs: runs.collect(),
            chain: chain(&map),
        });
        self.client_asks(client, leader, Waits::Overwrite, request);
    }

    fn reads(&mut self, client: usize) {
        let chunks: Vec<u32> =
            self.model.chunks.iter().filter(|(_, chunk)| !chunk.gone).map(|(index, _)| *index).collect();
        let Some(index) = self.chance.one(&chunks) else { return };
        let Some(chunk) = self.model.chunks.get(&index) else { return };
        let count = chunk.blocks.len() as u64;
        if count == 0 {
            return;
        }
        let block = self.chance.range(0..count) as u32;
        let more = u32::from(self.chance.per_mille(300));
        let end = (u64::from(block + 1 + more) * BLOCK_SIZE as u64).min(self.model.chunks[&index].length);
        let offset = u64::from(block) * BLOCK_SIZE as u64;
        let serving: Vec<DiskId> = fence::serving(&self.clients[client].map).collect();
        // Now and then by a map of long ago: it is for the member to know what it is.
        let node = self.chance.index(self.nodes.len());
        let any = if self.chance.per_mille(150) { Some(self.nodes[node].id) } else { None };
        let Some(disk) = any.or_else(|| self.chance.one(&serving)) else { return self.refresh(client) };
        if end <= offset {
            return;
        }
        let read = Read { index, fencing: Fencing::Any, offset, bytes: end - offset, sure: true, last_resort: None };
        let waits = Waits::Read { index, block, bytes: end - offset, since: self.now, disk };
        self.client_asks(client, disk, waits, Request::Read(read));
    }

    /// A client hears what came of a call.
    pub(super) fn client_hears(&mut self, client: usize, call: u64, outcome: Result<Answer<Bytes>, Refused>) {
        let Some(waits) = self.clients[client].waits.remove(&call) else { return };
        match (waits, outcome) {
            (Waits::Index(map), outcome) => self.has_index(client, map, outcome),
            (Waits::Frame, Ok(Answer::Wrote(wrote))) => self.frame_taken(client, &wrote),
            (Waits::Sync, Ok(Answer::Wrote(wrote))) => self.synced(client, &wrote),
            (Waits::Frame | Waits::Sync, Err(refused)) => self.gives_up(client, Some(refused)),
            (Waits::Overwrite, outcome) => self.overwritten(client, outcome),
            (Waits::Read { index, block, bytes, since, disk }, Ok(Answer::Data(found, _))) => {
                self.counts.add("client: read");
                self.check_read(disk, (index, block, bytes, since), &found.bytes.unwrap_or_default());
            }
            (Waits::Read { index, block, disk, .. }, Err(refused)) => {
                if refused.code == ErrorCode::ChecksumMismatch {
                    let node = (disk.get() - 1) as usize;
                    let place = self.client_place(client);
                    let request = Request::BadBlock { index, block };
                    self.send(place, node, Event::Asked { node, from: Caller::Manager, request });
                }
                self.refresh(client);
            }
            _ => {}
        }
    }

    fn check_read(&mut self, disk: DiskId, (index, block, bytes, since): (u32, u32, u64, u64), found: &[Block]) {
        for (at, value) in found.iter().enumerate() {
            let number = block + at as u32;
            let left = bytes.saturating_sub(at as u64 * BLOCK_SIZE as u64).min(BLOCK_SIZE as u64);
            let as_first = if self.model.shards {
                let place = (disk.get() - 1) as u8;
                if *value == shard_of_row(value[0], place) { shard_of_row(value[0], 0) } else { [0; WORDS] }
            } else {
                *value
            };
            if !self.model.allows(index, number, &as_first, left, since) {
                let wanted = self.model.chunks.get(&index).and_then(|chunk| chunk.blocks.get(number as usize)).cloned();
                self.fails(format!(
                    "a reader of chunk {index} finds in block {number} of {disk} {as_first:?} where was acknowledged {wanted:?}"
                ));
            }
        }
    }

    fn has_index(&mut self, client: usize, map: Arc<PgStateRecord>, outcome: Result<Answer<Bytes>, Refused>) {
        self.clients[client].allocating = false;
        let Ok(Answer::Indices(range)) = outcome else {
            let late = matches!(outcome, Err(Refused { code: ErrorCode::DeadlineExceeded, .. }));
            self.refresh(client);
            return self.reports(client, leader(&map).filter(|_| late));
        };
        let index = range.start;
        if self.budget.given.insert(index, ()).is_some() {
            self.fails(format!("index {index} is given twice"));
        }
        self.counts.add("client: index");
        let (frames, syncs) = (self.chance.range(1..4) as u32, self.chance.range(1..4) as u32);
        let epoch = map.epoch;
        let writing = Writing {
            index,
            epoch,
            map,
            blocks: Vec::new(),
            sent: 0,
            open: 0,
            stamps: BTreeMap::new(),
            frames,
            syncs,
            syncing: None,
            published: false,
        };
        if self.quiet || self.clients[client].writing.is_some() {
            return;
        }
        self.clients[client].writing = Some(writing);
    }

    /// Whether all that answered are in the life in which they answered first.
    fn same_lives(&mut self, client: usize, wrote: &Wrote) -> bool {
        let Some(writing) = self.clients[client].writing.as_mut() else { return false };
        wrote.members.iter().all(|stamp| {
            let first = *writing.stamps.entry(stamp.disk).or_insert(stamp.incarnation.get());
            first == stamp.incarnation.get()
        })
    }

    fn frame_taken(&mut self, client: usize, wrote: &Wrote) {
        let same = self.same_lives(client, wrote);
        let Some(writing) = self.clients[client].writing.as_mut() else { return };
        writing.open = writing.open.saturating_sub(1);
        if !same {
            self.gives_up(client, None);
        }
    }

    fn synced(&mut self, client: usize, wrote: &Wrote) {
        let same = self.same_lives(client, wrote);
        let shards = self.model.shards;
        let session = self.clients[client].session;
        let Some(writing) = self.clients[client].writing.as_mut() else { return };
        let Some((durable, left, length)) = writing.syncing.as_mut() else { return };
        *durable = (*durable).min(wrote.durable);
        *left -= 1;
        if *left > 0 {
            return;
        }
        let (durable, length) = (*durable, *length);
        let named = shards || names_all(&writing.map, &wrote.members);
        let all = fence::serving(&writing.map).all(|disk| writing.stamps.contains_key(&disk));
        if !same || !named || !all || durable < length {
            return self.gives_up(client, None);
        }
        writing.syncing = None;
        writing.syncs -= 1;
        writing.frames = 2;
        writing.published = true;
        let full = writing.sent >= (BLOCKS_MAX - 4) * BLOCK_SIZE as u64;
        let ends = writing.syncs == 0 || full;
        let (index, epoch, map) = (writing.index, writing.epoch, writing.map.clone());
        let blocks = writing.blocks[..blocks_of(length) as usize].to_vec();
        self.counts.add("client: published");
        self.say(|| format!("client {client} publishes chunk {index} up to {length}"));
        self.model.published(index, (epoch, client), length, &blocks, self.now);
        if ends {
            self.ends_writing(client);
            let asked: Vec<(DiskId, Vec<DiskId>)> = if shards {
                fence::receivers(&map).map(|disk| (disk, Vec::new())).collect()
            } else {
                leader(&map).map(|leader| (leader, chain(&map))).into_iter().collect()
            };
            for (disk, chain) in asked {
                self.client_asks(client, disk, Waits::Seal, Request::Seal(Along { index, epoch, session, chain }));
            }
        }
    }

    fn ends_writing(&mut self, client: usize) {
        let Some(writing) = self.clients[client].writing.take() else { return };
        if let Some(chunk) = self.model.chunks.get_mut(&writing.index) {
            chunk.open = false;
        }
        if !writing.published {
            self.garbage.push((writing.index, self.now));
        }
    }

    /// The chunk is given up: what was not acknowledged is sent again elsewhere.
    pub(crate) fn gives_up(&mut self, client: usize, why: Option<Refused>) {
        self.say(|| format!("client {client} gives a chunk up: {why:?}"));
        let map = self.clients[client].writing.as_ref().map(|writing| writing.map.clone());
        self.ends_writing(client);
        let late = why.is_some_and(|refused| refused.code == ErrorCode::DeadlineExceeded);
        let disk = why.and_then(|refused| refused.disk);
        let leads = map.as_deref().and_then(leader).filter(|_| late);
        self.counts.add("client: gave a chunk up");
        self.reports(client, disk.or(leads));
        self.refresh(client);
    }

    fn overwritten(&mut self, client: usize, outcome: Result<Answer<Bytes>, Refused>) {
        let Some(mut overwriting) = self.clients[client].overwriting.take() else { return };
        match outcome {
            Ok(Answer::Wrote(wrote)) if names_all(&overwriting.map, &wrote.members) => {
                self.counts.add("client: overwrote");
                self.say(|| format!("client {client} overwrote chunk {} {:?}", overwriting.index, overwriting.runs));
                return self.model.overwritten(overwriting.index, &overwriting.runs, self.now);
            }
            Err(Refused {
                code: ErrorCode::NotInPlace | ErrorCode::Missing | ErrorCode::ChunkDeleted | ErrorCode::BadRequest,
                ..
            }) => {
                self.counts.add("client: went to new space");
                return self.model.left(overwriting.index, &overwriting.runs);
            }
            Ok(_) => {}
            Err(refused) => {
                let late = refused.code == ErrorCode::DeadlineExceeded;
                let leads = leader(&overwriting.map).filter(|_| late);
                self.reports(client, refused.disk.or(leads));
            }
        }
        if overwriting.tries > 400 {
            return self.model.left(overwriting.index, &overwriting.runs);
        }
        overwriting.asked = false;
        self.clients[client].overwriting = Some(overwriting);
        self.refresh(client);
    }
}
