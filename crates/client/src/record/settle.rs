//! Ending an open append: seal its chunk everywhere, find its last whole record, close the append; and looking for records in what it left.
//!
//! Any number of writers may do this at the same time: what was logged first counts, and all learn it.
//! Invariant: what is published was sealed and is durable on all serving members under one epoch; it ends with a whole record, and has
//! everything that was acknowledged as durable.
use super::chunk::AppendChunk;
use crate::append::open::refresh_quietly;
use crate::cluster::Cluster;
use crate::error::{ClientError, Result};
use crate::meta::volume::Volume;
use crate::net::NetError;
use crate::read::piece::{PIECE_MAX, Piece, read_piece};
use crate::stripe::suspects::Seen;
use cairn_format::record_frame::{Found, RecordFrame, record_at};
use cairn_types::{BLOCK_SIZE, Epoch, ErrorCode, Time};
use cairn_wire::Opcode;
use cairn_wire::data::{SealRequest, SealResponse};
use cairn_wire::meta::OpenAppend;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::OnceCell;
use tokio::task::JoinSet;

/// Closed appends that are remembered.
const SETTLES_MAX: usize = 32;
/// Lanes of files whose open append is known.
const OPEN_MAX: usize = 1024;

const SEAL_DEADLINE: Duration = Duration::from_secs(5);
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// What writers of one client do once, not each.
#[derive(Default)]
pub(crate) struct Settles {
    /// Appends that were closed lately, with what was found in them.
    closed: Mutex<BTreeMap<Key, Arc<Settle>>>,
    /// So many were.
    begun: AtomicU64,
    /// The last open append of files, as one of them found or made it. Locked while one of them looks.
    open: Mutex<BTreeMap<(u32, u64, u32), Arc<Known>>>,
}

/// The open append that was found or made last, if any, and when.
type Known = tokio::sync::Mutex<Option<(AppendChunk, Time)>>;

impl Settles {
    /// That of a file's lane.
    pub(super) fn open(&self, volume: u32, inode: u64, lane: u32) -> Arc<Known> {
        let mut all = self.open.lock();
        while all.len() >= OPEN_MAX && !all.contains_key(&(volume, inode, lane)) {
            all.pop_first();
        }
        all.entry((volume, inode, lane)).or_default().clone()
    }

    /// That which the writers of this client share to close an append.
    fn closing(&self, key: Key) -> Arc<Settle> {
        let mut all = self.closed.lock();
        while all.len() >= SETTLES_MAX
            && !all.contains_key(&key)
            && let Some(oldest) = all.iter().min_by_key(|(_, one)| one.begun).map(|(key, _)| *key)
        {
            all.remove(&oldest);
        }
        let begun = self.begun.fetch_add(1, Relaxed);
        all.entry(key).or_insert_with(|| Arc::new(Settle { begun, ..Settle::default() })).clone()
    }
}

/// Volume, inode, number.
type Key = (u32, u64, u64);

#[derive(Default)]
struct Settle {
    /// The how manieth of this client.
    begun: u64,
    /// The most that one of the writers was told is durable.
    durable: AtomicU64,
    settled: OnceCell<Arc<Settled>>,
}

/// What a closed append left.
pub(super) struct Settled {
    /// The file got so much of its chunk.
    pub published: u64,
    /// Records behind this place are known: `frames`.
    pub from: u64,
    /// Writer and sequence, in order. At most one for 32 bytes that were not published when it was closed.
    frames: Vec<(u64, u64)>,
}

impl Settled {
    pub fn has(&self, writer: u64, sequence: u64) -> bool {
        self.frames.binary_search(&(writer, sequence)).is_ok()
    }
}

/// Closes the append, if nobody has. `durable`: so much was acknowledged as durable.
pub(super) async fn settle(
    volume: &Volume,
    (inode, shown_as): (u64, &[u8]),
    chunk: AppendChunk,
    durable: u64,
) -> Result<Arc<Settled>> {
    let key = (volume.id(), inode, chunk.number);
    let one = volume.cluster().settles.closing(key);
    one.durable.fetch_max(durable, Relaxed);
    let settled = one.settled.get_or_try_init(|| close(volume, (inode, shown_as), chunk, &one.durable)).await?;
    check(settled.published, durable, chunk, shown_as)?;
    Ok(settled.clone())
}

/// What was acknowledged as durable ends with a record, or with the block in which the last one ends.
pub(super) fn check(published: u64, durable: u64, chunk: AppendChunk, shown_as: &[u8]) -> Result<()> {
    if published.next_multiple_of(BLOCK_SIZE as u64) >= durable {
        return Ok(());
    }
    let text =
        format!("{} was closed at {published}, and {durable} bytes of it were acknowledged as durable", chunk.id);
    Err(ClientError::protocol(&String::from_utf8_lossy(shown_as), text))
}

