//! Work on files for which leaders of partitions ask: moves of what lives in packs that are mostly dead
//! (`Volume::move_out`), and of what has too short extents (`Volume::defragment`), and of what waits to be encoded
//! (`Volume::encode_part`), which the client library writes anew before it swaps the extents; and the end of appends
//! whose writers are gone (`Volume::tend_append`).
//!
//! Invariant: whatever fails, a file is as it was or has the same bytes elsewhere; what was not moved comes with a
//! later request. Bounds: [`REQUESTS_MAX`] requests wait, one is worked on, [`FILES_AT_ONCE`] files of it at a time,
//! for [`WORK_MAX`] before it is answered. A volume that is not asked about for [`IDLE`] is let go of, and with it the
//! session and the pack that it writes; so is one after [`SESSION_MAX`], for nothing that a session wrote is collected
//! before it has ended. Not here: which packs and files (meta), pace (the leader).
use crate::worker::JobWorker;
use cairn_client::file_work::{FileWork, FileWorkDone, FileWorkRequest, ToEncode};
use cairn_client::{Client, ClientError, ConnectOptions, EncodeOutcome, EncodedPart, Volume};
use cairn_rpc::{Reply, Request, Service};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Requests that wait; more are refused.
pub(crate) const REQUESTS_MAX: usize = 8;
/// Files that are moved at a time: they share syncs.
const FILES_AT_ONCE: usize = 16;
/// No file is begun later than this after a request came up: shorter than the leader's deadline by the patience of a
/// call.
const WORK_MAX: Duration = Duration::from_secs(30);
/// Of calls for one file: what does not answer for longer is left to a later pass.
const PATIENCE: Duration = Duration::from_secs(15);
const IDLE: Duration = Duration::from_secs(30);
/// So long one session is used, however much there is to do.
const SESSION_MAX: Duration = Duration::from_secs(600);

impl Service for JobWorker {
    fn call(&self, request: Request<'_>, reply: Reply) {
        let Some(asked) = FileWorkRequest::decode(&request, reply) else { return };
        if let Err(refused) = self.asked.try_send(asked) {
            let asked = match refused {
                mpsc::error::TrySendError::Full(asked) | mpsc::error::TrySendError::Closed(asked) => asked,
            };
            asked.reply.overloaded("files of other volumes are being moved here; later");
        }
    }
}

/// Works requests off.
pub(crate) struct Compactor {
    options: ConnectOptions,
    /// The volume that was asked about last, and until when its session is used.
    open: Option<(Client, Volume, Instant)>,
}

impl Compactor {
    pub(crate) fn new(mut options: ConnectOptions) -> Self {
        options.patience = PATIENCE;
        Self { options, open: None }
    }

    pub(crate) async fn run(mut self, mut requests: mpsc::Receiver<FileWorkRequest>) {
        loop {
            match tokio::time::timeout(IDLE, requests.recv()).await {
                Ok(Some(FileWorkRequest { volume, work, reply })) => match self.work(volume, work).await {
                    Ok(done) => reply.done(done),
                    Err(error) => {
                        // Perhaps the cluster has changed in a way that the client does not see.
                        self.let_go().await;
                        reply.unavailable(error.to_string());
                    }
                },
                Ok(None) => return,
                Err(_) => self.let_go().await,
            }
        }
    }

    async fn let_go(&mut self) {
        if let Some((_, volume, _)) = self.open.take() {
            volume.close().await;
        }
    }

    async fn volume(&mut self, id: u32) -> Result<Volume, ClientError> {
        let is_it = |(_, volume, until): &&(Client, Volume, Instant)| volume.id() == id && Instant::now() < *until;
        if let Some((_, volume, _)) = self.open.as_ref().filter(is_it) {
            return Ok(volume.clone());
        }
        self.let_go().await;
        let client = Client::connect(self.options.clone()).await?;
        let view = client.refresh().await?;
        let name = view.volumes.get(&id).map(|volume| volume.name.clone());
        let name = name.ok_or_else(|| ClientError::protocol("moving files", format!("volume v{id} is gone")))?;
        // What was moved into several packs might be mostly dead space again.
        let volume = client.volume(&name).await?.with_one_stream();
        Ok(self.open.insert((client, volume, Instant::now() + SESSION_MAX)).1.clone())
    }

    async fn work(&mut self, volume: u32, work: FileWork) -> Result<FileWorkDone, ClientError> {
        let volume = self.volume(volume).await?;
        Ok(match work {
            FileWork::MoveOut { chunks, places } => move_out(&volume, chunks, places).await,
            FileWork::Defragment { inode, from, rules } => {
                FileWorkDone::Defragmented(volume.defragment(inode, from, rules, WORK_MAX).await?)
            }
            FileWork::TendAppend { inode, number, idle } => {
                FileWorkDone::Tended(volume.tend_append(inode, number, idle).await?)
            }
            FileWork::Encode(what) => encode(&volume, what).await,
            FileWork::MakeDense { pg, indices, inodes } => {
                let (moved, moved_bytes) = volume.compact_shards(pg, &indices, &inodes).await?;
                FileWorkDone::MovedOut { moved, kept: 0, moved_bytes }
            }
        })
    }
}

/// What fails of one file says why; only where nothing can be asked is it an error.
async fn encode(volume: &Volume, what: ToEncode) -> FileWorkDone {
    let (part, is_one) = match what {
        ToEncode::Part { inode, from } => (volume.encode_part(inode, from).await, true),
        ToEncode::Together { inodes, gently } => (volume.encode_together(&inodes, gently).await, false),
    };
    let (part, reason) = match part {
        Ok(part) if part.outcome == EncodeOutcome::Left && is_one => {
            (part, "others are writing it, or parts of the cluster are away".to_owned())
        }
        Ok(part) if part.outcome == EncodeOutcome::Shared => (part, "clones share most of it".to_owned()),
        Ok(part) => (part, String::new()),
        Err(error) => (EncodedPart::nothing(EncodeOutcome::Left), error.to_string()),
    };
    FileWorkDone::Encoded { part, reason }
}

async fn move_out(volume: &Volume, chunks: BTreeSet<(u32, u32)>, places: Vec<(u64, Vec<u64>)>) -> FileWorkDone {
    let (until, packs) = (Instant::now() + WORK_MAX, Arc::new(chunks));
    let (mut tasks, mut done) = (JoinSet::new(), Moved::default());
    for (inode, offsets) in places {
        while tasks.len() >= FILES_AT_ONCE {
            done.count(tasks.join_next().await);
        }
        if Instant::now() > until {
            break;
        }
        let (volume, packs) = (volume.clone(), packs.clone());
        tasks.spawn(async move {
            let outcome = volume.move_out(inode, &offsets, &packs).await;
            outcome.inspect_err(|error| tracing::debug!(inode, %error, "a file was left in a pack")).ok().flatten()
        });
    }
    while !tasks.is_empty() {
        done.count(tasks.join_next().await);
    }
    FileWorkDone::MovedOut { moved: done.moved, kept: done.kept, moved_bytes: done.bytes }
}

#[derive(Default)]
struct Moved {
    moved: u32,
    kept: u32,
    bytes: u64,
}

type Ended = Option<Result<Option<u64>, tokio::task::JoinError>>;

impl Moved {
    fn count(&mut self, ended: Ended) {
        match ended {
            Some(Ok(Some(bytes))) if bytes > 0 => {
                self.moved += 1;
                self.bytes += bytes;
            }
            Some(_) => self.kept += 1,
            None => {}
        }
    }
}
