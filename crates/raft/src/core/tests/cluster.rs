//! A simulated cluster: virtual time, a network that loses, repeats, delays and cuts, disks that lose what was not
//! synced, members that crash. Checked after every step: logs agree, one leader a term, no lease read is stale, and no
//! read of a member that does not lead is older than it says.

use std::collections::BTreeMap;

use bytes::Bytes;
use cairn_sim::SimRng;
use cairn_types::NodeId;
use cairn_wire::raft::RaftMessage;

use super::counts::{Counts, Faults};
use super::member::{Durable, Member, Running, State, Write};
use crate::{Input, Mark, MemberChange, Output, Position, RoleChange, Shut, Slumber, SnapshotMeta, Testimony};

const MS: u64 = 1_000_000;
/// Ticks without a word of a leader's node until it is given up.
const LISTENS: u32 = 12;

enum Event {
    Tick(usize, u64),
    Deliver(RaftMessage),
    Written(usize, u64, u64),
    Fetched(usize, u64, NodeId, SnapshotMeta),
    /// Somebody outside answers what was known of it when it started.
    Witness(usize, u64),
}

pub(super) struct Cluster {
    pub rng: SimRng,
    pub now: u64,
    seed: u64,
    sequence: u64,
    events: BTreeMap<(u64, u64), Event>,
    pub members: Vec<Member>,
    pub faults: Faults,
    /// Ticks come much quicker than they should.
    pub hasty: bool,
    /// One-way cuts.
    pub cuts: Vec<(NodeId, NodeId)>,
    /// What was applied anywhere, by index.
    log: BTreeMap<u64, (u64, Bytes)>,
    leaders: BTreeMap<u64, NodeId>,
    /// Count of commands after the newest acknowledged one.
    acknowledged: u64,
    /// True times at which it rose, and to what.
    history: Vec<(u64, u64)>,
    commands: u64,
    /// Members that are taken out to be added anew.
    leaving: Vec<NodeId>,
    pub counts: Counts,
}

impl Cluster {
    /// `voters` begin the group, the others wait to be added.
    pub fn new(seed: u64, voters: u32, others: u32) -> Self {
        let rng = SimRng::derived(seed, "cluster");
        let nodes: Vec<NodeId> = (1..=voters).map(NodeId).collect();
        let members = (1..=voters + others)
            .map(|id| Member {
                node: NodeId(id),
                durable: if id <= voters {
                    Durable::bootstrapped(&nodes)
                } else {
                    Durable { fresh: true, ..Durable::default() }
                },
                running: None,
                lives: 0,
                clock_start: rng.range(0..1 << 40),
                clock_ppm: rng.range(0..40_000) as i64 - 20_000,
                feature_level: 1,
                unheard: 0,
                history: Vec::new(),
                witnessed: Mark::default(),
                witness_ticks: 0,
            })
            .collect();
        let mut cluster = Self {
            rng,
            now: 0,
            seed,
            sequence: 0,
            events: BTreeMap::new(),
            members,
            faults: Faults { delay_ms: 1, disk_ms: 1, ..Faults::default() },
            hasty: false,
            cuts: Vec::new(),
            log: BTreeMap::new(),
            leaders: BTreeMap::new(),
            acknowledged: 0,
            history: Vec::new(),
            commands: 0,
            leaving: Vec::new(),
            counts: Counts::default(),
        };
        (0..cluster.members.len()).for_each(|at| cluster.start(at));
        cluster
    }

    fn after(&mut self, delay: u64, event: Event) {
        self.sequence += 1;
        self.events.insert((self.now + delay, self.sequence), event);
    }

    fn at(&self, node: NodeId) -> usize {
        node.0 as usize - 1
    }

    pub fn start(&mut self, at: usize) {
        let seed = self.seed * 1000 + self.members[at].lives * 17 + at as u64;
        self.members[at].start(self.now, seed);
        let life = self.members[at].lives;
        let first = self.rng.range(0..50 * MS);
        self.after(first, Event::Tick(at, life));
        if self.members[at].witness_ticks > 0 {
            let delay = self.rng.range(0..400 * MS);
            self.after(delay, Event::Witness(at, life));
        }
        // What was committed comes out.
        self.step(at, Input::SnapshotFailed(Position::default()));
    }

