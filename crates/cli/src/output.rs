//! [`Out`]: standard output as lines, JSON values and raw bytes; a reader that went away is an error like any other.
//!
//! Not here: progress and diagnostics, which go to standard error (`report`).
use crate::error::{CliError, Result};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use std::io::{BufWriter, IsTerminal, Write};

/// Bytes gathered before a write, when standard output is no terminal.
const BUFFER: usize = 64 << 10;

/// Standard output of a command.
pub struct Out {
    json: bool,
    terminal: bool,
    writer: Mutex<BufWriter<Box<dyn Write + Send>>>,
}

impl Out {
    pub fn new(json: bool) -> Self {
        let stdout = std::io::stdout();
        let terminal = stdout.is_terminal();
        Self { terminal, ..Self::to(json, Box::new(stdout)) }
    }
    /// Somewhere else than standard output.
    pub fn to(json: bool, writer: Box<dyn Write + Send>) -> Self {
        Self { json, terminal: false, writer: Mutex::new(BufWriter::with_capacity(BUFFER, writer)) }
    }
    /// JSON was asked for.
    pub fn is_json(&self) -> bool {
        self.json
    }
    /// A line of text.
    pub fn line(&self, text: impl AsRef<[u8]>) -> Result<()> {
        let mut writer = self.writer.lock();
        let wrote = writer.write_all(text.as_ref()).and_then(|()| writer.write_all(b"\n"));
        wrote.and_then(|()| if self.terminal { writer.flush() } else { Ok(()) }).map_err(CliError::stdout)
    }
    /// A JSON value on a line of its own.
    pub fn json(&self, value: &Value) -> Result<()> {
        self.line(value.to_string())
    }
    /// Bytes as they are, at once.
    pub fn bytes(&self, bytes: &[u8]) -> Result<()> {
        let mut writer = self.writer.lock();
        writer.write_all(bytes).and_then(|()| writer.flush()).map_err(CliError::stdout)
    }
    /// Everything so far reaches the reader.
    pub fn flush(&self) -> Result<()> {
        self.writer.lock().flush().map_err(CliError::stdout)
    }
    /// A name as it is printed: raw for programs, without control characters on terminals.
    pub fn name(&self, name: &[u8]) -> Vec<u8> {
        if !self.terminal {
            return name.to_vec();
        }
        printable(&String::from_utf8_lossy(name), false).into_bytes()
    }
}

/// Text without what makes a terminal do things: control characters, and those that change the direction of what is
/// around them, become escapes. `lines`: line breaks are meant.
pub fn printable(text: &str, lines: bool) -> String {
    let odd = |c: char| {
        let turns = matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        (c.is_control() || turns) && !(lines && c == '\n')
    };
    let mut shown = String::with_capacity(text.len());
    for part in text.chars() {
        match odd(part) {
            true => shown.extend(part.escape_default()),
            false => shown.push(part),
        }
    }
    shown
}

/// Puts a name into a JSON object: `key` as text, and `key_hex` as well when the bytes are no UTF-8.
pub fn put_name(object: &mut Map<String, Value>, key: &str, name: &[u8]) {
    match std::str::from_utf8(name) {
        Ok(text) => {
            object.insert(key.into(), json!(text));
        }
        Err(_) => {
            object.insert(key.into(), json!(String::from_utf8_lossy(name)));
            object.insert(format!("{key}_hex"), json!(hex(name)));
        }
    }
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name could paint the terminal, or look like another one or like further lines.
    #[test]
    fn names_do_nothing_to_terminals() {
        assert_eq!(printable("a\u{1b}[31mred\nb\u{9b}0m\u{202e}ä€", false), "a\\u{1b}[31mred\\nb\\u{9b}0m\\u{202e}ä€");
        assert_eq!(printable("two\nlines\r", true), "two\nlines\\r");
        let terminal = Out { terminal: true, ..Out::to(false, Box::new(std::io::sink())) };
        assert_eq!(terminal.name(b"x\x1b\xff"), "x\\u{1b}\u{fffd}".as_bytes());
        assert_eq!(
            Out::to(false, Box::new(std::io::sink())).name(b"x\x1b\xff"),
            b"x\x1b\xff",
            "programs get the bytes"
        );
    }

    /// A name that is no UTF-8 could not be told from another one in JSON.
    #[test]
    fn odd_names_keep_their_bytes() {
        let mut object = Map::new();
        put_name(&mut object, "path", b"/a\xff");
        assert_eq!(object["path_hex"], json!("2f61ff"));
        let mut object = Map::new();
        put_name(&mut object, "path", "/ä".as_bytes());
        assert_eq!(Value::Object(object), json!({ "path": "/ä" }));
    }
}
