//! Directories that this mount made a moment ago, and the names that it knows in them: every other name does not exist, as far
//! as negative entries may be believed at all. A program that unpacks looks for each name before it makes it.
//!
//! Invariants: a name is noted before whoever makes it asks the servers; nothing is said for longer than `negative_ttl` after the
//! directory was asked for, and only to who made it, while he may search it.
use crate::caller::Caller;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

/// Directories that are remembered; the oldest one is forgotten for the next.
const DIRECTORIES_MAX: usize = 1024;
/// Names of one of them; with more of them it is forgotten.
const NAMES_MAX: usize = 4096;

#[derive(Default)]
pub(crate) struct NewDirs {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    directories: HashMap<u64, NewDir>,
    /// In the order in which they were made.
    order: VecDeque<u64>,
}

struct NewDir {
    until: Instant,
    maker: (u32, u32),
    names: HashSet<Box<[u8]>>,
}

impl NewDirs {
    /// The caller made the directory, is its owner and may search it.
    pub(crate) fn add(&self, caller: &Caller, directory: u64, until: Instant) {
        let now = Instant::now();
        let mut state = self.state.lock();
        while let Some(oldest) = state.order.front().copied() {
            let is_old = state.directories.get(&oldest).is_none_or(|dir| dir.until <= now);
            if !is_old && state.order.len() < DIRECTORIES_MAX {
                break;
            }
            state.order.pop_front();
            state.directories.remove(&oldest);
        }
        if now < until {
            let new = NewDir { until, maker: (caller.uid, caller.gid), names: HashSet::new() };
            state.directories.insert(directory, new);
            state.order.push_back(directory);
        }
    }
    /// A name is about to be made there, or was seen.
    pub(crate) fn note_name(&self, directory: u64, name: &[u8]) {
        let mut state = self.state.lock();
        let Some(dir) = state.directories.get_mut(&directory) else { return };
        dir.names.insert(name.into());
        if dir.names.len() > NAMES_MAX {
            state.directories.remove(&directory);
        }
    }
    /// Who may search it changed.
    pub(crate) fn forget(&self, directory: u64) {
        self.state.lock().directories.remove(&directory);
    }
    /// How long it may still be said that the name does not exist; `None`: the servers have to be asked.
    pub(crate) fn lacks(&self, caller: &Caller, directory: u64, name: &[u8]) -> Option<Duration> {
        let state = self.state.lock();
        let dir = state.directories.get(&directory)?;
        let left = dir.until.saturating_duration_since(Instant::now());
        let may_know = dir.maker == (caller.uid, caller.gid);
        (may_know && !left.is_zero() && !dir.names.contains(name)).then_some(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn user(uid: u32) -> Caller {
        Caller { uid, gid: 6, groups: Arc::new([]), pid: 1, umask: 0 }
    }

    /// A file that is there would not be found, or nothing but what was looked for lately would be known.
    #[test]
    fn only_what_nobody_made_is_missing() {
        let (dirs, later) = (NewDirs::default(), Instant::now() + Duration::from_secs(60));
        dirs.add(&user(5), 7, later);
        dirs.note_name(7, b"made");
        assert!(dirs.lacks(&user(5), 7, b"made").is_none());
        assert!(dirs.lacks(&user(5), 7, b"other").is_some_and(|left| left <= Duration::from_secs(60)));
        assert!(dirs.lacks(&user(6), 7, b"other").is_none(), "he may not be allowed to search it");
        assert!(dirs.lacks(&user(5), 8, b"other").is_none(), "nobody knows that directory");
        dirs.forget(7);
        assert!(dirs.lacks(&user(5), 7, b"other").is_none());
        dirs.add(&user(5), 9, Instant::now());
        assert!(dirs.lacks(&user(5), 9, b"other").is_none(), "its time is over");
    }

    /// The memory of a mount would grow with all that is ever made.
    #[test]
    fn it_stays_within_its_bounds() {
        let (dirs, later) = (NewDirs::default(), Instant::now() + Duration::from_secs(60));
        for directory in 0..3 * DIRECTORIES_MAX as u64 {
            dirs.add(&user(5), directory, later);
        }
        let newest = 3 * DIRECTORIES_MAX as u64 - 1;
        assert!(dirs.state.lock().directories.len() <= DIRECTORIES_MAX);
        assert!(dirs.state.lock().order.len() <= DIRECTORIES_MAX);
        assert!(dirs.lacks(&user(5), newest, b"a").is_some() && dirs.lacks(&user(5), 0, b"a").is_none());
        for name in 0..=NAMES_MAX {
            dirs.note_name(newest, name.to_string().as_bytes());
        }
        assert!(dirs.lacks(&user(5), newest, b"a").is_none());
    }
}
