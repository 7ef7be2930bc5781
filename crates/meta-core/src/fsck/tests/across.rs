//! What is in other partitions, or locked by an operation across them, is neither damage nor mended.
use super::*;
use crate::encoding::NodeType;
use crate::mend::mend_name;
use crate::names_of::NameScan;
use crate::review::{Look, Review, Suspicion};

const FIRST_OF_SECOND: u64 = 1 << 40;

/// One of two partitions.
fn side(number: u32) -> Side {
    let mut config = NamespaceConfig::new(VolumeId(1), PartitionId(number), Layout::replicated(3));
    config.inodes = if number == 1 { 1..=FIRST_OF_SECOND - 1 } else { FIRST_OF_SECOND..=u64::MAX };
    Side { namespace: Namespace::new(&config), sequence: 0 }
}

impl Side {
    /// Locks inodes for an operation of another partition; gives the lock's number.
    fn lock(&mut self, number: u64, inodes: &[u64]) -> TxFinish {
        let tx = Some(TxId { partition: 2, term: 1, number });
        let request = TxPrepare { tx, inodes: inodes.to_vec(), ..TxPrepare::default() };
        let answer = self.apply(Opcode::TxPrepare, &request);
        let lock = TxPrepared::decode(answer.as_slice()).expect("an answer").lock;
        TxFinish { tx, lock, effects: None }
    }

    /// A name here of an inode that another partition has.
    fn name_foreign(&mut self, directory: u64, name: &str, inode: u64, is_dir: bool) {
        let d_type = if is_dir { 4 } else { 8 };
        self.namespace.put_dentry(directory, name.as_bytes(), Dentry { inode, d_type });
        self.change(directory, |directory| {
            directory.size += 1;
            directory.nlink += u32::from(is_dir);
        });
    }

    fn mend_all(&mut self, items: &[(u64, Mend)]) {
        let item = |(inode, mend): &(u64, Mend)| {
            let (kind, inode, numbers) = mend_item(*inode, *mend);
            MendItem { kind, inode, numbers, name: Vec::new() }
        };
        self.apply(Opcode::MendNamespace, &MendNamespace { items: items.iter().map(item).collect() });
    }
}

/// A check of a sound volume would name whole files as damaged, and mending give them a second name or a wrong number
/// of links.
#[test]
fn what_is_elsewhere_or_locked_is_left_alone() {
    let mut side = side(1);
    let (d, moved) = (side.mkdir(1, "d"), side.mkdir(1, "moved"));
    let linked = side.file(d, "linked", 1);
    side.change(linked, |inode| inode.nlink = 2);
    side.name_foreign(d, "file", FIRST_OF_SECOND + 1, false);
    side.name_foreign(d, "directory", FIRST_OF_SECOND + 2, true);
    // Its name is elsewhere.
    side.namespace.remove_dentry(1, b"moved");
    side.change(1, |root| (root.size, root.nlink) = (root.size - 1, root.nlink - 1));
    side.change(moved, |inode| inode.parent = FIRST_OF_SECOND + 2);
    // Without a name and a holder, but an operation is about to give it one.
    let header = side.header();
    let request = CreateUnnamedRequest { header, parent: d, mode: 0o644, ..CreateUnnamedRequest::default() };
    let unnamed = Side::made(&side.apply(Opcode::CreateUnnamed, &request));
    let lock = side.lock(1, &[unnamed, d]);
    let header = side.header();
    side.apply(Opcode::EndSession, &EndSessionRequest { header });
    side.apply(Opcode::ReclaimBatch, &ReclaimBatch::default());
    side.namespace.check_invariants().expect("sound");
    assert_eq!(side.texts(), []);
    let all = [d, moved, linked, unnamed];
    let before = all.map(|id| side.namespace.stored_inode(id));
    // What an older check may have found.
    let mut items: Vec<(u64, Mend)> = all[1..].iter().map(|id| (*id, Mend::Adopt)).collect();
    items.extend([(d, Mend::Links(3)), (unnamed, Mend::Links(1))]);
    items.extend([FIRST_OF_SECOND + 1, FIRST_OF_SECOND + 2].map(|id| (id, Mend::Adopt)));
    items.push((FIRST_OF_SECOND + 2, Mend::Links(1)));
    side.mend_all(&items);
    assert_eq!(all.map(|id| side.namespace.stored_inode(id)), before);
    assert_eq!(side.namespace.dentry(1, LOST_AND_FOUND), Ok(None));
    side.apply(Opcode::TxFinish, &lock);
    side.namespace.check_invariants().expect("sound");
    assert_eq!(side.texts(), []);
}

