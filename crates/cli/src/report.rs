//! [`Report`]: what a command over many things did: counts, failures as they come, the exit class at the end.
//!
//! Failures are printed at once and not kept, so memory does not grow with their number.
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::output::printable;
use crate::progress::Progress;
use crate::tasks::Tasks;
use crate::transfer::pass::Pass;
use parking_lot::Mutex;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

/// A rate is said of so many bytes or more.
const RATE_BYTES_MIN: u64 = 1 << 20;

/// What is on its way when a fatal failure comes gets so long to end.
const STOP_GRACE: Duration = Duration::from_secs(2);

/// The first thing that a quota had no room for.
pub type BeyondQuota = Arc<Mutex<Option<String>>>;

/// Counts of a command; shared by its tasks.
pub struct Report {
    json: bool,
    progress: Progress,
    files: AtomicU64,
    directories: AtomicU64,
    symlinks: AtomicU64,
    bytes: AtomicU64,
    skipped: AtomicU64,
    replaced: AtomicU64,
    failed: AtomicU64,
    stopped: AtomicBool,
    stop: Notify,
    first: Mutex<Option<Exit>>,
    tasks: Tasks,
    beyond_quota: BeyondQuota,
    pass: Pass,
}

/// What was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Done {
    File(u64),
    Directory,
    Symlink,
}

impl Report {
    pub fn new(json: bool, progress: Progress, tasks: Tasks) -> Self {
        Self {
            beyond_quota: BeyondQuota::default(),
            pass: Pass::default(),
            tasks,
            json,
            progress,
            files: AtomicU64::new(0),
            directories: AtomicU64::new(0),
            symlinks: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
            replaced: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            stop: Notify::new(),
            first: Mutex::new(None),
        }
    }
    /// A report without a progress bar.
    pub fn plain(json: bool, tasks: Tasks) -> Self {
        Self::new(json, Progress::new("", false, None), tasks)
    }
    /// Where it is noted that a quota had no room.
    pub fn noting_quotas(mut self, noted: &BeyondQuota) -> Self {
        self.beyond_quota = noted.clone();
        self
    }
    /// The command takes only some entries, or goes slower than it could.
    pub fn passing(mut self, pass: Pass) -> Self {
        self.pass = pass;
        self
    }
    /// What the command takes, and how fast.
    pub fn pass(&self) -> &Pass {
        &self.pass
    }
    /// What the command does beside itself.
    pub fn tasks(&self) -> &Tasks {
        &self.tasks
    }
    pub fn progress(&self) -> &Progress {
        &self.progress
    }
    pub fn done(&self, what: Done) {
        match what {
            Done::File(bytes) => {
                self.files.fetch_add(1, Ordering::Relaxed);
                self.bytes.fetch_add(bytes, Ordering::Relaxed);
                self.progress.add_file();
            }
            Done::Directory => drop(self.directories.fetch_add(1, Ordering::Relaxed)),
            Done::Symlink => drop(self.symlinks.fetch_add(1, Ordering::Relaxed)),
        }
    }
    /// Left as it was, on purpose.
    pub fn skipped(&self) {
        self.skipped.fetch_add(1, Ordering::Relaxed);
    }
    /// What was done took the place of a file that was there.
    pub fn replaced(&self) {
        self.replaced.fetch_add(1, Ordering::Relaxed);
    }
    pub fn replacements(&self) -> u64 {
        self.replaced.load(Ordering::Relaxed)
    }
    /// Shows a failure and counts it. After a fatal one nothing new is begun, and what follows it is not shown.
    pub fn fail(&self, error: &CliError) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        if let Some(what) = error.beyond_quota() {
            self.beyond_quota.lock().get_or_insert_with(|| what.to_owned());
        }
        self.first.lock().get_or_insert(error.exit());
        if self.stopped.load(Ordering::Relaxed) {
            return;
        }
        if error.is_fatal() {
            *self.first.lock() = Some(error.exit());
            self.stopped.store(true, Ordering::Relaxed);
            self.stop.notify_waiters();
        }
        if !matches!(error, CliError::Reported { .. } | CliError::BrokenPipe) {
            self.progress.say(&error_line(error, self.json));
        }
    }
    /// A remark that is no failure.
    pub fn warn(&self, text: &str) {
        self.progress.say(&printable(&format!("cairn: {text}"), false));
    }
    /// A fatal failure came: begin nothing new.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }
    /// Waits for work to end; after a fatal failure only for a moment, then what is on its way is given up.
    pub async fn or_stopped(&self, work: impl Future<Output = ()>) {
        let mut work = std::pin::pin!(work);
        let stop = self.stop.notified();
        if !self.is_stopped() {
            tokio::select! {
                () = &mut work => return,
                () = stop => {}
            }
        }
        if tokio::time::timeout(STOP_GRACE, work).await.is_err() {
            tracing::debug!("what was on its way was given up");
            self.tasks.end().await;
        }
    }
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }
    fn total(&self) -> u64 {
        [&self.files, &self.directories, &self.symlinks].iter().map(|n| n.load(Ordering::Relaxed)).sum()
    }
    /// As the summary in JSON.
    pub fn json_summary(&self, seconds: f64) -> serde_json::Value {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        json!({
            "files": get(&self.files), "directories": get(&self.directories), "symlinks": get(&self.symlinks),
            "bytes": get(&self.bytes), "skipped": get(&self.skipped), "replaced": get(&self.replaced), "failed": get(&self.failed),
            "seconds": (seconds * 1000.0).round() / 1000.0,
        })
    }
    /// Says the summary, unless all there is to say was the one failure.
    pub fn say_summary(&self, verb: &str, seconds: f64) {
        if self.total() > 0 || self.skipped.load(Ordering::Relaxed) > 0 || self.failed() > 1 {
            self.progress.say(&self.text_summary(verb, seconds));
        }
    }
    /// As the summary in a sentence.
    pub fn text_summary(&self, verb: &str, seconds: f64) -> String {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let bytes = get(&self.bytes);
        let mut parts = vec![count(get(&self.files), "file", "files")];
        for (number, one, many) in
            [(get(&self.directories), "directory", "directories"), (get(&self.symlinks), "link", "links")]
        {
            if number > 0 {
                parts.push(count(number, one, many));
            }
        }
        let mut text = format!("{verb} {}, {} in {seconds:.1} s", parts.join(", "), crate::human::bytes(bytes));
        if bytes >= RATE_BYTES_MIN {
            text.push_str(&format!(" ({}/s)", crate::human::bytes((bytes as f64 / seconds.max(0.001)) as u64)));
        }
        for (number, what) in [
            (get(&self.replaced), "of them replaced a file"),
            (get(&self.skipped), "left as they were"),
            (get(&self.failed), "failed"),
        ] {
            if number > 0 {
                text.push_str(&format!(", {number} {what}"));
            }
        }
        text
    }
    /// The end: `Ok` if nothing failed; else the class of the failure, or Partial if other things were done.
    pub fn finish(&self) -> Result<()> {
        self.progress.finish();
        let failed = self.failed();
        let Some(first) = *self.first.lock() else { return Ok(()) };
        let done = self.total() + self.skipped.load(Ordering::Relaxed);
        let exit = if done > 0 && !self.is_stopped() { Exit::Partial } else { first };
        Err(CliError::Reported { exit, failed, done })
    }
}

