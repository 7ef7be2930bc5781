//! The log's thread: takes what waits, writes, syncs, completes; and the queue in front of it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cairn_env::{AlignedBuf, Disk, DiskError};
use cairn_format::wal_batch::{BATCH_ALIGN, BATCH_HEADER_LEN, BatchHeader};
use cairn_format::wal_segment::SEGMENT_HEADER_LEN;
use cairn_types::{DiskUuid, GroupId};
use parking_lot::{Condvar, Mutex};

use super::groups::Groups;
use super::mark::Marks;
use super::recovery::Position;
use super::segments::{Factory, Segment};
use super::stats::WalStats;
use super::{Completion, Record, WalConfig};
use crate::StoreError;

/// Pause before a new segment is tried again on a full disk.
const NO_SPACE_PAUSE: Duration = Duration::from_secs(1);

struct Submission {
    records: Vec<Record>,
    done: Option<Completion>,
    bytes: usize,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Submission>,
    bytes: usize,
    failure: Option<StoreError>,
    closing: bool,
    holder: Option<GroupId>,
}

/// What submitters and the thread share.
pub(super) struct Shared {
    dir: String,
    queue_bytes_max: usize,
    record_bytes_max: usize,
    queue: Mutex<Queue>,
    work: Condvar,
    space: Condvar,
    /// There is no room for the next segment.
    full: AtomicBool,
}

impl Shared {
    pub(super) fn new(config: &WalConfig) -> Self {
        Self {
            dir: config.dir.clone(),
            queue_bytes_max: config.queue_bytes_max,
            record_bytes_max: usize::try_from(config.segment_bytes / 4).unwrap_or(usize::MAX),
            queue: Mutex::default(),
            work: Condvar::new(),
            space: Condvar::new(),
            full: AtomicBool::new(false),
        }
    }

    pub(super) fn dir(&self) -> &str {
        &self.dir
    }

    pub(super) fn record_bytes_max(&self) -> usize {
        self.record_bytes_max
    }

    pub(super) fn stopped(&self, cause: &str) -> StoreError {
        StoreError::LogStopped { dir: self.dir.clone(), cause: cause.into() }
    }

    pub(super) fn failure(&self) -> Option<StoreError> {
        self.queue.lock().failure.clone()
    }

    pub(super) fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    pub(super) fn oldest_holder(&self) -> Option<GroupId> {
        self.queue.lock().holder
    }

    pub(super) fn is_crowded(&self) -> bool {
        let queue = self.queue.lock();
        queue.bytes >= self.queue_bytes_max && queue.failure.is_none()
    }

    pub(super) fn submit(&self, records: Vec<Record>, done: Option<Completion>) -> Result<(), StoreError> {
        let mut bytes = 0;
        for record in &records {
            let len = record.encoded_len();
            if len > self.record_bytes_max {
                let (bytes, max) = (len as u64, self.record_bytes_max as u64);
                return Err(StoreError::TooLong { dir: self.dir.clone(), bytes, max });
            }
            bytes += len;
        }
        let mut queue = self.queue.lock();
        loop {
            if let Some(failure) = &queue.failure {
                return Err(failure.clone());
            }
            if queue.bytes < self.queue_bytes_max {
                break;
            }
            self.space.wait(&mut queue);
        }
        queue.bytes += bytes;
        queue.waiting.push_back(Submission { records, done, bytes });
        let first = queue.waiting.len() == 1;
        drop(queue);
        if first {
            self.work.notify_one();
        }
        Ok(())
    }

    pub(super) fn close(&self) {
        self.queue.lock().closing = true;
        self.work.notify_all();
        self.space.notify_all();
    }

    /// Everything that waits; nothing when there was nothing for so long; `None` when the log is closed and nothing
    /// waits.
    fn take(&self, patience: Option<Duration>) -> Option<VecDeque<Submission>> {
        let mut queue = self.queue.lock();
        while queue.waiting.is_empty() {
            if queue.closing {
                return None;
            }
            match patience {
                Some(patience) if self.work.wait_for(&mut queue, patience).timed_out() => break,
                Some(_) => {}
                None => self.work.wait(&mut queue),
            }
        }
        queue.bytes = 0;
        let taken = std::mem::take(&mut queue.waiting);
        drop(queue);
        self.space.notify_all();
        Some(taken)
    }

