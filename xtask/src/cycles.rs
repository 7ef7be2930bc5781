//! No cycle of imports within a crate takes in many files: what depends on each other in a circle can only be read, and
//! changed, as one.
//!
//! A file imports another if it names a module of it, in a `use` or by a path. Test code does not count. Calls of
//! methods are not seen. A crate that is in [`KNOWN`] may not get worse, and its number goes down with it.

use crate::cargo::Workspace;
use crate::findings::Findings;
use crate::source::mask::{is_word, mask};
use crate::source::regions::TestRegions;
use anyhow::Result;
use std::collections::{BTreeMap, BTreeSet};

/// Files of a cycle.
const FILES_MAX: usize = 5;

/// Crates with longer ones, and how many files these have.
const KNOWN: &[(&str, usize)] = &[
    ("cairn", 6),
    ("cli", 22),
    ("data", 27),
    ("dst", 8),
    ("erasure", 10),
    ("fuse", 7),
    ("manager", 12),
    ("manager-core", 26),
    ("meta", 45),
    ("meta-core", 37),
    ("model", 6),
    ("proof", 20),
    ("raft-host", 16),
    ("replica-core", 7),
    ("rpc", 10),
    ("tree", 8),
];

/// Modules by path (`a::b`, the root is empty), and the modules that each names.
type Graph = BTreeMap<String, BTreeSet<String>>;

pub fn check(workspace: &Workspace, findings: &mut Findings) -> Result<()> {
    for package in workspace.members() {
        let source = package.dir.strip_prefix(&workspace.root).unwrap_or(&package.dir).join("src");
        let files = workspace.files.iter().filter_map(|file| {
            let path = file.path.strip_prefix(&source).ok().filter(|_| file.is("rs"))?;
            Some((module_of(path.to_str()?), file.text.as_str()))
        });
        let crate_name = package.short_name();
        let known = KNOWN.iter().find(|(name, _)| *name == crate_name).map(|(_, files)| *files);
        judge(crate_name, longest(&graph(files.collect())), known, findings);
    }
    Ok(())
}

fn judge(crate_name: &str, cycle: Vec<String>, known: Option<usize>, findings: &mut Findings) {
    let (files, limit) = (cycle.len(), known.unwrap_or(FILES_MAX));
    if files > limit {
        findings.fail(format!(
            "{crate_name}: {files} files import each other in a circle, {limit} may: {}; let one that all use no longer use the others, or move what they share below both",
            cycle.join(", ")
        ));
    } else if known.is_some_and(|known| files < known) {
        findings.fail(format!(
            "{crate_name}: its longest cycle has {files} files now; {}",
            if files > FILES_MAX {
                "say so in KNOWN of xtask/src/cycles.rs"
            } else {
                "take it out of KNOWN in xtask/src/cycles.rs"
            }
        ));
    }
}

/// `a/b.rs` and `a/b/mod.rs` are `a::b`; `lib.rs` and `main.rs` the root.
fn module_of(path: &str) -> String {
    let path = path.strip_suffix(".rs").unwrap_or(path);
    let path = path.strip_suffix("/mod").unwrap_or(path);
    if path == "lib" || path == "main" { String::new() } else { path.replace('/', "::") }
}

fn graph(files: BTreeMap<String, &str>) -> Graph {
    let masked: BTreeMap<&String, String> = files.iter().map(|(module, text)| (module, mask(text))).collect();
    let regions: BTreeMap<&String, TestRegions> =
        masked.iter().map(|(module, text)| (*module, TestRegions::of(text))).collect();
    let mut tests: BTreeSet<String> =
        regions.iter().filter(|(_, regions)| regions.whole_file).map(|(module, _)| (*module).clone()).collect();
    for (module, regions) in &regions {
        tests.extend(regions.declared_modules.iter().map(|name| joined(module, name)));
    }
    let is_test = |module: &str| tests.iter().any(|test| module == test || module.starts_with(&format!("{test}::")));
    let known = |module: &str| files.contains_key(module) && !is_test(module);
    let mut graph = Graph::new();
    for (module, text) in masked.iter().filter(|(module, _)| !is_test(module)) {
        let paths = paths(text, &regions[module]);
        let named = paths.iter().filter_map(|path| resolve(module, path, &known));
        // The root declares all modules, and what is in it is used by all.
        let named = named.filter(|other| other != *module && !other.is_empty()).collect();
        graph.insert((*module).clone(), if module.is_empty() { BTreeSet::new() } else { named });
    }
    graph
}

