//! Blanks comments and the contents of strings and character literals, byte for byte, keeping every line break.
//!
//! Knows nested block comments, raw strings and the difference between a lifetime and a character. What comes out is
//! as long as what went in, so an offset in one is an offset in the other.

/// The masked copy. Quotes stay, what is between them goes.
pub fn mask(text: &str) -> String {
    let mut masker = Masker { input: text.as_bytes(), at: 0, output: Vec::with_capacity(text.len()) };
    masker.run();
    String::from_utf8_lossy(&masker.output).into_owned()
}

struct Masker<'a> {
    input: &'a [u8],
    at: usize,
    output: Vec<u8>,
}

impl Masker<'_> {
    fn run(&mut self) {
        while let Some(byte) = self.peek(0) {
            match byte {
                b'/' if self.peek(1) == Some(b'/') => self.line_comment(),
                b'/' if self.peek(1) == Some(b'*') => self.block_comment(),
                b'"' => self.string(),
                b'\'' => self.quote(),
                _ if is_word(byte) => self.word(),
                _ => self.keep(1),
            }
        }
    }

    fn peek(&self, ahead: usize) -> Option<u8> {
        self.input.get(self.at + ahead).copied()
    }

    fn keep(&mut self, count: usize) {
        let end = (self.at + count).min(self.input.len());
        // Outside of strings and comments Rust is ASCII but for identifiers; a blank is enough for those.
        self.output.extend(self.input[self.at..end].iter().map(|byte| if byte.is_ascii() { *byte } else { b' ' }));
        self.at = end;
    }

    fn blank(&mut self, count: usize) {
        let end = (self.at + count).min(self.input.len());
        self.output.extend(self.input[self.at..end].iter().map(|byte| if *byte == b'\n' { b'\n' } else { b' ' }));
        self.at = end;
    }

    fn line_comment(&mut self) {
        while self.peek(0).is_some_and(|byte| byte != b'\n') {
            self.blank(1);
        }
    }

    fn block_comment(&mut self) {
        let mut depth = 0;
        while self.peek(0).is_some() {
            match (self.peek(0), self.peek(1)) {
                (Some(b'/'), Some(b'*')) => {
                    depth += 1;
                    self.blank(2);
                }
                (Some(b'*'), Some(b'/')) => {
                    depth -= 1;
                    self.blank(2);
                    if depth == 0 {
                        return;
                    }
                }
                _ => self.blank(1),
            }
        }
    }

    fn string(&mut self) {
        self.keep(1);
        while let Some(byte) = self.peek(0) {
            match byte {
                b'\\' => self.blank(2),
                b'"' => return self.keep(1),
                _ => self.blank(1),
            }
        }
    }

    /// A character literal or a lifetime.
    fn quote(&mut self) {
        let character_len = match self.peek(1) {
            Some(b'\\') => {
                let escape_end = self.input.iter().skip(self.at + 3).position(|byte| *byte == b'\'');
                escape_end.map(|length| length + 2)
            }
            Some(first) => {
                let length = utf8_len(first);
                (self.peek(1 + length) == Some(b'\'')).then_some(length)
            }
            None => None,
        };
        self.keep(1);
        if let Some(length) = character_len {
            self.blank(length);
            self.keep(1);
        }
    }

    /// An identifier, a keyword, a number, or the prefix of a raw string.
    fn word(&mut self) {
        let length = self.input[self.at..].iter().take_while(|byte| is_word(**byte)).count();
        let is_prefix = matches!(&self.input[self.at..self.at + length], b"r" | b"br" | b"cr");
        self.keep(length);
        let hashes = self.input[self.at..].iter().take_while(|byte| **byte == b'#').count();
        if is_prefix && self.peek(hashes) == Some(b'"') {
            self.raw_string(hashes);
        }
    }

    fn raw_string(&mut self, hashes: usize) {
        self.blank(hashes);
        self.keep(1);
        while let Some(byte) = self.peek(0) {
            let closes = byte == b'"'
                && self.input[self.at + 1..].iter().take(hashes).filter(|byte| **byte == b'#').count() == hashes;
            if closes {
                self.keep(1);
                return self.blank(hashes);
            }
            self.blank(1);
        }
    }
}

pub fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii()
}

fn utf8_len(first: u8) -> usize {
    match first {
        0xF0.. => 4,
        0xE0.. => 3,
        0xC0.. => 2,
        _ => 1,
    }
}
