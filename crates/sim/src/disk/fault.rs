//! Faults of the simulated disk: rules that make operations fail, and the count of everything that went wrong.
//!
//! Invariant: a fault that changes what the caller sees or what survives is counted exactly once.

use std::ops::Range;

use cairn_env::disk::DiskOp;

use crate::rng::SimRng;

/// What a rule does to an operation that it hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultEffect {
    /// EIO. A failed write has written any prefix; a failed sync has made any subset durable **and forgets the
    /// rest**, which a later sync that succeeds does not bring back; a failed change of names may have happened.
    Io,
    /// ENOSPC, on operations that need space; a write may have written any prefix.
    NoSpace,
    /// EMFILE: the process has no descriptor left.
    NoDescriptors,
    /// A sync says that it is done, and is not: all stays as volatile as it was.
    Forgets,
    /// A read answers with one bit flipped; what is at rest is right.
    Flips,
}

/// Which of the matching operations a rule hits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FaultWhen {
    /// Only the n-th match from now (1 is the next one).
    Nth(u64),
    /// All matches from the n-th on.
    From(u64),
    /// Each match with this probability.
    Chance(f64),
}

/// A rule: which operations fail, and how.
#[derive(Debug, Clone, PartialEq)]
pub struct FaultRule {
    ops: Vec<DiskOp>,
    path: Option<String>,
    range: Option<Range<u64>>,
    when: FaultWhen,
    effect: FaultEffect,
    times: u64,
}

impl FaultRule {
    /// EIO on these operations, on every file, always. Narrow it with the methods below.
    pub fn io(ops: &[DiskOp]) -> Self {
        let when = FaultWhen::From(1);
        Self { ops: ops.to_vec(), path: None, range: None, when, effect: FaultEffect::Io, times: u64::MAX }
    }

    /// ENOSPC on these operations.
    pub fn no_space(ops: &[DiskOp]) -> Self {
        Self { effect: FaultEffect::NoSpace, ..Self::io(ops) }
    }

    /// EMFILE on these operations.
    pub fn no_descriptors(ops: &[DiskOp]) -> Self {
        Self { effect: FaultEffect::NoDescriptors, ..Self::io(ops) }
    }

    /// Syncs of files and directories that do nothing and say that they did: outside of what software can stand on one
    /// disk.
    pub fn forgets() -> Self {
        Self { effect: FaultEffect::Forgets, ..Self::io(&[DiskOp::Sync, DiskOp::SyncDir]) }
    }

    /// Reads with a flipped bit.
    pub fn flips() -> Self {
        Self { effect: FaultEffect::Flips, ..Self::io(&[DiskOp::Read]) }
    }

    /// Only paths that match the pattern, in which `*` stands for any characters.
    pub fn on_path(self, pattern: &str) -> Self {
        Self { path: Some(pattern.into()), ..self }
    }

    /// Only reads and writes that touch this byte range (a latent sector error).
    pub fn on_range(self, range: Range<u64>) -> Self {
        Self { range: Some(range), ..self }
    }

    /// Which matches.
    pub fn when(self, when: FaultWhen) -> Self {
        Self { when, ..self }
    }

    /// At most so many hits.
    pub fn times(self, times: u64) -> Self {
        Self { times, ..self }
    }
}

/// Names a rule, to remove it or to ask how often it hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuleId(pub(super) usize);

/// A rule in force with its counts.
#[derive(Debug, Clone)]
pub(super) struct ActiveRule {
    rule: FaultRule,
    pub(super) enabled: bool,
    matches: u64,
    pub(super) hits: u64,
}

impl ActiveRule {
    pub(super) fn new(rule: FaultRule) -> Self {
        Self { rule, enabled: true, matches: 0, hits: 0 }
    }

    /// The effect if this operation is hit.
    pub(super) fn hit(
        &mut self,
        op: DiskOp,
        path: &str,
        range: Option<&Range<u64>>,
        rng: &SimRng,
    ) -> Option<FaultEffect> {
        let rule = &self.rule;
        let in_range = match (&rule.range, range) {
            (Some(wanted), Some(touched)) => wanted.start < touched.end && touched.start < wanted.end,
            (Some(_), None) => false,
            (None, _) => true,
        };
        let matched = self.enabled
            && self.hits < rule.times
            && rule.ops.contains(&op)
            && in_range
            && rule.path.as_ref().is_none_or(|pattern| matches_pattern(pattern, path));
        if !matched {
            return None;
        }
        self.matches += 1;
        let fires = match rule.when {
            FaultWhen::Nth(n) => self.matches == n,
            FaultWhen::From(n) => self.matches >= n,
            FaultWhen::Chance(p) => rng.chance(p),
        };
        self.hits += u64::from(fires);
        fires.then_some(rule.effect)
    }
}

