//! Whose key passes for which node, and where.
use super::*;
use crate::{Audit, Identity, PeerInfo};
use cairn_security::{Authority, DAY, KeyFile, Mode, Revoked, Wanted, write_secret};
use cairn_types::{ClusterId, ErrorCode};
use cairn_wire::audience::{Caller, Roles};
use cairn_wire::hello::PeerKind;
use cairn_wire::manager::Partition;
use cairn_wire::protection::Protection;
use cairn_wire::rights::Rights;

fn node(id: u32, address: &str, holder: &str) -> Node {
    Node { id, address: address.to_owned(), holder: holder.to_owned(), ..Node::default() }
}

fn key(name: &str, node: u32) -> Holder {
    let caller = Caller::Node(Roles::DATA);
    Holder { name: name.to_owned(), caller, node: NodeId(node), until: u64::MAX, rights: Rights::everything() }
}

/// What a process knows whose list of revoked keys is in the file.
fn keys() -> (tempfile::TempDir, Arc<Revoked>, NodeKeys) {
    let dir = tempfile::tempdir().expect("a directory");
    let authority = Authority::create(&dir.path().join("ca")).expect("an authority");
    let (caller, rights) = (Caller::Node(Roles::ALL), Rights::everything());
    let wanted = Wanted { name: "n".to_owned(), caller, node: NodeId(1), life: DAY, rights, again: false };
    let (path, list) = (dir.path().join("n.key"), dir.path().join("revoked"));
    write_secret(&path, &authority.issue(&wanted).expect("a key"), false).expect("written");
    std::fs::write(&list, "").expect("a list");
    let revoked = Arc::new(Revoked::read(&list).expect("a list"));
    let file = KeyFile::read(&path).expect("a key");
    let tls = Tls::of_server(&file, Mode::Required, Some(revoked.clone())).expect("usable");
    (dir, revoked, NodeKeys::new(Some(Arc::new(tls))))
}

/// Whoever has any server's key would pass for any other; or a node that moved, or got another key, stay shut out.
#[test]
fn a_node_has_the_key_that_the_map_says() {
    let (_dir, _, keys) = keys();
    let (n4, n5, n6) = (key("n4", 0), key("n5", 0), key("n6", 0));
    keys.learn(&node(17, "a:1", "n4"));
    keys.learn(&node(18, "b:1", ""));
    assert_eq!(keys.other_of_node(NodeId(17), &n4), None);
    assert_eq!(keys.other_of_node(NodeId(17), &n5).as_deref(), Some("n4"));
    assert_eq!(keys.other_of_node(NodeId(18), &n5), None);
    assert_eq!(keys.other_at("a:1", &n4), None);
    assert_eq!(keys.other_at("a:1", &n5).as_deref(), Some("n4"));
    assert_eq!(keys.other_at("b:1", &n5), None);
    // Another one came to where it was, before its move was heard of.
    keys.learn(&node(18, "a:1", "n5"));
    assert_eq!(keys.other_at("a:1", &n5), None);
    assert_eq!(keys.other_at("a:1", &n6).as_deref(), Some("n4"));
    keys.learn(&node(17, "c:1", "n7"));
    assert_eq!(keys.other_at("a:1", &n4).as_deref(), Some("n5"));
    assert_eq!(keys.other_at("c:1", &key("n7", 0)), None);
    keys.learn(&node(17, "c:1", ""));
    assert_eq!(keys.other_of_node(NodeId(17), &key("n9", 0)), None);
    assert_eq!(keys.other_at("nowhere:1", &n4), None);
}

