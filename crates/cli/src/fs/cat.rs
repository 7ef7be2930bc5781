//! `cairn fs cat`: contents to standard output.
use crate::context::Context;
use crate::error::Result;
use crate::exit::Exit;
use crate::fs::read_flags::ReadFlags;
use crate::human::parse_size;
use crate::remote::{Found, expand_all};
use crate::report::Done;
use cairn_client::refusal::Refusal;
use cairn_client::{ClientError, FileReader};
use cairn_types::ErrorCode;
use clap::Args;
use std::ffi::OsString;

#[derive(Args, Debug)]
pub struct CatArgs {
    /// Remote files or patterns
    #[arg(required = true)]
    paths: Vec<OsString>,
    /// Begin at this byte
    #[arg(long, value_parser = parse_size, default_value = "0")]
    offset: u64,
    /// Print at most so many bytes of each file
    #[arg(long, value_parser = parse_size)]
    length: Option<u64>,
    #[command(flatten)]
    read: ReadFlags,
}

impl CatArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        self.read.apply(context);
        let report = context.plain_report();
        for found in expand_all(context, &self.paths, true, &report).await {
            match print(context, &found, self.offset, self.length.unwrap_or(u64::MAX)).await {
                Ok(bytes) => report.done(Done::File(bytes)),
                Err(error) if error.exit() == Exit::BrokenPipe => return Err(error),
                Err(error) => report.fail(&error),
            }
        }
        report.finish()
    }
}

/// Opens a regular file for reading.
pub fn open(found: &Found, offset: u64, length: u64) -> Result<FileReader> {
    let shown = found.at.to_string();
    if !crate::mode::is_regular(found.attributes.mode) {
        let (code, text) = match found.is_directory() {
            true => (ErrorCode::IsDirectory, "is a directory; name a file in it, or use get for trees"),
            false => (ErrorCode::InvalidArgument, "is no regular file; only those have contents"),
        };
        return Err(ClientError::Remote { what: shown, error: Refusal::new(code, text) }.into());
    }
    Ok(FileReader::new(&found.volume, found.attributes, &shown, offset, length))
}

/// Writes part of a file to standard output; gives the number of bytes.
pub async fn print(context: &Context, found: &Found, offset: u64, length: u64) -> Result<u64> {
    let mut written = 0;
    print_counted(context, found, offset, length, &mut written).await.map(|()| written)
}

/// Like [`print`]; what was written counts even if it fails later.
pub async fn print_counted(
    context: &Context,
    found: &Found,
    offset: u64,
    length: u64,
    written: &mut u64,
) -> Result<()> {
    let mut reader = open(found, offset, length)?;
    while let Some(piece) = reader.next().await? {
        // A slow reader of the pipe holds this command up and nothing else.
        tokio::task::block_in_place(|| context.out.bytes(&piece.data))?;
        *written += piece.data.len() as u64;
    }
    Ok(())
}
