//! Members of the cluster in memory: chunks under the rules that the wire states for replicated and striped groups.
use super::{Fake, Raw, State, decode};
use crate::append::segment::block_crcs;
use cairn_types::{BLOCK_SIZE, CHUNK_SIZE_MAX, Epoch, ErrorCode, MemberState, Scheme};
use cairn_wire::Opcode;
use cairn_wire::data::*;
use cairn_wire::error::WireError;
use prost::Message as _;
use std::collections::{BTreeMap, BTreeSet};

/// Chunks of a disk by group and index.
#[derive(Default)]
pub(super) struct DiskChunks(BTreeMap<(u32, u32), Chunk>);

struct Chunk {
    creation_epoch: u64,
    session: u64,
    data: Vec<u8>,
    row_crcs: Vec<u8>,
    sealed: bool,
    /// So much of it survives a crash.
    durable: usize,
}

pub(super) type Answer<T> = std::result::Result<T, WireError>;

fn refuse<T>(code: ErrorCode, text: impl Into<String>) -> Answer<T> {
    Err(WireError::new(code, text))
}

impl Fake {
    /// What a member answers, message and payload; `None`: nothing, ever.
    pub(super) fn data(&self, disk: u32, opcode: Opcode, message: &[u8], payload: &[u8]) -> Option<Raw> {
        let mut state = self.state.lock();
        if state.stopped.contains(&disk) || state.reads_held && opcode == Opcode::Read {
            state.unanswered += 1;
            return None;
        }
        let still = state.ping(disk);
        if opcode != Opcode::Ping && state.hung.contains_key(&disk) {
            state.hung_met += 1;
            return still.stalled.then(|| refuse(ErrorCode::DiskFailed, "it stands still"));
        }
        Some(match opcode {
            Opcode::Ping => raw(Ok(still)),
            Opcode::Allocate => raw(decode(message).and_then(|r| state.allocate(&r))),
            Opcode::Append => raw(decode(message).and_then(|r: AppendRequest| match r.local {
                Some(local) => state.append_local(&r, local),
                None => state.append(&r, payload),
            })),
            Opcode::RecordAppend => raw(decode(message).and_then(|r| state.record_append(&r, payload))),
            Opcode::Sync => raw(decode(message).and_then(|r| state.sync(&r))),
            Opcode::Seal => raw(decode(message).and_then(|r| state.seal(&r))),
            Opcode::Read => decode(message).and_then(|r| state.read(&r)).map(|(a, bytes)| (a.encode_to_vec(), bytes)),
            Opcode::Overwrite => raw(decode(message).and_then(|r| state.overwrite(&r, payload))),
            Opcode::ReportBadBlock => {
                state.bad_blocks += 1;
                Ok((Vec::new(), Vec::new()))
            }
            other => Err(WireError::new(ErrorCode::UnknownOperation, format!("{other:?}"))),
        })
    }
}

fn raw<A: prost::Message>(answer: Answer<A>) -> Raw {
    answer.map(|answer| (answer.encode_to_vec(), Vec::new()))
}

impl State {
    /// All chunks of these disks are gone.
    #[cfg(test)]
    pub(crate) fn delete_chunks(&mut self, disks: std::ops::RangeInclusive<u32>) {
        self.disks.range_mut(disks).for_each(|(_, chunks)| chunks.0.clear());
    }