async fn close(
    volume: &Volume,
    (inode, shown_as): (u64, &[u8]),
    chunk: AppendChunk,
    durable: &AtomicU64,
) -> Result<Arc<Settled>> {
    let cluster = volume.cluster().clone();
    let (started, mut pause) = (cluster.clock.now(), PAUSE_MIN);
    let look = async || -> Result<OpenAppend> {
        Ok(volume.get_append(inode, shown_as, chunk.number).await?.append.unwrap_or_default())
    };
    let closed = |published| Arc::new(Settled { published, from: published, frames: Vec::new() });
    loop {
        let known = look().await?;
        if !known.open {
            return Ok(closed(known.published));
        }
        let why = match seal(&cluster, chunk).await {
            Ok(length) if length < durable.load(Relaxed).max(known.published) => {
                format!("a member of {} has only {length} bytes of {}", chunk.id.pg, chunk.id)
            }
            Ok(length) => {
                // Others do the same: who comes late need not read what is there.
                let now = look().await?;
                if !now.open {
                    return Ok(closed(now.published));
                }
                let mut frames = Vec::new();
                let note = |frame: &RecordFrame| frames.push((frame.writer, frame.sequence));
                let end = walk(volume, chunk, known.published, length, note).await?;
                check(end, durable.load(Relaxed), chunk, shown_as)?;
                let to = (chunk.number, end);
                let answer = volume.publish_append(Opcode::CloseAppend, inode, shown_as, to).await?;
                let published = answer.append.unwrap_or_default().published;
                if published != end {
                    // Somebody else was faster, and found another end.
                    return Ok(closed(published));
                }
                frames.sort_unstable();
                return Ok(Arc::new(Settled { published, from: known.published, frames }));
            }
            Err(why) => why,
        };
        if cluster.clock.now().since(started) > cluster.patience {
            let text = format!("its open append in {} cannot be closed: {why}; look at cairn admin status", chunk.id);
            return Err(ClientError::remote(&String::from_utf8_lossy(shown_as), ErrorCode::Unavailable, &text));
        }
        tokio::time::sleep(cluster.jitter(pause)).await;
        pause = (pause * 2).min(PAUSE_MAX);
        refresh_quietly(&cluster).await;
    }
}

/// Seals the chunk on all serving members under one epoch. Returns what all of them have. The primary first: after that nothing more is
/// acknowledged, so all that was is on the others when these are asked.
async fn seal(cluster: &Arc<Cluster>, chunk: AppendChunk) -> std::result::Result<u64, String> {
    let view = cluster.view();
    let pg = view.pgs.get(&chunk.id.pg.0).ok_or_else(|| format!("the map does not know {}", chunk.id.pg))?;
    let primary = pg.primary().ok_or_else(|| format!("{} has no serving member", chunk.id.pg))?;
    let mut least = seal_on(cluster.clone(), chunk, pg.epoch, primary).await?;
    let mut calls = JoinSet::new();
    for disk in pg.serving().filter(|disk| *disk != primary) {
        calls.spawn(seal_on(cluster.clone(), chunk, pg.epoch, disk));
    }
    let mut failed = None;
    while let Some(answer) = calls.join_next().await {
        match answer {
            Ok(Ok(length)) => least = least.min(length),
            Ok(Err(why)) => failed = Some(why),
            Err(error) => failed = Some(error.to_string()),
        }
    }
    failed.map_or(Ok(least), Err)
}

async fn seal_on(
    cluster: Arc<Cluster>,
    chunk: AppendChunk,
    epoch: Epoch,
    disk: u32,
) -> std::result::Result<u64, String> {
    let address = cluster.disk_address(disk).map_err(|error| error.text())?;
    let request = SealRequest { chunk: Some(chunk.header(disk, epoch)), chain: Vec::new() };
    match cluster.net.call::<SealResponse>(&address, Opcode::Seal, &request, SEAL_DEADLINE).await {
        Ok(answer) => Ok(answer.length),
        Err(error) => {
            if !matches!(error, NetError::Remote(_)) {
                let seen = Seen { session: chunk.session, pg: chunk.id.pg.0, epoch: epoch.0 };
                cluster.report_suspect(seen, disk, error.text()).await;
            }
            Err(error.text())
        }
    }
}

/// Shows all whole records of a sealed chunk in `from..to`; records begin at `from`, or a block of padding. Returns where the last one ends.
pub(super) async fn walk(
    volume: &Volume,
    chunk: AppendChunk,
    from: u64,
    to: u64,
    mut visit: impl FnMut(&RecordFrame),
) -> Result<u64> {
    let (cluster, latency) = (volume.cluster(), volume.read_latency());
    let (mut buffer, mut at, mut read_to, mut end): (Vec<u8>, u64, u64, u64) = (Vec::new(), from, from, from);
    loop {
        let consumed = {
            let mut consumed = 0;
            loop {
                match record_at(&buffer[consumed..]) {
                    Found::Record(frame, _) => {
                        consumed += frame.framed_len();
                        end = at + consumed as u64;
                        visit(&frame);
                    }
                    Found::Skip { bytes, damaged: false } => consumed += bytes,
                    // The end of a torn one, of which nobody was told that it is durable.
                    Found::Skip { .. } => return Ok(end),
                    Found::More => break consumed,
                }
            }
        };
        buffer.drain(..consumed);
        at += consumed as u64;
        if read_to >= to {
            return Ok(end);
        }
        let offset = read_to - read_to % BLOCK_SIZE as u64;
        let length = (to - offset).min(PIECE_MAX);
        let got = read_piece(cluster, &latency, Piece { chunk: chunk.id, offset, length, epoch: 0 }).await;
        if let Some(error) = got.failed {
            return Err(error);
        }
        buffer.extend_from_slice(&got.data[(read_to - offset) as usize..]);
        read_to = offset + length;
    }
}
