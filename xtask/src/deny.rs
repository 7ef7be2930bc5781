//! The dependency policy in `deny.toml`, and `cargo deny` where it is installed.
//!
//! The policy is written in cargo-deny's own format, so that tool and our own checks (`licence`, `advisories`) read
//! one file. cargo-deny is not required: what is then not looked at is said in a note.

use crate::cargo::{Workspace, cargo};
use crate::findings::Findings;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// The parts of `deny.toml` that our own checks use.
#[derive(Debug)]
pub struct Policy {
    /// Licences that any dependency may have.
    pub licences: Vec<String>,
    pub licence_exceptions: Vec<LicenceException>,
    /// Advisories that are known and accepted.
    pub ignored_advisories: Vec<IgnoredAdvisory>,
}

/// Licences that one package may have in addition.
#[derive(Debug)]
pub struct LicenceException {
    pub package: String,
    pub licences: Vec<String>,
}

#[derive(Debug)]
pub struct IgnoredAdvisory {
    pub id: String,
    pub reason: String,
}

impl Policy {
    pub fn load(root: &Path) -> Result<Self> {
        let path = root.join("deny.toml");
        let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("in {}", path.display()))
    }

    fn parse(text: &str) -> Result<Self> {
        let table: Table = text.parse().context("it is not TOML")?;
        let licences = table.get("licenses").context("[licenses] is missing")?;
        let licence_exceptions = entries(licences.get("exceptions"))
            .map(|entry| {
                Ok(LicenceException { package: string(entry, "crate")?, licences: strings(entry.get("allow"))? })
            })
            .collect::<Result<_>>()?;
        let advisories = table.get("advisories").context("[advisories] is missing")?;
        let ignored_advisories = entries(advisories.get("ignore"))
            .map(|entry| {
                let ignored = IgnoredAdvisory { id: string(entry, "id")?, reason: string(entry, "reason")? };
                if ignored.reason.trim().is_empty() {
                    bail!("{} is ignored without a reason", ignored.id);
                }
                Ok(ignored)
            })
            .collect::<Result<_>>()?;
        Ok(Self { licences: strings(licences.get("allow"))?, licence_exceptions, ignored_advisories })
    }
}

fn entries(list: Option<&Value>) -> impl Iterator<Item = &Value> {
    list.and_then(Value::as_array).into_iter().flatten()
}

fn string(entry: &Value, key: &str) -> Result<String> {
    let value = entry.get(key).and_then(Value::as_str);
    value.map(str::to_string).with_context(|| format!("an entry has no text `{key}`: {entry}"))
}

fn strings(list: Option<&Value>) -> Result<Vec<String>> {
    let list = list.and_then(Value::as_array).context("a list of texts is missing")?;
    list.iter()
        .map(|value| value.as_str().map(str::to_string).context("a list holds something else than texts"))
        .collect()
}

/// Runs cargo-deny without any network: what it needs beside the sources is the advisory database, which
/// `cargo deny fetch` brings once.
pub fn check(workspace: &Workspace, findings: &mut Findings) -> Result<()> {
    if !installed() {
        findings.note(
            "SKIPPED: cargo-deny is not installed, so duplicate versions and sources were not checked, and advisories \
             only against xtask/advisories.toml; `cargo install --locked cargo-deny` brings it",
        );
        return Ok(());
    }
    let mut command = cargo();
    command.args(["deny", "--offline", "check", "bans", "licenses", "sources"]).current_dir(&workspace.root);
    if advisory_database().is_some() {
        command.arg("advisories");
    } else {
        findings.note(
            "SKIPPED: there is no advisory database on this machine, so cargo-deny did not check advisories; \
             `cargo deny fetch` brings it. xtask/advisories.toml was checked",
        );
    }
    let output = command.output().context("starting cargo deny")?;
    if !output.status.success() {
        findings.fail(format!(
            "cargo deny ended with {}:\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    Ok(())
}

fn installed() -> bool {
    let search = std::env::var_os("PATH").unwrap_or_default();
    let mut dirs: Vec<PathBuf> = std::env::split_paths(&search).collect();
    dirs.extend(cargo_home().map(|home| home.join("bin")));
    dirs.iter().any(|dir| dir.join("cargo-deny").is_file())
}

/// cargo-deny keeps each database in a directory of its own below this one.
fn advisory_database() -> Option<PathBuf> {
    let dir = cargo_home()?.join("advisory-dbs");
    fs::read_dir(&dir).ok()?.flatten().map(|entry| entry.path()).find(|path| path.is_dir())
}

fn cargo_home() -> Option<PathBuf> {
    std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_of_the_project_is_readable() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace");
        let policy = Policy::load(root).expect("deny.toml is sound");
        assert!(policy.licences.iter().any(|licence| licence == "Apache-2.0"));
        assert!(policy.ignored_advisories.iter().all(|ignored| ignored.id.starts_with("RUSTSEC-")));
    }

    #[test]
    fn an_advisory_is_never_ignored_without_a_reason() {
        let text = "[licenses]\nallow = []\n[advisories]\nignore = [{ id = \"RUSTSEC-2024-0437\", reason = \" \" }]";
        assert!(Policy::parse(text).is_err());
        let bare = "[licenses]\nallow = []\n[advisories]\nignore = [\"RUSTSEC-2024-0437\"]";
        assert!(Policy::parse(bare).is_err());
    }
}