    pub fn crash(&mut self, at: usize) {
        let Some(running) = self.members[at].running.take() else { return };
        self.counts.crashes += 1;
        // Any first part of what was being written may be there.
        let kept = self.rng.range(0..running.writes.len() as u64 + 1) as usize;
        for write in running.writes.iter().take(kept) {
            self.members[at].durable.write(write);
        }
        self.counts.writes_lost += (running.writes.len() - kept) as u64;
    }

    /// Keeps a copy of what each disk has now.
    pub fn remember(&mut self) {
        for member in &mut self.members {
            member.history.push(member.durable.clone());
            if member.history.len() > 12 {
                member.history.remove(0);
            }
        }
    }

    /// The member ends, and starts with what its disk had at an earlier moment.
    pub fn roll_back(&mut self, at: usize, to: usize) {
        self.crash(at);
        self.members[at].durable = self.members[at].history[to].clone();
        self.counts.rollbacks += 1;
        self.start(at);
    }

    /// A member that does not run begins with an empty directory, as one of the first.
    pub fn empty(&mut self, at: usize, voters: u32) {
        let voters: Vec<NodeId> = (1..=voters).map(NodeId).collect();
        self.members[at].durable = Durable::bootstrapped(&voters);
        self.counts.rollbacks += 1;
        self.start(at);
    }

    /// What was applied is given up: another history begins.
    pub fn forget_log(&mut self) {
        self.log.clear();
        self.history.clear();
        self.acknowledged = 0;
    }

    pub fn shut(&self, at: usize) -> Option<Shut> {
        self.members[at].running.as_ref().and_then(|running| running.core.shut())
    }

    /// Whether some disk is not what it was.
    pub fn somebody_is_older(&self) -> bool {
        let older = |at| matches!(self.shut(at), Some(Shut::Older { .. } | Shut::Checking));
        let down = self.members.iter().any(|member| member.running.is_none());
        down || !self.leaving.is_empty() || (0..self.members.len()).any(older)
    }

    /// Takes members that are older than themselves out of the group and adds them anew, a step at a time.
    pub fn renew(&mut self) {
        let Some(leader) = self.leader() else { return };
        let older: Vec<NodeId> = (0..self.members.len())
            .filter(|&at| matches!(self.shut(at), Some(Shut::Older { .. })))
            .map(|at| self.members[at].node)
            .filter(|node| !self.leaving.contains(node))
            .collect();
        self.leaving.extend(older);
        let Some(&node) = self.leaving.first() else { return };
        let Some(running) = &self.members[leader].running else { return };
        let members = running.core.members();
        let at = self.at(node);
        let older = matches!(self.shut(at), Some(Shut::Older { .. }));
        let change = match () {
            () if members.voters.contains(&node) && older => MemberChange::Remove(node),
            () if members.voters.contains(&node) => {
                self.leaving.remove(0);
                return;
            }
            () if members.learners.contains(&node) => MemberChange::Voter(node),
            () => MemberChange::Learner(node),
        };
        self.step(leader, Input::ChangeMembers(vec![change]));
    }

    /// Runs for a virtual time.
    pub fn run(&mut self, ms: u64) {
        let end = self.now + ms * MS;
        while let Some((&(time, sequence), _)) = self.events.first_key_value() {
            if time > end {
                break;
            }
            self.now = time;
            let event = self.events.remove(&(time, sequence)).expect("it is the first");
            self.event(event);
        }
        self.now = end;
    }

