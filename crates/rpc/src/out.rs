//! [`OutBuf`], frames waiting to be written, and [`Writer`], which writes them with as few system calls as it can.
//!
//! Headers, messages and small payloads of all waiting frames lie in one byte string; larger payloads stay where they
//! are and are interleaved by vectored writes, or go from a pipe into the socket without a copy. Invariant: bytes leave
//! in the order in which frames were pushed, and as many as their headers say.

use std::io::{self, IoSlice};
use std::task::{Context, Poll};

use cairn_env::Pipe;
use cairn_env::buf::{AlignedBuf, SharedBuf};
use cairn_security::Sealer;
use cairn_wire::frame::{Flags, FrameError, begin_frame, finish_frame};
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::payload::Payload;
use crate::stream::Stream;

/// Payload pieces up to this size are copied behind their message: cheaper than another slice.
const INLINE_MAX: usize = 2048;
/// Slices of one vectored write.
const SLICES_MAX: usize = 64;
/// Memory that a drained buffer keeps for the next frames.
const KEEP_CAPACITY: usize = 32 << 10;

/// A payload, or a part of one, that is not among the bytes of its buffer.
enum Piece {
    Memory(SharedBuf),
    Pipe(Pipe),
}

/// Frames in the order in which they are to be written.
#[derive(Default)]
pub(crate) struct OutBuf {
    bytes: Vec<u8>,
    /// Payload pieces and the positions in `bytes` before which they are written, ascending.
    pieces: Vec<(usize, Piece)>,
    piece_bytes: usize,
    /// Of a connection whose frames have codes.
    sealer: Option<Sealer>,
}

impl OutBuf {
    /// From here on it holds frames of this connection.
    pub(crate) fn seal_with(&mut self, sealer: Option<Sealer>) {
        assert!(self.is_empty(), "frames of two connections are not mixed");
        self.sealer = sealer;
    }

    /// What codes are made with, for another buffer that goes on.
    pub(crate) fn take_sealer(&mut self) -> Option<Sealer> {
        self.sealer.take()
    }

    /// Bytes to be written.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() + self.piece_bytes
    }

    /// Bytes of headers, messages and small payloads, which this buffer owns.
    pub(crate) fn owned_len(&self) -> usize {
        self.bytes.len()
    }

    /// Those of them that this buffer owns.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends a frame whose message `fill` writes. On an error nothing was appended.
    pub(crate) fn push(
        &mut self,
        flags: Flags,
        opcode: u16,
        request_id: u64,
        payload: Payload,
        fill: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), FrameError> {
        let start = begin_frame(&mut self.bytes);
        fill(&mut self.bytes);
        finish_frame(&mut self.bytes, start, flags, opcode, request_id, payload.len())?;
        self.seal(start);
        self.push_payload(payload);
        Ok(())
    }

    /// Appends a frame that was encoded before.
    pub(crate) fn push_encoded(&mut self, head: &[u8], payload: Payload) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(head);
        self.seal(start);
        self.push_payload(payload);
    }

    /// Appends the code of the frame whose head begins there. It is in the stream from now on, and nothing takes it out
    /// again.
    fn seal(&mut self, start: usize) {
        if let Some(sealer) = &mut self.sealer {
            let code = sealer.seal(&self.bytes[start..]);
            self.bytes.extend_from_slice(&code);
        }
    }

    fn push_payload(&mut self, payload: Payload) {
        match payload {
            Payload::None => {}
            Payload::One(piece) => self.push_piece(piece),
            Payload::Piped(pipe) => {
                self.piece_bytes += pipe.len();
                self.pieces.push((self.bytes.len(), Piece::Pipe(pipe)));
            }
            Payload::Many(pieces) => pieces.into_iter().for_each(|piece| self.push_piece(piece)),
        }
    }

    fn push_piece(&mut self, piece: SharedBuf) {
        if piece.len() <= INLINE_MAX {
            self.bytes.extend_from_slice(&piece);
        } else {
            self.piece_bytes += piece.len();
            self.pieces.push((self.bytes.len(), Piece::Memory(piece)));
        }
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(KEEP_CAPACITY);
        self.pieces.clear();
        self.piece_bytes = 0;
    }
}

/// Writes one [`OutBuf`] after the other.
#[derive(Default)]
pub(crate) struct Writer {
    current: OutBuf,
    /// Written part of `current.bytes`.
    byte_at: usize,
    /// First piece that is not wholly written, and how much of it is.
    piece: usize,
    piece_at: usize,
    left: usize,
    /// TLS has taken what it may not have handed to the kernel yet: until it has, something is pending.
    unflushed: bool,
}

/// What a flush achieved.
pub(crate) struct Flushed {
    /// Bytes that the kernel took.
    pub(crate) written: usize,
    /// Whether nothing is left; otherwise the task is woken when the socket takes more.
    pub(crate) done: bool,
}

impl Writer {
    /// Bytes taken over and not yet written.
    pub(crate) fn pending(&self) -> usize {
        self.left + usize::from(self.unflushed)
    }

    /// Bytes of headers, messages and small payloads that are kept until all is written.
    pub(crate) fn owned(&self) -> usize {
        self.current.owned_len()
    }

    /// Bytes that neither the kernel nor TLS has: what is in them was certainly not sent.
    pub(crate) fn unsent(&self) -> usize {
        self.left
    }

