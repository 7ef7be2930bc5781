//! [`Latency`]: how long requests took from their arrival to their answer, by operation, as counts for a histogram.
//!
//! Requests that want no answer are not in it. The time until an answer is on the wire, and the peer's own, are not
//! either.
use cairn_wire::Opcode;
use std::array::from_fn;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Upper ends of the buckets, in microseconds; above the last one there is one more.
pub const LATENCY_BOUNDS_US: [u64; 15] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    5_000_000,
];
const BUCKETS: usize = LATENCY_BOUNDS_US.len() + 1;
/// Codes of operations are below this.
const CODES: usize = 0x0800;

/// By code, the place of an operation in the table of all. Those that nobody knows have none.
static PLACES: LazyLock<[u16; CODES]> = LazyLock::new(|| {
    let mut places = [u16::MAX; CODES];
    for (place, opcode) in Opcode::ALL.iter().enumerate() {
        places[usize::from(opcode.code())] = u16::try_from(place).expect("fewer operations than codes");
    }
    places
});

struct OfOperation {
    buckets: [AtomicU64; BUCKETS],
    sum_us: AtomicU64,
}

/// One histogram an operation.
pub struct Latency(Box<[OfOperation]>);

/// The answers to one operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LatencyOf {
    pub opcode: Opcode,
    /// How many took so long and longer than the bucket before.
    pub buckets: [u64; BUCKETS],
    pub sum_us: u64,
}

impl Default for Latency {
    fn default() -> Self {
        let empty = |_| OfOperation { buckets: from_fn(|_| AtomicU64::new(0)), sum_us: AtomicU64::new(0) };
        Self(Opcode::ALL.iter().map(empty).collect())
    }
}

impl Latency {
    pub(crate) fn answered(&self, opcode: u16, after: Duration) {
        let place = PLACES.get(usize::from(opcode)).map_or(usize::MAX, |place| usize::from(*place));
        let Some(of) = self.0.get(place) else { return };
        let us = u64::try_from(after.as_micros()).unwrap_or(u64::MAX);
        of.buckets[LATENCY_BOUNDS_US.partition_point(|bound| *bound < us)].fetch_add(1, Relaxed);
        of.sum_us.fetch_add(us, Relaxed);
    }
    /// Of the operations that were asked for so far.
    pub fn all(&self) -> Vec<LatencyOf> {
        let read = |(opcode, of): (&Opcode, &OfOperation)| LatencyOf {
            opcode: *opcode,
            buckets: from_fn(|at| of.buckets[at].load(Relaxed)),
            sum_us: of.sum_us.load(Relaxed),
        };
        Opcode::ALL.iter().zip(&self.0).map(read).filter(|of| of.buckets.iter().any(|count| *count > 0)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request that took just a bound would be counted as slower than it; one of a later version would panic.
    #[test]
    fn requests_are_counted_where_they_belong() {
        let latency = Latency::default();
        latency.answered(Opcode::Ping.code(), Duration::from_micros(100));
        latency.answered(Opcode::Ping.code(), Duration::from_micros(101));
        latency.answered(Opcode::Ping.code(), Duration::from_secs(60));
        latency.answered(0x07ff, Duration::ZERO);
        latency.answered(u16::MAX, Duration::ZERO);
        let all = latency.all();
        assert_eq!(all.len(), 1);
        assert_eq!((all[0].opcode, all[0].sum_us), (Opcode::Ping, 60_000_201));
        assert_eq!((all[0].buckets[0], all[0].buckets[1], all[0].buckets[BUCKETS - 1]), (1, 1, 1));
    }

    /// An operation with a code beyond the table would never be counted.
    #[test]
    fn every_operation_has_a_place() {
        let latency = Latency::default();
        Opcode::ALL.iter().for_each(|opcode| latency.answered(opcode.code(), Duration::ZERO));
        assert_eq!(latency.all().len(), Opcode::ALL.len());
    }
}
