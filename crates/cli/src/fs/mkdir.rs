//! `cairn fs mkdir`.
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::fs::layout::{check_fits, parse_layout};
use crate::mode::{ModeChange, TYPE_DIRECTORY, is_directory};
use crate::remote::NamedFor;
use crate::report::Done;
use cairn_client::{RemotePath, Volume};
use cairn_types::{ErrorCode, Layout};
use cairn_wire::meta::SetattrRequest;
use clap::Args;
use std::ffi::OsString;

#[derive(Args, Debug)]
pub struct MkdirArgs {
    /// Remote directories to make
    #[arg(required = true)]
    paths: Vec<OsString>,
    /// Make what is missing above too; an existing directory is fine
    #[arg(short, long)]
    parents: bool,
    /// Permissions, octal or symbolic; without it 777 less the mask
    #[arg(short, long)]
    mode: Option<String>,
    /// Layout that new files in it get; without it that of the directory above
    #[arg(long)]
    layout: Option<String>,
}

impl MkdirArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        let plain = 0o777 & !context.umask;
        let mode = match &self.mode {
            Some(text) => {
                let change = ModeChange::parse(text).map_err(CliError::usage)?;
                change.apply(TYPE_DIRECTORY | 0o777, context.umask)
            }
            None => plain,
        };
        let layout = self.layout.as_deref().map(parse_layout).transpose()?;
        let report = context.plain_report();
        for text in &self.paths {
            let made = async {
                let at = context.remote(text)?;
                let volume = context.volume(&at).await?;
                if let Some(layout) = layout {
                    check_fits(context, &at, volume.id(), layout).await?;
                }
                self.make(&volume, &at, mode, layout.map_or(0, Layout::to_bits), plain).await
            };
            match made.await {
                Ok(()) => report.done(Done::Directory),
                Err(error) => report.fail(&error),
            }
        }
        report.finish()
    }

    async fn make(&self, volume: &Volume, at: &RemotePath, mode: u32, layout: u64, plain: u32) -> Result<()> {
        if self.parents && at.path != b"/" {
            // As in POSIX: what is missing above must be usable for making what is below it.
            volume.mkdir_all(&at.parent().path, plain | 0o300).await.map_err(|e| e.named_for(&at.parent()))?;
        }
        match volume.mkdir(&at.path, mode, layout).await {
            Ok(made) if self.mode.is_some() && made.mode & 0o7777 != mode => {
                let request = SetattrRequest { valid: 1, mode, ..Default::default() };
                volume.setattr(made.inode, &at.path, request).await.map_err(|e| e.named_for(at))?;
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(error) if self.parents => match volume.try_stat(&at.path, true).await {
                Ok(Some(found)) if is_directory(found.mode) => Ok(()),
                _ => Err(error.named_for(at).into()),
            },
            Err(error) if error.is_not_found() => {
                let text = format!("{at}: the directory above it does not exist; mkdir -p makes it too");
                Err(CliError::refused(crate::exit::Exit::NotFound, text))
            }
            Err(error) if error.code() == Some(ErrorCode::Exists) => {
                let text = format!("{at} exists already; mkdir -p accepts that");
                Err(CliError::refused(crate::exit::Exit::Exists, text))
            }
            Err(error) => Err(error.named_for(at).into()),
        }
    }
}
