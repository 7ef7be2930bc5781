//! `cairn bench snapshot`: what snapshots cost those who work: how long writers wait while one is taken, what changes
//! after it take, creates while snapshots are deleted, lookups with many of them, reads in the oldest, and whether the
//! space comes back.
//!
//! The load is made by one process, over its connections. What is compared is measured in the same run, in the same
//! tree. Not here: snapshots of files that are overwritten in place, where taking one waits for the lease.
mod load;
mod tree;

use crate::BenchContext;
use crate::cpu::CpuReading;
use crate::report::{Row, latencies};
use anyhow::ensure;
use cairn_client::{Client, Volume};
use cairn_env::rng::FastRng;
use cairn_env::{Clock, RealClock};
use cairn_types::{BLOCK_SIZE, Time};
use clap::Args;
use load::{Load, Logged};
use serde_json::json;
use std::time::Duration;
use tree::{Place, Tree};

/// Snapshots that are taken under load.
const UNDER_LOAD: usize = 5;
/// What ends this long after the answer still counts as around the cut: it may have waited behind it.
const AROUND: Duration = Duration::from_millis(50);
/// Files that are changed before each of the further snapshots.
const CHANGED_EACH: u64 = 10;
/// Deleted snapshots are gone within this, or the measurement is given up.
const GONE: Duration = Duration::from_secs(1800);
/// Space is waited for so long: garbage collection and reports of data nodes take their time.
const SPACE: Duration = Duration::from_secs(180);
/// Seconds without a change after which used space counts as told by everybody.
const SETTLED: u32 = 8;

/// Arguments of `cairn bench snapshot`.
#[derive(Args, Debug, Clone)]
pub struct SnapshotArgs {
    /// Files in the tree
    #[arg(long, default_value_t = 100_000)]
    pub files: u64,
    /// Snapshots in all, up to 999; the first five are taken under load
    #[arg(long, default_value_t = 100)]
    pub snapshots: usize,
    /// Tasks that create files; one more appends to a file and syncs
    #[arg(long, default_value_t = 16)]
    pub writers: usize,
    /// Percent of the files that are changed after the first snapshots
    #[arg(long, default_value_t = 1.0)]
    pub changes: f64,
    /// Files of 64 KiB with contents; half of them are removed after the first snapshots
    #[arg(long, default_value_t = 400)]
    pub data_files: u64,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 5.0)]
    pub seconds: f64,
    #[arg(long, default_value = "default")]
    pub volume: String,
}

/// Runs it.
pub fn run(args: &SnapshotArgs, context: &BenchContext) -> anyhow::Result<()> {
    ensure!(
        args.files > 0 && args.writers > 0 && args.data_files > 1,
        "--files and --writers: 1 or more; --data-files: 2 or more"
    );
    ensure!((UNDER_LOAD..1000).contains(&args.snapshots), "--snapshots: {UNDER_LOAD} to 999");
    ensure!((0.0..=100.0).contains(&args.changes), "--changes is in percent");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let client = context.connect().await?;
        let volume = client.volume(&args.volume).await?;
        ensure!(
            volume.snapshots().await?.is_empty(),
            "the volume {} has snapshots: the figures are told against having none; take another volume (--volume)",
            args.volume
        );
        let name = format!("bench-{}", std::process::id());
        let root = format!("/.bench-snapshot-{}", std::process::id());
        crate::interrupt::writes_to(&format!("{root} ; its snapshots are called {name}-…: cairn fs snapshot delete"));
        let mut bench = Bench { args, json: context.json, client: &client, volume: volume.clone(), root, name };
        let result = bench.measure().await;
        let cleaned = bench.clean().await;
        volume.close().await;
        result.and(cleaned)
    })
}

struct Bench<'a> {
    args: &'a SnapshotArgs,
    json: bool,
    client: &'a Client,
    volume: Volume,
    root: String,
    /// Snapshots are called so, and a number.
    name: String,
}

