//! Volumes with private data beside others: who listens on the way to data nodes reads what the one has, and nothing of
//! the other, whether clients or members send it.
use crate::secure::{file, give_keys};
use crate::support::{Cluster, Shape, free_ports, text};
use crate::wait::until;
use cairn_client::ConnectOptions;
use cairn_client::view::{ClusterView, PgView};
use cairn_rpc::{CallError, CallOptions, Client, Identity};
use cairn_security::{KeyFile, Tls};
use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::data::{ChunkHeader, ReadRequest};
use cairn_wire::protection::Protection;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

const SHAPE: Shape = Shape { managers: 1, metas: 1, datas: 5, racks: 5 };
/// Bytes of a mark, and of a file that is made of it.
const MARK: usize = 32;
const FILE: usize = 3 << 20;
/// Looked for across the borders of what was read at once.
const KEPT: usize = MARK - 1;

/// Contents that are found wherever a part of them is.
fn contents(mark: &str) -> Vec<u8> {
    let mark = format!("{mark:-<MARK$}");
    assert_eq!(mark.len(), MARK);
    mark.as_bytes().iter().copied().cycle().take(FILE).collect()
}

/// Stands before a process, and looks for marks in all that goes by.
struct Listener {
    address: SocketAddr,
    ends: Arc<AtomicBool>,
}

impl Listener {
    fn start(listen: &str, to: String, marks: Arc<Mutex<Vec<(String, bool)>>>) -> Self {
        let listener = TcpListener::bind(listen).expect("a free port");
        let (address, ends) = (listener.local_addr().expect("its address"), Arc::new(AtomicBool::new(false)));
        let this = Self { address, ends: ends.clone() };
        std::thread::spawn(move || {
            for accepted in listener.incoming() {
                if ends.load(SeqCst) {
                    return;
                }
                let (Ok(near), Ok(far)) = (accepted, TcpStream::connect(&to)) else { continue };
                let (Ok(near_too), Ok(far_too)) = (near.try_clone(), far.try_clone()) else { continue };
                for (from, to) in [(near, far), (far_too, near_too)] {
                    let marks = marks.clone();
                    std::thread::spawn(move || {
                        let _ended = listen_in(&from, &to, &marks);
                        let _both = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
                    });
                }
            }
        });
        this
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.ends.store(true, SeqCst);
        let _wakes_it = TcpStream::connect(self.address);
    }
}

fn listen_in(mut from: &TcpStream, mut to: &TcpStream, marks: &Mutex<Vec<(String, bool)>>) -> std::io::Result<()> {
    let (mut buffer, mut seen) = (vec![0; 64 << 10], 0);
    loop {
        let count = from.read(&mut buffer[seen..])?;
        if count == 0 {
            return Ok(());
        }
        to.write_all(&buffer[seen..seen + count])?;
        let end = seen + count;
        for (mark, found) in marks.lock().iter_mut().filter(|(_, found)| !*found) {
            *found = buffer[..end].windows(mark.len()).any(|part| part == mark.as_bytes());
        }
        let keep = end.min(KEPT);
        buffer.copy_within(end - keep..end, 0);
        seen = keep;
    }
}

/// A cluster that requires keys, with a listener before each data node, for clients and for the other nodes.
struct Scene {
    cluster: Cluster,
    marks: Arc<Mutex<Vec<(String, bool)>>>,
    _listeners: Vec<Listener>,
}

