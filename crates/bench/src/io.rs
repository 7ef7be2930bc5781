//! `cairn bench io`: sequential writes that are synced at the end, and reads, by layout and number of streams; random
//! overwrites with `--overwrite`.
use crate::BenchContext;
use crate::cpu::CpuReading;
use crate::overwrite::{self, Load, Way};
use crate::report::{Row, latencies};
use anyhow::Context;
use cairn_client::{Client, ClientError, FileWriter, Volume, WriteOptions};
use cairn_env::{Clock, RealClock};
use cairn_types::{ByteCount, ErrorCode, Layout};
use clap::Args;
use hdrhistogram::Histogram;
use std::path::PathBuf;
use std::time::Duration;

/// Arguments of `cairn bench io`.
#[derive(Args, Debug, Clone)]
pub struct IoArgs {
    /// Layouts to measure, such as r3, rs-6-3 or r2x8/64k
    #[arg(long, value_delimiter = ',', default_value = "r1,r3")]
    pub layouts: Vec<Layout>,
    /// Numbers of concurrent streams, a file each
    #[arg(long, value_delimiter = ',', default_value = "1,4")]
    pub streams: Vec<usize>,
    /// Bytes a run, over all streams
    #[arg(long, default_value = "2g")]
    pub size: ByteCount,
    #[arg(long, default_value = "default")]
    pub volume: String,
    /// Also measure the raw write bandwidth of the disk that holds this directory
    #[arg(long)]
    pub raw_dir: Option<PathBuf>,
    /// Also read after dropping the page cache (needs root)
    #[arg(long)]
    pub cold: bool,
    /// Instead: overwrite random 4 KiB blocks of a file of --size, each durable when it is answered, in place and to
    /// new space
    #[arg(long)]
    pub overwrite: bool,
    /// With --overwrite: numbers of blocks that are under way at the same time
    #[arg(long, value_delimiter = ',', default_value = "1,16")]
    pub depths: Vec<usize>,
    /// With --overwrite: seconds of each measurement
    #[arg(long, default_value_t = 5.0)]
    pub seconds: f64,
}

/// Runs it.
pub fn run(args: &IoArgs, context: &BenchContext) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(measure(args, context))
}

async fn measure(args: &IoArgs, context: &BenchContext) -> anyhow::Result<()> {
    let client = context.connect().await?;
    let volume = client.volume(&args.volume).await?;
    let directory = format!("/.bench-io-{}", std::process::id());
    crate::interrupt::writes_to(&directory);
    volume.mkdir_all(directory.as_bytes(), 0o755).await?;
    let result = match args.overwrite {
        true => measure_overwrites(args, context, &client, &volume, &directory).await,
        false => measure_all(args, context, &client, &volume, &directory).await,
    };
    volume.remove_tree(directory.as_bytes()).await.context("removing the benchmark's files")?;
    volume.close().await;
    result
}

async fn measure_all(
    args: &IoArgs,
    context: &BenchContext,
    client: &Client,
    volume: &Volume,
    directory: &str,
) -> anyhow::Result<()> {
    for layout in &args.layouts {
        for &streams in &args.streams {
            if let Some(dir) = &args.raw_dir {
                let (dir, size) = (dir.clone(), args.size.0);
                let raw = tokio::task::spawn_blocking(move || crate::raw::write_bandwidth(&dir, size)).await??;
                eprintln!("raw disk, direct 1 MiB writes: {raw:.0} MB/s");
            }
            let size = (args.size.0 / streams as u64).max(1);
            // A layout's text may have a slash.
            let stem = layout.to_string().replace('/', ":");
            let paths: Vec<String> = (0..streams).map(|i| format!("{directory}/{stem}-{streams}-{i}")).collect();
            let name = |what: &str| format!("{what} {layout}");
            let row =
                phase(client, &paths, &name("write"), |path| write_file(volume.clone(), path, *layout, size)).await;
            let row = row.map_err(|error| without_path(error, *layout))?;
            row.print(context.json);
            // What was just written went past the page cache: the first read brings it in.
            let row = phase(client, &paths, &name("read first"), |path| read_file(volume.clone(), path, size)).await?;
            row.print(context.json);
            let row = phase(client, &paths, &name("read warm"), |path| read_file(volume.clone(), path, size)).await?;
            row.print(context.json);
            if args.cold {
                std::fs::write("/proc/sys/vm/drop_caches", "3").context("dropping the page cache needs root")?;
                let row =
                    phase(client, &paths, &name("read cold"), |path| read_file(volume.clone(), path, size)).await?;
                row.print(context.json);
            }
            for path in &paths {
                volume.unlink(path.as_bytes()).await?;
            }
        }
    }
    Ok(())
}

