//! Checks that every crate carries the rules that others rely on: the workspace's lints, and for the pure layers the
//! list of what clippy forbids there.
//!
//! Clippy reads one `clippy.toml` only, the nearest to the crate. So each crate of layers 0-2 has a link to
//! `xtask/clippy-pure.toml`, and no other crate has a file of its own, which would hide the one at the root.

use crate::cargo::{Package, Workspace};
use crate::findings::Findings;
use crate::layers;
use anyhow::{Context, Result};
use std::fs;
use toml::{Table, Value};

const PURE_RULES: &str = "xtask/clippy-pure.toml";

pub fn check(workspace: &Workspace, findings: &mut Findings) -> Result<()> {
    let pure_rules =
        fs::read_to_string(workspace.root.join(PURE_RULES)).with_context(|| format!("reading {PURE_RULES}"))?;
    for package in workspace.members() {
        lints(workspace, package, findings)?;
        let own = fs::read_to_string(package.dir.join("clippy.toml")).ok();
        let path = package.manifest(&workspace.root).with_file_name("clippy.toml");
        let at = path.display();
        match (layers::is_pure(package.short_name()), own) {
            (true, None) => findings.fail(format!("{at}: is missing; `ln -s ../../{PURE_RULES} {at}`")),
            (true, Some(own)) if own != pure_rules => {
                findings
                    .fail(format!("{at}: must be a link to {PURE_RULES}, so that all pure crates have the same rules"));
            }
            (false, Some(_)) => findings.fail(format!("{at}: hides the clippy.toml at the root; put its rules there")),
            _ => {}
        }
    }
    Ok(())
}

fn lints(workspace: &Workspace, package: &Package, findings: &mut Findings) -> Result<()> {
    let path = package.dir.join("Cargo.toml");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let manifest: Table = text.parse().with_context(|| format!("reading {}", path.display()))?;
    let inherited = manifest.get("lints").and_then(|lints| lints.get("workspace")).and_then(Value::as_bool);
    if inherited != Some(true) {
        let at = package.manifest(&workspace.root);
        findings.fail(format!("{}: needs `[lints]` with `workspace = true`", at.display()));
    }
    Ok(())
}
