//! What is shipped for monitoring: every metric that alerts and dashboard name is one that servers have, every alert
//! has its section of the runbook.
use crate::support::{Cluster, Shape, binary, text};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the project")
}

fn file(name: &str) -> String {
    fs::read_to_string(project().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Names of metrics in a text.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("cairn_")).map(str::to_owned).collect()
}

/// Samples of all processes of a cluster that has been used.
fn samples() -> BTreeSet<String> {
    let cluster = Cluster::start(Shape { managers: 1, metas: 1, datas: 2, racks: 1 });
    let local = cluster.path("file");
    fs::write(&local, vec![7; 3_000_000]).expect("file");
    cluster.ok(&["fs", "put", local.to_str().expect("utf-8"), "/file"]);
    cluster.ok(&["fs", "cat", "/file"]);
    let mut all = BTreeSet::new();
    for name in cluster.names() {
        let page = cluster.metrics(&name);
        assert!(page.ends_with("# EOF\n"), "{name}: {page}");
        all.extend(page.lines().filter(|line| !line.starts_with('#')).flat_map(names));
        for line in [
            "# TYPE cairn_rpc_request_seconds histogram",
            "cairn_build_info{version=",
            "cairn_process_cpu_seconds_total",
        ] {
            assert!(page.contains(line), "{name} lacks {line}");
        }
        if name.starts_with("data") {
            assert!(page.contains("cairn_rpc_request_seconds_bucket{le=\"0.0001\",operation=\"Append\"}"), "{page}");
        }
        if name.starts_with("meta") {
            assert!(page.contains("cairn_meta_mutation_seconds_bucket{le=\"+Inf\",role=\"meta\"}"), "{page}");
        }
    }
    all
}

/// An alert that never fires, or a panel that stays empty, because its metric has another name.
#[test]
fn what_alerts_and_dashboard_ask_for_is_there() {
    let there = samples();
    let mut asked = 0;
    for name in ["packaging/monitoring/alerts.yml", "packaging/monitoring/grafana.json"] {
        for metric in names(&file(name)) {
            assert!(there.contains(&metric), "{name} asks for {metric}, which no process has");
            asked += 1;
        }
    }
    assert!(asked > 40, "{asked} metrics");
    // The page of the reference says what each is.
    let page = names(&file("docs/reference/metrics.md"));
    let described = |metric: &String| {
        let ends = ["", "_total", "_bucket", "_sum", "_count"];
        ends.iter().any(|end| metric.strip_suffix(end).is_some_and(|metric| page.contains(metric)))
    };
    let missing: Vec<&String> = there.iter().filter(|metric| !described(metric)).collect();
    assert!(missing.is_empty(), "docs/reference/metrics.md lacks {missing:?}");
}

/// Somebody who is woken at night would find no page, or the wrong one.
#[test]
fn every_alert_has_its_section_of_the_runbook() {
    let (alerts, runbook) = (file("packaging/monitoring/alerts.yml"), file("docs/guides/runbook.md"));
    let rules: Vec<&str> = alerts.split("- alert: ").skip(1).collect();
    assert!(rules.len() >= 20, "{} alerts", rules.len());
    for rule in &rules {
        let name = rule.lines().next().expect("a name");
        assert!(runbook.lines().any(|line| line == format!("## {name}")), "the runbook lacks {name}");
        assert!(
            rule.contains(&format!("docs/guides/runbook.md#{}\"", name.to_lowercase())),
            "{name} names another page"
        );
        assert!(["severity: critical", "severity: warning"].iter().any(|level| rule.contains(level)), "{name}");
    }
    assert_eq!(
        runbook.lines().filter(|line| line.starts_with("## ")).count(),
        rules.len(),
        "a section without an alert"
    );
}

/// Runs promtool, of `make test`'s tools or the system; false where there is none.
fn promtool(what: &str, file: &Path) -> bool {
    let own = Path::new(binary()).ancestors().nth(2).map(|target| target.join("tools/bin/promtool"));
    let program = own.filter(|own| own.is_file()).unwrap_or_else(|| "promtool".into());
    let Ok(output) = Command::new(program).args([what, "rules"]).arg(file).output() else {
        println!("skipped: promtool is not installed");
        return false;
    };
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    true
}

/// Prometheus would refuse the file, an alert never fire, or a healthy cluster wake somebody up.
#[test]
fn prometheus_takes_the_alerts() {
    let directory = project().join("packaging/monitoring");
    if !promtool("check", &directory.join("alerts.yml")) {
        return;
    }
    promtool("test", &directory.join("alerts_test.yml"));
    let (alerts, tests) = (file("packaging/monitoring/alerts.yml"), file("packaging/monitoring/alerts_test.yml"));
    for alert in alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        assert!(tests.contains(&format!("- name: {alert}\n")), "nobody has seen {alert} fire");
    }
}

/// A panel would show an error in place of a curve.
#[test]
fn prometheus_takes_the_expressions_of_the_dashboard() {
    let dashboard: serde_json::Value = serde_json::from_str(&file("packaging/monitoring/grafana.json")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().expect("targets"));
    let mut rules = String::from("groups:\n  - name: panels\n    rules:\n");
    for (number, target) in targets.enumerate() {
        // What Grafana puts in for its variables.
        let expression = target["expr"].as_str().expect("text").replace("$__rate_interval", "5m");
        rules += &format!("      - record: panel:{number}\n        expr: {}\n", serde_json::Value::from(expression));
    }
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path().join("panels.yml");
    fs::write(&path, rules).expect("written");
    promtool("check", &path);
}

/// Grafana would refuse the file, or show panels over each other.
#[test]
fn the_dashboard_is_one() {
    let dashboard: serde_json::Value = serde_json::from_str(&file("packaging/monitoring/grafana.json")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64().expect("an id")).collect();
    let places: BTreeSet<_> = panels.iter().map(|panel| panel["gridPos"].to_string()).collect();
    assert!(panels.len() > 10 && ids.len() == panels.len() && places.len() == panels.len());
    for panel in panels {
        let targets = panel["targets"].as_array().expect("targets");
        assert!(
            targets.iter().all(|target| target["expr"].as_str().is_some_and(|expr| expr.contains("cairn_"))),
            "{panel}"
        );
    }
}
