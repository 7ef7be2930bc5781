//! Standard input, read by a thread of its own ahead of the writer.
use crate::error::{CliError, Result};
use cairn_client::FileWriter;
use cairn_env::buf::AlignedBuf;
use std::io::Read;
use tokio::sync::mpsc;

/// Buffers read ahead.
const AHEAD: usize = 8;
/// A part of what comes.
const PART: usize = 256 << 10;

/// Starts reading; the channel ends with the input or with an error.
pub fn read_all() -> mpsc::Receiver<Result<AlignedBuf>> {
    let (sender, receiver) = mpsc::channel(AHEAD);
    tokio::task::spawn_blocking(move || {
        let mut input = std::io::stdin().lock();
        loop {
            let buffer = fill(&mut input);
            let end = !matches!(&buffer, Ok(buffer) if buffer.remaining() == 0);
            // The writer gave up: nobody needs the rest.
            if sender.blocking_send(buffer).is_err() || end {
                return;
            }
        }
    });
    receiver
}

/// The same in parts as they come, however small; the channel ends with the input or with an error.
pub fn read_as_it_comes() -> mpsc::Receiver<Result<Vec<u8>>> {
    let (sender, receiver) = mpsc::channel(AHEAD);
    tokio::task::spawn_blocking(move || {
        let mut input = std::io::stdin().lock();
        let mut buffer = vec![0; PART];
        loop {
            let part = match input.read(&mut buffer) {
                Ok(0) => return,
                Ok(count) => Ok(buffer[..count].to_vec()),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => Err(CliError::Stream { stream: "standard input", error }),
            };
            let failed = part.is_err();
            if sender.blocking_send(part).is_err() || failed {
                return;
            }
        }
    });
    receiver
}

/// A full buffer, or less at the end.
fn fill(input: &mut impl Read) -> Result<AlignedBuf> {
    let mut buffer = FileWriter::buffer();
    while buffer.remaining() > 0 {
        match input.read(buffer.spare_mut()) {
            Ok(0) => break,
            Ok(count) => buffer.advance(count),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(CliError::Stream { stream: "standard input", error }),
        }
    }
    Ok(buffer)
}
