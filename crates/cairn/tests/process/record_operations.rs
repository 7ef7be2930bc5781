//! What happens to a file to which records are appended: the table in docs/guides/semantics.md.
use crate::records::{read_all, record_of, volume};
use crate::support::{Cluster, Shape};
use cairn_client::Volume;
use cairn_client::changes::NewFile;
use cairn_client::record::{RecordAppender, RecordLevel, RecordOptions};
use std::ops::Range;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

const SHAPE: Shape = Shape { managers: 1, metas: 1, datas: 5, racks: 5 };
const WRITER: u64 = 3;

/// A cluster with a file, and a writer of durable records.
struct Side {
    cluster: Cluster,
    runtime: Runtime,
    volume: Volume,
    appender: RecordAppender,
}

impl Side {
    fn start(path: &str) -> Side {
        let cluster = Cluster::start(SHAPE);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
        let volume = runtime.block_on(volume(&cluster));
        cluster.ok(&["fs", "mkdir", "/d"]);
        let new = NewFile { mode: 0o100_644, ..NewFile::default() };
        runtime.block_on(volume.create(path.as_bytes(), new)).expect("a file");
        let options = RecordOptions { level: RecordLevel::Durable, ..RecordOptions::default() };
        let appender = runtime.block_on(volume.record_appender(path.as_bytes(), options)).expect("an appender");
        Side { cluster, runtime, volume, appender }
    }

    /// Appends these, until they are durable.
    fn append(&self, numbers: Range<u64>) {
        self.runtime.block_on(async {
            for number in numbers {
                let ticket = self.appender.append(&record_of(WRITER, number)).await.expect("taken");
                ticket.done().await.expect("durable");
            }
        });
    }

    fn flush(&self) {
        self.runtime.block_on(self.appender.flush()).expect("visible");
    }

    /// A file has these records, each once, and nothing else.
    fn has(&self, path: &str, numbers: Range<u64>) {
        let found = self.runtime.block_on(read_all(&self.volume, path));
        let found: Vec<(u64, u32)> = found.into_iter().map(|((_, number), times)| (number, times)).collect();
        let wanted: Vec<(u64, u32)> = numbers.map(|number| (number, 1)).collect();
        assert_eq!(found, wanted, "{path}");
    }

    /// Size, and how often the contents changed.
    fn state(&self, path: &str) -> (u64, u64) {
        let found = self.runtime.block_on(self.volume.stat(path.as_bytes(), true)).expect("there");
        (found.size, found.data_version)
    }

    fn empty(&self, path: &str) {
        self.cluster.ok(&["fs", "truncate", "-s", "0", path]);
    }
}

/// What was acknowledged would be lost with what is cut off, or what was cut off come back.
#[test]
fn what_is_not_visible_yet_is_not_cut_off() {
    let side = Side::start("/d/f");
    side.append(0..20);
    side.flush();
    let before = side.state("/d/f");
    side.empty("/d/f");
    let cut = side.state("/d/f");
    assert!(before.0 > 0 && cut.0 == 0);
    side.append(20..40);
    side.flush();
    side.has("/d/f", 20..40);
    // Now with records that are durable and not visible: of these a second passes until they are.
    let (mut first, mut cut_below_them) = (40, 0);
    while cut_below_them < 3 && first < 400 {
        let visible = side.state("/d/f");
        side.append(first..first + 5);
        side.empty("/d/f");
        let after = side.state("/d/f");
        side.flush();
        if after.1 - visible.1 == cut.1 - before.1 {
            // Nothing happened to the file in between but that.
            cut_below_them += 1;
            side.has("/d/f", first..first + 5);
        }
        first += 5;
    }
    assert_eq!(cut_below_them, 3, "records became visible at once each time");
    side.cluster.ok(&["admin", "fsck"]);
}

