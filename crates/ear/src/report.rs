//! Runs experiments over seeds, holds their gains against the published ones, and writes tables, CSV and pictures.
use crate::experiments::{Experiment, Trend};
use crate::run::{Outcome, run};
use crate::setting::Setting;
use crate::svg::{Chart, Series};
use anyhow::{Context, Result, anyhow};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Gains may differ from the published ones by this many points.
pub const CLOSE: f64 = 10.0;

/// Outcomes so far; a setting that several experiments share runs once.
#[derive(Default)]
pub struct Runs {
    outcomes: BTreeMap<String, Vec<Outcome>>,
}

/// A mean, and how far it may be off (two standard errors).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Estimate {
    pub mean: f64,
    pub error: f64,
}

impl Estimate {
    pub fn of(samples: &[f64]) -> Self {
        let count = samples.len().max(1) as f64;
        let mean = samples.iter().sum::<f64>() / count;
        let variance = samples.iter().map(|sample| (sample - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
        Self { mean, error: 2.0 * (variance / count).sqrt() }
    }
}

/// What a point of an experiment gave: gains in percent of encoding (time of a process) and of writes, and that of
/// encoding until the last process has ended.
#[derive(Clone, Debug)]
pub struct Measured {
    pub random: Outcome,
    pub ear: Outcome,
    pub gains: [Estimate; 2],
    pub makespan_gain: Estimate,
}

impl Runs {
    /// Runs what an experiment needs and was not run yet, on all processors. Results do not depend on how many there
    /// are.
    pub fn fill(&mut self, experiment: &Experiment, seeds: u64) -> Result<()> {
        let mut missing: BTreeMap<String, &Setting> = BTreeMap::new();
        for setting in experiment.points.iter().flat_map(|point| [&point.random, &point.ear]) {
            let key = format!("{setting:?}");
            if self.outcomes.get(&key).is_none_or(|outcomes| (outcomes.len() as u64) < seeds) {
                missing.insert(key, setting);
            }
        }
        let jobs: Vec<(&str, &Setting, u64)> =
            missing.iter().flat_map(|(key, setting)| (1..=seeds).map(|seed| (key.as_str(), *setting, seed))).collect();
        let (next, results) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
        let work = || {
            while let Some((key, setting, seed)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                let outcome = run(setting, *seed);
                results.lock().expect("nobody panics while holding it").insert((*key, *seed), outcome);
            }
        };
        let threads = thread::available_parallelism().map_or(1, usize::from).min(jobs.len().max(1));
        thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
        let results = results.into_inner().map_err(|_| anyhow!("a run panicked; see above"))?;
        for key in missing.keys() {
            self.outcomes.remove(key);
        }
        for ((key, seed), outcome) in results {
            let outcome = outcome.with_context(|| format!("{key}, seed {seed}"))?;
            self.outcomes.entry(key.to_string()).or_default().push(outcome);
        }
        Ok(())
    }

    /// The gains of each point.
    pub fn measured(&self, experiment: &Experiment) -> Vec<Measured> {
        let of = |setting: &Setting| self.outcomes.get(&format!("{setting:?}")).map_or(&[][..], Vec::as_slice);
        let points = experiment.points.iter().map(|point| {
            let (random, ear) = (of(&point.random), of(&point.ear));
            let gain = |time: fn(&Outcome) -> f64| {
                let pairs = random.iter().zip(ear).map(|(random, ear)| (time(random) / time(ear) - 1.0) * 100.0);
                Estimate::of(&pairs.filter(|gain| gain.is_finite()).collect::<Vec<f64>>())
            };
            let gains = [gain(|outcome| outcome.process_s), gain(|outcome| outcome.write_s)];
            let makespan_gain = gain(|outcome| outcome.makespan_s);
            Measured { random: mean(random), ear: mean(ear), gains, makespan_gain }
        });
        points.collect()
    }
}

fn mean(outcomes: &[Outcome]) -> Outcome {
    let count = outcomes.len().max(1) as f64;
    let of = |field: fn(&Outcome) -> f64| outcomes.iter().map(field).sum::<f64>() / count;
    Outcome {
        process_s: of(|outcome| outcome.process_s),
        makespan_s: of(|outcome| outcome.makespan_s),
        stripe_s: of(|outcome| outcome.stripe_s),
        write_s: of(|outcome| outcome.write_s),
        writes: outcomes.iter().map(|outcome| outcome.writes).sum(),
        stripes: outcomes.iter().map(|outcome| outcome.stripes).sum(),
        downloads: of(|outcome| outcome.downloads),
        parities: of(|outcome| outcome.parities),
        moves: of(|outcome| outcome.moves),
    }
}

/// Whether a published row of gains was reproduced: same sign, same monotony, within [`CLOSE`] points. `None` where
/// nothing was published; the error says what differs.
pub fn judge(
    gains: &[Estimate],
    published: &[Option<f64>],
    trend: Trend,
    labels: &[&str],
) -> Option<Result<(), String>> {
    if published.iter().all(Option::is_none) {
        return None;
    }
    let mut differs = Vec::new();
    if let Some(at) = gains.iter().position(|gain| gain.mean <= 0.0) {
        differs.push(format!("no gain at {}", labels[at]));
    }
    let up = match trend {
        Trend::Rises => 1.0,
        Trend::Falls => -1.0,
        Trend::Level | Trend::Unknown => 0.0,
    };
    // What lies within the errors of both is no step.
    let against = |pair: &[Estimate]| (pair[1].mean - pair[0].mean) * up < -(pair[0].error + pair[1].error);
    if let Some(at) = gains.windows(2).position(against) {
        differs.push(format!("monotony from {} to {}", labels[at], labels[at + 1]));
    }
    if let (Some(first), Some(last)) = (gains.first(), gains.last())
        && up != 0.0
        && (last.mean - first.mean) * up <= 0.0
    {
        differs.push("monotony as a whole".to_string());
    }
    for (at, (gain, published)) in gains.iter().zip(published).enumerate() {
        let off = published.map_or(0.0, |published| gain.mean - published);
        if off.abs() > CLOSE {
            differs.push(format!("{off:+.1} points at {}", labels[at]));
        }
    }
    Some(if differs.is_empty() { Ok(()) } else { Err(differs.join(", ")) })
}

/// The verdicts of an experiment, in a sentence each.
pub fn verdicts(experiment: &Experiment, measured: &[Measured]) -> Vec<String> {
    let labels: Vec<&str> = experiment.points.iter().map(|point| point.label.as_str()).collect();
    let mut sentences = Vec::new();
    for (which, name) in ["encoding", "writes"].into_iter().enumerate() {
        let gains: Vec<Estimate> = measured.iter().map(|measured| measured.gains[which]).collect();
        let published: Vec<Option<f64>> = experiment.points.iter().map(|point| point.published[which]).collect();
        match judge(&gains, &published, experiment.trends[which], &labels) {
            Some(Ok(())) => sentences.push(format!("{name}: reproduced")),
            Some(Err(differs)) => sentences.push(format!("{name}: not reproduced: {differs}")),
            None => {}
        }
    }
    sentences
}

/// The table of an experiment.
pub fn table(experiment: &Experiment, measured: &[Measured]) -> String {
    let mut text = format!(
        "| {} | encoding RR s | EAR s | gain % | published | until the last, gain % | write RR s | EAR s | gain % | published |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
        experiment.axis
    );
    for (point, measured) in experiment.points.iter().zip(measured) {
        let Measured { random, ear, gains: [encoding, writes], makespan_gain: last } = measured;
        let published = point.published.map(|gain| gain.map_or(String::new(), |gain| format!("{gain:.1}")));
        let [encoding_was, writes_was] = published;
        let _ = write!(
            text,
            "| {} | {:.0} | {:.0} | {:.1} ± {:.1} | {encoding_was} | {:.1} ± {:.1} ",
            point.label, random.process_s, ear.process_s, encoding.mean, encoding.error, last.mean, last.error
        );
        let _ = if random.writes == 0 {
            writeln!(text, "| | | | |")
        } else {
            writeln!(
                text,
                "| {:.2} | {:.2} | {:.1} ± {:.1} | {writes_was} |",
                random.write_s, ear.write_s, writes.mean, writes.error
            )
        };
    }
    text
}

/// All figures of an experiment, a line a point.
pub fn csv(experiment: &Experiment, measured: &[Measured], links: &str, seeds: u64) -> String {
    let mut text = String::new();
    for (point, measured) in experiment.points.iter().zip(measured) {
        let Measured { random, ear, gains: [encoding, writes], makespan_gain: last } = measured;
        let [encoding_was, writes_was] =
            point.published.map(|gain| gain.map_or(String::new(), |gain| gain.to_string()));
        let _ = write!(text, "{},\"{}\",{links},{seeds}", experiment.name, point.label);
        for outcome in [random, ear] {
            let Outcome { process_s, makespan_s, stripe_s, write_s, downloads, parities, moves, .. } = outcome;
            let _ = write!(
                text,
                ",{process_s:.3},{makespan_s:.3},{stripe_s:.3},{write_s:.4},{downloads:.3},{parities:.3},{moves:.3}"
            );
        }
        let _ = write!(text, ",{:.2},{:.2},{encoding_was}", encoding.mean, encoding.error);
        let _ = write!(text, ",{:.2},{:.2}", last.mean, last.error);
        let _ = writeln!(text, ",{:.2},{:.2},{writes_was}", writes.mean, writes.error);
    }
    text
}

/// The heads of the columns of [`csv`].
pub const CSV_HEAD: &str = "experiment,point,links,seeds,rr_process_s,rr_makespan_s,rr_stripe_s,rr_write_s,rr_downloads,rr_parities,rr_moves,\
ear_process_s,ear_makespan_s,ear_stripe_s,ear_write_s,ear_downloads,ear_parities,ear_moves,encoding_gain,encoding_error,encoding_published,makespan_gain,makespan_error,\
write_gain,write_error,write_published\n";

/// A picture of the gains: a line for each link model, published ones as circles.
pub fn chart(experiment: &Experiment, by_links: &[(&str, Vec<Measured>)]) -> String {
    let labels = experiment.points.iter().map(|point| point.label.clone()).collect();
    let mut series = Vec::new();
    for (which, (name, colour)) in [("encoding", "#1f6feb"), ("writes", "#bf5700")].into_iter().enumerate() {
        for (at, (links, measured)) in by_links.iter().enumerate() {
            if measured.iter().all(|measured| which == 1 && measured.random.writes == 0) {
                continue;
            }
            let values = measured.iter().map(|measured| Some(measured.gains[which].mean)).collect();
            series.push(Series { name: format!("{name}, {links}"), colour, dashed: at > 0, circles: false, values });
        }
        let published: Vec<Option<f64>> = experiment.points.iter().map(|point| point.published[which]).collect();
        if published.iter().any(Option::is_some) {
            let name = format!("{name}, published");
            series.push(Series { name, colour, dashed: false, circles: true, values: published });
        }
    }
    let title = format!("Gain of EAR over random replication, %: {}", experiment.title);
    Chart { title, axis: experiment.axis.to_string(), labels, series }.svg()
}

/// Writes a file of results.
pub fn save(out: &Path, name: &str, text: &str) -> Result<()> {
    fs::create_dir_all(out).with_context(|| format!("making {}", out.display()))?;
    let path = out.join(name);
    fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests;