fn joined(module: &str, name: &str) -> String {
    if module.is_empty() { name.into() } else { format!("{module}::{name}") }
}

/// All paths, and those of `use` with their braces opened.
fn paths(masked: &str, tests: &TestRegions) -> Vec<String> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < masked.len() {
        let Some(start) = masked[at..].find(|c: char| is_word(c as u8)).map(|offset| at + offset) else { break };
        let end = masked[start..].find(|c: char| !is_word(c as u8)).map_or(masked.len(), |offset| start + offset);
        let word = &masked[start..end];
        at = end;
        if tests.contains(start) {
            continue;
        }
        if word == "use" {
            let end = masked[end..].find(';').map_or(masked.len(), |offset| end + offset);
            open_braces("", &masked[at..end], &mut found);
            at = end;
        } else if masked[end..].starts_with("::") && !masked[..start].ends_with(':') {
            let end = masked[start..].find(|c: char| !is_word(c as u8) && c != ':').map_or(masked.len(), |o| start + o);
            found.push(masked[start..end].trim_end_matches(':').into());
            at = end;
        }
    }
    found
}

/// The paths of a tree such as `a::{b, c::{d, e}}`.
fn open_braces(before: &str, tree: &str, found: &mut Vec<String>) {
    let Some(open) = tree.find('{') else {
        let path = tree.split(" as ").next().unwrap_or_default();
        found.push(format!("{before}{path}").split_whitespace().collect());
        return;
    };
    let before = format!("{before}{}", tree[..open].trim());
    let (mut depth, mut from) = (0, open + 1);
    for (at, c) in tree.char_indices().skip_while(|(at, _)| *at <= open) {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                if !tree[from..at].trim().is_empty() {
                    open_braces(&before, tree[from..at].trim(), found);
                }
                from = at + 1;
            }
            _ => {}
        }
    }
}

/// The module of the crate that a path leads into, if it does.
fn resolve(module: &str, path: &str, known: &impl Fn(&str) -> bool) -> Option<String> {
    let parts: Vec<&str> = path.split("::").collect();
    let mut from: Vec<&str> = module.split("::").filter(|part| !part.is_empty()).collect();
    let first = parts.iter().position(|part| !matches!(*part, "crate" | "super" | "self"));
    let rest = &parts[first.unwrap_or(parts.len())..];
    match parts[0] {
        "crate" => from.clear(),
        "self" | "super" => {
            let above = parts.iter().take_while(|part| matches!(**part, "super" | "self")).filter(|p| **p == "super");
            from.truncate(from.len().saturating_sub(above.count()));
        }
        // A module below this one.
        name if known(&joined(module, name)) => {}
        _ => return None,
    }
    let mut whole: Vec<&str> = from.into_iter().chain(rest.iter().copied()).collect();
    while !whole.is_empty() && !known(&whole.join("::")) {
        whole.pop();
    }
    Some(whole.join("::"))
}

/// The longest cycle, by name; empty if there is none.
fn longest(graph: &Graph) -> Vec<String> {
    let mut search = Search::new(graph);
    for module in graph.keys() {
        if !search.numbers.contains_key(module.as_str()) {
            search.visit(module);
        }
    }
    let mut longest = search.longest;
    longest.sort();
    longest
}

