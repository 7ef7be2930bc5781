//! `cairn fs touch`: empty files that do not exist yet, times of those that do.
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::human::parse_time;
use crate::mode::TYPE_REGULAR;
use crate::remote::{NamedFor, find};
use crate::report::Done;
use cairn_client::changes::{NewFile, SetAttributes, SetTime};
use clap::Args;
use std::ffi::{OsStr, OsString};

#[derive(Args, Debug)]
pub struct TouchArgs {
    /// Remote files
    #[arg(required = true)]
    paths: Vec<OsString>,
    /// Make nothing
    #[arg(short = 'c', long)]
    no_create: bool,
    /// The time of the last access only
    #[arg(short)]
    access: bool,
    /// The time of the last change only
    #[arg(short)]
    modification: bool,
    /// This time instead of now: @SECONDS, YYYY-MM-DD or YYYY-MM-DDTHH:MM:SS (UTC)
    #[arg(short, long)]
    date: Option<String>,
    /// The times of this remote file instead of now
    #[arg(short, long, conflicts_with = "date")]
    reference: Option<OsString>,
}

impl TouchArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        let times = self.times(context).await?;
        let report = context.plain_report();
        for text in &self.paths {
            match self.touch(context, text, times).await {
                Ok(()) => report.done(Done::File(0)),
                Err(error) => report.fail(&error),
            }
        }
        report.finish()
    }

    /// (atime, mtime); `None`: now.
    async fn times(&self, context: &Context) -> Result<Option<(i64, i64)>> {
        if let Some(text) = &self.date {
            let time = parse_time(text).map_err(CliError::usage)? as i64;
            return Ok(Some((time, time)));
        }
        let Some(reference) = &self.reference else { return Ok(None) };
        let found = find(context, context.remote(reference)?, true).await?;
        Ok(Some((found.attributes.atime_ns, found.attributes.mtime_ns)))
    }

    async fn touch(&self, context: &Context, text: &OsStr, times: Option<(i64, i64)>) -> Result<()> {
        let at = context.remote(text)?;
        let volume = context.volume(&at).await?;
        let found = volume.try_stat(&at.path, true).await.map_err(|e| e.named_for(&at))?;
        let attributes = match found {
            Some(found) => found,
            None if self.no_create => return Ok(()),
            None => {
                let new = NewFile { mode: TYPE_REGULAR | 0o666 & !context.umask, ..NewFile::default() };
                let made = volume.create(&at.path, new).await.map_err(|e| e.named_for(&at))?;
                if times.is_none() {
                    return Ok(());
                }
                made
            }
        };
        let (access, modification) = match (self.access, self.modification) {
            (false, false) => (true, true),
            chosen => chosen,
        };
        let (atime, mtime) = match times {
            Some((atime, mtime)) => (SetTime::At(atime), SetTime::At(mtime)),
            None => (SetTime::Now, SetTime::Now),
        };
        let (atime, mtime) = (access.then_some(atime), modification.then_some(mtime));
        let set = SetAttributes { atime, mtime, ..SetAttributes::default() };
        volume.setattr(attributes.inode, &at.path, set).await.map_err(|e| e.named_for(&at))?;
        Ok(())
    }
}
