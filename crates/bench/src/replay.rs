//! `cairn bench replay`: the load that request logs of servers tell of, made again: as many operations of each kind, of
//! the same sizes, at the same moments (or faster, or as fast as they go).
//!
//! What clients asked is replayed, not what servers asked each other for them. It is the load that is made again, not
//! the contents: reads go to random places of files that were prepared, writes to files of their own, names are made
//! up. Requests that belong to other operations (publishing, leases, sessions) come with those.
mod plan;
mod worker;

use crate::BenchContext;
use crate::cpu::CpuReading;
use crate::report::{Row, latencies};
use anyhow::Context;
use cairn_client::{Client, Volume};
use cairn_env::{Clock, RealClock};
use cairn_types::{ByteCount, Layout};
use clap::Args;
use hdrhistogram::Histogram;
use plan::{Kind, Plan};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use worker::{Due, Stage};

/// Operations that are due and that no worker has taken yet, per worker.
const QUEUE: usize = 64;

/// Arguments of `cairn bench replay`.
#[derive(Args, Debug, Clone)]
pub struct ReplayArgs {
    /// Files of request logs, of one server or of many, from the same time
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// Times as fast as it was; 0: as fast as it goes
    #[arg(long, default_value_t = 1.0)]
    pub speed: f64,
    /// Operations at the same time, at most
    #[arg(long, default_value_t = 64)]
    pub parallel: usize,
    /// Bytes of the files that are read
    #[arg(long, default_value = "256m")]
    pub set: ByteCount,
    #[arg(long, default_value = "r3")]
    pub layout: Layout,
    #[arg(long, default_value = "default")]
    pub volume: String,
}

/// Runs it.
pub fn run(args: &ReplayArgs, context: &BenchContext) -> anyhow::Result<()> {
    anyhow::ensure!(args.speed >= 0.0 && args.speed.is_finite(), "--speed is a number from 0 on");
    anyhow::ensure!((1..=4096).contains(&args.parallel), "--parallel is 1 to 4096");
    let plan = Plan::read(&args.files)?;
    anyhow::ensure!(
        !plan.steps.is_empty(),
        "the logs have no request of a client that can be replayed ({} others); name files of data and meta servers from the time of the load",
        plan.left_out
    );
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(replay(args, plan, context))
}

async fn replay(args: &ReplayArgs, plan: Plan, context: &BenchContext) -> anyhow::Result<()> {
    let client = context.connect().await?;
    let volume = client.volume(&args.volume).await?;
    let root = format!("/.bench-replay-{}", std::process::id());
    crate::interrupt::writes_to(&root);
    let outcome = play(args, plan, context, (&client, &volume, &root)).await;
    // Nothing is left of one that failed, either: the volume may be full of it.
    let removed = volume.remove_tree(root.as_bytes()).await;
    volume.close().await;
    outcome?;
    Ok(removed?)
}

async fn play(
    args: &ReplayArgs,
    plan: Plan,
    context: &BenchContext,
    (client, volume, root): (&Client, &Volume, &str),
) -> anyhow::Result<()> {
    let stage = Arc::new(Stage::prepare(volume, root, args.layout, args.set.0).await.context("preparing the files")?);
    if !context.json {
        println!(
            "{} operations of {:.1} s, {} other requests are left out",
            plan.steps.len(),
            plan.span().as_secs_f64(),
            plan.left_out
        );
    }
    let before = CpuReading::take(client).await;
    let begun = RealClock.now();
    let (send, receive) = async_queue(args.parallel);
    let workers: Vec<_> =
        (0..args.parallel).map(|number| tokio::spawn(worker::work(number, stage.clone(), receive.clone()))).collect();
    let span = plan.span();
    let logged = plan.logged();
    for (number, step) in plan.steps.into_iter().enumerate() {
        let due = match args.speed {
            0.0 => RealClock.now(),
            speed => begun + step.after.div_f64(speed),
        };
        let now = RealClock.now();
        if due > now {
            tokio::time::sleep(due.since(now)).await;
        }
        send.send(Due { step, due, number: number as u64 }).await.map_err(|_| anyhow::anyhow!("all workers ended"))?;
    }
    drop(send);
    let mut done: BTreeMap<Kind, worker::Done> = BTreeMap::new();
    for worker in workers {
        for (kind, more) in worker.await?? {
            done.entry(kind).or_default().add(&more)?;
        }
    }
    let took = RealClock.now().since(begun);
    let cpu = CpuReading::take(client).await.since(&before);
    let mut all = (0, 0, 0);
    let mut latency = latencies();
    for (kind, done) in &done {
        let totals = (done.operations, done.bytes, done.errors);
        all = (all.0 + totals.0, all.1 + totals.1, all.2 + totals.2);
        latency.add(&done.latency)?;
        // Of which kind the time of processors was used cannot be told.
        Row::new(kind.name(), (args.parallel, 1), totals, took, &done.latency, Default::default()).print(context.json);
        if let Some(logged) = logged.get(kind)
            && !context.json
        {
            println!("{:<22} {}", "", in_log(logged));
        }
    }
    Row::new("all", (args.parallel, 1), all, took, &latency, cpu).print(context.json);
    if !context.json {
        println!("took {:.1} s, the log {:.1} s", took.as_secs_f64(), span.as_secs_f64());
    }
    anyhow::ensure!(all.2 == 0, "{} operations failed; the first: {}", all.2, first_failure(&done));
    Ok(())
}

fn first_failure(done: &BTreeMap<Kind, worker::Done>) -> &str {
    done.values().find_map(|done| done.first_error.as_deref()).unwrap_or("?")
}

/// What the servers took then, without the network and what belongs to the same operation.
fn in_log(logged: &Histogram<u64>) -> String {
    let (p50, p99) = (logged.value_at_quantile(0.5), logged.value_at_quantile(0.99));
    format!("in the log, one request at its server: p50 {p50:>7} µs  p99 {p99:>8} µs  max {:>8} µs", logged.max())
}

type Queue = Arc<tokio::sync::Mutex<tokio::sync::mpsc::Receiver<Due>>>;

fn async_queue(workers: usize) -> (tokio::sync::mpsc::Sender<Due>, Queue) {
    let (send, receive) = tokio::sync::mpsc::channel(QUEUE * workers);
    (send, Arc::new(tokio::sync::Mutex::new(receive)))
}

/// Time between two points of a log.
fn between(from: u64, to: u64) -> Duration {
    Duration::from_nanos(to.saturating_sub(from))
}
