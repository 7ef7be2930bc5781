//! Machines that get their keys from the authority's port: with a token the first one, with the present one the next.
use crate::private::{OTHER_USER, is_root};
use crate::secure::{file, key};
use crate::support::{Cluster, Shape, binary, text};
use crate::wait::{LIMIT, PATIENT, until_told};
use cairn_security::{Authority, DAY, KeyFile, NewKey, Tls, Wanted, authority_name, exported, now, write_secret};
use cairn_types::NodeId;
use cairn_wire::audience::{Caller, Roles};
use cairn_wire::enrol::{self, Asked, JoinToken, LENGTH_LEN, Proven};
use cairn_wire::rights::Rights;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const PERMISSION: i32 = 5;
const USAGE: i32 = 2;
const SMALL: Shape = Shape { managers: 1, metas: 1, datas: 3, racks: 3 };

/// A running `cairn key serve`.
struct Port {
    child: Child,
    address: String,
    log: PathBuf,
}

impl Port {
    /// Of the authority in this directory of the test's.
    fn open(cluster: &Cluster, ca: &str, listen: &str) -> Port {
        let (out, log) = (cluster.path(&format!("{ca}.out")), cluster.path(&format!("{ca}.log")));
        let log_file = File::options().create(true).append(true).open(&log).expect("log");
        let mut command = Command::new(binary());
        command.args(["key", "serve", "--ca", ca, "--listen", listen]).current_dir(cluster.dir.path());
        let to = File::create(&out).expect("out");
        let child = command.stdin(Stdio::null()).stdout(to).stderr(log_file).spawn().expect("it runs");
        let mut port = Port { child, address: String::new(), log };
        let ready = || {
            let said = fs::read_to_string(&out).unwrap_or_default();
            said.split_whitespace().find_map(|word| word.strip_prefix("authority=").map(str::to_owned))
        };
        until_told("the authority's port", || ready().is_some(), || port.told());
        port.address = ready().expect("it said so");
        port
    }

