//! The HTTP port of a cluster that requires keys: strangers from elsewhere learn whether all is well, and nothing else.
use crate::chaos::hosts::on_host;
use crate::namespaces::Namespace;
use crate::secure::{file, give_keys, key};
use crate::support::{Cluster, Shape, binary, text};
use crate::wait::until_told;
use cairn_security::{KeyFile, SERVER_NAME, Tls};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, mpsc};

/// An address of the host that is not a loopback one.
const HOST: &str = "10.77.9.1";
const TOKEN: &str = "f00dfacef00dfacef00dface";

/// How somebody asks.
#[derive(Clone)]
enum Way {
    Plain,
    Private(Arc<ClientConfig>),
}

/// A cluster on a host of its own.
struct Site {
    net: Namespace,
    cluster: Cluster,
}

impl Site {
    /// `None` where no network of its own can be made.
    fn prepare() -> Option<Site> {
        let net = Namespace::network()?;
        let made = net.run("ip", "link set dev lo up") && net.run("ip", &format!("addr add {HOST}/32 dev lo"));
        let mut cluster = made.then(|| Cluster::prepare(Shape { managers: 1, metas: 1, datas: 1, racks: 1 }))?;
        for name in cluster.names() {
            cluster.give_space(&name, net.enter());
        }
        cluster.net = vec![net.enter()];
        Some(Site { net, cluster })
    }

    /// What a port says to a question that is asked from the address itself.
    fn ask(&self, port: &str, way: &Way, path: &str, token: Option<&str>) -> std::io::Result<String> {
        let shown = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
        let request = format!("GET {path} HTTP/1.1\r\nHost: {port}\r\n{shown}Connection: close\r\n\r\n");
        let (tell, told) = mpsc::channel();
        let (port, way) = (port.to_owned(), way.clone());
        let asked = on_host(self.net.file(), "asks", move || {
            let answer = TcpStream::connect(&port).and_then(|stream| match way {
                Way::Plain => talk(stream, &request),
                Way::Private(config) => {
                    let name = ServerName::try_from(SERVER_NAME).expect("a name");
                    let tls = ClientConnection::new(config, name).map_err(std::io::Error::other)?;
                    talk(StreamOwned::new(tls, stream), &request)
                }
            });
            tell.send(answer).expect("somebody waits");
        });
        let answer = told.recv().expect("an answer");
        asked.join().expect("it ends");
        answer
    }

    fn answer(&self, port: &str, way: &Way, path: &str, token: Option<&str>) -> String {
        self.ask(port, way, path, token).unwrap_or_else(|error| panic!("{port}{path}: {error}"))
    }

    /// Where a process answers.
    fn port(&self, name: &str) -> String {
        let ready = fs::read_to_string(self.cluster.path(&format!("{name}.out"))).expect("out");
        ready.split_whitespace().find_map(|word| word.strip_prefix("http=")).expect("a port").to_owned()
    }
}

fn talk(mut stream: impl Read + Write, request: &str) -> std::io::Result<String> {
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// As somebody who trusts the cluster's authority and has no key.
fn without_key(cluster: &Cluster) -> Way {
    let mut roots = RootCertStore::empty();
    let authority = fs::read(cluster.path("authority/ca.crt")).expect("a certificate");
    roots.add(CertificateDer::from_pem_slice(&authority).expect("a certificate")).expect("trusted");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&rustls::version::TLS13]);
    Way::Private(Arc::new(config.expect("TLS 1.3").with_root_certificates(roots).with_no_client_auth()))
}

fn with_key(path: &Path) -> Way {
    let tls = Tls::of_client(&KeyFile::read(path).expect("a key")).expect("a client");
    Way::Private(tls.web_client())
}

