//! The state as a byte stream, for checkpoints.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | magic `CAIRNMGR` |
//! | 4 | format, u32 little-endian, 1 |
//! | 4 | zero |
//! | then, repeated | record length u32 little-endian, CRC32C of the record u32 little-endian, record (protobuf) |
//!
//! The first record is the head, the last one says how many there were before it; nothing follows. Invariants: what
//! is read back equals what was written; a damaged stream is an error that says where, never another state.
//! Not here: the file around it (the store).
use crate::config::Config;
use crate::gray::GrayRecord;
use crate::items::{Disk, Node, Volume};
use crate::job::Job;
use crate::pg::Pg;
use crate::record::{Body, HeadRecord, Record, RevokedRecord, SettingRecord, VolumeRecord};
use crate::state::State;
use crate::stripe::StripeGroup;
use cairn_types::{NodeId, PartitionId, WallTime, crc32c};
use prost::Message;
use std::sync::Arc;

const MAGIC: &[u8; 8] = b"CAIRNMGR";
/// Format that this build writes and reads.
pub const FORMAT: u32 = 1;
const HEADER_LEN: usize = 16;
/// Bytes that are gathered before they are handed on.
const PIECE: usize = 64 << 10;
/// Longest record: an item has a bounded number of bounded texts.
const RECORD_MAX: usize = 1 << 20;

/// Why a stream is not a state.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("the manager's checkpoint is damaged at byte {at}: {what}")]
    Damaged { at: u64, what: &'static str },
    #[error("the items of the manager's checkpoint contradict each other: {what}")]
    Contradiction { what: String },
    #[error("the manager's checkpoint has format {format}, this build reads {FORMAT}; upgrade this member")]
    Later { format: u32 },
}

impl CheckpointError {
    /// Where in the stream it was noticed.
    pub fn offset(&self) -> u64 {
        match self {
            Self::Damaged { at, .. } => *at,
            Self::Contradiction { .. } | Self::Later { .. } => 0,
        }
    }
}

/// Writes the state in pieces.
pub fn write<E>(state: &State, mut out: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
    let mut piece = Vec::with_capacity(PIECE + RECORD_MAX / 8);
    piece.extend_from_slice(MAGIC);
    piece.extend_from_slice(&FORMAT.to_le_bytes());
    piece.extend_from_slice(&0u32.to_le_bytes());
    let mut records = 0u64;
    let mut put = |body: Body| {
        let record = Record { body: Some(body) }.encode_to_vec();
        assert!(record.len() <= RECORD_MAX, "an item of {} bytes", record.len());
        piece.extend_from_slice(&(record.len() as u32).to_le_bytes());
        piece.extend_from_slice(&crc32c(&record).to_le_bytes());
        piece.extend_from_slice(&record);
        if piece.len() < PIECE {
            return Ok(());
        }
        let full = out(&piece);
        piece.clear();
        full
    };
    let head = HeadRecord::new(state.cluster.as_ref(), state.version, state.delta_floor, &state.next);
    let head = HeadRecord { level: state.level, restored: state.restored, ..head };
    let settings = state
        .config
        .changed()
        .map(|(key, value)| Body::Setting(SettingRecord { key: key.name().to_string(), value: value.to_string() }));
    let bodies = std::iter::once(Body::Head(head))
        .chain(settings)
        .chain(state.nodes().map(|i| Body::Node(i.into())))
        .chain(state.disks().map(|i| Body::Disk(i.into())))
        .chain(state.volumes().map(|i| Body::Volume(VolumeRecord::of(i, state.trash_promises.get(&i.id)))))
        .chain(state.partitions().map(|i| Body::Partition(i.into())))
        .chain(state.pgs().map(|i| Body::Pg(i.into())))
        .chain(state.stripe_groups().map(|i| Body::StripeGroup(i.into())))
        .chain(state.jobs().map(|i| Body::Job(i.into())))
        .chain(state.drains().map(|i| Body::Drain(i.into())))
        .chain(state.hibernations().map(|i| Body::Hibernation(i.into())))
        .chain(state.gone.iter().map(|node| Body::Gone(node.get())))
        .chain(state.grays().map(|(disk, gray)| {
            Body::Gray(GrayRecord { disk: disk.get(), since_ns: gray.since.0, why: gray.why.clone() })
        }))
        .chain(state.marks().map(Body::Mark))
        .chain(
            state
                .revoked()
                .map(|(name, since)| Body::Revoked(RevokedRecord { name: name.to_owned(), since_ns: since.0 })),
        )
        .chain(state.events().map(|event| Body::Event(event.clone())));
    for body in bodies {
        records += 1;
        put(body)?;
    }
    put(Body::End(records))?;
    out(&piece)
}

/// Reads a state from pieces of any size.
#[derive(Default)]
pub struct Reader {
    state: State,
    buffer: Vec<u8>,
    /// Bytes before the buffer.
    offset: u64,
    records: u64,
    header: bool,
    ended: bool,
}

