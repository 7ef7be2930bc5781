//! Measures committed commands a second for one and three members on real disks, with 64 and 1024 proposers that each
//! wait for their answer, saturated, and beside them a bare loop of write + fdatasync on the same disk.
//!
//! `cargo run --release -p cairn-raft-host --example raft_bench -- [seconds] [directory]`
//! Members are in one process and hand messages over in memory; CPU is that of the whole process.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cairn_env::{AlignedBuf, Clock, Disk, FastRng, OpenOptions, RealClock, RealDisk};
use cairn_raft_host::{
    AppliedAt, CheckpointWriter, DropReason, FetchError, GroupHandle, HostConfig, Item, RaftHost, RaftTransport, Role,
    StateMachine,
};
use cairn_store::{CheckpointSource, StoreError};
use cairn_types::{DiskUuid, GroupId, NodeId};
use cairn_wire::raft::{FetchCheckpointRequest, FetchCheckpointResponse, RaftBatch};
use parking_lot::Mutex;

const COMMAND: usize = 128;

/// Counts; a proposer is a slot that is proposed again as soon as it was applied.
struct Counter {
    applied: Arc<AtomicU64>,
    again: Arc<Mutex<Vec<u32>>>,
    round: Vec<u32>,
}

impl StateMachine for Counter {
    type Context = u32;

    fn apply(&mut self, _at: AppliedAt, items: Vec<Item<u32>>) {
        self.applied.fetch_add(items.len() as u64, Ordering::Relaxed);
        self.round.extend(items.iter().filter_map(|item| item.context));
    }

    fn applied_batch(&mut self) {
        self.again.lock().append(&mut self.round);
    }

    fn dropped(&mut self, contexts: Vec<(u32, DropReason)>) {
        self.again.lock().extend(contexts.into_iter().map(|(slot, _)| slot));
    }

    fn checkpoint(&self) -> CheckpointWriter {
        let applied = self.applied.load(Ordering::Relaxed);
        Box::new(move |sink| sink.write(&applied.to_le_bytes()))
    }

    fn restore(&mut self, source: &mut dyn CheckpointSource) -> Result<(), StoreError> {
        let mut bytes = [0; 8];
        source.read_exact(&mut bytes)?;
        self.applied.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
        Ok(())
    }

    fn role_changed(&mut self, _role: Role) {}
}

#[derive(Default)]
struct Switch(Mutex<BTreeMap<NodeId, Weak<RaftHost>>>);

impl RaftTransport for Switch {
    fn send(&self, to: NodeId, batch: RaftBatch) {
        let host = self.0.lock().get(&to).and_then(Weak::upgrade);
        if let Some(host) = host {
            host.deliver(batch);
        }
    }

    fn fetch(
        &self,
        from: NodeId,
        _request: FetchCheckpointRequest,
    ) -> Result<(FetchCheckpointResponse, Bytes), FetchError> {
        Err(FetchError::Gone { from })
    }
}

struct Member {
    _host: Arc<RaftHost>,
    handle: GroupHandle<u32>,
    applied: Arc<AtomicU64>,
    again: Arc<Mutex<Vec<u32>>>,
}

fn members(dir: &Path, count: u32, in_flight: usize) -> anyhow::Result<Vec<Member>> {
    let switch = Arc::new(Switch::default());
    let nodes: Vec<NodeId> = (1..=count).map(NodeId).collect();
    let mut out = Vec::new();
    for &node in &nodes {
        let own = dir.join(format!("n{}-{count}", node.0));
        std::fs::create_dir_all(&own)?;
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(&own)?);
        let clock: Arc<dyn Clock> = Arc::new(RealClock);
        let mut config = HostConfig::new(node, DiskUuid([node.0 as u8; 16]));
        config.batches_in_flight_max = in_flight;
        let host = Arc::new(RaftHost::start(config, clock, Arc::new(FastRng::from_os()), disk, switch.clone())?);
        let (applied, again) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::new(Vec::new())));
        let sm = Counter { applied: applied.clone(), again: again.clone(), round: Vec::new() };
        let handle = host.open_group(GroupId(1), &nodes, sm)?;
        switch.0.lock().insert(node, Arc::downgrade(&host));
        out.push(Member { _host: host, handle, applied, again });
    }
    Ok(out)
}

