//! Clusters of real processes for tests: started, killed by id, restarted, and gone when the test ends.
//!
//! Ports are found free at run time, directories are temporary. A process that logs ERROR without the test having said
//! that it may fails the test at its end.
use crate::disks;
use crate::namespaces::{LET_GO, SmallDisk};
use crate::wait::{LIMIT, PATIENT, until_told};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The binary under test.
pub fn binary() -> &'static str {
    env!("CARGO_BIN_EXE_cairn")
}

/// A running (or killed) server process.
struct Process {
    config: PathBuf,
    /// Its disk is a file system of its own of so many megabytes, which only the process sees.
    disk_mb: Option<u32>,
    /// The name spaces that it runs in, as `nsenter` is told.
    spaces: Vec<String>,
    /// Another build of the program than the one under test.
    binary: Option<PathBuf>,
    child: Option<Child>,
}

/// A cluster of separate processes.
pub struct Cluster {
    pub dir: tempfile::TempDir,
    processes: BTreeMap<String, Process>,
    /// `host:port,…` of the managers.
    pub address: String,
    members: String,
    /// Parts of ERROR lines that are expected.
    allowed: Vec<String>,
    pub kills: usize,
    shape: Shape,
    /// The network that commands run in, as `nsenter` is told; none: that of this process.
    pub net: Vec<String>,
    /// The key that commands show.
    pub key: Option<PathBuf>,
}

/// How many of what; racks are filled in turn.
#[derive(Clone, Copy)]
pub struct Shape {
    pub managers: usize,
    pub metas: usize,
    pub datas: usize,
    pub racks: usize,
}

impl Cluster {
    /// Starts a cluster and waits until all of it serves.
    pub fn start(shape: Shape) -> Cluster {
        let mut cluster = Cluster::prepare(shape);
        cluster.start_all();
        cluster.wait_volume();
        cluster
    }

    /// Writes the configurations only.
    pub fn prepare(shape: Shape) -> Cluster {
        let managers = free_ports(shape.managers).iter().map(|port| format!("127.0.0.1:{port}")).collect();
        Cluster::prepare_at(shape, managers, |_| "127.0.0.1:0".to_owned())
    }

    /// The same, with addresses: those of the managers, and where others listen, by their names.
    pub fn prepare_at(shape: Shape, managers: Vec<String>, listen: impl Fn(&str) -> String) -> Cluster {
        let dir = tempfile::Builder::new().prefix("cairn-test-").tempdir().expect("temporary directory");
        // Servers make no directory above that of a disk.
        fs::create_dir(dir.path().join("disks")).expect("directory");
        let members: Vec<String> =
            managers.iter().enumerate().map(|(i, address)| format!("\"{}@{address}\"", i + 1)).collect();
        let address = managers.join(",");
        let mut cluster = Cluster {
            dir,
            processes: BTreeMap::new(),
            address,
            members: members.join(", "),
            allowed: Vec::new(),
            kills: 0,
            shape,
            net: Vec::new(),
            key: None,
        };
        for i in 1..=shape.managers {
            cluster.add(&format!("manager{i}"), &managers[i - 1], i % shape.racks, &format!("member = {i}\n"));
        }
        for i in 1..=shape.metas {
            let name = format!("meta{i}");
            cluster.add(&name, &listen(&name), i % shape.racks, "[meta]\n");
        }
        for i in 1..=shape.datas {
            let name = format!("data{i}");
            let section = format!("[data]\ndisks = [{:?}]\n", cluster.disk(&name).display().to_string());
            cluster.add(&name, &listen(&name), i % shape.racks, &section);
        }
        cluster
    }

    /// Adds a process; it is not started.
    pub fn add(&mut self, name: &str, listen: &str, rack: usize, sections: &str) {
        let node_dir = self.dir.path().join("nodes").join(name);
        let text = format!(
            "[node]\ndir = {:?}\nlisten = {listen:?}\nhttp = \"127.0.0.1:0\"\nrack = \"rack{rack}\"\nhost = {name:?}\n[manager]\nmembers = [{}]\n{sections}",
            node_dir.display().to_string(),
            self.members
        );
        let config = self.dir.path().join(format!("{name}.toml"));
        fs::write(&config, text).expect("configuration");
        let process = Process { config, disk_mb: None, spaces: Vec::new(), binary: None, child: None };
        self.processes.insert(name.to_owned(), process);
    }

