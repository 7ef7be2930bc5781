//! `cairn fs mv`: atomic moves within a volume.
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::mode::is_directory;
use crate::remote::{NamedFor, Target, expand_all, remote_target};
use crate::report::{Done, Report};
use crate::transfer::Overwrite;
use crate::transfer::replace::{ReplaceOptions, Replacing};
use cairn_client::{RemotePath, RenameMode, Volume};
use clap::Args;
use std::ffi::OsString;

#[derive(Args, Debug)]
#[command(override_usage = "cairn fs mv [OPTIONS] <SOURCE>... <TARGET>")]
pub struct MvArgs {
    /// Sources (paths or patterns), then the target: a directory that exists, or the new name of the one source
    #[arg(required = true, num_args = 2.., value_names = ["SOURCE", "TARGET"])]
    paths: Vec<OsString>,
    /// Refuse to replace what exists
    #[arg(short, long)]
    no_clobber: bool,
    /// Ask before a file is replaced
    #[arg(short, long, conflicts_with_all = ["no_clobber", "exchange"])]
    interactive: bool,
    /// What is replaced is removed for good, not moved to the trash
    #[arg(long)]
    skip_trash: bool,
    /// Swap source and target; both have to exist
    #[arg(long, conflicts_with = "no_clobber")]
    exchange: bool,
}

/// A rename of a file to another of its own names does nothing, by POSIX; who asks for it expects one name to go.
async fn check_not_same(volume: &Volume, from: &RemotePath, to: &RemotePath) -> Result<()> {
    let source = volume.stat(&from.path, false).await.map_err(|error| error.named_for(from))?;
    let there = volume.try_stat(&to.path, false).await.map_err(|error| error.named_for(to))?;
    if there.is_none_or(|there| there.inode != source.inode) {
        return Ok(());
    }
    let text = format!("{from} and {to} are the same file; nothing was done, remove one name with cairn fs rm");
    Err(CliError::refused(Exit::Usage, text))
}

impl MvArgs {
    pub async fn run(mut self, context: &Context) -> Result<()> {
        let Some(last) = self.paths.pop() else { return Ok(()) };
        let options = ReplaceOptions {
            overwrite: Overwrite::Replace,
            update: false,
            ask: self.interactive,
            skip_trash: self.skip_trash,
        };
        options.check()?;
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
            match self.rename(context, &source.at, &to, mode, options, &report).await {
                Ok(true) => report.done(Done::File(0)),
                Ok(false) => report.skipped(),
                Err(error) => report.fail(&error),
            }
        }
        let replaced = report.replacements();
        if replaced > 0 && !context.args.quiet && !context.args.json {
            let (files, where_to) = (
                if replaced == 1 { "file" } else { "files" },
                if self.skip_trash { "" } else { "; cairn fs trash has what is kept" },
            );
            report.warn(&format!("{replaced} {files} replaced{where_to}"));
        }
        report.finish()
    }

    /// False: it was asked, and the answer was no.
    async fn rename(
        &self,
        context: &Context,
        from: &RemotePath,
        to: &RemotePath,
        mode: RenameMode,
        options: ReplaceOptions,
        report: &Report,
    ) -> Result<bool> {
        if !context.same_volume(from, to)? {
            let text =
                format!("{from} and {to} are in different volumes; copy with cairn fs cp -r, then remove the source");
            return Err(CliError::refused(Exit::Usage, text));
        }
        let volume = context.volume(from).await?;
        if mode != RenameMode::Exchange {
            check_not_same(&volume, from, to).await?;
        }
        if mode == RenameMode::Replace {
            let client = context.client_of(from.cluster.as_deref()).await?;
            let replacing = Replacing::new(options, client, volume.clone());
            let there = volume.try_stat(&to.path, false).await.map_err(|error| error.named_for(to))?;
            if self.interactive && there.is_some_and(|there| !is_directory(there.mode)) && !replacing.ask(to).await? {
                return Ok(false);
            }
            if replacing.move_over(from, to).await? {
                report.replaced();
            }
            return Ok(true);
        }
        volume.rename(&from.path, &to.path, mode).await.map_err(|error| match error.code() {
            Some(cairn_types::ErrorCode::Exists | cairn_types::ErrorCode::NotEmpty) => error.named_for(to).into(),
            _ => CliError::from(error.named(&format!("{from} to {to}"))),
        })?;
        Ok(true)
    }
}
