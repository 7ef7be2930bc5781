//! `cairn bench files`: many files of one size, created with their contents and read back, as a tree is stored.
use crate::BenchContext;
use crate::cpu::CpuReading;
use crate::report::{Row, latencies};
use cairn_client::{FileWriter, Volume, WriteOptions};
use cairn_env::buf::SharedBuf;
use cairn_env::{Clock, RealClock};
use cairn_types::{ByteCount, Layout};
use clap::Args;
use hdrhistogram::Histogram;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Arguments of `cairn bench files`.
#[derive(Args, Debug, Clone)]
pub struct FilesArgs {
    #[arg(long, default_value = "r3")]
    pub layout: Layout,
    /// Bytes a file, up to 1 MiB
    #[arg(long, default_value = "200k")]
    pub size: ByteCount,
    #[arg(long, default_value_t = 5000)]
    pub count: u64,
    /// Files in flight
    #[arg(long, value_delimiter = ',', default_value = "1,16,64")]
    pub parallel: Vec<usize>,
    #[arg(long, default_value = "default")]
    pub volume: String,
}

/// Runs it.
pub fn run(args: &FilesArgs, context: &BenchContext) -> anyhow::Result<()> {
    anyhow::ensure!(
        args.size.0 <= cairn_client::SEGMENT_MAX as u64,
        "--size is at most 1m; use cairn bench io for large files"
    );
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(measure(args, context))
}

async fn measure(args: &FilesArgs, context: &BenchContext) -> anyhow::Result<()> {
    let client = context.connect().await?;
    let volume = client.volume(&args.volume).await?;
    let root = format!("/.bench-files-{}", std::process::id());
    crate::interrupt::writes_to(&root);
    volume.mkdir_all(root.as_bytes(), 0o755).await?;
    for &parallel in &args.parallel {
        let directory = format!("{root}/{parallel}");
        volume.mkdir(directory.as_bytes(), 0o755, 0).await?;
        let mut buffer = FileWriter::buffer();
        buffer.resize(args.size.0 as usize);
        buffer.fill(0x5a);
        let data = buffer.freeze();
        for write in [true, false] {
            let before = CpuReading::take(&client).await;
            let started = RealClock.now();
            let next = Arc::new(AtomicU64::new(0));
            let job = |_| {
                let (volume, directory, data, next) = (volume.clone(), directory.clone(), data.clone(), next.clone());
                tokio::spawn(worker(volume, directory, data, next, (args.count, args.layout, write)))
            };
            let tasks: Vec<_> = (0..parallel).map(job).collect();
            let mut latency = latencies();
            for task in tasks {
                latency.add(&task.await??)?;
            }
            let took = RealClock.now().since(started);
            let cpu = CpuReading::take(&client).await.since(&before);
            let what = format!("{} {} {}", if write { "put" } else { "get" }, args.layout, args.size);
            let totals = (args.count, args.count * args.size.0, 0);
            Row::new(&what, (parallel, 1), totals, took, &latency, cpu).print(context.json);
        }
    }
    volume.remove_tree(root.as_bytes()).await?;
    volume.close().await;
    Ok(())
}

async fn worker(
    volume: Volume,
    directory: String,
    data: SharedBuf,
    next: Arc<AtomicU64>,
    (count, layout, write): (u64, Layout, bool),
) -> anyhow::Result<Histogram<u64>> {
    let mut latency = latencies();
    loop {
        let i = next.fetch_add(1, Ordering::Relaxed);
        if i >= count {
            return Ok(latency);
        }
        let path = format!("{directory}/file-{i:08}");
        let started = RealClock.now();
        if write {
            let options = WriteOptions { mode: 0o644, mtime_ns: 0, layout, exclusive: false, owner: None };
            let mut writer = volume.write(path.as_bytes(), options).await?;
            writer.push(data.clone()).await?;
            writer.finish().await?;
        } else {
            let mut reader = volume.read(path.as_bytes(), 0, u64::MAX).await?;
            let mut bytes = 0;
            while let Some(piece) = reader.next().await? {
                bytes += piece.data.len();
            }
            anyhow::ensure!(bytes == data.len(), "{path} has {bytes} bytes, {} were written", data.len());
        }
        latency.saturating_record(RealClock.now().since(started).as_micros() as u64);
    }
}
