//! [`Link`]: one connection to one address, made when it is needed and made again when it broke.
//!
//! Callers encode their requests into the link's buffer under its lock; the connection's task (`driver.rs`) writes
//! them, reads answers and sets outcomes. While there is no connection yet, or too much is in flight, requests queue in
//! the order in which they were made.
//!
//! Invariants owned here: a call is `NotSent` only if its last byte was never handed to the kernel and never will be;
//! every call gets its outcome by its deadline or when the connection ends, whatever becomes of the task.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use cairn_env::buf::AlignedBuf;
use cairn_security::Sealer;
use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::audience::Caller;
use cairn_wire::error::WireError;
use cairn_wire::frame::{CallHeader, Flags, FrameError, begin_frame, finish_frame};
use cairn_wire::hello::Hello;
use cairn_wire::holder::Holder;
use cairn_wire::protection::Protection;
use parking_lot::{Mutex, MutexGuard};
use prost::Message;

use super::call::Call;
use super::driver;
use super::error::{CallError, NotSent, SendError, Unknown};
use super::slots::{Listener, Notify, Outcome, Slots, Then, Waiting};
use super::{CallOptions, Response};
use crate::config::ClientConfig;
use crate::hub::Hub;
use crate::identity::Identity;
use crate::out::{OutBuf, Writer};
use crate::payload::Payload;
use crate::watch::Watch;

enum Phase {
    /// No connection and no task.
    Idle,
    Connecting,
    Up,
    /// The last attempt failed; none is made before the time.
    Backoff(Instant, NotSent),
    Closed,
}

/// A request before the stream.
struct Queued {
    /// `None`: one-way.
    id: Option<u64>,
    head: Vec<u8>,
    payload: Payload,
}

impl Queued {
    fn len(&self) -> usize {
        self.head.len() + self.payload.len()
    }
}

struct State {
    phase: Phase,
    /// Attempts to connect that failed since the last one that did not.
    failures: u32,
    out: OutBuf,
    /// Position in the connection's byte stream behind `out`.
    end: u64,
    slots: Slots,
    queue: VecDeque<Queued>,
    queue_bytes: usize,
    /// The task runs or will run.
    awake: bool,
    waker: Option<Waker>,
    /// No call's deadline is earlier.
    next_deadline: Option<Instant>,
    hello: Option<Hello>,
    /// Whose key the server showed.
    server: Option<Holder>,
    /// Of the list of revoked keys, when that one was last looked up there; 0: it was not.
    listed: u64,
    revoked: bool,
}

/// What the driver needs to know after it looked into the link.
pub(crate) struct View {
    pub(crate) closed: bool,
    /// The server's key was revoked since: it is asked nothing more.
    pub(crate) revoked: bool,
    pub(crate) waiting: usize,
}

pub(crate) struct Link {
    addr: Arc<str>,
    config: Arc<ClientConfig>,
    identity: Identity,
    /// What the operations that it is for need.
    needed: Protection,
    runtime: tokio::runtime::Handle,
    hub: Arc<Hub>,
    state: Mutex<State>,
}

struct Frame<'a, M> {
    flags: Flags,
    opcode: u16,
    call: CallHeader,
    message: &'a M,
}

impl<M: Message> Frame<'_, M> {
    fn fill(&self, out: &mut Vec<u8>) {
        self.call.encode(out);
        self.message.encode(out).expect("a Vec grows as needed");
    }

    fn encode(&self, id: u64, payload_len: usize) -> Result<Vec<u8>, FrameError> {
        let mut head = Vec::with_capacity(128);
        let start = begin_frame(&mut head);
        self.fill(&mut head);
        finish_frame(&mut head, start, self.flags, self.opcode, id, payload_len)?;
        Ok(head)
    }
}

/// Why a server is not believed what it answered: its key is not that of a server which answers such requests.
fn not_its_role(server: &Holder, opcode: u16) -> Option<WireError> {
    let opcode = Opcode::from_code(opcode)?;
    let roles = opcode.served_by();
    match server.caller {
        Caller::Node(has) if has.meets(roles) => None,
        _ => {
            let text = format!(
                "{} was answered by a server with the key of {}, which has not the role {roles}: it is not believed; check the addresses",
                opcode.name(),
                server.name
            );
            Some(WireError::new(ErrorCode::NotPermitted, text))
        }
    }
}

