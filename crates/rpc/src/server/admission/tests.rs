//! Every operation × everybody who may ask, generated from the tables.
use super::*;
use cairn_security::{Authority, DAY, KeyFile, Mode, Revoked, Wanted, write_secret};
use cairn_types::{ClusterId, NodeId};
use cairn_wire::audience::{Audience, Roles};
use cairn_wire::rights::Rights;

fn holder(caller: Caller, node: u32) -> Holder {
    Holder { name: "somebody".to_owned(), caller, node: NodeId(node), until: u64::MAX, rights: Rights::everything() }
}

/// A key of a server, with a list of revoked keys.
fn tls() -> (tempfile::TempDir, std::path::PathBuf, Arc<Revoked>, Arc<Tls>) {
    let dir = tempfile::tempdir().expect("a directory");
    let authority = Authority::create(&dir.path().join("ca")).expect("an authority");
    let caller = Caller::Node(Roles::ALL);
    let wanted = Wanted {
        name: "n".to_owned(),
        caller,
        node: NodeId(0),
        life: 9 * DAY,
        rights: Rights::everything(),
        again: false,
    };
    let (key, list) = (dir.path().join("n.key"), dir.path().join("revoked"));
    write_secret(&key, &authority.issue(&wanted).expect("a key"), false).expect("written");
    std::fs::write(&list, "").expect("a list");
    let revoked = Arc::new(Revoked::read(&list).expect("a list"));
    let file = KeyFile::read(&key).expect("a key");
    let tls = Tls::of_server(&file, Mode::Required, Some(revoked.clone())).expect("usable");
    (dir, list, revoked, Arc::new(tls))
}

fn held(tls: &Arc<Tls>, caller: Caller) -> Admission {
    held_on(tls, caller, Protection::Private)
}

fn held_on(tls: &Arc<Tls>, caller: Caller, protection: Protection) -> Admission {
    let held = Held { tls: tls.clone(), holder: holder(caller, 0), version: 0, ended: None, protection };
    Admission::Held(Box::new(held))
}

/// What says where data lies, or who may do what, would be answered where everybody can listen.
#[test]
fn only_file_data_is_served_outside_of_tls() {
    let (_dir, _, _, tls) = tls();
    for opcode in Opcode::ALL {
        let (caller, name) = (Caller::Node(Roles::ALL), opcode.name());
        let inside = held_on(&tls, caller, Protection::Private).refusal(opcode.code());
        let outside = held_on(&tls, caller, Protection::Authenticated).refusal(opcode.code());
        match opcode.protection() {
            Protection::Authenticated => assert!(inside.is_none() && outside.is_none(), "{name}"),
            Protection::Private => assert!(outside.expect(name).to_string().contains("private"), "{name}"),
        }
    }
}

/// A client's key would move the cluster, a data node's key vote for managers, or somebody be kept from what is his.
#[test]
fn every_operation_is_answered_to_those_it_is_for_and_to_nobody_else() {
    let (_dir, _, _, tls) = tls();
    let callers = [
        Caller::Client,
        Caller::Admin,
        Caller::Node(Roles::MANAGER),
        Caller::Node(Roles::META),
        Caller::Node(Roles::DATA),
        Caller::Node(Roles::ALL),
    ];
    let (mut let_in, mut kept_out) = (0, 0);
    for opcode in Opcode::ALL {
        let name = opcode.name();
        for caller in callers {
            let wanted = match (opcode.audience(), caller) {
                (Audience::Nobody, _) => false,
                (Audience::Clients(_), _) => true,
                (Audience::ClientsAndNodes(..), Caller::Client | Caller::Admin) => true,
                (Audience::ClientsAndNodes(_, of), Caller::Node(has)) => of.with(Roles::MANAGER).meets(has),
                (Audience::Admins, Caller::Client) => false,
                (Audience::Admins, Caller::Admin) => true,
                (Audience::Admins, Caller::Node(has)) => has.meets(Roles::MANAGER),
                (Audience::Nodes(_), Caller::Client | Caller::Admin) => false,
                (Audience::AdminsAndNodes(_), Caller::Client) => false,
                (Audience::AdminsAndNodes(_), Caller::Admin) => true,
                (Audience::Nodes(of) | Audience::AdminsAndNodes(of), Caller::Node(has)) => of.meets(has),
            };
            let refusal = held(&tls, caller).refusal(opcode.code());
            assert_eq!(refusal.is_none(), wanted, "{name} asked by {caller:?}");
            let (mut anonymous, refusal) = (Admission::Open, refusal.map(|error| (error.code, error.to_string())));
            if let Some((code, text)) = refusal {
                assert_eq!(code, ErrorCode::NotPermitted, "{name}");
                assert!(text.contains(name) && text.contains("somebody") && text.contains("cairn key"), "{text}");
                kept_out += 1;
            } else {
                let_in += 1;
            }
            assert!(anonymous.refusal(opcode.code()).is_none(), "who shows no key is held to the service's own rules");
        }
    }
    assert!(let_in > 400 && kept_out > 200, "{let_in} let in, {kept_out} kept out");
    // The worst of them by name, so that a slip in the table itself is seen.
    use Opcode::*;
    for opcode in
        [Free, ApplyPgs, RaftMessages, Register, Heartbeat, PrepareTx, ReserveIndices, ChunkTable, TakeJob, Compact]
    {
        for caller in [Caller::Client, Caller::Admin] {
            assert!(held(&tls, caller).refusal(opcode.code()).is_some(), "{} asked by {caller:?}", opcode.name());
        }
    }
    for opcode in [ForcePg, DeleteVolume, SetConfig, ChangeMembers, Remove, FetchCheckpoint, TakeCheckpoint, AcceptLoss]
    {
        assert!(held(&tls, Caller::Client).refusal(opcode.code()).is_some(), "{}", opcode.name());
        assert!(held(&tls, Caller::Admin).refusal(opcode.code()).is_none(), "{}", opcode.name());
    }
    for opcode in [RaftMessages, FetchCheckpoint, PrepareTx, GroupMembers] {
        assert!(held(&tls, Caller::Node(Roles::DATA)).refusal(opcode.code()).is_some(), "{}", opcode.name());
    }
    // A metadata server would take the managers out of their own group.
    assert!(held(&tls, Caller::Node(Roles::META)).refusal(GroupMembers.code()).is_some());
}

