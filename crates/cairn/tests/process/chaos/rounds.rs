//! The rounds of a run: small shared sets of names, on which clients work until there is enough to check.
//!
//! Some are open at a time, so that a round outlasts a fault. When it is full it rests for a while, so that faults come
//! after its last operation, too; then all of it is listed, which counts as its last operations, and its history has to
//! be one that a file system can have.
use super::names::DIR;
use cairn_history::Round;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Rounds that are worked on at a time.
const OPEN: usize = 3;
/// A full round rests so long at most.
const REST: Duration = Duration::from_secs(30);

struct Resting {
    round: Arc<Round>,
    until: Instant,
}

/// All rounds of a run.
#[derive(Default)]
pub struct Rounds {
    open: Mutex<Vec<Arc<Round>>>,
    resting: Mutex<Vec<Resting>>,
    made: AtomicU64,
}

impl Rounds {
    /// One of the open ones; `None` when a new one is needed first.
    pub fn pick(&self, which: usize) -> Option<Arc<Round>> {
        let mut open = self.open.lock();
        let (full, rest): (Vec<_>, Vec<_>) = open.drain(..).partition(|round| round.is_full());
        *open = rest;
        let mut resting = self.resting.lock();
        for round in full {
            // Rests differ, and follow from nothing that matters.
            let until = Instant::now() + REST.mul_f64((round.inode % 8) as f64 / 8.0);
            resting.push(Resting { round, until });
        }
        if open.len() < OPEN { None } else { Some(open[which % open.len()].clone()) }
    }
    /// Path for a new one.
    pub fn next_path(&self) -> String {
        format!("{DIR}/round-{}", self.made.fetch_add(1, Ordering::Relaxed))
    }
    pub fn add(&self, round: Round) {
        self.open.lock().push(Arc::new(round));
    }
    /// One that nobody works on any more and that rested; in the end all of them.
    pub fn take_rested(&self, in_the_end: bool) -> Option<Arc<Round>> {
        let mut resting = self.resting.lock();
        if in_the_end {
            let open = self.open.lock().drain(..).collect::<Vec<_>>();
            resting.extend(open.into_iter().map(|round| Resting { round, until: Instant::now() }));
        }
        let rested = |it: &Resting| Arc::strong_count(&it.round) == 1 && (in_the_end || it.until <= Instant::now());
        let at = resting.iter().position(rested)?;
        Some(resting.swap_remove(at).round)
    }
    /// One that could not be finished rests again.
    pub fn put_back(&self, round: Arc<Round>) {
        self.resting.lock().push(Resting { round, until: Instant::now() });
    }
}
