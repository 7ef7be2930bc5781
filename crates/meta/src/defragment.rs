//! Defragmentation: files whose extents are too short on average are written anew where they are fragmented.
//!
//! The leader counts files that grew many extents (`grown.rs`), and once in a while all of a version of the namespace,
//! in steps with rests. Of a file that is beyond its bound a data node writes the fragmented parts anew (`Defragment`),
//! some tens of MiB at a time; moves are publishes with compare-and-set like any client's, so nothing has to be
//! remembered: a leader that dies leaves files that are done and files that are not, and the next one counts anew.
//!
//! Invariant: a file may have a seam (where two extents meet) for each [`extent_bytes`](Defragmenter::extent_bytes)
//! that it stores, and [`EXTENTS_FREE`] more. Holes make no seams. Bounds: [`WAITING_MAX`] files wait; one is worked
//! on, with rests as long as that takes. Not here: what of a file is written anew, and how (`client`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use cairn_meta_core::{FileFragments, FragmentScan};
use cairn_rpc::Client;
use cairn_types::{ErrorCode, Time};
use cairn_wire::Opcode;
use cairn_wire::data::{DefragmentRequest, DefragmentResponse};
use cairn_wire::error::WireError;
use tokio::time::sleep;

use crate::config::MetaTimings;
use crate::grown::EXTENTS_FREE;
use crate::movers::Movers;
use crate::partition::Partition;
use crate::stats::{add, count};

/// Files that wait. Those with the most seams come first; the others are found again.
const WAITING_MAX: usize = 4096;
/// Entries of the namespace that are looked at in one step, and the part of the time that this may take: one in this
/// many.
const SCAN_ENTRIES: usize = 2048;
const SCAN_SHARE: u32 = 4;
/// A data node works on a request for half a minute, and then for as long as calls of one part take.
const DEADLINE: Duration = Duration::from_secs(120);
/// What others were in the way of is tried again so often, and then when it grew or with the next walk.
const TRIES_MAX: u32 = 8;
/// Each time after twice as long, up to 2^6 times as long as at first.
const DOUBLINGS: u32 = 6;
/// Average length of extents before the manager said anything: its default.
const EXTENT_BYTES: u64 = 64 << 10;

/// A file that waits.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    file: FileFragments,
    not_before: Time,
    tries: u32,
}

/// The leader's work on one partition.
pub(crate) struct Defragmenter {
    partition: Arc<Partition>,
    client: Client,
    timings: MetaTimings,
    waiting: BTreeMap<u64, Waiting>,
    /// Some were left out for want of room.
    overflowed: bool,
}

impl Defragmenter {
    pub(crate) fn new(partition: Arc<Partition>, client: Client, timings: MetaTimings) -> Self {
        Self { partition, client, timings, waiting: BTreeMap::new(), overflowed: false }
    }

    /// Works until the task is ended.
    pub(crate) async fn run(mut self) {
        let clock = self.partition.state.common.clock.clone();
        let (mut leading, mut next_walk) = (None, clock.now());
        loop {
            self.partition.state.pause(self.timings.defragment_tick).await;
            let term = self.partition.state.leading_term();
            if leading != term {
                leading = term;
                self.waiting.clear();
                next_walk = clock.now() + self.timings.defragment_first_walk;
            }
            // What snapshots have would be there twice.
            let held_back = self.partition.state.namespace.read().has_snapshots();
            let (Some(term), Some(_), false) = (term, self.extent_bytes(), held_back) else {
                self.waiting.clear();
                self.tell();
                continue;
            };
            if let Err(error) = self.count_grown().await {
                tracing::error!(partition = %self.partition.state.id, %error, "extents cannot be counted");
            }
            if clock.now() >= next_walk || (self.overflowed && self.waiting.is_empty()) {
                self.overflowed = false;
                if let Err(error) = self.walk(term).await {
                    tracing::debug!(partition = %self.partition.state.id, %error, "a walk through all files was given up");
                }
                next_walk = clock.now() + self.timings.defragment_walk;
            }
            self.tell();
            while let Some(next) = self.next(clock.now()) {
                self.work_on(next, term).await;
                self.tell();
                if self.partition.state.leading_term() != Some(term) || self.count_grown().await.is_err() {
                    break;
                }
            }
        }
    }

    /// Length that a file's extents may have on average; `None`: nothing is done.
    fn extent_bytes(&self) -> Option<u64> {
        let told = self.partition.state.common.extent_bytes.load(Relaxed);
        let bytes = if told == u64::MAX { EXTENT_BYTES } else { told };
        (bytes > 0).then_some(bytes)
    }

    /// Seams that a file may have.
    fn bound(&self, file: &FileFragments) -> u64 {
        EXTENTS_FREE + self.extent_bytes().map_or(u64::MAX - EXTENTS_FREE, |bytes| file.bytes / bytes)
    }

    fn tell(&self) {
        self.partition.state.fragmented.store(self.waiting.len() as u64, Relaxed);
    }

    /// Counts the files that are due.
    async fn count_grown(&mut self) -> Result<(), WireError> {
        while let Some(inode) = self.partition.state.grown.take_due() {
            let file = self.count(inode).await?;
            self.consider(file, Time(0), 0);
        }
        Ok(())
    }

