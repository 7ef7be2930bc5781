//! [`Replacing`]: what becomes of files that stand where a copy puts one: kept, asked about, or replaced and moved to
//! the trash.
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::fs::trash::trash_with;
use crate::mode::{is_directory, is_regular, is_symlink};
use crate::output::printable;
use crate::remote::NamedFor;
use crate::report::Report;
use crate::transfer::Overwrite;
use crate::transfer::remote_dir::Ready;
use cairn_client::attributes::Attributes;
use cairn_client::trash::{Swapped, Trash, beside};
use cairn_client::{Client, FileWriter, RemotePath, RenameMode, Volume};
use cairn_types::ErrorCode;
use std::io::{BufRead, IsTerminal, Write};
use tokio::sync::{Mutex, OnceCell};

/// What is to become of files that are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplaceOptions {
    pub overwrite: Overwrite,
    /// Files of the same size and time of change, and links to the same, stay.
    pub update: bool,
    /// Ask before each.
    pub ask: bool,
    /// What is replaced goes for good.
    pub skip_trash: bool,
}

impl ReplaceOptions {
    /// Whoever is to be asked has to be there.
    pub fn check(&self) -> Result<()> {
        match self.ask && !std::io::stdin().is_terminal() {
            true => Err(CliError::usage(
                "-i asks before it replaces a file, and standard input is no terminal; use -n to keep files that exist, or neither to \
                 replace them",
            )),
            false => Ok(()),
        }
    }
}

/// What is to be put somewhere.
#[derive(Clone, Copy, Debug)]
pub enum New<'a> {
    File { size: u64, mtime_ns: i64 },
    Link(&'a [u8]),
}

/// The time of change that a file gets: 0 means "now" on the wire.
pub fn stored_time(mtime_ns: i64) -> i64 {
    if mtime_ns == 0 { 1 } else { mtime_ns }
}

/// For the targets of one volume.
pub struct Replacing {
    options: ReplaceOptions,
    client: Client,
    volume: Volume,
    trash: OnceCell<Trash>,
    /// One question at a time.
    asking: Mutex<()>,
}

impl Replacing {
    pub fn new(options: ReplaceOptions, client: Client, volume: Volume) -> Self {
        Self { options, client, volume, trash: OnceCell::new(), asking: Mutex::default() }
    }

    /// Files that are there already as they are to be stay, so contents are read only of those that are not.
    pub fn is_update(&self) -> bool {
        self.options.update
    }

    /// Whether something may be put there; to be asked before bytes are sent.
    pub async fn may_store(&self, ready: &Ready, at: &RemotePath, new: New<'_>) -> Result<bool> {
        let replaces = self.options.overwrite == Overwrite::Replace;
        if replaces && !self.options.ask && !self.options.update || ready.is_new {
            return Ok(true);
        }
        let found = match self.volume.lookup(ready.inode, at.name(), &at.path).await {
            Ok(found) => found,
            Err(error) if error.is_not_found() => return Ok(true),
            Err(error) => return Err(error.named_for(at).into()),
        };
        if self.options.update && self.is_there(&found, at, new).await? {
            return Ok(false);
        }
        if replaces && !self.options.ask {
            return Ok(true);
        }
        // A directory is not replaced: that is an error, and no question.
        Ok(self.options.ask && (is_directory(found.mode) || self.ask(at).await?))
    }

    async fn is_there(&self, found: &Attributes, at: &RemotePath, new: New<'_>) -> Result<bool> {
        match new {
            New::File { size, mtime_ns } => {
                Ok(is_regular(found.mode) && found.size == size && found.mtime_ns == stored_time(mtime_ns))
            }
            New::Link(target) if is_symlink(found.mode) => {
                let there = self.volume.readlink_inode(found.inode, &at.path).await;
                Ok(there.map_err(|error| error.named_for(at))? == target)
            }
            New::Link(_) => Ok(false),
        }
    }

