//! [`Trace`]: what happened in a simulation, as readable lines and as one hash.
//!
//! Invariants: the hash covers every line ever added; of the lines themselves only the last [`TRACE_LINES_MAX`] are
//! kept.

use std::collections::VecDeque;
use std::fmt::{self, Write};

use cairn_types::time::Time;

/// Lines kept for reading.
pub const TRACE_LINES_MAX: usize = 20_000;
/// Characters of a line; longer ones are cut.
pub const TRACE_LINE_MAX: usize = 200;

/// A bounded log with a fingerprint.
#[derive(Debug, Clone)]
pub struct Trace {
    lines: VecDeque<String>,
    count: u64,
    hash: u64,
    echo: bool,
}

impl Default for Trace {
    fn default() -> Self {
        // The offset basis of FNV-1a.
        Self { lines: VecDeque::new(), count: 0, hash: 0xcbf2_9ce4_8422_2325, echo: false }
    }
}

/// Stops formatting once the line is full, so a large message costs no more than what is kept of it.
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let left = TRACE_LINE_MAX - self.0.len();
        if text.len() <= left {
            self.0.push_str(text);
            return Ok(());
        }
        let cut = (0..=left).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        self.0.push_str(&text[..cut]);
        Err(fmt::Error)
    }
}

impl Trace {
    /// Adds a line, stamped with the time.
    pub fn add(&mut self, now: Time, what: fmt::Arguments<'_>) {
        let mut line = Bounded(String::with_capacity(80));
        // An error only says that the rest was cut off.
        write!(line, "{:>5}.{:09} {what}", now.0 / 1_000_000_000, now.0 % 1_000_000_000).ok();
        let line = line.0;
        for byte in line.bytes().chain([b'\n']) {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        self.count += 1;
        if self.echo {
            println!("{line}");
        }
        if self.lines.len() == TRACE_LINES_MAX {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    /// Also prints each line as it comes, to follow one seed.
    pub fn echo(&mut self, on: bool) {
        self.echo = on;
    }

    /// The last lines, oldest first.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }

    /// The last `count` lines as one text, for a failure's message.
    pub fn tail(&self, count: usize) -> String {
        let skip = self.lines.len().saturating_sub(count);
        self.lines().skip(skip).collect::<Vec<_>>().join("\n")
    }

    /// Lines added, kept or not.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The same for two runs exactly when they had the same lines (up to collisions of 64 bits).
    pub fn hash(&self) -> u64 {
        self.hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A long simulation would eat all memory, or a long message all time.
    #[test]
    fn bounded_in_lines_and_characters() {
        let mut trace = Trace::default();
        let long = "ä".repeat(10_000);
        for at in 0..TRACE_LINES_MAX as u64 + 5 {
            trace.add(Time(at), format_args!("{long}"));
        }
        assert_eq!(trace.lines().count(), TRACE_LINES_MAX);
        assert!(trace.lines().all(|line| line.len() <= TRACE_LINE_MAX));
        assert_eq!(trace.count(), TRACE_LINES_MAX as u64 + 5);
        assert!(trace.tail(1).starts_with("    0.000020004 ä"));
    }
}
