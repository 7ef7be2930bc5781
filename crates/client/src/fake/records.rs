//! Chunks of open appends in the cluster in memory: what their primaries do with records, and what goes wrong there
//! when a test says so.
use super::data::Answer;
use super::{State, decode};
use cairn_types::{ErrorCode, SessionId};
use cairn_wire::data::{ChunkHeader, RecordAppendRequest, RecordAppendResponse, RecordsNext};
use cairn_wire::error::WireError;
use cairn_wire::meta::PublishAppendRequest;
use prost::Message as _;
use std::collections::{BTreeMap, VecDeque};

/// What happens to a request with records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordFault {
    /// All members have them, and the answer is lost.
    LostAnswer,
    /// The primary alone has them.
    OnlyPrimary,
    /// All members have half of the bytes.
    Torn,
    /// Nobody has them.
    Refused,
    /// They come behind the next request that the primary takes for the chunk, if it is not sealed then.
    Late,
}

#[derive(Default)]
pub(crate) struct Records {
    /// Of the next requests.
    pub(crate) faults: VecDeque<Option<RecordFault>>,
    /// That many were made.
    pub(crate) faulty: u64,
    /// Chunks take so much; 0: as much as they can.
    pub(crate) most: u64,
    /// Primaries say that writers should be spread over so many lanes; 0: they say nothing.
    pub(crate) lanes: u32,
    /// The next CloseAppend is that of somebody who found an earlier end.
    pub(crate) closed_below: Option<u64>,
    chunks: BTreeMap<(u32, u32), One>,
    parts: BTreeMap<(u64, u64), Vec<u8>>,
}

#[derive(Default)]
struct One {
    over: bool,
    rolling: bool,
    published: u64,
    next: Option<RecordsNext>,
    late: Vec<Vec<u8>>,
}

fn sealed(why: &str) -> Answer<RecordAppendResponse> {
    Err(WireError::new(ErrorCode::ChunkSealed, why))
}

impl State {
    pub(super) fn record_append(&mut self, r: &RecordAppendRequest, payload: &[u8]) -> Answer<RecordAppendResponse> {
        let header = r.chunk.expect("every request has one");
        assert!(self.check(&header)?.is_replicated() && SessionId(header.session).is_append());
        let key = (header.pg, header.index);
        if let Some(told) = &r.told {
            let one = self.records.chunks.entry(key).or_default();
            one.published = one.published.max(told.published);
            one.next = one.next.or(told.next);
            return Ok(RecordAppendResponse::default());
        }
        let Some(bytes) = self.whole(r, payload) else { return Ok(RecordAppendResponse::default()) };
        let most = self.records.most;
        let end = self.record_end(&header);
        let one = self.records.chunks.entry(key).or_default();
        let full = one.rolling || most > 0 && end + bytes.len() as u64 > most;
        if r.creation_epoch != header.epoch || one.over && one.next.is_none() && !one.rolling {
            return sealed("it is over");
        }
        if let Some(next) = one.next {
            let published = one.published;
            return Ok(RecordAppendResponse { published, next: Some(next), ..Default::default() });
        }
        if full && std::mem::replace(&mut one.rolling, true) {
            return Err(WireError::new(ErrorCode::Overloaded, "somebody opens the next one"));
        }
        if full {
            return Ok(RecordAppendResponse { roll: true, ..Default::default() });
        }
        let fault = if bytes.is_empty() { None } else { self.records.faults.pop_front().flatten() };
        self.records.faulty += u64::from(fault.is_some());
        self.take(&header, r, bytes, fault)
    }

    fn take(
        &mut self,
        header: &ChunkHeader,
        r: &RecordAppendRequest,
        bytes: Vec<u8>,
        fault: Option<RecordFault>,
    ) -> Answer<RecordAppendResponse> {
        let key = (header.pg, header.index);
        let lost = || WireError::new(ErrorCode::ChainFailed, "a member did not answer");
        let members: Vec<u32> = self.pgs[&header.pg].members.iter().map(|member| member.disk).collect();
        match fault {
            None => {}
            Some(RecordFault::Refused) => {
                self.records.chunks.entry(key).or_default().over = true;
                return sealed("an append before this one failed");
            }
            Some(RecordFault::Late) => {
                self.records.chunks.entry(key).or_default().late.push(bytes);
                return Err(lost());
            }
            Some(fault) => {
                let (upon, count) = match fault {
                    RecordFault::OnlyPrimary => (&members[..1], bytes.len()),
                    RecordFault::Torn => (&members[..], bytes.len() / 2),
                    _ => (&members[..], bytes.len()),
                };
                upon.iter().for_each(|disk| self.add_records(*disk, header, r.creation_epoch, &bytes[..count]));
                self.records.chunks.entry(key).or_default().over = true;
                return Err(lost());
            }
        }
        let (payload_len, mut bytes) = (bytes.len(), bytes);
        if r.level == 2 {
            let end = self.record_end(header) as usize + bytes.len();
            bytes.resize(bytes.len() + end.next_multiple_of(cairn_types::BLOCK_SIZE) - end, 0);
        }
        members.iter().for_each(|disk| self.add_records(*disk, header, r.creation_epoch, &bytes));
        let (end, published) = (self.record_end(header), self.records.chunks[&key].published);
        if r.level > 0 {
            self.harden(&ChunkHeader { disk: members[0], ..*header }, &members[1..]);
        }
        let durable = if r.level > 0 { end } else { 0 };
        for late in std::mem::take(&mut self.records.chunks.entry(key).or_default().late) {
            members.iter().for_each(|disk| self.add_records(*disk, header, r.creation_epoch, &late));
        }
        let lanes = self.records.lanes;
        // Who asks after a pause is the one who publishes.
        let publish = r.level == 1 && payload_len == 0 && end > published;
        Ok(RecordAppendResponse { end, durable, published, lanes, publish, ..Default::default() })
    }

    /// Parts are put together.
    fn whole(&mut self, r: &RecordAppendRequest, payload: &[u8]) -> Option<Vec<u8>> {
        let Some(part) = &r.part else { return Some(payload.to_vec()) };
        let key = (part.writer, part.sequence);
        let bytes = self.records.parts.entry(key).or_default();
        bytes.truncate(part.at as usize);
        assert_eq!(bytes.len(), part.at as usize, "parts follow each other");
        bytes.extend_from_slice(payload);
        if bytes.len() < part.total as usize { None } else { self.records.parts.remove(&key) }
    }

    /// Another one found an earlier end.
    pub(super) fn close_below(&mut self, request: &[u8]) -> Result<Option<Vec<u8>>, WireError> {
        let Some(below) = self.records.closed_below.take() else { return Ok(None) };
        let mut request: PublishAppendRequest = decode(request)?;
        assert!(below < request.to, "{below} is less than {}", request.to);
        request.to = below;
        Ok(Some(request.encode_to_vec()))
    }

    pub(super) fn records_sealed(&mut self, header: &ChunkHeader) {
        self.records.chunks.entry((header.pg, header.index)).or_default().over = true;
    }
}
