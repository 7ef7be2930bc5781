//! Queues of the directories that the mount leads, in memory that outlives its worker: a memory file that the
//! supervisor holds and every worker has as its standard output.
//!
//! Each delegation has a place of 1 TiB in the file. Its items are appended there, whatever was stored is punched out
//! behind them, and pages that nobody wrote cost nothing: so there is no ring, and no end that is met. Invariants
//! owned here: an item counts when its checksum fits, which names the delegation and the item, and when those before
//! it do; what a dying process left half written is not taken, and was not acknowledged; a place is taken and given
//! free by its head alone, behind which are the inodes that its delegation covers. What is lost keeps its place until
//! the mount ends: each worker tells it. Byte order and layout are those of one machine and one boot; the number at the
//! beginning of a head tells workers of other releases. By `write` and not mapped: no memory, and no signal, is shared
//! with what is written.
use cairn_client::{LeftQueue, QUEUE_SUCCESSORS_MAX, QueueLog, QueueMemory, QueueName};
use cairn_types::{crc32c, crc32c_append};
use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, FileType, MemfdFlags, fallocate, fstat, ftruncate, memfd_create};
use rustix::process::{Resource, getrlimit};
use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

/// A place; the first one has the number of workers that have looked.
const PLACE: u64 = 1 << 40;
/// Directories that are led at a time, and some that a dead worker led.
const PLACES: u64 = 96;
const LENGTH: u64 = PLACE * (PLACES + 1);
/// Items begin behind the head's page.
const ITEMS: u64 = 4096;
/// What is stored is punched out when it is so much.
const PUNCH: u64 = 256 << 10;
/// Longer than any item.
const ITEM_MAX: usize = 1 << 20;
/// In front of each item: length, checksum, number.
const PREFIX: usize = 16;
/// First word of a head.
const MAGIC: u64 = 0x3130_4555_5543_4143;
const WORDS: usize = 8;
const HEAD: usize = WORDS * 8;
/// A range of covered inodes behind the head: its first and last one, and a checksum with the delegation's number.
/// Workers of releases that do not know it leave it alone.
const COVERED: usize = 24;
/// A range has thousands of inodes when there are many.
const COVERED_MAX: usize = (ITEMS as usize - HEAD) / COVERED;

/// The memory file, as a worker has it.
pub struct QueueFile {
    file: Arc<File>,
    used: Arc<Mutex<BTreeSet<u64>>>,
    /// Which worker this is.
    worker: u64,
}

/// What a head says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    of: QueueName,
    /// The worker that began it.
    worker: u64,
    /// Number of the first item that counts, and where it is in the place.
    first: u64,
    at: u64,
}

impl Head {
    fn encode(&self) -> [u8; HEAD] {
        let QueueName { session, partition, number } = self.of;
        let words = [MAGIC, session, number, partition.into(), self.worker, self.first, self.at];
        let mut bytes = [0; HEAD];
        for (word, place) in words.iter().zip(bytes.chunks_exact_mut(8)) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let sum = crc32c(&bytes[..HEAD - 8]);
        bytes[HEAD - 8..].copy_from_slice(&u64::from(sum).to_le_bytes());
        bytes
    }
    /// An error: it is none that this build knows.
    fn decode(bytes: &[u8; HEAD]) -> io::Result<Option<Head>> {
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let mut words = [0; WORDS];
        for (word, place) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(place.try_into().map_err(io::Error::other)?);
        }
        let [magic, session, number, partition, worker, first, at, sum] = words;
        let partition = u32::try_from(partition).map_err(io::Error::other)?;
        if magic != MAGIC || sum != u64::from(crc32c(&bytes[..HEAD - 8])) {
            return Err(io::Error::other("the head of a queue is of another version, or damaged"));
        }
        Ok(Some(Head { of: QueueName { session, partition, number }, worker, first, at }))
    }
}

fn covered_bytes(number: u64, inodes: &RangeInclusive<u64>) -> [u8; COVERED] {
    let mut bytes = [0; COVERED];
    bytes[..8].copy_from_slice(&inodes.start().to_le_bytes());
    bytes[8..16].copy_from_slice(&inodes.end().to_le_bytes());
    let sum = crc32c_append(crc32c(&number.to_le_bytes()), &bytes[..16]);
    bytes[16..].copy_from_slice(&u64::from(sum).to_le_bytes());
    bytes
}

