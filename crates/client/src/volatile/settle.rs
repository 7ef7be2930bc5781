//! Making files durable that were closed when all members had them in memory: some seconds later, or when somebody
//! asks.
//!
//! Their bytes are kept by the write streams until they are durable, sent to other chunks when a member fails, as all
//! bytes that are not durable. When all of a file's are durable, and the file names them where they are, the partition
//! is told (`NoteDurable`).
//!
//! Invariants: the partition is told only after a durable answer for everything up to the offset that is named; a file
//! comes to name another place only where it still names the one that was shown. Bounds: what streams hold (their
//! windows).
use super::{Moved, VolatileFile};
use crate::encoded_message::Coming;
use crate::error::{ClientError, Result};
use crate::meta::volume::Volume;
use cairn_types::{ErrorCode, SessionId};
use cairn_wire::Opcode;
use cairn_wire::common::{Empty, Extent};
use cairn_wire::meta::{DurableFile, NoteDurableRequest, PublishRequest};
use futures_util::stream::{self, StreamExt as _};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// Partitions that are told at once.
const AT_ONCE: usize = 64;
/// Files that the partition is told of in one request.
const FILES_ENTRY: usize = 256;
/// Times that a file is looked at again because it changed meanwhile.
const TRIES: usize = 64;

/// Up to where a file is durable, written by whom.
type Settled = (SessionId, u64);
/// The same with the file.
type Durable = (u64, Arc<VolatileFile>, SessionId, u64);

impl Volume {
    /// Whether this client closed the file before it was durable, and it is not known to be yet.
    pub fn has_volatile(&self, inode: u64) -> bool {
        self.volatile.files.lock().contains_key(&inode)
    }
    /// Such files.
    pub fn volatile_count(&self) -> usize {
        self.volatile.files.lock().len()
    }
    /// Makes a file durable that this client closed before it was.
    pub async fn make_durable(&self, inode: u64) -> Result<()> {
        self.settle_volatile(vec![inode]).await
    }
    /// Makes all of them durable that were closed so long ago.
    pub async fn make_older_durable(&self, age: Duration) -> Result<()> {
        let files = self.volatile.older_than(age, self.cluster().clock.now());
        if files.is_empty() { Ok(()) } else { self.settle_volatile(files).await }
    }

