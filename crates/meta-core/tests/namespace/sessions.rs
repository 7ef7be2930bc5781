//! Sessions: exactly once, holds, files without names, ends.
use crate::driver::*;
use cairn_meta_core::SessionState;
use cairn_types::{ErrorCode as E, WallTime};
use cairn_wire::Opcode;
use cairn_wire::meta::*;
use prost::Message;

/// A request that comes twice is executed once, whatever happened in between.
#[test]
fn a_repeat_gets_the_kept_answer() {
    let mut d = Driver::new();
    let header = d.next();
    let request =
        MkdirRequest { header, parent: ROOT, name: b"d".to_vec(), mode: 0o755, ..Default::default() }.encode_to_vec();
    let first = d.log(Opcode::Mkdir, request.clone()).unwrap();
    let mut other = Driver::on(d.restored());
    other.now = d.now + 1000;
    other.session = 2;
    other.rename(ROOT, "d", ROOT, "moved", 0).unwrap();
    assert_eq!(other.log(Opcode::Mkdir, request.clone()), Ok(first), "also after a restart");
    assert_eq!(other.names(ROOT), ["moved"]);
    other.session = 1;
    let header = other.header(2);
    let failing = RmdirRequest { header, parent: ROOT, name: b"none".to_vec() }.encode_to_vec();
    assert_eq!(other.log(Opcode::Rmdir, failing.clone()), Err(E::NotFound));
    other.session = 2;
    other.mkdir(ROOT, "none", 0o755).unwrap();
    assert_eq!(other.log(Opcode::Rmdir, failing), Err(E::NotFound), "errors are kept as well");
    assert_eq!(other.log(Opcode::Mkdir, request), Err(E::BadSequence), "older than the last one");
}

/// A request that is refused before it is looked at leaves its number unused.
#[test]
fn what_cannot_be_read_uses_no_number() {
    let mut d = Driver::new();
    let header = d.header(1);
    let mut request = MkdirRequest { header, parent: ROOT, name: b"d".to_vec(), ..Default::default() }.encode_to_vec();
    request.push(0x07);
    assert_eq!(d.log(Opcode::Mkdir, request), Err(E::BadRequest));
    assert_eq!(d.log(Opcode::Mkdir, vec![0xff; 10]), Err(E::BadRequest));
    let header = d.header(1);
    assert_eq!(
        d.log(Opcode::Lookup, MkdirRequest { header, ..Default::default() }.encode_to_vec()),
        Err(E::UnknownOperation)
    );
    assert_eq!(d.namespace.session_state(1), SessionState::Unknown);
    let elsewhere = MetaHeader { partition: 2, ..d.header(1).unwrap() };
    let request = MkdirRequest { header: Some(elsewhere), ..Default::default() }.encode_to_vec();
    assert_eq!(d.log(Opcode::Mkdir, request), Err(E::UnknownPartition));
    d.mkdir(ROOT, "d", 0o755).unwrap();
}

/// What an ended session wrote may be garbage already: under another session it must not come into a file, whoever says
/// so and in whatever way.
#[test]
fn extents_are_named_by_the_session_that_wrote_them() {
    let mut d = Driver::new();
    let file = d.create(ROOT, "f", 0o644).unwrap().inode;
    let extents = vec![extent(0, 100, 1, 0)];
    d.session = 2;
    let publish = PublishRequest { inode: file, extents: extents.clone(), ..Default::default() };
    let create = CreateRequest { parent: ROOT, name: b"g".to_vec(), extents: extents.clone(), ..Default::default() };
    for other in [1, 3, u64::MAX] {
        assert_eq!(d.publish_with(PublishRequest { written_by: other, ..publish.clone() }), Err(E::WrongSession));
        assert_eq!(d.create_with(CreateRequest { written_by: other, ..create.clone() }), Err(E::WrongSession));
    }
    // A writer that says nothing is no exception.
    let header = d.next();
    let silent = PublishRequest { header, ..publish.clone() }.encode_to_vec();
    assert_eq!(d.log(Opcode::Publish, silent), Err(E::WrongSession));
    let header = d.next();
    let silent = CreateRequest { header, ..create.clone() }.encode_to_vec();
    assert_eq!(d.log(Opcode::Create, silent), Err(E::WrongSession));
    assert_eq!(d.extents(file), Ok(vec![]));
    assert_eq!(d.names(ROOT), ["f"]);
    // Without extents there is no writer to tell.
    let header = d.next();
    let grow = PublishRequest { header, inode: file, size: 10, ..Default::default() }.encode_to_vec();
    d.log(Opcode::Publish, grow).unwrap();
    // The writer itself may, until it has ended.
    d.publish_with(PublishRequest { written_by: 2, ..publish.clone() }).unwrap();
    d.end_session().unwrap();
    assert_eq!(d.publish_with(PublishRequest { written_by: 2, ..publish }), Err(E::SessionEnded));
    d.check();
}

