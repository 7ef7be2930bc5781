//! SQLite with a rollback journal and with a write-ahead log, while its process, or that of the mount, is killed: the
//! database is whole, and every transaction whose commit was acknowledged is in it.
use super::super::seeds::Rng;
use super::{Mount, Place};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Kills of each kind and journal.
const KILLS: u64 = 6;

/// Commits transactions and says the number of each that is committed. Each changes a row and adds one.
const WRITER: &str = r#"
import sqlite3, sys
path, mode = sys.argv[1], sys.argv[2]
db = sqlite3.connect(path, timeout=90, isolation_level=None)
found = db.execute("pragma journal_mode=" + mode).fetchone()[0]
assert found == mode, found
db.execute("pragma synchronous=full")
db.execute("create table if not exists rows (n integer primary key, data blob)")
db.execute("create table if not exists last (one integer primary key, n integer)")
db.execute("insert or ignore into last values (1, 0)")
n = db.execute("select n from last").fetchone()[0]
print("at", n, flush=True)
while True:
    n += 1
    db.execute("begin immediate")
    db.execute("insert into rows values (?, randomblob(?))", (n, 100 + n * 7919 % 9000))
    db.execute("update last set n = ?", (n,))
    if n % 5 == 0:
        db.execute("delete from rows where n = ?", (n - 3,))
    db.execute("commit")
    print("done", n, flush=True)
"#;

/// Checks the database and says which transaction is the last.
const CHECK: &str = r#"
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=90)
found = db.execute("pragma integrity_check").fetchall()
assert found == [("ok",)], found
n = db.execute("select n from last").fetchone()[0]
rows = [row[0] for row in db.execute("select n from rows order by n")]
wanted = [i for i in range(1, n + 1) if not ((i + 3) % 5 == 0 and i + 3 <= n)]
assert rows == wanted, (n, len(rows), len(wanted))
print(n)
"#;

struct Writer {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Writer {
    fn start(path: &str, mode: &str) -> Writer {
        let mut command = Command::new("python3");
        command.args(["-c", WRITER, path, mode]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("python3");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        Writer { child, lines }
    }
    /// The next transaction that it says is committed; `None` when it ended.
    fn next(&mut self) -> Option<u64> {
        let line = self.lines.next()?.expect("a line");
        line.split(' ').nth(1)?.parse().ok()
    }
}

fn check(path: &str) -> u64 {
    let output = Command::new("python3").args(["-c", CHECK, path]).output().expect("python3");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{path}: {error}");
    String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number")
}

pub fn run(place: &mut Place) {
    let mut rng = Rng::new(1);
    for mode in ["delete", "truncate", "persist", "wal"] {
        // One of its own: a mount whose worker dies five times within seconds fails what is asked of it for a while.
        let mount = Mount::new(&place.cluster, &format!("sqlite-{mode}"), "/", "");
        let path = mount.path(&format!("{mode}.db")).to_str().expect("a temporary path").to_owned();
        let (mut acknowledged, mut refused) = (0, 0);
        for round in 0..KILLS {
            let mut writer = Writer::start(&path, mode);
            let pause = Duration::from_millis(50 + rng.below(700));
            let started = Instant::now();
            let first = writer.next();
            assert!(first >= Some(acknowledged), "{mode}: it begins at {first:?} after {acknowledged}");
            while started.elapsed() < pause {
                acknowledged =
                    writer.next().unwrap_or_else(|| panic!("{mode}: the writer ended: {}", said(&mut writer)));
            }
            if round % 3 == 2 {
                // The mount's process: the program goes on, or is told an error, never something wrong.
                mount.kill_worker();
                let until = Instant::now() + Duration::from_secs(1);
                while Instant::now() < until {
                    match writer.next() {
                        Some(number) => acknowledged = number,
                        None => break,
                    }
                }
                refused += u64::from(writer.child.try_wait().expect("wait").is_some());
            }
            writer.child.kill().expect("kill");
            while let Some(number) = writer.next() {
                acknowledged = number;
            }
            writer.child.wait().expect("wait");
            let last = check(&path);
            assert!(last >= acknowledged, "{mode}: {acknowledged} was acknowledged, and {last} is the last one there");
        }
        println!("  {mode}: {acknowledged} transactions, {KILLS} kills, {refused} told of a loss");
        assert!(acknowledged > 10, "{mode}: too few transactions to say anything");
    }
}

fn said(writer: &mut Writer) -> String {
    let mut text = String::new();
    if let Some(mut error) = writer.child.stderr.take() {
        let _what_there_is = std::io::Read::read_to_string(&mut error, &mut text);
    }
    text
}
