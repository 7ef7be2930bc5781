//! Progress of long work, drawn on standard error when that is a terminal.
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The bar is redrawn so often.
const TICK: Duration = Duration::from_millis(200);

/// A command that has looked at things for so long says how many.
const SILENCE: Duration = Duration::from_millis(900);

/// A running count of files and bytes; thread-safe.
pub struct Progress {
    bar: ProgressBar,
    files: AtomicU64,
    /// Of a walk that prints its results itself: since when, and whether its count is drawn if it takes long.
    walk: Option<Instant>,
    seen: AtomicU64,
    /// When the walk last printed something, in milliseconds of its time.
    printed: AtomicU64,
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
        Self { bar, files: AtomicU64::new(0), walk: None, seen: AtomicU64::new(0), printed: AtomicU64::new(0) }
    }
    /// Of a command that goes through a tree and may find nothing to print for long. Nothing is drawn in the first
    /// moment.
    pub fn of_walk(shown: bool) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
            bar.set_style(style);
        }
        let walk = (shown && std::io::stderr().is_terminal()).then(Instant::now);
        Self { bar, files: AtomicU64::new(0), walk, seen: AtomicU64::new(0), printed: AtomicU64::new(0) }
    }
    /// The walk has come by something.
    pub fn looked(&self) {
        let seen = self.seen.fetch_add(1, Ordering::Relaxed) + 1;
        let Some(begin) = self.walk.filter(|_| seen.is_multiple_of(256) || seen < 256) else { return };
        if begin.elapsed() < SILENCE + Duration::from_millis(self.printed.load(Ordering::Relaxed)) {
            return;
        }
        if self.bar.is_hidden() {
            self.bar.reset();
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
            self.bar.enable_steady_tick(TICK);
        }
        self.bar.set_message(format!("{seen} looked at"));
    }
    /// The walk prints a lot from here on: the bar goes, and comes back only after another silence.
    pub fn rest(&self) {
        let Some(begin) = self.walk else { return };
        if !self.bar.is_hidden() {
            self.bar.finish_and_clear();
            self.bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        self.printed.store(begin.elapsed().as_millis() as u64, Ordering::Relaxed);
    }
    /// Prints something else while the bar is away.
    pub fn aside<R>(&self, print: impl FnOnce() -> R) -> R {
        self.bar.suspend(print)
    }
    pub fn add_bytes(&self, count: u64) {
        self.bar.inc(count);
    }
    pub fn add_file(&self) {
        let files = self.files.fetch_add(1, Ordering::Relaxed) + 1;
        if self.walk.is_none() && !self.bar.is_hidden() && files.is_multiple_of(16) {
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
