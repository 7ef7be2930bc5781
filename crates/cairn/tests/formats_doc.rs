//! Reference pages name what the code has and nothing that is gone: on-disk formats, metrics, settings of the cluster.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn page() -> String {
    read(&root().join("docs/reference/formats.md"))
}

/// Rust files below a directory, tests left out.
fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    for entry in entries.map(|entry| entry.expect("a directory that can be listed").path()) {
        let name = entry.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        if entry.is_dir() && name != "tests" {
            sources(&entry, found);
        } else if name.ends_with(".rs") && name != "tests.rs" {
            found.push(entry);
        }
    }
}

/// Magic numbers of the code: what `b"…"` constants with MAGIC in their names hold.
fn magics() -> BTreeSet<String> {
    let mut files = Vec::new();
    for krate in ["format", "tree", "meta-core", "manager-core", "raft", "store", "data", "meta"] {
        sources(&root().join("crates").join(krate).join("src"), &mut files);
    }
    let mut magics = BTreeSet::new();
    for file in files {
        for line in read(&file).lines().filter(|line| line.contains("const") && line.contains("MAGIC")) {
            let literal = line.split_once("b\"").and_then(|(_, rest)| rest.split_once('"'));
            magics.extend(literal.map(|(magic, _)| magic.to_owned()));
        }
    }
    magics
}

/// Somebody with a damaged file and a hex editor would find no description of it.
#[test]
fn every_magic_is_described() {
    let (page, magics) = (page(), magics());
    assert!(magics.len() >= 13, "the code's magic numbers were not found: {magics:?}");
    let missing: Vec<_> = magics.iter().filter(|magic| !page.contains(&format!("`{magic}`"))).collect();
    assert!(missing.is_empty(), "docs/reference/formats.md does not describe {missing:?}");
}

/// The page would describe files that no version of this program writes.
#[test]
fn no_magic_of_the_page_is_unknown() {
    let magics = magics();
    let page = page();
    let quoted = page.split('`').skip(1).step_by(2);
    let of_ours =
        |word: &&str| word.len() == 8 && word.starts_with("CAIRN") && word.chars().all(|c| c.is_ascii_uppercase());
    let unknown: Vec<_> = quoted.filter(of_ours).filter(|word| !magics.contains(*word)).collect();
    assert!(unknown.is_empty(), "docs/reference/formats.md describes {unknown:?}, which the code does not have");
}

/// A new format could be added without a word about it.
#[test]
fn every_file_of_the_format_crate_is_named() {
    let page = page();
    let mut files = Vec::new();
    sources(&root().join("crates/format/src"), &mut files);
    let mut checked = 0;
    // Inputs for the decoders, no formats.
    let is_fuzz = |file: &Path| file.components().any(|part| part.as_os_str() == "fuzz") || file.ends_with("fuzz.rs");
    for file in files.into_iter().filter(|file| !is_fuzz(file)) {
        let name = file.file_name().and_then(|name| name.to_str()).expect("a file with a readable name").to_owned();
        if name != "lib.rs" && name != "le.rs" {
            assert!(page.contains(&format!("`{name}`")), "docs/reference/formats.md does not name {name}");
            checked += 1;
        }
    }
    assert!(checked >= 13, "only {checked} formats were found");
}

/// Names in quotes that begin with `cairn_`, as metrics have them in the code.
fn metrics() -> BTreeSet<String> {
    let mut files = Vec::new();
    for krate in ["telemetry", "manager", "meta", "data", "rpc", "jobs", "cairn"] {
        sources(&root().join("crates").join(krate).join("src"), &mut files);
    }
    let name = |word: &&str| word.starts_with("cairn_") && word.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    let mut found = BTreeSet::new();
    for file in files {
        found.extend(read(&file).split('"').skip(1).step_by(2).filter(name).map(str::to_owned));
    }
    found
}

/// Somebody who builds a dashboard would not find a metric, or look for one that is gone.
#[test]
fn the_page_of_metrics_has_every_metric() {
    let page = read(&root().join("docs/reference/metrics.md"));
    let quoted = page.split('`').skip(1).step_by(2);
    let described: BTreeSet<String> = quoted
        .map(|word| word.split('{').next().unwrap_or(word))
        .filter(|w| w.starts_with("cairn_"))
        .map(str::to_owned)
        .collect();
    let metrics = metrics();
    assert!(metrics.len() >= 60, "the code's metrics were not found: {metrics:?}");
    let missing: Vec<_> = metrics.difference(&described).collect();
    let stale: Vec<_> = described.difference(&metrics).collect();
    assert!(
        missing.is_empty() && stale.is_empty(),
        "docs/reference/metrics.md lacks {missing:?} and invents {stale:?}"
    );
}

/// An operator would not find a setting, or be told a wrong default.
#[test]
fn the_operators_guide_has_every_setting() {
    let page = read(&root().join("docs/guides/operate.md"));
    let code = read(&root().join("crates/manager-core/src/config.rs"));
    let mut checked = 0;
    for line in code.lines().filter(|line| line.contains(" = \"") && line.contains("Kind::")) {
        let mut quoted = line.split('"').skip(1).step_by(2);
        let (Some(name), Some(default)) = (quoted.next(), quoted.next()) else { continue };
        assert!(
            page.contains(&format!("| `{name}` | `{default}` |")),
            "docs/guides/operate.md lacks {name} = {default}"
        );
        checked += 1;
    }
    assert!(checked >= 10, "only {checked} settings were found");
}