impl Bench<'_> {
    async fn measure(&mut self) -> anyhow::Result<()> {
        let used = self.settled().await?;
        let tree = Tree::make(&self.volume, &self.root, self.args.files, self.args.data_files).await?;
        let held = self.settled().await?;
        self.lookups("lookup, no snapshots", &tree.now()).await?;
        self.reads("read, no snapshots", &tree.now()).await?;
        self.take_under_load().await?;
        self.change(&tree).await?;
        for number in UNDER_LOAD..self.args.snapshots {
            tree.touch(&self.volume, CHANGED_EACH, number as u64).await?;
            self.volume.create_snapshot(self.snapshot(number).as_bytes()).await?;
        }
        let with = format!("{} snapshots", self.args.snapshots);
        self.lookups(&format!("lookup, {with}"), &tree.now()).await?;
        self.reads(&format!("read, {with}"), &tree.now()).await?;
        let oldest = tree.at(&self.volume, &self.snapshot(0)).await?;
        self.lookups("lookup in the oldest", &oldest).await?;
        self.reads("read in the oldest", &oldest).await?;
        let full = self.settled().await?;
        let kept: u64 = self.volume.snapshots().await?.iter().map(|one| one.kept_blocks).sum();
        self.tell("held by snapshots alone", (kept * BLOCK_SIZE as u64) as f64 / 1e6, "MB");
        self.delete_under_load().await?;
        self.space((used, held, full)).await
    }

    fn snapshot(&self, number: usize) -> String {
        format!("{}-{number}", self.name)
    }

    /// What is no row of latencies.
    fn tell(&self, what: &str, value: f64, unit: &str) {
        match self.json {
            true => println!("{}", json!({ "what": what, "value": value, "unit": unit })),
            false => println!("{what:<58} {value:>14.3} {unit}"),
        }
    }

    async fn lookups(&self, what: &str, at: &Place) -> anyhow::Result<()> {
        let before = CpuReading::take(self.client).await;
        let (count, took, latency) =
            tree::lookups(&self.volume, at, self.args.files, self.args.seconds, self.args.writers).await?;
        let cpu = CpuReading::take(self.client).await.since(&before);
        Row::new(what, (self.args.writers, 1), (count, 0, 0), took, &latency, cpu).print(self.json);
        Ok(())
    }

    /// Of the files that stay.
    async fn reads(&self, what: &str, at: &Place) -> anyhow::Result<()> {
        let before = CpuReading::take(self.client).await;
        let (count, took, latency) =
            tree::reads(&self.volume, at, self.args.data_files / 2, self.args.seconds, self.args.writers).await?;
        let cpu = CpuReading::take(self.client).await.since(&before);
        let totals = (count, count * tree::DATA_BYTES as u64, 0);
        Row::new(what, (self.args.writers, 1), totals, took, &latency, cpu).print(self.json);
        Ok(())
    }

    /// How long writers wait around the cuts.
    async fn take_under_load(&self) -> anyhow::Result<()> {
        let load = Load::start(&self.volume, &format!("{}/load-1", self.root), self.args.writers).await?;
        let began = RealClock.now();
        tokio::time::sleep(Duration::from_secs_f64(self.args.seconds)).await;
        let first = RealClock.now();
        let (mut cuts, mut taking) = (Vec::new(), latencies());
        for number in 0..UNDER_LOAD {
            let asked = RealClock.now();
            self.volume.create_snapshot(self.snapshot(number).as_bytes()).await?;
            let answered = RealClock.now();
            taking.saturating_record(answered.since(asked).as_micros() as u64);
            cuts.push((asked, answered + AROUND));
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        let (creates, appends) = load.stop().await?;
        self.tell("taking a snapshot, the longest", taking.max() as f64 / 1e3, "ms");
        for (what, log) in [("creates", &creates), ("appends, synced", &appends)] {
            self.row(&format!("{what}, no snapshots"), log, (began, first))?;
            let around: Vec<Logged> =
                log.iter().filter(|one| cuts.iter().any(|cut| one.overlaps(*cut))).copied().collect();
            let longest = around.iter().map(|one| one.took()).max().unwrap_or_default();
            self.tell(&format!("{what}: the longest around a cut"), longest.as_secs_f64() * 1e3, "ms");
            let before = log.iter().filter(|one| one.end < first).map(|one| one.took()).max().unwrap_or_default();
            self.tell(&format!("{what}: the longest without"), before.as_secs_f64() * 1e3, "ms");
        }
        Ok(())
    }

    /// What of the load began and ended between two moments.
    fn row(&self, what: &str, log: &[Logged], (from, to): (Time, Time)) -> anyhow::Result<()> {
        let mut latency = latencies();
        let within = log.iter().filter(|one| one.start >= from && one.end <= to);
        let count = within.map(|one| latency.saturating_record(one.took().as_micros() as u64)).count();
        ensure!(count > 0, "{what}: nothing was done in this time; raise --seconds");
        self.tell(&format!("{what}: rate"), count as f64 / to.since(from).as_secs_f64(), "/s");
        for (name, quantile) in [("p50", 0.5), ("p99", 0.99)] {
            self.tell(&format!("{what}: {name}"), latency.value_at_quantile(quantile) as f64 / 1e3, "ms");
        }
        Ok(())
    }

    /// What images take after random changes of attributes; and half of the contents go, to be held.
    async fn change(&self, tree: &Tree) -> anyhow::Result<()> {
        let count = (self.args.files as f64 * self.args.changes / 100.0).round() as u64;
        let before = self.volume.statfs().await?.memory_bytes;
        let changed = tree.touch(&self.volume, count, 0).await?;
        let after = self.volume.statfs().await?.memory_bytes;
        let what = format!("images of {changed} changed files ({} %)", self.args.changes);
        self.tell(&what, after.saturating_sub(before) as f64 / 1e6, "MB");
        tree.remove_half(&self.volume).await
    }

    /// Creates while all snapshots go.
    async fn delete_under_load(&self) -> anyhow::Result<()> {
        let load = Load::start(&self.volume, &format!("{}/load-2", self.root), self.args.writers).await?;
        let began = RealClock.now();
        tokio::time::sleep(Duration::from_secs_f64(self.args.seconds)).await;
        let deleting = RealClock.now();
        for number in 0..self.args.snapshots {
            self.volume.delete_snapshot(self.snapshot(number).as_bytes()).await?;
        }
        while !self.volume.snapshots().await?.is_empty() {
            ensure!(RealClock.now().since(deleting) < GONE, "the snapshots are not gone after {GONE:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let gone = RealClock.now();
        let (creates, _) = load.stop().await?;
        self.row(&format!("creates, {} snapshots", self.args.snapshots), &creates, (began, deleting))?;
        self.row("creates, all being deleted", &creates, (deleting, gone))?;
        self.tell("deleting all of them", gone.since(deleting).as_secs_f64(), "s");
        Ok(())
    }

    /// Bytes that the volume has on all disks together, as data nodes tell them every few seconds; of one copy.
    async fn used(&self) -> anyhow::Result<u64> {
        let status = self.client.status("status").await?;
        let own = status.map.pgs.iter().filter(|pg| pg.view.volume == self.volume.id());
        Ok(own.map(|pg| pg.used_bytes).sum())
    }

    /// The same when nothing waits to be freed, and it has not changed for some time.
    async fn settled(&self) -> anyhow::Result<u64> {
        let began = RealClock.now();
        while self.volume.statfs().await?.freeing > 0 && RealClock.now().since(began) < SPACE {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let (mut last, mut same) = (self.used().await?, 0);
        while same < SETTLED && RealClock.now().since(began) < SPACE {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let now = self.used().await?;
            same = if now == last { same + 1 } else { 0 };
            last = now;
        }
        Ok(last)
    }

    async fn space(&self, (before, tree, full): (u64, u64, u64)) -> anyhow::Result<()> {
        let deleted = self.settled().await?;
        self.volume.remove_tree(self.root.as_bytes()).await?;
        let began = RealClock.now();
        let mut after = self.used().await?;
        while after > before && RealClock.now().since(began) < SPACE {
            tokio::time::sleep(Duration::from_secs(1)).await;
            after = self.used().await?;
        }
        let all = [
            ("before", before),
            ("with the tree", tree),
            ("with snapshots", full),
            ("with them deleted", deleted),
            ("with all removed", after),
        ];
        all.iter().for_each(|(what, bytes)| {
            self.tell(&format!("space of the volume, one copy, {what}"), *bytes as f64 / 1e6, "MB")
        });
        Ok(())
    }

    /// Whatever is left after a failure.
    async fn clean(&self) -> anyhow::Result<()> {
        for snapshot in self.volume.snapshots().await? {
            if !snapshot.deleting && snapshot.name.starts_with(format!("{}-", self.name).as_bytes()) {
                self.volume.delete_snapshot(&snapshot.name).await?;
            }
        }
        match self.volume.try_stat(self.root.as_bytes(), false).await? {
            Some(_) => Ok(self.volume.remove_tree(self.root.as_bytes()).await?),
            None => Ok(()),
        }
    }
}

/// A seeded generator for a task of a measurement.
fn random(seed: u64) -> FastRng {
    FastRng::seeded(seed.wrapping_mul(0x9e37_79b9).wrapping_add(7))
}
