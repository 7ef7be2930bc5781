//! The task of one client connection: connects, says hello, then reads and writes in rounds like a server's.
//!
//! Invariant: whatever ends the task, even the end of its runtime, the link's calls get their outcome ([`Guard`]).

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use cairn_env::buf::{Acquire, BufError};
use cairn_wire::common::ErrorInfo;
use cairn_wire::error::WireError;
use cairn_wire::frame::FrameHeader;
use prost::Message;

use super::Response;
use super::error::{CallError, NotSent, Unknown};
use super::link::Link;
use super::slots::Notify;
use crate::connection::{Handshaken, connect};
use crate::out::Writer;
use crate::reader::{Next, Reader};
use crate::stream::Stream;
use crate::watch::Watch;

/// Rounds in a row before other tasks of the thread get their turn.
const ROUNDS_MAX: usize = 8;

/// Holds the link while its task lives, and settles its calls when the task ends in whatever way.
pub(crate) struct Guard {
    link: Arc<Link>,
    /// Bytes that the kernel took on this connection.
    written: u64,
    settled: bool,
}

impl Guard {
    pub(crate) fn new(link: Arc<Link>) -> Self {
        Self { link, written: 0, settled: false }
    }

    fn settle(&mut self, why: &str) {
        self.settled = true;
        self.link.disconnected(self.written, why);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.settled {
            self.settle("the client's runtime ended");
        }
    }
}

/// Runs one connection from the first attempt to its end.
pub(crate) async fn run(mut guard: Guard) {
    let link = guard.link.clone();
    match connecting(&link).await {
        Ok(mut shaken) => {
            tracing::debug!(addr = link.addr(), "connected");
            link.up(shaken.hello.clone(), shaken.stream.holder(), shaken.sealer.take());
            let why = Driver::new(&mut guard, shaken).run().await;
            match why {
                End::Retired => guard.settled = true,
                End::Broken(why) => {
                    tracing::debug!(addr = link.addr(), cause = why, "disconnected");
                    guard.settle(&why);
                }
            }
        }
        Err(Some(cause)) => {
            tracing::debug!(addr = link.addr(), %cause, "cannot connect");
            guard.settled = true;
            link.connect_failed(cause);
        }
        Err(None) => guard.settle("the client was closed"),
    }
}

/// Connects while deadlines of queued calls go on to hold. `Err(None)`: the client was closed.
async fn connecting(link: &Arc<Link>) -> Result<Handshaken, Option<NotSent>> {
    let limit = link.config().connect_timeout;
    let mut attempt = pin!(tokio::time::timeout(limit, connect(link.addr(), link.identity(), link.needed())));
    let mut watch = Watch::default();
    poll_fn(|cx| {
        link.enter(cx);
        if let Poll::Ready(result) = attempt.as_mut().poll(cx) {
            let late = |_| {
                let why = format!("no connection within {limit:?}");
                NotSent::Connect { why, retry_in: limit }
            };
            return Poll::Ready(result.map_err(late).flatten().map_err(Some));
        }
        link.expire(cx, &mut watch, None);
        if link.park(false) { Poll::Pending } else { Poll::Ready(Err(None)) }
    })
    .await
}

enum End {
    /// Nothing had been asked for a long time; the link knows.
    Retired,
    Broken(String),
}

struct Driver<'a> {
    guard: &'a mut Guard,
    link: Arc<Link>,
    stream: Stream,
    reader: Reader,
    writer: Writer,
    watch: Watch,
    acquiring: Option<Acquire>,
    answers: Vec<(u64, Result<Response, CallError>)>,
    notify: Vec<Notify>,
    waiting: usize,
    last_used: Instant,
    partial: Option<(u64, Instant)>,
    write_stalled: Option<Instant>,
}

impl<'a> Driver<'a> {
    fn new(guard: &'a mut Guard, shaken: Handshaken) -> Self {
        let Handshaken { stream, reader, .. } = shaken;
        Self {
            link: guard.link.clone(),
            guard,
            stream,
            reader,
            writer: Writer::default(),
            watch: Watch::default(),
            acquiring: None,
            answers: Vec::new(),
            notify: Vec::new(),
            waiting: 0,
            last_used: Instant::now(),
            partial: None,
            write_stalled: None,
        }
    }