    fn told(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn kill(mut self) -> String {
        self.child.kill().expect("kill");
        self.child.wait().expect("wait");
        self.address.clone()
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        let _may_be_gone = self.child.kill();
        let _ended = self.child.wait();
    }
}

fn audit(cluster: &Cluster, ca: &str) -> String {
    fs::read_to_string(cluster.path(ca).join("audit.log")).expect("an audit log")
}

fn token(cluster: &Cluster, args: &[&str]) -> String {
    let mut all = vec!["token"];
    all.extend(args);
    all.extend(["--ca", "authority"]);
    key(cluster, &all).trim().to_owned()
}

/// Runs `cairn key enrol` with the token on standard input.
fn enrol(cluster: &Cluster, token: &str, args: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.args(["key", "enrol", "--token", "-"]).args(args).current_dir(cluster.dir.path());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it runs");
    let mut stdin = child.stdin.take().expect("a pipe");
    // It may end before it reads.
    let _taken = stdin.write_all(token.as_bytes());
    drop(stdin);
    child.wait_with_output().expect("it ends")
}

fn enrolled(cluster: &Cluster, token: &str, args: &[&str]) {
    let output = enrol(cluster, token, args);
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
}

fn refused(cluster: &Cluster, token: &str, args: &[&str], exit: i32) -> String {
    let output = enrol(cluster, token, args);
    assert_eq!(output.status.code(), Some(exit), "{args:?}: {}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stderr)
}

/// What the configurations say of security.
fn secure(cluster: &mut Cluster, authority: &str) {
    for name in cluster.names() {
        let (key, list) = (file(cluster, &name), cluster.path("revoked"));
        let section = format!("key = {key:?}\nrevoked = {list:?}\nauthority = {authority:?}\n");
        cluster.set_security(&name, Some(&section));
    }
}

/// The authority of a cluster whose configurations name it.
fn with_authority(shape: Shape) -> (Cluster, Port) {
    let mut cluster = Cluster::prepare(shape);
    key(&cluster, &["init", "authority"]);
    fs::write(cluster.path("revoked"), "").expect("a list");
    let port = Port::open(&cluster, "authority", "127.0.0.1:0");
    secure(&mut cluster, &port.address);
    (cluster, port)
}

fn roles(name: &str) -> Vec<&'static str> {
    match &name[..4] {
        "mana" => vec!["--roles", "manager", "--node", "1"],
        "meta" => vec!["--roles", "meta"],
        _ => vec!["--roles", "data"],
    }
}

/// A new machine would need a file that somebody carries there; or a token would let in whoever finds it, or be told to
/// whoever answers.
#[test]
fn a_cluster_begins_with_a_token_for_each_machine() {
    let (mut cluster, port) = with_authority(SMALL);
    let mut tokens = Vec::new();
    for name in cluster.names() {
        let token = token(&cluster, &[&[name.as_str()][..], &roles(&name)].concat());
        enrolled(&cluster, &token, &[&format!("{name}.toml")]);
        tokens.push(token);
    }
    let ops = token(&cluster, &["ops", "--admin"]);
    enrolled(&cluster, &ops, &["--at", &port.address, "--out", "ops.key"]);
    let alice = token(&cluster, &["alice", "--volume", "default", "--squash", "none"]);
    enrolled(&cluster, &alice, &["--at", &port.address, "--out", "alice.key"]);
    cluster.key = Some(file(&cluster, "ops"));
    cluster.start_all();
    cluster.wait_volume();
    let bytes: Vec<u8> = (0..300_000u32).flat_map(u32::to_le_bytes).collect();
    let local = cluster.path("local");
    fs::write(&local, &bytes).expect("a file");
    cluster.key = Some(file(&cluster, "alice"));
    cluster.ok(&["fs", "put", local.to_str().expect("UTF-8"), "/file"]);
    assert!(cluster.cairn(&["fs", "cat", "/file"]).stdout == bytes, "the bytes come back");
    let said = cluster.fails(&["admin", "events"], PERMISSION);
    assert!(said.contains("alice"), "{said}");

    // Tokens that are good for nobody any more, or for somebody else.
    let at = ["--at", port.address.as_str(), "--out", "thief.key"];
    let said = refused(&cluster, &tokens[0], &at, PERMISSION);
    assert!(said.contains("was used at") && said.contains("revoke the name"), "{said}");
    let late = token(&cluster, &["late", "--roles", "data", "--for", "0s"]);
    let said = refused(&cluster, &late, &at, PERMISSION);
    assert!(said.contains("ended at"), "{said}");
    let nobodys = JoinToken { secret: [7; 16], ..JoinToken::parse(&late).expect("a token") };
    let said = refused(&cluster, &nobodys.text(), &at, PERMISSION);
    assert!(said.contains("knows no such token"), "{said}");
    assert!(!file(&cluster, "thief").exists());
    let said = refused(&cluster, &late[..50], &at, USAGE);
    assert!(said.contains("copy all of"), "{said}");
    // What everybody on the machine can read is not taken.
    let mut command = Command::new(binary());
    command.args(["key", "enrol", "--token", &late]).args(at).current_dir(cluster.dir.path());
    let output = command.stdin(Stdio::null()).output().expect("it runs");
    assert_eq!(output.status.code(), Some(USAGE), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("can read a token on a command line"), "{}", text(&output.stderr));
    // What is there stays, and a key of other roles is not put in the place of a server's.
    let other = token(&cluster, &["other", "--roles", "meta"]);
    let said = refused(&cluster, &other, &["data1.toml"], USAGE);
    assert!(said.contains("--replace"), "{said}");
    let before = fs::read(file(&cluster, "data1")).expect("a key");
    let said = refused(&cluster, &other, &["--replace", "data1.toml"], PERMISSION);
    assert!(said.contains("with the roles meta") && said.contains("as good as before"), "{said}");
    assert!(fs::read(file(&cluster, "data1")).expect("a key") == before);

    // All of it is written down, and no secret is.
    let told = audit(&cluster, "authority");
    for wanted in ["\"name\":\"data1\"", "\"name\":\"ops\"", "\"operation\":\"Enrol\"", "was used at"] {
        assert!(told.contains(wanted), "{wanted} is not in {told}");
    }
    let all = told + &port.told() + &cluster.read_log("data1");
    for token in tokens.iter().chain([&ops, &alice, &late]) {
        let secret = token.rsplit('_').next().expect("a secret");
        assert!(secret.len() == 32 && !all.contains(secret), "a secret is in a log");
    }
    assert!(!all.contains("PRIVATE KEY"));
    cluster.check_logs();
}

/// The private key that waits for its certificate.
fn pending(cluster: &Cluster, name: &str) -> Option<PathBuf> {
    let begin = format!("{name}.key.pending-");
    let mut all = fs::read_dir(cluster.dir.path()).expect("a directory").map(|entry| entry.expect("an entry").path());
    all.find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&begin)))
}

