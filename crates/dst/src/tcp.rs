//! [`Stream`]: one end of a connection in memory, and the way of bytes from one end to the other.
//!
//! What is on its way to an end is kept with that end, so closing one end loses nothing of what it sent. Bytes arrive
//! in order, late, in pieces. A read gives all that has arrived and fits, and a write takes all that there is room for:
//! readers and writers with edges of epoll take less for a sign that no more is there.
//!
//! Loss, duplicates and another order of packets are nothing but delay to who uses TCP, so delay is what there is.

use std::collections::VecDeque;

use crate::files::{Id, Kind};
use crate::links::{Fate, Reached};
use crate::trace::{What, fingerprint};
use crate::world::{Event, World};

/// Bytes between the ends of a connection, on the way and arrived.
const ROOM_MIN: u64 = 48 << 10;
const ROOM_MAX: u64 = 1 << 20;
/// A connection that does not come through is tried again after so long.
const TRY_AGAIN: u64 = 200_000_000;
/// Bytes of a nanosecond: some GB/s.
const BYTES_PER_NS: u64 = 2;

/// What is on its way.
pub enum Segment {
    Bytes(Vec<u8>),
    End,
    /// The sender is gone without having read everything.
    Reset,
}

/// How far a connection has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Connecting,
    Connected,
    Failed,
}

/// One end.
pub struct Stream {
    pub phase: Phase,
    /// This end connected.
    pub opened: bool,
    /// The other end; 0: there is none yet, or no more.
    pub peer: Id,
    pub peer_host: usize,
    pub remote: (u32, u16),
    /// Arrived and not read.
    arrived: VecDeque<Vec<u8>>,
    read: usize,
    arrived_bytes: usize,
    /// On the way to this end.
    coming: VecDeque<(u64, Segment)>,
    coming_bytes: usize,
    /// When the last of them is here.
    last_at: u64,
    /// Nothing more comes.
    ended: bool,
    /// Told to the next who asks.
    pub error: i32,
    /// It was reset: nothing can be sent.
    broken: bool,
    /// This end sends no more.
    pub sent_end: bool,
    room: usize,
    /// A writer found no room.
    pub wants_room: bool,
    /// What comes does not arrive as long as a rule holds it.
    pub held: bool,
}

impl Stream {
    fn new(phase: Phase, remote: (u32, u16), room: usize, peer_host: usize) -> Self {
        Self {
            phase,
            opened: phase == Phase::Connecting,
            peer: 0,
            peer_host,
            remote,
            arrived: VecDeque::new(),
            read: 0,
            arrived_bytes: 0,
            coming: VecDeque::new(),
            coming_bytes: 0,
            last_at: 0,
            ended: false,
            error: 0,
            broken: false,
            sent_end: false,
            room,
            wants_room: false,
            held: false,
        }
    }

    /// What epoll says of it.
    pub fn readiness(&self) -> i32 {
        match self.phase {
            Phase::Connecting => return 0,
            Phase::Failed => return libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLERR | libc::EPOLLHUP,
            Phase::Connected => {}
        }
        let mut ready = 0;
        if self.arrived_bytes > 0 || self.ended || self.broken {
            ready |= libc::EPOLLIN;
        }
        if self.ended {
            ready |= libc::EPOLLRDHUP;
        }
        if self.ended && self.sent_end || self.broken {
            ready |= libc::EPOLLHUP;
        }
        if self.error != 0 {
            ready |= libc::EPOLLERR;
        }
        if !self.wants_room || self.broken {
            ready |= libc::EPOLLOUT;
        }
        ready
    }

    fn free(&self) -> usize {
        self.room.saturating_sub(self.coming_bytes + self.arrived_bytes)
    }
}

impl World {
    fn latency(&mut self) -> u64 {
        // Mostly some ten microseconds, now and then a millisecond or twenty.
        match self.network.below(64) {
            0 => self.network.below(20_000_000),
            1..=4 => self.network.below(1_000_000),
            _ => 10_000 + self.network.below(60_000),
        }
    }

    fn new_stream(&mut self, phase: Phase, remote: (u32, u16), peer_host: usize) -> Box<Stream> {
        let room = ROOM_MIN << self.network.below((ROOM_MAX / ROOM_MIN).ilog2().into());
        Box::new(Stream::new(phase, remote, room as usize, peer_host))
    }

