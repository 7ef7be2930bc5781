//! [`Copies`]: what the disks of a place held at earlier moments, one of which may come back (a restored snapshot, a
//! machine that was rolled back).
//!
//! Not here: when copies are made and which comes back ([`crate::faults`]).

use cairn_env::disk::{Disk, OpenOptions};
use cairn_format::generation::{GENERATION_LEN, GENERATION_SLOT, GenerationRecord};
use cairn_sim::{SimDisk, SimRng};
use cairn_types::generation::Lineage;

/// Copies that are kept of a place.
const KEPT_MAX: usize = 4;

/// Copies of one place. The first one stays as long as there is room for two, so some are as old as the run.
#[derive(Debug)]
pub struct Copies<T> {
    kept: Vec<T>,
}

impl<T> Default for Copies<T> {
    fn default() -> Self {
        Self { kept: Vec::new() }
    }
}

impl<T> Copies<T> {
    /// One more; with too many of them one of the later ones goes.
    pub fn keep(&mut self, copy: T, rng: &SimRng) {
        if self.kept.len() >= KEPT_MAX {
            self.kept.remove(1 + rng.index(KEPT_MAX - 1));
        }
        self.kept.push(copy);
    }

    /// They are of disks that are gone.
    pub fn clear(&mut self) {
        self.kept.clear();
    }

    /// Any of those that fit.
    pub fn pick(&self, rng: &SimRng, fits: impl Fn(&T) -> bool) -> Option<&T> {
        let fitting: Vec<&T> = self.kept.iter().filter(|copy| fits(copy)).collect();
        if fitting.is_empty() { None } else { Some(*rng.pick(&fitting)) }
    }

    /// Whether any fits.
    pub fn has(&self, fits: impl Fn(&T) -> bool) -> bool {
        self.kept.iter().any(fits)
    }
}

/// What the disk of a data node says of its generations, if it can be read.
pub fn lineage(disk: &SimDisk) -> Option<Lineage> {
    let file = disk.open("generation", OpenOptions::READ).ok()?;
    let slot = |slot: u64| {
        let mut bytes = [0; GENERATION_LEN];
        file.read_exact_at(&mut bytes, slot * GENERATION_SLOT).ok()?;
        GenerationRecord::decode(&bytes).ok().map(|record| record.lineage)
    };
    let slots = [slot(0), slot(1)].into_iter().flatten();
    slots.max_by_key(|lineage| lineage.present().map_or(0, |present| present.number))
}