/// Totals would be "mended" to what they are not, and what waits for another partition be given a name again.
#[test]
fn a_removed_tree_that_waits_is_no_damage() {
    let mut side = side(1);
    let top = side.mkdir(1, "top");
    side.mkdir(top, "sub");
    side.name_foreign(top, "x", FIRST_OF_SECOND + 1, true);
    let remove = RemoveTreeRequest { header: side.header(), parent: 1, name: b"top".to_vec() };
    side.apply(Opcode::RemoveTree, &remove);
    side.apply(Opcode::ReclaimBatch, &ReclaimBatch::default());
    assert_eq!(side.namespace.reclaim_blocked(9), [(top, b"x".to_vec())]);
    side.namespace.check_invariants().expect("sound");
    assert_eq!((side.namespace.counters().dead_inodes, side.texts()), (1, vec![]));
    side.mend_all(&[(top, Mend::Adopt)]);
    assert_eq!(side.namespace.dentry(1, LOST_AND_FOUND), Ok(None));
}

/// A number of links that is mended under an operation would be what that one saw, and wrong again.
#[test]
fn what_is_locked_is_mended_by_the_next_check() {
    let mut side = side(1);
    let d = side.mkdir(1, "d");
    side.change(d, |inode| inode.nlink = 9);
    let lock = side.lock(1, &[d]);
    let found = side.check().findings;
    assert_eq!(found.iter().map(|finding| (finding.inode, finding.mend)).collect::<Vec<_>>(), [(d, None)]);
    side.apply(Opcode::TxFinish, &lock);
    side.mend();
    assert_eq!(side.texts(), []);
}

/// An entry of the log would fail, and nothing else of it be mended, because `lost+found` is not here or not free.
#[test]
fn lost_and_found_may_be_elsewhere() {
    let mut side = side(1);
    let (d, file) = (side.mkdir(1, "d"), side.file(1, "f", 1));
    side.namespace.remove_dentry(1, b"f");
    side.change(1, |root| root.size -= 1);
    side.change(file, |inode| inode.nlink = 0);
    side.name_foreign(1, "lost+found", FIRST_OF_SECOND + 1, true);
    side.change(d, |inode| inode.nlink = 9);
    side.mend();
    assert_eq!(side.check().findings.iter().map(|finding| finding.inode).collect::<Vec<_>>(), [file], "d is mended");
    side.namespace.remove_dentry(1, LOST_AND_FOUND);
    side.change(1, |root| (root.size, root.nlink) = (root.size - 1, root.nlink - 1));
    let lock = side.lock(1, &[1]);
    side.mend();
    assert_eq!(side.namespace.dentry(1, LOST_AND_FOUND), Ok(None), "the root is locked");
    side.apply(Opcode::TxFinish, &lock);
    side.mend();
    assert_eq!(side.texts(), []);
    let place = side.dentry(1, "lost+found");
    assert_eq!(side.dentry(place, &format!("#{file}")), file);
}

/// Mending would be promised and do nothing: a partition without the root has no `lost+found`.
#[test]
fn nothing_is_adopted_without_a_root() {
    let mut side = side(2);
    let inode = Inode { mode: NodeType::Regular as u16 | 0o644, ..Inode::at(1) };
    side.namespace.put_inode(FIRST_OF_SECOND, &inode);
    side.namespace.counters.inodes = 1;
    let found = side.check().findings;
    assert_eq!(
        found.iter().map(|finding| (finding.inode, finding.mend)).collect::<Vec<_>>(),
        [(FIRST_OF_SECOND, None)]
    );
    side.mend_all(&[(FIRST_OF_SECOND, Mend::Adopt)]);
    assert_eq!(side.check().found, 1);
}

/// The names that a side has, in small steps and lists.
fn names_of(side: &Side, first: u64, last: u64) -> (BTreeMap<u64, Names>, u64) {
    let snapshot = side.namespace.snapshot();
    let mut scan = NameScan::of_range(&snapshot, first, last, 2);
    while scan.step(&snapshot, 3) {}
    let (names, last, _) = scan.into_parts();
    (names, last)
}

/// What a side suspects when it asks the others.
fn suspects(sides: &[Side], at: usize) -> (FsckReport, BTreeSet<u64>) {
    let (snapshot, mut fsck) = (sides[at].namespace.snapshot(), Fsck::with_others(4));
    while fsck.step(&snapshot, 3) {
        let Some((first, last)) = fsck.wants_names(&snapshot) else { continue };
        for other in sides.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, side)| side) {
            let mut from = first;
            loop {
                let (names, complete_to) = names_of(other, from, last);
                fsck.add_names(names);
                if complete_to >= last {
                    break;
                }
                from = complete_to + 1;
            }
        }
        fsck.names_are_told(&snapshot, true);
    }
    let suspects = fsck.take_suspects();
    (fsck.into_report(), suspects)
}

