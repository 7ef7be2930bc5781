//! One run: writers all the time, encoding processes from 30 s on until all of them have encoded their stripes.
use crate::fair::Fair;
use crate::held::Held;
use crate::layout::{Layouts, StripeWork, cluster};
use crate::links::{Links, Transfer};
use crate::setting::{
    COMPUTE_NS, ENCODING_STARTS_NS, LinkModel, PROCESS_STAGGER_NS, SWITCH_NS, Setting, WRITE_OVERHEAD_NS,
};
use anyhow::Result;
use cairn_env::rng::Rng;
use cairn_sim::SimRng;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// What a run measured.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Outcome {
    /// Mean of a process, from the start of its first stripe to the end of its last.
    pub process_s: f64,
    /// From the start of the first stripe of all to the end of the last.
    pub makespan_s: f64,
    /// Mean of a stripe.
    pub stripe_s: f64,
    /// Mean of the writes that began and ended while stripes were encoded.
    pub write_s: f64,
    pub writes: usize,
    pub stripes: usize,
    /// Blocks a stripe that crossed racks: downloads, parities, moves.
    pub downloads: f64,
    pub parities: f64,
    pub moves: f64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    /// A process begins its next stripe.
    Stripe(usize),
    Computed(usize),
    Write,
    /// A write begins its transfer.
    Chain(usize),
}

/// Who waits for a transfer.
#[derive(Clone, Copy, Debug)]
enum Owner {
    Process(usize),
    Write(usize),
}

#[derive(Clone, Debug)]
struct Process {
    home: usize,
    /// Where this stripe is encoded.
    node: usize,
    work: StripeWork,
    /// Transfers of the stripe that have ended.
    step: usize,
    stripes_left: usize,
    began: u64,
}

struct Run<'a> {
    setting: &'a Setting,
    links: Box<dyn Links>,
    layouts: Layouts<'a>,
    arrivals: SimRng,
    timers: BinaryHeap<Reverse<(u64, u64, Event)>>,
    timer: u64,
    owners: Vec<Owner>,
    processes: Vec<Process>,
    writes: Vec<(u64, Option<u64>, Vec<usize>)>,
    stripes: Vec<(usize, u64, u64)>,
    crossed: [usize; 3],
}

/// Simulates one run.
pub fn run(setting: &Setting, seed: u64) -> Result<Outcome> {
    let cluster = cluster(setting);
    let mut layouts = Layouts::new(setting, &cluster, seed)?;
    let links: Box<dyn Links> = match setting.links {
        LinkModel::Held => Box::new(Held::new(setting)),
        LinkModel::Fair => Box::new(Fair::new(setting)),
    };
    let process = |home: usize| Process {
        home,
        node: home,
        work: StripeWork { blocks: Vec::new(), parities: Vec::new(), moves: Vec::new() },
        step: 0,
        stripes_left: setting.stripes_per_process,
        began: 0,
    };
    let processes = (0..setting.processes).map(|number| process(layouts.encoder(number))).collect();
    let mut run = Run {
        setting,
        links,
        layouts,
        arrivals: SimRng::derived(seed, "writes"),
        timers: BinaryHeap::new(),
        timer: 0,
        owners: Vec::new(),
        processes,
        writes: Vec::new(),
        stripes: Vec::new(),
        crossed: [0; 3],
    };
    for number in 0..setting.processes {
        run.at(ENCODING_STARTS_NS + number as u64 * PROCESS_STAGGER_NS, Event::Stripe(number));
    }
    if setting.writes_per_s > 0.0 {
        run.at(0, Event::Write);
    }
    run.go()?;
    Ok(run.outcome())
}

