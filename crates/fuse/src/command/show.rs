//! States of mounts as text.
use serde_json::Value;
use std::fmt::Write;

/// One line a mount.
pub fn list(mounts: &[Value]) -> String {
    let mut out = String::new();
    if mounts.is_empty() {
        out.push_str("no mounts of this user\n");
    }
    for mount in mounts {
        let worker = match mount["worker"]["error"].as_str() {
            Some(error) => error.to_owned(),
            None => format!("worker {}", mount["worker"]["pid"]),
        };
        let (dir, source) = (text(&mount["dir"]), text(&mount["source"]));
        let _infallible = writeln!(out, "{dir}  {source}  {worker}  restarts {}", mount["restarts"]);
    }
    out
}

/// All of one mount.
pub fn one(mount: &Value) -> String {
    let (worker, vfs, mut out) = (&mount["worker"], &mount["worker"]["vfs"], String::new());
    let mut line = |name: &str, value: String| {
        let _infallible = writeln!(out, "{name:<16}{value}");
    };
    line("mount point", text(&mount["dir"]));
    line("source", text(&mount["source"]));
    line("supervisor", format!("process {}, restarts {}", mount["supervisor"], mount["restarts"]));
    if let Some(end) = mount["last_end"].as_str() {
        line("last end", end.to_owned());
    }
    line("log", text(&mount["log"]));
    match worker["error"].as_str() {
        Some(error) => line("worker", error.to_owned()),
        None => line("worker", format!("process {}, version {}", worker["pid"], text(&worker["version"]))),
    }
    if !vfs.is_null() {
        line("open handles", vfs["handles"].to_string());
        line("unwritten", format!("{} bytes, {} under way", vfs["dirty_bytes"], vfs["writing_bytes"]));
        line("under way", format!("{} requests", worker["in_flight"]));
        let (led, unstored) = (&vfs["led_directories"], &vfs["unstored_changes"]);
        line("leads", format!("{led} directories, {unstored} changes not stored yet"));
        if let Some(lost) = vfs["lost_directories"].as_u64().filter(|lost| *lost > 0) {
            line(
                "lost",
                format!("{lost} directories that it led answer EIO, {} changes are lost", vfs["lost_changes"]),
            );
        }
        if let Some(error) = vfs["last_error"].as_str() {
            line("last error", error.to_owned());
        }
    }
    operations(&mut out, worker["requests"]["operations"].as_object());
    out
}

fn operations(out: &mut String, operations: Option<&serde_json::Map<String, Value>>) {
    let Some(operations) = operations.filter(|operations| !operations.is_empty()) else { return };
    let _infallible =
        writeln!(out, "{:<20}{:>12}{:>10}{:>12}{:>10}{:>10}", "operation", "count", "errors", "mean µs", "p50", "p99");
    for (name, op) in operations {
        let mean = op["mean_us"].as_f64().unwrap_or_default();
        let _infallible = writeln!(
            out,
            "{name:<20}{:>12}{:>10}{mean:>12.1}{:>10}{:>10}",
            op["count"].to_string(),
            op["errors"].to_string(),
            op["p50_us"].to_string(),
            op["p99_us"].to_string()
        );
    }
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| "-".to_owned(), str::to_owned)
}
