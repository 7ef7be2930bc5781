//! Files without a name that somebody was refused, because another machine may have given their names to others: a
//! kernel that is told so looks the name up again. A program that has such a file open, and opens it again through
//! that, comes a second time.
use parking_lot::Mutex;
use std::collections::VecDeque;

/// Refusals that are remembered. They are followed by the second question at once.
const MAX: usize = 1024;

#[derive(Default)]
pub(crate) struct Nameless {
    /// Inodes, and who was refused.
    refused: Mutex<VecDeque<(u64, u32)>>,
}

impl Nameless {
    /// Whether he was just refused this inode, and wants it all the same. If not he is refused it now.
    pub(crate) fn is_meant(&self, ino: u64, pid: u32) -> bool {
        let mut refused = self.refused.lock();
        let before = refused.len();
        refused.retain(|known| *known != (ino, pid));
        if refused.len() < before {
            return true;
        }
        if before == MAX {
            refused.pop_front();
        }
        refused.push_back((ino, pid));
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that was removed could not be opened again by those who have it open; or be opened at once by its old
    /// name.
    #[test]
    fn who_comes_again_means_it() {
        let nameless = Nameless::default();
        assert!(!nameless.is_meant(5, 1) && !nameless.is_meant(5, 2) && !nameless.is_meant(6, 1));
        assert!(nameless.is_meant(5, 1) && !nameless.is_meant(5, 1), "once");
        assert!(nameless.is_meant(5, 2));
        assert!((0..2 * MAX as u64).all(|ino| !nameless.is_meant(1000 + ino, 9)));
        assert!(nameless.refused.lock().len() == MAX && !nameless.is_meant(6, 1), "bounded");
    }
}
