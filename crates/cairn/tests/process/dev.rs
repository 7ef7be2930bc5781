//! `cairn dev`: a whole cluster in one process, kept in one directory.
use crate::private::{OTHER_USER, is_root};
use crate::support::{binary, text};
use crate::trees::{assert_same_tree, make_tree};
use crate::wait::{LIMIT, PATIENT, until_told};
use cairn_client::key::KEY_VARIABLE;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A running `cairn dev`; killed when dropped. Its user has a home of his own: where keys are put and looked for.
pub struct Dev {
    child: Child,
    cluster: String,
    http: String,
    config_home: PathBuf,
    log: PathBuf,
}

impl Dev {
    pub fn start(dir: &Path) -> Dev {
        Dev::start_with(dir, "cluster", &["--listen", "127.0.0.1:0"])
    }

    /// In `dir/name`, with more options than all have.
    pub fn start_with(dir: &Path, name: &str, more: &[&str]) -> Dev {
        let (out, log) = (dir.join(format!("{name}.out")), dir.join(format!("{name}.log")));
        let config_home = dir.join("config");
        let child = Command::new(binary())
            .args(["dev", "--nodes", "4", "--data-dir"])
            .arg(dir.join(name))
            .args(more)
            .env("XDG_CONFIG_HOME", &config_home)
            .env_remove(KEY_VARIABLE)
            .stdin(Stdio::null())
            .stdout(File::create(&out).expect("out"))
            .stderr(File::options().create(true).append(true).open(&log).expect("log"))
            .spawn()
            .expect("the binary starts");
        let mut dev = Dev { child, cluster: String::new(), http: String::new(), config_home, log };
        let started = Instant::now();
        loop {
            let said = fs::read_to_string(&out).expect("out");
            if let Some(line) = said.lines().find(|line| line.starts_with("ready ")) {
                let word = |key: &str| line.split_whitespace().find_map(|word| word.strip_prefix(key));
                dev.cluster = word("cluster=").expect("the address").to_owned();
                dev.http = word("http=").expect("the address of the HTTP port").to_owned();
                return dev;
            }
            let ended = dev.child.try_wait().expect("wait");
            assert!(ended.is_none() && started.elapsed() < LIMIT, "not ready (ended: {ended:?}):\n{}", dev.said());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// All that it said on standard error, also in earlier runs.
    pub fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// A command of the user who started it.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.args(["--timeout", PATIENT]).args(args).stdin(Stdio::null()).env("CAIRN_CLUSTER", &self.cluster);
        command.env("XDG_CONFIG_HOME", &self.config_home).env_remove(KEY_VARIABLE);
        command
    }

    pub fn cairn(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("the binary starts")
    }

    pub fn ok(&self, args: &[&str]) -> String {
        let output = self.cairn(args);
        assert!(output.status.success(), "cairn {args:?}: {}\n{}", output.status, text(&output.stderr));
        text(&output.stdout)
    }

    /// Waits until nothing is wrong any more: every group has all its members.
    fn wait_healthy(&self) {
        let status = || text(&self.cairn(&["admin", "status"]).stdout);
        until_told("a healthy cluster", || status().contains("healthy: nothing is wrong"), status);
    }

    /// The whole answer of the HTTP port.
    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.http).expect("the HTTP port");
        write!(stream, "GET {path} HTTP/1.1\r\nhost: cairn\r\nconnection: close\r\n\r\n").expect("request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("answer");
        answer
    }

    pub fn kill(mut self) {
        self.child.kill().expect("kill");
        self.child.wait().expect("wait");
    }

    /// SIGTERM; the exit code.
    pub fn terminate(mut self) -> Option<i32> {
        let signal = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status();
        assert!(signal.expect("kill runs").success());
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                return status.code();
            }
            assert!(started.elapsed() < LIMIT, "SIGTERM did not end it");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        // It may have ended already.
        let _ended = self.child.kill();
        let _ended = self.child.wait();
    }
}

/// Somebody who tries the program out would lose what he stored, or stay with a cluster that never becomes whole.
#[test]
fn a_cluster_in_one_process_keeps_everything_across_a_kill() {
    let dir = tempfile::Builder::new().prefix("cairn-dev-").tempdir().expect("temporary directory");
    let (tree, back) = (dir.path().join("tree"), dir.path().join("back"));
    make_tree(&tree, 60, 7);
    let dev = Dev::start(dir.path());
    dev.wait_healthy();
    let health = dev.get("/healthz");
    assert!(health.starts_with("HTTP/1.1 200"), "{health}");
    let metrics = dev.get("/metrics");
    for family in ["cairn_rpc_", "cairn_manager_", "cairn_meta_"] {
        assert!(metrics.contains(family), "no {family}… in {metrics}");
    }
    dev.ok(&["fs", "put", tree.to_str().expect("utf-8"), "/tree"]);
    dev.kill();

    let dev = Dev::start(dir.path());
    dev.ok(&["fs", "get", "/tree", back.to_str().expect("utf-8")]);
    assert_same_tree(&tree, &back);
    dev.wait_healthy();
    // Whoever started it may change it, and nobody else.
    dev.ok(&["admin", "volume", "create", "mine"]);
    if is_root() {
        let mut other = dev.command(&["admin", "volume", "create", "theirs"]);
        let output = other.uid(OTHER_USER).gid(OTHER_USER).output().expect("the binary starts");
        assert_eq!(output.status.code(), Some(5), "{}", text(&output.stderr));
    }
    dev.ok(&["fs", "put", tree.join("d0").to_str().expect("utf-8"), "/more"]);
    assert_eq!(dev.terminate(), Some(0), "a request to end is no failure");
}
