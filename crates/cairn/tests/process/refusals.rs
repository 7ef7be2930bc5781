//! What bad input gets: a clear message, a distinct exit code, nothing half-written.
use crate::support::{Cluster, Shape, binary, free_ports, text};
use crate::trees::noise;
use crate::wait::{LIMIT, until, until_told};
use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const SMALL: Shape = Shape { managers: 1, metas: 1, datas: 3, racks: 3 };

/// Waits for a process that has to end by itself; its exit code and standard error.
fn ends(mut command: Command) -> (i32, String) {
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("start");
    let pid = child.id();
    let watchdog = std::thread::spawn(move || {
        let started = Instant::now();
        while started.elapsed() < LIMIT {
            if !std::path::Path::new(&format!("/proc/{pid}")).exists() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ended = Command::new("kill").arg("-9").arg(pid.to_string()).status();
    });
    let output = child.wait_with_output().expect("wait");
    watchdog.join().expect("watchdog");
    (output.status.code().unwrap_or(-1), text(&output.stderr))
}

fn server(config: &std::path::Path) -> Command {
    let mut command = Command::new(binary());
    command.args(["server", "--config"]).arg(config);
    command
}

/// Two processes on one directory would both write it.
#[test]
fn two_servers_on_one_directory_are_refused() {
    let cluster = Cluster::start(SMALL);
    for name in ["data1", "meta1", "manager1"] {
        // Another port, or the port would be refused first.
        let config = fs::read_to_string(cluster.path(&format!("{name}.toml"))).expect("config");
        let config: String = config
            .lines()
            .map(|l| if l.starts_with("listen") { "listen = \"127.0.0.1:0\"\n".to_owned() } else { format!("{l}\n") })
            .collect();
        let second = cluster.path("second.toml");
        fs::write(&second, config).expect("config");
        let (code, error) = ends(server(&second));
        assert_eq!(code, 20, "{name}: {error}");
        assert!(error.contains(&format!("nodes/{name}")), "the message names the directory: {error}");
        assert!(error.contains(&cluster.pid(name).to_string()), "the message names the process that has it: {error}");
    }
}

/// A disk of another cluster must never be written by this one.
#[test]
fn directories_of_another_cluster_are_refused() {
    let mut first = Cluster::start(SMALL);
    let mut second = Cluster::start(SMALL);
    first.kill("data1");
    second.kill("data1");
    second.allow_error("cluster");
    // The whole node directory of the other cluster.
    let text = fs::read_to_string(second.path("data1.toml")).expect("config");
    let foreign = text
        .replace(&second.path("nodes/data1").display().to_string(), &first.path("nodes/data1").display().to_string());
    let config = second.path("foreign.toml");
    fs::write(&config, foreign).expect("config");
    let (out, log) = (second.path("foreign.out"), second.path("foreign.log"));
    let create = |path: &std::path::Path| fs::File::create(path).expect("a file");
    let mut refused = server(&config);
    refused.stdin(Stdio::null()).stdout(create(&out)).stderr(create(&log));
    let mut refused = refused.spawn().expect("start");
    let said = || fs::read_to_string(&log).expect("log");
    until_told("the refusal", || said().contains("WrongCluster"), said);
    // It waits for the managers of its own cluster, and never serves: it is ended here.
    assert!(refused.try_wait().expect("wait").is_none(), "{}", said());
    refused.kill().and_then(|()| refused.wait()).expect("ended");
    assert_eq!(fs::read_to_string(&out).expect("out"), "", "it serves");
    // Only the disk: the node starts without it and says so.
    let foreign = text.replace(&second.disk("data1").display().to_string(), &first.disk("data1").display().to_string());
    fs::write(second.path("data1.toml"), foreign).expect("config");
    second.launch("data1");
    second.wait_ready("data1");
    let log = second.read_log("data1");
    assert!(log.contains(&first.disk("data1").display().to_string()), "the log names the disk: {log}");
    assert!(first.path("disks/data1").exists());
}

/// Every mistake of a configuration is told at once, with its line.
#[test]
fn a_bad_configuration_is_refused_with_all_its_mistakes() {
    let dir = tempfile::tempdir().expect("dir");
    let config = dir.path().join("c.toml");
    fs::write(&config, "[node]\ndir = 3\nlisen = \"x\"\n[manager]\nmembers = [\"1@h\"]\n[dta]\n").expect("config");
    let (code, error) = ends(server(&config));
    assert_eq!(code, 11, "{error}");
    for wanted in ["line 2", "line 3", "did you mean \"listen\"", "line 5", "line 6"] {
        assert!(error.contains(wanted), "{wanted} is not in {error}");
    }
}

/// A client that hung or said nothing when no cluster is there would be of no help.
#[test]
fn an_unknown_cluster_is_told() {
    let port = free_ports(1)[0];
    let address = format!("127.0.0.1:{port}");
    let output = Command::new(binary()).args(["--cluster", &address, "fs", "ls", "/"]).output();
    let output = output.expect("runs");
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains(&address));
}

