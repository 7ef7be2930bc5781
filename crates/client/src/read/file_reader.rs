//! A file opened for reading: extents by pages, pieces of up to 1 MiB and groups of striped rows read ahead, in the
//! order of the file.
//!
//! Bounds: [`READ_AHEAD`] pieces and row groups, of no more than [`AHEAD_BYTES_MAX`] and one more, are in memory or on
//! their way; a page of extents is at most 1,024.
use super::latency::Latency;
use super::piece::{Got, PIECE_MAX, Piece, read_piece};
use super::read_epochs::ReadEpochs;
use super::rows::{Rows, read_rows};
use super::set::{SetColumns, SetRange, group_bytes, read_set};
use crate::attributes::Attributes;
use crate::error::{ClientError, Result};
use crate::meta::volume::{Volume, shown};
use crate::moving::Run;
use crate::stripe::group::read_bytes;
use cairn_env::buf::SharedBuf;
use cairn_types::{BLOCK_SIZE, ChunkId, ErrorCode, ExtentKind, PgId, Stripe};
use cairn_wire::common::Extent;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, LazyLock};
use tokio::task::JoinHandle;

/// Pieces in flight of one reader.
pub const READ_AHEAD: usize = 8;
/// Bytes in flight of one reader, beyond which no more are asked for.
pub const AHEAD_BYTES_MAX: u64 = 24 << 20;

/// A reader of a file that is moved more often than this while it reads gives up.
const MOVES_MAX: u32 = 16;

static ZEROS: LazyLock<SharedBuf> = LazyLock::new(|| SharedBuf::from_owner(vec![0u8; PIECE_MAX as usize]));

/// Bytes of a file, in order.
#[derive(Clone, Debug)]
pub struct FilePiece {
    pub offset: u64,
    /// That many bytes of the file; `data` has them, but for a hole that was asked for as a whole.
    pub length: u64,
    pub data: SharedBuf,
    /// No extent covers it: it reads as zeros.
    pub hole: bool,
}

/// Reads a file as it was when it was opened; [`ClientError::Changed`] if it is replaced meanwhile. Bytes that were
/// only moved elsewhere are found there.
pub struct FileReader {
    volume: Volume,
    attributes: Attributes,
    shown_as: String,
    latency: Arc<Latency>,
    /// Next byte to plan, and where to stop.
    at: u64,
    end: u64,
    extents: VecDeque<Extent>,
    /// Stripe sets that the extents name, by their first chunk.
    sets: BTreeMap<(u32, u32), Arc<SetColumns>>,
    /// What is read is to be written elsewhere: plain chunks are read under these.
    epochs: Option<Arc<ReadEpochs>>,
    extents_end: bool,
    planned_extents_to: u64,
    ahead: VecDeque<Ahead>,
    ahead_bytes: u64,
    /// Parts of the row group that is being handed on.
    ready: VecDeque<FilePiece>,
    /// Why nothing follows them.
    failed: Option<ClientError>,
    /// How often it goes on where its bytes were moved.
    moves_left: u32,
    /// A hole is one piece without bytes.
    whole_holes: bool,
}

/// Bytes that are being read: the parts of a piece or row group.
struct Ahead {
    offset: u64,
    length: u64,
    hole: bool,
    task: JoinHandle<Got<Vec<SharedBuf>>>,
}

enum Plan {
    Data(Piece),
    Rows(Rows),
    Set(SetRange),
    Hole(u64),
}

