//! Clusters with security: who has a key is served, strangers are not, and a cluster gets there while it serves.
use crate::mount::{Mount, cannot_mount};
use crate::private::is_root;
use crate::support::{Cluster, Shape, binary, text};
use crate::wait::until_told;
use cairn_security::{KeyFile, Tls};
use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const PERMISSION: i32 = 5;

/// Runs `cairn key …`.
pub fn key(cluster: &Cluster, args: &[&str]) -> String {
    let mut command = Command::new(binary());
    let output = command.arg("key").args(args).current_dir(cluster.dir.path()).output().expect("it runs");
    assert!(output.status.success(), "cairn key {args:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// A key file in the test's directory.
pub fn file(cluster: &Cluster, name: &str) -> PathBuf {
    cluster.path(&format!("{name}.key"))
}

/// Gives all processes keys; from their next start on they are as strict as said.
pub fn give_keys(cluster: &mut Cluster) {
    key(cluster, &["init", "authority"]);
    fs::write(cluster.path("revoked"), "").expect("a list");
    for name in cluster.names() {
        set_mode(cluster, &name, Some("required"));
        let config = format!("{name}.toml");
        let said = key(cluster, &["node", "--ca", "authority", &config]);
        assert!(said.contains(&format!("key of node {name} (")), "{said}");
    }
    for name in ["alice", "bob"] {
        key(cluster, &["client", name, "--ca", "authority", "--all-volumes", "--squash", "none"]);
    }
    key(cluster, &["admin", "ops", "--ca", "authority"]);
}

fn set_mode(cluster: &mut Cluster, name: &str, mode: Option<&str>) {
    let section = mode.map(|mode| {
        let (key, list) = (file(cluster, name), cluster.path("revoked"));
        let audit = cluster.path(&format!("{name}.audit"));
        // Whoever insists on more and whoever does not work together.
        let data = if name == "data2" { "private" } else { "authenticated" };
        format!("mode = {mode:?}\nkey = {key:?}\nrevoked = {list:?}\naudit = {audit:?}\naudit_removals = true\ndata = {data:?}\n")
    });
    cluster.set_security(name, section.as_deref());
}

/// The error of a command that is refused, with this key or none.
fn refused(cluster: &mut Cluster, with: Option<&Path>, args: &[&str]) -> String {
    let before = std::mem::replace(&mut cluster.key, with.map(Path::to_path_buf));
    let said = cluster.fails(&[&["--timeout", "5"], args].concat(), PERMISSION);
    cluster.key = before;
    said
}

/// Somebody without a key of the cluster would read or change it; or one with a key could not work, or do what only
/// others may.
#[test]
fn a_cluster_that_requires_keys_serves_their_holders_and_nobody_else() {
    let mut cluster = Cluster::prepare(Shape { managers: 3, metas: 3, datas: 3, racks: 3 });
    give_keys(&mut cluster);
    cluster.key = Some(file(&cluster, "ops"));
    cluster.start_all();
    cluster.wait_volume();
    cluster.key = Some(file(&cluster, "alice"));
    let bytes: Vec<u8> = (0..3_000_000u32).flat_map(u32::to_le_bytes).collect();
    let local = cluster.path("local");
    fs::write(&local, &bytes).expect("a file");
    cluster.ok(&["fs", "put", local.to_str().expect("UTF-8"), "/file"]);
    assert!(cluster.cairn(&["fs", "cat", "/file"]).stdout == bytes, "the bytes come back");
    cluster.ok(&["admin", "status"]);

    let said = refused(&mut cluster, None, &["fs", "cat", "/file"]);
    assert!(said.contains("--key") && said.contains("cairn key client"), "{said}");
    // Another cluster's authority, and a key that others can read.
    key(&cluster, &["init", "elsewhere"]);
    key(&cluster, &["client", "eve", "--ca", "elsewhere", "--all-volumes"]);
    cluster.key = Some(file(&cluster, "eve"));
    let said = cluster.fails(&["--timeout", "2", "fs", "ls", "/"], 7);
    assert!(said.contains("another cluster's authority"), "{said}");
    let open = cluster.path("open.key");
    fs::copy(file(&cluster, "alice"), &open).expect("a copy");
    fs::set_permissions(&open, Permissions::from_mode(0o644)).expect("a mode");
    let said = refused(&mut cluster, Some(&open), &["fs", "ls", "/"]);
    assert!(said.contains("chmod 600"), "{said}");

    // What changes the cluster is for administrators, over TCP too; no socket leads around that.
    let set = ["admin", "config", "set", "node_timeout=9s"];
    cluster.key = Some(file(&cluster, "ops"));
    for name in ["manager1", "manager2", "manager3", "meta1", "data1"] {
        fs::remove_file(cluster.path("nodes").join(name).join("admin.sock")).expect("the socket");
    }
    cluster.ok(&["admin", "events"]);
    cluster.ok(&set);
    let alice = file(&cluster, "alice");
    for (args, operation) in [(&["admin", "events"][..], "ListEvents"), (&set[..], "SetConfig")] {
        let said = refused(&mut cluster, Some(&alice), args);
        assert!(said.contains(operation) && said.contains("alice"), "{said}");
    }

    // A revoked key is out without a restart, and the others go on.
    cluster.key = Some(file(&cluster, "bob"));
    cluster.ok(&["fs", "ls", "/"]);
    fs::write(cluster.path("revoked"), "bob\n").expect("a list");
    let out = || cluster.cairn(&["--timeout", "5", "fs", "ls", "/"]);
    let revoked = || out().status.code() == Some(PERMISSION) && text(&out().stderr).contains("bob was revoked");
    until_told("bob to be out", revoked, || text(&out().stderr));
    cluster.key = Some(file(&cluster, "alice"));
    assert!(cluster.cairn(&["fs", "cat", "/file"]).stdout == bytes);
    if is_root() {
        mounted(&cluster, &bytes);
    }
    cluster.check_logs();
}

/// A mount shows its key too.
fn mounted(cluster: &Cluster, bytes: &[u8]) {
    let dir = cluster.path("mount");
    fs::create_dir(&dir).expect("a directory");
    let options = format!("key={}", file(cluster, "alice").display());
    let at = dir.to_str().expect("UTF-8");
    let uri = format!("cairn://{}/default", cluster.address);
    let mut mount = cluster.command(&["mount", "-o", &options, &uri, at]);
    // The option alone has to do.
    let output = mount.env_remove("CAIRN_KEY").output().expect("it runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let read = fs::read(dir.join("file"));
    let wrote = fs::write(dir.join("through-the-mount"), b"secure");
    let unmounted = cluster.command(&["umount", at]).output().expect("it runs");
    assert!(unmounted.status.success(), "{}", text(&unmounted.stderr));
    assert!(read.expect("read through the mount") == bytes);
    wrote.expect("written through the mount");
    assert_eq!(cluster.cairn(&["fs", "cat", "/through-the-mount"]).stdout, b"secure");
}

/// Ends the writer, also when the test fails.
pub struct Ends<'a>(pub &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A mount that is in use, with a file that stays open.
pub struct HeldMount {
    mount: Mount,
    file: fs::File,
    written: String,
}

impl HeldMount {
    pub fn begin(cluster: &Cluster, mode: &str, key: Option<&str>) -> Self {
        let options = key.map(|key| format!("key={}", file(cluster, key).display())).unwrap_or_default();
        let mount = Mount::new(cluster, &format!("mount-{mode}"), "/", &options);
        let file = fs::File::create(mount.path(&format!("held-{mode}"))).expect("a file on the mount");
        let mut held = Self { mount, file, written: String::new() };
        held.work();
        held
    }

    /// Its worker is followed by another one, which reads the key anew.
    pub fn upgrade(&mut self) {
        let upgraded = self.mount.cairn(&["mount", "--upgrade", self.mount.dir.to_str().expect("a path")]);
        assert!(upgraded.status.success(), "{}", text(&upgraded.stderr));
    }

    /// Writes and reads on.
    pub fn work(&mut self) {
        let line = format!("{}\n", "held ".repeat(1 + self.written.len() % 977));
        self.file.write_all(line.as_bytes()).expect("written through the mount");
        self.file.sync_all().expect("durable");
        self.written.push_str(&line);
        fs::read_dir(self.mount.path("")).expect("listed").for_each(drop);
    }

    pub fn end(mut self) {
        self.work();
        let Self { mount, file, written } = self;
        drop(file);
        let name = fs::read_dir(mount.path("")).expect("listed").flatten();
        let held = name.map(|entry| entry.path()).filter(|path| path.to_string_lossy().contains("held-"));
        assert!(held.map(|path| fs::read_to_string(path).expect("read")).any(|text| text == written), "other bytes");
        let output = mount.umount();
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
}

/// A cluster could get its security only by a stop; or a client that works meanwhile would lose what it wrote.
#[test]
fn a_cluster_becomes_secure_process_by_process_while_somebody_writes() {
    let mut cluster = Cluster::start(Shape { managers: 1, metas: 1, datas: 3, racks: 3 });
    let names = cluster.names();
    give_keys(&mut cluster);
    let (stop, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    let key_of_writer = parking_lot::Mutex::new(None::<PathBuf>);
    let address = cluster.address.clone();
    let write = |number: usize| {
        let mut command = Command::new(binary());
        command.args(["--timeout", crate::wait::PATIENT, "fs", "put", "-", &format!("/file-{number}")]);
        command.env("CAIRN_CLUSTER", &address).env_remove("CAIRN_KEY").stderr(Stdio::piped());
        if let Some(key) = &*key_of_writer.lock() {
            command.env("CAIRN_KEY", key);
        }
        let mut child = command.stdin(Stdio::piped()).spawn().expect("it runs");
        let mut stdin = child.stdin.take().expect("a pipe");
        Write::write_all(&mut stdin, number.to_string().repeat(1000).as_bytes()).expect("taken");
        drop(stdin);
        let output = child.wait_with_output().expect("it ends");
        assert!(output.status.success(), "file {number}: {}", text(&output.stderr));
    };
    std::thread::scope(|scope| {
        let ends = Ends(&stop);
        let writer = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                write(done.load(Ordering::Relaxed));
                done.fetch_add(1, Ordering::Relaxed);
            }
        });
        let more = |writer: &std::thread::ScopedJoinHandle<'_, ()>| {
            let before = done.load(Ordering::Relaxed);
            let went_on = || done.load(Ordering::Relaxed) > before + 1 || writer.is_finished();
            until_told("two more files", went_on, || done.load(Ordering::Relaxed).to_string());
        };
        let mut held: Option<HeldMount> = None;
        for (mode, key) in [("permissive", None), ("required", Some("alice"))] {
            // Before anybody demands a key, all who write have one.
            *key_of_writer.lock() = key.map(|name| file(&cluster, name));
            cluster.key = key.map(|_| file(&cluster, "ops"));
            more(&writer);
            // A mount is in use all through a round; between them it gets a key.
            held.take().into_iter().for_each(HeldMount::end);
            held = (cannot_mount().is_none()).then(|| HeldMount::begin(&cluster, mode, key));
            for name in &names {
                cluster.stop(name);
                set_mode(&mut cluster, name, Some(mode));
                cluster.restart(name);
                cluster.wait_healthy();
                more(&writer);
                held.iter_mut().for_each(HeldMount::work);
            }
        }
        held.take().into_iter().for_each(HeldMount::end);
        drop(ends);
        writer.join().expect("every write was answered");
    });
    assert!(done.load(Ordering::Relaxed) > 2 * names.len(), "it wrote all the time");
    let said = refused(&mut cluster, None, &["fs", "ls", "/"]);
    assert!(said.contains("--key"), "{said}");
    for number in 0..done.load(Ordering::Relaxed) {
        let output = cluster.cairn(&["fs", "cat", &format!("/file-{number}")]);
        assert!(output.stdout == number.to_string().repeat(1000).as_bytes(), "file {number}: {}", text(&output.stderr));
    }
    cluster.check_logs();
}

/// A server would start with a key that everybody can read, that is another's, or without the security that was asked
/// for.
#[test]
fn a_server_does_not_start_with_a_key_that_is_not_its_own() {
    let mut cluster = Cluster::prepare(Shape { managers: 1, metas: 1, datas: 1, racks: 1 });
    give_keys(&mut cluster);
    let start = |name: &str| {
        let config = cluster.path(&format!("{name}.toml"));
        let output = Command::new(binary()).args(["server", "--config"]).arg(config).output().expect("it runs");
        assert_eq!(output.status.code(), Some(11), "a part of the configuration is wrong: {}", text(&output.stderr));
        text(&output.stderr)
    };
    let manager = file(&cluster, "manager1");
    let own = fs::read(&manager).expect("a key");
    fs::set_permissions(&manager, Permissions::from_mode(0o640)).expect("a mode");
    assert!(start("manager1").contains("chmod 600"));
    fs::set_permissions(&manager, Permissions::from_mode(0o600)).expect("a mode");
    for (other, why) in
        [("data1", "for the roles data"), ("alice", "that of a server"), ("meta1", "for the roles meta")]
    {
        fs::write(&manager, fs::read(file(&cluster, other)).expect("a key")).expect("replaced");
        let said = start("manager1");
        assert!(said.contains(why) && said.contains("cairn key"), "{said}");
    }
    fs::write(&manager, &own[..own.len() / 2]).expect("cut");
    assert!(start("manager1").contains("no key of a Cairn cluster"));
    fs::remove_file(&manager).expect("removed");
    assert!(start("manager1").contains("manager1.key"));
    fs::write(&manager, own).expect("back");
    fs::set_permissions(&manager, Permissions::from_mode(0o600)).expect("a mode");
    // The doctor says so before the server does.
    let doctor = |cluster: &Cluster| {
        let config = cluster.path("manager1.toml").display().to_string();
        text(&cluster.cairn(&["doctor", "--config", &config]).stdout)
    };
    assert!(doctor(&cluster).contains("is the key of node manager1"), "{}", doctor(&cluster));
    fs::set_permissions(&manager, Permissions::from_mode(0o644)).expect("a mode");
    assert!(doctor(&cluster).contains("other users can reach this private key"), "{}", doctor(&cluster));
    fs::set_permissions(&manager, Permissions::from_mode(0o600)).expect("a mode");
    // A name is given out once, so that revoking it hits one key.
    let mut again = Command::new(binary());
    again
        .args(["key", "client", "alice", "--ca", "authority", "--volume", "docs", "--out", "x.key"])
        .current_dir(cluster.dir.path());
    let output = again.output().expect("it runs");
    assert!(!output.status.success() && text(&output.stderr).contains("given out already"), "{}", text(&output.stderr));
    let said = key(&cluster, &["ls", "--ca", "authority"]);
    assert!(said.contains("client alice, until") && said.contains("node manager1 (manager), until"), "{said}");
}

/// A key that ends could be replaced only by a stop; or the server would go on to show the old one until it is over.
#[test]
fn a_server_shows_a_later_key_without_a_restart() {
    let mut cluster = Cluster::prepare(Shape { managers: 1, metas: 1, datas: 1, racks: 1 });
    give_keys(&mut cluster);
    let of = |cluster: &Cluster, more: &[&str]| {
        key(cluster, &[&["node", "--ca", "authority", "--replace"], more].concat());
    };
    of(&cluster, &["--days", "20", "data1.toml"]);
    cluster.key = Some(file(&cluster, "ops"));
    cluster.start_all();
    cluster.wait_volume();
    let status = |cluster: &Cluster| text(&cluster.cairn(&["admin", "status"]).stdout);
    let ends = |cluster: &Cluster| status(cluster).contains("certificate ends on");
    until_told("the end to be told", || ends(&cluster), || status(&cluster));
    let shown = |cluster: &Cluster| {
        // The certificate of a server's answer, as its HTTP port shows it too.
        let ready = fs::read_to_string(cluster.path("data1.out")).expect("out");
        let http = ready.split_whitespace().find_map(|word| word.strip_prefix("http=")).expect("a port").to_owned();
        until_of_certificate(&http, &file(cluster, "ops"))
    };
    let before = shown(&cluster);
    // What is not its own is not taken.
    let (own, new) = (file(&cluster, "data1"), cluster.path("new"));
    let replace = |text: Vec<u8>| {
        fs::write(&new, text).expect("written");
        fs::set_permissions(&new, Permissions::from_mode(0o600)).expect("a mode");
        fs::rename(&new, &own).expect("put in place");
    };
    let kept = fs::read(&own).expect("a key");
    replace(fs::read(file(&cluster, "meta1")).expect("a key"));
    let told = |what: &str| cluster.read_log("data1").contains(what);
    until_told("the refusal", || told("is not taken"), || cluster.read_log("data1"));
    assert_eq!(shown(&cluster), before);
    replace(kept);
    of(&cluster, &["data1.toml"]);
    until_told("the new key", || shown(&cluster) > before + 1000 * 86_400, || cluster.read_log("data1"));
    until_told("no end to be told", || !ends(&cluster), || status(&cluster));
    cluster.key = Some(file(&cluster, "alice"));
    cluster.ok(&["fs", "ls", "/"]);
    cluster.check_logs();
}

/// Id of a node.
pub fn node_id(cluster: &Cluster, name: &str) -> u32 {
    let all = text(&cluster.cairn(&["admin", "node", "ls", "--json"]).stdout);
    let nodes = all.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
    let own = nodes.into_iter().find(|node| node["host"] == name).unwrap_or_else(|| panic!("{name} is not in {all}"));
    own["id"].as_u64().or_else(|| own["node"].as_u64()).expect("an id") as u32
}

/// A stolen key of one server would take the place of another one; or a server get no new key under another name.
#[test]
fn a_node_is_bound_to_its_key() {
    let mut cluster = Cluster::prepare(Shape { managers: 1, metas: 1, datas: 2, racks: 2 });
    give_keys(&mut cluster);
    cluster.key = Some(file(&cluster, "ops"));
    cluster.start_all();
    cluster.wait_volume();
    let bound = |cluster: &Cluster| cluster.read_log("manager1").matches("bound to its key").count();
    until_told("all nodes to be bound", || bound(&cluster) >= 3, || cluster.read_log("manager1"));
    cluster.stop("data2");
    let (own, kept) = (file(&cluster, "data2"), cluster.path("kept"));
    fs::rename(&own, &kept).expect("put away");
    let put = |from: &Path| {
        fs::copy(from, &own).expect("a copy");
        fs::set_permissions(&own, Permissions::from_mode(0o600)).expect("a mode");
    };
    put(&file(&cluster, "data1"));
    cluster.allow_error("has the key of data2");
    cluster.launch("data2");
    let told = |cluster: &Cluster| cluster.read_log("data2").contains("has the key of data2, and whoever says");
    until_told("the refusal", || told(&cluster), || cluster.read_log("data2"));
    cluster.kill("data2");
    // Under another name it takes over when the one of before is revoked, and not sooner.
    fs::remove_file(&own).expect("removed");
    key(&cluster, &["node", "--ca", "authority", "--name", "data2b", "data2.toml"]);
    cluster.launch("data2");
    let refused = |cluster: &Cluster| cluster.read_log("data2").contains("has that of data2b: if that is its new key");
    until_told("the refusal", || refused(&cluster), || cluster.read_log("data2"));
    fs::write(cluster.path("revoked"), "data2\n").expect("a list");
    cluster.wait_ready("data2");
    until_told("it to be bound anew", || bound(&cluster) >= 4, || cluster.read_log("manager1"));
    cluster.wait_healthy();
    // Its former key is good for nothing any more, and after a restart of the manager that is still so.
    cluster.kill("manager1");
    cluster.restart("manager1");
    cluster.wait_healthy();
    cluster.stop("data2");
    fs::write(cluster.path("revoked"), "").expect("a list");
    put(&kept);
    cluster.launch("data2");
    let told = |cluster: &Cluster| cluster.read_log("data2").contains("has the key of data2b, and whoever says");
    until_told("the refusal", || told(&cluster), || cluster.read_log("data2"));
    cluster.kill("data2");
    // The authority puts the node's number into the key: nobody has to be revoked.
    let id = node_id(&cluster, "data2").to_string();
    fs::remove_file(&own).expect("removed");
    key(&cluster, &["node", "--ca", "authority", "--name", "data2c", "--node", &id, "data2.toml"]);
    cluster.launch("data2");
    cluster.wait_ready("data2");
    let events = |cluster: &Cluster| cluster.ok(&["admin", "events"]);
    let instead = format!("n{id} has the key of data2c, and not that of data2b any more");
    until_told("it to be bound anew", || events(&cluster).contains(&instead), || events(&cluster));
    assert!(events(&cluster).contains("key-refused"), "{}", events(&cluster));
    assert!(cluster.ok(&["admin", "node", "ls"]).contains("data2c"), "it is shown whose key a node has");
    cluster.wait_healthy();
    cluster.check_logs();
}

/// Until when the certificate counts that a port shows.
fn until_of_certificate(port: &str, key: &Path) -> u64 {
    let tls = Tls::of_client(&KeyFile::read(key).expect("a key")).expect("a client");
    let mut tls = rustls::ClientConnection::new(tls.web_client(), Tls::server_name()).expect("a client");
    let mut stream = TcpStream::connect(port).expect("the port");
    while tls.is_handshaking() {
        tls.complete_io(&mut stream).expect("a handshake");
    }
    Tls::peer(tls.peer_certificates()).expect("a holder").until
}

/// Whoever has a key in the place where keys are looked for would have to name it each time.
#[test]
fn the_key_of_a_user_is_found_without_being_named() {
    let mut cluster = Cluster::prepare(Shape { managers: 1, metas: 1, datas: 1, racks: 1 });
    give_keys(&mut cluster);
    cluster.key = Some(file(&cluster, "ops"));
    cluster.start_all();
    cluster.wait_volume();
    let home = cluster.path("home");
    let keys = home.join(".config/cairn");
    fs::create_dir_all(&keys).expect("directories");
    let found = |cluster: &Cluster| {
        let mut command = cluster.command(&["--timeout", "5", "fs", "ls", "/"]);
        command.env_remove("CAIRN_KEY").env_remove("XDG_CONFIG_HOME").env("HOME", &home).output().expect("it runs")
    };
    assert_eq!(found(&cluster).status.code(), Some(PERMISSION), "no key yet");
    let place = keys.join(&cluster.address);
    fs::copy(file(&cluster, "alice"), &place).expect("a copy");
    let output = found(&cluster);
    assert!(output.status.success(), "{}", text(&output.stderr));
    // Nothing that points elsewhere is taken.
    fs::remove_file(&place).expect("removed");
    std::os::unix::fs::symlink(file(&cluster, "alice"), &place).expect("a link");
    let output = found(&cluster);
    assert_eq!(output.status.code(), Some(PERMISSION), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("no ordinary file"), "{}", text(&output.stderr));
}

/// What a client with a key sends first.
fn first_message(cluster: &Cluster) -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let mut command = cluster.command(&["--timeout", "2", "--cluster", &address, "fs", "ls", "/"]);
    let mut child = command.spawn().expect("it runs");
    let (mut stream, _) = listener.accept().expect("it connects");
    let mut head = [0; 5];
    stream.read_exact(&mut head).expect("the head of a record");
    let mut rest = vec![0; usize::from(u16::from_be_bytes([head[3], head[4]]))];
    stream.read_exact(&mut rest).expect("the record");
    drop((stream, listener));
    child.wait().expect("it ends");
    [&head[..], &rest].concat()
}

