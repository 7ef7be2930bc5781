//! Finds items and attributes in masked source: which byte ranges are test code, and where an item ends.

use super::mask::is_word;
use std::ops::Range;

/// What of a file is compiled for tests only.
#[derive(Debug, Default)]
pub struct TestRegions {
    /// From the attribute to the end of the item that it stands on.
    pub ranges: Vec<Range<usize>>,
    /// Names in `#[cfg(test)] mod name;`.
    pub declared_modules: Vec<String>,
    /// The file says `#![cfg(test)]`.
    pub whole_file: bool,
}

impl TestRegions {
    pub fn of(masked: &str) -> Self {
        let mut regions = Self::default();
        for attribute in attributes(masked) {
            if !is_for_tests(&attribute.content) {
                continue;
            }
            if attribute.inner {
                regions.whole_file = true;
                continue;
            }
            let item = skip_attributes(masked, attribute.range.end);
            let end = item_end(masked, item);
            if let Some(name) = declared_module(&masked[item..end]) {
                regions.declared_modules.push(name);
            }
            regions.ranges.push(attribute.range.start..end);
        }
        regions
    }

    pub fn contains(&self, offset: usize) -> bool {
        self.ranges.iter().any(|range| range.contains(&offset))
    }
}

/// `#[content]` or, if inner, `#![content]`.
pub struct Attribute {
    pub range: Range<usize>,
    /// Without any white space.
    pub content: String,
    pub inner: bool,
}

pub fn attributes(masked: &str) -> Vec<Attribute> {
    let bytes = masked.as_bytes();
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(start) = masked[at..].find('#').map(|offset| at + offset) {
        let inner = bytes.get(start + 1) == Some(&b'!');
        let open = start + 1 + usize::from(inner);
        if bytes.get(open) != Some(&b'[') {
            at = start + 1;
            continue;
        }
        let close = matching(masked, open);
        let content = masked[open + 1..close].split_whitespace().collect();
        at = (close + 1).min(masked.len());
        found.push(Attribute { range: start..at, content, inner });
    }
    found
}

fn is_for_tests(content: &str) -> bool {
    let path = content.split('(').next().unwrap_or_default();
    content.starts_with("cfg(test)")
        || content.starts_with("cfg(all(test")
        || path == "test"
        || path == "bench"
        || path.ends_with("::test")
}

fn skip_attributes(masked: &str, mut at: usize) -> usize {
    loop {
        at += masked[at..].len() - masked[at..].trim_start().len();
        if !masked[at..].starts_with("#[") {
            return at;
        }
        at = (matching(masked, at + 1) + 1).min(masked.len());
    }
}

/// Where the item that starts at `start` ends: after its `;`, its block, or, for a field, a variant or a match arm,
/// before the comma.
fn item_end(masked: &str, start: usize) -> usize {
    const ITEMS: &[&str] = &[
        "fn",
        "mod",
        "impl",
        "struct",
        "enum",
        "union",
        "trait",
        "use",
        "type",
        "const",
        "static",
        "pub",
        "unsafe",
        "async",
        "extern",
        "macro_rules",
        "let",
    ];
    let word: String = masked[start..].chars().take_while(|c| c.is_ascii() && is_word(*c as u8)).collect();
    let is_item = ITEMS.contains(&word.as_str());
    let is_use = is_item
        && masked[start..].split(';').next().is_some_and(|item| {
            item.split_whitespace().find(|word| !word.starts_with("pub")).is_some_and(|word| word == "use")
        });
    let bytes = masked.as_bytes();
    let mut at = start;
    while at < bytes.len() {
        match bytes[at] {
            b';' => return at + 1,
            b'{' if is_use => at = matching(masked, at),
            b'{' => return (matching(masked, at) + 1).min(masked.len()),
            b'(' | b'[' => at = matching(masked, at),
            b')' | b']' | b'}' => return at,
            b',' if !is_item => return at,
            _ => {}
        }
        at += 1;
    }
    masked.len()
}

fn declared_module(item: &str) -> Option<String> {
    let mut words = item.strip_suffix(';')?.split_whitespace().skip_while(|word| word.starts_with("pub"));
    (words.next() == Some("mod")).then(|| words.next().map(str::to_string))?
}

/// The offset of the bracket that closes the one at `open`, or the end of the text if none does.
pub fn matching(masked: &str, open: usize) -> usize {
    let mut depth = 0usize;
    for (offset, byte) in masked.bytes().enumerate().skip(open) {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return offset;
                }
            }
            _ => {}
        }
    }
    masked.len()
}