    /// Directory of the only disk of a data process.
    pub fn disk(&self, name: &str) -> PathBuf {
        self.dir.path().join("disks").join(name)
    }
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
    /// ERROR lines that contain this text are expected.
    pub fn allow_error(&mut self, text: &str) {
        self.allowed.push(text.to_owned());
    }

    /// Gives a process a small file system as its disk, in a name space of its own (no root needed). What is in it goes
    /// with the process. False where the system does not allow that.
    pub fn give_small_disk(&mut self, name: &str, megabytes: u32) -> bool {
        let disk = self.disk(name);
        fs::create_dir_all(&disk).expect("directory");
        let tried = in_own_file_system(&disk, megabytes, Path::new("true")).stderr(Stdio::null()).status();
        let allowed = tried.is_ok_and(|status| status.success());
        if allowed {
            self.processes.get_mut(name).expect("known process").disk_mb = Some(megabytes);
        }
        allowed
    }

    /// The same with a file system that outlasts the process and can be filled; `None` where the system does not allow
    /// it.
    pub fn give_lasting_disk(&mut self, name: &str, megabytes: u32) -> Option<SmallDisk> {
        let disk = SmallDisk::new(&self.disk(name), megabytes)?;
        self.give_space(name, disk.enter());
        Some(disk)
    }
    /// A process runs in a name space, such as a network of its own.
    pub fn give_space(&mut self, name: &str, space: String) {
        self.processes.get_mut(name).expect("known process").spaces.push(space);
    }

    /// From its next start on a process is of another build; `None`: of the one under test.
    pub fn set_binary(&mut self, name: &str, binary: Option<PathBuf>) {
        self.processes.get_mut(name).expect("known process").binary = binary;
    }

    /// Puts a key into the section `[node]` of a configuration, or takes it out.
    pub fn set_in_node(&mut self, name: &str, key: &str, value: Option<&str>) {
        self.set_in(name, "node", key, value);
    }

    /// The same of a section that is there.
    pub fn set_in(&mut self, name: &str, section: &str, key: &str, value: Option<&str>) {
        let path = &self.processes.get(name).expect("known process").config;
        let text = fs::read_to_string(path).expect("configuration");
        let lines = text.lines().filter(|line| !line.starts_with(&format!("{key} = ")));
        let mut text = lines.collect::<Vec<_>>().join("\n") + "\n";
        if let Some(value) = value {
            let header = format!("[{section}]\n");
            assert!(text.contains(&header), "no section {section}");
            text = text.replacen(&header, &format!("{header}{key} = {value}\n"), 1);
        }
        fs::write(path, text).expect("configuration");
    }

    /// Puts a section `[security]` behind the rest of a configuration, in place of the one that is there; `None`: takes
    /// it out.
    pub fn set_security(&mut self, name: &str, section: Option<&str>) {
        let path = &self.processes.get(name).expect("known process").config;
        let text = fs::read_to_string(path).expect("configuration");
        let text = text.split("[security]").next().unwrap_or_default();
        let section = section.map(|section| format!("[security]\n{section}")).unwrap_or_default();
        fs::write(path, format!("{text}{section}")).expect("configuration");
    }