/// A metadata server's key would free and move the data of all volumes; or one whose partition has just come be
/// refused for ever.
#[test]
fn a_metadata_server_has_a_say_where_it_has_a_partition() {
    let (_dir, _, keys) = keys();
    let meta = |name: &str, roles: Roles| Holder { caller: Caller::Node(roles), ..key(name, 0) };
    let partition =
        |id: u32, volume: u32, nodes: &[u32]| Partition { id, volume, nodes: nodes.to_vec(), ..Partition::default() };
    keys.learn_map(&ClusterMap {
        nodes: vec![node(17, "a:1", "m1"), node(18, "b:1", "m2")],
        partitions: vec![partition(1, 1, &[17]), partition(2, 2, &[18]), partition(3, 3, &[17, 18])],
        ..ClusterMap::default()
    });
    let keys = Arc::new(keys);
    let judge = |holder: Option<Holder>, says: u32, volume: u32| {
        let peer = PeerInfo {
            addr: ([127, 0, 0, 1], 1).into(),
            hello: Identity::new(ClusterId([1; 16]), PeerKind::Server, NodeId(says)).hello(),
            version: 1,
            holder,
            protection: Protection::Private,
            audit: Audit::default(),
            node_keys: keys.clone(),
        };
        peer.must_serve(VolumeId(volume)).map_err(|error| error.code)
    };
    let m1 = || Some(meta("m1", Roles::META));
    assert_eq!(judge(m1(), 17, 1), Ok(()));
    assert_eq!(judge(m1(), 0, 3), Ok(()), "it had no id when it connected");
    assert_eq!(judge(m1(), 17, 2), Err(ErrorCode::Unavailable));
    assert_eq!(judge(m1(), 18, 2), Err(ErrorCode::Unavailable), "it is not the one that it says");
    assert_eq!(judge(m1(), 17, 9), Err(ErrorCode::Unavailable), "a volume that nobody has heard of");
    assert_eq!(judge(Some(meta("m1", Roles::DATA)), 17, 1), Err(ErrorCode::NotPermitted));
    assert_eq!(judge(None, 17, 2), Ok(()), "without keys nobody knows");
    // Partitions move and go.
    let change = |partitions| ClusterMap { base_version: 1, version: 2, partitions, ..ClusterMap::default() };
    keys.learn_map(&change(vec![partition(2, 2, &[17]), Partition { removed: true, ..partition(1, 1, &[17]) }]));
    assert_eq!((judge(m1(), 17, 2), judge(m1(), 17, 1)), (Ok(()), Err(ErrorCode::Unavailable)));
    assert_eq!(judge(m1(), 17, 3), Ok(()));
    keys.learn_map(&ClusterMap::default());
    assert_eq!(judge(m1(), 17, 3), Err(ErrorCode::Unavailable), "a whole map replaces all");
}

/// Whom the manager lets in under another name would be refused by all others, for good.
#[test]
fn another_name_passes_where_the_manager_takes_it() {
    let (dir, revoked, keys) = keys();
    keys.learn(&node(17, "a:1", "n4"));
    assert_eq!(keys.other_of_node(NodeId(17), &key("n4b", 17)), None, "the authority says so");
    assert_eq!(keys.other_at("a:1", &key("n4b", 17)), None);
    assert!(keys.other_of_node(NodeId(17), &key("n4b", 18)).is_some());
    assert!(keys.other_of_node(NodeId(17), &key("n4b", 0)).is_some());
    std::fs::write(dir.path().join("revoked"), "n4\n").expect("a list");
    revoked.look().expect("read");
    assert_eq!(keys.other_of_node(NodeId(17), &key("n4b", 0)), None, "the name of before was revoked");
    assert_eq!(keys.other_at("a:1", &key("n4b", 0)), None);
}

/// A manager, or a new node, on the machine of one that is gone would be reached by nobody.
#[test]
fn whoever_comes_to_the_place_of_a_node_that_is_gone_is_reached() {
    let (_dir, _, keys) = keys();
    let (manager, new) = (key("m4", 4), key("n9", 0));
    keys.learn(&node(17, "a:1", "n4"));
    assert!(keys.other_at("a:1", &manager).is_some());
    // The old one is down, and still in the map.
    keys.learn(&node(4, "a:1", ""));
    assert_eq!(keys.other_at("a:1", &manager), None);
    assert!(keys.other_at("a:1", &key("m5", 5)).is_some(), "it is another manager's place");
    assert!(keys.other_at("a:1", &new).is_some());
    keys.learn(&node(19, "a:1", ""));
    assert_eq!(keys.other_at("a:1", &new), None, "one that nobody is bound to is there too");
    keys.learn(&Node { removed: true, ..node(19, "a:1", "") });
    keys.learn(&Node { removed: true, ..node(4, "a:1", "") });
    assert!(keys.other_at("a:1", &manager).is_some());
    keys.learn(&Node { removed: true, ..node(17, "a:1", "n4") });
    assert_eq!(keys.other_at("a:1", &manager), None);
    assert_eq!(keys.other_of_node(NodeId(17), &new), None);
}

/// Any stolen server's key would pass for the data and the names of a manager's machine; or a server that came there,
/// or a manager with another number, be reached by nobody.
#[test]
fn at_a_managers_place_is_a_manager_or_a_node_that_the_map_has_there() {
    let (_dir, _, keys) = keys();
    let new = key("n9", 0);
    keys.learn(&node(4, "a:1", ""));
    assert_eq!(keys.other_at("a:1", &key("m4", 4)), None);
    assert_eq!(keys.other_at("a:1", &key("m5", 5)), None, "it came in the place of the one of before");
    assert_eq!(keys.other_at("a:1", &new).as_deref(), Some("manager n4"));
    assert!(keys.other_at("a:1", &key("n9", 31)).is_some());
    // The manager is gone, and a data server registered there.
    keys.learn(&node(19, "a:1", "n9"));
    assert_eq!(keys.other_at("a:1", &new), None);
    assert!(keys.other_at("a:1", &key("n8", 0)).is_some());
    assert_eq!(keys.other_at("a:1", &key("m4", 4)), None);
}