impl Scene {
    fn new() -> Self {
        let ports = free_ports(1 + 2 * SHAPE.datas);
        let at = |port: u16| format!("127.0.0.1:{port}");
        let mut cluster = Cluster::prepare_at(SHAPE, vec![at(ports[0])], |_| "127.0.0.1:0".to_owned());
        let (marks, mut listeners) = (Arc::default(), Vec::new());
        for (number, pair) in ports[1..].chunks(2).enumerate() {
            let (name, near, far) = (format!("data{}", number + 1), at(pair[0]), at(pair[1]));
            cluster.set_in_node(&name, "listen", Some(&format!("{far:?}")));
            cluster.set_in_node(&name, "advertise", Some(&format!("{near:?}")));
            listeners.push(Listener::start(&near, far, Arc::clone(&marks)));
        }
        give_keys(&mut cluster);
        for name in cluster.names() {
            let (key, list) = (file(&cluster, &name), cluster.path("revoked"));
            cluster.set_security(&name, Some(&format!("key = {key:?}\nrevoked = {list:?}\n")));
        }
        cluster.key = Some(file(&cluster, "ops"));
        cluster.start_all();
        cluster.wait_volume();
        Self { cluster, marks, _listeners: listeners }
    }

    /// Stores a file made of a mark, reads it back, and tells whether somebody could have read it on the way.
    fn is_heard(&self, mark: &str, layout: &str, path: &str) -> bool {
        let (bytes, local) = (contents(mark), self.cluster.path("local"));
        fs::write(&local, &bytes).expect("a file");
        self.marks.lock().push((format!("{mark:-<MARK$}"), false));
        self.cluster.ok(&["fs", "put", "--layout", layout, local.to_str().expect("UTF-8"), path]);
        assert!(self.cluster.cairn(&["fs", "cat", path]).stdout == bytes, "{path} comes back");
        self.heard(mark)
    }

    fn heard(&self, mark: &str) -> bool {
        self.marks.lock().iter().any(|(of, found)| of.starts_with(mark) && *found)
    }

    fn view(&self) -> Arc<ClusterView> {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(async {
            let mut options = ConnectOptions::new(vec![self.cluster.address.clone()]);
            options.key = cairn_client::key::Key::Given(self.tls());
            cairn_client::Client::connect(options).await.expect("connected").view()
        })
    }

    fn tls(&self) -> Arc<Tls> {
        let key = KeyFile::read(&file(&self.cluster, "ops")).expect("a key");
        Arc::new(Tls::of_client(&key).expect("usable"))
    }

    /// How many data nodes of how many refuse a client that asks for a chunk of a volume where others can listen.
    /// Each of them learns a setting by itself, and what one passes on to the next is as open as the one that sends.
    fn refusals_in_the_open(&self, volume: &str) -> (usize, usize) {
        let view = self.view();
        let id = view.volumes.values().find(|v| v.name == volume).expect("the volume").id;
        let mut disks: BTreeMap<u32, &PgView> = BTreeMap::new();
        for pg in view.pgs.values().filter(|pg| pg.volume == id) {
            disks.extend(pg.members.iter().map(|(disk, _)| (*disk, pg)));
        }
        let client = Client::with_threads(1, Default::default(), Identity::client_with_key(Some(self.tls())));
        let client = client.expect("threads");
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let refuses = |(disk, pg): (&u32, &&PgView)| {
            let chunk = Some(ChunkHeader { disk: *disk, pg: pg.id.0, index: 1, epoch: pg.epoch.0, session: 0 });
            let request = ReadRequest { chunk, length: 4096, ..ReadRequest::default() };
            let address = view.disk_address(*disk).expect("an address");
            let options = CallOptions::new(Duration::from_secs(20)).protected(Protection::Authenticated);
            match runtime.block_on(client.call(address, Opcode::Read.code(), &request, (), options)) {
                Err(CallError::Remote(error)) if error.message.contains("private data") => {
                    assert_eq!(error.code, ErrorCode::NotServing, "whoever asks gets a new map, and repeats");
                    true
                }
                // There may be such a chunk.
                Err(CallError::Remote(_)) | Ok(_) => false,
                Err(other) => panic!("nobody answers: {other}"),
            }
        };
        (disks.iter().filter(|of| refuses(*of)).count(), disks.len())
    }

    fn is_refused_in_the_open(&self, volume: &str) -> bool {
        let (refused, all) = self.refusals_in_the_open(volume);
        refused == all
    }

