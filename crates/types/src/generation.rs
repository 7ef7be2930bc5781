//! [`Generation`]: how often a disk has risen above what it was, and [`Lineage`]: the generations that it went through.
//!
//! The number rises with each start of the disk's server and now and then while something is written; the nonce is
//! drawn anew at each start. So a copy of a disk that goes on by itself has nonces that the other one never had, and a
//! disk that is an older copy of itself has a lower number. Not here: where it is kept (format), what follows from it
//! (manager).

use std::fmt;

/// Runs that a lineage names: starts of the disk's server.
pub const LINEAGE_MAX: usize = 16;

/// A moment in the life of a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Generation {
    /// Never given twice by one disk.
    pub number: u64,
    /// Of the start in which it was given.
    pub nonce: u64,
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "g{}", self.number)
    }
}

/// What a disk went through: of each of its last starts the last generation, oldest first; the last one is the present.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Lineage {
    /// At most [`LINEAGE_MAX`], numbers and nonces differ; none: the disk keeps no generation.
    pub runs: Vec<Generation>,
    /// The manager has logged that number, or a later one.
    pub confirmed: u64,
}

impl Lineage {
    /// The present one.
    pub fn present(&self) -> Option<Generation> {
        self.runs.last().copied()
    }

    /// The disk's server starts: the next number under a new nonce.
    pub fn start(&mut self, nonce: u64) {
        let number = self.present().map_or(1, |present| present.number + 1);
        if self.runs.len() >= LINEAGE_MAX {
            self.runs.remove(0);
        }
        self.runs.push(Generation { number, nonce });
    }

    /// Something was written since the last rise.
    pub fn rise(&mut self) {
        if let Some(present) = self.runs.last_mut() {
            present.number += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk could not show that it follows what the manager knows, and would be compared with others for nothing.
    #[test]
    fn the_last_starts_are_kept() {
        let mut lineage = Lineage::default();
        lineage.rise();
        assert_eq!(lineage.present(), None, "nothing rises before the first start");
        for nonce in 0..20 {
            lineage.start(nonce);
            lineage.rise();
        }
        assert_eq!(lineage.runs.len(), LINEAGE_MAX);
        assert_eq!(lineage.runs[0], Generation { number: 10, nonce: 4 });
        assert_eq!(lineage.present(), Some(Generation { number: 40, nonce: 19 }));
        assert!(lineage.runs.windows(2).all(|pair| pair[0].number < pair[1].number));
    }
}
