//! Directories and symbolic links at the remote end of a copy, and the options that files get there.
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::mode::is_directory;
use crate::remote::NamedFor;
use crate::report::{Done, Report};
use crate::transfer::Overwrite;
use crate::transfer::remote_dir::{DirShared, Ready, RemoteDir};
use crate::transfer::replace::{New, ReplaceOptions, stored_time};
use cairn_client::attributes::Attributes;
use cairn_client::changes::{SetAttributes, SetTime};
use cairn_client::{RemotePath, Volume, WriteOptions};
use cairn_env::{FastRng, Rng};
use cairn_types::{ErrorCode, Layout};
use std::sync::{Arc, LazyLock};

static RNG: LazyLock<FastRng> = LazyLock::new(FastRng::from_os);

/// Attributes of a source that its copy gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Permission bits.
    pub mode: u32,
    pub atime_ns: i64,
    pub mtime_ns: i64,
    pub owner: (u32, u32),
}

/// Choices for everything that a copy makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MakeOptions {
    /// Of new files and directories; without it that of the directory above.
    pub layout: Option<Layout>,
    pub replace: ReplaceOptions,
    /// Owners too.
    pub owner: bool,
    /// Read everything again and compare.
    pub checksum: bool,
}

/// How making one thing ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    Done(Done),
    /// It was there, and is to be kept.
    Kept,
    /// Its directory could not be made, which was reported.
    NoDirectory,
}

impl Made {
    /// Counts the outcome, or shows the failure.
    pub fn settle(result: Result<Made>, report: &Report) {
        match result {
            Ok(Self::Done(done)) => report.done(done),
            Ok(Self::Kept) => report.skipped(),
            Ok(Self::NoDirectory) => {}
            Err(error) => report.fail(&error),
        }
    }
}

impl MakeOptions {
    /// For a file in the directory.
    pub fn write_options(&self, ready: &Ready, meta: &Meta) -> WriteOptions {
        WriteOptions {
            mode: meta.mode & if self.owner { 0o7777 } else { 0o777 },
            mtime_ns: stored_time(meta.mtime_ns),
            layout: self.layout.unwrap_or(ready.layout),
            exclusive: self.replace.overwrite == Overwrite::Keep,
            owner: self.owner.then_some(meta.owner),
        }
    }
    /// The mode of a directory. Without its owner it belongs to whoever makes it, who gives nobody his rights with it.
    fn directory_mode(&self, meta: &Meta) -> u32 {
        meta.mode & if self.owner { 0o7777 } else { 0o1777 }
    }
    fn last(&self, meta: &Meta, made_mode: u32) -> SetAttributes {
        let owner = self.owner.then_some(meta.owner);
        SetAttributes {
            mode: Some(self.directory_mode(meta)).filter(|mode| made_mode & 0o7777 != *mode),
            uid: owner.map(|(uid, _)| uid),
            gid: owner.map(|(_, gid)| gid),
            atime: Some(SetTime::At(meta.atime_ns)),
            mtime: Some(SetTime::At(meta.mtime_ns)),
            ..SetAttributes::default()
        }
    }
}

/// A directory that exists, as a target.
pub fn ready_of(at: &RemotePath, attributes: &Attributes, is_new: bool) -> Result<Ready> {
    let layout = Layout::from_bits(attributes.layout).ok_or_else(|| {
        let bits = attributes.layout;
        CliError::BadLayout(format!("{at}: its layout 0x{bits:x} is not known to this version; give --layout"))
    })?;
    Ok(Ready { inode: attributes.inode, layout, is_new })
}

/// The directory that everything goes into; it has to be there.
pub async fn open_directory(context: &Context, into: &RemotePath) -> Result<(Volume, Ready)> {
    let volume = context.volume(into).await?;
    let found = volume.stat(&into.path, true).await.map_err(|error| match error.is_not_found() {
        true => {
            let text =
                format!("{into}: there is no such directory to store into; make it with cairn fs mkdir -p {into}");
            CliError::refused(Exit::NotFound, text)
        }
        false => error.named_for(into).into(),
    })?;
    if !is_directory(found.mode) {
        let text = format!("{into} is not a directory; check it with cairn fs stat");
        return Err(CliError::refused(Exit::WrongKind, text));
    }
    let ready = ready_of(into, &found, false)?;
    Ok((volume, ready))
}