impl Link {
    pub(crate) fn new(
        addr: Arc<str>,
        config: Arc<ClientConfig>,
        identity: Identity,
        needed: Protection,
        home: (tokio::runtime::Handle, Arc<Hub>),
    ) -> Arc<Self> {
        let (runtime, hub) = home;
        let state = State {
            phase: Phase::Idle,
            failures: 0,
            out: OutBuf::default(),
            end: 0,
            slots: Slots::default(),
            queue: VecDeque::new(),
            queue_bytes: 0,
            awake: true,
            waker: None,
            next_deadline: None,
            hello: None,
            server: None,
            listed: 0,
            revoked: false,
        };
        Arc::new(Self { addr, config, identity, needed, runtime, hub, state: Mutex::new(state) })
    }

    pub(crate) fn addr(&self) -> &str {
        &self.addr
    }

    pub(crate) fn config(&self) -> &ClientConfig {
        &self.config
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    pub(crate) fn needed(&self) -> Protection {
        self.needed
    }

    pub(crate) fn hello(&self) -> Option<Hello> {
        self.state.lock().hello.clone()
    }

    pub(crate) fn call(
        self: &Arc<Self>,
        opcode: u16,
        message: &impl Message,
        payload: Payload,
        options: CallOptions,
    ) -> Call {
        match self.start(opcode, message, payload, options, Listener::Future(None)) {
            Ok(id) => Call::waiting(self.clone(), id),
            Err((cause, _)) => Call::failed(CallError::not_sent(&self.addr, cause)),
        }
    }

    pub(crate) fn call_then(
        self: &Arc<Self>,
        opcode: u16,
        message: &impl Message,
        payload: Payload,
        options: CallOptions,
        then: Then,
    ) {
        if let Err((cause, Listener::Then(then))) = self.start(opcode, message, payload, options, Listener::Then(then))
        {
            then(Err(CallError::not_sent(&self.addr, cause)));
        }
    }

    /// Sends or queues a call. On an error its listener is given back.
    fn start(
        self: &Arc<Self>,
        opcode: u16,
        message: &impl Message,
        payload: Payload,
        options: CallOptions,
        listener: Listener,
    ) -> Result<u64, (NotSent, Listener)> {
        let now = Instant::now();
        let deadline = now + options.deadline;
        let deadline_ms = u32::try_from(options.deadline.as_millis()).unwrap_or(u32::MAX).max(1);
        let call = CallHeader { deadline_ms, trace_id: options.trace_id };
        let frame = Frame { flags: Flags::REQUEST, opcode, call, message };
        let mut state = self.state.lock();
        let spawn = match state.ready(now) {
            Ok(spawn) => spawn,
            Err(cause) => return Err((cause, listener)),
        };
        let waiting = Waiting { opcode, listener, deadline, sent_at: None, into: options.into };
        let id = state.slots.insert(waiting);
        if let Err(cause) = state.enqueue(&self.config, Some(id), &frame, payload) {
            let listener = state.slots.remove(id).listener;
            drop(state);
            self.spawn_if(spawn);
            return Err((cause, listener));
        }
        state.next_deadline = Some(state.next_deadline.map_or(deadline, |next| next.min(deadline)));
        let waker = state.rouse();
        drop(state);
        self.after_enqueue(spawn, waker);
        Ok(id)
    }

    pub(crate) fn send(
        self: &Arc<Self>,
        opcode: u16,
        message: &impl Message,
        payload: Payload,
    ) -> Result<(), SendError> {
        let frame = Frame { flags: Flags::ONEWAY, opcode, call: CallHeader::default(), message };
        let mut state = self.state.lock();
        let spawn = state.ready(Instant::now()).map_err(|cause| match cause {
            NotSent::Closed => SendError::Closed,
            _ => SendError::Unreachable,
        })?;
        let sent = if state.out.len() + state.queue_bytes >= self.config.oneway_max {
            Err(SendError::Full)
        } else {
            state.enqueue(&self.config, None, &frame, payload).map_err(|cause| match cause {
                NotSent::TooLong(_) => SendError::TooLong,
                _ => SendError::Full,
            })
        };
        let waker = if sent.is_ok() { state.rouse() } else { None };
        drop(state);
        self.after_enqueue(spawn, waker);
        sent
    }

    fn after_enqueue(self: &Arc<Self>, spawn: bool, waker: Option<Waker>) {
        self.spawn_if(spawn);
        if let Some(waker) = waker {
            self.hub.wake(waker);
        }
    }

    fn spawn_if(self: &Arc<Self>, spawn: bool) {
        if spawn {
            // The guard inside makes sure that calls get their outcome even if the runtime is gone.
            self.runtime.spawn(driver::run(driver::Guard::new(self.clone())));
        }
    }

    pub(crate) fn poll_outcome(&self, id: u64, waker: &Waker) -> Option<Outcome> {
        self.state.lock().slots.poll(id, waker)
    }

    pub(crate) fn abandon(&self, id: u64) {
        let (held, waker) = {
            let mut state = self.state.lock();
            let held = state.slots.abandon(id);
            // Its place may be another's now.
            let waker = if state.queue.is_empty() { None } else { state.rouse() };
            (held, waker)
        };
        drop(held);
        if let Some(waker) = waker {
            self.hub.wake(waker);
        }
    }

    /// Ends the link for good.
    pub(crate) fn close(&self) {
        let waker = {
            let mut state = self.state.lock();
            state.phase = Phase::Closed;
            state.awake = true;
            state.waker.clone()
        };
        if let Some(waker) = waker {
            self.hub.wake(waker);
        }
    }

    // --- for the driver ---

    pub(crate) fn enter(&self, cx: &mut Context<'_>) {
        let mut state = self.state.lock();
        state.awake = true;
        if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            state.waker = Some(cx.waker().clone());
        }
    }

