//! What becomes of requests of clients with limits.
use super::*;
use crate::header::Head;
use cairn_wire::common::Credentials;
use cairn_wire::meta::{BatchRequest, DelegationAsk, LookupRequest, MkdirRequest};

fn header(partition: u32, uid: u32, groups: &[u32]) -> MetaHeader {
    let who = Some(Credentials { uid, gid: uid, groups: groups.to_vec() });
    MetaHeader { volume: 1, partition, session: 5, slot: 2, sequence: 9, who }
}

fn renamed_by(users: &Users, opcode: Opcode, message: &[u8]) -> Result<Vec<u8>, WireError> {
    renamed("alice", users, opcode, message)
}

/// Root on a client's machine would be root in the files; or what else the request says would be lost.
#[test]
fn root_is_made_nobody_and_the_rest_stays() {
    let mkdir = MkdirRequest {
        header: Some(header(3, 0, &[0, 7])),
        parent: 1,
        name: b"d".to_vec(),
        mode: 0o755,
        ..Default::default()
    };
    let out = renamed_by(&Users::NoRoot, Opcode::Mkdir, &mkdir.encode_to_vec()).expect("allowed");
    let who = Some(Credentials { uid: 65_534, gid: 65_534, groups: vec![7] });
    let wanted = MkdirRequest { header: Some(MetaHeader { who, ..header(3, 0, &[]) }), ..mkdir };
    assert_eq!(MkdirRequest::decode(&out[..]).expect("decodes"), wanted);
    assert_eq!(Head::find(&out).map(|head| (head.partition, head.session)), Some((3, 5)));
}

/// One reader of a request with two headers would see the allowed one, and another one the other.
#[test]
fn of_several_headers_one_is_left() {
    let part =
        |header: MetaHeader| LookupRequest { header: Some(header), parent: 1, name: b"x".to_vec() }.encode_to_vec();
    let both = [part(header(3, 1000, &[1])), part(header(4, 0, &[0, 2]))].concat();
    let out = renamed_by(&Users::NoRoot, Opcode::Lookup, &both).expect("allowed");
    let count = fields(&out).expect("protobuf").iter().filter(|(number, _)| *number == 1).count();
    assert_eq!(count, 1);
    let seen = LookupRequest::decode(&out[..]).expect("decodes").header.expect("one");
    assert_eq!(Head::find(&out).map(|head| head.partition), Some(seen.partition), "both readers see the same");
    let who = seen.who.expect("somebody");
    assert!(who.uid != 0 && who.gid != 0 && !who.groups.contains(&0), "{who:?}");
}

/// A request within a request would be asked in root's name.
#[test]
fn what_is_within_a_request_is_held_to_the_same() {
    let inner = LookupRequest { header: Some(header(3, 0, &[])), parent: 1, name: b"x".to_vec() };
    let stale = |opcode: Opcode| ReadStaleRequest {
        header: Some(header(3, 0, &[])),
        opcode: u32::from(opcode.code()),
        request: inner.encode_to_vec(),
        age_ms_max: 0,
    };
    let out = renamed_by(&Users::NoRoot, Opcode::ReadStale, &stale(Opcode::Lookup).encode_to_vec()).expect("allowed");
    let request = ReadStaleRequest::decode(&out[..]).expect("decodes").request;
    let who = LookupRequest::decode(&request[..]).expect("decodes").header.and_then(|header| header.who);
    assert_eq!(who.map(|who| (who.uid, who.gid)), Some((65_534, 65_534)));
    for other in [Opcode::ReadStale, Opcode::Fsck, Opcode::Mkdir] {
        let error = renamed_by(&Users::NoRoot, Opcode::ReadStale, &stale(other).encode_to_vec()).expect_err("not that");
        assert_eq!(error.code, ErrorCode::UnknownOperation);
    }
    let only = Users::only(vec![1000], vec![1000]).expect("users");
    let error = renamed_by(&only, Opcode::ReadStale, &stale(Opcode::Lookup).encode_to_vec()).expect_err("another user");
    assert_eq!(error.code, ErrorCode::KeyForbids);
}

