//! [`Rechunk`]: pieces of any size into the parts that a `FileWriter` takes: all but the last full.
use cairn_client::{FileWriter, Result, SEGMENT_MAX};
use cairn_env::buf::{AlignedBuf, SharedBuf};

/// Gathers pieces; whole parts go through without a copy.
#[derive(Default)]
pub struct Rechunk {
    gathered: Option<AlignedBuf>,
}

impl Rechunk {
    /// Hands on what is full. `is_last`: nothing follows, so that it may be short.
    pub async fn push(&mut self, writer: &mut FileWriter, mut piece: SharedBuf, is_last: bool) -> Result<()> {
        while !piece.is_empty() {
            if self.gathered.is_none() && (is_last || piece.len() == SEGMENT_MAX) {
                return writer.push(piece).await;
            }
            let buffer = self.gathered.get_or_insert_with(FileWriter::buffer);
            let taken = buffer.remaining().min(piece.len());
            buffer.extend_from_slice(&piece.split_to(taken));
            if buffer.remaining() == 0
                && let Some(full) = self.gathered.take()
            {
                writer.push(full.freeze()).await?;
            }
        }
        Ok(())
    }
    /// A hole: skipped where whole parts of it begin on a part of the file, zeros else.
    pub async fn hole(&mut self, writer: &mut FileWriter, piece: SharedBuf, is_last: bool) -> Result<()> {
        if self.gathered.is_none() && (is_last || piece.len() == SEGMENT_MAX) {
            return writer.skip(piece.len() as u64).await;
        }
        self.push(writer, piece, is_last).await
    }
    /// Hands on the rest.
    pub async fn finish(self, writer: &mut FileWriter) -> Result<()> {
        match self.gathered {
            Some(rest) => writer.push(rest.freeze()).await,
            None => Ok(()),
        }
    }
}
