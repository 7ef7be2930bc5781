//! Fair sharing: every transfer goes on all the time, at the max-min fair rate that its disks and ports leave.
//!
//! A MB keeps each resource of its path busy for some seconds; a resource has one second a second. Rates grow together
//! until a resource is used up; who uses it stays at that rate, the others go on growing.
use crate::links::{Links, Resources, Transfer};
use crate::setting::{BLOCK_MB, READ_NS, Setting, WRITE_NS};
use std::collections::BTreeMap;

struct Flow {
    id: usize,
    left_mb: f64,
    /// Seconds a MB of each resource.
    costs: Vec<(usize, f64)>,
    /// MB a second.
    rate: f64,
}

/// Disks and ports, shared.
pub struct Fair {
    now: u64,
    resources: Resources,
    /// Seconds for a MB on ports of nodes and of racks.
    port_costs: [f64; 2],
    flows: Vec<Flow>,
    /// Of each resource: what is left of a second, and what a MB of all growing flows costs. Kept for their memory.
    left: Vec<f64>,
    cost: Vec<f64>,
}

impl Fair {
    pub fn new(setting: &Setting) -> Self {
        let port_costs = [setting.node_mbit, setting.rack_mbit].map(Setting::seconds_per_mb);
        let resources = Resources::of(setting);
        let (left, cost) = (vec![0.0; resources.count()], vec![0.0; resources.count()]);
        Self { now: 0, resources, port_costs, flows: Vec::new(), left, cost }
    }

    fn costs(&self, transfer: &Transfer) -> Vec<(usize, f64)> {
        let mut costs: BTreeMap<usize, f64> = BTreeMap::new();
        let seconds = |ns: u64| ns as f64 / 1e9;
        let writes = !matches!(transfer, Transfer::Fetch { .. });
        for (from, to) in transfer.hops() {
            *costs.entry(self.resources.disk(from)).or_default() += seconds(READ_NS);
            if from == to {
                continue;
            }
            for port in self.resources.ports(from, to) {
                *costs.entry(port).or_default() += self.port_costs[usize::from(self.resources.is_rack_port(port))];
            }
            if writes {
                *costs.entry(self.resources.disk(to)).or_default() += seconds(WRITE_NS);
            }
        }
        costs.into_iter().collect()
    }

    fn go_on(&mut self, until: u64) {
        let seconds = (until - self.now) as f64 / 1e9;
        for flow in &mut self.flows {
            flow.left_mb -= flow.rate * seconds;
        }
        self.now = until;
    }

    fn share(&mut self) {
        let Self { flows, left, cost, .. } = self;
        let mut growing: Vec<usize> = (0..flows.len()).collect();
        let mut used: Vec<usize> = flows.iter().flat_map(|flow| &flow.costs).map(|(resource, _)| *resource).collect();
        used.sort_unstable();
        used.dedup();
        used.iter().for_each(|resource| left[*resource] = 1.0);
        while !growing.is_empty() {
            used.iter().for_each(|resource| cost[*resource] = 0.0);
            for (resource, seconds) in growing.iter().flat_map(|flow| &flows[*flow].costs) {
                cost[*resource] += seconds;
            }
            used.retain(|resource| cost[*resource] > 0.0);
            let level = |resource: &usize| (left[*resource].max(0.0) / cost[*resource], *resource);
            let (rate, tight) = used.iter().map(level).min_by(|a, b| a.0.total_cmp(&b.0)).expect("a flow has a disk");
            growing.retain(|flow| {
                let flow = &mut flows[*flow];
                let stays = flow.costs.iter().any(|(resource, _)| *resource == tight);
                if stays {
                    flow.rate = rate;
                    flow.costs.iter().for_each(|(resource, seconds)| left[*resource] -= seconds * rate);
                }
                !stays
            });
        }
    }
}

impl Links for Fair {
    fn start(&mut self, now: u64, id: usize, transfer: &Transfer) {
        self.go_on(now);
        self.flows.push(Flow { id, left_mb: f64::from(BLOCK_MB), costs: self.costs(transfer), rate: 0.0 });
        self.share();
    }

    fn run(&mut self, until: u64, done: &mut Vec<usize>) -> u64 {
        let ends = |flow: &Flow| self.now + (flow.left_mb.max(0.0) / flow.rate * 1e9).ceil() as u64;
        let Some(first) = self.flows.iter().map(ends).min().filter(|first| *first <= until) else {
            self.go_on(until);
            return until;
        };
        self.go_on(first);
        // What rounding leaves is less than a byte.
        let ended = |flow: &Flow| flow.left_mb <= 1e-6;
        done.extend(self.flows.iter().filter(|flow| ended(flow)).map(|flow| flow.id));
        self.flows.retain(|flow| !ended(flow));
        self.share();
        first
    }
}
