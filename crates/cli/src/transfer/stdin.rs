//! Standard input as full buffers, read by a thread of its own ahead of the writer.
use crate::error::{CliError, Result};
use cairn_client::FileWriter;
use cairn_env::buf::AlignedBuf;
use std::io::Read;
use tokio::sync::mpsc;

/// Buffers read ahead.
const AHEAD: usize = 8;

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
