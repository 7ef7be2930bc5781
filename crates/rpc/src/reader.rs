//! [`Reader`]: cuts a connection's byte stream into frames and leads payloads straight into aligned buffers.
//!
//! Invariants owned here: nothing of a message is handed out before its checksum was checked, and its code where frames
//! have codes; memory for a message grows only with the bytes that have arrived; a payload's buffer is asked for only
//! after its message was checked. Not here: where payload buffers come from, timeouts.

use std::io;
use std::ops::Range;
use std::task::{Context, Poll};

use cairn_env::buf::AlignedBuf;
use cairn_security::{CODE_LEN, Opener};
use cairn_wire::frame::{FrameError, FrameHeader, HEADER_LEN, MESSAGE_MAX, check_frame};
use cairn_wire::hello::HELLO_MAX;
use tokio::io::ReadBuf;

use crate::stream::Stream;

/// Buffer of a connection that has not shown a need for more.
const BUF_START: usize = 4 << 10;
/// Largest buffer for many small frames at once; only a single larger message makes it grow beyond.
const BUF_MANY: usize = 64 << 10;
/// Bytes read at once where payloads are expected: what is read beyond the message has to be copied.
const BULK_READ: usize = 4 << 10;
/// Payloads from this size make the next reads small.
const BULK_PAYLOAD: usize = 16 << 10;
/// Reads in a row that use little of the buffer, after which it is halved: connections that had a busy time give the
/// memory back.
const SPARSE_MAX: u32 = 64;
/// Frames without large payload in a row after which reads are large again.
const SMALL_STREAK: u32 = 4;

/// What is being received.
enum State {
    /// Header and message.
    Head,
    /// The caller is asked for a payload buffer; header and message stay in `buf`.
    NeedBuf(FrameHeader),
    /// The payload; header and message stay in `buf`.
    Payload(FrameHeader, AlignedBuf),
    /// Payload bytes that nobody wants, still to come.
    Discard(usize),
}

/// The receiving half of a connection.
pub(crate) struct Reader {
    /// All of it is initialised; `start..end` has been received and not been consumed.
    buf: Vec<u8>,
    start: usize,
    end: usize,
    state: State,
    small_streak: u32,
    /// Frames handed out, to tell one half-received frame from the next.
    frames: u64,
    hello_only: bool,
    /// The side that asks, and so gets answers.
    asks: bool,
    /// Reads in a row that used little of the buffer.
    sparse: u32,
    /// Of a connection whose frames have codes.
    opener: Option<Opener>,
}

/// What the bytes received so far amount to.
pub(crate) enum Next<'a> {
    /// Read more from the socket.
    More,
    /// Give a buffer for this frame's payload with [`Reader::give`], or [`Reader::discard`] it.
    NeedBuf(FrameHeader),
    /// A whole frame.
    Frame(FrameHeader, &'a [u8], Option<AlignedBuf>),
}

/// [`Next`] without a borrow.
pub(crate) enum Step {
    More,
    NeedBuf(FrameHeader),
    Frame(FrameHeader, Range<usize>, Option<AlignedBuf>),
}

impl Reader {
    /// `opener`: for a connection whose frames have codes.
    pub(crate) fn new(opener: Option<Opener>) -> Self {
        Self {
            buf: vec![0; BUF_START],
            start: 0,
            end: 0,
            state: State::Head,
            small_streak: SMALL_STREAK,
            frames: 0,
            hello_only: true,
            asks: false,
            sparse: 0,
            opener,
        }
    }

    /// Of the side that asks.
    pub(crate) fn of_answers(mut self) -> Self {
        self.asks = true;
        self
    }

    /// Bytes of a frame before its payload.
    fn before_payload(&self, header: &FrameHeader) -> usize {
        header.head_len() + if self.opener.is_some() { CODE_LEN } else { 0 }
    }

    /// From now on frames of any kind are accepted; before, only what fits a hello is.
    pub(crate) fn hello_done(&mut self) {
        self.hello_only = false;
    }

