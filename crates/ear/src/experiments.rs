//! The experiments: what is varied, and what was published of it.
use crate::setting::{LinkModel, Policy, Setting};

/// How published gains go along the axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trend {
    Rises,
    Falls,
    /// About the same everywhere.
    Level,
    /// Not published.
    Unknown,
}

/// One setting of an experiment, under both policies. Gains are in percent: of encoding, of writes.
#[derive(Clone, Debug)]
pub struct Point {
    pub label: String,
    pub random: Setting,
    pub ear: Setting,
    pub published: [Option<f64>; 2],
}

/// A row of settings.
#[derive(Clone, Debug)]
pub struct Experiment {
    pub name: &'static str,
    pub title: &'static str,
    pub axis: &'static str,
    pub points: Vec<Point>,
    pub trends: [Trend; 2],
}

/// Names and what they show, in the order of [`of`].
pub const NAMES: &[(&str, &str)] = &[
    ("code", "k from 6 to 12"),
    ("links", "links of 0.2 to 2 Gb/s"),
    ("writes", "1 to 4 writes a second"),
    ("racks", "tolerated rack failures from 4 to 1 (c from 1 to 4)"),
    ("copies", "2 to 8 copies"),
    ("parity", "2 to 6 parities"),
    ("groups", "EAR by stripe groups with chosen racks"),
    ("targets", "shards within R' target racks"),
    ("oversubscription", "racks' links from 2:1 to 20:1"),
    ("small", "the same on 5 racks of 4 nodes, (9, 6)"),
    ("relocation", "random replication is charged for moving blocks"),
];

/// The experiment of this name with the settings of one link model.
pub fn of(name: &str, links: LinkModel) -> Option<Experiment> {
    let (name, title) = *NAMES.iter().find(|(known, _)| *known == name)?;
    let (axis, points, trends) = match name {
        "code" => ("k", code(links), [Trend::Rises, Trend::Rises]),
        "links" => ("Gb/s", links_sweep(links), [Trend::Falls, Trend::Unknown]),
        "writes" => ("writes a second", writes(links), [Trend::Rises, Trend::Unknown]),
        "racks" => ("c of EAR", racks(links), [Trend::Rises, Trend::Rises]),
        "copies" => ("copies", copies(links), [Trend::Level, Trend::Falls]),
        "parity" => ("n - k", parity(links), [Trend::Level, Trend::Falls]),
        "groups" => ("stripe groups", groups(links), [Trend::Unknown; 2]),
        "targets" => ("c, R'", targets(links), [Trend::Unknown; 2]),
        "oversubscription" => ("oversubscription", oversubscription(links, false), [Trend::Rises, Trend::Unknown]),
        "small" => ("oversubscription", oversubscription(links, true), [Trend::Rises, Trend::Unknown]),
        _ => ("k", relocation(links), [Trend::Unknown; 2]),
    };
    Some(Experiment { name, title, axis, points, trends })
}

/// Both policies under a change of the standard setting.
fn point(links: LinkModel, label: impl ToString, published: [Option<f64>; 2], change: impl Fn(&mut Setting)) -> Point {
    let changed = |policy| {
        let mut setting = Setting::standard(policy, links);
        change(&mut setting);
        setting
    };
    Point { label: label.to_string(), random: changed(Policy::Random), ear: changed(Policy::Ear), published }
}

fn code(links: LinkModel) -> Vec<Point> {
    let published = |k| if k == 12 { [Some(78.7), Some(36.8)] } else { [None; 2] };
    [6, 8, 10, 12].map(|k| point(links, k, published(k), |setting| setting.k = k)).into()
}

fn links_sweep(links: LinkModel) -> Vec<Point> {
    let of = |gbit: f64| {
        let published = if gbit < 0.3 { [Some(165.2), None] } else { [None; 2] };
        point(links, gbit, published, |setting| (setting.node_mbit, setting.rack_mbit) = (gbit * 1e3, gbit * 1e3))
    };
    [0.2, 0.5, 1.0, 2.0].map(of).into()
}

