//! `cairn fs tail`: the end of a file, and with `-f` what is appended later.
use crate::context::Context;
use crate::error::Result;
use crate::exit::Exit;
use crate::fs::cat;
use crate::fs::read_flags::ReadFlags;
use crate::human::parse_size;
use crate::remote::{Found, NamedFor, expand};
use cairn_client::ClientError;
use cairn_client::record::RecordReader;
use cairn_types::ErrorCode;
use clap::Args;
use std::ffi::OsString;
use std::time::Duration;

/// Part that is read at a time when lines are counted from the end.
const PART: u64 = 64 << 10;
/// With -f the server wakes whoever waits; whether another file came under the name is looked at after so long.
const WAIT: Duration = Duration::from_secs(2);
/// A file that changes while it is looked where its last lines begin is looked at again so often.
const TRIES: usize = 16;
/// Between looks for a file that was removed.
const GONE_PAUSE: Duration = Duration::from_secs(1);

#[derive(Args, Debug)]
pub struct TailArgs {
    /// Remote file
    path: OsString,
    /// So many bytes; k, m, g are understood
    #[arg(short = 'c', long, value_parser = parse_size)]
    bytes: Option<u64>,
    /// So many lines
    #[arg(short = 'n', long, default_value_t = 10, conflicts_with = "bytes")]
    lines: u64,
    /// Print the records that append --record wrote, each as it was given: all, or with -c those that begin in the last
    /// bytes
    #[arg(long, conflicts_with = "lines")]
    record: bool,
    /// Go on with what is appended, until Ctrl-C
    #[arg(short, long)]
    follow: bool,
    /// With --record: print a record that has the writer and sequence of an earlier one not again
    #[arg(long, requires = "record")]
    no_repeats: bool,
    #[command(flatten)]
    read: ReadFlags,
}

impl TailArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        self.read.apply(context);
        let found = expand(context, &self.path, true).await?;
        for found in found {
            let size = found.attributes.size;
            if self.record {
                self.print_records(context, &found).await?;
                continue;
            }
            let from = match self.bytes {
                Some(bytes) => size.saturating_sub(bytes),
                None => self.start_of_lines_now(&found).await?,
            };
            if self.follow {
                let mut found = found;
                print_growing(context, &mut found, from).await?;
                return self.follow(context, found).await;
            }
            cat::print(context, &found, from, u64::MAX).await?;
        }
        Ok(())
    }

    async fn records(&self, found: &Found, from: u64) -> Result<RecordReader> {
        let reader = found.volume.record_reader(&found.at.path, from, u64::MAX).await;
        let reader = reader.map_err(|error| error.named_for(&found.at))?;
        Ok(if self.no_repeats { reader.without_repeats() } else { reader })
    }

    /// Prints records; with -f until Ctrl-C.
    async fn print_records(&self, context: &Context, found: &Found) -> Result<()> {
        let report = context.plain_report();
        let from = self.bytes.map_or(0, |bytes| found.attributes.size.saturating_sub(bytes));
        let named = |error: ClientError| error.named_for(&found.at);
        let (mut reader, mut said) = (self.records(found, from).await?, 0);
        loop {
            loop {
                let next = reader.next().await;
                if reader.take_cut() {
                    report.warn(&format!("{} was cut; going on with what is there now", found.at));
                }
                match next {
                    Ok(Some(record)) => tokio::task::block_in_place(|| context.out.bytes(&record.bytes))?,
                    Ok(None) => break,
                    // Removed: another one may come under the name.
                    Err(error) if self.follow && is_gone(&error) => break,
                    Err(error) => return Err(named(error).into()),
                }
            }
            // Of one that grows the rest may still come.
            let damaged = reader.skipped().damaged + if self.follow { 0 } else { reader.left_over() };
            if damaged > said {
                let text =
                    format!("{}: {} bytes belong to no whole record; they were passed over", found.at, damaged - said);
                report.warn(&text);
                said = damaged;
            }
            if !self.follow {
                return Ok(());
            }
            context.out.flush()?;
            match reader.changed(WAIT).await {
                Err(error) if is_gone(&error) => tokio::time::sleep(GONE_PAUSE).await,
                other => other.map_err(named)?,
            }
            let now = found.volume.try_stat(&found.at.path, true).await.map_err(named)?;
            if now.is_some_and(|now| now.inode != reader.inode()) {
                report.warn(&format!("{} was replaced; going on with what is there now", found.at));
                (reader, said) = (self.records(found, 0).await?, 0);
            }
        }
    }

    /// Where the last lines begin, also of a file that others write.
    async fn start_of_lines_now(&self, found: &Found) -> Result<u64> {
        for _ in 0..TRIES {
            match self.start_of_lines(found).await {
                Err(error) if self.follow && error.exit() == Exit::Changed => {}
                other => return other,
            }
        }
        self.start_of_lines(found).await
    }

    /// Where the last lines begin.
    async fn start_of_lines(&self, found: &Found) -> Result<u64> {
        if self.lines == 0 {
            return Ok(found.attributes.size);
        }
        let mut end = found.attributes.size;
        let mut missing = self.lines;
        let mut last_byte = true;
        while end > 0 {
            let from = end.saturating_sub(PART);
            let mut reader = cat::open(found, from, end - from)?;
            let mut part = Vec::new();
            while let Some(piece) = reader.next().await? {
                part.extend_from_slice(&piece.data);
            }
            for (at, byte) in part.iter().enumerate().rev() {
                // A line end as the last byte ends the last line and begins none.
                let counts = *byte == b'\n' && !std::mem::take(&mut last_byte);
                last_byte = false;
                if counts {
                    if missing == 1 {
                        return Ok(from + at as u64 + 1);
                    }
                    missing -= 1;
                }
            }
            end = from;
        }
        Ok(0)
    }

    async fn follow(&self, context: &Context, mut found: Found) -> Result<()> {
        let report = context.plain_report();
        loop {
            let (inode, version) = (found.attributes.inode, found.attributes.data_version);
            match found.volume.wait_change(inode, version, WAIT).await {
                Err(error) if is_gone(&error) => tokio::time::sleep(GONE_PAUSE).await,
                other => drop(other.map_err(|e| e.named_for(&found.at))?),
            }
            let Some(now) = found.volume.try_stat(&found.at.path, true).await.map_err(|e| e.named_for(&found.at))?
            else {
                // Removed: another one may come under the name.
                continue;
            };
            let mut from = found.attributes.size;
            if now.inode != found.attributes.inode || now.size < from {
                report.warn(&format!("{} was replaced or cut; going on with what is there now", found.at));
                from = 0;
            }
            found.attributes = now;
            if now.size > from {
                print_growing(context, &mut found, from).await?;
            }
        }
    }
}

/// Prints what there is from that offset on. If it goes on changing the next look reads what is missing.
async fn print_growing(context: &Context, found: &mut Found, from: u64) -> Result<()> {
    let mut written = 0;
    match cat::print_counted(context, found, from, u64::MAX, &mut written).await {
        Err(error) if error.exit() == Exit::Changed => found.attributes.size = from + written,
        other => other?,
    }
    Ok(())
}

/// The file was removed.
fn is_gone(error: &ClientError) -> bool {
    matches!(error.code(), Some(ErrorCode::NotFound | ErrorCode::Stale))
}
