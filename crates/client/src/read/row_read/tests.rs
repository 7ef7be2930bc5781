//! Tests of the decisions of a striped read.
use super::*;

const MS: Duration = Duration::from_millis(1);
const LATE: Duration = Duration::from_millis(50);
const NOW: Time = Time(1_000_000_000);

fn stripe() -> Stripe {
    Stripe::new(3, 8192).expect("valid")
}

/// A read of whole rows of rs-3-2.
fn rows() -> RowRead {
    RowRead::new(stripe(), 0, stripe().row() * 2, vec![Standing::Good; 5])
}

fn bytes() -> std::result::Result<ShardBytes, String> {
    Ok(ShardBytes { data: SharedBuf::empty(), row_crcs: Vec::new() })
}

fn asks(read: &mut RowRead, now: Time) -> Vec<usize> {
    read.asks(now, LATE, || true)
}

/// A healthy read would cost more than its bytes.
#[test]
fn only_the_columns_that_hold_the_range_are_asked() {
    let mut read = RowRead::new(stripe(), 8192 + 5000, 8192 + 5001, vec![Standing::Good; 5]);
    assert_eq!((asks(&mut read, NOW), read.offset, read.length), (vec![1], 4096, 4096));
    assert!(asks(&mut read, NOW + LATE / 2).is_empty());
    assert_eq!(read.step(), Step::Wait);
    read.answered(1, bytes());
    assert_eq!(read.step(), Step::Complete);
    let mut read = rows();
    assert_eq!((asks(&mut read, NOW), read.offset, read.length), (vec![0, 1, 2], 0, 16384));
}

/// A member that is gone would make its bytes unreadable.
#[test]
fn a_failed_shard_is_replaced_by_parity_at_once() {
    let mut read = rows();
    asks(&mut read, NOW);
    read.answered(1, Err("gone".into()));
    assert_eq!(asks(&mut read, NOW + MS), [3]);
    read.answered(3, Err("gone too".into()));
    assert_eq!(asks(&mut read, NOW + MS), [4]);
    for shard in [0, 2, 4] {
        assert_eq!(read.step(), Step::Wait);
        read.answered(shard, bytes());
    }
    let present = [0, 2, 4].into_iter().collect();
    assert_eq!(read.step(), Step::Decode { present, missing: vec![1] });
}

/// A stopped member would hold up the read until its deadline.
#[test]
fn a_late_shard_is_replaced_and_may_still_win() {
    let mut read = rows();
    asks(&mut read, NOW);
    read.answered(0, bytes());
    read.answered(2, bytes());
    assert_eq!(read.next_late(NOW, LATE), Some(NOW + LATE));
    assert!(read.asks(NOW + LATE, LATE, || false).is_empty(), "no budget");
    assert_eq!(asks(&mut read, NOW + LATE), [3]);
    assert!(asks(&mut read, NOW + LATE).is_empty());
    assert_eq!(asks(&mut read, NOW + LATE * 2), [4], "the first parity is late as well");
    read.answered(1, bytes());
    assert_eq!(read.step(), Step::Complete);
    let late = read.late(NOW + LATE * 2, LATE);
    assert_eq!(late.iter().collect::<Vec<_>>(), [3], "4 has been asked just now");
}

/// When all are slow, asking more would only make them slower.
#[test]
fn more_late_shards_than_spare_ones_are_waited_for() {
    let mut read = rows();
    asks(&mut read, NOW);
    assert!(asks(&mut read, NOW + LATE).is_empty());
    read.answered(0, bytes());
    assert_eq!(asks(&mut read, NOW + LATE), [3, 4]);
}

/// Each read would wait anew for a disk that is known to be slow, or fail although it has the bytes.
#[test]
fn slow_members_are_the_last_that_are_asked() {
    let standing = |slow: &[usize]| -> Vec<Standing> {
        (0..5).map(|s| if slow.contains(&s) { Standing::Slow } else { Standing::Good }).collect()
    };
    let mut read = RowRead::new(stripe(), 0, 8192, standing(&[0]));
    assert_eq!(asks(&mut read, NOW), [1, 2, 3]);
    let mut read = RowRead::new(stripe(), 0, 8192, standing(&[0, 1, 4]));
    assert_eq!(asks(&mut read, NOW), [2, 3, 0]);
    read.answered(0, bytes());
    assert_eq!(read.step(), Step::Complete);
}

/// What cannot be read would come out as something else than an error that names what is missing.
#[test]
fn fewer_than_k_shards_are_a_failure_that_names_each() {
    let mut standing = vec![Standing::Good; 5];
    standing[3] = Standing::Absent("offline".into());
    let mut read = RowRead::new(stripe(), 0, 8192, standing);
    assert_eq!(asks(&mut read, NOW), [0]);
    read.answered(0, Err("broken".into()));
    assert_eq!(asks(&mut read, NOW), [1, 2, 4]);
    read.answered(2, Err("away".into()));
    assert!(asks(&mut read, NOW).is_empty());
    read.answered(1, bytes());
    assert_eq!(read.step(), Step::Wait);
    read.answered(4, bytes());
    assert_eq!(read.step(), Step::Failed);
    let names: Vec<usize> = read.failures().into_iter().map(|(shard, _)| shard).collect();
    assert_eq!(names, [0, 2, 3]);
}

/// A silent member would be waited for until its deadline, although single rows may do without it.
#[test]
fn a_read_that_hangs_on_late_shards_is_known() {
    let mut read = rows();
    asks(&mut read, NOW);
    read.answered(0, Err("a bad block".into()));
    read.answered(1, Err("another bad block".into()));
    assert_eq!(asks(&mut read, NOW + MS), [3, 4]);
    let late = |read: &RowRead, now: Time| read.hangs_on(read.late(now, LATE));
    assert!(!late(&read, NOW + MS), "three are asked and may answer");
    assert!(late(&read, NOW + LATE), "the third column is silent");
    read.answered(2, bytes());
    assert!(!late(&read, NOW + LATE));
    assert!(late(&read, NOW + LATE * 2), "both parities are");
}