/// Scripts tell failures apart by exit codes, people by messages.
#[test]
fn mistakes_of_users_have_their_own_messages_and_codes() {
    let cluster = Cluster::start(SMALL);
    let local = cluster.path("local");
    fs::write(&local, noise(10_000, 1)).expect("file");
    let local = local.to_str().expect("utf-8").to_owned();
    cluster.ok(&["fs", "mkdir", "/dir"]);
    cluster.ok(&["fs", "put", &local, "/dir/file"]);
    let missing = cluster.fails(&["fs", "cat", "/nothing"], 3);
    assert!(missing.contains("/nothing"), "{missing}");
    cluster.fails(&["fs", "ls", "/dir/file/x"], 14);
    cluster.fails(&["fs", "ls", "no-slash"], 18);
    cluster.fails(&["fs", "ls", "cairn://host/default/x"], 18);
    cluster.fails(&["fs", "mkdir", "/dir"], 4);
    let layout = cluster.fails(&["fs", "put", "--layout", "r9", &local, "/x"], 17);
    assert!(layout.contains("r3"), "{layout}");
    let name = format!("/{}", "n".repeat(256));
    assert!(cluster.fails(&["fs", "put", &local, &name], 15).contains("255"));
    cluster.fails(&["fs", "get", "/nothing", "/tmp"], 3);
    cluster.fails(&["fs", "ls", "other:/"], 3);
    let config = cluster.fails(&["admin", "config", "set", "no_such_key=1", "nor_this=2"], 11);
    assert!(config.contains("no_such_key") && config.contains("nor_this"), "{config}");
    // Nothing was left behind by what failed.
    assert_eq!(cluster.ok(&["fs", "ls", "/"]).trim(), "dir");
}

/// `cairn fs cat … | head` must end quietly.
#[test]
fn a_broken_pipe_is_quiet() {
    let cluster = Cluster::start(SMALL);
    let local = cluster.path("local");
    fs::write(&local, noise(8_000_000, 3)).expect("file");
    cluster.ok(&["fs", "put", local.to_str().expect("utf-8"), "/file"]);
    let script = format!("{} fs cat /file | head -c 10 > /dev/null", binary());
    let output =
        Command::new("bash").args(["-c", &script]).env("CAIRN_CLUSTER", &cluster.address).output().expect("bash");
    assert!(text(&output.stderr).is_empty(), "{}", text(&output.stderr));
}

/// A full disk refuses new data, keeps the old, and recovers after deletes.
#[test]
fn a_full_disk_is_told_and_recovers() {
    let mut cluster = Cluster::prepare(SMALL);
    for name in ["data1", "data2", "data3"] {
        if !cluster.give_small_disk(name, 700) {
            eprintln!("skipped: this system lets nobody mount a file system in a name space of its own");
            return;
        }
    }
    cluster.allow_error("space");
    cluster.start_all();
    cluster.ok(&["admin", "config", "set", "disk_reserve=64m"]);
    cluster.wait_volume();
    let local = cluster.path("local");
    let bytes = noise(50_000_000, 4);
    fs::write(&local, &bytes).expect("file");
    let local = local.to_str().expect("utf-8").to_owned();
    let mut stored = Vec::new();
    let full = loop {
        let target = format!("/file{}", stored.len());
        let output = cluster.cairn(&["fs", "put", "--timeout", "60", &local, &target]);
        if !output.status.success() {
            break output;
        }
        stored.push(target);
        assert!(stored.len() < 20, "700 MB disks took {} MB", stored.len() * 50);
    };
    assert_eq!(full.status.code(), Some(6), "{}", text(&full.stderr));
    assert!(!stored.is_empty());
    for path in &stored {
        let read = cluster.cairn(&["fs", "cat", path]);
        assert!(read.status.success() && read.stdout == bytes, "{path}: {}", text(&read.stderr));
    }
    for path in &stored {
        cluster.ok(&["fs", "rm", "--skip-trash", path]);
    }
    let again = || cluster.cairn(&["fs", "put", "--timeout", "60", &local, "/again"]);
    until("the space again", || again().status.success());
    cluster.kill_all();
}
