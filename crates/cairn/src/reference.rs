//! The page of the command line, docs/reference/cli.md, held against the program: it names every command and option,
//! and no others.
use clap::{Arg, Command};
use std::collections::BTreeSet;

/// Options that every command has; the page has a table of them.
const EVERYWHERE: &[&str] =
    &["cluster", "cluster-id", "admin-socket", "key", "json", "quiet", "timeout", "help", "version"];

fn page() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/cli.md");
    std::fs::read_to_string(path).expect("the page")
}

/// Headings of a level with the text below each.
fn sections<'a>(page: &'a str, marks: &str) -> Vec<(&'a str, &'a str)> {
    let start = format!("\n{marks} ");
    let parts = page.split(start.as_str()).skip(1);
    parts.map(|part| part.split_once('\n').unwrap_or((part, ""))).collect()
}

/// Whether these words stand in a text as words.
fn names(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    text.match_indices(word)
        .any(|(at, _)| !text[..at].ends_with(is_part) && !text[at + word.len()..].starts_with(is_part))
}

fn shown(arg: &Arg) -> bool {
    !arg.is_hide_set() && !arg.is_positional() && !arg.get_long().is_some_and(|long| EVERYWHERE.contains(&long))
}

fn documents(text: &str, arg: &Arg) -> bool {
    let long = arg.get_long().map(|long| format!("--{long}"));
    let short = arg.get_short().map(|short| format!("-{short}"));
    [long, short].into_iter().flatten().any(|option| names(text, &option))
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help")
}

/// The text about a command: of `fs` the part below the verb's own heading, of others the section of the first word.
fn about<'a>(page: &'a str, path: &[&str]) -> Option<&'a str> {
    let (_, top) = sections(page, "##").into_iter().find(|(title, _)| names(title, &format!("cairn {}", path[0])))?;
    if path[0] != "fs" || path.len() < 2 {
        return Some(top);
    }
    let verb = |title: &str| path[1..].iter().all(|word| names(title, word));
    sections(top, "###").into_iter().find(|(title, _)| verb(title)).map(|(title, _)| {
        // With its heading.
        let start = top.find(title).unwrap_or_default();
        let end = top[start..].find("\n### ").map_or(top.len(), |length| start + length);
        &top[start..end]
    })
}

fn check(page: &str, command: &Command, path: &[&str], lacks: &mut Vec<String>) {
    let shown_path = path.join(" ");
    if !path.is_empty() {
        let words = path[1..].join(" ");
        match about(page, path) {
            Some(text) if path[0] == "fs" || words.is_empty() || names(text, &words) => {
                // What all of `fs` has in common stands before the first verb.
                let common = about(page, &path[..1]).and_then(|top| top.split("\n### ").next()).unwrap_or_default();
                let missing = command.get_arguments().filter(|arg| shown(arg));
                let missing = missing.filter(|arg| !documents(text, arg) && !documents(common, arg));
                lacks.extend(missing.map(|arg| format!("{shown_path}: {}", arg.get_id())));
            }
            _ => lacks.push(shown_path),
        }
    }
    for sub in visible(command) {
        check(page, sub, &[path, &[sub.get_name()]].concat(), lacks);
    }
}

fn all_options(command: &Command, found: &mut BTreeSet<String>) {
    found.extend(command.get_arguments().filter_map(|arg| Some(format!("--{}", arg.get_long()?))));
    command.get_subcommands().for_each(|sub| all_options(sub, found));
}

/// A command or an option would be found by nobody who reads the page.
#[test]
fn the_page_names_every_command_and_option() {
    let (mut command, mut lacks) = (crate::command_line(), Vec::new());
    command.build();
    check(&page(), &command, &[], &mut lacks);
    assert!(lacks.is_empty(), "docs/reference/cli.md lacks: {lacks:#?}");
}

/// A reader would type options that no command has.
#[test]
fn the_page_names_no_other_options() {
    let (mut command, mut known) = (crate::command_line(), BTreeSet::new());
    command.build();
    all_options(&command, &mut known);
    assert!(known.len() > 80, "{known:?}");
    let page = page();
    let mut stray = BTreeSet::new();
    for (at, _) in page.match_indices("--") {
        let word: String = page[at + 2..].chars().take_while(|c| c.is_ascii_lowercase() || *c == '-').collect();
        // Rules of tables, and parts of links, are no options.
        let starts =
            page[..at].ends_with([' ', '`', '[', '(', '|']) && word.starts_with(|c: char| c.is_ascii_lowercase());
        let word = format!("--{}", word.trim_end_matches('-'));
        if starts && !known.contains(&word) && !["--help", "--version"].contains(&word.as_str()) {
            stray.insert(word);
        }
    }
    assert!(stray.is_empty(), "docs/reference/cli.md names options that nothing has: {stray:?}");
}
