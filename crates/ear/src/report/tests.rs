//! The verdict by its rule, and a small experiment from settings to files.
use super::*;
use crate::experiments::{self, Point};
use crate::setting::{LinkModel, Policy};

fn gains(means: &[f64]) -> Vec<Estimate> {
    means.iter().map(|mean| Estimate { mean: *mean, error: 1.0 }).collect()
}

/// A figure would be called reproduced that is not, or the other way round.
#[test]
fn a_verdict_is_by_sign_monotony_and_distance() {
    let labels = ["a", "b", "c"];
    let judge = |means: &[f64], published: [Option<f64>; 3], trend| judge(&gains(means), &published, trend, &labels);
    let was = [None, None, Some(78.7)];
    assert_eq!(judge(&[50.0, 60.0, 75.0], was, Trend::Rises), Some(Ok(())));
    assert_eq!(judge(&[50.0, 49.0, 75.0], was, Trend::Rises), Some(Ok(())), "within the errors");
    assert_eq!(judge(&[50.0, 60.0, 75.0], [None; 3], Trend::Rises), None);
    let fails = |means: &[f64], trend| judge(means, was, trend).expect("published").expect_err("it differs");
    assert_eq!(fails(&[50.0, 60.0, 90.0], Trend::Rises), "+11.3 points at c");
    assert_eq!(fails(&[50.0, 40.0, 75.0], Trend::Rises), "monotony from a to b");
    assert_eq!(fails(&[76.0, 75.9, 75.0], Trend::Rises), "monotony as a whole");
    assert_eq!(fails(&[-3.0, 60.0, 75.0], Trend::Rises), "no gain at a");
    assert_eq!(
        fails(&[80.0, 75.0, 90.0], Trend::Falls),
        "monotony from b to c, monotony as a whole, +11.3 points at c"
    );
    assert_eq!(judge(&[60.0, 80.0, 75.0], was, Trend::Level), Some(Ok(())));
    let few = Estimate::of(&[1.0, 3.0]);
    assert_eq!((few.mean, few.error), (2.0, 2.0));
}

/// The simulator would be found broken when somebody wants new figures.
#[test]
fn a_small_experiment_gives_tables_csv_and_pictures() {
    let small = |k: usize, policy, links| Setting {
        racks: 8,
        nodes_per_rack: 5,
        k,
        m: 2,
        processes: 8,
        stripes_per_process: 2,
        ..Setting::standard(policy, links)
    };
    let of = |links| {
        let mut experiment = experiments::of("code", links).expect("named");
        let point = |k: usize| Point {
            label: k.to_string(),
            random: small(k, Policy::Random, links),
            ear: small(k, Policy::Ear, links),
            published: [Some(30.0), None],
        };
        experiment.points = vec![point(3), point(6)];
        experiment
    };
    let (mut runs, mut again) = (Runs::default(), Runs::default());
    let mut by_links = Vec::new();
    for (name, links) in [("held", LinkModel::Held), ("fair", LinkModel::Fair)] {
        let experiment = of(links);
        runs.fill(&experiment, 3).expect("it fits");
        again.fill(&experiment, 3).expect("it fits");
        let measured = runs.measured(&experiment);
        let text = table(&experiment, &measured);
        assert_eq!(text, table(&experiment, &again.measured(&experiment)), "threads must not matter");
        assert_eq!(text.lines().count(), 4);
        assert!(measured.iter().all(|measured| measured.ear.downloads == 0.0 && measured.random.downloads > 1.0));
        assert!(measured.iter().all(|measured| measured.gains[0].mean > 0.0), "{text}");
        assert_eq!(verdicts(&experiment, &measured).len(), 1);
        let csv = csv(&experiment, &measured, name, 3);
        let columns = |line: &str| line.split(',').count();
        assert!(csv.lines().all(|line| columns(line) == columns(CSV_HEAD)), "{csv}");
        by_links.push((name, measured));
    }
    let svg = chart(&of(LinkModel::Held), &by_links);
    assert!(svg.contains("encoding, held") && svg.contains("encoding, published"), "{svg}");
}
