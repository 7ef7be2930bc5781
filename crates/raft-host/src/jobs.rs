//! Background work of a host: writing checkpoints (one thread, one after the other) and fetching them from other
//! nodes (a thread each, at most one a group).

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use cairn_env::Clock;
use cairn_format::checkpoint::CheckpointHeader;
use cairn_raft::{Position, SnapshotMeta};
use cairn_store::{CheckpointSource, CheckpointStore, Record, StoreError, Wal};
use cairn_types::{GroupId, NodeId, crc32c};
use cairn_wire::raft::FetchCheckpointRequest;

use crate::mailbox::{Event, Mailbox};
use crate::state_machine::CheckpointWriter;
use crate::transport::{FetchError, RaftTransport};

/// Times that a part of a checkpoint is asked for before the fetch is given up.
const FETCH_TRIES: u32 = 5;
/// Pause between them.
const FETCH_PAUSE: Duration = Duration::from_millis(200);

/// Told the file's length and how long it took, or what went wrong.
pub(crate) type Written = Box<dyn FnOnce(Result<(u64, Duration), StoreError>) + Send>;

/// A checkpoint to be written.
pub(crate) struct CheckpointJob {
    pub header: CheckpointHeader,
    pub state: CheckpointWriter,
    pub done: Written,
}

/// The thread that writes checkpoints.
pub(crate) struct Checkpointer {
    jobs: Option<Sender<CheckpointJob>>,
    thread: Option<JoinHandle<()>>,
}

impl Checkpointer {
    pub fn start(store: Arc<CheckpointStore>, clock: Arc<dyn Clock>) -> Result<Self, StoreError> {
        let (jobs, receiver) = channel();
        let thread = std::thread::Builder::new()
            .name("cairn-ckpt".into())
            .spawn(move || run(&store, clock.as_ref(), &receiver))
            .map_err(|error| StoreError::LogStopped { dir: "raft".into(), cause: error.to_string() })?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread) })
    }

    /// A sender for a group; each group has at most one job under way.
    pub fn jobs(&self) -> Option<Sender<CheckpointJob>> {
        self.jobs.clone()
    }

    /// Ends the thread once all groups have dropped their senders.
    pub fn stop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the checkpoint thread panicked");
        }
    }
}

fn run(store: &CheckpointStore, clock: &dyn Clock, jobs: &Receiver<CheckpointJob>) {
    while let Ok(job) = jobs.recv() {
        let started = clock.now();
        let written = store.write(job.header, |writer| (job.state)(writer));
        (job.done)(written.map(|bytes| (bytes, clock.now().since(started))));
    }
}

/// What a fetch needs.
pub(crate) struct Fetch<C> {
    pub store: Arc<CheckpointStore>,
    pub wal: Arc<Wal>,
    pub transport: Arc<dyn RaftTransport>,
    pub mailbox: Arc<Mailbox<C>>,
    pub group: GroupId,
    pub from: NodeId,
    pub meta: SnapshotMeta,
    pub part_bytes: u32,
}

impl<C: Send + 'static> Fetch<C> {
    /// Starts it; its outcome comes as [`Event::Fetched`].
    pub fn spawn(self) {
        let at = self.meta.at;
        let mailbox = self.mailbox.clone();
        let spawned = std::thread::Builder::new().name("cairn-fetch".into()).spawn(move || {
            let result = self.run();
            // A closed group needs it no more.
            self.mailbox.post(Event::Fetched(at, result));
        });
        if let Err(error) = spawned {
            mailbox.post(Event::Fetched(at, Err(error.to_string())));
        }
    }

    fn run(&self) -> Result<(), String> {
        let Position { index, term } = self.meta.at;
        // Left from an earlier offer that was not used.
        if let Ok(mut have) = self.store.open(self.group, index)
            && have.header().term == term
            && have.verify().is_ok()
        {
            tracing::info!(group = %self.group, index, bytes = have.len(), "the offered checkpoint is here already");
            return Ok(());
        }
        let mut incoming = self.store.receive(self.group, index, term).map_err(|error| error.to_string())?;
        loop {
            let (total, part) = self.part(incoming.len())?;
            if part.is_empty() || incoming.len() + part.len() as u64 > total {
                return Err(format!("{} sent {} bytes at {} of {total}", self.from, part.len(), incoming.len()));
            }
            incoming.write(&part).map_err(|error| error.to_string())?;
            if incoming.len() == total {
                break;
            }
        }
        // So that a start that finds it without the log's reset does not take the log for one that lost its end.
        if self.wal.is_chained() {
            let note = Record::Fetched { group: self.group, index, term };
            self.wal.append(vec![note]).map_err(|error| error.to_string())?;
        }
        incoming.finish().map(drop).map_err(|error| error.to_string())
    }

    fn part(&self, offset: u64) -> Result<(u64, bytes::Bytes), String> {
        let request = FetchCheckpointRequest {
            group: self.group.0,
            index: self.meta.at.index,
            offset,
            length_max: self.part_bytes,
        };
        let mut last = String::new();
        for _ in 0..FETCH_TRIES {
            match self.transport.fetch(self.from, request) {
                Ok((answer, part)) if crc32c(&part) == answer.crc => return Ok((answer.total, part)),
                Ok(_) => last = format!("a part from {} came with a wrong checksum", self.from),
                Err(error @ FetchError::Gone { .. }) => return Err(error.to_string()),
                Err(error) => last = error.to_string(),
            }
            std::thread::sleep(FETCH_PAUSE);
        }
        Err(last)
    }
}
