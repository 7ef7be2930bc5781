//! The model itself on a few well-known cases.
use super::*;
use cairn_types::ErrorCode;

fn request(uid: u32, sequence: u64) -> Request {
    Request { caller: Caller { uid, gid: uid, groups: Vec::new() }, session: 1, slot: 0, sequence, now: 100 + sequence }
}

/// Link counts and repeats come out as POSIX says.
#[test]
fn links_are_counted_and_repeats_are_answered() {
    let mut model = Model::new(0o755, 3, 1);
    let mkdir = Operation::Mkdir { parent: 1, name: b"d".to_vec(), mode: 0o755, layout: 0, umask: 0 };
    let first = model.apply(&request(0, 1), &mkdir);
    assert_eq!(first.map(|a| a.map(|a| (a.inode, a.nlink))), Ok(Some((2, 2))));
    assert_eq!(model.apply(&request(0, 1), &mkdir), first);
    assert_eq!(model.apply(&request(0, 2), &mkdir), Err(ErrorCode::Exists));
    assert_eq!(model.apply(&request(0, 9), &mkdir), Err(ErrorCode::BadSequence));
    assert_eq!(model.attributes(1).nlink, 3);
    model.end_session(1);
    assert_eq!(model.apply(&request(0, 3), &mkdir), Err(ErrorCode::SessionEnded));
}

/// A file that is open outlives its last name.
#[test]
fn held_files_stay() {
    let mut model = Model::new(0o777, 3, 1);
    let create = Create { parent: 1, name: b"f".to_vec(), mode: 0o600, hold: true, ..Default::default() };
    model.apply(&request(5, 1), &Operation::Create(create)).unwrap();
    let pieces = vec![Piece { file_offset: 0, length: 4097, pg: 1, index: 1, chunk_offset: 4096 }];
    let publish = Operation::Publish(Publish { inode: 2, pieces, written_by: 1, ..Default::default() });
    model.apply(&request(5, 2), &publish).unwrap();
    model.apply(&request(5, 3), &Operation::Unlink { parent: 1, name: b"f".to_vec() }).unwrap();
    assert_eq!(model.attributes(2).nlink, 0);
    model.apply(&request(5, 4), &Operation::Release { inode: 2 }).unwrap();
    assert!(!model.nodes.contains_key(&2));
    assert_eq!(model.free.into_iter().collect::<Vec<_>>(), [(1, 1, 1), (1, 1, 2)]);
}
