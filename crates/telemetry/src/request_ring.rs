//! [`RequestRing`]: the request log of a node, a ring of files of bounded size that a thread of its own writes.
//!
//! Invariants: whoever hands in records never waits for the disk; memory is at most two buffers of [`BUFFER_MAX`]; the
//! files together stay below their bound; a record is written whole or not at all, and what was dropped is counted in
//! the log. Files of earlier starts stay until the ring needs their place. Nothing is synced. The format is
//! `cairn_format::request_log`.
use cairn_format::request_log::{
    REQUEST_BATCH_HEADER, REQUEST_BATCH_MAX, REQUEST_LOG_HEADER, RequestLogHeader, encode_batch_header,
};
use parking_lot::{Condvar, Mutex};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

/// Records that wait to be written; further ones are dropped.
const BUFFER_MAX: usize = 2 << 20;
/// So many are written without waiting for more.
const BUFFER_EAGER: usize = 128 << 10;
/// Records wait so long for others.
const PAUSE: Duration = Duration::from_millis(500);
/// Files of a ring.
const FILES: u64 = 4;
/// Smallest ring.
pub const REQUEST_RING_MIN: u64 = 1 << 20;
/// After a failed write.
const RETRY: Duration = Duration::from_secs(60);

const _: () = assert!(BUFFER_MAX <= REQUEST_BATCH_MAX);

/// What was written and dropped, for the metrics.
#[derive(Debug, Default)]
pub struct RequestRingStats {
    /// Bytes of records written.
    pub written_bytes: AtomicU64,
    /// Times that records were dropped: the disk was too slow, or a write failed.
    pub dropped_batches: AtomicU64,
}

#[derive(Default)]
struct Waiting {
    records: Vec<u8>,
    /// Since the last batch: calls whose records were dropped.
    dropped: u32,
    stopping: bool,
}

struct Shared {
    waiting: Mutex<Waiting>,
    news: Condvar,
    stats: Arc<RequestRingStats>,
    /// Bytes of records that may wait: a batch of them fits a file.
    room: usize,
}

