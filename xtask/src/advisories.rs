//! Checks `Cargo.lock` against `xtask/advisories.toml`, a committed list of reviewed security advisories.
//!
//! This is the part of the advisory check that always runs, without network or other tools. It knows only what
//! somebody wrote into the list; the whole database is read by `cargo deny` (see `deny`), where that is installed.

use crate::cargo::Workspace;
use crate::deny::Policy;
use crate::findings::Findings;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::Path;
use toml::{Table, Value};

#[cfg(test)]
mod tests;

/// A published advisory as far as it concerns us.
#[derive(Debug)]
struct Advisory {
    id: String,
    package: String,
    /// A version is affected if any of these ranges holds it.
    affected: Vec<Range>,
    reason: String,
}

/// All comparators must hold; none at all is every version.
#[derive(Debug)]
struct Range(Vec<(Comparator, Version)>);

#[derive(Debug, Clone, Copy)]
enum Comparator {
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Equal,
}

/// Major, minor, patch. What is behind `-` or `+` is left out: a pre-release counts as its release.
type Version = (u64, u64, u64);

/// A package in `Cargo.lock`.
#[derive(Debug)]
struct Locked {
    package: String,
    version: String,
}

pub fn check(workspace: &Workspace, findings: &mut Findings) -> Result<()> {
    let list = read(&workspace.root.join("xtask/advisories.toml"))?;
    let (considered_to, advisories) = parse_list(&list).context("in xtask/advisories.toml")?;
    let locked = parse_lock(&read(&workspace.root.join("Cargo.lock"))?).context("in Cargo.lock")?;
    let policy = Policy::load(&workspace.root)?;
    findings.note(format!(
        "{} packages against the {} advisories in xtask/advisories.toml, which knows none published after \
         {considered_to}; `cargo deny` with the public database sees all",
        locked.len(),
        advisories.len()
    ));
    judge(&advisories, &locked, &policy, findings)
}

fn judge(advisories: &[Advisory], locked: &[Locked], policy: &Policy, findings: &mut Findings) -> Result<()> {
    let mut hit = Vec::new();
    for advisory in advisories {
        for package in locked.iter().filter(|package| package.package == advisory.package) {
            let version = parse_version(&package.version).with_context(|| package.package.clone())?;
            if !advisory.affected.iter().any(|range| range.holds(version)) {
                continue;
            }
            hit.push(advisory.id.as_str());
            let named = format!("{} {}: {}, {}", package.package, package.version, advisory.id, advisory.reason);
            match policy.ignored_advisories.iter().find(|ignored| ignored.id == advisory.id) {
                Some(ignored) => findings.note(format!("accepted in deny.toml: {named} ({})", ignored.reason)),
                None => findings.fail(format!(
                    "{named}; `cargo update -p {}` if a mended version exists, else accept it in deny.toml with a reason",
                    package.package
                )),
            }
        }
    }
    for ignored in &policy.ignored_advisories {
        if !advisories.iter().any(|advisory| advisory.id == ignored.id) {
            findings.fail(format!("deny.toml ignores {}, which xtask/advisories.toml does not describe", ignored.id));
        } else if !hit.contains(&ignored.id.as_str()) {
            findings.warn(format!("deny.toml ignores {}, which concerns no package any more", ignored.id));
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}

/// The day up to which advisories were looked at, and the advisories.
fn parse_list(text: &str) -> Result<(String, Vec<Advisory>)> {
    let table: Table = text.parse().context("it is not TOML")?;
    let considered_to = table.get("considered_to").and_then(Value::as_str).context("`considered_to` is missing")?;
    let entries = table.get("advisory").and_then(Value::as_array).context("there is no [[advisory]]")?;
    let advisories = entries.iter().map(parse_advisory).collect::<Result<_>>()?;
    Ok((considered_to.to_string(), advisories))
}

fn parse_advisory(entry: &Value) -> Result<Advisory> {
    let id = text(entry, "id")?;
    let ranges = entry.get("affected").and_then(Value::as_array).with_context(|| format!("{id}: no `affected`"))?;
    if ranges.is_empty() {
        bail!("{id}: an empty `affected` would never match; \"*\" is every version");
    }
    let affected = ranges
        .iter()
        .map(|range| Range::parse(range.as_str().context("a range is not a text")?))
        .collect::<Result<_>>()
        .with_context(|| id.clone())?;
    Ok(Advisory { affected, package: text(entry, "crate")?, reason: text(entry, "reason")?, id })
}

fn text(entry: &Value, key: &str) -> Result<String> {
    let value = entry.get(key).and_then(Value::as_str);
    value.map(str::to_string).with_context(|| format!("an entry has no text `{key}`: {entry}"))
}

fn parse_lock(text: &str) -> Result<Vec<Locked>> {
    let table: Table = text.parse().context("it is not TOML")?;
    let packages = table.get("package").and_then(Value::as_array).context("there is no [[package]]")?;
    packages
        .iter()
        .map(|entry| Ok(Locked { package: self::text(entry, "name")?, version: self::text(entry, "version")? }))
        .collect()
}

impl Range {
    /// `">=1.39.0, <1.43.1"`, or `"*"` for every version.
    fn parse(text: &str) -> Result<Self> {
        if text.trim() == "*" {
            return Ok(Self(Vec::new()));
        }
        text.split(',').map(|part| parse_comparator(part.trim())).collect::<Result<_>>().map(Self)
    }

    fn holds(&self, version: Version) -> bool {
        self.0.iter().all(|(comparator, bound)| match comparator {
            Comparator::Less => version < *bound,
            Comparator::LessOrEqual => version <= *bound,
            Comparator::Greater => version > *bound,
            Comparator::GreaterOrEqual => version >= *bound,
            Comparator::Equal => version == *bound,
        })
    }
}

fn parse_comparator(part: &str) -> Result<(Comparator, Version)> {
    // The longer signs first: `<` would match `<=`.
    let signs = [
        ("<=", Comparator::LessOrEqual),
        (">=", Comparator::GreaterOrEqual),
        ("<", Comparator::Less),
        (">", Comparator::Greater),
        ("=", Comparator::Equal),
    ];
    for (sign, comparator) in signs {
        if let Some(version) = part.strip_prefix(sign) {
            return Ok((comparator, parse_version(version)?));
        }
    }
    bail!("\"{part}\" does not begin with <, <=, >, >= or =")
}

fn parse_version(text: &str) -> Result<Version> {
    let numbers = text.trim().split(['-', '+']).next().unwrap_or_default();
    let parts: Vec<u64> = numbers
        .split('.')
        .map(str::parse)
        .collect::<Result<_, _>>()
        .with_context(|| format!("\"{text}\" is no version"))?;
    match parts.as_slice() {
        [major, minor, patch] => Ok((*major, *minor, *patch)),
        _ => bail!("\"{text}\" is not of the form major.minor.patch"),
    }
}
