//! What is concluded from what was measured.
use super::cluster::offset;
use super::*;

/// A slow answer would be taken for a wrong clock, or a wrong clock be missed.
#[test]
fn only_what_cannot_be_the_way_is_the_clock() {
    const S: u64 = 1_000_000_000;
    assert_eq!(offset("n1", 100 * S, 103 * S, 106 * S).level, Level::Good, "it may have been a slow answer");
    assert_eq!(offset("n1", 100 * S, 100 * S, 106 * S).level, Level::Good);
    let ahead = offset("n1", 100 * S, 110 * S, 101 * S);
    assert!(ahead.level == Level::Warning && ahead.what.contains("9.0 s ahead of"), "{ahead:?}");
    let behind = offset("n1", 100 * S, 50 * S, 101 * S);
    assert!(behind.level == Level::Warning && behind.what.contains("50.0 s behind"), "{behind:?}");
}
