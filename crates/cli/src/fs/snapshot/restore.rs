//! `cairn fs snapshot restore`: a file or tree as it was, put back in its place or somewhere else, as a clone that
//! shares its data. What lives is never removed by it: it stays beside, under a name that is said.
use crate::at_snapshot::find_at;
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::fs::clone::{build, own_name};
use crate::fs::store_flags::end;
use crate::human::utc_time;
use crate::output::put_name;
use crate::remote::{NamedFor, Target, remote_target};
use cairn_client::RemotePath;
use clap::Args;
use serde_json::{Map, Value};
use std::ffi::OsString;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

#[derive(Args, Debug)]
#[command(after_help = "What is in its place stays beside it, as NAME.before-restore-TIME.")]
pub struct RestoreArgs {
    /// What to bring back: PATH@SNAPSHOT
    #[arg(value_name = "PATH@SNAPSHOT")]
    source: OsString,
    /// Put it there instead, where nothing may be; or into this directory
    #[arg(long, value_name = "TARGET")]
    to: Option<OsString>,
}

impl RestoreArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        let started = Instant::now();
        let source = find_at(context, &self.source, true).await?;
        let report = Arc::new(context.report("restoring", None));
        if let Some(to) = &self.to {
            let to = match remote_target(context, to, 1).await? {
                Target::Into(directory) => directory.join(own_name(&source)?),
                Target::As(to) => to,
            };
            let hidden = build(context, &source, &to, true, &report).await?;
            hidden.show(context).await?;
            return end(context, &report, "restored", started);
        }
        let to = source.path.clone();
        if to.path == b"/" {
            let text = format!(
                "{to}: the root of a volume cannot be replaced; name what is to be restored, or a place with --to"
            );
            return Err(CliError::usage(text));
        }
        check_parent(&source.found.volume, &to).await?;
        let there = source.found.volume.try_stat(&to.path, false).await.map_err(|error| error.named_for(&to))?;
        let hidden = build(context, &source, &to, false, &report).await?;
        if there.is_none() {
            hidden.show(context).await?;
            return end(context, &report, "restored", started);
        }
        let beside = beside(&to);
        hidden.exchange(context, &beside).await?;
        if context.out.is_json() {
            let mut object = Map::new();
            put_name(&mut object, "path", &to.path);
            put_name(&mut object, "kept_as", &beside.path);
            context.out.json(&Value::Object(object))?;
        } else if !context.args.quiet {
            report.warn(&format!("what was at {to} is at {beside} now; remove it when it is not needed any more"));
        }
        let own = source.snapshot.as_ref().map_or(0, |taken| taken.directory);
        if there.is_some_and(|there| there.inode == own) && !context.args.quiet {
            report.warn(&format!(
                "the snapshots and the schedule of {to} stay with {beside}; the new directory has none of its own yet"
            ));
        }
        end(context, &report, "restored", started)
    }
}

async fn check_parent(volume: &cairn_client::Volume, to: &RemotePath) -> Result<()> {
    let parent = to.parent();
    match volume.try_stat(&parent.path, true).await.map_err(|error| error.named_for(&parent))? {
        Some(_) => Ok(()),
        None => {
            let text =
                format!("{parent}: the directory is not there any more; restore that, or name a place with --to");
            Err(CliError::refused(Exit::NotFound, text))
        }
    }
}

/// A name for what lives, that nothing has.
fn beside(to: &RemotePath) -> RemotePath {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let time = utc_time(now.as_nanos() as u64);
    // Two within a second are refused.
    let time = time.split('.').next().unwrap_or_default();
    to.parent().join(&[to.name(), b".before-restore-", time.as_bytes(), b"Z"].concat())
}
