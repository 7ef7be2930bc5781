//! libcairn against clusters of real processes: C programs are compiled, linked with it, and run.
use crate::support::{Cluster, Shape, text};
use crate::wait::LIMIT;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

pub const SMALL: Shape = Shape { managers: 1, metas: 1, datas: 3, racks: 3 };

/// The project's directory.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the project")
}

/// Where cargo put the shared library that this test program was built with.
pub fn library() -> PathBuf {
    let own = std::env::current_exe().expect("a path");
    let library = own.parent().expect("a directory").join("libcairn.so");
    assert!(library.exists(), "{} is built before this test", library.display());
    library
}

/// Runs a program that ends by itself; one that hangs is killed.
pub fn run(command: &mut Command) -> Output {
    run_within(command, LIMIT)
}

/// The same of one that may take longer than others.
pub fn run_within(command: &mut Command, limit: Duration) -> Output {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let pid = rustix::process::Pid::from_raw(child.id() as i32).expect("a process");
    let (ended, end) = std::sync::mpsc::channel::<()>();
    let watch = std::thread::spawn(move || {
        if end.recv_timeout(limit).is_err_and(|error| error == std::sync::mpsc::RecvTimeoutError::Timeout) {
            let _it_may_end_now = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    });
    let output = child.wait_with_output().expect("it ends");
    drop(ended);
    watch.join().expect("the watch ends");
    output
}

/// The same of one that has to succeed; what it printed.
pub fn succeeds(command: &mut Command) -> String {
    let output = run(command);
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}\n{error}", output.status);
    out
}

/// Compiles a C program of the project and links it with the shared library.
fn compile(source: &str, flags: &[&str], dir: &Path) -> PathBuf {
    let library = library();
    let binary = dir.join(Path::new(source).file_stem().expect("a name"));
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu99", "-O1", "-g"]).args(flags).arg("-o").arg(&binary);
    compiler.arg("-I").arg(root().join("crates/libcairn/include")).arg(root().join(source));
    compiler.arg("-L").arg(library.parent().expect("a directory")).args(["-lcairn", "-lpthread"]);
    let built = run(&mut compiler);
    assert!(built.status.success(), "{}", text(&built.stderr));
    binary
}

/// Runs a C program of the project on a cluster; what it printed. `leaks`: with the address sanitizer, what was not
/// freed is told.
fn c_program(source: &str, flags: &[&str], leaks: bool, cluster: &Cluster) -> String {
    let binary = compile(source, flags, cluster.dir.path());
    let library = library();
    let mut command = Command::new(binary);
    command.arg(&cluster.address).env("LD_LIBRARY_PATH", library.parent().expect("a directory"));
    command.env("ASAN_OPTIONS", if leaks { "detect_leaks=1" } else { "detect_leaks=0" });
    succeeds(&mut command)
}

const WARNINGS: &[&str] = &["-Wall", "-Wextra", "-Werror"];
/// Wrong reads, writes and frees end the program.
const SANITIZED: &[&str] = &["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"];

/// A C program would write where nothing is its own, or get what is never freed.
#[test]
fn c_programs_are_clean_under_the_address_sanitizer() {
    let probe = "int main(void) { return 0; }";
    let cluster = Cluster::start(SMALL);
    fs::write(cluster.path("probe.c"), probe).expect("program");
    let mut compiler = Command::new("cc");
    compiler.args(SANITIZED).arg("-o").arg(cluster.path("probe")).arg(cluster.path("probe.c"));
    if !run(&mut compiler).status.success() {
        return println!("skipped: the C compiler has no address sanitizer");
    }
    let said = c_program("crates/libcairn/examples/tour.c", SANITIZED, true, &cluster);
    assert!(said.ends_with("done\n"), "{said}");
    // Children by fork leave what their parent had.
    let said = c_program("crates/libcairn/tests/programs/hard.c", SANITIZED, false, &cluster);
    assert!(said.ends_with("done\n"), "{said}");
}

/// A C program would not get back what it wrote, lose lines of two threads, or be left without a word about what is
/// wrong; one that forks would hang, or write with its parent's session.
#[test]
fn c_programs_work_on_a_cluster() {
    let cluster = Cluster::start(SMALL);
    let said = c_program("crates/libcairn/examples/tour.c", WARNINGS, false, &cluster);
    assert!(said.ends_with("done\n") && said.contains("/tour/big: ") && said.contains("; "), "{said}");
    // The command line sees what the program wrote, and the other way round.
    assert_eq!(cluster.ok(&["fs", "cat", "/tour/log"]).lines().count(), 100);
    let said = c_program("crates/libcairn/tests/programs/hard.c", WARNINGS, false, &cluster);
    assert!(said.ends_with("done\n"), "{said}");
    assert_eq!(cluster.ok(&["fs", "cat", "/hard/open"]), "through");
    // Sessions of all of them, and of forked children, were ended.
    let fsck = cluster.ok(&["admin", "fsck"]);
    assert!(!fsck.contains("wrong"), "{fsck}");
}

