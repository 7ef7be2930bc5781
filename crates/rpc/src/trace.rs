//! Request ids: a number that follows one request through the logs of all processes that it causes work in.

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A new id: the upper half tells processes apart (by chance), the lower one counts. Never 0, which means "none".
pub fn next_trace_id() -> u64 {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    static COUNT: AtomicU64 = AtomicU64::new(1);
    let process = PROCESS.get_or_init(|| RandomState::new().hash_one(std::process::id()) << 32);
    process | (COUNT.fetch_add(1, Relaxed) & u64::from(u32::MAX)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two requests under one id could not be told apart in the logs.
    #[test]
    fn ids_differ_and_are_never_none() {
        let (a, b) = (next_trace_id(), next_trace_id());
        assert!(a != b && a != 0 && b != 0);
        assert_eq!(a >> 32, b >> 32);
    }
}