/// A file whose last name is gone lives until the last session that holds it lets go.
#[test]
fn held_files_outlive_their_names() {
    let mut d = Driver::new();
    let file = d.create(ROOT, "f", 0o644).unwrap().inode;
    d.publish(file, &[extent(0, 100, 1, 0)]).unwrap();
    d.hold(file, true).unwrap();
    d.session = 2;
    d.hold(file, false).unwrap();
    d.hold(file, false).unwrap();
    d.unlink(ROOT, "f").unwrap();
    assert_eq!(d.getattr(file).unwrap().nlink, 0);
    d.session = 1;
    d.publish(file, &[extent(4096, 100, 1, 4096)]).unwrap();
    d.release(file).unwrap();
    d.release(file).unwrap();
    d.check();
    assert_eq!(d.getattr(file).unwrap().size, 4196);
    d.session = 2;
    d.end_session().unwrap();
    assert_eq!((d.getattr(file), d.frees()), (Err(E::Stale), vec![(1, 0, 2)]));
    d.check();
}

/// Nothing of an ended session is executed, not even what it never sent before.
#[test]
fn ended_sessions() {
    let mut d = Driver::new();
    let unnamed = d.create_unnamed(ROOT, 0o600).unwrap().inode;
    d.expire(&[1, 9]);
    assert_eq!(d.getattr(unnamed), Err(E::Stale));
    assert_eq!(d.mkdir(ROOT, "d", 0o755), Err(E::SessionEnded));
    d.session = 9;
    assert_eq!(d.mkdir(ROOT, "d", 0o755), Err(E::SessionEnded), "ended before its first request came");
    d.end_session().unwrap();
    let mut restored = Driver::on(d.restored());
    restored.session = 9;
    assert_eq!(restored.mkdir(ROOT, "d", 0o755), Err(E::SessionEnded), "also after a restart");
    d.check();
}

/// A session with very many open files ends at once and is worked off in bounded steps.
#[test]
fn many_holds_are_released_behind() {
    let mut d = Driver::new();
    for _ in 0..300 {
        d.create_unnamed(ROOT, 0o600).unwrap();
    }
    d.end_session().unwrap();
    d.check();
    assert!(d.namespace.counters().holds > 200);
    let mut steps = 0;
    while !d.namespace.reclaimable().is_empty() {
        d.reclaim(10, 10);
        d.check();
        steps += 1;
    }
    assert!((20..40).contains(&steps), "{steps}");
    assert_eq!(d.statfs().inodes, 1);
}

/// The logged time may step back with a new leader; times of files do not.
#[test]
fn time_does_not_run_backwards() {
    let mut d = Driver::new();
    let first = d.create(ROOT, "a", 0o644).unwrap();
    d.now -= 500_000;
    let second = d.create(ROOT, "b", 0o644).unwrap();
    assert_eq!(second.btime_ns, first.btime_ns);
    assert_eq!(d.namespace.time(), WallTime(first.btime_ns));
}

/// Reads of hostile bytes and of things that are not there are refused.
#[test]
fn reads_refuse_what_they_cannot_answer() {
    let d = Driver::new();
    let mut out = Vec::new();
    for opcode in Opcode::ALL {
        assert!(d.namespace.read(*opcode, &[0x0a, 0xff], &mut out).is_err());
        assert!(d.namespace.read(*opcode, &[], &mut out).is_err());
    }
    assert!(out.is_empty());
    assert_eq!(d.getattr(99), Err(E::Stale));
    assert_eq!(d.getattr(0), Err(E::Stale));
    assert_eq!(d.readlink(ROOT), Err(E::InvalidArgument));
    assert_eq!(d.extents(ROOT), Err(E::IsDirectory));
}