fn certificate(path: &Path) -> String {
    let text = fs::read_to_string(path).expect("a key");
    let end = text.find("-----END CERTIFICATE").expect("a certificate");
    text[..end].to_owned()
}

/// A token's secret would be told to whoever answers at the address; or an answer that was lost cost the token.
#[test]
fn a_token_is_told_to_its_authority_alone_and_an_answer_may_be_lost() {
    let (cluster, port) = with_authority(Shape { managers: 1, metas: 1, datas: 1, racks: 1 });
    key(&cluster, &["init", "elsewhere"]);
    let elsewhere = Port::open(&cluster, "elsewhere", "127.0.0.1:0");
    let data = token(&cluster, &["data1", "--roles", "data"]);
    let said = refused(&cluster, &data, &["--at", &elsewhere.address, "data1.toml"], 1);
    assert!(said.contains("is not the authority") && said.contains("nothing was told"), "{said}");
    // Nor to a server of the same cluster, which has a certificate of the authority.
    key(&cluster, &["node", "--ca", "authority", "manager1.toml"]);
    let mut cluster = cluster;
    cluster.launch("manager1");
    let listens = || TcpStream::connect(&cluster.address).is_ok();
    until_told("the manager's port", listens, || cluster.read_log("manager1"));
    let said = refused(&cluster, &data, &["--at", &cluster.address, "data1.toml"], 1);
    assert!(said.contains("is not the authority") || said.contains("is no authority"), "{said}");
    until_told(
        "the refusal to be written down",
        || audit(&cluster, "elsewhere").contains("handshake"),
        || audit(&cluster, "elsewhere"),
    );
    assert!(!audit(&cluster, "elsewhere").contains("Enrol"), "it was told what it is not to know");
    // Root fetches it for whom the directory is.
    if is_root() {
        let dir = cluster.path("of-another");
        fs::create_dir(&dir).expect("a directory");
        std::os::unix::fs::chown(&dir, Some(OTHER_USER), Some(OTHER_USER)).expect("given away");
        let theirs = token(&cluster, &["theirs", "--roles", "data"]);
        enrolled(&cluster, &theirs, &["--at", &port.address, "--out", "of-another/node.key"]);
        let found = fs::metadata(dir.join("node.key")).expect("a key");
        assert_eq!((found.uid(), found.mode() & 0o777), (OTHER_USER, 0o600));
    }
    // The authority dies, and is started again.
    let address = port.kill();
    let said = refused(&cluster, &data, &["data1.toml"], 1);
    assert!(said.contains("cairn key serve"), "{said}");
    let pending = pending(&cluster, "data1").expect("the private key waits");
    let kept = fs::read_to_string(&pending).expect("the private key waits");
    let port = Port::open(&cluster, "authority", &address);
    enrolled(&cluster, &data, &["data1.toml"]);
    let own = file(&cluster, "data1");
    let got = fs::read_to_string(&own).expect("a key");
    assert!(got.ends_with(&kept) && !pending.exists(), "the private key that was made first");
    // Who has a private key that waited for another token has none of this one's.
    let other = token(&cluster, &["other1", "--roles", "data"]);
    refused(
        &cluster,
        &JoinToken { secret: [7; 16], ..JoinToken::parse(&other).expect("a token") }.text(),
        &["--replace", "data1.toml"],
        PERMISSION,
    );
    let stale = self::pending(&cluster, "data1").expect("it waits");
    let stale = fs::read_to_string(stale).expect("a private key");
    enrolled(&cluster, &other, &["--replace", "data1.toml"]);
    assert!(!fs::read_to_string(&own).expect("a key").ends_with(&stale), "the key of another token");
    write_secret(&own, &got, true).expect("put back");
    // As if the answer had not come: the same again.
    fs::rename(&own, cluster.path("first")).expect("put away");
    write_secret(&pending, &kept, false).expect("written");
    enrolled(&cluster, &data, &["data1.toml"]);
    assert_eq!(certificate(&own), certificate(&cluster.path("first")));
    let ls = key(&cluster, &["ls", "--ca", "authority"]);
    assert_eq!(ls.matches("node data1").count(), 1, "{ls}");
    drop(port);
}

