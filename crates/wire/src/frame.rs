//! The frame: what goes over a connection, in both directions, one after the other.
//!
//! ```text
//! offset size field
//!      0    4 magic            "CRNF" as bytes (0x464e_5243 little-endian)
//!      4    1 version          [`FRAME_VERSION`]
//!      5    1 flags            bit 0 RESPONSE, bit 1 ERROR (needs RESPONSE), bit 2 ONEWAY (a request without answer)
//!      6    2 opcode           0 is the hello; an answer repeats the opcode of its request
//!      8    8 request id       chosen by the asking side, repeated in the answer
//!     16    4 message length   at most [`MESSAGE_MAX`]; of a request it includes the call header; of a manager's answer at
//!                              most [`ANSWER_MAX`]
//!     20    4 payload length   at most [`PAYLOAD_MAX`]
//!     24    4 CRC-32C          of the 32 header bytes, with this field zero, and the message
//!     28    4 reserved         zero
//!     32      message, then payload
//! ```
//! All numbers are little-endian. The message of every request except the hello starts with the call header:
//! ```text
//! offset size field
//!      0    4 deadline         milliseconds that the asking side still waits, from when it sent this; 0: it does not wait
//!      4    4 reserved         zero
//!      8    8 trace id
//!     16      protobuf message
//! ```
//! The message of an answer is its protobuf message, or [`ErrorInfo`](crate::common::ErrorInfo) with the ERROR flag.
//!
//! Invariants owned here: nothing is taken from a frame before its lengths were held against the limits, nothing from
//! a message before its checksum was. The payload is not covered: the CRCs of its blocks are in the message and are
//! checked from end to end by those who made and those who use the data.
//! Not here: sockets, buffers and who may send what when (the rpc crate), the opcodes.

use cairn_types::crc32c;

/// First four bytes of every frame: "CRNF".
pub const FRAME_MAGIC: u32 = u32::from_le_bytes(*b"CRNF");
/// Layout of the frame. What messages may be sent is negotiated by the hello instead.
pub const FRAME_VERSION: u8 = 1;
/// Length of the frame header.
pub const HEADER_LEN: usize = 32;
/// Length of the call header at the start of a request's message.
pub const CALL_HEADER_LEN: usize = 16;
/// Largest message, the call header included.
pub const MESSAGE_MAX: usize = 1 << 20;
/// Largest message of an answer of managers: the map of a large cluster. Who takes requests reads none.
pub const ANSWER_MAX: usize = 16 << 20;
/// Largest payload: 4 MiB of data and room for what goes along with it.
pub const PAYLOAD_MAX: usize = (4 << 20) + (64 << 10);
/// Opcode of the hello, the first frame of both directions. No service uses it.
pub const OPCODE_HELLO: u16 = 0;

const CRC_OFFSET: usize = 24;

const _: () = assert!(HEADER_LEN == 4 + 1 + 1 + 2 + 8 + 4 + 4 + 4 + 4);
const _: () = assert!(CALL_HEADER_LEN == 4 + 4 + 8);

/// The flag bits of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flags(u8);

impl Flags {
    /// A request that wants an answer.
    pub const REQUEST: Flags = Flags(0);
    /// An answer.
    pub const RESPONSE: Flags = Flags(1);
    /// An answer that says why it was not done.
    pub const ERROR: Flags = Flags(1 | 2);
    /// A request that gets no answer, not even an error.
    pub const ONEWAY: Flags = Flags(4);

    /// The bits as they go over the wire.
    pub const fn bits(self) -> u8 {
        self.0
    }
    /// Only the four combinations above are known; others come from a later layout or are damage.
    pub const fn from_bits(bits: u8) -> Option<Flags> {
        match bits {
            0 | 1 | 3 | 4 => Some(Flags(bits)),
            _ => None,
        }
    }
    /// An answer, good or bad.
    pub const fn is_response(self) -> bool {
        self.0 & 1 != 0
    }
    /// An answer that carries an error.
    pub const fn is_error(self) -> bool {
        self.0 & 2 != 0
    }
    /// A request without answer.
    pub const fn is_oneway(self) -> bool {
        self.0 & 4 != 0
    }
}