/// A client would be taken for a server, or one node for another.
#[test]
fn a_hello_says_what_the_key_says() {
    let node = Caller::Node(Roles::META);
    let table = [
        (Caller::Client, 0, PeerKind::Client, 0, true),
        (Caller::Client, 0, PeerKind::Tool, 0, true),
        (Caller::Client, 0, PeerKind::Server, 0, false),
        (Caller::Client, 0, PeerKind::Client, 16, false),
        (Caller::Admin, 0, PeerKind::Tool, 0, true),
        (Caller::Admin, 0, PeerKind::Server, 0, false),
        (node, 0, PeerKind::Server, 0, true),
        (node, 0, PeerKind::Server, 16, true),
        (node, 0, PeerKind::Client, 0, true),
        (node, 0, PeerKind::Server, 3, false),
        (node, 3, PeerKind::Server, 3, true),
        (node, 3, PeerKind::Server, 0, true),
        (node, 3, PeerKind::Server, 2, false),
        (node, 3, PeerKind::Server, 16, false),
    ];
    for (caller, own, kind, says, wanted) in table {
        let hello = Hello::new(ClusterId([1; 16]), kind, NodeId(says));
        let checked = check(&holder(caller, own), &hello);
        assert_eq!(checked.is_ok(), wanted, "{caller:?} {own} says {kind:?} {says}: {checked:?}");
    }
}

/// A stolen key would go on to work on the connections that it has.
#[test]
fn a_revoked_key_asks_nothing_more() {
    let (_dir, list, revoked, tls) = tls();
    let mut present = held(&tls, Caller::Client);
    assert!(present.refusal(Opcode::Read.code()).is_none());
    std::fs::write(&list, "# stolen on Monday\nsomebody # a laptop\n").expect("a list");
    let came = revoked.look().expect("read").map(|change| (change.came, change.went));
    assert_eq!(came, Some((vec!["somebody".to_owned()], Vec::new())));
    let refusal = present.refusal(Opcode::Read.code()).expect("refused");
    assert!(refusal.to_string().contains("revoked"), "{refusal}");
    assert!(is_revoked(&tls, &holder(Caller::Client, 0)).is_some());
    // A list that is gone gives nobody his key back.
    std::fs::remove_file(&list).expect("removed");
    assert!(revoked.look().is_err());
    assert!(present.refusal(Opcode::Read.code()).is_some());
    std::fs::write(&list, "somebody-else\n").expect("a list");
    revoked.look().expect("read");
    assert!(present.refusal(Opcode::Read.code()).is_none(), "taken off the list");
}

/// Whoever stole a key of a day would keep a connection, and need no other key ever; or a server that has its next key
/// would be shut out by the one before.
#[test]
fn a_key_whose_time_is_over_asks_nothing_more() {
    let (_dir, _, _, tls) = tls();
    let until = |caller, until| {
        let holder = Holder { until, ..holder(caller, 0) };
        let protection = Protection::Private;
        let held = Held { tls: tls.clone(), holder, version: 0, ended: None, protection };
        Admission::Held(Box::new(held))
    };
    let hour = 3600;
    let (before, later) = (cairn_security::now() - hour, cairn_security::now() + hour);
    for caller in [Caller::Client, Caller::Admin] {
        assert!(until(caller, later).ended().is_none() && until(caller, later).refusal(Opcode::Ping.code()).is_none());
        let mut over = until(caller, before);
        assert!(over.ended().is_some_and(|why| why.contains("ended at") && why.contains("another one")));
        assert!(over.refusal(Opcode::Ping.code()).is_some());
    }
    assert!(until(Caller::Node(Roles::ALL), before).ended().is_none());
}
