//! The client's choice of a placement group for a new chunk: of two random candidates the better (the power of two
//! choices, Mitzenmacher 2001).
//!
//! Invariant: a group with all its members serving is preferred to one without as long as there is any.
use crate::nearness::Nearness;
use cairn_types::PgId;

/// A placement group that takes new chunks, as a client sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PgCandidate {
    pub pg: PgId,
    /// All members serve.
    pub complete: bool,
    /// Least free bytes of the members' disks; 0 when not known.
    pub free_bytes: u64,
    /// Largest queue depth of the members' disks.
    pub queue_depth: u32,
    /// Of the member that the client would write to first.
    pub nearness: Nearness,
}

/// Of groups whose free space differs by more than this factor the emptier is taken, however near the other is, unless
/// it has the longer queue.
const SPACE_FACTOR: u64 = 2;
/// Queues that differ by no more than this (and by less than a factor of two) count as equal.
const QUEUE_SLACK: u32 = 8;

/// Index of the group for a new chunk; `random` makes the choice. `None` if there is no candidate.
pub fn pick(candidates: &[PgCandidate], random: u64) -> Option<usize> {
    let any_complete = candidates.iter().any(|c| c.complete);
    let eligible = candidates.iter().filter(|c| c.complete || !any_complete).count() as u64;
    if eligible == 0 {
        return None;
    }
    let nth = |n: u64| {
        let mut eligible = candidates.iter().enumerate().filter(|(_, c)| c.complete || !any_complete);
        eligible.nth(n as usize).map(|(i, _)| i)
    };
    let first = (random & u64::from(u32::MAX)) % eligible;
    let a = nth(first)?;
    if eligible == 1 {
        return Some(a);
    }
    let b = nth((first + 1 + (random >> 32) % (eligible - 1)) % eligible)?;
    Some(if better(&candidates[b], &candidates[a]) { b } else { a })
}

/// As [`pick`], and of those in the rack of whoever writes if there are any: unless another one is clearly emptier, or
/// less busy.
pub fn pick_near(candidates: &[PgCandidate], random: u64) -> Option<usize> {
    let any = pick(candidates, random)?;
    let is_near = |c: &PgCandidate| c.nearness <= Nearness::SameRack && (c.complete || !candidates[any].complete);
    let near: Vec<usize> = (0..candidates.len()).filter(|i| is_near(&candidates[*i])).collect();
    // Those on the writer's own host are no better than their neighbours: all columns are to be filled.
    let flat = |i: usize| PgCandidate { nearness: candidates[i].nearness.max(Nearness::SameRack), ..candidates[i] };
    let of_rack: Vec<PgCandidate> = near.iter().map(|i| flat(*i)).collect();
    match pick(&of_rack, random) {
        Some(best) if !better(&flat(any), &of_rack[best]) => Some(near[best]),
        _ => Some(any),
    }
}

