//! Packages: built from the program under test, installed into directories of their own, used, upgraded and removed.
use crate::support::{binary, free_ports, text};
use crate::wait::{PATIENT, until_told};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the project")
}

/// Whether there are these tools, and the rights to install something.
fn can(tools: &[&str]) -> bool {
    let there = |tool: &&&str| Command::new(tool).arg("--version").output().is_ok_and(|output| output.status.success());
    if let Some(missing) = tools.iter().find(|tool| !there(tool)) {
        println!("skipped: {missing} is not installed");
        return false;
    }
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("skipped: packages are installed by root");
    }
    root
}

fn done(what: &str, command: &mut Command) -> Output {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(output.status.success(), "{what}: {}{}", text(&output.stdout), text(&output.stderr));
    output
}

/// Builds one kind of package; its file.
fn build(dir: &Path, kind: &str) -> PathBuf {
    let program = dir.join("program");
    // Names and lines of the test's build are ten times the program.
    let stripped = Command::new("strip").arg("--strip-all").arg("-o").arg(&program).arg(binary()).status();
    if !stripped.is_ok_and(|status| status.success()) {
        fs::copy(binary(), &program).expect("copy");
    }
    let out = dir.join("out");
    let script = project().join("scripts/packages.sh");
    done("packages.sh", Command::new(script).arg(&program).arg(&out).env("KINDS", kind).env("COMPRESS", "fast"));
    done("sha256sum", Command::new("sha256sum").args(["--check", "--strict", "SHA256SUMS"]).current_dir(&out));
    let end = if kind == "tar" { ".tar.gz" } else { kind };
    let files = fs::read_dir(&out).expect("directory").map(|file| file.expect("file").path());
    let mut found = files.filter(|path| path.to_string_lossy().ends_with(end));
    found.next().unwrap_or_else(|| panic!("no {kind}"))
}

fn temporary() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("cairn-test-").tempdir().expect("dir")
}

/// What each package has to bring.
const FILES: &[&str] = &[
    "usr/bin/cairn",
    "usr/sbin/mount.cairn",
    "usr/sbin/mount.fuse.cairn",
    "usr/lib/systemd/system/cairn@.service",
    "usr/lib/systemd/system/cairn-backup.service",
    "usr/lib/systemd/system/cairn-backup.timer",
    "usr/lib/systemd/system/cairn-authority.service",
    "usr/share/cairn/restore-drill",
    "usr/share/cairn/templates/backup.env",
    "usr/share/cairn/monitoring/alerts.yml",
    "etc/logrotate.d/cairn",
    "usr/lib/sysusers.d/cairn.conf",
    "usr/lib/tmpfiles.d/cairn.conf",
    "etc/cairn/node.toml",
    "usr/share/cairn/templates/data.toml",
    "usr/share/man/man1/cairn-fs-put.1.gz",
    "usr/share/man/man8/mount.cairn.8.gz",
    "usr/share/bash-completion/completions/cairn",
    "usr/share/doc/cairn/copyright",
    "usr/share/doc/cairn/LICENSE",
    "usr/share/doc/cairn/docs/README.md",
    "usr/share/doc/cairn/docs/guides/runbook.md",
    "usr/share/doc/cairn/SECURITY.md",
];

fn assert_installed(root: &Path) {
    for file in FILES {
        assert!(root.join(file).exists(), "{file} is missing");
    }
}

/// A server of the installed program with the installed configuration, on ports of its own.
struct Installed {
    program: PathBuf,
    config: PathBuf,
    address: String,
    server: Option<Child>,
}