/// Asks for the next key of a file's holder, as a server does; the error is what the authority, or its handshake, says.
fn renew(port: &Port, key: &Path, bend: impl Fn(&mut Proven)) -> Result<(), String> {
    let tls = Tls::of_client(&KeyFile::read_any(key).expect("a key")).expect("a client");
    let mut tls = rustls::ClientConnection::new(tls.renewing(), authority_name()).expect("a client");
    let mut tcp = TcpStream::connect(&port.address).expect("the port");
    tcp.set_read_timeout(Some(LIMIT)).expect("a limit");
    while tls.is_handshaking() {
        tls.complete_io(&mut tcp).map_err(|error| error.to_string())?;
    }
    let next = NewKey::generate().expect("a key");
    let proof = next.prove(&exported(&tls).expect("exported")).expect("a proof");
    let mut proven = Proven { public_key: next.public(), proof };
    bend(&mut proven);
    let mut stream = rustls::StreamOwned::new(tls, tcp);
    let answer = (|| {
        stream.write_all(&enrol::encode_asked(&Asked::Renew(proven)))?;
        let mut head = [0; LENGTH_LEN];
        stream.read_exact(&mut head)?;
        let mut message = vec![0; enrol::length(head).expect("a length")];
        stream.read_exact(&mut message)?;
        std::io::Result::Ok(message)
    })();
    let answer = answer.map_err(|error| error.to_string())?;
    enrol::decode_answer(&answer).expect("an answer").map(drop)
}

/// A key as if it had been made so many days ago, for so many.
fn issue(cluster: &Cluster, name: &str, caller: Caller, node: u32, (ago, days): (u64, u64)) -> String {
    let authority = Authority::open(&cluster.path("authority")).expect("opened");
    let (node, rights) = (NodeId(node), Rights::everything());
    let again = matches!(caller, Caller::Node(_));
    let wanted = Wanted { name: name.to_owned(), caller, node, life: days * DAY, rights, again };
    authority.issue_at(&wanted, now() - ago * DAY).expect("a key")
}

