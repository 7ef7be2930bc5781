//! `cairn fs mv`: atomic moves within a volume.
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::remote::{NamedFor, Target, expand_all, remote_target};
use crate::report::Done;
use cairn_client::{RemotePath, RenameMode};
use clap::Args;
use std::ffi::OsString;

#[derive(Args, Debug)]
pub struct MvArgs {
    /// Sources (paths or patterns), then the target: a directory that exists, or the new name of the one source
    #[arg(required = true, num_args = 2.., value_names = ["SOURCE", "TARGET"])]
    paths: Vec<OsString>,
    /// Refuse to replace what exists
    #[arg(short, long)]
    no_clobber: bool,
    /// Swap source and target; both have to exist
    #[arg(long, conflicts_with = "no_clobber")]
    exchange: bool,
}

impl MvArgs {
    pub async fn run(mut self, context: &Context) -> Result<()> {
        let Some(last) = self.paths.pop() else { return Ok(()) };
        let report = context.plain_report();
        let sources = expand_all(context, &self.paths, false, &report).await;
        if sources.is_empty() {
            return report.finish();
        }
        let target = match self.exchange {
            true => Target::As(context.remote(&last)?),
            false => remote_target(context, &last, sources.len()).await?,
        };
        let mode = match (self.no_clobber, self.exchange) {
            (true, _) => RenameMode::NoReplace,
            (_, true) => RenameMode::Exchange,
            _ => RenameMode::Replace,
        };
        for source in sources {
            let to = match &target {
                Target::Into(directory) => directory.join(source.at.name()),
                Target::As(to) => to.clone(),
            };
            match self.rename(context, &source.at, &to, mode).await {
                Ok(()) => report.done(Done::File(0)),
                Err(error) => report.fail(&error),
            }
        }
        report.finish()
    }

    async fn rename(&self, context: &Context, from: &RemotePath, to: &RemotePath, mode: RenameMode) -> Result<()> {
        if !context.same_volume(from, to)? {
            let text =
                format!("{from} and {to} are in different volumes; copy with cairn fs cp -r, then remove the source");
            return Err(CliError::refused(Exit::Usage, text));
        }
        let volume = context.volume(from).await?;
        volume.rename(&from.path, &to.path, mode).await.map_err(|error| match error.code() {
            Some(cairn_types::ErrorCode::Exists | cairn_types::ErrorCode::NotEmpty) => error.named_for(to).into(),
            _ => error.named(&format!("{from} to {to}")).into(),
        })
    }
}