impl Installed {
    fn start(root: &Path) -> Installed {
        let ports = free_ports(2);
        let address = format!("127.0.0.1:{}", ports[0]);
        let template = fs::read_to_string(root.join("etc/cairn/node.toml")).expect("the configuration");
        for part in ["127.0.0.1:7400", "127.0.0.1:7480", "\"/var/lib/cairn"] {
            assert!(template.contains(part), "{part}: {template}");
        }
        let state = root.join("var/lib/cairn");
        fs::create_dir_all(&state).expect("directory");
        let config = root.join("test.toml");
        let text =
            template.replace("127.0.0.1:7400", &address).replace("127.0.0.1:7480", &format!("127.0.0.1:{}", ports[1]));
        fs::write(&config, text.replace("/var/lib/cairn", &state.display().to_string())).expect("configuration");
        let program = root.join("usr/bin/cairn");
        let mut installed = Installed { program, config, address, server: None };
        installed.launch();
        let layout = ["admin", "volume", "create", "default", "--layout", "r1"];
        let made = || installed.command(&layout).output().expect("the program starts");
        until_told("a volume", || matches!(made().status.code(), Some(0 | 4)), || format!("{:?}", made()));
        let list = || installed.command(&["fs", "ls", "/"]).output().expect("the program starts");
        until_told("the volume", || list().status.success(), || format!("{:?}", list()));
        installed
    }
    fn launch(&mut self) {
        let mut server = Command::new(&self.program);
        server.args(["server", "--config"]).arg(&self.config);
        server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.server = Some(server.spawn().expect("the installed program starts"));
    }
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["--cluster", &self.address, "--timeout", PATIENT]).args(args);
        command
    }
    /// As `systemctl restart`.
    fn restart(&mut self) {
        if let Some(server) = &self.server {
            let pid = rustix::process::Pid::from_child(server);
            rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("the server runs");
        }
        if let Some(mut server) = self.server.take() {
            assert!(server.wait().expect("it ends").success(), "a server that is asked to end has not failed");
        }
        self.launch();
    }
    fn end(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        self.end();
    }
}

fn dpkg(root: &Path, args: &[&str]) -> Output {
    let mut command = Command::new("dpkg");
    // Scripts find no shell in a directory that has nothing but this package.
    command.arg(format!("--root={}", root.display())).args([
        "--force-script-chrootless",
        "--force-depends",
        "--force-not-root",
    ]);
    command.arg(format!("--log={}", root.join("dpkg.log").display()));
    done("dpkg", command.args(args))
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The program is replaced below a server that runs, and below writers; then the server is restarted, as the guide
/// says. What an operator wrote into the configuration stays.
fn upgrade_under_load(installed: &mut Installed, root: &Path, package: &str) {
    fs::write(root.join("etc/cairn/node.toml"), "# ours\n").expect("configuration");
    let stop = AtomicBool::new(false);
    let local = root.join("load");
    fs::write(&local, "stored while the package is upgraded").expect("file");
    let (program, address) = (installed.program.clone(), installed.address.clone());
    let put = |number: usize| {
        let mut command = Command::new(&program);
        command
            .args(["--cluster", &address, "--timeout", PATIENT, "fs", "put"])
            .arg(&local)
            .arg(format!("/load{number}"));
        done("a put during the upgrade", &mut command);
    };
    let stored = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut stored = 0;
            // At least one begins after the restart.
            while !stop.load(Ordering::Relaxed) || stored == 0 {
                put(stored);
                stored += 1;
            }
            put(stored);
            stored + 1
        });
        {
            // Whatever fails here: the writer ends.
            let _ends = StopOnDrop(&stop);
            dpkg(root, &["--force-confold", "--install", package]);
            installed.restart();
        }
        writer.join().expect("every put is done")
    });
    assert_eq!(fs::read_to_string(root.join("etc/cairn/node.toml")).expect("configuration"), "# ours\n");
    for number in 0..stored {
        let cat = done("cat", &mut installed.command(&["fs", "cat", &format!("/load{number}")]));
        assert_eq!(text(&cat.stdout), "stored while the package is upgraded");
    }
}

