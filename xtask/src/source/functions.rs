//! Finds functions in masked source and counts the lines between their braces.

use super::mask::is_word;
use super::regions::matching;

/// A function with a body.
#[derive(Debug, PartialEq, Eq)]
pub struct Function {
    pub name: String,
    /// Offset of the word `fn`.
    pub start: usize,
    /// Lines strictly between the opening and the closing brace, blank ones and comments included.
    pub body_lines: usize,
}

pub fn functions(masked: &str) -> Vec<Function> {
    let bytes = masked.as_bytes();
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(start) = masked[at..].find("fn").map(|offset| at + offset) {
        at = start + 2;
        let whole_word =
            (start == 0 || !is_word(bytes[start - 1])) && bytes.get(at).is_some_and(u8::is_ascii_whitespace);
        if !whole_word {
            continue;
        }
        let rest = masked[at..].trim_start();
        let name: String =
            rest.chars().take_while(|c| c.is_ascii() && (is_word(*c as u8) || *c == '$' || *c == '#')).collect();
        if name.is_empty() {
            continue;
        }
        if let Some(open) = body_start(masked, at) {
            let close = matching(masked, open);
            let breaks = masked[open..close].bytes().filter(|byte| *byte == b'\n').count();
            found.push(Function { name, start, body_lines: breaks.saturating_sub(1) });
        }
    }
    found
}

/// The brace that opens the body of the function whose signature goes on at `at`; none if it is only declared.
fn body_start(masked: &str, mut at: usize) -> Option<usize> {
    let bytes = masked.as_bytes();
    while at < bytes.len() {
        match bytes[at] {
            b';' => return None,
            // A const argument: `Buffer<{ SIZE * 2 }>`.
            b'{' if masked[..at].trim_end().ends_with('<') => at = matching(masked, at),
            b'{' => return Some(at),
            b'(' | b'[' => at = matching(masked, at),
            b')' | b']' | b'}' => return None,
            _ => {}
        }
        at += 1;
    }
    None
}
