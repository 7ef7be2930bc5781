//! What a check found: failures (the check fails), warnings and notes (it does not).
//!
//! A note is how a check says what it did not look at; nothing is skipped without one.

use std::fmt::Display;

/// Collected by one check and printed when it is over, so that one run shows everything.
#[derive(Debug, Default)]
pub struct Findings {
    pub failures: Vec<String>,
    pub warnings: Vec<String>,
    pub notes: Vec<String>,
}

impl Findings {
    pub fn fail(&mut self, text: impl Display) {
        self.failures.push(text.to_string());
    }

    pub fn warn(&mut self, text: impl Display) {
        self.warnings.push(text.to_string());
    }

    pub fn note(&mut self, text: impl Display) {
        self.notes.push(text.to_string());
    }

    pub fn print(&self) {
        for (mark, list) in [("note", &self.notes), ("warning", &self.warnings), ("FAIL", &self.failures)] {
            for text in list {
                println!("  {mark}: {}", text.trim_end().replace('\n', "\n    "));
            }
        }
    }
}
