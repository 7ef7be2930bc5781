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
