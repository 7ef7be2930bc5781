//! Fetching one file or link: small files with one local step, larger ones piece by piece, holes left out.
use super::Download;
use crate::error::{CliError, Result};
use crate::remote::NamedFor;
use crate::transfer::temp_file::{Finish, TempFile, set_times};
use crate::transfer::{Overwrite, SMALL_MAX, digest};
use crate::walk::Node;
use cairn_client::{FilePiece, FileReader, Volume};
use cairn_env::{FastRng, Rng};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use tokio::sync::mpsc;

/// Pieces of a large file between network and disk.
const PIECES_AHEAD: usize = 4;

static RNG: LazyLock<FastRng> = LazyLock::new(FastRng::from_os);

/// Fetches a file; gives its bytes, or none if what was there is to be kept.
pub(super) async fn file(download: &Download, volume: &Volume, node: &Node, target: &Path) -> Result<Option<u64>> {
    if download.options.overwrite == Overwrite::Keep && target.symlink_metadata().is_ok() {
        return Ok(None);
    }
    let shown = node.at.to_string();
    let size = node.attributes.size;
    let reader = FileReader::new(volume, node.attributes, &shown, 0, u64::MAX);
    let job = Job {
        target: target.to_owned(),
        shown,
        size,
        finish: finish_of(download, node),
        checksum: download.options.checksum,
    };
    let written = match size <= SMALL_MAX {
        true => small(download, reader, job).await?,
        false => large(download, reader, job).await?,
    };
    Ok(written.then_some(size))
}

fn finish_of(download: &Download, node: &Node) -> Finish {
    let a = &node.attributes;
    Finish {
        mode: a.mode,
        atime_ns: a.atime_ns,
        mtime_ns: a.mtime_ns,
        owner: download.options.owner.then_some((a.uid, a.gid)),
        sync: download.options.sync,
        overwrite: download.options.overwrite,
    }
}

/// What the writing thread needs to know.
struct Job {
    target: PathBuf,
    shown: String,
    size: u64,
    finish: Finish,
    checksum: bool,
}

/// The local file while its pieces come.
struct Writing {
    job: Job,
    temp: TempFile,
    sum: digest::Digest,
}

impl Writing {
    fn begin(job: Job) -> Result<Writing> {
        let temp = TempFile::create(&job.target)?;
        Ok(Writing { job, temp, sum: digest::Digest::default() })
    }
    fn write(&mut self, piece: &FilePiece) -> Result<()> {
        if self.job.checksum {
            self.sum.update(&piece.data);
        }
        match piece.hole {
            true => Ok(()),
            false => self.temp.write_at(&piece.data, piece.offset),
        }
    }
    fn end(self) -> Result<bool> {
        let Writing { job, temp, sum } = self;
        if job.checksum {
            let received = sum.finish();
            // A hole at the end is there only when the size is set.
            temp.file().set_len(job.size).map_err(|e| CliError::local(&job.target, "setting its size", e))?;
            let on_disk = digest::of_file(temp.file(), &job.target)?;
            if received != on_disk {
                let detail = format!("remote {received}, local {on_disk}");
                return Err(CliError::Mismatch { what: job.shown, verb: "fetched", detail });
            }
        }
        temp.finish(job.size, &job.finish)
    }
}

async fn small(download: &Download, mut reader: FileReader, job: Job) -> Result<bool> {
    download.report.pass().pace(job.size).await;
    let mut pieces = Vec::new();
    while let Some(piece) = reader.next().await? {
        pieces.push(piece);
    }
    download.report.progress().add_bytes(job.size);
    let _writer = download.writers.acquire().await;
    let writing = tokio::task::spawn_blocking(move || {
        let mut writing = Writing::begin(job)?;
        pieces.iter().try_for_each(|piece| writing.write(piece))?;
        writing.end()
    });
    joined(writing.await)
}

async fn large(download: &Download, mut reader: FileReader, job: Job) -> Result<bool> {
    let (sender, mut pieces) = mpsc::channel::<FilePiece>(PIECES_AHEAD);
    let writing = tokio::task::spawn_blocking(move || {
        let mut writing = Writing::begin(job)?;
        while let Some(piece) = pieces.blocking_recv() {
            writing.write(&piece)?;
        }
        Ok(writing)
    });
    let failed = loop {
        match reader.next().await {
            Ok(Some(piece)) => {
                let length = piece.data.len() as u64;
                download.report.pass().pace(length).await;
                // The writing thread failed; it tells why.
                if sender.send(piece).await.is_err() {
                    break None;
                }
                download.report.progress().add_bytes(length);
            }
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
    };
    drop(sender);
    let writing = joined(writing.await)?;
    if let Some(error) = failed {
        return Err(error.into());
    }
    joined(tokio::task::spawn_blocking(move || writing.end()).await)
}

fn joined<T>(result: std::result::Result<Result<T>, tokio::task::JoinError>) -> Result<T> {
    result.unwrap_or_else(|error| Err(CliError::usage(format!("a writing thread ended: {error}"))))
}

/// Fetches a symbolic link; `false` if what was there is to be kept.
pub(super) async fn symlink(download: &Download, volume: &Volume, node: &Node, target: &Path) -> Result<bool> {
    let leads_to =
        volume.readlink_inode(node.attributes.inode, &node.at.path).await.map_err(|e| e.named_for(&node.at))?;
    let leads_to = OsString::from_vec(leads_to);
    let failed = |error| CliError::local(target, "making the link", error);
    match std::os::unix::fs::symlink(&leads_to, target) {
        Ok(()) => {}
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(failed(error)),
        Err(_) if download.options.overwrite == Overwrite::Keep => return Ok(false),
        Err(_) => {
            let mut name = OsString::from(".");
            name.push(format!("link.cairn-{:016x}", RNG.u64()));
            let temp = target.with_file_name(name);
            std::os::unix::fs::symlink(&leads_to, &temp).map_err(failed)?;
            if let Err(error) = std::fs::rename(&temp, target) {
                // The first error tells more than one about the temporary link.
                drop(std::fs::remove_file(&temp));
                return Err(failed(error));
            }
        }
    }
    let a = &node.attributes;
    if download.options.owner {
        std::os::unix::fs::lchown(target, Some(a.uid), Some(a.gid)).map_err(failed)?;
    }
    set_times(target, a.atime_ns, a.mtime_ns).map_err(failed)?;
    Ok(true)
}
