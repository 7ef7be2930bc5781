//! `cairn fs truncate`: cuts files, or makes them longer with zeros that take no space.
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::human::parse_size;
use crate::mode::{TYPE_REGULAR, is_directory};
use crate::remote::NamedFor;
use crate::report::Done;
use cairn_client::changes::NewFile;
use cairn_types::ErrorCode;
use clap::Args;
use std::ffi::{OsStr, OsString};

#[derive(Args, Debug)]
#[command(
    after_help = "A file that does not exist is made. What is cut off is gone for good: it does not go to the trash. A \
    program that has the file open sees the new size.\n\nExamples:\n  \
    cairn fs truncate -s 0 /logs/old\n  \
    cairn fs truncate -s 10g /images/disk.img     a file of holes\n  \
    cairn fs truncate -s -1k /data/with-trailer   without its last 1,024 bytes"
)]
pub struct TruncateArgs {
    /// New size; k, m, g are understood; +SIZE makes a file longer by so much, -SIZE shorter
    #[arg(short, long, value_name = "SIZE", value_parser = parse_change, allow_hyphen_values = true)]
    size: Change,
    /// Make nothing
    #[arg(short = 'c', long)]
    no_create: bool,
    /// Remote files
    #[arg(required = true)]
    paths: Vec<OsString>,
}

/// What becomes of a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    To(u64),
    Longer(u64),
    Shorter(u64),
}

fn parse_change(text: &str) -> std::result::Result<Change, String> {
    let (make, size): (fn(u64) -> Change, &str) = match text.as_bytes().first() {
        Some(b'+') => (Change::Longer, &text[1..]),
        Some(b'-') => (Change::Shorter, &text[1..]),
        _ => (Change::To, text),
    };
    parse_size(size).map(make)
}

impl Change {
    /// A file that is shorter than what is taken away gets empty; `None`: no file is so long.
    fn of(self, size: u64) -> Option<u64> {
        match self {
            Self::To(size) => Some(size),
            Self::Longer(by) => size.checked_add(by),
            Self::Shorter(by) => Some(size.saturating_sub(by)),
        }
    }
}

impl TruncateArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        let report = context.plain_report();
        for text in &self.paths {
            match self.truncate(context, text).await {
                Ok(()) => report.done(Done::File(0)),
                Err(error) => report.fail(&error),
            }
            if report.is_stopped() {
                break;
            }
        }
        report.finish()
    }

    async fn truncate(&self, context: &Context, text: &OsStr) -> Result<()> {
        let at = context.remote(text)?;
        let volume = context.volume(&at).await?;
        let found = match volume.try_stat(&at.path, true).await.map_err(|e| e.named_for(&at))? {
            Some(found) => found,
            None if self.no_create => return Ok(()),
            None => {
                let new =
                    NewFile { mode: TYPE_REGULAR | 0o666 & !context.umask, exclusive: true, ..NewFile::default() };
                match volume.create(&at.path, new).await {
                    // Somebody else made it meanwhile.
                    Err(error) if error.code() == Some(ErrorCode::Exists) => {
                        volume.stat(&at.path, true).await.map_err(|e| e.named_for(&at))?
                    }
                    made => made.map_err(|e| e.named_for(&at))?,
                }
            }
        };
        if is_directory(found.mode) {
            return Err(CliError::refused(
                Exit::WrongKind,
                format!("{at} is a directory; only files have a size to set"),
            ));
        }
        let size = self.size.of(found.size).ok_or_else(|| CliError::usage(format!("{at}: no file is so long")))?;
        let mut file = volume.open_handle(found.inode, &at.path).await.map_err(|e| e.named_for(&at))?;
        let cut = file.truncate(size).await.map(drop);
        // The first of two failures tells more.
        let closed = file.close().await;
        Ok(cut.and(closed).map_err(|e| e.named_for(&at))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file would be cut where it was to be made longer.
    #[test]
    fn sizes_are_absolute_or_relative() {
        for (text, before, after) in [
            ("0", 5, Some(0)),
            ("4k", 5, Some(4096)),
            ("+1k", 5, Some(1029)),
            ("-3", 5, Some(2)),
            ("-1m", 5, Some(0)),
            ("+1", u64::MAX, None),
        ] {
            assert_eq!(parse_change(text).expect(text).of(before), after, "{text}");
        }
        for text in ["", "+", "-", "x", "--1"] {
            assert!(parse_change(text).is_err(), "{text}");
        }
    }
}
