//! Checks the Markdown: relative links lead somewhere, ARCHITECTURE.md names every crate, the changelog has a place
//! for what comes next, sentences are short.

use crate::cargo::Workspace;
use crate::files::SourceFile;
use crate::findings::Findings;
use anyhow::Result;
use std::path::{Component, Path, PathBuf};

mod sentences;
#[cfg(test)]
mod tests;

pub fn check(workspace: &Workspace, findings: &mut Findings) -> Result<()> {
    let documents: Vec<&SourceFile> = workspace.files.iter().filter(|file| file.is("md")).collect();
    for document in &documents {
        for link in links(&document.text) {
            if let Err(why) = resolve(&workspace.root, document, &documents, &link.target) {
                findings.fail(format!("{}:{}: link to {}: {why}", document.path.display(), link.line, link.target));
            }
        }
        if let Some(why) = sentences::too_long(&document.text) {
            findings.fail(format!("{}: {why}; make two of the longest", document.path.display()));
        }
    }
    let find = |name: &str| documents.iter().find(|document| document.path == Path::new(name));
    match find("ARCHITECTURE.md") {
        None => findings.note("SKIPPED: there is no ARCHITECTURE.md yet, so its code map was not checked"),
        Some(document) => {
            for package in workspace.members().filter(|package| !names_crate(&document.text, package.short_name())) {
                findings.fail(format!(
                    "ARCHITECTURE.md: the code map does not name `{}`; add a row with what it is for",
                    package.short_name()
                ));
            }
        }
    }
    match find("CHANGELOG.md") {
        None => findings.fail("CHANGELOG.md is missing"),
        Some(document) if !document.text.lines().any(|line| line.trim() == "## [Unreleased]") => {
            findings.fail("CHANGELOG.md: has no section `## [Unreleased]`");
        }
        Some(_) => {}
    }
    Ok(())
}

fn names_crate(text: &str, short_name: &str) -> bool {
    [
        format!("`{short_name}`"),
        format!("`{short_name}/`"),
        format!("`crates/{short_name}"),
        format!("`cairn-{short_name}`"),
    ]
    .iter()
    .any(|form| text.contains(form))
}

#[derive(Debug, PartialEq, Eq)]
struct Link {
    line: usize,
    target: String,
}

/// Targets of `[text](target)` and `[label]: target`, outside of code.
fn links(text: &str) -> Vec<Link> {
    let mut found = Vec::new();
    for (index, line) in prose_lines(text) {
        let line_number = index + 1;
        for (at, _) in line.match_indices("](") {
            let rest = &line[at + 2..];
            let target = match rest.strip_prefix('<') {
                Some(bracketed) => bracketed.split('>').next(),
                None => rest.split([')', ' ']).next(),
            };
            found.extend(target.map(|target| Link { line: line_number, target: target.to_string() }));
        }
        if let Some((label, target)) = line.trim_start().split_once("]: ")
            && label.starts_with('[')
            && !label.starts_with("[^")
            && let Some(target) = target.split_whitespace().next()
        {
            found.push(Link { line: line_number, target: target.to_string() });
        }
    }
    found
}

/// The lines outside of fenced code, numbered from 0, with the insides of `code` spans left out.
fn prose_lines(text: &str) -> Vec<(usize, String)> {
    let mut fence: Option<&str> = None;
    let mut prose = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let start = line.trim_start();
        match fence {
            Some(mark) if start.starts_with(mark) => fence = None,
            Some(_) => {}
            None => match ["```", "~~~"].iter().find(|mark| start.starts_with(**mark)) {
                Some(mark) => fence = Some(mark),
                None => prose.push((index, without_code(line))),
            },
        }
    }
    prose
}

fn without_code(line: &str) -> String {
    let parts: Vec<&str> = line.split('`').collect();
    // An odd number of backquotes leaves the last one without a partner: behind it is prose again.
    let last_is_prose = parts.len().is_multiple_of(2);
    let is_prose = |index: usize| index.is_multiple_of(2) || (last_is_prose && index == parts.len() - 1);
    parts.iter().enumerate().filter(|(index, _)| is_prose(*index)).map(|(_, part)| *part).collect()
}

fn resolve(root: &Path, document: &SourceFile, documents: &[&SourceFile], target: &str) -> Result<(), String> {
    if has_scheme(target) {
        return Ok(());
    }
    if target.starts_with('/') {
        return Err("an absolute path works on no other machine; write it relative to the file".to_string());
    }
    let (path, anchor) = match target.split_once('#') {
        Some((path, anchor)) => (path, Some(anchor)),
        None => (target, None),
    };
    let linked = if path.is_empty() {
        document.path.clone()
    } else {
        let dir = document.path.parent().unwrap_or(Path::new(""));
        normalize(&dir.join(path)).ok_or("it leads out of the project")?
    };
    if !root.join(&linked).exists() {
        return Err(format!("there is no {}", linked.display()));
    }
    let Some(anchor) = anchor else { return Ok(()) };
    match documents.iter().find(|other| other.path == linked) {
        Some(other) if !anchors(&other.text).iter().any(|known| known == anchor) => {
            Err(format!("{} has no heading #{anchor}", linked.display()))
        }
        _ => Ok(()),
    }
}

fn has_scheme(target: &str) -> bool {
    target.split_once(':').is_some_and(|(scheme, _)| {
        !scheme.is_empty() && scheme.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
    })
}

/// Takes out `.` and `..`; none if the path leaves the root.
fn normalize(path: &Path) -> Option<PathBuf> {
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(part) => clean.push(part),
            Component::CurDir => {}
            Component::ParentDir => {
                if !clean.pop() {
                    return None;
                }
            }
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(clean)
}

/// What headings can be linked by: lower case, spaces as hyphens, no punctuation; a repeated one gets a number.
fn anchors(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut fenced = false;
    for line in text.lines() {
        fenced ^= line.trim_start().starts_with("```");
        let title = line.trim_start_matches('#');
        if fenced || title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let slug: String = title
            .trim()
            .to_lowercase()
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect();
        let repeats = found.iter().filter(|known| {
            known.strip_prefix(slug.as_str()).is_some_and(|rest| {
                rest.is_empty() || rest.strip_prefix('-').is_some_and(|number| number.parse::<u32>().is_ok())
            })
        });
        let repeats = repeats.count();
        found.push(if repeats == 0 { slug } else { format!("{slug}-{repeats}") });
    }
    found
}
