//! Files to which all clients append records at the same time (`RecordAppender`).
//!
//! A record that was acknowledged as durable, or whose writer was closed without an error, is there once. One of whose
//! outcome nothing is known is there at most once, for each writer has a number of its own. One that was never given is
//! not there.
use super::work::Work;
use crate::mount::seeds::Rng;
use cairn_client::record::{RecordLevel, RecordOptions, RecordTicket};
use cairn_client::{ClientError, Volume};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The directory of the files.
pub const DIR: &str = "/records";
/// A file that is longer is left, and the next one begun.
const FILE_MAX: u64 = 24 << 20;
/// Records of one writer.
const RECORDS: u64 = 200;
/// Those of them that have no outcome yet.
const DEPTH: usize = 8;
/// Records of a client of which some are large: all that a run writes has to fit on its small disks, however long it
/// is.
const SOME_LARGE: u64 = 12_000;

/// Client and number.
type Record = (usize, u64);

#[derive(Default)]
pub struct RecordFiles {
    /// Number of the file that is appended to.
    file: AtomicU64,
    /// Whether records are acknowledged, by file.
    records: Mutex<BTreeMap<u64, BTreeMap<Record, bool>>>,
}

pub fn path(file: u64) -> String {
    format!("{DIR}/file-{file}")
}

/// All bytes follow from who wrote it and its number.
fn bytes_of((client, number): Record) -> Vec<u8> {
    let mut rng = Rng::new((client as u64) << 32 | number);
    let large = rng.one_in(40) && number <= SOME_LARGE;
    let length = if large { rng.index(1_500_000) } else { rng.index(3000) };
    let mut bytes = format!("record {client} {number} ").into_bytes();
    bytes.extend((0..length).map(|_| rng.next() as u8));
    bytes
}

fn record_of(bytes: &[u8]) -> Option<Record> {
    let mut words = bytes.split(|byte| *byte == b' ').skip(1).map(|word| std::str::from_utf8(word).ok());
    let record = (words.next()??.parse().ok()?, words.next()??.parse().ok()?);
    (bytes_of(record) == bytes).then_some(record)
}

impl RecordFiles {
    fn note(&self, file: u64, record: Record, acknowledged: bool) {
        self.records.lock().entry(file).or_default().insert(record, acknowledged);
    }
    /// Files that have records.
    pub fn files(&self) -> Vec<u64> {
        self.records.lock().keys().copied().collect()
    }
    /// Why these cannot be the records of a file to which nobody appends any more, if they cannot.
    fn check(&self, file: u64, found: &BTreeMap<Record, u64>) -> Result<(), String> {
        let all = self.records.lock();
        let begun = &all[&file];
        for (record, times) in found {
            if *times > 1 || !begun.contains_key(record) {
                return Err(format!("{}: {record:?} is there {times} times: {:?}", path(file), begun.get(record)));
            }
        }
        match begun.iter().find(|(record, acknowledged)| **acknowledged && !found.contains_key(record)) {
            Some((record, _)) => Err(format!("{}: {record:?} was acknowledged and is not there", path(file))),
            None => Ok(()),
        }
    }
    /// Reads a file in which all is to be that will ever be, and compares it. How many records it has.
    pub async fn check_all(&self, volume: &Volume, file: u64) -> Result<u64, String> {
        let (name, mut found) = (path(file), BTreeMap::new());
        let failed = |error: ClientError| format!("{name}: {error}");
        // What those left who were gone at once comes with the next one.
        let last = volume.record_appender(name.as_bytes(), RecordOptions::default()).await.map_err(failed)?;
        self.note(file, (usize::MAX, file), true);
        last.append(&bytes_of((usize::MAX, file))).await.map_err(failed)?;
        last.close().await.map_err(failed)?;
        let mut reader = volume.record_reader(name.as_bytes(), 0, u64::MAX).await.map_err(failed)?;
        while let Some(record) = reader.next().await.map_err(failed)? {
            let known = record_of(&record.bytes);
            *found.entry(known.ok_or(format!("{name}: no record of ours at {}", record.offset))?).or_default() += 1;
        }
        let damaged = reader.skipped().damaged + reader.left_over();
        if damaged > 0 {
            return Err(format!("{name}: {damaged} bytes belong to no record"));
        }
        self.check(file, &found).map(|()| found.len() as u64)
    }
}

