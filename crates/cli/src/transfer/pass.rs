//! [`Pass`]: which entries of trees a copy takes, and how fast bytes go: `--include`, `--exclude`, `--limit-rate` of
//! `put`, `get` and `cp`.
use crate::error::{CliError, Result};
use crate::glob;
use crate::human::parse_size;
use clap::Args;
use parking_lot::Mutex;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A command that was paused, or waited for others, does not make up for more than this.
const BURST: Duration = Duration::from_millis(200);

#[derive(Args, Debug, Default)]
pub struct PassFlags {
    /// Within directories, take only files whose name matches this pattern; can be given several times
    #[arg(long, value_name = "PATTERN")]
    include: Vec<OsString>,
    /// Within directories, leave out what has a name that matches this pattern, directories with all below; can be
    /// given several times
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<OsString>,
    /// Most bytes a second, such as 50m
    #[arg(long, value_name = "BYTES")]
    limit_rate: Option<String>,
}

impl PassFlags {
    pub fn pass(&self) -> Result<Pass> {
        let rate = self.limit_rate.as_deref().map(parse_size).transpose().map_err(CliError::usage)?;
        if rate == Some(0) {
            return Err(CliError::usage("--limit-rate 0 would never end; leave the option out for no limit"));
        }
        let bytes = |patterns: &[OsString]| patterns.iter().map(|pattern| pattern.as_bytes().to_vec()).collect();
        let rate = rate.map(|rate| Arc::new(Pace { rate, free: Mutex::new(None) }));
        Ok(Pass { include: bytes(&self.include), exclude: bytes(&self.exclude), rate })
    }
}

/// What a copy takes. Operands themselves are always taken.
#[derive(Clone, Default)]
pub struct Pass {
    include: Vec<Vec<u8>>,
    exclude: Vec<Vec<u8>>,
    rate: Option<Arc<Pace>>,
}

impl Pass {
    /// Whether an entry of a directory is taken.
    pub fn takes(&self, name: &[u8], is_directory: bool) -> bool {
        let one_of = |patterns: &[Vec<u8>]| patterns.iter().any(|pattern| glob::matches_any(pattern, name));
        !one_of(&self.exclude) && (is_directory || self.include.is_empty() || one_of(&self.include))
    }
    /// Waits until so many bytes more may go.
    pub async fn pace(&self, bytes: u64) {
        if let Some(pace) = &self.rate {
            tokio::time::sleep(pace.take(bytes, Instant::now())).await;
        }
    }
}

/// A rate that all tasks of a command share: each takes the next stretch of time.
struct Pace {
    /// Bytes a second.
    rate: u64,
    /// When what was taken so far is through.
    free: Mutex<Option<Instant>>,
}

impl Pace {
    /// How long to wait until so many bytes may go.
    fn take(&self, bytes: u64, now: Instant) -> Duration {
        let mut free = self.free.lock();
        let begin = free.map_or(now, |free| free.max(now.checked_sub(BURST).unwrap_or(now)));
        let end = begin + Duration::from_secs_f64(bytes as f64 / self.rate as f64);
        *free = Some(end);
        begin.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(include: &[&str], exclude: &[&str]) -> Pass {
        let owned = |patterns: &[&str]| patterns.iter().map(OsString::from).collect();
        let flags = PassFlags { include: owned(include), exclude: owned(exclude), limit_rate: None };
        flags.pass().expect("flags")
    }

    /// Files would be left out that were asked for, or come along that were not.
    #[test]
    fn names_decide_what_is_taken() {
        let all = pass(&[], &[]);
        assert!(all.takes(b".hidden", false) && all.takes(b"dir", true));
        let some = pass(&["*.rs", "*.md"], &["target", ".*"]);
        assert!(some.takes(b"main.rs", false) && some.takes(b"README.md", false) && some.takes(b"src", true));
        assert!(!some.takes(b"main.o", false) && !some.takes(b"target", true) && !some.takes(b".hidden.rs", false));
    }

    /// A copy would take the whole network although it was told not to; or a limit would be mistaken for none.
    #[test]
    fn a_rate_is_kept_by_all_tasks_together() {
        let pace = Pace { rate: 1000, free: Mutex::new(None) };
        let now = Instant::now();
        assert_eq!(pace.take(500, now), Duration::ZERO);
        assert_eq!(pace.take(500, now), Duration::from_millis(500));
        assert_eq!(pace.take(500, now), Duration::from_secs(1));
        // After a pause only a little is made up for.
        let later = now + Duration::from_secs(60);
        assert_eq!(pace.take(1000, later), Duration::ZERO);
        assert_eq!(pace.take(1000, later), Duration::from_millis(800));
        let flags = |rate: &str| PassFlags { limit_rate: Some(rate.into()), ..PassFlags::default() }.pass();
        assert!(flags("0").is_err() && flags("fast").is_err() && flags("50m").is_ok());
    }
}