    /// Takes what waits in `out`, leaving an empty buffer with memory to reuse. Only when nothing is pending.
    pub(crate) fn take(&mut self, out: &mut OutBuf) {
        assert!(self.pending() == 0, "the buffer before is written first, or bytes would be lost");
        self.current.clear();
        (self.byte_at, self.piece, self.piece_at) = (0, 0, 0);
        std::mem::swap(&mut self.current, out);
        out.sealer = self.current.take_sealer();
        self.left = self.current.len();
    }

    /// Writes until nothing is left or the socket takes no more.
    pub(crate) fn flush(&mut self, cx: &mut Context<'_>, stream: &mut Stream) -> io::Result<Flushed> {
        let mut written = 0;
        while self.left > 0 {
            match self.write_some(cx, stream) {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(count)) => {
                    written += count;
                    self.unflushed = stream.tcp().is_none();
                }
                Poll::Ready(Err(e)) => return Err(e),
                Poll::Pending => return Ok(Flushed { written, done: false }),
            }
        }
        if self.left == 0 && !self.current.is_empty() {
            // Payload memory goes back to its owner now, not with the next frames, nor when TLS, which copied it, has
            // sent it.
            self.current.clear();
            (self.byte_at, self.piece, self.piece_at) = (0, 0, 0);
        }
        if self.unflushed {
            match stream.poll_flush(cx) {
                Poll::Ready(flushed) => flushed?,
                Poll::Pending => return Ok(Flushed { written, done: false }),
            }
            self.unflushed = false;
        }
        Ok(Flushed { written, done: true })
    }

    /// One system call's worth.
    fn write_some(&mut self, cx: &mut Context<'_>, stream: &mut Stream) -> Poll<io::Result<usize>> {
        let last = self.piece + 1 >= self.current.pieces.len() && self.byte_at == self.current.bytes.len();
        if let Some((before, Piece::Pipe(pipe))) = self.current.pieces.get_mut(self.piece)
            && *before == self.byte_at
            && let Some(stream) = stream.tcp()
        {
            let count = std::task::ready!(poll_pipe(cx, stream, pipe, !last))?;
            self.left -= count;
            if pipe.is_empty() {
                self.piece_done();
            }
            return Poll::Ready(Ok(count));
        }
        if stream.tcp().is_none() {
            self.unpipe()?;
        }
        let poll = if self.piece == self.current.pieces.len() {
            stream.poll_write(cx, &self.current.bytes[self.byte_at..])
        } else {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let count = self.gather(&mut slices);
            stream.poll_write_vectored(cx, &slices[..count])
        };
        if let Poll::Ready(Ok(count)) = &poll {
            self.advance(*count);
        }
        poll
    }

    /// Takes the bytes of the next pipe into memory: TLS has to see them.
    fn unpipe(&mut self) -> io::Result<()> {
        let Some((_, piece)) = self.current.pieces.get_mut(self.piece) else { return Ok(()) };
        if let Piece::Pipe(pipe) = piece {
            let mut bytes = AlignedBuf::unpooled(pipe.len());
            bytes.resize(pipe.len());
            pipe.take_out(&mut bytes)?;
            *piece = Piece::Memory(bytes.into());
        }
        Ok(())
    }

    /// What comes before the next pipe, or a part of it.
    fn gather<'a>(&'a self, slices: &mut [IoSlice<'a>; SLICES_MAX]) -> usize {
        let (mut count, mut at, mut skip) = (0, self.byte_at, self.piece_at);
        for (before, piece) in &self.current.pieces[self.piece..] {
            if count + 2 > SLICES_MAX {
                return count;
            }
            if at < *before {
                slices[count] = IoSlice::new(&self.current.bytes[at..*before]);
                at = *before;
                count += 1;
            }
            let Piece::Memory(piece) = piece else { return count };
            slices[count] = IoSlice::new(&piece[skip..]);
            skip = 0;
            count += 1;
        }
        if at < self.current.bytes.len() && count < SLICES_MAX {
            slices[count] = IoSlice::new(&self.current.bytes[at..]);
            count += 1;
        }
        count
    }

    fn advance(&mut self, mut count: usize) {
        assert!(count <= self.left, "the kernel takes no more than it was given");
        self.left -= count;
        while count > 0 {
            let until = self.current.pieces.get(self.piece).map_or(self.current.bytes.len(), |(before, _)| *before);
            let bytes = count.min(until - self.byte_at);
            self.byte_at += bytes;
            count -= bytes;
            if count == 0 {
                break;
            }
            let (_, Piece::Memory(piece)) = &self.current.pieces[self.piece] else {
                unreachable!("what was gathered ends before a pipe");
            };
            let len = piece.len();
            let taken = count.min(len - self.piece_at);
            self.piece_at += taken;
            count -= taken;
            if self.piece_at == len {
                self.piece_done();
            }
        }
    }

    /// What was sent goes back to its owner at once: behind it may be more, which the peer does not take.
    fn piece_done(&mut self) {
        self.current.pieces[self.piece].1 = Piece::Memory(SharedBuf::default());
        self.piece += 1;
        self.piece_at = 0;
    }
}

/// Moves bytes from a pipe into the socket; registers the task when it takes none.
fn poll_pipe(cx: &mut Context<'_>, stream: &TcpStream, pipe: &mut Pipe, more: bool) -> Poll<io::Result<usize>> {
    loop {
        std::task::ready!(stream.poll_write_ready(cx))?;
        match stream.try_io(Interest::WRITABLE, || pipe.send(stream, more)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            outcome => return Poll::Ready(outcome),
        }
    }
}
