//! [`ReadShares`]: how much of the memory of reads those who ask may hold: a read holds its memory until its answer was
//! sent, and who asks decides when that is.
//!
//! Invariants: nobody holds more than is left for others, whoever it is: the holder of a key, or, without one, an
//! address. So one holds half at most, two a third each, and whoever comes new finds something. All keys of one address
//! hold three quarters at most. A read that would be more is parked, on no thread, until something that the same one
//! holds was sent; so whoever holds nothing is never parked, and what is parked goes on. Not here: the memory itself
//! (`BufPool`), reads that need none of it (`read_pipe.rs`), who is cut off for not reading its answers (`cairn_rpc`).

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

use super::queue::WorkQueue;
use super::read::ReadJob;

/// Reads of one that are parked; further ones are refused as overload.
const PARKED_MAX: usize = 4096;
/// Keys of one address leave one part of so many to other addresses.
const SITE_PARTS: usize = 4;

/// See the module.
pub struct ReadShares {
    limit: usize,
    hasher: RandomState,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    held: usize,
    /// By whom; only of those who hold something.
    of: BTreeMap<u64, Of>,
}

#[derive(Default)]
struct Of {
    held: usize,
    parked: VecDeque<Parked>,
}

struct Parked {
    job: ReadJob,
    queue: Arc<WorkQueue<ReadJob>>,
}

/// Whose memory a read takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reader {
    /// Key or, without one, address.
    own: u64,
    /// The address of a key.
    site: Option<u64>,
}

/// What becomes of a read that needs memory.
pub(super) enum Shared {
    Granted(Held, ReadJob),
    /// It comes again.
    Parked,
    /// Too many are parked.
    Full(ReadJob),
}

/// Memory that counts as a reader's until this is dropped.
pub struct Held {
    shares: Arc<ReadShares>,
    reader: Reader,
    bytes: usize,
}

impl ReadShares {
    /// Shares of a pool of so many bytes.
    pub fn new(pool_bytes: usize) -> Arc<Self> {
        // Buffers of a pool are up to a quarter larger than what was asked for.
        Arc::new(Self { limit: pool_bytes / 5 * 4, hasher: RandomState::new(), state: Mutex::default() })
    }

    /// The holder of the key of that name, or whoever comes from there without one.
    pub fn reader(&self, key: Option<&str>, site: IpAddr) -> Reader {
        let site = self.hasher.hash_one((0, site));
        match key {
            Some(name) => Reader { own: self.hasher.hash_one((1, name)), site: Some(site) },
            None => Reader { own: site, site: None },
        }
    }

    /// Its part for a read, at once or not at all.
    pub(super) fn try_take(self: &Arc<Self>, reader: Reader, bytes: usize) -> Option<Held> {
        let mut state = self.state.lock();
        state.fits(reader, bytes, self.limit).ok()?;
        Some(self.grant(&mut state, reader, bytes))
    }

    /// Its part for a read that a thread of a disk took from this queue.
    pub(super) fn take(
        self: &Arc<Self>,
        (reader, bytes): (Reader, usize),
        job: ReadJob,
        queue: &Arc<WorkQueue<ReadJob>>,
    ) -> Shared {
        let mut state = self.state.lock();
        match state.fits(reader, bytes, self.limit) {
            Ok(()) => Shared::Granted(self.grant(&mut state, reader, bytes), job),
            Err(of) if of.parked.len() >= PARKED_MAX => Shared::Full(job),
            Err(of) => {
                of.parked.push_back(Parked { job, queue: queue.clone() });
                Shared::Parked
            }
        }
    }

    fn grant(self: &Arc<Self>, state: &mut State, reader: Reader, bytes: usize) -> Held {
        state.held += bytes;
        for who in [Some(reader.own), reader.site].into_iter().flatten() {
            state.of.entry(who).or_default().held += bytes;
        }
        Held { shares: self.clone(), reader, bytes }
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.state.lock().held
    }
}

impl State {
    /// Whether a reader may hold so much more; who holds too much already, if not.
    fn fits(&mut self, reader: Reader, bytes: usize, limit: usize) -> Result<(), &mut Of> {
        let left = limit.saturating_sub(self.held).saturating_sub(bytes);
        let most = [(Some(reader.own), left), (reader.site, limit - limit / SITE_PARTS)];
        let full = most.into_iter().find_map(|(who, most)| {
            let held = self.of.get(&who?)?.held;
            (held > 0 && held + bytes > most).then_some(who?)
        });
        match full.and_then(|who| self.of.get_mut(&who)) {
            None => Ok(()),
            Some(of) => Err(of),
        }
    }

    /// Takes back what a reader held, and gives what may be tried for it.
    fn give_back(&mut self, reader: Reader, bytes: usize) -> Vec<Parked> {
        self.held -= bytes;
        let mut again = Vec::new();
        for who in [Some(reader.own), reader.site].into_iter().flatten() {
            let Some(of) = self.of.get_mut(&who) else { continue };
            of.held -= bytes;
            if of.held == 0 {
                again.extend(self.of.remove(&who).into_iter().flat_map(|of| of.parked));
                continue;
            }
            let mut left = bytes as u64;
            while let Some(next) = of.parked.pop_front() {
                left = left.saturating_sub(next.job.length);
                again.push(next);
                if left == 0 {
                    break;
                }
            }
        }
        again
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let again = self.shares.state.lock().give_back(self.reader, self.bytes);
        for Parked { job, queue } in again {
            // Of a disk that stops nothing is read any more: dropped, it is answered as that.
            drop(queue.push(job));
        }
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("reader", &self.reader).field("bytes", &self.bytes).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const MIB: usize = 1 << 20;

    fn at(last: u8) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))
    }

    /// All that a reader gets in pieces of a MiB.
    fn all(shares: &Arc<ReadShares>, reader: Reader) -> Vec<Held> {
        std::iter::from_fn(|| shares.try_take(reader, MIB)).collect()
    }

    /// A key whose holder reads no answers would keep all others from reading.
    #[test]
    fn nobody_holds_more_than_is_left_for_others() {
        let shares = ReadShares::new(125 * MIB);
        let [a, b, c] = [1, 2, 3].map(|n| shares.reader(Some(&format!("k{n}")), at(n)));
        let first = all(&shares, a);
        assert_eq!(first.len(), 50);
        let second = all(&shares, b);
        assert_eq!(second.len(), 25, "and then the next one");
        assert_eq!(all(&shares, c).len(), 12);
        drop(first);
        assert_eq!(all(&shares, c).len(), 37);
        drop(second);
        assert_eq!(shares.held(), 0);
        assert!(shares.state.lock().of.is_empty());
    }

    /// One machine with many keys would have all of it; or another key there nothing, for one that does not read.
    #[test]
    fn an_address_leaves_something_to_others() {
        let shares = ReadShares::new(125 * MIB);
        let held: Vec<Held> = (0..9).flat_map(|n| all(&shares, shares.reader(Some(&format!("k{n}")), at(1)))).collect();
        assert_eq!(held.len(), 75);
        assert!(shares.try_take(shares.reader(Some("other"), at(1)), MIB).is_none());
        assert_eq!(all(&shares, shares.reader(Some("other"), at(2))).len(), 12);
        assert_eq!(all(&shares, shares.reader(None, at(3))).len(), 12, "who has no key is its address");
    }
}
