//! The source rules on small files: what must be found, and what only looks like it.

use super::functions::functions;
use super::*;

fn findings_for(path: &str, text: &str) -> Findings {
    findings_for_all(&[(path, text)])
}

fn findings_for_all(files: &[(&str, &str)]) -> Findings {
    let files: Vec<SourceFile> =
        files.iter().map(|(path, text)| SourceFile { path: path.into(), text: text.to_string() }).collect();
    let mut findings = Findings::default();
    for file in &scan(&files, &["crates/tree".into()]) {
        rules::apply(file, &mut findings);
    }
    findings
}

/// What fails for this body of a file that is otherwise in order.
fn failures(path: &str, body: &str) -> Vec<String> {
    findings_for(path, &format!("//! A file.\n{body}\n")).failures
}

fn lines(count: usize) -> String {
    "    step();\n".repeat(count)
}

#[test]
fn masking_keeps_every_byte_in_its_place() {
    let text =
        "let a = \"{ \\\" }\"; // {\nlet b = r#\"}\"{\"#; /* { /* } */ { */ let c = '{'; let d: &'a str = '\\u{7f}';é";
    let masked = mask(text);
    assert_eq!(masked.len(), text.len());
    assert!(!masked.contains('{') && !masked.contains('}'), "{masked}");
    assert!(masked.contains("let c = ' '; let d: &'a str = '      ';"), "{masked}");
    assert_eq!(masked.find('\n'), text.find('\n'));
}

#[test]
fn strings_of_every_kind_are_masked() {
    for literal in ["b\"{\"", "br##\"{\"# {\"##", "c\"{\"", "b'{'", "'\\''", "'\\\\'", "\"\\\\\"", "'\"'", "'é'"] {
        let masked = mask(&format!("f({literal}) done"));
        assert!(!masked.contains('{') && masked.ends_with(") done"), "{literal} became {masked}");
    }
    assert_eq!(mask("r#fn 'static r"), "r#fn 'static r");
}

#[test]
fn function_bodies_are_measured() {
    let text = format!(
        "fn declared();\nfn one_line() {{ 1 }}\nimpl X {{\n fn generic<T, const N: usize>(a: [T; {{ N }}], f: fn(u8) -> u8) -> Y<{{ N }}>\n where T: Z {{\n{}\n}} }}",
        lines(3)
    );
    let found: Vec<(String, usize)> =
        functions(&mask(&text)).into_iter().map(|function| (function.name, function.body_lines)).collect();
    assert_eq!(found, [("one_line".to_string(), 0), ("generic".to_string(), 4)]);
}

#[test]
fn a_long_function_fails_and_a_brace_in_a_string_does_not_end_it() {
    let body = format!("fn long() {{\n    let brace = \"}}\";\n{}}}", lines(70));
    let found = failures("crates/rpc/src/lib.rs", &body);
    assert!(found.len() == 1 && found[0].contains("rs:2: fn long has 71 lines"), "{found:?}");
    assert!(failures("crates/rpc/src/lib.rs", &format!("fn fits() {{\n{}}}", lines(70))).is_empty());
}

#[test]
fn a_long_function_may_give_its_reason() {
    let with = |mark: &str| {
        failures("crates/rpc/src/lib.rs", &format!("/// Doc.\n{mark}\n#[inline]\nfn long() {{\n{}}}", lines(90)))
    };
    assert!(with("// check: long function because it is one table").is_empty());
    assert_eq!(with("// check: long function because …").len(), 1, "a mark without a reason");
    assert_eq!(with("// a comment").len(), 1);
    let far = format!("// check: long function because of this\nfn short() {{}}\nfn long() {{\n{}}}", lines(90));
    assert_eq!(failures("crates/rpc/src/lib.rs", &far).len(), 1, "the mark of another function");
    let needless = findings_for("a.rs", "//! A.\n// check: long function because it was\nfn short() {}\n");
    assert_eq!((needless.failures.len(), needless.warnings.len()), (0, 1));
}

#[test]
fn test_code_may_be_long_and_unwrap() {
    let body = format!("{}    x.unwrap();\n", lines(80));
    for text in [
        format!("#[cfg(test)]\nmod tests {{\n fn helper() {{\n{body} }}\n}}"),
        format!("#[test]\nfn a() {{\n{body}}}"),
        format!("#[tokio::test(flavor = \"current_thread\")]\nasync fn a() {{\n{body}}}"),
        format!("#![cfg(test)]\nfn helper() {{\n{body}}}"),
    ] {
        assert!(failures("crates/rpc/src/lib.rs", &text).is_empty(), "{text}");
    }
    assert!(failures("crates/rpc/tests/faults.rs", &format!("fn helper() {{\n{body}}}")).is_empty());
    assert_eq!(failures("crates/rpc/src/lib.rs", &format!("fn helper() {{\n{body}}}")).len(), 2);
}

#[test]
fn code_behind_test_code_is_judged_again() {
    for item in
        ["#[cfg(test)]\nuse a::{b, c};", "#[cfg(test)]\nmod tests;", "#[cfg(test)]\nimpl Cause for X { fn f() {} }"]
    {
        let found = failures("crates/rpc/src/lib.rs", &format!("{item}\nfn f() {{ x.unwrap(); }}"));
        assert_eq!(found.len(), 1, "{item}");
    }
    let field = "struct S {\n #[cfg(test)]\n probe: Vec<u8>,\n}\nfn f() { x.unwrap(); }";
    assert_eq!(failures("crates/rpc/src/lib.rs", field).len(), 1);
}

