//! Trash whose buckets, or what is in them, are in two partitions.
use super::removed_trees::Two;
use cairn_types::WallTime;
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::meta::ExpireTrash;

const ROOT: u64 = 1;
/// Is over when the tests begin.
const OVER: &str = "000000000000";

fn expire(two: &mut Two) {
    two.part(1).apply::<Empty>(Opcode::ExpireTrash, &ExpireTrash { up_to_ns: 0 }).expect("an entry");
}

fn is_due(two: &mut Two) -> bool {
    two.part(1).0.is_trash_due(WallTime(1_000_000_000))
}

/// Buckets would stay for ever, with all that is in them.
#[test]
fn buckets_of_another_partition_go() {
    let mut two = Two::new();
    let trash = two.mkdir(ROOT, ".trash", true);
    let own = two.mkdir(trash, "0", true);
    assert!(trash < 1 << 40 && own < 1 << 40, "where expiry looks, whatever was asked for");
    let bucket = two.mkdir(own, OVER, true);
    let entry = two.mkdir(bucket, "entry", true);
    assert!(bucket >= 1 << 40 && entry < 1 << 40);
    two.create(entry, "f").expect("made");
    let second = two.mkdir(trash, "7", false);
    let local = two.mkdir(second, OVER, false);
    two.mkdir(local, "below", true);
    expire(&mut two);
    assert!(two.entry(own, OVER).is_some(), "it takes the other partition");
    assert_eq!(two.entry(second, OVER), None);
    assert!(!is_due(&mut two), "no entry each time for what is noted");
    two.restart(1);
    assert_eq!(two.blocked(1), [(own, OVER.to_owned())]);
    two.reclaim_all();
    assert_eq!(two.entry(own, OVER), None);
    assert_eq!(two.counted(), [4, 0], "the root, the trash and two users");
}

/// Something that took the name of a bucket meanwhile would be removed in its place.
#[test]
fn what_takes_the_name_meanwhile_stays() {
    let mut two = Two::new();
    let trash = two.mkdir(ROOT, ".trash", false);
    let own = two.mkdir(trash, "0", false);
    two.mkdir(own, OVER, true);
    expire(&mut two);
    two.rename(own, OVER, ROOT, "kept").expect("moved");
    two.reclaim_entry(own, OVER).expect("there is none");
    assert_eq!(two.blocked(1), []);
    two.mkdir(own, OVER, true);
    expire(&mut two);
    two.remove_tree(own, OVER).expect("removed");
    two.mkdir(own, OVER, true);
    two.reclaim_entry(own, OVER).expect("that is another one");
    assert!(two.entry(own, OVER).is_some() && two.entry(ROOT, "kept").is_some());
    // It is over as well, and is noted as what it is.
    assert!(is_due(&mut two));
    expire(&mut two);
    two.remove_tree(trash, "0").expect("a user's trash with a note in it");
    two.reclaim_all();
    assert_eq!(two.counted(), [2, 1]);
}

/// A directory in the trash with others elsewhere below it could not be brought back.
#[test]
fn what_is_in_the_trash_is_brought_back() {
    let mut two = Two::new();
    let trash = two.mkdir(ROOT, ".trash", false);
    let own = two.mkdir(trash, "0", false);
    let bucket = two.mkdir(own, OVER, true);
    let entry = two.mkdir(bucket, "entry", false);
    let top = two.mkdir(ROOT, "top", false);
    let below = two.mkdir(top, "below", true);
    two.create(below, "f").expect("made");
    two.rename(ROOT, "top", entry, "top").expect("into the trash");
    expire(&mut two);
    two.rename(entry, "top", ROOT, "top").expect("out of it");
    two.reclaim_all();
    assert_eq!(two.entry(top, "below"), Some(below));
    assert!(two.entry(below, "f").is_some());
    assert_eq!(two.counted(), [4, 2]);
}
