//! Decides which shards a striped read asks, and when it has enough. Pure: time and answers come in, requests go out.
//!
//! All shards are asked for the same range: the whole blocks around what the columns hold of the bytes wanted. First
//! the columns that hold them; as soon as one of those failed, is late or is known to be slow, others as well, data
//! before parity, until k are there or on their way. Invariant: a block is decoded only from k shards that all cover
//! the range.
use cairn_env::buf::SharedBuf;
use cairn_erasure::ShardSet;
use cairn_types::{BLOCK_SIZE, Stripe, Time};
use std::time::Duration;

/// A shard's whole blocks of the range, each of which matched its checksum.
#[derive(Clone, Debug)]
pub(crate) struct ShardBytes {
    pub data: SharedBuf,
    /// Of a parity shard: k checksums a block.
    pub row_crcs: Vec<u8>,
}

/// What is known of a shard's member before it is asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    Good,
    /// Asked only when there is no other way.
    Slow,
    /// Not asked; the text says why.
    Absent(String),
}

#[derive(Debug)]
enum State {
    Idle(Standing),
    Asked(Time),
    Have(ShardBytes),
    Failed(String),
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Wait,
    /// Every column that is wanted is there.
    Complete,
    /// Compute the missing columns from the shards that are there.
    Decode {
        present: ShardSet,
        missing: Vec<usize>,
    },
    /// Fewer than k shards can be had.
    Failed,
}

/// One read of a range of a striped chunk.
#[derive(Debug)]
pub(crate) struct RowRead {
    k: usize,
    /// Range in the shards, whole blocks.
    pub offset: u64,
    pub length: u64,
    wanted: ShardSet,
    shards: Vec<State>,
    hedged: bool,
}

impl RowRead {
    /// Reads `from..to` of the logical space; `standing` by shard number.
    pub(crate) fn new(stripe: Stripe, from: u64, to: u64, standing: Vec<Standing>) -> Self {
        let parts: Vec<_> = (0..stripe.columns()).filter_map(|column| stripe.part(column, from, to)).collect();
        let start = parts.iter().map(|p| p.offset).min().unwrap_or(0);
        let end = parts.iter().map(|p| p.offset + p.length).max().unwrap_or(0);
        let offset = start - start % BLOCK_SIZE as u64;
        Self {
            k: usize::from(stripe.columns()),
            offset,
            length: end.next_multiple_of(BLOCK_SIZE as u64) - offset,
            wanted: parts.iter().map(|p| usize::from(p.column)).collect(),
            shards: standing.into_iter().map(State::Idle).collect(),
            hedged: false,
        }
    }

    /// Shards to ask now. `late_after`: how long an answer may take; `may_hedge` is asked once before lateness alone
    /// causes further requests.
    pub(crate) fn asks(&mut self, now: Time, late_after: Duration, may_hedge: impl FnOnce() -> bool) -> Vec<usize> {
        let mut asks: Vec<usize> =
            self.wanted.iter().filter(|s| matches!(self.shards[*s], State::Idle(Standing::Good))).collect();
        self.mark_asked(&asks, now);
        let late = self.late(now, late_after);
        let lost = self.wanted.iter().any(|s| {
            let state = &self.shards[s];
            matches!(state, State::Failed(_) | State::Idle(_))
        });
        let late_wanted = self.wanted.iter().filter(|s| late.contains(*s)).count();
        if !lost && late_wanted == 0 {
            return asks;
        }
        let good: Vec<usize> = self.idle(|standing| *standing == Standing::Good);
        if !lost && !self.hedged {
            // With more late ones than spare shards, the others would not help.
            if late_wanted > good.len() || !may_hedge() {
                return asks;
            }
            self.hedged = true;
        }
        let coming = |state: &State| matches!(state, State::Have(_) | State::Asked(_));
        let live = (self.matching(coming) - late).len();
        let mut more: Vec<usize> = good.into_iter().take(self.k.saturating_sub(live)).collect();
        if live + more.len() < self.k {
            let slow = self.idle(|standing| *standing == Standing::Slow);
            more.extend(slow.into_iter().take(self.k - live - more.len()));
        }
        self.mark_asked(&more, now);
        asks.extend(more);
        asks
    }
    fn idle(&self, fits: impl Fn(&Standing) -> bool) -> Vec<usize> {
        let idle = |(shard, state): (usize, &State)| match state {
            State::Idle(standing) if fits(standing) => Some(shard),
            _ => None,
        };
        self.shards.iter().enumerate().filter_map(idle).collect()
    }
    fn matching(&self, fits: impl Fn(&State) -> bool) -> ShardSet {
        self.shards.iter().enumerate().filter(|(_, state)| fits(state)).map(|(shard, _)| shard).collect()
    }
    fn mark_asked(&mut self, shards: &[usize], now: Time) {
        for shard in shards {
            self.shards[*shard] = State::Asked(now);
        }
    }

    /// A shard was answered: its bytes, or why not.
    pub(crate) fn answered(&mut self, shard: usize, answer: std::result::Result<ShardBytes, String>) {
        self.shards[shard] = match answer {
            Ok(bytes) => State::Have(bytes),
            Err(text) => State::Failed(text),
        };
    }
    pub(crate) fn step(&self) -> Step {
        let have = self.matching(|state| matches!(state, State::Have(_)));
        let missing: Vec<usize> = (self.wanted - have).iter().collect();
        if missing.is_empty() {
            return Step::Complete;
        }
        if have.len() >= self.k {
            return Step::Decode { present: have, missing };
        }
        let outstanding = self.shards.iter().any(|state| matches!(state, State::Asked(_)));
        let left = self.shards.iter().any(|s| matches!(s, State::Idle(Standing::Good | Standing::Slow)));
        if outstanding || left { Step::Wait } else { Step::Failed }
    }
    /// When the next outstanding answer becomes late.
    pub(crate) fn next_late(&self, now: Time, late_after: Duration) -> Option<Time> {
        let asked = self.shards.iter().filter_map(|state| match state {
            State::Asked(at) => Some(*at + late_after),
            _ => None,
        });
        asked.filter(|at| *at > now).min()
    }
    /// Shards that were asked so long ago that they should have answered.
    pub(crate) fn late(&self, now: Time, late_after: Duration) -> ShardSet {
        self.matching(|state| matches!(state, State::Asked(at) if now.since(*at) >= late_after))
    }
    /// Whether without these fewer than k shards can be had.
    pub(crate) fn hangs_on(&self, late: ShardSet) -> bool {
        let may_come = |state: &State| !matches!(state, State::Failed(_) | State::Idle(Standing::Absent(_)));
        (self.matching(may_come) - late).len() < self.k
    }
    pub(crate) fn bytes(&self, shard: usize) -> Option<&ShardBytes> {
        match self.shards.get(shard)? {
            State::Have(bytes) => Some(bytes),
            _ => None,
        }
    }
    /// Every shard that cannot be had, and why.
    pub(crate) fn failures(&self) -> Vec<(usize, String)> {
        let why = |(shard, state): (usize, &State)| match state {
            State::Failed(text) | State::Idle(Standing::Absent(text)) => Some((shard, text.clone())),
            _ => None,
        };
        self.shards.iter().enumerate().filter_map(why).collect()
    }
}

#[cfg(test)]
mod tests;
