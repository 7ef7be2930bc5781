//! `cairn bench append`: records of one size that many writers append to one file at the same time. Afterwards the file
//! is read, and each record has to be there once.
use crate::BenchContext;
use crate::cpu::CpuReading;
use crate::report::{Row, latencies};
use anyhow::Context;
use cairn_client::changes::NewFile;
use cairn_client::record::{RecordAppender, RecordLevel, RecordOptions};
use cairn_client::{Client, Volume};
use cairn_env::{Clock, RealClock};
use cairn_types::{ByteCount, Layout};
use clap::{Args, ValueEnum};
use hdrhistogram::Histogram;
use std::collections::{BTreeSet, VecDeque};

/// When a record counts as appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Level {
    Memory,
    Durable,
    Visible,
}

/// Arguments of `cairn bench append`.
#[derive(Args, Debug, Clone)]
pub struct AppendArgs {
    /// Writers, each with a session of its own
    #[arg(long, default_value_t = 8)]
    pub writers: usize,
    /// Bytes of a record
    #[arg(long, default_value = "4k")]
    pub size: ByteCount,
    /// Records, over all writers
    #[arg(long, default_value_t = 100_000)]
    pub records: u64,
    /// Records of one writer that are under way at the same time
    #[arg(long, default_value_t = 256)]
    pub depth: usize,
    /// First records of each writer that are not in the latencies: at the beginning all writers are in one chunk
    #[arg(long, default_value_t = 0)]
    pub warm_up: u64,
    /// When a record counts as appended
    #[arg(long, value_enum, default_value = "durable")]
    pub level: Level,
    #[arg(long, default_value = "r3")]
    pub layout: Layout,
    #[arg(long, default_value = "default")]
    pub volume: String,
}

/// Runs it.
pub fn run(args: &AppendArgs, context: &BenchContext) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(measure(args, context))
}

async fn measure(args: &AppendArgs, context: &BenchContext) -> anyhow::Result<()> {
    anyhow::ensure!(
        args.writers > 0 && args.depth > 0 && args.size.0 >= 8,
        "--writers, --depth: 1 or more; --size: 8 or more"
    );
    let client = context.connect().await?;
    let volume = client.volume(&args.volume).await?;
    let path = format!("/.bench-append-{}", std::process::id());
    crate::interrupt::writes_to(&path);
    let new = NewFile { mode: 0o100_644, layout: args.layout.to_bits(), exclusive: true, ..NewFile::default() };
    volume.create(path.as_bytes(), new).await?;
    let result = append_all(args, context, &client, &volume, &path).await;
    volume.unlink(path.as_bytes()).await.context("removing the benchmark's file")?;
    volume.close().await;
    result
}

async fn append_all(
    args: &AppendArgs,
    context: &BenchContext,
    client: &Client,
    volume: &Volume,
    path: &str,
) -> anyhow::Result<()> {
    let level = match args.level {
        Level::Memory => RecordLevel::Memory,
        Level::Durable => RecordLevel::Durable,
        Level::Visible => RecordLevel::Visible,
    };
    let options = RecordOptions { level, ..RecordOptions::default() };
    let mut appenders = Vec::new();
    for _ in 0..args.writers {
        appenders.push(volume.record_appender(path.as_bytes(), options).await?);
    }
    let (each, more) = (args.records / args.writers as u64, args.records % args.writers as u64);
    let before = CpuReading::take(client).await;
    let started = RealClock.now();
    let tasks: Vec<_> = (0u64..)
        .zip(appenders)
        .map(|(i, appender)| {
            let (count, size, how) = (each + u64::from(i < more), args.size.0 as usize, (args.depth, args.warm_up));
            tokio::spawn(async move { write(appender, i << 40, count, size, how).await })
        })
        .collect();
    let mut latency = latencies();
    for task in tasks {
        latency.add(&task.await??)?;
    }
    let took = RealClock.now().since(started);
    let cpu = CpuReading::take(client).await.since(&before);
    let bytes = args.records * args.size.0;
    let what = format!("append {:?} {} {}", args.level, args.size, args.layout).to_lowercase();
    Row::new(&what, (args.writers, args.depth), (args.records, bytes, 0), took, &latency, cpu).print(context.json);
    check(volume, path, args.records).await
}

/// Records that begin with a number of their own. The last ones are waited for until all are in the file.
async fn write(
    appender: RecordAppender,
    first: u64,
    count: u64,
    size: usize,
    (depth, warm_up): (usize, u64),
) -> anyhow::Result<Histogram<u64>> {
    let (mut latency, mut record, mut under_way) = (latencies(), vec![7u8; size], VecDeque::new());
    let is_measured = |number: u64| number - first >= warm_up;
    for number in first..first + count {
        if under_way.len() == depth
            && let Some((ticket, begun)) = under_way.pop_front()
        {
            finish(ticket, begun, &mut latency).await?;
        }
        record[..8].copy_from_slice(&number.to_le_bytes());
        let begun = is_measured(number).then(|| RealClock.now());
        under_way.push_back((appender.append(&record).await?, begun));
    }
    while let Some((ticket, begun)) = under_way.pop_front() {
        finish(ticket, begun, &mut latency).await?;
    }
    appender.close().await?;
    Ok(latency)
}

async fn finish(
    ticket: cairn_client::record::RecordTicket,
    begun: Option<cairn_types::Time>,
    latency: &mut Histogram<u64>,
) -> anyhow::Result<()> {
    ticket.done().await?;
    if let Some(begun) = begun {
        latency.saturating_record(RealClock.now().since(begun).as_micros() as u64);
    }
    Ok(())
}

async fn check(volume: &Volume, path: &str, records: u64) -> anyhow::Result<()> {
    let mut reader = volume.record_reader(path.as_bytes(), 0, u64::MAX).await?;
    let mut seen = BTreeSet::new();
    while let Some(record) = reader.next().await? {
        let number: [u8; 8] = record.bytes.get(..8).context("a record is cut off")?.try_into()?;
        anyhow::ensure!(seen.insert(u64::from_le_bytes(number)), "a record is there twice, at {}", record.offset);
    }
    let skipped = reader.skipped();
    anyhow::ensure!(seen.len() as u64 == records, "{} records are there, {records} were appended", seen.len());
    anyhow::ensure!(skipped.damaged == 0, "{} bytes of the file belong to no record", skipped.damaged);
    eprintln!("each of {records} records is there once; {} bytes of padding in {}", skipped.padding, reader.size());
    Ok(())
}