fn resident(cluster: &Cluster, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", cluster.pid(name))).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a line");
    line.split_whitespace().nth(1).expect("a number").parse::<u64>().expect("a number") << 10
}

/// Thousands of strangers in the middle of a handshake would keep those who belong here out, or take the server's
/// memory.
#[test]
fn strangers_in_any_state_of_a_handshake_hold_up_nobody() {
    const OF_EACH: usize = 500;
    /// What so many may take, and far more.
    const SLACK: u64 = 64 << 20;
    let mut cluster = Cluster::prepare(Shape { managers: 1, metas: 1, datas: 1, racks: 1 });
    give_keys(&mut cluster);
    cluster.key = Some(file(&cluster, "ops"));
    cluster.start_all();
    cluster.wait_volume();
    cluster.key = Some(file(&cluster, "alice"));
    let bytes = vec![7; 2_000_000];
    let local = cluster.path("local");
    fs::write(&local, &bytes).expect("a file");
    let store_and_read = |name: &str| {
        cluster.ok(&["fs", "put", "--layout", "r1", local.to_str().expect("UTF-8"), name]);
        assert!(cluster.cairn(&["fs", "cat", name]).stdout == bytes, "the bytes come back");
    };
    store_and_read("/before");
    let hello = first_message(&cluster);
    assert!(hello.len() > 100 && hello[0] == 0x16, "a client's first message");
    let address = &cluster.address;
    let before = resident(&cluster, "manager1");
    let mut most = before;
    let mut strangers = Vec::new();
    // More than a handshake takes, which is never the end of a message.
    let endless = [&[0x16, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff][..], &[0; 16 << 10]].concat();
    for begun in [&[][..], &hello[..6], &hello[..hello.len() - 1], &hello[..], &endless[..]] {
        for number in 0..OF_EACH {
            let mut stream = TcpStream::connect(address).expect("the port takes connections");
            // It may be cut off before all is written.
            let _ = stream.write_all(begun);
            strangers.push(stream);
            if number % 100 == 0 {
                most = most.max(resident(&cluster, "manager1"));
            }
        }
        store_and_read(&format!("/beside-{}", begun.len()));
    }
    most = most.max(resident(&cluster, "manager1"));
    assert!(most - before < SLACK, "{} MiB more for {} strangers", (most - before) >> 20, strangers.len());
    drop(strangers);
    store_and_read("/after");
    cluster.check_logs();
}