/// A revoked key, one that ended, or a certificate without its private key would be renewed for ever.
#[test]
fn only_who_has_a_key_that_counts_gets_the_next_one() {
    let cluster = Cluster::prepare(Shape { managers: 1, metas: 1, datas: 1, racks: 1 });
    key(&cluster, &["init", "authority"]);
    let port = Port::open(&cluster, "authority", "127.0.0.1:0");
    let put = |name: &str, text: &str| {
        write_secret(&file(&cluster, name), text, false).expect("written");
        file(&cluster, name)
    };
    let server = Caller::Node(Roles::DATA);
    let own = put("data1", &issue(&cluster, "data1", server, 0, (60, 90)));
    renew(&port, &own, |_| {}).expect("the next one");
    let said = renew(&port, &own, |proven| proven.proof[0] ^= 1).expect_err("another's key");
    assert!(said.contains("does not show that it has the private key"), "{said}");
    let other = NewKey::generate().expect("a key").public();
    renew(&port, &own, |proven| proven.public_key = other).expect_err("another's key");
    let ended = put("data2", &issue(&cluster, "data2", server, 0, (100, 90)));
    let said = renew(&port, &ended, |_| {}).expect_err("it ended");
    assert!(said.contains("Expired") || said.contains("expired"), "{said}");
    let alice = put("alice", &issue(&cluster, "alice", Caller::Client, 0, (60, 90)));
    let said = renew(&port, &alice, |_| {}).expect_err("it was given a key for a time");
    assert!(said.contains("only servers' are renewed"), "{said}");
    let early = put("data3", &issue(&cluster, "data3", server, 0, (40, 90)));
    let said = renew(&port, &early, |_| {}).expect_err("it is too early");
    assert!(said.contains("and not before"), "{said}");
    // Whoever has a key would make the authority write as fast as he likes.
    let many: Vec<_> = (0..10).map(|_| renew(&port, &own, |_| {})).collect();
    let said = many.into_iter().find_map(Result::err).expect("one name's renewals have a bound");
    assert!(said.contains("within a minute"), "{said}");
    // A list that is not there is no empty one.
    key(&cluster, &["init", "bare"]);
    fs::remove_file(cluster.path("bare/revoked")).expect("removed");
    let mut command = Command::new(binary());
    command.args(["key", "serve", "--ca", "bare", "--listen", "127.0.0.1:0"]).current_dir(cluster.dir.path());
    let output = command.stdin(Stdio::null()).output().expect("it ends");
    assert!(text(&output.stderr).contains("the list of revoked keys has to be there"), "{}", text(&output.stderr));
    // From the next request on.
    fs::write(cluster.path("authority").join("revoked"), "data4\n").expect("a list");
    // Of one that was refused less: the log tells each key's refusals for a while, and then how many there were.
    let revoked = put("data4", &issue(&cluster, "data4", server, 0, (60, 90)));
    let said = renew(&port, &revoked, |_| {}).expect_err("it was revoked");
    assert!(said.contains("was revoked"), "{said}");
    // Another authority's.
    key(&cluster, &["init", "elsewhere"]);
    key(&cluster, &["client", "eve", "--ca", "elsewhere", "--all-volumes"]);
    renew(&port, &file(&cluster, "eve"), |_| {}).expect_err("another authority's");
    until_told("the log", || audit(&cluster, "authority").contains("was revoked"), || audit(&cluster, "authority"));
}

/// Strangers would take the authority's memory or its places, and keep machines from their keys.
#[test]
fn strangers_hold_up_no_enrolment() {
    const STRANGERS: usize = 600;
    let (cluster, port) = with_authority(Shape { managers: 1, metas: 1, datas: 1, racks: 1 });
    let token = token(&cluster, &["data1", "--roles", "data"]);
    let endless = [&[0x16, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff][..], &[0; 16 << 10]].concat();
    let open = |sent: &[u8]| {
        let mut stream = TcpStream::connect(&port.address).expect("the port takes connections");
        // It may be cut off before all is written.
        let _ = stream.write_all(sent);
        stream
    };
    let strangers: Vec<TcpStream> = [&[][..], &[0x16, 3, 1], b"GET / HTTP/1.1\r\n\r\n", &endless]
        .into_iter()
        .flat_map(|sent| (0..STRANGERS / 4).map(move |_| sent))
        .map(open)
        .collect();
    let status = fs::read_to_string(format!("/proc/{}/status", port.child.id())).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a line");
    let kib: u64 = line.split_whitespace().nth(1).expect("a number").parse().expect("a number");
    assert!(kib < 128 << 10, "{kib} KiB for {STRANGERS} strangers");
    enrolled(&cluster, &token, &["data1.toml"]);
    // All of them are closed, by others or by the clock.
    for mut stream in strangers {
        stream.set_read_timeout(Some(LIMIT)).expect("a limit");
        let mut rest = Vec::new();
        match stream.read_to_end(&mut rest) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "it stays open: {error}"),
        }
    }
}

