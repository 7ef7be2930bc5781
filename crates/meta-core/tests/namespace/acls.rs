//! Access control lists: the algorithm of acl(5) against the model's, inheritance, and what keeps list and mode in
//! step.
use crate::driver::{Driver, ROOT, user};
use cairn_model::{ACCESS, AclEntry, Caller, DEFAULT, Model, Operation, Request, acl_bytes};
use cairn_types::ErrorCode as E;
use cairn_wire::meta::*;
use proptest::prelude::*;

const NO_ID: u32 = u32::MAX;

fn text(name: &[u8]) -> &str {
    std::str::from_utf8(name).expect("ASCII")
}

fn sorted(named: &[(bool, u16, u32)], base: [u16; 4]) -> Vec<AclEntry> {
    let mut list = vec![(1, base[0], NO_ID), (4, base[1], NO_ID), (16, base[2], NO_ID), (32, base[3], NO_ID)];
    list.extend(named.iter().map(|(group, perm, id)| (if *group { 8 } else { 2 }, *perm, *id)));
    list.sort_by_key(|entry| entry.0);
    list
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..Default::default() })]

    /// Somebody would get in whom a list keeps out, or the other way round.
    #[test]
    fn access_is_as_acl_5_says(
        named in prop::collection::vec((any::<bool>(), 0u16..8, 1000u32..1004), 0..6),
        base in prop::array::uniform4(0u16..8),
        uid in 1000u32..1005,
        gid in 1000u32..1005,
        groups in prop::collection::vec(1000u32..1005, 0..3),
    ) {
        let bytes = acl_bytes(&sorted(&named, base));
        let mut d = Driver::new();
        let file = d.create(ROOT, "f", 0o600).unwrap().inode;
        d.chown(file, Some(1004), Some(1003)).unwrap();
        d.set_xattr(file, text(ACCESS), &bytes, 0).unwrap();
        d.check();
        let mut model = Model::new(0o755, 3, 1);
        let root = Caller { uid: 0, gid: 0, groups: vec![] };
        let request = |sequence| Request { caller: root.clone(), session: 1, slot: 0, sequence, now: 5 };
        let owner = Some((1004, 1003));
        let create = cairn_model::Create { parent: 1, name: b"f".to_vec(), mode: 0o600, owner, ..Default::default() };
        model.apply(&request(1), &Operation::Create(create)).unwrap();
        let set = Operation::SetXattr { inode: 2, name: ACCESS.to_vec(), value: bytes, flags: 0 };
        model.apply(&request(2), &set).unwrap();
        d.who = user(uid, gid, &groups);
        let caller = Caller { uid, gid, groups };
        for mask in 1..8 {
            let expected = if caller.has_all(&model.nodes[&2], mask) { Ok(()) } else { Err(E::PermissionDenied) };
            prop_assert_eq!(d.access(file, mask), expected, "mask {}", mask);
        }
    }
}

/// Files made in a directory would be open to others than its default list says, or a list would disagree with the
/// mode.
#[test]
fn default_lists_are_inherited_and_modes_follow() {
    let mut d = Driver::new();
    let dir = d.mkdir(ROOT, "d", 0o755).unwrap().inode;
    let list = sorted(&[(false, 7, 1001), (true, 5, 2001)], [7, 5, 7, 0]);
    d.set_xattr(dir, text(DEFAULT), &acl_bytes(&list), 0).unwrap();
    assert_eq!(d.getattr(dir).unwrap().mode & 0o777, 0o755, "a default list says nothing of the directory itself");
    let request = CreateRequest { parent: dir, name: b"f".to_vec(), mode: 0o664, umask: 0o077, ..Default::default() };
    let file = d.create_with(request).unwrap();
    assert_eq!(file.mode & 0o777, 0o660, "the default list stands for the umask");
    let expected = sorted(&[(false, 7, 1001), (true, 5, 2001)], [6, 5, 6, 0]);
    assert_eq!(d.get_xattr(file.inode, text(ACCESS)).unwrap(), acl_bytes(&expected));
    let below = d.mkdir(dir, "below", 0o777).unwrap();
    assert_eq!(d.get_xattr(below.inode, text(DEFAULT)).unwrap(), acl_bytes(&list), "handed down");
    assert_eq!(d.list_xattr(below.inode).unwrap().len(), 2);
    d.chmod(file.inode, 0o640).unwrap();
    let expected = sorted(&[(false, 7, 1001), (true, 5, 2001)], [6, 5, 4, 0]);
    assert_eq!(d.get_xattr(file.inode, text(ACCESS)).unwrap(), acl_bytes(&expected), "chmod changes the mask");
    d.check();
    d.namespace = d.restored();
    d.chmod(dir, 0o755).unwrap();
    d.who = user(1001, 1001, &[]);
    assert_eq!((d.access(file.inode, 4), d.access(file.inode, 2)), (Ok(()), Err(E::PermissionDenied)));
    assert_eq!(d.set_xattr(file.inode, text(ACCESS), &acl_bytes(&list), 0), Err(E::NotPermitted), "not his file");
    d.who = user(0, 0, &[]);
    let minimal = acl_bytes(&[(1, 7, 0), (4, 1, 0), (32, 0, 0)]);
    d.set_xattr(file.inode, text(ACCESS), &minimal, 0).unwrap();
    assert_eq!(d.getattr(file.inode).unwrap().mode & 0o777, 0o710);
    assert_eq!(d.get_xattr(file.inode, text(ACCESS)), Err(E::NoAttribute), "it says no more than the mode");
    assert_eq!(d.set_xattr(file.inode, text(DEFAULT), &minimal, 0), Err(E::PermissionDenied));
    let link = d.symlink(dir, "l", "f").unwrap().inode;
    assert_eq!(d.set_xattr(link, text(ACCESS), &minimal, 0), Err(E::NotSupported));
    d.remove_xattr(dir, text(DEFAULT)).unwrap();
    let name = b"p".to_vec();
    let plain = d.create_with(CreateRequest { parent: dir, name, mode: 0o666, umask: 0o027, ..Default::default() });
    assert_eq!(plain.unwrap().mode & 0o777, 0o640);
    d.check();
}
