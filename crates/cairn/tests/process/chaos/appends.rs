//! Files to which all clients append records at the same time.
//!
//! What is in a file is whole records, one behind the other, in any order, each once. One whose append was acknowledged
//! by a sync is there. So is one whose sync failed if a later sync of the same open file succeeded, for that covers it.
//! One that was never begun is not there.
use super::work::Work;
use crate::mount::seeds::Rng;
use crate::support::text;
use cairn_client::{ClientError, FileHandle, Volume};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The directory of the files.
pub const DIR: &str = "/appends";
/// A file that is longer is left, and the next one begun.
const FILE_MAX: u64 = 2 << 20;
/// Records that go with one sync, at most.
const BATCH: u64 = 3;
/// Syncs of one open file.
const SYNCS: u64 = 12;

/// Client and number.
type Record = (usize, u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Stored,
    /// It may be there.
    Unknown,
}

#[derive(Default)]
pub struct Appends {
    /// Number of the file that is appended to.
    file: AtomicU64,
    /// Records by file.
    records: Mutex<BTreeMap<u64, BTreeMap<Record, Known>>>,
}

/// Files in copies and in rows take turns.
pub fn path(file: u64) -> String {
    format!("{DIR}/{}/file-{file}", ["copies", "rows"][(file % 2) as usize])
}

/// All bytes follow from who wrote it and its number.
fn bytes_of((client, number): Record) -> Vec<u8> {
    let mut rng = Rng::new((client as u64) << 32 | number);
    let length = if rng.one_in(8) { rng.index(60_000) } else { rng.index(3000) };
    let mut bytes = format!("record {client} {number} {length}\n").into_bytes();
    bytes.extend((0..length).map(|_| b'a' + (rng.next() % 26) as u8));
    bytes.push(b'\n');
    bytes
}

/// The record that the bytes begin with, and what follows it; or why they begin with none.
fn record_of<'a>(name: &str, at: usize, bytes: &'a [u8]) -> Result<(Record, &'a [u8]), String> {
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let shown = text(&line[..line.len().min(80)]);
    let words: Vec<&str> = shown.split(' ').collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
    let (Some(&"record"), Some(client), Some(number)) = (words.first(), number(1), number(2)) else {
        return Err(format!("{name}: no record begins at {at}: {shown:?}"));
    };
    let record = (client as usize, number);
    let right = bytes_of(record);
    if bytes.starts_with(&right) {
        return Ok((record, &bytes[right.len()..]));
    }
    let same = right.iter().zip(bytes).take_while(|(a, b)| a == b).count();
    let there = &bytes[same..bytes.len().min(same + 60)];
    let rest = &right[same..right.len().min(same + 40)];
    let found = bytes.windows(rest.len()).position(|part| part == rest).map(|behind| at + behind);
    Err(format!(
        "{name}: the record {record:?} at {at} is torn behind {same} of {} bytes; there is {:?}, its rest is at {found:?}",
        right.len(),
        text(there)
    ))
}

impl Appends {
    fn note(&self, file: u64, records: &[Record], known: Known) {
        let mut all = self.records.lock();
        let of_file = all.entry(file).or_default();
        for record in records {
            of_file.insert(*record, known);
        }
    }
    /// This file is long enough.
    fn leave(&self, file: u64) {
        let _somebody_was_faster = self.file.compare_exchange(file, file + 1, Ordering::Relaxed, Ordering::Relaxed);
    }
    /// The file that is appended to.
    fn current(&self) -> u64 {
        self.file.load(Ordering::Relaxed)
    }
    /// Files that have records.
    pub fn files(&self) -> Vec<u64> {
        self.records.lock().keys().copied().collect()
    }
    /// Why these cannot be all the bytes of a file to which nobody appends any more, if they cannot. Else how many
    /// records it has.
    pub fn check(&self, file: u64, bytes: &[u8]) -> Result<u64, String> {
        let name = path(file);
        let mut rest = bytes;
        let mut times: BTreeMap<Record, u32> = BTreeMap::new();
        while !rest.is_empty() {
            let (record, behind) = record_of(&name, bytes.len() - rest.len(), rest)?;
            *times.entry(record).or_default() += 1;
            rest = behind;
        }
        let all = self.records.lock();
        let begun = &all[&file];
        for (record, times) in &times {
            if *times > u32::from(begun.contains_key(record)) {
                return Err(format!("{name}: {record:?} is there {times} times: {:?}", begun.get(record)));
            }
        }
        match begun.iter().find(|(record, known)| **known != Known::Unknown && !times.contains_key(record)) {
            Some((record, _)) => Err(format!("{name}: {record:?} was acknowledged and is not there")),
            None => Ok(times.len() as u64),
        }
    }
}

/// What appends, through the library or through a mount.
pub struct Appender {
    pub client: usize,
    pub rng: Rng,
    /// Number of the last record.
    last: u64,
    file: u64,
}

