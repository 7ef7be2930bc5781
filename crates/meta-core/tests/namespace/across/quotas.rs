//! Quotas of directories of which another partition has something.
use super::removed_trees::Two;
use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::meta::*;
use prost::Message;

const ROOT: u64 = 1;

fn counted(two: &mut Two, inode: u64) -> (u64, bool) {
    let request = GetQuotaRequest { header: two.header(1), inode };
    let mut out = Vec::new();
    two.part(1).0.read(Opcode::GetQuota, &request.encode_to_vec(), &mut out).expect("it has one");
    let quota = QuotaResponse::decode(out.as_slice()).expect("an answer").quota.expect("a quota");
    (quota.inodes_used, quota.counting)
}

/// Counting over would fail at the first entry of another partition, for ever; or change by what an inode is counted
/// under an operation that moves it elsewhere.
#[test]
fn what_is_elsewhere_is_not_counted_and_what_is_locked_later() {
    let mut two = Two::new();
    let d = two.mkdir(ROOT, "d", false);
    two.mkdir(d, "b", true);
    two.create(d, "a").expect("made");
    let c = two.create(d, "c").expect("made");
    two.create(d, "e").expect("made");
    let tx = Some(TxId { partition: 2, term: 9, number: 1 });
    let prepare = TxPrepare { tx, inodes: vec![c], ..TxPrepare::default() };
    let prepared: TxPrepared = two.part(1).apply(Opcode::TxPrepare, &prepare).expect("prepared");
    let header = two.header(1);
    let quota = SetQuotaRequest { header, inode: d, bytes_max: 0, inodes_max: 100, remove: false };
    two.part(1).apply::<Empty>(Opcode::SetQuota, &quota).expect("set");
    two.part(1).apply::<Empty>(Opcode::ReclaimBatch, &ReclaimBatch::default()).expect("up to what is locked");
    assert_eq!(counted(&mut two, d), (1, true));
    assert!(two.part(1).0.reclaimable().is_empty(), "no batch for what waits");
    two.part(1).apply::<Empty>(Opcode::ReclaimBatch, &ReclaimBatch::default()).expect("nothing to do");
    assert_eq!(counted(&mut two, d), (1, true));
    let finish = TxFinish { tx, lock: prepared.lock, effects: None };
    two.part(1).apply::<Empty>(Opcode::TxFinish, &finish).expect("finished");
    two.batches(1);
    assert_eq!(counted(&mut two, d), (3, false));
    // What would be made elsewhere would not be counted.
    let here = two.mkdir(d, "f", true);
    assert!(here < 1 << 40);
    assert_eq!(counted(&mut two, d), (4, false));
    let here = two.mkdir(here, "g", true);
    assert!(here < 1 << 40);
    assert_eq!(counted(&mut two, d), (5, false));
}

const LEVEL: u32 = 24;

fn two_of_level() -> Two {
    let mut two = Two::new();
    for part in [1, 2] {
        two.part(part).apply::<Empty>(Opcode::SetFeatureLevel, &SetFeatureLevel { level: LEVEL }).expect("known");
    }
    two
}

fn limit(two: &mut Two, inode: u64) {
    let at = if inode < 1 << 40 { 1 } else { 2 };
    let quota = SetQuotaRequest { header: two.header(at), inode, bytes_max: 0, inodes_max: 100, remove: false };
    two.part(at).apply::<Empty>(Opcode::SetQuota, &quota).expect("set");
    two.batches(at);
}

fn quota(two: &mut Two, inode: u64) -> Quota {
    let at = if inode < 1 << 40 { 1 } else { 2 };
    let request = GetQuotaRequest { header: two.header(at), inode };
    let mut out = Vec::new();
    two.part(at).0.read(Opcode::GetQuota, &request.encode_to_vec(), &mut out).expect("it has one");
    QuotaResponse::decode(out.as_slice()).expect("an answer").quota.expect("a quota")
}

/// Everybody could leave a quota by a directory that another partition has, brought to it inside of another one; and
/// the quota would say that it counts all of it.
#[test]
fn a_tree_with_parts_elsewhere_does_not_come_to_a_quota() {
    for level in [LEVEL - 1, LEVEL] {
        let mut two = Two::new();
        two.part(1).apply::<Empty>(Opcode::SetFeatureLevel, &SetFeatureLevel { level }).expect("known");
        let home = two.mkdir(ROOT, "home", false);
        limit(&mut two, home);
        let d = two.mkdir(ROOT, "d", false);
        let inner = two.mkdir(d, "inner", false);
        two.mkdir(inner, "e", true);
        let moved = two.rename(ROOT, "d", home, "d");
        if level < LEVEL {
            assert_eq!(moved, Ok(()), "members of before would do it");
            continue;
        }
        assert_eq!(moved, Err(ErrorCode::CrossVolume), "mv copies it");
        assert_eq!((quota(&mut two, home).inodes_used, quota(&mut two, home).elsewhere), (0, 0));
        two.rename(ROOT, "d", ROOT, "d2").expect("no quota is concerned");
        two.remove_tree(inner, "e").expect("removed");
        two.reclaim_all();
        two.rename(ROOT, "d2", home, "d").expect("all of it is here now");
        two.batches(1);
        assert_eq!(quota(&mut two, home).inodes_used, 2);
        // Out of a quota, and a directory that has one itself.
        two.rename(home, "d", ROOT, "d").expect("out of the quota");
        two.batches(1);
        limit(&mut two, d);
        two.rename(ROOT, "d", home, "d").expect("with its own quota");
        assert_eq!(quota(&mut two, home).inodes_used, 2);
    }
}

