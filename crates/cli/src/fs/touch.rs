//! `cairn fs touch`: empty files that do not exist yet, times of those that do.
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::human::parse_time;
use crate::mode::TYPE_REGULAR;
use crate::remote::{NamedFor, find};
use crate::report::Done;
use cairn_wire::meta::{CreateRequest, SetattrRequest};
use clap::Args;
use std::ffi::{OsStr, OsString};

const ATIME: u32 = 1 << 4;
const MTIME: u32 = 1 << 5;
const ATIME_NOW: u32 = 1 << 6;
const MTIME_NOW: u32 = 1 << 7;

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
    async fn times(&self, context: &Context) -> Result<Option<(u64, u64)>> {
        if let Some(text) = &self.date {
            let time = parse_time(text).map_err(CliError::usage)?;
            return Ok(Some((time, time)));
        }
        let Some(reference) = &self.reference else { return Ok(None) };
        let found = find(context, context.remote(reference)?, true).await?;
        Ok(Some((found.attributes.atime_ns, found.attributes.mtime_ns)))
    }

    async fn touch(&self, context: &Context, text: &OsStr, times: Option<(u64, u64)>) -> Result<()> {
        let at = context.remote(text)?;
        let volume = context.volume(&at).await?;
        let found = volume.try_stat(&at.path, true).await.map_err(|e| e.named_for(&at))?;
        let attributes = match found {
            Some(found) => found,
            None if self.no_create => return Ok(()),
            None => {
                let request = CreateRequest { mode: TYPE_REGULAR | 0o666 & !context.umask, ..Default::default() };
                let made = volume.create(&at.path, request).await.map_err(|e| e.named_for(&at))?;
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
        let mut request = SetattrRequest::default();
        let mut set = |wanted: bool, at: u32, now: u32| {
            if wanted {
                request.valid |= if times.is_some() { at } else { now };
            }
        };
        set(access, ATIME, ATIME_NOW);
        set(modification, MTIME, MTIME_NOW);
        (request.atime_ns, request.mtime_ns) = times.unwrap_or_default();
        volume.setattr(attributes.inode, &at.path, request).await.map_err(|e| e.named_for(&at))?;
        Ok(())
    }
}
