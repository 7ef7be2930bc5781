//! Which of a file's open appends a writer goes to: many writers are spread over several, in different groups of disks.
//!
//! The primary of each counts its writers and says over how many lanes all should be spread. A writer's lane follows
//! from its number, so when there are twice as many lanes every second writer goes from each to a new one. Nobody has
//! to agree: a lane is right for any writer, at any time. Invariant: a writer leaves a lane when all that it sent there
//! is in the file.
use cairn_wire::data::RecordAppendResponse;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A file has so many at the most.
const LANES_MAX: u32 = 16;
/// A writer goes back to fewer lanes when a quarter of them is enough, so that it does not go to and fro.
const FEWER: u32 = 4;

pub(super) struct Lanes {
    writer: u64,
    /// Over so many lanes all writers are spread, as one of this client's heard.
    known: Arc<AtomicU32>,
    /// Where it is.
    pub lane: u32,
}

/// The lane of a writer, of so many: a power of 2.
pub(super) fn lane_of(writer: u64, count: u32) -> u32 {
    // Numbers may be consecutive, or all even: Fibonacci hashing (Knuth, The Art of Computer Programming 3, 6.4).
    (writer.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u32 & (count - 1)
}

impl Lanes {
    /// `known` is that of the file; 0 counts as 1.
    pub fn new(writer: u64, known: Arc<AtomicU32>) -> Self {
        Self { writer, known, lane: 0 }
    }

    pub fn count(&self) -> u32 {
        self.known.load(Relaxed).max(1)
    }

    pub fn hear(&mut self, answer: &RecordAppendResponse) {
        let (told, count) = (answer.lanes, self.count());
        let is_sound = told.is_power_of_two() && told <= LANES_MAX;
        if is_sound && (told > count || told * FEWER <= count) {
            self.known.store(told, Relaxed);
        }
    }

    fn wanted(&self) -> u32 {
        lane_of(self.writer, self.count())
    }

    pub fn is_elsewhere(&self) -> bool {
        self.wanted() != self.lane
    }

    pub fn change(&mut self) {
        self.lane = self.wanted();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hear(lanes: &mut Lanes, count: u32) {
        lanes.hear(&RecordAppendResponse { lanes: count, ..RecordAppendResponse::default() });
        lanes.change();
    }

    /// All writers would go to the same lanes, or to and fro between them.
    #[test]
    fn writers_are_spread_and_stay() {
        for step in [1, 2, 16] {
            let mut all: Vec<Lanes> = (0..1600u64).map(|i| Lanes::new(i * step, Arc::default())).collect();
            let mut before = vec![0; all.len()];
            for count in [2u32, 4, 8, 16] {
                all.iter_mut().for_each(|lanes| hear(lanes, count));
                let lanes: Vec<u32> = all.iter().map(|lanes| lanes.lane).collect();
                for lane in 0..count {
                    let (here, even) = (lanes.iter().filter(|l| **l == lane).count(), 1600 / count as usize);
                    assert!((even * 3 / 4..even * 5 / 4).contains(&here), "{here} of 1600 in lane {lane} of {count}");
                }
                assert!(before.iter().zip(&lanes).all(|(b, l)| l == b || *l == b + count / 2), "half of each goes");
                before = lanes;
            }
            all.iter_mut().for_each(|lanes| hear(lanes, 8));
            assert!(all.iter().all(|lanes| lanes.count() == 16), "one that is not much less changes nothing");
            for wrong in [0, 3, 32] {
                all.iter_mut().for_each(|lanes| hear(lanes, wrong));
            }
            assert!(all.iter().all(|lanes| lanes.count() == 16));
            all.iter_mut().for_each(|lanes| hear(lanes, 1));
            assert!(all.iter().all(|lanes| lanes.lane == 0));
        }
    }
}
