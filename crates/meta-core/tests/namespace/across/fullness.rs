//! Operations with a partition of which a member's node has no memory left.
use super::removed_trees::Two;
use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::meta::*;

const ROOT: u64 = 1;

fn set(two: &mut Two, part: u32, degree: u32) {
    two.part(part).apply::<Empty>(Opcode::SetFullness, &SetFullness { degree, node: 17 }).expect("logged");
}

/// A full partition would be filled with directories of others; or what was decided never be finished there, its locks
/// stay, and what leads out of it be shut.
#[test]
fn a_full_partition_gives_no_inodes_and_finishes_what_was_decided() {
    let mut two = Two::new();
    let there = two.mkdir(ROOT, "there", true);
    two.create(there, "file").expect("made");
    let tx = TxId { partition: 1, term: 1, number: 1 << 20 };
    let prepare = TxPrepare { tx: Some(tx), new_inode: true, ..TxPrepare::default() };
    let prepared: TxPrepared = two.part(2).apply(Opcode::TxPrepare, &prepare).expect("there is room");
    set(&mut two, 2, 2);
    let late = TxPrepare { tx: Some(TxId { number: 2 << 20, ..tx }), ..prepare };
    let refused = two.part(2).apply::<TxPrepared>(Opcode::TxPrepare, &late).expect_err("full");
    assert_eq!(refused.code, ErrorCode::NoSpace);
    let said = "the memory for metadata of meta node n17 is used up, and p2 has a member there";
    assert!(refused.message.starts_with(said), "{}", refused.message);
    assert!(cairn_meta_core::Namespace::is_full(&refused));

    let header = two.header(1);
    let mkdir = MkdirRequest { header, parent: ROOT, name: b"d".to_vec(), mode: 0o755, ..MkdirRequest::default() };
    let request = prost::Message::encode_to_vec(&mkdir);
    let participants = vec![TxParticipant { partition: 2, prepared: Some(prepared.clone()), seen: Vec::new() }];
    let decide = TxDecide { tx: Some(tx), opcode: Opcode::Mkdir.code().into(), request, participants, at_limit: 0 };
    two.part(1).apply::<AttributesResponse>(Opcode::TxDecide, &decide).expect("decided");
    let effects = two.part(1).0.tx_outcome(cairn_meta_core::TxId::from_wire(tx), 2);
    let cairn_meta_core::Outcome::Done(effects) = effects else { panic!("it was decided") };
    let finish = TxFinish { tx: Some(tx), lock: prepared.lock, effects: Some(effects) };
    two.part(2).apply::<Empty>(Opcode::TxFinish, &finish).expect("finished");
    assert!(two.part(2).getattr(prepared.new_inode).is_ok(), "made as it was decided");
    two.part(1).apply::<Empty>(Opcode::TxDone, &TxDone { txs: vec![tx] }).expect("forgotten");

    assert_eq!(two.create(there, "second"), Err(ErrorCode::NoSpace));
    two.rename(there, "file", ROOT, "file").expect("out of it");
    two.rename(ROOT, "file", there, "file").expect("and back, as into the trash");
    two.remove_tree(ROOT, "there").expect("removed");
    two.reclaim_all();
    set(&mut two, 2, 0);
    two.part(2).apply::<TxPrepared>(Opcode::TxPrepare, &late).expect("there is room again");
}

/// A name in a full partition takes memory there, wherever its inode is.
#[test]
fn a_full_partition_takes_no_names_for_inodes_of_others() {
    let mut two = Two::new();
    let there = two.mkdir(ROOT, "there", true);
    let file = two.create(there, "file").expect("made");
    set(&mut two, 1, 1);
    let header = two.header(1);
    let link = LinkRequest { header, inode: file, parent: ROOT, name: b"link".to_vec(), replace: false };
    assert_eq!(two.run(1, Opcode::Link, &link), Err(ErrorCode::NoSpace));
    assert_eq!(two.entry(ROOT, "link"), None);
    assert_eq!(two.part(2).getattr(file).map(|file| file.nlink), Ok(1), "and nothing is left of it elsewhere");
    assert!(two.part(2).0.tx_locks(1).is_empty());
    two.create(there, "second").expect("where there is room");
}