    fn fail(&self, failure: &StoreError) -> VecDeque<Submission> {
        let mut queue = self.queue.lock();
        queue.failure = Some(failure.clone());
        queue.bytes = 0;
        let taken = std::mem::take(&mut queue.waiting);
        drop(queue);
        self.space.notify_all();
        taken
    }

    /// Pauses on a full disk; `false` when the log is being closed.
    fn pause(&self) -> bool {
        let mut queue = self.queue.lock();
        if !queue.closing {
            self.work.wait_for(&mut queue, NO_SPACE_PAUSE);
        }
        !queue.closing
    }
}

/// Where new segments come from.
enum Source {
    /// Made when needed, on the log's thread.
    Inline(Box<Factory>),
    /// Made ahead by another thread.
    Ahead { orders: Sender<Order>, ready: Receiver<Result<Segment, StoreError>> },
}

enum Order {
    Prepare(u64),
    Retire(u64),
}

fn run_factory(mut factory: Factory, orders: &Receiver<Order>, ready: &Sender<Result<Segment, StoreError>>) {
    while let Ok(order) = orders.recv() {
        match order {
            Order::Prepare(number) => {
                if ready.send(factory.prepare(number)).is_err() {
                    return;
                }
            }
            Order::Retire(number) => factory.retire(number),
        }
    }
}

/// The thread's state.
pub(super) struct Writer {
    shared: Arc<Shared>,
    stats: Arc<WalStats>,
    log: DiskUuid,
    batch_bytes_max: usize,
    groups: Groups,
    /// Segments before the present one, oldest first.
    old: VecDeque<u64>,
    current: Segment,
    offset: u64,
    next_batch: u64,
    /// What the next batch names as the one before it.
    chain: u32,
    marks: Marks,
    next_segment: u64,
    prepared: VecDeque<Segment>,
    source: Source,
    ordered: bool,
    scratch: Vec<u8>,
    buffer: AlignedBuf,
}

/// What a batch carries.
#[derive(Default)]
struct Batch {
    records: Vec<Record>,
    bytes: usize,
    done: Vec<Completion>,
}

impl Writer {
    pub(super) fn new(
        disk: Arc<dyn Disk>,
        config: WalConfig,
        position: Position,
        chained: Arc<AtomicBool>,
        shared: Arc<Shared>,
        stats: Arc<WalStats>,
    ) -> Result<(Self, Vec<JoinHandle<()>>), StoreError> {
        let Position { mut segments, prepared, offset, next_batch, chain, mark, mut next_segment, spares, groups } =
            position;
        let marks = Marks::new(disk.clone(), &config, mark)?;
        let bytes = config.segment_bytes;
        let mut factory = Factory::new(disk, &config, chained, spares);
        let current = match segments.pop() {
            Some(segment) => segment,
            None => {
                next_segment += 1;
                factory.prepare(next_segment - 1)?
            }
        };
        let mut threads = Vec::new();
        let source = if config.prepare_ahead {
            let (orders, order_receiver) = channel();
            let (ready_sender, ready) = channel();
            let thread = std::thread::Builder::new()
                .name("cairn-wal-files".into())
                .spawn(move || run_factory(factory, &order_receiver, &ready_sender))
                .map_err(|error| shared.stopped(&error.to_string()))?;
            threads.push(thread);
            Source::Ahead { orders, ready }
        } else {
            Source::Inline(Box::new(factory))
        };
        let writer = Self {
            shared,
            stats,
            log: config.log,
            batch_bytes_max: config.batch_bytes_max.min(usize::try_from(bytes / 2).unwrap_or(usize::MAX)),
            groups,
            old: segments.iter().map(|segment| segment.number).collect(),
            current,
            offset,
            next_batch,
            chain,
            marks,
            next_segment,
            prepared: prepared.into(),
            source,
            ordered: false,
            scratch: Vec::new(),
            buffer: AlignedBuf::unpooled(BATCH_ALIGN),
        };
        writer.publish();
        Ok((writer, threads))
    }

