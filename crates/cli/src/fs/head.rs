//! `cairn fs head`: the beginning of files.
use crate::context::Context;
use crate::error::Result;
use crate::exit::Exit;
use crate::fs::cat;
use crate::fs::read_flags::ReadFlags;
use crate::human::parse_size;
use crate::remote::{Found, expand_all};
use crate::report::Done;
use clap::Args;
use std::ffi::OsString;

/// So much is read first while lines are counted; each next part is twice as long.
const PART_MIN: u64 = 16 << 10;
const PART_MAX: u64 = 4 << 20;

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    cairn fs head /logs/today                the first 10 lines\n  \
    cairn fs head -n 100 /logs/today\n  \
    cairn fs head -c 4k /images/disk.img | xxd")]
pub struct HeadArgs {
    /// Remote files or patterns; with several, each has its name above it (not with -q)
    #[arg(required = true)]
    paths: Vec<OsString>,
    /// So many bytes; k, m, g are understood
    #[arg(short = 'c', long, value_parser = parse_size)]
    bytes: Option<u64>,
    /// So many lines
    #[arg(short = 'n', long, default_value_t = 10, conflicts_with = "bytes")]
    lines: u64,
    #[command(flatten)]
    read: ReadFlags,
}

impl HeadArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        self.read.apply(context);
        let report = context.plain_report();
        let found = expand_all(context, &self.paths, true, &report).await;
        let titled = (found.len() > 1 || self.paths.len() > 1) && !context.args.quiet;
        for (number, found) in found.iter().enumerate() {
            match self.print(context, found, titled.then_some(number)).await {
                Ok(()) => report.done(Done::File(0)),
                Err(error) if error.exit() == Exit::BrokenPipe => return Err(error),
                Err(error) => report.fail(&error),
            }
        }
        report.finish()
    }

    async fn print(&self, context: &Context, found: &Found, number: Option<usize>) -> Result<()> {
        // What cannot be read has no title.
        drop(cat::open(found, 0, 0)?);
        if let Some(number) = number {
            let mut title = if number > 0 { b"\n==> ".to_vec() } else { b"==> ".to_vec() };
            title.extend(context.out.name(found.at.to_string().as_bytes()));
            title.extend(b" <==");
            context.out.line(title)?;
        }
        match self.bytes {
            Some(bytes) => cat::print(context, found, 0, bytes).await.map(drop),
            None => self.print_lines(context, found).await,
        }
    }

    /// Nothing far behind the last line is read: it may be a large file.
    async fn print_lines(&self, context: &Context, found: &Found) -> Result<()> {
        let (mut missing, mut from, mut length) = (self.lines, 0, PART_MIN);
        while missing > 0 && from < found.attributes.size {
            let mut reader = cat::open(found, from, length)?;
            while let Some(piece) = reader.next().await? {
                let end = end_of_lines(&piece.data, &mut missing);
                tokio::task::block_in_place(|| context.out.bytes(&piece.data[..end]))?;
                if missing == 0 {
                    return Ok(());
                }
            }
            from += length;
            length = (length * 2).min(PART_MAX);
        }
        Ok(())
    }
}

/// Where the lines that are still missing end in these bytes; counts them off.
fn end_of_lines(bytes: &[u8], missing: &mut u64) -> usize {
    for (at, _) in bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n') {
        *missing -= 1;
        if *missing == 0 {
            return at + 1;
        }
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines would be cut, or counted again in the next part.
    #[test]
    fn lines_are_counted_over_parts() {
        let mut missing = 3;
        assert_eq!(end_of_lines(b"a\nb", &mut missing), 3);
        assert_eq!(missing, 2);
        assert_eq!(end_of_lines(b"b\n\ncc\n", &mut missing), 3);
        assert_eq!(missing, 0);
        assert_eq!(end_of_lines(b"", &mut 1), 0);
    }
}
