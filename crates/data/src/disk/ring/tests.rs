//! The ring against an oracle of what lies where.

use super::*;

const JOURNAL: DiskUuid = DiskUuid([5; 16]);

fn write(ring: &mut [u8], placed: Placed, tail: (u64, u32), fill: u8) {
    let used = (placed.blocks as usize - 1) * RING_BLOCK + 10;
    let at = placed.block as usize * RING_BLOCK;
    let bytes = &mut ring[at..at + placed.blocks as usize * RING_BLOCK];
    bytes.fill(fill);
    let (tail_sequence, tail_block) = tail;
    let (sequence, block, blocks, used) = (placed.sequence, placed.block, placed.blocks, used as u32);
    JournalBatch { journal: JOURNAL, sequence, block, blocks, used, tail_block, tail_sequence }.seal(bytes);
}

/// A batch that is still needed would be overwritten, or a start would replay stale or miss durable batches: thousands
/// of batches of all sizes, space freed at random, scanned after each.
#[test]
fn many_laps_against_an_oracle() {
    let mut seed = 7u64;
    let mut random = |bound: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % bound
    };
    let size = 61u32;
    let mut bytes = vec![0; size as usize * RING_BLOCK];
    let mut ring = Ring::new(size);
    let mut needed = 1;
    let (mut laps, mut refused) = (0, 0);
    for round in 0..3000 {
        let blocks = 1 + random(9) as u32;
        let (placed, frees) = match ring.place(blocks, false) {
            Some(placed) => (placed, false),
            None => {
                refused += 1;
                needed = ring.next_sequence() - random(2).min(ring.next_sequence() - ring.tail_sequence());
                (ring.place(1, true).expect("the reserve is always there"), true)
            }
        };
        if random(10) == 0 {
            needed = needed.max(ring.tail_sequence() + random(3)).min(ring.next_sequence());
        }
        let tail = ring.tail_for(needed, placed);
        laps += u32::from(placed.block == 0);
        write(&mut bytes, placed, tail, round as u8);
        ring.commit(placed, tail.0);
        let found: Vec<u64> = scan(&bytes, JOURNAL).expect("whole").batches.iter().map(|(p, _)| p.sequence).collect();
        let wanted: Vec<u64> = (tail.0..=placed.sequence).collect();
        assert_eq!(found, wanted, "round {round}, frees {frees}");
        assert!(ring.used() <= size);
    }
    assert!(laps > 50 && refused > 50, "{laps} laps, {refused} refusals");
}

/// A torn last batch is no corruption; a damaged one before it is.
#[test]
fn torn_ends_and_holes() {
    let mut bytes = vec![0; 40 * RING_BLOCK];
    let mut ring = Ring::new(40);
    for _ in 0..4 {
        let placed = ring.place(2, false).expect("room");
        let tail = ring.tail_for(1, placed);
        write(&mut bytes, placed, tail, 9);
        ring.commit(placed, tail.0);
    }
    let good = scan(&bytes, JOURNAL).expect("whole");
    assert_eq!(good.batches.len(), 4);
    let resumed = Ring::resume(40, good.batches.iter().map(|(placed, _)| *placed).collect());
    assert_eq!((resumed.next_sequence(), resumed.used()), (5, 8));
    let mut torn = bytes.clone();
    torn[7 * RING_BLOCK] ^= 1;
    assert_eq!(scan(&torn, JOURNAL).expect("torn at the end").batches.len(), 3);
    let mut hole = bytes.clone();
    hole[3 * RING_BLOCK] ^= 1;
    assert!(scan(&hole, JOURNAL).expect_err("a hole").contains("batch 2"));
    assert_eq!(scan(&bytes, DiskUuid([6; 16])), Ok(Scan::default()), "another journal's batches");
}
