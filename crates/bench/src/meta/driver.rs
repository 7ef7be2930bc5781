//! Drives the clients: threads with an own runtime, a bare connection a client, a fixed number of calls outstanding.
//! It speaks the protocol itself: the library would add its own work to what is measured of the servers.
use super::ops::{Operation, Target};
use crate::report::latencies;
use cairn_env::buf::BufPool;
use cairn_env::{Clock, RealClock};
use cairn_rpc::{Connection, Identity};
use cairn_types::Time;
use cairn_wire::common::ErrorInfo;
use cairn_wire::meta::ReaddirResponse;
use hdrhistogram::Histogram;
use prost::Message;
use std::collections::BTreeMap;
use std::time::Duration;

/// A run that makes no progress for so long is given up.
const STALL: Duration = Duration::from_secs(20);

/// When a phase ends.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    Time(Duration),
    /// After so many calls of each slot.
    Calls(u64),
    /// After every created file.
    Created,
}

/// One phase.
#[derive(Clone, Debug)]
pub struct Job {
    pub operation: Operation,
    pub limit: Limit,
    /// Files are taken at random, not in the order of their creation.
    pub random: bool,
    /// What its connections show.
    pub identity: Identity,
}

struct Slot {
    sequence: u64,
    created: u64,
    /// Directories made by `mkdir`.
    made: u64,
    done: u64,
}

/// One client.
pub struct Worker {
    target: Target,
    slots: Vec<Slot>,
    renamed: bool,
}

/// What a phase brought.
pub struct Outcome {
    pub operations: u64,
    pub errors: u64,
    pub latency: Histogram<u64>,
    pub first_error: Option<String>,
}

impl Worker {
    pub fn new(target: Target, in_flight: usize) -> Self {
        let slots = (0..in_flight).map(|_| Slot { sequence: 0, created: 0, made: 0, done: 0 }).collect();
        Self { target, slots, renamed: false }
    }
}

/// Runs one phase with all workers, spread over threads.
pub async fn drive(workers: Vec<Worker>, job: Job, threads: usize) -> anyhow::Result<(Vec<Worker>, Outcome)> {
    let mut parts: Vec<Vec<Worker>> = (0..threads).map(|_| Vec::new()).collect();
    for (i, worker) in workers.into_iter().enumerate() {
        parts[i % threads].push(worker);
    }
    let tasks: Vec<_> = parts
        .into_iter()
        .map(|part| {
            let job = job.clone();
            tokio::task::spawn_blocking(move || drive_thread(part, &job))
        })
        .collect();
    let mut all = Vec::new();
    let mut total = Outcome { operations: 0, errors: 0, latency: latencies(), first_error: None };
    for task in tasks {
        for (worker, outcome) in task.await?? {
            all.push(worker);
            total.operations += outcome.operations;
            total.errors += outcome.errors;
            total.latency.add(&outcome.latency)?;
            total.first_error = total.first_error.or(outcome.first_error);
        }
    }
    Ok((all, total))
}

fn drive_thread(workers: Vec<Worker>, job: &Job) -> anyhow::Result<Vec<(Worker, Outcome)>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let tasks: Vec<_> =
            workers.into_iter().map(|worker| tokio::task::spawn_local(run_worker(worker, job.clone()))).collect();
        let mut out = Vec::new();
        for task in tasks {
            out.push(task.await??);
        }
        Ok(out)
    })
}

async fn run_worker(mut worker: Worker, job: Job) -> anyhow::Result<(Worker, Outcome)> {
    let identity = job.identity.clone();
    let pool = BufPool::new(16 << 20);
    let mut connection = Connection::connect(&worker.target.at.leader, &identity, pool).await?;
    let mut outcome = Outcome { operations: 0, errors: 0, latency: latencies(), first_error: None };
    let started = RealClock.now();
    // Request id → (slot, time of sending).
    let mut waiting: BTreeMap<u64, (usize, Time)> = BTreeMap::new();
    let mut cookie: Vec<u8> = Vec::new();
    let mut listed = false;
    worker.slots.iter_mut().for_each(|slot| slot.done = 0);
    for slot in 0..worker.slots.len() {
        start(&mut worker, &job, slot, &mut connection, &mut waiting, (started, &cookie, listed))?;
    }
    while !waiting.is_empty() {
        tokio::time::timeout(STALL, connection.fill()).await??;
        let mut finished = Vec::new();
        while let Some(answer) = connection.try_recv()? {
            let Some((slot, sent)) = waiting.remove(&answer.request_id) else { continue };
            outcome.latency.saturating_record(RealClock.now().since(sent).as_micros() as u64);
            outcome.operations += 1;
            if answer.error {
                outcome.errors += 1;
                let info = ErrorInfo::decode(answer.message).unwrap_or_default();
                outcome.first_error.get_or_insert(info.message);
            } else if job.operation == Operation::Readdir {
                let page = ReaddirResponse::decode(answer.message)?;
                outcome.operations += page.entries.len().saturating_sub(1) as u64;
                listed = page.end;
                cookie = page.entries.last().map(|e| e.cookie.clone()).unwrap_or_default();
            }
            finished.push(slot);
        }
        for slot in finished {
            let state = &mut worker.slots[slot];
            state.done += 1;
            match job.operation {
                Operation::Create => state.created += 1,
                Operation::Mkdir => state.made += 1,
                _ => {}
            }
            start(&mut worker, &job, slot, &mut connection, &mut waiting, (started, &cookie, listed))?;
        }
    }
    worker.renamed |= job.operation == Operation::Rename;
    Ok((worker, outcome))
}

/// Sends the slot's next call, if the phase is not over for it.
fn start(
    worker: &mut Worker,
    job: &Job,
    slot: usize,
    connection: &mut Connection,
    waiting: &mut BTreeMap<u64, (usize, Time)>,
    (started, cookie, listed): (Time, &[u8], bool),
) -> anyhow::Result<()> {
    let now = RealClock.now();
    let state = &mut worker.slots[slot];
    let over = match job.limit {
        Limit::Time(limit) => now.since(started) >= limit || job.random && state.created == 0,
        Limit::Calls(limit) => state.done >= limit,
        // A directory is listed by one slot, page after page.
        Limit::Created if job.operation == Operation::Readdir => slot != 0 || listed,
        Limit::Created => state.done >= state.created,
    };
    if over {
        return Ok(());
    }
    let number = match job.operation {
        Operation::Create => state.created,
        Operation::Mkdir => state.made,
        _ if job.random => scattered(state.done) % state.created,
        _ => state.done,
    };
    let sequence = if job.operation.is_mutation() {
        state.sequence += 1;
        state.sequence
    } else {
        0
    };
    let call = (slot as u32, sequence, number);
    let id = job.operation.send(connection, &worker.target, call, worker.renamed, cookie)?;
    waiting.insert(id, (slot, now));
    Ok(())
}

/// The n-th of a fixed row of numbers without order (SplitMix64).
fn scattered(n: u64) -> u64 {
    let n = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ n >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ n >> 31
}