    /// Runs until the log is closed or fails.
    pub(super) fn run(mut self) {
        self.order_ahead();
        while let Some(taken) = self.shared.take(self.marks.patience(self.next_batch - 1)) {
            if let Err((failure, left)) = self.commit_all(taken) {
                self.give_up(&failure, left);
                return;
            }
            self.release();
            if self.marks.is_due(self.next_batch - 1)
                && let Err(failure) = self.mark()
            {
                self.give_up(&failure, Vec::new());
                return;
            }
        }
        // An error is said; the mark of before stands.
        if let Err(error) = self.mark() {
            tracing::warn!(dir = self.shared.dir(), %error, "how far the log reaches could not be noted at its end");
        }
    }

    /// Notes outside of the segments how far the log is durable.
    fn mark(&mut self) -> Result<(), StoreError> {
        if self.next_batch == 1 {
            return Ok(());
        }
        self.marks.write(self.current.number, self.next_batch - 1, self.offset, self.chain)
    }

    fn give_up(&mut self, failure: &StoreError, left: Vec<Completion>) {
        let stopped = self.shared.stopped(&failure.to_string());
        tracing::error!(error = %failure, "the write-ahead log failed and refuses everything from now on");
        let waiting = self.shared.fail(&stopped);
        for done in left.into_iter().chain(waiting.into_iter().filter_map(|s| s.done)) {
            done(Err(stopped.clone()));
        }
    }

    /// Cuts what was taken into batches and commits them; on a failure gives back all that was not completed.
    fn commit_all(&mut self, taken: VecDeque<Submission>) -> Result<(), (StoreError, Vec<Completion>)> {
        let mut batch = Batch::default();
        let mut taken = taken.into_iter();
        while let Some(submission) = taken.next() {
            let whole = batch.bytes + submission.bytes <= self.batch_bytes_max;
            for record in submission.records {
                let len = record.encoded_len();
                if !whole && batch.bytes > 0 && batch.bytes + len > self.batch_bytes_max {
                    let full = std::mem::take(&mut batch);
                    if let Err((error, mut left)) = self.commit(full) {
                        left.extend(submission.done);
                        left.extend(taken.filter_map(|s| s.done));
                        return Err((error, left));
                    }
                }
                batch.bytes += len;
                batch.records.push(record);
            }
            batch.done.extend(submission.done);
        }
        self.commit(batch)
    }

    fn commit(&mut self, mut batch: Batch) -> Result<(), (StoreError, Vec<Completion>)> {
        if batch.records.is_empty() {
            batch.done.into_iter().for_each(|done| done(Ok(())));
            return Ok(());
        }
        match self.write(&batch) {
            Ok(()) => {
                for record in &batch.records {
                    self.groups.note(self.current.number, record);
                }
                batch.done.into_iter().for_each(|done| done(Ok(())));
                Ok(())
            }
            Err(error) => Err((error, std::mem::take(&mut batch.done))),
        }
    }

    fn write(&mut self, batch: &Batch) -> Result<(), StoreError> {
        self.encode(batch, false);
        if self.offset + self.buffer.len() as u64 > self.current.len {
            self.next_segment()?;
        }
        if self.offset == SEGMENT_HEADER_LEN as u64 {
            self.encode(batch, true);
            assert!(
                self.offset + self.buffer.len() as u64 <= self.current.len,
                "a batch and the groups' states fit an empty segment"
            );
        }
        let (segment, number) = (self.current.number, self.next_batch);
        let used = u32::try_from(self.scratch.len()).expect("batches are far shorter than 4 GiB");
        let preamble = if self.offset == SEGMENT_HEADER_LEN as u64 { self.groups.preamble().len() } else { 0 };
        let records = u32::try_from(batch.records.len() + preamble).expect("fewer records than bytes");
        let before = if self.current.chained { self.chain } else { 0 };
        BatchHeader::seal(&mut self.buffer, self.log, segment, number, used, records, before);
        let started = Instant::now();
        self.current.file.write_at(&self.buffer, self.offset)?;
        self.current.file.sync_data()?;
        self.stats.batch(batch.records.len() as u64, self.buffer.len() as u64, started.elapsed());
        let first = self.offset == SEGMENT_HEADER_LEN as u64;
        self.offset += self.buffer.len() as u64;
        self.next_batch += 1;
        self.chain = BatchHeader::decode(&self.buffer).expect("it was sealed above").chain();
        // Before anything in a new segment is acknowledged, so that its loss is noticed.
        if first { self.mark() } else { Ok(()) }
    }