/// Why bytes are not a frame. Each of them ends the connection: where the next frame starts is not known any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameError {
    /// Another protocol, or the stream is out of step.
    #[error("not a Cairn frame: starts with {found:#010x} instead of \"CRNF\"; does the port belong to Cairn?")]
    BadMagic {
        /// What stood there.
        found: u32,
    },
    /// The other side speaks a later (or damaged) layout.
    #[error("frame layout {found} is not known here (this side speaks {FRAME_VERSION}); upgrade the older side")]
    UnknownVersion {
        /// What stood there.
        found: u8,
    },
    /// A combination of flags that is not in the table.
    #[error("unknown frame flags {found:#04x}")]
    UnknownFlags {
        /// What stood there.
        found: u8,
    },
    /// Longer than the protocol allows.
    #[error("a message of {length} bytes exceeds the limit of {}", if *length > ANSWER_MAX { ANSWER_MAX } else { MESSAGE_MAX })]
    MessageTooLong {
        /// What was said or asked.
        length: usize,
    },
    /// Longer than the protocol allows.
    #[error("a payload of {length} bytes exceeds the limit of {PAYLOAD_MAX}")]
    PayloadTooLong {
        /// What was said or asked.
        length: usize,
    },
    /// A request that is too short for its call header.
    #[error("a request with a message of {length} bytes lacks its call header of {CALL_HEADER_LEN}")]
    NoCallHeader {
        /// Length of the message.
        length: usize,
    },
    /// Reserved bytes are in use: a later layout or damage.
    #[error("reserved bytes of the frame are not zero")]
    ReservedNotZero,
    /// It is not the frame that the other side sent next.
    #[error("the code of a frame is wrong: it was changed, repeated or left out on the way by somebody in between")]
    BadCode,
    /// Header or message were damaged on the way.
    #[error("frame checksum mismatch: header says {expected:#010x}, the bytes give {found:#010x}")]
    BadChecksum {
        /// What the header says.
        expected: u32,
        /// What header and message give.
        found: u32,
    },
}

/// The decoded header of a frame, its limits checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHeader {
    /// Request, answer, error or one-way.
    pub flags: Flags,
    /// What is asked.
    pub opcode: u16,
    /// Pairs answers with requests.
    pub request_id: u64,
    /// Bytes of the message, `<= MESSAGE_MAX`, or `<= ANSWER_MAX`.
    pub message_len: u32,
    /// Bytes of the payload, `<= PAYLOAD_MAX`.
    pub payload_len: u32,
    /// Checked by [`check_frame`].
    pub crc: u32,
}

fn u32_at(bytes: &[u8; HEADER_LEN], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut raw = [0; 8];
    raw.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(raw)
}

impl FrameHeader {
    /// Decodes a header and checks everything but the checksum, for which the message is needed ([`check_frame`]).
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Self, FrameError> {
        let found = u32_at(bytes, 0);
        if found != FRAME_MAGIC {
            return Err(FrameError::BadMagic { found });
        }
        if bytes[4] != FRAME_VERSION {
            return Err(FrameError::UnknownVersion { found: bytes[4] });
        }
        let flags = Flags::from_bits(bytes[5]).ok_or(FrameError::UnknownFlags { found: bytes[5] })?;
        if u32_at(bytes, 28) != 0 {
            return Err(FrameError::ReservedNotZero);
        }
        let header = Self {
            flags,
            opcode: u16::from_le_bytes([bytes[6], bytes[7]]),
            request_id: u64_at(bytes, 8),
            message_len: u32_at(bytes, 16),
            payload_len: u32_at(bytes, 20),
            crc: u32_at(bytes, CRC_OFFSET),
        };
        header.check_lengths()?;
        Ok(header)
    }

    fn check_lengths(&self) -> Result<(), FrameError> {
        let (message, payload) = (self.message_len as usize, self.payload_len as usize);
        if message > message_max(self.flags, self.opcode) {
            return Err(FrameError::MessageTooLong { length: message });
        }
        if payload > PAYLOAD_MAX {
            return Err(FrameError::PayloadTooLong { length: payload });
        }
        if self.has_call_header() && message < CALL_HEADER_LEN {
            return Err(FrameError::NoCallHeader { length: message });
        }
        Ok(())
    }

    /// Whether the message starts with a [`CallHeader`].
    pub fn has_call_header(&self) -> bool {
        !self.flags.is_response() && self.opcode != OPCODE_HELLO
    }

    /// Bytes of header and message.
    pub fn head_len(&self) -> usize {
        HEADER_LEN + self.message_len as usize
    }

    /// Bytes of header, message and payload.
    pub fn frame_len(&self) -> usize {
        self.head_len() + self.payload_len as usize
    }
}

/// Holds header and message against the header's checksum. `head` is exactly the header and the message as received;
/// its checksum field is zeroed by this, so it can be checked once.
pub fn check_frame(header: &FrameHeader, head: &mut [u8]) -> Result<(), FrameError> {
    assert!(head.len() == header.head_len(), "the caller passes exactly header and message");
    head[CRC_OFFSET..CRC_OFFSET + 4].fill(0);
    let found = crc32c(head);
    if found == header.crc { Ok(()) } else { Err(FrameError::BadChecksum { expected: header.crc, found }) }
}

/// Appends room for a frame header to `out`, and returns where it starts. The message is appended by the caller, then
/// [`finish_frame`] fills the header in.
pub fn begin_frame(out: &mut Vec<u8>) -> usize {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_LEN]);
    start
}

