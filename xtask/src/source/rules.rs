//! The rules themselves, one function each.

use super::functions::functions;
use super::mask::is_word;
use super::regions::{attributes, matching};
use super::{Scanned, line_of};
use crate::findings::Findings;

const FILE_LINES_WARN: usize = 600;
const FILE_LINES_MAX: usize = 1000;
const FUNCTION_LINES_MAX: usize = 70;
const INLINE_TEST_LINES_MAX: usize = 200;
const COMMENT_COLUMNS_MAX: usize = 120;
/// Above a function, with a reason behind it.
const LONG_FUNCTION_MARK: &str = "// check: long function because";

/// Names of files that say nothing about what is in them.
const EMPTY_NAMES: &[&str] = &["util", "utils", "common"];

/// Modules of `std` that layers 0-2 must not touch.
const IMPURE_MODULES: &[(&str, &str)] = &[
    ("fs", "files come in through `env` (layer 3)"),
    ("net", "messages come in as inputs and go out as outputs"),
    ("thread", "a core has one owner and no threads"),
];

/// Words that layers 0-2 must not use.
const IMPURE_WORDS: &[(&str, &str)] = &[
    ("Instant::now", "time comes in as an argument"),
    ("SystemTime::now", "time comes in as an argument"),
    ("HashMap", "its order differs from run to run; use BTreeMap"),
    ("HashSet", "its order differs from run to run; use BTreeSet"),
    ("RandomState", "it differs from run to run"),
    ("thread_rng", "randomness comes in as an argument"),
    ("tokio", "a core has no tasks; its owner drives it"),
];

const UNFINISHED: &[(&str, &str)] = &[
    ("todo!", "write it, or return an error that says what is not supported"),
    ("unimplemented!", "write it, or return an error that says what is not supported"),
    ("dbg!", "use tracing"),
];

pub fn apply(file: &Scanned, findings: &mut Findings) {
    file_name(file, findings);
    opening(file, findings);
    file_length(file, findings);
    comment_widths(file, findings);
    function_lengths(file, findings);
    test_module_length(file, findings);
    attribute_rules(file, findings);
    glob_reexports(file, findings);
    for (word, instead) in UNFINISHED {
        for offset in find_words(&file.masked, word) {
            findings.fail(format!("{}: {word} is not for code that ships; {instead}", file.at(offset)));
        }
    }
    for offset in find_words(&file.masked, ".unwrap()") {
        if !file.in_test(offset) {
            let at = file.at(offset);
            findings.fail(format!("{at}: unwrap() outside tests; handle it, or expect(\"why it cannot fail\")"));
        }
    }
    if file.is_pure {
        purity(file, findings);
    }
}

fn file_name(file: &Scanned, findings: &mut Findings) {
    let path = &file.file.path;
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let parent = path.parent().and_then(|dir| dir.file_name()).unwrap_or_default().to_string_lossy();
    // `tests/common/mod.rs` is cargo's own way to share code between integration tests.
    let empty_dir = stem == "mod" && !file.is_test && EMPTY_NAMES.contains(&parent.as_ref());
    if EMPTY_NAMES.contains(&stem.as_ref()) || empty_dir {
        findings.fail(format!("{}: name the file after what is in it", path.display()));
    }
}

fn opening(file: &Scanned, findings: &mut Findings) {
    if !file.file.text.starts_with("//!") {
        findings.fail(format!(
            "{}:1: must open with `//!`: what it is, which invariants it owns, what it does not do",
            file.file.path.display()
        ));
    }
}

fn file_length(file: &Scanned, findings: &mut Findings) {
    let path = file.file.path.display();
    let lines = file.file.text.lines().count();
    if lines > FILE_LINES_MAX {
        findings.fail(format!("{path}: {lines} lines, at most {FILE_LINES_MAX}; split it by what it does"));
    } else if lines > FILE_LINES_WARN {
        findings.warn(format!("{path}: {lines} lines; over {FILE_LINES_WARN} ask whether it is one idea"));
    }
}

/// Lines of comments, where rustfmt changes nothing. Tables, listings and single long words cannot be broken.
fn comment_widths(file: &Scanned, findings: &mut Findings) {
    let mut in_listing = false;
    for (index, line) in file.file.text.lines().enumerate() {
        let Some(comment) = line.trim_start().strip_prefix("//") else {
            in_listing = false;
            continue;
        };
        let text = comment.strip_prefix(['/', '!']).unwrap_or(comment);
        let text = text.strip_prefix(' ').unwrap_or(text);
        let is_fence = text.trim_start().starts_with("```");
        in_listing ^= is_fence;
        let as_it_stands =
            in_listing || is_fence || text.starts_with('|') || text.starts_with("    ") || !text.contains(' ');
        let columns = line.chars().count();
        if columns > COMMENT_COLUMNS_MAX && !as_it_stands {
            findings.fail(format!(
                "{}:{}: a comment of {columns} columns, at most {COMMENT_COLUMNS_MAX}; break the line",
                file.file.path.display(),
                index + 1
            ));
        }
    }
}

