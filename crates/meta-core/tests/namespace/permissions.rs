//! Who may do what: mode bits, groups, sticky and setgid directories, what a change of owner or contents takes away.
use crate::driver::*;
use cairn_types::ErrorCode as E;
use cairn_wire::meta::{CreateRequest, SetLockRequest, SetattrRequest};
use prost::Message;

fn as_user<T>(d: &mut Driver, uid: u32, groups: &[u32], f: impl FnOnce(&mut Driver) -> T) -> T {
    let before = std::mem::replace(&mut d.who, user(uid, uid, groups));
    let result = f(d);
    d.who = before;
    result
}

/// The class is chosen by owner, then group, then others, and the first that fits decides.
#[test]
fn classes_of_the_mode_bits() {
    let mut d = Driver::new();
    let file = d.create(ROOT, "f", 0o027).unwrap().inode;
    d.chown(file, Some(1000), Some(50)).unwrap();
    let can = |d: &mut Driver, uid, groups: &[u32], mask| as_user(d, uid, groups, |d| d.access(file, mask).is_ok());
    assert!(!can(&mut d, 1000, &[50], 4), "the owner has no bits, though group and others have");
    assert!(can(&mut d, 1001, &[50], 2) && !can(&mut d, 1001, &[50], 4));
    assert!(can(&mut d, 1002, &[], 7));
    assert!(can(&mut d, 0, &[], 7), "root may execute what anybody may");
    d.chmod(file, 0o666).unwrap();
    assert!(can(&mut d, 0, &[], 6) && !can(&mut d, 0, &[], 1), "not even root executes without an x bit");
    assert_eq!(d.access(file, 8), Err(E::InvalidArgument));
}

/// Search permission is needed on every directory of a path.
#[test]
fn search_permission_on_every_component() {
    let mut d = Driver::new();
    let a = d.mkdir(ROOT, "a", 0o700).unwrap().inode;
    let b = d.mkdir(a, "b", 0o777).unwrap().inode;
    d.create(b, "f", 0o644).unwrap();
    let answer = as_user(&mut d, 1000, &[], |d| d.resolve(ROOT, "a/b/f").unwrap());
    assert_eq!(answer.error, u32::from(E::PermissionDenied.code()));
    assert_eq!((answer.attributes.unwrap().inode, answer.consumed), (a, 1));
    assert_eq!(as_user(&mut d, 1000, &[], |d| d.lookup(a, "b")), Err(E::PermissionDenied));
    d.chmod(a, 0o711).unwrap();
    let answer = as_user(&mut d, 1000, &[], |d| d.resolve(ROOT, "a/b/f").unwrap());
    assert_eq!((answer.error, answer.consumed), (0, 5));
    assert_eq!(as_user(&mut d, 1000, &[], |d| d.readdir(a)), Err(E::PermissionDenied), "x alone does not list");
    d.chmod(a, 0o744).unwrap();
    let listed = as_user(&mut d, 1000, &[], |d| d.readdir(a).unwrap());
    assert!(listed[0].attributes.is_none(), "r alone lists names and nothing behind them");
}

/// In a sticky directory only owners take entries away.
#[test]
fn sticky_directories() {
    let mut d = Driver::new();
    let tmp = d.mkdir(ROOT, "tmp", 0o1777).unwrap().inode;
    let sub = as_user(&mut d, 1000, &[], |d| {
        d.create(tmp, "f", 0o666).unwrap();
        d.mkdir(tmp, "d", 0o777).unwrap().inode
    });
    as_user(&mut d, 1001, &[], |d| {
        assert_eq!(d.unlink(tmp, "f"), Err(E::NotPermitted));
        assert_eq!(d.rmdir(tmp, "d"), Err(E::NotPermitted));
        assert_eq!(d.rename(tmp, "f", tmp, "g", 0), Err(E::NotPermitted));
        d.create(tmp, "mine", 0o644).unwrap();
        assert_eq!(d.rename(tmp, "mine", tmp, "f", 0), Err(E::NotPermitted), "replacing takes it away, too");
        assert_eq!(d.rename(tmp, "mine", tmp, "f", 2), Err(E::NotPermitted));
        d.rename(tmp, "mine", sub, "mine", 0).unwrap();
    });
    as_user(&mut d, 1000, &[], |d| d.unlink(tmp, "f")).unwrap();
    d.chown(tmp, Some(1001), None).unwrap();
    as_user(&mut d, 1001, &[], |d| d.unlink(sub, "mine").and_then(|()| d.rmdir(tmp, "d"))).unwrap();
    d.check();
}

