//! `cairn fs append`: standard input to the end of a file.
//!
//! What is appended at once stays together, whoever else appends to the file: what a read of the input gave, whole
//! lines, or whole records of one size. Memory: what is read ahead, one record, and what the handle has not written
//! yet. With `--record` it goes another way (`records`).
mod records;

use crate::context::Context;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::fs::layout::{check_wish, parse_layout};
use crate::human::{bytes, parse_size};
use crate::mode::TYPE_REGULAR;
use crate::output::put_name;
use crate::remote::NamedFor;
use crate::transfer::stdin::read_as_it_comes;
use cairn_client::changes::NewFile;
use cairn_client::record::RecordLevel;
use cairn_client::refusal::Refusal;
use cairn_client::{ClientError, FileHandle, RemotePath, Volume};
use cairn_types::{ErrorCode, Layout};
use clap::Args;
use serde_json::{Map, Value, json};
use std::ffi::OsString;
use std::time::Duration;
use tokio::time::Instant;

/// Longest record or line.
const RECORD_MAX: u64 = 16 << 20;
/// What was appended is durable and visible after so long, or after so many bytes.
const SYNC_AFTER: Duration = Duration::from_secs(1);
const SYNC_BYTES: u64 = 8 << 20;

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  make-log | cairn fs append --lines /logs/today\n  \
    cairn fs append -l r2 /logs/new < part1\n  make-log | cairn fs append --record /logs/records")]
pub struct AppendArgs {
    /// Remote file; it is made if it does not exist
    path: OsString,
    /// Keep lines whole: none is split by what others append, and the last one gets an end if it has none
    #[arg(long)]
    lines: bool,
    /// Keep records of so many bytes whole; k, m are understood, at most 16m
    #[arg(long, value_parser = parse_size, conflicts_with = "lines")]
    size: Option<u64>,
    /// Append framed records, each line or --size bytes one: for thousands of writers of one file; read by tail
    /// --record
    #[arg(long, conflicts_with = "lines")]
    record: bool,
    /// With --record: when a record counts as appended: memory, durable or visible
    #[arg(long, requires = "record", value_parser = records::parse_level, default_value = "durable")]
    level: RecordLevel,
    /// Layout of the file if it is made, such as r2; without it that of its directory
    #[arg(short, long)]
    layout: Option<String>,
    /// Make no file
    #[arg(short = 'c', long)]
    no_create: bool,
}

/// What stays together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Unit {
    Any,
    Lines,
    Records(usize),
}

/// Cuts the input where it may be cut.
struct Cutter {
    unit: Unit,
    kept: Vec<u8>,
    /// Records that were given so far.
    count: u64,
}

impl Cutter {
    fn new(unit: Unit) -> Self {
        Self { unit, kept: Vec::new(), count: 0 }
    }

    /// Takes a part of the input; gives what is whole.
    fn push(&mut self, part: &[u8]) -> Result<Vec<u8>> {
        let searched = self.kept.len();
        self.kept.extend_from_slice(part);
        let whole = match self.unit {
            Unit::Any => self.kept.len(),
            Unit::Lines => part.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| searched + at + 1),
            Unit::Records(size) => self.kept.len() / size * size,
        };
        let rest = self.kept.split_off(whole);
        let given = std::mem::replace(&mut self.kept, rest);
        self.count += match self.unit {
            Unit::Any => 0,
            Unit::Lines => given.iter().filter(|byte| **byte == b'\n').count() as u64,
            Unit::Records(size) => (given.len() / size) as u64,
        };
        if self.kept.len() as u64 > RECORD_MAX {
            let text = format!("line {} of the input is longer than {}; cut it", self.count + 1, bytes(RECORD_MAX));
            return Err(CliError::refused(Exit::Usage, text));
        }
        Ok(given)
    }

    /// The rest, when the input has ended.
    fn end(&mut self) -> Result<Vec<u8>> {
        let rest = std::mem::take(&mut self.kept);
        match self.unit {
            Unit::Records(size) if !rest.is_empty() => {
                let text = format!(
                    "the input ends with {} bytes, which is no whole record of {size}; they were not appended, the {} records \
                     before them were",
                    rest.len(),
                    self.count
                );
                Err(CliError::refused(Exit::Usage, text))
            }
            Unit::Lines if !rest.is_empty() => {
                // Or the next line that somebody appends would be a part of it.
                self.count += 1;
                Ok([rest, b"\n".to_vec()].concat())
            }
            _ => Ok(rest),
        }
    }
}