impl Volume {
    /// Opens a file for reading; symbolic links are followed.
    pub async fn read(&self, path: &[u8], offset: u64, length: u64) -> Result<FileReader> {
        let found = self.stat(path, true).await?;
        if found.mode & 0o170_000 != 0o100_000 {
            let code =
                if found.mode & 0o170_000 == 0o040_000 { ErrorCode::IsDirectory } else { ErrorCode::InvalidArgument };
            return Err(ClientError::remote(&shown(path), code, "only regular files have contents to read"));
        }
        Ok(FileReader::new(self, found, &shown(path), offset, length))
    }
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
            sets: BTreeMap::new(),
            epochs: None,
            extents_end: false,
            planned_extents_to: offset,
            ahead: VecDeque::new(),
            ahead_bytes: 0,
            ready: VecDeque::new(),
            failed: None,
            moves_left: MOVES_MAX,
            whole_holes: false,
        }
    }
    /// Holes come as one piece each, whatever their size, without bytes.
    pub fn whole_holes(mut self) -> FileReader {
        self.whole_holes = true;
        self
    }
    /// Reads a run of which the places are known, whatever else of the file changes meanwhile.
    pub(crate) fn of_run(volume: &Volume, attributes: Attributes, shown_as: &str, run: &Run) -> FileReader {
        let mut reader = Self::new(volume, attributes, shown_as, run.offset, run.bytes);
        reader.extents = run.extents.iter().copied().collect();
        reader.extents_end = true;
        // It is about these places.
        reader.moves_left = 0;
        reader
    }
    /// Plain chunks are read under these epochs, which the caller confirms.
    pub(crate) fn under(mut self, epochs: &Arc<ReadEpochs>) -> FileReader {
        self.epochs = Some(epochs.clone());
        self
    }
    pub fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    /// The next bytes; `None` at the end. What can be read before bytes that cannot comes before the error, which names
    /// exactly the unreadable range of the file.
    pub async fn next(&mut self) -> Result<Option<FilePiece>> {
        loop {
            self.read_ahead().await?;
            if let Some(piece) = self.ready.pop_front() {
                return Ok(Some(piece));
            }
            if let Some(error) = self.failed.clone() {
                return Err(error);
            }
            let Some(Ahead { mut offset, length, hole, task }) = self.ahead.pop_front() else { return Ok(None) };
            self.ahead_bytes -= length;
            if hole && self.whole_holes {
                return Ok(Some(FilePiece { offset, length, data: SharedBuf::empty(), hole }));
            }
            let got = match task.await {
                Ok(got) => got,
                Err(join) => {
                    return Err(ClientError::protocol(&self.shown_as, format!("a read task ended: {join}")));
                }
            };
            for data in got.data.into_iter().filter(|data| !data.is_empty()) {
                let next = offset + data.len() as u64;
                self.ready.push_back(FilePiece { offset, length: data.len() as u64, data, hole });
                offset = next;
            }
            if let Some(mut error) = got.failed {
                // The members know offsets in the chunk.
                if let ClientError::Unreadable { offset: at, .. } | ClientError::Unavailable { offset: at, .. } =
                    &mut error
                {
                    *at = offset;
                }
                if self.follows_a_move().await {
                    self.begin_at(offset);
                } else {
                    self.failed = Some(self.explain(error).await);
                }
            }
        }
    }

    async fn read_ahead(&mut self) -> Result<()> {
        while self.ahead.len() < READ_AHEAD && self.ahead_bytes < AHEAD_BYTES_MAX && self.at < self.end {
            let offset = self.at;
            let cluster = self.volume.cluster().clone();
            let (length, hole, task) = match self.plan().await? {
                Plan::Hole(length) => {
                    let zeros = ZEROS.slice(..length.min(PIECE_MAX) as usize);
                    (length, true, tokio::spawn(std::future::ready(Got { data: vec![zeros], failed: None })))
                }
                Plan::Data(piece) => {
                    let latency = self.latency.clone();
                    let read = async move {
                        let Got { data, failed } = read_piece(&cluster, &latency, piece).await;
                        Got { data: vec![data], failed }
                    };
                    (piece.length, false, tokio::spawn(read))
                }
                Plan::Rows(rows) => {
                    (rows.to - rows.from, false, tokio::spawn(async move { read_rows(&cluster, rows).await }))
                }
                Plan::Set(range) => {
                    let (latency, length) = (self.latency.clone(), range.to - range.from);
                    (length, false, tokio::spawn(async move { read_set(&cluster, &latency, range).await }))
                }
            };
            self.at += length;
            self.ahead_bytes += length;
            self.ahead.push_back(Ahead { offset, length, hole, task });
        }
        Ok(())
    }

    /// Data that is gone because the file was changed is no damage.
    async fn explain(&self, error: ClientError) -> ClientError {
        let changed = match self.volume.getattr(self.attributes.inode).await {
            Ok(now) => now.data_version != self.attributes.data_version,
            Err(error) => error.errno() == 116 || error.is_not_found(),
        };
        if changed { ClientError::Changed { what: self.shown_as.clone() } } else { error.named(&self.shown_as) }
    }

    /// Whether nothing happened to the file but that its bytes were moved; it is read as it is now from then on.
    async fn follows_a_move(&mut self) -> bool {
        if self.moves_left == 0 {
            return false;
        }
        let Ok(now) = self.volume.getattr(self.attributes.inode).await else { return false };
        let then = &self.attributes;
        let contents = |a: &Attributes| (a.size, a.mtime_ns, a.ctime_ns, a.overwriter);
        let moved = now.data_version != then.data_version && contents(&now) == contents(then) && now.overwriter == 0;
        if moved {
            self.moves_left -= 1;
            self.attributes = now;
        }
        moved
    }

    /// Forgets what is under way and where bytes lie.
    fn begin_at(&mut self, offset: u64) {
        self.ahead.drain(..).for_each(|ahead| ahead.task.abort());
        self.extents.clear();
        self.sets.clear();
        (self.at, self.planned_extents_to, self.ahead_bytes, self.extents_end) = (offset, offset, 0, false);
    }

    fn hole_max(&self) -> u64 {
        if self.whole_holes { u64::MAX } else { PIECE_MAX }
    }

    async fn plan(&mut self) -> Result<Plan> {
        loop {
            while self.extents.front().is_some_and(|e| e.file_offset + e.length <= self.at) {
                self.extents.pop_front();
            }
            if let Some(extent) = self.extents.front() {
                let extent = *extent;
                if extent.file_offset > self.at {
                    return Ok(Plan::Hole((extent.file_offset.min(self.end) - self.at).min(self.hole_max())));
                }
                let epoch = match &self.epochs {
                    Some(epochs) => epochs.of(self.volume.cluster(), PgId(extent.pg)).await?.0,
                    None => 0,
                };
                return self.plan_extent(&extent, epoch);
            }
            if self.extents_end {
                return Ok(Plan::Hole((self.end - self.at).min(self.hole_max())));
            }
            self.fetch_extents().await?;
        }
    }

    fn plan_extent(&self, extent: &Extent, epoch: u64) -> Result<Plan> {
        let group = |stripe: Stripe, bytes: u64| {
            let from = extent.chunk_offset + (self.at - extent.file_offset);
            let left = (extent.length - (self.at - extent.file_offset)).min(self.end - self.at);
            (stripe, from, from + left.min(bytes - from % bytes))
        };
        let odd = |detail: String| Err(ClientError::protocol(&self.shown_as, detail));
        match ExtentKind::from_flags(extent.flags) {
            Some(ExtentKind::Plain) => Ok(Plan::Data(self.piece_of(extent, epoch))),
            Some(ExtentKind::Erasure(stripe)) => {
                let (stripe, from, to) = group(stripe, read_bytes(stripe));
                Ok(Plan::Rows(Rows { chunk: ChunkId { pg: PgId(extent.pg), index: extent.index }, stripe, from, to }))
            }
            Some(ExtentKind::Set(stripe)) => {
                let (stripe, from, to) = group(stripe, group_bytes(stripe));
                match self.sets.get(&(extent.pg, extent.index)) {
                    Some(columns) => Ok(Plan::Set(SetRange { columns: columns.clone(), stripe, from, to })),
                    None => odd(format!("the stripe set of pg{}.{} is not named", extent.pg, extent.index)),
                }
            }
            None => odd(format!("an extent has flags {:#x}, which this version does not know", extent.flags)),
        }
    }

    /// A piece ends on a block boundary of the chunk or with the extent.
    fn piece_of(&self, extent: &Extent, epoch: u64) -> Piece {
        let into = self.at - extent.file_offset;
        let offset = extent.chunk_offset + into;
        let left = (extent.length - into).min(self.end - self.at);
        let room = PIECE_MAX - offset % BLOCK_SIZE as u64;
        Piece { chunk: ChunkId { pg: PgId(extent.pg), index: extent.index }, offset, length: left.min(room), epoch }
    }

    async fn fetch_extents(&mut self) -> Result<()> {
        let from = self.planned_extents_to.max(self.at);
        let page = loop {
            let page = self.volume.extents(self.attributes.inode, from, self.end - from).await;
            let page = page.map_err(|e| e.named(&self.shown_as))?;
            if page.data_version == self.attributes.data_version {
                break page;
            }
            if !self.follows_a_move().await {
                return Err(ClientError::Changed { what: self.shown_as.clone() });
            }
        };
        self.planned_extents_to = page.extents.last().map_or(self.end, |e| e.file_offset + e.length);
        self.extents_end = page.end || page.extents.is_empty() || self.planned_extents_to >= self.end;
        self.sets.extend(page.sets.iter().map(|set| ((set.pg, set.index), Arc::new(SetColumns::decode(set)))));
        self.extents.extend(page.extents);
        Ok(())
    }
}

impl Drop for FileReader {
    fn drop(&mut self) {
        for ahead in &self.ahead {
            ahead.task.abort();
        }
    }
}
