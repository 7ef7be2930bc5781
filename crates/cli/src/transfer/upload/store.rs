//! Storing one thing: small files in one step, larger ones part by part, links, standard input.
use super::{Item, Upload};
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::mode::is_directory;
use crate::remote::NamedFor;
use crate::report::{Done, Report};
use crate::transfer::local_file::Part;
use crate::transfer::remote_dir::{Ready, RemoteDir};
use crate::transfer::remote_make::{MakeOptions, Meta, make_symlink, ready_of};
use crate::transfer::{Overwrite, digest};
use cairn_client::{FileReader, RemotePath, Volume};
use cairn_env::buf::AlignedBuf;
use cairn_types::ErrorCode;
use cairn_wire::meta::Attributes;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Parts of a large file that are read ahead.
const PARTS_AHEAD: usize = 4;

/// How storing a file ended.
enum Stored {
    Done(u64),
    /// It was there, and is to be kept.
    Kept,
    /// Its directory could not be made, which was reported.
    NoDirectory,
}

fn settle(upload: &Upload, result: Result<Stored>) {
    match result {
        Ok(Stored::Done(bytes)) => upload.report.done(Done::File(bytes)),
        Ok(Stored::Kept) => upload.report.skipped(),
        Ok(Stored::NoDirectory) => {}
        Err(error) => upload.report.fail(&error),
    }
}

pub(super) async fn small(upload: &Upload, item: Item, data: AlignedBuf) {
    let result = try_small(upload, item, data).await;
    settle(upload, result);
}

async fn try_small(upload: &Upload, item: Item, data: AlignedBuf) -> Result<Stored> {
    let Some(ready) = item.dir.ready().await else { return Ok(Stored::NoDirectory) };
    let at = item.dir.at.join(&item.name);
    if is_kept(upload, &ready, &at).await? {
        return Ok(Stored::Kept);
    }
    let options = upload.options.write_options(&ready, &item.opened.meta);
    let bytes = data.len() as u64;
    let stored = async {
        let mut writer = upload.volume.write_at(ready.inode, &at.path, options).await?;
        writer.push(data.freeze()).await?;
        writer.finish().await
    }
    .await;
    finish(upload, item, at, bytes, stored).await
}

pub(super) async fn large(upload: &Upload, item: Item) {
    let result = try_large(upload, item).await;
    settle(upload, result);
}

async fn try_large(upload: &Upload, item: Item) -> Result<Stored> {
    let Some(ready) = item.dir.ready().await else { return Ok(Stored::NoDirectory) };
    let at = item.dir.at.join(&item.name);
    if is_kept(upload, &ready, &at).await? {
        return Ok(Stored::Kept);
    }
    let options = upload.options.write_options(&ready, &item.opened.meta);
    let mut writer = upload.volume.write_at(ready.inode, &at.path, options).await.map_err(|e| e.named_for(&at))?;
    let (sender, mut parts) = mpsc::channel(PARTS_AHEAD);
    let pool = upload.pool.clone();
    let reading = tokio::task::spawn_blocking(move || {
        let result = item.opened.send_parts(&item.path, &pool, &sender);
        (item, result)
    });
    while let Some(part) = parts.recv().await {
        let pushed = match part {
            Part::Data(buffer) => {
                upload.report.progress().add_bytes(buffer.len() as u64);
                writer.push(buffer.freeze()).await
            }
            Part::Hole(length) => writer.skip(length).await,
        };
        pushed.map_err(|e| e.named_for(&at))?;
    }
    let (item, read) =
        reading.await.map_err(|error| CliError::usage(format!("{at}: the reading thread ended: {error}")))?;
    // Without `finish` nothing appears.
    read?;
    let bytes = writer.len();
    finish(upload, item, at, bytes, writer.finish().await).await
}