    async fn count(&self, inode: u64) -> Result<FileFragments, WireError> {
        let mut found = FileFragments { inode, ..FileFragments::default() };
        self.scan(FragmentScan::of(inode), |file| found = *file, || true).await?;
        Ok(found)
    }

    /// Looks at all files.
    async fn walk(&mut self, term: u64) -> Result<(), WireError> {
        let mut found = Vec::new();
        let state = self.partition.state.clone();
        self.scan(
            FragmentScan::all(),
            |file| self.keep_if_many(file, &mut found),
            || state.leading_term() == Some(term),
        )
        .await?;
        for file in found {
            self.consider(file, Time(0), 0);
        }
        Ok(())
    }

    /// Notes a file that is beyond its bound; of very many those with the most seams, or nearly.
    fn keep_if_many(&self, file: &FileFragments, found: &mut Vec<FileFragments>) {
        if file.seams <= self.bound(file) {
            return;
        }
        found.push(*file);
        if found.len() > 2 * WAITING_MAX {
            found.select_nth_unstable_by_key(WAITING_MAX, |file| std::cmp::Reverse(file.seams));
            // One more than fit, so that it is seen that there are more.
            found.truncate(WAITING_MAX + 1);
        }
    }

    async fn scan(
        &self,
        mut scan: FragmentScan,
        mut visit: impl FnMut(&FileFragments),
        goes_on: impl Fn() -> bool,
    ) -> Result<(), WireError> {
        let state = &self.partition.state;
        let snapshot = state.namespace.read().snapshot();
        loop {
            let start = state.common.clock.now();
            let more = scan.step(&snapshot, SCAN_ENTRIES, &mut visit);
            let more = more.map_err(|violation| WireError::new(ErrorCode::Internal, violation.to_string()))?;
            if !more {
                return Ok(());
            }
            if !goes_on() {
                return Err(WireError::new(ErrorCode::NotLeader, "another member leads"));
            }
            sleep(state.common.clock.now().since(start) * (SCAN_SHARE - 1)).await;
        }
    }

    /// A file was counted: it waits if it is beyond its bound.
    fn consider(&mut self, file: FileFragments, not_before: Time, tries: u32) {
        let bound = self.bound(&file);
        if file.seams <= bound {
            self.waiting.remove(&file.inode);
            self.partition.state.grown.counted(file.inode, bound - file.seams);
            return;
        }
        self.waiting.entry(file.inode).and_modify(|known| known.file = file).or_insert(Waiting {
            file,
            not_before,
            tries,
        });
        if self.waiting.len() > WAITING_MAX {
            self.overflowed = true;
            let least =
                self.waiting.values().min_by_key(|waiting| waiting.file.seams).map(|waiting| waiting.file.inode);
            least.map(|inode| self.waiting.remove(&inode));
        }
    }

    /// The one with the most seams whose time has come.
    fn next(&mut self, now: Time) -> Option<Waiting> {
        let due = self.waiting.values().filter(|waiting| waiting.not_before <= now);
        let inode = due.max_by_key(|waiting| waiting.file.seams)?.file.inode;
        self.waiting.remove(&inode)
    }

    async fn work_on(&mut self, waiting: Waiting, term: u64) {
        let (inode, before) = (waiting.file.inode, waiting.file);
        let outcome = self.defragment(&before, term).await;
        let state = self.partition.state.clone();
        let Ok(after) = self.count(inode).await else { return };
        let stats = &state.common.stats;
        let is_repeated = match outcome {
            Ok((moved, kept)) => {
                count(&stats.defragmented_files);
                add(&stats.defragmented_bytes, moved);
                add(&stats.defragmented_extents, before.extents.saturating_sub(after.extents));
                add(&stats.defragmentation_kept, kept);
                tracing::info!(
                    partition = %state.id, inode, before = before.extents, after = after.extents, moved, kept,
                    "a file was defragmented"
                );
                kept > 0 && waiting.tries < TRIES_MAX
            }
            Err(error) => {
                tracing::debug!(partition = %state.id, inode, %error, "a file could not be defragmented; will be repeated");
                true
            }
        };
        if is_repeated {
            let pause = self.timings.defragment_retry * 2u32.pow(waiting.tries.min(DOUBLINGS));
            self.consider(after, state.common.clock.now() + pause, waiting.tries.saturating_add(1));
        } else if after.seams > self.bound(&after) {
            // No more can be done for it: others share most of it, or it lies in many short pieces.
            state.grown.counted(inode, after.seams / 4);
        } else {
            self.consider(after, Time(0), 0);
        }
    }

    /// Bytes that were written anew, and parts that others were in the way of.
    async fn defragment(&self, file: &FileFragments, term: u64) -> Result<(u64, u64), WireError> {
        let volume = self.partition.state.volume.get();
        let mut movers = Movers::near(self.partition.clone(), self.client.clone(), file.pg);
        let (mut from, mut moved, mut kept) = (0, 0, 0);
        loop {
            let Some(extent_bytes) = self.extent_bytes() else { return Ok((moved, kept)) };
            let request = DefragmentRequest { volume, inode: file.inode, from, extent_bytes };
            let done: DefragmentResponse = movers.ask(Opcode::Defragment, &request, DEADLINE, term).await?;
            moved += done.moved_bytes;
            kept += u64::from(done.kept);
            if done.done || done.next <= from {
                return Ok((moved, kept));
            }
            from = done.next;
        }
    }
}