    /// Other bytes where a disk has those of a group, and the same again when it is called again.
    #[cfg(test)]
    pub(crate) fn spoil_copies(&mut self, disk: u32, group: u32) {
        let chunks = &mut self.disks.get_mut(&disk).expect("a known disk").0;
        let of_group = chunks.iter_mut().filter(|((pg, _), _)| *pg == group);
        of_group.for_each(|(_, chunk)| chunk.data.iter_mut().for_each(|byte| *byte ^= 0x11));
    }
    pub(super) fn check(&self, header: &ChunkHeader) -> Answer<Scheme> {
        let known = self.epoch_of(header.pg).ok_or_else(|| WireError::new(ErrorCode::UnknownPg, "unknown group"))?;
        if known != Epoch(header.epoch) {
            return Err(WireError::stale_epoch(known, format!("the group is at {known}")));
        }
        let scheme = Scheme::from_code(self.pgs[&header.pg].scheme as u8).expect("a known scheme");
        let member = self.pgs[&header.pg].members.iter().find(|m| m.disk == header.disk);
        let state = member.and_then(|m| MemberState::from_code(m.state as u8));
        match state.is_some_and(MemberState::receives_writes) {
            true => Ok(scheme),
            false => refuse(ErrorCode::NotServing, "not a member that takes writes"),
        }
    }
    fn stamps(&self, first: u32, chain: &[u32]) -> Vec<MemberStamp> {
        [first].iter().chain(chain).map(|disk| MemberStamp { disk: *disk, incarnation: 1 }).collect()
    }

    fn allocate(&mut self, r: &AllocateRequest) -> Answer<AllocateResponse> {
        let header = ChunkHeader { disk: r.disk, pg: r.pg, index: 0, epoch: r.epoch, session: r.session };
        self.check(&header)?;
        let members = self.pgs[&r.pg].members.clone();
        let serving = |m: &&PgMember| m.state == MemberState::Serving as u32;
        if members.iter().find(serving).map(|m| m.disk) != Some(r.disk) {
            return refuse(ErrorCode::NotPrimary, "not the primary");
        }
        if let Some(stopped) = members.iter().filter(serving).find(|m| self.is_silent(m.disk)) {
            return Err(WireError::chain_failed(stopped.disk, format!("d{} does not answer", stopped.disk)));
        }
        if self.full {
            return refuse(ErrorCode::NoSpace, "the disk is full");
        }
        self.next_index += 1;
        Ok(AllocateResponse { indices: vec![self.next_index], creation_epoch: r.epoch })
    }

    /// What the disk has in another group becomes part of a shard.
    fn append_local(&mut self, r: &AppendRequest, local: LocalBlocks) -> Answer<AppendResponse> {
        let disk = r.chunk.expect("every request has one").disk;
        let copy = self.disks.get(&disk).and_then(|chunks| chunks.0.get(&(local.pg, local.index)));
        let (from, to) = (local.offset as usize, local.offset as usize + local.length as usize);
        let Some(bytes) = copy.and_then(|chunk| chunk.data.get(from..to)) else {
            return refuse(ErrorCode::Missing, format!("d{disk} has no such copy"));
        };
        let mut bytes = bytes.to_vec();
        bytes.resize(bytes.len().next_multiple_of(BLOCK_SIZE), 0);
        if block_crcs(&bytes) != r.crcs {
            return refuse(ErrorCode::ChecksumMismatch, format!("d{disk} has other bytes"));
        }
        self.append(r, &bytes)
    }

