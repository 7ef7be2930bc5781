//! Measures what idle groups cost a node, and how long it takes until all are led again when a node ends.
//!
//! `cargo run --release -p cairn-raft-host --example groups_bench -- [groups] [seconds] [directory]` Three nodes are in
//! one process and hand messages over in memory; figures are those of one node: a third of the process.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cairn_env::{Clock, Disk, FastRng, RealClock, RealDisk};
use cairn_raft_host::{
    AppliedAt, CheckpointWriter, DropReason, FetchError, GroupHandle, HostConfig, Item, RaftHost, RaftTransport, Role,
    StateMachine,
};
use cairn_store::{CheckpointSource, StoreError};
use cairn_types::{DiskUuid, GroupId, NodeId};
use cairn_wire::raft::{FetchCheckpointRequest, FetchCheckpointResponse, RaftBatch};
use parking_lot::Mutex;

const NODES: u32 = 3;

struct Nothing;

impl StateMachine for Nothing {
    type Context = ();

    fn level(&self) -> u32 {
        cairn_types::FEATURE_LEVEL
    }

    fn apply(&mut self, _at: AppliedAt, _items: Vec<Item<()>>) {}

    fn dropped(&mut self, _contexts: Vec<((), DropReason)>) {}

    fn checkpoint(&self) -> CheckpointWriter {
        Box::new(|sink| sink.write(&[0; 8]))
    }

    fn restore(&mut self, source: &mut dyn CheckpointSource) -> Result<(), StoreError> {
        source.read_exact(&mut [0; 8])
    }

    fn role_changed(&mut self, _role: Role) {}
}

#[derive(Default)]
struct Switch {
    hosts: Mutex<BTreeMap<NodeId, Weak<RaftHost>>>,
    frames: AtomicU64,
    messages: AtomicU64,
}

impl RaftTransport for Switch {
    fn send(&self, to: NodeId, batch: RaftBatch) {
        self.frames.fetch_add(1, Ordering::Relaxed);
        self.messages.fetch_add(batch.messages.len() as u64, Ordering::Relaxed);
        let host = self.hosts.lock().get(&to).and_then(Weak::upgrade);
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

struct Node {
    host: Arc<RaftHost>,
    handles: Vec<GroupHandle<()>>,
}

fn start(dir: &Path, switch: &Arc<Switch>, groups: u32) -> anyhow::Result<Vec<Node>> {
    let mut nodes = Vec::new();
    for node in 1..=NODES {
        let own = dir.join(format!("n{node}"));
        std::fs::create_dir_all(&own)?;
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(&own)?);
        let clock: Arc<dyn Clock> = Arc::new(RealClock);
        let config = HostConfig::new(NodeId(node), DiskUuid([node as u8; 16]));
        let host = Arc::new(RaftHost::start(config, clock, Arc::new(FastRng::from_os()), disk, switch.clone())?);
        switch.hosts.lock().insert(NodeId(node), Arc::downgrade(&host));
        nodes.push(Node { host, handles: Vec::new() });
    }
    for group in 1..=groups {
        // Led by all nodes in turn.
        let members: Vec<NodeId> = (0..NODES).map(|at| NodeId((group + at) % NODES + 1)).collect();
        for node in &mut nodes {
            node.handles.push(node.host.open_group(GroupId(group), &members, Nothing)?);
        }
    }
    Ok(nodes)
}

/// Seconds of processor time, threads and bytes of memory of this process.
fn process() -> (f64, u64, u64) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let field = |at: usize| fields.get(at).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
    ((field(11) + field(12)) as f64 / 100.0, field(17), field(21) * 4096)
}

fn wait(what: &str, seconds: u64, mut ready: impl FnMut() -> bool) -> Duration {
    let started = Instant::now();
    while !ready() {
        assert!(started.elapsed() < Duration::from_secs(seconds), "no {what} within {seconds} s");
        std::thread::sleep(Duration::from_millis(5));
    }
    started.elapsed()
}

fn led(nodes: &[Node], groups: u32) -> bool {
    (0..groups as usize).all(|at| nodes.iter().any(|node| node.handles[at].leads()))
}

fn idle(nodes: &[Node], switch: &Switch, seconds: u64) {
    let syncs = || nodes.iter().map(|node| node.host.wal_stats().batches()).sum::<u64>();
    let now = || (process().0, syncs(), switch.frames.load(Ordering::Relaxed), switch.messages.load(Ordering::Relaxed));
    let before = now();
    std::thread::sleep(Duration::from_secs(seconds));
    let after = now();
    let share = seconds as f64 * f64::from(NODES);
    println!(
        "idle, a node: {:.1} % of a core, {:.1} syncs/s, {:.0} frames/s with {:.0} messages/s",
        (after.0 - before.0) / share * 100.0,
        (after.1 - before.1) as f64 / share,
        (after.2 - before.2) as f64 / share,
        (after.3 - before.3) as f64 / share,
    );
}

/// Milliseconds that one group's commits take while the others are idle.
fn one_busy(nodes: &[Node]) {
    let Some(leader) = nodes.iter().map(|node| &node.handles[0]).find(|handle| handle.leads()) else { return };
    let mut took = Vec::new();
    for _ in 0..200 {
        let (started, before) = (Instant::now(), leader.applied());
        let _ = leader.propose(vec![7; 64], ());
        while leader.applied() == before && started.elapsed() < Duration::from_secs(1) {
            std::hint::spin_loop();
        }
        took.push(started.elapsed());
    }
    took.sort_unstable();
    println!("one group commits in {:?} (median of 200), {:?} at most", took[100], took[199]);
}

fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let groups: u32 = args.next().map_or(Ok(200), |text| text.parse())?;
    let seconds: u64 = args.next().map_or(Ok(10), |text| text.parse())?;
    let dir = tempfile::tempdir_in(args.next().unwrap_or_else(|| ".".into()))?;
    let switch = Arc::new(Switch::default());
    let empty = process();
    let mut nodes = start(dir.path(), &switch, groups)?;
    let took = wait("leaders", 120, || led(&nodes, groups));
    println!("{groups} groups on {NODES} nodes: all led {took:?} after the last was opened");
    std::thread::sleep(Duration::from_secs(20));
    let full = process();
    println!(
        "a node: {} threads, {:.0} KB of memory a group",
        full.1 / u64::from(NODES),
        (full.2 - empty.2) as f64 / f64::from(groups * NODES) / 1e3
    );
    idle(&nodes, &switch, seconds);
    one_busy(&nodes);
    std::thread::sleep(Duration::from_secs(10));
    let gone = nodes.remove(0);
    let lost: Vec<usize> = (0..groups as usize).filter(|&at| gone.handles[at].leads()).collect();
    switch.hosts.lock().remove(&NodeId(1));
    let over = Arc::new(AtomicBool::new(false));
    let started = Instant::now();
    let ending = std::thread::spawn({
        let over = over.clone();
        move || {
            drop(gone);
            over.store(true, Ordering::Relaxed);
        }
    });
    wait("leaders", 60, || lost.iter().all(|&at| nodes.iter().any(|node| node.handles[at].leads())));
    println!("a node ended that led {} groups: all led again after {:?}", lost.len(), started.elapsed());
    wait("end", 60, || over.load(Ordering::Relaxed));
    let _ = ending.join();
    std::thread::sleep(Duration::from_secs(10));
    println!("with a node gone:");
    idle(&nodes, &switch, seconds);
    Ok(())
}
