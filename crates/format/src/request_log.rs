//! Files of a node's request log: what it was asked and what it answered, without the data; names in
//! `requests/NNNNNNNNNN`.
//!
//! A header, then batches until the end of the file. All numbers little-endian.
//!
//! | offset | bytes | header |
//! |---|---|---|
//! | 0 | 8 | magic `CAIRNREQ` |
//! | 8 | 4 | format version |
//! | 12 | 4 | CRC-32C of all 64 bytes with this field zero |
//! | 16 | 8 | when the file was begun, ns since 1970 |
//! | 24 | 40 | zero |
//!
//! | offset | bytes | batch |
//! |---|---|---|
//! | 0 | 4 | magic `RQB1` |
//! | 4 | 4 | bytes of records that follow, at most 4 MiB |
//! | 8 | 4 | CRC-32C of this header with this field zero, and of the records |
//! | 12 | 4 | times that records were dropped before this batch |
//!
//! | offset | bytes | record |
//! |---|---|---|
//! | 0 | 2 | its length, this field included |
//! | 2 | 1 | kind: 1 connection, 2 request, 3 answer |
//! | 3 | 1 | flags: 1 one-way, 2 the message was cut, 4 another server asks |
//! | 4 | 8 | number of the connection, unique in a start of the node |
//! | 12 | 8 | ns since 1970 |
//! | 20 | | of its kind |
//!
//! | kind | fields |
//! |---|---|
//! | connection | peer kind u32, peer's node u32, its address as text to the end |
//! | request | number in the connection u64, trace id u64, operation u16, zero u16, bytes of payload u32, of the message u32, the message's first bytes to the end |
//! | answer | number in the connection u64, operation u16, error code u16 (0: none), bytes of payload u32, of the message u32 |
//!
//! It is a help for people and for replays: nothing depends on it, its last second may be missing after a crash, and
//! what follows a damaged batch is found by nobody.

use cairn_types::{crc32c, crc32c_append};

use crate::le::{u32_at, u64_at};

/// Bytes of a file's header.
pub const REQUEST_LOG_HEADER: usize = 64;
/// Newest version written and read.
pub const REQUEST_LOG_VERSION: u32 = 1;
/// Bytes of a batch's header.
pub const REQUEST_BATCH_HEADER: usize = 16;
/// Most bytes of records of a batch.
pub const REQUEST_BATCH_MAX: usize = 4 << 20;
/// Bytes of a request's message that are kept.
pub const REQUEST_MESSAGE_KEPT: usize = 256;

const MAGIC: &[u8; 8] = b"CAIRNREQ";
const BATCH_MAGIC: &[u8; 4] = b"RQB1";
const FIXED: usize = 20;
const ONEWAY: u8 = 1;
const CUT: u8 = 2;
const OF_SERVER: u8 = 4;

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestRecord<'a> {
    /// Of which connection.
    pub connection: u64,
    /// When it was received or answered, ns since 1970.
    pub time: u64,
    /// What happened.
    pub event: RequestEvent<'a>,
}

/// What it tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestEvent<'a> {
    /// A peer was let in.
    Connection {
        /// As its hello said.
        peer_kind: u32,
        /// As its hello said.
        node: u32,
        /// Where it is.
        address: &'a str,
    },
    /// Handed to the service.
    Request {
        /// In its connection.
        id: u64,
        /// The same at every server that worked for it.
        trace_id: u64,
        /// What is asked.
        opcode: u16,
        /// Nobody waits for an answer.
        oneway: bool,
        /// Another server asks, for a client or for itself.
        of_server: bool,
        /// Data that came along.
        payload: u32,
        /// Length of the message.
        length: u32,
        /// Its first [`REQUEST_MESSAGE_KEPT`] bytes.
        message: &'a [u8],
    },
    /// Given to the connection.
    Answer {
        /// In its connection.
        id: u64,
        /// Of the request.
        opcode: u16,
        /// Code of the error; 0: none.
        error: u16,
        /// Data that goes along.
        payload: u32,
        /// Length of the message.
        length: u32,
    },
}