/// Who appends records.
pub struct Recorder {
    pub client: usize,
    pub rng: Rng,
    /// Number of the last record.
    last: u64,
}

impl Recorder {
    pub fn new(client: usize, rng: Rng) -> Recorder {
        Recorder { client, rng, last: 0 }
    }

    /// Appends until the end of the run.
    pub async fn run(mut self, volume: Volume, work: &Work) {
        while !work.is_over() {
            let file = work.records.file.load(Ordering::Relaxed);
            if let Err(error) = self.some(&volume, work, file).await {
                work.counts.not_recorded.add(1);
                // The file is made by whoever comes first.
                if error.is_not_found() {
                    let new = cairn_client::changes::NewFile { mode: 0o666, ..Default::default() };
                    let _or_by_the_next = volume.create(path(file).as_bytes(), new).await;
                }
            }
            tokio::time::sleep(Duration::from_millis(self.rng.below(300))).await;
        }
    }

    /// One writer's records.
    async fn some(&mut self, volume: &Volume, work: &Work, file: u64) -> Result<(), ClientError> {
        let levels = [RecordLevel::Memory, RecordLevel::Durable, RecordLevel::Visible];
        let (name, level) = (path(file), levels[self.rng.index(levels.len())]);
        let options = RecordOptions { level, ..RecordOptions::default() };
        let appender = work.counts.timed(volume.record_appender(name.as_bytes(), options)).await?;
        let (mut under_way, mut all) = (VecDeque::<(Record, RecordTicket)>::new(), Vec::new());
        let done = async |work: &Work, (record, ticket): (Record, RecordTicket)| {
            work.counts.timed(ticket.done()).await?;
            work.records.note(file, record, level != RecordLevel::Memory);
            work.counts.recorded.add(1);
            Ok::<_, ClientError>(())
        };
        for _ in 0..1 + self.rng.below(RECORDS) {
            self.last += 1;
            let record = (self.client, self.last);
            work.records.note(file, record, false);
            let ticket = work.counts.timed(appender.append(&bytes_of(record))).await?;
            all.push(record);
            under_way.push_back((record, ticket));
            if under_way.len() > DEPTH
                && let Some(first) = under_way.pop_front()
            {
                done(work, first).await?;
            }
            if work.is_over() {
                break;
            }
            if self.rng.one_in(4) {
                tokio::time::sleep(Duration::from_millis(self.rng.below(40))).await;
            }
        }
        if self.rng.one_in(4) {
            // As if it were killed.
            return Ok(());
        }
        for one in under_way {
            done(work, one).await?;
        }
        work.counts.timed(appender.close()).await?;
        all.into_iter().for_each(|record| work.records.note(file, record, true));
        if volume.stat(name.as_bytes(), true).await.is_ok_and(|found| found.size > FILE_MAX) {
            let _or_by_another =
                work.records.file.compare_exchange(file, file + 1, Ordering::Relaxed, Ordering::Relaxed);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lost, doubled and unknown records would pass.
    #[test]
    fn what_may_not_be_in_a_file_is_found() {
        let files = RecordFiles::default();
        let (a, b, c) = ((1, 1), (2, 1), (3, 1));
        files.note(0, a, true);
        files.note(0, b, false);
        let check = |found: &[(Record, u64)]| files.check(0, &found.iter().copied().collect()).is_ok();
        assert!(check(&[(a, 1)]) && check(&[(a, 1), (b, 1)]));
        assert!(!check(&[(b, 1)]) && !check(&[(a, 2)]) && !check(&[(a, 1), (b, 2)]) && !check(&[(a, 1), (c, 1)]));
        assert_eq!(record_of(&bytes_of(a)), Some(a));
        assert_eq!(record_of(&[&bytes_of(a)[..], b"x"].concat()), None);
    }
}