    /// Whether the task may sleep; from then on every new request wakes it.
    pub(crate) fn park(&self, writing: bool) -> bool {
        let mut state = self.state.lock();
        let admits = !state.queue.is_empty() && state.has_room(&self.config);
        if matches!(state.phase, Phase::Closed) || admits || (!writing && !state.out.is_empty()) {
            return false;
        }
        state.awake = false;
        true
    }

    pub(crate) fn up(&self, hello: Hello, server: Option<Holder>, sealer: Option<Sealer>) {
        let mut state = self.state.lock();
        // Nothing enters the stream before it is up.
        state.out.seal_with(sealer);
        if matches!(state.phase, Phase::Connecting) {
            state.phase = Phase::Up;
        }
        state.failures = 0;
        state.hello = Some(hello);
        (state.server, state.listed, state.revoked) = (server, 0, false);
    }

    /// The handshake has looked before; the list may have changed since, and a connection that is used ends by nothing
    /// else.
    fn is_revoked(&self, state: &mut State) -> bool {
        if let Some(list) = self.identity.tls().and_then(|tls| tls.revoked())
            && list.version() != state.listed
        {
            state.listed = list.version();
            state.revoked = state.server.as_ref().is_some_and(|server| list.has(&server.name));
        }
        state.revoked
    }

    /// Moves queued requests into the stream as far as the bounds allow, and the stream's bytes to an idle writer.
    pub(crate) fn feed(&self, writer: &mut Writer) -> View {
        let mut state = self.state.lock();
        if self.is_revoked(&mut state) {
            return View { closed: false, revoked: true, waiting: state.slots.waiting };
        }
        state.admit(&self.config);
        if writer.pending() == 0 && !state.out.is_empty() {
            writer.take(&mut state.out);
        }
        View { closed: matches!(state.phase, Phase::Closed), revoked: false, waiting: state.slots.waiting }
    }

