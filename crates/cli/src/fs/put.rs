//! `cairn fs put`: local files and trees, or standard input, into the cluster.
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::fs::layout::check_wish;
use crate::fs::read_flags::HedgeFlags;
use crate::fs::store_flags::{StoreFlags, end};
use crate::remote::{Target, remote_target};
use crate::report::Report;
use crate::transfer::pass::PassFlags;
use crate::transfer::remote_make::{MakeOptions, open_directory};
use crate::transfer::upload::{Source, name_of, upload, upload_stdin};
use clap::Args;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

#[derive(Args, Debug)]
#[command(
    after_help = "Directories are stored with all that is in them. Into a remote directory that exists, each source \
    goes under its own name; else the one source becomes TARGET. Modes, times of change and symbolic links are kept; a \
    link given as SOURCE stands for what it leads to. A file appears under its name when it is complete and synced."
)]
#[command(override_usage = "cairn fs put [OPTIONS] <SOURCE>... <TARGET>")]
pub struct PutArgs {
    /// Local files and directories (- is standard input), then the remote target
    #[arg(required = true, num_args = 2.., value_names = ["SOURCE", "TARGET"])]
    paths: Vec<OsString>,
    /// For those used to `cp -r`: a directory goes with all that is in it, with or without this
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    #[command(flatten)]
    hedge: HedgeFlags,
    #[command(flatten)]
    flags: StoreFlags,
    #[command(flatten)]
    pass: PassFlags,
}

impl PutArgs {
    pub async fn run(mut self, context: &Context) -> Result<()> {
        let Some(last) = self.paths.pop() else { return Ok(()) };
        self.hedge.apply(context);
        let options = self.flags.options()?;
        let started = Instant::now();
        let report = Arc::new(context.report("storing", self.bytes_known()).passing(self.pass.pass()?));
        if self.paths.iter().any(|path| path == "-") {
            self.put_stdin(context, &last, options, &report).await?;
        } else {
            self.put_paths(context, &last, options, &report).await?;
        }
        end(context, &report, "stored", started)
    }

    /// The size of the only file.
    fn bytes_known(&self) -> Option<u64> {
        let [path] = &self.paths[..] else { return None };
        std::fs::metadata(path).ok().filter(|found| found.is_file()).map(|found| found.len())
    }

    async fn put_stdin(&self, context: &Context, last: &OsString, options: MakeOptions, report: &Report) -> Result<()> {
        if self.paths.len() > 1 {
            return Err(CliError::usage("- (standard input) goes alone: put - /dir/file"));
        }
        if options.replace.update {
            return Err(CliError::usage("standard input has no time of change to compare: put - without --update"));
        }
        match remote_target(context, last, 1).await? {
            Target::Into(at) => {
                let example = at.join(b"name");
                let text =
                    format!("{at} is a directory, and standard input has no name; name the file, such as {example}");
                Err(CliError::refused(Exit::WrongKind, text))
            }
            Target::As(at) => {
                check_wish(context, &at, options.layout).await?;
                upload_stdin(context, &at, options, report).await
            }
        }
    }

    async fn put_paths(
        &self,
        context: &Context,
        last: &OsString,
        options: MakeOptions,
        report: &Arc<Report>,
    ) -> Result<()> {
        let locals: Vec<PathBuf> = self.paths.iter().map(PathBuf::from).collect();
        let target = remote_target(context, last, locals.len()).await?;
        let (into, sources) = match target {
            Target::Into(at) => {
                let source = |local: PathBuf| Source { name: name_of(&local), local };
                (at, locals.into_iter().map(source).collect())
            }
            Target::As(at) => {
                let sources: Vec<Source> =
                    locals.into_iter().map(|local| Source { local, name: Some(at.name().to_vec()) }).collect();
                (at.parent(), sources)
            }
        };
        check_locals(&sources)?;
        check_wish(context, &into, options.layout).await?;
        let (volume, ready) = open_directory(context, &into).await?;
        let client = context.client_of(into.cluster.as_deref()).await?;
        upload((&client, &volume), into, ready, sources, options, report.clone()).await;
        Ok(())
    }
}

/// A single source that does not exist fails before anything is asked of the cluster.
fn check_locals(sources: &[Source]) -> Result<()> {
    if let [source] = sources {
        let path: &Path = &source.local;
        std::fs::metadata(path).map_err(|error| CliError::local(path, "looking at it", error))?;
    }
    Ok(())
}
