//! A SQLite database that is rewritten in place through a mount while snapshots are taken: each one has all commits
//! that were acknowledged when it was asked for, none that was begun after it was answered, and is whole. `make soak`
//! takes more of them (CAIRN_SQLITE_SNAPSHOTS=n).
//!
//! That blocks are overwritten where they are before the first snapshot of each round is asserted by the counters of
//! the data nodes; that the database is rewritten between two snapshots, by its commits.
use crate::mount::{Mount, SMALL, skipped};
use crate::support::{Cluster, lines, text};
use crate::wait::until;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Snapshots of a round; between two rounds all are deleted, so that files are overwritten in place again.
const OF_A_ROUND: usize = 4;
/// Commits between two snapshots, at least.
const BETWEEN: u64 = 5;
/// Blocks that are overwritten in place in each round before its first snapshot, at least.
const IN_PLACE: f64 = 20.0;

/// Rewrites rows, a transaction after the other; its second argument is a local file with the numbers of the last that
/// was begun, and of the last whose commit was acknowledged.
const WRITER: &str = r#"
import hashlib, mmap, sqlite3, struct, sys
path, counts, rows = sys.argv[1], sys.argv[2], 120
with open(counts, "r+b") as file:
    shown = mmap.mmap(file.fileno(), 16)
db = sqlite3.connect(path, timeout=90, isolation_level=None)
found = db.execute("pragma journal_mode=persist").fetchone()[0]
assert found == "persist", found
db.execute("pragma synchronous=full")
db.execute("create table if not exists last (one integer primary key, n integer)")
db.execute("create table if not exists rows (k integer primary key, n integer, data blob)")
value = lambda k, n: hashlib.sha256(b"%d-%d" % (k, n)).digest() * 60
db.execute("begin immediate")
db.execute("insert or ignore into last values (1, 0)")
for k in range(rows):
    db.execute("insert or ignore into rows values (?, 0, ?)", (k, value(k, 0)))
db.execute("commit")
n = db.execute("select n from last").fetchone()[0]
while True:
    n += 1
    shown[0:8] = struct.pack("<Q", n)
    db.execute("begin immediate")
    for i in range(4):
        k = (n * 4 + i) * 37 % rows
        db.execute("update rows set n = ?, data = ? where k = ?", (n, value(k, n), k))
    db.execute("update last set n = ?", (n,))
    db.execute("commit")
    shown[8:16] = struct.pack("<Q", n)
"#;

/// Checks a copy of the database, and says which transaction is its last.
const CHECK: &str = r#"
import hashlib, sqlite3, sys
rows = 120
db = sqlite3.connect(sys.argv[1], timeout=90)
found = db.execute("pragma integrity_check").fetchall()
assert found == [("ok",)], found
last = db.execute("select n from last").fetchone()[0]
wanted = {k: 0 for k in range(rows)}
for n in range(1, last + 1):
    for i in range(4):
        wanted[(n * 4 + i) * 37 % rows] = n
seen = 0
for k, n, data in db.execute("select k, n, data from rows"):
    assert wanted[k] == n, (last, k, n, wanted[k])
    assert data == hashlib.sha256(b"%d-%d" % (k, n)).digest() * 60, (last, k, n)
    seen += 1
assert seen == rows, seen
print(last)
"#;

fn python(script: &str) -> Command {
    let mut command = Command::new("python3");
    command.args(["-c", script]).stdin(Stdio::null());
    command
}

struct Writer {
    child: Child,
    counts: PathBuf,
}

impl Writer {
    fn start(database: &Path, counts: &Path) -> Writer {
        fs::write(counts, [0; 16]).expect("a local file");
        let mut command = python(WRITER);
        let child = command.arg(database).arg(counts).stderr(Stdio::piped()).spawn().expect("python3");
        Writer { child, counts: counts.to_owned() }
    }
    /// The last transaction that was begun, and the last whose commit was acknowledged, as they are now.
    fn counts(&mut self) -> (u64, u64) {
        if self.child.try_wait().expect("wait").is_some() {
            let mut error = String::new();
            if let Some(mut stderr) = self.child.stderr.take() {
                let _what_there_is = std::io::Read::read_to_string(&mut stderr, &mut error);
            }
            panic!("the writer ended: {error}");
        }
        let bytes = fs::read(&self.counts).expect("a local file");
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        (number(0), number(8))
    }
    fn wait_commits(&mut self, more: u64) {
        let from = self.counts().1;
        until("commits", || self.counts().1 >= from + more);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _ended = self.child.wait();
    }
}