    /// Begins to connect.
    pub fn connect(&mut self, id: Id, to: (u32, u16)) -> Result<(), i32> {
        let stream = self.new_stream(Phase::Connecting, to, 0);
        let port = self.files.free_port();
        let object = self.files.get(id).ok_or(libc::EBADF)?;
        if !matches!(object.kind, Kind::Fresh) {
            return Err(libc::EISCONN);
        }
        if object.local.1 == 0 {
            object.local = (if object.local.0 == 0 { to.0 } else { object.local.0 }, port);
        }
        object.kind = Kind::Stream(stream);
        self.note(What::Connect, id, u64::from(to.1));
        let at = self.now + self.latency();
        self.at(at, Event::Reach(id));
        Ok(())
    }

    /// A connection has reached the other side.
    pub fn reach(&mut self, id: Id) {
        let Some(object) = self.files.get(id) else { return };
        let (local, host) = (object.local, object.host);
        let Kind::Stream(stream) = &object.kind else { return };
        let to = stream.remote;
        let back = self.now + self.latency();
        let listener = self.files.listener(to.0, to.1);
        let listens_on = listener.and_then(|id| self.files.get(id)).map_or(0, |object| object.host);
        if let Some(stream) = self.files.stream(id) {
            stream.peer_host = listens_on;
        }
        let listener = match (self.reached(host, listens_on), listener) {
            (Reached::Accepted, Some(listener)) => listener,
            (Reached::Lost, _) => {
                self.hold(id);
                return self.at(self.now + TRY_AGAIN, Event::Reach(id));
            }
            (Reached::Ended, _) => {
                self.at(back, Event::Answer(id, true));
                return self.put_on_way(id, Segment::End, back - self.now);
            }
            (Reached::Accepted | Reached::Refused, _) => {
                self.note(What::Refused, id, u64::from(to.1));
                return self.at(back, Event::Answer(id, false));
            }
        };
        let mut other = self.new_stream(Phase::Connected, local, host);
        other.peer = id;
        let other = self.files.make(Kind::Stream(other), false, listens_on);
        if let Some(object) = self.files.get(other) {
            object.local = to;
        }
        if let Some(stream) = self.files.stream(id) {
            stream.peer = other;
        }
        if let Some(Kind::Listener(listener)) = self.files.get(listener).map(|object| &mut object.kind) {
            listener.backlog.push_back(other);
        }
        self.at(back, Event::Answer(id, true));
        self.edge(listener);
    }

    /// The answer is back with who connected.
    pub fn answer(&mut self, id: Id, accepted: bool) {
        if self.is_held(id) {
            self.hold(id);
            return self.at(self.now + TRY_AGAIN, Event::Answer(id, accepted));
        }
        let Some(stream) = self.files.stream(id) else { return };
        if stream.phase == Phase::Connecting {
            stream.phase = if accepted { Phase::Connected } else { Phase::Failed };
            stream.error = if accepted { 0 } else { libc::ECONNREFUSED };
        }
        self.edge(id);
    }

    /// Sends what there is room for; an error is an errno.
    pub fn send(&mut self, id: Id, parts: &[&[u8]]) -> Result<usize, i32> {
        let stream = self.files.stream(id).ok_or(libc::ENOTCONN)?;
        match stream.phase {
            Phase::Connecting => return Err(libc::EAGAIN),
            Phase::Failed => return Err(libc::EPIPE),
            Phase::Connected if stream.error != 0 => return Err(std::mem::take(&mut stream.error)),
            Phase::Connected if stream.broken || stream.sent_end => return Err(libc::EPIPE),
            Phase::Connected => {}
        }
        let peer = stream.peer;
        let wanted: usize = parts.iter().map(|part| part.len()).sum();
        let Some(other) = self.files.stream(peer) else {
            // It arrives where nobody is, and the answer says so.
            let at = self.now + self.latency();
            self.at(at, Event::Reset(id));
            return Ok(wanted);
        };
        let taken = wanted.min(other.free());
        if taken < wanted
            && let Some(stream) = self.files.stream(id)
        {
            stream.wants_room = true;
        }
        if taken == 0 && wanted > 0 {
            return Err(libc::EAGAIN);
        }
        let mut bytes = Vec::with_capacity(taken);
        for part in parts {
            bytes.extend_from_slice(&part[..part.len().min(taken - bytes.len())]);
        }
        self.note(What::Send, id, fingerprint(&bytes));
        let Fate { late, end } = self.fate(id, &mut bytes);
        bytes.truncate(end.unwrap_or(taken));
        if !bytes.is_empty() {
            self.dispatch(peer, bytes, late);
        }
        if end.is_some() {
            self.sever(id);
        }
        Ok(taken)
    }

    /// Puts bytes on their way, sometimes in two pieces.
    fn dispatch(&mut self, to: Id, mut bytes: Vec<u8>, late: u64) {
        if bytes.len() > 1 && self.network.one_in(8) {
            let at = 1 + self.network.below(bytes.len() as u64 - 1) as usize;
            let rest = bytes.split_off(at);
            self.put_on_way(to, Segment::Bytes(bytes), late);
            bytes = rest;
        }
        self.put_on_way(to, Segment::Bytes(bytes), late);
    }

