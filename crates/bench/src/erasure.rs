//! `cairn bench erasure`: the kernels of the erasure codes on one core, without a cluster.
//!
//! Per scheme, length of shard and kernel: encoding, and decoding of one and of m lost data shards; from buffers that
//! stay in the caches and from ones that do not. A rate counts the k shards that are read, whatever is computed.
use crate::BenchContext;
use anyhow::{Context, ensure};
use cairn_env::buf::AlignedBuf;
use cairn_env::{Clock, RealClock};
use cairn_erasure::{Codec, DecodePlan, Kernel, ShardSet};
use cairn_telemetry::ProcessUse;
use cairn_types::{ByteCount, Scheme};
use clap::{Args, ValueEnum};
use serde::Serialize;

#[cfg(test)]
mod tests;

/// Bytes of all stripes together when they shall come from memory: far more than the last cache of any processor.
const MEMORY_BYTES: usize = 256 << 20;

/// Longest shard that is measured.
const SHARD_MAX: u64 = 64 << 20;

/// Arguments of `cairn bench erasure`.
#[derive(Args, Debug, Clone)]
pub struct ErasureArgs {
    /// Schemes to measure
    #[arg(long = "scheme", value_delimiter = ',', default_value = "rs-3-2,rs-6-3,rs-8-3,rs-10-4,rs-12-4")]
    pub schemes: Vec<Scheme>,
    /// Bytes of a shard
    #[arg(long = "shard", value_delimiter = ',', default_value = "64k,1m")]
    pub shards: Vec<ByteCount>,
    /// Kernels to measure, `best` for the one that is used; all that this processor can run when left out
    #[arg(long = "kernel", value_delimiter = ',')]
    pub kernels: Vec<String>,
    /// What to compute
    #[arg(long, value_delimiter = ',', value_enum, default_value = "encode,decode-1,decode-m")]
    pub work: Vec<Work>,
    /// Where the shards are before
    #[arg(long, value_delimiter = ',', value_enum, default_value = "cache,memory")]
    pub from: Vec<Place>,
    /// Seconds a round
    #[arg(long, default_value_t = 0.05)]
    pub seconds: f64,
    /// Rounds of each measurement, of which the median is told
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Work {
    Encode,
    /// One lost data shard
    #[value(name = "decode-1")]
    DecodeOne,
    /// As many lost data shards as there are parities
    #[value(name = "decode-m")]
    DecodeAll,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Place {
    /// The same stripe again and again
    Cache,
    /// Stripes in turn, 256 MiB of them
    Memory,
}

/// One measurement.
#[derive(Clone, Debug, Serialize)]
pub struct ErasureRow {
    pub scheme: String,
    pub shard_bytes: usize,
    pub from: String,
    pub work: String,
    pub kernel: String,
    pub gb_per_second: f64,
    pub cpu_s_per_gb: f64,
}

impl ErasureRow {
    fn print(&self, json: bool) {
        if json {
            println!("{}", serde_json::to_string(self).expect("a row is plain data"));
            return;
        }
        println!(
            "{:<8} {:>5} KiB  {:<7} {:<9} {:<12} {:>8.2} GB/s  {:>7.4} CPU s/GB",
            self.scheme,
            self.shard_bytes >> 10,
            self.from,
            self.work,
            self.kernel,
            self.gb_per_second,
            self.cpu_s_per_gb
        );
    }
}

/// Runs it.
pub fn run(args: &ErasureArgs, context: &BenchContext) -> anyhow::Result<()> {
    measure(args, |row| row.print(context.json))
}

fn measure(args: &ErasureArgs, mut report: impl FnMut(ErasureRow)) -> anyhow::Result<()> {
    let kernels = kernels(&args.kernels)?;
    ensure!(args.rounds > 0 && args.seconds > 0.0, "--rounds and --seconds must be more than 0");
    for &scheme in &args.schemes {
        let shape = Codec::for_scheme(scheme)?;
        for shard in &args.shards {
            ensure!((1..=SHARD_MAX).contains(&shard.0), "--shard {shard}: between 1 byte and {}", ByteCount(SHARD_MAX));
            for &from in &args.from {
                let mut stripes = Stripes::new(&shape, shard.0 as usize, from);
                for &kernel in &kernels {
                    let codec = Codec::with_kernel(shape.k(), shape.m(), kernel)?;
                    for &work in &args.work {
                        let Some(job) = Job::new(&codec, work)? else { continue };
                        let (gb_per_second, cpu_s_per_gb) = stripes.median(&job, args)?;
                        report(ErasureRow {
                            scheme: scheme.to_string(),
                            shard_bytes: shard.0 as usize,
                            from: name(from),
                            work: job.name.clone(),
                            kernel: kernel.to_string(),
                            gb_per_second,
                            cpu_s_per_gb,
                        });
                    }
                }
            }
        }
    }
    Ok(())
}

fn kernels(names: &[String]) -> anyhow::Result<Vec<Kernel>> {
    if names.is_empty() {
        return Ok(Kernel::available());
    }
    names
        .iter()
        .map(|name| match name.as_str() {
            "best" => Ok(Kernel::best()),
            _ => name.parse().map_err(anyhow::Error::msg),
        })
        .collect()
}

fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|v| v.get_name().to_string()).unwrap_or_default()
}

