//! Operations on names and small files by several processes, as `mdtest` does them: one directory a process, each phase
//! started together, rates over the slowest process. DIR may be several directories separated by commas (several
//! mounts): each gets PROCESSES of its own, all of them start together. Compiled by run.sh with `rustc -O`; no crates.
//!
//!     mdops DIR PROCESSES FILES [SIZE…]
//!
//! Between phases that read, run.sh drops the kernel's caches if DROP_CACHES is a command. With SHARED set, all
//! processes work in one directory, on names of their own. PHASES names some of the phases, separated by commas, to do
//! no others.
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

const PHASES: &[&str] =
    &["create", "stat", "readdir+stat", "remove", "mkdir", "rmdir", "tree create", "tree remove"];
/// Subdirectories of each directory of a tree, and its depth.
const BRANCHES: usize = 4;
const DEPTH: usize = 4;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if args.get(1).map(String::as_str) == Some("worker") {
        return worker(&args[2..]);
    }
    if args.len() < 4 {
        eprintln!("mdops DIR PROCESSES FILES [SIZE…]");
        std::process::exit(2);
    }
    let (roots, processes, files) = (args[1].split(',').map(PathBuf::from), number(&args[2]), number(&args[3]));
    let roots: Vec<PathBuf> = roots.collect();
    let shared = std::env::var_os("SHARED").is_some();
    let dir = |process| if shared { "shared".to_owned() } else { format!("p{process}") };
    let dirs: Vec<PathBuf> =
        (0..processes).flat_map(|process| roots.iter().map(move |root| root.join(dir(process)))).collect();
    let chosen = std::env::var("PHASES").ok();
    for dir in &dirs {
        fs::create_dir_all(dir).expect("directory");
    }
    for phase in PHASES {
        if chosen.as_ref().is_none_or(|chosen| chosen.split(',').any(|each| each == *phase)) {
            run(&dirs, files, phase, 0);
        }
    }
    for size in args[4..].iter().map(|size| number(size)) {
        let some = (files / 4).max(1);
        run(&dirs, some, "write", size);
        run(&dirs, some, "read", size);
        run(&dirs, some, "remove", size);
    }
    for root in roots {
        fs::remove_dir_all(&root).expect("remove");
    }
}

fn number(text: &str) -> usize {
    text.parse().expect("a number")
}

/// One phase: every process says that it is ready, then all are told to go.
fn run(dirs: &[PathBuf], files: usize, phase: &str, size: usize) {
    if let (Ok(command), true) = (std::env::var("DROP_CACHES"), matches!(phase, "stat" | "readdir+stat" | "read")) {
        let _may_lack_rights = Command::new("sh").args(["-c", &command]).status();
    }
    let own = std::env::current_exe().expect("this program");
    let start = |(worker, dir): (usize, &PathBuf)| -> Child {
        let numbers = [files.to_string(), size.to_string(), worker.to_string()];
        let mut command = Command::new(&own);
        command.arg("worker").arg(dir).arg(phase).args(numbers).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.spawn().expect("a process")
    };
    let mut workers: Vec<Child> = dirs.iter().enumerate().map(start).collect();
    for worker in &mut workers {
        let mut ready = [0; 1];
        worker.stdout.as_mut().expect("out").read_exact(&mut ready).expect("ready");
    }
    let begun = Instant::now();
    for worker in &mut workers {
        drop(worker.stdin.take());
    }
    for mut worker in workers {
        assert!(worker.wait().expect("wait").success(), "{phase} failed");
    }
    let seconds = begun.elapsed().as_secs_f64();
    let what = if size > 0 { format!("{phase} {size} B") } else { phase.to_owned() };
    let each = if phase.starts_with("tree") { nodes(DEPTH) } else { files };
    println!("{what}\t{}\t{:.0}", dirs.len(), (each * dirs.len()) as f64 / seconds);
}

fn worker(args: &[String]) {
    let (dir, phase, files, size) = (Path::new(&args[0]), args[1].as_str(), number(&args[2]), number(&args[3]));
    let name = format!("file.mdtest.{}", args[4]);
    let data = vec![b'x'; size];
    print!("r");
    std::io::stdout().flush().expect("out");
    let mut gate = Vec::new();
    std::io::stdin().read_to_end(&mut gate).expect("gate");
    if phase == "readdir+stat" {
        for entry in fs::read_dir(dir).expect("list") {
            entry.expect("entry").metadata().expect("stat");
        }
        return;
    }
    let tree = dir.join("tree");
    match phase {
        "tree create" => return grow(&tree, DEPTH),
        "tree remove" => return fell(&tree, DEPTH),
        _ => {}
    }
    let mut back = Vec::new();
    for i in 0..files {
        let path = dir.join(format!("{name}.{i:08}"));
        match phase {
            "create" => drop(File::create(&path).expect("create")),
            "stat" => drop(fs::metadata(&path).expect("stat")),
            "remove" => fs::remove_file(&path).expect("remove"),
            "mkdir" => fs::create_dir(&path).expect("mkdir"),
            "rmdir" => fs::remove_dir(&path).expect("rmdir"),
            "write" => fs::write(&path, &data).expect("write"),
            "read" => {
                back.clear();
                File::open(&path).and_then(|mut file| file.read_to_end(&mut back)).expect("read");
                assert!(back.len() == size, "short");
            }
            phase => panic!("no phase {phase}"),
        }
    }
}

/// Directories of a tree.
fn nodes(depth: usize) -> usize {
    1 + if depth == 0 { 0 } else { BRANCHES * nodes(depth - 1) }
}

fn grow(dir: &Path, depth: usize) {
    fs::create_dir(dir).expect("mkdir");
    (0..if depth == 0 { 0 } else { BRANCHES }).for_each(|i| grow(&dir.join(i.to_string()), depth - 1));
}

fn fell(dir: &Path, depth: usize) {
    (0..if depth == 0 { 0 } else { BRANCHES }).for_each(|i| fell(&dir.join(i.to_string()), depth - 1));
    fs::remove_dir(dir).expect("rmdir");
}