    /// `late`: nanoseconds that it takes more than it would.
    pub fn put_on_way(&mut self, to: Id, segment: Segment, late: u64) {
        let latency = self.latency() + late;
        let now = self.now;
        let Some(stream) = self.files.stream(to) else { return };
        let length = if let Segment::Bytes(bytes) = &segment { bytes.len() } else { 0 };
        let at = stream.last_at.max(now + latency) + length as u64 / BYTES_PER_NS;
        stream.last_at = at;
        stream.coming_bytes += length;
        stream.coming.push_back((at, segment));
        self.at(at, Event::Arrive(to));
    }

    /// What is due has arrived.
    pub fn arrive(&mut self, id: Id) {
        let now = self.now;
        if self.is_held(id) {
            return self.hold(id);
        }
        let Some(stream) = self.files.stream(id) else { return };
        let mut news = 0;
        while stream.coming.front().is_some_and(|(at, _)| *at <= now) {
            let Some((_, segment)) = stream.coming.pop_front() else { break };
            news += 1;
            match segment {
                Segment::Bytes(bytes) => {
                    stream.coming_bytes -= bytes.len();
                    stream.arrived_bytes += bytes.len();
                    stream.arrived.push_back(bytes);
                }
                Segment::End => stream.ended = true,
                Segment::Reset => {
                    stream.ended = true;
                    stream.broken = true;
                    stream.error = libc::ECONNRESET;
                }
            }
        }
        if news > 0 {
            self.note(What::Arrive, id, news);
            self.edge(id);
        }
    }

    /// The other end is gone.
    pub fn reset(&mut self, id: Id) {
        let Some(stream) = self.files.stream(id) else { return };
        stream.ended = true;
        stream.broken = true;
        stream.error = libc::ECONNRESET;
        self.note(What::Reset, id, 0);
        self.edge(id);
    }

    /// Reads what has arrived and fits; `Ok(0)` is the end.
    pub fn receive(&mut self, id: Id, parts: &mut [&mut [u8]], peek: bool) -> Result<usize, i32> {
        let stream = self.files.stream(id).ok_or(libc::ENOTCONN)?;
        let wanted: usize = parts.iter().map(|part| part.len()).sum();
        if stream.arrived_bytes == 0 && wanted > 0 {
            return match stream.phase {
                Phase::Connecting => Err(libc::EAGAIN),
                _ if stream.error != 0 => Err(std::mem::take(&mut stream.error)),
                Phase::Connected if !stream.ended => Err(libc::EAGAIN),
                _ => Ok(0),
            };
        }
        let (mut got, mut at, mut from) = (0, 0, stream.read);
        'parts: for part in parts {
            let mut put = 0;
            while put < part.len() {
                let Some(front) = stream.arrived.get(at) else { break 'parts };
                let count = (part.len() - put).min(front.len() - from);
                part[put..put + count].copy_from_slice(&front[from..from + count]);
                (put, got, from) = (put + count, got + count, from + count);
                if from == front.len() {
                    (at, from) = (at + 1, 0);
                }
            }
        }
        if !peek {
            stream.arrived.drain(..at);
            stream.read = from;
            stream.arrived_bytes -= got;
            let peer = stream.peer;
            let enough = stream.free() * 3 >= stream.room;
            self.note(What::Receive, id, got as u64);
            if enough && let Some(sender) = self.files.stream(peer).filter(|sender| sender.wants_room) {
                sender.wants_room = false;
                self.edge(peer);
            }
        }
        Ok(got)
    }

    /// This end sends no more.
    pub fn send_end(&mut self, id: Id) -> Result<(), i32> {
        let stream = self.files.stream(id).ok_or(libc::ENOTCONN)?;
        if stream.phase != Phase::Connected {
            return Err(libc::ENOTCONN);
        }
        if !std::mem::replace(&mut stream.sent_end, true) {
            let peer = stream.peer;
            self.put_on_way(peer, Segment::End, 0);
        }
        Ok(())
    }

    /// The last descriptor of an end is closed.
    pub fn hang_up(&mut self, id: Id, stream: Stream) {
        let unread = stream.arrived_bytes + stream.coming_bytes > 0;
        let segment = match (unread, stream.sent_end) {
            (true, _) => Segment::Reset,
            (false, true) => return self.edge(id),
            (false, false) => Segment::End,
        };
        self.put_on_way(stream.peer, segment, 0);
    }
}