    /// Whether an answer's payload is wanted, and the caller's own buffer for it if it is large enough.
    pub(crate) fn payload_target(&self, id: u64, len: usize) -> Option<Option<AlignedBuf>> {
        let mut state = self.state.lock();
        let waiting = state.slots.waiting_mut(id)?;
        Some(match &waiting.into {
            Some(buf) if buf.capacity() >= len => waiting.into.take(),
            _ => None,
        })
    }

    /// Sets the outcomes of answered calls.
    pub(crate) fn complete(&self, answers: &mut Vec<(u64, Result<Response, CallError>)>, notify: &mut Vec<Notify>) {
        {
            let mut state = self.state.lock();
            let State { slots, server, .. } = &mut *state;
            notify.extend(answers.drain(..).map(|(id, outcome)| {
                let asked = slots.waiting_mut(id).map(|waiting| waiting.opcode);
                let strange = server.as_ref().zip(asked).and_then(|(server, opcode)| not_its_role(server, opcode));
                let outcome = strange.map_or(outcome, |error| Err(CallError::Remote(error)));
                slots.complete(id, outcome)
            }));
        }
        notify.drain(..).for_each(Notify::run);
    }

    /// Gives the calls whose deadline has passed their outcome, and arms the timer for `other` or the next deadline.
    /// Returns whether `other` has come.
    pub(crate) fn expire(&self, cx: &mut Context<'_>, watch: &mut Watch, other: Option<Instant>) -> bool {
        loop {
            let next_deadline = self.state.lock().next_deadline;
            let next = [next_deadline, other].into_iter().flatten().min();
            if next.is_none() || !watch.poll(cx, next) {
                return false;
            }
            let now = Instant::now();
            if next_deadline.is_some_and(|deadline| deadline <= now) {
                self.expire_calls(now);
            }
            if other.is_some_and(|other| other <= now) {
                return true;
            }
        }
    }

    fn expire_calls(&self, now: Instant) {
        let mut notify = Vec::new();
        let mut dropped = Vec::new();
        {
            let mut state = self.state.lock();
            let state = &mut *state;
            let judge = |waiting: &Waiting| {
                (waiting.deadline <= now).then(|| match waiting.sent_at {
                    None => CallError::not_sent(&self.addr, NotSent::Deadline),
                    Some(_) => CallError::unknown(&self.addr, Unknown::Deadline),
                })
            };
            state.next_deadline = state.slots.complete_where(judge, &mut notify);
            // What is not in the stream yet is not sent after its call was told so.
            for queued in std::mem::take(&mut state.queue) {
                if queued.id.is_none_or(|id| state.slots.waiting_mut(id).is_some()) {
                    state.queue.push_back(queued);
                } else {
                    state.queue_bytes -= queued.len();
                    dropped.push(queued);
                }
            }
        }
        drop(dropped);
        notify.into_iter().for_each(Notify::run);
    }

    /// Ends a connection on which nothing waits. `false`: something came in between.
    pub(crate) fn retire(&self) -> bool {
        let mut state = self.state.lock();
        let nothing = state.slots.waiting == 0 && state.out.is_empty() && state.queue.is_empty();
        if nothing && matches!(state.phase, Phase::Up) {
            state.phase = Phase::Idle;
            state.end = 0;
            state.hello = None;
        }
        nothing
    }

    /// The attempt to connect failed: for a while calls fail at once.
    pub(crate) fn connect_failed(&self, cause: NotSent) {
        let mut state = self.state.lock();
        state.failures = state.failures.saturating_add(1);
        let wait = backoff(&self.config, state.failures);
        let cause = match cause {
            NotSent::Connect { why, .. } => NotSent::Connect { why, retry_in: wait },
            cause => cause,
        };
        if !matches!(state.phase, Phase::Closed) {
            state.phase = Phase::Backoff(Instant::now() + wait, cause.clone());
        }
        self.fail_all(state, |_| CallError::not_sent(&self.addr, cause.clone()));
    }

