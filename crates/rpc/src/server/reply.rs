//! [`Reply`]: the right and the duty to answer one request, from any thread; [`ReplyBatch`]: many at once.
//!
//! Invariants owned here: each request with an answer gets exactly one (dropping the handle answers with an internal
//! error); a connection's task is woken once for all answers that are given before it runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::Waker;
use std::time::Instant;

use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::frame::Flags;
use parking_lot::Mutex;
use prost::Message;

use super::accounts::{Part, Tab};
use super::recorder::Recorder;
use super::stats::ServerStats;
use crate::hub::Hub;
use crate::out::{OutBuf, Writer};
use crate::payload::Payload;

/// The part of a connection that answers reach from other threads.
pub(crate) struct ReplySink {
    queue: Mutex<Queue>,
    hub: Arc<Hub>,
    stats: Arc<ServerStats>,
    hard_max: usize,
    /// Mirror of `queue.out.len()`, so that the connection can look at it after each request without the lock.
    queued: AtomicUsize,
    tab: Arc<Tab>,
    pub(crate) recorder: Option<Recorder>,
}

/// Whether a connection is to make room for others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(crate) enum Eviction {
    #[default]
    None,
    /// Unless it has something to do.
    IfIdle,
    Now,
}

/// Guarded by the sink's lock.
pub(crate) struct Queue {
    pub(crate) out: OutBuf,
    /// What of it counts for all of the same key.
    counted: Part,
    /// Requests that were finished since the connection was opened.
    pub(crate) finished: u64,
    /// The connection's task runs, will run, or needs no waking.
    pub(crate) awake: bool,
    /// The connection is gone: answers are dropped.
    pub(crate) closed: bool,
    /// More waits than the peer may leave unread.
    pub(crate) overflow: bool,
    pub(crate) stopping: bool,
    pub(crate) evicted: Eviction,
    /// The sleeping task waits for requests to be finished, answered or not.
    pub(crate) counting: bool,
    pub(crate) waker: Option<Waker>,
    /// Of answers, for the request log; as many as requests may be in the works, at most.
    pub(crate) records: Vec<u8>,
}

impl ReplySink {
    pub(crate) fn new(
        hub: Arc<Hub>,
        stats: Arc<ServerStats>,
        hard_max: usize,
        recorder: Option<Recorder>,
        tab: Arc<Tab>,
    ) -> Arc<Self> {
        let queue = Queue {
            out: OutBuf::default(),
            counted: Part::new(&tab),
            finished: 0,
            awake: true,
            closed: false,
            overflow: false,
            stopping: false,
            evicted: Eviction::default(),
            counting: false,
            waker: None,
            records: Vec::new(),
        };
        let queued = AtomicUsize::new(0);
        Arc::new(Self { queue: Mutex::new(queue), hub, stats, hard_max, queued, tab, recorder })
    }

