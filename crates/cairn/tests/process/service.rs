//! A server under a service manager: what it tells the socket of `sd_notify`.
use crate::support::{binary, free_ports};
use crate::wait::LIMIT;
use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// A manager alone.
fn start(dir: &Path, socket: &str) -> Child {
    let port = free_ports(1)[0];
    let config = dir.join("node.toml");
    let node = dir.join("node").display().to_string();
    let text = format!(
        "[node]\ndir = {node:?}\nlisten = \"127.0.0.1:{port}\"\nhttp = \"127.0.0.1:0\"\n[manager]\nmembers = [\"1@127.0.0.1:{port}\"]\nmember = 1\n"
    );
    fs::write(&config, text).expect("configuration");
    Command::new(binary())
        .args(["server", "--config"])
        .arg(config)
        .env("NOTIFY_SOCKET", socket)
        .env("WATCHDOG_USEC", "200000")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary starts")
}

/// Reads messages until one has this line.
fn wait_for(socket: &UnixDatagram, line: &str) {
    let started = Instant::now();
    let mut buffer = [0; 4096];
    loop {
        let left = LIMIT.checked_sub(started.elapsed()).unwrap_or_else(|| panic!("nothing said {line}"));
        socket.set_read_timeout(Some(left)).expect("timeout");
        let length = socket.recv(&mut buffer).unwrap_or_else(|error| panic!("nothing said {line}: {error}"));
        if String::from_utf8_lossy(&buffer[..length]).lines().any(|said| said == line) {
            return;
        }
    }
}

fn lives_through_its_messages(socket: &UnixDatagram, mut server: Child) {
    wait_for(socket, "READY=1");
    wait_for(socket, "WATCHDOG=1");
    wait_for(socket, "WATCHDOG=1");
    let pid = rustix::process::Pid::from_raw(server.id() as i32).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("a signal");
    wait_for(socket, "STOPPING=1");
    assert!(server.wait().expect("it ends").success());
}

/// systemd would think that a server never starts, or kill one that is alive.
#[test]
fn a_service_manager_is_told() {
    let dir = tempfile::Builder::new().prefix("cairn-test-").tempdir().expect("dir");
    let path = dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("socket");
    lives_through_its_messages(&socket, start(dir.path(), path.to_str().expect("utf-8")));
}

/// The same with a socket that has no path.
#[test]
fn an_abstract_socket_is_told() {
    let dir = tempfile::Builder::new().prefix("cairn-test-").tempdir().expect("dir");
    let name = format!("cairn-test-{}", dir.path().file_name().expect("name").to_string_lossy());
    let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).expect("name")).expect("socket");
    lives_through_its_messages(&socket, start(dir.path(), &format!("@{name}")));
}

/// A variable that was left over would keep a server from starting.
#[test]
fn a_socket_that_nobody_has_harms_nothing() {
    let dir = tempfile::Builder::new().prefix("cairn-test-").tempdir().expect("dir");
    let mut server = start(dir.path(), "/nonexistent/notify");
    let admin = dir.path().join("node");
    let started = Instant::now();
    while !admin.exists() {
        assert!(started.elapsed() < LIMIT && server.try_wait().expect("wait").is_none(), "it does not start");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let pid = rustix::process::Pid::from_raw(server.id() as i32).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("a signal");
    server.wait().expect("it ends");
}