/// Why bytes are no request log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RequestLogError {
    /// Not ours.
    #[error("no magic of a request log")]
    Magic,
    /// Bytes changed, or are missing.
    #[error("checksum of the request log does not match, or it was cut in the middle of a batch")]
    Checksum,
    /// Written by a newer program.
    #[error("version {0} of a request log is not known to this program; use a newer one")]
    Version(u32),
    /// Lengths or codes out of range, reserved bytes set.
    #[error("the fields of the request log contradict each other")]
    Shape,
}

/// The header of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestLogHeader {
    /// When it was begun, ns since 1970.
    pub begun: u64,
}

impl RequestLogHeader {
    /// The bytes as they go to disk.
    pub fn encode(&self) -> [u8; REQUEST_LOG_HEADER] {
        let mut out = [0; REQUEST_LOG_HEADER];
        out[..8].copy_from_slice(MAGIC);
        out[8..12].copy_from_slice(&REQUEST_LOG_VERSION.to_le_bytes());
        out[16..24].copy_from_slice(&self.begun.to_le_bytes());
        let crc = without_field(&out, 12);
        out[12..16].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads and verifies the first bytes of a file.
    pub fn decode(bytes: &[u8]) -> Result<Self, RequestLogError> {
        if bytes.len() < REQUEST_LOG_HEADER || &bytes[..8] != MAGIC {
            return Err(RequestLogError::Magic);
        }
        let bytes = &bytes[..REQUEST_LOG_HEADER];
        if u32_at(bytes, 12) != without_field(bytes, 12) {
            return Err(RequestLogError::Checksum);
        }
        match u32_at(bytes, 8) {
            REQUEST_LOG_VERSION => {}
            other => return Err(RequestLogError::Version(other)),
        }
        if bytes[24..].iter().any(|byte| *byte != 0) {
            return Err(RequestLogError::Shape);
        }
        Ok(Self { begun: u64_at(bytes, 16) })
    }
}

/// CRC-32C with the four bytes at an offset as zeros.
fn without_field(bytes: &[u8], at: usize) -> u32 {
    crc32c_append(crc32c_append(crc32c(&bytes[..at]), &[0; 4]), &bytes[at + 4..])
}

/// The header of a batch.
///
/// # Panics
/// With more than [`REQUEST_BATCH_MAX`] bytes.
pub fn encode_batch_header(records: &[u8], dropped: u32) -> [u8; REQUEST_BATCH_HEADER] {
    assert!(records.len() <= REQUEST_BATCH_MAX);
    let mut out = [0; REQUEST_BATCH_HEADER];
    out[..4].copy_from_slice(BATCH_MAGIC);
    out[4..8].copy_from_slice(&(records.len() as u32).to_le_bytes());
    out[12..16].copy_from_slice(&dropped.to_le_bytes());
    let crc = crc32c_append(without_field(&out, 8), records);
    out[8..12].copy_from_slice(&crc.to_le_bytes());
    out
}

/// Bytes of records that follow the header of a batch, as it says.
pub fn batch_length(header: &[u8]) -> Result<usize, RequestLogError> {
    if header.len() < REQUEST_BATCH_HEADER || &header[..4] != BATCH_MAGIC {
        return Err(RequestLogError::Magic);
    }
    let length = u32_at(header, 4) as usize;
    if length > REQUEST_BATCH_MAX { Err(RequestLogError::Shape) } else { Ok(length) }
}

/// A batch at the start of `bytes`: its records, how many were dropped before it, and what follows.
pub fn split_batch(bytes: &[u8]) -> Result<(&[u8], u32, &[u8]), RequestLogError> {
    let length = batch_length(bytes)?;
    let (header, rest) = bytes.split_at(REQUEST_BATCH_HEADER);
    let Some((records, rest)) = rest.split_at_checked(length) else { return Err(RequestLogError::Checksum) };
    if u32_at(header, 8) != crc32c_append(without_field(header, 8), records) {
        return Err(RequestLogError::Checksum);
    }
    Ok((records, u32_at(header, 12), rest))
}

impl RequestRecord<'_> {
    /// Appends the bytes of the record.
    #[inline]
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.connection.to_le_bytes());
        out.extend_from_slice(&self.time.to_le_bytes());
        let (kind, flags) = match &self.event {
            RequestEvent::Connection { peer_kind, node, address } => {
                out.extend_from_slice(&peer_kind.to_le_bytes());
                out.extend_from_slice(&node.to_le_bytes());
                let kept = address.len().min(REQUEST_MESSAGE_KEPT);
                out.extend_from_slice(&address.as_bytes()[..kept]);
                (1, 0)
            }
            RequestEvent::Request { id, trace_id, opcode, oneway, of_server, payload, length, message } => {
                out.extend_from_slice(&id.to_le_bytes());
                out.extend_from_slice(&trace_id.to_le_bytes());
                out.extend_from_slice(&opcode.to_le_bytes());
                out.extend_from_slice(&[0; 2]);
                out.extend_from_slice(&payload.to_le_bytes());
                out.extend_from_slice(&length.to_le_bytes());
                let kept = message.len().min(REQUEST_MESSAGE_KEPT);
                out.extend_from_slice(&message[..kept]);
                let cut = if kept < *length as usize { CUT } else { 0 };
                let flag = |set: bool, flag: u8| if set { flag } else { 0 };
                (2, cut | flag(*oneway, ONEWAY) | flag(*of_server, OF_SERVER))
            }
            RequestEvent::Answer { id, opcode, error, payload, length } => {
                out.extend_from_slice(&id.to_le_bytes());
                out.extend_from_slice(&opcode.to_le_bytes());
                out.extend_from_slice(&error.to_le_bytes());
                out.extend_from_slice(&payload.to_le_bytes());
                out.extend_from_slice(&length.to_le_bytes());
                (3, 0)
            }
        };
        let length = (out.len() - start) as u16;
        out[start..start + 2].copy_from_slice(&length.to_le_bytes());
        (out[start + 2], out[start + 3]) = (kind, flags);
    }
}