/// Root would not learn that a quota does not count all that is below its directory.
#[test]
fn a_quota_says_what_it_does_not_count() {
    let mut two = two_of_level();
    let d = two.mkdir(ROOT, "d", false);
    let inner = two.mkdir(d, "inner", false);
    two.mkdir(inner, "e", true);
    limit(&mut two, d);
    let list = ListQuotasRequest { header: two.header(1), ..ListQuotasRequest::default() };
    let mut out = Vec::new();
    two.part(1).0.read(Opcode::ListQuotas, &list.encode_to_vec(), &mut out).expect("listed");
    let listed = ListQuotasResponse::decode(out.as_slice()).expect("an answer").quotas;
    assert_eq!(listed, [quota(&mut two, d)]);
    assert_eq!((listed[0].inodes_used, listed[0].elsewhere()), (1, QuotaParts::Some));
    two.remove_tree(inner, "e").expect("removed");
    assert_eq!(quota(&mut two, d).elsewhere(), QuotaParts::None);
}

/// While a tree is being counted its directories do not know of the quota yet: what is made in them elsewhere then
/// would never be counted.
#[test]
fn nothing_is_made_elsewhere_while_a_quota_counts() {
    let mut two = two_of_level();
    let d = two.mkdir(ROOT, "d", false);
    let inner = two.mkdir(d, "inner", false);
    let quota = SetQuotaRequest { header: two.header(1), inode: d, bytes_max: 0, inodes_max: 9, remove: false };
    two.part(1).apply::<Empty>(Opcode::SetQuota, &quota).expect("set");
    let here = two.mkdir(inner, "e", true);
    assert!(here < 1 << 40);
    let shard = AddShard { directory: inner, index: 0, count: 1, partition: 2 };
    let refused = two.part(1).apply::<Empty>(Opcode::AddShard, &shard).map_err(|error| error.code);
    assert_eq!(refused.err(), Some(ErrorCode::Overloaded));
    two.batches(1);
    assert_eq!(counted(&mut two, d), (2, false));
}

/// The trash could not keep what a quota of another partition counts, nor could it be moved out of it at all.
#[test]
fn what_leaves_a_quota_may_go_to_another_partition() {
    let mut two = two_of_level();
    let trash = two.mkdir(ROOT, ".trash", false);
    let q = two.mkdir(ROOT, "q", true);
    limit(&mut two, q);
    two.create(q, "f").expect("made");
    let d = two.mkdir(q, "d", false);
    two.create(d, "g").expect("made");
    assert_eq!(quota(&mut two, q).inodes_used, 3);
    two.rename(q, "f", trash, "f").expect("moved");
    assert_eq!(quota(&mut two, q).inodes_used, 2);
    two.rename(q, "d", trash, "d").expect("moved");
    two.batches(2);
    assert_eq!(quota(&mut two, q).inodes_used, 0);
    two.create(d, "h").expect("made");
    assert_eq!(quota(&mut two, q).inodes_used, 0, "it counts nothing of it any more");
    // Back it would have to be counted there by an entry of this partition.
    assert_eq!(two.rename(trash, "f", q, "f"), Err(ErrorCode::CrossVolume));
}

/// Members of before would not know what is lent; and a limit belongs to the partition of the root.
#[test]
fn a_limit_of_the_whole_volume_is_refused_before_all_members_know_how() {
    let mut two = Two::new();
    for (part, code) in [(1, ErrorCode::NotSupported), (2, ErrorCode::UnknownPartition)] {
        let header = two.header(part);
        let quota = SetQuotaRequest { header, inode: 0, bytes_max: 1 << 30, inodes_max: 0, remove: false };
        let refused = two.part(part).apply::<Empty>(Opcode::SetQuota, &quota).map_err(|error| error.code);
        assert_eq!(refused.err(), Some(code));
    }
    two.part(1).apply::<Empty>(Opcode::SetFeatureLevel, &SetFeatureLevel { level: 7 }).expect("known");
    let header = two.header(1);
    let quota = SetQuotaRequest { header, inode: 0, bytes_max: 1 << 30, inodes_max: 0, remove: false };
    two.part(1).apply::<Empty>(Opcode::SetQuota, &quota).expect("set");
}
