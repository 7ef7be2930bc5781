//! Files that somebody waits for: `cairn fs layout encode` asks for them before their time has come, so that they are
//! encoded together where they lie, and not one by one through another rack.
//!
//! Who waits asks again and again, and is told each time which files he still has to wait for. All others he encodes
//! by themselves, if they are not encoded yet. So nothing has to be remembered beyond [`KEPT`] without a question.
//!
//! Invariants: whoever asks is not kept waiting by a file that is not encoded together: what lies in no column, and
//! what cannot be put together with others, is given up. Bound: [`FILES_MAX`] files. Not here: how (`together`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cairn_types::{Time, WallTime};
use parking_lot::Mutex;

/// Files that are waited for at a time.
const FILES_MAX: usize = 1 << 16;
/// A file for which nobody asked for so long is not waited for any more.
const KEPT: Duration = Duration::from_secs(30);
/// A chunk waits so long for more files that somebody asks for.
const FILLS: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, Debug)]
struct Mark {
    since: WallTime,
    heard: Time,
    /// It is not encoded together with others.
    given_up: bool,
}

/// What is asked for of a partition's leader.
#[derive(Debug, Default)]
pub(crate) struct Asked(Mutex<BTreeMap<u64, Mark>>);

/// What a look found of it: the stripe groups in which the files lie.
pub(super) type Seen = BTreeMap<u64, u32>;
/// In place of a stripe group: the map with the file's placement group is on its way.
pub(super) const NOT_KNOWN: u32 = 0;

impl Asked {
    /// Those of the files that are to be waited for; `can`: whether one may be encoded together with others.
    pub(crate) fn ask(&self, inodes: &[u64], (now, wall): (Time, WallTime), can: impl Fn(u64) -> bool) -> Vec<u64> {
        let mut marks = self.0.lock();
        marks.retain(|_, mark| now.since(mark.heard) < KEPT);
        let mut waiting = Vec::new();
        for inode in inodes.iter().copied() {
            if !can(inode) {
                // Who asks encodes it by itself.
                marks.remove(&inode);
                continue;
            }
            if marks.len() >= FILES_MAX && !marks.contains_key(&inode) {
                continue;
            }
            let mark = marks.entry(inode).or_insert(Mark { since: wall, heard: now, given_up: false });
            mark.heard = now;
            if !mark.given_up {
                waiting.push(inode);
            }
        }
        waiting
    }

    pub(super) fn forget(&self) {
        self.0.lock().clear();
    }

    /// Until when a file for which somebody asks waits for a chunk to be filled; `None`: nobody does.
    pub(super) fn fills_until(&self, inode: u64) -> Option<WallTime> {
        let wait = u64::try_from(FILLS.as_nanos()).unwrap_or(u64::MAX);
        let marks = self.0.lock();
        marks.get(&inode).filter(|mark| !mark.given_up).map(|mark| WallTime(mark.since.0.saturating_add(wait)))
    }

    /// After a look that began at `start`: what it found is waited for if its stripe group goes on, and nothing else.
    pub(super) fn settle(&self, seen: &Seen, go_on: &BTreeSet<u32>, (start, now): (WallTime, Time)) {
        self.0.lock().retain(|inode, mark| {
            let goes_on = seen.get(inode).is_some_and(|group| *group == NOT_KNOWN || go_on.contains(group));
            mark.given_up |= mark.since < start && !goes_on;
            now.since(mark.heard) < KEPT
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> (Time, WallTime) {
        (Time(seconds * 1_000_000_000), WallTime(seconds * 1_000_000_000))
    }

    /// A job would wait for ever for files that nobody encodes together, or not at all for those that are.
    #[test]
    fn who_asks_waits_for_what_goes_on_and_for_nothing_else() {
        let asked = Asked::default();
        let ask = |inodes: &[u64], seconds| asked.ask(inodes, at(seconds), |inode| inode != 5);
        assert_eq!(ask(&[1, 2, 3, 5], 100), [1, 2, 3], "5 lies in no column");
        assert_eq!(asked.fills_until(1), Some(at(103).1));
        assert_eq!((asked.fills_until(5), asked.fills_until(9)), (None, None));
        // Came while the look was under way, which may have been past it.
        assert_eq!(ask(&[4], 101), [4]);
        let seen = Seen::from([(1, 70), (2, 71)]);
        let settle = |go_on: &[u32], seconds| {
            asked.settle(&seen, &go_on.iter().copied().collect(), (at(101).1, at(seconds).0));
        };
        settle(&[70], 102);
        assert_eq!(ask(&[1, 2, 3, 4], 103), [1, 4], "the group of 2 does not go on, 3 does not wait any more");
        assert_eq!((asked.fills_until(2), asked.fills_until(1)), (None, Some(at(103).1)));
        settle(&[], 104);
        assert_eq!(ask(&[1, 2, 3, 4], 105), [4]);
        // What was written a moment ago, of whose group the leader has not heard.
        assert_eq!(ask(&[6], 105), [6]);
        asked.settle(&Seen::from([(6, NOT_KNOWN)]), &BTreeSet::new(), (at(106).1, at(107).0));
        assert_eq!(ask(&[6], 108), [6]);
        // Its column lacks a member by now.
        assert!(asked.ask(&[4], at(105), |_| false).is_empty() && asked.fills_until(4).is_none());
        // Asked for anew, long after.
        assert_eq!(ask(&[1], 140), [1]);
    }

    /// A process could be made to remember all files of a volume.
    #[test]
    fn what_is_remembered_has_a_bound_and_an_end() {
        let asked = Asked::default();
        let many: Vec<u64> = (0..FILES_MAX as u64 + 10).collect();
        assert_eq!(asked.ask(&many, at(1), |_| true).len(), FILES_MAX);
        assert_eq!(asked.ask(&many[FILES_MAX..], at(2), |_| true), [] as [u64; 0]);
        asked.settle(&Seen::new(), &BTreeSet::new(), (at(1).1, at(32).0));
        assert_eq!(asked.ask(&many[FILES_MAX..], at(33), |_| true).len(), 10);
    }
}
