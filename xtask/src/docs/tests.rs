//! The link finder on Markdown that it must read, and the resolver on links that must not pass.

use super::*;
use std::fs;

fn targets(text: &str) -> Vec<String> {
    links(text).into_iter().map(|link| link.target).collect()
}

#[test]
fn links_are_found_in_prose_only() {
    let text = "\
See [a](a.md) and [b](<b c.md> \"title\"), ![c](c.png).
`[not](code.md)` but [d](d.md) after `it`
```sh
[not](fenced.md)
```
[label]: e.md
[^note]: not.md
";
    assert_eq!(targets(text), ["a.md", "b c.md", "c.png", "d.md", "e.md"]);
    assert_eq!(links(text).last().map(|link| link.line), Some(6));
}

#[test]
fn a_lone_backquote_hides_nothing() {
    assert_eq!(targets("a ` [b](b.md)"), ["b.md"]);
}

#[test]
fn a_link_must_lead_somewhere() {
    let root = tempfile::tempdir().expect("a scratch directory");
    fs::create_dir(root.path().join("docs")).expect("docs");
    fs::write(root.path().join("README.md"), "# Cairn\n## How to run\n## How to run\n").expect("README.md");
    let readme = SourceFile {
        path: "README.md".into(),
        text: fs::read_to_string(root.path().join("README.md")).expect("README.md"),
    };
    let page = SourceFile { path: "docs/page.md".into(), text: "# Page\n".to_string() };
    let resolve = |target: &str| resolve(root.path(), &page, &[&readme, &page], target);

    for target in [
        "../README.md",
        "../README.md#how-to-run",
        "../README.md#how-to-run-1",
        "../docs",
        "https://a.b/c",
        "mailto:a@b",
    ] {
        assert_eq!(resolve(target), Ok(()), "{target}");
    }
    for target in ["README.md", "../README.md#nowhere", "../../etc", "/README.md", "#nowhere"] {
        assert!(resolve(target).is_err(), "{target}");
    }
}

#[test]
fn a_crate_is_named_as_code() {
    assert!(names_crate("| `crates/raft-host` | x |", "raft-host"));
    assert!(names_crate("`raft`", "raft"));
    assert!(!names_crate("we use raft and `raft-host`", "raft"));
}
