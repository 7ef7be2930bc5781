//! Storing one thing: small files in one step, larger ones part by part, links, standard input.
use super::{Item, Upload};
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::remote::NamedFor;
use crate::report::{Done, Report};
use crate::transfer::digest;
use crate::transfer::local_file::{Part, take_buffer};
use crate::transfer::remote_dir::{Ready, RemoteDir};
use crate::transfer::remote_make::{Made, MakeOptions, Meta, make_symlink, open_directory};
use crate::transfer::replace::Replacing;
use cairn_client::attributes::Attributes;
use cairn_client::{FileReader, FileWriter, RemotePath};
use cairn_env::buf::AlignedBuf;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Parts of a large file that are read ahead.
const PARTS_AHEAD: usize = 4;

pub(super) async fn small(upload: &Upload, item: Item, data: AlignedBuf) {
    let result = try_small(upload, item, data).await;
    Made::settle(result, &upload.report);
}

async fn try_small(upload: &Upload, item: Item, data: AlignedBuf) -> Result<Made> {
    let Some(ready) = item.dir.ready().await else { return Ok(Made::NoDirectory) };
    let at = item.dir.at.join(&item.name);
    if !upload.dirs.replacing.may_store(&ready, &at, item.as_new()).await? {
        return Ok(Made::Kept);
    }
    put_small(upload, &ready, item, at, data).await
}

/// A small file that is read only if it is not there as it is.
pub(super) async fn unread(upload: &Arc<Upload>, item: Item) {
    let result = try_unread(upload, item).await;
    Made::settle(result, &upload.report);
}

async fn try_unread(upload: &Arc<Upload>, item: Item) -> Result<Made> {
    let Some(ready) = item.dir.ready().await else { return Ok(Made::NoDirectory) };
    let at = item.dir.at.join(&item.name);
    if !upload.dirs.replacing.may_store(&ready, &at, item.as_new()).await? {
        return Ok(Made::Kept);
    }
    let shared = upload.clone();
    let reading = tokio::task::spawn_blocking(move || {
        let buffer = take_buffer(&shared.pool, item.opened.size as usize, || shared.report.is_stopped());
        let data = buffer.map(|buffer| item.opened.read_small(&item.path, buffer)).transpose();
        data.map(|data| (item, data))
    });
    let read = reading.await.map_err(|error| CliError::usage(format!("{at}: the reading thread ended: {error}")))?;
    let (item, data) = read?;
    // Without a buffer: a fatal failure was reported, the rest is left out.
    let Some(data) = data else { return Ok(Made::NoDirectory) };
    put_small(upload, &ready, item, at, data).await
}

async fn put_small(upload: &Upload, ready: &Ready, item: Item, at: RemotePath, data: AlignedBuf) -> Result<Made> {
    upload.report.pass().pace(item.opened.size).await;
    let options = upload.options.write_options(ready, &item.opened.meta);
    let mut writer = upload.volume.write_at(ready.inode, &at.path, options).await.map_err(|e| e.named_for(&at))?;
    writer.push(data.freeze()).await.map_err(|e| e.named_for(&at))?;
    finish(upload, item, at, writer).await
}

pub(super) async fn large(upload: &Upload, item: Item) {
    let result = try_large(upload, item).await;
    Made::settle(result, &upload.report);
}

async fn try_large(upload: &Upload, item: Item) -> Result<Made> {
    let Some(ready) = item.dir.ready().await else { return Ok(Made::NoDirectory) };
    let at = item.dir.at.join(&item.name);
    if !upload.dirs.replacing.may_store(&ready, &at, item.as_new()).await? {
        return Ok(Made::Kept);
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
                upload.report.pass().pace(buffer.len() as u64).await;
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
    finish(upload, item, at, writer).await
}

async fn finish(upload: &Upload, item: Item, at: RemotePath, writer: FileWriter) -> Result<Made> {
    let bytes = writer.len();
    let Some(attributes) = upload.dirs.replacing.finish(writer, &at, &upload.report).await? else {
        return Ok(Made::Kept);
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
    Ok(Made::Done(Done::File(bytes)))
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

pub(super) async fn symlink(upload: &Upload, dir: &RemoteDir, name: &[u8], target: &[u8], meta: &Meta) {
    let at = dir.at.join(name);
    let result = make_symlink(&upload.dirs, dir, &at, target, meta, &upload.options).await;
    Made::settle(result, &upload.report);
}

pub(super) async fn stdin(context: &Context, at: &RemotePath, options: MakeOptions, report: &Report) -> Result<()> {
    let (volume, ready) = open_directory(context, &at.parent()).await?;
    let volume = &volume;
    if options.replace.ask {
        return Err(CliError::usage(
            "-i reads answers from standard input, which is what is stored here; use -n, or nothing",
        ));
    }
    let client = context.client_of(at.cluster.as_deref()).await?;
    let replacing = Replacing::new(options.replace, client, volume.clone());
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
        report.pass().pace(part.len() as u64).await;
        report.progress().add_bytes(part.len() as u64);
        writer.push(part.freeze()).await.map_err(|e| e.named_for(at))?;
    }
    let bytes = writer.len();
    let Some(made) = replacing.finish(writer, at, report).await? else {
        report.skipped();
        return Ok(());
    };
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