/// Whether `b` is clearly better than `a`: space first, then queues, then distance.
fn better(b: &PgCandidate, a: &PgCandidate) -> bool {
    let longer = |x: u32, y: u32| x > y.saturating_mul(2) && x > y.saturating_add(QUEUE_SLACK);
    let (a_waits, b_waits) = (longer(a.queue_depth, b.queue_depth), longer(b.queue_depth, a.queue_depth));
    // An empty disk that is busier gets no more for being empty.
    if !b_waits && a.free_bytes.saturating_mul(SPACE_FACTOR) < b.free_bytes {
        return true;
    }
    if !a_waits && b.free_bytes.saturating_mul(SPACE_FACTOR) < a.free_bytes {
        return false;
    }
    if a_waits || b_waits {
        return a_waits;
    }
    b.nearness < a.nearness
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pg(id: u32) -> PgCandidate {
        PgCandidate { pg: PgId(id), complete: true, free_bytes: 100, queue_depth: 0, nearness: Nearness::Other }
    }

    fn counts(candidates: &[PgCandidate]) -> Vec<u32> {
        let mut counts = vec![0; candidates.len()];
        let mut random = 1u64;
        for _ in 0..12_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            counts[pick(candidates, random ^ (random >> 29)).expect("there are candidates")] += 1;
        }
        counts
    }

    /// One host that writes much would fill its own columns alone, and what lies there wait for ever for others.
    #[test]
    fn columns_of_the_rack_are_filled_alike() {
        let at = |id, nearness| PgCandidate { nearness, ..pg(id) };
        let candidates =
            [at(1, Nearness::SameHost), at(2, Nearness::SameRack), at(3, Nearness::SameRack), at(4, Nearness::Other)];
        let mut taken = [0; 4];
        let mut random = 1u64;
        for _ in 0..3000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            taken[pick_near(&candidates, random).expect("one")] += 1;
        }
        assert_eq!(taken[3], 0, "{taken:?}");
        assert!(taken[..3].iter().all(|count| (700..1300).contains(count)), "{taken:?}");
    }

    /// New chunks would pile up on some disks if equal groups were not taken equally often.
    #[test]
    fn equal_groups_are_taken_equally() {
        let counts = counts(&[pg(1), pg(2), pg(3), pg(4)]);
        assert!(counts.iter().all(|c| (2_600..3_400).contains(c)), "{counts:?}");
    }

    /// A chunk would start with less redundancy than the volume can give.
    #[test]
    fn complete_groups_come_first() {
        let damaged = |id| PgCandidate { complete: false, ..pg(id) };
        assert_eq!(counts(&[damaged(1), pg(2), damaged(3)]), [0, 12_000, 0]);
        assert!(counts(&[damaged(1), damaged(2)]).iter().all(|c| *c > 4_000));
        assert_eq!(pick(&[], 7), None);
    }

    /// Writers would leave the groups of their rack to others, or fill them while other racks are empty.
    #[test]
    fn a_writer_keeps_to_its_rack_while_that_has_room() {
        let near = |id| PgCandidate { nearness: Nearness::SameRack, ..pg(id) };
        let taken = |candidates: &[PgCandidate]| {
            let mut counts = vec![0; candidates.len()];
            for seed in 0..2_000u64 {
                let random = seed.wrapping_mul(6_364_136_223_846_793_005);
                counts[pick_near(candidates, random ^ (random >> 29)).expect("there are candidates")] += 1;
            }
            counts
        };
        let mut many: Vec<PgCandidate> = (1..20).map(pg).collect();
        many.extend([near(20), near(21)]);
        let counts = taken(&many);
        assert!(counts[..19].iter().all(|c| *c == 0) && counts[19..].iter().all(|c| *c > 600), "{counts:?}");
        let full = PgCandidate { free_bytes: 10, ..near(2) };
        assert_eq!(taken(&[pg(1), full]), [2_000, 0]);
        let damaged = PgCandidate { complete: false, ..near(2) };
        assert_eq!(taken(&[pg(1), damaged]), [2_000, 0]);
        assert_eq!(taken(&[PgCandidate { complete: false, ..pg(1) }, damaged]), [0, 2_000]);
        assert_eq!(pick_near(&[], 1), None);
    }

    /// Full or busy disks would be filled further.
    #[test]
    fn space_beats_queue_beats_nearness() {
        let full = PgCandidate { free_bytes: 10, nearness: Nearness::SameHost, ..pg(1) };
        assert_eq!(counts(&[full, pg(2)]), [0, 12_000]);
        let busy = PgCandidate { queue_depth: 30, nearness: Nearness::SameHost, ..pg(1) };
        assert_eq!(counts(&[busy, pg(2)]), [0, 12_000]);
        // All writers would wait for a new disk.
        let new = PgCandidate { free_bytes: 10_000, queue_depth: 30, ..pg(1) };
        assert_eq!(counts(&[new, pg(2)]), [0, 12_000]);
        let near = PgCandidate { nearness: Nearness::SameRack, queue_depth: 4, ..pg(1) };
        assert_eq!(counts(&[near, pg(2)]), [12_000, 0]);
    }
}
