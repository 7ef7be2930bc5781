//! Looking after an append that nobody publishes any more: all its writers may be dead. What they left durably becomes
//! visible, and the append is closed, as a writer would do it who came next.
//!
//! Invariant: that of `settle`; whoever of its writers lives after all goes on in the next append. Not here: which
//! appends (meta).
use super::chunk::{AppendChunk, Asks, DURABLE, NotTaken, tell};
use super::settle::settle;
use crate::error::{ClientError, Result};
use crate::meta::volume::Volume;
use cairn_rpc::Payload;
use cairn_types::ErrorCode;
use cairn_wire::data::RecordsTold;

/// An append that was looked after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TendedAppend {
    /// By whomever.
    pub closed: bool,
    /// The file has so much of its chunk.
    pub published: u64,
}

impl Volume {
    /// Closes a file's append if it has more than the file, or its primary does not know what it has; and in any case
    /// if it is `idle`.
    pub async fn tend_append(&self, inode: u64, number: u64, idle: bool) -> Result<TendedAppend> {
        let shown_as = format!("#{inode}");
        let append = self.get_append(inode, shown_as.as_bytes(), number).await?.append.unwrap_or_default();
        if !append.open {
            return Ok(TendedAppend { closed: true, published: append.published });
        }
        let chunk = AppendChunk::of(inode, &append);
        if !idle {
            match chunk.send(self.cluster(), Payload::None, Asks { level: DURABLE, ..Asks::default() }, None).await {
                Ok(answer) if !answer.roll && answer.next.is_none() && answer.end <= append.published => {
                    return Ok(TendedAppend { closed: false, published: append.published });
                }
                // It is full, has more, or cannot be asked.
                Ok(_) | Err(NotTaken::Over(_)) => {}
                Err(NotTaken::Later(why)) => return Err(ClientError::remote(&shown_as, ErrorCode::Unavailable, &why)),
            }
        }
        let settled = settle(self, (inode, shown_as.as_bytes()), chunk, 0).await?;
        // Who waits there to hear where the file goes on finds out himself.
        tell(chunk, self.cluster(), RecordsTold { published: settled.published, next: None, closed: true });
        Ok(TendedAppend { closed: true, published: settled.published })
    }
}