/// What is computed for a stripe.
struct Job {
    name: String,
    codec: Codec,
    plan: Option<DecodePlan>,
}

impl Job {
    /// `None` when it would be the same as another.
    fn new(codec: &Codec, work: Work) -> anyhow::Result<Option<Job>> {
        let lost = match work {
            Work::Encode => return Ok(Some(Job { name: "encode".into(), codec: codec.clone(), plan: None })),
            Work::DecodeOne => 1,
            Work::DecodeAll => codec.m().min(codec.k()),
        };
        if work == Work::DecodeAll && lost == 1 {
            return Ok(None);
        }
        let wanted: Vec<usize> = (0..lost).collect();
        let present = ShardSet::first(codec.shards()) - ShardSet::first(lost);
        let plan = codec.decode_plan(present, &wanted)?;
        Ok(Some(Job { name: format!("decode-{lost}"), codec: codec.clone(), plan: Some(plan) }))
    }
    /// The rate does not depend on what the shards hold, so decoding reads the data shards, whatever they are.
    fn run(&self, stripe: &mut Stripe) -> anyhow::Result<()> {
        match &self.plan {
            None => self.codec.encode(&stripe.data, &mut stripe.parity)?,
            Some(plan) => plan.run(&stripe.data, &mut stripe.parity[..plan.wanted().len()])?,
        }
        Ok(())
    }
}

struct Stripe {
    data: Vec<AlignedBuf>,
    parity: Vec<AlignedBuf>,
}

/// The stripes that are computed in turn.
struct Stripes {
    stripes: Vec<Stripe>,
    next: usize,
    bytes: usize,
}

impl Stripes {
    fn new(shape: &Codec, shard: usize, from: Place) -> Stripes {
        let count = match from {
            Place::Cache => 1,
            Place::Memory => (MEMORY_BYTES / (shard * shape.shards())).max(1),
        };
        let buffer = |seed: usize| {
            let mut buffer = AlignedBuf::unpooled(shard);
            buffer.resize(shard);
            let mut x = (seed as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            for word in buffer.chunks_mut(8) {
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                word.copy_from_slice(&x.to_le_bytes()[..word.len()]);
            }
            buffer
        };
        let stripe = |i: usize| Stripe {
            data: (0..shape.k()).map(|shard| buffer(i * 32 + shard)).collect(),
            parity: (0..shape.m()).map(|shard| buffer(i * 32 + shape.k() + shard)).collect(),
        };
        Stripes { stripes: (0..count).map(stripe).collect(), next: 0, bytes: shard * shape.k() }
    }

    /// GB/s and CPU seconds a GB: the medians of the rounds.
    fn median(&mut self, job: &Job, args: &ErasureArgs) -> anyhow::Result<(f64, f64)> {
        let (mut rates, mut costs) = (Vec::new(), Vec::new());
        for _ in 0..args.rounds {
            let (seconds, cpu, bytes) = self.round(job, args.seconds)?;
            rates.push(bytes / seconds / 1e9);
            costs.push(cpu / bytes * 1e9);
        }
        let middle = |values: &mut Vec<f64>| {
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied().context("no rounds")
        };
        Ok((middle(&mut rates)?, middle(&mut costs)?))
    }

    /// Seconds, CPU seconds and bytes of data of at least `seconds`.
    fn round(&mut self, job: &Job, seconds: f64) -> anyhow::Result<(f64, f64, f64)> {
        let cpu = || {
            let used = ProcessUse::now();
            (used.cpu_user_us + used.cpu_system_us) as f64 / 1e6
        };
        let (cpu_before, started, mut bytes) = (cpu(), RealClock.now(), 0);
        loop {
            // A clock is not read for each small stripe.
            for _ in 0..(1 << 20 >> self.bytes.ilog2().min(20)).max(1) {
                job.run(&mut self.stripes[self.next])?;
                self.next = (self.next + 1) % self.stripes.len();
                bytes += self.bytes;
            }
            let took = RealClock.now().since(started).as_secs_f64();
            if took >= seconds {
                return Ok((took, cpu() - cpu_before, bytes as f64));
            }
        }
    }
}
