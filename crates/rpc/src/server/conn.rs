//! [`Conn`]: one connection of a server, as one task that reads, dispatches and writes.
//!
//! A round is: at most one socket read, all frames of it dispatched, then one write of everything that was answered
//! meanwhile. Rounds repeat while there is progress.
//!
//! Invariants owned here: nothing is dispatched before the hello was accepted; no more than `in_flight_max` requests
//! are unanswered, and nothing is read while more than `out_queue_max` bytes wait to be written; whatever the peer
//! sends or fails to send costs this connection only.

mod hello;

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use cairn_env::buf::{Acquire, BufError};
use cairn_wire::Opcode;
use cairn_wire::frame::{CallHeader, FrameHeader, OPCODE_HELLO};
use cairn_wire::hello::PeerKind;

use super::accounts::{Part, Tab};
use super::admission::Admission;
use super::plain;
use super::progress::{PROGRESS_BYTES, Progress};
use super::recorder::wall;
use super::reply::{Eviction, Reply, ReplySink};
use super::seats::Seat;
use super::shares::{Held, Share, Taking};
use super::stats::{CloseReason, add};
use super::{PeerInfo, Request, ServerShared};
use crate::out::Writer;
use crate::reader::{Next, Reader};
use crate::stream::Stream;
use crate::watch::Watch;

/// The buffer of a connection with many small requests; what is more counts.
const READ_FREE: usize = 64 << 10;
/// A connection that waits for others of its own looks again so often.
const CROWD_PAUSE: Duration = Duration::from_millis(100);
/// Rounds in a row before other connections of the thread get their turn.
const ROUNDS_MAX: usize = 8;

enum Phase {
    /// The hello has not come yet; `full`: that of a client is answered with an error, for there are too many
    /// connections.
    Hello {
        full: bool,
    },
    Serving(Arc<PeerInfo>, Admission),
    /// Only what is queued is still written.
    Closing(CloseReason),
}

/// A peer that does not take all that waits for it: [`PROGRESS_BYTES`] of it have to go in each span. Somebody who
/// takes a few bytes now and then would hold the memory of the rest for ever.
struct Stalled {
    since: Instant,
    written: usize,
}

/// Why the connection ends, with the text for the log.
struct Closed(CloseReason, String);

pub(crate) struct Conn {
    shared: Arc<ServerShared>,
    sink: Arc<ReplySink>,
    stream: Stream,
    addr: SocketAddr,
    phase: Phase,
    reader: Reader,
    writer: Writer,
    watch: Watch,
    /// Its place among all connections, and the share of its address of the memory for payloads.
    seat: Seat,
    share: Arc<Share>,
    /// Where its messages count, and what of them is read in part and is being written.
    tab: Arc<Tab>,
    incoming: Part,
    writing: Part,
    /// Of the share, while a payload is being received; and the wait for it.
    held: Option<Held>,
    sharing: Option<Taking>,
    /// The wait for a payload buffer.
    acquiring: Option<Acquire>,
    /// Requests handed to the service, and those of them that were finished when last looked.
    dispatched: u64,
    finished: u64,
    /// Reading waits for requests to be finished or answers to be written; or for other connections of its own.
    blocked: bool,
    crowded: bool,
    stopping: bool,
    evicted: Eviction,
    opened: Instant,
    received: Instant,
    /// Since when which frame is incomplete.
    partial: Option<(u64, Instant)>,
    progress: Progress,
    /// Since when the peer has not taken enough of what waits for it.
    write_stalled: Option<Stalled>,
    /// Why a `Closing` connection closes.
    text: String,
    /// For the request log, not handed on yet; and when the bytes that are dispatched were received, as the log tells
    /// time.
    records: Vec<u8>,
    received_wall: u64,
}

impl Conn {
    pub(crate) fn new(
        shared: Arc<ServerShared>,
        sink: Arc<ReplySink>,
        mut stream: Stream,
        addr: SocketAddr,
        full: bool,
    ) -> Self {
        let now = Instant::now();
        let (sealer, opener) = stream.take_keys();
        sink.lock().out.seal_with(sealer);
        let tab = sink.tab().clone();
        let who = shared.accounts.at(addr.ip());
        let (seat, share) = (shared.seats.enter((addr.ip(), who), &sink), shared.shares.of(addr.ip()));
        let (incoming, writing) = (Part::with_free(&tab, READ_FREE), Part::new(&tab));
        Self {
            shared,
            sink,
            stream,
            addr,
            phase: Phase::Hello { full },
            reader: Reader::new(opener),
            writer: Writer::default(),
            watch: Watch::default(),
            seat,
            share,
            tab,
            incoming,
            writing,
            held: None,
            sharing: None,
            acquiring: None,
            dispatched: 0,
            finished: 0,
            blocked: false,
            crowded: false,
            stopping: false,
            evicted: Eviction::default(),
            opened: now,
            received: now,
            partial: None,
            progress: Progress::default(),
            write_stalled: None,
            text: String::new(),
            records: Vec::new(),
            received_wall: 0,
        }
    }