    fn is_open(&self, volume: &str) -> bool {
        self.refusals_in_the_open(volume).0 == 0
    }
}

/// What a volume holds that wants it hidden could be read on the way: by its clients' connections, by those of members
/// that pass it on, or by those that bring a member up to date.
#[test]
fn nobody_on_the_way_reads_what_a_private_volume_holds() {
    let mut scene = Scene::new();
    assert!(scene.is_heard("of-all", "r3", "/of-all"), "the listener hears what is said in the open");
    let answer = scene.cluster.ok(&["admin", "volume", "create", "docs"]);
    assert!(answer.contains("docs"), "{answer}");
    assert!(scene.is_heard("docs-before", "r3", "docs:/before"));
    assert!(scene.is_open("docs"));

    // Who writes at that moment goes on.
    let going_on = contents("docs-meanwhile");
    let mut put = scene.cluster.command(&["fs", "put", "-", "docs:/meanwhile"]);
    let mut put = put.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    let mut pipe = put.stdin.take().expect("a pipe");
    pipe.write_all(&going_on[..FILE / 2]).expect("taken");
    scene.cluster.ok(&["admin", "volume", "set", "docs", "private_data=on"]);
    until("data nodes to know it", || scene.is_refused_in_the_open("docs"));
    pipe.write_all(&going_on[FILE / 2..]).expect("taken");
    drop(pipe);
    let ended = put.wait_with_output().expect("it ends");
    assert!(ended.status.success(), "{}", text(&ended.stderr));
    assert!(scene.cluster.cairn(&["fs", "cat", "docs:/meanwhile"]).stdout == going_on);

    assert!(!scene.is_heard("docs-copies", "r3", "docs:/copies"), "in chains of copies");
    assert!(!scene.is_heard("docs-shards", "rs-3-2/64k", "docs:/shards"), "in shards");
    assert!(scene.is_heard("still-of-all", "r3", "/still"), "the other volume is as it was");
    assert!(scene.is_open("default"));

    // A member that was away is brought up to date.
    scene.cluster.kill("data3");
    assert!(!scene.is_heard("docs-without", "r3", "docs:/without"));
    assert!(!scene.is_heard("docs-degraded", "rs-3-2/64k", "docs:/degraded"));
    scene.cluster.restart("data3");
    scene.cluster.wait_healthy();
    for name in ["copies", "shards", "without", "degraded"] {
        let mark = format!("docs-{name}");
        let read = scene.cluster.cairn(&["fs", "cat", &format!("docs:/{name}")]);
        assert!(read.stdout == contents(&mark) && !scene.heard(&mark), "{mark}: {}", text(&read.stderr));
    }

    // The cluster's setting is that of all volumes that have none of their own.
    scene.cluster.ok(&["admin", "volume", "set", "docs", "private_data=off"]);
    scene.cluster.ok(&["admin", "config", "set", "private_data=on"]);
    until("data nodes to know it", || scene.is_refused_in_the_open("default"));
    until("data nodes to know it", || scene.is_open("docs"));
    assert!(!scene.is_heard("no-more", "r3", "/no-more"));
    assert!(scene.is_heard("docs-again", "r3", "docs:/again"));
    scene.cluster.check_logs();
}

/// A volume would be said to be private in a cluster that serves everybody.
#[test]
fn without_keys_no_data_is_private() {
    let cluster = Cluster::start(Shape { managers: 1, metas: 1, datas: 1, racks: 1 });
    let refused = |args: &[&str]| {
        let said = cluster.cairn(args);
        assert!(
            !said.status.success() && text(&said.stderr).contains("private_data needs keys"),
            "{}",
            text(&said.stderr)
        );
    };
    refused(&["admin", "volume", "set", "default", "private_data=on"]);
    refused(&["admin", "config", "set", "private_data=on"]);
    cluster.ok(&["admin", "volume", "set", "default", "private_data=off"]);
    cluster.ok(&["admin", "volume", "set", "default", "private_data="]);
}
