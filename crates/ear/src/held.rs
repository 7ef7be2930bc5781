//! The authors' link model: MB after MB is read from a disk, then sent in quanta of 0.1 MB, each of which takes all
//! ports of its path one after the other, waits for those that others hold, and holds what it has meanwhile.
//!
//! Invariants: who waits for a disk or port gets it in the order of coming; ports are taken in one order everywhere
//! (racks out, racks in, nodes out, nodes in), so nobody waits in a circle.
use crate::links::{Links, Resources, Transfer};
use crate::setting::{BLOCK_MB, READ_NS, Setting, WRITE_NS};
use std::collections::VecDeque;

/// Quanta of a MB.
const QUANTA: u8 = 10;
/// On links of no more than so many MB a second, writes go from node to node in parcels and not in single MB: a parcel
/// is sent on when all of it was written.
const SLOW_MB_S: f64 = 20.0;
const PARCEL_MB: u32 = 32;

#[derive(Clone, Copy, Debug)]
enum State {
    /// Takes the disk that is read, or has waited for it.
    WantRead,
    GotRead,
    Reading,
    /// Takes this port next.
    WantPort(u8),
    Sending,
    WantWrite,
    GotWrite,
    Writing,
}

/// A sequence of actions: the reader of a transfer, or a MB on its way.
#[derive(Clone, Debug)]
struct Job {
    transfer: usize,
    state: State,
    /// MB that the reader has yet to read; 0 for a MB on its way.
    unread: u32,
    hop: u8,
    quanta: u8,
    port_count: u8,
    writes: bool,
    ports: [u16; 4],
    from: u32,
    to: u32,
}

#[derive(Clone, Debug)]
struct Active {
    id: usize,
    hops: Vec<(usize, usize)>,
    /// Whether a MB is read from disk again at each hop.
    reads_at_hops: bool,
    missing: u32,
    /// Of a parcel: the chain that it belongs to, and how far it will then have come.
    parcel: Option<(usize, usize)>,
}

#[derive(Clone, Debug)]
struct Resource {
    /// How many more jobs can have it at once.
    free: usize,
    waiting: VecDeque<u32>,
}

/// Jobs that hold something for one and the same time: when each ends, its number among all, the job.
#[derive(Clone, Debug)]
struct Holds {
    ns: u64,
    ends: VecDeque<(u64, u64, u32)>,
}

/// Indices of [`Held::holds`].
const READ: usize = 0;
const WRITE: usize = 1;
const QUANTUM_WITHIN: usize = 2;
const QUANTUM_ACROSS: usize = 3;

/// Disks and ports with their queues.
pub struct Held {
    now: u64,
    parcels: bool,
    resources: Resources,
    queues: Vec<Resource>,
    jobs: Vec<Job>,
    free: Vec<u32>,
    /// All that ever started; few thousand a run.
    transfers: Vec<Active>,
    /// Holds under way, of each of the few lengths that there are: with one length, what begins first ends first.
    holds: [Holds; 4],
    events: u64,
    /// Jobs that go on now.
    ready: VecDeque<u32>,
}

impl Held {
    pub fn new(setting: &Setting) -> Self {
        let resources = Resources::of(setting);
        let quantum = |mbit: f64| (Setting::seconds_per_mb(mbit) * 1e9 / f64::from(QUANTA)) as u64;
        // A rack's port that is faster than nodes' serves several transfers at once, each at the rate of a node's.
        let rack_port = ((setting.rack_mbit / setting.node_mbit).round() as usize).max(1);
        let servers = |resource| if resources.is_rack_port(resource) { rack_port } else { 1 };
        let queue = |resource| Resource { free: servers(resource), waiting: VecDeque::new() };
        let across = setting.node_mbit.min(setting.rack_mbit);
        let lengths = [READ_NS, WRITE_NS, quantum(setting.node_mbit), quantum(across)];
        Self {
            now: 0,
            parcels: Setting::seconds_per_mb(setting.node_mbit) * SLOW_MB_S >= 1.0,
            resources,
            queues: (0..resources.count()).map(queue).collect(),
            jobs: Vec::new(),
            free: Vec::new(),
            transfers: Vec::new(),
            holds: lengths.map(|ns| Holds { ns, ends: VecDeque::new() }),
            events: 0,
            ready: VecDeque::new(),
        }
    }