    /// The connection ended after `written` bytes: what was not sent whole was not done, of the rest nobody knows.
    pub(crate) fn disconnected(&self, written: u64, why: &str) {
        let mut state = self.state.lock();
        let closed = matches!(state.phase, Phase::Closed);
        if !closed {
            state.phase = Phase::Idle;
        }
        self.fail_all(state, |waiting| match waiting.sent_at {
            Some(at) if at <= written => CallError::unknown(&self.addr, Unknown::Disconnected { why: why.to_owned() }),
            _ if closed => CallError::not_sent(&self.addr, NotSent::Closed),
            _ => CallError::not_sent(&self.addr, NotSent::Disconnected { why: why.to_owned() }),
        });
    }

    fn fail_all(&self, mut state: MutexGuard<'_, State>, judge: impl Fn(&Waiting) -> CallError) {
        let mut notify = Vec::new();
        state.slots.complete_where(|waiting| Some(judge(waiting)), &mut notify);
        let out = std::mem::take(&mut state.out);
        let queue = std::mem::take(&mut state.queue);
        (state.end, state.queue_bytes, state.next_deadline, state.hello) = (0, 0, None, None);
        (state.waker, state.awake) = (None, true);
        drop(state);
        drop((out, queue));
        notify.into_iter().for_each(Notify::run);
    }
}

impl State {
    /// Whether requests are taken now; `Ok(true)`: the caller has to spawn the task that connects.
    fn ready(&mut self, now: Instant) -> Result<bool, NotSent> {
        match &self.phase {
            Phase::Up | Phase::Connecting => return Ok(false),
            Phase::Closed => return Err(NotSent::Closed),
            Phase::Backoff(until, cause) if now < *until => {
                return Err(match cause {
                    NotSent::Connect { why, .. } => NotSent::Connect { why: why.clone(), retry_in: *until - now },
                    cause => cause.clone(),
                });
            }
            Phase::Idle | Phase::Backoff(..) => {}
        }
        self.phase = Phase::Connecting;
        Ok(true)
    }

    fn has_room(&self, config: &ClientConfig) -> bool {
        matches!(self.phase, Phase::Up) && self.slots.active < config.in_flight_max && self.out.len() < config.out_max
    }

    fn enqueue<M: Message>(
        &mut self,
        config: &ClientConfig,
        id: Option<u64>,
        frame: &Frame<'_, M>,
        payload: Payload,
    ) -> Result<(), NotSent> {
        let wire_id = id.unwrap_or(0);
        if self.queue.is_empty() && self.has_room(config) {
            let before = self.out.len();
            self.out.push(frame.flags, frame.opcode, wire_id, payload, |out| frame.fill(out))?;
            self.end += (self.out.len() - before) as u64;
            if let Some(id) = id {
                self.slots.admit(id, self.end);
            }
            return Ok(());
        }
        if self.queue.len() >= config.queue_max || self.queue_bytes >= config.queue_bytes_max {
            return Err(NotSent::Busy);
        }
        let head = frame.encode(wire_id, payload.len())?;
        let queued = Queued { id, head, payload };
        self.queue_bytes += queued.len();
        self.queue.push_back(queued);
        Ok(())
    }

    fn admit(&mut self, config: &ClientConfig) {
        while self.has_room(config)
            && let Some(queued) = self.queue.pop_front()
        {
            self.queue_bytes -= queued.len();
            if let Some(id) = queued.id
                && self.slots.waiting_mut(id).is_none()
            {
                continue;
            }
            let before = self.out.len();
            self.out.push_encoded(&queued.head, queued.payload);
            self.end += (self.out.len() - before) as u64;
            if let Some(id) = queued.id {
                self.slots.admit(id, self.end);
            }
        }
    }

    fn rouse(&mut self) -> Option<Waker> {
        if self.awake {
            return None;
        }
        self.awake = true;
        self.waker.clone()
    }
}

/// Doubles from the least to the longest wait, and takes a random part of it (at least half), so that clients of a
/// server that comes back do not all come at once.
fn backoff(config: &ClientConfig, failures: u32) -> Duration {
    let doubled = config.backoff_min.saturating_mul(1 << (failures.max(1) - 1).min(16));
    let wait = doubled.min(config.backoff_max);
    let random = RandomState::new().hash_one(failures) >> 32;
    let part = 0.5 + random as f64 / f64::from(u32::MAX) / 2.0;
    wait.mul_f64(part)
}
