//! `cargo run --release -p cairn-ear -- EXPERIMENT [--seeds 30] [--links both] [--out DIR]`: runs experiments, prints
//! their tables with the published gains beside, and writes CSV and SVG.
use anyhow::{Context, Result, bail};
use cairn_ear::report::{CSV_HEAD, Runs, chart, csv, save, table, verdicts};
use cairn_ear::setting::LinkModel;
use cairn_ear::{balance, experiments};
use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "usage: cairn-ear EXPERIMENT… [--seeds N] [--links held|fair|both] [--out DIR]\n\
experiments: all, or some of:";

/// Tables that need no time in the simulation.
const TABLES: &[(&str, &str)] = &[
    ("counts", "draws, parities that leave the core rack, stripes that break without the flow"),
    ("storage", "shares of racks in what 10,000 and 1,000 blocks store"),
    ("reads", "share of the rack that is read most"),
];

struct Options {
    names: Vec<String>,
    seeds: u64,
    links: Vec<(&'static str, LinkModel)>,
    out: Option<PathBuf>,
}

fn main() -> ExitCode {
    match options(std::env::args().skip(1)).and_then(|options| run(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cairn-ear: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> String {
    let known = TABLES.iter().chain(experiments::NAMES);
    known.fold(USAGE.to_string(), |text, (name, what)| format!("{text}\n  {name:17} {what}"))
}

fn options(mut args: impl Iterator<Item = String>) -> Result<Options> {
    let both = [("held", LinkModel::Held), ("fair", LinkModel::Fair)];
    let mut options = Options { names: Vec::new(), seeds: 30, links: both.into(), out: None };
    while let Some(arg) = args.next() {
        let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--seeds" => options.seeds = value()?.parse().context("--seeds needs a number")?,
            "--out" => options.out = Some(value()?.into()),
            "--links" => {
                let wanted = value()?;
                options.links = both.into_iter().filter(|(name, _)| wanted == *name || wanted == "both").collect();
            }
            "all" => options.names.extend(TABLES.iter().chain(experiments::NAMES).map(|(name, _)| name.to_string())),
            name if TABLES.iter().chain(experiments::NAMES).any(|(known, _)| *known == name) => options.names.push(arg),
            _ => bail!("{arg} is no experiment\n{}", usage()),
        }
    }
    if options.names.is_empty() || options.links.is_empty() || options.seeds == 0 {
        bail!("{}", usage());
    }
    Ok(options)
}

fn run(options: &Options) -> Result<()> {
    let mut runs = Runs::default();
    for name in &options.names {
        let seeds = options.seeds;
        if let Some((_, title)) = TABLES.iter().find(|(known, _)| known == name) {
            let text = match name.as_str() {
                "counts" => balance::counts(seeds)?,
                "storage" => balance::storage(seeds)?,
                _ => balance::reads(seeds)?,
            };
            println!("## {name}: {title} ({seeds} seeds)\n\n{text}");
            if let Some(out) = &options.out {
                save(out, &format!("{name}.md"), &text)?;
            }
            continue;
        }
        let (mut lines, mut by_links) = (CSV_HEAD.to_string(), Vec::new());
        for (links_name, links) in &options.links {
            let experiment = experiments::of(name, *links).context("the name was checked")?;
            runs.fill(&experiment, seeds)?;
            let measured = runs.measured(&experiment);
            println!("## {name}: {} (links {links_name}, {seeds} seeds)\n", experiment.title);
            println!("{}", table(&experiment, &measured));
            verdicts(&experiment, &measured).iter().for_each(|verdict| println!("{verdict}"));
            println!();
            lines += &csv(&experiment, &measured, links_name, seeds);
            by_links.push((*links_name, measured));
        }
        if let Some(out) = &options.out {
            let experiment = experiments::of(name, options.links[0].1).context("the name was checked")?;
            save(out, &format!("{name}.csv"), &lines)?;
            save(out, &format!("{name}.svg"), &chart(&experiment, &by_links))?;
        }
    }
    Ok(())
}
