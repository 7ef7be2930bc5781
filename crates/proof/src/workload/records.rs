//! Records that several clients append to one file. The model is the set of them, by writer and sequence: each is there
//! whole and at most once; those that were acknowledged as durable are there whatever lost its power since.

use std::collections::{BTreeMap, VecDeque};

use cairn_client::changes::NewFile;
use cairn_client::record::{RecordAppender, RecordLevel, RecordOptions, RecordTicket};
use cairn_client::{ClientError, Volume};
use cairn_sim::SimRng;
use cairn_types::Layout;

use super::{ATTEMPTS, Workload, beside};
use crate::faults::Planned;

/// Clients that append in one step.
const CLIENTS: u64 = 5;
/// Records of one client in one step, at most.
const EACH: usize = 30;
/// Records of one that have no outcome yet.
const DEPTH: usize = 6;

type Record = (u64, u64);

/// The file of records.
pub(super) struct Records {
    rng: SimRng,
    path: Vec<u8>,
    /// Whether it was acknowledged as durable.
    begun: BTreeMap<Record, bool>,
    writers: u64,
    made: bool,
    /// Inode and bytes, when nobody appends any more.
    last: Option<(u64, Vec<u8>)>,
}

impl Records {
    pub(super) fn new(seed: u64, directory: &str) -> Self {
        let (rng, path) = (SimRng::derived(seed, "records"), format!("{directory}/records").into_bytes());
        Self { rng, path, begun: BTreeMap::new(), writers: 0, made: false, last: None }
    }

    /// Whether this step is one of them.
    pub(super) fn is_due(&self) -> bool {
        self.rng.chance(0.12)
    }

    pub(super) fn last(&self) -> Option<(u64, &Vec<u8>)> {
        self.last.as_ref().map(|(inode, bytes)| (*inode, bytes))
    }
}

/// All bytes follow from who wrote it and its number.
fn bytes_of((writer, number): Record) -> Vec<u8> {
    let length = match (writer * 31 + number * 17) % 23 {
        0 => 150_000,
        1 => 0,
        other => other * 211,
    };
    let mut bytes = format!("{writer} {number} ").into_bytes();
    bytes.extend((0..length).map(|i| (i + writer * 7 + number) as u8));
    bytes
}

fn record_of(bytes: &[u8]) -> Option<Record> {
    let mut words = bytes.split(|byte| *byte == b' ');
    let mut number = || std::str::from_utf8(words.next()?).ok()?.parse().ok();
    Some((number()?, number()?))
}

/// What one client appends: how many it began, how many of those became durable, and why it stopped.
async fn append(
    volume: Volume,
    path: Vec<u8>,
    (writer, level, count, closes): (u64, RecordLevel, usize, bool),
) -> (u64, Vec<u64>, Option<ClientError>) {
    let options = RecordOptions { level, ..RecordOptions::default() };
    let (mut begun, mut durable) = (0, Vec::new());
    let appender: RecordAppender = match volume.record_appender(&path, options).await {
        Ok(appender) => appender,
        Err(error) => return (0, durable, Some(error)),
    };
    let mut under_way: VecDeque<(u64, RecordTicket)> = VecDeque::new();
    loop {
        let is_over = begun == count as u64;
        while under_way.len() == DEPTH || is_over && !under_way.is_empty() {
            let Some((number, ticket)) = under_way.pop_front() else { break };
            match ticket.done().await {
                Ok(()) if level != RecordLevel::Memory => durable.push(number),
                Ok(()) => {}
                Err(error) => return (begun, durable, Some(error)),
            }
        }
        if is_over {
            break;
        }
        begun += 1;
        match appender.append(&bytes_of((writer, begun))).await {
            Ok(ticket) => under_way.push_back((begun, ticket)),
            Err(error) => return (begun, durable, Some(error)),
        }
    }
    // Others end as if they were killed.
    let closed = if closes { appender.close().await.err() } else { None };
    if closes && closed.is_none() {
        durable = (1..=begun).collect();
    }
    (begun, durable, closed)
}

/// All records of the file, each of which has to be what was given.
async fn read_all(volume: &Volume, path: &[u8]) -> Result<Result<BTreeMap<Record, u64>, ClientError>, String> {
    let mut found = BTreeMap::new();
    let mut reader = match volume.record_reader(path, 0, u64::MAX).await {
        Ok(reader) => reader,
        Err(error) => return Ok(Err(error)),
    };
    loop {
        match reader.next().await {
            Ok(Some(record)) => {
                let head = record_of(&record.bytes).ok_or_else(|| format!("no record at {}", record.offset))?;
                if record.bytes != bytes_of(head) {
                    return Err(format!("the record {head:?} at {} is not as it was given", record.offset));
                }
                *found.entry(head).or_default() += 1;
            }
            Ok(None) => break,
            Err(error) => return Ok(Err(error)),
        }
    }
    match reader.skipped().damaged + reader.left_over() {
        0 => Ok(Ok(found)),
        damaged => Err(format!("{damaged} bytes of the file of records belong to no record")),
    }
}

