//! [`run`]: one seed: a cluster, files, steps with faults beside them, then everything is healed and compared once more.

use std::time::{Duration, Instant};

use cairn_sim::SimRng;

use crate::workload::Workload;

/// Layouts, each with the data nodes of its cluster and the places that may be faulty at the same time.
const SHAPES: &[Shape] = &[
    Shape { layout: "rs-3-2/4k", heads: 1, nodes: 7, budget: 2, file_max: 400 << 10 },
    Shape { layout: "r3", heads: 1, nodes: 5, budget: 2, file_max: 1 << 20 },
    Shape { layout: "rs-6-3/64k", heads: 1, nodes: 11, budget: 3, file_max: 3 << 20 },
    Shape { layout: "r2x3/64k", heads: 1, nodes: 5, budget: 1, file_max: 1 << 20 },
];

#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) layout: &'static str,
    pub(crate) heads: usize,
    pub(crate) nodes: usize,
    pub(crate) budget: usize,
    pub(crate) file_max: usize,
}

/// What a seed does.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Decides everything.
    pub seed: u64,
    /// Operations.
    pub steps: usize,
    /// Files are so many times as large as usual.
    pub scale: usize,
}

/// What a seed did.
#[derive(Debug, Clone)]
pub struct Summary {
    pub seed: u64,
    /// Faults that had an effect.
    pub faults: u64,
    /// Blocks that were overwritten in place.
    pub in_place: u64,
    /// One line for people.
    pub text: String,
}

/// Runs one seed; an error is what broke its promise.
pub fn run(plan: Plan) -> Result<Summary, String> {
    let begun = Instant::now();
    let rng = SimRng::derived(plan.seed, "shape");
    let mut shape = SHAPES[(plan.seed % SHAPES.len() as u64) as usize];
    shape.file_max = (shape.file_max * plan.scale).max(64 << 10) / (1 + rng.index(3));
    // Three managers with a partition of three, or one of each.
    shape.heads = if rng.chance(0.6) { 3 } else { 1 };
    let mut workload = Workload::start(plan.seed, shape)?;
    for step in 0..plan.steps {
        workload.step(step).map_err(|why| format!("step {step}: {why}"))?;
    }
    workload.finish()?;
    let (in_place, (faults, text)) = (workload.blocks_in_place(), workload.summary());
    let took = begun.elapsed().as_secs_f32();
    let text =
        format!("seed {} ({}, {} heads, {took:.1} s): {faults} faults: {text}", plan.seed, shape.layout, shape.heads);
    Ok(Summary { seed: plan.seed, faults, in_place, text })
}

/// Longest time of what a step awaits at once: some dozens of calls, each of which tries for as long as the client is
/// patient. More is a call that hangs.
pub(crate) const CALL_MAX: Duration = Duration::from_secs(1200);
