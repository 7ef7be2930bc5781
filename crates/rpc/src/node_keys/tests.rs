//! Whose key passes for which node, and where.
use super::*;
use cairn_security::{Authority, DAY, KeyFile, Mode, Revoked, Wanted, write_secret};
use cairn_wire::audience::{Caller, Roles};
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
