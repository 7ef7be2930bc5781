//! A partition of which a member's node has no memory left: what it takes no more, and what goes on.
use crate::driver::*;
use cairn_meta_core::Fullness;
use cairn_types::{ErrorCode as E, NodeId};
use cairn_wire::meta::*;
use prost::Message;

/// A partition would grow until the kernel ends its members; or what frees memory be refused with it.
#[test]
fn what_grows_is_refused_and_what_is_there_stays_changeable() {
    let mut d = Driver::new();
    let dir = d.mkdir(ROOT, "d", 0o755).unwrap().inode;
    let file = d.create(dir, "file", 0o644).unwrap().inode;
    d.set_xattr(file, "user.a", b"long", 0).unwrap();
    d.create(dir, "other", 0o644).unwrap();
    let unnamed = d.create_unnamed(dir, 0o644).unwrap().inode;
    d.set_fullness(1);
    d.check();
    assert_eq!(d.namespace.fullness(), Fullness { degree: 1, node: NodeId(17) });
    let refused = [
        d.create(dir, "new", 0o644).err(),
        d.mkdir(dir, "new", 0o755).err(),
        d.symlink(dir, "new", "file").err(),
        d.create_unnamed(dir, 0o644).err(),
        d.link(file, dir, "new", false).err(),
        d.link(unnamed, dir, "new", false).err(),
        d.set_xattr(file, "user.b", b"", 0).err(),
        d.set_xattr(file, "user.a", b"longer", 0).err(),
    ];
    assert_eq!(refused, [Some(E::NoSpace); 8]);
    assert_eq!(d.create(dir, "file", 0o644).err(), Some(E::Exists), "what is there is told as ever");
    let open = CreateRequest { parent: dir, name: "file".into(), mode: 0o644, ..Default::default() };
    assert_eq!(d.create_with(open).map(|found| found.inode), Ok(file));

    d.set_xattr(file, "user.a", b"word", 0).unwrap();
    d.set_xattr(file, "user.a", b"", 0).unwrap();
    d.chmod(file, 0o600).unwrap();
    d.publish(file, &[extent(0, 8192, 1, 0)]).unwrap();
    d.truncate(file, 4096).unwrap();
    d.rename(dir, "file", ROOT, "moved", 0).unwrap();
    let replace =
        CreateRequest { parent: ROOT, name: "moved".into(), mode: 0o644, replace: true, ..Default::default() };
    let file = d.create_with(replace.clone()).unwrap().inode;
    d.remove_xattr(file, "user.a").unwrap_err();
    d.unlink(dir, "other").unwrap();
    d.release(unnamed).unwrap();
    d.check();

    d.set_fullness(2);
    assert_eq!(d.publish(file, &[extent(0, 4096, 2, 0)]).err(), Some(E::NoSpace));
    assert_eq!(d.create_with(replace).err(), Some(E::NoSpace));
    d.truncate(file, 9).unwrap();
    d.chmod(file, 0o644).unwrap();
    d.rename(ROOT, "moved", dir, "back", 0).unwrap();
    d.remove_tree(ROOT, "d").unwrap();
    d.reclaim(0, 0);
    d.check();

    d.set_fullness(0);
    assert_eq!(d.namespace.fullness(), Fullness::default());
    d.mkdir(ROOT, "new", 0o755).unwrap();
    d.check();
}

/// Nobody could remove anything by way of the trash; or a full partition be filled through it for ever.
#[test]
fn the_trash_gets_its_directories() {
    let mut d = Driver::new();
    let file = d.create(ROOT, "file", 0o644).unwrap().inode;
    d.set_fullness(1);
    let trash = d.mkdir(ROOT, ".trash", 0o700).unwrap().inode;
    let user = d.mkdir(trash, "0", 0o700).unwrap().inode;
    let bucket = d.mkdir(user, "000000000099", 0o700).unwrap().inode;
    let entry = d.mkdir(bucket, "1", 0o700).unwrap().inode;
    d.rename(ROOT, "file", entry, "file", 0).unwrap();
    assert_eq!(d.mkdir(entry, "deep", 0o700).err(), Some(E::NoSpace), "no place to fill");
    assert_eq!(d.create(bucket, "2", 0o600).err(), Some(E::NoSpace));
    assert_eq!(d.lookup(entry, "file").map(|found| found.inode), Ok(file));
    d.set_fullness(2);
    assert_eq!(d.mkdir(bucket, "2", 0o700).err(), Some(E::NoSpace));
    d.check();
}

/// A member that starts from a checkpoint would take what the others refuse; or a request be refused that was not
/// before, when its answer was lost and it is sent again.
#[test]
fn members_agree_after_a_checkpoint_and_repeats_are_answered_as_before() {
    let mut d = Driver::new();
    let made = d.create(ROOT, "first", 0o644).unwrap();
    d.set_fullness(1);
    d.namespace = d.restored();
    assert_eq!(d.namespace.fullness(), Fullness { degree: 1, node: NodeId(17) });
    d.check();
    let (opcode, request) = (d.log[0].opcode, d.log[0].request.clone());
    let again = AttributesResponse::decode(d.log(opcode, request).unwrap().as_slice()).unwrap();
    assert_eq!(again.attributes, Some(made));
    assert_eq!(d.create(ROOT, "second", 0o644).err(), Some(E::NoSpace));
    let last = d.log.last().map(|logged| (logged.opcode, logged.request.clone())).unwrap();
    d.set_fullness(0);
    assert_eq!(d.log(last.0, last.1), Err(E::NoSpace), "a refusal that was answered stays one");
    d.create(ROOT, "second", 0o644).unwrap();
    d.check();
}