/// Looks at what a review still has open.
fn look(sides: &[Side], at: usize, review: &mut Review) {
    let open = review.open();
    let mut look = Look::new(&sides[at].namespace.snapshot(), &open);
    for side in sides {
        let snapshot = side.namespace.snapshot();
        let mut scan = NameScan::of(&snapshot, open.iter().copied());
        while scan.step(&snapshot, 3) {}
        let (names, _, locks) = scan.into_parts();
        look.add(snapshot.partition, names, locks);
    }
    review.conclude(look);
}

fn found(sides: &[Side], at: usize) -> Vec<Suspicion> {
    let (report, suspects) = suspects(sides, at);
    assert_eq!(report.findings, [], "by itself");
    let mut review = Review::new(suspects);
    (0..3).for_each(|_| look(sides, at, &mut review));
    review.into_suspicions(at == 0)
}

const E: u64 = FIRST_OF_SECOND + 100;

/// A directory `d` (2) of the first side with a file of two names, of which one is in `e`, a directory of the second
/// side in it; there a file with another name in `d`. Gives the files.
fn pair() -> ([Side; 2], u64, u64) {
    let (mut one, mut two) = (side(1), side(2));
    let d = one.mkdir(1, "d");
    assert_eq!(d, 2);
    let directory = Inode { mode: NodeType::Directory as u16 | 0o755, nlink: 2, parent: d, ..Inode::at(1) };
    two.namespace.inode_next = E + 1;
    two.namespace.put_inode(E, &directory);
    two.namespace.counters.inodes += 1;
    two.namespace.counters.directories += 1;
    one.name_foreign(d, "e", E, true);
    let (here, there) = (one.file(d, "here", 1), two.file(E, "there", 2));
    one.name_foreign(d, "there2", there, false);
    two.name_foreign(E, "here2", here, false);
    one.change(here, |inode| inode.nlink = 2);
    two.change(there, |inode| inode.nlink = 2);
    ([one, two], here, there)
}

fn unname(side: &mut Side, directory: u64, name: &str, is_dir: bool) {
    side.namespace.remove_dentry(directory, name.as_bytes());
    side.change(directory, |directory| {
        directory.size -= 1;
        directory.nlink -= u32::from(is_dir);
    });
}