/// A machine with the package could not start a server with what it brought; an upgrade or a removal would take data
/// along.
#[test]
fn a_deb_is_installed_used_upgraded_and_removed() {
    if !can(&["dpkg", "dpkg-deb"]) {
        return;
    }
    let dir = temporary();
    let package = build(dir.path(), "deb");
    let package = package.to_str().expect("utf-8");
    let root = dir.path().join("root");
    for sub in ["var/lib/dpkg/updates", "var/lib/dpkg/info", "etc"] {
        fs::create_dir_all(root.join(sub)).expect("directory");
    }
    for file in ["var/lib/dpkg/status", "var/lib/dpkg/available"] {
        fs::write(root.join(file), "").expect("file");
    }
    dpkg(&root, &["--install", package]);
    assert_installed(&root);
    if can(&["systemd-sysusers"]) {
        let users = fs::read_to_string(root.join("etc/passwd")).unwrap_or_default();
        assert!(users.lines().any(|line| line.starts_with("cairn:")), "no user: {users}");
    }
    let mut installed = Installed::start(&root);
    let config = installed.config.to_str().expect("utf-8").to_owned();
    // Warnings may be of the machine: its clock, its only disk.
    let doctor = installed.command(&["doctor", "--json", "--config", &config]).output().expect("doctor");
    assert!(!text(&doctor.stdout).contains("\"level\":\"bad\""), "{}", text(&doctor.stdout));
    let local = dir.path().join("local");
    fs::write(&local, "kept").expect("file");
    done("put", installed.command(&["fs", "put"]).arg(&local).arg("/file"));
    upgrade_under_load(&mut installed, &root, package);
    assert_eq!(text(&done("cat", &mut installed.command(&["fs", "cat", "/file"])).stdout), "kept");
    installed.end();
    dpkg(&root, &["--remove", "cairn"]);
    assert!(!root.join("usr/bin/cairn").exists() && root.join("etc/cairn/node.toml").exists());
    let enabled = root.join("etc/systemd/system/multi-user.target.wants/cairn@node.service");
    fs::create_dir_all(enabled.parent().expect("a directory")).expect("directory");
    std::os::unix::fs::symlink("/lib/systemd/system/cairn@.service", &enabled).expect("link");
    dpkg(&root, &["--purge", "cairn"]);
    assert!(!root.join("etc/cairn/node.toml").exists());
    assert!(enabled.symlink_metadata().is_err(), "a link to a unit that is gone");
    for kept in ["var/lib/cairn/node", "var/lib/cairn/disk1"] {
        assert!(fs::read_dir(root.join(kept)).is_ok_and(|mut files| files.next().is_some()), "{kept} is gone");
    }
    // Another installation finds what was stored.
    dpkg(&root, &["--install", package]);
    installed.launch();
    let cat = || installed.command(&["fs", "cat", "/file"]).output().expect("the program starts");
    until_told("the file", || text(&cat().stdout) == "kept", || format!("{:?}", cat()));
}

/// systemd would refuse the unit, or ignore lines of it.
#[test]
fn the_unit_is_one_for_systemd() {
    if !can(&["systemd-analyze"]) {
        return;
    }
    let dir = temporary();
    let root = dir.path();
    for sub in ["usr/lib/systemd/system", "usr/bin", "etc/cairn"] {
        fs::create_dir_all(root.join(sub)).expect("directory");
    }
    let unit = root.join("usr/lib/systemd/system/cairn@.service");
    let text_of_unit = fs::read_to_string(project().join("packaging/systemd/cairn@.service")).expect("the unit");
    // `verify` looks for the program on this machine.
    fs::write(&unit, text_of_unit.replace("/usr/bin/cairn", binary())).expect("unit");
    let verify = |unit: &Path| {
        let output = done("systemd-analyze", Command::new("systemd-analyze").args(["--man=no", "verify"]).arg(unit));
        assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
    };
    let secure = |unit: &Path| {
        let mut security = Command::new("systemd-analyze");
        security.args(["security", "--offline=yes", "--threshold=25"]).arg(unit);
        done("systemd-analyze security", &mut security);
    };
    verify(&unit);
    secure(&unit);
    for name in ["cairn-backup.service", "cairn-backup.timer", "cairn-authority.service"] {
        let text_of_unit = fs::read_to_string(project().join("packaging/systemd").join(name)).expect("the unit");
        let unit = root.join("usr/lib/systemd/system").join(name);
        fs::write(&unit, text_of_unit.replace("/usr/bin/cairn", binary())).expect("unit");
        verify(&unit);
        if name.ends_with("service") {
            secure(&unit);
        }
    }
}