    async fn run(mut self) -> End {
        poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        self.link.enter(cx);
        for _ in 0..ROUNDS_MAX {
            match self.round(cx) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(end) => return Poll::Ready(end),
            }
            if let Some(end) = self.timed_out(cx) {
                return Poll::Ready(end);
            }
            if self.link.park(self.writer.pending() > 0) {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn round(&mut self, cx: &mut Context<'_>) -> Result<bool, End> {
        let read = self.read(cx);
        // Answers that came before the connection broke count.
        let answered = !self.answers.is_empty();
        if answered {
            self.link.complete(&mut self.answers, &mut self.notify);
        }
        let read = read.map_err(End::Broken)?;
        let wrote = self.write(cx)?;
        if read || wrote {
            self.last_used = Instant::now();
        }
        Ok(read || wrote)
    }

    fn read(&mut self, cx: &mut Context<'_>) -> Result<bool, String> {
        let (mut progress, mut filled) = (false, false);
        loop {
            match self.reader.next().map_err(|e| e.to_string())? {
                Next::Frame(header, message, payload) => {
                    progress = true;
                    if !header.flags.is_response() {
                        return Err("the server sent a request".to_owned());
                    }
                    let outcome = if header.flags.is_error() {
                        Err(remote_error(self.link.addr(), message))
                    } else {
                        Ok(Response { message: Bytes::copy_from_slice(message), payload })
                    };
                    self.answers.push((header.request_id, outcome));
                }
                Next::NeedBuf(header) => {
                    if !self.payload_buffer(&header, cx)? {
                        return Ok(progress);
                    }
                }
                Next::More if filled => return Ok(progress),
                Next::More => match self.reader.fill(cx, &mut self.stream) {
                    Poll::Ready(Ok(0)) => return Err("the server closed the connection".to_owned()),
                    Poll::Ready(Ok(_)) => (progress, filled) = (true, true),
                    Poll::Ready(Err(e)) => return Err(e.to_string()),
                    Poll::Pending => return Ok(progress),
                },
            }
        }
    }

    /// Finds a place for a payload. `false`: the pool is empty, the task is woken when it is not.
    fn payload_buffer(&mut self, header: &FrameHeader, cx: &mut Context<'_>) -> Result<bool, String> {
        let len = header.payload_len as usize;
        let pool = &self.link.config().pool;
        let result = match &mut self.acquiring {
            Some(acquire) => Pin::new(acquire).poll(cx),
            None => match self.link.payload_target(header.request_id, len) {
                None => {
                    self.reader.discard();
                    return Ok(true);
                }
                Some(Some(mut own)) => {
                    own.clear();
                    Poll::Ready(Ok(own))
                }
                Some(None) => match pool.try_take(len) {
                    Err(BufError::Exhausted { .. }) => Pin::new(self.acquiring.insert(pool.take(len))).poll(cx),
                    result => Poll::Ready(result),
                },
            },
        };
        match result {
            Poll::Pending => Ok(false),
            Poll::Ready(Ok(buf)) => {
                self.acquiring = None;
                self.reader.give(buf);
                Ok(true)
            }
            Poll::Ready(Err(e)) => Err(e.to_string()),
        }
    }

    fn write(&mut self, cx: &mut Context<'_>) -> Result<bool, End> {
        let view = self.link.feed(&mut self.writer);
        self.waiting = view.waiting;
        if view.closed {
            return Err(End::Broken("the client was closed".to_owned()));
        }
        if view.revoked {
            return Err(End::Broken("the key of the server was revoked".to_owned()));
        }
        if self.writer.pending() == 0 {
            return Ok(false);
        }
        let unsent = self.writer.unsent();
        let result = self.writer.flush(cx, &mut self.stream);
        self.guard.written += (unsent - self.writer.unsent()) as u64;
        let flushed = result.map_err(|e| End::Broken(e.to_string()))?;
        if flushed.done {
            self.write_stalled = None;
        } else if flushed.written > 0 || self.write_stalled.is_none() {
            self.write_stalled = Some(Instant::now());
        }
        Ok(flushed.done)
    }

    /// Gives expired calls their outcome, arms the timer, and says whether the connection has to end.
    fn timed_out(&mut self, cx: &mut Context<'_>) -> Option<End> {
        match self.reader.partial() {
            Some(frame) if self.acquiring.is_none() => {
                if self.partial.is_none_or(|(of, _)| of != frame) {
                    self.partial = Some((frame, Instant::now()));
                }
            }
            _ => self.partial = None,
        }
        let config = self.link.config();
        let frame = self.partial.map(|(_, since)| (since + config.frame_timeout, Some("an answer stopped half-way")));
        let write = self.write_stalled.map(|since| (since + config.write_timeout, Some("the server does not read")));
        let idle = (self.waiting == 0).then(|| (self.last_used + config.idle_timeout, None));
        let (at, why) = [frame, write, idle].into_iter().flatten().min_by_key(|(at, _)| *at).unzip();
        if !self.link.expire(cx, &mut self.watch, at) {
            return None;
        }
        match why.flatten() {
            Some(why) => Some(End::Broken(why.to_owned())),
            None if self.link.retire() => Some(End::Retired),
            None => {
                self.last_used = Instant::now();
                None
            }
        }
    }
}

fn remote_error(addr: &str, message: &[u8]) -> CallError {
    match ErrorInfo::decode(message) {
        Ok(info) => CallError::Remote(WireError::from_info(info)),
        Err(e) => CallError::unknown(addr, Unknown::BadAnswer { why: e.to_string() }),
    }
}