    fn spawn(&mut self, job: Job) {
        let id = match self.free.pop() {
            Some(id) => {
                self.jobs[id as usize] = job;
                id
            }
            None => {
                self.jobs.push(job);
                self.jobs.len() as u32 - 1
            }
        };
        self.ready.push_back(id);
    }

    fn hold(&mut self, job: u32, length: usize) {
        self.events += 1;
        let holds = &mut self.holds[length];
        holds.ends.push_back((self.now + holds.ns, self.events, job));
    }

    /// The job whose hold ends next, unless that is later than `until`.
    fn next_end(&mut self, until: u64) -> Option<(u64, u32)> {
        let first = |length: &usize| self.holds[*length].ends.front().map(|(at, event, _)| (*at, *event));
        let next = (0..4).filter_map(|length| Some((first(&length)?, length))).min()?;
        let ((at, _), length) = next;
        if at > until {
            return None;
        }
        let (_, _, job) = self.holds[length].ends.pop_front()?;
        Some((at, job))
    }

    /// Whether the job has it at once; otherwise it is called when it does.
    fn take(&mut self, resource: usize, job: u32) -> bool {
        let queue = &mut self.queues[resource];
        if queue.free == 0 {
            queue.waiting.push_back(job);
            return false;
        }
        queue.free -= 1;
        true
    }

    fn release(&mut self, resource: usize) {
        let queue = &mut self.queues[resource];
        match queue.waiting.pop_front() {
            Some(next) => self.ready.push_back(next),
            None => queue.free += 1,
        }
    }

    fn active(&self, job: &Job) -> &Active {
        &self.transfers[job.transfer]
    }

    /// Goes on with a job until it waits.
    fn advance(&mut self, id: u32, done: &mut Vec<usize>) {
        loop {
            let job = &self.jobs[id as usize];
            let (from, to) = (job.from as usize, job.to as usize);
            match job.state {
                State::WantRead => {
                    self.jobs[id as usize].state = State::GotRead;
                    if !self.take(self.resources.disk(from), id) {
                        return;
                    }
                }
                State::GotRead => {
                    self.jobs[id as usize].state = State::Reading;
                    return self.hold(id, READ);
                }
                State::Reading => {
                    self.release(self.resources.disk(from));
                    if self.read(id, from, to, done) {
                        return;
                    }
                }
                State::WantPort(port) if port == job.port_count => {
                    let quantum = if port > 2 { QUANTUM_ACROSS } else { QUANTUM_WITHIN };
                    self.jobs[id as usize].state = State::Sending;
                    return self.hold(id, quantum);
                }
                State::WantPort(port) => {
                    let resource = usize::from(job.ports[usize::from(port)]);
                    self.jobs[id as usize].state = State::WantPort(port + 1);
                    if !self.take(resource, id) {
                        return;
                    }
                }
                State::Sending => {
                    let (ports, count) = (job.ports, usize::from(job.port_count));
                    for port in &ports[..count] {
                        self.release(usize::from(*port));
                    }
                    let job = &mut self.jobs[id as usize];
                    job.quanta -= 1;
                    if job.quanta > 0 {
                        job.state = State::WantPort(0);
                    } else if job.writes {
                        job.state = State::WantWrite;
                    } else {
                        return self.arrived(id, done);
                    }
                }
                State::WantWrite => {
                    self.jobs[id as usize].state = State::GotWrite;
                    if !self.take(self.resources.disk(to), id) {
                        return;
                    }
                }
                State::GotWrite => {
                    self.jobs[id as usize].state = State::Writing;
                    return self.hold(id, WRITE);
                }
                State::Writing => {
                    self.release(self.resources.disk(to));
                    if self.handed_on(id, done) {
                        return;
                    }
                }
            }
        }
    }

    /// A MB was read: a reader sends it on its way and reads the next, a MB goes on by itself. Whether the job has
    /// ended.
    fn read(&mut self, id: u32, from: usize, to: usize, done: &mut Vec<usize>) -> bool {
        let again = self.active(&self.jobs[id as usize]).reads_at_hops;
        let job = &mut self.jobs[id as usize];
        if job.unread == 0 {
            self.send(id, from, to);
            return false;
        }
        job.unread -= 1;
        job.state = State::WantRead;
        let (transfer, writes, last) = (job.transfer, job.writes, job.unread == 0);
        if from == to {
            self.delivered(transfer, done);
        } else {
            let (ports, port_count) = self.ports(from, to);
            let state = if again { State::WantRead } else { State::WantPort(0) };
            let (from, to) = (from as u32, to as u32);
            self.spawn(Job { transfer, state, unread: 0, hop: 0, quanta: QUANTA, port_count, writes, ports, from, to });
        }
        if last {
            self.free.push(id);
        }
        last
    }

