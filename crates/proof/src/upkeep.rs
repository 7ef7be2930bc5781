//! [`Upkeep`]: what operators do while a cluster serves: nodes are drained, partitions get other members, what was lost
//! for good is taken out. A seed decides which and when; at the end nothing of it is left half done.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cairn_sim::SimRng;
use cairn_wire::Opcode;
use cairn_wire::manager::{
    ChangeMembersRequest, ClusterMap, DrainRequest, Partition, RemoveRequest, StatusRequest, StatusResponse, Target,
};

use crate::cluster::Cluster;
use crate::head::{Head, Roles};
use crate::managers::ManagerChanges;

/// Time in which a change that was asked for is done once nothing is wrong any more.
const PATIENCE: Duration = Duration::from_secs(300);
/// Kinds of targets.
const DISK: u32 = 1;
const NODE: u32 = 2;

/// What is being done.
pub struct Upkeep {
    cluster: Arc<Cluster>,
    rng: SimRng,
    /// Nodes that are being emptied, and the step at which that is cancelled.
    drains: Vec<(u32, usize)>,
    pub managers: ManagerChanges,
    /// How often what was asked for and taken.
    pub counts: BTreeMap<&'static str, u64>,
}

impl Upkeep {
    /// Nothing yet. How long lost members are waited for before others take their places is part of the seed.
    pub fn new(seed: u64, cluster: Arc<Cluster>) -> Result<Self, String> {
        let rng = SimRng::derived(seed, "upkeep");
        let (delay, urgent) = *rng.pick(&[("2s", "1s"), ("6s", "2s"), ("30s", "5s"), ("15m", "30s")]);
        cluster.set(&[("repair_delay", delay), ("repair_delay_urgent", urgent)])?;
        let managers = ManagerChanges::new(seed, cluster.clone());
        Ok(Self { cluster, rng, drains: Vec::new(), managers, counts: BTreeMap::new() })
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn asked(&self, opcode: Opcode, request: &impl prost::Message) -> Result<(), String> {
        self.cluster.runtime.block_on(self.cluster.ask_manager(opcode, request)).map(|_| ())
    }

    /// Perhaps begins something, ends what is due. Refusals are answers like others. `calm`: no head is faulty.
    pub fn step(&mut self, step: usize, calm: bool) -> Result<(), String> {
        self.cluster.learn_numbers();
        self.managers.step(calm)?;
        if let Some(at) = self.drains.iter().position(|(_, until)| *until <= step) {
            let (node, _) = self.drains.remove(at);
            let cancelled = self.asked(Opcode::Drain, &drain(node, true));
            tracing::info!(node, ?cancelled, "a drain is cancelled");
        }
        if self.rng.chance(0.12) && self.drains.is_empty() {
            self.drain(step);
        }
        if !self.cluster.only_head && self.rng.chance(0.25) {
            self.move_partition();
        }
        Ok(())
    }

    /// What is drained stays after all.
    pub fn cancel_drains(&mut self) {
        for (node, _) in std::mem::take(&mut self.drains) {
            // One that is refused is cancelled at the end.
            let _refused = self.asked(Opcode::Drain, &drain(node, true));
        }
    }

    fn drain(&mut self, step: usize) {
        let places: Vec<usize> = self.cluster.data_places().collect();
        let place = *self.rng.pick(&places);
        let until = step + 2 + self.rng.index(12);
        let Some(node) = self.cluster.node(place).lock().number() else { return };
        let taken = self.asked(Opcode::Drain, &drain(node, false));
        tracing::info!(place, node, until, ?taken, "a node is drained");
        if taken.is_ok() {
            self.count("drains");
            self.drains.push((node, until));
        }
    }

    /// Somebody who is no member takes the place of one who is.
    fn move_partition(&mut self) {
        let Some(partition) = self.partition() else { return };
        let with_names = |head: &parking_lot::Mutex<Head>| {
            let head = head.lock();
            head.number().filter(|_| matches!(head.roles, Roles::Both | Roles::Namespace))
        };
        let heads = self.cluster.heads.iter().filter_map(with_names);
        let (inside, outside): (Vec<u32>, Vec<u32>) = heads.partition(|number| partition.nodes.contains(number));
        if inside.is_empty() || outside.is_empty() {
            return;
        }
        let (old, new) = (*self.rng.pick(&inside), *self.rng.pick(&outside));
        let request = ChangeMembersRequest {
            group: partition.id,
            add: vec![new],
            remove: vec![old],
            ..ChangeMembersRequest::default()
        };
        let taken = self.asked(Opcode::ChangeMembers, &request);
        tracing::info!(old, new, ?taken, "a partition gets another member");
        self.count(if taken.is_ok() { "partitions moved" } else { "moves of partitions refused" });
    }

    fn partition(&self) -> Option<Partition> {
        let mut all = self.partitions()?;
        let at = if all.len() > 1 { self.rng.index(all.len()) } else { 0 };
        (!all.is_empty()).then(|| all.swap_remove(at))
    }

    fn partitions(&self) -> Option<Vec<Partition>> {
        Some(self.cluster.map()?.partitions.into_iter().filter(|partition| !partition.removed).collect())
    }

    /// Nothing is wrong any more: what is lost is replaced soon, and what is drained stays.
    pub fn end(&mut self) -> Result<(), String> {
        self.drains.clear();
        self.managers.end()?;
        self.cluster.set(&[("repair_delay", "3s"), ("repair_delay_urgent", "1s")])?;
        self.cluster.eventually("nothing hibernates", PATIENCE, || self.cluster.end_hibernations())?;
        self.cluster.eventually("no drain is left", PATIENCE, || {
            let answer = self.cluster.runtime.block_on(self.cluster.ask_manager(Opcode::Status, &StatusRequest {}));
            let Some(status) = answer.ok().and_then(|answer| answer.decode::<StatusResponse>().ok()) else {
                return false;
            };
            for drain in &status.drains {
                let request = DrainRequest { target: drain.target.clone(), cancel: true };
                // It is asked for again until none is left.
                let _refused = self.asked(Opcode::Drain, &request);
            }
            status.drains.is_empty()
        })
    }

    /// The partition has exactly the members that were asked for last.
    pub fn settled(&self) -> Result<(), String> {
        self.cluster.eventually("a partition has the members that it shall have", PATIENCE, || {
            self.partitions().is_some_and(|all| all.iter().all(|partition| partition.target.is_empty()))
        })
    }

    /// Disks and nodes that are lost for good are taken out, as soon as nobody waits for them; then no group remembers
    /// a former member.
    pub fn remove_lost(&mut self) -> Result<(), String> {
        self.cluster.eventually("everybody is registered", PATIENCE, || self.cluster.learn_numbers())?;
        let lost = self.cluster.map().map(|map| self.lost(&map)).ok_or("the manager does not answer")?;
        for target in lost {
            let mut refused = String::new();
            let request = RemoveRequest { target: Some(target.clone()) };
            let removed = self.cluster.eventually("a lost disk or node can be taken out", PATIENCE, || {
                let asked = self.asked(Opcode::Remove, &request);
                asked.inspect_err(|why| refused.clone_from(why)).is_ok()
            });
            removed.map_err(|why| format!("{why}: {target:?}: {refused}"))?;
            self.count("lost ones taken out");
        }
        self.cluster.eventually("nothing of former members is left", PATIENCE, || {
            let Some(map) = self.cluster.map() else { return false };
            let mut groups = map.pgs.iter().filter_map(|pg| pg.state.as_ref()).filter(|state| !state.retired);
            groups.all(|state| state.formers.is_empty() && state.filling.is_empty() && state.joining.is_none())
        })
    }

    /// What the map has and nobody runs.
    fn lost(&self, map: &ClusterMap) -> Vec<Target> {
        let (mut numbers, mut paths) = (BTreeSet::new(), BTreeSet::new());
        numbers.extend(self.cluster.heads.iter().filter_map(|head| head.lock().number()));
        for node in &self.cluster.nodes {
            let node = node.lock();
            numbers.extend(node.number());
            paths.insert(cairn_env::Disk::name(&node.disk).to_owned());
        }
        let target = |kind, id| Target { kind, id, ..Target::default() };
        let nodes = map.nodes.iter().filter(|node| !node.removed).map(|node| node.id);
        let nodes: Vec<u32> = nodes.filter(|node| !numbers.contains(node)).collect();
        let of_node = |node: u32| nodes.contains(&node);
        let disks = map.disks.iter().filter(|disk| !of_node(disk.node) && !paths.contains(&disk.path));
        disks.map(|disk| target(DISK, disk.id)).chain(nodes.iter().map(|node| target(NODE, *node))).collect()
    }
}

fn drain(node: u32, cancel: bool) -> DrainRequest {
    DrainRequest { target: Some(Target { kind: NODE, id: node, ..Target::default() }), cancel }
}