fn count(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// An error as a line on standard error.
pub fn error_line(error: &CliError, json: bool) -> String {
    match json {
        true => {
            let exit = error.exit();
            let mut value = json!({ "error": exit.name(), "exit": exit.code(), "message": error.to_string() });
            if let Some(code) = error.code() {
                value["code"] = json!(code.name());
            }
            value.to_string()
        }
        // Names in it are anybody's; some texts of commands themselves have several lines.
        false => {
            let lines = matches!(error, CliError::Usage(_) | CliError::Refused { .. });
            printable(&format!("cairn: {error}"), lines)
        }
    }
}

/// An error as a line of JSON.
pub fn json_error(error: &CliError) -> String {
    error_line(error, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The name of somebody's file could change the terminal of whoever reads the message.
    #[test]
    fn errors_do_nothing_to_terminals() {
        let changed = CliError::Changed { what: "/a\u{1b}[2J\ncairn: all is well".into(), detail: "" };
        let line = error_line(&changed, false);
        assert!(line.starts_with("cairn: /a\\u{1b}[2J\\ncairn: all is well changed"), "{line}");
        assert!(!error_line(&CliError::Refused { exit: Exit::Other, text: "a\n\tb".into() }, false).contains('\t'));
        assert!(error_line(&CliError::usage("- a\n- b"), false).contains('\n'));
    }

    fn failing(exit: Exit) -> CliError {
        CliError::Reported { exit, failed: 1, done: 0 }
    }

    /// A script would take a tree of which a part is missing for complete, or for wholly failed.
    #[test]
    fn the_class_at_the_end() {
        let report = Report::plain(false, Tasks::default());
        report.done(Done::Directory);
        assert!(report.finish().is_ok());
        report.fail(&failing(Exit::Permission));
        assert_eq!(report.finish().map_err(|e| e.exit()), Err(Exit::Partial));

        let alone = Report::plain(false, Tasks::default());
        alone.fail(&failing(Exit::Permission));
        alone.fail(&failing(Exit::NotFound));
        assert_eq!(alone.finish().map_err(|e| e.exit()), Err(Exit::Permission));
    }

    /// A tree would go on against a cluster that is gone, or its end would be called partial.
    #[test]
    fn a_fatal_failure_decides() {
        let report = Report::plain(false, Tasks::default());
        report.done(Done::File(5));
        report.fail(&failing(Exit::Permission));
        report.fail(&failing(Exit::Unreachable));
        assert!(report.is_stopped());
        assert_eq!(report.finish().map_err(|e| e.exit()), Err(Exit::Unreachable));
        assert_eq!(report.json_summary(1.0)["failed"], 2);
    }

    /// A command would wait for each of many files that nobody answers for.
    #[tokio::test(start_paused = true)]
    async fn after_a_fatal_failure_nothing_is_waited_for() {
        let report = Report::plain(false, Tasks::default());
        let work = async {
            report.fail(&failing(Exit::Unreachable));
            std::future::pending::<()>().await;
        };
        report.or_stopped(work).await;
        report.or_stopped(std::future::pending()).await;
        assert!(report.is_stopped());
    }

    #[test]
    fn summaries_say_what_was_done() {
        let report = Report::plain(false, Tasks::default());
        report.done(Done::File(2048));
        report.done(Done::Symlink);
        assert_eq!(report.text_summary("stored", 1.0), "stored 1 file, 1 link, 2.0 KiB in 1.0 s");
    }
}