    /// Asks a person. What is no clear yes is a no.
    pub async fn ask(&self, at: &RemotePath) -> Result<bool> {
        let _turn = self.asking.lock().await;
        let question = printable(&format!("cairn: replace {at}? [y/N] "), false);
        let answer = tokio::task::spawn_blocking(move || {
            let mut stderr = std::io::stderr();
            write!(stderr, "{question}")?;
            stderr.flush()?;
            let mut line = String::new();
            std::io::stdin().lock().read_line(&mut line)?;
            Ok::<String, std::io::Error>(line)
        });
        let failed = |text: String| CliError::refused(Exit::Other, format!("{at}: asking: {text}"));
        let line =
            answer.await.map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.to_string()))?;
        Ok(matches!(line.trim().to_lowercase().as_str(), "y" | "yes"))
    }

    /// Gives a file its name; `None`: there is one that is to be kept.
    pub async fn finish(&self, writer: FileWriter, at: &RemotePath, report: &Report) -> Result<Option<Attributes>> {
        if self.options.overwrite == Overwrite::Keep {
            return match writer.finish().await {
                Err(error) if error.code() == Some(ErrorCode::Exists) => Ok(None),
                made => Ok(Some(made.map_err(|error| error.named_for(at))?)),
            };
        }
        let (made, replaced) = writer.finish_keeping(self.trash().await?).await.map_err(|error| named(at, error))?;
        if replaced {
            report.replaced();
        }
        Ok(Some(made))
    }

    /// Moves something that is ready over what is there, which goes to the trash. False: nothing was there.
    pub async fn move_over(&self, from: &RemotePath, to: &RemotePath) -> Result<bool> {
        let volume = &self.volume;
        let there = volume.try_stat(&to.path, false).await.map_err(|error| error.named_for(to))?;
        let source = volume.stat(&from.path, false).await.map_err(|error| error.named_for(from))?;
        // Of directories only empty ones are replaced.
        let is_kept = there.is_some_and(|there| !is_directory(there.mode) && !is_directory(source.mode));
        let place = match self.trash().await?.filter(|_| is_kept) {
            Some(trash) => trash.place(&to.path).await.map_err(|error| named(to, error))?.map(|place| (trash, place)),
            None => None,
        };
        let Some((trash, place)) = place else {
            volume
                .rename(&from.path, &to.path, RenameMode::Replace)
                .await
                .map_err(|error| renaming(from, to, error))?;
            return Ok(there.is_some());
        };
        let is_far = trash.is_far(&to.path).await.map_err(|error| named(to, error))?;
        // The source never has the name of what it replaces: whoever repeats this after an interruption would undo it.
        let new = if is_far { beside(&to.path, source.inode) } else { place.clone() };
        if let Err(error) = volume.rename(&from.path, &new, RenameMode::NoReplace).await {
            trash.give_back(&place).await;
            return Err(renaming(from, to, error));
        }
        let swapped = match is_far {
            true => trash.swap_beside(&new, &to.path, &place).await.map_err(|error| renaming(from, to, error))?,
            false => trash.swap(&new, &to.path).await.map_or_else(Swapped::Refused, |()| Swapped::Done),
        };
        if let Swapped::Refused(error) = swapped {
            if volume.rename(&new, &from.path, RenameMode::NoReplace).await.is_ok() {
                trash.give_back(&place).await;
                return Err(renaming(from, to, error));
            }
            let at = printable(&String::from_utf8_lossy(&new), false);
            let text =
                format!("{from} was not moved to {to} ({error}): it is at {at} now; `cairn fs mv` it from there");
            return Err(CliError::refused(Exit::Other, text));
        }
        Ok(true)
    }

    /// `None`: what is replaced goes for good.
    async fn trash(&self) -> Result<Option<&Trash>> {
        if self.options.skip_trash {
            return Ok(None);
        }
        self.trash.get_or_try_init(|| trash_with(&self.client, &self.volume)).await.map(Some)
    }
}

fn renaming(from: &RemotePath, to: &RemotePath, error: cairn_client::ClientError) -> CliError {
    match error.code() {
        Some(ErrorCode::Exists | ErrorCode::NotEmpty) => error.named_for(to).into(),
        _ => error.named(&format!("{from} to {to}")).into(),
    }
}

/// With what helps where the trash is what refuses.
fn named(at: &RemotePath, error: cairn_client::ClientError) -> CliError {
    match error.is_of_trash() {
        true => {
            let exit = match error.code() {
                Some(ErrorCode::QuotaExceeded | ErrorCode::NoSpace) => Exit::NoSpace,
                Some(ErrorCode::PermissionDenied) => Exit::Permission,
                _ => return error.named_for(at).into(),
            };
            let text = format!(
                "{at}: what is there cannot be moved to the trash ({error}); --skip-trash replaces it for good"
            );
            CliError::refused(exit, text)
        }
        false => error.named_for(at).into(),
    }
}
