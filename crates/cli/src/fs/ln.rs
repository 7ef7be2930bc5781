//! `cairn fs ln`: further names of files, and symbolic links.
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::remote::{NamedFor, Target, remote_target};
use cairn_client::{RemotePath, Volume};
use cairn_types::ErrorCode;
use clap::Args;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

#[derive(Args, Debug)]
pub struct LnArgs {
    /// What the link leads to: an existing file; with -s any text
    target: OsString,
    /// The new name, or a directory that exists
    link: OsString,
    /// A symbolic link
    #[arg(short, long)]
    symbolic: bool,
    /// Replace an existing file or link
    #[arg(short, long)]
    force: bool,
}

impl LnArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        let bytes = self.target.as_bytes();
        let name = bytes.rsplit(|b| *b == b'/').find(|part| !part.is_empty()).unwrap_or_default();
        let link = match remote_target(context, &self.link, 1).await? {
            Target::Into(directory) => directory.join(name),
            Target::As(link) => link,
        };
        let volume = context.volume(&link).await?;
        if self.symbolic {
            return self.make_symbolic(&volume, &link).await;
        }
        let existing = context.remote(&self.target)?;
        if !context.same_volume(&existing, &link)? {
            let text = format!("{existing} and {link} are in different volumes; use ln -s, or copy with cairn fs cp");
            return Err(CliError::refused(Exit::Usage, text));
        }
        let made = volume.link(&existing.path, &link.path, self.force).await;
        let Err(error) = made else { return Ok(()) };
        let is_directory = || async {
            let found = volume.stat(&existing.path, false).await;
            found.is_ok_and(|found| crate::mode::is_directory(found.mode))
        };
        if error.code() == Some(ErrorCode::NotPermitted) && is_directory().await {
            let text = format!("{existing} is a directory, which has one name only; make a symbolic link with ln -s");
            return Err(CliError::refused(Exit::WrongKind, text));
        }
        Err(error.named(&format!("a further name {link} of {existing}")).into())
    }

    async fn make_symbolic(&self, volume: &Volume, link: &RemotePath) -> Result<()> {
        match volume.symlink(self.target.as_bytes(), &link.path).await {
            Ok(_) => Ok(()),
            Err(error) if self.force && error.code() == Some(ErrorCode::Exists) => {
                volume.unlink(&link.path).await.map_err(|e| e.named_for(link))?;
                volume.symlink(self.target.as_bytes(), &link.path).await.map_err(|e| e.named_for(link))?;
                Ok(())
            }
            Err(error) => Err(error.named_for(link).into()),
        }
    }
}