    pub(crate) fn lock(&self) -> parking_lot::MutexGuard<'_, Queue> {
        self.queue.lock()
    }

    /// Bytes of answers that the connection has not taken over yet.
    pub(crate) fn queued(&self) -> usize {
        self.queued.load(Relaxed)
    }

    /// Hands the waiting answers to a writer with nothing pending.
    pub(crate) fn drain_into(&self, queue: &mut Queue, writer: &mut Writer) {
        writer.take(&mut queue.out);
        queue.counted.set(0);
        self.queued.store(0, Relaxed);
    }

    /// Tells the connection to finish what is in the works and to close.
    pub(crate) fn stop(&self) {
        self.tell(|queue| queue.stopping = true);
    }

    /// Has the connection make room for others.
    pub(crate) fn evict(&self, how: Eviction) {
        self.tell(|queue| queue.evicted = queue.evicted.max(how));
    }

    /// Where the connection's messages count.
    pub(crate) fn tab(&self) -> &Arc<Tab> {
        &self.tab
    }

    /// Has the connection look whether its key still counts.
    pub(crate) fn look(&self) {
        self.tell(|_| {});
    }

    fn tell(&self, what: impl FnOnce(&mut Queue)) {
        let waker = {
            let mut queue = self.queue.lock();
            what(&mut queue);
            queue.awake = true;
            queue.waker.clone()
        };
        if let Some(waker) = waker {
            self.hub.wake(waker);
        }
    }

    /// Queues an answer and returns whom to wake for it.
    fn finish(
        &self,
        id: &RequestId,
        flags: Flags,
        error: u16,
        payload: Payload,
        fill: impl FnOnce(&mut Vec<u8>),
    ) -> Option<Waker> {
        if !id.oneway {
            self.stats.latency.answered(id.opcode, id.received.elapsed());
        }
        let mut queue = self.queue.lock();
        queue.finished += 1;
        if queue.closed {
            return None;
        }
        let (mut length, data) = (0, payload.len());
        let fill = |out: &mut Vec<u8>| {
            let before = out.len();
            fill(out);
            length = out.len() - before;
        };
        if id.oneway || queue.overflow {
            self.record(&mut queue, id, error, (0, 0));
            return if queue.counting { queue.rouse() } else { None };
        }
        let pushed = queue.out.push(flags, id.opcode, id.request_id, payload, fill);
        let error = if pushed.is_err() { ErrorCode::Internal.code() } else { error };
        self.record(&mut queue, id, error, (length, data));
        if let Err(error) = pushed {
            self.stats.error_answers.fetch_add(1, Relaxed);
            let text = format!("the answer to operation {:#06x} does not fit a frame: {error}", id.opcode);
            let info = WireError::new(ErrorCode::Internal, text).to_info();
            let pushed =
                queue.out.push(Flags::ERROR, id.opcode, id.request_id, Payload::None, |out| encode(&info, out));
            pushed.expect("a short error text fits a frame");
        }
        self.queued.store(queue.out.len(), Relaxed);
        let owned = queue.out.owned_len();
        if (!queue.counted.set(owned) || owned > self.hard_max) && !queue.overflow {
            // Now, even if the task waits for the socket, for that is not going to happen.
            queue.overflow = true;
            queue.awake = false;
        }
        queue.rouse()
    }

    fn record(&self, queue: &mut Queue, id: &RequestId, error: u16, lengths: (usize, usize)) {
        if let Some(recorder) = &self.recorder {
            recorder.answered(id.request_id, id.opcode, error, lengths, &mut queue.records);
        }
    }
}

impl Queue {
    /// What waited counts no more: the connection has ended.
    pub(crate) fn forget_counted(&mut self) {
        self.counted.set(0);
    }

    fn rouse(&mut self) -> Option<Waker> {
        if self.awake {
            return None;
        }
        self.awake = true;
        self.waker.clone()
    }
}

/// Appends the protobuf bytes of `message`.
pub(crate) fn encode(message: &impl Message, out: &mut Vec<u8>) {
    message.encode(out).expect("a Vec grows as needed");
}

struct RequestId {
    request_id: u64,
    opcode: u16,
    oneway: bool,
    trace_id: u64,
    received: Instant,
}

/// Hears how a request was answered, before the answer is on its way. Must not block.
pub type Outcome = Box<dyn FnOnce(Result<(), &WireError>) + Send>;

/// The right and the duty to answer one request. Dropped unanswered, it answers with an internal error (of a one-way
/// request, dropping it is how it is finished).
pub struct Reply {
    /// `None` once answered.
    sink: Option<Arc<ReplySink>>,
    id: RequestId,
    /// One pointer: a handle is handed back with an error where a request is refused.
    outcome: Option<Box<Outcome>>,
}

impl Reply {
    pub(crate) fn new(
        sink: Arc<ReplySink>,
        request_id: u64,
        opcode: u16,
        oneway: bool,
        (trace_id, received): (u64, Instant),
    ) -> Self {
        Self { sink: Some(sink), id: RequestId { request_id, opcode, oneway, trace_id, received }, outcome: None }
    }

    /// Has `outcome` told how the request is answered, whoever does it.
    pub fn on_outcome(&mut self, outcome: Outcome) {
        self.outcome = Some(Box::new(outcome));
    }

    /// Answers with a message and a payload.
    pub fn ok(self, message: &impl Message, payload: impl Into<Payload>) {
        self.ok_with(|out| encode(message, out), payload);
    }

    /// Answers with a message that `fill` appends, already encoded, and a payload.
    pub fn ok_with(self, fill: impl FnOnce(&mut Vec<u8>), payload: impl Into<Payload>) {
        self.finish(Flags::RESPONSE, 0, payload.into(), fill, None);
    }