/// CPU seconds of this process so far.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}

fn leader(members: &[Member]) -> &Member {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(leader) = members.iter().find(|member| member.handle.leads()) {
            return leader;
        }
        assert!(Instant::now() < deadline, "no leader within 20 s");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn run(name: &str, members: &[Member], proposers: u32, seconds: u64) {
    let leader = leader(members);
    let wal = leader._host.wal_stats();
    leader.again.lock().extend(0..proposers);
    let stop = Arc::new(AtomicBool::new(false));
    let command = Bytes::from(vec![7u8; COMMAND]);
    let before = (leader.applied.load(Ordering::Relaxed), cpu(), wal.batches(), wal.write_time());
    let started = Instant::now();
    std::thread::scope(|scope| {
        let (stopped, handle, again) = (stop.clone(), leader.handle.clone(), leader.again.clone());
        scope.spawn(move || {
            let mut round = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                std::mem::swap(&mut round, &mut *again.lock());
                if round.is_empty() {
                    std::thread::sleep(Duration::from_micros(5));
                }
                for slot in round.drain(..) {
                    if let Err(slot) = handle.propose(command.clone(), slot) {
                        again.lock().push(slot);
                    }
                }
            }
        });
        std::thread::sleep(Duration::from_secs(seconds));
        stop.store(true, Ordering::Relaxed);
    });
    let took = started.elapsed().as_secs_f64();
    let done = (leader.applied.load(Ordering::Relaxed) - before.0) as f64;
    let batches = (wal.batches() - before.2) as f64;
    let sync = (wal.write_time() - before.3).as_secs_f64() / batches.max(1.0) * 1e6;
    println!(
        "{name:>9} {proposers:>6} proposers: {:>9.0} commands/s  {:>5.2} us CPU each  {:>6.0} syncs/s of {sync:.0} us  {:.0} commands a sync",
        done / took,
        (cpu() - before.1) / done * 1e6,
        batches / took,
        done / batches.max(1.0),
    );
    let deadline = Instant::now() + Duration::from_secs(10);
    while leader.again.lock().len() < proposers as usize && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    leader.again.lock().clear();
}

fn bare(dir: &Path, bytes: usize, seconds: u64) -> anyhow::Result<()> {
    let disk = RealDisk::open(dir)?;
    let file = disk.open("bare", OpenOptions::CREATE.direct())?;
    let mut zeros = AlignedBuf::unpooled(1 << 20);
    zeros.resize(1 << 20);
    for at in 0..64 {
        file.write_at(&zeros, at << 20)?;
    }
    file.sync_all()?;
    let (started, used) = (Instant::now(), cpu());
    let mut count = 0u64;
    while started.elapsed() < Duration::from_secs(seconds) {
        file.write_at(&zeros[..bytes], count * bytes as u64 % (64 << 20))?;
        file.sync_data()?;
        count += 1;
    }
    let took = started.elapsed().as_secs_f64();
    println!(
        "bare write + fdatasync, {bytes:>6} bytes: {:>7.0}/s, {:.0} us each, {:.1} us CPU",
        count as f64 / took,
        took / count as f64 * 1e6,
        (cpu() - used) / count as f64 * 1e6
    );
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let seconds = args.next().map_or(Ok(5), |text| text.parse())?;
    let parent = args.next().unwrap_or_else(|| ".".into());
    let in_flight = args.next().map_or(Ok(4), |text| text.parse())?;
    let dir = tempfile::tempdir_in(parent)?;
    bare(dir.path(), 4096, 2)?;
    bare(dir.path(), 65536, 2)?;
    for count in [1, 3] {
        let members = members(dir.path(), count, in_flight)?;
        for proposers in [64, 1024, 16384] {
            run(if count == 1 { "1 member" } else { "3 members" }, &members, proposers, seconds);
        }
    }
    Ok(())
}