/// A layout that cannot be stored is the fault of no file.
fn without_path(error: anyhow::Error, layout: Layout) -> anyhow::Error {
    match error.downcast_ref::<ClientError>() {
        Some(ClientError::Remote { error, .. })
            if matches!(error.code, ErrorCode::NotEnoughDisks | ErrorCode::BadLayout) =>
        {
            anyhow::anyhow!("layout {layout}: {}", error.message)
        }
        _ => error,
    }
}

async fn measure_overwrites(
    args: &IoArgs,
    context: &BenchContext,
    client: &Client,
    volume: &Volume,
    directory: &str,
) -> anyhow::Result<()> {
    for layout in &args.layouts {
        let path = format!("{directory}/overwritten-{}", layout.to_string().replace('/', ":"));
        write_file(volume.clone(), path.clone(), *layout, args.size.0).await?;
        let blocks = overwrite::blocks_of(volume, &path).await?;
        // New space last: afterwards the blocks are elsewhere.
        for (way, name) in [(Way::InPlace, "in place"), (Way::NewSpace, "new space")] {
            for &depth in &args.depths {
                let load = Load { seconds: args.seconds, depth: depth.max(1) };
                let what = format!("4 KiB {name} {layout}");
                overwrite::measure(client, volume, &path, &blocks, (way, load), &what).await?.print(context.json);
            }
        }
        volume.unlink(path.as_bytes()).await?;
    }
    Ok(())
}

async fn phase<F, T>(client: &Client, paths: &[String], what: &str, job: F) -> anyhow::Result<Row>
where
    F: Fn(String) -> T,
    T: Future<Output = anyhow::Result<(u64, Histogram<u64>)>> + Send + 'static,
{
    let before = CpuReading::take(client).await;
    let started = RealClock.now();
    let tasks: Vec<_> = paths.iter().map(|path| tokio::spawn(job(path.clone()))).collect();
    let (mut bytes, mut latency) = (0, latencies());
    for task in tasks {
        let (done, times) = task.await??;
        bytes += done;
        latency.add(&times)?;
    }
    let took: Duration = RealClock.now().since(started);
    let cpu = CpuReading::take(client).await.since(&before);
    Ok(Row::new(what, (paths.len(), 1), (latency.len(), bytes, 0), took, &latency, cpu))
}

/// Different bytes in each MiB, made without costing much.
fn fill(buffer: &mut [u8], seed: u64) {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for word in buffer.chunks_exact_mut(8) {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        word.copy_from_slice(&x.to_le_bytes());
    }
}

async fn write_file(volume: Volume, path: String, layout: Layout, size: u64) -> anyhow::Result<(u64, Histogram<u64>)> {
    let mut latency = latencies();
    let options = WriteOptions { mode: 0o644, mtime_ns: 0, layout, exclusive: false, owner: None };
    let mut writer = volume.write(path.as_bytes(), options).await?;
    // One filled buffer is enough: what is measured is the way to the disks.
    let mut template = FileWriter::buffer();
    template.resize(cairn_client::SEGMENT_MAX);
    fill(&mut template, path.len() as u64);
    let template = template.freeze();
    let mut left = size;
    while left > 0 {
        let part = (left as usize).min(template.len());
        let started = RealClock.now();
        writer.push(template.slice(..part)).await?;
        latency.saturating_record(RealClock.now().since(started).as_micros() as u64);
        left -= part as u64;
    }
    writer.finish().await?;
    Ok((size, latency))
}

async fn read_file(volume: Volume, path: String, size: u64) -> anyhow::Result<(u64, Histogram<u64>)> {
    let mut latency = latencies();
    let mut reader = volume.read(path.as_bytes(), 0, u64::MAX).await?;
    let mut bytes = 0;
    loop {
        let started = RealClock.now();
        let Some(piece) = reader.next().await? else { break };
        latency.saturating_record(RealClock.now().since(started).as_micros() as u64);
        bytes += piece.data.len() as u64;
    }
    anyhow::ensure!(bytes == size, "{path} has {bytes} bytes, {size} were written");
    Ok((bytes, latency))
}
