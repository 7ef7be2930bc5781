//! What is in other partitions, or locked by an operation across them, is neither damage nor mended.
use super::*;
use crate::encoding::NodeType;

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
            MendItem { kind, inode, numbers }
        };
        self.apply(Opcode::MendNamespace, &MendNamespace { items: items.iter().map(item).collect() });
    }
}

/// A check of a sound volume would name whole files as damaged, and mending give them a second name or a wrong number of links.
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