#[test]
fn files_declared_for_tests_are_test_code() {
    let helper = "//! Tests.\nfn helper() { x.unwrap(); }\n";
    let declared = [
        ("crates/rpc/src/frame.rs", "//! Frames.\n#[cfg(test)]\nmod oracle;\n"),
        ("crates/rpc/src/frame/oracle.rs", helper),
        ("crates/rpc/src/frame/oracle/more.rs", helper),
    ];
    assert!(findings_for_all(&declared).failures.is_empty());
    let undeclared =
        [("crates/rpc/src/frame.rs", "//! Frames.\nmod oracle;\n"), ("crates/rpc/src/frame/oracle.rs", helper)];
    assert_eq!(findings_for_all(&undeclared).failures.len(), 1);
}

#[test]
fn pure_layers_touch_neither_world_nor_chance() {
    for body in [
        "use std::fs;",
        "use std::{collections::BTreeMap, fs::File, io};",
        "fn f() { std::thread::spawn(g); }",
        "use std::net::SocketAddr;",
        "fn f() { let t = Instant::now(); }",
        "fn f() { let t = std::time::SystemTime::now(); }",
        "use std::collections::HashMap;",
        "type S = std::collections::HashSet<u8>;",
        "use tokio::sync::mpsc;",
    ] {
        assert!(!failures("crates/tree/src/lib.rs", body).is_empty(), "{body}");
        assert!(failures("crates/rpc/src/lib.rs", body).is_empty(), "{body} in a crate that may");
        for beside in ["crates/tree/build.rs", "crates/tree/examples/measure.rs", "crates/tree/benches/measure.rs"] {
            assert!(failures(beside, body).is_empty(), "{body} in {beside}");
        }
        let in_test = format!("#[cfg(test)]\nmod tests {{\n{body}\n}}");
        assert!(failures("crates/tree/src/lib.rs", &in_test).is_empty(), "{body} in a test");
    }
    for body in [
        "// std::fs is not used\nfn f(s: &str) { g(\"HashMap\") }",
        "struct HashMapped;",
        "use std::{io, fmt::{self}};",
    ] {
        assert!(failures("crates/tree/src/lib.rs", body).is_empty(), "{body}");
    }
}

#[test]
fn what_is_unfinished_or_hidden_fails() {
    for body in [
        "fn f() { todo!() }",
        "fn f() { unimplemented!(\"later\") }",
        "fn f() { dbg!(1); }",
        "#[allow(dead_code)]\nfn f() {}",
        "#![allow(unused, dead_code)]",
        "#[cfg_attr(test, allow(dead_code))]\nfn f() {}",
        "#[expect(dead_code)]\nfn f() {}",
        "#[test]\n#[ignore]\nfn f() {}",
        "pub use inner::*;",
        "pub(crate) use a::{b::*, c};",
    ] {
        assert_eq!(failures("crates/rpc/src/lib.rs", body).len(), 1, "{body}");
    }
    for body in [
        "#[test]\n#[ignore = \"needs root\"]\nfn f() {}",
        "use super::*;",
        "pub fn f() { a * b; }",
        "pub use a::B;",
        "fn f() { x.unwrap_or(1); }",
        "// todo!() and dbg!() are forbidden",
    ] {
        assert!(failures("crates/rpc/src/lib.rs", body).is_empty(), "{body}");
    }
}

#[test]
fn every_file_opens_with_what_it_is_and_has_a_name_of_its_own() {
    assert_eq!(findings_for("a.rs", "fn f() {}\n").failures.len(), 1);
    for path in ["crates/rpc/src/util.rs", "crates/rpc/src/common.rs", "crates/rpc/src/utils/mod.rs"] {
        assert_eq!(failures(path, "").len(), 1, "{path}");
    }
    assert!(failures("crates/rpc/tests/common/mod.rs", "").is_empty());
}

#[test]
fn long_files_warn_and_then_fail() {
    let of = |count: usize| findings_for("a.rs", &format!("//! A.\n{}", "const A: u8 = 1;\n".repeat(count)));
    let (fits, long, too_long) = (of(599), of(600), of(1000));
    assert_eq!((fits.warnings.len(), fits.failures.len()), (0, 0));
    assert_eq!((long.warnings.len(), long.failures.len()), (1, 0));
    assert_eq!((too_long.warnings.len(), too_long.failures.len()), (0, 1));
}

#[test]
fn broken_source_does_not_break_the_scan() {
    for text in [
        "//! A.\nfn",
        "//! A.\nfn f(",
        "//! A.\n#[",
        "//! A.\n#[cfg(test)]",
        "//! A.\n\"",
        "//! A.\nr#\"",
        "//! A.\n/*",
        "//! A.\n'\\",
    ] {
        findings_for("a.rs", text);
    }
}

/// A window of usual width would show half of a comment, or a table that was broken no table.
#[test]
fn comments_have_lines_that_fit() {
    let long = "word ".repeat(25);
    let word = "x".repeat(130);
    for body in [format!("// {long}"), format!("    /// {long}"), format!("/// - {long}")] {
        let found = failures("src/a.rs", &body);
        assert!(found.len() == 1 && found[0].starts_with("src/a.rs:2: a comment of"), "{body}: {found:?}");
    }
    let kept = [
        format!("/// | {long} |"),
        format!("/// ```text\n/// {long}\n/// ```"),
        format!("//     {long}"),
        format!("// {word}"),
        format!("fn f() {{}}\n// {}", "ä".repeat(117)),
    ];
    for body in kept {
        assert_eq!(failures("src/a.rs", &body), Vec::<String>::new(), "{body}");
    }
    // A listing ends with the comment that it is in.
    assert_eq!(failures("src/a.rs", &format!("/// ```\nfn f() {{}}\n// {long}")).len(), 1);
}
