//! A state machine that tests can look into, and nodes in one process.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cairn_env::{Clock, Disk, FastRng, RealClock, RealDisk};
use cairn_store::{CheckpointSink, CheckpointSource, StoreError};
use cairn_types::{DiskUuid, GroupId, NodeId, Time, WallTime};
use cairn_wire::raft::{FetchCheckpointRequest, FetchCheckpointResponse, RaftBatch};
use parking_lot::Mutex;

use crate::{
    AppliedAt, CheckpointWriter, DropReason, FetchError, GroupHandle, HostConfig, Item, RaftHost, RaftTransport, Role,
    StateMachine,
};

pub(crate) const GROUP: GroupId = GroupId(7);
/// Longer than anything takes on any machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// What became of a proposal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Applied; the sum after it.
    Done(u64),
    Dropped(DropReason),
}

/// State visible to tests: the sum of all numbers proposed, how many, and when.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    pub sum: u64,
    pub count: u64,
    pub time: WallTime,
}

/// Adds numbers up; padding makes its checkpoints as large as a test wants.
pub(crate) struct Adder {
    pub state: Arc<Mutex<Sum>>,
    pub roles: Arc<Mutex<Vec<Role>>>,
    pub padding: usize,
}

impl Adder {
    pub fn new(state: &Arc<Mutex<Sum>>) -> Self {
        Self { state: state.clone(), roles: Arc::default(), padding: 0 }
    }
}

impl StateMachine for Adder {
    type Context = Sender<Fate>;

    fn level(&self) -> u32 {
        cairn_types::FEATURE_LEVEL
    }

    fn apply(&mut self, at: AppliedAt, items: Vec<Item<Self::Context>>) {
        let mut state = self.state.lock();
        assert!(at.time >= state.time, "logged time never goes back");
        state.time = at.time;
        for item in items {
            state.sum += u64::from_le_bytes(item.data[..8].try_into().unwrap());
            state.count += 1;
            if let Some(context) = item.context {
                let _ = context.send(Fate::Done(state.sum));
            }
        }
    }

    fn dropped(&mut self, contexts: Vec<(Self::Context, DropReason)>) {
        for (context, reason) in contexts {
            let _ = context.send(Fate::Dropped(reason));
        }
    }

    fn checkpoint(&self) -> CheckpointWriter {
        let state = self.state.lock().clone();
        let padding = self.padding;
        Box::new(move |sink: &mut dyn CheckpointSink| {
            for number in [state.sum, state.count, state.time.0, padding as u64] {
                sink.write(&number.to_le_bytes())?;
            }
            sink.write(&vec![0xa5; padding])
        })
    }

    fn restore(&mut self, source: &mut dyn CheckpointSource) -> Result<(), StoreError> {
        let mut number = || -> Result<u64, StoreError> {
            let mut bytes = [0; 8];
            source.read_exact(&mut bytes)?;
            Ok(u64::from_le_bytes(bytes))
        };
        let state = Sum { sum: number()?, count: number()?, time: WallTime(number()?) };
        let mut padding = vec![0; number()? as usize];
        source.read_exact(&mut padding)?;
        assert!(padding.iter().all(|&b| b == 0xa5));
        *self.state.lock() = state;
        Ok(())
    }

    fn role_changed(&mut self, role: Role) {
        self.roles.lock().push(role);
    }
}

/// Connects hosts in one process; links can be cut.
#[derive(Default)]
pub(crate) struct Switch {
    hosts: Mutex<BTreeMap<NodeId, Weak<RaftHost>>>,
    cut: Mutex<Vec<NodeId>>,
    messages: AtomicU64,
    beats: AtomicU64,
    /// Those that may be members, besides those that are; `None`: everybody, as without keys.
    pub named: Mutex<Option<Vec<NodeId>>>,
}

impl Switch {
    pub fn attach(&self, node: NodeId, host: &Arc<RaftHost>) {
        self.hosts.lock().insert(node, Arc::downgrade(host));
    }

    pub fn cut(&self, node: NodeId, cut: bool) {
        let mut list = self.cut.lock();
        list.retain(|&n| n != node);
        if cut {
            list.push(node);
        }
    }

    /// Messages of groups, and beats of nodes, so far.
    pub fn messages(&self) -> u64 {
        self.messages.load(Ordering::SeqCst)
    }

    pub fn beats(&self) -> u64 {
        self.beats.load(Ordering::SeqCst)
    }

