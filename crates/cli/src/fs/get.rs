//! `cairn fs get`: remote files and trees into the local file system, or a file to standard output.
use crate::context::Context;
use crate::error::Result;
use crate::exit::Exit;
use crate::fs::cat;
use crate::fs::read_flags::ReadFlags;
use crate::fs::store_flags::{end, overwrite};
use crate::remote::{Found, Target, TargetKind, expand_all, place};
use crate::transfer::download::{Fetch, FetchOptions, check_parent, download};
use crate::transfer::pass::PassFlags;
use clap::Args;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

#[derive(Args, Debug)]
#[command(
    after_help = "Directories are fetched with all that is in them. Into a local directory that exists, each source \
    goes under its own name; else the one source becomes TARGET. Modes, times, symbolic links and holes are kept. A file \
    is written as .NAME.cairn-XXXXXXXX beside its final name and renamed when it is complete."
)]
#[command(override_usage = "cairn fs get [OPTIONS] <SOURCE>... <TARGET>")]
pub struct GetArgs {
    /// Remote files, directories or patterns, then the local target (- is standard output)
    #[arg(required = true, num_args = 2.., value_names = ["SOURCE", "TARGET"])]
    paths: Vec<OsString>,
    /// For those used to `cp -r`: a directory goes with all that is in it, with or without this
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// Leave what exists as it is, instead of replacing it
    #[arg(short, long)]
    no_clobber: bool,
    /// Keep owner and group too (root only)
    #[arg(short, long)]
    preserve: bool,
    /// Wait until each file is on stable storage
    #[arg(long)]
    sync: bool,
    /// Read each file again from the local disk and compare it with what was received
    #[arg(short, long)]
    checksum: bool,
    #[command(flatten)]
    read: ReadFlags,
    #[command(flatten)]
    pass: PassFlags,
}

impl GetArgs {
    pub async fn run(mut self, context: &Context) -> Result<()> {
        self.read.apply(context);
        let Some(last) = self.paths.pop() else { return Ok(()) };
        let started = Instant::now();
        if last == "-" {
            return self.to_stdout(context).await;
        }
        let report = Arc::new(context.report("fetching", None).passing(self.pass.pass()?));
        let found = expand_all(context, &self.paths, true, &report).await;
        if !found.is_empty() {
            let fetches = plan(found, &last, self.paths.len())?;
            download(fetches, self.options(), report.clone()).await;
        }
        end(context, &report, "fetched", started)
    }

    fn options(&self) -> FetchOptions {
        FetchOptions {
            overwrite: overwrite(self.no_clobber),
            owner: self.preserve,
            sync: self.sync,
            checksum: self.checksum,
        }
    }

    async fn to_stdout(&self, context: &Context) -> Result<()> {
        let report = context.plain_report();
        for found in expand_all(context, &self.paths, true, &report).await {
            match cat::print(context, &found, 0, u64::MAX).await {
                Ok(bytes) => report.done(crate::report::Done::File(bytes)),
                Err(error) if error.exit() == Exit::BrokenPipe => return Err(error),
                Err(error) => report.fail(&error),
            }
        }
        report.finish()
    }
}

/// Which local path each source becomes.
fn plan(found: Vec<Found>, target: &OsStr, operands: usize) -> Result<Vec<Fetch>> {
    let kind = match std::fs::metadata(target) {
        Ok(meta) if meta.is_dir() => TargetKind::Directory,
        Ok(_) => TargetKind::Other,
        // A file with a slash behind its name.
        Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => TargetKind::Other,
        Err(_) => TargetKind::Missing,
    };
    let slash = target.as_bytes().ends_with(b"/");
    let shown = target.to_string_lossy().into_owned();
    let path = PathBuf::from(target);
    if kind == TargetKind::Missing && !slash && found.len() == 1 {
        check_parent(&path)?;
    }
    let placed = place(path, &shown, kind, slash, found.len().max(operands))?;
    Ok(found.into_iter().map(|found| Fetch { target: local_target(&placed, found.at.name()), found }).collect())
}

fn local_target(placed: &Target<PathBuf>, name: &[u8]) -> PathBuf {
    match placed {
        Target::As(path) => path.clone(),
        // The root has no name: what is in it goes right into the target.
        Target::Into(directory) if name.is_empty() => directory.clone(),
        Target::Into(directory) => Path::new(directory).join(OsStr::from_bytes(name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree would be fetched beside where cp puts it.
    #[test]
    fn local_targets() {
        let into = Target::Into(PathBuf::from("d"));
        assert_eq!(local_target(&into, b"x"), Path::new("d/x"));
        assert_eq!(local_target(&into, b""), Path::new("d"));
        assert_eq!(local_target(&Target::As(PathBuf::from("new")), b"x"), Path::new("new"));
    }
}
