//! Files of keys and of authorities: what is taken, and what is not.
use super::*;
use cairn_types::NodeId;
use cairn_wire::audience::{Caller, Roles};
use cairn_wire::rights::{Access, Rights, Users};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

fn wanted(name: &str, caller: Caller) -> Wanted {
    Wanted { name: name.to_owned(), caller, node: NodeId(0), life: 9 * DAY, rights: Rights::everything(), again: false }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("there").mode() & 0o7777
}

/// Whoever shares the machine could take a private key, or put another one in its place.
#[test]
fn keys_are_their_owners_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let place = dir.path().join("keys");
    fs::create_dir(&place).expect("a directory");
    let authority = Authority::create(&dir.path().join("ca")).expect("an authority");
    assert_eq!(mode(&dir.path().join("ca")), 0o700);
    assert_eq!(mode(&dir.path().join("ca").join(CA_KEY)), 0o600);
    let key = place.join("alice.key");
    write_secret(&key, &authority.issue(&wanted("alice", Caller::Client)).expect("a key"), false).expect("written");
    assert_eq!(mode(&key), 0o600);
    assert_eq!(KeyFile::read(&key).expect("its owner's").holder().name, "alice");
    for (path, bad, good) in
        [(&key, 0o640, 0o600), (&key, 0o604, 0o600), (&place, 0o777, 0o755), (&place, 0o770, 0o700)]
    {
        fs::set_permissions(path, Permissions::from_mode(bad)).expect("a mode");
        assert!(matches!(KeyFile::read(&key), Err(SecurityError::Exposed { .. })), "{} {bad:o}", path.display());
        assert!(check_secret(&key).is_err());
        fs::set_permissions(path, Permissions::from_mode(good)).expect("a mode");
        KeyFile::read(&key).expect("its owner's again");
    }
    // What would keep a reader waiting for ever.
    let pipe = place.join("pipe");
    let made = std::process::Command::new("mkfifo").args(["-m", "600"]).arg(&pipe).status();
    if made.is_ok_and(|made| made.success()) {
        assert!(matches!(KeyFile::read(&pipe), Err(SecurityError::Exposed { .. })));
        fs::remove_file(&pipe).expect("removed");
    }
    // What is there is not replaced by the way.
    assert!(matches!(write_secret(&key, "x", false), Err(SecurityError::Exists(_))));
    KeyFile::read(&key).expect("as it was");
    assert_eq!(fs::read_dir(&place).expect("entries").count(), 1, "nothing is left behind");
    write_secret(&key, "x", true).expect("replaced");
    assert!(matches!(KeyFile::read(&key), Err(SecurityError::NotAKey { .. })));
}

/// A file that was cut or damaged anywhere would be taken for a key, or bring the reader down.
#[test]
fn damaged_files_are_no_keys() {
    let dir = tempfile::tempdir().expect("a directory");
    let authority = Authority::create(&dir.path().join("ca")).expect("an authority");
    let text = authority.issue(&wanted("n1", Caller::Node(Roles::META))).expect("a key");
    let path = dir.path().join("n1.key");
    let usable = |text: &[u8]| {
        write_secret(&path, &String::from_utf8_lossy(text), true).expect("written");
        KeyFile::read(&path).and_then(|file| Tls::of_server(&file, Mode::Required, None)).is_ok()
    };
    assert!(usable(text.as_bytes()));
    let end = text.rfind("-----END").expect("the end of the private key");
    let cuts = (0..end).step_by(97).chain([end]);
    for cut in cuts {
        assert!(!usable(&text.as_bytes()[..cut]), "cut at {cut}");
    }
    // The certificate of one key with the private key of another.
    let other = authority.issue(&wanted("n2", Caller::Node(Roles::META))).expect("a key");
    let at = |text: &str| text.find("-----BEGIN PRIVATE KEY").expect("a private key");
    let mixed = format!("{}{}", &text[..at(&text)], &other[at(&other)..]);
    assert!(!usable(mixed.as_bytes()));
}

