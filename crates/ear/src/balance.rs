//! What does not need time: draws, blocks that cross racks, how evenly racks are filled and read.
use crate::layout::{Layouts, cluster};
use crate::report::Estimate;
use crate::setting::{LinkModel, Policy, Setting};
use anyhow::Result;
use cairn_placement::ear::{EarShape, Slot, StripeBuilder, SurvivorFlow};
use cairn_sim::SimRng;
use cairn_types::NodeId;
use std::fmt::Write as _;

/// Blocks of the experiment on storage: the published number, and the one that the published shares fit.
const BLOCKS: [usize; 2] = [10_000, 1_000];

const POLICIES: [(&str, Policy); 3] =
    [("random", Policy::Random), ("EAR, drawn", Policy::Ear), ("EAR, 100 groups", Policy::Groups(100))];

/// The smallest and the largest rack's share of all copies, and of all read requests of a file, in percent.
fn shares(setting: &Setting, blocks: usize, seed: u64) -> Result<([f64; 2], f64)> {
    let cluster = cluster(setting);
    let mut layouts = Layouts::new(setting, &cluster, seed)?;
    let (mut stored, mut read) = (vec![0.0; setting.racks], vec![0.0; setting.racks]);
    for _ in 0..blocks {
        let copies = layouts.next_write()?;
        for copy in &copies {
            stored[setting.rack_of(*copy)] += 100.0 / (blocks * copies.len()) as f64;
        }
        // A request goes to each rack with a copy equally often.
        let mut racks: Vec<usize> = copies.iter().map(|copy| setting.rack_of(*copy)).collect();
        racks.sort_unstable();
        racks.dedup();
        racks.iter().for_each(|rack| read[*rack] += 100.0 / (blocks * racks.len()) as f64);
    }
    let least = stored.iter().copied().fold(f64::MAX, f64::min);
    let most = stored.iter().copied().fold(0.0, f64::max);
    Ok(([least, most], read.iter().copied().fold(0.0, f64::max)))
}

fn over_seeds(seeds: u64, of: impl Fn(u64) -> Result<f64>) -> Result<Estimate> {
    Ok(Estimate::of(&(1..=seeds).map(of).collect::<Result<Vec<f64>>>()?))
}

/// Shares of racks in what many blocks store.
pub fn storage(seeds: u64) -> Result<String> {
    let mut text =
        "| blocks | policy | smallest share % | largest share % | published |\n|---|---|---|---|---|\n".to_string();
    for (blocks, was) in BLOCKS.into_iter().zip(["4.1 to 5.9", ""]) {
        for (name, policy) in POLICIES {
            let setting = Setting::standard(policy, LinkModel::Fair);
            let [least, most] =
                [0, 1].map(|side| over_seeds(seeds, |seed| Ok(shares(&setting, blocks, seed)?.0[side])));
            let was = if matches!(policy, Policy::Groups(_)) { "" } else { was };
            let _ = writeln!(text, "| {blocks} | {name} | {:.2} | {:.2} | {was} |", least?.mean, most?.mean);
        }
    }
    Ok(text)
}

/// The share of the rack that is read most, by the length of a file.
pub fn reads(seeds: u64) -> Result<String> {
    let mut text = "| blocks of a file | random | EAR, drawn | EAR, 100 groups |\n|---|---|---|---|\n".to_string();
    for blocks in [10, 100, 1_000, 10_000] {
        let _ = write!(text, "| {blocks} ");
        for (_, policy) in POLICIES {
            let setting = Setting::standard(policy, LinkModel::Fair);
            let hottest = over_seeds(seeds, |seed| Ok(shares(&setting, blocks, seed)?.1))?;
            let _ = write!(text, "| {:.2} ± {:.2} ", hottest.mean, hottest.error);
        }
        text.push_str("|\n");
    }
    Ok(text)
}

/// Draws, parities that leave the core rack, stripes that break without the flow.
pub fn counts(seeds: u64) -> Result<String> {
    let mut text = "| what | counted | published |\n|---|---|---|\n".to_string();
    let setting = Setting::standard(Policy::Ear, LinkModel::Fair);
    let cluster = cluster(&setting);
    let stripes = seeds * 100;
    let mut row = |what: &str, counted: f64, was: &str| writeln!(text, "| {what} | {counted:.2} | {was} |");
    for (c, was) in [(1, "3.96"), (2, "2.42"), (4, "0")] {
        let shape = EarShape::new(3, 10, 4, c)?;
        let (mut all, mut last, mut leaving) = (0.0, 0.0, 0.0);
        for seed in 0..stripes {
            let plan = StripeBuilder::new(&cluster, shape, (seed % 20) as u32, seed)?.finish()?;
            all += f64::from(plan.draws.iter().sum::<u32>()) / 10.0 / stripes as f64;
            last += f64::from(plan.draws[9]) / stripes as f64;
            let away = plan.parities.iter().filter(|parity| parity.rack != plan.core_rack).count();
            leaving += away as f64 / stripes as f64;
        }
        if c == 1 {
            row("draws of a block, k = 10 on 20 racks", all, "1.19")?;
            row("draws of the last block", last, "at most 1.9; 1.67")?;
        }
        row(&format!("parities of 4 that leave the core rack, c = {c}"), leaving, was)?;
    }
    row("share of stripes that break without the flow, k = 12 on 16 racks", broken(stripes), "0.97")?;
    Ok(text)
}

/// Stripes with copies in a core rack and in random others, drawn without the flow, that one rack a shard cannot hold.
fn broken(stripes: u64) -> f64 {
    let chance = SimRng::derived(stripes, "preliminary");
    let stripe = |_: &u64| {
        let mut flow = SurvivorFlow::new((0..16).map(|rack| (rack, 1)));
        !(0..12).all(|_| {
            let rack = 1 + chance.index(15) as u32;
            let slot = |rack: u32, node: usize| Slot { node: NodeId(rack * 20 + node as u32), rack };
            let first = chance.index(20);
            let second = (first + 1 + chance.index(19)) % 20;
            flow.try_add(&[slot(0, chance.index(20)), slot(rack, first), slot(rack, second)])
        })
    };
    (0..stripes).filter(stripe).count() as f64 / stripes.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rack would fill, or be asked, far more than others with EAR.
    #[test]
    fn racks_are_filled_and_read_as_evenly_as_with_random_replication() {
        let of = |policy| shares(&Setting::standard(policy, LinkModel::Fair), BLOCKS[0], 1).expect("it fits");
        let (random, ear, groups) = (of(Policy::Random), of(Policy::Ear), of(Policy::Groups(100)));
        for ([least, most], hottest) in [random, ear, groups] {
            assert!(least > 4.1 && most < 5.9 && hottest < 5.9, "{least} to {most}, {hottest}");
        }
        assert!(counts(5).expect("it fits").contains("leave the core rack, c = 4 | 0.0"));
    }
}
