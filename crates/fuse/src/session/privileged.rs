//! Inodes that were seen with a setuid or setgid bit, which a write may take away.
//!
//! The kernel says of every write of an ordinary user that it takes these bits away, whether they are set or not. It
//! knows attributes only from answers of this mount, so remembering them here saves asking for attributes before each
//! write.
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};

/// More than this and every file counts as one, until the set is empty again.
const KNOWN_MAX: usize = 1 << 16;

#[derive(Default)]
pub struct Privileged {
    known: Mutex<HashSet<u64>>,
    count: AtomicUsize,
}

impl Privileged {
    /// Notes attributes that go to the kernel.
    pub fn see(&self, ino: u64, mode: u32) {
        let loses = mode & libc::S_IFMT == libc::S_IFREG && mode & (libc::S_ISUID | libc::S_ISGID) != 0;
        if !loses && self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut known = self.known.lock();
        if loses {
            if known.len() < KNOWN_MAX {
                known.insert(ino);
            }
        } else {
            known.remove(&ino);
        }
        self.count.store(known.len(), Ordering::Relaxed);
    }
    /// Whether a write has to take bits away.
    pub fn contains(&self, ino: u64) -> bool {
        match self.count.load(Ordering::Relaxed) {
            0 => false,
            count => count >= KNOWN_MAX || self.known.lock().contains(&ino),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program would keep the rights of its owner after somebody else wrote into it.
    #[test]
    fn what_loses_bits_is_remembered_until_it_has_none() {
        let set = Privileged::default();
        set.see(5, libc::S_IFREG | 0o4755);
        set.see(6, libc::S_IFREG | 0o2644);
        set.see(7, libc::S_IFDIR | 0o6755);
        assert!(set.contains(5) && set.contains(6) && !set.contains(7));
        set.see(5, libc::S_IFREG | 0o755);
        assert!(!set.contains(5));
    }
}