/// A running log; dropping it writes what waits.
pub struct RequestRing {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The files.
struct Ring {
    dir: PathBuf,
    file_max: u64,
    current: Option<(File, u64)>,
    next: u64,
    failed: Option<Instant>,
}

impl RequestRing {
    /// Goes on in a directory, which is made if it is not there; all files together stay below `bytes_max`.
    pub fn start(dir: &Path, bytes_max: u64) -> io::Result<RequestRing> {
        fs::create_dir_all(dir)?;
        let next = numbers(dir)?.last().map_or(1, |last| last + 1);
        let file_max = bytes_max.max(REQUEST_RING_MIN) / FILES;
        let ring = Ring { dir: dir.to_owned(), file_max, current: None, next, failed: None };
        let headers = REQUEST_LOG_HEADER + REQUEST_BATCH_HEADER;
        let room = BUFFER_MAX.min(usize::try_from(file_max).unwrap_or(usize::MAX) - headers);
        let shared = Arc::new(Shared { waiting: Mutex::default(), news: Condvar::new(), stats: Arc::default(), room });
        let of_thread = shared.clone();
        let thread = std::thread::Builder::new().name("requests".into()).spawn(move || of_thread.write_all(ring))?;
        Ok(RequestRing { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Takes records that are whole; never waits for the disk. The buffer is empty then.
    pub fn put(&self, records: &mut Vec<u8>) {
        let mut waiting = self.shared.waiting.lock();
        if waiting.records.len() + records.len() > self.shared.room || waiting.stopping {
            waiting.dropped = waiting.dropped.saturating_add(1);
            self.shared.stats.dropped_batches.fetch_add(1, Relaxed);
        } else {
            waiting.records.extend_from_slice(records);
            if waiting.records.len() >= BUFFER_EAGER && waiting.records.len() - records.len() < BUFFER_EAGER {
                self.shared.news.notify_one();
            }
        }
        records.clear();
    }

    pub fn stats(&self) -> Arc<RequestRingStats> {
        self.shared.stats.clone()
    }

    /// Writes what waits and ends; further records are dropped.
    pub fn stop(&self) {
        self.shared.waiting.lock().stopping = true;
        self.shared.news.notify_one();
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that writes the request log panicked");
        }
    }
}

impl Drop for RequestRing {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn write_all(&self, mut ring: Ring) {
        let mut records = Vec::new();
        loop {
            let (dropped, stopping) = {
                let mut waiting = self.waiting.lock();
                if waiting.records.len() < BUFFER_EAGER && !waiting.stopping {
                    self.news.wait_for(&mut waiting, PAUSE);
                }
                std::mem::swap(&mut waiting.records, &mut records);
                (std::mem::take(&mut waiting.dropped), waiting.stopping)
            };
            if !records.is_empty() || dropped > 0 {
                self.write(&mut ring, &records, dropped);
                records.clear();
                // A busy time gives its memory back.
                records.shrink_to(BUFFER_EAGER);
            }
            if stopping {
                return;
            }
        }
    }

    fn write(&self, ring: &mut Ring, records: &[u8], dropped: u32) {
        let outcome = match ring.failed {
            Some(at) if at.elapsed() < RETRY => Ok(false),
            _ => ring.append(records, dropped).map(|()| true),
        };
        match outcome {
            Ok(true) => {
                ring.failed = None;
                self.stats.written_bytes.fetch_add(records.len() as u64, Relaxed);
                return;
            }
            Ok(false) => {}
            Err(error) => {
                let dir = ring.dir.display();
                tracing::warn!(%dir, %error, "the request log cannot be written; requests are served, their records are dropped; it is tried again in a minute");
                (ring.failed, ring.current) = (Some(Instant::now()), None);
            }
        }
        self.stats.dropped_batches.fetch_add(1, Relaxed);
        let mut waiting = self.waiting.lock();
        waiting.dropped = waiting.dropped.saturating_add(dropped).saturating_add(1);
    }
}

impl Ring {
    fn append(&mut self, records: &[u8], dropped: u32) -> io::Result<()> {
        let length = (REQUEST_BATCH_HEADER + records.len()) as u64;
        if self.current.as_ref().is_some_and(|(_, used)| used + length > self.file_max) {
            self.current = None;
        }
        let (file, used) = match &mut self.current {
            Some(current) => current,
            None => {
                let begun = self.begin()?;
                self.current.insert((begun, REQUEST_LOG_HEADER as u64))
            }
        };
        let mut bytes = Vec::with_capacity(length as usize);
        bytes.extend_from_slice(&encode_batch_header(records, dropped));
        bytes.extend_from_slice(records);
        file.write_all(&bytes)?;
        *used += length;
        Ok(())
    }

    /// The next file, in the place of the oldest ones.
    fn begin(&mut self) -> io::Result<File> {
        for number in numbers(&self.dir)? {
            if number + FILES <= self.next {
                fs::remove_file(path_of(&self.dir, number))?;
            }
        }
        let mut file = File::options().write(true).create_new(true).open(path_of(&self.dir, self.next))?;
        self.next += 1;
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let begun = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        file.write_all(&RequestLogHeader { begun }.encode())?;
        Ok(file)
    }
}

fn path_of(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:010}"))
}

/// Of the files that are there, ascending; what has another name is left alone.
fn numbers(dir: &Path) -> io::Result<Vec<u64>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        found.extend(name.to_str().filter(|name| name.len() == 10).and_then(|name| name.parse::<u64>().ok()));
    }
    found.sort_unstable();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_format::request_log::{RequestEvent, RequestRecord, split_batch, split_record};

    fn record(number: u64, out: &mut Vec<u8>) {
        let event = RequestEvent::Answer { id: number, opcode: 1, error: 0, payload: 0, length: 0 };
        RequestRecord { connection: 1, time: number, event }.encode(out);
    }