/// The file was removed meanwhile, with all that was appended to it.
fn is_gone(error: &CliError) -> bool {
    matches!(error.code(), Some(ErrorCode::Stale | ErrorCode::NotFound))
}

/// Whoever gave a path knows no inode.
fn told_of_removal(error: CliError, at: &RemotePath) -> CliError {
    if error.code() != Some(ErrorCode::Stale) {
        return error;
    }
    let text = "the file was removed or replaced meanwhile, and what was appended went with it; append again, \
                and a file of this name is made if there is none";
    ClientError::Remote { what: at.to_string(), error: Refusal::new(ErrorCode::Stale, text) }.into()
}

/// What is in the file, and what is on its way.
struct Progress<'a> {
    context: &'a Context,
    at: RemotePath,
    synced: u64,
    unsynced: u64,
    since: Option<Instant>,
}

impl Progress<'_> {
    async fn append(&mut self, handle: &mut FileHandle, part: &[u8]) -> Result<()> {
        if part.is_empty() {
            return Ok(());
        }
        handle.append(part).await.map_err(|e| e.named_for(&self.at))?;
        self.since.get_or_insert_with(Instant::now);
        self.unsynced += part.len() as u64;
        if self.unsynced >= SYNC_BYTES { self.sync(handle).await } else { Ok(()) }
    }

    async fn sync(&mut self, handle: &mut FileHandle) -> Result<()> {
        handle.sync().await.map_err(|e| e.named_for(&self.at))?;
        self.note();
        Ok(())
    }

    fn note(&mut self) {
        self.synced += std::mem::take(&mut self.unsynced);
        self.since = None;
        self.context.note_interrupt(format!(
            "{} of the input are in {}, what came later is not",
            bytes(self.synced),
            self.at
        ));
    }

    /// The whole input.
    async fn run(&mut self, handle: &mut FileHandle, cutter: &mut Cutter) -> Result<()> {
        let mut input = read_as_it_comes();
        loop {
            let part = match self.since {
                None => input.recv().await,
                Some(since) => match tokio::time::timeout_at(since + SYNC_AFTER, input.recv()).await {
                    Ok(part) => part,
                    Err(_) => {
                        self.sync(handle).await?;
                        continue;
                    }
                },
            };
            let Some(part) = part else { break };
            let whole = cutter.push(&part?)?;
            self.append(handle, &whole).await?;
        }
        let rest = cutter.end()?;
        self.append(handle, &rest).await
    }
}