/// Makes a pending directory, or finds that it is there. Failures are reported, and what was to go into it is left out.
pub async fn make_dir(shared: &DirShared, dir: &Arc<RemoteDir>, meta: &Meta, options: &MakeOptions) {
    match try_make_dir(shared, dir, meta, options).await {
        Ok(Some(ready)) => {
            dir.set_ready(ready);
            if ready.is_new {
                shared.report.done(Done::Directory);
            }
        }
        Ok(None) => dir.set_failed(),
        Err(error) => {
            shared.report.fail(&error);
            dir.set_failed();
        }
    }
}

async fn try_make_dir(
    shared: &DirShared,
    dir: &Arc<RemoteDir>,
    meta: &Meta,
    options: &MakeOptions,
) -> Result<Option<Ready>> {
    let Some(above) = dir.above() else { return Ok(None) };
    let Some(above) = above.ready().await else { return Ok(None) };
    let layout = options.layout.map_or(0, Layout::to_bits);
    // Writable for us as long as we put things into it.
    let mode = options.directory_mode(meta) | 0o700;
    match shared.volume.mkdir_at(above.inode, dir.at.name(), &dir.at.path, mode, layout).await {
        Ok(made) => {
            dir.set_last(options.last(meta, made.mode));
            ready_of(&dir.at, &made, true).map(Some)
        }
        Err(error) if error.code() == Some(ErrorCode::Exists) => {
            let found = shared.volume.stat(&dir.at.path, true).await.map_err(|e| e.named_for(&dir.at))?;
            if !is_directory(found.mode) {
                let text = format!("{} exists and is no directory; remove it, or copy to another name", dir.at);
                return Err(CliError::refused(Exit::WrongKind, text));
            }
            ready_of(&dir.at, &found, false).map(Some)
        }
        Err(error) => Err(error.named_for(&dir.at).into()),
    }
}

/// Makes a symbolic link in the directory.
pub async fn make_symlink(
    shared: &DirShared,
    dir: &RemoteDir,
    at: &RemotePath,
    target: &[u8],
    meta: &Meta,
    options: &MakeOptions,
) -> Result<Made> {
    let Some(ready) = dir.ready().await else { return Ok(Made::NoDirectory) };
    let made = match shared.volume.symlink_at(ready.inode, at.name(), &at.path, target).await {
        Err(error) if error.code() == Some(ErrorCode::Exists) => {
            let new = New::Link(target);
            if options.replace.overwrite == Overwrite::Keep || !shared.replacing.may_store(&ready, at, new).await? {
                return Ok(Made::Kept);
            }
            replace_by_symlink(shared, ready, at, target).await?
        }
        result => result.map_err(|e| e.named_for(at))?.attributes,
    };
    if options.owner {
        let set = SetAttributes { mode: None, ..options.last(meta, meta.mode) };
        shared.volume.setattr(made.inode, &at.path, set).await.map_err(|e| e.named_for(at))?;
    }
    Ok(Made::Done(Done::Symlink))
}

/// Under another name first, then moved over what is there: the name never leads to nothing.
async fn replace_by_symlink(shared: &DirShared, ready: Ready, at: &RemotePath, target: &[u8]) -> Result<Attributes> {
    let name = at.name();
    let mut temp = b".".to_vec();
    temp.extend_from_slice(&name[..name.len().min(200)]);
    temp.extend_from_slice(format!(".cairn-{:08x}", RNG.u64() as u32).as_bytes());
    let temp = at.parent().join(&temp);
    let made = shared.volume.symlink_at(ready.inode, temp.name(), &temp.path, target).await;
    let made = made.map_err(|e| e.named_for(at))?.attributes;
    match shared.replacing.move_over(&temp, at).await {
        Ok(replaced) => {
            if replaced {
                shared.report.replaced();
            }
            Ok(made)
        }
        Err(error) => {
            // What could not be moved is not left behind, unless it is what was there by now; if that fails too, the
            // first error tells more.
            let is_link = shared.volume.try_stat(&temp.path, false).await;
            if is_link.is_ok_and(|there| there.is_some_and(|there| there.inode == made.inode)) {
                drop(shared.volume.unlink_at(ready.inode, temp.name(), &temp.path).await);
            }
            Err(error)
        }
    }
}