    fn host(&self, from: NodeId, to: NodeId) -> Option<Arc<RaftHost>> {
        let cut = self.cut.lock();
        if cut.contains(&from) || cut.contains(&to) {
            return None;
        }
        self.hosts.lock().get(&to).and_then(Weak::upgrade)
    }
}

/// One node's end of the switch.
pub(crate) struct Port {
    pub node: NodeId,
    pub switch: Arc<Switch>,
}

impl RaftTransport for Port {
    fn send(&self, to: NodeId, batch: RaftBatch) {
        self.switch.messages.fetch_add(batch.messages.len() as u64, Ordering::SeqCst);
        self.switch.beats.fetch_add(u64::from(batch.beat.is_some()), Ordering::SeqCst);
        if let Some(host) = self.switch.host(self.node, to) {
            host.deliver(batch);
        }
    }

    fn may_be_member(&self, _group: GroupId, node: NodeId) -> bool {
        self.switch.named.lock().as_ref().is_none_or(|named| named.contains(&node))
    }

    fn fetch(
        &self,
        from: NodeId,
        request: FetchCheckpointRequest,
    ) -> Result<(FetchCheckpointResponse, Bytes), FetchError> {
        let failed = |cause: &str| FetchError::Failed { from, cause: cause.into() };
        let host = self.switch.host(self.node, from).ok_or_else(|| failed("cut"))?;
        host.fetch_checkpoint(&request).map_err(|error| match error {
            StoreError::NoCheckpoint { .. } => FetchError::Gone { from },
            other => failed(&other.to_string()),
        })
    }
}

/// A running node.
pub(crate) struct Node {
    pub _host: Arc<RaftHost>,
    pub handle: GroupHandle<Sender<Fate>>,
    pub state: Arc<Mutex<Sum>>,
    pub roles: Arc<Mutex<Vec<Role>>>,
}

/// Small files and quick elections.
pub(crate) fn config(node: u32) -> HostConfig {
    HostConfig {
        tick: Duration::from_millis(20),
        lease_margin: Duration::from_millis(20),
        segment_bytes: 1 << 20,
        ..HostConfig::new(NodeId(node), DiskUuid([node as u8; 16]))
    }
}

pub(crate) fn start(
    dir: &std::path::Path,
    switch: &Arc<Switch>,
    config: HostConfig,
    members: &[u32],
    padding: usize,
) -> Node {
    start_on(Arc::new(RealDisk::open(dir).unwrap()), switch, config, members, padding)
}

pub(crate) fn start_on(
    disk: Arc<dyn Disk>,
    switch: &Arc<Switch>,
    config: HostConfig,
    members: &[u32],
    padding: usize,
) -> Node {
    start_with(disk, Arc::new(RealClock), switch, config, members, padding)
}

/// The real clocks, with a calendar that is so many nanoseconds ahead.
#[derive(Default)]
pub(crate) struct Skewed(pub AtomicI64);

impl Clock for Skewed {
    fn now(&self) -> Time {
        RealClock.now()
    }

    fn wall(&self) -> WallTime {
        WallTime(RealClock.wall().0.saturating_add_signed(self.0.load(Ordering::SeqCst)))
    }
}

pub(crate) fn start_with(
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    switch: &Arc<Switch>,
    config: HostConfig,
    members: &[u32],
    padding: usize,
) -> Node {
    let sm = Adder { padding, ..Adder::new(&Arc::default()) };
    start_machine(disk, clock, switch, config, members, sm)
}

pub(crate) fn start_machine(
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    switch: &Arc<Switch>,
    config: HostConfig,
    members: &[u32],
    sm: Adder,
) -> Node {
    let node = config.node;
    let port = Arc::new(Port { node, switch: switch.clone() });
    let rng = Arc::new(FastRng::from_os());
    let host = Arc::new(RaftHost::start(config, clock, rng, disk, port).unwrap());
    let (state, roles) = (sm.state.clone(), sm.roles.clone());
    let members: Vec<NodeId> = members.iter().map(|&n| NodeId(n)).collect();
    let handle = host.open_group(GROUP, &members, sm).unwrap();
    switch.attach(node, &host);
    Node { _host: host, handle, state, roles }
}

impl Node {
    /// Proposes a number and waits for its fate; `None` when the queue is full.
    pub fn add(&self, number: u64) -> Option<Fate> {
        let (sender, receiver) = std::sync::mpsc::channel();
        self.handle.propose(number.to_le_bytes().to_vec(), sender).ok()?;
        Some(receiver.recv_timeout(PATIENCE).expect("every proposal has a fate"))
    }
}

/// Waits for something that must come, however slow the machine is.
pub(crate) fn wait_for(what: &str, mut ready: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !ready() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
