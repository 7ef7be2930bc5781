//! What the program logs in a run: always formatted, kept in memory, and shown when the seed fails or when it is asked
//! for. So a run with its log shown is the same run: formatting takes memory and hash keys, which belong to the run.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;

/// Bytes that are kept.
const KEPT: usize = 1 << 20;
/// The same in every run: another filter is another run.
const FILTER: &str = "info,cairn_client=debug";

struct Ring {
    bytes: VecDeque<u8>,
    shown: bool,
}

static RING: Mutex<Option<Ring>> = Mutex::new(None);

/// Time since the run began, and the host: to ask a clock would be a point at which the thread can be interrupted.
struct RunTime;

impl FormatTime for RunTime {
    fn format_time(&self, to: &mut Writer<'_>) -> std::fmt::Result {
        let (now, host) = (cairn_dst::host::elapsed(), cairn_dst::host::current());
        write!(to, "{:>4}.{:06} host {host:<2}", now.as_secs(), now.subsec_micros())
    }
}

struct Line;

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut ring = RING.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(ring) = ring.as_mut() else { return Ok(bytes.len()) };
        let kept = &bytes[bytes.len().saturating_sub(KEPT)..];
        let over = (ring.bytes.len() + kept.len()).saturating_sub(KEPT);
        ring.bytes.drain(..over);
        ring.bytes.extend(kept);
        if ring.shown {
            cairn_dst::print_error(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Begins to keep the log; `shown`: every line goes to standard error as well. `other`: another filter than usual,
/// which makes it another run.
pub fn begin(shown: bool, other: Option<String>) {
    let ring = Ring { bytes: VecDeque::with_capacity(KEPT + 1), shown };
    *RING.lock().unwrap_or_else(PoisonError::into_inner) = Some(ring);
    let filter = other.unwrap_or_else(|| FILTER.to_owned());
    let lines = tracing_subscriber::fmt().with_ansi(false).with_env_filter(filter).with_timer(RunTime);
    lines.with_writer(|| Line).init();
}

/// The last lines.
pub fn tail(lines: usize) -> String {
    let ring = RING.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(ring) = ring.as_ref() else { return String::new() };
    let bytes: Vec<u8> = ring.bytes.iter().copied().collect();
    let text = String::from_utf8_lossy(&bytes);
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A long run would take all memory, or a failure would show the beginning instead of the end.
    #[test]
    fn the_last_lines_are_kept() {
        *RING.lock().expect("no panic") = Some(Ring { bytes: VecDeque::new(), shown: false });
        for at in 0..200_000 {
            writeln!(Line, "line {at}").expect("it is in memory");
        }
        assert_eq!(tail(2), "line 199998\nline 199999");
        assert!(RING.lock().expect("no panic").as_ref().is_some_and(|ring| ring.bytes.len() <= KEPT));
    }
}