    fn append(&mut self, r: &AppendRequest, payload: &[u8]) -> Answer<AppendResponse> {
        let header = r.chunk.expect("every request has one");
        let scheme = self.check(&header)?;
        assert_eq!(u32::from(scheme.code()), r.scheme, "the scheme of the group");
        assert!(r.offset.is_multiple_of(BLOCK_SIZE as u64), "appends begin with a block");
        assert_eq!(r.crcs, block_crcs(payload), "checksums belong to the bytes");
        assert!(r.offset + payload.len() as u64 <= CHUNK_SIZE_MAX, "a chunk has an end");
        assert!(payload.len() <= crate::append::SEGMENT_MAX, "more than one append takes");
        let shard = self.pgs[&header.pg].members.iter().position(|m| m.disk == header.disk).expect("a member");
        if let Scheme::Erasure { k, .. } = scheme {
            assert!(r.chain.is_empty(), "shards have no chain");
            assert_eq!(r.creation_epoch, header.epoch, "striped chunks end with their epoch");
            assert!(payload.len().is_multiple_of(BLOCK_SIZE), "whole rows");
            let rows = if shard < usize::from(k) { 0 } else { usize::from(k) };
            assert_eq!(r.row_crcs.len(), rows * r.crcs.len(), "row checksums go to parity shards");
        }
        if let Some(disk) = r.chain.first().filter(|_| self.flaky > 0) {
            self.flaky -= 1;
            self.flaked += 1;
            return Err(WireError::chain_failed(*disk, format!("d{disk} does not answer")));
        }
        self.synced_appends += u64::from(r.sync);
        for disk in &r.chain {
            if self.is_silent(*disk) {
                return Err(WireError::chain_failed(*disk, format!("d{disk} does not answer")));
            }
        }
        let mut length = 0;
        for disk in [header.disk].iter().chain(&r.chain) {
            length = self.append_on(*disk, &header, r, payload, scheme)?;
        }
        if r.sync {
            self.harden(&header, &r.chain);
        }
        let durable_length = if r.sync { length } else { 0 };
        Ok(AppendResponse { length, durable_length, members: self.stamps(header.disk, &r.chain) })
    }
    fn overwrite(&mut self, r: &OverwriteRequest, payload: &[u8]) -> Answer<OverwriteResponse> {
        let header = r.chunk.expect("every request has one");
        assert!(self.check(&header)?.is_replicated(), "shards are not overwritten");
        assert_eq!(r.crcs, block_crcs(payload), "checksums belong to the bytes");
        let blocks: u32 = r.vectors.iter().map(|vector| vector.blocks).sum();
        assert!(blocks <= 256 && payload.len() == blocks as usize * BLOCK_SIZE, "whole blocks, up to 1 MiB");
        assert!(r.vectors.windows(2).all(|pair| pair[0].block + pair[0].blocks <= pair[1].block), "ascending");
        assert!(r.request > 0 && r.floor > 0 && r.floor <= r.request, "numbered");
        if self.saturated {
            return refuse(ErrorCode::NotInPlace, "the journal is full of overwrites");
        }
        if let Some(disk) = r.chain.iter().find(|disk| self.is_silent(**disk)) {
            return Err(WireError::chain_failed(*disk, format!("d{disk} does not answer")));
        }
        if let Some(disk) = r.chain.first().filter(|_| self.flaky > 0) {
            self.flaky -= 1;
            self.flaked += 1;
            return Err(WireError::chain_failed(*disk, format!("d{disk} does not answer")));
        }
        for disk in [header.disk].iter().chain(&r.chain) {
            let chunk = self.disks.get_mut(disk).and_then(|chunks| chunks.0.get_mut(&(header.pg, header.index)));
            let Some(chunk) = chunk else { return refuse(ErrorCode::Missing, "not here") };
            let mut rest = payload;
            for vector in &r.vectors {
                let bytes;
                (bytes, rest) = rest.split_at(vector.blocks as usize * BLOCK_SIZE);
                let at = vector.block as usize * BLOCK_SIZE;
                let end = (at + bytes.len()).min(chunk.data.len());
                if at >= end || end > chunk.durable.next_multiple_of(BLOCK_SIZE) {
                    return refuse(ErrorCode::Missing, "beyond what is durable");
                }
                chunk.data[at..end].copy_from_slice(&bytes[..end - at]);
            }
        }
        self.overwrites += 1;
        Ok(OverwriteResponse { members: self.stamps(header.disk, &r.chain), number: None })
    }