/// Whether `text` matches `pattern`, in which `*` stands for any characters, `/` included.
fn matches_pattern(pattern: &str, text: &str) -> bool {
    let Some((head, tail)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(rest) = text.strip_prefix(head) else {
        return false;
    };
    (0..=rest.len()).filter(|&at| rest.is_char_boundary(at)).any(|at| matches_pattern(tail, &rest[at..]))
}

/// How often each kind of fault fired since the disk was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FaultCounts {
    /// Crashes (power cuts), and kills of the process alone.
    pub crashes: u64,
    /// Crashes of the process alone, with the kernel's cache surviving.
    pub kills: u64,
    /// Unsynced sectors that kept their old content.
    pub sectors_lost: u64,
    /// Unsynced sectors that got their new (or an intermediate) content.
    pub sectors_kept: u64,
    /// Unsynced sectors that became a mix of old and new, or garbage.
    pub sectors_torn: u64,
    /// Unsynced sizes that were lost or cut short.
    pub sizes_lost: u64,
    /// Unsynced creates, renames and removes that were undone.
    pub names_lost: u64,
    /// Unsynced creates, renames and removes that survived.
    pub names_kept: u64,
    /// Operations that failed with EIO by a rule.
    pub io_errors: u64,
    /// Sectors forgotten by a failed sync.
    pub sectors_dropped_by_failed_sync: u64,
    /// Operations that failed with ENOSPC, by a rule or the capacity.
    pub no_space: u64,
    /// Operations that failed with EMFILE.
    pub no_descriptors: u64,
    /// Bits flipped at rest.
    pub bits_flipped: u64,
    /// Syncs that did nothing and said that they did.
    pub syncs_forgotten: u64,
    /// Reads that were answered with a flipped bit.
    pub reads_flipped: u64,
}

impl FaultCounts {
    /// All faults together; sectors and names that survived a crash count as no fault.
    pub fn total(&self) -> u64 {
        let Self {
            crashes,
            kills,
            sectors_lost,
            sectors_kept: _,
            sectors_torn,
            sizes_lost,
            names_lost,
            names_kept: _,
            io_errors,
            sectors_dropped_by_failed_sync,
            no_space,
            no_descriptors,
            bits_flipped,
            syncs_forgotten,
            reads_flipped,
        } = self;
        crashes
            + kills
            + sectors_lost
            + sectors_torn
            + sizes_lost
            + names_lost
            + io_errors
            + sectors_dropped_by_failed_sync
            + no_space
            + no_descriptors
            + bits_flipped
            + syncs_forgotten
            + reads_flipped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rule that hits other files than meant, or none, would test nothing.
    #[test]
    fn patterns_match_whole_paths() {
        for (pattern, text, hit) in [
            ("a/b", "a/b", true),
            ("a/b", "a/bc", false),
            ("*", "", true),
            ("*.log", "wal/1.log", true),
            ("wal/*", "wal/1.log", true),
            ("wal/*.log", "wal/1.lo", false),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b*", "xxbxxaxx", false),
        ] {
            assert_eq!(matches_pattern(pattern, text), hit, "{pattern} on {text}");
        }
    }

    /// Sweeping the failing operation would skip or repeat one if counting were off.
    #[test]
    fn nth_and_times_count_matches_only() {
        let rng = SimRng::seeded(1);
        let mut rule = ActiveRule::new(FaultRule::io(&[DiskOp::Sync]).on_path("a*").when(FaultWhen::Nth(2)));
        let mut hit = |op, path| rule.hit(op, path, None, &rng).is_some();
        assert!(!hit(DiskOp::Sync, "a1"));
        assert!(!hit(DiskOp::Write, "a1"));
        assert!(!hit(DiskOp::Sync, "b1"));
        assert!(hit(DiskOp::Sync, "a2"));
        assert!(!hit(DiskOp::Sync, "a2"));
        assert_eq!(rule.hits, 1);
        let mut rule = ActiveRule::new(FaultRule::io(&[DiskOp::Read]).on_range(10..20).times(2));
        let reads = [0..10, 5..11, 15..16, 19..30];
        let hits = reads.map(|range| rule.hit(DiskOp::Read, "x", Some(&range), &rng).is_some());
        assert_eq!(hits, [false, true, true, false]);
    }
}
