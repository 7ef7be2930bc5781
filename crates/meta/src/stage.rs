//! Encoding of files with a later scheme, when nothing changed them for the time that their layout says.
//!
//! The leader looks through the list of files that wait (what does not wait costs nothing), and asks a data node with a
//! member of the file's group to encode one after the other, a part at a time (`Encode`). What was done is in the
//! namespace (rows instead of copies, the stage in the layout), so nothing has to be remembered: a leader or a data
//! node that dies leaves files whose first parts are encoded, and the next one goes on with the rest.
//!
//! What lies in columns of stripe groups is encoded together first, on a node of their core rack ([`together`]).
//!
//! Invariants: a file is asked for only while it waits, its time has come, and nothing of it is volatile, looked at
//! again before each part; not outside of the hours that are set, and not faster than the rate that is set. Bounds:
//! [`DUE_MAX`] files of a look are remembered; one is worked on. Not here: how a part is encoded, and that it never
//! covers a newer write (`client`).

mod asked;
mod columns;
mod degraded;
mod desk;
mod together;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cairn_meta_core::{Namespace, StagedFile, WHOLE_SHARDS_LEVEL};
use cairn_rpc::Client;
use cairn_types::{StageHours, Time};
use cairn_wire::Opcode;
use cairn_wire::data::{EncodeRequest, EncodeResponse};
use cairn_wire::error::WireError;
use cairn_wire::meta::StageStatusResponse;
use parking_lot::Mutex;
use tokio::time::sleep;

use crate::config::MetaTimings;
use crate::movers::Movers;
use crate::partition::{Partition, PartitionState};
use crate::stats::{add, count};
use asked::{NOT_KNOWN, Seen};
use columns::InColumns;
use degraded::Degraded;
pub(crate) use desk::StageDesk;
use desk::{LOOK_FILES, due_at};

/// Files of one look that are to be encoded by themselves. The others are found with the next one.
const DUE_MAX: usize = 1024;
/// Files of one question that are answered: the others are not waited for.
const ASKED_MAX: usize = 4096;
/// Part of the time that looks may take: one in this many.
const LOOK_SHARE: u32 = 20;
/// A part is read, written, made durable, read back and published.
const DEADLINE: Duration = Duration::from_secs(300);
/// Bytes a second before the manager said anything: the default of `stage_rate`.
const RATE: u64 = 100 << 20;
/// A file that was left is tried again after twice as long each time, up to 2^6 times as long as at first.
const DOUBLINGS: u32 = 6;
/// Outcomes of `EncodeResponse`.
const MORE: u32 = 1;
const ENCODED: u32 = 2;
const KEPT: u32 = 3;
const LEFT: u32 = 4;

/// Settings of the cluster about encoding.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StageSettings {
    /// Bytes a second; 0: as fast as it goes.
    pub(crate) rate: Option<u64>,
    pub(crate) hours: StageHours,
}

impl PartitionState {
    /// Somebody waits for these files: those that are to be waited for, the others are encoded by themselves.
    pub(crate) fn encode_soon(&self, inodes: &[u64]) -> Vec<u64> {
        let now = (self.common.clock.now(), self.common.clock.wall());
        let namespace = self.namespace.read();
        if !makes_whole_shards(&namespace) {
            return Vec::new();
        }
        let map = self.common.map.read();
        let can = |inode: u64| {
            let file = namespace.staged_file(inode);
            // Nobody is kept waiting for a member that is away.
            file.filter(|file| !file.is_mostly_shared()).is_some_and(|file| {
                !columns::is_known(&map, file.pg)
                    || columns::column_of(&map, file.pg).is_some_and(|(_, degraded)| !degraded)
            })
        };
        self.stage.asked.ask(&inodes[..inodes.len().min(ASKED_MAX)], now, can)
    }
}

/// Members of before do not know what comes of encoding together.
fn makes_whole_shards(namespace: &Namespace) -> bool {
    namespace.feature_level() >= u32::from(WHOLE_SHARDS_LEVEL)
}

/// When a file that was left is tried again.
#[derive(Clone, Copy, Debug)]
struct Retry {
    not_before: Time,
    tries: u32,
}

/// What the last reason that is told is about.
#[derive(Clone, Copy, Debug)]
enum Cause {
    File(u64),
    StripeGroup(u32),
}

/// How a file came out.
enum End {
    Encoded,
    Kept,
    /// It does not wait any more, or was changed.
    Gone,
    Left(String),
}