    fn append_on(
        &mut self,
        disk: u32,
        header: &ChunkHeader,
        r: &AppendRequest,
        payload: &[u8],
        scheme: Scheme,
    ) -> Answer<u64> {
        assert!((1..=1 << 20).contains(&payload.len()), "an append has 1 byte to 1 MiB, not {}", payload.len());
        let chunks = self.disks.get_mut(&disk).expect("a known disk");
        let new = || Chunk {
            creation_epoch: r.creation_epoch,
            session: header.session,
            data: Vec::new(),
            row_crcs: Vec::new(),
            sealed: false,
            durable: 0,
        };
        let chunk = chunks.0.entry((header.pg, header.index)).or_insert_with(new);
        assert_eq!(chunk.session, header.session, "a chunk has one writer session");
        assert_eq!(chunk.creation_epoch, r.creation_epoch);
        if chunk.sealed {
            return refuse(ErrorCode::ChunkSealed, "sealed");
        }
        let (end, offset) = (chunk.data.len(), r.offset as usize);
        if scheme.is_replicated() {
            assert!(offset == end || offset == end.next_multiple_of(BLOCK_SIZE), "{offset} follows {end}");
            chunk.data.resize(offset, 0);
        } else if offset + payload.len() <= end {
            assert_eq!(&chunk.data[offset..offset + payload.len()], payload, "a repeat has the same bytes");
            return Ok(end as u64);
        } else {
            assert_eq!(offset, end, "a shard takes bytes only at its end");
        }
        chunk.data.extend_from_slice(payload);
        chunk.row_crcs.extend_from_slice(&r.row_crcs);
        Ok(chunk.data.len() as u64)
    }

