//! Shell patterns over names of any bytes: `*`, `?`, `[a-z]`, `[!x]`, `\` takes the next character as it is.
//!
//! As in shells, a leading dot is matched by a dot only. Not here: directories (`remote` expands patterns of paths).

/// The text has a character that makes it a pattern.
pub fn is_pattern(text: &[u8]) -> bool {
    text.iter().any(|b| matches!(b, b'*' | b'?' | b'[' | b'\\'))
}

/// The whole name matches the pattern, as shells expand: `*` and `?` do not match a leading dot.
pub fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let hidden = name.first() == Some(&b'.');
    let dotted = matches!(pattern, [b'.', ..] | [b'\\', b'.', ..]);
    (!hidden || dotted) && matches_any(pattern, name)
}

/// The whole name matches the pattern; a leading dot is a character as any other (`find`).
pub fn matches_any(pattern: &[u8], name: &[u8]) -> bool {
    // Where to go on when what follows the last star fails: (pattern behind the star, name from there).
    let mut star: Option<(usize, usize)> = None;
    let (mut p, mut n) = (0, 0);
    loop {
        let step = match pattern.get(p) {
            None if n == name.len() => return true,
            None => None,
            Some(b'*') => {
                p += 1;
                star = Some((p, n));
                continue;
            }
            Some(_) if n == name.len() => None,
            Some(_) => one(&pattern[p..], &name[n..]),
        };
        match (step, star) {
            (Some((pattern_used, name_used)), _) => {
                p += pattern_used;
                n += name_used;
            }
            (None, Some((after, from))) if from < name.len() => {
                let next = from + char_len(&name[from..]);
                star = Some((after, next));
                (p, n) = (after, next);
            }
            (None, _) => return false,
        }
    }
}

/// Matches one character; gives the bytes used of the pattern and of the name.
fn one(pattern: &[u8], name: &[u8]) -> Option<(usize, usize)> {
    match pattern[0] {
        b'?' => Some((1, char_len(name))),
        b'[' => match class(pattern, name) {
            Some((matched, used, name_used)) => matched.then_some((used, name_used)),
            // No closing bracket: an ordinary character.
            None => (name[0] == b'[').then_some((1, 1)),
        },
        b'\\' if pattern.len() > 1 => (pattern[1] == name[0]).then_some((2, 1)),
        byte => (byte == name[0]).then_some((1, 1)),
    }
}

/// A bracket expression at the start of the pattern: whether it matches, its length, bytes of the name's character.
fn class(pattern: &[u8], name: &[u8]) -> Option<(bool, usize, usize)> {
    let (wanted, name_used) = decode(name);
    let mut at = 1;
    let negated = matches!(pattern.get(at), Some(b'!' | b'^'));
    at += usize::from(negated);
    let first = at;
    let mut found = false;
    loop {
        match pattern.get(at)? {
            b']' if at > first => return Some((found != negated, at + 1, name_used)),
            b'\\' if at + 1 < pattern.len() => at += 1,
            _ => {}
        }
        let (low, used) = decode(&pattern[at..]);
        at += used;
        let mut high = low;
        if pattern.get(at) == Some(&b'-') && pattern.get(at + 1).is_some_and(|b| *b != b']') {
            let (end, used) = decode(&pattern[at + 1..]);
            high = end;
            at += 1 + used;
        }
        found |= (low..=high).contains(&wanted);
    }
}

/// The first character and its length; a byte that is no UTF-8 stands for itself.
fn decode(text: &[u8]) -> (u32, usize) {
    let len = char_len(text);
    let whole = std::str::from_utf8(&text[..len]).ok().and_then(|s| s.chars().next());
    (whole.map_or(u32::from(text[0]) | 0x8000_0000, u32::from), len)
}

fn char_len(text: &[u8]) -> usize {
    let len = match text[0] {
        0xc2..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf4 => 4,
        _ => 1,
    };
    if text.get(..len).is_some_and(|part| std::str::from_utf8(part).is_ok()) { len } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `rm` with a pattern would remove what was not meant.
    #[test]
    fn patterns_match_what_shells_match() {
        for (pattern, name, wanted) in [
            ("*", "abc", true),
            ("*", "", true),
            ("*", ".hidden", false),
            (".*", ".hidden", true),
            ("a*c", "abbbc", true),
            ("a*c", "abbbd", false),
            ("*.txt", "x.txt.gz", false),
            ("*a*b*", "xxaxxbxx", true),
            ("?", "ä", true),
            ("??", "ä", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[^a-c]x", "dx", true),
            ("[]]", "]", true),
            ("[a", "[a", true),
            ("[ä-ü]", "ö", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("[\\]]", "]", true),
            ("a", "ab", false),
            ("", "", true),
            ("", "a", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), wanted, "{pattern} {name}");
        }
        assert!(matches(b"?", b"\xff"));
        assert!(matches_any(b"*den", b".hidden"));
    }

    /// A pattern of many stars must not take exponential time.
    #[test]
    fn many_stars_end_soon() {
        let pattern = "*a".repeat(60) + "b";
        assert!(!matches(pattern.as_bytes(), "a".repeat(240).as_bytes()));
    }
}
