//! Progress of long work, drawn on standard error when that is a terminal.
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The bar is redrawn so often.
const TICK: Duration = Duration::from_millis(200);

/// A running count of files and bytes; thread-safe.
pub struct Progress {
    bar: ProgressBar,
    files: AtomicU64,
}

impl Progress {
    /// `shown`: draw it if standard error is a terminal. `bytes`: the whole, if it is known.
    pub fn new(verb: &'static str, shown: bool, bytes: Option<u64>) -> Self {
        let shown = shown && std::io::stderr().is_terminal();
        let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(bytes, target);
        let template = match bytes {
            Some(_) => "{prefix} {bytes}/{total_bytes} [{bar:30}] {binary_bytes_per_sec} {eta} {msg}",
            None => "{spinner} {prefix} {msg}{bytes} {binary_bytes_per_sec}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_prefix(verb);
        if shown {
            bar.enable_steady_tick(TICK);
        }
        Self { bar, files: AtomicU64::new(0) }
    }
    pub fn add_bytes(&self, count: u64) {
        self.bar.inc(count);
    }
    pub fn add_file(&self) {
        let files = self.files.fetch_add(1, Ordering::Relaxed) + 1;
        if !self.bar.is_hidden() && files.is_multiple_of(16) {
            self.bar.set_message(format!("{files} files, "));
        }
    }
    /// What stands before the bytes.
    pub fn note(&self, text: String) {
        self.bar.set_message(text);
    }
    /// A line on standard error, above the bar.
    pub fn say(&self, text: &str) {
        // Nobody reads standard error any more: there is nobody to tell.
        self.bar.suspend(|| drop(writeln!(std::io::stderr(), "{text}")));
    }
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