impl Run<'_> {
    fn at(&mut self, at: u64, event: Event) {
        self.timer += 1;
        self.timers.push(Reverse((at, self.timer, event)));
    }

    fn transfer(&mut self, now: u64, owner: Owner, transfer: &Transfer) {
        self.owners.push(owner);
        self.links.start(now, self.owners.len() - 1, transfer);
    }

    fn go(&mut self) -> Result<()> {
        let wanted = self.setting.processes * self.setting.stripes_per_process;
        let mut done = Vec::new();
        while self.stripes.len() < wanted {
            let next = self.timers.peek().map_or(u64::MAX, |Reverse((at, _, _))| *at);
            let now = self.links.run(next, &mut done);
            if done.is_empty() {
                let Reverse((_, _, event)) =
                    self.timers.pop().expect("there are stripes left, so somebody does something");
                self.happen(now, event)?;
            }
            for transfer in std::mem::take(&mut done) {
                match self.owners[transfer] {
                    Owner::Process(number) => {
                        self.processes[number].step += 1;
                        self.next_step(now, number);
                    }
                    Owner::Write(write) => self.writes[write].1 = Some(now),
                }
            }
        }
        Ok(())
    }

    fn happen(&mut self, now: u64, event: Event) -> Result<()> {
        match event {
            Event::Stripe(number) => {
                let home = self.processes[number].home;
                let (node, work) = self.layouts.next_stripe(number, home)?;
                let process = &mut self.processes[number];
                (process.node, process.work, process.step, process.began) = (node, work, 0, now);
                self.next_step(now, number);
            }
            Event::Computed(number) => {
                self.processes[number].step += 1;
                self.next_step(now, number);
            }
            Event::Write => {
                let copies = self.layouts.next_write()?;
                self.writes.push((now, None, copies));
                self.at(now + WRITE_OVERHEAD_NS, Event::Chain(self.writes.len() - 1));
                // Exponential, so that writes are a Poisson process.
                let unit = (self.arrivals.u64() >> 11) as f64 / (1u64 << 53) as f64;
                let pause = -(1.0 - unit).ln() / self.setting.writes_per_s;
                self.at(now + (pause * 1e9) as u64, Event::Write);
            }
            Event::Chain(write) => {
                let chain = Transfer::Chain(self.writes[write].2.clone());
                self.transfer(now, Owner::Write(write), &chain);
            }
        }
        Ok(())
    }

    /// Blocks one after the other, then the computation, then parities and moves one after the other.
    fn next_step(&mut self, now: u64, number: usize) {
        let process = &self.processes[number];
        let (step, k, m, node) = (process.step, self.setting.k, self.setting.m, process.node);
        let (what, transfer) = if step < k {
            (0, Transfer::Fetch { from: self.nearest(&process.work.blocks[step], node), to: node })
        } else if step == k {
            return self.at(now + COMPUTE_NS, Event::Computed(number));
        } else if step <= k + m {
            (1, Transfer::Store { from: node, to: process.work.parities[step - k - 1] })
        } else if let Some((from, to)) = process.work.moves.get(step - k - m - 1) {
            (2, Transfer::Store { from: *from, to: *to })
        } else {
            return self.ended(now, number);
        };
        let crosses = |(from, to): &(usize, usize)| self.setting.rack_of(*from) != self.setting.rack_of(*to);
        self.crossed[what] += transfer.hops().iter().filter(|hop| crosses(hop)).count();
        self.transfer(now, Owner::Process(number), &transfer);
    }

    fn ended(&mut self, now: u64, number: usize) {
        let process = &mut self.processes[number];
        self.stripes.push((number, process.began, now));
        process.stripes_left -= 1;
        if process.stripes_left > 0 {
            self.at(now + SWITCH_NS, Event::Stripe(number));
        }
    }

    /// The copy on the node itself, else one in its rack, else the first.
    fn nearest(&self, copies: &[usize], node: usize) -> usize {
        let near = |copy: &&usize| self.setting.rack_of(**copy) == self.setting.rack_of(node);
        let own = copies.iter().find(|copy| **copy == node);
        *own.or_else(|| copies.iter().find(near)).unwrap_or(&copies[0])
    }

    fn outcome(&self) -> Outcome {
        let mut spans: BTreeMap<usize, (u64, u64)> = BTreeMap::new();
        for (process, began, ended) in &self.stripes {
            let span = spans.entry(*process).or_insert((*began, *ended));
            *span = (span.0.min(*began), span.1.max(*ended));
        }
        let first = spans.values().map(|(began, _)| *began).min().unwrap_or(0);
        let last = spans.values().map(|(_, ended)| *ended).max().unwrap_or(0);
        let seconds = |ns: u64| ns as f64 / 1e9;
        let mean = |all: &[f64]| if all.is_empty() { 0.0 } else { all.iter().sum::<f64>() / all.len() as f64 };
        let within = |(began, ended, _): &(u64, Option<u64>, Vec<usize>)| {
            ended.filter(|ended| *began >= first && *ended <= last).map(|ended| seconds(ended - began))
        };
        let writes: Vec<f64> = self.writes.iter().filter_map(within).collect();
        let stripes: Vec<f64> = self.stripes.iter().map(|(_, began, ended)| seconds(ended - began)).collect();
        let processes: Vec<f64> = spans.values().map(|(began, ended)| seconds(ended - began)).collect();
        let [downloads, parities, moves] = self.crossed.map(|blocks| blocks as f64 / stripes.len().max(1) as f64);
        Outcome {
            process_s: mean(&processes),
            makespan_s: seconds(last - first),
            stripe_s: mean(&stripes),
            write_s: mean(&writes),
            writes: writes.len(),
            stripes: stripes.len(),
            downloads,
            parities,
            moves,
        }
    }
}

#[cfg(test)]
mod tests;