/// Damage between partitions would stay unseen until somebody misses a file, or a file would go that has a name.
#[test]
fn damage_between_partitions_is_found() {
    let (sides, ..) = pair();
    assert_eq!((found(&sides, 0), found(&sides, 1)), (vec![], vec![]));
    type Damage = fn(&mut [Side; 2], u64, u64) -> (usize, u64, &'static str);
    let kinds: [Damage; 7] = [
        |sides, _, _| {
            sides[0].name_foreign(2, "stray", FIRST_OF_SECOND + 500, false);
            (1, FIRST_OF_SECOND + 500, "for which directory 2 has this name, is not there")
        },
        |sides, _, there| {
            unname(&mut sides[0], 2, "there2", false);
            (1, there, "says that it has 2 names, it has 1")
        },
        |sides, here, _| {
            sides[1].name_foreign(E, "here3", here, false);
            (0, here, "says that it has 2 names, it has 3")
        },
        |sides, _, _| {
            sides[1].change(E, |inode| inode.parent = 1);
            (1, E, "has the name \"e\" in directory 2, its parent is 1")
        },
        |sides, _, there| {
            sides[0].namespace.put_dentry(2, b"there2", Dentry { inode: there, d_type: 10 });
            (1, there, "says that it is of another type")
        },
        |sides, _, _| {
            unname(&mut sides[0], 2, "e", true);
            (1, E, "has no name in any partition")
        },
        |sides, _, _| {
            sides[0].name_foreign(2, "e2", E, true);
            (1, E, "is a directory with 2 names")
        },
    ];
    for (number, damage) in kinds.into_iter().enumerate() {
        let (mut sides, here, there) = pair();
        let (at, inode, text) = damage(&mut sides, here, there);
        let told = found(&sides, at);
        assert_eq!(told.len(), 1, "damage {number}: {told:?}");
        assert!(told[0].finding.inode == inode && told[0].finding.text.contains(text), "damage {number}: {told:?}");
        assert_eq!(found(&sides, 1 - at), [], "damage {number}");
    }
}

/// Whoever checks a volume in use would be told of damage that is none; or real damage never be certain.
#[test]
fn what_is_under_way_is_no_damage() {
    let (mut sides, _, there) = pair();
    unname(&mut sides[0], 2, "there2", false);
    // An operation has the directory of the name, or the inode.
    for (side, inode) in [(0, 2), (1, there)] {
        let lock = sides[side].lock(7, &[inode]);
        let mut review = Review::new(suspects(&sides, 1).1);
        (0..5).for_each(|_| look(&sides, 1, &mut review));
        assert_eq!((review.open(), review.into_suspicions(false)), (vec![there], vec![]));
        sides[side].apply(Opcode::TxFinish, &lock);
    }
    // It is changed between the looks.
    let mut review = Review::new([there]);
    for _ in 0..5 {
        look(&sides, 1, &mut review);
        sides[1].change(there, |inode| inode.generation += 1);
    }
    assert_eq!(review.open(), [there]);
    // An operation of which nobody can say that it has no part in it is under way: it has to be over first.
    let lock = sides[0].lock(8, &[1]);
    let mut review = Review::new([there]);
    (0..5).for_each(|_| look(&sides, 1, &mut review));
    assert_eq!(review.open(), [there]);
    sides[0].apply(Opcode::TxFinish, &lock);
    (0..2).for_each(|_| look(&sides, 1, &mut review));
    assert_eq!(review.open(), [], "nothing that was under way is left");
    let told = review.into_suspicions(false);
    assert_eq!(told.len(), 1);
    // It is all right in the end.
    let mut review = Review::new([there]);
    look(&sides, 1, &mut review);
    sides[0].name_foreign(2, "there2", there, false);
    look(&sides, 1, &mut review);
    assert_eq!(review.open(), []);
    assert_eq!(review.into_suspicions(false), []);
}

/// A file would be lost by what was to mend it: given a name while it has one, or kept with a wrong number of links.
#[test]
fn damage_between_partitions_is_mended() {
    let (mut sides, here, _) = pair();
    // Links, names of what is not there.
    sides[1].name_foreign(E, "here3", here, false);
    sides[0].name_foreign(2, "stray", FIRST_OF_SECOND + 500, true);
    let told = found(&sides, 0);
    sides[0].mend_all(&[(here, told[0].finding.mend.expect("it can be mended"))]);
    let told = found(&sides, 1);
    assert_eq!((told[0].finding.mend, &told[0].place), (Some(Mend::Name), &Some((2, b"stray".to_vec()))));
    for name in ["other", "stray", "there2"] {
        let (kind, inode, numbers) = mend_name(2, told[0].finding.inode);
        let items = vec![MendItem { kind, inode, numbers, name: name.into() }];
        sides[0].apply(Opcode::MendNamespace, &MendNamespace { items });
    }
    assert!(sides[0].namespace.dentry(2, b"there2").expect("read").is_some(), "it is another inode's");
    for side in &sides {
        side.namespace.check_invariants().expect("sound");
    }
    assert_eq!((found(&sides, 0), found(&sides, 1)), (vec![], vec![]));
    // Without any name: adopted as it was when it was looked at.
    unname(&mut sides[0], 2, "here", false);
    unname(&mut sides[1], E, "here2", false);
    unname(&mut sides[1], E, "here3", false);
    let mend = found(&sides, 0)[0].finding.mend.expect("the root is here");
    sides[0].change(here, |inode| inode.generation += 1);
    sides[0].mend_all(&[(here, mend)]);
    assert_eq!(sides[0].namespace.dentry(1, LOST_AND_FOUND), Ok(None), "it may have got a name");
    let mend = found(&sides, 0)[0].finding.mend.expect("the root is here");
    sides[0].mend_all(&[(here, mend)]);
    let place = sides[0].dentry(1, "lost+found");
    assert_eq!(sides[0].dentry(place, &format!("#{here}")), here);
    assert_eq!((found(&sides, 0), found(&sides, 1)), (vec![], vec![]));
}

/// A path would end where another partition begins.
#[test]
fn ways_up_leave_the_partition_with_their_names() {
    let (sides, here, _) = pair();
    let (one, two) = (sides[0].namespace.snapshot(), sides[1].namespace.snapshot());
    let way = two.way_up(E, here, true);
    assert_eq!((way.above, way.top, way.known, way.names), (2, E, true, vec![b"here2".to_vec()]));
    let way = one.way_up(2, E, true);
    assert_eq!((way.above, way.top, way.known), (0, 1, true));
    assert_eq!(way.names, [b"e".to_vec(), b"d".to_vec()]);
    assert!(!one.way_up(2, 12_345, true).known && !two.way_up(E + 9, 0, false).known);
}