fn writes(links: LinkModel) -> Vec<Point> {
    let published = |rate| if rate == 4 { [Some(89.0), Some(25.0)] } else { [None; 2] };
    [1, 2, 3, 4]
        .map(|rate| point(links, rate, published(rate), |setting| setting.writes_per_s = f64::from(rate)))
        .into()
}

/// Random replication stays at c = 1: what it survives is not what is varied.
fn racks(links: LinkModel) -> Vec<Point> {
    let published = [(1, [Some(70.1), Some(26.3)]), (2, [None; 2]), (4, [Some(82.1), Some(48.3)])];
    let of = |(c, published)| {
        let mut point = point(links, c, published, |_| ());
        point.ear.rack_capacity = c;
        point
    };
    published.map(of).into()
}

fn copies(links: LinkModel) -> Vec<Point> {
    let write = |copies| [(2, 34.7), (8, 20.5)].into_iter().find(|(at, _)| *at == copies).map(|(_, gain)| gain);
    [2, 3, 4, 6, 8]
        .map(|copies| point(links, copies, [Some(70.0), write(copies)], |setting| setting.copies = copies))
        .into()
}

fn parity(links: LinkModel) -> Vec<Point> {
    let write = |m| [(2, 33.9), (6, 14.1)].into_iter().find(|(at, _)| *at == m).map(|(_, gain)| gain);
    [2, 3, 4, 5, 6].map(|m| point(links, m, [Some(70.0), write(m)], |setting| setting.m = m)).into()
}

fn groups(links: LinkModel) -> Vec<Point> {
    let mut points = vec![point(links, "drawn", [None; 2], |_| ())];
    for count in [20, 100, 400] {
        let mut grouped = point(links, count, [None; 2], |_| ());
        grouped.ear.policy = Policy::Groups(count);
        points.push(grouped);
    }
    points
}

fn targets(links: LinkModel) -> Vec<Point> {
    let of = |(c, targets)| {
        let mut point = point(links, format!("{c}, {targets}"), [None; 2], |_| ());
        (point.ear.rack_capacity, point.ear.target_racks) = (c, Some(targets));
        point
    };
    [(1, 20), (1, 14), (2, 20), (2, 7), (4, 20), (4, 4)].map(of).into()
}

/// Links of racks against all links of their nodes. The figures are those of the authors' second testbed.
fn oversubscription(links: LinkModel, small: bool) -> Vec<Point> {
    let published =
        |ratio| [(2, 31.0), (20, 63.6)].into_iter().find(|(at, _)| small && *at == ratio).map(|(_, gain)| gain);
    let of = |ratio: u32| {
        point(links, format!("{ratio}:1"), [published(ratio), None], |setting| {
            if small {
                (setting.racks, setting.nodes_per_rack, setting.k, setting.m) = (5, 4, 6, 3);
                (setting.rack_capacity, setting.processes, setting.stripes_per_process) = (2, 10, 10);
                setting.writes_per_s = 0.0;
            }
            setting.rack_mbit = setting.node_mbit * setting.nodes_per_rack as f64 / f64::from(ratio);
        })
    };
    [2, 5, 10, 20].map(of).into()
}

fn relocation(links: LinkModel) -> Vec<Point> {
    let of = |k| {
        let mut point = point(links, k, [None; 2], |setting| setting.k = k);
        point.random.policy = Policy::RandomRelocating;
        point
    };
    [6, 10, 12].map(of).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Layouts, cluster};

    /// An experiment would end after an hour because one of its settings cannot be laid out.
    #[test]
    fn every_setting_can_be_laid_out() {
        for (name, _) in NAMES {
            let experiment = of(name, LinkModel::Held).expect("named");
            assert!(experiment.points.len() >= 3);
            for setting in experiment.points.iter().flat_map(|point| [&point.random, &point.ear]) {
                let cluster = cluster(setting);
                let mut layouts = Layouts::new(setting, &cluster, 1).expect("it fits");
                let encoder = layouts.encoder(0);
                let (_, work) = layouts.next_stripe(0, encoder).expect("it fits");
                assert_eq!((work.blocks.len(), work.parities.len()), (setting.k, setting.m), "{name}");
                assert_eq!(layouts.next_write().expect("it fits").len(), setting.copies, "{name}");
            }
        }
        assert!(of("none", LinkModel::Fair).is_none());
    }
}
