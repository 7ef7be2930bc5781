//! [`run`]: one seed: a cluster, files, steps with faults beside them, then everything is healed and compared once
//! more.

use std::time::{Duration, Instant};

use cairn_sim::SimRng;

use crate::workload::Workload;

/// Layouts, each with the data nodes of its cluster and the places that may be faulty at the same time.
const SHAPES: &[Shape] = &[
    Shape { other: "r3", ..shape("rs-3-2/4k", 7, 2, 400 << 10) },
    Shape { other: "rs-3-2/64k", ..shape("r3", 5, 2, 1 << 20) },
    Shape { other: "r4", volume: "r4", ..shape("rs-6-3/64k", 11, 3, 3 << 20) },
    Shape { other: "r2", ..shape("r2x3/64k", 5, 1, 1 << 20) },
];

/// Of so many seeds one has a staged layout, and half of those have stripe groups.
const STAGED_PART: u64 = 5;
/// Copies that are encoded soon after the last change.
const STAGED: &[&str] = &["r3>rs-3-2@1s", "r3>rs-3-2@2s", "r3>rs-3-2@3s"];
/// What such files are converted to: the copies that they are already, or rows.
const STAGED_OTHER: &[&str] = &["r3", "rs-3-2/64k"];
/// In as many racks no rack has more than two of the five shards.
const RACKS: usize = 3;

/// How files of copies are encoded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Staging {
    /// Data nodes are in so many.
    pub(crate) racks: usize,
    /// Together, in stripe groups; else one by one.
    pub(crate) groups: bool,
}

/// What a seed has, whatever else it decides.
fn shape_of(seed: u64) -> Shape {
    if seed % STAGED_PART != STAGED_PART - 1 {
        return SHAPES[(seed % SHAPES.len() as u64) as usize];
    }
    let (rng, groups) = (SimRng::derived(seed, "staging"), (seed / STAGED_PART).is_multiple_of(2));
    // With three nodes to a rack a lost one is replaced where a stripe group wants it.
    let nodes = if groups { 3 * RACKS } else { 2 * RACKS };
    let (layout, other) = (*rng.pick(STAGED), *rng.pick(STAGED_OTHER));
    let shape = shape(layout, nodes, 2, 3 << 20);
    Shape { other, staging: Some(Staging { racks: RACKS, groups }), ..shape }
}

const fn shape(layout: &'static str, nodes: usize, budget: usize, file_max: usize) -> Shape {
    let (other, other_manager) = (layout, false);
    let volume = "r3";
    let (jobs, several) = (false, false);
    let (managers, heads, keys, staging) = (1, 1, None, None);
    Shape {
        layout,
        other,
        volume,
        managers,
        heads,
        other_manager,
        jobs,
        several,
        nodes,
        budget,
        file_max,
        keys,
        staging,
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) layout: &'static str,
    /// What files are converted to, and back; it bears as many losses.
    pub(crate) other: &'static str,
    /// What the volume has for files without a layout of their own, and for small ones; it bears as many losses at
    /// least.
    pub(crate) volume: &'static str,
    pub(crate) managers: usize,
    /// Those with a manager, and perhaps a spare one.
    pub(crate) heads: usize,
    /// A manager comes to one more place, and perhaps leaves another one.
    pub(crate) other_manager: bool,
    /// The volume has several partitions, and files move between them.
    pub(crate) several: bool,
    /// Data nodes move files out of packs.
    pub(crate) jobs: bool,
    pub(crate) nodes: usize,
    pub(crate) budget: usize,
    pub(crate) file_max: usize,
    /// See [`Plan::keys`].
    pub(crate) keys: Option<u32>,
    /// Of a layout with a later scheme.
    pub(crate) staging: Option<Staging>,
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
    /// Nobody is served without a key; the number of this process, as the machine knows it.
    pub keys: Option<u32>,
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
    let mut shape = shape_of(plan.seed);
    shape.file_max = (shape.file_max * plan.scale).max(64 << 10) / (1 + rng.index(3));
    // Three managers with a partition of three, or one of each.
    shape.managers = if rng.chance(0.6) { 3 } else { 1 };
    // A fourth node for the namespace, to which the partition moves.
    shape.heads = if shape.managers == 3 && rng.chance(0.6) { 4 } else { shape.managers };
    // Data nodes are those who encode.
    shape.jobs = rng.chance(0.5) || shape.staging.is_some();
    shape.other_manager = shape.managers == 3 && rng.chance(0.5);
    // By itself, so that the seed's other decisions are those of a volume of one.
    shape.several = SimRng::derived(plan.seed, "partitions").chance(0.4);
    shape.keys = plan.keys;
    let mut workload = Workload::start(plan.seed, shape)?;
    for step in 0..plan.steps {
        workload.step(step).map_err(|why| format!("step {step}: {why}"))?;
    }
    workload.finish()?;
    let (in_place, (faults, text)) = (workload.blocks_in_place(), workload.summary());
    let took = begun.elapsed().as_secs_f32();
    let text = format!(
        "seed {} ({}{}, {} heads{}{}, {took:.1} s): {faults} faults: {text}",
        plan.seed,
        shape.layout,
        if shape.staging.is_some_and(|staging| staging.groups) { " in stripe groups" } else { "" },
        shape.heads,
        if shape.several { ", several partitions" } else { "" },
        if shape.keys.is_some() { ", keys" } else { "" }
    );
    Ok(Summary { seed: plan.seed, faults, in_place, text })
}

/// Longest time of what a step awaits at once: some dozens of calls, each of which tries for as long as the client is
/// patient. More is a call that hangs.
pub(crate) const CALL_MAX: Duration = Duration::from_secs(1200);