    /// Serves until the connection ends.
    pub(crate) async fn run(mut self) {
        let Closed(reason, text) = poll_fn(|cx| self.poll(cx)).await;
        let stats = &self.shared.stats;
        stats.count_closed(reason);
        let (peer, kind) = (self.addr, reason.name());
        if !reason.is_noteworthy() {
            tracing::debug!(%peer, reason = kind, cause = text, "connection closed");
        } else if let Some(left_out) = stats.log[reason as usize].pass() {
            tracing::warn!(%peer, reason = kind, cause = text, left_out, "connection refused or cut off");
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Closed> {
        self.enter(cx);
        for _ in 0..ROUNDS_MAX {
            match self.round(cx) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(closed) => return Poll::Ready(closed),
            }
            if let Some(closed) = self.timed_out(cx) {
                return Poll::Ready(closed);
            }
            if self.park() {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// From here on answers need not wake the task: it looks before it sleeps.
    fn enter(&mut self, cx: &mut Context<'_>) {
        let mut queue = self.sink.lock();
        queue.awake = true;
        if !queue.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            queue.waker = Some(cx.waker().clone());
        }
        self.stopping = queue.stopping;
        self.evicted = self.evicted.max(std::mem::take(&mut queue.evicted));
        self.finished = queue.finished;
    }

    fn round(&mut self, cx: &mut Context<'_>) -> Result<bool, Closed> {
        let dispatched = self.dispatched;
        let read = self.read(cx);
        if self.dispatched != dispatched {
            add(&self.shared.stats.requests, self.dispatched - dispatched);
            self.shared.service.batch_end();
        }
        self.hand_on_records();
        let read = read?;
        let wrote = self.write(cx)?;
        let drained = self.writer.pending() == 0 && self.sink.queued() == 0;
        if let Phase::Closing(reason) = self.phase
            && drained
        {
            return Err(Closed(reason, std::mem::take(&mut self.text)));
        }
        // It was told why, if it asked; what it waits for is not for it any more.
        if drained
            && let Phase::Serving(_, admission) = &mut self.phase
            && let Some(why) = admission.ended()
        {
            return Err(Closed(CloseReason::NotAllowed, why.to_owned()));
        }
        if self.stopping && drained && self.in_flight() == 0 {
            return Err(Closed(CloseReason::Shutdown, "the server stops".to_owned()));
        }
        if read || wrote {
            self.seat.used();
        }
        self.make_room(drained)?;
        Ok(read || wrote)
    }

    /// Goes if it was told to and has nothing to do.
    fn make_room(&mut self, drained: bool) -> Result<(), Closed> {
        let idle = drained && self.in_flight() == 0 && self.reader.partial().is_none();
        self.seat.set_idle(idle);
        let evicted = std::mem::take(&mut self.evicted);
        if evicted == Eviction::None {
            return Ok(());
        }
        if matches!(self.phase, Phase::Hello { .. }) {
            let text = "it has said no hello yet, and newer connections do the same";
            return Err(Closed(CloseReason::MadeRoom, text.to_owned()));
        }
        if idle {
            let text = "it asks nothing, and the server has its number of connections";
            return Err(Closed(CloseReason::MadeRoom, text.to_owned()));
        }
        if evicted == Eviction::Now {
            let text = "its key or address has most of the server's connections, and somebody with few needed one";
            return Err(Closed(CloseReason::MadeRoom, text.to_owned()));
        }
        self.seat.stay(&self.sink);
        Ok(())
    }

    fn hand_on_records(&mut self) {
        if let Some(recorder) = &self.sink.recorder
            && !self.records.is_empty()
        {
            recorder.sink.put(&mut self.records);
        }
    }

    fn in_flight(&self) -> usize {
        (self.dispatched - self.finished) as usize
    }

    /// Handles the frames that are there, reading from the socket once. Returns whether anything happened.
    fn read(&mut self, cx: &mut Context<'_>) -> Result<bool, Closed> {
        let (mut progress, mut filled) = (false, false);
        loop {
            let full = self.writer.pending() + self.sink.queued() >= self.shared.config.out_queue_max;
            // Before the hello it counts for its address, which may have many keys.
            self.crowded = matches!(self.phase, Phase::Serving(..)) && self.tab.is_crowded();
            self.blocked = full || self.crowded || self.in_flight() >= self.shared.config.in_flight_max;
            if self.blocked || self.stopping || matches!(self.phase, Phase::Closing(_)) {
                return Ok(progress);
            }
            match self.reader.next().map_err(|e| Closed(CloseReason::BadFrame, e.to_string()))? {
                Next::Frame(header, message, payload) => {
                    progress = true;
                    self.held = None;
                    let Phase::Serving(peer, admission) = &mut self.phase else {
                        let message = message.to_vec();
                        self.hello(&header, &message);
                        continue;
                    };
                    if header.flags.is_response() || header.opcode == OPCODE_HELLO {
                        return Err(Closed(CloseReason::OutOfPlace, "an answer or a second hello".to_owned()));
                    }
                    let (call, message) =
                        CallHeader::split(message).map_err(|e| Closed(CloseReason::BadFrame, e.to_string()))?;
                    let FrameHeader { opcode, request_id, flags, .. } = header;
                    let (oneway, received) = (flags.is_oneway(), self.received);
                    self.dispatched += 1;
                    if let Some(recorder) = &self.sink.recorder {
                        let of_server = peer.hello.kind == PeerKind::Server;
                        recorder.asked((self.received_wall, of_server), &header, &call, message, &mut self.records);
                    }
                    let traced = (call.trace_id, received);
                    let reply = Reply::new(self.sink.clone(), request_id, opcode, oneway, traced);
                    if let Some(error) = admission.refusal(opcode) {
                        if let Some(opcode) = Opcode::from_code(opcode) {
                            peer.note_refusal(opcode, &error);
                        }
                        reply.err(error);
                        continue;
                    }
                    if let Some(sink) = peer.audit.sink()
                        && let Some(opcode) = Opcode::from_code(opcode).filter(|opcode| sink.heeds(*opcode))
                    {
                        sink.asked(peer, opcode, message);
                    }
                    let request = Request { opcode, message, payload, call, oneway, received, peer };
                    self.shared.service.call(request, reply);
                }
                Next::NeedBuf(header) => {
                    if !self.payload_buffer(&header, cx)? {
                        return Ok(progress);
                    }
                }
                Next::More if filled => return Ok(progress),
                Next::More => match self.reader.fill(cx, &mut self.stream) {
                    Poll::Ready(Ok(0)) => return Err(Closed(CloseReason::PeerClosed, String::new())),
                    Poll::Ready(Ok(count)) => {
                        self.note_received(count)?;
                        (progress, filled) = (true, true);
                    }
                    Poll::Ready(Err(e)) => return Err(Closed(CloseReason::Io, e.to_string())),
                    Poll::Pending => return Ok(progress),
                },
            }
        }
    }

    fn note_received(&mut self, count: usize) -> Result<(), Closed> {
        add(&self.shared.stats.bytes_in, count as u64);
        self.received = Instant::now();
        if self.sink.recorder.is_some() {
            self.received_wall = wall();
        }
        if self.incoming.set(self.reader.buffered()) {
            return Ok(());
        }
        let text = "too much that came in part is kept for its key or address";
        Err(Closed(CloseReason::MemoryFull, text.to_owned()))
    }

    /// Gives the reader a buffer for a payload. `false`: the pool is empty, the task is woken when it is not.
    fn payload_buffer(&mut self, header: &FrameHeader, cx: &mut Context<'_>) -> Result<bool, Closed> {
        let len = header.payload_len as usize;
        if !self.take_share(len, cx) {
            return Ok(false);
        }
        let result = match &mut self.acquiring {
            None => match self.shared.config.pool.try_take(len) {
                Err(BufError::Exhausted { .. }) => {
                    let acquire = self.acquiring.insert(self.shared.config.pool.take(len));
                    Pin::new(acquire).poll(cx)
                }
                result => Poll::Ready(result),
            },
            Some(acquire) => Pin::new(acquire).poll(cx),
        };
        match result {
            Poll::Pending => Ok(false),
            Poll::Ready(Ok(buf)) => {
                self.acquiring = None;
                self.reader.give(buf);
                Ok(true)
            }
            Poll::Ready(Err(e)) => Err(Closed(CloseReason::NoBuffers, e.to_string())),
        }
    }

    /// The payload's part of what its address may hold. `false`: the task is woken when there is room.
    fn take_share(&mut self, len: usize, cx: &mut Context<'_>) -> bool {
        if self.held.is_none() && self.sharing.is_none() {
            self.held = self.share.try_take(len);
        }
        if self.held.is_some() {
            return true;
        }
        let share = &self.share;
        match self.sharing.get_or_insert_with(|| share.take(len)).poll(cx) {
            Poll::Ready(held) => {
                (self.sharing, self.held) = (None, Some(held));
                true
            }
            Poll::Pending => false,
        }
    }

    /// Writes what was answered. Returns whether the socket took all of something.
    fn write(&mut self, cx: &mut Context<'_>) -> Result<bool, Closed> {
        {
            let mut queue = self.sink.lock();
            self.finished = queue.finished;
            self.stopping = queue.stopping;
            if queue.overflow {
                let text = format!(
                    "{} bytes of its answers are unread, and {} of all",
                    queue.out.len(),
                    self.shared.accounts.held()
                );
                return Err(Closed(CloseReason::OutQueueFull, text));
            }
            if self.writer.pending() == 0 && !queue.out.is_empty() {
                self.sink.drain_into(&mut queue, &mut self.writer);
                self.writing.set(self.writer.owned());
            }
            std::mem::swap(&mut queue.records, &mut self.records);
        }
        self.hand_on_records();
        if self.writer.pending() == 0 {
            return Ok(false);
        }
        let flushed = self.writer.flush(cx, &mut self.stream).map_err(|e| Closed(CloseReason::Io, e.to_string()))?;
        add(&self.shared.stats.bytes_out, flushed.written as u64);
        if flushed.done {
            self.writing.set(0);
            self.write_stalled = None;
        } else {
            let stalled = self.write_stalled.get_or_insert_with(|| Stalled { since: Instant::now(), written: 0 });
            stalled.written += flushed.written;
            if stalled.written >= PROGRESS_BYTES {
                *stalled = Stalled { since: Instant::now(), written: 0 };
            }
        }
        Ok(flushed.done)
    }

    /// Arms the timer for whatever can time out, and says what has.
    fn timed_out(&mut self, cx: &mut Context<'_>) -> Option<Closed> {
        let now = Instant::now();
        let waiting_for_us = self.acquiring.is_some() || self.sharing.is_some() || self.blocked;
        self.progress.note(if waiting_for_us { None } else { self.reader.payload_received() }, now);
        match self.reader.partial() {
            Some(frame) if !waiting_for_us => {
                if self.partial.is_none_or(|(of, _)| of != frame) {
                    self.partial = Some((frame, now));
                }
            }
            _ => self.partial = None,
        }
        loop {
            let (next, reason) = self.next_timeout()?;
            if !self.watch.poll(cx, Some(next)) {
                return None;
            }
            if let Some(reason) = reason
                && Instant::now() >= next
            {
                let text = match reason {
                    CloseReason::WriteTimeout => "the peer does not read its answers",
                    CloseReason::PayloadStalled => "the payload came too slowly to keep its buffer",
                    _ => "the peer did not send the rest in time",
                };
                return Some(Closed(reason, text.to_owned()));
            }
        }
    }

    /// `None` as a reason: then is the time to look again, for others may have come to wait meanwhile.
    fn next_timeout(&self) -> Option<(Instant, Option<CloseReason>)> {
        let config = &self.shared.config;
        let hello = matches!(self.phase, Phase::Hello { .. })
            .then_some((self.opened + config.hello_timeout, Some(CloseReason::HelloTimeout)));
        let frame = self.partial.map(|(_, since)| (since + config.frame_timeout, Some(CloseReason::FrameTimeout)));
        let write = self
            .write_stalled
            .as_ref()
            .map(|stalled| (stalled.since + config.write_timeout, Some(CloseReason::WriteTimeout)));
        let contended =
            self.progress.ends(Duration::ZERO).is_some() && (self.share.is_contended() || config.pool.is_contended());
        let span = if contended { config.payload_stall_contended } else { config.payload_stall };
        let payload = self.progress.ends(span).map(|at| (at, Some(CloseReason::PayloadStalled)));
        let look = payload.map(|_| (Instant::now() + config.payload_stall_contended, None));
        let crowd = self.crowded.then(|| (Instant::now() + CROWD_PAUSE, None));
        [hello, frame, write, payload, look, crowd].into_iter().flatten().min_by_key(|(at, _)| *at)
    }

    /// Whether the task may sleep; from then on an answer wakes it, unless it waits for the socket to take more.
    fn park(&mut self) -> bool {
        let writing = self.writer.pending() > 0;
        let mut queue = self.sink.lock();
        let counting = self.blocked || self.stopping;
        let news = queue.stopping != self.stopping
            || queue.evicted != Eviction::None
            || queue.overflow
            || (!writing && !queue.out.is_empty())
            || (counting && queue.finished != self.finished);
        if news {
            return false;
        }
        queue.counting = counting;
        queue.awake = writing;
        true
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        if let Phase::Serving(peer, _) = &self.phase
            && peer.holder.is_none()
        {
            self.shared.stats.connections_plain.fetch_sub(1, Relaxed);
            if self.shared.identity.tls().is_some() {
                self.shared.plain.leave(&plain::name_of(self.addr.ip(), &peer.hello));
            }
        }
        let unsent = {
            let mut queue = self.sink.lock();
            queue.closed = true;
            queue.waker = None;
            // Replies that come later hold the queue, and nothing of it any more.
            queue.forget_counted();
            self.records.append(&mut queue.records);
            std::mem::take(&mut queue.out)
        };
        self.hand_on_records();
        drop(unsent);
    }
}