/// A key for root and one user would leave files to others.
#[test]
fn root_of_a_key_gives_files_to_its_users_alone() {
    let only = Users::only(vec![0, 1000], vec![0, 1000]).expect("users");
    let create =
        |uid| CreateRequest { header: Some(header(3, 0, &[])), set_owner: true, uid, gid: 1000, ..Default::default() };
    let set = |valid, uid| SetattrRequest { header: Some(header(3, 0, &[])), valid, uid, gid: 5, ..Default::default() };
    let both = |set: SetattrRequest| PublishAttributesRequest {
        header: Some(header(3, 0, &[])),
        attributes: Some(set),
        ..Default::default()
    };
    let allowed = |opcode, message: Vec<u8>| renamed_by(&only, opcode, &message).is_ok();
    assert!(allowed(Opcode::Create, create(1000).encode_to_vec()));
    assert!(!allowed(Opcode::Create, create(1001).encode_to_vec()));
    assert!(allowed(Opcode::Setattr, set(UID, 1000).encode_to_vec()));
    assert!(!allowed(Opcode::Setattr, set(UID, 1001).encode_to_vec()));
    assert!(!allowed(Opcode::Setattr, set(GID, 0).encode_to_vec()));
    assert!(allowed(Opcode::PublishAttributes, both(set(UID, 1000)).encode_to_vec()));
    assert!(!allowed(Opcode::PublishAttributes, both(set(UID | GID, 1000)).encode_to_vec()));
}

/// A reader's key would begin to write; or could not even hold and lock what it reads.
#[test]
fn what_changes_a_volume_is_told_apart() {
    let asks = |opcode, message: Vec<u8>| changes(opcode, &message).expect("decodes");
    assert!(!asks(Opcode::Open, OpenRequest { access: 4, ..Default::default() }.encode_to_vec()));
    assert!(asks(Opcode::Open, OpenRequest { access: 6, ..Default::default() }.encode_to_vec()));
    assert!(asks(Opcode::Access, AccessRequest { mask: 2, ..Default::default() }.encode_to_vec()));
    assert!(!asks(Opcode::Hold, HoldRequest::default().encode_to_vec()));
    assert!(asks(Opcode::Hold, HoldRequest { write: true, ..Default::default() }.encode_to_vec()));
    let lock =
        |kind, r#type| asks(Opcode::SetLock, SetLockRequest { kind, r#type, ..Default::default() }.encode_to_vec());
    assert_eq!([lock(0, 0), lock(0, 1), lock(0, 2), lock(1, 2)], [false, false, true, false]);
    for opcode in Opcode::ALL {
        let holds =
            matches!(opcode, Opcode::Hold | Opcode::Release | Opcode::KeepAlive | Opcode::EndSession | Opcode::SetLock);
        if opcode.is_meta_mutation() && !holds {
            assert!(asks(*opcode, Vec::new()), "{}", opcode.name());
        }
    }
}

/// A client would execute operations as users that its key does not allow, before anybody looks at them.
#[test]
fn who_works_as_some_users_leads_no_directories() {
    let ask = Some(DelegationAsk { ids: 8, token: 1, level: 30 });
    let mkdir =
        MkdirRequest { header: Some(header(3, 0, &[])), parent: 1, name: b"d".to_vec(), ask, ..Default::default() };
    let batch = BatchRequest { header: Some(header(3, 0, &[])), delegation: 5, ..Default::default() };
    for (users, leads) in [(Users::Any, true), (Users::NoRoot, false), (Users::Nobody, false)] {
        let out = renamed_by(&users, Opcode::Mkdir, &mkdir.encode_to_vec()).expect("allowed");
        assert_eq!(MkdirRequest::decode(&out[..]).expect("decodes").ask, None);
        assert_eq!(renamed_by(&users, Opcode::Batch, &batch.encode_to_vec()).is_ok(), leads);
    }
}