    /// Ids of all records of all files, how many drops were told, and the bytes of the files.
    fn read(dir: &Path) -> (Vec<u64>, u64, u64) {
        let (mut ids, mut dropped, mut size) = (Vec::new(), 0, 0);
        for number in numbers(dir).expect("listed") {
            let bytes = fs::read(path_of(dir, number)).expect("read");
            size += bytes.len() as u64;
            RequestLogHeader::decode(&bytes).expect("a header");
            let mut rest = &bytes[REQUEST_LOG_HEADER..];
            while !rest.is_empty() {
                let (mut records, more, after) = split_batch(rest).expect("a batch");
                dropped += u64::from(more);
                while !records.is_empty() {
                    let (record, next) = split_record(records).expect("a record");
                    ids.push(record.time);
                    records = next;
                }
                rest = after;
            }
        }
        (ids, dropped, size)
    }

    /// Requests before a restart would be gone, or the log fill the disk.
    #[test]
    fn the_newest_records_stay_over_restarts() {
        let dir = tempfile::tempdir().expect("directory");
        let mut next = 0u64;
        for start in 0..6 {
            let ring = RequestRing::start(dir.path(), REQUEST_RING_MIN).expect("started");
            for _ in 0..20 {
                let mut records = Vec::new();
                for _ in 0..200 {
                    record(next, &mut records);
                    next += 1;
                }
                ring.put(&mut records);
                assert!(records.is_empty());
            }
            ring.stop();
            let mut late = Vec::new();
            record(u64::MAX, &mut late);
            ring.put(&mut late);
            let (ids, dropped, size) = read(dir.path());
            assert!(size <= REQUEST_RING_MIN, "{size} bytes");
            assert_eq!((ids.last().copied(), dropped), (Some(next - 1), 0), "start {start}");
            assert!(ids.windows(2).all(|pair| pair[0] + 1 == pair[1]), "a gap");
        }
        let (ids, ..) = read(dir.path());
        assert!(ids.len() < next as usize && ids.len() > 4000, "{} of {next}", ids.len());
    }

    /// A small log would outgrow its bound by batches that no file of it has room for.
    #[test]
    fn busy_times_stay_below_the_bound() {
        let dir = tempfile::tempdir().expect("directory");
        for round in 0..8 {
            let ring = RequestRing::start(dir.path(), REQUEST_RING_MIN).expect("started");
            // More than a file has room for; in the end one that it has.
            let count = if round == 7 { 1 } else { 10_000 };
            let mut records = Vec::new();
            (0..count).for_each(|number| record(round * 20_000 + number, &mut records));
            ring.put(&mut records);
            ring.stop();
        }
        let (ids, _, size) = read(dir.path());
        assert!(size <= REQUEST_RING_MIN && !ids.is_empty(), "{size} bytes, {} records", ids.len());
    }

    /// Whoever is recorded would wait for a disk that takes nothing, or what is missing would not show.
    #[test]
    fn what_finds_no_room_is_counted() {
        let dir = tempfile::tempdir().expect("directory");
        let inside = dir.path().join("requests");
        let ring = RequestRing::start(&inside, REQUEST_RING_MIN).expect("started");
        // Nothing can be made in a directory that is gone.
        fs::remove_dir_all(&inside).expect("removed");
        for number in 0..3 {
            let mut records = Vec::new();
            record(number, &mut records);
            ring.put(&mut records);
        }
        let stats = ring.stats();
        ring.stop();
        assert!(stats.dropped_batches.load(Relaxed) > 0 && stats.written_bytes.load(Relaxed) == 0);
        let full = RequestRing::start(&dir.path().join("full"), REQUEST_RING_MIN).expect("started");
        let mut much = vec![0; BUFFER_MAX + 1];
        full.put(&mut much);
        let mut one = Vec::new();
        record(7, &mut one);
        full.put(&mut one);
        full.stop();
        let (ids, dropped, _) = read(&dir.path().join("full"));
        assert_eq!((ids, dropped, full.stats().dropped_batches.load(Relaxed)), (vec![7], 1, 1));
    }
}