    /// All of a chunk is durable on these members.
    pub(super) fn harden(&mut self, header: &ChunkHeader, chain: &[u32]) {
        for disk in [header.disk].iter().chain(chain) {
            if let Some(chunk) = self.disks.get_mut(disk).and_then(|d| d.0.get_mut(&(header.pg, header.index))) {
                chunk.durable = chunk.data.len();
            }
        }
    }
    /// These members are started again after a crash: what was not durable is gone. Their groups go on in another
    /// epoch, in which what was open is sealed as far as any member has it.
    pub(crate) fn crash(&mut self, crashed: &BTreeSet<u32>) -> u64 {
        let mut lost = 0;
        let disks = self.disks.iter_mut().filter(|(disk, _)| crashed.contains(disk));
        for chunk in disks.flat_map(|(_, disk)| disk.0.values_mut()) {
            lost += (chunk.data.len() - chunk.durable) as u64;
            chunk.data.truncate(chunk.durable);
        }
        self.disks.values_mut().for_each(|disk| disk.0.retain(|_, chunk| chunk.durable > 0 || !chunk.data.is_empty()));
        self.version += 1;
        for group in self.pgs.values_mut().filter(|g| g.members.iter().any(|m| crashed.contains(&m.disk))) {
            group.epoch += 1;
            let members: Vec<u32> = group.members.iter().map(|member| member.disk).collect();
            let of_group = |disk: &u32| self.disks[disk].0.keys().filter(|key| key.0 == group.pg).copied().collect();
            let keys: BTreeSet<(u32, u32)> = members.iter().flat_map(|disk| -> Vec<_> { of_group(disk) }).collect();
            for key in keys {
                let copies = members.iter().filter_map(|disk| self.disks[disk].0.get(&key));
                let Some(longest) = copies.max_by_key(|chunk| chunk.data.len()) else { continue };
                let sealed = Chunk {
                    data: longest.data.clone(),
                    row_crcs: longest.row_crcs.clone(),
                    sealed: true,
                    durable: longest.data.len(),
                    ..*longest
                };
                let striped = !Scheme::from_code(group.scheme as u8).is_some_and(Scheme::is_replicated);
                for disk in members.iter().filter(|_| !striped) {
                    let copy = Chunk { data: sealed.data.clone(), row_crcs: sealed.row_crcs.clone(), ..sealed };
                    self.disks.get_mut(disk).expect("a known disk").0.insert(key, copy);
                }
            }
        }
        lost
    }
    /// Bytes of a chunk that are durable on a member.
    #[cfg(feature = "test-support")]
    pub(super) fn durable_length(&self, pg: u32, index: u32) -> u64 {
        let members = self.pgs[&pg].members.iter();
        let copies = members.filter_map(|member| self.disks[&member.disk].0.get(&(pg, index)));
        copies.map(|chunk| chunk.durable as u64).max().unwrap_or(0)
    }
    /// As if indices had been given again while the disk was away.
    pub(super) fn forget_chunk(&mut self, pg: u32, index: u32) {
        self.disks.values_mut().for_each(|chunks| drop(chunks.0.remove(&(pg, index))));
    }
    pub(super) fn replace_chunks(&mut self, disk: u32) {
        for chunk in self.disks.get_mut(&disk).into_iter().flat_map(|chunks| chunks.0.values_mut()) {
            chunk.creation_epoch += 1;
            chunk.data.iter_mut().for_each(|byte| *byte ^= 0x55);
        }
    }
    /// Bytes of a chunk are no longer what they were, on all disks.
    pub(super) fn spoil(&mut self, pg: u32, index: u32, (offset, length): (u64, u64)) {
        for chunk in self.disks.values_mut().filter_map(|chunks| chunks.0.get_mut(&(pg, index))) {
            let end = chunk.data.len().min((offset + length) as usize);
            let start = end.min(offset as usize);
            chunk.data[start..end].fill(0xdd);
        }
    }
    fn chunk_mut(&mut self, header: &ChunkHeader) -> Answer<&mut Chunk> {
        let chunks = self.disks.get_mut(&header.disk).expect("a known disk");
        let missing = || WireError::new(ErrorCode::Missing, format!("d{} has no such chunk", header.disk));
        chunks.0.get_mut(&(header.pg, header.index)).ok_or_else(missing)
    }
    fn sync(&mut self, r: &SyncRequest) -> Answer<SyncResponse> {
        let header = r.chunk.expect("every request has one");
        self.check(&header)?;
        if let Some(disk) = r.chain.iter().find(|disk| self.is_silent(**disk)) {
            return Err(WireError::chain_failed(*disk, "it does not answer"));
        }
        self.syncs += 1;
        self.harden(&header, &r.chain);
        let durable_length = self.chunk_mut(&header)?.data.len() as u64;
        Ok(SyncResponse { durable_length, members: self.stamps(header.disk, &r.chain) })
    }
    /// End of a chunk of records at its primary.
    pub(super) fn record_end(&self, header: &ChunkHeader) -> u64 {
        let chunk = self.disks.get(&header.disk).and_then(|chunks| chunks.0.get(&(header.pg, header.index)));
        chunk.map_or(0, |chunk| chunk.data.len() as u64)
    }
    pub(super) fn add_records(&mut self, disk: u32, header: &ChunkHeader, creation_epoch: u64, bytes: &[u8]) {
        let (data, row_crcs) = (Vec::new(), Vec::new());
        let new = Chunk { creation_epoch, session: header.session, data, row_crcs, sealed: false, durable: 0 };
        let chunks = self.disks.get_mut(&disk).expect("a known disk");
        let chunk = chunks.0.entry((header.pg, header.index)).or_insert(new);
        if !chunk.sealed {
            chunk.data.extend_from_slice(bytes);
        }
    }
    fn seal(&mut self, r: &SealRequest) -> Answer<SealResponse> {
        let header = r.chunk.expect("every request has one");
        if cairn_types::SessionId(header.session).is_append() {
            self.check(&header)?;
            self.records_sealed(&header);
            if self.chunk_mut(&header).is_err() {
                return Ok(SealResponse::default());
            }
        }
        for disk in [header.disk].iter().chain(&r.chain) {
            self.chunk_mut(&ChunkHeader { disk: *disk, ..header })?.sealed = true;
        }
        self.harden(&header, &r.chain);
        Ok(SealResponse { length: self.chunk_mut(&header)?.data.len() as u64 })
    }