    /// Starts a process without waiting for it.
    pub fn launch(&mut self, name: &str) {
        let disk = self.disk(name);
        let log = File::options().create(true).append(true).open(self.log(name)).expect("log");
        let out = File::create(self.out(name)).expect("out");
        let process = self.processes.get_mut(name).expect("known process");
        let mut command = match process.disk_mb {
            Some(megabytes) => in_own_file_system(&disk, megabytes, Path::new(binary())),
            None => match &process.binary {
                Some(other) => Command::new(other),
                None => in_spaces(&process.spaces),
            },
        };
        let child = command
            .args(["server", "--config"])
            .arg(&process.config)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(log)
            .spawn()
            .expect("the binary starts");
        process.child = Some(child);
    }
    /// Waits for the line `ready …`; panics with the log if the process ends or takes too long.
    pub fn wait_ready(&mut self, name: &str) {
        self.wait_said(name, "ready", |cluster| {
            fs::read_to_string(cluster.out(name)).is_ok_and(|t| t.lines().any(|l| l.starts_with("ready ")))
        });
    }
    /// Waits until a process is about to look for a manager.
    fn wait_started(&mut self, name: &str) {
        self.wait_said(name, "started", |cluster| cluster.read_log(name).contains("starting a node"));
    }
    fn wait_said(&mut self, name: &str, what: &str, said: impl Fn(&Cluster) -> bool) {
        let started = Instant::now();
        while !said(self) {
            let child = self.processes.get_mut(name).and_then(|p| p.child.as_mut()).expect("running process");
            let ended = child.try_wait().expect("wait");
            if ended.is_some() || started.elapsed() > LIMIT {
                panic!("{name} is not {what} (ended: {ended:?}):\n{}", last_lines(&self.read_log(name), 30));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    /// Waits until the default volume can be used. A cluster that is too small for it is told that it will do.
    pub fn wait_volume(&self) {
        let Shape { managers, metas, datas, .. } = self.shape;
        let lists = |args: &[&str], what: &str| text(&self.cairn(args).stdout).matches(what).count();
        if (datas < 3 || managers > 1 && metas < 3) && lists(&["admin", "volume", "ls"], "default") == 0 {
            // Its names are to be on all of them.
            let registered = || lists(&["admin", "node", "ls"], "meta");
            until_told("the meta nodes", || registered() >= metas, || format!("{} of {metas}", registered()));
            let layout = format!("r{}", datas.min(3));
            let made = || self.cairn(&["admin", "volume", "create", "default", "--layout", &layout]);
            let there = |made: Output| matches!(made.status.code(), Some(0 | 4));
            until_told("a small volume", || there(made()), || text(&made().stderr));
        }
        let list = || self.cairn(&["fs", "ls", "/"]);
        until_told("the volume", || list().status.success(), || text(&list().stderr));
    }
    /// Waits until nothing is wrong any more: every node is up, every group has all its members.
    pub fn wait_healthy(&self) {
        let status = || self.cairn(&["admin", "status"]);
        let healthy = || {
            let said = status();
            said.status.success() && text(&said.stdout).contains("healthy: nothing is wrong")
        };
        until_told("a healthy cluster", healthy, || text(&status().stdout) + &text(&status().stderr));
    }
    /// Waits until nothing is wrong but that nodes or disks are away that nothing needs any more.
    pub fn wait_repaired(&self) {
        let status = || self.cairn(&["admin", "status", "--json"]);
        let away = |problem: &serde_json::Value| problem.as_str().is_some_and(|p| p.contains("needs it any more"));
        let repaired = || {
            let said = status();
            let told = serde_json::from_slice::<serde_json::Value>(&said.stdout).unwrap_or_default();
            said.status.success() && told["problems"].as_array().is_some_and(|problems| problems.iter().all(away))
        };
        until_told("a repaired cluster", repaired, || text(&status().stdout) + &text(&status().stderr));
    }
    /// SIGKILL.
    pub fn kill(&mut self, name: &str) {
        let mut child = self.processes.get_mut(name).and_then(|p| p.child.take()).expect("running process");
        child.kill().expect("kill");
        child.wait().expect("wait");
        self.kills += 1;
    }
    /// SIGTERM, and waits for the end.
    pub fn stop(&mut self, name: &str) {
        let mut child = self.processes.get_mut(name).and_then(|p| p.child.take()).expect("running process");
        let pid = rustix::process::Pid::from_raw(child.id() as i32).expect("a process");
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("a signal");
        until_told(&format!("the end of {name}"), || child.try_wait().expect("wait").is_some(), || self.read_log(name));
    }
    /// Bytes of all chunk files.
    pub fn stored(&self) -> u64 {
        let files = disks::chunks(&self.dir.path().join("disks")).into_iter();
        files.filter_map(|path| fs::metadata(path).ok()).map(|about| about.len()).sum()
    }
    /// Waits until a put has stored so much, so that what happens next hits its middle. False: it ended before.
    pub fn wait_stored(&self, job: &mut Child, bytes: u64) -> bool {
        let started = Instant::now();
        while self.stored() < bytes {
            if job.try_wait().expect("wait").is_some() {
                return false;
            }
            assert!(started.elapsed() < LIMIT, "the put stored nothing");
            std::thread::sleep(Duration::from_millis(5));
        }
        true
    }
    /// Puts something and kills a process in the middle of that; the name that it has got. The put has to succeed.
    pub fn put_with_a_death(&mut self, local: &Path, name: &str, victim: &str) -> String {
        // On a machine that is busy a put may end before somebody looks.
        for attempt in 0..10 {
            let target = format!("{name}-{attempt}");
            let before = self.stored();
            let mut job = self.command(&["fs", "put", local.to_str().expect("utf-8"), &target]).spawn().expect("put");
            let hit = self.wait_stored(&mut job, before + (8 << 20));
            if hit {
                self.kill(victim);
            }
            let output = job.wait_with_output().expect("put ends");
            assert!(output.status.success(), "put with {victim} killed ({hit}): {}", text(&output.stderr));
            if hit {
                return target;
            }
        }
        panic!("every put ended before {victim} could be killed");
    }
    pub fn is_running(&self, name: &str) -> bool {
        self.processes.get(name).is_some_and(|p| p.child.is_some())
    }
    pub fn kill_all(&mut self) {
        for name in self.names() {
            if self.is_running(&name) {
                self.kill(&name);
            }
        }
    }
    /// Starts everything that does not run and waits for it.
    pub fn start_all(&mut self) {
        let down: Vec<String> = self.names().into_iter().filter(|n| !self.is_running(n)).collect();
        self.start_some(&down);
    }
    /// Starts these and waits for them.
    pub fn start_some(&mut self, names: &[String]) {
        let (managers, others): (Vec<&String>, Vec<&String>) =
            names.iter().partition(|name| name.starts_with("manager"));
        // A new cluster gets its volume when nobody has registered for some seconds, with what is there by then. So
        // whoever takes long to start has to be there before there is somebody to register with.
        others.iter().for_each(|name| self.launch(name));
        if !managers.is_empty() && !self.names().iter().any(|n| n.starts_with("manager") && self.is_running(n)) {
            others.iter().for_each(|name| self.wait_started(name));
        }
        managers.iter().for_each(|name| self.launch(name));
        names.iter().for_each(|name| self.wait_ready(name));
    }
    /// Starts one process and waits for it.
    pub fn restart(&mut self, name: &str) {
        self.launch(name);
        self.wait_ready(name);
    }
    /// Process id of a running process, for signals.
    pub fn pid(&self, name: &str) -> u32 {
        self.processes.get(name).and_then(|p| p.child.as_ref()).expect("running process").id()
    }
    pub fn names(&self) -> Vec<String> {
        self.processes.keys().cloned().collect()
    }
    fn log(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("{name}.log"))
    }
    fn out(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("{name}.out"))
    }
    pub fn read_log(&self, name: &str) -> String {
        fs::read_to_string(self.log(name)).unwrap_or_default()
    }
    /// The value of a sample of a process: the first whose line begins so.
    pub fn metric(&self, name: &str, begins: &str) -> Option<f64> {
        let page = self.metrics(name);
        let line = page.lines().find(|line| line.starts_with(begins))?;
        line.rsplit(' ').next()?.parse().ok()
    }
    /// The page of metrics of a process.
    pub fn metrics(&self, name: &str) -> String {
        let ready = fs::read_to_string(self.out(name)).expect("out");
        let http = ready.split_whitespace().find_map(|word| word.strip_prefix("http=")).expect("the HTTP port");
        let mut stream = TcpStream::connect(http).expect("the HTTP port");
        write!(stream, "GET /metrics HTTP/1.1\r\nhost: cairn\r\nconnection: close\r\n\r\n").expect("request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("answer");
        let (_, page) = answer.split_once("\r\n\r\n").expect("a head and a page");
        page.to_owned()
    }

    /// A command against this cluster that is not started yet. One that has to succeed may take as long as it takes:
    /// unless `--timeout` says something else, it waits for servers as long as a slow machine needs.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = in_spaces(&self.net);
        if !args.contains(&"--timeout") {
            command.args(["--timeout", PATIENT]);
        }
        command.args(args).env("CAIRN_CLUSTER", &self.address).stdin(Stdio::null());
        match &self.key {
            Some(key) => command.env("CAIRN_KEY", key),
            None => command.env_remove("CAIRN_KEY"),
        };
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
    /// Runs `cairn …` against this cluster.
    pub fn cairn(&self, args: &[&str]) -> Output {
        let mut command = self.command(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().expect("the binary starts");
        let pid = rustix::process::Pid::from_raw(child.id() as i32).expect("a process");
        let (ended, end) = mpsc::channel::<()>();
        // A command that hangs fails its test, and does not hold up all others.
        let watch = std::thread::spawn(move || {
            if end.recv_timeout(LIMIT) == Err(mpsc::RecvTimeoutError::Timeout) {
                let _it_may_end_now = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        });
        let output = child.wait_with_output().expect("the binary ends");
        drop(ended);
        watch.join().expect("the watch ends");
        output
    }
    /// Runs `cairn …` that has to succeed; its standard output.
    pub fn ok(&self, args: &[&str]) -> String {
        let output = self.cairn(args);
        assert!(output.status.success(), "cairn {args:?}: {}\n{}", output.status, text(&output.stderr));
        text(&output.stdout)
    }
    /// Runs `cairn …` that has to fail with an exit code; its standard error.
    pub fn fails(&self, args: &[&str], code: i32) -> String {
        let output = self.cairn(args);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "cairn {args:?}: {error}\n{}", text(&output.stdout));
        error
    }

    /// Panics if a log has an ERROR that was not announced.
    pub fn check_logs(&self) {
        for name in self.names() {
            for line in self.read_log(&name).lines() {
                let bad = line.contains(" ERROR ") || line.contains("panicked at");
                assert!(
                    !bad || self.allowed.iter().any(|a| line.contains(a)),
                    "unexpected in the log of {name}: {line}"
                );
            }
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for process in self.processes.values_mut() {
            if let Some(mut child) = process.child.take() {
                let _ended = child.kill();
                let _ended = child.wait();
            }
        }
        if !std::thread::panicking() {
            self.check_logs();
        } else {
            for name in self.names() {
                eprintln!("--- {name}\n{}", last_lines(&self.read_log(&name), 12));
            }
        }
    }
}

/// A command that sees a new file system at `disk`; arguments added are those of `program`, which keeps the process id.
fn in_own_file_system(disk: &Path, megabytes: u32, program: &Path) -> Command {
    let mut command = Command::new("unshare");
    let script = format!("{LET_GO}; mount -t tmpfs -o size=\"$1m\" tmpfs \"$2\" && shift 2 && exec \"$@\"");
    let is_root = fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    if !is_root {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--mount", "sh", "-c", &script, "sh"]);
    command.arg(megabytes.to_string()).arg(disk).arg(program);
    command
}

/// The binary under test, in the name spaces that `nsenter` is told, if any; it keeps the process id.
pub fn in_spaces(spaces: &[String]) -> Command {
    if spaces.is_empty() {
        return Command::new(binary());
    }
    let mut command = Command::new("nsenter");
    command.args(spaces).arg(binary());
    command
}

/// A port from which on so many were free a moment ago. Below the range that systems give to connections and to port 0,
/// so that nothing takes them before the process under test does.
pub fn free_base(count: u16) -> u16 {
    const FIRST: u16 = 12_000;
    const SPAN: u16 = 20_000;
    let seed = RandomState::new().build_hasher().finish();
    let starts = (0..200).map(|attempt| FIRST + (seed.wrapping_add(attempt * 97) % u64::from(SPAN)) as u16);
    let free = |base: &u16| (0..count).all(|i| TcpListener::bind(("127.0.0.1", base + i)).is_ok());
    starts.into_iter().find(free).expect("free ports")
}

/// Ports that were free a moment ago.
pub fn free_ports(count: usize) -> Vec<u16> {
    let count = u16::try_from(count).expect("a few");
    let base = free_base(count);
    (base..base + count).collect()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What a command prints as JSON, a value a line.
pub fn lines(cluster: &Cluster, args: &[&str]) -> Vec<serde_json::Value> {
    let said = cluster.ok(&[args, &["--json"]].concat());
    said.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// A copy of a directory with all that is in it.
pub fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("directory");
    for entry in fs::read_dir(from).expect("listed") {
        let entry = entry.expect("listed");
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        match entry.file_type().expect("a type").is_dir() {
            true => copy_dir(&path, &target),
            false => {
                let _bytes: u64 = fs::copy(&path, &target).expect("copied");
            }
        }
    }
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}