impl AppendArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        let unit = self.unit()?;
        let layout = self.layout.as_deref().map(parse_layout).transpose()?;
        let at = context.remote(&self.path)?;
        check_wish(context, &at, layout).await?;
        let volume = context.volume(&at).await?;
        if self.record {
            self.make(context, &volume, &at, layout).await?;
            return records::append(context, &volume, at, unit, self.level).await;
        }
        let mut handle = self.open(context, &volume, &at, layout).await?;
        let mut cutter = Cutter::new(unit);
        let mut progress = Progress { context, at, synced: 0, unsynced: 0, since: None };
        let outcome = progress.run(&mut handle, &mut cutter).await;
        let closed = handle.close().await.map_err(|e| CliError::from(e.named_for(&progress.at)));
        if closed.is_ok() {
            progress.note();
        }
        match outcome.and(closed) {
            Ok(()) => self.show(&progress, &cutter),
            Err(error) => {
                if !is_gone(&error) {
                    let text = format!("{} of the input are in {}", bytes(progress.synced), progress.at);
                    context.plain_report().warn(&text);
                }
                Err(told_of_removal(error, &progress.at))
            }
        }
    }

    fn unit(&self) -> Result<Unit> {
        match (self.lines || self.record, self.size) {
            (true, None) => Ok(Unit::Lines),
            (false, None) => Ok(Unit::Any),
            (_, Some(size)) if (1..=RECORD_MAX).contains(&size) => Ok(Unit::Records(size as usize)),
            (_, Some(size)) => {
                Err(CliError::usage(format!("--size {size}: records have from 1 byte to {}", bytes(RECORD_MAX))))
            }
        }
    }

    /// Opens the file.
    async fn open(
        &self,
        context: &Context,
        volume: &Volume,
        at: &RemotePath,
        layout: Option<Layout>,
    ) -> Result<FileHandle> {
        self.make(context, volume, at, layout).await?;
        Ok(volume.open(&at.path).await.map_err(|e| e.named_for(at))?)
    }

    /// Makes the file if it is not there; another one may do so at the same time.
    async fn make(&self, context: &Context, volume: &Volume, at: &RemotePath, layout: Option<Layout>) -> Result<()> {
        if !self.no_create && volume.try_stat(&at.path, true).await.map_err(|e| e.named_for(at))?.is_none() {
            let new = NewFile {
                mode: TYPE_REGULAR | 0o666 & !context.umask,
                layout: layout.map_or(0, Layout::to_bits),
                ..NewFile::default()
            };
            match volume.create(&at.path, new).await {
                Err(error) if error.code() != Some(ErrorCode::Exists) => return Err(error.named_for(at).into()),
                _ => {}
            }
        }
        Ok(())
    }

    fn show(&self, progress: &Progress<'_>, cutter: &Cutter) -> Result<()> {
        let context = progress.context;
        if context.out.is_json() {
            let mut object = Map::new();
            put_name(&mut object, "path", &progress.at.path);
            object.insert("bytes".into(), json!(progress.synced));
            object.insert("records".into(), if cutter.unit == Unit::Any { Value::Null } else { json!(cutter.count) });
            return context.out.json(&Value::Object(object));
        }
        if context.args.quiet {
            return Ok(());
        }
        let size = bytes(progress.synced);
        context.out.line(match cutter.unit {
            Unit::Any => format!("appended {size}"),
            Unit::Lines => format!("appended {} lines, {size}", cutter.count),
            Unit::Records(_) => format!("appended {} records, {size}", cutter.count),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(unit: Unit, parts: &[&str]) -> (Vec<String>, Result<String>, u64) {
        let mut cutter = Cutter::new(unit);
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("utf-8");
        let given = parts.iter().map(|part| text(cutter.push(part.as_bytes()).expect("short"))).collect();
        let rest = cutter.end().map(text);
        (given, rest, cutter.count)
    }

    /// A line that is cut would be torn by what somebody else appends.
    #[test]
    fn lines_and_records_stay_whole() {
        let (given, rest, count) = cut(Unit::Lines, &["a\nb", "c", "\nd\ne", ""]);
        assert_eq!(
            (given, rest.expect("a last line"), count),
            (["a\n", "", "bc\nd\n", ""].map(String::from).to_vec(), "e\n".into(), 4)
        );
        let (given, rest, count) = cut(Unit::Records(3), &["ab", "cdef", "ghi"]);
        assert_eq!(
            (given, rest.expect("nothing"), count),
            (["", "abcdef", "ghi"].map(String::from).to_vec(), String::new(), 3)
        );
        let (_, rest, count) = cut(Unit::Records(3), &["abcd"]);
        assert!(rest.expect_err("no record").to_string().contains("ends with 1 bytes"), "what is no record is said");
        assert_eq!(count, 1);
        assert_eq!(cut(Unit::Any, &["ab", "c\n"]).0, ["ab", "c\n"]);
    }

    /// Somebody's file without line ends would be kept in memory whole.
    #[test]
    fn a_line_has_an_end_somewhere() {
        let mut cutter = Cutter::new(Unit::Lines);
        let part = vec![b'x'; 1 << 20];
        let error = (0..20).find_map(|_| cutter.push(&part).err()).expect("refused");
        assert!(error.to_string().contains("line 1 of the input is longer than 16.0 MiB"), "{error}");
    }
}