    fn read(&mut self, r: &ReadRequest) -> Answer<(ReadResponse, Vec<u8>)> {
        let header = r.chunk.expect("every request has one");
        let members = &self.pgs.get(&header.pg).ok_or_else(|| WireError::new(ErrorCode::UnknownPg, "?"))?.members;
        let striped = !Scheme::from_code(self.pgs[&header.pg].scheme as u8).is_some_and(Scheme::is_replicated);
        let last_resort = r.catching_up && r.creation_epoch != 0 && striped;
        let answers = |state: u32| last_resort || state == MemberState::Serving as u32;
        let behind = self.behind.get(&header.disk).copied();
        let known = behind.unwrap_or(self.pgs[&header.pg].epoch);
        if header.epoch > known {
            return refuse(ErrorCode::NotServing, "this member is behind");
        }
        if header.epoch != 0 && header.epoch < known {
            return Err(WireError::stale_epoch(Epoch(known), "the group went on"));
        }
        if r.sure && self.unsure.contains(&header.disk) {
            return refuse(ErrorCode::Unavailable, "it does not know whether it is still a member");
        }
        self.old_reads += u64::from(behind.is_some());
        if behind.is_none() && !members.iter().any(|m| m.disk == header.disk && answers(m.state)) {
            return refuse(ErrorCode::NotServing, "it does not serve");
        }
        let place = members.iter().position(|m| m.disk == header.disk);
        assert!(!striped || place.is_some_and(|place| r.shard as usize == place + 1), "a read has to name its shard");
        *self.reads.entry(header.disk).or_default() += 1;
        let corrupt = self.corrupting.contains(&header.disk);
        let blocks = r.offset / BLOCK_SIZE as u64..(r.offset + u64::from(r.length)).div_ceil(BLOCK_SIZE as u64);
        let among = |damaged: &BTreeSet<(u32, u64)>| -> Vec<u64> {
            blocks.clone().filter(|block| damaged.contains(&(header.disk, *block))).collect()
        };
        let (bad, unreadable) = (among(&self.bad_at), among(&self.unreadable_at));
        self.corrupted += (bad.len() + unreadable.len()) as u64;
        if !unreadable.is_empty() {
            return refuse(ErrorCode::Missing, "the device cannot read it");
        }
        let chunk = self.chunk_mut(&header)?;
        let chunk_epoch = chunk.creation_epoch;
        if r.creation_epoch != 0 && r.creation_epoch != chunk_epoch {
            return refuse(ErrorCode::ChunkDeleted, "another chunk has its index");
        }
        let first = r.offset as usize / BLOCK_SIZE * BLOCK_SIZE;
        let end = (r.offset as usize + r.length as usize).next_multiple_of(BLOCK_SIZE);
        let mut data = chunk.data.clone();
        data.resize(data.len().next_multiple_of(BLOCK_SIZE), 0);
        if (r.offset + u64::from(r.length)) as usize > chunk.data.len() || end > data.len() {
            return refuse(ErrorCode::Missing, format!("d{} has {} bytes", header.disk, chunk.data.len()));
        }
        let mut bytes = data[first..end].to_vec();
        let crcs = block_crcs(&bytes);
        let per_block = chunk.row_crcs.len() / (data.len() / BLOCK_SIZE).max(1);
        let rows = first / BLOCK_SIZE * per_block..end / BLOCK_SIZE * per_block;
        let row_crcs = if r.row_crcs { chunk.row_crcs[rows].to_vec() } else { Vec::new() };
        bad.iter().for_each(|block| bytes[*block as usize * BLOCK_SIZE - first + 9] ^= 4);
        if corrupt {
            let at = bytes.len() / 2;
            bytes[at] ^= 0x10;
            self.corrupted += 1;
        }
        let creation_epoch = chunk_epoch;
        if r.at_rest && self.rotten == Some(header.disk) {
            return refuse(ErrorCode::ChecksumMismatch, "the disk reads something else");
        }
        if r.sums {
            self.sums += 1;
            bytes.clear();
        }
        Ok((ReadResponse { crcs, first_block_offset: first as u64, row_crcs, creation_epoch }, bytes))
    }
}
