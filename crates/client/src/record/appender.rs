//! [`RecordAppender`]: a writer of records. Its task (`task`) sends them in order, many in a request, and keeps them
//! until they are durable.
//!
//! Bounds: [`RecordOptions::window`] bytes of records wait, are sent or are not durable, and one record however long.
use super::RECORD_MAX;
use super::chunk::{AppendChunk, explain};
use super::settle::Settles;
use super::task::{Command, QUEUE_MAX, Task};
use crate::error::{ClientError, Result};
use crate::meta::volume::Volume;
use cairn_format::record_frame::RECORD_FRAME_LEN;
use cairn_types::{ErrorCode, Layout};
use std::sync::{Arc, OnceLock};
use tokio::sync::{Semaphore, mpsc, oneshot};

/// Windows have at least so many bytes.
const WINDOW_MIN: usize = 2 << 20;

/// When a record counts as appended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RecordLevel {
    /// All members have it in memory. It survives the death of servers, not of all machines at once; while the writer
    /// lives it is sent again if it was lost.
    Memory,
    /// All members have it on stable storage. It is in the file in about a second.
    #[default]
    Durable,
    /// The same, and whoever opens the file sees it.
    Visible,
}

#[derive(Clone, Copy, Debug)]
pub struct RecordOptions {
    pub level: RecordLevel,
    /// Memory of records that wait, are on their way or are not durable.
    pub window: usize,
    /// Under which number, and from which sequence on; a new number and 1 without it. A program that is started again
    /// gives the number it had, and the sequence of the first record of which it does not know that it was appended:
    /// what is there twice then has the same ones, and readers can leave repeats out. Nobody else may use the number at
    /// the same time.
    pub writer: Option<(u64, u64)>,
}

impl Default for RecordOptions {
    fn default() -> Self {
        Self { level: RecordLevel::default(), window: 32 << 20, writer: None }
    }
}

/// A record that was given, and its outcome.
pub struct RecordTicket {
    outcome: oneshot::Receiver<Result<()>>,
    /// Why the appender gave up: what was on its way then has no outcome of its own.
    failure: Arc<OnceLock<ClientError>>,
}

impl RecordTicket {
    /// The outcome, if there is one by now; to be asked for once.
    pub fn try_done(&mut self) -> Option<Result<()>> {
        match self.outcome.try_recv() {
            Ok(outcome) => Some(outcome),
            Err(oneshot::error::TryRecvError::Empty) => None,
            Err(oneshot::error::TryRecvError::Closed) => Some(Err(self.gave_up())),
        }
    }

    /// Waits until the record is appended. Dropping the ticket only means that nobody asks.
    pub async fn done(mut self) -> Result<()> {
        let outcome = (&mut self.outcome).await;
        outcome.unwrap_or_else(|_| Err(self.gave_up()))
    }

    fn gave_up(&self) -> ClientError {
        self.failure.get().cloned().unwrap_or_else(ended)
    }
}

/// Appends records to a file to which others append at the same time. Dropping it cancels what is not appended yet: of
/// records without an outcome it is not known whether they are in the file.
pub struct RecordAppender {
    queue: mpsc::Sender<Command>,
    window: Arc<Semaphore>,
    window_kib: u32,
    /// Why it gave up.
    failure: Arc<OnceLock<ClientError>>,
}

pub(super) fn window_kib(options: &RecordOptions) -> u32 {
    u32::try_from(options.window.max(WINDOW_MIN) / 1024).unwrap_or(u32::MAX >> 4)
}

pub(super) fn ended() -> ClientError {
    ClientError::protocol("record appender", "it ended while it was used")
}

impl Volume {
    /// A writer of records for an existing regular file.
    pub async fn record_appender(&self, path: &[u8], options: RecordOptions) -> Result<RecordAppender> {
        let found = self.stat(path, true).await?;
        let what = String::from_utf8_lossy(path).into_owned();
        let layout =
            Layout::from_bits(found.layout).ok_or_else(|| ClientError::protocol(&what, "its layout is unknown"))?;
        // Whether it can be done at all is said here, and not with the first record; one of many writers is enough to
        // ask.
        let known = self.cluster().shared.of::<Settles>().open(self.id(), found.inode, 0);
        let mut known = known.lock().await;
        if known.is_none() {
            let last = self.last_append(found.inode, path, 0).await.map_err(|error| explain(error, &what))?.append;
            let now = self.cluster().clock.now();
            let open = last.filter(|last| last.open).map(|last| AppendChunk::of(found.inode, &last));
            *known = Some((open, now));
        }
        drop(known);
        let (queue, commands) = mpsc::channel(QUEUE_MAX);
        let window_kib = window_kib(&options);
        let window = Arc::new(Semaphore::new(window_kib as usize));
        let task = Task::new(self.clone(), (found.inode, path), layout, options);
        let failure = Arc::new(OnceLock::new());
        tokio::spawn(task.run(commands, failure.clone()));
        Ok(RecordAppender { queue, window, window_kib, failure })
    }
}

impl RecordAppender {
    /// Why no more is taken.
    fn ended(&self) -> ClientError {
        self.failure.get().cloned().unwrap_or_else(ended)
    }

    /// Gives a record; waits while the window is full. It is appended when its ticket says so.
    pub async fn append(&self, record: &[u8]) -> Result<RecordTicket> {
        if record.len() > RECORD_MAX {
            let text = format!("a record has at most {RECORD_MAX} bytes, and this one {}; split it", record.len());
            return Err(ClientError::remote("appending a record", ErrorCode::InvalidArgument, &text));
        }
        let kib = (record.len() + RECORD_FRAME_LEN).div_ceil(1024) as u32;
        let permit =
            self.window.clone().acquire_many_owned(kib.min(self.window_kib)).await.map_err(|_| self.ended())?;
        let (done, ticket) = oneshot::channel();
        self.queue.send(Command::Record(record.to_vec(), permit, done)).await.map_err(|_| self.ended())?;
        Ok(RecordTicket { outcome: ticket, failure: self.failure.clone() })
    }

    /// Waits until all records that were given are durable, and whoever opens the file sees them.
    pub async fn flush(&self) -> Result<()> {
        let (done, flushed) = oneshot::channel();
        self.queue.send(Command::Flush(done)).await.map_err(|_| self.ended())?;
        flushed.await.map_err(|_| self.ended())?
    }

    /// Flushes, and ends the writer. The file's append stays open for others.
    pub async fn close(self) -> Result<()> {
        self.flush().await
    }
}