/// Tarjan's search for strongly connected parts.
struct Search<'a> {
    graph: &'a Graph,
    numbers: BTreeMap<&'a str, usize>,
    lowest: BTreeMap<&'a str, usize>,
    open: Vec<&'a str>,
    longest: Vec<String>,
}

impl<'a> Search<'a> {
    fn new(graph: &'a Graph) -> Self {
        Self { graph, numbers: BTreeMap::new(), lowest: BTreeMap::new(), open: Vec::new(), longest: Vec::new() }
    }

    fn visit(&mut self, module: &'a str) -> usize {
        let number = self.numbers.len();
        self.numbers.insert(module, number);
        self.lowest.insert(module, number);
        self.open.push(module);
        for other in self.graph.get(module).into_iter().flatten() {
            let reached = match self.numbers.get(other.as_str()) {
                None => self.visit(other),
                Some(number) if self.open.contains(&other.as_str()) => *number,
                Some(_) => continue,
            };
            let lowest = self.lowest.get_mut(module).expect("set above");
            *lowest = reached.min(*lowest);
        }
        let lowest = self.lowest[module];
        if lowest == number {
            let from = self.open.iter().position(|open| *open == module).expect("pushed above");
            let part = self.open.split_off(from);
            if part.len() > 1 && part.len() > self.longest.len() {
                self.longest = part.into_iter().map(str::to_owned).collect();
            }
        }
        lowest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cycle(files: &[(&str, &str)]) -> Vec<String> {
        longest(&graph(files.iter().map(|(path, text)| (module_of(path), *text)).collect()))
    }

    /// Cycles would not be seen, however a module is named.
    #[test]
    fn each_way_to_name_a_module_is_seen() {
        for import in [
            "use crate::b::Thing;",
            "use super::b;",
            "use crate::{c::X, b::{Thing as Other, more}};",
            "fn f() { crate::b::call(); }",
            "pub(crate) use super::b::{self, Thing};",
            "use super::b as other;",
        ] {
            let found = cycle(&[
                ("lib.rs", "mod a; mod b; mod c;"),
                ("a.rs", import),
                ("b.rs", "use super::a::X;"),
                ("c.rs", ""),
            ]);
            assert_eq!(found, ["a", "b"], "{import}");
        }
        for import in ["use in_it::Part;", "struct Whole(in_it::Part);"] {
            let found = cycle(&[("a.rs", import), ("a/in_it.rs", "use super::Whole;")]);
            assert_eq!(found, ["a", "a::in_it"], "{import}");
        }
    }

    /// A crate would be blamed for what only its tests, its comments or its root do.
    #[test]
    fn tests_comments_and_the_root_make_no_cycle() {
        let tests = "#[cfg(test)]\nmod tests { use crate::a::X; }";
        for b in [tests, "// use crate::a::X;", "const TEXT: &str = \"crate::a::X\";", "use crate::Shared;"] {
            let files = [
                ("lib.rs", "mod a; use a::X; pub struct Shared;"),
                ("a.rs", "use crate::b::Y; use crate::Shared;"),
                ("b.rs", b),
            ];
            assert!(cycle(&files).is_empty(), "{b}");
        }
        let files = [
            ("a.rs", "#[cfg(test)]\nmod checks;\nuse crate::b::X;"),
            ("a/checks.rs", "use crate::b::X;"),
            ("b.rs", "use crate::a::checks::Y;"),
        ];
        assert_eq!(cycle(&files), ["a", "b"], "what is named of a test is of the file that has it");
    }

    /// A long cycle would pass, or a number stay when it is better by now.
    #[test]
    fn crates_may_not_get_worse_and_numbers_follow() {
        for (files, known, fails) in
            [(5, None, false), (6, None, true), (9, Some(8), true), (8, Some(8), false), (7, Some(8), true)]
        {
            let mut findings = Findings::default();
            judge("x", (0..files).map(|i| format!("m{i}")).collect(), known, &mut findings);
            assert_eq!(!findings.failures.is_empty(), fails, "{files} of {known:?}");
        }
    }
}
