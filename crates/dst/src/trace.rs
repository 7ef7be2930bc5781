//! [`Trace`]: everything that the scheduler decided or saw, as a hash of all of it and as its last lines.
//!
//! Invariant: the hash covers every record. Not here: what the program itself logs.

use std::collections::VecDeque;
use std::fmt::Write;

/// Records kept for who looks at a failure.
const KEPT: usize = 256;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum What {
    Run = 1,
    Spawn,
    Exit,
    FutexWait,
    FutexWake,
    TimedOut,
    EpollWait,
    EpollReady,
    Connect,
    Accept,
    Refused,
    Send,
    Receive,
    Arrive,
    Close,
    Reset,
    Random,
    Stall,
    /// A rule keeps bytes from arriving.
    Held,
    /// A connection is ended by a rule, or as a host goes down.
    Cut,
    /// A bit changed on the way.
    Flip,
}

#[derive(Debug, Clone, Copy)]
struct Record {
    at: u64,
    thread: u32,
    what: What,
    a: u64,
    b: u64,
}

/// The record of a run.
pub struct Trace {
    hash: u64,
    count: u64,
    last: VecDeque<Record>,
    echo: bool,
    /// What is printed, in the same memory each time: a run that is printed is the same run.
    line: String,
}

fn mix(hash: u64, value: u64) -> u64 {
    (hash.rotate_left(5) ^ value).wrapping_mul(0x517c_c1b7_2722_0a95)
}

/// A fingerprint of bytes.
pub fn fingerprint(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let hash = words.iter().fold(bytes.len() as u64, |hash, word| mix(hash, u64::from_le_bytes(*word)));
    rest.iter().fold(hash, |hash, byte| mix(hash, u64::from(*byte)))
}

impl Trace {
    /// An empty one; `echo` prints every record to standard error.
    pub fn new(echo: bool) -> Self {
        Self {
            hash: 0xcbf2_9ce4_8422_2325,
            count: 0,
            last: VecDeque::with_capacity(KEPT),
            echo,
            line: String::with_capacity(256),
        }
    }

    /// Adds a record; `name` is asked for only when it is printed.
    pub fn add<'a>(&mut self, at: u64, thread: u32, what: What, a: u64, b: u64, name: impl FnOnce() -> &'a str) {
        for value in [at, u64::from(thread) << 8 | what as u64, a, b] {
            self.hash = mix(self.hash, value);
        }
        self.count += 1;
        let record = Record { at, thread, what, a, b };
        if self.echo {
            self.line.clear();
            render(&mut self.line, record, name());
            crate::real::print(2, self.line.as_bytes());
        }
        if self.last.len() == KEPT {
            self.last.pop_front();
        }
        self.last.push_back(record);
    }

    /// The same for two runs exactly when they had the same records (up to collisions of 64 bits).
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Records so far.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The last records as text.
    pub fn tail<'a>(&self, most: usize, name: impl Fn(u32) -> &'a str) -> String {
        let mut text = String::new();
        for record in self.last.iter().skip(self.last.len().saturating_sub(most)) {
            render(&mut text, *record, name(record.thread));
        }
        text
    }
}

fn render(to: &mut String, record: Record, name: &str) {
    let Record { at, thread, what, a, b } = record;
    let (seconds, nanos) = (at / 1_000_000_000, at % 1_000_000_000);
    // Writing to a string cannot fail.
    let _written = writeln!(to, "{seconds:>4}.{nanos:09} {thread:>4} {name:<16} {what:?} {a} {b:x}");
}
