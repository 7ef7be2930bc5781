//! `cairn inspect FILE`: recognises a file that Cairn wrote on disk by its first bytes, verifies and prints it.
//!
//! What is damaged is named with its offset and does not end the inspection. Links no server; the decoders are those of
//! `cairn_format`.
mod backup;
mod checkpoint;
mod chunk;
mod journal;
mod printer;
mod requests;
mod slots;
mod small;
mod wal;

use crate::context::Context;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::output::Out;
use clap::Args;
use printer::Printer;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

#[derive(Args, Debug)]
#[command(
    after_help = "Recognised are labels, segments of the write-ahead log, checkpoints, chunks, disk journals, states \
    of placement groups, generations of disks, marks of logs, lists of partitions and of disks, manifests of backups, scans, request logs. Files of a running server change while they are read: what looks damaged \
    at the end of a log or chunk may be on its way."
)]
pub struct InspectArgs {
    /// Files that Cairn wrote
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Every record of logs and journals, every block of chunks
    #[arg(short, long)]
    verbose: bool,
}

/// A file under inspection.
pub(crate) struct Subject {
    pub path: PathBuf,
    pub file: File,
    pub length: u64,
}

impl Subject {
    fn open(path: &Path) -> Result<Subject> {
        let failed = |error| CliError::local(path, "opening", error);
        let file = File::open(path).map_err(failed)?;
        let found = file.metadata().map_err(failed)?;
        if !found.is_file() {
            let text = format!(
                "{} is no regular file; name a label, log segment, checkpoint, chunk or journal",
                path.display()
            );
            return Err(CliError::refused(Exit::WrongKind, text));
        }
        Ok(Subject { path: path.to_owned(), file, length: found.len() })
    }
    /// Up to `length` bytes at `offset`; fewer at the end of the file.
    pub fn read(&self, offset: u64, length: u64) -> Result<Vec<u8>> {
        // Never more than the file has, whatever a damaged length says.
        let length = length.min(self.length.saturating_sub(offset)) as usize;
        let mut bytes = vec![0; length];
        let mut done = 0;
        while done < length {
            match self.file.read_at(&mut bytes[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(CliError::local(&self.path, "reading it", error)),
            }
        }
        bytes.truncate(done);
        Ok(bytes)
    }
    /// A block of a fixed size; `None` if the file ends before.
    pub fn block<const N: usize>(&self, offset: u64) -> Result<Option<[u8; N]>> {
        Ok(self.read(offset, N as u64)?.try_into().ok())
    }
}

impl InspectArgs {
    pub fn run(self, context: &Context) -> Result<()> {
        let report = context.plain_report();
        let several = self.files.len() > 1;
        for path in &self.files {
            match self.inspect(&context.out, path, several) {
                Ok(()) => report.done(crate::report::Done::File(0)),
                Err(CliError::BrokenPipe) => return Err(CliError::BrokenPipe),
                Err(error) => report.fail(&error),
            }
        }
        context.out.flush()?;
        report.finish()
    }

    fn inspect(&self, out: &Out, path: &Path, several: bool) -> Result<()> {
        let subject = Subject::open(path)?;
        let magic = slots::magic(&subject)?;
        let mut printer = Printer::new(out, path, several, self.verbose);
        match &magic[..] {
            b"CAIRNLBL" => small::label(&subject, &mut printer)?,
            b"CAIRNPGS" => small::pg_state(&subject, &mut printer)?,
            b"CAIRNBAD" => small::bad_blocks(&subject, &mut printer)?,
            b"CAIRNSCB" => small::scrub_state(&subject, &mut printer)?,
            b"CAIRNGEN" => slots::generation(&subject, &mut printer)?,
            b"CAIRNWMK" => slots::wal_mark(&subject, &mut printer)?,
            b"CAIRNPTL" => small::partition_list(&subject, &mut printer)?,
            b"CAIRNMRK" => small::marks(&subject, &mut printer)?,
            b"CAIRNDSK" => small::disk_list(&subject, &mut printer)?,
            b"CAIRNREQ" => requests::inspect(&subject, &mut printer)?,
            b"CAIRNBKP" => backup::manifest(&subject, &mut printer)?,
            b"CAIRNSCN" => backup::scan(&subject, &mut printer)?,
            b"CAIRNWAL" => wal::inspect(&subject, &mut printer)?,
            b"CAIRNCKP" => checkpoint::inspect(&subject, &mut printer)?,
            b"CAIRNCHK" => chunk::inspect(&subject, &mut printer)?,
            b"CAIRNJRN" => journal::inspect(&subject, &mut printer)?,
            other => {
                let shown = other.escape_ascii().to_string();
                let text = format!(
                    "{} begins with {shown:?}, which no file of Cairn does: it is another file, or its first bytes are damaged",
                    path.display()
                );
                return Err(CliError::refused(Exit::Damaged, text));
            }
        }
        printer.end()
    }
}

#[cfg(test)]
mod tests;