/// The package for other distributions would lack files, or take data along.
#[test]
fn an_rpm_is_installed_and_removed() {
    if !can(&["rpmbuild", "rpm"]) {
        return;
    }
    let dir = temporary();
    let package = build(dir.path(), "rpm");
    let root = dir.path().join("root");
    fs::create_dir_all(root.join("var/lib/cairn/disk1")).expect("directory");
    let rpm = |args: &[&str]| {
        let mut command = Command::new("rpm");
        command.arg("--root").arg(&root).args(args);
        command
    };
    done("rpm --initdb", &mut rpm(&["--initdb"]));
    // There is no shell in the directory for its scripts.
    done("rpm -i", rpm(&["-i", "--nodeps", "--noscripts", "--nosignature"]).arg(&package));
    assert_installed(&root);
    let version = done("cairn", Command::new(root.join("usr/bin/cairn")).arg("--version"));
    assert!(text(&version.stdout).starts_with("cairn "), "{version:?}");
    done("rpm -e", &mut rpm(&["-e", "--nodeps", "--noscripts", "cairn"]));
    assert!(!root.join("usr/bin/cairn").exists() && root.join("var/lib/cairn/disk1").exists());
}

/// Links of a page that lead to no file.
fn dead_links(page: &Path) -> Vec<String> {
    let text = fs::read_to_string(page).expect("a page");
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#', ' ']).next());
    let own = targets.filter(|target| !target.is_empty() && !target.contains("://"));
    let dead = own.filter(|target| !page.parent().expect("a directory").join(target).exists());
    dead.map(|target| format!("{}: {target}", page.display())).collect()
}

/// Whoever has the guides without the source would follow links to nothing.
fn assert_links(docs: &Path) {
    let guides = fs::read_dir(docs.join("docs/guides")).expect("guides").map(|file| file.expect("file").path());
    let pages: Vec<PathBuf> =
        ["README.md", "SECURITY.md", "docs/README.md"].map(|page| docs.join(page)).into_iter().chain(guides).collect();
    assert!(pages.len() > 10, "{pages:?}");
    assert_eq!(pages.iter().flat_map(|page| dead_links(page)).collect::<Vec<_>>(), Vec::<String>::new());
}

/// Whoever unpacks the tarball would have a program without what belongs to it.
#[test]
fn a_tarball_is_unpacked() {
    let dir = temporary();
    let package = build(dir.path(), "tar");
    done("tar", Command::new("tar").arg("-xzf").arg(&package).arg("-C").arg(dir.path()));
    let name = package.file_name().expect("name").to_string_lossy().replace(".tar.gz", "");
    let root = dir.path().join(name);
    for file in FILES {
        let file = file.strip_prefix("usr/").unwrap_or(file);
        assert!(root.join(file).exists(), "{file} is missing");
    }
    assert_links(&root.join("share/doc/cairn"));
    done("cairn", Command::new(root.join("bin/cairn")).arg("--version"));
}

