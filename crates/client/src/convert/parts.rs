//! Bytes of a file that are written anew, gathered into the parts in which a body takes them.
//!
//! Invariant: all parts behind the first one begin and end at multiples of [`SEGMENT_MAX`] in the file, wherever the
//! first one begins: rows of blocks begin nowhere else, and what is in no row is kept as copies. Memory: one part.
use crate::append::SEGMENT_MAX;
use crate::append::segment::segment_buffer;
use crate::error::Result;
use crate::file_writer::body::Body;
use cairn_env::buf::AlignedBuf;

/// Parts whose places are not awaited yet.
const PLACES_BEHIND: usize = 256;

pub(crate) struct Parts {
    part: AlignedBuf,
    /// What this part has room for yet.
    room: usize,
}

impl Parts {
    /// Of what lies from `offset` on.
    pub(crate) fn of(offset: u64) -> Parts {
        Parts { part: segment_buffer(), room: SEGMENT_MAX - (offset % SEGMENT_MAX as u64) as usize }
    }

    /// Takes the next bytes, and hands on the parts that are full.
    pub(crate) async fn take(&mut self, mut bytes: &[u8], body: &mut Body, shown_as: &str) -> Result<()> {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(self.room));
            self.part.extend_from_slice(now);
            (bytes, self.room) = (later, self.room - now.len());
            if self.room == 0 {
                self.hand_on(body, shown_as).await?;
            }
        }
        Ok(())
    }

    /// Behind the last byte, or before a hole.
    pub(crate) async fn end(mut self, body: &mut Body, shown_as: &str) -> Result<()> {
        self.hand_on(body, shown_as).await?;
        body.flush().await.map_err(|e| e.named(shown_as))
    }

    /// Waits for places if too many are not known.
    async fn hand_on(&mut self, body: &mut Body, shown_as: &str) -> Result<()> {
        self.room = SEGMENT_MAX;
        if self.part.is_empty() {
            return Ok(());
        }
        let full = std::mem::replace(&mut self.part, segment_buffer());
        body.push(full.freeze()).await.map_err(|e| e.named(shown_as))?;
        while body.places.awaited() > PLACES_BEHIND {
            body.take_place(shown_as).await?;
        }
        Ok(())
    }
}