/// Whoever reaches the port would read how much there is of what, and which disks fail; or monitoring of those who
/// belong here, and probes that have no key, would end.
#[test]
fn strangers_learn_whether_all_is_well_and_nothing_else() {
    let Some(mut site) = Site::prepare() else {
        println!("skipped: no network of its own can be made here");
        return;
    };
    let cluster = &mut site.cluster;
    give_keys(cluster);
    key(cluster, &["init", "elsewhere"]);
    key(cluster, &["admin", "eve", "--ca", "elsewhere"]);
    let tokens = cluster.path("tokens");
    fs::write(&tokens, format!("{TOKEN}\n")).expect("a token");
    fs::set_permissions(&tokens, Permissions::from_mode(0o600)).expect("a mode");
    cluster.set_in_node("manager1", "http", Some(&format!("\"{HOST}:7480\"")));
    let config = cluster.path("manager1.toml");
    let section = format!("[http]\ntoken = {:?}\n", tokens.display().to_string());
    let text_of_config = fs::read_to_string(&config).expect("a configuration");
    fs::write(&config, text_of_config.replace("[manager]", &format!("{section}[manager]"))).expect("written");
    cluster.key = Some(file(cluster, "ops"));
    cluster.start_all();
    cluster.wait_volume();

    let cluster = &site.cluster;
    let port = site.port("manager1");
    assert_eq!(port, format!("{HOST}:7480"));
    let (plain, bare) = (Way::Plain, without_key(cluster));
    for way in [&plain, &bare] {
        let health = site.answer(&port, way, "/healthz", None);
        assert!(health.starts_with("HTTP/1.1 200") && health.ends_with("\r\n\r\nok\n"), "{health}");
        let refused = site.answer(&port, way, "/metrics", None);
        assert!(refused.starts_with("HTTP/1.1 401") && !refused.contains("cairn_rpc"), "{refused}");
        assert!(refused.contains("https with the key") && refused.contains("http.token"), "{refused}");
    }
    let refused = site.answer(&port, &plain, "/metrics", Some(TOKEN));
    assert!(refused.starts_with("HTTP/1.1 401") && refused.contains("TLS alone"), "{refused}");
    for wrong in ["f00dfacef00dfacef00dfac", "f00dfacef00dfacef00dfacef", "F00dfacef00dfacef00dface"] {
        let refused = site.answer(&port, &bare, "/metrics", Some(wrong));
        assert!(refused.starts_with("HTTP/1.1 401") && refused.contains("none of this node's"), "{refused}");
    }
    let (alice, ops) = (with_key(&file(cluster, "alice")), with_key(&file(cluster, "ops")));
    let refused = site.answer(&port, &alice, "/metrics", None);
    assert!(refused.starts_with("HTTP/1.1 401") && refused.contains("alice is that of a client"), "{refused}");
    let eve = with_key(&file(cluster, "eve"));
    assert!(site.ask(&port, &eve, "/metrics", None).is_err(), "of another cluster");

    for (way, token) in [(&bare, Some(TOKEN)), (&alice, Some(TOKEN)), (&ops, None)] {
        let metrics = site.answer(&port, way, "/metrics", token);
        assert!(metrics.starts_with("HTTP/1.1 200") && metrics.contains("cairn_rpc_"), "{metrics}");
        let health = site.answer(&port, way, "/healthz", token);
        assert!(health.contains("manager: ok"), "{health}");
    }
    // From the machine itself as ever.
    let local = site.port("data1");
    assert!(local.starts_with("127.0.0.1:"), "{local}");
    assert!(site.answer(&local, &plain, "/metrics", None).contains("cairn_rpc_"));

    // An operator's tools show their key by themselves.
    let bundle = cluster.path("bundle");
    cluster.ok(&[
        "admin",
        "support-bundle",
        bundle.to_str().expect("UTF-8"),
        "--config",
        config.to_str().expect("UTF-8"),
    ]);
    let bundle = fs::read_to_string(bundle).expect("text");
    let (_, of_manager) = bundle.split_once(&format!("http://{HOST}:7480/metrics ====")).expect("its part");
    assert!(of_manager.split("\n====").next().is_some_and(|part| part.contains("cairn_build_info")), "{of_manager}");
    assert!(!bundle.contains(TOKEN));

    // A new token without a restart, and a key that was taken away.
    fs::write(&tokens, "cafecafecafecafecafecafe\n").expect("a token");
    assert!(site.answer(&port, &bare, "/metrics", Some(TOKEN)).starts_with("HTTP/1.1 401"));
    assert!(site.answer(&port, &bare, "/metrics", Some("cafecafecafecafecafecafe")).starts_with("HTTP/1.1 200"));
    fs::write(cluster.path("revoked"), "ops\n").expect("a list");
    let asked = || site.answer(&port, &ops, "/metrics", None);
    until_told("ops to be out", || asked().contains("ops was revoked"), asked);
    let audit = fs::read_to_string(cluster.path("manager1.audit")).expect("an audit log");
    let told = |why: &str| audit.lines().any(|line| line.contains("\"HTTP\"") && line.contains(why));
    assert!(told("alice is that of a client") && told("TLS alone") && !audit.contains(TOKEN), "{audit}");
    site.cluster.check_logs();
}

/// A token that everybody on the machine can read would be taken for a secret.
#[test]
fn a_server_does_not_start_with_tokens_that_others_can_read() {
    let cluster = Cluster::prepare(Shape { managers: 1, metas: 1, datas: 1, racks: 1 });
    let (config, tokens) = (cluster.path("manager1.toml"), cluster.path("tokens"));
    let before = fs::read_to_string(&config).expect("a configuration");
    let section = format!("[http]\ntoken = {:?}\n", tokens.display().to_string());
    fs::write(&config, before.replace("[manager]", &format!("{section}[manager]"))).expect("written");
    let doctor = || {
        let args = ["doctor", "--config", config.to_str().expect("UTF-8")];
        text(&cluster.cairn(&args).stdout)
    };
    for (content, mode, why) in
        [(TOKEN, 0o644, "chmod 600"), ("short", 0o600, "fewer than 16"), ("", 0o600, "none in it")]
    {
        fs::write(&tokens, content).expect("written");
        fs::set_permissions(&tokens, Permissions::from_mode(mode)).expect("a mode");
        let output = Command::new(binary()).args(["server", "--config"]).arg(&config).output().expect("it runs");
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(11), "a part of the configuration is wrong: {said}");
        assert!(said.contains(why) && said.contains("http.token"), "{said}");
        assert!(doctor().contains(why), "{}", doctor());
    }
}
