//! Records that many clients append to one file at the same time: each is there whole, once, at a place that nobody
//! chose.
//!
//! The file has at most one *open append* in a lane: a chunk to whose primary all writers of the lane send framed
//! records. Up to 64 writers share one lane, many thousands are spread over 16 (`lanes`). What is durable there is
//! published into the file, in order and by whoever is asked to, in whole blocks, so a published block is never written
//! again. When anything goes wrong with the chunk, or it is full, whoever notices seals it, publishes it up to its last
//! whole record and closes the append; each writer then looks into the chunk for its own records, and sends again only
//! what is not there.
//!
//! Invariant: a record is sent again only after the append to which it was sent was closed, and is not in what that
//! left. Not here: frames (`format`), the chunk's primary (`data`), what the file gets (`meta-core`).
mod appender;
mod chunk;
mod kept;
mod lanes;
mod left;
mod looks;
mod opening;
mod publish;
mod reader;
mod settle;
mod task;
mod tend;
#[cfg(test)]
mod tests;

pub use appender::{RecordAppender, RecordLevel, RecordOptions, RecordTicket};
pub use reader::{Record, RecordReader, Skipped};
pub use tend::TendedAppend;

use crate::error::Result;
use crate::meta::volume::Volume;
use cairn_wire::Opcode;
use cairn_wire::meta::{GetAppendRequest, OpenAppendRequest, OpenAppendResponse, PublishAppendRequest, PublishTo};

/// Bytes of the longest record.
pub use cairn_format::record_frame::RECORD_MAX;

impl Volume {
    /// The append of a file with that number.
    pub(crate) async fn get_append(&self, inode: u64, shown_as: &[u8], number: u64) -> Result<OpenAppendResponse> {
        self.find_append(inode, shown_as, (number, 0)).await
    }

    /// The last one of a lane.
    pub(crate) async fn last_append(&self, inode: u64, shown_as: &[u8], lane: u32) -> Result<OpenAppendResponse> {
        self.find_append(inode, shown_as, (0, lane)).await
    }

    async fn find_append(&self, inode: u64, shown_as: &[u8], (number, lane): (u64, u32)) -> Result<OpenAppendResponse> {
        let request = |header| GetAppendRequest { header: Some(header), inode, number, lane };
        let what = String::from_utf8_lossy(shown_as);
        self.caller().read_by(&what, inode, Opcode::GetAppend, request).await
    }

    pub(crate) async fn open_append(
        &self,
        inode: u64,
        shown_as: &[u8],
        request: OpenAppendRequest,
    ) -> Result<OpenAppendResponse> {
        let make = |header| OpenAppendRequest { header: Some(header), inode, ..request };
        self.mutate(shown_as, inode, Opcode::OpenAppend, make).await
    }

    /// `opcode`: PublishAppend, also of others of the file, or CloseAppend.
    pub(crate) async fn publish_append(
        &self,
        opcode: Opcode,
        inode: u64,
        shown_as: &[u8],
        (number, to, more): (u64, u64, Vec<PublishTo>),
    ) -> Result<OpenAppendResponse> {
        let make = |header| PublishAppendRequest { header: Some(header), inode, number, to, more };
        self.mutate(shown_as, inode, opcode, make).await
    }
}