    fn ports(&self, from: usize, to: usize) -> ([u16; 4], u8) {
        let (mut ports, mut count) = ([0; 4], 0);
        for port in self.resources.ports(from, to) {
            ports[count] = port as u16;
            count += 1;
        }
        (ports, count as u8)
    }

    fn send(&mut self, id: u32, from: usize, to: usize) {
        let (ports, port_count) = self.ports(from, to);
        let job = &mut self.jobs[id as usize];
        (job.ports, job.port_count, job.quanta, job.state) = (ports, port_count, QUANTA, State::WantPort(0));
    }

    /// A MB was written: on to the next node. Whether there is none.
    fn handed_on(&mut self, id: u32, done: &mut Vec<usize>) -> bool {
        let hop = usize::from(self.jobs[id as usize].hop) + 1;
        if let Some((from, to)) = self.active(&self.jobs[id as usize]).hops.get(hop).copied() {
            let job = &mut self.jobs[id as usize];
            (job.hop, job.from, job.to, job.state) = (hop as u8, from as u32, to as u32, State::WantRead);
            return false;
        }
        self.arrived(id, done);
        true
    }

    fn arrived(&mut self, id: u32, done: &mut Vec<usize>) {
        self.free.push(id);
        self.delivered(self.jobs[id as usize].transfer, done);
    }

    fn delivered(&mut self, transfer: usize, done: &mut Vec<usize>) {
        let active = &mut self.transfers[transfer];
        active.missing -= 1;
        if active.missing == 0 {
            match active.parcel {
                Some((chain, stage)) => self.parcel_arrived(chain, stage, done),
                None => done.push(active.id),
            }
        }
    }

    /// A parcel was read at the writer (stage 0), or written by that many nodes.
    fn parcel_arrived(&mut self, chain: usize, stage: usize, done: &mut Vec<usize>) {
        let Active { id, hops, .. } = self.transfers[chain].clone();
        if stage < hops.len() {
            self.begin_parcel(chain, id, hops[stage], stage + 1);
        } else {
            self.transfers[chain].missing -= PARCEL_MB;
            if self.transfers[chain].missing == 0 {
                done.push(id);
            }
        }
    }

    fn begin_parcel(&mut self, chain: usize, id: usize, hop: (usize, usize), stage: usize) {
        let parcel = Some((chain, stage));
        let hops = vec![hop];
        self.begin(Active { id, hops, reads_at_hops: false, missing: PARCEL_MB, parcel }, true);
    }

    /// Starts to read a transfer.
    fn begin(&mut self, active: Active, writes: bool) {
        let (from, to) = (active.hops[0].0 as u32, active.hops[0].1 as u32);
        let unread = active.missing;
        self.transfers.push(active);
        let (transfer, state, quanta) = (self.transfers.len() - 1, State::WantRead, QUANTA);
        let (port_count, ports) = (0, [0; 4]);
        self.spawn(Job { transfer, state, unread, hop: 0, quanta, port_count, writes, ports, from, to });
    }
}

impl Links for Held {
    fn start(&mut self, now: u64, id: usize, transfer: &Transfer) {
        self.now = now;
        let chain = matches!(transfer, Transfer::Chain(_));
        let writes = !matches!(transfer, Transfer::Fetch { .. });
        let active = Active { id, hops: transfer.hops(), reads_at_hops: chain, missing: BLOCK_MB, parcel: None };
        if !(chain && self.parcels) {
            return self.begin(active, writes);
        }
        let writer = active.hops[0].0;
        self.transfers.push(active);
        let chain = self.transfers.len() - 1;
        // They share the disk and all links.
        for _ in 0..BLOCK_MB / PARCEL_MB {
            self.begin_parcel(chain, id, (writer, writer), 0);
        }
    }

    fn run(&mut self, until: u64, done: &mut Vec<usize>) -> u64 {
        loop {
            while let Some(job) = self.ready.pop_front() {
                self.advance(job, done);
            }
            if !done.is_empty() {
                return self.now;
            }
            let Some((at, job)) = self.next_end(until) else {
                self.now = until;
                return until;
            };
            self.now = at;
            self.advance(job, done);
        }
    }
}