fn sum_of(number: u64, item_number: u64, item: &[u8]) -> u32 {
    crc32c_append(crc32c_append(crc32c(&number.to_le_bytes()), &item_number.to_le_bytes()), item)
}

impl QueueFile {
    /// The memory file alone, for the supervisor. `None`: files may not be as long here; nothing is led then.
    pub fn create() -> io::Result<Option<OwnedFd>> {
        // Beyond the limit a signal would end this process.
        if getrlimit(Resource::Fsize).current.is_some_and(|limit| limit < LENGTH) {
            return Ok(None);
        }
        let fd = memfd_create("cairn-queues", MemfdFlags::CLOEXEC)?;
        ftruncate(&fd, LENGTH)?;
        Ok(Some(fd))
    }
    /// What an older supervisor gives a worker is none.
    pub fn open(fd: OwnedFd) -> io::Result<Option<QueueFile>> {
        let status = fstat(&fd)?;
        let is_it = FileType::from_raw_mode(status.st_mode) == FileType::RegularFile;
        if !is_it || u64::try_from(status.st_size) != Ok(LENGTH) {
            return Ok(None);
        }
        let file = Arc::new(File::from(fd));
        Ok(Some(QueueFile { file, used: Arc::default(), worker: 0 }))
    }
    /// What a worker left that is dead, and which worker this is, counted. Once, before anything is begun.
    pub fn take_over(&mut self) -> io::Result<(u64, Vec<LeftQueue>)> {
        let mut count = [0; 8];
        self.file.read_exact_at(&mut count, 0)?;
        self.worker = u64::from_le_bytes(count) + 1;
        self.file.write_all_at(&self.worker.to_le_bytes(), 0)?;
        let mut left = Vec::new();
        for place in 1..=PLACES {
            let mut bytes = [0; HEAD];
            self.file.read_exact_at(&mut bytes, place * PLACE)?;
            let head = match Head::decode(&bytes) {
                Ok(None) => continue,
                Ok(Some(head)) => head,
                Err(error) => {
                    tracing::error!(%error, "what was acknowledged in a directory that a dead worker led is lost");
                    self.file_log(place).clear();
                    continue;
                }
            };
            self.used.lock().insert(place);
            let mut log = Log { head, ..self.file_log(place) };
            let items = log.load()?;
            if items.is_empty() {
                log.end();
                continue;
            }
            let (of, first, covered) = (head.of, head.first, log.load_covered()?);
            let is_given_up = self.worker - head.worker > QUEUE_SUCCESSORS_MAX;
            left.push(LeftQueue { of, covered, first, items, is_given_up, log: Box::new(log) });
        }
        Ok((self.worker, left))
    }
    fn file_log(&self, place: u64) -> Log {
        let of = QueueName { session: 0, partition: 0, number: 0 };
        let head = Head { of, worker: self.worker, first: 0, at: ITEMS };
        let (file, used) = (self.file.clone(), self.used.clone());
        Log { file, used, place, head, covered: 0, ends: VecDeque::new(), next: ITEMS, punched: ITEMS }
    }
}

impl QueueMemory for QueueFile {
    fn begin(&self, of: QueueName) -> Option<Box<dyn QueueLog>> {
        let place = {
            let mut used = self.used.lock();
            let place = (1..=PLACES).find(|place| !used.contains(place))?;
            used.insert(place);
            place
        };
        let mut log = self.file_log(place);
        log.head.of = of;
        match log.put_head() {
            Ok(()) => Some(Box::new(log)),
            Err(error) => {
                tracing::warn!(%error, "memory for what is done in a directory; it is not led");
                log.end();
                None
            }
        }
    }
}

/// One queue in its place.
struct Log {
    file: Arc<File>,
    used: Arc<Mutex<BTreeSet<u64>>>,
    place: u64,
    head: Head,
    /// Ranges of inodes that are noted.
    covered: usize,
    /// Of each item its number and where it ends.
    ends: VecDeque<(u64, u64)>,
    /// Where the next item begins.
    next: u64,
    punched: u64,
}

