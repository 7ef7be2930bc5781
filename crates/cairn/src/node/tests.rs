//! A node that does not serve yet.
use super::http_door::HttpSpec;
use super::{NodeProcess, NodeSpec};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").and_then(|port| port.local_addr()).expect("a free port").to_string()
}

fn healthz(address: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: node\r\nconnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// Traffic would be sent to, and an upgrade go on past, a node that waits for its managers.
#[test]
fn a_node_that_is_not_registered_is_not_healthy() {
    let dir = tempfile::tempdir().expect("a directory");
    let http = free_address();
    let spec = NodeSpec {
        dir: dir.path().join("node"),
        listen: "127.0.0.1:0".into(),
        advertise: None,
        http: Some(super::http_port::HttpPort::Named(http.clone())),
        rack: "a".into(),
        host: "h".into(),
        checkpoint_generations: 2,
        feature_level: cairn_types::FEATURE_LEVEL,
        request_log_bytes: 0,
        managers: vec![(1, free_address())],
        manager: None,
        manager_joins: false,
        cluster_name: "test".into(),
        meta: true,
        meta_memory_max: u64::MAX,
        disks: Vec::new(),
        replaced_disks: Vec::new(),
        direct_reads: false,
        compact: true,
        open_files: 4096,
        rpc_threads: Some(1),
        bootstrap: None,
        admin_over_tcp: false,
        http_access: HttpSpec::default(),
        security: None,
    };
    let runtime = crate::server::http_runtime().expect("a runtime");
    let handle = runtime.handle().clone();
    // It waits as long as the test runs: nobody is there to register it.
    std::thread::spawn(move || drop(NodeProcess::start(spec, &handle)));
    let mut seen = 0;
    for _ in 0..2000 {
        if let Some(answer) = healthz(&http) {
            assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
            assert!(answer.contains("node"), "{answer}");
            seen += 1;
            if answer.contains("manager") || answer.contains("registered") {
                return;
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("asked {seen} times, and never told what it waits for");
}