impl Appender {
    pub fn new(client: usize, rng: Rng) -> Appender {
        Appender { client, rng, last: 0, file: 0 }
    }
    /// The next records, which are known to be begun from now on.
    fn batch(&mut self, work: &Work) -> Vec<Record> {
        let count = 1 + self.rng.below(BATCH);
        let records: Vec<Record> = (0..count)
            .map(|_| {
                self.last += 1;
                (self.client, self.last)
            })
            .collect();
        work.appends.note(self.file, &records, Known::Unknown);
        records
    }
    /// Success of a sync covers what failed before it, too.
    fn synced(&self, work: &Work, pending: &mut Vec<Record>, done: bool) {
        if !done {
            return work.counts.not_appended.add(1);
        }
        work.appends.note(self.file, pending, Known::Stored);
        work.counts.appended.add(pending.len() as u64);
        pending.clear();
    }
    async fn until_next(&mut self) {
        tokio::time::sleep(Duration::from_millis(self.rng.below(600))).await;
    }

    /// Works through the library until the end of the run.
    pub async fn run(mut self, volume: Volume, work: &Work) {
        while !work.is_over() {
            self.file = work.appends.current();
            if let Err(error) = self.some(&volume, work).await {
                // The file is made by whoever comes first.
                if error.is_not_found() {
                    let _or_by_the_next = create(&volume, &path(self.file)).await;
                }
            }
            self.until_next().await;
        }
    }
    async fn some(&mut self, volume: &Volume, work: &Work) -> Result<(), ClientError> {
        let name = path(self.file);
        let mut open = work.counts.timed(volume.open(name.as_bytes())).await?;
        let mut pending = Vec::new();
        for _ in 0..1 + self.rng.below(SYNCS) {
            let records = self.batch(work);
            let done = work.counts.timed(append(&mut open, &records, &mut pending)).await;
            if done.as_ref().is_ok_and(|size| *size > FILE_MAX) {
                work.appends.leave(self.file);
            }
            self.synced(work, &mut pending, done.is_ok());
            // Either the same open file goes on, or what is not stored is left with it.
            if work.is_over() || (!pending.is_empty() && self.rng.one_in(2)) {
                break;
            }
            self.until_next().await;
        }
        let closed = work.counts.timed(open.close()).await;
        self.synced(work, &mut pending, closed.is_ok());
        Ok(())
    }

    /// Opens a file of a mount, appends and syncs some times.
    pub fn through_mount(&mut self, work: &Work, dir: &Path) {
        self.file = work.appends.current();
        let at = dir.join(path(self.file).trim_start_matches('/'));
        let open =
            work.counts.timed_blocking(|| fs::OpenOptions::new().append(true).custom_flags(libc::O_CLOEXEC).open(&at));
        let Ok(mut open) = open else { return };
        let mut pending = Vec::new();
        for _ in 0..1 + self.rng.below(SYNCS) {
            let records = self.batch(work);
            let done = work.counts.timed_blocking(|| {
                for record in &records {
                    // One write each: that is what stays whole.
                    let bytes = bytes_of(*record);
                    let written = open.write(&bytes)?;
                    assert_eq!(written, bytes.len(), "a part of a record was written");
                    pending.push(*record);
                }
                open.sync_all()?;
                open.metadata().map(|found| found.len())
            });
            if done.as_ref().is_ok_and(|size| *size > FILE_MAX) {
                work.appends.leave(self.file);
            }
            self.synced(work, &mut pending, done.is_ok());
            if !pending.is_empty() && self.rng.one_in(2) {
                break;
            }
        }
    }
}

/// Appends and syncs; `taken` gets what was taken to be stored. Where the last one ends.
async fn append(open: &mut FileHandle, records: &[Record], taken: &mut Vec<Record>) -> Result<u64, ClientError> {
    let mut end = 0;
    for record in records {
        let bytes = bytes_of(*record);
        end = open.append(&bytes).await? + bytes.len() as u64;
        taken.push(*record);
    }
    open.sync().await?;
    Ok(end)
}

async fn create(volume: &Volume, name: &str) -> Result<(), ClientError> {
    let new = cairn_client::changes::NewFile { mode: 0o666, ..Default::default() };
    volume.create(name.as_bytes(), new).await.map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(known: &[(Record, Known)], there: &[Record], torn: usize) -> bool {
        let appends = Appends::default();
        for (record, known) in known {
            appends.note(0, &[*record], *known);
        }
        let mut bytes: Vec<u8> = there.iter().flat_map(|record| bytes_of(*record)).collect();
        bytes.truncate(bytes.len() - torn);
        appends.check(0, &bytes).is_ok()
    }

    /// Lost, doubled and torn records would pass.
    #[test]
    fn what_may_not_be_in_a_file_is_found() {
        let (a, b, c) = ((1, 1), (2, 1), (3, 1));
        let known = [(a, Known::Stored), (b, Known::Unknown)];
        for (there, right) in [
            (vec![a], true),
            (vec![b, a], true),
            (vec![b, a, b], false),
            (vec![b], false),
            (vec![a, a], false),
            (vec![a, c], false),
        ] {
            assert_eq!(check(&known, &there, 0), right, "{there:?}");
        }
        assert!(!check(&known, &[a, b], 1), "a torn record");
    }
}