/// A writer would lose its file, or write on for ever to one that nobody will ever see.
#[test]
fn writers_follow_a_name_and_end_with_the_file() {
    let side = Side::start("/d/f");
    side.append(0..10);
    side.cluster.ok(&["fs", "mv", "/d/f", "/d/g"]);
    side.append(10..20);
    side.flush();
    side.has("/d/g", 0..20);
    side.cluster.ok(&["fs", "rm", "/d/g"]);
    side.append(20..30);
    side.flush();
    side.cluster.ok(&["fs", "trash", "restore", "/d/g"]);
    side.append(30..40);
    side.flush();
    side.has("/d/g", 0..40);
    side.cluster.ok(&["fs", "rm", "--skip-trash", "/d/g"]);
    let begun = Instant::now();
    let refused = side.runtime.block_on(async {
        for number in 40.. {
            let appended = match side.appender.append(&record_of(WRITER, number)).await {
                Ok(ticket) => ticket.done().await,
                Err(error) => Err(error),
            };
            if let Err(error) = appended {
                return error.to_string();
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "{number} records were appended to a file that is gone");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        String::new()
    });
    assert!(refused.contains("/d/f"), "it says of which file: {refused}");
    side.cluster.ok(&["admin", "fsck"]);
}

/// Snapshots and clones would change with the file, or a conversion lose what is appended meanwhile.
#[test]
fn copies_stay_and_conversions_keep_what_is_appended() {
    let side = Side::start("/d/f");
    side.append(0..30);
    side.flush();
    side.cluster.ok(&["fs", "snapshot", "create", "s1"]);
    side.cluster.ok(&["fs", "cp", "/d/f", "/d/copy"]);
    side.append(30..60);
    side.flush();
    let check_copies = || {
        side.has("/.snapshots/s1/d/f", 0..30);
        side.has("/d/copy", 0..30);
    };
    check_copies();
    side.has("/d/f", 0..60);
    for (i, layout) in (1..).zip(["rs-3-2/4k", "r2", "rs-3-2/4k"]) {
        // Some of it is on its way.
        side.append(30 + i * 30..60 + i * 30);
        side.cluster.ok(&["fs", "layout", "convert", layout, "/d/f"]);
        side.flush();
        side.has("/d/f", 0..60 + i * 30);
        let told = side.cluster.ok(&["fs", "layout", "get", "/d/f"]);
        assert!(told.starts_with(layout), "{told}");
    }
    check_copies();
    side.cluster.ok(&["fs", "snapshot", "delete", "s1"]);
    side.has("/d/copy", 0..30);
    side.append(150..160);
    side.flush();
    side.has("/d/f", 0..160);
    side.cluster.ok(&["admin", "fsck"]);
}

/// A quota would not hold, or what was acknowledged under it be lost.
#[test]
fn a_quota_ends_writers_and_keeps_what_they_were_told() {
    let side = Side::start("/d/f");
    side.cluster.ok(&["fs", "quota", "set", "--bytes", "66m", "/d"]);
    let long = |number: u64| {
        let mut bytes = vec![number as u8; 1_000_000];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        bytes
    };
    // All of them at once: the last ones may be on their way when the chunk is full.
    let (acknowledged, refused) = side.runtime.block_on(async {
        let (mut tickets, mut told, mut refused) = (Vec::new(), Vec::new(), String::new());
        for number in 0..80 {
            match side.appender.append(&long(number)).await {
                Ok(ticket) => tickets.push((number, ticket)),
                Err(error) => refused = error.to_string(),
            }
        }
        for (number, ticket) in tickets {
            match ticket.done().await {
                Ok(()) => told.push(number),
                Err(error) => refused = error.to_string(),
            }
        }
        (told, refused)
    });
    assert!(refused.contains("quota"), "{refused}");
    assert!((60..70).contains(&acknowledged.len()), "{} records of 64 MiB", acknowledged.len());
    // Nothing more can be acknowledged; the limit may fall below what was.
    side.cluster.ok(&["fs", "quota", "set", "--bytes", "1m", "/d"]);
    let found = side.runtime.block_on(async {
        let mut reader = side.volume.record_reader(b"/d/f", 0, u64::MAX).await.expect("a reader");
        let mut found = Vec::new();
        while let Some(record) = reader.next().await.expect("read") {
            let number = u64::from_le_bytes(record.bytes[..8].try_into().expect("eight"));
            assert!(record.bytes == long(number));
            found.push(number);
        }
        found
    });
    assert_eq!(found, acknowledged);
    side.cluster.ok(&["admin", "fsck"]);
}
