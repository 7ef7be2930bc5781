//! `cargo xtask notices FILE`: the licences of everything that the binary is linked with, for packages: who, under
//! which licence, and the texts that the authors ship.

use crate::cargo::{DependencyKind, Package, Workspace};
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// Beginnings of names of files with licences and notices, in lower case.
const FILES: &[&str] = &["license", "licence", "copying", "notice", "copyright", "unlicense"];

pub fn run(out: &str) -> Result<bool> {
    let workspace = Workspace::load()?;
    let packages = linked(&workspace, "cairn");
    let text = write(&packages)?;
    if let Some(above) = Path::new(out).parent() {
        fs::create_dir_all(above).with_context(|| format!("making {}", above.display()))?;
    }
    fs::write(out, text).with_context(|| format!("writing {out}"))?;
    println!("{out}: the licences of {} packages", packages.len());
    Ok(true)
}

/// Packages of others that end up in a binary. Several versions of one package all count.
fn linked<'a>(workspace: &'a Workspace, binary: &str) -> Vec<&'a Package> {
    let mut reached = BTreeSet::from([binary]);
    let mut left = vec![binary];
    while let Some(name) = left.pop() {
        for package in workspace.packages.iter().filter(|package| package.name == name) {
            for dependency in package.dependencies.iter().filter(|one| one.kind == DependencyKind::Normal) {
                if reached.insert(&dependency.package) {
                    left.push(&dependency.package);
                }
            }
        }
    }
    workspace.packages.iter().filter(|package| !package.member && reached.contains(package.name.as_str())).collect()
}

fn write(packages: &[&Package]) -> Result<String> {
    let mut out = String::from("The program cairn contains these packages of others.\n\n");
    // Most texts are the same, so each stands there once.
    let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in packages {
        let name = format!("{} {}", package.name, package.version);
        writeln!(out, "{name}: {}", package.licence.as_deref().unwrap_or("see its text"))?;
        for text in texts_of(package)? {
            texts.entry(text).or_default().insert(name.clone());
        }
    }
    for (text, names) in &texts {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        write!(out, "\n{}\nOf {}:\n\n{}\n", "=".repeat(100), names.join(", "), text.trim_end())?;
    }
    Ok(out)
}

/// Files beside the package's `Cargo.toml`.
fn texts_of(package: &Package) -> Result<Vec<String>> {
    let entries = fs::read_dir(&package.dir).with_context(|| format!("reading {}", package.dir.display()))?;
    let mut paths: Vec<_> =
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_file()).collect();
    paths.sort();
    let named = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        FILES.iter().any(|start| name.starts_with(start))
    };
    let texts = paths.iter().filter(|path| named(path)).filter_map(|path| fs::read_to_string(path).ok());
    Ok(texts.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A package would be shipped without the licence that it asks for.
    #[test]
    fn texts_and_names_of_all_are_there_once() {
        let dir = tempfile::tempdir().expect("dir");
        let package = |name: &str, file: &str, text: &str| {
            let dir = dir.path().join(name);
            fs::create_dir(&dir).expect("directory");
            fs::write(dir.join(file), text).expect("file");
            fs::write(dir.join("lib.rs"), "no licence").expect("file");
            let licence = Some("MIT".to_owned());
            Package {
                name: name.into(),
                version: "1.0.0".into(),
                licence,
                member: false,
                dir,
                dependencies: Vec::new(),
            }
        };
        let (one, two) = (package("one", "LICENSE-MIT", "the text\n"), package("two", "COPYING", "the text\n"));
        let text = write(&[&one, &two]).expect("notices");
        assert!(text.contains("one 1.0.0: MIT\ntwo 1.0.0: MIT"), "{text}");
        assert_eq!(text.matches("the text").count(), 1, "{text}");
        assert!(text.contains("Of one 1.0.0, two 1.0.0:") && !text.contains("no licence"), "{text}");
    }
}