impl Workload {
    /// Some clients append at the same time, while the fault begins.
    pub(super) fn append_records(&mut self, planned: Option<Planned>) -> Result<(), String> {
        if !self.make_records()? {
            return Ok(());
        }
        let levels = [RecordLevel::Memory, RecordLevel::Durable, RecordLevel::Visible];
        let path = self.records.path.clone();
        let mut jobs = Vec::new();
        for client in 0..CLIENTS {
            self.records.writers += 1;
            let rng = &self.records.rng;
            let plan = (self.records.writers, levels[rng.index(levels.len())], 1 + rng.index(EACH), rng.chance(0.5));
            let volume = if client % 2 == 0 { self.volume.clone() } else { self.reading.clone() };
            jobs.push((plan.0, append(volume, path.clone(), plan)));
        }
        let all = async {
            let mut running = tokio::task::JoinSet::new();
            for (writer, job) in jobs {
                running.spawn(async move { (writer, job.await) });
            }
            running.join_all().await
        };
        let mut refused = None;
        for (writer, (begun, durable, error)) in beside(&self.cluster, &mut self.chaos, planned, all)? {
            for number in 1..=begun {
                self.records.begun.insert((writer, number), durable.contains(&number));
            }
            *self.counts.entry("records durable").or_default() += durable.len() as u64;
            refused = error.or(refused);
        }
        match refused {
            Some(error) => self.relieve("records refused", 0, &error),
            None => Ok(()),
        }
    }

    /// Whether the file is there.
    fn make_records(&mut self) -> Result<bool, String> {
        if !self.records.made {
            let layout: Layout = self.layouts[0];
            let new = NewFile { mode: 0o100_644, layout: layout.to_bits(), ..NewFile::default() };
            let path = self.records.path.clone();
            match beside(&self.cluster, &mut self.chaos, None, self.volume.create(&path, new))? {
                Ok(_) => self.records.made = true,
                Err(error) => self.relieve("files refused", 0, &error)?,
            }
        }
        Ok(self.records.made)
    }

    /// Everything is well again, and all were without power: what was durable is there.
    pub(super) fn check_records(&mut self) -> Result<(), String> {
        if !self.records.made {
            return Ok(());
        }
        let path = self.records.path.clone();
        for attempt in 0..ATTEMPTS {
            // What was left unpublished by those who are gone comes with the next one.
            self.records.writers += 1;
            let writer = self.records.writers;
            self.records.begun.insert((writer, 1), false);
            let volume = self.volume.clone();
            let read = async {
                let last = append(volume, path.clone(), (writer, RecordLevel::Durable, 1, true)).await;
                match last.2 {
                    Some(error) => Ok(Err(error)),
                    None => read_all(&self.reading, &path).await,
                }
            };
            match beside(&self.cluster, &mut self.chaos, None, read)?? {
                Ok(found) => {
                    self.records.begun.insert((writer, 1), true);
                    self.compare_records(&found)?;
                    let bytes = self.read_path(&path)?.map_err(|error| format!("the file of records: {error}"))?;
                    let found = self.cluster.runtime.block_on(self.reading.stat(&path, true));
                    let inode = found.map_err(|error| format!("the file of records: {error}"))?.inode;
                    self.records.last = Some((inode, bytes));
                    return Ok(());
                }
                Err(error) => self.relieve("records refused", attempt, &error)?,
            }
        }
        Ok(())
    }

    fn compare_records(&mut self, found: &BTreeMap<Record, u64>) -> Result<(), String> {
        for (record, times) in found {
            match self.records.begun.get(record) {
                None => return Err(format!("the record {record:?} is there and was never given")),
                Some(_) if *times > 1 => return Err(format!("the record {record:?} is there {times} times")),
                Some(_) => {}
            }
        }
        let durable = self.records.begun.iter().filter(|(_, durable)| **durable).map(|(record, _)| record);
        if let Some(lost) = durable.clone().find(|record| !found.contains_key(record)) {
            return Err(format!("the record {lost:?} was acknowledged as durable and is not there"));
        }
        *self.counts.entry("records compared").or_default() += found.len() as u64;
        Ok(())
    }
}