/// The record at the start of a batch's records, and what follows.
pub fn split_record(bytes: &[u8]) -> Result<(RequestRecord<'_>, &[u8]), RequestLogError> {
    let shape = RequestLogError::Shape;
    if bytes.len() < FIXED {
        return Err(shape);
    }
    let u16_at = |bytes: &[u8], at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let length = usize::from(u16_at(bytes, 0));
    let (record, rest) = bytes.split_at_checked(length).filter(|_| length >= FIXED).ok_or(shape)?;
    let (kind, flags, more) = (record[2], record[3], &record[FIXED..]);
    let event = match kind {
        1 if more.len() >= 8 && flags == 0 => RequestEvent::Connection {
            peer_kind: u32_at(more, 0),
            node: u32_at(more, 4),
            address: std::str::from_utf8(&more[8..]).map_err(|_| shape)?,
        },
        2 if more.len() >= 28 && flags <= ONEWAY + CUT + OF_SERVER && u16_at(more, 18) == 0 => {
            let (length, message) = (u32_at(more, 24), &more[28..]);
            let cut = message.len() < length as usize;
            if message.len() > length as usize || cut != (flags & CUT != 0) {
                return Err(shape);
            }
            RequestEvent::Request {
                id: u64_at(more, 0),
                trace_id: u64_at(more, 8),
                opcode: u16_at(more, 16),
                oneway: flags & ONEWAY != 0,
                of_server: flags & OF_SERVER != 0,
                payload: u32_at(more, 20),
                length,
                message,
            }
        }
        3 if more.len() == 20 && flags == 0 => RequestEvent::Answer {
            id: u64_at(more, 0),
            opcode: u16_at(more, 8),
            error: u16_at(more, 10),
            payload: u32_at(more, 12),
            length: u32_at(more, 16),
        },
        _ => return Err(shape),
    };
    Ok((RequestRecord { connection: u64_at(record, 4), time: u64_at(record, 12), event }, rest))
}

#[cfg(test)]
mod tests;
