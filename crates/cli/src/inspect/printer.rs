//! [`Printer`]: what an inspection finds, as text or as JSON lines; counts what is damaged.
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::output::Out;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Where findings go.
pub struct Printer<'a> {
    out: &'a Out,
    path: PathBuf,
    several: bool,
    verbose: bool,
    problems: u64,
}

impl<'a> Printer<'a> {
    pub fn new(out: &'a Out, path: &Path, several: bool, verbose: bool) -> Self {
        Self { out, path: path.to_owned(), several, verbose, problems: 0 }
    }
    /// Every record and block is wanted.
    pub fn is_verbose(&self) -> bool {
        self.verbose
    }
    /// What the file is. `fields` is an object.
    pub fn head(&self, kind: &str, text: &str, mut fields: Value) -> Result<()> {
        if self.out.is_json() {
            fields["file"] = json!(self.path.to_string_lossy());
            fields["kind"] = json!(kind);
            return self.out.json(&fields);
        }
        if self.several {
            self.out.line(format!("{}:", self.path.display()))?;
        }
        self.out.line(text)
    }
    /// Something in it. `fields` is an object.
    pub fn item(&self, kind: &str, text: &str, mut fields: Value) -> Result<()> {
        if self.out.is_json() {
            fields["item"] = json!(kind);
            return self.out.json(&fields);
        }
        self.out.line(text)
    }
    /// Something damaged at an offset of the file.
    pub fn problem(&mut self, offset: u64, text: &str) -> Result<()> {
        self.problems += 1;
        if self.out.is_json() {
            return self.out.json(&json!({ "item": "problem", "offset": offset, "text": text }));
        }
        self.out.line(format!("DAMAGED at offset {offset}: {text}"))
    }
    /// The end: an error if something was damaged.
    pub fn end(self) -> Result<()> {
        if self.problems == 0 {
            return Ok(());
        }
        let count = if self.problems == 1 { "1 problem".into() } else { format!("{} problems", self.problems) };
        let text = format!(
            "{}: {count} found; a server heals such data from other copies, or says what it needs",
            self.path.display()
        );
        Err(CliError::refused(Exit::Damaged, text))
    }
}