/// An operator would copy a template with a key that no server knows.
#[test]
fn templates_are_configurations() {
    let templates = fs::read_dir(project().join("packaging/config")).expect("templates");
    let dir = temporary();
    // All at once: doctor waits some seconds for managers, and here is none.
    let mut running = Vec::new();
    for template in templates {
        let path = template.expect("file").path();
        if path.extension().is_none_or(|end| end != "toml") {
            continue;
        }
        // Those of the templates are other machines.
        let text_of_template = fs::read_to_string(&path).expect("template").replace("192.0.2.", "127.0.0.");
        let port = free_ports(1)[0].to_string();
        let path = dir.path().join(path.file_name().expect("name"));
        fs::write(&path, text_of_template.replace(":7400", &format!(":{port}"))).expect("configuration");
        let mut doctor = Command::new(binary());
        doctor.args(["doctor", "--json", "--timeout", "1", "--config"]).arg(&path);
        running.push(doctor.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts"));
    }
    assert!(running.len() >= 4, "{} templates", running.len());
    for doctor in running {
        let output = doctor.wait_with_output().expect("it ends");
        assert_ne!(output.status.code(), Some(11), "{}", text(&output.stderr));
        assert!(text(&output.stdout).contains("\"check\":\"clock\""), "{output:?}");
    }
}

/// A Debian of its own, with nothing but what every one has.
struct Debian(PathBuf);

impl Debian {
    /// `None`, said: not asked for, or this machine cannot make one.
    fn make(dir: &Path) -> Option<Debian> {
        if std::env::var_os("CAIRN_TEST_DEBIAN").is_none() {
            println!("skipped: a whole Debian is made by `make soak` (CAIRN_TEST_DEBIAN=1)");
            return None;
        }
        if !can(&["debootstrap", "dpkg-deb", "unshare"]) {
            return None;
        }
        let root = dir.join("debian");
        done("debootstrap", Command::new("debootstrap").args(["--variant=minbase", "bookworm"]).arg(&root));
        Some(Debian(root))
    }
    fn path(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }
    /// Runs inside, as this user, with a /proc that is gone with the process.
    fn command(&self, user: &str, args: &[&str]) -> Command {
        let mut command = Command::new("unshare");
        let inside = r#"mount -t proc proc "$1/proc" && exec chroot --userspec="$2:$2" "$1" "${@:3}""#;
        command.args(["--mount", "bash", "-c", inside, "inside"]).arg(&self.0).arg(user).args(args);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command
    }
    fn run(&self, args: &[&str]) -> Output {
        done(args[0], &mut self.command("root", args))
    }
}

/// On a fresh machine the package would want what is not there, its server not start as the user that it makes, or root
/// be told that all is well with a disk that this user may not write to.
#[test]
fn a_fresh_debian_takes_the_package() {
    let dir = temporary();
    let Some(debian) = Debian::make(dir.path()) else { return };
    let package = build(dir.path(), "deb");
    fs::copy(&package, debian.path("/root/cairn.deb")).expect("copied");
    debian.run(&["dpkg", "--install", "/root/cairn.deb"]);
    assert_installed(&debian.0);
    let ports = free_ports(2);
    let address = format!("127.0.0.1:{}", ports[0]);
    let config = fs::read_to_string(debian.path("/etc/cairn/node.toml")).expect("the configuration");
    let config =
        config.replace("127.0.0.1:7400", &address).replace("127.0.0.1:7480", &format!("127.0.0.1:{}", ports[1]));
    fs::write(debian.path("/etc/cairn/node.toml"), &config).expect("written");
    // A disk that somebody made as root.
    debian.run(&["install", "-d", "-m", "0700", "/srv/disk"]);
    fs::write(debian.path("/etc/cairn/other.toml"), config.replace("/var/lib/cairn/disk1", "/srv/disk"))
        .expect("written");
    let look = |config: &str| {
        let args = ["cairn", "doctor", "--json", "--timeout", "1", "--config", config];
        text(&debian.command("root", &args).output().expect("doctor runs").stdout).to_owned()
    };
    let (found, wrong) = (look("/etc/cairn/node.toml"), look("/etc/cairn/other.toml"));
    assert!(found.contains("as whom cairn@.service runs it") && !found.contains("no file can be made"), "{found}");
    assert!(wrong.contains("no file can be made in /srv/disk"), "{wrong}");
    let mut server = debian.command("cairn", &["cairn", "server", "--config", "/etc/cairn/node.toml"]);
    let mut server = server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("unshare");
    let cairn = |args: &[&str]| {
        let args = [&["cairn", "--cluster", &address, "--timeout", PATIENT], args].concat();
        debian.command("root", &args).output().expect("unshare")
    };
    let made = || cairn(&["admin", "volume", "create", "default", "--layout", "r1"]);
    until_told("a volume", || matches!(made().status.code(), Some(0 | 4)), || format!("{:?}", made()));
    let put = || cairn(&["fs", "put", "/etc/debian_version", "/kept"]);
    until_told("a file", || matches!(put().status.code(), Some(0 | 4)), || format!("{:?}", put()));
    let version = fs::read_to_string(debian.path("/etc/debian_version")).expect("a Debian");
    assert_eq!(text(&cairn(&["fs", "cat", "/kept"]).stdout), version);
    let pid = rustix::process::Pid::from_child(&server);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("the server runs");
    assert!(server.wait().expect("it ends").success(), "a server that is asked to end has not failed");
    debian.run(&["dpkg", "--purge", "cairn"]);
    assert!(!debian.path("/usr/bin/cairn").exists() && !debian.path("/etc/cairn/node.toml").exists());
    for kept in ["/var/lib/cairn/node", "/var/lib/cairn/disk1"] {
        assert!(fs::read_dir(debian.path(kept)).is_ok_and(|mut files| files.next().is_some()), "{kept} is gone");
    }
}