/// Until when the keys of all servers count.
fn ends(cluster: &Cluster) -> Vec<u64> {
    let of = |name: &String| KeyFile::read(&file(cluster, name)).expect("a key").holder().until;
    cluster.names().iter().map(of).collect()
}

/// Keys would end although their authority is there; or servers and clients be disturbed when a key is renewed; or
/// nobody be told that one is not.
#[test]
fn servers_renew_their_keys_while_somebody_writes() {
    let (mut cluster, port) = with_authority(SMALL);
    let put = |cluster: &Cluster, name: &str, times: (u64, u64)| {
        let (roles, node) = match &name[..4] {
            "mana" => (Roles::MANAGER, 1),
            "meta" => (Roles::META, 0),
            _ => (Roles::DATA, 0),
        };
        let text = issue(cluster, name, Caller::Node(roles), node, times);
        write_secret(&file(cluster, name), &text, true).expect("written");
    };
    for name in cluster.names() {
        put(&cluster, &name, (75, 90));
    }
    let (first, names) = (ends(&cluster), cluster.names());
    key(&cluster, &["admin", "ops", "--ca", "authority"]);
    cluster.key = Some(file(&cluster, "ops"));
    cluster.start_all();
    cluster.wait_volume();
    let (stop, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    let command = |args: &[&str]| {
        let mut command = Command::new(binary());
        command.args(["--timeout", PATIENT]).args(args).env("CAIRN_CLUSTER", &cluster.address);
        command.env("CAIRN_KEY", file(&cluster, "ops")).stdin(Stdio::piped()).stderr(Stdio::piped());
        command.stdout(Stdio::piped()).spawn().expect("it runs")
    };
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let number = done.load(Ordering::Relaxed);
                let mut child = command(&["fs", "put", "-", &format!("/file-{number}")]);
                let mut stdin = child.stdin.take().expect("a pipe");
                stdin.write_all(number.to_string().repeat(1000).as_bytes()).expect("taken");
                drop(stdin);
                let output = child.wait_with_output().expect("it ends");
                assert!(output.status.success(), "file {number}: {}", text(&output.stderr));
                done.fetch_add(1, Ordering::Relaxed);
            }
        });
        let stop = Arc::new(crate::secure::Ends(&stop));
        let told = || names.iter().map(|name| cluster.read_log(name)).collect::<String>() + &port.told();
        let all_later = |than: &[u64]| ends(&cluster).iter().zip(than).all(|(now, before)| now > before);
        until_told("all keys to be renewed", || all_later(&first), told);
        let second = ends(&cluster);
        // Once more, of keys that are due again.
        for name in &names {
            put(&cluster, name, (270, 370));
        }
        let placed = ends(&cluster);
        assert!(placed.iter().zip(&second).all(|(placed, second)| placed > second), "they end later");
        until_told("all keys to be renewed again", || all_later(&placed), told);
        let before = done.load(Ordering::Relaxed);
        let went_on = || done.load(Ordering::Relaxed) > before + 2 || writer.is_finished();
        until_told("two more files", went_on, told);
        drop(stop);
        writer.join().expect("every write was answered");
    });
    for number in 0..done.load(Ordering::Relaxed) {
        let output = cluster.cairn(&["fs", "cat", &format!("/file-{number}")]);
        assert!(output.stdout == number.to_string().repeat(1000).as_bytes(), "file {number}: {}", text(&output.stderr));
    }
    cluster.wait_healthy();
    assert!(names.iter().all(|name| pending(&cluster, name).is_none()), "nothing is left beside");
    // What is not renewed is told, with the reason.
    fs::write(cluster.path("authority").join("revoked"), "data1\n").expect("a list");
    cluster.stop("data1");
    put(&cluster, "data1", (75, 90));
    cluster.restart("data1");
    let status = || text(&cluster.cairn(&["admin", "status"]).stdout);
    let why = || status().contains("cannot be renewed: the authority refused: the key of data1 was revoked");
    until_told("the status to tell it", why, status);
    cluster.check_logs();
}