/// A setgid directory hands down its group; subdirectories get the bit, programs of strangers lose it.
#[test]
fn setgid_directories() {
    let mut d = Driver::new();
    let dir = d.mkdir(ROOT, "d", 0o777).unwrap().inode;
    d.chown(dir, None, Some(50)).unwrap();
    d.chmod(dir, 0o2777).unwrap();
    as_user(&mut d, 1000, &[], |d| {
        let file = d.create(dir, "f", 0o2755).unwrap();
        assert_eq!((file.gid, file.mode), (50, 0o100_755), "setgid is not for who is not in the group");
        let plain = d.create(dir, "g", 0o2644).unwrap();
        assert_eq!(plain.mode, 0o102_644, "without x for the group the bit means nothing dangerous");
        let sub = d.mkdir(dir, "s", 0o6755).unwrap();
        assert_eq!((sub.gid, sub.mode), (50, 0o042_755));
    });
    let member = as_user(&mut d, 1001, &[50], |d| d.create(dir, "h", 0o2755).unwrap());
    assert_eq!((member.gid, member.mode), (50, 0o102_755));
}

/// Setuid and setgid go when owner or contents change.
#[test]
fn privileges_go_with_owner_and_contents() {
    let mut d = Driver::new();
    let file = as_user(&mut d, 0, &[], |d| d.create(ROOT, "f", 0o6777).unwrap().inode);
    d.chown(file, Some(1000), Some(1000)).unwrap();
    assert_eq!(d.getattr(file).unwrap().mode, 0o100_777, "even when root does it");
    d.chmod(file, 0o6777).unwrap();
    d.publish(file, &[extent(0, 10, 1, 0)]).unwrap();
    d.truncate(file, 5).unwrap();
    assert_eq!(d.getattr(file).unwrap().mode, 0o106_777, "root's writing changes nothing");
    as_user(&mut d, 1001, &[], |d| d.publish(file, &[extent(0, 10, 2, 0)])).unwrap();
    assert_eq!(d.getattr(file).unwrap().mode, 0o100_777);
    d.chmod(file, 0o6777).unwrap();
    as_user(&mut d, 1001, &[], |d| d.truncate(file, 1)).unwrap();
    assert_eq!(d.getattr(file).unwrap().mode, 0o100_777);
    let dir = d.mkdir(ROOT, "d", 0o755).unwrap().inode;
    d.chmod(dir, 0o2755).unwrap();
    d.chown(dir, Some(1000), None).unwrap();
    assert_eq!(d.getattr(dir).unwrap().mode, 0o042_755, "a directory keeps them");
}

/// chown and chmod by others than root.
#[test]
fn owners_have_limits() {
    let mut d = Driver::new();
    let file = d.create(ROOT, "f", 0o644).unwrap().inode;
    d.chown(file, Some(1000), Some(1000)).unwrap();
    as_user(&mut d, 1000, &[50], |d| {
        assert_eq!(d.chown(file, Some(1001), None), Err(E::NotPermitted));
        assert_eq!(d.chown(file, None, Some(60)), Err(E::NotPermitted));
        d.chown(file, Some(1000), Some(50)).unwrap();
        assert_eq!(d.chmod(file, 0o2755).unwrap().mode, 0o102_755);
    });
    d.chown(file, None, Some(60)).unwrap();
    as_user(&mut d, 1000, &[50], |d| {
        assert_eq!(d.chmod(file, 0o2755).unwrap().mode, 0o100_755, "setgid for a group that one is not in");
    });
    as_user(&mut d, 1001, &[], |d| {
        assert_eq!(d.chmod(file, 0o777), Err(E::NotPermitted));
        assert_eq!(d.chown(file, None, Some(1001)), Err(E::NotPermitted));
    });
}

