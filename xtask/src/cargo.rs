//! What cargo knows and does for the checks: the package graph, rustfmt and clippy.

use crate::files::{self, SourceFile};
use crate::findings::Findings;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The platforms that Cairn is built for; what only others pull in is no dependency of ours. The same list stands in
/// `deny.toml`.
const PLATFORMS: &[&str] = &["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"];

/// Whether a dependency is linked, only for tests, or only for a build script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DependencyKind {
    Normal,
    Dev,
    Build,
}

#[derive(Debug, Clone)]
pub struct Dependency {
    pub package: String,
    pub kind: DependencyKind,
}

/// A package of the workspace (`member`) or one that it depends on.
#[derive(Debug, Clone)]
pub struct Package {
    pub name: String,
    pub version: String,
    pub licence: Option<String>,
    pub member: bool,
    /// Directory of its `Cargo.toml`.
    pub dir: PathBuf,
    /// As declared in its `Cargo.toml`, for every platform and feature.
    pub dependencies: Vec<Dependency>,
}

/// The workspace as the checks see it.
pub struct Workspace {
    pub root: PathBuf,
    pub packages: Vec<Package>,
    pub files: Vec<SourceFile>,
}

impl Workspace {
    pub fn load() -> Result<Self> {
        let mut command = cargo();
        command.args(["metadata", "--locked", "--format-version", "1"]);
        for platform in PLATFORMS {
            command.args(["--filter-platform", platform]);
        }
        let output = command.stderr(Stdio::inherit()).output().context("starting cargo metadata")?;
        if !output.status.success() {
            bail!(
                "cargo metadata --locked failed, see above; a Cargo.lock that is out of date is mended by `cargo metadata`"
            );
        }
        let json: Value = serde_json::from_slice(&output.stdout).context("reading cargo metadata")?;
        let root = PathBuf::from(text(&json["workspace_root"])?);
        let members: BTreeSet<String> = list(&json["workspace_members"])?.iter().map(text).collect::<Result<_>>()?;
        let packages =
            list(&json["packages"])?.iter().map(|package| read_package(package, &members)).collect::<Result<_>>()?;
        let files = files::walk(&root)?;
        Ok(Self { root, packages, files })
    }

    pub fn members(&self) -> impl Iterator<Item = &Package> {
        self.packages.iter().filter(|package| package.member)
    }
}

impl Package {
    /// `tree` for `cairn-tree`: the name of the directory and of the row in the layer table.
    pub fn short_name(&self) -> &str {
        short_name(&self.name)
    }

    /// Its `Cargo.toml`, relative to the root for a crate of ours.
    pub fn manifest(&self, root: &Path) -> PathBuf {
        self.dir.strip_prefix(root).unwrap_or(&self.dir).join("Cargo.toml")
    }
}

pub fn short_name(package: &str) -> &str {
    package.strip_prefix("cairn-").unwrap_or(package)
}

fn read_package(json: &Value, members: &BTreeSet<String>) -> Result<Package> {
    let manifest = PathBuf::from(text(&json["manifest_path"])?);
    let dir = manifest.parent().context("a Cargo.toml without a directory")?.to_path_buf();
    let dependencies = list(&json["dependencies"])?
        .iter()
        .map(|dependency| {
            let kind = match dependency["kind"].as_str() {
                None => DependencyKind::Normal,
                Some("dev") => DependencyKind::Dev,
                Some("build") => DependencyKind::Build,
                Some(other) => bail!("cargo metadata names an unknown dependency kind: {other}"),
            };
            Ok(Dependency { package: text(&dependency["name"])?, kind })
        })
        .collect::<Result<_>>()?;
    Ok(Package {
        name: text(&json["name"])?,
        version: text(&json["version"])?,
        licence: json["license"].as_str().map(str::to_string),
        member: members.contains(&text(&json["id"])?),
        dir,
        dependencies,
    })
}

fn text(value: &Value) -> Result<String> {
    value.as_str().map(str::to_string).context("cargo metadata: a text is missing")
}

fn list(value: &Value) -> Result<&Vec<Value>> {
    value.as_array().context("cargo metadata: a list is missing")
}

/// The cargo that runs us, so that a chosen toolchain stays chosen.
pub fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

pub fn check_format(workspace: &Workspace, findings: &mut Findings) -> Result<()> {
    let output = cargo()
        .args(["fmt", "--all", "--check", "--", "-l"])
        .current_dir(&workspace.root)
        .output()
        .context("starting cargo fmt; is the rustfmt component installed?")?;
    if output.status.success() {
        return Ok(());
    }
    let unformatted: BTreeSet<String> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter(|line| line.ends_with(".rs"))
        .map(|line| line.replace(&format!("{}/", workspace.root.display()), ""))
        .collect();
    for file in &unformatted {
        findings.fail(format!("{file}: not formatted; `cargo fmt` mends it"));
    }
    if unformatted.is_empty() {
        findings.fail(format!("cargo fmt failed:\n{}", String::from_utf8_lossy(&output.stderr)));
    }
    Ok(())
}

/// Clippy over every target. Every warning fails the check, but it is counted here and not made an error by
/// `-D warnings`: an error in one crate would hide those of the crates above it.
pub fn check_clippy(workspace: &Workspace, findings: &mut Findings) -> Result<()> {
    let output = cargo()
        .args(["clippy", "--workspace", "--all-targets", "--locked", "--keep-going"])
        .arg("--message-format=json")
        .current_dir(&workspace.root)
        .stderr(Stdio::inherit())
        .output()
        .context("starting cargo clippy; is the clippy component installed?")?;
    // A library is compiled twice, for itself and for its tests, and says everything twice.
    let mut seen = BTreeSet::new();
    for line in output.stdout.split(|byte| *byte == b'\n') {
        let Ok(message) = serde_json::from_slice::<Value>(line) else {
            continue;
        };
        if message["reason"] != "compiler-message" {
            continue;
        }
        let diagnostic = &message["message"];
        let level = diagnostic["level"].as_str().unwrap_or_default();
        let closing_count = diagnostic["spans"].as_array().is_none_or(Vec::is_empty)
            && diagnostic["code"].is_null()
            && diagnostic["message"].as_str().is_some_and(|text| text.contains("emitted") || text.contains("aborting"));
        if !matches!(level, "warning" | "error") || closing_count {
            continue;
        }
        let rendered = diagnostic["rendered"].as_str().unwrap_or("a message without text");
        if seen.insert(rendered.to_string()) {
            findings.fail(rendered);
        }
    }
    if !output.status.success() && findings.failures.is_empty() {
        findings.fail(format!("cargo clippy ended with {}, see above", output.status));
    }
    Ok(())
}
