//! Access times: when reading changes them, and those of files and directories that are not open and that the servers
//! were not told of yet.
//!
//! Invariant: what was shown once does not go back: a time stays here until the servers have it, or until it is set
//! explicitly. A process that dies loses those of the last half minute.
use crate::options::Atime;
use cairn_client::attributes::Attributes;
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Access times that wait to be sent.
const MAX: usize = 65_536;
const DAY_NS: i64 = 24 * 3600 * 1_000_000_000;

/// Whether an access at `now` changes what is shown; times are nanoseconds since 1970, negative before.
pub(crate) fn changes(policy: Atime, seen: &Attributes, now: i64) -> bool {
    match policy {
        Atime::Never => false,
        Atime::Strict => true,
        Atime::Relative => {
            let newer = seen.mtime_ns.max(seen.ctime_ns);
            seen.atime_ns <= newer || seen.atime_ns.saturating_add(DAY_NS) < now
        }
    }
}

/// By inode.
#[derive(Default)]
pub(crate) struct Atimes {
    waiting: Mutex<BTreeMap<u64, i64>>,
}

impl Atimes {
    /// 0: there is nothing to note. With too many the newest are left out.
    pub(crate) fn note(&self, ino: u64, ns: i64) {
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
            Some(ns) => Attributes { atime_ns: found.atime_ns.max(*ns), ..*found },
            None => *found,
        }
    }
    pub(crate) fn all(&self) -> Vec<(u64, i64)> {
        self.waiting.lock().iter().map(|(ino, ns)| (*ino, *ns)).collect()
    }
    /// The servers have it, or will never take it.
    pub(crate) fn was_sent(&self, ino: u64, ns: i64) {
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
            atime_ns: atime,
            mtime_ns: mtime,
            ctime_ns: ctime,
            ..Attributes::default()
        };
        let now = 10 * DAY_NS;
        let relative = |atime, mtime, ctime| changes(Atime::Relative, &seen(atime, mtime, ctime), now);
        assert!(relative(5, 5, 4) && relative(5, 4, 5) && relative(-7, 4, 5));
        assert!(relative(now - DAY_NS - 1, 4, 5) && !relative(now - DAY_NS, 4, 5) && !relative(now, 4, 5));
        assert!(changes(Atime::Strict, &seen(now, 4, 5), now));
        assert!(!changes(Atime::Never, &seen(1, 4, 5), now));
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