async fn finish(
    upload: &Upload,
    item: Item,
    at: RemotePath,
    bytes: u64,
    stored: cairn_client::Result<Attributes>,
) -> Result<Stored> {
    let attributes = match stored {
        Ok(attributes) => attributes,
        Err(error) if upload.options.overwrite == Overwrite::Keep && error.code() == Some(ErrorCode::Exists) => {
            return Ok(Stored::Kept);
        }
        Err(error) => return Err(error.named_for(&at).into()),
    };
    if item.opened.is_small() {
        upload.report.progress().add_bytes(bytes);
    }
    let item = Arc::new(item);
    if upload.options.checksum {
        compare(upload, &item, &at, attributes).await?;
    }
    if item.opened.size > 0 && item.opened.has_changed(&item.path)? {
        let detail = "; what was stored may be a mixture of before and after";
        return Err(CliError::Changed { what: item.path.display().to_string(), detail });
    }
    Ok(Stored::Done(bytes))
}

/// Reads both ends again and compares.
async fn compare(upload: &Upload, item: &Arc<Item>, at: &RemotePath, attributes: Attributes) -> Result<()> {
    let local = item.clone();
    let local = tokio::task::spawn_blocking(move || digest::of_file(&local.opened.file, &local.path));
    let reader = FileReader::new(&upload.volume, attributes, &at.to_string(), 0, u64::MAX);
    let remote = digest::of_remote(reader).await?;
    let local =
        local.await.map_err(|error| CliError::usage(format!("{at}: the comparing thread ended: {error}")))??;
    if local == remote {
        return Ok(());
    }
    if item.opened.has_changed(&item.path)? {
        return Err(CliError::Changed { what: item.path.display().to_string(), detail: "" });
    }
    let detail = format!("local {local}, remote {remote}");
    Err(CliError::Mismatch { what: at.to_string(), verb: "stored", detail })
}

/// There is a file, and it is to be kept.
async fn is_kept(upload: &Upload, ready: &Ready, at: &RemotePath) -> Result<bool> {
    if upload.options.overwrite == Overwrite::Replace || ready.is_new {
        return Ok(false);
    }
    match upload.volume.lookup(ready.inode, at.name(), &at.path).await {
        Ok(_) => Ok(true),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error.named_for(at).into()),
    }
}

pub(super) async fn symlink(upload: &Upload, dir: &RemoteDir, name: &[u8], target: &[u8], meta: &Meta) {
    let at = dir.at.join(name);
    match make_symlink(&upload.dirs, dir, &at, target, meta, &upload.options).await {
        Ok(true) => upload.report.done(Done::Symlink),
        Ok(false) => upload.report.skipped(),
        Err(error) => upload.report.fail(&error),
    }
}

pub(super) async fn stdin(
    context: &Context,
    volume: &Volume,
    at: &RemotePath,
    options: MakeOptions,
    report: &Report,
) -> Result<()> {
    let above = at.parent();
    let found = volume.stat(&above.path, true).await.map_err(|e| e.named_for(&above))?;
    if !is_directory(found.mode) {
        let text = format!("{above} is not a directory; check it with cairn fs stat");
        return Err(CliError::refused(crate::exit::Exit::WrongKind, text));
    }
    let ready = ready_of(&above, &found, false)?;
    let meta = Meta { mode: 0o666 & !context.umask, atime_ns: 0, mtime_ns: 0, owner: (0, 0) };
    let mut write = MakeOptions { owner: false, ..options }.write_options(&ready, &meta);
    write.mtime_ns = 0;
    let mut writer = volume.write_at(ready.inode, &at.path, write).await.map_err(|e| e.named_for(at))?;
    let mut parts = crate::transfer::stdin::read_all();
    let mut sum = digest::Digest::default();
    while let Some(part) = parts.recv().await {
        let part = part?;
        if options.checksum {
            sum.update(&part);
        }
        report.progress().add_bytes(part.len() as u64);
        writer.push(part.freeze()).await.map_err(|e| e.named_for(at))?;
    }
    let bytes = writer.len();
    let made = writer.finish().await.map_err(|e| e.named_for(at))?;
    if options.checksum {
        let reader = FileReader::new(volume, made, &at.to_string(), 0, u64::MAX);
        let (local, remote) = (sum.finish(), digest::of_remote(reader).await?);
        if local != remote {
            let detail = format!("input {local}, remote {remote}");
            return Err(CliError::Mismatch { what: at.to_string(), verb: "stored", detail });
        }
    }
    report.done(Done::File(bytes));
    Ok(())
}
