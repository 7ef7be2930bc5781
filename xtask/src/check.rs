//! Runs the checks one after another, never stopping at the first failure, and prints one line per check at the end.

use crate::cargo::{self, Workspace};
use crate::findings::Findings;
use crate::{advisories, cycles, deny, docs, layers, licence, manifests, mutants, source};
use anyhow::{Result, bail};

type Check = fn(&Workspace, &mut Findings) -> Result<()>;

/// Name, what it looks at, and the function. The slow ones stand last.
pub const CHECKS: &[(&str, &str, Check)] = &[
    ("format", "cargo fmt --check", cargo::check_format),
    ("layers", "which crate may depend on which, and on what from outside", layers::check),
    ("cycles", "how many files of a crate import each other in a circle", cycles::check),
    ("manifests", "every crate's Cargo.toml and clippy.toml carry the shared rules", manifests::check),
    ("source", "file and function sizes, purity of layers 0-2, forbidden constructs", source::check),
    ("mutants", "every change in mutants/ still fits the source", mutants::check),
    ("docs", "links in Markdown, the code map, the changelog", docs::check),
    ("licences", "every dependency's licence against deny.toml", licence::check),
    ("advisories", "Cargo.lock against the reviewed security advisories", advisories::check),
    ("deny", "cargo deny, where it is installed", deny::check),
    ("clippy", "cargo clippy on everything, warnings as errors", cargo::check_clippy),
];

/// Runs the named checks, or all. `Ok(false)`: at least one failed.
pub fn run(names: &[&str]) -> Result<bool> {
    for name in names {
        if !CHECKS.iter().any(|(known, ..)| known == name) {
            let known: Vec<&str> = CHECKS.iter().map(|(known, ..)| *known).collect();
            bail!("there is no check named {name}; the checks are: {}", known.join(", "));
        }
    }
    let workspace = Workspace::load()?;
    let mut summary = Vec::new();
    let mut ok = true;
    for (name, what, check) in CHECKS {
        if !names.is_empty() && !names.contains(name) {
            continue;
        }
        println!("== {name}: {what}");
        let mut findings = Findings::default();
        if let Err(error) = check(&workspace, &mut findings) {
            findings.fail(format!("the check could not run: {error:#}"));
        }
        findings.print();
        ok &= findings.failures.is_empty();
        summary.push((*name, findings));
    }
    println!("\n== summary");
    for (name, findings) in &summary {
        let mut verdict = match (findings.failures.len(), findings.warnings.len()) {
            (0, 0) => "ok".to_string(),
            (0, warnings) => format!("ok, {warnings} warnings"),
            (failures, _) => format!("FAILED, {failures} failures"),
        };
        if findings.notes.iter().any(|note| note.starts_with("SKIPPED")) {
            verdict.push_str(", something was SKIPPED, see above");
        }
        println!("  {name:<12} {verdict}");
    }
    println!("check: {}", if ok { "ok" } else { "FAILED" });
    Ok(ok)
}