/// The leader's work on one partition.
pub(crate) struct Stager {
    partition: Arc<Partition>,
    client: Client,
    timings: MetaTimings,
    retries: BTreeMap<u64, Retry>,
    /// Of stripe groups whose files could not be encoded together.
    together: BTreeMap<u32, Retry>,
    /// Stripe groups that lack members.
    degraded: Degraded,
    cause: Option<Cause>,
}

impl Stager {
    pub(crate) fn new(partition: Arc<Partition>, client: Client, timings: MetaTimings) -> Self {
        Self {
            partition,
            client,
            timings,
            retries: BTreeMap::new(),
            together: BTreeMap::new(),
            degraded: Degraded::default(),
            cause: None,
        }
    }

    /// Works until the task is ended.
    pub(crate) async fn run(mut self) {
        let (mut leading, mut rest) = (None, Duration::ZERO);
        loop {
            self.partition.state.pause(self.timings.stage_tick.max(rest)).await;
            rest = Duration::ZERO;
            let term = self.partition.state.leading_term();
            if leading != term {
                leading = term;
                self.retries.clear();
                self.together.clear();
                self.degraded.clear();
                self.partition.state.stage.asked.forget();
                let since_ns = self.partition.state.common.clock.wall().0;
                *self.desk().lock() = StageStatusResponse { since_ns, ..Default::default() };
            }
            let Some(term) = term else { continue };
            let clock = self.partition.state.common.clock.clone();
            let (start, wall) = (clock.now(), clock.wall());
            let (due, in_columns, seen) = self.look().await;
            rest = clock.now().since(start) * LOOK_SHARE;
            let go_on = self.work_together(in_columns, term).await;
            self.partition.state.stage.asked.settle(&seen, &go_on, (wall, clock.now()));
            for file in due {
                if self.stripe_group(&file).is_some_and(|group| go_on.contains(&group)) {
                    continue;
                }
                if self.partition.state.leading_term() != Some(term) || self.held() {
                    break;
                }
                self.work_on(file, term).await;
            }
            self.end_reason();
        }
    }

    /// The last reason is told as long as what it is about is to be tried again.
    fn end_reason(&mut self) {
        let lasts = match self.cause {
            None => return,
            Some(Cause::File(inode)) => self.retries.contains_key(&inode),
            Some(Cause::StripeGroup(group)) => self.together.contains_key(&group),
        };
        if !lasts {
            self.cause = None;
            self.desk().lock().last_reason.clear();
        }
    }

    fn desk(&self) -> &Mutex<StageStatusResponse> {
        &self.partition.state.stage.status
    }

    /// The stripe group in which a file may be encoded together with others.
    fn stripe_group(&self, file: &StagedFile) -> Option<u32> {
        let map = self.partition.state.common.map.read();
        columns::column_of(&map, file.pg).map(|(column, _)| column.group)
    }

    fn settings(&self) -> StageSettings {
        *self.partition.state.common.stage.read()
    }

    fn held(&self) -> bool {
        !self.settings().hours.has(self.partition.state.common.clock.wall())
    }

    /// Looks through the list: what waits, what is due, when the next one is. What comes is to be encoded by itself,
    /// and together with others, and what somebody asks for of that. What lies in a column is in both when nobody
    /// waits for others any more.
    async fn look(&mut self) -> (Vec<StagedFile>, InColumns, Seen) {
        let state = self.partition.state.clone();
        let (now, wall) = (state.common.clock.now(), state.common.clock.wall());
        let (mut due, mut in_columns, mut seen, mut after) = (Vec::new(), InColumns::default(), Seen::new(), 0);
        let together = makes_whole_shards(&state.namespace.read());
        let mut told = StageStatusResponse::default();
        // Out of its hours only what somebody asks for is encoded.
        let held = self.held();
        in_columns.only_asked = held;
        loop {
            let start = state.common.clock.now();
            let (files, last) = state.namespace.read().staged_files(after, LOOK_FILES);
            for file in files {
                desk::note(&mut told, &file, wall);
                let (is_due, asked) = (due_at(&file) <= wall, state.stage.asked.fills_until(file.inode));
                if !file.durable || file.is_mostly_shared() || (held || !is_due) && asked.is_none() {
                    continue;
                }
                let map = state.common.map.read();
                if together && !columns::is_known(&map, file.pg) {
                    // It may be a column: the map that says so comes within seconds.
                    seen.extend(asked.map(|_| (file.inode, NOT_KNOWN)));
                    continue;
                }
                let column = columns::column_of(&map, file.pg).filter(|_| together);
                if let Some((column, degraded)) = column {
                    let fills_until = together::fills_until(&file);
                    in_columns.push(column, &file, asked.map_or(fills_until, |asked| asked.min(fills_until)));
                    if degraded {
                        in_columns.note_degraded(column.group);
                    }
                    if asked.is_some() {
                        seen.insert(file.inode, column.group);
                    }
                }
                if held || !is_due {
                    continue;
                }
                let by_itself = column.is_none() || together::waits_until(&file) <= wall;
                let rests = self.retries.get(&file.inode).is_some_and(|retry| retry.not_before > now);
                if by_itself && !rests && due.len() < DUE_MAX {
                    due.push(file);
                }
            }
            let Some(last) = last else { break };
            after = last;
            sleep(state.common.clock.now().since(start)).await;
        }
        state.stage.looked(&told, held);
        // Those that were left and are not there any more.
        let namespace = state.namespace.read();
        self.retries.retain(|inode, _| namespace.staged_file(*inode).is_some());
        (due, in_columns, seen)
    }