    /// Whoever does not wait for the end loses nothing by that.
    fn settle_volatile(&self, inodes: Vec<u64>) -> Coming<'_, Result<()>> {
        Box::pin(self.settle_in_time(inodes))
    }
    async fn settle_in_time(&self, inodes: Vec<u64>) -> Result<()> {
        self.sync_streams();
        let volume = self.clone();
        let settling = tokio::spawn(async move { volume.settle_files(inodes).await });
        match tokio::time::timeout(self.cluster().patience, settling).await {
            Ok(Ok(settled)) => settled,
            Ok(Err(_)) => Err(ClientError::protocol("closed files", "the task that makes them durable ended")),
            Err(_) => {
                let text = "no members made it durable in time; it is tried on";
                Err(ClientError::remote("a closed file", ErrorCode::DeadlineExceeded, text))
            }
        }
    }

    async fn settle_files(&self, inodes: Vec<u64>) -> Result<()> {
        let mut running = JoinSet::new();
        for inode in inodes {
            let Some(file) = self.volatile.files.lock().get(&inode).cloned() else { continue };
            let volume = self.clone();
            running.spawn(async move {
                let settled = volume.settle_file(inode, &file).await;
                (inode, file, settled)
            });
        }
        let (mut durable, mut outcome) = (Vec::new(), Ok(()));
        while let Some(joined) = running.join_next().await {
            let Ok((inode, file, settled)) = joined else { continue };
            match settled {
                Ok((session, to)) => durable.push((inode, file, session, to)),
                Err(error) => outcome = Err(error),
            }
        }
        let now = self.caller.session().await?.id;
        let mut by_partition: BTreeMap<u32, Vec<Durable>> = BTreeMap::new();
        for settled in durable {
            by_partition.entry(self.caller.partition_of(settled.0).await?).or_default().push(settled);
        }
        let parts = by_partition.values().flat_map(|list| list.chunks(FILES_ENTRY));
        let notes: Vec<_> = parts.map(|part| self.note_durable(part, now)).collect();
        let noted: Vec<Result<()>> = stream::iter(notes).buffer_unordered(AT_ONCE).collect().await;
        noted.into_iter().fold(outcome, |outcome, noted| noted.and(outcome))
    }

    /// Tells their partition of files that are durable.
    async fn note_durable(&self, part: &[Durable], now: SessionId) -> Result<()> {
        let own = part.iter().filter(|(_, _, session, _)| *session == now);
        let files: Vec<_> = own.map(|(inode, _, _, to)| DurableFile { inode: *inode, to: *to }).collect();
        if let Some(first) = files.first().map(|file| file.inode) {
            let make = |header| NoteDurableRequest { header: Some(header), files };
            self.mutate::<Empty, _>(b"files that are durable", first, Opcode::NoteDurable, make).await?;
        }
        part.iter().for_each(|(inode, file, _, to)| self.volatile.forget(*inode, file, *to));
        Ok(())
    }

    /// Waits until a file's bytes are durable, and named where they are.
    async fn settle_file(&self, inode: u64, file: &Arc<VolatileFile>) -> Result<Settled> {
        let _one = file.settling.lock().await;
        let to = file.state.lock().to;
        loop {
            let Some(mut shown) = file.state.lock().shown.pop_front() else { break };
            // Dropped here only with the process.
            let outcome = (&mut shown.durable).await;
            let from = shown.at.get().cloned();
            let mut state = file.state.lock();
            match (outcome, from) {
                (Ok(Ok(to)), Some(from)) if from != to => state.moved.push(Moved { runs: shown.runs, from, to }),
                (Ok(Ok(_)), _) => {}
                (Ok(Err(error)), _) => state.lost = Some(error),
                (Err(_), _) => state.lost = Some(ClientError::protocol("write stream", "it ended while it was used")),
            }
        }
        loop {
            let (moved, session) = {
                let mut state = file.state.lock();
                (state.moved.pop(), state.session)
            };
            let Some(moved) = moved else { break };
            if let Err(error) = self.name_elsewhere(inode, session, &moved).await {
                file.state.lock().moved.push(moved);
                return Err(error);
            }
        }
        let lost = file.state.lock().lost.clone();
        if let Some(error) = lost {
            tracing::error!(inode, %error, "a closed file could not be made durable; its end will be lost");
            self.volatile.forget(inode, file, u64::MAX);
            return Err(error);
        }
        Ok((file.state.lock().session, to))
    }

    /// The file names a part where it is durable, as far as it still names it where it was shown.
    async fn name_elsewhere(&self, inode: u64, session: SessionId, moved: &Moved) -> Result<()> {
        for _ in 0..TRIES {
            if self.caller.session().await?.id != session {
                tracing::warn!(
                    inode,
                    "the session ended before a closed file was durable; what members have of it stays"
                );
                return Ok(());
            }
            let found = match self.getattr(inode).await {
                Ok(found) if found.volatile_of == session.0 => found,
                Ok(_) => return Ok(()),
                Err(error) if is_gone(&error) => return Ok(()),
                Err(error) => return Err(error),
            };
            let Some(extents) = self.still_named(inode, found.data_version, moved).await? else { continue };
            if extents.is_empty() {
                return Ok(());
            }
            let request = PublishRequest {
                extents,
                if_data_version: found.data_version,
                written_by: session.0,
                durability: 2,
                ..Default::default()
            };
            match self.publish(inode, format!("inode {inode}").as_bytes(), request).await {
                Ok(_) => return Ok(()),
                Err(error) if error.code() == Some(ErrorCode::Conflict) => {}
                Err(error) if is_gone(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Err(ClientError::Changed { what: format!("inode {inode}") })
    }

    /// New extents for what the file names where it was shown; `None` if it is another version by now.
    async fn still_named(&self, inode: u64, version: u64, moved: &Moved) -> Result<Option<Vec<Extent>>> {
        let mut extents = Vec::new();
        for (offset, length, within) in &moved.runs {
            let mut at = *offset;
            while at < offset + length {
                let page = self.extents(inode, at, offset + length - at).await?;
                if page.data_version != version {
                    return Ok(None);
                }
                extents.extend(
                    page.extents.iter().filter_map(|named| elsewhere(named, (*offset, *length, *within), moved)),
                );
                match page.extents.last() {
                    Some(last) if !page.end => at = last.file_offset + last.length,
                    _ => break,
                }
            }
        }
        Ok(Some(extents))
    }
}

/// What a file has in a run, if it is the bytes that were shown, at its new place.
fn elsewhere(named: &Extent, (offset, length, within): (u64, u64, u64), moved: &Moved) -> Option<Extent> {
    let shown = (named.pg, named.index) == (moved.from.chunk.pg.0, moved.from.chunk.index);
    // Where the first byte of the run would be by this extent; places of other runs are elsewhere.
    let begins = (named.chunk_offset + offset).checked_sub(named.file_offset)?;
    let (from, to) = (named.file_offset.max(offset), (named.file_offset + named.length).min(offset + length));
    (shown && begins == moved.from.offset + within && from < to).then(|| Extent {
        file_offset: from,
        length: to - from,
        pg: moved.to.chunk.pg.0,
        index: moved.to.chunk.index,
        chunk_offset: moved.to.offset + within + (from - offset),
        flags: named.flags,
    })
}

fn is_gone(error: &ClientError) -> bool {
    error.is_not_found() || error.code() == Some(ErrorCode::Stale)
}