/// Fills in the header of the frame that was begun at `start`; everything behind it in `out` is its message.
/// On an error `out` is cut back to `start`, as if the frame had not been begun.
pub fn finish_frame(
    out: &mut Vec<u8>,
    start: usize,
    flags: Flags,
    opcode: u16,
    request_id: u64,
    payload_len: usize,
) -> Result<(), FrameError> {
    let message = out.len() - start - HEADER_LEN;
    let (Ok(message_len), Ok(payload_len)) = (u32::try_from(message), u32::try_from(payload_len)) else {
        out.truncate(start);
        return Err(too_long(message, payload_len));
    };
    let header = FrameHeader { flags, opcode, request_id, message_len, payload_len, crc: 0 };
    if let Err(e) = header.check_lengths() {
        out.truncate(start);
        return Err(e);
    }
    let frame = &mut out[start..];
    frame[0..4].copy_from_slice(&FRAME_MAGIC.to_le_bytes());
    frame[4] = FRAME_VERSION;
    frame[5] = flags.bits();
    frame[6..8].copy_from_slice(&opcode.to_le_bytes());
    frame[8..16].copy_from_slice(&request_id.to_le_bytes());
    frame[16..20].copy_from_slice(&message_len.to_le_bytes());
    frame[20..24].copy_from_slice(&payload_len.to_le_bytes());
    let crc = crc32c(frame);
    frame[CRC_OFFSET..CRC_OFFSET + 4].copy_from_slice(&crc.to_le_bytes());
    Ok(())
}

/// Operations of managers have 0x02 before their number.
fn message_max(flags: Flags, opcode: u16) -> usize {
    if flags.is_response() && opcode >> 8 == 0x02 { ANSWER_MAX } else { MESSAGE_MAX }
}

fn too_long(message: usize, payload: usize) -> FrameError {
    if message > MESSAGE_MAX {
        FrameError::MessageTooLong { length: message }
    } else {
        FrameError::PayloadTooLong { length: payload }
    }
}

/// What stands before the protobuf message of every request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CallHeader {
    /// Milliseconds that the asking side still waits; 0 when it does not wait (one-way).
    pub deadline_ms: u32,
    /// Follows the request through all processes that it causes work in.
    pub trace_id: u64,
}

impl CallHeader {
    /// Appends it to a frame's message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut raw = [0; CALL_HEADER_LEN];
        raw[0..4].copy_from_slice(&self.deadline_ms.to_le_bytes());
        raw[8..16].copy_from_slice(&self.trace_id.to_le_bytes());
        out.extend_from_slice(&raw);
    }

    /// Splits a request's message into call header and protobuf message.
    pub fn split(message: &[u8]) -> Result<(Self, &[u8]), FrameError> {
        let Some((raw, rest)) = message.split_first_chunk::<CALL_HEADER_LEN>() else {
            return Err(FrameError::NoCallHeader { length: message.len() });
        };
        if raw[4..8] != [0; 4] {
            return Err(FrameError::ReservedNotZero);
        }
        let deadline_ms = u32::from_le_bytes([raw[0], raw[1], raw[2], raw[3]]);
        Ok((Self { deadline_ms, trace_id: u64_at(raw, 8) }, rest))
    }
}

/// Decodes a stream of frames from hostile bytes as a server does, for fuzzing: must neither panic nor loop, and what
/// decodes must encode to the same bytes.
///
/// Chance does not find checksums, so the bytes are decoded once more with that of the first frame put right.
#[doc(hidden)]
pub fn fuzz_frame(data: &[u8]) {
    decode_stream(data);
    let Some(Ok(header)) = data.first_chunk().map(FrameHeader::decode) else { return };
    let mut fixed = data.to_vec();
    let Some(head) = fixed.get_mut(..header.head_len()) else { return };
    head[CRC_OFFSET..CRC_OFFSET + 4].fill(0);
    let crc = crc32c(head);
    head[CRC_OFFSET..CRC_OFFSET + 4].copy_from_slice(&crc.to_le_bytes());
    decode_stream(&fixed);
}

fn decode_stream(data: &[u8]) {
    let mut rest = data;
    while let Some(raw) = rest.first_chunk::<HEADER_LEN>() {
        let Ok(header) = FrameHeader::decode(raw) else { return };
        if rest.len() < header.head_len() {
            return;
        }
        let mut head = rest[..header.head_len()].to_vec();
        if check_frame(&header, &mut head).is_err() {
            return;
        }
        let message = &head[HEADER_LEN..];
        if header.has_call_header()
            && let Ok((call, body)) = CallHeader::split(message)
        {
            let mut again = Vec::new();
            call.encode(&mut again);
            again.extend_from_slice(body);
            assert_eq!(again, message, "a call header that decodes encodes to the same bytes");
        }
        let mut again = Vec::new();
        let start = begin_frame(&mut again);
        again.extend_from_slice(message);
        finish_frame(&mut again, start, header.flags, header.opcode, header.request_id, header.payload_len as usize)
            .expect("lengths that were accepted are within the limits");
        assert_eq!(again, rest[..header.head_len()], "a frame that decodes encodes to the same bytes");
        rest = rest.get(header.frame_len()..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests;
