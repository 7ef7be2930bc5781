//! Ending an open append: seal its chunk everywhere, find its last whole record, close the append; and looking for
//! records in what it left.
//!
//! Any number of clients may do this at the same time: what was logged first counts, and all learn it. The writers of
//! one client do it once for all, and read what the append left once (`left`). Invariant: what is published was sealed
//! and is durable on all serving members under one epoch; it ends with a whole record, and has everything that was
//! acknowledged as durable. What was published may have been freed since, and the chunk with it: files that are
//! appended to are cut, moved and encoded like any other.
use super::chunk::AppendChunk;
use super::left::{Left, Runs, walk};
use crate::cluster::Cluster;
use crate::error::{ClientError, Result};
use crate::meta::volume::Volume;
use crate::net::NetError;
use crate::stripe::suspects::Seen;
use cairn_types::{BLOCK_SIZE, Epoch, ErrorCode, Time};
use cairn_wire::Opcode;
use cairn_wire::data::{SealRequest, SealResponse};
use cairn_wire::meta::OpenAppend;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
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
    open: Mutex<BTreeMap<(u32, u64, u32), Arc<LastOpen>>>,
}

/// The open append that was found or made last, if any, and when somebody looked.
type LastOpen = tokio::sync::Mutex<Option<(Option<AppendChunk>, Time)>>;

impl Settles {
    /// That of a file's lane.
    pub(super) fn open(&self, volume: u32, inode: u64, lane: u32) -> Arc<LastOpen> {
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
    /// Locked while one of them closes it.
    outcome: tokio::sync::Mutex<Outcome>,
}

#[derive(Default)]
struct Outcome {
    left: Option<Arc<Left>>,
    failed: Failure,
}

/// Why one of several failed for whom the others wait: who waited for the whole patience does not wait as long once
/// more. What was refused to one may be allowed to the next.
#[derive(Default)]
pub(super) struct Failure(Option<(Time, ClientError)>);

impl Failure {
    pub fn note(&mut self, now: Time, error: &ClientError) {
        if matches!(error.code(), None | Some(ErrorCode::Unavailable)) {
            self.0 = Some((now, error.clone()));
        }
    }

    /// For who waited since then, if that was half of the patience at least when it failed: who came later tries once
    /// more.
    pub fn since(&self, asked: Time, patience: Duration) -> Result<()> {
        let waited = |at: Time| at >= asked && at.since(asked) >= patience / 2;
        self.0.as_ref().filter(|(at, _)| waited(*at)).map_or(Ok(()), |(_, error)| Err(error.clone()))
    }
}

/// Closes the append, if nobody has. `durable`: so much was acknowledged as durable.
pub(super) async fn settle(
    volume: &Volume,
    (inode, shown_as): (u64, &[u8]),
    chunk: AppendChunk,
    durable: u64,
) -> Result<Arc<Left>> {
    let (clock, key) = (&volume.cluster().clock, (volume.id(), inode, chunk.number));
    let one = volume.cluster().shared.of::<Settles>().closing(key);
    one.durable.fetch_max(durable, Relaxed);
    let asked = clock.now();
    let mut outcome = one.outcome.lock().await;
    let left = match &outcome.left {
        Some(left) => left.clone(),
        None => {
            outcome.failed.since(asked, volume.cluster().patience)?;
            match close(volume, (inode, shown_as), chunk, &one.durable).await {
                Ok(left) => outcome.left.insert(Arc::new(left)).clone(),
                Err(error) => {
                    outcome.failed.note(clock.now(), &error);
                    return Err(error);
                }
            }
        }
    };
    drop(outcome);
    check(left.published, durable, chunk, shown_as)?;
    Ok(left)
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
) -> Result<Left> {
    let cluster = volume.cluster().clone();
    let (started, mut pause) = (cluster.clock.now(), PAUSE_MIN);
    let look = async || -> Result<OpenAppend> {
        Ok(volume.get_append(inode, shown_as, chunk.number).await?.append.unwrap_or_default())
    };
    let closed = |published| Left::new(published, published, Runs::default());
    loop {
        let known = look().await?;
        if !known.open {
            return Ok(closed(known.published));
        }
        // Of what nobody has any more the file got all that there was, and was cut since, or has it elsewhere: members
        // delete a chunk that they freed as a whole.
        let sealed = seal(&cluster, chunk).await.map(|length| length.unwrap_or(known.published));
        let why = match sealed {
            Ok(length) if length < durable.load(Relaxed).max(known.published) => {
                format!("a member of {} has only {length} bytes of {}", chunk.id.pg, chunk.id)
            }
            Ok(length) => {
                // Others do the same: who comes late need not read what is there.
                let now = look().await?;
                if !now.open {
                    return Ok(closed(now.published));
                }
                let (end, runs) = walk(volume, chunk, known.published, length).await?;
                check(end, durable.load(Relaxed), chunk, shown_as)?;
                let to = (chunk.number, end, Vec::new());
                let answer = volume.publish_append(Opcode::CloseAppend, inode, shown_as, to).await?;
                let published = answer.append.unwrap_or_default().published;
                if published != end {
                    // Somebody else was faster, and found another end.
                    return Ok(closed(published));
                }
                return Ok(Left::new(published, known.published, runs));
            }
            Err(why) => why,
        };
        if cluster.clock.now().since(started) > cluster.patience {
            let text = format!("its open append in {} cannot be closed: {why}; look at cairn admin status", chunk.id);
            return Err(ClientError::remote(&String::from_utf8_lossy(shown_as), ErrorCode::Unavailable, &text));
        }
        tokio::time::sleep(cluster.jitter(pause)).await;
        pause = (pause * 2).min(PAUSE_MAX);
        cluster.refresh_quietly().await;
    }
}

/// Seals the chunk on all serving members under one epoch. Returns what all of them have; `None`: nobody has anything
/// of it. The primary first: after that nothing more is acknowledged, so all that was is on the others when these are
/// asked.
async fn seal(cluster: &Arc<Cluster>, chunk: AppendChunk) -> std::result::Result<Option<u64>, String> {
    let view = cluster.view();
    let pg = view.pgs.get(&chunk.id.pg.0).ok_or_else(|| format!("the map does not know {}", chunk.id.pg))?;
    let primary = pg.primary().ok_or_else(|| format!("{} has no serving member", chunk.id.pg))?;
    let mut least = seal_on(cluster.clone(), chunk, pg.epoch, primary).await?;
    let mut most = least;
    let mut calls = JoinSet::new();
    for disk in pg.serving().filter(|disk| *disk != primary) {
        calls.spawn(seal_on(cluster.clone(), chunk, pg.epoch, disk));
    }
    let mut failed = None;
    while let Some(answer) = calls.join_next().await {
        match answer {
            Ok(Ok(length)) => (least, most) = (least.min(length), most.max(length)),
            Ok(Err(why)) => failed = Some(why),
            Err(error) => failed = Some(error.to_string()),
        }
    }
    failed.map_or(Ok((most > 0).then_some(least)), Err)
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