    /// Puts the records into the buffer, behind room for the header, padded.
    fn encode(&mut self, batch: &Batch, preamble: bool) {
        self.scratch.clear();
        if preamble {
            self.groups.preamble().iter().for_each(|record| record.encode(&mut self.scratch));
        }
        batch.records.iter().for_each(|record| record.encode(&mut self.scratch));
        let len = (BATCH_HEADER_LEN + self.scratch.len()).next_multiple_of(BATCH_ALIGN);
        if self.buffer.capacity() < len {
            self.buffer = AlignedBuf::unpooled(len.next_power_of_two());
        }
        self.buffer.clear();
        self.buffer.resize(BATCH_HEADER_LEN);
        self.buffer.extend_from_slice(&self.scratch);
        self.buffer.pad_to_align();
    }

    fn next_segment(&mut self) -> Result<(), StoreError> {
        let next = match self.prepared.pop_front() {
            Some(segment) => segment,
            None => self.wait_for_segment()?,
        };
        let before = std::mem::replace(&mut self.current, next);
        self.old.push_back(before.number);
        self.offset = SEGMENT_HEADER_LEN as u64;
        self.order_ahead();
        self.publish();
        Ok(())
    }

    fn wait_for_segment(&mut self) -> Result<Segment, StoreError> {
        loop {
            let made = match &mut self.source {
                Source::Inline(factory) => factory.prepare(self.next_segment),
                Source::Ahead { orders, ready } => {
                    let asked = self.ordered || orders.send(Order::Prepare(self.next_segment)).is_ok();
                    self.ordered = false;
                    match ready.recv() {
                        Ok(made) if asked => made,
                        _ => return Err(self.shared.stopped("the thread that makes segments ended")),
                    }
                }
            };
            match made {
                Ok(segment) => {
                    self.shared.full.store(false, Ordering::Relaxed);
                    self.next_segment = segment.number + 1;
                    return Ok(segment);
                }
                Err(StoreError::Disk(DiskError::NoSpace { path, op })) => {
                    if !self.shared.full.swap(true, Ordering::Relaxed) {
                        tracing::error!(%path, "no space for a new log segment; nothing is committed here until there is");
                    }
                    if !self.shared.pause() {
                        return Err(StoreError::Disk(DiskError::NoSpace { path, op }));
                    }
                }
                Err(other) => return Err(other),
            }
        }
    }

    /// Has the next segment made while this one fills.
    fn order_ahead(&mut self) {
        if let Source::Ahead { orders, .. } = &self.source
            && self.prepared.is_empty()
            && !self.ordered
        {
            self.ordered = orders.send(Order::Prepare(self.next_segment)).is_ok();
        }
    }

    /// Gives up the oldest segments that no group needs. Not before the present one has its first batch, which
    /// repeats the small states that the old ones hold.
    fn release(&mut self) {
        if self.offset == SEGMENT_HEADER_LEN as u64 {
            return;
        }
        let before = self.old.len();
        while let Some(&oldest) = self.old.front() {
            if self.groups.holder(oldest).is_some() {
                break;
            }
            self.old.pop_front();
            self.groups.forget(oldest);
            match &mut self.source {
                Source::Inline(factory) => factory.retire(oldest),
                // When that thread is gone, the next start retires the segment.
                Source::Ahead { orders, .. } => drop(orders.send(Order::Retire(oldest))),
            }
        }
        if before != self.old.len() || before > 0 {
            self.publish();
        }
    }

    fn publish(&self) {
        self.stats.set_segments(self.old.len() as u64 + 1);
        let holder = self.old.front().and_then(|&oldest| self.groups.holder(oldest));
        self.shared.queue.lock().holder = holder;
    }
}