    fn running(&mut self, at: usize, life: u64) -> Option<&mut Running> {
        self.members[at].running.as_mut().filter(|running| running.life == life)
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Tick(at, life) => {
                if self.running(at, life).is_some() {
                    self.step(at, Input::Tick);
                    self.listen(at);
                    // Sometimes slower than a tick of the member's own clock.
                    let late = if self.rng.chance(0.05) { self.rng.range(0..80 * MS) } else { 0 };
                    let pause = if self.hasty { self.rng.range(0..52 * MS) } else { 52 * MS + late };
                    self.after(pause, Event::Tick(at, life));
                }
            }
            Event::Deliver(message) => {
                let at = self.at(NodeId(message.to as u32));
                if self.members[at].running.is_some() {
                    self.step(at, Input::Message(message));
                }
            }
            Event::Written(at, life, number) => {
                if self.running(at, life).is_some() {
                    self.written(at, life, number);
                }
            }
            Event::Fetched(at, life, from, meta) => self.fetched(at, life, from, &meta),
            Event::Witness(at, life) => {
                if self.running(at, life).is_some() {
                    let testimony = Testimony { mark: self.members[at].witnessed, left_before: 0 };
                    self.step(at, Input::Witnessed(testimony));
                }
            }
        }
    }

    fn written(&mut self, at: usize, life: u64, number: u64) {
        while let Some(write) =
            self.running(at, life).and_then(|running| running.writes.pop_front_if(|write| write.number <= number))
        {
            self.members[at].durable.write(&write);
        }
        self.step(at, Input::Persisted(number));
        let member = &mut self.members[at];
        let mark = member.running.as_ref().map(|running| running.core.mark());
        member.witnessed = member.witnessed.max(mark.unwrap_or_default());
    }

    fn fetched(&mut self, at: usize, life: u64, from: NodeId, meta: &SnapshotMeta) {
        if self.running(at, life).is_none() {
            return;
        }
        let source = self.at(from);
        let reachable = !self.cuts.contains(&(from, self.members[at].node));
        let file = self.members[source].durable.checkpoints.iter().find(|(have, _)| have.at == meta.at).cloned();
        match file.filter(|_| reachable && self.members[source].running.is_some()) {
            Some((meta, state)) => {
                let place = meta.at;
                self.members[at].durable.keep_checkpoint(meta, state);
                self.step(at, Input::SnapshotFetched(place));
            }
            None => self.step(at, Input::SnapshotFailed(meta.at)),
        }
    }

    pub fn step(&mut self, at: usize, input: Input) {
        let clock = self.members[at].clock(self.now);
        let Member { running, durable, .. } = &mut self.members[at];
        let Some(running) = running.as_mut() else { return };
        let mut out = Vec::new();
        // As the host writes it down: before it is accepted, and after it was recalled.
        durable.forgot |= matches!(input, Input::AcceptLoss) && running.core.shut().is_some();
        // Refusals are part of the game.
        let _ = running.core.step(clock, input, &mut out);
        durable.forgot = running.core.has_forgotten();
        self.carry_out(at, out);
    }

    /// Proposes a command where somebody leads.
    pub fn propose(&mut self) {
        let leads = |m: &Member| m.running.as_ref().is_some_and(|r| r.leads);
        let leaders: Vec<usize> = (0..self.members.len()).filter(|&at| leads(&self.members[at])).collect();
        if leaders.is_empty() {
            return;
        }
        let at = leaders[self.rng.index(leaders.len())];
        self.commands += 1;
        let command = self.commands;
        let clock = self.members[at].clock(self.now);
        let Some(running) = self.members[at].running.as_mut() else { return };
        let mut out = Vec::new();
        let data = Bytes::from(command.to_le_bytes().to_vec());
        if let Ok(place) = running.core.propose(clock, data, &mut out) {
            running.proposed.push_back((place, command));
        }
        self.carry_out(at, out);
    }

    /// As the host of a leader does when a member's log waits for an entry.
    fn empty_entry(&mut self, at: usize) {
        let clock = self.members[at].clock(self.now);
        let Some(running) = self.members[at].running.as_mut() else { return };
        let mut out = Vec::new();
        let _ = running.core.propose(clock, Bytes::new(), &mut out);
        self.carry_out(at, out);
    }

    /// As the hosts do: a member that sleeps listens for its leader's node, and whether that names the group.
    fn listen(&mut self, at: usize) {
        let Some(running) = self.members[at].running.as_ref() else { return };
        self.counts.slept += u64::from(running.core.is_asleep());
        let Some(Slumber::Follows { leader, term }) = running.core.slumber() else {
            self.members[at].unheard = 0;
            return;
        };
        let there = self.at(leader);
        let cut = self.cuts.contains(&(leader, self.members[at].node)) || self.rng.chance(self.faults.loss);
        let node = self.members[at].node;
        let named = self.members[there].running.as_ref().map(|other| {
            other.core.slumber() == Some(Slumber::Leads { term }) && other.core.listeners().contains(&node)
        });
        let unheard = &mut self.members[at].unheard;
        *unheard = if cut || named != Some(true) { *unheard + 1 } else { 0 };
        if *unheard < LISTENS {
            return;
        }
        *unheard = 0;
        self.counts.given_up += 1;
        // A node that runs and does not name the group, or one that is not heard.
        self.step(at, if named == Some(false) { Input::Wake } else { Input::LeaderLost(term) });
    }

    fn carry_out(&mut self, at: usize, out: Vec<Output>) {
        let life = self.members[at].lives;
        for output in out {
            match output {
                Output::Persist { number, reset, hard, entries } => {
                    let write = Write { number, reset, hard, entries };
                    let delay = self.rng.range(0..self.faults.disk_ms * MS + 1);
                    if let Some(running) = self.members[at].running.as_mut() {
                        running.writes.push_back(write);
                    }
                    self.after(delay, Event::Written(at, life, number));
                }
                Output::Send(message) => self.send(message),
                Output::Apply { at: place, data } => self.apply(at, place, &data),
                Output::Restore(meta) => self.restore(at, &meta),
                Output::FetchSnapshot { from, meta } => {
                    let delay = self.rng.range(0..30 * MS);
                    self.after(delay, Event::Fetched(at, life, from, meta));
                }
                Output::CheckpointWanted => self.checkpoint(at),
                Output::Role(role) => self.role(at, role),
                Output::MembersChanged(_) => {}
                Output::EntryWanted => self.empty_entry(at),
            }
        }
        self.check(at);
    }

    fn send(&mut self, message: RaftMessage) {
        let (from, to) = (NodeId(message.from as u32), NodeId(message.to as u32));
        self.counts.sent += 1;
        if self.cuts.contains(&(from, to)) {
            self.counts.cut += 1;
            return;
        }
        if self.rng.chance(self.faults.loss) {
            self.counts.lost += 1;
            return;
        }
        if self.rng.chance(self.faults.repeat) {
            self.counts.repeated += 1;
            let delay = self.rng.range(0..self.faults.delay_ms * 20 * MS + 1);
            self.after(delay, Event::Deliver(message.clone()));
        }
        let delay = self.rng.range(0..self.faults.delay_ms * MS + 1);
        self.after(delay, Event::Deliver(message));
    }

    fn apply(&mut self, at: usize, place: Position, data: &Bytes) {
        let seen = self.log.entry(place.index).or_insert_with(|| (place.term, data.clone()));
        assert_eq!(*seen, (place.term, data.clone()), "seed {}: logs differ at {}", self.seed, place.index);
        let Some(running) = self.members[at].running.as_mut() else { return };
        assert!(place.index > running.applied.index, "entries are applied once, in order");
        running.applied = place;
        if let Ok(bytes) = <[u8; 8]>::try_from(&data[..]) {
            running.state.apply(u64::from_le_bytes(bytes));
        }
        let mut acknowledged = None;
        while let Some((proposed, _)) = running.proposed.pop_front_if(|(p, _)| p.index <= place.index) {
            if proposed == place {
                acknowledged = Some(running.state.count);
            }
        }
        if let Some(count) = acknowledged {
            self.counts.acknowledged += 1;
            if count > self.acknowledged {
                self.acknowledged = count;
                self.history.push((self.now, count));
            }
        }
    }

    fn restore(&mut self, at: usize, meta: &SnapshotMeta) {
        self.counts.snapshots += 1;
        let found = self.members[at].durable.checkpoints.iter().find(|(have, _)| have.at == meta.at).cloned();
        let (_, state) = found.expect("a checkpoint is restored after it was fetched");
        self.members[at].durable.checkpoints.retain(|(have, _)| have.at >= meta.at);
        if let Some(running) = self.members[at].running.as_mut() {
            running.state = state;
            running.applied = meta.at;
        }
    }

    /// Makes a checkpoint of a member, durable at once.
    pub fn checkpoint(&mut self, at: usize) {
        let Some(running) = self.members[at].running.as_ref() else { return };
        let members = running.core.members();
        if running.applied != running.core.applied() || members.joint || members.voters.is_empty() {
            return;
        }
        let meta = SnapshotMeta { at: running.applied, members, bytes: 16 };
        let state = running.state;
        let durable = &mut self.members[at].durable;
        durable.keep_checkpoint(meta.clone(), state);
        durable.truncate();
        self.step(at, Input::Checkpointed(meta));
    }

    fn role(&mut self, at: usize, role: RoleChange) {
        let node = self.members[at].node;
        let Some(running) = self.members[at].running.as_mut() else { return };
        match role {
            RoleChange::Elected { term } => {
                self.counts.elections += 1;
                let first = *self.leaders.entry(term).or_insert(node);
                assert_eq!(first, node, "seed {}: two leaders in term {term}", self.seed);
            }
            RoleChange::Leader { .. } => running.leads = true,
            RoleChange::Follower { .. } => {
                running.leads = false;
                running.proposed.clear();
            }
        }
    }

    fn check(&mut self, at: usize) {
        if let Some(running) = &self.members[at].running {
            running.core.check_invariants();
            self.counts.older += u64::from(matches!(running.core.shut(), Some(Shut::Older { .. })));
        }
        self.check_age(at);
        for member in &self.members {
            let Some(running) = &member.running else { continue };
            let clock = member.clock(self.now);
            if running.core.lease_until().is_some_and(|until| clock < until) {
                self.counts.reads += 1;
                assert!(
                    running.state.count >= self.acknowledged,
                    "seed {}: {} would read {} though {} were acknowledged",
                    self.seed,
                    member.node,
                    running.state.count,
                    self.acknowledged
                );
            }
        }
    }

    /// Everything acknowledged before the time that a member's state is said to be from is in the state.
    fn check_age(&mut self, at: usize) {
        let (now, seed) = (self.now, self.seed);
        let member = &mut self.members[at];
        let clock = member.clock(now);
        let Some(running) = member.running.as_mut().filter(|r| r.applied == r.core.applied()) else { return };
        let Some(as_of) = running.core.fresh_as_of(clock) else { return };
        assert!(as_of <= clock, "seed {seed}: a state of the future");
        let (leads, count) = (running.core.is_leader(), running.state.count);
        let before = self.history.partition_point(|(at, _)| member.clock(*at) < as_of);
        let known = before.checked_sub(1).map_or(0, |last| self.history[last].1);
        assert!(count >= known, "seed {seed}: n{} has {count} of {known} as of its age", at + 1);
        self.counts.young += u64::from(!leads && clock.0 - as_of.0 < 2_000 * MS);
    }

    /// Adds, promotes or removes a member, or hands leadership over, by chance.
    pub fn meddle(&mut self) {
        let Some(at) = self.members.iter().position(|m| m.running.as_ref().is_some_and(|r| r.leads)) else {
            return;
        };
        let Some(running) = &self.members[at].running else { return };
        let members = running.core.members();
        let node = NodeId(1 + self.rng.index(self.members.len()) as u32);
        let input = match self.rng.range(0..4) {
            0 => {
                self.counts.transfers += 1;
                Input::TransferLeader(node)
            }
            1 if !members.contains(node) => Input::ChangeMembers(vec![MemberChange::Learner(node)]),
            2 if members.learners.contains(&node) => Input::ChangeMembers(vec![MemberChange::Voter(node)]),
            3 if members.voters.len() > 3 || members.learners.contains(&node) => {
                Input::ChangeMembers(vec![MemberChange::Remove(node)])
            }
            _ => return,
        };
        self.counts.changes += 1;
        self.step(at, input);
    }

    /// Heals everything, lets it settle, and checks that all members of the group agree on all that was acknowledged.
    pub fn settle(&mut self) {
        self.cuts.clear();
        self.faults = Faults { delay_ms: 1, disk_ms: 1, ..Faults::default() };
        for at in 0..self.members.len() {
            if self.members[at].running.is_none() {
                self.start(at);
            }
        }
        for _ in 0..40 {
            self.run(500);
            self.propose();
            self.renew();
            self.run(500);
            if self.agreed().is_some() && !self.somebody_is_older() {
                break;
            }
        }
        let state = self.agreed().unwrap_or_else(|| {
            let running = self.members.iter().filter_map(|m| m.running.as_ref().map(|r| (m.node, r.core.status())));
            running.for_each(|(node, status)| println!("{node}: {status:?}"));
            panic!("seed {}: the members do not agree", self.seed)
        });
        assert!(state.count >= self.acknowledged, "seed {}: acknowledged commands are lost", self.seed);
        assert!(self.acknowledged > 0, "seed {}: nothing was ever acknowledged", self.seed);
    }

    /// The state, if a leader exists and all members of its configuration have the same.
    fn agreed(&self) -> Option<State> {
        let leader = self.members.iter().find_map(|m| m.running.as_ref().filter(|r| r.leads))?;
        let members = leader.core.members();
        let states: Vec<State> = self
            .members
            .iter()
            .filter(|m| members.contains(m.node))
            .filter_map(|m| m.running.as_ref().map(|r| r.state))
            .collect();
        states.windows(2).all(|pair| pair[0] == pair[1]).then_some(leader.state)
    }

    pub fn leader(&self) -> Option<usize> {
        self.members.iter().position(|m| m.running.as_ref().is_some_and(|r| r.leads))
    }
}