    /// Answers with an error.
    pub fn err(self, error: WireError) {
        self.err_in(error, None);
    }

    /// Answers with what a computation came to.
    pub fn result<M: Message>(self, result: Result<M, WireError>) {
        match result {
            Ok(message) => self.ok(&message, Payload::None),
            Err(error) => self.err(error),
        }
    }

    fn err_in(mut self, error: WireError, batch: Option<&mut ReplyBatch>) {
        if let Some(outcome) = self.outcome.take() {
            outcome(Err(&error));
        }
        let name = Opcode::from_code(self.id.opcode).map_or("unknown", Opcode::name);
        let trace = format_args!("{:016x}", self.id.trace_id);
        tracing::debug!(%trace, operation = name, %error, "answered with an error");
        let info = error.to_info();
        self.finish(Flags::ERROR, error.code.code(), Payload::None, |out| encode(&info, out), batch);
    }

    fn finish(
        mut self,
        flags: Flags,
        error: u16,
        payload: Payload,
        fill: impl FnOnce(&mut Vec<u8>),
        batch: Option<&mut ReplyBatch>,
    ) {
        let sink = self.sink.take().expect("a reply is consumed by its answer");
        if let Some(outcome) = self.outcome.take() {
            outcome(Ok(()));
        }
        if flags.is_error() {
            sink.stats.error_answers.fetch_add(1, Relaxed);
        }
        let Some(waker) = sink.finish(&self.id, flags, error, payload, fill) else { return };
        match batch {
            Some(batch) => batch.add(&sink.hub, waker),
            None => sink.hub.wake(waker),
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        let Some(sink) = self.sink.take() else { return };
        if self.id.oneway {
            if let Some(waker) = sink.finish(&self.id, Flags::RESPONSE, 0, Payload::None, |_| ()) {
                sink.hub.wake(waker);
            }
            return;
        }
        let text = format!("operation {:#06x} was dropped by the server without an answer", self.id.opcode);
        let error = WireError::new(ErrorCode::Internal, text);
        if let Some(outcome) = self.outcome.take() {
            outcome(Err(&error));
        }
        let info = error.to_info();
        sink.stats.error_answers.fetch_add(1, Relaxed);
        let code = ErrorCode::Internal.code();
        if let Some(waker) = sink.finish(&self.id, Flags::ERROR, code, Payload::None, |out| encode(&info, out)) {
            sink.hub.wake(waker);
        }
    }
}

/// Answers many requests and wakes each runtime thread concerned once, when it is flushed or dropped.
#[derive(Default)]
pub struct ReplyBatch {
    /// By thread; a handful.
    wakers: Vec<(Arc<Hub>, Vec<Waker>)>,
}

impl ReplyBatch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// As [`Reply::ok`].
    pub fn ok(&mut self, reply: Reply, message: &impl Message, payload: impl Into<Payload>) {
        self.ok_with(reply, |out| encode(message, out), payload);
    }

    /// As [`Reply::ok_with`].
    pub fn ok_with(&mut self, reply: Reply, fill: impl FnOnce(&mut Vec<u8>), payload: impl Into<Payload>) {
        reply.finish(Flags::RESPONSE, 0, payload.into(), fill, Some(self));
    }

    /// As [`Reply::err`].
    pub fn err(&mut self, reply: Reply, error: WireError) {
        reply.err_in(error, Some(self));
    }

    /// As [`Reply::result`].
    pub fn result<M: Message>(&mut self, reply: Reply, result: Result<M, WireError>) {
        match result {
            Ok(message) => self.ok(reply, &message, Payload::None),
            Err(error) => self.err(reply, error),
        }
    }

    fn add(&mut self, hub: &Arc<Hub>, waker: Waker) {
        match self.wakers.iter_mut().find(|(of, _)| Arc::ptr_eq(of, hub)) {
            Some((_, wakers)) => wakers.push(waker),
            None => self.wakers.push((hub.clone(), vec![waker])),
        }
    }

    /// Sends the answers given so far on their way; the batch can go on to be used.
    pub fn flush(&mut self) {
        for (hub, wakers) in &mut self.wakers {
            if !wakers.is_empty() {
                hub.wake_all(wakers.drain(..));
            }
        }
    }
}

impl Drop for ReplyBatch {
    fn drop(&mut self) {
        self.flush();
    }
}