struct Taken {
    name: String,
    acknowledged: u64,
    begun: u64,
    bytes: Vec<u8>,
}

/// Database and journal, as a snapshot has them.
fn read(mount: &Mount, name: &str) -> [Vec<u8>; 2] {
    ["x.db", "x.db-journal"].map(|file| fs::read(mount.path(&format!("d/.snapshots/{name}/{file}"))).expect("read"))
}

/// The last transaction in a snapshot, of which nothing may be written: so in a copy, with the journal that may have to
/// be rolled back.
fn last_in(cluster: &Cluster, name: &str, [database, journal]: &[Vec<u8>; 2]) -> u64 {
    let dir = cluster.path(&format!("copy-of-{name}"));
    fs::create_dir_all(&dir).expect("directory");
    fs::write(dir.join("x.db"), database).expect("copy");
    fs::write(dir.join("x.db-journal"), journal).expect("copy");
    let output = python(CHECK).arg(dir.join("x.db")).output().expect("python3");
    assert!(output.status.success(), "the database of the snapshot {name} is not whole: {}", text(&output.stderr));
    fs::remove_dir_all(&dir).expect("removed");
    text(&output.stdout).trim().parse().expect("a number")
}

fn overwritten(cluster: &Cluster) -> f64 {
    let of = |name: &String| cluster.metric(name, "cairn_data_overwritten_blocks").unwrap_or(0.0);
    cluster.names().iter().filter(|name| name.starts_with("data")).map(of).sum()
}

fn round(cluster: &Cluster, mount: &Mount, number: usize, count: usize) -> u64 {
    let mut writer = Writer::start(&mount.path("d/x.db"), &cluster.path("counts"));
    let before = overwritten(cluster);
    until("blocks overwritten in place", || {
        writer.counts();
        overwritten(cluster) >= before + IN_PLACE
    });
    let mut taken: Vec<Taken> = Vec::new();
    for i in 0..count {
        if i > 0 {
            writer.wait_commits(BETWEEN);
        }
        let (name, acknowledged) = (format!("s{number}-{i}"), writer.counts().1);
        cluster.ok(&["fs", "snapshot", "create", &name]);
        taken.push(Taken { name, acknowledged, begun: writer.counts().0, bytes: Vec::new() });
    }
    writer.wait_commits(BETWEEN);
    for one in &mut taken {
        let files = read(mount, &one.name);
        let last = last_in(cluster, &one.name, &files);
        let wanted = one.acknowledged..=one.begun;
        assert!(wanted.contains(&last), "the snapshot {} ends with {last}, not {wanted:?}", one.name);
        one.bytes = files.concat();
    }
    assert!(taken.windows(2).all(|two| two[0].bytes != two[1].bytes), "nothing was rewritten between two snapshots");
    writer.wait_commits(BETWEEN);
    let commits = writer.counts().1;
    drop(writer);
    for one in &taken {
        assert!(read(mount, &one.name).concat() == one.bytes, "the snapshot {} changed", one.name);
        cluster.ok(&["fs", "snapshot", "delete", &one.name]);
    }
    until("the snapshots are gone", || lines(cluster, &["fs", "snapshot", "ls"]).is_empty());
    commits
}

/// A snapshot of a database would lack what was acknowledged, have what came later, or be torn by blocks that are
/// overwritten where they are.
#[test]
fn a_database_that_is_rewritten_in_place_is_whole_in_each_snapshot() {
    if skipped() {
        return;
    }
    if !python("import sqlite3").output().is_ok_and(|output| output.status.success()) {
        return eprintln!("skipped: no python3 with sqlite3");
    }
    let wanted = std::env::var("CAIRN_SQLITE_SNAPSHOTS").map_or(2 * OF_A_ROUND, |n| n.parse().expect("a number"));
    let of_a_round = if wanted > 10 * OF_A_ROUND { 10 } else { OF_A_ROUND };
    let cluster = Cluster::start(SMALL);
    let mount = Mount::new(&cluster, "mnt", "/", "");
    fs::create_dir(mount.path("d")).expect("mkdir");
    let (mut left, mut number, mut commits) = (wanted, 0, 0);
    while left > 0 {
        let count = left.min(of_a_round);
        commits = round(&cluster, &mount, number, count);
        (left, number) = (left - count, number + 1);
    }
    cluster.ok(&["admin", "fsck", "default"]);
    println!(
        "sqlite: {wanted} snapshots in {number} rounds, {commits} commits, {} blocks in place",
        overwritten(&cluster)
    );
}