    async fn work_on(&mut self, file: StagedFile, term: u64) {
        let state = self.partition.state.clone();
        let (stats, inode) = (&state.common.stats, file.inode);
        let end = self.encode(file, term).await.unwrap_or_else(|error| End::Left(error.to_string()));
        let mut desk = self.desk().lock();
        (desk.inode, desk.from) = (0, 0);
        match end {
            End::Encoded => {
                desk.encoded_files += 1;
                count(&stats.encoded_files);
                tracing::info!(partition = %state.id, inode, bytes = file.bytes, "a file was encoded");
            }
            End::Kept => {
                desk.kept_files += 1;
                count(&stats.encoding_kept);
            }
            End::Gone => {}
            End::Left(reason) => {
                tracing::debug!(partition = %state.id, inode, reason, "a file could not be encoded now");
                desk.left_times += 1;
                desk.last_reason = format!("inode {inode}: {reason}");
                count(&stats.encoding_left);
                let tries = self.retries.get(&inode).map_or(0, |retry| retry.tries);
                let pause = self.timings.stage_retry * 2u32.pow(tries.min(DOUBLINGS));
                let not_before = state.common.clock.now() + pause;
                drop(desk);
                self.cause = Some(Cause::File(inode));
                self.retries.insert(inode, Retry { not_before, tries: tries.saturating_add(1) });
                return;
            }
        }
        drop(desk);
        self.retries.remove(&inode);
    }

    async fn encode(&self, file: StagedFile, term: u64) -> Result<End, WireError> {
        let state = &self.partition.state;
        let mut movers = Movers::near(self.partition.clone(), self.client.clone(), file.pg);
        movers.rest_as(self.settings().rate);
        let mut from = 0;
        loop {
            let now = state.namespace.read().staged_file(file.inode);
            let due = |now: StagedFile| now.durable && due_at(&now) <= state.common.clock.wall();
            if !now.is_some_and(|now| due(now) && !now.is_mostly_shared()) || self.held() {
                return Ok(End::Gone);
            }
            {
                let mut desk = self.desk().lock();
                (desk.inode, desk.from) = (file.inode, from);
            }
            let start = state.common.clock.now();
            let volume = state.volume.get();
            let request = EncodeRequest { volume, inode: file.inode, from, ..EncodeRequest::default() };
            let done: EncodeResponse = movers.ask(Opcode::Encode, &request, DEADLINE, term).await?;
            add(&state.common.stats.encoded_bytes, done.moved_bytes);
            add(&state.common.stats.encoding_freed_bytes, done.freed_bytes);
            {
                let mut desk = self.desk().lock();
                desk.encoded_bytes += done.moved_bytes;
                desk.freed_bytes += done.freed_bytes;
            }
            let rate = self.settings().rate.unwrap_or(RATE);
            if rate > 0 {
                let least = Duration::from_secs_f64(done.moved_bytes as f64 / rate as f64);
                sleep(least.saturating_sub(state.common.clock.now().since(start))).await;
            }
            match done.outcome {
                // Not begun anew at once: it might be written all the time.
                MORE if done.next <= from => return Ok(End::Left("what lies before was written meanwhile".into())),
                MORE => from = done.next,
                ENCODED => return Ok(End::Encoded),
                KEPT => return Ok(End::Kept),
                LEFT => return Ok(End::Left(done.reason)),
                _ => return Ok(End::Gone),
            }
        }
    }
}
