//! What a renewal puts in place, and what it leaves alone.
use super::*;
use cairn_security::{Authority, DAY, Mode, Wanted};
use cairn_types::NodeId;
use cairn_wire::audience::{Caller, Roles};
use cairn_wire::rights::Rights;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;

struct Server {
    dir: tempfile::TempDir,
    authority: Authority,
    path: PathBuf,
    present: CertificateDer<'static>,
    tls: Tls,
}

fn issue(authority: &Authority, name: &str, days: (u64, u64)) -> String {
    let (caller, rights) = (Caller::Node(Roles::DATA), Rights::everything());
    let wanted = Wanted { name: name.into(), caller, node: NodeId(0), life: days.1 * DAY, rights, again: true };
    authority.issue_at(&wanted, now() - days.0 * DAY).expect("a key")
}

impl Server {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let authority = Authority::create(&dir.path().join("ca")).expect("an authority");
        let path = dir.path().join("n1.key");
        write_secret(&path, &issue(&authority, "n1", (75, 90)), false).expect("written");
        let tls = Tls::of_server(&KeyFile::read(&path).expect("a key"), Mode::Required, None).expect("a server");
        let present = CertificateDer::from_pem_file(&path).expect("a certificate");
        Self { dir, authority, path, present, tls }
    }

    fn answer(&self, begun: &Begun) -> Answered {
        let certificate = self.authority.renew(&self.present, &begun.key.public()).expect("renewed").certificate;
        Answered { certificate, shown: Vec::new() }
    }
}

/// What a person put in place while the authority was asked would be lost, and the server stop when the old one ends.
#[test]
fn what_is_put_in_place_meanwhile_stays() {
    let server = Server::new();
    let begun = Begun::of(&server.path, &server.tls).expect("it can begin");
    let answer = server.answer(&begun);
    let other = fs::read_to_string(&server.path).expect("a key") + "# and another authority\n";
    write_secret(&server.path, &other, true).expect("written");
    let error = begun.finish(&answer).expect_err("it was changed");
    assert!(error.to_string().contains("was changed while"), "{error}");
    assert_eq!(fs::read_to_string(&server.path).expect("a key"), other);
    // With it the next attempt begins.
    let begun = Begun::of(&server.path, &server.tls).expect("it can begin");
    begun.finish(&server.answer(&begun)).expect("renewed");
    assert!(KeyFile::read(&server.path).expect("a key").holder().until > server.tls.until());
}

/// A key that is not taken would be renewed each hour, and nobody be told before the one that counts ends.
#[test]
fn a_next_key_that_is_not_taken_is_told_and_not_renewed_again() {
    let server = Server::new();
    let begun = Begun::of(&server.path, &server.tls).expect("it can begin");
    begun.finish(&server.answer(&begun)).expect("renewed");
    // Nobody took it.
    let error = Begun::of(&server.path, &server.tls).err().expect("it waits to be taken");
    assert!(error.to_string().contains("is not taken"), "{error}");
}

/// A link that stands for the key would be replaced by a file, and the key that it leads to end.
#[test]
fn a_key_behind_a_link_is_renewed_where_it_is() {
    let server = Server::new();
    let link = server.dir.path().join("link.key");
    std::os::unix::fs::symlink(&server.path, &link).expect("a link");
    let begun = Begun::of(&link, &server.tls).expect("it can begin");
    begun.finish(&server.answer(&begun)).expect("renewed");
    assert!(fs::symlink_metadata(&link).expect("there").is_symlink());
    assert!(KeyFile::read(&server.path).expect("a key").holder().until > server.tls.until());
}