/// utimensat: times given are for the owner, "now" for whoever may write.
#[test]
fn times() {
    let mut d = Driver::new();
    let file = d.create(ROOT, "f", 0o666).unwrap().inode;
    let set = |valid| SetattrRequest { inode: file, valid, atime_ns: 5, mtime_ns: 6, ..Default::default() };
    as_user(&mut d, 1000, &[], |d| {
        assert_eq!(d.setattr(set(1 << 4 | 1 << 5)), Err(E::NotPermitted));
        assert_eq!(d.setattr(set(1 << 6)), Err(E::NotPermitted), "only one of them");
        let now = d.setattr(set(1 << 6 | 1 << 7)).unwrap();
        assert_eq!((now.atime_ns, now.mtime_ns, now.ctime_ns), (d.now, d.now, d.now));
    });
    d.chmod(file, 0o644).unwrap();
    as_user(&mut d, 1000, &[], |d| assert_eq!(d.setattr(set(1 << 6 | 1 << 7)), Err(E::PermissionDenied)));
    let given = d.setattr(set(1 << 4 | 1 << 5)).unwrap();
    assert_eq!((given.atime_ns, given.mtime_ns, given.ctime_ns), (5, 6, d.now));
}

/// Who opened a file for writing goes on writing when the mode no longer allows it; who did not, cannot.
#[test]
fn writing_goes_on_after_chmod() {
    let mut d = Driver::new();
    let dir = d.mkdir(ROOT, "d", 0o777).unwrap().inode;
    as_user(&mut d, 1000, &[], |d| {
        let request = CreateRequest { parent: dir, name: b"f".to_vec(), mode: 0o444, hold: true, ..Default::default() };
        let file = d.create_with(request).unwrap().inode;
        d.publish(file, &[extent(0, 10, 1, 0)]).unwrap();
        d.truncate(file, 5).unwrap();
        d.release(file).unwrap();
        assert_eq!(d.publish(file, &[extent(0, 10, 2, 0)]), Err(E::PermissionDenied));
        assert_eq!(d.hold(file, true), Err(E::PermissionDenied));
        d.hold(file, false).unwrap();
        assert_eq!(d.truncate(file, 0), Err(E::PermissionDenied));
    });
    d.check();
}

/// Devices are root's, and only they have a device number.
#[test]
fn special_files() {
    let mut d = Driver::new();
    let dir = d.mkdir(ROOT, "d", 0o777).unwrap().inode;
    let make = |name: &str, mode| CreateRequest { parent: dir, name: name.into(), mode, rdev: 7, ..Default::default() };
    as_user(&mut d, 1000, &[], |d| {
        assert_eq!(d.create_with(make("c", 0o020_600)), Err(E::NotPermitted));
        assert_eq!(d.create_with(make("p", 0o010_600)).unwrap().rdev, 0);
        assert_eq!(d.create_with(make("x", 0o040_700)), Err(E::NotPermitted));
        assert_eq!(d.create_with(make("x", 0o120_777)), Err(E::InvalidArgument));
    });
    let device = d.create_with(make("b", 0o060_600)).unwrap();
    assert_eq!((device.rdev, device.mode), (7, 0o060_600));
    assert_eq!(d.publish(device.inode, &[extent(0, 1, 1, 0)]), Err(E::InvalidArgument));
    assert_eq!(d.truncate(device.inode, 0), Err(E::InvalidArgument));
    d.check();
}

/// Somebody could keep the owner of a file, which he may not even read, from working with it.
#[test]
fn locks_are_for_those_who_may_open_the_file() {
    let mut d = Driver::new();
    let file = d.create(ROOT, "f", 0o640).unwrap().inode;
    d.chown(file, Some(1000), Some(50)).unwrap();
    let refused = |d: &mut Driver, uid, groups: &[u32], r#type| {
        as_user(d, uid, groups, |d| {
            let request = SetLockRequest { header: d.header(1), inode: file, r#type, end: 9, ..Default::default() };
            d.namespace.refuses_lock(&request.encode_to_vec()).map(|error| error.code)
        })
    };
    for kind in [1, 2] {
        assert_eq!(refused(&mut d, 1001, &[], kind), Some(E::PermissionDenied), "kind {kind}");
        for (uid, groups) in [(0, &[][..]), (1000, &[]), (1001, &[50])] {
            assert_eq!(refused(&mut d, uid, groups, kind), None, "kind {kind} of {uid}");
        }
    }
    assert_eq!(refused(&mut d, 1001, &[], 0), None, "giving back");
    d.chmod(file, 0o666).unwrap();
    as_user(&mut d, 1001, &[], |d| d.hold(file, true)).unwrap();
    d.chmod(file, 0o600).unwrap();
    assert_eq!(refused(&mut d, 1001, &[], 2), None, "it has been opened before the mode was changed");
    d.session = 2;
    assert_eq!(refused(&mut d, 1001, &[], 2), Some(E::PermissionDenied), "by another session");
}