impl Reader {
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next piece.
    pub fn feed(&mut self, piece: &[u8]) -> Result<(), CheckpointError> {
        self.buffer.extend_from_slice(piece);
        let mut at = 0;
        if !self.header {
            if self.buffer.len() < HEADER_LEN {
                return Ok(());
            }
            self.check_header()?;
            self.header = true;
            at = HEADER_LEN;
        }
        while let Some(frame) = self.buffer.get(at..at + 8) {
            let word = |i: usize| u32::from_le_bytes(frame[i..i + 4].try_into().expect("four bytes"));
            let (len, crc) = (word(0) as usize, word(4));
            if len > RECORD_MAX {
                return Err(self.damaged(at, "a record is too long"));
            }
            let Some(record) = self.buffer.get(at + 8..at + 8 + len) else { break };
            if crc32c(record) != crc {
                return Err(self.damaged(at, "a record does not match its checksum"));
            }
            let record = Record::decode(record).map_err(|_| self.damaged(at, "a record cannot be decoded"))?;
            self.take(record.body).map_err(|what| self.damaged(at, what))?;
            at += 8 + len;
        }
        self.buffer.drain(..at);
        self.offset += at as u64;
        Ok(())
    }

    /// The state, if all of it was there.
    pub fn finish(mut self) -> Result<State, CheckpointError> {
        if !self.ended || !self.buffer.is_empty() {
            return Err(self.damaged(0, "it ends in the middle, or something follows its end"));
        }
        self.state.derive();
        match self.state.find_flaw() {
            Ok(()) => Ok(self.state),
            Err(what) => Err(CheckpointError::Contradiction { what }),
        }
    }

    fn check_header(&self) -> Result<(), CheckpointError> {
        let word = |i: usize| u32::from_le_bytes(self.buffer[i..i + 4].try_into().expect("four bytes"));
        if &self.buffer[..8] != MAGIC {
            return Err(self.damaged(0, "the magic is wrong"));
        }
        if word(8) != FORMAT {
            return Err(CheckpointError::Later { format: word(8) });
        }
        if word(12) != 0 {
            return Err(self.damaged(12, "reserved bytes are not zero"));
        }
        Ok(())
    }

    fn take(&mut self, body: Option<Body>) -> Result<(), &'static str> {
        if self.ended {
            return Err("a record follows the end");
        }
        let body = body.ok_or("a record of an unknown kind")?;
        if matches!(body, Body::Head(_)) != (self.records == 0) {
            return Err("the head is not exactly the first record");
        }
        let state = &mut self.state;
        match body {
            Body::Head(head) => {
                state.cluster = head.cluster()?;
                (state.version, state.delta_floor) = (head.version, head.delta_floor);
                state.next = head.counters();
                state.level = head.level;
                state.restored = head.restored;
            }
            Body::Setting(setting) => set(&mut state.config, &setting)?,
            Body::Node(record) => {
                let item = Node::try_from(record)?;
                state.nodes.insert(item.id, Arc::new(item));
            }
            Body::Disk(record) => {
                let item = Disk::try_from(record)?;
                state.disks.insert(item.id, Arc::new(item));
            }
            Body::Volume(record) => {
                state.trash_promises.extend(record.promised());
                let item = Volume::try_from(record)?;
                state.volumes.insert(item.id, Arc::new(item));
            }
            Body::Partition(record) => {
                let item = crate::items::Partition::from(record);
                state.partitions.insert(item.id, Arc::new(item));
            }
            Body::Pg(record) => {
                let item = Pg::try_from(record)?;
                state.pgs.insert(item.id, Arc::new(item));
            }
            Body::StripeGroup(record) => state.put_stripe_group(StripeGroup::try_from(record)?),
            Body::Job(record) => {
                let item = Job::try_from(record)?;
                state.jobs.insert(item.id, Arc::new(item));
            }
            Body::Drain(record) => {
                let (target, drain) = record.try_into()?;
                state.drains.insert(target, drain);
            }
            Body::Hibernation(record) => {
                let (target, hibernation) = record.try_into()?;
                state.hibernations.insert(target, hibernation);
            }
            Body::Gray(GrayRecord { disk, since_ns, why }) => {
                let since = WallTime(since_ns);
                state.grays.insert(cairn_types::DiskId(disk), crate::gray::Gray { since, why });
            }
            Body::Mark(mark) => {
                state.marks.insert((PartitionId(mark.partition), NodeId(mark.node)), (mark.term, mark.index));
            }
            Body::Revoked(it) => drop(state.revoked.insert(it.name, WallTime(it.since_ns))),
            Body::Event(event) => state.events.push_back(Arc::new(event)),
            Body::Gone(node) => drop(state.gone.insert(NodeId(node))),
            Body::End(records) => {
                if records != self.records {
                    return Err("records are missing");
                }
                self.ended = true;
            }
        }
        self.records += 1;
        Ok(())
    }

    fn damaged(&self, at: usize, what: &'static str) -> CheckpointError {
        CheckpointError::Damaged { at: self.offset + at as u64, what }
    }
}

fn set(config: &mut Config, setting: &SettingRecord) -> Result<(), &'static str> {
    config.set([(setting.key.as_str(), setting.value.as_str())]).map_err(|_| "a setting")
}

#[cfg(test)]
mod tests;