/// The blocks of a page in one language, in order.
pub fn blocks(page: &str, language: &str) -> Vec<String> {
    let begin = format!("```{language}\n");
    let parts = page.split(&begin).skip(1);
    parts.map(|part| part.split_once("```").expect("an end of the block").0.to_owned()).collect()
}

/// What `make sdk` makes, of the library under test.
fn sdk(dir: &Path) -> PathBuf {
    let sdk = dir.join("sdk");
    for part in ["lib", "include"] {
        fs::create_dir_all(sdk.join(part)).expect("directory");
    }
    std::os::unix::fs::symlink(library(), sdk.join("lib/libcairn.so")).expect("link");
    fs::copy(root().join("crates/libcairn/include/cairn.h"), sdk.join("include/cairn.h")).expect("copied");
    sdk
}

/// Shell commands of a guide, without those that build the sdk and name the cluster.
fn commands(page: &str) -> String {
    let known = ["make sdk", "export SDK=\"$PWD/target/sdk\"", "export CAIRN_CLUSTER=127.0.0.1:7400"];
    let all = blocks(page, "sh").concat();
    for line in known {
        assert!(all.lines().any(|other| other == line), "{line:?} is no longer on the page");
    }
    all.lines().filter(|line| !known.contains(line)).map(|line| format!("{line}\n")).collect()
}

pub fn bash(script: &str, cluster: &Cluster, sdk: &Path) -> Output {
    let bin = Path::new(crate::support::binary()).parent().expect("a directory").display().to_string();
    let path = format!("{bin}:{}", std::env::var("PATH").unwrap_or_default());
    let mut bash = Command::new("bash");
    bash.args(["-euc", script]).current_dir(cluster.dir.path()).env("PATH", path).env("SDK", sdk);
    run(bash.env("CAIRN_CLUSTER", &cluster.address).env("PYTHONDONTWRITEBYTECODE", "1"))
}

/// A reader who copies the program and the commands of the guide for C gets something that does not compile or work.
#[test]
fn the_guide_for_c_works_as_it_is_written() {
    let page = fs::read_to_string(root().join("docs/guides/c.md")).expect("page");
    let cluster = Cluster::start(SMALL);
    let programs = blocks(&page, "c");
    assert_eq!(programs.len(), 1, "the guide has one program");
    fs::write(cluster.path("hello.c"), &programs[0]).expect("program");
    let output = bash(&commands(&page), &cluster, &sdk(cluster.dir.path()));
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{out}\n{error}");
    assert_eq!(out, "hello, world\nworld has 13 bytes\nhello, world\n", "{error}");
}

/// The same for Python.
#[test]
fn the_guide_for_python_works_as_it_is_written() {
    if crate::python::python().is_none() {
        return;
    }
    let page = fs::read_to_string(root().join("docs/guides/python.md")).expect("page");
    let cluster = Cluster::start(SMALL);
    let dir = cluster.dir.path();
    // The wheel needs no registry, fsspec does.
    let commands = commands(&page);
    let (commands, more) =
        commands.split_once("pip install fsspec\n").expect("fsspec is installed last, but for what is larger");
    assert_eq!(more, "pip install pandas pyarrow \"dask[dataframe]\" torch\n");
    let sdk = sdk(dir);
    let _wheel: PathBuf = crate::python::wheel(&sdk);
    if run(Command::new("python3").args(["-m", "venv", "--help"])).status.success() {
        let output = bash(&commands.replace("pip install", "pip install --no-index --quiet"), &cluster, &sdk);
        assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
    } else {
        return println!("skipped: python3 makes no virtual environments");
    }
    let has_fsspec = bash(". venv/bin/activate && pip install --quiet fsspec", &cluster, &sdk).status.success();
    // `make test-apps` runs those that need more.
    let programs: Vec<String> =
        blocks(&page, "python").into_iter().filter(|program| !crate::python::is_heavy(program)).collect();
    assert_eq!(programs.len(), 5, "the guide's programs");
    for (number, program) in programs.iter().enumerate() {
        if program.contains("import fsspec") && !has_fsspec {
            println!("skipped: fsspec cannot be installed");
            continue;
        }
        let file = format!("guide{number}.py");
        fs::write(cluster.path(&file), program).expect("program");
        let output = bash(&format!(". venv/bin/activate && python {file}"), &cluster, &sdk);
        let (out, error) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success() && error.is_empty(), "{program}\n{out}\n{error}");
        if number == 0 {
            assert!(out.contains("first.txt 27") && out.contains("/notes/second.txt"), "{out}");
        }
    }
}
