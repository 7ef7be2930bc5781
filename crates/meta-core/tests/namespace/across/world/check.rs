//! The check of names over partitions ([`Review`]), a little at a time between everything else: it looks at all inodes
//! as if each were suspect, and must find nothing, whatever is under way.
use super::{PARTITIONS, RANGE, World};
use crate::across::choose::Rng;
use cairn_meta_core::{Look, NameScan, Review};

/// Looks of one check.
const LOOKS: u32 = 12;
/// More inodes than one partition has here.
const INODES: u64 = 400;

/// The check that is under way.
pub struct Checks {
    /// Its own, so that schedules stay what they are.
    rng: Rng,
    at: u32,
    looks: u32,
    review: Option<Review>,
    look: Option<Look>,
    /// Partitions that the look has not come to yet.
    left: Vec<u32>,
}

impl Checks {
    pub fn new(seed: u64) -> Checks {
        Checks { rng: Rng(!seed), at: 1, looks: 0, review: None, look: None, left: Vec::new() }
    }
}

fn inodes_of(at: u32) -> impl Iterator<Item = u64> {
    let first = (u64::from(at - 1) * RANGE).max(1);
    first..first + INODES
}

impl World {
    fn add_names(&self, at: u32, inodes: &[u64], look: &mut Look) {
        let snapshot = self.parts[at as usize - 1].namespace.snapshot();
        let mut scan = NameScan::of(&snapshot, inodes.iter().copied());
        while scan.step(&snapshot, 100) {}
        let (names, _, locks) = scan.into_parts();
        look.add(at, names, locks);
    }

    pub(super) fn check_a_little(&mut self) {
        if self.checks.rng.below(4) > 0 {
            return;
        }
        let Some(mut review) = self.checks.review.take() else {
            self.checks.at = 1 + self.checks.rng.below(PARTITIONS.into()) as u32;
            (self.checks.looks, self.checks.look) = (0, None);
            self.checks.review = Some(Review::new(inodes_of(self.checks.at)));
            return;
        };
        let open = review.open();
        match (self.checks.look.take(), self.checks.left.pop()) {
            (None, _) => {
                let own = self.parts[self.checks.at as usize - 1].namespace.snapshot();
                let mut look = Look::new(&own, &open);
                self.add_names(self.checks.at, &open, &mut look);
                self.checks.look = Some(look);
                self.checks.left = (1..=PARTITIONS).filter(|other| *other != self.checks.at).collect();
                if self.checks.rng.below(2) == 0 {
                    self.checks.left.reverse();
                }
            }
            (Some(mut look), Some(other)) => {
                self.add_names(other, &open, &mut look);
                self.checks.look = Some(look);
            }
            (Some(look), None) => {
                review.conclude(look);
                self.checks.looks += 1;
                if review.open().is_empty() || self.checks.looks == LOOKS {
                    self.note(if self.checks.looks == 1 { "checked at once" } else { "checked again" });
                    let found = review.into_suspicions(false);
                    assert!(found.is_empty(), "partition {}: {found:?}", self.checks.at);
                    return;
                }
            }
        }
        self.checks.review = Some(review);
    }

    /// Nothing is under way any more: one look says so.
    pub(super) fn check_all(&mut self) {
        if self.parts.iter().any(|part| !part.namespace.tx_locks(1).is_empty()) {
            return;
        }
        self.note("checked in the end");
        for at in 1..=PARTITIONS {
            let mut review = Review::new(inodes_of(at));
            let own = self.parts[at as usize - 1].namespace.snapshot();
            let mut look = Look::new(&own, &review.open());
            (1..=PARTITIONS).for_each(|other| self.add_names(other, &review.open(), &mut look));
            review.conclude(look);
            assert_eq!(review.open(), [], "partition {at}");
        }
    }
}