/// A name that was revoked would be given to somebody else, who is then refused; or a server's key could not be made
/// again.
#[test]
fn names_are_given_out_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let ca = dir.path().join("ca");
    let authority = Authority::create(&ca).expect("an authority");
    assert!(matches!(Authority::create(&ca), Err(SecurityError::Exists(_))));
    let issue = |name: &str, caller| Authority::open(&ca).expect("opened").issue(&wanted(name, caller));
    issue("alice", Caller::Client).expect("the first");
    for caller in [Caller::Client, Caller::Admin, Caller::Node(Roles::DATA)] {
        assert!(matches!(issue("alice", caller), Err(SecurityError::Name(_))), "{caller:?}");
    }
    issue("data1", Caller::Node(Roles::DATA)).expect("the first");
    assert!(matches!(issue("data1", Caller::Node(Roles::DATA)), Err(SecurityError::Name(_))), "of another server");
    let again = |caller, node| authority.issue(&Wanted { node: NodeId(node), again: true, ..wanted("data1", caller) });
    again(Caller::Node(Roles::DATA), 0).expect("a server's key is made again");
    for (caller, node) in [(Caller::Client, 0), (Caller::Node(Roles::META), 0), (Caller::Node(Roles::DATA), 2)] {
        assert!(matches!(again(caller, node), Err(SecurityError::Name(_))), "{caller:?} {node}");
    }
    for bad in ["", "a b", "a:b", "../x", &"a".repeat(65)] {
        assert!(matches!(issue(bad, Caller::Client), Err(SecurityError::Name(_))), "{bad:?}");
    }
    let names: Vec<String> = authority.issued().expect("the list").into_iter().map(|holder| holder.name).collect();
    assert_eq!(names, ["alice", "data1", "data1"]);
}

/// The end of a certificate would be told wrongly.
#[test]
fn days_have_their_dates() {
    assert_eq!(date(0), "1970-01-01");
    assert_eq!(date(1_800_000_000), "2027-01-15");
    assert_eq!(date(u64::MAX), "in a far future");
    assert_eq!(moment(1_800_000_000), "2027-01-15T08:00:00Z");
    assert_eq!(moment(86_399), "1970-01-01T23:59:59Z");
}

/// A certificate would say other rights than its key was made for; or a change of the text would make keys that are out
/// there nobody's.
#[test]
fn rights_are_in_the_certificate() {
    let dir = tempfile::tempdir().expect("a directory");
    let authority = Authority::create(&dir.path().join("ca")).expect("an authority");
    let volumes = vec![("media".to_owned(), Access::Read), ("docs".to_owned(), Access::Write)];
    let rights = Rights::in_volumes(volumes, Users::NoRoot).expect("rights");
    let wanted = Wanted { rights: rights.clone(), ..wanted("alice", Caller::Client) };
    let path = dir.path().join("alice.key");
    write_secret(&path, &authority.issue(&wanted).expect("a key"), false).expect("written");
    let holder = KeyFile::read(&path).expect("a key").holder().clone();
    assert_eq!(holder.rights, rights);
    let golden = format!("cairn:2:client:alice:docs=rw+media=ro:root:{}", holder.until);
    assert_eq!(holder.to_string(), golden);
    assert_eq!(authority.issued().expect("the list"), [holder]);
}

/// A record that was damaged on its way would be taken for a refused key, and nobody try again; or a refused key be
/// tried again for as long as the caller waits.
#[test]
fn what_is_no_fault_of_a_key_is_not_explained_by_keys() {
    use rustls::{AlertDescription as Alert, CertificateError, Error};
    let told = |error: Error| crate::explain(&std::io::Error::other(error)).is_some();
    for alert in [Alert::BadRecordMac, Alert::DecodeError, Alert::IllegalParameter, Alert::HandshakeFailure] {
        assert!(!told(Error::AlertReceived(alert)), "{alert:?}");
    }
    assert!(!told(Error::DecryptError));
    for alert in [Alert::UnknownCA, Alert::DecryptError, Alert::CertificateExpired, Alert::AccessDenied] {
        assert!(told(Error::AlertReceived(alert)), "{alert:?}");
    }
    assert!(told(Error::InvalidCertificate(CertificateError::UnknownIssuer)));
}