impl Log {
    const fn position(&self, at: u64) -> u64 {
        self.place * PLACE + at
    }
    fn put_head(&self) -> io::Result<()> {
        self.file.write_all_at(&self.head.encode(), self.position(0))
    }
    /// All items that count, which are noted here from now on.
    fn load(&mut self) -> io::Result<Vec<Vec<u8>>> {
        let mut items = Vec::new();
        (self.next, self.punched) = (self.head.at, self.head.at / PUNCH * PUNCH);
        loop {
            let number = self.head.first + items.len() as u64;
            let Some(item) = self.item(number)? else { return Ok(items) };
            self.next += (PREFIX + item.len()) as u64;
            self.ends.push_back((number, self.next));
            items.push(item);
        }
    }
    /// The inodes that are covered, as far as they are noted.
    fn load_covered(&mut self) -> io::Result<Vec<RangeInclusive<u64>>> {
        let mut found = Vec::new();
        while self.covered < COVERED_MAX {
            let mut bytes = [0; COVERED];
            self.file.read_exact_at(&mut bytes, self.position_of_covered())?;
            let word = |at: usize| bytes[at..at + 8].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
            let inodes = word(0)..=word(8);
            if covered_bytes(self.head.of.number, &inodes) != bytes {
                break;
            }
            found.push(inodes);
            self.covered += 1;
        }
        Ok(found)
    }
    const fn position_of_covered(&self) -> u64 {
        self.position((HEAD + self.covered * COVERED) as u64)
    }
    /// The item that begins at `next`, if it is the one with that number.
    fn item(&self, number: u64) -> io::Result<Option<Vec<u8>>> {
        if self.next + ITEM_MAX as u64 > PLACE {
            return Ok(None);
        }
        let mut prefix = [0; PREFIX];
        self.file.read_exact_at(&mut prefix, self.position(self.next))?;
        let word = |at: usize| u32::from_le_bytes([prefix[at], prefix[at + 1], prefix[at + 2], prefix[at + 3]]);
        let (length, sum) = (word(0) as usize, word(4));
        if length == 0 || length > ITEM_MAX - PREFIX || prefix[8..] != number.to_le_bytes() {
            return Ok(None);
        }
        let mut item = vec![0; length];
        self.file.read_exact_at(&mut item, self.position(self.next) + PREFIX as u64)?;
        Ok((sum == sum_of(self.head.of.number, number, &item)).then_some(item))
    }
    fn punch(&mut self, from: u64, to: u64) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if let Err(error) = fallocate(self.file.as_fd(), flags, self.position(from), to - from) {
            tracing::debug!(%error, "memory of a queue is not given back");
        }
    }
    /// Nothing is left of it.
    fn clear(&mut self) {
        let cleared = self.file.write_all_at(&[0; HEAD], self.position(0));
        if let Err(error) = cleared {
            tracing::warn!(%error, "the head of a queue could not be cleared");
        }
        self.punch(0, PLACE);
    }
}

