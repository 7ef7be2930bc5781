//! `cairn fs mkdir`.
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::fs::layout::{check_fits, parse_layout};
use crate::mode::{ModeChange, TYPE_DIRECTORY, is_directory};
use crate::remote::NamedFor;
use crate::report::Done;
use cairn_client::changes::SetAttributes;
use cairn_client::{RemotePath, Volume};
use cairn_types::{ErrorCode, Layout};
use clap::Args;
use std::ffi::OsString;

/// Partitions that an error names.
const SHOWN_MAX: usize = 8;

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
    /// Meta partition of the volume that gets the directory and the files made in it, such as 3; without it the servers
    /// choose
    #[arg(long, value_name = "NUMBER", value_parser = parse_partition)]
    partition: Option<u32>,
}

fn parse_partition(text: &str) -> std::result::Result<u32, String> {
    let number = text.strip_prefix('p').unwrap_or(text).parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| "write its number, such as 3; cairn admin partition ls VOLUME shows them".into())
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
                if let Some(partition) = self.partition {
                    check_is_of(&volume, partition).await?;
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
        let made = volume.mkdir_in(&at.path, mode, layout, self.partition.unwrap_or(0)).await;
        if let (Ok(made), Some(wanted)) = (&made, self.partition) {
            check_is_there(volume.partition_of(made.inode).await?, wanted, at)?;
        }
        match made {
            Ok(made) if self.mode.is_some() && made.mode & 0o7777 != mode => {
                let set = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
                volume.setattr(made.inode, &at.path, set).await.map_err(|e| e.named_for(at))?;
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

/// The volume has the partition.
async fn check_is_of(volume: &Volume, partition: u32) -> Result<()> {
    let mut all = volume.partitions().await?;
    if all.contains(&partition) {
        return Ok(());
    }
    all.sort_unstable();
    let few = all.iter().take(SHOWN_MAX).map(|partition| format!("p{partition}")).collect::<Vec<_>>().join(", ");
    let more = if all.len() > SHOWN_MAX { " and others" } else { "" };
    let text = format!(
        "volume {name} has no partition p{partition}; it has {few}{more} (cairn admin partition ls {name})",
        name = volume.name()
    );
    Err(CliError::refused(crate::exit::Exit::NotFound, text))
}

/// Servers of before do not know where it should be.
fn check_is_there(made: u32, wanted: u32, at: &RemotePath) -> Result<()> {
    if made == wanted {
        return Ok(());
    }
    let text = format!(
        "{at} was made in partition p{made}, not in p{wanted}: the servers are of an earlier version. Upgrade them, remove it (cairn fs rmdir), and \
         repeat"
    );
    Err(CliError::refused(crate::exit::Exit::Partial, text))
}
