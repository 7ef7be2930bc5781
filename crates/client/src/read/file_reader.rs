//! A file opened for reading: extents by pages, pieces of up to 1 MiB read ahead, in the order of the file.
//!
//! Bounds: [`READ_AHEAD`] pieces are in memory or on their way; a page of extents is at most 1,024.
use super::latency::Latency;
use super::piece::{PIECE_MAX, Piece, read_piece};
use crate::error::{ClientError, Result};
use crate::meta::volume::Volume;
use cairn_env::buf::SharedBuf;
use cairn_types::{BLOCK_SIZE, ChunkId, PgId};
use cairn_wire::common::Extent;
use cairn_wire::meta::Attributes;
use std::collections::VecDeque;
use std::sync::{Arc, LazyLock};
use tokio::task::JoinHandle;

/// Pieces in flight of one reader.
pub const READ_AHEAD: usize = 8;

static ZEROS: LazyLock<SharedBuf> = LazyLock::new(|| SharedBuf::from_owner(vec![0u8; PIECE_MAX as usize]));

/// Bytes of a file, in order.
#[derive(Clone, Debug)]
pub struct FilePiece {
    pub offset: u64,
    pub data: SharedBuf,
    /// No extent covers it: it reads as zeros.
    pub hole: bool,
}

/// Reads a file as it was when it was opened; [`ClientError::Changed`] if it is replaced meanwhile.
pub struct FileReader {
    volume: Volume,
    attributes: Attributes,
    shown_as: String,
    latency: Arc<Latency>,
    /// Next byte to plan, and where to stop.
    at: u64,
    end: u64,
    extents: VecDeque<Extent>,
    extents_end: bool,
    planned_extents_to: u64,
    ahead: VecDeque<JoinHandle<Result<FilePiece>>>,
}

enum Plan {
    Data(Piece),
    Hole(u64),
}

impl FileReader {
    /// Reads `length` bytes from `offset` on, or to the end of the file.
    pub fn new(volume: &Volume, attributes: Attributes, shown_as: &str, offset: u64, length: u64) -> FileReader {
        let end = attributes.size.min(offset.saturating_add(length));
        FileReader {
            volume: volume.clone(),
            attributes,
            shown_as: shown_as.into(),
            latency: volume.read_latency(),
            at: offset.min(end),
            end,
            extents: VecDeque::new(),
            extents_end: false,
            planned_extents_to: offset,
            ahead: VecDeque::new(),
        }
    }
    pub fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    /// The next bytes; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<FilePiece>> {
        while self.ahead.len() < READ_AHEAD && self.at < self.end {
            let offset = self.at;
            let plan = self.plan().await?;
            let task = match plan {
                Plan::Hole(length) => {
                    self.at += length;
                    let data = ZEROS.slice(..length as usize);
                    tokio::spawn(std::future::ready(Ok(FilePiece { offset, data, hole: true })))
                }
                Plan::Data(piece) => {
                    self.at += piece.length;
                    let (cluster, latency) = (self.volume.cluster().clone(), self.latency.clone());
                    tokio::spawn(async move {
                        let data = read_piece(&cluster, &latency, piece).await?;
                        Ok(FilePiece { offset, data, hole: false })
                    })
                }
            };
            self.ahead.push_back(task);
        }
        let Some(task) = self.ahead.pop_front() else { return Ok(None) };
        match task.await {
            Ok(Ok(piece)) => Ok(Some(piece)),
            Ok(Err(error)) => Err(self.explain(error).await),
            Err(join) => Err(ClientError::protocol(&self.shown_as, format!("a read task ended: {join}"))),
        }
    }

    /// Data that is gone because the file was changed is no damage.
    async fn explain(&self, error: ClientError) -> ClientError {
        let changed = match self.volume.getattr(self.attributes.inode).await {
            Ok(now) => now.data_version != self.attributes.data_version,
            Err(error) => error.errno() == 116 || error.is_not_found(),
        };
        if changed { ClientError::Changed { what: self.shown_as.clone() } } else { error.named(&self.shown_as) }
    }

    async fn plan(&mut self) -> Result<Plan> {
        loop {
            while self.extents.front().is_some_and(|e| e.file_offset + e.length <= self.at) {
                self.extents.pop_front();
            }
            if let Some(extent) = self.extents.front() {
                let extent = *extent;
                if extent.file_offset > self.at {
                    return Ok(Plan::Hole((extent.file_offset.min(self.end) - self.at).min(PIECE_MAX)));
                }
                return Ok(Plan::Data(self.piece_of(&extent)));
            }
            if self.extents_end {
                return Ok(Plan::Hole((self.end - self.at).min(PIECE_MAX)));
            }
            self.fetch_extents().await?;
        }
    }

    /// A piece ends on a block boundary of the chunk or with the extent.
    fn piece_of(&self, extent: &Extent) -> Piece {
        let into = self.at - extent.file_offset;
        let offset = extent.chunk_offset + into;
        let left = (extent.length - into).min(self.end - self.at);
        let room = PIECE_MAX - offset % BLOCK_SIZE as u64;
        Piece { chunk: ChunkId { pg: PgId(extent.pg), index: extent.index }, offset, length: left.min(room) }
    }

    async fn fetch_extents(&mut self) -> Result<()> {
        let from = self.planned_extents_to.max(self.at);
        let page = self
            .volume
            .extents(self.attributes.inode, from, self.end - from)
            .await
            .map_err(|e| e.named(&self.shown_as))?;
        if page.data_version != self.attributes.data_version {
            return Err(ClientError::Changed { what: self.shown_as.clone() });
        }
        self.planned_extents_to = page.extents.last().map_or(self.end, |e| e.file_offset + e.length);
        self.extents_end = page.end || page.extents.is_empty() || self.planned_extents_to >= self.end;
        self.extents.extend(page.extents);
        Ok(())
    }
}

impl Drop for FileReader {
    fn drop(&mut self) {
        for task in &self.ahead {
            task.abort();
        }
    }
}
