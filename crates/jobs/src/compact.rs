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
use cairn_client::{Client, ClientError, ConnectOptions, EncodeOutcome, FragmentRules, Volume};
use cairn_rpc::{Payload, Reply, Request, Service};
use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::data::{
    CompactRequest, CompactResponse, DefragmentRequest, DefragmentResponse, EncodeRequest, EncodeResponse,
    TendAppendRequest, TendAppendResponse,
};
use cairn_wire::error::WireError;
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

/// What is to be done.
enum Work {
    Compact(CompactRequest),
    Defragment(DefragmentRequest),
    Tend(TendAppendRequest),
    Encode(EncodeRequest),
}

/// What came of it.
enum Done {
    Compact(CompactResponse),
    Defragment(DefragmentResponse),
    Tend(TendAppendResponse),
    Encode(EncodeResponse),
}

/// A request and whom to answer.
pub(crate) struct Asked {
    work: Work,
    reply: Reply,
}

impl Service for JobWorker {
    fn call(&self, request: Request<'_>, reply: Reply) {
        let work = match Opcode::from_code(request.opcode) {
            Some(Opcode::Compact) => request.decode().map(Work::Compact),
            Some(Opcode::Defragment) => request.decode().map(Work::Defragment),
            Some(Opcode::TendAppend) => request.decode().map(Work::Tend),
            Some(Opcode::Encode) => request.decode().map(Work::Encode),
            _ => {
                let text = format!("operation {:#06x} is none of a data node's", request.opcode);
                Err(WireError::new(ErrorCode::UnknownOperation, text))
            }
        };
        let work = match work {
            Ok(work) => work,
            Err(error) => return reply.err(error),
        };
        if let Err(refused) = self.asked.try_send(Asked { work, reply }) {
            let asked = match refused {
                mpsc::error::TrySendError::Full(asked) | mpsc::error::TrySendError::Closed(asked) => asked,
            };
            asked
                .reply
                .err(WireError::new(ErrorCode::Overloaded, "files of other volumes are being moved here; later"));
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

    pub(crate) async fn run(mut self, mut requests: mpsc::Receiver<Asked>) {
        loop {
            match tokio::time::timeout(IDLE, requests.recv()).await {
                Ok(Some(Asked { work, reply })) => {
                    let outcome = match work {
                        Work::Compact(request) => self.compact(request).await.map(Done::Compact),
                        Work::Defragment(request) => self.defragment(request).await.map(Done::Defragment),
                        Work::Tend(request) => self.tend(request).await.map(Done::Tend),
                        Work::Encode(request) => self.encode(request).await.map(Done::Encode),
                    };
                    match outcome {
                        Ok(Done::Compact(done)) => reply.ok(&done, Payload::None),
                        Ok(Done::Defragment(done)) => reply.ok(&done, Payload::None),
                        Ok(Done::Tend(done)) => reply.ok(&done, Payload::None),
                        Ok(Done::Encode(done)) => reply.ok(&done, Payload::None),
                        Err(error) => {
                            // Perhaps the cluster has changed in a way that the client does not see.
                            self.let_go().await;
                            reply.err(WireError::new(ErrorCode::Unavailable, error.to_string()));
                        }
                    }
                }
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

    async fn defragment(&mut self, request: DefragmentRequest) -> Result<DefragmentResponse, ClientError> {
        let volume = self.volume(request.volume).await?;
        let rules = FragmentRules { extent_bytes: request.extent_bytes };
        let done = volume.defragment(request.inode, request.from, rules, WORK_MAX).await?;
        Ok(DefragmentResponse {
            next: done.next.unwrap_or(0),
            done: done.next.is_none(),
            moved_bytes: done.moved,
            kept: done.kept,
        })
    }

    async fn tend(&mut self, request: TendAppendRequest) -> Result<TendAppendResponse, ClientError> {
        let volume = self.volume(request.volume).await?;
        let tended = volume.tend_append(request.inode, request.number, request.idle).await?;
        Ok(TendAppendResponse { closed: tended.closed, published: tended.published })
    }

    /// What fails of one file says why; only where nothing can be asked is it an error.
    async fn encode(&mut self, request: EncodeRequest) -> Result<EncodeResponse, ClientError> {
        let volume = self.volume(request.volume).await?;
        let part = match request.together.as_slice() {
            [] => volume.encode_part(request.inode, request.from).await,
            files => volume.encode_together(files).await,
        };
        let part = match part {
            Ok(part) => part,
            Err(error) => return Ok(EncodeResponse { outcome: 4, reason: error.to_string(), ..Default::default() }),
        };
        let (outcome, next) = match part.outcome {
            EncodeOutcome::NotWaiting => (0, 0),
            EncodeOutcome::More(next) => (1, next),
            EncodeOutcome::Done => (2, 0),
            EncodeOutcome::Kept => (3, 0),
            EncodeOutcome::Left => (4, 0),
        };
        let reason = if outcome == 4 && request.together.is_empty() {
            "others are writing it, or parts of the cluster are away".into()
        } else {
            String::new()
        };
        Ok(EncodeResponse { next, outcome, moved_bytes: part.moved, freed_bytes: part.freed, reason })
    }

    /// What lives in chunks of whole shards becomes one chunk.
    async fn make_dense(&mut self, request: CompactRequest) -> Result<CompactResponse, ClientError> {
        let volume = self.volume(request.volume).await?;
        let Some(pg) = request.chunks.first().map(|chunk| chunk.pg) else { return Ok(CompactResponse::default()) };
        let indices: BTreeSet<u32> = request.chunks.iter().filter(|c| c.pg == pg).map(|c| c.index).collect();
        let (places, _) = request.places.as_chunks::<2>();
        let inodes: Vec<u64> = places.iter().map(|[inode, _]| *inode).collect();
        let (files, moved_bytes) = volume.compact_shards(pg, &indices, &inodes).await?;
        Ok(CompactResponse { moved_bytes, moved: files, kept: 0 })
    }

    async fn compact(&mut self, request: CompactRequest) -> Result<CompactResponse, ClientError> {
        if request.whole_shards {
            return self.make_dense(request).await;
        }
        let volume = self.volume(request.volume).await?;
        let until = Instant::now() + WORK_MAX;
        let packs: Arc<BTreeSet<(u32, u32)>> = Arc::new(request.chunks.iter().map(|c| (c.pg, c.index)).collect());
        let (places, _) = request.places.as_chunks::<2>();
        let (mut tasks, mut done) = (JoinSet::new(), CompactResponse::default());
        for file in places.chunk_by(|a, b| a[0] == b[0]) {
            while tasks.len() >= FILES_AT_ONCE {
                count(&mut done, tasks.join_next().await);
            }
            if Instant::now() > until {
                break;
            }
            let (inode, offsets) = (file[0][0], file.iter().map(|place| place[1]).collect::<Vec<u64>>());
            let (volume, packs) = (volume.clone(), packs.clone());
            tasks.spawn(async move {
                let outcome = volume.move_out(inode, &offsets, &packs).await;
                outcome.inspect_err(|error| tracing::debug!(inode, %error, "a file was left in a pack")).ok().flatten()
            });
        }
        while !tasks.is_empty() {
            count(&mut done, tasks.join_next().await);
        }
        Ok(done)
    }
}

type Ended = Option<Result<Option<u64>, tokio::task::JoinError>>;

fn count(done: &mut CompactResponse, ended: Ended) {
    match ended {
        Some(Ok(Some(bytes))) if bytes > 0 => {
            done.moved += 1;
            done.moved_bytes += bytes;
        }
        Some(_) => done.kept += 1,
        None => {}
    }
}