impl QueueLog for Log {
    fn covers(&mut self, inodes: RangeInclusive<u64>) -> io::Result<()> {
        if self.covered == COVERED_MAX {
            return Err(io::Error::other("it covers too many ranges of inodes"));
        }
        let bytes = covered_bytes(self.head.of.number, &inodes);
        self.file.write_all_at(&bytes, self.position_of_covered())?;
        self.covered += 1;
        Ok(())
    }
    fn push(&mut self, number: u64, item: &[u8]) -> io::Result<()> {
        let length = PREFIX + item.len();
        if length > ITEM_MAX || self.next + 2 * ITEM_MAX as u64 > PLACE {
            return Err(io::Error::other("there is no place for it"));
        }
        let mut bytes = Vec::with_capacity(length);
        bytes.extend_from_slice(&(item.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&sum_of(self.head.of.number, number, item).to_le_bytes());
        bytes.extend_from_slice(&number.to_le_bytes());
        bytes.extend_from_slice(item);
        self.file.write_all_at(&bytes, self.position(self.next))?;
        self.next += length as u64;
        self.ends.push_back((number, self.next));
        Ok(())
    }
    fn stored(&mut self, next: u64) {
        while let Some((number, end)) = self.ends.pop_front_if(|(number, _)| *number < next) {
            (self.head.first, self.head.at) = (number + 1, end);
        }
        // One that is behind is true, too: the partition passes over what it has. But then nothing is punched out.
        if let Err(error) = self.put_head() {
            return tracing::debug!(%error, "the head of a queue stays behind");
        }
        let to = self.head.at / PUNCH * PUNCH;
        if to > self.punched {
            self.punch(self.punched, to);
            self.punched = to;
        }
    }
    fn end(&mut self) {
        // Behind a hand-over the place may be another worker's.
        let mut bytes = [0; HEAD];
        let read = self.file.read_exact_at(&mut bytes, self.position(0));
        let is_own = match Head::decode(&bytes) {
            Ok(found) => found.is_none_or(|found| (found.of, found.worker) == (self.head.of, self.head.worker)),
            Err(_) => true,
        };
        if read.is_ok() && is_own {
            self.clear();
        }
        self.used.lock().remove(&self.place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF: QueueName = QueueName { session: 7, partition: 3, number: 1000 };

    fn next(memory: &OwnedFd) -> (QueueFile, u64, Vec<LeftQueue>) {
        let mut file = QueueFile::open(memory.try_clone().expect("clone")).expect("status").expect("a queue file");
        let (worker, left) = file.take_over().expect("read");
        (file, worker, left)
    }

    fn memory() -> OwnedFd {
        QueueFile::create().expect("memory").expect("no limit")
    }

    fn numbers(left: &LeftQueue) -> Vec<u64> {
        (left.first..)
            .zip(&left.items)
            .map(|(number, item)| {
                assert_eq!(item, &number.to_le_bytes().repeat(20), "item {number}");
                number
            })
            .collect()
    }

    fn push(log: &mut dyn QueueLog, numbers: std::ops::Range<u64>) {
        numbers.for_each(|number| log.push(number, &number.to_le_bytes().repeat(20)).expect("written"));
    }

    /// What a program was told would be gone with the worker, or what is stored be kept for ever.
    #[test]
    fn what_waits_is_there_for_each_worker_until_it_is_stored() {
        let memory = memory();
        let (file, worker, left) = next(&memory);
        assert_eq!((worker, left.len()), (1, 0));
        let (mut one, mut two) =
            (file.begin(OF).expect("room"), file.begin(QueueName { number: 5, ..OF }).expect("room"));
        push(&mut *one, 0..10);
        one.stored(4);
        one.stored(4);
        push(&mut *two, 0..3);
        two.stored(3);
        drop((file, one, two));
        let (file, worker, left) = next(&memory);
        assert_eq!((worker, left.len()), (2, 1), "of the other one everything is stored");
        assert_eq!((left[0].of, numbers(&left[0])), (OF, (4..10).collect()));
        drop((file, left));
        let (file, _, mut left) = next(&memory);
        // Its place is nobody else's meanwhile.
        let mut other = file.begin(QueueName { number: 9, ..OF }).expect("room");
        push(&mut *other, 0..2);
        left[0].log.stored(9);
        let (_, _, found) = next(&memory);
        let found: Vec<_> = found.iter().map(|left| (left.of.number, numbers(left))).collect();
        assert_eq!(found, [(1000, vec![9]), (9, vec![0, 1])]);
        left[0].log.end();
        other.end();
        assert!(next(&memory).2.is_empty());
    }

    /// Half of an item would be stored, or one behind a gap, or one of who had the place before.
    #[test]
    fn what_is_damaged_or_old_ends_the_queue() {
        let memory = memory();
        let (file, ..) = next(&memory);
        let mut log = file.begin(OF).expect("room");
        push(&mut *log, 0..5);
        let at = PLACE + ITEMS + 3 * (PREFIX + 160) as u64;
        let raw = File::from(memory.try_clone().expect("clone"));
        for damaged in [at, at + 4, at + 9, at + 50] {
            let mut byte = [0];
            raw.read_exact_at(&mut byte, damaged).expect("read");
            raw.write_all_at(&[byte[0] ^ 1], damaged).expect("write");
            let (_, _, left) = next(&memory);
            assert_eq!(numbers(&left[0]), [0, 1, 2], "byte {damaged}");
            raw.write_all_at(&byte, damaged).expect("write");
        }
        assert_eq!(numbers(&next(&memory).2[0]).len(), 5);
        // A head of another build.
        raw.write_all_at(b"other", PLACE).expect("write");
        assert!(next(&memory).2.is_empty());
        let mut log = file.begin(QueueName { number: 5, ..OF }).expect("room");
        push(&mut *log, 0..1);
        assert_eq!(numbers(&next(&memory).2[0]), [0]);
    }

    /// Memory would grow with all that was ever done, or slots of a session be used twice.
    #[test]
    fn memory_is_given_back_and_successors_are_counted() {
        let memory = memory();
        let (file, ..) = next(&memory);
        let mut log = file.begin(OF).expect("room");
        let blocks = || fstat(&memory).expect("status").st_blocks * 512;
        for number in 0..2_000 {
            log.push(number, &[7; 4000]).expect("written");
            log.stored(number);
        }
        assert!(blocks() < 2 * PUNCH as i64, "{} bytes", blocks());
        for worker in 2..2 + QUEUE_SUCCESSORS_MAX {
            let (_, number, left) = next(&memory);
            assert_eq!((number, left.len(), left[0].first, left[0].is_given_up), (worker, 1, 1999, false));
        }
        for _ in 0..3 {
            let (_, _, left) = next(&memory);
            assert!(left.len() == 1 && left[0].is_given_up, "it is lost, and each worker tells it");
        }
        next(&memory).2[0].log.end();
        assert!(next(&memory).2.is_empty());
        assert!(blocks() <= 8192, "{} bytes", blocks());
    }

    /// A worker that was replaced would throw away what the next one has in the same place.
    #[test]
    fn a_place_that_is_another_workers_is_left_alone() {
        let memory = memory();
        let (old, ..) = next(&memory);
        let mut log = old.begin(OF).expect("room");
        let (new, _, left) = next(&memory);
        assert!(left.is_empty(), "nothing waits in it, and it is free");
        let mut taken = new.begin(QueueName { number: 5, ..OF }).expect("room");
        push(&mut *taken, 0..2);
        log.end();
        assert_eq!(numbers(&next(&memory).2[0]), [0, 1]);
    }

    /// What was lost would be seen as the servers have it, or what others made answered with an error.
    #[test]
    fn what_is_covered_is_noted_beside_the_items() {
        let memory = memory();
        let (file, ..) = next(&memory);
        let mut log = file.begin(OF).expect("room");
        push(&mut *log, 0..2);
        assert_eq!(next(&memory).2[0].covered, [], "as workers of before leave it");
        let mut ranges: Vec<_> = (0..COVERED_MAX as u64 - 1).map(|range| range * 1000..=range * 1000 + 255).collect();
        ranges.iter().for_each(|range| log.covers(range.clone()).expect("noted"));
        let (_, _, mut left) = next(&memory);
        assert_eq!((&left[0].covered, numbers(&left[0])), (&ranges, vec![0, 1]));
        left[0].log.covers(7..=u64::MAX).expect("behind those");
        ranges.push(7..=u64::MAX);
        assert!(left[0].log.covers(1..=2).is_err(), "there is no more room: the directory is led no longer");
        let (_, _, mut left) = next(&memory);
        assert_eq!((&left[0].covered, numbers(&left[0])), (&ranges, vec![0, 1]));
        left[0].log.end();
        let (file, ..) = next(&memory);
        let mut log = file.begin(QueueName { number: 5, ..OF }).expect("room");
        push(&mut *log, 0..1);
        assert_eq!(next(&memory).2[0].covered, [], "nothing of who had the place before");
    }

    /// Any file would be taken for queues.
    #[test]
    fn other_files_are_none() {
        let null = File::open("/dev/null").expect("open");
        assert!(QueueFile::open(null.into()).expect("status").is_none());
        assert!(QueueFile::open(tempfile::tempfile().expect("file").into()).expect("status").is_none());
    }
}