    /// Bytes of memory for what has been received and not handed out, without payloads.
    pub(crate) fn buffered(&self) -> usize {
        self.buf.len()
    }

    /// Frames handed out so far when a further one has been received in part.
    pub(crate) fn partial(&self) -> Option<u64> {
        let between = self.start == self.end && matches!(self.state, State::Head);
        (!between).then_some(self.frames)
    }

    /// Of the payload that is being received: frames before it, and its bytes that are here.
    pub(crate) fn payload_received(&self) -> Option<(u64, usize)> {
        match &self.state {
            State::Payload(_, payload) => Some((self.frames, payload.len())),
            _ => None,
        }
    }

    /// The next frame among the bytes received.
    pub(crate) fn next(&mut self) -> Result<Next<'_>, FrameError> {
        Ok(match self.advance()? {
            Step::More => Next::More,
            Step::NeedBuf(header) => Next::NeedBuf(header),
            Step::Frame(header, message, payload) => Next::Frame(header, &self.buf[message], payload),
        })
    }

    /// The message of a frame that `advance` gave, until the next call.
    pub(crate) fn message(&self, range: Range<usize>) -> &[u8] {
        &self.buf[range]
    }

    /// As `next`, with the message's place instead of the message.
    pub(crate) fn advance(&mut self) -> Result<Step, FrameError> {
        if let State::Discard(left) = &mut self.state {
            let skipped = (self.end - self.start).min(*left);
            self.start += skipped;
            *left -= skipped;
            if *left > 0 {
                return Ok(Step::More);
            }
            self.state = State::Head;
        }
        match std::mem::replace(&mut self.state, State::Head) {
            State::Payload(header, payload) if payload.len() == header.payload_len as usize => {
                return Ok(self.frame(header, Some(payload)));
            }
            State::Payload(header, payload) => {
                self.state = State::Payload(header, payload);
                return Ok(Step::More);
            }
            State::NeedBuf(header) => {
                self.state = State::NeedBuf(header);
                return Ok(Step::NeedBuf(header));
            }
            State::Head | State::Discard(_) => {}
        }
        let received = &self.buf[self.start..self.end];
        let Some(raw) = received.first_chunk::<HEADER_LEN>() else { return Ok(Step::More) };
        let header = FrameHeader::decode(raw)?;
        if self.hello_only {
            check_hello_lengths(&header)?;
        }
        let length = header.message_len as usize;
        if length > MESSAGE_MAX && !self.asks {
            return Err(FrameError::MessageTooLong { length });
        }
        if received.len() < self.before_payload(&header) {
            return Ok(Step::More);
        }
        let (head, behind) = self.buf[self.start..self.end].split_at_mut(header.head_len());
        if let Some(opener) = &mut self.opener {
            let code = behind.first_chunk().expect("it has been received");
            if !opener.open(head, code) {
                return Err(FrameError::BadCode);
            }
        }
        check_frame(&header, head)?;
        if header.payload_len == 0 {
            self.small_streak = self.small_streak.saturating_add(1);
            return Ok(self.frame(header, None));
        }
        self.small_streak = if header.payload_len as usize >= BULK_PAYLOAD { 0 } else { self.small_streak + 1 };
        self.state = State::NeedBuf(header);
        Ok(Step::NeedBuf(header))
    }

    fn frame(&mut self, header: FrameHeader, payload: Option<AlignedBuf>) -> Step {
        let message = self.start + HEADER_LEN..self.start + header.head_len();
        self.start += self.before_payload(&header);
        self.frames += 1;
        Step::Frame(header, message, payload)
    }

    /// Gives the buffer that [`Next::NeedBuf`] asked for, empty and with room for the payload.
    pub(crate) fn give(&mut self, mut payload: AlignedBuf) {
        let State::NeedBuf(header) = self.state else { panic!("a buffer is given only when one is asked for") };
        assert!(payload.is_empty() && payload.capacity() >= header.payload_len as usize, "room for the payload");
        let head_end = self.start + self.before_payload(&header);
        let here = (self.end - head_end).min(header.payload_len as usize);
        payload.extend_from_slice(&self.buf[head_end..head_end + here]);
        // What lies behind the payload moves up to the message, which stays in place until the payload is complete.
        self.buf.copy_within(head_end + here..self.end, head_end);
        self.end -= here;
        self.state = State::Payload(header, payload);
    }

    /// Skips the frame whose payload [`Next::NeedBuf`] asked a buffer for.
    pub(crate) fn discard(&mut self) {
        let State::NeedBuf(header) = self.state else { panic!("only a payload that was announced is discarded") };
        self.start += self.before_payload(&header);
        self.frames += 1;
        self.state = State::Discard(header.payload_len as usize);
    }

    /// Reads once from the socket, at most what is useful now. `Ready(0)`: the peer closed.
    pub(crate) fn fill(&mut self, cx: &mut Context<'_>, stream: &mut Stream) -> Poll<io::Result<usize>> {
        if let State::Payload(header, payload) = &mut self.state {
            let missing = header.payload_len as usize - payload.len();
            let mut into = ReadBuf::new(&mut payload.spare_mut()[..missing]);
            std::task::ready!(stream.poll_read(cx, &mut into))?;
            let count = into.filled().len();
            payload.advance(count);
            return Poll::Ready(Ok(count));
        }
        self.make_room();
        let limit = match self.state {
            State::Head if self.small_streak < SMALL_STREAK => (self.end + BULK_READ).min(self.buf.len()),
            _ => self.buf.len(),
        };
        let mut into = ReadBuf::new(&mut self.buf[self.end..limit]);
        std::task::ready!(stream.poll_read(cx, &mut into))?;
        let count = into.filled().len();
        self.end += count;
        self.sparse = if count < self.buf.len() / 4 { self.sparse + 1 } else { 0 };
        if self.end == self.buf.len() && self.buf.len() < BUF_MANY && self.small_streak >= SMALL_STREAK {
            self.buf.resize(self.buf.len() * 2, 0);
        }
        Poll::Ready(Ok(count))
    }

    /// As `fill`, of bytes that are there. Returns how many of them were useful now.
    pub(crate) fn take_in(&mut self, bytes: &[u8]) -> usize {
        if let State::Payload(header, payload) = &mut self.state {
            let count = bytes.len().min(header.payload_len as usize - payload.len());
            payload.extend_from_slice(&bytes[..count]);
            return count;
        }
        self.make_room();
        let count = bytes.len().min(self.buf.len() - self.end);
        self.buf[self.end..self.end + count].copy_from_slice(&bytes[..count]);
        self.end += count;
        count
    }

    /// Moves what is left to the front, and fits the buffer to the frame that it begins with.
    fn make_room(&mut self) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            let fitting = match self.sparse {
                SPARSE_MAX.. => (self.buf.len() / 2).clamp(BUF_START, BUF_MANY),
                _ => self.buf.len().min(BUF_MANY),
            };
            if fitting < self.buf.len() {
                self.buf.truncate(fitting);
                self.buf.shrink_to_fit();
                self.sparse = 0;
            }
        } else if self.start > 0 && (self.end == self.buf.len() || self.start >= self.buf.len() / 2) {
            self.buf.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.end == self.buf.len() {
            // A single frame's message fills the buffer (its length was checked): at most twice what has arrived.
            self.buf.resize(self.buf.len() * 2, 0);
        }
    }
}

fn check_hello_lengths(header: &FrameHeader) -> Result<(), FrameError> {
    if header.message_len as usize > HELLO_MAX {
        return Err(FrameError::MessageTooLong { length: header.message_len as usize });
    }
    if header.payload_len > 0 {
        return Err(FrameError::PayloadTooLong { length: header.payload_len as usize });
    }
    Ok(())
}
