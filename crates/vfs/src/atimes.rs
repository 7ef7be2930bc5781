//! Access times: when reading changes them, and those of files and directories that are not open and that the servers
//! were not told of yet.
//!
//! Invariant: what was shown once does not go back: a time stays here until the servers have it, or until it is set
//! explicitly. A process that dies loses those of the last half minute.
use crate::options::Atime;
use cairn_wire::meta::Attributes;
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Access times that wait to be sent.
const MAX: usize = 65_536;
const DAY_NS: i64 = 24 * 3600 * 1_000_000_000;

/// Whether an access at `now` changes what is shown; times are nanoseconds since 1970, negative before.
pub(crate) fn changes(policy: Atime, seen: &Attributes, now_ns: u64) -> bool {
    let (atime, now) = (seen.atime_ns as i64, now_ns as i64);
    match policy {
        Atime::Never => false,
        Atime::Strict => true,
        Atime::Relative => {
            let newer = (seen.mtime_ns as i64).max(seen.ctime_ns as i64);
            atime <= newer || atime.saturating_add(DAY_NS) < now
        }
    }
}

/// The later one of two times.
pub(crate) fn later(one_ns: u64, other_ns: u64) -> u64 {
    (one_ns as i64).max(other_ns as i64) as u64
}

/// By inode.
#[derive(Default)]
pub(crate) struct Atimes {
    waiting: Mutex<BTreeMap<u64, u64>>,
}

impl Atimes {
    /// 0: there is nothing to note. With too many the newest are left out.
    pub(crate) fn note(&self, ino: u64, ns: u64) {
        let mut waiting = self.waiting.lock();
        if ns != 0 && (waiting.len() < MAX || waiting.contains_key(&ino)) {
            waiting.insert(ino, ns);
        }
    }
    /// It was set explicitly, or the inode is gone.
    pub(crate) fn forget(&self, ino: u64) {
        self.waiting.lock().remove(&ino);
    }
    /// Attributes of an answer with the time that the servers do not know.
    pub(crate) fn put_over(&self, found: &Attributes) -> Attributes {
        let waiting = self.waiting.lock();
        match waiting.get(&found.inode) {
            Some(ns) => Attributes { atime_ns: later(found.atime_ns, *ns), ..*found },
            None => *found,
        }
    }
    pub(crate) fn all(&self) -> Vec<(u64, u64)> {
        self.waiting.lock().iter().map(|(ino, ns)| (*ino, *ns)).collect()
    }
    /// The servers have it, or will never take it.
    pub(crate) fn was_sent(&self, ino: u64, ns: u64) {
        let mut waiting = self.waiting.lock();
        if waiting.get(&ino) == Some(&ns) {
            waiting.remove(&ino);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every read would be a change of the file, or none ever; times before 1970 count as such.
    #[test]
    fn reading_changes_what_is_older() {
        let seen = |atime: i64, mtime: i64, ctime: i64| Attributes {
            atime_ns: atime as u64,
            mtime_ns: mtime as u64,
            ctime_ns: ctime as u64,
            ..Attributes::default()
        };
        let now = 10 * DAY_NS;
        let relative = |atime, mtime, ctime| changes(Atime::Relative, &seen(atime, mtime, ctime), now as u64);
        assert!(relative(5, 5, 4) && relative(5, 4, 5) && relative(-7, 4, 5));
        assert!(relative(now - DAY_NS - 1, 4, 5) && !relative(now - DAY_NS, 4, 5) && !relative(now, 4, 5));
        assert!(changes(Atime::Strict, &seen(now, 4, 5), now as u64));
        assert!(!changes(Atime::Never, &seen(1, 4, 5), now as u64));
        assert_eq!((later(7, -1i64 as u64), later(-1i64 as u64, 7)), (7, 7));
    }

    /// A time would go back while it is sent, or a newer one be lost.
    #[test]
    fn a_time_stays_until_it_was_sent() {
        let atimes = Atimes::default();
        atimes.note(5, 100);
        let found = Attributes { inode: 5, atime_ns: 40, ..Attributes::default() };
        let sent = atimes.all();
        assert_eq!(atimes.put_over(&found).atime_ns, 100);
        atimes.note(5, 200);
        sent.iter().for_each(|(ino, ns)| atimes.was_sent(*ino, *ns));
        assert_eq!(atimes.put_over(&found).atime_ns, 200, "it was noted since");
        atimes.was_sent(5, 200);
        assert_eq!(atimes.put_over(&found).atime_ns, 40);
        for ino in 10..10 + MAX as u64 + 5 {
            atimes.note(ino, 1);
        }
        assert_eq!(atimes.all().len(), MAX);
    }
}