fn function_lengths(file: &Scanned, findings: &mut Findings) {
    for function in functions(&file.masked) {
        if file.in_test(function.start) {
            continue;
        }
        let at = file.at(function.start);
        let long = function.body_lines > FUNCTION_LINES_MAX;
        match long_function_reason(&file.file.text, function.start) {
            None if long => findings.fail(format!(
                "{at}: fn {} has {} lines, at most {FUNCTION_LINES_MAX}; split it, or say why not in a line \
                 `{LONG_FUNCTION_MARK} …` above it",
                function.name, function.body_lines
            )),
            Some("") => {
                findings.fail(format!("{at}: fn {}: the mark for a long function gives no reason", function.name))
            }
            Some(_) if !long => findings.warn(format!(
                "{at}: fn {} has only {} lines; its mark for a long function can go",
                function.name, function.body_lines
            )),
            _ => {}
        }
    }
}

/// The reason in the mark, if there is one among the comments and attributes right above the function.
fn long_function_reason(text: &str, start: usize) -> Option<&str> {
    let line_start = text[..start].rfind('\n').map_or(0, |at| at + 1);
    text[..line_start]
        .lines()
        .rev()
        .map(str::trim)
        .take_while(|line| line.starts_with("//") || line.starts_with("#["))
        .find_map(|line| line.strip_prefix(LONG_FUNCTION_MARK))
        .map(|reason| reason.trim_matches(|c: char| c.is_whitespace() || matches!(c, '…' | '.' | ':')))
}

fn test_module_length(file: &Scanned, findings: &mut Findings) {
    if file.is_test {
        return;
    }
    for range in &file.tests.ranges {
        let lines = line_of(&file.masked, range.end) - line_of(&file.masked, range.start) + 1;
        let is_module = file.masked[range.clone()].contains("mod ");
        if is_module && lines > INLINE_TEST_LINES_MAX {
            findings.warn(format!(
                "{}: {lines} lines of tests in the file; over {INLINE_TEST_LINES_MAX} they go to `{}/tests.rs`",
                file.at(range.start),
                file.file.path.with_extension("").display()
            ));
        }
    }
}

fn attribute_rules(file: &Scanned, findings: &mut Findings) {
    for attribute in attributes(&file.masked) {
        let content = &attribute.content;
        let silences = content.contains("allow(") || content.contains("expect(");
        if silences && !find_words(content, "dead_code").is_empty() {
            findings.fail(format!("{}: dead code is deleted, not allowed", file.at(attribute.range.start)));
        }
        if content == "ignore" {
            findings
                .fail(format!("{}: an ignored test says why: #[ignore = \"needs …\"]", file.at(attribute.range.start)));
        }
    }
}

fn glob_reexports(file: &Scanned, findings: &mut Findings) {
    for offset in find_words(&file.masked, "pub") {
        let mut rest = file.masked[offset + 3..].trim_start();
        if rest.starts_with('(') {
            rest = rest[(matching(rest, 0) + 1).min(rest.len())..].trim_start();
        }
        let statement = rest.split(';').next().unwrap_or_default();
        if statement.starts_with("use ") && statement.contains('*') {
            findings.fail(format!("{}: `pub use …::*` hides what is public; name the items", file.at(offset)));
        }
    }
}

fn purity(file: &Scanned, findings: &mut Findings) {
    let mut report = |offset: usize, what: &str, instead: &str| {
        if !file.in_test(offset) {
            let at = file.at(offset);
            findings.fail(format!(
                "{at}: {what} in a crate of layers 0-2, which run unchanged in the simulator: {instead}"
            ));
        }
    };
    for (word, instead) in IMPURE_WORDS {
        for offset in find_words(&file.masked, word) {
            report(offset, word, instead);
        }
    }
    for (module, instead) in IMPURE_MODULES {
        let path = format!("std::{module}");
        for offset in find_words(&file.masked, &path) {
            report(offset, &path, instead);
        }
        for offset in find_words(&file.masked, "std::{") {
            let open = offset + "std::".len();
            if group_heads(&file.masked[open..]).iter().any(|head| head == module) {
                report(offset, &path, instead);
            }
        }
    }
}

/// `["fs", "io"]` for `{fs::{self, File}, io}`.
fn group_heads(group: &str) -> Vec<String> {
    let inside = &group[1..matching(group, 0).max(1)];
    let mut depth = 0;
    let mut heads = vec![String::new()];
    for character in inside.chars() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => heads.push(String::new()),
            _ => {}
        }
        if depth == 0
            && character != ','
            && let Some(head) = heads.last_mut()
        {
            head.push(character);
        }
    }
    heads.iter().map(|head| head.split("::").next().unwrap_or_default().trim().to_string()).collect()
}

/// Where `needle` stands as whole words: what is next to it does not continue its first or last word.
fn find_words(text: &str, needle: &str) -> Vec<usize> {
    let starts_word = needle.bytes().next().is_some_and(is_word);
    let ends_word = needle.bytes().last().is_some_and(is_word);
    text.match_indices(needle)
        .map(|(offset, _)| offset)
        .filter(|offset| {
            let before = text[..*offset].bytes().last();
            let after = text[offset + needle.len()..].bytes().next();
            let continued = starts_word && before.is_some_and(is_word) || ends_word && after.is_some_and(is_word);
            !continued
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_whole() {
        assert_eq!(find_words("MyHashMap HashMaps HashMap<u8>", "HashMap"), [19]);
        assert_eq!(find_words("x.unwrap().unwrap_or()", ".unwrap()"), [1]);
    }

    #[test]
    fn groups_are_split_at_their_own_commas() {
        assert_eq!(
            group_heads("{collections::{BTreeMap, BTreeSet}, fs, io::{self}}; {net}"),
            ["collections", "fs", "io"]
        );
    }
}
